/**
 * checkpoint/shard/write_behind.h: a file from front to back, written by threads of its own while
 * the bytes that come next are made, by several threads if need be.
 *
 * A caller takes the place of its bytes in the file, makes them in a ring of memory, and gives them
 * back. A thread writes them when all bytes before them are there. The ring is so long that neither
 * side waits where the other is a little late. All *local*. Allocates nothing but in create.
 */
#ifndef CHECKPOINT_SHARD_WRITE_BEHIND_H
#define CHECKPOINT_SHARD_WRITE_BEHIND_H

#include "checkpoint/files/ckpt_store.h"

enum {
    CKPT_WRITE_BEHIND_RING = 8 << 20,  /**< bytes that are being made, and written, at most */
    CKPT_WRITE_BEHIND_PIECE = 2 << 20, /**< written at a time */
    CKPT_WRITE_BEHIND_MOST = 33 * CKPT_STORE_UNIT, /**< taken at a time */
    CKPT_WRITE_BEHIND_PARTS = 2, /**< that are taken and not given back, at most */
};

/** Bytes of the file that are being made. */
struct ckpt_write_behind_part {
    unsigned char *memory;
    uint64_t offset;
    size_t bytes;
};

struct ckpt_write_behind;

/** Bytes that one takes. */
size_t ckpt_write_behind_bytes(void);

/** Starts the threads, which sleep. ZERO_E_NOMEM (also where the system refuses a thread): *behind
 * is NULL. */
zero_result ckpt_write_behind_create(struct ckpt_write_behind **behind, struct base_error *error);

/** Begins a file, which is open for writing and stays so until ckpt_write_behind_end() or
 * ckpt_write_behind_cancel(), one of which has ended the one before. */
void ckpt_write_behind_begin(struct ckpt_write_behind *behind, const struct ckpt_store *store,
                             struct ckpt_file *file);

/**
 * Takes the next `bytes` bytes of the file, up to CKPT_WRITE_BEHIND_MOST. Waits while there is no
 * room for them. Any thread; what is taken first comes first. An error is the store's and may be of
 * what was given back before: nothing is taken, no more of the file is written, and this and
 * ckpt_write_behind_end() return it again.
 */
zero_result ckpt_write_behind_reserve(struct ckpt_write_behind *behind, size_t bytes,
                                      struct ckpt_write_behind_part *part,
                                      struct base_error *error);

/** Gives back what was taken: its bytes are made. Any thread. */
void ckpt_write_behind_submit(struct ckpt_write_behind *behind,
                              const struct ckpt_write_behind_part *part);

/** Ends the file, which has whole units: returns when all of it is written. Errors as
 * ckpt_write_behind_reserve(). Everything has been given back. */
zero_result ckpt_write_behind_end(struct ckpt_write_behind *behind, struct base_error *error);

/** Ends it without what is not written yet. Returns when nothing is being written any more; does
 * nothing where none has begun or all have ended. */
void ckpt_write_behind_cancel(struct ckpt_write_behind *behind);

/** Ends the threads and frees it; accepts NULL. The file has ended. */
void ckpt_write_behind_destroy(struct ckpt_write_behind *behind);

#endif
