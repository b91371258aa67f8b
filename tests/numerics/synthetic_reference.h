/**
 * The whole training of the synthetic model in long double: canonical sum, norm, clipping, decay,
 * bias correction; with a bound on how far fp32 may be from each value (optimizer_reference.h).
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
    uint64_t step;                                         /**< steps done */
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

/** Master weight of an element. */
struct reference_value synthetic_reference_weight(const struct synthetic_reference *reference,
                                                  zero_param param, int32_t slice,
                                                  uint64_t element);

/** The working copy's value: the master, or what it is rounded to. */
struct reference_value synthetic_reference_work(const struct synthetic_reference *reference,
                                                zero_param param, int32_t slice, uint64_t element);

/**
 * Takes an element's working copy over from the program, where it is within its bound. With 16
 * bits: where the bound reaches over a point of rounding, either result is right, and going on with
 * both would widen all bounds by what one of them is off.
 */
void synthetic_reference_adopt(struct synthetic_reference *reference, zero_param param,
                               int32_t slice, uint64_t element, float work);

#endif
