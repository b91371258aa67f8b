/**
 * offload/io/io.h: reads and writes of files, many at a time, while the program does something
 * else.
 *
 * A queue takes requests of any size, cuts them into transfers, keeps as many of those under way as
 * it has credits, and gives each request back when all of it is done. One of several engines
 * (io_engine.h) moves the bytes:
 *
 *     create -> add_file ...                  once
 *     submit ... -> commit                    hands over what was submitted, all at once
 *     poll, or wait with a deadline           gives back a request that is done
 *     destroy
 *
 * A transfer that was cut short is continued and one that was interrupted or put off is repeated,
 * for about a second if nothing comes of it, and both are counted; every other result than all of
 * its bytes is a failure of its request, which names errno, file, offset and what the bytes are.
 * Requests are given back in no order.
 *
 * Used by one thread, which need not be the one that created it, but for off_io_wake(). After the
 * last add_file nothing is allocated.
 *
 * Points of base/fault.h, for every engine alike:
 *     offload.read, offload.write   the completion of each transfer (EIO); eagain and eintr are
 *                                   repeated as real ones
 *     offload.short                 the completion of each transfer of more than one unit: it moved
 *                                   half of its bytes, which is no error
 *     offload.submit                each transfer handed to the engine (ZERO_E_IO)
 *     offload.enter                 uring: each call that has the kernel begin what it was handed;
 *                                   eagain, ebusy and eintr are repeated as real ones
 */
#ifndef OFFLOAD_IO_IO_H
#define OFFLOAD_IO_IO_H

#include "base/error.h"

#include <stdbool.h>

struct off_io;
struct off_io_engine;

enum off_direction { OFF_READ, OFF_WRITE, OFF_DIRECTIONS };

/** Memory that requests will be made from. */
struct off_range {
    void *memory; /**< a multiple of 4,096, as is the size */
    size_t bytes;
};

enum { OFF_MAX_RANGES = 16, OFF_MAX_FILES = 16 };

enum { OFF_USUAL_TRANSFER = 1 << 20 }; /**< bytes, where a config names none */

struct off_io_config {
    const struct off_io_engine *engine; /**< of off_io_engine_at() or off_io_engine_find() */
    size_t transfer_bytes;            /**< a power of two, 4 KiB to 64 MiB; 0: OFF_USUAL_TRANSFER */
    unsigned credits[OFF_DIRECTIONS]; /**< transfers under way, at most 1,024; 0: 16. A direction
                                           that has nothing to do lends its own to the other */
    const struct off_range *ranges;   /**< the memory all requests lie in, */
    size_t range_count;               /**< at most OFF_MAX_RANGES */
};

/**
 * One read or write. The caller's, who fills in the first part and leaves all of it alone until it
 * is given back; then it may be used again.
 */
struct off_request {
    enum off_direction direction;
    int file;     /**< from off_io_add_file() */
    void *memory; /**< in one of the config's ranges */
    size_t bytes; /**< > 0; memory, bytes and offset are multiples of the file's unit */
    uint64_t offset;
    const char *what; /**< for messages: "tile 3 of h.0.attn.weight" */
    void *user;       /**< the caller's */

    zero_result result;       /**< ZERO_OK: all of the bytes were moved. ZERO_E_IO; ZERO_E_CORRUPT:
                                   the file ends before */
    struct base_error error;  /**< its message, where that is not ZERO_OK */
    size_t handed;            /**< the queue's: bytes handed out as transfers, */
    unsigned under_way;       /**< those transfers, */
    struct off_request *next; /**< and its list */
};

/** What a queue has done so far. */
struct off_io_counts {
    uint64_t bytes[OFF_DIRECTIONS]; /**< of transfers that were done */
    uint64_t transfers[OFF_DIRECTIONS];
    uint64_t shortened; /**< transfers that were cut short and continued */
    uint64_t repeated;  /**< transfers that were repeated: EAGAIN, EINTR */
    uint64_t commits;   /**< calls that handed something over */
    uint64_t put_off;   /**< calls of which the kernel began nothing, or not all, and that were
                             repeated: EAGAIN, EBUSY, EINTR */
};

/** What a queue takes. */
struct off_io_memory {
    size_t bytes;     /**< in small structures, and in the kernel's rings */
    unsigned threads; /**< the engine's */
};

/** What a queue with this config takes; with an engine that has choices, at most. Pure. */
struct off_io_memory off_io_memory(const struct off_io_config *config);

/**
 * Creates a queue. *Local.* ZERO_E_INVALID: the config; ZERO_E_NOMEM; ZERO_E_UNSUPPORTED: the
 * kernel doesn't have this engine, or doesn't let us use it; ZERO_E_LIMIT: it has, but a limit of
 * locked memory or of open files is too low. The message says which setting is in the way, and what
 * to do. *io is NULL then. An engine with choices fails only as the last of them does.
 */
zero_result off_io_create(struct off_io **io, const struct off_io_config *config,
                          struct base_error *error);

/**
 * Adds a file, open for what will be asked of it, and keeps `fd` and `path` (for messages), both
 * borrowed. `unit`: of its offsets and sizes, and of the memory (off_direct_file). ZERO_E_LIMIT:
 * more than OFF_MAX_FILES; ZERO_E_IO, ZERO_E_NOMEM: nothing has changed.
 */
zero_result off_io_add_file(struct off_io *io, int fd, size_t unit, const char *path, int *file,
                            struct base_error *error);

/** Takes a request. Never waits. ZERO_E_INVALID: not taken. */
zero_result off_io_submit(struct off_io *io, struct off_request *request, struct base_error *error);

/**
 * Hands over what was submitted and there are credits for; what there are none for goes by itself
 * when others come back, and so does what the kernel has no memory for at present. ZERO_E_IO: the
 * engine is broken, or the kernel has not begun all for about a second while nothing came back:
 * every request that was not done yet comes back with this failure.
 */
zero_result off_io_commit(struct off_io *io, struct base_error *error);

/** The engine of a queue, and the error for which the choice before it was passed over: all zero
 * where there was none. */
struct off_io_use {
    const struct off_io_engine *engine;
    struct base_error passed;
};

/** What a queue uses; the queue's. */
const struct off_io_use *off_io_use(const struct off_io *io);

/**
 * Takes a request that is done. Waits for one until `deadline_ns` of base_clock_ns(), or an
 * off_io_wake(). ZERO_AGAIN: none is done by then, or nothing is under way. A wake may be told late
 * while the kernel begins nothing.
 */
zero_result off_io_wait(struct off_io *io, uint64_t deadline_ns, struct off_request **done);

/** Ends an off_io_wait() under way, or the next one. Any thread. */
void off_io_wake(struct off_io *io);

/** Requests that were taken and not given back. */
size_t off_io_pending(const struct off_io *io);

/** What the transfer is about that has been under way the longest, for messages: "tile 3 of
 * h.0.attn.weight: reading 4096 bytes at offset 8192"; "nothing" if none is. Returns `text`. */
const char *off_io_oldest(const struct off_io *io, char *text, size_t size);

/** What it has done so far. */
struct off_io_counts off_io_counts(const struct off_io *io);
/** Adds what another queue has done. Pure. */
void off_io_counts_add(struct off_io_counts *sum, const struct off_io_counts *other);

/**
 * Frees it; accepts NULL. Requests that are not done are given up; those the kernel works on are
 * waited for, because it has their memory.
 */
void off_io_destroy(struct off_io *io);

#endif
