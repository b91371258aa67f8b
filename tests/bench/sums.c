#include "tests/bench/sums.h"

#include "base/bfloat16.h"

static void two(float *restrict sum, const float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
}

static void four(float *restrict sum, const float *const *sources, size_t n)
{
    const float *restrict a = sources[0], *restrict b = sources[1];
    const float *restrict c = sources[2], *restrict d = sources[3];
    for (size_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i] + c[i] + d[i];
}

static void eight(float *restrict sum, const float *const *sources, size_t n)
{
    const float *restrict a = sources[0], *restrict b = sources[1];
    const float *restrict c = sources[2], *restrict d = sources[3];
    const float *restrict e = sources[4], *restrict f = sources[5];
    const float *restrict g = sources[6], *restrict h = sources[7];
    for (size_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
}

void sums_f32(float *sum, const float *const *sources, int count, size_t n)
{
    if (count == 2)
        two(sum, sources[0], sources[1], n);
    else if (count == 4)
        four(sum, sources, n);
    else
        eight(sum, sources, n);
}

static float wide(uint16_t half)
{
    return base_f32_from_bf16(half);
}

static void two_halves(float *restrict sum, const uint16_t *restrict a, const uint16_t *restrict b,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = wide(a[i]) + wide(b[i]);
}

static void four_halves(float *restrict sum, const uint16_t *const *sources, size_t n)
{
    const uint16_t *restrict a = sources[0], *restrict b = sources[1];
    const uint16_t *restrict c = sources[2], *restrict d = sources[3];
    for (size_t i = 0; i < n; i++)
        sum[i] = wide(a[i]) + wide(b[i]) + wide(c[i]) + wide(d[i]);
}

static void eight_halves(float *restrict sum, const uint16_t *const *sources, size_t n)
{
    const uint16_t *restrict a = sources[0], *restrict b = sources[1];
    const uint16_t *restrict c = sources[2], *restrict d = sources[3];
    const uint16_t *restrict e = sources[4], *restrict f = sources[5];
    const uint16_t *restrict g = sources[6], *restrict h = sources[7];
    for (size_t i = 0; i < n; i++)
        sum[i] = wide(a[i]) + wide(b[i]) + wide(c[i]) + wide(d[i]) + wide(e[i]) + wide(f[i]) +
                 wide(g[i]) + wide(h[i]);
}

void sums_bf16(float *sum, const uint16_t *const *sources, int count, size_t n)
{
    if (count == 2)
        two_halves(sum, sources[0], sources[1], n);
    else if (count == 4)
        four_halves(sum, sources, n);
    else
        eight_halves(sum, sources, n);
}

float sums_squares(const float *values, size_t n)
{
    enum { LANES = 64 };
    float squares[LANES] = {0}, sum = 0;
    for (size_t i = 0; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            squares[j] += values[i + j] * values[i + j];
    for (size_t j = 0; j < LANES; j++)
        sum += squares[j];
    return sum;
}
