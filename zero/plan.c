#include "zero/plan.h"

#include "base/arena.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void add_row(struct eng_plan *plan, const char *purpose, size_t bytes)
{
    plan->rows[plan->row_count++] = (struct eng_plan_row){purpose, "host", bytes};
    plan->total += bytes;
}

void eng_plan_count(struct eng_plan *plan, const struct eng_config *config,
                    const struct eng_placement *placement, int moments, size_t tables,
                    size_t transport)
{
    plan->row_count = 0;
    plan->total = 0;
    add_row(plan, config->shared ? "working copies, shared by the host" : "working copies",
            placement->params_part);
    add_row(plan, "gathered units", placement->gather.bytes);
    add_row(plan, "gradients", placement->grads.bytes);
    add_row(plan, "gradient sums", placement->sums_bytes);
    add_row(plan, "unfinished blocks of sums", placement->blocks_bytes);
    add_row(plan, "moments", (size_t)moments * placement->moments_bytes);
    add_row(plan, "master weights", placement->masters_bytes);
    add_row(plan, "tables", tables);
    add_row(plan, "transport", transport);
}

/** Bytes for people: exact below 10 KiB. */
static const char *human(size_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 10240 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

static void write_model(struct base_text *text, const struct eng_config *config,
                        const struct eng_model *model, const struct eng_layout *layout)
{
    uint64_t elements = 0;
    for (size_t p = 0; p < model->param_count; p++)
        elements += (uint64_t)model->params[p].slice_numel * (uint64_t)model->params[p].slice_count;
    base_text_add(text, "plan of rank %d of %d, stage %d\n", config->rank, config->world,
                  config->stage);
    base_text_add(text, "  model        %" PRIu64 " elements, %zu tensors, %zu units, %zu groups\n",
                  elements, model->param_count, layout->unit_count, model->group_count);
    base_text_add(text, "  layout       %zu granules of %d elements\n", layout->granules,
                  ENG_GRANULE);
    base_text_add(text, "  micro-batches %d a step, at most %d a rank\n", config->micro_batches,
                  (config->micro_batches + config->world - 1) / config->world);
}

/** The two choices that decide what travels, and why. */
static void write_choices(struct base_text *text, const struct eng_config *config)
{
    if (config->stage == 0)
        base_text_add(text,
                      "  gather       nothing: at stage 0 every rank updates a copy of its own\n");
    else if (config->shared)
        base_text_add(text,
                      "  gather       shared: one copy for the host's %d rank%s, updated in place "
                      "(gather=%s, transport %s)\n",
                      config->world, config->world > 1 ? "s" : "", config->gather,
                      config->transport);
    else
        base_text_add(text, "  gather       copy: every rank copies what others have updated "
                            "(gather=copy)\n");
    if (config->native)
        base_text_add(text,
                      "  reduction    native: each rank adds up its own micro-batches; the "
                      "same bits at %d ranks only\n",
                      config->world);
    else if (config->sum_group > 1)
        base_text_add(text, "  reduction    canonical, blocks of %d micro-batches first\n",
                      config->sum_group);
    else
        base_text_add(text, "  reduction    canonical, in the order of the micro-batches\n");
}

static void write_host(struct base_text *text, const struct eng_config *config,
                       const struct eng_plan_host *host)
{
    char size[32];
    if (host->private_path)
        base_text_add(text, "  transport    %s, private memory: %s\n", config->transport,
                      host->private_path);
    if (host->huge_bytes)
        base_text_add(text, "  huge pages   %s\n", human(host->huge_bytes, size));
}

static void write_slots(struct base_text *text, const char *what, const struct eng_slot_plan *slots)
{
    char size[32];
    for (int c = 0; c < slots->class_count; c++)
        base_text_add(text, "  %-18s %3d of %s for %d units\n", what, slots->classes[c].slots,
                      human(slots->classes[c].bytes, size), slots->classes[c].units);
}

zero_result eng_plan_write(struct eng_plan *plan, const struct eng_config *config,
                           const struct eng_kernels *kernels, const struct eng_model *model,
                           const struct eng_layout *layout, const struct eng_placement *placement,
                           const struct eng_plan_host *host, struct base_error *error)
{
    char size[32];
    const size_t room = 16384;
    struct base_text text = {base_calloc(room, 1), room, 0};
    if (!text.bytes)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the plan's text");
    write_model(&text, config, model, layout);
    base_text_add(&text, "  kernels      %s\n", kernels->name);
    write_choices(&text, config);
    write_host(&text, config, host);
    base_text_add(&text, "memory, bytes of this rank\n");
    for (int i = 0; i < plan->row_count; i++)
        base_text_add(&text, "  %-34s %-6s %16zu  %s\n", plan->rows[i].purpose, plan->rows[i].tier,
                      plan->rows[i].bytes, human(plan->rows[i].bytes, size));
    base_text_add(&text, "  %-34s %-6s %16zu  %s\n", "total", "", plan->total,
                  human(plan->total, size));
    base_text_add(&text, "slots\n");
    write_slots(&text, "gathered units", &placement->gather);
    write_slots(&text, "gradients", &placement->grads);
    base_text_add(&text, "configuration\n");
    eng_config_text(config, text.bytes + text.used, text.size - text.used);
    base_free(plan->text);
    plan->text = text.bytes;
    return ZERO_OK;
}

void eng_plan_free(struct eng_plan *plan)
{
    base_free(plan->text);
    memset(plan, 0, sizeof *plan);
}
