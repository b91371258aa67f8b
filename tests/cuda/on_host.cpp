#include "tests/cuda/on_host.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

static double __dmul_rn(double a, double b)
{
    return a * b;
}

static double __ddiv_rn(double a, double b)
{
    return a / b;
}

static double __dsqrt_rn(double x)
{
    return sqrt(x);
}

static float __double2float_rn(double x)
{
    return (float)x;
}

static int __clzll(long long x)
{
    return __builtin_clzll((unsigned long long)x);
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

// Threads that don't wait for each other may as well be one.
template <typename Argument, void (*kernel)(Argument)>
static void take_turns(size_t blocks, const void *argument)
{
    blockDim.x = ENG_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
            kernel(*(const Argument *)argument);
}

struct thread {
    pthread_t id;
    unsigned index;
    size_t blocks;
    const void *argument;
};

template <typename Argument, void (*kernel)(Argument)> static void *run_thread(void *user)
{
    const struct thread *thread = (const struct thread *)user;
    threadIdx.x = thread->index;
    for (unsigned block = 0; block < thread->blocks; block++) {
        __syncthreads(); // the one before is done
        if (thread->index == 0)
            blockIdx.x = block;
        __syncthreads();
        kernel(*(const Argument *)thread->argument);
    }
    return nullptr;
}

template <typename Argument, void (*kernel)(Argument)>
static void together(size_t blocks, const void *argument)
{
    static struct thread threads[ENG_CUDA_THREADS];
    pthread_attr_t small; // stacks, of which the library keeps some for the next threads
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    blockDim.x = ENG_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    pthread_barrier_init(&barrier, nullptr, blockDim.x);
    for (unsigned t = 0; t < blockDim.x; t++) {
        threads[t] = {0, t, blocks, argument};
        if (pthread_create(&threads[t].id, &small, run_thread<Argument, kernel>, &threads[t]))
            abort();
    }
    for (const struct thread &thread : threads)
        pthread_join(thread.id, nullptr);
    pthread_barrier_destroy(&barrier);
    pthread_attr_destroy(&small);
}

static const struct on_host_kernel kernels[] = {
    {"eng_cuda_update", sizeof(struct eng_device_update), ENG_CUDA_THREADS,
     take_turns<struct eng_device_update, eng_cuda_update>},
    {"eng_cuda_update_rounded", sizeof(struct eng_device_update), ENG_CUDA_THREADS,
     take_turns<struct eng_device_update, eng_cuda_update_rounded>},
    {"eng_cuda_sum", sizeof(struct eng_device_sum), ENG_CUDA_THREADS,
     together<struct eng_device_sum, eng_cuda_sum>},
    {"eng_cuda_squares", sizeof(struct eng_device_squares), ENG_CUDA_THREADS,
     together<struct eng_device_squares, eng_cuda_squares>},
    {"eng_cuda_judge", sizeof(struct eng_device_judgement), ENG_CUDA_THREADS,
     together<struct eng_device_judgement, eng_cuda_judge>},
    {"eng_cuda_convert", sizeof(struct eng_device_conversion), ENG_CUDA_THREADS,
     take_turns<struct eng_device_conversion, eng_cuda_convert>},
};

const struct on_host_kernel *on_host_find(const char *name)
{
    for (const struct on_host_kernel &kernel : kernels)
        if (strcmp(kernel.name, name) == 0)
            return &kernel;
    return nullptr;
}
