#include "checkpoint/codec/block_codec.h"

#include "base/arena.h"
#include "checkpoint/codec/planes.h"
#include "checkpoint/entropy/frame.h"
#include "checkpoint/entropy/huffman.h"
#include "checkpoint/entropy/streams.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

// Contexts in memory of our own, and literals that are coded by their frequencies at every level,
// are in the part of libzstd's interface that may change with a version. These functions have been
// the same since version 1.3, distributions' shared libraries export them, and
// ckpt_block_codec_create() tries them out.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum {
    ALIGNMENT = 64,
    // For a plane or its frame, however little it gains.
    ROOM = CKPT_HUFFMAN_BOUND(CKPT_BLOCK_ELEMENTS),
    ROOMS = CKPT_MAX_PLANES + 1
};

/** One for each of a block's planes; where there are fewer, NULL. */
typedef unsigned char *planes_to[CKPT_MAX_PLANES];
typedef const unsigned char *planes_from[CKPT_MAX_PLANES];

// A block that is being encoded.
struct encoding {
    struct ckpt_block_code code;
    const void *elements;
    size_t count;
    planes_from frame; // of planes that gained: where it is; NULL: the plane will be stored
    size_t bytes[CKPT_MAX_PLANES];
};

struct ckpt_block_codec {
    const struct ckpt_planes *planes;
    const struct ckpt_streams *streams;
    int level;
    ZSTD_CCtx *encoder; // of the levels above the default one; else NULL
    ZSTD_DCtx *decoder;
    planes_to plane;      // room for the planes of a block,
    unsigned char *spare; // and for one more, or its frame
    struct encoding begun;
    struct base_arena memory;
};

/* ------------------------------------------------------------------ contexts */

static bool is_level(int level)
{
    return level >= CKPT_LEVEL_STORED && level <= CKPT_LEVEL_MOST;
}

static ZSTD_compressionParameters parameters_of(int level)
{
    return ZSTD_getCParams(level, CKPT_BLOCK_ELEMENTS, 0);
}

static size_t encoder_bytes(int level)
{
    return level <= CKPT_LEVEL_DEFAULT ? 0
                                       : ZSTD_estimateCCtxSize_usingCParams(parameters_of(level));
}

// Pieces of an arena, each rounded up to its alignment.
static size_t arena_bytes(int level)
{
    const size_t rooms = ROOMS * (size_t)(ROOM + ALIGNMENT);
    return rooms + encoder_bytes(level) + ZSTD_estimateDCtxSize() + 2 * (size_t)ALIGNMENT;
}

size_t ckpt_block_codec_bytes(int level)
{
    return is_level(level) ? sizeof(struct ckpt_block_codec) + arena_bytes(level) : 0;
}

static bool set(ZSTD_CCtx *encoder, ZSTD_cParameter parameter, int value)
{
    return !ZSTD_isError(ZSTD_CCtx_setParameter(encoder, parameter, value));
}

static bool set_parameters(ZSTD_CCtx *encoder, int level)
{
    const ZSTD_compressionParameters p = parameters_of(level);
    return !ZSTD_isError(ZSTD_CCtx_reset(encoder, ZSTD_reset_parameters)) && // a fresh one has none
           set(encoder, ZSTD_c_compressionLevel, level) &&
           set(encoder, ZSTD_c_windowLog, (int)p.windowLog) &&
           set(encoder, ZSTD_c_chainLog, (int)p.chainLog) &&
           set(encoder, ZSTD_c_hashLog, (int)p.hashLog) &&
           set(encoder, ZSTD_c_searchLog, (int)p.searchLog) &&
           set(encoder, ZSTD_c_minMatch, (int)p.minMatch) &&
           set(encoder, ZSTD_c_targetLength, (int)p.targetLength) &&
           set(encoder, ZSTD_c_strategy, (int)p.strategy) &&
           set(encoder, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
}

// Contexts in the arena; a plane of zeros, of the largest size there is, shows that the memory is
// enough for whatever comes.
static bool make_contexts(struct ckpt_block_codec *codec)
{
    const size_t encoding = encoder_bytes(codec->level), decoding = ZSTD_estimateDCtxSize();
    codec->decoder =
        ZSTD_initStaticDCtx(base_arena_alloc(&codec->memory, decoding, ALIGNMENT), decoding);
    if (!codec->decoder || codec->level <= CKPT_LEVEL_DEFAULT)
        return codec->decoder != NULL;
    codec->encoder =
        ZSTD_initStaticCCtx(base_arena_alloc(&codec->memory, encoding, ALIGNMENT), encoding);
    return codec->encoder && set_parameters(codec->encoder, codec->level) &&
           !ZSTD_isError(ZSTD_compress2(codec->encoder, codec->plane[1], CKPT_BLOCK_ELEMENTS,
                                        codec->plane[0], CKPT_BLOCK_ELEMENTS));
}

zero_result ckpt_block_codec_create(struct ckpt_block_codec **out, int level,
                                    struct base_error *error)
{
    *out = NULL;
    if (!is_level(level))
        return zero_fail(error, ZERO_E_INVALID, "compression level %d is not in 0 .. %d", level,
                         CKPT_LEVEL_MOST);
    struct ckpt_block_codec *codec = base_calloc(1, sizeof *codec);
    if (!codec)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a codec");
    codec->planes = ckpt_planes_best();
    codec->streams = ckpt_streams_best();
    codec->level = level;
    zero_result result = base_arena_init(&codec->memory, arena_bytes(level), ALIGNMENT, error);
    for (int p = 0; p < CKPT_MAX_PLANES && !result; p++)
        codec->plane[p] = base_arena_alloc(&codec->memory, ROOM, ALIGNMENT);
    if (!result)
        codec->spare = base_arena_alloc(&codec->memory, ROOM, ALIGNMENT);
    if (!result && !make_contexts(codec))
        result = zero_fail(error, ZERO_E_UNSUPPORTED,
                           "libzstd %s has no contexts of level %d in %zu bytes",
                           ZSTD_versionString(), level, encoder_bytes(level));
    if (result) {
        ckpt_block_codec_destroy(codec);
        return result;
    }
    *out = codec;
    return ZERO_OK;
}

void ckpt_block_codec_destroy(struct ckpt_block_codec *codec)
{
    if (!codec)
        return;
    base_arena_free(&codec->memory);
    base_free(codec);
}

/* ------------------------------------------------------------------ encoding */

struct ckpt_block_code ckpt_block_code_of(zero_dtype dtype, bool never_negative)
{
    switch (dtype) {
    case ZERO_F32:
        return (struct ckpt_block_code){4, !never_negative};
    case ZERO_BF16:
    case ZERO_F16:
        return (struct ckpt_block_code){2, !never_negative};
    default:
        return (struct ckpt_block_code){1, 0};
    }
}

static zero_result check_block(struct ckpt_block_code code, size_t count, struct base_error *error)
{
    const unsigned bytes = code.element_bytes;
    if ((bytes != 1 && bytes != 2 && bytes != 4) || code.rotate > (bytes > 1))
        return zero_fail(error, ZERO_E_INVALID, "no block has elements of %u bytes%s", bytes,
                         code.rotate ? " that are rotated" : "");
    if (count > CKPT_BLOCK_ELEMENTS)
        return zero_fail(error, ZERO_E_INVALID, "%zu elements are no block, which has at most %d",
                         count, CKPT_BLOCK_ELEMENTS);
    return ZERO_OK;
}

size_t ckpt_encode_bound(struct ckpt_block_code code, size_t count)
{
    return code.element_bytes * ZSTD_COMPRESSBOUND(count);
}

// The sample of a block that has more elements: runs of them, evenly spread.
enum { SAMPLE_RUNS = 16, SAMPLE_RUN = 64, SAMPLE = SAMPLE_RUNS * SAMPLE_RUN };

// Writes a sample of each plane; returns how many bytes they have.
static size_t take_sample(const struct ckpt_block_codec *codec, struct ckpt_block_code code,
                          const void *elements, size_t count,
                          unsigned char sample[CKPT_MAX_PLANES][SAMPLE])
{
    assert(count > 0 && code.element_bytes <= CKPT_MAX_PLANES);
    const unsigned char *in = elements;
    const bool whole = count <= SAMPLE;
    for (size_t run = 0; run < (whole ? 1 : SAMPLE_RUNS); run++) {
        const size_t first = whole ? 0 : (count - SAMPLE_RUN) * run / (SAMPLE_RUNS - 1);
        planes_to to;
        for (int p = 0; p < CKPT_MAX_PLANES; p++)
            to[p] = sample[p] + run * SAMPLE_RUN;
        codec->planes->split(code, in + first * code.element_bytes, whole ? count : SAMPLE_RUN, to);
    }
    return whole ? count : SAMPLE;
}

static bool is_constant(const unsigned char *bytes, size_t count)
{
    assert(count > 0);
    return memcmp(bytes, bytes + 1, count - 1) == 0;
}

// Whether a plane may gain, by its sample: not if that is hardly less even than noise. What a short
// plane gains is not worth the time for a frame.
static bool is_promising(const unsigned char *sample, size_t count)
{
    assert(count > 0 && count <= SAMPLE);
    enum { VALUES = 256, TALLIES = 4, MOST_CHI_SQUARE = 325 };
    uint16_t tallies[TALLIES][VALUES] = {{0}}; // so that no count waits for the one before
    uint32_t frequency[VALUES] = {0};
    if (count < SAMPLE)
        return is_constant(sample, count);
    for (size_t i = 0; i < SAMPLE; i += TALLIES)
        for (size_t t = 0; t < TALLIES; t++)
            tallies[t][sample[i + t]]++;
    for (size_t i = 0; i < VALUES; i++)
        for (size_t t = 0; t < TALLIES; t++)
            frequency[i] += tallies[t][i];
    return ckpt_huffman_unevenness(frequency, SAMPLE) > (uint64_t)SAMPLE * MOST_CHI_SQUARE;
}

// Which planes may gain. Noise isn't tried: that takes as long as what does gain.
static void find_worthwhile(const struct ckpt_block_codec *codec, struct ckpt_block_code code,
                            const void *elements, size_t count, bool worthwhile[CKPT_MAX_PLANES])
{
    const bool sampled = codec->level == CKPT_LEVEL_DEFAULT;
    unsigned char sample[CKPT_MAX_PLANES][SAMPLE];
    const size_t size = sampled ? take_sample(codec, code, elements, count, sample) : 0;
    for (int p = 0; p < code.element_bytes; p++)
        worthwhile[p] =
            codec->level != CKPT_LEVEL_STORED && (!sampled || is_promising(sample[p], size));
}

// Writes the planes that have a place in `to`, if there are any.
static void split(const struct ckpt_block_codec *codec, struct ckpt_block_code code,
                  const void *elements, size_t count, const planes_to to)
{
    for (int p = 0; p < CKPT_MAX_PLANES; p++) {
        if (to[p]) {
            codec->planes->split(code, elements, count, to);
            return;
        }
    }
}

// Writes the frame of a plane that is in the codec to its spare room: its length, 0 if it gains too
// little, or libzstd's error.
static size_t write_frame(const struct ckpt_block_codec *codec, const unsigned char *plane,
                          size_t count)
{
    assert(count > 0 && count <= CKPT_BLOCK_ELEMENTS);
    assert(codec->level <= CKPT_LEVEL_DEFAULT || codec->encoder);
    const size_t most = count - count / 100;
    if (is_constant(plane, count))
        return ckpt_frame_repeat(codec->spare, count, plane[0]);
    if (codec->level == CKPT_LEVEL_DEFAULT)
        return ckpt_huffman_frame(codec->streams, plane, count, most, codec->spare);
    const size_t bytes = ZSTD_compress2(codec->encoder, codec->spare, ROOM, plane, count);
    return ZSTD_isError(bytes) || bytes <= most ? bytes : 0;
}

// Encodes plane p, which is in the codec: where its frame is, and in *bytes its length, or
// libzstd's error. NULL: it gains too little.
static const unsigned char *encode_plane(struct ckpt_block_codec *codec, int p, size_t count,
                                         size_t *bytes)
{
    assert(p >= 0 && p < CKPT_MAX_PLANES);
    unsigned char *const plane = codec->plane[p], *const frame = codec->spare;
    *bytes = write_frame(codec, plane, count);
    if (*bytes == 0 || ZSTD_isError(*bytes))
        return NULL;
    codec->plane[p] = frame;
    codec->spare = plane; // which is needed no more
    return frame;
}

// Which planes are tried, and in the codec.
static void split_tried(struct ckpt_block_codec *codec, const struct encoding *block,
                        bool tried[CKPT_MAX_PLANES])
{
    planes_to to = {NULL};
    find_worthwhile(codec, block->code, block->elements, block->count, tried);
    for (int p = 0; p < block->code.element_bytes; p++)
        to[p] = tried[p] ? codec->plane[p] : NULL;
    split(codec, block->code, block->elements, block->count, to);
}

zero_result ckpt_encode_begin(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                              const void *elements, size_t count,
                              uint32_t plane_bytes[CKPT_MAX_PLANES], struct base_error *error)
{
    struct encoding *block = &codec->begun;
    const zero_result result = check_block(code, count, error);
    memset(plane_bytes, 0, CKPT_MAX_PLANES * sizeof *plane_bytes);
    *block = (struct encoding){.code = code, .elements = elements, .count = result ? 0 : count};
    if (block->count == 0)
        return result;
    bool tried[CKPT_MAX_PLANES] = {false};
    split_tried(codec, block, tried);
    for (int p = code.element_bytes - 1; p >= 0; p--) {
        size_t bytes = 0;
        if (tried[p])
            block->frame[p] = encode_plane(codec, p, count, &bytes);
        if (ZSTD_isError(bytes))
            return zero_fail(error, ZERO_E_UNSUPPORTED, "plane %d of %zu elements: libzstd %s: %s",
                             p, count, ZSTD_versionString(), ZSTD_getErrorName(bytes));
        if (!block->frame[p])
            bytes = ckpt_frame_store(codec->spare, count) + count;
        block->bytes[p] = bytes;
        plane_bytes[code.element_bytes - 1 - p] = (uint32_t)bytes;
    }
    return ZERO_OK;
}

void ckpt_encode_end(struct ckpt_block_codec *codec, void *out)
{
    const struct encoding *block = &codec->begun;
    planes_to stored = {NULL};
    unsigned char *at = out;
    if (block->count == 0)
        return;
    for (int p = block->code.element_bytes - 1; p >= 0; at += block->bytes[p--]) {
        if (block->frame[p])
            memcpy(at, block->frame[p], block->bytes[p]);
        else
            stored[p] = at + ckpt_frame_store(at, block->count);
    }
    split(codec, block->code, block->elements, block->count, stored);
}

zero_result ckpt_encode(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                        const void *elements, size_t count, void *out, size_t room,
                        uint32_t plane_bytes[CKPT_MAX_PLANES], struct base_error *error)
{
    const zero_result result = ckpt_encode_begin(codec, code, elements, count, plane_bytes, error);
    if (result)
        return result;
    if (count > 0 && room < ckpt_encode_bound(code, count))
        return zero_fail(error, ZERO_E_INVALID, "%zu bytes are too few to encode %zu elements in",
                         room, count);
    ckpt_encode_end(codec, out);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ decoding */

// Reads a plane; it stays where it is if it is stored. NULL, or what is wrong with its bytes.
static const char *decode_plane(const struct ckpt_block_codec *codec, const unsigned char *in,
                                size_t bytes, size_t count, unsigned char *room,
                                const unsigned char **plane)
{
    struct ckpt_frame frame;
    const char *wrong = ckpt_frame_read(in, bytes, count, &frame);
    if (wrong)
        return wrong;
    *plane = room;
    switch (frame.kind) {
    case CKPT_FRAME_STORED:
        *plane = frame.content;
        return NULL;
    case CKPT_FRAME_REPEATED:
        memset(room, frame.content[0], count);
        return NULL;
    default:
        if (ZSTD_findFrameCompressedSize(in, bytes) != bytes)
            return "are not its length";
        return ZSTD_decompressDCtx(codec->decoder, room, count, in, bytes) == count ? NULL
                                                                                    : "are damaged";
    }
}

zero_result ckpt_decode(struct ckpt_block_codec *codec, struct ckpt_block_code code,
                        const void *stored, const uint32_t plane_bytes[CKPT_MAX_PLANES],
                        void *elements, size_t count, struct base_error *error)
{
    const zero_result result = check_block(code, count, error);
    if (result)
        return result;
    planes_from plane = {NULL};
    const unsigned char *at = stored;
    for (int k = 0; k < CKPT_MAX_PLANES; k++) {
        const char *wrong = NULL;
        const int p = code.element_bytes - 1 - k;
        if (count == 0 || p < 0)
            wrong = plane_bytes[k] == 0 ? NULL : "should not be there";
        else
            wrong = decode_plane(codec, at, plane_bytes[k], count, codec->plane[p], &plane[p]);
        if (wrong)
            return zero_fail(error, ZERO_E_CORRUPT,
                             "frame %d of a block of %zu elements: its %" PRIu32 " bytes %s", k,
                             count, plane_bytes[k], wrong);
        at += plane_bytes[k];
    }
    codec->planes->merge(code, plane, count, elements);
    return ZERO_OK;
}
