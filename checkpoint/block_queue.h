/**
 * checkpoint/block_queue.h: blocks on their way into a shard. Several threads encode them, they are
 * placed in order, and those that the program is about to change are copied first.
 *
 * Blocks are numbered through all sources, in the order in which they are written. Encoding goes
 * upwards and reads blocks in place; ckpt_block_queue_copy() goes downwards and copies them. Where
 * they meet, nothing is left to read from the program's memory.
 */
#ifndef CHECKPOINT_BLOCK_QUEUE_H
#define CHECKPOINT_BLOCK_QUEUE_H

#include "base/arena.h"
#include "checkpoint/saver.h"

#include <pthread.h>

/** A thread that encodes waits for no earlier block: there is another codec to go on with. */
enum { CKPT_QUEUE_CODECS = 3 };

enum ckpt_job_stage { CKPT_JOB_FREE, CKPT_JOB_BUSY, CKPT_JOB_ENCODED };

/** A block that is encoded, or waits for its place. */
struct ckpt_block_job {
    struct ckpt_block_codec *codec;
    enum ckpt_job_stage stage;
    size_t block;
    bool in_place; /**< it is read from the program's memory */
    struct ckpt_shard_part part;
};

struct ckpt_block_queue {
    const struct ckpt_saver_config *config;
    struct ckpt_block_job jobs[CKPT_QUEUE_CODECS];
    struct ckpt_shard_writer *writer;
    size_t *first_block; /**< of each source, and the end */
    size_t *copy_at;     /**< of each block from `copied` on: where its copy is in `copies` */
    struct base_arena copies;

    pthread_mutex_t mutex; /**< protects all below */
    pthread_cond_t moved;
    size_t next;    /**< the first block that no thread reads or has read */
    size_t placed;  /**< the first block that has no place in the shard */
    bool placing;   /**< block `placed` is about to get one */
    unsigned idle;  /**< threads that would encode and find nothing to do */
    size_t copied;  /**< the first block that is a copy */
    size_t room;    /**< bytes of `copies` that are used */
    bool copying;   /**< block `copied` is on its way to its copy */
    size_t awaited; /**< a caller waits until so many blocks are read; SIZE_MAX: none waits */
    bool open;      /**< blocks can be encoded */
    bool spare;     /**< there is a processor besides the thread's */
    bool cancelled;
    struct base_error error; /**< the saver thread's first one */
    struct base_error lost;  /**< the first one of a copy */
};

/** Bytes of a queue's memory. *Local*, pure. */
size_t ckpt_block_queue_bytes(const struct ckpt_saver_load *load, int level, size_t budget);

/** Allocates a queue of zero bytes. ckpt_block_queue_free() follows, also after an error. */
zero_result ckpt_block_queue_init(struct ckpt_block_queue *queue,
                                  const struct ckpt_saver_config *config, struct base_error *error);

void ckpt_block_queue_free(struct ckpt_block_queue *queue);

/** The number of blocks. */
size_t ckpt_block_queue_count(const struct ckpt_block_queue *queue);

/** Nothing is encoded or copied yet. No thread uses the queue. */
void ckpt_block_queue_begin(struct ckpt_block_queue *queue);

/** Encodes all blocks and places them, with other threads' help. ZERO_AGAIN: it was cancelled. */
zero_result ckpt_block_queue_write(struct ckpt_block_queue *queue);

/** The program's memory is needed no more: threads that wait go on. With the mutex held. */
void ckpt_block_queue_end(struct ckpt_block_queue *queue);

/** How many blocks, from the first on, are not read from the program's memory any more. With the
 * mutex held. */
size_t ckpt_block_queue_passed(const struct ckpt_block_queue *queue);

/** Copies unread blocks, the last one first, as far as there is room. With the mutex held, which it
 * gives up meanwhile. */
void ckpt_block_queue_copy(struct ckpt_block_queue *queue);

/** Waits until so many blocks are passed. With the mutex held. */
void ckpt_block_queue_await(struct ckpt_block_queue *queue, size_t blocks);

/** Encodes or places a block where a processor is to spare, or waits until something has moved.
 * With the mutex held. */
void ckpt_block_queue_help(struct ckpt_block_queue *queue);

#endif
