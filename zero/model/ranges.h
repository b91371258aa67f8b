/**
 * zero/model/ranges.h: what a rank has of a slice, cut into ranges that one task, one run of a
 * kernel or one block is about: pure functions of (layout, placement, tiles).
 */
#ifndef ZERO_MODEL_RANGES_H
#define ZERO_MODEL_RANGES_H

#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/model/state_tiles.h"

/** Elements of a slice, without padding. */
struct eng_range {
    const struct eng_slice *slice;
    size_t first; /**< element of the bucket */
    size_t count; /**< 0: nothing */
};

/** Element of the slice at which a range begins. */
static inline size_t eng_range_first(const struct eng_range *range)
{
    return range->first - range->slice->granule * BASE_GRANULE;
}

/** What granules `granule` .. granule + granules - 1 of its bucket have of a slice. */
struct eng_range eng_range_in(const struct eng_slice *slice, size_t granule, size_t granules);

/** What a rank owns of a slice. */
struct eng_range eng_range_of_owner(const struct eng_layout *layout, const struct eng_slice *slice,
                                    int rank);

/** What the rank with this placement owns of a slice. */
static inline struct eng_range eng_own_range(const struct eng_placement *placement,
                                             const struct eng_slice *slice)
{
    const struct eng_bucket_place *place = &placement->buckets[slice->bucket];
    return eng_range_in(slice, place->own_first, place->own_granules);
}

/** What the state of the rank with this placement covers of a slice. */
static inline struct eng_range eng_state_range(const struct eng_placement *placement,
                                               const struct eng_slice *slice)
{
    const struct eng_bucket_place *place = &placement->buckets[slice->bucket];
    return eng_range_in(slice, place->state_first, place->state_granules);
}

/** How ranges are cut into those of an update: each has one owner, whose sums lie together. */
struct eng_range_cut {
    const struct eng_layout *layout;
    const struct eng_tiles *tiles; /**< no range lies in two of them; NULL: there are none */
    size_t most;                   /**< elements of a range, a multiple of BASE_GRANULE */
};

/** Cuts the first range off what is left of a slice: *left begins behind it then. */
struct eng_range eng_range_next(const struct eng_range_cut *cut, struct eng_range *left);

/** How many ranges there are of all that the rank with this placement updates, if no group is
 * frozen. */
size_t eng_ranges_count(const struct eng_range_cut *cut, const struct eng_placement *placement);

#endif
