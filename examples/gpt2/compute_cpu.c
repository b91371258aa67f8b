#include "compute.h"

#include "gpt2_model.h"

#include <stdlib.h>

struct cpu {
    struct compute_options options;
    struct model *model;
    const uint16_t *target;
};

// A unit's tensors, as gpt2_model.h wants them.
struct weights {
    const real *tensor[UNIT_TENSORS_MAX];
};
struct gradients {
    real *tensor[UNIT_TENSORS_MAX];
};

static struct weights weights_of(const struct unit_weights *unit)
{
    struct weights w;
    for (int i = 0; i < UNIT_TENSORS_MAX; i++)
        w.tensor[i] = unit->tensor[i];
    return w;
}

static struct gradients gradients_of(const struct unit_gradients *unit)
{
    struct gradients d;
    for (int i = 0; i < UNIT_TENSORS_MAX; i++)
        d.tensor[i] = unit->tensor[i];
    return d;
}

static void *cpu_open(const struct compute_options *options, struct reason *reason)
{
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu)
        cpu->options = *options;
    else
        refuse(reason, "out of memory");
    return cpu;
}

static void cpu_release(void *compute)
{
    struct cpu *cpu = compute;
    model_free(cpu->model);
    cpu->model = NULL;
}

static void cpu_close(void *compute)
{
    free(compute);
}

static bool cpu_allocate(void *compute)
{
    struct cpu *cpu = compute;
    const struct compute_options *o = &cpu->options;
    cpu->model = model_create(&o->dims, o->windows, o->recompute, o->pool);
    return cpu->model != NULL;
}

static size_t cpu_bytes(const void *compute)
{
    const struct cpu *cpu = compute;
    return model_bytes(cpu->model);
}

static void *cpu_stream(const void *compute)
{
    (void)compute;
    return NULL;
}

static const char *cpu_failure(const void *compute)
{
    (void)compute;
    return NULL;
}

static void cpu_begin(void *compute, const uint16_t *token, const uint16_t *target,
                      struct batch batch)
{
    struct cpu *cpu = compute;
    cpu->target = target;
    model_begin(cpu->model, token, batch);
}

static void cpu_embed(void *compute, const struct unit_weights *embed)
{
    const struct weights w = weights_of(embed);
    model_embed(((struct cpu *)compute)->model, w.tensor);
}

static void cpu_block(void *compute, int layer, const struct unit_weights *block)
{
    const struct weights w = weights_of(block);
    model_block(((struct cpu *)compute)->model, layer, w.tensor);
}

static struct mean_loss cpu_head(void *compute, float loss_scale, const struct unit_weights *final,
                                 const struct unit_weights *embed,
                                 const struct unit_gradients *d_final,
                                 const struct unit_gradients *d_embed)
{
    const struct cpu *cpu = compute;
    const struct weights f = weights_of(final), e = weights_of(embed);
    const struct gradients d_f = gradients_of(d_final), d_e = gradients_of(d_embed);
    return (struct mean_loss){.value = model_head(cpu->model, cpu->target, loss_scale, f.tensor,
                                                  e.tensor, d_f.tensor, d_e.tensor)};
}

static struct mean_loss cpu_loss(void *compute, const struct unit_weights *final,
                                 const struct unit_weights *embed)
{
    const struct cpu *cpu = compute;
    const struct weights f = weights_of(final), e = weights_of(embed);
    return (struct mean_loss){.value = model_loss(cpu->model, cpu->target, f.tensor, e.tensor)};
}

static void cpu_block_backward(void *compute, int layer, const struct unit_weights *block,
                               const struct unit_gradients *d_block)
{
    const struct weights w = weights_of(block);
    const struct gradients d = gradients_of(d_block);
    model_block_backward(((struct cpu *)compute)->model, layer, w.tensor, d.tensor);
}

static void cpu_embed_backward(void *compute, const struct unit_gradients *d_embed)
{
    const struct gradients d = gradients_of(d_embed);
    model_embed_backward(((struct cpu *)compute)->model, d.tensor);
}

static void cpu_logits(void *compute, int row, const struct unit_weights *final,
                       const struct unit_weights *embed, float *logits)
{
    const struct weights f = weights_of(final), e = weights_of(embed);
    model_logits(((struct cpu *)compute)->model, row, 1, f.tensor, e.tensor, logits);
}

const struct compute_ops compute_cpu = {
    .size = sizeof(struct compute_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .bytes = cpu_bytes,
    .stream = cpu_stream,
    .failure = cpu_failure,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .block = cpu_block,
    .head = cpu_head,
    .loss = cpu_loss,
    .block_backward = cpu_block_backward,
    .embed_backward = cpu_embed_backward,
    .logits = cpu_logits,
};
