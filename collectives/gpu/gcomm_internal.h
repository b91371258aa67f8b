/**
 * collectives/gpu/gcomm_internal.h: collectives of device memory from the inside.
 *
 *   gcomm.c             their beginning and their end.
 *   gcomm_operations.c  what an operation is made of: the transport's calls.
 *   gcomm_order.c       tickets, events, streams.
 *   gcomm_log.c         what ranks show each other of their calls.
 *   watchdog.c          the threads that see what goes wrong, and end what is under way.
 *   gcomm_abort.c       the links of a process, which end together.
 *   staged.c            the transport through the host's memory.
 *   nccl.c              the transport over NVIDIA's library, nccl_library.c that library.
 *
 * Two threads look after what is under way. One asks the driver what is done. The other, the
 * watchdog, sees what goes wrong, and ends it; it calls nothing of the driver before that, which
 * may hang: collectives/README.md, GPUs.
 *
 * Points of base/fault.h: device.thread (each of the two, EIO).
 */
#ifndef COLLECTIVES_GPU_GCOMM_INTERNAL_H
#define COLLECTIVES_GPU_GCOMM_INTERNAL_H

#include "collectives/comm/call_log.h"
#include "collectives/gpu/gcomm.h"

#include <pthread.h>

enum {
    GCOMM_ID_BYTES = 128,
    GCOMM_WHERE_BYTES = 32,
    GCOMM_CALL_WORDS = sizeof(struct coll_signature) / sizeof(uint64_t),
};
#define GCOMM_HAS_LEFT "rank %d has left without it"

/** How long an end may take, unless something else was said. */
#define GCOMM_ABORT_NS UINT64_C(10000000000)

_Static_assert(sizeof(struct coll_signature) % sizeof(uint64_t) == 0, "a call is whole words");

/** One of the links that end together. */
struct gcomm_abort {
    struct gcomm *gcomm;
    void *link;               /**< NULL: there is none */
    struct gcomm_abort *next; /**< NULL: this was the last one */
    bool has_begun, is_over;
    bool was_in_use; /**< when it was halted a thread was in a call of it, or of the driver */
};

/**
 * What moves bytes among devices. A thread that has entered the device calls them, one thread at a
 * time, except `halt`. They return soon. What they have begun may still be in progress then, and
 * `ready` tells. Errors: ZERO_E_DEVICE, ZERO_E_PEER (what it says about another rank).
 */
struct gcomm_transport {
    size_t size;        /**< sizeof(struct gcomm_transport) of the code that filled it */
    const char *name;   /**< "nccl" */
    const char *device; /**< whose memory: a base_device's name; NULL: that of any */

    bool lends; /**< others read this rank's memory of the host, until they have closed */
    bool
        entangled; /**< the end of a link may wait for what is under way in others of the process */

    /** Bytes of the host's for the largest operation. NULL: none. */
    size_t (*memory)(int world, const struct gcomm_load *most);

    /** Memory of the device entered that `enroll` takes; or ZERO_E_NOMEM. NULL: the device's own
     * will do. */
    zero_result (*alloc)(void **memory, size_t bytes, struct base_error *error);
    zero_result (*free)(void *memory, struct base_error *error);

    /** Whether it can: loads what it needs, looks at config->nccl_comm. ZERO_E_UNSUPPORTED,
     * ZERO_E_INVALID. */
    zero_result (*prepare)(const struct gcomm_config *config, struct base_error *error);
    /** Makes what ranks meet by: the lowest one's. */
    zero_result (*identify)(unsigned char id[GCOMM_ID_BYTES], struct base_error *error);
    /** Begins to meet. A link that is there after an error is aborted, too. */
    zero_result (*join)(void **link, const struct gcomm_config *config,
                        const unsigned char id[GCOMM_ID_BYTES], struct base_error *error);
    /** ZERO_AGAIN while something is in progress, or what has gone wrong, be it long ago. Asked by
     * the caller's thread until it is through, and by another one at any time: calls no driver. */
    zero_result (*ready)(void *link, struct base_error *error);
    /** Tells a link that it is over, also while another thread is in a call of it: what it has
     * under way ends. Calls no driver and waits for no device; what the host does for the link may
     * be waited for. NULL: it ends by itself. */
    zero_result (*halt)(void *link, struct base_error *error);
    /** Ends links that this thread has halted, and that no thread uses, and frees them; may take a
     * while. If links are entangled, the thread has entered the device of one of them. */
    zero_result (*abort)(const struct gcomm_abort *first, struct base_error *error);

    /** Registers memory of `alloc`, once, with a link that is ready: what it is given from now on
     * stays within. NULL: there is no such thing. */
    zero_result (*enroll)(void *link, void *memory, size_t bytes, struct base_error *error);
    /** Undoes it, if there is any, for a link that is well and has nothing under way. An abort does
     * that itself. */
    zero_result (*dismiss)(void *link, struct base_error *error);

    /** What is given between these two is one launch. */
    zero_result (*begin)(void *link, struct base_error *error);
    zero_result (*end)(void *link, struct base_error *error);
    zero_result (*all_gather)(void *link, const void *from, void *to, size_t bytes, void *stream,
                              struct base_error *error);
    zero_result (*send)(void *link, const void *from, size_t bytes, int peer, void *stream,
                        struct base_error *error);
    zero_result (*receive)(void *link, void *to, size_t bytes, int peer, void *stream,
                           struct base_error *error);
    /** Blocks of `count` elements of every rank; this rank's sum goes to `to`. */
    zero_result (*reduce_scatter)(void *link, const void *from, void *to, size_t count,
                                  zero_dtype dtype, void *stream, struct base_error *error);
    /** The sum goes to root's `to`. */
    zero_result (*reduce)(void *link, const void *from, void *to, size_t count, zero_dtype dtype,
                          int root, void *stream, struct base_error *error);
};

extern const struct gcomm_transport gcomm_transport_host;
#ifdef ZERO_WITH_NCCL
extern const struct gcomm_transport gcomm_transport_nccl;
#endif

/* ------------------------------------------------------------------ what ranks show each other */

enum gcomm_state {
    GCOMM_NOT_THERE,
    GCOMM_JOINING,
    GCOMM_JOINED,
    GCOMM_FAILED, /**< to join */
    GCOMM_LEFT,
};

/** What a rank shows of itself, in an arena of the host; written by it alone. It is copied to ranks
 * of other hosts in this order: a rank that sees that a call was started sees the call. */
struct gcomm_call_log {
    struct gcomm_shown_call {
        _Atomic uint64_t stamp; /**< twice the operation's number */
        _Atomic uint64_t words[GCOMM_CALL_WORDS];
    } calls[GCOMM_UNDER_WAY];
    _Atomic uint64_t started, finished; /**< operations */
    _Atomic uint64_t state;
};

_Static_assert(sizeof(struct gcomm_call_log) <= COLL_SHOWN_BYTES, "a call log can be shown");

/* ------------------------------------------------------------------ one */

/** An operation under way. */
struct gcomm_operation {
    void *ready; /**< event: the stream has come to it */
    void *done;
    uint64_t record; /**< of the flight recorder */
};

struct gcomm {
    const struct gcomm_transport *transport;
    struct coll_comm *host;
    const struct base_device *kind;
    int number;
    char where[GCOMM_WHERE_BYTES]; /**< "cuda 0" */
    char name[COLL_NAME_BYTES];    /**< in the flight recorder */
    uint64_t timeout_ns, abort_timeout_ns;
    void *memory; /**< that is registered; NULL: none is */
    size_t bytes; /**< of it */
    bool must_register;
    void *stream;
    void *behind; /**< an event, for gcomm_after() */
    struct coll_arena *arena;
    struct gcomm_call_log *call_log;
    uint64_t *compared; /**< of every rank: operations whose calls were compared */
    struct gcomm_operation operations[GCOMM_UNDER_WAY]; /**< number n at n modulo that */

    /** For calls of the transport, and calls of the driver in order with them: held as long as
     * those take, for ever perhaps. Before `mutex`. */
    pthread_mutex_t calls;
    /** For what follows. A thread that holds it calls neither the transport nor the driver. */
    pthread_mutex_t mutex;
    pthread_cond_t news;
    pthread_t watchdog, asker;
    bool has_threads; /**< there are the two */
    unsigned there;   /**< of them, in the device */
    void *link; /**< the transport's own, changed with both mutexes; NULL: none, or it is over */
    uint64_t started, finished;
    bool is_starting;           /**< the next one is being given */
    uint64_t announced;         /**< the newest one whose stream tells when it has come to it */
    uint64_t come_to;           /**< the newest one to which it is known to have come */
    uint64_t questions;         /**< to the driver, and its answers: odd while it is asked */
    bool is_over;               /**< nothing more is given to the transport, and nothing finishes */
    bool aborted, through;      /**< the watchdog, and the other one, have done their last */
    bool left_behind;           /**< what was under way can't be ended */
    const struct base_log *log; /**< NULL: none, or it is not there any more */
};

/** The caller holds the mutex: whether an operation is being given, or is under way. */
static inline bool gcomm_is_busy(const struct gcomm *gcomm)
{
    return gcomm->is_starting || gcomm->started > gcomm->finished;
}

/** The place of operation number `sequence`. */
static inline struct gcomm_operation *gcomm_operation(struct gcomm *gcomm, uint64_t sequence)
{
    return &gcomm->operations[sequence % GCOMM_UNDER_WAY];
}

/* ------------------------------------------------------------------ gcomm_log.c */

const struct gcomm_call_log *gcomm_call_log_of(const struct gcomm *gcomm, int rank);

/** Shows where this rank is. */
void gcomm_log_state(struct gcomm *gcomm, enum gcomm_state state);

/** Shows how many operations it has finished. */
void gcomm_log_finish(struct gcomm *gcomm, uint64_t finished);

/** Shows a call, which is the next one. Mutex held: other hosts would see half of it if the call
 * log were shown meanwhile. */
void gcomm_log_call(struct gcomm *gcomm, const struct coll_signature *signature, uint64_t sequence);

/** Whether the others' calls were the same so far, as far as both have come. Otherwise the comm
 * world has failed: ZERO_E_DIVERGED. A rank shows its call first and compares then, so it leaves no
 * rank out: the later one of two ranks sees both calls. */
zero_result gcomm_log_compare(struct gcomm *gcomm);

/** Writes "all-gather #3, unit 2 (h.1)". */
void gcomm_log_text(const struct gcomm *gcomm, int rank, uint64_t sequence,
                    char text[COLL_TEXT_BYTES]);

/** Writes "rank 1 (last call: broadcast #2), ..." about those who have not called it. */
void gcomm_log_absent(const struct gcomm *gcomm, uint64_t sequence, char *text, size_t size);

/** A rank, by its number in the root, that has left without having called it; -1: none. */
int gcomm_log_left(const struct gcomm *gcomm, uint64_t sequence);

/** Whether all have finished so many operations, or have left, or failed. */
bool gcomm_log_finished(const struct gcomm *gcomm, uint64_t sequence);

/** Whether all have left, or failed. */
bool gcomm_log_closed(const struct gcomm *gcomm);

/* ------------------------------------------------------------------ gcomm_order.c */

/** The events of all operations, and the stream. The device is entered, here and below. */
zero_result gcomm_order_open(struct gcomm *gcomm, struct base_error *error);
/** False: there is still something under way. */
bool gcomm_order_close(struct gcomm *gcomm);

/** Counts what is done by now. Fails where the device does, and takes as long as that. */
zero_result gcomm_advance(struct gcomm *gcomm);

/** Begins an operation, whose signature is new to all: shows it, and waits for room. Then the
 * transport is given what it is made of, with the mutex of calls, which this takes and gcomm_end()
 * gives back; so does an error. */
zero_result gcomm_begin(struct gcomm *gcomm, const struct coll_signature *signature,
                        uint64_t bytes);

/** Ends it: `result` is what became of it so far, with its message. Waits until the transport has
 * enqueued it. */
zero_result gcomm_end(struct gcomm *gcomm, zero_result result, const struct base_error *inner,
                      uint64_t *ticket);

/** Makes this the comm world's failure: "rank 0: <operation> on cuda 0: ...". Returns the comm
 * world's. */
zero_result gcomm_fail(struct gcomm *gcomm, zero_result result, uint64_t sequence,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ------------------------------------------------------------------ watchdog.c */

/** A moment, which gets longer: for loops that wait. */
void gcomm_pause(unsigned *rounds);

/** Fails because an operation takes too long. */
zero_result gcomm_fail_timeout(struct gcomm *gcomm, uint64_t sequence, uint64_t waited_ns);

zero_result gcomm_watchdog_start(struct gcomm *gcomm, struct base_error *error);

/** Ends everything: the transport is aborted, and the threads. False: that takes too long, and they
 * still use the device. */
bool gcomm_watchdog_stop(struct gcomm *gcomm);

/** Writes an error to the log that no call returns. */
void gcomm_watchdog_log(struct gcomm *gcomm, const struct base_error *error);

/* ------------------------------------------------------------------ gcomm_abort.c */

/** A device's link is there, or will be: those that fail later than others wait for its failure. */
void gcomm_abort_expect(const struct gcomm *gcomm);

/** Ends a device's link, if there is one, and after a failure those of the process that fail with
 * it; returns when it is over. Expected, and not any more. */
void gcomm_abort_join(struct gcomm *gcomm);

#endif
