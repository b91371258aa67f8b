/**
 * zero/store/device_snapshot.h: state that lives on a device, for the thread that writes a
 * checkpoint behind the next steps. What it has not fetched when the state is about to change is
 * copied to a room of pinned memory first: the change is work behind the copies, and nobody waits
 * for them but the thread.
 */
#ifndef ZERO_STORE_DEVICE_SNAPSHOT_H
#define ZERO_STORE_DEVICE_SNAPSHOT_H

#include "checkpoint/saver.h"
#include "zero/zero.h"

struct eng_fetch;

/** NULL where state is not on a device, or in files. ZERO_E_NOMEM, ZERO_E_DEVICE. */
zero_result eng_fetch_make(const zero_ctx *z, struct eng_fetch **fetch, struct base_error *error);
/** When the thread has ended, and there is no room; accepts NULL. */
void eng_fetch_free(const zero_ctx *z, struct eng_fetch *fetch);
/** Bytes that it takes, beside the room; 0 where there is nothing to fetch. */
size_t eng_fetch_bytes(const zero_ctx *z);

/** Gets memory ready for copies. ZERO_E_DEVICE. */
zero_result eng_fetch_room(const zero_ctx *z, struct eng_fetch *fetch, void *memory, size_t bytes,
                           struct base_error *error);
/** Waits for copies that are under way, and gives the room back, if there is one; accepts NULL. */
void eng_fetch_leave_room(const zero_ctx *z, struct eng_fetch *fetch);

/** From here on it is the state as it will be when all is done that was queued so far. */
zero_result eng_fetch_begin(const zero_ctx *z, struct eng_fetch *fetch, struct base_error *error);
/** Elements of a source whose fields are addresses of the device: a ckpt_fetch_fn, for any thread,
 * one at a time. */
zero_result eng_fetch_read(const zero_ctx *z, struct eng_fetch *fetch,
                           const struct ckpt_source *source, int field, uint64_t first,
                           size_t count, const void **elements, struct base_error *error);
/** Begins to copy some of them to the room: a ckpt_copy_fn. */
zero_result eng_fetch_copy(const zero_ctx *z, struct eng_fetch *fetch,
                           const struct ckpt_source *source, int field, uint64_t first,
                           size_t count, void *to, struct base_error *error);

#endif
