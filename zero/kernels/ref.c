// The definition of the arithmetic. Compiled without contraction (-ffp-contract=off): an expression
// is fused where it says fma and nowhere else. The compiler may turn the loops into vectors, which
// changes no bit.
#include "base/bfloat16.h"
#include "zero/kernels/tables.h"

#include <math.h>

static float canonical(float value)
{
    return isnan(value) ? base_f32_from_bits(ENG_NAN_F32) : value;
}

static bool usable(void)
{
    return true;
}

static void adamw(const struct eng_adamw_scalars *scalars, size_t count, const float *gradient,
                  float *m, float *v, float *weight, uint16_t *work)
{
    const struct eng_adamw_scalars s = *scalars;
    for (size_t i = 0; i < count; i++) {
        const float g = gradient[i] * s.gradient_scale;
        const float m1 = fmaf(s.beta1, m[i], s.one_minus_beta1 * g);
        const float v1 = fmaf(s.beta2, v[i], s.one_minus_beta2 * g * g);
        const float d = fmaf(sqrtf(v1), s.inverse_sqrt_correction, s.eps);
        const float w1 = fmaf(-s.step_size, m1 / d, fmaf(-s.decay, weight[i], weight[i]));
        m[i] = canonical(m1);
        v[i] = canonical(v1);
        weight[i] = canonical(w1);
        if (work)
            work[i] = base_bf16_from_f32(w1);
    }
}

void eng_add_squares(double lanes[ENG_SUM_LANES], size_t first, size_t count, const float *x)
{
    for (size_t i = first; i < count; i++)
        lanes[i % ENG_SUM_LANES] = fma(x[i], x[i], lanes[i % ENG_SUM_LANES]);
}

double eng_add_lanes(double lanes[ENG_SUM_LANES])
{
    for (size_t half = ENG_SUM_LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lanes[k] += lanes[k + half];
    return isnan(lanes[0]) ? (double)base_f32_from_bits(ENG_NAN_F32) : lanes[0];
}

static double sum_squares(size_t count, const float *x)
{
    double lanes[ENG_SUM_LANES] = {0};
    eng_add_squares(lanes, 0, count, x);
    return eng_add_lanes(lanes);
}

static void to_bf16(size_t count, const float *x, uint16_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = base_bf16_from_f32(x[i]);
}

static void from_bf16(size_t count, const uint16_t *x, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = canonical(base_f32_from_bf16(x[i]));
}

const struct eng_kernels eng_kernels_ref = {
    .size = sizeof(struct eng_kernels),
    .name = "ref",
    .usable = usable,
    .adamw = adamw,
    .sum_squares = sum_squares,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
};
