// A context in which one chosen element gets the gradient that a test of overflows wants.
#ifndef TESTS_RANKS_OVERFLOW_JOB_H
#define TESTS_RANKS_OVERFLOW_JOB_H

#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"

#include <zero/optimizer.h>

// One element's gradient, summed over the micro-batches, is `gradient` from step `from` on; all
// others are 1.
struct overflow_job {
    int32_t stage;
    const char *optimizer;
    zero_dtype dtype;
    const char *master, *moments;
    zero_nonfinite policy;
    zero_hyper hyper;
    double scale;
    zero_param param;
    int32_t slice;
    uint64_t element;
    float first, gradient; // first value and gradient of that element
    int32_t steps;         // good ones; the next one is not
    int32_t skip_limit;
    bool fused, nvme, params_nvme, local, skips;
    zero_decay decay;
    const char *message;
};

// Where jobs keep files: made and removed by the two functions below, which cmocka calls.
extern struct temporary overflow_directory;
int overflow_set_up(void **state);
int overflow_tear_down(void **state);

// AdamW on f32 tensors, whose chosen element is number 4097 of "stacked", slice 1.
struct overflow_job overflow_job_of(const char *optimizer);

// Opens a context as the job says, adds its tensors and commits.
bool overflow_open(struct team_rank *rank, struct overflow_job *job);

// One step. `good`: all calls before zero_step succeeded; the result is zero_step's.
zero_result overflow_step(const struct team_rank *rank, const struct overflow_job *job, bool *good);
zero_step_args overflow_args(const struct overflow_job *job);

// Runs `fn` at world sizes 1, 2, 3 and 5 and all stages, or at those that the sweep takes.
void overflow_everywhere(const struct overflow_job *job, team_fn fn);

#endif
