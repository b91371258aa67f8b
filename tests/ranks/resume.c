// 2N steps are N steps, a save, a load and N steps, whatever the number of ranks, the stage and the
// way of gathering before and after: the fingerprints are those written down for runs that nothing
// has interrupted. Training goes on beside the save, and has the same bits.
//
// With "matrix" as its argument every combination, else so many that any two values of two
// dimensions meet.
#include "tests/numerics/pairs.h"
#include "tests/numerics/synthetic_matrix.h"
#include "tests/ranks/team.h"
#include "tests/sanitizer.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OPTIMIZER, PRECISION, SAVE_WORLD, LOAD_WORLD, SAVE_STAGE, LOAD_STAGE, DIMS };
enum { WORLDS = 5 };
static const int worlds[WORLDS] = {1, 2, 3, 4, 8};

// Before the first step, after the first, in the middle, and after the last but one.
enum { TIMES = 4 };
static const uint64_t times[TIMES] = {0, 1, 6, MATRIX_STEPS - 1};

static bool possible(const int *choice)
{
    (void)choice;
    return true;
}

// The policy for steps without an update, and the time of the save, take turns.
static const struct pairs matrix = {
    .dims = DIMS,
    .sizes = {MATRIX_OPTIMIZERS, MATRIX_PRECISIONS, WORLDS, WORLDS, 4, 4},
    .possible = possible,
};

// One run that is cut in two.
struct journey {
    struct synthetic model;
    const char *golden;
    const char *directory;
    int stages[2];
    const char *gather[2];
    uint64_t at;
    int saved_world;
};

static void hex(const uint8_t digest[16], char text[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

static bool steps(struct team_rank *rank, const struct journey *journey, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step < to; step++)
        TEAM_OK(rank, synthetic_step(rank->z, &journey->model, step));
    return true;
}

static bool ends_as_written(struct team_rank *rank, const struct journey *journey)
{
    uint8_t digest[16];
    char text[33];
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    hex(digest, text);
    if (strcmp(text, journey->golden) == 0)
        return true;
    fprintf(stderr, "rank %d of %d: %s instead of %s\n", rank->rank, rank->world, text,
            journey->golden);
    return false;
}

static bool open_model(struct team_rank *rank, const struct journey *journey, int half)
{
    rank->config.stage = journey->stages[half];
    rank->config.gather = journey->gather[half];
    synthetic_configure(&journey->model, &rank->config);
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &journey->model));
    return true;
}

// What was saved is the state of the step, though training goes on.
static bool first_half(struct team_rank *rank, void *user)
{
    struct journey *journey = user;
    uint8_t digest[16];
    zero_save_info info = {.struct_size = sizeof info};
    if (!open_model(rank, journey, 0) || !steps(rank, journey, 0, journey->at))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_OK(rank, zero_save(rank->z, journey->directory, NULL));
    if (!steps(rank, journey, journey->at, MATRIX_STEPS) || !ends_as_written(rank, journey))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_COMPLETE && info.step == journey->at);
    TEAM_CHECK(memcmp(info.fingerprint, digest, sizeof digest) == 0);
    TEAM_CHECK(info.file_bytes > 0 && info.done_bytes == info.state_bytes);
    return true;
}

static bool second_half(struct team_rank *rank, void *user)
{
    struct journey *journey = user;
    zero_load_result result = {.struct_size = sizeof result};
    if (!open_model(rank, journey, 1))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, journey->directory, NULL, &result));
    TEAM_CHECK(result.step == journey->at && result.damaged == 0);
    TEAM_CHECK(result.saved_world == journey->saved_world);
    return steps(rank, journey, journey->at, MATRIX_STEPS) && ends_as_written(rank, journey);
}

static void travel(const int *choice, int turn)
{
    static const char *const gathers[] = {"auto", "copy", "shared"};
    struct temporary temporary;
    const int policy = turn % MATRIX_POLICIES;
    assert_true(temporary_make(&temporary));
    struct journey journey = {
        .model = matrix_model(choice[OPTIMIZER], choice[PRECISION], policy),
        .golden = matrix_golden(choice[OPTIMIZER], choice[PRECISION], policy),
        .directory = temporary.directory,
        .stages = {choice[SAVE_STAGE], choice[LOAD_STAGE]},
        .at = times[turn / MATRIX_POLICIES % TIMES],
        .saved_world = worlds[choice[SAVE_WORLD]],
    };
    for (int half = 0; half < 2; half++)
        journey.gather[half] = journey.stages[half] ? gathers[(turn + half) % 2] : NULL;
    const int load_world = worlds[choice[LOAD_WORLD]];
    if (!team_run(team_threads(journey.saved_world), journey.saved_world, first_half, &journey) ||
        !team_run(team_threads(load_world), load_world, second_half, &journey))
        fail_msg("%s, %s, %s; saved after step %d by %d ranks at stage %d, loaded by %d at %d",
                 matrix_optimizers[choice[OPTIMIZER]], matrix_precisions[choice[PRECISION]],
                 matrix_policies[policy], (int)journey.at, journey.saved_world, journey.stages[0],
                 load_world, journey.stages[1]);
    temporary_remove(&temporary);
}

static void the_bits_are_those_of_one_run(void **state)
{
    (void)state;
    struct pairs sweep = matrix;
    int choice[PAIRS_DIMS];
    for (int turn = 0; pairs_next(&sweep, choice); turn++)
        if (test_takes(turn))
            travel(choice, turn);
}

static void all_of_it(void **state)
{
    (void)state;
    int choice[PAIRS_DIMS], turn = 0;
    pairs_begin(&matrix, choice);
    do
        travel(choice, turn++);
    while (pairs_each(&matrix, choice));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest plain[] = {cmocka_unit_test(the_bits_are_those_of_one_run)};
    const struct CMUnitTest slow[] = {cmocka_unit_test(all_of_it)};
    if (argc > 1 && strcmp(argv[1], "matrix") == 0)
        return cmocka_run_group_tests(slow, NULL, NULL);
    return cmocka_run_group_tests(plain, NULL, NULL);
}
