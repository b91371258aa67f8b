/**
 * collectives/host/host.h: collectives among ranks that can address each other's memory.
 *
 *   host_block.c       what ranks see of each other; sleeping and waking.
 *   host_join.c        joining and leaving.
 *   host_group.c       groups, and slots for their blocks.
 *   host_meet.c        what another rank has posted, and whether it is what this rank has.
 *   host_post.c        starting an operation: what it is and where its memory lies, for all to see.
 *   host_source.c      memory that a peer has posted, as memory of this process.
 *   remote_read.c      memory of a peer that can't be addressed: outside arenas, or of a far rank.
 *   provided_copy.c    what a provider copies of it.
 *   host_fetch.c       copies what a peer has posted, wherever it lies.
 *   host_gather.c      all-gather, broadcast, all-to-all.
 *   host_publish.c     the all-gather that only says that its blocks are there, and the one that
 *                      the ranks of a host do together.
 *   host_reduce.c      ordered reduce-scatter.
 *   host_partial.c     sums of a host's blocks in it, which travel instead of contributions.
 *   host_all_reduce.c  all-reduce of long vectors.
 *   host_small.c       the small operations.
 *   host_message.c     send and receive.
 *   presence.c         which rank waits for which.
 *   host_last_call.c   what each rank has called last.
 *
 * A pull model: each rank has a block that all others see. It writes there what it has posted: a
 * ring of descriptors, and `posted`, which counts them. A rank that needs a peer's bytes waits
 * until that peer's `posted` has passed the operation, reads them where they are, and counts the
 * operation in its own `consumed`. A source may be used again when `consumed` of all its readers
 * has passed. There is no barrier. A rank writes into a peer's memory only to wake it, and the
 * result of an all-reduce.
 */
#ifndef COLLECTIVES_HOST_HOST_H
#define COLLECTIVES_HOST_HOST_H

#include "base/kernels/sum.h"
#include "collectives/comm/call_log.h"
#include "collectives/host/host_partial.h"
#include "collectives/host/live_cell.h"
#include "collectives/provider/provider.h"

#include <sched.h>
#include <stdalign.h>

enum {
    HOST_LINE = 128,    /**< two cache lines: processors fetch them in pairs */
    HOST_RING = 128,    /**< operations of a rank that can be under way */
    HOST_INLINE = 64,   /**< bytes of a small operation that travel with its descriptor */
    HOST_P2P_SLOTS = 8, /**< messages from one rank to another that can be under way */
    HOST_TABLES = 4,    /**< all-to-alls of a rank that can be under way */
    HOST_LAST_CALL_WORDS = 18,
};

/** More than any number of operations. */
#define HOST_GONE UINT64_MAX

/** Not in an arena. */
#define HOST_UNREGISTERED UINT32_MAX

/** Where a rank's memory lies. */
struct host_place {
    uint64_t at;    /**< offset in the arena; the address, if it is unregistered */
    uint64_t bytes; /**< that may be read from there on */
    uint32_t arena; /**< HOST_UNREGISTERED: in none */
};

static inline bool coll_host_same_place(const struct host_place *a, const struct host_place *b)
{
    return a->arena == b->arena && a->at == b->at && a->bytes == b->bytes;
}

/** A part of a place. */
static inline struct host_place coll_host_part(const struct host_place *place, size_t first_byte,
                                               size_t bytes)
{
    return (struct host_place){place->at + first_byte, bytes, place->arena};
}

/** What a rank posts for one operation. What every reader needs is in the first pair of lines. */
struct host_descriptor {
    alignas(HOST_LINE) _Atomic uint64_t posted; /**< the operation's number + 1, written last */
    uint64_t history;         /**< hash of all signatures up to this operation's */
    struct host_place source; /**< of a small operation: `at` is its slot */
    struct host_place target; /**< of an all-reduce, and of an all-gather of a host: where its
                                 result goes; of an all-to-all: `at` is the number of its table; of
                                 a reduce-scatter: its partial sums */
    alignas(HOST_INLINE) unsigned char bytes[HOST_INLINE]; /**< of a small operation, if they
                                                                    fit */
    struct coll_signature signature;
};

/** What a rank posts for one message. */
struct host_p2p_slot {
    struct coll_signature signature;
    struct host_place source;
};

/** The messages between two ranks, in one's block for each of the others. */
struct host_p2p_queue {
    alignas(HOST_LINE) _Atomic uint64_t posted; /**< messages sent there */
    _Atomic uint64_t received;                  /**< messages received from there */
    struct host_p2p_slot slots[HOST_P2P_SLOTS];
};

/** The last of a rank's calls that are not ordered operations of the root, whose ring has those. */
struct host_last_call {
    _Atomic uint64_t stamp; /**< 0: nothing; odd: being written */
    _Atomic uint64_t words[HOST_LAST_CALL_WORDS];
};

/**
 * What the ranks see of each other. It is zero at the start. Its owner writes it, but for `asleep`
 * and `gone`. A rank has copies of the blocks of far ranks (tcp/tcp.h). A copy has room for one p2p
 * queue and one set of spans: those that belong to the rank that has the copy.
 */
struct host_block {
    alignas(HOST_LINE) _Atomic uint64_t posted;   /**< operations posted */
    _Atomic uint32_t doorbell;                    /**< of the root: see host_join.c */
    _Atomic uint32_t retired;                     /**< of the root: its owner is about to leave, and
                                                         brings nothing more */
    alignas(HOST_LINE) _Atomic uint64_t consumed; /**< operations done with; HOST_GONE: left */
    alignas(HOST_LINE) _Atomic uint64_t written;  /**< steps of long all-reduces done, two each:
                                                         its share is written, the others' are
                                                         fetched; and two of each all-gather of a
                                                         host, and where ranks are on several hosts
                                                         of each publication (its part is here) and
                                                         reduce-scatter (its partial sums are made)
                                                         */
    alignas(HOST_LINE) _Atomic uint32_t asleep;   /**< of the root: 1: a ringer (host_block.c)
                                                         wakes the owner */
    alignas(HOST_LINE) _Atomic uint32_t gone;     /**< of a group: ranks that will not look at
                                                         this block any more, counted by them */
    alignas(HOST_LINE) struct live_cell live;     /**< of the root */
    alignas(
        HOST_LINE) struct host_last_call last_call; /**< of the root: of all its communicators */
    alignas(HOST_LINE) struct coll_poison poison;   /**< rank 0's of the root is the comm world's */
    alignas(HOST_LINE) cpu_set_t cpus;              /**< where the owner may run */
    int allowed_cpus;                               /**< how many of them it can keep busy */
    _Atomic uint64_t sent; /**< of a copy: operations of this rank that its owner was sent */
    struct host_descriptor ring[HOST_RING];
    alignas(4096) unsigned char slots[COLL_SMALL_SLOTS][COLL_SMALL_BYTES];
    struct host_p2p_queue p2p_queues[]; /**< of every rank; behind it HOST_TABLES tables of `world`
                                  spans: where an all-to-all's blocks lie in the source */
};

/** The slot of this rank's block in a group. It is taken until all of the group's `members` are
 * gone. */
struct host_group_slot {
    struct host_block *block; /**< NULL: not yet allocated */
    int members;
};

/** For sums on their way, in the innermost cache. */
struct host_scratch {
    alignas(HOST_LINE) unsigned char sum[BASE_SUM_TILE * sizeof(double) + BASE_SUM_LINE];
    alignas(HOST_LINE) unsigned char block[BASE_SUM_TILE * sizeof(double)];
};

/** One rank's state in one communicator: of a root the first member of the transport's link, of a
 * group the whole link. */
struct host_comm {
    struct host_block **blocks;      /**< of every rank */
    bool *far;                       /**< of every rank: it shares no memory with this one */
    int far_count;                   /**< how many are far */
    struct host_block **root_blocks; /**< the block of every rank in the root */
    unsigned char *met;   /**< of every rank: enum host_meeting, for the oldest request */
    const void **sources; /**< of every rank: room for a list of addresses, */
    void **targets;       /**< and for another one */
    uint64_t *consumed;   /**< of every rank: what its counter was when it was last looked at */
    size_t at;            /**< how far the oldest request is, in its own units */
    uint64_t post_limit;  /**< operations below this number can be posted */
    uint64_t history;     /**< hash of the signatures of all that were */
    size_t *fetched;      /**< of every rank: bytes of its block that are here already */
    struct host_remote_read *remote_read; /**< of processes: remote_read.c's own */
    uint64_t tables[HOST_TABLES]; /**< which all-to-all has used each last: its sequence + 1 */
    uint64_t all_to_alls;         /**< started so far */
    const struct base_sum_kernels *kernels;
    struct host_scratch *scratch;
    size_t cache_bytes, core_bytes; /**< base_sum_cache_bytes(), base_sum_core_bytes() */
    bool shared;                    /**< the ranks are processes, for futexes */
    bool joined;                    /**< the others count on this rank to leave */
    void (*send_changes)(const struct coll_comm *comm);  /**< sends what has changed in this rank's
                                                      block to the far ranks, which have copies;
                                                      NULL: none is far. Any thread */
    struct host_group_slot group_slots[COLL_GROUPS_MAX]; /**< of a root */
    struct host_partial partial;                         /**< of a root */
    struct coll_provided *provided; /**< of a root: copies what is in arenas of ranks whose memory
                                         this one doesn't share; NULL: it is sent */
};

/** How far the oldest request is with one peer. */
enum host_meeting {
    HOST_NOT_MET,
    HOST_MET,  /**< it has posted the same operation */
    HOST_DONE, /**< and nothing more is to be done with it: its block is copied, or it was
                      reported */
};

/* ------------------------------------------------------------------ host_block.c */

/** Bytes of a block in a communicator of `world` ranks. */
size_t coll_host_block_bytes(int world);

/** One of the HOST_TABLES tables of a block with room for `places` ranks: the owner's blocks in
 * the source, for each of them. */
struct coll_span *coll_host_table(struct host_block *block, int places, uint64_t table);

/** Fills in this rank's block, all zero so far, before a peer sees it. *Local.* */
void coll_host_prepare(struct host_block *block);

/** Whether a rank has left. *Local.* */
bool coll_host_left(const struct coll_comm *comm, int rank);

/** This rank is about to leave: it brings nothing more for the ranks of its host. *Local.* */
void coll_host_retire(struct coll_comm *root);

/** Whether a rank has left, or is about to: then it reads, brings and counts nothing more.
 * *Local.* */
bool coll_host_retired(const struct coll_comm *comm, int rank);

/** The functions of the table that all such transports have in common. */
void coll_host_wake(struct coll_comm *comm);
void coll_host_wake_rank(struct coll_comm *comm, int rank);
/** Wakes this rank, as another one would. Any thread. */
void coll_host_wake_own(const struct coll_comm *root);
void coll_host_sleep_begin(struct coll_comm *comm);
void coll_host_sleep(struct coll_comm *comm, uint64_t timeout_ns);
void coll_host_sleep_end(struct coll_comm *comm);

/* ------------------------------------------------------------------ host_join.c */

/** Bytes of a rank's control memory in a root of `world` ranks; `shared`: they are processes. */
size_t coll_host_memory(int world, bool shared);

/** Allocates the tables. *Local.* After an error coll_host_free() is still called. */
zero_result coll_host_init(struct host_comm *host, struct coll_comm *comm, bool shared,
                           struct base_error *error);

/** Goes to work as a root, when direct->blocks is filled in. *Local.* */
void coll_host_join(struct coll_comm *comm);

/** Tells the others that this rank leaves; afterwards it does not touch the blocks. *Local.* */
void coll_host_leave(struct coll_comm *comm);

/** Frees the tables. *Local.* */
void coll_host_free(struct host_comm *host, struct coll_comm *comm);

/* ------------------------------------------------------------------ host_group.c */

/** Allocates slot `index` for a block of `bytes` bytes of this rank of the root, for as long as any
 * rank can see it. */
typedef zero_result (*host_group_slot_fn)(struct coll_comm *root, size_t index, size_t bytes,
                                          struct host_block **block, struct base_error *error);

/** Bytes between two group slots, or a root's block and the first, in one memory: any group's fits.
 */
size_t coll_host_group_slot_bytes(const struct coll_comm *root);

/** Makes comm->link of a group with this rank's block, in a group slot that is free, or a new one
 * made by `add`: *group_slot. *Local.* ZERO_E_LIMIT: all group slots are taken; ZERO_E_NOMEM, and
 * what `add` returns.
 */
zero_result coll_host_group_prepare(struct coll_comm *comm, host_group_slot_fn add,
                                    size_t *group_slot, struct base_error *error);

/** Fills in a rank's block. *Local.* */
void coll_host_group_meet(struct coll_comm *comm, int rank, struct host_block *block);

/** Frees the link, which may be NULL; with `leaving` tells the others before that this rank leaves
 * the group. *Local.* */
void coll_host_group_close(struct coll_comm *comm, bool leaving);

/* ------------------------------------------------------------------ host_meet.c */

/** ZERO_OK if `rank` has posted the oldest request, ZERO_AGAIN if not yet; fails if it has posted
 * something else in its place. */
zero_result coll_host_meet(struct coll_comm *comm, const struct coll_request *request, int rank);

/** coll_host_meet() for ranks 0 .. count-1. */
zero_result coll_host_meet_all(struct coll_comm *comm, const struct coll_request *request,
                               int count);

/** What `rank` has posted for a request. */
struct host_descriptor *coll_host_descriptor(const struct coll_comm *comm, int rank,
                                             uint64_t sequence);

/** Whether a rank has posted, or is done with, the operation of this number. */
bool coll_host_posted(const struct coll_comm *comm, int rank, uint64_t sequence);

bool coll_host_consumed(const struct coll_comm *comm, int rank, uint64_t sequence);

/** How many operations of this rank another one knows of, at most all. A rank that needs nothing of
 * this one may have consumed more. */
uint64_t coll_host_sent(const struct coll_comm *comm, int rank);

/** Whether `rank` can't look at the ring's entry for the request as what it was before. */
bool coll_host_has_room(const struct coll_comm *comm, const struct coll_request *request, int rank);

/* ------------------------------------------------------------------ host_post.c */

zero_result coll_host_start(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_progress(struct coll_comm *comm);

/** Whether a small operation's bytes travel with its descriptor. */
static inline bool coll_host_inlined(const struct coll_request *request)
{
    return coll_kind_is_small(request->kind) &&
           ((const struct coll_small *)request)->bytes <= HOST_INLINE;
}

/* ------------------------------------------------------------------ host_source.c */

/** This rank's memory from `address` on, as the others find it. */
struct host_place coll_host_place(const struct coll_comm *comm, const void *address, size_t bytes);

/** A place of `rank` in this process's memory; NULL if it can't be addressed. */
unsigned char *coll_host_address(const struct coll_comm *comm, int rank,
                                 const struct host_place *place);

/** A place that this rank has posted, in its own memory. *Local*, any thread. */
unsigned char *coll_host_own_address(const struct coll_comm *root, const struct host_place *place);

/* ------------------------------------------------------------------ remote_read.c */

// How an operation reads what peers have posted, wherever it lies: a sum looks at pieces of all
// contributors at a time, coll_host_view(); a copy brings it to where it is wanted,
// coll_host_fetch(). ZERO_AGAIN from either: a piece has been asked of its owner, and the next
// call of progress asks again, with the same arguments. Negative: coll_fail() was called. The place
// may be an operation's or a message's.

/** The most elements that one view of each of the ranks 0 .. contributors-1 can show: SIZE_MAX, or
 * a multiple of 1,024. The request is the oldest one, and all of them have posted it. */
size_t coll_host_piece(const struct coll_comm *comm, const struct coll_request *request,
                       int contributors, size_t element_bytes);

/** Bytes first_byte .. first_byte+bytes-1 of a place in this process's memory, until the next view
 * of the same rank. The pieces of the oldest request are looked at in ascending order. */
zero_result coll_host_view(struct coll_comm *comm, const struct coll_request *request, int rank,
                           const struct host_place *place, size_t first_byte, size_t bytes,
                           const void **at);

/** Asks the owners for what the next view of each of the ranks 0 .. contributors-1 will show, so
 * that it is on its way while what they show now is worked on. All owners have shown their present
 * pieces by then. So a request that waits for a piece holds up no rank by asking early for a later
 * one. The code that works on the pieces calls no communicator of the comm world, whose requests
 * might want what is kept for this one. *Local.*
 */
void coll_host_view_ahead(struct coll_comm *comm, const struct coll_request *request,
                          int contributors, size_t first_byte, size_t bytes);

/** coll_host_view_ahead() for one rank's place. *Local.* */
void coll_host_view_next(struct coll_comm *comm, const struct coll_request *request, int rank,
                         const struct host_place *place, size_t first_byte, size_t bytes);

/** Copies bytes of a rank's memory that can't be addressed, as coll_host_fetch() does. */
zero_result coll_host_read(struct coll_comm *comm, const struct coll_request *request, int rank,
                           const struct host_place *place, size_t bytes, unsigned char *to,
                           size_t *done);

/** The oldest request is complete: its views are worth nothing. *Local.* */
void coll_host_forget_views(struct coll_comm *comm);

/** Copies what peers have asked of this rank; whether there was anything. *Local.* */
bool coll_host_serve(struct coll_comm *root);

/** A piece that this rank wants of another one's memory, which it can't address. */
struct host_read_request {
    const struct host_block *block; /**< the owner's, as seen here */
    uint64_t sequence;              /**< of the operation, or of the message */
    struct host_place place;        /**< where the piece lies, and its bytes */
    bool message;
};

/** Takes the read request of `owner`'s memory that was not taken yet: false if there is none.
 * *Local*, any thread, one at a time, as the next two. */
bool coll_host_take_read_request(const struct coll_comm *root, int owner,
                                 struct host_read_request *wanted);
/** Where the piece that was taken goes; NULL if there is none, or none of this size. */
unsigned char *coll_host_read_target(const struct coll_comm *root, int owner, uint64_t bytes);
/** The piece is there, or (`here` false) this rank does not want it any more. */
void coll_host_finish_read(const struct coll_comm *root, int owner, bool here);

/** Whether a piece that an owner has copied was taken since this was last asked. *Local.* */
bool coll_host_piece_taken(const struct coll_comm *comm);

/** Whether `rank` has not yet copied what was asked of it for this communicator. *Local.* */
bool coll_host_read_pending(const struct coll_comm *comm, int rank);

/** Takes back what was asked for a communicator that is about to be closed. *Local.* */
void coll_host_cancel_reads(struct coll_comm *comm);

/** Allocates and frees direct->private. *Local.* ZERO_E_NOMEM: it is still freed. */
size_t coll_host_remote_read_bytes(int world);
zero_result coll_host_remote_read_init(struct host_comm *host, struct coll_comm *comm,
                                       struct base_error *error);
void coll_host_remote_read_free(struct host_comm *host, struct coll_comm *comm);

/** Whether this rank can read the word `expected` at `address` of a rank's process, which is noted.
 * *Local.* */
bool coll_host_probe(struct coll_comm *root, int rank, pid_t process, uint64_t address,
                     uint64_t expected);

/** Bytes of a rank's memory for pieces that their owner copies, or sends. */
size_t coll_host_bounce_bytes(int world);

/** Sets the comm world's unregistered_path and allocates what it needs. `allowed`: the probes of
 * all ranks that are not far succeeded. `bounces`: of every such rank coll_host_bounce_bytes(),
 * which all of them see, NULL for far ranks; the caller keeps both until the root is closed. NULL:
 * an arena is made if there is a need for one. *Collective* then, else *local*. */
zero_result coll_host_remote_read_join(struct coll_comm *root, bool allowed,
                                       unsigned char **bounces, struct base_error *error);

/* ------------------------------------------------------------------ host_fetch.c */

/** Copies the first `bytes` bytes of a place to `to`, which may overlap it if both are this rank's.
 * *done counts those that are there: 0 at first, kept by the caller from call to call. */
zero_result coll_host_fetch(struct coll_comm *comm, const struct coll_request *request, int rank,
                            const struct host_place *place, size_t bytes, void *to, size_t *done);

/* ------------------------------------------------------------------ the operations */

// Each works on the oldest request as far as it can: ZERO_OK when the result is complete.

zero_result coll_host_all_gather(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_broadcast(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_all_to_all(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_reduce_scatter(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_all_reduce(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_exchange(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_small_all_reduce(struct coll_comm *comm, struct coll_request *request);
zero_result coll_host_small_broadcast(struct coll_comm *comm, struct coll_request *request);

/** coll_host_view() of the sources of ranks 0 .. contributors-1: direct->sources. */
zero_result coll_host_view_all(struct coll_comm *comm, const struct coll_request *request,
                               int contributors, size_t first_byte, size_t bytes);

/** Counts steps of the operation under way that this rank has done, for the others to see. */
void coll_host_count_steps(struct coll_comm *comm, uint64_t steps);

/** Whether a rank has done fewer steps than this one. */
bool coll_host_behind(const struct coll_comm *comm, int rank);

/* ------------------------------------------------------------------ host_message.c */

/** Posts a send if it is its turn and there is room; else progress does it later. */
void coll_host_message_start(struct coll_comm *comm, const struct coll_request *request);

/** Works on all messages and retires those that are complete. ZERO_AGAIN: nothing was moved. */
zero_result coll_host_messages(struct coll_comm *comm);

/** Whether the peer of a message has not yet done its part: a sender posted, a receiver taken. */
bool coll_host_message_absent(const struct coll_comm *comm, const struct coll_request *request);

/* ------------------------------------------------------------------ presence.c */

bool coll_host_drained(const struct coll_comm *comm, const struct coll_request *request);
enum coll_presence coll_host_presence(const struct coll_comm *comm,
                                      const struct coll_request *request, enum coll_goal goal,
                                      int rank);

/* ------------------------------------------------------------------ host_last_call.c */

/** Records a message, or an operation of a group, as the last call, for coll_host_last_call() on
 * the others. */
void coll_host_record_call(const struct coll_comm *comm, const struct coll_signature *signature,
                           uint64_t sequence);
void coll_host_last_call(const struct coll_comm *comm, int rank, char *text, size_t size);

static inline struct host_comm *coll_host_of(const struct coll_comm *comm)
{
    return comm->link;
}

/** The place of `other` in the p2p queues and the tables of `owner`'s block, as this rank sees it.
 */
static inline int coll_host_index(const struct coll_comm *comm, int owner, int other)
{
    return coll_host_of(comm)->far[owner] ? 0 : other;
}

/** Whether this process can address a rank's memory. */
static inline bool coll_host_addressable(const struct coll_comm *comm, int rank,
                                         const struct host_place *place)
{
    const struct host_comm *host = coll_host_of(comm);
    return !host->far[rank] &&
           (place->arena != HOST_UNREGISTERED || rank == comm->rank || !host->shared);
}

static inline struct host_block *coll_host_own(const struct coll_comm *comm)
{
    return coll_host_of(comm)->blocks[comm->rank];
}

#endif
