// checkpoint/directory/directory.h on files of the system: every step of its protocol, and what is
// left behind when one fails.
#include "base/arena.h"
#include "base/fault.h"
#include "tests/fault/directory_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ opening */

static void what_is_saved_is_found(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(3);
    expect_steps("");
    save(directory, 50, 3, 1);
    save(directory, 100, 3, 2);
    save(directory, 123456789012, 3, 3);
    ckpt_directory_close(directory);
    ckpt_directory_close(NULL);
    expect_steps("50 100 123456789012");
    expect_version(50, 1);
    expect_version(123456789012, 3);
    assert_true(exists("step-00000050/manifest.json"));
    assert_true(exists("step-00000050/shard-00002.zst"));
    assert_true(exists("step-123456789012/shard-00002.zst"));
    assert_false(exists("saving-00000050"));
}

static void directories_that_cannot_be_opened(void **state)
{
    (void)state;
    struct ckpt_directory *directory;
    char deep[160];
    snprintf(deep, sizeof deep, "%s/c", path);
    assert_int_equal(ckpt_directory_open(&directory, store, deep, 1, &failure), ZERO_E_IO);
    assert_null(directory);
    assert_non_null(strstr(failure.message, deep));
    assert_non_null(strstr(failure.message, "(ENOENT)"));
    assert_int_equal(access(path, F_OK), -1);

    base_error_clear(&failure);
    assert_true(temporary_write(&temporary, "c", "a file"));
    assert_int_equal(ckpt_directory_open(&directory, store, path, 1, &failure), ZERO_E_INVALID);
    assert_non_null(strstr(failure.message, path));
    assert_int_equal(ckpt_directory_open(&directory, store, deep, 1, NULL), ZERO_E_IO);
    assert_int_equal(ckpt_directory_open(&directory, store, "", 1, NULL), ZERO_E_INVALID);

    char long_path[CKPT_MAX_PATH + 2];
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = '\0';
    base_error_clear(&failure);
    assert_int_equal(ckpt_directory_open(&directory, store, long_path, 1, &failure),
                     ZERO_E_INVALID);
    assert_non_null(strstr(failure.message, "has 3073 bytes"));
    long_path[CKPT_MAX_PATH] = '\0'; // the system's limit for one name
    base_error_clear(&failure);
    assert_int_equal(ckpt_directory_open(&directory, store, long_path, 1, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "xxx"));
}

// Opens and saves in another process; its result. Locks go with a process.
static zero_result open_elsewhere(void)
{
    const pid_t child = fork();
    if (child == 0) {
        struct ckpt_directory *directory;
        struct base_error error = {0};
        const zero_result result = ckpt_directory_open(&directory, store, path, 1, &error);
        const bool named = strstr(error.message, path) && strstr(error.message, "another job");
        _exit(result == ZERO_E_STATE && !named ? 99 : -result);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (zero_result)-WEXITSTATUS(status);
}

static void one_job_saves_at_a_time(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(1), *other;
    assert_int_equal(ckpt_begin(directory, 50, NULL), ZERO_OK);
    assert_int_equal(open_elsewhere(), ZERO_E_STATE);
    assert_int_equal(ckpt_directory_open(&other, store, path, 1, &failure), ZERO_E_STATE);
    assert_null(other);
    assert_non_null(strstr(failure.message, "another job saves to '"));
    assert_true(exists("saving-00000050")); // no open has cleaned up under the owner's feet
    ckpt_directory_close(directory);
    assert_int_equal(open_elsewhere(), ZERO_OK);
    assert_false(exists("saving-00000050"));
    ckpt_directory_close(open_directory(1));
}

static void opening_cleans_up(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(3);
    save(directory, 50, 3, 1);
    save(directory, 100, 3, 2);
    assert_int_equal(ckpt_begin(directory, 150, NULL), ZERO_OK);
    struct toy_shard shard;
    const struct ckpt_shard_id id = toy_shard_id(150, 1, 3, 9);
    assert_int_equal(toy_write_shard(&shard, store, path, &id, 9, NULL), ZERO_OK);
    assert_int_equal(toy_finish_shard(&shard, NULL), ZERO_OK);
    ckpt_directory_close(directory);

    make_folder("saving-00000200");
    make_folder("step-00000300"); // its removal was interrupted
    write_file("step-00000300/shard-00000.zst", "x");
    write_file("step-00000300/removed.json", "{}");
    make_folder("step-00000310"); // its manifest was moved away
    write_file("step-00000310/shard-00000.zst", "x");
    make_folder("step-00000320");
    write_file("pool/shard-00000.zst", "for rank 0");
    write_file("pool/shard-00001.zst", "for nobody");
    write_file("pool/shard-1.zst", "no shard's name");
    write_file("pool/notes", "what is this?");
    write_file("notes", "the user's own");
    make_folder("step-00000350"); // another program's
    write_file("step-00000350/model.bin", "weights");
    make_folder("step-7"); // not what we call a step
    write_file("step-00000400", "a file");
    directory = open_directory(1);
    expect_steps("50 100");
    expect_version(50, 1);
    expect_version(100, 2);
    assert_false(exists("saving-00000150"));
    assert_false(exists("saving-00000200"));
    assert_false(exists("step-00000300"));
    assert_true(exists("step-00000310/shard-00000.zst"));
    assert_true(exists("step-00000320"));
    assert_true(exists("pool/shard-00000.zst"));
    assert_false(exists("pool/shard-00001.zst"));
    assert_true(exists("pool/shard-1.zst"));
    assert_true(exists("pool/notes"));
    assert_true(exists("notes"));
    assert_true(exists("step-00000350/model.bin"));
    assert_true(exists("step-7"));
    assert_true(exists("step-00000400"));
    // Shards without a manifest are not replaced; an empty directory is.
    assert_int_equal(toy_save(directory, store, path, 310, 1, 1, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "step-00000310"));
    assert_true(exists("step-00000310/shard-00000.zst"));
    ckpt_cancel(directory);
    save(directory, 320, 1, 1);
    base_error_clear(&failure);
    expect_steps("50 100 320");
    ckpt_directory_close(directory);

    // What can't be removed is said, and nothing happens to the others.
    make_folder("saving-00000500");
    make_folder("saving-00000500/shard-00000.zst");
    assert_int_equal(ckpt_directory_open(&directory, store, path, 1, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "saving-00000500/shard-00000.zst"));
    expect_version(100, 2);
}

static void what_is_not_ours_stays(void **state)
{
    (void)state;
    const struct ckpt_retention newest = {.keep = 1};
    struct ckpt_directory *directory = open_directory(2);
    size_t removed;
    save(directory, 50, 2, 1);
    save(directory, 100, 2, 2);
    write_file("step-00000050/notes", "it diverged from here on");
    make_folder("step-00000150"); // another program's, where one of ours is to be
    write_file("step-00000150/model.bin", "weights");
    assert_int_equal(ckpt_prune(directory, &newest, NULL, &removed, &failure), ZERO_OK);
    assert_int_equal(removed, 1);
    expect_steps("100");
    assert_true(exists("step-00000050/notes"));
    assert_false(exists("step-00000050/shard-00000.zst"));
    assert_int_equal(toy_save(directory, store, path, 150, 2, 3, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "step-00000150"));
    assert_true(exists("step-00000150/model.bin"));
    ckpt_cancel(directory);
    ckpt_directory_close(directory);
    expect_steps("100");
}

// It is damage of one checkpoint, and nothing that keeps others from being found.
static void a_manifest_that_cannot_be_opened(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    struct ckpt_directory *directory = open_directory(1);
    save(directory, 50, 1, 1);
    ckpt_directory_close(directory);
    make_folder("step-00000100");
    make_folder("step-00000100/manifest.json");
    expect_steps("50 100");
    assert_int_equal(ckpt_read_manifest(&manifest, store, path, 100, &failure), ZERO_E_CORRUPT);
    directory = open_directory(1);
    assert_true(exists("step-00000100/manifest.json"));
    save(directory, 150, 1, 2);
    ckpt_directory_close(directory);
    expect_steps("50 100 150");
}

/* ------------------------------------------------------------------ saving */

static void calls_out_of_order(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(1);
    struct toy_shard shard;
    assert_int_equal(toy_commit(directory, 0, 0, 1, NULL, &failure), ZERO_E_STATE);
    ckpt_cancel(directory);
    assert_int_equal(ckpt_begin(directory, 50, NULL), ZERO_OK);
    base_error_clear(&failure);
    assert_int_equal(ckpt_begin(directory, 60, &failure), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "step 60 begins while 50 is being saved"));
    const struct ckpt_shard_id id = toy_shard_id(50, 0, 1, 1);
    assert_int_equal(toy_write_shard(&shard, store, path, &id, 1, NULL), ZERO_OK);
    assert_int_equal(toy_finish_shard(&shard, NULL), ZERO_OK);
    assert_int_equal(toy_commit(directory, 60, 1, 1, &shard, NULL), ZERO_E_STATE);
    assert_int_equal(toy_commit(directory, 50, 1, 1, &shard, NULL), ZERO_OK);
    expect_version(50, 1);

    // A rank that does not see what rank 0 has made.
    struct ckpt_file *file;
    base_error_clear(&failure);
    assert_int_equal(ckpt_create_shard(store, path, 70, 3, &file, &failure), ZERO_E_IO);
    assert_null(file);
    assert_non_null(strstr(failure.message, "rank 3 does not see '"));
    assert_non_null(strstr(failure.message, "/saving-00000070'"));
    ckpt_directory_close(directory);
}

static void a_save_can_be_given_up(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(2);
    struct toy_shard shard;
    assert_int_equal(ckpt_begin(directory, 50, NULL), ZERO_OK);
    const struct ckpt_shard_id id = toy_shard_id(50, 1, 2, 1);
    assert_int_equal(toy_write_shard(&shard, store, path, &id, 1, NULL), ZERO_OK);
    ckpt_cancel(directory);
    assert_int_equal(toy_finish_shard(&shard, NULL), ZERO_OK); // which no reader sees any more
    assert_false(exists("saving-00000050"));
    ckpt_cancel(directory);
    save(directory, 50, 2, 2);
    expect_version(50, 2);
    ckpt_directory_close(directory);
}

static void the_same_step_again(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(2);
    save(directory, 50, 2, 1);
    save(directory, 50, 2, 2);
    expect_steps("50");
    expect_version(50, 2);
    assert_false(exists("saving-00000050"));
    ckpt_directory_close(directory);

    directory = open_directory(1);
    save(directory, 50, 1, 3);
    expect_version(50, 3);
    assert_false(exists("step-00000050/shard-00001.zst"));

    // Where names can't be exchanged, the old one stays.
    base_error_clear(&failure);
    base_fault_set("io.exchange:einval@1", NULL);
    assert_int_equal(toy_save(directory, store, path, 50, 1, 4, &failure), ZERO_E_UNSUPPORTED);
    base_fault_set(NULL, NULL);
    expect_version(50, 3);
    assert_false(exists("saving-00000050"));

    // One that lost its manifest is no checkpoint, but stays; one being removed is not in the way.
    char manifest[256], mark[256];
    snprintf(manifest, sizeof manifest, "%s/step-00000050/manifest.json", path);
    snprintf(mark, sizeof mark, "%s/step-00000050/removed.json", path);
    assert_int_equal(rename(manifest, mark), 0);
    expect_steps("");
    save(directory, 50, 1, 5);
    expect_version(50, 5);
    assert_int_equal(rename(manifest, mark), 0);
    assert_int_equal(unlink(mark), 0);
    assert_int_equal(toy_save(directory, store, path, 50, 1, 6, &failure), ZERO_E_IO);
    ckpt_cancel(directory);
    assert_true(exists("step-00000050/shard-00000.zst"));
    write_file("step-00000050/removed.json", "{}");
    save(directory, 50, 1, 5);
    expect_version(50, 5);
    ckpt_directory_close(directory);
}

/* ------------------------------------------------------------------ retention */

static const struct {
    struct ckpt_retention retention;
    size_t removed;
    const char *steps;
} rules[] = {
    {{0, 0}, 0, "10 20 30 40 50 60"},
    {{0, 20}, 0, "10 20 30 40 50 60"},
    {{1, 0}, 5, "60"},
    {{1, 20}, 3, "20 40 60"},
    {{2, 0}, 4, "50 60"},
    {{2, 30}, 3, "30 50 60"},
    {{2, 1}, 0, "10 20 30 40 50 60"},
    {{3, 0}, 3, "40 50 60"},
    {{6, 0}, 0, "10 20 30 40 50 60"},
    {{UINT64_MAX, 0}, 0, "10 20 30 40 50 60"},
    {{1, UINT64_MAX}, 5, "60"},
};

static void retention_keeps_what_it_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct ckpt_directory *directory = open_directory(1);
        for (uint64_t step = 10; step <= 60; step += 10)
            save(directory, step, 1, step);
        size_t removed = 99;
        assert_int_equal(ckpt_prune(directory, &rules[i].retention, NULL, &removed, NULL), ZERO_OK);
        assert_int_equal(removed, rules[i].removed);
        expect_steps(rules[i].steps);
        expect_version(60, 60);
        assert_int_equal(ckpt_prune(directory, &rules[i].retention, NULL, &removed, NULL), ZERO_OK);
        assert_int_equal(removed, 0);
        ckpt_directory_close(directory);
        temporary_remove(&temporary);
        assert_int_equal(mkdir(temporary.directory, 0777), 0);
    }
}

static void nothing_goes_unless_the_newest_is_whole(void **state)
{
    (void)state;
    const struct ckpt_retention one = {1, 0};
    struct ckpt_directory *directory = open_directory(1);
    size_t removed;
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    assert_int_equal(removed, 0);
    for (uint64_t step = 10; step <= 30; step += 10)
        save(directory, step, 1, step);
    char shard[CKPT_PATH_BYTES], moved[CKPT_PATH_BYTES + 8];
    assert_int_equal(ckpt_shard_path(shard, path, 30, 0, NULL), ZERO_OK);
    snprintf(moved, sizeof moved, "%s.away", shard);

    assert_int_equal(rename(shard, moved), 0);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, shard));
    assert_int_equal(rename(moved, shard), 0);

    struct stat status;
    assert_int_equal(stat(shard, &status), 0);
    assert_int_equal(truncate(shard, status.st_size - 1), 0);
    base_error_clear(&failure);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, shard));
    assert_int_equal(truncate(shard, status.st_size), 0); // as long as it was, but for its tail
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_E_CORRUPT);
    write_file("step-00000030/manifest.json", "{}");
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_E_CORRUPT);
    expect_steps("10 20 30");

    save(directory, 40, 1, 40);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    expect_steps("40");
    ckpt_directory_close(directory);
}

static uint64_t sequence_of(uint64_t step)
{
    struct ckpt_manifest manifest;
    assert_int_equal(ckpt_read_manifest(&manifest, store, path, step, &failure), ZERO_OK);
    const uint64_t sequence = manifest.sequence;
    ckpt_manifest_free(&manifest);
    return sequence;
}

static void a_job_that_went_back(void **state)
{
    (void)state;
    const struct ckpt_retention two = {2, 0};
    struct ckpt_directory *directory = open_directory(1);
    for (uint64_t step = 10; step <= 40; step += 10)
        save(directory, step, 1, step);
    expect_steps("10 20 30 40");
    save(directory, 15, 1, 1);
    expect_steps("10 20 30 40 15");
    ckpt_directory_close(directory);
    directory = open_directory(1); // who opens it next counts on
    save(directory, 20, 1, 2);     // takes the name of one that was abandoned
    expect_steps("10 30 40 15 20");
    expect_version(20, 2);
    assert_int_equal(sequence_of(40), 4);
    assert_int_equal(sequence_of(15), 5);
    assert_int_equal(sequence_of(20), 6);
    size_t removed;
    assert_int_equal(ckpt_prune(directory, &two, NULL, &removed, NULL), ZERO_OK);
    assert_int_equal(removed, 3);
    expect_steps("15 20");
    ckpt_directory_close(directory);
}

// One whose manifest is damaged stands behind the step before it, and counts.
static void damage_has_a_place_in_the_order(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(1);
    const uint64_t saved[] = {20, 40, 10, 30};
    for (size_t i = 0; i < 4; i++)
        save(directory, saved[i], 1, i);
    ckpt_directory_close(directory);
    expect_steps("20 40 10 30");
    write_file("step-00000020/manifest.json", "{}");
    expect_steps("40 10 20 30");
    write_file("step-00000040/manifest.json", "{}");
    expect_steps("10 20 30 40");
    write_file("step-00000010/manifest.json", "{}");
    expect_steps("10 20 30 40");
    directory = open_directory(1);
    save(directory, 5, 1, 9);
    assert_int_equal(sequence_of(5), 8);
    expect_steps("30 40 5 10 20");
    ckpt_directory_close(directory);
}

// What can't be read may be anywhere in the order: nothing goes.
static void nothing_goes_unless_the_order_is_known(void **state)
{
    (void)state;
    const struct ckpt_retention one = {1, 0};
    struct ckpt_directory *directory = open_directory(1);
    size_t removed;
    for (uint64_t step = 10; step <= 30; step += 10)
        save(directory, step, 1, step);
    assert_int_equal(base_fault_set("io.read@1", NULL), ZERO_OK);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, &failure), ZERO_E_IO);
    base_fault_set(NULL, NULL);
    assert_non_null(strstr(failure.message, "nothing is removed"));
    assert_non_null(strstr(failure.message, "manifest.json' failed at offset 0: Input/output"));
    assert_int_equal(removed, 0);
    expect_steps("10 20 30");
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    expect_steps("30");
    ckpt_directory_close(directory);
}

static void files_are_recycled(void **state)
{
    (void)state;
    const struct ckpt_retention one = {1, 0};
    struct ckpt_directory *directory = open_directory(2);
    size_t removed;
    save(directory, 10, 2, 1);
    const ino_t old0 = inode_of("step-00000010/shard-00000.zst");
    const ino_t old1 = inode_of("step-00000010/shard-00001.zst");
    save(directory, 20, 2, 2);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    assert_int_equal(inode_of("pool/shard-00000.zst"), old0);
    assert_int_equal(inode_of("pool/shard-00001.zst"), old1);
    save(directory, 30, 2, 3);
    assert_int_equal(inode_of("step-00000030/shard-00000.zst"), old0);
    assert_int_equal(inode_of("step-00000030/shard-00001.zst"), old1);
    assert_false(exists("pool/shard-00000.zst"));
    expect_version(20, 2);
    expect_version(30, 3);
    ckpt_directory_close(directory);

    // Fewer ranks now: what the others had is not kept.
    directory = open_directory(1);
    save(directory, 40, 1, 4);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    assert_int_equal(removed, 2);
    assert_true(exists("pool/shard-00000.zst"));
    assert_false(exists("pool/shard-00001.zst"));
    ckpt_directory_close(directory);
}

static void readers_are_not_disturbed(void **state)
{
    (void)state;
    const struct ckpt_retention one = {1, 0};
    struct ckpt_directory *directory = open_directory(1);
    struct ckpt_file *reader, *other;
    size_t removed;
    save(directory, 10, 1, 1);
    save(directory, 20, 1, 2);
    assert_int_equal(ckpt_reader_enter(store, path, &reader, NULL), ZERO_OK);
    assert_int_equal(ckpt_reader_enter(store, path, &other, NULL), ZERO_OK);
    assert_non_null(reader);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, &failure), ZERO_AGAIN);
    assert_int_equal(removed, 0);
    assert_int_equal(failure.result, ZERO_OK);
    ckpt_reader_leave(store, &other);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_AGAIN);
    save(directory, 30, 1, 3); // readers hinder no other save
    expect_version(10, 1);
    ckpt_reader_leave(store, &reader);
    assert_null(reader);
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_OK);
    assert_int_equal(removed, 2);
    ckpt_directory_close(directory);

    // Where no job has saved a reader leaves no trace.
    assert_int_equal(ckpt_reader_enter(store, temporary.directory, &reader, NULL), ZERO_OK);
    assert_null(reader);
    ckpt_reader_leave(store, &reader);
    assert_int_equal(temporary_entries(&temporary), 1);
}

static void *read_later(void *user)
{
    struct ckpt_file *reader = NULL;
    atomic_bool *came = user;
    if (ckpt_reader_enter(store, path, &reader, NULL) == ZERO_OK && reader)
        atomic_store(came, true);
    ckpt_reader_leave(store, &reader);
    return NULL;
}

struct prune {
    struct ckpt_directory *directory;
    size_t removed;
    zero_result result;
    atomic_bool over;
};

static void *prune_beside(void *user)
{
    const struct ckpt_retention one = {1, 0};
    struct prune *prune = user;
    prune->result = ckpt_prune(prune->directory, &one, NULL, &prune->removed, NULL);
    atomic_store(&prune->over, true);
    return NULL;
}

static bool gate_is_shut(void)
{
    char gate[CKPT_PATH_BYTES];
    struct ckpt_file *lock = NULL;
    snprintf(gate, sizeof gate, "%.3000s/gate", path);
    const bool shut = store->lock(NULL, &lock, gate, false, NULL) == ZERO_AGAIN;
    store->unlock(&lock);
    return shut;
}

/** Who comes while the owner waits for a reader to leave comes in after the owner. */
static void readers_who_come_wait(void **state)
{
    (void)state;
    struct prune prune = {.directory = open_directory(1), .result = ZERO_AGAIN};
    struct ckpt_file *reader;
    atomic_bool came = false;
    pthread_t owner, other;
    save(prune.directory, 10, 1, 1);
    save(prune.directory, 20, 1, 2);
    // A machine that is busy elsewhere may be late for a second: then all is tried again.
    for (int again = 0; again < 20 && prune.result == ZERO_AGAIN; again++) {
        atomic_store(&came, false);
        atomic_store(&prune.over, false);
        assert_int_equal(ckpt_reader_enter(store, path, &reader, NULL), ZERO_OK);
        assert_int_equal(pthread_create(&owner, NULL, prune_beside, &prune), 0);
        while (!gate_is_shut() && !atomic_load(&prune.over))
            sched_yield();
        assert_int_equal(pthread_create(&other, NULL, read_later, &came), 0);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        const bool early = atomic_load(&came) && gate_is_shut();
        ckpt_reader_leave(store, &reader);
        pthread_join(owner, NULL);
        pthread_join(other, NULL);
        assert_false(early);
        assert_true(atomic_load(&came));
    }
    assert_int_equal(prune.result, ZERO_OK);
    assert_int_equal(prune.removed, 1);
    ckpt_directory_close(prune.directory);
}

/* ------------------------------------------------------------------ finding */

static void paths_of_one_checkpoint(void **state)
{
    (void)state;
    static const struct {
        const char *path, *directory;
        uint64_t step;
    } cases[] = {
        {"/a/b/step-00000050", "/a/b", 50},
        {"a/step-00000050//", "a", 50},
        {"a//step-123456789", "a", 123456789},
        {"step-00000000", ".", 0},
        {"/step-00000001", "/", 1},
        {"x/step-18446744073709551615", "x", UINT64_MAX},
        {"x/step-18446744073709551616", NULL, 0},
        {"x/step-0000050", NULL, 0},
        {"x/step-000000050", NULL, 0},
        {"x/step-+0000050", NULL, 0},
        {"x/step-00000050x", NULL, 0},
        {"x/saving-00000050", NULL, 0},
        {"x/step-00000050/manifest.json", NULL, 0},
        {"/", NULL, 0},
        {"", NULL, 0},
        {"a-name-that-is-longer-than-any-step-has-00000050", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        uint64_t step = 77;
        strcpy(text, cases[i].path);
        assert_int_equal(ckpt_split_path(text, &step), cases[i].directory != NULL);
        if (!cases[i].directory) {
            assert_string_equal(text, cases[i].path);
            continue;
        }
        assert_string_equal(text, cases[i].directory);
        assert_true(step == cases[i].step);
    }
}

static void what_is_not_there_is_not_found(void **state)
{
    (void)state;
    uint64_t *steps;
    size_t count;
    struct ckpt_manifest manifest;
    assert_int_equal(ckpt_list(store, path, &steps, &count, &failure), ZERO_NOT_FOUND);
    assert_null(steps);
    assert_non_null(strstr(failure.message, path));
    struct ckpt_directory *directory = open_directory(1);
    base_error_clear(&failure);
    assert_int_equal(ckpt_read_manifest(&manifest, store, path, 50, &failure), ZERO_NOT_FOUND);
    assert_non_null(strstr(failure.message, "step-00000050/manifest.json"));

    // A manifest under another step's name.
    save(directory, 50, 1, 1);
    char from[256], to[256];
    snprintf(from, sizeof from, "%s/step-00000050", path);
    snprintf(to, sizeof to, "%s/step-00000060", path);
    assert_int_equal(rename(from, to), 0);
    base_error_clear(&failure);
    assert_int_equal(ckpt_read_manifest(&manifest, store, path, 60, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "step-00000060/manifest.json' is of step 50"));
    write_file("step-00000060/manifest.json", "");
    assert_int_equal(ckpt_read_manifest(&manifest, store, path, 60, NULL), ZERO_E_CORRUPT);
    ckpt_directory_close(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_saved_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(directories_that_cannot_be_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_job_saves_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(opening_cleans_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_ours_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_manifest_that_cannot_be_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(calls_out_of_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_save_can_be_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_same_step_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(retention_keeps_what_it_says, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_goes_unless_the_newest_is_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_job_that_went_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_has_a_place_in_the_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_goes_unless_the_order_is_known, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_are_recycled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(readers_are_not_disturbed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(readers_who_come_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(paths_of_one_checkpoint, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_there_is_not_found, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
