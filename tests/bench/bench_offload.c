// State on a disk: the pipeline of offload/ against what the disk gives, what the processor takes
// for the same update in memory, and a swap as others do it. Arguments: the directory (default: .),
// and the rows to run, by their letters (default: all).
#include "base/arena.h"
#include "offload/disk_probe.h"
#include "offload/io/io_engine.h"
#include "offload/pipeline.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_offload_job.h"
#include "tests/bench/fio_mix.h"
#include "tests/bench/local_update.h"
#include "tests/bench/raw_io.h"
#include "zero/model/state_tiles.h"
#include "zero/store/nvme_codec.h"
#include "zero/store/nvme_compress.h"
#include "zero/store/tile_transfers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A tile is w, m and v of as many elements as a job's has, and so many are in memory.
enum { ELEMENTS = 170 * BASE_GRANULE, FIELDS = 3, TILES = 384, BUFFERS = ENG_TILES_IN_MEMORY };
enum { TILE_BYTES = ELEMENTS * FIELDS * 4 };

// Tiles of the file in place: records, and both places of each tile.
enum { PLACES = 1 + 2 * TILES };

// Raw I/O moves as much, but whole blocks of each size; and through as much memory, or what it
// moves would not come from there: of the same 4 MiB again and again some disks' hosts copy a tenth
// more.
enum { LEAST_BLOCK = 256 << 10, NEAR_TILE = ENG_TRANSFER_BYTES, LARGEST_BLOCK = 4 << 20 };
enum { RAW_WRITES = TILES * TILE_BYTES / LARGEST_BLOCK * LARGEST_BLOCK };
enum { RAW_READS = (TILES - BUFFERS) * TILE_BYTES / LARGEST_BLOCK * LARGEST_BLOCK };
enum { RAW_MEMORY = BUFFERS * NEAR_TILE };

// A pipeline over tiles.
struct state {
    struct off_tilefile *tilefile;
    struct off_pipeline *pipeline;
    double share; // of tiles' bytes that are written
    uint64_t step;
};

struct work {
    char path[512], raw_path[512];
    const char *directory, *rows;
    struct state state, in_place, encoded;
    size_t order[TILES];
    float *gradient;
    uint16_t *weight;
    unsigned char *tiles; // for updates in memory: as many as the pipeline has there
    int updates;          // of each tile in a pass: 0, or more where the processor is to be busy
    size_t head_bytes;    // of a state's file, before its first tile
    int raw_fd, tiles_fd; // a file for raw I/O; the states', for that, too
    struct raw_io *best, *block, *at_tiles, *plain, *serial;
    struct raw_io *again; // at the tiles' places, of the same memory again and again
    double block_share;   // of the best rate: what raw I/O reaches with blocks of a tile
    double best_rate;     // GB/s; 0: not measured
    struct fio_mix fio;
    const char *usual_name; // what others measure of the disk, and how; NULL: not looked for
    bench_fn usual;
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "bench_offload: %s\n", what);
    exit(1);
}

static _Noreturn void fail_errno(const char *what)
{
    fprintf(stderr, "bench_offload: %s: %s\n", what, strerror(errno));
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

static void pass_over(struct work *work, struct state *state, size_t count)
{
    struct base_error error = {.result = ZERO_OK};
    struct off_tile tile;
    off_pipeline_begin(state->pipeline, work->order, count);
    while (off_pipeline_next(state->pipeline, &tile, &error) == ZERO_OK) {
        if (state->step == 0)
            eng_codec_sample(tile.memory, ELEMENTS, tile.number);
        update_tile(work, tile.memory);
        off_pipeline_put(state->pipeline, &tile, true);
    }
    if (off_pipeline_end(state->pipeline, &error) || error.result)
        fail(error.message);
}

static double pass_of(struct work *work, struct state *state)
{
    struct base_error error = {.result = ZERO_OK};
    const double begin = bench_now();
    for (size_t i = 0; i < TILES; i++)
        work->order[i] = state->step % 2 ? TILES - 1 - i : i;
    pass_over(work, state, TILES);
    state->step++;
    if (off_tilefile_record(state->tilefile, state->step, NULL, 0, &error))
        fail(error.message);
    return bench_now() - begin;
}

static double pass(void *user)
{
    struct work *work = user;
    return pass_of(work, &work->state);
}

// Two, so that the same places as before are those of what is current.
static double two_passes(void *user)
{
    return pass(user) + pass(user);
}

static double encoded(void *user)
{
    struct work *work = user;
    return pass_of(work, &work->encoded);
}

static double two_encoded(void *user)
{
    return encoded(user) + encoded(user);
}

// Of a tile's two places the one that has nothing current.
static size_t free_place(const struct work *work, const struct state *state)
{
    return (off_tilefile_next_place(state->tilefile, 0) - work->head_bytes) / TILE_BYTES;
}

// One place a tile, nothing verified: in the places that the state leaves free.
static double in_place(void *user)
{
    struct work *work = user;
    const size_t place = free_place(work, &work->state);
    const double begin = bench_now();
    for (size_t i = 0; i < TILES; i++)
        work->order[i] = 1 + place + 2 * (work->in_place.step % 2 ? TILES - 1 - i : i);
    pass_over(work, &work->in_place, TILES);
    work->in_place.step++;
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

// At the places of a state.
static double tiles_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->at_tiles));
}

static double again_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->again));
}

static double block_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->block));
}

static double plain_mix(void *user)
{
    const struct work *work = user;
    return checked(raw_io_mix(work->plain));
}

// Several runs together: one by itself differs from the next by a tenth and more.
enum { FIO_RUNS = 4 };

static double fio(void *user)
{
    const struct work *work = user;
    double seconds = 0;
    for (int i = 0; i < FIO_RUNS; i++)
        seconds += checked(fio_mix(&work->fio));
    return seconds;
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

static struct raw_io *open_config(const struct raw_io_config *config)
{
    struct raw_io *raw = raw_io_create(config);
    if (!raw)
        fail("raw I/O failed");
    return raw;
}

static struct raw_io *open_raw(const struct work *work, size_t block, unsigned depth, bool huge)
{
    const struct raw_io_config config = {
        .fd = work->raw_fd,
        .reads = RAW_READS,
        .writes = RAW_WRITES,
        .write_at = RAW_WRITES,
        .block = block,
        .depth = depth,
        .huge_pages = huge,
        .memory = huge ? RAW_MEMORY : 0,
    };
    return open_config(&config);
}

// A swap writes a block back to where it has read it.
static struct raw_io *open_serial(const struct work *work)
{
    const struct raw_io_config config = {
        .fd = work->raw_fd,
        .reads = RAW_WRITES,
        .writes = RAW_WRITES,
        .block = LARGEST_BLOCK,
        .depth = 1,
    };
    return open_config(&config);
}

// Reads a state's current tiles, and writes to the places that it leaves free.
static struct raw_io *open_at_tiles(const struct work *work, const struct state *state,
                                    size_t memory, unsigned depth)
{
    const size_t place = free_place(work, state);
    const struct raw_io_config config = {
        .fd = work->tiles_fd,
        .reads = (size_t)(TILES - BUFFERS) * TILE_BYTES,
        .read_at = work->head_bytes + (1 - place) * TILE_BYTES,
        .writes = (size_t)TILES * TILE_BYTES,
        .write_at = work->head_bytes + place * TILE_BYTES,
        .run = TILE_BYTES,
        .stride = (size_t)2 * TILE_BYTES,
        .block = TILE_BYTES,
        .depth = depth,
        .huge_pages = true,
        .memory = memory,
    };
    return open_config(&config);
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

static const unsigned depths[] = {4, 8, 16, 32, 64};
enum { DEPTHS = sizeof depths / sizeof *depths };

// Keeps the faster one of two.
static void keep_faster(struct raw_io **best, double *shortest, struct raw_io *raw)
{
    const double seconds = shortest_mix(raw, *shortest);
    const bool faster = !*best || seconds < *shortest;
    raw_io_destroy(faster ? *best : raw);
    if (faster) {
        *best = raw;
        *shortest = seconds;
    }
}

// The depth with which this disk is fastest, and the block of at least `least` and at most `most`
// bytes.
static struct raw_io *find_best(const struct work *work, size_t least, size_t most, bool huge)
{
    struct raw_io *best = NULL;
    double shortest = 0;
    for (size_t block = least; block <= most; block *= 2)
        for (size_t d = 0; d < DEPTHS; d++)
            keep_faster(&best, &shortest, open_raw(work, block, depths[d], huge));
    printf("raw I/O, %s: best with %zu KiB x %u\n", huge ? "2 MiB pages" : "4 KiB pages",
           raw_io_config(best)->block >> 10, raw_io_config(best)->depth);
    return best;
}

// The same at a state's places.
static void find_best_at_tiles(const struct work *work, const struct state *state, size_t memory,
                               struct raw_io **best)
{
    double shortest = 0;
    raw_io_destroy(*best);
    *best = NULL;
    for (size_t d = 0; d < DEPTHS; d++)
        keep_faster(best, &shortest, open_at_tiles(work, state, memory, depths[d]));
    printf("raw I/O at the places of tiles%s: best with %u\n",
           memory > 0 ? "" : ", the same memory again and again", raw_io_config(*best)->depth);
}

// The same of fio.
static void find_best_fio(struct work *work)
{
    static const size_t blocks[] = {256 << 10, 1 << 20, 4 << 20};
    static const unsigned fio_depths[] = {16, 32, 64};
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
            mix.depth = fio_depths[d];
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
    struct off_disk_probe probe;
    struct base_error error = {.result = ZERO_OK};
    const struct off_disk_probe_config probing = {.directory = work->directory,
                                                  .engine = &off_io_engine_uring};
    if (off_disk_probe(&probe, &probing, &error))
        fail(error.message);
    printf("probe: %.2f GB/s read, %.2f written, %.2f mixed\n", 1e-9 * probe.read_rate,
           1e-9 * probe.write_rate, 1e-9 * probe.mixed_rate);
}

// What the codec is to know of tiles: each is one piece, the same one.
static struct eng_piece whole = {
    .granules = ELEMENTS / BASE_GRANULE,
    .weight_size = sizeof(float),
    .moment_size = sizeof(float),
    .moments = FIELDS - 1,
    .never_negative = 1U << (FIELDS - 2),
};
static struct eng_piece_range runs[TILES];
static const struct eng_tiles tiles = {.pieces = &whole, .of_tile = runs, .count = TILES};

// The file of the states, in which each tile has two places.
static struct off_tilefile_config tilefile_config(const struct work *work)
{
    static size_t bytes[TILES];
    for (size_t i = 0; i < TILES; i++)
        bytes[i] = TILE_BYTES;
    return (struct off_tilefile_config){.path = work->path, .tiles = TILES, .tile_bytes = bytes};
}

static void open_stream(struct state *state, size_t count, const struct off_tile_codec *codec)
{
    struct base_error error = {.result = ZERO_OK};
    const struct off_pipeline_config pipeline = {
        .engine = &off_io_engine_uring,
        .transfer_bytes = ENG_TRANSFER_BYTES,
        .credits = {ENG_TILES_UNDER_WAY, ENG_TILES_UNDER_WAY},
        .tilefile = state->tilefile,
        .tiles = count,
        .buffers = BUFFERS,
        .timeout_s = 60,
        .helpers = codec ? 2 : 1,
        .codec = codec,
        .codec_user = &tiles,
        .encode = true,
    };
    if (off_pipeline_create(&state->pipeline, &pipeline, &error))
        fail(error.message);
}

static void open_state(const struct work *work, struct state *state,
                       const struct off_tile_codec *codec)
{
    struct base_error error = {.result = ZERO_OK};
    const struct off_tilefile_config tilefile = tilefile_config(work);
    int recorded;
    for (size_t i = 0; i < TILES; i++)
        runs[i].count = 1;
    if (off_tilefile_open(&state->tilefile, &tilefile, &recorded, &error) ||
        off_tilefile_clear(state->tilefile, &error))
        fail(error.message);
    open_stream(state, TILES, codec);
}

// A file of its own has each tile in one place; it becomes the states', whose records lie where its
// first tile does, and whose two places are tiles here. Its pipeline is opened for row f alone.
static void open_in_place(struct work *work)
{
    static size_t bytes[PLACES];
    struct base_error error = {.result = ZERO_OK};
    const struct off_tilefile_config states = tilefile_config(work);
    char name[64];
    int recorded;
    work->head_bytes = off_tilefile_file_bytes(&states) - (size_t)2 * TILES * TILE_BYTES;
    bytes[0] = work->head_bytes;
    for (size_t i = 0; i < 2 * TILES; i++)
        bytes[1 + i] = TILE_BYTES;
    const struct off_tilefile_config config = {
        .path = work->directory,
        .tiles = PLACES,
        .tile_bytes = bytes,
        .in_place = true,
        .unchecked = true,
    };
    if (off_tilefile_open(&work->in_place.tilefile, &config, &recorded, &error))
        fail(error.message);
    snprintf(name, sizeof name, "/proc/self/fd/%d", off_tilefile_file(work->in_place.tilefile)->fd);
    unlink(work->path); // which a run that was interrupted has left
    if (linkat(AT_FDCWD, name, AT_FDCWD, work->path, AT_SYMLINK_FOLLOW) != 0)
        fail_errno("cannot give a file its name");
}

// Writes all places once, and says what there is.
static void begin_state(struct work *work, struct state *state, const char *name)
{
    const int updates = work->updates;
    work->updates = 0;
    printf("stream%s: %d tiles of %d KiB, %d in memory, %s\n", name, TILES, TILE_BYTES >> 10,
           BUFFERS, off_pages_text(off_pipeline_pages(state->pipeline)->kind));
    pass_of(work, state);
    pass_of(work, state);
    const struct off_pipeline_counts counts = off_pipeline_counts(state->pipeline);
    work->updates = updates;
    state->share = (double)counts.io.bytes[OFF_WRITE] / (double)counts.contents[OFF_WRITE];
}

// A file that is written part by part.
struct made_file {
    int fd;
    size_t bytes, at;
};

static int open_direct(const char *path, int flags)
{
    const int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        fail("cannot create a file here");
    return fd;
}

static void write_part(const struct work *work, struct made_file *file)
{
    const size_t left = file->bytes - file->at;
    const size_t bytes = left < LARGEST_BLOCK ? left : LARGEST_BLOCK;
    if (pwrite(file->fd, work->tiles, bytes, (off_t)file->at) != (ssize_t)bytes)
        fail("cannot write a file here");
    file->at += bytes;
}

// The file of the states, and one for raw I/O, which may write anywhere there. Files of one disk
// differ by up to a quarter, for as long as they are there: these are written for the first time in
// turns, and what is compared closely uses the same places of the same file.
static void make_files(struct work *work)
{
    const struct off_tilefile_config tilefile = tilefile_config(work);
    open_in_place(work);
    work->tiles_fd = open_direct(work->path, 0);
    work->raw_fd = open_direct(work->raw_path, O_CREAT | O_TRUNC);
    unlink(work->raw_path);
    struct made_file tiled = {work->tiles_fd, off_tilefile_file_bytes(&tilefile), 0};
    struct made_file raw = {work->raw_fd, 2 * (size_t)RAW_WRITES, 0};
    while (tiled.at < tiled.bytes || raw.at < raw.bytes) {
        write_part(work, &tiled);
        write_part(work, &raw);
    }
    fsync(work->tiles_fd);
    fsync(work->raw_fd);
}

static void close_state(struct state *state, bool remove)
{
    off_pipeline_destroy(state->pipeline);
    off_tilefile_close(state->tilefile, remove);
    state->pipeline = NULL;
    state->tilefile = NULL;
}

static bool wants(const struct work *work, char letter)
{
    return !work->rows || strchr(work->rows, letter);
}

// What a pass moves, in GB: tiles that are still in memory are not read.
static const double moved = 1e-9 * (2.0 * TILES - BUFFERS) * TILE_BYTES;

static double amount(bench_fn fn)
{
    const double raw = 1e-9 * ((double)RAW_WRITES + RAW_READS);
    if (fn == fio)
        return FIO_RUNS * raw;
    if (fn == best_mix || fn == block_mix || fn == plain_mix)
        return raw;
    return fn == two_passes || fn == two_encoded ? 2 * moved : moved;
}

static struct bench_result row(struct work *work, const char *name, const char *reference_name,
                               bench_fn ours, bench_fn reference, double target)
{
    const struct bench_row r = {
        .name = name,
        .reference_name = reference_name,
        .unit = "GB/s",
        .ours_amount = amount(ours),
        .reference_amount = amount(reference),
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = target,
    };
    const struct bench_result result = bench_measure(&r);
    bench_print(&r, &result);
    return result;
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
    make_files(work);
    probe_disk(work);
    open_state(work, &work->state, NULL);
    begin_state(work, &work->state, "");
}

// Row b: what others measure of the disk. In a file of its own: what files differ by is in it.
static void run_over_fio(struct work *work)
{
    if (fio_is_there()) {
        find_best_fio(work);
        work->usual_name = "fio";
        work->usual = fio;
    } else {
        printf("fio is not installed: raw I/O from the same pages takes its place\n");
        work->plain = find_best(work, LEAST_BLOCK, LARGEST_BLOCK, false);
        work->usual_name = "raw, 4 KiB";
        work->usual = plain_mix;
    }
    const struct bench_result result =
        row(work, "swap stream, no update", work->usual_name, two_passes, work->usual, 1.7);
    print_possible(work, 1, work->usual_name, result.reference_rate);
}

// What blocks of a tile are worth, in a file in which all sizes can be had; all there is to be had,
// if they are the best ones.
static void measure_blocks(struct work *work)
{
    work->best = find_best(work, LEAST_BLOCK, LARGEST_BLOCK, true);
    work->block_share = 1;
    if (raw_io_config(work->best)->block == NEAR_TILE)
        return;
    work->block = find_best(work, NEAR_TILE, NEAR_TILE, true);
    const struct bench_result result =
        row(work, "raw I/O, blocks of 2 MiB", "raw, any", block_mix, best_mix, 0);
    work->block_share = result.ratio < 1 ? result.ratio : 1;
}

// Rows a and g once more: over raw I/O that moves the same few blocks of memory, and writes no data
// that is not in caches.
static void run_over_again(struct work *work, const struct state *state, const char *name,
                           bench_fn ours, double target)
{
    find_best_at_tiles(work, state, 0, &work->again);
    row(work, name, "raw, again", ours, again_mix, target);
}

// Row a: what the disk gives, with blocks of any size. At the places of tiles they can only be as
// large as those: the target makes up for it.
static void run_over_raw(struct work *work)
{
    find_best_at_tiles(work, &work->state, RAW_MEMORY, &work->at_tiles);
    const struct bench_result result = row(work, "swap stream, no update", "raw, there", two_passes,
                                           tiles_mix, 0.95 / work->block_share);
    printf("  over raw I/O of any block size: %.3f, target 0.95\n",
           result.ratio * work->block_share);
    work->best_rate = result.reference_rate / work->block_share;
    run_over_again(work, &work->state, "swap stream, no update", two_passes, 0.95);
}

// Row d: what others do. In a file of its own, too.
static void run_over_serial(struct work *work)
{
    work->serial = open_serial(work);
    const struct bench_result result =
        row(work, "AdamW on disk", "serial swap", pass, serial_swap, 2.5);
    print_possible(work, 1, "serial swap", result.reference_rate);
}

// Rows a and b: the disk. c to e: beside updates.
static void run_rows(struct work *work)
{
    bench_print_header();
    if (wants(work, 'a') || wants(work, 'g'))
        measure_blocks(work);
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

// Row g, and b and d with it: as state in files is, by default, where the disk is the limit.
static void run_encoded(struct work *work)
{
    struct bench_result result;
    close_state(&work->state, false);
    open_state(work, &work->encoded, &eng_tile_codec);
    begin_state(work, &work->encoded, ", encoded");
    printf("encoded: %.3f of the bytes\n", work->encoded.share);
    find_best_at_tiles(work, &work->encoded, RAW_MEMORY, &work->at_tiles);
    result = row(work, "swap stream, encoded", "raw, there", two_encoded, tiles_mix,
                 1.05 / work->block_share);
    printf("  over raw I/O of any block size: %.3f, target 1.05; raw I/O of %.3g of the bytes: "
           "%.3f\n",
           result.ratio * work->block_share, work->encoded.share, 1 / work->encoded.share);
    work->best_rate = result.reference_rate / work->block_share;
    run_over_again(work, &work->encoded, "swap stream, encoded", two_encoded, 1.05);
    if (work->usual) {
        result = row(work, "swap stream, encoded", work->usual_name, two_encoded, work->usual, 1.7);
        print_possible(work, work->encoded.share, work->usual_name, result.reference_rate);
    }
    if (wants(work, 'd')) {
        work->updates = 1;
        result = row(work, "AdamW on disk, encoded", "serial swap", encoded, serial_swap, 2.5);
        print_possible(work, work->encoded.share, "serial swap", result.reference_rate);
        work->updates = 0;
    }
    close_state(&work->encoded, true);
}

// Row f: second places and checksums.
static void run_variants(struct work *work)
{
    if (wants(work, 'f')) {
        open_stream(&work->in_place, PLACES, NULL);
        in_place(work); // nothing is there to be read before
        row(work, "two places, checksums", "in place", two_passes, in_place, 1 / 1.03);
        off_pipeline_destroy(work->in_place.pipeline);
        work->in_place.pipeline = NULL;
    }
    if (wants(work, 'g'))
        run_encoded(work);
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
    close_state(&work.state, true);
    close_state(&work.in_place, false);
    // Rows h, i and j: jobs.
    for (enum offload_job job = OFFLOAD_PARAMS; job <= OFFLOAD_SAVES; job++)
        if (wants(&work, (char)('h' + job)) && !offload_job_row(work.directory, job))
            fail("the job has failed");
    raw_io_destroy(work.best);
    raw_io_destroy(work.block);
    raw_io_destroy(work.at_tiles);
    raw_io_destroy(work.again);
    raw_io_destroy(work.plain);
    raw_io_destroy(work.serial);
    close(work.raw_fd);
    close(work.tiles_fd);
    return 0;
}
