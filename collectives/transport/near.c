#include "collectives/transport/near.h"

#include "base/arena.h"
#include "base/clock.h"
#include "collectives/liveness/liveness.h"
#include "collectives/transport/shared_arena.h"
#include "collectives/transport/shared_memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ exchanges */

/** Gives every near rank this one's descriptor: near->descriptors has those of all. A failure is
 * fatal: the ranks can't exchange any more. */
static zero_result swap_descriptors(struct coll_near *near, int memory, struct base_error *error)
{
    struct coll_comm *root = near->root;
    zero_result result = ZERO_OK;
    if (near->link) {
        result = boot_exchange_fds(near->link, &memory, 1, near->descriptors,
                                   base_clock_ns() + root->comm_world->timeout_ns, error);
    } else {
        near->descriptors[0] = fcntl(memory, F_DUPFD_CLOEXEC, 0);
        if (near->descriptors[0] < 0)
            result = zero_fail_errno(error, ZERO_E_IO, errno,
                                     "communicator %s: a descriptor for shared memory", root->name);
    }
    if (result != ZERO_OK && root->comm_world->poison)
        coll_fail(root, result, "%s", error->message);
    return result;
}

static zero_result swap_bytes(const struct coll_near *near, const void *mine, size_t bytes,
                              void *all, uint64_t deadline_ns, struct base_error *error)
{
    if (near->link)
        return boot_exchange_bytes(near->link, mine, bytes, all, deadline_ns, error);
    memcpy(all, mine, bytes);
    return ZERO_OK;
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

/* ------------------------------------------------------------------ memory */

/** A memory of this rank's own, mapped; its first bytes are touched. */
static zero_result create_own(struct coll_comm *root, size_t bytes, size_t touched, int *memory,
                              void **address, struct base_error *error)
{
    zero_result result = coll_memory_create(root->name, bytes, memory, error);
    if (result == ZERO_OK)
        result = coll_memory_map(root->name, *memory, bytes, true, address, error);
    if (result == ZERO_OK)
        result = coll_memory_allocate(root->name, *memory, *address, 0,
                                      touched < bytes ? touched : bytes,
                                      &root->comm_world->counters.huge_bytes, error);
    return result;
}

/** Maps what near rank `number` gave: near->mapped[number]. */
static zero_result map_peer(struct coll_near *near, int number, size_t touched,
                            struct base_error *error)
{
    assert(number >= 0 && number < near->count && number != near->self);
    const char *name = near->root->name;
    const size_t bytes = near->bytes[number];
    const int memory = near->descriptors[number];
    zero_result result = coll_memory_check(name, near->ranks[number], memory, bytes, error);
    if (result == ZERO_OK)
        result = coll_memory_map(name, memory, bytes, true, &near->mapped[number], error);
    if (result == ZERO_OK)
        result = coll_memory_populate(name, near->mapped[number], touched < bytes ? touched : bytes,
                                      true, error);
    return result;
}

/** Gives every near rank this one's memory and maps theirs: near->mapped[i] of near->bytes[i], but
 * for this rank's. At most `touched` bytes of each have pages. */
static zero_result swap_memory(struct coll_near *near, int memory, size_t touched,
                               struct base_error *error)
{
    zero_result result = swap_descriptors(near, memory, error);
    for (int i = 0; i < near->count; i++) {
        near->mapped[i] = NULL;
        if (result == ZERO_OK && i != near->self)
            result = map_peer(near, i, touched, error);
        close_descriptor(&near->descriptors[i]);
    }
    return result;
}

/* ------------------------------------------------------------------ blocks */

/** Bytes of a rank's block and its group slots. */
static size_t slots_bytes(const struct coll_near *near)
{
    return (1 + COLL_GROUPS_MAX) * coll_host_group_slot_bytes(near->root);
}

static size_t blocks_bytes(const struct coll_near *near)
{
    return slots_bytes(near) + near->room;
}

unsigned char *coll_near_room(const struct coll_near *near, int rank)
{
    assert(!coll_host_of(near->root)->far[rank]);
    return (unsigned char *)coll_host_of(near->root)->blocks[rank] + slots_bytes(near);
}

zero_result coll_near_room_allocate(struct coll_near *near, struct base_error *error)
{
    struct coll_comm *root = near->root;
    return coll_memory_allocate(root->name, near->blocks, coll_host_own(root), slots_bytes(near),
                                near->room, &root->comm_world->counters.huge_bytes, error);
}

/** Creates this rank's block and maps those of all near ranks. */
static zero_result share_blocks(struct coll_near *near, struct base_error *error)
{
    struct host_comm *host = coll_host_of(near->root);
    const size_t touched = coll_host_block_bytes(near->root->world);
    void *own = NULL;
    zero_result result =
        create_own(near->root, blocks_bytes(near), touched, &near->blocks, &own, error);
    if (result == ZERO_OK) {
        coll_host_prepare(own);
        for (int i = 0; i < near->count; i++)
            near->bytes[i] = blocks_bytes(near);
        result = swap_memory(near, near->blocks, touched, error);
        for (int i = 0; i < near->count; i++)
            host->blocks[near->ranks[i]] = near->mapped[i];
    }
    host->blocks[near->root->rank] = own;
    return result;
}

struct host_block *coll_near_group_slot(const struct coll_near *near, int rank, size_t index)
{
    assert(index < COLL_GROUPS_MAX && !coll_host_of(near->root)->far[rank]);
    unsigned char *root_block = (unsigned char *)coll_host_of(near->root)->blocks[rank];
    return (struct host_block *)(void *)(root_block +
                                         (1 + index) * coll_host_group_slot_bytes(near->root));
}

zero_result coll_near_add_group_slot(struct coll_near *near, size_t index, size_t bytes,
                                     struct host_block **block, struct base_error *error)
{
    struct coll_comm *root = near->root;
    const zero_result result =
        coll_memory_allocate(root->name, near->blocks, coll_host_own(root), (1 + index) * bytes,
                             bytes, &root->comm_world->counters.huge_bytes, error);
    if (result == ZERO_OK)
        *block = coll_near_group_slot(near, root->rank, index);
    return result;
}

/* ------------------------------------------------------------------ life */

zero_result coll_near_init(struct coll_near *near, struct coll_comm *root, size_t room,
                           struct base_error *error)
{
    const struct host_comm *host = coll_host_of(root);
    const size_t most = (size_t)(root->world - host->far_count);
    *near = (struct coll_near){.root = root, .process = getpid(), .blocks = -1, .room = room};
    near->ranks = base_calloc(most, sizeof *near->ranks);
    near->descriptors = base_calloc(most, sizeof *near->descriptors);
    near->bytes = base_calloc(most, sizeof *near->bytes);
    near->mapped = base_calloc(most, sizeof *near->mapped);
    if (!near->ranks || !near->descriptors || !near->bytes || !near->mapped)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         root->name, root->world);
    for (int rank = 0; rank < root->world; rank++) {
        if (host->far[rank])
            continue;
        near->self = rank == root->rank ? near->count : near->self;
        near->descriptors[near->count] = -1;
        near->ranks[near->count++] = rank;
    }
    assert(near->ranks[near->self] == root->rank && (size_t)near->count == most);
    return ZERO_OK;
}

zero_result coll_near_meet(struct coll_near *near, const struct boot_meeting *meeting,
                           struct base_error *error)
{
    assert(meeting || near->count == 1);
    const zero_result result = meeting ? boot_meet(&near->link, meeting, error) : ZERO_OK;
    return result == ZERO_OK ? share_blocks(near, error) : result;
}

zero_result coll_near_begin_watch(struct coll_near *near, uint64_t stall_ns,
                                  struct base_error *error)
{
    const struct coll_comm *root = near->root;
    assert(!near->live);
    if (near->count == 1)
        return ZERO_OK;
    struct live_cell **cells = base_calloc((size_t)root->world, sizeof(struct live_cell *));
    if (!cells)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %d ranks", root->name,
                         root->world);
    for (int i = 0; i < near->count; i++)
        cells[near->ranks[i]] = &coll_host_of(root)->blocks[near->ranks[i]]->live;
    const zero_result result = coll_live_start(&near->live, near->root, cells, stall_ns, error);
    base_free(cells);
    return result;
}

/** Where a rank's process has which word. */
struct probe {
    uint64_t address;
    uint64_t word;
};

// Who could not map a block has gone away, and no rank starts without it.
zero_result coll_near_probe(struct coll_near *near, uint64_t deadline_ns, bool *allowed,
                            struct base_error *error)
{
    struct coll_comm *root = near->root;
    struct probe *all = base_calloc((size_t)near->count, sizeof *all);
    if (!all)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %d ranks", root->name,
                         root->world);
    const uint64_t word = base_clock_ns() ^ (uint64_t)getpid() << 40;
    const struct probe mine = {(uint64_t)(uintptr_t)&word, word};
    zero_result result = swap_bytes(near, &mine, sizeof mine, all, deadline_ns, error);
    size_t good = 1;
    for (int i = 0; i < near->count && result == ZERO_OK; i++)
        if (!coll_host_probe(root, near->ranks[i],
                             near->link ? boot_peer_pid(near->link, i) : near->process,
                             all[i].address, all[i].word))
            good = 0;
    if (result == ZERO_OK)
        result = swap_bytes(near, &good, sizeof good, near->bytes, deadline_ns, error);
    *allowed = true;
    for (int i = 0; i < near->count; i++)
        *allowed &= near->bytes[i] != 0;
    base_free(all);
    return result;
}

void coll_near_watch(struct coll_near *near)
{
    if (near->live)
        coll_live_watch(near->live);
}

bool coll_near_is_ours(const struct coll_near *near)
{
    return near->process == getpid();
}

void coll_near_close(struct coll_near *near)
{
    if (!near->root)
        return;
    const struct host_comm *host = coll_host_of(near->root);
    if (coll_near_is_ours(near))
        coll_live_stop(near->live);
    for (int i = 0; i < near->count && host->blocks; i++)
        coll_memory_unmap(host->blocks[near->ranks[i]], blocks_bytes(near));
    close_descriptor(&near->blocks);
    boot_close(near->link);
    base_free(near->ranks);
    base_free(near->descriptors);
    base_free(near->bytes);
    base_free(near->mapped);
}

/* ------------------------------------------------------------------ deaths */

int coll_near_dead_in_sight(const struct coll_near *near)
{
    const struct host_comm *host = coll_host_of(near->root);
    for (int i = 0; i < near->count; i++) {
        const int rank = near->ranks[i];
        if (coll_live_ended(&host->blocks[rank]->live) && !coll_host_left(near->root, rank))
            return rank;
    }
    return -1;
}

/** A rank whose process has ended without coll_close(). The link names all that have ended, in
 * turn. */
int coll_near_dead_peer(const struct coll_near *near)
{
    const int seen = coll_near_dead_in_sight(near);
    if (seen >= 0 || !near->link)
        return seen;
    for (int i = 0; i < 2 * near->count; i++) {
        const int gone = boot_peer_gone(near->link);
        if (gone < 0)
            return -1;
        if (!coll_host_left(near->root, near->ranks[gone]))
            return near->ranks[gone];
    }
    return -1;
}

/* ------------------------------------------------------------------ arenas */

zero_result coll_near_arena_alloc(struct coll_near *near, struct coll_arena *arena,
                                  struct base_error *error)
{
    return arena->shared ? coll_shared_create(near->root, arena, near->self == 0, error)
                         : create_own(near->root, coll_mapped_bytes(arena->bytes), SIZE_MAX,
                                      &arena->memory, &arena->base, error);
}

/** Every near rank takes the memory of the first one. */
static zero_result share_one(struct coll_near *near, struct coll_arena *arena,
                             struct base_error *error)
{
    assert(arena->shared && arena->memory >= 0);
    zero_result result = swap_descriptors(near, arena->memory, error);
    if (result != ZERO_OK)
        return result;
    close(arena->memory);
    arena->memory = near->descriptors[0];
    near->descriptors[0] = -1;
    for (int i = 1; i < near->count; i++)
        close_descriptor(&near->descriptors[i]);
    result = coll_memory_check(near->root->name, near->ranks[0], arena->memory,
                               coll_mapped_bytes(arena->bytes), error);
    return result == ZERO_OK ? coll_shared_allocate(near->root, arena, error) : result;
}

zero_result coll_near_arena_share(struct coll_near *near, struct coll_arena *arena,
                                  struct base_error *error)
{
    if (arena->shared)
        return share_one(near, arena, error);
    for (int i = 0; i < near->count; i++)
        near->bytes[i] = coll_mapped_bytes(arena->peer_bytes[near->ranks[i]]);
    const zero_result result = swap_memory(near, arena->memory, SIZE_MAX, error);
    near->mapped[near->self] = arena->base;
    for (int i = 0; i < near->count; i++)
        arena->peers[near->ranks[i]] = near->mapped[i];
    close_descriptor(&arena->memory);
    return result;
}

zero_result coll_near_arena_fill(struct coll_near *near, struct coll_arena *arena,
                                 struct base_error *error)
{
    return coll_host_of(near->root)->far_count > 0
               ? coll_shared_fill(near->root, arena, near->self, near->count, error)
               : ZERO_OK;
}

zero_result coll_near_arena_populate(struct coll_near *near, struct coll_arena *arena,
                                     struct base_error *error)
{
    const struct host_comm *host = coll_host_of(near->root);
    zero_result result = coll_shared_check(arena, error);
    if (result == ZERO_OK)
        result = coll_shared_map(near->root, arena, error);
    for (int rank = 0; rank < near->root->world; rank++)
        if (host->far[rank])
            arena->peers[rank] = NULL;
    return result;
}

void coll_near_arena_free(struct coll_near *near, struct coll_arena *arena)
{
    if (arena->shared) {
        coll_shared_free(arena);
        return;
    }
    for (int i = 0; i < near->count; i++)
        if (i != near->self)
            coll_memory_unmap(arena->peers[near->ranks[i]],
                              coll_mapped_bytes(arena->peer_bytes[near->ranks[i]]));
    coll_memory_unmap(arena->base, coll_mapped_bytes(arena->bytes));
    close_descriptor(&arena->memory);
}
