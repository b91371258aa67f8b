// A shard. The input's first byte tells how many bytes of blocks there are; these follow, then the
// index. Header, tail and the checksums of what is stored are made right, so that what is behind
// them is tried. Whatever is accepted has to be what the manifest says.
#include "checkpoint/shard/shard_format.h"
#include "tests/fuzz/target.h"
#include "tests/unit/memory_store.h"

#include <stdlib.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

// FORMAT.md's example: four elements in two fields, and a blob of six bytes.
static struct ckpt_run run = {0, 0, 0, 4};
static uint64_t blob_bytes = 6;
static struct ckpt_blob blob = {.name = "position", .bytes = &blob_bytes};
static struct ckpt_table_tensor tensor = {.name = "w",
                                          .slices = 1,
                                          .numel = 4,
                                          .trains = true,
                                          .field = {CKPT_F32, CKPT_BF16},
                                          .fields = 2};
static struct ckpt_shard_entry entry = {.runs = &run, .run_count = 1};
static const struct ckpt_manifest manifest = {.state = {.step = 5},
                                              .tensors = &tensor,
                                              .tensor_count = 1,
                                              .blobs = &blob,
                                              .blob_count = 1,
                                              .shards = &entry,
                                              .world = 1};

// Gives the last rows of the index the checksums of the bytes that they are of.
static void mend_checksums(unsigned char *file, uint64_t index, size_t index_bytes)
{
    unsigned char *row = file + index + index_bytes;
    for (int i = 0; i < 3 && row - (file + index) >= CKPT_BLOCK_ROW; i++) {
        row -= CKPT_BLOCK_ROW;
        const uint64_t offset = ckpt_get64(row);
        uint64_t bytes = 0;
        for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
            bytes += ckpt_get32(row + 32 + 4 * p);
        if (offset >= CKPT_HEADER_BYTES && offset <= index && bytes <= index - offset)
            ckpt_put64(row + 16, base_hash64(file + offset, (size_t)bytes, 0));
    }
}

// Makes a whole file of blocks and index.
static void put_shard(struct memory_store *memory, const uint8_t *data, size_t blocks, size_t index)
{
    static unsigned char file[2 << 20];
    const struct ckpt_shard_id id = {.step = 5, .world = 1};
    memset(file, 0, CKPT_HEADER_BYTES + blocks + index + CKPT_TAIL_MOST);
    ckpt_put_header(file, &id);
    memcpy(file + CKPT_HEADER_BYTES, data, blocks + index);
    entry.index_offset = CKPT_HEADER_BYTES + blocks;
    entry.bytes = (entry.index_offset + index + CKPT_TAIL_MOST) / CKPT_STORE_UNIT * CKPT_STORE_UNIT;
    require(entry.bytes <= sizeof file);
    mend_checksums(file, entry.index_offset, index);
    entry.index_xxh3 = base_hash64(file + entry.index_offset, index, 0);
    unsigned char *tail = file + entry.index_offset + index;
    unsigned char *end = file + entry.bytes - CKPT_TAIL_END;
    ckpt_put_head(tail, CKPT_MAGIC_TAIL, (size_t)(file + entry.bytes - tail));
    memcpy(end, "zerotail", 8);
    ckpt_put64(end + 8, entry.index_offset);
    ckpt_put64(end + 16, index);
    ckpt_put64(end + 24, entry.index_xxh3);
    ckpt_put64(end + 32, entry.bytes);
    ckpt_put64(end + 40, base_hash64(tail, (size_t)(end + 40 - tail), 0));
    memory_store_put(memory, "shard", file, (size_t)entry.bytes);
}

static void check_shard(struct ckpt_shard *shard, struct ckpt_block_codec *codec, void *room)
{
    static const size_t counts[] = {6, 4, 4}, sizes[] = {1, 4, 2};
    require(ckpt_shard_blocks(shard) == 3);
    for (size_t b = 0; b < 3; b++) {
        const struct ckpt_block_place place = ckpt_shard_place(shard, b);
        require(place.first == 0 && place.block->count == counts[b]);
        require(place.block->code.element_bytes == sizes[b]);
        require(b == 0 ? place.blob == 0 && place.run == SIZE_MAX : place.run == 0);
        // Exactly so long, so that a sanitizer sees one byte too far.
        unsigned char *elements = malloc(counts[b] * sizes[b]);
        struct base_error error = {.result = ZERO_OK};
        require(elements != NULL);
        const zero_result result = ckpt_shard_read(shard, b, codec, room, elements, &error);
        require(result == ZERO_OK || (result == ZERO_E_CORRUPT && error.message[0] != '\0'));
        require(result || base_hash64(elements, counts[b] * sizes[b], 0) == place.block->xxh3);
        free(elements);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ckpt_block_codec *codec;
    static void *room;
    if (!codec) {
        room = malloc(ckpt_shard_room());
        require(room && ckpt_block_codec_create(&codec, CKPT_LEVEL_STORED, NULL) == ZERO_OK);
    }
    if (size < 1 || size > 1 << 20)
        return 0;
    const size_t blocks = data[0] < size - 1 ? data[0] : size - 1;
    struct memory_store memory;
    struct ckpt_shard *shard;
    struct base_error error = {.result = ZERO_OK};
    memory_store_init(&memory);
    put_shard(&memory, data + 1, blocks, size - 1 - blocks);
    const zero_result result =
        ckpt_shard_open(&shard, &memory.store, "shard", &manifest, 0, &error);
    require((result == ZERO_OK) == (shard != NULL) && result == error.result);
    require(result == ZERO_OK || result == ZERO_E_CORRUPT);
    if (shard)
        check_shard(shard, codec, room);
    ckpt_shard_close(shard);
    require(memory.open == 0);
    memory_store_free(&memory);
    return 0;
}
