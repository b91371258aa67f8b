// zero_step_in_backward() with state in files: tiles are updated before zero_step(), in the bits of
// plain steps in memory. If anything ends such a step before it is over, the one before is whole.
#include "base/fault.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"
#include "zero/core/progress.h"
#include "zero/store/nvme_tier.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 2, MOST_RANKS = 4, MOST_WAIT_MS = 10000 };

// Of a slice: a rank of two has more tiles than are in memory where these are to be few.
enum { NUMEL = 45001 };

static struct temporary directory;

// Tiles of 64 KiB have parts of a slice, or of two; "small" persists, "never" is frozen.
static const struct toy_tensor tensors[] = {
    {.name = "first", .unit = 0, .slices = 1, .numel = 3000, .group = 1},
    {.name = "stacked", .unit = 0, .slices = 5, .numel = NUMEL},
    {.name = "small", .unit = 2, .slices = 1, .numel = 300, .wide = true},
    {.name = "never", .unit = 3, .slices = 1, .numel = 9000, .group = 1},
};

// How the last step of a job ends.
enum ending {
    WELL,
    ABORTED, // all are told that the job is over, when some tiles are updated
    SPOILT,  // by a gradient that is not finite, seen when some tiles are updated
    CLOSED,  // in the middle, by all ranks
    FAILED,  // by the disk, or not at all
};

struct job {
    zero_dtype dtype;
    int stage, steps;
    bool in_memory, plain;       // state is; no step is fused
    bool params, sums;           // working copies are in files, and sums
    bool few;                    // tiles in memory
    bool frozen[2];              // groups, by zero_set_frozen()
    bool writes;                 // some elements, of one tile of those that share a strip
    const char *gather;          // NULL: auto
    enum ending ending;          // of the last step
    const char *fault;           // FAILED: what fails in it
    bool comes_back;             // goes on from what is there,
    uint64_t expected;           // after this step
    _Atomic size_t early, tiles; // filled in: tiles updated before zero_step(), and all
    _Atomic size_t found;        // filled in: tiles that the step before had left in memory
    _Atomic bool failed;         // filled in
    uint8_t digest[16];          // filled in
};

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    return 0;
}

static struct toy toy_of(const struct job *job)
{
    return (struct toy){
        .tensors = tensors,
        .tensor_count = sizeof tensors / sizeof *tensors,
        .unit_count = 5,
        .micro_batches = 5,
        .dtype = job->dtype,
        .frozen = 1u << 3,
        .unclipped = true,
        .fused = !job->plain,
    };
}

static bool open_job(struct team_rank *rank, const struct job *job, const struct toy *toy)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    rank->config.stage = job->stage;
    rank->config.name = "fused";
    rank->config.cpu_threads = 1 + job->stage % 2;
    rank->config.gather = job->gather;
    rank->config.loss_scale = "off";
    rank->config.nonfinite = ZERO_NONFINITE_ERROR;
    if (!job->in_memory) {
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = job->params ? "nvme" : "host";
        rank->config.offload_grads = job->sums ? "nvme" : "host";
        rank->config.nvme_dir = directory.directory;
        rank->config.io = engines[job->stage % 3];
        rank->config.tile_bytes = 65536;
        rank->config.host_bytes = job->few ? (int64_t)(job->params ? 6 : 2) << 20 : 0;
        rank->config.compress = job->few ? "off" : "on"; // which takes more tiles in memory
    }
    return toy_open(rank, toy);
}

/* ------------------------------------------------------------------ a step */

// Whether the next tile of a pass is in memory, and room for what is made of it.
static bool is_there(const zero_ctx *z)
{
    const struct eng_tier *tier = z->tier;
    return off_pipeline_ready(tier->pipeline) &&
           (!z->config.params_nvme || tier->updated == tier->chosen ||
            eng_params_ready(z, tier->order[tier->updated]));
}

// Waits until all ranks' part of a unit's sums is there, and the next tile in memory.
static bool await_tile(struct team_rank *rank, zero_unit unit)
{
    zero_ctx *z = rank->z;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    TEAM_OK(rank, zero_barrier(z));
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        while (z->io[s].reduce_started && !coll_complete(&z->io[s].reduce))
            TEAM_CHECK(coll_progress(z->comm) == ZERO_OK);
    if (!z->tier || !z->update.begun)
        return true;
    for (int ms = 0; !is_there(z); ms++) {
        TEAM_CHECK(ms < MOST_WAIT_MS);
        usleep(1000);
    }
    return true;
}

// Of every rank's last micro-batch, which counts on rank 0 at least.
static bool hand_over(struct team_rank *rank, zero_dtype dtype, zero_unit unit, bool spoilt)
{
    TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
    void *gradient = zero_grad_ptr(rank->z, 1, unit);
    for (int k = 0; k < NUMEL; k++)
        if (dtype == ZERO_F32)
            ((float *)gradient)[k] = (float)(k % 11 + unit) * 0.01f;
        else
            ((uint16_t *)gradient)[k] = (uint16_t)(0x3c00 + (k + unit) % 64);
    float *small = zero_grad_ptr(rank->z, 2, 0);
    for (int k = 0; unit == 2 && k < 300; k++)
        small[k] = spoilt && rank->rank == 0 && k == 123 ? NAN : (float)(k % 7) * 0.01f;
    TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    return true;
}

// Whether the next tile has nothing but parts of units from this one on that may be early.
static bool is_due(const zero_ctx *z, zero_unit unit)
{
    const struct eng_tier *tier = z->tier;
    if (!tier || !z->update.begun || tier->updated == tier->chosen)
        return false;
    const struct eng_piece_range run = tier->tiles.of_tile[tier->order[tier->updated]];
    for (size_t i = run.first; i < run.first + run.count; i++) {
        const size_t s = tier->tiles.pieces[i].bucket;
        if (z->layout.buckets[s].unit < unit || !eng_updates_early(z, s))
            return false;
    }
    return true;
}

// Units are handed over one after the other; each time the next tile is updated, if its sums were
// complete before. down: until that unit is left.
static bool watch_hand_overs(struct team_rank *rank, struct job *job, zero_unit down, bool spoilt)
{
    const struct eng_tier *tier = rank->z->tier;
    for (zero_unit unit = 4; unit >= down; unit--) {
        const size_t before = tier ? tier->updated : 0;
        const bool due = is_due(rank->z, unit + 1);
        if (!hand_over(rank, job->dtype, unit, spoilt))
            return false;
        TEAM_CHECK(!due || tier->updated > before || spoilt);
        if (!await_tile(rank, unit))
            return false;
    }
    if (tier && rank->z->update.begun) {
        job->early += tier->updated;
        job->tiles += tier->chosen;
    }
    return true;
}

// What would use tiles, or look at the state, in the middle of the step.
static bool refuses(struct team_rank *rank)
{
    uint8_t digest[16];
    float value;
    TEAM_CHECK(zero_eval_begin(rank->z, 2) == ZERO_E_STATE);
    TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_STATE);
    TEAM_CHECK(zero_param_read(rank->z, 0, 0, 0, 1, &value) == ZERO_E_STATE);
    TEAM_CHECK(zero_save(rank->z, directory.directory, NULL) == ZERO_E_STATE);
    TEAM_CHECK(zero_resume(rank->z, NULL, NULL, NULL) == ZERO_E_STATE);
    TEAM_CHECK(zero_skip_step(rank->z) == ZERO_E_STATE);
    return true;
}

// All micro-batches but the last, and of that one the call that fuses it.
static bool begin_step(struct team_rank *rank, const struct toy *toy)
{
    const int last = zero_micro_count(rank->z) - 1;
    struct toy before = *toy;
    before.fused = false;
    for (int i = 0; i < last; i++)
        if (!toy_micro(rank, &before, i, NULL, NULL))
            return false;
    TEAM_OK(rank, zero_micro_begin(rank->z, last, NULL));
    TEAM_OK(rank, zero_metric(rank->z, "sum", 1));
    if (toy->fused)
        TEAM_OK(rank, toy_fuse(rank, toy));
    return true;
}

static bool watch_step(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    if (!begin_step(rank, toy) || !watch_hand_overs(rank, job, 0, false))
        return false;
    if (toy->fused && !refuses(rank))
        return false;
    TEAM_OK(rank, toy_update(rank, toy));
    return true;
}

/* ------------------------------------------------------------------ a job */

static bool abort_all(struct team_rank *rank)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

// Until some tiles are written.
static bool break_off(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    const struct off_pipeline *pipeline = rank->z->tier->pipeline;
    const uint64_t written = off_pipeline_counts(pipeline).contents[OFF_WRITE];
    if (!begin_step(rank, toy) || !watch_hand_overs(rank, job, 1, false))
        return false;
    for (int ms = 0; off_pipeline_counts(pipeline).contents[OFF_WRITE] == written; ms++) {
        TEAM_CHECK(ms < MOST_WAIT_MS);
        usleep(1000);
    }
    TEAM_OK(rank, zero_barrier(rank->z));
    return job->ending == CLOSED || abort_all(rank);
}

static bool spoil(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    if (!begin_step(rank, toy) || !watch_hand_overs(rank, job, 0, true))
        return false;
    TEAM_FAILS(rank, zero_step(rank->z, NULL, NULL), ZERO_E_NONFINITE,
               "small, slice 0, element 123");
    TEAM_CHECK(strstr(zero_last_error(rank->z), "a part of the fused update is made"));
    return true;
}

// The disk fails somewhere in the step, or does not; all ranks are told.
static bool fail_in_the_step(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    if (!saved_fault(rank, job->fault))
        return false;
    zero_result r = ZERO_OK;
    if (!begin_step(rank, toy) || !watch_hand_overs(rank, job, 0, false))
        r = ZERO_E_IO;
    r = r ? r : toy_update(rank, toy);
    const zero_result told = zero_barrier(rank->z);
    TEAM_CHECK(told == ZERO_E_IO || (!r && !told));
    TEAM_CHECK(!told || strstr(zero_last_error(rank->z), " bytes at offset "));
    job->failed = told != ZERO_OK;
    return told || abort_all(rank);
}

static bool end_job(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    switch (job->ending) {
    case SPOILT:
        return spoil(rank, job, toy);
    case FAILED:
        return fail_in_the_step(rank, job, toy);
    case ABORTED:
    case CLOSED:
        return break_off(rank, job, toy);
    default:
        return true;
    }
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const struct toy toy = toy_of(job);
    uint8_t digest[16];
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (!open_job(rank, job, &toy))
        return false;
    const float values[] = {0.5f, 0.25f, -1};
    if (job->writes)
        TEAM_OK(rank, zero_param_write(rank->z, 1, 0, 7, 3, values));
    for (int g = 0; g < 2; g++)
        if (job->frozen[g])
            TEAM_OK(rank, zero_set_frozen(rank->z, g, 1));
    if (job->comes_back) {
        TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
        TEAM_CHECK(loaded.step == job->expected && loaded.recovered == 1);
    }
    for (int step = 0; step < job->steps; step++) {
        const size_t before =
            rank->z->tier ? off_pipeline_counts(rank->z->tier->pipeline).found : 0;
        if (!watch_step(rank, job, &toy))
            return false;
        if (rank->z->tier && step > 0)
            job->found += off_pipeline_counts(rank->z->tier->pipeline).found - before;
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return end_job(rank, job, &toy);
}

static void run(int world, struct job *job)
{
    if (!team_run(team_threads(world), world, work, job))
        fail_msg("%d ranks, stage %d, dtype %d, ending %d, fault %s", world, job->stage, job->dtype,
                 job->ending, job->fault ? job->fault : "none");
}

// This job without files, fused steps and a break.
static struct job whole_of(int world, const struct job *job)
{
    struct job whole = {.dtype = job->dtype, .stage = job->stage, .steps = 2 * STEPS};
    whole.in_memory = whole.plain = true;
    run(world, &whole);
    return whole;
}

// What comes back after a job that has ended so goes on as if nothing had been.
static void come_back(int world, const struct job *job, const struct job *whole)
{
    struct job again = {.dtype = job->dtype, .stage = job->stage, .comes_back = true};
    again.expected = job->ending == FAILED && !job->failed ? STEPS + 1 : STEPS;
    again.steps = 2 * STEPS - (int)again.expected;
    run(world, &again);
    assert_memory_equal(again.digest, whole->digest, sizeof whole->digest);
}

/* ------------------------------------------------------------------ tests */

static void tiles_are_updated_before_the_step(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const int turn = world + stage, number = 4 * world + stage;
            if (!test_takes(number + number / 3)) // turn by turn another one of three
                continue;
            const zero_dtype dtype = turn % 3 == 0   ? ZERO_F32
                                     : turn % 3 == 1 ? ZERO_BF16
                                                     : ZERO_F16;
            struct job plain = {.dtype = dtype, .stage = stage, .steps = STEPS};
            struct job job = plain;
            plain.in_memory = plain.plain = true;
            job.params = turn / 2 % 2;
            job.sums = turn % 5 == 4;
            job.few = turn % 3 == 1 && !job.sums;
            run(world, &plain);
            run(world, &job);
            assert_memory_equal(job.digest, plain.digest, sizeof plain.digest);
            const bool early = !job.sums && (stage > 0 || world == 1);
            assert_int_equal(job.early > 0, early);
            assert_true(job.tiles == 0 || job.early < job.tiles); // the last unit's never are
            assert_int_equal(temporary_entries(&directory), 0);
        }
}

// Of group 0 are whole units, which share tiles with what trains: their working copies are made
// anew with it. Of group 1 is a part of a unit.
static void what_is_frozen_shares_tiles(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        if (!test_takes(turn + turn / 3))
            continue;
        const int world = 1 + turn % 3, frozen = turn / 6;
        struct job plain = {.stage = 2 + turn / 3 % 2, .steps = STEPS};
        plain.dtype = turn % 2 ? ZERO_F32 : ZERO_BF16;
        plain.frozen[frozen] = plain.writes = true;
        struct job job = plain;
        plain.in_memory = plain.plain = true;
        job.params = true;
        job.few = turn % 4 > 1;
        run(world, &plain);
        run(world, &job);
        assert_memory_equal(job.digest, plain.digest, sizeof plain.digest);
        assert_true(job.tiles > 0);
        assert_true(frozen == 0 || job.early > 0);
    }
}

static void the_step_before_is_whole(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        if (!test_takes(turn + turn / 3))
            continue;
        const int world = 1 + turn % 3;
        struct job job = {.dtype = turn % 2 ? ZERO_F32 : ZERO_BF16, .steps = STEPS};
        job.ending = turn / 3 % 2 ? SPOILT : ABORTED;
        job.stage = world > 1 ? 1 + turn % 3 : turn / 3;
        job.params = turn / 2 % 2;
        run(world, &job);
        assert_true(job.early > 0);
        assert_int_equal(temporary_entries(&directory), world);
        const struct job whole = whole_of(world, &job);
        come_back(world, &job, &whole);
    }
}

// Where nothing is updated before zero_step() steps alternate, fused or not: what one leaves in
// memory the next one begins with.
static void what_waits_for_the_step_alternates(void **state)
{
    (void)state;
    struct job job = {.dtype = ZERO_F32, .steps = 2 * STEPS, .few = true};
    const struct job whole = whole_of(2, &job);
    run(2, &job);
    assert_int_equal(job.early, 0);
    assert_true(job.found > 0);
    assert_memory_equal(job.digest, whole.digest, sizeof job.digest);
}

// A new job whose first step goes wrong: what it has found is still there.
static void the_job_before_is_whole(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        struct job job = {.stage = world, .steps = STEPS, .ending = ABORTED};
        job.dtype = world == 2 ? ZERO_F32 : ZERO_BF16;
        struct job next = job;
        next.steps = 0;
        next.ending = SPOILT;
        run(world, &job);
        run(world, &next);
        assert_true(next.tiles > 0 && next.early == 0);
        const struct job whole = whole_of(world, &job);
        come_back(world, &job, &whole);
    }
}

static void a_job_closed_in_the_middle_leaves_nothing(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        struct job job = {.stage = stage, .steps = 1, .ending = CLOSED, .params = stage == 2};
        run(stage, &job);
        assert_int_equal(temporary_entries(&directory), 0);
    }
}

// The n-th read, and the n-th write, for n that grow, until there are not so many.
static void a_failing_disk_leaves_the_step_before(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = {.stage = 1 + turn % 3, .steps = STEPS, .ending = FAILED, .failed = true};
        const struct job whole = whole_of(2, &job);
        int n = 1, number = turn;
        job.params = turn / 2;
        job.few = true;
        for (; job.failed; n += TEST_STRIDE > 1 ? 1 + n : 1 + n / 8) {
            char fault[64];
            if (!test_takes(number++))
                continue;
            snprintf(fault, sizeof fault, "offload.%s@%d", turn % 2 ? "read" : "write", n);
            job.fault = fault;
            run(2, &job);
            base_fault_set(NULL, NULL);
            come_back(2, &job, &whole);
        }
        assert_true(n > 4);
    }
}

// One rank looks at each unit for a while before it hands its gradient over. In the last round that
// of some ranks does not count.
static bool stare(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const struct toy toy = toy_of(job);
    uint8_t digest[16];
    if (!open_job(rank, job, &toy))
        return false;
    for (int step = 0; step < 2 * rank->world; step++) {
        const bool late = step % rank->world == rank->rank;
        if (!begin_step(rank, &toy))
            return false;
        for (zero_unit unit = 0; unit < 5; unit++) {
            TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
            const double sum = toy_unit_sum(rank, &toy, unit);
            usleep(late ? 2000 : 0);
            TEAM_CHECK(toy_unit_sum(rank, &toy, unit) == sum);
            TEAM_OK(rank, zero_release(rank->z, unit, NULL));
            if (!hand_over(rank, job->dtype, unit, false))
                return false;
        }
        TEAM_OK(rank, toy_update(rank, &toy));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return true;
}

static void nobody_writes_what_is_read(void **state)
{
    (void)state;
    for (int turn = 0; turn < 8; turn++) {
        const int world = 2 + turn % 3;
        if (!test_takes(turn + turn / 3))
            continue;
        struct job plain = {.stage = 1 + turn % 3, .dtype = turn % 2 ? ZERO_BF16 : ZERO_F32};
        struct job job = plain;
        plain.in_memory = plain.plain = true;
        job.params = turn > 5;
        job.gather = turn < 4 ? "shared" : "copy";
        if (!team_run("threads", world, stare, &plain) || !team_run("threads", world, stare, &job))
            fail_msg("%d ranks, stage %d, %s", world, job.stage, job.gather);
        assert_memory_equal(job.digest, plain.digest, sizeof plain.digest);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tiles_are_updated_before_the_step),
        TEST(what_waits_for_the_step_alternates),
        TEST(nobody_writes_what_is_read),
        TEST(what_is_frozen_shares_tiles),
        TEST(the_step_before_is_whole),
        TEST(the_job_before_is_whole),
        TEST(a_job_closed_in_the_middle_leaves_nothing),
        TEST(a_failing_disk_leaves_the_step_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
