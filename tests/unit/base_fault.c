// base/fault.h: which hit fails with what, and what a malformed text says.
#include "base/clock.h"
#include "base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void the_environment_is_read_once(void **state)
{
    (void)state; // main() set ZERO_FAULT before anything was hit
    assert_int_equal(base_fault("from.environment"), 0);
    assert_int_equal(base_fault("from.environment"), EIO);
    assert_int_equal(base_fault("from.environment"), 0);
    assert_int_equal(base_fault_check_environment(NULL), ZERO_OK);
}

static void the_nth_hit_fails(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("io.write:enospc@3", NULL), ZERO_OK);
    for (int i = 1; i <= 6; i++) {
        assert_int_equal(base_fault("io.read"), 0);
        assert_int_equal(base_fault("io.write"), i == 3 ? ENOSPC : 0);
        assert_int_equal(base_fault("io.writ"), 0);
        assert_int_equal(base_fault("io.write2"), 0);
    }
    assert_int_equal(base_fault_fired(), 1);
}

static void every_hit_from_the_nth_on_fails(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("a@2+,alloc@1,a:EPERM@4,thread@1", NULL), ZERO_OK);
    assert_int_equal(base_fault("a"), 0);
    assert_int_equal(base_fault("a"), EIO);
    assert_int_equal(base_fault("a"), EIO);
    assert_int_equal(base_fault("a"), EPERM); // of several the last one tells
    assert_int_equal(base_fault("a"), EIO);
    assert_int_equal(base_fault("alloc"), ENOMEM);
    assert_int_equal(base_fault("alloc"), 0);
    assert_int_equal(base_fault("thread"), EAGAIN);
    assert_int_equal(base_fault_fired(), 6);
}

static void a_star_stands_for_many_points(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("io.*@2", NULL), ZERO_OK);
    assert_int_equal(base_fault("io"), 0);
    assert_int_equal(base_fault("ip.read"), 0);
    assert_int_equal(base_fault("io.read"), 0);
    assert_int_equal(base_fault("io.write"), EIO);
    assert_int_equal(base_fault("io.read"), 0);
    assert_int_equal(base_fault_set("*@1", NULL), ZERO_OK);
    assert_int_equal(base_fault("alloc"), ENOMEM);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static void setting_starts_anew(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("a@2", NULL), ZERO_OK);
    assert_int_equal(base_fault("a"), 0);
    assert_int_equal(base_fault_set("a@2", NULL), ZERO_OK);
    assert_int_equal(base_fault("a"), 0);
    assert_int_equal(base_fault("a"), EIO);
    assert_int_equal(base_fault_set("", NULL), ZERO_OK);
    assert_int_equal(base_fault_fired(), 0);
    assert_int_equal(base_fault("a"), 0);
    assert_int_equal(atomic_load(&base_fault_state), 0);
    assert_int_equal(base_fault_set("a@1", NULL), ZERO_OK);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    assert_int_equal(base_fault("a"), 0);
}

static void malformed_texts_change_nothing(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a",
        "a@",
        "a@0",
        "a@x",
        "a@1x",
        "a@1++",
        "a@-1",
        "@1",
        ":eio@1",
        "a:@1",
        "a:nosuch@1",
        "a:kil@1",
        "a:kill:eio@1",
        "a:KILL@1",
        "a@1,",
        ",a@1",
        "a@1,,b@1",
        "a@ 1",
        "a@99999999999999999999999",
        "a.name.that.is.longer.than.it.may.be@1",
        "a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1,a@1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct base_error error = {.result = ZERO_OK};
        assert_int_equal(base_fault_set("keep@1", NULL), ZERO_OK);
        assert_int_equal(base_fault_set(bad[i], &error), ZERO_E_INVALID);
        assert_non_null(strstr(error.message, "fault"));
        assert_int_equal(base_fault("keep"), EIO);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static void *hit_often(void *argument)
{
    int *failed = argument;
    for (int i = 0; i < 1000; i++)
        *failed += base_fault("shared") != 0;
    return NULL;
}

static void threads_count_together(void **state)
{
    (void)state;
    pthread_t thread[3];
    int failed[3] = {0};
    assert_int_equal(base_fault_set("shared@1234,shared@2000", NULL), ZERO_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, hit_often, &failed[i]), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(failed[0] + failed[1] + failed[2], 2);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/* ------------------------------------------------------------------ actions */

// Written by a child's witness just before it stops or ends.
static volatile int *witnessed;

static void note(void *user)
{
    *(volatile int *)user += 1;
}

// Hits a point twice in a child whose second hit does the action; returns the child.
static pid_t hit_in_child(const char *spec)
{
    const pid_t child = fork();
    if (child != 0)
        return child;
    base_fault_witness(note, (void *)(uintptr_t)witnessed);
    if (base_fault_set(spec, NULL) != ZERO_OK || base_fault("p") != 0 || *witnessed != 0)
        _exit(1);
    _exit(base_fault("p") == 0 && base_fault_fired() == 1 ? 42 : 2);
}

static void actions_end_or_stop_the_process(void **state)
{
    (void)state;
    int status;
    witnessed =
        mmap(NULL, sizeof *witnessed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(witnessed, MAP_FAILED);
    pid_t child = hit_in_child("p:kill@2");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && *witnessed == 1);

    *witnessed = 0;
    child = hit_in_child("p:exit@2+");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(status == 0 && *witnessed == 1);

    *witnessed = 0;
    child = hit_in_child("p:stop@2");
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP && *witnessed == 1);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);

    *witnessed = 0;
    child = hit_in_child("p:exec@2");
    char path[64], program[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)child);
    for (int i = 0; i < 5000 && strcmp(program, "sleep\n") != 0; i++) {
        usleep(1000);
        FILE *file = fopen(path, "r");
        assert_true(file && fgets(program, sizeof program, file));
        fclose(file);
    }
    assert_string_equal(program, "sleep\n");
    assert_int_equal(*witnessed, 1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    munmap((void *)(uintptr_t)witnessed, sizeof *witnessed);
}

static void a_delay_takes_time_and_succeeds(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("p:delay@1+,p:eio@50", NULL), ZERO_OK);
    const uint64_t begin = base_clock_ns();
    for (int i = 1; i < 50; i++)
        assert_int_equal(base_fault("p"), 0);
    const uint64_t took = base_clock_ns() - begin;
    assert_true(took > 10 * UINT64_C(1000000)); // 49 ms is the mean
    assert_int_equal(base_fault("p"), EIO);
    assert_int_equal(base_fault_fired(), 50);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static void *hit_once(void *argument)
{
    atomic_int *result = argument;
    atomic_store(result, base_fault("p"));
    return NULL;
}

static void a_hang_lasts_until_the_faults_are_replaced(void **state)
{
    (void)state;
    atomic_int result = -1;
    pthread_t thread;
    assert_int_equal(base_fault_set("p:hang@1", NULL), ZERO_OK);
    assert_int_equal(pthread_create(&thread, NULL, hit_once, &result), 0);
    while (base_fault_fired() == 0)
        usleep(1000);
    usleep(20000);
    assert_int_equal(atomic_load(&result), -1);
    assert_int_equal(base_fault("p"), 0);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&result), 0);
}

// In a process of its own, because the environment is read once.
static int try_malformed_environment(void)
{
    const pid_t child = fork();
    if (child == 0) {
        struct base_error error = {.result = ZERO_OK};
        setenv("ZERO_FAULT", "a@1,nonsense", 1);
        const int good =
            base_fault("a") == 0 && base_fault_check_environment(&error) == ZERO_E_INVALID &&
            strcmp(error.message, "ZERO_FAULT: fault 'nonsense' has no '@' and number") == 0;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int malformed_environment_was_reported;

static void a_malformed_environment_is_reported(void **state)
{
    (void)state;
    assert_true(malformed_environment_was_reported);
}

int main(void)
{
    malformed_environment_was_reported = try_malformed_environment();
    setenv("ZERO_FAULT", "from.environment@2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_is_read_once),
        cmocka_unit_test(the_nth_hit_fails),
        cmocka_unit_test(every_hit_from_the_nth_on_fails),
        cmocka_unit_test(a_star_stands_for_many_points),
        cmocka_unit_test(setting_starts_anew),
        cmocka_unit_test(malformed_texts_change_nothing),
        cmocka_unit_test(threads_count_together),
        cmocka_unit_test(actions_end_or_stop_the_process),
        cmocka_unit_test(a_delay_takes_time_and_succeeds),
        cmocka_unit_test(a_hang_lasts_until_the_faults_are_replaced),
        cmocka_unit_test(a_malformed_environment_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
