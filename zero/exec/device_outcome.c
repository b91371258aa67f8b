// What a step on the device has come to: squares, what is not finite, metrics and the verdict, on
// their way to the host, which waits for them when it must.

#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

/* ------------------------------------------------------------------ metrics */

static size_t metric_place(const zero_ctx *z, int metric, int micro)
{
    assert(metric >= 0 && metric < ENG_MAX_METRICS && micro >= 0 && micro < eng_micro_count(z));
    return (size_t)metric * (size_t)eng_micro_count(z) + (size_t)micro;
}

void device_metric_set(const zero_ctx *z, int metric, double value)
{
    struct device_metrics *metrics = device_metrics_of(z, z->step + 1);
    const size_t at = metric_place(z, metric, z->micro.index);
    metrics->values[at].given = value;
    metrics->fetched[at] = 0;
}

zero_result device_step_value(zero_ctx *z, int metric, const float *value)
{
    struct device_metrics *metrics = device_metrics_of(z, z->step + 1);
    const size_t at = metric_place(z, metric, z->micro.index);
    metrics->fetched[at] = 1;
    return device_value(z, &metrics->values[at].fetched, value);
}

/** Makes a step's metrics, all of which are here, what a ballot has. */
static void enter_metrics(zero_ctx *z, const struct device_metrics *metrics)
{
    const size_t count = (size_t)metrics->names.count * (size_t)eng_micro_count(z);
    for (size_t i = 0; i < count; i++)
        z->micro.values[i] =
            metrics->fetched[i] ? (double)metrics->values[i].fetched : metrics->values[i].given;
}

zero_result device_add_squares(const zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct base_device_ballot *ballot = device_piece(d, DEVICE_BALLOT);
    const struct base_device_squares squares = {
        .squares = device_piece(d, DEVICE_SQUARES),
        .count = z->placement.own_sums_bytes / (BASE_GRANULE * sizeof(float)),
        .limbs = ballot->limbs,
        .overflow = &ballot->overflow,
        .wrong = device_piece(d, DEVICE_WRONG),
    };
    if (d->state->squared || squares.count == 0)
        return ZERO_OK;
    d->state->squared = true;
    return d->kernels->squares(d->kernel_state, &squares, d->own, error);
}

/* ------------------------------------------------------------------ what comes back */

/** The first of what sums have found not to be finite. */
static struct eng_bad first_bad(const zero_ctx *z, const uint64_t *blamed)
{
    const uint64_t mask = (UINT64_C(1) << BASE_DEVICE_BAD_SHIFT) - 1;
    struct eng_bad first = {.micro = UINT64_MAX};
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        if (blamed[s] == UINT64_MAX)
            continue;
        const size_t element = (size_t)(blamed[s] & mask);
        const struct eng_slice *slice = eng_layout_slice_at(&z->layout, s, element);
        const struct eng_bad bad = {
            .micro = blamed[s] >> BASE_DEVICE_BAD_SHIFT,
            .param = (uint64_t)slice->param,
            .slice = (uint64_t)slice->index,
            .element = element - slice->granule * BASE_GRANULE,
        };
        eng_bad_min(&first, &bad);
    }
    return first;
}

/** The first value that updates have stored and that is not finite. */
static struct eng_wrong first_wrong(const zero_ctx *z, uint64_t wrong)
{
    if (wrong == UINT64_MAX)
        return (struct eng_wrong){.param = UINT64_MAX};
    const size_t number = (size_t)(wrong >> BASE_DEVICE_BAD_SHIFT);
    assert(number < z->layout.slice_count);
    const struct eng_slice *slice = eng_slice_numbered(&z->layout, number);
    return (struct eng_wrong){
        .param = (uint64_t)slice->param,
        .slice = (uint64_t)slice->index,
        .element = wrong & ((UINT64_C(1) << BASE_DEVICE_BAD_SHIFT) - 1),
        .field = ENG_WRONG_SOMETHING,
    };
}

/** The step becomes the newest one whose verdict is known. */
static zero_result take_in(zero_ctx *z, uint64_t number)
{
    const struct device_step *step = device_step_of(z, number);
    struct device_metrics *metrics = device_metrics_of(z, number);
    struct eng_decision decision = {
        .step = number,
        .norm = step->record->norm,
        .finite = step->record->finite,
        .early = step->fused,
        .bad = first_bad(z, device_blamed(z, number)),
        .wrong = first_wrong(z, step->record->wrong),
        .max_norm = step->max_norm,
        .lr = step->lr,
        .metrics = &metrics->names,
    };
    assert(z->device->state->open > 0);
    z->device->state->open--;
    enter_metrics(z, metrics);
    const zero_result r = z->stepping.hooks->decided(z, &decision);
    if (!r)
        z->stepping.hooks->told(z, decision.lr);
    return r;
}

zero_result device_take_in(zero_ctx *z, int open)
{
    const struct device_state *state = z->device->state;
    struct base_error error = {0};
    assert(state->open >= 0 && state->open <= DEVICE_OPEN_STEPS);
    zero_result r = ZERO_OK;
    // With several ranks all of them take a step in at the same place.
    while (!r && state->open > (state->peers ? open : 0)) {
        const uint64_t number = state->newest - (uint64_t)state->open + 1;
        void *judged = device_step_of(z, number)->judged;
        if (state->open > open)
            r = device_await(z, judged, "waiting for a verdict");
        else if ((r = z->device->ops->event_query(judged, &error)) == ZERO_AGAIN)
            return ZERO_OK;
        else if (r)
            return device_failed(z, &error, "asking for a verdict");
        if (!r)
            r = take_in(z, number);
    }
    return r;
}

zero_result device_prove(zero_ctx *z)
{
    struct device_state *state = z->device->state;
    struct base_error error = {0};
    uint64_t *wrong = device_blamed(z, z->step + 1); // no verdict is under way
    if (!state->unproved)
        return ZERO_OK;
    if (device_copy(z, wrong, device_piece(z->device, DEVICE_WRONG), sizeof *wrong, &error))
        return device_failed(z, &error, "looking at an update");
    assert(state->open == 0);
    state->unproved = false;
    return z->stepping.hooks->proved(z, first_wrong(z, *wrong), state->newest);
}

/* ------------------------------------------------------------------ what the host asks for */

zero_result device_learn(zero_ctx *z)
{
    struct eng_device *d = z->device;
    const size_t count = z->layout.bucket_count;
    assert(d->state->open == 0);
    struct base_device_ballot ballot;
    struct base_error error = {0};
    uint64_t *bad = device_blamed(z, z->step + 1); // no verdict is under way
    zero_result r = device_add_squares(z, &error);
    if (!r)
        r = d->ops->event_wait(d->valued, d->own, &error);
    if (!r)
        r = device_copy(z, &ballot, device_piece(d, DEVICE_BALLOT), sizeof ballot, &error);
    if (!r)
        r = device_copy(z, bad, device_piece(d, DEVICE_BAD), count * sizeof *bad, &error);
    if (!r) {
        memcpy(z->gradients.squares.limb, ballot.limbs, sizeof ballot.limbs);
        z->gradients.squares_overflow = ballot.overflow;
        z->gradients.bad = first_bad(z, bad);
        struct device_metrics *metrics = device_metrics_of(z, z->step + 1);
        metrics->names = z->micro.metrics;
        enter_metrics(z, metrics);
    }
    return r ? device_failed(z, &error, "fetching what is known of a step") : ZERO_OK;
}

void device_look(const zero_ctx *z, bool waits)
{
    zero_ctx *own = (zero_ctx *)(uintptr_t)z; // to the program nothing changes
    if (z->fatal)
        return;
    // A failure is the next call's.
    zero_result r = eng_enter(own, ENG_AFTER_COMMIT, "a look at a step");
    if (!r)
        r = device_take_in(own, waits ? 0 : INT_MAX);
    eng_leave(own, r);
}

/** For a rank without peers. */
static zero_result learn_alone(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_close");
    if (!r)
        r = device_take_in(z, 0);
    if (!r)
        r = device_prove(z);
    return eng_leave(z, r);
}

void device_steps_close(zero_ctx *z)
{
    if (!z->call.committed || z->fatal)
        return;
    // Other ranks need not close now: they can't be asked.
    const struct device_state *state = z->device->state;
    if (z->config.world == 1 && learn_alone(z))
        base_logf(&z->config.log, ZERO_LOG_WARN, "step", "one of the last steps has failed: %s",
                  z->error.message);
    else if (state->open > 0)
        base_logf(&z->config.log, ZERO_LOG_WARN, "step",
                  "what became of the last %d steps is not known: end with zero_step_wait()",
                  state->open);
}
