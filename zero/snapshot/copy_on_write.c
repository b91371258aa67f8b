// What a save makes changes of the state wait for.

#include "zero/snapshot/save_parts.h"
#include "zero/snapshot/save_state.h"

#include "base/clock.h"

#include <assert.h>

static void hold(zero_ctx *z)
{
    if (z->store->records->kept || eng_save_phase(z) != SAVE_WRITING)
        return;
    const uint64_t began = base_clock_ns();
    ckpt_saver_before_change(z->saving.save->saver);
    eng_save_count_blocked(z, began);
}

/** How many blocks a save must have read before the tile is given back; 0: none, or it has. */
static size_t awaited(const zero_ctx *z, size_t tile)
{
    const struct eng_save *save = z->saving.save;
    assert(z->store->records->kept);
    if (eng_save_phase(z) != SAVE_WRITING)
        return 0;
    const size_t blocks = z->store->snapshot->blocks_before(z, save->snapshot, tile);
    return blocks > ckpt_saver_blocks_read(save->saver) ? blocks : 0;
}

static bool has_read(const zero_ctx *z, size_t tile)
{
    return awaited(z, tile) == 0;
}

static uint64_t hold_tile(zero_ctx *z, size_t tile)
{
    const size_t blocks = awaited(z, tile);
    if (blocks == 0)
        return 0;
    const uint64_t began = base_clock_ns();
    ckpt_saver_wait_for_blocks(z->saving.save->saver, blocks);
    return eng_save_count_blocked(z, began);
}

const struct eng_overwrite_guard eng_save_guard = {
    .all = hold,
    .tile = hold_tile,
    .tile_is_free = has_read,
};
