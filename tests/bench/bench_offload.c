// State on a disk: the stream of offload/ against what the disk gives, what the processor takes for
// the same update in memory, and a swap as others do it. Argument: the directory (default: .).
#include "base/arena.h"
#include "offload/io/engine.h"
#include "offload/probe.h"
#include "offload/stream.h"
#include "tests/bench/bench.h"
#include "tests/bench/local_update.h"
#include "tests/bench/raw_io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A tile is w, m and v of 1 Mi elements.
enum { ELEMENTS = 1 << 20, FIELDS = 3, TILES = 64, BUFFERS = 8 };
enum { TILE_BYTES = ELEMENTS * FIELDS * 4 };

struct work {
    char path[512], raw_path[512];
    struct off_slots *slots;
    struct off_stream *stream;
    size_t order[TILES];
    uint64_t step;
    float *gradient;
    uint16_t *weight;
    unsigned char *state; // one tile's, for updates in memory
    int updates;          // of each tile in a pass: 0, or more where the processor is to be busy
    int raw_fd;
    struct raw_io *best, *plain, *serial;
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "bench_offload: %s\n", what);
    exit(1);
}

static void update_tile(const struct work *work, void *memory)
{
    static struct local_state local;
    float *fields = memory;
    local.count = ELEMENTS;
    local.weight = fields;
    local.moment[0] = fields + ELEMENTS;
    local.moment[1] = fields + 2 * (size_t)ELEMENTS;
    local.gradient = work->gradient;
    local.work = work->weight;
    for (int i = 0; i < work->updates; i++)
        local_update(&local);
}

/* ------------------------------------------------------------------ what is measured */

static double pass(void *user)
{
    struct work *work = user;
    struct base_error error = {.result = ZERO_OK};
    struct off_tile tile;
    const double begin = bench_now();
    for (size_t i = 0; i < TILES; i++)
        work->order[i] = work->step % 2 ? TILES - 1 - i : i;
    off_stream_begin(work->stream, work->order, TILES);
    while (off_stream_next(work->stream, &tile, &error) == ZERO_OK) {
        if (work->step == 0)
            memset(tile.memory, 0, TILE_BYTES);
        update_tile(work, tile.memory);
        off_stream_put(work->stream, &tile, true);
    }
    if (off_stream_end(work->stream, &error) || error.result ||
        off_slots_record(work->slots, ++work->step, NULL, 0, &error))
        fail(error.message);
    return bench_now() - begin;
}

static double checked(double seconds)
{
    if (seconds == 0)
        fail("raw I/O failed");
    return seconds;
}

static double best_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->best));
}

static double plain_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->plain));
}

// As DeepSpeed does by default: a tile is read, updated and written before the next one's turn.
static double serial_swap(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    checked(raw_io_serial(work->serial));
    for (int i = 0; i < TILES; i++)
        update_tile(work, work->state);
    return bench_now() - begin;
}

static double io_alone(void *user)
{
    struct work *work = user;
    const int updates = work->updates;
    work->updates = 0;
    const double seconds = pass(work);
    work->updates = updates;
    return seconds;
}

// The slower one of I/O and update, each by itself.
static double slower_alone(void *user)
{
    struct work *work = user;
    const double io = io_alone(work), begin = bench_now();
    for (int i = 0; i < TILES; i++)
        update_tile(work, work->state);
    const double compute = bench_now() - begin;
    return io > compute ? io : compute;
}

/* ------------------------------------------------------------------ set-up */

// The raw file: two halves of a pass's bytes, fully written.
static void make_raw_file(struct work *work)
{
    const size_t bytes = (size_t)TILES * TILE_BYTES;
    work->raw_fd = open(work->raw_path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (work->raw_fd < 0)
        fail("cannot create a file here");
    unlink(work->raw_path);
    for (size_t at = 0; at < 2 * bytes; at += TILE_BYTES)
        if (pwrite(work->raw_fd, work->state, TILE_BYTES, (off_t)at) != TILE_BYTES)
            fail("cannot write a file here");
    fsync(work->raw_fd);
}

static struct raw_io *open_raw(const struct work *work, size_t block, unsigned depth, bool huge)
{
    const struct raw_io_config config = {
        .fd = work->raw_fd,
        .bytes = (size_t)TILES * TILE_BYTES,
        .reads = (size_t)(TILES - BUFFERS) * TILE_BYTES,
        .block = block,
        .depth = depth,
        .huge_pages = huge,
    };
    struct raw_io *raw = raw_io_create(&config);
    if (!raw)
        fail("raw I/O failed");
    return raw;
}

// The block and depth with which this disk is fastest.
static struct raw_io *find_best(const struct work *work, bool huge)
{
    static const size_t blocks[] = {1 << 20, 4 << 20};
    static const unsigned depths[] = {8, 16, 32};
    struct raw_io *best = NULL;
    double shortest = 0;
    size_t best_block = 0;
    unsigned best_depth = 0;
    for (size_t b = 0; b < 2; b++)
        for (size_t d = 0; d < 3; d++) {
            struct raw_io *raw = open_raw(work, blocks[b], depths[d], huge);
            checked(raw_io_mix(raw));
            const double seconds = checked(raw_io_mix(raw));
            if (!best || seconds < shortest) {
                raw_io_destroy(best);
                best = raw;
                shortest = seconds;
                best_block = blocks[b];
                best_depth = depths[d];
            } else {
                raw_io_destroy(raw);
            }
        }
    printf("raw I/O, %s: best with %zu KiB x %u\n", huge ? "2 MiB pages" : "4 KiB pages",
           best_block >> 10, best_depth);
    return best;
}

static void open_stream(struct work *work, const char *directory)
{
    size_t bytes[TILES];
    struct base_error error = {.result = ZERO_OK};
    int recorded;
    for (size_t i = 0; i < TILES; i++)
        bytes[i] = TILE_BYTES;
    const struct off_slots_config slots = {.path = work->path, .tiles = TILES, .tile_bytes = bytes};
    unlink(work->path);
    if (off_slots_open(&work->slots, &slots, &recorded, &error))
        fail(error.message);
    unlink(work->path); // nothing is left, whatever happens
    struct off_probe probe;
    const struct off_probe_config probing = {.directory = directory, .engine = &off_engine_uring};
    if (off_probe(&probe, &probing, &error))
        fail(error.message);
    const struct off_stream_config stream = {
        .engine = &off_engine_uring,
        .transfer_bytes = probe.transfer_bytes,
        .credits = {probe.credits[OFF_READ], probe.credits[OFF_WRITE]},
        .slots = work->slots,
        .tiles = TILES,
        .buffers = BUFFERS,
        .timeout_s = 60,
        .helpers = 1,
    };
    if (off_stream_create(&work->stream, &stream, &error))
        fail(error.message);
    printf("stream: %d tiles of %d MiB, %d in memory, %s, %zu KiB x %u\n", TILES, TILE_BYTES >> 20,
           BUFFERS, off_pages_text(off_stream_pages(work->stream)), probe.transfer_bytes >> 10,
           2 * probe.credits[OFF_READ]);
    printf("probe: %.2f GB/s read, %.2f written, %.2f mixed\n", 1e-9 * probe.read_rate,
           1e-9 * probe.write_rate, 1e-9 * probe.mixed_rate);
    pass(work); // both places are written once
    pass(work);
}

static void row(struct work *work, const char *name, const char *reference_name, bench_fn ours,
                bench_fn reference, double target)
{
    // What a pass moves: tiles that are still in memory are not read.
    const double bytes = 1e-9 * (2 * TILES - BUFFERS) * TILE_BYTES;
    const struct bench_row r = {
        .name = name,
        .reference_name = reference_name,
        .unit = "GB/s",
        .ours_amount = bytes,
        .reference_amount = bytes,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = target,
    };
    bench_run(&r);
}

// So many updates of each tile that they take as long as its I/O.
static int balanced_updates(struct work *work)
{
    work->updates = 1;
    const double io = io_alone(work), begin = bench_now();
    for (int i = 0; i < TILES; i++)
        update_tile(work, work->state);
    const double compute = bench_now() - begin;
    return (int)(io / compute + 0.5) + (io < compute);
}

int main(int argc, char **argv)
{
    static struct work work;
    const char *directory = argc > 1 ? argv[1] : ".";
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(work.path, sizeof work.path, "%s/bench_offload.slots", directory);
    snprintf(work.raw_path, sizeof work.raw_path, "%s/bench_offload.raw", directory);
    work.gradient = base_calloc(ELEMENTS, sizeof(float));
    work.weight = base_calloc(ELEMENTS, sizeof(uint16_t));
    work.state = base_aligned_alloc(4096, TILE_BYTES);
    if (!work.gradient || !work.weight || !work.state)
        fail("no memory");
    memset(work.state, 0, TILE_BYTES);
    make_raw_file(&work);
    open_stream(&work, directory);
    work.best = find_best(&work, true);
    work.plain = find_best(&work, false);
    work.serial = open_raw(&work, 4 << 20, 1, false);

    bench_print_header();
    row(&work, "swap stream, no update", "raw", io_alone, best_mix, 0.95);
    row(&work, "swap stream, no update", "raw, 4 KiB", io_alone, plain_mix, 1.7);
    work.updates = 1;
    row(&work, "AdamW on disk: overlap", "slower part", pass, slower_alone, 0.97);
    row(&work, "AdamW on disk", "serial swap", pass, serial_swap, 2.5);
    work.updates = balanced_updates(&work);
    row(&work, "balanced: overlap", "slower part", pass, slower_alone, 0.95);

    off_stream_destroy(work.stream);
    off_slots_close(work.slots, false);
    raw_io_destroy(work.best);
    raw_io_destroy(work.plain);
    raw_io_destroy(work.serial);
    close(work.raw_fd);
    return 0;
}
