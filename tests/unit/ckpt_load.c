// checkpoint/loader.h: any elements from any shards, and damage wherever it is.
#include "base/arena.h"
#include "checkpoint/loader.h"
#include "checkpoint/manifest/manifest_parts.h"
#include "checkpoint/shard/shard_format.h"
#include "tests/sweep.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/memory_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct base_error failure;
static struct memory_store memory;
static struct ckpt_manifest made;
static unsigned char got[5 << 20], wanted[5 << 20];

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    memory_store_init(&memory);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    memory_store_free(&memory);
    ckpt_manifest_free(&made);
    return memory.open ? -1 : 0;
}

static const char *path_of(uint32_t rank)
{
    static char path[CKPT_PATH_BYTES];
    assert_int_equal(ckpt_shard_path(path, "d", 50, rank, NULL), ZERO_OK);
    return path;
}

static void put_manifest(void)
{
    char *text;
    size_t length;
    assert_int_equal(ckpt_manifest_format(&made, &text, &length, &failure), ZERO_OK);
    memory_store_put(&memory, "d/step-00000050/manifest.json", text, length);
    base_free(text);
}

static void save(enum sample_size size, uint32_t world, unsigned deal)
{
    memory_store_free(&memory);
    memory_store_init(&memory);
    ckpt_manifest_free(&made);
    sample_make(&made, size, world, deal);
    for (uint32_t r = 0; r < world; r++)
        assert_int_equal(sample_write_shard(&made, r, &memory.store, path_of(r), 1, &failure),
                         ZERO_OK);
    sample_seal(&made);
    put_manifest();
}

static struct ckpt_loader *open_loader(void)
{
    struct ckpt_loader *loader;
    if (ckpt_loader_open(&loader, &memory.store, "d", 50, &failure))
        print_error("%s\n", failure.message);
    assert_non_null(loader);
    return loader;
}

static void count_damage(void *user, const struct base_error *damage)
{
    assert_true(damage->result != ZERO_OK && damage->message[0] != '\0');
    ++*(int *)user;
}

static uint64_t last_progress;

static void take_progress(void *user, uint64_t bytes_read)
{
    (void)user;
    assert_true(bytes_read > last_progress);
    last_progress = bytes_read;
}

// Verifies, and gives the pieces of damage.
static zero_result verify(struct ckpt_loader *loader, int *pieces)
{
    const struct ckpt_verify_watch watch = {count_damage, take_progress, pieces};
    last_progress = 0;
    *pieces = 0;
    base_error_clear(&failure);
    return ckpt_loader_verify(loader, &watch, &failure);
}

/* ------------------------------------------------------------------ what was saved is loaded */

static zero_result read_range(struct ckpt_loader *loader, size_t tensor, uint32_t slice, int field,
                              uint64_t first, uint64_t count)
{
    const size_t bytes = (size_t)count * sample_element_bytes(&made, tensor, field);
    got[bytes] = 0xa5;
    const zero_result result =
        ckpt_loader_read(loader, tensor, slice, field, first, count, got, &failure);
    assert_int_equal(got[bytes], 0xa5);
    if (result)
        return result;
    sample_elements(&made, tensor, slice, field, first, count, wanted);
    assert_memory_equal(got, wanted, bytes);
    return ZERO_OK;
}

static void read_some_ranges(struct ckpt_loader *loader, size_t tensor, uint32_t slice, int field)
{
    const uint64_t numel = made.tensors[tensor].numel;
    const uint64_t ranges[][2] = {
        {0, numel}, {0, 1}, {numel - 1, 1}, {numel / 3, numel / 2}, {numel / 3 + 1, numel / 5},
        {numel, 0}, {0, 0}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        assert_int_equal(read_range(loader, tensor, slice, field, ranges[r][0], ranges[r][1]),
                         ZERO_OK);
}

static zero_result read_blobs(struct ckpt_loader *loader)
{
    zero_result result = ZERO_OK;
    for (size_t b = 0; result == ZERO_OK && b < made.blob_count; b++) {
        for (uint32_t r = 0; result == ZERO_OK && r < made.world; r++) {
            const size_t bytes = sample_blob_bytes(&made, b, r);
            got[bytes] = 0xa5;
            result = ckpt_loader_blob(loader, b, r, got, &failure);
            assert_int_equal(got[bytes], 0xa5);
            sample_blob(&made, b, made.blobs[b].of_rank ? r : 0, wanted);
            if (result == ZERO_OK)
                assert_memory_equal(got, wanted, bytes);
        }
    }
    return result;
}

static void any_range_of_any_shards(void **state)
{
    (void)state;
    for (uint32_t world = 1, turn = 0; world <= 5; world++) {
        for (unsigned deal = 0; deal < 2; deal++, turn++) {
            if (!test_takes((int)turn))
                continue;
            save(SAMPLE_LARGE, world, deal);
            struct ckpt_loader *loader = open_loader();
            for (size_t t = 0; t < made.tensor_count; t++)
                for (uint32_t s = 0; s < made.tensors[t].slices; s++)
                    for (int f = 0; f < made.tensors[t].fields; f++)
                        read_some_ranges(loader, t, s, f);
            assert_int_equal(read_blobs(loader), ZERO_OK);
            int pieces;
            assert_int_equal(verify(loader, &pieces), ZERO_OK);
            assert_int_equal(pieces, 0);
            ckpt_loader_close(loader);
        }
    }
}

// A reader of everything reads no block twice; a reader of a part, little more than it.
static void no_more_is_read_than_needed(void **state)
{
    (void)state;
    save(SAMPLE_LARGE, 3, 1);
    uint64_t all = 0;
    for (size_t r = 0; r < made.world; r++)
        all += made.shards[r].bytes;
    struct ckpt_loader *loader = open_loader();
    for (size_t t = 0; t < made.tensor_count; t++)
        for (uint32_t s = 0; s < made.tensors[t].slices; s++)
            for (int f = 0; f < made.tensors[t].fields; f++)
                assert_int_equal(read_range(loader, t, s, f, 0, made.tensors[t].numel), ZERO_OK);
    assert_true(ckpt_loader_bytes_read(loader) <= all);
    ckpt_loader_close(loader);

    // In pieces, the last of which are in one block.
    const size_t noise = made.tensor_count - 1;
    loader = open_loader();
    for (uint64_t first = 0; first < 655360; first += 8192)
        assert_int_equal(read_range(loader, noise, 0, 0, first, 8192), ZERO_OK);
    assert_true(ckpt_loader_bytes_read(loader) < 655360 * 4 * 11 / 10);
    ckpt_loader_close(loader);
}

// The block that is kept is taken for no other: not for the one of the same number in another
// shard, nor after everything has been read.
static void the_block_that_is_kept(void **state)
{
    (void)state;
    save(SAMPLE_LARGE, 2, 0);
    struct ckpt_loader *loader = open_loader();
    const size_t noise = made.tensor_count - 1;
    const uint64_t all = made.tensors[noise].numel;
    const uint64_t border = made.shards[0].runs[made.shards[0].run_count - 1].count;
    for (uint64_t here = 0; here < border; here += CKPT_BLOCK_ELEMENTS) {
        for (uint64_t there = border; there < all; there += CKPT_BLOCK_ELEMENTS) {
            assert_int_equal(read_range(loader, noise, 0, 0, here, 2), ZERO_OK);
            assert_int_equal(read_range(loader, noise, 0, 0, there, 2), ZERO_OK);
        }
    }
    assert_int_equal(read_range(loader, 6, 0, 0, 0, 1), ZERO_OK);
    int pieces;
    assert_int_equal(verify(loader, &pieces), ZERO_OK);
    assert_int_equal(read_range(loader, 6, 0, 0, 0, 1), ZERO_OK);
    ckpt_loader_close(loader);
}

// Files are closed and opened again, but header and index of each are read once.
static void more_shards_than_are_kept_open(void **state)
{
    (void)state;
    save(SAMPLE_SMALL, 40, 0);
    uint64_t known = 0, read[3];
    for (size_t r = 0; r < made.world; r++)
        known += CKPT_HEADER_BYTES + made.shards[r].bytes - made.shards[r].index_offset;
    struct ckpt_loader *loader = open_loader();
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(read_blobs(loader), ZERO_OK);
        assert_int_equal(memory.open, 32);
        read[turn] = ckpt_loader_bytes_read(loader);
    }
    assert_int_equal(read[1] - read[0], read[0] - known);
    assert_int_equal(read[2] - read[1], read[0] - known);
    for (size_t t = 0; t < made.tensor_count; t++)
        for (uint32_t s = 0; s < made.tensors[t].slices; s++)
            assert_int_equal(read_range(loader, t, s, 0, 0, made.tensors[t].numel), ZERO_OK);
    ckpt_loader_close(loader);
}

// One that is gone when it is to be opened again is told; the others can still be read.
static void a_shard_that_goes_while_it_rests(void **state)
{
    (void)state;
    unsigned char blob[200];
    save(SAMPLE_SMALL, 40, 0);
    struct ckpt_loader *loader = open_loader();
    for (uint32_t rank = 0; rank < 40; rank++) // the first ones rest then
        assert_int_equal(ckpt_loader_blob(loader, 3, rank, blob, &failure), ZERO_OK);
    const int open = memory.open;
    memory_store_find(&memory, path_of(1))->path[0] = 'D';
    assert_int_equal(ckpt_loader_blob(loader, 3, 1, blob, &failure), ZERO_NOT_FOUND);
    assert_non_null(strstr(failure.message, "blob 'blob.3'"));
    assert_non_null(strstr(failure.message, path_of(1)));
    assert_int_equal(memory.open, open - 1);
    for (uint32_t rank = 2; rank < 40; rank++)
        assert_int_equal(ckpt_loader_blob(loader, 3, rank, blob, &failure), ZERO_OK);
    ckpt_loader_close(loader);
}

static void what_is_not_there(void **state)
{
    (void)state;
    save(SAMPLE_SMALL, 2, 0);
    struct ckpt_loader *loader = open_loader();
    const struct {
        size_t tensor;
        uint32_t slice;
        int field;
        uint64_t first, count;
    } wrong[] = {{3, 0, 0, 0, 0},    {1, 2, 0, 0, 0},    {1, 0, 3, 0, 0}, {1, 0, -1, 0, 0},
                 {1, 0, 0, 1031, 0}, {1, 0, 0, 0, 1031}, {1, 0, 0, 7, 1}, {1, 0, 0, 1, UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(ckpt_loader_read(loader, wrong[i].tensor, wrong[i].slice, wrong[i].field,
                                          wrong[i].first, wrong[i].count, got, NULL),
                         ZERO_E_INVALID);
    assert_int_equal(ckpt_loader_blob(loader, 8, 0, got, NULL), ZERO_E_INVALID);
    assert_int_equal(ckpt_loader_blob(loader, 1, 2, got, NULL), ZERO_E_INVALID);
    assert_int_equal(ckpt_loader_blob(loader, 0, 2, got, NULL), ZERO_OK);
    ckpt_loader_close(loader);
    ckpt_loader_close(NULL);
    assert_int_equal(ckpt_loader_open(&loader, &memory.store, "d", 51, &failure), ZERO_NOT_FOUND);
    assert_null(loader);
}

/* ------------------------------------------------------------------ damage */

// Reads everything. Whatever is read is right.
static zero_result load_all(struct ckpt_loader *loader)
{
    zero_result first = ZERO_OK;
    base_error_clear(&failure);
    for (size_t t = 0; t < made.tensor_count; t++) {
        for (uint32_t s = 0; s < made.tensors[t].slices; s++) {
            for (int f = 0; f < made.tensors[t].fields; f++) {
                const zero_result result = read_range(loader, t, s, f, 0, made.tensors[t].numel);
                first = first ? first : result;
            }
        }
    }
    const zero_result result = read_blobs(loader);
    return first ? first : result;
}

static void expect_failure(zero_result result, const char *message)
{
    assert_int_equal(failure.result, result);
    if (!strstr(failure.message, message))
        print_error("'%s' instead of '%s'\n", failure.message, message);
    assert_non_null(strstr(failure.message, message));
}

// Verifies and loads what is damaged: each must find it.
static void expect_found(struct ckpt_loader *loader, zero_result result, const char *message)
{
    int pieces;
    assert_int_equal(verify(loader, &pieces), ZERO_E_CORRUPT);
    assert_true(pieces > 0);
    assert_int_equal(load_all(loader), result);
    expect_failure(result, message);
}

// The same of a damaged manifest, with which nothing is opened.
static void expect_unopened(zero_result result, const char *message)
{
    struct ckpt_loader *loader;
    base_error_clear(&failure);
    assert_int_equal(ckpt_loader_open(&loader, &memory.store, "d", 50, &failure), result);
    assert_null(loader);
    expect_failure(result, message);
}

static void expect_damage(zero_result result, const char *message)
{
    struct ckpt_loader *loader = open_loader();
    expect_found(loader, result, message);
    ckpt_loader_close(loader);
}

static void every_changed_byte_of_every_file_is_found(void **state)
{
    (void)state;
    save(SAMPLE_SMALL, 2, 1);
    struct ckpt_loader *loader = open_loader();
    for (size_t f = 0; f < 3; f++) {
        struct memory_file *file = &memory.files[f];
        for (size_t i = TEST_PART; i < file->bytes; i += TEST_STRIDE) {
            file->data[i] ^= (unsigned char)(1 << i % 8);
            if (strstr(file->path, "shard"))
                expect_found(loader, ZERO_E_CORRUPT, file->path);
            else
                expect_unopened(ZERO_E_CORRUPT, file->path);
            file->data[i] ^= (unsigned char)(1 << i % 8);
        }
    }
    assert_int_equal(load_all(loader), ZERO_OK);
    ckpt_loader_close(loader);
}

// The tests of shard and manifest take every length.
static void cuts_are_found(void **state)
{
    (void)state;
    save(SAMPLE_SMALL, 2, 1);
    struct ckpt_loader *loader = open_loader();
    for (size_t f = 0; f < 3; f++) {
        struct memory_file *file = &memory.files[f];
        const size_t bytes = file->bytes;
        for (size_t cut = 0; cut < bytes; cut += 61) {
            file->bytes = cut;
            if (strstr(file->path, "shard"))
                expect_found(loader, ZERO_E_CORRUPT, file->path);
            else
                expect_unopened(ZERO_E_CORRUPT, file->path);
        }
        file->bytes = bytes;
    }
    ckpt_loader_close(loader);
}

// A file of a checkpoint that was saved in another way, in place of this one's.
static void put_stranger(uint32_t place, unsigned char id, uint64_t step, uint32_t rank)
{
    struct ckpt_manifest other;
    sample_make(&other, SAMPLE_SMALL, 2, 1);
    other.id[0] = id;
    other.state.step = step;
    struct memory_file *file = memory_store_find(&memory, path_of(place));
    free(file->data);
    *file = (struct memory_file){.data = NULL};
    assert_int_equal(sample_write_shard(&other, rank, &memory.store, path_of(place), 1, &failure),
                     ZERO_OK);
    ckpt_manifest_free(&other);
}

static void strangers_are_told(void **state)
{
    (void)state;
    save(SAMPLE_SMALL, 2, 1);
    put_stranger(1, 1, 50, 1);
    struct ckpt_loader *loader = open_loader();
    assert_int_equal(load_all(loader), ZERO_OK); // the same again
    ckpt_loader_close(loader);

    put_stranger(1, 2, 50, 1);
    expect_damage(ZERO_E_CORRUPT, "is of another checkpoint");
    put_stranger(1, 1, 51, 1);
    expect_damage(ZERO_E_CORRUPT, "is of another step");
    save(SAMPLE_SMALL, 2, 1);
    put_stranger(0, 1, 50, 1);
    put_stranger(1, 1, 50, 0);
    expect_damage(ZERO_E_CORRUPT, "shard-00000.zst");

    save(SAMPLE_SMALL, 2, 1);
    struct memory_file *file = memory_store_find(&memory, path_of(1));
    free(file->data);
    *file = (struct memory_file){.data = NULL};
    expect_damage(ZERO_NOT_FOUND, "shard-00001.zst");

    save(SAMPLE_SMALL, 2, 1);
    memory_store_put(&memory, "d/step-00000050/shard-00002.zst", "x", 1);
    loader = open_loader();
    int pieces;
    assert_int_equal(verify(loader, &pieces), ZERO_OK);
    assert_int_equal(load_all(loader), ZERO_OK);
    ckpt_loader_close(loader);

    // Of a later format.
    struct memory_file *manifest = memory_store_find(&memory, "d/step-00000050/manifest.json");
    assert_memory_equal(manifest->data, "{\n\"format\": 1", 13);
    manifest->data[12] = '2';
    expect_unopened(ZERO_E_CORRUPT, "checksum");
    char line[CKPT_LAST_LINE + 1];
    const size_t before = manifest->bytes - CKPT_LAST_LINE;
    ckpt_last_line((const char *)manifest->data, before, line);
    memcpy(manifest->data + before, line, CKPT_LAST_LINE);
    expect_unopened(ZERO_E_VERSION, "its format is 2");
}

// Whole blocks with other values than the manifest tells of: as a fault in memory would leave them.
static void values_are_what_the_sums_say(void **state)
{
    (void)state;
    static const char *const messages[] = {"'d/step-00000050': tensor 'tensor.2' has other values",
                                           "'d/step-00000050': its finger",
                                           "'d/step-00000050': its fingerprint"};
    for (int i = 0; i < 3; i++) {
        int pieces;
        save(SAMPLE_SMALL, 2, 1);
        if (i == 0) { // other values, of which the fingerprint was made
            made.tensors[2].trains = false;
            sample_seal(&made);
            made.tensors[2].trains = true;
        } else if (i == 1)
            made.state.fingerprint[15] ^= 1;
        else
            made.groups[0].hyper[0].value *= 2;
        put_manifest();
        struct ckpt_loader *loader = open_loader();
        assert_int_equal(verify(loader, &pieces), ZERO_E_CORRUPT);
        assert_int_equal(pieces, 1);
        assert_non_null(strstr(failure.message, messages[i]));
        assert_int_equal(load_all(loader), ZERO_OK);
        ckpt_loader_close(loader);
    }
    // No sum is asked for of what could not be read.
    save(SAMPLE_SMALL, 2, 1);
    memory_store_find(&memory, path_of(0))->data[made.shards[0].index_offset - 1] ^= 1;
    made.tensors[2].sum.low++;
    made.state.fingerprint[0]++;
    put_manifest();
    int pieces;
    struct ckpt_loader *loader = open_loader();
    assert_int_equal(verify(loader, &pieces), ZERO_E_CORRUPT);
    assert_int_equal(pieces, 2);
    ckpt_loader_close(loader);
}

// All damage is told, not the first piece only, and what is whole can be loaded.
static void verification_goes_on_after_damage(void **state)
{
    (void)state;
    save(SAMPLE_LARGE, 3, 0);
    memory_store_find(&memory, path_of(0))->data[4096] ^= 1;
    memory_store_find(&memory, path_of(0))->data[made.shards[0].index_offset - 1] ^= 1;
    memory_store_find(&memory, path_of(2))->data[0] ^= 1;
    struct ckpt_loader *loader = open_loader();
    int pieces;
    assert_int_equal(verify(loader, &pieces), ZERO_E_CORRUPT);
    assert_int_equal(pieces, 3);
    assert_non_null(strstr(failure.message, "3 pieces of damage, the first: blob 'blob.2', "));
    assert_non_null(strstr(failure.message, "offset 4096 of 'd/step-00000050/shard-00000.zst'"));
    base_error_clear(&failure);
    const size_t last = made.tensor_count - 1;
    const uint64_t run_end = made.shards[0].runs[made.shards[0].run_count - 1].count;
    assert_int_equal(read_range(loader, last, 0, 0, run_end - 1, 1), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "tensor 'tensor.9', slice 0, field 0, elements "));
    assert_int_equal(read_range(loader, last, 0, 0, 0, 65536), ZERO_OK);
    assert_int_equal(read_range(loader, last, 0, 0, run_end, 65536), ZERO_OK);
    ckpt_loader_close(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_range_of_any_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_more_is_read_than_needed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_block_that_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(more_shards_than_are_kept_open, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_shard_that_goes_while_it_rests, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_changed_byte_of_every_file_is_found, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(cuts_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(strangers_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(values_are_what_the_sums_say, set_up, tear_down),
        cmocka_unit_test_setup_teardown(verification_goes_on_after_damage, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
