/**
 * offload/tile_queue.h: what pipeline.h and tile_io.h share: memory for tiles, and a queue that
 * moves them. Private to them. Used by one thread after create, but for the wake-ups of its `io`,
 * and for what threads that wait for that thread do, with a mutex of theirs held.
 */
#ifndef OFFLOAD_TILE_QUEUE_H
#define OFFLOAD_TILE_QUEUE_H

#include "offload/io/io.h"
#include "offload/pages.h"
#include "offload/tilefile.h"

#include <pthread.h>

enum { OFF_TILE_NAME_BYTES = 32 };

struct off_tile_queue_config {
    const struct off_io_engine *engine;
    struct off_tilefile *tilefile; /**< borrowed; NULL: asked for its memory alone */
    size_t tiles;                  /**< of the tile file */
    size_t places;     /**< for tiles in memory, each as large as the largest one's room, */
    size_t more_bytes; /**< and memory behind them */
    size_t transfer_bytes;
    const unsigned *credits; /**< of both directions */
    double timeout_s;
};

struct off_tile_queue {
    struct off_tilefile *tilefile;
    struct off_io *io;
    int file;
    struct off_pages pages;
    size_t spacing;               /**< of places */
    uint64_t timeout_ns, idle_ns; /**< how long nothing may be moved, and has not been */
    bool taking;                  /**< the thread is in off_tile_queue_take(), */
    uint64_t takes;               /**< for so many times: that mutex's */
};

/** For who waits for the queue's thread: how long it has been in one engine. */
struct off_watch {
    uint64_t takes, stuck_ns;
};

/** A tile being moved. */
struct off_tile_request {
    size_t tile, stored;                 /**< bytes that it has in the file, or will have */
    const struct off_contents *recorded; /**< what is read; NULL: the current contents */
    struct off_request request;          /**< direction, memory and user are filled in as for any */
    char name[OFF_TILE_NAME_BYTES];
};

/** Bytes of its pages, for tiles of at most `tile_bytes` bytes. Pure. */
size_t off_tile_queue_pages(const struct off_tile_queue_config *config, size_t tile_bytes);

/** What its `io` takes. Pure. */
struct off_io_memory off_tile_queue_memory(const struct off_tile_queue_config *config);

/** Errors as off_io_create() has them; destroy is in order then, too. */
zero_result off_tile_queue_create(struct off_tile_queue *queue,
                                  const struct off_tile_queue_config *config,
                                  struct base_error *error);

/** Place number `number` in memory; the one behind the last is where `more_bytes` are. */
void *off_tile_queue_place(const struct off_tile_queue *queue, size_t number);

/** Starts to read a tile's current contents, or recorded ones, or to write its next ones.
 * ZERO_E_UNSUPPORTED: it is encoded, and the caller does not `decode` it. */
zero_result off_tile_queue_submit(struct off_tile_queue *queue, struct off_tile_request *request,
                                  bool decodes, struct base_error *error);

/**
 * A request that is done; ZERO_AGAIN: none is. Waits a part of the queue's timeout for one if
 * `waits`, or for a wake-up. ZERO_E_TIMEOUT: as ZERO_AGAIN, and nothing has been moved for all of
 * it, though something is under way. The time in which the process was stopped doesn't count.
 */
zero_result off_tile_queue_take(struct off_tile_queue *queue, bool waits,
                                struct off_request **done);

/** What to say of that ZERO_E_TIMEOUT, after this failure if there was one before. */
void off_tile_queue_timed_out(const struct off_tile_queue *queue, const struct base_error *before,
                              struct base_error *failure);

/** off_tile_queue_take() with the mutex of those that wait for the thread, given back meanwhile. */
zero_result off_tile_queue_take_unlocked(struct off_tile_queue *queue, pthread_mutex_t *mutex,
                                         bool waits, struct off_request **done);

/** Waits for news (made by base_cond_init()), for a part of the queue's timeout at most; the watch
 * was all zero at first. ZERO_E_TIMEOUT: its thread has asked the engine for something, and not
 * come back for longer than all of it: so neither can it tell. */
zero_result off_tile_queue_await(const struct off_tile_queue *queue, struct off_watch *watch,
                                 pthread_cond_t *news, pthread_mutex_t *mutex);

/** What to say of that, with one of the requests under way (NULL: none is known), and of an error
 * before it. */
void off_tile_queue_stuck(const struct off_tile_queue *queue, const struct off_request *one,
                          const struct base_error *before, struct base_error *failure);

/** Waits for what the kernel has and gives the requests up: those of the thread that used it. */
void off_tile_queue_end(struct off_tile_queue *queue);

/** Frees the memory, after the end. */
void off_tile_queue_destroy(struct off_tile_queue *queue);

#endif
