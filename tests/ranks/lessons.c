// Failures that users of other sharded optimizers met, each as a test: gradients of some
// micro-batch lost under accumulation, the last one never reduced, one group's hyper-parameters
// taken for all, elements at the ends of what a rank owns mixed up.
//
// The gradient of micro-batch l is 2^l (1, 2 or 3 times, by the element), so that each one that is
// missing shows in the sum, and exact in every dtype. Without betas an update is
// -lr g / (|g| + eps), and an eps as large as g makes that tell sums apart, element by element.
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"

#include "base/bfloat16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, STEPS = 2, LARGEST = 5000, GROUPS = 2 };

struct job {
    struct toy toy;
    int32_t stage;
    const char *reduction;
};

// Both groups differ in everything, and both change from step to step.
static zero_hyper hyper_of(int group, int step)
{
    return group == 0 ? (zero_hyper){0.125 / (step + 1), 0.0, 0.0, 16.0, 0.0}
                      : (zero_hyper){0.5 * (step + 1), 0.0, 0.0, 64.0, 0.25};
}

static double multiple(uint64_t element)
{
    return 1.0 + (double)(element % 3);
}

static void add_gradient(zero_dtype dtype, void *array, uint64_t element, float value)
{
    if (dtype == ZERO_F32)
        ((float *)array)[element] += value;
    else
        ((uint16_t *)array)[element] =
            base_bf16_from_f32(toy_element(dtype, array, element) + value);
}

// Gradients of a unit; what does not count is full of NaN.
static bool give_unit(struct team_rank *rank, const struct toy *toy, zero_unit unit,
                      const zero_micro *micro)
{
    TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
    for (zero_param p = 0; p < toy->tensor_count; p++) {
        const struct toy_tensor *tensor = &toy->tensors[p];
        void *gradient = zero_grad_ptr(rank->z, p, unit - tensor->unit);
        for (uint64_t e = 0; gradient && e < tensor->numel; e++) {
            const float value = (float)(ldexp(1.0, (int)micro->index) * multiple(e));
            add_gradient(toy_dtype(toy, tensor), gradient, e, micro->counts ? value : NAN);
        }
    }
    TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    return true;
}

static bool step(struct team_rank *rank, const struct toy *toy, int s)
{
    const zero_hyper hyper[GROUPS] = {hyper_of(0, s), hyper_of(1, s)};
    zero_step_args args = zero_step_args_default();
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        zero_micro micro = {.struct_size = sizeof micro};
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--)
            if (!give_unit(rank, toy, unit, &micro))
                return false;
    }
    args.hyper = hyper;
    args.group_count = GROUPS;
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

static double updated(double weight, const zero_hyper *hyper, double gradient)
{
    return weight - hyper->lr * hyper->weight_decay * weight -
           hyper->lr * gradient / (fabs(gradient) + hyper->eps);
}

// A slice against the same updates in double precision.
static bool check_slice(struct team_rank *rank, const struct toy *toy, zero_param param,
                        int32_t slice)
{
    const struct toy_tensor *tensor = &toy->tensors[param];
    const double sum = ldexp(1.0, toy->micro_batches) - 1.0;
    float got[LARGEST];
    TEAM_OK(rank, zero_param_read(rank->z, param, slice, 0, tensor->numel, got));
    for (uint64_t e = 0; e < tensor->numel; e++) {
        double expected = (double)toy_value(toy, tensor->name, slice, e);
        for (int s = 0; s < STEPS; s++) {
            const zero_hyper hyper = hyper_of(tensor->group, s);
            expected = updated(expected, &hyper, sum * multiple(e));
        }
        if (fabs((double)got[e] - expected) > 1e-6) {
            fprintf(stderr, "%s, slice %d, element %d: %.9g, not %.9g\n", tensor->name, slice,
                    (int)e, (double)got[e], expected);
            return false;
        }
    }
    return true;
}

static bool accumulates(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    zero_step_result info = {.struct_size = sizeof info};
    rank->config.stage = job->stage;
    rank->config.reduction = job->reduction;
    if (!toy_open(rank, &job->toy))
        return false;
    for (int s = 0; s < STEPS; s++)
        if (!step(rank, &job->toy, s))
            return false;
    for (zero_param p = 0; p < job->toy.tensor_count; p++)
        for (int32_t slice = 0; slice < job->toy.tensors[p].slices; slice++)
            TEAM_CHECK(check_slice(rank, &job->toy, p, slice));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    double squares = 0.0;
    for (zero_param p = 0; p < job->toy.tensor_count; p++)
        for (uint64_t e = 0; e < job->toy.tensors[p].numel; e++)
            squares += job->toy.tensors[p].slices * multiple(e) * multiple(e);
    const double norm = (ldexp(1.0, job->toy.micro_batches) - 1.0) * sqrt(squares);
    TEAM_CHECK(fabs(info.norm - norm) < 1e-12 * norm);
    return true;
}

static void run(struct job *job, int world)
{
    if (!team_run(team_threads(world), world, accumulates, job))
        fail_msg("world %d, stage %d, V %d, dtype %d, %s", world, job->stage,
                 job->toy.micro_batches, job->toy.dtype, job->reduction ? job->reduction : "-");
}

static struct job job_of(zero_dtype dtype, int micro_batches, const char *reduction)
{
    struct job job = {.toy = toy_odd, .reduction = reduction};
    job.toy.dtype = dtype;
    job.toy.micro_batches = micro_batches;
    return job;
}

// DeepSpeed PR 7967, 7981, 7985: micro-batches but the first, or but the last, that were dropped.
static void every_micro_batch_is_in_the_sum(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int d = 0; d < 2; d++) {
                const int totals[] = {1, world, world + 1, 2 * world + 1};
                struct job job = job_of(d ? ZERO_BF16 : ZERO_F32, totals[(stage + d) % 4], NULL);
                job.stage = stage;
                run(&job, world);
            }
}

static void so_it_is_where_ranks_add_up_their_own(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 1; stage++)
            for (int d = 0; d < 2; d++) {
                struct job job = job_of(d ? ZERO_BF16 : ZERO_F32, 2 * world, "local");
                job.stage = stage;
                run(&job, world);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_micro_batch_is_in_the_sum),
        cmocka_unit_test(so_it_is_where_ranks_add_up_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
