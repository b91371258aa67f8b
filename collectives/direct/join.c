#include "collectives/direct/direct.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/futex.h"

/* ------------------------------------------------------------------ joining and leaving */

size_t coll_direct_block_bytes(int world)
{
    const size_t ranks = (size_t)world;
    return sizeof(struct direct_block) + ranks * sizeof(struct direct_mail) +
           DIRECT_TABLES * ranks * sizeof(struct coll_span);
}

/** Of one rank's struct direct. */
static size_t table_bytes(const struct direct *direct, int world)
{
    return (size_t)world * (sizeof *direct->blocks + sizeof *direct->homes + sizeof *direct->met +
                            sizeof *direct->sources);
}

zero_result coll_direct_init(struct direct *direct, struct coll_comm *comm, bool shared,
                             struct base_error *error)
{
    const size_t world = (size_t)comm->world;
    direct->shared = shared;
    direct->kernels = coll_sum_best();
    direct->blocks = base_calloc(world, sizeof *direct->blocks);
    direct->homes = comm->root_ranks ? base_calloc(world, sizeof *direct->homes) : direct->blocks;
    direct->met = base_calloc(world, sizeof *direct->met);
    direct->sources = base_calloc(world, sizeof *direct->sources);
    if (!direct->blocks || !direct->homes || !direct->met || !direct->sources)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         comm->name, comm->world);
    comm->family->counters.memory_bytes += table_bytes(direct, comm->world);
    return ZERO_OK;
}

void coll_direct_free(struct direct *direct, struct coll_comm *comm)
{
    if (direct->sources)
        comm->family->counters.memory_bytes -= table_bytes(direct, comm->world);
    if (direct->homes != direct->blocks)
        base_free(direct->homes);
    base_free(direct->blocks);
    base_free(direct->met);
    base_free(direct->sources);
}

void coll_direct_prepare(struct direct_block *block)
{
    block->allowed_cpus = base_cpu_detect().allowed_cpus;
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
    struct coll_family *family = comm->family;
    family->counters.memory_bytes += coll_direct_block_bytes(comm->world);
    family->poison = &coll_direct_of(comm)->blocks[0]->poison;
    family->private_path = coll_direct_of(comm)->shared ? "copied" : "direct";
    // Measured: a peer that runs comes within two microseconds, which is what 50 rounds take. One
    // that doesn't run needs this processor, perhaps, and comes within microseconds of a yield.
    family->spins = comm->world > usable_cpus(comm) ? 4 : 50;
    family->yields = 200;
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

// `posted`, `consumed` and `asleep` are stored and loaded sequentially consistent: either the
// sleeper sees what was changed before it sleeps, or who changed it sees that it sleeps.

static _Atomic uint32_t *own_asleep(const struct coll_comm *comm)
{
    return &coll_direct_of(comm)->homes[comm->rank]->asleep;
}

void coll_direct_wake_rank(struct coll_comm *comm, int rank)
{
    const struct direct *direct = coll_direct_of(comm);
    _Atomic uint32_t *asleep = &direct->homes[rank]->asleep;
    if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0)
        base_futex_wake(asleep, INT_MAX, direct->shared);
}

void coll_direct_wake(struct coll_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++)
        coll_direct_wake_rank(comm, rank);
}

void coll_direct_sleep_begin(struct coll_comm *comm)
{
    atomic_store(own_asleep(comm), 1);
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
