#include "base/arena.h"
#include "collectives/comm/comm_internal.h"

#include <assert.h>

static void free_arena(struct coll_arena *arena)
{
    arena->comm->transport->arena_free(arena->comm, arena);
    base_free(arena->peers);
    base_free(arena->peer_bytes);
    base_free(arena);
}

void coll_arenas_free(struct coll_comm *root)
{
    assert(root == root->comm_world->root);
    struct coll_comm_world *comm_world = root->comm_world;
    for (uint32_t id = 0; id < comm_world->arena_count; id++)
        free_arena(comm_world->arenas[id]);
    comm_world->arena_count = 0;
}

/** Whether `bytes` bytes from `address` on lie in the arena as mapped at `base`. */
static bool lies_in(const struct coll_arena *arena, const void *base, const void *address,
                    size_t bytes, size_t *offset)
{
    *offset = (uintptr_t)address - (uintptr_t)base;
    return base && (uintptr_t)address >= (uintptr_t)base && *offset < arena->bytes &&
           bytes <= arena->bytes - *offset;
}

const struct coll_arena *coll_arena_of(const struct coll_comm *comm, const void *address,
                                       size_t bytes, size_t *offset)
{
    const struct coll_comm_world *comm_world = comm->comm_world;
    for (uint32_t id = 0; id < comm_world->arena_count; id++) {
        const struct coll_arena *arena = comm_world->arenas[id];
        if (lies_in(arena, arena->base, address, bytes, offset) ||
            lies_in(arena, arena->view, address, bytes, offset))
            return arena;
    }
    return NULL;
}

static zero_result check_spans(const struct coll_arena *arena, struct base_error *error)
{
    for (size_t i = 0; i < arena->mine_count; i++) {
        const struct coll_span *span = &arena->mine[i];
        if (span->offset > arena->bytes || span->count > arena->bytes - span->offset)
            return zero_fail(error, ZERO_E_INVALID,
                             "arena: range %zu, %zu bytes from %zu on, of one of %zu bytes", i,
                             span->count, span->offset, arena->bytes);
    }
    return ZERO_OK;
}

static zero_result arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error)
{
    if (comm->comm_world->arena_count == COLL_ARENAS_MAX)
        return zero_fail(error, ZERO_E_LIMIT, "arena: %d is the most a communicator can have",
                         COLL_ARENAS_MAX);
    if (arena->shared && !comm->transport->arena_populate)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "arena: transport %s can't share memory",
                         coll_transport_name(comm));
    const zero_result result = check_spans(arena, error);
    return result == ZERO_OK ? comm->transport->arena_alloc(comm, arena, error) : result;
}

static zero_result check_sizes(const struct coll_comm *comm, const struct coll_arena *arena,
                               struct base_error *error)
{
    for (int rank = 1; rank < comm->world && arena->shared; rank++)
        if (arena->peer_bytes[rank] != arena->peer_bytes[0])
            return zero_fail(error, ZERO_E_INVALID,
                             "a shared arena of %zu bytes on rank 0, of %zu on rank %d",
                             arena->peer_bytes[0], arena->peer_bytes[rank], rank);
    return ZERO_OK;
}

/** The last step, with this rank's part done: a rank that has made it may send from the arena to
 * one that is still in it, and whose earlier requests look there. */
static zero_result enter(struct coll_comm *comm, struct coll_arena *arena, zero_result result,
                         const struct base_error *mine, struct base_error *error)
{
    struct coll_comm_world *comm_world = comm->comm_world;
    const uint32_t before = comm_world->arena_count;
    assert(arena->id == before && (result != ZERO_OK || before < COLL_ARENAS_MAX));
    if (result == ZERO_OK)
        comm_world->arenas[comm_world->arena_count++] = arena;
    result = coll_agree(comm, 0, NULL, result, mine, error);
    if (result != ZERO_OK)
        comm_world->arena_count = before;
    return result;
}

/** Makes the arena's memory in steps, each on all ranks or on none. */
static zero_result build(struct coll_comm *comm, struct coll_arena *arena, struct base_error *error)
{
    assert(comm == comm->comm_world->root);
    const struct coll_transport *transport = comm->transport;
    struct base_error mine = {0};
    zero_result result = arena_alloc(comm, arena, &mine);
    result = coll_agree(comm, arena->bytes, arena->peer_bytes, result, &mine, error);
    if (result == ZERO_OK)
        result = check_sizes(comm, arena, error);
    if (result == ZERO_OK && arena->shared) {
        result = transport->arena_share(comm, arena, &mine);
        result = coll_agree(comm, arena->bytes, arena->peer_bytes, result, &mine, error);
    }
    // A rank that touches pages before they are there would make them small ones.
    if (result == ZERO_OK && arena->shared && transport->arena_fill) {
        result = transport->arena_fill(comm, arena, &mine);
        result = coll_agree(comm, 0, NULL, result, &mine, error);
    }
    if (result == ZERO_OK) {
        result = arena->shared ? transport->arena_populate(comm, arena, &mine)
                               : transport->arena_share(comm, arena, &mine);
        result = enter(comm, arena, result, &mine, error);
    }
    return result;
}

/** Creates what `wanted` describes: bytes, shared, mine. */
static zero_result create(struct coll_comm *comm, const struct coll_arena *wanted,
                          struct coll_arena **arena, struct base_error *error)
{
    *arena = NULL;
    if (coll_stop(comm) != ZERO_OK)
        return coll_state(comm, error);
    if (comm != comm->comm_world->root)
        return zero_fail(error, ZERO_E_INVALID, "arena: communicator %s is a group, not the root",
                         comm->name);
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
    *created = *wanted;
    created->comm = comm;
    created->id = comm->comm_world->arena_count;
    created->memory = -1;
    created->peers = peers;
    created->peer_bytes = peer_bytes;
    const zero_result result = build(comm, created, error);
    created->mine = NULL;
    created->mine_count = 0;
    if (result != ZERO_OK) {
        free_arena(created);
        return result;
    }
    assert(created->bytes == 0 || created->base);
    *arena = created;
    return ZERO_OK;
}

zero_result coll_arena_create(struct coll_comm *comm, size_t bytes, struct coll_arena **arena,
                              struct base_error *error)
{
    return create(comm, &(struct coll_arena){.bytes = bytes}, arena, error);
}

zero_result coll_arena_create_shared(struct coll_comm *comm, size_t bytes,
                                     const struct coll_span *mine, size_t count,
                                     struct coll_arena **arena, struct base_error *error)
{
    const struct coll_arena wanted = {
        .shared = true, .bytes = bytes, .mine = mine, .mine_count = count};
    return create(comm, &wanted, arena, error);
}

void coll_arena_show(struct coll_arena *arena)
{
    if (arena->comm->transport->arena_show)
        arena->comm->transport->arena_show(arena->comm, arena);
}

void *coll_arena_base(const struct coll_arena *arena)
{
    return arena->bytes > 0 ? arena->base : NULL;
}

size_t coll_arena_size(const struct coll_arena *arena)
{
    return arena->bytes;
}

const void *coll_arena_view(const struct coll_arena *arena)
{
    return arena->bytes > 0 ? arena->view : NULL;
}

const void *coll_arena_peer(const struct coll_arena *arena, int rank)
{
    assert(rank >= 0 && rank < arena->comm->world);
    return arena->peer_bytes[rank] > 0 ? arena->peers[rank] : NULL;
}
