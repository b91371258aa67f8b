// Sources that a rank can't address, when ranks are processes. A rank reads memory outside arenas
// of a rank of its host by process_vm_readv(2). Where the kernel doesn't allow that, it asks the
// owner to copy a piece into memory that both see. The owner does so in any call that makes
// progress. A rank addresses no memory of a far rank: the read request and the piece travel (tcp/).
// If the place is in an arena there and the comm world has a provider, the provider copies it
// (provided_copy.c).
//
// Points of base/fault.h: shm.peek (each process_vm_readv; the first of each peer is the probe of
// coll_open()).

#include "base/arena.h"
#include "base/fault.h"
#include "collectives/host/provided_copy.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum { LEAST_SLICE = 32 * 1024, MOST_SLICE = 512 * 1024, SCRATCH = 2048 * 1024, HEADS = 4096 };

/** By a provider at a time: so long its end may take. */
enum { MOST_COPIED = 16 * 1024 * 1024 };

/** One reader's read request for a piece of one owner's memory, in the reader's memory. */
struct mailbox {
    alignas(HOST_LINE) _Atomic uint32_t state; /**< enum channel_state */
    struct host_read_request what;
};

/** The reader puts IDLE and ASKED, the owner BUSY and SERVED. BROKEN is a copy of a provider only.
 */
enum mailbox_state { IDLE, ASKED, BUSY, SERVED, BROKEN };

/** What this rank last asked of an owner and has not taken yet; request NULL: nothing. */
struct pending_read {
    const struct coll_comm *comm;
    const struct coll_request *request;
    struct host_place place;
    unsigned char *to;     /**< where it comes to */
    struct host_copy copy; /**< of what a provider copies */
};

struct host_remote_read {
    size_t slice;           /**< the most bytes of a piece */
    unsigned char *scratch; /**< of every rank a slice: its newest piece */
    size_t *end;            /**< of every rank: the byte behind that piece; 0: there is none */

    // Members of the root only:
    pid_t *processes;        /**< of every rank */
    bool allowed;            /**< what is not far can be read by process_vm_readv() */
    unsigned char **bounces; /**< of every rank that is not far, as seen here: a mailbox to every
                                  rank, and behind them a slice of each. NULL: not needed */
    struct pending_read *pending_reads; /**< of every rank */
    bool piece_taken;                   /**< a piece, since coll_host_piece_taken() was asked */
};

static struct host_remote_read *of(const struct coll_comm *comm)
{
    return coll_host_of(comm)->remote_read;
}

/* ------------------------------------------------------------------ life */

static size_t slice_of(int world)
{
    assert(world >= 1);
    const size_t slice = (SCRATCH / (size_t)world) & ~(size_t)4095;
    return slice < LEAST_SLICE ? LEAST_SLICE : slice > MOST_SLICE ? MOST_SLICE : slice;
}

size_t coll_host_remote_read_bytes(int world)
{
    return (size_t)world * slice_of(world);
}

zero_result coll_host_remote_read_init(struct host_comm *host, struct coll_comm *comm,
                                       struct base_error *error)
{
    const size_t world = (size_t)comm->world;
    struct host_remote_read *remote_read = base_calloc(1, sizeof *remote_read);
    if (!remote_read)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    host->remote_read = remote_read;
    remote_read->slice = slice_of(comm->world);
    remote_read->end = base_calloc(world, sizeof *remote_read->end);
    remote_read->scratch = base_aligned_alloc(4096, coll_host_remote_read_bytes(comm->world));
    if (!comm->root_ranks) {
        remote_read->processes = base_calloc(world, sizeof *remote_read->processes);
        remote_read->pending_reads = base_calloc(world, sizeof *remote_read->pending_reads);
    }
    if (!remote_read->end || !remote_read->scratch ||
        (!comm->root_ranks && (!remote_read->processes || !remote_read->pending_reads)))
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %zu bytes",
                         comm->name, coll_host_remote_read_bytes(comm->world));
    memset(remote_read->scratch, 0, coll_host_remote_read_bytes(comm->world));
    comm->comm_world->counters.memory_bytes += coll_host_remote_read_bytes(comm->world);
    return ZERO_OK;
}

void coll_host_remote_read_free(struct host_comm *host, struct coll_comm *comm)
{
    struct host_remote_read *remote_read = host->remote_read;
    if (!remote_read)
        return;
    if (remote_read->scratch)
        comm->comm_world->counters.memory_bytes -= coll_host_remote_read_bytes(comm->world);
    base_free(remote_read->scratch);
    base_free(remote_read->end);
    base_free(remote_read->processes);
    base_free(remote_read->pending_reads);
    base_free(remote_read);
}

/* ------------------------------------------------------------------ reading another process */

/** Copies `bytes` bytes of a process's memory; *done of them before an error, which is returned. */
static int read_process(pid_t process, uint64_t address, size_t bytes, unsigned char *to,
                        size_t *done)
{
    for (*done = 0; *done < bytes;) {
        const struct iovec local = {to + *done, bytes - *done};
        const struct iovec remote = {(void *)(uintptr_t)(address + *done), bytes - *done};
        errno = base_fault("shm.peek");
        const ssize_t got = errno != 0 ? -1 : process_vm_readv(process, &local, 1, &remote, 1, 0);
        if (got > 0)
            *done += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return got == 0 ? EFAULT : errno;
    }
    return 0;
}

bool coll_host_probe(struct coll_comm *root, int rank, pid_t process, uint64_t address,
                     uint64_t expected)
{
    assert(rank >= 0 && rank < root->world);
    uint64_t found = 0;
    size_t done;
    of(root)->processes[rank] = process;
    return rank == root->rank ||
           (read_process(process, address, sizeof found, (unsigned char *)&found, &done) == 0 &&
            found == expected);
}

static zero_result fail_read(struct coll_comm *comm, const struct coll_request *request, int rank,
                             uint64_t address, size_t bytes, int failed)
{
    struct coll_signature signature;
    char text[COLL_TEXT_BYTES];
    coll_signature_make(&signature, comm, request);
    coll_signature_text(&signature, request->sequence, text);
    const int reader = coll_root_rank(comm, comm->rank), owner = coll_root_rank(comm, rank);
    if (failed == ESRCH) {
        char message[COLL_MESSAGE_BYTES];
        coll_death_text(comm->comm_world->root, owner, text, message);
        return coll_fail(comm, ZERO_E_PEER, "%s", message);
    }
    return coll_fail(comm, failed == EFAULT ? ZERO_E_INVALID : ZERO_E_IO,
                     "rank %d, %s: %zu bytes of rank %d's memory from 0x%llx on can't be read: %s",
                     reader, text, bytes, owner, (unsigned long long)address,
                     strerrordesc_np(failed));
}

/* ------------------------------------------------------------------ asking the owner */

static size_t heads_bytes(int world)
{
    return ((size_t)world * sizeof(struct mailbox) + HEADS - 1) / HEADS * HEADS;
}

size_t coll_host_bounce_bytes(int world)
{
    return heads_bytes(world) + coll_host_remote_read_bytes(world);
}

zero_result coll_host_remote_read_join(struct coll_comm *root, bool allowed,
                                       unsigned char **bounces, struct base_error *error)
{
    root->comm_world->unregistered_path = bounces   ? "sent"
                                          : allowed ? "process_vm_readv"
                                                    : "copied";
    of(root)->allowed = allowed;
    if (allowed && !bounces)
        return ZERO_OK;
    struct coll_arena *arena;
    const size_t bytes = coll_host_bounce_bytes(root->world);
    root->comm_world->counters.memory_bytes += bytes;
    of(root)->bounces = bounces;
    if (bounces)
        return ZERO_OK;
    const zero_result result = coll_arena_create(root, bytes, &arena, error);
    if (result == ZERO_OK)
        of(root)->bounces = arena->peers;
    return result;
}

/** The mailbox in which `reader` asks `owner`, both of the root, and the piece that belongs to it.
 */
static struct mailbox *mailbox_of(const struct coll_comm *root, int reader, int owner,
                                  unsigned char **piece)
{
    assert(reader >= 0 && reader < root->world && owner >= 0 && owner < root->world);
    unsigned char *memory = of(root)->bounces[reader];
    *piece = memory + heads_bytes(root->world) + (size_t)owner * of(root)->slice;
    return (struct mailbox *)(void *)memory + owner;
}

bool coll_host_serve(struct coll_comm *root)
{
    if (!of(root) || of(root)->allowed || !of(root)->bounces)
        return false;
    bool served = false;
    for (int reader = 0; reader < root->world; reader++) {
        unsigned char *piece;
        if (coll_host_of(root)->far[reader] || reader == root->rank)
            continue;
        struct mailbox *mailbox = mailbox_of(root, reader, root->rank, &piece);
        uint32_t asked = ASKED;
        // A reader that has left doesn't want it any more, and what it asked for may be gone.
        if (atomic_load_explicit(&mailbox->state, memory_order_relaxed) != ASKED ||
            coll_host_left(root, reader) ||
            !atomic_compare_exchange_strong(&mailbox->state, &asked, BUSY))
            continue;
        memcpy(piece, coll_host_own_address(root, &mailbox->what.place), mailbox->what.place.bytes);
        atomic_store(&mailbox->state, SERVED);
        coll_host_wake_rank(root, reader);
        served = true;
    }
    return served;
}

bool coll_host_take_read_request(const struct coll_comm *root, int owner,
                                 struct host_read_request *wanted)
{
    if (!of(root) || !of(root)->bounces)
        return false;
    unsigned char *piece;
    struct mailbox *mailbox = mailbox_of(root, root->rank, owner, &piece);
    uint32_t asked = ASKED;
    if (atomic_load_explicit(&mailbox->state, memory_order_relaxed) != ASKED ||
        !atomic_compare_exchange_strong(&mailbox->state, &asked, BUSY))
        return false;
    *wanted = mailbox->what;
    return true;
}

unsigned char *coll_host_read_target(const struct coll_comm *root, int owner, uint64_t bytes)
{
    if (!of(root) || !of(root)->bounces)
        return NULL;
    unsigned char *piece;
    const struct mailbox *mailbox = mailbox_of(root, root->rank, owner, &piece);
    return atomic_load(&mailbox->state) == BUSY && mailbox->what.place.bytes == bytes ? piece
                                                                                      : NULL;
}

void coll_host_finish_read(const struct coll_comm *root, int owner, bool here)
{
    unsigned char *piece;
    atomic_store(&mailbox_of(root, root->rank, owner, &piece)->state, here ? SERVED : IDLE);
}

static struct host_read_request piece_of(const struct coll_comm *comm,
                                         const struct coll_request *request, int rank,
                                         const struct host_place *place)
{
    return (struct host_read_request){.block = coll_host_of(comm)->blocks[rank],
                                      .sequence = request->sequence,
                                      .place = *place,
                                      .message = coll_is_message(request)};
}

/** Whether this rank reads another one's memory by itself. */
static bool reads_itself(const struct coll_comm *comm, int rank)
{
    return of(comm->comm_world->root)->allowed && !coll_host_of(comm)->far[rank];
}

/** How it stands with what was asked of an owner last: enum mailbox_state. */
static uint32_t reading_state(const struct coll_comm *root, int owner)
{
    static const uint32_t states[] = {
        [COLL_COPY_UNDER_WAY] = BUSY, [COLL_COPY_HERE] = SERVED, [COLL_COPY_BROKEN] = BROKEN};
    unsigned char *piece;
    const uint32_t state = coll_host_copy_state(root, &of(root)->pending_reads[owner].copy);
    if (state != COLL_COPY_NONE)
        return states[state];
    return atomic_load(&mailbox_of(root, root->rank, owner, &piece)->state);
}

/** Asks an owner, of whom nothing else is asked, or has a provider copy to `to`, or the piece. */
static void request_piece(struct coll_comm *comm, const struct coll_request *request, int owner,
                          const struct host_read_request *what, unsigned char *to)
{
    struct coll_comm *root = comm->comm_world->root;
    unsigned char *piece;
    struct mailbox *mailbox = mailbox_of(root, root->rank, owner, &piece);
    struct pending_read *pending = &of(root)->pending_reads[owner];
    assert(atomic_load(&mailbox->state) == IDLE || atomic_load(&mailbox->state) == SERVED);
    *pending =
        (struct pending_read){.comm = comm, .request = request, .place = what->place, .to = piece};
    if (coll_host_is_copied(comm, &what->place)) {
        pending->to = to ? to : piece;
        coll_host_copy_start(root, owner, &what->place, pending->to, &pending->copy);
        return;
    }
    assert(what->place.bytes <= of(root)->slice);
    mailbox->what = *what;
    atomic_store(&mailbox->state, ASKED);
    coll_host_wake_rank(root, owner);
}

/** One step of getting a piece from its owner: asks for it, or takes it. `stays`: what is at `to`
 * is not looked at before it is taken, and a provider may copy to there. ZERO_AGAIN: not yet. */
static zero_result ask(struct coll_comm *comm, const struct coll_request *request, int rank,
                       const struct host_place *place, unsigned char *to, bool stays)
{
    struct coll_comm *root = comm->comm_world->root;
    const int owner = coll_root_rank(comm, rank);
    const struct host_read_request what = piece_of(comm, request, rank, place);
    struct pending_read *pending = &of(root)->pending_reads[owner];
    const uint32_t state = reading_state(root, owner);
    if (state == ASKED || state == BUSY)
        return ZERO_AGAIN;
    const bool mine = pending->comm == comm && pending->request == request;
    if (state == SERVED && mine && coll_host_same_place(&pending->place, place)) {
        if (to != pending->to)
            memcpy(to, pending->to, place->bytes);
        pending->request = NULL;
        of(root)->piece_taken = true;
        return ZERO_OK;
    }
    if (state == BROKEN && mine)
        return coll_host_copy_fail(comm, request, rank, place, &pending->copy);
    // Another request comes back for the piece that it asked for.
    if (!pending->request || mine)
        request_piece(comm, request, owner, &what, stays ? to : NULL);
    return ZERO_AGAIN;
}

/** Whether nothing is asked of an owner, nor on its way. */
static bool is_idle(const struct coll_comm *root, int owner)
{
    const uint32_t state = reading_state(root, owner);
    return !of(root)->pending_reads[owner].request && state != ASKED && state != BUSY;
}

bool coll_host_piece_taken(const struct coll_comm *comm)
{
    struct host_remote_read *root = of(comm->comm_world->root);
    const bool piece_taken = root && root->piece_taken;
    if (piece_taken)
        root->piece_taken = false;
    return piece_taken;
}

bool coll_host_read_pending(const struct coll_comm *comm, int rank)
{
    const struct coll_comm *root = comm->comm_world->root;
    if (!of(root) || !of(root)->bounces)
        return false;
    const int owner = coll_root_rank(comm, rank);
    const struct pending_read *pending = &of(root)->pending_reads[owner];
    return pending->request && pending->comm == comm && reading_state(root, owner) != SERVED;
}

void coll_host_cancel_reads(struct coll_comm *comm)
{
    const struct coll_comm *root = comm->comm_world->root;
    if (!of(root) || !of(root)->bounces)
        return;
    for (int owner = 0; owner < root->world; owner++) {
        struct pending_read *pending = &of(root)->pending_reads[owner];
        if (!pending->request || pending->comm != comm)
            continue;
        unsigned char *piece;
        uint32_t asked = ASKED;
        atomic_compare_exchange_strong(&mailbox_of(root, root->rank, owner, &piece)->state, &asked,
                                       IDLE);
        if (pending->to != piece)
            coll_host_copy_end(root, &pending->copy);
        pending->request = NULL;
    }
}

/* ------------------------------------------------------------------ pieces */

/** Brings up to a slice of what can't be addressed to `to`, or more where that needs no owner. */
static zero_result bring(struct coll_comm *comm, const struct coll_request *request, int rank,
                         const struct host_place *place, unsigned char *to, bool stays)
{
    const struct host_remote_read *root = of(comm->comm_world->root);
    if (!reads_itself(comm, rank))
        return ask(comm, request, rank, place, to, stays);
    assert(place->arena == HOST_UNREGISTERED); // else it is addressed
    const uint64_t address = place->at;
    const size_t bytes = place->bytes;
    size_t done;
    int failed =
        read_process(root->processes[coll_root_rank(comm, rank)], address, bytes, to, &done);
    // The process may run another program by now, and have let its memory be read, or not.
    if (coll_live_ended(&coll_host_of(comm)->root_blocks[rank]->live))
        failed = ESRCH;
    // Where deaths travel, all ranks come to one failure: this rank does not declare its own. A
    // rank that has left is no death, so this rank declares it.
    if (failed == ESRCH && coll_host_of(comm)->send_changes && !coll_host_left(comm, rank))
        return ZERO_AGAIN;
    return failed == 0 ? ZERO_OK
                       : fail_read(comm, request, rank, address + done, bytes - done, failed);
}

/** The most bytes of a view: a group's slices are larger than those that an owner copies to. */
static size_t most_at_a_time(const struct coll_comm *comm)
{
    const struct host_remote_read *root = of(comm->comm_world->root);
    return root->bounces && root->slice < of(comm)->slice ? root->slice : of(comm)->slice;
}

size_t coll_host_piece(const struct coll_comm *comm, const struct coll_request *request,
                       int contributors, size_t element_bytes)
{
    assert(element_bytes > 0 && contributors <= comm->world);
    for (int rank = 0; rank < contributors; rank++) {
        const struct host_place *place =
            &coll_host_descriptor(comm, rank, request->sequence)->source;
        if (!coll_host_addressable(comm, rank, place))
            return (most_at_a_time(comm) / element_bytes) & ~(size_t)1023;
    }
    return SIZE_MAX;
}

zero_result coll_host_view(struct coll_comm *comm, const struct coll_request *request, int rank,
                           const struct host_place *place, size_t first_byte, size_t bytes,
                           const void **at)
{
    if (coll_host_addressable(comm, rank, place)) {
        *at = coll_host_address(comm, rank, place) + first_byte;
        return ZERO_OK;
    }
    struct host_remote_read *remote_read = of(comm);
    unsigned char *piece = remote_read->scratch + (size_t)rank * remote_read->slice;
    *at = piece;
    assert(bytes <= remote_read->slice);
    if (bytes == 0 || remote_read->end[rank] == first_byte + bytes)
        return ZERO_OK;
    const struct host_place part = coll_host_part(place, first_byte, bytes);
    const zero_result result = bring(comm, request, rank, &part, piece, false);
    if (result == ZERO_OK)
        remote_read->end[rank] = first_byte + bytes;
    return result;
}

void coll_host_view_next(struct coll_comm *comm, const struct coll_request *request, int rank,
                         const struct host_place *place, size_t first_byte, size_t bytes)
{
    const struct coll_comm *root = comm->comm_world->root;
    const int owner = coll_root_rank(comm, rank);
    if (!of(root) || !of(root)->bounces || bytes == 0 || coll_host_addressable(comm, rank, place) ||
        reads_itself(comm, rank) || !is_idle(root, owner))
        return;
    const struct host_place part = coll_host_part(place, first_byte, bytes);
    const struct host_read_request what = piece_of(comm, request, rank, &part);
    request_piece(comm, request, owner, &what, NULL);
}

void coll_host_view_ahead(struct coll_comm *comm, const struct coll_request *request,
                          int contributors, size_t first_byte, size_t bytes)
{
    for (int rank = 0; rank < contributors; rank++)
        coll_host_view_next(comm, request, rank,
                            &coll_host_descriptor(comm, rank, request->sequence)->source,
                            first_byte, bytes);
}

void coll_host_forget_views(struct coll_comm *comm)
{
    if (of(comm))
        memset(of(comm)->end, 0, (size_t)comm->world * sizeof *of(comm)->end);
}

zero_result coll_host_read(struct coll_comm *comm, const struct coll_request *request, int rank,
                           const struct host_place *place, size_t bytes, unsigned char *to,
                           size_t *done)
{
    const struct host_remote_read *root = of(comm->comm_world->root);
    const bool copied = coll_host_is_copied(comm, place);
    const size_t most = copied ? MOST_COPIED : reads_itself(comm, rank) ? SIZE_MAX : root->slice;
    zero_result result = ZERO_OK;
    while (*done < bytes && result == ZERO_OK) {
        const size_t size = bytes - *done < most ? bytes - *done : most;
        const struct host_place part = coll_host_part(place, *done, size);
        result = bring(comm, request, rank, &part, to + *done, true);
        if (result == ZERO_OK)
            *done += size;
    }
    return result;
}
