#include "tests/bench/local_update.h"

#include "zero/optim/optim.h"

enum { TILE = 64 * 1024 }; // elements of one call of the kernel, as in the engine

const zero_hyper local_hyper = {1e-6, 0.9, 0.999, 1e-8, 0.1};

void local_update(struct local_state *state)
{
    if (!state->kernels) // looking for them reads system files
        state->kernels = eng_kernels_find("auto");
    const struct eng_choice choice = {.decay = ZERO_DECAY_DECOUPLED};
    union eng_scalars scalars;
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    eng_optimizer_adamw.prepare(&choice, &local_hyper, 10, 1e-3, &scalars);
    for (size_t i = 0; i < state->count; i += TILE) {
        const struct eng_update run = {
            .count = state->count - i < TILE ? state->count - i : TILE,
            .gradient = state->gradient + i,
            .moment = {state->moment[0] + i, state->moment[1] + i},
            .weight = state->weight + i,
            .work = state->work ? state->work + i : NULL,
            .work_dtype = ZERO_BF16,
        };
        eng_optimizer_adamw.update(&choice, state->kernels, &scalars, &run);
    }
    eng_fp_leave(&saved);
}
