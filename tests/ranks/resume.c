// 2N steps are N steps, a save, a load and N steps, whatever the number of ranks, the stage and the
// way of gathering before and after: the fingerprints are those written down for runs that nothing
// has interrupted. Training goes on beside the save, and has the same bits.
//
// With an optimizer as its argument all combinations of that one's, else so many of all that any
// two values of two dimensions meet.
#include "tests/numerics/pairs.h"
#include "tests/numerics/synthetic_matrix.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OPTIMIZER, PRECISION, SAVE_WORLD, LOAD_WORLD, SAVE_STAGE, LOAD_STAGE, DIMS };
enum { WORLDS = 5, STAGES = 4 };
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
    .sizes = {MATRIX_OPTIMIZERS, MATRIX_PRECISIONS, WORLDS, WORLDS, STAGES, STAGES},
    .possible = possible,
};

// One run that is cut in two.
struct journey {
    struct synthetic model;
    const char *golden;
    const char *name[3]; /**< optimizer, precision, policy */
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

static struct journey journey_of(const int *choice, int policy, int at, const char *directory)
{
    return (struct journey){
        .model = matrix_model(choice[OPTIMIZER], choice[PRECISION], policy),
        .golden = matrix_golden(choice[OPTIMIZER], choice[PRECISION], policy),
        .name = {matrix_optimizers[choice[OPTIMIZER]], matrix_precisions[choice[PRECISION]],
                 matrix_policies[policy]},
        .directory = directory,
        .at = times[at],
        .saved_world = worlds[choice[SAVE_WORLD]],
        .stages = {choice[SAVE_STAGE], choice[LOAD_STAGE]},
    };
}

static void set_gather(struct journey *journey, int half, int turn)
{
    static const char *const gathers[] = {"auto", "copy"};
    journey->gather[half] = journey->stages[half] ? gathers[turn % 2] : NULL;
}

static void set_off(struct journey *journey, int turn)
{
    const int world = journey->saved_world;
    set_gather(journey, 0, turn);
    if (!team_run(team_threads(world), world, first_half, journey))
        fail_msg("%s, %s, %s: saved after step %d by %d ranks at stage %d, gather %s",
                 journey->name[0], journey->name[1], journey->name[2], (int)journey->at, world,
                 journey->stages[0], journey->gather[0] ? journey->gather[0] : "none");
}

static void arrive(struct journey *journey, int world, int stage, int turn)
{
    journey->stages[1] = stage;
    set_gather(journey, 1, turn);
    if (!team_run(team_threads(world), world, second_half, journey))
        fail_msg("%s, %s, %s: saved after step %d by %d ranks at stage %d, loaded by %d at %d, "
                 "gather %s",
                 journey->name[0], journey->name[1], journey->name[2], (int)journey->at,
                 journey->saved_world, journey->stages[0], world, stage,
                 journey->gather[1] ? journey->gather[1] : "none");
}

static void the_bits_are_those_of_one_run(void **state)
{
    (void)state;
    struct pairs sweep = matrix;
    int choice[PAIRS_DIMS];
    for (int turn = 0; pairs_next(&sweep, choice); turn++) {
        if (!test_takes(turn))
            continue;
        struct temporary temporary;
        assert_true(temporary_make(&temporary));
        struct journey journey = journey_of(choice, turn % MATRIX_POLICIES,
                                            turn / MATRIX_POLICIES % TIMES, temporary.directory);
        set_off(&journey, turn);
        arrive(&journey, worlds[choice[LOAD_WORLD]], choice[LOAD_STAGE], turn + 1);
        temporary_remove(&temporary);
    }
}

static int loads;

/** One save, loaded by every number of ranks at every stage. */
static void each_arrival(const int *choice, int turn)
{
    struct temporary temporary;
    assert_true(temporary_make(&temporary));
    const int at = turn / MATRIX_POLICIES;
    struct journey journey =
        journey_of(choice, (turn + at) % MATRIX_POLICIES, at % TIMES, temporary.directory);
    set_off(&journey, at);
    for (int world = 0; world < WORLDS; world++)
        for (int stage = 0; stage < STAGES; stage++)
            arrive(&journey, worlds[world], stage, loads++ / STAGES);
    temporary_remove(&temporary);
}

static int only; // this optimizer

static void every_save_at_every_arrival(void **state)
{
    (void)state;
    int choice[PAIRS_DIMS] = {[OPTIMIZER] = only}, turn = 0;
    for (choice[PRECISION] = 0; choice[PRECISION] < MATRIX_PRECISIONS; choice[PRECISION]++)
        for (choice[SAVE_WORLD] = 0; choice[SAVE_WORLD] < WORLDS; choice[SAVE_WORLD]++)
            for (choice[SAVE_STAGE] = 0; choice[SAVE_STAGE] < STAGES; choice[SAVE_STAGE]++)
                each_arrival(choice, turn++);
    print_message("%s: %d loads of %d saves\n", matrix_optimizers[only], loads, turn);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest plain[] = {cmocka_unit_test(the_bits_are_those_of_one_run)};
    const struct CMUnitTest slow[] = {cmocka_unit_test(every_save_at_every_arrival)};
    if (argc < 2)
        return cmocka_run_group_tests(plain, NULL, NULL);
    only = matrix_find(matrix_optimizers, MATRIX_OPTIMIZERS, argv[1]);
    return only < 0 ? 2 : cmocka_run_group_tests(slow, NULL, NULL);
}
