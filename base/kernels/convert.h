/**
 * base/kernels/convert.h: conversions of arrays between fp32 and 16 bits, to nearest and
 * stochastic, over vectors of any length (vector_ref.h). What does not fill a vector, or a draw of
 * random numbers, is converted by the definition (kernels_ref.c).
 */
#ifndef BASE_KERNELS_CONVERT_H
#define BASE_KERNELS_CONVERT_H

#include "base/kernels/ordered.h"

static void to_bf16(size_t count, const float *x, uint16_t *out)
{
    const size_t end = count - count % WIDTH;
    for (size_t i = 0; i < end; i += WIDTH)
        store_halves(out + i, bf16_of(canonical(load(x + i))));
    if (end < count)
        base_kernels_ref.to_bf16(count - end, x + end, out + end);
}

static void from_bf16(size_t count, const uint16_t *x, float *out)
{
    const size_t end = count - count % WIDTH;
    for (size_t i = 0; i < end; i += WIDTH)
        store(out + i, canonical(load_bf16(x + i)));
    if (end < count)
        base_kernels_ref.from_bf16(count - end, x + end, out + end);
}

static void to_f16(size_t count, const float *x, uint16_t *out)
{
    const size_t end = count - count % WIDTH;
    for (size_t i = 0; i < end; i += WIDTH)
        store_halves(out + i, f16_of(load(x + i)));
    if (end < count)
        base_kernels_ref.to_f16(count - end, x + end, out + end);
}

static void from_f16(size_t count, const uint16_t *x, float *out)
{
    const size_t end = count - count % WIDTH;
    for (size_t i = 0; i < end; i += WIDTH)
        store(out + i, canonical(load_f16(x + i)));
    if (end < count)
        base_kernels_ref.from_f16(count - end, x + end, out + end);
}

INLINE void round_draw_bf16(uint64_t key, uint64_t first, const float *x, uint16_t *out)
{
    for (size_t lane = 0; lane < BASE_DRAW_LANES; lane += WIDTH) {
        words random[4];
        draw(key, first / DRAW_BF16 * BASE_DRAW_LANES + lane, random);
        for (size_t k = 0; k < 4; k++) {
            const size_t low = 2 * k * BASE_DRAW_LANES + lane, high = low + BASE_DRAW_LANES;
            const words random_low = both(random[k], word(0xffff));
            const words random_high = right(random[k], 16);
            store_halves(out + low, pack(stochastic_bf16(bits_of(load(x + low)), random_low)));
            store_halves(out + high, pack(stochastic_bf16(bits_of(load(x + high)), random_high)));
        }
    }
}

static void round_bf16(uint64_t key, uint64_t first, size_t count, const float *x, uint16_t *out)
{
    for (size_t i = 0; i < count;) {
        if ((first + i) % DRAW_BF16 == 0 && count - i >= DRAW_BF16) {
            round_draw_bf16(key, first + i, x + i, out + i);
            i += DRAW_BF16;
        } else {
            out[i] = base_round_bf16_one(key, first + i, x[i]);
            i++;
        }
    }
}

INLINE void round_draw_f16(uint64_t key, uint64_t first, const float *x, uint16_t *out)
{
    for (size_t lane = 0; lane < BASE_DRAW_LANES; lane += WIDTH) {
        words random[4];
        draw(key, first / DRAW_F16 * BASE_DRAW_LANES + lane, random);
        for (size_t k = 0; k < 4; k++) {
            const size_t i = k * BASE_DRAW_LANES + lane;
            store_halves(out + i, pack(stochastic_f16(bits_of(load(x + i)), random[k])));
        }
    }
}

static void round_f16(uint64_t key, uint64_t first, size_t count, const float *x, uint16_t *out)
{
    for (size_t i = 0; i < count;) {
        if ((first + i) % DRAW_F16 == 0 && count - i >= DRAW_F16) {
            round_draw_f16(key, first + i, x + i, out + i);
            i += DRAW_F16;
        } else {
            out[i] = base_round_f16_one(key, first + i, x[i]);
            i++;
        }
    }
}

#endif
