// A library in place of cuBLASLt, for where there is no GPU: products element by element, as work
// of a stream of the driver that stands in for NVIDIA's. What a caller may not do, or a GPU of that
// library would not, is an error.
#include <cublasLt.h>
#include <cuda.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define ALIGNMENT 256 // that is expected of matrices unless a preference says otherwise

struct desc {
    int32_t op_a, op_b;
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_stride;
};

struct layout {
    cudaDataType type;
    int64_t rows, columns, stride;
};

struct preference {
    uint64_t workspace;
    uint32_t reductions;
};

// What an algorithm is for.
struct chosen {
    uint64_t magic, m, n, k, a, b, c, epilogue;
};

_Static_assert(sizeof(struct chosen) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has room");

struct work {
    struct desc desc;
    struct layout a, b, c;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float beta;
};

EXPORTED cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = calloc(1, 1);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_INVALID_VALUE";
}

/* ------------------------------------------------------------------ descriptions */

EXPORTED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made,
                                                 cublasComputeType_t compute, cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct desc *desc = calloc(1, sizeof *desc);
    desc->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *made = (cublasLtMatmulDesc_t)(void *)desc;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                                       cublasLtMatmulDescAttributes_t attribute,
                                                       const void *value, size_t bytes)
{
    struct desc *desc = (struct desc *)(void *)handle;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        void *place;
        size_t bytes;
    } known[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &desc->op_a, sizeof desc->op_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &desc->op_b, sizeof desc->op_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &desc->epilogue, sizeof desc->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &desc->bias, sizeof desc->bias},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &desc->aux, sizeof desc->aux},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &desc->aux_stride, sizeof desc->aux_stride},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute && known[i].bytes == bytes) {
            memcpy(known[i].place, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                                   uint64_t rows, uint64_t columns, int64_t stride)
{
    if (stride < (int64_t)rows || (type != CUDA_R_32F && type != CUDA_R_16BF))
        return CUBLAS_STATUS_INVALID_VALUE;
    struct layout *layout = calloc(1, sizeof *layout);
    *layout = (struct layout){type, (int64_t)rows, (int64_t)columns, stride};
    *made = (cublasLtMatrixLayout_t)(void *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    struct preference *preference = calloc(1, sizeof *preference);
    preference->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    *made = (cublasLtMatmulPreference_t)(void *)preference;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t handle, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t bytes)
{
    struct preference *preference = (struct preference *)(void *)handle;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
        bytes == sizeof preference->workspace)
        memcpy(&preference->workspace, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
             bytes == sizeof preference->reductions)
        memcpy(&preference->reductions, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------ a choice */

static struct chosen chosen_of(const struct desc *desc, const struct layout *a,
                               const struct layout *b, const struct layout *c)
{
    return (struct chosen){
        .magic = 0x7ab1e,
        .m = (uint64_t)c->rows,
        .n = (uint64_t)c->columns,
        .k = (uint64_t)(desc->op_a ? a->rows : a->columns),
        .a = (uint64_t)a->stride << 8 | (uint64_t)desc->op_a,
        .b = (uint64_t)b->stride << 8 | (uint64_t)desc->op_b,
        .c = (uint64_t)c->stride << 8 | (uint64_t)c->type,
        .epilogue = desc->epilogue,
    };
}

static bool has_bias(const struct desc *desc)
{
    return desc->epilogue == CUBLASLT_EPILOGUE_BIAS ||
           desc->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(const struct desc *desc)
{
    return desc->epilogue == CUBLASLT_EPILOGUE_DGELU ||
           desc->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

// A test may say that GELU can't be joined to products.
static bool may_join(void)
{
    const char *lacks = getenv("CUBLASLT_DOUBLE_LACKS");
    return !lacks || strcmp(lacks, "gelu") != 0;
}

static bool is_possible(const struct desc *desc, const struct layout *a, const struct layout *b,
                        const struct layout *c)
{
    const int64_t k = desc->op_a ? a->rows : a->columns;
    if ((desc->op_a ? a->columns : a->rows) != c->rows ||
        (desc->op_b ? b->rows : b->columns) != c->columns ||
        (desc->op_b ? b->columns : b->rows) != k || a->type != b->type)
        return false;
    if (has_bias(desc) && !desc->bias)
        return false;
    if (has_aux(desc) && (!desc->aux || desc->aux_stride < c->rows || desc->aux_stride % 8 != 0 ||
                          c->type != CUDA_R_16BF || !may_join()))
        return false;
    return has_bias(desc) || has_aux(desc) || desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle, cublasLtMatrixLayout_t a_handle,
    cublasLtMatrixLayout_t b_handle, cublasLtMatrixLayout_t c_handle,
    cublasLtMatrixLayout_t d_handle, cublasLtMatmulPreference_t preference_handle, int requested,
    cublasLtMatmulHeuristicResult_t *results, int *found)
{
    const struct desc *desc = (const struct desc *)(const void *)desc_handle;
    const struct layout *a = (const struct layout *)(const void *)a_handle;
    const struct layout *b = (const struct layout *)(const void *)b_handle;
    const struct layout *c = (const struct layout *)(const void *)c_handle;
    const struct preference *preference =
        (const struct preference *)(const void *)preference_handle;
    *found = 0;
    if (!handle || c_handle != d_handle || requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (preference->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE || preference->workspace == 0 ||
        !is_possible(desc, a, b, c))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const struct chosen chosen = chosen_of(desc, a, b, c);
    memset(results, 0, sizeof *results);
    memcpy(&results->algo, &chosen, sizeof chosen);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------ a product */

static float element(const void *data, cudaDataType type, int64_t at)
{
    if (type == CUDA_R_32F)
        return ((const float *)data)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put(void *data, cudaDataType type, int64_t at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == CUDA_R_32F)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float gelu(float x, bool slope)
{
    const float inner = 0.7978845608f * (x + 0.044715f * x * x * x), t = tanhf(inner);
    return slope ? 0.5f * (1 + t) +
                       0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x)
                 : 0.5f * x * (1 + t);
}

// What is stored at row i, column j of c, of which the product is `x`.
static float finish(const struct work *w, int64_t i, int64_t j, float x)
{
    const int64_t aux = j * w->desc.aux_stride + i;
    if (w->beta != 0)
        x += w->beta * element(w->c_data, w->c.type, j * w->c.stride + i);
    if (has_bias(&w->desc))
        x += element(w->desc.bias, w->c.type, i);
    if (w->desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        put(w->desc.aux, w->c.type, aux, x);
        x = gelu(x, false);
    } else if (w->desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        x *= gelu(element(w->desc.aux, w->c.type, aux), true);
    }
    return x;
}

// Floats, those of one sum side by side.
static float *gather(const struct layout *layout, const void *data, bool rows, int64_t count,
                     int64_t k)
{
    float *all = malloc((size_t)count * (size_t)k * sizeof *all);
    for (int64_t i = 0; i < count; i++)
        for (int64_t p = 0; p < k; p++)
            all[i * k + p] =
                element(data, layout->type, rows ? p * layout->stride + i : i * layout->stride + p);
    return all;
}

static void multiply(void *user)
{
    struct work *w = user;
    const int64_t k = w->desc.op_a ? w->a.rows : w->a.columns;
    float *a = gather(&w->a, w->a_data, !w->desc.op_a, w->c.rows, k);
    float *b = gather(&w->b, w->b_data, w->desc.op_b, w->c.columns, k);
    for (int64_t j = 0; j < w->c.columns; j++)
        for (int64_t i = 0; i < w->c.rows; i++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += a[i * k + p] * b[j * k + p];
            put(w->d_data, w->c.type, j * w->c.stride + i, finish(w, i, j, sum));
        }
    free(b);
    free(a);
    free(w);
}

static bool is_aligned(const void *data)
{
    return data && (uintptr_t)data % ALIGNMENT == 0;
}

EXPORTED cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle,
                                       const void *alpha, const void *a,
                                       cublasLtMatrixLayout_t a_layout, const void *b,
                                       cublasLtMatrixLayout_t b_layout, const void *beta,
                                       const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                       cublasLtMatrixLayout_t d_layout,
                                       const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                                       size_t workspace_bytes, cudaStream_t stream)
{
    struct work *work = malloc(sizeof *work);
    *work = (struct work){
        .desc = *(const struct desc *)(const void *)desc_handle,
        .a = *(const struct layout *)(const void *)a_layout,
        .b = *(const struct layout *)(const void *)b_layout,
        .c = *(const struct layout *)(const void *)c_layout,
        .a_data = a,
        .b_data = b,
        .c_data = c,
        .d_data = d,
        .beta = *(const float *)beta,
    };
    const struct chosen chosen = chosen_of(&work->desc, &work->a, &work->b, &work->c);
    const bool good = handle && *(const float *)alpha == 1 && c_layout == d_layout && workspace &&
                      workspace_bytes > 0 && memcmp(algorithm, &chosen, sizeof chosen) == 0 &&
                      is_possible(&work->desc, &work->a, &work->b, &work->c) && is_aligned(a) &&
                      is_aligned(b) && is_aligned(c) && is_aligned(d) &&
                      cuLaunchHostFunc((CUstream)(void *)stream, multiply, work) == CUDA_SUCCESS;
    if (!good)
        free(work);
    return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
