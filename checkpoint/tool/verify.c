#include "checkpoint/tool/tool.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdio.h>

/** What is under way. */
struct verification {
    const struct tool_options *options;
    struct ckpt_codec *codec;
    void *room, *elements; /**< of one block */
    json_t *array;         /**< one object a checkpoint */
    json_t *damage;        /**< messages, of this one */
    uint64_t bytes;        /**< read of this one's shards, */
    struct tool_progress progress;
    bool found; /**< damage, in any */
};

static zero_result make(struct verification *verification, struct base_error *error)
{
    verification->room = base_aligned_alloc(64, ckpt_shard_room());
    verification->elements = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
    verification->array = json_array();
    if (!verification->room || !verification->elements || !verification->array)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a block");
    return ckpt_codec_create(&verification->codec, CKPT_LEVEL_STORED, error);
}

static void release(struct verification *verification)
{
    ckpt_codec_destroy(verification->codec);
    base_free(verification->room);
    base_free(verification->elements);
    json_decref(verification->array);
}

// One more piece of damage; only lack of memory ends the search.
static zero_result add_damage(struct verification *verification, const struct base_error *damage,
                              struct base_error *error)
{
    if (damage->result != ZERO_E_NOMEM)
        verification->damage =
            tool_json_append(verification->damage, tool_json_text(damage->message));
    if (damage->result == ZERO_E_NOMEM || !verification->damage)
        return zero_fail(error, ZERO_E_NOMEM, "%s", damage->message);
    return ZERO_OK;
}

static zero_result read_blocks(struct verification *verification, struct ckpt_shard *shard,
                               struct base_error *error)
{
    const uint64_t before = verification->bytes;
    zero_result result = ZERO_OK;
    for (size_t b = 0; b < ckpt_shard_blocks(shard) && !result; b++) {
        struct base_error damage = {.result = ZERO_OK};
        if (ckpt_shard_read(shard, b, verification->codec, verification->room,
                            verification->elements, &damage))
            result = add_damage(verification, &damage, error);
        verification->bytes = before + ckpt_shard_bytes_read(shard);
        tool_progress_update(&verification->progress, verification->bytes);
    }
    return result;
}

static zero_result read_shards(struct verification *verification, const struct tool_place *place,
                               const struct ckpt_manifest *manifest, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (size_t r = 0; r < manifest->world && !result; r++) {
        struct base_error damage = {.result = ZERO_OK};
        char path[CKPT_PATH_BYTES];
        struct ckpt_shard *shard = NULL;
        result = ckpt_shard_path(path, place->directory, place->step, (uint32_t)r, error);
        if (result)
            break;
        if (ckpt_shard_open(&shard, &ckpt_store_posix, path, manifest, (uint32_t)r, &damage))
            result = add_damage(verification, &damage, error);
        else
            result = read_blocks(verification, shard, error);
        ckpt_shard_close(shard);
    }
    return result;
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

// A damaged manifest is damage as any; that there is none, or of a later version, is not.
static zero_result verify(struct verification *verification, const struct tool_place *place,
                          struct base_error *error)
{
    struct ckpt_manifest manifest;
    struct base_error damage = {.result = ZERO_OK};
    verification->damage = json_array();
    verification->bytes = 0;
    zero_result result =
        ckpt_read_manifest(&manifest, &ckpt_store_posix, place->directory, place->step, &damage);
    if (result && result != ZERO_E_CORRUPT)
        result = zero_fail(error, result, "%s", damage.message);
    else if (result)
        result = add_damage(verification, &damage, error);
    else {
        tool_progress_begin(&verification->progress, "verify", tool_stored_bytes(&manifest));
        result = read_shards(verification, place, &manifest, error);
        tool_progress_end(&verification->progress);
    }
    if (!result)
        report(verification, place, manifest.world);
    ckpt_manifest_free(&manifest);
    json_decref(verification->damage);
    return result;
}

static zero_result verify_path(struct verification *verification, const char *path,
                               struct base_error *error)
{
    struct tool_place place;
    zero_result result = tool_place_open(&place, path, error);
    if (!result)
        result = verify(verification, &place, error);
    tool_place_close(&place);
    return result;
}

static zero_result verify_all(struct verification *verification, const char *path,
                              struct base_error *error)
{
    struct tool_place place;
    uint64_t *steps = NULL;
    size_t count = 0;
    zero_result result = tool_place_directory(path, error);
    if (result)
        return result;
    result = tool_place_open(&place, path, error); // holds the lock for all of them
    if (!result)
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
    struct verification verification = {.options = options};
    zero_result result = make(&verification, error);
    for (int i = 0; i < options->path_count && !result; i++)
        result = options->all ? verify_all(&verification, options->paths[i], error)
                              : verify_path(&verification, options->paths[i], error);
    if (!result && options->json) {
        json_t *root = tool_json_root("verify");
        root = tool_json_set(root, "checkpoints", verification.array);
        verification.array = NULL;
        result = tool_json_print(root, error);
    }
    release(&verification);
    *found = verification.found;
    return result;
}
