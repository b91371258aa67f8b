#include "base/text.h"
#include "zero/snapshot/snapshot.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/** What is compared, and where to say what differs. */
struct comparison {
    const zero_ctx *z;
    const struct ckpt_manifest *manifest;
    const char *path;
    const zero_load_options *options;
    struct base_error *error;
};

/* ------------------------------------------------------------------ configuration */

/** A number that a run keeps: `key` was given, or can't be changed any more. */
static zero_result same_number(const struct comparison *c, const char *key, uint64_t saved,
                               uint64_t mine)
{
    return saved == mine ? ZERO_OK
                         : zero_fail(c->error, ZERO_E_INVALID,
                                     "%s was saved with %s=%" PRIu64 ", and this job has %" PRIu64,
                                     c->path, key, saved, mine);
}

static zero_result match_scale(const struct comparison *c)
{
    const struct eng_config *config = &c->z->config;
    const struct ckpt_state *state = &c->manifest->state;
    const bool mine = config->loss_scale != ENG_LOSS_SCALE_OFF;
    const bool dynamic = c->z->stepping.scale.dynamic;
    if (mine == state->has_loss_scale && dynamic == state->loss_scale_dynamic &&
        (dynamic || !mine || c->z->stepping.scale.value == state->loss_scale))
        return ZERO_OK;
    return zero_fail(c->error, ZERO_E_INVALID,
                     "%s was saved with a loss scale that is %s (%g), and this job's is %s (%g): "
                     "set loss_scale",
                     c->path,
                     state->loss_scale_dynamic ? "dynamic"
                     : state->has_loss_scale   ? "fixed"
                                               : "off",
                     state->loss_scale,
                     dynamic ? "dynamic"
                     : mine  ? "fixed"
                             : "off",
                     c->z->stepping.scale.value);
}

/** V is the checkpoint's unless the configuration fixes it. What zero_set_micro_batches() has made
 * it is state, like the step at which that was. */
static zero_result match_batch(const struct comparison *c, struct eng_match *match)
{
    const struct eng_config *config = &c->z->config;
    const uint64_t saved = c->manifest->state.micro_batches;
    const bool given = eng_config_given(config, "micro_batches");
    match->micro_batches = given && c->options->allow_new_batch ? config->micro_batches
                           : saved < INT32_MAX                  ? (int32_t)saved
                                                                : INT32_MAX;
    if (!given || c->options->allow_new_batch ||
        eng_config_source(config, "micro_batches") == ENG_SOURCE_CALL)
        return ZERO_OK;
    return same_number(c, "micro_batches", saved, (uint64_t)config->micro_batches);
}

static zero_result match_config(const struct comparison *c, struct eng_match *match)
{
    const struct eng_config *config = &c->z->config;
    const struct ckpt_state *state = &c->manifest->state;
    const char *reduction = state->local ? "local" : "canonical";
    zero_result r = match_batch(c, match);
    if (!r)
        r = same_number(c, "sum_group", state->sum_group, (uint64_t)config->sum_group);
    if (!r && (c->z->step > 0 || eng_config_given(config, "seed")))
        r = same_number(c, "seed", state->seed, config->seed);
    if (!r && strcmp(reduction, config->reduction) != 0)
        r = zero_fail(c->error, ZERO_E_INVALID,
                      "%s was saved with reduction=%s, and this job has %s", c->path, reduction,
                      config->reduction);
    if (!r && state->comm_dtype != eng_ckpt_dtype(config->comm_dtype))
        r = zero_fail(c->error, ZERO_E_INVALID,
                      "%s was saved with another comm_dtype than this job has", c->path);
    return r ? r : match_scale(c);
}

bool eng_match_hyper(const struct ckpt_group *saved, zero_hyper *hyper)
{
    double values[ENG_HYPERS];
    for (int i = 0; i < ENG_HYPERS; i++) {
        int found = 0;
        while (found < saved->hypers && strcmp(saved->hyper[found].name, eng_hyper_names[i]) != 0)
            found++;
        if (found == saved->hypers)
            return false;
        values[i] = saved->hyper[found].value;
    }
    memcpy(hyper, values, sizeof values);
    return saved->hypers == ENG_HYPERS;
}

/** What keeps a group from being the one that was saved; NULL: nothing. */
static const char *why_another(const struct eng_group *mine, const struct ckpt_group *saved)
{
    zero_hyper hyper;
    if (strcmp(saved->optimizer, mine->optimizer->name) != 0)
        return "optimizer";
    if (strcmp(saved->decay, eng_decay_name(mine)) != 0)
        return "decay";
    if (saved->nesterov != mine->choice.nesterov)
        return "choice of Nesterov's form";
    return eng_match_hyper(saved, &hyper) ? NULL : "set of hyper-parameters";
}

/** Whether a group of the model has been matched with group `saved`. */
static bool is_taken(const struct comparison *c, const struct eng_match *match, size_t saved)
{
    for (size_t g = 0; g < c->z->model.group_count; g++)
        if (match->group[g] == saved)
            return true;
    return false;
}

/** Whether a saved group is called as the library calls one without a name. */
static bool is_unnamed(const struct ckpt_manifest *manifest, size_t saved)
{
    char name[32];
    snprintf(name, sizeof name, "group%zu", saved);
    return strcmp(manifest->groups[saved].name, name) == 0;
}

/** The first saved group that is not taken yet and has this name, or, where that is NULL, none;
 * SIZE_MAX: there is no such group. */
static size_t find_group(const struct comparison *c, const struct eng_match *match,
                         const char *name)
{
    for (size_t s = 0; s < c->manifest->group_count; s++) {
        const bool alike =
            name ? strcmp(c->manifest->groups[s].name, name) == 0 : is_unnamed(c->manifest, s);
        if (alike && !is_taken(c, match, s))
            return s;
    }
    return SIZE_MAX;
}

/** Finds each group's counterpart: by its name; those without one, among what is left without a
 * name, by their order. */
static void find_groups(const struct comparison *c, struct eng_match *match)
{
    const struct eng_model *model = &c->z->model;
    for (size_t g = 0; g < model->group_count; g++)
        match->group[g] = SIZE_MAX;
    for (int named = 1; named >= 0; named--)
        for (size_t g = 0; g < model->group_count; g++)
            if (model->groups[g].named == (named != 0))
                match->group[g] = find_group(c, match, named ? model->groups[g].name : NULL);
}

/** Decides what becomes of one group of the model. */
static zero_result match_group(const struct comparison *c, size_t g, struct eng_match *match)
{
    const struct eng_group *mine = &c->z->model.groups[g];
    const size_t found = match->group[g];
    assert(found == SIZE_MAX || found < c->manifest->group_count);
    if (found == SIZE_MAX && !c->options->partial)
        return zero_fail(c->error, ZERO_E_INVALID,
                         "%s has no group %s%s (option partial: leave it)", c->path, mine->name,
                         mine->named ? "" : ", which was added without a name");
    const char *why = found == SIZE_MAX ? NULL : why_another(mine, &c->manifest->groups[found]);
    match->other_groups |= found != g || why;
    if (why)
        match->group[g] = SIZE_MAX;
    if (!why || c->options->partial)
        return ZERO_OK;
    return zero_fail(c->error, ZERO_E_INVALID,
                     "%s: group %s has another %s than it has here, where the optimizer is %s with "
                     "the decay %s (option partial: leave it)",
                     c->path, c->manifest->groups[found].name, why, mine->optimizer->name,
                     eng_decay_name(mine));
}

static zero_result match_groups(const struct comparison *c, struct eng_match *match)
{
    zero_result r = ZERO_OK;
    find_groups(c, match);
    for (size_t s = 0; !r && s < c->manifest->group_count; s++) {
        const bool taken = is_taken(c, match, s);
        match->other_groups |= !taken;
        if (!taken && !c->options->partial)
            r = zero_fail(c->error, ZERO_E_INVALID,
                          "%s: group %s is none of this model's (option partial: ignore it)",
                          c->path, c->manifest->groups[s].name);
    }
    for (size_t g = 0; !r && g < c->z->model.group_count; g++)
        r = match_group(c, g, match);
    return r;
}

/* ------------------------------------------------------------------ tensors */

static bool same_shape(const struct ckpt_table_tensor *saved, const struct eng_param *mine)
{
    if (saved->ndim != mine->ndim || saved->slices != (uint64_t)mine->slice_count)
        return false;
    for (int d = 0; d < mine->ndim; d++)
        if (saved->shape[d] != mine->shape[d])
            return false;
    return true;
}

zero_dtype eng_match_narrows(const zero_ctx *z, const struct ckpt_table_tensor *saved,
                             zero_param param, int field)
{
    const zero_dtype mine = eng_state_dtype(z, param, field);
    assert(field >= 0 && field < saved->fields);
    const zero_dtype work = z->model.params[param].dtype;
    if (mine != ZERO_F32)
        return saved->field[field] == eng_ckpt_dtype(mine) ? ZERO_F32 : mine;
    return field > 0 || saved->dtype == eng_ckpt_dtype(work) ? ZERO_F32 : work;
}

enum { WHY_BYTES = 2 * BASE_SHAPE_BYTES + 64 };

static const char *say_shapes(const struct ckpt_table_tensor *saved, const struct eng_param *mine,
                              char out[WHY_BYTES])
{
    char there[BASE_SHAPE_BYTES], here[BASE_SHAPE_BYTES];
    base_shape_text(saved->shape, saved->ndim, there);
    base_shape_text(mine->shape, mine->ndim, here);
    if (strcmp(there, here) != 0)
        snprintf(out, WHY_BYTES, "has another shape in it: %s, and %s here", there, here);
    else
        snprintf(out, WHY_BYTES, "has another shape in it: %s in %" PRIu64 " units, and in %d here",
                 there, saved->slices, mine->slice_count);
    return out;
}

/** Why a tensor of the model can't be loaded, perhaps in `out`; NULL: it can. */
static const char *why_not(const struct comparison *c, size_t p, size_t found, char out[WHY_BYTES])
{
    const struct eng_param *mine = &c->z->model.params[p];
    if (found == SIZE_MAX)
        return "is not in it";
    const struct ckpt_table_tensor *saved = &c->manifest->tensors[found];
    if (!same_shape(saved, mine))
        return say_shapes(saved, mine, out);
    if (saved->trains == mine->frozen)
        return saved->trains ? "trains in it, and is frozen here"
                             : "is frozen in it, and trains here";
    if (saved->trains && strcmp(c->manifest->groups[saved->group].optimizer,
                                c->z->model.groups[mine->group].optimizer->name) != 0)
        return "has another optimizer in it";
    if (saved->fields != eng_state_fields(c->z, (zero_param)p))
        return "has another number of moments in it";
    return NULL;
}

/** A tensor that trains is in the group that was its own when it was saved. */
static zero_result match_place(const struct comparison *c, size_t p, size_t found,
                               const struct eng_match *match)
{
    const struct eng_param *mine = &c->z->model.params[p];
    const struct ckpt_table_tensor *saved = &c->manifest->tensors[found];
    if (!saved->trains || c->options->partial || match->group[mine->group] == saved->group)
        return ZERO_OK;
    return zero_fail(c->error, ZERO_E_INVALID,
                     "%s: tensor %s is in group %s in it, and in group %s here (option partial: "
                     "load it, with what its group has here)",
                     c->path, mine->name, c->manifest->groups[saved->group].name,
                     c->z->model.groups[mine->group].name);
}

/** Decides what becomes of one tensor of the model. */
static zero_result match_tensor(const struct comparison *c, size_t p, struct eng_match *match)
{
    const struct eng_param *mine = &c->z->model.params[p];
    const size_t found = ckpt_manifest_find(c->manifest, mine->name);
    char out[WHY_BYTES];
    const char *why = why_not(c, p, found, out);
    match->tensor[p] = why ? SIZE_MAX : found;
    assert(why || found < c->manifest->tensor_count);
    match->missing += why != NULL;
    if (why && !c->options->partial)
        return zero_fail(c->error, ZERO_E_INVALID, "%s: tensor %s %s (option partial: leave it)",
                         c->path, mine->name, why);
    for (int f = 0; !why && f < c->manifest->tensors[found].fields; f++)
        if (c->manifest->tensors[found].field[f] !=
            eng_ckpt_dtype(eng_state_dtype(c->z, (zero_param)p, f)))
            match->converted = true;
    for (int f = 0; !why && f < c->manifest->tensors[found].fields; f++)
        match->narrowed |=
            eng_match_narrows(c->z, &c->manifest->tensors[found], (zero_param)p, f) != ZERO_F32;
    return why ? ZERO_OK : match_place(c, p, found, match);
}

static zero_result match_unexpected(const struct comparison *c)
{
    for (size_t t = 0; t < c->manifest->tensor_count; t++)
        if (eng_model_find(&c->z->model, c->manifest->tensors[t].name) < 0)
            return zero_fail(c->error, ZERO_E_INVALID,
                             "%s: tensor %s is none of this model's (option partial: ignore it)",
                             c->path, c->manifest->tensors[t].name);
    return ZERO_OK;
}

/** Blobs that are attached now, and were not. */
static zero_result match_new_blobs(const struct comparison *c, struct eng_match *match)
{
    for (size_t i = 0; i < eng_blob_count(c->z); i++) {
        const struct eng_blob *mine = &c->z->saving.blobs->list[i];
        const bool of_rank = mine->scope == ZERO_OF_RANK;
        bool found = false;
        for (size_t b = 0; b < c->manifest->blob_count; b++)
            found |= c->manifest->blobs[b].of_rank == of_rank &&
                     strcmp(c->manifest->blobs[b].name, mine->name) == 0;
        if (found)
            continue;
        if (!c->options->partial)
            return zero_fail(c->error, ZERO_E_INVALID,
                             "%s: %s is attached, and was not when it was saved (option partial: "
                             "leave it)",
                             c->path, mine->name);
        match->other_blobs = true;
        match->rank_blobs &= !of_rank;
    }
    return ZERO_OK;
}

static zero_result match_blobs(const struct comparison *c, struct eng_match *match)
{
    const bool same_world = c->manifest->world == (size_t)c->z->config.world;
    match->rank_blobs = same_world;
    for (size_t b = 0; b < c->manifest->blob_count; b++) {
        const struct ckpt_blob *saved = &c->manifest->blobs[b];
        const struct eng_blob *mine = eng_blob_find(c->z, saved->name, saved->of_rank);
        if (!mine && !c->options->partial)
            return zero_fail(c->error, ZERO_E_INVALID,
                             "%s: %s was attached when it was saved, and is not now (option "
                             "partial: ignore it)",
                             c->path, saved->name);
        match->other_blobs |= !mine;
        if (!mine || (saved->of_rank && !same_world))
            continue;
        const uint64_t bytes = saved->bytes[saved->of_rank ? c->z->config.rank : 0];
        if (bytes != mine->bytes)
            return zero_fail(c->error, ZERO_E_INVALID,
                             "%s: %s has %" PRIu64 " bytes in it, and %" PRIu64 " here", c->path,
                             saved->name, bytes, mine->bytes);
    }
    return match_new_blobs(c, match);
}

void eng_match_lay(const zero_ctx *z, struct eng_match *match, struct base_tables *tables)
{
    *match = (struct eng_match){
        .tensor = base_tables_add(tables, z->model.param_count, sizeof *match->tensor),
        .group = base_tables_add(tables, z->model.group_count, sizeof *match->group),
    };
}

zero_result eng_match(const zero_ctx *z, const struct ckpt_manifest *manifest, const char *path,
                      const zero_load_options *options, struct eng_match *match,
                      struct base_error *error)
{
    const struct comparison c = {z, manifest, path, options, error};
    zero_result r = match_config(&c, match);
    if (!r)
        r = match_groups(&c, match);
    for (size_t p = 0; !r && p < z->model.param_count; p++)
        r = match_tensor(&c, p, match);
    if (!r && !options->partial)
        r = match_unexpected(&c);
    return r ? r : match_blobs(&c, match);
}
