/**
 * tests/cuda/nccl_theirs.h: a communicator of NCCL that a program makes for itself, to lend it.
 */
#ifndef TESTS_CUDA_NCCL_THEIRS_H
#define TESTS_CUDA_NCCL_THEIRS_H

#include <stdbool.h>

#include <nccl.h>

/** What is called of NCCL, the double or a real one. */
struct nccl_theirs {
    __typeof__(ncclGetUniqueId) *unique_id;
    __typeof__(ncclCommInitRankConfig) *init;
    __typeof__(ncclCommGetAsyncError) *state;
    __typeof__(ncclCommAbort) *abort;
    __typeof__(ncclAllGather) *all_gather;
};

/** Finds it; false: there is no NCCL here, or it lacks something, which is said. */
bool nccl_theirs_find(struct nccl_theirs *nccl);

/** Begins to make a communicator; it is being made until nccl_theirs_settles(). */
ncclResult_t nccl_theirs_make(const struct nccl_theirs *nccl, const ncclUniqueId *id, int rank,
                              int world, ncclComm_t *comm);

/** Waits for what a call has begun, whose result is given; whether it went well. */
bool nccl_theirs_settles(const struct nccl_theirs *nccl, ncclComm_t comm, ncclResult_t result);

#endif
