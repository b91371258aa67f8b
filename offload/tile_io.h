/**
 * offload/tile_io.h: single tiles of a file (offload/tilefile.h), moved in any order and at any
 * time behind the caller's back: what a pass (offload/pipeline.h) is too orderly for.
 *
 * A move reads one tile, verifies it and gives its contents away, or has them given and writes
 * them. One thread does it all, in buffers of its own, so that nothing of the caller's has to be
 * aligned or known to an engine:
 *
 *     start -> (other work) -> wait, or done       any number at a time, of different tiles
 *
 * What is written goes to the tile's next place: in place it is current once the move is done,
 * else with the next off_tilefile_record(). All *local*, one thread at a time; after create nothing
 * is allocated. While moves are under way the tile file's functions about their tiles are the tile
 * I/O's.
 */
#ifndef OFFLOAD_TILE_IO_H
#define OFFLOAD_TILE_IO_H

#include "offload/io/io.h"
#include "offload/pages.h"
#include "offload/pipeline.h"
#include "offload/tilefile.h"

struct off_tile_io;

struct off_tile_io_config {
    const struct off_io_engine *engine;
    struct off_tilefile *tilefile; /**< borrowed until destroy */
    size_t tiles;                  /**< of the tile file */
    size_t buffers;                /**< tiles under way at a time, at least 1 */
    size_t transfer_bytes;         /**< as of off_io_config, and 0 likewise */
    unsigned credits[OFF_DIRECTIONS];
    double timeout_s; /**< the longest that nothing may be moved while something is to be */
};

/**
 * Called once for each move, in the tile I/O's thread. For a read it takes the tile's contents,
 * which have been verified, or the `recorded` ones, which have not. For a write it provides them,
 * all off_tilefile_tile_bytes() bytes. Touches nothing else that others may be at, and calls
 * nothing of the tile I/O. Not called for a move that fails before.
 */
typedef void (*off_tile_fn)(void *user, size_t tile, void *contents);

/** One tile on its way. The caller's, all zero at first. The caller fills in the first part, and
 * leaves all of it alone from start until it is done. Then it may start it again, or forget it. */
struct off_tile_op {
    enum off_direction direction;
    size_t tile;
    off_tile_fn exchange;
    void *user;
    /** What a read is to get instead of the tile's current contents, as it is stored: encoded, if
     * it is. The tile file may write the tile anew meanwhile. NULL: the current ones.
     */
    const struct off_contents *recorded;
    struct base_error *failure; /**< where a failure of this move goes, which is no other's then,
                                     unless nothing comes back; NULL: it is every later move's */

    bool under_way, failed;   /**< the tile I/O's, */
    struct off_tile_op *next; /**< and its list */
};

/** What moves have done so far. */
struct off_tile_io_counts {
    struct off_io_counts io;
    uint64_t moves[OFF_DIRECTIONS];    /**< that are done, */
    uint64_t contents[OFF_DIRECTIONS]; /**< and bytes of their tiles */
    double waited_s;                   /**< in off_tile_io_wait() */
};

/** What tile I/O with this config takes, as a pipeline does, whose tile file need not be there, for
 * tiles of at most `tile_bytes` bytes. Pure. */
struct off_pipeline_memory off_tile_io_memory(const struct off_tile_io_config *config,
                                              size_t tile_bytes);

/** ZERO_E_INVALID, ZERO_E_NOMEM, ZERO_E_UNSUPPORTED, ZERO_E_LIMIT as of off_io_create(): *tile_io
 * is NULL. */
zero_result off_tile_io_create(struct off_tile_io **tile_io,
                               const struct off_tile_io_config *config, struct base_error *error);

/**
 * Starts a move. Never waits: what there is no buffer for yet begins later, in the order of the
 * starts. Two moves of one tile at a time, and a read of a tile without contents
 * (off_tilefile_has_contents()) are the caller's mistakes: ZERO_E_STATE, told by
 * off_tile_io_wait().
 */
void off_tile_io_start(struct off_tile_io *tile_io, struct off_tile_op *op);

/**
 * Waits until a move is done. ZERO_E_IO; ZERO_E_CORRUPT: the contents are not what was written, or
 * are encoded; ZERO_E_TIMEOUT: nothing has been moved for timeout_s. After the first failure that
 * is no move's own every later move fails with it, and those that had not begun, and a timeout
 * takes the place of an earlier failure and has its message. A tile whose write has failed has no
 * contents to rely on: in place they are neither the old ones nor the new, and a read says so
 * unless `unchecked`. A move that was never started gives ZERO_OK.
 */
zero_result off_tile_io_wait(struct off_tile_io *tile_io, struct off_tile_op *op,
                             struct base_error *error);

/** Whether off_tile_io_wait() would return at once, with whatever it has to say. */
bool off_tile_io_done(struct off_tile_io *tile_io, const struct off_tile_op *op);

struct off_tile_io_counts off_tile_io_counts(const struct off_tile_io *tile_io);

/** The memory it uses, as it was got. */
const struct off_pages *off_tile_io_pages(const struct off_tile_io *tile_io);

/** The engine it uses. The tile I/O's. */
const struct off_io_use *off_tile_io_io(const struct off_tile_io *tile_io);

/** Nothing is exchanged from here on, nor begun: no caller gets what is under way. *Local*; accepts
 * NULL. Only destroy follows. */
void off_tile_io_stop(struct off_tile_io *tile_io);

/** Gives up what has not begun, waits for what the kernel has, ends the thread and frees
 * everything; accepts NULL. Moves that were not waited for are done in the sense that no thread
 * touches them any more. */
void off_tile_io_destroy(struct off_tile_io *tile_io);

#endif
