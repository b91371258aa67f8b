/**
 * zero/schedule.h: learning rates. Part of <zero/zero.h>, which includes it. Every function is
 * pure.
 */
#ifndef ZERO_SCHEDULE_H
#define ZERO_SCHEDULE_H

#include <zero/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** lr of step n (from 1): linear from lr/warmup to lr over `warmup` steps, then constant. */
ZERO_API double zero_schedule_constant(uint64_t n, double lr, uint64_t warmup);
/** lr of step n: that warm-up, then linear from lr to min_lr. It stays there from n = total on. */
ZERO_API double zero_schedule_linear(uint64_t n, double lr, uint64_t warmup, uint64_t total,
                                     double min_lr);
/** lr of step n: that warm-up, then half a cosine from lr to min_lr. It stays there from n =
 * total on.
 * Source: Loshchilov, Hutter, SGDR (2017), section 3, without restarts. */
ZERO_API double zero_schedule_cosine(uint64_t n, double lr, uint64_t warmup, uint64_t total,
                                     double min_lr);
/** Linear scaling rule: base_lr * batch / base_batch (Goyal et al. 2017, section 2.1). */
ZERO_API double zero_schedule_scaled(double base_lr, uint64_t batch, uint64_t base_batch);

#ifdef __cplusplus
}
#endif

#endif
