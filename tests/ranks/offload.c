// State in files: a job that ended badly comes back at its last step, a job that ended well leaves
// nothing; what is attached; and checkpoints beside it.
#include "tests/ranks/offload_job.h"
#include "tests/ranks/saved.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3, MOST_RANKS = 4 };

// At any stage, with masters in files or weights in memory, and wherever working copies and sums
// were before.
static void a_job_comes_back_at_its_last_step(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const zero_dtype dtype = (world + stage) % 2 ? ZERO_BF16 : ZERO_F32;
            struct offload_job whole = {.dtype = dtype, .stage = stage, .steps = 2 * STEPS};
            struct offload_job first = {
                .dtype = dtype, .stage = stage, .steps = STEPS, .dies = true};
            struct offload_job again = first;
            first.params = (world + stage / 2) % 2;
            first.no_sums = world % 2;
            whole.in_memory = true;
            again.params = world / 2 % 2;
            again.no_sums = !first.no_sums;
            again.dies = false;
            again.comes_back = true;
            again.expected = STEPS;
            again.recovered = 1;
            offload_run(world, &whole);
            offload_run(world, &first);
            assert_int_equal(offload_files_left(), world);
            offload_run_to(&whole, world, &again);
            assert_int_equal(offload_files_left(), 0);
        }
}

// And a job that does not want to come back takes no notice of it.
static void a_new_job_begins_anew(void **state)
{
    (void)state;
    struct offload_job first = {.stage = 2, .steps = STEPS, .dies = true}, again = first;
    offload_run(2, &first);
    memset(first.digest, 0, sizeof first.digest);
    offload_run(2, &first);
    struct offload_job memory = {.stage = 1, .steps = STEPS, .in_memory = true};
    offload_run_to(&first, 2, &memory);
    again.dies = false;
    offload_run(2, &again);
    assert_memory_equal(again.digest, memory.digest, sizeof memory.digest);
    assert_int_equal(offload_files_left(), 0);
}

// Checkpoints are written behind steps that change what they are made of; a job that is back takes
// the newer one of both.
static void the_newer_of_point_and_checkpoint_is_taken(void **state)
{
    (void)state;
    struct offload_job whole = {.stage = 3, .steps = 2 * STEPS, .in_memory = true};
    offload_run(3, &whole);
    struct offload_job first = {
        .stage = 3, .steps = STEPS, .saves = true, .dies = true, .params = true};
    offload_run(3, &first);
    struct offload_job point = {.stage = 3, .steps = STEPS, .comes_back = true, .recovered = 1};
    point.expected = STEPS;
    offload_run_to(&whole, 3, &point);
    // Without it, and in memory, where the first one saved.
    struct offload_job checkpoint = {
        .stage = 1, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    checkpoint.in_memory = true;
    offload_run_to(&whole, 2, &checkpoint);
    checkpoint.in_memory = false;
    offload_run_to(&whole, 2, &checkpoint);
    // A point that is older.
    struct offload_job older = {.stage = 3, .steps = 1, .dies = true};
    struct offload_job newer = {.stage = 3, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    newer.params = true;
    offload_run(3, &older);
    offload_run_to(&whole, 3, &newer);
}

// A checkpoint brings its seed with it, and so do recovery points behind it.
static void the_seed_of_a_checkpoint_comes_back(void **state)
{
    (void)state;
    struct offload_job whole = {.stage = 2, .steps = 2 * STEPS, .in_memory = true, .seed = 7};
    struct offload_job first = {
        .stage = 2, .steps = STEPS, .in_memory = true, .seed = 7, .saves = true};
    struct offload_job loads = {
        .stage = 2, .steps = 1, .comes_back = true, .expected = 2, .dies = true};
    struct offload_job again = {.stage = 2, .steps = STEPS, .comes_back = true, .expected = STEPS};
    again.recovered = 1;
    offload_run(2, &whole);
    offload_run(2, &first);
    offload_run(2, &loads);
    offload_run_to(&whole, 2, &again);
}

// One that aborts has not ended well, though no call of its own has told it so.
static bool abort_and_close(struct team_rank *rank, void *user)
{
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = 2});
    (void)user;
    rank->config.stage = 2;
    offload_into_files(&rank->config);
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        zero_abort(rank->z, "for a test");
    else
        while (zero_barrier(rank->z) == ZERO_OK)
            ;
    return true;
}

static void a_job_that_aborts_leaves_its_last_step(void **state)
{
    (void)state;
    struct offload_job whole = {.stage = 2, .steps = STEPS + 1, .in_memory = true};
    struct offload_job again = {.stage = 2, .steps = 1, .comes_back = true, .expected = STEPS};
    again.recovered = 1;
    assert_true(team_run("threads", 2, abort_and_close, NULL));
    assert_int_equal(offload_files_left(), 2);
    offload_run(2, &again);
    offload_run(2, &whole);
    assert_memory_equal(whole.digest, again.digest, sizeof whole.digest);
}

struct attached {
    uint64_t global, own;
};

static bool attach_and_go(struct team_rank *rank, void *user)
{
    const int run_number = *(int *)user;
    struct attached attached = {17, (uint64_t)rank->rank + 100};
    static char large[1 << 20];
    rank->config.stage = 2;
    offload_into_files(&rank->config);
    if (run_number == 1)
        attached = (struct attached){0, 0};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "global", &attached.global, 8, ZERO_GLOBAL));
    if (run_number == 2) // without the other one
        TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_E_INVALID, "2 attached");
    TEAM_OK(rank, zero_attach(rank->z, "own", &attached.own, 8, ZERO_OF_RANK));
    TEAM_FAILS(rank, zero_attach(rank->z, "large", large, sizeof large, ZERO_GLOBAL), ZERO_E_LIMIT,
               "before zero_commit()");
    if (run_number == 0) {
        attached.global++;
        return toy_train(rank, &toy_odd, 1) && team_break_off(rank);
    }
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
    TEAM_CHECK(loaded.recovered == 1 && loaded.rank_blobs == 1 && loaded.step == 1);
    TEAM_CHECK(attached.global == 18 && attached.own == (uint64_t)rank->rank + 100);
    // There is nothing to come back at once it has been left.
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return run_number == 2 || team_break_off(rank);
}

static void what_was_attached_comes_back(void **state)
{
    (void)state;
    int number = 0;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 1;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 0;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 2;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    assert_int_equal(offload_files_left(), 0);
}

// Attached again a blob takes no other room, and there is no more of it than there is.
static bool fill_the_room(struct team_rank *rank, void *user)
{
    static char before[100000], later[65536];
    uint64_t most = sizeof later;
    (void)user;
    rank->config.stage = 1;
    rank->config.micro_batches = toy_odd.micro_batches;
    offload_into_files(&rank->config);
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "before", before, sizeof before, ZERO_GLOBAL));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_attach(rank->z, "before", before, sizeof before, ZERO_GLOBAL));
    while (zero_attach(rank->z, "later", later, most, ZERO_GLOBAL) == ZERO_E_LIMIT)
        most--;
    TEAM_CHECK(most > sizeof later - 256);
    TEAM_FAILS(rank, zero_attach(rank->z, "more", later, 8, ZERO_GLOBAL), ZERO_E_LIMIT,
               "room for 0 more");
    TEAM_FAILS(rank, zero_attach(rank->z, "later", later, most + 1, ZERO_GLOBAL), ZERO_E_LIMIT,
               "before zero_commit()");
    TEAM_OK(rank, zero_attach(rank->z, "later", later, most, ZERO_GLOBAL));
    return toy_train(rank, &toy_odd, 1);
}

static void what_is_attached_later_has_its_room(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, fill_the_room, NULL));
}

static bool stop_and_go(struct team_rank *rank, void *user)
{
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = 2});
    const bool again = *(const bool *)user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    rank->config.stage = 2;
    offload_into_files(&rank->config);
    if (!toy_open(rank, &toy))
        return false;
    if (again) {
        TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
        TEAM_CHECK(loaded.recovered == 1 && loaded.step == 1);
        return toy_train(rank, &toy, 1) && team_break_off(rank);
    }
    if (rank->rank == 1)
        zero_request_stop(rank->z);
    if (!toy_train(rank, &toy, 1))
        return false;
    TEAM_CHECK(zero_stop_requested(rank->z));
    return true;
}

// A job that leaves because it was asked to goes on where it was, without a checkpoint.
static void a_stop_is_no_end(void **state)
{
    (void)state;
    bool again = false;
    assert_true(team_run("threads", 2, stop_and_go, &again));
    assert_int_equal(offload_files_left(), 2);
    again = true;
    assert_true(team_run("threads", 2, stop_and_go, &again));
    struct offload_job whole = {.stage = 2, .steps = 3, .in_memory = true};
    struct offload_job last = {
        .stage = 2, .steps = 1, .comes_back = true, .expected = 2, .recovered = 1};
    offload_run(2, &whole);
    offload_run_to(&whole, 2, &last);
    assert_int_equal(offload_files_left(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, offload_set_up, offload_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_comes_back_at_its_last_step),          TEST(a_new_job_begins_anew),
        TEST(the_newer_of_point_and_checkpoint_is_taken), TEST(the_seed_of_a_checkpoint_comes_back),
        TEST(a_job_that_aborts_leaves_its_last_step),     TEST(what_was_attached_comes_back),
        TEST(what_is_attached_later_has_its_room),        TEST(a_stop_is_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
