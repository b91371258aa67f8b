/**
 * offload/io/io_parts.h: the queue of io.h, which io.c makes and io_requests.c works.
 */
#ifndef OFFLOAD_IO_IO_PARTS_H
#define OFFLOAD_IO_IO_PARTS_H

#include "offload/io/io_engine.h"

struct off_io_file {
    int fd;
    size_t unit;
    const char *path;
};

/** Repetitions of something that comes to nothing. */
struct off_io_patience {
    unsigned fruitless; /**< repetitions since it last came to anything */
    uint64_t since;     /**< the time of the first of them */
};

/** A part of a request that is under way; what has been moved of it is cut off at its front. */
struct off_io_part {
    struct off_request *request;
    struct off_transfer transfer;
    struct off_io_patience patience;
    uint64_t number; /**< in the order in which parts were handed out */
};

struct off_io_list {
    struct off_request *first, *last;
};

struct off_io {
    struct off_io_use use;
    void *state; /**< the engine's */
    size_t transfer_bytes;
    struct off_range ranges[OFF_MAX_RANGES];
    size_t range_count;
    struct off_io_file files[OFF_MAX_FILES];
    int file_count;
    unsigned credits[OFF_DIRECTIONS];   /**< where both have something to do */
    unsigned under_way[OFF_DIRECTIONS]; /**< parts */
    unsigned depth;                     /**< of parts */
    unsigned spare_count;               /**< parts that are not under way */
    unsigned *spare;
    struct off_io_part *parts;
    struct off_io_list waiting[OFF_DIRECTIONS]; /**< not all of it handed out yet */
    struct off_io_list done;
    size_t pending;
    uint64_t handed; /**< parts so far */
    bool uncommitted;
    struct off_io_patience beginning; /**< of what the engine is asked to begin */
    bool hurried;                     /**< some part has been repeated in haste */
    struct base_error broken;         /**< set: the engine is */
    struct off_io_counts counts;
};

#endif
