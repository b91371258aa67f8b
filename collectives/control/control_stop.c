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

void control_insist(struct control_segment *segment)
{
    atomic_store_explicit(&segment->insists, 1, memory_order_relaxed);
}

bool control_insists(const struct control_segment *segment)
{
    return segment && atomic_load_explicit(&segment->insists, memory_order_relaxed) != 0;
}

void control_listen(struct control_rank *area)
{
    atomic_store_explicit(&area->listens, 1, memory_order_relaxed);
}

bool control_rank_listens(const struct control_rank *area)
{
    return atomic_load_explicit(&area->listens, memory_order_relaxed) != 0;
}

bool control_listens(const struct control_segment *segment)
{
    bool any = false;
    for (uint32_t rank = 0; rank < segment->world && !any; rank++)
        any = control_rank_listens(&segment->ranks[rank]);
    return any;
}

void control_hear(struct control_rank *area, uint64_t step)
{
    uint64_t never = 0;
    atomic_compare_exchange_strong_explicit(&area->heard, &never, step + 1, memory_order_relaxed,
                                            memory_order_relaxed);
}

bool control_rank_heard(const struct control_rank *area)
{
    return atomic_load_explicit(&area->heard, memory_order_relaxed) != 0;
}

uint64_t control_heard(const struct control_segment *segment)
{
    uint64_t step = 0;
    for (uint32_t rank = 0; rank < segment->world && step == 0; rank++)
        step = atomic_load_explicit(&segment->ranks[rank].heard, memory_order_relaxed);
    return step;
}
