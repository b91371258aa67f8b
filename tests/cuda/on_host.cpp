#include "tests/cuda/on_host.h"
#include "tests/cuda/fiber.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_fp16.h>
#include <vector_functions.h>

/* ------------------------------------------------------------------ what nvcc has built in */

struct place {
    unsigned x;
};

static place threadIdx, blockIdx, blockDim, gridDim; // one kernel at a time, block by block

#undef __shared__
#define __shared__ static
#undef __noinline__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(threads)

static void __syncthreads(void);

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

static uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
}

static unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static void atomicMin(unsigned long long *at, unsigned long long value)
{
    unsigned long long before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < before && !__atomic_compare_exchange_n(at, &before, value, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

#include "base/kernels/kernels_cuda.cu"

/* ------------------------------------------------------------------ starting them */

// Threads that don't wait for each other may as well be one.
template <typename Argument, void (*kernel)(Argument)>
static void take_turns(size_t blocks, const void *argument)
{
    blockDim.x = BASE_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
            kernel(*(const Argument *)argument);
}

enum { STACK_BYTES = 32 << 10 };

static struct {
    context state;
    bool done;
} fibers[BASE_CUDA_THREADS];
alignas(64) static char stacks[BASE_CUDA_THREADS][STACK_BYTES];
static context scheduler;
static void (*current_kernel)(const void *argument);
static const void *current_argument;

static void __syncthreads(void)
{
    go_to(&fibers[threadIdx.x].state, &scheduler);
}

// A fiber lives for all blocks of a launch.
static void live(void)
{
    for (;;) {
        current_kernel(current_argument);
        fibers[threadIdx.x].done = true;
        go_to(&fibers[threadIdx.x].state, &scheduler);
    }
}

// From one place where all threads wait for each other to the next, where they come in another
// order.
static void run_block(bool backwards)
{
    unsigned done = 0;
    for (auto &fiber : fibers)
        fiber.done = false;
    for (; done == 0; backwards = !backwards)
        for (unsigned i = 0; i < BASE_CUDA_THREADS; i++) {
            threadIdx.x = backwards ? BASE_CUDA_THREADS - 1 - i : i;
            go_to(&scheduler, &fibers[threadIdx.x].state);
            done += fibers[threadIdx.x].done;
        }
    if (done < BASE_CUDA_THREADS) {
        fprintf(stderr, "kernel on the host: block %u: threads wait for others that don't come\n",
                blockIdx.x);
        abort();
    }
}

template <typename Argument, void (*kernel)(Argument)> static void call(const void *argument)
{
    kernel(*(const Argument *)argument);
}

template <typename Argument, void (*kernel)(Argument)>
static void together(size_t blocks, const void *argument)
{
    blockDim.x = BASE_CUDA_THREADS;
    gridDim.x = (unsigned)blocks;
    current_kernel = call<Argument, kernel>;
    current_argument = argument;
    for (unsigned t = 0; t < BASE_CUDA_THREADS; t++)
        begin_context(&fibers[t].state, stacks[t], STACK_BYTES, live);
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        run_block(blockIdx.x % 2);
}

static const struct on_host_kernel kernels[] = {
    {"base_cuda_update", sizeof(struct base_device_update), BASE_CUDA_THREADS,
     take_turns<struct base_device_update, base_cuda_update>},
    {"base_cuda_update_rounded", sizeof(struct base_device_update), BASE_CUDA_THREADS,
     take_turns<struct base_device_update, base_cuda_update_rounded>},
    {"base_cuda_sum", sizeof(struct base_device_sum), BASE_CUDA_THREADS,
     together<struct base_device_sum, base_cuda_sum>},
    {"base_cuda_add", sizeof(struct base_device_addition), BASE_CUDA_THREADS,
     take_turns<struct base_device_addition, base_cuda_add>},
    {"base_cuda_search", sizeof(struct base_device_search), BASE_CUDA_THREADS,
     take_turns<struct base_device_search, base_cuda_search>},
    {"base_cuda_clear", sizeof(struct base_device_clearing), BASE_CUDA_THREADS,
     take_turns<struct base_device_clearing, base_cuda_clear>},
    {"base_cuda_squares", sizeof(struct base_device_squares), BASE_CUDA_THREADS,
     together<struct base_device_squares, base_cuda_squares>},
    {"base_cuda_judge", sizeof(struct base_device_judgement), BASE_CUDA_THREADS,
     together<struct base_device_judgement, base_cuda_judge>},
    {"base_cuda_convert", sizeof(struct base_device_conversion), BASE_CUDA_THREADS,
     take_turns<struct base_device_conversion, base_cuda_convert>},
    {"base_cuda_digest", sizeof(struct base_device_digest), BASE_CUDA_THREADS,
     together<struct base_device_digest, base_cuda_digest>},
};

extern "C" __attribute__((weak)) const struct on_host_kernel *on_host_more(const char *name);

const struct on_host_kernel *on_host_find(const char *name)
{
    for (const struct on_host_kernel &kernel : kernels)
        if (strcmp(kernel.name, name) == 0)
            return &kernel;
    return on_host_more ? on_host_more(name) : nullptr;
}
