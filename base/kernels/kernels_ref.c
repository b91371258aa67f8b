// The definition of the arithmetic: kernels_loop.h with vectors of one element. Compiled with
// -ffp-contract=off: an expression is fused where it says madd and nowhere else. The compiler may
// turn the loops into vectors, which changes no bit.
#include "base/bfloat16.h"
#include "base/kernels/kernel_tables.h"

#include <math.h>
#include <string.h>

#define WIDTH 1
#define INLINE static inline __attribute__((always_inline))

typedef float vector;
typedef uint32_t words;
typedef uint16_t halves;

static bool usable(void)
{
    return true;
}

/* ------------------------------------------------------------------ floats */

INLINE vector spread(float x)
{
    return x;
}

INLINE vector load(const float *x)
{
    return *x;
}

INLINE void store(float *x, vector value)
{
    *x = value;
}

INLINE vector mul(vector a, vector b)
{
    return a * b;
}

INLINE vector madd(vector a, vector b, vector c)
{
    return fmaf(a, b, c);
}

INLINE vector nmadd(vector a, vector b, vector c)
{
    return fmaf(-a, b, c);
}

INLINE vector add(vector a, vector b)
{
    return a + b;
}

INLINE vector quotient(vector a, vector b)
{
    return a / b;
}

INLINE vector root(vector x)
{
    return sqrtf(x);
}

INLINE vector sign(vector x)
{
    return x < 0 || x > 0 ? copysignf(1, x) : x;
}

INLINE vector raised(vector peak, vector a, vector b)
{
    return fabsf(a) <= ENG_ALARM && fabsf(b) <= ENG_ALARM ? peak : INFINITY;
}

INLINE words bits_of(vector x)
{
    return base_f32_bits(x);
}

INLINE vector float_of(words x)
{
    return base_f32_from_bits(x);
}

INLINE vector canonical(vector x)
{
    return isnan(x) ? float_of(ENG_NAN_F32) : x;
}

INLINE bool all_finite(vector x)
{
    return isfinite(x);
}

INLINE void add_squares(double *lane, vector x)
{
    *lane = fma(x, x, *lane);
}

struct squares {
    double lane[ENG_SUM_LANES];
};

INLINE struct squares no_squares(void)
{
    return (struct squares){{0}};
}

INLINE void add_to_squares(struct squares *lanes, size_t lane, vector x)
{
    add_squares(&lanes->lane[lane], x);
}

INLINE void load_to_squares(struct squares *lanes, size_t lane, const float *x)
{
    add_to_squares(lanes, lane, load(x));
}

INLINE void store_squares(double lane[ENG_SUM_LANES], const struct squares *lanes)
{
    memcpy(lane, lanes->lane, sizeof lanes->lane);
}

INLINE double add_lanes(const struct squares *lanes)
{
    struct squares copy = *lanes;
    return eng_add_lanes(copy.lane);
}

#include "base/kernels/one.h"

/* ------------------------------------------------------------------ halves */

INLINE words load_halves(const uint16_t *x)
{
    return *x;
}

INLINE vector load_bf16(const uint16_t *x)
{
    return float_of((words)load_halves(x) << 16);
}

INLINE halves pack(words x)
{
    return (halves)x;
}

INLINE halves pack_upper(words x)
{
    return (halves)(x >> 16);
}

INLINE halves f16_of(vector x)
{
    return base_f16_from_f32(x);
}

INLINE void store_halves(uint16_t *x, halves value)
{
    *x = value;
}

INLINE void stream_halves(uint16_t *x, halves value)
{
    *x = value;
}

INLINE void fence(void)
{
}

INLINE vector load_f16(const uint16_t *x)
{
    return base_f32_from_f16(*x);
}

#include "base/kernels/kernels_loop.h"

uint16_t eng_round_bf16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_bf16(key, element, bits_of(x));
}

uint16_t eng_round_f16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_f16(key, element, bits_of(x));
}

size_t eng_add_contributions(const struct eng_contributions *from, size_t first, size_t count,
                             float *sum)
{
    size_t i = 0;
    for (; i < count; i++) {
        sum[i] = contributed(from, from->dtype, first + i);
        if (!all_finite(sum[i]))
            break;
    }
    return i;
}

void eng_add_squares(double lane[ENG_SUM_LANES], size_t first, size_t count, const float *x)
{
    for (size_t i = first; i < count; i++)
        add_squares(&lane[i % ENG_SUM_LANES], x[i]);
}

double eng_add_lanes(double lane[ENG_SUM_LANES])
{
    for (size_t half = ENG_SUM_LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return isnan(lane[0]) ? (double)base_f32_from_bits(ENG_NAN_F32) : lane[0];
}

const struct eng_kernels eng_kernels_ref = {
    .size = sizeof(struct eng_kernels),
    .name = "ref",
    .usable = usable,
    .update = {[ENG_RULE_ADAM] = update_adam,
               [ENG_RULE_SGD] = update_sgd,
               [ENG_RULE_LION] = update_lion,
               [ENG_RULE_ADAGRAD] = update_adagrad},
    .update_sum = {[ENG_RULE_ADAM] = update_sum_adam,
                   [ENG_RULE_SGD] = update_sum_sgd,
                   [ENG_RULE_LION] = update_sum_lion,
                   [ENG_RULE_ADAGRAD] = update_sum_adagrad},
    .sum_squares = sum_squares,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .to_f16 = to_f16,
    .from_f16 = from_f16,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
};
