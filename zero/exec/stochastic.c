// Updates where weights or moments have 16 bits only: stored by stochastic rounding (Gupta et al.,
// Deep learning with limited numerical precision, 2015, section 3), so that what is smaller than a
// unit in their last place is not lost but added with its probability.

#include "zero/exec/stochastic.h"
#include "zero/core/addresses.h"
#include "zero/core/context.h"
#include "zero/exec/host_update.h"
#include "zero/exec/update_alarm.h"

#include <assert.h>
#include <string.h>

/** What one element's random numbers of one update are drawn for. */
enum { FOR_WEIGHT = 0, FOR_MOMENT = 1 };

/** Full precision, for as long as the optimizer works on it. */
struct tile {
    float weight[BASE_GRANULE];
    float moment[BASE_MAX_MOMENTS][BASE_GRANULE];
};

uint64_t eng_rounding_key(const zero_ctx *z, const struct eng_slice *slice, uint64_t purpose,
                          uint64_t update)
{
    const uint64_t parts[] = {z->config.seed, (uint64_t)slice->index, update, purpose};
    return base_hash64(parts, sizeof parts, z->model.params[slice->param].name_hash);
}

/** At most a granule of a segment, from element `first` of its bucket on. */
static void update_tile(zero_ctx *z, const struct eng_segment *segment, size_t first, size_t count)
{
    const struct eng_group *group = &z->model.groups[segment->group];
    const zero_dtype dtype = z->layout.buckets[segment->bucket].dtype;
    const bool master = z->placement.buckets[segment->bucket].master;
    const bool wide_moments = z->config.moment_dtype == ZERO_F32;
    const uint64_t element = first - segment->slice->granule * BASE_GRANULE;
    assert(count <= BASE_GRANULE && element % BASE_GRANULE == 0);
    bool alarm = false;
    struct tile tile;
    struct base_update run =
        eng_update_run(z, segment, first, count, segment->gradient + (first - segment->first));
    size_t size;
    run.alarm = &alarm;
    void *weights = eng_best_weights(z, segment->bucket, first, &size);
    if (!master) {
        eng_widen(z->cpu.kernels, dtype, weights, count, tile.weight);
        run.weight = tile.weight;
    }
    for (int k = 0; k < group->optimizer->moments && !wide_moments; k++) {
        eng_widen(z->cpu.kernels, z->config.moment_dtype, eng_moments(z, k, segment->bucket, first),
                  count, tile.moment[k]);
        run.moment[k] = tile.moment[k];
    }
    group->optimizer->update(&group->choice, z->cpu.kernels, &z->update.scalars[segment->group],
                             &run);
    if (!master)
        eng_round(z->cpu.kernels, dtype,
                  eng_rounding_key(z, segment->slice, FOR_WEIGHT, z->update.prepared), element,
                  count, tile.weight, weights);
    for (int k = 0; k < group->optimizer->moments && !wide_moments; k++)
        eng_round(z->cpu.kernels, z->config.moment_dtype,
                  eng_rounding_key(z, segment->slice, FOR_MOMENT + (uint64_t)k, z->update.prepared),
                  element, count, tile.moment[k], eng_moments(z, k, segment->bucket, first));
    if (alarm)
        eng_outcome_look(z, segment->slice, first, count);
}

void eng_update_rounded(zero_ctx *z, const struct eng_segment *segment)
{
    for (size_t i = 0; i < segment->count; i += BASE_GRANULE) {
        const size_t left = segment->count - i;
        update_tile(z, segment, segment->first + i, left < BASE_GRANULE ? left : BASE_GRANULE);
    }
}
