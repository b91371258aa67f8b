// AdamW of one process beside PyTorch's and DeepSpeed's, by turns: bench_peers [PYTHON], a Python
// that has torch and, for its rows, deepspeed. What is timed begins with the first gradient's
// hand-over and ends with the step; a peer's begins with gradients in place.
#include "tests/bench/bench.h"
#include "tests/bench/other_program.h"

#include <zero/zero.h>

#include <stdio.h>
#include <stdlib.h>

enum { UNITS = 16, UNIT_ELEMENTS = 4 << 20 };
static const size_t elements = (size_t)UNITS * UNIT_ELEMENTS;

static const zero_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};

struct work {
    zero_ctx *z;
    double max_norm;  // 0: no clip
    bool in_backward; // the update runs while gradients are handed over, and reads them once
    bool filled;
    struct other_program peer;
};

static void ok(const struct work *work, zero_result result)
{
    if (!result)
        return;
    fprintf(stderr, "bench_peers: %s\n", zero_last_error(work->z));
    exit(1);
}

static void open_engine(struct work *work, zero_dtype dtype, int threads)
{
    zero_config config = zero_config_default();
    config.transport = "self";
    config.cpu_threads = threads;
    ok(work, zero_open(&work->z, &config));
    ok(work, zero_add_group(work->z, NULL, NULL));
    zero_param_desc desc = zero_param_default();
    desc.name = "weights";
    desc.dtype = dtype;
    desc.grad_dtype = ZERO_F32;
    desc.ndim = 2;
    desc.shape[0] = UNITS;
    desc.shape[1] = UNIT_ELEMENTS;
    desc.unit_count = UNITS;
    ok(work, zero_add_param(work->z, NULL, &desc));
    ok(work, zero_commit(work->z));
}

static void open_gradients(const struct work *work, const zero_step_args *args)
{
    ok(work, zero_micro_begin(work->z, 0, NULL));
    if (work->in_backward)
        ok(work, zero_step_in_backward(work->z, args));
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        ok(work, zero_grad_open_raw(work->z, unit, NULL));
        float *gradient = work->filled ? NULL : zero_grad_ptr(work->z, 0, unit);
        for (size_t i = 0; gradient && i < UNIT_ELEMENTS; i++)
            gradient[i] = 1e-3f * (float)(1 + i % 1000);
    }
}

static double ours(void *user)
{
    struct work *work = user;
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    args.max_norm = work->max_norm;
    open_gradients(work, &args);
    work->filled = true;
    const double begin = bench_now();
    for (zero_unit unit = 0; unit < UNITS; unit++)
        ok(work, zero_grad_done(work->z, unit, NULL));
    ok(work, zero_step(work->z, &args, NULL));
    return bench_now() - begin;
}

static double theirs(void *user)
{
    struct work *work = user;
    return other_program_time(&work->peer);
}

static void row(char *python, char *peer, bool in_backward, int threads)
{
    const bool deepspeed = peer[0] == 'd';
    struct work work = {.max_norm = deepspeed ? 1.0 : 0.0, .in_backward = in_backward};
    char name[64], thread_count[16], count[32];
    snprintf(thread_count, sizeof thread_count, "%d", threads);
    snprintf(count, sizeof count, "%zu", elements);
    snprintf(name, sizeof name, "%s, %d thread%s",
             deepspeed     ? "norm, clip, AdamW, bf16 copy"
             : in_backward ? "AdamW in backward, f32"
                           : "AdamW alone, f32",
             threads, threads > 1 ? "s" : "");
    char *arguments[] = {python, (char *)BENCH_SOURCES "/adamw_cpu.py", peer, thread_count, count,
                         NULL};
    if (!other_program_start(&work.peer, arguments))
        exit(1);
    open_engine(&work, deepspeed ? ZERO_BF16 : ZERO_F32, threads);
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = deepspeed ? "DeepSpeedCPUAdam" : "PyTorch, fused",
        .unit = "Mel/s",
        .ours_amount = 1e-6 * (double)elements,
        .reference_amount = 1e-6 * (double)elements,
        .ours = ours,
        .reference = theirs,
        .user = &work,
        .target = deepspeed ? 1.5 : 0.95,
    });
    other_program_stop(&work.peer);
    zero_close(work.z);
}

int main(int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "usage: bench_peers [PYTHON]\n");
        return 2;
    }
    char *python = argc == 2 ? argv[1] : (char *)"python3";
    bench_print_header();
    for (int threads = 1; threads <= 2; threads++) {
        row(python, (char *)"pytorch", false, threads);
        row(python, (char *)"pytorch", true, threads);
        row(python, (char *)"deepspeed", false, threads);
    }
    return 0;
}
