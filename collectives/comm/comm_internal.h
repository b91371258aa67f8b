/**
 * collectives/comm/comm_internal.h: the communicator from the inside, shared by the files of this
 * folder.
 */
#ifndef COLLECTIVES_COMM_COMM_INTERNAL_H
#define COLLECTIVES_COMM_COMM_INTERNAL_H

#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/transport.h"

#include <stdatomic.h>

enum {
    COLL_ARENAS_MAX = 1024, /**< arenas of a comm world */
    COLL_NAME_BYTES = 96,
    COLL_MESSAGE_BYTES = 448,
    COLL_REASON_BYTES = 256,
    COLL_SMALL_BYTES = 64 * 1024, /**< what a small operation moves at a time and rank */
    COLL_SMALL_SLOTS = 2,         /**< small operations that can be under way */
    COLL_PARTIAL_SLOTS = 2,       /**< reductions whose partial sums can be read */
};

/** What a request is. */
enum coll_kind {
    COLL_NONE,
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_REDUCE_BULK,
    COLL_BROADCAST_BULK,
    COLL_ALL_TO_ALL,
    COLL_EXCHANGE, /**< the small operations: struct coll_small */
    COLL_ALL_REDUCE,
    COLL_BROADCAST,
    COLL_BARRIER,
    COLL_SEND, /**< messages: outside the order of the others */
    COLL_RECEIVE,
    COLL_KINDS,
};

/** How far a request is. */
enum coll_progress_state {
    COLL_IDLE,     /**< never started, or drained */
    COLL_STARTED,  /**< in the communicator's list */
    COLL_COMPLETE, /**< the result is here; peers may still read the source */
};

/** One chunk of a small operation. The transport copies `in` when it starts. */
struct coll_small {
    struct coll_request request;
    const void *in;  /**< this rank's bytes; NULL if it gives none */
    void *out;       /**< where the result goes; of an exchange: rank 0's bytes */
    size_t bytes;    /**< a rank, at most COLL_SMALL_BYTES */
    size_t stride;   /**< from one rank's bytes to the next one's in `out` */
    int root;        /**< of a broadcast, else 0 */
    enum base_op op; /**< of an all-reduce */
    int slot;        /**< 0 .. COLL_SMALL_SLOTS - 1 */
};

#define COLL_POISON_READY UINT32_C(0x80000000)

/** The first fatal failure, where every rank of the comm world can see it. All zero: none. */
struct coll_poison {
    _Atomic uint32_t state; /**< -result, and COLL_POISON_READY when the message is written */
    char message[COLL_MESSAGE_BYTES];
};

struct coll_arena {
    struct coll_comm *comm; /**< the root */
    uint32_t id;            /**< its place in the order of creation: names it among ranks */
    bool shared;            /**< there once for all ranks of the host */
    size_t bytes;
    void *base;                   /**< this rank's bytes; NULL if it has none */
    const void *view;             /**< of a shared one: the same, read-only */
    const struct coll_span *mine; /**< of a shared one, while it is created: what this rank takes */
    size_t mine_count;            /**< care of */
    int memory;                   /**< the transport's descriptor while it is created, else -1 */
    unsigned char *
        *peers; /**< the bytes of each rank of the root as mapped here, its own included */
    size_t *peer_bytes;
};

/** A first-in-first-out list of requests under way. */
struct coll_queue {
    struct coll_request *first, *last;
};

/** What all communicators of one coll_open() have in common. */
struct coll_comm_world {
    struct coll_comm *root;
    struct coll_comm *comms;        /**< all of them that this rank is in, the root first */
    char transport[8];              /**< its name in the configuration */
    char reason[COLL_REASON_BYTES]; /**< coll_transport_reason() */
    uint64_t timeout_ns;
    uint64_t remind_ns; /**< of waiting, before it is spoken of: more after long waits that ended */
    const struct base_log *log;
    struct control_rank *control; /**< NULL: nothing is recorded */
    struct coll_poison *poison;
    uint32_t generation;    /**< of the process that has opened it: no child goes on with it */
    bool counted;           /**< among the comm worlds of this process */
    bool stopped;           /**< a failure was returned: nothing is worked on any more */
    _Atomic bool unwritten; /**< its message has not come for so long that it will not */
    int thread;             /**< the one that has opened it, and as a rule waits */
    unsigned spins;         /**< rounds of a wait before it looks at the clock, */
    uint64_t spin_ns;       /**< time from then on before it yields, */
    unsigned doubt;         /**< halved so often, because peers came later than that lately, */
    unsigned yields;        /**< and from then on before it sleeps */
    const char *unregistered_path; /**< coll_unregistered_path() */
    int least_near, most_near;     /**< coll_host_ranks() */
    struct coll_arena *arenas[COLL_ARENAS_MAX];
    uint32_t arena_count;
    struct coll_arena *partial_sums; /**< coll_partial_sums_create(); NULL: there is none */
    int ranks_a_host;                /**< coll_ranks_a_host() */
    struct coll_counters counters;
};

struct coll_comm {
    const struct coll_transport *transport;
    struct coll_comm_world *comm_world;
    struct coll_comm *next; /**< in the comm world's list */
    void *link;             /**< the transport's own */
    int rank;
    int world;
    int *root_ranks; /**< of every rank; NULL: this is the root */
    uint32_t splits; /**< made so far */
    char name[COLL_NAME_BYTES];

    uint64_t sequence;          /**< ordered operations started so far */
    bool must_wake_peers;       /**< something has changed that sleeping peers may wait for */
    struct coll_queue queue;    /**< ordered operations; the first is the one that is worked on */
    struct coll_queue messages; /**< sends and receives */
    uint64_t *sends, *receives; /**< of every rank: messages to and from it started so far */
    struct coll_small small[COLL_SMALL_SLOTS];
    unsigned next_small;
};

/* ------------------------------------------------------------------ comm.c */

/** A communicator that knows no peer yet; NULL without memory. *Local.* */
struct coll_comm *coll_comm_create(const struct coll_transport *transport,
                                   struct coll_comm_world *comm_world, int rank, int world);

/** Frees it, and its root_ranks; accepts NULL. The link is gone. *Local.* */
void coll_comm_free(struct coll_comm *comm);

/** Counts a comm world among those of this process, for coll_is_alone(). *Local.* */
void coll_comm_world_count(struct coll_comm_world *comm_world);

/** Takes it out of that count, if it is in it. *Local.* */
void coll_comm_world_uncount(struct coll_comm_world *comm_world);

/** Wakes peers that sleep, if something has changed since the last time. */
void coll_wake_peers(const struct coll_comm *comm);

/* ------------------------------------------------------------------ comm_failure.c */

/** The comm world's failure, ZERO_OK if there is none. Costs one load. */
zero_result coll_failed(const struct coll_comm *comm);

/** coll_failed() for a call that returns it: forgets the requests, whose memory the caller may take
 * back now. */
zero_result coll_stop(struct coll_comm *comm);

/** Makes `result` with this message the comm world's failure, unless it has one, and wakes all
 * ranks. Stops nothing: what all have come to by now can still be completed. */
void coll_declare(struct coll_comm *comm, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** coll_declare() and coll_stop(). Returns the comm world's failure. */
zero_result coll_fail(struct coll_comm *comm, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** coll_declare() from another thread than the communicator's, such as that of liveness. `message`
 * is a whole line. Returns whether this is the comm world's failure now: the first one is. */
bool coll_poison(struct coll_comm *comm, zero_result result, const char *message);

/** Notes the death of a rank of the root, and makes the message about it: what it has called last,
 * and what this rank was in, if anything (`where`). *Local*, any thread. */
void coll_death_text(const struct coll_comm *root, int rank, const char *where,
                     char message[COLL_MESSAGE_BYTES]);

/** Not to be used directly. */
void coll_point_hit(struct coll_comm *comm, uint32_t kind, const char *where);

/**
 * Hits point coll.<kind>.<where> of base/fault.h, as in coll.reduce-scatter.read; a fault there
 * fails the comm world with ZERO_E_IO. Where:
 *     post   before the operation is posted.
 *     meet   each time that a rank that is waited for was there.
 *     read   before each block, tile or message that is read.
 *     done   before this rank says that it needs nothing more of the others.
 */
static inline void coll_point(struct coll_comm *comm, uint32_t kind, const char *where)
{
    if (base_fault_watched())
        coll_point_hit(comm, kind, where);
}

/* ------------------------------------------------------------------ request.c */

/** Gives a request its sequence number and starts it; waits if there are too many under way. op is
 * filled in. */
zero_result coll_start(struct coll_comm *comm, struct coll_request *request, enum coll_kind kind);

/** As coll_start(), but sleeping peers are not woken, because the caller waits for the request at
 * once. */
zero_result coll_begin(struct coll_comm *comm, struct coll_request *request, enum coll_kind kind);

/** Refuses a call: fatal, because this rank will be missed. */
zero_result coll_refuse(struct coll_comm *comm, const struct coll_request *request,
                        enum coll_kind kind, const char *why);

/** Takes a request whose result is complete from its queue. Called by transports. */
void coll_retire(struct coll_comm *comm, struct coll_request *request);

/** Whether a request is a send or a receive: outside the order of the others. */
static inline bool coll_is_message(const struct coll_request *request)
{
    return request->kind == COLL_SEND || request->kind == COLL_RECEIVE;
}

/* ------------------------------------------------------------------ comm_group.c */

/** Leaves and frees a group. *Local.* */
void coll_group_close(struct coll_comm *group);

/* ------------------------------------------------------------------ agree.c */

/**
 * Tells the others how this rank's part of something went, and a number; values[r] is rank r's
 * (NULL: they are not wanted). All ranks return the failure of the lowest rank that has one (`mine`
 * has this one's message), or the communicator's. *Collective, ordered.*
 */
zero_result coll_agree(struct coll_comm *comm, size_t value, size_t *values, zero_result result,
                       const struct base_error *mine, struct base_error *error);

/* ------------------------------------------------------------------ recorder.c */

/** Records that an operation starts; kind, sequence and op are filled in. Costs one test where
 * no recorder listens. */
void coll_record_begin(const struct coll_comm *comm, struct coll_request *request);

/** Records that its result is complete on this rank. */
void coll_record_end(const struct coll_comm *comm, const struct coll_request *request);

/* ------------------------------------------------------------------ bulk.c */

#define COLL_SPANS_TOO_LONG "a span has more than the memory there is"

/** Whether spans of elements of `size` bytes end within the memory there can be. */
bool coll_spans_fit(const struct coll_comm *comm, const struct coll_span *spans, size_t size);

/* ------------------------------------------------------------------ comm_arena.c */

/** The comm world's arena in which `bytes` bytes from `address` on lie, as this rank sees it, and
 * where in it: *offset; NULL if they are in none. */
const struct coll_arena *coll_arena_of(const struct coll_comm *comm, const void *address,
                                       size_t bytes, size_t *offset);

/** Frees all arenas of a root. */
void coll_arenas_free(struct coll_comm *root);

/* ------------------------------------------------------------------ wait.c */

/** A time that is waited; all zero before it begins. */
struct coll_clock {
    uint64_t last_ns; /**< when it was looked at, 0: not yet */
    uint64_t waited_ns;
};

/** The time waited up to now, in which this process ran: a long one between two looks is one in
 * which it did not, as when the job was suspended, and counts a little. */
uint64_t coll_waited(struct coll_clock *clock);

/** Whether this process has no other communicator: then its name tells nothing. */
bool coll_is_alone(const struct coll_comm *comm);

/** The time of a first reminder where waits may last so long: `remind_ns`, or its default, but at
 * most the half. */
uint64_t coll_first_reminder(uint64_t remind_ns, uint64_t timeout_ns);

/** Makes progress until the goal is reached, and says at growing intervals that it waits, and for
 * which ranks; fails at the time-out or when a rank that is waited
 * for has left or died. */
zero_result coll_wait_for(struct coll_comm *comm, struct coll_request *request,
                          enum coll_goal goal);

#endif
