#include "checkpoint/tool/tool.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdio.h>

/** Checkpoints of a directory, ascending. */
struct steps {
    uint64_t *list;
    size_t count;
};

static bool has(const struct steps *steps, uint64_t step)
{
    for (size_t i = 0; i < steps->count; i++)
        if (steps->list[i] == step)
            return true;
    return false;
}

static void print_text(const struct steps *before, const struct steps *after, bool dry_run)
{
    for (size_t i = 0; i < before->count; i++)
        if (!has(after, before->list[i]))
            printf("%s step-%08" PRIu64 "\n", dry_run ? "would remove" : "removed",
                   before->list[i]);
}

static zero_result print_json(const struct steps *before, const struct steps *after,
                              const char *path, bool dry_run, struct base_error *error)
{
    json_t *removed = json_array(), *kept = json_array();
    for (size_t i = 0; i < before->count; i++) {
        json_t *number = tool_json_number(before->list[i]);
        if (has(after, before->list[i]))
            kept = tool_json_append(kept, number);
        else
            removed = tool_json_append(removed, number);
    }
    json_t *root = tool_json_root("prune");
    root = tool_json_set(root, "directory", tool_json_text(path));
    root = tool_json_set(root, "dry_run", json_boolean(dry_run));
    root = tool_json_set(root, "removed", removed);
    root = tool_json_set(root, "kept", kept);
    return tool_json_print(root, error);
}

// What would remain; `after` has room for all.
static void select_kept(const struct ckpt_retention *retention, const struct steps *before,
                        struct steps *after)
{
    after->count = 0;
    for (size_t i = 0; i < before->count; i++)
        if (ckpt_keeps(retention, before->list, before->count, i))
            after->list[after->count++] = before->list[i];
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
        result = ckpt_prune(directory, retention, &removed, error);
    ckpt_directory_close(directory);
    return result == ZERO_AGAIN
               ? zero_fail(error, ZERO_AGAIN, "'%.200s' is being read: nothing is removed", path)
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
        result = ckpt_list(&ckpt_store_posix, path, &before.list, &before.count, error);
    if (!result && before.count == 0)
        result = zero_fail(error, ZERO_NOT_FOUND, "there is no checkpoint in '%.200s'", path);
    if (!result && !options->dry_run)
        result = remove_others(path, &options->retention, error);
    if (!result)
        result = ckpt_list(&ckpt_store_posix, path, &after.list, &after.count, error);
    if (!result && options->dry_run)
        select_kept(&options->retention, &before, &after);
    if (!result && options->json)
        result = print_json(&before, &after, path, options->dry_run, error);
    else if (!result)
        print_text(&before, &after, options->dry_run);
    base_free(before.list);
    base_free(after.list);
    return result;
}
