// The kernels of gpt2_kernels.h. No float is added atomically: every sum has an owner and an order.
#include "gpt2_numbers.h"

#include "gpt2_kernels.h"

/* ------------------------------------------------------------------ embeddings */

template <typename T> INLINE void embed(const struct gpt2_embed *e)
{
    const int packs = e->width / GPT2_PACK;
    const size_t task = thread_of_grid(), row = task / packs, at = task % packs * GPT2_PACK;
    if (row >= (size_t)e->rows)
        return;
    float x[GPT2_PACK], y[GPT2_PACK];
    load((const T *)e->token_table + (size_t)e->token[row] * e->width + at, x);
    load((const T *)e->position_table + row % e->length * e->width + at, y);
    for (int j = 0; j < GPT2_PACK; j++)
        x[j] += y[j];
    store((T *)e->out + row * e->width + at, x);
}

/** Adds every `step`-th of a token's rows up, from one on. */
template <typename T>
INLINE void add_rows(const struct gpt2_embed_back *e, size_t at, int begin, int end, int step,
                     float sum[GPT2_PACK])
{
    float x[GPT2_PACK];
#pragma unroll 4
    for (int i = begin; i < end; i += step) {
        load((const T *)e->d_out + (size_t)e->order[i] * e->width + at, x);
        for (int j = 0; j < GPT2_PACK; j++)
            sum[j] += x[j];
    }
}

/** The tasks of the block's warps in turn, those of frequent tokens by all of its warps. */
template <typename T> INLINE void embed_back(const struct gpt2_embed_back *e)
{
    __shared__ __align__(16) float shares[GPT2_WARPS][GPT2_WARP * GPT2_PACK];
    const int parts = (e->width / GPT2_PACK + GPT2_WARP - 1) / GPT2_WARP;
    const int warp = threadIdx.x / GPT2_WARP;
    for (int w = 0; w < GPT2_WARPS; w++) {
        const size_t task = (size_t)blockIdx.x * GPT2_WARPS + w, token = task / parts;
        const size_t at = (task % parts * GPT2_WARP + lane()) * GPT2_PACK;
        const bool inside = at < (size_t)e->width;
        if (token >= (size_t)e->vocab)
            break;
        const int begin = e->first[token], end = e->first[token + 1];
        const bool together = end - begin > GPT2_RARE;
        float sum[GPT2_PACK] = {0}, share[GPT2_PACK];
        if (!together && warp != w)
            continue;
        if (inside && warp == w)
            load(e->sums + token * e->width + at, sum);
        if (inside)
            add_rows<T>(e, at, together ? begin + warp : begin, end, together ? GPT2_WARPS : 1,
                        sum);
        if (together) {
            store(shares[warp] + lane() * GPT2_PACK, sum);
            block_sync();
            for (int other = 0; other < GPT2_WARPS && warp == w; other++) {
                load(shares[other] + lane() * GPT2_PACK, share);
                for (int j = 0; j < GPT2_PACK; j++)
                    sum[j] = other == 0 ? share[j] : sum[j] + share[j];
            }
            block_sync();
        }
        if (inside && warp == w)
            store((T *)e->d_table + token * e->width + at, sum);
    }
}

template <typename T> INLINE void position_back(const struct gpt2_position_back *p)
{
    const int packs = p->width / GPT2_PACK;
    const size_t task = thread_of_grid(), position = task / packs, at = task % packs * GPT2_PACK;
    if (position >= (size_t)p->length)
        return;
    float sum[GPT2_PACK] = {0}, x[GPT2_PACK];
    for (int w = 0; w < p->windows; w++) {
        const size_t row = (size_t)w * p->length + position;
        load((const T *)p->d_out + row * p->width + at, x);
        for (int j = 0; j < GPT2_PACK; j++)
            sum[j] += x[j];
    }
    store((T *)p->d_table + position * p->width + at, sum);
}

/* ------------------------------------------------------------------ layer norm */

template <typename T> INLINE void norm(const struct gpt2_norm *n)
{
    const size_t row = warp_of_grid();
    if (row >= (size_t)n->rows)
        return;
    const T *in = (const T *)n->in + row * n->width;
    float x[GPT2_PACK], gain[GPT2_PACK], bias[GPT2_PACK], sum = 0, squares = 0;
    for (int at = lane() * GPT2_PACK; at < n->width; at += GPT2_WARP * GPT2_PACK) {
        load(in + at, x);
        for (int j = 0; j < GPT2_PACK; j++)
            sum += x[j];
    }
    const float mean = warp_sum(sum) / (float)n->width;
    for (int at = lane() * GPT2_PACK; at < n->width; at += GPT2_WARP * GPT2_PACK) {
        load(in + at, x);
        for (int j = 0; j < GPT2_PACK; j++)
            squares += (x[j] - mean) * (x[j] - mean);
    }
    const float inverse = 1 / sqrtf(warp_sum(squares) / (float)n->width + 1e-5f);
    for (int at = lane() * GPT2_PACK; at < n->width; at += GPT2_WARP * GPT2_PACK) {
        load(in + at, x);
        load((const T *)n->gain + at, gain);
        load((const T *)n->bias + at, bias);
        for (int j = 0; j < GPT2_PACK; j++)
            x[j] = (x[j] - mean) * inverse * gain[j] + bias[j];
        store((T *)n->out + row * n->width + at, x);
    }
    if (lane() == 0) {
        n->mean[row] = mean;
        n->inverse[row] = inverse;
    }
}

template <typename T> INLINE void norm_back(const struct gpt2_norm_back *n)
{
    const size_t row = warp_of_grid();
    if (row >= (size_t)n->rows)
        return;
    const T *in = (const T *)n->in + row * n->width;
    const T *d_out = (const T *)n->d_out + row * n->width;
    T *d_in = (T *)n->d_in + row * n->width;
    const float mean = n->mean[row], inverse = n->inverse[row];
    float x[GPT2_PACK], gain[GPT2_PACK], d[GPT2_PACK], sum = 0, product = 0;
    for (int at = lane() * GPT2_PACK; at < n->width; at += GPT2_WARP * GPT2_PACK) {
        load(in + at, x);
        load(d_out + at, d);
        load((const T *)n->gain + at, gain);
        for (int j = 0; j < GPT2_PACK; j++) {
            sum += d[j] * gain[j];
            product += d[j] * gain[j] * ((x[j] - mean) * inverse);
        }
    }
    sum = warp_sum(sum) / (float)n->width;
    product = warp_sum(product) / (float)n->width;
    for (int at = lane() * GPT2_PACK; at < n->width; at += GPT2_WARP * GPT2_PACK) {
        float before[GPT2_PACK] = {0};
        load(in + at, x);
        load(d_out + at, d);
        load((const T *)n->gain + at, gain);
        if (!n->first)
            load(d_in + at, before);
        for (int j = 0; j < GPT2_PACK; j++) {
            const float normed = (x[j] - mean) * inverse;
            before[j] += (d[j] * gain[j] - sum - normed * product) * inverse;
        }
        store(d_in + at, before);
    }
}

/* ------------------------------------------------------------------ sums over rows */

template <typename T> INLINE void norm_parts(const struct gpt2_norm_parts *n)
{
    const int packs = n->width / GPT2_PACK;
    const size_t task = thread_of_grid(), chunk = task / packs, at = task % packs * GPT2_PACK;
    const size_t begin = chunk * GPT2_SUM_ROWS, rows = n->rows;
    const size_t end = begin + GPT2_SUM_ROWS < rows ? begin + GPT2_SUM_ROWS : rows;
    if (begin >= rows)
        return;
    float d_gain[GPT2_PACK] = {0}, d_bias[GPT2_PACK] = {0}, x[GPT2_PACK], d[GPT2_PACK];
#pragma unroll 4
    for (size_t row = begin; row < end; row++) {
        load((const T *)n->in + row * n->width + at, x);
        load((const T *)n->d_out + row * n->width + at, d);
        for (int j = 0; j < GPT2_PACK; j++) {
            d_gain[j] += d[j] * ((x[j] - n->mean[row]) * n->inverse[row]);
            d_bias[j] += d[j];
        }
    }
    store(n->parts + 2 * chunk * n->width + at, d_gain);
    store(n->parts + (2 * chunk + 1) * n->width + at, d_bias);
}

template <typename T> INLINE void bias_parts(const struct gpt2_bias_parts *b)
{
    const int packs = b->width / GPT2_PACK;
    const size_t task = thread_of_grid(), chunk = task / packs, at = task % packs * GPT2_PACK;
    const size_t begin = chunk * GPT2_SUM_ROWS, rows = b->rows;
    const size_t end = begin + GPT2_SUM_ROWS < rows ? begin + GPT2_SUM_ROWS : rows;
    if (begin >= rows)
        return;
    float sum[GPT2_PACK] = {0}, x[GPT2_PACK];
#pragma unroll 4
    for (size_t row = begin; row < end; row++) {
        load((const T *)b->in + row * b->width + at, x);
        for (int j = 0; j < GPT2_PACK; j++)
            sum[j] += x[j];
    }
    store(b->parts + chunk * b->width + at, sum);
}

/** A warp adds every GPT2_WARPS-th chunk up, of which it reads GPT2_SUM_AHEAD at once, and the
 * first warp their sums. */
template <typename T> INLINE void sum_parts(const struct gpt2_sum_parts *s)
{
    __shared__ float sums[GPT2_WARPS][GPT2_SUM_COLUMNS];
    const int warp = threadIdx.x / GPT2_WARP, column = blockIdx.x * GPT2_SUM_COLUMNS + lane();
    float sum = 0;
    for (int first = warp; first < s->chunks; first += GPT2_SUM_AHEAD * GPT2_WARPS) {
        float x[GPT2_SUM_AHEAD];
        for (int i = 0; i < GPT2_SUM_AHEAD; i++) {
            const int chunk = first + i * GPT2_WARPS;
            const bool there = chunk < s->chunks && column < s->columns;
            x[i] = there ? s->parts[(size_t)chunk * s->stride + column] : 0;
        }
        for (int i = 0; i < GPT2_SUM_AHEAD; i++)
            sum += x[i];
    }
    sums[warp][lane()] = sum;
    block_sync();
    if (warp > 0 || column >= s->columns)
        return;
    for (int w = 1; w < GPT2_WARPS; w++)
        sum += sums[w][lane()];
    store_one((T *)s->out + column, sum);
}

/* ------------------------------------------------------------------ GELU */

#define GELU_SCALE 0.7978845608028654f
#define GELU_CUBE 0.044715f

INLINE float gelu_of(float x)
{
    return 0.5f * x * (1 + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

INLINE float gelu_slope(float x)
{
    const float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
    const float inner = GELU_SCALE * (1 + 3 * GELU_CUBE * x * x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner;
}

template <typename T> INLINE void gelu(const struct gpt2_gelu *g)
{
    const size_t pack = thread_of_grid();
    if (pack >= g->packs)
        return;
    float x[GPT2_PACK];
    load((const T *)g->in + pack * GPT2_PACK, x);
    for (int j = 0; j < GPT2_PACK; j++)
        x[j] = gelu_of(x[j]);
    store((T *)g->out + pack * GPT2_PACK, x);
}

template <typename T> INLINE void gelu_back(const struct gpt2_gelu_back *g)
{
    const size_t pack = thread_of_grid();
    if (pack >= g->packs)
        return;
    float x[GPT2_PACK], d[GPT2_PACK];
    load((const T *)g->in + pack * GPT2_PACK, x);
    load((const T *)g->gradient + pack * GPT2_PACK, d);
    for (int j = 0; j < GPT2_PACK; j++)
        d[j] *= gelu_slope(x[j]);
    store((T *)g->gradient + pack * GPT2_PACK, d);
}

/* ------------------------------------------------------------------ loss */

#define LOSS_WARPS (GPT2_LOSS_THREADS / GPT2_WARP)

/** e^x. */
INLINE float exp_fast(float x)
{
    return exp2_fast(x * LOG2_E);
}

/** The block's largest and, beside it, its sum of e^(x - largest), from those of each thread. */
INLINE void join_softmax(float *largest, float *sum)
{
    __shared__ float larger[LOSS_WARPS], sums[LOSS_WARPS];
    const float all = warp_max(*largest);
    const float own = warp_sum(*sum * exp_fast(*largest - all));
    if (lane() == 0) {
        larger[threadIdx.x / GPT2_WARP] = all;
        sums[threadIdx.x / GPT2_WARP] = own;
    }
    block_sync();
    *largest = larger[0];
    for (int w = 1; w < LOSS_WARPS; w++)
        *largest = fmaxf(*largest, larger[w]);
    *sum = 0;
    for (int w = 0; w < LOSS_WARPS; w++)
        *sum += sums[w] * exp_fast(larger[w] - *largest);
}

/** Adds e^(x - largest) of a pack to a thread's sum, whose largest grows with it. */
INLINE void add_softmax(const float x[GPT2_PACK], int left, float *largest, float *sum)
{
    float above = *largest;
    for (int j = 0; j < GPT2_PACK; j++)
        above = j < left ? fmaxf(above, x[j]) : above;
    *sum *= exp_fast(*largest - above);
    for (int j = 0; j < GPT2_PACK; j++)
        *sum += j < left ? exp_fast(x[j] - above) : 0;
    *largest = above;
}

template <typename T> INLINE void loss(const struct gpt2_loss *l)
{
    const size_t row = blockIdx.x;
    T *logits = (T *)l->logits + row * l->stride;
    float largest = -FLOAT_MAX, sum = 0, x[GPT2_PACK];
    for (int at = threadIdx.x * GPT2_PACK; at < l->classes; at += GPT2_LOSS_THREADS * GPT2_PACK) {
        load_some(logits + at, l->classes - at, x);
        add_softmax(x, l->classes - at, &largest, &sum);
    }
    const int target = l->target[row];
    const float right = load_one(logits + target);
    join_softmax(&largest, &sum); // behind its barrier no thread reads `right` any more
    if (threadIdx.x == 0)
        l->loss[row] = largest + logf(sum) - right;
    if (l->scale == 0)
        return;
    const float inverse = 1 / sum;
    for (int at = threadIdx.x * GPT2_PACK; at < l->classes; at += GPT2_LOSS_THREADS * GPT2_PACK) {
        load_some(logits + at, l->classes - at, x);
        for (int j = 0; j < GPT2_PACK; j++) {
            const float p = at + j < l->classes ? exp_fast(x[j] - largest) * inverse : 0;
            x[j] = (p - (at + j == target ? 1 : 0)) * l->scale;
        }
        store(logits + at, x);
    }
}

template <typename T> INLINE void mean_loss(const struct gpt2_mean_loss *m)
{
    __shared__ float sums[GPT2_WARPS];
    float sum = 0;
    for (int row = threadIdx.x; row < m->rows; row += GPT2_THREADS)
        sum += m->loss[row];
    sum = warp_sum(sum);
    if (lane() == 0)
        sums[threadIdx.x / GPT2_WARP] = sum;
    block_sync();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < GPT2_WARPS; w++)
        sum += sums[w];
    *m->mean = sum / (float)m->rows;
}

#include "attention.h"
#include "gpt2_tiles.h"

/* ------------------------------------------------------------------ by their names */

// NOLINTBEGIN(bugprone-macro-parentheses): a type
#define BOTH(name, threads)                                                                        \
    extern "C" __global__ void __launch_bounds__(threads) gpt2_##name##_f32(struct gpt2_##name a)  \
    {                                                                                              \
        name<float>(&a);                                                                           \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(threads) gpt2_##name##_bf16(struct gpt2_##name a) \
    {                                                                                              \
        name<bf16>(&a);                                                                            \
    }
GPT2_KERNELS(BOTH)

#define ONE(name, threads)                                                                         \
    extern "C" __global__ void __launch_bounds__(threads) gpt2_##name##_bf16(struct gpt2_##name a) \
    {                                                                                              \
        name(&a);                                                                                  \
    }
GPT2_TILE_KERNELS(ONE)
// NOLINTEND(bugprone-macro-parentheses)
