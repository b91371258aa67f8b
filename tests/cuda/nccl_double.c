// NCCL's double (nccl_double.h) does what NCCL does: data, order, progress, splits, memory, aborts.
#include "tests/cuda/nccl_double.h"

#include "base/bfloat16.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    MOST = 20000,
    FENCE = 64
}; // elements of a rank: several pieces; bytes behind what is written

static const size_t counts[] = {0, 1, 5, 1000, 8192, MOST};

/* ------------------------------------------------------------------ values */

// Any 64 bits, of element i of rank r in try t.
static uint64_t any(int r, size_t i, int t)
{
    uint64_t x = (uint64_t)r * 0x9e3779b97f4a7c15 + i * 0xd1b54a32d192ed03 + (uint64_t)t;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9;
    return x ^ x >> 29;
}

static size_t size_of(int type)
{
    return type == ncclFloat16 || type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8;
}

static void set_value(void *to, int type, int r, size_t i, int t)
{
    const uint64_t bits = any(r, i, t);
    const float small = (float)(int64_t)(bits % 20001) / 7 - 1000;
    const double large = small * 1e10;
    const uint16_t half =
        type == ncclFloat16 ? base_f16_from_f32(small) : base_bf16_from_f32(small);
    const void *from = type == ncclFloat32   ? (const void *)&small
                       : type == ncclFloat64 ? (const void *)&large
                       : size_of(type) == 2  ? (const void *)&half
                                             : (const void *)&bits;
    memcpy(to, from, size_of(type));
}

// to = to + from, or the other operation.
static void add_value(void *to, const void *from, int type, int operation)
{
    uint64_t a = 0, b = 0;
    memcpy(&a, to, size_of(type));
    memcpy(&b, from, size_of(type));
    if (operation == ncclMax) {
        a = (int64_t)a > (int64_t)b ? a : b;
    } else if (operation == ncclMin) {
        a = (int64_t)a < (int64_t)b ? a : b;
    } else if (type == ncclFloat64) {
        double x, y;
        memcpy(&x, &a, sizeof x);
        memcpy(&y, &b, sizeof y);
        x += y;
        memcpy(&a, &x, sizeof a);
    } else if (type == ncclFloat32) {
        a = base_f32_bits(base_f32_from_bits((uint32_t)a) + base_f32_from_bits((uint32_t)b));
    } else if (type == ncclFloat16) {
        a = base_f16_from_f32(base_f32_from_f16((uint16_t)a) + base_f32_from_f16((uint16_t)b));
    } else if (type == ncclBfloat16) {
        a = base_bf16_from_f32(base_f32_from_bf16((uint16_t)a) + base_f32_from_bf16((uint16_t)b));
    } else {
        a += b;
    }
    memcpy(to, &a, size_of(type));
}

// Of all ranks, beginning with `first`.
static void sum_value(void *to, int type, int operation, int first, int ranks, size_t i, int t)
{
    char other[8];
    set_value(to, type, first, i, t);
    for (int k = 1; k < ranks; k++) {
        set_value(other, type, (first + k) % ranks, i, t);
        add_value(to, other, type, operation);
    }
}

/* ------------------------------------------------------------------ collectives */

// Buffers of a rank: on the GPU two, of which all is read back.
struct buffers {
    char *from, *to, *host, *expected;
    size_t bytes;
};

static struct buffers buffers_of(struct nccl_rank *rank)
{
    struct buffers it = {.bytes = (size_t)rank->ranks * MOST * 8 + FENCE};
    it.from = nccl_ranks_memory(rank, it.bytes);
    it.to = nccl_ranks_memory(rank, it.bytes);
    it.host = malloc(it.bytes);
    it.expected = malloc(it.bytes);
    if (!it.host || !it.expected)
        abort();
    return it;
}

static void forget(struct buffers *it)
{
    free(it->host);
    free(it->expected);
}

struct collective {
    int kind; // the letter of its name
    int type, operation, root;
    size_t count;
    bool in_place;
    int try;
};

// This rank's values on the GPU, at `at`, and something else everywhere else in it.
static void prepare(struct nccl_rank *rank, struct buffers *it, char *at, size_t values,
                    const struct collective *what)
{
    memset(it->host, 0x5a, it->bytes);
    char *const base = at >= it->to && at < it->to + it->bytes ? it->to : it->from;
    for (size_t i = 0; i < values; i++)
        set_value(it->host + (at - base) + i * size_of(what->type), what->type, rank->rank, i,
                  what->try);
    nccl_ranks_put(rank, base, it->host, it->bytes);
}

// What the written buffer has to be, which is in `host` as it was.
static void expect(struct nccl_rank *rank, struct buffers *it, char *out,
                   const struct collective *what)
{
    const size_t size = size_of(what->type), count = what->count;
    memcpy(it->expected, it->host, it->bytes);
    char *to = it->expected + (what->in_place && out >= it->from && out < it->from + it->bytes
                                   ? out - it->from
                                   : out - it->to);
    for (int r = 0; what->kind == 'g' && r < rank->ranks; r++)
        for (size_t i = 0; i < count; i++)
            set_value(to + ((size_t)r * count + i) * size, what->type, r, i, what->try);
    for (size_t i = 0; what->kind == 'b' && i < count; i++)
        set_value(to + i * size, what->type, what->root, i, what->try);
    for (size_t i = 0; what->kind == 'r' && i < count; i++)
        sum_value(to + i * size, what->type, what->operation, 0, rank->ranks, i, what->try);
    for (size_t i = 0; what->kind == 'R' && rank->rank == what->root && i < count; i++)
        sum_value(to + i * size, what->type, ncclSum, (rank->rank + 1) % rank->ranks, rank->ranks,
                  i, what->try);
    for (size_t i = 0; what->kind == 's' && i < count; i++)
        sum_value(to + i * size, what->type, ncclSum, (rank->rank + 1) % rank->ranks, rank->ranks,
                  (size_t)rank->rank * count + i, what->try);
}

static ncclResult_t call(struct nccl_rank *rank, const char *from, char *to,
                         const struct collective *what)
{
    const ncclDataType_t type = (ncclDataType_t)what->type;
    const ncclRedOp_t operation = (ncclRedOp_t)what->operation;
    switch (what->kind) {
    case 'g':
        return ncclAllGather(from, to, what->count, type, rank->comm, rank->stream);
    case 'b':
        return ncclBroadcast(from, to, what->count, type, what->root, rank->comm, rank->stream);
    case 'r':
        return ncclAllReduce(from, to, what->count, type, operation, rank->comm, rank->stream);
    case 'R':
        return ncclReduce(from, to, what->count, type, operation, what->root, rank->comm,
                          rank->stream);
    default:
        return ncclReduceScatter(from, to, what->count, type, operation, rank->comm, rank->stream);
    }
}

static bool try_collective(struct nccl_rank *rank, struct buffers *it,
                           const struct collective *what)
{
    const size_t size = size_of(what->type), mine = (size_t)rank->rank * what->count * size;
    const size_t values = what->kind == 's' ? what->count * (size_t)rank->ranks : what->count;
    char *from = it->from, *to = it->to;
    if (what->in_place && what->kind == 'g')
        from = to + mine;
    else if (what->in_place && what->kind == 's')
        to = from + mine;
    else if (what->in_place)
        from = to;
    prepare(rank, it, it->to, 0, what);
    prepare(rank, it, from, values, what);
    if (!what->in_place)
        memset(it->host, 0x5a, it->bytes);
    expect(rank, it, to, what);
    NEED(nccl_ranks_done(rank, call(rank, from, to, what)));
    nccl_ranks_get(rank, it->host, what->in_place && what->kind == 's' ? it->from : it->to,
                   it->bytes);
    NEED(memcmp(it->host, it->expected, it->bytes) == 0);
    return true;
}

static const struct collective every[] = {
    {'g', ncclInt64, 0, 0, 0, false, 0},         {'g', ncclBfloat16, 0, 0, 0, false, 0},
    {'b', ncclFloat32, 0, 0, 0, false, 0},       {'b', ncclInt64, 0, 1, 0, false, 0},
    {'r', ncclInt64, ncclSum, 0, 0, false, 0},   {'r', ncclUint64, ncclSum, 0, 0, false, 0},
    {'r', ncclFloat32, ncclSum, 0, 0, false, 0}, {'r', ncclFloat64, ncclSum, 0, 0, false, 0},
    {'r', ncclInt64, ncclMax, 0, 0, false, 0},   {'r', ncclInt64, ncclMin, 0, 0, false, 0},
    {'R', ncclFloat32, ncclSum, 0, 0, false, 0}, {'R', ncclBfloat16, ncclSum, 1, 0, false, 0},
    {'R', ncclFloat16, ncclSum, 2, 0, false, 0}, {'s', ncclFloat32, ncclSum, 0, 0, false, 0},
    {'s', ncclFloat16, ncclSum, 0, 0, false, 0}, {'s', ncclBfloat16, ncclSum, 0, 0, false, 0},
};

static bool collectives(struct nccl_rank *rank)
{
    struct buffers it = buffers_of(rank);
    int number = 0;
    for (size_t k = 0; k < sizeof every / sizeof *every; k++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int in_place = 0; in_place < 2; in_place++) {
                struct collective what = every[k];
                what.count = counts[c];
                what.in_place = in_place;
                what.root %= rank->ranks;
                what.try = number++;
                if (test_takes((int)(k + c)))
                    NEED(try_collective(rank, &it, &what));
            }
    forget(&it);
    return true;
}

/* ------------------------------------------------------------------ messages */

static size_t count_between(int from, int to)
{
    return counts[(size_t)(from + 2 * to) % (sizeof counts / sizeof *counts)];
}

static bool all_to_all(struct nccl_rank *rank)
{
    struct buffers it = buffers_of(rank);
    int64_t *host = (int64_t *)(void *)it.host;
    for (int r = 0; r < rank->ranks; r++)
        for (size_t i = 0; i < MOST; i++)
            host[(size_t)r * MOST + i] = (int64_t)any(rank->rank, i, r);
    nccl_ranks_put(rank, it.from, host, it.bytes);
    NEED(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < rank->ranks; r++) {
        const size_t at = (size_t)r * MOST * 8;
        const size_t out = count_between(rank->rank, r), in = count_between(r, rank->rank);
        NEED(ncclSend(it.from + at, out, ncclInt64, r, rank->comm, rank->stream) == ncclSuccess);
        NEED(ncclRecv(it.to + at, in, ncclInt64, r, rank->comm, rank->stream) == ncclSuccess);
    }
    NEED(nccl_ranks_done(rank, ncclGroupEnd()));
    nccl_ranks_get(rank, host, it.to, it.bytes);
    for (int r = 0; r < rank->ranks; r++)
        for (size_t i = 0; i < count_between(r, rank->rank); i++)
            NEED(host[(size_t)r * MOST + i] == (int64_t)any(r, i, rank->rank));
    forget(&it);
    return true;
}

// Rank 0 sends to each, one after the other and without groups; two messages each.
static bool lone_messages(struct nccl_rank *rank)
{
    struct buffers it = buffers_of(rank);
    int64_t *host = (int64_t *)(void *)it.host;
    for (size_t i = 0; i < 2 * MOST && rank->ranks > 1; i++)
        host[i] = (int64_t)any(rank->rank, i, 0);
    nccl_ranks_put(rank, it.from, host, it.bytes);
    for (int r = 1; r < rank->ranks; r++)
        for (size_t k = 0; k < 2; k++) {
            if (rank->rank == 0)
                NEED(
                    nccl_ranks_settled(rank->comm, ncclSend(it.from + k * MOST * 8, MOST, ncclInt64,
                                                            r, rank->comm, rank->stream)) == 0);
            if (rank->rank == r)
                NEED(nccl_ranks_settled(rank->comm, ncclRecv(it.to + k * MOST * 8, MOST, ncclInt64,
                                                             0, rank->comm, rank->stream)) == 0);
        }
    nccl_ranks_get(rank, host, it.to, it.bytes);
    for (size_t i = 0; rank->rank > 0 && i < 2 * MOST; i++)
        NEED(host[i] == (int64_t)any(0, i, 0));
    forget(&it);
    return true;
}

// Each sends what it received: none waits for ever, whatever the others still seem to do.
static bool answers(struct nccl_rank *rank)
{
    int64_t *memory = nccl_ranks_memory(rank, 8), value = 7;
    const int other = 1 - rank->rank;
    nccl_ranks_put(rank, memory, &value, sizeof value);
    for (int i = 0; i < 200 && rank->rank < 2 && rank->ranks > 1; i++)
        NEED(nccl_ranks_settled(
                 rank->comm, i % 2 == rank->rank
                                 ? ncclSend(memory, 1, ncclInt64, other, rank->comm, rank->stream)
                                 : ncclRecv(memory, 1, ncclInt64, other, rank->comm,
                                            rank->stream)) == ncclSuccess);
    NEED(cuStreamSynchronize(rank->stream) == CUDA_SUCCESS);
    return true;
}

// A ring of messages, a sum and two gatherings, all in one group inside another.
static bool grouped(struct nccl_rank *rank)
{
    enum { COUNT = 100 };
    int64_t mine[COUNT], all[8 * COUNT * NCCL_RANKS_MOST];
    const int next = (rank->rank + 1) % rank->ranks;
    const int last = (rank->rank + rank->ranks - 1) % rank->ranks;
    for (size_t i = 0; i < COUNT; i++)
        mine[i] = (int64_t)any(rank->rank, i, 9);
    int64_t *from = nccl_ranks_memory(rank, sizeof mine);
    int64_t *to = nccl_ranks_memory(rank, sizeof all);
    int64_t *gathered = to + 2 * COUNT, *again = gathered + COUNT * NCCL_RANKS_MOST;
    nccl_ranks_put(rank, from, mine, sizeof mine);
    NEED(ncclGroupStart() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    NEED(ncclAllGather(from, gathered, COUNT, ncclInt64, rank->comm, rank->stream) == 0);
    NEED(ncclSend(from, 10, ncclInt64, next, rank->comm, rank->stream) == 0);
    NEED(ncclSend(from + 10, COUNT - 10, ncclInt64, next, rank->comm, rank->stream) == 0);
    NEED(ncclAllReduce(from, to, COUNT, ncclInt64, ncclSum, rank->comm, rank->stream) == 0);
    NEED(ncclGroupEnd() == ncclSuccess);
    NEED(ncclRecv(to + COUNT, 10, ncclInt64, last, rank->comm, rank->stream) == 0);
    NEED(ncclRecv(to + COUNT + 10, COUNT - 10, ncclInt64, last, rank->comm, rank->stream) == 0);
    NEED(ncclAllGather(from, again, COUNT, ncclInt64, rank->comm, rank->stream) == 0);
    NEED(nccl_ranks_done(rank, ncclGroupEnd()));
    nccl_ranks_get(rank, all, to, sizeof all);
    for (size_t i = 0; i < COUNT; i++) {
        int64_t sum;
        sum_value(&sum, ncclInt64, ncclSum, 0, rank->ranks, i, 9);
        NEED(all[i] == sum && all[COUNT + i] == (int64_t)any(last, i, 9));
        for (int r = 0; r < rank->ranks; r++)
            NEED(all[(size_t)(2 + r) * COUNT + i] == (int64_t)any(r, i, 9) &&
                 all[(size_t)(2 + NCCL_RANKS_MOST + r) * COUNT + i] == (int64_t)any(r, i, 9));
    }
    return true;
}

/* ------------------------------------------------------------------ order */

// A communicator's operations are done in the order they were given, whatever their streams.
static bool two_streams(struct nccl_rank *rank)
{
    enum { TIMES = 20 };
    CUstream other;
    int64_t *memory = nccl_ranks_memory(rank, 8), value = 1;
    NEED(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    nccl_ranks_put(rank, memory, &value, sizeof value);
    for (int i = 0; i < TIMES; i++)
        NEED(nccl_ranks_settled(rank->comm,
                                ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, rank->comm,
                                              i % 2 ? other : rank->stream)) == ncclSuccess);
    NEED(cuStreamSynchronize(other) == CUDA_SUCCESS);
    nccl_ranks_get(rank, &value, memory, sizeof value);
    uint64_t expected = 1;
    for (int i = 0; i < TIMES; i++)
        expected *= (uint64_t)rank->ranks;
    NEED((uint64_t)value == expected);
    NEED(cuStreamDestroy(other) == CUDA_SUCCESS);
    return true;
}

// A communicator ends when what it was given is done, whichever rank waits for the stream.
static bool ends_done(struct nccl_rank *rank)
{
    CUstream other = rank->stream;
    int64_t *memory = nccl_ranks_memory(rank, 8), value = 1;
    nccl_ranks_put(rank, memory, &value, sizeof value);
    NEED(nccl_ranks_settled(rank->comm, ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum,
                                                      rank->comm, rank->stream)) == ncclSuccess);
    NEED(ncclCommDestroy(rank->comm) == ncclSuccess);
    NEED(cuStreamCreateWithPriority(&rank->stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    nccl_ranks_get(rank, &value, memory, sizeof value);
    NEED(value == rank->ranks);
    NEED(cuStreamSynchronize(other) == CUDA_SUCCESS && cuStreamDestroy(other) == CUDA_SUCCESS);
    rank->comm = NULL;
    return true;
}

// What the communicator has come to by now.
static ncclResult_t error_of(struct nccl_rank *rank)
{
    ncclResult_t state = ncclInternalError;
    ncclCommGetAsyncError(rank->comm, &state);
    return state;
}

// What is enqueued is not in the stream before the communicator says that it is.
static bool is_late(struct nccl_rank *rank)
{
    int64_t *memory = nccl_ranks_memory(rank, 8), value = 1;
    nccl_ranks_put(rank, memory, &value, sizeof value);
    for (int again = 0; again < 2; again++) {
        ncclResult_t state =
            ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, rank->comm, rank->stream);
        for (int i = 0; i < 5; i++) {
            NEED(state == ncclInProgress);
            NEED(cuStreamSynchronize(rank->stream) == CUDA_SUCCESS);
            NEED(ncclCommGetAsyncError(rank->comm, &state) == ncclSuccess);
        }
        NEED(nccl_ranks_done(rank, state));
    }
    nccl_ranks_get(rank, &value, memory, sizeof value);
    NEED(value == (int64_t)rank->ranks * rank->ranks);
    NEED(ncclCommFinalize(rank->comm) == ncclInProgress);
    nccl_ranks_meet(rank, 1);
    for (int i = 0; i < 5; i++)
        NEED(error_of(rank) == ncclInProgress);
    NEED(nccl_ranks_settled(rank->comm, ncclInProgress) == ncclSuccess);
    NEED(ncclCommDestroy(rank->comm) == ncclSuccess);
    rank->comm = NULL;
    return true;
}

/* ------------------------------------------------------------------ communicators */

static bool splits(struct nccl_rank *rank)
{
    const int color = rank->rank == 1 ? NCCL_SPLIT_NOCOLOR : rank->rank % 2;
    ncclComm_t parent = rank->comm, child = parent;
    NEED(nccl_ranks_settled(parent, ncclCommSplit(parent, color, -rank->rank, &child, NULL)) == 0);
    if (color == NCCL_SPLIT_NOCOLOR) {
        NEED(child == NULL);
        return true;
    }
    int ranks = 0, place = -1, device = -1;
    NEED(nccl_ranks_settled(child, rank->of->blocks ? ncclSuccess : ncclInProgress) == 0);
    NEED(ncclCommCount(child, &ranks) == ncclSuccess);
    NEED(ncclCommUserRank(child, &place) == ncclSuccess);
    NEED(ncclCommCuDevice(child, &device) == ncclSuccess);
    NEED(ranks == (color == 1 ? (rank->ranks == 4) : (rank->ranks + 1) / 2));
    NEED(place == ranks - 1 - rank->rank / 2 + (color == 1));
    NEED(device == rank->rank % NCCL_RANKS_GPUS);
    int64_t *memory = nccl_ranks_memory(rank, 8 * NCCL_RANKS_MOST), all[NCCL_RANKS_MOST];
    const int64_t mine = rank->rank;
    nccl_ranks_put(rank, memory + place, &mine, sizeof mine);
    rank->comm = child;
    NEED(nccl_ranks_done(rank,
                         ncclAllGather(memory + place, memory, 1, ncclInt64, child, rank->stream)));
    nccl_ranks_get(rank, all, memory, (size_t)ranks * 8);
    for (int r = 0; r < ranks; r++)
        NEED(all[r] == color + 2 * (ranks - 1 - r) + (color == 1) * 2);
    NEED(ncclCommDestroy(child) == ncclSuccess);
    rank->comm = parent;
    return true;
}

// An id is good for one communicator.
static bool used_id(struct nccl_rank *rank)
{
    ncclComm_t other;
    nccl_ranks_meet(rank, 1);
    NEED(ncclCommInitRank(&other, rank->ranks, rank->shared->id, rank->rank) == ncclSystemError);
    NEED(other == NULL);
    return true;
}

static bool registers(struct nccl_rank *rank)
{
    char *memory = NULL;
    void *handle = NULL;
    ncclWindow_t window = NULL;
    NEED(ncclMemAlloc((void **)&memory, 3 * 4096) == ncclSuccess);
    NEED(ncclCommRegister(rank->comm, memory, 4096, &handle) == ncclSuccess && handle);
    NEED(nccl_ranks_settled(rank->comm, ncclCommWindowRegister(rank->comm, memory + 4096, 8192,
                                                               &window, NCCL_WIN_COLL_SYMMETRIC)) ==
         ncclSuccess);
    NEED(window);
    NEED(nccl_ranks_done(rank, ncclAllReduce(memory + 4096, memory + 4096, 512, ncclInt64, ncclMax,
                                             rank->comm, rank->stream)));
    nccl_ranks_meet(rank, 1); // the driver's rule for freeing memory
    NEED(ncclCommWindowDeregister(rank->comm, window) == ncclSuccess);
    NEED(ncclCommDeregister(rank->comm, handle) == ncclSuccess);
    NEED(ncclMemFree(memory) == ncclSuccess);
    return true;
}

/* ------------------------------------------------------------------ what is injected */

static bool sum_one(struct nccl_rank *rank, ncclResult_t *state)
{
    int64_t *memory = nccl_ranks_memory(rank, 8);
    *state = nccl_ranks_settled(
        rank->comm, ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, rank->comm, rank->stream));
    return *state == ncclSuccess;
}

// Rank 1's second operation fails; no rank's is over before the abort.
static bool fails_second(struct nccl_rank *rank)
{
    ncclResult_t state;
    CUevent event;
    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    NEED(sum_one(rank, &state));
    NEED(cuStreamSynchronize(rank->stream) == CUDA_SUCCESS);
    NEED(sum_one(rank, &state) || state == ncclSystemError);
    while (rank->rank == 1 && error_of(rank) == ncclSuccess)
        usleep(100);
    NEED(error_of(rank) == (rank->rank == 1 ? ncclSystemError : ncclSuccess));
    NEED(nccl_ranks_under_way(rank, event));
    nccl_ranks_meet(rank, 1);
    NEED(nccl_ranks_abort(rank));
    NEED(cuEventQuery(event) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS);
    return true;
}

// Rank 1 never comes, says nothing of it, and what is enqueued behind has to wait too.
static bool never_comes(struct nccl_rank *rank)
{
    ncclResult_t state;
    CUevent event;
    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    NEED(sum_one(rank, &state) && sum_one(rank, &state) && sum_one(rank, &state));
    NEED(nccl_ranks_under_way(rank, event));
    NEED(error_of(rank) == ncclSuccess);
    nccl_ranks_meet(rank, 1);
    NEED(nccl_ranks_abort(rank));
    NEED(cuEventQuery(event) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS);
    return true;
}

// Rank 1 is killed while all are at work. The others wait, and are told nothing.
static bool dies(struct nccl_rank *rank)
{
    ncclResult_t state;
    CUevent event;
    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    for (int i = 0; i < 5; i++)
        NEED(sum_one(rank, &state));
    if (rank->rank == 1)
        raise(SIGKILL);
    NEED(sum_one(rank, &state) && nccl_ranks_under_way(rank, event) &&
         error_of(rank) == ncclSuccess);
    NEED(nccl_ranks_abort(rank));
    NEED(cuEventDestroy(event) == CUDA_SUCCESS);
    return true;
}

// An abort while a communicator is still being made.
static bool aborts_init(struct nccl_rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (rank->rank != 1)
        NEED(ncclCommInitRankConfig(&rank->comm, rank->ranks, rank->shared->id, rank->rank,
                                    &config) == ncclInProgress);
    nccl_ranks_meet(rank, 1); // an abort of rank 0 ends the id
    if (rank->rank == 1)
        return true;
    for (int i = 0; i < 10; i++)
        NEED(error_of(rank) == ncclInProgress);
    NEED(nccl_ranks_abort(rank));
    return true;
}

/* ------------------------------------------------------------------ tests */

static void run(bool (*body)(struct nccl_rank *), const char *inject)
{
    for (int threads = 0; threads < 2; threads++)
        for (int blocks = 0; blocks < 2; blocks++)
            for (int ranks = 1; ranks <= NCCL_RANKS_MOST; ranks++) {
                const struct nccl_ranks these = {threads, blocks, ranks, inject, false, false};
                if (!test_takes_transport(threads ? "" : "shm"))
                    continue;
                if (!nccl_ranks_run(&these, body))
                    fail_msg("%d %s, %s", ranks, threads ? "threads" : "processes",
                             blocks ? "blocking" : "in progress");
            }
}

#define TEST(body, inject)                                                                         \
    static void test_##body(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        run(body, inject);                                                                         \
    }

TEST(collectives, "")
TEST(all_to_all, "delay=100")
TEST(lone_messages, "delay=100")
TEST(answers, "polls=0")
TEST(grouped, "delay=300,polls=1")
TEST(two_streams, "delay=300")
TEST(ends_done, "delay=30000")
TEST(splits, "delay=50")
TEST(used_id, "")
TEST(registers, "")

static void some(bool (*body)(struct nccl_rank *), struct nccl_ranks these)
{
    for (int threads = 0; threads < 2; threads++)
        for (these.ranks = 2; these.ranks <= 3; these.ranks++) {
            these.threads = threads;
            if (test_takes_transport(threads ? "" : "shm"))
                assert_true(nccl_ranks_run(&these, body));
        }
}

static void late(void **state)
{
    (void)state;
    some(is_late, (struct nccl_ranks){.inject = "polls=5"});
}

static void asynchronous_error(void **state)
{
    (void)state;
    some(fails_second, (struct nccl_ranks){.inject = "error=2,status=2,rank=1"});
    some(fails_second, (struct nccl_ranks){.inject = "error=2,status=2,rank=1", .blocks = true});
}

static void no_peer(void **state)
{
    (void)state;
    some(never_comes, (struct nccl_ranks){.inject = "never=2,rank=1"});
}

static void no_peer_at_init(void **state)
{
    (void)state;
    some(aborts_init, (struct nccl_ranks){.bare = true});
}

static void dead_peer(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        const struct nccl_ranks these = {.ranks = ranks, .inject = "delay=20"};
        if (test_takes_transport("shm"))
            assert_true(nccl_ranks_run(&these, dies));
    }
}

static void version(void **state)
{
    (void)state;
    int number = 0;
    assert_int_equal(ncclGetVersion(&number), ncclSuccess);
    assert_int_equal(number, NCCL_VERSION_CODE);
    assert_string_equal(ncclGetErrorString(ncclSuccess), "no error");
    assert_string_equal(ncclGetErrorString(ncclInProgress), "NCCL operation in progress");
    assert_string_equal(ncclGetErrorString(ncclNumResults), "unknown result code");
}

int main(void)
{
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); // four ranks have three
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_lone_messages),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_ends_done),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_used_id),
        cmocka_unit_test(test_registers),
        cmocka_unit_test(late),
        cmocka_unit_test(asynchronous_error),
        cmocka_unit_test(no_peer),
        cmocka_unit_test(no_peer_at_init),
        cmocka_unit_test(dead_peer),
    };
    return cmocka_run_group_tests_name("nccl_double", tests, NULL, NULL);
}
