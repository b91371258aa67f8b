// The number of micro-batches a step, changed between steps.

#include "zero/step/batch_size.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/core/exec_table.h"
#include "zero/core/planner.h"
#include "zero/core/progress.h"
#include "zero/step/micro_batch.h"
#include "zero/step/step_outcome.h"

#include "base/arena.h"

#include <assert.h>

/** What depends on the number, and was decided at commit, must do. */
static zero_result check_memory(zero_ctx *z, const struct eng_config *next, const char *call)
{
    struct eng_config planned = z->config;
    planned.micro_batches = z->micro.planned;
    if (eng_config_leaves_blocks(next) && !z->micro.planned_blocks)
        return eng_fail(z, ZERO_E_INVALID,
                        "%s: %d with sum_group=%d on %d ranks leave blocks unfinished, and with "
                        "micro_batches=%d none were allocated: begin with more than %d",
                        call, next->micro_batches, next->sum_group, next->world,
                        planned.micro_batches, next->world);
    if (next->local && next->micro_batches > next->world && planned.micro_batches <= next->world)
        return eng_fail(z, ZERO_E_INVALID,
                        "%s: %d with reduction=local are several on each of %d ranks, and with "
                        "micro_batches=%d no spare gradients were allocated: begin with more than "
                        "%d",
                        call, next->micro_batches, next->world, planned.micro_batches, next->world);
    return ZERO_OK;
}

/** What is wrong with a call is wrong on every rank: nothing changes. */
static zero_result check(zero_ctx *z, const struct eng_config *next, const char *call)
{
    struct base_error error = {0};
    zero_result r = eng_between_steps(z, call);
    if (!r && (next->micro_batches < 1 || next->micro_batches > ENG_MAX_MICRO_BATCHES))
        r = eng_fail(z, ZERO_E_INVALID, "%s: %d is not in 1 to %d", call, next->micro_batches,
                     ENG_MAX_MICRO_BATCHES);
    if (!r && eng_config_check_reduction(next, &error))
        r = eng_fail_from(z, &error);
    return r ? r : check_memory(z, next, call);
}

static void set_total(zero_ctx *z, int32_t micro_batches, enum eng_source source)
{
    z->config.micro_batches = micro_batches;
    eng_config_set_source(&z->config, "micro_batches", source);
    z->micro.count = eng_config_rounds(&z->config);
    assert(z->micro.count >= 1);
}

/** All ranks have tables and a plan for the new number, or none changes anything. */
static zero_result change(zero_ctx *z, int32_t micro_batches, enum eng_source source,
                          const char *call)
{
    const int32_t before = z->config.micro_batches;
    const enum eng_source source_before = eng_config_source(&z->config, "micro_batches");
    struct base_error error = {0};
    unsigned char *metrics = NULL;
    set_total(z, micro_batches, source);
    struct eng_exchange_room room;
    double *values = base_calloc(1, eng_metric_bytes(z, ENG_MAX_METRICS));
    if (eng_exchange_make(z, &room, &error) || !values) {
        base_error_clear(&error);
        zero_fail(&error, ZERO_E_NOMEM, "no memory for the metrics of %d micro-batches",
                  micro_batches);
    } else {
        z->exec->metrics_make(z, &metrics, &error);
    }
    const zero_result r = z->memory.planner->renew(z, call, &error);
    if (r) {
        set_total(z, before, source_before);
        z->exec->metrics_drop(z, metrics);
        eng_exchange_drop(&room);
        base_free(values);
        return r;
    }
    z->exec->metrics_take(z, metrics);
    eng_exchange_take(z, &room);
    base_free(z->micro.values);
    z->micro.values = values;
    return ZERO_OK;
}

zero_result eng_batch_change(zero_ctx *z, int32_t micro_batches, const char *call)
{
    struct eng_config next = z->config;
    next.micro_batches = micro_batches;
    const zero_result r = check(z, &next, call);
    return r ? r : change(z, micro_batches, ENG_SOURCE_CHECKPOINT, call);
}

static zero_result set_micro_batches(zero_ctx *z, int32_t micro_batches)
{
    static const char call[] = "zero_set_micro_batches";
    struct eng_config next = z->config;
    next.micro_batches = micro_batches;
    zero_result r = check(z, &next, call);
    if (!r)
        r = eng_same(z, (uint64_t)micro_batches, "the micro-batches of zero_set_micro_batches");
    return r ? r : change(z, micro_batches, ENG_SOURCE_CALL, call);
}

zero_result zero_set_micro_batches(zero_ctx *z, int32_t micro_batches)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_set_micro_batches");
    if (!r)
        r = set_micro_batches(z, micro_batches);
    return eng_leave(z, r);
}
