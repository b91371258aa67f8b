#include "zero/core/state_cut.h"

/** Strips (zero/store/strips.h) are cut from so many tiles, or as many as have so many bytes. */
enum { GROUP_TILES = 12, GROUP_BYTES = 12 << 20 };

zero_result eng_state_cut(const zero_ctx *z, const struct eng_placement *placement,
                          struct eng_tiles *tiles, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    // Where nothing is cut into strips each tile is a group.
    const size_t bytes = (size_t)config->tile_bytes, fit = GROUP_BYTES / bytes;
    const bool strips = config->params_nvme || config->grads_nvme;
    const size_t in_group = !strips || fit == 0 ? 1 : fit < GROUP_TILES ? fit : GROUP_TILES;
    return eng_tiles_make(tiles, &z->layout, placement, config->moment_dtype, bytes, in_group,
                          error);
}
