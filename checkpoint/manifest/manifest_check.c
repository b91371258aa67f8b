#include "checkpoint/manifest/manifest_parts.h"

#include "base/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A check of one manifest. The first failure is kept in `error`.
struct check {
    const struct ckpt_manifest *manifest;
    const struct ckpt_error_context *blame;
    struct base_error error;
};

static void fail(struct check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void fail(struct check *check, const char *format, ...)
{
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    zero_fail(&check->error, check->blame->result, "'%s': %s", check->blame->path, what);
}

static void *allocate(struct check *check, size_t count, size_t size)
{
    void *memory = base_calloc(count, size);
    if (!memory)
        zero_fail(&check->error, ZERO_E_NOMEM, "'%s': no memory for a table of %zu",
                  check->blame->path, count);
    return memory;
}

static int compare_names(const void *left, const void *right)
{
    const struct ckpt_named *a = left, *b = right;
    return strcmp(a->name, b->name);
}

// Sorts the names of what the manifest calls `array`. Each must be there once.
static void sort_names(struct check *check, const char *array, struct ckpt_named *named,
                       size_t count)
{
    qsort(named, count, sizeof *named, compare_names);
    for (size_t i = 0; i < count; i++) {
        if (!*named[i].name)
            fail(check, "%s[%zu] has no name", array, named[i].number);
        if (i > 0 && strcmp(named[i - 1].name, named[i].name) == 0)
            fail(check, "%s[%zu] and %s[%zu] are both called '%.80s'", array, named[i - 1].number,
                 array, named[i].number, named[i].name);
    }
}

/* ------------------------------------------------------------------ state, groups, blobs */

static void check_state(struct check *check)
{
    const struct ckpt_state *state = &check->manifest->state;
    if (check->manifest->sequence == 0)
        fail(check, "sequence 0");
    if (state->micro_batches == 0 || state->sum_group == 0)
        fail(check, "micro_batches %" PRIu64 " with sum_group %" PRIu64, state->micro_batches,
             state->sum_group);
    if (state->has_loss_scale && !(isfinite(state->loss_scale) && state->loss_scale > 0))
        fail(check, "a loss scale of %g", state->loss_scale);
    if (state->stage < 0 || state->stage > 3)
        fail(check, "stage %d", state->stage);
}

static void check_group(struct check *check, size_t g)
{
    const struct ckpt_group *group = &check->manifest->groups[g];
    if (strcmp(group->decay, "decoupled") != 0 && strcmp(group->decay, "l2") != 0 &&
        strcmp(group->decay, "own") != 0)
        fail(check, "groups[%zu]: a decay '%.80s'", g, group->decay);
    for (int i = 0; i < group->hypers; i++) {
        if (!*group->hyper[i].name || !isfinite(group->hyper[i].value))
            fail(check, "groups[%zu]: hyper '%s' is %g", g, group->hyper[i].name,
                 group->hyper[i].value);
        for (int j = 0; j < i; j++)
            if (strcmp(group->hyper[i].name, group->hyper[j].name) == 0)
                fail(check, "groups[%zu]: hyper '%s' comes twice", g, group->hyper[i].name);
    }
}

static void check_blobs(struct check *check)
{
    const size_t count = check->manifest->blob_count;
    struct ckpt_named *named = allocate(check, count, sizeof *named);
    for (size_t i = 0; named && i < count; i++)
        named[i] = (struct ckpt_named){check->manifest->blobs[i].name, i};
    if (named)
        sort_names(check, "blobs", named, count);
    base_free(named);
}

/* ------------------------------------------------------------------ tensors */

// Says which part of a tensor's table makes no sense; NULL if all do.
static const char *find_nonsense(const struct ckpt_manifest *manifest,
                                 const struct ckpt_table_tensor *tensor)
{
    uint64_t elements = 1;
    for (int i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(elements, tensor->shape[i], &elements) ||
            elements > CKPT_MAX_NUMBER || elements == 0)
            return "its shape has no elements, or too many";
    if (tensor->slices == 0 || tensor->slices > UINT32_MAX || elements % tensor->slices != 0 ||
        tensor->numel != elements / tensor->slices)
        return "its slices are no equal parts";
    if (tensor->dtype >= CKPT_OTHER || tensor->grad_dtype >= CKPT_OTHER)
        return "no such dtype";
    if (tensor->group >= manifest->group_count)
        return "there is no such group";
    if (tensor->fields < 1 || tensor->fields > (tensor->trains ? CKPT_MAX_FIELDS : 1))
        return "it can't have so many fields";
    for (int f = 0; f < tensor->fields; f++)
        if (tensor->field[f] >= CKPT_OTHER)
            return "a field of no such dtype";
    return NULL;
}

static void index_tensors(struct check *check, struct ckpt_manifest_index *index)
{
    const struct ckpt_manifest *manifest = check->manifest;
    index->by_name = allocate(check, manifest->tensor_count, sizeof *index->by_name);
    for (size_t i = 0; index->by_name && i < manifest->tensor_count; i++) {
        const char *nonsense = find_nonsense(manifest, &manifest->tensors[i]);
        if (nonsense)
            fail(check, "tensors[%zu], '%.80s': %s", i, manifest->tensors[i].name, nonsense);
        index->by_name[i] = (struct ckpt_named){manifest->tensors[i].name, i};
    }
    if (index->by_name)
        sort_names(check, "tensors", index->by_name, manifest->tensor_count);
}

/* ------------------------------------------------------------------ runs */

static const struct ckpt_run *run_at(const struct ckpt_manifest *manifest,
                                     const struct ckpt_place *place)
{
    return &manifest->shards[place->shard].runs[place->run];
}

static int compare_runs(const struct ckpt_run *a, const struct ckpt_run *b)
{
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    if (a->slice != b->slice)
        return a->slice < b->slice ? -1 : 1;
    return (a->first > b->first) - (a->first < b->first);
}

static int compare_places(const void *left, const void *right, void *manifest)
{
    return compare_runs(run_at(manifest, left), run_at(manifest, right));
}

// Whether a run is a part of a slice, cut where runs may be cut.
static bool is_part(const struct ckpt_manifest *manifest, const struct ckpt_run *run)
{
    if (run->tensor >= manifest->tensor_count)
        return false;
    const struct ckpt_table_tensor *tensor = &manifest->tensors[run->tensor];
    return run->slice < tensor->slices && run->count > 0 && run->first < tensor->numel &&
           run->count <= tensor->numel - run->first && run->first % CKPT_GRANULE == 0 &&
           (run->count % CKPT_GRANULE == 0 || run->count == tensor->numel - run->first);
}

static void check_shard(struct check *check, uint32_t s)
{
    const struct ckpt_shard_entry *shard = &check->manifest->shards[s];
    if (shard->bytes % 4096 != 0 || shard->index_offset < 4096 ||
        shard->index_offset >= shard->bytes)
        fail(check, "shards[%" PRIu32 "]: an index at %" PRIu64 " of %" PRIu64 " bytes", s,
             shard->index_offset, shard->bytes);
    for (size_t r = 0; r < shard->run_count; r++) {
        const struct ckpt_run *run = &shard->runs[r];
        if (is_part(check->manifest, run))
            continue;
        fail(check,
             "shards[%" PRIu32 "]: runs[%zu], %" PRIu64 " elements from %" PRIu64
             " on of slice %" PRIu32 " of tensor %" PRIu32 ": there is no such part",
             s, r, run->count, run->first, run->slice, run->tensor);
        return;
    }
}

static void list_places(struct check *check, struct ckpt_manifest_index *index)
{
    const struct ckpt_manifest *manifest = check->manifest;
    size_t count = 0;
    for (size_t s = 0; s < manifest->world; s++)
        count += manifest->shards[s].run_count;
    index->places = allocate(check, count, sizeof *index->places);
    for (uint32_t s = 0; index->places && s < manifest->world; s++)
        for (size_t r = 0; r < manifest->shards[s].run_count; r++)
            index->places[index->place_count++] = (struct ckpt_place){s, r};
}

static void report_gap(struct check *check, const struct ckpt_run *gap)
{
    fail(check, "no shard has element %" PRIu64 " of slice %" PRIu32 " of tensor '%.80s'",
         gap->first, gap->slice, check->manifest->tensors[gap->tensor].name);
}

// The first element after a run.
static struct ckpt_run after(const struct ckpt_manifest *manifest, const struct ckpt_run *run)
{
    const struct ckpt_table_tensor *tensor = &manifest->tensors[run->tensor];
    if (run->first + run->count < tensor->numel)
        return (struct ckpt_run){run->tensor, run->slice, run->first + run->count, 0};
    if (run->slice + 1 < tensor->slices)
        return (struct ckpt_run){run->tensor, run->slice + 1, 0, 0};
    return (struct ckpt_run){run->tensor + 1, 0, 0, 0};
}

// The runs, which are sorted and each a part of a slice, must have every element once.
static void check_cover(struct check *check, const struct ckpt_manifest_index *index)
{
    const struct ckpt_manifest *manifest = check->manifest;
    struct ckpt_run next = {0};
    for (size_t i = 0; i < index->place_count; i++) {
        const struct ckpt_place *place = &index->places[i];
        const struct ckpt_run *run = run_at(manifest, place);
        const int order = compare_runs(run, &next);
        if (order < 0)
            fail(check,
                 "shards[%" PRIu32 "]: runs[%zu]: another run, too, has element %" PRIu64
                 " of slice %" PRIu32 " of tensor '%.80s'",
                 place->shard, place->run, run->first, run->slice,
                 manifest->tensors[run->tensor].name);
        if (order > 0)
            report_gap(check, &next);
        if (order != 0)
            return;
        next = after(manifest, run);
    }
    if (next.tensor < manifest->tensor_count)
        report_gap(check, &next);
}

static void index_runs(struct check *check, struct ckpt_manifest_index *index)
{
    const struct ckpt_manifest *manifest = check->manifest;
    if (manifest->world < 1 || manifest->world > CKPT_MAX_SHARDS)
        fail(check, "%zu shards, not 1 .. %d", manifest->world, CKPT_MAX_SHARDS);
    for (uint32_t s = 0; s < manifest->world && !check->error.result; s++)
        check_shard(check, s);
    if (!check->error.result)
        list_places(check, index);
    if (check->error.result)
        return;
    qsort_r(index->places, index->place_count, sizeof *index->places, compare_places,
            (void *)(uintptr_t)manifest);
    check_cover(check, index);
}

zero_result ckpt_manifest_check(const struct ckpt_manifest *manifest,
                                struct ckpt_manifest_index *index,
                                const struct ckpt_error_context *blame, struct base_error *error)
{
    *index = (struct ckpt_manifest_index){0};
    struct check check = {.manifest = manifest, .blame = blame};
    check_state(&check);
    for (size_t g = 0; g < manifest->group_count; g++)
        check_group(&check, g);
    check_blobs(&check);
    index_tensors(&check, index);
    if (!check.error.result)
        index_runs(&check, index);
    if (!check.error.result)
        return ZERO_OK;
    ckpt_manifest_index_free(index);
    return zero_fail(error, check.error.result, "%s", check.error.message);
}
