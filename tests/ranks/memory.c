/* The plan against what the kernel says; what stage 3 needs beyond its share; a step path that
 * asks for nothing. */
#include "tests/ranks/process_memory.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include "base/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, STEPS = 2 };

/** Elements of a layer, and of the two small tensors of a layer, one of which stays resident. */
enum { TENSORS = 4, LAYER = 256 * 1024, SMALL = 2000, TINY = 500, PAGE = 4096 };

struct job {
    struct toy_tensor tensors[TENSORS];
    struct toy toy;
    int stage;
    bool shared;      /**< gather=shared, else copy */
    bool narrow;      /**< gradients that travel in another type; no masters; moments of 16 bits */
    bool borrow, own; /**< working copies, gradients in the caller's memory as well */
    bool paranoid, verify;
    const char *nvme;  /**< directory of the optimizer's state; NULL: memory */
    bool params, sums; /**< on NVMe, too */
    int32_t evaluates; /**< micro-batches of evaluations at the end; 0: none */
    pthread_barrier_t barrier;
    size_t before[WORLD];    /**< before zero_open() */
    size_t at_rest[WORLD];   /**< after the last step, */
    size_t evaluated[WORLD]; /**< and after the last evaluation */
    size_t peak[WORLD];      /**< the most inside a step */
    size_t plan[WORLD];
    size_t more[WORLD];     /**< what an evaluation has added to it */
    size_t gathered[WORLD]; /**< the plan's bytes of gathered units, */
    size_t slots[WORLD];    /**< and of these and gradients */
};

/** A shared job: an embedding of `embed` elements in unit 0, then `layers` units alike. */
static struct job *make_job(int stage, bool shared, zero_dtype dtype, int layers, uint64_t embed)
{
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    const struct toy_tensor tensors[] = {
        {.name = "embed", .unit = 0, .slices = 1, .numel = embed},
        {.name = "weight", .unit = 1, .slices = layers, .numel = LAYER},
        {.name = "small", .unit = 1, .slices = layers, .numel = SMALL, .group = 1},
        {.name = "tiny", .unit = 1, .slices = layers, .numel = TINY, .group = 1, .wide = true},
    };
    memcpy(job->tensors, tensors, sizeof tensors);
    job->toy = (struct toy){.tensors = job->tensors,
                            .tensor_count = TENSORS,
                            .unit_count = 1 + layers,
                            .micro_batches = WORLD,
                            .dtype = dtype};
    job->stage = stage;
    job->shared = shared;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&job->barrier, &attributes, WORLD);
    pthread_barrierattr_destroy(&attributes);
    return job;
}

static void free_job(struct job *job)
{
    pthread_barrier_destroy(&job->barrier);
    team_shared_free(job, sizeof *job);
}

/** Bytes of this rank while no thread maps or unmaps anything. */
static size_t measure(struct job *job)
{
    pthread_barrier_wait(&job->barrier);
    const size_t bytes = process_pss();
    pthread_barrier_wait(&job->barrier);
    return bytes;
}

/** Bytes of the plan's row, 0 if there is none. */
static size_t planned(const zero_ctx *z, const char *purpose)
{
    const char *row = strstr(zero_plan_text(z), purpose);
    const char *host = row ? strstr(row, " host ") : NULL;
    return host ? (size_t)strtoull(host + 6, NULL, 10) : 0;
}

/** A step whose memory is looked at between its calls. */
static bool measured_step(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    size_t *peak = &job->peak[rank->rank];
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        if (!toy_micro(rank, toy, i, NULL, NULL))
            return false;
        const size_t now = measure(job);
        *peak = now > *peak ? now : *peak;
    }
    TEAM_OK(rank, toy_update(rank, toy));
    return true;
}

/** The caller's memory for a copy of every tensor, all of it in use; the process ends with it. */
static bool make_buffers(const struct job *job, void *buffers[TENSORS])
{
    for (int p = 0; p < TENSORS; p++) {
        const struct toy_tensor *tensor = &job->tensors[p];
        const size_t bytes = (size_t)tensor->slices * tensor->numel * 4;
        buffers[p] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        TEAM_CHECK(buffers[p]);
        memset(buffers[p], 0, bytes);
    }
    return true;
}

/** The same evaluation twice: what the first one needed is there for the second. */
static bool evaluate(struct team_rank *rank, struct job *job)
{
    uint64_t allocations = 0;
    for (int turn = 0; turn < 2 && job->evaluates; turn++) {
        TEAM_OK(rank, zero_eval_begin(rank->z, job->evaluates));
        TEAM_CHECK(turn == 0 || base_allocation_count() == allocations);
        allocations = base_allocation_count();
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
            for (char name[] = "a"; *name <= 'p'; ++*name)
                TEAM_OK(rank, zero_metric(rank->z, name, i));
        }
        TEAM_OK(rank, zero_eval_end(rank->z));
        job->evaluated[rank->rank] = measure(job);
    }
    return true;
}

static bool measure_job(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const int r = rank->rank;
    struct toy toy = job->toy;
    void *work[TENSORS], *gradients[TENSORS];
    if (job->borrow && !make_buffers(job, toy.borrow = work))
        return false;
    if (job->own && !make_buffers(job, toy.own = gradients))
        return false;
    rank->config.paranoid = job->paranoid;
    rank->config.verify_micro = job->verify;
    rank->config.stage = job->stage;
    rank->config.gather = job->shared ? "shared" : "copy";
    rank->config.comm_dtype = job->narrow ? ZERO_BF16 : ZERO_DTYPE_DEFAULT;
    rank->config.master = job->narrow ? "none" : NULL;
    rank->config.moments = job->narrow ? "bf16" : NULL;
    rank->config.open_units = 2;
    rank->config.prefetch_units = 1;
    rank->config.grad_units = 2;
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = job->nvme;
        rank->config.tile_bytes = 4 << 20;
        rank->config.compress = job->sums ? "off" : "on";
        rank->config.offload_params = job->params ? "nvme" : "host";
        rank->config.offload_grads = job->sums ? "nvme" : "host";
    }
    job->before[r] = measure(job);
    if (!toy_open(rank, &toy))
        return false;
    for (int s = 0; s < STEPS; s++)
        if (!measured_step(rank, job, &toy))
            return false;
    job->at_rest[r] = measure(job);
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    job->plan[r] = stats.allocated_bytes;
    if (!evaluate(rank, job))
        return false;
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    job->more[r] = stats.allocated_bytes - job->plan[r];
    // Windows have memory while they are open: always those of what persists, a page each.
    if (job->paranoid)
        job->plan[r] -= planned(rank->z, "windows");
    if (job->paranoid && !job->borrow)
        job->plan[r] += (size_t)job->tensors[TENSORS - 1].slices * PAGE;
    job->gathered[r] = planned(rank->z, "gathered units");
    job->slots[r] = job->gathered[r] + planned(rank->z, "gradients ");
    return true;
}

static size_t sum(const size_t values[WORLD])
{
    size_t total = 0;
    for (int r = 0; r < WORLD; r++)
        total += values[r];
    return total;
}

/** Whether a is b within 0.5 %. */
static bool near(size_t a, size_t b)
{
    const double ratio = (double)a / (double)b;
    return ratio > 0.995 && ratio < 1.005;
}

static void measure_ranks(struct job *job)
{
    if (!team_run("shm", WORLD, measure_job, job))
        fail_msg("stage %d, %s, dtype %d", job->stage, job->shared ? "shared" : "copied",
                 (int)job->toy.dtype);
    assert_true(sum(job->before) > 0);
}

static struct job *measured_job(int stage, bool shared, zero_dtype dtype, int layers,
                                uint64_t embed)
{
    struct job *job = make_job(stage, shared, dtype, layers, embed);
    measure_ranks(job);
    return job;
}

static void need_plain_memory(void)
{
    if (!process_sanitized())
        return;
    print_message("built with a sanitizer, whose own memory would be in every number\n");
    skip();
}

/** Frees the job. */
static void compare_with_plan(struct job *job)
{
    measure_ranks(job);
    const size_t plan = sum(job->plan), before = sum(job->before);
    const size_t rest = sum(job->at_rest) - before, peak = sum(job->peak) - before;
    print_message("stage %d, %s, %s%s: planned %.1f MiB, at rest %.1f, peak %.1f\n", job->stage,
                  job->shared ? "shared" : "copied", job->toy.dtype == ZERO_F32 ? "f32" : "16 bits",
                  job->narrow ? " only" : "", (double)plan / 1048576, (double)rest / 1048576,
                  (double)peak / 1048576);
    assert_true(plan >= (size_t)64 << 20 || job->nvme);
    assert_true(near(rest, plan));
    assert_true(near(peak, plan));
    if (job->evaluates)
        assert_true(near(sum(job->evaluated) - sum(job->at_rest), sum(job->more)));
    if (job->shared)
        assert_int_equal(job->gathered[0], 0);
    free_job(job);
}

/** The plan is what commit allocates, byte by byte, as ranks.plan_bytes shows of every way; here
 * the kernel has to count as much. */
static void the_plan_is_what_is_used(void **state)
{
    (void)state;
    need_plain_memory();
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 4; i++)
            if ((stage > 0 || i < 2) && test_takes(stage + i))
                compare_with_plan(make_job(stage, i >= 2, i % 2 ? ZERO_BF16 : ZERO_F32, 40, LAYER));
}

static void the_plan_of_other_precisions_is_what_is_used(void **state)
{
    (void)state;
    need_plain_memory();
    for (int stage = 0; stage <= 3; stage++) {
        struct job *job = make_job(stage, stage % 2, ZERO_F16, 40, LAYER);
        job->narrow = true;
        job->toy.grad_dtype = ZERO_F32;
        compare_with_plan(job);
    }
}

/** The optimizer's state is in files, and a few tiles of it in memory; so are parameters and sums.
 */
static void the_plan_of_state_in_files_is_what_is_used(void **state)
{
    (void)state;
    struct temporary directory;
    need_plain_memory();
    assert_true(temporary_make(&directory));
    static const struct {
        int stage;
        bool shared, params, sums;
    } ways[] = {{0, false, true, false}, {1, true, false, false}, {1, true, false, true},
                {2, false, true, true},  {3, true, false, false}, {3, false, true, true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct job *job = make_job(ways[i].stage, ways[i].shared,
                                   ways[i].stage < 2 ? ZERO_BF16 : ZERO_F32, 40, LAYER);
        job->nvme = directory.directory;
        job->params = ways[i].params;
        job->sums = ways[i].sums;
        compare_with_plan(job);
        assert_int_equal(temporary_entries(&directory), 0);
    }
    temporary_remove(&directory);
}

/** Tensors without gradient and state, and what lies twice because the caller has it, too. */
static void the_plan_of_parts_is_what_is_used(void **state)
{
    (void)state;
    need_plain_memory();
    for (int stage = 0; stage <= 3; stage++) {
        const bool half = stage % 2;
        const uint64_t embed = (stage == 0 ? 4 : 20) * LAYER;
        struct job *job = make_job(stage, half, half ? ZERO_BF16 : ZERO_F32, 60, embed);
        // The layers: what trains is their small tensors and the embedding.
        job->toy.frozen = stage != 2 ? 1 << 1 : 0;
        job->borrow = stage < 3;
        job->own = stage < 2;
        job->verify = half;
        job->paranoid = stage >= 2;
        job->evaluates = 1 << 16;
        compare_with_plan(job);
    }
}

/** Beyond a rank's share of the state, stage 3 needs slots: for the largest units, not for all. */
static void stage_3_grows_with_the_largest_unit(void **state)
{
    (void)state;
    need_plain_memory();
    for (int d = 0; d < 2; d++) {
        const zero_dtype dtype = d ? ZERO_BF16 : ZERO_F32;
        struct job *shallow = measured_job(3, false, dtype, 12, LAYER);
        struct job *deep = measured_job(3, false, dtype, 36, LAYER);
        struct job *wide = measured_job(3, false, dtype, 12, 4 * LAYER);
        // Working copy, sums, two moments, and a master of its own for bf16.
        const size_t element = d ? 2 + 4 + 8 + 4 : 4 + 4 + 8;
        // What is small has an f32 working copy on every rank.
        const size_t share = 24 * ((LAYER + 2048) * element + 1024 * (WORLD * 4 + 4 + 8));
        const size_t more =
            sum(deep->peak) - sum(deep->before) - sum(shallow->peak) + sum(shallow->before);
        print_message("24 layers more: %.1f MiB, their state has %.1f\n", (double)more / 1048576,
                      (double)share / 1048576);
        assert_true(near(more, share));
        assert_int_equal(deep->slots[0], shallow->slots[0]);
        // A unit four times as large has slots of its own; the state grows besides.
        const size_t work = d ? 2 : 4;
        assert_int_equal(wide->slots[1] - shallow->slots[1], 2 * 4 * LAYER * work);
        free_job(shallow);
        free_job(deep);
        free_job(wide);
    }
}

/* ------------------------------------------------------------------ the step path */

struct quiet {
    struct toy toy;
    int stage;
    const char *gather;
    bool narrow;
    const char *nvme; /**< directory of the state, and, with io_uring, of all else; NULL: memory */
    const char *io;
};

/** Where standard output and error went before, and where they go meanwhile. */
struct sink {
    int kept[2];
    int file;
};

static bool sink_open(struct sink *sink)
{
    *sink = (struct sink){.kept = {dup(1), dup(2)}, .file = memfd_create("output", MFD_CLOEXEC)};
    fflush(NULL);
    return dup2(sink->file, 1) == 1 && dup2(sink->file, 2) == 2;
}

/** Puts them back; -1 or how many bytes were written. */
static long sink_close(struct sink *sink)
{
    struct stat status;
    fflush(NULL);
    const bool known = fstat(sink->file, &status) == 0;
    for (int i = 0; i < 2; i++) {
        dup2(sink->kept[i], 1 + i);
        close(sink->kept[i]);
    }
    close(sink->file);
    return known ? (long)status.st_size : -1;
}

/** From the third step on nothing is asked of the system, and nothing said. */
static bool quiet_steps(struct team_rank *rank, void *user)
{
    const struct quiet *job = user;
    const bool alone = !rank->config.team; // threads share their output
    struct sink sink;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.master = job->narrow ? "none" : NULL;
    rank->config.moments = job->narrow ? "bf16" : NULL;
    rank->config.cpu_threads = 2;
    rank->config.log_level = 0; // the default: errors and warnings to standard error
    if (job->nvme) {
        const bool all = strcmp(job->io, "uring") == 0;
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = rank->config.offload_grads = all ? "nvme" : "host";
        rank->config.compress = all ? "on" : "off";
        rank->config.nvme_dir = job->nvme;
        rank->config.io = job->io;
    }
    if (!toy_open(rank, &job->toy) || !toy_train(rank, &job->toy, 2))
        return false;
    TEAM_CHECK(!alone || sink_open(&sink));
    TEAM_OK(rank, zero_barrier(rank->z));
    const uint64_t counted = base_allocation_count();
    const struct process_state before = process_state();
    TEAM_OK(rank, zero_barrier(rank->z));
    const bool good = toy_train(rank, &job->toy, 4);
    TEAM_OK(rank, zero_barrier(rank->z));
    const struct process_state after = process_state();
    TEAM_CHECK(!alone || sink_close(&sink) == 0);
    TEAM_CHECK(good);
    TEAM_CHECK(base_allocation_count() == counted);
    TEAM_CHECK(after.allocations == before.allocations);
    TEAM_CHECK(after.mapped == before.mapped);
    TEAM_CHECK(after.threads == before.threads);
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}

static void a_step_asks_for_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *transport;
        int world;
    } places[] = {{"self", 1}, {"threads", 2}, {"shm", 2}, {"shm", 3}};
    // Rank 0 writes the step's metrics, as under zero-run.
    char metrics[16];
    const int null = open("/dev/null", O_WRONLY);
    snprintf(metrics, sizeof metrics, "%d", null);
    setenv("ZERO_METRICS_FD", metrics, 1);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (int i = 0; i <= 6; i++) {
            struct quiet job = {
                .toy = toy_odd, .stage = i < 4 ? i : i - 3, .gather = i < 4 ? "copy" : "shared"};
            job.toy.dtype = i % 2 ? ZERO_F32 : ZERO_BF16;
            job.narrow = i % 4 == 2;
            if (!team_run(places[p].transport, places[p].world, quiet_steps, &job))
                fail_msg("%s, world %d, stage %d, %s", places[p].transport, places[p].world,
                         job.stage, job.gather);
        }
    unsetenv("ZERO_METRICS_FD");
    close(null);
}

static void nor_does_one_whose_state_is_in_files(void **state)
{
    (void)state;
    static const char *const engines[] = {"uring", "threads", "sync"};
    struct temporary directory;
    assert_true(temporary_make(&directory));
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 3; i++) {
            struct quiet job = {.toy = toy_odd,
                                .stage = stage,
                                .gather = "copy",
                                .nvme = directory.directory,
                                .io = engines[i]};
            job.toy.dtype = stage % 2 ? ZERO_BF16 : ZERO_F32;
            if (!team_run(i % 2 ? "threads" : "shm", 2, quiet_steps, &job))
                fail_msg("stage %d, io=%s", stage, job.io);
        }
    temporary_remove(&directory);
}

/** The counters count: otherwise nothing above means anything. */
static void allocations_are_seen(void **state)
{
    (void)state;
    need_plain_memory();
    const struct process_state before = process_state();
    void *volatile small = malloc(10);
    void *volatile zeroed = calloc(3, 7);
    void *volatile aligned = aligned_alloc(64, 128);
    FILE *file = fopen("/dev/null", "w"); // libc's own calls too
    const uint64_t counted = base_allocation_count();
    void *ours = base_calloc(1, 1);
    void *mapped = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapped != MAP_FAILED);
    const struct process_state after = process_state();
    assert_true(after.allocations >= before.allocations + 5);
    assert_true(after.mapped >= before.mapped + (1 << 20));
    assert_int_equal(after.threads, before.threads);
    assert_int_equal(base_allocation_count(), counted + 1);
    munmap(mapped, 1 << 20);
    base_free(ours);
    fclose(file);
    free(aligned);
    free(zeroed);
    free(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_seen),
        cmocka_unit_test(the_plan_is_what_is_used),
        cmocka_unit_test(the_plan_of_other_precisions_is_what_is_used),
        cmocka_unit_test(the_plan_of_state_in_files_is_what_is_used),
        cmocka_unit_test(the_plan_of_parts_is_what_is_used),
        cmocka_unit_test(stage_3_grows_with_the_largest_unit),
        cmocka_unit_test(a_step_asks_for_nothing),
        cmocka_unit_test(nor_does_one_whose_state_is_in_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
