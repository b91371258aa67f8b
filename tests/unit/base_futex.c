// base/futex.h: asleep until the word changes, between threads and between processes.
#include "base/clock.h"
#include "base/futex.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

static void another_value_does_not_wait(void **state)
{
    (void)state;
    _Atomic uint32_t word = 3;
    errno = EDOM;
    assert_int_equal(base_futex_wait(&word, 4, BASE_FUTEX_FOREVER, false), 0);
    assert_int_equal(base_futex_wait(&word, 4, BASE_FUTEX_FOREVER, true), 0);
    base_futex_wake(&word, 1, false);
    assert_int_equal(errno, EDOM);
}

static void time_runs_out(void **state)
{
    (void)state;
    _Atomic uint32_t word = 3;
    const uint64_t begin = base_clock_ns();
    int result;
    do
        result = base_futex_wait(&word, 3, 20000000, false);
    while (result == 0 && base_clock_ns() - begin < UINT64_C(2000000000));
    assert_int_equal(result, ETIMEDOUT);
    assert_true(base_clock_ns() - begin >= 20000000);
    assert_int_equal(base_futex_wait(&word, 3, 0, true), ETIMEDOUT);
    assert_true(base_clock_s() * 1e9 >= (double)begin);
}

// Two sides take turns on a word: even is ours, odd the other's.
static void take_turns(_Atomic uint32_t *word, uint32_t own, bool shared)
{
    for (uint32_t turn = own; turn < 200; turn += 2) {
        uint32_t now;
        while ((now = atomic_load(word)) != turn)
            base_futex_wait(word, now, BASE_FUTEX_FOREVER, shared);
        atomic_store(word, turn + 1);
        base_futex_wake(word, INT_MAX, shared);
    }
}

static void *other_thread(void *word)
{
    take_turns(word, 1, false);
    return NULL;
}

static void threads_take_turns(void **state)
{
    (void)state;
    _Atomic uint32_t word = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &word), 0);
    take_turns(&word, 0, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&word), 200);
}

static void processes_take_turns(void **state)
{
    (void)state;
    _Atomic uint32_t *word =
        mmap(NULL, sizeof *word, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(word != MAP_FAILED);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        take_turns(word, 1, true);
        _exit(0);
    }
    take_turns(word, 0, true);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(word), 200);
    munmap(word, sizeof *word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_value_does_not_wait),
        cmocka_unit_test(time_runs_out),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(processes_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
