#include "checkpoint/shard/shard.h"

#include "base/arena.h"
#include "checkpoint/shard/shard_format.h"

#include <assert.h>

_Static_assert(CKPT_WRITE_BEHIND_MOST >= CKPT_MAX_PLANES * (CKPT_BLOCK_ELEMENTS + CKPT_FRAME_GAP),
               "a block can be taken at a time");

struct ckpt_shard_writer {
    struct base_arena arena;
    struct ckpt_write_behind *behind;
    uint64_t bytes; // of the file, so far
    const struct ckpt_store *store;
    struct ckpt_file *file;

    // The index as it will be in the file, but for gaps behind tables that are not full.
    unsigned char *index, *blob_table, *run_table, *block_table;
    size_t blobs, runs, blocks;
    size_t most_blobs, most_runs, most_blocks;
};

// Bytes of an index, SIZE_MAX: more than one has.
static size_t index_bytes(size_t runs, size_t blobs, size_t blocks)
{
    const size_t most = UINT32_MAX;
    if (runs > most / CKPT_RUN_ROW || blobs > most / CKPT_BLOB_ROW ||
        blocks > most / CKPT_BLOCK_ROW)
        return SIZE_MAX;
    const size_t bytes =
        CKPT_INDEX_HEAD + runs * CKPT_RUN_ROW + blobs * CKPT_BLOB_ROW + blocks * CKPT_BLOCK_ROW;
    return bytes <= most ? bytes : SIZE_MAX;
}

size_t ckpt_shard_writer_bytes(size_t runs, size_t blobs, size_t blocks)
{
    const size_t index = index_bytes(runs, blobs, blocks);
    return index == SIZE_MAX ? SIZE_MAX
                             : sizeof(struct ckpt_shard_writer) + ckpt_write_behind_bytes() + index;
}

zero_result ckpt_shard_writer_create(struct ckpt_shard_writer **out, size_t runs, size_t blobs,
                                     size_t blocks, struct base_error *error)
{
    *out = NULL;
    const size_t index = index_bytes(runs, blobs, blocks);
    if (index == SIZE_MAX)
        return zero_fail(error, ZERO_E_LIMIT,
                         "a shard of %zu runs, %zu blobs and %zu blocks has too long an index",
                         runs, blobs, blocks);
    struct ckpt_shard_writer *writer = base_calloc(1, sizeof *writer);
    if (!writer)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to write a shard");
    zero_result result = base_arena_init(&writer->arena, index, 0, error);
    if (!result)
        result = ckpt_write_behind_create(&writer->behind, error);
    if (result) {
        ckpt_shard_writer_destroy(writer);
        return result;
    }
    writer->index = base_arena_alloc(&writer->arena, index, 1);
    writer->blob_table = writer->index + CKPT_INDEX_HEAD;
    writer->run_table = writer->blob_table + blobs * CKPT_BLOB_ROW;
    writer->block_table = writer->run_table + runs * CKPT_RUN_ROW;
    writer->most_blobs = blobs;
    writer->most_runs = runs;
    writer->most_blocks = blocks;
    *out = writer;
    return ZERO_OK;
}

void ckpt_shard_writer_destroy(struct ckpt_shard_writer *writer)
{
    if (!writer)
        return;
    ckpt_write_behind_destroy(writer->behind);
    base_arena_free(&writer->arena);
    base_free(writer);
}

static zero_result append(struct ckpt_shard_writer *writer, const unsigned char *data, size_t bytes,
                          struct base_error *error)
{
    for (struct ckpt_write_behind_part part; bytes > 0; data += part.bytes, bytes -= part.bytes) {
        const size_t most = bytes < CKPT_WRITE_BEHIND_MOST ? bytes : CKPT_WRITE_BEHIND_MOST;
        const zero_result result = ckpt_write_behind_reserve(writer->behind, most, &part, error);
        if (result)
            return result;
        memcpy(part.memory, data, part.bytes);
        ckpt_write_behind_submit(writer->behind, &part);
        writer->bytes += part.bytes;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ a shard */

zero_result ckpt_shard_begin(struct ckpt_shard_writer *writer, const struct ckpt_store *store,
                             struct ckpt_file *file, const struct ckpt_shard_id *id,
                             struct base_error *error)
{
    assert(store && file && id->rank < id->world);
    unsigned char header[CKPT_HEADER_BYTES];
    writer->store = store;
    writer->file = file;
    ckpt_write_behind_begin(writer->behind, store, file);
    writer->bytes = 0;
    writer->blobs = writer->runs = writer->blocks = 0;
    ckpt_put_header(header, id);
    return append(writer, header, sizeof header, error);
}

static zero_result no_room(const char *what, size_t most, struct base_error *error)
{
    return zero_fail(error, ZERO_E_INVALID, "a shard gets more than the %zu %s that were announced",
                     most, what);
}

zero_result ckpt_shard_blob(struct ckpt_shard_writer *writer, uint32_t number, uint64_t bytes,
                            struct base_error *error)
{
    if (writer->blobs == writer->most_blobs)
        return no_room("blobs", writer->most_blobs, error);
    unsigned char *row = writer->blob_table + CKPT_BLOB_ROW * writer->blobs++;
    ckpt_put32(row, number);
    ckpt_put32(row + 4, 0);
    ckpt_put64(row + 8, bytes);
    return ZERO_OK;
}

zero_result ckpt_shard_run(struct ckpt_shard_writer *writer, const struct ckpt_run *run,
                           struct base_error *error)
{
    if (writer->runs == writer->most_runs)
        return no_room("runs", writer->most_runs, error);
    unsigned char *row = writer->run_table + CKPT_RUN_ROW * writer->runs++;
    ckpt_put32(row, run->tensor);
    ckpt_put32(row + 4, run->slice);
    ckpt_put64(row + 8, run->first);
    ckpt_put64(row + 16, run->count);
    return ZERO_OK;
}

zero_result ckpt_shard_encode(struct ckpt_shard_part *part, struct ckpt_block_codec *codec,
                              struct ckpt_block_code code, uint16_t field, const void *elements,
                              size_t count, struct base_error *error)
{
    *part = (struct ckpt_shard_part){.codec = codec, .elements = elements};
    struct ckpt_block *block = &part->block;
    const zero_result result =
        ckpt_encode_begin(codec, code, elements, count, block->plane_bytes, error);
    if (result)
        return result;
    block->count = (uint32_t)count;
    block->code = code;
    block->field = field;
    // Encoding asks for elements ahead; now they are near.
    block->xxh3 = base_hash64(elements, count * code.element_bytes, 0);
    return ZERO_OK;
}

zero_result ckpt_shard_take(struct ckpt_shard_writer *writer, struct ckpt_shard_part *part,
                            struct base_error *error)
{
    struct ckpt_block *block = &part->block;
    if (writer->blocks == writer->most_blocks)
        return no_room("blocks", writer->most_blocks, error);
    const size_t bytes = ckpt_stored_bytes(block->plane_bytes);
    const zero_result result = ckpt_write_behind_reserve(writer->behind, bytes, &part->part, error);
    if (result)
        return result;
    block->offset = writer->bytes;
    part->number = writer->blocks++;
    writer->bytes += bytes;
    return ZERO_OK;
}

void ckpt_shard_put(struct ckpt_shard_writer *writer, struct ckpt_shard_part *part)
{
    // Other threads take parts meanwhile: writer->blocks is not to be read here.
    assert(part->number < writer->most_blocks);
    assert(part->part.bytes == ckpt_stored_bytes(part->block.plane_bytes));
    struct ckpt_block *block = &part->block;
    unsigned char *row = writer->block_table + CKPT_BLOCK_ROW * part->number;
    ckpt_encode_end(part->codec, part->part.memory);
    block->stored = base_hash64(part->part.memory, part->part.bytes, 0);
    ckpt_write_behind_submit(writer->behind, &part->part);
    ckpt_put64(row, block->offset);
    ckpt_put64(row + 8, block->xxh3);
    ckpt_put64(row + 16, block->stored);
    ckpt_put32(row + 24, block->count);
    row[28] = block->code.element_bytes;
    row[29] = block->code.rotate;
    memcpy(row + 30, &block->field, sizeof block->field);
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
        ckpt_put32(row + 32 + 4 * p, block->plane_bytes[p]);
}

zero_result ckpt_shard_block(struct ckpt_shard_writer *writer, struct ckpt_block_codec *codec,
                             struct ckpt_block_code code, uint16_t field, const void *elements,
                             size_t count, struct base_error *error)
{
    struct ckpt_shard_part part;
    zero_result result = ckpt_shard_encode(&part, codec, code, field, elements, count, error);
    if (!result)
        result = ckpt_shard_take(writer, &part, error);
    if (!result)
        ckpt_shard_put(writer, &part);
    return result;
}

// Closes the gaps between the tables. Returns the bytes of the index.
static size_t complete_index(struct ckpt_shard_writer *writer)
{
    unsigned char *end = writer->blob_table + CKPT_BLOB_ROW * writer->blobs;
    memmove(end, writer->run_table, CKPT_RUN_ROW * writer->runs);
    end += CKPT_RUN_ROW * writer->runs;
    memmove(end, writer->block_table, CKPT_BLOCK_ROW * writer->blocks);
    end += CKPT_BLOCK_ROW * writer->blocks;
    const size_t bytes = (size_t)(end - writer->index);
    assert(bytes <= writer->arena.size);
    ckpt_put_head(writer->index, CKPT_MAGIC_INDEX, bytes);
    memcpy(writer->index + 8, "zeroindx", 8);
    ckpt_put64(writer->index + 16, writer->blobs);
    ckpt_put64(writer->index + 24, writer->runs);
    ckpt_put64(writer->index + 32, writer->blocks);
    return bytes;
}

// Appends the tail, with which the file ends at a whole unit.
static zero_result append_tail(struct ckpt_shard_writer *writer, size_t index_size,
                               const struct ckpt_shard_entry *entry, struct base_error *error)
{
    unsigned char tail[CKPT_TAIL_MOST] = {0};
    const size_t bytes = (size_t)(entry->bytes - writer->bytes);
    assert(bytes >= CKPT_TAIL_LEAST && bytes <= CKPT_TAIL_MOST);
    unsigned char *end = tail + bytes - CKPT_TAIL_END;
    ckpt_put_head(tail, CKPT_MAGIC_TAIL, bytes);
    memcpy(end, "zerotail", 8);
    ckpt_put64(end + 8, entry->index_offset);
    ckpt_put64(end + 16, index_size);
    ckpt_put64(end + 24, entry->index_xxh3);
    ckpt_put64(end + 32, entry->bytes);
    ckpt_put64(end + 40, base_hash64(tail, bytes - 8, 0));
    return append(writer, tail, bytes, error);
}

zero_result ckpt_shard_finish(struct ckpt_shard_writer *writer, struct ckpt_shard_entry *entry,
                              struct base_error *error)
{
    const size_t index = complete_index(writer);
    const uint64_t offset = writer->bytes;
    const uint64_t units =
        (offset + index + CKPT_TAIL_LEAST + CKPT_STORE_UNIT - 1) / CKPT_STORE_UNIT;
    *entry = (struct ckpt_shard_entry){.bytes = units * CKPT_STORE_UNIT,
                                       .index_offset = offset,
                                       .index_xxh3 = base_hash64(writer->index, index, 0)};
    zero_result result = append(writer, writer->index, index, error);
    if (result == ZERO_OK)
        result = append_tail(writer, index, entry, error);
    if (result == ZERO_OK)
        result = ckpt_write_behind_end(writer->behind, error);
    else
        ckpt_write_behind_cancel(writer->behind);
    if (result == ZERO_OK)
        result = writer->store->truncate(writer->file, entry->bytes, error);
    if (result == ZERO_OK)
        result = writer->store->sync(writer->file, error);
    return result;
}

void ckpt_shard_give_up(struct ckpt_shard_writer *writer)
{
    ckpt_write_behind_cancel(writer->behind);
}
