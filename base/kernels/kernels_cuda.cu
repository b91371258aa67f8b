// The kernels of device_kernels.h on NVIDIA's GPUs. Memory-bound: every element is read and written
// once, by accesses of 16 bytes (8 of what has 16 bits) side by side.
#include "base/kernels/four_cuda.h"
#include "base/kernels/kernels_cuda.h"

#include "base/kernels/rules.h"

/* ------------------------------------------------------------------ update */

INLINE struct constants constants_of(const struct base_rule_scalars *scalars)
{
    struct constants c;
    c.gradient_scale = scalars->gradient_scale;
    c.beta1 = scalars->beta1;
    c.one_minus_beta1 = scalars->one_minus_beta1;
    c.beta2 = scalars->beta2;
    c.one_minus_beta2 = scalars->one_minus_beta2;
    c.decay = scalars->decay;
    c.step_size = scalars->step_size;
    c.inverse_sqrt_correction = scalars->inverse_sqrt_correction;
    c.eps = scalars->eps;
    c.l2 = scalars->l2;
    c.nesterov = scalars->nesterov;
    return c;
}

/** Stores a field of the state, of which that key of its slice is. */
template <bool wide>
INLINE unsigned store_field(const struct base_device_segment *segment, unsigned dtype,
                            const uint64_t *keys, int key, void *to, size_t i, unsigned n,
                            const vector x[FOUR])
{
    if (wide || dtype == ZERO_F32)
        return store_nearest(ZERO_F32, to, i, n, x);
    return store_rounded(dtype, keys[segment->key + (unsigned)key], segment->first, to, i, n, x);
}

/** Rare: the lowest element of an array that is not finite; `which` array it is stands above. */
static __device__ __noinline__ void report(uint64_t *lowest, uint64_t which, uint64_t element)
{
    atomicMin((unsigned long long *)lowest,
              (unsigned long long)(which << BASE_DEVICE_BAD_SHIFT | element));
}

template <void rule(const struct constants *c, struct elements *x), int moments, bool wide>
INLINE void update_four(const struct base_device_segment *segment, const struct constants *c,
                        const uint64_t *keys, uint64_t *wrong, size_t i, unsigned n)
{
    vector gradient[FOUR], weight[FOUR], moment[moments][FOUR];
    load_any(segment->gradient_dtype, segment->gradient, i, n, gradient);
    load_any(wide ? (unsigned)ZERO_F32 : segment->weight_dtype, segment->weight, i, n, weight);
    for (int k = 0; k < moments; k++)
        load_any(wide ? (unsigned)ZERO_F32 : segment->moment_dtype, segment->moment[k], i, n,
                 moment[k]);
    for (int j = 0; j < FOUR; j++) {
        struct elements x;
        x.gradient = gradient[j];
        x.weight = weight[j];
        for (int k = 0; k < moments; k++)
            x.moment[k] = moment[k][j];
        rule(c, &x);
        weight[j] = x.weight;
        for (int k = 0; k < moments; k++)
            moment[k][j] = x.moment[k];
    }
    unsigned which = 0;
    for (int k = 0; k < moments; k++)
        which |= store_field<wide>(segment, segment->moment_dtype, keys, 1 + k, segment->moment[k],
                                   i, n, moment[k]);
    which |=
        store_field<wide>(segment, segment->weight_dtype, keys, 0, segment->weight, i, n, weight);
    if (segment->work)
        which |= store_nearest(segment->work_dtype, segment->work, i, n, weight);
    for (unsigned j = 0; which && wrong && j < n; j++)
        if (which >> j & 1)
            report(wrong, segment->key / BASE_DEVICE_KEYS, segment->first + i + j);
}

template <void rule(const struct constants *c, struct elements *x), int moments, bool wide>
INLINE void update_segment(const struct base_device_segment *segment,
                           const struct base_rule_scalars *scalars, const uint64_t *keys,
                           uint64_t *wrong)
{
    const struct constants c = constants_of(scalars);
    for (unsigned i = FOUR * threadIdx.x; i < segment->count; i += FOUR * blockDim.x) {
        const unsigned left = segment->count - i;
        if (left >= FOUR)
            update_four<rule, moments, wide>(segment, &c, keys, wrong, i, FOUR);
        else
            update_four<rule, moments, wide>(segment, &c, keys, wrong, i, left);
    }
}

/** Whether all of a segment's sums are finite; true if the update takes any (finite_only is 0). */
INLINE bool are_finite(const struct base_device_update *u,
                       const struct base_device_segment *segment)
{
    for (unsigned g = 0; u->finite_only && g * BASE_GRANULE < segment->count; g++)
        if (!(segment->squares[g] <= 1e300))
            return false;
    return true;
}

/** A block a segment. */
template <bool wide> INLINE void update(const struct base_device_update *u)
{
    if (u->gate && *u->gate == 0)
        return;
    if (!are_finite(u, &u->segments[blockIdx.x])) // looked at before it takes registers
        return;
    const struct base_device_segment segment = u->segments[blockIdx.x];
    const struct base_rule_scalars *scalars = &u->scalars[segment.group];
    switch (scalars->rule) {
    case BASE_RULE_ADAM:
        update_segment<adam, 2, wide>(&segment, scalars, u->keys, u->wrong);
        break;
    case BASE_RULE_SGD:
        update_segment<sgd, 1, wide>(&segment, scalars, u->keys, u->wrong);
        break;
    case BASE_RULE_LION:
        update_segment<lion, 1, wide>(&segment, scalars, u->keys, u->wrong);
        break;
    case BASE_RULE_ADAGRAD:
        update_segment<adagrad, 1, wide>(&segment, scalars, u->keys, u->wrong);
        break;
    case BASE_RULES:
        break;
    }
}

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_update(struct base_device_update u)
{
    update<true>(&u);
}

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_update_rounded(struct base_device_update u)
{
    update<false>(&u);
}

/* ------------------------------------------------------------------ sum */

/**
 * A thread has one lane of a granule: elements lane, lane + 16, ... It adds their squares in the
 * order that defines the sum, in a register, and reads STRIP elements at once, so that enough bytes
 * are under way.
 */
enum { STRIP = 8, LANE_STRIPS = BASE_GRANULE / BASE_SUM_LANES / STRIP };

/** Element i of an array. */
template <unsigned dtype> INLINE vector load_one(const void *from, size_t i)
{
    if (dtype == ZERO_F32)
        return ((const float *)from)[i];
    const words bits = ((const uint16_t *)from)[i];
    return dtype == ZERO_BF16 ? float_of(bits << 16) : from_f16((uint16_t)bits);
}

/** The lane's elements from i on. */
template <unsigned dtype> INLINE void load_strip(const void *from, size_t i, vector x[STRIP])
{
    for (unsigned j = 0; j < STRIP; j++)
        x[j] = load_one<dtype>(from, i + j * BASE_SUM_LANES);
}

INLINE void store_strip(float *to, size_t i, const vector x[STRIP])
{
    for (unsigned j = 0; j < STRIP; j++)
        to[i + j * BASE_SUM_LANES] = x[j];
}

INLINE const void *contribution(const struct base_device_sum *s, int k)
{
    return k == s->own_index ? s->own : (const unsigned char *)s->received + (size_t)k * s->stride;
}

/** Rare: a contribution of a micro-batch has an element of the lane, from i on, that is not finite;
 * the bucket begins at element `first`. */
static __device__ __noinline__ void report_strip(const void *from, unsigned dtype, size_t i,
                                                 uint64_t *bad, uint64_t micro, uint64_t first)
{
    for (unsigned j = 0; j < STRIP; j++) {
        const size_t element = i + j * BASE_SUM_LANES;
        vector x[FOUR];
        load_any(dtype, from, element, 1, x);
        if (!is_finite(x[0]))
            report(bad, micro, first + element);
    }
}

/** The lane's elements from i on; their sums so far, if a block was finished. */
template <unsigned dtype>
INLINE void sum_strip(const struct base_device_sum *s, size_t i, vector total[STRIP])
{
    vector block[STRIP];
    bool stores = s->store, finite = true;
    uint32_t place = (uint32_t)s->number % s->sum_group; // in its block, of the next contribution
    if (place > 0)
        load_strip<ZERO_F32>(s->block, i, block);
    if (!stores)
        load_strip<ZERO_F32>(s->accumulator, i, total);
    for (int k = 0; k < s->count; k++) {
        vector x[STRIP];
        load_strip<dtype>(contribution(s, k), i, x);
        for (int j = 0; j < STRIP; j++) {
            finite = finite & is_finite(x[j]);
            block[j] = canonical(place == 0 ? x[j] : add(block[j], x[j]));
        }
        place = place + 1 < s->sum_group && !(s->last && k == s->count - 1) ? place + 1 : 0;
        if (place > 0)
            continue;
        for (int j = 0; j < STRIP; j++)
            total[j] = stores ? block[j] : canonical(add(total[j], block[j]));
        stores = false;
    }
    for (int k = 0; !finite && s->bad && k < s->count; k++) // before the sum is stored there
        report_strip(contribution(s, k), s->dtype, i, s->bad, s->number + (uint64_t)k, s->element);
    if (!stores && s->accumulator)
        store_strip(s->accumulator, i, total);
    if (place > 0)
        store_strip(s->block, i, block);
}

/** Sums a lane of a granule; returns its squares. */
template <unsigned dtype> INLINE double sum_lane(const struct base_device_sum *s, size_t first)
{
    double squares = 0;
    for (unsigned strip = 0; strip < LANE_STRIPS; strip++) {
        vector total[STRIP] = {0};
        sum_strip<dtype>(s, first + strip * STRIP * BASE_SUM_LANES, total);
        for (int j = 0; s->squares && j < STRIP; j++)
            squares = __fma_rn((double)total[j], (double)total[j], squares);
    }
    return squares;
}

/** The squares of a lane of the only contribution, which stays where it is. Two strips at once. */
template <unsigned dtype> INLINE double square_lane(const struct base_device_sum *s, size_t first)
{
    double squares = 0;
    for (unsigned strip = 0; strip < LANE_STRIPS; strip += 2) {
        const size_t i = first + strip * STRIP * BASE_SUM_LANES, next = i + STRIP * BASE_SUM_LANES;
        const void *from = contribution(s, 0);
        vector x[2 * STRIP];
        bool finite = true;
        load_strip<dtype>(from, i, x);
        load_strip<dtype>(from, next, x + STRIP);
        for (int j = 0; j < 2 * STRIP; j++) {
            finite = finite & is_finite(x[j]);
            squares = __fma_rn((double)x[j], (double)x[j], squares);
        }
        if (finite || !s->bad)
            continue;
        report_strip(from, dtype, i, s->bad, s->number, s->element);
        report_strip(from, dtype, next, s->bad, s->number, s->element);
    }
    return squares;
}

template <unsigned dtype> INLINE double take_lane(const struct base_device_sum *s, size_t first)
{
    return s->accumulator || s->count > 1 ? sum_lane<dtype>(s, first)
                                          : square_lane<dtype>(s, first);
}

/** Adds a granule's lanes, those that are 8 apart first, then 4, 2, 1. */
INLINE void add_lanes(const struct base_device_sum *s, size_t granule, double *lanes)
{
    const unsigned lane = threadIdx.x % BASE_SUM_LANES;
    for (unsigned left = BASE_SUM_LANES / 2; left > 0; left /= 2) {
        __syncthreads();
        if (lane < left)
            lanes[threadIdx.x] = __dadd_rn(lanes[threadIdx.x], lanes[threadIdx.x + left]);
    }
    if (lane > 0 || granule >= s->granules)
        return;
    const double sum = lanes[threadIdx.x];
    const bool is_nan = !(sum <= __longlong_as_double(0x7ff0000000000000));
    s->squares[granule] = is_nan ? __longlong_as_double(0x7ff8000000000000) : sum;
}

/** A block a tile of some granules. */
extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_sum(struct base_device_sum s)
{
    __shared__ double lanes[BASE_CUDA_THREADS];
    const size_t granule = (size_t)blockIdx.x * BASE_CUDA_TILE + threadIdx.x / BASE_SUM_LANES;
    const size_t first = granule * BASE_GRANULE + threadIdx.x % BASE_SUM_LANES;
    double squares = 0; // of granules that are not there, too
    if (granule < s.granules)
        squares = s.dtype == ZERO_F32    ? take_lane<ZERO_F32>(&s, first)
                  : s.dtype == ZERO_BF16 ? take_lane<ZERO_BF16>(&s, first)
                                         : take_lane<ZERO_F16>(&s, first);
    if (!s.squares)
        return;
    lanes[threadIdx.x] = squares;
    add_lanes(&s, granule, lanes);
}

/* ------------------------------------------------------------------ one contribution */

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_add(struct base_device_addition a)
{
    const size_t i = FOUR * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.count)
        return;
    const unsigned n = a.count - i < FOUR ? (unsigned)(a.count - i) : (unsigned)FOUR;
    vector total[FOUR], x[FOUR];
    load_any(a.dtype, a.to, i, n, total);
    load_any(a.dtype, a.from, i, n, x);
    for (int j = 0; j < FOUR; j++)
        total[j] = add(total[j], x[j]);
    store_nearest(a.dtype, a.to, i, n, total);
}

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_search(struct base_device_search s)
{
    const size_t i = FOUR * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= s.count)
        return;
    const unsigned n = s.count - i < FOUR ? (unsigned)(s.count - i) : (unsigned)FOUR;
    vector x[FOUR];
    load_any(s.dtype, s.values, i, n, x);
    for (unsigned j = 0; j < n; j++)
        if (!is_finite(x[j]))
            report(s.bad, s.number, i + j);
}

/** A block a gap. */
extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_clear(struct base_device_clearing c)
{
    const struct base_device_gap gap = c.gaps[blockIdx.x];
    uint16_t *to = (uint16_t *)((unsigned char *)c.buffer + gap.first);
    for (size_t i = threadIdx.x; i < gap.bytes / sizeof *to; i += blockDim.x)
        to[i] = 0;
}

/* ------------------------------------------------------------------ squares, conversion */

/** Adds a value to the limbs of an exact sum, without carrying: base/exact_sum.h. */
INLINE void add_exactly(unsigned long long *limbs, double value)
{
    const struct base_exact_addend addend = base_exact_split((uint64_t)__double_as_longlong(value));
    for (int i = 0; i < 3; i++)
        atomicAdd(&limbs[addend.first + i], (unsigned long long)addend.digit[i]);
}

/** Every block adds a part of them up by itself first. */
extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_squares(struct base_device_squares q)
{
    __shared__ unsigned long long limbs[BASE_EXACT_SUM_LIMBS];
    if (threadIdx.x < BASE_EXACT_SUM_LIMBS)
        limbs[threadIdx.x] = 0;
    if (threadIdx.x == 0 && q.wrong && *q.wrong != 0xffffffffffffffff)
        *q.overflow = 1;
    __syncthreads();
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < q.count; i += step) {
        if (!(q.squares[i] <= 1e300))
            *q.overflow = 1;
        else
            add_exactly(limbs, q.squares[i]);
    }
    __syncthreads();
    if (threadIdx.x < BASE_EXACT_SUM_LIMBS && limbs[threadIdx.x] > 0)
        atomicAdd((unsigned long long *)q.limbs + threadIdx.x, limbs[threadIdx.x]);
}

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_convert(struct base_device_conversion c)
{
    const size_t i = FOUR * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= c.count)
        return;
    const unsigned n = c.count - i < FOUR ? (unsigned)(c.count - i) : (unsigned)FOUR;
    vector x[FOUR];
    load_any(c.from_dtype, c.from, i, n, x);
    store_nearest(c.to_dtype, c.to, i, n, x);
}

/* ------------------------------------------------------------------ verdict */

#include "base/kernels/judge.h"

/* ------------------------------------------------------------------ fingerprint */

#include "base/kernels/digest.h"
