#include "offload/io/io.h"

#include "base/arena.h"
#include "offload/io/io_parts.h"

#include <assert.h>

enum { PAGE = 4096, DEFAULT_CREDITS = 16, MOST_CREDITS = 1024 };

static const size_t largest_transfer = (size_t)64 << 20;

static zero_result check_config(const struct off_io_config *config, struct base_error *error)
{
    const size_t bytes = config->transfer_bytes;
    if (bytes != 0 && (bytes < PAGE || bytes > largest_transfer || (bytes & (bytes - 1)) != 0))
        return zero_fail(error, ZERO_E_INVALID,
                         "transfers of %zu bytes; powers of two from %d to %zu are possible", bytes,
                         PAGE, largest_transfer);
    for (int d = 0; d < OFF_DIRECTIONS; d++)
        if (config->credits[d] > MOST_CREDITS)
            return zero_fail(error, ZERO_E_INVALID,
                             "%u transfers at a time; at most %d are possible", config->credits[d],
                             MOST_CREDITS);
    if (config->range_count > OFF_MAX_RANGES)
        return zero_fail(error, ZERO_E_INVALID, "%zu ranges of memory; at most %d are possible",
                         config->range_count, OFF_MAX_RANGES);
    for (size_t i = 0; i < config->range_count; i++)
        if ((uintptr_t)config->ranges[i].memory % PAGE != 0 || config->ranges[i].bytes % PAGE != 0)
            return zero_fail(error, ZERO_E_INVALID,
                             "range %zu of memory, %zu bytes, is not made of whole pages", i,
                             config->ranges[i].bytes);
    return ZERO_OK;
}

static unsigned credits_of(const struct off_io_config *config, enum off_direction direction)
{
    return config->credits[direction] ? config->credits[direction] : DEFAULT_CREDITS;
}

struct off_io_memory off_io_memory(const struct off_io_config *config)
{
    const unsigned depth = credits_of(config, OFF_READ) + credits_of(config, OFF_WRITE);
    struct off_io_memory memory = config->engine->memory(depth);
    memory.bytes += sizeof(struct off_io) + depth * (sizeof(struct off_io_part) + sizeof(unsigned));
    return memory;
}

static struct off_io *allocate(const struct off_io_config *config)
{
    struct off_io *io = base_calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->transfer_bytes = config->transfer_bytes ? config->transfer_bytes : OFF_USUAL_TRANSFER;
    io->range_count = config->range_count;
    for (size_t i = 0; i < config->range_count; i++)
        io->ranges[i] = config->ranges[i];
    for (int d = 0; d < OFF_DIRECTIONS; d++) {
        io->credits[d] = credits_of(config, (enum off_direction)d);
        io->depth += io->credits[d];
    }
    io->parts = base_calloc(io->depth, sizeof *io->parts);
    io->spare = base_calloc(io->depth, sizeof *io->spare);
    if (!io->parts || !io->spare) {
        off_io_destroy(io);
        return NULL;
    }
    while (io->spare_count < io->depth) {
        io->spare[io->spare_count] = io->spare_count;
        io->spare_count++;
    }
    assert(io->spare_count == io->depth);
    return io;
}

const struct off_io_use *off_io_use(const struct off_io *io)
{
    return &io->use;
}

zero_result off_io_create(struct off_io **out, const struct off_io_config *config,
                          struct base_error *error)
{
    *out = NULL;
    zero_result result = check_config(config, error);
    if (result)
        return result;
    struct off_io *io = allocate(config);
    if (!io)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a queue of reads and writes");
    const struct off_io_engine_config wanted = {
        .depth = io->depth,
        .ranges = io->ranges,
        .range_count = io->range_count,
    };
    result = off_io_engine_create(config->engine, &wanted, &io->use, &io->state, error);
    if (result) {
        off_io_destroy(io);
        return result;
    }
    *out = io;
    return ZERO_OK;
}

zero_result off_io_add_file(struct off_io *io, int fd, size_t unit, const char *path, int *file,
                            struct base_error *error)
{
    assert(unit > 0);
    if (io->file_count == OFF_MAX_FILES)
        return zero_fail(error, ZERO_E_LIMIT, "%s: more than %d files", path, OFF_MAX_FILES);
    const zero_result result = io->use.engine->add_file(io->state, fd, path, error);
    if (result)
        return result;
    *file = io->file_count++;
    io->files[*file] = (struct off_io_file){.fd = fd, .unit = unit, .path = path};
    return ZERO_OK;
}

void off_io_destroy(struct off_io *io)
{
    if (!io)
        return;
    if (io->state)
        io->use.engine->destroy(io->state);
    base_free(io->parts);
    base_free(io->spare);
    base_free(io);
}

struct off_io_counts off_io_counts(const struct off_io *io)
{
    return io->counts;
}

void off_io_counts_add(struct off_io_counts *sum, const struct off_io_counts *other)
{
    for (int d = 0; d < OFF_DIRECTIONS; d++) {
        sum->bytes[d] += other->bytes[d];
        sum->transfers[d] += other->transfers[d];
    }
    sum->shortened += other->shortened;
    sum->repeated += other->repeated;
    sum->commits += other->commits;
    sum->put_off += other->put_off;
}
