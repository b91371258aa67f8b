/**
 * checkpoint/codec/block_codec.h: a block of elements as bytes to be stored, and back.
 *
 * A block is at most CKPT_BLOCK_ELEMENTS elements of 1, 2 or 4 bytes. It is stored as one standard
 * zstd frame (RFC 8878) for each byte of an element, the most significant first: a frame's content
 * is a *plane*, one byte of every element in the elements' order. The bits of each element may be
 * rotated left by one before that. So `zstd -dc` of what is stored gives the planes, one after the
 * other. A block of no elements is stored as no bytes.
 *
 * What is stored is a function of level, code and elements: of no time, no processor, and no block
 * before; at the levels above CKPT_LEVEL_DEFAULT of the version of libzstd, too, which makes the
 * frames there. It has no checksum: the caller that stores it adds one.
 *
 * Why: the low bits of training state are noise, which nothing makes smaller; only the exponents
 * gain. Planes put them together, and the rotation moves the sign behind the mantissa, so that the
 * whole exponent of f32 and bf16 is one plane.
 */
#ifndef CHECKPOINT_CODEC_BLOCK_CODEC_H
#define CHECKPOINT_CODEC_BLOCK_CODEC_H

#include "base/error.h"

#include <stdbool.h>

enum {
    CKPT_BLOCK_ELEMENTS = 32768, /**< elements of a block, at most */
    CKPT_MAX_PLANES = 4,
    /** Every plane as it is; also for a codec that only decodes. */
    CKPT_LEVEL_STORED = 0,
    /** Planes that gain by their bytes' frequencies, encoded by huffman.h; no matches are searched
     * for. A sample decides which of them are tried, and of fewer than 1,024 bytes only those are
     * that repeat one. */
    CKPT_LEVEL_DEFAULT = 1,
    /** 2 ..: every plane at this level of zstd. At any level what gains less than a hundredth is
     * stored as it is. */
    CKPT_LEVEL_MOST = 19,
};

/** How the elements of a block become planes. */
struct ckpt_block_code {
    uint8_t element_bytes; /**< 1 (plain bytes), 2 or 4: as many planes */
    uint8_t rotate;        /**< 1: rotated left by one bit before; 0 for plain bytes */
};

/**
 * The code that is best for tensors of a dtype. never_negative: as second moments; their sign is no
 * noise, and is best left in front. f32, bf16 and f16 only (of f16, whose exponent fills no plane
 * either way, the rotated one gains little more: 0.05 % of trained weights): everything else is
 * plain bytes. *Local*, pure.
 */
struct ckpt_block_code ckpt_block_code_of(zero_dtype dtype, bool never_negative);

/** What one thread needs to encode and decode: memory of libzstd's, and room for a block's planes.
 * Used by one thread at a time. */
struct ckpt_block_codec;

/** Bytes that a codec of this level will have allocated; 0: there is no such level. *Local.* */
size_t ckpt_block_codec_bytes(int level);

/**
 * Makes a codec that encodes at this level, and decodes what any one has encoded: all the memory
 * that it will ever need. *codec is to be destroyed; after an error it is NULL. *Local.*
 * ZERO_E_INVALID: no such level; ZERO_E_NOMEM; ZERO_E_UNSUPPORTED: this libzstd cannot.
 */
zero_result ckpt_block_codec_create(struct ckpt_block_codec **codec, int level,
                                    struct base_error *error);

/** Frees it; accepts NULL. *Local.* */
void ckpt_block_codec_destroy(struct ckpt_block_codec *codec);

/** Bytes of room that encoding `count` elements wants: a little more than the elements have.
 * *Local*, pure. */
size_t ckpt_encode_bound(struct ckpt_block_code code, size_t count);

/**
 * Encodes a block: writes its frames to `out`, one after the other, and in that order the length of
 * each to plane_bytes; 0 beyond the last. Neither needs an alignment, and they don't overlap.
 * *Local*, any thread. Allocates nothing. ZERO_E_INVALID: no such code, too many elements, or
 * `room` below ckpt_encode_bound(); ZERO_E_UNSUPPORTED: libzstd failed, which it has no reason to.
 * After an error out is undefined.
 */
zero_result ckpt_encode(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                        const void *elements, size_t count, void *out, size_t room,
                        uint32_t plane_bytes[CKPT_MAX_PLANES], struct base_error *error);

/**
 * ckpt_encode() in two calls, for a caller that has to know the lengths before there is an `out`:
 * one for each of them, with the same codec and nothing else in between. The elements are read
 * until the second one has returned; `out` has ckpt_stored_bytes() bytes of room. After an error
 * there is no second one.
 */
zero_result ckpt_encode_begin(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                              const void *elements, size_t count,
                              uint32_t plane_bytes[CKPT_MAX_PLANES], struct base_error *error);
void ckpt_encode_end(struct ckpt_block_codec *codec, void *out);

/** Bytes of a block as it is stored: the sum of its planes'. Inline, *local.* */
static inline size_t ckpt_stored_bytes(const uint32_t plane_bytes[CKPT_MAX_PLANES])
{
    size_t bytes = 0;
    for (int p = 0; p < CKPT_MAX_PLANES; p++)
        bytes += plane_bytes[p];
    return bytes;
}

/**
 * Decodes a block of `count` elements from its ckpt_stored_bytes() bytes. Whatever these are, they
 * alone are read, and `elements` alone is written. *Local*, any thread. Allocates nothing.
 * ZERO_E_INVALID: no such code, or too many elements; ZERO_E_CORRUPT: a frame that is damaged, is
 * shorter or longer than its plane_bytes, or has another content size than `count`, more than one
 * segment, a dictionary or a checksum; the message names the frame. After an error elements are
 * undefined.
 */
zero_result ckpt_decode(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                        const void *stored, const uint32_t plane_bytes[CKPT_MAX_PLANES],
                        void *elements, size_t count, struct base_error *error);

#endif
