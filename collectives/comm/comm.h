/**
 * The communicator: how ranks move bytes. One interface, several transports.
 *
 * A communicator belongs to one rank and may be used by one thread at a time (coll_abort() by
 * any). Operations are started on every rank in the same order and each returns at once; the bytes
 * move inside coll_wait(), coll_drain() and coll_progress(), and every one of these makes progress
 * on everything that was started, so no order of waits can lock ranks in a circle. Operations of a
 * communicator complete on each rank in the order they were started. Requests are the caller's
 * memory: nothing is allocated after coll_arena_create().
 *
 * Errors: every failure of an operation is fatal and sticky for the communicator, on all ranks:
 * ZERO_E_PEER (a rank died or left), _TIMEOUT, _DIVERGED, _ABORTED, _IO, and _INVALID (a rank's
 * arguments were refused: it could not take part, so the others would wait in vain). Every later
 * call returns the first of them; coll_state() has its message, which names rank, operation and
 * unit. What all ranks had come to before it is still completed, but by "tcp" not what needs bytes
 * of a rank that has failed. Memory stays mapped until coll_close().
 *
 * A child made by fork() has no part in its parent's communicators: there every call returns
 * ZERO_E_STATE at once, and changes nothing that other processes see.
 */
#ifndef COLLECTIVES_COMM_COMM_H
#define COLLECTIVES_COMM_COMM_H

#include "base/error.h"
#include "base/kernels/accumulator.h"
#include "base/log.h"
#include "zero/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct boot_master;
struct boot_mesh;
struct coll_comm;
struct coll_arena;
struct control_rank;

/** Ranks that are threads of one process: where they meet (transport "threads"). */
struct coll_team;

/** What coll_open() needs; strings are copied. */
struct coll_config {
    const char *transport; /**< "self", "threads", "shm", "tcp"; "ucx": "tcp", but for arenas, whose
                                bytes go by that provider (provider/provider.h) */
    bool any_provider;     /**< "tcp": that may become a provider which all ranks have */
    int rank;
    int world;
    const char *job;                  /**< tells jobs of one user on one host apart (rendezvous/) */
    const char *name;                 /**< tells communicators of one job apart */
    struct coll_team *team;           /**< "threads" only */
    const struct boot_master *master; /**< "tcp" only: where rank 0 is, for the ranks to meet, */
    struct boot_mesh *mesh;           /**< or, if not NULL, their connections, which are taken over
                                           unless this fails (rendezvous/mesh.h) */
    uint64_t timeout_ns; /**< longest wait, also for the ranks to meet; time in which this process
                              does not run, as when the job is suspended, does not count */
    uint64_t stall_ns;   /**< "shm", "tcp": longest silence of a peer's process; 0: no limit */
    struct control_rank *control; /**< where this rank records what it does (control/control.h),
                                       borrowed; NULL: nowhere */
    const struct base_log *log;   /**< borrowed, outlives the communicator */
    uint64_t remind_ns;  /**< of waiting for other ranks, before this one says so in the log for the
                              first time, and then at growing intervals; 0: 10 s. Never after more
                              than half of timeout_ns */
    bool all_here;       /**< "shm": boot_meeting.all_here */
    bool (*asked)(void); /**< "shm", "tcp": whether this rank is asked to stop: then it waits 2 s
                              more for ranks to meet it at most; NULL: it never is */
};

/** Which of a vector's elements belong to one rank. Public structs alike are read through it. */
struct __attribute__((may_alias)) coll_span {
    size_t offset;
    size_t count;
};

/** Joins `world` ranks. *Collective.* *comm is NULL after a failure. ZERO_E_INVALID (arguments, or
 * ranks that disagree), _UNSUPPORTED (no such transport), _TIMEOUT (names the ranks that are
 * missing), _ABORTED (a rank was asked to stop meanwhile), _PEER (a rank went away meanwhile),
 * _VERSION (another one of the library), _NOMEM, _IO.
 */
zero_result coll_open(struct coll_comm **comm, const struct coll_config *config,
                      struct base_error *error);

/** A rank has met others (rendezvous/mesh.h) and can't join them: it tells them why, as far as they
 * listen. An all-zero mesh has none. *Local.* */
void coll_stay_away(const struct boot_mesh *mesh, int rank, const struct base_error *why);

/** Leaves. *Local*, never waits: peers can still read what this rank started from arenas, which
 * live until the last of them has left; who waits for something it has not started gets
 * ZERO_E_PEER. By "tcp" it waits for the time-out at most: first until ranks of other hosts have
 * read what it started, then until they have all that it has said. For ranks of its own host it
 * never waits. Requests need not be drained. NULL is fine, and so is a
 * communicator that failed. */
void coll_close(struct coll_comm *comm);

int coll_rank(const struct coll_comm *comm);
int coll_world(const struct coll_comm *comm);
/** What it is by now: of "tcp" with any_provider the provider's name, if one was taken. */
const char *coll_transport_name(const struct coll_comm *comm);

/** Why it is that, as half a sentence: "" if it was asked for. *Local.* */
const char *coll_transport_reason(const struct coll_comm *comm);

/** The name of a rank's host; "" by a transport of one host. *Local.* */
const char *coll_host(const struct coll_comm *comm, int rank);

/** How many ranks every host has, one after another; 0: hosts have different numbers of ranks, or
 * they do not follow each other. *Local.* */
int coll_ranks_a_host(const struct coll_comm *comm);

/** How many ranks the host with the fewest of them has, and the one with the most. *Local.* */
void coll_host_ranks(const struct coll_comm *comm, int *least, int *most);

/** Whether this process is a child of the one that opened the communicator. *Local, from any
 * thread.* */
bool coll_in_child(const struct coll_comm *comm);

/** The first fatal failure, ZERO_OK if none; its message is in *error if not NULL. *Local.* */
zero_result coll_state(const struct coll_comm *comm, struct base_error *error);

/** Poisons the communicator: every rank's current and next call fails with `result` (ZERO_E_ABORTED
 * or whatever failed here) and `reason` (cut at 200 bytes). *Local*, any thread, first one wins. */
void coll_abort(struct coll_comm *comm, zero_result result, const char *reason);

/* ------------------------------------------------------------------ groups */

/** Groups a rank can be in at a time. */
#define COLL_GROUPS_MAX 64

/**
 * Cuts the ranks of `comm` into groups: those that give the same colour form one, ordered by (key,
 * rank in comm); a negative colour joins none and gets *group == NULL. *Collective, ordered* over
 * comm. A group is a communicator of its own order of operations: ranks of different groups, or of
 * overlapping ones, need not agree on an order among them. All groups that come from one
 * coll_open() are a comm world: a root communicator with all its groups. One thread at a time uses
 * it. Any wait makes progress on all of them, arenas serve all of them, and the first failure of
 * any is the failure of all.
 *
 * Messages name ranks by their number in the comm world's first communicator, its root.
 * coll_close() of a group is local and leaves the others as they are. Closing the root closes what
 * is left of the comm world. It forgets requests that were not drained, and the caller must not
 * wait for them.
 *
 * ZERO_E_NOMEM, ZERO_E_LIMIT (a rank is in COLL_GROUPS_MAX groups; one that it has left counts
 * until all its ranks have left it), on all ranks: as before, unless the ranks could not tell each
 * other.
 */
zero_result coll_split(struct coll_comm *comm, int color, int key, struct coll_comm **group,
                       struct base_error *error);

/** The number in the root of a rank of this communicator. *Local.* */
int coll_root_rank(const struct coll_comm *comm, int rank);

/* ------------------------------------------------------------------ memory */

/**
 * Memory that peers can read without a copy; no other rank writes it, except that the
 * result of an all-reduce is written by all ranks. *Collective, ordered* over the root; sizes may
 * differ between ranks and be 0. The pages are zero and already touched, huge from 2 MiB on where
 * the kernel grants them. Lives until the root is closed; *arena is owned by the comm world, NULL
 * after a failure. Sources anywhere else work too, more slowly: see coll_unregistered_path().
 * ZERO_E_INVALID (not the root, on every rank), ZERO_E_NOMEM and ZERO_E_LIMIT, on all ranks: the
 * communicator is as before, unless the ranks could not tell each other.
 */
zero_result coll_arena_create(struct coll_comm *comm, size_t bytes, struct coll_arena **arena,
                              struct base_error *error);

/**
 * Memory there is once for all ranks of the host: `bytes`, the same on every rank. This rank takes
 * care of the `count` ranges `mine`: their pages are allocated by it, near it (a page that ranges
 * of several ranks share, huge or not, by whose its first byte is); together the ranks' ranges must
 * cover the arena. Every rank may write everywhere: who writes what, and when, is the caller's
 * protocol. Where ranks are on several hosts each host has one such memory, and its ranks allocate
 * what those of other hosts take care of, a part each. All else is as coll_arena_create() has it.
 * ZERO_E_INVALID also if the sizes differ, a range is not in the arena, or, on one host, pages are
 * in no rank's part. ZERO_E_UNSUPPORTED: this transport cannot.
 */
zero_result coll_arena_create_shared(struct coll_comm *comm, size_t bytes,
                                     const struct coll_span *mine, size_t count,
                                     struct coll_arena **arena, struct base_error *error);

/** This rank's bytes, aligned to 4 KiB; NULL if it has none. Of a shared arena: the whole. *Local.*
 */
void *coll_arena_base(const struct coll_arena *arena);
size_t coll_arena_size(const struct coll_arena *arena);

/** A shared arena, mapped a second time: writing there is a segmentation fault. NULL for an arena
 * that is not shared. *Local.* */
const void *coll_arena_view(const struct coll_arena *arena);

/** The bytes of a rank (of the root) as this one sees them; NULL if it has none, or if the
 * transport cannot show them. Reading needs the caller's own protocol. *Local.* */
const void *coll_arena_peer(const struct coll_arena *arena, int rank);

/** The most bytes that a rank can show where ranks share no memory. */
#define COLL_SHOWN_BYTES ((size_t)32 * 1024)

/**
 * Lets the others see what this rank has in an arena: by "tcp" what coll_arena_peer() gives them is
 * a copy, zero at first, in which what was shown appears some time later, in whole words of 8 bytes
 * and in ascending order, but for those that come from an earlier call; NULL for ranks that have
 * more than COLL_SHOWN_BYTES there. Elsewhere they see everything anyway, and nothing happens.
 * *Local*, any thread.
 */
void coll_arena_show(struct coll_arena *arena);

/**
 * How peers get at sources outside arenas: "direct" (threads), "process_vm_readv", or "copied" in
 * pieces through shared memory by the rank whose source it is, where the kernel does not allow the
 * second; then the others wait until that rank is in a call that makes progress. By "tcp" sources
 * are "sent" to other hosts in pieces, whatever their rank does, and ranks of one host read them as
 * by "shm", in the second way or the third. All ranks find one path. Such a source must be there
 * until it is drained, also when its rank closes the communicator or fails. Where the path is
 * "direct" so must the result of an all-reduce, which the others write. After a failure that is
 * until every rank has returned it. *Local.*
 */
const char *coll_unregistered_path(const struct coll_comm *comm);

/* ------------------------------------------------------------------ requests */

/** One operation under way: the caller's memory, all zero before its first start, from then on
 * untouched until it is drained. Defined below; the fields are private. */
struct coll_request;

/** Something to say about an operation in messages: "unit 17 (h.4)". */
struct coll_label {
    const char *what; /**< "unit"; NULL: no label. Both strings live until the request is drained */
    uint32_t number;
    const char *name; /**< "h.4"; may be NULL */
};

/** Moves whatever can be moved now in the whole comm world, without waiting. *Local.* ZERO_OK or
 * the sticky failure. */
zero_result coll_progress(struct coll_comm *comm);

/** Waits until the result of the request is complete on this rank. Peers may still read this
 * rank's source. *Local* (its partners need only have started it). Here and below the request may
 * be of any communicator of the comm world. */
zero_result coll_wait(struct coll_comm *comm, struct coll_request *request);

/** Waits until the request is complete and no peer reads this rank's source any more; then the
 * request and the source may be used again. *Local*; a partner must make progress too. After a
 * failure a peer may still complete the operation from this source. */
zero_result coll_drain(struct coll_comm *comm, struct coll_request *request);

/** Whether the request's result is complete on this rank, or was before it was drained; so is one
 * that was never started. *Local*, no progress. */
bool coll_complete(const struct coll_request *request);

/** Whether coll_drain() would return at once, with success or failure. *Local*, no progress. */
bool coll_drained(const struct coll_comm *comm, const struct coll_request *request);

/* ------------------------------------------------------------------ bulk operations */

// A source is any memory of this rank: inside an arena (fast), or anywhere else. Operations of one
// communicator are started in the same order on all its ranks; sends and receives only in the same
// order between two ranks.

/**
 * All-gather: rank r's block of spans[r].count bytes ends up at recv + spans[r].offset on every
 * rank. *Collective, ordered.* In place is allowed: a source that already lies at its place is not
 * copied. Blocks don't overlap; any count, 0 included.
 *
 * recv NULL: a publication, which moves nothing on a host. It is complete when every rank with a
 * block has started it; what that rank wrote before, in a shared arena for instance, is visible
 * then. A source in a shared arena is brought to every other host, once, at the same place in its
 * memory of the arena, each rank of that host a part: then it is complete when all of them have
 * brought theirs, and drained when no other host reads the source.
 *
 * `together`: recv is one memory of the host, the same place of a shared arena on each of its
 * ranks, which fill it together: each brings its own block and a part of the block of every rank of
 * another host. None of them writes there before all of them have made the call. So a rank makes it
 * when it reads there no more, and the memory holds what it held until the last one has. It is
 * complete when all of them have brought their parts.
 */
struct coll_all_gather {
    const void *source;            /**< this rank's block; anything if it is empty, and of a
                                        publication NULL or what other hosts are to have */
    void *recv;                    /**< any memory of this rank, or NULL */
    const struct coll_span *spans; /**< world entries, in bytes, the same on every rank; lives
                                        until the request is drained */
    struct coll_label label;
    bool together; /**< the ranks of a host fill recv together; the same on every rank */
};
zero_result coll_all_gather_start(struct coll_comm *comm, const struct coll_all_gather *op,
                                  struct coll_request *request);

/**
 * One tile of a reduce-scatter's result while it is still in cache: elements first .. first+count-1
 * of the owner's span (first relative to the span), complete for this request. first and count are
 * multiples of 1,024 but for the end of the span. Called in ascending order, from within any call
 * that makes progress, with the floating-point environment at its default. The callback must not
 * call any communicator of the comm world, which keeps pieces that were asked for ahead for this
 * request. sum is in the accumulator's type, not necessarily where the accumulator is. With a
 * sum_group only the call with `last` has tiles.
 */
typedef void (*coll_tile_fn)(void *user, size_t first, size_t count, const void *sum);

/** A tile's contributions, before anything was added. */
struct coll_contributions {
    const void *before; /**< sums so far, of the accumulator's type, at the tile; NULL: none */
    zero_dtype dtype;   /**< of the sources */
    int count;
    const void *const *sources; /**< in the order in which they are added */
    size_t first;               /**< element of each source that is the tile's first */
};

/**
 * Takes a tile over, sums and all: called like the tile function, of larger tiles, before they are
 * summed, with the memory of peers as it lies there, and under the same condition. Returns how many
 * elements it took, `count` or a multiple of 1,024: they are written to no accumulator and shown to
 * no peer. The rest is treated as if there were no such function. Never called with a sum_group.
 */
typedef size_t (*coll_take_fn)(void *user, size_t first, size_t count,
                               const struct coll_contributions *from);

/**
 * A contribution that is not finite: its lowest such element, relative to the owner's span. Called
 * once for each contributor that has one, before the tile function of the tile it lies in. Never
 * for integers.
 */
typedef void (*coll_nonfinite_fn)(void *user, int contributor, size_t element);

/**
 * Ordered reduce-scatter: the owner of a span adds the contributions of ranks 0, 1, ...,
 * contributors-1, in that order, each exactly as sent, into its accumulator: accumulator =
 * (accumulator + c0) + c1 ...; with `store` the first one is stored instead of added. Plain
 * additions in the accumulator's type in this order, round to nearest, denormals kept, integers
 * modulo 2^n: the bits are those of a scalar loop; a NaN is written as the positive quiet one
 * without payload. Ranks from `contributors` on make the same call; their source is not read. All
 * addresses are aligned to their elements. *Collective, ordered.*
 *
 * sum_group G > 1 adds in blocks: contribution k of this call is number first + k of a longer
 * sequence that may come in several calls; each G consecutive numbers, from a multiple of G on, are
 * added to each other first, from the block's first one on, and each finished block is added (the
 * sequence's first one stored) to the accumulator. A block that a call leaves unfinished stays in
 * `block`, to be taken up by the next call; `last` finishes it. f32 accumulators only.
 *
 * Without an accumulator the sum is only shown to the tile function: one that a single call makes
 * (`store`; with a sum_group `first` 0 and `last`), and that is used up there, goes to no memory.
 */
struct coll_reduce_scatter {
    const void *source;            /**< this rank's contribution, the whole vector: element 0 */
    zero_dtype dtype;              /**< of the contributions */
    const struct coll_span *spans; /**< world entries, in elements, the same on every rank; lives
                                        until the request is drained */
    void *accumulator;             /**< this rank's span: spans[rank].count elements; may be NULL
                                        where the tile function sees the whole sum */
    int contributors;              /**< 1 .. world */
    bool together;                 /**< nothing is summed before every rank has made the call, those
                                        whose source is not read as well */
    bool store;                    /**< with sum_group: ignored, block 0 is stored */
    uint32_t sum_group;            /**< 0, 1: none */
    uint64_t first;                /**< with sum_group: number of rank 0's contribution */
    bool last;                     /**< with sum_group: no other call follows */
    float *block;                  /**< with sum_group: like the accumulator; needed where a block
                                        is left unfinished, else NULL */
    coll_tile_fn tile;             /**< may be NULL */
    coll_take_fn take;             /**< may be NULL */
    coll_nonfinite_fn nonfinite;   /**< may be NULL: then nothing is checked */
    void *user;
    struct coll_label label;
};
zero_result coll_reduce_scatter_start(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                                      struct coll_request *request);

/**
 * All-reduce: result = combination of every rank's vector, in rank order, in the accumulator's
 * type, rounded to `dtype` once at the end: the same bits on every rank. NaN is the positive quiet
 * one. In place is allowed. Where source and result lie in arenas on every rank it is one pass over
 * memory, in which each rank writes a share of every result; else each fetches the others' shares.
 * Complete, it is drained. *Collective, ordered.*
 */
struct coll_all_reduce {
    const void *source; /**< count elements */
    void *result;       /**< count elements; the source itself, or no overlap with it */
    size_t count;
    zero_dtype dtype;
    enum base_op op;
    struct coll_label label;
};
zero_result coll_all_reduce_start(struct coll_comm *comm, const struct coll_all_reduce *op,
                                  struct coll_request *request);

/** Broadcast: root's bytes end up in every rank's `data`. *Collective, ordered.* */
struct coll_bulk_broadcast {
    void *data;
    size_t bytes;
    int root;
    struct coll_label label;
};
zero_result coll_broadcast_start(struct coll_comm *comm, const struct coll_bulk_broadcast *op,
                                 struct coll_request *request);

/**
 * All-to-all: rank r's block for rank q, r.send[q].count bytes at r.source + r.send[q].offset, ends
 * up at q.recv + q.recv_spans[r].offset; both sides give the same count (else ZERO_E_DIVERGED names
 * both). Uneven and empty blocks are fine. Source and recv don't overlap. *Collective, ordered.*
 */
struct coll_all_to_all {
    const void *source;
    void *recv;
    const struct coll_span *send;       /**< world entries, in bytes; both live until drained */
    const struct coll_span *recv_spans; /**< world entries, in bytes */
    struct coll_label label;
};
zero_result coll_all_to_all_start(struct coll_comm *comm, const struct coll_all_to_all *op,
                                  struct coll_request *request);

/**
 * Send and receive between two ranks of a communicator: the n-th send from r to q meets the n-th
 * receive of q from r; the bytes must be the same (else ZERO_E_DIVERGED names both). *Ordered* with
 * the other sends to (receives from) that rank only. Complete: of a receive, the bytes are here; of
 * a send, the peer has them, so who sends to each other starts both before waiting for either.
 * To oneself works.
 */
struct coll_message {
    void *data; /**< of a send only read */
    size_t bytes;
    int peer;
    struct coll_label label;
};
zero_result coll_send_start(struct coll_comm *comm, const struct coll_message *op,
                            struct coll_request *request);
zero_result coll_receive_start(struct coll_comm *comm, const struct coll_message *op,
                               struct coll_request *request);

/** See above. An all-zero request is a drained one. */
struct coll_request {
    uint64_t
        sequence; /**< position in the order of all operations; of a message: between the two */
    uint32_t kind;
    uint32_t state;
    uint64_t record;           /**< of the flight recorder */
    size_t moved;              /**< bytes of a message that are here */
    struct coll_comm *comm;    /**< where it was started */
    struct coll_request *next; /**< the one started after it, while both are under way */
    union {
        struct coll_all_gather all_gather;
        struct coll_reduce_scatter reduce_scatter;
        struct coll_all_reduce all_reduce;
        struct coll_bulk_broadcast broadcast;
        struct coll_all_to_all all_to_all;
        struct coll_message message;
    } op;
};

/* ------------------------------------------------------------------ small, blocking operations */

/**
 * Every rank gives `bytes` bytes, every rank gets all of them in rank order: all has world * bytes.
 * *Collective, ordered*, any memory, any size; meant for small ones (moved through a fixed control
 * block, 64 KiB a rank at a time). All ranks have entered when it returns.
 */
zero_result coll_exchange(struct coll_comm *comm, const void *mine, size_t bytes, void *all);

/** Combines doubles in rank order. *Collective, ordered.* */
zero_result coll_all_reduce(struct coll_comm *comm, double *values, size_t count, enum base_op op);

/** Copies root's bytes to every rank; any memory, any size. *Collective, ordered.* */
zero_result coll_broadcast(struct coll_comm *comm, void *data, size_t bytes, int root);

/** Returns when every rank has entered. *Collective, ordered.* */
zero_result coll_barrier(struct coll_comm *comm);

/* ------------------------------------------------------------------ teams */

zero_result coll_team_create(struct coll_team **team, int world, struct base_error *error);
void coll_team_free(struct coll_team *team);

/* ------------------------------------------------------------------ counters */

struct coll_counters {
    uint64_t gathered_bytes; /**< copied from peers */
    uint64_t reduced_bytes;  /**< read from peers */
    uint64_t waits;          /**< waits that had to yield or sleep */
    size_t memory_bytes;     /**< control memory of this rank, arenas not included */
    size_t huge_bytes; /**< of arenas in shared memory: what this rank has put in huge pages */
};

/** memory_bytes of a root that is yet to be opened. With `any_provider`, as in coll_config, it has
 * what a provider takes that the ranks may find: none where this host would decline it. It lacks
 * what unregistered sources need where the kernel doesn't let ranks read each other
 * (coll_unregistered_path()). `hosts`: on how many the ranks are, the same number on each; 0: it is
 * not known, and by a network taken for as many as there are ranks. 0: there is no such transport.
 * *Local.* */
size_t coll_memory_needed(const char *transport, bool any_provider, int world, int hosts);

void coll_counters(const struct coll_comm *comm, struct coll_counters *counters);

#endif
