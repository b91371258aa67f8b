// World 1: a team of one. Nothing moves but from one's own memory to one's own memory.

#include "collectives/host/host.h"
#include "collectives/transport/shared_arena.h"
#include "collectives/transport/threads_transport.h"

static zero_result self_open(struct coll_comm *comm, const struct coll_config *config,
                             struct base_error *error)
{
    if (config->world != 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator %s: transport self has one rank, not %d", comm->name,
                         config->world);
    struct coll_team *team;
    const zero_result result = coll_team_create(&team, 1, error);
    return result == ZERO_OK ? coll_threads_open(comm, team, true, error) : result;
}

const struct coll_transport coll_transport_self = {
    .size = sizeof(struct coll_transport),
    .name = "self",
    .memory = coll_threads_memory,
    .open = self_open,
    .close = coll_threads_close,
    .group_prepare = coll_threads_group_prepare,
    .group_meet = coll_threads_group_meet,
    .group_close = coll_threads_group_close,
    .arena_alloc = coll_threads_arena_alloc,
    .arena_share = coll_threads_arena_share,
    .arena_populate = coll_shared_populate,
    .arena_free = coll_threads_arena_free,
    .start = coll_host_start,
    .progress = coll_host_progress,
    .drained = coll_host_drained,
    .presence = coll_host_presence,
    .last_call = coll_host_last_call,
    .wake = coll_host_wake,
    .sleep_begin = coll_host_sleep_begin,
    .sleep = coll_host_sleep,
    .sleep_end = coll_host_sleep_end,
};
