// The reduction of gradients on the host: an ordered reduce-scatter a bucket. Its tiles are looked
// at while they are in the cache, and updated, too, in a fused step. Weights change then while
// ranks still compute: those of a unit when every rank has handed its gradient over and so reads
// them no more.

#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/exec/executors.h"
#include "zero/exec/grad_is_sum.h"
#include "zero/exec/host_update.h"
#include "zero/link/bucket_gather.h"
#include "zero/link/publish.h"

#include <assert.h>
#include <math.h>

/* ------------------------------------------------------------------ tiles of sums */

/** Adds the squares of `count` sums, granule by granule; with `finite_only` as far as all sums of a
 * granule are finite. Returns how many elements it took. */
static size_t add_squares(zero_ctx *z, size_t count, const struct base_contributions *all,
                          bool finite_only)
{
    enum { AT_ONCE = 64 };
    double squares[AT_ONCE];
    struct base_contributions from = *all;
    for (size_t done = 0; done < count;) {
        const size_t left = count - done;
        const size_t n = left < AT_ONCE * BASE_GRANULE ? left : AT_ONCE * BASE_GRANULE;
        z->cpu.kernels->sum_squares(n, &from, squares);
        for (size_t i = 0; i * BASE_GRANULE < n; i++, done += BASE_GRANULE) {
            if (finite_only && !isfinite(squares[i]))
                return done;
            eng_add_square_sum(z, squares[i]);
        }
        from.first += n;
        if (from.before)
            from.before += n;
    }
    return count;
}

/** Squares of the finished sums, while they are in cache. */
static void sum_tile(void *user, size_t first, size_t count, const void *tile)
{
    struct eng_bucket_io *io = user;
    (void)first;
    add_squares(io->z, count, &(struct base_contributions){.sources = &tile, .count = 1}, false);
}

/** Squares of sums that are not kept. Adding up the rest finds which rank has sent what is not
 * finite. */
static size_t square_tile(void *user, size_t first, size_t count,
                          const struct coll_contributions *from)
{
    struct eng_bucket_io *io = user;
    (void)first;
    const struct base_contributions contributions = {
        .before = from->before,
        .dtype = from->dtype,
        .sources = from->sources,
        .count = from->count,
        .first = from->first,
    };
    return add_squares(io->z, count, &contributions, true);
}

/* ------------------------------------------------------------------ tiles of a fused step */

/** The next part of a bucket's update that lies in elements `at` .. end-1; false: there is none.
 */
static bool next_part(struct eng_bucket_io *io, size_t at, size_t end, struct eng_segment *part)
{
    const zero_ctx *z = io->z;
    if (io->next_segment == z->update.bucket_segments[io->bucket + 1])
        return false;
    *part = z->update.segments[io->next_segment];
    const size_t part_end = part->first + part->count;
    assert(part_end > at);
    part->first = part->first > at ? part->first : at;
    if (part->first >= end)
        return false;
    part->count = (part_end < end ? part_end : end) - part->first;
    if (part_end <= end)
        io->next_segment++;
    return true;
}

/** Element of the bucket at which this rank's shard begins. */
static size_t run_begin(const struct eng_bucket_io *io)
{
    return io->z->placement.buckets[io->bucket].own_first * BASE_GRANULE;
}

/** Updates the elements first .. first+count-1 of this rank's shard of a bucket. */
static void update_parts(struct eng_bucket_io *io, size_t first, size_t count, const float *sum)
{
    const size_t begin = run_begin(io) + first, end = begin + count;
    struct eng_segment part;
    if (eng_step_hopeless(io->z))
        return;
    for (size_t at = begin; next_part(io, at, end, &part); at = part.first + part.count) {
        part.gradient = sum + (part.first - begin);
        eng_update_segment(io->z, &part);
    }
}

/** update_parts() for contributions, which it adds up: a coll_take_fn. */
static size_t add_and_update(void *user, size_t first, size_t count,
                             const struct coll_contributions *from)
{
    struct eng_bucket_io *io = user;
    const size_t begin = run_begin(io) + first, end = begin + count;
    struct eng_segment part;
    if (eng_step_hopeless(io->z))
        return 0;
    for (size_t at = begin; next_part(io, at, end, &part); at = part.first + part.count) {
        const size_t offset = part.first - begin;
        const struct base_contributions contributions = {
            .before = from->before ? (const float *)from->before + offset : NULL,
            .dtype = from->dtype,
            .sources = from->sources,
            .count = from->count,
            .first = from->first + offset,
        };
        const size_t done = eng_update_summed(io->z, &part, &contributions);
        // Sums that are not finite: the step fails, and who is to blame is found by looking at the
        // rest of the tile, which no squares were added of.
        if (done < part.count)
            return offset;
    }
    return count;
}

/** Adds a tile's squares, and updates what may be updated by now. */
static void update_tile(void *user, size_t first, size_t count, const void *tile)
{
    sum_tile(user, first, count, tile);
    update_parts(user, first, count, tile);
}

/* ------------------------------------------------------------------ reductions */

static zero_result start(zero_ctx *z, size_t s, const unsigned char *gradient)
{
    struct eng_bucket_io *io = &z->io[s];
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    const struct eng_bucket_place *place = &z->placement.buckets[s];
    assert(!io->reduce_started);
    io->round = z->micro.index;
    const bool last = z->micro.index == z->micro.count - 1,
               store = z->micro.index == 0 || z->config.local;
    io->next_segment = z->update.bucket_segments[s];
    // Tiles of files are updated as a whole, when all sums of theirs are complete.
    io->fused = z->store->fuses_reductions && eng_updates_early(z, s);
    if (!io->fused && eng_grad_is_sum(z, s)) {
        eng_grad_measure(io, gradient + place->comm_offset);
        return ZERO_OK;
    }
    const bool again = eng_adds_again(z, s);
    const struct coll_reduce_scatter op = {
        .source = gradient + place->comm_offset,
        .dtype = place->comm_dtype,
        .spans = bucket->elements,
        .accumulator = (io->fused && store) || again
                           ? NULL
                           : eng_own_sums(z, s, bucket->elements[z->config.rank].offset),
        .contributors = eng_contributors(z, z->micro.index),
        .together = eng_updates_early(z, s),
        .store = store,
        .sum_group = (uint32_t)z->config.sum_group,
        .first = (uint64_t)z->micro.index * (uint64_t)z->config.world,
        .last = last,
        .block = eng_own_blocks(z, s),
        .tile = io->fused ? update_tile
                : last    ? sum_tile
                          : NULL,
        .take = again                   ? square_tile
                : io->fused && io->sums ? add_and_update
                                        : NULL,
        .nonfinite = eng_grad_nonfinite,
        .user = io,
        .label = eng_unit_label(z, bucket->unit),
    };
    const zero_result r = coll_reduce_scatter_start(z->comm, &op, &io->reduce);
    if (r)
        return eng_comm_failed(z, r);
    io->reduce_started = true;
    return ZERO_OK;
}

zero_result eng_host_reduce(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    assert(z->units[unit].sum_slot >= 0);
    unsigned char *gradient = z->memory.grads + z->gradients.slots[z->units[unit].sum_slot].offset;
    struct base_error error = {0};
    zero_result r = eng_sums_reclaim(z);
    if (!r && eng_grad_prepare(z, unit, gradient, NULL, &error))
        return eng_fail_from(z, &error);
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++)
        if (z->io[s].trains)
            r = start(z, s, gradient);
    return r;
}
