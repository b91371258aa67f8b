#include "zero/model/ranges.h"

#include <assert.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

struct eng_range eng_range_in(const struct eng_slice *slice, size_t granule, size_t granules)
{
    const size_t begin = slice->granule * BASE_GRANULE, end = begin + slice->numel;
    const size_t in = granule * BASE_GRANULE, in_end = in + granules * BASE_GRANULE;
    const size_t first = begin > in ? begin : in, last = least(end, in_end);
    return (struct eng_range){
        .slice = slice,
        .first = first,
        .count = last > first ? last - first : 0,
    };
}

struct eng_range eng_range_of_owner(const struct eng_layout *layout, const struct eng_slice *slice,
                                    int rank)
{
    size_t own, granules;
    eng_layout_own(layout, slice->bucket, rank, &own, &granules);
    return eng_range_in(slice, own, granules);
}

struct eng_range eng_range_next(const struct eng_range_cut *cut, struct eng_range *left)
{
    struct eng_range next = *left;
    assert(left->count > 0);
    assert(cut->most > 0 && cut->most % BASE_GRANULE == 0);
    const size_t bucket = next.slice->bucket;
    next.count = least(next.count, cut->most);
    eng_layout_owner(cut->layout, bucket, next.first, &next.count);
    if (cut->tiles)
        next.count = least(next.count, eng_tiles_left(cut->tiles, bucket, next.first));
    assert(next.count > 0 && next.count <= left->count);
    left->first += next.count;
    left->count -= next.count;
    return next;
}

size_t eng_ranges_count(const struct eng_range_cut *cut, const struct eng_placement *placement)
{
    size_t count = 0;
    for (size_t i = 0; i < cut->layout->slice_count; i++) {
        const struct eng_slice *slice = &cut->layout->slices[i];
        if (cut->layout->buckets[slice->bucket].frozen)
            continue;
        struct eng_range left = eng_state_range(placement, slice);
        for (; left.count > 0; count++)
            eng_range_next(cut, &left);
    }
    return count;
}
