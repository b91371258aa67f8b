// Checkpoints of a model without its arithmetic, one rank: how long a save blocks the program, what
// it costs the steps beside it, and how fast it is durable. What loads read, and how soon a killed
// rank's job steps again, is counted beside that: bench_save_job.c.
//
//     bench_save <folder> <zero-run> [<rows>]
//
// Files go below the folder: what is measured is its disk. Rows: blocks, steps, short (steps that
// compute little), durable, bound (durable, with one core), reads, restarts; all of them if none
// are named.
#include "tests/bench/bench_save.h"
#include "base/cpu.h"
#include "tests/bench/bench.h"
#include "tests/bench/local_update.h"
#include "tests/bench/weights.h"
#include "tests/ranks/bind.h"
#include "tests/unit/temporary.h"
#include "zero/snapshot/snapshot.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

// 264 MiB of weights and moments: 22 times 64 Ki of each in a unit.
enum { UNITS = 16, UNIT_ELEMENTS = 22 * 65536, STEPS = 20, PIECE = 4 << 20 };

// Steps whose forward and backward take several times what the update takes, as even small batches
// do, and ones in which they hardly take longer.
static const double long_s = 0.27, short_s = 0.075;

enum { SMALL = 64 * 1024, TRIES = 5, TRIED_PASSES = 100, MOST_BEHIND_S = 60 };

// A save that is waited for encodes with its own thread and with the one that waits: where it has
// two processors the codec has two threads, too, that have nothing else to do.
enum { CODECS = 2 };

struct block {
    struct ckpt_block_code code;
    const void *elements;
    size_t count;
};

struct work {
    struct team_rank *rank;
    const char *directory;
    struct eng_sources sources;
    struct base_tables tables; // of the sources
    struct base_arena copy;
    struct ckpt_block_codec *codec[CODECS];
    struct block *blocks; // of the state
    size_t block_count;
    size_t state_bytes, file_bytes;
    double behind_s; // of a save that no call waits for
    float small[SMALL];
    int passes;  // how often forward and backward of a unit compute
    bool filled; // every gradient buffer has values
    bool good;
};

static bool one_core;    // all of this process has to do with one
static const char *only; // the rows that are asked for; NULL: all

/* ------------------------------------------------------------------ the model */

static bool commit(struct team_rank *rank)
{
    rank->config.micro_batches = 1;
    return team_open(rank) && save_commit(rank, UNITS, UNIT_ELEMENTS, weights_fill);
}

// Arithmetic that stays in the cache.
static void compute(struct work *work)
{
    for (int pass = 0; pass < work->passes; pass++)
        for (size_t i = 0; i < SMALL; i++)
            work->small[i] = 0.999f * work->small[i] + 0.001f;
}

static void fill_gradient(struct work *work, zero_unit unit)
{
    float *gradient = zero_grad_ptr(work->rank->z, 0, unit);
    weights_fill(NULL, "gradient", unit, 0, UNIT_ELEMENTS, gradient);
}

static bool step(struct work *work)
{
    struct team_rank *rank = work->rank;
    const zero_step_args args = zero_step_args_for(&local_hyper, 1, 1.0, 0.0);
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit unit = 0; unit < 2 * UNITS; unit++) { // forward, and backward
        const zero_unit at = unit < UNITS ? unit : 2 * UNITS - 1 - unit;
        TEAM_OK(rank, zero_gather(rank->z, at, NULL));
        compute(work);
        if (unit >= UNITS) {
            TEAM_OK(rank, zero_grad_open_raw(rank->z, at, NULL));
            if (!work->filled)
                fill_gradient(work, at);
            TEAM_OK(rank, zero_grad_done(rank->z, at, NULL));
        }
        TEAM_OK(rank, zero_release(rank->z, at, NULL));
    }
    work->filled = true;
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

// How often a unit is computed so that a step's forward and backward take `seconds`.
static int passes_for(struct work *work, double seconds)
{
    double least = INFINITY;
    work->passes = TRIED_PASSES;
    for (int i = 0; i < TRIES; i++) {
        const double begin = bench_now();
        compute(work);
        least = fmin(least, bench_now() - begin);
    }
    return (int)(seconds / (2 * UNITS) * TRIED_PASSES / least);
}

static bool steps(struct work *work, int count)
{
    for (int i = 0; i < count; i++)
        if (!step(work))
            return false;
    return true;
}

/* ------------------------------------------------------------------ saves */

static bool save(struct work *work)
{
    zero_save_options options = zero_save_options_default();
    options.keep = 1; // the one before gives the next one's file
    TEAM_OK(work->rank, zero_save(work->rank->z, work->directory, &options));
    return true;
}

static zero_save_info poll(const struct work *work)
{
    zero_save_info info = {.struct_size = sizeof info};
    zero_save_poll(work->rank->z, &info);
    return info;
}

static bool durable(struct work *work)
{
    TEAM_OK(work->rank, zero_save_wait(work->rank->z));
    return true;
}

// Seconds that a save and all steps until it is complete were blocked by it, where the first step
// comes after `pause_s`.
static double blocked(struct work *work, double pause_s)
{
    const struct timespec pause = {.tv_sec = (time_t)pause_s,
                                   .tv_nsec = (long)(1e9 * (pause_s - (double)(time_t)pause_s))};
    work->good = work->good && steps(work, 1) && save(work);
    nanosleep(&pause, NULL);
    while (work->good && poll(work).phase == ZERO_SAVE_WRITING)
        work->good = step(work);
    return poll(work).blocked_s;
}

static double blocked_at_worst(void *user)
{
    return blocked(user, 0);
}

static double blocked_at_best(void *user)
{
    struct work *work = user;
    return blocked(work, 1.5 * work->behind_s);
}

// The same as the program sees it, without the steps after the first.
static double seen_at_worst(void *user)
{
    struct work *work = user;
    double begin = bench_now();
    work->good = work->good && steps(work, 2);
    const double alone = (bench_now() - begin) / 2;
    begin = bench_now();
    work->good = work->good && save(work) && step(work);
    const double seconds = bench_now() - begin - alone;
    work->good = work->good && durable(work);
    return seconds;
}

static double save_alone(void *user)
{
    struct work *work = user;
    work->good = work->good && step(work); // one of the same step would replace it
    const double begin = bench_now();
    work->good = work->good && save(work) && durable(work);
    work->file_bytes = (size_t)poll(work).file_bytes;
    return bench_now() - begin;
}

// Seconds until all elements are read of a save that no call waits for, or helps with.
static double save_behind(struct work *work)
{
    static const struct timespec pause = {.tv_nsec = 1000000};
    work->good = work->good && step(work);
    const double begin = bench_now();
    work->good = work->good && save(work);
    // One that fails does not get there, and says so below.
    while (work->good && poll(work).done_bytes < work->state_bytes &&
           bench_now() - begin < MOST_BEHIND_S)
        nanosleep(&pause, NULL);
    const double seconds = bench_now() - begin;
    work->good = work->good && durable(work);
    return seconds;
}

static double steps_with_save(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    work->good = work->good && save(work) && steps(work, STEPS) && durable(work);
    return bench_now() - begin;
}

static double steps_alone(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    work->good = work->good && steps(work, STEPS);
    return bench_now() - begin;
}

/* ------------------------------------------------------------------ what they are compared with */

static size_t field_bytes(const struct ckpt_source *source, int field)
{
    return source->run.count * source->code[field].element_bytes;
}

static double copy_state(void *user)
{
    const struct work *work = user;
    const double begin = bench_now();
    unsigned char *to = work->copy.memory;
    for (size_t i = 0; i < work->sources.count; i++)
        for (int f = 0; f < work->sources.list[i].fields; f++) {
            const size_t bytes = field_bytes(&work->sources.list[i], f);
            memcpy(to, work->sources.list[i].field[f], bytes);
            to += bytes;
        }
    return bench_now() - begin;
}

// One thread of the codec's.
struct encoder {
    const struct work *work;
    atomic_size_t *next;
    struct ckpt_block_codec *codec;
    unsigned char *out;
    pthread_t thread;
    bool good;
};

// Blocks that no other thread has taken, all to the same place.
static void *encode_blocks(void *user)
{
    struct encoder *encoder = user;
    const struct work *work = encoder->work;
    for (size_t b; (b = atomic_fetch_add(encoder->next, 1)) < work->block_count;) {
        const struct block *block = &work->blocks[b];
        uint32_t plane_bytes[CKPT_MAX_PLANES];
        encoder->good =
            encoder->good && !ckpt_encode(encoder->codec, block->code, block->elements,
                                          block->count, encoder->out, PIECE, plane_bytes, NULL);
    }
    return NULL;
}

// Every block of the state.
static double encode_state(struct work *work)
{
    const int threads = base_cpu_allowed() < CODECS ? 1 : CODECS;
    struct encoder encoders[CODECS];
    atomic_size_t next = 0;
    bool good = true;
    const double begin = bench_now();
    for (int i = 0; i < threads; i++) {
        encoders[i] = (struct encoder){work, &next, work->codec[i], work->copy.memory + i * PIECE,
                                       .good = true};
        if (i > 0)
            good = pthread_create(&encoders[i].thread, NULL, encode_blocks, &encoders[i]) == 0;
    }
    encode_blocks(&encoders[0]);
    for (int i = 1; good && i < threads; i++)
        pthread_join(encoders[i].thread, NULL);
    const double seconds = bench_now() - begin;
    for (int i = 0; i < threads; i++)
        work->good = work->good && good && encoders[i].good;
    return seconds;
}

static bool put(int fd, const struct work *work, size_t bytes)
{
    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < PIECE ? bytes - at : PIECE;
        if (pwrite(fd, work->copy.memory + at, part, (off_t)at) != (ssize_t)part)
            return false;
    }
    return true;
}

// Writes to a file of that name, which may be there already; whole units for O_DIRECT.
static double write_file(struct work *work, const char *name, int flags, size_t bytes)
{
    char path[SAVE_PATH];
    snprintf(path, sizeof path, "%s/%s", work->directory, name);
    const double begin = bench_now();
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    work->good = work->good && fd >= 0 && put(fd, work, bytes) &&
                 (flags & O_DIRECT ? fdatasync(fd) : fsync(fd)) == 0;
    if (fd >= 0)
        close(fd);
    return bench_now() - begin;
}

static double disk_compressed(struct work *work)
{
    return write_file(work, "compressed", O_DIRECT, work->file_bytes);
}

// The larger of what has to be done to the state and to the disk.
static double codec_or_disk(void *user)
{
    struct work *work = user;
    const double encoding = encode_state(work);
    const double writing = disk_compressed(work);
    return encoding > writing ? encoding : writing;
}

static void *disk_beside(void *user)
{
    disk_compressed(user);
    return NULL;
}

// Both, by threads that have nothing to do with each other: what no save is faster than.
static double codec_and_disk(void *user)
{
    static struct work beside;
    struct work *work = user;
    pthread_t thread;
    beside = *work;
    const double begin = bench_now();
    const bool started = pthread_create(&thread, NULL, disk_beside, &beside) == 0;
    encode_state(work);
    if (started)
        pthread_join(thread, NULL);
    work->good = work->good && started && beside.good;
    return bench_now() - begin;
}

static double disk_uncompressed(void *user)
{
    struct work *work = user;
    return write_file(work, "plain", O_DIRECT, work->state_bytes);
}

static double buffered_uncompressed(void *user)
{
    struct work *work = user;
    return write_file(work, "buffered", O_TRUNC, work->state_bytes);
}

/* ------------------------------------------------------------------ rows */

// `most`: the longest that is good enough, over the reference; 0: none is named.
static void row(struct work *work, const char *name, bench_fn ours, const char *reference_name,
                bench_fn reference, double most)
{
    const double amount = reference == steps_alone ? STEPS : 1e-9 * (double)work->state_bytes;
    const struct bench_row row = {
        .name = name,
        .reference_name = reference_name,
        .unit = reference == steps_alone ? "step/s" : "GB/s",
        .ours_amount = amount,
        .reference_amount = amount,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = most > 0 ? 1 / most : 0,
    };
    bench_run(&row);
}

static void list_field(struct work *work, const struct ckpt_source *source, int f)
{
    const uint64_t start = source->run.first, end = start + source->run.count;
    const struct ckpt_block_code code = source->code[f];
    const unsigned char *field = source->field[f];
    for (uint64_t first = start, next; first < end; first = next) {
        next = ckpt_block_end(first, end);
        work->blocks[work->block_count++] = (struct block){
            code, field + (first - start) * code.element_bytes, (size_t)(next - first)};
    }
}

static bool list_blocks(struct work *work)
{
    const size_t count = eng_save_load(work->rank->z, 0).blocks;
    work->blocks = base_calloc(count, sizeof *work->blocks);
    for (size_t i = 0; work->blocks && i < work->sources.count; i++)
        for (int f = 0; f < work->sources.list[i].fields; f++)
            list_field(work, &work->sources.list[i], f);
    return work->block_count == count;
}

static bool prepare(struct work *work)
{
    eng_sources_lay(&work->sources, eng_save_load(work->rank->z, 0).sources, &work->tables);
    TEAM_CHECK(!work->tables.failed);
    eng_sources_fill(work->rank->z, &work->sources);
    for (size_t i = 0; i < work->sources.count; i++)
        for (int f = 0; f < work->sources.list[i].fields; f++)
            work->state_bytes += field_bytes(&work->sources.list[i], f);
    TEAM_OK(work->rank, base_arena_init(&work->copy, work->state_bytes, PIECE, NULL));
    for (int i = 0; i < CODECS; i++)
        TEAM_OK(work->rank, ckpt_block_codec_create(&work->codec[i], CKPT_LEVEL_DEFAULT, NULL));
    TEAM_CHECK(list_blocks(work));
    work->good = steps(work, 3);
    for (int i = 0; i < 3; i++) // from then on files are recycled
        save_alone(work);
    work->behind_s = save_behind(work);
    return work->good;
}

static bool wanted(const char *rows)
{
    return !only || strcmp(only, rows) == 0;
}

static void rows_of_blocking(struct work *work)
{
    row(work, "save blocks, next step at once", blocked_at_worst, "memcpy", copy_state, 1.2);
    row(work, "save blocks, as the program sees it", seen_at_worst, "memcpy", copy_state, 0);
    row(work, "save blocks, next step after the write", blocked_at_best, "memcpy", copy_state, 0.1);
}

static void rows_of_writing(struct work *work)
{
    row(work, one_core ? "durable save, one core" : "durable save", save_alone, "codec or disk",
        codec_or_disk, 1.05);
    row(work, "codec and disk at once", codec_and_disk, "codec or disk", codec_or_disk, 0);
    if (one_core)
        return;
    row(work, "durable save", save_alone, "O_DIRECT, uncompressed", disk_uncompressed, 0);
    row(work, "durable save", save_alone, "buffered and fsync", buffered_uncompressed, 0);
}

static void row_of_steps(struct work *work, const char *name, double seconds)
{
    work->passes = passes_for(work, seconds);
    if (base_cpu_allowed() < 2)
        printf("%s is left out: this process may use one processor only\n", name);
    else
        row(work, name, steps_with_save, "no save", steps_alone, 1.05);
    work->passes = 0;
}

static bool run(struct team_rank *rank, void *user)
{
    static struct work work;
    work = (struct work){.rank = rank, .directory = user, .good = true};
    work.good = commit(rank) && prepare(&work);
    if (work.good && !one_core && wanted("blocks"))
        rows_of_blocking(&work);
    if (work.good && !one_core && wanted("steps"))
        row_of_steps(&work, "20 steps of 270 ms, a save beside", long_s);
    if (work.good && !one_core && wanted("short"))
        row_of_steps(&work, "20 steps of 75 ms, a save beside", short_s);
    if (work.good && (one_core || wanted("durable")))
        rows_of_writing(&work);
    base_tables_free(&work.tables);
    for (int i = 0; i < CODECS; i++)
        ckpt_block_codec_destroy(work.codec[i]);
    base_free(work.blocks);
    base_arena_free(&work.copy);
    return work.good;
}

/* ------------------------------------------------------------------ the program */

// Only what is bound to one processor: threads that are made from now on.
static bool run_bound(struct team_rank *rank, void *user)
{
    if (!bind_rank(0))
        return false;
    one_core = true;
    return run(rank, user);
}

static bool measure(const char *folder, const char *zero_run, const char *self)
{
    char directory[4][SAVE_PATH], base[SAVE_PATH - 16];
    snprintf(base, sizeof base, "%s/bench-save-XXXXXX", folder);
    if (!mkdtemp(base)) {
        perror(base);
        return false;
    }
    for (int i = 0; i < 4; i++)
        snprintf(directory[i], sizeof directory[i], "%s/%d", base, i);
    bench_print_header();
    bool good = true;
    if (wanted("blocks") || wanted("steps") || wanted("short") || wanted("durable"))
        good = team_run("self", 1, run, directory[0]);
    if (wanted("bound"))
        good = good && team_run("self", 1, run_bound, directory[3]);
    if (wanted("reads"))
        good = good && save_print_reads(directory[1]);
    if (wanted("restarts"))
        good = good && save_print_restarts(directory[2], zero_run, self);
    nftw(base, temporary_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return good;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return save_rank(argv[2]);
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: bench_save FOLDER ZERO-RUN [ROWS]\n");
        return 2;
    }
    only = argv[3];
    return measure(argv[1], argv[2], argv[0]) ? 0 : 1;
}
