/**
 * zero/store/nvme_codec.h: tiles of state, made smaller on their way to the file: a codec of
 * offload/pipeline.h, whose `user` is the struct eng_tiles.
 *
 * Each field of each piece is encoded in blocks, as checkpoints have them
 * (checkpoint/codec/block_codec.h): of CKPT_BLOCK_ELEMENTS elements, and the last one of the rest.
 * A stored block begins with the bytes that each of its planes has: CKPT_MAX_PLANES numbers of 32
 * bits in the processor's order. The planes come next. Blocks lie one behind the other. Where they
 * begin and end in the tile follows from how that was cut, so all is there to be decoded in any
 * other job of this identity.
 */
#ifndef ZERO_STORE_NVME_CODEC_H
#define ZERO_STORE_NVME_CODEC_H

#include "offload/tile_codec.h"

extern const struct off_tile_codec eng_tile_codec;

#endif
