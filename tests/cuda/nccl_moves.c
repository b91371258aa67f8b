#include "tests/cuda/nccl_inner.h"

#include "base/bfloat16.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct nccl_seat *seat_of(const struct ncclComm *comm)
{
    return &comm->region->seats[comm->rank];
}

/* ------------------------------------------------------------------ waiting */

// Until it is aborted; false.
static bool stay(const struct ncclComm *comm)
{
    while (!atomic_load(&comm->aborted))
        nccl_region_sleep(comm->region, atomic_load(&comm->region->bell));
    return false;
}

static bool is_turn(const struct ncclComm *comm, uint32_t number)
{
    return atomic_load(&comm->over) == number;
}

static bool are_there(const struct ncclComm *comm, uint32_t pieces)
{
    for (int r = 0; r < comm->ranks; r++)
        if ((int32_t)(atomic_load(&comm->region->seats[r].pieces) - pieces) < 0)
            return false;
    return true;
}

// Whether it came to be; otherwise it is aborted.
static bool await(const struct ncclComm *comm, bool (*is)(const struct ncclComm *, uint32_t),
                  uint32_t number)
{
    for (;;) {
        const uint32_t bell = atomic_load(&comm->region->bell);
        if (atomic_load(&comm->aborted))
            return false;
        if (atomic_load(&comm->failure) == ncclSuccess && is(comm, number))
            return true;
        nccl_region_sleep(comm->region, bell);
    }
}

static void take_time(struct ncclComm *comm)
{
    if (comm->faults.delay_us == 0)
        return;
    comm->chance = comm->chance * 1664525 + 1013904223;
    const uint32_t us = (comm->chance >> 8) % (comm->faults.delay_us + 1);
    nanosleep(&(struct timespec){us / 1000000, (long)(us % 1000000) * 1000}, NULL);
}

/* ------------------------------------------------------------------ arithmetic */

// NOLINTBEGIN(bugprone-macro-parentheses): a type
#define FOLD(name, type, expression)                                                               \
    static void name(void *into, const void *other, size_t count)                                  \
    {                                                                                              \
        type *a = into;                                                                            \
        const type *b = other;                                                                     \
        for (size_t i = 0; i < count; i++)                                                         \
            a[i] = (expression);                                                                   \
    }
// NOLINTEND(bugprone-macro-parentheses)

FOLD(sum_u64, uint64_t, a[i] + b[i]) // of int64 too
FOLD(sum_f32, float, a[i] + b[i])
FOLD(sum_f64, double, a[i] + b[i])
FOLD(sum_f16, uint16_t, base_f16_from_f32(base_f32_from_f16(a[i]) + base_f32_from_f16(b[i])))
FOLD(sum_bf16, uint16_t, base_bf16_from_f32(base_f32_from_bf16(a[i]) + base_f32_from_bf16(b[i])))
FOLD(max_i64, int64_t, a[i] > b[i] ? a[i] : b[i])
FOLD(min_i64, int64_t, a[i] < b[i] ? a[i] : b[i])

static void fold(const struct nccl_signature *what, void *into, const void *other, size_t bytes)
{
    static void (*const sums[ncclNumTypes])(void *, const void *, size_t) = {
        [ncclInt64] = sum_u64,   [ncclUint64] = sum_u64,  [ncclFloat16] = sum_f16,
        [ncclFloat32] = sum_f32, [ncclFloat64] = sum_f64, [ncclBfloat16] = sum_bf16,
    };
    const size_t count = bytes / nccl_type_bytes(what->type);
    if (what->reduction == ncclMax)
        max_i64(into, other, count);
    else if (what->reduction == ncclMin)
        min_i64(into, other, count);
    else
        sums[what->type](into, other, count);
}

/* ------------------------------------------------------------------ collectives */

// A piece of each rank's: from `at` on, so many bytes, of each block.
struct piece {
    uint32_t number;
    size_t at, bytes;
};

static const char *peers_piece(const struct ncclComm *comm, int rank, const struct piece *piece)
{
    return comm->region->seats[rank].piece[piece->number % 2];
}

static const struct nccl_signature *peers_signature(const struct ncclComm *comm, int rank,
                                                    const struct piece *piece)
{
    return &comm->region->seats[rank].signature[piece->number % 2];
}

static void post(const struct ncclComm *comm, const struct nccl_operation *operation,
                 const struct piece *piece)
{
    struct nccl_seat *seat = seat_of(comm);
    char *to = seat->piece[piece->number % 2];
    const size_t block = operation->what.count * nccl_type_bytes(operation->what.type);
    const int blocks = operation->what.kind == REDUCE_SCATTER ? comm->ranks : 1;
    const bool has = operation->what.kind != BROADCAST || operation->what.root == comm->rank;
    seat->signature[piece->number % 2] = operation->what;
    for (int b = 0; has && piece->bytes > 0 && b < blocks; b++)
        memcpy(to + (size_t)b * piece->bytes, operation->from + (size_t)b * block + piece->at,
               piece->bytes);
    atomic_store(&seat->pieces, piece->number + 1);
    nccl_region_ring(comm->region);
}

static void take(const struct ncclComm *comm, const struct nccl_operation *operation,
                 const struct piece *piece)
{
    const int ranks = comm->ranks;
    const size_t block = operation->what.count * nccl_type_bytes(operation->what.type);
    if (operation->what.kind == REDUCE && comm->rank != operation->what.root)
        return;
    char *to = operation->to + piece->at;
    switch (operation->what.kind) {
    case ALL_GATHER:
        for (int r = 0; r < ranks; r++)
            if (operation->to + (size_t)r * block != operation->from) // else it is only read
                memcpy(to + (size_t)r * block, peers_piece(comm, r, piece), piece->bytes);
        break;
    case BROADCAST:
        if (comm->rank != operation->what.root || operation->to != operation->from)
            memcpy(to, peers_piece(comm, operation->what.root, piece), piece->bytes);
        break;
    case ALL_REDUCE:
        memcpy(to, peers_piece(comm, 0, piece), piece->bytes);
        for (int r = 1; r < ranks; r++)
            fold(&operation->what, to, peers_piece(comm, r, piece), piece->bytes);
        break;
    default: { // REDUCE_SCATTER, REDUCE: the block goes round the ring, and ends here
        const size_t mine = operation->what.kind == REDUCE ? 0 : (size_t)comm->rank * piece->bytes;
        memcpy(to, peers_piece(comm, (comm->rank + 1) % ranks, piece) + mine, piece->bytes);
        for (int r = 2; r <= ranks; r++)
            fold(&operation->what, to, peers_piece(comm, (comm->rank + r) % ranks, piece) + mine,
                 piece->bytes);
    }
    }
}

static void describe(const struct nccl_signature *what, char *text, size_t bytes)
{
    static const char *const names[] = {"all-gather", "all-reduce", "reduce-scatter", "broadcast",
                                        "reduce"};
    snprintf(text, bytes, "%s of %llu, type %d, operation %d, root %d%s", names[what->kind],
             (unsigned long long)what->count, what->type, what->reduction, what->root,
             what->registered ? ", registered" : "");
}

static bool fits(struct ncclComm *comm, const struct nccl_operation *operation,
                 const struct piece *piece)
{
    for (int r = 0; r < comm->ranks; r++) {
        const struct nccl_signature *theirs = peers_signature(comm, r, piece);
        if (memcmp(theirs, &operation->what, sizeof *theirs) == 0)
            continue;
        char here[96], there[96];
        describe(&operation->what, here, sizeof here);
        describe(theirs, there, sizeof there);
        nccl_refuse(comm, ncclInvalidUsage, "operation %u of rank %d is %s, but rank %d's is %s",
                    operation->number, comm->rank, here, r, there);
        return false;
    }
    return true;
}

static bool do_collective(struct ncclComm *comm, const struct nccl_operation *operation)
{
    const size_t block = operation->what.count * nccl_type_bytes(operation->what.type);
    const size_t blocks = operation->what.kind == REDUCE_SCATTER ? (size_t)comm->ranks : 1;
    const size_t most = NCCL_PIECE / blocks / 16 * 16;
    size_t at = 0;
    do {
        const struct piece piece = {
            .number = atomic_load(&seat_of(comm)->pieces),
            .at = at,
            .bytes = block - at < most ? block - at : most,
        };
        take_time(comm);
        post(comm, operation, &piece);
        if (!await(comm, are_there, piece.number + 1))
            return false;
        if (!fits(comm, operation, &piece))
            return stay(comm);
        if (piece.bytes > 0)
            take(comm, operation, &piece);
        at += piece.bytes;
    } while (at < block);
    return true;
}

/* ------------------------------------------------------------------ messages */

static bool is_message(const struct nccl_operation *operation)
{
    return operation->what.kind == SEND || operation->what.kind == RECEIVE;
}

// Whether anything was moved.
static bool send_some(const struct ncclComm *comm, struct nccl_operation *operation)
{
    struct nccl_channel *channel = &comm->region->channels[comm->rank][operation->what.root];
    const size_t bytes = operation->what.count * nccl_type_bytes(operation->what.type);
    const uint32_t sent = atomic_load(&channel->sent);
    if (atomic_load(&channel->taken) != sent)
        return false;
    if (operation->begun && operation->moved == bytes) {
        operation->done = true;
        return true;
    }
    const size_t rest = bytes - operation->moved;
    const size_t piece = rest < NCCL_PIECE ? rest : NCCL_PIECE;
    if (!operation->begun) {
        channel->bytes = bytes;
        channel->type = operation->what.type;
        channel->registered = operation->what.registered;
        operation->begun = true;
    }
    if (piece > 0)
        memcpy(channel->piece, operation->from + operation->moved, piece);
    operation->moved += piece;
    atomic_store(&channel->sent, sent + 1);
    nccl_region_ring(comm->region);
    return true;
}

static bool receive_some(struct ncclComm *comm, struct nccl_operation *operation)
{
    struct nccl_channel *channel = &comm->region->channels[operation->what.root][comm->rank];
    const size_t bytes = operation->what.count * nccl_type_bytes(operation->what.type);
    const uint32_t taken = atomic_load(&channel->taken);
    if (atomic_load(&channel->sent) == taken)
        return false;
    if (!operation->begun && (channel->bytes != bytes || channel->type != operation->what.type ||
                              channel->registered != operation->what.registered)) {
        atomic_store(&channel->misfit, 1);
        nccl_region_ring(comm->region);
        nccl_refuse(comm, ncclInvalidUsage,
                    "rank %d receives %zu bytes of type %d from rank %d, which sends %llu of %d%s",
                    comm->rank, bytes, operation->what.type, operation->what.root,
                    (unsigned long long)channel->bytes, channel->type,
                    channel->registered != operation->what.registered
                        ? ", and only one's memory is registered"
                        : "");
        return false;
    }
    operation->begun = true;
    const size_t rest = bytes - operation->moved;
    const size_t piece = rest < NCCL_PIECE ? rest : NCCL_PIECE;
    if (piece > 0)
        memcpy(operation->to + operation->moved, channel->piece, piece);
    operation->moved += piece;
    operation->done = operation->moved == bytes;
    if (operation->done)
        atomic_fetch_add(&channel->received, 1);
    atomic_store(&channel->taken, taken + 1);
    nccl_region_ring(comm->region);
    return true;
}

// An earlier one of the launch goes the same way.
static bool has_to_wait(const struct nccl_launch *launch, size_t number)
{
    const struct nccl_operation *operation = &launch->operations[number];
    for (size_t i = 0; i < number; i++)
        if (!launch->operations[i].done &&
            launch->operations[i].what.kind == operation->what.kind &&
            launch->operations[i].what.root == operation->what.root)
            return true;
    return false;
}

/* What a rank waits for outside of a group: bit 63: for anything; bit 62: it sends; from bit 32:
 * the other rank; below: the message's number. */

static const uint64_t waits = UINT64_C(1) << 63, sends = UINT64_C(1) << 62;

static int other_of(uint64_t lone)
{
    return (int)(lone >> 32 & 0xff);
}

// Whether it still waits: no rank has received the message.
static bool is_waiting(const struct nccl_region *region, int rank, uint64_t lone)
{
    const int other = other_of(lone);
    const struct nccl_channel *channel =
        lone & sends ? &region->channels[rank][other] : &region->channels[other][rank];
    return (lone & waits) && atomic_load(&channel->received) == (uint32_t)lone;
}

// Whether a rank waits for one that waits for one ... that waits for one of these, and none of two
// sends what the other receives. All are read twice, so that there was a time when all of it was
// so.
static bool is_stuck(const struct ncclComm *comm)
{
    const struct nccl_region *region = comm->region;
    uint64_t seen[NCCL_MOST_RANKS] = {0};
    int rank = comm->rank;
    while (seen[rank] == 0) {
        seen[rank] = atomic_load(&region->seats[rank].lone);
        if (!is_waiting(region, rank, seen[rank]))
            return false;
        const int other = other_of(seen[rank]);
        const uint64_t theirs = atomic_load(&region->seats[other].lone);
        if (other_of(theirs) == rank && ((theirs ^ seen[rank]) & sends))
            return false;
        rank = other;
    }
    for (int r = 0; r < comm->ranks; r++)
        if (seen[r] != 0 &&
            (atomic_load(&region->seats[r].lone) != seen[r] || !is_waiting(region, r, seen[r])))
            return false;
    return true;
}

// Whether nothing came between: otherwise it has failed.
static bool may_go_on(struct ncclComm *comm, const struct nccl_launch *launch)
{
    for (size_t i = 0; i < launch->count; i++) {
        const struct nccl_operation *operation = &launch->operations[i];
        if (operation->what.kind == SEND &&
            atomic_load(&comm->region->channels[comm->rank][operation->what.root].misfit))
            nccl_refuse(comm, ncclInvalidUsage, "rank %d sends what rank %d does not receive so",
                        comm->rank, operation->what.root);
    }
    if (!launch->grouped && is_stuck(comm))
        nccl_refuse(comm, ncclInvalidUsage,
                    "rank %d sends or receives outside of a group, and waits for ever", comm->rank);
    return atomic_load(&comm->failure) == ncclSuccess && !atomic_load(&comm->aborted);
}

// Whether there is no message left; `moved` if there was any that could go on.
static bool move_messages(struct nccl_launch *launch, bool *moved)
{
    bool all = true;
    *moved = false;
    for (size_t i = 0; i < launch->count; i++) {
        struct nccl_operation *operation = &launch->operations[i];
        if (!is_message(operation) || operation->done)
            continue;
        all = false;
        if (!has_to_wait(launch, i) &&
            (operation->what.kind == SEND ? send_some(launch->comm, operation)
                                          : receive_some(launch->comm, operation)))
            *moved = true;
    }
    return all;
}

static bool do_messages(struct nccl_launch *launch)
{
    struct ncclComm *comm = launch->comm;
    const struct nccl_operation *first = &launch->operations[0];
    const bool lone = !launch->grouped && is_message(first);
    _Atomic uint64_t *says = &seat_of(comm)->lone;
    if (lone)
        atomic_store(says, waits | (first->what.kind == SEND ? sends : 0) |
                               (uint64_t)first->what.root << 32 | first->message);
    bool moved;
    uint32_t bell = atomic_load(&comm->region->bell);
    while (!move_messages(launch, &moved)) {
        if (!may_go_on(comm, launch))
            return stay(comm);
        if (moved)
            take_time(comm);
        else
            nccl_region_sleep(comm->region, bell);
        bell = atomic_load(&comm->region->bell);
    }
    if (lone)
        atomic_store(says, 0);
    return true;
}

/* ------------------------------------------------------------------ launches */

// Whether there is nothing that is to go wrong with it.
static bool begins(struct ncclComm *comm, const struct nccl_launch *launch)
{
    const struct nccl_faults *faults = &comm->faults;
    for (size_t i = 0; i < launch->count; i++) {
        const unsigned number = launch->operations[i].number;
        if (number == faults->error)
            nccl_fail(comm, (ncclResult_t)faults->status);
        if (number == faults->error || number == faults->never)
            return stay(comm);
    }
    take_time(comm);
    return true;
}

void nccl_perform(void *user)
{
    struct nccl_launch *launch = user;
    struct ncclComm *comm = launch->comm;
    bool done = await(comm, is_turn, launch->number) && begins(comm, launch) && do_messages(launch);
    for (size_t i = 0; done && i < launch->count; i++)
        if (!is_message(&launch->operations[i]))
            done = do_collective(comm, &launch->operations[i]);
    if (done)
        atomic_fetch_add(&comm->over, 1);
    nccl_region_ring(comm->region);
    nccl_drop(comm);
    free(launch);
}
