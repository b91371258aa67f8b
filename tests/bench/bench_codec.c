// The codec of checkpoints on the state of a gpt2 that it trains first, on the text of the
// checkout: one core, against zstd's level 1 on the plain bytes.
#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/cpu.h"
#include "checkpoint/codec/block_codec.h"
#include "gpt2_trainer.h"
#include "tests/bench/bench.h"
#include "tests/numerics/own_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <zstd.h>

enum { REPEATS = 4, WORDS = 24, LEVEL_OF_ZSTD = 1 };

// What is encoded; a row takes some of it, one after the other.
enum { WEIGHT, FIRST, SECOND, STATE, HALF = STATE, PARTS };

// Elements of one kind, of all tensors, and what becomes of them.
struct part {
    const char *name;
    zero_dtype dtype;
    bool never_negative;
    void *elements;
    struct ckpt_block_code code;
    unsigned char *stored, *plain; // ours and zstd's
    size_t bytes, stored_bytes, plain_bytes;
    uint32_t (*plane_bytes)[CKPT_MAX_PLANES]; // a block
};

struct work {
    struct options options;
    struct data data;
    struct trainer trainer;
    struct base_arena memory;
    struct part part[PARTS];
    size_t count;
    size_t *block; // the first element of each, and the end
    size_t blocks;
    zero_param param; // that was visited last
    int32_t slice;
    int from, to; // parts of a row
    struct ckpt_block_codec *codec;
    ZSTD_CCtx *compressor;
    ZSTD_DCtx *decompressor;
    void *room; // for what is decoded
    bool good;
};

/* ------------------------------------------------------------------ the state */

// Blocks begin where tensors do, and where checkpoints begin one.
static bool take(void *user, const struct own_element *element)
{
    struct work *work = user;
    const float value[] = {element->weight, element->moment[0], element->moment[1]};
    if (work->blocks == 0 || element->param != work->param || element->slice != work->slice ||
        element->element % CKPT_BLOCK_ELEMENTS == 0)
        work->block[work->blocks++] = work->count;
    work->param = element->param;
    work->slice = element->slice;
    for (int k = 0; k < STATE; k++)
        ((float *)work->part[k].elements)[work->count] = value[k];
    ((uint16_t *)work->part[HALF].elements)[work->count] = base_bf16_from_f32(element->weight);
    work->count++;
    work->block[work->blocks] = work->count;
    return true;
}

static bool allocate(struct work *work)
{
    const struct dims *dims = &work->options.dims;
    size_t count = 0;
    for (int u = 0; u < unit_count(dims); u++)
        count += unit_numel(dims, u);
    // Each tensor has a block that is no whole one.
    const size_t blocks = count / CKPT_BLOCK_ELEMENTS + (size_t)unit_count(dims) * UNIT_TENSORS_MAX;
    const size_t room = ZSTD_COMPRESSBOUND(4 * count) + 64 * CKPT_MAX_PLANES * blocks;
    if (base_arena_init(&work->memory, (3 * PARTS + 1) * room + PARTS * blocks * 64, 64, NULL))
        return false;
    for (int k = 0; k < PARTS; k++) {
        struct part *part = &work->part[k];
        part->elements = base_arena_alloc(&work->memory, 4 * count, 64);
        part->stored = base_arena_alloc(&work->memory, room, 64);
        part->plain = base_arena_alloc(&work->memory, room, 64);
        part->plane_bytes = base_arena_alloc(&work->memory, blocks * sizeof *part->plane_bytes, 64);
        part->code = ckpt_block_code_of(part->dtype, part->never_negative);
    }
    work->room = base_arena_alloc(&work->memory, 4 * count, 64);
    work->block = base_arena_alloc(&work->memory, (blocks + 1) * sizeof *work->block, 64);
    work->compressor = ZSTD_createCCtx();
    work->decompressor = ZSTD_createDCtx();
    return work->block && work->compressor && work->decompressor &&
           ckpt_block_codec_create(&work->codec, CKPT_LEVEL_DEFAULT, NULL) == ZERO_OK;
}

static bool train(struct work *work, char **words, int count)
{
    struct reason reason = {0};
    const struct place place = {NULL, 1, 0};
    struct options *options = &work->options;
    struct step_report report = {0};
    if (options_parse(options, count, words, &reason) != REQUEST_TRAIN ||
        !data_load(&work->data, options->data, options->data_count, options->dims.vocab,
                   options->dims.context, &reason)) {
        fprintf(stderr, "bench_codec: %s\n", reason.text);
        return false;
    }
    zero_result result = trainer_open(&work->trainer, options, &work->data, &place);
    for (int n = 0; n < options->steps && !result; n++)
        result = trainer_step(&work->trainer, &report);
    if (result || !allocate(work)) {
        fprintf(stderr, "bench_codec: %s\n", result ? trainer_failure(&work->trainer) : "memory");
        return false;
    }
    own_state_each(work->trainer.z, take, work);
    for (int k = 0; k < PARTS; k++)
        work->part[k].bytes = work->count * work->part[k].code.element_bytes;
    printf("%zu parameters in %zu blocks, trained for %d steps, loss %.2f\n", work->count,
           work->blocks, options->steps, report.loss);
    return true;
}

/* ------------------------------------------------------------------ what is measured */

static bool encode_part(struct work *work, struct part *part)
{
    const unsigned char *in = part->elements;
    const size_t bytes = part->code.element_bytes;
    part->stored_bytes = 0;
    for (size_t b = 0; b < work->blocks; b++) {
        const size_t first = work->block[b], count = work->block[b + 1] - first;
        if (ckpt_encode(work->codec, part->code, in + first * bytes, count,
                        part->stored + part->stored_bytes, ckpt_encode_bound(part->code, count),
                        part->plane_bytes[b], NULL))
            return false;
        part->stored_bytes += ckpt_stored_bytes(part->plane_bytes[b]);
    }
    return true;
}

static bool decode_part(struct work *work, struct part *part)
{
    unsigned char *out = work->room;
    const size_t bytes = part->code.element_bytes;
    size_t at = 0;
    for (size_t b = 0; b < work->blocks; b++) {
        const size_t first = work->block[b], count = work->block[b + 1] - first;
        if (ckpt_decode(work->codec, part->code, part->stored + at, part->plane_bytes[b],
                        out + first * bytes, count, NULL))
            return false;
        at += ckpt_stored_bytes(part->plane_bytes[b]);
    }
    return true;
}

static bool compress_part(struct work *work, struct part *part)
{
    part->plain_bytes =
        ZSTD_compressCCtx(work->compressor, part->plain, ZSTD_COMPRESSBOUND(part->bytes),
                          part->elements, part->bytes, LEVEL_OF_ZSTD);
    return !ZSTD_isError(part->plain_bytes);
}

static bool decompress_part(struct work *work, struct part *part)
{
    return ZSTD_decompressDCtx(work->decompressor, work->room, part->bytes, part->plain,
                               part->plain_bytes) == part->bytes;
}

static double timed(struct work *work, bool (*body)(struct work *, struct part *))
{
    const double begin = bench_now();
    for (int i = 0; i < REPEATS; i++)
        for (int k = work->from; k < work->to; k++)
            work->good = work->good && body(work, &work->part[k]);
    return bench_now() - begin;
}

static double encode(void *user)
{
    return timed(user, encode_part);
}

static double decode(void *user)
{
    return timed(user, decode_part);
}

static double compress(void *user)
{
    return timed(user, compress_part);
}

static double decompress(void *user)
{
    return timed(user, decompress_part);
}

/* ------------------------------------------------------------------ rows */

static void row(struct work *work, const char *name, bench_fn ours, bench_fn reference,
                double target)
{
    size_t bytes = 0;
    for (int k = work->from; k < work->to; k++)
        bytes += REPEATS * work->part[k].bytes;
    const struct bench_row r = {
        .name = name,
        .reference_name = "zstd -1",
        .unit = "GB/s",
        .ours_amount = 1e-9 * (double)bytes,
        .reference_amount = 1e-9 * (double)bytes,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = target,
    };
    bench_run(&r);
}

static void print_ratio(const char *name, size_t bytes, size_t stored, size_t plain, bool target)
{
    static const double least = 1.19, least_over = 1.10;
    const double ours = (double)bytes / (double)stored, zstd = (double)bytes / (double)plain;
    printf("size of %-32s %10.4f %10.4f %-6s %6.3f  ", name, ours, zstd, "ratio", ours / zstd);
    if (target)
        printf("zstd -1, target %.2f and %.2f: %s", least, least_over,
               ours >= least && ours >= least_over * zstd ? "met" : "missed");
    puts(target ? "" : "zstd -1");
}

static void rows(struct work *work)
{
    size_t bytes = 0, stored = 0, plain = 0;
    bench_print_header();
    work->from = HALF;
    work->to = PARTS;
    row(work, "encode bf16 weights", encode, compress, 0);
    row(work, "decode bf16 weights", decode, decompress, 0);
    work->from = 0;
    work->to = STATE;
    row(work, "encode f32 weights, m, v", encode, compress, 2.8);
    row(work, "decode f32 weights, m, v", decode, decompress, 0);
    for (int k = 0; k < PARTS; k++) {
        const struct part *part = &work->part[k];
        print_ratio(part->name, part->bytes, part->stored_bytes, part->plain_bytes, false);
        bytes += k < STATE ? part->bytes : 0;
        stored += k < STATE ? part->stored_bytes : 0;
        plain += k < STATE ? part->plain_bytes : 0;
    }
    print_ratio("f32 weights, m, v", bytes, stored, plain, true);
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    char threads[16];
    char *words[WORDS] = {"gpt2",      "--steps", "200",        "--threads",   threads, "--data",
                          "README.md", "base",    "checkpoint", "collectives", "zero"};
    struct work work = {.part = {{.name = "f32 weights", .dtype = ZERO_F32},
                                 {.name = "f32 m", .dtype = ZERO_F32},
                                 {.name = "f32 v", .dtype = ZERO_F32, .never_negative = true},
                                 {.name = "bf16 weights", .dtype = ZERO_BF16}},
                        .good = true};
    snprintf(threads, sizeof threads, "%d", base_cpu_allowed());
    if (train(&work, words, 11))
        rows(&work);
    else
        work.good = false;
    ckpt_block_codec_destroy(work.codec);
    ZSTD_freeCCtx(work.compressor);
    ZSTD_freeDCtx(work.decompressor);
    base_arena_free(&work.memory);
    trainer_close(&work.trainer);
    data_free(&work.data);
    options_free(&work.options);
    return work.good ? 0 : 1;
}
