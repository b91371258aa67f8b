// Steps of one rank and one micro-batch, whose update reads the gradient itself where state is on
// the GPU: the bits of a program that computes on the host and adds it up, and nothing is written
// over a gradient that is still read. With the argument "streamed" master weights and moments pass
// through the GPU, with "files" from files.
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "zero/exec/device_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool streams, files;

static struct job sole(int stage)
{
    struct job job = job_of(1, stage);
    job.resident = true;
    job.streamed = streams;
    job.nvme = files;
    job.gather = NULL;
    job.toy.micro_batches = 1;
    job.releases_first = stage == 2; // with one slot for gradients
    return job;
}

static void every_stage_and_dtype_gives_the_bits_of_the_host(void **state)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        struct job job = sole(turn % 4);
        job.toy.dtype = dtypes[turn % 3];
        job.toy.absent = turn % 5 == 4;
        job.toy.raw = turn % 2;
        job_compare(1, &job);
    }
}

static void so_do_fused_steps(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = sole(stage);
        job.toy.fused = job.toy.unclipped = true;
        job.toy.dtype = stage % 2 ? ZERO_F32 : ZERO_BF16;
        job_compare(1, &job);
    }
}

static void narrow_gradients(zero_config *config)
{
    config->comm_dtype = ZERO_BF16;
}

// Gradients that travel as another type have room of their own only where each unit has a slot.
static void so_do_other_precisions(void **state)
{
    (void)state;
    static const struct {
        const char *master, *moments;
        void (*configure)(zero_config *config);
    } choices[] = {
        {NULL, "bf16", narrow_gradients},
        {"none", NULL, NULL},
        {NULL, NULL, narrow_gradients},
        {"none", "bf16", NULL},
    };
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = sole(stage);
        job.toy.dtype = stage % 2 ? ZERO_BF16 : ZERO_F16;
        job.master = choices[stage].master;
        job.moments = choices[stage].moments;
        job.configure = choices[stage].configure;
        job_compare(1, &job);
    }
}

static void skips(zero_config *config)
{
    config->nonfinite = ZERO_NONFINITE_SKIP;
}

static void steps_that_are_not_finite_are_skipped(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = sole(stage);
        job.toy.dtype = stage % 2 ? ZERO_F16 : ZERO_BF16;
        job.configure = skips;
        job.poisoned = stage % 2 ? 1 : 2;
        job_compare(1, &job);
    }
}

// The error, and what is to blame, which the host knows in the same words.
static bool train_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    TEAM_CHECK(job_train_badly(place));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 2: the gradient of "));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "is not finite in micro-batch 0"));
    return true;
}

static void or_they_end_it(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = sole(turn);
        job.toy.dtype = ZERO_BF16;
        job.toy.fused = job.toy.unclipped = turn % 2;
        job.act = train_badly;
        job.poisoned = 2;
        job.looks_elsewhere = true; // for it learns of it sooner
        job_compare(1, &job);
    }
}

static bool decide(struct place *place)
{
    struct team_rank *rank = place->rank;
    double norm;
    TEAM_CHECK(job_train(place, 1) && job_micro_batches(place));
    TEAM_OK(rank, zero_grad_norm(rank->z, 0.5, &norm));
    place->job->means[0] = norm;
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[1]));
    place->steps++;
    TEAM_CHECK(job_micro_batches(place));
    TEAM_OK(rank, zero_skip_step(rank->z));
    place->steps++;
    TEAM_CHECK(job_train(place, 1));
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
    TEAM_CHECK(job_train(place, 2));
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    for (int micro_batches = 3; micro_batches > 0; micro_batches -= 2) {
        TEAM_OK(rank, zero_set_micro_batches(rank->z, micro_batches));
        TEAM_CHECK(job_train(place, 2));
    }
    return job_conclude(place);
}

static void a_program_may_decide_itself(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = sole(stage);
        job.toy.frozen = 2;
        job.act = decide;
        job_compare(1, &job);
    }
}

static void so_it_is_where_a_micro_batch_is_computed_again(void **state)
{
    (void)state;
    struct job job = sole(1);
    job.verify = true;
    job_compare(1, &job);
}

/* ------------------------------------------------------------------ waits */

// A step's update waits for a look at a unit's weights. By then another step has handed over
// nothing at all, on a stream that knows of no update.
static bool hand_over_none(struct place *place, void *stream)
{
    static const char *const names[] = {"number", "other"};
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    const zero_unit unit = 4;
    TEAM_CHECK(job_train(place, 1) && job_micro_batches(place));
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    TEAM_CHECK(job_hold(place->streams[1]) && job_queue_looks(place, unit, place->streams[1]));
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, &micro));
    for (int m = 0; m < 2; m++)
        TEAM_OK(rank, zero_metric(rank->z, names[m], 1));
    for (zero_unit u = 0; u < place->job->toy.unit_count; u++)
        TEAM_OK(rank, zero_grad_none(rank->z, u, stream));
    job_let_go(place, 100000);
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps += 2;
    return job_train(place, 1) && job_conclude(place);
}

static bool hand_over_none_elsewhere(struct place *place)
{
    const struct base_device *gpu = &base_device_cuda;
    void *stream = NULL;
    TEAM_CHECK(!place->streams[0] || !gpu->stream_create(&stream, false, NULL));
    const bool good = hand_over_none(place, stream);
    TEAM_CHECK(!stream || !gpu->stream_sync(stream, NULL));
    gpu->stream_destroy(stream);
    return good;
}

static void no_gradient_is_written_over_that_is_still_read(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = sole(stage);
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.act = hand_over_none_elsewhere;
        job_compare(1, &job);
    }
}

// What adds gradients up, and updates, has not come to any of them, and the program has computed
// all, through one slot.
static bool compute_ahead_of_sums(struct place *place)
{
    struct team_rank *rank = place->rank;
    const struct toy *toy = &place->job->toy;
    TEAM_CHECK(job_train(place, 1));
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_OK(rank, zero_metric(rank->z, "number", 1));
    TEAM_OK(rank, zero_metric(rank->z, "other", 1));
    if (toy->fused)
        TEAM_OK(rank, toy_fuse(rank, toy));
    TEAM_CHECK(job_hold(place->streams[0] ? rank->z->device->own : NULL));
    for (zero_unit u = toy->unit_count - 1; u >= 0; u--) {
        TEAM_OK(rank, zero_grad_open(rank->z, u, place->streams[u % 2]));
        TEAM_OK(rank, zero_grad_done(rank->z, u, place->streams[u % 2]));
    }
    TEAM_CHECK(job_gets_on(place->streams[0]) && job_gets_on(place->streams[1]));
    job_let_go(place, 0);
    TEAM_OK(rank, toy_update_on(rank, toy, place->streams[0]));
    place->steps++;
    return job_train(place, 1) && job_conclude(place);
}

static void nor_is_one_waited_for_that_is_elsewhere(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = sole(2 + turn % 2);
        job.releases_first = true;
        job.toy.dtype = ZERO_BF16;
        job.toy.fused = job.toy.unclipped = turn / 2;
        job.act = compute_ahead_of_sums;
        job_compare(1, &job);
    }
}

int main(int argc, char **argv)
{
    files = argc > 1 && strcmp(argv[1], "files") == 0;
    streams = files || (argc > 1 && strcmp(argv[1], "streamed") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_and_dtype_gives_the_bits_of_the_host),
        cmocka_unit_test(so_do_fused_steps),
        cmocka_unit_test(so_do_other_precisions),
        cmocka_unit_test(steps_that_are_not_finite_are_skipped),
        cmocka_unit_test(or_they_end_it),
        cmocka_unit_test(a_program_may_decide_itself),
        cmocka_unit_test(so_it_is_where_a_micro_batch_is_computed_again),
    };
    // A step with files waits for its verdict, and for them.
    const struct CMUnitTest queued[] = {
        cmocka_unit_test(no_gradient_is_written_over_that_is_still_read),
        cmocka_unit_test(nor_is_one_waited_for_that_is_elsewhere),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    int failed = cmocka_run_group_tests(tests, job_set_up, job_tear_down);
    if (!files)
        failed += cmocka_run_group_tests(queued, NULL, NULL);
    return failed;
}
