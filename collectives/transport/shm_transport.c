// Ranks that are processes of one host. Blocks and arenas are memfds; their owner allocates and
// touches them, peers map them to read and write. A rank's blocks are one memfd, with room for
// those of its groups, which get their pages when they are made: descriptors are passed at the
// start only.

#include "base/arena.h"
#include "base/clock.h"
#include "collectives/host/host.h"
#include "collectives/liveness/liveness.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/transport/shared_arena.h"
#include "collectives/transport/shared_memory.h"

#include <assert.h>
#include <unistd.h>

struct shm {
    struct host_comm host; /**< first: direct.c sees a struct host_comm */
    struct boot_link *boot;
    struct coll_live *live; /**< NULL if there is no other rank */
    int blocks;             /**< the descriptor of this rank's blocks; -1: none yet */
    int *descriptors;       /**< of every rank: room for what peers give, */
    size_t *bytes;          /**< its size, */
    void **mapped;          /**< and where it is mapped */
};

/* ------------------------------------------------------------------ memory */

/** A memory of this rank's own, mapped; its first bytes are touched. */
static zero_result create_own(struct coll_comm *comm, size_t bytes, size_t touched, int *memory,
                              void **address, struct base_error *error)
{
    zero_result result = coll_memory_create(comm->name, bytes, memory, error);
    if (result == ZERO_OK)
        result = coll_memory_map(comm->name, *memory, bytes, true, address, error);
    if (result == ZERO_OK)
        result = coll_memory_allocate(comm->name, *memory, *address, 0,
                                      touched < bytes ? touched : bytes,
                                      &comm->comm_world->counters.huge_bytes, error);
    return result;
}

static zero_result map_peer(const struct coll_comm *comm, int rank, int memory, size_t bytes,
                            size_t touched, void **address, struct base_error *error)
{
    assert(rank >= 0 && rank < comm->world && rank != comm->rank);
    zero_result result = coll_memory_check(comm->name, rank, memory, bytes, error);
    if (result == ZERO_OK)
        result = coll_memory_map(comm->name, memory, bytes, true, address, error);
    if (result == ZERO_OK)
        result = coll_memory_populate(comm->name, *address, touched < bytes ? touched : bytes, true,
                                      error);
    return result;
}

/** Gives every rank this one's descriptor: shm->descriptors has those of all ranks. A failure is
 * fatal: the ranks can't exchange any more. */
static zero_result swap_descriptors(struct coll_comm *comm, int memory, struct base_error *error)
{
    const struct shm *shm = comm->link;
    const zero_result result =
        boot_exchange_fds(shm->boot, &memory, 1, shm->descriptors,
                          base_clock_ns() + comm->comm_world->timeout_ns, error);
    if (result != ZERO_OK && comm->comm_world->poison)
        coll_fail(comm, result, "%s", error->message);
    return result;
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

/** Gives every rank this one's memory and maps theirs: shm->mapped[r] of shm->bytes[r], but for
 * this rank's. At most `touched` bytes of each have pages. */
static zero_result swap_memory(struct coll_comm *comm, int memory, size_t touched,
                               struct base_error *error)
{
    struct shm *shm = comm->link;
    zero_result result = swap_descriptors(comm, memory, error);
    for (int rank = 0; rank < comm->world; rank++) {
        shm->mapped[rank] = NULL;
        if (result == ZERO_OK && rank != comm->rank)
            result = map_peer(comm, rank, shm->descriptors[rank], shm->bytes[rank], touched,
                              &shm->mapped[rank], error);
        close_descriptor(&shm->descriptors[rank]);
    }
    return result;
}

/* ------------------------------------------------------------------ life */

/** Bytes of a rank's block and the room behind it. */
static size_t blocks_bytes(const struct coll_comm *root)
{
    return (1 + COLL_GROUPS_MAX) * coll_host_group_slot_bytes(root);
}

/** Creates this rank's block and maps those of all ranks. */
static zero_result share_blocks(struct coll_comm *comm, struct base_error *error)
{
    struct shm *shm = comm->link;
    const size_t touched = coll_host_block_bytes(comm->world);
    void *own = NULL;
    zero_result result = create_own(comm, blocks_bytes(comm), touched, &shm->blocks, &own, error);
    if (result == ZERO_OK) {
        coll_host_prepare(own);
        for (int rank = 0; rank < comm->world; rank++)
            shm->bytes[rank] = blocks_bytes(comm);
        result = swap_memory(comm, shm->blocks, touched, error);
        for (int rank = 0; rank < comm->world; rank++)
            shm->host.blocks[rank] = shm->mapped[rank];
    }
    shm->host.blocks[comm->rank] = own;
    return result;
}

static zero_result init(struct shm *shm, struct coll_comm *comm, struct base_error *error)
{
    const size_t world = (size_t)comm->world;
    shm->descriptors = base_calloc(world, sizeof *shm->descriptors);
    shm->bytes = base_calloc(world, sizeof *shm->bytes);
    shm->mapped = base_calloc(world, sizeof *shm->mapped);
    if (!shm->descriptors || !shm->bytes || !shm->mapped)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         comm->name, comm->world);
    return coll_host_init(&shm->host, comm, true, error);
}

static zero_result start_liveness(struct coll_comm *comm, uint64_t stall_ns,
                                  struct base_error *error)
{
    struct shm *shm = comm->link;
    assert(!shm->live);
    if (comm->world == 1)
        return ZERO_OK;
    struct live_cell **cells = base_calloc((size_t)comm->world, sizeof(struct live_cell *));
    if (!cells)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %d ranks", comm->name,
                         comm->world);
    for (int rank = 0; rank < comm->world; rank++)
        cells[rank] = &shm->host.blocks[rank]->live;
    const zero_result result = coll_live_start(&shm->live, comm, cells, stall_ns, error);
    base_free(cells);
    return result;
}

/** Where a rank's process has which word. */
struct probe {
    uint64_t address;
    uint64_t word;
};

/** Whether every rank can read every other one's memory: *allowed is the same on all. Who could not
 * map a block has gone away, and no rank starts without it. */
static zero_result probe_peers(struct coll_comm *comm, uint64_t deadline_ns, bool *allowed,
                               struct base_error *error)
{
    const struct shm *shm = comm->link;
    struct probe *all = base_calloc((size_t)comm->world, sizeof *all);
    if (!all)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %d ranks", comm->name,
                         comm->world);
    const uint64_t word = base_clock_ns() ^ (uint64_t)getpid() << 40;
    const struct probe mine = {(uint64_t)(uintptr_t)&word, word};
    zero_result result =
        boot_exchange_bytes(shm->boot, &mine, sizeof mine, all, deadline_ns, error);
    size_t good = 1;
    for (int rank = 0; rank < comm->world && result == ZERO_OK; rank++)
        if (!coll_host_probe(comm, rank, boot_peer_pid(shm->boot, rank), all[rank].address,
                             all[rank].word))
            good = 0;
    if (result == ZERO_OK)
        result = boot_exchange_bytes(shm->boot, &good, sizeof good, shm->bytes, deadline_ns, error);
    *allowed = true;
    for (int rank = 0; rank < comm->world; rank++)
        *allowed &= shm->bytes[rank] != 0;
    base_free(all);
    return result;
}

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
    shm->blocks = -1;
    zero_result result = init(shm, comm, error);
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
    result = boot_meet(&shm->boot, &meeting, error);
    if (result == ZERO_OK)
        result = share_blocks(comm, error);
    if (result == ZERO_OK) {
        coll_host_join(comm);
        result = start_liveness(comm, config->stall_ns, error);
    }
    bool allowed = false;
    if (result == ZERO_OK)
        result = probe_peers(comm, meeting.deadline_ns, &allowed, error);
    if (result == ZERO_OK && shm->live)
        coll_live_watch(shm->live);
    if (result == ZERO_OK)
        result = coll_host_remote_read_join(comm, allowed, NULL, error);
    return result;
}

/** A child made by fork() that closes has no thread, and its parent doesn't leave. */
static bool is_ours(const struct shm *shm, const struct coll_comm *root)
{
    return shm->boot && boot_peer_pid(shm->boot, root->rank) == getpid();
}

static void shm_close_comm(struct coll_comm *comm)
{
    struct shm *shm = comm->link;
    if (!shm)
        return;
    const bool ours = is_ours(shm, comm);
    if (comm->comm_world->poison && ours)
        coll_host_leave(comm);
    if (ours)
        coll_live_stop(shm->live);
    for (int rank = 0; rank < comm->world && shm->host.blocks; rank++)
        coll_memory_unmap(shm->host.blocks[rank], blocks_bytes(comm));
    close_descriptor(&shm->blocks);
    boot_close(shm->boot);
    coll_host_free(&shm->host, comm);
    base_free(shm->descriptors);
    base_free(shm->bytes);
    base_free(shm->mapped);
    base_free(shm);
}

/* ------------------------------------------------------------------ groups */

static struct host_block *group_slot_of(const struct coll_comm *root, int rank, size_t index)
{
    assert(index < COLL_GROUPS_MAX);
    unsigned char *root_block = (unsigned char *)coll_host_of(root)->blocks[rank];
    return (struct host_block *)(void *)(root_block +
                                         (1 + index) * coll_host_group_slot_bytes(root));
}

static zero_result add_group_slot(struct coll_comm *root, size_t index, size_t bytes,
                                  struct host_block **block, struct base_error *error)
{
    const struct shm *shm = root->link;
    const zero_result result =
        coll_memory_allocate(root->name, shm->blocks, coll_host_own(root), (1 + index) * bytes,
                             bytes, &root->comm_world->counters.huge_bytes, error);
    if (result == ZERO_OK)
        *block = group_slot_of(root, root->rank, index);
    return result;
}

static zero_result shm_group_prepare(struct coll_comm *comm, size_t *part, struct base_error *error)
{
    return coll_host_group_prepare(comm, add_group_slot, part, error);
}

static void shm_group_meet(struct coll_comm *comm, int rank, size_t part)
{
    struct host_block *block =
        group_slot_of(comm->comm_world->root, coll_root_rank(comm, rank), part);
    coll_host_group_meet(comm, rank, block);
    // The pages are there. If this fails an access fills in the page table.
    coll_memory_populate(comm->name, block, coll_host_block_bytes(comm->world), true, NULL);
}

static void shm_group_close(struct coll_comm *comm)
{
    const struct coll_comm *root = comm->comm_world->root;
    coll_host_group_close(comm, is_ours(root->link, root));
}

/* ------------------------------------------------------------------ presence */

static int shm_dead_in_sight(const struct coll_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (coll_live_ended(&coll_host_of(comm)->blocks[rank]->live) && !coll_host_left(comm, rank))
            return rank;
    return -1;
}

/** A rank whose process has ended without coll_close(). The link names all that have ended, in
 * turn. */
static int shm_dead_peer(const struct coll_comm *comm)
{
    const struct shm *shm = comm->link;
    const int seen = shm_dead_in_sight(comm);
    if (seen >= 0)
        return seen;
    for (int i = 0; i < 2 * comm->world; i++) {
        const int rank = boot_peer_gone(shm->boot);
        if (rank < 0 || !coll_host_left(comm, rank))
            return rank;
    }
    return -1;
}

/* ------------------------------------------------------------------ arenas */

static zero_result shm_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    return arena->shared ? coll_shared_create(comm, arena, error)
                         : create_own(comm, coll_mapped_bytes(arena->bytes), SIZE_MAX,
                                      &arena->memory, &arena->base, error);
}

static zero_result share_one(struct coll_comm *comm, struct coll_arena *arena,
                             struct base_error *error)
{
    assert(arena->shared && arena->memory >= 0);
    const struct shm *shm = comm->link;
    zero_result result = swap_descriptors(comm, arena->memory, error);
    if (result != ZERO_OK)
        return result;
    close(arena->memory);
    arena->memory = shm->descriptors[0];
    for (int rank = 1; rank < comm->world; rank++)
        close_descriptor(&shm->descriptors[rank]);
    result =
        coll_memory_check(comm->name, 0, arena->memory, coll_mapped_bytes(arena->bytes), error);
    return result == ZERO_OK ? coll_shared_allocate(comm, arena, error) : result;
}

static zero_result shm_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    if (arena->shared)
        return share_one(comm, arena, error);
    const struct shm *shm = comm->link;
    for (int rank = 0; rank < comm->world; rank++)
        shm->bytes[rank] = coll_mapped_bytes(arena->peer_bytes[rank]);
    const zero_result result = swap_memory(comm, arena->memory, SIZE_MAX, error);
    shm->mapped[comm->rank] = arena->base;
    for (int rank = 0; rank < comm->world; rank++)
        arena->peers[rank] = shm->mapped[rank];
    close_descriptor(&arena->memory);
    return result;
}

static void shm_arena_free(struct coll_comm *comm, struct coll_arena *arena)
{
    if (arena->shared) {
        coll_shared_free(arena);
        return;
    }
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank)
            coll_memory_unmap(arena->peers[rank], coll_mapped_bytes(arena->peer_bytes[rank]));
    coll_memory_unmap(arena->base, coll_mapped_bytes(arena->bytes));
    close_descriptor(&arena->memory);
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
    .arena_populate = coll_shared_populate,
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
