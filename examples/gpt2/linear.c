#include "linear.h"

// Large enough for the BLAS to run at nine tenths of its rate.
#define TILE_ELEMENTS_MAX (512 * 512)
// Where there would be fewer tiles than these, larger ones are cut as long as each part has at
// least so many multiplications. With 10^6 or fewer OpenBLAS runs other kernels, which give other
// bits.
#define TILES_WANTED 4
#define TILE_PRODUCTS_MIN (1024.0 * 1024)

#define COLUMNS_A_TASK 64

struct product {
    struct pool *pool;
    int m, n, k;
    struct matrix a, b;
    real beta;
    const real *bias, *residual; // both NULL: c = a b + beta c, else c = a b + bias + residual
    real *c;
    int tile_m, tile_n, tiles_across;
};

static int tiles_of(int extent, int tile)
{
    return (extent + tile - 1) / tile;
}

static int half_tile(int tile)
{
    return ((tile + 1) / 2 + 31) / 32 * 32;
}

// Whether the tiles should be smaller.
static bool are_large(const struct product *p)
{
    const double tiles = (double)tiles_of(p->m, p->tile_m) * tiles_of(p->n, p->tile_n);
    return (double)p->tile_m * p->tile_n > TILE_ELEMENTS_MAX || tiles < TILES_WANTED;
}

// Halves the longer side of the tiles; false if that would make them too small.
static bool cut_tiles(struct product *p)
{
    int *longer = p->tile_m > p->tile_n ? &p->tile_m : &p->tile_n;
    const int shorter = p->tile_m > p->tile_n ? p->tile_n : p->tile_m;
    const int half = half_tile(*longer);
    if (half >= *longer || (double)half * shorter * p->k < TILE_PRODUCTS_MIN)
        return false;
    *longer = half;
    return true;
}

static void choose_tiles(struct product *p)
{
    p->tile_m = p->m;
    p->tile_n = p->n;
    while (are_large(p) && cut_tiles(p))
        ;
    p->tiles_across = tiles_of(p->n, p->tile_n);
}

// The part of a that begins at row (or, for b, at column) `first` of what it is used as.
static struct matrix skip_rows(struct matrix a, int first)
{
    a.data += a.transposed ? (size_t)first : (size_t)first * (size_t)a.stride;
    return a;
}

static struct matrix skip_columns(struct matrix b, int first)
{
    b.data += b.transposed ? (size_t)first * (size_t)b.stride : (size_t)first;
    return b;
}

BEST_ISA
static void start_row(real *restrict c, const real *restrict bias, const real *restrict residual,
                      int columns)
{
    if (residual)
        for (int j = 0; j < columns; j++)
            c[j] = bias[j] + residual[j];
    else
        memcpy(c, bias, (size_t)columns * sizeof *c);
}

static void product_tile(void *arg, size_t index, int thread)
{
    const struct product *p = arg;
    const int row = (int)index / p->tiles_across * p->tile_m;
    const int column = (int)index % p->tiles_across * p->tile_n;
    const int rows = p->m - row < p->tile_m ? p->m - row : p->tile_m;
    const int columns = p->n - column < p->tile_n ? p->n - column : p->tile_n;
    const size_t corner = (size_t)row * (size_t)p->n + (size_t)column;
    real beta = p->beta;
    if (p->bias) {
        for (int i = 0; i < rows; i++) {
            const size_t at = corner + (size_t)i * (size_t)p->n;
            start_row(p->c + at, p->bias + column, p->residual ? p->residual + at : NULL, columns);
        }
        beta = 1;
    }
    blas_gemm(pool_meter(p->pool, thread), rows, columns, p->k, 1, skip_rows(p->a, row),
              skip_columns(p->b, column), beta, p->c + corner, p->n);
}

static void product_run(struct product *p)
{
    choose_tiles(p);
    const size_t tiles = (size_t)tiles_of(p->m, p->tile_m) * (size_t)p->tiles_across;
    pool_run(p->pool, product_tile, p, tiles);
}

void matmul(struct pool *pool, int m, int n, int k, struct matrix a, struct matrix b, real beta,
            real *c)
{
    product_run(&(struct product){
        .pool = pool, .m = m, .n = n, .k = k, .a = a, .b = b, .beta = beta, .c = c});
}

void linear_forward(struct pool *pool, real *out, const real *in, const real *weight,
                    const real *bias, const real *residual, int rows, int ins, int outs)
{
    product_run(&(struct product){.pool = pool,
                                  .m = rows,
                                  .n = outs,
                                  .k = ins,
                                  .a = {.data = in, .stride = ins},
                                  .b = {.data = weight, .stride = outs},
                                  .bias = bias,
                                  .residual = residual,
                                  .c = out});
}

void linear_backward_in(struct pool *pool, real *d_in, const real *d_out, const real *weight,
                        int rows, int ins, int outs)
{
    const struct matrix out = {.data = d_out, .stride = outs};
    const struct matrix transposed = {.data = weight, .stride = outs, .transposed = true};
    matmul(pool, rows, ins, outs, out, transposed, 0, d_in);
}

struct column_sums {
    real *sum;
    const real *in;
    int rows, columns;
};

BEST_ISA
static void column_sums_task(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct column_sums *s = arg;
    const int first = (int)index * COLUMNS_A_TASK;
    const int count = s->columns - first < COLUMNS_A_TASK ? s->columns - first : COLUMNS_A_TASK;
    real sum[COLUMNS_A_TASK] = {0};
    for (int i = 0; i < s->rows; i++) {
        const real *in = s->in + (size_t)i * (size_t)s->columns + first;
        for (int j = 0; j < count; j++)
            sum[j] += in[j];
    }
    memcpy(s->sum + first, sum, (size_t)count * sizeof *sum);
}

void linear_backward_weight(struct pool *pool, real *d_weight, real *d_bias, const real *in,
                            const real *d_out, int rows, int ins, int outs)
{
    struct column_sums sums = {.sum = d_bias, .in = d_out, .rows = rows, .columns = outs};
    pool_run(pool, column_sums_task, &sums, (size_t)tiles_of(outs, COLUMNS_A_TASK));
    const struct matrix transposed = {.data = in, .stride = ins, .transposed = true};
    const struct matrix out = {.data = d_out, .stride = outs};
    matmul(pool, ins, outs, rows, transposed, out, 0, d_weight);
}
