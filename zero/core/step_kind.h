/**
 * zero/core/step_kind.h: when a step updates: after its gradients, or while they come.
 *
 *     kind                                  updates
 *     after backward (step/zero_step.c)     in zero_step()
 *     in backward (step/fused.c)            as soon as all ranks have handed a gradient over
 *
 * A step is of the first kind until the program calls zero_step_in_backward(). The next step is
 * again. All functions are called once committed.
 */
#ifndef ZERO_CORE_STEP_KIND_H
#define ZERO_CORE_STEP_KIND_H

#include "zero/core/context.h"

struct eng_step_kind {
    bool in_backward; /**< ranks compare it when the step ends */
    /** The arguments of the step that ends; `user`: those of zero_step(), or NULL.
     * ZERO_E_INVALID: the user's are wrong, or others than the step has begun with. */
    zero_result (*args)(zero_ctx *z, const zero_step_args *user, zero_step_args *args);
    /** A unit's gradient is about to be handed over. ZERO_E_STATE: it may not be yet. */
    zero_result (*hand_over)(zero_ctx *z, zero_unit unit);
    /** Whether the step may end without an update: ZERO_E_STATE if not. */
    zero_result (*skip)(zero_ctx *z);
    /** The step has ended. */
    void (*ended)(zero_ctx *z);
};

#endif
