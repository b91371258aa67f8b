/* Values of the configuration that would have no effect are refused, and say why; limits, and
 * values that say what is so anyway, may be given everywhere. */
#include <zero/optimizer.h>
#include <zero/zero.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/abi/one_rank.h"

/** Which tensors there are: a and b, in units of their own. */
struct model {
    zero_dtype dtype[2];
    bool frozen[2];
    const char *optimizer; /**< of b; a has adamw */
};

static const struct model f32 = {.optimizer = "adamw"};
static const struct model frozen_bf16 = {{ZERO_F32, ZERO_BF16}, {false, true}, "adamw"};
static const struct model bf16 = {{ZERO_F32, ZERO_BF16}, {true, false}, "sgd"};
static const struct model stateless = {{ZERO_F32, ZERO_F32}, {true, false}, "stateless"};
static const struct model half_stateless = {.optimizer = "stateless"};
static const struct model frozen = {{ZERO_BF16, ZERO_F16}, {true, true}, "adamw"};

static void update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    (void)scalars;
    (void)run;
}

static void add_model(zero_ctx *z, const struct model *model)
{
    zero_optimizer_desc own = zero_optimizer_default();
    own.name = "stateless";
    own.prepare = one_rank_prepare;
    own.update = update;
    assert_int_equal(zero_add_optimizer(z, &own), ZERO_OK);
    for (int p = 0; p < 2; p++) {
        zero_group_desc group = zero_group_default();
        group.optimizer = p ? model->optimizer : NULL;
        assert_int_equal(zero_add_group(z, NULL, &group), ZERO_OK);
        zero_param_desc desc = zero_param_default();
        desc.name = p ? "b" : "a";
        desc.dtype = model->dtype[p];
        desc.ndim = 1;
        desc.shape[0] = 5;
        desc.unit = p;
        desc.group = p;
        desc.frozen = model->frozen[p];
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
}

#define ON_NVME "offload_optimizer=nvme\nnvme_dir=/tmp\n"

/** Opens and commits with `options`; says: in the error, or NULL if there is none. */
static void expect(const char *options, const struct model *model, const char *says)
{
    const zero_config config = one_rank();
    zero_ctx *z = NULL;
    setenv("ZERO_OPTIONS", options, 1);
    zero_result r = zero_open(&z, &config);
    unsetenv("ZERO_OPTIONS");
    if (!r) {
        add_model(z, model);
        r = zero_commit(z);
    }
    const char *message = zero_last_error(z);
    if (r != (says ? ZERO_E_INVALID : ZERO_OK) || !strstr(message, says ? says : ""))
        fail_msg("%s: %d: \"%s\" instead of \"%s\"", options, r, message, says ? says : "");
    zero_close(z);
}

static void no_effect_is_an_error(void **state)
{
    (void)state;
    expect("master=none", &f32, "master=none, but all 2 tensors are f32");
    expect("master=none", &frozen_bf16,
           "master=none, but all 1 tensors of bf16 and f16 are frozen");
    expect("master=none", &bf16, NULL);
    expect("moments=bf16", &stateless,
           "moments=bf16, but no optimizer of the 1 tensors that train keeps moments");
    expect("moments=bf16", &frozen, "of the 0 tensors that train");
    expect("moments=bf16", &half_stateless, NULL);
    expect("moments=bf16", &bf16, NULL);
    expect("comm_dtype=f32", &frozen, "comm_dtype=f32, but all 2 tensors are frozen");
    expect("gather=shared", &f32, "gather=shared at stage 0");
    expect("loss_scale=off\nloss_scale_window=2000", &f32, "loss_scale_window has no effect");
    expect("loss_scale=8\nloss_scale_init=8", &f32, "loss_scale_init has no effect");
    expect("loss_scale_min=2", &f32, "loss_scale_min has no effect");
    expect("nonfinite=error\nskip_limit=3", &f32, "skip_limit has no effect");
    expect("nvme_dir=/tmp", &f32, "nvme_dir is set, but nothing is on NVMe");
    expect("offload_optimizer=host\ntile_bytes=1MiB", &f32, "tile_bytes is set, but nothing");
    expect("io=sync", &f32, "io is set, but nothing");
    expect("recovery=durable", &f32, "recovery is set, but nothing");
    expect("compress=on", &f32, "compress=on, but nothing is on NVMe");
    expect(ON_NVME "compress=on", &f32, NULL);
    expect("offload_optimizer=nvme", &f32, "offload_optimizer=nvme needs nvme_dir");
    expect("offload_params=nvme", &f32, "offload_params=nvme needs offload_optimizer=nvme");
    expect("offload_grads=nvme\nstage=1", &f32, "offload_grads=nvme needs offload_optimizer=nvme");
    expect(ON_NVME "offload_grads=nvme", &f32, NULL);
    expect(ON_NVME "offload_grads=nvme\nstage=1", &frozen,
           "offload_grads=nvme, but all 2 tensors are frozen");
    expect(ON_NVME "offload_params=nvme\nstage=3\ngather=shared", &f32,
           "gather=shared with offload_params=nvme");
    expect(ON_NVME "offload_params=nvme\npersist_numel=5", &f32,
           "no tensor has more than persist_numel=5");
    expect("reduction=local\nsum_group=2", &f32, "sum_group=2 with reduction=local");
    expect("offload_update=device", &f32, "offload_update=device, but no state is offloaded");
    expect("offload_update=device\noffload_optimizer=host", &f32, "but no state is offloaded");
    expect("offload_update=auto\ndevice=cuda", &f32,
           "offload_update=auto, but no state is offloaded from a GPU");
    expect("offload_update=device\ndevice=cuda", &f32, "but no state is offloaded from a GPU");
    expect(ON_NVME "offload_update=device\ndevice=cuda\noffload_grads=nvme", &f32,
           "offload_grads=nvme with offload_update=device");
    expect("device=tpu", &f32, "device=tpu: it is cpu, cuda");
    expect("device=cuda:x", &f32, "device=cuda:x: it is cpu, cuda");
    expect("device=cuda:1x", &f32, "device=cuda:1x: it is cpu, cuda");
    expect("device=cuda:4294967296", &f32, "device=cuda:4294967296: it is cpu, cuda");
    expect("device=cuda:", &f32, "device=cuda:: it is cpu, cuda");
    expect("device=cuda:1\nparanoid=1", &f32, "paranoid=1 with device=cuda:1");
}

static void what_is_so_anyway_may_be_said(void **state)
{
    (void)state;
    static const char *const harmless[] = {
        "master=f32", "moments=f32", "comm_dtype=f32", "comm_dtype=default", "gather=copy",
        "offload_update=host",
        // The number of micro-batches may change.
        "micro_batches=1\nsum_group=8", "micro_batches=1\nreduction=local",
        "micro_batches=1\nverify_micro=1",
        // Limits hold where they apply.
        "stage=0\nprefetch_units=7", "stage=3\ngather=shared\nprefetch_units=7",
        "stage=3\ngather=shared\nlive_bytes=1MiB", "stage=0\npersist_numel=5",
        "stage=1\nopen_units=1", "stage=1\ngrad_units=1", "cpu_threads=1", "stall_s=5",
        "timeout_s=5", "offload_params=host\noffload_grads=host", "compress=auto", "compress=off",
        "device=cpu"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        expect(harmless[i], &f32, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_effect_is_an_error),
        cmocka_unit_test(what_is_so_anyway_may_be_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
