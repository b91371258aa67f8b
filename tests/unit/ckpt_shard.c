// checkpoint/shard/shard.h: what is written is read, also by zstd, and nothing else is taken for a
// shard.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/shard/shard.h"
#include "checkpoint/shard/shard_format.h"
#include "tests/sweep.h"
#include "tests/unit/ckpt_blocks.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/memory_store.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <zstd.h>

#include <cmocka.h>

static struct base_error failure;
static struct memory_store memory;
static struct ckpt_block_codec *codec;
static unsigned char room[1 << 19], elements[4 * CKPT_BLOCK_ELEMENTS];
static unsigned char wanted[4 * CKPT_BLOCK_ELEMENTS];

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    memory_store_init(&memory);
    return ckpt_block_codec_create(&codec, CKPT_LEVEL_STORED, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    ckpt_block_codec_destroy(codec);
    memory_store_free(&memory);
    return base_fault_set(NULL, NULL) || memory.open ? -1 : 0;
}

static const char *name_of(uint32_t rank)
{
    static char name[CKPT_SHARD_NAME];
    ckpt_shard_name(rank, name);
    return name;
}

static void write_all(struct ckpt_manifest *manifest, enum sample_size size, uint32_t world,
                      unsigned deal)
{
    sample_make(manifest, size, world, deal);
    for (uint32_t r = 0; r < world; r++)
        assert_int_equal(sample_write_shard(manifest, r, &memory.store, name_of(r), 1, &failure),
                         ZERO_OK);
}

/* ------------------------------------------------------------------ what is written is read */

// What a block should have; its bytes.
static size_t wanted_elements(const struct ckpt_manifest *manifest, uint32_t rank,
                              const struct ckpt_block_place *place)
{
    const struct ckpt_block *block = place->block;
    if (place->run == SIZE_MAX) {
        static unsigned char blob[1 << 18];
        sample_blob(manifest, place->blob, rank, blob);
        memcpy(wanted, blob + place->first, block->count);
        return block->count;
    }
    const struct ckpt_run *run = &manifest->shards[rank].runs[place->run];
    assert_true(place->first >= run->first);
    assert_true(place->first + block->count <= run->first + run->count);
    sample_elements(manifest, run->tensor, run->slice, block->field, place->first, block->count,
                    wanted);
    return block->count * sample_element_bytes(manifest, run->tensor, block->field);
}

// Reads every block, from the last to the first. Returns the bytes of all elements.
static uint64_t check_shard(const struct ckpt_manifest *manifest, uint32_t rank)
{
    struct ckpt_shard *shard;
    uint64_t bytes = 0;
    assert_int_equal(
        ckpt_shard_open(&shard, &memory.store, name_of(rank), manifest, rank, &failure), ZERO_OK);
    assert_true(ckpt_shard_room() <= sizeof room);
    for (size_t b = ckpt_shard_blocks(shard); b-- > 0;) {
        const struct ckpt_block_place place = ckpt_shard_place(shard, b);
        const size_t size = wanted_elements(manifest, rank, &place);
        if (place.run != SIZE_MAX) {
            const struct ckpt_run *run = &manifest->shards[rank].runs[place.run];
            const size_t fields = (size_t)manifest->tensors[run->tensor].fields;
            const size_t number =
                (size_t)(place.first / CKPT_BLOCK_ELEMENTS - run->first / CKPT_BLOCK_ELEMENTS);
            assert_int_equal(b, ckpt_shard_run_blocks(shard, place.run) + number * fields +
                                    place.block->field);
        } else {
            assert_int_equal(b, ckpt_shard_blob_blocks(shard, place.blob) +
                                    place.first / CKPT_BLOCK_ELEMENTS);
        }
        assert_int_equal(ckpt_shard_read(shard, b, codec, room, elements, &failure), ZERO_OK);
        assert_memory_equal(elements, wanted, size);
        bytes += size;
    }
    const struct memory_file *file = memory_store_find(&memory, name_of(rank));
    assert_int_equal(file->bytes % 4096, 0);
    assert_int_equal(file->bytes, manifest->shards[rank].bytes);
    assert_true(ckpt_shard_bytes_read(shard) == file->bytes);
    ckpt_shard_close(shard);
    return bytes;
}

static uint64_t all_bytes(const struct ckpt_manifest *manifest)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < manifest->tensor_count; t++)
        for (int f = 0; f < manifest->tensors[t].fields; f++)
            bytes += manifest->tensors[t].slices * manifest->tensors[t].numel *
                     sample_element_bytes(manifest, t, f);
    for (size_t b = 0; b < manifest->blob_count; b++)
        for (uint32_t r = 0; r < (manifest->blobs[b].of_rank ? manifest->world : 1); r++)
            bytes += sample_blob_bytes(manifest, b, r);
    return bytes;
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 5; world++) {
        for (unsigned deal = 0; deal < 2; deal++) {
            struct ckpt_manifest manifest;
            uint64_t bytes = 0;
            if (!test_takes((int)(2 * world + deal)))
                continue;
            write_all(&manifest, SAMPLE_LARGE, world, deal);
            for (uint32_t r = 0; r < world; r++)
                bytes += check_shard(&manifest, r);
            assert_int_equal(bytes, all_bytes(&manifest));
            ckpt_manifest_free(&manifest);
            memory_store_free(&memory);
            memory_store_init(&memory);
        }
    }
}

// The whole file through libzstd: the planes of all blocks, one after the other.
static void zstd_reads_a_shard(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    write_all(&manifest, SAMPLE_LARGE, 2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct memory_file *file = memory_store_find(&memory, name_of(rank));
        struct ckpt_shard *shard;
        assert_int_equal(
            ckpt_shard_open(&shard, &memory.store, name_of(rank), &manifest, rank, &failure),
            ZERO_OK);
        ZSTD_DCtx *context = ZSTD_createDCtx();
        ZSTD_inBuffer in = {file->data, file->bytes, 0};
        for (size_t b = 0; b < ckpt_shard_blocks(shard); b++) {
            const struct ckpt_block_place place = ckpt_shard_place(shard, b);
            const size_t size = wanted_elements(&manifest, rank, &place);
            block_planes(place.block->code, wanted, place.block->count, elements);
            ZSTD_outBuffer out = {room, size, 0};
            while (out.pos < size) {
                const size_t before = in.pos + out.pos;
                assert_false(ZSTD_isError(ZSTD_decompressStream(context, &out, &in)));
                assert_true(in.pos + out.pos > before);
            }
            assert_memory_equal(room, elements, size);
        }
        ZSTD_outBuffer out = {room, sizeof room, 0};
        size_t hint = 1;
        while (in.pos < in.size) {
            hint = ZSTD_decompressStream(context, &out, &in);
            assert_false(ZSTD_isError(hint));
        }
        assert_int_equal(hint, 0); // at the end of a frame
        assert_int_equal(out.pos, 0);
        ZSTD_freeDCtx(context);
        ckpt_shard_close(shard);
    }
    ckpt_manifest_free(&manifest);
}

static void a_writer_is_used_again_and_has_its_limits(void **state)
{
    (void)state;
    struct ckpt_shard_writer *writer;
    struct ckpt_file *file;
    struct ckpt_shard_entry entry[2];
    const struct ckpt_shard_id id = {.step = 1, .world = 1};
    const struct ckpt_run run = {0, 0, 0, 4};
    assert_int_equal(ckpt_shard_writer_create(&writer, SIZE_MAX, 0, 0, &failure), ZERO_E_LIMIT);
    assert_null(writer);
    assert_int_equal(ckpt_shard_writer_create(&writer, 0, 0, 89478485, NULL), ZERO_E_LIMIT);
    assert_true(ckpt_shard_writer_bytes(0, 0, 89478485) == SIZE_MAX);
    base_error_clear(&failure);
    assert_int_equal(ckpt_shard_writer_create(&writer, 1, 1, 1, &failure), ZERO_OK);
    const uint64_t allocations = base_allocation_count();
    for (int i = 0; i < 2; i++) {
        memory.store.create(&memory, &file, i ? "b" : "a", false, NULL);
        assert_int_equal(ckpt_shard_begin(writer, &memory.store, file, &id, &failure), ZERO_OK);
        // One that is given up, and then the one.
        if (i == 1)
            assert_int_equal(ckpt_shard_blob(writer, 7, 9, &failure), ZERO_OK);
        ckpt_shard_give_up(writer);
        assert_int_equal(ckpt_shard_begin(writer, &memory.store, file, &id, &failure), ZERO_OK);
        assert_int_equal(ckpt_shard_run(writer, &run, &failure), ZERO_OK);
        assert_int_equal(ckpt_shard_block(writer, codec, (struct ckpt_block_code){4, 0}, 0,
                                          "1234567890123456", 4, &failure),
                         ZERO_OK);
        assert_int_equal(ckpt_shard_finish(writer, &entry[i], &failure), ZERO_OK);
        memory.store.close(&file, NULL);
    }
    assert_int_equal(base_allocation_count(), allocations);
    assert_memory_equal(&entry[0], &entry[1], sizeof entry[0]);
    const struct memory_file *a = memory_store_find(&memory, "a");
    assert_memory_equal(a->data, memory_store_find(&memory, "b")->data, a->bytes);

    assert_int_equal(ckpt_shard_run(writer, &run, &failure), ZERO_E_INVALID);
    assert_int_equal(
        ckpt_shard_block(writer, codec, (struct ckpt_block_code){4, 0}, 0, "", 0, NULL),
        ZERO_E_INVALID);
    assert_int_equal(ckpt_shard_blob(writer, 0, 0, NULL), ZERO_OK);
    assert_int_equal(ckpt_shard_blob(writer, 0, 0, NULL), ZERO_E_INVALID);
    ckpt_shard_writer_destroy(writer);
    ckpt_shard_writer_destroy(NULL);
    ckpt_shard_close(NULL);
}

/* ------------------------------------------------------------------ what is refused */

// Opens shard 1 of 2 and reads all of it.
static zero_result open_and_read(const struct ckpt_manifest *manifest)
{
    struct ckpt_shard *shard;
    base_error_clear(&failure);
    zero_result result = ckpt_shard_open(&shard, &memory.store, name_of(1), manifest, 1, &failure);
    assert_true((result == ZERO_OK) == (shard != NULL));
    for (size_t b = 0; result == ZERO_OK && b < ckpt_shard_blocks(shard); b++)
        result = ckpt_shard_read(shard, b, codec, room, elements, &failure);
    ckpt_shard_close(shard);
    assert_int_equal(result, failure.result);
    return result;
}

static void expect(const struct ckpt_manifest *manifest, zero_result result, const char *message)
{
    const zero_result got = open_and_read(manifest);
    if (got != result || !strstr(failure.message, message))
        print_error("%d '%s' instead of '%s'\n", (int)got, failure.message, message);
    assert_int_equal(got, result);
    assert_non_null(strstr(failure.message, message));
}

static void every_changed_byte_and_every_cut_is_found(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    write_all(&manifest, SAMPLE_SMALL, 2, 1);
    struct memory_file *file = memory_store_find(&memory, name_of(1));
    const size_t bytes = file->bytes;
    unsigned char *whole = file->data;
    for (size_t i = TEST_PART; i < bytes; i += TEST_STRIDE) {
        whole[i] ^= (unsigned char)(1 << i % 8);
        assert_int_equal(open_and_read(&manifest), ZERO_E_CORRUPT);
        assert_non_null(strstr(failure.message, "'shard-00001.zst'"));
        whole[i] ^= (unsigned char)(1 << i % 8);
    }
    for (file->bytes = 0; file->bytes < bytes; file->bytes++)
        assert_int_equal(open_and_read(&manifest), ZERO_E_CORRUPT);
    file->bytes = bytes;
    assert_int_equal(open_and_read(&manifest), ZERO_OK);
    ckpt_manifest_free(&manifest);
}

static void strangers_are_told(void **state)
{
    (void)state;
    struct ckpt_manifest manifest, other;
    write_all(&manifest, SAMPLE_SMALL, 2, 0);
    struct memory_file *mine = memory_store_find(&memory, name_of(1));

    manifest.state.step++;
    expect(&manifest, ZERO_E_CORRUPT, "is of another step: shard 1 of 2 of step 50 by its header");
    manifest.state.step--;
    manifest.id[15] = 1;
    expect(&manifest, ZERO_E_CORRUPT, "is of another checkpoint");
    manifest.id[15] = 0;

    const struct memory_file *zero = memory_store_find(&memory, name_of(0));
    memory_store_put(&memory, "kept", mine->data, mine->bytes);
    memory_store_put(&memory, name_of(1), zero->data, zero->bytes);
    const uint64_t bytes = manifest.shards[1].bytes;
    manifest.shards[1].bytes = zero->bytes;
    expect(&manifest, ZERO_E_CORRUPT, "is the shard of another rank: shard 0 of 2");
    manifest.shards[1].bytes = bytes;
    const struct memory_file *kept = memory_store_find(&memory, "kept");
    memory_store_put(&memory, name_of(1), kept->data, kept->bytes);
    expect(&manifest, ZERO_OK, "");

    // One of a later version, whose checksum is right.
    mine->data[16] = 2;
    ckpt_put64(mine->data + 4088, base_hash64(mine->data, 4088, 0));
    expect(&manifest, ZERO_E_VERSION, "its version is 2");
    mine->data[16] = 1;
    mine->data[4000] = 1;
    ckpt_put64(mine->data + 4088, base_hash64(mine->data, 4088, 0));
    expect(&manifest, ZERO_E_CORRUPT, "has reserved bytes that are not 0");

    ckpt_manifest_free(&manifest);
    memory_store_free(&memory);
    memory_store_init(&memory);
    sample_make(&manifest, SAMPLE_SMALL, 2, 0);
    expect(&manifest, ZERO_NOT_FOUND, "shard-00001.zst");
    ckpt_manifest_free(&manifest);
    write_all(&other, SAMPLE_SMALL, 3, 0);
    other.world = 2; // of three
    expect(&other, ZERO_E_CORRUPT, "is of another number of shards: shard 1 of 3");
    other.world = 3;
    ckpt_manifest_free(&other);
}

// Where in shard 1 of the sample that is dealt out evenly something is, from the index on.
enum {
    BLOBS = 4, // of a rank, two of which have one block
    RUN_AT = CKPT_INDEX_HEAD + BLOBS * CKPT_BLOB_ROW,
};

static const struct hostile {
    int table; // what `offset` counts from: 0 the index, 1 the first block's row, 2 the tail's end
    size_t offset, bytes;
    uint64_t value;
    const char *message; // part of it
} hostile[] = {
    {0, 0, 4, CKPT_MAGIC_TAIL, "it has another name or length"},
    {0, 4, 4, 1, "it has another name or length"},
    {0, 15, 1, 'y', "it has another name or length"},
    {0, 16, 8, 3, "other numbers of blobs, runs or blocks"},
    {0, 24, 8, UINT64_MAX, "other numbers of blobs, runs or blocks"},
    {0, 32, 8, UINT64_MAX / 48, "other numbers of blobs, runs or blocks"},
    {0, 40, 4, 0, "knows other blobs"},
    {0, 44, 4, 1, "knows other blobs"},
    {0, 48, 8, 9, "knows other blobs"},
    {0, RUN_AT, 4, 7, "knows other runs"},
    {0, RUN_AT + 4, 4, 1, "knows other runs"},
    {0, RUN_AT + 8, 8, 1024, "knows other runs"},
    {0, RUN_AT + 16, 8, 7, "knows other runs"},
    {1, 0, 8, 4097, "block 0 by its index begins elsewhere"},
    {1, 0, 8, UINT64_MAX, "block 0 by its index begins elsewhere"},
    {1, 8, 8, 0, "its elements have another checksum"},
    {1, 16, 8, 0, "its stored bytes have another checksum"},
    {1, 24, 4, 2, "block 0 by its index is of other elements"},
    {1, 28, 1, 2, "block 0 by its index is of other elements"},
    {1, 30, 2, 1, "block 0 by its index is of other elements"},
    {1, 29, 1, 1, "block 0 by its index is rotated"},
    {1, 32, 4, 0, "block 0 by its index has a frame of impossible length"},
    {1, 32, 4, 8000, "block 0 by its index has a frame of impossible length"},
    {1, 36, 4, 1, "block 0 by its index has a frame of impossible length"},
    {1, 32, 4, 11, "block 1 by its index begins elsewhere"},
    {2, 0, 1, 'Z', "it has another name"},
    {2, 8, 8, 4096, "the manifest knows another index"},
    {2, 16, 8, 0, "the length of the index is wrong"},
    {2, 16, 8, UINT64_MAX, "the length of the index is wrong"},
    {2, 24, 8, 0, "the manifest knows another index"},
    {2, 32, 8, 4096, "the manifest knows another index"},
    {2, 40, 8, 0, "its checksum is another one"},
};

// What is wrong behind checksums that are right.
static void hostile_indices(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    write_all(&manifest, SAMPLE_SMALL, 2, 0);
    struct memory_file *file = memory_store_find(&memory, name_of(1));
    struct ckpt_shard_entry *entry = &manifest.shards[1];
    const struct ckpt_shard_entry right = *entry;
    unsigned char *index = file->data + entry->index_offset, *end = file->data + file->bytes - 48;
    const size_t index_bytes = (size_t)ckpt_get64(end + 16);
    unsigned char *tail = index + index_bytes, *kept = malloc(file->bytes);
    assert_non_null(kept);
    memcpy(kept, file->data, file->bytes);
    unsigned char *const tables[] = {index, index + RUN_AT + entry->run_count * CKPT_RUN_ROW, end};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        const struct hostile *h = &hostile[i];
        memcpy(tables[h->table] + h->offset, &h->value, h->bytes);
        if (h->table < 2) {
            entry->index_xxh3 = base_hash64(index, index_bytes, 0);
            ckpt_put64(end + 24, entry->index_xxh3);
        }
        if (h->offset < 40 || h->table < 2)
            ckpt_put64(end + 40, base_hash64(tail, (size_t)(end + 40 - tail), 0));
        expect(&manifest, ZERO_E_CORRUPT, h->message);
        memcpy(file->data, kept, file->bytes);
        *entry = right;
    }
    tail[8] = 1;
    ckpt_put64(end + 40, base_hash64(tail, (size_t)(end + 40 - tail), 0));
    expect(&manifest, ZERO_E_CORRUPT, "its padding is not 0");
    tail[8] = 0;
    tail[4]++;
    ckpt_put64(end + 40, base_hash64(tail, (size_t)(end + 40 - tail), 0));
    expect(&manifest, ZERO_E_CORRUPT, "it is no skippable frame");
    free(kept);
    ckpt_manifest_free(&manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(zstd_reads_a_shard, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_writer_is_used_again_and_has_its_limits, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(every_changed_byte_and_every_cut_is_found, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(strangers_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hostile_indices, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
