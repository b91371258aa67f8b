#include "tests/bench/gpu_trainer.h"

#include "base/arena.h"
#include "base/device.h"

#include <stdio.h>
#include <stdlib.h>

enum { SKIPPED = 77, TOKENS = 1 << 20, MOST_WORDS = 64 };

void gpu_must(zero_result result, const char *message)
{
    if (!result)
        return;
    fprintf(stderr, "%s\n", message);
    exit(result == ZERO_E_UNSUPPORTED ? SKIPPED : 1);
}

void *gpu_room(size_t count, size_t size)
{
    void *memory = base_calloc(count, size);
    gpu_must(memory ? ZERO_OK : ZERO_E_NOMEM, "no memory");
    return memory;
}

static void call(const struct gpu_trainer *g, zero_result result)
{
    gpu_must(result, trainer_failure(&g->trainer));
}

static void draw_tokens(struct data *data, int vocab)
{
    uint32_t chance = 1;
    *data = (struct data){.token = gpu_room(TOKENS, sizeof *data->token), .count = TOKENS};
    for (size_t i = 0; i < TOKENS; i++) {
        chance = chance * 1664525 + 1013904223;
        data->token[i] = (uint16_t)((chance >> 16) % (uint32_t)vocab);
    }
}

void gpu_trainer_open(struct gpu_trainer *g, const char *batch, const char *stage, int more,
                      char **options)
{
    const char *const words[] = {"gpt2",    "--device",  "cuda", "--dtype", "bf16", "--layers",
                                 "12",      "--heads",   "12",   "--width", "768",  "--vocab",
                                 "50304",   "--context", "1024", "--lr",    "1e-4", "--steps",
                                 "1000000", "--batch",   batch,  "--stage", stage};
    const int count = (int)(sizeof words / sizeof *words);
    const struct place place = {NULL, 1, 0};
    struct reason reason = {0};
    char *argv[MOST_WORDS];
    int argc = 0;
    *g = (struct gpu_trainer){0};
    for (; argc < count; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    gpu_must(more <= MOST_WORDS - count ? ZERO_OK : ZERO_E_INVALID, "too many options");
    for (; argc < count + more; argc++)
        argv[argc] = options[argc - count];
    const bool trains = options_parse(&g->options, argc, argv, &reason) == REQUEST_TRAIN;
    gpu_must(trains ? ZERO_OK : ZERO_E_INVALID, reason.text);
    draw_tokens(&g->data, g->options.dims.vocab);
    call(g, trainer_open(&g->trainer, &g->options, &g->data, &place));
    const bool as_measured = g->trainer.micro_total == 1 && g->options.dtype == DTYPE_BF16;
    gpu_must(as_measured ? ZERO_OK : ZERO_E_INVALID,
             "it is one micro-batch a step, in bf16, that is measured here");
}

void gpu_trainer_close(struct gpu_trainer *g)
{
    trainer_close(&g->trainer);
    options_free(&g->options);
    base_free(g->data.token);
}

int gpu_trainer_tokens(const struct gpu_trainer *g)
{
    return g->options.batch * g->options.dims.context;
}

void gpu_trainer_wait(const struct gpu_trainer *g)
{
    const struct trainer *t = &g->trainer;
    const char *failure = t->ops->failure(t->compute);
    struct base_error error = {0};
    gpu_must(failure ? ZERO_E_DEVICE : ZERO_OK, failure);
    gpu_must(base_device_cuda.stream_sync(t->ops->stream(t->compute), &error), error.message);
}

void gpu_trainer_steps(struct gpu_trainer *g, int steps)
{
    struct step_report report;
    struct unit_weights weights;
    for (int i = 0; i < steps; i++)
        call(g, trainer_step(&g->trainer, &report));
    // What is gathered is the last update's.
    call(g, units_open(g->trainer.units, 0, &weights));
    call(g, units_close(g->trainer.units, 0));
    gpu_trainer_wait(g);
}
