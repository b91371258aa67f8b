// checkpoint/safetensors/safetensors.h: files that are right, and what failures of the disk leave
// behind.
#include "checkpoint/safetensors/safetensors.h"
#include "base/bfloat16.h"
#include "base/fault.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary temporary;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static size_t read_file(const char *path, char *data, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return SIZE_MAX;
    const size_t length = fread(data, 1, size, file);
    fclose(file);
    return length;
}

// A mix of types, sizes 0, 1 and odd ones, and names that JSON has to escape. The 16-bit tensors
// come first, so the file's order differs from the table's.
static const struct ckpt_tensor table[] = {
    {.name = "half", .dtype = CKPT_F16, .ndim = 2, .shape = {3, 5}},
    {.name = "brain \"quoted\" \\ \n \xc3\xa9", .dtype = CKPT_BF16, .ndim = 1, .shape = {7}},
    {.name = "scalar", .dtype = CKPT_F32, .ndim = 0},
    {.name = "empty", .dtype = CKPT_F32, .ndim = 2, .shape = {4, 0}},
    {.name = "h.0.weight", .dtype = CKPT_F32, .ndim = 3, .shape = {2, 3, 11}},
    {.name = "large", .dtype = CKPT_BF16, .ndim = 1, .shape = {70001}},
};

enum { TENSORS = sizeof table / sizeof *table, LARGEST = 70001 };

static uint64_t count_of(const struct ckpt_tensor *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

// Element i of tensor t: a small number that each type holds exactly.
static float element(size_t t, uint64_t i)
{
    return (float)((i * 7 + t * 13) % 255) - 127.0f;
}

static zero_result write_tensor(struct ckpt_safetensors_writer *writer, size_t t, uint64_t step)
{
    static float values[LARGEST];
    const uint64_t count = count_of(&table[t]);
    for (uint64_t i = 0; i < count; i++)
        values[i] = element(t, i);
    // Pieces from the last to the first.
    const uint64_t pieces = (count + step - 1) / step;
    for (uint64_t piece = pieces; piece-- > 0;) {
        const uint64_t first = piece * step;
        const uint64_t length = count - first < step ? count - first : step;
        const zero_result result =
            ckpt_safetensors_write(writer, t, first, length, values + first, &failure);
        if (result)
            return result;
    }
    return ZERO_OK;
}

// Writes the whole table to `path`.
static zero_result write_table(const char *path, uint64_t step)
{
    struct ckpt_safetensors_writer *writer;
    zero_result result = ckpt_safetensors_create(&writer, path, table, TENSORS, NULL, &failure);
    if (result) {
        assert_null(writer);
        return result;
    }
    for (size_t t = 0; t < TENSORS && result == ZERO_OK; t++)
        result = write_tensor(writer, t, step);
    if (result) {
        ckpt_safetensors_abort(writer);
        return result;
    }
    return ckpt_safetensors_finish(writer, &failure);
}

static void check_tensor(const struct ckpt_safetensors *file, size_t t)
{
    static float back[LARGEST + 2];
    const struct ckpt_tensor *tensor = ckpt_safetensors_find(file, table[t].name);
    assert_non_null(tensor);
    assert_string_equal(tensor->name, table[t].name);
    assert_int_equal(tensor->dtype, table[t].dtype);
    assert_int_equal(tensor->ndim, table[t].ndim);
    assert_memory_equal(tensor->shape, table[t].shape, sizeof tensor->shape);
    assert_int_equal(tensor->count, count_of(&table[t]));
    const uint64_t ranges[][2] = {{0, tensor->count},
                                  {0, 0},
                                  {tensor->count, 0},
                                  {tensor->count / 3, tensor->count / 2},
                                  {tensor->count - (tensor->count > 0), tensor->count > 0}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        const uint64_t first = ranges[r][0], count = ranges[r][1];
        back[0] = back[count + 1] = 12345;
        assert_int_equal(ckpt_safetensors_read_f32(file, tensor, first, count, back + 1, &failure),
                         ZERO_OK);
        assert_true(back[0] == 12345 && back[count + 1] == 12345);
        for (uint64_t i = 0; i < count; i++)
            assert_true(back[1 + i] == element(t, first + i));
    }
}

static void check_file(const char *path)
{
    struct ckpt_safetensors *file;
    assert_int_equal(ckpt_safetensors_open(&file, path, &failure), ZERO_OK);
    assert_int_equal(ckpt_safetensors_count(file), TENSORS);
    for (size_t t = 0; t < TENSORS; t++)
        check_tensor(file, t);
    assert_null(ckpt_safetensors_find(file, "half "));
    assert_null(ckpt_safetensors_find(file, ""));
    assert_null(ckpt_safetensors_find(file, "__metadata__"));
    assert_null(ckpt_safetensors_at(file, TENSORS));
    // In the file's order, without a gap, floats aligned.
    for (size_t i = 0; i < TENSORS; i++) {
        const struct ckpt_tensor *tensor = ckpt_safetensors_at(file, i);
        const struct ckpt_tensor *next = ckpt_safetensors_at(file, i + 1);
        assert_true(!next || next->offset == tensor->offset + tensor->bytes);
        assert_int_equal(tensor->offset % (tensor->dtype == CKPT_F32 ? 4 : 2), 0);
    }
    assert_int_equal(ckpt_safetensors_at(file, 0)->offset % 8, 0);
    ckpt_safetensors_close(file);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    static const uint64_t steps[] = {1000000, 40000, 11};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const char *path = temporary_path(&temporary, "f.safetensors");
        assert_int_equal(write_table(path, steps[i]), ZERO_OK);
        assert_int_equal(temporary_entries(&temporary), 1);
        check_file(path);
        struct stat status;
        assert_int_equal(stat(path, &status), 0);
        assert_int_equal(status.st_mode & 0600, 0600);
    }
    ckpt_safetensors_close(NULL);
    ckpt_safetensors_abort(NULL);
}

static void the_bytes_are_the_formats(void **state)
{
    (void)state;
    static const struct ckpt_tensor two[] = {
        {.name = "b", .dtype = CKPT_BF16, .ndim = 1, .shape = {2}},
        {.name = "a", .dtype = CKPT_F32, .ndim = 2, .shape = {1, 2}},
    };
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}  ";
    static const unsigned char data[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0x80, 0x3f, 0xc0, 0x7f};
    static const unsigned char length[8] = {sizeof json - 1};
    assert_int_equal((sizeof json - 1) % 8, 0);

    const char *path = temporary_path(&temporary, "f");
    struct ckpt_safetensors_writer *writer;
    assert_int_equal(ckpt_safetensors_create(&writer, path, two, 2, NULL, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_write(writer, 0, 0, 2, (float[]){1, NAN}, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_write(writer, 1, 0, 2, (float[]){1, -2}, NULL), ZERO_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(ckpt_safetensors_finish(writer, NULL), ZERO_OK);

    char file[400];
    const size_t size = read_file(path, file, sizeof file);
    assert_int_equal(size, 8 + sizeof json - 1 + sizeof data);
    assert_memory_equal(file, length, 8);
    assert_memory_equal(file + 8, json, sizeof json - 1);
    assert_memory_equal(file + 8 + sizeof json - 1, data, sizeof data);
}

static void a_file_without_tensors(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    struct ckpt_safetensors_writer *writer;
    struct ckpt_safetensors *file;
    assert_int_equal(ckpt_safetensors_create(&writer, path, NULL, 0, NULL, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_finish(writer, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_open(&file, path, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_count(file), 0);
    assert_null(ckpt_safetensors_find(file, "x"));
    ckpt_safetensors_close(file);
}

static void halves_are_widened_by_their_bits(void **state)
{
    (void)state;
    static float values[65536];
    static const enum ckpt_dtype dtypes[] = {CKPT_BF16, CKPT_F16};
    for (int d = 0; d < 2; d++) {
        const struct ckpt_tensor all = {
            .name = "all", .dtype = dtypes[d], .ndim = 1, .shape = {65536}};
        const char *path = temporary_path(&temporary, "f");
        struct ckpt_safetensors_writer *writer;
        struct ckpt_safetensors *file;
        for (uint32_t h = 0; h < 65536; h++)
            values[h] = d ? base_f32_from_f16((uint16_t)h) : base_f32_from_bf16((uint16_t)h);
        assert_int_equal(ckpt_safetensors_create(&writer, path, &all, 1, NULL, NULL), ZERO_OK);
        assert_int_equal(ckpt_safetensors_write(writer, 0, 0, 65536, values, NULL), ZERO_OK);
        assert_int_equal(ckpt_safetensors_finish(writer, NULL), ZERO_OK);
        memset(values, 0, sizeof values);
        assert_int_equal(ckpt_safetensors_open(&file, path, NULL), ZERO_OK);
        const struct ckpt_tensor *tensor = ckpt_safetensors_at(file, 0);
        assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, 65536, values, NULL), ZERO_OK);
        ckpt_safetensors_close(file);
        for (uint32_t h = 0; h < 65536; h++) {
            const float wide = d ? base_f32_from_f16((uint16_t)h) : base_f32_from_bf16((uint16_t)h);
            if (isnan(wide))
                assert_true(isnan(values[h]));
            else
                assert_memory_equal(&values[h], &wide, sizeof wide);
        }
    }
}

static void ranges_are_checked(void **state)
{
    (void)state;
    static const uint64_t bad[][2] = {
        {0, 67}, {66, 1}, {67, 0}, {UINT64_MAX, 1}, {1, UINT64_MAX}, {65, 2}, {1, UINT64_MAX - 1}};
    const char *path = temporary_path(&temporary, "f");
    float values[100] = {0};
    struct ckpt_safetensors_writer *writer;
    struct ckpt_safetensors *file;
    assert_int_equal(write_table(path, LARGEST), ZERO_OK);
    assert_int_equal(ckpt_safetensors_open(&file, path, NULL), ZERO_OK);
    assert_int_equal(ckpt_safetensors_create(&writer, path, table, TENSORS, NULL, NULL), ZERO_OK);
    const struct ckpt_tensor *tensor = ckpt_safetensors_find(file, "h.0.weight");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        base_error_clear(&failure);
        assert_int_equal(
            ckpt_safetensors_read_f32(file, tensor, bad[i][0], bad[i][1], values, &failure),
            ZERO_E_INVALID);
        assert_non_null(strstr(failure.message, "'h.0.weight'"));
        assert_int_equal(ckpt_safetensors_write(writer, 4, bad[i][0], bad[i][1], values, &failure),
                         ZERO_E_INVALID);
    }
    assert_int_equal(ckpt_safetensors_write(writer, TENSORS, 0, 1, values, NULL), ZERO_E_INVALID);
    ckpt_safetensors_close(file);
    ckpt_safetensors_abort(writer);
    assert_int_equal(temporary_entries(&temporary), 1);
}

static void tables_are_checked(void **state)
{
    (void)state;
    static const struct {
        struct ckpt_tensor tensor[2];
        const char *message;
    } bad[] = {
        {{{.name = ""}, {.name = "b"}}, "cannot be called"},
        {{{.name = "a"}, {.name = "__metadata__"}}, "cannot be called"},
        {{{.name = "a"}, {.name = "a"}}, "two tensors are called 'a'"},
        {{{.name = "a"}, {.name = "\xff"}}, "no UTF-8"},
        {{{.name = "a"}, {.name = "b", .dtype = CKPT_OTHER}}, "dtype 3"},
        {{{.name = "a"}, {.name = "b", .ndim = 9}}, "9 dimensions"},
        {{{.name = "a"}, {.name = "b", .ndim = -1}}, "-1 dimensions"},
        {{{.name = "a"}, {.name = "b", .ndim = 2, .shape = {UINT64_MAX, 2}}}, "overflows"},
        {{{.name = "a"}, {.name = "b", .ndim = 1, .shape = {UINT64_MAX / 2}}}, "overflows"},
        {{{.name = "a"}, {.name = "b", .ndim = 1, .shape = {UINT64_MAX / 8 + 1}}}, "overflows"},
        {{{.name = "a", .ndim = 1, .shape = {INT64_MAX / 4}},
          {.name = "b", .ndim = 1, .shape = {1}}},
         "too large"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_safetensors_writer *writer;
        base_error_clear(&failure);
        assert_int_equal(ckpt_safetensors_create(&writer, temporary_path(&temporary, "f"),
                                                 bad[i].tensor, 2, NULL, &failure),
                         ZERO_E_INVALID);
        assert_null(writer);
        if (!strstr(failure.message, bad[i].message))
            print_error("%s\n", failure.message);
        assert_non_null(strstr(failure.message, bad[i].message));
        assert_int_equal(temporary_entries(&temporary), 0);
    }
}

static void an_unfinished_file_is_refused(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    struct ckpt_safetensors_writer *writer;
    assert_int_equal(ckpt_safetensors_create(&writer, path, table, TENSORS, NULL, NULL), ZERO_OK);
    for (size_t t = 0; t < TENSORS; t++)
        if (t != 2)
            assert_int_equal(write_tensor(writer, t, LARGEST), ZERO_OK);
    assert_int_equal(ckpt_safetensors_finish(writer, &failure), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "1 elements"));
    assert_int_equal(temporary_entries(&temporary), 0);
}

static void places_that_cannot_be_written(void **state)
{
    (void)state;
    struct ckpt_safetensors_writer *writer;
    assert_int_equal(ckpt_safetensors_create(&writer, temporary_path(&temporary, "no/f"), table,
                                             TENSORS, NULL, &failure),
                     ZERO_NOT_FOUND);
    assert_null(writer);
    assert_non_null(strstr(failure.message, "no/f"));
    base_error_clear(&failure);
}

/** A rename would take a folder's, a pipe's or a link's place: none is touched. */
static void only_files_are_replaced(void **state)
{
    (void)state;
    static const char *const names[] = {"folder", "pipe", "link"};
    static const mode_t kinds[] = {S_IFDIR, S_IFIFO, S_IFLNK};
    assert_int_equal(mkdir(temporary_path(&temporary, "folder"), 0777), 0);
    assert_int_equal(mkfifo(temporary_path(&temporary, "pipe"), 0666), 0);
    assert_int_equal(symlink("nowhere", temporary_path(&temporary, "link")), 0);
    for (int i = 0; i < 3; i++) {
        const char *path = temporary_path(&temporary, names[i]);
        struct ckpt_safetensors_writer *writer;
        struct stat status;
        base_error_clear(&failure);
        assert_int_equal(ckpt_safetensors_create(&writer, path, table, TENSORS, NULL, &failure),
                         ZERO_E_INVALID);
        assert_null(writer);
        assert_non_null(strstr(failure.message, names[i]));
        assert_int_equal(lstat(path, &status), 0);
        assert_int_equal(status.st_mode & S_IFMT, kinds[i]);
    }
    assert_int_equal(temporary_entries(&temporary), 3);
}

static void files_that_cannot_be_opened(void **state)
{
    (void)state;
    struct ckpt_safetensors *file = (void *)state;
    const char *path = temporary_path(&temporary, "f");
    assert_int_equal(ckpt_safetensors_open(&file, path, &failure), ZERO_NOT_FOUND);
    assert_null(file);
    assert_non_null(strstr(failure.message, path));
    assert_int_equal(ckpt_safetensors_open(&file, temporary.directory, NULL), ZERO_E_INVALID);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_int_equal(ckpt_safetensors_open(&file, path, NULL), ZERO_E_INVALID);
    assert_int_equal(ckpt_safetensors_open(&file, "/dev/zero", NULL), ZERO_E_INVALID);
}

static void a_file_cut_after_opening_is_damage(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    struct ckpt_safetensors *file;
    float values[66];
    assert_int_equal(write_table(path, LARGEST), ZERO_OK);
    assert_int_equal(ckpt_safetensors_open(&file, path, NULL), ZERO_OK);
    const struct ckpt_tensor *tensor = ckpt_safetensors_find(file, "h.0.weight");
    assert_int_equal(truncate(path, (off_t)(tensor->offset + tensor->bytes - 1)), 0);
    assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, 65, values, &failure), ZERO_OK);
    assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, 66, values, &failure),
                     ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "tensor 'h.0.weight': "));
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, "offset"));
    ckpt_safetensors_close(file);
}

static zero_result read_all(const char *path)
{
    static float values[LARGEST];
    struct ckpt_safetensors *file;
    zero_result result = ckpt_safetensors_open(&file, path, &failure);
    if (result)
        return result;
    const struct ckpt_tensor *tensor;
    for (size_t i = 0; result == ZERO_OK && (tensor = ckpt_safetensors_at(file, i)); i++)
        result = ckpt_safetensors_read_f32(file, tensor, 0, tensor->count, values, &failure);
    ckpt_safetensors_close(file);
    return result;
}

// Fails the first hit of a point, then the second, ... until the writing succeeds. Returns how
// often it is hit.
static int fail_every_write(const char *point)
{
    static char old[200000], now[200000];
    const char *path = temporary_path(&temporary, "f");
    assert_int_equal(write_table(path, LARGEST), ZERO_OK);
    const size_t size = read_file(path, old, sizeof old);
    assert_true(size < sizeof old);
    for (int n = 1;; n++) {
        char spec[64];
        snprintf(spec, sizeof spec, "%s@%d", point, n);
        base_error_clear(&failure);
        assert_int_equal(truncate(path, 100), 0); // so that a replaced file shows
        assert_int_equal(base_fault_set(spec, NULL), ZERO_OK);
        const zero_result result = write_table(path, 30000);
        const uint64_t fired = base_fault_fired();
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
        assert_int_equal(temporary_entries(&temporary), 1);
        const size_t length = read_file(path, now, sizeof now);
        const int in_place = length == size && memcmp(old, now, size) == 0;
        if (fired == 0) {
            assert_int_equal(result, ZERO_OK);
            assert_true(in_place);
            return n - 1;
        }
        assert_true(result < 0);
        assert_true(failure.message[0] != '\0');
        // Only the sync of the directory comes after the renaming.
        char directory[80];
        snprintf(directory, sizeof directory, "'%s'", temporary.directory);
        assert_int_equal(in_place, strstr(failure.message, directory) != NULL);
        assert_true(in_place || length == 100);
    }
}

static void every_failure_of_a_write_leaves_the_old_file(void **state)
{
    (void)state;
    assert_true(fail_every_write("alloc") > 1);
    assert_true(fail_every_write("io.write") > 1);
    assert_int_equal(fail_every_write("io.rename"), 1);
    // File and directory are opened, synced and closed.
    assert_int_equal(fail_every_write("io.open"), 2);
    assert_int_equal(fail_every_write("io.fsync"), 2);
    assert_int_equal(fail_every_write("io.close"), 2);
}

static void every_failure_of_a_read_is_reported(void **state)
{
    (void)state;
    static const char *const points[] = {"alloc", "io.open", "io.read"};
    const char *path = temporary_path(&temporary, "f");
    assert_int_equal(write_table(path, LARGEST), ZERO_OK);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        for (int n = 1;; n++) {
            char spec[64];
            snprintf(spec, sizeof spec, "%s@%d", points[i], n);
            base_error_clear(&failure);
            assert_int_equal(base_fault_set(spec, NULL), ZERO_OK);
            const zero_result result = read_all(path);
            if (base_fault_fired() == 0) {
                assert_int_equal(result, ZERO_OK);
                assert_true(n > 1);
                break;
            }
            assert_int_equal(result, i == 0 ? ZERO_E_NOMEM : ZERO_E_IO);
            assert_non_null(strstr(failure.message, path));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_bytes_are_the_formats, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_without_tensors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(halves_are_widened_by_their_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranges_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tables_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unfinished_file_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(places_that_cannot_be_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_files_are_replaced, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_that_cannot_be_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_cut_after_opening_is_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_failure_of_a_write_leaves_the_old_file, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(every_failure_of_a_read_is_reported, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
