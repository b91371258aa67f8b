#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdio.h>

/** Checkpoints of a directory, in their order. */
struct steps {
    struct ckpt_listed *list;
    size_t count;
};

static bool has(const struct steps *steps, uint64_t step)
{
    for (size_t i = 0; i < steps->count; i++)
        if (steps->list[i].step == step)
            return true;
    return false;
}

static struct tool_text run_of(const struct ckpt_listed *listed, size_t bytes)
{
    struct tool_text unknown = {"not known"};
    return listed->run_known ? tool_hex(listed->run.bytes, bytes) : unknown;
}

static void print_text(const struct steps *before, const struct steps *after, bool dry_run)
{
    for (size_t i = 0; i < before->count; i++)
        if (!has(after, before->list[i].step))
            printf("%s step-%08" PRIu64 " of run %s\n", dry_run ? "would remove" : "removed",
                   before->list[i].step, run_of(&before->list[i], 6).text);
}

static zero_result print_json(const struct steps *before, const struct steps *after,
                              const char *path, bool dry_run, struct base_error *error)
{
    json_t *removed = json_array(), *runs = json_array(), *kept = json_array();
    for (size_t i = 0; i < before->count; i++) {
        json_t *number = tool_json_number(before->list[i].step);
        if (has(after, before->list[i].step)) {
            kept = tool_json_append(kept, number);
            continue;
        }
        removed = tool_json_append(removed, number);
        runs = tool_json_append(runs, json_string(run_of(&before->list[i], 16).text));
    }
    json_t *root = tool_json_root("prune");
    root = tool_json_set(root, "directory", tool_json_text(path));
    root = tool_json_set(root, "dry_run", json_boolean(dry_run));
    root = tool_json_set(root, "removed", removed);
    root = tool_json_set(root, "removed_runs", runs);
    root = tool_json_set(root, "kept", kept);
    return tool_json_print(root, error);
}

static zero_result list(const char *path, struct steps *steps, struct base_error *error)
{
    struct ckpt_order order;
    return ckpt_list_runs(&ckpt_store_posix, path, &steps->list, &steps->count, &order, error);
}

// What would remain.
static zero_result select_kept(const struct ckpt_retention *retention, const struct steps *before,
                               struct steps *after, struct base_error *error)
{
    uint64_t *steps = base_calloc(before->count, sizeof *steps);
    if (!steps)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu checkpoints", before->count);
    for (size_t i = 0; i < before->count; i++)
        steps[i] = before->list[i].step;
    after->count = 0;
    for (size_t i = 0; i < before->count; i++)
        if (ckpt_keeps(retention, steps, before->count, i))
            after->list[after->count++] = before->list[i];
    base_free(steps);
    return ZERO_OK;
}

// The directory is opened for no rank, so that nothing is left in the pool for the next job: who
// prunes by hand wants the space.
static zero_result remove_others(const char *path, const struct ckpt_retention *retention,
                                 struct base_error *error)
{
    struct ckpt_directory *directory;
    size_t removed;
    zero_result result = ckpt_directory_open(&directory, &ckpt_store_posix, path, 0, error);
    if (!result)
        result = ckpt_prune(directory, retention, NULL, &removed, error);
    ckpt_directory_close(directory);
    return result == ZERO_AGAIN
               ? zero_fail(error, ZERO_AGAIN, "a process reads '%.200s': nothing is removed", path)
               : result;
}

zero_result tool_prune(const struct tool_options *options, bool *found, struct base_error *error)
{
    const char *path = options->paths[0];
    struct steps before = {.list = NULL}, after = {.list = NULL};
    *found = false;
    zero_result result = tool_place_directory(path, error);
    // A directory that is not there is not to be made, nor one of checkpoints out of another.
    if (!result)
        result = list(path, &before, error);
    if (!result && before.count == 0)
        result = zero_fail(error, ZERO_NOT_FOUND, "there is no checkpoint in '%.200s'", path);
    if (!result && !options->dry_run)
        result = remove_others(path, &options->retention, error);
    if (!result)
        result = list(path, &after, error);
    if (!result && options->dry_run)
        result = select_kept(&options->retention, &before, &after, error);
    if (!result && options->json)
        result = print_json(&before, &after, path, options->dry_run, error);
    else if (!result)
        print_text(&before, &after, options->dry_run);
    base_free(before.list);
    base_free(after.list);
    return result;
}
