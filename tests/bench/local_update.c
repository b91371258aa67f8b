#include "tests/bench/local_update.h"

#include "zero/optim/optim.h"

enum { TILE = 64 * 1024 }; // elements of one call of the kernel, as in the engine

const zero_hyper local_hyper = {1e-6, 0.9, 0.999, 1e-8, 0.1};

static const struct eng_choice choice = {.decay = ZERO_DECAY_DECOUPLED};

static void prepare(struct local_state *state, union eng_scalars *scalars)
{
    if (!state->kernels) // looking for them reads system files
        state->kernels = base_kernels_find("auto");
    eng_optimizer_adamw.prepare(&choice, &local_hyper, 10, 1e-3, scalars);
}

static struct base_update run_of(const struct local_state *state, size_t i, size_t end)
{
    return (struct base_update){
        .count = end - i < TILE ? end - i : TILE,
        .gradient = state->gradient + i,
        .moment = {state->moment[0] + i, state->moment[1] + i},
        .weight = state->weight + i,
        .work = state->work ? state->work + i : NULL,
        .work_dtype = ZERO_BF16,
    };
}

void local_update(struct local_state *state)
{
    union eng_scalars scalars;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    prepare(state, &scalars);
    for (size_t i = 0; i < state->count; i += TILE) {
        const struct base_update run = run_of(state, i, state->count);
        eng_optimizer_adamw.update(&choice, state->kernels, &scalars, &run);
    }
    base_fp_leave(&saved);
}

void local_update_sums(struct local_state *state, size_t at, size_t count,
                       const float *const sources[2], size_t first)
{
    union eng_scalars scalars;
    struct base_fp_state saved;
    double squares[TILE / BASE_GRANULE];
    const void *const both[] = {sources[0], sources[1]};
    base_fp_enter(&saved);
    prepare(state, &scalars);
    for (size_t i = at; i < at + count; i += TILE) {
        const struct base_update run = run_of(state, i, at + count);
        const struct base_contributions from = {
            .dtype = ZERO_F32, .sources = both, .count = 2, .first = first + i - at};
        eng_optimizer_adamw.update_sum(state->kernels, &scalars, &run, &from, squares);
    }
    base_fp_leave(&saved);
}
