#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdio.h>

/** What is under way: one of the two is written. */
struct listing {
    const struct tool_options *options;
    const char *directory;
    struct tool_table table;
    json_t *array;
    bool damaged;
};

static void show_whole(struct listing *listing, const struct ckpt_manifest *manifest, bool newest)
{
    const struct ckpt_state *state = &manifest->state;
    const uint64_t plain = tool_plain_bytes(manifest), stored = tool_stored_bytes(manifest);
    tool_table_add(&listing->table, newest ? TOOL_GREEN : TOOL_PLAIN,
                   "%" PRIu64 "\t%" PRIu64 "\t%s\t%s\t%s\t%zu\t%d\t%s\t%s\twhole%s",
                   manifest->sequence, state->step, tool_age(manifest->created).text,
                   tool_size(stored).text, tool_ratio(plain, stored).text, manifest->world,
                   state->stage, tool_hex(manifest->run.bytes, 6).text,
                   tool_hex(state->fingerprint, 6).text, newest ? ", the newest" : "");
}

static json_t *describe_whole(const struct ckpt_manifest *manifest, bool newest)
{
    const struct ckpt_state *state = &manifest->state;
    return json_pack("{s:o, s:o, s:s, s:b, s:o, s:I, s:i, s:I, s:o, s:o, s:s, s:s, s:s}", "step",
                     tool_json_number(state->step), "sequence",
                     tool_json_number(manifest->sequence), "state", "whole", "newest", newest,
                     "created", tool_json_text(manifest->created), "world",
                     (json_int_t)manifest->world, "stage", state->stage, "tensors",
                     (json_int_t)manifest->tensor_count, "plain_bytes",
                     tool_json_number(tool_plain_bytes(manifest)), "stored_bytes",
                     tool_json_number(tool_stored_bytes(manifest)), "fingerprint",
                     tool_hex(state->fingerprint, 16).text, "id", tool_hex(manifest->id, 16).text,
                     "run", tool_hex(manifest->run.bytes, 16).text);
}

// Adds one that can't be loaded; `message` may be NULL.
static void add_other(struct listing *listing, uint64_t step, const char *state,
                      const char *message, enum tool_color color)
{
    if (listing->options->json)
        listing->array = tool_json_append(
            listing->array,
            json_pack("{s:o, s:s, s:o}", "step", tool_json_number(step), "state", state, "message",
                      message ? tool_json_text(message) : json_null()));
    else
        tool_table_add(&listing->table, color, "-\t%" PRIu64 "\t-\t-\t-\t-\t-\t-\t-\t%s%s%s", step,
                       state, message ? ": " : "", message ? message : "");
}

// What is wrong with one checkpoint is shown, and ends nothing but for lack of memory.
static zero_result add_step(struct listing *listing, uint64_t step, bool newest,
                            struct base_error *error)
{
    struct base_error damage = {.result = ZERO_OK};
    struct ckpt_manifest manifest;
    zero_result result =
        ckpt_read_manifest(&manifest, &ckpt_store_posix, listing->directory, step, &damage);
    if (!result)
        result = ckpt_check_whole(&ckpt_store_posix, listing->directory, step, &damage);
    if (!result && listing->options->json)
        listing->array = tool_json_append(listing->array, describe_whole(&manifest, newest));
    else if (!result)
        show_whole(listing, &manifest, newest);
    ckpt_manifest_free(&manifest);
    if (result == ZERO_E_NOMEM)
        return zero_fail(error, result, "%s", damage.message);
    if (result)
        add_other(listing, step, "damaged", damage.message, TOOL_RED);
    listing->damaged |= result != ZERO_OK;
    return ZERO_OK;
}

// Which one is loaded by who resumes; SIZE_MAX: none is whole.
static size_t find_newest(const char *directory, const uint64_t *steps, size_t count)
{
    while (count > 0 && ckpt_check_whole(&ckpt_store_posix, directory, steps[count - 1], NULL))
        count--;
    return count - 1;
}

static zero_result add_all(struct listing *listing, struct base_error *error)
{
    uint64_t *steps = NULL, *unfinished = NULL;
    size_t count, unfinished_count;
    zero_result result = ckpt_list(&ckpt_store_posix, listing->directory, &steps, &count, error);
    if (!result)
        result = ckpt_list_unfinished(&ckpt_store_posix, listing->directory, &unfinished,
                                      &unfinished_count, error);
    const size_t newest = result ? 0 : find_newest(listing->directory, steps, count);
    for (size_t i = 0; !result && i < count; i++)
        result = add_step(listing, steps[i], i == newest, error);
    for (size_t i = 0; !result && i < unfinished_count; i++)
        add_other(listing, unfinished[i], "unfinished", NULL, TOOL_YELLOW);
    base_free(steps);
    base_free(unfinished);
    return result;
}

static zero_result print(struct listing *listing, struct base_error *error)
{
    if (!listing->options->json)
        return tool_table_print(&listing->table, listing->options, error);
    json_t *root = tool_json_root("list");
    root = tool_json_set(root, "directory", tool_json_text(listing->directory));
    root = tool_json_set(root, "checkpoints", listing->array);
    listing->array = NULL;
    return tool_json_print(root, error);
}

zero_result tool_list(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct listing listing = {
        .options = options,
        .directory = options->paths[0],
        .table = {.columns = 10},
        .array = options->json ? json_array() : NULL,
    };
    struct ckpt_file *lock = NULL;
    zero_result result = tool_place_directory(listing.directory, error);
    if (!result)
        result = ckpt_reader_enter(&ckpt_store_posix, listing.directory, &lock, error);
    if (!result && !options->json)
        tool_table_add(&listing.table, TOOL_BOLD,
                       ">ORDER\t>STEP\t>AGE\t>SIZE\t>RATIO\t>RANKS\t>STAGE\tRUN\tFINGERPRINT\t"
                       "STATE");
    if (!result)
        result = add_all(&listing, error);
    if (!result)
        result = print(&listing, error);
    ckpt_reader_leave(&ckpt_store_posix, &lock);
    tool_table_free(&listing.table);
    json_decref(listing.array);
    *found = listing.damaged;
    return result;
}
