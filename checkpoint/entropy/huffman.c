#include "checkpoint/entropy/huffman.h"

#include "checkpoint/entropy/frame.h"
#include "checkpoint/entropy/streams.h"

#include <assert.h>
#include <string.h>

enum {
    BYTES = 256,
    STREAMS = 4,
    JUMPS = 2 * (STREAMS - 1), // bytes of the first streams' lengths
    // Heads of literals: their type, and by how many bits sizes and streams are given.
    LITERALS_HEAD = 5,
    CODED = 2,
    SIZES_OF_18 = 3 << 2,
    SIZE_AT = 4,
    PACKED_AT = 22,
    NO_SEQUENCES = 1, // bytes
    // What is counted: some runs of bytes.
    RUN = 64,
    ENOUGH = 4096,
    MOST_OF_RUNS = 8,
    TALLIES = 8,
};

// So that no count waits for the one before.
static void tally(uint32_t tallies[TALLIES][BYTES], const unsigned char *bytes)
{
    for (size_t i = 0; i < RUN; i += TALLIES) {
        uint64_t eight;
        memcpy(&eight, bytes + i, sizeof eight);
#pragma GCC unroll 8
        for (size_t t = 0; t < TALLIES; t++)
            tallies[t][eight >> (8 * t) & 0xff]++;
    }
}

// Frequencies that are near enough, of one run in some. Where the run is moves on, so that it is
// not the same part of every row of a matrix. Returns how many bytes were counted.
static size_t estimate(const unsigned char *plane, size_t count, uint32_t frequency[BYTES])
{
    uint32_t tallies[TALLIES][BYTES] = {{0}};
    const size_t runs = count / RUN;
    size_t counted = 0;
    const size_t of = count < 2 * ENOUGH              ? 1
                      : count / ENOUGH < MOST_OF_RUNS ? count / ENOUGH
                                                      : MOST_OF_RUNS;
    for (size_t k = 0; k * of < runs; k++) {
        const size_t run = k * of + (5 * k + k / of) % of;
        if (run < runs) {
            tally(tallies, plane + run * RUN);
            counted += RUN;
        }
    }
    for (size_t byte = 0; byte < BYTES; byte++) {
        frequency[byte] = 0;
        for (size_t t = 0; t < TALLIES; t++)
            frequency[byte] += tallies[t][byte];
    }
    return counted;
}

uint64_t ckpt_huffman_unevenness(const uint32_t frequency[256], uint64_t count)
{
    uint64_t squares = 0;
    for (size_t byte = 0; byte < BYTES; byte++)
        squares += (uint64_t)frequency[byte] * frequency[byte];
    return BYTES * squares - count * count;
}

// Whether they gain less than a hundredth, as far as can be seen without making a code.
static bool is_even(const uint32_t frequency[BYTES], uint64_t count)
{
    return ckpt_huffman_unevenness(frequency, count) < (BYTES - 1) * count + count * count / 9;
}

// Writes the literals of a block behind room for their head, and it before them.
static size_t write_literals(const struct ckpt_streams *streams, const struct ckpt_huffman *huffman,
                             const unsigned char *plane, size_t count, unsigned char *out)
{
    const size_t segment = (count + STREAMS - 1) / STREAMS;
    const size_t cut[STREAMS + 1] = {0, segment, 2 * segment, 3 * segment, count};
    size_t stream_bytes[STREAMS];
    unsigned char *jumps = out + LITERALS_HEAD;
    jumps += ckpt_huffman_describe(huffman, jumps);
    unsigned char *end = jumps + JUMPS;
    streams->put(huffman, plane, cut, end, stream_bytes);
    for (size_t k = 0; k < STREAMS; k++) {
        if (k < STREAMS - 1)
            ckpt_frame_put(jumps + 2 * k, stream_bytes[k], 2);
        end += stream_bytes[k];
    }
    const uint64_t packed = (uint64_t)(end - out) - LITERALS_HEAD;
    assert(count >> (PACKED_AT - SIZE_AT) == 0 && packed >> (PACKED_AT - SIZE_AT) == 0);
    ckpt_frame_put(out, CODED | SIZES_OF_18 | (uint64_t)count << SIZE_AT | packed << PACKED_AT,
                   LITERALS_HEAD);
    return (size_t)(end - out);
}

size_t ckpt_huffman_frame(const struct ckpt_streams *streams, const unsigned char *plane,
                          size_t count, size_t most, unsigned char *out)
{
    uint32_t frequency[BYTES];
    struct ckpt_huffman huffman;
    const size_t counted = estimate(plane, count, frequency);
    if (is_even(frequency, counted))
        return 0;
    streams->find_rare(plane, count, frequency);
    ckpt_huffman_make(&huffman, frequency);
    const size_t head = ckpt_frame_compressed(out, count, 0);
    const size_t literals = write_literals(streams, &huffman, plane, count, out + head);
    const size_t block = literals + NO_SEQUENCES;
    if (head + block > most)
        return 0;
    out[head + literals] = 0;
    ckpt_frame_compressed(out, count, block);
    return head + block;
}
