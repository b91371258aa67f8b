/**
 * checkpoint/entropy/streams_put.h: bits behind bits, for the files of the instruction sets.
 */
#ifndef CHECKPOINT_ENTROPY_STREAMS_PUT_H
#define CHECKPOINT_ENTROPY_STREAMS_PUT_H

#include "checkpoint/entropy/streams.h"

#include <stdbool.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a stream's first byte is the lowest");

#define INLINE static inline __attribute__((always_inline))

enum { MOST_PUT = 56 }; /**< bits at a time */

/** Where the next bits go: behind `filled` ones, 0 .. 7, that are not written yet. */
struct sink {
    unsigned char *at;
    uint64_t bits;
    unsigned filled;
};

INLINE void sink_put(struct sink *sink, uint64_t bits, unsigned length)
{
    sink->bits |= bits << sink->filled;
    const unsigned filled = sink->filled + length;
    memcpy(sink->at, &sink->bits, sizeof sink->bits);
    sink->at += filled / 8;
    sink->bits >>= filled & ~7U;
    sink->filled = filled % 8;
}

/** Ends a stream; returns where the next one begins. */
INLINE unsigned char *sink_end(struct sink *sink)
{
    sink_put(sink, 1, 1);
    return sink->at + (sink->filled > 0);
}

/** A byte's code above its length. */
struct entries {
    uint16_t of[256];
};

INLINE void make_entries(struct entries *entries, const struct ckpt_huffman *huffman)
{
    for (unsigned byte = huffman->first; byte <= huffman->last; byte++)
        entries->of[byte] = (uint16_t)(huffman->code[byte] << 8 | huffman->length[byte]);
}

/** Puts bytes, the last one first. */
INLINE void put_bytes(struct sink *sink, const struct entries *entries, const unsigned char *bytes,
                      size_t count)
{
    enum { AT_A_TIME = MOST_PUT / CKPT_HUFFMAN_LONGEST };
    while (count >= AT_A_TIME) {
        uint64_t bits = 0;
        unsigned length = 0;
        count -= AT_A_TIME;
#pragma GCC unroll 8
        for (size_t i = AT_A_TIME; i-- > 0;) {
            const unsigned entry = entries->of[bytes[count + i]];
            bits |= (uint64_t)(entry >> 8) << length;
            length += entry & 0xff;
        }
        sink_put(sink, bits, length);
    }
    while (count-- > 0)
        sink_put(sink, entries->of[bytes[count]] >> 8, entries->of[bytes[count]] & 0xff);
}

/** A table's functions where nothing is done to many bytes at once. */
INLINE void find_rare_bytes(const unsigned char *bytes, size_t count, uint32_t frequency[256])
{
    unsigned char there[256] = {0};
    for (size_t i = 0; i < count; i++)
        there[bytes[i]] = 1;
    for (size_t byte = 0; byte < 256; byte++)
        frequency[byte] += there[byte] && frequency[byte] == 0;
}

INLINE void put_streams(const struct ckpt_huffman *huffman, const unsigned char *bytes,
                        const size_t cut[5], unsigned char *out, size_t stream_bytes[4])
{
    struct entries entries;
    make_entries(&entries, huffman);
    for (int k = 0; k < 4; k++) {
        struct sink sink = {.at = out};
        put_bytes(&sink, &entries, bytes + cut[k], cut[k + 1] - cut[k]);
        stream_bytes[k] = (size_t)(sink_end(&sink) - out);
        out += stream_bytes[k];
    }
}

#endif
