#include "tests/bench/loops.h"

#include "base/bfloat16.h"

#include <immintrin.h>
#include <math.h>

enum { BLOCK = 16 };

typedef float vector __attribute__((vector_size(BLOCK * sizeof(float)), aligned(4), may_alias));

// 2 KiB ahead, as the kernels do: without it the limit would be lower than what they reach.
static void ahead(const float *x)
{
    __builtin_prefetch((const void *)((uintptr_t)x + 2048));
}

static void add(float *x, vector y)
{
    ahead(x);
    *(vector *)(void *)x += y;
}

void loop_stream(size_t count, const struct arrays *arrays)
{
    const __m128i ones = _mm_set1_epi16(1);
    for (size_t i = 0; i < count; i += BLOCK) {
        ahead(arrays->gradient + i);
        const vector g = *(const vector *)(const void *)(arrays->gradient + i);
        add(arrays->m + i, g);
        if (arrays->v)
            add(arrays->v + i, g);
        add(arrays->weight + i, g);
        if (arrays->work) { // past the cache: nobody reads it soon
            _mm_stream_si128((__m128i *)(void *)(arrays->work + i), ones);
            _mm_stream_si128((__m128i *)(void *)(arrays->work + i + BLOCK / 2), ones);
        }
    }
}

float loop_read(size_t count, const float *x)
{
    vector sum = {0};
    for (size_t i = 0; i < count; i += BLOCK) {
        ahead(x + i);
        sum += *(const vector *)(const void *)(x + i);
    }
    return sum[0];
}

void loop_scale(size_t count, float *x, float factor)
{
    for (size_t i = 0; i < count; i += BLOCK) {
        ahead(x + i);
        *(vector *)(void *)(x + i) *= factor;
    }
}

void loop_plain_adamw(size_t count, const struct arrays *arrays, float lr, float beta1, float beta2,
                      float correction1, float correction2, float eps, float weight_decay)
{
    const float *restrict gradient = arrays->gradient;
    float *restrict m = arrays->m;
    float *restrict v = arrays->v;
    float *restrict weight = arrays->weight;
    uint16_t *restrict work = arrays->work;
    for (size_t i = 0; i < count; i++) {
        const float g = gradient[i];
        const float m1 = beta1 * m[i] + (1.0f - beta1) * g;
        const float v1 = beta2 * v[i] + (1.0f - beta2) * g * g;
        const float step = m1 * correction1 / (sqrtf(v1 * correction2) + eps);
        m[i] = m1;
        v[i] = v1;
        weight[i] -= lr * (step + weight_decay * weight[i]);
        if (work)
            work[i] = base_bf16_from_f32(weight[i]);
    }
}
