#include "zero/step/update.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/overwrite.h"
#include "zero/core/progress.h"
#include "zero/core/telemetry.h"
#include "zero/exec/stochastic.h"
#include "zero/link/publish.h"
#include "zero/step/gradient.h"
#include "zero/store/host_memory.h"
#include "zero/store/nvme_tier.h"

#include "base/clock.h"
#include "base/kernels/sum.h"

enum { SEGMENT_GRANULES = 64, SEGMENT_ELEMENTS = SEGMENT_GRANULES * ENG_GRANULE };

/** The most that ranks contribute to a step whose update adds it up again, in all: with three
 * numbers an element beside them they are then about what a core's own cache holds. */
#define AGAIN_BYTES ((size_t)1 << 20)
enum { AGAIN_RANKS = 8 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Elements from `element` on that a segment may have: a tile's are in memory together. */
static size_t reach(const struct eng_tiles *tiles, size_t section, size_t element)
{
    const size_t left = tiles ? eng_tiles_left(tiles, section, element) : SEGMENT_ELEMENTS;
    return least(left, SEGMENT_ELEMENTS);
}

/** Appends the segments of what one rank owns of a slice, or only counts them if segments is NULL.
 */
static size_t cut_run(const zero_ctx *z, const struct eng_tiles *tiles,
                      const struct eng_slice *slice, int owner, struct eng_segment *segments)
{
    const struct coll_span *run = &z->layout.sections[slice->section].elements[owner];
    size_t at = slice->granule * ENG_GRANULE, end = at + slice->numel;
    at = at > run->offset ? at : run->offset;
    end = least(end, run->offset + run->count);
    size_t made = 0, count;
    for (; at < end; at += count, made++) {
        count = least(end - at, reach(tiles, slice->section, at));
        if (segments)
            segments[made] = (struct eng_segment){
                .slice = slice,
                .section = slice->section,
                .group = z->model.params[slice->param].group,
                .first = at,
                .count = count,
                .gradient = z->config.grads_nvme ? NULL : eng_sums(z, owner, slice->section, at),
            };
    }
    return made;
}

/** Whether all an update needs is in memory as fp32. */
static bool is_wide(const zero_ctx *z, size_t section)
{
    return z->placement.sections[section].master && z->config.moment_dtype == ZERO_F32;
}

/** What a rank updates of a slice: at stage 0 everything, else what it owns. */
static size_t cut_slice(const zero_ctx *z, const struct eng_tiles *tiles,
                        const struct eng_slice *slice, int stage, int rank,
                        struct eng_segment *segments)
{
    const int first = stage == 0 ? 0 : rank, end = stage == 0 ? z->config.world : rank + 1;
    size_t made = 0;
    if (z->layout.sections[slice->section].frozen)
        return 0;
    for (int owner = first; owner < end; owner++)
        made += cut_run(z, tiles, slice, owner, segments ? segments + made : NULL);
    return made;
}

static size_t count_segments(const zero_ctx *z, const struct eng_tiles *tiles, int stage, int rank)
{
    size_t total = 0;
    for (size_t i = 0; i < z->layout.slice_count; i++)
        total += cut_slice(z, tiles, &z->layout.slices[i], stage, rank, NULL);
    return total;
}

size_t eng_segments_bytes(const zero_ctx *z, const struct eng_tiles *tiles, int stage, int rank)
{
    if (z->config.resident)
        return 0;
    return count_segments(z, tiles, stage, rank) * sizeof *z->update.segments +
           (z->layout.section_count + 1) * sizeof *z->update.section_segments;
}

/** Whether what an update reads and writes drives the first working copies out of the caches again
 * before anybody reads them. */
static bool exceeds_caches(const struct eng_placement *p)
{
    return p->params_part + p->sums_bytes + p->masters_bytes + p->moments_bytes >
           coll_sum_cache_bytes();
}

/** Whether every update of a section can add contributions up itself: kernels do, on what needs no
 * rounding in between. */
static bool sums(const zero_ctx *z, size_t s)
{
    if (!is_wide(z, s))
        return false;
    for (size_t i = z->update.section_segments[s]; i < z->update.section_segments[s + 1]; i++)
        if (!z->model.groups[z->update.segments[i].group].optimizer->update_sum)
            return false;
    return true;
}

/** Whether all ranks' contributions to a step stay where they are until it is over, are added in
 * one go, and are few. */
static bool adds_again(const zero_ctx *z)
{
    const size_t world = (size_t)z->config.world;
    size_t bytes = 0;
    for (size_t s = 0; s < z->layout.section_count; s++)
        if (!z->layout.sections[s].frozen)
            bytes += z->layout.sections[s].granules * ENG_GRANULE *
                     eng_dtype_size(z->placement.sections[s].comm_dtype);
    return z->config.stage == 0 && !z->config.grads_nvme && !z->publication.all_sums && world > 1 &&
           world <= AGAIN_RANKS && z->config.sum_group <= 1 && !z->config.verify_micro &&
           bytes <= AGAIN_BYTES / world;
}

bool eng_adds_again(const zero_ctx *z, size_t section)
{
    return z->update.adds_again && z->io[section].sums && (z->micro.count == 1 || z->config.local);
}

/** Tells pieces which segments are theirs: those of each follow each other. */
static void note_segments(const zero_ctx *z, struct eng_tiles *tiles)
{
    for (size_t i = 0; i < z->update.section_segments[z->layout.section_count]; i++) {
        const struct eng_segment *segment = &z->update.segments[i];
        struct eng_piece *piece =
            eng_tiles_piece(tiles, segment->section, segment->first / ENG_GRANULE);
        if (piece->segments++ == 0)
            piece->first_segment = i;
    }
}

zero_result eng_segments_make(zero_ctx *z)
{
    if (z->config.resident)
        return ZERO_OK;
    const int stage = z->config.stage, rank = z->config.rank;
    struct eng_tiles *tiles = z->tier ? &z->tier->tiles : NULL;
    const size_t total = count_segments(z, tiles, stage, rank);
    z->update.segments = base_calloc(total, sizeof *z->update.segments);
    z->update.section_segments =
        base_calloc(z->layout.section_count + 1, sizeof *z->update.section_segments);
    if (!z->update.segments || !z->update.section_segments)
        return eng_fail(z, ZERO_E_NOMEM, "no memory for %zu update segments", total);
    size_t made = 0;
    for (size_t s = 0, i = 0; s < z->layout.section_count; s++) {
        z->update.section_segments[s] = made;
        for (; i < z->layout.slice_count && z->layout.slices[i].section == s; i++)
            made +=
                cut_slice(z, tiles, &z->layout.slices[i], stage, rank, z->update.segments + made);
    }
    z->update.section_segments[z->layout.section_count] = made;
    if (tiles)
        note_segments(z, tiles);
    for (size_t s = 0; s < z->layout.section_count; s++)
        z->io[s].sums = sums(z, s);
    z->update.past_caches = exceeds_caches(&z->placement);
    z->update.adds_again = adds_again(z);
    return ZERO_OK;
}

struct eng_update eng_update_run(const zero_ctx *z, const struct eng_segment *segment, size_t first,
                                 size_t count, const float *gradient)
{
    const size_t s = segment->section;
    const zero_dtype dtype = z->layout.sections[s].dtype;
    struct eng_update run = {
        .count = count,
        .gradient = gradient,
        .work_dtype = dtype,
        .past_caches = z->update.past_caches,
    };
    if (z->placement.sections[s].master)
        run.weight = eng_weights(z, s, first);
    if (z->placement.sections[s].master && !z->placement.sections[s].staged && dtype != ZERO_F32)
        run.work = (uint16_t *)(void *)eng_home(z, s, first / ENG_GRANULE);
    const int moments = z->model.groups[segment->group].optimizer->moments;
    for (int k = 0; k < moments && z->config.moment_dtype == ZERO_F32; k++)
        run.moment[k] = eng_moments(z, k, s, first);
    return run;
}

/** All of it at once: nothing has to be unpacked. */
static void update_wide(zero_ctx *z, const struct eng_segment *segment)
{
    bool alarm = false;
    struct eng_update run =
        eng_update_run(z, segment, segment->first, segment->count, segment->gradient);
    const struct eng_group *group = &z->model.groups[segment->group];
    run.alarm = &alarm;
    group->optimizer->update(&group->choice, z->kernels, &z->update.scalars[segment->group], &run);
    if (alarm)
        eng_outcome_look(z, segment->slice, segment->first, segment->count);
}

void eng_update_segment(zero_ctx *z, const struct eng_segment *segment)
{
    if (z->model.groups[segment->group].frozen)
        return;
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    if (is_wide(z, segment->section))
        update_wide(z, segment);
    else
        eng_update_rounded(z, segment);
    eng_fp_leave(&saved);
}

/** Updates a segment of a group that is not frozen with the sum of contributions. */
static size_t add_and_update(zero_ctx *z, const struct eng_segment *segment,
                             const struct eng_contributions *from, double *squares)
{
    const struct eng_group *group = &z->model.groups[segment->group];
    bool alarm = false;
    struct eng_update run = eng_update_run(z, segment, segment->first, segment->count, NULL);
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    run.alarm = &alarm;
    const size_t done = group->optimizer->update_sum(z->kernels, &z->update.scalars[segment->group],
                                                     &run, from, squares);
    if (alarm)
        eng_outcome_look(z, segment->slice, segment->first, done);
    eng_fp_leave(&saved);
    return done;
}

size_t eng_update_summed(zero_ctx *z, const struct eng_segment *segment,
                         const struct eng_contributions *from)
{
    if (z->model.groups[segment->group].frozen)
        return segment->count;
    double squares[SEGMENT_GRANULES];
    const size_t done = add_and_update(z, segment, from, squares);
    for (size_t i = 0; i * ENG_GRANULE < segment->count && done == segment->count; i++)
        eng_add_square_sum(z, squares[i]);
    return done;
}

/** What a rank contributed to a section's sums. */
static const void *contribution(const zero_ctx *z, int rank, size_t section)
{
    const unsigned char *grads =
        rank == z->config.rank ? z->memory.grads : coll_arena_peer(z->memory.grads_arena, rank);
    const int slot = z->units[z->layout.sections[section].unit].sum_slot;
    return grads + z->gradients.slots[slot].offset + z->placement.sections[section].comm_offset;
}

/** Updates a segment whose sums nobody has kept. All of them are finite, for the step is. */
static void update_again(zero_ctx *z, const struct eng_segment *segment)
{
    const size_t s = segment->section;
    const void *sources[AGAIN_RANKS];
    const struct eng_contributions from = {
        .dtype = z->placement.sections[s].comm_dtype,
        .sources = sources,
        .count = eng_contributors(z, z->io[s].round),
        .first = segment->first,
    };
    if (z->model.groups[segment->group].frozen)
        return;
    for (int rank = 0; rank < from.count; rank++)
        sources[rank] = contribution(z, rank, s);
    add_and_update(z, segment, &from, NULL);
}

/** A section's update, dealt out over the pool's threads. */
struct section_update {
    zero_ctx *z;
    const struct eng_segment *segments;
    size_t count;
};

/** A tile has the new weights, too. */
static void keep(const zero_ctx *z, const struct eng_segment *segment)
{
    if (z->tier)
        eng_tier_keep(z, segment->section, segment->first, segment->count);
}

static void update_task(void *user, size_t index, int thread)
{
    (void)thread;
    const struct section_update *task = user;
    eng_update_segment(task->z, &task->segments[index]);
    keep(task->z, &task->segments[index]);
}

/** Whether only who owns their sums tells a segment from the one before it: that is not as long as
 * one may be. */
static bool continues(const struct eng_segment *segment)
{
    const struct eng_segment *before = segment - 1;
    return before->slice == segment->slice && before->first + before->count == segment->first &&
           before->count < SEGMENT_ELEMENTS;
}

/** Sums that nobody has kept are nobody's: what only owners tell apart is updated in one go. */
static void update_again_task(void *user, size_t index, int thread)
{
    (void)thread;
    const struct section_update *task = user;
    struct eng_segment whole = task->segments[index];
    if (index > 0 && continues(&task->segments[index]))
        return;
    for (; ++index < task->count && continues(&task->segments[index]);)
        whole.count += task->segments[index].count;
    update_again(task->z, &whole);
    keep(task->z, &whole);
}

void eng_update_range(zero_ctx *z, size_t section, size_t first, size_t count)
{
    struct section_update task = {.z = z, .segments = z->update.segments + first, .count = count};
    const bool again = eng_adds_again(z, section);
    z->publication.grads_lent = z->publication.grads_lent || again;
    base_pool_run(z->pool, count, again ? update_again_task : update_task, &task);
}

static zero_result update_memory(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    // What persists goes first, for the step waits until it is current; the rest may take its time.
    for (int pass = 0; pass < 2; pass++)
        for (size_t s = 0; s < z->layout.section_count; s++) {
            if (z->layout.sections[s].persistent != (pass == 0) || !z->io[s].trains)
                continue;
            const size_t first = z->update.section_segments[s];
            if (!z->io[s].fused)
                eng_update_range(z, s, first, z->update.section_segments[s + 1] - first);
            z->io[s].fused = false;
            if (!r)
                r = eng_publish_start(z, s);
        }
    return r;
}

zero_result eng_update_all(zero_ctx *z)
{
    eng_before_overwrite(z);
    const uint64_t begin = base_clock_ns();
    z->publication.version++;
    zero_result r = z->link->fetch_sums(z);
    if (r)
        return r;
    r = z->tier ? eng_tier_update(z) : update_memory(z);
    if (!r)
        r = eng_sums_return(z);
    eng_stretch(z, CONTROL_UPDATE, -1, begin, &z->stats.update_s);
    return r;
}
