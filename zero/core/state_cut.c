#include "zero/core/state_cut.h"

zero_result eng_state_cut(const zero_ctx *z, const struct eng_placement *placement,
                          struct eng_tiles *tiles, struct base_error *error)
{
    return eng_tiles_make(tiles, &z->layout, placement, z->config.moment_dtype,
                          (size_t)z->config.tile_bytes, eng_config_tiles_in_group(&z->config),
                          error);
}
