#include "base/arena.h"
#include "collectives/host/host.h"

#include <string.h>

size_t coll_direct_room_bytes(const struct coll_comm *root)
{
    const size_t page = alignof(struct direct_block);
    return (coll_direct_block_bytes(root->world) + page - 1) & ~(page - 1);
}

/** A room that nobody looks at any more, or has looked at yet. */
static zero_result take_room(struct coll_comm *comm, direct_room_fn add, size_t *index,
                             struct base_error *error)
{
    struct coll_comm *root = comm->comm_world->root;
    for (size_t i = 0; i < COLL_GROUPS_MAX; i++) {
        struct direct_room *room = &coll_direct_of(root)->rooms[i];
        if (!room->block) {
            const size_t bytes = coll_direct_room_bytes(root);
            const zero_result result = add(root, i, bytes, &room->block, error);
            if (result != ZERO_OK)
                return result;
            comm->comm_world->counters.memory_bytes += bytes;
        } else if (atomic_load(&room->block->gone) != (uint32_t)room->members) {
            continue;
        }
        memset(room->block, 0, coll_direct_block_bytes(comm->world));
        room->members = comm->world;
        coll_direct_of(comm)->blocks[comm->rank] = room->block;
        *index = i;
        return ZERO_OK;
    }
    return zero_fail(error, ZERO_E_LIMIT,
                     "group %s: a rank can be in %d groups, and those it has left count until all "
                     "their ranks have",
                     comm->name, COLL_GROUPS_MAX);
}

zero_result coll_direct_group_prepare(struct coll_comm *comm, direct_room_fn add, size_t *room,
                                      struct base_error *error)
{
    const struct direct *root = coll_direct_of(comm->comm_world->root);
    struct direct *direct = base_calloc(1, sizeof *direct);
    if (!direct)
        return zero_fail(error, ZERO_E_NOMEM, "group %s: no memory", comm->name);
    comm->link = direct;
    direct->tell = root->tell;
    zero_result result = coll_direct_init(direct, comm, root->shared, error);
    if (result != ZERO_OK)
        return result;
    for (int rank = 0; rank < comm->world; rank++)
        direct->homes[rank] = root->blocks[comm->root_ranks[rank]];
    return take_room(comm, add, room, error);
}

void coll_direct_group_meet(struct coll_comm *comm, int rank, struct direct_block *block)
{
    coll_direct_of(comm)->blocks[rank] = block;
    coll_direct_of(comm)->joined = true;
}

void coll_direct_group_close(struct coll_comm *comm, bool leaving)
{
    struct direct *direct = coll_direct_of(comm);
    if (!direct)
        return;
    if (direct->joined && leaving) {
        coll_direct_forget_wishes(comm);
        coll_direct_leave(comm);
        for (int rank = 0; rank < comm->world; rank++)
            atomic_fetch_add(&direct->blocks[rank]->gone, 1);
    } else if (!direct->joined && direct->blocks && direct->blocks[comm->rank]) {
        atomic_store(&coll_direct_own(comm)->gone, (uint32_t)comm->world);
    }
    coll_direct_free(direct, comm);
    base_free(direct);
}
