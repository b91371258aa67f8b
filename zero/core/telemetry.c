// What zero-run sees of a context: where its time goes, and how far it is.

#include "zero/core/telemetry.h"
#include "collectives/control/control.h"
#include "zero/core/context.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

zero_result eng_watch_open(zero_ctx *z, struct base_error *error)
{
    // Ranks that are threads of one process are none of zero-run's, and a plan runs nothing.
    if (z->config.plan || z->config.team)
        return ZERO_OK;
    const zero_result r =
        control_attach(&z->job.watch.segment, z->config.rank, z->config.world, error);
    if (r || !z->job.watch.segment)
        return r;
    z->job.watch.area = &z->job.watch.segment->ranks[z->config.rank];
    z->job.watch.traced =
        atomic_load_explicit(&z->job.watch.segment->trace, memory_order_relaxed) != 0;
    return ZERO_OK;
}

void eng_watch_call(const zero_ctx *z, const char *call, zero_unit unit)
{
    // A look that is no call of the program's has a name of another kind.
    if (!z->job.watch.area || strncmp(call, "zero_", 5) != 0)
        return;
    const bool in_step = z->micro.index >= 0 || !strcmp(call, "zero_micro_begin");
    const enum control_moment moment = !z->call.committed           ? CONTROL_BEFORE_COMMIT
                                       : z->micro.evaluation.active ? CONTROL_IN_EVALUATION
                                       : in_step                    ? CONTROL_IN_STEP
                                                                    : CONTROL_BETWEEN;
    struct control_call made = {
        .step = moment == CONTROL_IN_STEP ? z->step + 1 : z->step,
        .unit = unit < 0 ? CONTROL_NO_UNIT : (uint32_t)unit,
        .moment = (uint32_t)moment,
    };
    control_copy_name(made.call, sizeof made.call, call);
    if (unit >= 0)
        control_copy_name(made.name, sizeof made.name, z->units[unit].name);
    control_copy_name(made.context, sizeof made.context, z->config.name);
    control_call_begin(z->job.watch.area, &made);
}

void eng_watch_close(zero_ctx *z)
{
    control_call_end(z->job.watch.area);
    if (z->job.watch.area)
        control_reports_no_more(z->job.watch.area, z);
    control_detach(z->job.watch.segment);
    z->job.watch = (struct eng_watch){.segment = NULL};
}

_Static_assert(ENG_MAX_METRICS <= CONTROL_METRICS, "every metric has a place");

static void record_stretch(const zero_ctx *z, enum control_what what, zero_unit unit,
                           uint64_t begin_ns, uint64_t end_ns)
{
    assert(z->job.watch.area && begin_ns <= end_ns);
    struct control_record record = {
        .begin_ns = begin_ns,
        .end_ns = end_ns,
        .what = (uint16_t)what,
        .peer = CONTROL_NO_PEER,
        .unit = unit < 0 ? CONTROL_NO_UNIT : (uint32_t)unit,
        .ranks = (uint32_t)z->config.world,
    };
    if (unit >= 0)
        control_copy_name(record.name, sizeof record.name, z->units[unit].name);
    control_copy_name(record.comm, sizeof record.comm, z->config.name);
    control_begin(z->job.watch.area, &record);
}

void eng_stretch(zero_ctx *z, enum control_what what, zero_unit unit, uint64_t begin_ns,
                 double *seconds)
{
    const uint64_t end_ns = base_clock_ns();
    *seconds += (double)(end_ns - begin_ns) * 1e-9;
    if (z->job.watch.traced)
        record_stretch(z, what, unit, begin_ns, end_ns);
}

uint64_t eng_watch_step_begin(const zero_ctx *z)
{
    return z->job.watch.traced ? base_clock_ns() : 0;
}

static uint64_t since_last(double now, double before)
{
    return now > before ? (uint64_t)((now - before) * 1e9) : 0;
}

/** Of several contexts of a process one reports, or their lines would take turns. */
static void write_status(zero_ctx *z, uint64_t now_ns)
{
    if (!control_reports(z->job.watch.area, z))
        return;
    const zero_statistics *now = &z->stats, *before = &z->job.watch.before;
    if (!z->job.watch.first_step) {
        z->job.watch.first_step = z->step;
        z->job.watch.first_ns = now_ns;
    }
    struct control_status status = {
        .step = z->step,
        .first_step = z->job.watch.first_step,
        .first_ns = z->job.watch.first_ns,
        .step_ns = z->job.watch.ended_ns ? now_ns - z->job.watch.ended_ns : 0,
        .at_ns = now_ns,
        .gather_wait_ns = since_last(now->gather_wait_s, before->gather_wait_s),
        .reduce_wait_ns = since_last(now->reduce_wait_s, before->reduce_wait_s),
        .verdict_wait_ns = since_last(now->step_wait_s, before->step_wait_s),
        .update_ns = since_last(now->update_s, before->update_s),
        .micro_batches = (uint64_t)z->config.micro_batches,
        .planned_bytes = z->plan.total.mine,
        .metric_count = (uint32_t)z->micro.means.count,
    };
    if (strcmp(z->config.name, ENG_CONTEXT_NAME) != 0)
        control_copy_name(status.context, sizeof status.context, z->config.name);
    for (int m = 0; m < z->micro.means.count; m++) {
        const struct eng_metric *metric = &z->micro.means.list[m];
        control_copy_name(status.metrics[m].name, sizeof status.metrics[m].name, metric->name);
        status.metrics[m].mean = metric->mean;
    }
    control_status_write(z->job.watch.area, &status);
}

void eng_watch_start(zero_ctx *z)
{
    if (!z->job.watch.area)
        return;
    z->job.watch.before = z->stats;
    z->job.watch.ended_ns = base_clock_ns();
}

void eng_watch_step(zero_ctx *z, uint64_t begin_ns)
{
    if (!z->job.watch.area)
        return;
    const uint64_t now_ns = base_clock_ns();
    assert(now_ns >= z->job.watch.ended_ns);
    if (z->job.watch.traced)
        record_stretch(z, CONTROL_STEP, -1, begin_ns, now_ns);
    write_status(z, now_ns);
    z->job.watch.before = z->stats;
    z->job.watch.ended_ns = now_ns;
}

void eng_watch_evaluation_begin(zero_ctx *z)
{
    if (!z->job.watch.area)
        return;
    z->job.watch.aside = z->stats;
    z->job.watch.aside_ns = base_clock_ns();
}

void eng_watch_evaluation_end(zero_ctx *z)
{
    if (!z->job.watch.area)
        return;
    const zero_statistics *now = &z->stats, *then = &z->job.watch.aside;
    const uint64_t now_ns = base_clock_ns();
    assert(z->job.watch.aside_ns > 0 && z->job.watch.aside_ns <= now_ns);
    if (z->job.watch.traced)
        record_stretch(z, CONTROL_EVALUATION, -1, z->job.watch.aside_ns, now_ns);
    z->job.watch.ended_ns += now_ns - z->job.watch.aside_ns;
    z->job.watch.before.gather_wait_s += now->gather_wait_s - then->gather_wait_s;
    z->job.watch.before.step_wait_s += now->step_wait_s - then->step_wait_s;
}
