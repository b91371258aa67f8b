/**
 * collectives/transport/retained_memory.h: memory of one process that outlives what asked for it,
 * because other ranks, or another thread for them, may still look at it.
 */
#ifndef COLLECTIVES_TRANSPORT_RETAINED_MEMORY_H
#define COLLECTIVES_TRANSPORT_RETAINED_MEMORY_H

#include "base/arena.h"
#include "base/error.h"

/** One of a list; the newest is its head. */
struct coll_retained {
    struct base_arena arena;
    void *memory; /**< from a page's start, zero, its pages there; NULL: of 0 bytes */
    struct coll_retained *next;
};

/** Makes one that is in no list yet. `name` is the communicator's. ZERO_E_NOMEM: *kept is NULL.
 * *Local.* */
zero_result coll_retained_create(struct coll_retained **retained, const char *name, size_t bytes,
                                 struct base_error *error);

/** Frees a list, which is empty then. *Local.* */
void coll_retained_free(struct coll_retained **list);

#endif
