// One rank of the synthetic model's training, wherever a launcher starts it:
//
//     synthetic_rank <stage> <f32|bf16|mixed> <micro-batches>
//     synthetic_rank <stage> <optimizer> <precision> <policy>     as synthetic_matrix.c calls them
//
// Exit code 0 if the fingerprint is the one written down.
#include "tests/numerics/synthetic_matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const zero_ctx *z, const char *call)
{
    fprintf(stderr, "synthetic_rank: %s: %s\n", call, zero_last_error(z));
    return 1;
}

// A training, and what it ends with.
struct training {
    struct synthetic model;
    uint64_t steps;
    const char *golden;
};

static struct training plain_training(char **arguments)
{
    const struct synthetic model = {
        .dtype = strcmp(arguments[0], "f32") == 0    ? ZERO_F32
                 : strcmp(arguments[0], "bf16") == 0 ? ZERO_BF16
                                                     : ZERO_DTYPE_DEFAULT,
        .micro_batches = (int32_t)strtol(arguments[1], NULL, 10),
        .tied = true,
    };
    return (struct training){model, SYNTHETIC_STEPS, synthetic_golden(&model)};
}

static struct training matrix_training(char **arguments)
{
    const int optimizer = matrix_find(matrix_optimizers, MATRIX_OPTIMIZERS, arguments[0]);
    const int precision = matrix_find(matrix_precisions, MATRIX_PRECISIONS, arguments[1]);
    const int policy = matrix_find(matrix_policies, MATRIX_POLICIES, arguments[2]);
    if (optimizer < 0 || precision < 0 || policy < 0)
        return (struct training){.steps = 0};
    return (struct training){matrix_model(optimizer, precision, policy), MATRIX_STEPS,
                             matrix_golden(optimizer, precision, policy)};
}

static int train(zero_ctx *z, const struct training *training)
{
    const struct synthetic *model = &training->model;
    uint8_t digest[16];
    char text[33] = "";
    if (synthetic_commit(z, model) != ZERO_OK)
        return failed(z, "commit");
    for (uint64_t step = 0; step < training->steps; step++)
        if (synthetic_step(z, model, step) != ZERO_OK)
            return failed(z, "step");
    if (zero_fingerprint(z, digest) != ZERO_OK)
        return failed(z, "zero_fingerprint");
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (zero_rank(z) == 0)
        printf("fingerprint %s\n", text);
    const char *golden = training->golden;
    if (golden && strcmp(text, golden) == 0)
        return 0;
    fprintf(stderr, "synthetic_rank: %s instead of %s\n", text, golden ? golden : "none");
    return 1;
}

int main(int argc, char **argv)
{
    struct training training = {.steps = 0};
    if (argc == 4)
        training = plain_training(argv + 2);
    if (argc == 5)
        training = matrix_training(argv + 2);
    if (training.steps == 0) {
        fprintf(stderr, "usage: synthetic_rank <stage> <f32|bf16|mixed> <micro-batches>\n"
                        "       synthetic_rank <stage> <optimizer> <precision> <policy>\n");
        return 2;
    }
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = (int32_t)strtol(argv[1], NULL, 10);
    synthetic_configure(&training.model, &config);
    if (zero_open(&z, &config) != ZERO_OK)
        return failed(NULL, "zero_open");
    const int code = train(z, &training);
    zero_close(z);
    return code;
}
