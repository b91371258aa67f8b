/**
 * base/kernels/judge.h: the verdict on a step, for kernels_cuda.cu, which includes it behind its
 * operations. One block: its first thread decides, then all of them carry out.
 */
#ifndef BASE_KERNELS_JUDGE_H
#define BASE_KERNELS_JUDGE_H

/** What base_exact_sum_round() gives for the sum of all ballots, whose limbs are not negative. */
INLINE double rounded_sum(const struct eng_device_judgement *j)
{
    enum { LIMBS = BASE_EXACT_SUM_LIMBS, DROP = 11 };
    uint64_t digit[LIMBS], carry = 0;
    int top = -1;
    for (int i = 0; i < LIMBS; i++) {
        digit[i] = carry;
        for (size_t r = 0; r < j->ranks; r++)
            digit[i] += (uint64_t)j->ballots[r].limbs[i];
        carry = i < LIMBS - 1 ? digit[i] >> 32 : 0;
        digit[i] = i < LIMBS - 1 ? digit[i] & 0xffffffff : digit[i];
        top = digit[i] ? i : top;
    }
    if (top < 0)
        return 0;
    // The leading 64 bits, and whether there is anything below.
    const int room = __clzll((long long)digit[top]);
    uint64_t leading = digit[top] << room, below = 0;
    int next = top - 1;
    for (int i = 0; i < 2; i++, next--)
        below = below << 32 | (next >= 0 ? digit[next] : 0);
    leading |= room > 0 ? below >> (64 - room) : 0;
    bool cut = below << room != 0;
    for (; next >= 0; next--)
        cut = cut || digit[next] != 0;
    uint64_t kept = leading >> DROP;
    const uint64_t rest = leading & ((1u << DROP) - 1), tie = 1u << (DROP - 1);
    if (rest > tie || (rest == tie && (cut || (kept & 1))))
        kept++;
    return ldexp((double)kept, 32 * top - 1074 - room + DROP);
}

INLINE bool all_finite(const struct eng_device_judgement *j)
{
    for (size_t r = 0; r < j->ranks; r++)
        if (j->ballots[r].overflow)
            return false;
    return true;
}

/** A step that is not finite: skipped, or the last one. */
INLINE void count_skip(struct eng_device_course *course)
{
    course->skips++;
    if (course->skips > course->skip_limit || !eng_scale_overflow(&course->scale))
        course->halted = 1;
}

/** What all threads carry out. */
struct decision {
    uint64_t which; /**< of the updates that are prepared */
    float gradient_scale;
    bool updates;
};

INLINE void decide(const struct eng_device_judgement *j, struct decision *decision)
{
    struct eng_device_course course = j->known ? j->given : *j->course;
    const double scale = __ddiv_rn(j->scale, course.scale.value);
    double norm = __longlong_as_double(0x7ff8000000000000), clip = 1;
    if (all_finite(j))
        norm = __dmul_rn(__dsqrt_rn(rounded_sum(j)), fabs(scale));
    bool finite = norm <= 0x1.fffffffffffffp1023;
    if ((finite || j->fused) && j->max_norm > 0)
        clip = __ddiv_rn(j->max_norm, __dadd_rn(norm, 1e-6));
    finite = j->fused || (finite && eng_gradient_fits(norm, clip < 1 ? clip : 1, j->most));
    decision->which = course.updates + 1 - j->first_update;
    decision->gradient_scale = __double2float_rn(__dmul_rn(scale, clip < 1 ? clip : 1));
    decision->updates = finite && !course.halted;
    *j->gate = decision->updates;
    if (j->fused)
        return;
    if (decision->updates) {
        course.updates++;
        course.skips = 0;
        eng_scale_clean(&course.scale);
    } else if (!course.halted) {
        count_skip(&course);
    }
    *j->course = course;
    j->record->norm = norm;
    j->record->finite = finite;
    j->record->wrong = *j->wrong;
}

extern "C" __global__ void __launch_bounds__(ENG_CUDA_THREADS)
    eng_cuda_judge(struct eng_device_judgement j)
{
    __shared__ struct decision decision;
    if (threadIdx.x == 0)
        decide(&j, &decision);
    __syncthreads();
    for (size_t g = threadIdx.x; decision.updates && g < j.groups; g += blockDim.x) {
        j.scalars[g] = j.prepared[decision.which * j.groups + g];
        j.scalars[g].gradient_scale = decision.gradient_scale;
    }
    for (size_t k = threadIdx.x; decision.updates && k < j.key_count; k += blockDim.x)
        j.keys[k] = j.prepared_keys[decision.which * j.key_count + k];
    if (j.fused)
        return;
    for (size_t s = threadIdx.x; s < j.bad_count; s += blockDim.x) {
        j.blamed[s] = j.bad[s];
        j.bad[s] = 0xffffffffffffffff;
    }
    for (size_t r = 0; r < j.ranks; r++) {
        if (threadIdx.x < BASE_EXACT_SUM_LIMBS)
            j.ballots[r].limbs[threadIdx.x] = 0;
        if (threadIdx.x == 0)
            j.ballots[r].overflow = 0;
    }
}

#endif
