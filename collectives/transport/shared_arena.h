/**
 * collectives/transport/shared_arena.h: arenas that are there once for all ranks, whichever way
 * their memory's descriptor gets from rank to rank.
 */
#ifndef COLLECTIVES_TRANSPORT_SHARED_ARENA_H
#define COLLECTIVES_TRANSPORT_SHARED_ARENA_H

#include "collectives/comm/comm_internal.h"

/** Makes the memory, without pages, on the `first` rank, and on the others one of a byte, so that
 * every rank has a descriptor to give: arena->memory. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_create(struct coll_comm *comm, struct coll_arena *arena, bool first,
                               struct base_error *error);

/** Maps arena->memory, which all ranks have now, at base and allocates what this rank takes care
 * of. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_allocate(struct coll_comm *comm, struct coll_arena *arena,
                                 struct base_error *error);

/** Allocates part `number` of `parts` of the pages that no rank of the host takes care of, as ranks
 * of other hosts do. Every rank of the host has called coll_shared_allocate(). ZERO_E_NOMEM.
 * *Local.* */
zero_result coll_shared_fill(struct coll_comm *comm, struct coll_arena *arena, int number,
                             int parts, struct base_error *error);

/** Whether every page is allocated. ZERO_E_INVALID: no rank takes care of some. *Local.* */
zero_result coll_shared_check(const struct coll_arena *arena, struct base_error *error);

/** Maps the view, fills in the page tables and closes arena->memory. ZERO_E_NOMEM. *Local.* */
zero_result coll_shared_map(struct coll_comm *comm, struct coll_arena *arena,
                            struct base_error *error);

/** Undoes all of it as far as it went. *Local.* */
void coll_shared_free(struct coll_arena *arena);

/** Bytes of an arena's mapping: one at least. */
static inline size_t coll_mapped_bytes(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

#endif
