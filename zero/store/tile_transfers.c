#include "zero/store/tile_transfers.h"

/** Numbers for tiles that are smaller than the default size, and the least for larger ones. */
enum { SMALL_IN_MEMORY = 32, SMALL_UNDER_WAY = 8, LARGE_IN_MEMORY = 16 };

size_t eng_tiles_in_memory(size_t tile_bytes)
{
    const size_t fit = (size_t)ENG_TILES_IN_MEMORY * ENG_TRANSFER_BYTES / tile_bytes;
    if (tile_bytes < ENG_TRANSFER_BYTES)
        return SMALL_IN_MEMORY;
    return fit > LARGE_IN_MEMORY ? fit : LARGE_IN_MEMORY;
}

unsigned eng_transfers_under_way(size_t tile_bytes)
{
    return tile_bytes < ENG_TRANSFER_BYTES ? SMALL_UNDER_WAY : ENG_TILES_UNDER_WAY;
}
