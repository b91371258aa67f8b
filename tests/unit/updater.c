// Who updates what is offloaded from a GPU: what the plan says where the ranks are not there.
#include <zero/optimizer.h>
#include <zero/zero.h>

#include "base/device.h"
#include "collectives/gpu/gcomm.h"
#include "zero/core/context.h"
#include "zero/exec/memory_probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void memory_is_timed(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads += 4) {
        struct base_pool *pool = NULL;
        double rate = 0;
        assert_int_equal(base_pool_create(&pool, threads, NULL), ZERO_OK);
        assert_int_equal(eng_probe_memory(pool, &rate, NULL), ZERO_OK);
        assert_true(rate > 0);
        base_pool_destroy(pool);
    }
}

/* ------------------------------------------------------------------ plans */

// Three tensors of AdamW: 1000 elements of f32, as many of bf16, and frozen ones.
static void register_model(zero_ctx *z, zero_group group)
{
    static const char *const names[] = {"wide", "narrow", "frozen"};
    for (int p = 0; p < 3; p++) {
        zero_param_desc desc = zero_param_default();
        desc.name = names[p];
        desc.dtype = p == 1 ? ZERO_BF16 : ZERO_F32;
        desc.ndim = 1;
        desc.shape[0] = 1000;
        desc.group = group;
        desc.frozen = p == 2;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
}

// Of a job that is not there, with state of a GPU in memory of the host.
static zero_ctx *plan(const char *options, const char *world)
{
    zero_config config = zero_config_default();
    zero_ctx *z = NULL;
    config.device = "cuda";
    config.log_level = ZERO_OFF;
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_WORLD", world, 1);
    setenv("ZERO_OPTIONS", options, 1);
    const zero_result r = zero_open(&z, &config);
    unsetenv("ZERO_PLAN");
    unsetenv("ZERO_PLAN_WORLD");
    unsetenv("ZERO_OPTIONS");
    if (r)
        fail_msg("%s", zero_last_error(NULL));
    return z;
}

static void expect_plan(zero_ctx *z, const char *text, const char *json)
{
    if (zero_commit(z) != ZERO_PLANNED)
        fail_msg("%s", zero_last_error(z));
    if (!strstr(zero_plan_text(z), text))
        fail_msg("no \"%s\" in:\n%s", text, zero_plan_text(z));
    if (!strstr(zero_plan_json(z), json))
        fail_msg("no '%s' in:\n%s", json, zero_plan_json(z));
    zero_close(z);
}

static void expect_choice(const char *options, const char *world, const char *text,
                          const char *json)
{
    zero_ctx *z = plan(options, world);
    register_model(z, 0);
    expect_plan(z, text, json);
}

#define AUTO "offload_update=auto\noffload_optimizer="
#define BY_DEVICE "  update       by the device: offload_update=auto\n"

// The GPU, unless the configuration says otherwise: there is none here that has too little room.
static void the_plan_says_who_updates_and_why(void **state)
{
    (void)state;
    expect_choice(AUTO "host\ndevice_transport=host", "2", BY_DEVICE, "\"by\": \"device\"");
    expect_choice(AUTO "host", "1", BY_DEVICE, "\"by\": \"device\"");
    if (gcomm_has("nccl"))
        expect_choice(AUTO "host", "2", BY_DEVICE, "\"by\": \"device\"");
    else
        expect_choice(AUTO "host", "2",
                      "by the host: offload_update=auto, this build has no NCCL\n",
                      "\"reason\": \"this build has no NCCL\"");
    expect_choice(AUTO "nvme\nnvme_dir=/tmp", "2",
                  "  update       by the host: offload_update=auto, state is in files\n",
                  "\"reason\": \"state is in files\"");
    expect_choice(AUTO "host\nreduction=local", "2",
                  "by the host: offload_update=auto, reduction=local, whose bits depend on it\n",
                  "\"by\": \"host\"");
    expect_choice(AUTO "host\nreduction=local", "1", BY_DEVICE, "\"reason\": null");
    expect_choice(AUTO "host\nstage=1\ngather=shared", "2",
                  "by the host: offload_update=auto, gather=shared\n", "\"by\": \"host\"");
    expect_choice("offload_optimizer=host\noffload_update=host", "2",
                  "  update       by the host: offload_update=host\n", "\"reason\": null");
    expect_choice("offload_optimizer=host", "1", BY_DEVICE, "\"by\": \"device\"");
    expect_choice("offload_optimizer=nvme\nnvme_dir=/tmp", "2",
                  "  update       by the host: offload_update=auto, state is in files\n",
                  "\"by\": \"host\"");
    expect_choice("device=cpu", "2", "  offload_update     auto             (default)",
                  "\"update\": null");
    expect_choice("offload_optimizer=host\noffload_update=device", "2",
                  "  update       by the device: offload_update=device\n", "\"by\": \"device\"");
    expect_choice("offload_optimizer=none", "1", "memory, bytes of this rank", "\"update\": null");
}

// What there is of a GPU's memory is known where there is one.
static void what_the_gpu_has_is_looked_at(void **state)
{
    (void)state;
    const struct base_device *cuda = base_device_find("cuda");
    int count;
    const bool there = cuda && !cuda->count(&count, NULL);
    expect_choice("stage=1", "3",
                  there ? "\n  fits         yes\n  not counted"
                        : "\n  fits         unknown: device=cuda: ",
                  there ? "\"fits\": true" : "\"memory_free\": null");
    expect_choice("stage=1", "3", "the GPU of this rank\n  need         ",
                  "\"gpu\": {\n    \"ranks\": 1");
    expect_choice("stage=1\nmemory_limit=off", "3",
                  "\n  fits         not checked: memory_limit=off\n  not counted",
                  "\"memory_free\": null");
    expect_choice("device=cpu", "3", "\nslots\n", "\"gpu\": null");
}

// What the other way could be set with may be said.
static void what_may_come_to_have_an_effect_is_no_error(void **state)
{
    (void)state;
    expect_choice(AUTO "host\ntile_bytes=2MiB\ndevice_transport=host", "2", BY_DEVICE,
                  "\"by\": \"device\"");
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

static void optimizers_of_the_program_are_the_hosts(void **state)
{
    (void)state;
    zero_ctx *z = plan(AUTO "host", "2");
    zero_optimizer_desc own = zero_optimizer_default();
    zero_group_desc group = zero_group_default();
    zero_group number;
    own.name = "own";
    own.prepare = prepare_own;
    own.update = update_own;
    assert_int_equal(zero_add_optimizer(z, &own), ZERO_OK);
    group.optimizer = "own";
    assert_int_equal(zero_add_group(z, &number, &group), ZERO_OK);
    register_model(z, number);
    expect_plan(z, "by the host: offload_update=auto, an optimizer of the program's own\n",
                "\"by\": \"host\"");
}

// To decide takes no memory: a plan of auto is that of the way it takes.
static void the_plan_is_that_of_the_way_that_is_taken(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {AUTO "host\ncpu_threads=7\ndevice_transport=host",
         "offload_optimizer=host\noffload_update=device\ncpu_threads=7\ndevice_transport=host"},
        {AUTO "host\nstage=1\ngather=shared\ncpu_threads=7",
         "offload_optimizer=host\noffload_update=host\nstage=1\ngather=shared\ncpu_threads=7"},
        {AUTO "nvme\nnvme_dir=/tmp\ncpu_threads=7",
         "offload_optimizer=nvme\nnvme_dir=/tmp\noffload_update=host\ncpu_threads=7"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        zero_ctx *z[2];
        for (int k = 0; k < 2; k++) {
            z[k] = plan(pairs[i][k], "2");
            register_model(z[k], 0);
            assert_int_equal(zero_commit(z[k]), ZERO_PLANNED);
        }
        assert_memory_equal(z[0]->plan.rows, z[1]->plan.rows, sizeof z[0]->plan.rows);
        assert_memory_equal(z[0]->plan.gpu, z[1]->plan.gpu, sizeof z[0]->plan.gpu);
        assert_memory_equal(z[0]->plan.peaks, z[1]->plan.peaks, sizeof z[0]->plan.peaks);
        assert_true(z[0]->config.streamed == z[1]->config.streamed);
        zero_close(z[0]);
        zero_close(z[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_timed),
        cmocka_unit_test(the_plan_says_who_updates_and_why),
        cmocka_unit_test(what_the_gpu_has_is_looked_at),
        cmocka_unit_test(what_may_come_to_have_an_effect_is_no_error),
        cmocka_unit_test(optimizers_of_the_program_are_the_hosts),
        cmocka_unit_test(the_plan_is_that_of_the_way_that_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
