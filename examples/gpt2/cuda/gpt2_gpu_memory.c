// The memory of a GPT-2 on a GPU: one arena, carved up by one walk that first only counts.
#include "gpt2_gpu_model.h"
#include "products.h"

#include <stdlib.h>

// Logits are held for as many rows as make this many elements, in steps of LOGIT_ROWS.
#define LOGIT_ELEMENTS (1 << 27)
#define LOGIT_ROWS 128

// A walk over memory: with base NULL it only counts.
struct carver {
    char *base;
    size_t used;
};

static void *carve(struct carver *carver, size_t bytes)
{
    void *part = carver->base ? carver->base + carver->used : NULL;
    carver->used += (bytes + 255) / 256 * 256;
    return part;
}

static struct tokens carve_tokens(struct carver *carver, const struct cuda_model *m, size_t rows)
{
    struct tokens t;
    t.token = carve(carver, rows * sizeof *t.token);
    t.target = carve(carver, rows * sizeof *t.target);
    t.order = carve(carver, rows * sizeof *t.order);
    t.first = carve(carver, ((size_t)m->options.dims.vocab + 1) * sizeof *t.first);
    return t;
}

static struct normed carve_normed(struct carver *carver, size_t rows)
{
    struct normed n;
    n.mean = carve(carver, rows * sizeof *n.mean);
    n.inverse = carve(carver, rows * sizeof *n.inverse);
    return n;
}

static void carve_kept(struct carver *carver, struct kept *kept, const struct cuda_model *m,
                       size_t row, size_t rows)
{
    kept->norm_1 = carve_normed(carver, rows);
    kept->norm_2 = carve_normed(carver, rows);
    kept->qkv = carve(carver, 3 * row * rows);
    kept->weight = carve(carver, rows * (size_t)m->options.dims.heads * sizeof *kept->weight);
    kept->attended = carve(carver, row * rows);
    kept->middle = carve(carver, row * rows);
    kept->hidden = carve(carver, 4 * row * rows);
}

static int kept_blocks(const struct cuda_model *m)
{
    return m->options.recompute ? 1 : m->options.dims.layers;
}

static void carve_model(struct carver *carver, struct cuda_model *m, size_t rows)
{
    const struct dims *dims = &m->options.dims;
    const size_t size = gpu_size(m->dtype), row = (size_t)dims->width * size;
    for (int i = 0; i < kept_blocks(m); i++)
        carve_kept(carver, &m->kept[i], m, row, rows);
    for (int i = 0; i <= dims->layers; i++)
        m->stream[i] = carve(carver, row * rows);
    m->norm_f = carve_normed(carver, rows);
    m->d_stream = carve(carver, row * rows);
    m->normed = carve(carver, row * rows);
    m->d_normed = carve(carver, row * rows);
    m->d_attended = carve(carver, row * rows);
    m->active = carve(carver, 4 * row * rows);
    m->d_hidden = carve(carver, 4 * row * rows);
    m->delta = carve(carver, rows * (size_t)dims->heads * sizeof *m->delta);
    m->logits = carve(carver, (size_t)m->logit_rows * (size_t)m->logit_stride * size);
    if (m->dtype != GPU_F32)
        m->token_sums =
            carve(carver, (size_t)dims->vocab * (size_t)dims->width * sizeof *m->token_sums);
    m->loss = carve(carver, rows * sizeof *m->loss);
    m->mean = carve(carver, sizeof *m->mean);
    m->layers.parts = carve(carver, layers_parts((int)rows, 4 * dims->width));
    m->sent_bytes = carve(carver, m->token_bytes);
}

static void size_up(struct cuda_model *m, int rows)
{
    const int vocab = m->options.dims.vocab;
    struct carver carver = {0};
    m->logit_stride = (vocab + GPT2_LINE - 1) / GPT2_LINE * GPT2_LINE;
    m->logit_rows = LOGIT_ELEMENTS / m->logit_stride / LOGIT_ROWS * LOGIT_ROWS;
    if (m->logit_rows > rows)
        m->logit_rows = rows;
    carve_tokens(&carver, m, (size_t)rows);
    m->token_bytes = carver.used;
}

struct tokens cuda_tokens(const struct cuda_model *m, void *bytes)
{
    struct carver carver = {.base = bytes};
    return carve_tokens(&carver, m, (size_t)m->options.windows * (size_t)m->options.dims.context);
}

bool cuda_allocate(void *compute)
{
    struct cuda_model *m = compute;
    const struct dims *dims = &m->options.dims;
    struct gpu *gpu = m->layers.gpu;
    const int rows = m->options.windows * dims->context;
    size_up(m, rows);
    m->kept = calloc((size_t)kept_blocks(m), sizeof *m->kept);
    m->stream = calloc((size_t)dims->layers + 1, sizeof *m->stream);
    if (!m->kept || !m->stream) {
        gpu_fail(gpu, "out of memory");
        return false;
    }
    struct carver carver = {0};
    carve_model(&carver, m, (size_t)rows);
    m->bytes = carver.used;
    m->arena = gpu_alloc(gpu, m->bytes);
    for (int i = 0; i < SENDERS; i++) {
        m->senders[i].bytes = gpu_alloc_host(gpu, m->token_bytes);
        m->senders[i].mark = gpu_mark_create(gpu);
    }
    if (gpu_failure(gpu))
        return false;
    carver = (struct carver){.base = m->arena};
    carve_model(&carver, m, (size_t)rows);
    m->tokens = cuda_tokens(m, m->sent_bytes);
    return true;
}

void cuda_release(void *compute)
{
    struct cuda_model *m = compute;
    struct gpu *gpu = m->layers.gpu;
    gpu_wait(gpu);
    for (int i = 0; i < SENDERS; i++) {
        gpu_mark_free(gpu, m->senders[i].mark);
        gpu_free_host(gpu, m->senders[i].bytes);
        m->senders[i] = (struct sender){0};
    }
    gpu_free(gpu, m->arena);
    m->arena = NULL;
    products_close(m->layers.products);
    m->layers.products = NULL;
}
