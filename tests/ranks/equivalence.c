// One training, many ways: every number of ranks, stage, transport, prefetch depth, instruction
// set, number of threads and slots, copied or shared parameters, ends in the same bits, those
// written down in synthetic_golden().
//
// Without arguments a part of the combinations is run, others at every number of ranks; with
// "precision" those of the models with f16 or with a precision of their own; with "all" every one
// of both. With "matrix" a part of every optimizer, precision and policy (synthetic_matrix.h), in
// which any two settings meet; with "matrix" and an optimizer all of that one's; with "golden" its
// fingerprints are printed.
#include "base/hash.h"
#include "base/kernels/kernels.h"
#include "collectives/host/host.h"
#include "tests/numerics/pairs.h"
#include "tests/numerics/synthetic_matrix.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"
#include "zero/core/context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5 };

// What a rank ends with; all of it must be the same everywhere.
struct outcome {
    uint8_t digest[16];
    double norm[SYNTHETIC_STEPS], loss[SYNTHETIC_STEPS];
    uint64_t work[SYNTHETIC_STEPS][SYNTHETIC_TENSORS]; // hashes of the working copies
};

struct job {
    struct synthetic model;
    const char *transport, *kernels, *gather;
    int world;
    uint64_t steps;
    int32_t stage, prefetch, grad_units, cpu_threads, paranoid, verify_micro;
    int64_t persist, live_bytes;
    bool borrow, own_gradient;      // working copies, gradients in the caller's memory
    bool past_caches;               // everything is stored as if it did not fit there
    const char *io;                 // the optimizer's state is in files; NULL: in memory
    bool params_in_files;           // and so are working copies,
    bool sums_in_files;             // and gradient sums
    int64_t tile_bytes, host_bytes; // of those,
    const char *compress;           // and how they are written
    struct outcome *outcomes;       // one a rank, shared by processes
    const struct outcome *expected; // NULL: this is the first one
};

static bool every;
static struct temporary directory; // for state in files

// Hashes the working copies that may be read without a gather: small ones, and at stage 0 those in
// memory.
// Those of others are taken from what is expected.
static void hash_work(const struct team_rank *rank, const struct job *job, uint64_t *hashes,
                      const uint64_t *expected)
{
    const int64_t persist = job->persist == 0 ? 1024 : job->persist;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const struct synthetic_tensor *tensor = &synthetic_tensors[p];
        const uint64_t numel = synthetic_numel(tensor);
        const size_t size = synthetic_dtype(&job->model, tensor) == ZERO_F32 ? 4 : 2;
        const bool in_memory =
            job->stage == 0 && !job->model.borrow && !job->paranoid && !job->params_in_files;
        if (!in_memory && (int64_t)numel > persist) {
            hashes[p] = expected ? expected[p] : 0;
            continue;
        }
        for (int32_t slice = 0; slice < tensor->slices; slice++)
            hashes[p] = base_hash64(zero_param_ptr(rank->z, p, slice), numel * size, hashes[p]);
    }
}

// As where an update, a reduction and a copy exceed the caches.
static void exceed_caches(zero_ctx *z)
{
    struct host_comm *host = coll_host_of(z->comm);
    z->update.past_caches = true;
    host->core_bytes = host->cache_bytes = 0;
}

static bool train_job(struct team_rank *rank, const struct job *job)
{
    struct outcome *outcome = &job->outcomes[rank->rank];
    rank->config.stage = job->stage;
    synthetic_configure(&job->model, &rank->config);
    rank->config.gather = job->gather;
    rank->config.prefetch_units = job->prefetch;
    rank->config.grad_units = job->grad_units;
    rank->config.cpu_threads = job->cpu_threads;
    rank->config.paranoid = job->paranoid;
    rank->config.verify_micro = job->verify_micro;
    rank->config.persist_numel = job->persist;
    rank->config.live_bytes = job->live_bytes;
    rank->config.kernels = job->kernels;
    if (job->io) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.io = job->io;
        rank->config.offload_params = job->params_in_files ? "nvme" : "host";
        rank->config.offload_grads = job->sums_in_files ? "nvme" : "host";
        rank->config.tile_bytes = job->tile_bytes;
        rank->config.host_bytes = job->host_bytes;
        rank->config.compress = job->compress;
    }
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &job->model));
    if (job->past_caches)
        exceed_caches(rank->z);
    for (uint64_t step = 0; step < job->steps; step++) {
        zero_step_result info = {.struct_size = sizeof info};
        TEAM_OK(rank, synthetic_step(rank->z, &job->model, step));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        outcome->norm[step] = info.norm;
        hash_work(rank, job, outcome->work[step], job->expected ? job->expected->work[step] : NULL);
        TEAM_OK(rank, zero_metric_mean(rank->z, "loss", &outcome->loss[step]));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, outcome->digest));
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    // The caller's memory is each rank's own.
    struct job job = *(const struct job *)user;
    struct synthetic_memory *memory = calloc(2, sizeof *memory);
    TEAM_CHECK(memory);
    job.model.borrow = job.borrow ? &memory[0] : NULL;
    job.model.own = job.own_gradient ? &memory[1] : NULL;
    const bool good = train_job(rank, &job);
    team_close(rank);
    free(memory);
    return good;
}

static void describe_model(const struct synthetic *model)
{
    fprintf(stderr, "dtype %d, V %d, G %d, grad_dtype %d, comm_dtype %d, master %s, moments %s\n",
            model->dtype, model->micro_batches, model->sum_group, model->grad_dtype,
            model->comm_dtype, model->no_masters ? "none" : "f32",
            model->narrow_moments ? "bf16" : "f32");
    fprintf(stderr, "optimizers %s and %s%s%s%s%s\n", synthetic_group(model, 0).optimizer,
            synthetic_group(model, 1).optimizer, model->scaled ? ", loss scale" : "",
            model->unclipped ? ", not clipped" : "", model->skips ? ", steps that are skipped" : "",
            model->passes ? ", steps that the program skips" : "");
}

static void describe(const struct job *job)
{
    fprintf(stderr,
            "%d ranks, stage %d, %s, %s, %s, prefetch %d, grad_units %d, %s, cpu_threads %d, "
            "persist %lld, live %lld%s%s%s%s%s%s%s%s%s%s%s, tiles of %lld, %lld for them\n",
            job->world, job->stage, job->transport, job->gather,
            job->model.tied ? "tied" : "not tied", job->prefetch, job->grad_units, job->kernels,
            job->cpu_threads, (long long)job->persist, (long long)job->live_bytes,
            job->model.fused ? ", fused" : "", job->model.hostile ? ", hostile environment" : "",
            job->borrow ? ", borrowed" : "", job->own_gradient ? ", own gradients" : "",
            job->paranoid ? ", paranoid" : "", job->verify_micro ? ", verified" : "",
            job->past_caches ? ", past the caches" : "",
            job->params_in_files ? ", parameters in files" : "",
            job->sums_in_files ? ", sums in files" : "", job->io ? ", state in files by " : "",
            job->io ? job->io : "", (long long)job->tile_bytes, (long long)job->host_bytes);
    describe_model(&job->model);
}

static void hex(const uint8_t digest[16], char text[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

static void run(struct job *job, const struct outcome *expected)
{
    job->expected = expected;
    memset(job->outcomes, 0, MOST_RANKS * sizeof *job->outcomes);
    if (!team_run(job->transport, job->world, train, job)) {
        describe(job);
        fail();
    }
    if (!expected)
        expected = &job->outcomes[0];
    for (int r = 0; r < job->world; r++) {
        if (memcmp(&job->outcomes[r], expected, sizeof *expected) == 0)
            continue;
        char got[33];
        int step = 0;
        while (step < SYNTHETIC_STEPS - 1 && job->outcomes[r].norm[step] == expected->norm[step])
            step++;
        hex(job->outcomes[r].digest, got);
        describe(job);
        fail_msg("rank %d: fingerprint %s, norm first differs after step %d", r, got, step);
    }
}

// The plainest way: one rank, the definition of the arithmetic, nothing ahead.
static struct job plain_job(const struct synthetic *model, uint64_t steps, struct outcome *outcomes)
{
    return (struct job){
        .model = *model,
        .transport = "self",
        .kernels = "ref",
        .gather = "copy",
        .world = 1,
        .steps = steps,
        .prefetch = ZERO_OFF,
        .outcomes = outcomes,
    };
}

static void check_golden(const struct job *job, const char *golden)
{
    char digest[33];
    hex(job->outcomes[0].digest, digest);
    if (golden && strcmp(digest, golden) == 0)
        return;
    describe(job);
    fail_msg("the fingerprint is %s instead of %s", digest, golden ? golden : "none");
}

// Settings that take their turns; none may change a bit.
static void take_turns(struct job *job, unsigned turn)
{
    static const char *const tables[] = {"auto", "avx2", "ref"};
    static const int64_t persist[] = {0, ZERO_OFF, 1023, 1 << 20};
    static const char *const engines[] = {"uring", "threads", "sync"};
    static const char *const compressions[] = {"on", "off", "auto"};
    job->kernels = base_kernels_find(tables[turn % 3]) ? tables[turn % 3] : "auto";
    job->cpu_threads = 1 + (int)(turn / 2 % 2);
    job->persist = persist[turn % 4];
    job->live_bytes = turn / 3 % 2 ? 6000 : 0;
    job->model.tied = turn / 5 % 2;
    job->model.none = turn / 2 % 2;
    job->borrow = job->stage < 3 && turn / 2 % 2;
    job->own_gradient = job->stage < 2 && turn / 4 % 2;
    job->model.hostile = turn / 7 % 2;
    job->model.fused = job->model.unclipped && turn % 3 != 0;
    job->paranoid = (int)(turn / 2 % 3 == 0);
    job->verify_micro = !job->model.fused && turn % 5 == 2;
    job->past_caches = turn / 6 % 2;
    job->io = turn / 4 % 3 == 1 ? engines[turn / 3 % 3] : NULL;
    // There must be some that do not persist, in no memory of the caller's or of all ranks.
    job->params_in_files =
        job->io && turn / 3 % 2 && job->persist <= 1024 && strcmp(job->gather, "copy") == 0;
    job->sums_in_files = job->io && turn / 5 % 2;
    job->borrow = job->borrow && !job->params_in_files;
    job->tile_bytes = turn % 2 ? 65536 : 100000;
    job->host_bytes = turn / 2 % 2 ? 12 << 20 : 0;
    job->compress = compressions[turn / 2 % 3];
    job->grad_units = job->model.tied ? 2 + (int)(turn % 3) : 1 + (int)(turn % 2);
}

// Ways in which a rank comes by what others have updated.
enum { COPIED_ON_DEMAND, COPIED_AHEAD, COPIED_FAR_AHEAD, SHARED, WAYS };

// The models whose numerics are the default ones are run in more ways.
static bool plain(const struct synthetic *model)
{
    return model->sum_group == 0 && model->grad_dtype == ZERO_DTYPE_DEFAULT &&
           model->comm_dtype == ZERO_DTYPE_DEFAULT && !model->no_masters &&
           !model->narrow_moments && !model->absent && !model->paused && !model->frozen;
}

// How ranks come by parameters that are not shared: at stage 3 every other time together.
static const char *copying(int stage, unsigned turn)
{
    return stage == 3 && turn % 2 ? "slots" : "copy";
}

// Every stage and way at one number of ranks.
static void sweep_world(const struct synthetic *model, const struct outcome *expected, int world,
                        const char *transport, struct outcome *outcomes, unsigned *turn)
{
    static int drawn;
    for (int32_t stage = 0; stage <= 3; stage++) {
        for (int way = 0; way < WAYS; way++) {
            if (way == SHARED && stage == 0)
                continue;
            (*turn)++;
            if (!every && (*turn + (unsigned)world) % (plain(model) ? 5 : 10) != 0)
                continue;
            const int number = drawn++;
            if (!every && !test_takes(number + number / 3)) // turn by turn another one of three
                continue;
            struct job job = {
                .model = *model,
                .transport = world == 1 && strcmp(transport, "threads") == 0 ? "self" : transport,
                .gather = way == SHARED ? "shared" : copying(stage, *turn),
                .world = world,
                .steps = SYNTHETIC_STEPS,
                .stage = stage,
                .prefetch = way == COPIED_ON_DEMAND ? ZERO_OFF : way % 3,
                .outcomes = outcomes,
            };
            take_turns(&job, *turn);
            run(&job, expected);
        }
    }
}

static void sweep(const struct synthetic *model, const char *transport)
{
    if (!test_takes_transport(transport))
        return;
    struct outcome *outcomes = team_shared(MOST_RANKS * sizeof *outcomes);
    assert_non_null(outcomes);
    struct job plain = plain_job(model, SYNTHETIC_STEPS, outcomes);
    run(&plain, NULL);
    check_golden(&plain, synthetic_golden(model));
    const struct outcome expected = outcomes[0];
    unsigned turn = (unsigned)model->dtype * 7 + (unsigned)model->micro_batches;
    for (int world = 1; world <= MOST_RANKS; world++)
        sweep_world(model, &expected, world, transport, outcomes, &turn);
    team_shared_free(outcomes, MOST_RANKS * sizeof *outcomes);
}

static void sweep_plain(zero_dtype dtype, int32_t micro_batches, const char *transport)
{
    const struct synthetic model = {.dtype = dtype, .micro_batches = micro_batches, .tied = true};
    sweep(&model, transport);
}

static void f32_threads(void **state)
{
    (void)state;
    sweep_plain(ZERO_F32, 5, "threads");
    sweep_plain(ZERO_F32, 8, "threads");
}

static void bf16_threads(void **state)
{
    (void)state;
    sweep_plain(ZERO_BF16, 5, "threads");
    sweep_plain(ZERO_BF16, 8, "threads");
}

static void mixed_threads(void **state)
{
    (void)state;
    sweep_plain(ZERO_DTYPE_DEFAULT, 8, "threads");
}

static void f16_threads(void **state)
{
    (void)state;
    sweep_plain(ZERO_F16, 5, "threads");
}

static void f32_processes(void **state)
{
    (void)state;
    sweep_plain(ZERO_F32, 5, "shm");
}

static void mixed_processes(void **state)
{
    (void)state;
    sweep_plain(ZERO_DTYPE_DEFAULT, 8, "shm");
}

// Blocks that end inside a round, with it, or rounds after it.
static void blocks_of_micro_batches(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2, .tied = true},
        {.dtype = ZERO_BF16, .micro_batches = 5, .sum_group = 4, .tied = true},
        {.dtype = ZERO_DTYPE_DEFAULT, .micro_batches = 8, .sum_group = 4, .tied = true},
        {.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 8, .tied = true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        sweep(&models[i], i % 2 ? "shm" : "threads");
}

// Tensors that are registered frozen; with a group that is frozen for a while whole units rest.
static void frozen_tensors(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.micro_batches = 8, .tied = true, .frozen = SYNTHETIC_TAIL | SYNTHETIC_TIED},
        {.dtype = ZERO_BF16,
         .micro_batches = 5,
         .tied = true,
         .frozen = SYNTHETIC_BIASES,
         .paused = 1},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        sweep(&models[i], i % 2 ? "shm" : "threads");
}

// Units without a gradient, on some ranks or on all, and groups that are frozen for some steps.
static void parts_that_rest(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.dtype = ZERO_F32, .micro_batches = 5, .tied = true, .absent = true},
        {.dtype = ZERO_DTYPE_DEFAULT, .micro_batches = 8, .tied = true, .paused = 1},
        {.dtype = ZERO_BF16, .micro_batches = 5, .tied = true, .absent = true, .paused = 2},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        sweep(&models[i], i % 2 ? "shm" : "threads");
}

// Fused steps, and some that are not; rounds that are full, and that are not.
static void fused_steps(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.dtype = ZERO_F32, .micro_batches = 5, .unclipped = true},
        {.dtype = ZERO_BF16, .micro_batches = 8, .unclipped = true},
        {.dtype = ZERO_DTYPE_DEFAULT, .micro_batches = 4, .unclipped = true},
        {.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2, .unclipped = true},
        {.dtype = ZERO_DTYPE_DEFAULT, .micro_batches = 8, .sum_group = 4, .unclipped = true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        sweep(&models[i], i % 2 ? "threads" : "shm");
}

// Types of gradients and of what travels; weights and moments rounded stochastically.
static void precisions(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.dtype = ZERO_BF16, .micro_batches = 5, .grad_dtype = ZERO_F32},
        {.dtype = ZERO_BF16, .micro_batches = 8, .grad_dtype = ZERO_F32, .comm_dtype = ZERO_BF16},
        {.micro_batches = 5, .sum_group = 2, .comm_dtype = ZERO_F16},
        {.dtype = ZERO_BF16, .micro_batches = 5, .no_masters = true},
        {.dtype = ZERO_F16, .micro_batches = 8, .no_masters = true, .narrow_moments = true},
        {.dtype = ZERO_F32, .micro_batches = 5, .narrow_moments = true},
        {.dtype = ZERO_F16,
         .micro_batches = 5,
         .sum_group = 2,
         .grad_dtype = ZERO_F32,
         .comm_dtype = ZERO_BF16,
         .no_masters = true,
         .narrow_moments = true},
        {.dtype = ZERO_F16,
         .micro_batches = 5,
         .grad_dtype = ZERO_BF16,
         .no_masters = true,
         .narrow_moments = true,
         .unclipped = true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        sweep(&models[i], i % 2 ? "shm" : "threads");
}

/* ------------------------------------------------------------------ the matrix */

enum dimension { OPTIMIZER, PRECISION, POLICY, STAGE, WORLD, FUSED, GATHER, TRANSPORT, DIMENSIONS };

static const char *only; // the optimizer all of whose jobs are run

static bool possible(const int *choice)
{
    const bool may_fuse = choice[POLICY] == MATRIX_UNCLIPPED || choice[POLICY] == MATRIX_PASSES;
    return (choice[FUSED] == 0 || may_fuse) && (choice[GATHER] == 0 || choice[STAGE] > 0);
}

static const struct pairs matrix = {
    .dims = DIMENSIONS,
    .sizes = {MATRIX_OPTIMIZERS, MATRIX_PRECISIONS, MATRIX_POLICIES, 4, MOST_RANKS, 2, 2, 2},
    .possible = possible,
};

static struct job matrix_job(const int *choice, unsigned turn, struct outcome *outcomes)
{
    const int world = 1 + choice[WORLD];
    struct job job = {
        .model = matrix_model(choice[OPTIMIZER], choice[PRECISION], choice[POLICY]),
        .transport = choice[TRANSPORT] ? "shm" : team_threads(world),
        .gather = choice[GATHER] ? "shared" : copying(choice[STAGE], turn),
        .world = world,
        .steps = MATRIX_STEPS,
        .stage = choice[STAGE],
        .prefetch = turn % 3 == 0 ? ZERO_OFF : (int32_t)(turn % 3),
        .outcomes = outcomes,
    };
    take_turns(&job, turn);
    job.model.fused = choice[FUSED];
    if (job.model.fused)
        job.verify_micro = 0; // which fused steps can't have
    return job;
}

// The plain way of a choice's model, whose fingerprint is the one written down.
static struct outcome matrix_outcome(const int *choice, struct outcome *outcomes)
{
    const struct synthetic model =
        matrix_model(choice[OPTIMIZER], choice[PRECISION], choice[POLICY]);
    struct job job = plain_job(&model, MATRIX_STEPS, outcomes);
    run(&job, NULL);
    check_golden(&job, matrix_golden(choice[OPTIMIZER], choice[PRECISION], choice[POLICY]));
    return outcomes[0];
}

static void part_of_matrix(void **state)
{
    (void)state;
    struct outcome *outcomes = team_shared(MOST_RANKS * sizeof *outcomes);
    assert_non_null(outcomes);
    struct pairs sweep = matrix;
    int choice[PAIRS_DIMS];
    unsigned turn = 0;
    for (; pairs_next(&sweep, choice); turn++) {
        if (!test_takes((int)turn))
            continue;
        struct job job = matrix_job(choice, turn, outcomes);
        run(&job, NULL);
        check_golden(&job, matrix_golden(choice[OPTIMIZER], choice[PRECISION], choice[POLICY]));
    }
    print_message("%u jobs\n", turn);
    team_shared_free(outcomes, MOST_RANKS * sizeof *outcomes);
}

static void matrix_of_one_optimizer(void **state)
{
    (void)state;
    struct outcome *outcomes = team_shared(MOST_RANKS * sizeof *outcomes);
    assert_non_null(outcomes);
    const int optimizer = matrix_find(matrix_optimizers, MATRIX_OPTIMIZERS, only);
    struct outcome expected = {0};
    int choice[PAIRS_DIMS], precision = -1, policy = -1;
    unsigned turn = 0;
    assert_true(optimizer >= 0);
    for (pairs_begin(&matrix, choice); pairs_each(&matrix, choice); turn++) {
        if (choice[OPTIMIZER] != optimizer)
            continue;
        if (choice[PRECISION] != precision || choice[POLICY] != policy)
            expected = matrix_outcome(choice, outcomes);
        precision = choice[PRECISION];
        policy = choice[POLICY];
        struct job job = matrix_job(choice, turn, outcomes);
        run(&job, &expected);
    }
    team_shared_free(outcomes, MOST_RANKS * sizeof *outcomes);
}

static void print_policies(int optimizer, int precision)
{
    static struct outcome outcomes[MOST_RANKS];
    char digests[MATRIX_POLICIES][33];
    for (int policy = 0; policy < MATRIX_POLICIES; policy++) {
        const struct synthetic model = matrix_model(optimizer, precision, policy);
        struct job job = plain_job(&model, MATRIX_STEPS, outcomes);
        run(&job, NULL);
        hex(outcomes[0].digest, digests[policy]);
    }
    printf("        {\"%s\", \"%s\", // %s\n         \"%s\", \"%s\"},\n", digests[0], digests[1],
           matrix_precisions[precision], digests[2], digests[3]);
}

// As synthetic_matrix.c has them.
static void print_golden(void **state)
{
    (void)state;
    for (int o = 0; o < MATRIX_OPTIMIZERS; o++) {
        if (only && strcmp(only, matrix_optimizers[o]) != 0)
            continue;
        printf("    {\n        // %s\n", matrix_optimizers[o]);
        for (int p = 0; p < MATRIX_PRECISIONS; p++)
            print_policies(o, p);
        printf("    },\n");
    }
}

static int run_all(int argc, char **argv)
{
    const struct CMUnitTest part[] = {cmocka_unit_test(part_of_matrix)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(matrix_of_one_optimizer)};
    const struct CMUnitTest golden[] = {cmocka_unit_test(print_golden)};
    only = argc > 2 ? argv[2] : NULL;
    if (argc > 1 && strcmp(argv[1], "golden") == 0)
        return cmocka_run_group_tests(golden, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "matrix") == 0)
        return only ? cmocka_run_group_tests(whole, NULL, NULL)
                    : cmocka_run_group_tests(part, NULL, NULL);
    every = argc > 1 && strcmp(argv[1], "all") == 0;
    const bool precision = argc > 1 && strcmp(argv[1], "precision") == 0;
    const struct CMUnitTest narrow[] = {
        cmocka_unit_test(f16_threads),
        cmocka_unit_test(precisions),
    };
    if (every || precision) {
        const int failed = cmocka_run_group_tests(narrow, NULL, NULL);
        if (failed || precision)
            return failed;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_threads),     cmocka_unit_test(bf16_threads),
        cmocka_unit_test(mixed_threads),   cmocka_unit_test(f32_processes),
        cmocka_unit_test(mixed_processes), cmocka_unit_test(blocks_of_micro_batches),
        cmocka_unit_test(parts_that_rest), cmocka_unit_test(frozen_tensors),
        cmocka_unit_test(fused_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (!temporary_make(&directory))
        return 1;
    const int failed = run_all(argc, argv);
    // What has ended well has left nothing.
    const int left = temporary_entries(&directory);
    temporary_remove(&directory);
    if (left > 0)
        fprintf(stderr, "%d files are left\n", left);
    return failed ? failed : left > 0;
}
