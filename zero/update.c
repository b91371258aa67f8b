#include "zero/engine.h"

#include "base/clock.h"

#define SEGMENT_ELEMENTS (64 * (size_t)ENG_GRANULE)

/** Appends the segments of a slice, or only counts them if segments is NULL. */
static size_t cut_slice(const zero_ctx *z, const struct eng_slice *slice,
                        struct eng_segment *segments)
{
    const struct eng_section_place *place = &z->placement.sections[slice->section];
    const size_t slice_first = slice->granule * ENG_GRANULE;
    const size_t slice_end = slice_first + slice->numel;
    const size_t state_first = place->state_first * ENG_GRANULE;
    const size_t state_end = state_first + place->state_granules * ENG_GRANULE;
    const size_t end = slice_end < state_end ? slice_end : state_end;
    size_t at = slice_first > state_first ? slice_first : state_first;
    size_t made = 0;
    for (; at < end; at += SEGMENT_ELEMENTS, made++) {
        if (!segments)
            continue;
        const size_t left = end - at;
        segments[made] = (struct eng_segment){
            .section = slice->section,
            .group = z->model.params[slice->param].group,
            .first = at,
            .count = left < SEGMENT_ELEMENTS ? left : SEGMENT_ELEMENTS,
        };
    }
    return made;
}

static size_t count_segments(const zero_ctx *z)
{
    size_t total = 0;
    for (size_t i = 0; i < z->layout.slice_count; i++)
        total += cut_slice(z, &z->layout.slices[i], NULL);
    return total;
}

size_t eng_segments_bytes(const zero_ctx *z)
{
    return count_segments(z) * sizeof *z->segments +
           (z->layout.section_count + 1) * sizeof *z->section_segments;
}

zero_result eng_segments_make(zero_ctx *z)
{
    const size_t total = count_segments(z);
    z->segments = base_calloc(total, sizeof *z->segments);
    z->section_segments = base_calloc(z->layout.section_count + 1, sizeof *z->section_segments);
    if (!z->segments || !z->section_segments)
        return eng_fail(z, ZERO_E_NOMEM, "no memory for %zu update segments", total);
    size_t made = 0;
    for (size_t s = 0, i = 0; s < z->layout.section_count; s++) {
        z->section_segments[s] = made;
        for (; i < z->layout.slice_count && z->layout.slices[i].section == s; i++)
            made += cut_slice(z, &z->layout.slices[i], z->segments + made);
    }
    z->section_segments[z->layout.section_count] = made;
    return ZERO_OK;
}

/** A section's update, dealt out over the pool's threads. */
struct section_update {
    zero_ctx *z;
    const struct eng_segment *segments;
    const float *sums; /**< of element `sums_first` of the section on */
    size_t sums_first;
};

static void update_segment(void *user, size_t index, int thread)
{
    (void)thread;
    const struct section_update *task = user;
    zero_ctx *z = task->z;
    const struct eng_segment *segment = &task->segments[index];
    const struct eng_optimizer *optimizer = z->model.groups[segment->group].optimizer;
    struct eng_update run = {
        .count = segment->count,
        .gradient = task->sums + (segment->first - task->sums_first),
        .weight = eng_weights(z, segment->section, segment->first),
    };
    for (int k = 0; k < optimizer->moments; k++)
        run.moment[k] = eng_moments(z, k, segment->section, segment->first);
    if (z->layout.sections[segment->section].dtype == ZERO_BF16)
        run.work = (uint16_t *)(void *)eng_home(z, segment->section, segment->first / ENG_GRANULE);
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    optimizer->update(z->kernels, &z->scalars[segment->group], &run);
    eng_fp_leave(&saved);
}

static zero_result update_section(zero_ctx *z, size_t s)
{
    const struct eng_section_place *place = &z->placement.sections[s];
    struct section_update task = {
        .z = z,
        .segments = z->segments + z->section_segments[s],
        .sums = z->sums + place->sums,
        .sums_first = place->state_first * ENG_GRANULE,
    };
    if (z->config.stage == 0) {
        const zero_result r = eng_sums_gather(z, s, &task.sums);
        if (r)
            return r;
    }
    base_pool_run(z->pool, z->section_segments[s + 1] - z->section_segments[s], update_segment,
                  &task);
    return eng_publish_start(z, s);
}

zero_result eng_update_all(zero_ctx *z)
{
    const double begin = base_clock_s();
    zero_result r = ZERO_OK;
    z->version++;
    // What persists goes first, for the step waits until it is current; the rest may take its time.
    for (int pass = 0; pass < 2; pass++)
        for (size_t s = 0; !r && s < z->layout.section_count; s++)
            if (z->layout.sections[s].persistent == (pass == 0))
                r = update_section(z, s);
    z->stats.update_s += base_clock_s() - begin;
    return r;
}
