// Evaluations: passes without gradients, between two steps.

#include "zero/step/evaluation.h"
#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/core/progress.h"
#include "zero/core/stop.h"
#include "zero/core/telemetry.h"
#include "zero/step/micro_batch.h"
#include "zero/step/step_outcome.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

/** What a rank tells the others at the end: the hash of its metrics' names, and behind it their
 * values. */
#define HASH_BYTES sizeof(uint64_t)

void eng_evaluation_free(zero_ctx *z)
{
    base_free(z->micro.evaluation.mine);
}

/** The first rank whose number at the start of its bytes differs from that of rank 0, and both
 * numbers; 0: none. */
static int first_other(const zero_ctx *z, const unsigned char *all, size_t stride,
                       uint64_t values[2])
{
    memcpy(&values[0], all, sizeof values[0]);
    for (int rank = 1; rank < z->config.world; rank++) {
        memcpy(&values[1], all + (size_t)rank * stride, sizeof values[1]);
        if (values[1] != values[0])
            return rank;
    }
    return 0;
}

/** What a rank tells the others at the beginning. */
struct opening {
    uint64_t count;   /**< micro-batches */
    uint32_t stop;    /**< it knows of a request to stop */
    uint32_t listens; /**< its program listens to such requests */
};

/** Takes in what all ranks have said beside the count. */
static void hear_opening(zero_ctx *z)
{
    bool stop = false;
    z->micro.evaluation.listens = false;
    for (int rank = 0; rank < z->config.world; rank++) {
        struct opening opening;
        memcpy(&opening, z->stepping.exchange.room.all + (size_t)rank * sizeof opening,
               sizeof opening);
        stop = stop || opening.stop;
        z->micro.evaluation.listens = z->micro.evaluation.listens || opening.listens;
    }
    if (stop)
        eng_stop_agree(z);
}

/** Ranks whose evaluations differ in size would meet in the wrong collectives. */
static zero_result open_together(zero_ctx *z, int32_t count)
{
    const struct opening mine = {
        .count = (uint64_t)count, .stop = eng_stop_asked(z), .listens = eng_stop_listens(z)};
    uint64_t values[2];
    const zero_result r = eng_exchange(z, &mine, sizeof mine, z->stepping.exchange.room.all);
    if (r)
        return r;
    const int other = first_other(z, z->stepping.exchange.room.all, sizeof mine, values);
    if (other)
        return eng_fail_agreed(z, ZERO_E_DIVERGED,
                               "ranks 0 and %d begin evaluations of %llu and %llu micro-batches",
                               other, (unsigned long long)values[0], (unsigned long long)values[1]);
    hear_opening(z);
    return ZERO_OK;
}

/** Whether this is true on some rank. Collective, ordered. */
static zero_result on_any(zero_ctx *z, bool mine, bool *any)
{
    const uint32_t word = mine;
    const zero_result r = eng_exchange(z, &word, sizeof word, z->stepping.exchange.room.all);
    *any = false;
    for (int rank = 0; !r && rank < z->config.world; rank++) {
        uint32_t other;
        memcpy(&other, z->stepping.exchange.room.all + (size_t)rank * sizeof other, sizeof other);
        *any = *any || other;
    }
    return r;
}

zero_result eng_evaluation_listen(zero_ctx *z)
{
    bool stop;
    // What all ranks know need not be asked for again.
    if (!z->micro.evaluation.listens || eng_stop_agreed(z))
        return ZERO_OK;
    const zero_result r = on_any(z, eng_stop_asked(z), &stop);
    if (!r && stop)
        eng_stop_agree(z);
    return r;
}

/** All ranks have room for the metrics of `count` micro-batches each, and a plan that has it, or
 * none changes anything. */
static zero_result make_room(zero_ctx *z, int count)
{
    struct eng_evaluation *evaluation = &z->micro.evaluation;
    const int before = evaluation->room;
    if (count <= before)
        return ZERO_OK;
    struct base_error error = {0};
    evaluation->room = count;
    unsigned char *mine = base_calloc(1, eng_evaluation_bytes(z));
    if (!mine)
        zero_fail(&error, ZERO_E_NOMEM, "no memory for the metrics of %d micro-batches a rank",
                  count);
    const zero_result r = z->memory.planner->renew(z, "zero_eval_begin", &error);
    if (r) {
        evaluation->room = before;
        base_free(mine);
        return r;
    }
    eng_evaluation_free(z);
    evaluation->mine = mine;
    evaluation->all = mine + eng_evaluation_part_bytes(count);
    return ZERO_OK;
}

static zero_result begin(zero_ctx *z, int32_t count)
{
    if (count < 1 || count > ENG_MAX_MICRO_BATCHES)
        return eng_fail(z, ZERO_E_INVALID, "zero_eval_begin with %d micro-batches: 1 to %d", count,
                        ENG_MAX_MICRO_BATCHES);
    zero_result r = eng_between_steps(z, "zero_eval_begin");
    const int world = z->config.world, each = count / world + (count % world > 0);
    if (!r)
        r = open_together(z, count);
    if (!r)
        r = make_room(z, each);
    if (r)
        return r;
    assert(z->micro.index < 0 && each <= z->micro.evaluation.room);
    z->micro.evaluation.active = true;
    z->micro.evaluation.total = count;
    z->micro.evaluation.count = each;
    eng_watch_evaluation_begin(z);
    return ZERO_OK;
}

/** Means of every rank's metrics. */
static zero_result average(zero_ctx *z)
{
    const struct eng_evaluation *evaluation = &z->micro.evaluation;
    const uint64_t hash = eng_metric_hash(z, 0);
    const size_t stride = HASH_BYTES + eng_metric_bytes(z, z->micro.metrics.count);
    assert(stride <= eng_evaluation_part_bytes(evaluation->room));
    uint64_t values[2];
    memcpy(evaluation->mine, &hash, sizeof hash);
    const zero_result r = eng_exchange(z, evaluation->mine, stride, evaluation->all);
    if (r)
        return r;
    const int other = first_other(z, evaluation->all, stride, values);
    if (other)
        return eng_fail_agreed(z, ZERO_E_DIVERGED,
                               "ranks 0 and %d gave an evaluation different metrics", other);
    eng_metric_reduce(z, &z->micro.metrics, evaluation->all, stride, HASH_BYTES);
    return ZERO_OK;
}

/** The program is told to stop, so that it may leave before all micro-batches: if one rank has, no
 * rank has means. */
static zero_result leave(zero_ctx *z, bool *left)
{
    assert(z->micro.evaluation.active);
    const bool last = z->micro.index == z->micro.evaluation.count - 1;
    const int given = z->micro.metric_next;
    // What is missing of the micro-batch under way is not wanted.
    z->micro.metric_next = z->micro.metrics.count;
    const zero_result r = eng_micro_check(z, "zero_eval_end");
    z->micro.metric_next = given;
    return r ? r : on_any(z, !last || given < z->micro.metrics.count, left);
}

static zero_result end(zero_ctx *z)
{
    bool left = false;
    if (!z->micro.evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "zero_eval_end without zero_eval_begin");
    zero_result r = ZERO_OK;
    if (eng_stop_agreed(z))
        r = leave(z, &left);
    else if (z->micro.index != z->micro.evaluation.count - 1)
        r = eng_fail(z, ZERO_E_STATE, "zero_eval_end after %d of %d micro-batches",
                     z->micro.index + 1, z->micro.evaluation.count);
    else
        r = eng_micro_check(z, "zero_eval_end");
    if (!r && !left)
        r = average(z);
    if (!r && !left)
        r = eng_evaluation_listen(z);
    if (r)
        return r;
    if (!left)
        eng_metric_evaluation_line(z);
    eng_watch_evaluation_end(z);
    z->micro.evaluation.active = false;
    z->micro.index = -1;
    return left ? ZERO_AGAIN : ZERO_OK;
}

zero_result zero_eval_begin(zero_ctx *z, int32_t count)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_eval_begin");
    if (!r)
        r = begin(z, count);
    return eng_leave(z, r);
}

zero_result zero_eval_end(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_eval_end");
    if (!r)
        r = end(z);
    return eng_leave(z, r);
}
