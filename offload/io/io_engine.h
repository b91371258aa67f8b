/**
 * offload/io/io_engine.h: what moves bytes between files and memory, behind one table of
 * operations.
 *
 * An engine is given transfers, each with a number of the queue's, and gives back numbers and
 * results as read(2) and write(2) have them. It repeats nothing and judges nothing: that is the
 * queue's work (io_requests.c), so an engine is small. A new one is one file in offload/io/ that
 * begins as a copy of io_sync.c, and one line in the list of io_engines.c; CONTRIBUTING.md has the
 * names that follow.
 *
 * An engine may rely on the queue: no more than `depth` transfers are under way, and each has
 * another number. A transfer's memory lies in one range, and no transfer crosses a multiple of
 * 64 MiB.
 */
#ifndef OFFLOAD_IO_IO_ENGINE_H
#define OFFLOAD_IO_IO_ENGINE_H

#include "offload/io/io.h"

/** A part of a request. */
struct off_transfer {
    enum off_direction direction;
    int file; /**< its number, from 0 */
    int fd;
    void *memory;
    size_t bytes; /**< at most INT_MAX */
    uint64_t offset;
    unsigned range; /**< which range of the config the memory lies in */
};

/** What has become of one. */
struct off_completion {
    unsigned number; /**< as given to submit */
    int result;      /**< bytes moved, or -errno */
};

/** What an engine is created for. */
struct off_io_engine_config {
    unsigned depth; /**< transfers under way at a time; their numbers are below it */
    const struct off_range *ranges;
    size_t range_count;
};

/** All functions are there, and used by one thread, but for memory and wake. */
struct off_io_engine {
    size_t size;      /**< sizeof(struct off_io_engine) */
    const char *name; /**< as in the configuration */
    /** NULL: it is an engine. Else it stands for the first of these that can be created, has no
     * functions of its own but memory, and a NULL behind the last. */
    const struct off_io_engine *const *choices;

    /** What it takes for `depth` transfers under way. Pure. */
    struct off_io_memory (*memory)(unsigned depth);
    /** Allocates everything. Errors as off_io_create() has them; *state is NULL then.
     * ZERO_E_UNSUPPORTED, ZERO_E_LIMIT: the message names the setting to change. */
    zero_result (*create)(void **state, const struct off_io_engine_config *config,
                          struct base_error *error);
    /** Prepares for a file; its number is the next one from 0. */
    zero_result (*add_file)(void *state, int fd, const char *path, struct base_error *error);
    /** Takes a transfer; it begins by the next commit at the latest. */
    void (*submit)(void *state, unsigned number, const struct off_transfer *transfer);
    /** Begins everything submitted. ZERO_AGAIN, with a message: not all of it could be begun now,
     * and the next commit tries again. An error breaks the engine: what is not done never will be,
     * and the kernel has none of its memory after destroy. */
    zero_result (*commit)(void *state, struct base_error *error);
    /** Gives back up to `most` completions. If there are none, waits until there is one, until the
     * deadline (0: doesn't wait), or for a wake. An engine with nothing under way after commit
     * never waits. Results as commit; ZERO_AGAIN, with completions or without: it was
     * woken, too. */
    zero_result (*reap)(void *state, uint64_t deadline_ns, struct off_completion *done, size_t most,
                        size_t *count, struct base_error *error);
    /** Any thread: ends a reap that waits, or the next one that would. */
    void (*wake)(void *state);
    /** Waits for what has begun, and frees everything; accepts NULL. */
    void (*destroy)(void *state);
};

/** How many engines the list of io_engines.c has. */
enum { OFF_IO_ENGINES = 4 };

extern const struct off_io_engine off_io_engine_auto; /**< not one of off_io_engine_at() */
extern const struct off_io_engine off_io_engine_uring;
extern const struct off_io_engine off_io_engine_uring_plain;
extern const struct off_io_engine off_io_engine_threads;
extern const struct off_io_engine off_io_engine_sync;

/** Does a transfer with pread(2) or pwrite(2): a completion's result. *Local*, any thread. */
int off_transfer_now(const struct off_transfer *transfer);

/** Engine number `index` of this build, the one to prefer first; NULL beyond the last. *Local.* */
const struct off_io_engine *off_io_engine_at(size_t index);

/** The engine called `name`, "auto" included; NULL if there is none. *Local.* */
const struct off_io_engine *off_io_engine_find(const char *name);

/** Creates an engine, or the first choice that can be created, and says in *use which. Errors as
 * off_io_create() has them; *state is NULL then. *Local.* */
zero_result off_io_engine_create(const struct off_io_engine *engine,
                                 const struct off_io_engine_config *config, struct off_io_use *use,
                                 void **state, struct base_error *error);

#endif
