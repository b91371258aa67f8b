#include "gpt2_tensors.h"

#include <math.h>
#include <stdio.h>
#include <zero/random.h>

// Extents are in widths; one that is 0 means there is no such dimension.
struct block_row {
    const char *name;
    int rows, columns;
    enum tensor_init init;
};

static const struct block_row block_rows[BLOCK_TENSORS] = {
    [LN_1_WEIGHT] = {"ln_1.weight", 1, 0, INIT_ONES},
    [LN_1_BIAS] = {"ln_1.bias", 1, 0, INIT_ZEROS},
    [C_ATTN_WEIGHT] = {"attn.c_attn.weight", 1, 3, INIT_NORMAL},
    [C_ATTN_BIAS] = {"attn.c_attn.bias", 3, 0, INIT_ZEROS},
    [ATTN_PROJ_WEIGHT] = {"attn.c_proj.weight", 1, 1, INIT_RESIDUAL},
    [ATTN_PROJ_BIAS] = {"attn.c_proj.bias", 1, 0, INIT_ZEROS},
    [LN_2_WEIGHT] = {"ln_2.weight", 1, 0, INIT_ONES},
    [LN_2_BIAS] = {"ln_2.bias", 1, 0, INIT_ZEROS},
    [C_FC_WEIGHT] = {"mlp.c_fc.weight", 1, 4, INIT_NORMAL},
    [C_FC_BIAS] = {"mlp.c_fc.bias", 4, 0, INIT_ZEROS},
    [MLP_PROJ_WEIGHT] = {"mlp.c_proj.weight", 4, 1, INIT_RESIDUAL},
    [MLP_PROJ_BIAS] = {"mlp.c_proj.bias", 1, 0, INIT_ZEROS},
};

int unit_count(const struct dims *dims)
{
    return dims->layers + 2;
}

int unit_tensors(const struct dims *dims, int unit)
{
    if (unit == 0)
        return EMBED_TENSORS;
    return unit <= dims->layers ? BLOCK_TENSORS : FINAL_TENSORS;
}

static struct tensor embed_tensor(const struct dims *dims, int index)
{
    struct tensor t = {.ndim = 2, .init = INIT_NORMAL};
    snprintf(t.name, sizeof t.name, "%s", index == WTE ? "wte.weight" : "wpe.weight");
    t.shape[0] = (uint64_t)(index == WTE ? dims->vocab : dims->context);
    t.shape[1] = (uint64_t)dims->width;
    return t;
}

static struct tensor final_tensor(const struct dims *dims, int index)
{
    struct tensor t = {.ndim = 1, .init = index == LN_F_WEIGHT ? INIT_ONES : INIT_ZEROS};
    snprintf(t.name, sizeof t.name, "%s", index == LN_F_WEIGHT ? "ln_f.weight" : "ln_f.bias");
    t.shape[0] = (uint64_t)dims->width;
    return t;
}

struct tensor unit_tensor(const struct dims *dims, int unit, int index)
{
    if (unit == 0)
        return embed_tensor(dims, index);
    if (unit > dims->layers)
        return final_tensor(dims, index);
    const struct block_row *row = &block_rows[index];
    struct tensor t = {.ndim = row->columns ? 2 : 1, .init = row->init};
    snprintf(t.name, sizeof t.name, "h.%d.%s", unit - 1, row->name);
    t.shape[0] = (uint64_t)(row->rows * dims->width);
    t.shape[1] = (uint64_t)(row->columns * dims->width);
    return t;
}

size_t tensor_numel(const struct tensor *tensor)
{
    return (size_t)(tensor->shape[0] * (tensor->ndim == 2 ? tensor->shape[1] : 1));
}

size_t unit_numel(const struct dims *dims, int unit)
{
    size_t numel = 0;
    for (int i = 0; i < unit_tensors(dims, unit); i++) {
        const struct tensor tensor = unit_tensor(dims, unit, i);
        numel += tensor_numel(&tensor);
    }
    return numel;
}

void tensor_fill(const struct tensor *tensor, const struct dims *dims, uint64_t seed,
                 uint64_t first, uint64_t count, float *out)
{
    if (tensor->init == INIT_ZEROS || tensor->init == INIT_ONES) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = tensor->init == INIT_ONES ? 1.0f : 0.0f;
        return;
    }
    const uint64_t stream = zero_random_stream(tensor->name);
    double deviation = 0.02;
    if (tensor->init == INIT_RESIDUAL)
        deviation /= sqrt(2.0 * dims->layers);
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(deviation * zero_random_normal(seed, stream, first + i));
}
