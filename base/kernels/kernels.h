/**
 * The arithmetic of a step, one table an instruction set.
 *
 * kernels_loop.h has every function's arithmetic once, over vectors of any length; kernels_ref.c,
 * where a vector is one element, defines the bits: explicit fma, nothing left to the compiler.
 * Every other table gives the same bits for every input, NaN, infinities and denormals included, at
 * any count and alignment. NaN results are written as 0x7fc00000 (bf16: 0x7fc0, f16: 0x7e00). All
 * functions are local, allocate nothing, and expect the floating-point environment of
 * base_fp_enter().
 */
#ifndef BASE_KERNELS_KERNELS_H
#define BASE_KERNELS_KERNELS_H

#include "zero/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Elements of a granule: the unit of layout, norm and fingerprint. */
#define BASE_GRANULE 1024

/** Every rule has at least one moment. */
#define BASE_MAX_MOMENTS 2

/** The arithmetic of an update, written in rules.h. */
enum base_rule {
    BASE_RULE_ADAM, /**< AdamW, and Adam with L2 decay */
    BASE_RULE_SGD,  /**< with momentum */
    BASE_RULE_LION,
    BASE_RULE_ADAGRAD,
    BASE_RULES
};

/** Scalars of one update, computed once a group and step in fp64, rounded once to fp32. Those that
 * a rule does not name play no part in it. */
struct base_rule_scalars {
    enum base_rule rule;  /**< whose they are */
    float gradient_scale; /**< scale * clip coefficient */
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;                   /**< lr * weight_decay, or, if l2, weight_decay */
    float step_size;               /**< adam: lr / (1 - beta1^updates); else lr */
    float inverse_sqrt_correction; /**< 1 / sqrt(1 - beta2^updates) */
    float eps;
    bool l2;       /**< decay is added to the gradient; else the weight decays by itself */
    bool nesterov; /**< sgd */
};

/** What one update works on: `count` elements of one slice, all of one group. */
struct base_update {
    size_t count;
    const float *gradient; /**< the canonical sum over micro-batches */
    float *moment[BASE_MAX_MOMENTS];
    float *weight;         /**< fp32 master */
    uint16_t *work;        /**< receives the new weight, rounded to nearest even; may be NULL */
    zero_dtype work_dtype; /**< ZERO_BF16 or ZERO_F16, also of a copy that is made later */
    bool past_caches; /**< work is stored past the caches: it does not fit there and is not read
                         soon; no effect on bits */
    bool *alarm;      /**< becomes true if a new weight, moment or work is not finite. Mostly
                           true if they are large: weights and moments above BASE_ALARM, or
                           weights whose work_dtype is ZERO_F16 above BASE_ALARM_F16. Now and then
                           true without a reason. NULL: not wanted */
};

/** While weights, moments and gradients are below, no update with sane hyper-parameters overflows
 * fp32. */
#define BASE_ALARM 0x1p64f
/** Bits of 2^15: the largest f16 is 65504. */
#define BASE_ALARM_F16 0x47000000

/** Updates a run of elements. */
typedef void (*base_update_fn)(const struct base_rule_scalars *scalars,
                               const struct base_update *run);

/** Whose sum is the gradient of a run: what each micro-batch contributes, as it came. */
struct base_contributions {
    const float *before;        /**< sums so far, from the run's first element on; NULL: none */
    zero_dtype dtype;           /**< of the sources: ZERO_F32, ZERO_BF16 or ZERO_F16 */
    const void *const *sources; /**< the first of which is added first */
    int count;                  /**< at least 1 */
    size_t first;               /**< element of each source that is the run's first */
};

/** Updates a run that begins with a granule, as far as the sums are finite; run->gradient is not
 * read. squares: sum_squares() of each granule, as far as its sums were all finite. NULL: the
 * caller needs none, and knows that all sums are finite. Returns how many elements it took; no
 * other was touched. */
typedef size_t (*base_update_sum_fn)(const struct base_rule_scalars *scalars,
                                     const struct base_update *run,
                                     const struct base_contributions *from, double *squares);

struct base_kernels {
    size_t size;
    const char *name; /**< "ref", "avx2", "avx512" */

    /** Whether this machine can run the table. */
    bool (*usable)(void);

    /**
     * One pass over memory. Every rule first scales the gradient and lets the weight decay,
     *   g = gradient * gradient_scale           w' = fma(-decay, weight, weight)
     * or, if l2,
     *   g = fma(decay, weight, gradient * gradient_scale)            w' = weight
     * Decay is subtracted instead of multiplied by 1 - lr * weight_decay, which fp32 rounds to
     * multiples of 2^-24: as much as the decay itself where the learning rate is small. Then
     *
     * BASE_RULE_ADAM (Kingma, Ba 2015, algorithm 1; Loshchilov, Hutter 2019, algorithm 2):
     *   m = fma(beta1, m, one_minus_beta1 * g)
     *   v = fma(beta2, v, (one_minus_beta2 * g) * g)
     *   w = fma(-step_size, m / fma(sqrt(v), inverse_sqrt_correction, eps), w')
     *
     * BASE_RULE_SGD (Polyak 1964; Nesterov's form by Sutskever et al. 2013), no dampening:
     *   m = fma(beta1, m, g)
     *   w = fma(-step_size, nesterov ? fma(beta1, m, g) : m, w')
     *
     * BASE_RULE_LION (Chen et al. 2023, algorithm 2); the sign of 0 is 0:
     *   w = fma(-step_size, sign(fma(beta1, m, one_minus_beta1 * g)), w')
     *   m = fma(beta2, m, one_minus_beta2 * g)
     *
     * BASE_RULE_ADAGRAD (Duchi, Hazan, Singer 2011, figure 1, diagonal):
     *   m = fma(g, g, m)
     *   w = fma(-step_size, g / (sqrt(m) + eps), w')
     *
     * where m is moment[0] and v moment[1].
     */
    base_update_fn update[BASE_RULES];

    /** Gives the bits of three passes: one that adds (plain fp32 additions in order), one that
     * squares, and update[]. */
    base_update_sum_fn update_sum[BASE_RULES];

    /**
     * Sums of squares of the sums of contributions, one a granule of `count` elements, in fp64: of
     * a granule, lane i mod 16 adds the squares of elements i in ascending order (fma(x, x, lane)),
     * then lanes are added as a tree: 16 to 8 (k + (k+8)), to 4, to 2, to 1. x * x is exact. Not
     * finite if one of the granule's sums is not; a NaN is 0x7ff8000000000000.
     */
    void (*sum_squares)(size_t count, const struct base_contributions *from, double *squares);

    /** fp32 to bf16, nearest even, denormals kept. */
    void (*to_bf16)(size_t count, const float *x, uint16_t *out);
    /** bf16 to fp32, exact; NaN canonical. */
    void (*from_bf16)(size_t count, const uint16_t *x, float *out);
    /** fp32 to f16, nearest even, denormals kept; 65520 and above is infinite, a NaN 0x7e00. */
    void (*to_f16)(size_t count, const float *x, uint16_t *out);
    /** f16 to fp32, exact; NaN canonical. */
    void (*from_f16)(size_t count, const uint16_t *x, float *out);

    /**
     * fp32 to bf16, stochastic: up (away from zero) with the probability with which the mean is
     * the value. x[i] is element first + i of whatever `key` stands for; the result is a pure
     * function of (key, first + i, x[i]), wherever a run begins. A representable value stays what
     * it is, an infinity too; a NaN is 0x7fc0. Between the largest number and infinity the latter
     * counts as 2^128.
     *
     * Random numbers: of every 128 elements number e (0 .. 127) takes half e / 16 (0 the low one of
     * word 0, 1 the high one, 2 the low one of word 1, ...) of the block that zero_philox() makes
     * of key and counter 16 * (element / 128) + e mod 16.
     */
    void (*round_bf16)(uint64_t key, uint64_t first, size_t count, const float *x, uint16_t *out);

    /**
     * Rounds to f16, denormals included. Number e of every 64 elements takes word e / 16 of the
     * block of counter 16 * (element / 64) + e mod 16, and of it the high 31 bits. Probabilities
     * are exact for 2^-31 and above, and rounded down to multiples of 2^-31 below. A NaN is 0x7e00,
     * 65536 and above infinite, and infinity counts as 65536.
     */
    void (*round_f16)(uint64_t key, uint64_t first, size_t count, const float *x, uint16_t *out);
};

/** The table called `name`, or for "auto" the best this machine can run; NULL if there is none or
 * the machine can't run it. *Local*; reads system files, so once a context. */
const struct base_kernels *base_kernels_find(const char *name);

/** The i-th table built in (0 is "ref"), NULL past the end. For tests. */
const struct base_kernels *base_kernels_at(size_t i);

/** Floating-point state of the calling thread, saved. */
struct base_fp_state {
    uint32_t control;
};

/** Sets round to nearest, denormals kept, no traps; saves what was. */
void base_fp_enter(struct base_fp_state *saved);
/** Puts the saved state back. */
void base_fp_leave(const struct base_fp_state *saved);

#endif
