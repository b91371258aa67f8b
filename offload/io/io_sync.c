/* One transfer after the other, in commit: for tests, and where nothing else is to be had. */
#include "base/arena.h"
#include "base/tables.h"
#include "offload/io/io_engine.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

struct given {
    unsigned number;
    struct off_transfer transfer;
};

struct sync_engine {
    struct base_tables tables;
    unsigned depth;
    unsigned given_count, done_count;
    struct given *given;
    struct off_completion *done;
};

/** Lays the tables out, or only counts their bytes. */
static void lay_tables(struct sync_engine *engine, unsigned depth)
{
    engine->given = base_tables_add(&engine->tables, depth, sizeof *engine->given);
    engine->done = base_tables_add(&engine->tables, depth, sizeof *engine->done);
}

static struct off_io_memory sync_memory(unsigned depth)
{
    struct sync_engine counted = {.tables.counts = true};
    lay_tables(&counted, depth);
    return (struct off_io_memory){.bytes = sizeof counted + counted.tables.bytes};
}

static void sync_destroy(void *state)
{
    struct sync_engine *engine = state;
    if (!engine)
        return;
    base_tables_free(&engine->tables);
    base_free(engine);
}

static zero_result sync_create(void **state, const struct off_io_engine_config *config,
                               struct base_error *error)
{
    *state = NULL;
    struct sync_engine *engine = base_calloc(1, sizeof *engine);
    if (engine) {
        engine->depth = config->depth;
        lay_tables(engine, config->depth);
    }
    if (!engine || engine->tables.failed) {
        sync_destroy(engine);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %u transfers", config->depth);
    }
    *state = engine;
    return ZERO_OK;
}

static zero_result sync_add_file(void *state, int fd, const char *path, struct base_error *error)
{
    (void)state, (void)fd, (void)path, (void)error;
    return ZERO_OK;
}

static void sync_submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    struct sync_engine *engine = state;
    assert(engine->given_count < engine->depth && number < engine->depth);
    engine->given[engine->given_count++] = (struct given){.number = number, .transfer = *transfer};
}

int off_transfer_now(const struct off_transfer *transfer)
{
    assert(transfer->bytes > 0 && transfer->bytes <= INT32_MAX);
    const off_t offset = (off_t)transfer->offset;
    const ssize_t moved = transfer->direction == OFF_READ
                              ? pread(transfer->fd, transfer->memory, transfer->bytes, offset)
                              : pwrite(transfer->fd, transfer->memory, transfer->bytes, offset);
    return moved < 0 ? -errno : (int)moved;
}

static zero_result sync_commit(void *state, struct base_error *error)
{
    (void)error;
    struct sync_engine *engine = state;
    assert(engine->given_count + engine->done_count <= engine->depth);
    for (unsigned i = 0; i < engine->given_count; i++)
        engine->done[engine->done_count++] = (struct off_completion){
            .number = engine->given[i].number,
            .result = off_transfer_now(&engine->given[i].transfer),
        };
    engine->given_count = 0;
    return ZERO_OK;
}

static zero_result sync_reap(void *state, uint64_t deadline_ns, struct off_completion *done,
                             size_t most, size_t *count, struct base_error *error)
{
    (void)deadline_ns, (void)error;
    struct sync_engine *engine = state;
    for (*count = 0; *count < most && engine->done_count > 0; ++*count)
        done[*count] = engine->done[--engine->done_count];
    return ZERO_OK;
}

// Nothing is under way when commit returns, so no caller waits.
static void sync_wake(void *state)
{
    (void)state;
}

const struct off_io_engine off_io_engine_sync = {
    .size = sizeof(struct off_io_engine),
    .name = "sync",
    .memory = sync_memory,
    .create = sync_create,
    .add_file = sync_add_file,
    .submit = sync_submit,
    .commit = sync_commit,
    .reap = sync_reap,
    .wake = sync_wake,
    .destroy = sync_destroy,
};
