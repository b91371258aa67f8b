/**
 * base/kernels/decide.h: the decision about a step, for the host and for GPUs. It has the norm of
 * the gradient, the factor that clips it, whether the step counts as finite and may be skipped, and
 * the next loss scale.
 *
 * The loss scale is what a program multiplies its loss by so that small gradients survive in f16;
 * the step divides it away. A dynamic scale is halved by a step whose gradients are not finite, and
 * doubled by `window` clean steps in a row. Source: Micikevicius et al., Mixed Precision Training
 * (2018), section 3.2; numbers as NVIDIA's Apex and PyTorch have them.
 */
#ifndef BASE_KERNELS_DECIDE_H
#define BASE_KERNELS_DECIDE_H

#include "base/formula.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------------ norm and clipping */

/** The norm of the gradient that optimizers are given: `scale` times the sums whose squares add up
 * to `squares`. */
BASE_FORMULA double base_step_norm(double squares, double scale)
{
    return sqrt(squares) * fabs(scale);
}

/** Whether a norm is a number. */
BASE_FORMULA bool base_norm_finite(double norm)
{
    return norm <= DBL_MAX;
}

/** The factor that clips a gradient of this norm to max_norm; 1 if max_norm is 0: no clipping. */
BASE_FORMULA double base_clip(double norm, double max_norm)
{
    const double clip = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
    return clip < 1 ? clip : 1;
}

/** Whether optimizers can take a gradient of this norm that is multiplied by `clip`: neither it nor
 * its square is above what they hold. */
BASE_FORMULA bool base_gradient_fits(double norm, double clip, double most)
{
    return norm * clip <= most;
}

/* ------------------------------------------------------------------ loss scale */

/** A dynamic scale grows no further: its inverse is far from fp32's denormals. */
#define BASE_SCALE_MOST 0x1p64

struct base_scale {
    double value; /**< 1 if there is none */
    bool dynamic;
    double least;    /**< dynamic: the floor */
    uint64_t window; /**< dynamic: clean steps in a row that double it */
    uint64_t clean;  /**< how many there were since it last changed */
};

/** After a clean step; true if the scale has grown. */
BASE_FORMULA bool base_scale_clean(struct base_scale *scale)
{
    if (!scale->dynamic || ++scale->clean < scale->window)
        return false;
    scale->clean = 0;
    if (scale->value * 2 > BASE_SCALE_MOST)
        return false;
    scale->value *= 2;
    return true;
}

/** After a step whose gradients are not finite. False: it is dynamic, and at its floor already. */
BASE_FORMULA bool base_scale_overflow(struct base_scale *scale)
{
    if (!scale->dynamic)
        return true;
    if (scale->value <= scale->least)
        return false;
    const double halved = scale->value / 2;
    scale->value = halved < scale->least ? scale->least : halved;
    scale->clean = 0;
    return true;
}

/* ------------------------------------------------------------------ skips */

/** What becomes of a step that is not finite. */
enum base_skip {
    BASE_SKIP,          /**< it is skipped */
    BASE_SKIP_TOO_MANY, /**< too many in a row */
    BASE_SKIP_AT_FLOOR, /**< the loss scale is at its floor */
};

/** Says so, and halves the scale. skips: steps in a row that were not finite, this one included;
 * limit: how many of them may be skipped, 0 where no step is. */
BASE_FORMULA enum base_skip base_skip_step(struct base_scale *scale, uint64_t skips, uint64_t limit)
{
    if (skips > limit)
        return BASE_SKIP_TOO_MANY;
    return base_scale_overflow(scale) ? BASE_SKIP : BASE_SKIP_AT_FLOOR;
}

#endif
