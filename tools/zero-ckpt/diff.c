#include "tools/zero-ckpt/diff.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/** A value as text. */
struct value {
    char text[CKPT_MAX_DIMS * 21 + 64];
};

static struct value say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static struct value say(const char *format, ...)
{
    struct value value;
    va_list list;
    va_start(list, format);
    vsnprintf(value.text, sizeof value.text, format, list);
    va_end(list);
    return value;
}

// Enters a difference. `of` is a tensor, a group, a blob, or empty.
static void add(struct comparison *comparison, const char *what, const char *of, struct value a,
                struct value b)
{
    if (strcmp(a.text, b.text) == 0)
        return;
    comparison->differences++;
    if (!comparison->options->json)
        tool_table_add(&comparison->table, TOOL_PLAIN, "%s\t%s\t%s\t%s", what, a.text, b.text, of);
    else
        comparison->array = tool_json_append(
            comparison->array,
            json_pack("{s:s, s:o, s:o, s:o}", "what", what, "of", tool_json_text(of), "a",
                      tool_json_text(a.text), "b", tool_json_text(b.text)));
}

/* ------------------------------------------------------------------ beside tensors */

static struct value say_scale(const struct ckpt_state *state)
{
    return state->has_loss_scale
               ? say("%.17g,%s,%" PRIu64, state->loss_scale,
                     state->loss_scale_dynamic ? "dynamic" : "fixed", state->loss_scale_clean)
               : say("none");
}

static void compare_states(struct comparison *comparison)
{
    const struct ckpt_state *a = &comparison->manifests[0]->state;
    const struct ckpt_state *b = &comparison->manifests[1]->state;
    const struct {
        const char *what;
        uint64_t a, b;
    } numbers[] = {
        {"step", a->step, b->step},
        {"updates", a->updates, b->updates},
        {"skips", a->skips, b->skips},
        {"micro_batches", a->micro_batches, b->micro_batches},
        {"sum_group", a->sum_group, b->sum_group},
        {"seed", a->seed, b->seed},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add(comparison, numbers[i].what, "", say("%" PRIu64, numbers[i].a),
            say("%" PRIu64, numbers[i].b));
    add(comparison, "reduction", "", say("%s", a->local ? "local" : "canonical"),
        say("%s", b->local ? "local" : "canonical"));
    add(comparison, "comm_dtype", "", say("%s", tool_dtype(a->comm_dtype)),
        say("%s", tool_dtype(b->comm_dtype)));
    add(comparison, "loss_scale", "", say_scale(a), say_scale(b));
}

static const struct ckpt_hyper *find_hyper(const struct ckpt_group *group, const char *name)
{
    for (int h = 0; h < group->hypers; h++)
        if (!strcmp(group->hyper[h].name, name))
            return &group->hyper[h];
    return NULL;
}

static struct value say_hyper(const struct ckpt_hyper *hyper)
{
    return hyper ? say("%.17g", hyper->value) : say("none");
}

static void compare_group(struct comparison *comparison, size_t g)
{
    const struct ckpt_group *a = &comparison->manifests[0]->groups[g];
    const struct ckpt_group *b = &comparison->manifests[1]->groups[g];
    const struct value name = say("group %zu", g);
    add(comparison, "optimizer", name.text, say("%s", a->optimizer), say("%s", b->optimizer));
    add(comparison, "decay", name.text, say("%s", a->decay), say("%s", b->decay));
    add(comparison, "nesterov", name.text, say("%d", a->nesterov), say("%d", b->nesterov));
    add(comparison, "frozen", name.text, say("%d", a->frozen), say("%d", b->frozen));
    for (int h = 0; h < a->hypers; h++)
        add(comparison, a->hyper[h].name, name.text, say_hyper(&a->hyper[h]),
            say_hyper(find_hyper(b, a->hyper[h].name)));
    for (int h = 0; h < b->hypers; h++)
        if (!find_hyper(a, b->hyper[h].name))
            add(comparison, b->hyper[h].name, name.text, say("none"), say_hyper(&b->hyper[h]));
}

static const struct ckpt_blob *find_blob(const struct ckpt_manifest *manifest, const char *name)
{
    for (size_t i = 0; i < manifest->blob_count; i++)
        if (!strcmp(manifest->blobs[i].name, name))
            return &manifest->blobs[i];
    return NULL;
}

// A rank's own have so many parts as there were ranks, which is no difference.
static struct value say_blob(const struct ckpt_blob *blob)
{
    return !blob           ? say("none")
           : blob->of_rank ? say("rank")
                           : say("global,%" PRIu64, blob->bytes[0]);
}

static void compare_tables_of_blobs(struct comparison *comparison)
{
    const struct ckpt_manifest *a = comparison->manifests[0], *b = comparison->manifests[1];
    for (size_t i = 0; i < a->blob_count; i++)
        add(comparison, "blob", a->blobs[i].name, say_blob(&a->blobs[i]),
            say_blob(find_blob(b, a->blobs[i].name)));
    for (size_t i = 0; i < b->blob_count; i++)
        if (!find_blob(a, b->blobs[i].name))
            add(comparison, "blob", b->blobs[i].name, say("none"), say_blob(&b->blobs[i]));
}

/* ------------------------------------------------------------------ tensors */

static struct value say_fields(const struct ckpt_table_tensor *tensor)
{
    struct value value = {""};
    struct base_text text = {value.text, sizeof value.text, 0};
    for (int f = 0; f < tensor->fields; f++)
        base_text_add(&text, "%s%s", f ? "," : "", tool_dtype(tensor->field[f]));
    return value;
}

static void compare_tensors(struct comparison *comparison, const struct ckpt_table_tensor *a,
                            const struct ckpt_table_tensor *b)
{
    const char *name = a->name;
    add(comparison, "shape", name, say("%s", tool_shape(a).text), say("%s", tool_shape(b).text));
    add(comparison, "slices", name, say("%" PRIu64, a->slices), say("%" PRIu64, b->slices));
    add(comparison, "dtype", name, say("%s", tool_dtype(a->dtype)),
        say("%s", tool_dtype(b->dtype)));
    add(comparison, "grad_dtype", name, say("%s", tool_dtype(a->grad_dtype)),
        say("%s", tool_dtype(b->grad_dtype)));
    add(comparison, "trains", name, say("%d", a->trains), say("%d", b->trains));
    add(comparison, "group", name, say("%u", a->group), say("%u", b->group));
    add(comparison, "fields", name, say_fields(a), say_fields(b));
    add(comparison, "sum", name, say("%s", tool_sum(a->sum).text),
        say("%s", tool_sum(b->sum).text));
}

static void compare_all_tensors(struct comparison *comparison)
{
    const struct ckpt_manifest *a = comparison->manifests[0], *b = comparison->manifests[1];
    for (size_t t = 0; t < a->tensor_count; t++) {
        const size_t other = ckpt_manifest_find(b, a->tensors[t].name);
        if (other == SIZE_MAX)
            add(comparison, "tensor", a->tensors[t].name, say("present"), say("missing"));
        else
            compare_tensors(comparison, &a->tensors[t], &b->tensors[other]);
    }
    for (size_t t = 0; t < b->tensor_count; t++)
        if (ckpt_manifest_find(a, b->tensors[t].name) == SIZE_MAX)
            add(comparison, "tensor", b->tensors[t].name, say("missing"), say("present"));
}

/* ------------------------------------------------------------------ the command */

static zero_result compare(struct comparison *comparison, struct base_error *error)
{
    const struct ckpt_manifest *a = comparison->manifests[0], *b = comparison->manifests[1];
    compare_states(comparison);
    if (a->group_count != b->group_count)
        add(comparison, "groups", "", say("%zu", a->group_count), say("%zu", b->group_count));
    for (size_t g = 0; g < a->group_count && g < b->group_count; g++)
        compare_group(comparison, g);
    compare_tables_of_blobs(comparison);
    const zero_result result = tool_diff_blobs(comparison, error);
    compare_all_tensors(comparison);
    add(comparison, "fingerprint", "", say("%s", tool_hex(a->state.fingerprint, 16).text),
        say("%s", tool_hex(b->state.fingerprint, 16).text));
    return result;
}

static zero_result print_json(struct comparison *comparison, struct base_error *error)
{
    json_t *root = tool_json_root("diff");
    root = tool_json_set(root, "same", json_boolean(comparison->differences == 0));
    root = tool_json_set(root, "differences", comparison->array);
    comparison->array = NULL;
    if (comparison->options->values)
        root = tool_json_set(root, "values", comparison->values_array);
    comparison->values_array = NULL;
    return tool_json_print(root, error);
}

static zero_result print(struct comparison *comparison, struct base_error *error)
{
    const struct tool_options *options = comparison->options;
    if (options->json)
        return print_json(comparison, error);
    if (comparison->differences == 0) {
        puts("the same state");
        return ZERO_OK;
    }
    zero_result result = tool_table_print(&comparison->table, options, error);
    if (!result && comparison->values.count > 1) { // more than the title
        putchar('\n');
        result = tool_table_print(&comparison->values, options, error);
    }
    return result;
}

static zero_result open_one(struct comparison *comparison, int i, struct base_error *error)
{
    struct tool_place *place = &comparison->places[i];
    zero_result result = tool_place_open(place, comparison->options->paths[i], error);
    if (!result)
        result = ckpt_loader_open(&comparison->loaders[i], &ckpt_store_posix, place->directory,
                                  place->step, error);
    if (!result)
        comparison->manifests[i] = ckpt_loader_manifest(comparison->loaders[i]);
    return result;
}

zero_result tool_diff(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct comparison comparison = {
        .options = options,
        .table = {.columns = 4},
        .array = options->json ? json_array() : NULL,
        .values = {.columns = 10},
        .values_array = options->json && options->values ? json_array() : NULL,
    };
    tool_table_add(&comparison.table, TOOL_BOLD, "WHAT\tA\tB\tOF");
    zero_result result = ZERO_OK;
    for (int i = 0; i < 2 && !result; i++)
        result = open_one(&comparison, i, error);
    if (!result)
        result = compare(&comparison, error);
    if (!result && options->values)
        result = tool_diff_values(&comparison, error);
    if (!result)
        result = print(&comparison, error);
    tool_table_free(&comparison.table);
    tool_table_free(&comparison.values);
    json_decref(comparison.array);
    json_decref(comparison.values_array);
    for (int i = 0; i < 2; i++) {
        ckpt_loader_close(comparison.loaders[i]);
        tool_place_close(&comparison.places[i]);
    }
    *found = comparison.differences > 0;
    return result;
}
