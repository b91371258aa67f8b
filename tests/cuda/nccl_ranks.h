/**
 * tests/cuda/nccl_ranks.h: ranks with NCCL's double (nccl_double.h), which are processes or
 * threads: each has entered a GPU, and has a stream and a communicator of all.
 */
#ifndef TESTS_CUDA_NCCL_RANKS_H
#define TESTS_CUDA_NCCL_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cuda.h>
#include <nccl.h>

// Fewer GPUs than ranks.
enum { NCCL_RANKS_MOST = 4, NCCL_RANKS_GPUS = 3, NCCL_RANKS_MEMORIES = 16 };

/** What all ranks see. */
struct nccl_shared {
    ncclUniqueId id;
    _Atomic int has_id, said, ended, failed, killed;
    _Atomic int word; // a test's own
    char complaints[NCCL_RANKS_MOST][256];
};

struct nccl_ranks {
    bool threads; /**< or else processes */
    bool blocks;  /**< or else communicators are in progress */
    int ranks;
    const char *inject; /**< settings for all; NULL: none */
    bool fails;         /**< what is done ends with complaints, which are checked later */
    bool bare;          /**< no communicator is made */
};

struct nccl_rank {
    const struct nccl_ranks *of;
    struct nccl_shared *shared;
    int rank, ranks;
    CUstream stream;
    ncclComm_t comm; /**< destroyed afterwards unless NULL */
    void *memories[NCCL_RANKS_MEMORIES];
};

/** What holds, or is said and makes the rank's test fail. */
#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d of %d: not so: %s\n", __FILE__, __LINE__, rank->rank,  \
                    rank->ranks, #condition);                                                      \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/** Runs `body` as each rank; whether it held on all, and nothing was left. A body that fails leaves
 * the others waiting: then all are ended. */
bool nccl_ranks_run(const struct nccl_ranks *ranks, bool (*body)(struct nccl_rank *));

/** Whether the last run's complaints, of which there are some, all have one of these words. */
bool nccl_ranks_complained(const char *words);

/** A function of the double by its name, as in nccl_double.h. */
void *nccl_double_function(const char *name);

/** Whether a call was right, be it in progress, and what the communicator says when it no longer
 * is. */
ncclResult_t nccl_ranks_settled(ncclComm_t comm, ncclResult_t result);
/** The same, and the stream is done. */
bool nccl_ranks_done(struct nccl_rank *rank, ncclResult_t result);

/** Whether the stream still has something to do, behind which it records this event. */
bool nccl_ranks_under_way(struct nccl_rank *rank, CUevent event);

/** Has another thread abort the communicator, as a watchdog does, and waits for the stream. */
bool nccl_ranks_abort(struct nccl_rank *rank);

/** Memory of the GPU until the rank's end; what is copied to it and from it is there. */
void *nccl_ranks_memory(struct nccl_rank *rank, size_t size);
void nccl_ranks_put(struct nccl_rank *rank, void *memory, const void *bytes, size_t size);
void nccl_ranks_get(struct nccl_rank *rank, void *bytes, const void *memory, size_t size);

/** All ranks have come here, for the number-th time. */
void nccl_ranks_meet(struct nccl_rank *rank, int number);

#endif
