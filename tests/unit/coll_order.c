// Many operations under way at once, waited for in any order, with ranks that dawdle; and nothing
// allocated meanwhile.

#include "base/arena.h"
#include "base/clock.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    MOST_WORLD = 5,
    OPERATIONS = 300, /**< more than a ring holds */
    MOST_COUNT = 700, /**< elements of a vector */
    STEPS = 150,
    NAP_US = 300,
};

/** All that one rank of a test owns. */
struct bench {
    struct coll_comm *comm;
    int rank, world;
    uint32_t random;
    struct coll_arena *arena;
    float *sources; /**< OPERATIONS vectors in the arena */
    float *results; /**< as many, private */
    struct coll_span (*spans)[MOST_WORLD];
    struct coll_request *requests;
};

static float value(uint32_t operation, int rank, size_t i)
{
    return (float)(int32_t)mix(operation, (uint32_t)rank, (uint32_t)i) * 0x1p-20f;
}

static bool setup(struct bench *bench, struct coll_comm *comm)
{
    struct base_error error;
    *bench = (struct bench){.comm = comm,
                            .rank = coll_rank(comm),
                            .world = coll_world(comm),
                            .random = (uint32_t)coll_rank(comm)};
    CHECK_OK(comm, coll_arena_create(comm, OPERATIONS * MOST_COUNT * sizeof(float), &bench->arena,
                                     &error));
    bench->sources = coll_arena_base(bench->arena);
    bench->results = malloc(OPERATIONS * MOST_COUNT * sizeof(float));
    bench->spans = malloc(OPERATIONS * sizeof *bench->spans);
    bench->requests = calloc(OPERATIONS, sizeof *bench->requests);
    CHECK(bench->results && bench->spans && bench->requests);
    return true;
}

static void teardown(struct bench *bench)
{
    free(bench->results);
    free(bench->spans);
    free(bench->requests);
}

static void deal(struct bench *bench, uint32_t operation, size_t size)
{
    const size_t share = mix(operation, 7, 7) % (MOST_COUNT / MOST_WORLD);
    for (int r = 0; r < bench->world; r++)
        bench->spans[operation][r] =
            (struct coll_span){.offset = (size_t)r * share * size, .count = share * size};
}

/** Operation k: a gather if k is a multiple of 3, else a reduce-scatter. */
static bool is_gather(uint32_t operation)
{
    return operation % 3 == 0;
}

static int contributors_of(const struct bench *bench, uint32_t operation)
{
    return (int)(mix(operation, 9, 9) % (uint32_t)bench->world) + 1;
}

static bool start(struct bench *bench, uint32_t k)
{
    float *source = bench->sources + k * MOST_COUNT, *result = bench->results + k * MOST_COUNT;
    for (size_t i = 0; i < MOST_COUNT; i++) {
        source[i] = value(k, bench->rank, i);
        result[i] = 0.0f;
    }
    const struct coll_label label = {.what = "operation", .number = k};
    deal(bench, k, is_gather(k) ? sizeof(float) : 1);
    if (is_gather(k)) {
        const struct coll_all_gather op = {
            .source = source, .recv = result, .spans = bench->spans[k], .label = label};
        CHECK_OK(bench->comm, coll_all_gather_start(bench->comm, &op, &bench->requests[k]));
        return true;
    }
    const struct coll_reduce_scatter op = {.source = source,
                                           .dtype = ZERO_F32,
                                           .spans = bench->spans[k],
                                           .accumulator = result,
                                           .contributors = contributors_of(bench, k),
                                           .store = true,
                                           .label = label};
    CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, &bench->requests[k]));
    return true;
}

static bool check(const struct bench *bench, uint32_t k)
{
    const float *result = bench->results + k * MOST_COUNT;
    const struct coll_span *spans = bench->spans[k];
    if (is_gather(k)) {
        const size_t share = spans[0].count / sizeof(float);
        for (int r = 0; r < bench->world; r++)
            for (size_t i = 0; i < share; i++)
                CHECK(result[(size_t)r * share + i] == value(k, r, i));
        return true;
    }
    for (size_t i = 0; i < spans[bench->rank].count; i++) {
        const size_t at = spans[bench->rank].offset + i;
        float sum = value(k, 0, at);
        for (int r = 1; r < contributors_of(bench, k); r++)
            sum += value(k, r, at);
        CHECK(result[i] == sum);
    }
    return true;
}

/** Starts everything, then waits for it in an order of this rank's own. */
static bool in_flight(struct bench *bench)
{
    uint32_t order[OPERATIONS];
    for (uint32_t k = 0; k < OPERATIONS; k++) {
        if (k % 16 == 0)
            nap(&bench->random, NAP_US);
        CHECK(start(bench, k));
        order[k] = k;
    }
    for (uint32_t k = OPERATIONS - 1; k > 0; k--) {
        const uint32_t other = mix(bench->random, k, 1) % (k + 1), moved = order[k];
        order[k] = order[other];
        order[other] = moved;
    }
    for (uint32_t k = 0; k < OPERATIONS; k++) {
        if (k % 16 == 0)
            nap(&bench->random, NAP_US);
        if (k % 2 == 0)
            CHECK_OK(bench->comm, coll_wait(bench->comm, &bench->requests[order[k]]));
        else
            CHECK_OK(bench->comm, coll_drain(bench->comm, &bench->requests[order[k]]));
        CHECK(check(bench, order[k]));
    }
    for (uint32_t k = 0; k < OPERATIONS; k++)
        CHECK_OK(bench->comm, coll_drain(bench->comm, &bench->requests[k]));
    return true;
}

/** Starts a step's reduce-scatter from the one slot into the one accumulator. */
static bool start_step(struct bench *bench, struct coll_request *request, uint32_t step)
{
    for (size_t i = 0; i < MOST_COUNT; i++)
        bench->sources[i] = value(step, bench->rank, i);
    const struct coll_reduce_scatter op = {.source = bench->sources,
                                           .dtype = ZERO_F32,
                                           .spans = bench->spans[1],
                                           .accumulator = bench->results,
                                           .contributors = contributors_of(bench, step),
                                           .store = step == 0,
                                           .label = {.what = "slot", .number = step}};
    CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, request));
    return true;
}

/** One gradient slot for all steps, and a small operation now and then. */
static bool one_slot(struct bench *bench)
{
    struct coll_request *request = &bench->requests[0];
    deal(bench, 1, 1);
    const struct coll_span mine = bench->spans[1][bench->rank];
    for (uint32_t step = 0; step < STEPS; step++) {
        nap(&bench->random, NAP_US / 3);
        CHECK_OK(bench->comm, coll_drain(bench->comm, request));
        CHECK(start_step(bench, request, step));
        double ones = 1.0;
        if (step % 8 == 7)
            CHECK_OK(bench->comm, coll_all_reduce(bench->comm, &ones, 1, BASE_SUM));
        else if (mix(bench->random, step, 3) % 4 == 0)
            CHECK_OK(bench->comm, coll_progress(bench->comm));
        CHECK(step % 8 != 7 || ones == (double)bench->world);
    }
    CHECK_OK(bench->comm, coll_drain(bench->comm, request));
    for (size_t i = 0; i < mine.count; i++) {
        float sum = value(0, 0, mine.offset + i);
        for (uint32_t step = 0; step < STEPS; step++)
            for (int r = step == 0; r < contributors_of(bench, step); r++)
                sum += value(step, r, mine.offset + i);
        CHECK(bench->results[i] == sum);
    }
    return true;
}

/** Runs a test between two barriers and looks that nothing was allocated in between. */
static bool run(struct coll_comm *comm, bool (*test)(struct bench *bench))
{
    struct bench bench;
    bool good = setup(&bench, comm);
    if (good) {
        struct coll_counters counters;
        CHECK_OK(comm, coll_barrier(comm));
        const uint64_t allocations = base_allocation_count();
        good = test(&bench) && rank_ok(comm, coll_barrier(comm), "barrier");
        CHECK(base_allocation_count() == allocations);
        coll_counters(comm, &counters);
        CHECK(counters.memory_bytes ==
              coll_memory_needed(coll_transport_name(comm), false, coll_world(comm), 0));
        CHECK((counters.reduced_bytes > 0) == (coll_world(comm) > 1));
    }
    teardown(&bench);
    return good;
}

static bool in_flight_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    return run(comm, in_flight);
}

static bool one_slot_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    return run(comm, one_slot);
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/** Who sleeps is woken by who comes last, and does not look for it now and then: not even if who
 * comes posts its part and goes away again. */
static bool woken_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    enum { ROUNDS = 15 };
    uint64_t late[ROUNDS], came = 0;
    struct base_error error;
    struct coll_arena *arena;
    CHECK_OK(comm, coll_arena_create(comm, sizeof came, &arena, &error));
    const struct coll_span spans[2] = {{0, 0}, {0, sizeof came}};
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = &came, .spans = spans};
    struct coll_request request = {0};
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(comm, coll_barrier(comm));
        if (coll_rank(comm) == 1) {
            usleep(1000);
            *(uint64_t *)coll_arena_base(arena) = base_clock_ns();
        }
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        if (coll_rank(comm) == 1)
            usleep(10000);
        CHECK_OK(comm, coll_wait(comm, &request));
        late[i] = base_clock_ns() - came;
        CHECK_OK(comm, coll_drain(comm, &request));
    }
    qsort(late, ROUNDS, sizeof *late, ascending);
    CHECK(coll_rank(comm) == 1 || late[ROUNDS / 4] < 5000000);
    return true;
}

/** The same of small operations: who came last, or has read what a root wants to write over, may
 * compute for long right after it. */
static bool woken_small_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    enum { ROUNDS = 15, FIRST = 0, SECOND = 1 };
    uint64_t late[2][ROUNDS], came[2], sent;
    unsigned char data[1000] = {0};
    const int rank = coll_rank(comm);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(comm, coll_barrier(comm));
        usleep(rank == 1 ? 12000 : 0);
        const uint64_t mine = base_clock_ns();
        CHECK_OK(comm, coll_exchange(comm, &mine, sizeof mine, came));
        late[FIRST][i] = base_clock_ns() - came[1];
        usleep(rank == 1 ? 22000 : 0);
        // The third one finds no slot before rank 1 has read the first one.
        const uint64_t reads = base_clock_ns();
        for (int k = 0; k < (rank == 0 ? 3 : 1); k++)
            CHECK_OK(comm, coll_broadcast(comm, data, sizeof data, 0));
        sent = base_clock_ns();
        usleep(rank == 1 ? 10000 : 0);
        for (int k = rank == 0 ? 3 : 1; k < 3; k++)
            CHECK_OK(comm, coll_broadcast(comm, data, sizeof data, 0));
        CHECK_OK(comm, coll_exchange(comm, rank == 0 ? &sent : &reads, sizeof sent, came));
        late[SECOND][i] = came[0] - came[1];
    }
    for (int which = FIRST; which <= SECOND; which++) {
        qsort(late[which], ROUNDS, sizeof **late, ascending);
        CHECK(rank == 1 || late[which][ROUNDS / 4] < 5000000);
    }
    return true;
}

static void woken(void **state)
{
    (void)state;
    assert_true(run_ranks("threads", 2, 0, woken_rank, NULL));
    assert_true(run_ranks("shm", 2, 0, woken_rank, NULL));
    assert_true(run_ranks("threads", 2, 0, woken_small_rank, NULL));
    assert_true(run_ranks("shm", 2, 0, woken_small_rank, NULL));
}

static void many_in_flight(void **state)
{
    (void)state;
    assert_true(run_ranks("self", 1, 0, in_flight_rank, NULL));
    for (int world = 2; world <= MOST_WORLD; world++) {
        assert_true(run_ranks("threads", world, 0, in_flight_rank, NULL));
        assert_true(run_ranks("shm", world, 0, in_flight_rank, NULL));
        assert_true(run_ranks("tcp", world, 0, in_flight_rank, NULL));
        assert_true(run_ranks("hosts", world, 0, in_flight_rank, NULL));
    }
}

static void one_slot_reused(void **state)
{
    (void)state;
    for (int world = 2; world <= MOST_WORLD; world++) {
        assert_true(run_ranks("threads", world, 0, one_slot_rank, NULL));
        assert_true(run_ranks("shm", world, 0, one_slot_rank, NULL));
        assert_true(run_ranks("tcp", world, 0, one_slot_rank, NULL));
        assert_true(run_ranks("hosts", world, 0, one_slot_rank, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_in_flight),
        cmocka_unit_test(one_slot_reused),
        cmocka_unit_test(woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
