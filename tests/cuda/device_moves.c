// Collectives of GPU memory: what is moved is right, bit for bit, in the order of streams.

#include "base/bfloat16.h"
#include "tests/cuda/device_ranks.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SKIPPED = 77,
    BUCKETS = 3,
    LAYOUTS = 8,
    MOST_COUNT = 40000,
    FENCE = 61,
    MOST_BYTES = 2 * DEVICE_RANKS_MOST * (MOST_COUNT + 4 * FENCE) * 4,
};

static const size_t counts[] = {1, 5, 1000, 0, MOST_COUNT};

/* ------------------------------------------------------------------ layouts */

// Which elements of a vector belong to whom; the vector's length.
static size_t lay_out(struct coll_span *spans, int world, int layout, size_t count)
{
    size_t at = layout == 1 ? 3 : 0, end = 0;
    for (int i = 0; i < world; i++) {
        const int r = layout == 2 ? world - 1 - i : i; // backwards
        size_t own = count;
        if (layout == 3) // uneven
            own = count + (size_t)r * 3;
        if (layout == 4 && r != world / 2) // of one rank only
            own = 0;
        if (layout == 5 && r == world - 1) // as units are cut
            own = count / 2;
        if (layout == 6) // no rank's
            own = 0;
        spans[r] = (struct coll_span){at, own};
        end = at + own;
        at = end + (layout == 7 ? 5 : 0); // gaps
    }
    return end;
}

struct bucket {
    struct coll_span spans[DEVICE_RANKS_MOST];
    size_t count, at; // elements of the vector, and where it begins in the buffer
};

struct plan {
    struct bucket buckets[BUCKETS];
    int count;
    size_t size, bytes; // of an element, of the buffer
};

static void make_plan(struct plan *plan, int world, int number, size_t size)
{
    size_t at = FENCE;
    *plan = (struct plan){.count = 1 + number % BUCKETS, .size = size};
    for (int s = 0; s < plan->count; s++) {
        struct bucket *bucket = &plan->buckets[s];
        const int choice = number + 3 * s;
        bucket->count =
            lay_out(bucket->spans, world, choice % LAYOUTS, counts[(size_t)(choice / LAYOUTS) % 5]);
        bucket->at = at;
        at += bucket->count + FENCE;
    }
    plan->bytes = at * size;
}

enum { PLANS = LAYOUTS * 5 };

/* ------------------------------------------------------------------ values */

static void fill(unsigned char *to, size_t bytes, int rank, int number, size_t first)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)mix((uint32_t)rank, (uint32_t)(first + i), (uint32_t)number);
}

struct buffers {
    unsigned char *from, *to; // the GPU's
    unsigned char *host, *expected;
};

static struct buffers buffers_of(struct device_rank *rank)
{
    struct buffers it = {device_rank_memory(rank, MOST_BYTES),
                         device_rank_memory(rank, (size_t)rank->world * MOST_BYTES),
                         malloc((size_t)rank->world * MOST_BYTES),
                         malloc((size_t)rank->world * MOST_BYTES)};
    if (!it.host || !it.expected)
        abort();
    return it;
}

static void forget(struct buffers *it)
{
    free(it->host);
    free(it->expected);
}

// Only events order what is on both sides of the operation.
static bool after_put(struct device_rank *rank, void *to, const struct buffers *it, size_t bytes)
{
    NEED(device_rank_put(rank, to, it->host, bytes));
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK);
    return true;
}

static bool is_as_expected(struct device_rank *rank, struct buffers *it, const void *from,
                           size_t bytes, uint64_t ticket)
{
    NEED(gcomm_before(rank->device, ticket, rank->stream) == ZERO_OK);
    NEED(device_rank_sync(rank)); // of what was put from the same memory
    NEED(device_rank_get(rank, it->host, from, bytes));
    NEED(device_rank_sync(rank));
    NEED(memcmp(it->host, it->expected, bytes) == 0);
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return true;
}

/* ------------------------------------------------------------------ all-gather */

static bool gather(struct device_rank *rank, struct buffers *it, int number)
{
    struct plan plan;
    struct gcomm_gathered buckets[BUCKETS];
    uint64_t ticket;
    make_plan(&plan, rank->world, number, 1);
    memset(it->host, 0x5a, plan.bytes);
    memcpy(it->expected, it->host, plan.bytes);
    for (int s = 0; s < plan.count; s++) {
        const struct bucket *bucket = &plan.buckets[s];
        const struct coll_span own = bucket->spans[rank->rank];
        const bool in_place = (number + s) % 2 == 0;
        for (int r = 0; r < rank->world; r++)
            fill(it->expected + bucket->at + bucket->spans[r].offset, bucket->spans[r].count, r,
                 number, bucket->at);
        fill(it->host + bucket->at + own.offset, own.count, rank->rank, number, bucket->at);
        buckets[s] = (struct gcomm_gathered){
            .source = (in_place ? it->to : it->from) + bucket->at + own.offset,
            .whole = it->to + bucket->at,
            .spans = bucket->spans,
        };
    }
    NEED(device_rank_put(rank, it->from, it->host, plan.bytes));
    NEED(after_put(rank, it->to, it, plan.bytes));
    for (int s = 0; s < plan.count; s++) // what is not in place has to be brought there
        if ((number + s) % 2 != 0)
            NEED(rank->gpu->zero(
                     it->to + plan.buckets[s].at + plan.buckets[s].spans[rank->rank].offset,
                     plan.buckets[s].spans[rank->rank].count, rank->stream, NULL) == ZERO_OK);
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK);
    const struct gcomm_all_gather op = {
        buckets, (size_t)plan.count, {"unit", (uint32_t)number, "gathered"}};
    NEED(gcomm_all_gather(rank->device, &op, &ticket) == ZERO_OK);
    return is_as_expected(rank, it, it->to, plan.bytes, ticket);
}

static bool gathers(struct device_rank *rank)
{
    struct buffers it = buffers_of(rank);
    bool good = true;
    for (int number = 0; number < PLANS && good; number++)
        if (test_takes(number))
            good = gather(rank, &it, number);
    forget(&it);
    return good;
}

/* ------------------------------------------------------------------ to the owners */

static size_t most_owned(const struct bucket *bucket, int world)
{
    size_t most = 0;
    for (int r = 0; r < world; r++)
        most = bucket->spans[r].count > most ? bucket->spans[r].count : most;
    return most;
}

static bool scatter(struct device_rank *rank, struct buffers *it, int number)
{
    struct plan plan;
    struct gcomm_scattered buckets[BUCKETS];
    size_t at = 0;
    uint64_t ticket;
    const int contributors = 1 + number % rank->world;
    make_plan(&plan, rank->world, number, 2);
    fill(it->host, plan.bytes, rank->rank, number, 0);
    NEED(device_rank_put(rank, it->from, it->host, plan.bytes));
    NEED(device_rank_sync(rank)); // the host's memory is used again
    memset(it->expected, 0x5a, (size_t)rank->world * MOST_BYTES);
    for (int s = 0; s < plan.count; s++) {
        const struct bucket *bucket = &plan.buckets[s];
        const struct coll_span own = bucket->spans[rank->rank];
        struct coll_span *spans = plan.buckets[s].spans;
        const size_t stride = 2 * most_owned(bucket, rank->world) + (size_t)(number % 2) * 6;
        for (int k = 0; k < contributors; k++)
            if (k != rank->rank)
                fill(it->expected + at + (size_t)k * stride, own.count * 2, k, number,
                     (bucket->at + own.offset) * 2);
        buckets[s] = (struct gcomm_scattered){
            .source = it->from + bucket->at * 2,
            .received = it->to + at,
            .stride = stride,
            .spans = spans,
        };
        at += (size_t)rank->world * stride + FENCE;
        for (int r = 0; r < rank->world; r++)
            spans[r] = (struct coll_span){2 * spans[r].offset, 2 * spans[r].count};
    }
    memset(it->host, 0x5a, at);
    NEED(after_put(rank, it->to, it, at));
    const struct gcomm_scatter op = {
        buckets, (size_t)plan.count, contributors, {"unit", (uint32_t)number, "scattered"}};
    NEED(gcomm_scatter(rank->device, &op, &ticket) == ZERO_OK);
    return is_as_expected(rank, it, it->to, at, ticket);
}

static bool scatters(struct device_rank *rank)
{
    struct buffers it = buffers_of(rank);
    bool good = true;
    for (int number = 0; number < PLANS && good; number++)
        if (test_takes(number))
            good = scatter(rank, &it, number);
    forget(&it);
    return good;
}

/* ------------------------------------------------------------------ sums */

// Small whole numbers, whose sums are the same in any order.
static void set_value(void *to, zero_dtype dtype, int value)
{
    const float number = (float)value;
    const uint16_t half =
        dtype == ZERO_F16 ? base_f16_from_f32(number) : base_bf16_from_f32(number);
    if (dtype == ZERO_F32)
        memcpy(to, &number, sizeof number);
    else
        memcpy(to, &half, sizeof half);
}

static int value_of(int rank, size_t i, int number)
{
    return (int)(mix((uint32_t)rank, (uint32_t)i, (uint32_t)number) % 16);
}

static bool reduce(struct device_rank *rank, struct buffers *it, int number, zero_dtype dtype)
{
    struct plan plan;
    struct gcomm_reduced buckets[BUCKETS];
    uint64_t ticket;
    const size_t size = dtype == ZERO_F32 ? 4 : 2;
    make_plan(&plan, rank->world, number, size);
    memset(it->host, 0, plan.bytes);
    for (size_t i = 0; i < plan.bytes / size; i++)
        set_value(it->host + i * size, dtype, value_of(rank->rank, i, number));
    memcpy(it->expected, it->host, plan.bytes);
    for (int s = 0; s < plan.count; s++) {
        const struct bucket *bucket = &plan.buckets[s];
        const struct coll_span own = bucket->spans[rank->rank];
        const size_t first = bucket->at + own.offset;
        for (size_t i = first; i < first + own.count; i++) {
            int sum = 0;
            for (int r = 0; r < rank->world; r++)
                sum += value_of(r, i, number);
            set_value(it->expected + i * size, dtype, sum);
        }
        buckets[s] = (struct gcomm_reduced){
            .source = ((number + s) % 2 ? it->from : it->to) + bucket->at * size,
            .sum = it->to + first * size,
            .spans = bucket->spans,
        };
    }
    NEED(device_rank_put(rank, it->from, it->host, plan.bytes));
    NEED(after_put(rank, it->to, it, plan.bytes));
    const struct gcomm_reduce_scatter op = {
        buckets, (size_t)plan.count, dtype, {"unit", (uint32_t)number, "reduced"}};
    NEED(gcomm_reduce_scatter(rank->device, &op, &ticket) == ZERO_OK);
    return is_as_expected(rank, it, it->to, plan.bytes, ticket);
}

static bool reductions(struct device_rank *rank)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    struct buffers it = buffers_of(rank);
    bool good = true;
    for (int number = 0; number < PLANS && good; number++)
        if (test_takes(number))
            good = reduce(rank, &it, number, dtypes[number / TEST_STRIDE % 3]);
    forget(&it);
    return good;
}

/* ------------------------------------------------------------------ small ones */

static bool small(struct device_rank *rank)
{
    struct buffers it = buffers_of(rank);
    const struct coll_label label = {"verdict", 1, NULL};
    uint64_t ticket;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const size_t bytes = counts[c];
        for (int r = 0; r < rank->world; r++)
            fill(it.expected + (size_t)r * bytes, bytes, r, (int)c, 0);
        fill(it.host, bytes, rank->rank, (int)c, 0);
        NEED(after_put(rank, it.from, &it, bytes));
        NEED(gcomm_exchange(rank->device, it.from, bytes, it.to, label, &ticket) == ZERO_OK);
        NEED(is_as_expected(rank, &it, it.to, (size_t)rank->world * bytes, ticket));
        NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
        NEED(coll_state(rank->host, NULL) == ZERO_OK);
    }
    forget(&it);
    return true;
}

// What no rank owns needs no memory.
static bool nothing(struct device_rank *rank)
{
    const struct coll_span spans[DEVICE_RANKS_MOST] = {{0}};
    const struct gcomm_gathered gathered = {NULL, NULL, spans};
    const struct gcomm_scattered scattered = {NULL, NULL, 0, spans};
    const struct gcomm_reduced reduced = {NULL, NULL, spans};
    const struct gcomm_all_gather gather = {.buckets = &gathered, .count = 1};
    const struct gcomm_scatter scatter_it = {&scattered, 1, rank->world, {NULL, 0, NULL}};
    const struct gcomm_reduce_scatter reduce_it = {&reduced, 1, ZERO_BF16, {NULL, 0, NULL}};
    const struct gcomm_all_gather none = {.count = 0};
    uint64_t ticket;
    NEED(gcomm_all_gather(rank->device, &gather, NULL) == ZERO_OK);
    NEED(gcomm_scatter(rank->device, &scatter_it, NULL) == ZERO_OK);
    NEED(gcomm_reduce_scatter(rank->device, &reduce_it, NULL) == ZERO_OK);
    NEED(gcomm_all_gather(rank->device, &none, &ticket) == ZERO_OK && ticket == 4);
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return true;
}

// More than can be under way, each of what the one before has brought.
static bool many(struct device_rank *rank)
{
    enum { MANY = 2 * GCOMM_UNDER_WAY + 40 };
    uint32_t word = (uint32_t)rank->rank, words[DEVICE_RANKS_MOST], expected[DEVICE_RANKS_MOST];
    uint32_t *all = device_rank_memory(rank, (MANY + 1) * sizeof words);
    const struct coll_label label = {NULL, 0, NULL};
    uint64_t first = 0, ticket = 0;
    NEED(device_rank_put(rank, all + rank->rank, &word, sizeof word));
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK);
    for (size_t i = 0; i < MANY; i++) {
        const uint32_t *from = all + i * (size_t)rank->world + (size_t)rank->rank;
        NEED(gcomm_exchange(rank->device, from, sizeof word, all + (i + 1) * (size_t)rank->world,
                            label, first ? &ticket : &first) == ZERO_OK);
        if (ticket > GCOMM_UNDER_WAY)
            NEED(gcomm_wait(rank->device, ticket - GCOMM_UNDER_WAY) == ZERO_OK);
    }
    NEED(gcomm_before(rank->device, first, rank->stream) == ZERO_OK);
    NEED(gcomm_before(rank->device, ticket, rank->stream) == ZERO_OK);
    NEED(gcomm_before(rank->device, 0, rank->stream) == ZERO_OK);
    NEED(device_rank_get(rank, words, all + MANY * (size_t)rank->world,
                         (size_t)rank->world * sizeof word));
    NEED(device_rank_sync(rank));
    for (int r = 0; r < rank->world; r++)
        expected[r] = (uint32_t)r;
    NEED(memcmp(words, expected, (size_t)rank->world * sizeof word) == 0);
    NEED(ticket == MANY && gcomm_wait(rank->device, first) == ZERO_OK);
    return true;
}

// No rank waits but in the end.
static bool closing(struct device_rank *rank)
{
    struct buffers it = buffers_of(rank);
    const size_t whole = (size_t)rank->world * MOST_COUNT;
    for (int r = 0; r < rank->world; r++)
        fill(it.expected + (size_t)r * MOST_COUNT, MOST_COUNT, r, 1, 0);
    fill(it.host, MOST_COUNT, rank->rank, 1, 0);
    NEED(after_put(rank, it.from, &it, MOST_COUNT));
    for (size_t i = 0; i < 3; i++)
        NEED(gcomm_exchange(rank->device, it.from, MOST_COUNT, it.to + i * whole,
                            (struct coll_label){NULL, 0, NULL}, NULL) == ZERO_OK);
    gcomm_close(rank->device);
    rank->device = NULL;
    NEED(device_rank_get(rank, it.host, it.to + 2 * whole, whole) && device_rank_sync(rank));
    NEED(memcmp(it.host, it.expected, whole) == 0);
    forget(&it);
    return true;
}

/* ------------------------------------------------------------------ tests */

static const char *transport; // NULL: NCCL
static int possible;          // ranks

static bool everywhere(const char *inject, bool (*body)(struct device_rank *))
{
    for (int world = 1; world <= possible; world++)
        if (!device_ranks_run(
                &(struct device_ranks){.world = world, .inject = inject, .transport = transport},
                body))
            return false;
    return true;
}

static void gathers_are_right(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, gathers));
}

static void what_goes_to_owners_is_right(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, scatters));
}

static void sums_are_right(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, reductions));
}

static void small_ones_are_right(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, small));
}

static void nothing_is_moved_of_nothing(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, nothing));
}

static void late_ones_are_right(void **state)
{
    (void)state;
    assert_true(everywhere("polls=9,delay=2000", small));
}

static void more_than_can_be_under_way(void **state)
{
    (void)state;
    assert_true(everywhere(NULL, many));
}

static void what_is_under_way_at_the_end(void **state)
{
    (void)state;
    assert_true(everywhere("delay=20000", closing));
}

int main(int count, char **arguments)
{
    transport = count > 1 ? arguments[1] : NULL; // "host"
    possible = device_ranks_possible();
    if (possible == 0)
        return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_are_right),
        cmocka_unit_test(what_goes_to_owners_is_right),
        cmocka_unit_test(sums_are_right),
        cmocka_unit_test(small_ones_are_right),
        cmocka_unit_test(nothing_is_moved_of_nothing),
        cmocka_unit_test(late_ones_are_right),
        cmocka_unit_test(more_than_can_be_under_way),
        cmocka_unit_test(what_is_under_way_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
