// What copies, and the small operations, byte by byte: counts, shapes, memory. Reductions, which
// have types, are in coll_reduce.c.

#include "tests/unit/coll_checks.h"

#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t counts[] = {0, 1, 3, 15, 16, 17, 255, 4095, 4096, 4097, 65535, 65537, 1048579};

enum {
    COUNTS = sizeof counts / sizeof *counts,
    MOST = 1048579,
    FEW = 4097, /**< longer ones take their time */
    MOST_WORLD = 16,
    GUARD = 8,
};

/** Element i of a rank's contribution: some large, some tiny, so that the order of a sum shows. */
static float value(uint32_t seed, int rank, size_t i)
{
    const uint32_t bits = mix(seed, (uint32_t)rank + 1, (uint32_t)i);
    const float magnitude =
        ldexpf(1.0f + (float)(bits & 0xffff) / 65536.0f, (int)(bits >> 20 & 31));
    return bits >> 31 ? -magnitude : magnitude;
}

/* ------------------------------------------------------------------ what copies */

/** Where a source lies. */
enum from { FROM_ARENA, FROM_PRIVATE, IN_PLACE, FROMS };

/** One of the cases that each operation is tried in. */
struct movement {
    size_t count; /**< bytes */
    enum shape shape;
    size_t shift; /**< of all memory from where it would be aligned */
    enum from from;
    bool to_arena;
    uint32_t seed;
};

enum { MOVEMENTS = SHAPES * 2 * FROMS * 2 };

/** This rank's memory, once in an arena and once not. */
struct memory {
    struct coll_comm *comm;
    unsigned char *arena, *private; /**< 2 * ROOM bytes each: a source, and what is received */
};

enum { ROOM = MOST + 4 * GUARD };

static unsigned char byte_of(const struct movement *m, int from, int to, size_t at)
{
    const uint32_t key = m->seed + (uint32_t)from * 977 + (uint32_t)to * 71993;
    return (unsigned char)(((uint32_t)at * UINT32_C(2654435761) ^ key * UINT32_C(40503)) >> 15);
}

static unsigned char *source_of(const struct memory *memory, const struct movement *m)
{
    return (m->from == FROM_PRIVATE ? memory->private : memory->arena) + m->shift;
}

/** Nothing written there yet. */
static unsigned char *target_of(const struct memory *memory, const struct movement *m)
{
    unsigned char *target = (m->to_arena ? memory->arena : memory->private) + ROOM;
    memset(target, 0xee, m->count + m->shift + GUARD);
    return target;
}

static void write_block(const struct movement *m, int from, int to, unsigned char *at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        at[i] = byte_of(m, from, to, i);
}

static bool check_block(const struct movement *m, int from, int to, const unsigned char *at,
                        size_t count)
{
    bool good = true;
    for (size_t i = 0; i < count; i++)
        good &= at[i] == byte_of(m, from, to, i);
    CHECK(good);
    return true;
}

/** Nothing was written before and behind the target's bytes. */
static bool check_guards(const struct movement *m, const unsigned char *target)
{
    for (size_t i = 0; i < m->shift; i++)
        CHECK(target[i] == 0xee);
    for (size_t i = 0; i < GUARD; i++)
        CHECK(target[m->shift + m->count + i] == 0xee);
    return true;
}

static bool finish(struct coll_comm *comm, struct coll_request *request)
{
    CHECK_OK(comm, coll_wait(comm, request));
    CHECK(coll_complete(request));
    CHECK_OK(comm, coll_drain(comm, request));
    CHECK(coll_drained(comm, request) && coll_complete(request));
    return true;
}

static bool gather_once(const struct memory *memory, const struct movement *m)
{
    struct coll_comm *comm = memory->comm;
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[MOST_WORLD];
    deal_shape(spans, world, m->count, m->shape, m->shift);
    unsigned char *out = target_of(memory, m);
    unsigned char *source = m->from == IN_PLACE ? out + spans[rank].offset : source_of(memory, m);
    write_block(m, rank, 0, source, spans[rank].count);

    struct coll_request request = {0};
    const struct coll_all_gather op = {.source = source,
                                       .recv = out,
                                       .spans = spans,
                                       .label = {.what = "gather", .number = m->seed}};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    CHECK(finish(comm, &request));
    for (int r = 0; r < world; r++)
        CHECK(check_block(m, r, 0, out + spans[r].offset, spans[r].count));
    return check_guards(m, out);
}

static bool broadcast_once(const struct memory *memory, const struct movement *m)
{
    struct coll_comm *comm = memory->comm;
    const int rank = coll_rank(comm), root = (int)(m->seed % (uint32_t)coll_world(comm));
    struct movement mine = *m;
    mine.to_arena = rank == root ? m->from == FROM_ARENA : m->to_arena;
    unsigned char *out = target_of(memory, &mine);
    if (rank == root)
        write_block(m, root, 0, out + m->shift, m->count);

    struct coll_request request = {0};
    const struct coll_bulk_broadcast op = {
        .data = out + m->shift, .bytes = m->count, .root = root, .label = {.what = "broadcast"}};
    CHECK_OK(comm, coll_broadcast_start(comm, &op, &request));
    CHECK(finish(comm, &request));
    CHECK(check_block(m, root, 0, out + m->shift, m->count));
    return check_guards(m, out);
}

/** Every rank gives shares of the same sizes, each to other ranks: all receive as much. */
static bool all_to_all_once(const struct memory *memory, const struct movement *m)
{
    struct coll_comm *comm = memory->comm;
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_span shares[MOST_WORLD], send[MOST_WORLD], recv[MOST_WORLD];
    deal_shape(shares, world, m->count, m->shape, 0);
    unsigned char *source = source_of(memory, m), *out = target_of(memory, m);
    size_t at = m->shift;
    for (int r = 0; r < world; r++) {
        send[r] = shares[(rank + r) % world];
        recv[r] = (struct coll_span){at, send[r].count};
        at += recv[r].count;
        write_block(m, rank, r, source + send[r].offset, send[r].count);
    }

    struct coll_request request = {0};
    const struct coll_all_to_all op = {.source = source,
                                       .recv = out,
                                       .send = send,
                                       .recv_spans = recv,
                                       .label = {.what = "exchange", .number = m->seed}};
    CHECK_OK(comm, coll_all_to_all_start(comm, &op, &request));
    CHECK(finish(comm, &request));
    for (int r = 0; r < world; r++)
        CHECK(check_block(m, r, rank, out + recv[r].offset, recv[r].count));
    return check_guards(m, out);
}

/** Whether a case is in the thinned matrix: of long counts a few, of the longest with few ranks. */
static bool thinned(const struct memory *memory, const struct movement *m, int number)
{
    return m->count <= FEW ||
           (number % 13 == 0 && (m->count < MOST || coll_world(memory->comm) <= 3));
}

/** One count in all cases, or in those of the thinned matrix. */
static bool move_count(const struct memory *memory, int number, bool whole)
{
    for (int i = 0; i < MOVEMENTS; i++) {
        const struct movement m = {
            .count = counts[number],
            .shape = (enum shape)(i % SHAPES),
            .shift = (size_t)(i / SHAPES % 2),
            .from = (enum from)(i / SHAPES / 2 % FROMS),
            .to_arena = i / SHAPES / 2 / FROMS != 0,
            .seed = (uint32_t)(number * MOVEMENTS + i),
        };
        if (!whole && (!test_takes(number + i) || !thinned(memory, &m, i + 5 * number)))
            continue;
        if (!gather_once(memory, &m) || !broadcast_once(memory, &m) ||
            (m.from != IN_PLACE && !all_to_all_once(memory, &m))) {
            fprintf(stderr, "%zu bytes, shape %d, shift %zu, from %d, to %d\n", m.count,
                    (int)m.shape, m.shift, (int)m.from, (int)m.to_arena);
            return false;
        }
    }
    return true;
}

bool check_copies(struct coll_comm *comm, void *user)
{
    const bool whole = user && *(const bool *)user;
    struct coll_arena *arena;
    struct base_error error;
    CHECK_OK(comm, coll_arena_create(comm, 2 * (size_t)ROOM, &arena, &error));
    struct memory memory = {comm, coll_arena_base(arena), malloc(2 * (size_t)ROOM)};
    bool good = memory.private != NULL;
    for (int c = 0; c < COUNTS && good; c++)
        good = move_count(&memory, c, whole);
    // No rank frees what a peer still reads.
    good = good && rank_ok(comm, coll_barrier(comm), "coll_barrier");
    free(memory.private);
    return good;
}

/* ------------------------------------------------------------------ small operations */

static bool exchange_once(struct coll_comm *comm, size_t bytes)
{
    const int rank = coll_rank(comm), world = coll_world(comm);
    unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)world + 1);
    bool good = mine && all;
    for (size_t i = 0; good && i < bytes; i++)
        mine[i] = (unsigned char)mix((uint32_t)bytes, (uint32_t)rank, (uint32_t)i);
    good = good && rank_ok(comm, coll_exchange(comm, mine, bytes, all), "coll_exchange");
    for (int r = 0; r < world; r++)
        for (size_t i = 0; good && i < bytes; i++)
            good = all[(size_t)r * bytes + i] ==
                   (unsigned char)mix((uint32_t)bytes, (uint32_t)r, (uint32_t)i);
    const int root = (int)(bytes % (size_t)world);
    good = good && rank_ok(comm, coll_broadcast(comm, mine, bytes, root), "coll_broadcast");
    for (size_t i = 0; good && i < bytes; i++)
        good = mine[i] == (unsigned char)mix((uint32_t)bytes, (uint32_t)root, (uint32_t)i);
    free(mine);
    free(all);
    CHECK(good);
    return true;
}

static bool all_reduce_once(struct coll_comm *comm, size_t count, enum base_op op)
{
    const int world = coll_world(comm);
    double *values = malloc((count + 1) * sizeof *values);
    CHECK(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (double)value(7, coll_rank(comm), i);
    bool good = rank_ok(comm, coll_all_reduce(comm, values, count, op), "coll_all_reduce");
    for (size_t i = 0; i < count && good; i++) {
        double expected = (double)value(7, 0, i);
        for (int r = 1; r < world; r++) {
            const double theirs = (double)value(7, r, i);
            expected = op == BASE_SUM                            ? expected + theirs
                       : (theirs < expected) == (op == BASE_MIN) ? theirs
                                                                 : expected;
        }
        good = memcmp(&values[i], &expected, sizeof expected) == 0;
    }
    free(values);
    CHECK(good);
    return true;
}

bool check_small_operations(struct coll_comm *comm, void *user)
{
    (void)user;
    const size_t sizes[] = {0, 1, 8, 63, 4096, 65535, 65536, 65537, 300000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK(!test_takes((int)i + coll_world(comm)) || exchange_once(comm, sizes[i]));
    for (int op = BASE_SUM; op <= BASE_MAX; op++)
        for (size_t count = 0; count < 30000; count = count * 5 + 1)
            CHECK(all_reduce_once(comm, count, (enum base_op)op));
    for (int i = 0; i < 1000; i++)
        CHECK_OK(comm, coll_barrier(comm));
    double nan_on_one[2] = {coll_rank(comm) == 0 ? NAN : 1.0, coll_rank(comm) == 0 ? 2.0 : NAN};
    CHECK_OK(comm, coll_all_reduce(comm, nan_on_one, 2, BASE_MAX));
    CHECK(isnan(nan_on_one[0]) && (isnan(nan_on_one[1]) || coll_world(comm) == 1));
    return true;
}
