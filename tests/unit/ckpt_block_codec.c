// checkpoint/codec/block_codec.h: what is stored is what zstd understands, comes back as it was, is
// the same on every processor, and is as small as it can be.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/codec/planes.h"
#include "checkpoint/entropy/frame.h"
#include "tests/sweep.h"
#include "tests/unit/ckpt_blocks.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

enum { MOST_BYTES = CKPT_MAX_PLANES * CKPT_BLOCK_ELEMENTS, GUARD = 64 };

// Room for a block, at any alignment, and for what must stay untouched behind it.
static _Alignas(64) unsigned char elements[MOST_BYTES + 2 * GUARD];
static _Alignas(64) unsigned char decoded[MOST_BYTES + 2 * GUARD];
static _Alignas(64) unsigned char stored[MOST_BYTES + MOST_BYTES / 128 + 2 * GUARD];
static unsigned char again[sizeof stored];
static unsigned char planes[MOST_BYTES], expected[MOST_BYTES];

static const size_t counts[] = {0,  1,   2,   3,    4,    31,   32,   63,    64,    65,
                                99, 255, 256, 1000, 4095, 4096, 4097, 32767, 32768, 32640};
static const int levels[] = {0, 1, 2, 19};

static bool is_all(const unsigned char *bytes, size_t count, unsigned char byte)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte)
            return false;
    return true;
}

// Each frame by itself is one that stock zstd takes for the whole of its plane.
static void check_frames(struct ckpt_block_code code, size_t count, const unsigned char *in,
                         const uint32_t plane_bytes[CKPT_MAX_PLANES], int level)
{
    const size_t bytes = ckpt_stored_bytes(plane_bytes);
    block_planes(code, elements + 1, count, expected);
    assert_int_equal(ZSTD_decompress(planes, sizeof planes, in, bytes), code.element_bytes * count);
    assert_memory_equal(planes, expected, code.element_bytes * count);
    for (int p = 0; p < CKPT_MAX_PLANES; p++) {
        if (p >= code.element_bytes || count == 0) {
            assert_int_equal(plane_bytes[p], 0);
            continue;
        }
        assert_int_equal(ZSTD_findFrameCompressedSize(in, plane_bytes[p]), plane_bytes[p]);
        assert_int_equal(ZSTD_getFrameContentSize(in, plane_bytes[p]), count);
        assert_true(plane_bytes[p] <= count + CKPT_FRAME_HEAD);
        assert_true(level > 0 || plane_bytes[p] > count);
        in += plane_bytes[p];
    }
}

static void check_block(struct ckpt_block_codec *codec, int level, struct ckpt_block_code code,
                        size_t count)
{
    const size_t raw = code.element_bytes * count, room = ckpt_encode_bound(code, count);
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    struct base_error error = {.result = ZERO_OK};
    assert_true(room + GUARD <= sizeof stored);
    memset(stored, 0xee, sizeof stored);
    memset(decoded, 0xee, sizeof decoded);
    assert_int_equal(
        ckpt_encode(codec, code, elements + 1, count, stored + 3, room, plane_bytes, &error),
        ZERO_OK);
    const size_t bytes = ckpt_stored_bytes(plane_bytes);
    assert_true(bytes <= room);
    assert_true(is_all(stored, 3, 0xee) && is_all(stored + 3 + room, GUARD - 3, 0xee));
    check_frames(code, count, stored + 3, plane_bytes, level);
    assert_int_equal(ckpt_decode(codec, code, stored + 3, plane_bytes, decoded + 1, count, &error),
                     ZERO_OK);
    assert_memory_equal(decoded + 1, elements + 1, raw);
    assert_true(decoded[0] == 0xee && is_all(decoded + 1 + raw, GUARD, 0xee));
    assert_int_equal(error.result, ZERO_OK);
}

// Every code, count and kind at a level; the codec is the same for all of them.
static void round_trips(int level)
{
    struct ckpt_block_codec *codec;
    int number = 0;
    assert_int_equal(ckpt_block_codec_create(&codec, level, NULL), ZERO_OK);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int k = 0; k < BLOCK_KINDS; k++)
            for (int i = 0; i < BLOCK_CODES; i++) {
                if (!test_takes(number++) || (level > 1 && counts[c] > 5000 && number % 11 != 0))
                    continue;
                block_fill((enum block_kind)k, block_codes[i], c, elements + 1, counts[c]);
                check_block(codec, level, block_codes[i], counts[c]);
            }
    ckpt_block_codec_destroy(codec);
}

static void blocks_come_back(void **state)
{
    (void)state;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        round_trips(levels[l]);
}

// A codec that has done other things before, and has failed, gives the same bytes as a fresh one.
static void bytes_depend_on_nothing_else(void **state)
{
    (void)state;
    struct ckpt_block_codec *used, *fresh;
    uint32_t lengths[2][CKPT_MAX_PLANES];
    assert_int_equal(ckpt_block_codec_create(&used, CKPT_LEVEL_DEFAULT, NULL), ZERO_OK);
    for (int k = 0; k < BLOCK_KINDS; k++)
        for (int i = 0; i < BLOCK_CODES; i++) {
            const struct ckpt_block_code code = block_codes[i];
            const size_t count = 30000, room = ckpt_encode_bound(code, count);
            block_fill((enum block_kind)k, code, 0, elements, count);
            assert_int_equal(ckpt_block_codec_create(&fresh, CKPT_LEVEL_DEFAULT, NULL), ZERO_OK);
            memset(stored, 0, room);
            ckpt_decode(used, code, stored, (uint32_t[CKPT_MAX_PLANES]){9}, decoded, count, NULL);
            assert_int_equal(
                ckpt_encode(used, code, elements, count, stored, room, lengths[0], NULL), ZERO_OK);
            assert_int_equal(
                ckpt_encode(fresh, code, elements, count, again, room, lengths[1], NULL), ZERO_OK);
            assert_memory_equal(lengths[0], lengths[1], sizeof lengths[0]);
            assert_memory_equal(stored, again, ckpt_stored_bytes(lengths[0]));
            ckpt_block_codec_destroy(fresh);
        }
    ckpt_block_codec_destroy(used);
}

static void check_table(const struct ckpt_planes *table, struct ckpt_block_code code, size_t count,
                        size_t shift)
{
    enum { ROOM = 1100 };
    static unsigned char out[2][CKPT_MAX_PLANES][ROOM], back[CKPT_MAX_PLANES * ROOM];
    const size_t raw = code.element_bytes * count;
    block_fill(BLOCK_NOISE, code, count, elements + shift, count);
    for (unsigned wanted = 0; wanted < 1u << code.element_bytes; wanted++) {
        unsigned char *to[2][CKPT_MAX_PLANES] = {{NULL}};
        memset(out, 0xee, sizeof out);
        for (size_t p = 0; p < code.element_bytes; p++)
            for (int t = 0; t < 2; t++)
                to[t][p] = wanted >> p & 1 ? out[t][p] + (shift + p) % 9 : NULL;
        ckpt_planes_ref.split(code, elements + shift, count, to[0]);
        table->split(code, elements + shift, count, to[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
    const unsigned char *from[CKPT_MAX_PLANES] = {NULL};
    for (size_t p = 0; p < code.element_bytes; p++)
        from[p] = out[1][p] + (shift + p) % 9;
    memset(back, 0xee, sizeof back);
    table->merge(code, from, count, back + shift);
    assert_memory_equal(back + shift, elements + shift, raw);
    assert_true(is_all(back, shift, 0xee) &&
                is_all(back + shift + raw, sizeof back - shift - raw, 0xee));
}

// And the definition equals a loop over bits: see check_frames().
static void tables_equal_their_definition(void **state)
{
    (void)state;
    const struct ckpt_planes *table;
    int number = 0;
    for (int t = 0; (table = ckpt_planes_at(t)); t++)
        for (size_t count = 0; count < 1030; count = count < 140 ? count + 1 : count + 61)
            for (int i = 0; i < BLOCK_CODES; i++)
                for (size_t shift = 0; shift < 3; shift++)
                    if (test_takes(number++))
                        check_table(table, block_codes[i], count, shift);
    print_message("the best table is %s\n", ckpt_planes_best()->name);
    assert_null(ckpt_planes_at(-1));
    assert_null(ckpt_planes_at(9));
}

static size_t stored_size(int level, enum block_kind kind, struct ckpt_block_code code)
{
    struct ckpt_block_codec *codec;
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    const size_t count = CKPT_BLOCK_ELEMENTS;
    block_fill(kind, code, 0, elements, count);
    assert_int_equal(ckpt_block_codec_create(&codec, level, NULL), ZERO_OK);
    assert_int_equal(ckpt_encode(codec, code, elements, count, stored,
                                 ckpt_encode_bound(code, count), plane_bytes, NULL),
                     ZERO_OK);
    ckpt_block_codec_destroy(codec);
    return ckpt_stored_bytes(plane_bytes);
}

static double ratio(int level, enum block_kind kind, struct ckpt_block_code code)
{
    return (double)code.element_bytes * CKPT_BLOCK_ELEMENTS /
           (double)stored_size(level, kind, code);
}

static void what_can_gain_gains(void **state)
{
    (void)state;
    const struct ckpt_block_code f32 = ckpt_block_code_of(ZERO_F32, false),
                                 bf16 = ckpt_block_code_of(ZERO_BF16, false),
                                 second = ckpt_block_code_of(ZERO_F32, true),
                                 bytes = ckpt_block_code_of(ZERO_I64, false);
    assert_int_equal(stored_size(1, BLOCK_ZEROS, f32), 4 * (CKPT_FRAME_HEAD + 1));
    assert_int_equal(stored_size(1, BLOCK_CONSTANT, bf16), 2 * (CKPT_FRAME_HEAD + 1));
    assert_int_equal(stored_size(1, BLOCK_CONSTANT, bytes), CKPT_FRAME_HEAD + 1);
    for (int level = 0; level < 3; level++)
        assert_int_equal(stored_size(level, BLOCK_NOISE, f32),
                         4 * (CKPT_FRAME_HEAD + CKPT_BLOCK_ELEMENTS));
    assert_int_equal(stored_size(0, BLOCK_ZEROS, f32), 4 * (CKPT_FRAME_HEAD + CKPT_BLOCK_ELEMENTS));
    // Entropy of the exponent of a normal distribution: 2.55 bits.
    assert_true(ratio(1, BLOCK_NORMAL, f32) > 1.20);
    assert_true(ratio(1, BLOCK_NORMAL, bf16) > 1.50);
    assert_true(ratio(1, BLOCK_NORMAL, f32) > ratio(1, BLOCK_NORMAL, second));
    assert_true(ratio(1, BLOCK_SQUARE, second) > 1.20);
    assert_true(ratio(1, BLOCK_SPARSE, f32) > 4);
    assert_true(ratio(5, BLOCK_SPARSE, f32) > ratio(1, BLOCK_SPARSE, f32));
}

// What a rare value, or a short run of one, saves is noticed in the sample.
static void small_gains_are_noticed(void **state)
{
    (void)state;
    const struct ckpt_block_code bytes = {1, 0};
    const size_t count = CKPT_BLOCK_ELEMENTS;
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    struct ckpt_block_codec *codec;
    assert_int_equal(ckpt_block_codec_create(&codec, CKPT_LEVEL_DEFAULT, NULL), ZERO_OK);
    for (int run = 0; run < 2; run++) {
        block_fill(BLOCK_NOISE, bytes, 0, elements, count);
        for (size_t i = 0; i < count; i++)
            if (run ? i < count / 10 : i % 16 == 5)
                elements[i] = 0;
        assert_int_equal(ckpt_encode(codec, bytes, elements, count, stored,
                                     ckpt_encode_bound(bytes, count), plane_bytes, NULL),
                         ZERO_OK);
        assert_true(plane_bytes[0] < count - count / 100);
    }
    ckpt_block_codec_destroy(codec);
}

// What zstd would make less than a hundredth smaller is stored: it is read faster. (At its lower
// levels zstd stores what gains less than a 64th.)
static void tiny_gains_are_not_taken(void **state)
{
    (void)state;
    const struct ckpt_block_code bytes = {1, 0};
    const size_t count = CKPT_BLOCK_ELEMENTS;
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    struct ckpt_block_codec *codec;
    block_fill(BLOCK_NOISE, bytes, 0, elements, count);
    memset(elements, 0, count / 150);
    assert_true(ZSTD_compress(stored, sizeof stored, elements, count, CKPT_LEVEL_MOST) < count);
    assert_int_equal(ckpt_block_codec_create(&codec, CKPT_LEVEL_MOST, NULL), ZERO_OK);
    assert_int_equal(ckpt_encode(codec, bytes, elements, count, stored,
                                 ckpt_encode_bound(bytes, count), plane_bytes, NULL),
                     ZERO_OK);
    assert_int_equal(plane_bytes[0], count + CKPT_FRAME_HEAD);
    ckpt_block_codec_destroy(codec);
}

static void refused_calls(void **state)
{
    (void)state;
    static const struct ckpt_block_code bad[] = {{0, 0}, {3, 0}, {8, 0}, {255, 1}, {1, 1}, {4, 2}};
    struct ckpt_block_codec *codec = (void *)elements;
    uint32_t plane_bytes[CKPT_MAX_PLANES] = {0};
    struct base_error error = {.result = ZERO_OK};
    static const int no_levels[] = {-1, 20, -100000};
    for (size_t i = 0; i < sizeof no_levels / sizeof *no_levels; i++) {
        assert_int_equal(ckpt_block_codec_bytes(no_levels[i]), 0);
        assert_int_equal(ckpt_block_codec_create(&codec, no_levels[i], &error), ZERO_E_INVALID);
        assert_null(codec);
    }
    assert_string_equal(error.message, "compression level -1 is not in 0 .. 19");
    ckpt_block_codec_destroy(codec);
    assert_int_equal(ckpt_block_codec_create(&codec, 1, NULL), ZERO_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            ckpt_encode(codec, bad[i], elements, 4, stored, sizeof stored, plane_bytes, NULL),
            ZERO_E_INVALID);
        assert_int_equal(ckpt_decode(codec, bad[i], stored, plane_bytes, decoded, 4, NULL),
                         ZERO_E_INVALID);
    }
    const struct ckpt_block_code f32 = {4, 1};
    const size_t large = CKPT_BLOCK_ELEMENTS + 1, room = ckpt_encode_bound(f32, 100);
    assert_int_equal(ckpt_encode(codec, f32, elements, large, stored, SIZE_MAX, plane_bytes, NULL),
                     ZERO_E_INVALID);
    assert_int_equal(ckpt_decode(codec, f32, stored, plane_bytes, decoded, large, NULL),
                     ZERO_E_INVALID);
    assert_int_equal(ckpt_encode(codec, f32, elements, 100, stored, room - 1, plane_bytes, NULL),
                     ZERO_E_INVALID);
    ckpt_block_codec_destroy(codec);
    ckpt_block_codec_destroy(NULL);
}

static void memory_is_known_and_all(void **state)
{
    (void)state;
    struct ckpt_block_codec *codec;
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    const struct ckpt_block_code f32 = {4, 1};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        const size_t bytes = ckpt_block_codec_bytes(levels[l]);
        assert_true(bytes > MOST_BYTES && bytes < (size_t)(levels[l] < 3 ? 1 : 8) << 20);
        assert_int_equal(ckpt_block_codec_create(&codec, levels[l], NULL), ZERO_OK);
        const struct mallinfo2 before = mallinfo2();
        const uint64_t allocations = base_allocation_count();
        for (size_t count = 1; count <= CKPT_BLOCK_ELEMENTS; count *= 2)
            for (int i = 0; i < (count < 1000 ? 200 : 1); i++) { // after many small ones, too
                block_fill(BLOCK_NORMAL, f32, 0, elements, count);
                assert_int_equal(ckpt_encode(codec, f32, elements, count, stored, sizeof stored,
                                             plane_bytes, NULL),
                                 ZERO_OK);
                assert_int_equal(ckpt_decode(codec, f32, stored, plane_bytes, decoded, count, NULL),
                                 ZERO_OK);
                const struct mallinfo2 now = mallinfo2();
                assert_int_equal(now.uordblks + now.hblkhd, before.uordblks + before.hblkhd);
            }
        assert_int_equal(base_allocation_count(), allocations);
        ckpt_block_codec_destroy(codec);
    }
    zero_result result = ZERO_E_NOMEM;
    for (int n = 1; result; n++) {
        char fault[32];
        snprintf(fault, sizeof fault, "alloc@%d", n);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        result = ckpt_block_codec_create(&codec, 1, NULL);
        assert_true(result == ZERO_E_NOMEM ? n < 10 && !codec : n > 2);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    ckpt_block_codec_destroy(codec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_back),
        cmocka_unit_test(bytes_depend_on_nothing_else),
        cmocka_unit_test(tables_equal_their_definition),
        cmocka_unit_test(what_can_gain_gains),
        cmocka_unit_test(small_gains_are_noticed),
        cmocka_unit_test(tiny_gains_are_not_taken),
        cmocka_unit_test(refused_calls),
        cmocka_unit_test(memory_is_known_and_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
