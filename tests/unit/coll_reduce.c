// Reduce-scatter and all-reduce against a scalar reference, bit by bit: every dtype, many worlds,
// counts, shapes, alignments, kinds of memory, stores in the caches and past them; sum_group; what
// the tile function and the finite check see. Without an argument a part of the sweep, the same
// each time; with "all" the whole.

#include "base/fault.h"
#include "collectives/host/host.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_reference.h"
#include "tests/unit/coll_shapes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_WORLD = 8, PAD = 16 };

static bool everything;

/** Bytes of the longest vector, and some beside. */
static size_t room(void)
{
    const size_t most = everything ? 1048579 : 65537;
    return (most + 2 * PAD) * sizeof(double);
}

/** How peers get at memory outside arenas. */
static const struct way {
    const char *transport, *fault;
} ways[] = {{"threads", NULL}, {"shm", NULL},   {"shm", "shm.peek@1"},  {"tcp:threads", NULL},
            {"tcp", NULL},     {"hosts", NULL}, {"hosts", "shm.peek@1"}};

enum { MOST_BY_TCP = 3 };

/** Which memory is private; what is not lies in an arena. */
enum privacy { NONE, ODD_RANKS, ALL_RANKS, PRIVACIES };

/** One call, the same on all ranks. */
struct config {
    zero_dtype dtype;
    size_t count;
    enum shape shape;
    size_t shift; /**< elements from an aligned address */
    enum privacy privacy;
    bool store, past;
    int badness; /**< of the contributions */
    int contributors;
    enum base_op op; /**< of an all-reduce */
    bool in_place;
    uint32_t seed;
};

/** What a rank of a sweep has. */
struct bench {
    struct coll_comm *comm;
    int rank, world;
    unsigned char *source, *result;     /**< in arenas */
    unsigned char *own, *own_result;    /**< private */
    unsigned char *expected, *contents; /**< of the reference */
    unsigned char *shown;               /**< what the tile function saw */
};

static bool setup(struct bench *bench, struct coll_comm *comm)
{
    struct coll_arena *source, *result;
    *bench = (struct bench){
        .comm = comm, .rank = coll_rank(comm), .world = coll_world(comm), .own = malloc(room())};
    CHECK_OK(comm, coll_arena_create(comm, room(), &source, NULL));
    CHECK_OK(comm, coll_arena_create(comm, room(), &result, NULL));
    bench->source = coll_arena_base(source);
    bench->result = coll_arena_base(result);
    bench->own_result = malloc(room());
    bench->expected = malloc(room());
    bench->contents = malloc(room());
    bench->shown = malloc(room());
    CHECK(bench->own && bench->own_result && bench->expected && bench->contents && bench->shown);
    return true;
}

static void teardown(struct bench *bench)
{
    free(bench->own);
    free(bench->own_result);
    free(bench->expected);
    free(bench->contents);
    free(bench->shown);
}

/** What is not finite in a rank's contribution. */
enum badness { NOTHING, ONE_LATE, MANY };

static uint32_t seed_of(const struct config *config, int contribution)
{
    return mix(config->seed, (uint32_t)contribution, 11);
}

/** The elements first .. first+n-1 of a contribution, or of one that is no rank's. */
static void contribute(const struct config *config, int contribution, void *to, size_t first,
                       size_t n)
{
    const size_t size = dtype_bytes(config->dtype), late = config->count - config->count / 8;
    fill_elements(config->dtype, to, first, n, seed_of(config, contribution),
                  config->badness != MANY);
    if (config->badness == ONE_LATE && late >= first && late < first + n)
        memset((unsigned char *)to + (late - first) * size, 0xff, size);
}

static bool is_private(const struct config *config, int rank)
{
    return config->privacy == ALL_RANKS || (config->privacy == ODD_RANKS && rank % 2 == 1);
}

/** Results at and beyond the threshold are stored past the caches. */
static void set_threshold(const struct bench *bench, const struct config *config)
{
    coll_host_of(bench->comm)->core_bytes = config->past ? 0 : SIZE_MAX;
}

/** Bytes beside a result, that no rank writes. */
static void mark(unsigned char *memory, size_t bytes)
{
    memset(memory, 0xee, PAD);
    memset(memory + bytes - PAD, 0xee, PAD);
}

static bool marked(const unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < PAD; i++)
        if (memory[i] != 0xee || memory[bytes - 1 - i] != 0xee)
            return false;
    return true;
}

/* ------------------------------------------------------------------ reduce-scatter */

/** What the two functions of a reduce-scatter have seen. */
struct seen {
    struct bench *bench;
    const struct config *config;
    size_t next;                  /**< element that the tile function is to be shown next */
    size_t nonfinite[MOST_WORLD]; /**< of each contributor, SIZE_MAX: none */
    bool half;                    /**< take_tile() leaves something */
    bool good;
};

static void see_tile(void *user, size_t first, size_t count, const void *sum)
{
    struct seen *seen = user;
    const size_t size = sum_bytes(seen->config->dtype);
    seen->good &= first == seen->next && first % 1024 == 0 && count > 0;
    memcpy(seen->bench->shown + first * size, sum, count * size);
    seen->next = first + count;
}

/** Adds up what it is offered: all of it, or, where no rank keeps the sum, only the first half. */
static size_t take_tile(void *user, size_t first, size_t count,
                        const struct coll_contributions *from)
{
    struct seen *seen = user;
    const zero_dtype dtype = from->dtype;
    const size_t size = sum_bytes(dtype);
    const size_t taken = seen->half ? count / 2048 * 1024 : count;
    unsigned char *sum = seen->bench->shown + first * size;
    seen->good &= first == seen->next && count > 0 && dtype == seen->config->dtype &&
                  (from->before == NULL) == seen->config->store;
    if (from->before)
        memcpy(sum, from->before, taken * size);
    for (int k = 0; k < from->count; k++)
        combine(BASE_SUM, dtype, sum,
                (const unsigned char *)from->sources[k] + from->first * dtype_bytes(dtype), taken,
                !from->before && k == 0);
    seen->next = first + taken;
    return taken;
}

static void see_nonfinite(void *user, int contributor, size_t element)
{
    struct seen *seen = user;
    seen->good &= seen->nonfinite[contributor] == SIZE_MAX && element >= seen->next;
    seen->nonfinite[contributor] = element;
}

/** What the accumulator is to be after the call; checks what was said of contributions. */
static bool expect(struct bench *bench, const struct config *config, const struct coll_span *span,
                   const struct seen *seen)
{
    for (int k = 0; k < config->contributors; k++) {
        size_t bad = SIZE_MAX;
        contribute(config, k, bench->contents, span->offset, span->count);
        combine(BASE_SUM, config->dtype, bench->expected, bench->contents, span->count,
                config->store && k == 0);
        for (size_t i = span->count; i-- > 0;)
            bad = is_finite(config->dtype, bench->contents, i) ? bad : i;
        CHECK(seen->nonfinite[k] == bad);
    }
    finish(config->dtype, bench->expected, span->count);
    return true;
}

static bool reduce_once(struct bench *bench, const struct config *config)
{
    const int rank = bench->rank;
    const size_t wide = sum_bytes(config->dtype);
    struct coll_span spans[MOST_WORLD];
    deal_shape(spans, bench->world, config->count, config->shape, config->shift);
    const size_t bytes = spans[rank].count * wide;
    unsigned char *source = is_private(config, rank) ? bench->own : bench->source;
    unsigned char *accumulator = bench->own_result + PAD + config->shift * wide;
    mark(accumulator - PAD, bytes + 2 * PAD);
    fill_elements(base_accumulator_dtype(config->dtype), accumulator, 0, spans[rank].count,
                  seed_of(config, 99), config->badness != MANY);
    memcpy(bench->expected, accumulator, bytes);
    contribute(config, rank, source, 0, config->count + config->shift);
    set_threshold(bench, config);
    const bool look = config->seed % 4 != 0, shown_only = config->store && config->seed % 4 == 1;
    const bool take = look && config->badness == NOTHING && config->seed % 3 == 0;
    struct seen seen = {.bench = bench, .config = config, .half = shown_only, .good = true};
    memset(seen.nonfinite, 0xff, sizeof seen.nonfinite);
    struct coll_request request = {0};
    if (shown_only || take)
        memcpy(bench->contents, accumulator, bytes);
    const struct coll_reduce_scatter op = {.source = source,
                                           .dtype = config->dtype,
                                           .spans = spans,
                                           .accumulator = shown_only ? NULL : accumulator,
                                           .contributors = config->contributors,
                                           .together = config->seed % 5 == 0,
                                           .store = config->store,
                                           .tile = look ? see_tile : NULL,
                                           .take = take ? take_tile : NULL,
                                           .nonfinite = see_nonfinite,
                                           .user = &seen,
                                           .label = {.what = "sum", .number = config->seed}};
    CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, &request));
    CHECK_OK(bench->comm, coll_wait(bench->comm, &request));
    CHECK(seen.good && seen.next == (look ? spans[rank].count : 0));
    CHECK(!(shown_only || take) || memcmp(accumulator, bench->contents, bytes) == 0);
    CHECK(expect(bench, config, &spans[rank], &seen));
    CHECK(shown_only || take || memcmp(accumulator, bench->expected, bytes) == 0);
    CHECK(!look || memcmp(bench->shown, bench->expected, bytes) == 0);
    CHECK(marked(accumulator - PAD, bytes + 2 * PAD));
    CHECK_OK(bench->comm, coll_drain(bench->comm, &request));
    return true;
}

/* ------------------------------------------------------------------ all-reduce */

static bool all_reduce_once(struct bench *bench, const struct config *config)
{
    const bool own = is_private(config, bench->rank);
    const size_t size = dtype_bytes(config->dtype), bytes = config->count * size;
    unsigned char *source = (own ? bench->own : bench->source) + PAD + config->shift * size;
    // The result may be of another kind than the source.
    unsigned char *result =
        config->in_place ? source
                         : (own != (config->seed % 3 == 0) ? bench->own_result : bench->result) +
                               PAD + (config->shift ^ 1) * size;
    mark(result - PAD, bytes + 2 * PAD);
    contribute(config, bench->rank, source, 0, config->count);
    set_threshold(bench, config);
    struct coll_request request = {0};
    const struct coll_all_reduce op = {.source = source,
                                       .result = result,
                                       .count = config->count,
                                       .dtype = config->dtype,
                                       .op = config->op,
                                       .label = {.what = "vector", .number = config->seed}};
    CHECK_OK(bench->comm, coll_all_reduce_start(bench->comm, &op, &request));
    CHECK_OK(bench->comm, coll_wait(bench->comm, &request));
    for (int k = 0; k < bench->world; k++) {
        contribute(config, k, bench->contents, 0, config->count);
        CHECK(k != bench->rank || config->in_place || memcmp(source, bench->contents, bytes) == 0);
        combine(config->op, config->dtype, bench->expected, bench->contents, config->count, k == 0);
    }
    finish(config->dtype, bench->expected, config->count);
    narrow(config->dtype, bench->contents, bench->expected, config->count);
    CHECK(memcmp(result, bench->contents, bytes) == 0);
    CHECK(marked(result - PAD, bytes + 2 * PAD));
    // Complete is drained: the source can be filled anew without a word to the others.
    CHECK(coll_drained(bench->comm, &request));
    CHECK_OK(bench->comm, coll_drain(bench->comm, &request));
    return true;
}

/* ------------------------------------------------------------------ sweeps */

static const size_t counts[] = {0, 1, 3, 15, 16, 17, 255, 4095, 4096, 4097, 65535, 65537, 1048579};

/** Whether call i of a sweep is made. The whole sweep has every dtype, world, count, shape, kind of
 * memory and alignment, each with some of the twelve ways to store what is good or bad; without
 * "all" it is some of those. */
static bool chosen(const struct config *config, uint32_t i)
{
    const uint32_t kinds = SHAPES * PRIVACIES * 2, way = i / kinds;
    const uint32_t draw = mix(config->seed, 21, 22);
    const uint32_t kind = mix((uint32_t)config->count, (uint32_t)config->dtype, i % kinds);
    if (config->count > 65537)
        return everything && draw % 256 == 0;
    if (everything)
        return config->count <= 4097 ? way % 4 == kind % 4 : way == kind % 12;
    const uint32_t rare = config->count <= 4097 ? 120 : 600;
    return draw % (rare * TEST_STRIDE) == rare * TEST_PART;
}

static bool sweep_count(struct bench *bench, zero_dtype dtype, size_t count,
                        bool (*once)(struct bench *bench, const struct config *config))
{
    const int world = bench->world, contributors[] = {world, world - 1, 1};
    bool good = true;
    for (uint32_t i = 0; i < SHAPES * PRIVACIES * 24 && good; i++) {
        struct config config = {
            .dtype = dtype,
            .count = count,
            .shape = (enum shape)(i % SHAPES),
            .privacy = (enum privacy)(i / SHAPES % PRIVACIES),
            .shift = i / (SHAPES * PRIVACIES) % 2,
            .store = i / (SHAPES * PRIVACIES * 2) % 2,
            .past = i / (SHAPES * PRIVACIES * 4) % 2,
            .badness = (int)(i / (SHAPES * PRIVACIES * 8)),
        };
        config.seed = mix(mix((uint32_t)dtype, (uint32_t)count, i), (uint32_t)world, 1);
        config.contributors = contributors[world > 2 ? config.seed % 3 : 0];
        config.op = (enum base_op)(i % SHAPES % 3);
        config.in_place = config.store;
        good = !chosen(&config, i) || once(bench, &config);
        if (!good)
            fprintf(
                stderr,
                "rank %d of %d: dtype %d, count %zu, shape %d, privacy %d, shift %zu, store %d, "
                "past %d, badness %d, contributors %d, op %d\n",
                bench->rank, world, (int)dtype, count, (int)config.shape, (int)config.privacy,
                config.shift, config.store, config.past, config.badness, config.contributors,
                (int)config.op);
    }
    return good;
}

static bool sweep_rank(struct coll_comm *comm, void *user)
{
    bool (*const *once)(struct bench * bench, const struct config *config) = user;
    struct bench bench;
    bool good = setup(&bench, comm);
    for (int dtype = FIRST_DTYPE; dtype <= LAST_DTYPE; dtype++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts && good; c++)
            good = sweep_count(&bench, (zero_dtype)dtype, counts[c], *once);
    teardown(&bench);
    return good;
}

static void over_worlds(rank_fn fn, void *user)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 7, 8};
    assert_true(run_ranks("self", 1, 0, fn, user));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
            const bool tcp = strncmp(ways[w].transport, "tcp", 3) == 0 ||
                             strcmp(ways[w].transport, "hosts") == 0;
            if (!test_takes_transport(ways[w].transport) || (tcp && worlds[i] > MOST_BY_TCP))
                continue;
            assert_int_equal(base_fault_set(worlds[i] > 1 ? ways[w].fault : NULL, NULL), ZERO_OK);
            assert_true(
                run_ranks(ways[w].transport, worlds[i], 60 * UINT64_C(1000000000), fn, user));
            assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
        }
}

static void reduce_scatter(void **state)
{
    (void)state;
    bool (*once)(struct bench * bench, const struct config *config) = reduce_once;
    over_worlds(sweep_rank, &once);
}

static void all_reduce(void **state)
{
    (void)state;
    bool (*once)(struct bench * bench, const struct config *config) = all_reduce_once;
    over_worlds(sweep_rank, &once);
}

/* ------------------------------------------------------------------ many calls, one accumulator */

enum { SEQUENCE_COUNT = 5001 };

/** A sequence of contributions, numbered as they are summed, in as many calls as it takes. */
struct sequence {
    int contributions;
    uint32_t group; /**< sum_group; 1: plain calls */
    bool past;
    bool shown_only; /**< a single call has no accumulator */
};

static void expect_sequence(struct bench *bench, const struct sequence *sequence,
                            const struct coll_span *span)
{
    float *sum = (float *)(void *)bench->expected, *block = (float *)(void *)bench->shown;
    for (int number = 0; number < sequence->contributions; number++) {
        const uint32_t place = (uint32_t)number % sequence->group;
        fill_elements(ZERO_BF16, bench->contents, span->offset, span->count,
                      mix(77, (uint32_t)number, 1), true);
        combine(BASE_SUM, ZERO_BF16, block, bench->contents, span->count, place == 0);
        finish(ZERO_BF16, block, span->count);
        if (place + 1 == sequence->group || number + 1 == sequence->contributions) {
            combine(BASE_SUM, ZERO_F32, sum, block, span->count,
                    (uint32_t)number < sequence->group);
            finish(ZERO_F32, sum, span->count);
        }
    }
}

/** The calls of a sequence; every rank but those of a partial last round contributes to each. */
static bool run_sequence(struct bench *bench, const struct sequence *sequence)
{
    const int world = bench->world;
    const struct config config = {
        .count = SEQUENCE_COUNT, .shape = UNEVEN, .past = sequence->past, .dtype = ZERO_BF16};
    struct coll_span spans[MOST_WORLD];
    deal_shape(spans, world, config.count, config.shape, config.shift);
    set_threshold(bench, &config);
    memset(bench->own_result, 0xff, SEQUENCE_COUNT * sizeof(float));
    struct seen seen = {.bench = bench, .config = &config, .good = true};
    memset(seen.nonfinite, 0xff, sizeof seen.nonfinite);
    const bool shown_only = sequence->shown_only && sequence->contributions <= world;
    for (int first = 0; first < sequence->contributions; first += world) {
        const int left = sequence->contributions - first;
        const bool grouped = sequence->group > 1, last = left <= world;
        fill_elements(ZERO_BF16, bench->source, 0, SEQUENCE_COUNT,
                      mix(77, (uint32_t)(first + bench->rank), 1), true);
        struct coll_request request = {0};
        const struct coll_reduce_scatter op = {
            .source = bench->source,
            .dtype = ZERO_BF16,
            .spans = spans,
            .accumulator = shown_only ? NULL : bench->own_result,
            .contributors = last ? left : world,
            .store = first == 0,
            .sum_group = sequence->group,
            .first = (uint64_t)first,
            .last = last,
            .block = grouped ? (float *)(void *)bench->own : NULL,
            .tile = grouped || last ? see_tile : NULL,
            .nonfinite = see_nonfinite,
            .user = &seen,
        };
        CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, &request));
        CHECK_OK(bench->comm, coll_drain(bench->comm, &request));
    }
    const struct coll_span *span = &spans[bench->rank];
    CHECK(seen.good && seen.next == span->count);
    memcpy(bench->contents, bench->shown, span->count * sizeof(float));
    for (size_t i = 0; shown_only && i < span->count * sizeof(float); i++)
        CHECK(bench->own_result[i] == 0xff);
    if (shown_only)
        memcpy(bench->own_result, bench->shown, span->count * sizeof(float));
    CHECK(memcmp(bench->own_result, bench->contents, span->count * sizeof(float)) == 0);
    expect_sequence(bench, sequence, span);
    CHECK(memcmp(bench->own_result, bench->expected, span->count * sizeof(float)) == 0);
    return true;
}

static bool sequences_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    static const uint32_t groups[] = {1, 2, 3, 4, 8, 16};
    static const int contributions[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17};
    struct bench bench;
    bool good = setup(&bench, comm);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (size_t v = 0; v < sizeof contributions / sizeof *contributions && good; v++) {
            if (!everything && (g + v + (size_t)bench.world) % (3 * TEST_STRIDE) != 3 * TEST_PART)
                continue;
            const struct sequence sequence = {contributions[v], groups[g], (g + v) % 2, v % 2};
            good = run_sequence(&bench, &sequence);
            if (!good)
                fprintf(stderr, "world %d, %d contributions, sum_group %u\n", bench.world,
                        contributions[v], groups[g]);
        }
    teardown(&bench);
    return good;
}

static void sequences(void **state)
{
    (void)state;
    over_worlds(sequences_rank, NULL);
}

/* ------------------------------------------------------------------ all together */

static atomic_bool all_have_called;

static void see_together(void *user, size_t first, size_t count, const void *sum)
{
    bool *good = user;
    (void)first, (void)count, (void)sum;
    *good &= atomic_load(&all_have_called);
}

/** Only the first rank's contribution counts. */
static struct coll_reduce_scatter together_op(const struct coll_span *spans, float memory[2][5000])
{
    return (struct coll_reduce_scatter){.source = memory[0],
                                        .dtype = ZERO_F32,
                                        .spans = spans,
                                        .accumulator = memory[1],
                                        .contributors = 1,
                                        .together = true,
                                        .store = true,
                                        .label = {.what = "vector", .number = 7}};
}

/** The last rank comes late. */
static bool together_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    static _Thread_local float memory[2][5000];
    const int world = coll_world(comm);
    struct coll_span spans[MOST_WORLD];
    bool good = true;
    deal_shape(spans, world, 5000, EVEN, 0);
    if (coll_rank(comm) == world - 1) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        atomic_store(&all_have_called, true);
    }
    struct coll_reduce_scatter op = together_op(spans, memory);
    op.tile = see_together;
    op.user = &good;
    struct coll_request request = {0};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &request));
    CHECK_OK(comm, coll_drain(comm, &request));
    return good;
}

/** Or not at all: who waits for it says so. */
static bool never_together_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    static _Thread_local float memory[2][5000];
    const struct coll_span spans[] = {{0, 1}, {1, 1}, {2, 1}};
    const struct coll_reduce_scatter op = together_op(spans, memory);
    struct coll_request request = {0};
    struct base_error error = {0};
    const bool last = coll_rank(comm) == coll_world(comm) - 1;
    if (!last) {
        CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &request));
        CHECK(coll_wait(comm, &request) == ZERO_E_TIMEOUT);
    }
    while (coll_state(comm, &error) == ZERO_OK)
        coll_progress(comm);
    CHECK(strstr(error.message, "vector 7") && strstr(error.message, "for rank 2 (") &&
          !strstr(error.message, "for rank 0"));
    return true;
}

static void together(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        atomic_store(&all_have_called, false);
        assert_true(run_ranks("threads", world, 0, together_rank, NULL));
    }
    assert_true(run_ranks("threads", 3, UINT64_C(100000000), never_together_rank, NULL));
}

/* ------------------------------------------------------------------ one result for all */

/** All ranks give the same place in memory that is there once. */
static bool shared_result_rank(struct coll_comm *comm, void *user)
{
    enum { COUNT = 5001 };
    (void)user;
    const int world = coll_world(comm);
    struct coll_arena *arena;
    const struct coll_span mine = {0, coll_rank(comm) == 0 ? COUNT * sizeof(int32_t) : 0};
    CHECK_OK(comm, coll_arena_create_shared(comm, COUNT * sizeof(int32_t), &mine, 1, &arena, NULL));
    struct coll_arena *sources;
    CHECK_OK(comm, coll_arena_create(comm, COUNT * sizeof(int32_t), &sources, NULL));
    int32_t *source = coll_arena_base(sources), *result = coll_arena_base(arena);
    for (int32_t i = 0; i < COUNT; i++)
        source[i] = i + coll_rank(comm);
    struct coll_request request = {0};
    const struct coll_all_reduce op = {
        .source = source, .result = result, .count = COUNT, .dtype = ZERO_I32, .op = BASE_SUM};
    CHECK_OK(comm, coll_all_reduce_start(comm, &op, &request));
    CHECK_OK(comm, coll_drain(comm, &request));
    for (int32_t i = 0; i < COUNT; i++)
        CHECK(result[i] == i * world + world * (world - 1) / 2);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void shared_result(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        assert_true(run_ranks("threads", world, 0, shared_result_rank, NULL));
        assert_true(run_ranks("shm", world, 0, shared_result_rank, NULL));
    }
}

/* ------------------------------------------------------------------ what is refused */

enum wrong { DTYPE, OPERATION, NO_SOURCE, NO_RESULT, ALIGNMENT, OVERLAP, TOO_MANY, WRONGS };

static bool refused(struct coll_comm *comm, zero_result got, const char *part)
{
    struct base_error error = {0};
    CHECK(got == ZERO_E_INVALID && coll_state(comm, &error) == got);
    if (!strstr(error.message, part) || !strstr(error.message, "vector 7"))
        fprintf(stderr, "'%s' is not in '%s'\n", part, error.message);
    CHECK(strstr(error.message, part) && strstr(error.message, "vector 7"));
    return true;
}

static bool refused_all_reduce_rank(struct coll_comm *comm, void *user)
{
    static const char *const reasons[WRONGS] = {
        "no such dtype", "no such operation", "no source",           "no result",
        "not aligned",   "overlaps",          "more than the memory"};
    const enum wrong wrong = *(const enum wrong *)user;
    static _Thread_local double memory[2000];
    unsigned char *result = (unsigned char *)(memory + 1000);
    result -= wrong == OVERLAP ? 8 : wrong == ALIGNMENT ? 2 : 0;
    const struct coll_all_reduce op = {
        .source = wrong == NO_SOURCE ? NULL : memory,
        .result = wrong == NO_RESULT ? NULL : result,
        .count = wrong == TOO_MANY ? SIZE_MAX / 4 : 1000,
        .dtype = wrong == DTYPE ? (zero_dtype)77 : ZERO_F64,
        .op = wrong == OPERATION ? (enum base_op)9 : BASE_SUM,
        .label = {.what = "vector", .number = 7},
    };
    struct coll_request request = {0};
    return refused(comm, coll_all_reduce_start(comm, &op, &request), reasons[wrong]);
}

static bool refused_group_rank(struct coll_comm *comm, void *user)
{
    const int wrong = *(const int *)user;
    static const char *const reasons[] = {"no block", "no block", "only f32", "not aligned"};
    static _Thread_local double memory[100], block[100];
    struct coll_span spans[MOST_WORLD] = {{0, 100}};
    const struct coll_reduce_scatter op = {
        .source = memory,
        .dtype = wrong == 2 ? ZERO_F64 : ZERO_F32,
        .spans = spans,
        .accumulator = (unsigned char *)memory + (wrong == 3 ? 2 : 0),
        .contributors = coll_world(comm),
        .sum_group = 4,
        .first = wrong == 0 ? 3 : 0,
        .last = wrong == 0,
        .block = wrong < 2 ? NULL : (float *)(void *)block,
        .label = {.what = "vector", .number = 7},
    };
    struct coll_request request = {0};
    const zero_result got = coll_reduce_scatter_start(comm, &op, &request);
    return coll_rank(comm) > 0 || refused(comm, got, reasons[wrong]);
}

static bool refused_accumulator_rank(struct coll_comm *comm, void *user)
{
    const int wrong = *(const int *)user;
    static float memory[100];
    const struct coll_span span = {0, 100};
    bool unused;
    const struct coll_reduce_scatter op = {
        .source = memory,
        .dtype = ZERO_F32,
        .spans = &span,
        .contributors = 1,
        .store = wrong != 0, // a sum is added to nothing
        .sum_group = wrong > 1 ? 4 : 1,
        .first = wrong == 2 ? 4 : 0, // or to earlier calls' blocks
        .last = wrong != 3,          // or to be taken up by later ones
        .block = memory,
        .tile = wrong == 1 ? NULL : see_together, // or shown to no function
        .user = &unused,
        .label = {.what = "vector", .number = 7},
    };
    struct coll_request request = {0};
    return refused(comm, coll_reduce_scatter_start(comm, &op, &request), "no accumulator");
}

static void refusals(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < WRONGS; wrong++)
        assert_true(run_ranks("self", 1, 0, refused_all_reduce_rank, &wrong));
    for (int wrong = 0; wrong < 4; wrong++) {
        assert_true(run_ranks("threads", 2, 0, refused_group_rank, &wrong));
        assert_true(run_ranks("self", 1, 0, refused_accumulator_rank, &wrong));
    }
}

int main(int argc, char **argv)
{
    everything = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter), cmocka_unit_test(all_reduce),
        cmocka_unit_test(sequences),      cmocka_unit_test(together),
        cmocka_unit_test(shared_result),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
