#include "zero/model/placement.h"

#include <assert.h>
#include <string.h>

/** Sums of a class's units that are in memory at once, where they are in a file: of one that is
 * added to, one that is written, and one that is read. */
enum { SUM_SLOTS = 3 };

static bool is_staged(const struct eng_bucket *bucket, const struct eng_limits *limits)
{
    return limits->params_in_file && !bucket->persistent;
}

static enum eng_residence residence(const struct eng_bucket *bucket,
                                    const struct eng_limits *limits)
{
    if (is_staged(bucket, limits))
        return ENG_SHARDED;
    if (limits->stage == 0 || limits->alone)
        return ENG_REPLICATED;
    if (limits->shared)
        return ENG_SHARED;
    return limits->stage == 3 && !bucket->persistent ? ENG_SHARDED : ENG_COPIED;
}

static size_t granule_bytes(zero_dtype dtype)
{
    assert(eng_dtype_size(dtype) > 0);
    return BASE_GRANULE * eng_dtype_size(dtype);
}

/** What of so many granules in the host's copy counts as this rank's: what it owns, and on one of
 * several hosts an equal part. */
static size_t shared_part(const struct eng_layout *layout, size_t granules, zero_dtype dtype,
                          size_t own, const struct eng_limits *limits)
{
    assert(limits->shared_by >= 0 && limits->shared_by <= layout->world);
    if (limits->shared_by == 0 || limits->shared_by == layout->world)
        return own;
    const size_t ranks = (size_t)limits->shared_by;
    return (granules + ranks - 1) / ranks * granule_bytes(dtype);
}

/** Places one bucket behind the ones before it; the totals so far are in *placement. */
static void place_bucket(struct eng_placement *placement, const struct eng_layout *layout, size_t s,
                         int rank, const struct eng_limits *limits)
{
    const struct eng_bucket *bucket = &layout->buckets[s];
    struct eng_bucket_place *place = &placement->buckets[s];
    place->residence = residence(bucket, limits);
    place->staged = is_staged(bucket, limits);
    place->windowed =
        (limits->stage == 3 || limits->paranoid || place->staged) && !bucket->persistent;
    eng_layout_own(layout, s, rank, &place->own_first, &place->own_granules);
    place->state_first = limits->stage == 0 ? 0 : place->own_first;
    place->state_granules = limits->stage == 0 ? bucket->granules : place->own_granules;
    const bool sharded = place->residence == ENG_SHARDED;
    const size_t whole = bucket->granules * granule_bytes(bucket->dtype);
    const size_t own = place->own_granules * granule_bytes(bucket->dtype);
    place->home_first = sharded ? place->own_first : 0;
    place->home = placement->params_bytes;
    if (!place->staged) {
        placement->params_bytes += sharded ? own : whole;
        placement->params_part +=
            sharded ? own
            : place->residence == ENG_SHARED
                ? shared_part(layout, bucket->granules, bucket->dtype, own, limits)
                : whole;
    }
    place->master = bucket->dtype == ZERO_F32 || (!bucket->frozen && !limits->no_masters);
    assert(place->own_first + place->own_granules <= bucket->granules);
    if (bucket->frozen)
        return;
    if (!limits->sums_in_file) {
        const size_t sums = place->own_granules * granule_bytes(ZERO_F32);
        const size_t all = bucket->granules * granule_bytes(ZERO_F32);
        placement->own_sums_bytes += sums;
        placement->sums_bytes += limits->sums_whole ? all : sums;
        placement->sums_part += limits->sums_shared
                                    ? shared_part(layout, bucket->granules, ZERO_F32, sums, limits)
                                : limits->sums_whole ? all
                                                     : sums;
    }
    const zero_dtype moment = limits->narrow_moments ? ZERO_BF16 : ZERO_F32;
    place->moments = placement->moments_bytes / eng_dtype_size(moment);
    if (limits->state_in_file)
        return;
    placement->moments_bytes +=
        (size_t)bucket->moments * place->state_granules * granule_bytes(moment);
    if (eng_apart(bucket, place)) {
        place->masters = placement->masters_bytes / sizeof(float);
        placement->masters_bytes += place->state_granules * granule_bytes(ZERO_F32);
    }
}

/** Offsets of a unit's buckets inside its buffers; the buffers' sizes. */
static void unit_buffers(struct eng_placement *placement, const struct eng_layout *layout, size_t u,
                         const struct eng_limits *limits)
{
    const struct eng_unit_layout *unit = &layout->units[u];
    struct eng_unit_place *sizes = &placement->units[u];
    for (size_t s = unit->first_bucket; s < unit->first_bucket + unit->bucket_count; s++) {
        const struct eng_bucket *bucket = &layout->buckets[s];
        struct eng_bucket_place *place = &placement->buckets[s];
        const size_t bytes = bucket->granules * granule_bytes(bucket->dtype);
        place->comm_dtype = limits->comm_dtype ? limits->comm_dtype : bucket->grad_dtype;
        place->comm_offset = sizes->grad_bytes;
        place->grad_offset = sizes->grad_bytes;
        if (!bucket->frozen)
            sizes->grad_bytes += bucket->granules * granule_bytes(place->comm_dtype);
        if (!bucket->frozen && place->comm_dtype != bucket->grad_dtype) {
            place->grad_offset = sizes->grad_bytes;
            sizes->grad_bytes += bucket->granules * granule_bytes(bucket->grad_dtype);
        }
        place->slot_offset = sizes->gather_bytes;
        if (place->residence == ENG_SHARDED)
            sizes->gather_bytes += bytes;
        place->sum_offset = sizes->sum_bytes;
        if (!bucket->frozen && limits->sums_in_file)
            sizes->sum_bytes += place->state_granules * granule_bytes(ZERO_F32);
    }
}

/** Adds up the windows of a unit's slices. */
static void unit_windows(struct eng_placement *placement, const struct eng_layout *layout, size_t u)
{
    const struct eng_unit_layout *unit = &layout->units[u];
    for (size_t i = unit->first_slice; i < unit->first_slice + unit->slice_count; i++) {
        const struct eng_slice *slice = &layout->slices[i];
        const struct eng_bucket *bucket = &layout->buckets[slice->bucket];
        const size_t bytes = eng_window_bytes(slice->numel * eng_dtype_size(bucket->dtype));
        if (bucket->persistent)
            placement->windows_bytes += bytes;
        else
            placement->units[u].window_bytes += bytes;
        if (!bucket->frozen)
            placement->units[u].grad_window_bytes +=
                eng_window_bytes(slice->numel * eng_dtype_size(bucket->grad_dtype));
    }
}

/** The sum of the `most` largest windows of parameters, or gradients; they are in whole pages. */
static size_t open_windows(const struct eng_placement *placement, size_t unit_count, bool gradients,
                           int most)
{
    size_t total = 0, below = SIZE_MAX;
    for (int left = most; left > 0;) {
        // The largest ones first; those of one size together.
        size_t largest = 0;
        int alike = 0;
        for (size_t u = 0; u < unit_count; u++) {
            const struct eng_unit_place *unit = &placement->units[u];
            const size_t bytes = gradients ? unit->grad_window_bytes : unit->window_bytes;
            if (bytes >= below || bytes < largest)
                continue;
            alike = bytes > largest ? 1 : alike + 1;
            largest = bytes;
        }
        if (largest == 0)
            break;
        total += (size_t)(alike < left ? alike : left) * largest;
        left -= alike;
        below = largest;
    }
    return total;
}

/** Enters a unit of `bytes` into the class of its size. */
static void classify(struct eng_slot_plan *plan, size_t u, size_t bytes)
{
    plan->class_of_unit[u] = -1;
    if (bytes == 0)
        return;
    const int octave = 63 - __builtin_clzll((unsigned long long)bytes);
    int c = 0;
    while (c < plan->class_count &&
           63 - __builtin_clzll((unsigned long long)plan->classes[c].bytes) != octave)
        c++;
    struct eng_slot_class *class = &plan->classes[c];
    assert(c < ENG_MAX_CLASSES);
    if (c == plan->class_count)
        plan->class_count++;
    class->units++;
    if (bytes > class->bytes)
        class->bytes = bytes;
    plan->class_of_unit[u] = (int8_t)c;
}

/** Gives each class slots for `held` units, `more` ones, and others while `spare` bytes last. */
static void count_slots(struct eng_slot_plan *plan, int held, int more, size_t spare)
{
    for (int c = 0; c < plan->class_count; c++) {
        struct eng_slot_class *class = &plan->classes[c];
        assert(class->units > 0 && class->bytes > 0);
        class->slots = class->units < held ? class->units : held;
        const size_t fit = spare / class->bytes;
        const size_t missing = (size_t)(class->units - class->slots);
        const size_t extra = fit < missing ? fit : missing;
        class->slots += (int)extra + more;
        spare -= extra * class->bytes;
        class->first_slot = plan->slot_count;
        plan->slot_count += class->slots;
        plan->bytes += (size_t) class->slots * class->bytes;
    }
}

/** What of the gather slots counts as this rank's: of those of the host an equal part. */
static size_t gather_part(const struct eng_placement *placement, const struct eng_layout *layout,
                          const struct eng_limits *limits)
{
    const size_t ranks = (size_t)(limits->shared_by ? limits->shared_by : layout->world);
    assert(!limits->slots_shared || limits->stage == 3);
    return limits->slots_shared ? (placement->gather.bytes + ranks - 1) / ranks
                                : placement->gather.bytes;
}

zero_result eng_placement_make(struct eng_placement *placement, const struct eng_layout *layout,
                               int rank, const struct eng_limits *limits, struct base_error *error)
{
    memset(placement, 0, sizeof *placement);
    zero_result r = ZERO_OK;
    struct base_tables *tables = &placement->tables;
    placement->buckets = base_tables_add(tables, layout->bucket_count, sizeof *placement->buckets);
    placement->units = base_tables_add(tables, layout->unit_count, sizeof *placement->units);
    placement->gather.class_of_unit = base_tables_add(tables, layout->unit_count, 1);
    placement->grads.class_of_unit = base_tables_add(tables, layout->unit_count, 1);
    placement->sums.class_of_unit = base_tables_add(tables, layout->unit_count, 1);
    if (tables->failed) {
        r = zero_fail(error, ZERO_E_NOMEM, "no memory for the placement of %zu buckets",
                      layout->bucket_count);
        goto out;
    }
    for (size_t s = 0; s < layout->bucket_count; s++)
        place_bucket(placement, layout, s, rank, limits);
    if (limits->blocks)
        placement->blocks_bytes = placement->own_sums_bytes;
    assert(placement->own_sums_bytes <= placement->sums_bytes);
    assert(placement->params_part <= placement->params_bytes);
    for (size_t u = 0; u < layout->unit_count; u++) {
        unit_buffers(placement, layout, u, limits);
        if (limits->paranoid)
            unit_windows(placement, layout, u);
        classify(&placement->gather, u, placement->units[u].gather_bytes);
        classify(&placement->grads, u, placement->units[u].grad_bytes);
        classify(&placement->sums, u, (limits->blocks ? 2 : 1) * placement->units[u].sum_bytes);
    }
    if (limits->paranoid)
        placement->windows_bytes +=
            open_windows(placement, layout->unit_count, false, limits->open_units) +
            open_windows(placement, layout->unit_count, true, limits->grad_units);
    count_slots(&placement->gather, limits->open_units + limits->prefetch_units, 0,
                (size_t)limits->live_bytes);
    placement->gather_part = gather_part(placement, layout, limits);
    count_slots(&placement->grads, limits->stage < 2 ? INT32_MAX : limits->grad_units,
                limits->grad_spare, 0);
    count_slots(&placement->sums, SUM_SLOTS, 0, 0);
out:
    if (r)
        eng_placement_free(placement);
    return r;
}

void eng_placement_free(struct eng_placement *placement)
{
    base_tables_free(&placement->tables);
    memset(placement, 0, sizeof *placement);
}
