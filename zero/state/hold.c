// What a save makes changes of the state wait for.

#include "zero/state/save_parts.h"

#include "base/clock.h"

void eng_save_count_blocked(zero_ctx *z, uint64_t began_ns)
{
    atomic_fetch_add_explicit(&z->save_status.blocked_ns, base_clock_ns() - began_ns,
                              memory_order_relaxed);
}

void eng_save_hold(zero_ctx *z)
{
    if (eng_save_phase(z) != SAVE_WRITING || eng_recorded_stays(z, z->save->recorded))
        return;
    const uint64_t began = base_clock_ns();
    ckpt_saver_hold(z->save->saver);
    eng_save_count_blocked(z, began);
}
