// One rank of the synthetic model's training, wherever a launcher starts it:
//
//     synthetic_rank <stage> <f32|bf16|mixed> <micro-batches>
//
// Exit code 0 if the fingerprint is the one written down.
#include "tests/numerics/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const zero_ctx *z, const char *call)
{
    fprintf(stderr, "synthetic_rank: %s: %s\n", call, zero_last_error(z));
    return 1;
}

static int train(zero_ctx *z, const struct synthetic *model)
{
    uint8_t digest[16];
    char text[33] = "";
    if (synthetic_commit(z, model) != ZERO_OK)
        return failed(z, "commit");
    for (uint64_t step = 0; step < SYNTHETIC_STEPS; step++)
        if (synthetic_step(z, model, step) != ZERO_OK)
            return failed(z, "step");
    if (zero_fingerprint(z, digest) != ZERO_OK)
        return failed(z, "zero_fingerprint");
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (zero_rank(z) == 0)
        printf("fingerprint %s\n", text);
    const char *golden = synthetic_golden(model);
    if (golden && strcmp(text, golden) == 0)
        return 0;
    fprintf(stderr, "synthetic_rank: %s instead of %s\n", text, golden ? golden : "none");
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: synthetic_rank <stage> <f32|bf16|mixed> <micro-batches>\n");
        return 2;
    }
    const struct synthetic model = {
        .dtype = strcmp(argv[2], "f32") == 0    ? ZERO_F32
                 : strcmp(argv[2], "bf16") == 0 ? ZERO_BF16
                                                : ZERO_DTYPE_DEFAULT,
        .micro_batches = (int32_t)strtol(argv[3], NULL, 10),
        .tied = true,
    };
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = (int32_t)strtol(argv[1], NULL, 10);
    config.micro_batches = model.micro_batches;
    if (zero_open(&z, &config) != ZERO_OK)
        return failed(NULL, "zero_open");
    const int code = train(z, &model);
    zero_close(z);
    return code;
}
