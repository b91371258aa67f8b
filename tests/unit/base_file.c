// base/file.h: all of it or a message with path, offset and errno.
#include "base/fault.h"
#include "base/file.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary temporary;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static int open_new(const char *path)
{
    int fd;
    assert_int_equal(base_open(&fd, path, O_RDWR | O_CREAT | O_TRUNC, 0644, NULL), ZERO_OK);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    return fd;
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    char data[1000], back[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    // Interrupted and short transfers in between change nothing.
    assert_int_equal(base_fault_set("io.short@1+,io.write:eintr@2,io.read:eintr@1", NULL), 0);
    assert_int_equal(base_pwrite_all(fd, data + 100, 900, 100, path, NULL), ZERO_OK);
    assert_int_equal(base_pwrite_all(fd, data, 100, 0, path, NULL), ZERO_OK);
    assert_int_equal(base_pread_all(fd, back, 1000, 0, path, NULL), ZERO_OK);
    assert_true(base_fault_fired() > 20);
    assert_memory_equal(data, back, sizeof data);
    assert_int_equal(base_pread_all(fd, back, 1, 999, path, NULL), ZERO_OK);
    assert_int_equal(back[0], data[999]);
    assert_int_equal(base_pread_all(fd, back, 0, 5000, path, NULL), ZERO_OK);

    uint64_t size = 0;
    assert_int_equal(base_file_size(fd, &size, path, NULL), ZERO_OK);
    assert_int_equal(size, 1000);
    assert_int_equal(base_write_all(fd, data, 10, path, NULL), ZERO_OK);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), 10);
    assert_int_equal(base_fsync(fd, path, NULL), ZERO_OK);
    assert_int_equal(base_close(&fd, path, NULL), ZERO_OK);
    assert_int_equal(fd, -1);
    assert_int_equal(base_close(&fd, path, NULL), ZERO_OK);
}

static void an_early_end_is_damage(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    char back[100];
    assert_int_equal(base_pwrite_all(fd, "0123456789", 10, 0, path, NULL), ZERO_OK);
    assert_int_equal(base_pread_all(fd, back, 8, 5, path, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, "ends at offset 10, 3 bytes too early"));
    base_close(&fd, path, NULL);
}

static void failures_name_path_offset_and_cause(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    char data[64] = {0};
    assert_int_equal(base_fault_set("io.short@1,io.write:enospc@2", NULL), ZERO_OK);
    assert_int_equal(base_pwrite_all(fd, data, 64, 1000, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, "at offset 1032: "));
    assert_non_null(strstr(failure.message, "(ENOSPC)"));

    base_error_clear(&failure);
    assert_int_equal(base_fault_set("io.short@1,io.read@2", NULL), ZERO_OK);
    assert_int_equal(base_pread_all(fd, data, 32, 1000, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "at offset 1016: "));
    assert_non_null(strstr(failure.message, "(EIO)"));

    base_error_clear(&failure);
    assert_int_equal(base_pread_all(fd, data, 2, (uint64_t)INT64_MAX - 1, path, &failure),
                     ZERO_E_IO);
    assert_non_null(strstr(failure.message, "(EOVERFLOW)"));
    base_close(&fd, path, NULL);

    base_error_clear(&failure);
    assert_int_equal(base_pwrite_all(fd, data, 1, 0, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "(EBADF)"));
}

static void a_full_device_is_an_error(void **state)
{
    (void)state;
    int fd;
    assert_int_equal(base_open(&fd, "/dev/full", O_WRONLY, 0, NULL), ZERO_OK);
    assert_int_equal(base_write_all(fd, "x", 1, "/dev/full", &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "'/dev/full' failed at offset 0: "));
    assert_non_null(strstr(failure.message, "(ENOSPC)"));
    base_close(&fd, "/dev/full", NULL);
}

static void opening_and_naming(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f"), *to = temporary_path(&temporary, "g");
    int fd = 99;
    assert_int_equal(base_open(&fd, path, O_RDONLY, 0, &failure), ZERO_NOT_FOUND);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(fd, -1);
    assert_int_equal(failure.result, ZERO_NOT_FOUND);
    assert_int_equal(base_open(&fd, temporary.directory, O_WRONLY, 0, NULL), ZERO_E_IO);
    assert_int_equal(errno, EISDIR);

    base_error_clear(&failure);
    assert_int_equal(base_rename(path, to, &failure), ZERO_NOT_FOUND);
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, to));
    assert_non_null(strstr(failure.message, "(ENOENT)"));

    fd = open_new(path);
    base_close(&fd, path, NULL);
    assert_int_equal(base_rename(path, to, NULL), ZERO_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(to, F_OK), 0);
    fd = open_new(path);
    base_close(&fd, path, NULL);
    assert_int_equal(base_rename_new(path, to, &failure), ZERO_E_INVALID);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(base_unlink(to, NULL), ZERO_OK);
    assert_int_equal(base_rename_new(path, to, NULL), ZERO_OK);
    assert_int_equal(base_rename_new(path, to, NULL), ZERO_NOT_FOUND);
    assert_int_equal(base_fsync_parent(to, NULL), ZERO_OK);
    assert_int_equal(base_fsync_parent("no-slash", NULL), ZERO_OK);
    assert_int_equal(base_fsync_parent("/f", NULL), ZERO_OK);
    base_error_clear(&failure);
    assert_int_equal(base_fsync_parent(temporary_path(&temporary, "none/f"), &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "/none'"));

    uint64_t size;
    assert_int_equal(base_open(&fd, temporary.directory, O_RDONLY, 0, NULL), ZERO_OK);
    assert_int_equal(base_file_size(fd, &size, temporary.directory, NULL), ZERO_E_INVALID);
    base_close(&fd, temporary.directory, NULL);
}

static void every_point_fails_on_demand(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    assert_int_equal(base_fault_set("io.open@1,io.fsync@1,io.rename@1,io.close@1", NULL), ZERO_OK);
    assert_int_equal(base_fsync(fd, path, NULL), ZERO_E_IO);
    assert_int_equal(base_rename(path, path, NULL), ZERO_E_IO);
    assert_int_equal(base_close(&fd, path, NULL), ZERO_E_IO);
    assert_int_equal(fd, -1);
    assert_int_equal(base_open(&fd, path, O_RDONLY, 0, NULL), ZERO_E_IO);
    assert_int_equal(fd, -1);
    assert_int_equal(errno, EIO);
    assert_int_equal(base_fault_fired(), 4);
}

static void units_stay_whole(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    enum { BYTES = 5 * BASE_DIRECT_UNIT };
    char *data = aligned_alloc(BASE_DIRECT_UNIT, BYTES), *back = malloc(BYTES);
    assert_non_null(data);
    assert_non_null(back);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (char)(i * 13 + i / 256);
    // Where the file system can't write directly, this is an ordinary file.
    (void)fcntl(fd, F_SETFL, O_DIRECT);
    assert_int_equal(base_fault_set("io.short@1+,io.write:eintr@3", NULL), ZERO_OK);
    assert_int_equal(base_pwrite_direct(fd, data, BYTES, BASE_DIRECT_UNIT, path, NULL), ZERO_OK);
    assert_true(base_fault_fired() >= 4);
    assert_int_equal(base_fault_set("io.short@1,io.write:enospc@2", NULL), ZERO_OK);
    assert_int_equal(base_pwrite_direct(fd, data, BYTES, BASE_DIRECT_UNIT, path, &failure),
                     ZERO_E_IO);
    assert_non_null(strstr(failure.message, "writing 20480 bytes"));
    assert_non_null(strstr(failure.message, "at offset 16384: ")); // 3 of 5 units were written
    base_fault_set(NULL, NULL);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    assert_int_equal(base_pread_all(fd, back, BYTES, BASE_DIRECT_UNIT, path, NULL), ZERO_OK);
    assert_memory_equal(data, back, BYTES);
    base_close(&fd, path, NULL);
    free(back);
    free(data);
}

static void a_file_is_cut_and_lengthened(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "f");
    int fd = open_new(path);
    char back[6];
    uint64_t size = 0;
    assert_int_equal(base_pwrite_all(fd, "abcdef", 6, 0, path, NULL), ZERO_OK);
    assert_int_equal(base_truncate(fd, 3, path, NULL), ZERO_OK);
    assert_int_equal(base_truncate(fd, 6, path, NULL), ZERO_OK);
    assert_int_equal(base_file_size(fd, &size, path, NULL), ZERO_OK);
    assert_int_equal(size, 6);
    assert_int_equal(base_pread_all(fd, back, 6, 0, path, NULL), ZERO_OK);
    assert_memory_equal(back, "abc\0\0\0", 6);
    assert_int_equal(base_fdatasync(fd, path, NULL), ZERO_OK);

    assert_int_equal(base_truncate(fd, UINT64_MAX, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "(EFBIG)"));
    base_error_clear(&failure);
    assert_int_equal(base_fault_set("io.truncate:enospc@1", NULL), ZERO_OK);
    assert_int_equal(base_truncate(fd, 77, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, "77 bytes long: "));
    base_close(&fd, path, NULL);
}

// Writes under a limit of file sizes, in a process that SIGXFSZ would end. Returns 0, or the number
// of the check that failed.
static int write_beyond_the_limit(int fd, const char *path)
{
    static const char data[8192];
    const struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    struct base_error error = {.result = ZERO_OK};
    sigset_t signals;
    signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &limit))
        return 1;
    if (base_pwrite_all(fd, data, sizeof data, 0, path, &error) != ZERO_E_IO ||
        !strstr(error.message, "failed at offset 4096: File too large (EFBIG): the limit of a "
                               "file, or of shared memory, is 4096 bytes; `ulimit -f` raises it"))
        return 2;
    base_error_clear(&error);
    if (base_truncate(fd, sizeof data, path, &error) != ZERO_E_IO ||
        !strstr(error.message, "`ulimit -f`"))
        return 3;
    if (base_write_all(fd, data, 1, path, NULL)) // within the limit
        return 4;
    // Neither does the signal wait, nor is it blocked.
    if (sigpending(&signals) || sigismember(&signals, SIGXFSZ))
        return 5;
    if (pthread_sigmask(SIG_BLOCK, NULL, &signals) || sigismember(&signals, SIGXFSZ))
        return 6;
    // A signal of the program's, which it has blocked, stays.
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    raise(SIGXFSZ);
    base_truncate(fd, sizeof data, path, NULL);
    return sigpending(&signals) || !sigismember(&signals, SIGXFSZ) ? 7 : 0;
}

static void a_limit_of_file_sizes_is_an_error(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "limited");
    int fd = open_new(path), status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(write_beyond_the_limit(fd, path));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    base_close(&fd, path, NULL);
}

static void locks_exclude_each_other(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "lock");
    int one = open_new(path), other = open_new(path);
    assert_int_equal(base_lock(one, false, path, NULL), ZERO_OK);
    assert_int_equal(base_lock(other, false, path, NULL), ZERO_OK);
    assert_int_equal(base_lock(other, true, path, &failure), ZERO_AGAIN);
    assert_int_equal(failure.result, ZERO_OK);
    base_close(&one, path, NULL);
    assert_int_equal(base_lock(other, true, path, NULL), ZERO_OK);
    one = open_new(path);
    assert_int_equal(base_lock(one, true, path, NULL), ZERO_AGAIN);
    assert_int_equal(base_lock(one, false, path, NULL), ZERO_AGAIN);
    base_close(&other, path, NULL);
    assert_int_equal(base_lock(one, true, path, NULL), ZERO_OK);
    base_close(&one, path, NULL);
    assert_int_equal(base_lock(77777, true, path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "cannot lock '"));
    assert_non_null(strstr(failure.message, "(EBADF)"));
}

struct seen {
    int files, directories, others;
    zero_result answer;
};

static zero_result see(void *user, const char *name, enum base_entry_kind kind,
                       struct base_error *error)
{
    struct seen *seen = user;
    assert_true(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    seen->files += kind == BASE_ENTRY_FILE;
    seen->directories += kind == BASE_ENTRY_DIRECTORY;
    seen->others += kind == BASE_ENTRY_OTHER;
    return seen->answer ? zero_fail(error, seen->answer, "%s", name) : ZERO_OK;
}

static void directories_are_made_listed_and_removed(void **state)
{
    (void)state;
    char path[128], file[128], none[128];
    snprintf(path, sizeof path, "%s/d", temporary.directory);
    snprintf(file, sizeof file, "%s/d/f", temporary.directory);
    snprintf(none, sizeof none, "%s/no/d", temporary.directory);
    assert_int_equal(base_make_directory(path, 0700, NULL), ZERO_OK);
    assert_int_equal(base_make_directory(path, 0700, NULL), ZERO_OK);
    assert_int_equal(base_make_directory(none, 0700, &failure), ZERO_NOT_FOUND);
    assert_int_equal(failure.result, ZERO_NOT_FOUND);
    assert_true(temporary_write(&temporary, "d/f", "1"));
    assert_true(temporary_write(&temporary, "d/g", "2"));
    assert_true(temporary_folder(&temporary, "d/e"));
    assert_int_equal(symlink("f", temporary_path(&temporary, "d/link")), 0);

    base_error_clear(&failure);
    assert_int_equal(base_make_directory(file, 0700, &failure), ZERO_E_INVALID);
    assert_non_null(strstr(failure.message, file));
    assert_non_null(strstr(failure.message, "is no directory"));

    struct seen seen = {0};
    assert_int_equal(base_list(path, see, &seen, NULL), ZERO_OK);
    assert_int_equal(seen.files, 2);
    assert_int_equal(seen.directories, 1);
    assert_int_equal(seen.others, 1);
    seen = (struct seen){.answer = ZERO_E_CORRUPT};
    assert_int_equal(base_list(path, see, &seen, NULL), ZERO_E_CORRUPT);
    assert_int_equal(seen.files + seen.directories + seen.others, 1);
    assert_int_equal(base_list(none, see, &seen, NULL), ZERO_NOT_FOUND);
    assert_int_equal(base_list(file, see, &seen, NULL), ZERO_E_IO);

    base_error_clear(&failure);
    assert_int_equal(base_remove_directory(path, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "(ENOTEMPTY)"));
    assert_int_equal(base_unlink(file, NULL), ZERO_OK);
    assert_int_equal(base_unlink(file, NULL), ZERO_NOT_FOUND);
    assert_int_equal(base_remove_directory(temporary_path(&temporary, "d/e"), NULL), ZERO_OK);
    assert_int_equal(base_remove_directory(none, NULL), ZERO_NOT_FOUND);
    assert_int_equal(base_fsync_directory(path, NULL), ZERO_OK);
    assert_int_equal(base_fsync_directory(none, NULL), ZERO_NOT_FOUND);
}

static void names_are_exchanged(void **state)
{
    (void)state;
    assert_true(temporary_folder(&temporary, "one"));
    assert_true(temporary_folder(&temporary, "two"));
    assert_true(temporary_write(&temporary, "one/f", "1"));
    const char *one = temporary_path(&temporary, "one"), *other = temporary_path(&temporary, "two");
    assert_int_equal(base_exchange(one, other, NULL), ZERO_OK);
    const char *none = temporary_path(&temporary, "none");
    assert_int_equal(access(temporary_path(&temporary, "two/f"), F_OK), 0);
    assert_int_equal(base_exchange(one, none, &failure), ZERO_NOT_FOUND);
    assert_non_null(strstr(failure.message, none));
    base_error_clear(&failure);
    assert_int_equal(base_fault_set("io.exchange:einval@1", NULL), ZERO_OK);
    assert_int_equal(base_exchange(one, other, &failure), ZERO_E_UNSUPPORTED);
}

static void points_of_names_fail_on_demand(void **state)
{
    (void)state;
    const char *path = temporary_path(&temporary, "d"), *to = temporary_path(&temporary, "e");
    struct seen seen = {0};
    int fd = open_new(temporary_path(&temporary, "f"));
    assert_int_equal(base_fault_set("io.mkdir@1,io.list@2,io.unlink@1,io.rmdir@1,io.exchange@1,"
                                    "io.lock@1",
                                    NULL),
                     ZERO_OK);
    assert_int_equal(base_make_directory(path, 0700, NULL), ZERO_E_IO);
    // The second one that is looked for is the end.
    assert_int_equal(base_list(temporary.directory, see, &seen, NULL), ZERO_E_IO);
    assert_int_equal(seen.files + seen.directories + seen.others, 1);
    assert_int_equal(base_unlink(path, NULL), ZERO_E_IO);
    assert_int_equal(base_remove_directory(path, NULL), ZERO_E_IO);
    assert_int_equal(base_exchange(path, to, NULL), ZERO_E_IO);
    assert_int_equal(base_lock(fd, true, path, NULL), ZERO_E_IO);
    assert_int_equal(base_fault_fired(), 6);
    base_close(&fd, path, NULL);
}

enum { PIPED = 1 << 20 };

static void *read_slowly(void *argument)
{
    const int fd = *(const int *)argument;
    static char buffer[4096];
    long total = 0;
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;)
        for (ssize_t i = 0; i < count; i++, total++)
            if (buffer[i] != (char)(total % 251))
                return NULL;
    return total == PIPED ? argument : NULL;
}

static void do_nothing(int signal)
{
    (void)signal;
}

static void pipes_take_what_they_can(void **state)
{
    (void)state;
    // The timer interrupts writes for real.
    const struct sigaction action = {.sa_handler = do_nothing};
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char *data = malloc(PIPED);
    assert_non_null(data);
    for (int i = 0; i < PIPED; i++)
        data[i] = (char)(i % 251);
    pthread_t reader;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    assert_int_equal(pthread_create(&reader, NULL, read_slowly, &ends[0]), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(base_write_all(ends[1], data, PIPED, "pipe", NULL), ZERO_OK);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    close(ends[1]);
    void *verdict = NULL;
    assert_int_equal(pthread_join(reader, &verdict), 0);
    assert_non_null(verdict);
    close(ends[0]);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_early_end_is_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failures_name_path_offset_and_cause, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_device_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(opening_and_naming, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_point_fails_on_demand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(units_stay_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_is_cut_and_lengthened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_limit_of_file_sizes_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(locks_exclude_each_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(directories_are_made_listed_and_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_are_exchanged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(points_of_names_fail_on_demand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pipes_take_what_they_can, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
