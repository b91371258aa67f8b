/**
 * checkpoint/saver.h: writes a rank's shard behind the program's back, while the program only reads
 * the memory it is written from.
 *
 * One thread encodes, block by block, in the shard's order, straight from the state in memory; who
 * waits for it encodes beside it. Before the state changes, ckpt_saver_before_change() copies what
 * has not been read yet into a fixed budget, and waits beyond it. What is written depends on none
 * of this. All *local*; but for ckpt_saver_state() one thread at a time.
 *
 * Some state changes piece by piece, and the saver copies nothing of it. There
 * ckpt_saver_wait_for_blocks() waits until the saver has read that piece.
 *
 *     create                                     once
 *     start -> hold, or await (before any change) -> state: CKPT_SAVE_DURABLE    a checkpoint
 *     [rank 0: run(commit) -> state: CKPT_SAVE_DONE]
 *     destroy
 */
#ifndef CHECKPOINT_SAVER_H
#define CHECKPOINT_SAVER_H

#include "checkpoint/directory/directory.h"
#include "checkpoint/shard/shard.h"

#include <stdatomic.h>

/** Blobs of one shard, at most. */
enum { CKPT_MAX_BLOBS = 64 };

enum ckpt_save_state {
    CKPT_SAVE_IDLE,
    CKPT_SAVE_WRITING,
    CKPT_SAVE_DURABLE, /**< the shard is written and flushed */
    CKPT_SAVE_RUNNING, /**< ckpt_saver_run()'s function is under way, */
    CKPT_SAVE_DONE,    /**< and has returned */
    CKPT_SAVE_FAILED,  /**< see ckpt_saver_error() */
};

/** A run of a slice in memory. */
struct ckpt_source {
    struct ckpt_run run;
    /** Its first element; with `fetch`: what that makes of it. */
    const void *field[CKPT_MAX_FIELDS];
    struct ckpt_block_code code[CKPT_MAX_FIELDS];
    int fields;
};

/** Sees the elements of a block of a source while it is encoded: for the fingerprint. Each once, in
 * no order, in the saver's thread and in who waits, also in both at a time. */
typedef void (*ckpt_observe_fn)(void *user, const struct ckpt_source *source, int field,
                                uint64_t first, size_t count, const void *elements);

/** Gives elements of a source that are not in memory: *elements, at least until the next call. If
 * `copy` has begun to copy them *elements is where to: then this only waits until they are there.
 * In the saver's thread. */
typedef zero_result (*ckpt_fetch_fn)(void *user, const struct ckpt_source *source, int field,
                                     uint64_t first, size_t count, const void **elements,
                                     struct base_error *error);

/** Begins to copy elements of a source that are not in memory: what the caller of
 * ckpt_saver_before_change() has them changed by comes behind it. In ckpt_saver_before_change(). */
typedef zero_result (*ckpt_copy_fn)(void *user, const struct ckpt_source *source, int field,
                                    uint64_t first, size_t count, void *to,
                                    struct base_error *error);

/** How much there is to write. */
struct ckpt_saver_load {
    size_t sources;
    size_t blocks;     /**< of all sources' fields */
    uint64_t bytes;    /**< of their elements */
    size_t blobs;      /**< at most so many, */
    size_t blob_bytes; /**< of so many bytes together */
};

struct ckpt_saver_config {
    const struct ckpt_store *store;
    int level;
    size_t budget;                     /**< bytes for copies */
    const struct ckpt_source *sources; /**< all there are: borrowed, constant */
    struct ckpt_saver_load load;       /**< how much that is */
    ckpt_observe_fn seen;              /**< may be NULL */
    void *seen_user;
    ckpt_fetch_fn fetch; /**< NULL: all sources are in memory. Else none is, and only this and
                              `copy` touch them */
    ckpt_copy_fn copy;   /**< NULL, where there is `fetch`: budget is 0, and
                            ckpt_saver_before_change() waits   until all of them have been fetched */
    void *fetch_user;
    _Atomic uint64_t *progress; /**< bytes of elements read so far are kept here */
};

struct ckpt_saver;

/** Bytes that a saver takes with this level and budget. *Local*, pure. */
size_t ckpt_saver_bytes(const struct ckpt_saver_load *load, int level, size_t budget);

/** Allocates everything and starts the thread, which sleeps. ZERO_E_NOMEM (also where the system
 * refuses a thread): *saver is NULL. */
zero_result ckpt_saver_create(struct ckpt_saver **saver, const struct ckpt_saver_config *config,
                              struct base_error *error);

/** A blob: copied by ckpt_saver_start(). */
struct ckpt_blob_source {
    uint32_t number;
    const void *bytes;
    size_t size;
};

/** Which shard goes where. */
struct ckpt_target {
    struct ckpt_shard_id id;
    const char *path; /**< the directory; borrowed until the shard is durable */
};

/** The memory of the budget, of which there is no more than there is to copy; *bytes: of it. For
 * who gets it ready for `copy`, and takes that back before the saver is destroyed. */
void *ckpt_saver_copy_buffer(const struct ckpt_saver *saver, size_t *bytes);

/** Starts to write. Not in state WRITING or RUNNING; WRITING afterwards. Allocates nothing.
 * ZERO_E_LIMIT: more blobs, or bytes of them, than there is room for; nothing has changed. */
zero_result ckpt_saver_start(struct ckpt_saver *saver, const struct ckpt_target *target,
                             const struct ckpt_blob_source *blobs, size_t blob_count,
                             struct base_error *error);

/** Returns when the sources' memory is needed no more, to be called before it changes. Does
 * nothing where nothing is being written. Allocates nothing. Waits as ckpt_saver_wait(). */
void ckpt_saver_before_change(struct ckpt_saver *saver);

/** How many blocks, from the first on, are read no more: their number where nothing is being
 * written. Blocks are numbered through the sources, in each as FORMAT.md has them. */
size_t ckpt_saver_blocks_read(struct ckpt_saver *saver);

/** Returns when so many are, or the save has failed. Waits as ckpt_saver_wait(). */
void ckpt_saver_wait_for_blocks(struct ckpt_saver *saver, size_t blocks);

/** Any thread; one atomic load. What led to it is visible to who has read it. */
enum ckpt_save_state ckpt_saver_state(const struct ckpt_saver *saver);

/** What has become of the shard, from DURABLE on; without runs. */
const struct ckpt_shard_entry *ckpt_saver_entry(const struct ckpt_saver *saver);

/** The failure, in state FAILED. */
const struct base_error *ckpt_saver_error(const struct ckpt_saver *saver);

/** Has the saver's thread do something: the commit. State DURABLE before; DONE afterwards, FAILED
 * if it returns an error. */
void ckpt_saver_run(struct ckpt_saver *saver,
                    zero_result (*work)(void *user, struct base_error *error), void *user);

/** Waits until the state is not WRITING or RUNNING. Where there is a second processor, and no
 * `fetch`, the caller encodes blocks meanwhile. */
void ckpt_saver_wait(struct ckpt_saver *saver);

/** Gives up what is being written as soon as may be: IDLE afterwards. */
void ckpt_saver_cancel(struct ckpt_saver *saver);

/** Ends the thread and frees everything; accepts NULL. What is being written is given up. */
void ckpt_saver_destroy(struct ckpt_saver *saver);

#endif
