// checkpoint/directory/directory.h where calls fail, or its owner dies: what was acknowledged is
// there, and the next owner goes on.
#include "base/arena.h"
#include "base/fault.h"
#include "tests/fault/directory_fixture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

// All of what an owner does. Two checkpoints, 10 and 20, have been there before. *saved: how many
// more were acknowledged so far.
static zero_result whole_life(volatile size_t *saved)
{
    const struct ckpt_retention two = {2, 0};
    struct ckpt_directory *directory = NULL;
    size_t removed;
    *saved = 0;
    zero_result result = ckpt_directory_open(&directory, store, path, 2, &failure);
    for (uint64_t step = 30; !result && step <= 50; step += 10) {
        result = toy_save(directory, store, path, step, 2, step, &failure);
        *saved += result == ZERO_OK;
        if (!result)
            result = ckpt_prune(directory, &two, NULL, &removed, &failure);
    }
    if (!result)
        result = toy_save(directory, store, path, 50, 2, 51, &failure);
    *saved += result == ZERO_OK;
    ckpt_directory_close(directory);
    return result;
}

// What must be there after `saved` saves were acknowledged: the newest two of them.
static void check_saved(size_t saved)
{
    static const struct {
        uint64_t step, version;
    } newest[] = {{20, 20}, {30, 30}, {40, 40}, {50, 50}, {50, 51}};
    uint64_t *steps, version = 0;
    size_t count, i = 0;
    assert_int_equal(ckpt_list(store, path, &steps, &count, NULL), ZERO_OK);
    for (; i < count; i++) {
        assert_int_equal(toy_load(store, path, steps[i], &version, NULL), ZERO_OK);
        if (steps[i] == newest[saved].step && version >= newest[saved].version)
            break;
    }
    assert_true(i < count);
    base_free(steps);
    if (newest[saved].step > 20 && saved < 4)
        assert_int_equal(toy_load(store, path, newest[saved - 1].step, &version, NULL), ZERO_OK);
}

static void save_two(void)
{
    struct ckpt_directory *directory = open_directory(2);
    save(directory, 10, 2, 10);
    save(directory, 20, 2, 20);
    ckpt_directory_close(directory);
}

// The next owner finds what must be there, nothing unfinished, and goes on. Then all is removed.
static void check_next(size_t saved)
{
    check_saved(saved);
    struct ckpt_directory *directory = open_directory(2);
    check_saved(saved);
    save(directory, 60, 2, 60);
    expect_version(60, 60);
    ckpt_directory_close(directory);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        assert_int_not_equal(strncmp(entry->d_name, "saving-", 7), 0);
    closedir(folder);
    temporary_remove(&temporary);
    assert_int_equal(mkdir(temporary.directory, 0777), 0);
}

// Fails the nth hit of a point; false once there are fewer.
static bool fail_the_nth(const char *point, int nth)
{
    save_two();
    const int before = open_descriptors();
    char spec[64];
    snprintf(spec, sizeof spec, "%s@%d", point, nth);
    size_t saved;
    assert_int_equal(base_fault_set(spec, NULL), ZERO_OK);
    base_error_clear(&failure);
    const zero_result result = whole_life(&saved);
    const bool fired = base_fault_fired() > 0;
    base_fault_set(NULL, NULL);
    if (result && !strstr(failure.message, path) && !strstr(failure.message, "memory"))
        fail_msg("%s: \"%s\" names no place", spec, failure.message);
    if (!fired)
        assert_int_equal(result, ZERO_OK);
    assert_int_equal(open_descriptors(), before);
    check_next(saved);
    return fired;
}

// Goes where thousands of flushes don't wait for a disk.
static void move_to_memory(void)
{
    temporary_remove(&temporary);
    strcpy(temporary.directory, "/dev/shm/zero-test-XXXXXX");
    assert_non_null(mkdtemp(temporary.directory));
    snprintf(path, sizeof path, "%s/c", temporary.directory);
}

static void every_call_may_fail(void **state)
{
    (void)state;
    move_to_memory();
    static const char *const points[] = {
        "alloc",    "io.open",  "io.read",   "io.write",    "io.truncate",
        "io.fsync", "io.lock",  "io.rename", "io.exchange", "io.unlink",
        "io.mkdir", "io.rmdir", "io.list",   "io.close",    "io.write:enospc",
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        int nth = 1;
        while (fail_the_nth(points[i], nth))
            nth++;
        assert_true(nth > 1);
    }
}

static void killed_at_every_call(void **state)
{
    (void)state;
    move_to_memory();
    volatile size_t *saved =
        mmap(NULL, sizeof *saved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(saved, MAP_FAILED);
    int status = 0;
    for (int nth = 1; nth == 1 || WIFSIGNALED(status); nth++) {
        save_two();
        const pid_t child = fork();
        if (child == 0) {
            char spec[64];
            snprintf(spec, sizeof spec, "io.*:kill@%d", nth);
            _exit(base_fault_set(spec, NULL) || whole_life(saved));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
        check_next(*saved);
    }
    munmap((void *)(uintptr_t)saved, sizeof *saved);
}

static void after_a_failed_flush_nothing_goes_on(void **state)
{
    (void)state;
    struct ckpt_directory *directory = open_directory(1);
    const struct ckpt_retention one = {1, 0};
    save(directory, 10, 1, 1);
    save(directory, 20, 1, 2);
    // The flushes of a save: shard, saving, pool, manifest, saving, and the directory.
    assert_int_equal(base_fault_set("io.fsync@6", NULL), ZERO_OK);
    assert_int_equal(toy_save(directory, store, path, 20, 1, 3, &failure), ZERO_E_IO);
    base_fault_set(NULL, NULL);
    assert_true(exists("saving-00000020")); // it may still be step-00000020 after a crash
    base_error_clear(&failure);
    assert_int_equal(ckpt_begin(directory, 30, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, path));
    size_t removed;
    assert_int_equal(ckpt_prune(directory, &one, NULL, &removed, NULL), ZERO_E_IO);
    expect_version(10, 1);
    ckpt_directory_close(directory);
    directory = open_directory(1);
    assert_false(exists("saving-00000020"));
    save(directory, 30, 1, 4);
    ckpt_directory_close(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_call_may_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(killed_at_every_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(after_a_failed_flush_nothing_goes_on, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
