#include "zero/snapshot/snapshot.h"

#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum ckpt_dtype eng_ckpt_dtype(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_F32:
        return CKPT_F32;
    case ZERO_BF16:
        return CKPT_BF16;
    case ZERO_F16:
        return CKPT_F16;
    default:
        return CKPT_OTHER;
    }
}

static const char *now_text(char text[32])
{
    const time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        return "1970-01-01T00:00:00Z";
    return text;
}

struct ckpt_state eng_describe_state(const zero_ctx *z, const struct eng_moment *moment)
{
    return (struct ckpt_state){
        .step = moment->step,
        .updates = moment->updates,
        .skips = moment->skips,
        .micro_batches = (uint64_t)moment->micro_batches,
        .sum_group = (uint64_t)z->config.sum_group,
        .seed = z->config.seed,
        .has_loss_scale = z->config.loss_scale != ENG_LOSS_SCALE_OFF,
        .loss_scale_dynamic = moment->scale.dynamic,
        .loss_scale = moment->scale.value,
        .loss_scale_clean = moment->scale.clean,
        .local = z->config.local,
        .comm_dtype = eng_ckpt_dtype(z->config.comm_dtype),
        .stage = z->config.stage,
    };
}

static void describe_hyper(const zero_hyper *hyper, struct ckpt_group *out)
{
    double values[ENG_HYPERS];
    memcpy(values, hyper, sizeof values);
    out->hypers = ENG_HYPERS;
    for (int i = 0; i < ENG_HYPERS; i++) {
        snprintf(out->hyper[i].name, sizeof out->hyper[i].name, "%s", eng_hyper_names[i]);
        out->hyper[i].value = values[i];
    }
}

static bool describe_groups(const zero_ctx *z, const struct eng_moment *moment,
                            struct ckpt_manifest *manifest)
{
    manifest->groups = base_calloc(z->model.group_count, sizeof *manifest->groups);
    if (!manifest->groups)
        return false;
    manifest->group_count = z->model.group_count;
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        struct ckpt_group *out = &manifest->groups[g];
        out->name = base_strdup(group->name);
        out->optimizer = base_strdup(group->optimizer->name);
        out->decay = base_strdup(eng_decay_name(group));
        out->nesterov = group->choice.nesterov;
        out->frozen = moment->frozen[g];
        describe_hyper(&moment->hyper[g], out);
        if (!out->name || !out->optimizer || !out->decay)
            return false;
    }
    return true;
}

static bool describe_tensors(const zero_ctx *z, struct ckpt_manifest *manifest)
{
    manifest->tensors = base_calloc(z->model.param_count, sizeof *manifest->tensors);
    if (!manifest->tensors)
        return false;
    manifest->tensor_count = z->model.param_count;
    for (size_t p = 0; p < z->model.param_count; p++) {
        const struct eng_param *param = &z->model.params[p];
        struct ckpt_table_tensor *out = &manifest->tensors[p];
        *out = (struct ckpt_table_tensor){
            .name = base_strdup(param->name),
            .ndim = param->ndim,
            .slices = (uint64_t)param->slice_count,
            .numel = param->slice_numel,
            .dtype = eng_ckpt_dtype(param->dtype),
            .grad_dtype = eng_ckpt_dtype(param->grad_dtype),
            .group = (uint32_t)param->group,
            .trains = !param->frozen,
            .fields = eng_state_fields(z, (zero_param)p),
        };
        memcpy(out->shape, param->shape, sizeof param->shape);
        for (int f = 0; f < out->fields; f++)
            out->field[f] = eng_ckpt_dtype(eng_state_dtype(z, (zero_param)p, f));
        if (!out->name)
            return false;
    }
    return true;
}

static bool describe_blobs(const zero_ctx *z, struct ckpt_manifest *manifest)
{
    const size_t count = eng_blob_count(z), world = (size_t)z->config.world;
    manifest->blobs = base_calloc(count, sizeof *manifest->blobs);
    if (!manifest->blobs)
        return false;
    manifest->blob_count = count;
    for (size_t i = 0; i < count; i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        struct ckpt_blob *out = &manifest->blobs[i];
        out->of_rank = blob->scope == ZERO_OF_RANK;
        out->name = base_strdup(blob->name);
        out->bytes = base_calloc(out->of_rank ? world : 1, sizeof *out->bytes);
        if (!out->name || !out->bytes)
            return false;
        out->bytes[0] = blob->bytes;
    }
    return true;
}

/** What each rank's shard has. */
static bool describe_shards(const zero_ctx *z, struct ckpt_manifest *manifest)
{
    const size_t world = (size_t)z->config.world;
    manifest->shards = base_calloc(world, sizeof *manifest->shards);
    if (!manifest->shards)
        return false;
    manifest->world = world;
    for (size_t r = 0; r < world; r++) {
        struct ckpt_shard_entry *shard = &manifest->shards[r];
        struct ckpt_run run;
        for (size_t i = 0; i < z->layout.slice_count; i++)
            shard->run_count += eng_own_run(&z->layout, &z->layout.slices[i], (int)r, &run);
        shard->runs = base_calloc(shard->run_count, sizeof run);
        if (!shard->runs)
            return false;
        size_t n = 0;
        for (size_t i = 0; i < z->layout.slice_count; i++)
            n += eng_own_run(&z->layout, &z->layout.slices[i], (int)r, &shard->runs[n]);
        assert(n == shard->run_count);
    }
    return true;
}

zero_result eng_describe(const zero_ctx *z, const struct eng_moment *moment,
                         struct ckpt_manifest *manifest, struct base_error *error)
{
    char created[32];
    *manifest = (struct ckpt_manifest){
        .library = base_strdup(zero_version()),
        .job = base_strdup(z->config.name),
        .created = base_strdup(now_text(created)),
        .state = eng_describe_state(z, moment),
    };
    if (manifest->library && manifest->job && manifest->created &&
        describe_groups(z, moment, manifest) && describe_tensors(z, manifest) &&
        describe_blobs(z, manifest) && describe_shards(z, manifest))
        return ZERO_OK;
    ckpt_manifest_free(manifest);
    return zero_fail(error, ZERO_E_NOMEM, "no memory for the manifest of %zu tensors",
                     z->model.param_count);
}
