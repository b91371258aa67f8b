// The life of a root communicator: it is opened on the transport of that name, and closed.

#include "base/arena.h"
#include "base/forked.h"
#include "collectives/comm/comm_internal.h"
#include "collectives/provider/provider.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static zero_result check_config(const struct coll_config *config, struct base_error *error)
{
    if (!config->transport || !config->name || config->world < 1 || config->rank < 0 ||
        config->rank >= config->world || config->timeout_ns == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator: transport %s, name %s, rank %d, world %d, time-out %.3f s",
                         config->transport ? config->transport : "missing",
                         config->name ? config->name : "missing", config->rank, config->world,
                         (double)config->timeout_ns * 1e-9);
    if (strlen(config->name) >= COLL_NAME_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "communicator: a name of %zu bytes, at most %d fit",
                         strlen(config->name), COLL_NAME_BYTES - 1);
    return ZERO_OK;
}

/** Bytes of a root's own structures. */
static size_t own_bytes(int world)
{
    return sizeof(struct coll_comm) + sizeof(struct coll_comm_world) +
           2 * (size_t)world * sizeof(uint64_t);
}

/** A root of a comm world of its own, not yet joined to other ranks; NULL without memory. */
static struct coll_comm *create_root(const struct coll_config *config,
                                     const struct coll_transport *transport)
{
    assert(config->rank >= 0 && config->rank < config->world);
    struct coll_comm_world *comm_world = base_calloc(1, sizeof *comm_world);
    struct coll_comm *root = coll_comm_create(transport, comm_world, config->rank, config->world);
    if (!root || !comm_world || base_forked_watch()) {
        coll_comm_free(root);
        base_free(comm_world);
        return NULL;
    }
    *comm_world = (struct coll_comm_world){
        .root = root,
        .comms = root,
        .thread = (int)gettid(),
        .timeout_ns = config->timeout_ns,
        .generation = base_generation(),
        .remind_ns = coll_first_reminder(config->remind_ns, config->timeout_ns),
        .log = config->log,
        .control = config->control,
        .ranks_a_host = root->world,
        .least_near = root->world,
        .most_near = root->world,
        .counters.memory_bytes = own_bytes(root->world)};
    snprintf(root->name, sizeof root->name, "%s", config->name);
    snprintf(comm_world->transport, sizeof comm_world->transport, "%s", config->transport);
    assert(strcmp(comm_world->transport, config->transport) == 0);
    if (root->rank == 0 || strcmp(config->transport, "threads") != 0)
        coll_comm_world_count(comm_world);
    return root;
}

zero_result coll_open(struct coll_comm **comm, const struct coll_config *config,
                      struct base_error *error)
{
    *comm = NULL;
    zero_result result = check_config(config, error);
    if (result != ZERO_OK)
        return result;
    const struct coll_transport *transport = coll_transport_find(config->transport);
    if (!transport)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "communicator: this build has no transport %s",
                         config->transport);
    struct coll_comm *opened = create_root(config, transport);
    if (!opened)
        return zero_fail(error, ZERO_E_NOMEM, "communicator: no memory for %zu bytes",
                         sizeof(struct coll_comm) + sizeof(struct coll_comm_world));
    result = transport->open(opened, config, error);
    if (result != ZERO_OK) {
        coll_close(opened);
        return result;
    }
    base_logf(config->log, ZERO_LOG_DEBUG, "coll", "%s: rank %d of %d by %s", opened->name,
              opened->rank, opened->world, config->transport);
    *comm = opened;
    return ZERO_OK;
}

void coll_close(struct coll_comm *comm)
{
    if (!comm)
        return;
    if (comm->root_ranks) {
        coll_group_close(comm);
        return;
    }
    assert(comm == comm->comm_world->root && comm == comm->comm_world->comms);
    while (comm->next)
        coll_group_close(comm->next);
    if (comm->transport->leave)
        comm->transport->leave(comm);
    coll_arenas_free(comm);
    comm->transport->close(comm);
    coll_comm_world_uncount(comm->comm_world);
    base_free(comm->comm_world);
    coll_comm_free(comm);
}

/** The provider that a root will have, as far as this host knows; NULL: none. */
static const struct coll_provider *expected_provider(const char *transport, bool any)
{
    const struct coll_provider *provider = coll_provider_find(transport);
    for (size_t i = 0; !provider && any && coll_provider_at(i); i++)
        if (!coll_provider_at(i)->declines())
            provider = coll_provider_at(i);
    return provider;
}

size_t coll_memory_needed(const char *transport, bool any_provider, int world, int hosts)
{
    assert(hosts >= 0 && hosts <= world);
    const int here = hosts > 0 ? (world + hosts - 1) / hosts : 1;
    const struct coll_transport *found = coll_transport_find(transport);
    const struct coll_provider *provider = expected_provider(transport, any_provider);
    return !found ? 0
                  : own_bytes(world) + found->memory(world) +
                        (provider ? provider->memory(world - here) : 0);
}
