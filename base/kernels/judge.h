/**
 * base/kernels/judge.h: the verdict on a step, for kernels_cuda.cu, which includes it behind its
 * operations. One block: its first thread decides, then all of them carry out.
 */
#ifndef BASE_KERNELS_JUDGE_H
#define BASE_KERNELS_JUDGE_H

/** The sum of all ballots' squares, rounded once. */
INLINE double rounded_sum(const struct base_device_judgement *j)
{
    struct base_exact_sum sum;
    for (int i = 0; i < BASE_EXACT_SUM_LIMBS; i++) {
        sum.limb[i] = 0;
        for (size_t r = 0; r < j->ranks; r++)
            sum.limb[i] += j->ballots[r].limbs[i];
    }
    return base_exact_round(&sum);
}

INLINE bool all_finite(const struct base_device_judgement *j)
{
    for (size_t r = 0; r < j->ranks; r++)
        if (j->ballots[r].overflow)
            return false;
    return true;
}

/** What all threads carry out. */
struct decision {
    uint64_t which; /**< of the updates that are prepared */
    float gradient_scale;
    bool updates;
};

INLINE void decide(const struct base_device_judgement *j, struct decision *decision)
{
    struct base_device_course course = j->known ? j->given : *j->course;
    const double scale = j->scale / course.scale.value;
    double norm = __longlong_as_double(0x7ff8000000000000);
    if (all_finite(j))
        norm = base_step_norm(rounded_sum(j), scale);
    const double clip = base_clip(norm, j->max_norm);
    const bool finite =
        j->fused || (base_norm_finite(norm) && base_gradient_fits(norm, clip, j->most));
    decision->which = course.updates + 1 - j->first_update;
    decision->gradient_scale = (float)(scale * clip);
    decision->updates = finite && !course.halted;
    *j->gate = decision->updates;
    if (j->fused)
        return;
    if (decision->updates) {
        course.updates++;
        course.skips = 0;
        base_scale_clean(&course.scale);
    } else if (!course.halted) {
        course.skips++;
        course.halted = base_skip_step(&course.scale, course.skips, course.skip_limit) != BASE_SKIP;
    }
    *j->course = course;
    j->record->norm = norm;
    j->record->finite = finite;
    j->record->wrong = *j->wrong;
}

extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_judge(struct base_device_judgement j)
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
