#include "tests/ranks/offload_job.h"

#include "base/fault.h"
#include "tests/ranks/saved.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct temporary offload_directory;

int offload_set_up(void **state)
{
    (void)state;
    return temporary_make(&offload_directory) && temporary_folder(&offload_directory, "saved") ? 0
                                                                                               : -1;
}

int offload_tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&offload_directory);
    return 0;
}

void offload_into_files(zero_config *config)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    config->name = "offload"; // another one would be another job
    config->offload_optimizer = "nvme";
    config->offload_grads = config->stage > 1 ? "nvme" : "host";
    config->nvme_dir = offload_directory.directory;
    config->io = engines[config->stage % 3];
    config->tile_bytes = 65536;
    config->compress = config->stage == 1 ? "off" : "on";
}

int offload_files_left(void)
{
    return temporary_entries(&offload_directory) - 1;
}

struct toy offload_toy_of(const struct offload_job *job)
{
    struct toy toy = toy_odd;
    toy.dtype = job->dtype;
    toy.frozen = 1u << 4; // one tensor
    return toy;
}

static bool come_back(struct team_rank *rank, const struct offload_job *job)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, temporary_path(&offload_directory, "saved"), NULL, &loaded));
    TEAM_CHECK(loaded.step == job->expected && loaded.recovered == job->recovered);
    TEAM_CHECK(loaded.damaged == job->damaged);
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == job->expected && info.updates == job->expected);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    struct offload_job *job = user;
    const struct toy toy = offload_toy_of(job);
    uint8_t digest[16];
    rank->config.stage = job->stage;
    rank->config.micro_batches = toy.micro_batches;
    rank->config.seed = job->seed;
    rank->config.persist_numel = job->persist;
    if (!job->in_memory) {
        offload_into_files(&rank->config);
        rank->config.offload_params = job->params ? "nvme" : "host";
        rank->config.compress = (rank->world + job->comes_back) % 2 ? "on" : "off";
        rank->config.offload_grads = job->no_sums ? "host" : rank->config.offload_grads;
    }
    if (job->tile > 0)
        rank->config.tile_bytes = job->tile;
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    if (job->comes_back && !come_back(rank, job))
        return false;
    const int before = job->saves ? 2 : 0;
    if (!toy_train(rank, &toy, before))
        return false;
    zero_save_options roomy = zero_save_options_default();
    roomy.room_bytes = 1 << 20;
    if (job->saves && !job->in_memory)
        TEAM_FAILS(rank, zero_save(rank->z, temporary_path(&offload_directory, "saved"), &roomy),
                   ZERO_E_INVALID, "room_bytes 1048576 has no effect");
    if (job->saves)
        TEAM_OK(rank, zero_save(rank->z, temporary_path(&offload_directory, "saved"), NULL));
    if (!toy_train(rank, &toy, job->steps - before))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return !job->dies || team_break_off(rank);
}

void offload_run(int world, struct offload_job *job)
{
    if (team_run(team_threads(world), world, work, job))
        return;
    fail_msg("%d ranks, stage %d, dtype %d", world, job->stage, job->dtype);
}

void offload_run_to(const struct offload_job *whole, int world, struct offload_job *job)
{
    offload_run(world, job);
    assert_memory_equal(whole->digest, job->digest, sizeof whole->digest);
}
