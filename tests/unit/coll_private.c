// The operations that copy, from every kind of source: arenas, memory of another thread, memory of
// another process, and memory of one that its owner has to copy; and from a mixture of these.

#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "tests/ranks/process_memory.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 8, UNDER_WAY = 12, LONG = 1000000 };

/** How peers get at private memory. */
static const struct way {
    const char *transport, *fault, *path;
} ways[] = {
    {"threads", NULL, "direct"},     {"shm", NULL, "process_vm_readv"},
    {"shm", "shm.peek@1", "copied"}, {"tcp:threads", NULL, "sent"},
    {"tcp", NULL, "sent"},           {"hosts", NULL, "sent"},
    {"hosts", "shm.peek@1", "sent"}, {"hosts:threads", NULL, "sent"},
};

/** What a rank is to do. */
struct task {
    rank_fn fn;
    const struct way *way;
    size_t most;   /**< bytes of the largest block */
    unsigned kept; /**< a bit a rank: its source lies in an arena */
};

static bool check_path(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    CHECK(coll_world(comm) == 1 || strcmp(coll_unregistered_path(comm), task->way->path) == 0);
    return task->fn(comm, user);
}

static void on_way(const struct way *way, int world, struct task task)
{
    assert_int_equal(base_fault_set(world > 1 ? way->fault : NULL, NULL), ZERO_OK);
    task.way = way;
    assert_true(run_ranks(way->transport, world, 0, check_path, &task));
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/** Several sizes and numbers of ranks, private sources and mixed ones, each in all ways. */
static void on_all(rank_fn fn)
{
    static const size_t sizes[] = {0, 1, 4097, 600011};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!test_takes_transport(ways[i].transport))
            continue;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            if (test_takes((int)(i + k)))
                on_way(&ways[i], 3, (struct task){.fn = fn, .most = sizes[k], .kept = 0});
        for (int world = 1; world <= 5; world++)
            if (test_takes(world + (int)i))
                on_way(&ways[i], world, (struct task){.fn = fn, .most = 300007, .kept = 2});
        on_way(&ways[i], 3, (struct task){.fn = fn, .most = 300007, .kept = 7});
    }
}

enum { PATTERN = 65521 }; // no divisor of a piece's size

static unsigned char pattern[2 * PATTERN];

static int make_pattern(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PATTERN; i++)
        pattern[i] = pattern[PATTERN + i] = (unsigned char)(mix(i, 1, 2) >> 9);
    return 0;
}

static const unsigned char *pattern_of(int from, int to, uint32_t turn, size_t at)
{
    return pattern + (mix((uint32_t)from, (uint32_t)to, turn) + at) % PATTERN;
}

/** What one rank has for another one in a turn. */
static void fill(unsigned char *block, size_t bytes, int from, int to, uint32_t turn)
{
    for (size_t at = 0; at < bytes; at += PATTERN)
        memcpy(block + at, pattern_of(from, to, turn, at),
               bytes - at < PATTERN ? bytes - at : PATTERN);
}

static bool filled(const unsigned char *block, size_t bytes, int from, int to, uint32_t turn)
{
    for (size_t at = 0; at < bytes; at += PATTERN)
        if (memcmp(block + at, pattern_of(from, to, turn, at),
                   bytes - at < PATTERN ? bytes - at : PATTERN) != 0)
            return false;
    return true;
}

/** Memory of this rank for its sources, at an odd address: in an arena, or its own. */
static unsigned char *take_source(struct coll_comm *comm, const struct task *task, size_t bytes,
                                  unsigned char **to_free)
{
    const bool kept = task->kept >> coll_rank(comm) & 1;
    struct coll_arena *arena = NULL;
    *to_free = NULL;
    if (coll_arena_create(comm, kept ? bytes + 1 : 0, &arena, NULL) != ZERO_OK)
        return NULL;
    unsigned char *memory = kept ? coll_arena_base(arena) : (*to_free = malloc(bytes + 1));
    return memory ? memory + 1 : NULL;
}

/* ------------------------------------------------------------------ all-gather */

static bool all_gather_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[MOST];
    size_t total = 1;
    for (int r = 0; r < world; r++) {
        spans[r] = (struct coll_span){total, r % 3 == 2 ? 0 : task->most / (size_t)(r + 1)};
        total += spans[r].count + 3;
    }
    unsigned char *to_free, *recv = calloc(total, 1);
    unsigned char *source = take_source(comm, task, spans[rank].count, &to_free);
    CHECK(source && recv);
    for (uint32_t turn = 0; turn < (task->most > LONG ? 1 : 3); turn++) {
        fill(source, spans[rank].count, rank, 0, turn);
        const struct coll_all_gather op = {.source = source, .recv = recv, .spans = spans};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        for (int r = 0; r < world; r++)
            CHECK(filled(recv + spans[r].offset, spans[r].count, r, 0, turn));
        CHECK(recv[0] == 0 && recv[total - 1] == 0);
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(to_free);
    free(recv);
    return true;
}

static void all_gather(void **state)
{
    (void)state;
    on_all(all_gather_rank);
    // Longer than the caches.
    on_way(&ways[1], 2, (struct task){.fn = all_gather_rank, .most = 20000003, .kept = 3});
    on_way(&ways[2], 2, (struct task){.fn = all_gather_rank, .most = 20000003, .kept = 1});
}

/* ------------------------------------------------------------------ broadcast */

static bool broadcast_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    unsigned char *to_free, *data = take_source(comm, task, task->most, &to_free);
    CHECK(data);
    for (int root = 0; root < world; root++) {
        memset(data, 0, task->most);
        if (rank == root)
            fill(data, task->most, root, 0, 5);
        const struct coll_bulk_broadcast op = {.data = data, .bytes = task->most, .root = root};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_broadcast_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        CHECK(filled(data, task->most, root, 0, 5));
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(to_free);
    return true;
}

static void broadcast(void **state)
{
    (void)state;
    on_all(broadcast_rank);
}

/* ------------------------------------------------------------------ groups */

/** Three of five ranks sum: a piece of theirs is not larger than what five ranks have room for. */
static bool group_rank(struct coll_comm *comm, void *user)
{
    enum { COUNT = 200000, SUMMING = 3 };
    (void)user;
    struct coll_comm *group;
    const bool sums = coll_rank(comm) < SUMMING;
    CHECK_OK(comm, coll_split(comm, sums ? 0 : -1, 0, &group, NULL));
    float *source = malloc(COUNT * sizeof *source), *sum = malloc(COUNT * sizeof *sum);
    CHECK(source && sum);
    for (int i = 0; i < COUNT; i++)
        source[i] = (float)(i + 1000000 * coll_rank(comm));
    for (int owner = 0; owner < SUMMING && sums; owner++) {
        struct coll_span spans[SUMMING] = {0};
        spans[owner].count = COUNT;
        const struct coll_reduce_scatter op = {.source = source,
                                               .dtype = ZERO_F32,
                                               .spans = spans,
                                               .accumulator = sum,
                                               .contributors = SUMMING,
                                               .store = true};
        struct coll_request request = {0};
        CHECK_OK(group, coll_reduce_scatter_start(group, &op, &request));
        CHECK_OK(group, coll_drain(group, &request));
        for (int i = 0; i < COUNT && owner == coll_rank(group); i++)
            CHECK(sum[i] == (float)(3 * i + 3000000));
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(source);
    free(sum);
    return true;
}

static void groups(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (test_takes_transport(ways[i].transport))
            on_way(&ways[i], 5, (struct task){.fn = group_rank});
}

/* ------------------------------------------------------------------ all-to-all */

/** Bytes from a rank to another one: uneven, some none. */
static size_t sent(const struct task *task, int from, int to)
{
    return (from + to) % 3 == 1 ? 0 : task->most / (size_t)(1 + from + 2 * to);
}

static void all_to_all_spans(const struct task *task, int rank, int world, struct coll_span *send,
                             struct coll_span *recv, size_t *send_bytes, size_t *recv_bytes)
{
    *send_bytes = *recv_bytes = 0;
    // Blocks lie in the order of ranks on one side, and against it, with gaps, on the other.
    for (int r = 0; r < world; r++) {
        send[r] = (struct coll_span){*send_bytes, sent(task, rank, r)};
        *send_bytes += send[r].count;
        const int q = world - 1 - r;
        recv[q] = (struct coll_span){*recv_bytes + 1, sent(task, q, rank)};
        *recv_bytes += recv[q].count + 1;
    }
}

static bool all_to_all_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_span send[MOST], spans[MOST];
    size_t send_bytes, recv_bytes;
    all_to_all_spans(task, rank, world, send, spans, &send_bytes, &recv_bytes);
    unsigned char *to_free, *recv = calloc(recv_bytes + 1, 1);
    unsigned char *source = take_source(comm, task, send_bytes, &to_free);
    CHECK(source && recv);
    for (uint32_t turn = 0; turn < 7; turn++) { // more than there are tables
        for (int r = 0; r < world; r++)
            fill(source + send[r].offset, send[r].count, rank, r, turn);
        const struct coll_all_to_all op = {
            .source = source, .recv = recv, .send = send, .recv_spans = spans};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_all_to_all_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        for (int r = 0; r < world; r++)
            CHECK(filled(recv + spans[r].offset, spans[r].count, r, rank, turn));
    }
    CHECK(recv[0] == 0 && recv[recv_bytes] == 0);
    CHECK_OK(comm, coll_barrier(comm));
    free(to_free);
    free(recv);
    return true;
}

static void all_to_all(void **state)
{
    (void)state;
    on_all(all_to_all_rank);
}

/** Rank 1 expects more of rank 0 than that sends. */
static bool wrong_count_rank(struct coll_comm *comm, void *user)
{
    const int rank = coll_rank(comm);
    const struct coll_span send[2] = {{0, 10}, {10, 10}};
    const struct coll_span spans[2] = {{0, 10 + (rank == 1)}, {11, 10}};
    unsigned char source[20] = {0}, recv[21];
    const struct coll_all_to_all op = {.source = source,
                                       .recv = recv,
                                       .send = send,
                                       .recv_spans = spans,
                                       .label = {"unit", 3, "moe"}};
    struct coll_request request = {0};
    struct base_error error = {0};
    (void)user;
    CHECK_OK(comm, coll_all_to_all_start(comm, &op, &request));
    while (coll_state(comm, &error) == ZERO_OK)
        coll_drain(comm, &request);
    CHECK(error.result == ZERO_E_DIVERGED);
    CHECK(strstr(error.message, "unit 3 (moe): rank 0 sends 10 bytes to rank 1, which expects 11"));
    return true;
}

static void wrong_count(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        on_way(&ways[i], 2, (struct task){.fn = wrong_count_rank});
}

/* ------------------------------------------------------------------ sums */

static float float_of(int rank, size_t at, int turn)
{
    const uint32_t key = (uint32_t)(rank + 16 * turn) * 2246822519u;
    return (float)(int32_t)((uint32_t)at * 2654435761u + key) * 0x1p-20f;
}

/** The sum of all ranks' element, in their order. */
static float sum_of(int world, size_t at, int turn)
{
    float sum = float_of(0, at, turn);
    for (int r = 1; r < world; r++)
        sum += float_of(r, at, turn);
    return sum;
}

static bool reduce_scatter_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    const size_t most = task->most / sizeof(float);
    struct coll_span spans[MOST];
    size_t total = 3;
    for (int r = 0; r < world; r++) {
        spans[r] = (struct coll_span){total, r % 3 == 1 ? 0 : most / (size_t)(r + 1)};
        total += spans[r].count;
    }
    unsigned char *to_free, *source = take_source(comm, task, total * sizeof(float) + 3, &to_free);
    float *sums = calloc(spans[rank].count + 1, sizeof *sums);
    CHECK(source && sums);
    float *values = (float *)(void *)(source + 3); // malloc's alignment, but for an element
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < total; i++)
            values[i] = float_of(rank, i, turn);
        const struct coll_reduce_scatter op = {.source = values,
                                               .dtype = ZERO_F32,
                                               .spans = spans,
                                               .accumulator = sums,
                                               .contributors = world,
                                               .store = true};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        for (size_t i = 0; i < spans[rank].count; i++)
            CHECK(sums[i] == sum_of(world, spans[rank].offset + i, turn));
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(sums);
    free(to_free);
    return true;
}

static void reduce_scatter(void **state)
{
    (void)state;
    on_all(reduce_scatter_rank);
}

/** In place and not; the result is private too. */
static bool all_reduce_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    const size_t count = task->most / sizeof(float);
    unsigned char *to_free, *source = take_source(comm, task, count * sizeof(float) + 3, &to_free);
    float *elsewhere = calloc(count + 1, sizeof *elsewhere);
    CHECK(source && elsewhere);
    float *values = (float *)(void *)(source + 3);
    for (int turn = 0; turn < 4; turn++) {
        float *result = turn % 2 ? values : elsewhere;
        for (size_t i = 0; i < count; i++)
            values[i] = float_of(rank, i, turn);
        const struct coll_all_reduce op = {
            .source = values, .result = result, .count = count, .dtype = ZERO_F32};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_all_reduce_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        for (size_t i = 0; i < count; i++)
            CHECK(result[i] == sum_of(world, i, turn));
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(elsewhere);
    free(to_free);
    return true;
}

static void all_reduce(void **state)
{
    (void)state;
    on_all(all_reduce_rank);
}

/* ------------------------------------------------------------------ several at once */

/** More all-to-alls and gathers under way than there are tables; nothing is allocated for them. */
static bool at_once_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    const size_t bytes = task->most;
    struct coll_span send[UNDER_WAY][MOST], spans[MOST];
    for (int r = 0; r < world; r++) {
        spans[r] = (struct coll_span){bytes * (size_t)r, bytes};
        for (size_t k = 0; k < UNDER_WAY; k++)
            send[k][r] = (struct coll_span){bytes * k, bytes}; // the same to all
    }
    struct coll_request requests[UNDER_WAY] = {0};
    unsigned char *to_free, *recv[UNDER_WAY];
    unsigned char *source = take_source(comm, task, UNDER_WAY * bytes, &to_free);
    CHECK(source);
    for (int k = 0; k < UNDER_WAY; k++) {
        CHECK((recv[k] = calloc((size_t)world, bytes)));
        fill(source + (size_t)k * bytes, bytes, rank, k, 0);
    }
    CHECK_OK(comm, coll_barrier(comm));
    const uint64_t allocations = process_state().allocations;
    for (int k = 0; k < UNDER_WAY; k++) {
        if (k % 2) {
            const struct coll_all_gather op = {
                .source = source + (size_t)k * bytes, .recv = recv[k], .spans = spans};
            CHECK_OK(comm, coll_all_gather_start(comm, &op, &requests[k]));
        } else {
            const struct coll_all_to_all op = {
                .source = source, .recv = recv[k], .send = send[k], .recv_spans = spans};
            CHECK_OK(comm, coll_all_to_all_start(comm, &op, &requests[k]));
        }
    }
    for (int k = UNDER_WAY - 1; k >= 0; k--)
        CHECK_OK(comm, coll_drain(comm, &requests[k]));
    CHECK(process_state().allocations == allocations);
    CHECK_OK(comm, coll_barrier(comm));
    for (int k = 0; k < UNDER_WAY; k++) {
        for (int r = 0; r < world; r++)
            CHECK(filled(recv[k] + spans[r].offset, bytes, r, k, 0));
        free(recv[k]);
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(to_free);
    return true;
}

static void at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (unsigned kept = 0; kept < 4; kept++)
            on_way(&ways[i], 3, (struct task){.fn = at_once_rank, .most = 270001, .kept = kept});
}

/* ------------------------------------------------------------------ several communicators */

enum { COMMS = 3, STREAMS = COMMS + 2 };

/** The root, and two groups of all ranks in different orders. */
static bool make_comms(struct coll_comm *root, struct coll_comm *comms[COMMS])
{
    const int rank = coll_rank(root);
    struct base_error error = {0};
    comms[0] = root;
    CHECK(coll_split(root, 0, -rank, &comms[1], &error) == ZERO_OK);
    CHECK(coll_split(root, 0, rank % 2 ? rank : 10 + rank, &comms[2], &error) == ZERO_OK);
    return true;
}

static bool start_gathers(struct coll_comm *const comms[COMMS], const unsigned char *source,
                          unsigned char *recv[STREAMS], struct coll_span spans[COMMS][MOST],
                          struct coll_request requests[STREAMS], size_t bytes)
{
    for (int k = 0; k < COMMS; k++) {
        for (int r = 0; r < coll_world(comms[k]); r++)
            spans[k][r] = (struct coll_span){bytes * (size_t)coll_root_rank(comms[k], r), bytes};
        const struct coll_all_gather op = {.source = source, .recv = recv[k], .spans = spans[k]};
        CHECK_OK(comms[k], coll_all_gather_start(comms[k], &op, &requests[k]));
    }
    return true;
}

/** Gathers in three communicators and a ring of messages, all from the same private memory, which
 * each rank waits for in another order. */
static bool mixture_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    const int next = (rank + 1) % world, before = (rank + world - 1) % world;
    const size_t bytes = task->most;
    struct coll_comm *comms[COMMS];
    struct coll_span spans[COMMS][MOST];
    struct coll_request requests[STREAMS] = {0};
    unsigned char *to_free, *recv[STREAMS] = {0},
                            *source = take_source(comm, task, bytes, &to_free);
    CHECK(source && make_comms(comm, comms));
    for (int k = 0; k < STREAMS; k++)
        CHECK((recv[k] = calloc((size_t)world, bytes)));
    fill(source, bytes, rank, 0, 0);
    for (int turn = 0; turn < 3; turn++) {
        CHECK(start_gathers(comms, source, recv, spans, requests, bytes));
        const struct coll_message send = {.data = source, .bytes = bytes, .peer = next};
        const struct coll_message receive = {.data = recv[3], .bytes = bytes, .peer = before};
        CHECK_OK(comm, coll_receive_start(comm, &receive, &requests[3]));
        CHECK_OK(comm, coll_send_start(comm, &send, &requests[4]));
        for (int k = 0; k < STREAMS; k++)
            CHECK_OK(comm, coll_drain(comms[(k + rank + turn) % STREAMS % COMMS],
                                      &requests[(k + rank + turn) % STREAMS]));
        for (int k = 0; k < COMMS; k++)
            for (int r = 0; r < world; r++)
                CHECK(filled(recv[k] + (size_t)r * bytes, bytes, r, 0, 0));
        CHECK(filled(recv[3], bytes, before, 0, 0));
    }
    CHECK_OK(comm, coll_barrier(comm));
    for (int k = 0; k < STREAMS; k++)
        free(recv[k]);
    free(to_free);
    return true;
}

static void mixture(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int world = 2; world <= 4; world++)
            on_way(&ways[i], world,
                   (struct task){.fn = mixture_rank, .most = 270001, .kept = 1u << world});
}

/* ------------------------------------------------------------------ no page is new */

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static bool gather_once(struct coll_comm *comm, const unsigned char *source, unsigned char *recv,
                        size_t bytes)
{
    struct coll_span spans[MOST];
    for (int r = 0; r < coll_world(comm); r++)
        spans[r] = (struct coll_span){bytes * (size_t)r, bytes};
    const struct coll_all_gather op = {.source = source, .recv = recv, .spans = spans};
    struct coll_request request = {0};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    CHECK_OK(comm, coll_drain(comm, &request));
    return true;
}

/** The code has run before, with a little of the memory; the rest is untouched before. */
static bool untouched_rank(struct coll_comm *comm, void *user)
{
    const struct task *task = user;
    const size_t bytes = task->most, all = bytes * (size_t)coll_world(comm);
    unsigned char *source = malloc(bytes), *recv = malloc(all);
    CHECK(source && recv);
    memset(source, 1, bytes);
    memset(recv, 2, all);
    CHECK(gather_once(comm, source, recv, 64));
    CHECK(gather_once(comm, source, recv, 64));
    CHECK_OK(comm, coll_barrier(comm));
    const long before = faults();
    const bool gathered = gather_once(comm, source, recv, bytes);
    const long after = faults();
    CHECK(gathered && (process_sanitized() || after == before));
    CHECK_OK(comm, coll_barrier(comm));
    free(source);
    free(recv);
    return true;
}

static void untouched(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        on_way(&ways[i], 2, (struct task){.fn = untouched_rank, .most = 1500000});
}

/* ------------------------------------------------------------------ failures */

/** What rank 0 gets instead of rank 1's block. */
struct expected {
    zero_result result;
    const char *part, *other;
};

enum { BLOCK = 20000 };

static bool refused(struct coll_comm *comm, void *data, const struct expected *expected)
{
    const struct coll_bulk_broadcast op = {
        .data = data, .bytes = BLOCK, .root = 1, .label = {"unit", 4, "h.4"}};
    struct coll_request request = {0};
    struct base_error error = {0};
    CHECK_OK(comm, coll_broadcast_start(comm, &op, &request));
    // Rank 1 is needed for nothing but its memory.
    CHECK((coll_rank(comm) == 0 ? coll_drain(comm, &request) : coll_barrier(comm)) ==
          expected->result);
    coll_state(comm, &error);
    if (strstr(error.message, expected->part) && strstr(error.message, expected->other))
        return true;
    fprintf(stderr, "got: %s\n", error.message);
    return false;
}

/** Rank 0 finds, when it reads, that rank 1 has died. */
static bool gone_rank(struct coll_comm *comm, void *user)
{
    static const struct expected expected = {
        ZERO_E_PEER, "rank 1 died; its last call: ", "; rank 0 was in broadcast #0, unit 4 (h.4)"};
    static unsigned char data[BLOCK];
    (void)user;
    return refused(comm, data, &expected);
}

/** Rank 1's source is not there. */
static bool unreadable_rank(struct coll_comm *comm, void *user)
{
    static const struct expected expected = {
        ZERO_E_INVALID, "unit 4 (h.4): 11808 bytes of rank 1's memory from 0x", "Bad address"};
    (void)user;
    unsigned char *memory =
        mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(coll_rank(comm) == 0 || mprotect(memory + 2 * 4096, 3 * 4096, PROT_NONE) == 0);
    return refused(comm, memory, &expected);
}

static void unreadable(void **state)
{
    (void)state;
    struct task task = {.fn = gone_rank, .way = &ways[1]};
    assert_int_equal(base_fault_set("shm.peek:esrch@2", NULL), ZERO_OK);
    assert_true(run_ranks("shm", 2, 0, check_path, &task));
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    on_way(&ways[1], 2, (struct task){.fn = unreadable_rank});
}

/** How rank 1 lets the others down, whose block it would have to copy. */
enum absence { DIES, LEAVES, SLEEPS };

static bool absent_rank(struct coll_comm *comm, void *user)
{
    static const struct expected expected[] = {
        [DIES] = {ZERO_E_PEER, "rank 1", "died"},
        [LEAVES] = {ZERO_E_PEER, "rank 1 has closed the communicator", "unit 4 (h.4)"},
        [SLEEPS] = {ZERO_E_TIMEOUT, "unit 4 (h.4)", "rank 1"},
    };
    const enum absence absence = *(const enum absence *)user;
    static unsigned char data[BLOCK];
    CHECK(strcmp(coll_unregistered_path(comm), "copied") == 0);
    if (coll_rank(comm) == 0)
        return refused(comm, data, &expected[absence]);
    const struct coll_bulk_broadcast op = {
        .data = data, .bytes = BLOCK, .root = 1, .label = {"unit", 4, "h.4"}};
    struct coll_request request = {0};
    CHECK_OK(comm, coll_broadcast_start(comm, &op, &request));
    usleep(50000); // rank 0 asks
    if (absence == DIES)
        kill(getpid(), SIGKILL);
    while (absence == SLEEPS && coll_state(comm, NULL) == ZERO_OK)
        usleep(10000);
    return true;
}

static void absent(void **state)
{
    (void)state;
    enum absence absence = DIES;
    assert_int_equal(base_fault_set("shm.peek@1", NULL), ZERO_OK);
    assert_true(run_ranks_killed(2, 1, absent_rank, &absence));
    absence = LEAVES;
    assert_true(run_ranks("shm", 2, 0, absent_rank, &absence));
    absence = SLEEPS;
    assert_true(run_ranks("shm", 2, UINT64_C(2500000000), absent_rank, &absence));
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather), cmocka_unit_test(broadcast),
        cmocka_unit_test(all_to_all), cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(all_reduce), cmocka_unit_test(wrong_count),
        cmocka_unit_test(at_once),    cmocka_unit_test(mixture),
        cmocka_unit_test(untouched),  cmocka_unit_test(unreadable),
        cmocka_unit_test(absent),     cmocka_unit_test(groups),
    };
    return cmocka_run_group_tests(tests, make_pattern, NULL);
}
