#include "collectives/host/host.h"

#include <assert.h>

struct direct_place coll_direct_place(const struct coll_comm *comm, const void *address,
                                      size_t bytes)
{
    size_t offset;
    const struct coll_arena *arena =
        coll_direct_of(comm)->tell ? NULL : coll_arena_of(comm, address, bytes, &offset);
    if (!arena)
        return (struct direct_place){(uint64_t)(uintptr_t)address, bytes, DIRECT_PRIVATE};
    return (struct direct_place){offset, bytes, arena->id};
}

unsigned char *coll_direct_address(const struct coll_comm *comm, int rank,
                                   const struct direct_place *place)
{
    if (!coll_direct_addressable(comm, rank, place))
        return NULL;
    if (place->arena == DIRECT_PRIVATE)
        return (unsigned char *)(uintptr_t)place->at;
    assert(place->arena < comm->comm_world->arena_count);
    const struct coll_arena *arena = comm->comm_world->arenas[place->arena];
    const int root_rank = coll_root_rank(comm, rank);
    assert(place->at <= arena->peer_bytes[root_rank]);
    return arena->peers[root_rank] + place->at;
}
