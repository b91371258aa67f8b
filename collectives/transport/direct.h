/**
 * collectives/transport/direct.h: collectives among ranks that can address each other's memory.
 *
 * A pull model: each rank has a block that all others see. It writes there what it has posted: a
 * ring of descriptors, and `posted`, which counts them. Who needs a peer's bytes waits until that
 * peer's `posted` has passed the operation, reads them where they are, and counts the operation in
 * its own `consumed`. A source may be used again when `consumed` of all its readers has passed.
 * There is no barrier, and nobody writes into another one's memory but to wake it.
 */
#ifndef COLLECTIVES_TRANSPORT_DIRECT_H
#define COLLECTIVES_TRANSPORT_DIRECT_H

#include "collectives/internal.h"
#include "collectives/signature.h"
#include "collectives/sum/sum.h"

#include <sched.h>
#include <stdalign.h>

enum {
    DIRECT_LINE = 128, /**< two cache lines: processors fetch them in pairs */
    DIRECT_RING = 128, /**< operations of a rank that can be under way */
};

/** More than any number of operations. */
#define DIRECT_GONE UINT64_MAX

/** What a rank posts for one operation. */
struct direct_descriptor {
    alignas(DIRECT_LINE) struct coll_signature signature;
    uint64_t offset; /**< of the source in the arena; of a small operation: its slot */
    uint32_t arena;
};

/** What the ranks see of each other. Zero at the start; written by its owner, but for `asleep`. */
struct direct_block {
    alignas(DIRECT_LINE) _Atomic uint64_t posted;   /**< operations posted */
    alignas(DIRECT_LINE) _Atomic uint64_t consumed; /**< operations done with; DIRECT_GONE: left */
    alignas(DIRECT_LINE) _Atomic uint32_t asleep;   /**< 1: who changes something wakes the owner */
    alignas(DIRECT_LINE) struct coll_poison poison; /**< rank 0's is the communicator's */
    alignas(DIRECT_LINE) cpu_set_t cpus;            /**< where the owner may run */
    int allowed_cpus;                               /**< how many of them it can keep busy */
    struct direct_descriptor ring[DIRECT_RING];
    alignas(4096) unsigned char slots[COLL_SMALL_SLOTS][COLL_SMALL_BYTES];
};

/** One rank's state: the first member of every such transport's link. */
struct direct {
    struct direct_block **blocks; /**< of every rank */
    unsigned char *met;           /**< of every rank: enum direct_meeting, for the oldest request */
    const void **sources;         /**< of every rank: room for a list of addresses */
    const struct coll_sum_kernels *kernels;
    bool shared; /**< the ranks are processes, for futexes */
};

/** Allocates the tables. *Local.* After an error coll_direct_free() is still called. */
zero_result coll_direct_init(struct direct *direct, struct coll_comm *comm, bool shared,
                             struct base_error *error);

/** Fills in this rank's block, all zero so far, before anybody else sees it. *Local.* */
void coll_direct_prepare(struct direct_block *block);

/** Goes to work, when direct->blocks is filled in. *Local.* */
void coll_direct_join(struct coll_comm *comm);

/** Tells the others that this rank leaves; afterwards it does not touch the blocks. *Local.* */
void coll_direct_leave(struct coll_comm *comm);

/** Whether a rank has left. *Local.* */
bool coll_direct_left(const struct coll_comm *comm, int rank);

/** Frees the tables. *Local.* */
void coll_direct_free(struct direct *direct);

/** The functions of the table that all such transports have in common. */
zero_result coll_direct_start(struct coll_comm *comm, struct coll_request *request);
zero_result coll_direct_progress(struct coll_comm *comm);
bool coll_direct_drained(const struct coll_comm *comm, const struct coll_request *request);
enum coll_presence coll_direct_presence(const struct coll_comm *comm,
                                        const struct coll_request *request, enum coll_goal goal,
                                        int rank);
void coll_direct_last_call(const struct coll_comm *comm, int rank, char *text, size_t size);
void coll_direct_wake(struct coll_comm *comm);
void coll_direct_sleep_begin(struct coll_comm *comm);
void coll_direct_sleep(struct coll_comm *comm, uint64_t timeout_ns);
void coll_direct_sleep_end(struct coll_comm *comm);

#endif
