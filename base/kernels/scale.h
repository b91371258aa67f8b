/**
 * The loss scale: what a program multiplies its loss by so that small gradients survive in f16, and
 * the step divides away. A state machine of its own: it knows steps, clean or not, and nothing
 * else. And which gradients are too large for an update.
 *
 * A dynamic scale is halved by a step whose gradients are not finite, and doubled by `window` clean
 * steps in a row. Source: Micikevicius et al., Mixed Precision Training (2018), section 3.2;
 * numbers as NVIDIA's Apex and PyTorch have them.
 */
#ifndef BASE_KERNELS_SCALE_H
#define BASE_KERNELS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

/** Devices judge steps, too: their code says what its functions are. */
#ifndef ENG_SCALE_INLINE
#define ENG_SCALE_INLINE static inline
#endif

/** A dynamic scale grows no further: its inverse is far from fp32's denormals. */
#define ENG_SCALE_MOST 0x1p64

struct eng_scale {
    double value; /**< 1 if there is none */
    bool dynamic;
    double least;    /**< dynamic: the floor */
    uint64_t window; /**< dynamic: clean steps in a row that double it */
    uint64_t clean;  /**< how many there were since it last changed */
};

/** Whether optimizers can take a gradient of this norm that is multiplied by `clip`: neither it nor
 * its square is above what they hold. */
ENG_SCALE_INLINE bool eng_gradient_fits(double norm, double clip, double most)
{
    return norm * clip <= most;
}

/** What gradients of this norm are multiplied by, so that it is at most max_norm; 0: they are not
 * clipped. */
ENG_SCALE_INLINE double eng_clip(double norm, double max_norm)
{
    const double clip = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
    return clip < 1 ? clip : 1;
}

/** After a clean step; true if the scale has grown. */
ENG_SCALE_INLINE bool eng_scale_clean(struct eng_scale *scale)
{
    if (!scale->dynamic || ++scale->clean < scale->window)
        return false;
    scale->clean = 0;
    if (scale->value * 2 > ENG_SCALE_MOST)
        return false;
    scale->value *= 2;
    return true;
}

/** After a step whose gradients are not finite. False: it is dynamic, and at its floor already. */
ENG_SCALE_INLINE bool eng_scale_overflow(struct eng_scale *scale)
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

#endif
