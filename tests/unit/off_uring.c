// What is said of a system that does not let us use io_uring, or not for so much memory. Each
// in a process of its own, because what it gives up does not come back. And much memory.
#include "base/fault.h"
#include "offload/io/io.h"
#include "offload/io/io_engine.h"
#include "offload/pages.h"
#include "tests/unit/refuse_calls.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SKIPPED = 77, NOBODY = 65534 };
enum { WINDOW = 2 << 20, RANGE = 514 << 20 };

static struct off_pages pages;
static struct base_error failure;

static zero_result try_to_create(struct base_error *error)
{
    struct off_io *io;
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_config config = {
        .engine = &off_io_engine_uring, .ranges = &range, .range_count = 1};
    const zero_result result = off_io_create(&io, &config, error);
    off_io_destroy(io);
    return result;
}

// Whether the message has what it must; the exit code of the child.
static int verdict(zero_result wanted, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    const zero_result result = try_to_create(&error);
    if (result == wanted && strstr(error.message, words))
        return 0;
    fprintf(stderr, "result %d, not %d: %s\n", (int)result, (int)wanted, error.message);
    return 1;
}

static int without_locked_memory(void)
{
    const struct rlimit little = {.rlim_cur = 65536, .rlim_max = 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &little) != 0)
        return 2;
    // Who may lock what they like (CAP_IPC_LOCK) is not asked.
    if (getuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return SKIPPED;
    return verdict(ZERO_E_LIMIT, "ulimit -l");
}

static int without_permission(void)
{
    if (!refuse_call(SYS_io_uring_setup, -1, EPERM))
        return SKIPPED;
    return verdict(ZERO_E_UNSUPPORTED, "seccomp");
}

static int with_faults(void)
{
    static const struct {
        const char *fault, *words;
        zero_result result;
    } cases[] = {
        {"offload.uring:enosys@1", "no io_uring", ZERO_E_UNSUPPORTED},
        {"offload.uring:eperm@1", "io_uring_disabled", ZERO_E_UNSUPPORTED},
        {"offload.uring:enomem@1", "ulimit -l", ZERO_E_LIMIT},
        {"offload.uring:emfile@1", "ulimit -n", ZERO_E_LIMIT},
        {"offload.register:enomem@1", "ulimit -l", ZERO_E_LIMIT},
        {"offload.register:efault@1", "EFAULT", ZERO_E_IO},
        {"alloc@1", "memory", ZERO_E_NOMEM},
        {"alloc@2", "memory", ZERO_E_NOMEM},
        {"alloc@4", "memory", ZERO_E_NOMEM},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        base_fault_set(cases[i].fault, NULL);
        failed |= verdict(cases[i].result, cases[i].words);
    }
    // A kernel that doesn't know the newest flags.
    base_fault_set("offload.uring:einval@1", NULL);
    struct base_error error = {.result = ZERO_OK};
    if (try_to_create(&error) != ZERO_OK || base_fault_fired() != 1)
        failed |= fprintf(stderr, "without the newest flags: %s\n", error.message) > 0;
    return failed;
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

static void too_little_locked_memory_is_a_limit(void **state)
{
    (void)state;
    in_a_child(without_locked_memory);
}

static void forbidden_is_unsupported(void **state)
{
    (void)state;
    in_a_child(without_permission);
}

static void refusals_say_why(void **state)
{
    (void)state;
    in_a_child(with_faults);
}

// The same memory over and over, so that there are more addresses than the kernel takes in one
// piece: 512 MiB.
static unsigned char *map_windows(int memory)
{
    unsigned char *all = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    for (size_t at = 0; at < RANGE; at += WINDOW)
        assert_true(mmap(all + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
                         0) == all + at);
    return all;
}

static void write_from(struct off_io *io, int file, unsigned char *memory)
{
    struct off_request request = {
        .file = file, .direction = OFF_WRITE, .memory = memory, .bytes = 4096, .what = "a page"};
    struct off_request *done;
    assert_int_equal(off_io_submit(io, &request, &failure), ZERO_OK);
    assert_int_equal(off_io_commit(io, &failure), ZERO_OK);
    assert_int_equal(off_io_wait(io, UINT64_MAX, &done), ZERO_OK);
    if (request.result)
        fail_msg("%s", request.error.message);
}

static void much_memory_is_in_several_pieces(void **state)
{
    (void)state;
    const int memory = memfd_create("memory", MFD_CLOEXEC), fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(memory >= 0 && fd >= 0 && ftruncate(memory, WINDOW) == 0);
    unsigned char *all = map_windows(memory);
    const struct off_range range = {.memory = all, .bytes = RANGE};
    const struct off_io_config config = {
        .engine = &off_io_engine_uring, .ranges = &range, .range_count = 1};
    struct off_io *io;
    int file;
    const zero_result result = off_io_create(&io, &config, &failure);
    if (!result) {
        assert_int_equal(off_io_add_file(io, fd, 1, "file", &file, &failure), ZERO_OK);
        write_from(io, file, all);
        write_from(io, file, all + RANGE - 4096);
    }
    off_io_destroy(io);
    munmap(all, RANGE);
    close(memory);
    close(fd);
    if (result == ZERO_E_LIMIT) // so much may not be locked here
        skip();
    assert_int_equal(result, ZERO_OK);
}

static int group_set_up(void **state)
{
    (void)state;
    return off_pages_create(&pages, (size_t)4 << 20, NULL);
}

static int group_tear_down(void **state)
{
    (void)state;
    off_pages_destroy(&pages);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_little_locked_memory_is_a_limit),
        cmocka_unit_test(forbidden_is_unsupported),
        cmocka_unit_test(refusals_say_why),
        cmocka_unit_test(much_memory_is_in_several_pieces),
    };
    return cmocka_run_group_tests_name("off_uring", tests, group_set_up, group_tear_down);
}
