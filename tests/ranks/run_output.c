// What zero-run shows of its ranks, and when; the files it writes; limits, and ranks that are
// stopped.
#include "tests/ranks/run_command.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

static const char *rank_path;

static void expect_part(const struct run_command *run, const char *part)
{
    if (!strstr(run->err, part))
        fail_msg("\"%s\" is not in: %s", part, run->err);
}

static int count_parts(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        count++;
    return count;
}

/** Runs a script that starts zero-run as "$Z", without another one around it. */
static void run_shell(struct run_command *command, const char *script)
{
    const char *path = run_command_path;
    run_command_path = "/bin/sh";
    RUN(command, "-c", script);
    run_command_path = path;
}

/* ------------------------------------------------------------------ lines */

// grep prints with printf(), as C programs do: to a pipe in blocks. Here its input does not end.
#define PRINTS "(echo a; sleep 60) | grep a"

static void printed_lines_come_at_once(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, PRINTS, "-n", "2", "--grace", "0");
    run_await_output(&run, "[0] a\n");
    run_await_output(&run, "[1] a\n");
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    run_command_free(&run);
}

static void killed_ranks_lose_no_line(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "(echo a; sleep 60) | grep a & sleep 1; kill -KILL 0", "-n", "2", "--only",
               "0");
    assert_int_equal(run.status, 128 + SIGKILL);
    assert_string_equal(run.out, "[0] a\n");
    run_command_free(&run);
}

static void a_rank_has_a_terminal_unless_it_is_to_have_none(void **state)
{
    (void)state;
    struct run_command run;
    static const char script[] = "test -t 1 && echo terminal $TERM $NO_COLOR || echo none";
    setenv("TERM", "xterm", 1);
    RUN_SCRIPT(&run, script, "-n", "2", "--prefix", "never");
    assert_string_equal(run.out, "terminal dumb 1\nterminal dumb 1\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, script, "-n", "2", "--prefix", "never", "--color", "always");
    assert_string_equal(run.out, "terminal xterm\nterminal xterm\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, script, "-n", "2", "--prefix", "never", "--pty", "never");
    assert_string_equal(run.out, "none\nnone\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, script, "-n", "1"); // zero-run's own output, which is a file
    assert_string_equal(run.out, "none\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, script, "--pty", "always");
    assert_string_equal(run.out, "terminal dumb 1\n");
    run_command_free(&run);
    unsetenv("TERM");
}

// A container without /dev/pts has no pseudo-terminals.
static void without_a_terminal_there_is_a_pipe(void **state)
{
    (void)state;
    struct run_command run;
    static const char hidden[] = "exec unshare -rm sh -c 'mount -t tmpfs none /dev/pts || exit 99; "
                                 "exec \"$0\" \"$@\"' \"$Z\" ";
    char script[512];
    snprintf(script, sizeof script, "%s-n 2 --prefix never sh -c 'test -t 1 || echo none'", hidden);
    run_shell(&run, script);
    const bool allowed = run.status == 0;
    if (allowed) {
        assert_string_equal(run.out, "none\nnone\n");
        run_command_expect_line(&run, 0, "no pseudo-terminal for rank 0: ", "--pty never");
        snprintf(script, sizeof script, "%s-n 2 --pty always true", hidden);
        run_shell(&run, script);
        run_command_expect_line(&run, 71, "no pseudo-terminal for rank 0 (--pty always): ", NULL);
        snprintf(script, sizeof script, "%s-n 2 --pty never true", hidden);
        run_shell(&run, script);
        assert_string_equal(run.err, "");
    }
    run_command_free(&run);
    if (!allowed)
        skip();
}

static void much_output_comes_whole(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "head -c 3000000 /dev/zero; printf '\\r\\n\\003\\004\\021\\023\\032'", "--pty",
               "always");
    assert_int_equal(run.status, 0);
    assert_int_equal(run.out_size, 3000007);
    assert_memory_equal(run.out + 3000000, "\r\n\003\004\021\023\032", 7);
    run_command_free(&run);
}

static void only_some_ranks_are_shown(void **state)
{
    (void)state;
    struct run_command run;
    static const char script[] = "echo out; echo wrong >&2; [ $RANK != 4 ] || "
                                 "{ sleep 0.2; echo last; exit 3; }; sleep 60";
    const char *logs = temporary_path(&run_directory, "only");
    RUN_SCRIPT(&run, script, "-n", "5", "--only", "0,2-3", "--log-dir", logs);
    assert_int_equal(run.status, 3);
    static const int shown[] = {1, 0, 1, 1, 0};
    for (int rank = 0; rank < 5; rank++) {
        char line[32];
        snprintf(line, sizeof line, "[%d] out", rank);
        assert_int_equal(run_command_lines(run.out, line), shown[rank]);
        snprintf(line, sizeof line, "[%d] wrong", rank);
        assert_int_equal(run_command_lines(run.err, line), shown[rank]);
    }
    // What the report says of a rank is not hidden, nor are its last lines.
    expect_part(&run, "zero-run: rank 4 (process ");
    assert_int_equal(run_command_lines(run.err, "zero-run: | last"), 1);
    run_command_free(&run);
    RUN_SCRIPT(&run, "cat \"$D/only/rank-4.log\"", "-n", "1");
    assert_string_equal(run.out, "out\nwrong\nlast\n");
    run_command_free(&run);
}

static void lists_of_ranks_are_checked(void **state)
{
    (void)state;
    struct run_command run;
    static const char *const wrong[] = {"",  "2",   "0,",  ",0",   "1-0", "0-2",        "-1",  "0-",
                                        "a", "0 1", "0;1", "0--1", "0x",  "4294967296", "0-,1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char part[64];
        snprintf(part, sizeof part, "such as 0 or 0,4-7, not '%s'", wrong[i]);
        RUN(&run, "-n", "2", "--only", wrong[i], "true");
        run_command_expect_line(&run, 64, "--only takes ranks from 0 to 1", part);
    }
    RUN(&run, "--only", "1", "-n", "2", "echo", "a"); // -n may come later
    assert_string_equal(run.out, "[1] a\n");
    run_command_free(&run);
    RUN(&run, "--plan", "--only", "0", "true");
    run_command_expect_line(&run, 64, "--only has no effect", NULL);
}

/* ------------------------------------------------------------------ warnings */

static void warnings_of_all_ranks_are_shown_once(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "echo \"zero[$RANK] warn core: the same\" >&2; sleep 0.5; echo end >&2", "-n",
               "64", "--log-dir", temporary_path(&run_directory, "warnings"));
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.err, "[0-63] zero warn core: the same (64 ranks)"), 1);
    assert_int_equal(count_parts(run.err, "the same"), 1);
    run_command_free(&run);
    RUN_SCRIPT(&run, "cat \"$D\"/warnings/rank-*.log | grep -c 'warn core: the same'", "-n", "1");
    assert_string_equal(run.out, "64\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, "echo \"zero[$RANK] warn core: the same\" >&2", "-n", "2", "--prefix",
               "never");
    assert_string_equal(run.err, "zero warn core: the same (2 ranks)\n");
    run_command_free(&run);
}

static void warnings_of_some_ranks_name_them(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "[ $RANK = 2 ] || echo \"zero[$RANK] warn io: some\" >&2;"
               "[ $RANK != 2 ] || echo \"zero[$RANK] warn io: one\" >&2; sleep 0.6",
               "-n", "4");
    assert_int_equal(run_command_lines(run.err, "[0-1,3] zero warn io: some (3 ranks)"), 1);
    assert_int_equal(run_command_lines(run.err, "[2] zero[2] warn io: one"), 1);
    assert_int_equal(count_parts(run.err, "warn"), 2);
    run_command_free(&run);
}

static void what_is_no_equal_warning_is_shown_as_it_comes(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "echo 'zero[7] warn core: of another rank' >&2; echo 'warn core: x' >&2;"
               "echo \"zero[$RANK] warn core: again\" >&2; echo \"zero[$RANK] warn core: again\" "
               ">&2; echo \"zero[$RANK] error core: e\" >&2; echo \"zero[$RANK] warn core: out\"",
               "-n", "2");
    for (int rank = 0; rank < 2; rank++) {
        char line[64];
        static const char *const lines[] = {"zero[7] warn core: of another rank", "warn core: x"};
        for (int i = 0; i < 2; i++) {
            snprintf(line, sizeof line, "[%d] %s", rank, lines[i]);
            assert_int_equal(run_command_lines(run.err, line), 1);
        }
        snprintf(line, sizeof line, "[%d] zero[%d] error core: e", rank, rank);
        assert_int_equal(run_command_lines(run.err, line), 1);
        snprintf(line, sizeof line, "[%d] zero[%d] warn core: out", rank, rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
    }
    // In whatever order the ranks wrote, every warning is there.
    const int joined = count_parts(run.err, "warn core: again (2 ranks)");
    assert_int_equal(count_parts(run.err, "warn core: again") + joined, 4);
    run_command_free(&run);
}

static void warnings_come_before_the_report(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "[ $RANK = 0 ] || exec sleep 60; echo 'zero[0] warn core: w' >&2; exit 5",
               "-n", "2");
    assert_int_equal(run.status, 5);
    assert_int_equal(strncmp(run.err, "[0] zero[0] warn core: w\nzero-run: rank 0 ", 42), 0);
    run_command_free(&run);
}

/* ------------------------------------------------------------------ files */

static void one_file_has_one_use(void **state)
{
    (void)state;
    struct run_command run;
    char file[128], link[128], log[160], other[128];
    const char *dir = run_directory.directory;
    snprintf(file, sizeof file, "%s/file", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(other, sizeof other, "%s/./file", dir);
    snprintf(log, sizeof log, "%s/logs/rank-1.log", dir);
    RUN(&run, "--metrics", file, "--trace", file, "true");
    run_command_expect_line(&run, 64, "--trace ", "are the same file");
    RUN(&run, "--metrics", file, "--trace", other, "true");
    run_command_expect_line(&run, 64, "--metrics ", "are the same file");
    assert_int_equal(access(file, F_OK), -1);
    assert_true(temporary_write(&run_directory, "file", "kept\n"));
    assert_int_equal(symlink("file", link), 0);
    RUN(&run, "--metrics", link, "--trace", file, "true");
    run_command_expect_line(&run, 64, "are the same file", NULL);
    RUN(&run, "-n", "2", "--log-dir", temporary_path(&run_directory, "logs"), "--metrics", log,
        "true");
    run_command_expect_line(&run, 64, "rank-1.log in --log-dir and --metrics ", NULL);
    struct stat status;
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_size, 5); // it is refused before anything is written

    run_shell(&run, "\"$Z\" --metrics \"$D/out\" true >\"$D/out\"");
    run_command_expect_line(&run, 64, "--metrics ", "and standard output are the same file");
    run_shell(&run, "\"$Z\" --trace \"$D/file\" true <\"$D/file\"");
    run_command_expect_line(&run, 64, "--trace ", "and standard input are the same file");
    run_shell(&run, "\"$Z\" --metrics /dev/stdout echo a | cat");
    assert_string_equal(run.out, "a\n");
    run_command_free(&run);
    RUN(&run, "--metrics", "/dev/null", "--trace", "/dev/null", "true");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
}

static void logs_of_a_larger_job_go(void **state)
{
    (void)state;
    struct run_command run;
    const char *logs = temporary_path(&run_directory, "stale");
    RUN(&run, "-n", "12", "--log-dir", logs, "echo", "old");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
    RUN_SCRIPT(&run,
               "cd \"$D/stale\"; for f in rank-03.log rank-7.log.gz rank-x.log notes "
               "rank--5.log; do echo keep >$f; done; mkdir rank-77.log; ln -s notes "
               "rank-78.log",
               "-n", "1");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
    RUN(&run, "-n", "2", "--log-dir", logs, "echo", "new");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
    RUN_SCRIPT(&run, "cd \"$D/stale\"; echo *; cat rank-0.log rank-1.log notes", "-n", "1");
    assert_string_equal(run.out, "notes rank--5.log rank-0.log rank-03.log rank-1.log "
                                 "rank-7.log.gz rank-77.log rank-78.log rank-x.log\n"
                                 "new\nnew\nkeep\n");
    run_command_free(&run);
}

static void a_restart_keeps_the_logs(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "echo $ZERO_RESTARTS; [ $ZERO_RESTARTS = 1 ] || exit 1", "-n", "1:2",
               "--log-dir", temporary_path(&run_directory, "again"), "--grace", "5");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
    RUN_SCRIPT(&run, "cat \"$D/again/rank-0.log\"; ls \"$D/again\"", "-n", "1");
    assert_string_equal(run.out, "0\n1\nrank-0.log\nrank-1.log\n");
    run_command_free(&run);
}

/* ------------------------------------------------------------------ limits */

static struct rlimit limit(__rlimit_resource_t resource, rlim_t value)
{
    struct rlimit before;
    assert_int_equal(getrlimit(resource, &before), 0);
    const struct rlimit after = {.rlim_cur = value, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(resource, &after), 0);
    return before;
}

static void limits_of_files_are_named(void **state)
{
    (void)state;
    struct run_command run;
    struct rlimit before = limit(RLIMIT_FSIZE, 102400);
    RUN(&run, "-n", "2", "--", rank_path, "train", "1");
    setrlimit(RLIMIT_FSIZE, &before);
    run_command_expect_line(&run, 71, "for 2 ranks: File too large (EFBIG): the limit",
                            "102400 bytes; `ulimit -f` raises it");

    // A log is given up; the rank has the signal as it was.
    before = limit(RLIMIT_FSIZE, 2000000);
    RUN_SCRIPT(&run, "head -c 3000000 /dev/zero", "--log-dir",
               temporary_path(&run_directory, "limited"), "--only", "0");
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(run.status, 74);
    expect_part(&run, "cannot write the log of rank 0: File too large (EFBIG): the limit");
    run_command_free(&run);
    before = limit(RLIMIT_FSIZE, 2000000);
    RUN_SCRIPT(&run, "head -c 3000000 /dev/zero >\"$D/large\"", "-n", "2");
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(run.status, 128 + SIGXFSZ);
    run_command_free(&run);
}

static void a_commit_beyond_the_limit_is_an_error(void **state)
{
    (void)state;
    struct run_command run;
    const struct rlimit before = limit(RLIMIT_FSIZE, 1100000);
    RUN(&run, "-n", "2", "--", rank_path, "train", "1");
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(run.status, 7);
    expect_part(&run, "watched_rank: ");
    expect_part(&run, "bytes of shared memory: File too large (EFBIG): the limit of a file, or of "
                      "shared memory, is 1100000 bytes; `ulimit -f` raises it");
    run_command_free(&run);
}

static void limits_of_descriptors_are_named(void **state)
{
    (void)state;
    struct run_command run;
    run_shell(&run, "ulimit -n 15; \"$Z\" -n 8 true");
    run_command_expect_line(&run, 71, "Too many open files (EMFILE): the limit is 15 open files",
                            "`ulimit -n` raises it");
}

/* ------------------------------------------------------------------ stopped ranks */

static void stopped_ranks_are_named(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, "[ $RANK = 1 ] || exit 0; echo $$ >\"$D/pid\"; kill -STOP $$; echo on", "-n",
                 "2");
    run_await_error(&run, "zero-run: rank 1 (process ");
    run_await_error(&run, ") is stopped by SIGSTOP; `kill -CONT -");
    kill(-run_await_pid("pid"), SIGCONT);
    run_command_finish(&run);
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "[1] on\n");
    assert_int_equal(count_parts(run.err, "is stopped"), 1);
    run_command_free(&run);
}

/** Runs `zero-run --timeout 3 -- sh -c script` on a terminal that stops processes which write to it
 * from the background. Returns what the terminal got. */
static const char *run_on_stopping_terminal(const char *script, int *status)
{
    static char shown[8192];
    size_t used = 0;
    struct termios settings;
    int terminal;
    const pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (pid == 0) {
        tcgetattr(STDOUT_FILENO, &settings);
        settings.c_lflag |= TOSTOP;
        tcsetattr(STDOUT_FILENO, TCSANOW, &settings);
        execl(run_command_path, run_command_path, "--timeout", "3", "--", "sh", "-c", script,
              (char *)NULL);
        _exit(99);
    }
    ssize_t count;
    while ((count = read(terminal, shown + used, sizeof shown - 1 - used)) > 0)
        used += (size_t)count;
    shown[used] = '\0';
    close(terminal);
    assert_int_equal(waitpid(pid, status, 0), pid);
    return shown;
}

static void a_single_rank_writes_to_any_terminal(void **state)
{
    (void)state;
    int status;
    assert_string_equal(run_on_stopping_terminal("echo out; echo err >&2", &status),
                        "out\r\nerr\r\n");
    assert_int_equal(status, 0);
}

static void a_rank_that_reads_the_terminal_is_named(void **state)
{
    (void)state;
    int status;
    const char *shown = run_on_stopping_terminal("read line </dev/tty", &status);
    if (!strstr(shown, "zero-run: rank 0 (process ") ||
        !strstr(shown, ") is stopped by SIGTTIN: it has read from a terminal"))
        fail_msg("%s", shown);
    assert_int_equal(WEXITSTATUS(status), 75);
}

/* ------------------------------------------------------------------ threads */

static void ranks_are_told_how_many_threads(void **state)
{
    (void)state;
    struct run_command run;
    unsetenv("OMP_NUM_THREADS");
    RUN(&run, "--explain", "-n", "1");
    const char *line = strstr(run.out, "\nthreads      OMP_NUM_THREADS=");
    int threads = 0, cores = 0;
    assert_non_null(line);
    assert_int_equal(
        sscanf(line, "\nthreads      OMP_NUM_THREADS=%d for each rank (%d core", &threads, &cores),
        2);
    assert_true(threads >= 1 && threads <= cores);
    run_command_free(&run);
    char wanted[32];
    RUN_SCRIPT(&run, "echo $OMP_NUM_THREADS", "-n", "1");
    snprintf(wanted, sizeof wanted, "%d\n", threads);
    assert_string_equal(run.out, wanted);
    run_command_free(&run);
    // A rank has at least one thread, however few cores there are.
    RUN_SCRIPT(&run, "echo $OMP_NUM_THREADS", "-n", "300", "--only", "7", "--prefix", "never");
    assert_string_equal(run.out, cores < 600 ? "1\n" : run.out);
    run_command_free(&run);
    setenv("OMP_NUM_THREADS", "7", 1);
    RUN_SCRIPT(&run, "echo $OMP_NUM_THREADS", "-n", "2", "--prefix", "never");
    assert_string_equal(run.out, "7\n7\n");
    run_command_free(&run);
    RUN(&run, "--explain");
    assert_int_equal(run_command_lines(run.out, "threads      OMP_NUM_THREADS=7 as it was set"), 1);
    run_command_free(&run);
    unsetenv("OMP_NUM_THREADS");
}

static void the_first_status_line_tells_of_threads(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "2", "--status", "1", "--", rank_path, "train", "25", "100");
    assert_int_equal(run.status, 0);
    assert_int_equal(strncmp(run.err, "zero-run: OMP_NUM_THREADS=", 26), 0);
    assert_int_equal(count_parts(run.err, "OMP_NUM_THREADS"), 1);
    run_command_free(&run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed_lines_come_at_once),
        cmocka_unit_test(killed_ranks_lose_no_line),
        cmocka_unit_test(a_rank_has_a_terminal_unless_it_is_to_have_none),
        cmocka_unit_test(without_a_terminal_there_is_a_pipe),
        cmocka_unit_test(much_output_comes_whole),
        cmocka_unit_test(only_some_ranks_are_shown),
        cmocka_unit_test(lists_of_ranks_are_checked),
        cmocka_unit_test(warnings_of_all_ranks_are_shown_once),
        cmocka_unit_test(warnings_of_some_ranks_name_them),
        cmocka_unit_test(what_is_no_equal_warning_is_shown_as_it_comes),
        cmocka_unit_test(warnings_come_before_the_report),
        cmocka_unit_test(one_file_has_one_use),
        cmocka_unit_test(logs_of_a_larger_job_go),
        cmocka_unit_test(a_restart_keeps_the_logs),
        cmocka_unit_test(limits_of_files_are_named),
        cmocka_unit_test(a_commit_beyond_the_limit_is_an_error),
        cmocka_unit_test(limits_of_descriptors_are_named),
        cmocka_unit_test(stopped_ranks_are_named),
        cmocka_unit_test(a_single_rank_writes_to_any_terminal),
        cmocka_unit_test(a_rank_that_reads_the_terminal_is_named),
        cmocka_unit_test(ranks_are_told_how_many_threads),
        cmocka_unit_test(the_first_status_line_tells_of_threads),
    };
    if (argc != 3)
        return 2;
    run_command_path = argv[1];
    rank_path = argv[2];
    setenv("Z", argv[1], 1);
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
