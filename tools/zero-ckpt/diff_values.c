#include "tools/zero-ckpt/diff.h"

#include "base/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/** In what the elements of one field differ. Elements are counted over all slices. */
struct difference {
    uint64_t elements;
    uint64_t count, first; /**< of those whose bits differ */
    uint64_t nonfinite;    /**< of these: one of the two is no number; the others count below */
    double largest;
    uint64_t largest_at;
    uint64_t ulps, ulps_at;
};

/** What values are read into: a block of each. */
struct room {
    void *elements[2];
    float *wide[2];
};

static void free_room(struct room *room)
{
    for (int i = 0; i < 2; i++) {
        base_free(room->elements[i]);
        base_free(room->wide[i]);
    }
}

static zero_result make_room(struct room *room, struct base_error *error)
{
    *room = (struct room){.elements = {NULL}};
    for (int i = 0; i < 2; i++) {
        room->elements[i] = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
        room->wide[i] = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
        if (!room->elements[i] || !room->wide[i]) {
            zero_fail(error, ZERO_E_NOMEM, "no memory for a block");
            return ZERO_E_NOMEM;
        }
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ elements */

// The number of an element in the order of its type's values; zeros of both signs have the same.
static int64_t rank_of(const void *elements, size_t size, size_t i)
{
    uint32_t bits = 0;
    memcpy(&bits, (const unsigned char *)elements + i * size, size);
    const uint32_t sign = UINT32_C(1) << (8 * size - 1);
    return bits & sign ? -(int64_t)(bits - sign) : (int64_t)bits;
}

// Elements are compared as they are stored, or as fp32 where their types differ.
static void compare_part(struct difference *difference, const struct room *room,
                         const enum ckpt_dtype dtype[2], uint64_t at, size_t count)
{
    const bool same = dtype[0] == dtype[1];
    const void *a = same ? room->elements[0] : room->wide[0];
    const void *b = same ? room->elements[1] : room->wide[1];
    const size_t size = same ? tool_dtype_bytes(dtype[0]) : sizeof(float);
    for (size_t i = 0; i < count; i++) {
        if (!memcmp((const char *)a + i * size, (const char *)b + i * size, size))
            continue;
        if (difference->count++ == 0)
            difference->first = at + i;
        const double x = (double)room->wide[0][i], y = (double)room->wide[1][i];
        if (!isfinite(x) || !isfinite(y)) {
            difference->nonfinite++;
            continue;
        }
        const bool is_first = difference->count == difference->nonfinite + 1;
        const uint64_t ulps = (uint64_t)llabs(rank_of(a, size, i) - rank_of(b, size, i));
        if (is_first || fabs(x - y) > difference->largest) {
            difference->largest = fabs(x - y);
            difference->largest_at = at + i;
        }
        if (is_first || ulps > difference->ulps) {
            difference->ulps = ulps;
            difference->ulps_at = at + i;
        }
    }
}

static zero_result compare_field(struct comparison *comparison, struct room *room,
                                 const size_t tensor[2], int field, struct difference *difference,
                                 struct base_error *error)
{
    const struct ckpt_table_tensor *tables[2];
    enum ckpt_dtype dtype[2];
    for (int i = 0; i < 2; i++) {
        tables[i] = &comparison->manifests[i]->tensors[tensor[i]];
        dtype[i] = tables[i]->field[field];
    }
    *difference = (struct difference){.elements = tool_elements(tables[0])};
    zero_result result = ZERO_OK;
    for (uint64_t at = 0, count; at < difference->elements && !result; at += count) {
        const uint64_t parts[2] = {tool_part(tables[0], at), tool_part(tables[1], at)};
        count = parts[0] < parts[1] ? parts[0] : parts[1];
        for (int i = 0; i < 2 && !result; i++) {
            result = tool_read(comparison->loaders[i], tensor[i], field, at, count,
                               room->elements[i], error);
            if (!result)
                tool_widen(dtype[i], room->elements[i], (size_t)count, room->wide[i]);
        }
        if (!result)
            compare_part(difference, room, dtype, at, (size_t)count);
        tool_progress_update(&comparison->progress,
                             ckpt_loader_bytes_read(comparison->loaders[0]) +
                                 ckpt_loader_bytes_read(comparison->loaders[1]));
    }
    return result;
}

/* ------------------------------------------------------------------ what is said of them */

static json_t *number_if(bool known, uint64_t number)
{
    return known ? tool_json_number(number) : json_null();
}

static void add_difference(struct comparison *comparison, const char *name, const char *field,
                           const struct difference *difference)
{
    const bool any = difference->count > 0, finite = difference->count > difference->nonfinite;
    if (!comparison->options->json)
        tool_table_add(&comparison->values, TOOL_PLAIN,
                       "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%.9g\t%" PRIu64 "\t%" PRIu64
                       "\t%" PRIu64 "\t%" PRIu64 "\t%s",
                       field, difference->elements, difference->count, difference->first,
                       difference->largest, difference->largest_at, difference->ulps,
                       difference->ulps_at, difference->nonfinite, name);
    else
        comparison->values_array =
            tool_json_append(comparison->values_array,
                             json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                                       "tensor", tool_json_text(name), "field", field, "elements",
                                       tool_json_number(difference->elements), "differ",
                                       tool_json_number(difference->count), "first",
                                       number_if(any, difference->first), "nonfinite",
                                       tool_json_number(difference->nonfinite), "largest",
                                       finite ? json_real(difference->largest) : json_null(),
                                       "largest_at", number_if(finite, difference->largest_at),
                                       "ulps", number_if(finite, difference->ulps), "ulps_at",
                                       number_if(finite, difference->ulps_at)));
}

/* ------------------------------------------------------------------ what is compared */

// The number of a tensor of A's in B; SIZE_MAX: its elements have none there to be compared with.
static size_t counterpart(const struct comparison *comparison, size_t tensor)
{
    const struct ckpt_table_tensor *a = &comparison->manifests[0]->tensors[tensor];
    const size_t other = ckpt_manifest_find(comparison->manifests[1], a->name);
    if (other == SIZE_MAX)
        return SIZE_MAX;
    const struct ckpt_table_tensor *b = &comparison->manifests[1]->tensors[other];
    const bool same_sum = a->sum.low == b->sum.low && a->sum.high == b->sum.high;
    return same_sum || strcmp(tool_shape(a).text, tool_shape(b).text) != 0 ? SIZE_MAX : other;
}

static int common_fields(const struct ckpt_table_tensor *a, const struct ckpt_table_tensor *b)
{
    return a->fields < b->fields ? a->fields : b->fields;
}

static uint64_t bytes_to_read(const struct comparison *comparison)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < comparison->manifests[0]->tensor_count; t++) {
        const size_t other = counterpart(comparison, t);
        if (other != SIZE_MAX)
            bytes += tool_tensor_bytes(&comparison->manifests[0]->tensors[t]) +
                     tool_tensor_bytes(&comparison->manifests[1]->tensors[other]);
    }
    return bytes;
}

static zero_result compare_tensor(struct comparison *comparison, struct room *room, size_t t,
                                  size_t other, struct base_error *error)
{
    const struct ckpt_manifest *manifest = comparison->manifests[0];
    const struct ckpt_table_tensor *a = &manifest->tensors[t];
    const struct ckpt_table_tensor *b = &comparison->manifests[1]->tensors[other];
    const size_t tensor[2] = {t, other};
    zero_result result = ZERO_OK;
    for (int f = 0; f < common_fields(a, b) && !result; f++) {
        struct difference difference;
        result = compare_field(comparison, room, tensor, f, &difference, error);
        if (!result)
            add_difference(comparison, a->name, tool_field(manifest, a, f).text, &difference);
    }
    return result;
}

zero_result tool_diff_values(struct comparison *comparison, struct base_error *error)
{
    struct room room;
    zero_result result = make_room(&room, error);
    tool_table_add(&comparison->values, TOOL_BOLD,
                   "FIELD\t>ELEMENTS\t>DIFFER\t>FIRST\t>LARGEST\t>AT\t>ULPS\t>AT\t>NONFINITE\t"
                   "TENSOR");
    tool_progress_begin(&comparison->progress, "diff", bytes_to_read(comparison));
    for (size_t t = 0; t < comparison->manifests[0]->tensor_count && !result; t++) {
        const size_t other = counterpart(comparison, t);
        if (other != SIZE_MAX)
            result = compare_tensor(comparison, &room, t, other, error);
    }
    tool_progress_end(&comparison->progress);
    free_room(&room);
    return result;
}
