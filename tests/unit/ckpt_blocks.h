/**
 * tests/unit/ckpt_blocks.h: elements of every kind for the tests of the codec.
 */
#ifndef TESTS_UNIT_CKPT_BLOCKS_H
#define TESTS_UNIT_CKPT_BLOCKS_H

#include "checkpoint/codec/block_codec.h"

/** Every code there is. */
enum { BLOCK_CODES = 5 };
extern const struct ckpt_block_code block_codes[BLOCK_CODES];

/** What a block is filled with. */
enum block_kind {
    BLOCK_ZEROS,
    BLOCK_CONSTANT,
    BLOCK_NOISE,  /**< random bits */
    BLOCK_NAN,    /**< NaNs with payloads, infinities, and noise between them */
    BLOCK_NORMAL, /**< normally distributed floats, their upper halves, or the bytes of these */
    BLOCK_SQUARE, /**< their squares */
    BLOCK_SPARSE, /**< zeros but for every 50th element */
    BLOCK_KINDS
};

/** Fills `count` elements, at most CKPT_BLOCK_ELEMENTS, from element `first` of an endless row on.
 */
void block_fill(enum block_kind kind, struct ckpt_block_code code, size_t first, void *elements,
                size_t count);

/** Bits that look random: a function of its arguments. */
uint32_t block_bits(uint32_t seed, uint32_t index);

/** What the planes of elements are, one after the other, the most significant one first: a loop
 * that leaves nothing to doubt. */
void block_planes(struct ckpt_block_code code, const void *elements, size_t count,
                  unsigned char *planes);

#endif
