// zero-ckpt export, import and diff --values as commands: ckpt_transfer <zero-ckpt> <golden>
#include "base/arena.h"
#include "base/bfloat16.h"
#include "checkpoint/loader.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "tests/unit/ckpt_command.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *golden;
static unsigned char got[5 << 20], wanted[5 << 20];
static float values[1 << 20];

static const char *at(const char *name)
{
    return temporary_path(&tool_temporary, name);
}

static struct ckpt_loader *open_checkpoint(const char *name, uint64_t step)
{
    struct ckpt_loader *loader;
    if (ckpt_loader_open(&loader, &ckpt_store_posix, at(name), step, &tool_failure))
        fail_msg("%s", tool_failure.message);
    return loader;
}

static struct ckpt_safetensors *open_file(const char *name)
{
    struct ckpt_safetensors *file;
    if (ckpt_safetensors_open(&file, at(name), &tool_failure))
        fail_msg("%s", tool_failure.message);
    return file;
}

/* ------------------------------------------------------------------ there and back */

static void read_slice(struct ckpt_loader *loader, size_t t, uint32_t slice, int field)
{
    const uint64_t numel = ckpt_loader_manifest(loader)->tensors[t].numel;
    assert_int_equal(ckpt_loader_read(loader, t, slice, field, 0, numel, got, &tool_failure),
                     ZERO_OK);
}

// Every element and every byte of a checkpoint is the sample's.
static void expect_sample(struct ckpt_loader *loader)
{
    const struct ckpt_manifest *manifest = ckpt_loader_manifest(loader);
    for (size_t t = 0; t < manifest->tensor_count; t++)
        for (uint32_t s = 0; s < manifest->tensors[t].slices; s++)
            for (int f = 0; f < manifest->tensors[t].fields; f++) {
                const uint64_t numel = manifest->tensors[t].numel;
                read_slice(loader, t, s, f);
                sample_elements(manifest, t, s, f, 0, numel, wanted);
                assert_memory_equal(got, wanted, numel * sample_element_bytes(manifest, t, f));
            }
    for (size_t b = 0; b < manifest->blob_count; b++)
        for (uint32_t r = 0; r < (manifest->blobs[b].of_rank ? manifest->world : 1); r++) {
            assert_int_equal(ckpt_loader_blob(loader, b, r, got, &tool_failure), ZERO_OK);
            sample_blob(manifest, b, r, wanted);
            assert_memory_equal(got, wanted, sample_blob_bytes(manifest, b, r));
        }
}

static void test_a_state_goes_there_and_back(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 4; world++) {
        const enum sample_size size = world == 3 ? SAMPLE_LARGE : SAMPLE_SMALL;
        tool_save(tool_directory(), size, world, world, NULL, 8);
        tool_expect(0, "export --force --state $D $T/f", "tensors of step");
        tool_expect(0, "import $T/f $T/back", "fingerprint");
        tool_expect(0, "verify $T/back", "whole");
        tool_expect(0, "diff --values $D $T/back", "the same state");
        struct ckpt_loader *loader = open_checkpoint("back", world);
        assert_int_equal(ckpt_loader_manifest(loader)->world, world);
        expect_sample(loader);
        ckpt_loader_close(loader);
    }
    // Another step is another state, and a checkpoint beside the first.
    tool_expect(0, "import --step 0 $T/f $T/back", "step-00000000");
    tool_expect(1, "diff $T/back/step-00000000 $D", "step");
    tool_expect(0, "verify --all $T/back", "whole");
    tool_expect(64, "import $T/f $T/back", "is there already");
    tool_expect(64, "export --state $D $T/f", "is there already");
    tool_expect(0, "import --force $T/f $T/back", "step-00000004");
    json_t *root = tool_run_json(0, "import --json $T/f $T/new", "zero-ckpt-import");
    assert_int_equal(json_array_size(json_object_get(root, "changed")), 0);
    json_decref(root);
}

/* ------------------------------------------------------------------ weights */

static float sample_weight(const struct ckpt_manifest *manifest, size_t t, uint64_t element)
{
    const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
    unsigned char bytes[4];
    float value;
    uint16_t half;
    sample_elements(manifest, t, (uint32_t)(element / tensor->numel), 0, element % tensor->numel, 1,
                    bytes);
    memcpy(&value, bytes, sizeof value);
    memcpy(&half, bytes, sizeof half);
    return tensor->field[0] == CKPT_F32    ? value
           : tensor->field[0] == CKPT_BF16 ? base_f32_from_bf16(half)
                                           : base_f32_from_f16(half);
}

// What a file has of the sample's weights, rounded to `dtype` if that is not CKPT_OTHER.
static void expect_weights(const char *name, enum ckpt_dtype dtype)
{
    struct ckpt_manifest manifest;
    sample_make(&manifest, SAMPLE_SMALL, 1, 0);
    struct ckpt_safetensors *file = open_file(name);
    assert_int_equal(ckpt_safetensors_count(file), manifest.tensor_count);
    for (size_t t = 0; t < manifest.tensor_count; t++) {
        const struct ckpt_tensor *tensor = ckpt_safetensors_find(file, manifest.tensors[t].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, dtype == CKPT_OTHER ? manifest.tensors[t].field[0] : dtype);
        assert_int_equal(tensor->ndim, 2);
        assert_int_equal(
            ckpt_safetensors_read_f32(file, tensor, 0, tensor->count, values, &tool_failure),
            ZERO_OK);
        for (uint64_t i = 0; i < tensor->count; i++) {
            float exact = sample_weight(&manifest, t, i);
            const bool converted = dtype != manifest.tensors[t].field[0]; // or as it is, NaNs too
            if (converted && dtype == CKPT_BF16)
                exact = base_f32_from_bf16(base_bf16_from_f32(exact));
            else if (converted && dtype == CKPT_F16)
                exact = base_f32_from_f16(base_f16_from_f32(exact));
            assert_int_equal(base_f32_bits(values[i]), base_f32_bits(exact));
        }
    }
    assert_string_equal(ckpt_safetensors_metadata(file, "zero.step"), "50");
    assert_int_equal(strlen(ckpt_safetensors_metadata(file, "zero.fingerprint")), 32);
    assert_string_equal(ckpt_safetensors_metadata(file, "zero.version"), "0.1.0");
    assert_null(ckpt_safetensors_metadata(file, "zero.manifest"));
    ckpt_safetensors_close(file);
    ckpt_manifest_free(&manifest);
}

static void test_weights_are_exported_as_asked(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 3, NULL, 8);
    tool_expect(0, "export $D $T/f", "3 tensors of step 50");
    expect_weights("f", CKPT_OTHER);
    tool_expect(0, "export --dtype f32 $D $T/f32", "");
    expect_weights("f32", CKPT_F32);
    tool_expect(0, "export --dtype bf16 $D $T/bf16", "");
    expect_weights("bf16", CKPT_BF16);
    tool_expect(0, "export --dtype f16 --force $D $T/bf16", "");
    expect_weights("bf16", CKPT_F16);
    tool_expect(0, "export --tensor 'tensor.[12]' --state $D $T/some", "4 tensors");
    tool_expect(64, "export --tensor nothing $D $T/none", "matches 'nothing'");
    struct ckpt_safetensors *file = open_file("some");
    assert_non_null(ckpt_safetensors_find(file, "tensor.1.exp_avg"));
    assert_non_null(ckpt_safetensors_find(file, "tensor.1.exp_avg_sq"));
    assert_null(ckpt_safetensors_metadata(file, "zero.manifest"));
    ckpt_safetensors_close(file);
    json_t *root = tool_run_json(0, "export --json --state $D $T/all", "zero-ckpt-export");
    assert_true(json_is_true(json_object_get(root, "whole")));
    assert_int_equal(json_integer_value(json_object_get(root, "tensors")), 5);
    json_decref(root);
    // Neither a file nor a temporary one where it failed.
    tool_expect(66, "export $D $T/no/f", "zero-ckpt: ");
    tool_expect(64, "export $D $T", "is there already");
    tool_expect(64, "export --force $D $T", "no regular file");
    assert_int_equal(remove(at("d/step-00000050/shard-00002.zst")), 0);
    tool_expect(66, "export $D $T/g", "shard-00002.zst");
    assert_int_equal(temporary_entries(&tool_temporary), 6);
}

static void test_weights_are_imported_like_a_checkpoint(void **state)
{
    (void)state;
    char command[1024];
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    snprintf(command, sizeof command, "import --like $D %s/weights.safetensors $T/new", golden);
    tool_expect(0, command, "step-00000000: 3 tensors");
    tool_expect(0, "verify $T/new", "whole");
    struct ckpt_loader *loader = open_checkpoint("new", 0);
    const struct ckpt_manifest *manifest = ckpt_loader_manifest(loader);
    assert_int_equal(manifest->state.updates, 0);
    assert_int_equal(manifest->state.micro_batches, 8);
    read_slice(loader, 0, 0, 0);
    assert_memory_equal(got, (&(float){-2.5f}), sizeof(float));
    for (uint32_t s = 0; s < 2; s++) {
        read_slice(loader, 1, s, 0);
        for (uint32_t i = 0; i < 7; i++) {
            const float value = (float)(7 * s + i) / 8 - 1;
            assert_memory_equal(got + i * sizeof value, &value, sizeof value);
        }
        for (int f = 1; f < 3; f++) {
            read_slice(loader, 1, s, f);
            memset(wanted, 0, sizeof(float[7]));
            assert_memory_equal(got, wanted, 7 * sample_element_bytes(manifest, 1, f));
        }
    }
    read_slice(loader, 2, 0, 0);
    for (uint32_t i = 0; i < 1030; i++) {
        const uint16_t half = base_f16_from_f32((float)i / 64);
        assert_memory_equal(got + i * sizeof half, &half, sizeof half);
    }
    assert_int_equal(ckpt_loader_blob(loader, 4, 0, got, &tool_failure), ZERO_OK);
    sample_blob(manifest, 4, 0, wanted);
    assert_memory_equal(got, wanted, sample_blob_bytes(manifest, 4, 0));
    ckpt_loader_close(loader);
}

// As models on Hugging Face's hub are that are too large for one file.
static void test_an_index_is_imported_like_a_file(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_expect(0, "export --tensor 'tensor.[02]' $D $T/m-1", "2 tensors");
    tool_expect(0, "export --tensor 'tensor.1' $D $T/m-2", "1 tensors");
    assert_true(temporary_write(&tool_temporary, "m.index.json",
                                "{\"metadata\": {\"total_size\": 1}, \"weight_map\": "
                                "{\"tensor.0\": \"m-1\", \"tensor.1\": \"m-2\", "
                                "\"tensor.2\": \"m-1\"}}"));
    tool_expect(0, "import --like $D $T/m.index.json $T/new", "step-00000000: 3 tensors");
    struct ckpt_loader *loader = open_checkpoint("new", 0);
    const struct ckpt_manifest *manifest = ckpt_loader_manifest(loader);
    for (size_t t = 0; t < manifest->tensor_count; t++)
        for (uint32_t s = 0; s < manifest->tensors[t].slices; s++) {
            const uint64_t numel = manifest->tensors[t].numel;
            read_slice(loader, t, s, 0);
            sample_elements(manifest, t, s, 0, 0, numel, wanted);
            assert_memory_equal(got, wanted, numel * sample_element_bytes(manifest, t, 0));
        }
    ckpt_loader_close(loader);
    tool_expect(64, "import $T/m.index.json $T/other", "has no whole state");
    assert_true(
        temporary_write(&tool_temporary, "some.json", "{\"weight_map\": {\"tensor.1\": \"m-2\"}}"));
    tool_expect(64, "import --like $D $T/some.json $T/other", "no tensor 'tensor.0'");
    assert_int_equal(remove(at("m-2")), 0);
    tool_expect(66, "import --like $D $T/m.index.json $T/other", "m-2");
}

/* ------------------------------------------------------------------ values that differ */

// Overwrites one element of a tensor in a file.
static void poke(const char *name, const char *tensor, uint64_t element, const void *value,
                 size_t size)
{
    struct ckpt_safetensors *file = open_file(name);
    const uint64_t offset = ckpt_safetensors_find(file, tensor)->offset + element * size;
    ckpt_safetensors_close(file);
    FILE *stream = fopen(at(name), "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(value, size, 1, stream), 1);
    assert_int_equal(fclose(stream), 0);
}

static void poke_f32(const char *tensor, uint64_t element, float value)
{
    poke("f", tensor, element, &value, sizeof value);
}

static uint64_t number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static void test_values_that_differ(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_expect(0, "export --state $D $T/f", "");
    for (uint64_t i = 0; i < 14; i++)
        poke_f32("tensor.1", i, 1.0f);
    poke_f32("tensor.1", 13, -0x1p-149f); // two steps from its opposite, over zero
    tool_expect(0, "import --edited $T/f $T/a", "changed since the export: tensor.1");
    poke_f32("tensor.1", 3, 1.5f);
    poke_f32("tensor.1", 9, nextafterf(1.0f, 0.0f));
    poke_f32("tensor.1", 12, NAN);
    poke_f32("tensor.1", 13, 0x1p-149f);
    const uint16_t half = 0x3c01; // one more than 1.0
    poke("f", "tensor.2", 1029, &half, sizeof half);
    tool_expect(65, "import $T/f $T/b", "tensor 'tensor.1' has other values");
    assert_int_equal(tool_run("list $T/b | grep -q ' [0-9]'"), 1); // nothing is left of it
    tool_expect(0, "import --edited $T/f $T/b", "tensor.2");
    tool_expect(0, "verify $T/b", "whole");
    tool_expect(1, "diff --values $T/a $T/b", "exp_avg_sq");

    json_t *root = tool_run_json(1, "diff --json --values $T/a $T/b", "zero-ckpt-diff");
    json_t *rows = json_object_get(root, "values"), *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 4); // three fields, and one of tensor.2
    assert_string_equal(json_string_value(json_object_get(row, "tensor")), "tensor.1");
    assert_string_equal(json_string_value(json_object_get(row, "field")), "weight");
    assert_int_equal(number(row, "elements"), 14);
    assert_int_equal(number(row, "differ"), 4);
    assert_int_equal(number(row, "first"), 3);
    assert_int_equal(number(row, "nonfinite"), 1);
    assert_true(json_real_value(json_object_get(row, "largest")) == 0.5);
    assert_int_equal(number(row, "largest_at"), 3);
    assert_int_equal(number(row, "ulps"), 1 << 22);
    assert_int_equal(number(row, "ulps_at"), 3);
    row = json_array_get(rows, 1);
    assert_int_equal(number(row, "differ"), 0);
    assert_true(json_is_null(json_object_get(row, "largest")));
    row = json_array_get(rows, 3);
    assert_string_equal(json_string_value(json_object_get(row, "tensor")), "tensor.2");
    assert_int_equal(number(row, "first"), 1029);
    json_decref(root);
}

static void test_attached_bytes_that_differ(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_expect(0, "export --state $D $T/f", "");
    // Byte 4 of the second rank's, and byte 2 of all ranks'.
    assert_int_equal(
        tool_run("--version; sed -i -e 's/\\(\"zero.blob.blob.3.1\":\"16161616\\)16/\\1ff/' "
                 "-e 's/\\(\"zero.blob.blob.4\":\"1c1c\\)1c/\\100/' $T/f"),
        0);
    tool_expect(0, "import --edited $T/f $T/b", "");
    tool_expect(0, "diff $D $D", "the same state");
    tool_expect(1, "diff $D $T/b", "  blob.3, of rank 1, first at 4\n");
    assert_non_null(strstr(tool_output, "  blob.4, first at 2\n"));
    json_t *root = tool_run_json(1, "diff --json $D $T/b", "zero-ckpt-diff");
    json_t *rows = json_object_get(root, "differences"), *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 3); // and the fingerprint
    assert_string_equal(json_string_value(json_object_get(row, "what")), "bytes");
    assert_string_equal(json_string_value(json_object_get(row, "of")), "blob.3");
    assert_int_equal(number(row, "rank"), 1);
    assert_int_equal(number(row, "first"), 4);
    assert_string_equal(json_string_value(json_object_get(row, "a")), "16");
    assert_string_equal(json_string_value(json_object_get(row, "b")), "ff");
    row = json_array_get(rows, 1);
    assert_string_equal(json_string_value(json_object_get(row, "of")), "blob.4");
    assert_true(json_is_null(json_object_get(row, "rank")));
    assert_int_equal(number(row, "first"), 2);
    json_decref(root);
}

/* ------------------------------------------------------------------ what can't be imported */

// Writes a file of these tensors of one element each, with the metadata of an exported one.
static void write_file(const char *const *names, size_t count, const char *key, const char *text)
{
    struct ckpt_tensor table[4];
    const struct ckpt_metadata metadata = {key, text};
    const struct ckpt_safetensors_options options = {.metadata = &metadata, .metadata_count = 1};
    struct ckpt_safetensors_writer *writer;
    for (size_t i = 0; i < count; i++)
        table[i] = (struct ckpt_tensor){.name = names[i], .ndim = 2, .shape = {1, 1}};
    assert_int_equal(
        ckpt_safetensors_create(&writer, at("f"), table, count, &options, &tool_failure), ZERO_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ckpt_safetensors_write(writer, i, 0, 1, &(float){1}, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_finish(writer, &tool_failure), ZERO_OK);
}

static void test_names_move_no_cursor(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 1, "name\033[2J", 8);
    tool_expect(0, "export --state $D $T/f", "");
    poke_f32("name\033[2J", 0, 3.0f);
    tool_expect(65, "import $T/f $T/b", "tensor 'name?[2J' has other values");
    tool_expect(0, "import --edited $T/f $T/b", "changed since the export: name?[2J\n");
    tool_expect(1, "diff --values $D $T/b", "name?[2J\n");
    assert_null(strchr(tool_output, '\033'));
}

static void test_what_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"tensor.0", "tensor.1"};
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    write_file(names, 1, "a", "b");
    tool_expect(64, "import $T/f $T/b", "--like");
    tool_expect(64, "import --like $D $T/f $T/b", "no tensor 'tensor.1'");
    tool_expect(64, "import --like $D --edited $T/f $T/b", "no effect");
    tool_expect(66, "import --like $T/none $T/f $T/b", "zero-ckpt: ");
    write_file(names, 2, "a", "b");
    tool_expect(64, "import --like $D $T/f $T/b",
                "tensor 'tensor.1' has another shape than (2, 7): (");
    // What the working copy of a tensor with masters would have as an infinity.
    tool_expect(0, "export --force $D $T/f", "");
    poke_f32("tensor.1", 3, 3.4028235e38f);
    tool_expect(64, "import --like $D $T/f $T/b",
                "element 3 of tensor 'tensor.1' is 3.40282e+38, which bf16, the type of the "
                "working copy, has not");
    write_file(names, 1, "zero.manifest", "{}");
    tool_expect(65, "import $T/f $T/b", "/f: zero.manifest'");
    tool_expect(66, "import $T/none $T/b", "No such file");
    tool_expect(65, "import $D/step-00000050/shard-00000.zst $T/b", "zero-ckpt: ");

    // Of a whole state: a tensor more, a tensor less, bytes that are none.
    tool_expect(0, "export --state --force $D $T/f", "");
    tool_expect(64, "import --like $D $T/f $T/b", "no effect");
    struct ckpt_safetensors *file = open_file("f");
    char *manifest = base_strdup(ckpt_safetensors_metadata(file, "zero.manifest"));
    ckpt_safetensors_close(file);
    write_file(names, 1, "zero.manifest", manifest);
    tool_expect(64, "import $T/f $T/b", "no tensor 'tensor.1'");
    base_free(manifest);
    tool_expect(0, "export --state --force $D $T/f", "");
    assert_int_equal(tool_run("--version; sed -i 's/\"zero.blob.blob.4\":\"1c/\"zero.blob.blob.4\":"
                              "\"0x/' $T/f"),
                     0);
    tool_expect(65, "import $T/f $T/b", "metadata 'zero.blob.blob.4' is not 7 bytes");
    assert_int_equal(tool_run("list $T/b | grep -q unfinished"), 1);

    struct ckpt_directory *job;
    assert_int_equal(ckpt_directory_open(&job, &ckpt_store_posix, at("b"), 1, &tool_failure),
                     ZERO_OK);
    tool_expect(0, "export --state --force $D $T/f", "");
    tool_expect(75, "import $T/f $T/b", "another job");
    ckpt_directory_close(job);
    tool_expect(0, "import $T/f $T/b", "step-00000050");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_state_goes_there_and_back, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(test_weights_are_exported_as_asked, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(test_weights_are_imported_like_a_checkpoint, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(test_an_index_is_imported_like_a_file, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(test_values_that_differ, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_attached_bytes_that_differ, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(test_names_move_no_cursor, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_refused, tool_set_up, tool_tear_down),
    };
    if (argc != 3)
        return 2;
    tool_program = argv[1];
    golden = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
