// A block: what the ranks see of each other, and the doorbell by which they wake each other.

#include "collectives/host/host.h"

#include "base/cpu.h"
#include "base/futex.h"

#include <assert.h>

size_t coll_host_block_bytes(int world)
{
    assert(world >= 1);
    const size_t ranks = (size_t)world;
    return sizeof(struct host_block) + ranks * sizeof(struct host_p2p_queue) +
           HOST_TABLES * ranks * sizeof(struct coll_span);
}

struct coll_span *coll_host_table(struct host_block *block, int places, uint64_t table)
{
    assert(places >= 1 && table < HOST_TABLES);
    struct host_p2p_queue *behind = block->p2p_queues + places;
    return (struct coll_span *)(void *)behind + table * (size_t)places;
}

void coll_host_prepare(struct host_block *block)
{
    block->allowed_cpus = base_cpu_allowed();
    if (sched_getaffinity(0, sizeof block->cpus, &block->cpus) != 0)
        CPU_ZERO(&block->cpus);
}

bool coll_host_left(const struct coll_comm *comm, int rank)
{
    assert(rank >= 0 && rank < comm->world);
    return atomic_load(&coll_host_of(comm)->blocks[rank]->consumed) == HOST_GONE;
}

void coll_host_retire(struct coll_comm *root)
{
    assert(root == root->comm_world->root);
    atomic_store(&coll_host_own(root)->retired, 1);
    coll_host_wake(root);
}

bool coll_host_retired(const struct coll_comm *comm, int rank)
{
    return coll_host_left(comm, rank) ||
           atomic_load(&coll_host_of(comm)->blocks[rank]->retired) != 0;
}

/* ------------------------------------------------------------------ sleeping and waking */

// A rank that changes something that others may wait for (a ringer) stores it with release, rings
// its bell, and then looks which ranks are asleep. A rank that wants to sleep (a sleeper) says so,
// looks at all bells, and then at everything again. The stores and loads of `bell` and `asleep` are
// sequentially consistent. If a ringer has not seen that a rank sleeps, its store to the bell comes
// before the sleeper's to `asleep`. So the sleeper reads that store (or a later one of this ringer)
// from the bell, and sees what was stored before it. One such store serves for any number of
// changes before it: a small operation, which posts and consumes, rings once, when its own wait is
// over.

static _Atomic uint32_t *own_asleep(const struct coll_comm *comm)
{
    return &coll_host_of(comm)->root_blocks[comm->rank]->asleep;
}

static void wake_if_asleep(const struct host_comm *host, int rank)
{
    _Atomic uint32_t *asleep = &host->root_blocks[rank]->asleep;
    if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0)
        base_futex_wake(asleep, INT_MAX, host->shared);
}

void coll_host_wake_rank(struct coll_comm *comm, int rank)
{
    assert(rank >= 0 && rank < comm->world);
    const struct host_comm *host = coll_host_of(comm);
    atomic_store(&host->root_blocks[comm->rank]->doorbell, 1);
    wake_if_asleep(host, rank);
    if (host->far[rank])
        host->send_changes(comm);
}

void coll_host_wake(struct coll_comm *comm)
{
    const struct host_comm *host = coll_host_of(comm);
    atomic_store(&host->root_blocks[comm->rank]->doorbell, 1);
    for (int rank = 0; rank < comm->world; rank++)
        wake_if_asleep(host, rank);
    if (host->far_count > 0)
        host->send_changes(comm);
}

void coll_host_wake_own(const struct coll_comm *root)
{
    const struct host_comm *host = coll_host_of(root);
    atomic_store(&host->root_blocks[root->rank]->doorbell, 1);
    wake_if_asleep(host, root->rank);
}

void coll_host_sleep_begin(struct coll_comm *comm)
{
    const struct coll_comm *root = comm->comm_world->root;
    atomic_store(own_asleep(comm), 1);
    for (int rank = 0; rank < root->world; rank++)
        atomic_load(&coll_host_of(root)->blocks[rank]->doorbell);
}

void coll_host_sleep(struct coll_comm *comm, uint64_t timeout_ns)
{
    _Atomic uint32_t *asleep = own_asleep(comm);
    base_futex_wait(asleep, 1, timeout_ns, coll_host_of(comm)->shared);
    atomic_store(asleep, 0);
}

void coll_host_sleep_end(struct coll_comm *comm)
{
    atomic_store(own_asleep(comm), 0);
}
