/**
 * cuda/products.h: matrix products by cuBLASLt, which is loaded when a GPU is asked for.
 *
 * How a product is computed is chosen when its shape is first met, and stays: the same algorithm,
 * and so the same bits, every time. What is split over the inner dimension is added up in the
 * workspace, in order, never atomically. Sums are fp32; at f32 so are the products (no TF32).
 */
#ifndef GPT2_CUDA_PRODUCTS_H
#define GPT2_CUDA_PRODUCTS_H

#include "gpt2_gpu.h"

struct products;

/** A matrix in memory of the GPU, row-major; `stride` elements from row to row. */
struct gpu_matrix {
    const void *data;
    int stride;
    bool transposed; /**< it is used as its transpose */
};

/** What is done to a product before it is stored. */
enum epilogue {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,     /**< a bias is added to each row */
    EPILOGUE_GELU,     /**< the same; it is stored in `hidden`, and its GELU is the result */
    EPILOGUE_GELU_BACK /**< it is multiplied by the slope of GELU at `hidden` */
};

/** c (m x n) = epilogue(a (m x k) b (k x n) + added). */
struct product {
    int m, n, k;
    enum gpu_dtype dtype; /**< of everything but c */
    struct gpu_matrix a, b;
    void *c;
    int c_stride;      /**< of `added`, too; `hidden` is dense */
    bool c_f32;        /**< c, and what is added, are fp32 in any case */
    const void *added; /**< c itself, another matrix, or NULL: nothing */
    enum epilogue epilogue;
    const void *bias;
    void *hidden;
};

/** The library, on this GPU. NULL: it is not there or fails; the reason says what is missing. */
struct products *products_open(struct gpu *gpu, struct reason *reason);

/** When no work is left; accepts NULL. */
void products_close(struct products *products);

/** Memory of the GPU that they have from being opened to being closed. */
size_t products_bytes(void);

/** Whether cuBLAS has a way to compute it. */
bool products_can(struct products *products, const struct product *product);

/** Shapes that were asked for and for which it has none. */
int products_missing(const struct products *products);

/** Queues a product. */
void products_run(struct products *products, const struct product *product);

#endif
