#include "collectives/host/host.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

/** How long a rank with a processor of its own spins. */
#define SPIN_NS UINT64_C(100000)

/** Bytes of the tables of one rank's struct host_comm. */
static size_t table_bytes(int world)
{
    const struct host_comm *host;
    return (size_t)world * (sizeof *host->blocks + sizeof *host->root_blocks + sizeof *host->far +
                            sizeof *host->met + sizeof *host->sources + sizeof *host->targets +
                            sizeof *host->fetched + sizeof *host->consumed) +
           sizeof *host->scratch;
}

size_t coll_host_memory(int world, bool shared)
{
    return table_bytes(world) + coll_host_block_bytes(world) +
           (shared ? coll_host_remote_read_bytes(world) : 0);
}

zero_result coll_host_init(struct host_comm *host, struct coll_comm *comm, bool shared,
                           struct base_error *error)
{
    assert(!host->blocks && !host->kernels);
    const size_t world = (size_t)comm->world;
    host->shared = shared;
    host->kernels = base_sum_best();
    host->cache_bytes = base_sum_cache_bytes();
    host->core_bytes = base_sum_core_bytes();
    host->blocks = base_calloc(world, sizeof *host->blocks);
    host->root_blocks =
        comm->root_ranks ? base_calloc(world, sizeof *host->root_blocks) : host->blocks;
    host->far = base_calloc(world, sizeof *host->far);
    host->met = base_calloc(world, sizeof *host->met);
    host->sources = base_calloc(world, sizeof *host->sources);
    host->targets = base_calloc(world, sizeof *host->targets);
    host->fetched = base_calloc(world, sizeof *host->fetched);
    host->consumed = base_calloc(world, sizeof *host->consumed);
    host->scratch = base_aligned_alloc(HOST_LINE, sizeof *host->scratch);
    comm->comm_world->counters.memory_bytes += table_bytes(comm->world);
    if (!host->blocks || !host->root_blocks || !host->far || !host->met || !host->sources ||
        !host->targets || !host->fetched || !host->consumed || !host->scratch)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         comm->name, comm->world);
    memset(host->scratch, 0, sizeof *host->scratch);
    return shared ? coll_host_remote_read_init(host, comm, error) : ZERO_OK;
}

void coll_host_free(struct host_comm *host, struct coll_comm *comm)
{
    if (host->kernels)
        comm->comm_world->counters.memory_bytes -= table_bytes(comm->world);
    if (host->root_blocks != host->blocks)
        base_free(host->root_blocks);
    base_free(host->blocks);
    base_free(host->far);
    base_free(host->met);
    base_free(host->sources);
    base_free(host->targets);
    base_free(host->fetched);
    base_free(host->consumed);
    base_free(host->scratch);
    coll_host_remote_read_free(host, comm);
}

/** Processors that all ranks together can keep busy. Ranks may be bound to different ones; a rank
 * that can't use all of its own shows a quota, which they share. */
static int usable_cpus(const struct coll_comm *comm)
{
    const struct host_comm *host = coll_host_of(comm);
    cpu_set_t all;
    CPU_ZERO(&all);
    int quota = CPU_SETSIZE;
    for (int rank = 0; rank < comm->world; rank++) {
        const struct host_block *block = host->blocks[rank];
        CPU_OR(&all, &all, &block->cpus);
        if (block->allowed_cpus < CPU_COUNT(&block->cpus) && block->allowed_cpus < quota)
            quota = block->allowed_cpus;
    }
    return CPU_COUNT(&all) < quota ? CPU_COUNT(&all) : quota;
}

void coll_host_join(struct coll_comm *comm)
{
    assert(comm == comm->comm_world->root);
    struct coll_comm_world *comm_world = comm->comm_world;
    comm_world->counters.memory_bytes += coll_host_block_bytes(comm->world);
    comm_world->poison = &coll_host_of(comm)->blocks[0]->poison;
    comm_world->unregistered_path = "direct";
    // Ranks that each have a processor take about as long for a step. Waiting a tenth of a
    // millisecond for the last one is cheaper than any system call, so a steady step makes none. A
    // peer without one needs this one, perhaps, and comes within microseconds of a yield.
    const bool crowded = comm->world - coll_host_of(comm)->far_count > usable_cpus(comm);
    comm_world->spins = crowded ? 4 : 50;
    comm_world->spin_ns = crowded ? 0 : SPIN_NS;
    comm_world->yields = 200;
}

void coll_host_leave(struct coll_comm *comm)
{
    // A failure that travels to ranks of this host may come after they see that its rank has left.
    if (!coll_host_of(comm)->send_changes || coll_failed(comm) == ZERO_OK)
        atomic_store(&coll_host_own(comm)->consumed, HOST_GONE);
    coll_host_wake(comm);
}
