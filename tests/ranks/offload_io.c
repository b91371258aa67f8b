// State, working copies and sums in files, by whatever way the kernel moves them: the same bits as
// in memory, past the cache and through it, and what it cuts short or puts off is counted. Saves
// find damage.
#include "base/fault.h"
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, RANKS = 2, FILES = 3 };

static struct temporary directory;

struct job {
    bool in_memory;
    zero_statistics stats[RANKS];
    uint8_t digest[16];
};

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    return 0;
}

static void configure(zero_config *config, int stage)
{
    config->stage = stage;
    config->micro_batches = toy_odd.micro_batches;
    config->log_level = ZERO_OFF;
    config->offload_optimizer = "nvme";
    config->offload_params = "nvme";
    config->offload_grads = "nvme";
    config->nvme_dir = directory.directory;
    config->tile_bytes = 65536;
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy = toy_odd;
    zero_statistics *stats = &job->stats[rank->rank];
    uint8_t digest[16];
    toy.dtype = ZERO_BF16;
    rank->config.micro_batches = toy.micro_batches;
    rank->config.stage = 3;
    if (!job->in_memory)
        configure(&rank->config, 3);
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    stats->struct_size = sizeof *stats;
    TEAM_OK(rank, zero_stats(rank->z, stats));
    return true;
}

static struct job run(bool in_memory, const char *fault)
{
    struct job job = {.in_memory = in_memory};
    base_fault_set(fault, NULL);
    if (!team_run(team_threads(RANKS), RANKS, work, &job))
        fail_msg("with %s", fault);
    assert_int_equal(temporary_entries(&directory), 0);
    return job;
}

// Where the file system has no O_DIRECT.
static void files_may_go_through_the_cache(void **state)
{
    (void)state;
    const struct job memory = run(true, NULL), cached = run(false, "file.direct:einval@1+");
    assert_int_equal(base_fault_fired(), RANKS * FILES);
    assert_memory_equal(memory.digest, cached.digest, sizeof memory.digest);
}

static uint64_t repeated(const struct job *job)
{
    return job->stats[0].io_repeated + job->stats[1].io_repeated;
}

static void every_file_is_counted(void **state)
{
    (void)state;
    const struct job memory = run(true, NULL), files = run(false, NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        const zero_statistics *stats = &files.stats[rank], *none = &memory.stats[rank];
        assert_true(stats->params_read_bytes > 0 && stats->params_written_bytes > 0);
        assert_true(stats->sums_read_bytes > 0 && stats->sums_written_bytes > 0);
        assert_int_equal(none->params_read_bytes + none->params_written_bytes, 0);
        assert_int_equal(none->sums_read_bytes + none->sums_written_bytes, 0);
    }
    assert_int_equal(repeated(&memory) + repeated(&files), 0);
}

// No step notices, whichever file it was.
static void what_is_repeated_is_counted(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        uint64_t count;
    } faults[] = {
        {"offload.read:eagain@1", 1},
        {"offload.short@60", 1},
        {"offload.enter:eagain@9", 1},
        {"offload.read:eagain@2,offload.read:eintr@4,offload.read:eagain@8,offload.read:eagain@16,"
         "offload.read:eagain@32,offload.read:eagain@64,offload.write:eagain@2,"
         "offload.write:eintr@4,offload.write:eagain@8,offload.write:eagain@16,"
         "offload.write:eagain@32,offload.write:eagain@64",
         12},
    };
    const struct job memory = run(true, NULL);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct job job = run(false, faults[i].spec);
        assert_int_equal(base_fault_fired(), faults[i].count);
        assert_int_equal(repeated(&job), faults[i].count);
        assert_memory_equal(memory.digest, job.digest, sizeof job.digest);
    }
}

/* ------------------------------------------------------------------ damage */

// Changes a byte of every page of the latter half of a rank's state: there are tiles only.
static bool damage(int rank)
{
    char pattern[128];
    glob_t found;
    struct stat status;
    snprintf(pattern, sizeof pattern, "%s/*-rank-%d.slots", directory.directory, rank);
    TEAM_CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1);
    const int fd = open(found.gl_pathv[0], O_RDWR);
    globfree(&found);
    TEAM_CHECK(fd >= 0 && fstat(fd, &status) == 0);
    for (off_t at = status.st_size / 8192 * 4096; at < status.st_size; at += 4096) {
        char byte;
        TEAM_CHECK(pread(fd, &byte, 1, at) == 1);
        byte ^= 1;
        TEAM_CHECK(pwrite(fd, &byte, 1, at) == 1);
    }
    close(fd);
    return true;
}

static bool save_damage(struct team_rank *rank, void *user)
{
    const int victim = *(const int *)user;
    configure(&rank->config, 2);
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 2))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(rank->rank != victim || damage(victim));
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_result r = zero_save(rank->z, directory.directory, NULL);
    if (!r)
        r = zero_save_wait(rank->z);
    TEAM_FAILS(rank, r, ZERO_E_CORRUPT, "is not what was written there");
    TEAM_FAILS(rank, zero_load(rank->z, temporary_path(&directory, "step-00000002"), NULL, NULL),
               ZERO_NOT_FOUND, "step-00000002");
    return true;
}

// No checkpoint is made of what has changed in the file since it was written.
static void a_save_finds_damage(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim++)
        assert_true(team_run("threads", RANKS, save_damage, &victim));
}

static bool save_refused(struct team_rank *rank, void *user)
{
    const char *saved = temporary_path(&directory, "saved");
    (void)user;
    configure(&rank->config, 2);
    rank->config.io = "uring";
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 2))
        return false;
    if (!saved_fault(rank, "offload.register:enomem@1"))
        return false;
    TEAM_FAILS(rank, zero_save(rank->z, saved, NULL), ZERO_E_LIMIT, "ulimit -l");
    if (!saved_fault(rank, "offload.uring:eperm@1"))
        return false;
    TEAM_FAILS(rank, zero_save(rank->z, saved, NULL), ZERO_E_UNSUPPORTED, "seccomp");
    return saved_fault(rank, NULL) && toy_train(rank, &toy_odd, STEPS) &&
           saved_now(rank, saved, NULL);
}

// One rank can't have the queue that a save reads by: all are told, and a later save does well.
static void a_save_without_io_uring_is_told(void **state)
{
    (void)state;
    assert_true(team_run("threads", RANKS, save_refused, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_may_go_through_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_file_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_repeated_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_save_finds_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_save_without_io_uring_is_told, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("offload_io", tests, NULL, NULL);
}
