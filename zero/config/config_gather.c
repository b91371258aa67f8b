// How ranks come by parameters that others have updated: what ranks of a host share.

#include "zero/config/config.h"

#include <assert.h>
#include <string.h>

static bool may_share(const struct eng_config *config)
{
    // A whole copy a host would undo what stage 3 saves where ranks are on many of them: there it
    // is asked for.
    const bool apart =
        config->by_network && config->stage == 3 && strcmp(config->gather, "shared") != 0;
    return config->stage > 0 && !config->params_nvme && !config->resident && !apart;
}

// Units are gathered on demand, into memory.
static bool may_share_slots(const struct eng_config *config)
{
    return config->stage == 3 && !config->params_nvme && !config->resident;
}

// Ranks of one host can share what comes by the network.
static bool gains_by_slots(const struct eng_config *config)
{
    const int most = config->most_here ? config->most_here : config->local_world;
    return config->by_network && most > 1;
}

void eng_config_share(struct eng_config *config)
{
    config->shared = may_share(config);
    config->host_slots = !config->shared && may_share_slots(config) && gains_by_slots(config);
}

// One copy a host, or of what is gathered, unless the program has its own in any case.
void eng_config_decide_sharing(struct eng_config *config)
{
    const bool slots = strcmp(config->gather, "slots") == 0;
    eng_config_share(config);
    if (slots || strcmp(config->gather, "copy") == 0) {
        config->shared = false;
        config->host_slots = slots && may_share_slots(config);
    }
}

void eng_config_found_hosts(struct eng_config *config, int least, int most)
{
    assert(least >= 1 && least <= most && most <= config->world);
    config->least_here = least;
    config->most_here = most;
    eng_config_decide_sharing(config);
}

const char *eng_config_gather(const struct eng_config *config)
{
    if (config->stage == 0)
        return "none";
    if (!config->shared && !config->host_slots)
        return "copy";
    return config->undecided ? "undecided" : config->shared ? "shared" : "slots";
}

zero_result eng_config_decide_gather(struct eng_config *config, struct base_error *error)
{
    const bool slots = strcmp(config->gather, "slots") == 0;
    const bool asked = slots || strcmp(config->gather, "shared") == 0;
    if (slots && config->stage != 3)
        return zero_fail(error, ZERO_E_INVALID,
                         "gather=slots at stage %d: parameters are gathered into slots at stage 3 "
                         "only; take auto",
                         config->stage);
    if (asked && config->stage == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "gather=shared at stage 0: it gathers no parameters, every rank updates "
                         "a copy of its own; take stage 1, 2 or 3");
    if (asked && config->params_nvme)
        return zero_fail(error, ZERO_E_INVALID,
                         "gather=%s with offload_params=nvme: there is no copy in memory that "
                         "ranks could share; take copy, or auto",
                         config->gather);
    if (asked && config->resident)
        return zero_fail(error, ZERO_E_INVALID,
                         "gather=%s with device=%s and %s: each rank's working copies are on "
                         "its device; take copy, or auto",
                         config->gather, config->device,
                         config->streamed ? "offload_update=device" : "offload_optimizer=none");
    eng_config_decide_sharing(config);
    return ZERO_OK;
}
