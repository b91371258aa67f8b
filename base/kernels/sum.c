#include "base/kernels/sum.h"

#include "base/bfloat16.h"
#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"

#include <assert.h>
#include <math.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

const struct base_sum_kernels *base_sum_at(int i)
{
    const struct base_sum_kernels *usable[4] = {&base_sum_ref};
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    int count = 1;
    if (cpu.avx2)
        usable[count++] = &base_sum_avx2;
    if (cpu.avx512)
        usable[count++] = &base_sum_avx512;
#endif
    return i >= 0 && i < 4 ? usable[i] : NULL;
}

const struct base_sum_kernels *base_sum_best(void)
{
    const struct base_sum_kernels *best = base_sum_at(0), *next;
    base_prefetch_choose();
    for (int i = 1; (next = base_sum_at(i)) != NULL; i++)
        best = next;
    assert(best->size == sizeof(struct base_sum_kernels));
    return best;
}

static bool is_finite(zero_dtype dtype, const void *source, size_t i)
{
    switch (dtype) {
    case ZERO_F32:
        return isfinite(((const float *)source)[i]);
    case ZERO_BF16:
        return isfinite(base_f32_from_bf16(((const uint16_t *)source)[i]));
    case ZERO_F16:
        return isfinite(base_f32_from_f16(((const uint16_t *)source)[i]));
    case ZERO_F64:
        return isfinite(((const double *)source)[i]);
    default:
        return true;
    }
}

size_t base_sum_nonfinite(zero_dtype dtype, const void *source, size_t first, size_t n)
{
    assert((int)dtype < BASE_DTYPES && first + n >= first);
    size_t i = first;
    while (i < first + n && is_finite(dtype, source, i))
        i++;
    assert(i >= first && i <= first + n);
    return i;
}

void base_sum_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

size_t base_sum_core_bytes(void)
{
    enum { USUAL = 1 << 20 };
    const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return level2 > 0 ? (size_t)level2 : USUAL;
}

size_t base_sum_cache_bytes(void)
{
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return level3 > 0 ? (size_t)level3 : base_sum_core_bytes();
}

size_t base_dtype_bytes(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_BF16:
    case ZERO_F16:
        return 2;
    case ZERO_F32:
    case ZERO_I32:
        return 4;
    case ZERO_F64:
    case ZERO_I64:
        return 8;
    default:
        return 0;
    }
}

zero_dtype base_accumulator_dtype(zero_dtype dtype)
{
    return dtype == ZERO_BF16 || dtype == ZERO_F16 ? ZERO_F32 : dtype;
}
