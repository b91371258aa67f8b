// What a communicator is to all files of this folder: its ranks, its name, its counters.

#include "collectives/comm/comm.h"

#include "base/arena.h"
#include "collectives/comm/comm_internal.h"

#include <assert.h>

struct coll_comm *coll_comm_create(const struct coll_transport *transport,
                                   struct coll_comm_world *comm_world, int rank, int world)
{
    assert(rank >= 0 && rank < world);
    struct coll_comm *comm = base_calloc(1, sizeof *comm);
    uint64_t *sends = base_calloc((size_t)world, sizeof *sends);
    uint64_t *receives = base_calloc((size_t)world, sizeof *receives);
    if (!comm || !sends || !receives) {
        base_free(comm);
        base_free(sends);
        base_free(receives);
        return NULL;
    }
    *comm = (struct coll_comm){.transport = transport,
                               .comm_world = comm_world,
                               .rank = rank,
                               .world = world,
                               .sends = sends,
                               .receives = receives};
    return comm;
}

void coll_comm_free(struct coll_comm *comm)
{
    if (!comm)
        return;
    base_free(comm->root_ranks);
    base_free(comm->sends);
    base_free(comm->receives);
    base_free(comm);
}

/** Comm worlds of this process; those of a team's ranks are one. */
static _Atomic int comm_worlds;

void coll_comm_world_count(struct coll_comm_world *comm_world)
{
    assert(!comm_world->counted);
    comm_world->counted = true;
    atomic_fetch_add_explicit(&comm_worlds, 1, memory_order_relaxed);
}

void coll_comm_world_uncount(struct coll_comm_world *comm_world)
{
    if (comm_world->counted)
        atomic_fetch_sub_explicit(&comm_worlds, 1, memory_order_relaxed);
    comm_world->counted = false;
}

bool coll_is_alone(const struct coll_comm *comm)
{
    assert(comm->comm_world->comms); // this one is among them
    return !comm->comm_world->comms->next &&
           atomic_load_explicit(&comm_worlds, memory_order_relaxed) < 2;
}

int coll_rank(const struct coll_comm *comm)
{
    return comm->rank;
}

int coll_root_rank(const struct coll_comm *comm, int rank)
{
    assert(rank >= 0 && rank < comm->world);
    return comm->root_ranks ? comm->root_ranks[rank] : rank;
}

int coll_world(const struct coll_comm *comm)
{
    return comm->world;
}

const char *coll_transport_reason(const struct coll_comm *comm)
{
    return comm->comm_world->reason;
}

const char *coll_transport_name(const struct coll_comm *comm)
{
    return comm->comm_world->transport;
}

const char *coll_host(const struct coll_comm *comm, int rank)
{
    const struct coll_comm *root = comm->comm_world->root;
    return root->transport->host ? root->transport->host(root, coll_root_rank(comm, rank)) : "";
}

int coll_ranks_a_host(const struct coll_comm *comm)
{
    return comm->comm_world->ranks_a_host;
}

void coll_host_ranks(const struct coll_comm *comm, int *least, int *most)
{
    *least = comm->comm_world->least_near;
    *most = comm->comm_world->most_near;
}

const char *coll_unregistered_path(const struct coll_comm *comm)
{
    return comm->comm_world->unregistered_path;
}

void coll_counters(const struct coll_comm *comm, struct coll_counters *counters)
{
    *counters = comm->comm_world->counters;
}

void coll_wake_peers(const struct coll_comm *comm)
{
    for (struct coll_comm *each = comm->comm_world->comms; each; each = each->next)
        if (each->must_wake_peers) {
            each->must_wake_peers = false;
            each->transport->wake(each);
        }
}
