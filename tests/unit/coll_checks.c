// Every operation against a scalar reference, bit by bit: counts, shapes, types.

#include "tests/unit/coll_checks.h"

#include "base/bfloat16.h"
#include "tests/unit/coll_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t counts[] = {0, 1, 3, 15, 16, 17, 255, 1023, 1024, 1025, 4096, 65537};

enum {
    COUNTS = sizeof counts / sizeof *counts,
    MOST = 65537,
    MOST_WORLD = 16,
    GUARD = 8,
};

/** How a vector is dealt out. */
enum shape { EVEN, UNEVEN, SOME_EMPTY, ALL_ON_LAST, SHAPES };

/** Deals out `count` elements behind `shift` others. */
static void deal(struct coll_span *spans, int world, size_t count, enum shape shape, size_t shift)
{
    size_t at = shift, left = count;
    for (int rank = 0; rank < world; rank++) {
        const bool last = rank == world - 1;
        size_t share = left;
        if (shape == EVEN && !last)
            share = count / (size_t)world;
        else if (shape == UNEVEN && !last)
            share = (left + 1) / 3;
        else if (shape == SOME_EMPTY && !last)
            share = rank % 2 ? 0 : (left + 1) / 2;
        else if (shape == ALL_ON_LAST && !last)
            share = 0;
        spans[rank] = (struct coll_span){.offset = share > 0 ? at : 0, .count = share};
        at += share;
        left -= share;
    }
}

/** Element i of a rank's contribution: some large, some tiny, so that the order of a sum shows. */
static float value(uint32_t seed, int rank, size_t i)
{
    const uint32_t bits = mix(seed, (uint32_t)rank + 1, (uint32_t)i);
    const float magnitude =
        ldexpf(1.0f + (float)(bits & 0xffff) / 65536.0f, (int)(bits >> 20 & 31));
    return bits >> 31 ? -magnitude : magnitude;
}

/* ------------------------------------------------------------------ all-gather */

static bool gather_once(struct coll_comm *comm, struct coll_arena *arena, unsigned char *recv,
                        size_t count, enum shape shape, size_t shift, bool in_place)
{
    const int rank = coll_rank(comm), world = coll_world(comm);
    const uint32_t seed = (uint32_t)(count * 8 + (size_t)shape * 2 + shift);
    struct coll_span spans[MOST_WORLD];
    deal(spans, world, count, shape, shift);
    unsigned char *base = coll_arena_base(arena);
    unsigned char *out = in_place ? base : recv;
    const size_t offset = in_place ? spans[rank].offset : shift;
    memset(out, 0xee, count + shift + GUARD);
    for (size_t i = 0; i < spans[rank].count; i++)
        base[offset + i] = (unsigned char)mix(seed, (uint32_t)rank, (uint32_t)i);

    struct coll_request request = {0};
    const struct coll_all_gather op = {.source = base + offset,
                                       .recv = out,
                                       .spans = spans,
                                       .label = {.what = "gather", .number = seed}};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    CHECK_OK(comm, coll_wait(comm, &request));
    size_t end = shift;
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < spans[r].count; i++, end++)
            CHECK(out[spans[r].offset + i] == (unsigned char)mix(seed, (uint32_t)r, (uint32_t)i));
    for (size_t i = 0; i < shift; i++)
        CHECK(out[i] == 0xee);
    for (size_t i = end; i < end + GUARD; i++)
        CHECK(out[i] == 0xee);
    CHECK_OK(comm, coll_drain(comm, &request));
    CHECK(coll_drained(comm, &request));
    return true;
}

bool check_all_gather(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    struct base_error error;
    CHECK_OK(comm, coll_arena_create(comm, MOST + 2 * GUARD, &arena, &error));
    unsigned char *recv = malloc(MOST + 2 * GUARD);
    bool good = recv != NULL;
    for (int c = 0; c < COUNTS && good; c++)
        for (int shape = 0; shape < SHAPES && good; shape++)
            for (size_t shift = 0; shift < 2 && good; shift++) {
                // The long one takes its time: half of the combinations.
                const bool all = counts[c] <= 4096;
                good = ((!all && shift == 0) || gather_once(comm, arena, recv, counts[c],
                                                            (enum shape)shape, shift, false)) &&
                       ((!all && shift == 1) ||
                        gather_once(comm, arena, recv, counts[c], (enum shape)shape, shift, true));
            }
    free(recv);
    return good;
}

/* ------------------------------------------------------------------ reduce-scatter */

struct reduction {
    size_t count;
    enum shape shape;
    size_t shift;
    zero_dtype dtype;
    int contributors;
    bool store;
};

/** What the tile callbacks have seen. */
struct tiles {
    const float *accumulator;
    size_t next;
    size_t bits; /**< sum of the bits of all elements shown */
    bool good;
};

static void see_tile(void *user, size_t first, size_t count, const void *sum)
{
    struct tiles *tiles = user;
    const float *values = sum;
    tiles->good &= first == tiles->next && first % 1024 == 0;
    tiles->next = first + count;
    for (size_t i = 0; i < count; i++)
        tiles->bits += base_f32_bits(values[i]);
}

static void never(void *user, int contributor, size_t element)
{
    (void)contributor;
    (void)element;
    ((struct tiles *)user)->good = false;
}

/** A rank's contribution as its dtype holds it. */
static float sent(const struct reduction *r, uint32_t seed, int rank, size_t i)
{
    const float exact = value(seed, rank, i);
    return r->dtype == ZERO_F32 ? exact : base_f32_from_bf16(base_bf16_from_f32(exact));
}

static void contribute(const struct reduction *r, uint32_t seed, int rank, void *base)
{
    for (size_t i = 0; i < r->count + r->shift; i++) {
        const float exact = value(seed, rank, i);
        if (r->dtype == ZERO_F32)
            ((float *)base)[i] = exact;
        else
            ((uint16_t *)base)[i] = base_bf16_from_f32(exact);
    }
}

static bool check_sums(const struct reduction *r, uint32_t seed, int rank, struct coll_span span,
                       const float *accumulator, const struct tiles *tiles)
{
    size_t bits = 0;
    for (size_t i = 0; i < span.count; i++) {
        const size_t at = span.offset + i;
        float sum =
            r->store ? sent(r, seed, 0, at) : value(seed, 99 + rank, i) + sent(r, seed, 0, at);
        for (int k = 1; k < r->contributors; k++)
            sum += sent(r, seed, k, at);
        CHECK(base_f32_bits(accumulator[i]) == base_f32_bits(sum));
        bits += base_f32_bits(sum);
    }
    CHECK(tiles->good && tiles->next == span.count && tiles->bits == bits);
    return true;
}

static bool reduce_once(struct coll_comm *comm, struct coll_arena *arena, float *memory,
                        const struct reduction *r, uint32_t seed)
{
    const int rank = coll_rank(comm);
    struct coll_span spans[MOST_WORLD];
    deal(spans, coll_world(comm), r->count, r->shape, r->shift);
    const size_t offset = r->shift * 4;
    float *accumulator = memory + GUARD;
    const size_t own = spans[rank].count;
    for (size_t i = 0; i < own + 2 * GUARD; i++)
        memory[i] = 4321.0f;
    for (size_t i = 0; i < own; i++)
        accumulator[i] = value(seed, 99 + rank, i);
    if (rank < r->contributors)
        contribute(r, seed, rank, (unsigned char *)coll_arena_base(arena) + offset);

    struct tiles tiles = {.accumulator = accumulator, .good = true};
    struct coll_request request = {0};
    const struct coll_reduce_scatter op = {.source =
                                               (unsigned char *)coll_arena_base(arena) + offset,
                                           .dtype = r->dtype,
                                           .spans = spans,
                                           .accumulator = accumulator,
                                           .contributors = r->contributors,
                                           .store = r->store,
                                           .tile = see_tile,
                                           .nonfinite = never,
                                           .user = &tiles,
                                           .label = {.what = "reduce", .number = seed}};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &request));
    CHECK_OK(comm, coll_wait(comm, &request));
    CHECK(check_sums(r, seed, rank, spans[rank], accumulator, &tiles));
    for (size_t i = 0; i < GUARD; i++)
        CHECK(memory[i] == 4321.0f && accumulator[own + i] == 4321.0f);
    CHECK_OK(comm, coll_drain(comm, &request));
    return true;
}

static bool reduce_shapes(struct coll_comm *comm, struct coll_arena *arena, float *memory,
                          size_t count, zero_dtype dtype)
{
    const int world = coll_world(comm);
    const int contributors[] = {world, world - 1, 1};
    bool good = true;
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t shift = 0; shift < 2; shift++)
            for (int k = 0; k < (world > 2 ? 3 : world) && good; k++) {
                const uint32_t seed = mix((uint32_t)count, (uint32_t)shape, (uint32_t)shift);
                const struct reduction r = {
                    count, (enum shape)shape, shift,
                    dtype, contributors[k],   (seed + (uint32_t)k) % 2,
                };
                good = (count > 4096 && (size_t)k != shift) ||
                       reduce_once(comm, arena, memory, &r, seed);
            }
    return good;
}

bool check_reduce_scatter(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    struct base_error error;
    CHECK_OK(comm, coll_arena_create(comm, (MOST + 2) * sizeof(float), &arena, &error));
    float *memory = malloc((MOST + 2 * GUARD) * sizeof *memory);
    bool good = memory != NULL;
    for (int c = 0; c < COUNTS && good; c++)
        good = reduce_shapes(comm, arena, memory, counts[c], ZERO_F32) &&
               reduce_shapes(comm, arena, memory, counts[c], ZERO_BF16);
    free(memory);
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

static bool all_reduce_once(struct coll_comm *comm, size_t count, enum coll_op op)
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
            expected = op == COLL_SUM                            ? expected + theirs
                       : (theirs < expected) == (op == COLL_MIN) ? theirs
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
        CHECK(exchange_once(comm, sizes[i]));
    for (int op = COLL_SUM; op <= COLL_MAX; op++)
        for (size_t count = 0; count < 30000; count = count * 5 + 1)
            CHECK(all_reduce_once(comm, count, (enum coll_op)op));
    for (int i = 0; i < 1000; i++)
        CHECK_OK(comm, coll_barrier(comm));
    double nan_on_one[2] = {coll_rank(comm) == 0 ? NAN : 1.0, coll_rank(comm) == 0 ? 2.0 : NAN};
    CHECK_OK(comm, coll_all_reduce(comm, nan_on_one, 2, COLL_MAX));
    CHECK(isnan(nan_on_one[0]) && (isnan(nan_on_one[1]) || coll_world(comm) == 1));
    return true;
}
