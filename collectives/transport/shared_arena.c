#include "collectives/transport/shared_arena.h"

#include "collectives/transport/shared_memory.h"

#include <assert.h>
#include <unistd.h>

zero_result coll_shared_create(struct coll_comm *comm, struct coll_arena *arena, bool first,
                               struct base_error *error)
{
    const size_t bytes = first ? coll_mapped_bytes(arena->bytes) : 1;
    return coll_memory_create(comm->name, bytes, &arena->memory, error);
}

/** Where the granules begin whose first byte is at or behind `offset`. */
static size_t next_granule(const struct coll_arena *arena, size_t offset)
{
    assert(offset <= arena->bytes);
    const size_t granule = coll_memory_granule(arena->bytes);
    const size_t past = offset % granule;
    if (past == 0)
        return offset;
    return granule - past < arena->bytes - offset ? offset + granule - past : arena->bytes;
}

zero_result coll_shared_allocate(struct coll_comm *comm, struct coll_arena *arena,
                                 struct base_error *error)
{
    zero_result result = coll_memory_map(comm->name, arena->memory, coll_mapped_bytes(arena->bytes),
                                         true, &arena->base, error);
    // A granule in which ranges of several ranks lie is allocated by whom its first byte belongs
    // to: so no page is touched by two at a time.
    for (size_t i = 0; i < arena->mine_count && result == ZERO_OK; i++) {
        const struct coll_span *span = &arena->mine[i];
        const size_t first = next_granule(arena, span->offset);
        const size_t end = next_granule(arena, span->offset + span->count);
        if (span->count > 0 && first < end)
            result =
                coll_memory_allocate(comm->name, arena->memory, arena->base, first, end - first,
                                     &comm->comm_world->counters.huge_bytes, error);
    }
    return result;
}

zero_result coll_shared_fill(struct coll_comm *comm, struct coll_arena *arena, int number,
                             int parts, struct base_error *error)
{
    assert(arena->shared && arena->memory >= 0 && number >= 0 && number < parts);
    const size_t granule = coll_memory_granule(arena->bytes);
    const size_t granules = (arena->bytes + granule - 1) / granule;
    const size_t each = granules / (size_t)parts + (granules % (size_t)parts != 0);
    const size_t first = (size_t)number * each * granule, most = each * granule;
    if (first >= arena->bytes)
        return ZERO_OK;
    const size_t left = arena->bytes - first;
    return coll_memory_allocate(comm->name, arena->memory, arena->base, first,
                                left < most ? left : most, &comm->comm_world->counters.huge_bytes,
                                error);
}

zero_result coll_shared_check(const struct coll_arena *arena, struct base_error *error)
{
    assert(arena->shared && arena->memory >= 0);
    const size_t allocated = coll_memory_allocated(arena->memory);
    if (allocated < arena->bytes)
        return zero_fail(error, ZERO_E_INVALID,
                         "arena: the ranks take care of %zu of its %zu bytes", allocated,
                         arena->bytes);
    return ZERO_OK;
}

zero_result coll_shared_map(struct coll_comm *comm, struct coll_arena *arena,
                            struct base_error *error)
{
    assert(arena->shared && arena->memory >= 0);
    const size_t bytes = coll_mapped_bytes(arena->bytes);
    void *view = NULL;
    zero_result result = coll_memory_populate(comm->name, arena->base, bytes, true, error);
    if (result == ZERO_OK)
        result = coll_memory_map(comm->name, arena->memory, bytes, false, &view, error);
    arena->view = view;
    if (result == ZERO_OK)
        result = coll_memory_populate(comm->name, view, bytes, false, error);
    for (int rank = 0; rank < comm->world; rank++)
        arena->peers[rank] = arena->base;
    close(arena->memory);
    arena->memory = -1;
    return result;
}

void coll_shared_free(struct coll_arena *arena)
{
    coll_memory_unmap(arena->base, coll_mapped_bytes(arena->bytes));
    coll_memory_unmap(arena->view, coll_mapped_bytes(arena->bytes));
    if (arena->memory >= 0)
        close(arena->memory);
}
