// The definition of a sum: one element after the other.
#include "base/kernels/vector_ref.h"

#include "base/kernels/rules.h"
#include "base/kernels/sum_numbers.h"

#define TABLE base_sum_ref

/** The value, but one NaN for all. */
INLINE packet canonical_number(const struct numbers *of, packet value)
{
    const packet nan = of->bytes == sizeof(double) ? 0x7ff8000000000000 : BASE_NAN_F32;
    return of->nan && of->nan(value) ? nan : value;
}

/** Leaves the value wherever the pass says. */
INLINE void put(const struct base_pass *pass, const struct numbers *of, size_t i, packet value)
{
    if (pass->sum)
        store_packet((unsigned char *)pass->sum + i * of->bytes, value, of->bytes);
    for (int k = 0; k < pass->also_count; k++) {
        unsigned char *also = pass->also[k];
        const size_t at = pass->also_first + i;
        if (!pass->narrow || of->source_bytes == of->bytes)
            store_packet(also + at * of->bytes, value, of->bytes);
        else if (of->dtype == ZERO_F16)
            store_halves((uint16_t *)pass->also[k] + at, f16_of(floats_in(value)));
        else
            store_halves((uint16_t *)pass->also[k] + at, bf16_of(floats_in(value)));
    }
}

/** Whether element i of every source is finite. */
INLINE bool all_sources_finite(const struct base_pass *pass, const struct numbers *of, size_t i)
{
    for (int k = 0; k < pass->count; k++)
        if (of->not_finite(load_source(of->dtype, false, pass->sources[k], pass->first + i)))
            return false;
    return true;
}

INLINE bool combine_all(const struct base_pass *pass, const struct numbers *of, combine_fn combine)
{
    bool finite = true;
    for (size_t i = 0; i < pass->n; i++) {
        packet value;
        combine_in_order(of->dtype, combine, pass->store ? NULL : pass->sum, i, of->bytes,
                         pass->sources, pass->count, pass->first + i, &value, 1);
        // If the sum is finite every source is.
        if (of->not_finite && of->not_finite(value))
            finite = all_sources_finite(pass, of, i) && finite;
        put(pass, of, i, canonical_number(of, value));
    }
    return finite;
}

INLINE bool sum_pass(const struct base_pass *pass, const struct numbers *of)
{
    if (pass->op == BASE_SUM)
        return combine_all(pass, of, of->add);
    combine_all(pass, of, pass->op == BASE_MIN ? of->least : of->greatest);
    return true;
}

static void copy(void *to, const void *from, size_t bytes, enum base_sum_to where)
{
    (void)where;
    if (bytes > 0)
        memcpy(to, from, bytes);
}

#include "base/kernels/sum_table.h"
