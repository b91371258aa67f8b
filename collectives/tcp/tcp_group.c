// The blocks of groups, which peers find by the number of the group slot they lie in; and what
// peers still need of any block when this rank wants to leave.

#include "base/arena.h"
#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** The group slot of this rank's block of a group; NET_GROUP_SLOTS: it never came to have one. */
static int group_slot_of(const struct coll_net *net, const struct coll_comm *group)
{
    if (!group->link || !coll_host_of(group)->blocks)
        return NET_GROUP_SLOTS;
    int group_slot = 1;
    while (group_slot < NET_GROUP_SLOTS &&
           net->group_slots[group_slot].block != coll_host_own(group))
        group_slot++;
    return group_slot;
}

static size_t copies_bytes(const struct coll_comm *group)
{
    return (size_t)group->world * coll_net_copy_bytes();
}

zero_result coll_net_group_prepare(struct coll_net *net, struct coll_comm *group, size_t group_slot,
                                   struct base_error *error)
{
    assert(group_slot < COLL_GROUPS_MAX && group->root_ranks);
    void *copies = base_aligned_alloc(alignof(struct host_block), copies_bytes(group));
    if (!copies)
        return zero_fail(error, ZERO_E_NOMEM, "group %s: no memory for %zu bytes", group->name,
                         copies_bytes(group));
    memset(copies, 0, copies_bytes(group));
    group->comm_world->counters.memory_bytes += copies_bytes(group);
    pthread_mutex_lock(&net->lock);
    net->group_slots[1 + group_slot] = (struct net_group_slot){.block = coll_host_own(group),
                                                               .world = group->world,
                                                               .rank = group->rank,
                                                               .copies = copies};
    // A group that was given up, as not all could make their part, has left its ranks there.
    for (int rank = 0; rank < net->root->world; rank++)
        net->peers[rank].sent[1 + group_slot] = (struct net_sent){0};
    for (int rank = 0; rank < group->world; rank++)
        net->peers[group->root_ranks[rank]].sent[1 + group_slot] =
            (struct net_sent){.expected = coll_host_of(group)->far[rank], .index = rank};
    pthread_mutex_unlock(&net->lock);
    return ZERO_OK;
}

void coll_net_group_meet(struct coll_net *net, struct coll_comm *group, int rank, size_t group_slot)
{
    pthread_mutex_lock(&net->lock);
    const int own = group_slot_of(net, group);
    assert(own > 0 && own < NET_GROUP_SLOTS && group_slot < COLL_GROUPS_MAX);
    struct net_peer *peer = &net->peers[group->root_ranks[rank]];
    unsigned char *copies = net->group_slots[own].copies;
    struct host_block *copy =
        (struct host_block *)(void *)(copies + (size_t)rank * coll_net_copy_bytes());
    if (peer->blocks[1 + group_slot].copy) {
        char message[COLL_MESSAGE_BYTES];
        snprintf(message, sizeof message,
                 "rank %d says that its part of a group is number %zu, which is another group's",
                 peer->rank, group_slot);
        coll_net_fail(net, net->root->rank, ZERO_E_IO, message);
    }
    peer->blocks[1 + group_slot] = (struct net_peer_block){.copy = copy, .group_slot = own};
    peer->sent[own].copy = copy;
    peer->meets |= UINT64_C(1) << group_slot;
    if (peer->left)
        coll_net_peer_left(net, peer, 1 + group_slot);
    coll_host_group_meet(group, rank, copy);
    pthread_mutex_unlock(&net->lock);
    coll_net_send_changes(net);
}

/** Looks at a peer's block of a communicator no more. */
static void turn_away(struct net_peer *peer, int own)
{
    assert(own > 0 && own < NET_GROUP_SLOTS);
    peer->sent[own].copy = NULL;
    for (size_t group_slot = 1; group_slot < NET_GROUP_SLOTS; group_slot++) {
        if (peer->blocks[group_slot].group_slot != own || !peer->blocks[group_slot].copy)
            continue;
        peer->blocks[group_slot].copy = NULL;
        peer->goes |= UINT64_C(1) << (group_slot - 1);
    }
}

void coll_net_group_close(struct coll_net *net, struct coll_comm *group,
                          void (*close)(struct coll_comm *group))
{
    pthread_mutex_lock(&net->lock);
    const int own = group_slot_of(net, group);
    void *copies = own < NET_GROUP_SLOTS ? net->group_slots[own].copies : NULL;
    close(group);
    if (copies) {
        for (int rank = 0; rank < group->world; rank++)
            turn_away(&net->peers[group->root_ranks[rank]], own);
        net->group_slots[own].copies = NULL;
        group->comm_world->counters.memory_bytes -= copies_bytes(group);
        base_free(copies);
    }
    pthread_mutex_unlock(&net->lock);
    coll_net_send_changes(net);
}

/* ------------------------------------------------------------------ what peers still need */

/** Whether a peer has not read all that it needs of this rank. */
static bool needs(const struct coll_net *net, const struct net_peer *peer, size_t number)
{
    assert(number < NET_GROUP_SLOTS);
    const struct net_group_slot *group_slot = &net->group_slots[number];
    const struct net_sent *sent = &peer->sent[number];
    if (!sent->expected)
        return false;
    const uint64_t posted = atomic_load(&group_slot->block->posted);
    const uint64_t p2p_posted = atomic_load(&group_slot->block->p2p_queues[sent->index].posted);
    if (!sent->meets)
        return posted > 0 || p2p_posted > 0;
    const uint64_t kept = posted > HOST_RING ? posted - HOST_RING : 0;
    uint64_t sequence = sent->peer_consumed > kept ? sent->peer_consumed : kept;
    for (; sequence < posted; sequence++)
        if (coll_net_reads(group_slot, sent, &group_slot->block->ring[sequence % HOST_RING]))
            return true;
    return p2p_posted > sent->peer_received;
}

static bool anyone_needs(const struct coll_net *net)
{
    for (int rank = 0; rank < net->root->world; rank++) {
        const struct net_peer *peer = &net->peers[rank];
        for (size_t number = 0; net_listens(peer) && number < NET_GROUP_SLOTS; number++)
            if (needs(net, peer, number))
                return true;
    }
    return false;
}

static void retire(struct coll_net *net)
{
    coll_host_cancel_reads(net->root);
    coll_host_retire(net->root);
    pthread_mutex_lock(&net->lock);
    for (int rank = 0; rank < net->root->world; rank++)
        net->peers[rank].retires = net->peers[rank].far;
    pthread_mutex_unlock(&net->lock);
    coll_net_send_changes(net);
}

void coll_net_drain(struct coll_net *net, uint64_t timeout_ns)
{
    const uint64_t most_ns = UINT64_C(10000000);
    struct coll_clock clock = {0};
    bool needed = true;
    retire(net);
    while (needed && coll_failed(net->root) == ZERO_OK && coll_waited(&clock) < timeout_ns) {
        coll_host_sleep_begin(net->root);
        pthread_mutex_lock(&net->lock);
        needed = anyone_needs(net);
        pthread_mutex_unlock(&net->lock);
        if (needed)
            coll_host_sleep(net->root, most_ns);
    }
    coll_host_sleep_end(net->root);
}
