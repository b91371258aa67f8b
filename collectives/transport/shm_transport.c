// Ranks that are processes of one host: all of them are near (near.h), and nothing is copied.

#include "base/arena.h"
#include "base/clock.h"
#include "collectives/transport/near.h"
#include "collectives/transport/shared_memory.h"

struct shm {
    struct host_comm host; /**< first: host/ sees a struct host_comm */
    struct coll_near near;
};

static struct coll_near *near_of(const struct coll_comm *comm)
{
    struct shm *shm = comm->comm_world->root->link;
    return &shm->near;
}

/* ------------------------------------------------------------------ life */

static size_t shm_memory(int world)
{
    return coll_host_memory(world, true);
}

static zero_result shm_open_comm(struct coll_comm *comm, const struct coll_config *config,
                                 struct base_error *error)
{
    struct shm *shm = base_calloc(1, sizeof *shm);
    if (!shm)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    comm->link = shm;
    zero_result result = coll_host_init(&shm->host, comm, true, error);
    if (result == ZERO_OK)
        result = coll_near_init(&shm->near, comm, 0, error);
    if (result != ZERO_OK)
        return result;
    const struct boot_meeting meeting = {
        .rank = config->rank,
        .world = config->world,
        .job = config->job,
        .name = config->name,
        .deadline_ns = base_clock_ns() + config->timeout_ns,
        .log = config->log,
        .remind_ns = config->remind_ns,
        .all_here = config->all_here,
        .asked = config->asked,
    };
    result = coll_near_meet(&shm->near, &meeting, error);
    bool allowed = false;
    if (result == ZERO_OK) {
        coll_host_join(comm);
        result = coll_near_begin_watch(&shm->near, config->stall_ns, error);
    }
    if (result == ZERO_OK)
        result = coll_near_probe(&shm->near, meeting.deadline_ns, &allowed, error);
    if (result == ZERO_OK)
        coll_near_watch(&shm->near);
    if (result == ZERO_OK)
        result = coll_host_remote_read_join(comm, allowed, NULL, error);
    return result;
}

static void shm_close_comm(struct coll_comm *comm)
{
    struct shm *shm = comm->link;
    if (!shm)
        return;
    if (comm->comm_world->poison && coll_near_is_ours(&shm->near))
        coll_host_leave(comm);
    coll_near_close(&shm->near);
    coll_host_free(&shm->host, comm);
    base_free(shm);
}

/* ------------------------------------------------------------------ groups */

static zero_result add_group_slot(struct coll_comm *root, size_t index, size_t bytes,
                                  struct host_block **block, struct base_error *error)
{
    return coll_near_add_group_slot(near_of(root), index, bytes, block, error);
}

static zero_result shm_group_prepare(struct coll_comm *comm, size_t *part, struct base_error *error)
{
    return coll_host_group_prepare(comm, add_group_slot, part, error);
}

static void shm_group_meet(struct coll_comm *comm, int rank, size_t part)
{
    struct host_block *block =
        coll_near_group_slot(near_of(comm), coll_root_rank(comm, rank), part);
    coll_host_group_meet(comm, rank, block);
    // The pages are there. If this fails an access fills in the page table.
    coll_memory_populate(comm->name, block, coll_host_block_bytes(comm->world), true, NULL);
}

static void shm_group_close(struct coll_comm *comm)
{
    coll_host_group_close(comm, coll_near_is_ours(near_of(comm)));
}

/* ------------------------------------------------------------------ presence */

static int shm_dead_in_sight(const struct coll_comm *comm)
{
    return coll_near_dead_in_sight(near_of(comm));
}

static int shm_dead_peer(const struct coll_comm *comm)
{
    return coll_near_dead_peer(near_of(comm));
}

/* ------------------------------------------------------------------ arenas */

static zero_result shm_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    return coll_near_arena_alloc(near_of(comm), arena, error);
}

static zero_result shm_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    return coll_near_arena_share(near_of(comm), arena, error);
}

static zero_result shm_arena_populate(struct coll_comm *comm, struct coll_arena *arena,
                                      struct base_error *error)
{
    return coll_near_arena_populate(near_of(comm), arena, error);
}

static void shm_arena_free(struct coll_comm *comm, struct coll_arena *arena)
{
    coll_near_arena_free(near_of(comm), arena);
}

const struct coll_transport coll_transport_shm = {
    .size = sizeof(struct coll_transport),
    .memory = shm_memory,
    .open = shm_open_comm,
    .close = shm_close_comm,
    .group_prepare = shm_group_prepare,
    .group_parts = COLL_GROUPS_MAX,
    .group_meet = shm_group_meet,
    .group_close = shm_group_close,
    .arena_alloc = shm_arena_alloc,
    .arena_share = shm_arena_share,
    .arena_populate = shm_arena_populate,
    .arena_free = shm_arena_free,
    .start = coll_host_start,
    .progress = coll_host_progress,
    .drained = coll_host_drained,
    .presence = coll_host_presence,
    .last_call = coll_host_last_call,
    .dead_peer = shm_dead_peer,
    .dead_in_sight = shm_dead_in_sight,
    .wake = coll_host_wake,
    .sleep_begin = coll_host_sleep_begin,
    .sleep = coll_host_sleep,
    .sleep_end = coll_host_sleep_end,
};
