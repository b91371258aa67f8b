#include "checkpoint/manifest/manifest.h"

#include "base/arena.h"
#include "checkpoint/manifest/manifest_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const ckpt_dtype_names[CKPT_OTHER] = {
    [CKPT_F32] = "f32",
    [CKPT_BF16] = "bf16",
    [CKPT_F16] = "f16",
};

void ckpt_hex(const uint8_t *bytes, size_t count, char *digits)
{
    for (size_t i = 0; i < count; i++) {
        digits[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        digits[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    digits[2 * count] = '\0';
}

static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

bool ckpt_unhex(const char *digits, uint8_t *bytes, size_t count)
{
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        const int high = digit_value(digits[2 * i]);
        const int low = high < 0 ? -1 : digit_value(digits[2 * i + 1]);
        good = low >= 0;
        bytes[i] = (uint8_t)(16 * (high & 15) + (low & 15));
    }
    return good;
}

void ckpt_last_line(const char *text, size_t length, char line[CKPT_LAST_LINE + 1])
{
    uint8_t bytes[16];
    char digits[33];
    base_hash128_bytes(base_hash128(text, length, 0), bytes);
    ckpt_hex(bytes, sizeof bytes, digits);
    snprintf(line, CKPT_LAST_LINE + 1, "\"xxh3_128\": \"%s\"}\n", digits);
}

zero_result ckpt_check_last_line(const char *text, size_t length, const char *path,
                                 struct base_error *error)
{
    char line[CKPT_LAST_LINE + 1];
    if (length < CKPT_LAST_LINE || length > CKPT_MAX_MANIFEST)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' has %zu bytes, not %d .. %" PRIu64, path,
                         length, CKPT_LAST_LINE, CKPT_MAX_MANIFEST);
    const size_t before = length - CKPT_LAST_LINE;
    ckpt_last_line(text, before, line);
    if (memcmp(text + before, line, CKPT_LAST_LINE) != 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': its checksum at offset %zu is not that of the bytes before", path,
                         before);
    return ZERO_OK;
}

void ckpt_shard_name(uint32_t rank, char name[CKPT_SHARD_NAME])
{
    snprintf(name, CKPT_SHARD_NAME, "shard-%05" PRIu32 ".zst", rank);
}

bool ckpt_same_run(const struct ckpt_run_id *a, const struct ckpt_run_id *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return base_hash64(text, strlen(text) + 1, seed);
}

struct ckpt_run_id ckpt_derive_run(const struct ckpt_manifest *manifest)
{
    uint64_t hash = hash_text(manifest->job, manifest->state.seed);
    for (size_t t = 0; t < manifest->tensor_count; t++) {
        const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
        hash = hash_text(tensor->name, hash);
        hash = base_hash64(tensor->shape, sizeof tensor->shape, hash);
    }
    struct ckpt_run_id run;
    base_hash128_bytes(base_hash128(&hash, sizeof hash, 0), run.bytes);
    return run;
}

static void free_groups(struct ckpt_group *groups, size_t count)
{
    for (size_t i = 0; groups && i < count; i++) {
        base_free(groups[i].name);
        base_free(groups[i].optimizer);
        base_free(groups[i].decay);
    }
    base_free(groups);
}

static void free_tensors(struct ckpt_table_tensor *tensors, size_t count)
{
    for (size_t i = 0; tensors && i < count; i++)
        base_free(tensors[i].name);
    base_free(tensors);
}

static void free_blobs(struct ckpt_blob *blobs, size_t count)
{
    for (size_t i = 0; blobs && i < count; i++) {
        base_free(blobs[i].name);
        base_free(blobs[i].bytes);
    }
    base_free(blobs);
}

static void free_shards(struct ckpt_shard_entry *shards, size_t count)
{
    for (size_t i = 0; shards && i < count; i++)
        base_free(shards[i].runs);
    base_free(shards);
}

void ckpt_manifest_index_free(struct ckpt_manifest_index *index)
{
    base_free(index->by_name);
    base_free(index->places);
    *index = (struct ckpt_manifest_index){0};
}

void ckpt_manifest_free(struct ckpt_manifest *manifest)
{
    base_free(manifest->library);
    base_free(manifest->job);
    base_free(manifest->created);
    free_groups(manifest->groups, manifest->group_count);
    free_tensors(manifest->tensors, manifest->tensor_count);
    free_blobs(manifest->blobs, manifest->blob_count);
    free_shards(manifest->shards, manifest->world);
    ckpt_manifest_index_free(&manifest->index);
    *manifest = (struct ckpt_manifest){0};
}

size_t ckpt_manifest_find(const struct ckpt_manifest *manifest, const char *name)
{
    size_t from = 0, to = manifest->tensor_count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        const struct ckpt_named *named = &manifest->index.by_name[middle];
        const int order = strcmp(name, named->name);
        if (order == 0)
            return named->number;
        if (order < 0)
            to = middle;
        else
            from = middle + 1;
    }
    return SIZE_MAX;
}

// Whether a run begins at an element or before it.
static bool begins_by(const struct ckpt_run *run, size_t tensor, uint32_t slice, uint64_t element)
{
    if (run->tensor != tensor)
        return run->tensor < tensor;
    if (run->slice != slice)
        return run->slice < slice;
    return run->first <= element;
}

size_t ckpt_manifest_locate(const struct ckpt_manifest *manifest, size_t tensor, uint32_t slice,
                            uint64_t element)
{
    assert(tensor < manifest->tensor_count && manifest->index.place_count > 0);
    // The last one that begins by then, as runs leave no gap.
    size_t from = 0, to = manifest->index.place_count;
    while (to - from > 1) {
        const size_t middle = from + (to - from) / 2;
        const struct ckpt_place *place = &manifest->index.places[middle];
        if (begins_by(&manifest->shards[place->shard].runs[place->run], tensor, slice, element))
            from = middle;
        else
            to = middle;
    }
    return from;
}
