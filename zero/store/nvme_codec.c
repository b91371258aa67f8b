#include "zero/store/nvme_codec.h"

#include "base/arena.h"
#include "checkpoint/codec/block_codec.h"
#include "zero/model/state_tiles.h"

#include <assert.h>
#include <string.h>

struct coder {
    const struct eng_tiles *tiles;
    struct ckpt_block_codec *codec;
};

/** Elements that are encoded together, from byte `offset` of a tile on. */
struct block {
    struct ckpt_block_code code;
    size_t offset, count;
};

/** Where the next block of a tile is. */
struct cursor {
    const struct eng_piece *piece, *end;
    int field;
    size_t first; /**< element of the piece */
};

static struct cursor first_block(const struct eng_tiles *tiles, size_t tile)
{
    const struct eng_piece_range range = tiles->of_tile[tile];
    assert(tile < tiles->count && range.count > 0);
    const struct eng_piece *piece = tiles->pieces + range.first;
    return (struct cursor){.piece = piece, .end = piece + range.count};
}

static struct ckpt_block_code code_of(const struct eng_piece *piece, int field)
{
    const size_t size = field == 0 ? piece->weight_size : piece->moment_size;
    const bool never_negative = field > 0 && (piece->never_negative >> (field - 1) & 1);
    return ckpt_block_code_of(size == sizeof(float) ? ZERO_F32 : ZERO_BF16, never_negative);
}

/** false: that was the last one. */
static bool next_block(struct cursor *at, struct block *block)
{
    const struct eng_piece *piece = at->piece;
    if (piece == at->end)
        return false;
    const size_t all = piece->granules * BASE_GRANULE, left = all - at->first;
    assert(at->first < all && at->field <= piece->moments);
    *block = (struct block){
        .code = code_of(piece, at->field),
        .offset = eng_piece_offset(piece, at->field, piece->first * BASE_GRANULE + at->first),
        .count = left < CKPT_BLOCK_ELEMENTS ? left : CKPT_BLOCK_ELEMENTS,
    };
    at->first += block->count;
    if (at->first == all) {
        at->first = 0;
        at->piece += at->field == piece->moments;
        at->field = at->field == piece->moments ? 0 : at->field + 1;
    }
    return true;
}

static size_t bytes(const void *user)
{
    (void)user;
    return sizeof(struct coder) + ckpt_block_codec_bytes(CKPT_LEVEL_DEFAULT);
}

static void destroy(void *state)
{
    struct coder *coder = state;
    if (!coder)
        return;
    ckpt_block_codec_destroy(coder->codec);
    base_free(coder);
}

static zero_result create(void **state, const void *user, struct base_error *error)
{
    struct coder *coder = base_calloc(1, sizeof *coder);
    *state = coder;
    if (!coder)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a codec of tiles");
    coder->tiles = user;
    const zero_result r = ckpt_block_codec_create(&coder->codec, CKPT_LEVEL_DEFAULT, error);
    if (r) {
        destroy(coder);
        *state = NULL;
    }
    return r;
}

static size_t encode(void *state, size_t tile, const void *contents, size_t size, void *out,
                     size_t room)
{
    const struct coder *coder = state;
    const unsigned char *from = contents;
    unsigned char *to = out;
    size_t at = 0;
    uint32_t lengths[CKPT_MAX_PLANES];
    struct block block;
    (void)size;
    for (struct cursor cursor = first_block(coder->tiles, tile); next_block(&cursor, &block);) {
        const size_t planes = at + sizeof lengths;
        if (planes > room || ckpt_encode(coder->codec, block.code, from + block.offset, block.count,
                                         to + planes, room - planes, lengths, NULL))
            return 0;
        memcpy(to + at, lengths, sizeof lengths);
        at = planes + ckpt_stored_bytes(lengths);
        assert(at <= room);
    }
    return at;
}

static zero_result decode(void *state, size_t tile, const void *in, size_t stored, void *contents,
                          size_t size, struct base_error *error)
{
    const struct coder *coder = state;
    const unsigned char *from = in;
    unsigned char *to = contents;
    size_t at = 0;
    uint32_t lengths[CKPT_MAX_PLANES];
    struct block block;
    for (struct cursor cursor = first_block(coder->tiles, tile); next_block(&cursor, &block);) {
        struct base_error damage = {0};
        if (stored - at < sizeof lengths)
            return zero_fail(error, ZERO_E_CORRUPT,
                             "the block of %zu elements at byte %zu of %zu is missing", block.count,
                             block.offset, size);
        memcpy(lengths, from + at, sizeof lengths);
        at += sizeof lengths;
        if (ckpt_stored_bytes(lengths) > stored - at)
            return zero_fail(error, ZERO_E_CORRUPT,
                             "the block of %zu elements at byte %zu of %zu is to have %zu bytes, "
                             "and %zu are left",
                             block.count, block.offset, size, ckpt_stored_bytes(lengths),
                             stored - at);
        if (ckpt_decode(coder->codec, block.code, from + at, lengths, to + block.offset,
                        block.count, &damage))
            return zero_fail(error, damage.result,
                             "the block of %zu elements at byte %zu of %zu: %s", block.count,
                             block.offset, size, damage.message);
        at += ckpt_stored_bytes(lengths);
    }
    if (at < stored)
        return zero_fail(error, ZERO_E_CORRUPT, "%zu bytes are left behind the last block",
                         stored - at);
    return ZERO_OK;
}

const struct off_tile_codec eng_tile_codec = {
    .size = sizeof(struct off_tile_codec),
    .name = "planes",
    .bytes = bytes,
    .create = create,
    .encode = encode,
    .decode = decode,
    .destroy = destroy,
};
