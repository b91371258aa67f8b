// Kernels of devices give the bits of ref, for every kind of input and count, and touch nothing
// beside their arrays: cuda.cu on the processor (on_host.h), or on a GPU.
#include "base/kernels/kernel_tables.h"
#include "tests/cuda/kernel_tests.h"
#include "tests/sweep.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>
#include <string.h>

enum { GROUPS = 4, SEGMENTS = 4, GAP = 2 * BASE_GRANULE, ROOM = 24 * BASE_GRANULE };

static void widen(zero_dtype dtype, const void *from, size_t first, size_t count, float *to)
{
    if (dtype == ZERO_BF16)
        base_kernels_ref.from_bf16(count, (const uint16_t *)from + first, to);
    else if (dtype == ZERO_F16)
        base_kernels_ref.from_f16(count, (const uint16_t *)from + first, to);
    else
        memcpy(to, (const float *)from + first, count * sizeof *to);
}

/* ------------------------------------------------------------------ update */

// Everything that updates read and write, guards in between, on one side or the other.
struct state {
    float gradient[ROOM], moment[BASE_MAX_MOMENTS][ROOM], weight[ROOM];
    uint16_t work[ROOM];
    struct base_rule_scalars scalars[GROUPS];
    uint64_t keys[SEGMENTS * BASE_DEVICE_KEYS];
    struct base_device_segment segments[SEGMENTS];
    double squares[ROOM / BASE_GRANULE];
    uint64_t wrong;
    uint32_t gate, unused;
};

static struct state before, after, expected;

static struct base_rule_scalars scalars_of(int turn, int group)
{
    return input_scalars((enum base_rule)((turn + group) % BASE_RULES), turn / 2 % 2, turn % 2);
}

static const uint32_t counts[] = {1, 2, 3, 4, 5, 127, 1023, 1024, 1025, 2047, 9001};

// The segments of a turn, at addresses of `at`; they have the room of floats, whatever they are.
static void lay_segments(int turn, bool rounds, const struct state *at,
                         struct base_device_segment *segments)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    size_t element = BASE_GRANULE;
    for (uint32_t r = 0; r < SEGMENTS; r++) {
        const uint32_t count = counts[((uint32_t)turn + r) % (sizeof counts / sizeof *counts)];
        const zero_dtype gradient = dtypes[(turn + (int)r) % 3];
        const zero_dtype weight = rounds ? dtypes[(turn / 3 + (int)r) % 3] : ZERO_F32;
        const zero_dtype moment = rounds && turn % 2 ? ZERO_BF16 : ZERO_F32;
        segments[r] = (struct base_device_segment){
            .gradient = at->gradient + element,
            .weight = (float *)(uintptr_t)at->weight + element,
            .work = turn % 4 == 3 ? NULL : (uint16_t *)(uintptr_t)at->work + element,
            .first = (uint64_t)turn * BASE_GRANULE,
            .count = count,
            .group = r % GROUPS,
            .key = r * BASE_DEVICE_KEYS,
            .gradient_dtype = (uint8_t)gradient,
            .weight_dtype = (uint8_t)weight,
            .moment_dtype = (uint8_t)moment,
            .work_dtype = turn % 4 == 2 ? ZERO_F16 : ZERO_BF16,
        };
        for (int k = 0; k < BASE_MAX_MOMENTS; k++)
            segments[r].moment[k] = (float *)(uintptr_t)at->moment[k] + element;
        element += (count + BASE_GRANULE - 1) / BASE_GRANULE * BASE_GRANULE + GAP;
    }
    assert_true(element <= ROOM);
}

static void fill(int turn, struct state *s)
{
    const enum input_kind kind = (enum input_kind)(turn % INPUT_KINDS);
    input_fill(kind, 1, ROOM, s->gradient);
    input_fill(turn % 3 ? kind : INPUT_ORDINARY, 2, ROOM, s->moment[0]);
    input_fill(turn % 5 ? INPUT_ORDINARY : kind, 3, ROOM, s->moment[1]);
    input_fill(turn % 2 ? INPUT_ORDINARY : kind, 4, ROOM, s->weight);
    memset(s->work, 0x5a, sizeof s->work);
    for (int g = 0; g < GROUPS; g++)
        s->scalars[g] = scalars_of(turn, g);
    for (int k = 0; k < SEGMENTS * BASE_DEVICE_KEYS; k++)
        s->keys[k] = zero_random_bits(7, (uint64_t)turn, (uint64_t)k);
}

static void round_to(zero_dtype dtype, uint64_t key, const struct base_device_segment *segment,
                     const float *from, void *to)
{
    if (dtype == ZERO_F32)
        memcpy(to, from, segment->count * sizeof *from);
    else if (dtype == ZERO_BF16)
        base_kernels_ref.round_bf16(key, segment->first, segment->count, from, to);
    else
        base_kernels_ref.round_f16(key, segment->first, segment->count, from, to);
}

// As the engine does it on the processor.
static void update_segment(const struct state *s, const struct base_device_segment *segment)
{
    static float gradient[BASE_DEVICE_SEGMENT], weight[BASE_DEVICE_SEGMENT];
    static float moment[BASE_MAX_MOMENTS][BASE_DEVICE_SEGMENT];
    const struct base_rule_scalars *scalars = &s->scalars[segment->group];
    const int moments = scalars->rule == BASE_RULE_ADAM ? 2 : 1;
    widen(segment->gradient_dtype, segment->gradient, 0, segment->count, gradient);
    widen(segment->weight_dtype, segment->weight, 0, segment->count, weight);
    for (int k = 0; k < moments; k++)
        widen(segment->moment_dtype, segment->moment[k], 0, segment->count, moment[k]);
    const struct base_update update = {
        .count = segment->count,
        .gradient = gradient,
        .moment = {moment[0], moment[1]},
        .weight = weight,
        .work = segment->work,
        .work_dtype = segment->work_dtype,
    };
    base_kernels_ref.update[scalars->rule](scalars, &update);
    round_to(segment->weight_dtype, s->keys[segment->key], segment, weight, segment->weight);
    for (int k = 0; k < moments; k++)
        round_to(segment->moment_dtype, s->keys[segment->key + 1 + (uint32_t)k], segment, moment[k],
                 segment->moment[k]);
}

/** The first element of an array that is not finite, as an update tells it. */
static void find_wrong(const struct base_device_segment *segment, zero_dtype dtype,
                       const void *array, uint64_t *wrong)
{
    static float values[BASE_DEVICE_SEGMENT];
    uint32_t i = 0;
    widen(dtype, array, 0, segment->count, values);
    while (i < segment->count && isfinite(values[i]))
        i++;
    const uint64_t found =
        (uint64_t)(segment->key / BASE_DEVICE_KEYS) << BASE_DEVICE_BAD_SHIFT | (segment->first + i);
    if (i < segment->count && found < *wrong)
        *wrong = found;
}

static void find_wrongs(const struct state *s, const struct base_device_segment *segment,
                        uint64_t *wrong)
{
    const int moments = s->scalars[segment->group].rule == BASE_RULE_ADAM ? 2 : 1;
    find_wrong(segment, segment->weight_dtype, segment->weight, wrong);
    for (int k = 0; k < moments; k++)
        find_wrong(segment, segment->moment_dtype, segment->moment[k], wrong);
    if (segment->work)
        find_wrong(segment, segment->work_dtype, segment->work, wrong);
}

static void update_turn(int turn, bool rounds, bool gated)
{
    fill(turn, &before);
    before.gate = !gated;
    before.wrong = UINT64_MAX;
    expected = before;
    lay_segments(turn, rounds, &expected, expected.segments);
    for (int r = 0; r < SEGMENTS && !gated; r++) {
        update_segment(&expected, &expected.segments[r]);
        find_wrongs(&expected, &expected.segments[r], &expected.wrong);
    }
    struct state *there = put(&before, sizeof before);
    lay_segments(turn, rounds, there, before.segments);
    ok(device->copy(there->segments, before.segments, sizeof before.segments, kernel_stream, NULL));
    const struct base_device_update update = {
        .segments = there->segments,
        .count = SEGMENTS,
        .rounds = rounds,
        .scalars = there->scalars,
        .keys = rounds ? there->keys : NULL,
        .gate = turn % 3 || gated ? &there->gate : NULL,
        .wrong = &there->wrong,
    };
    if (!rounds) // whose keys are not compared
        for (int r = 0; r < SEGMENTS; r++)
            assert_int_equal(before.segments[r].weight_dtype, ZERO_F32);
    ok(kernels->update(kernel_state, &update, kernel_stream, NULL));
    take(&after, there, sizeof after);
    memset(after.segments, 0, sizeof after.segments); // addresses
    memset(expected.segments, 0, sizeof expected.segments);
    compare(rounds ? "rounded update" : "update", turn, &after, &expected, sizeof after);
}

static void updates_have_the_bits_of_the_definition(void **unused)
{
    (void)unused;
    for (int turn = 0; turn < 3 * 4 * INPUT_KINDS; turn++)
        if (test_takes(turn + turn / 3))
            update_turn(turn, false, false);
}

static void rounded_updates_have_them_too(void **unused)
{
    (void)unused;
    for (int turn = 0; turn < 3 * 4 * INPUT_KINDS; turn++)
        if (test_takes(turn + turn / 3))
            update_turn(turn, true, false);
}

static void nothing_is_updated_behind_a_gate(void **unused)
{
    (void)unused;
    update_turn(1, false, true);
    update_turn(1, true, true);
}

// What segments say of themselves: the second has a sum at its end that is not finite, the third at
// its beginning, and so have those beside the others.
static void lay_summed(const struct state *at, struct base_device_segment *segments,
                       double *squares)
{
    size_t granule = 1;
    for (size_t g = 0; g < ROOM / BASE_GRANULE; g++)
        squares[g] = NAN;
    for (uint32_t r = 0; r < SEGMENTS; r++) {
        const size_t granules = (segments[r].count + BASE_GRANULE - 1) / BASE_GRANULE;
        segments[r].squares = at->squares + granule;
        for (size_t g = granule; g < granule + granules; g++)
            squares[g] = 0.5 * (double)g;
        if (r == 1)
            squares[granule + granules - 1] = NAN;
        if (r == 2)
            squares[granule] = INFINITY;
        granule += granules + GAP / BASE_GRANULE;
    }
}

static void update_finite(int turn)
{
    fill(turn, &before);
    before.gate = 1;
    lay_segments(turn, false, &before, before.segments);
    lay_summed(&before, before.segments, before.squares);
    expected = before;
    lay_segments(turn, false, &expected, expected.segments);
    lay_summed(&expected, expected.segments, expected.squares);
    for (int r = 0; r < SEGMENTS; r += 3)
        update_segment(&expected, &expected.segments[r]);
    struct state *there = put(&before, sizeof before);
    lay_segments(turn, false, there, before.segments);
    lay_summed(there, before.segments, before.squares);
    ok(device->copy(there->segments, before.segments, sizeof before.segments, kernel_stream, NULL));
    const struct base_device_update update = {
        .segments = there->segments,
        .count = SEGMENTS,
        .scalars = there->scalars,
        .gate = &there->gate,
        .finite_only = true,
    };
    ok(kernels->update(kernel_state, &update, kernel_stream, NULL));
    take(&after, there, sizeof after);
    memset(after.segments, 0, sizeof after.segments); // addresses
    memset(expected.segments, 0, sizeof expected.segments);
    compare("update of what is finite", turn, &after, &expected, sizeof after);
}

static void sums_that_are_not_finite_may_be_left_out(void **unused)
{
    (void)unused;
    for (int turn = 0; turn < 8; turn++)
        update_finite(turn);
}

static void no_runs_are_nothing(void **unused)
{
    (void)unused;
    const struct base_device_update update = {.count = 0};
    ok(kernels->update(kernel_state, &update, kernel_stream, NULL));
    ok(device->stream_sync(kernel_stream, NULL));
}

/* ------------------------------------------------------------------ sum */

enum { MOST_RANKS = 5, MOST_GRANULES = 9, OWNED = MOST_GRANULES * BASE_GRANULE };

struct contributions {
    uint32_t received[MOST_RANKS][OWNED], own[OWNED]; // of any dtype
    float accumulator[OWNED + BASE_GRANULE], block[OWNED + BASE_GRANULE];
    double squares[MOST_GRANULES + 1];
    uint64_t bad;
};

static struct contributions given, got, wanted;

static const void *source(const struct contributions *c, const struct base_device_sum *s, int k)
{
    return k == s->own_index ? (const void *)c->own : c->received[k];
}

static float one_nan(float x)
{
    const uint32_t bits = BASE_NAN_F32;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    return x == x ? x : nan;
}

// The definition of comm.h, element by element.
static void add_up(struct contributions *c, const struct base_device_sum *s)
{
    for (size_t i = 0; i < s->granules * BASE_GRANULE; i++) {
        bool store = s->store;
        for (int k = 0; k < s->count; k++) {
            const uint64_t number = s->number + (uint64_t)k;
            float x;
            widen(s->dtype, source(c, s, k), i, 1, &x);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            if ((bits & 0x7f800000) == 0x7f800000) {
                const uint64_t bad = number << BASE_DEVICE_BAD_SHIFT | (s->element + i);
                c->bad = bad < c->bad ? bad : c->bad;
            }
            c->block[i] = one_nan(number % s->sum_group == 0 ? x : c->block[i] + x);
            if ((number + 1) % s->sum_group != 0 && !(s->last && k == s->count - 1))
                continue;
            c->accumulator[i] = store ? c->block[i] : one_nan(c->accumulator[i] + c->block[i]);
            store = false;
        }
    }
    const void *sums = c->accumulator;
    const struct base_contributions all = {.dtype = ZERO_F32, .sources = &sums, .count = 1};
    if (s->squares)
        base_kernels_ref.sum_squares(s->granules * BASE_GRANULE, &all, c->squares);
}

static void fill_contributions(int turn)
{
    const enum input_kind kind = (enum input_kind)(turn % INPUT_KINDS);
    for (int r = 0; r < MOST_RANKS; r++)
        input_fill(turn % 2 ? kind : INPUT_ORDINARY, 10 + (uint64_t)r, OWNED,
                   (float *)(void *)given.received[r]);
    input_fill(kind, 20, OWNED, (float *)(void *)given.own);
    input_fill(turn % 3 ? kind : INPUT_ORDINARY, 21, OWNED + BASE_GRANULE, given.accumulator);
    input_fill(INPUT_ORDINARY, 22, OWNED + BASE_GRANULE, given.block);
    memset(given.squares, 0x5a, sizeof given.squares);
    given.bad = UINT64_MAX;
}

static struct base_device_sum sum_of(int turn, struct contributions *at)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    static const uint32_t groups[] = {1, 1, 2, 4};
    const uint32_t group = groups[turn / 3 % 4];
    const uint64_t number = (uint64_t)(turn % 7);
    const int count = 1 + turn % MOST_RANKS;
    const bool last = turn % 2;
    return (struct base_device_sum){
        .received = at->received,
        .stride = sizeof at->received[0],
        .own = at->own,
        .own_index = turn % (count + 1) - 1,
        .dtype = dtypes[turn % 3],
        .count = count,
        .granules = 1 + (size_t)turn % MOST_GRANULES,
        .accumulator = at->accumulator,
        .block = group > 1 ? at->block : NULL,
        .number = number,
        .sum_group = group,
        .store = number / group == 0,
        .last = last,
        .squares = last ? at->squares : NULL,
        .element = (uint64_t)turn * BASE_GRANULE,
        .bad = &at->bad,
    };
}

static void sum_turn(int turn)
{
    struct base_device_sum sum = sum_of(turn, &wanted);
    fill_contributions(turn);
    wanted = given;
    add_up(&wanted, &sum);
    struct contributions *there = put(&given, sizeof given);
    sum = sum_of(turn, there);
    ok(kernels->sum(kernel_state, &sum, kernel_stream, NULL));
    take(&got, there, sizeof got);
    const size_t owned = sum.granules * BASE_GRANULE;
    const bool open = (sum.number + (uint64_t)sum.count) % sum.sum_group != 0 && !sum.last;
    if (!open) // what a finished block was is not compared
        memcpy(got.block, wanted.block, owned * sizeof *got.block);
    compare("sum", turn, &got, &wanted, sizeof got);
}

static void sums_have_the_bits_of_the_definition(void **unused)
{
    (void)unused;
    for (int turn = 0; turn < 3 * 5 * 7; turn++)
        if (test_takes(turn + turn / 3))
            sum_turn(turn);
}

static void a_sole_contribution_is_left_where_it_is(void **unused)
{
    (void)unused;
    for (int turn = 1; turn < 6 * INPUT_KINDS; turn += 2) { // those of a last micro-batch
        struct base_device_sum sum = sum_of(turn, &wanted);
        fill_contributions(turn);
        wanted = given;
        struct contributions *there = put(&given, sizeof given);
        sum.number = 0;
        sum.count = 1;
        sum.own_index = 0;
        sum.store = true;
        add_up(&wanted, &sum);
        memcpy(wanted.accumulator, given.accumulator, sizeof given.accumulator);
        memcpy(wanted.block, given.block, sizeof given.block);
        sum.own = there->own;
        sum.accumulator = sum.block = NULL;
        sum.squares = there->squares;
        sum.bad = &there->bad;
        ok(kernels->sum(kernel_state, &sum, kernel_stream, NULL));
        take(&got, there, sizeof got);
        compare("sole contribution", turn, &got, &wanted, sizeof got);
    }
}

// A caller may ask for sums without being told where one is not finite.
static void sums_may_find_nothing(void **unused)
{
    (void)unused;
    const int turn = INPUT_NONFINITE;
    struct base_device_sum sum = sum_of(turn, &wanted);
    fill_contributions(turn);
    wanted = given;
    add_up(&wanted, &sum);
    assert_true(wanted.bad != UINT64_MAX);
    wanted.bad = UINT64_MAX;
    struct contributions *there = put(&given, sizeof given);
    sum = sum_of(turn, there);
    sum.bad = NULL;
    ok(kernels->sum(kernel_state, &sum, kernel_stream, NULL));
    take(&got, there, sizeof got);
    memcpy(got.block, wanted.block, sizeof got.block);
    compare("sum", turn, &got, &wanted, sizeof got);
}

/* ------------------------------------------------------------------ one contribution */

struct pair {
    float to[ROOM], from[ROOM];
    uint64_t bad[2];
};

static struct pair pair, paired;

// Elements of any dtype: two of 16 bits lie in the place of a float.
static void fill_pair(int turn)
{
    const enum input_kind kind = (enum input_kind)(turn % INPUT_KINDS);
    input_fill(turn % 4 ? kind : INPUT_ORDINARY, 50, ROOM, pair.to);
    input_fill(kind, 51, ROOM, pair.from);
    memset(pair.bad, 0xff, sizeof pair.bad);
}

static void narrow(zero_dtype dtype, const float *from, size_t count, void *to)
{
    if (dtype == ZERO_BF16)
        base_kernels_ref.to_bf16(count, from, to);
    else if (dtype == ZERO_F16)
        base_kernels_ref.to_f16(count, from, to);
    else
        memcpy(to, from, count * sizeof *from);
}

static void addition_turn(int turn, zero_dtype dtype, size_t count)
{
    static float sums[ROOM], values[ROOM];
    fill_pair(turn);
    struct pair *there = put(&pair, sizeof pair);
    const struct base_device_addition addition = {there->to, there->from, dtype, count};
    ok(kernels->add(kernel_state, &addition, kernel_stream, NULL));
    take(&paired, there, sizeof paired);
    widen(dtype, pair.to, 0, count, sums);
    widen(dtype, pair.from, 0, count, values);
    for (size_t i = 0; i < count; i++)
        sums[i] = one_nan(sums[i] + values[i]);
    narrow(dtype, sums, count, pair.to);
    compare("addition", turn, &paired, &pair, sizeof pair);
}

static void additions_have_the_bits_of_the_definition(void **unused)
{
    (void)unused;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    for (int turn = 0; turn < 6 * INPUT_KINDS; turn++)
        addition_turn(turn, dtypes[turn % 3],
                      (size_t)counts[(size_t)turn % (sizeof counts / sizeof *counts)]);
}

static void search_turn(int turn, zero_dtype dtype, size_t count)
{
    static float values[ROOM];
    fill_pair(turn);
    widen(dtype, pair.from, 0, count, values);
    size_t first = 0;
    while (first < count && isfinite(values[first]))
        first++;
    const uint64_t found = (uint64_t)(turn + 1) << BASE_DEVICE_BAD_SHIFT | first;
    pair.bad[0] = turn % 5 == 4 ? 7 : UINT64_MAX; // less was there, or nothing
    struct pair *there = put(&pair, sizeof pair);
    const struct base_device_search search = {there->from, dtype, count, (uint64_t)turn + 1,
                                              there->bad};
    ok(kernels->search(kernel_state, &search, kernel_stream, NULL));
    take(&paired, there, sizeof paired);
    if (first < count && found < pair.bad[0])
        pair.bad[0] = found;
    compare("search", turn, &paired, &pair, sizeof pair);
}

static void a_search_finds_the_first_that_is_not_finite(void **unused)
{
    (void)unused;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    for (int turn = 0; turn < 6 * INPUT_KINDS; turn++)
        search_turn(turn, dtypes[turn % 3],
                    (size_t)counts[(size_t)turn % (sizeof counts / sizeof *counts)]);
}

/* ------------------------------------------------------------------ gaps */

enum { GAPS = 40, GAP_ROOM = 4 * BASE_GRANULE };

struct gapped {
    struct base_device_gap gaps[GAPS];
    unsigned char bytes[GAPS][GAP_ROOM];
};

// One in each part, from nothing to all but an element of a granule, of 2 and of 4 bytes.
static void lay_gap(struct gapped *at, int turn, size_t g)
{
    const size_t size = g % 2 ? 2 : 4, count = (g * 31 + (size_t)turn * 97) % BASE_GRANULE;
    const size_t first = (BASE_GRANULE - count) * size;
    at->gaps[g] = (struct base_device_gap){g * GAP_ROOM + first, count * size};
}

static void gaps_are_cleared_and_nothing_beside_them(void **unused)
{
    (void)unused;
    static struct gapped here, result;
    for (int turn = 0; turn < 20; turn++) {
        memset(here.bytes, 1 + turn, sizeof here.bytes);
        for (size_t g = 0; g < GAPS; g++)
            lay_gap(&here, turn, g);
        struct gapped *there = put(&here, sizeof here);
        const size_t count = turn == 3 ? 0 : GAPS - (size_t)turn;
        const struct base_device_clearing clearing = {there->gaps, count, there->bytes};
        ok(kernels->clear(kernel_state, &clearing, kernel_stream, NULL));
        take(&result, there, sizeof result);
        for (size_t g = 0; g < count; g++)
            memset(&here.bytes[0][0] + here.gaps[g].first, 0, here.gaps[g].bytes);
        compare("clear", turn, &result, &here, sizeof here);
    }
}

/* ------------------------------------------------------------------ conversion */

struct conversion {
    float from[ROOM], to[ROOM];
};

static void convert_turn(int turn, zero_dtype from, zero_dtype to, size_t count)
{
    static struct conversion here, result;
    static float wide[ROOM];
    input_fill((enum input_kind)(turn % INPUT_KINDS), 40, ROOM, here.from);
    memset(here.to, 0x5a, sizeof here.to);
    struct conversion *there = put(&here, sizeof here);
    const struct base_device_conversion conversion = {there->from, there->to, from, to, count};
    ok(kernels->convert(kernel_state, &conversion, kernel_stream, NULL));
    take(&result, there, sizeof result);
    widen(from, here.from, 0, count, wide);
    if (to == ZERO_BF16)
        base_kernels_ref.to_bf16(count, wide, (uint16_t *)(void *)here.to);
    else
        base_kernels_ref.to_f16(count, wide, (uint16_t *)(void *)here.to);
    compare("conversion", turn, &result, &here, sizeof here);
}

static void conversions_have_the_bits_of_the_definition(void **unused)
{
    (void)unused;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    for (int turn = 0; turn < 6 * INPUT_KINDS; turn++)
        convert_turn(turn, dtypes[turn % 3], dtypes[1 + turn / 3 % 2],
                     (size_t)counts[(size_t)turn % (sizeof counts / sizeof *counts)]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_have_the_bits_of_the_definition),
        cmocka_unit_test(rounded_updates_have_them_too),
        cmocka_unit_test(nothing_is_updated_behind_a_gate),
        cmocka_unit_test(sums_that_are_not_finite_may_be_left_out),
        cmocka_unit_test(no_runs_are_nothing),
        cmocka_unit_test(sums_have_the_bits_of_the_definition),
        cmocka_unit_test(a_sole_contribution_is_left_where_it_is),
        cmocka_unit_test(sums_may_find_nothing),
        cmocka_unit_test(additions_have_the_bits_of_the_definition),
        cmocka_unit_test(a_search_finds_the_first_that_is_not_finite),
        cmocka_unit_test(gaps_are_cleared_and_nothing_beside_them),
        cmocka_unit_test(conversions_have_the_bits_of_the_definition),
    };
    if (kernel_tests_skip())
        return KERNEL_TESTS_SKIPPED;
    return cmocka_run_group_tests(tests, kernel_tests_set_up, kernel_tests_tear_down);
}
