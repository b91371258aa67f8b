/**
 * zero/store/tile_transfers.h: how many tiles are in memory, and on their way, at a time.
 */
#ifndef ZERO_STORE_TILE_TRANSFERS_H
#define ZERO_STORE_TILE_TRANSFERS_H

#include <stddef.h>

/** For a pass through tiles of the default size: the most bytes of a transfer (offload/io/io.h),
 * the tiles in memory, unless host_bytes says so, and the tiles being read, and written, at a time.
 * Virtual disks may report everything they have done at once, when nothing is left to do, and then
 * wait for 0.1 to 0.2 ms. So for every tile that is read or written another one has to wait, read
 * before or to be written next. The more there are, the less the disk stands still. One disk has
 * moved 0.96 times as much as raw I/O with 4 of either and 16 in memory, 0.98 with 8 and 32, 0.99
 * with 12 and 48, and no more with 15. Further tiles in memory make up for a disk, or an update,
 * that is slow for a while. In tiles of 1 MiB that disk has moved 0.96 times as many bytes. */
enum { ENG_TRANSFER_BYTES = 2 << 20, ENG_TILES_IN_MEMORY = 48, ENG_TILES_UNDER_WAY = 12 };

/** These numbers for tiles of another size. Larger tiles have as many bytes in memory, but 16 tiles
 * at least, and as many transfers under way. Smaller tiles, which are for machines with little
 * memory, are 32, with 8 of either under way. More of them would not make up for their size: 64 KiB
 * tiles were 0.6 times as fast as 256 KiB ones with 4 of either and with 12. */
size_t eng_tiles_in_memory(size_t tile_bytes);
unsigned eng_transfers_under_way(size_t tile_bytes);

#endif
