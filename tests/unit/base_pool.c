// base/pool.h: who runs what, that all of it happens, and what is left behind.
#include "base/arena.h"
#include "base/fault.h"
#include "base/pool.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_TASKS = 101 };

struct run {
    int count[MAX_TASKS];
    int thread[MAX_TASKS];
    pthread_t self[MAX_TASKS];
};

static void note(void *user, size_t index, int thread)
{
    struct run *run = user;
    run->count[index]++;
    run->thread[index] = thread;
    run->self[index] = pthread_self();
}

// The thread that runs task i, by the contract: tasks*t/n <= i < tasks*(t+1)/n.
static int expected_thread(size_t tasks, int threads, size_t i)
{
    int t = 0;
    while (i >= tasks * (size_t)(t + 1) / (size_t)threads)
        t++;
    return t;
}

static void check_run(struct base_pool *pool, int threads, size_t tasks)
{
    struct run run;
    memset(&run, 0, sizeof run);
    base_pool_run(pool, tasks, note, &run);
    for (size_t i = 0; i < tasks; i++) {
        assert_int_equal(run.count[i], 1);
        assert_int_equal(run.thread[i], expected_thread(tasks, threads, i));
        assert_true((run.thread[i] == 0) == !!pthread_equal(run.self[i], pthread_self()));
    }
    for (size_t i = tasks; i < MAX_TASKS; i++)
        assert_int_equal(run.count[i], 0);
}

static void every_task_runs_once_where_it_belongs(void **state)
{
    (void)state;
    static const size_t tasks[] = {0, 1, 2, 3, 4, 5, 7, 64, 100, MAX_TASKS};
    for (int threads = 1; threads <= 5; threads++) {
        struct base_pool *pool;
        assert_int_equal(base_pool_create(&pool, threads, NULL), ZERO_OK);
        assert_int_equal(base_pool_threads(pool), threads);
        for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
            check_run(pool, threads, tasks[i]);
        base_pool_destroy(pool);
    }
    assert_int_equal(base_pool_threads(NULL), 1);
    check_run(NULL, 1, 10);
    base_pool_destroy(NULL);
}

static void add_one(void *user, size_t index, int thread)
{
    (void)thread;
    ((uint64_t *)user)[index]++;
}

static void many_runs_see_each_other(void **state)
{
    (void)state;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(&pool, 3, NULL), ZERO_OK);
    uint64_t values[7] = {0};
    const uint64_t allocations = base_allocation_count();
    for (uint64_t i = 0; i < 5000; i++) {
        for (int k = 0; k < 7; k++)
            assert_int_equal(values[k], 2 * i);
        base_pool_run(pool, 7, add_one, values);
        for (int k = 0; k < 7; k++)
            values[k]++;
    }
    assert_int_equal(base_allocation_count(), allocations);
    base_pool_destroy(pool);
}

static void look_at_signals(void *user, size_t index, int thread)
{
    (void)index;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    ((int *)user)[thread] = sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGCHLD);
}

static void signals_are_the_callers(void **state)
{
    (void)state;
    struct base_pool *pool;
    int blocked[2] = {-1, -1};
    assert_int_equal(base_pool_create(&pool, 2, NULL), ZERO_OK);
    base_pool_run(pool, 2, look_at_signals, blocked);
    base_pool_destroy(pool);
    assert_int_equal(blocked[0], 0);
    assert_int_equal(blocked[1], 1);
}

static int count_threads(void)
{
    DIR *directory = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void a_failed_pool_leaves_nothing(void **state)
{
    (void)state;
    const int before = count_threads();
    static const int bad[] = {0, -1, 1025};
    struct base_pool *pool = (void *)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(base_pool_create(&pool, bad[i], NULL), ZERO_E_INVALID);
        assert_null(pool);
    }
    static const char *const faults[] = {"alloc@1", "thread@1", "thread@2", "thread@3"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct base_error error = {.result = ZERO_OK};
        assert_int_equal(base_fault_set(faults[i], NULL), ZERO_OK);
        assert_int_equal(base_pool_create(&pool, 4, &error), ZERO_E_NOMEM);
        assert_null(pool);
        assert_true(error.message[0] != '\0');
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    // A joined thread leaves the list a moment later.
    for (int i = 0; i < 20000 && count_threads() != before; i++)
        usleep(1000);
    assert_int_equal(count_threads(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_where_it_belongs),
        cmocka_unit_test(many_runs_see_each_other),
        cmocka_unit_test(signals_are_the_callers),
        cmocka_unit_test(a_failed_pool_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
