/**
 * tests/bench/tile_codec.h: the codec of checkpoints for tiles of w, m and v, one field behind the
 * other, each of f32.
 */
#ifndef TESTS_BENCH_TILE_CODEC_H
#define TESTS_BENCH_TILE_CODEC_H

#include "offload/codec.h"

enum { TILE_FIELDS = 3 };

/** Takes tiles of whole blocks of checkpoint/codec.h. */
extern const struct off_codec tile_codec;

#endif
