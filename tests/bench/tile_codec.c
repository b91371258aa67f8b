#include "tests/bench/tile_codec.h"

#include "checkpoint/codec.h"

#include <string.h>

// What is stored begins with the length of each plane, a block's one after the other.
enum { BLOCK_BYTES = 4 * CKPT_BLOCK_ELEMENTS, LENGTHS_BYTES = 4 * CKPT_MAX_PLANES };

static struct ckpt_block_code code_of(size_t block, size_t blocks)
{
    const size_t field = block * TILE_FIELDS / blocks;
    return ckpt_block_code_of(ZERO_F32, field == TILE_FIELDS - 1);
}

static size_t bytes(const void *user)
{
    (void)user;
    return ckpt_codec_bytes(CKPT_LEVEL_DEFAULT);
}

static zero_result create(void **state, const void *user, struct base_error *error)
{
    (void)user;
    struct ckpt_codec *codec = NULL;
    const zero_result result = ckpt_codec_create(&codec, CKPT_LEVEL_DEFAULT, error);
    *state = codec;
    return result;
}

static void destroy(void *state)
{
    ckpt_codec_destroy(state);
}

static size_t encode(void *state, size_t tile, const void *contents, size_t size, void *out,
                     size_t room)
{
    (void)tile;
    const size_t blocks = size / BLOCK_BYTES;
    const unsigned char *from = contents;
    unsigned char *to = out;
    size_t at = blocks * LENGTHS_BYTES;
    uint32_t lengths[CKPT_MAX_PLANES];
    for (size_t b = 0; b < blocks; b++) {
        if (at > room || ckpt_encode(state, code_of(b, blocks), from + b * BLOCK_BYTES,
                                     CKPT_BLOCK_ELEMENTS, to + at, room - at, lengths, NULL))
            return 0;
        memcpy(to + b * LENGTHS_BYTES, lengths, sizeof lengths);
        at += ckpt_stored_bytes(lengths);
    }
    return at;
}

static zero_result decode(void *state, size_t tile, const void *in, size_t stored, void *contents,
                          size_t size, struct base_error *error)
{
    (void)tile;
    const size_t blocks = size / BLOCK_BYTES;
    const unsigned char *from = in;
    unsigned char *to = contents;
    size_t at = blocks * LENGTHS_BYTES;
    uint32_t lengths[CKPT_MAX_PLANES];
    for (size_t b = 0; b < blocks; b++) {
        if (at > stored)
            return zero_fail(error, ZERO_E_CORRUPT, "block %zu of %zu is missing", b, blocks);
        memcpy(lengths, from + b * LENGTHS_BYTES, sizeof lengths);
        if (ckpt_stored_bytes(lengths) > stored - at)
            return zero_fail(error, ZERO_E_CORRUPT, "block %zu of %zu is cut", b, blocks);
        const zero_result result = ckpt_decode(state, code_of(b, blocks), from + at, lengths,
                                               to + b * BLOCK_BYTES, CKPT_BLOCK_ELEMENTS, error);
        if (result)
            return result;
        at += ckpt_stored_bytes(lengths);
    }
    return ZERO_OK;
}

const struct off_codec tile_codec = {
    .size = sizeof(struct off_codec),
    .name = "planes",
    .bytes = bytes,
    .create = create,
    .encode = encode,
    .decode = decode,
    .destroy = destroy,
};
