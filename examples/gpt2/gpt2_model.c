#include "gpt2_model.h"

#include "linear.h"

#include <stdlib.h>

// Logits are held for so many rows at a time, or for as many as make this many elements.
#define LOGIT_ROWS_MIN 256
#define LOGIT_ELEMENTS (1 << 20)

// What forward keeps of a block beside its input: what a product made. Results of layer norm and
// GELU are cheap and made again.
struct kept {
    real *mean_1, *inverse_1; // of ln_1, a row each
    real *qkv;                // rows x 3 width
    real *largest, *inverse;  // of attention, heads a row
    real *attended;           // rows x width
    real *middle;             // rows x width: the residual stream after attention
    real *mean_2, *inverse_2; // of ln_2
    real *hidden;             // rows x 4 width, before GELU
};

struct model {
    struct dims dims;
    bool recompute;
    struct pool *pool;
    struct batch batch; // the current one
    const uint16_t *token;
    int rows; // batch.windows * batch.length
    size_t bytes;
    void *arena;
    int logit_rows;

    struct kept *kept; // a block each, or one for all with recompute
    real **stream;     // layers + 1: the input of every block, and the output of the last
    real *mean_f, *inverse_f;
    real *d_stream;   // the gradient that travels back, rows x width
    real *normed;     // rows x width
    real *d_normed;   // rows x width
    real *d_attended; // rows x width
    real *active;     // rows x 4 width: after GELU
    real *d_hidden;   // rows x 4 width; d_qkv as well
    real *scores;     // of attention, a part a thread
    real *logits;     // logit_rows x vocab
    double *loss;     // a row each
};

// A walk over an arena: with base NULL it only counts.
struct carver {
    char *base;
    size_t used;
};

static void *carve(struct carver *carver, size_t bytes)
{
    void *part = carver->base ? carver->base + carver->used : NULL;
    carver->used += (bytes + 63) / 64 * 64;
    return part;
}

static real *carve_reals(struct carver *carver, size_t rows, int width)
{
    return carve(carver, rows * (size_t)width * sizeof(real));
}

static void carve_kept(struct carver *carver, struct kept *kept, size_t rows,
                       const struct dims *dims)
{
    kept->mean_1 = carve_reals(carver, rows, 1);
    kept->inverse_1 = carve_reals(carver, rows, 1);
    kept->qkv = carve_reals(carver, rows, 3 * dims->width);
    kept->largest = carve_reals(carver, rows, dims->heads);
    kept->inverse = carve_reals(carver, rows, dims->heads);
    kept->attended = carve_reals(carver, rows, dims->width);
    kept->middle = carve_reals(carver, rows, dims->width);
    kept->mean_2 = carve_reals(carver, rows, 1);
    kept->inverse_2 = carve_reals(carver, rows, 1);
    kept->hidden = carve_reals(carver, rows, 4 * dims->width);
}

static int kept_blocks(const struct model *m)
{
    return m->recompute ? 1 : m->dims.layers;
}

static void carve_model(struct carver *carver, struct model *m, size_t rows)
{
    const int width = m->dims.width;
    for (int i = 0; i < kept_blocks(m); i++)
        carve_kept(carver, &m->kept[i], rows, &m->dims);
    for (int i = 0; i <= m->dims.layers; i++)
        m->stream[i] = carve_reals(carver, rows, width);
    m->mean_f = carve_reals(carver, rows, 1);
    m->inverse_f = carve_reals(carver, rows, 1);
    m->d_stream = carve_reals(carver, rows, width);
    m->normed = carve_reals(carver, rows, width);
    m->d_normed = carve_reals(carver, rows, width);
    m->d_attended = carve_reals(carver, rows, width);
    m->active = carve_reals(carver, rows, 4 * width);
    m->d_hidden = carve_reals(carver, rows, 4 * width);
    m->scores =
        carve_reals(carver, (size_t)pool_threads(m->pool) * 2 * ATTENTION_ROWS, m->dims.context);
    m->logits = carve_reals(carver, (size_t)m->logit_rows, m->dims.vocab);
    m->loss = carve(carver, rows * sizeof *m->loss);
}

struct model *model_create(const struct dims *dims, int windows, bool recompute, struct pool *pool)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->dims = *dims;
    m->recompute = recompute;
    m->pool = pool;
    m->kept = calloc((size_t)kept_blocks(m), sizeof *m->kept);
    m->stream = calloc((size_t)dims->layers + 1, sizeof *m->stream);
    const int rows = windows * dims->context;
    m->logit_rows = LOGIT_ELEMENTS / dims->vocab;
    if (m->logit_rows < LOGIT_ROWS_MIN)
        m->logit_rows = LOGIT_ROWS_MIN;
    if (m->logit_rows > rows)
        m->logit_rows = rows;
    if (!m->kept || !m->stream)
        goto fail;

    struct carver carver = {0};
    carve_model(&carver, m, (size_t)rows);
    m->bytes = carver.used;
    m->arena = aligned_alloc(64, m->bytes);
    if (!m->arena)
        goto fail;
    carver = (struct carver){.base = m->arena};
    carve_model(&carver, m, (size_t)rows);
    return m;
fail:
    model_free(m);
    return NULL;
}

void model_free(struct model *model)
{
    if (!model)
        return;
    free(model->arena);
    free(model->stream);
    free(model->kept);
    free(model);
}

size_t model_bytes(const struct model *model)
{
    return model->bytes;
}

void model_begin(struct model *model, const uint16_t *token, struct batch batch)
{
    model->token = token;
    model->batch = batch;
    model->rows = batch.windows * batch.length;
}

void model_embed(struct model *model, const real *const *embed)
{
    embedding_forward(model->pool, model->stream[0], model->token, embed[WTE], embed[WPE],
                      model->batch, model->dims.width);
}

static struct kept *kept_of(const struct model *m, int layer)
{
    return &m->kept[m->recompute ? 0 : layer];
}

// Everything of a block up to `hidden`: what forward keeps.
static void block_keep(struct model *m, int layer, const real *const *w)
{
    const struct kept *k = kept_of(m, layer);
    const real *in = m->stream[layer];
    const int rows = m->rows, width = m->dims.width;
    layernorm_forward(m->pool, m->normed, k->mean_1, k->inverse_1, in, w[LN_1_WEIGHT], w[LN_1_BIAS],
                      rows, width);
    linear_forward(m->pool, k->qkv, m->normed, w[C_ATTN_WEIGHT], w[C_ATTN_BIAS], NULL, rows, width,
                   3 * width);
    attention_forward(m->pool, k->attended, k->largest, k->inverse, k->qkv, m->scores, m->batch,
                      m->dims.heads, width);
    linear_forward(m->pool, k->middle, k->attended, w[ATTN_PROJ_WEIGHT], w[ATTN_PROJ_BIAS], in,
                   rows, width, width);
    layernorm_forward(m->pool, m->normed, k->mean_2, k->inverse_2, k->middle, w[LN_2_WEIGHT],
                      w[LN_2_BIAS], rows, width);
    linear_forward(m->pool, k->hidden, m->normed, w[C_FC_WEIGHT], w[C_FC_BIAS], NULL, rows, width,
                   4 * width);
}

void model_block(struct model *model, int layer, const real *const *block)
{
    block_keep(model, layer, block);
    const struct kept *k = kept_of(model, layer);
    const int rows = model->rows, width = model->dims.width;
    gelu_forward(model->pool, model->active, k->hidden, (size_t)rows * 4 * (size_t)width);
    linear_forward(model->pool, model->stream[layer + 1], model->active, block[MLP_PROJ_WEIGHT],
                   block[MLP_PROJ_BIAS], k->middle, rows, 4 * width, width);
}

// d_stream passes by, and through the MLP.
static void mlp_backward(struct model *m, const struct kept *k, const real *const *w,
                         real *const *d)
{
    const int rows = m->rows, width = m->dims.width;
    const size_t count = (size_t)rows * 4 * (size_t)width;
    linear_backward_in(m->pool, m->d_hidden, m->d_stream, w[MLP_PROJ_WEIGHT], rows, 4 * width,
                       width);
    gelu_backward(m->pool, m->d_hidden, m->active, k->hidden, count);
    linear_backward_weight(m->pool, d[MLP_PROJ_WEIGHT], d[MLP_PROJ_BIAS], m->active, m->d_stream,
                           rows, 4 * width, width);
    layernorm_forward(m->pool, m->normed, k->mean_2, k->inverse_2, k->middle, w[LN_2_WEIGHT],
                      w[LN_2_BIAS], rows, width);
    linear_backward_weight(m->pool, d[C_FC_WEIGHT], d[C_FC_BIAS], m->normed, m->d_hidden, rows,
                           width, 4 * width);
    linear_backward_in(m->pool, m->d_normed, m->d_hidden, w[C_FC_WEIGHT], rows, width, 4 * width);
    layernorm_backward(m->pool, m->d_stream, d[LN_2_WEIGHT], d[LN_2_BIAS], m->d_normed, k->middle,
                       k->mean_2, k->inverse_2, w[LN_2_WEIGHT], rows, width);
}

// Goes back through a layer's attention.
static void attend_backward(struct model *m, const struct kept *k, const real *in,
                            const real *const *w, real *const *d)
{
    const int rows = m->rows, width = m->dims.width;
    real *d_qkv = m->d_hidden;
    linear_backward_weight(m->pool, d[ATTN_PROJ_WEIGHT], d[ATTN_PROJ_BIAS], k->attended,
                           m->d_stream, rows, width, width);
    linear_backward_in(m->pool, m->d_attended, m->d_stream, w[ATTN_PROJ_WEIGHT], rows, width,
                       width);
    attention_backward(m->pool, d_qkv, m->d_attended, k->largest, k->inverse, k->qkv, m->scores,
                       m->batch, m->dims.heads, width);
    layernorm_forward(m->pool, m->normed, k->mean_1, k->inverse_1, in, w[LN_1_WEIGHT], w[LN_1_BIAS],
                      rows, width);
    linear_backward_weight(m->pool, d[C_ATTN_WEIGHT], d[C_ATTN_BIAS], m->normed, d_qkv, rows, width,
                           3 * width);
    linear_backward_in(m->pool, m->d_normed, d_qkv, w[C_ATTN_WEIGHT], rows, width, 3 * width);
    layernorm_backward(m->pool, m->d_stream, d[LN_1_WEIGHT], d[LN_1_BIAS], m->d_normed, in,
                       k->mean_1, k->inverse_1, w[LN_1_WEIGHT], rows, width);
}

void model_block_backward(struct model *model, int layer, const real *const *block,
                          real *const *d_block)
{
    if (model->recompute)
        block_keep(model, layer, block);
    const struct kept *k = kept_of(model, layer);
    mlp_backward(model, k, block, d_block);
    attend_backward(model, k, model->stream[layer], block, d_block);
}

static void final_norm(struct model *m, const real *const *final)
{
    layernorm_forward(m->pool, m->normed, m->mean_f, m->inverse_f, m->stream[m->dims.layers],
                      final[LN_F_WEIGHT], final[LN_F_BIAS], m->rows, m->dims.width);
}

// logits = normed * wte^T for some rows.
static void head_logits(struct model *m, int first, int rows, const real *wte, real *logits)
{
    const int width = m->dims.width;
    const struct matrix in = {.data = m->normed + (size_t)first * (size_t)width, .stride = width};
    const struct matrix table = {.data = wte, .stride = width, .transposed = true};
    matmul(m->pool, rows, m->dims.vocab, width, in, table, 0, logits);
}

// The head on rows first .. first+rows-1: their losses; the logits become their own gradient, by
// loss_scale.
static void head_losses(struct model *m, const uint16_t *target, real loss_scale, int first,
                        int rows, const real *wte)
{
    head_logits(m, first, rows, wte, m->logits);
    cross_entropy(m->pool, m->loss + first, m->logits, target + first, rows, m->dims.vocab,
                  loss_scale / (real)m->rows);
}

// Losses of a chunk of rows, their d_normed, and their share of d_wte.
static void head_chunk(struct model *m, const uint16_t *target, real loss_scale, int first,
                       int rows, const real *wte, real *d_wte)
{
    const int width = m->dims.width, vocab = m->dims.vocab;
    const size_t at = (size_t)first * (size_t)width;
    head_losses(m, target, loss_scale, first, rows, wte);
    const struct matrix d_logits = {.data = m->logits, .stride = vocab};
    const struct matrix table = {.data = wte, .stride = width};
    matmul(m->pool, rows, width, vocab, d_logits, table, 0, m->d_normed + at);
    const struct matrix transposed = {.data = m->logits, .stride = vocab, .transposed = true};
    const struct matrix in = {.data = m->normed + at, .stride = width};
    matmul(m->pool, vocab, width, rows, transposed, in, first == 0 ? 0 : 1, d_wte);
}

// How many rows from `first` on the head does at a time.
static int chunk_rows(const struct model *m, int first)
{
    const int left = m->rows - first;
    return left < m->logit_rows ? left : m->logit_rows;
}

static double mean_loss(const struct model *m)
{
    double sum = 0;
    for (int row = 0; row < m->rows; row++)
        sum += m->loss[row];
    return sum / m->rows;
}

double model_loss(struct model *model, const uint16_t *target, const real *const *final,
                  const real *const *embed)
{
    final_norm(model, final);
    for (int first = 0; first < model->rows; first += model->logit_rows)
        head_losses(model, target, 1, first, chunk_rows(model, first), embed[WTE]);
    return mean_loss(model);
}

double model_head(struct model *model, const uint16_t *target, real loss_scale,
                  const real *const *final, const real *const *embed, real *const *d_final,
                  real *const *d_embed)
{
    const int width = model->dims.width;
    final_norm(model, final);
    for (int first = 0; first < model->rows; first += model->logit_rows)
        head_chunk(model, target, loss_scale, first, chunk_rows(model, first), embed[WTE],
                   d_embed[WTE]);
    memset(model->d_stream, 0, (size_t)model->rows * (size_t)width * sizeof(real));
    layernorm_backward(model->pool, model->d_stream, d_final[LN_F_WEIGHT], d_final[LN_F_BIAS],
                       model->d_normed, model->stream[model->dims.layers], model->mean_f,
                       model->inverse_f, final[LN_F_WEIGHT], model->rows, width);
    return mean_loss(model);
}

void model_embed_backward(struct model *model, real *const *d_embed)
{
    embedding_backward(model->pool, d_embed[WTE], d_embed[WPE], model->d_stream, model->token,
                       model->batch, model->dims.width);
}

void model_logits(struct model *model, int first, int rows, const real *const *final,
                  const real *const *embed, real *logits)
{
    final_norm(model, final);
    head_logits(model, first, rows, embed[WTE], logits);
}
