#include "gpt2_trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/** Seconds of a clock that only runs forward. */
static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static zero_dtype dtype_of(const struct options *o)
{
    static const zero_dtype dtypes[] = {
        [DTYPE_F32] = ZERO_F32, [DTYPE_BF16] = ZERO_BF16, [DTYPE_F16] = ZERO_F16};
    return dtypes[o->dtype];
}

static zero_result join(struct trainer *t, const struct place *place)
{
    const struct options *o = t->options;
    zero_config config = zero_config_default();
    config.stage = o->stage;
    config.device = t->ops->name;
    config.transport = transport_name(o->transport);
    config.team = place->team;
    config.world = place->world;
    config.rank = place->rank;
    config.micro_batches = o->micro_batches;
    config.prefetch_units = o->prefetch < 0 ? 0 : o->prefetch > 0 ? o->prefetch : ZERO_OFF;
    config.cpu_threads = o->threads;
    config.seed = o->seed;
    config.reduction = o->accumulate_local ? "local" : NULL;
    config.offload_optimizer = o->offload_optimizer;
    config.offload_params = o->offload_params;
    config.offload_grads = o->offload_grads;
    config.nvme_dir = o->nvme_dir;
    config.io = o->io;
    config.tile_bytes = o->tile_bytes;
    config.host_bytes = o->host_bytes;
    config.compress = o->compress;
    return zero_open(&t->z, &config);
}

// Gives up for a reason that the other ranks don't know: they must not be left waiting.
static zero_result give_up(struct trainer *t, zero_result result)
{
    zero_abort(t->z, t->failure.text);
    return result;
}

static zero_result register_model(struct trainer *t)
{
    const struct options *o = t->options;
    zero_group_desc optimizer = zero_group_default();
    optimizer.optimizer = optimizer_name(o->optimizer);
    optimizer.nesterov = o->nesterov;
    return units_create(&t->units, t->z, &o->dims, dtype_of(o), &optimizer, o->seed, t->pool,
                        t->ops->stream(t->compute));
}

// What --device names; NULL: this program was built without.
static const struct compute_ops *find_ops(const struct options *o)
{
#ifdef GPT2_CUDA
    if (o->device == DEVICE_CUDA)
        return &compute_cuda;
#endif
    return o->device == DEVICE_CPU ? &compute_cpu : NULL;
}

// Finds what the rank computes with: on a GPU, the one that zero has chosen.
static zero_result open_device(struct trainer *t)
{
    const struct options *o = t->options;
    const bool cuda = o->device == DEVICE_CUDA;
    const struct compute_options options = {.dims = o->dims,
                                            .windows = o->batch,
                                            .recompute = o->recompute,
                                            .pool = t->pool,
                                            .gpu = zero_device(t->z),
                                            .bf16 = o->dtype == DTYPE_BF16};
    if (cuda != (options.gpu >= 0)) {
        refuse(&t->failure, "--device %s, but zero was told otherwise: device=%s", t->ops->name,
               cuda ? "cpu" : "cuda");
        return give_up(t, ZERO_E_INVALID);
    }
    t->compute = t->ops->open(&options, &t->failure);
    return t->compute ? ZERO_OK : give_up(t, ZERO_E_UNSUPPORTED);
}

static zero_result allocate(struct trainer *t)
{
    const struct options *o = t->options;
    const size_t tokens = (size_t)o->batch * (size_t)o->dims.context;
    const bool allocated = t->ops->allocate(t->compute);
    t->token = calloc(tokens, sizeof *t->token);
    t->target = calloc(tokens, sizeof *t->target);
    if (allocated && t->token && t->target)
        return ZERO_OK;
    const char *why = t->ops->failure(t->compute);
    refuse(&t->failure, "rank %d: no memory for the activations of %zu tokens%s%s", zero_rank(t->z),
           tokens, why ? ": " : "", why ? why : "");
    return give_up(t, ZERO_E_NOMEM);
}

// What would fail at the end is better known at the beginning.
static zero_result check_save(struct trainer *t)
{
    const char *path = t->options->save;
    if (!path || zero_rank(t->z) != 0)
        return ZERO_OK;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    struct stat status;
    bool possible = folder && access(folder, W_OK | X_OK) == 0 &&
                    (lstat(path, &status) == 0 || errno == ENOENT);
    if (!possible)
        refuse(&t->failure, "--save %s: no file can be made there: %s", path, strerror(errno));
    else if (lstat(path, &status) == 0 && !S_ISREG(status.st_mode))
        possible = refuse(&t->failure, "--save %s: it is there and no regular file", path);
    free(folder);
    return possible ? ZERO_OK : give_up(t, ZERO_E_IO);
}

zero_result trainer_open(struct trainer *trainer, const struct options *options,
                         const struct data *data, const struct place *place)
{
    *trainer = (struct trainer){.options = options, .data = data, .ops = find_ops(options)};
    if (!trainer->ops) {
        refuse(&trainer->failure, "--device cuda: this gpt2 was built without CUDA");
        return ZERO_E_UNSUPPORTED;
    }
    trainer->pool = pool_create(options->threads);
    if (!trainer->pool) {
        refuse(&trainer->failure, "cannot start %d threads", options->threads);
        return ZERO_E_NOMEM;
    }
    zero_result result = join(trainer, place);
    if (result)
        return result;
    result = open_device(trainer);
    if (result)
        return result;
    result = register_model(trainer);
    if (result)
        return result;
    result = zero_commit(trainer->z);
    if (result)
        return result;
    trainer->micro_total = zero_micro_total(trainer->z);
    result = check_save(trainer);
    return result ? result : allocate(trainer);
}

void trainer_close(struct trainer *trainer)
{
    free(trainer->target);
    free(trainer->token);
    if (trainer->compute)
        trainer->ops->release(trainer->compute);
    units_free(trainer->units);
    zero_close(trainer->z);
    if (trainer->compute) // whose stream zero may use until then
        trainer->ops->close(trainer->compute);
    pool_free(trainer->pool);
    *trainer = (struct trainer){0};
}

const char *trainer_failure(const struct trainer *trainer)
{
    return *trainer->failure.text ? trainer->failure.text : zero_last_error(trainer->z);
}

zero_result trainer_import(struct trainer *trainer)
{
    if (!trainer->options->init)
        return ZERO_OK;
    return zero_import(trainer->z, trainer->options->init, "transformer.");
}

// What failed on a GPU, if anything did, where it was queued: zero would not know.
static zero_result check_device(struct trainer *t)
{
    const char *why = t->ops->failure(t->compute);
    if (!why)
        return ZERO_OK;
    refuse(&t->failure, "rank %d: %s", zero_rank(t->z), why);
    return give_up(t, ZERO_E_DEVICE);
}

static zero_result forward(struct trainer *t, const uint16_t *token, const uint16_t *target,
                           struct batch batch)
{
    struct unit_weights w = {{NULL}};
    zero_result result = units_open(t->units, 0, &w);
    if (result)
        return result;
    t->ops->begin(t->compute, token, target, batch);
    t->ops->embed(t->compute, &w);
    result = units_close(t->units, 0);
    for (int layer = 0; layer < t->options->dims.layers && result == ZERO_OK; layer++) {
        result = units_open(t->units, 1 + layer, &w);
        if (result)
            return result;
        t->ops->block(t->compute, layer, &w);
        result = units_close(t->units, 1 + layer);
    }
    return result;
}

// Opens what the head needs: the last layer norm, and the embeddings it is tied to.
static zero_result open_head(struct trainer *t, struct unit_weights *final,
                             struct unit_weights *embed)
{
    const zero_result result = units_open(t->units, t->options->dims.layers + 1, final);
    return result ? result : units_open(t->units, 0, embed);
}

static zero_result close_head(struct trainer *t)
{
    const zero_result result = units_close(t->units, 0);
    return result ? result : units_close(t->units, t->options->dims.layers + 1);
}

static zero_result give_loss(struct trainer *t, const struct mean_loss *loss)
{
    return loss->there ? zero_metric_from(t->z, "loss", loss->there, t->ops->stream(t->compute))
                       : zero_metric(t->z, "loss", loss->value);
}

// d_embed stays open: the embeddings add to it at the end of backward.
static zero_result head(struct trainer *t, struct unit_gradients *d_embed, struct mean_loss *loss)
{
    const int last = t->options->dims.layers + 1;
    struct unit_weights final = {{NULL}}, embed = {{NULL}};
    struct unit_gradients d_final = {{NULL}};
    zero_result result = open_head(t, &final, &embed);
    if (result)
        return result;
    result = units_open_gradient(t->units, 0, d_embed);
    if (result)
        return result;
    result = units_open_gradient(t->units, last, &d_final);
    if (result)
        return result;
    *loss =
        t->ops->head(t->compute, (float)zero_loss_scale(t->z), &final, &embed, &d_final, d_embed);
    result = units_close_gradient(t->units, last);
    return result ? result : close_head(t);
}

static zero_result block_backward(struct trainer *t, int layer)
{
    const int unit = 1 + layer;
    struct unit_weights w = {{NULL}};
    struct unit_gradients d = {{NULL}};
    zero_result result = units_open(t->units, unit, &w);
    if (result)
        return result;
    result = units_open_gradient(t->units, unit, &d);
    if (result)
        return result;
    t->ops->block_backward(t->compute, layer, &w, &d);
    result = units_close_gradient(t->units, unit);
    return result ? result : units_close(t->units, unit);
}

static zero_result backward(struct trainer *t, struct unit_gradients *d_embed)
{
    for (int layer = t->options->dims.layers - 1; layer >= 0; layer--) {
        const zero_result result = block_backward(t, layer);
        if (result)
            return result;
    }
    t->ops->embed_backward(t->compute, d_embed);
    return units_close_gradient(t->units, 0);
}

static void take_samples(struct trainer *t, const zero_micro *micro)
{
    const struct options *o = t->options;
    const uint64_t batch = (uint64_t)o->batch;
    const uint64_t first = (micro->step * (uint64_t)t->micro_total + micro->index) * batch;
    for (uint64_t b = 0; b < batch; b++)
        data_sample(t->data, o->dims.context, o->order == ORDER_SHUFFLED, o->seed, first + b,
                    t->token + b * (uint64_t)o->dims.context,
                    t->target + b * (uint64_t)o->dims.context);
}

static zero_result micro_batch(struct trainer *t, int i)
{
    const struct options *o = t->options;
    zero_micro micro = {.struct_size = sizeof micro};
    zero_result result = zero_micro_begin(t->z, i, &micro);
    if (result)
        return result;
    take_samples(t, &micro);
    result = forward(t, t->token, t->target,
                     (struct batch){.windows = o->batch, .length = o->dims.context});
    if (result)
        return result;
    struct mean_loss loss;
    struct unit_gradients d_embed = {{NULL}};
    result = head(t, &d_embed, &loss);
    if (result)
        return result;
    result = backward(t, &d_embed);
    if (!result)
        result = check_device(t);
    if (!result)
        result = give_loss(t, &loss);
    // zero-run makes tokens/s of it.
    return result ? result : zero_metric(t->z, "tokens", (double)o->batch * o->dims.context);
}

static double learning_rate(const struct options *o, uint64_t n)
{
    const uint64_t warmup = (uint64_t)o->warmup, total = (uint64_t)o->steps;
    switch (o->schedule) {
    case SCHEDULE_LINEAR:
        return zero_schedule_linear(n, o->lr, warmup, total, o->min_lr);
    case SCHEDULE_COSINE:
        return zero_schedule_cosine(n, o->lr, warmup, total, o->min_lr);
    default:
        return zero_schedule_constant(n, o->lr, warmup);
    }
}

static zero_result update(struct trainer *t, double lr)
{
    const struct options *o = t->options;
    zero_hyper hyper[2];
    for (int g = 0; g < 2; g++)
        hyper[g] = (zero_hyper){.lr = lr,
                                .beta1 = o->beta1,
                                .beta2 = o->beta2,
                                .eps = o->eps,
                                .weight_decay = g == 0 ? o->weight_decay : 0};
    zero_step_args args = zero_step_args_default();
    args.group_count = 2;
    args.hyper = hyper;
    args.scale = 1.0 / t->micro_total;
    args.max_norm = o->clip;
    return zero_step(t->z, &args, t->ops->stream(t->compute));
}

/** Adds all that was taken since commit, by evaluations, saves and loads, too, or subtracts it. */
static zero_result add_time(const struct trainer *t, double sign, struct step_time *time)
{
    zero_statistics total = {.struct_size = sizeof total};
    const zero_result result = zero_stats(t->z, &total);
    if (result)
        return result;
    time->gathers += sign * total.gather_wait_s;
    time->reductions += sign * total.reduce_wait_s;
    time->updates += sign * total.update_s;
    time->agreement += sign * total.step_wait_s;
    for (int i = 0; i < pool_threads(t->pool); i++) {
        time->products += sign * pool_meter(t->pool, i)->seconds;
        time->operations += sign * pool_meter(t->pool, i)->operations;
    }
    return ZERO_OK;
}

static zero_result take_step(struct trainer *trainer, struct step_report *report)
{
    const struct options *o = trainer->options;
    zero_step_result info = {.struct_size = sizeof info};
    for (int i = 0; i < zero_micro_count(trainer->z); i++) {
        const zero_result result = micro_batch(trainer, i);
        if (result)
            return result;
    }
    const double lr = learning_rate(o, trainer->step + 1), loss_scale = zero_loss_scale(trainer->z);
    zero_result result = update(trainer, lr);
    if (!result)
        result = zero_step_wait(trainer->z); // every step is printed
    if (!result)
        result = zero_step_info(trainer->z, &info);
    if (result)
        return result;
    trainer->step = info.step;
    *report = (struct step_report){.step = info.step,
                                   .norm = info.norm,
                                   .lr = lr,
                                   .loss_scale = loss_scale,
                                   .skipped = info.skipped};
    return zero_metric_mean(trainer->z, "loss", &report->loss);
}

zero_result trainer_step(struct trainer *trainer, struct step_report *report)
{
    const struct options *o = trainer->options;
    const double start = clock_seconds();
    zero_result result = add_time(trainer, -1, &trainer->time);
    if (!result)
        result = take_step(trainer, report);
    if (!result)
        result = add_time(trainer, 1, &trainer->time);
    const double seconds = clock_seconds() - start;
    trainer->train_s += seconds;
    report->tokens_per_s = (double)trainer->micro_total * o->batch * o->dims.context / seconds;
    return result;
}

static zero_result evaluate_micro(struct trainer *t, int i)
{
    const struct options *o = t->options;
    const uint64_t batch = (uint64_t)o->batch, context = (uint64_t)o->dims.context;
    zero_micro micro = {.struct_size = sizeof micro};
    zero_result result = zero_micro_begin(t->z, i, &micro);
    if (result)
        return result;
    for (uint64_t b = 0; b < batch; b++)
        data_sample_held(t->data, o->dims.context, micro.index * batch + b, t->token + b * context,
                         t->target + b * context);
    result = forward(t, t->token, t->target,
                     (struct batch){.windows = o->batch, .length = o->dims.context});
    if (result)
        return result;
    struct unit_weights final = {{NULL}}, embed = {{NULL}};
    result = open_head(t, &final, &embed);
    if (result)
        return result;
    const struct mean_loss loss = t->ops->loss(t->compute, &final, &embed);
    result = check_device(t);
    if (!result)
        result = give_loss(t, &loss);
    return result ? result : close_head(t);
}

zero_result trainer_evaluate(struct trainer *trainer, double *loss)
{
    const size_t batch = (size_t)trainer->options->batch;
    const size_t windows = data_held(trainer->data, trainer->options->dims.context);
    const size_t count = (windows + batch - 1) / batch;
    zero_result result =
        zero_eval_begin(trainer->z, count < EVALUATED_MOST ? (int32_t)count : EVALUATED_MOST);
    // All ranks leave before the same micro-batch.
    for (int i = 0;
         result == ZERO_OK && i < zero_micro_count(trainer->z) && !zero_stop_requested(trainer->z);
         i++)
        result = evaluate_micro(trainer, i);
    if (result == ZERO_OK)
        result = zero_eval_end(trainer->z);
    return result ? result : zero_metric_mean(trainer->z, "loss", loss);
}

zero_result trainer_logits(struct trainer *trainer, const uint16_t *token, int length,
                           float *logits)
{
    zero_result result =
        forward(trainer, token, NULL, (struct batch){.windows = 1, .length = length});
    if (result)
        return result;
    struct unit_weights final = {{NULL}}, embed = {{NULL}};
    result = open_head(trainer, &final, &embed);
    if (result)
        return result;
    trainer->ops->logits(trainer->compute, length - 1, &final, &embed, logits);
    result = check_device(trainer);
    return result ? result : close_head(trainer);
}
