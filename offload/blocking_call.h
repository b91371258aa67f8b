/**
 * offload/blocking_call.h: calls into a file system that may never come back, made by a thread of
 * its own. The caller waits for it until its deadline, and no longer.
 *
 * It is for what no queue of reads and writes (offload/io/io.h) does: records, flushes, the end of
 * files. A call that hangs in the kernel can be neither interrupted nor taken back. What it uses
 * stays where it is until it returns. The last call, which gives that back, comes after it.
 *
 * One call at a time. The time in which the process was stopped doesn't count.
 */
#ifndef OFFLOAD_BLOCKING_CALL_H
#define OFFLOAD_BLOCKING_CALL_H

#include "base/error.h"

struct off_blocking_calls;

/** Room for what a call needs to know. */
enum { OFF_BLOCKING_CALL_BYTES = 64 };

/** What is to be done; `order` is a copy of what was given to run. */
typedef zero_result (*off_blocking_call_fn)(const void *order, struct base_error *error);

/** Creates the thread. *Local.* ZERO_E_NOMEM: *blocking_calls is NULL. */
zero_result off_blocking_calls_create(struct off_blocking_calls **blocking_calls, double timeout_s,
                                      struct base_error *error);

/** Bytes that it takes. */
size_t off_blocking_calls_memory(void);

/**
 * Has the thread make a call, and waits for it: its result. `order` is copied, but what it points
 * to must stay as long as the call may take. ZERO_E_TIMEOUT: nothing has come back for timeout_s;
 * the message is what `format` makes, and for how long. Every later call fails with it. *Local*,
 * any thread; several wait for each other.
 */
zero_result off_blocking_calls_run(struct off_blocking_calls *blocking_calls,
                                   off_blocking_call_fn call, const void *order, size_t bytes,
                                   struct base_error *error, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/**
 * Has the thread call `last`, after which it ends, and waits for that. ZERO_E_TIMEOUT, with what is
 * still under way: the thread is left to itself, and calls `last` when the kernel has come back to
 * it. In any case *blocking_calls is the thread's from here on. *Local*; no other thread may be in
 * a call.
 */
zero_result off_blocking_calls_end(struct off_blocking_calls *blocking_calls,
                                   void (*last)(void *user), void *user, struct base_error *error);

#endif
