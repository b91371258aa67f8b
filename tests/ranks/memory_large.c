/* The plan against what the kernel says, where the state has at least 1 GiB: what ranks have
 * between calls, and the most while zero_commit(), a step, zero_export() and zero_import() are
 * under way.
 *
 * With an argument for that much; without, for a model that takes a moment. */
#include "tests/ranks/process_memory.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, UNITS = 9 };

/** In the order in which the calls are made. */
static const char *const phases[] = {"commit", "step", "save", "load"};
enum { PHASES = sizeof phases / sizeof *phases };

/** Shared by the ranks. */
struct job {
    struct toy_tensor tensors[2];
    struct toy toy;
    int stage;
    const char *gather;
    char path[128];
    pthread_barrier_t barrier;
    pid_t processes[WORLD];
    size_t before;        /**< both ranks together, before zero_open() */
    size_t peaks[PHASES]; /**< the most, likewise */
    size_t plan[PHASES];  /**< what the plan says of them */
    atomic_int phase;     /**< under way; -1: none */
    atomic_int samples[PHASES];
};

static size_t elements = (size_t)1 << 20; /**< of each of the large units */

static size_t together(const struct job *job)
{
    size_t sum = 0;
    for (int r = 0; r < WORLD; r++)
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

static bool read_plan(struct job *job, const zero_ctx *z)
{
    json_t *plan = json_loads(zero_plan_json(z), 0, NULL);
    json_t *peaks = json_object_get(json_object_get(plan, "memory"), "peaks");
    for (int p = 0; p < PHASES; p++)
        job->plan[p] =
            (size_t)json_integer_value(json_object_get(json_object_get(peaks, phases[p]), "sum"));
    const bool good = plan != NULL;
    json_decref(plan);
    return good;
}

static bool run_phases(struct team_rank *rank, struct job *job)
{
    const int r = rank->rank;
    begin(job, r, 0);
    TEAM_OK(rank, zero_commit(rank->z));
    end(job, r);
    TEAM_CHECK(r != 0 || read_plan(job, rank->z));
    begin(job, r, 1);
    if (!toy_train(rank, &job->toy, 2))
        return false;
    end(job, r);
    begin(job, r, 2);
    TEAM_OK(rank, zero_export(rank->z, job->path));
    end(job, r);
    begin(job, r, 3);
    TEAM_OK(rank, zero_import(rank->z, job->path, NULL));
    end(job, r);
    return true;
}

static bool measure(struct team_rank *rank, void *user)
{
    struct job *job = user;
    pthread_t watcher;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.timeout_s = 120;
    rank->config.micro_batches = WORLD;
    job->processes[rank->rank] = getpid();
    pthread_barrier_wait(&job->barrier);
    if (rank->rank == 0) {
        TEAM_CHECK(pthread_create(&watcher, NULL, watch, job) == 0);
        job->before = together(job);
    }
    pthread_barrier_wait(&job->barrier);
    const bool good = team_open(rank) && toy_register(rank, &job->toy) && run_phases(rank, job);
    if (rank->rank == 0) {
        atomic_store(&job->phase, PHASES);
        pthread_join(watcher, NULL);
    }
    return good;
}

static void init_job(struct job *job, int stage, const char *gather, const char *path)
{
    *job = (struct job){
        .tensors = {{.name = "weight", .slices = UNITS - 1, .numel = elements},
                    {.name = "small", .unit = UNITS - 1, .slices = 1, .numel = 300000, .group = 1}},
        .stage = stage,
        .gather = gather};
    job->toy = (struct toy){.tensors = job->tensors,
                            .tensor_count = 2,
                            .unit_count = UNITS,
                            .micro_batches = WORLD,
                            .dtype = ZERO_F32};
    atomic_store(&job->phase, -1);
    snprintf(job->path, sizeof job->path, "%s", path);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&job->barrier, &attributes, WORLD);
    pthread_barrierattr_destroy(&attributes);
}

static void compare(int stage, const char *gather, const char *path)
{
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    init_job(job, stage, gather, path);
    if (!team_run("shm", WORLD, measure, job))
        fail_msg("stage %d, %s", stage, gather);
    for (int p = 0; p < PHASES; p++) {
        const size_t peak = job->peaks[p] - job->before;
        const double ratio = (double)peak / (double)job->plan[p];
        print_message("stage %d, %s, %s: planned %.1f MiB, at most %.1f (%d looks)\n", stage,
                      gather, phases[p], (double)job->plan[p] / 1048576, (double)peak / 1048576,
                      job->samples[p]);
        assert_true(ratio > 0.98 && ratio < 1.02);
    }
    pthread_barrier_destroy(&job->barrier);
    team_shared_free(job, sizeof *job);
}

static void peaks_are_those_of_the_plan(void **state)
{
    (void)state;
    struct temporary dir;
    if (process_sanitized()) {
        print_message("built with a sanitizer, whose own memory would be in every number\n");
        skip();
    }
    assert_true(temporary_make(&dir));
    for (int i = 0; i < 7; i++)
        compare(i < 4 ? i : i - 3, i < 4 ? "copy" : "shared", temporary_path(&dir, "weights"));
    temporary_remove(&dir);
}

int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {cmocka_unit_test(peaks_are_those_of_the_plan)};
    // 1 GiB of optimizer state at the least: 12 bytes an element.
    if (argc > 1)
        elements = (size_t)12 << 20;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
