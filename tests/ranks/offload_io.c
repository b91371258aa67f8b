// State, working copies and sums in files, by whatever way the kernel moves them: the same bits as
// in memory, past the cache and through it, and what it cuts short or puts off is counted.
#include "base/fault.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

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

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy = toy_odd;
    zero_statistics *stats = &job->stats[rank->rank];
    uint8_t digest[16];
    toy.dtype = ZERO_BF16;
    rank->config.stage = 3;
    rank->config.micro_batches = toy.micro_batches;
    rank->config.offload_optimizer = job->in_memory ? NULL : "nvme";
    rank->config.offload_params = job->in_memory ? NULL : "nvme";
    rank->config.offload_grads = job->in_memory ? NULL : "nvme";
    rank->config.nvme_dir = job->in_memory ? NULL : directory.directory;
    rank->config.tile_bytes = job->in_memory ? 0 : 65536;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_may_go_through_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_file_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_repeated_is_counted, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("offload_io", tests, NULL, NULL);
}
