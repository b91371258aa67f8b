/**
 * zero/tensors.h: several tensors in one call. Part of <zero/zero.h>, which includes it.
 *
 * Most trainers in C keep the tensors of a kind in one array, one layer behind the other, and reach
 * a layer's by `array + l * size`. With these calls such a trainer stays as it is:
 *
 *     for (i = 0; i < TENSORS; i++)                   a tensor an array, one unit a layer
 *         zero_add_tensor(z, names[i], numel[i], unit[i], layers[i], first_values[i]);
 *     zero_commit(z);
 *     ...
 *     for (l = 0; l < LAYERS; l++) {
 *         zero_unit_ptrs(z, 1 + l, &weights, &gradients, NULL);
 *         ...                                         weights.matrix + l * size
 *         zero_unit_done(z, 1 + l, NULL);
 *     }
 */
#ifndef ZERO_TENSORS_H
#define ZERO_TENSORS_H

#include <zero/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ registration */

/** A tensor of one dimension and type fp32 in unit 0, and its first values (NULL: zeros). */
static inline zero_param_desc zero_param_vector(const char *name, uint64_t numel, const float *data)
{
    zero_param_desc desc = zero_param_default();
    desc.name = name;
    desc.ndim = 1;
    desc.shape[0] = numel;
    desc.data = data;
    return desc;
}

/**
 * A tensor of type fp32 with `numel` elements in all, and its first values (NULL: zeros).
 *
 * With unit_count 1 it is a vector in `unit`. Otherwise it is stacked, with a slice of numel /
 * unit_count elements in each of the units unit, unit + 1, ..., and first values one slice behind
 * the other. If unit_count does not divide numel zero_add_param() refuses it.
 */
static inline zero_param_desc zero_param_stacked(const char *name, uint64_t numel, zero_unit unit,
                                                 int32_t unit_count, const float *data)
{
    zero_param_desc desc = zero_param_vector(name, numel, data);
    desc.unit = unit;
    desc.unit_count = unit_count;
    if (unit_count > 1 && numel % (uint64_t)unit_count == 0) {
        desc.ndim = 2;
        desc.shape[0] = (uint64_t)unit_count;
        desc.shape[1] = numel / (uint64_t)unit_count;
    }
    return desc;
}

/** Registers what zero_param_stacked() describes. Its id is the number of tensors before it.
 *
 * Errors as of zero_add_param(), which zero_commit() repeats: a loop over a table may go unchecked.
 */
static inline zero_result zero_add_tensor(zero_ctx *z, const char *name, uint64_t numel,
                                          zero_unit unit, int32_t unit_count, const float *data)
{
    const zero_param_desc desc = zero_param_stacked(name, numel, unit, unit_count, data);
    return zero_add_param(z, NULL, &desc);
}

/* ------------------------------------------------------------------ a unit's pointers */

/**
 * Where the whole tensor would begin if it lay around `slice` as in an array of its own. *Local.*
 *
 * It is zero_param_ptr(z, param, slice) - slice * (elements of a slice). So `base + slice *
 * elements` is the slice, at every stage, and the rest of that array is not there: other slices of
 * the tensor have other bases. With `borrow` it is that buffer. It is NULL, and valid, as
 * zero_param_ptr() for that slice. With paranoid=1 any other slice of the array faults, and the
 * message names the tensor.
 */
ZERO_API const void *zero_param_base(zero_ctx *z, zero_param param, int32_t slice);

/** zero_param_base() of the gradient: zero_grad_ptr(z, param, slice) - slice * (elements of a
 * slice). *Local.* */
ZERO_API void *zero_grad_base(zero_ctx *z, zero_param param, int32_t slice);

/**
 * Makes a unit usable and says where it is: zero_gather() if `params` is given, zero_grad_open() if
 * `grads` is. *Collective, ordered.* Outside of backward passes grads is NULL.
 *
 * Each is the address of an array of pointers, one a tensor in order of registration, or of a
 * struct of such pointers: `float *weight[TENSORS]` as well as `struct { float *wte, *wpe; ... }`.
 * The pointer of every tensor with a slice in the unit becomes the base of that slice, by
 * zero_param_base() or zero_grad_base(). The gradient's of a frozen tensor becomes NULL. Pointers
 * of other tensors stay. Parameters are read-only, whatever the pointer's type says.
 *
 * A tensor has one pointer there. A program that has two of its slices open at once takes the first
 * one's address before it asks for the second's. A unit of nothing but frozen tensors has no
 * gradient to be opened, and that is no error here.
 *
 * It returns what zero_gather() or zero_grad_open() does. If the gradient can't be opened, the unit
 * is not gathered either. After an error the pointers are what zero_param_base() and
 * zero_grad_base() give then: NULL or, after a fatal one, memory that no other call uses.
 * ZERO_E_INVALID: params and grads are both NULL.
 */
ZERO_API zero_result zero_unit_ptrs(zero_ctx *z, zero_unit unit, void *params, void *grads,
                                    zero_stream stream);

/**
 * Ends what zero_unit_ptrs() began: zero_release() if the unit is gathered, then zero_grad_done()
 * if its gradient is open. *Collective, ordered.*
 *
 * A unit may stay open for its gradient while a part of the backward pass gathers it once more.
 * That part ends its own gather with zero_release().
 *
 * Errors as of zero_grad_done(). ZERO_E_STATE: the unit is neither gathered nor open.
 */
ZERO_API zero_result zero_unit_done(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * Brings every `borrow` buffer up to date, as a gather of all units would. *Collective, ordered*,
 * between steps; it waits for the values of the last step.
 *
 * It is for passes that gather nothing, such as a validation by functions that know the program's
 * own arrays only. Without a `borrow` it does nothing.
 * ZERO_E_STATE: the context is not committed, or a step or an evaluation is under way.
 */
ZERO_API zero_result zero_refresh(zero_ctx *z);

#ifdef __cplusplus
}
#endif

#endif
