// State on a disk: the stream of offload/ against what the disk gives, what the processor takes for
// the same update in memory, and a swap as others do it. Arguments: the directory (default: .), and
// the rows to run, by their letters (default: all).
#include "base/arena.h"
#include "offload/io/engine.h"
#include "offload/probe.h"
#include "offload/stream.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_offload_job.h"
#include "tests/bench/fio_mix.h"
#include "tests/bench/local_update.h"
#include "tests/bench/raw_io.h"
#include "zero/tier/codec.h"
#include "zero/tier/compress.h"
#include "zero/tier/tiles.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A tile is w, m and v of as many elements as a job's has, and so many are in memory.
enum { ELEMENTS = 85 * ENG_GRANULE, FIELDS = 3, TILES = 768, BUFFERS = ENG_TILES_IN_MEMORY };
enum { TILE_BYTES = ELEMENTS * FIELDS * 4 };

// Raw I/O moves as much, but whole blocks of each size.
enum { LARGEST_BLOCK = 4 << 20 };
enum { RAW_WRITES = TILES * TILE_BYTES / LARGEST_BLOCK * LARGEST_BLOCK };
enum { RAW_READS = (TILES - BUFFERS) * TILE_BYTES / LARGEST_BLOCK * LARGEST_BLOCK };

// A file with tiles, and a stream over them.
struct state {
    struct off_slots *slots;
    struct off_stream *stream;
    double share; // of tiles' bytes that are written
    uint64_t step;
    bool in_place;
};

struct work {
    char path[512], raw_path[512];
    const char *directory, *rows;
    struct state state, in_place, encoded;
    size_t order[TILES];
    float *gradient;
    uint16_t *weight;
    unsigned char *tiles; // for updates in memory: as many as the stream has there
    int updates;          // of each tile in a pass: 0, or more where the processor is to be busy
    int raw_fd;
    struct raw_io *best, *plain, *serial;
    double best_rate; // GB/s; 0: not measured
    struct fio_mix fio;
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

static void update_in_memory(const struct work *work)
{
    for (size_t i = 0; i < TILES; i++)
        update_tile(work, work->tiles + i % BUFFERS * TILE_BYTES);
}

/* ------------------------------------------------------------------ what is measured */

static double pass_of(struct work *work, struct state *state)
{
    struct base_error error = {.result = ZERO_OK};
    struct off_tile tile;
    const double begin = bench_now();
    for (size_t i = 0; i < TILES; i++)
        work->order[i] = state->step % 2 ? TILES - 1 - i : i;
    off_stream_begin(state->stream, work->order, TILES);
    while (off_stream_next(state->stream, &tile, &error) == ZERO_OK) {
        if (state->step == 0)
            eng_codec_sample(tile.memory, ELEMENTS, tile.number);
        update_tile(work, tile.memory);
        off_stream_put(state->stream, &tile, true);
    }
    if (off_stream_end(state->stream, &error) || error.result)
        fail(error.message);
    state->step++;
    if (!state->in_place && off_slots_record(state->slots, state->step, NULL, 0, &error))
        fail(error.message);
    return bench_now() - begin;
}

static double pass(void *user)
{
    struct work *work = user;
    return pass_of(work, &work->state);
}

// One place a tile, nothing verified.
static double in_place(void *user)
{
    struct work *work = user;
    return pass_of(work, &work->in_place);
}

static double encoded(void *user)
{
    struct work *work = user;
    return pass_of(work, &work->encoded);
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

static double fio(void *user)
{
    const struct work *work = user;
    return checked(fio_mix(&work->fio));
}

// As DeepSpeed does by default: a tile is read, updated and written before the next one's turn.
static double serial_swap(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    checked(raw_io_serial(work->serial));
    update_in_memory(work);
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
    update_in_memory(work);
    const double compute = bench_now() - begin;
    return io > compute ? io : compute;
}

/* ------------------------------------------------------------------ set-up */

// The raw file: two halves of a pass's bytes, fully written.
static void make_raw_file(struct work *work)
{
    const size_t bytes = BUFFERS * TILE_BYTES / LARGEST_BLOCK * LARGEST_BLOCK;
    work->raw_fd = open(work->raw_path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (work->raw_fd < 0)
        fail("cannot create a file here");
    unlink(work->raw_path);
    for (size_t at = 0; at < 2 * (size_t)RAW_WRITES; at += bytes)
        if (pwrite(work->raw_fd, work->tiles, bytes, (off_t)at) != (ssize_t)bytes)
            fail("cannot write a file here");
    fsync(work->raw_fd);
}

static struct raw_io *open_raw(const struct work *work, size_t block, unsigned depth, bool huge)
{
    const struct raw_io_config config = {
        .fd = work->raw_fd,
        .bytes = RAW_WRITES,
        .reads = RAW_READS,
        .block = block,
        .depth = depth,
        .huge_pages = huge,
    };
    struct raw_io *raw = raw_io_create(&config);
    if (!raw)
        fail("raw I/O failed");
    return raw;
}

// Of three, after one that warms up; of one, if these two are far from the shortest so far.
static double shortest_mix(struct raw_io *raw, double so_far)
{
    const double first = checked(raw_io_mix(raw));
    double shortest = checked(raw_io_mix(raw));
    if (so_far > 0 && first > 1.25 * so_far && shortest > 1.25 * so_far)
        return shortest;
    for (int i = 1; i < 3; i++) {
        const double seconds = checked(raw_io_mix(raw));
        shortest = seconds < shortest ? seconds : shortest;
    }
    return shortest;
}

// The block and depth with which this disk is fastest.
static struct raw_io *find_best(const struct work *work, bool huge)
{
    static const unsigned depths[] = {4, 8, 16, 32, 64};
    struct raw_io *best = NULL;
    size_t best_block = 0;
    unsigned best_depth = 0;
    double shortest = 0;
    for (size_t block = LARGEST_BLOCK >> 4; block <= LARGEST_BLOCK; block *= 2)
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            struct raw_io *raw = open_raw(work, block, depths[d], huge);
            const double seconds = shortest_mix(raw, shortest);
            if (!best || seconds < shortest) {
                raw_io_destroy(best);
                best = raw;
                shortest = seconds;
                best_block = block;
                best_depth = depths[d];
            } else {
                raw_io_destroy(raw);
            }
        }
    printf("raw I/O, %s: best with %zu KiB x %u\n", huge ? "2 MiB pages" : "4 KiB pages",
           best_block >> 10, best_depth);
    return best;
}

// The same of fio.
static void find_best_fio(struct work *work)
{
    static const size_t blocks[] = {256 << 10, 1 << 20, 4 << 20};
    static const unsigned depths[] = {16, 32, 64};
    struct fio_mix mix = {
        .fd = work->raw_fd,
        .bytes = (size_t)2 * RAW_WRITES,
        .moved = (size_t)RAW_WRITES + RAW_READS,
        .reads = 100 * (TILES - BUFFERS) / (2 * TILES - BUFFERS),
    };
    double shortest = 0;
    for (size_t b = 0; b < 3; b++)
        for (size_t d = 0; d < 3; d++) {
            mix.block = blocks[b];
            mix.depth = depths[d];
            const double seconds = checked(fio_mix(&mix));
            if (shortest == 0 || seconds < shortest) {
                shortest = seconds;
                work->fio = mix;
            }
        }
    printf("fio, its own buffers: best with %zu KiB x %u\n", work->fio.block >> 10,
           work->fio.depth);
}

static void probe_disk(const struct work *work)
{
    struct off_probe probe;
    struct base_error error = {.result = ZERO_OK};
    const struct off_probe_config probing = {.directory = work->directory,
                                             .engine = &off_engine_uring};
    if (off_probe(&probe, &probing, &error))
        fail(error.message);
    printf("probe: %.2f GB/s read, %.2f written, %.2f mixed\n", 1e-9 * probe.read_rate,
           1e-9 * probe.write_rate, 1e-9 * probe.mixed_rate);
}

// What the codec is to know of tiles: each is one piece, the same one.
static struct eng_piece whole = {
    .granules = ELEMENTS / ENG_GRANULE,
    .weight_size = sizeof(float),
    .moment_size = sizeof(float),
    .moments = FIELDS - 1,
    .never_negative = 1U << (FIELDS - 2),
};
static struct eng_piece_run runs[TILES];
static const struct eng_tiles tiles = {.pieces = &whole, .of_tile = runs, .count = TILES};

static void open_state(struct work *work, struct state *state, const struct off_codec *codec)
{
    size_t bytes[TILES];
    struct base_error error = {.result = ZERO_OK};
    int recorded;
    for (size_t i = 0; i < TILES; i++) {
        bytes[i] = TILE_BYTES;
        runs[i].count = 1;
    }
    const struct off_slots_config slots = {
        .path = state->in_place ? work->directory : work->path,
        .tiles = TILES,
        .tile_bytes = bytes,
        .in_place = state->in_place,
        .unchecked = state->in_place,
    };
    if (off_slots_open(&state->slots, &slots, &recorded, &error))
        fail(error.message);
    const struct off_stream_config stream = {
        .engine = &off_engine_uring,
        .credits = {ENG_TILES_UNDER_WAY, ENG_TILES_UNDER_WAY},
        .slots = state->slots,
        .tiles = TILES,
        .buffers = BUFFERS,
        .timeout_s = 60,
        .helpers = codec ? 2 : 1,
        .codec = codec,
        .codec_user = &tiles,
        .encode = true,
    };
    if (off_stream_create(&state->stream, &stream, &error))
        fail(error.message);
    printf("stream%s: %d tiles of %d KiB, %d in memory, %s\n",
           codec             ? ", encoded"
           : state->in_place ? ", in place"
                             : "",
           TILES, TILE_BYTES >> 10, BUFFERS, off_pages_text(off_stream_pages(state->stream)->kind));
    const int updates = work->updates;
    work->updates = 0;
    pass_of(work, state); // both places are written once
    pass_of(work, state);
    work->updates = updates;
    const struct off_stream_counts counts = off_stream_counts(state->stream);
    state->share = (double)counts.io.bytes[OFF_WRITE] / (double)counts.contents[OFF_WRITE];
    if (codec)
        printf("encoded: %.3f of the bytes\n", state->share);
}

static void close_state(struct state *state)
{
    off_stream_destroy(state->stream);
    off_slots_close(state->slots, true);
    state->stream = NULL;
    state->slots = NULL;
}

static bool wants(const struct work *work, char letter)
{
    return !work->rows || strchr(work->rows, letter);
}

// What a pass moves, in GB: tiles that are still in memory are not read.
static const double moved = 1e-9 * (2.0 * TILES - BUFFERS) * TILE_BYTES;

static bool is_raw(bench_fn fn)
{
    return fn == best_mix || fn == plain_mix || fn == fio;
}

// The rate of the reference.
static double row(struct work *work, const char *name, const char *reference_name, bench_fn ours,
                  bench_fn reference, double target)
{
    const struct bench_row r = {
        .name = name,
        .reference_name = reference_name,
        .unit = "GB/s",
        .ours_amount = moved,
        .reference_amount = is_raw(reference) ? 1e-9 * ((double)RAW_WRITES + RAW_READS) : moved,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = target,
    };
    const struct bench_result result = bench_measure(&r);
    bench_print(&r, &result);
    return result.reference_rate;
}

// What raw I/O of so much of the bytes comes to against a reference: what is possible on this disk.
static void print_possible(const struct work *work, double share, const char *over, double rate)
{
    if (work->best_rate > 0 && rate > 0)
        printf("  over %s, raw I/O of %.3g of the bytes: %.3f\n", over, share,
               work->best_rate / share / rate);
}

// So many updates of each tile that they take as long as its I/O.
static int balanced_updates(struct work *work)
{
    work->updates = 1;
    const double io = io_alone(work), begin = bench_now();
    update_in_memory(work);
    const double compute = bench_now() - begin;
    return (int)(io / compute + 0.5) + (io < compute);
}

static void set_up(struct work *work)
{
    snprintf(work->path, sizeof work->path, "%s/bench_offload.slots", work->directory);
    snprintf(work->raw_path, sizeof work->raw_path, "%s/bench_offload.raw", work->directory);
    work->gradient = base_calloc(ELEMENTS, sizeof(float));
    work->weight = base_calloc(ELEMENTS, sizeof(uint16_t));
    work->tiles = base_aligned_alloc(4096, BUFFERS * TILE_BYTES);
    if (!work->gradient || !work->weight || !work->tiles)
        fail("no memory");
    memset(work->tiles, 0, BUFFERS * TILE_BYTES);
    make_raw_file(work);
    probe_disk(work);
    open_state(work, &work->state, NULL);
}

// Row b: what others measure of the disk.
static void run_over_fio(struct work *work)
{
    if (fio_is_there()) {
        find_best_fio(work);
        const double rate = row(work, "swap stream, no update", "fio", io_alone, fio, 1.7);
        print_possible(work, 1, "fio", rate);
    } else {
        printf("fio is not installed: raw I/O from the same pages takes its place\n");
        work->plain = find_best(work, false);
        row(work, "swap stream, no update", "raw, 4 KiB", io_alone, plain_mix, 1.7);
    }
}

// Row a: what the disk gives.
static void run_over_raw(struct work *work)
{
    work->best_rate = row(work, "swap stream, no update", "raw", io_alone, best_mix, 0.95);
}

// Row d: what others do.
static void run_over_serial(struct work *work)
{
    work->serial = open_raw(work, 4 << 20, 1, false);
    const double rate = row(work, "AdamW on disk", "serial swap", pass, serial_swap, 2.5);
    print_possible(work, 1, "serial swap", rate);
}

// Rows a and b: the disk. c to e: beside updates.
static void run_rows(struct work *work)
{
    if (wants(work, 'a') || wants(work, 'g'))
        work->best = find_best(work, true);
    bench_print_header();
    if (wants(work, 'a'))
        run_over_raw(work);
    if (wants(work, 'b'))
        run_over_fio(work);
    work->updates = 1;
    if (wants(work, 'c'))
        row(work, "AdamW on disk: overlap", "slower part", pass, slower_alone, 0.97);
    if (wants(work, 'd'))
        run_over_serial(work);
    if (wants(work, 'e')) {
        work->updates = balanced_updates(work);
        row(work, "balanced: overlap", "slower part", pass, slower_alone, 0.95);
    }
    work->updates = 0;
}

// Row f: second places and checksums. g: compression, and d with it: as state in files is, by
// default, where the disk is the limit.
static void run_variants(struct work *work)
{
    if (wants(work, 'f')) {
        work->in_place.in_place = true;
        open_state(work, &work->in_place, NULL);
        row(work, "two places, checksums", "in place", pass, in_place, 1 / 1.03);
        close_state(&work->in_place);
    }
    if (wants(work, 'g')) {
        close_state(&work->state);
        open_state(work, &work->encoded, &eng_tile_codec);
        const double rate = row(work, "swap stream, encoded", "raw", encoded, best_mix, 1.05);
        print_possible(work, work->encoded.share, "raw", rate);
        if (wants(work, 'd')) {
            work->updates = 1;
            row(work, "AdamW on disk, encoded", "serial swap", encoded, serial_swap, 2.5);
            work->updates = 0;
        }
        close_state(&work->encoded);
    }
}

int main(int argc, char **argv)
{
    static struct work work;
    work.directory = argc > 1 ? argv[1] : ".";
    work.rows = argc > 2 ? argv[2] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    set_up(&work);
    run_rows(&work);
    run_variants(&work);
    close_state(&work.state);
    // Rows h, i and j: jobs.
    for (enum offload_job job = OFFLOAD_PARAMS; job <= OFFLOAD_SAVES; job++)
        if (wants(&work, (char)('h' + job)) && !offload_job_row(work.directory, job))
            fail("the job has failed");
    raw_io_destroy(work.best);
    raw_io_destroy(work.plain);
    raw_io_destroy(work.serial);
    close(work.raw_fd);
    return 0;
}
