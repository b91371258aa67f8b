#include "checkpoint/directory/directory_parts.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

zero_result ckpt_check_lost(const struct ckpt_directory *directory, struct base_error *error)
{
    return directory->lost ? zero_fail(error, ZERO_E_IO,
                                       "a flush of '%s' has failed: nothing is saved there or "
                                       "removed until it is opened again",
                                       directory->path)
                           : ZERO_OK;
}

/* ------------------------------------------------------------------ taking away */

struct removal {
    const struct ckpt_directory *directory;
    const char *path;
    enum ckpt_shards shards;
    bool strangers; // there is something that is not ours
};

static zero_result remove_entry(void *user, const char *name, enum base_entry_kind kind,
                                struct base_error *error)
{
    struct removal *removal = user;
    const struct ckpt_directory *directory = removal->directory;
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path entry = ckpt_path_below(removal->path, name);
    (void)kind;
    uint32_t rank;
    zero_result result;
    if (strcmp(name, CKPT_REMOVED_NAME) == 0)
        return ZERO_OK;
    if (!ckpt_name_is_shard(name, &rank)) {
        removal->strangers = true;
        return ZERO_OK;
    }
    if (removal->shards == CKPT_SHARDS_TO_POOL && rank < directory->world) {
        const struct ckpt_path pool = ckpt_path_below(directory->path, CKPT_POOL_NAME);
        const struct ckpt_path recycled = ckpt_path_below(pool.text, name);
        result = store->rename(store->user, entry.text, recycled.text, error);
    } else
        result = store->remove(store->user, entry.text, error);
    return result > 0 ? ZERO_E_IO : result;
}

zero_result ckpt_remove(const struct ckpt_directory *directory, const char *path,
                        enum ckpt_shards shards, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path manifest = ckpt_path_below(path, CKPT_MANIFEST_NAME);
    const struct ckpt_path mark = ckpt_path_below(path, CKPT_REMOVED_NAME);
    struct removal removal = {.directory = directory, .path = path, .shards = shards};
    struct base_error absent = {0};
    zero_result result = store->rename(store->user, manifest.text, mark.text, &absent);
    if (result < 0)
        return zero_fail(error, result, "%s", absent.message);
    // Even if it was gone: the process that renamed it may not have got further.
    result = store->sync_directory(store->user, path, error);
    if (!result)
        result = store->list(store->user, path, remove_entry, &removal, error);
    // The mark goes last: without it the next owner leaves the shards where they are.
    if (!result)
        result = store->sync_directory(store->user, path, error);
    if (!result)
        result = store->remove(store->user, mark.text, &absent);
    if (result < 0)
        return zero_fail(error, result, "%s", absent.message);
    return removal.strangers ? ZERO_OK : store->remove_directory(store->user, path, error);
}

zero_result ckpt_is_removed(const struct ckpt_store *store, const char *path, bool *removed,
                            struct base_error *error)
{
    bool has;
    *removed = false;
    const zero_result result = ckpt_has_manifest(store, path, &has, error);
    return result || has ? result : ckpt_has_file(store, path, CKPT_REMOVED_NAME, removed, error);
}

static zero_result clean_pool(void *user, const char *name, enum base_entry_kind kind,
                              struct base_error *error)
{
    const struct ckpt_directory *directory = user;
    const struct ckpt_path pool = ckpt_path_below(directory->path, CKPT_POOL_NAME);
    const struct ckpt_path entry = ckpt_path_below(pool.text, name);
    (void)kind;
    uint32_t rank;
    if (!ckpt_name_is_shard(name, &rank) || rank < directory->world)
        return ZERO_OK;
    return directory->store->remove(directory->store->user, entry.text, error);
}

static zero_result clean_entry(void *user, const char *name, enum base_entry_kind kind,
                               struct base_error *error)
{
    const struct ckpt_directory *directory = user;
    const struct ckpt_path entry = ckpt_path_below(directory->path, name);
    if (kind != BASE_ENTRY_DIRECTORY)
        return ZERO_OK;
    uint64_t step;
    bool unfinished = ckpt_name_is_saving(name, &step);
    if (ckpt_name_is_step(name, &step)) {
        const zero_result result =
            ckpt_is_removed(directory->store, entry.text, &unfinished, error);
        if (result)
            return result;
    }
    // Their shards don't go to the pool: a process of the job before may still write to them.
    return unfinished ? ckpt_remove(directory, entry.text, CKPT_SHARDS_GO, error) : ZERO_OK;
}

zero_result ckpt_clean(struct ckpt_directory *directory, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path pool = ckpt_path_below(directory->path, CKPT_POOL_NAME);
    const zero_result result =
        store->list(store->user, directory->path, clean_entry, directory, error);
    return result ? result : store->list(store->user, pool.text, clean_pool, directory, error);
}

/* ------------------------------------------------------------------ retention */

bool ckpt_keeps(const struct ckpt_retention *retention, const uint64_t *steps, size_t count,
                size_t i)
{
    assert(i < count);
    return retention->keep == 0 || count - i <= retention->keep ||
           (retention->keep_every && steps[i] % retention->keep_every == 0);
}

// Removes what is not kept. No process may be reading.
static zero_result remove_others(struct ckpt_directory *directory,
                                 const struct ckpt_retention *retention, const uint64_t *steps,
                                 size_t count, size_t *removed, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < count && !result; i++) {
        if (ckpt_keeps(retention, steps, count, i))
            continue;
        const struct ckpt_path path = ckpt_path_step(directory->path, steps[i]);
        result = ckpt_remove(directory, path.text, CKPT_SHARDS_TO_POOL, error);
        *removed += result == ZERO_OK;
    }
    return result > 0 ? ZERO_E_IO : result;
}

static zero_result prune(struct ckpt_directory *directory, const struct ckpt_retention *retention,
                         const uint64_t *steps, size_t count, const struct base_error *doubts,
                         size_t *removed, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    bool all = true;
    for (size_t i = 0; i < count; i++)
        all &= ckpt_keeps(retention, steps, count, i);
    if (all)
        return ZERO_OK;
    if (doubts->result)
        return zero_fail(error, doubts->result,
                         "nothing is removed while it is not known which checkpoints are the "
                         "newest: %s",
                         doubts->message);
    assert(count > 0); // or all would be kept
    zero_result result = ckpt_check_whole(store, directory->path, steps[count - 1], error);
    if (result)
        return result > 0 ? ZERO_E_CORRUPT : result;
    struct ckpt_exclusive alone;
    result = ckpt_exclusive_begin(directory, &alone, error);
    if (result)
        return result;
    result = remove_others(directory, retention, steps, count, removed, error);
    ckpt_exclusive_end(directory, &alone);
    return result;
}

// The steps that are a run's, in their order; all if `run` is NULL.
static size_t select_run(const struct ckpt_listed *listed, size_t count,
                         const struct ckpt_run_id *run, uint64_t *steps)
{
    size_t selected = 0;
    for (size_t i = 0; i < count; i++)
        if (!run || (listed[i].run_known && ckpt_same_run(&listed[i].run, run)))
            steps[selected++] = listed[i].step;
    return selected;
}

zero_result ckpt_prune(struct ckpt_directory *directory, const struct ckpt_retention *retention,
                       const struct ckpt_run_id *run, size_t *removed, struct base_error *error)
{
    *removed = 0;
    zero_result result = ckpt_check_lost(directory, error);
    if (result || retention->keep == 0)
        return result;
    struct ckpt_order order;
    struct ckpt_listed *listed;
    size_t count;
    result = ckpt_list_runs(directory->store, directory->path, &listed, &count, &order, error);
    if (result || count == 0)
        return result > 0 ? ZERO_E_IO : result;
    uint64_t *steps = base_calloc(count, sizeof *steps);
    if (steps)
        result = prune(directory, retention, steps, select_run(listed, count, run, steps),
                       &order.doubts, removed, error);
    else
        result = zero_fail(error, ZERO_E_NOMEM, "no memory to list %zu checkpoints in '%s'", count,
                           directory->path);
    base_free(steps);
    base_free(listed);
    return result;
}
