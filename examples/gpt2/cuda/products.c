#include "products.h"

#include <cublasLt.h>
#include <stdlib.h>

#define TEXT_OF(number) #number
#define LIBRARY_OF(version) "libcublasLt.so." TEXT_OF(version)
#define LIBRARY LIBRARY_OF(CUBLAS_VER_MAJOR)
#define NAME_OF(version) "cuBLAS of CUDA " TEXT_OF(version)
#define NAME NAME_OF(CUBLAS_VER_MAJOR)

#define WORKSPACE_BYTES ((size_t)32 << 20) // what NVIDIA recommends for the largest GPUs
#define SHAPES_MAX 64

#define FUNCTIONS(X)                                                                               \
    X(create, cublasLtCreate)                                                                      \
    X(destroy, cublasLtDestroy)                                                                    \
    X(status_name, cublasLtGetStatusName)                                                          \
    X(desc_create, cublasLtMatmulDescCreate)                                                       \
    X(desc_destroy, cublasLtMatmulDescDestroy)                                                     \
    X(desc_set, cublasLtMatmulDescSetAttribute)                                                    \
    X(layout_create, cublasLtMatrixLayoutCreate)                                                   \
    X(layout_destroy, cublasLtMatrixLayoutDestroy)                                                 \
    X(preference_create, cublasLtMatmulPreferenceCreate)                                           \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy)                                         \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute)                                        \
    X(choose, cublasLtMatmulAlgoGetHeuristic)                                                      \
    X(matmul, cublasLtMatmul)

// A product's shape, and how it is computed.
struct shape {
    struct product key; // of which pointers don't count, but for which of them there are
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    bool missing; // there is no algorithm
    cublasLtMatmulAlgo_t algorithm;
};

struct products {
    struct gpu *gpu;
#define FIELD(field, function) __typeof__(function) *(field);
    FUNCTIONS(FIELD)
#undef FIELD
    cublasLtHandle_t handle;
    void *workspace;
    struct shape shapes[SHAPES_MAX];
    int shape_count;
};

static bool check(struct products *p, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    gpu_fail(p->gpu, "%s: %s (%d)", call, p->status_name(status), (int)status);
    return false;
}

static bool load(struct products *p)
{
    const struct gpu_symbol symbols[] = {
#define SYMBOL(field, function) {#function, &p->field},
        FUNCTIONS(SYMBOL)
#undef SYMBOL
    };
    return gpu_load(p->gpu, LIBRARY, NAME, symbols, sizeof symbols / sizeof *symbols);
}

struct products *products_open(struct gpu *gpu, struct reason *reason)
{
    struct products *p = calloc(1, sizeof *p);
    if (!p) {
        refuse(reason, "out of memory");
        return NULL;
    }
    p->gpu = gpu;
    if (load(p) && check(p, p->create(&p->handle), "cublasLtCreate") &&
        (p->workspace = gpu_alloc(gpu, WORKSPACE_BYTES)))
        return p;
    refuse(reason, "--device cuda: %s", gpu_failure(gpu));
    products_close(p);
    return NULL;
}

void products_close(struct products *products)
{
    if (!products)
        return;
    for (int i = 0; i < products->shape_count; i++) {
        const struct shape *shape = &products->shapes[i];
        products->layout_destroy(shape->c);
        products->layout_destroy(shape->b);
        products->layout_destroy(shape->a);
        products->desc_destroy(shape->desc);
    }
    gpu_free(products->gpu, products->workspace);
    if (products->handle)
        products->destroy(products->handle);
    free(products);
}

size_t products_bytes(void)
{
    return WORKSPACE_BYTES;
}

/* ------------------------------------------------------------------ shapes */

static bool same_matrix(const struct gpu_matrix *a, const struct gpu_matrix *b)
{
    return a->stride == b->stride && a->transposed == b->transposed;
}

static bool same_shape(const struct product *a, const struct product *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->dtype == b->dtype &&
           same_matrix(&a->a, &b->a) && same_matrix(&a->b, &b->b) && a->c_stride == b->c_stride &&
           a->c_f32 == b->c_f32 && !a->added == !b->added && a->epilogue == b->epilogue;
}

static cudaDataType_t type_of(enum gpu_dtype dtype)
{
    return dtype == GPU_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static bool set(struct products *p, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                const void *value, size_t bytes)
{
    return check(p, p->desc_set(desc, what, value, bytes), "cublasLtMatmulDescSetAttribute");
}

// What the epilogue reads and writes, which differs from product to product of a shape.
static bool set_pointers(struct products *p, cublasLtMatmulDesc_t desc,
                         const struct product *product)
{
    const enum epilogue epilogue = product->epilogue;
    bool good = true;
    if (epilogue == EPILOGUE_BIAS || epilogue == EPILOGUE_GELU)
        good =
            set(p, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &product->bias, sizeof product->bias);
    if (epilogue == EPILOGUE_GELU || epilogue == EPILOGUE_GELU_BACK)
        good = good && set(p, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &product->hidden,
                           sizeof product->hidden);
    return good;
}

// Row-major matrices are, to cuBLAS, transposed: what it computes is c^T = b^T a^T, with its own A
// our b and its own B our a.
static bool describe(struct products *p, struct shape *shape, const struct product *product)
{
    static const cublasLtEpilogue_t epilogues[] = {
        [EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [EPILOGUE_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [EPILOGUE_GELU_BACK] = CUBLASLT_EPILOGUE_DGELU,
    };
    const cublasOperation_t a = product->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = product->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogues[product->epilogue];
    const int64_t hidden_stride = product->n;
    return check(p, p->desc_create(&shape->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate") &&
           set(p, shape->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) &&
           set(p, shape->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) &&
           set(p, shape->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
           (product->epilogue < EPILOGUE_GELU ||
            set(p, shape->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &hidden_stride,
                sizeof hidden_stride)) &&
           set_pointers(p, shape->desc, product);
}

static bool lay_out(struct products *p, cublasLtMatrixLayout_t *layout, enum gpu_dtype dtype,
                    int rows, int columns, int stride)
{
    return check(
        p, p->layout_create(layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, stride),
        "cublasLtMatrixLayoutCreate");
}

static bool lay_all_out(struct products *p, struct shape *shape, const struct product *product)
{
    const int m = product->m, n = product->n, k = product->k;
    const struct gpu_matrix *a = &product->a, *b = &product->b;
    return lay_out(p, &shape->a, product->dtype, b->transposed ? n : k, b->transposed ? k : n,
                   b->stride) &&
           lay_out(p, &shape->b, product->dtype, a->transposed ? k : m, a->transposed ? m : k,
                   a->stride) &&
           lay_out(p, &shape->c, product->c_f32 ? GPU_F32 : product->dtype, m, n,
                   product->c_stride);
}

static bool choose(struct products *p, struct shape *shape)
{
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best = {.state = CUBLAS_STATUS_SUCCESS};
    int found = 0;
    if (!check(p, p->preference_create(&preference), "cublasLtMatmulPreferenceCreate"))
        return false;
    const bool asked =
        check(p,
              p->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                sizeof workspace),
              "cublasLtMatmulPreferenceSetAttribute") &&
        check(p,
              p->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                sizeof reductions),
              "cublasLtMatmulPreferenceSetAttribute");
    const cublasStatus_t status = asked
                                      ? p->choose(p->handle, shape->desc, shape->a, shape->b,
                                                  shape->c, shape->c, preference, 1, &best, &found)
                                      : CUBLAS_STATUS_SUCCESS;
    p->preference_destroy(preference);
    shape->missing = asked && (status == CUBLAS_STATUS_NOT_SUPPORTED ||
                               (status == CUBLAS_STATUS_SUCCESS && found == 0));
    if (!asked || (!shape->missing && !check(p, status, "cublasLtMatmulAlgoGetHeuristic")))
        return false;
    shape->algorithm = best.algo;
    return true;
}

static struct shape *add_shape(struct products *p, const struct product *product)
{
    if (p->shape_count == SHAPES_MAX) {
        gpu_fail(p->gpu, "more than %d shapes of matrix products", SHAPES_MAX);
        return NULL;
    }
    struct shape shape = {.key = *product};
    if (describe(p, &shape, product) && lay_all_out(p, &shape, product) && choose(p, &shape)) {
        p->shapes[p->shape_count] = shape;
        return &p->shapes[p->shape_count++];
    }
    if (shape.c)
        p->layout_destroy(shape.c);
    if (shape.b)
        p->layout_destroy(shape.b);
    if (shape.a)
        p->layout_destroy(shape.a);
    if (shape.desc)
        p->desc_destroy(shape.desc);
    return NULL;
}

static struct shape *find_shape(struct products *p, const struct product *product)
{
    for (int i = 0; i < p->shape_count; i++)
        if (same_shape(&p->shapes[i].key, product))
            return &p->shapes[i];
    return add_shape(p, product);
}

bool products_can(struct products *products, const struct product *product)
{
    const struct shape *shape = gpu_failure(products->gpu) ? NULL : find_shape(products, product);
    return shape && !shape->missing;
}

int products_missing(const struct products *products)
{
    int missing = 0;
    for (int i = 0; i < products->shape_count; i++)
        missing += products->shapes[i].missing;
    return missing;
}

void products_run(struct products *products, const struct product *product)
{
    const float one = 1, beta = product->added ? 1 : 0;
    if (gpu_failure(products->gpu))
        return;
    const struct shape *shape = find_shape(products, product);
    if (shape && shape->missing)
        gpu_fail(products->gpu,
                 "cuBLAS has no way to multiply %d x %d by %d x %d (%s, epilogue %d)", product->m,
                 product->k, product->k, product->n, product->dtype == GPU_F32 ? "f32" : "bf16",
                 (int)product->epilogue);
    if (!shape || shape->missing || !set_pointers(products, shape->desc, product))
        return;
    const void *added = product->added ? product->added : product->c;
    check(products,
          products->matmul(products->handle, shape->desc, &one, product->b.data, shape->a,
                           product->a.data, shape->b, &beta, added, shape->c, product->c, shape->c,
                           &shape->algorithm, products->workspace, WORKSPACE_BYTES,
                           gpu_stream(products->gpu)),
          "cublasLtMatmul");
}
