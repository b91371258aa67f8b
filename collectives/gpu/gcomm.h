/**
 * collectives/gpu/gcomm.h: collectives of device memory, among the devices of a communicator's
 * ranks.
 *
 * A `gcomm` has a host communicator (comm.h), by which its ranks meet and agree. Their failures are
 * one. A failure here poisons the host's comm world. A dead rank or coll_abort() poisons that, too,
 * and ends what is under way here. So coll_state() of the host has the message, and a caller asks
 * only one communicator.
 *
 * Operations work in the order of one stream of the transport's own, urgent where the device has
 * priorities. They return when they are enqueued, and give a ticket. Between them and the caller's
 * streams stand two calls:
 *
 *     gcomm_after(gcomm, compute)            what is started from now on begins after what
 *                                            `compute` was given so far.
 *     gcomm_all_gather(gcomm, &op, &ticket)  enqueues the operation.
 *     gcomm_before(gcomm, ticket, compute)   what `compute` is given from now on begins after the
 *                                            operation; to be called now, or much later.
 *
 * Neither waits, nor does starting one, but for the time in which the transport gets it ready (that
 * of "host": until it is done), and for the oldest where GCOMM_UNDER_WAY are under way. All
 * ranks start the same operations in the same order; memory, spans and buckets may be forgotten
 * when the call returns, the bytes they name stay untouched until the ticket is reached.
 *
 * A thread of each rank's watches what is under way: the transport's asynchronous errors, the
 * host's state, the deadline, and ranks that have left. If it finds any of these it aborts the
 * communicator. Then the streams go on, with nothing of use in the memory, and a dead rank does not
 * hold a program that waits for its own stream. Nor does it hold a program in a call of the driver
 * that waits for the whole device, such as cudaFree(), and that other calls wait for in turn. If
 * one of these takes longer than an operation may, that is a failure. Communicators of a process
 * that fail together are aborted together, as NCCL wants it. This takes half a second where others
 * are well, and a second more where the caller itself is in a call of the driver. What comes of the
 * host's poison is in every call's result from then on. Each call is shown to the other ranks:
 * those that differ get ZERO_E_DIVERGED, which names both calls, as soon as the second one is made,
 * and a time-out names the ranks that have not come.
 *
 * Messages name rank, operation, unit and device. Functions enter the device themselves. One thread
 * at a time uses a gcomm, the one that uses its host communicator.
 */
#ifndef COLLECTIVES_GPU_GCOMM_H
#define COLLECTIVES_GPU_GCOMM_H

#include "base/device.h"
#include "collectives/comm/comm.h"

struct gcomm;

/** Operations that can be under way at a time; starting a further one waits for the oldest. */
enum { GCOMM_UNDER_WAY = 256 };

/** What gcomm_open() needs; strings are copied. */
struct gcomm_config {
    const char *transport;            /**< "nccl": NVIDIA's library; "host": through the memory of
                                           the host, whose communicator moves it, and the caller
                                           waits for that; for ranks that share a device */
    struct coll_comm *host;           /**< a root, all of whose ranks take part; borrowed, outlives
                                           this */
    const struct base_device *device; /**< "nccl": base_device_cuda; "host": any */
    int number;                       /**< of this rank's */
    /** Longest time for an operation from where its stream has come to it, for ranks to meet, and
     * for the end; as in coll_config. 0: the host's. */
    uint64_t timeout_ns;
    uint64_t abort_timeout_ns; /**< the longest time for an end after a failure; 0: ten seconds */
    /** "nccl": an ncclComm_t, which is to be of the same ranks in the same order on the same
     * devices, and is otherwise left alone: what is made is beside it. NULL: none, on every rank or
     * on none. */
    void *nccl_comm;
    /** Memory of gcomm_alloc(), which all operations stay within; NULL: any. It is
     * registered, by transports that have that, on all ranks or on none. All ranks give some, or
     * none does. */
    void *memory;
    size_t bytes;       /**< of it */
    bool must_register; /**< the same on all ranks. A rank that can't is an error, of all; else all
                             do without, with a word in the log */
    const struct base_log *log; /**< borrowed; may be NULL */
};

/**
 * Joins the devices of all ranks. *Collective, ordered* over the host. *gcomm is NULL after a
 * failure, which all ranks have, the lowest failed one's; the host is as before unless its ranks
 * could not tell each other. If the transport cannot end what it has begun, *gcomm is there for
 * gcomm_close() alone, which says so. ZERO_E_UNSUPPORTED: there is no such transport in this build,
 * its library is missing or too old, or there is no such device. ZERO_E_INVALID: arguments, or
 * `nccl_comm` has other ranks or another device. ZERO_E_DEVICE: what the transport says.
 * ZERO_E_TIMEOUT, _NOMEM, and the host's failures.
 */
zero_result gcomm_open(struct gcomm **gcomm, const struct gcomm_config *config,
                       struct base_error *error);

/**
 * Leaves. Waits for what this rank has under way, and, as long as nothing fails, for the others to
 * finish it too. After a failure it waits only for the abort, `abort_timeout_ns` at most. What
 * cannot be ended by then is left behind, with a word in the log, and the call returns false. The
 * caller has to leave gcomm_config.memory, too, for it is still in use. A peer that starts
 * something afterwards that needs this rank gets ZERO_E_PEER. Nothing of the caller's streams may
 * still wait for an operation. NULL is fine: true.
 */
bool gcomm_close(struct gcomm *gcomm);

/** Memory for gcomm_config.memory, of the device entered, from the transport's own allocator
 * if it has one: that of "nccl" rounds up. *memory is NULL after an error: ZERO_E_UNSUPPORTED,
 * _NOMEM, _DEVICE. *Local*, as the next one. */
zero_result gcomm_alloc(void **memory, const char *transport, const struct base_device *device,
                        size_t bytes, struct base_error *error);
/** Frees it, when no gcomm has it any more; accepts NULL. ZERO_E_DEVICE: "nccl" could not,
 * and it may still be there. */
zero_result gcomm_free(void *memory, const char *transport, const struct base_device *device,
                       struct base_error *error);

/** Whether this build has a transport of that name. *Local.* */
bool gcomm_has(const char *transport);

/** Whether what it needs is here, too: loads its library. ZERO_E_UNSUPPORTED (no such transport in
 * this build; its library is missing or too old), ZERO_E_INVALID. *Local.* */
zero_result gcomm_ready(const char *transport, const struct base_device *device,
                        struct base_error *error);

/** The most that a rank moves by one operation. */
struct gcomm_load {
    size_t buckets;
    size_t sent, received; /**< bytes; what goes to several ranks counts as often */
};

/** Bytes of the host's that a gcomm of so many ranks takes on each of them, whose operations
 * move no more than that; not what NCCL takes for itself, there and on the device. *Local.* */
size_t gcomm_memory(const char *transport, int world, const struct gcomm_load *most);

/** Its stream: what is given to that runs in order with the operations. *Local.* */
void *gcomm_stream(const struct gcomm *gcomm);

/* ------------------------------------------------------------------ order */

/** What is started from now on begins after what the stream has been given so far. *Local.* */
zero_result gcomm_after(struct gcomm *gcomm, void *stream);

/** What the stream is given from now on begins after the operation, and all that were started
 * before it. Ticket 0 is none. *Local.* */
zero_result gcomm_before(struct gcomm *gcomm, uint64_t ticket, void *stream);

/** Waits until it is done, or something fails; the deadline holds. *Local.* */
zero_result gcomm_wait(struct gcomm *gcomm, uint64_t ticket);

/* ------------------------------------------------------------------ operations */

// All: *collective, ordered*. All memory is the device's. `ticket` may be NULL. Several buckets
// are one operation and one launch; what one writes overlaps nothing of another. Offsets and counts
// are the same on all ranks, and so are the numbers of buckets.

/** Rank r's block of spans[r].count bytes ends up at whole + spans[r].offset on every rank. */
struct gcomm_gathered {
    const void *source;            /**< this rank's block; in place: whole + its span's offset */
    void *whole;                   /**< of this rank */
    const struct coll_span *spans; /**< world entries, in bytes; blocks don't overlap; any count */
};

/** All-gather. Blocks of one size that follow each other in the order of ranks go by the
 * transport's own all-gather, all others from rank to rank. */
struct gcomm_all_gather {
    const struct gcomm_gathered *buckets;
    size_t count;
    struct coll_label label; /**< read by the call only, as all here are */
};
zero_result gcomm_all_gather(struct gcomm *gcomm, const struct gcomm_all_gather *op,
                             uint64_t *ticket);

/** Every rank gives `bytes` bytes, and gets those of all in rank order: all has world * bytes. */
zero_result gcomm_exchange(struct gcomm *gcomm, const void *mine, size_t bytes, void *all,
                           struct coll_label label, uint64_t *ticket);

/**
 * A vector of which each rank owns a span. Every other contributor's part goes to its owner as it
 * is. Contribution k (of rank k, below `contributors`) is at received + k * stride. The owner's own
 * one is not copied, and its place is left alone: it is at source + spans[rank].offset.
 */
struct gcomm_scattered {
    const void *source;            /**< this rank's contribution, the whole vector; not read on
                                        ranks from `contributors` on */
    void *received;                /**< anything if this rank's span is empty */
    size_t stride;                 /**< bytes; at least those of this rank's span */
    const struct coll_span *spans; /**< world entries, in bytes */
};

/** The transport of a canonical reduction, which its receiver sums in order. */
struct gcomm_scatter {
    const struct gcomm_scattered *buckets;
    size_t count;
    int contributors; /**< 1 .. world */
    struct coll_label label;
};
zero_result gcomm_scatter(struct gcomm *gcomm, const struct gcomm_scatter *op, uint64_t *ticket);

/** The owner of a span gets the sum over all ranks. */
struct gcomm_reduced {
    const void *source;            /**< the whole vector of this rank */
    void *sum;                     /**< this rank's span; in place: source + its offset; no other
                                        overlap */
    const struct coll_span *spans; /**< world entries, in elements */
};

/** The transport's own reduce-scatter: sums in whatever order, rounded to the dtype as often as it
 * likes, so the bits depend on the world and on the machine. */
struct gcomm_reduce_scatter {
    const struct gcomm_reduced *buckets;
    size_t count;
    zero_dtype dtype; /**< of sources and sums */
    struct coll_label label;
};
zero_result gcomm_reduce_scatter(struct gcomm *gcomm, const struct gcomm_reduce_scatter *op,
                                 uint64_t *ticket);

#endif
