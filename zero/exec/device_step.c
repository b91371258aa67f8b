// A step whose state is on the device: the verdict falls there, and the update follows it without
// the host, who learns later what has become of the step. So as not to have to wait for that, the
// host prepares the update for every number it may turn out to have.

#include "zero/core/link_table.h"
#include "zero/core/progress.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/device_tiles.h"
#include "zero/exec/executors.h"
#include "zero/exec/stochastic.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>

/* ------------------------------------------------------------------ what is queued */

/** Scalars and keys of an update by its number. */
static void prepare_update(const zero_ctx *z, uint64_t number, struct base_rule_scalars *scalars,
                           uint64_t *keys)
{
    union eng_scalars prepared;
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        group->optimizer->prepare(&group->choice, &z->stepping.hyper[g], number, 1, &prepared);
        scalars[g] = prepared.built_in;
    }
    for (size_t k = 0; k < z->device->state->key_count; k++)
        keys[k] = eng_rounding_key(z, eng_slice_numbered(&z->layout, k / BASE_DEVICE_KEYS),
                                   k % BASE_DEVICE_KEYS, number);
}

/** Prepares the updates that the next one may be, on the host and then on the device. Behind steps
 * that are never skipped it is one only, or none. */
static zero_result prepare(const zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const bool skips = z->config.nonfinite == ZERO_NONFINITE_SKIP;
    const size_t open = (size_t)state->open, updates = skips ? open + 1 : 1;
    assert(updates <= DEVICE_OPEN_STEPS);
    const size_t groups = z->model.group_count, key_count = state->key_count;
    unsigned char *prepared = state->prepared[(z->step + 1) % DEVICE_STEPS];
    struct base_rule_scalars *scalars = (struct base_rule_scalars *)(void *)prepared;
    uint64_t *keys = (uint64_t *)(void *)(scalars + DEVICE_OPEN_STEPS * groups);
    state->first_update = z->updates + 1 + (skips ? 0 : open);
    for (size_t i = 0; i < updates; i++)
        prepare_update(z, state->first_update + i, scalars + i * groups, keys + i * key_count);
    return d->ops->copy(device_piece(d, DEVICE_PREPARED), prepared,
                        DEVICE_OPEN_STEPS * (groups * sizeof *scalars + key_count * sizeof *keys),
                        d->own, error);
}

static struct base_device_course course_of(const zero_ctx *z)
{
    return (struct base_device_course){
        .scale = z->stepping.scale,
        .updates = z->updates,
        .skips = z->stepping.result.skips,
        .skip_limit = eng_skip_limit(&z->config),
    };
}

/** The verdict on a step; if it is only `fused`, what it is updated with until then. */
static zero_result judge(const zero_ctx *z, const zero_step_args *args, bool fused,
                         struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t groups = z->model.group_count;
    const struct base_rule_scalars *prepared = device_piece(d, DEVICE_PREPARED);
    struct base_device_record *record = device_piece(d, DEVICE_RECORD);
    const struct base_device_judgement judgement = {
        .ballots = device_piece(d, d->state->peers ? DEVICE_BALLOTS : DEVICE_BALLOT),
        .ranks = (size_t)z->config.world,
        .course = device_piece(d, DEVICE_COURSE),
        .given = course_of(z),
        .known = d->state->open == 0,
        .fused = fused,
        .scale = args->scale,
        .max_norm = args->max_norm,
        .most = z->config.nonfinite == ZERO_NONFINITE_SKIP ? eng_norm_most(z) : INFINITY,
        .wrong = device_piece(d, DEVICE_WRONG),
        .first_update = d->state->first_update,
        .prepared = prepared,
        .scalars = device_piece(d, DEVICE_SCALARS),
        .groups = groups,
        .prepared_keys = (const uint64_t *)(const void *)(prepared + DEVICE_OPEN_STEPS * groups),
        .keys = device_piece(d, DEVICE_KEYS),
        .key_count = d->state->key_count,
        .bad = device_piece(d, DEVICE_BAD),
        .blamed = (uint64_t *)(void *)(record + 1),
        .bad_count = z->layout.bucket_count,
        .gate = device_piece(d, DEVICE_GATE),
        .record = record,
    };
    return d->kernels->judge(d->kernel_state, &judgement, d->own, error);
}

/** Sends the record to the host, behind the metrics. */
static zero_result report(const zero_ctx *z, const struct device_step *step,
                          struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t bytes = sizeof *step->record + z->layout.bucket_count * sizeof(uint64_t);
    zero_result r =
        d->ops->copy(step->record, device_piece(d, DEVICE_RECORD), bytes, d->own, error);
    if (!r)
        r = d->ops->event_wait(d->valued, d->own, error);
    return r ? r : d->ops->event_record(step->judged, d->own, error);
}

zero_result device_update_fused(zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t *segments = d->state->bucket_segments;
    zero_result r = ZERO_OK;
    if (!d->state->fused)
        return ZERO_OK;
    r = d->ops->event_wait(d->read[unit], d->own, error);
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++) {
        z->io[s].fused = z->io[s].trains && eng_updates_early(z, s);
        if (z->io[s].fused)
            r = d->state->tiles
                    ? device_tiles_fused(z, s, error)
                    : device_update_segments(z, segments[s], segments[s + 1] - segments[s], error);
    }
    return r;
}

/** The update may begin when no stream reads working copies any more. */
static zero_result wait_for_readers(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    zero_result r = d->ops->event_record(d->handed, d->stream, error);
    if (!r)
        r = d->ops->event_wait(d->handed, d->own, error);
    return r ? r : device_quiet(z, error);
}

/** What of a bucket was not updated before. */
static zero_result update_bucket(const zero_ctx *z, size_t s, struct base_error *error)
{
    const struct device_state *state = z->device->state;
    const size_t *segments = state->bucket_segments;
    if (!z->io[s].trains)
        return ZERO_OK;
    if (state->tiles)
        return device_tiles_bucket(z, s, error);
    return z->io[s].fused
               ? ZERO_OK
               : device_update_segments(z, segments[s], segments[s + 1] - segments[s], error);
}

/** Who waits for the unit of a bucket, or for what persists, waits for no more than this. */
static zero_result record_bucket(const zero_ctx *z, size_t s, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    if (!d->state->by_units)
        return ZERO_OK;
    const zero_result r = d->ops->event_record(d->lent[bucket->unit], d->own, error);
    return r || !bucket->persistent ? r : d->ops->event_record(d->state->persisted, d->own, error);
}

zero_result device_update_begin(zero_ctx *z, struct eng_update_pass *pass)
{
    struct device_state *state = z->device->state;
    const bool fused = device_step_of(z, state->newest)->fused;
    struct base_error error = {0};
    // What takes its time beside the device's own memory, to pass through or to reach other ranks,
    // is waited for unit by unit. A fused step has begun with the last one, and leaves little.
    state->by_units = !fused && (state->tiles || (state->peers && z->config.stage > 0));
    state->at_once = !fused && !state->by_units;
    *pass = (struct eng_update_pass){.persistent_first = !state->at_once};
    device_tiles_begin(z);
    if (!state->at_once)
        return ZERO_OK;
    zero_result r = device_update_segments(z, 0, state->segment_count, &error);
    if (!r)
        r = z->device->ops->event_record(z->device->shown, z->device->own, &error);
    return r ? device_failed(z, &error, "an update") : ZERO_OK;
}

zero_result device_update_bucket(zero_ctx *z, size_t bucket)
{
    const bool persistent = z->layout.buckets[bucket].persistent;
    struct base_error error = {0};
    if (z->device->state->at_once)
        return ZERO_OK;
    device_tiles_turn(z, persistent);
    if (update_bucket(z, bucket, &error) || record_bucket(z, bucket, &error))
        return device_failed(z, &error, "an update");
    return ZERO_OK;
}

zero_result device_update_end(zero_ctx *z, zero_result r)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    if (r || d->state->at_once)
        return r;
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        z->io[s].fused = false;
    return d->ops->event_record(d->shown, d->own, &error) ? device_failed(z, &error, "an update")
                                                          : ZERO_OK;
}

zero_result device_step_begin(zero_ctx *z)
{
    struct base_error error = {0};
    zero_result r = device_take_in(z, DEVICE_OPEN_STEPS);
    if (r)
        return r;
    if (z->device->state->stale || z->device->state->sole != device_sole(z))
        r = device_segments_refresh(z, &error);
    // The verdict takes away what was found in the step before.
    if (!r && z->config.local)
        r = z->link->after_decision(z, &error);
    return r ? device_failed(z, &error, "beginning a step") : ZERO_OK;
}

zero_result device_fuse(zero_ctx *z)
{
    struct base_error error = {0};
    if (!z->stepping.early)
        return ZERO_OK;
    assert(!z->device->state->fused);
    zero_result r = prepare(z, &error);
    if (!r)
        r = judge(z, &z->stepping.fused, true, &error);
    z->device->state->fused = !r;
    return r ? device_failed(z, &error, "fusing a step") : ZERO_OK;
}

zero_result device_decide(zero_ctx *z, const zero_step_args *args, struct eng_decision *decision)
{
    struct device_state *state = z->device->state;
    struct device_step *step = device_step_of(z, decision->step);
    struct base_error error = {0};
    zero_result r = device_take_in(z, DEVICE_OPEN_STEPS - 1);
    if (r)
        return r;
    assert(state->open < DEVICE_OPEN_STEPS);
    state->began_ns = base_clock_ns();
    step->fused = state->fused;
    state->fused = false;
    r = step->fused ? ZERO_OK : prepare(z, &error);
    if (!r)
        r = device_add_squares(z, &error);
    if (!r && state->peers)
        r = z->link->exchange_stats(z, &error);
    if (!r)
        r = judge(z, args, false, &error);
    if (!r)
        r = report(z, step, &error);
    if (!r && state->peers && z->config.stage == 0)
        r = z->link->share_sums(z, &error);
    if (r)
        return device_failed(z, &error, "a step");
    state->squared = false;
    state->unproved = true;
    step->max_norm = decision->max_norm;
    step->lr = decision->lr;
    device_metrics_of(z, decision->step)->names = z->micro.metrics;
    assert(state->open == 0 || decision->step == state->newest + 1);
    state->newest = decision->step;
    state->open++;
    return ZERO_OK;
}

zero_result device_update(zero_ctx *z, enum eng_update_kind *kind)
{
    struct base_error error = {0};
    if (wait_for_readers(z, &error))
        return device_failed(z, &error, "a step");
    if (!z->store->records->kept) {
        z->update.began_ns = z->device->state->began_ns;
        *kind = ENG_UPDATE_QUEUED;
        return ZERO_OK;
    }
    // Tiles of files pass when the host knows that the step updates.
    const zero_result r = device_take_in(z, 0);
    *kind = r || z->stepping.result.skipped ? ENG_NO_UPDATE : ENG_UPDATE_DECIDED;
    return r;
}

zero_result device_step_end(zero_ctx *z)
{
    // All ranks learn at one place what the program multiplies its next loss by.
    return z->stepping.scale.dynamic && z->config.world > 1 ? device_take_in(z, 0) : ZERO_OK;
}

zero_result device_skip(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    d->state->squared = false;
    zero_result r = d->ops->zero(device_piece(d, DEVICE_BALLOT), sizeof(struct base_device_ballot),
                                 d->own, &error);
    if (!r)
        r = device_bad_clear(z, &error);
    return r ? device_failed(z, &error, "leaving out a step") : ZERO_OK;
}
