/**
 * zero/collectives.h: the collectives of zero for programs of their own: tensor and pipeline
 * parallelism beside the engine of <zero/zero.h>, or instead of it.
 *
 * A communicator is a set of ranks, numbered from 0. zero_comm_open() makes one of the job's ranks,
 * the root. zero_comm_split() cuts one into groups, which are communicators, too. All that come
 * from one zero_comm_open() are a family. The other ranks read memory from zero_comm_alloc() where
 * it lies; any other memory works, more slowly.
 *
 *     zero_comm_open -> zero_comm_alloc, zero_comm_split ...
 *     zero_comm_all_reduce, zero_comm_send, ...       start and wait
 *     zero_comm_..._start -> compute -> zero_comm_test, zero_comm_wait
 *     zero_comm_close
 *
 * Which ranks call
 *  - *Collective*: every rank of the communicator calls it, and calls of one communicator in one
 *    order. Different communicators need no common order. What the ranks must give alike (counts,
 *    dtypes, spans, roots) is compared. Ranks that differ get ZERO_E_DIVERGED, whose message names
 *    both calls.
 *  - Sends and receives are ordered between two ranks only.
 *  - *Local*: the call concerns this rank alone.
 *  - One thread at a time uses a family; any thread may call zero_comm_abort(). Families are
 *    independent.
 *
 * Progress
 *  - A _start call returns at once. The bytes move inside zero_comm_wait(), zero_comm_test() and
 *    the calls without _start, which start and wait.
 *  - Each of these makes progress on everything that the family has under way, so no order of waits
 *    can lock ranks in a circle.
 *  - Where 4 all-to-alls of a communicator are under way, or 128 operations, the next one's start
 *    waits for the oldest. Messages have no such limit.
 *
 * Errors
 *  - Every failure of an operation is fatal for the family on all its ranks. The current and every
 *    later call returns it, and zero_comm_error() has its message, with ranks by their numbers in
 *    the root.
 *  - ZERO_E_PEER: a rank died, or left while another waited for it. It comes within milliseconds.
 *  - ZERO_E_TIMEOUT: a rank waited for timeout_s, or another one was silent for stall_s.
 *  - ZERO_E_DIVERGED, ZERO_E_ABORTED, ZERO_E_IO, ZERO_E_NOMEM: ranks differ, one aborted, the
 *    system refused bytes or memory.
 *  - ZERO_E_INVALID: an operation refuses its arguments, and the others will miss this rank. These
 *    are a null pointer where bytes are due, a dtype, a rank that is none, and a request that is
 *    under way. With comm NULL every call returns ZERO_E_INVALID and changes nothing. The calls
 *    below say which of their errors change nothing.
 *  - A rank may return a failure before another one. Until all have, the others may still read what
 *    this one has started from, and, where ranks are threads, write to its all-reduce's result.
 *    Memory of zero_comm_alloc() stays; the program keeps other memory until then.
 *  - A child made by fork() has no part in its parent's communicators. Every call there returns
 *    ZERO_E_STATE and changes nothing that the parent or a peer sees.
 *  - The library never aborts or exits. It prints warnings that no call returns (`log_level`).
 *
 * Values
 *  - Sums are made in rank order, 0 + 1, then + 2, ..., and rounded once at the end. They are made
 *    in fp32 for f32, bf16 and f16, else in the dtype itself. The bits are the same on every rank,
 *    in every run, by every transport. Integers wrap around. A NaN is the positive quiet one
 *    without payload.
 *  - Addresses are aligned to their elements, and are the host's. A program that computes on GPUs
 *    copies to the host what these calls are to move.
 */
#ifndef ZERO_COLLECTIVES_H
#define ZERO_COLLECTIVES_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_comm zero_comm; /**< One rank's membership in one communicator. */

/** Which of a vector's elements, or of a memory's bytes, belong to one rank. */
typedef struct zero_span {
    size_t offset;
    size_t count;
} zero_span;

/**
 * One operation under way, in the caller's memory.
 *
 * It is all zero before its first use. The caller leaves it alone from its start until
 * zero_comm_wait() or zero_comm_test() says that it is done; then it can be used again.
 */
typedef struct zero_request {
    uint64_t opaque[32];
} zero_request;

static inline zero_request zero_request_default(void)
{
    zero_request request;
    memset(&request, 0, sizeof request);
    return request;
}

/**
 * How to meet. Every field's zero is its default.
 *
 * The fields are those of zero_config. What the environment or `zero-run -o` says of transport,
 * timeout_s, stall_s, log_level and log wins over them.
 */
typedef struct zero_comm_config {
    uint32_t struct_size;
    int32_t world;         /**< 0: rank and world come from the launcher's environment. */
    int32_t rank;          /**< Used if world > 0: 0 .. world-1. */
    int32_t timeout_s;     /**< Longest wait; default 600. */
    int32_t stall_s;       /**< Longest silence of a rank's process before it counts as dead;
                                default 30, -1 none. */
    int32_t log_level;     /**< A zero_log_level; default ZERO_LOG_WARN; -1 silent. */
    const char *name;      /**< Tells families of one job apart; default "collectives". */
    const char *transport; /**< "self", "threads", "shm", "tcp", "ucx". The default is chosen as by
                                zero_open(): self for one rank, threads with a team, ucx or tcp for
                                ranks of several hosts, else shm. */
    zero_team *team;       /**< Transport "threads" only: borrowed, outlives the family. */
    zero_log_fn log;       /**< Default: standard error, without errors. */
    void *log_user;        /**< The first argument of log. */
} zero_comm_config;

/** A config with every field at its default. */
static inline zero_comm_config zero_comm_config_default(void)
{
    zero_comm_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    return config;
}

/* ------------------------------------------------------------------ life */

/**
 * Joins the job's ranks as the root of a family. *Collective.* It waits for the others at most
 * timeout_s.
 *
 * config may be NULL: all defaults. The library copies it and its strings. On failure *comm is NULL
 * and zero_comm_error(NULL) has this thread's message.
 *
 * ZERO_E_INVALID: a field or variable is out of range, launchers disagree or say too little, or
 * ranks disagree.
 * ZERO_E_UNSUPPORTED: a variable asks for what the transport has not.
 * ZERO_E_TIMEOUT: ranks are missing; the message says which.
 * ZERO_E_PEER: a rank went away meanwhile.
 * ZERO_E_VERSION: a rank uses another version of the library.
 * ZERO_E_NOMEM, ZERO_E_IO: the system refused memory, a file or a connection.
 * ZERO_PLANNED: `zero-run --plan` has started this process, alone, and there is no rank to join.
 */
ZERO_API zero_result zero_comm_open(zero_comm **comm, const zero_comm_config *config);

/**
 * Leaves. *Local*: it waits for no rank.
 *
 * The others can still finish what this rank has started if its bytes lie in memory of
 * zero_comm_alloc(). The caller waits before for operations on other memory. Closing the root
 * closes its groups, whose handles are invalid then, and gives the family's memory back. Closing a
 * group leaves the others.
 *
 * Requests that are under way there are forgotten. The caller does not wait for them any more, and
 * makes them all zero before it uses them again. The call accepts NULL and communicators after a
 * failure. In a child made by fork() it does nothing.
 */
ZERO_API void zero_comm_close(zero_comm *comm);

/**
 * Cuts the ranks of `comm` into groups. *Collective.*
 *
 * Ranks that give the same color form one, ordered by (key, rank in comm). A negative color joins
 * none: *group is NULL. Groups may overlap, and be cut again.
 *
 * After an error *group is NULL and everything is as before.
 * ZERO_E_LIMIT: a rank is in 64 groups already, counting those it has closed and others have not.
 * ZERO_E_NOMEM: a rank lacks memory; it comes on all ranks. If a rank lacks even the memory to tell
 * the others, it is the family's failure.
 */
ZERO_API zero_result zero_comm_split(zero_comm *comm, int32_t color, int32_t key,
                                     zero_comm **group);

/** This rank, and the number of ranks; -1 if comm is NULL. *Local.* */
ZERO_API int32_t zero_comm_rank(const zero_comm *comm);
ZERO_API int32_t zero_comm_world(const zero_comm *comm);

/** The number in the root of a rank of this communicator; -1 if there is no such rank. *Local.* */
ZERO_API int32_t zero_comm_root_rank(const zero_comm *comm, int32_t rank);

/** The message of the family's failure, else of the last call that was refused, "" if none.
 * *Local.*
 *
 * With comm NULL it is that of this thread's last failed zero_comm_open(), zero_team_create(), or
 * call with comm NULL. The text is valid until the next failure. */
ZERO_API const char *zero_comm_error(const zero_comm *comm);

/** Makes every rank's current and next call in the family return ZERO_E_ABORTED with `reason`.
 * *Local*, any thread. A second call changes nothing. */
ZERO_API void zero_comm_abort(zero_comm *comm, const char *reason);

/* ------------------------------------------------------------------ memory */

/**
 * Allocates memory that the other ranks read where it lies, in operations of the whole family.
 * *Collective* over the root.
 *
 * It has `bytes` bytes of this rank, which are zero, touched, and aligned to 4 KiB. Ranks may give
 * different numbers; with 0 *memory is NULL. It lives until the root is closed.
 *
 * After an error *memory is NULL and everything is as before.
 * ZERO_E_INVALID: comm is a group.
 * ZERO_E_LIMIT: the family has 1,024 of them, or 1,023 where zero_comm_private_path() is "copied";
 * it comes on all ranks.
 * ZERO_E_NOMEM: a rank lacks memory; it comes on all ranks. If a rank lacks even the memory to tell
 * the others, it is the family's failure.
 */
ZERO_API zero_result zero_comm_alloc(zero_comm *comm, size_t bytes, void **memory);

/** How the other ranks get at other memory; "" if comm is NULL. *Local.*
 *
 * It is "direct" (threads), "process_vm_readv", "copied" in pieces where the kernel doesn't allow
 * that, or "sent" (tcp). By tcp it is sent to other hosts only. Ranks of one host read each other
 * there in one of the two ways before. */
ZERO_API const char *zero_comm_private_path(const zero_comm *comm);

/* ------------------------------------------------------------------ waiting */

/** Waits until an operation of the family is done. *Local*, but the others must make progress, too.
 *
 * Then its result is here, and no other rank reads its source any more. The call returns at once if
 * nothing was started. ZERO_E_INVALID: request is NULL; nothing happens. */
ZERO_API zero_result zero_comm_wait(zero_comm *comm, zero_request *request);

/** Makes progress, and says whether the operation is done. *Local.*
 *
 * It is done with ZERO_OK. ZERO_AGAIN: not yet. Otherwise the result is that of zero_comm_wait().
 */
ZERO_API zero_result zero_comm_test(zero_comm *comm, zero_request *request);

/* ------------------------------------------------------------------ operations */

// Each has two forms. Sources, results and spans are in use until the operation is done. Counts may
// be 0; a pointer to 0 elements may be NULL.

/** Returns when every rank has entered. *Collective.* */
ZERO_API zero_result zero_comm_barrier(zero_comm *comm);

/**
 * All-gather: rank r's spans[r].count bytes at `source` end up at recv + spans[r].offset on every
 * rank. *Collective.*
 *
 * spans has world entries, in bytes, the same on every rank. Blocks don't overlap. A source that
 * already lies at its place is not copied.
 */
ZERO_API zero_result zero_comm_all_gather(zero_comm *comm, const void *source, void *recv,
                                          const zero_span *spans);
ZERO_API zero_result zero_comm_all_gather_start(zero_comm *comm, const void *source, void *recv,
                                                const zero_span *spans, zero_request *request);

/**
 * Reduce-scatter: result is the sum of all ranks' elements spans[rank] of `source`, a whole vector.
 * *Collective.*
 *
 * result has spans[rank].count elements of the type in which sums are made: f32 for f32, bf16 and
 * f16, else dtype. spans has world entries, in elements, the same on every rank. result does not
 * overlap any source.
 */
ZERO_API zero_result zero_comm_reduce_scatter(zero_comm *comm, const void *source, void *result,
                                              zero_dtype dtype, const zero_span *spans);
ZERO_API zero_result zero_comm_reduce_scatter_start(zero_comm *comm, const void *source,
                                                    void *result, zero_dtype dtype,
                                                    const zero_span *spans, zero_request *request);

/**
 * All-reduce: result is the combination of all ranks' `count` elements of type dtype. *Collective.*
 *
 * result may be the source itself; otherwise it does not overlap it. ZERO_MIN and ZERO_MAX give NaN
 * if a value is NaN. The call is fastest where source and result lie in memory of zero_comm_alloc()
 * on every rank.
 */
ZERO_API zero_result zero_comm_all_reduce(zero_comm *comm, const void *source, void *result,
                                          size_t count, zero_dtype dtype, zero_op op);
ZERO_API zero_result zero_comm_all_reduce_start(zero_comm *comm, const void *source, void *result,
                                                size_t count, zero_dtype dtype, zero_op op,
                                                zero_request *request);

/** Broadcast: root's bytes end up in every rank's `data`. *Collective.* */
ZERO_API zero_result zero_comm_broadcast(zero_comm *comm, void *data, size_t bytes, int32_t root);
ZERO_API zero_result zero_comm_broadcast_start(zero_comm *comm, void *data, size_t bytes,
                                               int32_t root, zero_request *request);

/**
 * All-to-all: rank r's send[q].count bytes at source + send[q].offset end up at recv +
 * receive[r].offset of rank q, for all r and q. *Collective.*
 *
 * Both sides give the same count. send and receive have world entries, in bytes. source and recv
 * don't overlap.
 */
ZERO_API zero_result zero_comm_all_to_all(zero_comm *comm, const void *source,
                                          const zero_span *send, void *recv,
                                          const zero_span *receive);
ZERO_API zero_result zero_comm_all_to_all_start(zero_comm *comm, const void *source,
                                                const zero_span *send, void *recv,
                                                const zero_span *receive, zero_request *request);

/**
 * Send and receive: the n-th send to a rank meets that rank's n-th receive from this one.
 *
 * Both give the same number of bytes; otherwise it is ZERO_E_DIVERGED on all ranks. A send is done
 * when the other rank has the bytes. So two ranks that send to each other both start before they
 * wait. Any number of messages can be under way. A rank may send to itself.
 */
ZERO_API zero_result zero_comm_send(zero_comm *comm, const void *data, size_t bytes, int32_t to);
ZERO_API zero_result zero_comm_send_start(zero_comm *comm, const void *data, size_t bytes,
                                          int32_t to, zero_request *request);
ZERO_API zero_result zero_comm_receive(zero_comm *comm, void *data, size_t bytes, int32_t from);
ZERO_API zero_result zero_comm_receive_start(zero_comm *comm, void *data, size_t bytes,
                                             int32_t from, zero_request *request);

#ifdef __cplusplus
}
#endif

#endif
