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
#include <sys/time.h>
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
    assert_int_equal(base_rename(path, to, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, path));
    assert_non_null(strstr(failure.message, to));
    assert_non_null(strstr(failure.message, "(ENOENT)"));

    fd = open_new(path);
    base_close(&fd, path, NULL);
    assert_int_equal(base_rename(path, to, NULL), ZERO_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(to, F_OK), 0);
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
        cmocka_unit_test_setup_teardown(pipes_take_what_they_can, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
