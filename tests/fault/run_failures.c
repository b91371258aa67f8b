// zero-run when something fails: who is named, what is passed on, what is left behind.
#include "base/clock.h"
#include "tests/ranks/run_command.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

// The command through a shell, which knows pipes and redirections: $0 is zero-run.
static void run_through_shell(struct run_command *run, const char *script)
{
    const char *zero_run = run_command_path;
    run_command_path = "/bin/sh";
    RUN(run, "-c", script, zero_run);
    run_command_path = zero_run;
}

static void exit_codes_are_passed_on(void **state)
{
    (void)state;
    struct run_command run;
    static const int codes[] = {1, 3, 66, 255};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char script[64], cause[64];
        snprintf(script, sizeof script, "[ $RANK = 1 ] && exit %d; exec sleep 30", codes[i]);
        snprintf(cause, sizeof cause, " failed first: exit code %d; stopping the others\n",
                 codes[i]);
        RUN_SCRIPT(&run, script, "-n", "3");
        run_command_expect_line(&run, codes[i], "zero-run: rank 1 (process ", cause);
    }
    RUN_SCRIPT(&run, "exit 7", "-n", "1");
    run_command_expect_line(&run, 7, "zero-run: rank 0 (process ", ") failed: exit code 7\n");
}

static void signals_are_named(void **state)
{
    (void)state;
    struct run_command run;
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"KILL", SIGKILL}, {"TERM", SIGTERM}, {"ABRT", SIGABRT}, {"FPE", SIGFPE}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char script[96], cause[64];
        snprintf(script, sizeof script, "ulimit -c 0; [ $RANK = 2 ] && kill -%s $$; exec sleep 30",
                 signals[i].name);
        snprintf(cause, sizeof cause, "failed first: signal SIG%s", signals[i].name);
        RUN_SCRIPT(&run, script, "-n", "3");
        run_command_expect_line(&run, 128 + signals[i].number, "zero-run: rank 2 (process ", cause);
    }
}

static double seconds_after_a_rank_was_killed(void)
{
    struct run_command run;
    START_SCRIPT(&run, "echo $$ > $D/k$RANK; exec sleep 30", "-n", "4");
    pid_t pids[4];
    for (int rank = 0; rank < 4; rank++) {
        char name[8];
        snprintf(name, sizeof name, "k%d", rank);
        pids[rank] = run_await_pid(name);
        unlink(temporary_path(&run_directory, name));
    }
    const double killed = base_clock_s();
    kill(pids[3], SIGKILL);
    run_command_finish(&run);
    const double seconds = base_clock_s() - killed;
    for (int rank = 0; rank < 4; rank++)
        assert_false(run_command_alive(pids[rank]));
    run_command_expect_line(&run, 137, "rank 3 (process ", "signal SIGKILL (");
    return seconds;
}

static void a_killed_rank_ends_the_job_within_a_second(void **state)
{
    (void)state;
    assert_true(run_fastest(seconds_after_a_rank_was_killed, 1) < 1);
}

static void the_first_failure_counts(void **state)
{
    (void)state;
    struct run_command run;
    // The others fail because they are stopped, with statuses of their own.
    RUN_SCRIPT(&run, "trap 'exit 9' TERM; [ $RANK = 2 ] && exit 5; sleep 30 & wait", "-n", "4");
    run_command_expect_line(&run, 5, "rank 2 (process ", "exit code 5");
}

static void last_words_come_before_the_report(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "[ $RANK = 1 ] && { printf 'last words' >&2; exit 4; }; exec sleep 30", "-n",
               "2");
    assert_int_equal(run.status, 4);
    assert_memory_equal(run.err, "[1] last words\nzero-run: rank 1", 31);
    run_command_free(&run);
}

// The last lines are repeated under the report where its reader doesn't see them anyway.
static void last_lines_are_repeated_if_out_of_sight(void **state)
{
    (void)state;
    struct run_command run;
    const char *fail = "[ $RANK = 1 ] && { for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; "
                       "done; exit 4; }; exec sleep 30";
    // Standard output is another file here.
    RUN_SCRIPT(&run, fail, "-n", "2");
    assert_int_equal(run.status, 4);
    const char *said = strstr(run.err, "stopping the other\nzero-run: the last lines of rank 1:\n"
                                       "zero-run: | line 3\nzero-run: | line 4\n");
    assert_non_null(said);
    assert_int_equal(run_command_lines(said, "zero-run: | line 12"), 1);
    assert_int_equal(run_command_lines(run.out, "[1] line 12"), 1);
    run_command_free(&run);

    // The same lines, right above the report.
    setenv("SCRIPT", fail, 1);
    run_through_shell(&run, "exec $0 -n 2 -- sh -c \"$SCRIPT\" 2>&1");
    assert_int_equal(run_command_lines(run.out, "[1] line 12"), 1);
    assert_null(strstr(run.out, "| line"));
    run_command_free(&run);
    unsetenv("SCRIPT");

    // Far above it, behind those of the other rank.
    START_SCRIPT(&run,
                 "if [ $RANK = 1 ]; then printf 'a\nb' >&2; echo >&2; "
                 "until [ -s $D/farther ]; do sleep 0.02; done; exit 4; fi; "
                 "until [ -s $D/far ]; do sleep 0.02; done; "
                 "for i in $(seq 30); do echo other $i >&2; done; exec sleep 30",
                 "-n", "2");
    run_await_error(&run, "[1] b\n");
    run_give_sign("far");
    run_await_error(&run, "[0] other 30\n");
    run_give_sign("farther");
    run_command_finish(&run);
    assert_int_equal(run.status, 4);
    assert_non_null(strstr(run.err, "stopping the other\nzero-run: the last lines of rank 1:\n"
                                    "zero-run: | a\nzero-run: | b\n"));
    run_command_free(&run);

    // One that says nothing has no last lines.
    RUN_SCRIPT(&run, "echo only; exit 4", "-n", "1");
    assert_int_equal(run_command_lines(run.out, "only"), 1);
    run_command_expect_line(&run, 4, "rank 0 (process ", "failed: exit code 4\n");
}

static void ranks_that_do_not_stop_are_killed(void **state)
{
    (void)state;
    struct run_command run;
    // Rank 0 fails only when the stop of rank 2 has been said: the order of the two is the test's.
    START_SCRIPT(&run,
                 "trap '' TERM; echo $$ > $D/s$RANK; [ $RANK = 2 ] && kill -STOP $$; "
                 "until [ -s $D/s1 ] && [ -s $D/said ]; do sleep 0.02; done; "
                 "[ $RANK = 0 ] && exit 6; while :; do sleep 0.1; done",
                 "-n", "3", "--grace", "1");
    run_await_error(&run, ") is stopped by SIGSTOP; ");
    run_give_sign("said");
    run_command_finish(&run);
    assert_true(run.seconds > 0.9);
    assert_int_equal(run.status, 6);
    // The stop is said, then the failure; that the stopped rank is woken to end is not.
    const char *second = strchr(run.err, '\n') + 1;
    assert_non_null(strstr(run.err, "rank 2 (process "));
    assert_non_null(strstr(run.err, ") is stopped by SIGSTOP; "));
    assert_int_equal(strncmp(second, "zero-run: rank 0 (process ", 26), 0);
    assert_string_equal(strchr(second, '\n'), "\n");
    run_command_free(&run);
    run_expect_gone(run_await_pid("s1"));
    run_expect_gone(run_await_pid("s2"));
}

static void signals_are_passed_on(void **state)
{
    (void)state;
    struct run_command run;
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        // A rank may take its time, and decides itself how it ends.
        char script[160], said[96];
        snprintf(script, sizeof script,
                 "trap 'sleep 0.1; echo bye; exit 0' %s; echo $$ > $D/p%zu$RANK; "
                 "while :; do sleep 0.02; done",
                 signals[i].name, i);
        snprintf(said, sizeof said,
                 "zero-run: SIG%s: passed on to the ranks (once more kills them)", signals[i].name);
        START_SCRIPT(&run, script, "-n", "2");
        for (int rank = 0; rank < 2; rank++) {
            char name[8];
            snprintf(name, sizeof name, "p%zu%d", i, rank);
            run_await_pid(name);
        }
        kill(run.pid, signals[i].number);
        run_command_finish(&run);
        assert_int_equal(run_command_lines(run.out, "[0] bye"), 1);
        assert_int_equal(run_command_lines(run.out, "[1] bye"), 1);
        assert_int_equal(run.status, 0);
        assert_int_equal(run_command_lines(run.err, said), 1);
        run_command_free(&run);
    }
}

static void a_signal_nobody_handles_ends_the_job(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, "echo $$ > $D/n$RANK; exec sleep 30", "-n", "2");
    run_await_pid("n0");
    run_await_pid("n1");
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 143);
    run_command_free(&run);
}

static double seconds_after_the_second_signal(void)
{
    struct run_command run;
    START_SCRIPT(&run,
                 "trap '' INT TERM; echo $$ > $D/t$RANK; "
                 "while :; do sleep 0.02; done",
                 "-n", "2");
    const pid_t pids[2] = {run_await_pid("t0"), run_await_pid("t1")};
    kill(run.pid, SIGINT);
    usleep(300000);
    assert_true(run_command_alive(pids[0]) && run_command_alive(pids[1]));
    const double second = base_clock_s();
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    const double seconds = base_clock_s() - second;
    assert_int_equal(run.status, 137);
    assert_null(strstr(run.err, "out of memory"));
    run_expect_gone(pids[0]);
    run_expect_gone(pids[1]);
    run_command_free(&run);
    unlink(temporary_path(&run_directory, "t0"));
    unlink(temporary_path(&run_directory, "t1"));
    return seconds;
}

static void the_second_signal_kills(void **state)
{
    (void)state;
    assert_true(run_fastest(seconds_after_the_second_signal, 1) < 1);
}

static void a_killed_zero_run_leaves_no_rank(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run,
                 "trap '' HUP TERM INT; echo $$ > $D/z$RANK; "
                 "while :; do sleep 0.02; done",
                 "-n", "3");
    const pid_t pids[3] = {run_await_pid("z0"), run_await_pid("z1"), run_await_pid("z2")};
    kill(run.pid, SIGKILL);
    run_command_finish(&run);
    assert_int_equal(run.status, 137);
    for (int rank = 0; rank < 3; rank++)
        run_expect_gone(pids[rank]);
    run_command_free(&run);
}

static void what_ranks_started_ends_with_the_job(void **state)
{
    (void)state;
    struct run_command run;
    // The children hold the pipes, and outlive the ranks.
    RUN_SCRIPT(
        &run, "sleep 30 & echo $! > $D/c$RANK; until [ -s $D/c0 ]; do sleep 0.02; done; exit $RANK",
        "-n", "2");
    assert_int_equal(run.status, 1);
    run_expect_gone(run_await_pid("c0"));
    run_expect_gone(run_await_pid("c1"));
    run_command_free(&run);
    RUN_SCRIPT(&run, "(trap '' TERM; sleep 30) & echo $! > $D/d$RANK; exit 0", "-n", "2");
    assert_int_equal(run.status, 0);
    run_expect_gone(run_await_pid("d0"));
    run_expect_gone(run_await_pid("d1"));
    run_command_free(&run);
}

static void the_job_ends_in_time(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "2", "--timeout", "1", "sleep", "30");
    assert_true(run.seconds > 0.9);
    run_command_expect_line(&run, 75, "the job has run for 1 s (--timeout)", NULL);
    RUN(&run, "-n", "2", "--timeout", "30", "true");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "");
    run_command_free(&run);
}

static void a_full_disk_under_the_logs_is_said(void **state)
{
    (void)state;
    struct run_command run;
    char log[128];
    snprintf(log, sizeof log, "%s/rank-0.log", run_directory.directory);
    assert_int_equal(symlink("/dev/full", log), 0);
    RUN_SCRIPT(&run, "echo one; sleep 0.05; echo two", "-n", "2", "--log-dir",
               run_directory.directory);
    assert_int_equal(run_command_lines(run.out, "[0] two"), 1);
    run_command_expect_line(&run, 74, "cannot write the log of rank 0: No space left on device",
                            "goes on");
    unlink(log);
}

static void a_full_disk_under_the_metrics_is_said(void **state)
{
    (void)state;
    struct run_command run;
    const char *script = "if [ $RANK = 0 ]; then for i in $(seq 2000); do "
                         "echo '{\"step\":1,\"loss\":3.14159265358979,\"norm\":1.0}'; done "
                         ">>/proc/self/fd/$ZERO_METRICS_FD; fi; echo done";
    // Said once; rank 0 doesn't notice.
    RUN_SCRIPT(&run, script, "-n", "2", "--metrics", "/dev/full");
    assert_int_equal(run_command_lines(run.out, "[0] done"), 1);
    run_command_expect_line(&run, 74, "cannot write the metrics: No space left on device",
                            "goes on");
    // A failure of a rank counts more.
    RUN_SCRIPT(&run, "echo x >>/proc/self/fd/${ZERO_METRICS_FD:-2}; sleep 0.1; exit 3", "-n", "1",
               "--metrics", "/dev/full");
    assert_int_equal(run.status, 3);
    run_command_free(&run);
}

static void a_full_disk_under_the_output_is_said(void **state)
{
    (void)state;
    struct run_command run;
    run_through_shell(&run, "exec $0 -n 2 -- sh -c 'echo x; echo $$ > $D/f$RANK' > /dev/full");
    run_command_expect_line(&run, 74, "cannot write to standard output: No space left on device",
                            "lost");
    run_expect_gone(run_await_pid("f0"));
    run_through_shell(&run, "exec $0 -n 2 -- sh -c 'echo x; exit 3' > /dev/full");
    assert_int_equal(run.status, 3);
    run_command_free(&run);
}

static void a_reader_that_leaves_ends_the_job(void **state)
{
    (void)state;
    struct run_command run;
    run_through_shell(&run, "{ $0 -n 2 -- yes; echo $? >&2; } | head -n 1");
    assert_true(!strcmp(run.out, "[0] y\n") || !strcmp(run.out, "[1] y\n"));
    assert_int_equal(run_command_lines(run.err, "74"), 1);
    assert_int_equal(run_command_lines(run.err, "zero-run: cannot write to standard output: Broken "
                                                "pipe (EPIPE); stopping the job"),
                     1);
    run_command_free(&run);
}

static long memory_kib(pid_t pid)
{
    char path[64], line[128];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %ld", &kib);
    if (file)
        fclose(file);
    return kib;
}

// Starts zero-run with two ranks and pipes whose other ends the test holds.
static pid_t start_unread(const char *script, int *out, int *err)
{
    int ends[2], errors[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(pipe2(errors, O_CLOEXEC), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(errors[1], STDERR_FILENO);
        execl(run_command_path, "zero-run", "-n", "2", "--", "sh", "-c", script, NULL);
        _exit(99);
    }
    close(ends[1]);
    close(errors[1]);
    *out = ends[0];
    *err = errors[0];
    return pid;
}

// No process reads the output, and it fills up: it isn't collected without end, and a failure is
// noticed and told all the same.
static void a_stalled_reader_does_not_hide_a_failure(void **state)
{
    (void)state;
    int out, err;
    char line[256] = "";
    const pid_t pid = start_unread("[ $RANK = 0 ] && exec yes; sleep 0.5; exit 3", &out, &err);
    alarm(RUN_PATIENCE_S);
    assert_true(read(err, line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "rank 1 (process "));
    // A sanitizer's own memory is part of it.
    assert_in_range(memory_kib(pid), 1, 20000);
    static char sink[1 << 16];
    while (read(out, sink, sizeof sink) > 0)
        ;
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 3);
    alarm(0);
    close(out);
    close(err);
}

// The ranks have ended, but what they wrote waits: one signal ends that, and it is no success.
static void a_signal_ends_the_wait_for_a_stalled_reader(void **state)
{
    (void)state;
    int out, err, status;
    char said[512] = "";
    size_t used = 0;
    const pid_t pid = start_unread("head -c 60000 /dev/zero; echo $$ > $D/w$RANK", &out, &err);
    alarm(RUN_PATIENCE_S);
    const pid_t ranks[] = {run_await_pid("w0"), run_await_pid("w1")};
    while (run_process_state(ranks[0]) != 'X' || run_process_state(ranks[1]) != 'X')
        usleep(1000); // zero-run has to see it too
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    alarm(0);
    assert_int_equal(WEXITSTATUS(status), 74);
    for (ssize_t got; (got = read(err, said + used, sizeof said - 1 - used)) > 0;)
        used += (size_t)got;
    assert_non_null(strstr(said, "cannot write to standard output: Interrupted system call"));
    close(out);
    close(err);
}

// Signals that it is not told of, descriptors that aren't there.
static void an_odd_start_does_no_harm(void **state)
{
    (void)state;
    struct run_command run;
    run_through_shell(&run, "trap '' CHLD; exec $0 -n 2 -- sh -c 'exit 3'");
    assert_int_equal(run.status, 3);
    run_command_free(&run);
    run_through_shell(&run, "exec $0 -n 2 -- sh -c 'echo x' <&- >&-");
    run_command_expect_line(&run, 74, "cannot write to standard output: Bad file descriptor", "");
    run_through_shell(&run, "exec $0 -n 2 --log-dir $D -- sh -c 'echo x' <&- >&- 2>&-");
    assert_int_equal(run.status, 74);
    run_command_free(&run);
    run_through_shell(&run, "cat $D/rank-0.log");
    assert_string_equal(run.out, "x\n");
    run_command_free(&run);
    run_through_shell(&run, "trap '' HUP; $0 -n 2 -- sh -c 'echo $$ > $D/o$RANK; "
                            "until [ -e $D/on ]; do sleep 0.02; done' & "
                            "until [ -s $D/o0 ] && [ -s $D/o1 ]; do sleep 0.02; done; "
                            "kill -HUP $!; sleep 0.1; kill -HUP $!; : > $D/on; wait $!");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "");
    run_command_free(&run);
}

static void a_start_that_fails_half_way_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    run_through_shell(&run, "ulimit -n 20; exec $0 -n 16 -- sh -c "
                            "'echo $$ > $D/h$RANK; exec sleep 30'");
    struct stat written;
    // Rank 0 may have been killed before it could write its number.
    if (stat(temporary_path(&run_directory, "h0"), &written) == 0 && written.st_size > 0)
        run_expect_gone(run_await_pid("h0"));
    run_command_expect_line(&run, 71, "zero-run: cannot ", "EMFILE");
}

// The output of those that were started is passed on, though there are fewer descriptors than the
// whole job has streams.
static void a_start_that_fails_late_ends(void **state)
{
    (void)state;
    struct run_command run;
    run_through_shell(&run, "ulimit -n 64; exec $0 -n 30 -- echo up");
    run_command_expect_line(&run, 71, "zero-run: cannot ", "EMFILE");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_are_passed_on),
        cmocka_unit_test(signals_are_named),
        cmocka_unit_test(a_killed_rank_ends_the_job_within_a_second),
        cmocka_unit_test(the_first_failure_counts),
        cmocka_unit_test(last_words_come_before_the_report),
        cmocka_unit_test(last_lines_are_repeated_if_out_of_sight),
        cmocka_unit_test(ranks_that_do_not_stop_are_killed),
        cmocka_unit_test(signals_are_passed_on),
        cmocka_unit_test(a_signal_nobody_handles_ends_the_job),
        cmocka_unit_test(the_second_signal_kills),
        cmocka_unit_test(a_killed_zero_run_leaves_no_rank),
        cmocka_unit_test(what_ranks_started_ends_with_the_job),
        cmocka_unit_test(the_job_ends_in_time),
        cmocka_unit_test(a_full_disk_under_the_logs_is_said),
        cmocka_unit_test(a_full_disk_under_the_metrics_is_said),
        cmocka_unit_test(a_full_disk_under_the_output_is_said),
        cmocka_unit_test(a_reader_that_leaves_ends_the_job),
        cmocka_unit_test(a_stalled_reader_does_not_hide_a_failure),
        cmocka_unit_test(a_signal_ends_the_wait_for_a_stalled_reader),
        cmocka_unit_test(an_odd_start_does_no_harm),
        cmocka_unit_test(a_start_that_fails_half_way_leaves_nothing),
        cmocka_unit_test(a_start_that_fails_late_ends),
    };
    if (argc != 2)
        return 2;
    run_command_path = argv[1];
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
