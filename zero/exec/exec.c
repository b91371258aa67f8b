// Which executor a context has.

#include "zero/exec/executors.h"
#include "zero/exec/gpu.h"

#include <assert.h>

zero_result eng_exec_open(zero_ctx *z, struct base_error *error)
{
    const zero_result r = eng_device_open(z, error);
    eng_exec_choose(z);
    return r;
}

void eng_exec_choose(zero_ctx *z)
{
    // A plan is made without a device.
    z->exec = !z->device           ? &eng_exec_host
              : z->config.resident ? &eng_exec_cuda
                                   : &eng_exec_cuda_host;
    assert(z->exec->size == sizeof *z->exec);
}

zero_result eng_exec_check(const struct eng_config *config, const struct eng_model *model,
                           struct base_error *error)
{
    // Buffers of the caller's are memory of the host.
    for (size_t p = 0; config->on_device && p < model->param_count; p++)
        if (model->params[p].borrow || model->params[p].grad)
            return zero_fail(
                error, ZERO_E_INVALID,
                "tensor %s has %s of the caller's, and device=%s: only the engine's own "
                "buffers are there",
                model->params[p].name, model->params[p].borrow ? "a working copy" : "a gradient",
                config->device);
    for (size_t g = 0; config->resident && g < model->group_count; g++)
        if (model->groups[g].choice.own)
            return zero_fail(
                error, ZERO_E_UNSUPPORTED,
                "group %s: optimizer %s is the program's, and has no form for device=%s: take "
                "%s=host",
                model->groups[g].name, model->groups[g].optimizer->name, config->device,
                config->streamed ? "offload_update" : "offload_optimizer");
    return ZERO_OK;
}
