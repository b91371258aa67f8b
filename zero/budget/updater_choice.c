#include "zero/budget/updater_choice.h"
#include "zero/core/api_call.h"

#include "zero/budget/budget.h"
#include "zero/core/context.h"
#include "zero/exec/gpu.h"
#include "zero/exec/memory_probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/** What an update cannot be without. */
struct eng_updater_work eng_updater_work(const zero_ctx *z)
{
    const struct eng_config *config = &z->config;
    const double rounds = config->local ? 1 : eng_config_rounds(config); // that travel
    const double shares = config->stage > 0 ? config->world : 1;
    struct eng_updater_work work = {.staged = config->world > 1 &&
                                              strcmp(config->device_transport, "host") == 0};
    for (size_t p = 0; p < z->model.param_count; p++) {
        const struct eng_param *param = &z->model.params[p];
        const double count = (double)param->slice_numel * param->slice_count;
        const bool apart = param->dtype != ZERO_F32 && !config->no_masters;
        const double moments =
            eng_model_moments(&z->model, p) * (double)eng_dtype_size(config->moment_dtype);
        if (param->frozen)
            continue;
        work.state += count * (moments + (apart ? sizeof(float) : 0)) / shares;
        work.gradients += rounds * count * (double)eng_dtype_size(param->grad_dtype);
        work.params += count * (double)eng_dtype_size(param->dtype);
        // The first store, and those that add to it; then the update, at stage 0 of all ranks'.
        work.sums += count * sizeof(float) * ((2 * rounds - 1) / config->world + 1 / shares);
    }
    work.written = work.params / shares;
    return work;
}

struct eng_updater_seconds eng_updater_estimate(const struct eng_updater_work *work,
                                                const struct eng_updater_rates *rates)
{
    // Gradients leave while working copies come; each rank adds up its share of all ranks'.
    const double moved = fmax(work->gradients, work->params);
    const double touched = 2 * work->state + work->gradients + work->sums + work->written;
    return (struct eng_updater_seconds){
        .host = fmax(moved / rates->copies, touched / rates->memory),
        .device = (work->state + (work->staged ? moved : 0)) / rates->copies,
    };
}

bool eng_updater_takes_device(const struct eng_updater_seconds *seconds)
{
    return seconds->device < seconds->host;
}

const char *eng_updater_bound(const zero_ctx *z)
{
    for (size_t g = 0; g < z->model.group_count; g++)
        if (z->model.groups[g].choice.own)
            return "an optimizer of the program's own";
    return eng_config_bound_updater(&z->config);
}

/* ------------------------------------------------------------------ reasons */

static void say(struct eng_updater *updater, const char *why)
{
    snprintf(updater->why, sizeof updater->why, "%s", why);
}

/** Who updates, if any rank has a reason for that, in updater->why. Collective, for settings and
 * GPUs may differ. */
static zero_result settle(zero_ctx *z, bool device)
{
    struct eng_updater *updater = &z->update.updater;
    double found = *updater->why != '\0';
    const zero_result r = z->comm ? coll_all_reduce(z->comm, &found, 1, COLL_MAX) : ZERO_OK;
    if (r)
        return eng_comm_failed(z, r);
    if (found > 0 && !*updater->why)
        say(updater, "another rank has a reason");
    if (found > 0)
        eng_config_decide_update(&z->config, device);
    return ZERO_OK;
}

static zero_result settle_by_settings(zero_ctx *z)
{
    const char *why = eng_updater_bound(z);
    say(&z->update.updater, why ? why : "");
    return settle(z, false);
}

/** Whether the device can run the kernels, which the host's way has no need of: no room for them is
 * a reason for it, too. */
static zero_result try_kernels(zero_ctx *z, struct base_error *error)
{
    struct base_error inner = {0};
    const zero_result r = eng_device_can_update(z, &inner);
    if (r && r != ZERO_E_UNSUPPORTED && r != ZERO_E_NOMEM)
        return zero_fail(error, r, "%s", inner.message);
    if (r)
        say(&z->update.updater, inner.message);
    return ZERO_OK;
}

/** How ranks would move what the device updates; what was given of that has to work. */
static zero_result try_moves(zero_ctx *z, int ranks, struct base_error *error)
{
    struct eng_updater *updater = &z->update.updater;
    struct base_error inner = {0};
    if (z->config.over_nccl)
        return eng_device_can_move(z, error);
    if (z->config.world == 1)
        return ZERO_OK;
    if (z->config.nccl_comm || strcmp(z->config.device_register, "on") == 0)
        return eng_device_can_move(z, error);
    if (ranks > 1 && strcmp(z->config.device_transport, "nccl") == 0) {
        snprintf(updater->why, sizeof updater->why,
                 "%d ranks share GPU %d, and device_transport=nccl wants one for each", ranks,
                 z->config.device_number);
        return ZERO_OK;
    }
    const zero_result r = eng_device_can_move(z, &inner);
    if (r == ZERO_E_UNSUPPORTED)
        say(updater, inner.message);
    return r && r != ZERO_E_UNSUPPORTED ? zero_fail(error, r, "%s", inner.message) : ZERO_OK;
}

/** What both ways take of the GPU, of which one has not that much. */
static void tell_room(struct eng_updater *updater, int number, const struct eng_gpu_ways *ways)
{
    const struct eng_gpu_fit *fit = &ways->device;
    char free[32], total[32], device[32], host[32];
    snprintf(updater->why, sizeof updater->why,
             "GPU %d has %s free of %s, and %d rank%s would need %s there if it updated, %s if the "
             "host did",
             number, eng_human(fit->free, free), eng_human(fit->total, total), fit->ranks,
             fit->ranks > 1 ? "s" : "", eng_human(fit->needed, device),
             eng_human(ways->host.needed, host));
}

/** What measuring takes of the GPU, which has room for both ways. It is given back before anything
 * else is there, but until then the driver, too, takes some: a device that updates has to have room
 * for both. */
static void tell_probe(struct eng_updater *updater, int number, const struct eng_gpu_fit *fit)
{
    const uint64_t measured = (uint64_t)fit->ranks * eng_device_probe_bytes();
    char free[32], needed[32], probe[32];
    if (fit->verdict == ENG_FITS_UNCHECKED || fit->needed + measured <= fit->free)
        return;
    snprintf(updater->why, sizeof updater->why,
             "GPU %d has %s free, and %d rank%s would need %s there if it updated, beside %s to "
             "find out how fast copies are",
             number, eng_human(fit->free, free), fit->ranks, fit->ranks > 1 ? "s" : "",
             eng_human(fit->needed, needed), eng_human(measured, probe));
}

static zero_result settle_by_kernels(zero_ctx *z, struct base_error *error)
{
    const zero_result r = try_kernels(z, error);
    return r ? r : settle(z, false);
}

/** Looks when the kernels have been there: what the driver keeps of them is not free any more. */
static zero_result settle_by_devices(zero_ctx *z, struct base_error *error)
{
    const int number = z->config.device_number;
    struct eng_gpu_ways ways;
    zero_result r = eng_gpu_fit_ways(z, &ways, error);
    if (!r && ways.device.verdict == ENG_FITS_NOT)
        tell_room(&z->update.updater, number, &ways);
    else if (!r)
        r = try_moves(z, ways.device.ranks, error);
    if (!r)
        r = settle(z, false);
    if (r || !z->config.undecided)
        return r;
    if (ways.host.verdict == ENG_FITS_NOT)
        tell_room(&z->update.updater, number, &ways);
    r = settle(z, true);
    if (r || !z->config.undecided)
        return r;
    tell_probe(&z->update.updater, number, &ways.device);
    return settle(z, false);
}

/** What measuring takes of the host, all its ranks at the same time. */
static void tell_memory(struct eng_updater *updater, const struct eng_fit *fit)
{
    char needed[32], left[32], limit[32];
    if (fit->verdict != ENG_FITS_NOT)
        return;
    snprintf(updater->why, sizeof updater->why,
             "finding out how fast memory is takes %s of the host's, and %s are left of %s (%s)",
             eng_human(fit->needed, needed), eng_human(fit->left, left),
             eng_human(fit->limit, limit), fit->source);
}

static zero_result settle_by_memory(zero_ctx *z, struct base_error *error)
{
    struct eng_fit fit;
    const zero_result r = eng_fit_before(z, eng_updater_bytes(z), &fit, error);
    if (r)
        return r;
    tell_memory(&z->update.updater, &fit);
    return settle(z, false);
}

/* ------------------------------------------------------------------ measurements */

/** All ranks at the same time, as in a step. */
static zero_result measure(zero_ctx *z, struct base_error *error)
{
    struct eng_updater_rates *rates = &z->update.updater.rates;
    zero_result r = eng_probe_memory(z->cpu.pool, z->comm, &rates->memory, error);
    if (!r)
        r = eng_device_probe(z, &rates->copies, error);
    return r && !error->result ? eng_comm_failed(z, r) : r;
}

static zero_result settle_by_speed(zero_ctx *z, struct base_error *error)
{
    struct eng_updater *updater = &z->update.updater;
    zero_result r = measure(z, error);
    if (r)
        return r;
    const struct eng_updater_work work = eng_updater_work(z);
    const struct eng_updater_seconds mine = eng_updater_estimate(&work, &updater->rates);
    double slowest[] = {mine.host, mine.device};
    r = coll_all_reduce(z->comm, slowest, 2, COLL_MAX);
    if (r)
        return eng_comm_failed(z, r);
    updater->seconds = (struct eng_updater_seconds){slowest[0], slowest[1]};
    eng_config_decide_update(&z->config, eng_updater_takes_device(&updater->seconds));
    return ZERO_OK;
}

zero_result eng_updater_decide(zero_ctx *z, struct base_error *error)
{
    if (!z->config.undecided)
        return ZERO_OK;
    zero_result r = settle_by_settings(z);
    if (z->config.plan)
        return r;
    if (!r && z->config.undecided)
        r = settle_by_kernels(z, error);
    if (!r && z->config.undecided)
        r = settle_by_devices(z, error);
    if (!r && z->config.undecided)
        r = settle_by_memory(z, error);
    if (!r && z->config.undecided)
        r = settle_by_speed(z, error);
    return r;
}

size_t eng_updater_bytes(const zero_ctx *z)
{
    const bool open = z->config.undecided || eng_updater_measured(&z->update.updater);
    return open && !z->update.updater.uncounted ? eng_probe_bytes(base_pool_threads(z->cpu.pool))
                                                : 0;
}
