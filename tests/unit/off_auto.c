// io=auto: the best engine that the system lets us have, and why it is not a better one. Each case
// in a process of its own, because what it gives up does not come back.
#include "base/fault.h"
#include "offload/io/io.h"
#include "offload/io/io_engine.h"
#include "offload/pages.h"
#include "tests/unit/refuse_calls.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SKIPPED = 77, NOBODY = 65534, BYTES = 16 << 20 };

static struct temporary temporary;
static struct off_pages pages;

// Writes and reads back through a queue; 0: all bytes are as they were.
static int move(struct off_io *io, int fd, struct base_error *error)
{
    int file;
    unsigned char *memory = pages.memory;
    struct off_request request = {.memory = memory, .bytes = BYTES, .what = "a tile"}, *done;
    if (off_io_add_file(io, fd, 4096, "file", &file, error))
        return 1;
    request.file = file;
    for (enum off_direction d = OFF_DIRECTIONS; d-- > OFF_READ;) {
        request.direction = d;
        for (size_t i = 0; i < BYTES; i++)
            memory[i] = d == OFF_WRITE ? (unsigned char)(i * 7 + i / 4096) : 0;
        if (off_io_submit(io, &request, error) || off_io_commit(io, error) ||
            off_io_wait(io, UINT64_MAX, &done) || request.result)
            return 1;
    }
    for (size_t i = 0; i < BYTES; i++)
        if (memory[i] != (unsigned char)(i * 7 + i / 4096))
            return 1;
    return 0;
}

// What io=auto has to come to; the exit code of the child.
static int expect_engine(const char *name, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    struct off_io *io;
    const int fd = open(temporary.directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_config config = {
        .engine = off_io_engine_find("auto"), .ranges = &range, .range_count = 1};
    int failed = fd < 0 || off_io_create(&io, &config, &error) != ZERO_OK;
    if (!failed) {
        const struct off_io_use *use = off_io_use(io);
        failed = strcmp(use->engine->name, name) != 0 || !strstr(use->passed.message, words) ||
                 strstr(use->passed.message, "io=") || move(io, fd, &error) != 0;
        if (failed)
            fprintf(stderr, "%s: %s\n", use->engine->name, use->passed.message);
        off_io_destroy(io);
    }
    if (failed)
        fprintf(stderr, "instead of %s, \"%s\": %s\n", name, words, error.message);
    close(fd);
    return failed;
}

// And what a value that was given is refused with.
static int expect_refusal(const char *name, zero_result wanted, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    struct off_io *io;
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_config config = {
        .engine = off_io_engine_find(name), .ranges = &range, .range_count = 1};
    const zero_result result = off_io_create(&io, &config, &error);
    off_io_destroy(io);
    if (result == wanted && strstr(error.message, words) && strstr(error.message, name) &&
        strstr(error.message, "io=auto"))
        return 0;
    fprintf(stderr, "%s: result %d, not %d: %s\n", name, (int)result, (int)wanted, error.message);
    return 1;
}

static int as_nobody(rlim_t lockable)
{
    const struct rlimit little = {.rlim_cur = lockable, .rlim_max = lockable};
    if (setrlimit(RLIMIT_MEMLOCK, &little) != 0 ||
        (getuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0))
        return SKIPPED;
    return off_lock_limit() == lockable ? 0 : 1;
}

// Rings themselves count before Linux 6.14, so another job of this user's could leave no room.
static int with_the_usual_limit(void)
{
    const int failed = as_nobody((rlim_t)8 << 20);
    if (failed)
        return failed;
    return expect_engine("uring-plain", "ulimit -l") ||
           expect_refusal("uring", ZERO_E_LIMIT, "8192 KiB (ulimit -l; LimitMEMLOCK=");
}

static int with_no_locked_memory(void)
{
    const int failed = as_nobody(0);
    if (failed)
        return failed;
    struct base_error error = {.result = ZERO_OK};
    struct off_io *io;
    const struct off_io_config config = {.engine = &off_io_engine_uring_plain};
    const bool rings_count = off_io_create(&io, &config, &error) != ZERO_OK;
    off_io_destroy(io);
    return expect_engine(rings_count ? "threads" : "uring-plain", "ulimit -l") ||
           expect_refusal("uring", ZERO_E_LIMIT, " 0 KiB (ulimit -l");
}

static int with_few_descriptors(void)
{
    const int least = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const struct rlimit few = {.rlim_cur = (rlim_t)least + 4, .rlim_max = (rlim_t)least + 4};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        return 2;
    // A table of more files than a process may have open is refused.
    return least >= 12 || expect_engine("uring-plain", "ulimit -n") ||
           expect_refusal("uring", ZERO_E_LIMIT, "ulimit -n");
}

static int with_no_descriptor(void)
{
    const int last = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const struct rlimit none = {.rlim_cur = (rlim_t)last + 1, .rlim_max = (rlim_t)last + 1};
    close(last);
    if (setrlimit(RLIMIT_NOFILE, &none) != 0)
        return 2;
    return expect_engine("threads", "ulimit -n");
}

struct forbidden {
    long call;
    int errnum;
    long operation; // of io_uring_register; -1: all
    const char *engine, *words;
};

static const struct forbidden *forbidden;

static int with_a_filter(void)
{
    if (!refuse_call(forbidden->call, forbidden->operation, forbidden->errnum))
        return SKIPPED;
    return expect_engine(forbidden->engine, forbidden->words) ||
           expect_refusal("uring", ZERO_E_UNSUPPORTED, forbidden->words);
}

static int as_it_is(void)
{
    return getuid() != 0 || off_lock_limit() != UINT64_MAX ? SKIPPED : expect_engine("uring", "");
}

static int with_too_old_a_kernel(void)
{
    base_fault_set("offload.register:einval@1", NULL);
    return expect_engine("uring-plain", "too old");
}

// What is no question of what the system lets us have is an error.
static int with_a_failure(void)
{
    struct base_error error = {.result = ZERO_OK};
    struct off_io *io;
    const struct off_io_config config = {.engine = &off_io_engine_auto};
    base_fault_set("offload.register:efault@1", NULL);
    return off_io_create(&io, &config, &error) != ZERO_E_IO || !strstr(error.message, "EFAULT");
}

static void in_a_child(int (*test)(void))
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(test());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_best_engine_is_taken(void **state)
{
    (void)state;
    in_a_child(as_it_is);
}

static void little_locked_memory_takes_no_registration(void **state)
{
    (void)state;
    in_a_child(with_the_usual_limit);
    in_a_child(with_no_locked_memory);
}

static void few_descriptors_are_told(void **state)
{
    (void)state;
    in_a_child(with_few_descriptors);
    in_a_child(with_no_descriptor);
}

static void a_filter_of_calls_is_told(void **state)
{
    (void)state;
    enum { REGISTER_FILES2 = 13 };
    static const struct forbidden cases[] = {
        {SYS_io_uring_setup, EPERM, -1, "threads", "forbidden here"},
        {SYS_io_uring_setup, EACCES, -1, "threads", "forbidden here"},
        {SYS_io_uring_setup, ENOSYS, -1, "threads", "has no io_uring"},
        {SYS_io_uring_enter, EPERM, -1, "threads", "entering it"},
        {SYS_io_uring_enter, ENOSYS, -1, "threads", "entering it"},
        {SYS_io_uring_register, EPERM, -1, "uring-plain", "registering"},
        {SYS_io_uring_register, ENOSYS, -1, "uring-plain", "registering"},
        {SYS_io_uring_register, EINVAL, REGISTER_FILES2, "uring-plain", "table of files"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        forbidden = &cases[i];
        in_a_child(with_a_filter);
    }
}

static void an_old_kernel_is_told(void **state)
{
    (void)state;
    in_a_child(with_too_old_a_kernel);
}

static void a_failure_is_no_choice(void **state)
{
    (void)state;
    in_a_child(with_a_failure);
}

static int group_set_up(void **state)
{
    (void)state;
    return temporary_make(&temporary) && off_pages_create(&pages, BYTES, NULL) == ZERO_OK &&
                   chmod(temporary.directory, 0777) == 0
               ? 0
               : -1;
}

static int group_tear_down(void **state)
{
    (void)state;
    off_pages_destroy(&pages);
    temporary_remove(&temporary);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_engine_is_taken),
        cmocka_unit_test(little_locked_memory_takes_no_registration),
        cmocka_unit_test(few_descriptors_are_told),
        cmocka_unit_test(a_filter_of_calls_is_told),
        cmocka_unit_test(an_old_kernel_is_told),
        cmocka_unit_test(a_failure_is_no_choice),
    };
    return cmocka_run_group_tests_name("off_auto", tests, group_set_up, group_tear_down);
}
