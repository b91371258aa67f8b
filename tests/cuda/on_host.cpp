#include "tests/cuda/on_host.h"

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include <cuda_fp16.h>
#include <pthread.h>
#include <vector_functions.h>

/* ------------------------------------------------------------------ what nvcc has built in */

struct place {
    unsigned x;
};

static thread_local place threadIdx;
static place blockIdx, blockDim, gridDim; // blocks run one after the other
static pthread_barrier_t barrier;

#undef __shared__
#define __shared__ static
#undef __noinline__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(threads)

static void __syncthreads()
{
    pthread_barrier_wait(&barrier);
}

static float __fmul_rn(float a, float b)
{
    return a * b;
}

static float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static float __fadd_rn(float a, float b)
{
    return a + b;
}

static float __fdiv_rn(float a, float b)
{
    return a / b;
}

static float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

static double __dadd_rn(double a, double b)
{
    return a + b;
}

template <typename To, typename From> static To same_bits(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}

static uint32_t __float_as_uint(float x)
{
    return same_bits<uint32_t>(x);
}

static float __uint_as_float(uint32_t x)
{
    return same_bits<float>(x);
}

static int64_t __double_as_longlong(double x)
{
    return same_bits<int64_t>(x);
}

static double __longlong_as_double(int64_t x)
{
    return same_bits<double>(x);
}

static void atomicAdd(unsigned long long *at, unsigned long long value)
{
    __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static void atomicMin(unsigned long long *at, unsigned long long value)
{
    unsigned long long before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < before && !__atomic_compare_exchange_n(at, &before, value, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

#include "zero/kernels/cuda.cu"

/* ------------------------------------------------------------------ starting them */

static size_t parts(size_t count, size_t part)
{
    return (count + part - 1) / part;
}

// Threads that don't wait for each other may as well be one.
template <typename Argument>
static zero_result take_turns(void (*kernel)(Argument), size_t blocks, const Argument *argument)
{
    blockDim.x = ENG_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
            kernel(*argument);
    return ZERO_OK;
}

template <typename Argument>
static zero_result together(void (*kernel)(Argument), size_t blocks, const Argument *argument)
{
    std::vector<std::thread> threads;
    blockDim.x = ENG_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        pthread_barrier_init(&barrier, nullptr, blockDim.x);
        for (unsigned t = 0; t < blockDim.x; t++)
            threads.emplace_back([=] {
                threadIdx.x = t;
                kernel(*argument);
            });
        for (std::thread &thread : threads)
            thread.join();
        threads.clear();
        pthread_barrier_destroy(&barrier);
    }
    return ZERO_OK;
}

static zero_result open(void **state, struct base_error *)
{
    *state = nullptr;
    return ZERO_OK;
}

static void close(void *)
{
}

static zero_result update(void *, const struct eng_device_update *u, void *, struct base_error *)
{
    return take_turns(u->rounds ? eng_cuda_update_rounded : eng_cuda_update, u->count, u);
}

static zero_result sum(void *, const struct eng_device_sum *s, void *, struct base_error *)
{
    return together(eng_cuda_sum, parts(s->granules, ENG_CUDA_TILE), s);
}

static zero_result squares(void *, const struct eng_device_squares *q, void *, struct base_error *)
{
    const size_t blocks = parts(q->count, ENG_CUDA_THREADS);
    return together(eng_cuda_squares,
                    blocks < ENG_CUDA_SQUARE_BLOCKS ? blocks : ENG_CUDA_SQUARE_BLOCKS, q);
}

static zero_result convert(void *, const struct eng_device_conversion *c, void *,
                           struct base_error *)
{
    return take_turns(eng_cuda_convert, parts(c->count, (size_t)4 * ENG_CUDA_THREADS), c);
}

const struct eng_device_kernels eng_device_kernels_on_host = {
    sizeof(struct eng_device_kernels), "on host", open, close, update, sum, squares, convert,
};
