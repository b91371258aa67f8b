/**
 * zero/store/tile_order.h: tiles in the order in which a fused step may update them.
 */
#ifndef ZERO_STORE_TILE_ORDER_H
#define ZERO_STORE_TILE_ORDER_H

#include <stddef.h>
#include <stdint.h>

/** A tile, and when it has all it is updated with: in any unit. */
struct eng_due {
    uint64_t due;
    size_t tile;
};

/** Sorts what is due first to the front, and of what is due together the last tile. In place, in
 * O(n log n) steps whatever the order was. */
void eng_due_sort(struct eng_due *list, size_t count);

#endif
