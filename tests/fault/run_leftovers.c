// What is left of a job after whatever end: nothing. Suspending it, and signals that don't end it.
#include "base/clock.h"
#include "tests/ranks/run_command.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

// Everything the tests start has the directory in its environment; the tests themselves don't.
static bool is_marked(pid_t pid)
{
    const char *mark = run_directory.directory;
    static char bytes[65536];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return memmem(bytes, count, mark, strlen(mark)) != NULL;
}

static int count_marked(void)
{
    int count = 0;
    DIR *directory = opendir("/proc");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        const int pid = atoi(entry->d_name);
        count += pid > 0 && pid != getpid() && is_marked(pid);
    }
    closedir(directory);
    return count;
}

static void expect_nothing_left(void)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    int count;
    while ((count = count_marked()) > 0) {
        if (base_clock_s() > deadline)
            fail_msg("%d processes are left", count);
        usleep(5000);
    }
}

static pid_t find_guardian(pid_t zero_run)
{
    char path[64], name[64];
    int pid, found = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)zero_run, (int)zero_run);
    FILE *children = fopen(path, "r");
    assert_non_null(children);
    while (fscanf(children, "%d", &pid) == 1 && !found) {
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file) && !strcmp(name, "zero-run-guard\n"))
            found = pid;
        if (file)
            fclose(file);
    }
    fclose(children);
    assert_true(found > 0);
    return found;
}

// Each rank leaves behind: a child that ignores everything, one in a session of its own, one that
// has lost its parent there, and one that has no environment. $$ of the rank is told last.
static const char family[] =
    "trap '' TERM HUP INT QUIT; sleep 60 & setsid sleep 60 & (setsid sh -c 'sleep 60 & sleep 60' "
    "&);"
    " env -i /bin/sh -c 'trap \"\" TERM; sleep 60; :' & echo $! > $D/bare$RANK; ";

static void expect_family_gone(void)
{
    run_expect_gone(run_await_pid("bare0"));
    run_expect_gone(run_await_pid("bare1"));
    expect_nothing_left();
    unlink(temporary_path(&run_directory, "bare0"));
    unlink(temporary_path(&run_directory, "bare1"));
    unlink(temporary_path(&run_directory, "a0"));
    unlink(temporary_path(&run_directory, "a1"));
}

static bool is_written(const char *name)
{
    struct stat file;
    return stat(temporary_path(&run_directory, name), &file) == 0 && file.st_size > 0;
}

static void run_family(struct run_command *run, const char *end, const char *const *options)
{
    char script[1024];
    snprintf(script, sizeof script, "%s echo $$ > $D/a$RANK; %s", family, end);
    run_script_start(run, options, script);
}
#define RUN_FAMILY(run, end, ...) run_family((run), (end), (const char *const[]){__VA_ARGS__, NULL})

static void a_normal_end_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    RUN_FAMILY(&run, "exit 0", "-n", "2");
    run_await_pid("a0");
    run_command_finish(&run);
    assert_int_equal(run.status, 0);
    // Not even for a moment.
    assert_int_equal(count_marked(), 0);
    expect_family_gone();
    run_command_free(&run);
}

static void no_guardian_stays(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, "echo $$ > $D/a$RANK; until [ -e $D/go ]; do sleep 0.02; done", "-n", "2");
    run_await_pid("a0");
    const pid_t guardian = find_guardian(run.pid);
    run_give_sign("go");
    run_command_finish(&run);
    assert_int_equal(run.status, 0);
    assert_false(run_command_alive(guardian));
    run_command_free(&run);
    unlink(temporary_path(&run_directory, "go"));
    unlink(temporary_path(&run_directory, "a0"));
    unlink(temporary_path(&run_directory, "a1"));
}

static void a_failure_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    RUN_FAMILY(&run,
               "[ $RANK = 1 ] && { until [ -s $D/a0 ]; do sleep 0.02; done; exit 3; }; while :; do "
               "sleep 0.05; done",
               "-n", "2", "--grace", "1");
    run_command_finish(&run);
    assert_int_equal(run.status, 3);
    assert_int_equal(count_marked(), 0);
    expect_family_gone();
    run_command_free(&run);
}

static void a_timeout_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    int seconds = 1;
    do {
        char timeout[16];
        snprintf(timeout, sizeof timeout, "%d", seconds);
        RUN_FAMILY(&run, "while :; do sleep 0.05; done", "-n", "2", "--timeout", timeout, "--grace",
                   "0");
        run_command_finish(&run);
        assert_int_equal(run.status, 75);
        assert_true(run.seconds > seconds - 0.1);
        assert_int_equal(count_marked(), 0);
        run_command_free(&run);
        seconds *= 2;
    } while (!is_written("a0") || !is_written("a1")); // too short for the families to be there
    expect_family_gone();
}

static void zero_runs_own_death_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    RUN_FAMILY(&run, "while :; do sleep 0.05; done", "-n", "2");
    run_await_pid("a0");
    run_await_pid("a1");
    const pid_t guardian = find_guardian(run.pid);
    assert_true(getsid(guardian) == guardian);
    kill(run.pid, SIGKILL);
    run_command_finish(&run);
    assert_int_equal(run.status, 137);
    run_expect_gone(guardian);
    expect_family_gone();
    run_command_free(&run);
}

// Each start takes its own with it, and so does zero-run's death in a later one, or between two.
static void restarts_leave_nothing(void **state)
{
    (void)state;
    struct run_command run;
    char script[1200];
    snprintf(script, sizeof script,
             "[ $ZERO_RESTARTS -gt 0 ] && kill -0 $(cat $D/bare$RANK) && exit 64; %s "
             "echo $$ > $D/a$RANK; until [ -s $D/a0 ] && [ -s $D/a1 ]; do sleep 0.02; done; "
             "rm -f $D/a$RANK; exit $((2 - ZERO_RESTARTS + 1))",
             family);
    RUN_SCRIPT(&run, script, "-n", "2", "--max-restarts", "1", "--grace", "1");
    if (run.status != 2)
        fail_msg("status %d: %s", run.status, run.err);
    assert_int_equal(count_marked(), 0);
    expect_family_gone();
    run_command_free(&run);

    // Killed in the second start, and while it waits for the third.
    static const char *const last[] = {"sleep 60", "exit 3"};
    for (int i = 0; i < 2; i++) {
        snprintf(script, sizeof script,
                 "setsid sleep 60 & [ $ZERO_RESTARTS = 0 ] && exit 3; echo $$ > $D/a$RANK; %s",
                 last[i]);
        START_SCRIPT(&run, script, "-n", "1", "--max-restarts", "2", "--backoff", "30");
        run_await_pid("a0");
        usleep(100000);
        kill(run.pid, SIGKILL);
        run_command_finish(&run);
        expect_nothing_left();
        unlink(temporary_path(&run_directory, "a0"));
        run_command_free(&run);
    }
}

// Whether ranks run, end, are awaited or about to be started again.
static void a_restarting_job_stops_at_any_time(void **state)
{
    (void)state;
    struct run_command run;
    unsigned seed = 54321;
    for (int i = 0; i < 20; i++) {
        START_SCRIPT(&run, "setsid sleep 60 & exit 3", "-n", "2", "--max-restarts", "10000",
                     "--backoff", "0");
        seed = seed * 1103515245 + 12345;
        usleep(20000 + (seed >> 16 & 0x7fff));
        kill(run.pid, SIGTERM);
        run_command_finish(&run);
        assert_true(run.status == 3 || run.status == 128 + SIGTERM);
        assert_int_equal(count_marked(), 0);
        run_command_free(&run);
    }
}

// Also while it is still starting them, and when everything of its own is killed with it.
static void a_death_at_any_time_leaves_nothing(void **state)
{
    (void)state;
    struct run_command run;
    unsigned seed = 12345;
    for (int i = 0; i < 40; i++) {
        START_SCRIPT(&run, "setsid sleep 60 & trap '' TERM; sleep 60 & wait", "-n", "3");
        seed = seed * 1103515245 + 12345;
        usleep(seed >> 16 & 0x7fff);
        kill(run.pid, SIGKILL);
        run_command_finish(&run);
        expect_nothing_left();
        run_command_free(&run);
    }
}

static void an_inner_job_ends_with_the_outer_one(void **state)
{
    (void)state;
    struct run_command run;
    char script[512];
    snprintf(script, sizeof script,
             "exec %s -n 2 -- sh -c 'setsid sleep 60 & echo $$ > $D/a$RANK; sleep 60'",
             run_command_path);
    static const int signals[] = {SIGKILL, SIGTERM};
    for (int i = 0; i < 2; i++) {
        START_SCRIPT(&run, script, "-n", "1");
        run_await_pid("a0");
        run_await_pid("a1");
        kill(run.pid, signals[i]);
        run_command_finish(&run);
        assert_int_equal(run.status, 128 + signals[i]);
        expect_nothing_left();
        unlink(temporary_path(&run_directory, "a0"));
        unlink(temporary_path(&run_directory, "a1"));
        run_command_free(&run);
    }
}

static void a_rank_that_leaves_its_group_ends(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "[ $RANK = 1 ] && exec perl -e '$SIG{TERM} = \"IGNORE\"; "
               "setpgrp(0, getpgrp(getppid())) or die; open(F, \">$ENV{D}/left\"); "
               "print F \"$$\\n\"; close F; sleep 60'; "
               "until [ -s $D/left ]; do sleep 0.02; done; exit 3",
               "-n", "2", "--grace", "1");
    assert_int_equal(run.status, 3);
    assert_true(run.seconds > 0.9);
    run_command_free(&run);
    expect_nothing_left();
}

static void a_killed_guardian_is_missed(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, "echo $$ > $D/a$RANK; until [ -e $D/go ]; do sleep 0.02; done", "-n", "2");
    run_await_pid("a0");
    run_await_pid("a1");
    kill(find_guardian(run.pid), SIGKILL);
    run_await_error(&run, "zero-run: the guardian process has been killed");
    run_give_sign("go");
    run_command_finish(&run);
    run_command_expect_line(&run, 0, "zero-run: the guardian process has been killed", NULL);
    expect_nothing_left();
    unlink(temporary_path(&run_directory, "go"));
}

/* ------------------------------------------------------------------ terminals */

// Starts zero-run as the foreground job of a terminal of its own; *master is its other end.
static pid_t start_on_terminal(int *master, const char *const *arguments)
{
    char name[64];
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*master >= 0);
    assert_int_equal(grantpt(*master), 0);
    assert_int_equal(unlockpt(*master), 0);
    assert_int_equal(ptsname_r(*master, name, sizeof name), 0);
    unlink(temporary_path(&run_directory, "a0"));
    unlink(temporary_path(&run_directory, "a1"));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    setsid();
    const int terminal = open(name, O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(terminal, fd);
    closefrom(3);
    ioctl(0, TIOCSCTTY, 0);
    execv(arguments[0], (char *const *)(uintptr_t)arguments);
    _exit(99);
}

static int await_status(pid_t pid)
{
    int status = 0;
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (base_clock_s() > deadline) {
            kill(pid, SIGKILL);
            fail_msg("zero-run did not end");
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_closed_terminal_leaves_nothing(void **state)
{
    (void)state;
    int master;
    static const char *const scripts[] = {
        "echo $$ > $D/a$RANK; sleep 60",                          // waits
        "echo $$ > $D/a$RANK; while :; do echo x; done",          // writes
        "trap '' HUP TERM; echo $$ > $D/a$RANK; sleep 60 & wait", // doesn't want to
    };
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        const char *const arguments[] = {
            run_command_path, "-n", "2", "--grace", "1", "--", "sh", "-c", scripts[i], NULL};
        const pid_t pid = start_on_terminal(&master, arguments);
        run_await_pid("a0");
        run_await_pid("a1");
        close(master);
        const int status = await_status(pid);
        assert_true(status == 74 || status == 128 + SIGHUP || status == 128 + SIGKILL);
        expect_nothing_left();
    }
}

// The output goes elsewhere, and the ranks don't want to end.
static void a_hangup_is_an_end(void **state)
{
    (void)state;
    struct run_command run;
    unlink(temporary_path(&run_directory, "a0"));
    START_SCRIPT(&run, "trap '' HUP TERM; echo $$ > $D/a$RANK; sleep 60 & wait", "-n", "1",
                 "--grace", "1");
    run_await_pid("a0");
    kill(run.pid, SIGHUP);
    run_command_finish(&run);
    assert_int_equal(run.status, 137);
    assert_true(run.seconds > 0.9);
    run_command_free(&run);
    expect_nothing_left();
}

static void nohup_outlives_the_terminal(void **state)
{
    (void)state;
    int master;
    char script[512];
    snprintf(script, sizeof script,
             "trap '' HUP; exec %s -n 2 -- sh -c 'echo $$ > $D/a$RANK; "
             "until [ -e $D/closed ]; do sleep 0.02; done; echo x; sleep 0.1; echo y; "
             "echo $$ > $D/b$RANK'",
             run_command_path);
    const char *const arguments[] = {"/bin/sh", "-c", script, NULL};
    const pid_t pid = start_on_terminal(&master, arguments);
    run_await_pid("a0");
    run_await_pid("a1");
    close(master);
    run_give_sign("closed");
    run_await_pid("b0");
    run_await_pid("b1");
    assert_int_equal(await_status(pid), 74); // what they said is lost
    expect_nothing_left();
}

static size_t read_terminal(int master, char *text, size_t size)
{
    size_t used = 0;
    ssize_t count;
    while (used < size - 1 && (count = read(master, text + used, size - 1 - used)) > 0)
        used += (size_t)count;
    text[used] = '\0';
    return used;
}

static void prefixes_have_colours_on_a_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value, *color;
        bool colored;
    } cases[] = {{"TERM", "xterm", "auto", true},   {"TERM", "dumb", "auto", false},
                 {"TERM", "", "auto", false},       {"NO_COLOR", "1", "auto", false},
                 {"NO_COLOR", "1", "always", true}, {"TERM", "xterm", "never", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        int master;
        setenv("TERM", "xterm", 1);
        setenv(cases[i].variable, cases[i].value, 1);
        const char *const arguments[] = {run_command_path, "-n", "2",  "--color",
                                         cases[i].color,   "--", "sh", "-c",
                                         "echo line",      NULL};
        const pid_t pid = start_on_terminal(&master, arguments);
        read_terminal(master, text, sizeof text);
        assert_int_equal(await_status(pid), 0);
        close(master);
        unsetenv("NO_COLOR");
        if ((strstr(text, "\033[33m[1]\033[0m line") != NULL) != cases[i].colored ||
            (strstr(text, "\033[") != NULL) != cases[i].colored)
            fail_msg("%s=%s --color %s: %s", cases[i].variable, cases[i].value, cases[i].color,
                     text);
    }
    unsetenv("TERM");
}

/* ------------------------------------------------------------------ suspending */

// In a process group of its own, so that there is a process that could resume it: this test.
static pid_t start_in_group(const char *const *arguments)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        execv(run_command_path, (char *const *)(uintptr_t)arguments);
        _exit(99);
    }
    return pid;
}

static void await_stopped(pid_t pid, bool stopped)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while ((run_process_state(pid) == 'T') != stopped) {
        if (base_clock_s() > deadline)
            fail_msg("process %d is in state %c", (int)pid, run_process_state(pid));
        usleep(1000);
    }
}

// Writes to the reader of a pipe with a name.
static void write_line(const char *name)
{
    FILE *file = fopen(temporary_path(&run_directory, name), "w");
    assert_non_null(file);
    assert_true(fputs("\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void suspending_suspends_the_ranks(void **state)
{
    (void)state;
    unlink(temporary_path(&run_directory, "a0"));
    unlink(temporary_path(&run_directory, "a1"));
    assert_int_equal(mkfifo(temporary_path(&run_directory, "go0"), 0600), 0);
    assert_int_equal(mkfifo(temporary_path(&run_directory, "go1"), 0600), 0);
    // They ignore it, but are suspended; the time does not count.
    const char *const arguments[] = {run_command_path,
                                     "-n",
                                     "2",
                                     "--timeout",
                                     "6",
                                     "--",
                                     "sh",
                                     "-c",
                                     "trap '' TSTP; echo $$ > $D/a$RANK; read line < $D/go$RANK",
                                     NULL};
    const pid_t pid = start_in_group(arguments);
    const pid_t ranks[] = {run_await_pid("a0"), run_await_pid("a1")};
    for (int turn = 0; turn < 2; turn++) {
        kill(pid, SIGTSTP);
        await_stopped(pid, true);
        await_stopped(ranks[0], true);
        await_stopped(ranks[1], true);
        usleep(turn == 0 ? 6200000 : 100000);
        kill(pid, SIGCONT);
        await_stopped(pid, false);
        await_stopped(ranks[0], false);
        await_stopped(ranks[1], false);
    }
    write_line("go0");
    write_line("go1");
    assert_int_equal(await_status(pid), 0);
    expect_nothing_left();
}

static void a_suspended_rank_can_be_stopped(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "[ $RANK = 1 ] && { kill -STOP $$; sleep 60; }; sleep 0.2; exit 4", "-n", "2");
    assert_int_equal(run.status, 4); // in time: no need for SIGKILL
    run_command_free(&run);
    expect_nothing_left();
}

static void user_signals_are_passed_on(void **state)
{
    (void)state;
    struct run_command run;
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"CONT", SIGCONT}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char script[256];
        snprintf(script, sizeof script,
                 "trap 'n=x$n; echo got $n; [ $n = xx ] && exit 0' %s; echo $$ > $D/u%zu$RANK; "
                 "while :; do sleep 0.02 & wait; done",
                 signals[i].name, i);
        START_SCRIPT(&run, script, "-n", "2");
        for (int rank = 0; rank < 2; rank++) {
            char name[8];
            snprintf(name, sizeof name, "u%zu%d", i, rank);
            run_await_pid(name);
        }
        kill(run.pid, signals[i].number);
        run_await_output(&run, "[0] got x");
        run_await_output(&run, "[1] got x");
        kill(run.pid, signals[i].number); // the second is as the first
        run_command_finish(&run);
        assert_int_equal(run.status, 0);
        assert_int_equal(run_command_lines(run.out, "[0] got xx"), 1);
        assert_int_equal(run_command_lines(run.out, "[1] got x"), 1);
        assert_string_equal(run.err, "");
        run_command_free(&run);
    }
    expect_nothing_left();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_normal_end_leaves_nothing),
        cmocka_unit_test(no_guardian_stays),
        cmocka_unit_test(a_failure_leaves_nothing),
        cmocka_unit_test(a_timeout_leaves_nothing),
        cmocka_unit_test(zero_runs_own_death_leaves_nothing),
        cmocka_unit_test(restarts_leave_nothing),
        cmocka_unit_test(a_restarting_job_stops_at_any_time),
        cmocka_unit_test(a_death_at_any_time_leaves_nothing),
        cmocka_unit_test(an_inner_job_ends_with_the_outer_one),
        cmocka_unit_test(a_rank_that_leaves_its_group_ends),
        cmocka_unit_test(a_killed_guardian_is_missed),
        cmocka_unit_test(a_closed_terminal_leaves_nothing),
        cmocka_unit_test(a_hangup_is_an_end),
        cmocka_unit_test(nohup_outlives_the_terminal),
        cmocka_unit_test(prefixes_have_colours_on_a_terminal),
        cmocka_unit_test(suspending_suspends_the_ranks),
        cmocka_unit_test(a_suspended_rank_can_be_stopped),
        cmocka_unit_test(user_signals_are_passed_on),
    };
    if (argc != 2)
        return 2;
    run_command_path = argv[1];
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
