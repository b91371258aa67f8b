/*
 * hello.c: the smallest whole program. Fits a linear map, sharded over any number of ranks:
 *
 *     ./hello      zero-run -n 4 -o stage=3 -- ./hello      mpirun -n 2 ./hello
 *
 * With micro_batches given, all of these print the same loss and the same fingerprint.
 */
#include <stdio.h>
#include <zero/random.h>
#include <zero/zero.h>

enum { INS = 64, OUTS = 64, SAMPLES = 64, MICRO_BATCHES = 4, STEPS = 200, SEED = 1 };

/* Loss and gradient on the data of one micro-batch: a function of weights, step and index alone. */
static double compute(const float *weight, float *gradient, const zero_micro *micro)
{
    const uint64_t stream = micro->step * MICRO_BATCHES + micro->index;
    double loss = 0;
    for (int s = 0; s < SAMPLES; s++) {
        float x[INS], error[OUTS] = {0};
        for (int i = 0; i < INS; i++)
            x[i] = (float)zero_random_normal(SEED, stream, (uint64_t)(s * INS + i));
        for (int i = 0; i < INS; i++) /* the map to find is 3 times the identity */
            for (int j = 0; j < OUTS; j++)
                error[j] += x[i] * (weight[i * OUTS + j] - (i == j ? 3.0f : 0.0f));
        for (int j = 0; j < OUTS; j++)
            loss += (double)error[j] * (double)error[j] / (SAMPLES * OUTS);
        for (int i = 0; i < INS; i++)
            for (int j = 0; j < OUTS; j++)
                gradient[i * OUTS + j] += 2 * x[i] * error[j] / (SAMPLES * OUTS);
    }
    return loss;
}

static zero_result step(zero_ctx *z, zero_param weight, double *loss, uint64_t n)
{
    zero_micro micro = {.struct_size = sizeof micro};
    for (int i = 0; i < zero_micro_count(z); i++) {
        zero_micro_begin(z, i, &micro); /* whatever fails here, zero_step() reports */
        zero_gather(z, 0, NULL);
        zero_grad_open(z, 0, NULL);
        zero_metric(z, "loss",
                    compute(zero_param_ptr(z, weight, 0), zero_grad_ptr(z, weight, 0), &micro));
        zero_grad_done(z, 0, NULL);
        zero_release(z, 0, NULL);
    }
    const zero_hyper adamw = {zero_schedule_cosine(n, 0.1, 10, STEPS, 0), 0.9, 0.99, 1e-8, 0};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &adamw;
    args.scale = 1.0 / MICRO_BATCHES; /* zero sums the micro-batches, the mean is ours */
    const zero_result result = zero_step(z, &args, NULL);
    return result ? result : zero_metric_mean(z, "loss", loss);
}

int main(void)
{
    zero_ctx *z;
    zero_param weight;
    zero_config config = zero_config_default(); /* ZERO_STAGE and others from the environment */
    config.micro_batches = MICRO_BATCHES;
    zero_param_desc desc = zero_param_default();
    desc = (zero_param_desc){desc.struct_size, ZERO_F32, "weight", {INS, OUTS}, .ndim = 2};
    double first = 0, loss = 0;
    uint8_t digest[16];
    zero_result result = zero_open(&z, &config);
    if (!result && !(result = zero_add_group(z, NULL, NULL)) &&
        !(result = zero_add_param(z, &weight, &desc)) && !(result = zero_commit(z)))
        for (uint64_t n = 1; n <= STEPS && !(result = step(z, weight, &loss, n)); n++)
            first = n == 1 ? loss : first;
    if (!result && !(result = zero_fingerprint(z, digest)) && zero_rank(z) == 0) {
        printf("hello: %d ranks, loss %.6f, after %d steps %.2g, fingerprint ", zero_world(z),
               first, STEPS, loss);
        for (int i = 0; i < 16; i++)
            printf("%02x", digest[i]);
        printf("\n");
    }
    if (result < 0)
        fprintf(stderr, "hello: %s\n", zero_last_error(z));
    zero_close(z);
    return result < 0 || loss > 1e-6 * first;
}
