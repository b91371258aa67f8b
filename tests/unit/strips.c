/** Strips: every piece of which there is something is in exactly one, whatever tiles look like. */
#include "zero/store/strips.h"
#include "zero/store/tile_transfers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORLDS = 4, STAGES = 4 };

static void add(struct eng_model *model, const char *name, zero_dtype dtype, uint64_t numel,
                zero_unit unit, int32_t unit_count, bool frozen)
{
    struct base_error error = {0};
    zero_param_desc desc = zero_param_default();
    desc.name = name;
    desc.dtype = dtype;
    desc.unit = unit;
    desc.unit_count = unit_count;
    desc.frozen = frozen;
    desc.ndim = unit_count > 1 ? 2 : 1;
    desc.shape[0] = unit_count > 1 ? (uint64_t)unit_count : numel;
    desc.shape[1] = numel;
    assert_int_equal(eng_model_add_param(model, NULL, &desc, &error), ZERO_OK);
}

/** Odd sizes; units of several buckets, of small tensors only, of frozen ones only. */
static void make_model(struct eng_model *model)
{
    struct base_error error = {0};
    memset(model, 0, sizeof *model);
    add(model, "embedding", ZERO_BF16, 50257, 0, 1, false);
    add(model, "scalar", ZERO_F32, 1, 0, 1, false);
    add(model, "stacked", ZERO_BF16, 5025, 1, 3, false);
    add(model, "wide", ZERO_F32, 7001, 2, 1, false);
    add(model, "bias", ZERO_BF16, 7, 2, 1, false);
    add(model, "kept", ZERO_F32, 9000, 2, 1, true);
    add(model, "small", ZERO_F32, 1024, 4, 1, false);
    add(model, "first", ZERO_F16, 3000, 5, 2, true);
    assert_int_equal(eng_model_complete(model, &error), ZERO_OK);
}

/** What strips are for. */
struct purpose {
    const struct eng_layout *layout;
    size_t (*of_bucket)(const struct eng_bucket *bucket); /**< bytes of an element */
};

static size_t whole_buckets(const struct eng_bucket *bucket)
{
    return eng_dtype_size(bucket->dtype);
}

static size_t what_is_staged(const struct eng_bucket *bucket)
{
    return bucket->persistent ? 0 : eng_dtype_size(bucket->dtype);
}

static size_t what_trains(const struct eng_bucket *bucket)
{
    return bucket->frozen ? 0 : sizeof(float);
}

static size_t all_but_bf16(const struct eng_bucket *bucket)
{
    return bucket->dtype == ZERO_BF16 ? 0 : eng_dtype_size(bucket->dtype);
}

static size_t nothing(const struct eng_bucket *bucket)
{
    (void)bucket;
    return 0;
}

static size_t piece_bytes(const void *user, const struct eng_piece *piece)
{
    const struct purpose *purpose = user;
    return piece->granules * BASE_GRANULE *
           purpose->of_bucket(&purpose->layout->buckets[piece->bucket]);
}

/** The group of a piece: where it begins. */
static size_t group_of(const struct eng_tiles *tiles, const struct eng_piece *piece)
{
    return eng_tiles_group(tiles, piece->tile).first;
}

/** The strip's pieces: what they have in common, and that they lie one behind the other. */
static void check_strip(const struct eng_strips *strips, size_t strip,
                        const struct eng_tiles *tiles, const struct purpose *purpose, uint8_t *seen)
{
    const struct eng_strip *s = &strips->list[strip];
    size_t bytes = 0;
    assert_true(s->pieces > 0);
    for (size_t i = s->first_piece; i < s->first_piece + s->pieces; i++) {
        const struct eng_piece *piece = &tiles->pieces[i];
        assert_int_equal(group_of(tiles, piece), group_of(tiles, &tiles->pieces[s->first_piece]));
        assert_int_equal(purpose->layout->buckets[piece->bucket].unit, s->unit);
        assert_int_equal(strips->offset_of_piece[i], bytes);
        assert_true(piece_bytes(purpose, piece) > 0);
        bytes += piece_bytes(purpose, piece);
        assert_int_equal(seen[i]++, 0);
    }
    assert_int_equal(s->bytes, bytes);
    assert_int_equal(strips->bytes[strip], bytes);
    assert_true(bytes <= strips->largest);
}

/** Whether a strip has a piece of a tile. */
static bool has_tile(const struct eng_strip *strip, const struct eng_tiles *tiles, size_t tile)
{
    for (size_t i = strip->first_piece; i < strip->first_piece + strip->pieces; i++)
        if (tiles->pieces[i].tile == tile)
            return true;
    return false;
}

/** A tile's run has the strips with pieces of it, and no others. */
static void check_tiles(const struct eng_strips *strips, const struct eng_tiles *tiles)
{
    for (size_t t = 0; t < tiles->count; t++) {
        const struct eng_piece_range run = strips->of_tile[t];
        for (size_t s = 0; s < strips->count; s++)
            assert_int_equal(has_tile(&strips->list[s], tiles, t),
                             s >= run.first && s < run.first + run.count);
    }
}

/** Groups are made of tiles of one kind, one behind the other, each as many as there may be. */
static void check_groups(const struct eng_tiles *tiles)
{
    for (size_t t = 0; t < tiles->count;) {
        const struct eng_piece_range group = eng_tiles_group(tiles, t);
        const size_t end = t < tiles->training ? tiles->training : tiles->count;
        assert_int_equal(group.first, t);
        assert_int_equal(group.count, tiles->in_group < end - t ? tiles->in_group : end - t);
        for (; t < group.first + group.count; t++)
            assert_int_equal(eng_tiles_group(tiles, t).first, group.first);
    }
}

/** No tile has more bytes than it may, but for one that a single granule does not fit. */
static void check_sizes(const struct eng_tiles *tiles, size_t tile_bytes)
{
    for (size_t t = 0; t < tiles->count; t++) {
        const struct eng_piece_range run = tiles->of_tile[t];
        assert_true(tiles->bytes[t] <= tile_bytes ||
                    (run.count == 1 && tiles->pieces[run.first].granules == 1));
    }
}

/** Each strip is in the run of its unit, and in no other's. */
static void check_runs(const struct eng_strips *strips, const struct eng_tiles *tiles,
                       const struct eng_layout *layout)
{
    size_t of_units = 0;
    for (size_t u = 0; u < layout->unit_count; u++)
        for (int frozen = 0; frozen < 2; frozen++) {
            const struct eng_piece_range run =
                frozen ? strips->frozen_of_unit[u] : strips->of_unit[u];
            for (size_t i = 0; i < run.count; i++, of_units++) {
                const struct eng_strip *strip = &strips->list[run.first + i];
                const size_t bucket = tiles->pieces[strip->first_piece].bucket;
                assert_int_equal(strip->unit, u);
                assert_int_equal(layout->buckets[bucket].frozen, frozen);
            }
        }
    assert_int_equal(of_units, strips->count);
}

static void check(const struct eng_layout *layout, const struct eng_tiles *tiles,
                  const struct purpose *purpose)
{
    struct eng_strips strips;
    struct base_error error = {0};
    uint8_t seen[4096] = {0};
    assert_true(tiles->piece_count <= sizeof seen);
    assert_int_equal(eng_strips_make(&strips, layout, tiles, piece_bytes, purpose, &error),
                     ZERO_OK);
    assert_true(strips.tables.bytes > 0);
    for (size_t i = 0; i < strips.count; i++)
        check_strip(&strips, i, tiles, purpose, seen);
    for (size_t i = 0; i < tiles->piece_count; i++)
        assert_int_equal(seen[i], piece_bytes(purpose, &tiles->pieces[i]) > 0);
    check_runs(&strips, tiles, layout);
    check_tiles(&strips, tiles);
    assert_int_equal(strips.count > 0, purpose->of_bucket != nothing && tiles->count > 0);
    eng_strips_free(&strips);
    assert_null(strips.list);
}

static void every_piece_is_in_one_strip(void **state)
{
    (void)state;
    static size_t (*const of_bucket[])(const struct eng_bucket *) = {whole_buckets, what_is_staged,
                                                                     what_trains, nothing};
    static const size_t tile_bytes[] = {1, 30 * BASE_GRANULE, 1 << 18, 1 << 30};
    struct eng_model model;
    struct base_error error = {0};
    make_model(&model);
    static const size_t in_group[] = {1, 3, 4096};
    for (int run = 0; run < WORLDS * STAGES * 4 * 3; run++) {
        const int world = 1 + run % WORLDS, stage = run / WORLDS % STAGES;
        const size_t bytes = tile_bytes[run / (WORLDS * STAGES) % 4];
        const size_t group = in_group[run / (WORLDS * STAGES * 4)];
        const struct eng_limits limits = {
            .stage = stage, .open_units = 2, .grad_units = 2, .state_in_file = true};
        struct eng_layout layout;
        assert_int_equal(eng_layout_make(&layout, &model, world, 1024, &error), ZERO_OK);
        for (int rank = 0; rank < world; rank++) {
            struct eng_placement placement;
            struct eng_tiles tiles;
            assert_int_equal(eng_placement_make(&placement, &layout, rank, &limits, &error),
                             ZERO_OK);
            assert_int_equal(
                eng_tiles_make(&tiles, &layout, &placement, ZERO_F32, bytes, group, &error),
                ZERO_OK);
            check_groups(&tiles);
            check_sizes(&tiles, bytes);
            for (size_t i = 0; i < sizeof of_bucket / sizeof *of_bucket; i++)
                check(&layout, &tiles, &(struct purpose){&layout, of_bucket[i]});
            eng_tiles_free(&tiles);
            eng_placement_free(&placement);
        }
        eng_layout_free(&layout);
    }
    eng_model_free(&model);
}

/** Tiles of a granule: a unit's working copy is one strip for each group that it lies in. */
static void tiles_may_be_small_without_strips_being_so(void **state)
{
    (void)state;
    enum { GRANULES = 20, IN_GROUP = 8 };
    struct eng_model model = {0};
    struct eng_layout layout;
    struct eng_placement placement;
    struct eng_tiles tiles;
    struct eng_strips strips;
    struct base_error error = {0};
    const struct eng_limits limits = {.stage = 3, .open_units = 1, .state_in_file = true};
    add(&model, "a", ZERO_BF16, (uint64_t)GRANULES * BASE_GRANULE, 0, 1, false);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 1, ZERO_OFF, &error), ZERO_OK);
    assert_int_equal(eng_placement_make(&placement, &layout, 0, &limits, &error), ZERO_OK);
    assert_int_equal(eng_tiles_make(&tiles, &layout, &placement, ZERO_F32, 1, IN_GROUP, &error),
                     ZERO_OK);
    assert_int_equal(tiles.count, GRANULES);
    const struct purpose purpose = {&layout, what_is_staged};
    assert_int_equal(eng_strips_make(&strips, &layout, &tiles, piece_bytes, &purpose, &error),
                     ZERO_OK);
    assert_int_equal(strips.count, 3);
    assert_int_equal(strips.bytes[0], IN_GROUP * BASE_GRANULE * 2);
    assert_int_equal(strips.bytes[2], (GRANULES - 2 * IN_GROUP) * BASE_GRANULE * 2);
    eng_strips_free(&strips);
    eng_tiles_free(&tiles);
    eng_placement_free(&placement);
    eng_layout_free(&layout);
    eng_model_free(&model);
}

/** In a unit of three buckets the one in the middle has nothing: it ends a strip. */
static void what_has_nothing_is_in_no_strip(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct eng_layout layout;
    struct eng_placement placement;
    struct eng_tiles tiles;
    struct eng_strips strips;
    struct base_error error = {0};
    const struct eng_limits limits = {.stage = 3, .open_units = 1, .state_in_file = true};
    add(&model, "a", ZERO_F32, 2000, 0, 1, false);
    add(&model, "b", ZERO_BF16, 10, 0, 1, false);
    add(&model, "c", ZERO_F16, 2000, 0, 1, false);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 1, ZERO_OFF, &error), ZERO_OK);
    assert_int_equal(eng_placement_make(&placement, &layout, 0, &limits, &error), ZERO_OK);
    assert_int_equal(eng_tiles_make(&tiles, &layout, &placement, ZERO_F32, 1 << 20, 1, &error),
                     ZERO_OK);
    assert_int_equal(tiles.count, 1);
    assert_int_equal(tiles.piece_count, 3);
    const struct purpose purpose = {&layout, all_but_bf16};
    assert_int_equal(eng_strips_make(&strips, &layout, &tiles, piece_bytes, &purpose, &error),
                     ZERO_OK);
    assert_int_equal(strips.count, 2);
    assert_int_equal(strips.bytes[0], 2 * BASE_GRANULE * 4);
    assert_int_equal(strips.bytes[1], 2 * BASE_GRANULE * 2);
    assert_int_equal(strips.list[1].first_piece, 2);
    eng_strips_free(&strips);
    eng_tiles_free(&tiles);
    eng_placement_free(&placement);
    eng_layout_free(&layout);
    eng_model_free(&model);
}

static void as_many_bytes_are_in_memory(void **state)
{
    static const struct {
        size_t tile_bytes, in_memory;
        unsigned under_way;
    } expected[] = {
        {65536, 32, 8},    {1 << 20, 32, 8},  {(2 << 20) - 1, 32, 8}, {2 << 20, 48, 12},
        {3 << 20, 32, 12}, {6 << 20, 16, 12}, {12 << 20, 16, 12},     {(size_t)1 << 32, 16, 12},
    };
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(eng_tiles_in_memory(expected[i].tile_bytes), expected[i].in_memory);
        assert_int_equal(eng_transfers_under_way(expected[i].tile_bytes), expected[i].under_way);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_is_in_one_strip),
        cmocka_unit_test(tiles_may_be_small_without_strips_being_so),
        cmocka_unit_test(what_has_nothing_is_in_no_strip),
        cmocka_unit_test(as_many_bytes_are_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
