#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"

#include <string.h>

// A copy of a path that is to be cut; no longer one is a directory of checkpoints.
static zero_result copy_path(char out[CKPT_PATH_BYTES], const char *path, struct base_error *error)
{
    const size_t length = strlen(path);
    if (length == 0 || length >= CKPT_PATH_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "the path '%.60s%s' has %zu bytes", path,
                         length > 60 ? "..." : "", length);
    memcpy(out, path, length + 1);
    return ZERO_OK;
}

static zero_result find_newest(struct tool_place *place, struct base_error *error)
{
    uint64_t *steps;
    size_t count;
    const zero_result result =
        ckpt_list(&ckpt_store_posix, place->directory, &steps, &count, error);
    if (result)
        return result;
    if (count > 0)
        place->step = steps[count - 1];
    base_free(steps);
    return count > 0 ? ZERO_OK
                     : zero_fail(error, ZERO_NOT_FOUND, "there is no checkpoint in '%.200s'",
                                 place->directory);
}

zero_result tool_place_open(struct tool_place *place, const char *path, struct base_error *error)
{
    *place = (struct tool_place){.step = 0};
    zero_result result = copy_path(place->directory, path, error);
    if (result)
        return result;
    const bool one = ckpt_split_path(place->directory, &place->step);
    result = ckpt_reader_enter(&ckpt_store_posix, place->directory, &place->lock, error);
    return result || one ? result : find_newest(place, error);
}

void tool_place_close(struct tool_place *place)
{
    ckpt_reader_leave(&ckpt_store_posix, &place->lock);
}

zero_result tool_place_directory(const char *path, struct base_error *error)
{
    char copy[CKPT_PATH_BYTES];
    uint64_t step;
    const zero_result result = copy_path(copy, path, error);
    if (result || !ckpt_split_path(copy, &step))
        return result;
    return zero_fail(error, ZERO_E_INVALID,
                     "'%.200s' is one checkpoint; the directory is wanted in which they are", path);
}
