// What peers have said. Nothing of it is believed: what does not fit what both sides know is an
// error, and nothing is written but into copies, at places that are checked.

#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <string.h>

size_t coll_net_fixed_bytes(uint32_t type)
{
    static const size_t bytes[NET_TYPES] = {
        [0] = SIZE_MAX,
        [NET_OPERATION] = sizeof(struct net_operation),
        [NET_COUNTERS] = sizeof(struct net_counters),
        [NET_P2P_SLOT] = sizeof(struct net_p2p_slot),
        [NET_RECEIVED] = sizeof(struct net_received),
        [NET_LAST_CALL] = sizeof(struct net_last_call),
        [NET_POISON] = sizeof(struct net_poison),
        [NET_ASK] = sizeof(struct net_ask),
        [NET_SHOWN] = sizeof(struct net_shown),
    };
    return type < NET_TYPES ? bytes[type] : SIZE_MAX;
}

size_t coll_net_copy_bytes(void)
{
    const size_t page = alignof(struct host_block);
    return (coll_host_block_bytes(1) + page - 1) & ~(page - 1);
}

bool coll_net_reads(const struct net_group_slot *group_slot, const struct net_sent *sent,
                    const struct host_descriptor *posted)
{
    const struct coll_signature *signature = &posted->signature;
    switch ((enum coll_kind)signature->kind) {
    case COLL_ALL_GATHER:
        return posted->source.bytes > 0;
    case COLL_REDUCE_SCATTER: // contributions, or partial sums
        return group_slot->rank < signature->contributors || posted->target.bytes > 0;
    case COLL_ALL_REDUCE_BULK:
        return signature->bytes > 0;
    case COLL_BROADCAST_BULK:
        return group_slot->rank == signature->root;
    case COLL_ALL_TO_ALL:
        return coll_host_table(group_slot->block, group_slot->world,
                               posted->target.at % HOST_TABLES)[sent->index]
                   .count > 0;
    default:
        return false;
    }
}

/* ------------------------------------------------------------------ a peer's blocks */

static bool tail_fits(const struct net_operation *operation, size_t tail)
{
    const uint32_t kind = operation->signature.kind;
    return tail == 0 || (coll_kind_is_small(kind) && tail <= COLL_SMALL_BYTES &&
                         tail == operation->signature.bytes);
}

/** An operation is there with its tail: from now on its peer has posted it. */
static void post(const struct net_peer *peer, uint32_t group_slot)
{
    assert(group_slot < NET_GROUP_SLOTS);
    struct host_block *copy = peer->blocks[group_slot].copy;
    if (!copy)
        return;
    atomic_store_explicit(&copy->ring[peer->in.sequence % HOST_RING].posted, peer->in.sequence + 1,
                          memory_order_release);
    atomic_store_explicit(&copy->posted, peer->in.sequence + 1, memory_order_release);
}

static bool rx_operation(struct coll_net *net, struct net_peer *peer,
                         const struct net_header *header, const struct net_operation *operation)
{
    const size_t tail = header->bytes - sizeof *operation;
    const struct net_peer_block *peer_block = &peer->blocks[header->group_slot];
    const uint64_t sequence = operation->sequence;
    if (!tail_fits(operation, tail))
        return false;
    peer->in.sequence = sequence;
    peer->in.slot = (int)(operation->source.at % COLL_SMALL_SLOTS);
    if (!peer_block->copy)
        return true;
    const struct host_block *own = net->group_slots[peer_block->group_slot].block;
    if (sequence != atomic_load(&peer_block->copy->posted) ||
        (sequence >= HOST_RING && atomic_load(&own->consumed) <= sequence - HOST_RING))
        return false;
    struct host_descriptor *posted = &peer_block->copy->ring[sequence % HOST_RING];
    posted->history = operation->history;
    // Places in a far rank's memory: nothing of this one's is looked for there.
    posted->source = operation->source;
    posted->target = operation->target;
    posted->signature = operation->signature;
    coll_signature_end(&posted->signature);
    memcpy(posted->bytes, operation->bytes, sizeof posted->bytes);
    if (operation->signature.kind == COLL_ALL_TO_ALL)
        *coll_host_table(peer_block->copy, 1, operation->target.at % HOST_TABLES) = operation->sent;
    if (tail == 0)
        post(peer, header->group_slot);
    return true;
}

void coll_net_peer_left(const struct coll_net *net, const struct net_peer *peer, size_t group_slot)
{
    struct host_block *copy = peer->blocks[group_slot].copy;
    if (!copy)
        return;
    // Nothing more is sent about this communicator that it would look at.
    atomic_store_explicit(&copy->sent, HOST_GONE, memory_order_release);
    // If a peer leaves because of a failure, this rank must see the failure before it sees the peer
    // leave.
    if (net->chosen.result == 0)
        atomic_store(&copy->consumed, HOST_GONE);
}

static bool rx_counters(const struct coll_net *net, struct net_peer *peer,
                        const struct net_header *header, const struct net_counters *counters)
{
    const struct net_peer_block *peer_block = &peer->blocks[header->group_slot];
    struct net_sent *sent = &peer->sent[peer_block->group_slot];
    const bool gone = counters->consumed == HOST_GONE;
    // A peer counts nothing of a communicator that it has not met: this is of the one before.
    if (sent->meets && counters->consumed < sent->peer_consumed)
        return false;
    if (sent->meets)
        sent->peer_consumed = counters->consumed;
    peer->left |= gone && header->group_slot == 0;
    if (!peer_block->copy)
        return true;
    if ((!gone && counters->consumed > atomic_load(&peer_block->copy->posted)) ||
        counters->written < atomic_load(&peer_block->copy->written))
        return false;
    atomic_store_explicit(&peer_block->copy->written, counters->written, memory_order_release);
    if (!gone)
        atomic_store(&peer_block->copy->consumed, counters->consumed);
    // A peer that leaves the root sends nothing of its groups any more, and may have said nothing
    // of them.
    const size_t last = peer->left ? NET_GROUP_SLOTS - 1 : header->group_slot;
    for (size_t group_slot = header->group_slot; gone && group_slot <= last; group_slot++)
        coll_net_peer_left(net, peer, group_slot);
    return true;
}

static bool rx_p2p_slot(struct coll_net *net, struct net_peer *peer,
                        const struct net_header *header, const struct net_p2p_slot *p2p_slot)
{
    const struct net_peer_block *peer_block = &peer->blocks[header->group_slot];
    if (!peer_block->copy)
        return true;
    const struct host_p2p_queue *own =
        &net->group_slots[peer_block->group_slot]
             .block->p2p_queues[peer->sent[peer_block->group_slot].index];
    struct host_p2p_queue *p2p_queue = &peer_block->copy->p2p_queues[0];
    if (p2p_slot->number != atomic_load(&p2p_queue->posted) ||
        p2p_slot->number - atomic_load(&own->received) >= HOST_P2P_SLOTS)
        return false;
    struct host_p2p_slot *place = &p2p_queue->slots[p2p_slot->number % HOST_P2P_SLOTS];
    *place = p2p_slot->p2p_slot;
    coll_signature_end(&place->signature);
    atomic_store(&p2p_queue->posted, p2p_slot->number + 1);
    return true;
}

static bool rx_received(struct coll_net *net, struct net_peer *peer,
                        const struct net_header *header, const struct net_received *received)
{
    const struct net_peer_block *peer_block = &peer->blocks[header->group_slot];
    struct net_sent *sent = &peer->sent[peer_block->group_slot];
    const struct host_block *own = net->group_slots[peer_block->group_slot].block;
    if (received->received < sent->peer_received ||
        (own && received->received > atomic_load(&own->p2p_queues[sent->index].posted)))
        return false;
    sent->peer_received = received->received;
    if (peer_block->copy)
        atomic_store(&peer_block->copy->p2p_queues[0].received, received->received);
    return true;
}

static bool rx_last_call(const struct net_peer *peer, const struct net_last_call *heard)
{
    struct host_last_call *last_call = &peer->blocks[0].copy->last_call;
    if (heard->stamp % 2 != 0)
        return false;
    coll_shown_write(&last_call->stamp, last_call->words, HOST_LAST_CALL_WORDS, heard->stamp,
                     heard->words);
    return true;
}

static bool rx_poison(struct coll_net *net, const struct net_peer *peer,
                      const struct net_poison *poison)
{
    char message[COLL_MESSAGE_BYTES];
    memcpy(message, poison->message, sizeof message);
    message[sizeof message - 1] = '\0';
    const zero_result result = base_failure_of(poison->result, ZERO_OK);
    if (result == ZERO_OK)
        return false;
    coll_net_fail(net, peer->rank, result, message);
    return true;
}

/* ------------------------------------------------------------------ this rank's blocks */

static bool lies_in(const struct host_place *place, const struct net_ask *ask)
{
    const struct host_place *part = &ask->place;
    return part->arena == place->arena && part->at >= place->at &&
           part->at - place->at <= place->bytes &&
           part->bytes <= place->bytes - (part->at - place->at);
}

/** Whether a peer may have these bytes: this rank has posted them, and waits for it. */
static bool may_have(const struct net_group_slot *group_slot, const struct net_sent *sent,
                     const struct net_ask *ask)
{
    if (ask->message) {
        const struct host_p2p_queue *p2p_queue = &group_slot->block->p2p_queues[sent->index];
        const uint64_t posted = atomic_load(&p2p_queue->posted);
        return ask->sequence < posted && posted - ask->sequence <= HOST_P2P_SLOTS &&
               lies_in(&p2p_queue->slots[ask->sequence % HOST_P2P_SLOTS].source, ask);
    }
    const struct host_descriptor *posted = &group_slot->block->ring[ask->sequence % HOST_RING];
    return ask->sequence >= sent->peer_consumed &&
           atomic_load(&posted->posted) == ask->sequence + 1 &&
           coll_net_reads(group_slot, sent, posted) &&
           (lies_in(&posted->source, ask) || lies_in(&posted->target, ask));
}

/** The piece is copied at once: what comes after it may be that the peer needs it no more. */
static bool rx_ask(struct coll_net *net, struct net_peer *peer, const struct net_header *header,
                   const struct net_ask *ask)
{
    const struct net_sent *sent = &peer->sent[header->group_slot];
    if (!sent->meets || peer->piece > 0 || ask->place.bytes == 0 || ask->place.bytes > net->slice)
        return false;
    if (!may_have(&net->group_slots[header->group_slot], sent, ask))
        return false;
    // After a failure the program may have taken its memory back: coll_net_revoke().
    if (coll_failed(net->root) != ZERO_OK)
        return true;
    memcpy(peer->bytes, coll_host_own_address(net->root, &ask->place), ask->place.bytes);
    peer->piece = ask->place.bytes;
    return true;
}

static bool rx_meet(const struct coll_net *net, struct net_peer *peer,
                    const struct net_header *header)
{
    struct net_sent *sent = &peer->sent[header->group_slot];
    const struct net_group_slot *group_slot = &net->group_slots[header->group_slot];
    if (header->group_slot == 0 || !group_slot->block || !sent->expected || sent->meets)
        return false;
    sent->meets = true;
    if (peer->group_slots <= header->group_slot)
        peer->group_slots = header->group_slot + 1U;
    return true;
}

static bool rx_gone(const struct coll_net *net, struct net_peer *peer,
                    const struct net_header *header)
{
    struct net_sent *sent = &peer->sent[header->group_slot];
    if (!sent->meets || !sent->expected)
        return false;
    sent->expected = false;
    if (header->group_slot == 0) { // it is told of the rest, and leaves later
        atomic_store(&peer->blocks[0].copy->retired, 1);
        return true;
    }
    sent->meets = false;
    atomic_fetch_add(&net->group_slots[header->group_slot].block->gone, 1);
    return true;
}

/* ------------------------------------------------------------------ all of it */

unsigned char *coll_net_tail(struct coll_net *net, struct net_peer *peer)
{
    assert(peer->in.tail > 0 && peer->in.open.group_slot < NET_GROUP_SLOTS);
    if (peer->in.open.type == NET_PIECE)
        return coll_host_read_target(net->root, peer->rank, peer->in.tail);
    assert(peer->in.slot >= 0 && peer->in.slot < COLL_SMALL_SLOTS);
    struct host_block *copy = peer->blocks[peer->in.open.group_slot].copy;
    return copy ? copy->slots[peer->in.slot] : NULL;
}

void coll_net_rx_tail(struct coll_net *net, struct net_peer *peer)
{
    assert(peer->in.tail > 0 && peer->in.tail_at == peer->in.tail);
    if (peer->in.open.type == NET_PIECE)
        coll_host_finish_read(net->root, peer->rank, true);
    else
        post(peer, peer->in.open.group_slot);
}

static bool has_tail(uint32_t type)
{
    return type == NET_OPERATION || type == NET_PIECE;
}

/** Whether a frame is about one of the sender's blocks, which it was asked for. */
static bool is_about_sender(uint32_t type)
{
    return type == NET_OPERATION || type == NET_COUNTERS || type == NET_P2P_SLOT ||
           type == NET_RECEIVED;
}

bool coll_net_rx(struct coll_net *net, struct net_peer *peer, const struct net_header *header,
                 const union net_fixed *fixed)
{
    assert(peer->in.tail == 0); // of the frame before
    const size_t tail = header->bytes - coll_net_fixed_bytes(header->type);
    if (header->group_slot >= NET_GROUP_SLOTS || peer->left ||
        (tail > 0 && !has_tail(header->type)) ||
        (is_about_sender(header->type) && peer->blocks[header->group_slot].group_slot < 0))
        return false;
    if (!peer->far && header->type != NET_COUNTERS && header->type != NET_POISON &&
        header->type != NET_BEAT)
        return false;
    peer->in.open = *header;
    peer->in.tail = tail;
    peer->in.tail_at = 0;
    switch ((enum net_type)header->type) {
    case NET_OPERATION:
        return rx_operation(net, peer, header, &fixed->operation);
    case NET_COUNTERS:
        return rx_counters(net, peer, header, &fixed->counters);
    case NET_P2P_SLOT:
        return rx_p2p_slot(net, peer, header, &fixed->p2p_slot);
    case NET_RECEIVED:
        return rx_received(net, peer, header, &fixed->received);
    case NET_LAST_CALL:
        return rx_last_call(peer, &fixed->last_call);
    case NET_POISON:
        return rx_poison(net, peer, &fixed->poison);
    case NET_ASK:
        return rx_ask(net, peer, header, &fixed->ask);
    case NET_PIECE:
        return tail > 0 && coll_host_read_target(net->root, peer->rank, tail) != NULL;
    case NET_MEET:
        return rx_meet(net, peer, header);
    case NET_GONE:
        return rx_gone(net, peer, header);
    case NET_SHOWN:
        return coll_net_rx_shown(net, peer, &fixed->shown);
    case NET_BEAT:
        return true;
    case NET_TYPES:
        break;
    }
    return false;
}
