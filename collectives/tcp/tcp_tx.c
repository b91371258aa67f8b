// What a peer is to be told: the difference between this rank's blocks and what it was told of
// them. The thread sends it in the order in which the stores in a shared block are seen. What was
// posted goes before the counters, the counters go before the failure, and that this rank has left
// goes last.

#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <string.h>

/** Adds a frame, of whose bytes `tail` come behind the buffer. False: there is no room. */
static bool put(struct net_peer *peer, enum net_type type, size_t group_slot, const void *fixed,
                size_t tail)
{
    const size_t bytes = coll_net_fixed_bytes(type);
    assert(bytes < SIZE_MAX && group_slot < NET_GROUP_SLOTS &&
           peer->out.end <= sizeof peer->out.bytes);
    const struct net_header header = {(uint32_t)(bytes + tail), (uint16_t)type,
                                      (uint16_t)group_slot};
    if (peer->out.tail_bytes > 0 || sizeof peer->out.bytes - peer->out.end < sizeof header + bytes)
        return false;
    memcpy(peer->out.bytes + peer->out.end, &header, sizeof header);
    if (fixed)
        memcpy(peer->out.bytes + peer->out.end + sizeof header, fixed, bytes);
    peer->out.end += sizeof header + bytes;
    return true;
}

bool coll_net_put(struct net_peer *peer, enum net_type type, const void *fixed)
{
    return put(peer, type, 0, fixed, 0);
}

/** Puts a message with its tail, which stays as it is until it is sent. */
static bool put_tail(struct net_peer *peer, enum net_type type, size_t group_slot,
                     const void *fixed, const unsigned char *tail, size_t tail_bytes)
{
    assert(tail || tail_bytes == 0);
    if (!put(peer, type, group_slot, fixed, tail_bytes))
        return false;
    peer->out.tail = tail;
    peer->out.tail_bytes = tail_bytes;
    return true;
}

/* ------------------------------------------------------------------ operations */

/** Bytes of a small operation that are in a slot, for others to read. */
static size_t slot_bytes(const struct net_group_slot *group_slot,
                         const struct coll_signature *signature)
{
    const bool small = coll_kind_is_small(signature->kind);
    const bool gives = signature->kind != COLL_BROADCAST || signature->root == group_slot->rank;
    return small && gives && signature->bytes > HOST_INLINE ? signature->bytes : 0;
}

static bool put_operation(const struct coll_net *net, struct net_peer *peer, size_t number)
{
    const struct net_group_slot *group_slot = &net->group_slots[number];
    struct net_sent *sent = &peer->sent[number];
    const struct host_descriptor *posted = &group_slot->block->ring[sent->operations % HOST_RING];
    assert(sent->operations < atomic_load(&group_slot->block->posted));
    struct net_operation operation = {.sequence = sent->operations,
                                      .history = posted->history,
                                      .source = posted->source,
                                      .target = posted->target,
                                      .signature = posted->signature};
    memcpy(operation.bytes, posted->bytes, sizeof operation.bytes);
    if (posted->signature.kind == COLL_ALL_TO_ALL)
        operation.sent = coll_host_table(group_slot->block, group_slot->world,
                                         posted->target.at % HOST_TABLES)[sent->index];
    if (!put_tail(peer, NET_OPERATION, number, &operation,
                  group_slot->block->slots[posted->source.at % COLL_SMALL_SLOTS],
                  slot_bytes(group_slot, &posted->signature)))
        return false;
    sent->operations++;
    return true;
}

/** What this rank has posted, and then how far it is; a group's or the root's. */
static bool tx_group_slot(const struct coll_net *net, struct net_peer *peer, size_t number)
{
    assert(number < NET_GROUP_SLOTS);
    const struct net_group_slot *group_slot = &net->group_slots[number];
    struct net_sent *sent = &peer->sent[number];
    struct host_p2p_queue *p2p_queue = &group_slot->block->p2p_queues[sent->index];
    // What was stored before these counters is told before them.
    const uint64_t consumed = atomic_load(&group_slot->block->consumed);
    const uint64_t written = atomic_load(&group_slot->block->written);
    const uint64_t received = atomic_load(&p2p_queue->received);
    while (sent->operations < atomic_load(&group_slot->block->posted))
        if (!put_operation(net, peer, number))
            return false;
    while (sent->p2p_posted < atomic_load(&p2p_queue->posted)) {
        const struct net_p2p_slot p2p_slot = {sent->p2p_posted,
                                              p2p_queue->slots[sent->p2p_posted % HOST_P2P_SLOTS]};
        if (!put(peer, NET_P2P_SLOT, number, &p2p_slot, 0))
            return false;
        sent->p2p_posted++;
    }
    if (sent->received != received) {
        if (!put(peer, NET_RECEIVED, number, &(struct net_received){received}, 0))
            return false;
        sent->received = received;
    }
    // That this rank leaves a group comes after the failure for which it does, and that it leaves
    // the root at the very end.
    const bool failed = coll_failed(net->root) != ZERO_OK && !peer->poisoned;
    if ((consumed == HOST_GONE && (number == 0 || failed)) ||
        (sent->consumed == consumed && sent->written == written))
        return true;
    if (!put(peer, NET_COUNTERS, number, &(struct net_counters){consumed, written}, 0))
        return false;
    sent->consumed = consumed;
    sent->written = written;
    return true;
}

static bool tx_group_slots(const struct coll_net *net, struct net_peer *peer)
{
    for (size_t number = 0; number < peer->group_slots; number++) {
        struct net_sent *sent = &peer->sent[number];
        if (!sent->meets)
            continue;
        const bool all = tx_group_slot(net, peer, number);
        if (sent->copy && sent->peer_consumed != HOST_GONE)
            atomic_store_explicit(&sent->copy->sent, sent->operations, memory_order_release);
        if (!all)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ the rest */

/** Tells a peer of group slots of its own, and forgets that it is to. */
static bool tx_marks(struct net_peer *peer, enum net_type type, uint64_t *group_slots)
{
    for (size_t group_slot = 0; *group_slots != 0 && group_slot < COLL_GROUPS_MAX; group_slot++) {
        const uint64_t bit = UINT64_C(1) << group_slot;
        if (!(*group_slots & bit))
            continue;
        if (!put(peer, type, 1 + group_slot, NULL, 0))
            return false;
        *group_slots &= ~bit;
    }
    return true;
}

/** Tells what this rank has called last, if it is not about to say so. */
static bool tx_last_call(const struct coll_net *net, struct net_peer *peer)
{
    const struct host_last_call *last_call = &net->group_slots[0].block->last_call;
    struct net_last_call copy;
    copy.stamp =
        coll_shown_read(&last_call->stamp, last_call->words, HOST_LAST_CALL_WORDS, copy.words);
    if (copy.stamp == 0 || copy.stamp == peer->last_call_sent)
        return true;
    if (!put(peer, NET_LAST_CALL, 0, &copy, 0))
        return false;
    peer->last_call_sent = copy.stamp;
    return true;
}

/** Tells that this rank, about to leave, reads nothing more of any peer: two ranks that wait for
 * each other to have read would do so in vain. */
static bool tx_retirement(struct net_peer *peer)
{
    if (peer->retires && !put(peer, NET_GONE, 0, NULL, 0))
        return false;
    peer->retires = false;
    return true;
}

static bool tx_poison(struct coll_net *net, struct net_peer *peer)
{
    const struct net_failure *failure = peer->poisoned ? NULL : coll_net_failure(net);
    if (!failure)
        return true;
    struct net_poison poison = {.result = failure->result};
    memcpy(poison.message, failure->message, sizeof poison.message);
    peer->poisoned = put(peer, NET_POISON, 0, &poison, 0);
    return peer->poisoned;
}

/** Asks for a piece. A read request that was taken is told at once: there is room for it. */
static bool tx_read_request(const struct coll_net *net, struct net_peer *peer)
{
    struct host_read_request wanted;
    size_t group_slot = 0;
    if (sizeof peer->out.bytes - peer->out.end <
            sizeof(struct net_header) + sizeof(struct net_ask) ||
        peer->out.tail_bytes > 0)
        return false;
    if (!coll_host_take_read_request(net->root, peer->rank, &wanted))
        return true;
    while (group_slot < NET_GROUP_SLOTS && peer->blocks[group_slot].copy != wanted.block)
        group_slot++;
    if (group_slot == NET_GROUP_SLOTS) {
        coll_host_finish_read(net->root, peer->rank, false); // of a group that was closed meanwhile
        return true;
    }
    const struct net_ask ask = {wanted.sequence, wanted.place, wanted.message};
    assert(ask.place.bytes <= net->slice);
    return put(peer, NET_ASK, group_slot, &ask, 0);
}

/** Tells a far peer what it would see if it were of this host. */
static bool tx_changes(struct coll_net *net, struct net_peer *peer)
{
    return tx_last_call(net, peer) && tx_marks(peer, NET_MEET, &peer->meets) &&
           tx_group_slots(net, peer) && coll_net_tx_shows(net, peer) &&
           tx_marks(peer, NET_GONE, &peer->goes) && tx_retirement(peer);
}

static bool tx_end(const struct coll_net *net, struct net_peer *peer)
{
    if (atomic_load(&net->phase) != NET_LEAVING)
        return true;
    const struct net_counters gone = {HOST_GONE, atomic_load(&net->group_slots[0].block->written)};
    peer->done = put(peer, NET_COUNTERS, 0, &gone, 0);
    return peer->done;
}

void coll_net_tx_fill(struct coll_net *net, struct net_peer *peer)
{
    if (!net_listens(peer))
        return;
    if (peer->far && !tx_changes(net, peer))
        return;
    if (!tx_poison(net, peer) || (peer->far && !tx_read_request(net, peer)))
        return;
    if (peer->piece > 0 && !put_tail(peer, NET_PIECE, 0, NULL, peer->bytes, peer->piece))
        return;
    if (peer->beat && !put(peer, NET_BEAT, 0, NULL, 0))
        return;
    peer->beat = false;
    tx_end(net, peer);
}
