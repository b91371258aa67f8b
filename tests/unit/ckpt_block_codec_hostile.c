// checkpoint/codec/block_codec.h against blocks that are damaged or made to do damage. What is
// decoded lies in memory of exactly its size, so that the address sanitizer sees a decoder that
// reads on.
#include "checkpoint/entropy/frame.h"
#include "tests/sweep.h"
#include "tests/unit/ckpt_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum { COUNT = 400, MOST = CKPT_MAX_PLANES * 2 * COUNT };

static struct ckpt_block_codec *codec;
static unsigned char elements[4 * COUNT], stored[MOST];
static uint32_t plane_bytes[CKPT_MAX_PLANES];

static int set_up(void **state)
{
    (void)state;
    return ckpt_block_codec_create(&codec, 5, NULL) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    ckpt_block_codec_destroy(codec);
    return 0;
}

static size_t encode(enum block_kind kind, struct ckpt_block_code code, size_t count)
{
    block_fill(kind, code, 0, elements, count);
    assert_true(ckpt_encode_bound(code, count) <= sizeof stored);
    assert_int_equal(
        ckpt_encode(codec, code, elements, count, stored, sizeof stored, plane_bytes, NULL),
        ZERO_OK);
    return ckpt_stored_bytes(plane_bytes);
}

// Decodes `bytes` bytes, which should be those of the lengths. Damage has a message, and what is
// none gives as many elements as it should; returns whether these are ours.
static zero_result decode(struct ckpt_block_code code, const unsigned char *in, size_t bytes,
                          const uint32_t lengths[CKPT_MAX_PLANES], size_t count, bool *same)
{
    const size_t raw = code.element_bytes * count;
    struct base_error error = {.result = ZERO_OK};
    unsigned char *copy = malloc(bytes + !bytes), *out = malloc(raw + !raw);
    assert_non_null(copy);
    assert_non_null(out);
    assert_int_equal(ckpt_stored_bytes(lengths), bytes);
    memcpy(copy, in, bytes);
    const zero_result result = ckpt_decode(codec, code, copy, lengths, out, count, &error);
    assert_true(result == ZERO_OK || result == ZERO_E_CORRUPT);
    assert_true(result == error.result && (result == ZERO_OK || error.message[0] != '\0'));
    *same = result == ZERO_OK && memcmp(out, elements, raw) == 0;
    free(copy);
    free(out);
    return result;
}

enum place { IN_HEAD, IN_CONTENT, OF_ZSTD };

// What a byte of a block is: of a frame that is written without libzstd, or of one that is not.
static enum place place_of(size_t at)
{
    const unsigned char *in = stored, *const byte = stored + at;
    int p = 0;
    for (; byte >= in + plane_bytes[p]; p++)
        in += plane_bytes[p];
    struct ckpt_frame frame;
    assert_null(ckpt_frame_read(in, plane_bytes[p], COUNT, &frame));
    if (frame.kind == CKPT_FRAME_OTHER)
        return OF_ZSTD;
    return byte < frame.content ? IN_HEAD : IN_CONTENT;
}

// Every bit in turn. Only a checksum sees it in what is stored as it is, nor always in what
// zstd coded; in everything else it is found.
static void flipped_bits(void **state)
{
    (void)state;
    for (int k = 0; k < BLOCK_KINDS; k++)
        for (int i = 0; i < BLOCK_CODES; i++) {
            const size_t bytes = encode((enum block_kind)k, block_codes[i], COUNT);
            for (size_t bit = 0; bit < 8 * bytes; bit++) {
                bool same;
                if (!test_takes((int)bit))
                    continue;
                const enum place place = place_of(bit / 8);
                stored[bit / 8] ^= (unsigned char)(1u << bit % 8);
                const zero_result result =
                    decode(block_codes[i], stored, bytes, plane_bytes, COUNT, &same);
                stored[bit / 8] ^= (unsigned char)(1u << bit % 8);
                assert_true(place != IN_HEAD || result == ZERO_E_CORRUPT);
                assert_true(place != IN_CONTENT || (result == ZERO_OK && !same));
            }
        }
}

// A frame that is shorter or longer than its length says, each by any number of bytes.
static void every_other_length(void **state)
{
    (void)state;
    bool same;
    for (int k = 0; k < BLOCK_KINDS; k++)
        for (int i = 0; i < BLOCK_CODES; i++) {
            const size_t bytes = encode((enum block_kind)k, block_codes[i], COUNT);
            assert_int_equal(decode(block_codes[i], stored, bytes, plane_bytes, COUNT, &same), 0);
            assert_true(same);
            for (size_t cut = 0, p = block_codes[i].element_bytes - 1u; cut < plane_bytes[p];
                 cut++) {
                uint32_t lengths[CKPT_MAX_PLANES];
                memcpy(lengths, plane_bytes, sizeof lengths);
                lengths[p] = (uint32_t)cut;
                assert_int_equal(decode(block_codes[i], stored, bytes - plane_bytes[p] + cut,
                                        lengths, COUNT, &same),
                                 ZERO_E_CORRUPT);
            }
            for (uint32_t more = 1; more < 12; more++) {
                uint32_t lengths[CKPT_MAX_PLANES];
                memcpy(lengths, plane_bytes, sizeof lengths);
                lengths[block_codes[i].element_bytes - 1] += more;
                memset(stored + bytes, 0, more);
                assert_int_equal(
                    decode(block_codes[i], stored, bytes + more, lengths, COUNT, &same),
                    ZERO_E_CORRUPT);
            }
        }
}

// Lengths that add up to the same, places that should be empty, and other numbers of elements.
static void lengths_that_do_not_fit(void **state)
{
    (void)state;
    bool same;
    const struct ckpt_block_code f32 = {4, 1}, f16 = {2, 1}, bytes = {1, 0};
    const size_t size = encode(BLOCK_NORMAL, f32, COUNT);
    uint32_t lengths[CKPT_MAX_PLANES];
    for (int p = 0; p + 1 < CKPT_MAX_PLANES; p++) {
        memcpy(lengths, plane_bytes, sizeof lengths);
        lengths[p]++;
        lengths[p + 1]--;
        assert_int_equal(decode(f32, stored, size, lengths, COUNT, &same), ZERO_E_CORRUPT);
    }
    assert_int_equal(decode(f16, stored, size, plane_bytes, COUNT, &same), ZERO_E_CORRUPT);
    assert_int_equal(decode(bytes, stored, size, plane_bytes, COUNT, &same), ZERO_E_CORRUPT);
    static const size_t others[] = {0, 1, COUNT - 1, COUNT + 1, 2 * COUNT, CKPT_BLOCK_ELEMENTS};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        unsigned char *out = malloc(4 * others[i] + 1);
        assert_non_null(out);
        assert_int_equal(ckpt_decode(codec, f32, stored, plane_bytes, out, others[i], NULL),
                         ZERO_E_CORRUPT);
        free(out);
    }
    memset(lengths, 0, sizeof lengths);
    assert_int_equal(decode(f32, stored, 0, lengths, 0, &same), ZERO_OK);
    assert_int_equal(decode(f32, stored, 0, lengths, 1, &same), ZERO_E_CORRUPT);
}

static size_t with_parameters(ZSTD_CCtx *context, bool checksum, bool size)
{
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, size);
    return ZSTD_compress2(context, stored, sizeof stored, elements, COUNT);
}

// Frames that zstd understands and that are none of ours.
static void other_frames(void **state)
{
    (void)state;
    const struct ckpt_block_code bytes = {1, 0};
    ZSTD_CCtx *context = ZSTD_createCCtx();
    bool same;
    block_fill(BLOCK_SPARSE, bytes, 0, elements, COUNT);
    uint32_t lengths[CKPT_MAX_PLANES] = {0};
    lengths[0] = (uint32_t)with_parameters(context, false, true);
    assert_int_equal(decode(bytes, stored, lengths[0], lengths, COUNT, &same), ZERO_OK);
    assert_true(same);
    // The same with an empty frame or a skippable one behind it.
    static const unsigned char behind[2][13] = {{0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0},
                                                {0x50, 0x2a, 0x4d, 0x18, 5, 0, 0, 0}};
    for (int i = 0; i < 2; i++) {
        const uint32_t more = i ? 13 : 9;
        uint32_t longer[CKPT_MAX_PLANES] = {lengths[0] + more};
        memcpy(stored + lengths[0], behind[i], more);
        assert_int_equal(decode(bytes, stored, longer[0], longer, COUNT, &same), ZERO_E_CORRUPT);
        assert_int_equal(
            decode(bytes, behind[i], more, (uint32_t[CKPT_MAX_PLANES]){more}, 5, &same),
            ZERO_E_CORRUPT);
    }
    lengths[0] = (uint32_t)with_parameters(context, true, true);
    assert_int_equal(decode(bytes, stored, lengths[0], lengths, COUNT, &same), ZERO_E_CORRUPT);
    lengths[0] = (uint32_t)with_parameters(context, false, false);
    assert_int_equal(decode(bytes, stored, lengths[0], lengths, COUNT, &same), ZERO_E_CORRUPT);
    ZSTD_freeCCtx(context);
}

// Several bytes at once, of blocks of all kinds, and of what an earlier damage has left.
static void random_damage(void **state)
{
    (void)state;
    enum { ROUNDS = 60000 / TEST_STRIDE };
    uint32_t seed = (uint32_t)TEST_PART << 24;
    int refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const struct ckpt_block_code code = block_codes[block_bits(1, seed++) % BLOCK_CODES];
        const size_t count = block_bits(2, seed++) % COUNT;
        const size_t bytes =
            encode((enum block_kind)(block_bits(3, seed++) % BLOCK_KINDS), code, count);
        bool same;
        for (uint32_t n = block_bits(4, seed++) % 6; n > 0 && bytes > 0; n--) {
            const uint32_t at = block_bits(5, seed++), value = block_bits(6, seed++);
            // Heads are where decisions are made.
            stored[value & 0x100 ? at % bytes : at % 24 % bytes] = (unsigned char)value;
        }
        refused += decode(code, stored, bytes, plane_bytes, count, &same) != ZERO_OK;
    }
    assert_true(refused > ROUNDS / 4 && refused < ROUNDS);
}

static void messages_name_the_frame(void **state)
{
    (void)state;
    const struct ckpt_block_code f32 = {4, 1};
    struct base_error error = {.result = ZERO_OK};
    encode(BLOCK_NOISE, f32, COUNT);
    stored[plane_bytes[0] + plane_bytes[1] + 1] ^= 1;
    assert_int_equal(ckpt_decode(codec, f32, stored, plane_bytes, elements, COUNT, &error),
                     ZERO_E_CORRUPT);
    assert_string_equal(error.message, "frame 2 of a block of 400 elements: its 410 bytes are no "
                                       "zstd frame of one segment with a content size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_bits),
        cmocka_unit_test(every_other_length),
        cmocka_unit_test(lengths_that_do_not_fit),
        cmocka_unit_test(other_frames),
        cmocka_unit_test(random_damage),
        cmocka_unit_test(messages_name_the_frame),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
