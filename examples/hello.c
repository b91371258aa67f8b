// hello.c: the smallest whole program. Fits a linear map, sharded over any number of ranks:
//
//     hello                 zero-run -n 4 -o stage=3 -- hello                 mpirun -n 2 hello
#include <stdio.h>
#include <zero/random.h>
#include <zero/zero.h>

enum { INS = 32, OUTS = 256, SAMPLES = 32, MICRO_BATCHES = 4, STEPS = 200, SEED = 1 };

// Loss and gradient of one micro-batch: a function of the weights and the micro-batch alone.
static double compute(const float *weight, float *gradient, const zero_micro *micro)
{
    double loss = 0;
    for (int s = 0; s < SAMPLES; s++) {
        float x[INS], error[OUTS] = {0};
        for (int i = 0; i < INS; i++)
            x[i] = (float)zero_random_normal(SEED, micro->step * MICRO_BATCHES + micro->index,
                                             (uint64_t)(s * INS + i));
        for (int i = 0; i < INS; i++) // the map to be found is 3 where i == j, else 0
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

static zero_result run_step(zero_ctx *z, zero_param weight, uint64_t n, double *loss)
{
    zero_micro micro = {.struct_size = sizeof micro};
    zero_result result = ZERO_OK;
    for (int i = 0; i < zero_micro_count(z); i++) {
        if ((result = zero_micro_begin(z, i, &micro)) || (result = zero_gather(z, 0, NULL)) ||
            (result = zero_grad_open(z, 0, NULL)))
            return result;
        *loss = compute(zero_param_ptr(z, weight, 0), zero_grad_ptr(z, weight, 0), &micro);
        zero_metric(z, "loss", *loss); // should one of these fail, zero_step() says so
        zero_grad_done(z, 0, NULL);
        zero_release(z, 0, NULL);
    }
    const zero_hyper adamw = {zero_schedule_cosine(n, 0.1, 10, STEPS, 0), 0.9, 0.99, 1e-8, 0};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &adamw;
    args.scale = 1.0 / MICRO_BATCHES; // zero sums the micro-batches' gradients
    result = zero_step(z, &args, NULL);
    return result ? result : zero_metric_mean(z, "loss", loss);
}

int main(void)
{
    zero_ctx *z;
    zero_param weight;
    zero_config config = zero_config_default(); // the stage comes from ZERO_STAGE or zero-run
    config.micro_batches = MICRO_BATCHES;
    const zero_param_desc desc = {
        .struct_size = sizeof desc, .name = "weight", .ndim = 2, .shape = {INS, OUTS}};
    double first = 0, loss = 0;
    uint8_t digest[16] = {0};
    zero_result result = zero_open(&z, &config);
    if (!result && !(result = zero_add_group(z, NULL, NULL)) &&
        !(result = zero_add_param(z, &weight, &desc)) && !(result = zero_commit(z)))
        for (uint64_t n = 1; n <= STEPS && !(result = run_step(z, weight, n, &loss)); n++)
            first = n == 1 ? loss : first;
    if (!result && !(result = zero_fingerprint(z, digest)) && zero_rank(z) == 0) {
        printf("loss %.6f, after %d steps %.6f, fingerprint ", first, STEPS, loss);
        for (int i = 0; i < 16; i++)
            printf("%02x%s", digest[i], i == 15 ? "\n" : "");
    }
    if (result < 0)
        fprintf(stderr, "hello: %s\n", zero_last_error(z));
    zero_close(z);
    return result < 0 || loss > 1e-4 * first;
}
