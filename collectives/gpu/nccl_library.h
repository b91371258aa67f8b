/**
 * collectives/gpu/nccl_library.h: NVIDIA's collectives, loaded when they are asked for.
 */
#ifndef COLLECTIVES_GPU_NCCL_LIBRARY_H
#define COLLECTIVES_GPU_NCCL_LIBRARY_H

#include "base/error.h"

#include <nccl.h>

/** The functions that are called: as a field, and by their name in <nccl.h>. */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(version, ncclGetVersion)                                                                     \
    X(error_text, ncclGetErrorString)                                                              \
    X(last_error, ncclGetLastError)                                                                \
    X(unique_id, ncclGetUniqueId)                                                                  \
    X(init, ncclCommInitRankConfig)                                                                \
    X(mem_alloc, ncclMemAlloc)                                                                     \
    X(mem_free, ncclMemFree)                                                                       \
    X(enroll, ncclCommRegister)                                                                    \
    X(dismiss, ncclCommDeregister)                                                                 \
    X(count, ncclCommCount)                                                                        \
    X(rank, ncclCommUserRank)                                                                      \
    X(device, ncclCommCuDevice)                                                                    \
    X(async_error, ncclCommGetAsyncError)                                                          \
    X(abort, ncclCommAbort)                                                                        \
    X(group_start, ncclGroupStart)                                                                 \
    X(group_end, ncclGroupEnd)                                                                     \
    X(all_gather, ncclAllGather)                                                                   \
    X(send, ncclSend)                                                                              \
    X(receive, ncclRecv)                                                                           \
    X(reduce_scatter, ncclReduceScatter)                                                           \
    X(reduce, ncclReduce)

struct nccl_library {
#define NCCL_FIELD(field, function) __typeof__(function) *(field);
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
};

/** The library, loaded by the first call that can. ZERO_E_UNSUPPORTED: *library is NULL; there is
 * none, it is too old, or it lacks a function. *Local*, any thread. */
zero_result nccl_library(const struct nccl_library **library, struct base_error *error);

/** The library, for callers that have called nccl_library() before: never NULL. */
const struct nccl_library *nccl_loaded(void);

#endif
