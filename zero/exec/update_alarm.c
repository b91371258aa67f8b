// Kernels raise an alarm if a value that they store is not finite, or is large; then the elements
// are looked at one by one.

#include "zero/exec/update_alarm.h"
#include "zero/core/addresses.h"
#include "zero/core/context.h"

#include <assert.h>
#include <math.h>

void eng_outcome_open(struct eng_outcome *outcome)
{
    pthread_mutex_init(&outcome->lock, NULL);
    outcome->first = (struct eng_wrong){.param = UINT64_MAX};
}

void eng_outcome_close(struct eng_outcome *outcome)
{
    pthread_mutex_destroy(&outcome->lock);
}

/* ------------------------------------------------------------------ what is wrong */

static bool wrong_before(const struct eng_wrong *a, const struct eng_wrong *b)
{
    if (a->param != b->param)
        return a->param < b->param;
    if (a->slice != b->slice)
        return a->slice < b->slice;
    return a->element != b->element ? a->element < b->element : a->field < b->field;
}

void eng_wrong_min(struct eng_wrong *to, const struct eng_wrong *from)
{
    if (wrong_before(from, to))
        *to = *from;
}

/** The first of some values that is not finite; `count`: none. */
static size_t first_wrong(const float *values, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(values[i]))
        i++;
    return i;
}

/** Part of a bucket's elements, less than a granule, all of one slice. */
struct looked {
    const zero_ctx *z;
    const struct eng_slice *slice;
    size_t first, count;
    struct eng_wrong found;
};

static void note(struct looked *at, uint32_t field, const float *values, const float *shown)
{
    const size_t i = first_wrong(values, at->count);
    assert(at->count <= BASE_GRANULE);
    if (i == at->count)
        return;
    const struct eng_wrong wrong = {
        .param = (uint64_t)at->slice->param,
        .slice = (uint64_t)at->slice->index,
        .element = at->first + i - at->slice->granule * BASE_GRANULE,
        .field = field,
        .value = shown[i],
    };
    eng_wrong_min(&at->found, &wrong);
}

/** Weights, and what a working copy is made of them where that is narrower. */
static void look_at_weights(struct looked *at)
{
    const zero_ctx *z = at->z;
    const size_t s = at->slice->bucket;
    const zero_dtype dtype = z->layout.buckets[s].dtype;
    const bool wide = z->placement.buckets[s].master;
    float values[BASE_GRANULE], shown[BASE_GRANULE];
    uint16_t halves[BASE_GRANULE];
    size_t size;
    const void *weights = eng_best_weights(z, s, at->first, &size);
    eng_widen(z->cpu.kernels, wide ? ZERO_F32 : dtype, weights, at->count, values);
    note(at, ENG_WRONG_WEIGHT, values, values);
    if (!wide || dtype == ZERO_F32)
        return;
    eng_narrow(z->cpu.kernels, dtype, values, at->count, halves);
    eng_widen(z->cpu.kernels, dtype, halves, at->count, shown);
    note(at, ENG_WRONG_COPY, shown, values);
}

static void look_at_moments(struct looked *at)
{
    const zero_ctx *z = at->z;
    const zero_group group = z->model.params[at->slice->param].group;
    const int moments = z->model.groups[group].optimizer->moments;
    float values[BASE_GRANULE];
    for (int k = 0; k < moments; k++) {
        eng_widen(z->cpu.kernels, z->config.moment_dtype,
                  eng_moments(z, k, at->slice->bucket, at->first), at->count, values);
        note(at, ENG_WRONG_MOMENT + (uint32_t)k, values, values);
    }
}

void eng_outcome_look(zero_ctx *z, const struct eng_slice *slice, size_t first, size_t count)
{
    struct looked at = {.z = z, .slice = slice, .found = {.param = UINT64_MAX}};
    for (size_t i = 0; i < count; i += BASE_GRANULE) {
        at.first = first + i;
        at.count = count - i < BASE_GRANULE ? count - i : BASE_GRANULE;
        look_at_weights(&at);
        look_at_moments(&at);
    }
    pthread_mutex_lock(&z->stepping.outcome.lock);
    z->stepping.outcome.large = true;
    eng_wrong_min(&z->stepping.outcome.first, &at.found);
    pthread_mutex_unlock(&z->stepping.outcome.lock);
}
