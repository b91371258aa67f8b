#include "tests/bench/loops.h"

#include "base/bfloat16.h"

#include <immintrin.h>
#include <math.h>

enum { BLOCK = 16 };

typedef float vector __attribute__((vector_size(BLOCK * sizeof(float)), aligned(4), may_alias));

static void prefetch(const float *x, size_t ahead)
{
    if (ahead > 0) // the compiler makes two loops of it
        __builtin_prefetch((const void *)((uintptr_t)x + ahead));
}

static void add(float *x, vector y, size_t ahead)
{
    prefetch(x, ahead);
    *(vector *)(void *)x += y;
}

void loop_stream(size_t count, const struct arrays *arrays, size_t ahead)
{
    const __m128i ones = _mm_set1_epi16(1);
    const struct arrays a = *arrays; // a copy that no store can change
    for (size_t i = 0; i < count; i += BLOCK) {
        prefetch(a.gradient + i, ahead);
        const vector g = *(const vector *)(const void *)(a.gradient + i);
        add(a.m + i, g, ahead);
        if (a.v)
            add(a.v + i, g, ahead);
        add(a.weight + i, g, ahead);
        if (a.work) { // past the cache: nothing reads it soon
            _mm_stream_si128((__m128i *)(void *)(a.work + i), ones);
            _mm_stream_si128((__m128i *)(void *)(a.work + i + BLOCK / 2), ones);
        }
    }
}

float loop_read(size_t count, const float *x, size_t ahead)
{
    vector sum = {0};
    for (size_t i = 0; i < count; i += BLOCK) {
        prefetch(x + i, ahead);
        sum += *(const vector *)(const void *)(x + i);
    }
    return sum[0];
}

void loop_scale(size_t count, float *x, float factor, size_t ahead)
{
    for (size_t i = 0; i < count; i += BLOCK) {
        prefetch(x + i, ahead);
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
