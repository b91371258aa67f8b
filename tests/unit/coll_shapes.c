#include "tests/unit/coll_shapes.h"

void deal_shape(struct coll_span *spans, int world, size_t count, enum shape shape, size_t shift)
{
    size_t at = shift, left = count;
    for (int rank = 0; rank < world; rank++) {
        const bool last = rank == world - 1;
        size_t share = left;
        if (shape == EVEN && !last)
            share = count / (size_t)world;
        else if (shape == UNEVEN && !last)
            share = (left + 1) / 3;
        else if (shape == SOME_EMPTY && !last)
            share = rank % 2 ? 0 : (left + 1) / 2;
        else if (shape == ALL_ON_LAST && !last)
            share = 0;
        spans[rank] = (struct coll_span){.offset = share > 0 ? at : 0, .count = share};
        at += share;
        left -= share;
    }
}
