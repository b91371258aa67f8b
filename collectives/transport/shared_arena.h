/**
 * collectives/transport/shared_arena.h: arenas that are there once for all ranks, whichever way
 * their memory's descriptor gets from rank to rank.
 */
#ifndef COLLECTIVES_TRANSPORT_SHARED_ARENA_H
#define COLLECTIVES_TRANSPORT_SHARED_ARENA_H

#include "collectives/comm/comm_internal.h"

/** Makes the memory, without pages, on one rank, and on the others one of a byte, so that every
 * rank has a descriptor to give: arena->memory. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_create(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error);

/** Maps arena->memory, which all ranks have now, at base and allocates what this rank takes care
 * of. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_allocate(struct coll_comm *comm, struct coll_arena *arena,
                                 struct base_error *error);

/** As arena_populate of struct coll_transport, and closes arena->memory. ZERO_E_INVALID: no rank
 * has allocated some of the pages. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_populate(struct coll_comm *comm, struct coll_arena *arena,
                                 struct base_error *error);

/** Undoes all of it as far as it went. *Local.* */
void coll_shared_free(struct coll_arena *arena);

/** Bytes of an arena's mapping: one at least. */
static inline size_t coll_mapped_bytes(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

#endif
