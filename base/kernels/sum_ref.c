// The definition: one element after the other.

#include "base/bfloat16.h"
#include "base/kernels/sum.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/** An element of an accumulator. */
union number {
    float f32;
    double f64;
    uint32_t i32;
    uint64_t i64;
};

typedef union number (*combine_fn)(union number value, union number next);

/** What there is to know of a dtype. */
struct arithmetic {
    union number (*load)(const void *source, size_t i);
    union number (*load_sum)(const void *sum, size_t i);
    void (*store)(void *sum, size_t i, union number value);
    void (*narrow)(void *out, size_t i, union number value); /**< the same in the sources' dtype */
    bool (*finite)(union number value);
    combine_fn add, least, greatest;
};

/* ------------------------------------------------------------------ f32, bf16, f16 */

INLINE union number load_f32(const void *source, size_t i)
{
    return (union number){.f32 = ((const float *)source)[i]};
}

INLINE union number load_bf16(const void *source, size_t i)
{
    return (union number){.f32 = base_f32_from_bf16(((const uint16_t *)source)[i])};
}

INLINE union number load_f16(const void *source, size_t i)
{
    return (union number){.f32 = base_f32_from_f16(((const uint16_t *)source)[i])};
}

INLINE float canonical_f32(float value)
{
    return value == value ? value : base_f32_from_bits(0x7fc00000u);
}

INLINE void store_f32(void *sum, size_t i, union number value)
{
    ((float *)sum)[i] = canonical_f32(value.f32);
}

INLINE void store_bf16(void *out, size_t i, union number value)
{
    ((uint16_t *)out)[i] = base_bf16_from_f32(value.f32);
}

INLINE void store_f16(void *out, size_t i, union number value)
{
    ((uint16_t *)out)[i] = base_f16_from_f32(value.f32);
}

INLINE bool finite_f32(union number value)
{
    return (base_f32_bits(value.f32) & 0x7f800000u) != 0x7f800000u;
}

INLINE union number add_f32(union number value, union number next)
{
    return (union number){.f32 = value.f32 + next.f32};
}

// Of equal ones, such as the two zeros, the earlier; of a NaN and any other, the NaN.

INLINE union number least_f32(union number value, union number next)
{
    return next.f32 < value.f32 || next.f32 != next.f32 ? next : value;
}

INLINE union number greatest_f32(union number value, union number next)
{
    return next.f32 > value.f32 || next.f32 != next.f32 ? next : value;
}

/* ------------------------------------------------------------------ f64 */

INLINE union number load_f64(const void *source, size_t i)
{
    return (union number){.f64 = ((const double *)source)[i]};
}

INLINE void store_f64(void *sum, size_t i, union number value)
{
    const uint64_t nan = UINT64_C(0x7ff8000000000000);
    if (value.f64 == value.f64)
        ((double *)sum)[i] = value.f64;
    else
        memcpy((double *)sum + i, &nan, sizeof nan);
}

INLINE bool finite_f64(union number value)
{
    return (value.i64 >> 52 & 0x7ff) != 0x7ff;
}

INLINE union number add_f64(union number value, union number next)
{
    return (union number){.f64 = value.f64 + next.f64};
}

INLINE union number least_f64(union number value, union number next)
{
    return next.f64 < value.f64 || next.f64 != next.f64 ? next : value;
}

INLINE union number greatest_f64(union number value, union number next)
{
    return next.f64 > value.f64 || next.f64 != next.f64 ? next : value;
}

/* ------------------------------------------------------------------ i32, i64 */

INLINE bool always_finite(union number value)
{
    (void)value;
    return true;
}

INLINE union number load_i32(const void *source, size_t i)
{
    return (union number){.i32 = ((const uint32_t *)source)[i]};
}

INLINE void store_i32(void *sum, size_t i, union number value)
{
    ((uint32_t *)sum)[i] = value.i32;
}

INLINE union number add_i32(union number value, union number next)
{
    return (union number){.i32 = value.i32 + next.i32};
}

INLINE union number least_i32(union number value, union number next)
{
    return (int32_t)next.i32 < (int32_t)value.i32 ? next : value;
}

INLINE union number greatest_i32(union number value, union number next)
{
    return (int32_t)next.i32 > (int32_t)value.i32 ? next : value;
}

INLINE union number load_i64(const void *source, size_t i)
{
    return (union number){.i64 = ((const uint64_t *)source)[i]};
}

INLINE void store_i64(void *sum, size_t i, union number value)
{
    ((uint64_t *)sum)[i] = value.i64;
}

INLINE union number add_i64(union number value, union number next)
{
    return (union number){.i64 = value.i64 + next.i64};
}

INLINE union number least_i64(union number value, union number next)
{
    return (int64_t)next.i64 < (int64_t)value.i64 ? next : value;
}

INLINE union number greatest_i64(union number value, union number next)
{
    return (int64_t)next.i64 > (int64_t)value.i64 ? next : value;
}

/* ------------------------------------------------------------------ the loop */

static const struct arithmetic of_f32 = {load_f32,   load_f32, store_f32, store_f32,
                                         finite_f32, add_f32,  least_f32, greatest_f32};
static const struct arithmetic of_bf16 = {load_bf16,  load_f32, store_f32, store_bf16,
                                          finite_f32, add_f32,  least_f32, greatest_f32};
static const struct arithmetic of_f16 = {load_f16,   load_f32, store_f32, store_f16,
                                         finite_f32, add_f32,  least_f32, greatest_f32};
static const struct arithmetic of_f64 = {load_f64,   load_f64, store_f64, store_f64,
                                         finite_f64, add_f64,  least_f64, greatest_f64};
static const struct arithmetic of_i32 = {load_i32,      load_i32, store_i32, store_i32,
                                         always_finite, add_i32,  least_i32, greatest_i32};
static const struct arithmetic of_i64 = {load_i64,      load_i64, store_i64, store_i64,
                                         always_finite, add_i64,  least_i64, greatest_i64};

INLINE void put(const struct coll_pass *pass, const struct arithmetic *of, size_t i,
                union number value)
{
    if (pass->sum)
        of->store(pass->sum, i, value);
    for (int k = 0; k < pass->also_count; k++)
        if (pass->narrow)
            of->narrow(pass->also[k], pass->also_first + i, value);
        else
            of->store(pass->also[k], pass->also_first + i, value);
}

INLINE bool loop(const struct coll_pass *pass, const struct arithmetic *of, combine_fn combine)
{
    bool finite = true;
    for (size_t i = 0; i < pass->n; i++) {
        union number value = of->load(pass->sources[0], pass->first + i);
        finite &= of->finite(value);
        if (!pass->store)
            value = combine(of->load_sum(pass->sum, i), value);
        for (int k = 1; k < pass->count; k++) {
            const union number next = of->load(pass->sources[k], pass->first + i);
            finite &= of->finite(next);
            value = combine(value, next);
        }
        put(pass, of, i, value);
    }
    return finite;
}

INLINE bool run(const struct coll_pass *pass, const struct arithmetic *of)
{
    if (pass->op == COLL_SUM)
        return loop(pass, of, of->add);
    loop(pass, of, pass->op == COLL_MIN ? of->least : of->greatest);
    return true;
}

static bool sum_f32(const struct coll_pass *pass)
{
    return run(pass, &of_f32);
}

static bool sum_bf16(const struct coll_pass *pass)
{
    return run(pass, &of_bf16);
}

static bool sum_f16(const struct coll_pass *pass)
{
    return run(pass, &of_f16);
}

static bool sum_f64(const struct coll_pass *pass)
{
    return run(pass, &of_f64);
}

static bool sum_i32(const struct coll_pass *pass)
{
    return run(pass, &of_i32);
}

static bool sum_i64(const struct coll_pass *pass)
{
    return run(pass, &of_i64);
}

static void copy(void *to, const void *from, size_t bytes, enum coll_sum_to where)
{
    (void)where;
    if (bytes > 0)
        memcpy(to, from, bytes);
}

const struct coll_sum_kernels coll_sum_ref = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "ref",
    .sum = {[ZERO_F32] = sum_f32,
            [ZERO_BF16] = sum_bf16,
            [ZERO_F16] = sum_f16,
            [ZERO_F64] = sum_f64,
            [ZERO_I32] = sum_i32,
            [ZERO_I64] = sum_i64},
    .copy = copy,
};
