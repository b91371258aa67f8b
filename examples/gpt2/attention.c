#include "lanes.h"
#include "layers.h"

// A task is one head of one window. It walks over blocks of ATTENTION_ROWS query rows; the scores
// of a block against all keys it may see (the columns up to its last row) fit in the cache and are
// never kept: the way back computes them again (Dao et al. 2022, without its blocks of keys).
struct attention {
    struct pool *pool;
    real *out, *largest, *inverse; // forward
    real *d_qkv;                   // backward
    const real *d_out, *kept_largest, *kept_inverse;
    const real *qkv;
    real *scratch;
    struct batch batch;
    int heads, width, head_width;
    real scale;
};

// Where one head of one window lies.
struct head {
    size_t qkv; // its first query in qkv; keys are width further, values 2 width
    size_t out; // in out
    size_t row; // in largest and inverse
};

static struct head find_head(const struct attention *a, size_t index)
{
    const size_t window = index / (size_t)a->heads, head = index % (size_t)a->heads;
    const size_t first = window * (size_t)a->batch.length;
    const size_t width = (size_t)a->width, column = head * (size_t)a->head_width;
    return (struct head){.qkv = first * 3 * width + column,
                         .out = first * width + column,
                         .row = index * (size_t)a->batch.length};
}

// scores = scale * q k^T: `rows` rows of queries from row `first` on, columns 0 .. first+rows-1.
static void block_scores(const struct attention *a, int thread, const real *qkv, int first,
                         int rows, real *scores)
{
    const int stride = 3 * a->width;
    const struct matrix q = {.data = qkv + (size_t)first * (size_t)stride, .stride = stride};
    const struct matrix k = {.data = qkv + a->width, .stride = stride, .transposed = true};
    blas_gemm(pool_meter(a->pool, thread), rows, first + rows, a->head_width, a->scale, q, k, 0,
              scores, first + rows);
}

BEST_ISA
static void softmax_rows(real *scores, real *largest, real *inverse, int first, int rows)
{
    const int columns = first + rows;
    for (int i = 0; i < rows; i++) {
        real *row = scores + (size_t)i * (size_t)columns;
        const int seen = first + i + 1;
        largest[first + i] = row_largest(row, seen);
        inverse[first + i] = 1 / row_exponentials(row, largest[first + i], seen);
        for (int j = 0; j < seen; j++)
            row[j] *= inverse[first + i];
        memset(row + seen, 0, (size_t)(columns - seen) * sizeof *row);
    }
}

static void forward_head(void *arg, size_t index, int thread)
{
    const struct attention *a = arg;
    const struct head head = find_head(a, index);
    const real *qkv = a->qkv + head.qkv;
    const struct matrix v = {.data = qkv + 2 * a->width, .stride = 3 * a->width};
    real *scores = a->scratch + (size_t)thread * 2 * ATTENTION_ROWS * (size_t)a->batch.length;
    for (int first = 0; first < a->batch.length; first += ATTENTION_ROWS) {
        const int left = a->batch.length - first;
        const int rows = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
        block_scores(a, thread, qkv, first, rows, scores);
        softmax_rows(scores, a->largest + head.row, a->inverse + head.row, first, rows);
        const struct matrix p = {.data = scores, .stride = first + rows};
        blas_gemm(pool_meter(a->pool, thread), rows, a->head_width, first + rows, 1, p, v, 0,
                  a->out + head.out + (size_t)first * (size_t)a->width, a->width);
    }
}

static struct attention attention_of(struct pool *pool, const real *qkv, real *scratch,
                                     struct batch batch, int heads, int width)
{
    const int head_width = width / heads;
    return (struct attention){.pool = pool,
                              .qkv = qkv,
                              .scratch = scratch,
                              .batch = batch,
                              .heads = heads,
                              .width = width,
                              .head_width = head_width,
                              .scale = 1 / real_sqrt((real)head_width)};
}

void attention_forward(struct pool *pool, real *out, real *largest, real *inverse, const real *qkv,
                       real *scratch, struct batch batch, int heads, int width)
{
    struct attention a = attention_of(pool, qkv, scratch, batch, heads, width);
    a.out = out;
    a.largest = largest;
    a.inverse = inverse;
    pool_run(pool, forward_head, &a, (size_t)batch.windows * (size_t)heads);
}

// The probabilities once more, bit for bit those of softmax_rows().
BEST_ISA
static void softmax_again(real *scores, const real *largest, const real *inverse, int first,
                          int rows)
{
    const int columns = first + rows;
    for (int i = 0; i < rows; i++) {
        real *row = scores + (size_t)i * (size_t)columns;
        const int seen = first + i + 1;
        for (int j = 0; j < seen; j++)
            row[j] = real_exp(row[j] - largest[first + i]) * inverse[first + i];
        memset(row + seen, 0, (size_t)(columns - seen) * sizeof *row);
    }
}

// d_scores = p * (d_p - p . d_p) * scale, in place of d_p.
BEST_ISA
static void softmax_backward(real *d_p, const real *p, real scale, int first, int rows)
{
    const int columns = first + rows;
    for (int i = 0; i < rows; i++) {
        real *restrict d_row = d_p + (size_t)i * (size_t)columns;
        const real *row = p + (size_t)i * (size_t)columns;
        const real mean = row_dot(row, d_row, columns);
        for (int j = 0; j < columns; j++)
            d_row[j] = row[j] * (d_row[j] - mean) * scale;
    }
}

// The gradients of one block of queries; beta is 0 for the block that touches every key first.
static void backward_block(const struct attention *a, const struct head *head, int thread,
                           int first, int rows, real beta)
{
    struct pool_meter *meter = pool_meter(a->pool, thread);
    const int stride = 3 * a->width, columns = first + rows, depth = a->head_width;
    const size_t row = (size_t)first * (size_t)stride;
    const real *qkv = a->qkv + head->qkv;
    real *d_qkv = a->d_qkv + head->qkv;
    real *p = a->scratch + (size_t)thread * 2 * ATTENTION_ROWS * (size_t)a->batch.length;
    real *d_p = p + ATTENTION_ROWS * (size_t)a->batch.length;
    const struct matrix q = {.data = qkv + row, .stride = stride};
    const struct matrix k = {.data = qkv + a->width, .stride = stride};
    const struct matrix v = {.data = qkv + 2 * a->width, .stride = stride, .transposed = true};
    const struct matrix d_out = {.data = a->d_out + head->out + (size_t)first * (size_t)a->width,
                                 .stride = a->width};

    block_scores(a, thread, qkv, first, rows, p);
    softmax_again(p, a->kept_largest + head->row, a->kept_inverse + head->row, first, rows);
    const struct matrix p_transposed = {.data = p, .stride = columns, .transposed = true};
    blas_gemm(meter, columns, depth, rows, 1, p_transposed, d_out, beta, d_qkv + 2 * a->width,
              stride);
    blas_gemm(meter, rows, columns, depth, 1, d_out, v, 0, d_p, columns);
    softmax_backward(d_p, p, a->scale, first, rows);
    const struct matrix d_scores = {.data = d_p, .stride = columns};
    const struct matrix transposed = {.data = d_p, .stride = columns, .transposed = true};
    blas_gemm(meter, rows, depth, columns, 1, d_scores, k, 0, d_qkv + row, stride);
    blas_gemm(meter, columns, depth, rows, 1, transposed, q, beta, d_qkv + a->width, stride);
}

static void backward_head(void *arg, size_t index, int thread)
{
    const struct attention *a = arg;
    const struct head head = find_head(a, index);
    const int last = (a->batch.length - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
    for (int first = last; first >= 0; first -= ATTENTION_ROWS) {
        const int left = a->batch.length - first;
        const int rows = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
        backward_block(a, &head, thread, first, rows, first == last ? 0 : 1);
    }
}

void attention_backward(struct pool *pool, real *d_qkv, const real *d_out, const real *largest,
                        const real *inverse, const real *qkv, real *scratch, struct batch batch,
                        int heads, int width)
{
    struct attention a = attention_of(pool, qkv, scratch, batch, heads, width);
    a.d_qkv = d_qkv;
    a.d_out = d_out;
    a.kept_largest = largest;
    a.kept_inverse = inverse;
    pool_run(pool, backward_head, &a, (size_t)batch.windows * (size_t)heads);
}
