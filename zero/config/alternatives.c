// What else a job could be configured as: at a higher stage, or with state that is offloaded, or is
// updated by another processor.

#include "zero/config/alternatives.h"

#include "zero/model/registry.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** The highest stage that the program could take as it is. */
static int last_stage(const struct eng_config *config, const struct eng_model *model)
{
    uint64_t work, gradients;
    eng_model_borrowed(model, &work, &gradients);
    return config->local || gradients ? 1 : work ? 2 : 3;
}

/** State that is offloaded, and updated by either processor; or else updated by the other one. */
static bool offload(const struct eng_config *config, const struct eng_model *model,
                    struct eng_alternative *alternative)
{
    const bool offloaded = strcmp(config->offload_optimizer, "none") != 0;
    const bool bound = eng_config_bound_updater(config, model) != NULL;
    if (config->local && config->world > 1) // its bits depend on who adds up
        return false;
    snprintf(alternative->setting, sizeof alternative->setting, "%s",
             !offloaded         ? "offload_optimizer=host"
             : config->streamed ? "offload_update=host"
                                : "offload_update=device");
    alternative->count = 0;
    for (int device = 0; device < 2; device++) {
        if (device ? config->streamed || bound : offloaded && !config->streamed)
            continue;
        struct eng_config *other = &alternative->configs[alternative->count++];
        *other = *config;
        if (!offloaded)
            other->offload_optimizer = "host";
        eng_config_decide_update(other, device);
    }
    return alternative->count > 0;
}

/** Whether `gather` keeps ranks of a host from sharing what they could share. */
static bool keeps_apart(const struct eng_config *config)
{
    return strcmp(config->gather, "copy") == 0 || strcmp(config->gather, "slots") == 0;
}

bool eng_config_alternative(const struct eng_config *config, const struct eng_model *model,
                            bool of_gpu, int index, struct eng_alternative *alternative)
{
    // The present stage needs less of the host where ranks could share working copies, and do not.
    const int stage = config->stage + index + (of_gpu ? 1 : 0), last = last_stage(config, model);
    struct eng_config *other = alternative->configs;
    assert(config->stage <= last);
    if (stage > last)
        return of_gpu && stage == last + 1 && offload(config, model, alternative);
    alternative->count = 1;
    *other = *config;
    other->stage = stage;
    if (!of_gpu)
        eng_config_share(other);
    snprintf(alternative->setting, sizeof alternative->setting, "stage=%d%s", stage,
             !of_gpu && (other->shared || other->host_slots) && keeps_apart(config)
                 ? ", gather=auto"
                 : "");
    return true;
}
