#include "base/kernels/kernels_cuda.h"

#include "base/arena.h"
#include "base/device/device_cuda.h"

#include <assert.h>

/** kernels_cuda.cu as nvcc has compiled it, for several architectures. */
extern const unsigned char base_cuda_image[];
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global base_cuda_image\n"
        ".hidden base_cuda_image\n"
        "base_cuda_image:\n"
        ".incbin \"" BASE_CUDA_IMAGE "\"\n"
        ".popsection\n");

enum kernel {
    UPDATE,
    UPDATE_ROUNDED,
    SUM,
    ADD,
    SEARCH,
    CLEAR,
    SQUARES,
    CONVERT,
    JUDGE,
    DIGEST,
    KERNELS,
};

static const char *const names[KERNELS] = {
    [UPDATE] = "base_cuda_update",   [UPDATE_ROUNDED] = "base_cuda_update_rounded",
    [SUM] = "base_cuda_sum",         [ADD] = "base_cuda_add",
    [SEARCH] = "base_cuda_search",   [CLEAR] = "base_cuda_clear",
    [SQUARES] = "base_cuda_squares", [CONVERT] = "base_cuda_convert",
    [JUDGE] = "base_cuda_judge",     [DIGEST] = "base_cuda_digest",
};

/** The code on one GPU. */
struct cuda {
    void *module;
    void *kernels[KERNELS];
};

static void cuda_close(void *state)
{
    struct cuda *cuda = state;
    if (!cuda)
        return;
    base_cuda_unload(cuda->module);
    base_free(cuda);
}

static zero_result cuda_open(void **state, struct base_error *error)
{
    *state = NULL;
    struct cuda *cuda = base_calloc(1, sizeof *cuda);
    if (!cuda)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the table of a GPU's kernels");
    zero_result r = base_cuda_load(&cuda->module, base_cuda_image, "this library", error);
    for (int k = 0; !r && k < KERNELS; k++)
        r = base_cuda_kernel(&cuda->kernels[k], cuda->module, names[k], error);
    if (r)
        cuda_close(cuda);
    else
        *state = cuda;
    return r;
}

/** Starts a kernel whose only argument is a structure. */
static zero_result start(void *state, enum kernel kernel, size_t blocks, const void *argument,
                         void *stream, struct base_error *error)
{
    assert(kernel < KERNELS && argument);
    const struct cuda *cuda = state;
    void *arguments[] = {(void *)(uintptr_t)argument}; // which is copied, not changed
    const struct base_cuda_grid grid = {blocks, BASE_CUDA_THREADS};
    return base_cuda_launch(cuda->kernels[kernel], names[kernel], grid, arguments, stream, error);
}

static size_t parts(size_t count, size_t part)
{
    assert(part > 0);
    return (count + part - 1) / part;
}

static zero_result cuda_update(void *state, const struct base_device_update *update, void *stream,
                               struct base_error *error)
{
    const enum kernel kernel = update->rounds ? UPDATE_ROUNDED : UPDATE;
    return start(state, kernel, update->count, update, stream, error);
}

static zero_result cuda_sum(void *state, const struct base_device_sum *sum, void *stream,
                            struct base_error *error)
{
    return start(state, SUM, parts(sum->granules, BASE_CUDA_TILE), sum, stream, error);
}

static zero_result cuda_add(void *state, const struct base_device_addition *addition, void *stream,
                            struct base_error *error)
{
    return start(state, ADD, parts(addition->count, (size_t)4 * BASE_CUDA_THREADS), addition,
                 stream, error);
}

static zero_result cuda_search(void *state, const struct base_device_search *search, void *stream,
                               struct base_error *error)
{
    return start(state, SEARCH, parts(search->count, (size_t)4 * BASE_CUDA_THREADS), search, stream,
                 error);
}

static zero_result cuda_clear(void *state, const struct base_device_clearing *clearing,
                              void *stream, struct base_error *error)
{
    return start(state, CLEAR, clearing->count, clearing, stream, error);
}

static zero_result cuda_squares(void *state, const struct base_device_squares *squares,
                                void *stream, struct base_error *error)
{
    const size_t blocks = parts(squares->count, BASE_CUDA_THREADS);
    return start(state, SQUARES,
                 blocks < BASE_CUDA_SQUARE_BLOCKS ? blocks : BASE_CUDA_SQUARE_BLOCKS, squares,
                 stream, error);
}

static zero_result cuda_convert(void *state, const struct base_device_conversion *conversion,
                                void *stream, struct base_error *error)
{
    return start(state, CONVERT, parts(conversion->count, (size_t)4 * BASE_CUDA_THREADS),
                 conversion, stream, error);
}

static zero_result cuda_judge(void *state, const struct base_device_judgement *judgement,
                              void *stream, struct base_error *error)
{
    return start(state, JUDGE, 1, judgement, stream, error);
}

static zero_result cuda_digest(void *state, const struct base_device_digest *digest, void *stream,
                               struct base_error *error)
{
    return start(state, DIGEST, digest->count, digest, stream, error);
}

const struct base_device_kernels base_device_kernels_cuda = {
    .size = sizeof(struct base_device_kernels),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .update = cuda_update,
    .sum = cuda_sum,
    .add = cuda_add,
    .search = cuda_search,
    .clear = cuda_clear,
    .squares = cuda_squares,
    .convert = cuda_convert,
    .judge = cuda_judge,
    .digest = cuda_digest,
};
