/**
 * units.h: the model's weights and gradients in zero's hands, a unit at a time.
 *
 * At f32, and on a GPU, the model works on zero's memory. At bf16 and f16 on the CPU a unit is
 * widened to fp32 after its gather, and its gradient is computed in fp32 and rounded when it is
 * handed over.
 */
#ifndef GPT2_UNITS_H
#define GPT2_UNITS_H

#include "compute.h"
#include "gpt2_pool.h"

#include <zero/zero.h>

struct units;

/**
 * Registers every tensor of the model with z, before its commit: group 0 those of two dimensions,
 * group 1 the others, both with this optimizer. `seed` draws the first values. `stream` is what
 * their work is queued on, NULL on the CPU. z and pool are borrowed. On failure *units is NULL.
 */
zero_result units_create(struct units **units, zero_ctx *z, const struct dims *dims,
                         zero_dtype dtype, const zero_group_desc *optimizer, uint64_t seed,
                         struct pool *pool, zero_stream stream);

/** Accepts NULL. */
void units_free(struct units *units);

/** Bytes held here: the CPU's fp32 copies at bf16 and f16. */
size_t units_bytes(const struct units *units);

/** Gathers a unit; the weights are good until units_close(). */
zero_result units_open(struct units *units, int unit, struct unit_weights *weights);

/** Releases it. */
zero_result units_close(struct units *units, int unit);

/** Opens the unit's gradient, of which every element is then to be written. */
zero_result units_open_gradient(struct units *units, int unit, struct unit_gradients *gradients);

/** Hands it over. */
zero_result units_close_gradient(struct units *units, int unit);

#endif
