/**
 * checkpoint/codec/planes.h: elements into the planes of their bytes and back, one table an
 * instruction set. planes_ref.c defines it; every other table gives the same bytes for every count
 * and alignment. All functions are *local* and pure.
 */
#ifndef CHECKPOINT_CODEC_PLANES_H
#define CHECKPOINT_CODEC_PLANES_H

#include "checkpoint/codec/block_codec.h"

#include <stddef.h>

/** Writes byte p of each element to plane[p], if that is not NULL. */
typedef void (*ckpt_split_fn)(struct ckpt_block_code code, const void *elements, size_t count,
                              unsigned char *const plane[CKPT_MAX_PLANES]);

/** Makes elements of all their planes again. */
typedef void (*ckpt_merge_fn)(struct ckpt_block_code code,
                              const unsigned char *const plane[CKPT_MAX_PLANES], size_t count,
                              void *elements);

struct ckpt_planes {
    size_t size;
    const char *name; /**< "ref", "avx2", "avx512" */
    ckpt_split_fn split;
    ckpt_merge_fn merge;
};

/** The i-th table this machine can run, the plainest first; NULL past the end. */
const struct ckpt_planes *ckpt_planes_at(int i);

/** The fastest one. */
const struct ckpt_planes *ckpt_planes_best(void);

extern const struct ckpt_planes ckpt_planes_ref;
extern const struct ckpt_planes ckpt_planes_avx2;
extern const struct ckpt_planes ckpt_planes_avx512;

#endif
