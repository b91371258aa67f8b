// Who updates what is offloaded from a GPU: what both ways are estimated to take, and what the plan
// says where nothing was measured.
#include <zero/optimizer.h>
#include <zero/zero.h>

#include "base/device.h"
#include "collectives/gpu/gcomm.h"
#include "zero/budget/updater_choice.h"
#include "zero/core/context.h"
#include "zero/exec/memory_probe.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ estimates */

static void the_host_takes_as_long_as_the_slower_of_copies_and_memory(void **state)
{
    (void)state;
    const struct eng_updater_work work = {
        .state = 120, .gradients = 40, .params = 20, .written = 10, .sums = 30};
    struct eng_updater_seconds s =
        eng_updater_estimate(&work, &(struct eng_updater_rates){.copies = 10, .memory = 1000});
    assert_true(s.host == 4 && s.device == 12); // the gradients, while parameters go the other way
    s = eng_updater_estimate(&work, &(struct eng_updater_rates){.copies = 10, .memory = 32});
    assert_true(s.host == 10 && s.device == 12); // state twice, gradients, sums, what is written
    const struct eng_updater_work more = {.gradients = 20, .params = 40};
    s = eng_updater_estimate(&more, &(struct eng_updater_rates){.copies = 10, .memory = 1000});
    assert_true(s.host == 4 && s.device == 0);
}

static void what_goes_through_the_host_anyway_counts_for_the_device_too(void **state)
{
    (void)state;
    const struct eng_updater_work work = {
        .state = 120, .gradients = 40, .params = 20, .written = 10, .staged = true};
    const struct eng_updater_seconds s =
        eng_updater_estimate(&work, &(struct eng_updater_rates){.copies = 10, .memory = 1000});
    assert_true(s.host == 4 && s.device == 16);
}

static void the_device_has_to_be_faster(void **state)
{
    (void)state;
    assert_true(eng_updater_takes_device(&(struct eng_updater_seconds){2, 1}));
    assert_false(eng_updater_takes_device(&(struct eng_updater_seconds){1, 2}));
    assert_false(eng_updater_takes_device(&(struct eng_updater_seconds){1, 1}));
}

static void a_probe_has_more_than_the_caches_of_its_threads(void **state)
{
    (void)state;
    const size_t mib = 1 << 20;
    assert_int_equal(eng_probe_bytes(1), 128 * mib);
    assert_int_equal(eng_probe_bytes(4), 128 * mib);
    assert_int_equal(eng_probe_bytes(5), 160 * mib);
    assert_int_equal(eng_probe_bytes(1024), 1024 * mib);
    for (int threads = 1; threads <= 5; threads += 4) {
        struct base_pool *pool = NULL;
        double rate = 0;
        assert_int_equal(base_pool_create(&pool, threads, NULL), ZERO_OK);
        assert_int_equal(eng_probe_memory(pool, NULL, &rate, NULL), ZERO_OK);
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

static void the_plan_says_who_updates_and_why(void **state)
{
    (void)state;
    expect_choice(AUTO "host\ndevice_transport=host", "2",
                  "  update       unknown: offload_update=auto, zero_commit() finds out",
                  "\"by\": \"unknown\"");
    expect_choice(AUTO "host", "1", "  update       unknown: ", "\"by\": \"unknown\"");
    if (gcomm_has("nccl"))
        expect_choice(AUTO "host", "2", "  update       unknown: ", "\"by\": \"unknown\"");
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
    expect_choice(AUTO "host\nreduction=local", "1",
                  "  update       unknown: ", "\"reason\": null");
    expect_choice(AUTO "host\nstage=1\ngather=shared", "2",
                  "by the host: offload_update=auto, gather=shared\n", "\"by\": \"host\"");
    expect_choice("offload_optimizer=host\noffload_update=host", "2",
                  "  update       by the host: offload_update=host\n", "\"host_s\": null");
    expect_choice("offload_optimizer=host", "1", "  update       unknown: offload_update=auto",
                  "\"by\": \"unknown\"");
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
    expect_choice(AUTO "host\ntile_bytes=2MiB\ndevice_transport=host", "2",
                  "  update       unknown", "\"by\": \"unknown\"");
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

// Beside the transport and the layout, until what is placed takes more.
static void what_measuring_takes_is_in_the_plan(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        size_t bytes;
    } cases[] = {{AUTO "host\ncpu_threads=7\ndevice_transport=host", 224 << 20},
                 {"offload_optimizer=host\ncpu_threads=7\ndevice_transport=host", 224 << 20},
                 {"offload_optimizer=host\noffload_update=host\ncpu_threads=7", 0},
                 {"device=cpu\ncpu_threads=7", 0},
                 {"offload_optimizer=host\ndevice=cpu\ncpu_threads=7", 0},
                 {AUTO "nvme\nnvme_dir=/tmp\ncpu_threads=7", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zero_ctx *z = plan(cases[i].options, "2");
        register_model(z, 0);
        assert_int_equal(zero_commit(z), ZERO_PLANNED);
        const size_t most = z->plan.peaks[ENG_PEAK_COMMIT].mine;
        if (cases[i].bytes)
            assert_int_equal(most, z->plan.rows[ENG_FOR_TRANSPORT].mine +
                                       eng_layout_bytes(&z->layout) + cases[i].bytes);
        else
            assert_int_equal(most, z->plan.peaks[ENG_PEAK_STEP].mine);
        zero_close(z);
    }
}

// What only measuring has no room for is not measured.
static void a_plan_fits_without_measuring(void **state)
{
    (void)state;
    uint64_t needed = 0;
    for (int missing = 0; missing < 2; missing++) {
        char options[128];
        snprintf(options, sizeof options, AUTO "host\ndevice_transport=host\nmemory_limit=%" PRIu64,
                 missing ? needed - 1 : UINT64_C(100) << 20);
        zero_ctx *z = plan(options, "2");
        register_model(z, 0);
        assert_int_equal(zero_commit(z), ZERO_PLANNED);
        needed = z->plan.fit.needed;
        assert_int_equal(z->plan.fit.verdict, missing ? ENG_FITS_NOT : ENG_FITS);
        assert_true(needed > 0 && needed < UINT64_C(100) << 20);
        assert_int_equal(needed, z->plan.peaks[eng_plan_worst(&z->plan)].sum);
        assert_non_null(strstr(zero_plan_text(z), "  update       unknown: "));
        zero_close(z);
    }
}

static struct eng_updater_work work_of(const char *options, const char *world)
{
    zero_ctx *z = plan(options, world);
    register_model(z, 0);
    assert_int_equal(zero_commit(z), ZERO_PLANNED);
    const struct eng_updater_work work = eng_updater_work(z);
    zero_close(z);
    return work;
}

// What ranks move is theirs, but at stage 0, where all of them update everything.
static void bytes_are_those_of_a_rank(void **state)
{
    (void)state;
    struct eng_updater_work work = work_of(AUTO "host\nstage=1\nmicro_batches=6", "2");
    assert_true(work.state == 1000 * (8 + 12) / 2.0 && work.gradients == 3 * 1000 * (4 + 2));
    assert_true(work.params == 6000 && work.written == 3000 && !work.staged);
    assert_true(work.sums == 2000 * (4 + 2 * 8 + 4) / 2.0);
    work = work_of(AUTO "host\nmicro_batches=6\nmoments=bf16\nmaster=none\ndevice_transport=host",
                   "2");
    assert_true(work.state == 1000 * (4 + 4) && work.written == 6000 && work.staged);
    assert_true(work.sums == 2000 * (4 + 2 * 8) / 2.0 + 2000 * 4); // and it reads all of them
    work = work_of(AUTO "host\ndevice_transport=host", "1");
    assert_true(!work.staged); // there is nobody to move anything to
    work = work_of(AUTO "host\nmicro_batches=3", "1");
    assert_true(work.sums == 2000 * (4 + 2 * 8 + 4));
    work = work_of(AUTO "host\nmicro_batches=3\nreduction=local", "1");
    assert_true(work.sums == 2000 * (4 + 4) && work.gradients == 6000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_takes_as_long_as_the_slower_of_copies_and_memory),
        cmocka_unit_test(what_goes_through_the_host_anyway_counts_for_the_device_too),
        cmocka_unit_test(the_device_has_to_be_faster),
        cmocka_unit_test(a_probe_has_more_than_the_caches_of_its_threads),
        cmocka_unit_test(the_plan_says_who_updates_and_why),
        cmocka_unit_test(what_the_gpu_has_is_looked_at),
        cmocka_unit_test(what_may_come_to_have_an_effect_is_no_error),
        cmocka_unit_test(optimizers_of_the_program_are_the_hosts),
        cmocka_unit_test(what_measuring_takes_is_in_the_plan),
        cmocka_unit_test(a_plan_fits_without_measuring),
        cmocka_unit_test(bytes_are_those_of_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
