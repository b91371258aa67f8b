// zero/store/nvme_codec.h: tiles come back as they were, whatever is in them, and nothing but what
// was encoded is taken for a tile.
#include "zero/store/nvme_codec.h"

#include "base/arena.h"
#include "checkpoint/codec/block_codec.h"
#include "zero/model/state_tiles.h"
#include "zero/store/nvme_compress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Tiles of one piece, of a piece of each kind that there is, and of blocks that are not full: a
// weight of 2 or 4 bytes, with 0, 1 and 2 moments of 2 or 4.
static struct eng_piece pieces[] = {
    {.granules = 1, .weight_size = 4, .moment_size = 4, .moments = 2, .never_negative = 2},
    {.granules = 65, .weight_size = 4, .moment_size = 4, .moments = 2, .never_negative = 2},
    {.granules = 3, .weight_size = 2, .moment_size = 4, .moments = 0},
    {.granules = 64, .weight_size = 2, .moment_size = 4, .moments = 1},
    {.granules = 7, .weight_size = 4, .moment_size = 2, .moments = 1, .never_negative = 1},
    {.granules = 70, .weight_size = 2, .moment_size = 2, .moments = 2},
    {.granules = 5, .weight_size = 4, .moment_size = 4, .moments = 0},
    {.granules = 130, .weight_size = 4, .moment_size = 4, .moments = 1},
};
static struct eng_piece_range runs[] = {{0, 1}, {1, 6}, {7, 1}};
enum { PIECES = sizeof pieces / sizeof *pieces, TILES = sizeof runs / sizeof *runs };

static size_t sizes[TILES];
static struct eng_tiles tiles = {.pieces = pieces, .of_tile = runs, .bytes = sizes, .count = TILES};
static void *coder;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    for (size_t t = 0; t < TILES; t++)
        for (size_t i = runs[t].first; i < runs[t].first + runs[t].count; i++) {
            struct eng_piece *piece = &pieces[i];
            piece->tile = t;
            piece->first = 11 * i;
            piece->offset = sizes[t];
            sizes[t] += piece->granules * BASE_GRANULE *
                        (piece->weight_size + (size_t)piece->moments * piece->moment_size);
        }
    return eng_tile_codec.create(&coder, &tiles, &failure) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    eng_tile_codec.destroy(coder);
    return 0;
}

// Memory of exactly so many bytes, for sanitizers, which look after its ends.
static unsigned char *copy_of(const void *bytes, size_t count)
{
    unsigned char *copy = base_calloc(count ? count : 1, 1);
    assert_non_null(copy);
    memcpy(copy, bytes, count);
    return copy;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

enum { ZEROS, ONES, NOISE, TRAINED, KINDS };

static unsigned char *contents_of(size_t tile, int kind)
{
    const size_t count = sizes[tile] / sizeof(float);
    unsigned char *contents = base_calloc(sizes[tile] + 3 * sizeof(float), 1);
    uint64_t state = tile;
    assert_non_null(contents);
    if (kind == TRAINED)
        eng_codec_sample((float *)(void *)contents, (count + 2) / 3, tile);
    for (size_t i = 0; i < sizes[tile] && kind != TRAINED; i++)
        contents[i] = (unsigned char)(kind == NOISE ? next_random(&state) : kind == ONES ? 255 : 0);
    return contents;
}

// What the room must be at least for the tile to fit, at most what is given.
static unsigned char *encode(size_t tile, const unsigned char *contents, size_t room,
                             size_t *stored)
{
    unsigned char *out = base_calloc(room, 1);
    assert_non_null(out);
    *stored = eng_tile_codec.encode(coder, tile, contents, sizes[tile], out, room);
    assert_true(*stored <= room);
    unsigned char *exact = copy_of(out, *stored);
    base_free(out);
    return exact;
}

static zero_result decode(size_t tile, const unsigned char *in, size_t stored,
                          unsigned char *contents)
{
    base_error_clear(&failure);
    return eng_tile_codec.decode(coder, tile, in, stored, contents, sizes[tile], &failure);
}

static void a_tile_comes_back(size_t tile, int kind)
{
    size_t stored;
    unsigned char *was = contents_of(tile, kind), *exact = copy_of(was, sizes[tile]);
    unsigned char *in = encode(tile, exact, sizes[tile], &stored);
    unsigned char *is = base_calloc(sizes[tile], 1);
    assert_non_null(is);
    if (kind == NOISE)
        assert_int_equal(stored, 0);
    else
        assert_in_range(stored, 1, kind == TRAINED ? sizes[tile] : sizes[tile] / 20);
    if (stored > 0) {
        assert_int_equal(decode(tile, in, stored, is), ZERO_OK);
        assert_memory_equal(is, was, sizes[tile]);
    }
    base_free(was);
    base_free(exact);
    base_free(in);
    base_free(is);
}

static void tiles_come_back(void **state)
{
    (void)state;
    for (size_t tile = 0; tile < TILES; tile++)
        for (int kind = 0; kind < KINDS; kind++)
            a_tile_comes_back(tile, kind);
}

// Fields begin where they are said to: what is much alike gains, and not what lies elsewhere.
static void state_gains_what_is_expected(void **state)
{
    (void)state;
    struct eng_codec_rate rate;
    assert_int_equal(eng_codec_probe(&rate, &failure), ZERO_OK);
    assert_true(rate.ratio > 0.7 && rate.ratio < 0.9);
    assert_true(rate.bytes_s > 0);
}

// As in what training leaves, the lower bits of a sample's floats are as often 1 as 0, so that a
// plane of them is stored.
static void samples_are_noise_below_their_size(void **state)
{
    (void)state;
    enum { FIELDS = 3, COUNT = 1 << 16, NOISE_BITS = 16, FAR = 8 * 128 }; // standard deviations
    float *fields = base_calloc(FIELDS * COUNT, sizeof *fields);
    assert_non_null(fields);
    eng_codec_sample(fields, COUNT, 7);
    for (size_t field = 0; field < FIELDS; field++)
        for (unsigned bit = 0; bit < NOISE_BITS; bit++) {
            uint32_t ones = 0, bits;
            for (size_t i = 0; i < COUNT; i++) {
                memcpy(&bits, fields + field * COUNT + i, sizeof bits);
                ones += bits >> bit & 1;
            }
            assert_in_range(ones, COUNT / 2 - FAR, COUNT / 2 + FAR);
        }
    base_free(fields);
}

// The sign of second moments takes no room of its own, and that of others does.
static void what_is_never_negative_gains(void **state)
{
    (void)state;
    size_t stored[3];
    unsigned char *was = contents_of(0, TRAINED);
    const unsigned right = pieces[0].never_negative;
    for (unsigned never = 0; never < 3; never++) {
        pieces[0].never_negative = never;
        base_free(encode(0, was, sizes[0], &stored[never]));
    }
    pieces[0].never_negative = right;
    assert_true(stored[2] < stored[0] && stored[0] < stored[1]);
    base_free(was);
}

// A room that is too small is not written behind.
static void what_does_not_fit_is_left(void **state)
{
    (void)state;
    size_t stored, again;
    unsigned char *was = contents_of(0, TRAINED);
    base_free(encode(0, was, sizes[0], &stored));
    for (size_t room = 1; room < stored; room += 1 + room / 3) {
        base_free(encode(0, was, room, &again));
        assert_int_equal(again, 0);
    }
    base_free(was);
}

static void refused(size_t tile, const unsigned char *bytes, size_t stored, unsigned char *contents)
{
    unsigned char *exact = copy_of(bytes, stored);
    assert_int_equal(decode(tile, exact, stored, contents), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "block"));
    base_free(exact);
}

// Cut short anywhere, or with more behind it.
static void lengths_that_lie_are_found(void **state)
{
    (void)state;
    size_t stored;
    unsigned char *was = contents_of(1, TRAINED), *is = base_calloc(sizes[1], 1);
    unsigned char *in = encode(1, was, sizes[1], &stored);
    assert_true(is && stored > 0);
    for (size_t left = 0; left < stored; left += 1 + left / 2)
        refused(1, in, left, is);
    refused(1, in, stored - 1, is);
    unsigned char *longer = base_calloc(stored + 1, 1);
    assert_non_null(longer);
    memcpy(longer, in, stored);
    refused(1, longer, stored + 1, is);
    assert_non_null(strstr(failure.message, "1 bytes are left behind the last block"));
    memset(longer, 255, 2 * sizeof(uint32_t));
    refused(1, longer, stored, is);
    assert_non_null(strstr(failure.message, "is to have"));
    base_free(longer);
    base_free(was);
    base_free(is);
    base_free(in);
}

// Flipped bits, of which some make another tile and none does harm, and bytes of no encoder.
static void anything_may_be_decoded(void **state)
{
    (void)state;
    uint64_t random = 1;
    size_t stored;
    unsigned char *was = contents_of(0, TRAINED), *is = base_calloc(sizes[0], 1);
    unsigned char *in = encode(0, was, sizes[0], &stored);
    assert_true(is && stored > 0);
    for (int i = 0; i < 4000; i++) {
        const size_t at = i % 2 ? next_random(&random) % stored : next_random(&random) % 64;
        const unsigned char bit = (unsigned char)(1U << next_random(&random) % 8);
        in[at] ^= bit;
        const zero_result r = decode(0, in, stored, is);
        assert_true(r == ZERO_OK || r == ZERO_E_CORRUPT);
        in[at] ^= bit;
    }
    for (int i = 0; i < 200; i++) {
        const size_t bytes = next_random(&random) % stored;
        for (size_t k = 0; k < bytes; k++)
            in[k] = (unsigned char)(k % 4 < 2 ? next_random(&random) : 0);
        refused(0, in, bytes, is);
    }
    base_free(was);
    base_free(is);
    base_free(in);
}

// auto: the slowest rank's first updates, those that prepare left out.
static void the_first_updates_decide(void **state)
{
    (void)state;
    static const struct {
        double seconds[6], waited;
        bool tried, encodes;
        const char *says;
    } cases[] = {
        {{9, 2, 3, 9, 1.5, 1.8}, 1, true, true, "on: an update takes 1.5 s with it, and 2 s"},
        {{1, 2, 3, 1, 2.5, 1.97}, 1, true, false, "off: an update takes 1.97 s with it, and 2 s"},
        {{9, 2, 3, 0, 0, 0}, 0.1, false, false, "off: of an update of 2 s it waits 0.1 s"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct eng_compression it = eng_compression_begin(&(struct eng_config){.compress = "auto"});
        char text[160];
        for (int i = 0; i < 6 && !it.decided; i++) {
            const struct eng_update_time none = {0};
            const struct eng_update_time time = {.seconds = cases[c].seconds[i],
                                                 .waited_s = cases[c].waited};
            const struct eng_compression before = it;
            eng_compression_hear(&it, &none);
            assert_memory_equal(&it, &before, sizeof it);
            eng_compression_hear(&it, &time);
            assert_int_equal(it.heard, i + 1);
            if (i == 2)
                assert_int_equal(it.encodes, cases[c].tried);
        }
        assert_true(it.decided);
        assert_int_equal(it.encodes, cases[c].encodes);
        assert_non_null(strstr(eng_compression_text(&it, text, sizeof text), cases[c].says));
    }
    const struct eng_update_time time = {.seconds = 1, .waited_s = 1};
    for (int on = 0; on < 2; on++) {
        struct eng_compression it =
            eng_compression_begin(&(struct eng_config){.compress = on ? "on" : "off"});
        eng_compression_hear(&it, &time);
        assert_true(it.decided && it.encodes == on && it.heard == 0);
    }
}

static void threads_are_those_of_the_host(void **state)
{
    (void)state;
    struct eng_config config = {.online_cpus = 4, .allowed_cpus = 4, .world = 4};
    assert_int_equal(eng_config_codec_threads(&config), 1);
    config.local_world = 2; // the others have processors of their own
    assert_int_equal(eng_config_codec_threads(&config), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_those_of_the_host),
        cmocka_unit_test(tiles_come_back),
        cmocka_unit_test(state_gains_what_is_expected),
        cmocka_unit_test(samples_are_noise_below_their_size),
        cmocka_unit_test(what_is_never_negative_gains),
        cmocka_unit_test(what_does_not_fit_is_left),
        cmocka_unit_test(lengths_that_lie_are_found),
        cmocka_unit_test(anything_may_be_decoded),
        cmocka_unit_test(the_first_updates_decide),
    };
    return cmocka_run_group_tests_name("tile_codec", tests, set_up, tear_down);
}
