// A request to stop: from zero-run to all ranks, and back who has heard it.

#include "collectives/control/control.h"

void control_stop(struct control_segment *segment)
{
    atomic_store_explicit(&segment->stop, 1, memory_order_relaxed);
}

bool control_stopping(const struct control_segment *segment)
{
    return segment && atomic_load_explicit(&segment->stop, memory_order_relaxed) != 0;
}

void control_listen(struct control_rank *area)
{
    atomic_store_explicit(&area->listens, 1, memory_order_relaxed);
}

bool control_listens(const struct control_segment *segment)
{
    bool any = false;
    for (uint32_t rank = 0; rank < segment->world && !any; rank++)
        any = atomic_load_explicit(&segment->ranks[rank].listens, memory_order_relaxed) != 0;
    return any;
}

void control_hear(struct control_rank *area, uint64_t step)
{
    uint64_t never = 0;
    atomic_compare_exchange_strong_explicit(&area->heard, &never, step, memory_order_relaxed,
                                            memory_order_relaxed);
}

uint64_t control_heard(const struct control_segment *segment)
{
    uint64_t step = 0;
    for (uint32_t rank = 0; rank < segment->world && step == 0; rank++)
        step = atomic_load_explicit(&segment->ranks[rank].heard, memory_order_relaxed);
    return step;
}
