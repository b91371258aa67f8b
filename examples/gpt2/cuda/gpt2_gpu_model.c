// GPT-2 on a GPU: gpt2_model.c's walk over the layers, with work that is queued.
#include "gpt2_gpu_model.h"
#include "base/bfloat16.h"

#include <stdlib.h>
#include <string.h>

static void cuda_close(void *compute)
{
    struct cuda_model *m = compute;
    if (!m)
        return;
    gpu_close(m->layers.gpu);
    free(m->stream);
    free(m->kept);
    free(m);
}

static bool check_dims(const struct dims *dims, struct reason *reason)
{
    if (dims->width % GPT2_PACK != 0)
        return refuse(reason, "--device cuda: --width %d is not a multiple of %d", dims->width,
                      GPT2_PACK);
    if (dims->width / dims->heads > GPT2_HEAD_MAX)
        return refuse(reason, "--device cuda: a head of %d elements is wider than %d",
                      dims->width / dims->heads, GPT2_HEAD_MAX);
    return true;
}

static void *cuda_open(const struct compute_options *options, struct reason *reason)
{
    if (!check_dims(&options->dims, reason))
        return NULL;
    struct cuda_model *m = calloc(1, sizeof *m);
    if (!m) {
        refuse(reason, "out of memory");
        return NULL;
    }
    m->options = *options;
    m->dtype = m->layers.dtype = options->bf16 ? GPU_BF16 : GPU_F32;
    m->layers.gpu = gpu_open(options->gpu, reason);
    if (m->layers.gpu)
        m->layers.products = products_open(m->layers.gpu, reason);
    if (m->layers.products)
        return m;
    cuda_close(m);
    return NULL;
}

static size_t cuda_bytes(const void *compute)
{
    return ((const struct cuda_model *)compute)->bytes + products_bytes();
}

static void *cuda_stream(const void *compute)
{
    return gpu_stream(((const struct cuda_model *)compute)->layers.gpu);
}

static const char *cuda_notes(const void *compute)
{
    const struct cuda_model *m = compute;
    return products_missing(m->layers.products) > 0
               ? "cuBLAS has no way here to join GELU to some products: kernels of their own "
                 "compute it"
               : NULL;
}

static const char *cuda_failure(const void *compute)
{
    return gpu_failure(((const struct cuda_model *)compute)->layers.gpu);
}

/* ------------------------------------------------------------------ tokens */

// Rows by their token, ascending in each: from the ends of the tokens' parts to their beginnings.
static void sort_rows(const struct tokens *t, int rows, int vocab)
{
    memset(t->first, 0, ((size_t)vocab + 1) * sizeof *t->first);
    for (int row = 0; row < rows; row++)
        t->first[t->token[row]]++;
    for (int token = 1; token <= vocab; token++)
        t->first[token] += t->first[token - 1];
    for (int row = rows - 1; row >= 0; row--)
        t->order[--t->first[t->token[row]]] = row;
}

// A window that is shorter than the context is filled up: what comes later changes nothing before.
static void cuda_begin(void *compute, const uint16_t *token, const uint16_t *target,
                       struct batch batch)
{
    struct cuda_model *m = compute;
    const struct dims *dims = &m->options.dims;
    const struct sender *sender = &m->senders[m->sent % SENDERS];
    const size_t length = (size_t)batch.length, context = (size_t)dims->context;
    m->batch = (struct batch){.windows = batch.windows, .length = dims->context};
    m->rows = batch.windows * dims->context;
    if (!sender->bytes) // there was no memory, which is known
        return;
    if (m->sent++ >= SENDERS)
        gpu_mark_wait(m->layers.gpu, sender->mark);
    const struct tokens t = cuda_tokens(m, sender->bytes);
    memset(t.token, 0, (size_t)m->rows * sizeof *t.token);
    for (size_t w = 0; w < (size_t)batch.windows; w++) {
        memcpy(t.token + w * context, token + w * length, length * sizeof *token);
        if (target)
            memcpy(t.target + w * context, target + w * length, length * sizeof *target);
    }
    sort_rows(&t, m->rows, dims->vocab);
    gpu_copy(m->layers.gpu, m->sent_bytes, sender->bytes, m->token_bytes);
    gpu_mark(m->layers.gpu, sender->mark);
}

static void cuda_embed(void *compute, const struct unit_weights *embed)
{
    struct cuda_model *m = compute;
    layers_embed(&m->layers, m->stream[0], m->tokens.token, embed->tensor[WTE], embed->tensor[WPE],
                 m->batch, m->options.dims.width);
}

/* ------------------------------------------------------------------ a block */

static const struct kept *kept_of(const struct cuda_model *m, int layer)
{
    return &m->kept[m->options.recompute ? 0 : layer];
}

// Everything of a block up to `hidden`, and its GELU.
static void block_keep(struct cuda_model *m, int layer, const void *const *w)
{
    const struct kept *k = kept_of(m, layer);
    const struct layers *l = &m->layers;
    const void *in = m->stream[layer];
    const int rows = m->rows, width = m->options.dims.width;
    layers_norm(l, m->normed, &k->norm_1, in, w[LN_1_WEIGHT], w[LN_1_BIAS], rows, width);
    layers_linear(l, k->qkv, m->normed, w[C_ATTN_WEIGHT], w[C_ATTN_BIAS], NULL, rows, width,
                  3 * width);
    layers_attend(l, k->attended, k->weight, k->qkv, m->batch, m->options.dims.heads, width);
    layers_linear(l, k->middle, k->attended, w[ATTN_PROJ_WEIGHT], w[ATTN_PROJ_BIAS], in, rows,
                  width, width);
    layers_norm(l, m->normed, &k->norm_2, k->middle, w[LN_2_WEIGHT], w[LN_2_BIAS], rows, width);
    layers_linear_gelu(l, m->active, k->hidden, m->normed, w[C_FC_WEIGHT], w[C_FC_BIAS], rows,
                       width, 4 * width);
}

static void cuda_block(void *compute, int layer, const struct unit_weights *block)
{
    struct cuda_model *m = compute;
    const int width = m->options.dims.width;
    block_keep(m, layer, block->tensor);
    layers_linear(&m->layers, m->stream[layer + 1], m->active, block->tensor[MLP_PROJ_WEIGHT],
                  block->tensor[MLP_PROJ_BIAS], kept_of(m, layer)->middle, m->rows, 4 * width,
                  width);
}

// d_stream passes by, and through the MLP.
static void mlp_backward(const struct cuda_model *m, const struct kept *k, const void *const *w,
                         void *const *d)
{
    const struct layers *l = &m->layers;
    const int rows = m->rows, width = m->options.dims.width;
    layers_linear_gelu_back(l, m->d_hidden, m->active, m->d_stream, w[MLP_PROJ_WEIGHT], k->hidden,
                            rows, 4 * width, width);
    layers_linear_back_weight(l, d[MLP_PROJ_WEIGHT], d[MLP_PROJ_BIAS], m->active, m->d_stream, rows,
                              4 * width, width);
    layers_norm(l, m->normed, &k->norm_2, k->middle, w[LN_2_WEIGHT], w[LN_2_BIAS], rows, width);
    layers_linear_back_weight(l, d[C_FC_WEIGHT], d[C_FC_BIAS], m->normed, m->d_hidden, rows, width,
                              4 * width);
    layers_linear_back_in(l, m->d_normed, m->d_hidden, w[C_FC_WEIGHT], rows, width, 4 * width);
    layers_norm_back(l, m->d_stream, d[LN_2_WEIGHT], d[LN_2_BIAS], m->d_normed, k->middle,
                     &k->norm_2, w[LN_2_WEIGHT], rows, width, false);
}

// Goes back through a layer's attention.
static void attend_backward(const struct cuda_model *m, const struct kept *k, const void *in,
                            const void *const *w, void *const *d)
{
    const struct layers *l = &m->layers;
    const int rows = m->rows, width = m->options.dims.width;
    void *d_qkv = m->d_hidden;
    layers_linear_back_weight(l, d[ATTN_PROJ_WEIGHT], d[ATTN_PROJ_BIAS], k->attended, m->d_stream,
                              rows, width, width);
    layers_linear_back_in(l, m->d_attended, m->d_stream, w[ATTN_PROJ_WEIGHT], rows, width, width);
    layers_attend_back(l, d_qkv, m->d_attended, k->attended, k->weight, m->delta, k->qkv, m->batch,
                       m->options.dims.heads, width);
    layers_norm(l, m->normed, &k->norm_1, in, w[LN_1_WEIGHT], w[LN_1_BIAS], rows, width);
    layers_linear_back_weight(l, d[C_ATTN_WEIGHT], d[C_ATTN_BIAS], m->normed, d_qkv, rows, width,
                              3 * width);
    layers_linear_back_in(l, m->d_normed, d_qkv, w[C_ATTN_WEIGHT], rows, width, 3 * width);
    layers_norm_back(l, m->d_stream, d[LN_1_WEIGHT], d[LN_1_BIAS], m->d_normed, in, &k->norm_1,
                     w[LN_1_WEIGHT], rows, width, false);
}

static void cuda_block_backward(void *compute, int layer, const struct unit_weights *block,
                                const struct unit_gradients *d_block)
{
    struct cuda_model *m = compute;
    if (m->options.recompute)
        block_keep(m, layer, block->tensor);
    const struct kept *k = kept_of(m, layer);
    mlp_backward(m, k, block->tensor, d_block->tensor);
    attend_backward(m, k, m->stream[layer], block->tensor, d_block->tensor);
}

/* ------------------------------------------------------------------ the head */

static void final_norm(const struct cuda_model *m, const struct unit_weights *final)
{
    layers_norm(&m->layers, m->normed, &m->norm_f, m->stream[m->options.dims.layers],
                final->tensor[LN_F_WEIGHT], final->tensor[LN_F_BIAS], m->rows,
                m->options.dims.width);
}

// How many rows from `first` on the head does at a time.
static int chunk_rows(const struct cuda_model *m, int first)
{
    const int left = m->rows - first;
    return left < m->logit_rows ? left : m->logit_rows;
}

static char *row_at(const struct cuda_model *m, void *rows, int row)
{
    return (char *)rows + (size_t)row * (size_t)m->options.dims.width * gpu_size(m->dtype);
}

// logits = normed * wte^T for some rows.
static void head_logits(const struct cuda_model *m, int first, int rows, const void *wte)
{
    const int width = m->options.dims.width;
    products_run(m->layers.products,
                 &(struct product){
                     .m = rows,
                     .n = m->options.dims.vocab,
                     .k = width,
                     .dtype = m->dtype,
                     .a = {.data = row_at(m, m->normed, first), .stride = width},
                     .b = {.data = wte, .stride = width, .transposed = true},
                     .c = m->logits,
                     .c_stride = m->logit_stride,
                 });
}

// d_normed, and the rows' share of d_wte.
static void head_chunk_backward(const struct cuda_model *m, int first, int rows, const void *wte,
                                float *d_wte)
{
    const int width = m->options.dims.width, vocab = m->options.dims.vocab;
    const struct gpu_matrix d_logits = {.data = m->logits, .stride = m->logit_stride};
    struct gpu_matrix transposed = d_logits;
    transposed.transposed = true;
    products_run(m->layers.products, &(struct product){
                                         .m = rows,
                                         .n = width,
                                         .k = vocab,
                                         .dtype = m->dtype,
                                         .a = d_logits,
                                         .b = {.data = wte, .stride = width},
                                         .c = row_at(m, m->d_normed, first),
                                         .c_stride = width,
                                     });
    products_run(m->layers.products,
                 &(struct product){
                     .m = vocab,
                     .n = width,
                     .k = rows,
                     .dtype = m->dtype,
                     .a = transposed,
                     .b = {.data = row_at(m, m->normed, first), .stride = width},
                     .c = d_wte,
                     .c_stride = width,
                     .c_f32 = true,
                     .added = first == 0 ? NULL : d_wte,
                 });
}

// The losses of some rows, whose logits become their gradient unless the scale is 0.
static void head_losses(const struct cuda_model *m, int first, int rows, float scale)
{
    const struct gpt2_loss loss = {.loss = m->loss + first,
                                   .logits = m->logits,
                                   .target = m->tokens.target + first,
                                   .classes = m->options.dims.vocab,
                                   .stride = m->logit_stride,
                                   .scale = scale};
    gpu_run(m->layers.gpu, GPU_loss, m->dtype, (size_t)rows, 1, &loss);
}

static struct mean_loss mean_loss(const struct cuda_model *m)
{
    const struct gpt2_mean_loss mean = {.mean = m->mean, .loss = m->loss, .rows = m->rows};
    gpu_run(m->layers.gpu, GPU_mean_loss, m->dtype, 1, 1, &mean);
    return (struct mean_loss){.there = m->mean};
}

static struct mean_loss cuda_loss(void *compute, const struct unit_weights *final,
                                  const struct unit_weights *embed)
{
    const struct cuda_model *m = compute;
    final_norm(m, final);
    for (int first = 0; first < m->rows; first += m->logit_rows) {
        head_logits(m, first, chunk_rows(m, first), embed->tensor[WTE]);
        head_losses(m, first, chunk_rows(m, first), 0);
    }
    return mean_loss(m);
}

// Where the gradient of wte is added up in fp32.
static float *sums_of(const struct cuda_model *m, const struct unit_gradients *d_embed)
{
    return m->dtype == GPU_F32 ? d_embed->tensor[WTE] : m->token_sums;
}

static struct mean_loss cuda_head(void *compute, float loss_scale, const struct unit_weights *final,
                                  const struct unit_weights *embed,
                                  const struct unit_gradients *d_final,
                                  const struct unit_gradients *d_embed)
{
    const struct cuda_model *m = compute;
    final_norm(m, final);
    for (int first = 0; first < m->rows; first += m->logit_rows) {
        const int rows = chunk_rows(m, first);
        head_logits(m, first, rows, embed->tensor[WTE]);
        head_losses(m, first, rows, loss_scale / (float)m->rows);
        head_chunk_backward(m, first, rows, embed->tensor[WTE], sums_of(m, d_embed));
    }
    layers_norm_back(&m->layers, m->d_stream, d_final->tensor[LN_F_WEIGHT],
                     d_final->tensor[LN_F_BIAS], m->d_normed, m->stream[m->options.dims.layers],
                     &m->norm_f, final->tensor[LN_F_WEIGHT], m->rows, m->options.dims.width, true);
    return mean_loss(m);
}

static void cuda_embed_backward(void *compute, const struct unit_gradients *d_embed)
{
    const struct cuda_model *m = compute;
    layers_embed_back(&m->layers, d_embed->tensor[WTE], d_embed->tensor[WPE], sums_of(m, d_embed),
                      m->d_stream, m->tokens.order, m->tokens.first, m->batch,
                      m->options.dims.width, m->options.dims.vocab);
}

// bf16 to float, in place.
static void widen(float *values, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        uint16_t half;
        memcpy(&half, (const char *)values + (size_t)i * sizeof half, sizeof half);
        values[i] = base_f32_from_bf16(half);
    }
}

static void cuda_logits(void *compute, int row, const struct unit_weights *final,
                        const struct unit_weights *embed, float *logits)
{
    const struct cuda_model *m = compute;
    const int first = row / m->logit_rows * m->logit_rows, vocab = m->options.dims.vocab;
    const size_t size = gpu_size(m->dtype);
    const size_t at = (size_t)(row - first) * (size_t)m->logit_stride * size;
    final_norm(m, final);
    head_logits(m, first, chunk_rows(m, first), embed->tensor[WTE]);
    gpu_copy(m->layers.gpu, logits, (char *)m->logits + at, (size_t)vocab * size);
    gpu_wait(m->layers.gpu);
    if (m->dtype == GPU_BF16)
        widen(logits, vocab);
}

const struct compute_ops compute_cuda = {
    .size = sizeof(struct compute_ops),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .bytes = cuda_bytes,
    .stream = cuda_stream,
    .notes = cuda_notes,
    .failure = cuda_failure,
    .begin = cuda_begin,
    .embed = cuda_embed,
    .block = cuda_block,
    .head = cuda_head,
    .loss = cuda_loss,
    .block_backward = cuda_block_backward,
    .embed_backward = cuda_embed_backward,
    .logits = cuda_logits,
};
