/**
 * offload/tile_codec.h: what makes tiles smaller on their way to the file, and whole again.
 *
 * A table of functions that comes from above, because what gains is known where the contents are.
 * What is encoded is verified before it is decoded, so no decoder sees what no encoder has made; it
 * has to bear it all the same. None of the functions allocates but create.
 */
#ifndef OFFLOAD_TILE_CODEC_H
#define OFFLOAD_TILE_CODEC_H

#include "base/error.h"

struct off_tile_codec {
    size_t size;      /**< sizeof(struct off_tile_codec) */
    const char *name; /**< for messages */

    /** Bytes that a state will have allocated. `user` is that of the pipeline's config, here and
     * below. Pure. */
    size_t (*bytes)(const void *user);
    /** Makes what one thread needs. ZERO_E_NOMEM and others: *state is NULL. */
    zero_result (*create)(void **state, const void *user, struct base_error *error);
    /** Encodes the `bytes` bytes of a tile into at most `room` bytes, which are fewer; how many
     * they are, or 0: they don't fit. */
    size_t (*encode)(void *state, size_t tile, const void *contents, size_t bytes, void *out,
                     size_t room);
    /** Decodes a tile: reads the `stored` bytes alone, and writes the contents alone.
     * ZERO_E_CORRUPT: they are no tile of `bytes` bytes; contents is undefined then. */
    zero_result (*decode)(void *state, size_t tile, const void *in, size_t stored, void *contents,
                          size_t bytes, struct base_error *error);
    /** Frees it; accepts NULL. */
    void (*destroy)(void *state);
};

#endif
