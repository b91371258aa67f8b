#include "collectives/transport/direct.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/futex.h"

#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

/** How far the oldest request is with one peer. */
enum direct_meeting {
    NOT_MET,
    MET,  /**< it has posted the same operation */
    DONE, /**< and nothing more is to be done with it: its block is copied, or it was reported */
};

static struct direct *direct_of(const struct coll_comm *comm)
{
    return comm->link;
}

static struct direct_block *own_block(const struct coll_comm *comm)
{
    return direct_of(comm)->blocks[comm->rank];
}

/* ------------------------------------------------------------------ joining and leaving */

zero_result coll_direct_init(struct direct *direct, struct coll_comm *comm, bool shared,
                             struct base_error *error)
{
    const size_t world = (size_t)comm->world;
    direct->shared = shared;
    direct->kernels = coll_sum_best();
    direct->blocks = base_calloc(world, sizeof *direct->blocks);
    direct->met = base_calloc(world, sizeof *direct->met);
    direct->sources = base_calloc(world, sizeof *direct->sources);
    if (!direct->blocks || !direct->met || !direct->sources)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for tables of %d ranks",
                         comm->name, comm->world);
    comm->counters.memory_bytes +=
        sizeof(struct direct_block) +
        world * (sizeof *direct->blocks + sizeof *direct->met + sizeof *direct->sources);
    return ZERO_OK;
}

void coll_direct_free(struct direct *direct)
{
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
    const struct direct *direct = direct_of(comm);
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
    comm->poison = &direct_of(comm)->blocks[0]->poison;
    // Measured: a peer that runs comes within two microseconds, which is what 50 rounds take. One
    // that doesn't run needs this processor, perhaps, and comes within microseconds of a yield.
    comm->spins = comm->world > usable_cpus(comm) ? 4 : 50;
    comm->yields = 200;
}

void coll_direct_leave(struct coll_comm *comm)
{
    atomic_store(&own_block(comm)->consumed, DIRECT_GONE);
    coll_direct_wake(comm);
}

bool coll_direct_left(const struct coll_comm *comm, int rank)
{
    return atomic_load(&direct_of(comm)->blocks[rank]->consumed) == DIRECT_GONE;
}

/* ------------------------------------------------------------------ sleeping and waking */

// `posted`, `consumed` and `asleep` are stored and loaded sequentially consistent: either the
// sleeper sees what was changed before it sleeps, or who changed it sees that it sleeps.

void coll_direct_wake(struct coll_comm *comm)
{
    const struct direct *direct = direct_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        _Atomic uint32_t *asleep = &direct->blocks[rank]->asleep;
        if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0)
            base_futex_wake(asleep, INT_MAX, direct->shared);
    }
}

void coll_direct_sleep_begin(struct coll_comm *comm)
{
    atomic_store(&own_block(comm)->asleep, 1);
}

void coll_direct_sleep(struct coll_comm *comm, uint64_t timeout_ns)
{
    _Atomic uint32_t *asleep = &own_block(comm)->asleep;
    base_futex_wait(asleep, 1, timeout_ns, direct_of(comm)->shared);
    atomic_store(asleep, 0);
}

void coll_direct_sleep_end(struct coll_comm *comm)
{
    atomic_store(&own_block(comm)->asleep, 0);
}

/* ------------------------------------------------------------------ posting */

static struct direct_descriptor *descriptor(const struct coll_comm *comm, int rank,
                                            uint64_t sequence)
{
    return &direct_of(comm)->blocks[rank]->ring[sequence % DIRECT_RING];
}

static bool has_posted(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    return atomic_load(&direct_of(comm)->blocks[rank]->posted) > sequence;
}

static bool has_consumed(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    return atomic_load(&direct_of(comm)->blocks[rank]->consumed) > sequence;
}

/** Whether `rank` can't look at the ring's entry for `sequence` as what it was before. */
static bool has_room(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    return sequence < DIRECT_RING || has_consumed(comm, rank, sequence - DIRECT_RING);
}

zero_result coll_direct_start(struct coll_comm *comm, struct coll_request *request)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (!has_room(comm, rank, request->sequence))
            return ZERO_AGAIN;
    struct direct_descriptor *own = descriptor(comm, comm->rank, request->sequence);
    coll_signature_make(&own->signature, comm, request);
    own->arena = 0;
    own->offset = 0;
    if (request->kind == COLL_ALL_GATHER) {
        const struct coll_all_gather *op = &request->op.all_gather;
        own->arena = op->arena ? op->arena->id : 0;
        own->offset = op->offset;
    } else if (request->kind == COLL_REDUCE_SCATTER) {
        const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
        own->arena = op->arena ? op->arena->id : 0;
        own->offset = op->offset;
    } else {
        const struct coll_small *small = (const struct coll_small *)request;
        own->offset = (uint64_t)small->slot;
        if (small->in)
            memcpy(own_block(comm)->slots[small->slot], small->in, small->bytes);
    }
    atomic_store(&own_block(comm)->posted, request->sequence + 1);
    coll_direct_wake(comm);
    return ZERO_OK;
}

/** ZERO_OK if `rank` has posted the oldest request, ZERO_AGAIN if not yet; fails if it has posted
 * something else in its place. */
static zero_result meet(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    struct direct *direct = direct_of(comm);
    if (direct->met[rank] != NOT_MET)
        return ZERO_OK;
    if (!has_posted(comm, rank, request->sequence))
        return ZERO_AGAIN;
    const struct coll_signature *mine = &descriptor(comm, comm->rank, request->sequence)->signature;
    const struct coll_signature *theirs = &descriptor(comm, rank, request->sequence)->signature;
    if (!coll_signature_equal(mine, theirs)) {
        char my_text[COLL_TEXT_BYTES], their_text[COLL_TEXT_BYTES];
        coll_signature_text(mine, request->sequence, my_text);
        coll_signature_text(theirs, request->sequence, their_text);
        return coll_fail(comm, ZERO_E_DIVERGED, "rank %d called %s, rank %d called %s%s",
                         comm->rank, my_text, rank, their_text,
                         coll_signature_difference(mine, theirs));
    }
    direct->met[rank] = MET;
    return ZERO_OK;
}

/** meet() for ranks 0 .. count-1. */
static zero_result meet_all(struct coll_comm *comm, const struct coll_request *request, int count)
{
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < count && result >= 0; rank++) {
        const zero_result met = meet(comm, request, rank);
        if (met != ZERO_OK)
            result = met;
    }
    return result;
}

/** The source of `rank` for a bulk operation. */
static const unsigned char *source_of(const struct coll_comm *comm,
                                      const struct coll_request *request, int rank)
{
    const struct direct_descriptor *posted = descriptor(comm, rank, request->sequence);
    assert(posted->arena < comm->arena_count);
    const struct coll_arena *arena = comm->arenas[posted->arena];
    assert(posted->offset <= arena->peer_bytes[rank]);
    return arena->peers[rank] + posted->offset;
}

/** The bytes of `rank` for a small operation. */
static const unsigned char *slot_of(const struct coll_comm *comm,
                                    const struct coll_request *request, int rank)
{
    const struct direct_descriptor *posted = descriptor(comm, rank, request->sequence);
    return direct_of(comm)->blocks[rank]->slots[posted->offset % COLL_SMALL_SLOTS];
}

/* ------------------------------------------------------------------ the operations */

// Each works on the oldest request as far as it can: ZERO_OK when the result is complete.

static zero_result advance_all_gather(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    unsigned char *met = direct_of(comm)->met;
    zero_result result = ZERO_OK;
    // Everybody starts with its own block and goes round, so that not all read the same one.
    for (int i = 0; i < comm->world; i++) {
        const int rank = (comm->rank + i) % comm->world;
        const struct coll_span *span = &op->spans[rank];
        if (met[rank] == DONE || span->count == 0)
            continue;
        const zero_result arrived = meet(comm, request, rank);
        if (arrived < 0)
            return arrived;
        if (arrived == ZERO_AGAIN) {
            result = ZERO_AGAIN;
            continue;
        }
        const unsigned char *from = source_of(comm, request, rank);
        unsigned char *to = (unsigned char *)op->recv + span->offset;
        if (from != to)
            memcpy(to, from, span->count);
        if (rank != comm->rank)
            comm->counters.gathered_bytes += span->count;
        met[rank] = DONE;
    }
    return result;
}

/** Names the contributors whose part of a tile is not finite, each for the first time only. */
static void report_nonfinite(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                             size_t first, size_t count)
{
    struct direct *direct = direct_of(comm);
    for (int rank = 0; rank < op->contributors; rank++) {
        if (direct->met[rank] == DONE)
            continue;
        const size_t found = coll_sum_nonfinite(op->dtype, direct->sources[rank], first, count);
        if (found == first + count)
            continue;
        direct->met[rank] = DONE;
        op->nonfinite(op->user, rank, found);
    }
}

static void sum_span(struct coll_comm *comm, const struct coll_reduce_scatter *op, size_t length)
{
    const struct direct *direct = direct_of(comm);
    for (size_t first = 0; first < length; first += COLL_SUM_TILE) {
        const size_t left = length - first;
        const size_t count = left < COLL_SUM_TILE ? left : COLL_SUM_TILE;
        float *sum = op->accumulator + first;
        const bool finite = coll_sum_tile(direct->kernels, op->dtype, sum, direct->sources,
                                          op->contributors, first, count, op->store);
        if (!finite && op->nonfinite)
            report_nonfinite(comm, op, first, count);
        if (op->tile)
            op->tile(op->user, first, count, sum);
    }
}

static zero_result advance_reduce_scatter(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct coll_span *span = &op->spans[comm->rank];
    if (span->count == 0)
        return ZERO_OK;
    const zero_result result = meet_all(comm, request, op->contributors);
    if (result != ZERO_OK)
        return result;
    const size_t size = op->dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
    for (int rank = 0; rank < op->contributors; rank++)
        direct_of(comm)->sources[rank] = source_of(comm, request, rank) + span->offset * size;

    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    sum_span(comm, op, span->count);
    fesetenv(&environment);

    const int peers = op->contributors - (comm->rank < op->contributors);
    comm->counters.reduced_bytes += (uint64_t)peers * span->count * size;
    return ZERO_OK;
}

static zero_result advance_exchange(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    const zero_result result = meet_all(comm, request, comm->world);
    if (result != ZERO_OK || small->bytes == 0)
        return result;
    for (int rank = 0; rank < comm->world; rank++)
        memcpy((unsigned char *)small->out + (size_t)rank * small->stride,
               slot_of(comm, request, rank), small->bytes);
    return ZERO_OK;
}

static double combine(double a, double b, enum coll_op op)
{
    switch (op) {
    case COLL_SUM:
        return a + b;
    case COLL_MIN:
        return b < a || b != b ? b : a;
    case COLL_MAX:
        return b > a || b != b ? b : a;
    }
    return a;
}

static zero_result advance_all_reduce(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    const zero_result result = meet_all(comm, request, comm->world);
    if (result != ZERO_OK)
        return result;
    double *out = small->out;
    const size_t count = small->bytes / sizeof *out;
    memcpy(out, slot_of(comm, request, 0), small->bytes);
    for (int rank = 1; rank < comm->world; rank++) {
        const double *theirs = (const double *)(const void *)slot_of(comm, request, rank);
        for (size_t i = 0; i < count; i++)
            out[i] = combine(out[i], theirs[i], small->op);
    }
    return ZERO_OK;
}

static zero_result advance_broadcast(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    if (comm->rank == small->root)
        return ZERO_OK;
    const zero_result result = meet(comm, request, small->root);
    if (result == ZERO_OK)
        memcpy(small->out, slot_of(comm, request, small->root), small->bytes);
    return result;
}

static zero_result (*const advance[COLL_KINDS])(struct coll_comm *comm,
                                                struct coll_request *request) = {
    [COLL_ALL_GATHER] = advance_all_gather, [COLL_REDUCE_SCATTER] = advance_reduce_scatter,
    [COLL_EXCHANGE] = advance_exchange,     [COLL_ALL_REDUCE] = advance_all_reduce,
    [COLL_BROADCAST] = advance_broadcast,   [COLL_BARRIER] = advance_exchange,
};

zero_result coll_direct_progress(struct coll_comm *comm)
{
    zero_result result = ZERO_AGAIN;
    while (comm->first) {
        struct coll_request *request = comm->first;
        const zero_result advanced = advance[request->kind](comm, request);
        if (advanced < 0)
            return advanced;
        if (advanced == ZERO_AGAIN)
            break;
        coll_retire(comm);
        memset(direct_of(comm)->met, NOT_MET, (size_t)comm->world);
        atomic_store(&own_block(comm)->consumed, request->sequence + 1);
        coll_direct_wake(comm);
        result = ZERO_OK;
    }
    return result;
}

/* ------------------------------------------------------------------ who waits for whom */

/** Whether `reader` reads what `owner` has posted for the request. */
static bool reads(const struct coll_request *request, int reader, int owner)
{
    switch ((enum coll_kind)request->kind) {
    case COLL_ALL_GATHER:
        return request->op.all_gather.spans[owner].count > 0;
    case COLL_REDUCE_SCATTER:
        return owner < request->op.reduce_scatter.contributors &&
               request->op.reduce_scatter.spans[reader].count > 0;
    case COLL_BROADCAST:
        return owner == ((const struct coll_small *)request)->root;
    default:
        return true;
    }
}

bool coll_direct_drained(const struct coll_comm *comm, const struct coll_request *request)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank && reads(request, rank, comm->rank) &&
            !has_consumed(comm, rank, request->sequence))
            return false;
    return true;
}

enum coll_presence coll_direct_presence(const struct coll_comm *comm,
                                        const struct coll_request *request, enum coll_goal goal,
                                        int rank)
{
    // A rank that leaves says so after everything else: what it says first is looked at last.
    const bool left = coll_direct_left(comm, rank);
    bool absent = false;
    switch (goal) {
    case COLL_GOAL_COMPLETE:
        absent =
            reads(comm->first, comm->rank, rank) && !has_posted(comm, rank, comm->first->sequence);
        break;
    case COLL_GOAL_DRAINED:
        absent = rank != comm->rank && reads(request, rank, comm->rank) &&
                 !has_consumed(comm, rank, request->sequence);
        break;
    case COLL_GOAL_ROOM:
        absent = !has_room(comm, rank, request->sequence);
        break;
    }
    return !absent ? COLL_PRESENT : left ? COLL_LEFT : COLL_ABSENT;
}

void coll_direct_last_call(const struct coll_comm *comm, int rank, char *text, size_t size)
{
    const uint64_t posted = atomic_load(&direct_of(comm)->blocks[rank]->posted);
    char call[COLL_TEXT_BYTES] = "none";
    if (posted > 0)
        coll_signature_text(&descriptor(comm, rank, posted - 1)->signature, posted - 1, call);
    snprintf(text, size, "%s", call);
}
