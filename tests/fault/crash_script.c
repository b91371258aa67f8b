#include "tests/fault/crash_script.h"

#include "base/arena.h"
#include "base/hash.h"
#include "checkpoint/directory/directory_parts.h"
#include "tests/fault/toy_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST = 99990 };

uint64_t script_draw(struct script *script, uint64_t below)
{
    const uint64_t both[] = {script->random, 11};
    script->random = base_hash64(both, sizeof both, 0);
    return script->random % below;
}

void script_draw_world(struct script *script)
{
    script->world = 1 + (uint32_t)script_draw(script, 3);
}

/* ------------------------------------------------------------------ what has been promised */

static struct expectation *expectation_of(struct script *script, uint64_t step)
{
    int i = 0;
    while (i < script->expected_count && script->expected[i].step != step)
        i++;
    if (i == SCRIPT_STEPS)
        abort();
    if (i == script->expected_count)
        script->expected[script->expected_count++] = (struct expectation){.step = step};
    return &script->expected[i];
}

void script_hear(struct script *script, uint32_t number)
{
    const struct script_event *event = &script->events[number];
    struct expectation *expected = expectation_of(script, event->step);
    if (event->promise == RETRACTED)
        expected->oldest = 0;
    else if (event->promise == PROMISED)
        expected->oldest = event->version;
    if (event->promise == PROMISED && event->version > script->promised)
        script->promised = event->version;
    if (event->promise == BEGUN && event->version > expected->newest)
        expected->newest = event->version;
}

static void promise(struct script *script, enum promise promise, uint64_t step, uint64_t version)
{
    if (script->event_count == SCRIPT_EVENTS)
        abort();
    script->events[script->event_count] = (struct script_event){promise, step, version};
    script->mark(script->mark_user, script->event_count++);
}

static bool complain(struct script *script, const char *what, uint64_t step, uint64_t version)
{
    const struct expectation *expected = expectation_of(script, step);
    if (!script->problem[0])
        snprintf(script->problem, sizeof script->problem,
                 "step %" PRIu64 " %s: version %" PRIu64 ", of %" PRIu64 " .. %" PRIu64, step, what,
                 version, expected->oldest, expected->newest);
    return false;
}

struct script_found script_read(const struct ckpt_store *store, const char *path, uint64_t step,
                                bool *parsed)
{
    struct ckpt_manifest manifest;
    struct script_found found = {.step = step};
    *parsed = ckpt_read_manifest(&manifest, store, path, step, NULL) == ZERO_OK;
    found.sequence = manifest.sequence;
    ckpt_manifest_free(&manifest);
    if (*parsed && toy_load(store, path, step, &found.version, NULL))
        found.version = 0;
    return found;
}

static bool check_step(struct script *script, const struct script_found *found)
{
    const struct expectation *expected = expectation_of(script, found->step);
    if (found->version == 0)
        return complain(script, "is taken for a checkpoint and is not whole", found->step, 0);
    return found->version <= expected->newest && found->version >= expected->oldest
               ? true
               : complain(script, "is from another save", found->step, found->version);
}

// Who resumes takes what was saved last, or what was being saved then: the order is that in which
// they were saved, whatever their steps.
static bool check_order(struct script *script, const struct script_found *found, int count)
{
    uint64_t newest = 0;
    bool same = true;
    for (int i = 0; i < count; i++) {
        newest = found[i].version > newest ? found[i].version : newest;
        for (int k = 0; k < i; k++)
            same &=
                (found[i].version > found[k].version) == (found[i].sequence > found[k].sequence);
    }
    if (same && newest >= script->promised)
        return true;
    if (!script->problem[0])
        snprintf(script->problem, sizeof script->problem,
                 "version %" PRIu64 " is the newest, %" PRIu64 " was acknowledged; the order is %s",
                 newest, script->promised, same ? "right" : "another one");
    return false;
}

bool script_accepts(struct script *script, const struct script_found *found, int count)
{
    for (int i = 0; i < count; i++)
        if (!check_step(script, &found[i]))
            return false;
    for (int i = 0; i < script->expected_count; i++) {
        int k = 0;
        while (k < count && found[k].step != script->expected[i].step)
            k++;
        if (script->expected[i].oldest && k == count)
            return complain(script, "was acknowledged and is lost", script->expected[i].step, 0);
    }
    return check_order(script, found, count);
}

bool script_accepts_store(struct script *script)
{
    struct script_found found[SCRIPT_STEPS];
    uint64_t *steps;
    size_t count;
    bool parsed;
    const zero_result r = ckpt_list(script->store, script->path, &steps, &count, NULL);
    if (r == ZERO_NOT_FOUND)
        count = 0;
    else if (r || count > SCRIPT_STEPS)
        return complain(script, "can't be listed", 0, 0);
    for (size_t i = 0; i < count; i++)
        found[i] = script_read(script->store, script->path, steps[i], &parsed);
    base_free(steps);
    return script_accepts(script, found, (int)count);
}

// What was promised must load.
static bool is_kept(struct script *script)
{
    for (int i = 0; i < script->expected_count; i++) {
        const struct expectation *expected = &script->expected[i];
        uint64_t version = 0;
        if (expected->oldest &&
            (toy_load(script->store, script->path, expected->step, &version, NULL) != ZERO_OK ||
             version < expected->oldest || version > expected->newest))
            return complain(script, "is lost to the next job", expected->step, version);
    }
    return true;
}

/* ------------------------------------------------------------------ what is done */

bool script_is_opening;

bool script_open(struct script *script)
{
    uint64_t *steps, version;
    size_t count;
    script_is_opening = true;
    const zero_result result =
        ckpt_directory_open(&script->directory, script->store, script->path, script->world, NULL);
    script_is_opening = false;
    if (result || ckpt_list(script->store, script->path, &steps, &count, NULL))
        return false;
    for (size_t i = 0; i < count; i++)
        if (toy_load(script->store, script->path, steps[i], &version, NULL) == ZERO_OK)
            promise(script, PROMISED, steps[i], version);
    base_free(steps);
    return true;
}

void script_close(struct script *script)
{
    ckpt_directory_close(script->directory);
    script->directory = NULL;
    script->last = 0;
}

// A bug: shards go while their checkpoint still is one.
static void steal(struct script *script)
{
    const struct ckpt_store *store = script->store;
    uint64_t *steps;
    size_t count;
    if (ckpt_list(store, script->path, &steps, &count, NULL) == ZERO_OK && count > 1) {
        char shard[CKPT_PATH_BYTES];
        const struct ckpt_path pool = ckpt_path_below(script->path, CKPT_POOL_NAME);
        const struct ckpt_path stolen = ckpt_path_shard(pool.text, 0);
        ckpt_shard_path(shard, script->path, steps[0], 0, NULL);
        store->rename(store->user, shard, stolen.text, NULL);
    }
    base_free(steps);
}

static bool save(struct script *script, uint64_t step)
{
    if (script->greedy)
        steal(script);
    const uint64_t version = ++script->version;
    promise(script, BEGUN, step, version);
    if (toy_save(script->directory, script->store, script->path, step, script->world, version,
                 NULL))
        return false;
    promise(script, PROMISED, step, version);
    script->last = step;
    return true;
}

static bool prune(struct script *script)
{
    const struct ckpt_retention retention = {1 + script_draw(script, 3),
                                             script_draw(script, 2) * 20};
    uint64_t *steps;
    size_t count, removed;
    if (ckpt_list(script->store, script->path, &steps, &count, NULL))
        return false;
    for (size_t i = 0; i + retention.keep < count; i++)
        if (steps[i] != script->last &&
            (retention.keep_every == 0 || steps[i] % retention.keep_every != 0))
            promise(script, RETRACTED, steps[i], 0);
    base_free(steps);
    return ckpt_prune(script->directory, &retention, NULL, &removed, NULL) == ZERO_OK;
}

bool script_act(struct script *script)
{
    const uint64_t action = script_draw(script, 10);
    if (action < 5)
        return save(script, script->step += 10);
    if (action < 7 && script->calm)
        return save(script, script->step += 10);
    if (action < 7) { // again, or back by a few
        const uint64_t back = 10 * script_draw(script, 4);
        script->step -= back < script->step ? back : 0;
        return save(script, script->step);
    }
    if (action < 9)
        return prune(script);
    script_close(script);
    script_draw_world(script);
    return script_open(script);
}

static zero_result find_unfinished(void *user, const char *name, enum base_entry_kind kind,
                                   struct base_error *error)
{
    (void)error;
    (void)kind;
    uint64_t step;
    *(bool *)user |= ckpt_name_is_saving(name, &step);
    return ZERO_OK;
}

bool script_go_on(struct script *script)
{
    const struct ckpt_store *store = script->store;
    const uint64_t step = LAST + 10 * script->version; // no job before had it
    bool unfinished = false;
    if (!script_open(script))
        return complain(script, "can't be opened for", step, 0);
    if (store->list(store->user, script->path, find_unfinished, &unfinished, NULL) || unfinished)
        return complain(script, "finds what is unfinished", step, 0);
    if (!is_kept(script) || !save(script, step) || !is_kept(script))
        return complain(script, "can't be saved, or harms others", step, 0);
    if (!prune(script) || !save(script, step + 10))
        return complain(script, "can't be pruned for", step, 0);
    return true;
}
