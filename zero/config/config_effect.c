// Whether values of the configuration have an effect on the tensors that there are.

#include "zero/config/config.h"

#include "zero/model/layout.h"
#include "zero/model/registry.h"

#include <inttypes.h>

zero_result eng_config_check_model(const struct eng_config *config, const struct eng_model *model,
                                   struct base_error *error)
{
    size_t narrow = 0, trained = 0, narrow_trained = 0, with_moments = 0;
    for (size_t p = 0; p < model->param_count; p++) {
        const struct eng_param *param = &model->params[p];
        const bool is_narrow = param->dtype != ZERO_F32, trains = !param->frozen;
        narrow += is_narrow;
        trained += trains;
        narrow_trained += is_narrow && trains;
        with_moments += eng_model_moments(model, p) > 0;
    }
    if (config->no_masters && narrow == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "master=none, but all %zu tensors are f32, which are their own master "
                         "weights: it is for bf16 and f16",
                         model->param_count);
    if (config->no_masters && narrow_trained == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "master=none, but all %zu tensors of bf16 and f16 are frozen, and have no "
                         "master weights anyway",
                         narrow);
    if (config->moment_dtype != ZERO_F32 && with_moments == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "moments=%s, but no optimizer of the %zu tensors that train keeps moments",
                         config->moments, trained);
    if (config->comm_dtype != ZERO_DTYPE_DEFAULT && trained == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "comm_dtype=%s, but all %zu tensors are frozen: no gradient travels",
                         eng_dtype_name(config->comm_dtype), model->param_count);
    if (config->grads_nvme && trained == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_grads=nvme, but all %zu tensors are frozen: there are no sums",
                         model->param_count);
    return ZERO_OK;
}

zero_result eng_config_check_layout(const struct eng_config *config,
                                    const struct eng_layout *layout, struct base_error *error)
{
    size_t staged = 0;
    for (size_t s = 0; s < layout->bucket_count; s++)
        staged += !layout->buckets[s].persistent;
    if (config->params_nvme && staged == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_params=nvme, but no tensor has more than persist_numel=%" PRId64
                         " elements in a unit: all of them stay in memory",
                         config->persist_numel);
    return ZERO_OK;
}
