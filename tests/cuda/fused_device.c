// Fused steps of programs that compute on a GPU: the bits of those that compute on the host, an
// update that does not wait for zero_step(), and nothing overwritten that a rank still reads. All
// state is on the GPU; with the argument "streamed" moments and master weights are in memory of the
// host, and pass through the GPU, with "host" the host updates.
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/sweep.h"
#include "zero/core/addresses.h"
#include "zero/exec/device_tiles.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static bool streams, hosts; // masters and moments pass through the GPU; or the host updates
static const struct base_device *const gpu = &base_device_cuda;

static struct job fused(int world, int stage)
{
    struct job job = job_of(world, stage);
    job.resident = !hosts;
    job.streamed = streams;
    job.gather = hosts ? job.gather : NULL;
    job.toy.fused = job.toy.unclipped = true;
    if (job.toy.dtype == ZERO_F16) // with a loss scale, which skips
        job.toy.dtype = ZERO_BF16;
    return job;
}

/* ------------------------------------------------------------------ the same bits */

static void sums_of_four(zero_config *config)
{
    config->sum_group = 4;
}

// Of two to four ranks, a GPU each over NCCL if `moves` says so.
static void fuse_at_every_stage(const char *moves, int least, int most)
{
    for (int turn = 0; turn < 8; turn++) {
        if (!test_takes(turn))
            continue;
        const int world = least + (turn + turn / 4) % (most - least + 1);
        struct job job = fused(world, turn % 4);
        job.moves = moves;
        job.toy.absent = turn == 2;
        if (turn == 6)
            job.configure = sums_of_four;
        job_compare(world, &job);
    }
}

static void every_stage_and_dtype_gives_the_bits_of_the_host(void **state)
{
    (void)state;
    fuse_at_every_stage(NULL, 1, JOB_RANKS);
}

static void so_it_does_over_nccl(void **state)
{
    (void)state;
    if (hosts)
        skip();
    fuse_at_every_stage("nccl", 1, job_most_gpus());
}

static void so_does_what_is_rounded(void **state)
{
    (void)state;
    static const char *const choices[][2] = {{NULL, "bf16"}, {"none", NULL}, {"none", "bf16"}};
    for (int i = 0; i < 3; i++) {
        struct job job = fused(1 + i % 2, 1 + i % 3);
        job.toy.dtype = ZERO_BF16;
        job.master = choices[i][0];
        job.moments = choices[i][1];
        job_compare(1 + i % 2, &job);
    }
}

static void so_do_local_sums(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        const int world = 1 + turn;
        struct job job = fused(world, 1);
        job.local = true;
        job.toy.dtype = ZERO_F32; // of two ranks any order has the same bits
        job.toy.micro_batches = 2 * world;
        job_compare(world, &job);
    }
}

// Every other step is fused, and some tensors are frozen in between.
static bool fuse_now_and_then(struct place *place)
{
    struct team_rank *rank = place->rank;
    struct job *const job = place->job, own = *job;
    struct job mine = own;
    place->job = &mine;
    bool good = true;
    for (int step = 0; good && step < 7; step++) {
        mine.toy.fused = step % 2 == 0;
        if (step == 3 || step == 5)
            TEAM_OK(rank, zero_set_frozen(rank->z, 1, step == 3));
        good = job_train(place, 1);
    }
    place->job = job;
    return good && job_conclude(place);
}

static void a_step_may_be_fused_or_not(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        const int world = 1 + stage % 2;
        struct job job = fused(world, stage);
        job.toy.frozen = 2;
        job.act = fuse_now_and_then;
        job.looks_elsewhere = true; // they are counted in a copy of the job
        job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ before zero_step() */

enum { BUCKETS = 32, LOOKED_AT = 4 };

struct weights {
    float of[BUCKETS][LOOKED_AT];
};

// The first of this rank's best weights of each bucket, wherever they are, when all that is queued
// has been done.
static bool look_at_weights(const struct place *place, struct weights *weights)
{
    const zero_ctx *z = place->rank->z;
    void *own = z->device->own;
    memset(weights, 0, sizeof *weights);
    TEAM_CHECK(z->layout.bucket_count <= BUCKETS);
    for (int s = 0; s < 2; s++)
        TEAM_CHECK(gpu->stream_sync(place->streams[s], NULL) == ZERO_OK);
    TEAM_CHECK(gpu->stream_sync(own, NULL) == ZERO_OK);
    TEAM_CHECK(hosts || device_tiles_settle(z, NULL) == ZERO_OK);
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        const struct eng_bucket_place *at = &z->placement.buckets[s];
        size_t size;
        if (at->state_granules == 0)
            continue;
        const void *from = eng_best_weights(z, s, at->state_first * BASE_GRANULE, &size);
        TEAM_CHECK(gpu->copy(weights->of[s], from, LOOKED_AT * size, own, NULL) == ZERO_OK);
    }
    return gpu->stream_sync(own, NULL) == ZERO_OK;
}

// What is readable at any time waits, and so does all at stage 0 with several ranks. The host
// updates the unit that is handed over last when it comes back.
static bool is_early(const zero_ctx *z, size_t bucket)
{
    const struct eng_bucket *at = &z->layout.buckets[bucket];
    return !at->persistent && (z->config.stage > 0 || z->config.world == 1) &&
           !(hosts && at->unit == 0);
}

static bool update_behind_backward(struct place *place)
{
    struct team_rank *rank = place->rank;
    struct weights before, after;
    if (!place->streams[0]) // on the host
        return job_train(place, 2) && job_conclude(place);
    if (!job_train(place, 1) || !look_at_weights(place, &before) || !job_micro_batches(place) ||
        !look_at_weights(place, &after))
        return false;
    for (size_t s = 0; s < rank->z->layout.bucket_count; s++) {
        const bool changed = memcmp(before.of[s], after.of[s], sizeof *before.of) != 0;
        const bool waits = !is_early(rank->z, s) || !rank->z->placement.buckets[s].state_granules;
        TEAM_CHECK(changed == !waits || (hosts && !waits && rank->world > 1)); // when bytes move
    }
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps++;
    return job_conclude(place);
}

static void what_may_be_is_updated_before(void **state)
{
    (void)state;
    for (int turn = 0; turn < 8; turn++) {
        if (!test_takes(turn))
            continue;
        struct job job = fused(1 + turn / 4, turn % 4);
        job.persist = turn % 2 ? ZERO_OFF : 0;
        job.act = update_behind_backward;
        job_compare(1 + turn / 4, &job);
    }
}

static bool step_without_waiting(struct place *place)
{
    return job_train_held(place) && job_conclude(place);
}

static void nobody_waits_for_it(void **state)
{
    (void)state;
    if (hosts)
        skip();
    for (int turn = 0; turn < 8; turn++) {
        const int world = 1 + turn / 4;
        struct job job = fused(world, turn % 4);
        if (!test_takes(turn) || !job_gpu_each(world))
            continue;
        job.moves = "nccl";
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.act = step_without_waiting;
        job_shorten(&job, world);
        job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ hazards */

enum { LOOKED_LATE = 3 };

// A stream looks at a unit's weights late, and another one hands its gradient over.
static bool hand_over_behind_a_look(struct place *place, zero_unit unit)
{
    struct team_rank *rank = place->rank;
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    if ((unit == LOOKED_LATE && !job_hold(place->streams[1])) ||
        !job_queue_looks(place, unit, place->streams[1]))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    TEAM_OK(rank, zero_grad_open(rank->z, unit, place->streams[0]));
    TEAM_OK(rank, zero_grad_done(rank->z, unit, place->streams[0]));
    return true;
}

// What the program computes next does not wait for a gradient to leave.
static bool hand_over_beside(struct place *place, zero_unit unit)
{
    struct team_rank *rank = place->rank;
    void *stream = place->streams[0];
    const bool first = unit == place->job->toy.unit_count - 1;
    TEAM_OK(rank, zero_grad_open(rank->z, unit, stream));
    TEAM_CHECK(!first || job_hold(stream ? rank->z->device->down : NULL));
    TEAM_OK(rank, zero_grad_done(rank->z, unit, stream));
    TEAM_CHECK(job_gets_on(stream));
    if (first)
        job_let_go(place, 0);
    return true;
}

// A step whose last micro-batch hands gradients over in a way of its own.
static bool step_with(struct place *place, bool (*hand_over)(struct place *place, zero_unit unit))
{
    struct team_rank *rank = place->rank;
    const struct toy *toy = &place->job->toy;
    if (!job_train(place, 1))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        const bool last = i == zero_micro_count(rank->z) - 1;
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        TEAM_OK(rank, zero_metric(rank->z, "number", 1));
        TEAM_OK(rank, zero_metric(rank->z, "other", 1));
        if (last)
            TEAM_OK(rank, toy_fuse(rank, toy));
        for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--) {
            if (!last)
                TEAM_OK(rank, zero_grad_none(rank->z, unit, place->streams[0]));
            else if (!hand_over(place, unit))
                return false;
            // The host waits for gradients, some of which are behind what comes back to the GPU.
            if (last && unit == (hosts ? LOOKED_LATE - 1 : 0))
                job_let_go(place, 50000);
        }
    }
    TEAM_OK(rank, toy_update_on(rank, toy, place->streams[0]));
    place->steps++;
    return job_train(place, 1) && job_conclude(place);
}

static bool step_behind_a_look(struct place *place)
{
    return step_with(place, hand_over_behind_a_look);
}

static bool step_beside(struct place *place)
{
    return step_with(place, hand_over_beside);
}

static void copies_are_beside_what_is_computed(void **state)
{
    (void)state;
    if (!hosts)
        skip();
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = fused(1, stage);
        job.act = step_beside;
        job_compare(1, &job);
    }
}

static void what_is_looked_at_is_not_updated(void **state)
{
    (void)state;
    for (int turn = 0; turn < 7; turn++) {
        const int world = 1 + turn / 4;
        struct job job = fused(world, (turn + turn / 4) % 4);
        job.act = step_behind_a_look;
        job.moves = "nccl"; // which no host waits for
        job.toy.dtype = ZERO_BF16;
        job_shorten(&job, world);
        if (test_takes(turn) && job_gpu_each(world))
            job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ what is not finite */

// The step has failed, and no weight has become a NaN.
static bool train_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    const bool sole = place->job->toy.micro_batches == 1;
    struct weights weights;
    TEAM_CHECK(job_train_badly(place));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 2: the gradient of "));
    TEAM_CHECK(strstr(zero_last_error(rank->z),
                      sole ? "is not finite in micro-batch 0" : "is not finite in micro-batch 2"));
    TEAM_CHECK(!strstr(zero_last_error(rank->z), "a part of the fused update") ==
               (rank->world > 1 && place->job->stage == 0));
    if (!place->streams[0])
        return true;
    TEAM_CHECK(gpu->enter(rank->z->device->number, NULL) == ZERO_OK);
    const bool looked = look_at_weights(place, &weights);
    gpu->leave();
    for (int i = 0; looked && i < BUCKETS * LOOKED_AT; i++)
        TEAM_CHECK(isfinite(weights.of[i / LOOKED_AT][i % LOOKED_AT]));
    return looked;
}

static void what_is_not_finite_reaches_no_weight(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++) {
        const bool sole = turn >= 3; // the update reads the gradient itself
        const int world = sole ? 1 : 1 + turn;
        struct job job = fused(world, sole ? turn - 2 : (world + 2) % 4);
        if (sole)
            job.toy.micro_batches = 1;
        job.toy.dtype = ZERO_BF16;
        job.act = train_badly;
        job.poisoned = 2;
        job.looks_elsewhere = true; // for it learns of it sooner
        job_compare(world, &job);
    }
}

int main(int argc, char **argv)
{
    streams = argc > 1 && strcmp(argv[1], "streamed") == 0;
    hosts = argc > 1 && strcmp(argv[1], "host") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_and_dtype_gives_the_bits_of_the_host),
        cmocka_unit_test(so_it_does_over_nccl),
        cmocka_unit_test(so_does_what_is_rounded),
        cmocka_unit_test(so_do_local_sums),
        cmocka_unit_test(a_step_may_be_fused_or_not),
        cmocka_unit_test(what_may_be_is_updated_before),
        cmocka_unit_test(nobody_waits_for_it),
        cmocka_unit_test(what_is_looked_at_is_not_updated),
        cmocka_unit_test(copies_are_beside_what_is_computed),
        cmocka_unit_test(what_is_not_finite_reaches_no_weight),
    };
    return job_begin() ? cmocka_run_group_tests(tests, NULL, NULL) : JOB_SKIPPED;
}
