// State, working copies and sums in files, by whatever way the kernel moves them: the same bits as
// in memory, past the cache and through it.
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_may_go_through_the_cache, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("offload_io", tests, NULL, NULL);
}
