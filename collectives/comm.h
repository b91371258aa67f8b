/**
 * The communicator: how ranks move bytes. One interface, several transports.
 *
 * A communicator belongs to one rank and may be used by one thread at a time (coll_abort() by
 * any). Operations are started on every rank in the same order and each returns at once; the bytes
 * move inside coll_wait(), coll_drain() and coll_progress(), and every one of these makes progress
 * on everything that was started, so no order of waits can lock ranks in a circle. Operations
 * complete on each rank in the order they were started. Requests are the caller's memory: nothing
 * is allocated after coll_arena_create().
 *
 * Errors: every failure of an operation is fatal and sticky for the communicator, on all ranks:
 * ZERO_E_PEER (a rank died or left), _TIMEOUT, _DIVERGED, _ABORTED, _IO, and _INVALID (a rank's
 * arguments were refused: it could not take part, so the others would wait in vain). Every later
 * call returns the first of them; coll_state() has its message, which names rank, operation and
 * unit. Memory stays mapped until coll_close().
 */
#ifndef ZERO_COLLECTIVES_COMM_H
#define ZERO_COLLECTIVES_COMM_H

#include "base/error.h"
#include "base/log.h"
#include "zero/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coll_comm;
struct coll_arena;

/** Ranks that are threads of one process: where they meet (transport "threads"). */
struct coll_team;

/** What coll_open() needs; strings are copied. */
struct coll_config {
    const char *transport; /**< "self", "threads", "shm" */
    int rank;
    int world;
    const char *job;            /**< tells jobs of one user on one host apart (boot/) */
    const char *name;           /**< tells communicators of one job apart */
    struct coll_team *team;     /**< "threads" only */
    uint64_t timeout_ns;        /**< longest wait, also for the ranks to meet */
    const struct base_log *log; /**< borrowed, outlives the communicator */
};

/** Which of a vector's elements belong to one rank. */
struct coll_span {
    size_t offset;
    size_t count;
};

/** Joins `world` ranks. *Collective.* *comm is NULL after a failure. ZERO_E_INVALID (arguments, or
 * ranks that disagree), _UNSUPPORTED (no such transport), _TIMEOUT (names the ranks that are
 * missing), _PEER (a rank went away meanwhile), _VERSION (another one of the library), _NOMEM, _IO.
 */
zero_result coll_open(struct coll_comm **comm, const struct coll_config *config,
                      struct base_error *error);

/** Leaves. *Local*, never waits: peers can still read what this rank started, because its memory
 * lives until the last of them has left; who waits for something it has not started gets
 * ZERO_E_PEER. Requests need not be drained. NULL is fine, and so is a communicator that failed. */
void coll_close(struct coll_comm *comm);

int coll_rank(const struct coll_comm *comm);
int coll_world(const struct coll_comm *comm);
const char *coll_transport_name(const struct coll_comm *comm);

/** The first fatal failure, ZERO_OK if none; its message is in *error if not NULL. *Local.* */
zero_result coll_state(const struct coll_comm *comm, struct base_error *error);

/** Poisons the communicator: every rank's current and next call fails with `result` (ZERO_E_ABORTED
 * or whatever failed here) and `reason` (cut at 200 bytes). *Local*, any thread, first one wins. */
void coll_abort(struct coll_comm *comm, zero_result result, const char *reason);

/* ------------------------------------------------------------------ memory */

/**
 * Memory that peers can read. *Collective, ordered*; sizes may differ between ranks and be 0. The
 * pages are zero and already touched. Lives until coll_close(); *arena is owned by the
 * communicator, NULL after a failure. ZERO_E_NOMEM, and ZERO_E_LIMIT (256 arenas), on all ranks:
 * the communicator is as before, unless the ranks could not tell each other.
 */
zero_result coll_arena_create(struct coll_comm *comm, size_t bytes, struct coll_arena **arena,
                              struct base_error *error);

/** This rank's bytes, aligned to 4 KiB; NULL if it has none. *Local.* */
void *coll_arena_base(const struct coll_arena *arena);
size_t coll_arena_size(const struct coll_arena *arena);

/* ------------------------------------------------------------------ requests */

/** One operation under way: the caller's memory, all zero before its first start, from then on
 * untouched until it is drained. Defined below; the fields are private. */
struct coll_request;

/** Something to say about an operation in messages: the unit. */
struct coll_label {
    const char *name; /**< lives until the request is drained */
    uint32_t number;
};

/** Moves whatever can be moved now, without waiting. *Local.* ZERO_OK or the sticky failure. */
zero_result coll_progress(struct coll_comm *comm);

/** Waits until the result of the request is complete on this rank. Peers may still read this
 * rank's source. *Local* (its partners need only have started it). */
zero_result coll_wait(struct coll_comm *comm, struct coll_request *request);

/** Waits until the request is complete and no peer reads this rank's source any more; then the
 * request and the source may be used again. *Local*; a partner must make progress too. After a
 * failure a peer may still complete the operation from this source. */
zero_result coll_drain(struct coll_comm *comm, struct coll_request *request);

/** Whether coll_drain() would return at once, with success or failure. *Local*, no progress. */
bool coll_drained(const struct coll_comm *comm, const struct coll_request *request);

/* ------------------------------------------------------------------ bulk operations */

/**
 * All-gather: rank r's block of spans[r].count bytes ends up at recv + spans[r].offset on every
 * rank. *Collective, ordered.* In place is allowed: a source that already lies at its place is not
 * copied. Blocks don't overlap; any count, 0 included.
 */
struct coll_all_gather {
    const struct coll_arena *arena; /**< where this rank's block lies, */
    size_t offset;                  /**< at this byte (may be anything if the block is empty) */
    void *recv;                     /**< any memory of this rank */
    const struct coll_span *spans;  /**< world entries, in bytes, the same on every rank; lives
                                         until the request is drained */
    struct coll_label label;
};
zero_result coll_all_gather_start(struct coll_comm *comm, const struct coll_all_gather *op,
                                  struct coll_request *request);

/**
 * One tile of a reduce-scatter's result while it is still in cache: elements first .. first+count-1
 * of the owner's span (first relative to the span), complete for this request. first and count are
 * multiples of 1,024 but for the end of the span. Called in ascending order, from within whatever
 * call makes progress, with the floating-point environment at its default; it must not call the
 * communicator.
 */
typedef void (*coll_tile_fn)(void *user, size_t first, size_t count, const float *sum);

/**
 * A contribution that is not finite: its lowest such element, relative to the owner's span. Called
 * once for each contributor that has one, before the tile function of the tile it lies in.
 */
typedef void (*coll_nonfinite_fn)(void *user, int contributor, size_t element);

/**
 * Ordered reduce-scatter: the owner of a span adds the contributions of ranks 0, 1, ...,
 * contributors-1, in that order, each exactly as sent, into its fp32 accumulator:
 * accumulator = (accumulator + c0) + c1 ...; with `store` the first one is stored instead of
 * added. Plain fp32 additions in this order, round to nearest, denormals kept: the bits are those
 * of a scalar loop; a NaN is written as 0x7fc00000. Ranks from `contributors` on make the same
 * call; their source is not read. *Collective, ordered.*
 */
struct coll_reduce_scatter {
    const struct coll_arena *arena; /**< where this rank's contribution, the whole vector, lies */
    size_t offset;                  /**< byte of element 0 in the arena, a multiple of 4 */
    zero_dtype dtype;               /**< of the contributions: ZERO_F32 or ZERO_BF16 */
    const struct coll_span *spans;  /**< world entries, in elements, the same on every rank; lives
                                         until the request is drained */
    float *accumulator;             /**< this rank's span: spans[rank].count elements */
    int contributors;               /**< 1 .. world */
    bool store;
    coll_tile_fn tile;           /**< may be NULL */
    coll_nonfinite_fn nonfinite; /**< may be NULL: then nothing is checked */
    void *user;
    struct coll_label label;
};
zero_result coll_reduce_scatter_start(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                                      struct coll_request *request);

/** See above. An all-zero request is a drained one. */
struct coll_request {
    uint64_t sequence; /**< position in the order of all operations */
    uint32_t kind;
    uint32_t state;
    struct coll_request *next; /**< the one started after it, while both are under way */
    union {
        struct coll_all_gather all_gather;
        struct coll_reduce_scatter reduce_scatter;
    } op;
};

/* ------------------------------------------------------------------ small, blocking operations */

/**
 * Every rank gives `bytes` bytes, every rank gets all of them in rank order: all has world * bytes.
 * *Collective, ordered*, any memory, any size; meant for small ones (moved through a fixed control
 * block, 64 KiB a rank at a time). All ranks have entered when it returns.
 */
zero_result coll_exchange(struct coll_comm *comm, const void *mine, size_t bytes, void *all);

/** Combines doubles in rank order: 0 + 1, then + 2, ...; the least or the greatest of values with
 * a NaN among them is NaN. *Collective, ordered.* */
enum coll_op { COLL_SUM, COLL_MIN, COLL_MAX };
zero_result coll_all_reduce(struct coll_comm *comm, double *values, size_t count, enum coll_op op);

/** Copies root's bytes to every rank; any memory, any size. *Collective, ordered.* */
zero_result coll_broadcast(struct coll_comm *comm, void *data, size_t bytes, int root);

/** Returns when every rank has entered. *Collective, ordered.* */
zero_result coll_barrier(struct coll_comm *comm);

/* ------------------------------------------------------------------ teams */

zero_result coll_team_create(struct coll_team **team, int world, struct base_error *error);
void coll_team_free(struct coll_team *team);
int coll_team_world(const struct coll_team *team);

/* ------------------------------------------------------------------ counters */

struct coll_counters {
    uint64_t gathered_bytes; /**< copied from peers */
    uint64_t reduced_bytes;  /**< read from peers */
    uint64_t waits;          /**< waits that had to yield or sleep */
    size_t memory_bytes;     /**< control memory of this rank, arenas not included */
};
void coll_counters(const struct coll_comm *comm, struct coll_counters *counters);

#endif
