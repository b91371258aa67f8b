// RFC 8878, 4.2.1: the weights of the bytes below the last one that has a code, as they are, four
// bits each, or coded by their own frequencies, by finite state entropy; whatever is shorter.

#include "checkpoint/entropy/huffman.h"

#include <string.h>

enum {
    BYTES = 256,
    VALUES = CKPT_HUFFMAN_LONGEST + 1, // of a weight
    STATES_LOG = 6,                    // the most that the format allows here
    STATES = 1 << STATES_LOG,
    MOST_DIRECT = 128, // weights
    DIRECT_FROM = 127, // what is added to their number
    LEAST_CODED = 5,   // fewer are as they are
    // Bytes of coded ones, at most, and of their length: 255 weights of a complete code have less
    // than 3.5 bits each, as it has room for few great ones.
    ROOM = CKPT_WEIGHTS_MOST
};

// Bits, the first one is the lowest; `filled` of them, less than a word's, are not in bytes yet.
struct bits {
    unsigned char byte[ROOM + sizeof(uint32_t)];
    size_t bytes;
    uint64_t last;
    unsigned filled;
};

enum { WORD = 32 };

static void write_word(struct bits *bits)
{
    for (size_t i = 0; i < sizeof(uint32_t); i++)
        bits->byte[bits->bytes + i] = (unsigned char)(bits->last >> (8 * i));
}

static void put(struct bits *bits, unsigned value, unsigned length)
{
    bits->last |= (uint64_t)(value & ((1U << length) - 1)) << bits->filled;
    bits->filled += length;
    if (bits->filled < WORD)
        return;
    write_word(bits);
    bits->bytes += sizeof(uint32_t);
    bits->last >>= WORD;
    bits->filled -= WORD;
}

// All of them are in bytes, the last of which has zeros at its end.
static void end_bytes(struct bits *bits)
{
    write_word(bits);
    bits->bytes += (bits->filled + 7) / 8;
    bits->last = 0;
    bits->filled = 0;
}

// Shares of the states, by the frequencies of `count` weights: at least one for each that occurs,
// and two values have some: with a single one, nothing would say how many weights there are. The
// most frequent one has what is left, or gives what is missing.
static void share_states(unsigned share[VALUES], const unsigned frequency[VALUES], size_t count)
{
    unsigned sum = 0, values = 0, most = 0;
    for (unsigned v = 0; v < VALUES; v++) {
        share[v] = (unsigned)(frequency[v] * STATES / count);
        share[v] += frequency[v] > 0 && share[v] == 0;
        sum += share[v];
        values += share[v] > 0;
        most = frequency[v] > frequency[most] ? v : most;
    }
    if (values == 1) {
        share[most == 0] = 1;
        sum++;
    }
    share[most] += STATES - sum;
}

// 4.1.1: each share in as many bits as what is left may need, one less for some of the smaller
// ones; behind a share of none, how many more of these there are, by two bits up to two, 3 goes on.
static void describe_shares(struct bits *bits, const unsigned share[VALUES])
{
    unsigned left = STATES + 1, threshold = STATES, length = STATES_LOG + 1;
    put(bits, STATES_LOG - 5, 4);
    for (unsigned v = 0; left > 1;) {
        const unsigned short_ones = 2 * threshold - 1 - left;
        unsigned value = share[v] + 1;
        left -= share[v];
        value += value >= threshold ? short_ones : 0;
        put(bits, value, length - (value < short_ones));
        for (; left < threshold; threshold /= 2)
            length--;
        if (share[v++] > 0)
            continue;
        unsigned more = 0;
        for (; share[v] == 0; v++)
            more++;
        for (; more >= 3; more -= 3)
            put(bits, 3, 2);
        put(bits, more, 2);
    }
}

// The states of each value in ascending order, one value's behind the other's: first[v] is where.
static void spread_states(uint8_t state[STATES], unsigned first[VALUES],
                          const unsigned share[VALUES])
{
    uint8_t value_of[STATES];
    unsigned at = 0, sum = 0;
    for (unsigned v = 0; v < VALUES; v++) {
        first[v] = sum;
        sum += share[v];
        for (unsigned i = 0; i < share[v]; i++) {
            value_of[at] = (uint8_t)v;
            at = (at + STATES / 2 + STATES / 8 + 3) % STATES;
        }
    }
    unsigned next[VALUES];
    memcpy(next, first, sizeof next);
    for (unsigned s = 0; s < STATES; s++)
        state[next[value_of[s]]++] = (uint8_t)s;
}

// Two states take turns, from the last weight to the first, and the first one has that one.
static void code_weights(struct bits *bits, const uint8_t *weight, size_t count,
                         const unsigned share[VALUES])
{
    uint8_t state_of[STATES];
    unsigned first[VALUES], state[2], most[VALUES] = {0};
    spread_states(state_of, first, share);
    for (unsigned v = 0; v < VALUES; v++)
        while (share[v] > 0 && (2U * STATES - 1) >> most[v] >= 2 * share[v])
            most[v]++;
    for (size_t i = count; i-- > 0;) {
        const unsigned v = weight[i], all = STATES + state[i % 2];
        if (i + 2 >= count) { // nothing comes before it: the state that has the most bits
            state[i % 2] = state_of[first[v]];
            continue;
        }
        // What is left of `all` shall be less than two shares, and one at least.
        const unsigned length = most[v] - (all < share[v] << most[v]);
        put(bits, all, length);
        state[i % 2] = state_of[first[v] + (all >> length) - share[v]];
    }
    put(bits, state[1], STATES_LOG);
    put(bits, state[0], STATES_LOG);
    put(bits, 1, 1);
}

// Returns how many bytes it has written, SIZE_MAX: none, as there are too few weights.
static size_t write_coded(const uint8_t *weight, size_t count, unsigned char *out)
{
    struct bits bits = {.bytes = 1};
    unsigned frequency[VALUES] = {0}, share[VALUES];
    if (count < LEAST_CODED)
        return SIZE_MAX;
    for (size_t i = 0; i < count; i++)
        frequency[weight[i]]++;
    share_states(share, frequency, count);
    describe_shares(&bits, share);
    end_bytes(&bits);
    code_weights(&bits, weight, count, share);
    end_bytes(&bits);
    bits.byte[0] = (unsigned char)(bits.bytes - 1);
    memcpy(out, bits.byte, bits.bytes);
    return bits.bytes;
}

static size_t write_direct(const uint8_t *weight, size_t count, unsigned char *out)
{
    *out++ = (unsigned char)(DIRECT_FROM + count);
    for (size_t i = 0; i < count; i += 2)
        *out++ = (unsigned char)(weight[i] << 4 | (i + 1 < count ? weight[i + 1] : 0));
    return 1 + (count + 1) / 2;
}

size_t ckpt_huffman_describe(const struct ckpt_huffman *huffman, unsigned char *out)
{
    uint8_t weight[BYTES];
    const size_t count = huffman->last;
    for (size_t i = 0; i < count; i++)
        weight[i] = (uint8_t)(huffman->length[i] ? huffman->longest + 1 - huffman->length[i] : 0);
    const size_t coded = write_coded(weight, count, out);
    if (count > MOST_DIRECT || coded < 1 + (count + 1) / 2)
        return coded;
    return write_direct(weight, count, out);
}
