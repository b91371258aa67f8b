// checkpoint/entropy/huffman.h: frames that stock zstd takes for what they were made of, the same
// from every table, and about as small as frequencies can make them.
#include "checkpoint/entropy/frame.h"
#include "checkpoint/entropy/streams.h"
#include "tests/sweep.h"
#include "tests/unit/ckpt_blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

enum { MOST = 65536, ROOM = CKPT_HUFFMAN_BOUND(MOST), GUARD = 64, TABLES = 4, DEEPEST = 16 };

static unsigned char plane[MOST + GUARD], back[MOST];
static unsigned char frame[TABLES][ROOM + GUARD];

// How bytes are distributed.
enum kind {
    HALVING,     // each of 40 is half as frequent as the one before
    TWO,         // far from each other
    FROM_0,      // halving, from byte 0 on: 128 of them and more
    WIDE,        // every byte, some hardly ever
    FLAT,        // a hundred, all alike
    LONG_PAIRS,  // 48, all alike, and 60 that are rare: neighbours have 17 bits together
    NOISE,       // all 256
    EVEN,        // one with 2 bits, most with 8, two with 7, four with 9
    EQUAL_BUT_1, // 192 with codes of one length, and one far more frequent
    FIBONACCI,   // frequencies that make Huffman's tree as deep as can be
    RARE_ONES,   // one in a thousand is another one
    SPARSE,      // halving, but every 50th is 0
    HIGH,        // the upper 64 only
    ACROSS,      // the 64 around 128
    KINDS
};

static uint32_t draw(size_t i)
{
    return block_bits(11, (uint32_t)i);
}

static unsigned halving(uint32_t bits, unsigned most)
{
    unsigned n = 0;
    for (; n < most && (bits >> n % 32 & 1); n++)
        ;
    return n;
}

// The i-th of bytes whose frequencies are the first numbers of Fibonacci's.
static unsigned fibonacci(size_t i)
{
    uint32_t one = 1, next = 1, at = (uint32_t)i % 46367; // the sum of the first 22
    for (unsigned byte = 0;; byte++) {
        if (at < one)
            return byte * 7;
        at -= one;
        const uint32_t sum = one + next;
        one = next;
        next = sum;
    }
}

static unsigned byte_of(enum kind kind, size_t i)
{
    const uint32_t bits = draw(i);
    switch (kind) {
    case HALVING:
        return 120 - halving(bits, 40);
    case TWO:
        return bits % 2 ? 7 : 250;
    case FROM_0:
        return halving(bits, 31) * 5;
    case WIDE:
        return bits % 8 ? halving(bits >> 3, 28) : bits >> 3 & 0xff;
    case FLAT:
        return bits % 100;
    case LONG_PAIRS:
        return bits % 300 ? bits % 48 : 48 + (bits >> 10) % 60;
    case NOISE:
        return bits & 0xff;
    case EVEN:
        i = i * 5 % 512;
        return (unsigned)(i < 128 ? 255 : i < 500 ? i / 2 - 64 : i < 508 ? 186 + i % 2 : i - 320);
    case EQUAL_BUT_1:
        return bits % 4 ? (unsigned)(i % 192) : 192;
    case FIBONACCI:
        return fibonacci(i * 20011);
    case RARE_ONES:
        return bits % 1000 ? 255 : bits >> 10 & 0xff;
    case SPARSE:
        return bits % 50 ? 120 - halving(bits >> 6, 25) : 0;
    case HIGH:
        return 192 + halving(bits, 31) * 2;
    default:
        return 96 + (bits & 63 & bits >> 6);
    }
}

static bool fill(enum kind kind, size_t count)
{
    bool mixed = false;
    for (size_t i = 0; i < count; i++) {
        plane[i] = (unsigned char)byte_of(kind, i);
        mixed = mixed || plane[i] != plane[0];
    }
    return mixed;
}

// What every table makes of the plane: one frame. Returns its length.
static size_t encode(size_t count, size_t most)
{
    const struct ckpt_streams *table;
    size_t bytes = 0;
    for (int t = 0; (table = ckpt_streams_at(t)); t++) {
        memset(frame[t], 0xee, sizeof frame[t]);
        const size_t length = ckpt_huffman_frame(table, plane, count, most, frame[t]);
        const size_t room = CKPT_HUFFMAN_BOUND(count);
        for (size_t i = room; i < room + GUARD; i++)
            assert_int_equal(frame[t][i], 0xee);
        assert_true(length <= most && length <= room);
        if (t > 0) {
            assert_int_equal(length, bytes);
            assert_memory_equal(frame[t], frame[0], bytes);
        }
        bytes = length;
    }
    return bytes;
}

// Whether there is a frame of such bytes; if so, they come back.
static bool check(enum kind kind, size_t count)
{
    if (!fill(kind, count))
        return false;
    // zstd refuses a block that is longer than its content.
    const size_t most = count + CKPT_FRAME_HEAD - 3, bytes = encode(count, most);
    if (bytes == 0)
        return false;
    assert_int_equal(ZSTD_findFrameCompressedSize(frame[0], bytes), bytes);
    assert_int_equal(ZSTD_getFrameContentSize(frame[0], bytes), count);
    assert_int_equal(ZSTD_decompress(back, MOST, frame[0], bytes), count);
    assert_memory_equal(back, plane, count);
    assert_int_equal(encode(count, bytes), bytes);
    assert_int_equal(encode(count, bytes - 1), 0);
    return true;
}

static void frames_come_back(void **state)
{
    (void)state;
    int number = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t count = CKPT_HUFFMAN_LEAST; count <= MOST; count += count < 300     ? 1
                                                                        : count < 60000 ? count / 3
                                                                                        : 431)
            if (test_takes(number++))
                (void)check((enum kind)kind, count);
    for (int kind = 0; kind < KINDS; kind++)
        assert_true(check((enum kind)kind, MOST) || kind == NOISE);
}

// Bytes in every window of 64, and in several: lookups in registers go by these.
static void every_range_comes_back(void **state)
{
    (void)state;
    const size_t count = 2000;
    int number = 0;
    for (unsigned first = 0; first < 255; first++)
        for (unsigned span = 1; first + span < 256; span++) {
            const bool border = span % 64 == 0 || span % 64 == 63;
            if ((!border && span % 17 > 1) || !test_takes(number++))
                continue;
            const bool down = number % 2 == 0; // which end of the range is the frequent one
            for (size_t i = 0; i < count; i++) {
                const unsigned away = halving(draw(i), 31) * span / 31;
                plane[i] = (unsigned char)(down ? first + span - away : first + away);
            }
            plane[count / 2] = (unsigned char)(down ? first : first + span);
            const size_t bytes = encode(count, count);
            assert_int_not_equal(bytes, 0);
            assert_int_equal(ZSTD_decompress(back, MOST, frame[0], bytes), count);
            assert_memory_equal(back, plane, count);
        }
}

// What streams are, bit by bit.
static size_t plain_stream(const struct ckpt_huffman *huffman, size_t first, size_t end,
                           unsigned char *out)
{
    size_t at = 0;
    memset(out, 0, MOST);
    for (size_t i = end; i-- > first;)
        for (unsigned b = 0; b < huffman->length[plane[i]]; b++, at++)
            out[at / 8] |= (unsigned char)((huffman->code[plane[i]] >> b & 1) << at % 8);
    out[at / 8] |= (unsigned char)(1 << at % 8);
    return at / 8 + 1;
}

static void count_bytes(uint32_t frequency[256], size_t count)
{
    memset(frequency, 0, 256 * sizeof *frequency);
    for (size_t i = 0; i < count; i++)
        frequency[plane[i]]++;
}

static void tables_equal_their_definition(void **state)
{
    (void)state;
    const struct ckpt_streams *table;
    struct ckpt_huffman huffman;
    uint32_t frequency[256], wanted[256];
    for (int t = 0; (table = ckpt_streams_at(t)); t++)
        for (int kind = 0; kind < KINDS; kind++) {
            const size_t cut[5] = {0, 1, 300, 1003, 2048};
            size_t lengths[4];
            fill((enum kind)kind, cut[4]);
            plane[9] ^= 1; // two at least
            count_bytes(wanted, cut[4]);
            ckpt_huffman_make(&huffman, wanted);
            for (size_t i = 0; kind == EVEN && i < cut[4]; i++) // 8 and 9 bits together, the rest 2
                plane[i] = i % 64 == 20 ? 185 : i % 64 == 21 ? 189 : 255;
            count_bytes(wanted, cut[4]);
            const unsigned char *at = frame[0];
            table->put(&huffman, plane, cut, frame[0], lengths);
            for (int k = 0; k < 4; at += lengths[k++]) {
                assert_int_equal(lengths[k], plain_stream(&huffman, cut[k], cut[k + 1], back));
                assert_memory_equal(at, back, lengths[k]);
            }
            memcpy(frequency, wanted, sizeof frequency);
            for (unsigned byte = 0; byte < 256; byte += 1 + byte % 3)
                frequency[byte] = 0;
            for (unsigned byte = 0; byte < 256; byte++)
                wanted[byte] = frequency[byte] > 0 ? frequency[byte] : wanted[byte] > 0;
            table->find_rare(plane, cut[4], frequency);
            assert_memory_equal(frequency, wanted, sizeof wanted);
        }
    print_message("the best table is %s\n", ckpt_streams_best()->name);
    assert_null(ckpt_streams_at(-1));
    assert_null(ckpt_streams_at(9));
}

// Bits of the best code, by taking the two rarest together, again and again.
static double best_bits(const uint32_t frequency[256])
{
    double node[256], bits = 0;
    int count = 0;
    for (int byte = 0; byte < 256; byte++)
        if (frequency[byte])
            node[count++] = frequency[byte];
    for (; count > 1; count--) {
        double rare[2];
        for (int k = 0; k < 2; k++) {
            int least = 0;
            for (int i = 1; i < count - k; i++)
                least = node[i] < node[least] ? i : least;
            rare[k] = node[least];
            node[least] = node[count - 1 - k];
        }
        node[count - 2] = rare[0] + rare[1];
        bits += rare[0] + rare[1];
    }
    return bits;
}

// A code is complete, its codes are what the format says, and it is as good as the best one where
// no code is as long as may be.
static void check_code(const uint32_t frequency[256])
{
    struct ckpt_huffman huffman;
    unsigned taken = 0, next[DEEPEST] = {0}, of_length[DEEPEST] = {0};
    double bits = 0;
    ckpt_huffman_make(&huffman, frequency);
    for (unsigned byte = 0; byte < 256; byte++) {
        const unsigned length = huffman.length[byte];
        assert_int_equal(length > 0, frequency[byte] > 0);
        assert_true(length <= CKPT_HUFFMAN_LONGEST && length <= huffman.longest);
        assert_true(length == 0 || (byte >= huffman.first && byte <= huffman.last));
        taken += length ? 1U << (CKPT_HUFFMAN_LONGEST - length) : 0;
        of_length[length]++;
        bits += (double)frequency[byte] * length;
    }
    assert_int_equal(taken, 1U << CKPT_HUFFMAN_LONGEST);
    assert_true(huffman.length[huffman.first] && huffman.length[huffman.last]);
    assert_true(of_length[huffman.longest] > 0);
    for (unsigned length = huffman.longest; length > 1; length--)
        next[length - 1] = (next[length] + of_length[length]) / 2;
    for (unsigned byte = 0; byte < 256; byte++)
        if (huffman.length[byte])
            assert_int_equal(huffman.code[byte], next[huffman.length[byte]]++);
    const double best = best_bits(frequency);
    assert_true(huffman.longest < CKPT_HUFFMAN_LONGEST ? bits == best : bits <= 1.05 * best);
    unsigned char description[CKPT_WEIGHTS_MOST + 1] = {0};
    description[CKPT_WEIGHTS_MOST] = 0xee;
    assert_true(ckpt_huffman_describe(&huffman, description) <= CKPT_WEIGHTS_MOST);
    assert_int_equal(description[CKPT_WEIGHTS_MOST], 0xee);
}

static void codes_are_the_best(void **state)
{
    (void)state;
    uint32_t frequency[256];
    for (uint32_t seed = 0; seed < 2000; seed++) {
        const unsigned values = 2 + block_bits(1, seed) % 255, spread = block_bits(2, seed) % 10;
        for (unsigned byte = 0; byte < 256; byte++)
            frequency[byte] = byte < values ? 1 + (block_bits(3 + seed, byte) & 0x3ff) *
                                                      (block_bits(4, byte) & ((1U << spread) - 1))
                                            : 0;
        check_code(frequency);
    }
    // Two, and what makes the deepest tree.
    memset(frequency, 0, sizeof frequency);
    frequency[0] = frequency[255] = 1;
    check_code(frequency);
    uint32_t next = 1;
    for (unsigned byte = 0; byte < 28; byte++) {
        frequency[3 * byte] = next;
        next = byte == 0 ? 1 : next + frequency[3 * byte - 3];
    }
    frequency[255] = 1;
    check_code(frequency);
}

// What is not in the sample costs little, and a plane whose sample misleads is not encoded.
static void samples_may_mislead(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOST; i++)
        plane[i] = (unsigned char)(i % 512 < 64 ? 1 : draw(i));
    assert_true(encode(MOST, MOST) >
                0); // rows whose first part is another one are seen as they are
    fill(HALVING, MOST);
    double bits = 0;
    uint32_t frequency[256];
    count_bytes(frequency, MOST);
    for (int byte = 0; byte < 256; byte++)
        if (frequency[byte])
            bits -= frequency[byte] * log2(frequency[byte] / (double)MOST);
    assert_true((double)encode(MOST, MOST) < 1.01 * bits / 8 + CKPT_WEIGHTS_MOST);
    // Runs of 64 that are counted have few bytes, the others all.
    for (size_t run = 0; run < MOST / 64; run++)
        for (size_t i = 64 * run; i < 64 * run + 64; i++)
            plane[i] = (unsigned char)(run % 8 == (5 * (run / 8) + run / 64) % 8
                                           ? 120 - halving(draw(i), 40)
                                           : draw(i));
    assert_int_equal(encode(MOST, MOST), 0);
    assert_true(encode(MOST, ROOM) > MOST);
}

// A plane without its own code's gain of a hundredth is seen to have none before one is made, and
// one with a little more is encoded: of bytes whose lower half is the more frequent one.
static void gains_of_a_hundredth_are_seen(void **state)
{
    (void)state;
    for (uint32_t moved = 0; moved < 1000; moved += 20) { // thousandths of the upper half
        const double uneven = moved * 1e-3, gain = uneven * uneven / (2 * log(2) * 8);
        for (size_t i = 0; i < MOST; i++) {
            const uint32_t bits = draw(i), byte = bits & 0xff;
            plane[i] =
                (unsigned char)(byte >= 128 && (bits >> 8) % 1000 < moved ? byte - 128 : byte);
        }
        const size_t bytes = encode(MOST, ROOM);
        if (gain < 0.008)
            assert_int_equal(bytes, 0);
        if (gain > 0.012)
            assert_true(bytes > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_back),
        cmocka_unit_test(every_range_comes_back),
        cmocka_unit_test(tables_equal_their_definition),
        cmocka_unit_test(codes_are_the_best),
        cmocka_unit_test(samples_may_mislead),
        cmocka_unit_test(gains_of_a_hundredth_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
