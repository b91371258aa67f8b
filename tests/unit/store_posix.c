// checkpoint/files/ckpt_store.h on files of the system.
#include "base/fault.h"
#include "checkpoint/files/ckpt_store.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const struct ckpt_store *const store = &ckpt_store_posix;
static struct temporary temporary;
static struct base_error failure;
static unsigned char *data, *back;

enum { BYTES = 6 * CKPT_STORE_UNIT, DESCRIPTORS = 64 };

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    data = aligned_alloc(CKPT_STORE_UNIT, BYTES);
    back = malloc(BYTES);
    if (!data || !back)
        return -1;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    free(data);
    free(back);
    return 0;
}

// The descriptor that this process has of a file, -1 if it has none.
static int descriptor_of(const char *path)
{
    char link[64], target[256];
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        if (length > 0 && (size_t)length == strlen(path) &&
            memcmp(target, path, (size_t)length) == 0)
            return fd;
    }
    return -1;
}

static void read_back(const char *path, size_t bytes)
{
    struct ckpt_file *file;
    uint64_t size = 0;
    assert_int_equal(store->open(store->user, &file, path, NULL), ZERO_OK);
    assert_int_equal(store->bytes(file, &size, NULL), ZERO_OK);
    assert_int_equal(size, bytes);
    assert_int_equal(store->read(file, back, bytes, 0, NULL), ZERO_OK);
    assert_memory_equal(back, data, bytes);
    assert_int_equal(store->read(file, back, bytes - 3, 3, NULL), ZERO_OK);
    assert_memory_equal(back, data + 3, bytes - 3);
    assert_int_equal(store->read(file, back, 8, bytes - 7, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, path));
    assert_int_equal(store->close(&file, NULL), ZERO_OK);
    assert_null(file);
    assert_int_equal(descriptor_of(path), -1);
}

static void files_are_written_past_the_cache(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd;
    assert_int_equal(base_open(&fd, path, O_WRONLY | O_CREAT, 0600, NULL), ZERO_OK);
    const bool can = fcntl(fd, F_SETFL, O_DIRECT) == 0;
    assert_int_equal(base_close(&fd, path, NULL), ZERO_OK);
    assert_int_equal(unlink(path), 0);

    struct ckpt_file *file;
    const mode_t mask = umask(027);
    assert_int_equal(store->create(store->user, &file, path, false, NULL), ZERO_OK);
    umask(mask);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    fd = descriptor_of(path);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal((fcntl(fd, F_GETFL) & O_DIRECT) != 0, can);

    assert_int_equal(base_fault_set("io.short@1,io.write:eintr@2", NULL), ZERO_OK);
    assert_int_equal(
        store->write(file, data + CKPT_STORE_UNIT, BYTES - CKPT_STORE_UNIT, CKPT_STORE_UNIT, NULL),
        ZERO_OK);
    assert_int_equal(store->write(file, data, CKPT_STORE_UNIT, 0, NULL), ZERO_OK);
    assert_int_equal(base_fault_fired(), 2);
    assert_int_equal(store->sync(file, NULL), ZERO_OK);
    assert_int_equal(store->close(&file, NULL), ZERO_OK);
    read_back(path, BYTES);
}

static void old_files_are_written_over(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    struct ckpt_file *file;
    assert_int_equal(store->create(store->user, &file, path, true, &failure), ZERO_NOT_FOUND);
    assert_null(file);
    assert_true(temporary_write(&temporary, "f", "what was there before"));
    base_error_clear(&failure);
    assert_int_equal(store->create(store->user, &file, path, false, &failure), ZERO_E_IO);
    assert_null(file);
    assert_non_null(strstr(failure.message, "(EEXIST)"));

    assert_int_equal(store->create(store->user, &file, path, true, NULL), ZERO_OK);
    uint64_t bytes = 0;
    assert_int_equal(store->bytes(file, &bytes, NULL), ZERO_OK);
    assert_int_equal(bytes, 21);
    assert_int_equal(store->write(file, data, BYTES, 0, NULL), ZERO_OK);
    assert_int_equal(store->truncate(file, 4097, NULL), ZERO_OK);
    assert_int_equal(store->close(&file, NULL), ZERO_OK);
    assert_int_equal(store->close(&file, NULL), ZERO_OK);
    read_back(path, 4097);
}

static void what_is_no_file_is_not_read(void **state)
{
    (void)state;
    const char *fifo = temporary_path(&temporary, "fifo");
    struct ckpt_file *file;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(store->open(NULL, &file, fifo, &failure), ZERO_E_CORRUPT);
    assert_null(file);
    assert_int_equal(store->open(NULL, &file, temporary.directory, NULL), ZERO_E_CORRUPT);
    assert_int_equal(store->open(NULL, &file, temporary_path(&temporary, "none"), NULL),
                     ZERO_NOT_FOUND);
}

static void a_failed_flush_is_final(void **state)
{
    (void)state;
    struct ckpt_file *file;
    const char *path = temporary_path(&temporary, "f");
    assert_int_equal(store->create(NULL, &file, path, false, NULL), ZERO_OK);
    assert_int_equal(store->write(file, data, BYTES, 0, NULL), ZERO_OK);
    assert_int_equal(base_fault_set("io.fsync@1", NULL), ZERO_OK);
    assert_int_equal(store->sync(file, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "(EIO)"));
    base_error_clear(&failure);
    assert_int_equal(store->sync(file, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, path));
    assert_int_equal(store->close(&file, NULL), ZERO_OK);
}

static void each_call_fails_on_demand(void **state)
{
    (void)state;
    static const char *const points[] = {"alloc@1",       "alloc@2",    "io.open@1", "io.write@1",
                                         "io.truncate@1", "io.fsync@1", "io.close@1"};
    const char *path = temporary_path(&temporary, "f");
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct ckpt_file *file;
        base_error_clear(&failure);
        assert_int_equal(base_fault_set(points[i], NULL), ZERO_OK);
        zero_result result = store->create(NULL, &file, path, false, &failure);
        assert_int_equal(file == NULL, result != ZERO_OK);
        if (!result)
            result = store->write(file, data, BYTES, 0, &failure);
        if (!result)
            result = store->truncate(file, 5000, &failure);
        if (!result)
            result = store->sync(file, &failure);
        const zero_result closed = store->close(&file, &failure);
        assert_int_equal(result ? result : closed, i < 2 ? ZERO_E_NOMEM : ZERO_E_IO);
        assert_non_null(strstr(failure.message, path));
        assert_int_equal(base_fault_fired(), 1);
        assert_null(file);
        assert_int_equal(descriptor_of(path), -1);
        unlink(path);
    }
}

// Takes a lock in another process, and tells its result.
static zero_result lock_elsewhere(const char *path, bool exclusive)
{
    const pid_t child = fork();
    if (child == 0) {
        struct ckpt_file *lock;
        _exit(store->lock(NULL, &lock, path, exclusive, NULL));
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (zero_result)WEXITSTATUS(status);
}

static void locks_hold_between_processes(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "lock");
    struct ckpt_file *lock, *other;
    assert_int_equal(store->lock(NULL, &lock, path, true, NULL), ZERO_OK);
    assert_int_equal(lock_elsewhere(path, true), ZERO_AGAIN);
    assert_int_equal(lock_elsewhere(path, false), ZERO_AGAIN);
    assert_int_equal(store->lock(NULL, &other, path, true, &failure), ZERO_AGAIN);
    assert_null(other);
    assert_int_equal(failure.result, ZERO_OK);
    assert_true(store->holds(lock));
    assert_int_equal(rename(path, temporary_path(&temporary, "moved")), 0);
    assert_false(store->holds(lock));
    assert_int_equal(lock_elsewhere(path, true), ZERO_OK);
    assert_false(store->holds(lock));
    assert_int_equal(rename(temporary_path(&temporary, "moved"), path), 0);
    assert_true(store->holds(lock));
    store->unlock(&lock);
    assert_null(lock);
    store->unlock(&lock);
    // What a process held goes with it. Who only reads needs no right to write.
    assert_int_equal(lock_elsewhere(path, true), ZERO_OK);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(store->lock(NULL, &lock, path, false, NULL), ZERO_OK);
    assert_int_equal(lock_elsewhere(path, false), ZERO_OK);
    assert_int_equal(lock_elsewhere(path, true), ZERO_AGAIN);
    store->unlock(&lock);
}

static void a_child_does_not_keep_a_lock(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "lock");
    struct ckpt_file *lock;
    int status;
    assert_int_equal(store->lock(NULL, &lock, path, true, NULL), ZERO_OK);
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    store->unlock(&lock);
    const zero_result again = lock_elsewhere(path, true);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(again, ZERO_OK);
}

static void locks_that_cannot_be(void **state)
{
    (void)state;
    struct ckpt_file *lock;
    const char *none = temporary_path(&temporary, "none/lock");
    assert_int_equal(store->lock(NULL, &lock, none, true, NULL), ZERO_NOT_FOUND);
    assert_int_equal(store->lock(NULL, &lock, none, false, NULL), ZERO_NOT_FOUND);
    const char *path = temporary_path(&temporary, "lock");
    assert_int_equal(store->lock(NULL, &lock, path, false, &failure), ZERO_NOT_FOUND);
    assert_null(lock);
    assert_non_null(strstr(failure.message, path));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(base_fault_set("io.lock@1", NULL), ZERO_OK);
    assert_int_equal(store->lock(NULL, &lock, path, true, NULL), ZERO_E_IO);
    assert_null(lock);
    assert_int_equal(descriptor_of(path), -1);
}

static zero_result count_entry(void *user, const char *name, enum base_entry_kind kind,
                               struct base_error *error)
{
    (void)error;
    *(int *)user += kind == BASE_ENTRY_FILE && strcmp(name, "g") == 0 ? 1 : 100;
    return ZERO_OK;
}

static void names_change(void **state)
{
    (void)state;
    char folder[128], other[128], f[128], g[128];
    snprintf(folder, sizeof folder, "%s/d", temporary.directory);
    snprintf(other, sizeof other, "%s/e", temporary.directory);
    snprintf(f, sizeof f, "%s/d/f", temporary.directory);
    snprintf(g, sizeof g, "%s/d/g", temporary.directory);
    assert_int_equal(store->make_directory(NULL, folder, NULL), ZERO_OK);
    assert_int_equal(store->make_directory(NULL, other, NULL), ZERO_OK);
    assert_true(temporary_write(&temporary, "d/f", "1"));
    assert_int_equal(store->rename(NULL, f, g, NULL), ZERO_OK);
    assert_int_equal(store->rename(NULL, f, g, NULL), ZERO_NOT_FOUND);
    assert_int_equal(store->sync_directory(NULL, folder, NULL), ZERO_OK);
    int count = 0;
    assert_int_equal(store->list(NULL, folder, count_entry, &count, NULL), ZERO_OK);
    assert_int_equal(count, 1);
    assert_int_equal(store->exchange(NULL, folder, other, NULL), ZERO_OK);
    assert_int_equal(store->remove_directory(NULL, folder, NULL), ZERO_OK);
    assert_int_equal(store->remove(NULL, temporary_path(&temporary, "e/g"), NULL), ZERO_OK);
    assert_int_equal(store->remove_directory(NULL, other, NULL), ZERO_OK);
    assert_int_equal(temporary_entries(&temporary), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_are_written_past_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(old_files_are_written_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_file_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failed_flush_is_final, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_call_fails_on_demand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(locks_hold_between_processes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_child_does_not_keep_a_lock, set_up, tear_down),
        cmocka_unit_test_setup_teardown(locks_that_cannot_be, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_change, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
