#include "zero/exec/host_update.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/progress.h"
#include "zero/exec/grad_is_sum.h"
#include "zero/exec/stochastic.h"
#include "zero/exec/update_alarm.h"
#include "zero/model/ranges.h"

#include "base/kernels/sum.h"

#include <assert.h>
enum { SEGMENT_GRANULES = 64, SEGMENT_ELEMENTS = SEGMENT_GRANULES * BASE_GRANULE };

/** The most that ranks contribute to a step whose update adds it up again, in all: with three
 * numbers an element beside them they are then about what a core's own cache holds. */
#define AGAIN_BYTES ((size_t)1 << 20)
enum { AGAIN_RANKS = 8 };

/** How an update is cut: a tile's elements are in memory together. */
static struct eng_range_cut cut_of(const zero_ctx *z, const struct eng_tiles *tiles)
{
    return (struct eng_range_cut){.layout = &z->layout, .tiles = tiles, .most = SEGMENT_ELEMENTS};
}

static struct eng_segment segment_of(const zero_ctx *z, const struct eng_range *range)
{
    const size_t s = range->slice->bucket;
    size_t owned = range->count;
    const int owner = eng_layout_owner(&z->layout, s, range->first, &owned);
    assert(owned == range->count);
    return (struct eng_segment){
        .slice = range->slice,
        .bucket = s,
        .group = z->model.params[range->slice->param].group,
        .first = range->first,
        .count = range->count,
        .gradient = z->config.grads_nvme ? NULL : eng_sums(z, owner, s, range->first),
    };
}

/** Whether all an update needs is in memory as fp32. */
static bool is_wide(const zero_ctx *z, size_t bucket)
{
    return z->placement.buckets[bucket].master && z->config.moment_dtype == ZERO_F32;
}

static void lay_tables(const zero_ctx *z, size_t segments, struct eng_updating *update,
                       struct base_tables *tables)
{
    update->segments = base_tables_add(tables, segments, sizeof *update->segments);
    update->bucket_segments = base_tables_add(tables, z->layout.bucket_count + 1, sizeof(size_t));
}

size_t eng_segments_bytes(const zero_ctx *z, const struct eng_placement *placement,
                          const struct eng_tiles *tiles)
{
    const struct eng_range_cut cut = cut_of(z, tiles);
    struct base_tables counted = {.counts = true};
    struct eng_updating update;
    if (!z->config.resident)
        lay_tables(z, eng_ranges_count(&cut, placement), &update, &counted);
    return counted.bytes;
}

/** Whether what an update reads and writes drives the first working copies out of the caches again
 * before any rank reads them. */
static bool exceeds_caches(const struct eng_placement *p)
{
    return p->params_part + p->sums_bytes + p->masters_bytes + p->moments_bytes >
           base_sum_cache_bytes();
}

/** Whether every update of a bucket can add contributions up itself: kernels do, on what needs no
 * rounding in between. */
static bool sums(const zero_ctx *z, size_t s)
{
    if (!is_wide(z, s))
        return false;
    for (size_t i = z->update.bucket_segments[s]; i < z->update.bucket_segments[s + 1]; i++)
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
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        if (!z->layout.buckets[s].frozen)
            bytes += z->layout.buckets[s].granules * BASE_GRANULE *
                     eng_dtype_size(z->placement.buckets[s].comm_dtype);
    return z->config.stage == 0 && !z->config.grads_nvme && !z->publication.all_sums && world > 1 &&
           world <= AGAIN_RANKS && z->config.sum_group <= 1 && !z->config.verify_micro &&
           bytes <= AGAIN_BYTES / world;
}

bool eng_adds_again(const zero_ctx *z, size_t bucket)
{
    return z->update.adds_again && z->io[bucket].sums && (z->micro.count == 1 || z->config.local);
}

/** Tells pieces which segments are theirs: those of each follow each other. */
static void note_segments(const zero_ctx *z, struct eng_tiles *tiles)
{
    for (size_t i = 0; i < z->update.bucket_segments[z->layout.bucket_count]; i++) {
        const struct eng_segment *segment = &z->update.segments[i];
        struct eng_piece *piece =
            eng_tiles_piece(tiles, segment->bucket, segment->first / BASE_GRANULE);
        if (piece->segments++ == 0)
            piece->first_segment = i;
        assert(piece->first_segment + piece->segments == i + 1);
    }
}

/** Cuts what this rank updates of a slice: at stage 0 everything, else what it owns. */
static size_t cut_slice(const zero_ctx *z, const struct eng_range_cut *cut,
                        const struct eng_slice *slice, struct eng_segment *segments)
{
    struct eng_range left = eng_state_range(&z->placement, slice);
    size_t made = 0;
    while (left.count > 0 && !z->layout.buckets[slice->bucket].frozen) {
        const struct eng_range range = eng_range_next(cut, &left);
        segments[made++] = segment_of(z, &range);
    }
    return made;
}

static void cut_all(zero_ctx *z, const struct eng_range_cut *cut)
{
    size_t made = 0;
    for (size_t s = 0, i = 0; s < z->layout.bucket_count; s++) {
        z->update.bucket_segments[s] = made;
        for (; i < z->layout.slice_count && z->layout.slices[i].bucket == s; i++)
            made += cut_slice(z, cut, &z->layout.slices[i], z->update.segments + made);
    }
    z->update.bucket_segments[z->layout.bucket_count] = made;
}

zero_result eng_segments_make(zero_ctx *z)
{
    struct eng_tiles *tiles = z->store->tiles(z);
    const struct eng_range_cut cut = cut_of(z, tiles);
    z->update.parted = z->config.stage > 0 && z->config.world > 1;
    if (z->config.resident)
        return ZERO_OK;
    const size_t total = eng_ranges_count(&cut, &z->placement);
    lay_tables(z, total, &z->update, &z->memory.tables);
    if (z->memory.tables.failed)
        return eng_fail(z, ZERO_E_NOMEM, "no memory for %zu update segments", total);
    cut_all(z, &cut);
    assert(z->update.bucket_segments[z->layout.bucket_count] == total);
    if (tiles)
        note_segments(z, tiles);
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        z->io[s].sums = sums(z, s);
    z->update.past_caches = exceeds_caches(&z->placement);
    z->update.adds_again = adds_again(z);
    return ZERO_OK;
}

struct base_update eng_update_run(const zero_ctx *z, const struct eng_segment *segment,
                                  size_t first, size_t count, const float *gradient)
{
    const size_t s = segment->bucket;
    const zero_dtype dtype = z->layout.buckets[s].dtype;
    struct base_update run = {
        .count = count,
        .gradient = gradient,
        .work_dtype = dtype,
        .past_caches = z->update.past_caches,
    };
    if (z->placement.buckets[s].master)
        run.weight = eng_weights(z, s, first);
    if (z->placement.buckets[s].master && !z->placement.buckets[s].staged && dtype != ZERO_F32)
        run.work = (uint16_t *)(void *)eng_home(z, s, first / BASE_GRANULE);
    const int moments = z->model.groups[segment->group].optimizer->moments;
    for (int k = 0; k < moments && z->config.moment_dtype == ZERO_F32; k++)
        run.moment[k] = eng_moments(z, k, s, first);
    return run;
}

/** All of it at once: nothing has to be unpacked. */
static void update_wide(zero_ctx *z, const struct eng_segment *segment)
{
    bool alarm = false;
    struct base_update run =
        eng_update_run(z, segment, segment->first, segment->count, segment->gradient);
    const struct eng_group *group = &z->model.groups[segment->group];
    run.alarm = &alarm;
    group->optimizer->update(&group->choice, z->cpu.kernels, &z->update.scalars[segment->group],
                             &run);
    if (alarm)
        eng_outcome_look(z, segment->slice, segment->first, segment->count);
}

void eng_update_segment(zero_ctx *z, const struct eng_segment *segment)
{
    if (z->model.groups[segment->group].frozen)
        return;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    if (is_wide(z, segment->bucket))
        update_wide(z, segment);
    else
        eng_update_rounded(z, segment);
    base_fp_leave(&saved);
}

/** Updates a segment of a group that is not frozen with the sum of contributions. */
static size_t add_and_update(zero_ctx *z, const struct eng_segment *segment,
                             const struct base_contributions *from, double *squares)
{
    const struct eng_group *group = &z->model.groups[segment->group];
    bool alarm = false;
    struct base_update run = eng_update_run(z, segment, segment->first, segment->count, NULL);
    struct base_fp_state saved;
    base_fp_enter(&saved);
    run.alarm = &alarm;
    const size_t done = group->optimizer->update_sum(
        z->cpu.kernels, &z->update.scalars[segment->group], &run, from, squares);
    if (alarm)
        eng_outcome_look(z, segment->slice, segment->first, done);
    base_fp_leave(&saved);
    return done;
}

size_t eng_update_summed(zero_ctx *z, const struct eng_segment *segment,
                         const struct base_contributions *from)
{
    if (z->model.groups[segment->group].frozen)
        return segment->count;
    double squares[SEGMENT_GRANULES];
    assert(segment->count <= SEGMENT_ELEMENTS);
    const size_t done = add_and_update(z, segment, from, squares);
    for (size_t i = 0; i * BASE_GRANULE < segment->count && done == segment->count; i++)
        eng_add_square_sum(z, squares[i]);
    return done;
}

/** What a rank contributed to a bucket's sums. */
static const void *contribution(const zero_ctx *z, int rank, size_t bucket)
{
    const unsigned char *grads =
        rank == z->config.rank ? z->memory.grads : coll_arena_peer(z->memory.grads_arena, rank);
    const int slot = z->units[z->layout.buckets[bucket].unit].sum_slot;
    assert(slot >= 0);
    return grads + z->gradients.slots[slot].offset + z->placement.buckets[bucket].comm_offset;
}

/** Updates a segment whose sums no rank has kept. All of them are finite, for the step is. */
static void update_again(zero_ctx *z, const struct eng_segment *segment)
{
    const size_t s = segment->bucket;
    const void *sources[AGAIN_RANKS];
    const struct base_contributions from = {
        .dtype = z->placement.buckets[s].comm_dtype,
        .sources = sources,
        .count = eng_contributors(z, z->io[s].round),
        .first = segment->first,
    };
    if (z->model.groups[segment->group].frozen)
        return;
    assert(from.count >= 1 && from.count <= AGAIN_RANKS);
    for (int rank = 0; rank < from.count; rank++)
        sources[rank] = contribution(z, rank, s);
    if (from.count == 1 && from.dtype == ZERO_F32) {
        struct eng_segment sole = *segment;
        sole.gradient = (const float *)sources[0] + segment->first;
        eng_update_segment(z, &sole);
    } else {
        add_and_update(z, segment, &from, NULL);
    }
}

/** A bucket's update, dealt out over the pool's threads. */
struct bucket_update {
    zero_ctx *z;
    const struct eng_segment *segments;
    size_t count;
};

/** Where the state is kept in tiles, they have the new weights, too. */
static void keep(const zero_ctx *z, const struct eng_segment *segment)
{
    z->store->keep(z, segment->bucket, segment->first, segment->count);
}

static void update_task(void *user, size_t index, int thread)
{
    (void)thread;
    const struct bucket_update *task = user;
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

/** Sums that were not kept belong to no rank: what only owners tell apart is updated in one go. */
static void update_again_task(void *user, size_t index, int thread)
{
    (void)thread;
    const struct bucket_update *task = user;
    struct eng_segment whole = task->segments[index];
    if (index > 0 && continues(&task->segments[index]))
        return;
    for (; ++index < task->count && continues(&task->segments[index]);)
        whole.count += task->segments[index].count;
    update_again(task->z, &whole);
    keep(task->z, &whole);
}

void eng_update_range(zero_ctx *z, size_t bucket, size_t first, size_t count)
{
    assert(first >= z->update.bucket_segments[bucket]);
    assert(first + count <= z->update.bucket_segments[bucket + 1]);
    struct bucket_update task = {.z = z, .segments = z->update.segments + first, .count = count};
    const bool again = eng_adds_again(z, bucket), kept = !again && !eng_grad_is_sum(z, bucket);
    z->publication.grads_lent = z->publication.grads_lent || again;
    base_pool_run(z->cpu.pool, count, kept ? update_task : update_again_task, &task);
}

zero_result eng_host_update_bucket(zero_ctx *z, size_t bucket)
{
    const size_t first = z->update.bucket_segments[bucket];
    const size_t end = z->update.bucket_segments[bucket + 1];
    if (z->io[bucket].trains && !z->io[bucket].fused)
        eng_update_range(z, bucket, first, end - first);
    z->io[bucket].fused = false;
    return ZERO_OK;
}
