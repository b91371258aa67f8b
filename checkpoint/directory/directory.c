#include "checkpoint/directory/directory_parts.h"

#include "base/arena.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static zero_result sync_directory(struct ckpt_directory *directory, struct base_error *error)
{
    const zero_result result =
        directory->store->sync_directory(directory->store->user, directory->path, error);
    directory->lost |= result != ZERO_OK;
    return result > 0 ? ZERO_E_IO : result;
}

/* ------------------------------------------------------------------ opening */

static zero_result take_lock(struct ckpt_directory *directory, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path path = ckpt_path_below(directory->path, CKPT_LOCK_NAME);
    const zero_result result = store->lock(store->user, &directory->lock, path.text, true, error);
    if (result != ZERO_AGAIN)
        return result;
    char holder[BASE_HOLDER_BYTES];
    base_lock_holder(path.text, holder);
    return zero_fail(error, ZERO_E_STATE, "another job saves to '%s': it has locked '%s'%s",
                     directory->path, path.text, holder);
}

// Makes a file that readers lock.
static zero_result make_lock(struct ckpt_directory *directory, const char *name,
                             struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path path = ckpt_path_below(directory->path, name);
    struct ckpt_file *lock;
    const zero_result result = store->lock(store->user, &lock, path.text, true, error);
    store->unlock(&lock);
    return result == ZERO_AGAIN ? ZERO_OK : result;
}

// What an owner before may have renamed is made durable before anything is removed because of it.
static zero_result make_durable(struct ckpt_directory *directory, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path parent = ckpt_path_below(directory->path, "..");
    const zero_result result = store->sync_directory(store->user, parent.text, error);
    return result ? result : sync_directory(directory, error);
}

static zero_result open_directory(struct ckpt_directory *directory, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path pool = ckpt_path_below(directory->path, CKPT_POOL_NAME);
    zero_result result = store->make_directory(store->user, directory->path, error);
    if (!result)
        result = take_lock(directory, error);
    if (!result)
        result = make_lock(directory, CKPT_GATE_NAME, error);
    if (!result)
        result = make_lock(directory, CKPT_READERS_NAME, error);
    if (!result)
        result = store->make_directory(store->user, pool.text, error);
    if (!result)
        result = make_durable(directory, error);
    if (!result)
        result = ckpt_clean(directory, error);
    return result > 0 ? ZERO_E_IO : result;
}

zero_result ckpt_directory_open(struct ckpt_directory **out, const struct ckpt_store *store,
                                const char *path, uint32_t world, struct base_error *error)
{
    *out = NULL;
    zero_result result = ckpt_check_path(path, error);
    if (result)
        return result;
    struct ckpt_directory *directory = base_calloc(1, sizeof *directory);
    if (!directory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to open '%s'", path);
    directory->store = store;
    directory->world = world;
    memcpy(directory->path, path, strlen(path) + 1);
    result = open_directory(directory, error);
    if (result) {
        ckpt_directory_close(directory);
        return result;
    }
    *out = directory;
    return ZERO_OK;
}

void ckpt_directory_close(struct ckpt_directory *directory)
{
    if (!directory)
        return;
    directory->store->unlock(&directory->lock);
    base_free(directory);
}

bool ckpt_directory_is_held(const struct ckpt_directory *directory)
{
    return !directory->lost && directory->store->holds(directory->lock);
}

/* ------------------------------------------------------------------ saving */

zero_result ckpt_begin(struct ckpt_directory *directory, uint64_t step, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path saving = ckpt_path_saving(directory->path, step);
    if (directory->begun)
        return zero_fail(error, ZERO_E_STATE,
                         "'%s': step %" PRIu64 " begins while %" PRIu64 " is being saved",
                         directory->path, step, directory->step);
    zero_result result = ckpt_check_lost(directory, error);
    if (result)
        return result;
    // There may be one that could not be removed.
    struct base_error trouble = {0};
    result = ckpt_remove(directory, saving.text, CKPT_SHARDS_GO, &trouble);
    if (result < 0)
        return zero_fail(error, result, "%s", trouble.message);
    result = store->make_directory(store->user, saving.text, error);
    if (result)
        return result > 0 ? ZERO_E_IO : result;
    directory->begun = true;
    directory->step = step;
    return ZERO_OK;
}

zero_result ckpt_create_shard(const struct ckpt_store *store, const char *path, uint64_t step,
                              uint32_t rank, struct ckpt_file **file, struct base_error *error)
{
    *file = NULL;
    struct base_error trouble = {0};
    zero_result result = ckpt_check_path(path, error);
    if (result)
        return result;
    const struct ckpt_path pool = ckpt_path_below(path, CKPT_POOL_NAME);
    const struct ckpt_path saving = ckpt_path_saving(path, step);
    const struct ckpt_path old = ckpt_path_shard(pool.text, rank);
    const struct ckpt_path shard = ckpt_path_shard(saving.text, rank);
    result = store->rename(store->user, old.text, shard.text, &trouble);
    if (result < 0)
        return zero_fail(error, result, "%s", trouble.message);
    base_error_clear(&trouble);
    result = store->create(store->user, file, shard.text, result == ZERO_OK, &trouble);
    if (result == ZERO_NOT_FOUND)
        return zero_fail(error, ZERO_E_IO,
                         "rank %" PRIu32 " does not see '%.200s', which another rank has made: are "
                         "checkpoints on a file system that all ranks share?",
                         rank, saving.text);
    return result ? zero_fail(error, result, "%s", trouble.message) : ZERO_OK;
}

// Writes whole units, and cuts off what is too much.
static zero_result write_text(const struct ckpt_store *store, struct ckpt_file *file,
                              const char *text, size_t length, struct base_error *error)
{
    assert(length > 0);
    const size_t bytes = (length + CKPT_STORE_UNIT - 1) / CKPT_STORE_UNIT * CKPT_STORE_UNIT;
    char *units = base_aligned_alloc(CKPT_STORE_UNIT, bytes);
    if (!units)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a manifest of %zu bytes", length);
    memcpy(units, text, length);
    memset(units + length, 0, bytes - length);
    zero_result result = store->write(file, units, bytes, 0, error);
    if (!result)
        result = store->truncate(file, length, error);
    base_free(units);
    return result;
}

// Finds out which number in the order comes next, once: no other process commits.
static zero_result find_next(struct ckpt_directory *directory, struct base_error *error)
{
    struct ckpt_order order;
    uint64_t *steps;
    size_t count;
    if (directory->next > 0)
        return ZERO_OK;
    const zero_result result =
        ckpt_list_order(directory->store, directory->path, &steps, &count, &order, error);
    base_free(steps);
    directory->next = result ? 0 : order.next;
    return result > 0 ? ZERO_E_IO : result;
}

static zero_result write_manifest(struct ckpt_directory *directory, const char *saving,
                                  const struct ckpt_manifest *manifest, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path path = ckpt_path_below(saving, CKPT_MANIFEST_NAME);
    struct ckpt_manifest numbered = *manifest;
    char *text;
    size_t length;
    zero_result result = find_next(directory, error);
    if (result)
        return result;
    assert(directory->next > 0);
    numbered.sequence = directory->next;
    result = ckpt_manifest_format(&numbered, &text, &length, error);
    if (result)
        return result;
    struct ckpt_file *file = NULL;
    result = store->create(store->user, &file, path.text, false, error);
    if (!result)
        result = write_text(store, file, text, length, error);
    if (!result)
        result = store->sync(file, error);
    const zero_result closed = store->close(&file, error);
    base_free(text);
    return result ? result : closed;
}

// Gives it its name; what had it has the old one then (*replaced). Readers of that one are waited
// for, but not for ever: they may be in the middle of it.
static zero_result publish(struct ckpt_directory *directory, const char *saving, bool *replaced,
                           struct ckpt_exclusive *alone, struct base_error *error)
{
    assert(directory->begun);
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path place = ckpt_path_step(directory->path, directory->step);
    struct base_error trouble = {0};
    zero_result result = ckpt_has_manifest(store, place.text, replaced, error);
    if (result)
        return result;
    if (*replaced) {
        (void)ckpt_exclusive_begin(directory, alone, NULL);
        return store->exchange(store->user, saving, place.text, error);
    }
    // What is left of one that could not be removed. Other files with that name are not ours.
    bool removed;
    result = ckpt_is_removed(store, place.text, &removed, error);
    if (!result && removed)
        result = ckpt_remove(directory, place.text, CKPT_SHARDS_GO, &trouble);
    else if (!result) // an empty one is in the way of nothing
        (void)store->remove_directory(store->user, place.text, NULL);
    if (result < 0)
        return removed ? zero_fail(error, result, "%s", trouble.message) : result;
    return store->rename(store->user, saving, place.text, error);
}

// Everything up to the new name.
static zero_result prepare(struct ckpt_directory *directory, const char *saving,
                           const struct ckpt_manifest *manifest, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path pool = ckpt_path_below(directory->path, CKPT_POOL_NAME);
    zero_result result = store->sync_directory(store->user, saving, error);
    // Otherwise a shard might be in the pool again after a crash, and be written over.
    if (!result)
        result = store->sync_directory(store->user, pool.text, error);
    if (!result)
        result = write_manifest(directory, saving, manifest, error);
    if (!result)
        result = store->sync_directory(store->user, saving, error);
    return result;
}

zero_result ckpt_commit(struct ckpt_directory *directory, const struct ckpt_manifest *manifest,
                        struct base_error *error)
{
    if (!directory->begun || manifest->state.step != directory->step)
        return zero_fail(error, ZERO_E_STATE,
                         "'%s': step %" PRIu64 " ends, which is not being saved", directory->path,
                         manifest->state.step);
    const struct ckpt_path saving = ckpt_path_saving(directory->path, directory->step);
    struct ckpt_exclusive alone = {NULL, NULL};
    bool replaced = false;
    zero_result result = prepare(directory, saving.text, manifest, error);
    if (!result)
        result = publish(directory, saving.text, &replaced, &alone, error);
    if (!result) {
        directory->begun = false;
        directory->next++;
        result = sync_directory(directory, error);
    }
    // Its name is no checkpoint's any more: what stays now is removed with the next one.
    if (!result && replaced)
        ckpt_remove(directory, saving.text, CKPT_SHARDS_GO, NULL);
    ckpt_exclusive_end(directory, &alone);
    return result > 0 ? ZERO_E_IO : result;
}

void ckpt_cancel(struct ckpt_directory *directory)
{
    if (!directory->begun)
        return;
    const struct ckpt_path saving = ckpt_path_saving(directory->path, directory->step);
    ckpt_remove(directory, saving.text, CKPT_SHARDS_GO, NULL);
    directory->begun = false;
}
