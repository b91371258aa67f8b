#include "gpu_layers.h"

#include <math.h>

static size_t chunks_of(int rows)
{
    return (size_t)(rows + GPT2_SUM_ROWS - 1) / GPT2_SUM_ROWS;
}

static size_t packs_of(int width)
{
    return (size_t)width / GPT2_PACK;
}

size_t layers_parts(int rows, int width)
{
    return chunks_of(rows) * (size_t)width * sizeof(float);
}

// A thread, or a warp, a task.
static void run_threads(const struct layers *l, enum gpu_kernel kernel, size_t tasks,
                        const void *argument)
{
    gpu_run(l->gpu, kernel, l->dtype, tasks, GPT2_THREADS, argument);
}

static void run_warps(const struct layers *l, enum gpu_kernel kernel, size_t tasks,
                      const void *argument)
{
    gpu_run(l->gpu, kernel, l->dtype, tasks, GPT2_WARPS, argument);
}

/* ------------------------------------------------------------------ embeddings */

void layers_embed(const struct layers *l, void *out, const uint16_t *token, const void *token_table,
                  const void *position_table, struct batch batch, int width)
{
    const struct gpt2_embed embed = {.out = out,
                                     .token = token,
                                     .token_table = token_table,
                                     .position_table = position_table,
                                     .rows = batch.windows * batch.length,
                                     .length = batch.length,
                                     .width = width};
    run_threads(l, GPU_embed, (size_t)embed.rows * packs_of(width), &embed);
}

void layers_embed_back(const struct layers *l, void *d_token_table, void *d_position_table,
                       const float *sums, const void *d_out, const int32_t *order,
                       const int32_t *first, struct batch batch, int width, int vocab)
{
    const struct gpt2_embed_back tokens = {.d_table = d_token_table,
                                           .sums = sums,
                                           .d_out = d_out,
                                           .order = order,
                                           .first = first,
                                           .vocab = vocab,
                                           .width = width};
    const struct gpt2_position_back positions = {.d_table = d_position_table,
                                                 .d_out = d_out,
                                                 .windows = batch.windows,
                                                 .length = batch.length,
                                                 .width = width};
    const size_t parts = (packs_of(width) + GPT2_WARP - 1) / GPT2_WARP;
    run_warps(l, GPU_embed_back, (size_t)vocab * parts, &tokens);
    run_threads(l, GPU_position_back, (size_t)batch.length * packs_of(width), &positions);
}

/* ------------------------------------------------------------------ layer norm */

void layers_norm(const struct layers *l, void *out, const struct normed *normed, const void *in,
                 const void *gain, const void *bias, int rows, int width)
{
    const struct gpt2_norm norm = {.out = out,
                                   .mean = normed->mean,
                                   .inverse = normed->inverse,
                                   .in = in,
                                   .gain = gain,
                                   .bias = bias,
                                   .rows = rows,
                                   .width = width};
    run_warps(l, GPU_norm, (size_t)rows, &norm);
}

// Adds up what the chunks of rows have left in `parts`, from `skip` floats on.
static void sum_parts(const struct layers *l, void *out, int rows, int skip, int stride,
                      int columns)
{
    const struct gpt2_sum_parts sum = {.out = out,
                                       .parts = l->parts + skip,
                                       .chunks = (int)chunks_of(rows),
                                       .stride = stride,
                                       .columns = columns};
    gpu_run(l->gpu, GPU_sum_parts, l->dtype, (size_t)columns, GPT2_SUM_COLUMNS, &sum);
}

void layers_norm_back(const struct layers *l, void *d_in, void *d_gain, void *d_bias,
                      const void *d_out, const void *in, const struct normed *normed,
                      const void *gain, int rows, int width, bool first)
{
    const struct gpt2_norm_back back = {.d_in = d_in,
                                        .d_out = d_out,
                                        .in = in,
                                        .mean = normed->mean,
                                        .inverse = normed->inverse,
                                        .gain = gain,
                                        .rows = rows,
                                        .width = width,
                                        .first = first};
    const struct gpt2_norm_parts parts = {.parts = l->parts,
                                          .d_out = d_out,
                                          .in = in,
                                          .mean = normed->mean,
                                          .inverse = normed->inverse,
                                          .rows = rows,
                                          .width = width};
    run_threads(l, GPU_norm_parts, chunks_of(rows) * packs_of(width), &parts);
    sum_parts(l, d_gain, rows, 0, 2 * width, width);
    sum_parts(l, d_bias, rows, width, 2 * width, width);
    run_warps(l, GPU_norm_back, (size_t)rows, &back);
}

/* ------------------------------------------------------------------ products */

void layers_linear(const struct layers *l, void *out, const void *in, const void *weight,
                   const void *bias, const void *residual, int rows, int ins, int outs)
{
    products_run(l->products, &(struct product){.m = rows,
                                                .n = outs,
                                                .k = ins,
                                                .dtype = l->dtype,
                                                .a = {.data = in, .stride = ins},
                                                .b = {.data = weight, .stride = outs},
                                                .c = out,
                                                .c_stride = outs,
                                                .added = residual,
                                                .epilogue = EPILOGUE_BIAS,
                                                .bias = bias});
}

// GELU is the product's own work at bf16, where cuBLAS has a way; at f32 it need not have one.
static bool joins_gelu(const struct layers *l, const struct product *product)
{
    return l->dtype == GPU_BF16 && products_can(l->products, product);
}

static void run_gelu(const struct layers *l, void *out, const void *in, int rows, int width)
{
    const struct gpt2_gelu gelu = {.out = out, .in = in, .packs = (size_t)rows * packs_of(width)};
    run_threads(l, GPU_gelu, gelu.packs, &gelu);
}

void layers_linear_gelu(const struct layers *l, void *out, void *hidden, const void *in,
                        const void *weight, const void *bias, int rows, int ins, int outs)
{
    struct product product = {.m = rows,
                              .n = outs,
                              .k = ins,
                              .dtype = l->dtype,
                              .a = {.data = in, .stride = ins},
                              .b = {.data = weight, .stride = outs},
                              .c = out,
                              .c_stride = outs,
                              .epilogue = EPILOGUE_GELU,
                              .bias = bias,
                              .hidden = hidden};
    const bool joins = joins_gelu(l, &product);
    if (!joins) {
        product.c = hidden;
        product.epilogue = EPILOGUE_BIAS;
    }
    products_run(l->products, &product);
    if (!joins)
        run_gelu(l, out, hidden, rows, outs);
}

// d_in = d_out * weight^T.
static struct product back_in(const struct layers *l, void *d_in, const void *d_out,
                              const void *weight, int rows, int ins, int outs)
{
    return (struct product){.m = rows,
                            .n = ins,
                            .k = outs,
                            .dtype = l->dtype,
                            .a = {.data = d_out, .stride = outs},
                            .b = {.data = weight, .stride = outs, .transposed = true},
                            .c = d_in,
                            .c_stride = ins};
}

void layers_linear_back_in(const struct layers *l, void *d_in, const void *d_out,
                           const void *weight, int rows, int ins, int outs)
{
    const struct product product = back_in(l, d_in, d_out, weight, rows, ins, outs);
    products_run(l->products, &product);
}

void layers_linear_gelu_back(const struct layers *l, void *d_hidden, void *active,
                             const void *d_out, const void *weight, void *hidden, int rows, int ins,
                             int outs)
{
    const struct gpt2_gelu_back back = {
        .gradient = d_hidden, .in = hidden, .packs = (size_t)rows * packs_of(ins)};
    const struct product apart = back_in(l, d_hidden, d_out, weight, rows, ins, outs);
    struct product joined = apart;
    joined.epilogue = EPILOGUE_GELU_BACK;
    joined.hidden = hidden;
    const bool joins = joins_gelu(l, &joined);
    products_run(l->products, joins ? &joined : &apart);
    if (!joins)
        run_threads(l, GPU_gelu_back, back.packs, &back);
    run_gelu(l, active, hidden, rows, ins);
}

void layers_linear_back_weight(const struct layers *l, void *d_weight, void *d_bias, const void *in,
                               const void *d_out, int rows, int ins, int outs)
{
    const struct gpt2_bias_parts parts = {
        .parts = l->parts, .in = d_out, .rows = rows, .width = outs};
    run_threads(l, GPU_bias_parts, chunks_of(rows) * packs_of(outs), &parts);
    sum_parts(l, d_bias, rows, 0, outs, outs);
    products_run(l->products,
                 &(struct product){.m = ins,
                                   .n = outs,
                                   .k = rows,
                                   .dtype = l->dtype,
                                   .a = {.data = in, .stride = ins, .transposed = true},
                                   .b = {.data = d_out, .stride = outs},
                                   .c = d_weight,
                                   .c_stride = outs});
}

/* ------------------------------------------------------------------ attention */

static struct gpt2_attention attention_of(const void *qkv, float *weight, struct batch batch,
                                          int heads, int width)
{
    return (struct gpt2_attention){.qkv = qkv,
                                   .weight = weight,
                                   .windows = batch.windows,
                                   .length = batch.length,
                                   .heads = heads,
                                   .width = width,
                                   .scale = 1 / sqrtf((float)width / (float)heads)};
}

static bool takes_tiles(const struct layers *l, const struct gpt2_attention *a)
{
    return l->dtype == GPU_BF16 && a->width == a->heads * GPT2_TILE;
}

// A warp a row, or a block a tile of rows.
static void run_attention(const struct layers *l, enum gpu_kernel rows, enum gpu_kernel tiles,
                          const struct gpt2_attention *a)
{
    const size_t heads = (size_t)a->windows * (size_t)a->heads;
    if (takes_tiles(l, a))
        gpu_run(l->gpu, tiles, l->dtype, heads * (size_t)((a->length + GPT2_TILE - 1) / GPT2_TILE),
                1, a);
    else
        run_warps(l, rows, heads * (size_t)a->length, a);
}

void layers_attend(const struct layers *l, void *out, float *weight, const void *qkv,
                   struct batch batch, int heads, int width)
{
    struct gpt2_attention a = attention_of(qkv, weight, batch, heads, width);
    a.out = out;
    run_attention(l, GPU_attend, GPU_tile_attend, &a);
}

void layers_attend_back(const struct layers *l, void *d_qkv, const void *d_out, void *out,
                        float *weight, float *delta, const void *qkv, struct batch batch, int heads,
                        int width)
{
    struct gpt2_attention a = attention_of(qkv, weight, batch, heads, width);
    a.out = out;
    a.d_qkv = d_qkv;
    a.d_out = d_out;
    a.delta = delta;
    const size_t rows = (size_t)a.windows * (size_t)a.heads * (size_t)a.length;
    if (takes_tiles(l, &a))
        run_threads(l, GPU_tile_delta, rows * packs_of(GPT2_TILE), &a);
    else
        run_warps(l, GPU_attend_delta, rows, &a);
    run_attention(l, GPU_attend_back_query, GPU_tile_back_query, &a);
    run_attention(l, GPU_attend_back_key, GPU_tile_back_key, &a);
}
