// A step adds to the work of a program on a GPU. How much of that does a fused step hide behind
// backward? State is in memory of the host, updated by the host and by the GPU. How much of its
// gradients' way to the host does a plain step hide? bench_fused [ELEMENTS]: elements of a unit of
// the model (default: 16 Mi, 4.5 GiB of state). Without a GPU that is a skip.
#include "base/arena.h"
#include "base/cpu.h"
#include "base/device.h"
#include "tests/bench/bench.h"

#include <zero/zero.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SKIPPED = 77,
    UNITS = 24,
    ELEMENTS = 16 * 1024 * 1024,
    STEPS = 4, // of what one round does
    MOST_FILLS = 10000,
    PAGE = 4096,
};

struct work {
    const struct base_device *device;
    zero_ctx *z;
    void *stream, *scratch;
    size_t scratch_bytes;
    unsigned char *host; // gradient_bytes of each unit, pinned
    size_t gradient_bytes;
    int fills; // of the scratch memory: what the program computes for a unit, each way
};

enum kind {
    PLAIN,
    FUSED,
    SKIPPED_STEP, // ends when the last gradient is down and added up
};

static void must(zero_result result, const char *message)
{
    if (!result)
        return;
    fprintf(stderr, "bench_fused: %s\n", message);
    exit(result == ZERO_E_UNSUPPORTED ? SKIPPED : 1);
}

static void call(const struct work *work, zero_result result)
{
    must(result, zero_last_error(work->z));
}

/* ------------------------------------------------------------------ a step */

static void compute(const struct work *work)
{
    struct base_error error = {0};
    for (int i = 0; i < work->fills; i++)
        must(work->device->zero(work->scratch, work->scratch_bytes, work->stream, &error),
             error.message);
}

static void step(const struct work *work, const zero_step_args *args, enum kind kind)
{
    zero_ctx *z = work->z;
    zero_micro micro = {.struct_size = sizeof micro};
    call(work, zero_micro_begin(z, 0, &micro));
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        call(work, zero_gather(z, unit, work->stream));
        compute(work);
        call(work, zero_release(z, unit, work->stream));
    }
    if (kind == FUSED)
        call(work, zero_step_in_backward(z, args));
    for (zero_unit unit = UNITS - 1; unit >= 0; unit--) {
        call(work, zero_gather(z, unit, work->stream));
        call(work, zero_grad_open(z, unit, work->stream));
        compute(work);
        call(work, zero_release(z, unit, work->stream));
        call(work, zero_grad_done(z, unit, work->stream));
    }
    call(work, kind == SKIPPED_STEP ? zero_skip_step(z) : zero_step(z, args, work->stream));
}

/* ------------------------------------------------------------------ what is measured */

static void wait(const struct work *work)
{
    struct base_error error = {0};
    must(work->device->stream_sync(work->stream, &error), error.message);
    call(work, zero_barrier(work->z)); // all that is queued
}

static double bare(const struct work *work)
{
    const double begin = bench_now();
    for (int i = 0; i < STEPS * 2 * UNITS; i++)
        compute(work);
    wait(work);
    return bench_now() - begin;
}

static double steps(const struct work *work, enum kind kind)
{
    const zero_hyper hyper = {1e-3, 0.9, 0.95, 1e-8, 0.1};
    const zero_step_args args = zero_step_args_for(&hyper, 1, 1, 0);
    const double begin = bench_now();
    for (int i = 0; i < STEPS; i++)
        step(work, &args, kind);
    wait(work);
    return bench_now() - begin;
}

// What steps add to the program's work that are not fused, and what of that is gone where they
// are: rates of one amount have the ratio of the latter to the former.
static double added(void *user)
{
    return steps(user, PLAIN) - bare(user);
}

static double hidden(void *user)
{
    return steps(user, PLAIN) - steps(user, FUSED);
}

// The gradients' copies by themselves, and what of them costs a step no time.
static double copies(void *user)
{
    const struct work *work = user;
    struct base_error error = {0};
    const double begin = bench_now();
    for (int i = 0; i < STEPS; i++)
        for (size_t unit = 0; unit < UNITS; unit++)
            must(work->device->copy(work->host + unit * work->gradient_bytes, work->scratch,
                                    work->gradient_bytes, work->stream, &error),
                 error.message);
    wait(work);
    return bench_now() - begin;
}

static double hidden_copies(void *user)
{
    return copies(user) + bare(user) - steps(user, SKIPPED_STEP);
}

// Has backward take half as long again as what a step adds; says where it does not.
static void calibrate(struct work *work, const char *name, enum kind kind)
{
    work->fills = 1;
    steps(work, kind);
    const double one = bare(work), rest = steps(work, kind) - one;
    const double fills = 1 + 1.5 * fmax(rest, 0) / (0.5 * one);
    if (rest <= 0)
        printf("%s: steps take no longer than the program's own work\n", name);
    if (fills > MOST_FILLS)
        printf("%s: backward is shorter than it should be: %d fills a unit, not %.0f\n", name,
               MOST_FILLS, fills);
    work->fills = (int)fmin(fills, MOST_FILLS);
}

/* ------------------------------------------------------------------ rows */

static zero_ctx *open_model(const char *by, size_t elements)
{
    zero_config config = zero_config_default();
    zero_ctx *z = NULL;
    config.world = 1;
    config.transport = "self";
    config.micro_batches = 1;
    config.device = "cuda:0";
    config.offload_optimizer = "host";
    config.offload_update = by;
    config.nonfinite = ZERO_NONFINITE_ERROR;
    config.cpu_threads = base_cpu_allowed();
    const zero_result r = zero_open(&z, &config);
    must(r, zero_last_error(NULL));
    for (int unit = 0; unit < UNITS; unit++) {
        char name[16];
        zero_param_desc desc = zero_param_default();
        snprintf(name, sizeof name, "unit%d", unit);
        desc.name = name;
        desc.dtype = ZERO_BF16;
        desc.ndim = 1;
        desc.shape[0] = elements;
        desc.unit = unit;
        must(zero_add_param(z, NULL, &desc), zero_last_error(z));
    }
    must(zero_commit(z), zero_last_error(z));
    return z;
}

static void row(struct work *work, const char *name, const char *by, size_t elements)
{
    const double bytes = 1e-9 * STEPS * UNITS * (double)elements * 12; // of state
    work->z = open_model(by, elements);
    calibrate(work, name, PLAIN);
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = "what is hidden of it",
        .unit = "GB/s",
        .ours_amount = bytes,
        .reference_amount = bytes,
        .ours = added,
        .reference = hidden,
        .user = work,
        .target = 0.90,
    });
    zero_close(work->z);
}

static void gradients_row(struct work *work, const char *name, size_t elements)
{
    const double bytes = 1e-9 * STEPS * UNITS * (double)work->gradient_bytes;
    struct base_error error = {0};
    work->host = base_aligned_alloc(PAGE, UNITS * work->gradient_bytes);
    must(work->host ? ZERO_OK : ZERO_E_NOMEM, "no memory for gradients");
    memset(work->host, 0, UNITS * work->gradient_bytes); // all its pages are there
    must(work->device->pin(work->host, UNITS * work->gradient_bytes, &error), error.message);
    work->z = open_model("host", elements);
    calibrate(work, name, SKIPPED_STEP);
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = "what is hidden of them",
        .unit = "GB/s",
        .ours_amount = bytes,
        .reference_amount = bytes,
        .ours = copies,
        .reference = hidden_copies,
        .user = work,
        .target = 0.90,
    });
    zero_close(work->z);
    work->device->unpin(work->host);
    base_free(work->host);
}

int main(int argc, char **argv)
{
    const size_t elements = argc > 1 ? strtoul(argv[1], NULL, 10) : ELEMENTS;
    struct work work = {
        .device = &base_device_cuda, .scratch_bytes = 4 * elements, .gradient_bytes = 2 * elements};
    struct base_error error = {0};
    if (argc > 2 || elements == 0) {
        fprintf(stderr, "usage: %s [elements of a unit]\n", argv[0]);
        return 2;
    }
    must(work.device->enter(0, &error), error.message);
    must(work.device->stream_create(&work.stream, false, &error), error.message);
    must(work.device->alloc(&work.scratch, work.scratch_bytes, &error), error.message);
    bench_print_header();
    row(&work, "fused, hidden, by the host", "host", elements);
    row(&work, "fused, hidden, by the GPU", "device", elements);
    gradients_row(&work, "gradients' copies, hidden", elements);
    work.device->free(work.scratch);
    work.device->stream_destroy(work.stream);
    work.device->leave();
    return 0;
}
