#include "zero/updater.h"

#include "collectives/device.h"
#include "zero/engine.h"
#include "zero/probe.h"

#include <math.h>
#include <string.h>

/** What an update cannot be without. */
struct eng_updater_work eng_updater_work(const zero_ctx *z)
{
    const struct eng_config *config = &z->config;
    const double rounds = eng_config_rounds(config);
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
        work.sums += count * sizeof(float) *
                     ((2 * (config->native ? 1 : rounds) - 1) / config->world + 1 / shares);
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

/** Why it is the host whatever is faster; NULL: for no reason. */
static const char *why_host(const zero_ctx *z)
{
    const struct eng_config *config = &z->config;
    if (config->nvme)
        return "state is in files";
    if (config->native && config->world > 1)
        return "reduction=native, whose bits depend on it";
    if (strcmp(config->gather, "shared") == 0)
        return "gather=shared";
    for (size_t g = 0; g < z->model.group_count; g++)
        if (z->model.groups[g].choice.own)
            return "an optimizer of the program's own";
    if ((config->world > 1 || config->over_nccl) && !coll_device_has(config->device_transport))
        return "this build has no NCCL";
    return NULL;
}

/** The same on all ranks, whose settings may differ in reasons. */
static zero_result find_reason(zero_ctx *z)
{
    z->updater.why = why_host(z);
    double forced = z->updater.why != NULL;
    const zero_result r = z->comm ? coll_all_reduce(z->comm, &forced, 1, COLL_MAX) : ZERO_OK;
    if (r)
        return eng_comm_failed(z, r);
    if (forced > 0 && !z->updater.why)
        z->updater.why = "another rank has a reason";
    return ZERO_OK;
}

/** All ranks at the same time, as in a step. */
static zero_result measure(zero_ctx *z, struct base_error *error)
{
    struct eng_updater_rates *rates = &z->updater.rates;
    zero_result r = eng_probe_memory(z->pool, z->comm, &rates->memory, error);
    if (!r)
        r = eng_device_probe(z, &rates->copies, error);
    return r && !error->result ? eng_comm_failed(z, r) : r;
}

zero_result eng_updater_decide(zero_ctx *z, struct base_error *error)
{
    struct eng_updater *updater = &z->updater;
    if (!z->config.undecided)
        return ZERO_OK;
    zero_result r = find_reason(z);
    if (r)
        return r;
    if (updater->why) {
        eng_config_decide_update(&z->config, false);
        return ZERO_OK;
    }
    if (z->config.plan)
        return ZERO_OK;
    r = measure(z, error);
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

size_t eng_updater_bytes(const zero_ctx *z)
{
    const bool measures = strcmp(z->config.offload_update, "auto") == 0 && !z->updater.why;
    return measures ? eng_probe_bytes(base_pool_threads(z->pool)) : 0;
}
