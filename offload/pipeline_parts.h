/**
 * offload/pipeline_parts.h: what the files of pipeline.h share. Private to them.
 */
#ifndef OFFLOAD_PIPELINE_PARTS_H
#define OFFLOAD_PIPELINE_PARTS_H

#include "offload/pipeline.h"
#include "offload/tile_queue.h"

#include <pthread.h>

enum {
    OFF_NOWHERE = -1,
    OFF_FILLS = 2,
    OFF_FILL_BYTES = 1 << 20,
    /** For tiles that are encoded and wait, beside those that are being written: with fewer a disk
     * that tells of all it has written at once waits for encoders, which wait for these. */
    OFF_SPARES = 6,
    /** With so many there is always one on its way to or from the disk while others wait. */
    OFF_ENOUGH_BUFFERS = 8,
};

/** What a buffer is going through, in this order. */
enum off_buffer_state {
    OFF_FREE,
    OFF_READING,
    OFF_ARRIVED, /**< to be verified and decoded: a chore */
    OFF_OPENING, /**< is */
    OFF_READY,   /**< for off_pipeline_next() */
    OFF_OUT,     /**< with the caller */
    OFF_CHANGED, /**< to be encoded and summed: a chore */
    OFF_SEALING, /**< is */
    OFF_SEALED,  /**< to be written */
    OFF_WRITING,
    OFF_KEPT, /**< with the tile's newest contents */
};

struct off_buffer {
    enum off_buffer_state state;        /**< off_pipeline_set_state() changes it */
    struct off_buffer *next, *previous; /**< in the list of what waits as it does */
    unsigned char *memory;              /**< the tile */
    unsigned char *packed; /**< the tile encoded, a spare, until it is written; else NULL */
    size_t tile;
    size_t stored; /**< bytes it has in the file, or will have */
    struct off_tile_request request;
};

/** The first one has waited the longest. */
struct off_buffer_list {
    struct off_buffer *first, *last;
};

/** Who does chores. */
struct off_helper {
    struct off_pipeline *pipeline;
    void *coder; /**< the codec's state */
    pthread_t thread;
    bool started;
};

/** One pass over tiles, from begin to end. */
struct off_pass {
    bool passing; /**< it is under way */
    bool anew;    /**< nothing is read */
    const size_t *order;
    size_t count;              /**< of its tiles */
    size_t fetched;            /**< tiles that have a buffer */
    size_t taken;              /**< tiles that were given out */
    size_t reading;            /**< buffers that are read to */
    size_t most_reading;       /**< so many of them at most */
    size_t busy;               /**< buffers on their way to READY, or from CHANGED on */
    struct base_error failure; /**< its first */
};

/** Writes to the new places of a tile file, begun before a pass, whose writes wait for them. */
struct off_fills {
    struct off_request requests[OFF_FILLS]; /**< those with a user are under way */
    unsigned under_way;
    void *nothing;             /**< what they write */
    size_t tile, at;           /**< where the next one begins */
    struct base_error failure; /**< that the next pass begins with */
};

struct off_pipeline {
    struct off_tilefile *tilefile;
    const struct off_tile_codec *codec;
    bool encode, fill;
    struct off_tile_queue queue; /**< the thread's */
    size_t tiles, buffer_count;
    pthread_t thread;
    bool has_thread;
    unsigned helper_count;      /**< threads; none: the thread that reads and writes does it */
    struct off_helper *helpers; /**< at least one, for its coder */

    pthread_mutex_t mutex; /**< for all that follows */
    pthread_cond_t work;   /**< the thread's, */
    pthread_cond_t chores; /**< the helpers', */
    pthread_cond_t news;   /**< and the caller's */
    struct off_buffer *buffers;
    struct off_buffer_list free, kept; /**< room for other tiles, */
    struct off_buffer_list posted;     /**< for helpers, */
    struct off_buffer_list sealed;     /**< and to be written */
    unsigned char **spares;            /**< places that no tile uses, */
    size_t spare_count;                /**< so many */
    int *buffer_of;                    /**< each tile's, OFF_NOWHERE if none */
    struct off_pass pass;
    bool asked, stop; /**< the thread: to look what there is to do; all: to end */
    struct off_pipeline_counts counts;
    struct off_fills fills;
};

/** The thread that reads and writes; the argument is the pipeline. */
void *off_pipeline_io_thread(void *argument);

/** A thread that does chores; the argument is its struct off_helper. */
void *off_pipeline_helper(void *argument);

/** Has the thread look again; mutex held. */
void off_pipeline_wake(struct off_pipeline *pipeline);

/** Gives a buffer another state, and has it wait for what that one waits for; mutex held. */
void off_pipeline_set_state(struct off_pipeline *pipeline, struct off_buffer *buffer,
                            enum off_buffer_state state);

/** The pass has failed; mutex held. */
void off_pipeline_fail(struct off_pipeline *pipeline, const struct base_error *failure);

/** Makes a buffer free; mutex held. */
void off_pipeline_free_buffer(struct off_pipeline *pipeline, struct off_buffer *buffer);

#endif
