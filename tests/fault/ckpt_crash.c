// Power cuts: scripts of saves, prunes, kills and restarts run through checkpoint/directory.h on a
// disk that records them, and every state that a power cut may leave is looked at. A checkpoint
// that was acknowledged, and not pruned, loads; what is taken for a checkpoint is whole; and who
// opens the directory next can go on. Protocols with a bug must be caught.
//
// "many" runs more scripts with more states.
#include "base/arena.h"
#include "base/hash.h"
#include "checkpoint/directory_parts.h"
#include "tests/fault/crash_states.h"
#include "tests/fault/toy_checkpoint.h"
#include "tests/sanitizer.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char path[] = "/c";

enum { STEPS = 64, EVENTS = 1024, ACTIONS = 14, VERDICTS = 1 << 12, LAST = 99990 };

/* ------------------------------------------------------------------ what has been promised */

enum promise {
    BEGUN,     // may be there
    PROMISED,  // must be there, this version or a later one
    RETRACTED, // need not be there any more
};

struct event {
    enum promise promise;
    uint64_t step, version;
};

struct expectation {
    uint64_t step;
    uint64_t oldest, newest; // versions; oldest 0: need not be there
};

struct verdict {
    uint64_t key, version; // version 0: it isn't whole
    uint64_t sequence;
};

// A script being run, and afterwards looked at.
struct rig {
    struct crash_disk *disk;
    struct ckpt_directory *directory;
    uint32_t world;
    uint64_t random, version, step, last;
    uint64_t promised; // the version that was acknowledged last
    struct event events[EVENTS];
    uint32_t event_count;
    struct expectation expected[STEPS];
    int expected_count;
    bool calm;     // no kills, and no step is saved again or before others
    bool trusting; // takes whatever has a manifest for a checkpoint, whole or not
    bool greedy;   // writes over shards of the oldest checkpoint while it is one
    struct verdict verdicts[VERDICTS];
    struct crash_set situations;
    size_t reopened;
    bool nested;
    char problem[640];
};

static uint64_t draw(struct rig *rig, uint64_t below)
{
    const uint64_t both[] = {rig->random, 11};
    rig->random = base_hash64(both, sizeof both, 0);
    return rig->random % below;
}

static struct expectation *expectation_of(struct rig *rig, uint64_t step)
{
    int i = 0;
    while (i < rig->expected_count && rig->expected[i].step != step)
        i++;
    if (i == rig->expected_count) {
        assert_true(rig->expected_count < STEPS);
        rig->expected[rig->expected_count++] = (struct expectation){.step = step};
    }
    return &rig->expected[i];
}

static void hear(void *user, uint32_t mark)
{
    struct rig *rig = user;
    const struct event *event = &rig->events[mark];
    struct expectation *expected = expectation_of(rig, event->step);
    if (event->promise == RETRACTED)
        expected->oldest = 0;
    else if (event->promise == PROMISED)
        expected->oldest = event->version;
    if (event->promise == PROMISED && event->version > rig->promised)
        rig->promised = event->version;
    if (event->promise == BEGUN && event->version > expected->newest)
        expected->newest = event->version;
}

static void promise(struct rig *rig, enum promise promise, uint64_t step, uint64_t version)
{
    assert_true(rig->event_count < EVENTS);
    rig->events[rig->event_count] = (struct event){promise, step, version};
    crash_disk_mark(rig->disk, rig->event_count++);
}

/* ------------------------------------------------------------------ scripts */

static bool opening; // an owner opens the directory

// What an owner finds it builds upon: it must stay.
static bool open_directory(struct rig *rig)
{
    const struct ckpt_store *store = &rig->disk->store;
    uint64_t *steps, version;
    size_t count;
    opening = true;
    const zero_result result = ckpt_directory_open(&rig->directory, store, path, rig->world, NULL);
    opening = false;
    if (result || ckpt_list(store, path, &steps, &count, NULL))
        return false;
    for (size_t i = 0; i < count; i++)
        if (toy_load(store, path, steps[i], &version, NULL) == ZERO_OK)
            promise(rig, PROMISED, steps[i], version);
    base_free(steps);
    return true;
}

static void close_directory(struct rig *rig)
{
    ckpt_directory_close(rig->directory);
    rig->directory = NULL;
    rig->last = 0;
}

// A bug: shards go while their checkpoint still is one.
static void steal(struct rig *rig)
{
    const struct ckpt_store *store = &rig->disk->store;
    uint64_t *steps;
    size_t count;
    if (ckpt_list(store, path, &steps, &count, NULL) == ZERO_OK && count > 1) {
        char shard[CKPT_PATH_BYTES];
        ckpt_shard_path(shard, path, steps[0], 0, NULL);
        store->rename(store->user, shard, "/c/pool/shard-00000.zst", NULL);
    }
    base_free(steps);
}

static bool save(struct rig *rig, uint64_t step)
{
    if (rig->greedy)
        steal(rig);
    const uint64_t version = ++rig->version;
    promise(rig, BEGUN, step, version);
    if (toy_save(rig->directory, &rig->disk->store, path, step, rig->world, version, NULL))
        return false;
    promise(rig, PROMISED, step, version);
    rig->last = step;
    return true;
}

static bool prune(struct rig *rig)
{
    const struct ckpt_retention retention = {1 + draw(rig, 3), draw(rig, 2) * 20};
    uint64_t *steps;
    size_t count, removed;
    if (ckpt_list(&rig->disk->store, path, &steps, &count, NULL))
        return false;
    for (size_t i = 0; i + retention.keep < count; i++)
        if (steps[i] != rig->last &&
            (retention.keep_every == 0 || steps[i] % retention.keep_every != 0))
            promise(rig, RETRACTED, steps[i], 0);
    base_free(steps);
    return ckpt_prune(rig->directory, &retention, &removed, NULL) == ZERO_OK;
}

static bool act(struct rig *rig)
{
    const uint64_t action = draw(rig, 10);
    if (action < 5)
        return save(rig, rig->step += 10);
    if (action < 7 && rig->calm)
        return save(rig, rig->step += 10);
    if (action < 7) { // again, or back by a few
        const uint64_t back = 10 * draw(rig, 4);
        rig->step -= back < rig->step ? back : 0;
        return save(rig, rig->step);
    }
    if (action < 9)
        return prune(rig);
    close_directory(rig);
    rig->world = 1 + (uint32_t)draw(rig, 3);
    return open_directory(rig);
}

static void run_script(struct rig *rig, uint64_t seed)
{
    rig->random = seed;
    rig->world = 1 + (uint32_t)draw(rig, 3);
    rig->step = 10;
    assert_true(open_directory(rig));
    for (int i = 0; i < ACTIONS; i++) {
        if (!rig->calm && draw(rig, 4) == 0) // a kill in the middle of what comes
            rig->disk->dies_at = rig->disk->calls + 1 + draw(rig, 40);
        if (act(rig))
            continue;
        assert_true(rig->disk->dies_at && rig->disk->calls >= rig->disk->dies_at);
        close_directory(rig);
        crash_disk_revive(rig->disk);
        rig->world = 1 + (uint32_t)draw(rig, 3);
        assert_true(open_directory(rig));
    }
    close_directory(rig);
    assert_int_equal(rig->disk->open_files, 0);
}

/* ------------------------------------------------------------------ looking at a state */

static bool complain(struct rig *rig, const char *what, uint64_t step, uint64_t version)
{
    const struct expectation *expected = expectation_of(rig, step);
    if (!rig->problem[0])
        snprintf(rig->problem, sizeof rig->problem,
                 "step %" PRIu64 " %s: version %" PRIu64 ", of %" PRIu64 " .. %" PRIu64, step, what,
                 version, expected->oldest, expected->newest);
    return false;
}

// Reads a checkpoint as a program would. *parsed: its manifest is whole.
static void load(struct crash_image *image, uint64_t step, struct verdict *verdict, bool *parsed)
{
    struct crash_disk *disk = crash_image_mount(image);
    struct ckpt_manifest manifest;
    *parsed = ckpt_read_manifest(&manifest, &disk->store, path, step, NULL) == ZERO_OK;
    verdict->sequence = manifest.sequence;
    ckpt_manifest_free(&manifest);
    if (*parsed && toy_load(&disk->store, path, step, &verdict->version, NULL))
        verdict->version = 0;
    crash_disk_free(disk);
}

// What a program finds under a step's name; version UINT64_MAX: nothing.
static struct verdict judge(struct rig *rig, struct crash_image *image, uint64_t step,
                            uint32_t inode)
{
    const struct crash_inode *directory = crash_image_inode(image, inode);
    if (!directory->directory || !crash_inode_find(directory, CKPT_MANIFEST_NAME))
        return (struct verdict){.version = UINT64_MAX};
    const uint64_t both[] = {step, crash_image_hash(image, inode)};
    const uint64_t key = base_hash64(both, sizeof both, 0);
    struct verdict *verdict = &rig->verdicts[key % VERDICTS];
    if (verdict->key != key) {
        bool parsed;
        *verdict = (struct verdict){.key = key};
        load(image, step, verdict, &parsed);
        if (!parsed && !rig->trusting)
            verdict->version = UINT64_MAX;
    }
    return *verdict;
}

static bool check_step(struct rig *rig, uint64_t step, uint64_t version)
{
    const struct expectation *expected = expectation_of(rig, step);
    if (version == UINT64_MAX)
        return true;
    if (version == 0)
        return complain(rig, "is taken for a checkpoint and is not whole", step, 0);
    return version <= expected->newest && version >= expected->oldest
               ? true
               : complain(rig, "is from another save", step, version);
}

// Who resumes takes what was saved last, or what was being saved then: the order is that in which
// they were saved, whatever their steps.
static bool check_order(struct rig *rig, const struct verdict *found, int count)
{
    uint64_t newest = 0;
    bool same = true;
    for (int i = 0; i < count; i++) {
        newest = found[i].version > newest ? found[i].version : newest;
        for (int k = 0; k < i; k++)
            same &=
                (found[i].version > found[k].version) == (found[i].sequence > found[k].sequence);
    }
    if (same && newest >= rig->promised)
        return true;
    if (!rig->problem[0])
        snprintf(rig->problem, sizeof rig->problem,
                 "version %" PRIu64 " is the newest, %" PRIu64 " was acknowledged; the order is %s",
                 newest, rig->promised, same ? "right" : "another one");
    return false;
}

// What is in the pool, and what of it is somewhere else, too.
static uint64_t hash_pool(struct crash_image *image, const struct crash_inode *directory,
                          uint32_t pool)
{
    const struct crash_inode *files = crash_image_inode(image, pool);
    uint64_t hash = 0;
    for (size_t i = 0; i < files->count; i++) {
        uint64_t elsewhere = 0;
        for (size_t k = 0; k < directory->count; k++) {
            const struct crash_inode *other = crash_image_inode(image, directory->entries[k].inode);
            for (size_t n = 0; n < other->count; n++)
                elsewhere += other->entries[n].inode == files->entries[i].inode;
        }
        hash += base_hash64(&elsewhere, sizeof elsewhere, files->entries[i].hash);
    }
    return hash;
}

static bool reopen(struct rig *rig, struct crash_image *image);

static bool look(void *user, struct crash_image *image)
{
    struct rig *rig = user;
    uint64_t situation = 0, steps[STEPS];
    struct verdict found[STEPS];
    int count = 0;
    const uint32_t inode = crash_inode_find(crash_image_inode(image, CRASH_ROOT), path + 1);
    const struct crash_inode empty = {0};
    const struct crash_inode *directory = inode ? crash_image_inode(image, inode) : &empty;
    for (size_t i = 0; i < directory->count; i++) {
        const struct crash_entry *entry = &directory->entries[i];
        uint64_t step = 0;
        struct verdict verdict = {.version = UINT64_MAX};
        if (ckpt_name_is_step(entry->name, &step))
            verdict = judge(rig, image, step, entry->inode);
        if (verdict.version != UINT64_MAX && !check_step(rig, step, verdict.version))
            return false;
        if (verdict.version != UINT64_MAX) {
            steps[count] = step;
            found[count++] = verdict;
        }
        situation += base_hash64(&verdict.version, sizeof verdict.version, entry->hash);
        if (strcmp(entry->name, CKPT_POOL_NAME) == 0)
            situation += hash_pool(image, directory, entry->inode);
    }
    for (int i = 0; i < rig->expected_count; i++) {
        int k = 0;
        while (k < count && steps[k] != rig->expected[i].step)
            k++;
        if (rig->expected[i].oldest && k == count)
            return complain(rig, "was acknowledged and is lost", rig->expected[i].step, 0);
    }
    if (!check_order(rig, found, count))
        return false;
    // What means the same to the next job need not be opened twice.
    return !crash_set_add(&rig->situations, situation) || reopen(rig, image);
}

// What was promised must load on a disk.
static bool check_promises(struct rig *rig, const struct crash_disk *disk)
{
    for (int i = 0; i < rig->expected_count; i++) {
        const struct expectation *expected = &rig->expected[i];
        uint64_t version = 0;
        if (expected->oldest &&
            (toy_load(&disk->store, path, expected->step, &version, NULL) != ZERO_OK ||
             version < expected->oldest || version > expected->newest))
            return complain(rig, "is lost to the next job", expected->step, version);
    }
    return true;
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

// The next job's life, on the disk that the power cut has left. Its own power cuts are looked at,
// too, as far as nobody is nested.
static bool go_on(struct rig *next)
{
    const struct ckpt_store *store = &next->disk->store;
    const uint64_t step = LAST + 10 * next->version; // no job before had it
    bool unfinished = false;
    if (!open_directory(next))
        return complain(next, "can't be opened for", step, 0);
    if (store->list(store->user, path, find_unfinished, &unfinished, NULL) || unfinished)
        return complain(next, "finds what is unfinished", step, 0);
    if (!check_promises(next, next->disk) || !save(next, step) || !check_promises(next, next->disk))
        return complain(next, "can't be saved, or harms others", step, 0);
    if (!prune(next) || !save(next, step + 10))
        return complain(next, "can't be pruned for", step, 0);
    return true;
}

static bool reopen(struct rig *rig, struct crash_image *image)
{
    enum { AFTER_TWO_CUTS = 4, NESTED = 64 };
    if (rig->nested && rig->reopened >= AFTER_TWO_CUTS)
        return true;
    struct rig *next = calloc(1, sizeof *next);
    assert_non_null(next);
    *next = *rig;
    next->disk = crash_image_mount(image);
    next->situations = (struct crash_set){0};
    next->nested = true;
    next->reopened = 0;
    next->event_count = 0;
    next->world = 1 + (uint32_t)draw(rig, 3);
    next->last = 0;
    rig->reopened++;
    next->disk->fate = rig->disk->fate;
    bool good = go_on(next);
    close_directory(next);
    if (good && !rig->nested && rig->reopened % NESTED == 0) {
        struct crash_set states = {0};
        const struct crash_watch watch = {next, hear, look};
        good = crash_explore(next->disk, &watch, rig->random, 4, &states);
        crash_set_free(&states);
    }
    memcpy(rig->problem, next->problem, sizeof rig->problem);
    crash_disk_free(next->disk);
    crash_set_free(&next->situations);
    free(next);
    return good;
}

/* ------------------------------------------------------------------ protocols */

static const char *last_part(const char *name)
{
    return strrchr(name, '/') + 1;
}

static enum crash_fate drop_shards(const char *name)
{
    return strncmp(last_part(name), "shard-", 6) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_manifest(const char *name)
{
    return strcmp(last_part(name), CKPT_MANIFEST_NAME) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_saving(const char *name)
{
    return strncmp(last_part(name), "saving-", 7) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_directory(const char *name)
{
    return strcmp(name, path) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_at_opening(const char *name)
{
    return opening ? drop_directory(name) : CRASH_DO;
}

static enum crash_fate drop_parent(const char *name)
{
    return strcmp(last_part(name), "..") == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_pool(const char *name)
{
    return strcmp(last_part(name), CKPT_POOL_NAME) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate drop_removal(const char *name)
{
    return strncmp(last_part(name), "step-", 5) == 0 ? CRASH_DROP : CRASH_DO;
}

static enum crash_fate delay_shards(const char *name)
{
    return strncmp(last_part(name), "shard-", 6) == 0 ? CRASH_LATE : CRASH_DO;
}

static enum crash_fate delay_manifest(const char *name)
{
    return strcmp(last_part(name), CKPT_MANIFEST_NAME) == 0 ? CRASH_LATE : CRASH_DO;
}

struct protocol {
    const char *name;
    crash_fate_fn fate;
    bool greedy, trusting, calm;
};

// Runs one script and looks at its states: what is wrong with one, "" if nothing is.
static const char *explore(const struct protocol *protocol, uint64_t seed, int draws,
                           struct crash_set *states, size_t *reopened)
{
    static char problem[640];
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    rig->greedy = protocol->greedy;
    rig->trusting = protocol->trusting;
    rig->calm = protocol->calm;
    rig->disk = crash_disk_make();
    rig->disk->fate = protocol->fate;
    run_script(rig, seed);
    const struct crash_watch watch = {rig, hear, look};
    const bool good = crash_explore(rig->disk, &watch, seed, draws, states);
    assert_int_equal(good, rig->problem[0] == '\0');
    strcpy(problem, rig->problem);
    *reopened += rig->reopened;
    crash_disk_free(rig->disk);
    crash_set_free(&rig->situations);
    free(rig);
    return problem;
}

static struct {
    uint64_t scripts;
    int draws;
    size_t states;
} effort = {18, 9000, 100000};

static void no_power_cut_loses_a_checkpoint(void **state)
{
    (void)state;
    const struct protocol ours = {.name = "ours", .trusting = true};
    struct crash_set states = {0};
    size_t reopened = 0;
    for (uint64_t seed = 1; seed <= effort.scripts; seed++) {
        if (!test_takes((int)seed))
            continue;
        const char *problem = explore(&ours, seed, effort.draws, &states, &reopened);
        if (*problem)
            fail_msg("script %" PRIu64 ": %s", seed, problem);
    }
    print_message("%zu states, of which the next job has gone on from %zu\n", states.count,
                  reopened);
    assert_true(states.count >= effort.states / (TEST_STRIDE * TEST_STRIDE));
    crash_set_free(&states);
}

// Whether one of a few scripts shows that something is wrong.
static bool is_caught(const struct protocol *protocol, uint64_t scripts)
{
    enum { DRAWS = 40 };
    struct crash_set states = {0};
    size_t reopened = 0;
    const char *problem = "";
    for (uint64_t seed = 1; seed <= scripts && !*problem; seed++)
        problem = explore(protocol, seed, DRAWS, &states, &reopened);
    print_message("%s: %s\n", protocol->name, *problem ? problem : "nothing wrong");
    crash_set_free(&states);
    return *problem;
}

static void bugs_are_caught(void **state)
{
    (void)state;
    static const struct protocol bugs[] = {
        {"a file isn't flushed", drop_shards, false, false, false},
        {"the manifest isn't flushed", drop_manifest, false, false, false},
        {"the new directory isn't flushed", drop_saving, false, false, false},
        {"the directory it is in isn't flushed", drop_directory, false, false, false},
        {"nor the one that is in", drop_parent, false, false, false},
        {"who opens it doesn't flush it", drop_at_opening, false, false, false},
        {"the pool isn't flushed", drop_pool, false, false, false},
        {"the manifest is there before the data", delay_shards, false, false, false},
        {"the manifest's removal isn't flushed", drop_removal, false, false, false},
        {"a live checkpoint is written over", NULL, true, false, false},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        if (!is_caught(&bugs[i], 40))
            fail_msg("%s, and nobody notices", bugs[i].name);
}

// A manifest that is flushed last of all, before it is acknowledged, is safe because of its
// checksum only.
static void the_checksum_is_needed(void **state)
{
    (void)state;
    struct protocol late = {"the manifest is flushed late", delay_manifest, false, false, true};
    assert_false(is_caught(&late, 2));
    late.name = "the same without a checksum";
    late.trusting = true;
    assert_true(is_caught(&late, 2));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_power_cut_loses_a_checkpoint),
        cmocka_unit_test(bugs_are_caught),
        cmocka_unit_test(the_checksum_is_needed),
    };
    if (argc > 1 && strcmp(argv[1], "many") == 0) {
        effort.scripts = 200;
        effort.states = 500000;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
