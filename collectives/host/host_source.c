#include "collectives/host/host.h"

#include <assert.h>

struct host_place coll_host_place(const struct coll_comm *comm, const void *address, size_t bytes)
{
    size_t offset;
    const struct coll_arena *arena = coll_arena_of(comm, address, bytes, &offset);
    if (!arena)
        return (struct host_place){(uint64_t)(uintptr_t)address, bytes, HOST_UNREGISTERED};
    return (struct host_place){offset, bytes, arena->id};
}

unsigned char *coll_host_address(const struct coll_comm *comm, int rank,
                                 const struct host_place *place)
{
    if (!coll_host_addressable(comm, rank, place))
        return NULL;
    if (place->arena == HOST_UNREGISTERED)
        return (unsigned char *)(uintptr_t)place->at;
    assert(place->arena < comm->comm_world->arena_count);
    const struct coll_arena *arena = comm->comm_world->arenas[place->arena];
    const int root_rank = coll_root_rank(comm, rank);
    assert(place->at <= arena->peer_bytes[root_rank]);
    return arena->peers[root_rank] + place->at;
}

unsigned char *coll_host_own_address(const struct coll_comm *root, const struct host_place *place)
{
    assert(root == root->comm_world->root);
    if (place->arena == HOST_UNREGISTERED)
        return (unsigned char *)(uintptr_t)place->at;
    // The arena is older than what was posted of it: its entry is not written any more.
    assert(place->arena < COLL_ARENAS_MAX);
    return (unsigned char *)root->comm_world->arenas[place->arena]->base + place->at;
}
