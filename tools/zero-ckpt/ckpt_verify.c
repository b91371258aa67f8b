#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"
#include "checkpoint/loader.h"

#include <inttypes.h>
#include <stdio.h>

/** What is under way. */
struct verification {
    const struct tool_options *options;
    json_t *array;  /**< one object a checkpoint */
    json_t *damage; /**< messages, of this one */
    uint64_t bytes; /**< read of this one's shards, */
    struct tool_progress progress;
    bool found; /**< damage, in any */
};

static void add_damage(void *user, const struct base_error *damage)
{
    struct verification *verification = user;
    verification->damage = tool_json_append(verification->damage, tool_json_text(damage->message));
}

static void show_progress(void *user, uint64_t bytes_read)
{
    struct verification *verification = user;
    verification->bytes = bytes_read;
    tool_progress_update(&verification->progress, bytes_read);
}

static void print_text(const struct verification *verification, const struct tool_place *place,
                       size_t shards)
{
    const size_t pieces = json_array_size(verification->damage);
    const bool colors = tool_colors(verification->options);
    struct tool_table table = {.columns = 1};
    printf("%s/step-%08" PRIu64 ": ", place->directory, place->step);
    if (pieces == 0)
        printf("%swhole%s, %s in %zu %s\n", colors ? "\033[32m" : "", colors ? "\033[m" : "",
               tool_size(verification->bytes).text, shards, shards == 1 ? "shard" : "shards");
    else
        printf("%sdamaged%s\n", colors ? "\033[31m" : "", colors ? "\033[m" : "");
    for (size_t i = 0; i < pieces; i++)
        tool_table_add(&table, TOOL_PLAIN, "  %s",
                       json_string_value(json_array_get(verification->damage, i)));
    tool_table_print(&table, verification->options, NULL);
}

static void report(struct verification *verification, const struct tool_place *place, size_t shards)
{
    const bool damaged = json_array_size(verification->damage) > 0;
    verification->found |= damaged;
    if (!verification->options->json)
        print_text(verification, place, shards);
    else
        verification->array = tool_json_append(
            verification->array,
            json_pack("{s:o, s:o, s:s, s:o, s:O}", "directory", tool_json_text(place->directory),
                      "step", tool_json_number(place->step), "state", damaged ? "damaged" : "whole",
                      "bytes", tool_json_number(verification->bytes), "damage",
                      verification->damage));
}

static zero_result read_all(struct verification *verification, struct ckpt_loader *loader,
                            struct base_error *error)
{
    const struct ckpt_verify_watch watch = {add_damage, show_progress, verification};
    struct base_error damage = {.result = ZERO_OK};
    tool_progress_begin(&verification->progress, "verify",
                        tool_stored_bytes(ckpt_loader_manifest(loader)));
    const zero_result result = ckpt_loader_verify(loader, &watch, &damage);
    tool_progress_end(&verification->progress);
    return result == ZERO_E_CORRUPT ? ZERO_OK
           : result                 ? zero_fail(error, result, "%s", damage.message)
                                    : ZERO_OK;
}

// A damaged manifest is damage as any; that there is none, or of a later version, is not.
static zero_result verify(struct verification *verification, const struct tool_place *place,
                          struct base_error *error)
{
    struct ckpt_loader *loader;
    struct base_error damage = {.result = ZERO_OK};
    size_t shards = 0;
    verification->damage = json_array();
    verification->bytes = 0;
    zero_result result =
        ckpt_loader_open(&loader, &ckpt_store_posix, place->directory, place->step, &damage);
    if (result == ZERO_E_CORRUPT) {
        add_damage(verification, &damage);
        result = ZERO_OK;
    } else if (result) {
        zero_fail(error, result, "%s", damage.message);
    } else {
        shards = ckpt_loader_manifest(loader)->world;
        result = read_all(verification, loader, error);
    }
    if (!result && !verification->damage)
        result = zero_fail(error, ZERO_E_NOMEM, "no memory for a message");
    if (!result)
        report(verification, place, shards);
    ckpt_loader_close(loader);
    json_decref(verification->damage);
    return result;
}

// With --all the path is a directory, and every checkpoint in it is verified.
static zero_result verify_path(struct verification *verification, const char *path,
                               struct base_error *error)
{
    const bool all = verification->options->all;
    struct tool_place place;
    uint64_t *steps = NULL;
    size_t count = 0;
    zero_result result = all ? tool_place_directory(path, error) : ZERO_OK;
    if (result)
        return result;
    result = tool_place_open(&place, path, error); // holds the lock for all of them
    if (!result && !all)
        result = verify(verification, &place, error);
    if (!result && all)
        result = ckpt_list(&ckpt_store_posix, place.directory, &steps, &count, error);
    for (size_t i = 0; i < count && !result; i++) {
        place.step = steps[i];
        result = verify(verification, &place, error);
    }
    base_free(steps);
    tool_place_close(&place);
    return result;
}

zero_result tool_verify(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct verification verification = {.options = options, .array = json_array()};
    zero_result result = ZERO_OK;
    for (int i = 0; i < options->path_count && !result; i++)
        result = verify_path(&verification, options->paths[i], error);
    if (!result && options->json) {
        json_t *root = tool_json_root("verify");
        root = tool_json_set(root, "checkpoints", verification.array);
        verification.array = NULL;
        result = tool_json_print(root, error);
    }
    json_decref(verification.array);
    *found = verification.found;
    return result;
}
