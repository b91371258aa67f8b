#include "zero/store/tile_order.h"

#include <assert.h>
#include <stdbool.h>

static bool is_later(struct eng_due a, struct eng_due b)
{
    return a.due != b.due ? a.due > b.due : a.tile < b.tile;
}

/** Lets the element at `at` sink in a heap whose latest one is its first. */
static void sink(struct eng_due *heap, size_t at, size_t count)
{
    assert(at < count);
    const struct eng_due sinking = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_later(heap[child + 1], heap[child]))
            child++;
        if (!is_later(heap[child], sinking))
            break;
        heap[at] = heap[child];
    }
    heap[at] = sinking;
}

void eng_due_sort(struct eng_due *list, size_t count)
{
    for (size_t i = count / 2; i-- > 0;)
        sink(list, i, count);
    for (size_t last = count; last-- > 1;) {
        const struct eng_due latest = list[0];
        list[0] = list[last];
        list[last] = latest;
        sink(list, 0, last);
    }
}
