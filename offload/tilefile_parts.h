/**
 * offload/tilefile_parts.h: what the files of tilefile.h share: the record as it is in the file,
 * and the tile file in memory. Private to them.
 */
#ifndef OFFLOAD_TILEFILE_PARTS_H
#define OFFLOAD_TILEFILE_PARTS_H

#include "offload/tilefile.h"

enum { OFF_TILEFILE_PLACES = 2, OFF_TILEFILE_RECORDS = 2, OFF_TILEFILE_PAGE = 4096 };

/** What a record begins with. */
#define OFF_TILEFILE_MAGIC "zeroslot"
enum { OFF_TILEFILE_FORMAT = 2 };

/** A record begins with it; the payload and an entry for each tile follow. */
struct off_record_head {
    char magic[8];
    uint32_t format;
    uint32_t tiles;
    uint64_t identity[2];
    uint64_t shape;    /**< hash of the sizes of tiles and payload */
    uint64_t sequence; /**< counts records */
    uint64_t step;
    uint64_t payload_bytes;
    uint64_t checksum; /**< of the whole record, with 0 here */
};

struct off_record_entry {
    uint64_t checksum; /**< of what is stored, */
    uint64_t stored;   /**< so many bytes: the tile's, or fewer */
    uint32_t place;
    uint32_t has;
};

/** What is known of a tile: what was recorded last, and what the next record will say. */
struct off_tile_state {
    uint64_t offset; /**< of its first place */
    size_t bytes, room;
    bool filled; /**< its second place has been written to */
    struct off_record_entry now, next;
};

struct off_tilefile {
    struct off_direct_file file;
    uint64_t file_bytes;
    bool created, durable, in_place, unchecked;
    pid_t process; /**< that opened it */
    bool (*counts)(uint64_t step);
    struct off_blocking_calls *blocking_calls; /**< they read and write; NULL: the caller does */
    uint64_t identity[2], shape;
    size_t tile_count;
    struct off_tile_state *tiles;
    size_t payload_bytes, record_bytes; /**< of the largest payload; of a record's room */
    unsigned char *record;              /**< one, to be read or written */
    int current;                        /**< record whose tiles are; -1: none */
    uint64_t sequence;                  /**< its */
    bool current_counts, older_whole;   /**< whether it does; and the other one is, its tiles too */
    struct off_found_record {
        int number;
        uint64_t sequence, step;
    } found[OFF_TILEFILE_RECORDS]; /**< when the file was opened; newest first */
    int found_count;
    uint64_t torn[OFF_TILEFILE_RECORDS]; /**< offsets of what was no whole record then */
    int torn_count;
};

/** The next multiple of a page. */
static inline size_t off_tilefile_round_up(size_t bytes)
{
    return (bytes + OFF_TILEFILE_PAGE - 1) / OFF_TILEFILE_PAGE * OFF_TILEFILE_PAGE;
}

/** Whether a record of this step would be come back to. */
bool off_tilefile_step_counts(const struct off_tilefile *tilefile, uint64_t step);

/** Reads both records of a file that was just opened, and finds the newest whole one. */
zero_result off_tilefile_find_records(struct off_tilefile *tilefile, struct base_error *error);

#endif
