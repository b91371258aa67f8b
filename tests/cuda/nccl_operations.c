#include "tests/cuda/nccl_inner.h"

#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { MOST_COMMS_OF_A_GROUP = 16 };

// The group that this thread has begun: a launch for each communicator.
static _Thread_local struct {
    int depth;
    ncclResult_t result;
    size_t count;
    struct nccl_launch *launches[MOST_COMMS_OF_A_GROUP];
    struct ncclComm *aborted;
} group;

struct range {
    const char *at;
    size_t bytes;
};

size_t nccl_type_bytes(int type)
{
    static const size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < ncclNumTypes ? bytes[type] : 0;
}

/* ------------------------------------------------------------------ checks */

static size_t block_of(const struct nccl_operation *operation)
{
    return operation->what.count * nccl_type_bytes(operation->what.type);
}

static struct range read_of(const struct ncclComm *comm, const struct nccl_operation *operation)
{
    const size_t block = block_of(operation), ranks = (size_t)comm->ranks;
    const int kind = operation->what.kind;
    const bool none = kind == RECEIVE || (kind == BROADCAST && operation->what.root != comm->rank);
    return (struct range){operation->from, none                     ? 0
                                           : kind == REDUCE_SCATTER ? ranks * block
                                                                    : block};
}

static struct range written_of(const struct ncclComm *comm, const struct nccl_operation *operation)
{
    const size_t block = block_of(operation), ranks = (size_t)comm->ranks;
    const int kind = operation->what.kind;
    const bool none = kind == SEND || (kind == REDUCE && operation->what.root != comm->rank);
    return (struct range){operation->to, none ? 0 : kind == ALL_GATHER ? ranks * block : block};
}

static bool overlap(struct range a, struct range b)
{
    return a.bytes > 0 && b.bytes > 0 && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

static bool is_in_place(const struct ncclComm *comm, const struct nccl_operation *operation)
{
    const size_t mine = (size_t)comm->rank * block_of(operation);
    if (operation->what.kind == ALL_GATHER)
        return operation->from == operation->to + mine;
    if (operation->what.kind == REDUCE_SCATTER)
        return operation->to == operation->from + mine;
    return operation->from == operation->to;
}

static bool is_reduction(const struct nccl_signature *what)
{
    const int type = what->type, reduction = what->reduction;
    if (what->kind == REDUCE_SCATTER || what->kind == REDUCE)
        return reduction == ncclSum &&
               (type == ncclFloat32 || type == ncclFloat16 || type == ncclBfloat16);
    if (what->kind != ALL_REDUCE)
        return true;
    if (reduction == ncclMax || reduction == ncclMin)
        return type == ncclInt64;
    return reduction == ncclSum &&
           (type == ncclInt64 || type == ncclUint64 || type == ncclFloat32 || type == ncclFloat64);
}

static ncclResult_t check(struct ncclComm *comm, const struct nccl_operation *operation,
                          CUstream stream)
{
    const struct nccl_signature *what = &operation->what;
    const struct range read = read_of(comm, operation), written = written_of(comm, operation);
    const size_t size = nccl_type_bytes(what->type);
    if (size == 0 || !is_reduction(what))
        return nccl_refuse(comm, ncclInvalidArgument, "type %d with reduction %d is not here",
                           what->type, what->reduction);
    if (what->root < 0 || what->root >= comm->ranks)
        return nccl_refuse(comm, ncclInvalidArgument, "rank %d of %d", what->root, comm->ranks);
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return nccl_refuse(comm, ncclInvalidUsage, "the default stream");
    if ((read.bytes > 0 && (!read.at || (uintptr_t)read.at % size != 0)) ||
        (written.bytes > 0 && (!written.at || (uintptr_t)written.at % size != 0)))
        return nccl_refuse(comm, ncclInvalidArgument, "no memory, or not aligned: %p, %p",
                           (const void *)read.at, (const void *)written.at);
    if (nccl_is_unregistered(comm, read.at, read.bytes) ||
        nccl_is_unregistered(comm, written.at, written.bytes))
        return nccl_refuse(comm, ncclInvalidUsage,
                           "memory that is not registered, beside some that is: %p, %p",
                           (const void *)read.at, (const void *)written.at);
    if (overlap(read, written) && !is_in_place(comm, operation))
        return nccl_refuse(comm, ncclInvalidUsage, "buffers overlap and it is not in place: %p, %p",
                           (const void *)read.at, (const void *)written.at);
    return ncclSuccess;
}

// Of an operation with the others of its launch.
static ncclResult_t check_beside(struct ncclComm *comm, const struct nccl_launch *launch,
                                 const struct nccl_operation *operation, CUstream stream)
{
    const struct range read = read_of(comm, operation), written = written_of(comm, operation);
    if (launch->stream != stream)
        return nccl_refuse(comm, ncclInvalidUsage, "a group in several streams");
    for (size_t i = 0; i < launch->count; i++) {
        const struct nccl_operation *other = &launch->operations[i];
        const struct range their_write = written_of(comm, other);
        if (overlap(written, their_write) || overlap(read, their_write) ||
            overlap(written, read_of(comm, other)))
            return nccl_refuse(comm, ncclInvalidUsage, "operations of a group overlap");
    }
    return ncclSuccess;
}

/* ------------------------------------------------------------------ launches */

static void number(struct ncclComm *comm, struct nccl_launch *launch)
{
    launch->number = comm->launches++;
    for (size_t i = 0; i < launch->count; i++) {
        struct nccl_operation *operation = &launch->operations[i];
        operation->number = ++comm->operations;
        if (operation->what.kind == SEND)
            operation->message = comm->sends[operation->what.root]++;
        if (operation->what.kind == RECEIVE)
            operation->message = comm->receives[operation->what.root]++;
    }
}

static ncclResult_t submit(struct nccl_launch *launch)
{
    struct ncclComm *comm = launch->comm;
    number(comm, launch);
    comm->launch = launch;
    comm->waits = A_LAUNCH;
    comm->polls = comm->blocks ? 0 : comm->faults.polls;
    return comm->polls > 0 ? ncclInProgress : nccl_give(comm);
}

static struct nccl_launch *extended(struct nccl_launch *launch, struct ncclComm *comm,
                                    const struct nccl_operation *operation, CUstream stream)
{
    const size_t count = launch ? launch->count : 0;
    struct nccl_launch *longer =
        realloc(launch, sizeof *longer + (count + 1) * sizeof longer->operations[0]);
    if (!longer)
        abort();
    if (!launch)
        *longer = (struct nccl_launch){.comm = comm, .stream = stream, .grouped = group.depth > 0};
    longer->operations[longer->count] = *operation;
    longer->operations[longer->count++].what.registered = comm->registrations != NULL;
    return longer;
}

static struct nccl_launch **launch_of(const struct ncclComm *comm)
{
    for (size_t i = 0; i < group.count; i++)
        if (group.launches[i]->comm == comm)
            return &group.launches[i];
    return NULL;
}

bool nccl_in_group(const struct ncclComm *comm, bool *has_any)
{
    *has_any = launch_of(comm) != NULL;
    return group.depth > 0;
}

void nccl_end_with_group(struct ncclComm *comm)
{
    comm->ends = group.aborted;
    group.aborted = comm;
}

static ncclResult_t add(struct ncclComm *comm, const struct nccl_operation *operation,
                        CUstream stream)
{
    struct nccl_launch **at = launch_of(comm), *launch = at ? *at : NULL;
    ncclResult_t result = check(comm, operation, stream);
    if (result == ncclSuccess && launch)
        result = check_beside(comm, launch, operation, stream);
    if (result != ncclSuccess)
        return result;
    if (group.depth == 0)
        return submit(extended(NULL, comm, operation, stream));
    if (!at && group.count == MOST_COMMS_OF_A_GROUP)
        return nccl_refuse(comm, ncclInvalidUsage, "too many communicators in a group");
    if (!at)
        at = &group.launches[group.count++];
    *at = extended(launch, comm, operation, stream);
    return ncclSuccess;
}

static ncclResult_t enqueue(struct ncclComm *comm, const struct nccl_operation *operation,
                            cudaStream_t stream)
{
    ncclResult_t result = nccl_enter_ready(comm);
    if (result == ncclSuccess) {
        result = add(comm, operation, stream);
        nccl_leave(comm);
    }
    if (group.depth > 0 && group.result == ncclSuccess)
        group.result = result;
    return result;
}

/* ------------------------------------------------------------------ NCCL's functions */

EXPORTED ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0)
        return nccl_refuse(NULL, ncclInvalidUsage, "a group ends that has not begun");
    if (--group.depth > 0)
        return ncclSuccess;
    const size_t count = group.count;
    const ncclResult_t failure = group.result;
    ncclResult_t result = failure;
    group.count = 0;
    group.result = ncclSuccess;
    for (size_t i = 0; i < count; i++) {
        struct ncclComm *comm = group.launches[i]->comm;
        ncclResult_t one = ncclSuccess;
        if (failure == ncclSuccess)
            one = submit(group.launches[i]);
        else
            free(group.launches[i]);
        nccl_leave(comm);
        if (result == ncclSuccess || result == ncclInProgress)
            result = one == ncclSuccess ? result : one;
    }
    struct ncclComm *const aborted = group.aborted;
    group.aborted = NULL;
    const ncclResult_t ended = nccl_end(aborted);
    return result == ncclSuccess ? ended : result;
}

static struct nccl_operation operation_of(enum nccl_kind kind, const void *from, void *to,
                                          size_t count, int type, int reduction, int root)
{
    return (struct nccl_operation){
        .what = {count, (int32_t)kind, type, reduction, root, 0, 0}, .from = from, .to = to};
}

EXPORTED ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                                    ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it = operation_of(ALL_GATHER, from, to, count, (int)type, 0, 0);
    return enqueue(comm, &it, stream);
}

EXPORTED ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it =
        operation_of(ALL_REDUCE, from, to, count, (int)type, (int)op, 0);
    return enqueue(comm, &it, stream);
}

EXPORTED ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                        cudaStream_t stream)
{
    const struct nccl_operation it =
        operation_of(REDUCE_SCATTER, from, to, count, (int)type, (int)op, 0);
    return enqueue(comm, &it, stream);
}

#ifndef NCCL_DOUBLE_OLD // that one lacks something
EXPORTED ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it =
        operation_of(REDUCE, from, to, count, (int)type, (int)op, root);
    return enqueue(comm, &it, stream);
}
#endif

EXPORTED ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type,
                                    int root, ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it = operation_of(BROADCAST, from, to, count, (int)type, 0, root);
    return enqueue(comm, &it, stream);
}

EXPORTED ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it = operation_of(SEND, from, NULL, count, (int)type, 0, peer);
    return enqueue(comm, &it, stream);
}

EXPORTED ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_operation it = operation_of(RECEIVE, NULL, to, count, (int)type, 0, peer);
    return enqueue(comm, &it, stream);
}
