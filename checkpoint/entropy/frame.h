/**
 * checkpoint/entropy/frame.h: the zstd frames (RFC 8878) of planes: the two kinds that are not
 * coded, the heads of those that are (huffman.h), and what is asked of any before it is decoded.
 * Every frame here has one segment, its content size, no dictionary and no checksum. All functions
 * are *local* and pure.
 */
#ifndef CHECKPOINT_ENTROPY_FRAME_H
#define CHECKPOINT_ENTROPY_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes that a frame of these adds to its content, at most. */
enum { CKPT_FRAME_HEAD = 10 };

/** What a frame is made of. */
enum ckpt_frame_kind {
    CKPT_FRAME_STORED,   /**< one block with the content as it is */
    CKPT_FRAME_REPEATED, /**< one block that repeats a byte */
    CKPT_FRAME_OTHER,    /**< something for libzstd */
};

/** A frame that has been read. */
struct ckpt_frame {
    enum ckpt_frame_kind kind;
    const unsigned char *content; /**< stored: all of it; repeated: the byte; else NULL */
};

/** Writes a number, its low byte first: as frames have them. */
void ckpt_frame_put(unsigned char *out, uint64_t value, size_t bytes);

/** Writes what precedes the content of a stored frame of `count` bytes, 1 .. 65536. Returns its
 * length, at most CKPT_FRAME_HEAD. */
size_t ckpt_frame_store(unsigned char *out, size_t count);

/** Writes a frame that repeats a byte `count` times, 1 .. 65536. Returns its length, at most
 * CKPT_FRAME_HEAD + 1. */
size_t ckpt_frame_repeat(unsigned char *out, size_t count, unsigned char byte);

/** Writes what precedes the only block of a frame, of `block_bytes` bytes of literals and
 * sequences, whose content has `count`, 1 .. 65536. Returns its length, which depends on `count`
 * only. */
size_t ckpt_frame_compressed(unsigned char *out, size_t count, size_t block_bytes);

/**
 * Reads a frame of `bytes` bytes whose content should have `count`. Returns NULL, or what is wrong
 * with it: for messages, after "its bytes". What libzstd is to decode is checked up to the first
 * block's head.
 */
const char *ckpt_frame_read(const unsigned char *in, size_t bytes, size_t count,
                            struct ckpt_frame *frame);

#endif
