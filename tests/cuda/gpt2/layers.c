// Every layer of gpt2 on a GPU, forward and backward, element by element against its definition in
// double precision (examples/gpt2/layers.h), and bit by bit against itself: with the driver and the
// cuBLAS that stand in for NVIDIA's, where no two of RUNS runs go alike (on_host.cpp), or on a GPU.
#include "base/bfloat16.h"
#include "gpu_layers.h"
#include "linear.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, MOST_BUFFERS = 64, RUNS = 4 };

static struct layers layers;
static struct pool *pool;
static void *buffers[MOST_BUFFERS], *values[MOST_BUFFERS];
static int buffer_count, value_count;
static uint32_t chance = 1;

/* ------------------------------------------------------------------ here and there */

static double *room(size_t count)
{
    assert_true(value_count < MOST_BUFFERS);
    return values[value_count++] = calloc(count, sizeof(double));
}

static double rounded(double x)
{
    return layers.dtype == GPU_F32 ? (double)(float)x
                                   : (double)base_f32_from_bf16(base_bf16_from_f32((float)x));
}

// Numbers the GPU's type has, of either sign, up to `most`.
static double *random_values(size_t count, double most)
{
    double *x = room(count);
    for (size_t i = 0; i < count; i++) {
        chance = chance * 1664525 + 1013904223;
        x[i] = rounded(most * ((double)(chance >> 8) / (1 << 23) - 1));
    }
    return x;
}

static void *reserve(size_t bytes)
{
    assert_true(buffer_count < MOST_BUFFERS);
    void *there = gpu_alloc(layers.gpu, bytes);
    assert_non_null(there);
    return buffers[buffer_count++] = there;
}

static void *send_bytes(const void *bytes, size_t size)
{
    void *there = reserve(size);
    gpu_copy(layers.gpu, there, bytes, size);
    gpu_wait(layers.gpu);
    return there;
}

static void *send(const double *x, size_t count)
{
    const size_t size = gpu_size(layers.dtype);
    char *bytes = malloc(count * size);
    for (size_t i = 0; i < count; i++) {
        const float wide = (float)x[i];
        const uint16_t half = base_bf16_from_f32(wide);
        memcpy(bytes + i * size, layers.dtype == GPU_F32 ? (const void *)&wide : &half, size);
    }
    void *there = send_bytes(bytes, count * size);
    free(bytes);
    return there;
}

static void *reserve_values(size_t count)
{
    return reserve(count * gpu_size(layers.dtype));
}

static void free_all(void)
{
    gpu_wait(layers.gpu);
    while (buffer_count > 0)
        gpu_free(layers.gpu, buffers[--buffer_count]);
    while (value_count > 0)
        free(values[--value_count]);
    assert_null(gpu_failure(layers.gpu));
}

// Each of what is there may differ by `error` roundings of its own size and of `size`: of the
// numbers that were added up.
static void expect(const char *what, const void *there, enum gpu_dtype dtype, const double *wanted,
                   size_t count, double size, double error)
{
    const double unit = layers.dtype == GPU_F32 ? 0x1p-24 : 0x1p-9;
    char *bytes = malloc(count * gpu_size(dtype));
    gpu_copy(layers.gpu, bytes, there, count * gpu_size(dtype));
    gpu_wait(layers.gpu);
    for (size_t i = 0; i < count; i++) {
        float wide;
        uint16_t half;
        memcpy(&wide, bytes + i * 4 * (dtype == GPU_F32), sizeof wide);
        memcpy(&half, bytes + i * 2, sizeof half);
        const double got = dtype == GPU_F32 ? (double)wide : (double)base_f32_from_bf16(half);
        const double bound = error * unit * (fabs(wanted[i]) + size);
        if (!(fabs(got - wanted[i]) <= bound))
            fail_msg("%s (%s): element %zu is %.9g, not %.9g: %.1f of its bound", what,
                     layers.dtype == GPU_F32 ? "f32" : "bf16", i, got, wanted[i],
                     fabs(got - wanted[i]) / bound);
    }
    free(bytes);
}

static void expect_values(const char *what, const void *there, const double *wanted, size_t count,
                          double size, double error)
{
    expect(what, there, layers.dtype, wanted, count, size, error);
}

// What two runs have left is the same.
static void expect_same(const char *what, const void *one, const void *other, size_t bytes)
{
    char *a = malloc(2 * bytes);
    gpu_copy(layers.gpu, a, one, bytes);
    gpu_copy(layers.gpu, a + bytes, other, bytes);
    gpu_wait(layers.gpu);
    if (memcmp(a, a + bytes, bytes) != 0)
        fail_msg("%s: two runs differ", what);
    free(a);
}

/* ------------------------------------------------------------------ layer norm, embeddings */

static void check_norm(int rows, int width)
{
    const size_t count = (size_t)rows * (size_t)width, w = (size_t)width;
    double *in = random_values(count, 2), *gain = random_values(w, 1), *bias = random_values(w, 1);
    double *d_out = random_values(count, 1), *d_in = random_values(count, 1);
    double *out = room(count), *mean = room((size_t)rows), *inverse = room((size_t)rows);
    double *d_gain = room(w), *d_bias = room(w), *d_first = room(count);
    const struct normed normed = {reserve((size_t)rows * 4), reserve((size_t)rows * 4)};
    void *in_there = send(in, count), *gain_there = send(gain, w), *bias_there = send(bias, w);
    void *d_out_there = send(d_out, count), *d_in_there = send(d_in, count);
    void *out_there = reserve_values(count), *d_first_there = reserve_values(count);
    void *d_gain_there = reserve_values(w), *d_bias_there = reserve_values(w);
    layernorm_forward(pool, out, mean, inverse, in, gain, bias, rows, width);
    layernorm_backward(pool, d_in, d_gain, d_bias, d_out, in, mean, inverse, gain, rows, width);
    layernorm_backward(pool, d_first, d_gain, d_bias, d_out, in, mean, inverse, gain, rows, width);
    layers.parts = reserve(layers_parts(rows, 2 * width));
    layers_norm(&layers, out_there, &normed, in_there, gain_there, bias_there, rows, width);
    layers_norm_back(&layers, d_in_there, d_gain_there, d_bias_there, d_out_there, in_there,
                     &normed, gain_there, rows, width, false);
    layers_norm_back(&layers, d_first_there, d_gain_there, d_bias_there, d_out_there, in_there,
                     &normed, gain_there, rows, width, true);
    expect("mean", normed.mean, GPU_F32, mean, (size_t)rows, 1, 8);
    expect("norm", out_there, layers.dtype, out, count, 4, 8);
    expect_values("d_in", d_in_there, d_in, count, 4, 8);
    expect_values("d_in, written", d_first_there, d_first, count, 4, 8);
    expect_values("d_gain", d_gain_there, d_gain, w, rows, 2);
    expect_values("d_bias", d_bias_there, d_bias, w, rows, 2);
    free_all();
}

static void test_norm(void **state)
{
    (void)state;
    check_norm(1, 8);
    check_norm(33, 72);
    check_norm(70, 264);
    check_norm(300, 8);
}

static void check_embed(int windows, int length, int width, int vocab)
{
    const struct batch batch = {windows, length};
    const int rows = windows * length;
    const size_t count = (size_t)rows * (size_t)width, w = (size_t)width;
    uint16_t *token = calloc((size_t)rows, sizeof *token);
    int32_t *order = calloc((size_t)rows, sizeof *order);
    int32_t *first = calloc((size_t)vocab + 1, sizeof *first), placed = 0;
    for (int row = 0; row < rows; row++)
        token[row] = (uint16_t)(row % 3 == 0 ? 5 : (row * 7) % vocab); // one of them is frequent
    for (int v = 0; v < vocab; v++)
        for (int row = 0, begins = first[v] = placed; row < rows; row++, (void)begins)
            if (token[row] == v)
                order[placed++] = row;
    first[vocab] = placed;
    const size_t table = (size_t)vocab * w, places = (size_t)length * w;
    double *tokens = random_values(table, 1), *positions = random_values(places, 1);
    double *d_out = random_values(count, 1), *out = room(count), *d_positions = room(places);
    double *sums = random_values(table, 1);
    float *floats = calloc(table, sizeof *floats);
    for (size_t i = 0; i < table; i++)
        floats[i] = (float)sums[i];
    void *out_there = reserve_values(count), *d_tokens = reserve_values(table);
    void *d_positions_there = reserve_values(places), *d_out_there = send(d_out, count);
    embedding_forward(pool, out, token, tokens, positions, batch, width);
    embedding_backward(pool, sums, d_positions, d_out, token, batch, width);
    layers_embed(&layers, out_there, send_bytes(token, (size_t)rows * 2), send(tokens, table),
                 send(positions, places), batch, width);
    layers_embed_back(&layers, d_tokens, d_positions_there, send_bytes(floats, table * 4),
                      d_out_there, send_bytes(order, (size_t)rows * 4),
                      send_bytes(first, ((size_t)vocab + 1) * 4), batch, width, vocab);
    expect_values("embeddings", out_there, out, count, 1, 2);
    expect_values("d_wte", d_tokens, sums, table, rows, 2);
    expect_values("d_wpe", d_positions_there, d_positions, places, windows, 2);
    free(floats);
    free(first);
    free(order);
    free(token);
    free_all();
}

static void test_embed(void **state)
{
    (void)state;
    check_embed(1, 5, 8, 11);
    check_embed(3, 17, 264, 29);
    check_embed(5, 70, 264, 6); // tokens with as many rows as a block adds up, and fewer
    check_embed(13, 15, 8, 300);
}

/* ------------------------------------------------------------------ products, GELU */

static void check_linear(int rows, int ins, int outs)
{
    const size_t in_count = (size_t)rows * (size_t)ins, out_count = (size_t)rows * (size_t)outs;
    const size_t weights = (size_t)ins * (size_t)outs;
    double *in = random_values(in_count, 1), *weight = random_values(weights, 1);
    double *bias = random_values((size_t)outs, 1), *residual = random_values(out_count, 1);
    double *d_out = random_values(out_count, 1), *hidden = random_values(in_count, 3);
    double *out = room(out_count), *d_in = room(in_count), *d_weight = room(weights);
    double *d_bias = room((size_t)outs), *d_hidden = room(in_count), *active = room(in_count);
    void *in_there = send(in, in_count), *weight_there = send(weight, weights);
    void *bias_there = send(bias, (size_t)outs), *d_out_there = send(d_out, out_count);
    void *out_there = reserve_values(out_count), *hidden_there = reserve_values(out_count);
    void *d_in_there = reserve_values(in_count), *d_weight_there = reserve_values(weights);
    void *d_bias_there = reserve_values((size_t)outs), *active_there = reserve_values(in_count);
    layers.parts = reserve(layers_parts(rows, outs));

    linear_forward(pool, out, in, weight, bias, residual, rows, ins, outs);
    layers_linear(&layers, out_there, in_there, weight_there, bias_there, send(residual, out_count),
                  rows, ins, outs);
    expect_values("linear", out_there, out, out_count, ins, 2);

    linear_forward(pool, out, in, weight, bias, NULL, rows, ins, outs);
    layers_linear_gelu(&layers, out_there, hidden_there, in_there, weight_there, bias_there, rows,
                       ins, outs);
    expect_values("before GELU", hidden_there, out, out_count, ins, 2);
    gelu_forward(pool, out, out, out_count);
    expect_values("GELU", out_there, out, out_count, ins, 2);

    linear_backward_in(pool, d_in, d_out, weight, rows, ins, outs);
    layers_linear_back_in(&layers, d_in_there, d_out_there, weight_there, rows, ins, outs);
    expect_values("linear d_in", d_in_there, d_in, in_count, outs, 2);
    memcpy(d_hidden, d_in, in_count * sizeof *d_in);
    gelu_backward(pool, d_hidden, active, hidden, in_count);
    layers_linear_gelu_back(&layers, d_in_there, active_there, d_out_there, weight_there,
                            send(hidden, in_count), rows, ins, outs);
    expect_values("d_hidden", d_in_there, d_hidden, in_count, outs, 3);
    expect_values("GELU again", active_there, active, in_count, 1, 3);

    linear_backward_weight(pool, d_weight, d_bias, in, d_out, rows, ins, outs);
    layers_linear_back_weight(&layers, d_weight_there, d_bias_there, in_there, d_out_there, rows,
                              ins, outs);
    expect_values("d_weight", d_weight_there, d_weight, weights, rows, 2);
    expect_values("d_bias", d_bias_there, d_bias, (size_t)outs, rows, 2);
    free_all();
}

static void test_linear(void **state)
{
    (void)state;
    check_linear(5, 8, 16);
    check_linear(67, 24, 40);
}

// Without a way to join GELU to a product kernels of their own compute it.
static void test_linear_apart(void **state)
{
    cuda_driver_live_fn live;
    (void)state;
    if (!cuda_driver_find(CUDA_DRIVER_LIVE, &live))
        skip(); // only what stands in for cuBLAS can be told so
    assert_int_equal(products_missing(layers.products), 0);
    setenv("CUBLASLT_DOUBLE_LACKS", "gelu", 1);
    check_linear(9, 32, 48);
    unsetenv("CUBLASLT_DOUBLE_LACKS");
    assert_int_equal(products_missing(layers.products), layers.dtype == GPU_BF16 ? 2 : 0);
}

/* ------------------------------------------------------------------ attention */

static void check_attention(int windows, int length, int heads, int width)
{
    const struct batch batch = {windows, length};
    const size_t rows = (size_t)windows * (size_t)length, count = rows * (size_t)width;
    const size_t numbers = rows * (size_t)heads;
    double *qkv = random_values(3 * count, 2), *d_out = random_values(count, 1);
    double *out = room(count), *largest = room(numbers), *inverse = room(numbers);
    double *d_qkv = room(3 * count);
    double *scratch = room((size_t)2 * ATTENTION_ROWS * (size_t)length);
    void *qkv_there = send(qkv, 3 * count), *d_out_there = send(d_out, count);
    void *out_there[RUNS], *d_there[RUNS];
    attention_forward(pool, out, largest, inverse, qkv, scratch, batch, heads, width);
    attention_backward(pool, d_qkv, d_out, largest, inverse, qkv, scratch, batch, heads, width);
    for (int run = 0; run < RUNS; run++) {
        float *weight = reserve(numbers * 4), *delta = reserve(numbers * 4);
        out_there[run] = reserve_values(count);
        d_there[run] = reserve_values(3 * count);
        layers_attend(&layers, out_there[run], weight, qkv_there, batch, heads, width);
        layers_attend_back(&layers, d_there[run], d_out_there, out_there[run], weight, delta,
                           qkv_there, batch, heads, width);
    }
    // A score's own error is its size's, and goes into the exponent.
    expect_values("attention", out_there[0], out, count, 2, layers.dtype == GPU_F32 ? 64 : 4);
    expect_values("d_qkv", d_there[0], d_qkv, 3 * count, 4, layers.dtype == GPU_F32 ? 64 : 4);
    for (int run = 1; run < RUNS; run++) {
        expect_same("attention", out_there[0], out_there[run], count * gpu_size(layers.dtype));
        expect_same("d_qkv", d_there[0], d_there[run], 3 * count * gpu_size(layers.dtype));
    }
    free_all();
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(2, 9, 2, 16);
    check_attention(1, 20, 1, 104);
}

static void test_attention_tiles(void **state)
{
    (void)state;
    check_attention(1, 1, 1, 64);
    check_attention(2, 37, 2, 128);
    check_attention(1, 130, 1, 64);
}

/* ------------------------------------------------------------------ loss */

static void check_loss(int rows, int classes)
{
    const int stride = (classes + GPT2_PACK - 1) / GPT2_PACK * GPT2_PACK;
    const size_t count = (size_t)rows * (size_t)stride;
    const float scale = 3.0f / (float)rows;
    double *padded = random_values(count, 8), *dense = room((size_t)rows * (size_t)classes);
    double *loss = room((size_t)rows), *wanted = room(count), mean = 0;
    uint16_t *target = calloc((size_t)rows, sizeof *target);
    for (int row = 0; row < rows; row++) {
        target[row] = (uint16_t)(row * 5 % classes);
        memcpy(dense + row * classes, padded + row * stride, (size_t)classes * sizeof *dense);
    }
    struct gpt2_loss l = {.loss = reserve((size_t)rows * 4),
                          .logits = send(padded, count),
                          .target = send_bytes(target, (size_t)rows * 2),
                          .classes = classes,
                          .stride = stride};
    struct gpt2_mean_loss m = {.mean = reserve(4), .loss = l.loss, .rows = rows};
    cross_entropy(pool, loss, dense, target, rows, classes, (double)scale);
    for (int row = 0; row < rows; row++) {
        mean += loss[row] / rows;
        memcpy(wanted + row * stride, dense + row * classes, (size_t)classes * sizeof *dense);
    }
    gpu_run(layers.gpu, GPU_loss, layers.dtype, (size_t)rows, 1, &l);
    expect_values("logits, kept", l.logits, padded, count, 0, 0);
    l.scale = scale;
    gpu_run(layers.gpu, GPU_loss, layers.dtype, (size_t)rows, 1, &l);
    gpu_run(layers.gpu, GPU_mean_loss, layers.dtype, 1, 1, &m);
    expect("losses", l.loss, GPU_F32, loss, (size_t)rows, 8, layers.dtype == GPU_F32 ? 8 : 0.001);
    expect("their mean", m.mean, GPU_F32, &mean, 1, 8, layers.dtype == GPU_F32 ? 8 : 0.001);
    const double terms = (double)scale * (layers.dtype == GPU_F32 ? 1 : 1e-3); // p - 1 may cancel
    expect_values("d_logits", l.logits, wanted, count, terms, 8);
    free(target);
    free_all();
}

static void test_loss(void **state)
{
    (void)state;
    check_loss(1, 2);
    check_loss(3, 37);
    check_loss(2, 5003);
    check_loss(300, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),      cmocka_unit_test(test_embed),
        cmocka_unit_test(test_linear),    cmocka_unit_test(test_linear_apart),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_attention_tiles),
        cmocka_unit_test(test_loss),
    };
    struct reason reason;
    layers.gpu = gpu_open(0, &reason);
    if (!layers.gpu) {
        cuda_driver_live_fn live;
        const bool stands_in = cuda_driver_find(CUDA_DRIVER_LIVE, &live);
        printf("%s: %s\n", stands_in ? "failed" : "skipped", reason.text);
        return stands_in ? 1 : SKIPPED;
    }
    layers.products = products_open(layers.gpu, &reason);
    pool = pool_create(1);
    int failed = !layers.products || !pool;
    if (!layers.products)
        printf("%s\n", reason.text);
    for (int dtype = 0; dtype < GPU_DTYPES && !failed; dtype++) {
        layers.dtype = (enum gpu_dtype)dtype;
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    }
    pool_free(pool);
    products_close(layers.products);
    gpu_close(layers.gpu);
    return failed || !cuda_left_nothing();
}
