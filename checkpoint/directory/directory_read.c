#include "checkpoint/directory/directory_parts.h"

#include "base/arena.h"
#include "base/clock.h"
#include "checkpoint/shard/shard.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ texts */

// The whole text of a step's manifest, to be freed with base_free(); NULL after an error.
static zero_result read_text(const struct ckpt_store *store, const char *path, char **text,
                             size_t *length, struct base_error *error)
{
    struct ckpt_file *file;
    uint64_t bytes = 0;
    *text = NULL;
    zero_result result = store->open(store->user, &file, path, error);
    if (result)
        return result;
    result = store->bytes(file, &bytes, error);
    if (!result && bytes > CKPT_MAX_MANIFEST)
        result = zero_fail(error, ZERO_E_CORRUPT,
                           "'%s' has %" PRIu64 " bytes; a manifest has at most %" PRIu64, path,
                           bytes, CKPT_MAX_MANIFEST);
    if (!result && !(*text = base_calloc((size_t)bytes, 1)))
        result = zero_fail(error, ZERO_E_NOMEM, "no memory for the %" PRIu64 " bytes of '%s'",
                           bytes, path);
    if (!result)
        result = store->read(file, *text, (size_t)bytes, 0, error);
    const zero_result closed = store->close(&file, error);
    *length = (size_t)bytes;
    if (!result && !closed)
        return ZERO_OK;
    base_free(*text);
    *text = NULL;
    return result ? result : closed;
}

static struct ckpt_path manifest_path(const char *path, uint64_t step)
{
    const struct ckpt_path place = ckpt_path_step(path, step);
    return ckpt_path_below(place.text, CKPT_MANIFEST_NAME);
}

// A manifest is of the step that its directory is named after.
static zero_result check_step(const char *name, uint64_t step, uint64_t found,
                              struct base_error *error)
{
    return found == step
               ? ZERO_OK
               : zero_fail(error, ZERO_E_CORRUPT, "'%s' is of step %" PRIu64, name, found);
}

/* ------------------------------------------------------------------ listing */

zero_result ckpt_has_manifest(const struct ckpt_store *store, const char *path, bool *has,
                              struct base_error *error)
{
    return ckpt_has_file(store, path, CKPT_MANIFEST_NAME, has, error);
}

zero_result ckpt_has_file(const struct ckpt_store *store, const char *path, const char *name,
                          bool *has, struct base_error *error)
{
    const struct ckpt_path place = ckpt_path_below(path, name);
    struct base_error trouble = {0};
    struct ckpt_file *file;
    const zero_result result = store->open(store->user, &file, place.text, &trouble);
    *has = result != ZERO_NOT_FOUND;
    if (result == ZERO_E_NOMEM)
        return zero_fail(error, result, "%s", trouble.message);
    return result ? ZERO_OK : store->close(&file, error);
}

struct listing {
    const struct ckpt_store *store;
    const char *path;
    bool unfinished; // those are wanted that are no checkpoints
    struct ckpt_listed *list;
    size_t count, room;
};

static zero_result add_step(struct listing *listing, uint64_t step, struct base_error *error)
{
    assert(listing->count <= listing->room);
    if (listing->count == listing->room) {
        const size_t room = listing->room ? 2 * listing->room : 16;
        struct ckpt_listed *list = base_calloc(room, sizeof *list);
        if (!list)
            return zero_fail(error, ZERO_E_NOMEM, "no memory to list %zu checkpoints in '%s'", room,
                             listing->path);
        if (listing->count)
            memcpy(list, listing->list, listing->count * sizeof *list);
        base_free(listing->list);
        listing->list = list;
        listing->room = room;
    }
    listing->list[listing->count++] = (struct ckpt_listed){.step = step};
    return ZERO_OK;
}

static zero_result list_entry(void *user, const char *name, enum base_entry_kind kind,
                              struct base_error *error)
{
    struct listing *listing = user;
    uint64_t step;
    if (kind == BASE_ENTRY_FILE)
        return ZERO_OK;
    if (listing->unfinished && ckpt_name_is_saving(name, &step))
        return add_step(listing, step, error);
    if (!ckpt_name_is_step(name, &step))
        return ZERO_OK;
    const struct ckpt_path path = ckpt_path_below(listing->path, name);
    bool has;
    const zero_result result = ckpt_has_manifest(listing->store, path.text, &has, error);
    return result || has == listing->unfinished ? result : add_step(listing, step, error);
}

// By sequence, then by step.
static int compare_listed(const void *left, const void *right)
{
    const struct ckpt_listed *a = left, *b = right;
    if (a->sequence != b->sequence)
        return a->sequence < b->sequence ? -1 : 1;
    return (a->step > b->step) - (a->step < b->step);
}

static void sort(struct listing *listing)
{
    if (listing->count)
        qsort(listing->list, listing->count, sizeof *listing->list, compare_listed);
}

// Finds the sequence and the run of a step.
static zero_result read_place(const struct listing *listing, struct ckpt_listed *listed,
                              struct base_error *error)
{
    const struct ckpt_path name = manifest_path(listing->path, listed->step);
    struct ckpt_manifest_head head;
    char *text;
    size_t length;
    zero_result result = read_text(listing->store, name.text, &text, &length, error);
    if (!result)
        result = ckpt_manifest_parse_head(&head, text, length, name.text, error);
    base_free(text);
    if (!result)
        result = check_step(name.text, listed->step, head.step, error);
    if (result)
        return result;
    listed->sequence = head.sequence;
    listed->run = head.run;
    listed->run_known = true;
    return ZERO_OK;
}

// Finds sequences: of what can't be read it is that of the step before. They are sorted by steps.
static zero_result read_places(struct listing *listing, struct ckpt_order *order,
                               struct base_error *error)
{
    uint64_t before = 0, newest = 0, unknown = 0;
    for (size_t i = 0; i < listing->count; i++) {
        struct base_error trouble = {0};
        const zero_result result = read_place(listing, &listing->list[i], &trouble);
        before = result ? before : listing->list[i].sequence;
        listing->list[i].sequence = before;
        newest = before > newest ? before : newest;
        unknown += result != ZERO_OK;
        if (result == ZERO_E_NOMEM)
            return zero_fail(error, result, "%s", trouble.message);
        if (result < 0 && result != ZERO_E_CORRUPT)
            zero_fail(&order->doubts, result, "%s", trouble.message);
    }
    order->next = newest + unknown + 1;
    return ZERO_OK;
}

// Finds them, by steps. After an error there are none.
static zero_result list(struct listing *listing, struct base_error *error)
{
    zero_result result = ckpt_check_path(listing->path, error);
    if (!result)
        result =
            listing->store->list(listing->store->user, listing->path, list_entry, listing, error);
    if (result)
        listing->count = 0;
    sort(listing);
    return result;
}

// Hands the steps over, and frees the rest.
static zero_result give_steps(struct listing *listing, uint64_t **steps, size_t *count,
                              struct base_error *error)
{
    zero_result result = ZERO_OK;
    *steps = listing->count ? base_calloc(listing->count, sizeof **steps) : NULL;
    *count = *steps ? listing->count : 0;
    for (size_t i = 0; i < *count; i++)
        (*steps)[i] = listing->list[i].step;
    if (*count < listing->count)
        result = zero_fail(error, ZERO_E_NOMEM, "no memory to list %zu checkpoints in '%s'",
                           listing->count, listing->path);
    base_free(listing->list);
    return result;
}

// Finds them, in their order.
static zero_result list_in_order(struct listing *listing, struct ckpt_order *order,
                                 struct base_error *error)
{
    *order = (struct ckpt_order){.next = 1};
    zero_result result = list(listing, error);
    if (!result)
        result = read_places(listing, order, error);
    if (result)
        listing->count = 0;
    sort(listing);
    return result;
}

zero_result ckpt_list_runs(const struct ckpt_store *store, const char *path,
                           struct ckpt_listed **listed, size_t *count, struct ckpt_order *order,
                           struct base_error *error)
{
    struct listing listing = {.store = store, .path = path};
    const zero_result result = list_in_order(&listing, order, error);
    *count = listing.count;
    *listed = listing.count ? listing.list : NULL;
    if (listing.count == 0)
        base_free(listing.list);
    return result;
}

zero_result ckpt_list_order(const struct ckpt_store *store, const char *path, uint64_t **steps,
                            size_t *count, struct ckpt_order *order, struct base_error *error)
{
    struct listing listing = {.store = store, .path = path};
    const zero_result result = list_in_order(&listing, order, error);
    const zero_result given = give_steps(&listing, steps, count, error);
    return result ? result : given;
}

zero_result ckpt_list(const struct ckpt_store *store, const char *path, uint64_t **steps,
                      size_t *count, struct base_error *error)
{
    struct ckpt_order order;
    return ckpt_list_order(store, path, steps, count, &order, error);
}

zero_result ckpt_list_unfinished(const struct ckpt_store *store, const char *path, uint64_t **steps,
                                 size_t *count, struct base_error *error)
{
    struct listing listing = {.store = store, .path = path, .unfinished = true};
    const zero_result result = list(&listing, error);
    const zero_result given = give_steps(&listing, steps, count, error);
    return result ? result : given;
}

/* ------------------------------------------------------------------ manifests */

zero_result ckpt_read_manifest(struct ckpt_manifest *manifest, const struct ckpt_store *store,
                               const char *path, uint64_t step, struct base_error *error)
{
    char *text;
    size_t length;
    *manifest = (struct ckpt_manifest){0};
    zero_result result = ckpt_check_path(path, error);
    if (result)
        return result;
    const struct ckpt_path name = manifest_path(path, step);
    result = read_text(store, name.text, &text, &length, error);
    if (!result)
        result = ckpt_manifest_parse(manifest, text, length, name.text, error);
    base_free(text);
    if (!result)
        result = check_step(name.text, step, manifest->state.step, error);
    if (result)
        ckpt_manifest_free(manifest);
    return result;
}

zero_result ckpt_check_whole(const struct ckpt_store *store, const char *path, uint64_t step,
                             struct base_error *error)
{
    struct ckpt_manifest manifest;
    const struct ckpt_path place = ckpt_path_step(path, step);
    zero_result result = ckpt_read_manifest(&manifest, store, path, step, error);
    for (uint32_t rank = 0; !result && rank < manifest.world; rank++) {
        const struct ckpt_path name = ckpt_path_shard(place.text, rank);
        struct ckpt_shard *shard;
        result = ckpt_shard_open(&shard, store, name.text, &manifest, rank, error);
        ckpt_shard_close(shard);
    }
    ckpt_manifest_free(&manifest);
    return result;
}

/* ------------------------------------------------------------------ readers */

// Readers pass the gate when they come. A writer that has to be alone shuts it, or readers that
// overlap could put it off for ever.
enum { LONGEST_WAIT_S = 30, LONGEST_SHUT_S = 1, PAUSE_NS = 1000000 };

static uint64_t in_seconds(int seconds)
{
    return base_clock_ns() + (uint64_t)seconds * 1000000000;
}

/** store->lock(), tried again until base_clock_ns() is `end_ns`. ZERO_AGAIN: still in the way. */
static zero_result lock_until(const struct ckpt_store *store, struct ckpt_file **lock,
                              const char *path, bool exclusive, uint64_t end_ns,
                              struct base_error *error)
{
    zero_result result;
    while ((result = store->lock(store->user, lock, path, exclusive, error)) == ZERO_AGAIN &&
           base_clock_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return result;
}

zero_result ckpt_exclusive_begin(const struct ckpt_directory *directory,
                                 struct ckpt_exclusive *alone, struct base_error *error)
{
    const struct ckpt_store *store = directory->store;
    const struct ckpt_path gate = ckpt_path_below(directory->path, CKPT_GATE_NAME);
    const struct ckpt_path readers = ckpt_path_below(directory->path, CKPT_READERS_NAME);
    const uint64_t end = in_seconds(LONGEST_SHUT_S);
    *alone = (struct ckpt_exclusive){NULL, NULL};
    zero_result result = lock_until(store, &alone->gate, gate.text, true, end, error);
    if (!result)
        result = lock_until(store, &alone->readers, readers.text, true, end, error);
    if (result)
        ckpt_exclusive_end(directory, alone);
    return result;
}

void ckpt_exclusive_end(const struct ckpt_directory *directory, struct ckpt_exclusive *alone)
{
    directory->store->unlock(&alone->readers);
    directory->store->unlock(&alone->gate);
}

zero_result ckpt_reader_enter(const struct ckpt_store *store, const char *path,
                              struct ckpt_file **lock, struct base_error *error)
{
    *lock = NULL;
    zero_result result = ckpt_check_path(path, error);
    if (result)
        return result;
    const struct ckpt_path gate_path = ckpt_path_below(path, CKPT_GATE_NAME);
    const struct ckpt_path readers = ckpt_path_below(path, CKPT_READERS_NAME);
    const uint64_t end = in_seconds(LONGEST_WAIT_S);
    struct ckpt_file *gate;
    struct base_error trouble = {0};
    result = lock_until(store, &gate, gate_path.text, false, end, &trouble);
    if (result == ZERO_OK || result == ZERO_NOT_FOUND) {
        base_error_clear(&trouble);
        result = lock_until(store, lock, readers.text, false, end, &trouble);
    }
    store->unlock(&gate);
    if (result == ZERO_AGAIN)
        return zero_fail(error, ZERO_E_TIMEOUT,
                         "'%s' has been locked for %d s by a process that removes checkpoints",
                         readers.text, LONGEST_WAIT_S);
    return result < 0 ? zero_fail(error, result, "%s", trouble.message) : ZERO_OK;
}

void ckpt_reader_leave(const struct ckpt_store *store, struct ckpt_file **lock)
{
    store->unlock(lock);
}
