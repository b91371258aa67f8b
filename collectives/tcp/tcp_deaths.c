// Ranks whose connection ends, and ranks that are silent.

#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/** Whether this rank has an operation under way. */
static bool inside(const struct coll_net *net)
{
    const struct host_block *own = net->group_slots[0].block;
    return atomic_load(&own->posted) > atomic_load(&own->consumed);
}

static void report_death(struct coll_net *net, const struct net_peer *peer, int failed)
{
    char message[COLL_MESSAGE_BYTES], call[COLL_TEXT_BYTES];
    if (failed == EPROTO) {
        snprintf(message, sizeof message, "rank %d on %s has sent what is no message of this job",
                 peer->rank, net->hosts[peer->rank]);
        coll_net_fail(net, net->root->rank, ZERO_E_IO, message);
        return;
    }
    coll_host_last_call(net->root, net->root->rank, call, sizeof call);
    coll_death_text(net->root, peer->rank, inside(net) ? call : NULL, message);
    if (failed != 0 && failed != ECONNRESET && failed != EPIPE) {
        const size_t used = strlen(message);
        snprintf(message + used, sizeof message - used, " (the connection: %s)",
                 strerrordesc_np(failed));
    }
    coll_net_fail(net, net->root->rank, ZERO_E_PEER, message);
}

void coll_net_lose(struct coll_net *net, struct net_peer *peer, int failed)
{
    assert(!peer->lost);
    peer->lost = true;
    if (!coll_net_failure(net))
        report_death(net, peer, failed);
    // The rank's own thread may have noticed: the network's is to see to what comes of it.
    eventfd_write(net->doorbell, 1);
}

void coll_net_end(struct coll_net *net, struct net_peer *peer, int failed)
{
    assert(!peer->ended);
    epoll_ctl(net->sockets, EPOLL_CTL_DEL, peer->socket, NULL);
    peer->ended = true;
    if (peer->left && !peer->shut) { // it waits for that
        shutdown(peer->socket, SHUT_WR);
        peer->shut = true;
    }
    if (!peer->left && !peer->lost && !peer->done)
        coll_net_lose(net, peer, failed);
}

static void report_silence(struct coll_net *net, const struct net_peer *peer)
{
    char call[COLL_TEXT_BYTES], message[COLL_MESSAGE_BYTES];
    coll_host_last_call(net->root, peer->rank, call, sizeof call);
    snprintf(message, sizeof message,
             "rank %d has given no sign of life for %.1f s (its process is stopped or starved, or "
             "its host, %s, is out of reach); its last call: %s",
             peer->rank, (double)(peer->silent * net->tick_ns) * 1e-9, net->hosts[peer->rank],
             call);
    coll_net_fail(net, net->root->rank, ZERO_E_TIMEOUT, message);
}

void coll_net_tick(struct coll_net *net)
{
    assert(net->stall_ns > 0 && net->tick_ns > 0);
    for (int rank = 0; rank < net->root->world; rank++) {
        struct net_peer *peer = &net->peers[rank];
        if (!net_listens(peer))
            continue;
        peer->beat = true;
        peer->silent = peer->heard ? 0 : peer->silent + 1;
        peer->heard = false;
        if (peer->silent * net->tick_ns >= net->stall_ns && !coll_net_failure(net))
            report_silence(net, peer);
    }
}
