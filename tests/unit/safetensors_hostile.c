// checkpoint/safetensors/safetensors.h against files that are damaged or made to do damage.
#include "checkpoint/safetensors/safetensors.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary temporary;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

// Writes length field, header and `data_bytes` zero bytes.
static void write_parts(const char *path, uint64_t length, const char *header, size_t header_size,
                        size_t data_bytes)
{
    unsigned char field[8];
    for (int i = 0; i < 8; i++)
        field[i] = (unsigned char)(length >> (8 * i));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(field, 1, 8, file), 8);
    assert_int_equal(fwrite(header, 1, header_size, file), header_size);
    for (size_t i = 0; i < data_bytes; i++)
        assert_int_equal(fputc(0, file), 0);
    assert_int_equal(fclose(file), 0);
}

// Opens a file; whatever it promises must be there to be read.
static zero_result open_and_read(const char *path, struct base_error *error)
{
    struct ckpt_safetensors *file = (void *)&temporary;
    const zero_result result = ckpt_safetensors_open(&file, path, error);
    if (result) {
        assert_null(file);
        assert_true(error->message[0] != '\0');
        assert_null(strchr(error->message, '\n'));
        return result;
    }
    const struct ckpt_tensor *tensor;
    for (size_t i = 0; (tensor = ckpt_safetensors_at(file, i)); i++) {
        assert_ptr_equal(ckpt_safetensors_find(file, tensor->name), tensor);
        if (tensor->dtype == CKPT_OTHER)
            continue;
        float *values = malloc((size_t)tensor->count * sizeof *values + 1);
        assert_non_null(values);
        assert_int_equal(ckpt_safetensors_read_f32(file, tensor, 0, tensor->count, values, error),
                         ZERO_OK);
        free(values);
    }
    ckpt_safetensors_close(file);
    return ZERO_OK;
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define F32_AT(name, begin, end)                                                                   \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" begin "," end "]}"

static const struct hostile {
    const char *header;
    size_t data_bytes;
    zero_result result;
    const char *message; // part of it
} headers[] = {
    // What is right, at its edges.
    {"{}", 0, ZERO_OK, ""},
    {"{}   \n", 0, ZERO_OK, ""},
    {"{\"__metadata__\":{}}", 0, ZERO_OK, ""},
    {"{\"__metadata__\":{\"a\":\"b\",\"c\":\"\"}}", 0, ZERO_OK, ""},
    {ONE("F32", "[]", "[0,4]"), 4, ZERO_OK, ""},
    {ONE("F32", "[1,1,1,1,1,1,1,1]", "[0,4]"), 4, ZERO_OK, ""},
    {ONE("F32", "[3,0,9]", "[0,0]"), 0, ZERO_OK, ""},
    {ONE("F64", "[2]", "[0,16]"), 16, ZERO_OK, ""},
    {ONE("F8_E4M3", "[3]", "[0,3]"), 3, ZERO_OK, ""},
    {ONE("F4", "[6]", "[0,3]"), 3, ZERO_OK, ""},
    {"{" F32_AT("b", "4", "8") "," F32_AT("a", "0", "4") "}", 8, ZERO_OK, ""},
    {"{" F32_AT("", "0", "4") "}", 4, ZERO_OK, ""},
    {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}," F32_AT("a", "0", "4") "}",
     4, ZERO_OK, ""},
    {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}," F32_AT("a", "0", "4") "}",
     4, ZERO_OK, ""},
    {"{\"a\":{\"shape\":[1],\"x\":[{}],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}", 4, ZERO_OK, ""},
    // JSON that is none, or has another shape.
    {"", 0, ZERO_E_CORRUPT, "no JSON object"},
    {" {}", 0, ZERO_E_CORRUPT, "no JSON object"},
    {"[]", 0, ZERO_E_CORRUPT, "no JSON object"},
    {"{", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{}{}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{'a':1}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"a\":1}", 0, ZERO_E_CORRUPT, "'a' is no JSON object"},
    {"{\"a\":[]}", 0, ZERO_E_CORRUPT, "'a' is no JSON object"},
    {"{\"a\":null}", 0, ZERO_E_CORRUPT, "'a' is no JSON object"},
    {"{\"a\":{}}", 0, ZERO_E_CORRUPT, "has no dtype"},
    {"{\"\xff\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"\xc0\xaf\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"\\u0000\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"\\ud800\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"a\nb\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"a\\nb\":{}}", 0, ZERO_E_CORRUPT, "'a?b' has no dtype"},
    {"{\"__metadata__\":null}", 0, ZERO_OK, ""},
    {"{\"__metadata__\":null,\"__metadata__\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"__metadata__\":false}", 0, ZERO_E_CORRUPT, "__metadata__ is no JSON object"},
    {"{\"__metadata__\":{\"a\":null}}", 0, ZERO_E_CORRUPT, "'a' is no text"},
    {"{\"__metadata__\":[]}", 0, ZERO_E_CORRUPT, "__metadata__ is no JSON object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, ZERO_E_CORRUPT, "'a' is no text"},
    {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, ZERO_E_CORRUPT, "'a' is no text"},
    // Names that come twice.
    {"{" F32_AT("a", "0", "4") "," F32_AT("a", "4", "8") "}", 8, ZERO_E_CORRUPT, "damaged at byte"},
    {"{" F32_AT("a", "0", "4") "," F32_AT("\\u0061", "4", "8") "}", 8, ZERO_E_CORRUPT,
     "damaged at byte"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, ZERO_E_CORRUPT, "damaged at byte"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}", 4, ZERO_E_CORRUPT, "damaged at byte"},
    // Types.
    {ONE("f32", "[1]", "[0,4]"), 4, ZERO_E_UNSUPPORTED, "unknown dtype 'f32'"},
    {ONE("", "[1]", "[0,4]"), 4, ZERO_E_UNSUPPORTED, "unknown dtype ''"},
    {ONE("F128", "[1]", "[0,16]"), 16, ZERO_E_UNSUPPORTED, "unknown dtype"},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ZERO_E_CORRUPT,
     "has no dtype"},
    // Shapes.
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ZERO_E_CORRUPT, "has no shape"},
    {ONE("F32", "4", "[0,4]"), 4, ZERO_E_CORRUPT, "has no shape"},
    {ONE("F32", "{}", "[0,4]"), 4, ZERO_E_CORRUPT, "has no shape"},
    {ONE("F32", "[-1]", "[0,4]"), 4, ZERO_E_CORRUPT, "dimension 0 is no size"},
    {ONE("F32", "[1,1.0]", "[0,4]"), 4, ZERO_E_CORRUPT, "dimension 1 is no size"},
    {ONE("F32", "[\"1\"]", "[0,4]"), 4, ZERO_E_CORRUPT, "dimension 0 is no size"},
    {ONE("F32", "[null]", "[0,4]"), 4, ZERO_E_CORRUPT, "dimension 0 is no size"},
    {ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, ZERO_E_UNSUPPORTED, "9 dimensions"},
    {ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, ZERO_E_CORRUPT, "shape overflows"},
    {ONE("F32", "[4294967296,4294967296,0]", "[0,0]"), 0, ZERO_E_CORRUPT, "shape overflows"},
    {ONE("F32", "[4611686018427387905]", "[0,4]"), 4, ZERO_E_CORRUPT, "are no bytes"},
    {ONE("F32", "[576460752303423489]", "[0,4]"), 4, ZERO_E_CORRUPT, "are no bytes"},
    {ONE("F32", "[9223372036854775808]", "[0,4]"), 4, ZERO_E_CORRUPT, "damaged at byte"},
    {ONE("F32", "[99999999999999999999999]", "[0,4]"), 4, ZERO_E_CORRUPT, "damaged at byte"},
    {ONE("F4", "[5]", "[0,3]"), 3, ZERO_E_CORRUPT, "are no bytes"},
    {ONE("F6_E2M3", "[3]", "[0,3]"), 3, ZERO_E_CORRUPT, "are no bytes"},
    // Offsets.
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "[0]"), 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "[0,4,8]"), 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "[-4,0]"), 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "[0,4.0]"), 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "{\"0\":0}"), 4, ZERO_E_CORRUPT, "has no data_offsets"},
    {ONE("F32", "[1]", "[4,0]"), 4, ZERO_E_CORRUPT, "leave the 4 bytes"},
    {ONE("F32", "[1]", "[4,8]"), 4, ZERO_E_CORRUPT, "leave the 4 bytes"},
    {ONE("F32", "[1]", "[0,9223372036854775807]"), 4, ZERO_E_CORRUPT, "leave the 4 bytes"},
    {ONE("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 4, ZERO_E_CORRUPT, "leave"},
    {ONE("F32", "[2]", "[0,4]"), 4, ZERO_E_CORRUPT, "has 4 bytes by its data_offsets, 8 by"},
    {ONE("F32", "[1]", "[0,8]"), 8, ZERO_E_CORRUPT, "has 8 bytes by its data_offsets, 4 by"},
    {ONE("F16", "[1]", "[0,4]"), 4, ZERO_E_CORRUPT, "has 4 bytes by its data_offsets, 2 by"},
    // Coverage.
    {"{}", 1, ZERO_E_CORRUPT, "end at byte 0 of the data, the file at 1"},
    {ONE("F32", "[1]", "[0,4]"), 5, ZERO_E_CORRUPT, "end at byte 4 of the data, the file at 5"},
    {ONE("F32", "[1]", "[4,8]"), 8, ZERO_E_CORRUPT, "begins at byte 4"},
    {"{" F32_AT("a", "0", "4") "," F32_AT("b", "0", "4") "}", 8, ZERO_E_CORRUPT,
     "begins at byte 0 of the data, but the one before ends at 4"},
    {"{" F32_AT("a", "0", "4") "," F32_AT("b", "2", "6") "}", 6, ZERO_E_CORRUPT,
     "'b' begins at byte 2"},
    {"{" F32_AT("a", "0", "4") "," F32_AT("b", "8", "12") "}", 12, ZERO_E_CORRUPT,
     "'b' begins at byte 8"},
    {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]}," F32_AT("a", "0", "4") "}",
     4, ZERO_E_CORRUPT, "'e' begins at byte 2"},
};

static void hostile_headers(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        const struct hostile *h = &headers[i];
        struct base_error error = {.result = ZERO_OK};
        write_parts(path, strlen(h->header), h->header, strlen(h->header), h->data_bytes);
        const zero_result result = open_and_read(path, &error);
        if (result != h->result || !strstr(error.message, h->message))
            print_error("%s: %d '%s'\n", h->header, (int)result, error.message);
        assert_int_equal(result, h->result);
        assert_non_null(strstr(error.message, h->message));
    }
}

static void hostile_lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        int good;
    } lengths[] = {
        {2, 1},          {3, 0},          {1, 0},
        {0, 0},          {UINT64_MAX, 0}, {INT64_MAX, 0},
        {100000000, 0},  {100000001, 0},  {UINT64_MAX - 7, 0},
        {1ull << 32, 0},
    };
    const char *path = temporary_path(&temporary, "f");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct base_error error = {.result = ZERO_OK};
        write_parts(path, lengths[i].length, "{}", 2, 0);
        assert_int_equal(open_and_read(path, &error), lengths[i].good ? ZERO_OK : ZERO_E_CORRUPT);
        assert_true(lengths[i].length < 3 || strstr(error.message, "allowed"));
    }
    // Longer than allowed, and all of it there (as a hole).
    struct base_error error = {.result = ZERO_OK};
    write_parts(path, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(path, 100000009), 0);
    assert_int_equal(open_and_read(path, &error), ZERO_E_CORRUPT);
    assert_non_null(strstr(error.message, "at most 100000000 are allowed"));
}

// Appends `text` so many times; returns the new end.
static char *append(char *end, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        end = stpcpy(end, text);
    return end;
}

static void expect_refusal(const char *header, size_t data_bytes, zero_result result,
                           const char *message)
{
    const char *path = temporary_path(&temporary, "f");
    struct base_error error = {.result = ZERO_OK};
    write_parts(path, strlen(header), header, strlen(header), data_bytes);
    assert_int_equal(open_and_read(path, &error), result);
    assert_non_null(strstr(error.message, message));
}

static void deep_and_wide_headers(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    char *header = malloc(5 * MANY + 128);
    assert_non_null(header);
    append(stpcpy(header, "{\"a\":"), "[", MANY);
    expect_refusal(header, 0, ZERO_E_CORRUPT, "damaged at byte");
    append(stpcpy(header, "{\"a\":"), "{\"a\":", MANY);
    expect_refusal(header, 0, ZERO_E_CORRUPT, "damaged at byte");
    append(append(stpcpy(header, "{\"a\":{\"dtype\":\"F32\",\"shape\":[0"), ",0", MANY), "]}}", 1);
    expect_refusal(header, 0, ZERO_E_UNSUPPORTED, "100001 dimensions");
    append(append(stpcpy(header, "{\""), "n", MANY),
           "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,400]}}", 1);
    expect_refusal(header, 4, ZERO_E_CORRUPT, "0 to 400 leave the 4 bytes of the file");
    free(header);
}

// A small file with three tensors, for damage of every kind.
static const char *make_small_file(char *data, size_t size, size_t *length, size_t *header_end)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"}," F32_AT(
        "w", "0", "4") ","
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[4,10]},"
                       "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[10,12]}}";
    const char *path = temporary_path(&temporary, "small");
    write_parts(path, sizeof header - 1, header, sizeof header - 1, 12);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *length = fread(data, 1, size, file);
    fclose(file);
    *header_end = 8 + sizeof header - 1;
    assert_int_equal(*length, *header_end + 12);
    return path;
}

static void every_truncation_is_damage(void **state)
{
    (void)state;
    char data[400];
    size_t length, header_end;
    const char *path = make_small_file(data, sizeof data, &length, &header_end);
    for (size_t cut = 0; cut <= length; cut++) {
        struct base_error error = {.result = ZERO_OK};
        write_file(path, data, cut);
        assert_int_equal(open_and_read(path, &error), cut < length ? ZERO_E_CORRUPT : ZERO_OK);
    }
    struct base_error error = {.result = ZERO_OK};
    data[length] = 0;
    write_file(path, data, length + 1);
    assert_int_equal(open_and_read(path, &error), ZERO_E_CORRUPT);
}

static void no_flipped_bit_does_harm(void **state)
{
    (void)state;
    char data[400];
    size_t length, header_end;
    int refused = 0;
    const char *path = make_small_file(data, sizeof data, &length, &header_end);
    for (size_t bit = 0; bit < 8 * header_end; bit++) {
        struct base_error error = {.result = ZERO_OK};
        data[bit / 8] = (char)(data[bit / 8] ^ (1 << bit % 8));
        write_file(path, data, length);
        const zero_result result = open_and_read(path, &error);
        assert_true(result == ZERO_OK || result == ZERO_E_CORRUPT || result == ZERO_E_UNSUPPORTED);
        assert_true(bit >= 64 || result == ZERO_E_CORRUPT);
        refused += result != ZERO_OK;
        data[bit / 8] = (char)(data[bit / 8] ^ (1 << bit % 8));
    }
    // Only names, and types of the same size, can change unnoticed.
    assert_true(refused > (int)(8 * header_end) * 3 / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hostile_headers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hostile_lengths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(deep_and_wide_headers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_truncation_is_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_flipped_bit_does_harm, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
