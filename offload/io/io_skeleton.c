/*
 * A new I/O engine begins here: copy this file, give the functions their work, and add the engine
 * to the list of io_engines.c and to CMakeLists.txt. It is compiled with the tests, so that it
 * stays true, and linked into nothing.
 *
 * The queue (offload/io/io.c) sees to these rules, so an engine need not:
 *   - no more transfers are under way than config->depth, and no number is used twice at a time;
 *   - memory lies in one of config->ranges, and no transfer crosses a multiple of 64 MiB in one;
 *   - short, interrupted and failed transfers; faults for tests; messages; what is counted.
 */
#include "base/arena.h"
#include "offload/io/io_engine.h"

extern const struct off_io_engine off_io_engine_skeleton;

struct skeleton_engine {
    unsigned depth;
};

static struct off_io_memory skeleton_memory(unsigned depth)
{
    // What create takes, for the plan: told before there is an engine.
    (void)depth;
    return (struct off_io_memory){.bytes = sizeof(struct skeleton_engine)};
}

static void skeleton_destroy(void *state)
{
    // Accepts NULL and what a failed create left half built. Waits for what is under way, because
    // the memory is the caller's again afterwards; what has not begun is given up.
    base_free(state);
}

static zero_result skeleton_create(void **state, const struct off_io_engine_config *config,
                                   struct base_error *error)
{
    // Everything is allocated here. What the system does not have, or does not allow, is
    // ZERO_E_UNSUPPORTED, and what it has too little of ZERO_E_LIMIT: the message names the setting
    // to change. It is an error where the engine was asked for by its name; the choices of "auto"
    // (io_engines.c) go on to the next one after it, and the plan shows it.
    struct skeleton_engine *engine = base_calloc(1, sizeof *engine);
    *state = engine;
    if (!engine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %u transfers", config->depth);
    engine->depth = config->depth;
    return ZERO_OK;
}

static zero_result skeleton_add_file(void *state, int fd, const char *path,
                                     struct base_error *error)
{
    // Registers the file, where that makes transfers cheaper; it is number 0, 1, ... in them.
    (void)state, (void)fd, (void)path, (void)error;
    return ZERO_OK;
}

static void skeleton_submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    // Notes a transfer, and may begin it. There is always room; `transfer` is gone afterwards.
    (void)state, (void)number, (void)transfer;
}

static zero_result skeleton_commit(void *state, struct base_error *error)
{
    // Begins all that was submitted, with one call into the kernel if possible. Never waits for a
    // transfer. Only what makes the whole engine useless is an error.
    (void)state;
    return zero_fail(error, ZERO_E_IO, "the skeleton moves nothing");
}

static zero_result skeleton_reap(void *state, uint64_t deadline_ns, struct off_completion *done,
                                 size_t most, size_t *count, struct base_error *error)
{
    // Gives back what has come to its end, in any order: bytes moved, or -errno. Sleeps until there
    // is something, until the deadline (a time of base_clock_ns(); 0: not at all), or for a wake.
    (void)state, (void)deadline_ns, (void)done, (void)most, (void)error;
    *count = 0;
    return ZERO_OK;
}

static void skeleton_wake(void *state)
{
    // From any thread: ends a reap that sleeps; if none does, the next one doesn't sleep.
    (void)state;
}

const struct off_io_engine off_io_engine_skeleton = {
    .size = sizeof(struct off_io_engine),
    .name = "skeleton",
    .memory = skeleton_memory,
    .create = skeleton_create,
    .add_file = skeleton_add_file,
    .submit = skeleton_submit,
    .commit = skeleton_commit,
    .reap = skeleton_reap,
    .wake = skeleton_wake,
    .destroy = skeleton_destroy,
};
