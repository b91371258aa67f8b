// Requests to stop: zero-run's, by the control segment, and the program's. They travel with the
// scalars that end a step, so that all ranks learn them after the same one.

#include "zero/engine.h"

bool eng_stop_asked(const zero_ctx *z)
{
    return atomic_load_explicit(&z->stop.asked, memory_order_relaxed) ||
           control_stopping(z->watch.segment);
}

void eng_stop_agree(zero_ctx *z)
{
    uint64_t none = 0;
    if (atomic_compare_exchange_strong_explicit(&z->stop.agreed, &none, z->step,
                                                memory_order_relaxed, memory_order_relaxed))
        base_logf(&z->log, ZERO_LOG_INFO, "core", "step %llu is the last one before a stop",
                  (unsigned long long)z->step);
}

int32_t zero_stop_requested(zero_ctx *z)
{
    if (!z || eng_in_child(z))
        return 0;
    const uint64_t step = atomic_load_explicit(&z->stop.agreed, memory_order_relaxed);
    if (z->watch.area) {
        control_listen(z->watch.area);
        if (step)
            control_hear(z->watch.area, step);
    }
    return step != 0;
}

int32_t zero_restarts(const zero_ctx *z)
{
    return z ? z->config.restarts : 0;
}

void zero_request_stop(zero_ctx *z)
{
    if (z)
        atomic_store_explicit(&z->stop.asked, 1, memory_order_relaxed);
}
