/**
 * base/kernels/ordered.h: the ordered sum, over vectors of any length (vector_ref.h):
 *
 *     ((before + s0) + s1) + s2 ...
 *
 * of f32, f64, i32 or i64, or the least or the greatest of them in place of the sum. bf16 and f16
 * are widened to f32.
 */
#ifndef BASE_KERNELS_ORDERED_H
#define BASE_KERNELS_ORDERED_H

#include "base/kernels/kernel_tables.h"
#include "base/kernels/rounding.h"

/** The nearest bf16 of what is canonical. */
INLINE halves bf16_of(vector x)
{
    return pack_upper(nearest_bf16(bits_of(x)));
}

typedef packet (*combine_fn)(packet value, packet next);

/** The numbers of a source from element i on, in the type in which they are added. ask: those
 * further on are prefetched. */
INLINE packet load_source(zero_dtype dtype, bool ask, const void *source, size_t i)
{
    const uint16_t *halves_at = (const uint16_t *)source + i;
    switch (dtype) {
    case ZERO_BF16:
        if (ask)
            eng_prefetch(halves_at);
        return packet_of(load_bf16(halves_at));
    case ZERO_F16:
        if (ask)
            eng_prefetch(halves_at);
        return packet_of(load_f16(halves_at));
    case ZERO_F64:
    case ZERO_I64:
        return load_packet((const uint64_t *)source + i, sizeof(uint64_t));
    default:
        return ask ? packet_of(load((const float *)source + i))
                   : load_packet((const uint32_t *)source + i, sizeof(uint32_t));
    }
}

/** A vector of a source of floats, bf16 or f16; those further on are prefetched. */
INLINE vector widened(zero_dtype dtype, const void *source, size_t i)
{
    return floats_in(load_source(dtype, true, source, i));
}

INLINE packet add_f32(packet value, packet next)
{
    return packet_of(add(floats_in(value), floats_in(next)));
}

/** What the sum begins with: elements `at` .. of the first source, and if `before` is not NULL its
 * elements i .., of which each has so many bytes: as many packets as there are. */
INLINE void begin_sum(zero_dtype dtype, bool ask, combine_fn combine, const void *before, size_t i,
                      size_t bytes, const void *source, size_t at, packet *values, size_t packets)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < packets; j++)
        values[j] = load_source(dtype, ask, source, at + j * (sizeof(packet) / bytes));
    if (!before)
        return;
    const unsigned char *first = (const unsigned char *)before + i * bytes;
#pragma GCC unroll 8
    for (size_t j = 0; j < packets; j++) {
        const void *at_j = first + j * sizeof(packet);
        const packet value = ask ? packet_of(load(at_j)) : load_packet(at_j, bytes);
        values[j] = combine(value, values[j]);
    }
}

/** Goes on with the next source. */
INLINE void continue_sum(zero_dtype dtype, bool ask, combine_fn combine, size_t bytes,
                         const void *source, size_t at, packet *values, size_t packets)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < packets; j++)
        values[j] =
            combine(values[j], load_source(dtype, ask, source, at + j * (sizeof(packet) / bytes)));
}

/** All of it, the loop over the sources unrolled. */
INLINE void combine_in_order(zero_dtype dtype, combine_fn combine, const void *before, size_t i,
                             size_t bytes, const void *const *sources, int count, size_t at,
                             packet *values, size_t packets)
{
    begin_sum(dtype, false, combine, before, i, bytes, sources[0], at, values, packets);
#pragma GCC unroll 8
    for (int k = 1; k < count; k++)
        continue_sum(dtype, false, combine, bytes, sources[k], at, values, packets);
}

/** The ordered sum of one vector of floats: element i of `before`, which may be NULL, and element
 * `at` of `one`, which is the first source, and of the others. What lies further on is prefetched.
 */
INLINE vector sum_in_order(zero_dtype dtype, const float *before, size_t i, const void *one,
                           const void *const *sources, int count, size_t at)
{
    packet total;
    begin_sum(dtype, true, add_f32, before, i, sizeof(float), one, at, &total, 1);
    for (int k = 1; k < count; k++)
        continue_sum(dtype, true, add_f32, sizeof(float), sources[k], at, &total, 1);
    return floats_in(total);
}

#endif
