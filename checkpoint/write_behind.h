/**
 * checkpoint/write_behind.h: a file from front to back, written by a thread of its own while the
 * caller makes the bytes that come next.
 *
 * Bytes are made in a buffer, CKPT_BEHIND_BYTES of them and what a little more there is room for;
 * there are a few buffers, so that neither side waits where the other is a little late. All
 * *local*, one caller at a time. Allocates nothing but in create.
 */
#ifndef CHECKPOINT_WRITE_BEHIND_H
#define CHECKPOINT_WRITE_BEHIND_H

#include "checkpoint/store.h"

enum {
    CKPT_BEHIND_BYTES = 2 << 20, /**< written at a time */
    CKPT_BEHIND_ROOM = 65 * CKPT_STORE_UNIT,
};

struct ckpt_behind;

/** Bytes that one takes. */
size_t ckpt_behind_bytes(void);

/** Starts the thread, which sleeps. ZERO_E_NOMEM (also where the system refuses a thread): *behind
 * is NULL. */
zero_result ckpt_behind_create(struct ckpt_behind **behind, struct base_error *error);

/** Looks at a whole buffer, whose first byte is the file's at `offset`, before it is written: at
 * all that was used of it. What ckpt_behind_end() writes is not looked at. In the thread. */
typedef void (*ckpt_behind_fn)(void *user, const unsigned char *buffer, uint64_t offset);

/** Begins a file, which is open for writing and stays so until ckpt_behind_end(). The one before
 * has ended. `look` may be NULL; after an error it is called no more. */
void ckpt_behind_begin(struct ckpt_behind *behind, const struct ckpt_store *store,
                       struct ckpt_file *file, ckpt_behind_fn look, void *user);

/** The buffer to be filled: CKPT_BEHIND_BYTES + CKPT_BEHIND_ROOM bytes. */
unsigned char *ckpt_behind_buffer(const struct ckpt_behind *behind);

/**
 * Hands over the first CKPT_BEHIND_BYTES of the `used` bytes in the buffer; the rest is at the
 * front of the next one, which is the buffer now. Waits while there is none. An error is the
 * store's and may be of what was handed over before: nothing of the file is written after it, and
 * this and ckpt_behind_end() return it again.
 */
zero_result ckpt_behind_write(struct ckpt_behind *behind, size_t used, struct base_error *error);

/** Waits until everything that was handed over is written. Errors as ckpt_behind_write(). */
zero_result ckpt_behind_wait(struct ckpt_behind *behind, struct base_error *error);

/** Ends the file with the first `used` bytes of the buffer, whole units; 0: without. Returns when
 * nothing is being written any more. */
zero_result ckpt_behind_end(struct ckpt_behind *behind, size_t used, struct base_error *error);

/** Ends the thread and frees it; accepts NULL. The file has ended. */
void ckpt_behind_destroy(struct ckpt_behind *behind);

#endif
