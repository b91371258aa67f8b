// checkpoint/safetensors/safetensors.h: several files that are read as one by their index, and
// indexes that are wrong.
#include "base/fault.h"
#include "checkpoint/safetensors/safetensors.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct temporary temporary;
static struct base_error failure;

static const char *at(const char *name)
{
    return temporary_path(&temporary, name);
}

// A file of tensors of three values, which tell the letters of their names.
static void write_file(const char *name, const char *letters)
{
    struct ckpt_tensor table[4] = {{0}};
    char names[4][8];
    struct ckpt_safetensors_writer *writer;
    const size_t count = strlen(letters);
    for (size_t t = 0; t < count; t++) {
        snprintf(names[t], sizeof names[t], "t.%c", letters[t]);
        table[t] = (struct ckpt_tensor){
            .name = names[t], .dtype = t % 2 ? CKPT_BF16 : CKPT_F32, .ndim = 1, .shape = {3}};
    }
    assert_int_equal(ckpt_safetensors_create(&writer, at(name), table, count, NULL, &failure),
                     ZERO_OK);
    for (size_t t = 0; t < count; t++) {
        const float values[] = {(float)letters[t], 1, -(float)letters[t]};
        assert_int_equal(ckpt_safetensors_write(writer, t, 0, 3, values, &failure), ZERO_OK);
    }
    assert_int_equal(ckpt_safetensors_finish(writer, &failure), ZERO_OK);
}

static const char good[] = "{\"metadata\": {\"total_size\": 52}, \"weight_map\": {"
                           "\"t.d\": \"m-2\", \"t.a\": \"m-1\", \"t.e\": \"m-2\","
                           "\"t.b\": \"m-3\", \"t.c\": \"m-1\"}}";

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    if (!temporary_make(&temporary))
        return -1;
    write_file("m-1", "ca");
    write_file("m-2", "de");
    write_file("m-3", "b");
    return temporary_write(&temporary, "i.json", good) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static void expect_tensors(const struct ckpt_safetensors *file)
{
    static const char *const order[] = {"t.c", "t.a", "t.d", "t.e", "t.b"};
    static const size_t part[] = {0, 0, 1, 1, 2};
    assert_int_equal(ckpt_safetensors_count(file), 5);
    for (size_t i = 0; i < 5; i++) {
        const struct ckpt_tensor *tensor = ckpt_safetensors_at(file, i);
        float values[3];
        assert_string_equal(tensor->name, order[i]);
        assert_ptr_equal(ckpt_safetensors_find(file, order[i]), tensor);
        assert_int_equal(tensor->number, i);
        assert_int_equal(tensor->file, part[i]);
        assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, 3, values, &failure), ZERO_OK);
        assert_true(values[0] == (float)tensor->name[2] && values[1] == 1);
        assert_true(values[2] == -values[0]);
    }
    assert_null(ckpt_safetensors_at(file, 5));
    assert_null(ckpt_safetensors_find(file, "t.f"));
    assert_null(ckpt_safetensors_metadata(file, "format"));
}

static void several_files_are_read_as_one(void **state)
{
    (void)state;
    struct ckpt_safetensors *file;
    assert_int_equal(ckpt_safetensors_open(&file, at("i.json"), &failure), ZERO_OK);
    expect_tensors(file);
    ckpt_safetensors_close(file);
    assert_int_equal(ckpt_safetensors_open(&file, at("m-1"), &failure), ZERO_OK);
    assert_int_equal(ckpt_safetensors_count(file), 2);
    assert_string_equal(ckpt_safetensors_metadata(file, "format"), "pt");
    ckpt_safetensors_close(file);
}

// What names a tensor also names the file that has it.
static void a_file_that_is_cut_is_named(void **state)
{
    (void)state;
    struct ckpt_safetensors *file;
    float values[3];
    assert_int_equal(ckpt_safetensors_open(&file, at("i.json"), &failure), ZERO_OK);
    const struct ckpt_tensor *tensor = ckpt_safetensors_find(file, "t.b");
    assert_true(temporary_write(&temporary, "m-3", ""));
    assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, 3, values, &failure),
                     ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "tensor 't.b'"));
    assert_non_null(strstr(failure.message, at("m-3")));
    assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 2, 2, values, &failure),
                     ZERO_E_INVALID);
    assert_non_null(strstr(failure.message, at("m-3")));
    ckpt_safetensors_close(file);
    base_error_clear(&failure);
    assert_int_equal(ckpt_safetensors_open(&file, at("i.json"), &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, at("m-3")));
}

#define MAP(entries) "{\"weight_map\": {" entries "}}"
#define ABC "\"t.a\": \"m-1\", \"t.c\": \"m-1\", \"t.b\": \"m-3\""

static void wrong_indexes_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        zero_result result;
        const char *message;
    } wrong[] = {
        {"", ZERO_E_CORRUPT, "damaged at byte"},
        {"{\"weight_map\": {", ZERO_E_CORRUPT, "damaged at byte"},
        {"[]", ZERO_E_CORRUPT, "has no weight_map"},
        {"{\"t.a\": \"m-1\"}", ZERO_E_CORRUPT, "has no weight_map"},
        {"{\"weight_map\": [\"m-1\"]}", ZERO_E_CORRUPT, "has no weight_map"},
        {MAP(""), ZERO_E_CORRUPT, "has no tensors"},
        {MAP("\"t.a\": 1"), ZERO_E_CORRUPT, "tensor 't.a' is in no file"},
        {MAP("\"t.a\": \"\""), ZERO_E_CORRUPT, "tensor 't.a' is in no file"},
        {MAP("\"t.a\": \"../m-1\""), ZERO_E_CORRUPT, "of this folder: '../m-1'"},
        {MAP("\"t.a\": \"/etc/passwd\""), ZERO_E_CORRUPT, "of this folder: '/etc/passwd'"},
        {MAP("\"t.a\": \"i.json\""), ZERO_E_CORRUPT, "of this folder: 'i.json'"},
        {MAP("\"t.a\": \"m-4\""), ZERO_NOT_FOUND, "m-4"},
        {MAP("\"t.a\": \"..\""), ZERO_E_INVALID, "no regular file"},
        {MAP(ABC ", \"t.a\": \"m-1\""), ZERO_E_CORRUPT, "damaged at byte"},
        {MAP("\"t.a\": \"m-1\""), ZERO_E_CORRUPT, "not have tensor 't.c' of 'm-1'"},
        {MAP(ABC ", \"t.d\": \"m-3\""), ZERO_E_CORRUPT, "tensor 't.d' is not in 'm-3'"},
        {MAP(ABC ", \"t.d\": \"m-2\", \"t.e\": \"m-1\""), ZERO_E_CORRUPT, "'t.e' is not in 'm-1'"},
        {MAP("\"t.a\": \"m-1\", \"t.c\": \"m-2\""), ZERO_E_CORRUPT,
         "tensor 't.c' is in 'm-1', not in 'm-2'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct ckpt_safetensors *file;
        base_error_clear(&failure);
        assert_true(temporary_write(&temporary, "i.json", wrong[i].text));
        const zero_result result = ckpt_safetensors_open(&file, at("i.json"), &failure);
        if (result != wrong[i].result || !strstr(failure.message, wrong[i].message))
            fail_msg("%s: %d: %s", wrong[i].text, (int)result, failure.message);
        assert_null(file);
    }
    struct ckpt_safetensors *file;
    base_error_clear(&failure);
    assert_int_equal(ckpt_safetensors_open(&file, at("none.json"), &failure), ZERO_NOT_FOUND);
    assert_true(temporary_folder(&temporary, "folder.json"));
    assert_int_equal(ckpt_safetensors_open(&file, at("folder.json"), &failure), ZERO_E_INVALID);
}

// Each memory, open and read fails once, until all goes well.
static void every_failure_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *point;
        zero_result result;
        int least;
    } points[] = {
        {"alloc", ZERO_E_NOMEM, 10}, {"io.open", ZERO_E_IO, 4}, {"io.read", ZERO_E_IO, 7}};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        zero_result result = points[p].result;
        int n = 0;
        while (result) {
            struct ckpt_safetensors *file;
            char rule[32];
            snprintf(rule, sizeof rule, "%s@%d", points[p].point, ++n);
            base_error_clear(&failure);
            assert_int_equal(base_fault_set(rule, NULL), ZERO_OK);
            result = ckpt_safetensors_open(&file, at("i.json"), &failure);
            base_fault_set(NULL, NULL);
            assert_true(result == ZERO_OK || (result == points[p].result && !file));
            assert_true((result == ZERO_OK) == (failure.message[0] == '\0'));
            ckpt_safetensors_close(file);
        }
        assert_in_range(n, points[p].least + 1, 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(several_files_are_read_as_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_indexes_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_failure_is_told, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
