// compress=auto in whole jobs, on a disk that is made slow: each transfer of 1 MiB waits for some
// milliseconds, so what needs fewer of them is done sooner.
#include "base/fault.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// Four tiles a rank. Moments of zeros are all but nothing when encoded.
enum { RANKS = 2, ELEMENTS = RANKS * 1367 * 1024, TILE_BYTES = 4 << 20, STEPS = 9 };

static struct temporary directory;

struct job {
    bool in_memory;
    int encoded[RANKS]; // filled in: updates of each rank that have written so
    uint8_t digest[16]; // filled in
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user, (void)name, (void)slice;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)((first + i) * 2654435761 % 1000003) * 1e-6f;
    return ZERO_OK;
}

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = 1;
    rank->config.micro_batches = RANKS;
    if (!job->in_memory) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = TILE_BYTES;
        rank->config.compress = "auto";
    }
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    zero_param_desc desc = zero_param_default();
    desc.name = "weights";
    desc.dtype = ZERO_F32;
    desc.ndim = 1;
    desc.shape[0] = ELEMENTS;
    desc.fill = fill;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static bool step(struct team_rank *rank)
{
    const zero_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    args.scale = 1.0 / RANKS;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    TEAM_OK(rank, zero_grad_open(rank->z, 0, NULL)); // zeros
    TEAM_OK(rank, zero_grad_done(rank->z, 0, NULL));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

// The first updates write tiles as they are, and a trial writes them encoded. What is decided then
// is what the last update does, on all ranks: on a busy machine that may be either.
static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    zero_statistics stats = {.struct_size = sizeof stats};
    const uint64_t state = 12 * (uint64_t)ELEMENTS / RANKS;
    if (!open_job(rank, job))
        return false;
    for (int i = 0; i < STEPS; i++) {
        TEAM_OK(rank, zero_stats(rank->z, &stats));
        const uint64_t before = stats.state_written_bytes;
        if (!step(rank))
            return false;
        TEAM_OK(rank, zero_stats(rank->z, &stats));
        const bool encoded = stats.state_written_bytes - before < state / 2;
        TEAM_CHECK(job->in_memory || i > 2 || !encoded);
        job->encoded[rank->rank] += encoded;
        TEAM_CHECK(job->in_memory || i < STEPS - 1 || encoded == (stats.state_compressed == 1));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return true;
}

static void a_slow_disk_switches_it_on(void **state)
{
    (void)state;
    struct job whole = {.in_memory = true}, job = {.in_memory = false};
    assert_true(team_run("threads", RANKS, train, &whole));
    assert_true(temporary_make(&directory));
    base_fault_set("offload.*:delay@1+", NULL);
    const bool good = team_run("threads", RANKS, train, &job);
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    assert_true(good);
#ifndef TEST_SANITIZED // whose updates may take so long that the disk is in time
    assert_true(job.encoded[0] > 0);
#endif
    assert_int_equal(job.encoded[0], job.encoded[1]);
    assert_memory_equal(job.digest, whole.digest, sizeof whole.digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slow_disk_switches_it_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
