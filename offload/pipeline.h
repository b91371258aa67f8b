/**
 * offload/pipeline.h: passes over the tiles of a file (offload/tilefile.h): read, change, write,
 * all three at a time.
 *
 * One thread reads ahead in the order of the pass and writes back, helpers verify and sum, decode
 * and encode, while the caller works on tiles one after the other. A pass:
 *
 *     begin -> next -> (work) -> put ... -> end
 *
 * What a pass leaves in memory is where the next one begins, if that goes the other way: so steps
 * alternate. Written tiles are not current before off_tilefile_record(). All *local*, one thread at
 * a time; after create nothing is allocated.
 *
 * With a codec tiles that gain a page by it lie encoded in the file, and only what they have there
 * is moved. Each tile in the file says itself whether it is encoded: encoding can be begun and
 * ended any time. A tile changes places in memory with the bytes that it is decoded from. It
 * borrows a place for the bytes that it is encoded to, until they are written. So a codec takes
 * some places more than there are buffers, but not twice as many.
 *
 * With fewer than 8 tiles in flight reads and writes wait for each other now and then, because
 * completions come in no order. 2 buffers reach 0.87 of the bandwidth, 8 reach 0.995.
 */
#ifndef OFFLOAD_PIPELINE_H
#define OFFLOAD_PIPELINE_H

#include "offload/io/io.h"
#include "offload/pages.h"
#include "offload/tile_codec.h"
#include "offload/tilefile.h"

struct off_pipeline;

struct off_pipeline_config {
    const struct off_io_engine *engine;
    struct off_tilefile *tilefile;    /**< borrowed until destroy */
    size_t tiles;                     /**< of the tile file */
    size_t buffers;                   /**< tiles in memory, at least 2 */
    size_t transfer_bytes;            /**< as of off_io_config, and 0 likewise */
    unsigned credits[OFF_DIRECTIONS]; /**< transfers, of which a larger tile is several */
    double timeout_s;                 /**< the longest a transfer may take */
    /** Threads that verify, sum, decode and encode; 0: the one that reads and writes does, and the
     * disk waits meanwhile. One keeps up with 10 GB/s without a codec. */
    unsigned helpers;
    const struct off_tile_codec *codec; /**< NULL: none */
    const void *codec_user;             /**< its functions' argument */
    bool encode; /**< tiles that are written, until off_pipeline_encode() says something else: there
                      is room for it; those read are decoded anyway */
    /** Between passes, writes to the second places of a new file, which otherwise the second pass
     * would be the first to write to, and three times as slow. A failure is the next pass's. */
    bool fill;
};

/** A tile in memory. */
struct off_tile {
    size_t number;
    void *memory; /**< off_tilefile_tile_bytes() bytes, at a multiple of 4,096 */
};

/** What passes have done so far. */
struct off_pipeline_counts {
    struct off_io_counts io;
    uint64_t contents[OFF_DIRECTIONS]; /**< bytes of tiles that were read and written: decoded */
    uint64_t found;                    /**< tiles that were still in memory */
    uint64_t filled;                   /**< bytes of places that were written to for later */
    double waited_s; /**< for tiles, in off_pipeline_next(), and for the last writes */
};

/** What a pipeline takes. */
struct off_pipeline_memory {
    size_t buffers; /**< bytes for tiles: off_pipeline_pages() */
    size_t tables;  /**< of small structures, those of engine and codec included */
    size_t threads; /**< threads, the engine's included */
};

/** What a pipeline with this config takes, whose tile file need not be there, for tiles of at most
 * `tile_bytes` bytes. Pure. */
struct off_pipeline_memory off_pipeline_memory(const struct off_pipeline_config *config,
                                               size_t tile_bytes);

/** ZERO_E_INVALID, ZERO_E_NOMEM, ZERO_E_UNSUPPORTED, ZERO_E_LIMIT as of off_io_create(): *pipeline
 * is NULL. */
zero_result off_pipeline_create(struct off_pipeline **pipeline,
                                const struct off_pipeline_config *config, struct base_error *error);

/** Begins a pass over `count` tiles, each at most once; `order` is borrowed until its end. */
void off_pipeline_begin(struct off_pipeline *pipeline, const size_t *order, size_t count);

/** Begins a pass over tiles whose contents are all replaced: nothing is read, and the memory of
 * each is uninitialised. */
void off_pipeline_begin_anew(struct off_pipeline *pipeline, const size_t *order, size_t count);

/**
 * The next tile of the pass, with its current contents; of one that has none yet
 * (off_tilefile_has_contents()) the memory is uninitialised. Several may be out, fewer than there
 * are buffers. ZERO_NOT_FOUND (no message): that was the last. ZERO_E_IO, ZERO_E_CORRUPT;
 * ZERO_E_TIMEOUT: nothing has moved for timeout_s. After an error only end.
 */
zero_result off_pipeline_next(struct off_pipeline *pipeline, struct off_tile *tile,
                              struct base_error *error);

/** Whether off_pipeline_next() would return at once, with whatever result. */
bool off_pipeline_ready(struct off_pipeline *pipeline);

/** Gives a tile back: is written to its next place if it was `changed`. */
void off_pipeline_put(struct off_pipeline *pipeline, const struct off_tile *tile, bool changed);

/**
 * Ends the pass when all is written. On an error, the first of the pass, off_tilefile_abandon() is
 * in order, and nothing is kept in memory. Nothing of it is under way afterwards, but for a
 * ZERO_E_TIMEOUT, which takes the place of an earlier error and has its message, and after which
 * only destroy helps, which waits.
 */
zero_result off_pipeline_end(struct off_pipeline *pipeline, struct base_error *error);

/** Whether tiles are written encoded from here on, only if the config's `encode` was set. At any
 * time. */
void off_pipeline_encode(struct off_pipeline *pipeline, bool encode);

/** Forgets what is in memory: the tile file came back to other contents. Between passes. */
void off_pipeline_forget(struct off_pipeline *pipeline);

struct off_pipeline_counts off_pipeline_counts(const struct off_pipeline *pipeline);

/** The memory it uses, as it was got. */
const struct off_pages *off_pipeline_pages(const struct off_pipeline *pipeline);

/** The engine it uses. The pipeline's. */
const struct off_io_use *off_pipeline_io(const struct off_pipeline *pipeline);

/** Ends the thread and frees everything; accepts NULL. */
void off_pipeline_destroy(struct off_pipeline *pipeline);

#endif
