// Whether what updates have made is finite, as exec/update_alarm.c finds. An update is in place, so
// there is no way back. A value that is not finite ends the context, whatever the policy. It does
// so before zero_step() has returned, and so before a program or a checkpoint can see the value.

#include "zero/step/outcome.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/exec/update_alarm.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ what may go wrong */

/** What weights and moments are below, if none is large: all but pairs of a weight and a moment of
 * which one is large and the other one small, as no training makes them. */
#define LARGE ((double)BASE_ALARM)

/** Whether an update of values that are not large could overflow all the same. */
static bool may_overflow(const struct eng_group *group, const zero_hyper *hyper, double gradient)
{
    enum { SLOWEST = 1 << 24 }; // 1 / (1 - beta) is not above it in fp32
    const bool l2 = group->choice.decay == ZERO_DECAY_L2;
    const double g = gradient + (l2 ? hyper->weight_decay * LARGE : 0);
    const double steps = hyper->lr * SLOWEST * LARGE;
    if (group->choice.own || !(g < 0x1p63) || !(steps < 0x1p120))
        return true;
    return group->optimizer->divides && !(steps < hyper->eps * 0x1p120);
}

/** Whether some weight or moment of this rank is large, or no update has looked. */
static void fill_large(const zero_ctx *z, unsigned char *mine)
{
    // In a fused step a part of the update is made by now.
    *mine = z->stepping.outcome.large || z->stepping.outcome.small != z->publication.version;
}

static zero_result hear_large(zero_ctx *z, const unsigned char *all, size_t stride)
{
    z->stepping.outcome.some_large = false;
    for (int rank = 0; rank < z->config.world; rank++)
        if (all[(size_t)rank * stride])
            z->stepping.outcome.some_large = true;
    return ZERO_OK;
}

const struct eng_exchange_part eng_outcome_part = {
    .name = "large values",
    .kinds = ENG_EXCHANGE_STEP,
    .bytes = 1,
    .fill = fill_large,
    .hear = hear_large,
};

void eng_outcome_begin(zero_ctx *z, double gradient)
{
    bool doubtful = z->stepping.outcome.some_large;
    for (size_t g = 0; g < z->model.group_count; g++)
        if (!z->model.groups[g].frozen)
            doubtful =
                doubtful || may_overflow(&z->model.groups[g], &z->stepping.hyper[g], gradient);
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        doubtful = doubtful || (z->io[s].trains && z->layout.buckets[s].dtype == ZERO_F16);
    z->stepping.outcome.doubtful = doubtful;
}

/* ------------------------------------------------------------------ what all ranks are told */

/** All ranks' first one. It is a part of the update: a step has one verdict in a trace. */
static zero_result share(zero_ctx *z, struct eng_wrong *first)
{
    const struct eng_wrong own = *first;
    const zero_result r = coll_exchange(z->comm, &own, sizeof own, z->stepping.exchange.room.all);
    for (int rank = 0; !r && rank < z->config.world; rank++) {
        struct eng_wrong theirs;
        memcpy(&theirs, z->stepping.exchange.room.all + (size_t)rank * sizeof theirs,
               sizeof theirs);
        eng_wrong_min(first, &theirs);
    }
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

/** What was made of it, in words. */
static void tell_value(const struct eng_wrong *wrong, char *text, size_t size)
{
    if (wrong->field == ENG_WRONG_WEIGHT)
        snprintf(text, size, "the weight becomes %g in", (double)wrong->value);
    else if (wrong->field == ENG_WRONG_COPY)
        snprintf(text, size,
                 "the weight becomes %.9g, for which the working copy has no number, in",
                 (double)wrong->value);
    else if (wrong->field == ENG_WRONG_SOMETHING)
        snprintf(text, size, "the weight, its working copy or a moment overflows in");
    else
        snprintf(text, size, "moment %u becomes %g in", wrong->field - ENG_WRONG_MOMENT + 1,
                 (double)wrong->value);
}

zero_result eng_outcome_fail(zero_ctx *z, const struct eng_wrong *wrong, uint64_t step, bool agreed)
{
    assert(wrong->param < z->model.param_count);
    char value[96], message[512];
    tell_value(wrong, value, sizeof value);
    snprintf(message, sizeof message,
             "step %llu: every gradient is finite, but what the update makes is not: %s %s, slice "
             "%llu, element %llu; nothing of it is published or saved: start again from a "
             "checkpoint, with a smaller scale or learning rate, or with clipping",
             (unsigned long long)step, value, z->model.params[wrong->param].name,
             (unsigned long long)wrong->slice, (unsigned long long)wrong->element);
    z->stepping.result.bad_param = (zero_param)wrong->param;
    z->stepping.result.bad_slice = (int32_t)wrong->slice;
    z->stepping.result.bad_element = wrong->element;
    return agreed ? eng_fail_agreed(z, ZERO_E_NONFINITE, "%s", message)
                  : eng_fail(z, ZERO_E_NONFINITE, "%s", message);
}

zero_result eng_outcome_all(zero_ctx *z, struct eng_wrong first, uint64_t step)
{
    const zero_result r = share(z, &first);
    return r || first.param == UINT64_MAX ? r : eng_outcome_fail(z, &first, step, true);
}

zero_result eng_outcome_agree(zero_ctx *z, uint64_t step)
{
    struct eng_wrong first = z->stepping.outcome.first;
    const bool asks = z->update.parted && z->stepping.outcome.doubtful;
    const zero_result r = asks ? share(z, &first) : ZERO_OK;
    if (r)
        return r;
    if (first.param != UINT64_MAX)
        return eng_outcome_fail(z, &first, step, asks || !z->update.parted);
    if (!z->stepping.outcome.large)
        z->stepping.outcome.small = z->publication.version;
    z->stepping.outcome.large = false;
    return ZERO_OK;
}
