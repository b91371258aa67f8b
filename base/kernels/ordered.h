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
            base_prefetch(halves_at);
        return packet_of(load_bf16(halves_at));
    case ZERO_F16:
        if (ask)
            base_prefetch(halves_at);
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

/** The ordered sum from element i of `before` on, which may be NULL, and from element `at` of the
 * sources on, of which each has so many bytes: as many packets as there are. The loop over the
 * sources is unrolled. */
INLINE void combine_in_order(zero_dtype dtype, combine_fn combine, const void *before, size_t i,
                             size_t bytes, const void *const *sources, int count, size_t at,
                             packet *values, size_t packets)
{
    const size_t elements = sizeof(packet) / bytes;
#pragma GCC unroll 8
    for (size_t j = 0; j < packets; j++)
        values[j] = load_source(dtype, false, sources[0], at + j * elements);
    const unsigned char *first = before ? (const unsigned char *)before + i * bytes : NULL;
#pragma GCC unroll 8
    for (size_t j = 0; j < packets && before; j++)
        values[j] = combine(load_packet(first + j * sizeof(packet), bytes), values[j]);
#pragma GCC unroll 8
    for (int k = 1; k < count; k++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < packets; j++)
            values[j] =
                combine(values[j], load_source(dtype, false, sources[k], at + j * elements));
    }
}

/** The ordered sum of one vector of floats: element i of `before`, which may be NULL, and element
 * `at` of `one`, which is the first source, and of the others. What lies further on is prefetched.
 * The total is a vector all the way: as a packet, which has words, it takes a move a source. */
INLINE vector sum_in_order(zero_dtype dtype, const float *before, size_t i, const void *one,
                           const void *const *sources, int count, size_t at)
{
    vector total = widened(dtype, one, at);
    if (before)
        total = add(load(before + i), total);
    for (int k = 1; k < count; k++)
        total = add(total, widened(dtype, sources[k], at));
    return total;
}

#endif
