#include "offload/disk_probe.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "offload/direct_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>

enum { MOST_TRANSFERS = 32 };

static const size_t usual_bytes = (size_t)256 << 20;

// What is tried: sizes and how many at a time. The first is close to what tiles of state are moved
// with, and good on most disks: another one has to be faster by more than two measurements differ.
static const struct candidate {
    size_t transfer_bytes;
    unsigned credits; // of either direction
} candidates[] = {
    {(size_t)2 << 20, 8},  {(size_t)1 << 20, 8}, {(size_t)1 << 20, 4},
    {(size_t)1 << 20, 16}, {(size_t)4 << 20, 4},
};

static const double clearly = 1.05;

enum { CANDIDATES = sizeof candidates / sizeof candidates[0] };

// From one small read to the next: beyond what a disk has read ahead, or has in a page of its own.
static const size_t far = (size_t)1 << 20;

// Stretches of time: one to write the file, one a candidate, two for one direction alone, and one
// for one read at a time.
enum { STRETCHES = CANDIDATES + 4 };

struct prober {
    const struct off_io_engine *engine;
    struct off_direct_file file;
    struct off_pages pages;
    size_t bytes;
    uint64_t stretch_ns;
    struct off_io *io;
    struct off_io_use use;
    int number; // of the file in the queue
    struct off_request requests[2 * MOST_TRANSFERS];
    size_t at[OFF_DIRECTIONS]; // where the next request begins
    size_t step;               // from there to the one after it, if it is not its end
    size_t moved;
};

// Nothing that is there is asked for: each direction goes round the file in its half.
static zero_result submit(struct prober *prober, size_t i, enum off_direction direction,
                          size_t bytes, struct base_error *error)
{
    assert(i < 2 * MOST_TRANSFERS);
    const size_t half = prober->bytes / OFF_DIRECTIONS;
    if (prober->at[direction] + bytes > half)
        prober->at[direction] = 0;
    prober->requests[i] = (struct off_request){
        .direction = direction,
        .file = prober->number,
        .memory = (unsigned char *)prober->pages.memory + i * bytes,
        .bytes = bytes,
        .offset = (direction == OFF_READ ? 0 : half) + prober->at[direction],
        .what = "probe",
    };
    prober->at[direction] += prober->step ? prober->step : bytes;
    return off_io_submit(prober->io, &prober->requests[i], error);
}

// Keeps requests under way until the time is over, and waits for the rest.
static zero_result keep_busy(struct prober *prober, const unsigned count[OFF_DIRECTIONS],
                             size_t bytes, struct base_error *error)
{
    assert(count[OFF_READ] + count[OFF_WRITE] <= 2 * MOST_TRANSFERS);
    assert((count[OFF_READ] + count[OFF_WRITE]) * bytes <= prober->pages.bytes);
    const uint64_t end = base_clock_ns() + prober->stretch_ns;
    struct off_request *done;
    zero_result result = ZERO_OK;
    prober->moved = 0;
    for (size_t i = 0; i < count[OFF_READ] + count[OFF_WRITE] && !result; i++)
        result = submit(prober, i, i < count[OFF_READ] ? OFF_READ : OFF_WRITE, bytes, error);
    while (off_io_pending(prober->io) > 0) {
        if (off_io_wait(prober->io, UINT64_MAX, &done) != ZERO_OK)
            continue;
        prober->moved += bytes;
        if (done->result && !result)
            result = zero_fail(error, done->result, "%s", done->error.message);
        if (!result && base_clock_ns() < end)
            result =
                submit(prober, (size_t)(done - prober->requests), done->direction, bytes, error);
    }
    return result;
}

// Bytes a second of one way to use the disk.
static zero_result measure(struct prober *prober, const unsigned count[OFF_DIRECTIONS],
                           size_t bytes, double *rate, struct base_error *error)
{
    const struct off_range range = {.memory = prober->pages.memory, .bytes = prober->pages.bytes};
    const struct off_io_config config = {
        .engine = prober->engine,
        .transfer_bytes = bytes,
        .credits = {count[OFF_READ] ? count[OFF_READ] : 1, count[OFF_WRITE] ? count[OFF_WRITE] : 1},
        .ranges = &range,
        .range_count = 1,
    };
    const struct off_direct_file *file = &prober->file;
    zero_result result = off_io_create(&prober->io, &config, error);
    if (!result)
        result =
            off_io_add_file(prober->io, file->fd, file->unit, file->path, &prober->number, error);
    const uint64_t begin = base_clock_ns();
    if (!result)
        result = keep_busy(prober, count, bytes, error);
    *rate = (double)prober->moved / ((double)(base_clock_ns() - begin) * 1e-9);
    if (prober->io)
        prober->use = *off_io_use(prober->io);
    off_io_destroy(prober->io);
    return result;
}

// The file is allocated and written once: overwriting is what will be done.
static zero_result prepare(struct prober *prober, const struct off_disk_probe_config *config,
                           struct base_error *error)
{
    zero_result result =
        off_direct_file_open(&prober->file, config->directory, O_TMPFILE, 0600, error);
    if (result)
        return result;
    if (fallocate(prober->file.fd, 0, 0, (off_t)prober->bytes) != 0)
        return zero_fail_errno(error, errno == ENOSPC ? ZERO_E_LIMIT : ZERO_E_UNSUPPORTED, errno,
                               "%s: reserving %zu bytes to find out how fast it is",
                               config->directory, prober->bytes);
    return off_pages_create(&prober->pages, candidates[CANDIDATES - 1].transfer_bytes * 8, error);
}

// On a slow disk a shorter file has to do.
static zero_result write_file(struct prober *prober, struct base_error *error)
{
    const size_t bytes = candidates[CANDIDATES - 1].transfer_bytes;
    const uint64_t end = base_clock_ns() + prober->stretch_ns;
    size_t at = 0;
    for (; at < prober->bytes && (at < 4 * bytes || base_clock_ns() < end); at += bytes) {
        const zero_result result = base_pwrite_direct(prober->file.fd, prober->pages.memory, bytes,
                                                      at, prober->file.path, error);
        if (result)
            return result;
    }
    prober->bytes = at;
    return ZERO_OK;
}

// Finds what mixed reads and writes are fastest with, how fast either is alone, and how late a
// read.
static zero_result measure_all(struct prober *prober, struct off_disk_probe *probe,
                               struct base_error *error)
{
    zero_result result = ZERO_OK;
    double rate;
    for (size_t c = 0; c < CANDIDATES && !result; c++) {
        const unsigned count = candidates[c].credits, both[] = {count, count};
        result = measure(prober, both, candidates[c].transfer_bytes, &rate, error);
        if (result || rate <= clearly * probe->mixed_rate)
            continue;
        probe->mixed_rate = rate;
        probe->transfer_bytes = candidates[c].transfer_bytes;
        probe->credits[OFF_READ] = probe->credits[OFF_WRITE] = count;
    }
    const unsigned reads[] = {2 * probe->credits[OFF_READ], 0};
    const unsigned writes[] = {0, 2 * probe->credits[OFF_WRITE]};
    const unsigned one[] = {1, 0};
    if (!result)
        result = measure(prober, reads, probe->transfer_bytes, &probe->read_rate, error);
    if (!result)
        result = measure(prober, writes, probe->transfer_bytes, &probe->write_rate, error);
    prober->step = far;
    if (!result)
        result = measure(prober, one, BASE_DIRECT_UNIT, &rate, error);
    if (!result)
        probe->latency_s = BASE_DIRECT_UNIT / rate;
    return result;
}

zero_result off_disk_probe(struct off_disk_probe *probe, const struct off_disk_probe_config *config,
                           struct base_error *error)
{
    const double seconds = config->seconds > 0 ? config->seconds : 1;
    struct prober *prober = base_calloc(1, sizeof *prober);
    *probe = (struct off_disk_probe){.mixed_rate = 0};
    if (!prober)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast %s is",
                         config->directory);
    prober->engine = config->engine;
    prober->bytes = config->bytes ? config->bytes : usual_bytes;
    prober->stretch_ns = (uint64_t)(seconds / STRETCHES * 1e9);
    zero_result result = prepare(prober, config, error);
    if (!result)
        result = write_file(prober, error);
    if (!result)
        result = measure_all(prober, probe, error);
    probe->pages = prober->pages.kind;
    probe->direct_unit = prober->file.direct_unit;
    probe->use = prober->use;
    if (result)
        *probe = (struct off_disk_probe){.mixed_rate = 0};
    off_pages_destroy(&prober->pages);
    off_direct_file_close(&prober->file, NULL);
    base_free(prober);
    return result;
}
