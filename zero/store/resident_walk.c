#include "zero/store/resident_walk.h"

#include "zero/core/context.h"
#include "zero/store/master_weights.h"

zero_result eng_walk_resident(zero_ctx *z, bool frozen, const struct eng_visit *with,
                              struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_part part = eng_state_part(z, slice);
        if (z->layout.buckets[slice->bucket].frozen == frozen && part.count > 0)
            r = with->part(z, &part, with->access, with->visit, with->user, error);
    }
    return r;
}
