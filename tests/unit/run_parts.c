// The parts of zero-run that need no ranks: last lines, metrics, the kernel's counters, and whom
// the guardian ends.
#include "tests/unit/temporary.h"
#include "tools/zero-run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary dir;

static int make_directory(void **state)
{
    (void)state;
    return temporary_make(&dir) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    temporary_remove(&dir);
    return 0;
}

static void write_file(const char *name, const char *text)
{
    assert_true(temporary_write(&dir, name, text));
}

static char *read_file(const char *name)
{
    static char text[65536];
    FILE *file = fopen(temporary_path(&dir, name), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* ------------------------------------------------------------------ tail.c */

static void expect_line(const struct run_tail *tail, int i, const char *text)
{
    const struct run_tail_line *line = run_tail_line(tail, i);
    assert_non_null(line);
    assert_int_equal(line->used, strlen(text));
    assert_memory_equal(line->text, text, strlen(text));
}

static void the_last_lines_are_kept(void **state)
{
    (void)state;
    static struct run_tail tail;
    assert_null(run_tail_line(&tail, 0));
    run_tail_add(&tail, 0, "one\ntw", 6, 0, 1);
    run_tail_add(&tail, 1, "wrong", 5, 1, 1);
    run_tail_add(&tail, 0, "o\n\n", 3, 0, 3);
    expect_line(&tail, 0, "one");
    expect_line(&tail, 1, "two");
    expect_line(&tail, 2, "");
    assert_null(run_tail_line(&tail, 3));
    run_tail_end(&tail, 0, 0, 3); // nothing is open there
    run_tail_end(&tail, 1, 1, 4);
    expect_line(&tail, 3, "wrong");
    assert_int_equal(run_tail_line(&tail, 3)->sink, 1);
    assert_int_equal(run_tail_line(&tail, 3)->place, 4);

    for (int i = 0; i < 25; i++) {
        char text[16];
        snprintf(text, sizeof text, "line %d\n", i);
        run_tail_add(&tail, i % 2, text, strlen(text), 0, 0);
    }
    expect_line(&tail, 0, "line 15");
    expect_line(&tail, 9, "line 24");
    assert_null(run_tail_line(&tail, 10));
}

static void long_lines_are_cut(void **state)
{
    (void)state;
    static struct run_tail tail;
    char text[RUN_TAIL_BYTES + 10];
    memset(text, 'x', sizeof text);
    run_tail_add(&tail, 0, text, RUN_TAIL_BYTES, 0, 0);
    run_tail_add(&tail, 0, "\n", 1, 0, 0);
    run_tail_add(&tail, 0, text, RUN_TAIL_BYTES - 1, 0, 0);
    run_tail_add(&tail, 0, text, 2, 0, 0);
    run_tail_add(&tail, 0, text, sizeof text, 0, 0);
    run_tail_add(&tail, 0, "\nshort\n", 7, 0, 0);
    assert_int_equal(run_tail_line(&tail, 0)->used, RUN_TAIL_BYTES);
    assert_false(run_tail_line(&tail, 0)->cut);
    assert_int_equal(run_tail_line(&tail, 1)->used, RUN_TAIL_BYTES);
    assert_true(run_tail_line(&tail, 1)->cut);
    assert_false(run_tail_line(&tail, 2)->cut);
    expect_line(&tail, 2, "short");
}

/* ------------------------------------------------------------------ run_metrics.c */

static const struct run_metrics no_metrics = {.file = -1, .input = -1, .output = -1};

// Writes into the pipe as rank 0 does, and takes it out again.
static void pump(struct run_metrics *metrics, const char *text)
{
    assert_int_equal(write(metrics->output, text, strlen(text)), strlen(text));
    run_metrics_read(metrics);
}

static void metrics_are_written_in_whole_lines(void **state)
{
    (void)state;
    struct run_metrics metrics = no_metrics;
    struct base_error error = {.result = ZERO_OK};
    write_file("metrics", "of an earlier job\n");
    assert_int_equal(run_metrics_open(&metrics, temporary_path(&dir, "metrics"), &error), ZERO_OK);
    pump(&metrics, "{1}\n{2");
    assert_string_equal(read_file("metrics"), "{1}\n");
    run_metrics_read(&metrics); // nothing there
    pump(&metrics, "}\n{3}\n{4}");
    assert_string_equal(read_file("metrics"), "{1}\n{2}\n{3}\n");
    close(metrics.output);
    metrics.output = -1;
    run_metrics_read(&metrics);
    assert_int_equal(metrics.input, -1);
    run_metrics_close(&metrics);
    assert_string_equal(read_file("metrics"), "{1}\n{2}\n{3}\n{4}\n");
    assert_int_equal(metrics.failed, 0);
    assert_int_equal(run_metrics_open(&metrics, "/nonexistent/file", &error), ZERO_NOT_FOUND);
    run_metrics_close(&metrics);
}

// The file may grow to so many bytes only: what no longer fits is not there in part.
static void a_full_disk_leaves_whole_metrics(void **state)
{
    (void)state;
    struct rlimit before, small = {.rlim_cur = 10, .rlim_max = RLIM_INFINITY};
    struct run_metrics metrics = no_metrics;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(run_metrics_open(&metrics, temporary_path(&dir, "full"), &error), ZERO_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pump(&metrics, "{1}\n");
    pump(&metrics, "{2}\n{33333}\n{4}\n");
    pump(&metrics, "{5}\n"); // is still taken, so that rank 0 doesn't wait
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(metrics.failed, EFBIG);
    run_metrics_close(&metrics);
    assert_string_equal(read_file("full"), "{1}\n{2}\n");
    signal(SIGXFSZ, SIG_DFL);
}

/* ------------------------------------------------------------------ run_report.c */

static void ends_have_words_and_a_status(void **state)
{
    (void)state;
    static const struct {
        int code, status;
        const char *words;
        int exit_status;
    } ends[] = {{CLD_EXITED, 0, "exit code 0", 0},
                {CLD_EXITED, 255, "exit code 255", 255},
                {CLD_KILLED, SIGKILL, "signal SIGKILL", 137},
                {CLD_DUMPED, SIGSEGV, "signal SIGSEGV, core dumped", 139},
                {CLD_KILLED, 50, "signal 50", 178}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char text[64];
        const siginfo_t end = {.si_code = ends[i].code, .si_status = ends[i].status};
        run_describe_end(&end, text, sizeof text);
        assert_string_equal(text, ends[i].words);
        assert_int_equal(run_end_status(&end), ends[i].exit_status);
    }
}

/* ------------------------------------------------------------------ oom.c */

static void make_directories(const char *const *names)
{
    for (; *names; names++)
        assert_true(temporary_folder(&dir, *names));
}

static void kills_of_the_control_group_are_counted(void **state)
{
    (void)state;
    struct run_oom oom;
    static const char *const directories[] = {
        "proc", "proc/self", "sys",         "sys/fs", "sys/fs/cgroup", "sys/fs/cgroup/job",
        "old",  "old/mem",   "old/mem/sub", NULL};
    make_directories(directories);
    run_oom_begin(&oom, dir.directory); // nothing at all
    assert_int_equal(run_oom_check(&oom), RUN_OOM_UNKNOWN);

    write_file("proc/vmstat", "nr_free_pages 1\noom_kill 7\noom_kill_x 9\n");
    run_oom_begin(&oom, dir.directory);
    assert_int_equal(run_oom_check(&oom), RUN_OOM_NOT);
    write_file("proc/vmstat", "nr_free_pages 1\noom_kill 8\n");
    assert_int_equal(run_oom_check(&oom), RUN_OOM_HOST);
    assert_int_equal(run_oom_check(&oom), RUN_OOM_NOT);

    // Version 2.
    write_file("proc/self/mountinfo",
               "22 1 0:20 / /proc rw,nosuid shared:1 - proc proc rw\n"
               "30 22 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    write_file("proc/self/cgroup", "0::/job\n");
    write_file("sys/fs/cgroup/job/memory.events", "low 0\noom 3\noom_kill 3\noom_group_kill 0\n");
    run_oom_begin(&oom, dir.directory);
    assert_int_equal(run_oom_check(&oom), RUN_OOM_NOT);
    write_file("sys/fs/cgroup/job/memory.events", "low 0\noom 4\noom_kill 5\noom_group_kill 1\n");
    assert_int_equal(run_oom_check(&oom), RUN_OOM_GROUP);
    assert_int_equal(unlink(oom.path), 0);
    assert_int_equal(run_oom_check(&oom), RUN_OOM_UNKNOWN);

    // In a container the mount shows the group itself.
    write_file("proc/self/mountinfo",
               "30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    write_file("proc/self/cgroup", "0::/docker/abc\n");
    write_file("sys/fs/cgroup/memory.events", "oom_kill 0\n");
    run_oom_begin(&oom, dir.directory);
    assert_true(oom.group);
    write_file("sys/fs/cgroup/memory.events", "oom_kill 1\n");
    assert_int_equal(run_oom_check(&oom), RUN_OOM_GROUP);
    assert_int_equal(unlink(oom.path), 0);

    // Version 1, beside a version 2 without memory.
    write_file("proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
                                      "31 22 0:27 / /old/cpu ro - cgroup cgroup rw,cpu\n"
                                      "32 22 0:28 / /old/mem ro - cgroup cgroup rw,memory\n");
    write_file("proc/self/cgroup", "4:cpu,cpuacct:/\n3:hugetlb,memory:/sub\n0::/\n");
    write_file("old/mem/sub/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    run_oom_begin(&oom, dir.directory);
    assert_true(oom.group);
    assert_int_equal(run_oom_check(&oom), RUN_OOM_NOT);
    write_file("old/mem/sub/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    assert_int_equal(run_oom_check(&oom), RUN_OOM_GROUP);

    // Nonsense is no counter.
    write_file("proc/self/mountinfo", "- - -\n\n30 - cgroup2\n - cgroup2 x y\n");
    write_file("proc/self/cgroup", "::\n0\n:\n\n0::");
    run_oom_begin(&oom, dir.directory);
    assert_false(oom.group);
}

/* ------------------------------------------------------------------ guardian.c */

static uint64_t ticks_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 100 + (uint64_t)now.tv_nsec / 10000000;
}

// A child with a process group of its own, that waits; with a variable in its environment.
static pid_t start_child(const char *variable)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        char *const arguments[] = {"sleep", "30", NULL};
        char *const environment[] = {"PATH=/bin:/usr/bin", (char *)(uintptr_t)variable, NULL};
        execvpe("sleep", arguments, environment);
        _exit(99);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); // it has become sleep
    close(ends[0]);
    return pid;
}

static bool is_running(pid_t pid)
{
    usleep(20000);
    return waitpid(pid, NULL, WNOHANG) == 0;
}

// By itself it would end in half a minute, and with 0.
static bool was_killed(pid_t pid)
{
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void only_the_groups_own_number_is_killed(void **state)
{
    (void)state;
    assert_int_equal(sysconf(_SC_CLK_TCK), 100);
    const uint64_t before = ticks_now();
    const pid_t pid = start_child("A=b"), other = start_child("A=b");
    run_guardian_kill_group(pid, before); // the process with that number has got it since
    assert_true(is_running(pid));
    run_guardian_kill_group(other, before + 10000);
    assert_true(was_killed(other));
    assert_true(is_running(pid));
    run_guardian_kill_group(pid, before + 10000);
    assert_true(was_killed(pid));
}

static void only_the_jobs_processes_are_killed(void **state)
{
    (void)state;
    const char *token = "0123456789abcdef0123456789abcdef";
    const pid_t ours = start_child("ZERO_JOB=0123456789abcdef0123456789abcdef");
    const pid_t others[] = {start_child("ZERO_JOB=0123456789abcdef0123456789abcdee"),
                            start_child("ZERO_JOB=0123456789abcdef0123456789abcdef0"),
                            start_child("B=ZERO_JOB=0123456789abcdef0123456789abcdef"),
                            start_child("C=d")};
    assert_true(run_guardian_kill_job(token, -1) >= 1); // more often if it takes its time to die
    assert_true(was_killed(ours));
    assert_int_equal(run_guardian_kill_job(token, -1), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(is_running(others[i]));
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
}

static void a_guardian_ends_what_it_was_told_of(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    struct run_guardian guardian;
    const pid_t told = start_child("A=b"), not_told = start_child("A=b");
    const int pidfd = pidfd_open(told, 0);
    assert_true(pidfd >= 0);
    assert_int_equal(run_guardian_start(&guardian, "none", -1, &error), ZERO_OK);
    assert_true(run_guardian_tell(&guardian, pidfd, told));
    const pid_t pid = guardian.pid;
    close(guardian.socket); // as zero-run's end does
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(was_killed(told));
    assert_true(is_running(not_told));

    // One that is told to end does so without harm.
    assert_int_equal(run_guardian_start(&guardian, "none", -1, &error), ZERO_OK);
    const int other = pidfd_open(not_told, 0);
    assert_true(run_guardian_tell(&guardian, other, not_told));
    run_guardian_end(&guardian);
    assert_int_equal(guardian.pid, 0);
    run_guardian_end(&guardian);
    assert_true(is_running(not_told));
    kill(not_told, SIGKILL);
    waitpid(not_told, NULL, 0);
    close(pidfd);
    close(other);
}

// Not at all at first, then for longer and longer, at most a minute.
static void waits_grow_up_to_a_minute(void **state)
{
    (void)state;
    static const int waits[] = {0, 0, 3, 6, 12, 24, 48, 60, 60};
    for (int idle = 0; idle < 9; idle++) {
        assert_int_equal(run_restart_wait_s(3, idle), waits[idle]);
        assert_int_equal(run_restart_wait_s(0, idle), 0);
        assert_int_equal(run_restart_wait_s(365 * 86400, idle), idle < 2 ? 0 : 60);
    }
    assert_int_equal(run_restart_wait_s(1, 10000), 60);
}

/* ------------------------------------------------------------------ rank_threads.c */

static void cores_are_shared_by_ranks(void **state)
{
    (void)state;
    static const struct {
        struct run_cores cores;
        int ranks, threads;
    } cases[] = {
        {{32, 0}, 1, 32}, {{32, 0}, 2, 16}, {{32, 0}, 5, 6},    {{3, 0}, 4, 1},  {{1, 0}, 64, 1},
        {{64, 8}, 2, 4},  {{64, 8}, 16, 1}, {{64, 100}, 4, 16}, {{96, 1}, 1, 1},
    };
    unsetenv("OMP_NUM_THREADS");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(run_threads_of(&cases[i].cores, NULL, cases[i].ranks, 0),
                         cases[i].threads);
    setenv("OMP_NUM_THREADS", "", 1); // it is the user's also without a value
    assert_int_equal(run_threads_of(&cases[0].cores, NULL, 1, 0), 0);
    unsetenv("OMP_NUM_THREADS");
    struct run_cores own;
    run_threads_count(&own);
    assert_true(own.count >= 1 && own.count <= sysconf(_SC_NPROCESSORS_CONF) && own.quota >= 0);
}

/* ------------------------------------------------------------------ merge_warnings.c */

enum { GIVERS = 3 };

static struct run_sink sink;

// What the sink has got, since the last time.
static const char *taken(void)
{
    static char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)sink.used, sink.bytes ? sink.bytes + sink.start : "");
    run_sink_free(&sink);
    sink = (struct run_sink){.fd = -1};
    return text;
}

static bool give(struct run_join *join, int rank, const char *text)
{
    static struct run_stream streams[GIVERS];
    char line[128];
    streams[rank] = (struct run_stream){.rank = rank, .sink = &sink, .prefix = "[1] "};
    streams[rank].prefix[1] = (char)('0' + rank);
    snprintf(line, sizeof line, "zero[%d] %s\n", rank, text);
    return run_join_take(join, &streams[rank], line, strlen(line));
}

static void equal_warnings_wait_for_each_other(void **state)
{
    (void)state;
    struct run_join join = {.ranks = GIVERS};
    sink = (struct run_sink){.fd = -1};
    assert_true(run_join_due(&join) == UINT64_MAX);
    assert_false(give(&join, 0, "info core: a"));
    assert_true(give(&join, 0, "warn core: a"));
    assert_true(give(&join, 2, "warn core: b"));
    assert_true(give(&join, 1, "warn core: a"));
    assert_string_equal(taken(), "");
    assert_true(give(&join, 2, "warn core: a")); // the last one
    assert_string_equal(taken(), "[0-2] zero warn core: a (3 ranks)\n");
    run_join_show(&join, run_join_due(&join) - 1);
    assert_string_equal(taken(), "");
    run_join_show(&join, run_join_due(&join));
    assert_string_equal(taken(), "[2] zero[2] warn core: b\n");
    assert_true(run_join_due(&join) == UINT64_MAX);
    // Once more from the same rank is another one.
    assert_true(give(&join, 0, "warn core: a"));
    assert_true(give(&join, 2, "warn core: a"));
    assert_true(give(&join, 2, "warn core: a"));
    assert_string_equal(taken(), "[0,2] zero warn core: a (2 ranks)\n");
    run_join_show(&join, UINT64_MAX);
    assert_string_equal(taken(), "[2] zero[2] warn core: a\n");
    // With too many at a time the oldest does not wait any longer.
    for (int i = 0; i <= RUN_JOIN_WARNINGS; i++) {
        char text[32];
        snprintf(text, sizeof text, "warn core: %d", i);
        assert_true(give(&join, 1, text));
    }
    assert_string_equal(taken(), "[1] zero[1] warn core: 0\n");
    run_join_show(&join, UINT64_MAX);
    assert_int_equal(strncmp(taken(), "[1] zero[1] warn core: 1\n[1] zero[1] warn core: 2\n", 50),
                     0);
}

// Lines of three ranks, "b" of one of them behind the others.
static void equal_errors_wait_after_a_death(void **state)
{
    (void)state;
    struct run_join join = {.ranks = GIVERS};
    struct run_stream stream = {.rank = 1, .sink = &sink, .prefix = "[1] "};
    sink = (struct run_sink){.fd = -1};
    assert_false(run_join_take(&join, &stream, "a\n", 2));
    join.errors = true;
    assert_true(run_join_take(&join, &stream, "a\n", 2));
    assert_true(give(&join, 2, "warn core: w"));
    run_join_show_warnings(&join);
    assert_string_equal(taken(), "[2] zero[2] warn core: w\n");
    stream.rank = 0;
    assert_true(run_join_take(&join, &stream, "a\n", 2));
    assert_false(run_join_take(&join, &stream, "b", 1));
    assert_string_equal(taken(), "[0-1] a (2 ranks)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_lines_are_kept),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(metrics_are_written_in_whole_lines),
        cmocka_unit_test(a_full_disk_leaves_whole_metrics),
        cmocka_unit_test(ends_have_words_and_a_status),
        cmocka_unit_test(kills_of_the_control_group_are_counted),
        cmocka_unit_test(only_the_groups_own_number_is_killed),
        cmocka_unit_test(only_the_jobs_processes_are_killed),
        cmocka_unit_test(a_guardian_ends_what_it_was_told_of),
        cmocka_unit_test(waits_grow_up_to_a_minute),
        cmocka_unit_test(cores_are_shared_by_ranks),
        cmocka_unit_test(equal_warnings_wait_for_each_other),
        cmocka_unit_test(equal_errors_wait_after_a_death),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
