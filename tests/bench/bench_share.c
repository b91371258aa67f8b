// What the engine adds to a training step: GPT-2's step at one rank, in which the engine takes the
// time it takes, over the same step in which a bare AdamW loop takes its place. Calls of the engine
// are timed where the program makes them: the linker puts the functions below in their place.
#include "base/arena.h"
#include "gpt2_trainer.h"
#include "tests/bench/bench.h"
#include "tests/bench/local_update.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 1 << 20, WORDS = 17 };

static double inside; // seconds in the engine

zero_result __real_zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro);
zero_result __wrap_zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro);
zero_result __real_zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __wrap_zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __real_zero_release(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __wrap_zero_release(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __real_zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __wrap_zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __real_zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __wrap_zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream);
zero_result __real_zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream);
zero_result __wrap_zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream);

static zero_result timed(double begin, zero_result result)
{
    inside += bench_now() - begin;
    return result;
}

zero_result __wrap_zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_micro_begin(z, i, micro));
}

zero_result __wrap_zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_gather(z, unit, stream));
}

zero_result __wrap_zero_release(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_release(z, unit, stream));
}

zero_result __wrap_zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_grad_open_raw(z, unit, stream));
}

zero_result __wrap_zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_grad_done(z, unit, stream));
}

zero_result __wrap_zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream)
{
    const double begin = bench_now();
    return timed(begin, __real_zero_step(z, args, stream));
}

struct work {
    struct options options;
    struct data data;
    struct trainer trainer;
    struct base_arena memory;
    struct local_state state;
    double rest; // seconds of a step outside the engine, the same in every round
    bool good;
};

/** A step: seconds in the engine; *rest: all others. */
static double step(struct work *work, double *rest)
{
    struct step_report report;
    inside = 0;
    const double begin = bench_now();
    work->good = work->good && trainer_step(&work->trainer, &report) == ZERO_OK;
    *rest = bench_now() - begin - inside;
    return inside;
}

static double ours(void *user)
{
    struct work *work = user;
    double rest;
    return work->rest + step(work, &rest);
}

static double reference(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    local_update(&work->state);
    return work->rest + bench_now() - begin;
}

static bool allocate(struct work *work)
{
    struct local_state *state = &work->state;
    const struct dims *dims = &work->options.dims;
    for (int u = 0; u < unit_count(dims); u++)
        state->count += unit_numel(dims, u);
    const size_t bytes = (state->count + 1024) * sizeof(float);
    if (base_arena_init(&work->memory, 4 * bytes, 4096, NULL))
        return false;
    float **const parts[] = {&state->gradient, &state->moment[0], &state->moment[1],
                             &state->weight};
    for (int k = 0; k < 4; k++) {
        float *part = *parts[k] = base_arena_alloc(&work->memory, bytes, 64);
        for (size_t i = 0; i < state->count; i++)
            part[i] = 1e-3f * (float)(1 + i % 1000);
    }
    return true;
}

static void measure(struct work *work, const char *stage)
{
    char name[64];
    snprintf(name, sizeof name, "gpt2 step, 1024 tokens, stage %s", stage);
    const struct bench_row row = {
        .name = name,
        .reference_name = "bare AdamW in it",
        .unit = "step/s",
        .ours_amount = 1,
        .reference_amount = 1,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = 1 / 1.02,
    };
    step(work, &work->rest);
    step(work, &work->rest);
    bench_run(&row);
}

static bool run(struct work *work, const char *stage)
{
    const char *const words[WORDS] = {"gpt2", "--layers",  "4",   "--heads", "8",  "--width",
                                      "256",  "--context", "256", "--batch", "4",  "--vocab",
                                      "2048", "--threads", "1",   "--stage", stage};
    char *argv[WORDS];
    struct reason reason = {0};
    const struct place place = {NULL, 1, 0};
    for (int i = 0; i < WORDS; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    work->good = options_parse(&work->options, WORDS, argv, &reason) == REQUEST_TRAIN &&
                 trainer_open(&work->trainer, &work->options, &work->data, &place) == ZERO_OK &&
                 allocate(work);
    if (work->good)
        measure(work, stage);
    if (!work->good)
        fprintf(stderr, "bench_share: %s%s\n", reason.text, trainer_failure(&work->trainer));
    trainer_close(&work->trainer);
    options_free(&work->options);
    base_arena_free(&work->memory);
    return work->good;
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    static const char *const stages[] = {"0", "1", "2", "3"};
    uint16_t *token = calloc(TOKENS, sizeof *token); // no time depends on them
    bool good = token != NULL;
    bench_print_header();
    for (int i = 0; i < 4 && good; i++) {
        struct work work = {.data = {.token = token, .count = TOKENS}};
        good = run(&work, stages[i]);
    }
    free(token);
    return good ? 0 : 1;
}
