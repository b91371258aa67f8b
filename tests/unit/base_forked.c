// base/forked.h: what a child that was made by fork() has of its parent's.
#include "base/file.h"
#include "base/forked.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

// A child that lives until it is killed, and has come to live.
static pid_t make_child(void)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        if (write(ready[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    assert_true(child > 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static bool is_at_end(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    char byte;
    return poll(&poll_fd, 1, 0) == 1 && read(fd, &byte, 1) == 0;
}

static void a_connection_ends_with_the_parent(void **state)
{
    (void)state;
    int guarded[2], other[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, guarded), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    assert_int_equal(base_forked_guard(guarded[1]), 0);
    const pid_t child = make_child();
    base_forked_release(guarded[1]);
    close(guarded[1]);
    close(other[1]);
    assert_true(is_at_end(guarded[0]));
    assert_false(is_at_end(other[0])); // which the child has
    end_child(child);
    assert_true(is_at_end(other[0]));
    close(guarded[0]);
    close(other[0]);
}

static void what_was_released_is_the_childs_too(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(base_forked_guard(ends[1]), 0);
    base_forked_release(ends[1]);
    const pid_t child = make_child();
    close(ends[1]);
    assert_false(is_at_end(ends[0]));
    end_child(child);
    close(ends[0]);
}

// What the child finds in place of a guarded descriptor; the number of the check that failed.
static int look_at_inert(int fd, uint32_t before)
{
    char byte = 0;
    if (base_generation() == before)
        return 1;
    if (read(fd, &byte, 1) != 0)
        return 2;
    if (write(fd, &byte, 1) != -1 || errno != EBADF)
        return 3;
    if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
        return 4;
    if (open("/dev/null", O_RDONLY) == fd) // the number is still taken
        return 5;
    return close(fd) ? 6 : 0;
}

static void the_child_has_something_inert_instead(void **state)
{
    (void)state;
    const uint32_t before = base_generation();
    int ends[2], status;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(base_forked_guard(ends[1]), 0);
    const pid_t child = fork();
    if (child == 0)
        _exit(look_at_inert(ends[1], before));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(base_generation(), before);
    assert_int_equal(write(ends[1], "x", 1), 1); // the parent's is as it was
    base_forked_release(ends[1]);
    close(ends[0]);
    close(ends[1]);
}

static void a_lock_ends_with_the_parent(void **state)
{
    (void)state;
    char path[] = "/tmp/zero-forked-XXXXXX";
    struct base_error error = {0};
    int fd = mkstemp(path), again = -1;
    assert_true(fd >= 0);
    assert_int_equal(base_lock(fd, true, path, &error), ZERO_OK);
    const pid_t child = make_child();
    assert_int_equal(base_open(&again, path, O_RDWR, 0, &error), ZERO_OK);
    assert_int_equal(base_lock(again, true, path, &error), ZERO_AGAIN);
    assert_int_equal(base_close(&fd, path, &error), ZERO_OK); // without giving the lock up
    assert_int_equal(base_lock(again, true, path, &error), ZERO_OK);
    base_unlock(again);
    assert_int_equal(base_close(&again, path, &error), ZERO_OK);
    end_child(child);
    unlink(path);
}

// Who has locked a file, also where that process has ended and a child of its, made by the system
// call itself, keeps the lock.
static void a_lock_has_a_holder(void **state)
{
    (void)state;
    char path[] = "/tmp/zero-forked-XXXXXX", text[BASE_HOLDER_BYTES], expected[BASE_HOLDER_BYTES];
    struct base_error error = {0};
    int fd = mkstemp(path), ready[2], status;
    pid_t left = 0;
    assert_true(fd >= 0);
    base_lock_holder(path, text);
    assert_string_equal(text, "");
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        int own = open(path, O_RDWR);
        base_lock(own, true, path, &error);
        left = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (left == 0)
            pause();
        _exit(write(ready[1], &left, sizeof left) != sizeof left);
    }
    assert_int_equal(read(ready[0], &left, sizeof left), sizeof left);
    assert_int_equal(waitpid(child, &status, 0), child);
    base_lock_holder(path, text);
    snprintf(expected, sizeof expected,
             " (process %d has locked it and has ended: a process that "
             "it has started still has it open)",
             child);
    assert_string_equal(text, expected);
    kill(left, SIGKILL);
    while (base_lock(fd, true, path, &error) == ZERO_AGAIN)
        usleep(1000);
    base_lock_holder(path, text);
    snprintf(expected, sizeof expected, " (process %d has locked it)", getpid());
    assert_string_equal(text, expected);
    assert_int_equal(base_close(&fd, path, &error), ZERO_OK);
    close(ready[0]);
    close(ready[1]);
    unlink(path);
}

static void numbers_that_no_bit_is_there_for(void **state)
{
    (void)state;
    assert_int_equal(base_forked_guard(-1), EMFILE);
    assert_int_equal(base_forked_guard(1 << 20), EMFILE);
    base_forked_release(-1);
    base_forked_release(1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_ends_with_the_parent),
        cmocka_unit_test(what_was_released_is_the_childs_too),
        cmocka_unit_test(the_child_has_something_inert_instead),
        cmocka_unit_test(a_lock_ends_with_the_parent),
        cmocka_unit_test(a_lock_has_a_holder),
        cmocka_unit_test(numbers_that_no_bit_is_there_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
