/* The plan against what the kernel says, where the state has at least 1 GiB: what ranks have
 * between calls, and the most while zero_commit(), a step, zero_export(), zero_import(),
 * zero_save(), zero_load() and zero_resume() are under way; of state in memory, and on NVMe.
 *
 * With an argument for that much; without, for a model that takes a moment. */
#include "tests/ranks/process_memory.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, UNITS = 9, STEPS = 2 };

/** In the order in which the calls are made; the last one is a second job's, which comes back at
 * what the first one has left. */
enum phase { COMMIT, STEP, EXPORT, IMPORT, SAVE, LOAD, RESUME, PHASES };
static const char *const names[PHASES] = {
    "zero_commit", "two steps", "zero_export", "zero_import",
    "zero_save",   "zero_load", "zero_resume",
};

/** Where state, working copies and sums are; NULL: in memory. */
struct way {
    int world, stage;
    const char *gather;
    const char *state, *params, *sums, *io, *compress;
    zero_dtype dtype;
};

/** Shared by the ranks. */
struct job {
    struct toy_tensor tensors[2];
    struct toy toy;
    struct way way;
    char directory[64], weights[128];
    pthread_barrier_t barrier;
    pid_t processes[WORLD];
    size_t before;        /**< all ranks together, before zero_open() */
    size_t peaks[PHASES]; /**< the most, likewise */
    size_t plan[PHASES];  /**< what the plan says of them; 0: not looked at */
    atomic_int phase;     /**< under way; -1: none */
    atomic_int samples[PHASES];
};

static size_t elements = (size_t)1 << 20; /**< of each of the large units */

static size_t together(const struct job *job)
{
    size_t sum = 0;
    for (int r = 0; r < job->way.world; r++)
        sum += process_pss_of(job->processes[r]);
    return sum;
}

/** Looks as often as it can, from rank 0. */
static void *watch(void *user)
{
    struct job *job = user;
    for (int phase; (phase = atomic_load(&job->phase)) < PHASES; usleep(500)) {
        const size_t now = phase < 0 ? 0 : together(job);
        if (phase < 0 || atomic_load(&job->phase) != phase)
            continue;
        atomic_fetch_add(&job->samples[phase], 1);
        if (now > job->peaks[phase])
            job->peaks[phase] = now;
    }
    return NULL;
}

/** Begins and ends a phase on all ranks; its end is looked at, too. */
static void begin(struct job *job, int rank, int phase)
{
    pthread_barrier_wait(&job->barrier);
    if (rank == 0)
        atomic_store(&job->phase, phase);
    pthread_barrier_wait(&job->barrier);
}

static void end(struct job *job, int rank)
{
    pthread_barrier_wait(&job->barrier);
    const int phase = atomic_load(&job->phase);
    pthread_barrier_wait(&job->barrier);
    if (rank == 0) {
        const size_t now = together(job);
        atomic_store(&job->phase, -1);
        job->peaks[phase] = now > job->peaks[phase] ? now : job->peaks[phase];
    }
    pthread_barrier_wait(&job->barrier);
}

/** Of all ranks, in the plan's part about memory. */
static size_t sum_of(const json_t *part, const char *key)
{
    return (size_t)json_integer_value(json_object_get(json_object_get(part, key), "sum"));
}

/** What the plan says of a phase that has come to its end, or of one that is about to begin. */
static bool read_plan(struct job *job, const zero_ctx *z, enum phase phase)
{
    static const char *const peaks[PHASES] = {"commit", "step", "save", "load"};
    json_t *plan = json_loads(zero_plan_json(z), 0, NULL);
    const json_t *memory = json_object_get(plan, "memory");
    const json_t *moments = json_object_get(memory, "peaks");
    job->plan[phase] = sum_of(moments, peaks[phase] ? peaks[phase] : "step");
    if (phase == SAVE || phase == LOAD)
        job->plan[phase] += sum_of(memory, names[phase]);
    json_decref(plan);
    return job->plan[phase] > 0;
}

static zero_result save(struct team_rank *rank, const struct job *job)
{
    zero_result r = zero_save(rank->z, job->directory, NULL);
    if (!r && !toy_train(rank, &job->toy, 1))
        r = ZERO_E_STATE;
    return r ? r : zero_save_wait(rank->z);
}

static zero_result work(struct team_rank *rank, const struct job *job, enum phase phase)
{
    char path[128];
    switch (phase) {
    case COMMIT:
        return zero_commit(rank->z);
    case STEP:
        return toy_train(rank, &job->toy, STEPS) ? ZERO_OK : ZERO_E_STATE;
    case EXPORT:
        return zero_export(rank->z, job->weights);
    case IMPORT:
        return zero_import(rank->z, job->weights, NULL);
    case SAVE:
        return save(rank, job);
    case LOAD:
        snprintf(path, sizeof path, "%s/step-%08d", job->directory, STEPS);
        return zero_load(rank->z, path, NULL, NULL);
    default:
        return zero_resume(rank->z, NULL, NULL, NULL);
    }
}

static bool run_phase(struct team_rank *rank, struct job *job, enum phase phase)
{
    const bool first = rank->rank == 0;
    if (phase != COMMIT && first && !read_plan(job, rank->z, phase))
        return false;
    begin(job, rank->rank, (int)phase);
    TEAM_OK(rank, work(rank, job, phase));
    end(job, rank->rank);
    return phase != COMMIT || !first || read_plan(job, rank->z, phase);
}

static bool first_job(struct team_rank *rank, struct job *job)
{
    for (int phase = COMMIT; phase <= LOAD; phase++)
        if (!run_phase(rank, job, (enum phase)phase))
            return false;
    return !job->way.state || team_break_off(rank); // leaves a point to come back at
}

static bool second_job(struct team_rank *rank, struct job *job)
{
    return run_phase(rank, job, COMMIT) && run_phase(rank, job, RESUME);
}

static void configure(zero_config *config, const struct job *job)
{
    const struct way *way = &job->way;
    config->name = "large"; // another one would be another job
    config->stage = way->stage;
    config->gather = way->gather;
    config->timeout_s = 120;
    config->micro_batches = job->toy.micro_batches;
    if (!way->state)
        return;
    config->offload_optimizer = way->state;
    config->offload_params = way->params;
    config->offload_grads = way->sums;
    config->nvme_dir = job->directory;
    config->io = way->io;
    config->compress = way->compress;
}

static bool measure(struct team_rank *rank, struct job *job,
                    bool (*run)(struct team_rank *rank, struct job *job))
{
    pthread_t watcher;
    configure(&rank->config, job);
    job->processes[rank->rank] = getpid();
    pthread_barrier_wait(&job->barrier);
    if (rank->rank == 0) {
        TEAM_CHECK(pthread_create(&watcher, NULL, watch, job) == 0);
        job->before = together(job);
    }
    pthread_barrier_wait(&job->barrier);
    const bool good = team_open(rank) && toy_register(rank, &job->toy) && run(rank, job);
    if (rank->rank == 0) {
        atomic_store(&job->phase, PHASES);
        pthread_join(watcher, NULL);
    }
    return good;
}

static bool measure_first(struct team_rank *rank, void *user)
{
    return measure(rank, user, first_job);
}

static bool measure_second(struct team_rank *rank, void *user)
{
    return measure(rank, user, second_job);
}

static void init_job(struct job *job, const struct way *way, const struct temporary *directory)
{
    *job = (struct job){
        .tensors = {{.name = "weight", .slices = UNITS - 1, .numel = elements},
                    {.name = "small", .unit = UNITS - 1, .slices = 1, .numel = 300000, .group = 1}},
        .way = *way};
    job->toy = (struct toy){.tensors = job->tensors,
                            .tensor_count = 2,
                            .unit_count = UNITS,
                            .micro_batches = WORLD,
                            .dtype = way->dtype};
    atomic_store(&job->phase, -1);
    snprintf(job->directory, sizeof job->directory, "%s", directory->directory);
    snprintf(job->weights, sizeof job->weights, "%s", temporary_path(directory, "weights"));
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&job->barrier, &attributes, (unsigned)way->world);
    pthread_barrierattr_destroy(&attributes);
}

static void describe(const struct way *way, char text[128])
{
    snprintf(text, 128, "%d rank%s, stage %d, %s%s%s%s%s", way->world, way->world > 1 ? "s" : "",
             way->stage, way->gather, way->dtype == ZERO_F32 ? "" : ", bf16",
             way->state ? ", state on nvme" : "",
             way->params && strcmp(way->params, "nvme") == 0 ? ", parameters, too" : "",
             way->sums && strcmp(way->sums, "nvme") == 0 ? ", sums, too" : "");
}

/** What was measured since the last time. */
static void compare_phases(const struct job *job)
{
    char text[128];
    describe(&job->way, text);
    for (int p = 0; p < PHASES; p++) {
        if (job->plan[p] == 0)
            continue;
        const size_t peak = job->peaks[p] - job->before;
        const double ratio = (double)peak / (double)job->plan[p];
        print_message("%s, %s: planned %.1f MiB, at most %.1f (%d looks)\n", text, names[p],
                      (double)job->plan[p] / 1048576, (double)peak / 1048576, job->samples[p]);
        assert_true(ratio < 1.02);
        assert_true(job->samples[p] == 0 || ratio > 0.98); // else no sample was at its most
    }
}

/** Of both jobs. */
static void compare(const struct way *way)
{
    struct temporary directory;
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    assert_true(temporary_make(&directory));
    for (int second = 0; second <= (way->state != NULL); second++) {
        init_job(job, way, &directory);
        if (!team_run("shm", way->world, second ? measure_second : measure_first, job))
            fail_msg("stage %d, %s", way->stage, way->gather);
        compare_phases(job);
        pthread_barrier_destroy(&job->barrier);
    }
    team_shared_free(job, sizeof *job);
    temporary_remove(&directory);
}

static void need_plain_memory(void)
{
    if (!process_sanitized())
        return;
    print_message("built with a sanitizer, whose own memory would be in every number\n");
    skip();
}

static void peaks_are_those_of_the_plan(void **state)
{
    (void)state;
    need_plain_memory();
    for (int i = 0; i < 7; i++) {
        const struct way way = {.world = WORLD,
                                .stage = i < 4 ? i : i - 3,
                                .gather = i < 4 ? "copy" : "shared",
                                .dtype = ZERO_F32};
        if (test_takes(i)) // no stage, then all of it, and that with windows of peers
            compare(&way);
    }
}

static void peaks_of_state_in_files_are_those_of_the_plan(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {2, 3, "copy", "nvme", "nvme", "nvme", "uring", "off", ZERO_F32},
        {2, 3, "copy", "nvme", "nvme", "host", "threads", "on", ZERO_BF16},
        {2, 2, "copy", "nvme", "host", "nvme", "sync", "off", ZERO_F32},
        {2, 1, "copy", "nvme", "nvme", "nvme", "threads", "auto", ZERO_BF16},
        {2, 0, "copy", "nvme", "nvme", "nvme", "uring", "on", ZERO_F32},
        {1, 3, "copy", "nvme", "nvme", "nvme", "uring", "on", ZERO_F32},
        {1, 0, "copy", "nvme", "host", "host", "uring", "off", ZERO_BF16},
    };
    need_plain_memory();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (test_takes((int)i))
            compare(&ways[i]);
}

int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_those_of_the_plan),
        cmocka_unit_test(peaks_of_state_in_files_are_those_of_the_plan),
    };
    // 1 GiB of optimizer state at the least: 12 bytes an element.
    if (argc > 1)
        elements = (size_t)12 << 20;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
