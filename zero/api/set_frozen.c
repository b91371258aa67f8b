// A group is frozen, or trains again, between steps.

#include "zero/core/api_call.h"
#include "zero/param/frozen.h"
#include "zero/step/micro_batch.h"

static zero_result set_frozen(zero_ctx *z, zero_group group, bool frozen)
{
    if (group < 0 || (size_t)group >= z->model.group_count)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_set_frozen: group %d does not exist: there are %zu", group,
                        z->model.group_count);
    zero_result r = eng_between_steps(z, "zero_set_frozen");
    if (!r)
        r = eng_same(z, (uint64_t)group << 1 | frozen, "what zero_set_frozen is to do");
    if (r)
        return r;
    z->model.groups[group].frozen = frozen;
    eng_frozen_refresh(z);
    return ZERO_OK;
}

zero_result zero_set_frozen(zero_ctx *z, zero_group group, int32_t frozen)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_set_frozen");
    if (!r)
        r = set_frozen(z, group, frozen != 0);
    return eng_leave(z, r);
}
