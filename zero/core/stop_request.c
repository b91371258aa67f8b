// Requests to stop: zero-run's, by the control segment, signals, and the program's. They travel
// with the scalars that end a step, or a micro-batch of an evaluation, so that all ranks learn them
// at one place.

#include "zero/core/api_call.h"
#include "zero/core/stop.h"

bool eng_stop_asked(const zero_ctx *z)
{
    return atomic_load_explicit(&z->job.stop.asked, memory_order_relaxed) || eng_stop_signalled() ||
           control_stopping(z->job.watch.segment);
}

bool eng_stop_listens(const zero_ctx *z)
{
    return atomic_load_explicit(&z->job.stop.listens, memory_order_relaxed) || eng_stop_listening();
}

bool eng_stop_agreed(const zero_ctx *z)
{
    return atomic_load_explicit(&z->job.stop.agreed, memory_order_relaxed) != 0;
}

void eng_stop_agree(zero_ctx *z)
{
    uint64_t none = 0;
    if (atomic_compare_exchange_strong_explicit(&z->job.stop.agreed, &none, z->step + 1,
                                                memory_order_relaxed, memory_order_relaxed))
        base_logf(&z->config.log, ZERO_LOG_INFO, "core", "step %llu is the last one before a stop",
                  (unsigned long long)z->step);
}

static void fill_stop(const zero_ctx *z, unsigned char *mine)
{
    *mine = eng_stop_asked(z);
}

static zero_result hear_stop(zero_ctx *z, const unsigned char *all, size_t stride)
{
    z->job.stop.heard = false;
    for (int rank = 0; rank < z->config.world; rank++)
        z->job.stop.heard = z->job.stop.heard || all[(size_t)rank * stride];
    return ZERO_OK;
}

const struct eng_exchange_part eng_stop_part = {
    .name = "stop",
    .kinds = ENG_EXCHANGE_STEP | ENG_EXCHANGE_EARLY,
    .bytes = 1,
    .fill = fill_stop,
    .hear = hear_stop,
};

void eng_stop_step_ended(zero_ctx *z)
{
    if (z->job.stop.heard)
        eng_stop_agree(z);
}

int32_t zero_stop_requested(zero_ctx *z)
{
    if (!z || eng_in_child(z))
        return 0;
    // A program that asks listens to signals too.
    if (!atomic_exchange_explicit(&z->job.stop.listens, 1, memory_order_relaxed))
        eng_stop_listen();
    const uint64_t agreed = atomic_load_explicit(&z->job.stop.agreed, memory_order_relaxed);
    if (z->job.watch.area) {
        control_listen(z->job.watch.area);
        if (agreed)
            control_hear(z->job.watch.area, agreed - 1);
    }
    return agreed != 0;
}

int32_t zero_restarts(const zero_ctx *z)
{
    return z ? z->config.restarts : 0;
}

void zero_request_stop(zero_ctx *z)
{
    if (z)
        atomic_store_explicit(&z->job.stop.asked, 1, memory_order_relaxed);
}
