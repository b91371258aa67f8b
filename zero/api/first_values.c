// Whether all ranks give the same first values. A rank writes those that it owns: ranks that differ
// would make a mixture, another one at each number of ranks. What is compared is a hash of some
// granules of each slice, of all with paranoid; where it differs, ranks look for the place
// together. A callback that keeps a state may give all ranks the same, for they ask in the same
// order: so each rank asks for one granule of each slice again, in another order.

#include "zero/api/compare.h"
#include "zero/core/api_call.h"
#include "zero/store/master_weights.h"

#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    AT_ONCE = 32, // elements that ranks show each other: 128 bytes of each
    SHOWN = 4     // ranks that a message names
};

struct comparison {
    zero_ctx *z;
    float *all; /**< AT_ONCE of each rank */
};

/** Granules of a slice that are compared, in ascending order. */
struct sample {
    size_t count;
    size_t granules[ENG_SAMPLES]; /**< where not all are: the first, the last, some in between */
    bool all;
};

/** Keeps the granules in order, each once. */
static void take_granule(struct sample *sample, size_t granule)
{
    size_t at = sample->count;
    for (size_t i = 0; i < sample->count; i++)
        if (sample->granules[i] == granule)
            return;
    assert(sample->count < ENG_SAMPLES);
    for (; at > 0 && sample->granules[at - 1] > granule; at--)
        sample->granules[at] = sample->granules[at - 1];
    sample->granules[at] = granule;
    sample->count++;
}

/** A function of the tensor and the slice, and of nothing else. */
static struct sample sample_of(const zero_ctx *z, const struct eng_slice *slice)
{
    struct sample sample = {.all = slice->granules <= eng_config_samples(&z->config)};
    if (sample.all) {
        sample.count = slice->granules;
        return sample;
    }
    take_granule(&sample, 0);
    take_granule(&sample, slice->granules - 1);
    for (uint64_t i = 2; i < ENG_SAMPLES; i++) {
        const uint64_t which[] = {(uint64_t)slice->index, i};
        const uint64_t hash =
            base_hash64(which, sizeof which, z->model.params[slice->param].name_hash);
        take_granule(&sample, (size_t)(hash % slice->granules));
    }
    return sample;
}

static size_t granule_at(const struct sample *sample, size_t i)
{
    assert(i < sample->count);
    return sample->all ? i : sample->granules[i];
}

/** Whether all NaNs of a slice are stored as one: where no fp32 weights keep their bits. */
static bool one_nan(const zero_ctx *z, const struct eng_slice *slice)
{
    return !z->placement.buckets[slice->bucket].master;
}

/** The first values of a granule, as many as it has. */
static zero_result read_granule(const zero_ctx *z, const struct eng_slice *slice, size_t granule,
                                float values[BASE_GRANULE], size_t *count, struct base_error *error)
{
    assert(granule < slice->granules);
    const size_t first = granule * BASE_GRANULE, left = slice->numel - first;
    *count = left < BASE_GRANULE ? left : BASE_GRANULE;
    const zero_result r = eng_values_first(z, NULL, slice, first, *count, values, error);
    for (size_t i = 0; !r && one_nan(z, slice) && i < *count; i++)
        if (isnan(values[i]))
            values[i] = NAN;
    return r;
}

static zero_result hash_granule(const zero_ctx *z, const struct eng_slice *slice, size_t granule,
                                uint64_t *hash, struct base_error *error)
{
    float values[BASE_GRANULE];
    size_t count;
    const zero_result r = read_granule(z, slice, granule, values, &count, error);
    if (!r)
        *hash = base_hash64(values, count * sizeof *values, *hash);
    return r;
}

static zero_result hash_slice(const zero_ctx *z, const struct eng_slice *slice, uint64_t *hash,
                              struct base_error *error)
{
    const struct sample sample = sample_of(z, slice);
    assert(sample.count > 0 && sample.count <= slice->granules);
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < sample.count; i++)
        r = hash_granule(z, slice, granule_at(&sample, i), hash, error);
    return r;
}

/* ------------------------------------------------------------------ asked again */

static bool is_filled(const zero_ctx *z, const struct eng_slice *slice)
{
    return z->model.params[slice->param].fill != NULL;
}

/** The granule of a slice that is asked for twice: not its first one, if there are others. */
static size_t asked_twice(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct sample sample = sample_of(z, slice);
    return granule_at(&sample, sample.count / 2);
}

/** Adds the hash of what a callback gives for that granule, in whatever order of the slices. */
static zero_result ask(const zero_ctx *z, const struct eng_slice *slice, uint64_t *sum,
                       struct base_error *error)
{
    uint64_t hash = (uint64_t)(slice - z->layout.slices);
    if (!is_filled(z, slice))
        return ZERO_OK;
    const zero_result r = hash_granule(z, slice, asked_twice(z, slice), &hash, error);
    *sum += hash;
    return r;
}

/** The first element of a slice that is another one at once; ZERO_OK: none is. */
static zero_result find_impure_in(const zero_ctx *z, const struct eng_slice *slice,
                                  struct base_error *error)
{
    float once[BASE_GRANULE], again[BASE_GRANULE];
    const size_t granule = asked_twice(z, slice);
    size_t count;
    zero_result r = read_granule(z, slice, granule, once, &count, error);
    if (!r)
        r = read_granule(z, slice, granule, again, &count, error);
    for (size_t i = 0; !r && i < count; i++)
        if (memcmp(&once[i], &again[i], sizeof *once) != 0)
            r = zero_fail(
                error, ZERO_E_INVALID,
                "fill of %s gave %.9g, then %.9g, for slice %d, element %zu: it has to be "
                "a pure function of name, slice and element",
                z->model.params[slice->param].name, (double)once[i], (double)again[i], slice->index,
                granule * BASE_GRANULE + i);
    return r;
}

/** Fails: some callback has given other values when it was asked again. */
static zero_result find_impure(const zero_ctx *z, struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (size_t n = 0; !r && n < z->layout.slice_count; n++)
        if (is_filled(z, eng_slice_numbered(&z->layout, n)))
            r = find_impure_in(z, eng_slice_numbered(&z->layout, n), error);
    return r ? r
             : zero_fail(error, ZERO_E_INVALID,
                         "fill gave other values when it was asked again: it has to be a pure "
                         "function of name, slice and element");
}

/** Hash of what this rank compares; ZERO_E_INVALID: a callback gives other values each time. A rank
 * alone compares nothing. */
static zero_result hash_all(const zero_ctx *z, uint64_t *hash, struct base_error *error)
{
    const size_t slices = z->layout.slice_count;
    uint64_t once = 0, again = 0;
    zero_result r = ZERO_OK;
    for (size_t n = 0; !r && n < slices; n++)
        r = ask(z, eng_slice_numbered(&z->layout, n), &once, error);
    for (size_t n = 0; !r && n < slices && z->config.world > 1; n++)
        r = hash_slice(z, eng_slice_numbered(&z->layout, n), hash, error);
    for (size_t n = slices; !r && n-- > 0;)
        r = ask(z, eng_slice_numbered(&z->layout, n), &again, error);
    return r || once == again ? r : find_impure(z, error);
}

/* ------------------------------------------------------------------ where they differ */

/** Whether a hash is another one on some rank; reading it has failed with *error, if at all. */
static zero_result compare(const struct comparison *c, uint64_t mine,
                           const struct base_error *error, bool *differs)
{
    zero_ctx *z = c->z;
    if (error->result) // the second time: the first one did not fail
        return eng_fail_from(z, error);
    unsigned char *all = (unsigned char *)c->all;
    const zero_result r = coll_exchange(z->comm, &mine, sizeof mine, all);
    *differs = false;
    for (int rank = 1; !r && rank < z->config.world; rank++)
        if (memcmp(all + (size_t)rank * sizeof mine, all, sizeof mine) != 0)
            *differs = true;
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

static bool differs_at(const float *a, const float *b)
{
    return memcmp(a, b, sizeof *a) != 0;
}

/** A NaN with its bits, by which it differs from others. */
static const char *value_text(float value, char text[32])
{
    if (isnan(value))
        snprintf(text, 32, "NaN (0x%08" PRIx32 ")", base_f32_bits(value));
    else
        snprintf(text, 32, "%.9g", (double)value);
    return text;
}

/** Fails by element i of what all ranks have shown. */
static zero_result fail_at(const struct comparison *c, const struct eng_slice *slice,
                           size_t element, size_t i)
{
    zero_ctx *z = c->z;
    char list[160], value[32];
    struct base_text text = {list, sizeof list, 0};
    int others = 0;
    list[0] = '\0';
    for (int rank = 1; rank < z->config.world; rank++) {
        const float *theirs = &c->all[(size_t)rank * AT_ONCE + i];
        if (!differs_at(theirs, &c->all[i]))
            continue;
        if (++others <= SHOWN)
            base_text_add(&text, ", rank %d %s", rank, value_text(*theirs, value));
    }
    if (others > SHOWN)
        base_text_add(&text, ", and %d other ranks differ, too", others - SHOWN);
    assert(others > 0);
    return eng_fail_agreed(z, ZERO_E_DIVERGED,
                           "ranks give different first values of tensor %s, slice %d, element "
                           "%zu: rank 0 %s%s; `data` and `fill` have to be the same on all ranks",
                           z->model.params[slice->param].name, slice->index, element,
                           value_text(c->all[i], value), list);
}

/** The first element of a granule that differs; ZERO_OK: none does. */
static zero_result find_element(const struct comparison *c, const struct eng_slice *slice,
                                size_t granule)
{
    zero_ctx *z = c->z;
    struct base_error error = {0};
    float values[BASE_GRANULE] = {0};
    size_t count;
    if (read_granule(z, slice, granule, values, &count, &error))
        return eng_fail_from(z, &error);
    for (size_t at = 0; at < count; at += AT_ONCE) {
        const zero_result r = coll_exchange(z->comm, values + at, AT_ONCE * sizeof *values, c->all);
        if (r)
            return eng_comm_failed(z, r);
        for (size_t i = 0; i < AT_ONCE; i++)
            for (size_t rank = 1; rank < (size_t)z->config.world; rank++)
                if (differs_at(&c->all[rank * AT_ONCE + i], &c->all[i]))
                    return fail_at(c, slice, granule * BASE_GRANULE + at + i, i);
    }
    return ZERO_OK;
}

/** Finds a difference in a slice. */
static zero_result find_in_slice(const struct comparison *c, const struct eng_slice *slice)
{
    const struct sample sample = sample_of(c->z, slice);
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < sample.count; i++) {
        struct base_error error = {0};
        const size_t granule = granule_at(&sample, i);
        uint64_t hash = 0;
        bool differs = false;
        hash_granule(c->z, slice, granule, &hash, &error);
        r = compare(c, hash, &error, &differs);
        if (!r && differs)
            r = find_element(c, slice, granule);
    }
    return r;
}

/** Some hash is another one: names the first element that is. */
static zero_result find(const struct comparison *c)
{
    zero_ctx *z = c->z;
    zero_result r = ZERO_OK;
    for (size_t n = 0; !r && n < z->layout.slice_count; n++) {
        struct base_error error = {0};
        uint64_t hash = 0;
        bool differs = false;
        hash_slice(z, eng_slice_numbered(&z->layout, n), &hash, &error);
        r = compare(c, hash, &error, &differs);
        if (!r && differs)
            r = find_in_slice(c, eng_slice_numbered(&z->layout, n));
    }
    return r ? r
             : eng_fail_agreed(z, ZERO_E_DIVERGED,
                               "ranks give different first values, and others when they are asked "
                               "again: `fill` has to be a pure function of its arguments");
}

/* ------------------------------------------------------------------ whether they do */

static zero_result compare_all(const struct comparison *c)
{
    zero_ctx *z = c->z;
    struct base_error error = {0};
    uint64_t hash = 0;
    bool differs = false;
    hash_all(z, &hash, &error);
    zero_result r = eng_agree(z, &error, "first values");
    if (!r)
        r = compare(c, hash, &error, &differs);
    return r || !differs ? r : find(c);
}

size_t eng_first_bytes(const zero_ctx *z)
{
    return (size_t)z->config.world * AT_ONCE * sizeof(float);
}

zero_result eng_first_compare(zero_ctx *z)
{
    struct comparison c = {z, base_calloc(eng_first_bytes(z) / sizeof(float), sizeof(float))};
    if (!c.all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare first values of %d ranks",
                        z->config.world);
    const zero_result r = compare_all(&c);
    base_free(c.all);
    return r;
}
