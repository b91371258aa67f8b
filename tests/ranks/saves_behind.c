// A save of state in files while steps go on. The second update behind it writes over what it
// reads: each tile as soon as that has been read, and not before; the first one, and steps without
// an update, wait for nothing. Linked with --wrap: what the save has read is let through tile by
// tile, when the update has come so far behind it, and what is begun and written is seen.
#include "base/clock.h"
#include "base/thread.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"
#include "zero/store/nvme_tier.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { BEFORE = 3, AFTER = 5, MOST_RANKS = 3, MOST_TILES = 256, MOST_WAIT_S = 30 };

// Tiles that a save reads at a time, of those there are here: the one it waits for, and others.
enum { AT_A_TIME = 5 };

// Of a slice: more than two blocks of a checkpoint.
enum { NUMEL = 70001, BLOCK_BYTES = 12 * 32768 };

static struct temporary directory;

// "never" is frozen, and has tiles of its own, behind all others.
static const struct toy_tensor tensors[] = {
    {.name = "first", .unit = 0, .slices = 1, .numel = 3000, .group = 1},
    {.name = "never", .unit = 1, .slices = 1, .numel = 40000, .group = 1},
    {.name = "stacked", .unit = 0, .slices = 4, .numel = NUMEL},
    {.name = "small", .unit = 2, .slices = 1, .numel = 300, .wide = true},
};

// What becomes of the save.
enum ending { WELL, FAILED, CLOSED, ABORTED };

struct job {
    int stage;
    int64_t tile;   // bytes of one
    bool in_memory; // state is
    bool params;    // working copies are in files, too
    bool fused;     // the second update behind the save is
    bool skips;     // a step without an update comes between
    bool writes;    // values are written twice, instead of two updates
    bool half;      // the save is in the middle when the second update begins, not at its beginning
    bool durable;   // each step is
    bool resumes;   // at the step that an aborted one has left
    enum ending ending;
    uint8_t digest[16]; // filled in: at the end
};

/* ------------------------------------------------------------------ what the save reads */

enum gate {
    OPEN,     // reads go on
    SHUT,     // from some tile on they wait
    FOLLOWED, // each tile's until the update has written over the ones a little before
    BROKEN,   // they fail
};

// A rank's. What is read where, and what is written over.
static struct watch {
    const struct off_tilefile *tilefile;
    size_t training, first_shut, distance;
    uint64_t place[MOST_TILES]; // of the tile that is saved
    bool over[MOST_TILES];      // that was written to since
    enum gate gate;
    bool waits;        // at a gate that is shut
    bool early, stuck; // read when it had been written over; not let through in time
    bool again;        // read twice
    bool seen[MOST_TILES];
    size_t read, followed; // so many, of which so many behind the update
} watches[MOST_RANKS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news;
static size_t begun; // reads, of all ranks

void __real_off_tile_io_start(struct off_tile_io *tile_io, struct off_tile_op *move);
void __wrap_off_tile_io_start(struct off_tile_io *tile_io, struct off_tile_op *move);
zero_result __real_off_tilefile_check_recorded(const struct off_tilefile *tilefile, size_t tile,
                                               const struct off_contents *contents,
                                               const void *stored, struct base_error *error);
zero_result __wrap_off_tilefile_check_recorded(const struct off_tilefile *tilefile, size_t tile,
                                               const struct off_contents *contents,
                                               const void *stored, struct base_error *error);
void __real_off_tilefile_note_write(struct off_tilefile *tilefile, size_t tile, const void *stored,
                                    size_t bytes);
void __wrap_off_tilefile_note_write(struct off_tilefile *tilefile, size_t tile, const void *stored,
                                    size_t bytes);

void __wrap_off_tile_io_start(struct off_tile_io *tile_io, struct off_tile_op *move)
{
    pthread_mutex_lock(&mutex);
    begun += move->recorded != NULL;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&mutex);
    __real_off_tile_io_start(tile_io, move);
}

static struct watch *watch_of(const struct off_tilefile *tilefile)
{
    for (int r = 0; r < MOST_RANKS; r++)
        if (watches[r].tilefile == tilefile)
            return &watches[r];
    return NULL;
}

// Frozen tiles are behind all others.
static bool follows(const struct watch *watch, size_t tile)
{
    return watch->gate == FOLLOWED && tile < watch->training && tile >= watch->distance;
}

static bool is_held(const struct watch *watch, size_t tile)
{
    if (watch->gate == SHUT)
        return tile >= watch->first_shut;
    return follows(watch, tile) && !watch->over[tile - watch->distance];
}

// A read that is let through too early would be overtaken now.
static void pause_a_little(void)
{
    const struct timespec time = {.tv_nsec = 1000000};
    pthread_mutex_unlock(&mutex);
    nanosleep(&time, NULL);
    pthread_mutex_lock(&mutex);
}

static void wait_at_the_gate(struct watch *watch, size_t tile)
{
    const uint64_t until = base_clock_ns() + MOST_WAIT_S * UINT64_C(1000000000);
    watch->waits = watch->gate == SHUT && is_held(watch, tile);
    if (watch->waits)
        pthread_cond_broadcast(&news);
    while (is_held(watch, tile) && !watch->stuck) {
        base_cond_wait_until(&news, &mutex, until);
        watch->stuck = base_clock_ns() >= until;
    }
    watch->waits = false;
    watch->followed += follows(watch, tile);
    pause_a_little();
}

zero_result __wrap_off_tilefile_check_recorded(const struct off_tilefile *tilefile, size_t tile,
                                               const struct off_contents *contents,
                                               const void *stored, struct base_error *error)
{
    bool breaks = false;
    pthread_mutex_lock(&mutex);
    struct watch *watch = watch_of(tilefile);
    if (watch) {
        wait_at_the_gate(watch, tile);
        breaks = watch->gate == BROKEN;
        watch->early = watch->early || watch->over[tile];
        watch->again = watch->again || watch->seen[tile];
        watch->seen[tile] = true;
        watch->read++;
    }
    pthread_mutex_unlock(&mutex);
    return breaks ? zero_fail(error, ZERO_E_IO, "tile %zu is not let through", tile)
                  : __real_off_tilefile_check_recorded(tilefile, tile, contents, stored, error);
}

void __wrap_off_tilefile_note_write(struct off_tilefile *tilefile, size_t tile, const void *stored,
                                    size_t bytes)
{
    pthread_mutex_lock(&mutex);
    struct watch *watch = watch_of(tilefile);
    if (watch && watch->place[tile] == off_tilefile_next_place(tilefile, tile)) {
        watch->over[tile] = true;
        pthread_cond_broadcast(&news);
    }
    pthread_mutex_unlock(&mutex);
    __real_off_tilefile_note_write(tilefile, tile, stored, bytes);
}

static void set_gate(struct watch *watch, enum gate gate)
{
    pthread_mutex_lock(&mutex);
    watch->gate = gate;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&mutex);
}

// From here on what is recorded is what is watched. Blocks begin anywhere in tiles: one that is
// being read may have begun some tiles before. Of the tiles that are read at a time the last one
// may come first: it must not wait for what an update writes over only when the others have come.
static struct watch *begin_watch(const struct team_rank *rank, const struct job *job)
{
    const struct eng_tier *tier = rank->z->tier;
    struct watch *watch = &watches[rank->rank];
    pthread_mutex_lock(&mutex);
    *watch =
        (struct watch){.tilefile = tier->tilefile, .training = tier->tiles.training, .gate = SHUT};
    watch->distance = AT_A_TIME + (size_t)(BLOCK_BYTES / job->tile);
    if (job->fused && job->params) // groups go up, and down in each of them
        watch->distance += tier->tiles.in_group;
    watch->first_shut = job->half ? tier->tiles.training / 2 : 0;
    for (size_t tile = 0; tile < tier->tiles.count; tile++)
        watch->place[tile] = off_tilefile_current_place(tier->tilefile, tile);
    pthread_mutex_unlock(&mutex);
    return watch;
}

static bool await_the_gate(struct watch *watch)
{
    const uint64_t until = base_clock_ns() + MOST_WAIT_S * UINT64_C(1000000000);
    pthread_mutex_lock(&mutex);
    while (!watch->waits && base_clock_ns() < until)
        base_cond_wait_until(&news, &mutex, until);
    const bool waits = watch->waits;
    pthread_mutex_unlock(&mutex);
    TEAM_CHECK(waits);
    return true;
}

// While the first tile is not let through all ranks' saves begin to read others, and no more.
static bool begins_others(struct team_rank *rank)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    const uint64_t until = base_clock_ns() + MOST_WAIT_S * UINT64_C(1000000000);
    const size_t wanted = AT_A_TIME * (size_t)rank->world;
    pthread_mutex_lock(&mutex);
    while (begun < wanted && base_clock_ns() < until)
        base_cond_wait_until(&news, &mutex, until);
    pthread_mutex_unlock(&mutex);
    nanosleep(&pause, NULL); // if there were more they would begin at once
    pthread_mutex_lock(&mutex);
    const size_t found = begun;
    pthread_mutex_unlock(&mutex);
    TEAM_CHECK(found == wanted);
    TEAM_OK(rank, zero_barrier(rank->z)); // before one lets more through
    return true;
}

/* ------------------------------------------------------------------ a job */

static struct toy toy_of(bool fused)
{
    return (struct toy){
        .tensors = tensors,
        .tensor_count = sizeof tensors / sizeof *tensors,
        .unit_count = 4,
        .micro_batches = 3,
        .dtype = ZERO_BF16,
        .frozen = 1u << 1,
        .unclipped = true,
        .fused = fused,
    };
}

static bool open_job(struct team_rank *rank, const struct job *job, const struct toy *toy)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    rank->config.stage = job->stage;
    rank->config.name = "behind";
    rank->config.loss_scale = "off";
    rank->config.nonfinite = ZERO_NONFINITE_ERROR;
    rank->config.timeout_s = 2 * MOST_WAIT_S;
    if (!job->in_memory) {
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = job->params ? "nvme" : "host";
        rank->config.nvme_dir = directory.directory;
        rank->config.io = engines[(job->stage + rank->world) % 3];
        rank->config.tile_bytes = job->tile;
        rank->config.compress = job->half ? "on" : "off";
        rank->config.recovery = job->durable ? "durable" : "on";
    }
    if (!toy_open(rank, toy))
        return false;
    TEAM_CHECK(job->in_memory || rank->z->tier->tiles.count <= MOST_TILES);
    return true;
}

static bool micros(struct team_rank *rank, const struct toy *toy)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, toy, i, NULL, NULL))
            return false;
    return true;
}

static bool skip_step(struct team_rank *rank, const struct toy *toy)
{
    if (!micros(rank, toy))
        return false;
    TEAM_OK(rank, zero_skip_step(rank->z));
    return true;
}

static bool write_values(struct team_rank *rank)
{
    static const float values[NUMEL];
    TEAM_OK(rank, zero_param_write(rank->z, 2, 1, 0, NUMEL, values));
    return true;
}

// The last rank aborts the job, whose others are about to update: none of them does, whatever the
// save goes on with.
static bool abort_it(struct team_rank *rank, const struct toy *toy, struct watch *watch)
{
    (void)zero_barrier(rank->z); // all have handed their gradients over
    if (rank->rank == rank->world - 1)
        zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    set_gate(watch, OPEN);
    TEAM_CHECK(toy_update(rank, toy) != ZERO_OK);
    return true;
}

// What changes the state for the second time, where the save has got to at its gate: until that is
// opened nothing of it waits but what is written over.
static bool second_change(struct team_rank *rank, const struct job *job, struct watch *watch)
{
    const struct toy toy = toy_of(job->fused);
    if (watch && (job->half ? !await_the_gate(watch) : !begins_others(rank)))
        return false;
    if (!job->writes && !micros(rank, &toy))
        return false;
    if (job->ending == ABORTED)
        return abort_it(rank, &toy, watch);
    if (job->ending == CLOSED) {
        set_gate(watch, BROKEN);
        return true;
    }
    if (watch)
        set_gate(watch, job->ending == FAILED ? BROKEN : job->writes ? OPEN : FOLLOWED);
    if (job->writes)
        return write_values(rank);
    TEAM_OK(rank, toy_update(rank, &toy));
    return true;
}

static bool save_is_right(struct team_rank *rank, const struct job *job, const struct watch *watch,
                          const uint8_t digest[16])
{
    zero_save_info info = {.struct_size = sizeof info};
    if (job->ending == FAILED) {
        // Tiles that are on their way then may be written over: they count for nothing.
        TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_IO, "is not let through");
        TEAM_CHECK(!watch->stuck);
        return true;
    }
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_CHECK(!watch->stuck && !watch->early && !watch->again && watch->read > 0);
    TEAM_CHECK(watch->followed > 0 || watch->training < 2 * watch->distance || job->writes);
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_COMPLETE && memcmp(info.fingerprint, digest, 16) == 0);
    return true;
}

// At the step behind the save, of which nothing is left, and on to the end.
static bool come_back(struct team_rank *rank, struct job *job, const struct toy *toy)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    uint8_t now[16];
    char path[SAVED_PATH];
    saved_path(path, directory.directory, BEFORE);
    TEAM_FAILS(rank, zero_load(rank->z, path, NULL, NULL), ZERO_NOT_FOUND, "step-");
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &loaded));
    TEAM_CHECK(loaded.recovered && loaded.step == BEFORE + 1);
    if (!toy_train(rank, toy, 1 + AFTER - BEFORE))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, now));
    if (rank->rank == 0)
        memcpy(job->digest, now, sizeof now);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const struct toy toy = toy_of(false);
    uint8_t digest[16], now[16];
    struct watch *watch = NULL;
    char path[SAVED_PATH];
    if (!open_job(rank, job, &toy))
        return false;
    if (job->resumes)
        return come_back(rank, job, &toy);
    if (!toy_train(rank, &toy, BEFORE))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (!job->in_memory) {
        watch = begin_watch(rank, job);
        TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    }
    // The first one waits for nothing: nothing is read before it is over.
    if ((job->skips && !skip_step(rank, &toy)) ||
        !(job->writes ? write_values(rank) : toy_train(rank, &toy, 1)) ||
        !second_change(rank, job, watch))
        return false;
    if (job->ending == CLOSED || job->ending == ABORTED)
        return true;
    if (!toy_train(rank, &toy, AFTER - BEFORE) ||
        (watch && !save_is_right(rank, job, watch, digest)))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, now));
    if (rank->rank == 0)
        memcpy(job->digest, now, sizeof now);
    if (!watch || job->ending == FAILED)
        return true;
    saved_path(path, directory.directory, BEFORE);
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    TEAM_STATE(rank, digest);
    return true;
}

static void run(int world, struct job *job)
{
    if (!job->resumes)
        assert_true(temporary_empty(directory.directory));
    if (!team_run(team_threads(world), world, work, job))
        fail_msg("%d ranks, stage %d, tiles of %lld", world, job->stage, (long long)job->tile);
}

// And ends as the same steps in memory, without a save.
static void run_all(int world, struct job job)
{
    struct job plain = job;
    plain.in_memory = true;
    plain.fused = false;
    plain.ending = WELL;
    plain.durable = false;
    run(world, &plain);
    begun = 0;
    run(world, &job);
    if (job.ending == ABORTED) {
        job.resumes = true;
        run(world, &job);
    }
    if (job.ending != CLOSED)
        assert_memory_equal(job.digest, plain.digest, sizeof job.digest);
}

/* ------------------------------------------------------------------ tests */

static int set_up(void **state)
{
    (void)state;
    base_cond_init(&news);
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    memset(watches, 0, sizeof watches);
    pthread_cond_destroy(&news);
    temporary_remove(&directory);
    return 0;
}

static void an_update_follows_what_is_read(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const int number = 4 * (world - 1) + stage;
            if (test_takes(number + number / 3))
                run_all(world, (struct job){.stage = stage,
                                            .tile = number % 2 ? 65536 : 196608,
                                            .params = number % 4 > 1,
                                            .half = number / 2 % 2,
                                            .durable = number % 3 == 1});
        }
}

static void so_does_one_that_is_fused(void **state)
{
    (void)state;
    for (int number = 0; number < 6; number++)
        if (test_takes(number + number / 3))
            run_all(1 + number % 3, (struct job){.stage = 1 + number / 2,
                                                 .tile = 65536,
                                                 .fused = true,
                                                 .params = number % 2,
                                                 .half = number > 2});
}

// Records, which all steps leave, are not what is counted.
static void a_step_without_an_update_is_none(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        run_all(world, (struct job){.stage = 1 + world, .tile = 65536, .skips = true});
}

static void values_that_are_written_wait_too(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        run_all(world, (struct job){.stage = 1 + world, .tile = 65536, .writes = true});
}

static void nobody_waits_for_a_save_that_has_failed(void **state)
{
    (void)state;
    for (int number = 0; number < 4; number++)
        run_all(1 + number / 2, (struct job){.stage = 2,
                                             .tile = 65536,
                                             .fused = number % 2,
                                             .half = number > 1,
                                             .ending = FAILED});
}

static void a_job_is_closed_in_the_middle(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        run_all(
            world,
            (struct job){.stage = 2, .tile = 65536, .fused = true, .half = true, .ending = CLOSED});
}

// All steps that were ended are there, and no checkpoint.
static void a_job_is_aborted_in_the_middle(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        run_all(world, (struct job){.stage = 1 + world,
                                    .tile = 65536,
                                    .half = true,
                                    .durable = world > 1,
                                    .ending = ABORTED});
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_update_follows_what_is_read),          TEST(so_does_one_that_is_fused),
        TEST(a_step_without_an_update_is_none),        TEST(values_that_are_written_wait_too),
        TEST(nobody_waits_for_a_save_that_has_failed), TEST(a_job_is_closed_in_the_middle),
        TEST(a_job_is_aborted_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
