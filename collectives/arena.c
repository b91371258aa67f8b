#include "base/arena.h"
#include "collectives/internal.h"

static void free_arena(struct coll_arena *arena)
{
    arena->comm->transport->arena_free(arena->comm, arena);
    base_free(arena->peers);
    base_free(arena->peer_bytes);
    base_free(arena);
}

void coll_arenas_free(struct coll_comm *root)
{
    struct coll_family *family = root->family;
    for (uint32_t id = 0; id < family->arena_count; id++)
        free_arena(family->arenas[id]);
    family->arena_count = 0;
}

const struct coll_arena *coll_arena_of(const struct coll_comm *comm, const void *address,
                                       size_t bytes)
{
    const struct coll_family *family = comm->family;
    const uintptr_t at = (uintptr_t)address;
    for (uint32_t id = 0; id < family->arena_count; id++) {
        const struct coll_arena *arena = family->arenas[id];
        const uintptr_t base = (uintptr_t)arena->base;
        if (at >= base && at - base < arena->bytes && bytes <= arena->bytes - (at - base))
            return arena;
    }
    return NULL;
}

static zero_result arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error)
{
    if (comm->family->arena_count == COLL_ARENAS_MAX)
        return zero_fail(error, ZERO_E_LIMIT, "arena: %d is the most a communicator can have",
                         COLL_ARENAS_MAX);
    return comm->transport->arena_alloc(comm, arena, NULL, 0, error);
}

zero_result coll_arena_create(struct coll_comm *comm, size_t bytes, struct coll_arena **arena,
                              struct base_error *error)
{
    *arena = NULL;
    if (coll_stop(comm) != ZERO_OK)
        return coll_state(comm, error);
    struct coll_arena *created = base_calloc(1, sizeof *created);
    unsigned char **peers = base_calloc((size_t)comm->world, sizeof *peers);
    size_t *peer_bytes = base_calloc((size_t)comm->world, sizeof *peer_bytes);
    if (!created || !peers || !peer_bytes) {
        base_free(created);
        base_free(peers);
        base_free(peer_bytes);
        coll_fail(comm, ZERO_E_NOMEM, "rank %d: no memory for an arena's tables", comm->rank);
        return coll_state(comm, error);
    }
    *created = (struct coll_arena){.comm = comm,
                                   .id = comm->family->arena_count,
                                   .bytes = bytes,
                                   .peers = peers,
                                   .peer_bytes = peer_bytes};
    struct base_error mine = {0};
    zero_result result = arena_alloc(comm, created, &mine);
    result = coll_agree(comm, bytes, peer_bytes, result, &mine, error);
    if (result == ZERO_OK) {
        result = comm->transport->arena_share(comm, created, &mine);
        result = coll_agree(comm, bytes, peer_bytes, result, &mine, error);
    }
    if (result != ZERO_OK) {
        free_arena(created);
        return result;
    }
    comm->family->arenas[comm->family->arena_count++] = created;
    *arena = created;
    return ZERO_OK;
}

void *coll_arena_base(const struct coll_arena *arena)
{
    return arena->bytes > 0 ? arena->base : NULL;
}

size_t coll_arena_size(const struct coll_arena *arena)
{
    return arena->bytes;
}
