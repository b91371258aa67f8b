// How much of GPT-2's training step on a GPU attention takes: that of all layers, forward and
// backward, by itself, over a step of gpt2's trainer. bench_gpt2_gpu [OPTIONS]: of gpt2, beside
// those of GPT-2 124M with 16 sequences. Without a GPU that is a skip.
#include "base/arena.h"
#include "base/bfloat16.h"
#include "gpu_layers.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu_trainer.h"

enum { STEPS = 5 }; // of what one round does

struct work {
    struct gpu_trainer gpt2;
    struct layers layers;
    void *qkv, *out, *d_out, *d_qkv;
    float *weight, *delta;
};

static void check(const struct work *work)
{
    const char *failure = gpu_failure(work->layers.gpu);
    gpu_must(failure ? ZERO_E_DEVICE : ZERO_OK, failure);
}

// Numbers from -1 to 1.
static void *make_values(const struct work *work, size_t count)
{
    uint16_t *values = gpu_room(count, sizeof *values);
    uint32_t chance = 1;
    for (size_t i = 0; i < count; i++) {
        chance = chance * 1664525 + 1013904223;
        values[i] = base_bf16_from_f32((float)(chance >> 8) / (1 << 23) - 1);
    }
    void *there = gpu_alloc(work->layers.gpu, count * sizeof *values);
    gpu_copy(work->layers.gpu, there, values, count * sizeof *values);
    gpu_wait(work->layers.gpu);
    check(work);
    base_free(values);
    return there;
}

static void make(struct work *work)
{
    const struct dims *dims = &work->gpt2.options.dims;
    const size_t rows = (size_t)gpu_trainer_tokens(&work->gpt2), width = (size_t)dims->width;
    struct reason reason = {0};
    work->layers.dtype = GPU_BF16;
    work->layers.gpu = gpu_open(zero_device(work->gpt2.trainer.z), &reason);
    gpu_must(work->layers.gpu ? ZERO_OK : ZERO_E_DEVICE, reason.text);
    work->qkv = make_values(work, rows * 3 * width);
    work->d_qkv = make_values(work, rows * 3 * width);
    work->out = make_values(work, rows * width);
    work->d_out = make_values(work, rows * width);
    work->weight = gpu_alloc(work->layers.gpu, rows * (size_t)dims->heads * sizeof(float));
    work->delta = gpu_alloc(work->layers.gpu, rows * (size_t)dims->heads * sizeof(float));
    check(work);
}

static void unmake(struct work *work)
{
    void *const all[] = {work->qkv, work->d_qkv, work->out, work->d_out, work->weight, work->delta};
    gpu_wait(work->layers.gpu);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free(work->layers.gpu, all[i]);
    gpu_close(work->layers.gpu);
}

static double attention(void *user)
{
    const struct work *work = user;
    const struct options *o = &work->gpt2.options;
    const struct batch batch = {.windows = o->batch, .length = o->dims.context};
    const double begin = bench_now();
    for (int i = 0; i < STEPS * o->dims.layers; i++) {
        layers_attend(&work->layers, work->out, work->weight, work->qkv, batch, o->dims.heads,
                      o->dims.width);
        layers_attend_back(&work->layers, work->d_qkv, work->d_out, work->out, work->weight,
                           work->delta, work->qkv, batch, o->dims.heads, o->dims.width);
    }
    gpu_wait(work->layers.gpu);
    check(work);
    return bench_now() - begin;
}

static double steps(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    gpu_trainer_steps(&work->gpt2, STEPS);
    return bench_now() - begin;
}

int main(int argc, char **argv)
{
    struct work work = {0};
    blas_prepare(argv);
    gpu_trainer_open(&work.gpt2, "16", "0", argc - 1, argv + 1);
    make(&work);
    bench_print_header();
    bench_run(&(struct bench_row){
        .name = "gpt2 step, attention's share",
        .reference_name = "its attention alone",
        .unit = "step/s",
        .ours_amount = STEPS,
        .reference_amount = STEPS,
        .ours = steps,
        .reference = attention,
        .user = &work,
    });
    unmake(&work);
    gpu_trainer_close(&work.gpt2);
    return 0;
}
