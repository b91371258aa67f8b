#include "collectives/host/host.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/futex.h"

#include <string.h>

/** How long a rank with a processor of its own spins. */
#define SPIN_NS UINT64_C(100000)

/* ------------------------------------------------------------------ joining and leaving */

size_t coll_direct_block_bytes(int world)
{
    const size_t ranks = (size_t)world;
    return sizeof(struct direct_block) + ranks * sizeof(struct direct_mail) +
           DIRECT_TABLES * ranks * sizeof(struct coll_span);
}

/** Of one rank's struct direct. */
static size_t table_bytes(int world)
{
    const struct direct *direct;
    return (size_t)world * (sizeof *direct->blocks + sizeof *direct->homes + sizeof *direct->met +
                            sizeof *direct->sources + sizeof *direct->targets +
                            sizeof *direct->fetched + sizeof *direct->consumed) +
           sizeof *direct->scratch;
}

size_t coll_direct_memory(int world, bool shared)
{
    return table_bytes(world) + coll_direct_block_bytes(world) +
           (shared ? coll_direct_private_bytes(world) : 0);
}

zero_result coll_direct_init(struct direct *direct, struct coll_comm *comm, bool shared,
                             struct base_error *error)
{
    const size_t world = (size_t)comm->world;
    direct->shared = shared;
    direct->kernels = coll_sum_best();
    direct->cache_bytes = coll_sum_cache_bytes();
    direct->core_bytes = coll_sum_core_bytes();
    direct->blocks = base_calloc(world, sizeof *direct->blocks);
    direct->homes = comm->root_ranks ? base_calloc(world, sizeof *direct->homes) : direct->blocks;
    direct->met = base_calloc(world, sizeof *direct->met);
    direct->sources = base_calloc(world, sizeof *direct->sources);
    direct->targets = base_calloc(world, sizeof *direct->targets);
    direct->fetched = base_calloc(world, sizeof *direct->fetched);
    direct->consumed = base_calloc(world, sizeof *direct->consumed);
    direct->scratch = base_aligned_alloc(DIRECT_LINE, sizeof *direct->scratch);
    comm->comm_world->counters.memory_bytes += table_bytes(comm->world);
    if (!direct->blocks || !direct->homes || !direct->met || !direct->sources || !direct->targets ||
        !direct->fetched || !direct->consumed || !direct->scratch)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         comm->name, comm->world);
    memset(direct->scratch, 0, sizeof *direct->scratch);
    return shared ? coll_direct_private_init(direct, comm, error) : ZERO_OK;
}

void coll_direct_free(struct direct *direct, struct coll_comm *comm)
{
    if (direct->kernels)
        comm->comm_world->counters.memory_bytes -= table_bytes(comm->world);
    if (direct->homes != direct->blocks)
        base_free(direct->homes);
    base_free(direct->blocks);
    base_free(direct->met);
    base_free(direct->sources);
    base_free(direct->targets);
    base_free(direct->fetched);
    base_free(direct->consumed);
    base_free(direct->scratch);
    coll_direct_private_free(direct, comm);
}

void coll_direct_prepare(struct direct_block *block)
{
    block->allowed_cpus = base_cpu_allowed();
    if (sched_getaffinity(0, sizeof block->cpus, &block->cpus) != 0)
        CPU_ZERO(&block->cpus);
}

/** Processors that all ranks together can keep busy. Ranks may be bound to different ones; a rank
 * that can't use all of its own shows a quota, which they share. */
static int usable_cpus(const struct coll_comm *comm)
{
    const struct direct *direct = coll_direct_of(comm);
    cpu_set_t all;
    CPU_ZERO(&all);
    int quota = CPU_SETSIZE;
    for (int rank = 0; rank < comm->world; rank++) {
        const struct direct_block *block = direct->blocks[rank];
        CPU_OR(&all, &all, &block->cpus);
        if (block->allowed_cpus < CPU_COUNT(&block->cpus) && block->allowed_cpus < quota)
            quota = block->allowed_cpus;
    }
    return CPU_COUNT(&all) < quota ? CPU_COUNT(&all) : quota;
}

void coll_direct_join(struct coll_comm *comm)
{
    struct coll_comm_world *comm_world = comm->comm_world;
    comm_world->counters.memory_bytes += coll_direct_block_bytes(comm->world);
    comm_world->poison = &coll_direct_of(comm)->blocks[0]->poison;
    comm_world->private_path = "direct";
    // Ranks that each have a processor take about as long for a step: waiting a tenth of a
    // millisecond for the last one is cheaper than any system call, and so a steady step makes
    // none. A peer without one needs this one, perhaps, and comes within microseconds of a yield.
    const bool crowded = comm->world > usable_cpus(comm);
    comm_world->spins = crowded ? 4 : 50;
    comm_world->spin_ns = crowded ? 0 : SPIN_NS;
    comm_world->yields = 200;
}

void coll_direct_leave(struct coll_comm *comm)
{
    atomic_store(&coll_direct_own(comm)->consumed, DIRECT_GONE);
    coll_direct_wake(comm);
}

bool coll_direct_left(const struct coll_comm *comm, int rank)
{
    return atomic_load(&coll_direct_of(comm)->blocks[rank]->consumed) == DIRECT_GONE;
}

/* ------------------------------------------------------------------ sleeping and waking */

// Who changes something that others may wait for stores it with release, rings its bell, and then
// looks who is asleep; who wants to sleep says so, looks at all bells, and then at everything
// again. The stores and loads of `bell` and `asleep` are sequentially consistent. If a ringer has
// not seen that somebody sleeps, its store to the bell comes before the sleeper's to `asleep`, so
// the sleeper reads it (or a later one of the same rank) from the bell, and what was stored before
// it is visible to the sleeper. One such store serves for any number of changes before it: a small
// operation, which posts and consumes, rings once, when its own wait is over.

static _Atomic uint32_t *own_asleep(const struct coll_comm *comm)
{
    return &coll_direct_of(comm)->homes[comm->rank]->asleep;
}

static void wake_if_asleep(const struct direct *direct, int rank)
{
    _Atomic uint32_t *asleep = &direct->homes[rank]->asleep;
    if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0)
        base_futex_wake(asleep, INT_MAX, direct->shared);
}

void coll_direct_wake_rank(struct coll_comm *comm, int rank)
{
    const struct direct *direct = coll_direct_of(comm);
    atomic_store(&direct->homes[comm->rank]->bell, 1);
    wake_if_asleep(direct, rank);
    if (direct->tell)
        direct->tell(comm);
}

void coll_direct_wake(struct coll_comm *comm)
{
    const struct direct *direct = coll_direct_of(comm);
    atomic_store(&direct->homes[comm->rank]->bell, 1);
    for (int rank = 0; rank < comm->world; rank++)
        wake_if_asleep(direct, rank);
    if (direct->tell)
        direct->tell(comm);
}

void coll_direct_sleep_begin(struct coll_comm *comm)
{
    const struct coll_comm *root = comm->comm_world->root;
    atomic_store(own_asleep(comm), 1);
    for (int rank = 0; rank < root->world; rank++)
        atomic_load(&coll_direct_of(root)->blocks[rank]->bell);
}

void coll_direct_sleep(struct coll_comm *comm, uint64_t timeout_ns)
{
    _Atomic uint32_t *asleep = own_asleep(comm);
    base_futex_wait(asleep, 1, timeout_ns, coll_direct_of(comm)->shared);
    atomic_store(asleep, 0);
}

void coll_direct_sleep_end(struct coll_comm *comm)
{
    atomic_store(own_asleep(comm), 0);
}
