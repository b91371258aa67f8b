/**
 * tests/cuda/device_ranks.h: ranks with a GPU each, or a share in one, and collectives of its
 * memory (collectives/gpu/gcomm.h) over NCCL, or over what is there in its place (nccl_double.h).
 */
#ifndef TESTS_CUDA_DEVICE_RANKS_H
#define TESTS_CUDA_DEVICE_RANKS_H

#include "collectives/gpu/gcomm.h"
#include "tests/unit/coll_ranks.h"

enum { DEVICE_RANKS_MOST = 4, DEVICE_RANKS_MEMORIES = 16 };

struct device_ranks {
    const char
        *host; /**< transport of the ranks' own: "shm", "tcp" (processes) or "threads"; NULL: shm */
    int world;
    const char *transport; /**< of the collectives; NULL: "nccl" */
    const char *inject;    /**< settings of the double; NULL: none */
    uint64_t timeout_ns;   /**< 0: the host's */
    uint64_t host_ns;      /**< that; 0: a minute */
    int killed;            /**< a rank that will be, plus one; 0: none */
    bool fails;            /**< the host's end is a failure */
    bool complains;        /**< the double may, and where it fails too, */
    bool blameless;        /**< but not where this is set */
    bool bare;             /**< no collectives are opened */
    bool leaves;           /**< something behind */
    const void *user;
};

struct device_rank {
    const struct device_ranks *of;
    struct coll_comm *host;
    struct gcomm *device; /**< closed afterwards unless NULL */
    const struct base_device *gpu;
    int number, rank, world; /**< the last two: of host and device */
    struct gcomm_config config;
    void *stream; /**< where its data come from, and go to */
    void *memories[DEVICE_RANKS_MEMORIES];
    _Atomic int *met; /**< by all ranks, of all meetings, */
    int meetings;     /**< of which this rank knows so many */
};

/** What holds, or is said and makes the rank's test fail. */
#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d of %d: not so: %s\n", __FILE__, __LINE__, rank->rank,  \
                    rank->world, #condition);                                                      \
            device_rank_say(rank);                                                                 \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/** Says what the host's failure is. */
void device_rank_say(const struct device_rank *rank);

/** All ranks come here, and none is inside a collective of the host any more: one that fails behind
 * a barrier may fail before others have left that. */
bool device_rank_meet(struct device_rank *rank);

/** Runs `body` as each rank; whether it held on all, and nothing was left. */
bool device_ranks_run(const struct device_ranks *ranks, bool (*body)(struct device_rank *));

/** Tells this process's stand-in for NCCL what is to go wrong from here on (nccl_double.h); NULL:
 * nothing. NCCL itself does not listen. */
void device_ranks_inject(const char *settings);

/** Memory of the GPU until the rank's end; what is copied to it and from it is under way in the
 * stream. */
void *device_rank_memory(struct device_rank *rank, size_t bytes);
bool device_rank_put(struct device_rank *rank, void *memory, const void *bytes, size_t size);
bool device_rank_get(struct device_rank *rank, void *bytes, const void *memory, size_t size);
bool device_rank_sync(struct device_rank *rank);

/** The host has failed so, in the end, with these words. */
bool device_rank_learns(struct device_rank *rank, zero_result result, const char *words);

/** The most ranks that the GPUs here will do for: one each, or three that share them and that NCCL
 * takes for those of three hosts; DEVICE_RANKS_MOST with the double. 0: there are none, and why has
 * been printed. No process that forks ranks afterwards has used a GPU. */
int device_ranks_possible(void);

/** Whether NCCL is the double, which does what it is told. For the same processes. */
bool device_ranks_doubled(void);

#endif
