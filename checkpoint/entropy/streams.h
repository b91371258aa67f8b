/**
 * checkpoint/entropy/streams.h: what is done to every byte of a plane that is coded by its
 * frequencies, one table an instruction set. streams_ref.c defines it; every other table gives the
 * same bytes. All functions are *local* and pure.
 */
#ifndef CHECKPOINT_ENTROPY_STREAMS_H
#define CHECKPOINT_ENTROPY_STREAMS_H

#include "checkpoint/entropy/huffman.h"

struct ckpt_streams {
    size_t size;
    const char *name; /**< "ref", "avx2" */

    /** Bytes that are there and have a frequency of 0 get one of 1. */
    void (*find_rare)(const unsigned char *bytes, size_t count, uint32_t frequency[256]);

    /**
     * Writes the codes of bytes [cut[k], cut[k + 1]) as stream k, one behind the other. A stream
     * begins with the last byte's code, each from its lowest bit on; behind the first byte's is a
     * bit of 1, and zeros up to the end of a byte. Writes their lengths to stream_bytes, and up to
     * CKPT_STREAM_SLACK bytes more than these.
     */
    void (*put)(const struct ckpt_huffman *huffman, const unsigned char *bytes, const size_t cut[5],
                unsigned char *out, size_t stream_bytes[4]);
};

/** The i-th table this machine can run, the plainest first; NULL past the end. */
const struct ckpt_streams *ckpt_streams_at(int i);

/** The fastest one. */
const struct ckpt_streams *ckpt_streams_best(void);

extern const struct ckpt_streams ckpt_streams_ref;
extern const struct ckpt_streams ckpt_streams_avx2;

#endif
