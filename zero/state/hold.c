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
    if (z->tier || eng_save_phase(z) != SAVE_WRITING)
        return;
    const uint64_t began = base_clock_ns();
    ckpt_saver_hold(z->save->saver);
    eng_save_count_blocked(z, began);
}

bool eng_save_has_read(const zero_ctx *z, size_t tile)
{
    const struct eng_save *save = z->save;
    if (eng_save_phase(z) != SAVE_WRITING)
        return true;
    const size_t blocks = eng_recorded_blocks(z, save->recorded, tile);
    return blocks == 0 || blocks <= ckpt_saver_passed(save->saver);
}

uint64_t eng_save_hold_tile(zero_ctx *z, size_t tile)
{
    if (eng_save_has_read(z, tile))
        return 0;
    const uint64_t began = base_clock_ns();
    ckpt_saver_await(z->save->saver, eng_recorded_blocks(z, z->save->recorded, tile));
    eng_save_count_blocked(z, began);
    return base_clock_ns() - began;
}
