/**
 * base/kernels/sum_loop.h: the loop over a pass in blocks of packets, and the table of sums, for
 * the file of an instruction set. The file includes the vectors (vector_ref.h says what they are)
 * and defines TABLE, the table's name, before.
 *
 * What is not a whole block, and a block with a value that is not finite, is left to the definition
 * (sum_ref.c): if every sum is finite every source is.
 */
#ifndef BASE_KERNELS_SUM_LOOP_H
#define BASE_KERNELS_SUM_LOOP_H

#include "base/kernels/sum_numbers.h"

#include <assert.h>
#include <string.h>

/** Packets of a block, which is two cache lines. */
enum { VECTORS = 2 * BASE_SUM_LINE / sizeof(packet) };

/* ------------------------------------------------------------------ more places */

// There is no NaN among these: blocks that have one are left to the definition.

INLINE void put(void *to, packet value, enum base_sum_to where)
{
    if (where == BASE_SUM_MEMORY && (uintptr_t)to % sizeof value == 0)
        stream_packet(to, value);
    else
        store_packet(to, value, sizeof(uint32_t));
}

INLINE packet narrowed(zero_dtype dtype, packet low, packet high)
{
    if (dtype == ZERO_F16)
        return joined(f16_of_number(floats_in(low)), f16_of_number(floats_in(high)));
    return packed(right(nearest_bf16(bits_of(floats_in(low))), 16),
                  right(nearest_bf16(bits_of(floats_in(high))), 16));
}

/** Leaves a block, of the elements i .., where a pass says that it goes as well. */
INLINE void leave_wide(const struct base_pass *pass, size_t bytes, size_t i, const packet *values)
{
    for (int k = 0; k < pass->also_count; k++) {
        unsigned char *to = (unsigned char *)pass->also[k] + (pass->also_first + i) * bytes;
        for (size_t j = 0; j < VECTORS; j++)
            put(to + j * sizeof *values, values[j], pass->to);
    }
}

INLINE void leave_narrow(const struct base_pass *pass, zero_dtype dtype, size_t i,
                         const packet *values)
{
    for (size_t j = 0; j < VECTORS; j += 2) {
        const packet two = narrowed(dtype, values[j], values[j + 1]);
        for (int k = 0; k < pass->also_count; k++)
            put((uint16_t *)pass->also[k] + pass->also_first + i + j * WIDTH, two, pass->to);
    }
}

static void leave_wide4(const struct base_pass *pass, size_t i, const packet *values)
{
    leave_wide(pass, 4, i, values);
}

static void leave_wide8(const struct base_pass *pass, size_t i, const packet *values)
{
    leave_wide(pass, 8, i, values);
}

static void leave_bf16(const struct base_pass *pass, size_t i, const packet *values)
{
    leave_narrow(pass, ZERO_BF16, i, values);
}

static void leave_f16(const struct base_pass *pass, size_t i, const packet *values)
{
    leave_narrow(pass, ZERO_F16, i, values);
}

INLINE void leave_also(const struct base_pass *pass, const struct numbers *of, size_t i,
                       const packet *values)
{
    if (of->bytes == 8)
        leave_wide8(pass, i, values);
    else if (of->source_bytes == 4 || !pass->narrow)
        leave_wide4(pass, i, values);
    else if (of->dtype == ZERO_F16)
        leave_f16(pass, i, values);
    else
        leave_bf16(pass, i, values);
}

/* ------------------------------------------------------------------ the loop */

INLINE void leave(packet *sum, const packet *values, enum base_sum_to to)
{
    if (to == BASE_SUM_MEMORY) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            stream_packet(sum + j, values[j]);
    } else {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            store_packet(sum + j, values[j], sizeof(uint32_t));
    }
}

/** Asks for a block's lines of all sources, and of the sum where it is not stored past the caches,
 * long before they are needed. Measured from memory on an Intel processor: 0.75 to 0.98 of a plain
 * loop's time, where the hardware's own prefetching reaches 1.00 to 1.06. */
INLINE void ask_ahead(const struct numbers *of, const packet *sum, const void *const *sources,
                      int count, size_t at)
{
    const size_t ahead = base_prefetch_bytes, block = VECTORS * sizeof(packet),
                 bytes = block / of->bytes * of->source_bytes;
#pragma GCC unroll 8
    for (int k = 0; k < count; k++) {
        const uintptr_t source = (uintptr_t)sources[k] + at * of->source_bytes + ahead;
#pragma GCC unroll 8
        for (size_t line = 0; line < bytes; line += BASE_SUM_LINE)
            __builtin_prefetch((const void *)(source + line));
    }
#pragma GCC unroll 8
    for (size_t line = 0; line < block && sum; line += BASE_SUM_LINE)
        __builtin_prefetch((const void *)((uintptr_t)sum + ahead + line), 1);
}

/** The blocks from i on of sources that are near, as far as their values are finite: a loop that
 * has nothing to decide. Returns where it ends. */
INLINE size_t near_blocks(const struct numbers *of, combine_fn combine, mark_fn special,
                          const void *const *sources, int count, const struct base_pass *pass,
                          size_t i)
{
    const size_t block = VECTORS * sizeof(packet) / of->bytes, first = pass->first;
    unsigned char *base = pass->sum;
    const unsigned char *before = pass->store ? NULL : base;
    for (const size_t n = pass->n; n - i >= block; i += block) {
        packet values[VECTORS], *sum = (packet *)(base + i * of->bytes);
        combine_in_order(of->dtype, combine, before, i, of->bytes, sources, count, first + i,
                         values, VECTORS);
        if (__builtin_expect(any_marked(values, VECTORS, special), false))
            break;
        leave(sum, values, BASE_SUM_CACHE);
    }
    return i;
}

/** What is left to the definition: the elements i .. i+n-1. */
INLINE bool defined(const struct base_pass *pass, size_t i, size_t n, const struct numbers *of)
{
    if (n == 0)
        return true;
    const struct base_pass part = base_sum_part(pass, i, n, of->bytes);
    return base_sum_ref.sum[of->dtype](&part);
}

/** count is pass->count; where it is constant the sources' addresses are in registers. */
INLINE bool blocks(const struct base_pass *pass, int count, const struct numbers *of,
                   combine_fn combine, mark_fn special)
{
    assert(count == pass->count && count >= 1);
    assert(pass->sum || (pass->store && pass->also_count > 0));
    assert((uintptr_t)pass->sum % of->bytes == 0);
    const size_t block = VECTORS * sizeof(packet) / of->bytes, n = pass->n;
    size_t i =
        pass->sum ? base_sum_head(pass->sum, n, of->bytes) : base_sum_also_head(pass, of->bytes);
    assert(i <= n);
    bool finite = defined(pass, 0, i, of);
    const void *few[BASE_SUM_UNROLLED], *const *sources = pass->sources;
    if (count <= BASE_SUM_UNROLLED) {
#pragma GCC unroll 8
        for (int k = 0; k < count; k++)
            few[k] = sources[k];
        sources = few;
    }
    const bool far = pass->far && base_prefetch_bytes > 0;
    unsigned char *base = pass->sum;
    const unsigned char *before = pass->store ? NULL : base;
    const enum base_sum_to to = pass->to;
    const int also_count = pass->also_count;
    const bool past = to == BASE_SUM_MEMORY && also_count == 0;
    const bool simple = base && !far && to == BASE_SUM_CACHE && also_count == 0;
    const size_t first = pass->first;
    for (;; i += block) {
        if (simple)
            i = near_blocks(of, combine, special, sources, count, pass, i);
        if (n - i < block)
            break;
        packet values[VECTORS], *sum = base ? (packet *)(base + i * of->bytes) : NULL;
        if (far)
            ask_ahead(of, past ? NULL : sum, sources, count, first + i);
        combine_in_order(of->dtype, combine, before, i, of->bytes, sources, count, first + i,
                         values, VECTORS);
        if (__builtin_expect(any_marked(values, VECTORS, special), false)) {
            finite &= defined(pass, i, block, of);
            continue;
        }
        if (sum)
            leave(sum, values, past ? BASE_SUM_MEMORY : BASE_SUM_CACHE);
        if (also_count > 0) {
            packet spread[VECTORS];
            memcpy(spread, values, sizeof spread);
            leave_also(pass, of, i, spread);
        }
    }
    return defined(pass, i, n - i, of) && finite;
}

/** Sums, with the loop over the sources unrolled; for two of them only in a build with sanitizers,
 * because compiling the others takes it minutes. */
INLINE bool sum_up(const struct base_pass *pass, const struct numbers *of)
{
    switch (pass->count) {
    case 2:
        return blocks(pass, 2, of, of->add, of->not_finite);
#ifndef ZERO_FEW_LOOPS
    case 1:
        return blocks(pass, 1, of, of->add, of->not_finite);
    case 3:
        return blocks(pass, 3, of, of->add, of->not_finite);
    case 4:
        return blocks(pass, 4, of, of->add, of->not_finite);
    case 5:
        return blocks(pass, 5, of, of->add, of->not_finite);
    case 6:
        return blocks(pass, 6, of, of->add, of->not_finite);
    case 7:
        return blocks(pass, 7, of, of->add, of->not_finite);
    case 8:
        return blocks(pass, 8, of, of->add, of->not_finite);
#endif
    default:
        return blocks(pass, pass->count, of, of->add, of->not_finite);
    }
}

INLINE bool sum_pass(const struct base_pass *pass, const struct numbers *of)
{
    switch (pass->op) {
    case BASE_MIN:
        return blocks(pass, pass->count, of, of->least, of->nan);
    case BASE_MAX:
        return blocks(pass, pass->count, of, of->greatest, of->nan);
    default:
        return sum_up(pass, of);
    }
}

static void copy(void *to, const void *from, size_t bytes, enum base_sum_to where)
{
    enum { LINE_PACKETS = BASE_SUM_LINE / sizeof(packet) };
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t i = where == BASE_SUM_MEMORY ? base_sum_head(to, bytes, 1) : bytes;
    if (i > 0)
        memcpy(out, in, i);
    for (; i + BASE_SUM_LINE <= bytes; i += BASE_SUM_LINE) {
        packet line[LINE_PACKETS];
        for (size_t j = 0; j < LINE_PACKETS; j++)
            line[j] = load_packet(in + i + j * sizeof(packet), sizeof(uint32_t));
        for (size_t j = 0; j < LINE_PACKETS; j++)
            stream_packet(out + i + j * sizeof(packet), line[j]);
    }
    if (i < bytes)
        memcpy(out + i, in + i, bytes - i);
}

#include "base/kernels/sum_table.h"

#endif
