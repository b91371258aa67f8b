#include "golden_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct golden_file {
    char *header; // JSON, with a final zero
    const char *data;
    char *bytes;
    double *converted; // of every tensor asked for, at its own place
};

struct golden_file *golden_open(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = fopen(path, "rb");
    if (!stream)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    const long size = ftell(stream);
    assert_true(size > 8);
    rewind(stream);

    struct golden_file *file = calloc(1, sizeof *file);
    assert_non_null(file);
    file->bytes = malloc((size_t)size);
    assert_non_null(file->bytes);
    assert_int_equal(fread(file->bytes, 1, (size_t)size, stream), (size_t)size);
    fclose(stream);

    uint64_t header_bytes;
    memcpy(&header_bytes, file->bytes, sizeof header_bytes);
    assert_true(header_bytes <= (uint64_t)size - 8);
    file->header = malloc((size_t)header_bytes + 1);
    assert_non_null(file->header);
    memcpy(file->header, file->bytes + 8, (size_t)header_bytes);
    file->header[header_bytes] = '\0';
    file->data = file->bytes + 8 + header_bytes;
    const size_t data_bytes = (size_t)size - 8 - (size_t)header_bytes;
    file->converted = calloc(data_bytes / sizeof(float) + 1, sizeof *file->converted);
    assert_non_null(file->converted);
    return file;
}

void golden_close(struct golden_file *file)
{
    free(file->converted);
    free(file->header);
    free(file->bytes);
    free(file);
}

const double *golden_tensor(struct golden_file *file, const char *name, size_t numel)
{
    char key[96];
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"", name);
    const char *entry = strstr(file->header, key);
    if (!entry)
        fail_msg("there is no tensor %s", name);
    const char *dtype = entry + strlen(key);
    const char *offsets = strstr(dtype, "\"data_offsets\":[");
    assert_non_null(offsets);
    const size_t element = strncmp(dtype, "F64", 3) == 0 ? sizeof(double) : sizeof(float);
    char *next;
    const size_t begin = strtoul(offsets + strlen("\"data_offsets\":["), &next, 10);
    const size_t end = strtoul(next + 1, NULL, 10);
    if (end - begin != numel * element)
        fail_msg("%s has %zu elements instead of %zu", name, (end - begin) / element, numel);

    double *values = file->converted + begin / sizeof(float);
    for (size_t i = 0; i < numel; i++) {
        if (element == sizeof(double)) {
            memcpy(&values[i], file->data + begin + i * element, element);
        } else {
            float value;
            memcpy(&value, file->data + begin + i * element, element);
            values[i] = (double)value;
        }
    }
    return values;
}
