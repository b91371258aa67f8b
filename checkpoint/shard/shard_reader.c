#include "checkpoint/shard/shard.h"

#include "base/arena.h"
#include "checkpoint/safetensors/safetensors_header.h" // ckpt_dtype_size
#include "checkpoint/shard/shard_format.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

struct ckpt_shard {
    const struct ckpt_store *store;
    struct ckpt_file *file; // NULL: it rests
    const char *path;
    const struct ckpt_manifest *manifest;
    const struct ckpt_shard_entry *entry;
    uint32_t rank;
    atomic_uint_fast64_t bytes_read;

    // What blocks belong to: the shard's blobs, then its runs.
    size_t *blobs; // numbers in the manifest
    size_t blob_count;
    size_t *starts; // the first block of each, and behind them the number of all blocks
    struct ckpt_block *blocks;
    size_t block_count;
};

static zero_result read_bytes(struct ckpt_shard *shard, void *data, size_t bytes, uint64_t offset,
                              struct base_error *error)
{
    const zero_result result = shard->store->read(shard->file, data, bytes, offset, error);
    if (result == ZERO_OK)
        atomic_fetch_add_explicit(&shard->bytes_read, bytes, memory_order_relaxed);
    return result;
}

static zero_result no_memory(const struct ckpt_shard *shard, struct base_error *error)
{
    return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for its index", shard->path);
}

/* ------------------------------------------------------------------ header */

// What differs from a header as it should be; NULL if only reserved bytes do.
static const char *find_stranger(const unsigned char *header, const unsigned char *wanted)
{
    if (memcmp(header + 40, wanted + 40, 16) != 0)
        return "is of another checkpoint";
    if (ckpt_get64(header + 32) != ckpt_get64(wanted + 32))
        return "is of another step";
    if (ckpt_get32(header + 20) != ckpt_get32(wanted + 20))
        return "is the shard of another rank";
    if (ckpt_get32(header + 24) != ckpt_get32(wanted + 24))
        return "is of another number of shards";
    return NULL;
}

static zero_result check_header(struct ckpt_shard *shard, struct base_error *error)
{
    unsigned char header[CKPT_HEADER_BYTES], wanted[CKPT_HEADER_BYTES];
    struct ckpt_shard_id id = {.step = shard->manifest->state.step,
                               .rank = shard->rank,
                               .world = (uint32_t)shard->manifest->world};
    memcpy(id.checkpoint, shard->manifest->id, sizeof id.checkpoint);
    ckpt_put_header(wanted, &id);
    const zero_result result = read_bytes(shard, header, sizeof header, 0, error);
    if (result)
        return result;
    if (memcmp(header, wanted, 16) != 0)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' is no shard by its first bytes", shard->path);
    if (ckpt_get64(header + sizeof header - 8) != base_hash64(header, sizeof header - 8, 0))
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': the checksum of its header, at offset %zu, is another one",
                         shard->path, sizeof header - 8);
    const uint32_t version = ckpt_get32(header + 16);
    if (version > CKPT_SHARD_VERSION)
        return zero_fail(error, ZERO_E_VERSION,
                         "'%s': its version is %" PRIu32 ", a later library's; this one knows %d",
                         shard->path, version, CKPT_SHARD_VERSION);
    const char *stranger = find_stranger(header, wanted);
    if (stranger || memcmp(header, wanted, sizeof header) != 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s' %s: shard %" PRIu32 " of %" PRIu32 " of step %" PRIu64
                         " by its header, not %" PRIu32 " of %" PRIu32 " of step %" PRIu64,
                         shard->path, stranger ? stranger : "has reserved bytes that are not 0",
                         ckpt_get32(header + 20), ckpt_get32(header + 24), ckpt_get64(header + 32),
                         id.rank, id.world, id.step);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ tail */

// Index and tail lie in `end`, from the index on; *index: the bytes of the index.
static const char *find_tail_damage(const struct ckpt_shard_entry *entry, const unsigned char *end,
                                    size_t bytes, size_t *index)
{
    if (bytes < CKPT_INDEX_HEAD + CKPT_TAIL_LEAST)
        return "there is no room for it";
    const unsigned char *last = end + bytes - CKPT_TAIL_END;
    const uint64_t size = ckpt_get64(last + 16);
    if (memcmp(last, "zerotail", 8) != 0)
        return "it has another name";
    if (size < CKPT_INDEX_HEAD || size > bytes - CKPT_TAIL_LEAST || bytes - size > CKPT_TAIL_MOST)
        return "the length of the index is wrong";
    const unsigned char *tail = end + size;
    const size_t length = bytes - (size_t)size;
    if (ckpt_get64(last + 40) != base_hash64(tail, length - 8, 0))
        return "its checksum is another one";
    if (ckpt_get32(tail) != CKPT_MAGIC_TAIL || ckpt_get32(tail + 4) != length - CKPT_SKIPPABLE_HEAD)
        return "it is no skippable frame";
    for (const unsigned char *zero = tail + CKPT_SKIPPABLE_HEAD; zero < last; zero++)
        if (*zero != 0)
            return "its padding is not 0";
    if (ckpt_get64(last + 8) != entry->index_offset || ckpt_get64(last + 32) != entry->bytes ||
        ckpt_get64(last + 24) != entry->index_xxh3)
        return "the manifest knows another index";
    *index = (size_t)size;
    return NULL;
}

/* ------------------------------------------------------------------ index */

static bool has_blob(const struct ckpt_shard *shard, const struct ckpt_blob *blob)
{
    return blob->of_rank || shard->rank == 0;
}

static uint64_t blob_bytes(const struct ckpt_shard *shard, size_t blob)
{
    const struct ckpt_blob *known = &shard->manifest->blobs[blob];
    return known->bytes[known->of_rank ? shard->rank : 0];
}

static int fields_of(const struct ckpt_shard *shard, const struct ckpt_run *run)
{
    return shard->manifest->tensors[run->tensor].fields;
}

// Counts what the manifest says to be in the shard.
static uint64_t count_blocks(struct ckpt_shard *shard)
{
    uint64_t blocks = 0;
    for (size_t b = 0; b < shard->manifest->blob_count; b++) {
        if (!has_blob(shard, &shard->manifest->blobs[b]))
            continue;
        blocks += ckpt_block_count(0, blob_bytes(shard, b));
        shard->blob_count++;
    }
    for (size_t r = 0; r < shard->entry->run_count; r++) {
        const struct ckpt_run *run = &shard->entry->runs[r];
        blocks += ckpt_block_count(run->first, run->count) * (uint64_t)fields_of(shard, run);
    }
    return blocks;
}

// Fills in where the blocks of each blob and run begin.
static void number_blocks(struct ckpt_shard *shard)
{
    size_t start = 0, item = 0;
    for (size_t b = 0; b < shard->manifest->blob_count; b++) {
        if (!has_blob(shard, &shard->manifest->blobs[b]))
            continue;
        shard->blobs[item] = b;
        shard->starts[item++] = start;
        start += (size_t)ckpt_block_count(0, blob_bytes(shard, b));
    }
    for (size_t r = 0; r < shard->entry->run_count; r++) {
        const struct ckpt_run *run = &shard->entry->runs[r];
        shard->starts[item++] = start;
        start += (size_t)ckpt_block_count(run->first, run->count) * (size_t)fields_of(shard, run);
    }
    shard->starts[item] = start;
}

// Compares the head of the index and its tables of blobs and runs with what the manifest says.
static const char *find_table_damage(const struct ckpt_shard *shard, const unsigned char *index,
                                     size_t bytes)
{
    const size_t runs = shard->entry->run_count;
    if (ckpt_get32(index) != CKPT_MAGIC_INDEX ||
        ckpt_get32(index + 4) != bytes - CKPT_SKIPPABLE_HEAD || memcmp(index + 8, "zeroindx", 8))
        return "it has another name or length";
    if (ckpt_get64(index + 16) != shard->blob_count || ckpt_get64(index + 24) != runs ||
        ckpt_get64(index + 32) != shard->block_count)
        return "the manifest knows other numbers of blobs, runs or blocks";
    const unsigned char *row = index + CKPT_INDEX_HEAD;
    for (size_t b = 0; b < shard->blob_count; b++, row += CKPT_BLOB_ROW)
        if (ckpt_get32(row) != shard->blobs[b] || ckpt_get32(row + 4) != 0 ||
            ckpt_get64(row + 8) != blob_bytes(shard, shard->blobs[b]))
            return "the manifest knows other blobs";
    for (size_t r = 0; r < runs; r++, row += CKPT_RUN_ROW) {
        const struct ckpt_run *run = &shard->entry->runs[r];
        if (ckpt_get32(row) != run->tensor || ckpt_get32(row + 4) != run->slice ||
            ckpt_get64(row + 8) != run->first || ckpt_get64(row + 16) != run->count)
            return "the manifest knows other runs";
    }
    return NULL;
}

// What a block's row must say: all but checksums, lengths, and whether elements are rotated.
static struct ckpt_block wanted_block(const struct ckpt_shard *shard, size_t block, uint64_t offset)
{
    const struct ckpt_block_place place = ckpt_shard_place(shard, block);
    struct ckpt_block wanted = {.offset = offset, .code = {.element_bytes = 1}};
    uint64_t end;
    if (place.run == SIZE_MAX) {
        end = blob_bytes(shard, place.blob);
    } else {
        const struct ckpt_run *run = &shard->entry->runs[place.run];
        const struct ckpt_table_tensor *tensor = &shard->manifest->tensors[run->tensor];
        const size_t number = block - ckpt_shard_run_blocks(shard, place.run);
        wanted.field = (uint16_t)(number % (size_t)tensor->fields);
        wanted.code.element_bytes = (uint8_t)ckpt_dtype_size(tensor->field[wanted.field]);
        end = run->first + run->count;
    }
    assert(place.first < end);
    wanted.count = (uint32_t)(ckpt_block_end(place.first, end) - place.first);
    return wanted;
}

// Reads a block's row and compares it with what it must be.
static const char *read_row(struct ckpt_block *block, const unsigned char *row,
                            const struct ckpt_block *wanted)
{
    *block = *wanted;
    block->xxh3 = ckpt_get64(row + 8);
    block->stored = ckpt_get64(row + 16);
    block->code.rotate = row[29];
    if (ckpt_get64(row) != wanted->offset)
        return "begins elsewhere than the one before ends";
    if (ckpt_get32(row + 24) != wanted->count || row[28] != wanted->code.element_bytes ||
        memcmp(row + 30, &wanted->field, sizeof wanted->field) != 0)
        return "is of other elements";
    if (block->code.rotate > (wanted->code.element_bytes > 1))
        return "is rotated in a way that is not known";
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++) {
        block->plane_bytes[p] = ckpt_get32(row + 32 + 4 * p);
        const bool used = p < wanted->code.element_bytes;
        if (used != (block->plane_bytes[p] > 0) ||
            block->plane_bytes[p] > wanted->count + CKPT_FRAME_GAP)
            return "has a frame of impossible length";
    }
    return NULL;
}

static zero_result read_blocks(struct ckpt_shard *shard, const unsigned char *row,
                               struct base_error *error)
{
    uint64_t offset = CKPT_HEADER_BYTES;
    for (size_t b = 0; b < shard->block_count; b++, row += CKPT_BLOCK_ROW) {
        const struct ckpt_block wanted = wanted_block(shard, b, offset);
        const char *damage = read_row(&shard->blocks[b], row, &wanted);
        if (damage)
            return zero_fail(error, ZERO_E_CORRUPT, "'%s': block %zu by its index %s", shard->path,
                             b, damage);
        offset += ckpt_stored_bytes(shard->blocks[b].plane_bytes);
    }
    if (offset == shard->entry->index_offset)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "'%s': by its index, which is at offset %" PRIu64
                     ", blocks end at offset %" PRIu64,
                     shard->path, shard->entry->index_offset, offset);
}

// Allocates what an index of `bytes` bytes needs, which must be as long as its tables.
static zero_result make_tables(struct ckpt_shard *shard, size_t bytes, struct base_error *error)
{
    const uint64_t blocks = count_blocks(shard);
    const size_t runs = shard->entry->run_count;
    if (blocks > bytes / CKPT_BLOCK_ROW || runs > bytes / CKPT_RUN_ROW ||
        bytes != CKPT_INDEX_HEAD + shard->blob_count * CKPT_BLOB_ROW + runs * CKPT_RUN_ROW +
                     blocks * CKPT_BLOCK_ROW)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': an index of %zu bytes at offset %" PRIu64
                         ", but the manifest knows %zu blobs, %zu runs and %" PRIu64 " blocks",
                         shard->path, bytes, shard->entry->index_offset, shard->blob_count, runs,
                         blocks);
    shard->block_count = (size_t)blocks;
    shard->blobs = base_calloc(shard->blob_count, sizeof *shard->blobs);
    shard->starts = base_calloc(shard->blob_count + runs + 1, sizeof *shard->starts);
    shard->blocks = base_calloc(shard->block_count, sizeof *shard->blocks);
    if (!shard->blobs || !shard->starts || !shard->blocks)
        return no_memory(shard, error);
    number_blocks(shard);
    return ZERO_OK;
}

static zero_result check_index(struct ckpt_shard *shard, const unsigned char *index, size_t bytes,
                               struct base_error *error)
{
    if (base_hash64(index, bytes, 0) != shard->entry->index_xxh3)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': the index at offset %" PRIu64 " has another checksum", shard->path,
                         shard->entry->index_offset);
    const zero_result result = make_tables(shard, bytes, error);
    if (result)
        return result;
    const char *damage = find_table_damage(shard, index, bytes);
    if (damage)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': the index at offset %" PRIu64 ": %s",
                         shard->path, shard->entry->index_offset, damage);
    return read_blocks(shard, index + bytes - CKPT_BLOCK_ROW * shard->block_count, error);
}

// Reads index and tail, which lie behind the blocks.
static zero_result check_end(struct ckpt_shard *shard, struct base_error *error)
{
    const size_t bytes = (size_t)(shard->entry->bytes - shard->entry->index_offset);
    size_t index = 0;
    if (bytes > (size_t)UINT32_MAX + CKPT_SKIPPABLE_HEAD + CKPT_TAIL_MOST)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': %zu bytes from offset %" PRIu64 " on are too long an index",
                         shard->path, bytes, shard->entry->index_offset);
    unsigned char *end = base_aligned_alloc(64, bytes);
    if (!end)
        return no_memory(shard, error);
    zero_result result = read_bytes(shard, end, bytes, shard->entry->index_offset, error);
    if (result == ZERO_OK) {
        const char *damage = find_tail_damage(shard->entry, end, bytes, &index);
        result = damage
                     ? zero_fail(error, ZERO_E_CORRUPT, "'%s': its tail: %s", shard->path, damage)
                     : check_index(shard, end, index, error);
    }
    base_free(end);
    return result;
}

/* ------------------------------------------------------------------ the whole */

static zero_result check_size(struct ckpt_shard *shard, struct base_error *error)
{
    uint64_t bytes;
    const zero_result result = shard->store->bytes(shard->file, &bytes, error);
    if (result || bytes == shard->entry->bytes)
        return result;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "'%s' has %" PRIu64 " bytes, but the manifest knows %" PRIu64, shard->path,
                     bytes, shard->entry->bytes);
}

zero_result ckpt_shard_open(struct ckpt_shard **out, const struct ckpt_store *store,
                            const char *path, const struct ckpt_manifest *manifest, uint32_t rank,
                            struct base_error *error)
{
    assert(rank < manifest->world);
    *out = NULL;
    struct ckpt_shard *shard = base_calloc(1, sizeof *shard);
    if (!shard)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to open '%s'", path);
    shard->store = store;
    shard->path = path;
    shard->manifest = manifest;
    shard->entry = &manifest->shards[rank];
    shard->rank = rank;
    zero_result result = store->open(store->user, &shard->file, path, error);
    if (result == ZERO_OK)
        result = check_size(shard, error);
    if (result == ZERO_OK)
        result = check_header(shard, error);
    if (result == ZERO_OK)
        result = check_end(shard, error);
    if (result) {
        ckpt_shard_close(shard);
        return result;
    }
    *out = shard;
    return ZERO_OK;
}

void ckpt_shard_close(struct ckpt_shard *shard)
{
    if (!shard)
        return;
    shard->store->close(&shard->file, NULL);
    base_free(shard->blobs);
    base_free(shard->starts);
    base_free(shard->blocks);
    base_free(shard);
}

void ckpt_shard_rest(struct ckpt_shard *shard)
{
    shard->store->close(&shard->file, NULL);
}

bool ckpt_shard_rests(const struct ckpt_shard *shard)
{
    return !shard->file;
}

size_t ckpt_shard_blocks(const struct ckpt_shard *shard)
{
    return shard->block_count;
}

uint64_t ckpt_shard_bytes_read(const struct ckpt_shard *shard)
{
    return atomic_load_explicit(&shard->bytes_read, memory_order_relaxed);
}

/* ------------------------------------------------------------------ blocks */

size_t ckpt_shard_run_blocks(const struct ckpt_shard *shard, size_t run)
{
    assert(run < shard->entry->run_count);
    return shard->starts[shard->blob_count + run];
}

size_t ckpt_shard_blob_blocks(const struct ckpt_shard *shard, size_t blob)
{
    size_t item = 0;
    while (shard->blobs[item] != blob)
        item++;
    return shard->starts[item];
}

struct ckpt_block_place ckpt_shard_place(const struct ckpt_shard *shard, size_t block)
{
    assert(block < shard->block_count);
    // The last item that begins by then; an empty blob begins where the next one does.
    size_t item = 0, to = shard->blob_count + shard->entry->run_count;
    while (to - item > 1) {
        const size_t middle = item + (to - item) / 2;
        if (shard->starts[middle] <= block)
            item = middle;
        else
            to = middle;
    }
    struct ckpt_block_place place = {
        .block = &shard->blocks[block], .run = SIZE_MAX, .blob = SIZE_MAX};
    size_t number = block - shard->starts[item]; // among the blocks of each field
    if (item < shard->blob_count) {
        place.blob = shard->blobs[item];
    } else {
        place.run = item - shard->blob_count;
        const struct ckpt_run *run = &shard->entry->runs[place.run];
        place.first = run->first;
        number /= (size_t)fields_of(shard, run);
    }
    if (number > 0)
        place.first = (place.first / CKPT_BLOCK_ELEMENTS + number) * CKPT_BLOCK_ELEMENTS;
    return place;
}

size_t ckpt_shard_room(void)
{
    return CKPT_MAX_PLANES * (CKPT_BLOCK_ELEMENTS + CKPT_FRAME_GAP);
}

// Fails with a message that says of what the block is.
static zero_result fail_block(const struct ckpt_shard *shard, size_t number, zero_result result,
                              const char *why, struct base_error *error)
{
    const struct ckpt_block_place place = ckpt_shard_place(shard, number);
    const struct ckpt_block *block = place.block;
    const uint64_t last = place.first + block->count - 1;
    if (place.run == SIZE_MAX)
        return zero_fail(error, result,
                         "blob '%.80s', bytes %" PRIu64 " to %" PRIu64 ": %s (offset %" PRIu64
                         " of '%s')",
                         shard->manifest->blobs[place.blob].name, place.first, last, why,
                         block->offset, shard->path);
    const struct ckpt_run *run = &shard->entry->runs[place.run];
    return zero_fail(error, result,
                     "tensor '%.80s', slice %" PRIu32 ", field %d, elements %" PRIu64 " to %" PRIu64
                     ": %s (offset %" PRIu64 " of '%s')",
                     shard->manifest->tensors[run->tensor].name, run->slice, block->field,
                     place.first, last, why, block->offset, shard->path);
}

zero_result ckpt_shard_read(struct ckpt_shard *shard, size_t number, struct ckpt_block_codec *codec,
                            void *room, void *elements, struct base_error *error)
{
    assert(number < shard->block_count);
    const struct ckpt_block *block = &shard->blocks[number];
    const size_t stored = ckpt_stored_bytes(block->plane_bytes);
    struct base_error cause = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    if (!shard->file)
        result = shard->store->open(shard->store->user, &shard->file, shard->path, &cause);
    if (result == ZERO_OK)
        result = read_bytes(shard, room, stored, block->offset, &cause);
    if (result == ZERO_OK && base_hash64(room, stored, 0) != block->stored)
        result = zero_fail(&cause, ZERO_E_CORRUPT, "its stored bytes have another checksum");
    if (result == ZERO_OK)
        result = ckpt_decode(codec, block->code, room, block->plane_bytes, elements, block->count,
                             &cause);
    if (result == ZERO_OK &&
        base_hash64(elements, (size_t)block->count * block->code.element_bytes, 0) != block->xxh3)
        result = zero_fail(&cause, ZERO_E_CORRUPT, "its elements have another checksum");
    return result ? fail_block(shard, number, result, cause.message, error) : ZERO_OK;
}
