#include "base/arena.h"
#include "collectives/host/host.h"

#include <assert.h>
#include <string.h>

size_t coll_host_group_slot_bytes(const struct coll_comm *root)
{
    const size_t page = alignof(struct host_block);
    return (coll_host_block_bytes(root->world) + page - 1) & ~(page - 1);
}

/** Takes a group slot that no peer looks at any more, or a new one. */
static zero_result take_group_slot(struct coll_comm *comm, host_group_slot_fn add, size_t *index,
                                   struct base_error *error)
{
    assert(!coll_host_of(comm)->blocks[comm->rank]);
    struct coll_comm *root = comm->comm_world->root;
    for (size_t i = 0; i < COLL_GROUPS_MAX; i++) {
        struct host_group_slot *group_slot = &coll_host_of(root)->group_slots[i];
        if (!group_slot->block) {
            const size_t bytes = coll_host_group_slot_bytes(root);
            const zero_result result = add(root, i, bytes, &group_slot->block, error);
            if (result != ZERO_OK)
                return result;
            comm->comm_world->counters.memory_bytes += bytes;
        } else if (atomic_load(&group_slot->block->gone) != (uint32_t)group_slot->members) {
            continue;
        }
        memset(group_slot->block, 0, coll_host_block_bytes(comm->world));
        group_slot->members = comm->world;
        coll_host_of(comm)->blocks[comm->rank] = group_slot->block;
        *index = i;
        return ZERO_OK;
    }
    return zero_fail(error, ZERO_E_LIMIT,
                     "group %s: a rank can be in %d groups, and those it has left count until all "
                     "their ranks have",
                     comm->name, COLL_GROUPS_MAX);
}

zero_result coll_host_group_prepare(struct coll_comm *comm, host_group_slot_fn add,
                                    size_t *group_slot, struct base_error *error)
{
    assert(!comm->link && comm->root_ranks);
    const struct host_comm *root = coll_host_of(comm->comm_world->root);
    struct host_comm *host = base_calloc(1, sizeof *host);
    if (!host)
        return zero_fail(error, ZERO_E_NOMEM, "group %s: no memory", comm->name);
    comm->link = host;
    host->send_changes = root->send_changes;
    zero_result result = coll_host_init(host, comm, root->shared, error);
    if (result != ZERO_OK)
        return result;
    for (int rank = 0; rank < comm->world; rank++) {
        host->root_blocks[rank] = root->blocks[comm->root_ranks[rank]];
        host->far[rank] = root->far[comm->root_ranks[rank]];
        host->far_count += host->far[rank];
    }
    return take_group_slot(comm, add, group_slot, error);
}

void coll_host_group_meet(struct coll_comm *comm, int rank, struct host_block *block)
{
    assert(rank >= 0 && rank < comm->world && block);
    coll_host_of(comm)->blocks[rank] = block;
    coll_host_of(comm)->joined = true;
}

void coll_host_group_close(struct coll_comm *comm, bool leaving)
{
    struct host_comm *host = coll_host_of(comm);
    if (!host)
        return;
    if (host->joined && leaving) {
        coll_host_cancel_reads(comm);
        coll_host_leave(comm);
        for (int rank = 0; rank < comm->world; rank++)
            atomic_fetch_add(&host->blocks[rank]->gone, 1);
    } else if (!host->joined && host->blocks && host->blocks[comm->rank]) {
        atomic_store(&coll_host_own(comm)->gone, (uint32_t)comm->world);
    }
    coll_host_free(host, comm);
    base_free(host);
}
