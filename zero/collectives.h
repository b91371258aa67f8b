/**
 * zero/collectives.h: the collectives of zero for programs of their own: tensor and pipeline
 * parallelism beside the engine of <zero/zero.h>, or instead of it.
 *
 * A communicator is a set of ranks, numbered from 0. zero_comm_open() makes one of the
 * job's ranks, the root; zero_comm_split() cuts one into groups, which are communicators too. All
 * that come from one zero_comm_open() are a family. Memory from zero_comm_alloc() is read by the
 * other ranks where it lies; any other works too, more slowly.
 *
 *     zero_comm_open -> zero_comm_alloc, zero_comm_split ...
 *     zero_comm_all_reduce, zero_comm_send, ...       start and wait
 *     zero_comm_..._start -> compute -> zero_comm_test, zero_comm_wait
 *     zero_comm_close
 *
 * Conventions
 *  - *Collective* calls are made by every rank of the communicator, those of one communicator in
 *    the same order. What the ranks must give alike (counts, dtypes, spans, roots) is compared, and
 *    ranks that differ get ZERO_E_DIVERGED, whose message names both calls. Different communicators
 *    need no common order. Sends and receives are ordered between two ranks only. *Local* calls
 *    concern this rank alone.
 *  - A _start call returns at once. The bytes move inside zero_comm_wait(), zero_comm_test() and
 *    the calls without _start, which start and wait; each of them makes progress on everything the
 *    family has under way, so no order of waits can lock ranks in a circle. Where 4 all-to-alls of
 *    a communicator are under way, or 128 operations, the next one's start waits for the oldest;
 *    messages are never too many.
 *  - Every failure of an operation is fatal for the family on all its ranks: the current and every
 *    later call returns it, and zero_comm_error() has its message, with ranks by their numbers in
 *    the root. ZERO_E_PEER (a rank died, or left while it was waited for: within milliseconds),
 *    ZERO_E_TIMEOUT (timeout_s, stall_s), ZERO_E_DIVERGED, ZERO_E_ABORTED, ZERO_E_IO, ZERO_E_NOMEM.
 *    A rank may return it before another one: until all have, the others may still read what this
 *    one has started from, and, where ranks are threads, write to its all-reduce's result. Memory
 *    of zero_comm_alloc() stays; other memory has to be kept until then.
 *  - Arguments that an operation refuses (a null pointer where bytes are due, a dtype, a rank that
 *    is none, a request that is under way) are such a failure too, ZERO_E_INVALID: this rank will
 *    be missed by the others. What leaves everything as it was: comm NULL, for which every call
 *    returns ZERO_E_INVALID; and what the calls below say so of.
 *  - A child made by fork() has no part in its parent's communicators: there every call returns
 *    ZERO_E_STATE and changes nothing that the parent or a peer sees.
 *  - A family is used by one thread at a time (zero_comm_abort() by any); families are independent.
 *  - Sums are made in rank order, 0 + 1, then + 2, ..., in fp32 for f32, bf16 and f16, else in the
 *    dtype itself, and rounded once at the end: the same bits on every rank, in every run, by every
 *    transport. Integers wrap around. A NaN is the positive quiet one without payload.
 *  - Addresses are aligned to their elements, and the host's: a program that computes on GPUs
 * brings here what these calls are to move. The library never aborts, exits or prints.
 */
#ifndef ZERO_COLLECTIVES_H
#define ZERO_COLLECTIVES_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_comm zero_comm; /**< one rank's membership in one communicator */

/** Which of a vector's elements, or of a memory's bytes, belong to one rank. */
typedef struct zero_span {
    size_t offset;
    size_t count;
} zero_span;

/** One operation under way: the caller's memory, all zero before its first use, untouched from its
 * start until zero_comm_wait() or zero_comm_test() says that it is done; then it can be used again.
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
 * How to meet: fields of zero_config, and as there what the environment or `zero-run -o` says of
 * transport, timeout_s, stall_s, log_level and log wins. Every field's zero is its default.
 */
typedef struct zero_comm_config {
    uint32_t struct_size;
    int32_t world;         /**< 0: rank and world come from the launcher's environment */
    int32_t rank;          /**< used if world > 0: 0 .. world-1 */
    int32_t timeout_s;     /**< longest wait; default 600 */
    int32_t stall_s;       /**< longest silence of a rank's process before it counts as dead;
                                default 30, -1 none */
    int32_t log_level;     /**< a zero_log_level; default ZERO_LOG_WARN; -1 silent */
    const char *name;      /**< tells families of one job apart; default "collectives" */
    const char *transport; /**< "self", "threads", "shm", "tcp"; default: self for one rank, threads
                                with a team, tcp for ranks of several hosts, else shm; found out as
                                by zero_open() where the launcher leaves it open */
    zero_team *team;       /**< transport "threads" only: borrowed, outlives the family */
    zero_log_fn log;       /**< default: standard error, without errors */
    void *log_user;        /**< first argument of log */
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
 * Joins the job's ranks as the root of a family. *Collective.* Waits for the others at most
 * timeout_s. config NULL: all defaults; it and its strings are copied.
 *
 * On failure *comm is NULL and zero_comm_error(NULL) has this thread's message. ZERO_E_INVALID a
 * field or variable is out of range, launchers disagree or say too little, or ranks disagree;
 * ZERO_E_UNSUPPORTED a variable asks for what the transport has not; ZERO_E_TIMEOUT ranks are
 * missing (the message says which); ZERO_E_PEER a rank went away meanwhile; ZERO_E_VERSION a rank
 * uses another version of the library; ZERO_E_NOMEM; ZERO_E_IO. ZERO_PLANNED: `zero-run --plan` has
 * started this process, alone, and there is nobody to join.
 */
ZERO_API zero_result zero_comm_open(zero_comm **comm, const zero_comm_config *config);

/**
 * Leaves. *Local*, waits for nobody. What this rank has started the others can still finish if its
 * bytes lie in memory of zero_comm_alloc(); other memory has to be waited for before. Closing the
 * root closes its groups, whose handles are invalid then, and gives the family's memory back;
 * closing a group leaves the others. Requests that are under way there are forgotten: they are not
 * waited for any more, and all zero before they are used again. Accepts NULL and communicators
 * after a failure. In a child made by fork() it does nothing.
 */
ZERO_API void zero_comm_close(zero_comm *comm);

/**
 * Cuts the ranks of `comm` into groups: those that give the same color form one, ordered by (key,
 * rank in comm); a negative color joins none: *group is NULL. Groups may overlap, and be cut again.
 * *Collective.*
 *
 * ZERO_E_LIMIT: a rank is in 64 groups already, counting those it has closed and others have not;
 * ZERO_E_NOMEM: on all ranks; *group is NULL and everything is as before, unless a rank lacks even
 * the memory to tell the others: then it is the family's failure.
 */
ZERO_API zero_result zero_comm_split(zero_comm *comm, int32_t color, int32_t key,
                                     zero_comm **group);

/** *Local.* This rank, and how many there are; -1 if comm is NULL. */
ZERO_API int32_t zero_comm_rank(const zero_comm *comm);
ZERO_API int32_t zero_comm_world(const zero_comm *comm);

/** *Local.* The number in the root of a rank of this communicator; -1 if there is no such rank. */
ZERO_API int32_t zero_comm_root_rank(const zero_comm *comm, int32_t rank);

/** *Local.* The message of the family's failure, else of the last call that was refused (comm NULL:
 * of this thread's last failed zero_comm_open(), zero_team_create(), or call with comm NULL), "" if
 * none; valid until the next failure. */
ZERO_API const char *zero_comm_error(const zero_comm *comm);

/** Makes every rank's current and next call in the family return ZERO_E_ABORTED with `reason`.
 * *Local*, any thread. Calling it again changes nothing. */
ZERO_API void zero_comm_abort(zero_comm *comm, const char *reason);

/* ------------------------------------------------------------------ memory */

/**
 * Memory that the other ranks read where it lies, in operations of the whole family: `bytes` bytes
 * of this rank (ranks may differ; 0: *memory is NULL), zero, touched, aligned to 4 KiB. Lives until
 * the root is closed. *Collective* over the root.
 *
 * ZERO_E_INVALID: comm is a group. ZERO_E_NOMEM, ZERO_E_LIMIT (1,024 of them, one less where
 * zero_comm_private_path() is "copied"): on all ranks. After each *memory is NULL and everything is
 * as before, with ZERO_E_NOMEM as after that of zero_comm_split().
 */
ZERO_API zero_result zero_comm_alloc(zero_comm *comm, size_t bytes, void **memory);

/** *Local.* How the others get at other memory: "direct" (threads), "process_vm_readv", "copied" in
 * pieces, where the kernel doesn't allow that, or "sent" (tcp). "" if comm is NULL. */
ZERO_API const char *zero_comm_private_path(const zero_comm *comm);

/* ------------------------------------------------------------------ waiting */

/** Waits until an operation of the family is done: its result is here, and no other rank reads its
 * source any more. *Local*, but the others must make progress too. Returns at once if nothing was
 * started. ZERO_E_INVALID, and nothing happens: request is NULL. */
ZERO_API zero_result zero_comm_wait(zero_comm *comm, zero_request *request);

/** Makes progress, and says whether the operation is done: ZERO_OK it is, ZERO_AGAIN not yet; else
 * as zero_comm_wait(). *Local.* */
ZERO_API zero_result zero_comm_test(zero_comm *comm, zero_request *request);

/* ------------------------------------------------------------------ operations */

// Each has two forms. Sources, results and spans are in use until the operation is done. Counts may
// be 0, and pointers to nothing NULL.

/** Returns when every rank has entered. *Collective.* */
ZERO_API zero_result zero_comm_barrier(zero_comm *comm);

/**
 * All-gather: rank r's spans[r].count bytes at `source` end up at recv + spans[r].offset on every
 * rank. spans: world entries, in bytes, the same on every rank; blocks don't overlap. A source that
 * already lies at its place is not copied. *Collective.*
 */
ZERO_API zero_result zero_comm_all_gather(zero_comm *comm, const void *source, void *recv,
                                          const zero_span *spans);
ZERO_API zero_result zero_comm_all_gather_start(zero_comm *comm, const void *source, void *recv,
                                                const zero_span *spans, zero_request *request);

/**
 * Reduce-scatter: result = the sum of all ranks' elements spans[rank] of `source`, a whole vector;
 * result has spans[rank].count elements of the type in which sums are made: f32 for f32, bf16 and
 * f16, else dtype. spans: world entries, in elements, the same on every rank. result does not
 * overlap any source. *Collective.*
 */
ZERO_API zero_result zero_comm_reduce_scatter(zero_comm *comm, const void *source, void *result,
                                              zero_dtype dtype, const zero_span *spans);
ZERO_API zero_result zero_comm_reduce_scatter_start(zero_comm *comm, const void *source,
                                                    void *result, zero_dtype dtype,
                                                    const zero_span *spans, zero_request *request);

/**
 * All-reduce: result = the combination of all ranks' `count` elements of type dtype. result may be
 * the source itself, and does not overlap it else. ZERO_MIN, ZERO_MAX: of values with a NaN among
 * them NaN. Fastest where source and result lie in memory of zero_comm_alloc() on every rank.
 * *Collective.*
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
 * receive[r].offset of rank q, for all r and q; both sides give the same count. send, receive:
 * world entries, in bytes. source and recv don't overlap. *Collective.*
 */
ZERO_API zero_result zero_comm_all_to_all(zero_comm *comm, const void *source,
                                          const zero_span *send, void *recv,
                                          const zero_span *receive);
ZERO_API zero_result zero_comm_all_to_all_start(zero_comm *comm, const void *source,
                                                const zero_span *send, void *recv,
                                                const zero_span *receive, zero_request *request);

/**
 * Send and receive: the n-th send to a rank meets that rank's n-th receive from this one; both give
 * the same number of bytes (else ZERO_E_DIVERGED on all ranks). A send is done when the other rank
 * has the bytes, so who sends to each other starts both before waiting for either; any number of
 * them can be under way. To oneself works.
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
