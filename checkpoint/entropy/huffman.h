/**
 * checkpoint/entropy/huffman.h: planes as zstd frames (RFC 8878) of one block whose literals are
 * coded by their frequencies and which has no sequences. Made without libzstd: the same bytes with
 * every version of it, and on every processor. All functions are *local* and pure.
 */
#ifndef CHECKPOINT_ENTROPY_HUFFMAN_H
#define CHECKPOINT_ENTROPY_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CKPT_HUFFMAN_LONGEST = 11, /**< bits of a byte's code, at most: the format's */
    CKPT_HUFFMAN_LEAST = 64,   /**< bytes of a plane that is encoded, at least */
    /** What is written behind a stream's end before the next one is. */
    CKPT_STREAM_SLACK = 8,
    CKPT_WEIGHTS_MOST = 128, /**< bytes of a code's description, at most */
};

/** A complete prefix code of bytes. */
struct ckpt_huffman {
    /** The longest codes begin with 0: none is as great as there are bytes that have one. */
    uint8_t code[256];
    uint8_t length[256];  /**< 0: that byte has no code */
    unsigned first, last; /**< bytes that have one */
    unsigned longest;
};

struct ckpt_streams; // streams.h

/** Bytes of room that encoding `count` bytes wants, whatever they are. */
#define CKPT_HUFFMAN_BOUND(count) ((count) / 8 * (CKPT_HUFFMAN_LONGEST + 1) + 256)

/**
 * Encodes a plane of CKPT_HUFFMAN_LEAST .. 65536 bytes, not all of which are the same; `out` has
 * CKPT_HUFFMAN_BOUND() bytes. Returns the bytes of the frame. 0: they would be more than `most`, or
 * all but a hundredth of the plane's, as far as some of its bytes show.
 */
size_t ckpt_huffman_frame(const struct ckpt_streams *streams, const unsigned char *plane,
                          size_t count, size_t most, unsigned char *out);

/** Chi-square of `count` bytes of these frequencies against evenly distributed ones, `count` times:
 * that of noise is 255 +- 23. It is a ninth of `count` more for bytes that gain a hundredth by
 * their frequencies: close to even ones have an entropy of 8 - x / (2 ln 2) bits, where x is
 * chi-square over `count`. */
uint64_t ckpt_huffman_unevenness(const uint32_t frequency[256], uint64_t count);

/** The best code for bytes of these frequencies, at least two of which are not 0 and whose sum is
 * below 2^20, but where codes would be too long: then one that is hardly worse. */
void ckpt_huffman_make(struct ckpt_huffman *huffman, const uint32_t frequency[256]);

/** Writes a code's description, at most CKPT_WEIGHTS_MOST bytes, and returns how many. */
size_t ckpt_huffman_describe(const struct ckpt_huffman *huffman, unsigned char *out);

#endif
