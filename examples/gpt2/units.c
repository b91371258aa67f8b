#include "units.h"

#include "base/kernels/kernels.h"
#include "gpt2_pool.h"

#include <stdlib.h>
#include <string.h>

#define ELEMENTS_A_TASK 65536

// Units are of three kinds, and of each kind one at a time is open.
enum unit_kind { EMBED_UNIT, BLOCK_UNIT, FINAL_UNIT, UNIT_KINDS };

struct unit_entry {
    struct tensor tensor[UNIT_TENSORS_MAX];
    zero_param param[UNIT_TENSORS_MAX];
};

struct units {
    zero_ctx *z;
    struct dims dims;
    zero_dtype dtype;
    uint64_t seed;
    struct pool *pool;
    zero_stream stream;
    struct unit_entry *entry;
    // On the CPU at bf16 and f16: how to convert, and for a unit of each kind its copies in fp32.
    bool converts;
    const struct base_kernels *kernels;
    float *weights[UNIT_KINDS], *gradients[UNIT_KINDS];
    size_t bytes;
};

static enum unit_kind kind_of(const struct units *units, int unit)
{
    if (unit == 0)
        return EMBED_UNIT;
    return unit <= units->dims.layers ? BLOCK_UNIT : FINAL_UNIT;
}

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)slice;
    const struct units *units = user;
    for (int u = 0; u < unit_count(&units->dims); u++)
        for (int i = 0; i < unit_tensors(&units->dims, u); i++) {
            const struct tensor *tensor = &units->entry[u].tensor[i];
            if (strcmp(tensor->name, name) == 0) {
                tensor_fill(tensor, &units->dims, units->seed, first, count, out);
                return ZERO_OK;
            }
        }
    return ZERO_E_INVALID;
}

static zero_result add_tensor(struct units *units, int unit, int index)
{
    struct unit_entry *entry = &units->entry[unit];
    struct tensor *tensor = &entry->tensor[index];
    *tensor = unit_tensor(&units->dims, unit, index);
    zero_param_desc desc = zero_param_default();
    desc.name = tensor->name;
    desc.dtype = units->dtype;
    desc.ndim = tensor->ndim;
    for (int d = 0; d < tensor->ndim; d++)
        desc.shape[d] = tensor->shape[d];
    desc.unit = unit;
    desc.group = tensor->ndim == 2 ? 0 : 1;
    desc.fill = fill;
    desc.fill_user = units;
    return zero_add_param(units->z, &entry->param[index], &desc);
}

static zero_result add_all(struct units *units, const zero_group_desc *optimizer)
{
    static const char *const groups[] = {"decay", "no_decay"};
    for (int g = 0; g < 2; g++) {
        zero_group_desc desc = *optimizer;
        desc.name = groups[g];
        const zero_result result = zero_add_group(units->z, NULL, &desc);
        if (result)
            return result;
    }
    for (int u = 0; u < unit_count(&units->dims); u++)
        for (int i = 0; i < unit_tensors(&units->dims, u); i++) {
            const zero_result result = add_tensor(units, u, i);
            if (result)
                return result;
        }
    return ZERO_OK;
}

static zero_result allocate_copies(struct units *units)
{
    const int unit_of_kind[UNIT_KINDS] = {0, 1, units->dims.layers + 1};
    for (int kind = 0; kind < UNIT_KINDS; kind++) {
        const size_t bytes = unit_numel(&units->dims, unit_of_kind[kind]) * sizeof(float);
        const size_t room = (bytes + 63) / 64 * 64;
        units->weights[kind] = aligned_alloc(64, room);
        units->gradients[kind] = aligned_alloc(64, room);
        if (!units->weights[kind] || !units->gradients[kind])
            return ZERO_E_NOMEM;
        units->bytes += 2 * room;
    }
    return ZERO_OK;
}

struct conversion {
    const struct units *units;
    float *wide;
    const uint16_t *from;
    uint16_t *to;
};

static void widen(void *arg, size_t first, size_t count)
{
    const struct conversion *c = arg;
    const struct base_kernels *k = c->units->kernels;
    (c->units->dtype == ZERO_F16 ? k->from_f16 : k->from_bf16)(count, c->from + first,
                                                               c->wide + first);
}

static void narrow(void *arg, size_t first, size_t count)
{
    const struct conversion *c = arg;
    const struct base_kernels *k = c->units->kernels;
    (c->units->dtype == ZERO_F16 ? k->to_f16 : k->to_bf16)(count, c->wide + first, c->to + first);
}

zero_result units_create(struct units **out, zero_ctx *z, const struct dims *dims, zero_dtype dtype,
                         const zero_group_desc *optimizer, uint64_t seed, struct pool *pool,
                         zero_stream stream)
{
    *out = NULL;
    struct units *units = calloc(1, sizeof *units);
    if (!units)
        return ZERO_E_NOMEM;
    *units = (struct units){.z = z, .dims = *dims, .dtype = dtype, .seed = seed, .pool = pool};
    units->stream = stream;
    units->converts = dtype != ZERO_F32 && !stream;
    units->kernels = base_kernels_find("auto");
    zero_result result = ZERO_E_NOMEM;
    units->entry = calloc((size_t)unit_count(dims), sizeof *units->entry);
    if (!units->entry)
        goto fail;
    result = add_all(units, optimizer);
    if (result == ZERO_OK && units->converts)
        result = allocate_copies(units);
    if (result)
        goto fail;
    *out = units;
    return ZERO_OK;
fail:
    units_free(units);
    return result;
}

void units_free(struct units *units)
{
    if (!units)
        return;
    for (int kind = 0; kind < UNIT_KINDS; kind++) {
        free(units->weights[kind]);
        free(units->gradients[kind]);
    }
    free(units->entry);
    free(units);
}

size_t units_bytes(const struct units *units)
{
    return units->bytes;
}

// Where tensor `index` lies in a copy of its unit.
static float *part_of(float *copy, const struct unit_entry *entry, int index)
{
    for (int i = 0; i < index; i++)
        copy += tensor_numel(&entry->tensor[i]);
    return copy;
}

zero_result units_open(struct units *units, int unit, struct unit_weights *weights)
{
    const zero_result result = zero_gather(units->z, unit, units->stream);
    if (result)
        return result;
    const struct unit_entry *entry = &units->entry[unit];
    for (int i = 0; i < unit_tensors(&units->dims, unit); i++) {
        const void *from = zero_param_ptr(units->z, entry->param[i], 0);
        if (!units->converts) {
            weights->tensor[i] = from;
            continue;
        }
        float *copy = part_of(units->weights[kind_of(units, unit)], entry, i);
        struct conversion c = {.units = units, .wide = copy, .from = from};
        pool_run_parts(units->pool, widen, &c, tensor_numel(&entry->tensor[i]), ELEMENTS_A_TASK);
        weights->tensor[i] = copy;
    }
    return ZERO_OK;
}

zero_result units_close(struct units *units, int unit)
{
    return zero_release(units->z, unit, units->stream);
}

zero_result units_open_gradient(struct units *units, int unit, struct unit_gradients *gradients)
{
    const zero_result result = zero_grad_open_raw(units->z, unit, units->stream);
    if (result)
        return result;
    const struct unit_entry *entry = &units->entry[unit];
    for (int i = 0; i < unit_tensors(&units->dims, unit); i++)
        gradients->tensor[i] = units->converts
                                   ? part_of(units->gradients[kind_of(units, unit)], entry, i)
                                   : zero_grad_ptr(units->z, entry->param[i], 0);
    return ZERO_OK;
}

zero_result units_close_gradient(struct units *units, int unit)
{
    const struct unit_entry *entry = &units->entry[unit];
    for (int i = 0; units->converts && i < unit_tensors(&units->dims, unit); i++) {
        struct conversion c = {.units = units,
                               .wide = part_of(units->gradients[kind_of(units, unit)], entry, i),
                               .to = zero_grad_ptr(units->z, entry->param[i], 0)};
        pool_run_parts(units->pool, narrow, &c, tensor_numel(&entry->tensor[i]), ELEMENTS_A_TASK);
    }
    return zero_grad_done(units->z, unit, units->stream);
}
