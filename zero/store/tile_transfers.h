/**
 * zero/store/tile_transfers.h: how many tiles are in memory, and on their way, at a time.
 */
#ifndef ZERO_STORE_TILE_TRANSFERS_H
#define ZERO_STORE_TILE_TRANSFERS_H

#include <stddef.h>

/** Of a pass through tiles of the default size: how large a transfer of theirs is at most
 * (offload/io.h), how many are in memory, unless host_bytes says so, and how many are being read,
 * and written, at a time. Virtual disks may tell of all they have done at once, when nothing is
 * left to do, and then wait for 0.1 to 0.2 ms. So as many as are read, and as are written, have to
 * wait for it meanwhile, read before or to be written next, and the more there are the less it
 * stands still: of what raw I/O gives one has moved 0.96 times as much with 4 of either and 16 in
 * memory, 0.98 with 8 and 32, 0.99 with 12 and 48, and no more with 15. What is in memory beyond
 * them makes up for a disk, or an update, that is slow for a while. Of the same bytes in tiles of
 * 1 MiB it has moved 0.96 times as many. */
enum { ENG_TRANSFER_BYTES = 2 << 20, ENG_TILES_IN_MEMORY = 48, ENG_TILES_UNDER_WAY = 12 };

/** The same of tiles of another size: of larger ones as many bytes in memory, but 16 tiles at
 * least, and as many transfers under way; of smaller ones, which are for who has little memory, 32
 * tiles and 8 of either. More of these would not make up for their size: 64 KiB tiles were 0.6
 * times as fast as 256 KiB ones with 4 of either and with 12. */
size_t eng_tiles_in_memory(size_t tile_bytes);
unsigned eng_transfers_under_way(size_t tile_bytes);

#endif
