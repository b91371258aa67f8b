/**
 * collectives/tcp/tcp_internal.h: what the files of the network share. Everything is guarded by
 * net->lock, but for what says so.
 */
#ifndef COLLECTIVES_TCP_TCP_INTERNAL_H
#define COLLECTIVES_TCP_TCP_INTERNAL_H

#include "collectives/rendezvous/mesh.h"
#include "collectives/tcp/tcp.h"
#include "collectives/tcp/tcp_wire.h"

#include <pthread.h>

enum {
    NET_GROUP_SLOTS = 1 + COLL_GROUPS_MAX,
    NET_BUFFER = 4096, /**< of each direction of a connection: some frames without their tails */
};

/** How long ranks wait for each other's word of a failure: longer than one may be without a
 * processor, or suspended for a moment. */
static const uint64_t net_patience_ns = UINT64_C(2000000000);

/** One of this rank's blocks. */
struct net_group_slot {
    struct host_block *block; /**< NULL: there was none yet */
    int world;
    int rank;     /**< this one's, there */
    void *copies; /**< of the others' blocks in the same communicator, while it is open */
};

/** What a peer was told of one of this rank's blocks. */
struct net_sent {
    bool expected;           /**< it is one of the block's ranks and not gone */
    bool meets;              /**< and looks at it */
    int index;               /**< its rank there */
    struct host_block *copy; /**< of its block in the same communicator, while that is open here */
    uint64_t operations, consumed, written, p2p_posted, received;
    uint64_t peer_consumed, peer_received; /**< its own counters there */
};

/** What this rank has of one of a peer's blocks. */
struct net_peer_block {
    struct host_block *copy; /**< NULL: it does not look at it (any more) */
    int group_slot;          /**< this rank's block in the same communicator; -1: it never did */
};

/** A small arena. Those of the others are its peers' bytes. */
struct net_show {
    const struct coll_arena *arena;
    size_t parts;         /**< that it has here */
    unsigned char *bytes; /**< what this rank shows, */
    uint32_t *versions;   /**< of every part, */
    uint32_t *sent;       /**< and of every rank and part what it was sent */
    struct net_show *next;
};

/** What came from a peer. */
struct net_inbox {
    unsigned char bytes[NET_BUFFER]; /**< those at begin .. end-1 were not yet looked at */
    size_t begin, end;
    struct net_header open; /**< whose tail is coming */
    uint64_t sequence;      /**< of the operation that the tail belongs to */
    int slot;               /**< where the tail belongs in its block */
    size_t tail_at;         /**< how much of the tail has come */
    size_t tail;            /**< how much there is of it; 0: none is coming */
};

/** What is being sent to a peer. */
struct net_outbox {
    unsigned char bytes[NET_BUFFER]; /**< those at begin .. end-1 */
    size_t begin, end;
    const unsigned char *tail; /**< sent behind them */
    size_t tail_bytes;
};

struct net_peer {
    int rank;
    bool far;             /**< it has a copy of this rank's blocks, and this rank of its */
    int socket;           /**< -1: this rank itself, or closed */
    bool left;            /**< it has said so */
    bool lost;            /**< its connection is of no use any more */
    bool done;            /**< it was told that this rank leaves, and nothing is sent any more */
    bool ended;           /**< nor comes anything */
    bool shut;            /**< the peer was shown the end of what is sent */
    bool heard;           /**< something, since the last tick */
    bool beat;            /**< it is to get one */
    bool retires;         /**< it is to be told that this rank reads nothing more */
    uint64_t silent;      /**< ticks */
    uint64_t meets, goes; /**< group slots of the peer, a bit each, of which it is to be told so */
    uint64_t last_call_sent; /**< stamp of the last call that it was sent, */
    bool poisoned;           /**< and whether of the failure; */
    bool confirmed;          /**< whether it has told of one itself */
    bool polled;             /**< its socket is watched for room */
    size_t group_slots;      /**< that it has met are below this number */
    struct net_sent sent[NET_GROUP_SLOTS];
    struct net_peer_block blocks[NET_GROUP_SLOTS];
    size_t piece;         /**< bytes of the piece that it is to get; 0: none */
    unsigned char *bytes; /**< that */

    struct net_inbox in;
    struct net_outbox out;
};

/** A failure that is not yet the comm world's; result 0: none. */
struct net_failure {
    zero_result result;
    char message[COLL_MESSAGE_BYTES];
};

enum net_phase { NET_WORKING, NET_LEAVING };

struct coll_net {
    struct coll_comm *root;
    pthread_mutex_t lock;
    pthread_t thread;
    struct net_peer *peers;         /**< of every rank */
    char (*hosts)[BOOT_HOST_BYTES]; /**< the same */
    unsigned char *pieces;          /**< the same: a slice each */
    size_t slice;                   /**< the most bytes of a piece */
    struct net_group_slot group_slots[NET_GROUP_SLOTS];
    struct net_show *shows;
    struct net_failure first;  /**< that this rank has heard of, and tells the others, */
    struct net_failure chosen; /**< and what is to be the comm world's here: what was told by */
    int chosen_from;           /**< the lowest rank */
    uint64_t choose_by_ns;
    uint64_t timeout_ns; /**< of any wait */
    uint64_t tick_ns, stall_ns, next_tick_ns;
    int epoll, doorbell;     /**< and what interrupts its wait: an eventfd */
    int sockets;             /**< an epoll of all connections, which `epoll` watches as one */
    bool polls;              /**< the rank's thread only: `epoll` does not, as the rank does */
    _Atomic uint32_t kicked; /**< any thread: the doorbell rings */
    _Atomic uint32_t phase;  /**< any thread: enum net_phase */
};

/** Whether anything can still be sent to a peer. */
static inline bool net_listens(const struct net_peer *peer)
{
    return peer->socket >= 0 && !peer->left && !peer->lost && !peer->done;
}

/* ------------------------------------------------------------------ tcp_failure.c */

/** A failure that rank `from` tells of, or this one has noticed. */
void coll_net_fail(struct coll_net *net, int from, zero_result result, const char *message);

/** What the others are told of it; NULL: there is none. */
const struct net_failure *coll_net_failure(struct coll_net *net);

/** Makes it the comm world's when it is time to; returns how long that still takes, UINT64_MAX if
 * there is none to come. */
uint64_t coll_net_settle(struct coll_net *net);

/* ------------------------------------------------------------------ tcp_deaths.c */

/** A peer that has not said that it leaves has died (failed: 0), or can't be heard any more
 * (errno).
 */
void coll_net_lose(struct coll_net *net, struct net_peer *peer, int failed);

/** A connection has come to its end, or is broken (failed: errno). */
void coll_net_end(struct coll_net *net, struct net_peer *peer, int failed);

/** Has every peer get a beat, and looks which of them have sent nothing for too long. */
void coll_net_tick(struct coll_net *net);

/* ------------------------------------------------------------------ tcp_connection.c */

/** Reads and hears what has come, or of very much a part. False: the connection has ended, or
 * is broken (*failed: errno, 0 at its orderly end, EPROTO after nonsense, which is poison already).
 */
bool coll_net_receive(struct coll_net *net, struct net_peer *peer, int *failed);

/** Sends what the peer is to be told, as far as there is room for it. False: the connection is
 * broken. */
bool coll_net_send(struct coll_net *net, struct net_peer *peer, int *failed);

/* ------------------------------------------------------------------ tcp_tx.c */

/** Fills peer->out, which is empty, with what the peer was not told yet. */
void coll_net_tx_fill(struct coll_net *net, struct net_peer *peer);

/** Adds a frame without a tail. False: there is no room. */
bool coll_net_put(struct net_peer *peer, enum net_type type, const void *fixed);

/* ------------------------------------------------------------------ tcp_show.c */

/** Those that are left, without the lock. */
void coll_net_free_shows(struct coll_net *net);

bool coll_net_tx_shows(const struct coll_net *net, struct net_peer *peer);
bool coll_net_rx_shown(const struct coll_net *net, const struct net_peer *peer,
                       const struct net_shown *shown);

/* ------------------------------------------------------------------ tcp_rx.c */

/** Bytes from one copy of a block to the next. */
size_t coll_net_copy_bytes(void);

/** Whether a peer reads what this rank has posted in a block for an operation, but for what was
 * sent with it. For a reduce-scatter the answer is true of all peers: what was posted does not show
 * whose span is empty, so that it reads nothing. Such a peer may keep this rank from closing until
 * it has made the call. The source may be gone before that, so this rank trusts such a peer to ask
 * for nothing, and trusts it in nothing else. */
bool coll_net_reads(const struct net_group_slot *group_slot, const struct net_sent *sent,
                    const struct host_descriptor *posted);

/** Bytes of a type's fixed part, SIZE_MAX if there is no such type. */
size_t coll_net_fixed_bytes(uint32_t type);

/** Hears a header and its fixed part. False: it is nonsense. peer->tail says whether more is to
 * come. */
bool coll_net_rx(struct coll_net *net, struct net_peer *peer, const struct net_header *header,
                 const union net_fixed *fixed);

/** A peer has left the communicator of a block of its own, or the root. */
void coll_net_peer_left(const struct coll_net *net, const struct net_peer *peer, size_t group_slot);

/** Where the tail of peer->open belongs; NULL: nowhere. */
unsigned char *coll_net_tail(struct coll_net *net, struct net_peer *peer);

/** The tail is there. */
void coll_net_rx_tail(struct coll_net *net, struct net_peer *peer);

#endif
