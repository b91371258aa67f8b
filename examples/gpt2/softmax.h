/**
 * softmax.h: the exponentials of a row, for attention and for the loss.
 */
#ifndef GPT2_SOFTMAX_H
#define GPT2_SOFTMAX_H

#include "real.h"

/** The largest of a row's first `count` elements, at least 1. */
INLINED real row_largest(const real *x, int count)
{
    real lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = x[0];
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; i + j < count; j++)
        lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 1; j < LANES; j++)
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/** x = e^(x - largest) for the first `count` elements; their sum. */
INLINED real row_exponentials(real *x, real largest, int count)
{
    real lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) {
            x[i + j] = real_exp(x[i + j] - largest);
            lane[j] += x[i + j];
        }
    for (int j = 0; i + j < count; j++) {
        x[i + j] = real_exp(x[i + j] - largest);
        lane[j] += x[i + j];
    }
    return lanes_sum(lane);
}

#endif
