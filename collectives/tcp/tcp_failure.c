// How the ranks come to know of a failure, and to the same one. A rank that hears of one for the
// first time tells all others at once, behind everything that it has told them before. When every
// living rank has done so, this rank has all that each of them did before it knew of the failure.
// The failure that the lowest rank has told of is the comm world's. The ranks do not wait for a
// rank that gives no sign of life for half the stall, and for none more than 2 s. A rank that is
// later than that ends in another failure than the rest.

#include "base/clock.h"
#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <stdio.h>

/** No longer than this rank may wait for anything: that would be another failure. */
static uint64_t patience_ns(const struct coll_net *net)
{
    const uint64_t half_ns = net->timeout_ns / 2;
    return half_ns < net_patience_ns ? half_ns : net_patience_ns;
}

static void record_note(struct net_failure *failure, zero_result result, const char *message)
{
    assert(result < 0);
    failure->result = result;
    snprintf(failure->message, sizeof failure->message, "%.*s", COLL_MESSAGE_BYTES - 1, message);
}

void coll_net_fail(struct coll_net *net, int from, zero_result result, const char *message)
{
    assert(from >= 0 && from < net->root->world && result < 0);
    const int own = net->root->rank;
    net->peers[from].confirmed = true;
    if (coll_net_failure(net) == NULL) {
        record_note(&net->first, result, message);
        record_note(&net->chosen, result, message);
        net->chosen_from = own;
    }
    if (net->choose_by_ns == 0)
        net->choose_by_ns = base_clock_ns() + patience_ns(net);
    if (from < net->chosen_from && from != own) {
        record_note(&net->chosen, result, message);
        net->chosen_from = from;
    }
}

const struct net_failure *coll_net_failure(struct coll_net *net)
{
    struct base_error error = {0};
    if (net->first.result != 0)
        return &net->first;
    if (coll_failed(net->root) == ZERO_OK)
        return NULL;
    // This rank's own, which is the comm world's here already.
    record_note(&net->first, coll_state(net->root, &error), error.message);
    return &net->first;
}

/** Whether a rank lives, as far as one can see: for half the time that counts as silence. */
static bool shows_life(const struct coll_net *net, const struct net_peer *peer)
{
    return net_listens(peer) &&
           (net->stall_ns == 0 || peer->silent * net->tick_ns < net->stall_ns / 2);
}

/** Whether every living rank has told of a failure. */
static bool all_know(const struct coll_net *net)
{
    for (int rank = 0; rank < net->root->world; rank++)
        if (shows_life(net, &net->peers[rank]) && !net->peers[rank].confirmed)
            return false;
    return true;
}

uint64_t coll_net_settle(struct coll_net *net)
{
    if (net->chosen.result == 0)
        return UINT64_MAX;
    const uint64_t now = base_clock_ns();
    if (!all_know(net) && now < net->choose_by_ns)
        return net->choose_by_ns - now;
    coll_poison(net->root, net->chosen.result, net->chosen.message);
    net->chosen.result = 0;
    return UINT64_MAX;
}
