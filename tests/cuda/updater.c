// offload_update=auto: the GPU updates unless a rank has a reason for the host, and ranks take one
// way together, with the bits of the host; and whether their GPUs have room (room.h). As a program:
// cuda.updater [no-nccl], where that library cannot be loaded.
#include "tests/cuda/driver.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/cuda/room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <cuda.h>

enum { SLOW_US = 10000 }; // of each MiB: 0.1 GB/s, which no memory is as slow as

static cuda_driver_slow_fn slow; // NULL: the GPUs are real
static cuda_driver_fail_fn fail_next;

/** What each rank has come to. */
static struct eng_updater found[JOB_RANKS];
static bool streamed[JOB_RANKS];

static void leave_it_open(zero_config *config)
{
    if (!config->device)
        return;
    config->offload_update = "auto";
    config->device_transport = "nccl";
    config->tile_bytes = 65536;
}

static bool note_and_train(struct place *place)
{
    const zero_ctx *z = place->rank->z;
    found[place->rank->rank] = z->update.updater;
    streamed[place->rank->rank] = z->config.streamed;
    if (z->config.on_device) {
        TEAM_CHECK(!z->config.undecided && z->config.resident == z->config.streamed);
        TEAM_CHECK(strstr(zero_plan_text(z),
                          z->config.streamed ? "  update       by the device: offload_update=auto"
                                             : "  update       by the host: offload_update=auto"));
        TEAM_CHECK(strstr(zero_plan_json(z),
                          z->config.streamed ? "\"by\": \"device\"" : "\"by\": \"host\""));
    }
    return job_train(place, JOB_STEPS) && job_conclude(place);
}

static struct job open_job(int world)
{
    struct job job = job_of(world, 2);
    job.toy.dtype = ZERO_BF16;
    job.toy.micro_batches = 2 * world;
    job.configure = leave_it_open;
    job.act = note_and_train;
    job.looks_elsewhere = true; // unit by unit, wherever it is
    return job;
}

static int set_up(void **state)
{
    (void)state;
    memset(found, 0, sizeof found);
    return 0;
}

static int as_fast_as_they_are(void **state)
{
    (void)state;
    for (int gpu = 0; slow && gpu < CUDA_DRIVER_GPUS; gpu++)
        slow(gpu, 0);
    return 0;
}

static void the_device_updates_where_nothing_is_against_it(void **state)
{
    (void)state;
    for (int world = 1; world <= 2 && job_gpu_each(world); world++) {
        const struct job job = open_job(world);
        job_compare(world, &job);
        assert_true(streamed[0] && streamed[world - 1]);
        assert_true(!*found[0].why && !*found[world - 1].why);
    }
}

// Nothing is measured: how fast copies are decides nothing.
static void the_device_updates_where_copies_are_slow(void **state)
{
    (void)state;
    if (!slow)
        skip();
    slow(0, SLOW_US);
    const struct job job = open_job(1);
    job_compare(1, &job);
    assert_true(streamed[0] && !*found[0].why);
}

/* ------------------------------------------------------------------ what ranks are told */

struct refusal {
    zero_result result;
    const char *words;
    int stage;
    bool others_differ; // all but rank 0 say who updates
};

static bool is_refused(struct team_rank *rank, void *user)
{
    const struct refusal *refusal = user;
    char device[24];
    snprintf(device, sizeof device, "cuda:%d", rank->rank % job_gpus());
    rank->config.device = device;
    rank->config.offload_optimizer = "host";
    rank->config.stage = refusal->stage;
    rank->config.offload_update = refusal->others_differ && rank->rank > 0 ? "device" : "auto";
    TEAM_CHECK(zero_open(&rank->z, &rank->config) == ZERO_OK && toy_register(rank, &toy_odd));
    TEAM_CHECK(zero_commit(rank->z) == refusal->result);
    if (!strstr(zero_last_error(rank->z), refusal->words))
        fprintf(stderr, "%s\n", zero_last_error(rank->z));
    TEAM_CHECK(strstr(zero_last_error(rank->z), refusal->words));
    team_close(rank);
    return true;
}

static void ranks_that_say_and_ranks_that_ask_differ(void **state)
{
    (void)state;
    struct refusal refusal = {.result = ZERO_E_DIVERGED,
                              .words = "ranks 0 and 1 differ in offload_update: auto and device",
                              .others_differ = true};
    // What gather comes to differs then, too.
    for (refusal.stage = 0; refusal.stage <= 2; refusal.stage += 2) {
        assert_true(team_run("threads", 2, is_refused, &refusal));
        assert_true(cuda_left_nothing());
    }
}

static void prepare_own(void *user, const zero_hyper *hyper, uint64_t updates, double scale,
                        void *scalars)
{
    (void)user, (void)hyper, (void)updates, (void)scale, (void)scalars;
}

static void update_own(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user, (void)scalars, (void)run;
}

// What a rank finds for itself of settings that may differ, or of a model that may not.
static bool one_has_a_reason(struct team_rank *rank, void *user)
{
    const bool own = *(const bool *)user, first = rank->rank == 0;
    const zero_group_desc default_group = zero_group_default();
    zero_group_desc another = default_group;
    char device[24];
    snprintf(device, sizeof device, "cuda:%d", rank->rank % job_gpus());
    rank->config.device = device;
    rank->config.offload_optimizer = "host";
    rank->config.offload_update = "auto";
    rank->config.stage = 2;
    rank->config.gather = first && !own ? "shared" : "auto";
    TEAM_CHECK(zero_open(&rank->z, &rank->config) == ZERO_OK);
    if (own && first) {
        zero_optimizer_desc desc = zero_optimizer_default();
        desc.name = another.optimizer = "own";
        desc.prepare = prepare_own;
        desc.update = update_own;
        TEAM_OK(rank, zero_add_optimizer(rank->z, &desc));
    }
    const zero_group_desc mine[2] = {another, default_group};
    struct toy toy = toy_odd;
    toy.groups = mine;
    TEAM_CHECK(toy_register(rank, &toy));
    const zero_result r = zero_commit(rank->z);
    if (own) {
        TEAM_CHECK(r == ZERO_E_DIVERGED);
        TEAM_CHECK(strstr(zero_last_error(rank->z), "ranks 0 and 1 differ in tensor "));
    } else {
        TEAM_CHECK(r == ZERO_OK && rank->z->config.shared && !rank->z->config.undecided);
        TEAM_CHECK(strstr(zero_plan_text(rank->z),
                          first ? "  update       by the host: offload_update=auto, gather=shared\n"
                                : "  update       by the host: offload_update=auto, another rank "
                                  "has a reason\n"));
    }
    team_close(rank);
    return true;
}

static void what_one_rank_finds_holds_for_all(void **state)
{
    (void)state;
    for (int own = 0; own <= 1; own++) {
        bool has_own = own;
        assert_true(team_run("threads", 2, one_has_a_reason, &has_own));
        assert_true(cuda_left_nothing());
    }
}

static void a_failure_of_the_device_is_told(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuModuleLoadData", "cuMemGetInfo"};
    if (!fail_next)
        skip();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct refusal refusal = {.result = ZERO_E_DEVICE, .words = calls[i]};
        fail_next(calls[i], CUDA_ERROR_LAUNCH_FAILED);
        assert_true(team_run("self", 1, is_refused, &refusal));
        assert_true(cuda_left_nothing());
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_device_updates_where_nothing_is_against_it, set_up,
                                        as_fast_as_they_are),
        cmocka_unit_test_setup_teardown(the_device_updates_where_copies_are_slow, set_up,
                                        as_fast_as_they_are),
        cmocka_unit_test(ranks_that_say_and_ranks_that_ask_differ),
        cmocka_unit_test(what_one_rank_finds_holds_for_all),
        cmocka_unit_test(a_failure_of_the_device_is_told),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    if (argc > 1 && strcmp(argv[1], "no-nccl") == 0)
        return room_tests_without_nccl();
    cuda_driver_find(CUDA_DRIVER_SLOW, &slow);
    cuda_driver_find(CUDA_DRIVER_FAIL, &fail_next);
    return cmocka_run_group_tests(tests, NULL, NULL) + room_tests();
}
