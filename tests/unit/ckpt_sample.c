#include "tests/unit/ckpt_sample.h"

#include "base/arena.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/tensor_digest.h"
#include "tests/unit/ckpt_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample_tensor {
    uint64_t slices, numel;
    enum ckpt_dtype dtype;
    int fields;
    enum ckpt_dtype field[CKPT_MAX_FIELDS];
};

static const struct sample_tensor small[] = {
    {1, 1, CKPT_F32, 1, {CKPT_F32}},
    {2, 7, CKPT_BF16, 3, {CKPT_F32, CKPT_BF16, CKPT_F32}},
    {1, 1030, CKPT_F16, 1, {CKPT_F16}},
};

static const struct sample_tensor large[] = {
    {1, 1, CKPT_F32, 3, {CKPT_F32, CKPT_F32, CKPT_F32}},
    {1, 1023, CKPT_BF16, 1, {CKPT_BF16}},
    {3, 1024, CKPT_F16, 2, {CKPT_F16, CKPT_F32}},
    {1, 1025, CKPT_F32, 2, {CKPT_F32, CKPT_BF16}},
    {1, 65536, CKPT_BF16, 3, {CKPT_F32, CKPT_BF16, CKPT_BF16}},
    {2, 65537, CKPT_F32, 1, {CKPT_F32}},
    {1, 200000, CKPT_F32, 3, {CKPT_F32, CKPT_F32, CKPT_F32}},
    {2, 131072, CKPT_F16, 2, {CKPT_F32, CKPT_F16}},
    {1, 2048, CKPT_BF16, 1, {CKPT_BF16}},
    {1, 1200000, CKPT_F32, 1, {CKPT_F32}}, // noise: longer than what is written at a time
};

static const uint64_t blob_sizes[][4] = {{0, 1, 7, 100}, {0, 1, 65536, 200001}};

enum { BLOBS = 4, ROOM = 1 << 18 }; // for a block, or a blob

static char *copy(const char *text)
{
    char *made = base_strdup(text);
    if (!made)
        abort();
    return made;
}

static void *make(size_t count, size_t size)
{
    void *made = base_calloc(count, size);
    if (!made)
        abort();
    return made;
}

static void make_tensor(struct ckpt_table_tensor *tensor, const struct sample_tensor *from,
                        size_t number)
{
    char name[32];
    snprintf(name, sizeof name, "tensor.%zu", number);
    *tensor = (struct ckpt_table_tensor){.name = copy(name),
                                         .ndim = 2,
                                         .shape = {from->slices, from->numel},
                                         .slices = from->slices,
                                         .numel = from->numel,
                                         .dtype = from->dtype,
                                         .grad_dtype = from->dtype,
                                         .trains = true,
                                         .fields = from->fields};
    memcpy(tensor->field, from->field, sizeof tensor->field);
}

// Which part of `world` an uneven deal gives to those before `shard`: some get nothing.
static uint64_t dealt(uint64_t granules, uint32_t shard, uint32_t world, unsigned deal)
{
    uint64_t before = 0, all = 0;
    for (uint32_t s = 0; s < world; s++) {
        const uint64_t weight = deal == 0 ? 1 : (s * 3 + deal) % 4;
        before += s < shard ? weight : 0;
        all += weight;
    }
    return all == 0 ? (shard == world ? granules : 0) : granules * before / all;
}

static void deal_out(struct ckpt_manifest *manifest, struct ckpt_shard_entry *entry, uint32_t shard,
                     unsigned deal)
{
    for (uint32_t t = 0; t < manifest->tensor_count; t++) {
        const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
        const uint64_t granules = (tensor->numel + CKPT_GRANULE - 1) / CKPT_GRANULE;
        for (uint32_t s = 0; s < tensor->slices; s++) {
            const uint32_t world = (uint32_t)manifest->world;
            const uint64_t first =
                dealt(granules, shard, world, deal ? deal + s : 0) * CKPT_GRANULE;
            uint64_t end = dealt(granules, shard + 1, world, deal ? deal + s : 0) * CKPT_GRANULE;
            end = end < tensor->numel ? end : tensor->numel;
            if (first < end)
                entry->runs[entry->run_count++] = (struct ckpt_run){t, s, first, end - first};
        }
    }
}

static void make_blobs(struct ckpt_manifest *manifest, enum sample_size size)
{
    manifest->blob_count = (size_t)2 * BLOBS;
    manifest->blobs = make(manifest->blob_count, sizeof *manifest->blobs);
    for (size_t b = 0; b < manifest->blob_count; b++) {
        struct ckpt_blob *blob = &manifest->blobs[b];
        char name[32];
        snprintf(name, sizeof name, "blob.%zu", b);
        blob->name = copy(name);
        blob->of_rank = b % 2 == 1;
        blob->bytes = make(manifest->world, sizeof *blob->bytes);
        for (size_t r = 0; r < manifest->world; r++)
            blob->bytes[r] = blob_sizes[size][(b / 2 + r) % BLOBS];
    }
}

void sample_make(struct ckpt_manifest *manifest, enum sample_size size, uint32_t world,
                 unsigned deal)
{
    const struct sample_tensor *from = size == SAMPLE_LARGE ? large : small;
    *manifest = (struct ckpt_manifest){.id = {1, 2, 3, 0xfe},
                                       .library = copy("0.1.0"),
                                       .job = copy("sample"),
                                       .created = copy("2026-01-31T23:59:59Z"),
                                       .run = {{7, 7, 1}},
                                       .run_told = true,
                                       .sequence = 1,
                                       .level = 1,
                                       .state = {.step = 50, .micro_batches = 8, .sum_group = 1},
                                       .group_count = 1,
                                       .world = world};
    manifest->groups = make(1, sizeof *manifest->groups);
    manifest->groups[0] = (struct ckpt_group){.name = copy("all"),
                                              .optimizer = copy("adamw"),
                                              .decay = copy("decoupled"),
                                              .hyper = {{"lr", 0.001}},
                                              .hypers = 1};
    manifest->tensor_count =
        size == SAMPLE_LARGE ? sizeof large / sizeof *large : sizeof small / sizeof *small;
    manifest->tensors = make(manifest->tensor_count, sizeof *manifest->tensors);
    for (size_t t = 0; t < manifest->tensor_count; t++)
        make_tensor(&manifest->tensors[t], &from[t], t);
    make_blobs(manifest, size);
    manifest->shards = make(world, sizeof *manifest->shards);
    for (uint32_t s = 0; s < world; s++) {
        manifest->shards[s].runs = make(32, sizeof(struct ckpt_run));
        deal_out(manifest, &manifest->shards[s], s, deal);
    }
}

/* ------------------------------------------------------------------ values */

size_t sample_element_bytes(const struct ckpt_manifest *manifest, size_t tensor, int field)
{
    return ckpt_dtype_size(manifest->tensors[tensor].field[field]);
}

struct ckpt_block_code sample_code(const struct ckpt_manifest *manifest, size_t tensor, int field)
{
    return (struct ckpt_block_code){.element_bytes =
                                        (uint8_t)sample_element_bytes(manifest, tensor, field),
                                    .rotate = (uint8_t)(field < 2)};
}

void sample_elements(const struct ckpt_manifest *manifest, size_t tensor, uint32_t slice, int field,
                     uint64_t first, uint64_t count, void *out)
{
    const struct ckpt_block_code code = sample_code(manifest, tensor, field);
    const enum block_kind kind = (enum block_kind)((tensor + (size_t)field) % BLOCK_KINDS);
    const uint64_t shift = 1000 * tensor + 100 * slice + 10 * (uint64_t)field;
    for (uint64_t done = 0; done < count;) {
        const uint64_t left = count - done;
        const size_t part = (size_t)(left < CKPT_BLOCK_ELEMENTS ? left : CKPT_BLOCK_ELEMENTS);
        block_fill(kind, code, (size_t)(first + done + shift),
                   (unsigned char *)out + done * code.element_bytes, part);
        done += part;
    }
}

size_t sample_blob_bytes(const struct ckpt_manifest *manifest, size_t blob, uint32_t rank)
{
    return (size_t)manifest->blobs[blob].bytes[manifest->blobs[blob].of_rank ? rank : 0];
}

void sample_blob(const struct ckpt_manifest *manifest, size_t blob, uint32_t rank, void *out)
{
    const size_t bytes = sample_blob_bytes(manifest, blob, rank);
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = (unsigned char)(i / 64 + 7 * blob + rank);
}

/* ------------------------------------------------------------------ writing */

static zero_result write_blobs(struct ckpt_shard_writer *writer, struct ckpt_block_codec *codec,
                               const struct ckpt_manifest *manifest, uint32_t rank,
                               unsigned char *room, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (size_t b = 0; result == ZERO_OK && b < manifest->blob_count; b++) {
        const size_t bytes = sample_blob_bytes(manifest, b, rank);
        if (!manifest->blobs[b].of_rank && rank != 0)
            continue;
        sample_blob(manifest, b, rank, room);
        result = ckpt_shard_blob(writer, (uint32_t)b, bytes, error);
        for (uint64_t first = 0, end; result == ZERO_OK && first < bytes; first = end) {
            end = ckpt_block_end(first, bytes);
            result = ckpt_shard_block(writer, codec, (struct ckpt_block_code){1, 0}, 0,
                                      room + first, (size_t)(end - first), error);
        }
    }
    return result;
}

static zero_result write_run(struct ckpt_shard_writer *writer, struct ckpt_block_codec *codec,
                             const struct ckpt_manifest *manifest, const struct ckpt_run *run,
                             unsigned char *room, struct base_error *error)
{
    zero_result result = ckpt_shard_run(writer, run, error);
    const uint64_t run_end = run->first + run->count;
    for (uint64_t first = run->first, end; result == ZERO_OK && first < run_end; first = end) {
        end = ckpt_block_end(first, run_end);
        for (int f = 0; result == ZERO_OK && f < manifest->tensors[run->tensor].fields; f++) {
            sample_elements(manifest, run->tensor, run->slice, f, first, end - first, room);
            result = ckpt_shard_block(writer, codec, sample_code(manifest, run->tensor, f),
                                      (uint16_t)f, room, (size_t)(end - first), error);
        }
    }
    return result;
}

static zero_result write_all(struct ckpt_shard_writer *writer, struct ckpt_block_codec *codec,
                             struct ckpt_manifest *manifest, uint32_t rank, unsigned char *room,
                             struct base_error *error)
{
    zero_result result = write_blobs(writer, codec, manifest, rank, room, error);
    struct ckpt_shard_entry *entry = &manifest->shards[rank], made;
    for (size_t r = 0; result == ZERO_OK && r < entry->run_count; r++)
        result = write_run(writer, codec, manifest, &entry->runs[r], room, error);
    if (result == ZERO_OK)
        result = ckpt_shard_finish(writer, &made, error);
    else
        ckpt_shard_give_up(writer);
    if (result == ZERO_OK) {
        entry->bytes = made.bytes;
        entry->index_offset = made.index_offset;
        entry->index_xxh3 = made.index_xxh3;
    }
    return result;
}

zero_result sample_write_shard(struct ckpt_manifest *manifest, uint32_t rank,
                               const struct ckpt_store *store, const char *path, int level,
                               struct base_error *error)
{
    struct ckpt_shard_id id = {
        .step = manifest->state.step, .rank = rank, .world = (uint32_t)manifest->world};
    memcpy(id.checkpoint, manifest->id, sizeof id.checkpoint);
    struct ckpt_shard_writer *writer = NULL;
    struct ckpt_block_codec *codec = NULL;
    struct ckpt_file *file = NULL;
    unsigned char *room = malloc(ROOM);
    if (!room)
        abort();
    zero_result result = ckpt_shard_writer_create(&writer, 32, 8, 192, error);
    if (result == ZERO_OK)
        result = ckpt_block_codec_create(&codec, level, error);
    if (result == ZERO_OK)
        result = store->create(store->user, &file, path, false, error);
    if (result == ZERO_OK)
        result = ckpt_shard_begin(writer, store, file, &id, error);
    if (result == ZERO_OK)
        result = write_all(writer, codec, manifest, rank, room, error);
    const zero_result closed = store->close(&file, error);
    ckpt_block_codec_destroy(codec);
    ckpt_shard_writer_destroy(writer);
    free(room);
    return result ? result : closed;
}

/* ------------------------------------------------------------------ sums */

static void sum_field(struct ckpt_manifest *manifest, size_t tensor, uint32_t slice, int field,
                      unsigned char *room)
{
    struct ckpt_table_tensor *table = &manifest->tensors[tensor];
    const struct ckpt_digest_place place = {
        .name = ckpt_digest_name(table->name),
        .slice = slice,
        .field = field,
        .trains = table->trains,
        .element_bytes = sample_element_bytes(manifest, tensor, field),
    };
    for (uint64_t first = 0, end; first < table->numel; first = end) {
        end = ckpt_block_end(first, table->numel);
        sample_elements(manifest, tensor, slice, field, first, end - first, room);
        ckpt_digest_add(&table->sum, &place, first, (size_t)(end - first), room);
    }
}

static struct base_hash128 sum_blobs(const struct ckpt_manifest *manifest, unsigned char *room)
{
    struct base_hash128 sum = {0, 0};
    for (size_t b = 0; b < manifest->blob_count; b++) {
        if (manifest->blobs[b].of_rank)
            continue;
        sample_blob(manifest, b, 0, room);
        sum = base_hash128_add(sum, ckpt_digest_blob(manifest->blobs[b].name, room,
                                                     sample_blob_bytes(manifest, b, 0)));
    }
    return sum;
}

void sample_seal(struct ckpt_manifest *manifest)
{
    struct ckpt_manifest parsed;
    char *text;
    size_t length;
    unsigned char *room = malloc(ROOM);
    if (!room)
        abort();
    for (size_t t = 0; t < manifest->tensor_count; t++) {
        manifest->tensors[t].sum = (struct base_hash128){0, 0};
        for (uint32_t s = 0; s < manifest->tensors[t].slices; s++)
            for (int f = 0; f < manifest->tensors[t].fields; f++)
                sum_field(manifest, t, s, f, room);
    }
    if (ckpt_manifest_format(manifest, &text, &length, NULL) ||
        ckpt_manifest_parse(&parsed, text, length, "sample", NULL))
        abort();
    ckpt_digest_manifest(&parsed, sum_blobs(manifest, room), manifest->state.fingerprint);
    ckpt_manifest_free(&parsed);
    base_free(text);
    free(room);
}
