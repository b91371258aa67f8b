// Ranks that are processes of one host. Blocks and arenas are memfds, nameless, so that nothing
// stays behind whoever dies; their owner allocates and touches them, peers map them: blocks to
// read and write, arenas to read only.
//
// Points of base/fault.h: shm.allocate (each memfd), shm.map (each mapping, own and peers').

#include "base/arena.h"
#include "base/clock.h"
#include "base/fault.h"
#include "collectives/boot/boot.h"
#include "collectives/direct/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct shm {
    struct direct direct; /**< first: direct.c sees a struct direct */
    struct boot_link *boot;
    int *descriptors; /**< of every rank: room for what peers give, */
    size_t *bytes;    /**< its size, */
    void **mapped;    /**< and where it is mapped */
};

/** What a peer may rely on: the memory is there and stays. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* ------------------------------------------------------------------ memory */

/** A memfd of `bytes` > 0 bytes, allocated and sealed. */
static zero_result create_memory(const struct coll_comm *comm, size_t bytes, int *memory,
                                 struct base_error *error)
{
    const int fd = memfd_create("zero", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno, "communicator %s: memfd_create",
                               comm->name);
    int failed = base_fault("shm.allocate");
    if (failed == 0)
        do
            failed = fallocate(fd, 0, 0, (off_t)bytes) != 0 ? errno : 0;
        while (failed == EINTR);
    if (failed == 0 && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        failed = errno;
    if (failed != 0) {
        close(fd);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "communicator %s: %zu bytes of shared memory", comm->name, bytes);
    }
    *memory = fd;
    return ZERO_OK;
}

/** Maps memory and fills in the page tables, so that no later access faults. */
static zero_result map_memory(const struct coll_comm *comm, int memory, size_t bytes,
                              int protection, void **address, struct base_error *error)
{
    const int fault = base_fault("shm.map");
    void *mapped = fault == 0 ? mmap(NULL, bytes, protection, MAP_SHARED | MAP_POPULATE, memory, 0)
                              : MAP_FAILED;
    if (mapped == MAP_FAILED)
        return zero_fail_errno(error, ZERO_E_NOMEM, fault != 0 ? fault : errno,
                               "communicator %s: mapping %zu bytes of shared memory", comm->name,
                               bytes);
    *address = mapped;
    return ZERO_OK;
}

/** Maps a peer's memory after looking that it is what it should be: reading it can't fault. */
static zero_result map_peer(const struct coll_comm *comm, int rank, int memory, size_t bytes,
                            int protection, void **address, struct base_error *error)
{
    struct stat status;
    const int seals = fcntl(memory, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(memory, &status) != 0 ||
        (size_t)status.st_size != bytes)
        return zero_fail(error, ZERO_E_PEER,
                         "communicator %s: rank %d gave no sealed memory of %zu bytes", comm->name,
                         rank, bytes);
    return map_memory(comm, memory, bytes, protection, address, error);
}

static void unmap(const void *address, size_t bytes)
{
    if (address)
        munmap((void *)(uintptr_t)address, bytes);
}

/**
 * Gives every rank this one's memory and maps theirs: shm->mapped[r] of shm->bytes[r], but for this
 * rank's. A failure of the exchange itself is fatal: the ranks can't exchange any more.
 */
static zero_result swap_memory(struct coll_comm *comm, int memory, int protection,
                               struct base_error *error)
{
    struct shm *shm = comm->link;
    zero_result result = boot_exchange_fds(shm->boot, &memory, 1, shm->descriptors,
                                           base_clock_ns() + comm->family->timeout_ns, error);
    if (result != ZERO_OK && comm->family->poison)
        coll_fail(comm, result, "%s", error->message);
    for (int rank = 0; rank < comm->world; rank++) {
        shm->mapped[rank] = NULL;
        if (result == ZERO_OK && rank != comm->rank)
            result = map_peer(comm, rank, shm->descriptors[rank], shm->bytes[rank], protection,
                              &shm->mapped[rank], error);
        if (shm->descriptors[rank] >= 0)
            close(shm->descriptors[rank]);
    }
    return result;
}

/* ------------------------------------------------------------------ life */

/** Creates this rank's block and maps everybody's. */
static zero_result share_blocks(struct coll_comm *comm, struct base_error *error)
{
    struct shm *shm = comm->link;
    const size_t size = coll_direct_block_bytes(comm->world);
    void *own = NULL;
    int memory;
    zero_result result = create_memory(comm, size, &memory, error);
    if (result != ZERO_OK)
        return result;
    result = map_memory(comm, memory, size, PROT_READ | PROT_WRITE, &own, error);
    if (result == ZERO_OK) {
        coll_direct_prepare(own);
        for (int rank = 0; rank < comm->world; rank++)
            shm->bytes[rank] = size;
        result = swap_memory(comm, memory, PROT_READ | PROT_WRITE, error);
        shm->mapped[comm->rank] = own;
        for (int rank = 0; rank < comm->world; rank++)
            shm->direct.blocks[rank] = shm->mapped[rank];
    }
    close(memory);
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
    return coll_direct_init(&shm->direct, comm, true, error);
}

static zero_result shm_open_comm(struct coll_comm *comm, const struct coll_config *config,
                                 struct base_error *error)
{
    struct shm *shm = base_calloc(1, sizeof *shm);
    if (!shm)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    comm->link = shm;
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
    };
    result = boot_meet(&shm->boot, &meeting, error);
    if (result == ZERO_OK)
        result = share_blocks(comm, error);
    // Who could not map a block has gone away, and nobody starts without it.
    const int here = 1;
    if (result == ZERO_OK)
        result = boot_exchange_bytes(shm->boot, &here, sizeof here, shm->descriptors,
                                     meeting.deadline_ns, error);
    if (result == ZERO_OK)
        coll_direct_join(comm);
    return result;
}

static void shm_close_comm(struct coll_comm *comm)
{
    struct shm *shm = comm->link;
    if (!shm)
        return;
    if (comm->family->poison)
        coll_direct_leave(comm);
    for (int rank = 0; rank < comm->world && shm->direct.blocks; rank++)
        unmap(shm->direct.blocks[rank], coll_direct_block_bytes(comm->world));
    boot_close(shm->boot);
    coll_direct_free(&shm->direct);
    base_free(shm->descriptors);
    base_free(shm->bytes);
    base_free(shm->mapped);
    base_free(shm);
}

/** A rank whose process has ended without coll_close(). The link names all that have ended, in
 * turn. */
static int shm_dead_peer(const struct coll_comm *comm)
{
    const struct shm *shm = comm->link;
    for (int i = 0; i < comm->world; i++) {
        const int rank = boot_peer_gone(shm->boot);
        if (rank < 0 || !coll_direct_left(comm, rank))
            return rank;
    }
    return -1;
}

/* ------------------------------------------------------------------ arenas */

/** The descriptor of an arena's memory until it is shared. */
struct shm_arena {
    int memory;
};

/** A mapping has at least one byte. */
static size_t mapped_bytes(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

static zero_result shm_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                   const struct coll_span *mine, size_t count,
                                   struct base_error *error)
{
    (void)mine;
    (void)count;
    struct shm_arena *own = base_calloc(1, sizeof *own);
    if (!own)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    own->memory = -1;
    arena->memory = own;
    const size_t bytes = mapped_bytes(arena->bytes);
    zero_result result = create_memory(comm, bytes, &own->memory, error);
    if (result == ZERO_OK)
        result = map_memory(comm, own->memory, bytes, PROT_READ | PROT_WRITE, &arena->base, error);
    return result;
}

static zero_result shm_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    const struct shm *shm = comm->link;
    struct shm_arena *own = arena->memory;
    for (int rank = 0; rank < comm->world; rank++)
        shm->bytes[rank] = mapped_bytes(arena->peer_bytes[rank]);
    const zero_result result = swap_memory(comm, own->memory, PROT_READ, error);
    shm->mapped[comm->rank] = arena->base;
    for (int rank = 0; rank < comm->world; rank++)
        arena->peers[rank] = shm->mapped[rank];
    close(own->memory);
    own->memory = -1;
    return result;
}

static void shm_arena_free(struct coll_comm *comm, struct coll_arena *arena)
{
    struct shm_arena *own = arena->memory;
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank)
            unmap(arena->peers[rank], mapped_bytes(arena->peer_bytes[rank]));
    unmap(arena->base, mapped_bytes(arena->bytes));
    if (own && own->memory >= 0)
        close(own->memory);
    base_free(own);
}

const struct coll_transport coll_transport_shm = {
    .size = sizeof(struct coll_transport),
    .name = "shm",
    .open = shm_open_comm,
    .close = shm_close_comm,
    .arena_alloc = shm_arena_alloc,
    .arena_share = shm_arena_share,
    .arena_free = shm_arena_free,
    .start = coll_direct_start,
    .progress = coll_direct_progress,
    .drained = coll_direct_drained,
    .presence = coll_direct_presence,
    .last_call = coll_direct_last_call,
    .dead_peer = shm_dead_peer,
    .wake = coll_direct_wake,
    .sleep_begin = coll_direct_sleep_begin,
    .sleep = coll_direct_sleep,
    .sleep_end = coll_direct_sleep_end,
};
