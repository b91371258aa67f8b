#include "tools/zero-ckpt/tool.h"

#include "base/bfloat16.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t tool_part(const struct ckpt_table_tensor *tensor, uint64_t at)
{
    const uint64_t first = at % tensor->numel;
    return ckpt_block_end(first, tensor->numel) - first;
}

zero_result tool_read(struct ckpt_loader *loader, size_t tensor, int field, uint64_t at,
                      uint64_t count, void *out, struct base_error *error)
{
    const uint64_t numel = ckpt_loader_manifest(loader)->tensors[tensor].numel;
    return ckpt_loader_read(loader, tensor, (uint32_t)(at / numel), field, at % numel, count, out,
                            error);
}

void tool_widen(enum ckpt_dtype dtype, const void *elements, size_t count, float *out)
{
    const uint16_t *halves = elements;
    if (dtype == CKPT_F32)
        memcpy(out, elements, count * sizeof *out);
    else
        for (size_t i = 0; i < count; i++)
            out[i] =
                dtype == CKPT_BF16 ? base_f32_from_bf16(halves[i]) : base_f32_from_f16(halves[i]);
}

struct tool_text tool_field(const struct ckpt_manifest *manifest,
                            const struct ckpt_table_tensor *tensor, int field)
{
    static const struct {
        const char *optimizer;
        const char *moments[CKPT_MAX_FIELDS - 1];
    } known[] = {
        {"adagrad", {"sum"}},
        {"adam", {"exp_avg", "exp_avg_sq"}},
        {"adamw", {"exp_avg", "exp_avg_sq"}},
        {"lion", {"exp_avg"}},
        {"sgd", {"momentum_buffer"}},
    };
    struct tool_text out = {"weight"};
    if (field == 0)
        return out;
    snprintf(out.text, sizeof out.text, "moment%d", field);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].optimizer, manifest->groups[tensor->group].optimizer) &&
            known[i].moments[field - 1])
            snprintf(out.text, sizeof out.text, "%s", known[i].moments[field - 1]);
    return out;
}

char *tool_tensor_name(const struct ckpt_manifest *manifest, const struct ckpt_table_tensor *tensor,
                       int field)
{
    return field == 0
               ? tool_format("%s", tensor->name)
               : tool_format("%s.%s", tensor->name, tool_field(manifest, tensor, field).text);
}

char *tool_blob_key(const struct ckpt_blob *blob, uint32_t rank)
{
    return blob->of_rank ? tool_format("zero.blob.%s.%" PRIu32, blob->name, rank)
                         : tool_format("zero.blob.%s", blob->name);
}
