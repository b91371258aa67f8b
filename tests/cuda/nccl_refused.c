// NCCL's double (nccl_double.h) complains of what may not be, and the communicator fails.
#include "tests/cuda/nccl_double.h"

#include "tests/cuda/nccl_ranks.h"
#include "tests/sweep.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 64, BYTES = 8 * COUNT };

/* ------------------------------------------------------------------ pieces of bodies */

static ncclResult_t error_of(const struct nccl_rank *rank)
{
    ncclResult_t state = ncclInternalError;
    ncclCommGetAsyncError(rank->comm, &state);
    return state;
}

// This rank's communicator comes to fail, and is aborted.
static bool fails(struct nccl_rank *rank, ncclResult_t with)
{
    while (error_of(rank) == ncclSuccess || error_of(rank) == ncclInProgress)
        usleep(100);
    NEED(error_of(rank) == with);
    nccl_ranks_meet(rank, 1);
    NEED(nccl_ranks_abort(rank));
    return true;
}

// The call was refused at once, and everyone aborts.
static bool refused(struct nccl_rank *rank, ncclResult_t result, ncclResult_t with)
{
    NEED(result == with);
    return fails(rank, with);
}

static ncclResult_t sum(struct nccl_rank *rank, int64_t *memory)
{
    return ncclAllReduce(memory, memory, COUNT, ncclInt64, ncclSum, rank->comm, rank->stream);
}

// A group in progress, or done, or what it says.
static ncclResult_t ended(struct nccl_rank *rank)
{
    return nccl_ranks_settled(rank->comm, ncclGroupEnd());
}

static int64_t *memory_of(struct nccl_rank *rank)
{
    return nccl_ranks_memory(rank, (size_t)(2 + rank->ranks) * BYTES);
}

/* ------------------------------------------------------------------ ranks that differ */

static bool other_count(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    nccl_ranks_settled(rank->comm, sum(rank, memory));
    nccl_ranks_settled(rank->comm,
                       ncclAllGather(memory, memory + COUNT, rank->rank == 1 ? COUNT : COUNT - 1,
                                     ncclInt64, rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool other_count_zero(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    nccl_ranks_settled(rank->comm,
                       ncclAllGather(memory, memory + COUNT, rank->rank == 1 ? 0 : COUNT, ncclInt64,
                                     rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool other_type(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const ncclDataType_t type = rank->rank == 1 ? ncclInt64 : ncclUint64;
    nccl_ranks_settled(
        rank->comm, ncclAllReduce(memory, memory, COUNT, type, ncclSum, rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool other_operation(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const ncclRedOp_t operation = rank->rank == 1 ? ncclMax : ncclSum;
    nccl_ranks_settled(rank->comm, ncclAllReduce(memory, memory, COUNT, ncclInt64, operation,
                                                 rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool other_root(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    nccl_ranks_settled(rank->comm, ncclBroadcast(memory, memory, COUNT, ncclInt64, rank->rank % 2,
                                                 rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool other_order(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank), *behind = memory + (1 + rank->ranks) * COUNT;
    ncclGroupStart();
    for (int i = 0; i < 2; i++)
        if (i == rank->rank % 2)
            ncclAllGather(memory, memory + COUNT, COUNT, ncclInt64, rank->comm, rank->stream);
        else
            ncclBroadcast(behind, behind, 1, ncclInt64, 0, rank->comm, rank->stream);
    ended(rank);
    return fails(rank, ncclInvalidUsage);
}

static bool other_message(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const int next = (rank->rank + 1) % rank->ranks;
    const int last = (rank->rank + rank->ranks - 1) % rank->ranks;
    ncclGroupStart();
    ncclSend(memory, COUNT, ncclInt64, next, rank->comm, rank->stream);
    ncclRecv(memory + COUNT, COUNT - 1, ncclInt64, last, rank->comm, rank->stream);
    ended(rank);
    return fails(rank, ncclInvalidUsage);
}

static bool other_call(struct nccl_rank *rank)
{
    ncclComm_t child = NULL;
    ncclResult_t result = rank->rank == 1 ? ncclCommFinalize(rank->comm)
                                          : ncclCommSplit(rank->comm, 0, 0, &child, NULL);
    nccl_ranks_settled(rank->comm, result);
    return fails(rank, ncclInvalidUsage);
}

static bool other_window(struct nccl_rank *rank)
{
    void *memory;
    ncclWindow_t window;
    NEED(ncclMemAlloc(&memory, 8192) == ncclSuccess);
    nccl_ranks_settled(rank->comm,
                       ncclCommWindowRegister(rank->comm, (char *)memory + rank->rank % 2 * 4096,
                                              4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    NEED(fails(rank, ncclInvalidUsage));
    nccl_ranks_meet(rank, 2);
    NEED(ncclMemFree(memory) == ncclSuccess);
    return true;
}

/* ------------------------------------------------------------------ that wait for ever */

static bool all_send(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const int next = (rank->rank + 1) % rank->ranks;
    const int last = (rank->rank + rank->ranks - 1) % rank->ranks;
    nccl_ranks_settled(rank->comm, ncclSend(memory, 1, ncclInt64, next, rank->comm, rank->stream));
    nccl_ranks_settled(rank->comm,
                       ncclRecv(memory + COUNT, 1, ncclInt64, last, rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

static bool all_receive(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const int next = (rank->rank + 1) % rank->ranks;
    nccl_ranks_settled(rank->comm, ncclRecv(memory, 1, ncclInt64, next, rank->comm, rank->stream));
    return fails(rank, ncclInvalidUsage);
}

/* ------------------------------------------------------------------ calls that are refused */

static bool end_without_start(struct nccl_rank *rank)
{
    NEED(ncclGroupEnd() == ncclInvalidUsage);
    return true;
}

static bool default_stream(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    CUstream const streams[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    return refused(
        rank,
        ncclAllReduce(memory, memory, COUNT, ncclInt64, ncclSum, rank->comm, streams[rank->rank]),
        ncclInvalidUsage);
}

static bool overlaps(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    ncclResult_t result = ncclSuccess;
    if (rank->rank == 0) // in place would be memory itself
        result = ncclAllGather(memory + 1, memory, COUNT, ncclInt64, rank->comm, rank->stream);
    else if (rank->rank == 1) // or memory + COUNT
        result = ncclReduceScatter(memory, memory, COUNT, ncclFloat32, ncclSum, rank->comm,
                                   rank->stream);
    else
        result = ncclAllReduce(memory, memory + COUNT - 1, COUNT, ncclInt64, ncclSum, rank->comm,
                               rank->stream);
    return refused(rank, result, ncclInvalidUsage);
}

static bool overlap_in_group(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    ncclGroupStart();
    NEED(sum(rank, memory) == ncclSuccess);
    NEED(ncclSend(memory + COUNT - 1, 2, ncclInt64, 0, rank->comm, rank->stream) ==
         ncclInvalidUsage);
    return refused(rank, ended(rank), ncclInvalidUsage);
}

static bool streams_in_group(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    CUstream other;
    NEED(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    ncclGroupStart();
    NEED(sum(rank, memory) == ncclSuccess);
    NEED(ncclAllReduce(memory + COUNT, memory + COUNT, 1, ncclInt64, ncclMax, rank->comm, other) ==
         ncclInvalidUsage);
    NEED(refused(rank, ended(rank), ncclInvalidUsage));
    NEED(cuStreamDestroy(other) == CUDA_SUCCESS);
    return true;
}

static bool bad_arguments(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const ncclComm_t comm = rank->comm;
    ncclResult_t result = ncclSuccess;
    if (rank->rank == 0)
        result =
            ncclReduceScatter(memory, memory + COUNT, 1, ncclFloat64, ncclSum, comm, rank->stream);
    else if (rank->rank == 1)
        result = ncclBroadcast(memory, memory, 1, ncclInt64, rank->ranks, comm, rank->stream);
    else
        result = ncclAllGather((char *)memory + 1, memory + 1, 1, ncclInt64, comm, rank->stream);
    return refused(rank, result, ncclInvalidArgument);
}

static bool in_progress(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    NEED(sum(rank, memory) == ncclInProgress);
    return refused(rank, sum(rank, memory), ncclInvalidArgument);
}

static bool after_destroy(struct nccl_rank *rank)
{
    const ncclComm_t comm = rank->comm;
    NEED(ncclCommDestroy(comm) == ncclSuccess);
    rank->comm = NULL;
    NEED(ncclCommDestroy(comm) == ncclInvalidArgument);
    return true;
}

static bool after_abort(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    const ncclComm_t comm = rank->comm;
    ncclResult_t state;
    NEED(nccl_ranks_abort(rank));
    NEED(ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, comm, rank->stream) ==
         ncclInvalidArgument);
    NEED(ncclCommGetAsyncError(comm, &state) == ncclInvalidArgument);
    NEED(ncclCommAbort(comm) == ncclInvalidArgument);
    return true;
}

static bool after_finalize(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    NEED(nccl_ranks_settled(rank->comm, ncclCommFinalize(rank->comm)) == ncclSuccess);
    return refused(rank, sum(rank, memory), ncclInvalidArgument);
}

static bool failed_destroyed(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    NEED(ncclAllReduce(memory, memory, 1, ncclInt64, ncclProd, rank->comm, rank->stream) ==
         ncclInvalidArgument);
    NEED(ncclCommDestroy(rank->comm) == ncclInvalidUsage);
    return fails(rank, ncclInvalidArgument);
}

// What was enqueued before stays.
static bool failed_waits(struct nccl_rank *rank)
{
    int64_t *memory = memory_of(rank);
    CUevent event;
    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    if (rank->rank == 0) {
        NEED(nccl_ranks_settled(rank->comm, sum(rank, memory)) == ncclSuccess);
        NEED(ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, rank->comm, NULL) ==
             ncclInvalidUsage);
    }
    nccl_ranks_meet(rank, 1);
    if (rank->rank > 0)
        NEED(nccl_ranks_settled(rank->comm, sum(rank, memory)) == ncclSuccess);
    NEED(rank->rank > 0 || nccl_ranks_under_way(rank, event));
    nccl_ranks_meet(rank, 2);
    NEED(nccl_ranks_abort(rank));
    NEED(cuEventDestroy(event) == CUDA_SUCCESS);
    return true;
}

static bool registered_destroyed(struct nccl_rank *rank)
{
    void *memory, *handle;
    NEED(ncclMemAlloc(&memory, 8192) == ncclSuccess);
    NEED(ncclCommRegister(rank->comm, memory, 8192, &handle) == ncclSuccess);
    NEED(refused(rank, ncclCommDestroy(rank->comm), ncclInvalidUsage));
    nccl_ranks_meet(rank, 2);
    NEED(ncclMemFree(memory) == ncclSuccess);
    return true;
}

static bool registered_freed(struct nccl_rank *rank)
{
    void *memory, *handle;
    NEED(ncclMemAlloc(&memory, 8192) == ncclSuccess);
    NEED(ncclCommRegister(rank->comm, memory, 8192, &handle) == ncclSuccess);
    nccl_ranks_meet(rank, 1);
    NEED(ncclMemFree(memory) == ncclInvalidUsage);
    NEED(ncclCommDeregister(rank->comm, handle) == ncclSuccess);
    return true;
}

static bool no_window(struct nccl_rank *rank)
{
    ncclWindow_t window; // not memory of ncclMemAlloc
    return refused(rank,
                   ncclCommWindowRegister(rank->comm, memory_of(rank), BYTES, &window,
                                          NCCL_WIN_COLL_SYMMETRIC),
                   ncclInvalidArgument);
}

static bool managing_in_group(struct nccl_rank *rank)
{
    ncclComm_t child;
    ncclGroupStart();
    NEED(ncclCommSplit(rank->comm, 0, 0, &child, NULL) == ncclInvalidUsage);
    NEED(ncclGroupEnd() == ncclSuccess);
    return true;
}

struct question {
    ncclComm_t comm;
    ncclResult_t result;
};

static void *ask(void *argument)
{
    struct question *question = argument;
    ncclResult_t state;
    question->result = ncclCommGetAsyncError(question->comm, &state);
    return NULL;
}

// While this thread has a group with it, another one asks.
static bool two_threads(struct nccl_rank *rank)
{
    struct question other = {rank->comm, ncclSuccess};
    pthread_t thread;
    ncclGroupStart();
    NEED(sum(rank, memory_of(rank)) == ncclSuccess);
    NEED(pthread_create(&thread, NULL, ask, &other) == 0);
    pthread_join(thread, NULL);
    NEED(other.result == ncclInvalidUsage);
    ncclGroupEnd();
    return fails(rank, ncclInvalidUsage);
}

static bool others_stream(struct nccl_rank *rank)
{
    CUcontext context;
    CUstream other;
    NEED(cuDevicePrimaryCtxRetain(&context, (rank->rank + 1) % 3) == CUDA_SUCCESS);
    NEED(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    NEED(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    NEED(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    int64_t *memory = memory_of(rank);
    nccl_ranks_settled(rank->comm,
                       ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, rank->comm, other));
    NEED(fails(rank, ncclInvalidUsage));
    NEED(cuStreamDestroy(other) == CUDA_SUCCESS);
    return true;
}

/* ------------------------------------------------------------------ beginnings */

static ncclResult_t make(struct nccl_rank *rank, int ranks, int as)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = rank->of->blocks;
    const ncclResult_t result =
        ncclCommInitRankConfig(&rank->comm, ranks, rank->shared->id, as, &config);
    return rank->comm ? nccl_ranks_settled(rank->comm, result) : result;
}

static bool no_gpu(struct nccl_rank *rank)
{
    CUcontext context;
    NEED(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    NEED(make(rank, rank->ranks, rank->rank) == ncclInvalidUsage && !rank->comm);
    NEED(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    nccl_ranks_meet(rank, 1);
    if (rank->rank == 0) // ends the id, which no rank has used
        NEED(make(rank, 1, 0) == ncclSuccess);
    return true;
}

static bool same_gpu(struct nccl_rank *rank)
{
    CUcontext context;
    NEED(cuDevicePrimaryCtxRetain(&context, 2) == CUDA_SUCCESS);
    NEED(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    NEED(make(rank, rank->ranks, rank->rank) == ncclInvalidUsage);
    nccl_ranks_meet(rank, 1);
    if (rank->comm)
        NEED(ncclCommAbort(rank->comm) == ncclSuccess);
    rank->comm = NULL;
    NEED(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    return true;
}

// Rank 0 waits for one more, the others see it.
static bool other_number(struct nccl_rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    NEED(ncclCommInitRankConfig(&rank->comm, rank->ranks + (rank->rank == 0), rank->shared->id,
                                rank->rank, &config) == ncclInProgress);
    if (rank->rank > 0)
        return fails(rank, ncclInvalidUsage);
    nccl_ranks_meet(rank, 1);
    NEED(error_of(rank) == ncclInProgress);
    NEED(nccl_ranks_abort(rank));
    return true;
}

// All say that they are rank 0, and one of them is. Who comes when the id's maker was refused is
// late.
static bool same_rank(struct nccl_rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result =
        ncclCommInitRankConfig(&rank->comm, rank->ranks, rank->shared->id, 0, &config);
    NEED(rank->comm ? result == ncclInProgress
                    : result == ncclInvalidUsage || result == ncclSystemError);
    atomic_fetch_add(&rank->shared->word, rank->comm != NULL);
    nccl_ranks_meet(rank, 1);
    NEED(atomic_load(&rank->shared->word) == 1);
    if (rank->comm)
        NEED(nccl_ranks_abort(rank));
    return true;
}

static bool bad_rank(struct nccl_rank *rank)
{
    NEED(make(rank, rank->ranks, rank->ranks) == ncclInvalidArgument);
    nccl_ranks_meet(rank, 1);
    if (rank->rank == 0)
        NEED(make(rank, 1, 0) == ncclSuccess);
    return true;
}

/* ------------------------------------------------------------------ tests */

static void refuse(bool (*body)(struct nccl_rank *), const char *words, struct nccl_ranks these)
{
    these.fails = true;
    for (int threads = 0; threads < 2; threads++)
        for (these.ranks = 2; these.ranks <= 3; these.ranks++) {
            these.threads = threads;
            if (!test_takes_transport(threads ? "" : "shm"))
                continue;
            if (!nccl_ranks_run(&these, body) || !nccl_ranks_complained(words))
                fail_msg("%d %s: no '%s'", these.ranks, threads ? "threads" : "processes", words);
        }
}

struct refusal {
    bool (*body)(struct nccl_rank *);
    const char *words;
};

static void both(const struct refusal *refusals, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int blocks = 0; blocks < 2; blocks++)
            refuse(refusals[i].body, refusals[i].words,
                   (struct nccl_ranks){.blocks = blocks, .inject = "delay=50"});
}

#define BOTH(...)                                                                                  \
    do {                                                                                           \
        static const struct refusal refusals[] = {__VA_ARGS__};                                    \
        (void)state;                                                                               \
        both(refusals, sizeof refusals / sizeof *refusals);                                        \
    } while (0)

static void ranks_differ(void **state)
{
    BOTH({other_count, "all-gather of 6"}, {other_count_zero, "all-gather of 0"},
         {other_type, "all-reduce of 64, type "}, {other_operation, "operation 2"},
         {other_root, "root 1"}, {other_order, "is broadcast of 1"}, {other_message, "receive"},
         {other_call, "call is no."}, {other_window, "call no. 3: rank "});
}

static void ranks_wait(void **state)
{
    BOTH({all_send, "waits for ever"}, {all_receive, "waits for ever"});
}

static void calls(void **state)
{
    BOTH({end_without_start, "ends that has not begun"}, {default_stream, "the default stream"},
         {overlaps, "not in place"}, {overlap_in_group, "operations of a group overlap"},
         {streams_in_group, "several streams"}, {bad_arguments, ""},
         {others_stream, "stream of another GPU"}, {managing_in_group, "call in a group"},
         {two_threads, "two threads"}, {no_window, "no window"});
    refuse(in_progress, "used in progress", (struct nccl_ranks){.inject = "polls=1"});
}

static void ends(void **state)
{
    BOTH({after_destroy, "after its end"}, {after_abort, "after its end"},
         {after_finalize, "when finalized"}, {failed_destroyed, "is not here"},
         {failed_waits, "the default stream"}, {registered_destroyed, "still has registrations"},
         {registered_freed, "freed that is registered"});
}

static void beginnings(void **state)
{
    (void)state;
    struct nccl_ranks these = {.bare = true};
    refuse(other_number, "call no. 0: rank ", these);
    refuse(same_rank, "rank 0 is there already", these);
    for (int blocks = 0; blocks < 2; blocks++) {
        these.blocks = blocks;
        refuse(no_gpu, "no GPU is entered", these);
        refuse(bad_rank, "rank ", these);
        unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
        refuse(same_gpu, "Duplicate GPU", these);
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    }
}

int main(void)
{
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); // the driver has three
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_differ), cmocka_unit_test(ranks_wait), cmocka_unit_test(calls),
        cmocka_unit_test(ends),         cmocka_unit_test(beginnings),
    };
    return cmocka_run_group_tests_name("nccl_refused", tests, NULL, NULL);
}
