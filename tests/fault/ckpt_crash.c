// Power cuts: scripts of saves, prunes, kills and restarts run through
// checkpoint/directory/directory.h on a disk that records them, and every state that a power cut
// may leave is looked at. A checkpoint that was acknowledged, and not pruned, loads; what is taken
// for a checkpoint is whole; and the process that opens the directory next can go on. Protocols
// with a bug must be caught.
//
// "many" runs more scripts with more states.
#include "base/hash.h"
#include "checkpoint/directory/directory_parts.h"
#include "tests/fault/crash_script.h"
#include "tests/fault/crash_states.h"
#include "tests/sweep.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char path[] = "/c";

enum { ACTIONS = 14, VERDICTS = 1 << 12 };

struct verdict {
    uint64_t key;
    struct script_found found;
};

// A script being run, and afterwards looked at.
struct rig {
    struct crash_disk *disk;
    struct script script; // calm: no kills, too
    bool trusting;        // takes whatever has a manifest for a checkpoint, whole or not
    struct verdict verdicts[VERDICTS];
    struct crash_set situations;
    size_t reopened;
    bool nested;
};

static void mark(void *user, uint32_t event)
{
    const struct rig *rig = user;
    crash_disk_mark(rig->disk, event);
}

static void hear(void *user, uint32_t event)
{
    struct rig *rig = user;
    script_hear(&rig->script, event);
}

static void use_disk(struct rig *rig, struct crash_disk *disk)
{
    rig->disk = disk;
    rig->script.store = &disk->store;
    rig->script.path = path;
    rig->script.mark = mark;
    rig->script.mark_user = rig;
}

static void run_script(struct rig *rig, uint64_t seed)
{
    struct script *script = &rig->script;
    script->random = seed;
    script_draw_world(script);
    script->step = 10;
    assert_true(script_open(script));
    for (int i = 0; i < ACTIONS; i++) {
        if (!script->calm && script_draw(script, 4) == 0) // a kill in the middle of what comes
            rig->disk->dies_at = rig->disk->calls + 1 + script_draw(script, 40);
        if (script_act(script))
            continue;
        assert_true(rig->disk->dies_at && rig->disk->calls >= rig->disk->dies_at);
        script_close(script);
        crash_disk_revive(rig->disk);
        script_draw_world(script);
        assert_true(script_open(script));
    }
    script_close(script);
    assert_int_equal(rig->disk->open_files, 0);
}

/* ------------------------------------------------------------------ looking at a state */

// What a program finds under a step's name.
static struct script_found judge(struct rig *rig, struct crash_image *image, uint64_t step,
                                 uint32_t inode)
{
    const struct crash_inode *directory = crash_image_inode(image, inode);
    if (!directory->directory || !crash_inode_find(directory, CKPT_MANIFEST_NAME))
        return (struct script_found){.step = step, .version = UINT64_MAX};
    const uint64_t both[] = {step, crash_image_hash(image, inode)};
    const uint64_t key = base_hash64(both, sizeof both, 0);
    struct verdict *verdict = &rig->verdicts[key % VERDICTS];
    if (verdict->key != key) {
        bool parsed;
        struct crash_disk *disk = crash_image_mount(image);
        *verdict = (struct verdict){key, script_read(&disk->store, path, step, &parsed)};
        crash_disk_free(disk);
        if (!parsed && !rig->trusting)
            verdict->found.version = UINT64_MAX;
    }
    return verdict->found;
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
    uint64_t situation = 0;
    struct script_found found[SCRIPT_STEPS];
    int count = 0;
    const uint32_t inode = crash_inode_find(crash_image_inode(image, CRASH_ROOT), path + 1);
    const struct crash_inode empty = {0};
    const struct crash_inode *directory = inode ? crash_image_inode(image, inode) : &empty;
    for (size_t i = 0; i < directory->count; i++) {
        const struct crash_entry *entry = &directory->entries[i];
        uint64_t step = 0;
        struct script_found one = {.version = UINT64_MAX};
        if (ckpt_name_is_step(entry->name, &step))
            one = judge(rig, image, step, entry->inode);
        if (one.version != UINT64_MAX)
            found[count++] = one;
        situation += base_hash64(&one.version, sizeof one.version, entry->hash);
        if (strcmp(entry->name, CKPT_POOL_NAME) == 0)
            situation += hash_pool(image, directory, entry->inode);
    }
    if (!script_accepts(&rig->script, found, count))
        return false;
    // What means the same to the next job need not be opened twice.
    return !crash_set_add(&rig->situations, situation) || reopen(rig, image);
}

// The next job's life, on the disk that the power cut has left. Its own power cuts are looked at,
// too, as far as no directory is nested.
static bool reopen(struct rig *rig, struct crash_image *image)
{
    enum { AFTER_TWO_CUTS = 4, NESTED = 64 };
    if (rig->nested && rig->reopened >= AFTER_TWO_CUTS)
        return true;
    struct rig *next = calloc(1, sizeof *next);
    assert_non_null(next);
    *next = *rig;
    use_disk(next, crash_image_mount(image));
    next->situations = (struct crash_set){0};
    next->nested = true;
    next->reopened = 0;
    next->script.event_count = 0;
    next->script.world = 1 + (uint32_t)script_draw(&rig->script, 3);
    next->script.last = 0;
    rig->reopened++;
    next->disk->fate = rig->disk->fate;
    bool good = script_go_on(&next->script);
    script_close(&next->script);
    if (good && !rig->nested && rig->reopened % NESTED == 0) {
        struct crash_set states = {0};
        const struct crash_watch watch = {next, hear, look};
        good = crash_explore(next->disk, &watch, rig->script.random, 4, &states);
        crash_set_free(&states);
    }
    memcpy(rig->script.problem, next->script.problem, sizeof rig->script.problem);
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
    return script_is_opening ? drop_directory(name) : CRASH_DO;
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
    rig->script.greedy = protocol->greedy;
    rig->trusting = protocol->trusting;
    rig->script.calm = protocol->calm;
    use_disk(rig, crash_disk_make());
    rig->disk->fate = protocol->fate;
    run_script(rig, seed);
    const struct crash_watch watch = {rig, hear, look};
    const bool good = crash_explore(rig->disk, &watch, seed, draws, states);
    assert_int_equal(good, rig->script.problem[0] == '\0');
    strcpy(problem, rig->script.problem);
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
