/**
 * The whole training of the synthetic model in long double: canonical sum, loss scale, norm,
 * clipping, every optimizer with either decay, steps that are skipped; with a bound on how far fp32
 * may be from each value (optimizer_reference.h).
 *
 * A value that is stored with 16 bits is rounded here, too, to nearest or by the same random
 * numbers (rounding_reference.h): exactly, unless the bound reaches over a point where rounding
 * changes. Then it is the distance of the two results.
 *
 * Written from the documentation and not from the engine; it shares with the program only the
 * ingredients of the gradient's formula.
 */
#ifndef TESTS_NUMERICS_SYNTHETIC_REFERENCE_H
#define TESTS_NUMERICS_SYNTHETIC_REFERENCE_H

#include "tests/numerics/optimizer_reference.h"
#include "tests/numerics/synthetic.h"

struct synthetic_reference {
    const struct synthetic *model;
    uint64_t step, updates; /**< done */
    double loss_scale;      /**< of the next step */
    int clean;              /**< steps since it last changed */
    bool finite;            /**< the last step's gradients */
    bool skipped;           /**< it updated nothing */
    bool doubtful; /**< fp32 may have found a gradient finite that overflows here, or the reverse */
    struct reference_element *elements[SYNTHETIC_TENSORS]; /**< slice after slice */
    struct reference_value *sums[SYNTHETIC_TENSORS];       /**< over the step's micro-batches */
    struct reference_value *work[SYNTHETIC_TENSORS];       /**< working copies */
    struct reference_value norm, clip, loss;               /**< of the last step */
};

/** The model with its first values; false if there is no memory. Model is borrowed. */
bool synthetic_reference_init(struct synthetic_reference *reference, const struct synthetic *model);
void synthetic_reference_free(struct synthetic_reference *reference);

/** One step. */
void synthetic_reference_step(struct synthetic_reference *reference);

/** Master weight and moments of an element. */
const struct reference_element *
synthetic_reference_element(const struct synthetic_reference *reference, zero_param param,
                            int32_t slice, uint64_t element);

/** The working copy's value: the master, or what it is rounded to. */
struct reference_value synthetic_reference_work(const struct synthetic_reference *reference,
                                                zero_param param, int32_t slice, uint64_t element);

/**
 * Takes over from the program what it stores of an element with 16 bits, where it is within its
 * bound: a working copy, which without a master is the weight, and a moment (0 or 1). Where the
 * bound reaches over a point of rounding, either result is right, and going on with both would
 * widen all bounds by what one of them is off.
 */
void synthetic_reference_adopt(struct synthetic_reference *reference, zero_param param,
                               int32_t slice, uint64_t element, float work);
void synthetic_reference_adopt_moment(struct synthetic_reference *reference, zero_param param,
                                      int32_t slice, uint64_t element, int which, float moment);

#endif
