// The rule of offload_update=auto: the device updates, unless a rank has a reason for the host.
//
// Of AdamW over bf16 with a micro-batch a step a device copies 12 bytes an element each way, and a
// host reads and writes 36. So a host is faster only if each rank has three times the rate of its
// copies in memory: beside an H200, which copies 50 GB/s each way (docs/benchmarks/gpu.md), that is
// 150 GB/s a GPU. With more micro-batches the host has more to do, and the device has not.

#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"

#include <stdio.h>
#include <string.h>

static void say(struct eng_updater *updater, const char *why)
{
    snprintf(updater->why, sizeof updater->why, "%s", why);
}

/** Whether any rank has a reason for the host, in updater->why. Collective, for settings and GPUs
 * may differ. */
static zero_result settle(zero_ctx *z, bool *host)
{
    struct eng_updater *updater = &z->update.updater;
    double found = *updater->why != '\0';
    const zero_result r = z->comm ? coll_all_reduce(z->comm, &found, 1, BASE_MAX) : ZERO_OK;
    if (r)
        return eng_comm_failed(z, r);
    *host = found > 0;
    if (*host && !*updater->why)
        say(updater, "another rank has a reason");
    return ZERO_OK;
}

/** Whether the device can run the kernels, which the host's way has no need of: no room for them is
 * a reason for it, too. */
static zero_result try_kernels(zero_ctx *z, struct base_error *error)
{
    struct base_error inner = {0};
    const zero_result r = device_can_update(z, &inner);
    if (r && r != ZERO_E_UNSUPPORTED && r != ZERO_E_NOMEM)
        return zero_fail(error, r, "%s", inner.message);
    if (r)
        say(&z->update.updater, inner.message);
    return ZERO_OK;
}

/** How ranks would move what the device updates; what was given of that has to work. */
static zero_result try_moves(zero_ctx *z, int ranks, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    struct eng_updater *updater = &z->update.updater;
    const bool given = config->over_nccl || config->nccl_comm != NULL ||
                       strcmp(config->device_register, "on") == 0;
    struct base_error inner = {0};
    if (config->world == 1 && !config->over_nccl)
        return ZERO_OK;
    if (!given && ranks > 1 && strcmp(config->device_transport, "nccl") == 0) {
        snprintf(updater->why, sizeof updater->why,
                 "%d ranks share GPU %d, and device_transport=nccl wants one for each", ranks,
                 config->device_number);
        return ZERO_OK;
    }
    const zero_result r = device_can_move(z, &inner);
    if (r == ZERO_E_UNSUPPORTED && !given)
        say(updater, inner.message);
    return r && *updater->why == '\0' ? zero_fail(error, r, "%s", inner.message) : ZERO_OK;
}

/** The room comes after the kernels: what the driver keeps of them is not free any more. */
static zero_result try_room(zero_ctx *z, struct base_error *error)
{
    struct eng_updater *updater = &z->update.updater;
    struct eng_gpu_fit fit;
    const zero_result r = z->memory.planner->device_fit(z, &fit, error);
    if (r)
        return r;
    if (fit.verdict == ENG_FITS_NOT)
        say(updater, fit.reason);
    return *updater->why || z->config.plan ? ZERO_OK : try_moves(z, fit.ranks, error);
}

zero_result eng_updater_decide(zero_ctx *z, struct base_error *error)
{
    if (!z->config.undecided)
        return ZERO_OK;
    const char *why = eng_config_bound_updater(&z->config, &z->model);
    bool host = false;
    zero_result r = ZERO_OK;
    if (why)
        say(&z->update.updater, why);
    else if (!z->config.plan)
        r = try_kernels(z, error);
    if (!r)
        r = settle(z, &host);
    if (!r && !host)
        r = try_room(z, error);
    if (!r && !host)
        r = settle(z, &host);
    if (!r)
        eng_config_decide_update(&z->config, !host);
    return r;
}
