#include "checkpoint/shard.h"

#include "base/arena.h"
#include "checkpoint/shard_format.h"
#include "checkpoint/write_behind.h"

#include <stdatomic.h>

// A block is encoded into the buffer even where it does not fit any more.
enum { BUFFER = CKPT_BEHIND_BYTES, BUFFER_ROOM = CKPT_BEHIND_ROOM };
_Static_assert(BUFFER_ROOM >= CKPT_MAX_PLANES * (CKPT_BLOCK_ELEMENTS + CKPT_FRAME_GAP),
               "there is room for a block behind a full buffer");

struct ckpt_shard_writer {
    struct base_arena arena;
    struct ckpt_behind *behind;
    unsigned char *buffer;
    size_t used;      // bytes in it
    uint64_t written; // bytes of the file before it: written, or on their way
    const struct ckpt_store *store;
    struct ckpt_file *file;

    // The index as it will be in the file, but for gaps behind tables that are not full.
    unsigned char *index, *blob_table, *run_table, *block_table;
    size_t blobs, runs, blocks;
    size_t most_blobs, most_runs, most_blocks;

    atomic_size_t complete; // blocks that begin in what was handed over, at least
    size_t summed;          // blocks whose stored bytes have their checksum
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
                             : sizeof(struct ckpt_shard_writer) + ckpt_behind_bytes() + index;
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
        result = ckpt_behind_create(&writer->behind, error);
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
    ckpt_behind_destroy(writer->behind);
    base_arena_free(&writer->arena);
    base_free(writer);
}

/* ------------------------------------------------------------------ bytes */

// Hands the first BUFFER bytes over; the rest is at the front of the next buffer.
static zero_result flush(struct ckpt_shard_writer *writer, struct base_error *error)
{
    atomic_store_explicit(&writer->complete, writer->blocks, memory_order_release);
    const zero_result result = ckpt_behind_write(writer->behind, writer->used, error);
    writer->buffer = ckpt_behind_buffer(writer->behind);
    writer->written += BUFFER;
    writer->used -= BUFFER;
    return result;
}

static zero_result append(struct ckpt_shard_writer *writer, const unsigned char *data, size_t bytes,
                          struct base_error *error)
{
    while (bytes > 0) {
        const size_t room = BUFFER - writer->used, part = bytes < room ? bytes : room;
        memcpy(writer->buffer + writer->used, data, part);
        writer->used += part;
        data += part;
        bytes -= part;
        const zero_result result = writer->used == BUFFER ? flush(writer, error) : ZERO_OK;
        if (result)
            return result;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ checksums */

static unsigned char *block_row(const struct ckpt_shard_writer *writer, size_t block)
{
    return writer->block_table + CKPT_BLOCK_ROW * block;
}

static size_t row_bytes(const unsigned char *row)
{
    size_t bytes = 0;
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
        bytes += ckpt_get32(row + 32 + 4 * p);
    return bytes;
}

// Sums up the stored bytes of what begins in a buffer, the file's from `offset` on: of the blocks
// that have no sum, which is 0 till then.
static void sum_stored(struct ckpt_shard_writer *writer, const unsigned char *buffer,
                       uint64_t offset, size_t blocks)
{
    for (; writer->summed < blocks; writer->summed++) {
        unsigned char *row = block_row(writer, writer->summed);
        const uint64_t at = ckpt_get64(row) - offset;
        if (at >= BUFFER)
            return;
        if (ckpt_get64(row + 16) == 0)
            ckpt_put64(row + 16, base_hash64(buffer + at, row_bytes(row), 0));
    }
}

// In the thread that writes.
static void sum_buffer(void *user, const unsigned char *buffer, uint64_t offset)
{
    struct ckpt_shard_writer *writer = user;
    sum_stored(writer, buffer, offset,
               atomic_load_explicit(&writer->complete, memory_order_acquire));
}

void ckpt_shard_sum(struct ckpt_shard_writer *writer, size_t block, uint64_t xxh3)
{
    ckpt_put64(block_row(writer, block) + 8, xxh3);
}

/* ------------------------------------------------------------------ a shard */

zero_result ckpt_shard_begin(struct ckpt_shard_writer *writer, const struct ckpt_store *store,
                             struct ckpt_file *file, const struct ckpt_shard_id *id,
                             struct base_error *error)
{
    unsigned char header[CKPT_HEADER_BYTES];
    writer->store = store;
    writer->file = file;
    ckpt_behind_begin(writer->behind, store, file, sum_buffer, writer);
    writer->buffer = ckpt_behind_buffer(writer->behind);
    writer->used = 0;
    writer->written = 0;
    writer->blobs = writer->runs = writer->blocks = writer->summed = 0;
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

zero_result ckpt_shard_add(struct ckpt_shard_writer *writer, struct ckpt_codec *codec,
                           struct ckpt_block_code code, uint16_t field, const void *elements,
                           size_t count, unsigned later, struct base_error *error)
{
    if (writer->blocks == writer->most_blocks)
        return no_room("blocks", writer->most_blocks, error);
    uint32_t plane_bytes[CKPT_MAX_PLANES];
    unsigned char *stored = writer->buffer + writer->used;
    const zero_result result = ckpt_encode(codec, code, elements, count, stored,
                                           BUFFER + BUFFER_ROOM - writer->used, plane_bytes, error);
    if (result)
        return result;
    const size_t bytes = ckpt_stored_bytes(plane_bytes);
    unsigned char *row = block_row(writer, writer->blocks);
    ckpt_put64(row, writer->written + writer->used);
    if (!(later & CKPT_LATER_ELEMENTS))
        ckpt_shard_sum(writer, writer->blocks,
                       base_hash64(elements, count * code.element_bytes, 0));
    ckpt_put64(row + 16, later & CKPT_LATER_STORED ? 0 : base_hash64(stored, bytes, 0));
    ckpt_put32(row + 24, (uint32_t)count);
    row[28] = code.element_bytes;
    row[29] = code.rotate;
    memcpy(row + 30, &field, sizeof field);
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
        ckpt_put32(row + 32 + 4 * p, plane_bytes[p]);
    writer->blocks++;
    writer->used += bytes;
    return writer->used >= BUFFER ? flush(writer, error) : ZERO_OK;
}

zero_result ckpt_shard_block(struct ckpt_shard_writer *writer, struct ckpt_codec *codec,
                             struct ckpt_block_code code, uint16_t field, const void *elements,
                             size_t count, struct base_error *error)
{
    return ckpt_shard_add(writer, codec, code, field, elements, count, 0, error);
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
    const size_t bytes = (size_t)(entry->bytes - writer->written) - writer->used;
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
    zero_result result = ckpt_behind_wait(writer->behind, error);
    if (result)
        return result;
    sum_stored(writer, writer->buffer, writer->written, writer->blocks);
    const size_t index = complete_index(writer);
    const uint64_t offset = writer->written + writer->used;
    const uint64_t units =
        (offset + index + CKPT_TAIL_LEAST + CKPT_STORE_UNIT - 1) / CKPT_STORE_UNIT;
    *entry = (struct ckpt_shard_entry){.bytes = units * CKPT_STORE_UNIT,
                                       .index_offset = offset,
                                       .index_xxh3 = base_hash64(writer->index, index, 0)};
    result = append(writer, writer->index, index, error);
    if (result == ZERO_OK)
        result = append_tail(writer, index, entry, error);
    const zero_result ended =
        ckpt_behind_end(writer->behind, result == ZERO_OK ? writer->used : 0, error);
    if (result == ZERO_OK)
        result = ended;
    if (result == ZERO_OK)
        result = writer->store->truncate(writer->file, entry->bytes, error);
    if (result == ZERO_OK)
        result = writer->store->sync(writer->file, error);
    return result;
}

void ckpt_shard_give_up(struct ckpt_shard_writer *writer)
{
    ckpt_behind_end(writer->behind, 0, NULL);
}
