/**
 * base/kernels/sum_loop.h: the loop over a pass in blocks of vectors, and the functions of the
 * table, for the file of an instruction set, which includes it behind what it defines for each
 * dtype:
 *
 *     vector, VECTORS                    elements of an accumulator; vectors of a block
 *     load_line, store_line, stream_line a vector of the sum, aligned
 *     load_T                             a source's elements, widened
 *     add_T, least_T, greatest_T         of the accumulator's dtype; so are
 *     not_finite_T, nan_T, never         whether one of a block's vectors has such a value
 *     spread_wide4, _wide8, _bf16, _f16  where a pass says that its result goes as well
 *
 * What is not a whole block, and a block with a value that is not finite, is left to the definition
 * (sum_ref.c): if every sum is finite every source is.
 */
#ifndef BASE_KERNELS_SUM_LOOP_H
#define BASE_KERNELS_SUM_LOOP_H

typedef vector (*combine_fn)(vector value, vector next);
typedef bool (*special_fn)(const vector *values);

/** Leaves a block, of the elements i .., where a pass says that it goes as well. */
typedef void (*spread_fn)(const struct coll_pass *pass, size_t i, const vector *values);

/** What there is to know of a dtype. */
struct arithmetic {
    size_t bytes;        /**< of an accumulator's element, */
    size_t source_bytes; /**< and of a source's */
    vector (*load)(const void *source, size_t i);
    combine_fn add, least, greatest;
    special_fn not_finite; /**< whether one of VECTORS vectors has such a value */
    special_fn nan;
    spread_fn spread;
};

static const struct arithmetic of_f32 = {
    4, 4, load_f32, add_f32, least_f32, greatest_f32, not_finite_f32, nan_f32, spread_wide4};
static const struct arithmetic of_bf16 = {
    4, 2, load_bf16, add_f32, least_f32, greatest_f32, not_finite_f32, nan_f32, spread_bf16};
static const struct arithmetic of_f16 = {
    4, 2, load_f16, add_f32, least_f32, greatest_f32, not_finite_f32, nan_f32, spread_f16};
static const struct arithmetic of_f64 = {
    8, 8, load_f64, add_f64, least_f64, greatest_f64, not_finite_f64, nan_f64, spread_wide8};
static const struct arithmetic of_i32 = {
    4, 4, load_i32, add_i32, least_i32, greatest_i32, never, never, spread_wide4};
static const struct arithmetic of_i64 = {
    8, 8, load_i64, add_i64, least_i64, greatest_i64, never, never, spread_wide8};

/** Computes a block: the elements `at` .. of the sources, and what is in sum. */
INLINE void compute(const struct arithmetic *of, combine_fn combine, const vector *sum, bool store,
                    const void *const *sources, int count, size_t at, vector *values)
{
    const size_t lanes = sizeof(vector) / of->bytes;
#pragma GCC unroll 8
    for (size_t j = 0; j < VECTORS; j++)
        values[j] = of->load(sources[0], at + j * lanes);
    if (!store) {
#pragma GCC unroll 8
        for (size_t j = 0; j < VECTORS; j++)
            values[j] = combine(load_line(sum + j), values[j]);
    }
#pragma GCC unroll 8
    for (int k = 1; k < count; k++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < VECTORS; j++)
            values[j] = combine(values[j], of->load(sources[k], at + j * lanes));
    }
}

INLINE void leave(vector *sum, const vector *values, enum coll_sum_to to)
{
    if (to == COLL_SUM_MEMORY) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            stream_line(sum + j, values[j]);
    } else {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            store_line(sum + j, values[j]);
    }
}

/** Asks for a block's lines of all sources, and of the sum where it is not stored past the caches,
 * long before they are needed. Measured from memory: 0.75 to 0.98 of a plain loop's time, where
 * the hardware's own prefetching reaches 1.00 to 1.06. */
INLINE void ask_ahead(const struct arithmetic *of, const vector *sum, const void *const *sources,
                      int count, size_t at)
{
    enum { AHEAD = 2048 };
    const size_t block = VECTORS * sizeof(vector), bytes = block / of->bytes * of->source_bytes;
#pragma GCC unroll 8
    for (int k = 0; k < count; k++) {
        const uintptr_t source = (uintptr_t)sources[k] + at * of->source_bytes + AHEAD;
#pragma GCC unroll 8
        for (size_t line = 0; line < bytes; line += COLL_SUM_LINE)
            __builtin_prefetch((const void *)(source + line));
    }
#pragma GCC unroll 8
    for (size_t line = 0; line < block && sum; line += COLL_SUM_LINE)
        __builtin_prefetch((const void *)((uintptr_t)sum + AHEAD + line), 1);
}

/** The blocks from i on of sources that are near, as far as their values are finite: a loop that
 * has nothing to decide. Returns where it ends. */
INLINE size_t near_blocks(const struct arithmetic *of, combine_fn combine, special_fn special,
                          const void *const *sources, int count, const struct coll_pass *pass,
                          size_t i)
{
    const size_t block = VECTORS * sizeof(vector) / of->bytes, first = pass->first;
    unsigned char *base = pass->sum;
    const bool store = pass->store;
    for (const size_t n = pass->n; n - i >= block; i += block) {
        vector values[VECTORS], *sum = (vector *)(base + i * of->bytes);
        compute(of, combine, sum, store, sources, count, first + i, values);
        if (__builtin_expect(special(values), false))
            break;
        leave(sum, values, COLL_SUM_CACHE);
    }
    return i;
}

/** What is left to the definition: the elements i .. i+n-1. */
INLINE bool defined(const struct coll_pass *pass, size_t i, size_t n, const struct arithmetic *of,
                    coll_sum_fn definition)
{
    if (n == 0)
        return true;
    const struct coll_pass part = coll_sum_part(pass, i, n, of->bytes);
    return definition(&part);
}

/** count is pass->count; where it is constant the sources' addresses are in registers. */
INLINE bool blocks(const struct coll_pass *pass, int count, const struct arithmetic *of,
                   combine_fn combine, special_fn special, coll_sum_fn definition)
{
    const size_t block = VECTORS * sizeof(vector) / of->bytes, n = pass->n;
    size_t i =
        pass->sum ? coll_sum_head(pass->sum, n, of->bytes) : coll_sum_also_head(pass, of->bytes);
    bool finite = defined(pass, 0, i, of, definition);
    const void *few[COLL_SUM_UNROLLED], *const *sources = pass->sources;
    if (count <= COLL_SUM_UNROLLED) {
#pragma GCC unroll 8
        for (int k = 0; k < count; k++)
            few[k] = sources[k];
        sources = few;
    }
    const bool store = pass->store, far = pass->far;
    unsigned char *base = pass->sum;
    const enum coll_sum_to to = pass->to;
    const int also_count = pass->also_count;
    const bool past = to == COLL_SUM_MEMORY && also_count == 0;
    const bool simple = base && !far && to == COLL_SUM_CACHE && also_count == 0;
    const size_t first = pass->first;
    for (;; i += block) {
        if (simple)
            i = near_blocks(of, combine, special, sources, count, pass, i);
        if (n - i < block)
            break;
        vector values[VECTORS], *sum = base ? (vector *)(base + i * of->bytes) : NULL;
        if (far)
            ask_ahead(of, past ? NULL : sum, sources, count, first + i);
        compute(of, combine, sum, store, sources, count, first + i, values);
        if (__builtin_expect(special(values), false)) {
            finite &= defined(pass, i, block, of, definition);
            continue;
        }
        if (sum)
            leave(sum, values, past ? COLL_SUM_MEMORY : COLL_SUM_CACHE);
        if (also_count > 0) {
            vector spread[VECTORS];
            memcpy(spread, values, sizeof spread);
            of->spread(pass, i, spread);
        }
    }
    return defined(pass, i, n - i, of, definition) && finite;
}

/** Sums, with the loop over the sources unrolled; with assertions for two only, because compiling
 * the others takes a sanitizer's build minutes. */
INLINE bool add(const struct coll_pass *pass, const struct arithmetic *of, coll_sum_fn definition)
{
    switch (pass->count) {
    case 2:
        return blocks(pass, 2, of, of->add, of->not_finite, definition);
#ifdef NDEBUG
    case 1:
        return blocks(pass, 1, of, of->add, of->not_finite, definition);
    case 3:
        return blocks(pass, 3, of, of->add, of->not_finite, definition);
    case 4:
        return blocks(pass, 4, of, of->add, of->not_finite, definition);
    case 5:
        return blocks(pass, 5, of, of->add, of->not_finite, definition);
    case 6:
        return blocks(pass, 6, of, of->add, of->not_finite, definition);
    case 7:
        return blocks(pass, 7, of, of->add, of->not_finite, definition);
    case 8:
        return blocks(pass, 8, of, of->add, of->not_finite, definition);
#endif
    default:
        return blocks(pass, pass->count, of, of->add, of->not_finite, definition);
    }
}

INLINE bool run(const struct coll_pass *pass, const struct arithmetic *of, coll_sum_fn definition)
{
    switch (pass->op) {
    case COLL_MIN:
        return blocks(pass, pass->count, of, of->least, of->nan, definition);
    case COLL_MAX:
        return blocks(pass, pass->count, of, of->greatest, of->nan, definition);
    default:
        return add(pass, of, definition);
    }
}

static bool sum_f32(const struct coll_pass *pass)
{
    return run(pass, &of_f32, coll_sum_ref.sum[ZERO_F32]);
}

static bool sum_bf16(const struct coll_pass *pass)
{
    return run(pass, &of_bf16, coll_sum_ref.sum[ZERO_BF16]);
}

static bool sum_f16(const struct coll_pass *pass)
{
    return run(pass, &of_f16, coll_sum_ref.sum[ZERO_F16]);
}

static bool sum_f64(const struct coll_pass *pass)
{
    return run(pass, &of_f64, coll_sum_ref.sum[ZERO_F64]);
}

static bool sum_i32(const struct coll_pass *pass)
{
    return run(pass, &of_i32, coll_sum_ref.sum[ZERO_I32]);
}

static bool sum_i64(const struct coll_pass *pass)
{
    return run(pass, &of_i64, coll_sum_ref.sum[ZERO_I64]);
}

#endif
