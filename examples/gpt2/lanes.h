/**
 * lanes.h: sums over a row, element i in lane i mod LANES, so that they are vectors' work and the
 * same on vectors of any width.
 */
#ifndef GPT2_LANES_H
#define GPT2_LANES_H

#include "real.h"

#define LANES 16

/** Compilers split it into vectors of the instruction set they compile for. */
typedef real lanes __attribute__((vector_size(LANES * sizeof(real))));

/** The first `count` elements at x, at most LANES; the other lanes stay as they are. */
INLINED void lanes_load(lanes *v, const real *x, int count)
{
    if (count >= LANES)
        memcpy(v, x, sizeof *v);
    else
        memcpy(v, x, (size_t)count * sizeof *x);
}

/** The sum of all lanes, in a fixed tree. */
INLINED real lanes_sum(const lanes *v)
{
    real lane[LANES];
    memcpy(lane, v, sizeof lane);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/** The sum of x[0 .. count-1]. */
INLINED real row_sum(const real *x, int count)
{
    lanes sum = {0};
    for (int i = 0; i < count; i += LANES) {
        lanes v = {0};
        lanes_load(&v, x + i, count - i);
        sum += v;
    }
    return lanes_sum(&sum);
}

/** The sum of x[i] * y[i]. */
INLINED real row_dot(const real *x, const real *y, int count)
{
    lanes sum = {0};
    for (int i = 0; i < count; i += LANES) {
        lanes v = {0}, w = {0};
        lanes_load(&v, x + i, count - i);
        lanes_load(&w, y + i, count - i);
        sum += v * w;
    }
    return lanes_sum(&sum);
}

/** The largest of x[0 .. count-1], count at least 1. */
INLINED real row_largest(const real *x, int count)
{
    real lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = x[j < count ? j : 0];
    int i = LANES;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < count; i++)
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (int j = 1; j < LANES; j++)
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/** x = e^(x - largest); returns the sum. */
INLINED real row_exponentials(real *restrict x, real largest, int count)
{
    for (int i = 0; i < count; i++)
        x[i] = real_exp(x[i] - largest);
    return row_sum(x, count);
}

#endif
