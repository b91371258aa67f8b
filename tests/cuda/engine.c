// A program that computes on a GPU ends in the bits of one that computes on the host, at every
// stage and number of ranks, with state in memory of the host or in files.
#include "tests/cuda/driver.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/sweep.h"
#include "zero/exec/gpu.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ tests */

static void a_gpu_gives_the_bits_of_the_host(void **state)
{
    (void)state;
    for (int world = 1; world <= JOB_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const struct job job = job_of(world, stage);
            if (test_takes(world + stage))
                job_compare(world, &job);
        }
}

static void so_it_does_with_steps_that_are_fused(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = job_of(1 + stage % 3, stage);
        job.toy.fused = job.toy.unclipped = true;
        job.toy.dtype = stage % 2 ? ZERO_F32 : ZERO_BF16;
        job_compare(1 + stage % 3, &job);
        job.nvme = true;
        job.params_nvme = stage == 2;
        job_compare(1 + stage % 3, &job);
    }
}

static void and_with_other_orders_of_sums(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = job_of(2, turn % 2);
        job.local = job.toy.absent = true;
        job.toy.raw = turn > 1;
        job.toy.micro_batches = 8;
        job_compare(2, &job);
    }
    struct job job = job_of(3, 2);
    job.verify = true;
    job_compare(3, &job);
}

// Ranks without a gradient say so where others hand theirs over, not where these are opened.
static void and_with_one_gradient_on_its_way(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        struct job job = job_of(3, stage);
        job.releases_first = true;
        job_compare(3, &job);
    }
}

static void and_with_state_in_files(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        struct job job = job_of(world, world);
        job.nvme = true;
        job.params_nvme = world > 1;
        job.sums_nvme = world != 2;
        job_compare(world, &job);
    }
}

// A stream looks at a unit's weights late, long after another one has released the unit last, and
// the program has changed them.
static bool look_late(struct place *place)
{
    const zero_unit unit = 4;
    const float value = 1000;
    struct team_rank *rank = place->rank;
    for (int s = 0; s < 2; s++)
        TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[s]));
    if (!job_hold(place->streams[0]) || !job_queue_looks(place, unit, place->streams[0]))
        return false;
    for (int s = 0; s < 2; s++)
        TEAM_OK(rank, zero_release(rank->z, unit, place->streams[s]));
    TEAM_OK(rank, zero_param_write(rank->z, 6, 0, 4321, 1, &value));
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    if (!job_queue_looks(place, unit, place->streams[1]))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    job_let_go(place, 20000);
    return true;
}

static void what_is_looked_at_is_not_written_over(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = job_of(1, stage);
        job.act = look_late;
        job_compare(1, &job);
    }
}

// A step whose micro-batches are computed by streams in turns, the first of which is held until the
// second one has been given all its work.
static bool add_behind_another_stream(struct place *place)
{
    struct team_rank *rank = place->rank;
    const struct toy *toy = &place->job->toy;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_CHECK(job_hold(place->streams[0]));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        void *stream = place->streams[i % 2];
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        TEAM_OK(rank, zero_metric(rank->z, "number", 1));
        TEAM_OK(rank, zero_metric(rank->z, "other", 1));
        for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--) {
            TEAM_OK(rank, zero_gather(rank->z, unit, stream));
            TEAM_CHECK(job_queue_gradients(place, unit, &micro, stream));
            TEAM_OK(rank, zero_release(rank->z, unit, stream));
            TEAM_OK(rank, zero_grad_done(rank->z, unit, stream));
        }
        if (i == 1)
            job_let_go(place, 50000);
    }
    TEAM_OK(rank, toy_update_on(rank, toy, place->streams[0]));
    return job_conclude(place);
}

static void local_sums_are_those_of_all_streams(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = job_of(1, turn % 2);
        job.local = true;
        job.resident = turn > 1;
        job.toy.raw = false;
        job.toy.micro_batches = 3;
        job.act = add_behind_another_stream;
        job_compare(1, &job);
    }
}

/* ------------------------------------------------------------------ what travels */

static cuda_driver_copied_fn copied; // NULL: the GPU is real

// Gradients of a step leave once, but for those that are compared, and none comes back; working
// copies come once.
static bool count_copies(struct place *place)
{
    struct team_rank *rank = place->rank;
    const zero_ctx *z = rank->z;
    const size_t times = z->config.verify_micro ? 3 : 1;
    const size_t metrics = 2 * (size_t)zero_micro_count(rank->z) * sizeof(float);
    size_t gradients = 0, up = 0, down = 0, more_up = 0, more_down = 0;
    TEAM_CHECK(job_train(place, 2));
    const struct staged before = place->staged; // what the program's own work copies
    if (place->streams[0] && copied)
        copied(&up, &down);
    TEAM_CHECK(job_train(place, 1));
    if (place->streams[0] && copied) {
        copied(&more_up, &more_down);
        for (size_t u = 0; u < z->layout.unit_count; u++)
            gradients += z->placement.units[u].grad_bytes;
        more_down -= place->staged.down - before.down;
        more_up -= place->staged.up - before.up;
        TEAM_CHECK(more_down - down == times * gradients + metrics);
        TEAM_CHECK(more_up - up == z->plan.gpu[ENG_GPU_PARAMS].mine);
    }
    return job_conclude(place);
}

static void local_sums_leave_once_a_step(void **state)
{
    (void)state;
    cuda_driver_find(CUDA_DRIVER_COPIED, &copied);
    for (int turn = 0; turn < 4; turn++) {
        struct job job = job_of(1, turn % 2);
        job.local = true;
        job.verify = turn > 1;
        job.toy.micro_batches = 4;
        job.act = count_copies;
        job_compare(1, &job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_gives_the_bits_of_the_host),
        cmocka_unit_test(so_it_does_with_steps_that_are_fused),
        cmocka_unit_test(and_with_other_orders_of_sums),
        cmocka_unit_test(what_is_looked_at_is_not_written_over),
        cmocka_unit_test(and_with_one_gradient_on_its_way),
        cmocka_unit_test(and_with_state_in_files),
        cmocka_unit_test(local_sums_are_those_of_all_streams),
        cmocka_unit_test(local_sums_leave_once_a_step),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    return cmocka_run_group_tests(tests, job_set_up, job_tear_down);
}
