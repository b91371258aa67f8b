#include "collectives/sum/sum.h"

#include "base/bfloat16.h"
#include "base/cpu.h"

const struct coll_sum_kernels *coll_sum_at(int i)
{
    const struct coll_sum_kernels *usable[4] = {&coll_sum_ref};
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    int count = 1;
    if (cpu.avx2)
        usable[count++] = &coll_sum_avx2;
    if (cpu.avx512)
        usable[count++] = &coll_sum_avx512;
#endif
    return i >= 0 && i < 4 ? usable[i] : NULL;
}

const struct coll_sum_kernels *coll_sum_best(void)
{
    const struct coll_sum_kernels *best = coll_sum_at(0), *next;
    for (int i = 1; (next = coll_sum_at(i)) != NULL; i++)
        best = next;
    return best;
}

bool coll_sum_tile(const struct coll_sum_kernels *kernels, zero_dtype dtype, float *sum,
                   const void *const *sources, int count, size_t first, size_t n, bool store)
{
    const coll_sum_fn add = dtype == ZERO_F32 ? kernels->f32 : kernels->bf16;
    bool finite = true;
    for (int k = 0; k < count; k += COLL_SUM_SOURCES) {
        const int group = count - k < COLL_SUM_SOURCES ? count - k : COLL_SUM_SOURCES;
        finite &= add(sum, sources + k, group, first, n, store && k == 0);
    }
    return finite;
}

size_t coll_sum_nonfinite(zero_dtype dtype, const void *source, size_t first, size_t n)
{
    size_t i = first;
    for (; i < first + n; i++) {
        const float value = dtype == ZERO_F32 ? ((const float *)source)[i]
                                              : base_f32_from_bf16(((const uint16_t *)source)[i]);
        if ((base_f32_bits(value) & 0x7f800000u) == 0x7f800000u)
            break;
    }
    return i;
}
