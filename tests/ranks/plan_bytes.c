/* Every byte of the plan is allocated by zero_commit(), and no other: arenas and private memory row
 * by row, tables by counting what base_calloc() and base_aligned_alloc() gave. Linked with --wrap=
 * those and base_free. */
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include "base/arena.h"
#include "zero/core/context.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, MOST_PIECES = 16384, OWN = 3000 };

/* ------------------------------------------------------------------ what was allocated */

static struct {
    pthread_mutex_t mutex;
    struct {
        void *memory;
        size_t bytes;
    } pieces[MOST_PIECES];
    size_t count, bytes, most;
    bool full;
} live = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void *__real_base_calloc(size_t count, size_t size);
void *__real_base_aligned_alloc(size_t alignment, size_t size);
void __real_base_free(void *memory);
void *__wrap_base_calloc(size_t count, size_t size);
void *__wrap_base_aligned_alloc(size_t alignment, size_t size);
void __wrap_base_free(void *memory);

static void note(void *memory, size_t bytes)
{
    pthread_mutex_lock(&live.mutex);
    live.full = live.full || live.count == MOST_PIECES;
    if (memory && !live.full) {
        live.pieces[live.count].memory = memory;
        live.pieces[live.count++].bytes = bytes;
        live.bytes += bytes;
        live.most = live.bytes > live.most ? live.bytes : live.most;
    }
    pthread_mutex_unlock(&live.mutex);
}

void *__wrap_base_calloc(size_t count, size_t size)
{
    void *memory = __real_base_calloc(count, size);
    note(memory, count * size);
    return memory;
}

void *__wrap_base_aligned_alloc(size_t alignment, size_t size)
{
    void *memory = __real_base_aligned_alloc(alignment, size);
    note(memory, size);
    return memory;
}

void __wrap_base_free(void *memory)
{
    pthread_mutex_lock(&live.mutex);
    for (size_t i = live.count; memory && i-- > 0;)
        if (live.pieces[i].memory == memory) {
            live.bytes -= live.pieces[i].bytes;
            live.pieces[i] = live.pieces[--live.count];
            break;
        }
    pthread_mutex_unlock(&live.mutex);
    __real_base_free(memory);
}

static size_t live_bytes(void)
{
    pthread_mutex_lock(&live.mutex);
    const size_t bytes = live.bytes;
    pthread_mutex_unlock(&live.mutex);
    return bytes;
}

/** The most since the last call, which this one begins anew. */
static size_t most_bytes(void)
{
    pthread_mutex_lock(&live.mutex);
    const size_t most = live.most;
    live.most = live.bytes;
    pthread_mutex_unlock(&live.mutex);
    return most;
}

/* ------------------------------------------------------------------ a job */

/** What a job asks for beside its stage. */
struct options {
    const char *name, *gather, *reduction, *master, *moments, *loss_scale;
    zero_dtype dtype, comm_dtype;
    int sum_group, paranoid, verify_micro;
    unsigned frozen;
    bool own; /**< a tensor in the caller's memory */
    bool optimizers;
    bool nvme, params, grads; /**< state in a file, and working copies and sums, too */
    const char *compress;
};

struct job {
    const struct options *options;
    struct toy toy;
    int stage;
    pthread_barrier_t barrier;
    size_t before, after;     /**< of all ranks */
    size_t known[MOST_RANKS]; /**< tables, as planned, and the plan as JSON */
};

static struct temporary directory;
static float own_weights[MOST_RANKS][OWN], own_gradients[MOST_RANKS][OWN];

static bool open_job(struct team_rank *rank, const struct job *job)
{
    const struct options *options = job->options;
    rank->config.stage = job->stage;
    rank->config.gather = options->gather;
    rank->config.reduction = options->reduction;
    rank->config.master = options->master;
    rank->config.moments = options->moments;
    rank->config.loss_scale = options->loss_scale;
    rank->config.comm_dtype = options->comm_dtype;
    rank->config.sum_group = options->sum_group;
    rank->config.paranoid = options->paranoid;
    rank->config.verify_micro = options->verify_micro;
    rank->config.micro_batches = 2 * rank->world;
    rank->config.open_units = 2;
    rank->config.grad_units = 2;
    rank->config.offload_optimizer = options->nvme ? "nvme" : NULL;
    rank->config.offload_params = options->params ? "nvme" : NULL;
    rank->config.offload_grads = options->grads ? "nvme" : NULL;
    rank->config.nvme_dir = options->nvme ? directory.directory : NULL;
    rank->config.tile_bytes = options->nvme ? 65536 : 0;
    rank->config.io = options->nvme ? "sync" : NULL;
    rank->config.compress = options->compress;
    if (!team_open(rank) || !toy_register(rank, &job->toy))
        return false;
    if (!options->own)
        return true;
    zero_param_desc desc = zero_param_vector("own", OWN, NULL);
    desc.unit = job->toy.unit_count;
    desc.borrow = job->stage < 3 ? own_weights[rank->rank] : NULL;
    desc.grad = job->stage < 2 ? own_gradients[rank->rank] : NULL;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    return true;
}

/** What all ranks have while none allocates. */
static size_t count_all(struct job *job)
{
    pthread_barrier_wait(&job->barrier);
    const size_t bytes = live_bytes();
    pthread_barrier_wait(&job->barrier);
    return bytes;
}

/** Also an arena of nothing has an address. */
static bool is_arena(const struct coll_arena *arena, size_t bytes)
{
    return coll_arena_size(arena) == (bytes ? bytes : 1);
}

/** Parts of so many bytes, one a rank, may have a byte more. */
static bool rounds_up(size_t parts, size_t bytes)
{
    return parts >= bytes && parts - bytes < MOST_RANKS;
}

static bool rows_are_allocated(const zero_ctx *z)
{
    const struct eng_spread *rows = z->plan.rows;
    size_t total = 0;
    for (int i = 0; i < ENG_PURPOSES; i++)
        total += rows[i].mine;
    TEAM_CHECK(z->plan.total.mine == total);
    const struct eng_spread *params = &rows[ENG_FOR_PARAMS];
    TEAM_CHECK(coll_arena_size(z->memory.params_arena) ==
               (z->config.shared ? params->sum : params->mine));
    TEAM_CHECK(is_arena(z->memory.grads_arena, rows[ENG_FOR_GRADIENTS].mine));
    // What is read from a file is read by peers, if it is a working copy, and by none, if a sum.
    size_t own =
        rows[ENG_FOR_BLOCKS].mine + rows[ENG_FOR_MOMENTS].mine + rows[ENG_FOR_MASTERS].mine;
    if (z->config.host_slots)
        TEAM_CHECK(rounds_up(rows[ENG_FOR_GATHERED].sum, coll_arena_size(z->memory.slots_arena)));
    else if (z->config.params_nvme)
        TEAM_CHECK(is_arena(z->memory.slots_arena, rows[ENG_FOR_GATHERED].mine));
    else
        own += rows[ENG_FOR_GATHERED].mine;
    if (z->config.grads_nvme)
        own += rows[ENG_FOR_SUMS].mine;
    else
        TEAM_CHECK(is_arena(z->memory.sums_arena, rows[ENG_FOR_SUMS].mine));
    TEAM_CHECK(z->memory.private_memory.size == own);
    TEAM_CHECK(z->memory.private_memory.used == z->memory.private_memory.size);
    struct coll_counters counters;
    coll_counters(z->comm, &counters);
    TEAM_CHECK(rows[ENG_FOR_TRANSPORT].mine == counters.memory_bytes);
    return true;
}

static bool commit_and_count(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const bool opened = open_job(rank, job);
    const size_t before = count_all(job);
    const zero_result committed = opened ? zero_commit(rank->z) : ZERO_E_STATE;
    const size_t after = count_all(job);
    TEAM_CHECK(opened);
    TEAM_OK(rank, committed);
    if (rank->rank == 0) {
        job->before = before;
        job->after = after;
    }
    job->known[rank->rank] =
        rank->z->plan.rows[ENG_FOR_TABLES].mine + strlen(zero_plan_json(rank->z)) + 1;
    return rows_are_allocated(rank->z);
}

/* ------------------------------------------------------------------ all of them */

static const struct toy_tensor many[] = {
    {.name = "stack", .unit = 0, .slices = 40, .numel = 3000},
    {.name = "small", .unit = 3, .slices = 20, .numel = 9, .group = 1, .wide = true},
};
static const struct toy large = {.tensors = many, .tensor_count = 2, .unit_count = 40};

static const struct options all[] = {
    {.name = "copy", .gather = "copy"},
    {.name = "shared", .gather = "auto"},
    {.name = "slots", .gather = "slots", .dtype = ZERO_BF16},
    {.name = "bf16", .gather = "copy", .dtype = ZERO_BF16},
    {.name = "no masters, moments of 16 bits",
     .gather = "auto",
     .dtype = ZERO_BF16,
     .master = "none",
     .moments = "bf16"},
    {.name = "f16 on its way", .gather = "copy", .comm_dtype = ZERO_F16, .loss_scale = "off"},
    {.name = "frozen", .gather = "copy", .dtype = ZERO_BF16, .frozen = 1},
    {.name = "caller's memory", .gather = "auto", .own = true},
    {.name = "verify_micro", .gather = "copy", .verify_micro = 1},
    {.name = "paranoid",
     .gather = "auto",
     .dtype = ZERO_F16,
     .loss_scale = "off",
     .comm_dtype = ZERO_F32,
     .paranoid = 1},
    {.name = "local", .gather = "copy", .reduction = "local"},
    {.name = "blocks", .gather = "auto", .sum_group = 4},
    {.name = "several optimizers", .gather = "copy", .optimizers = true},
    {.name = "state in a file", .gather = "copy", .nvme = true},
    {.name = "working copies in a file",
     .gather = "copy",
     .nvme = true,
     .params = true,
     .compress = "on"},
    {.name = "sums in a file",
     .gather = "copy",
     .sum_group = 4,
     .nvme = true,
     .grads = true,
     .compress = "off"},
};

/** What was allocated beside what is known, for all ranks together. */
static size_t beside(const struct options *options, const struct toy *toy, int world, int stage)
{
    zero_group_desc groups[] = {zero_group_default(), zero_group_default()};
    groups[1].optimizer = "sgd";
    struct job job = {.options = options, .toy = *toy, .stage = stage};
    job.toy.dtype = options->dtype;
    job.toy.frozen = options->frozen;
    job.toy.groups = options->optimizers ? groups : NULL;
    pthread_barrier_init(&job.barrier, NULL, (unsigned)world);
    if (!team_run(team_threads(world), world, commit_and_count, &job))
        fail_msg("%s, world %d, stage %d", options->name, world, stage);
    pthread_barrier_destroy(&job.barrier);
    assert_false(live.full);
    size_t bytes = job.after - job.before;
    for (int r = 0; r < world; r++)
        bytes -= job.known[r];
    return bytes;
}

/** Options of one number have the same arenas, those of codecs included, which the plan counts
 * among the tables. */
static int kind_of(const struct options *options, int stage)
{
    if (strcmp(options->gather, "slots") == 0)
        return 5;
    if (options->nvme)
        return options->params ? 2 : options->grads ? 3 : 4;
    return stage > 0 && strcmp(options->gather, "auto") == 0;
}

/** The plan as text, and what the transport keeps of each arena, which is a little less if it is
 * shared, do not depend on the model. */
static void the_plan_is_exact(void **state)
{
    (void)state;
    assert_true(temporary_make(&directory));
    for (int world = 1; world <= MOST_RANKS; world += 2) {
        size_t expected[6] = {0};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            for (int stage = all[i].grads; stage <= (all[i].reduction ? 1 : 3); stage++)
                for (int m = 0; m < 2; m++) {
                    if (stage < 3 && strcmp(all[i].gather, "slots") == 0)
                        continue;
                    const size_t bytes = beside(&all[i], m ? &large : &toy_odd, world, stage);
                    size_t *same = &expected[kind_of(&all[i], stage)];
                    if (*same == 0)
                        *same = bytes;
                    if (bytes != *same)
                        fail_msg("%s, world %d, stage %d, model %d: %zu bytes, not %zu",
                                 all[i].name, world, stage, m, bytes, *same);
                }
    }
    temporary_remove(&directory);
}

/* ------------------------------------------------------------------ loading */

enum { ATTACHED = 3 << 20, PER_RANK = 100000 };

static unsigned char attached[MOST_RANKS][ATTACHED + PER_RANK];

struct loading {
    pthread_barrier_t barrier;
    bool attaches;
    int stage;
    size_t planned, most; // of all ranks
};

static bool load_and_count(struct team_rank *rank, void *user)
{
    struct loading *loading = user;
    char path[sizeof directory.directory + 32];
    unsigned char *memory = attached[rank->rank];
    rank->config.stage = loading->stage;
    rank->config.micro_batches = rank->world;
    TEAM_CHECK(team_open(rank) && toy_register(rank, &large));
    if (loading->attaches) {
        TEAM_OK(rank, zero_attach(rank->z, "global", memory, ATTACHED, ZERO_GLOBAL));
        TEAM_OK(rank, zero_attach(rank->z, "own", memory + ATTACHED, PER_RANK, ZERO_OF_RANK));
    }
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    TEAM_OK(rank, zero_save_wait(rank->z));
    snprintf(path, sizeof path, "%s/step-00000000", directory.directory);
    pthread_barrier_wait(&loading->barrier);
    if (rank->rank == 0) {
        loading->planned = rank->z->plan.loading.sum;
        most_bytes();
        loading->most = live_bytes();
    }
    pthread_barrier_wait(&loading->barrier);
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    pthread_barrier_wait(&loading->barrier);
    if (rank->rank == 0)
        loading->most = most_bytes() - loading->most;
    return true;
}

static struct loading count_loading(int world, int stage, bool attaches)
{
    struct loading loading = {.attaches = attaches, .stage = stage};
    assert_true(temporary_make(&directory));
    pthread_barrier_init(&loading.barrier, NULL, (unsigned)world);
    assert_true(team_run(team_threads(world), world, load_and_count, &loading));
    pthread_barrier_destroy(&loading.barrier);
    temporary_remove(&directory);
    assert_false(live.full);
    return loading;
}

/** What is attached is there twice while a checkpoint is loaded, and the plan says so. The memory
 * of libzstd and of JSON is not counted here, and nothing is converted. */
static void loading_takes_no_more_than_planned(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world += 2)
        for (int stage = 0; stage <= 3; stage += 3) {
            const struct loading without = count_loading(world, stage, false);
            const struct loading with = count_loading(world, stage, true);
            const size_t ranks = (size_t)world, bytes = ranks * (ATTACHED + PER_RANK);
            assert_in_range(without.most, without.planned / 3, without.planned);
            assert_in_range(with.most, bytes + without.planned / 3, with.planned);
            assert_int_equal(with.planned - without.planned, bytes);
            if (world == 1) // the most of several ranks is not of the same moment every time
                assert_in_range(with.most - without.most, bytes, bytes + 8192);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_exact),
        cmocka_unit_test(loading_takes_no_more_than_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
