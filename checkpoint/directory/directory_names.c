#include "checkpoint/directory/directory_parts.h"

#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_NAME = 32 }; // the longest is saving-18446744073709551615

struct ckpt_path ckpt_path_below(const char *directory, const char *name)
{
    // It fits: the directory's length was checked, and there is room for all names.
    assert(strlen(directory) + strlen(name) + 2 <= CKPT_PATH_BYTES);
    struct ckpt_path path;
    struct base_text text = {path.text, sizeof path.text, 0};
    base_text_add(&text, "%s/%s", directory, name);
    return path;
}

static void format_step(char name[STEP_NAME], const char *kind, uint64_t step)
{
    struct base_text text = {name, STEP_NAME, 0};
    base_text_add(&text, "%s-%08" PRIu64, kind, step);
}

struct ckpt_path ckpt_path_step(const char *directory, uint64_t step)
{
    char name[STEP_NAME];
    format_step(name, "step", step);
    return ckpt_path_below(directory, name);
}

struct ckpt_path ckpt_path_saving(const char *directory, uint64_t step)
{
    char name[STEP_NAME];
    format_step(name, "saving", step);
    return ckpt_path_below(directory, name);
}

struct ckpt_path ckpt_path_shard(const char *directory, uint32_t rank)
{
    char name[CKPT_SHARD_NAME];
    ckpt_shard_name(rank, name);
    return ckpt_path_below(directory, name);
}

// Whether a name is what format_step() makes: no sign, no other number of zeros.
static bool parse_step(const char *name, const char *kind, uint64_t *step)
{
    const size_t length = strlen(kind);
    if (strncmp(name, kind, length) != 0 || name[length] != '-')
        return false;
    *step = strtoull(name + length + 1, NULL, 10);
    char exact[STEP_NAME];
    format_step(exact, kind, *step);
    return strcmp(name, exact) == 0;
}

bool ckpt_name_is_step(const char *name, uint64_t *step)
{
    return parse_step(name, "step", step);
}

bool ckpt_name_is_saving(const char *name, uint64_t *step)
{
    return parse_step(name, "saving", step);
}

bool ckpt_name_is_shard(const char *name, uint32_t *rank)
{
    if (strncmp(name, "shard-", 6) != 0)
        return false;
    const unsigned long long number = strtoull(name + 6, NULL, 10);
    if (number >= CKPT_MAX_SHARDS)
        return false;
    char exact[CKPT_SHARD_NAME];
    ckpt_shard_name(*rank = (uint32_t)number, exact);
    return strcmp(name, exact) == 0;
}

zero_result ckpt_check_path(const char *path, struct base_error *error)
{
    const size_t length = strlen(path);
    if (length > 0 && length <= CKPT_MAX_PATH)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "the path of checkpoints '%.60s%s' has %zu bytes; 1 to %d are allowed", path,
                     length > 60 ? "..." : "", length, CKPT_MAX_PATH);
}

zero_result ckpt_shard_path(char out[CKPT_PATH_BYTES], const char *path, uint64_t step,
                            uint32_t rank, struct base_error *error)
{
    const zero_result result = ckpt_check_path(path, error);
    if (result)
        return result;
    const struct ckpt_path place = ckpt_path_step(path, step);
    const struct ckpt_path shard = ckpt_path_shard(place.text, rank);
    memcpy(out, shard.text, sizeof shard.text);
    return ZERO_OK;
}

bool ckpt_split_path(char *path, uint64_t *step)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    char name[STEP_NAME] = "";
    if (length - start < sizeof name)
        memcpy(name, path + start, length - start);
    if (!ckpt_name_is_step(name, step))
        return false;
    while (start > 1 && path[start - 1] == '/')
        start--;
    memcpy(path + start, start ? "" : ".", start ? 1 : 2);
    return true;
}
