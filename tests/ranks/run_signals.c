// Signals that go to more than zero-run, or come in ways of their own: to every process of the job,
// as from systemd, a Slurm step or a container's end; to one rank; before the first step; during an
// evaluation; from a terminal.
#include "tests/ranks/run_command.h"
#include "tests/unit/port.h"

#include "base/clock.h"

#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 16, TERMINAL_BYTES = 65536 };

static const char *rank_path;

static const char listening[] = "listening\n"; // says rank 0

/* ------------------------------------------------------------------ processes */

/** The processes of a job. */
struct processes {
    pid_t run, guardian, ranks[MOST];
    int count; /**< of ranks */
};

/** Whether a process is called so. */
static bool is_named(pid_t pid, const char *name)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    const bool same = fgets(text, sizeof text, file) && strncmp(text, name, strlen(name)) == 0;
    fclose(file);
    return same;
}

static struct processes look(pid_t run)
{
    struct processes found = {.run = run};
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)run, (int)run);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fscanf(file, "%d", &pid) == 1 && found.count < MOST / 2)
        if (is_named(pid, "zero-run-guard"))
            found.guardian = pid;
        else
            found.ranks[found.count++] = pid;
    fclose(file);
    return found;
}

/** Those of a job of `world` ranks. The kernel's list may lack some while others come and go. */
static struct processes find(pid_t run, int world)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    struct processes found = look(run);
    while ((found.count != world || !found.guardian) && base_clock_s() < deadline)
        found = look(run);
    assert_int_equal(found.count, world);
    return found;
}

/** The one child of a process. */
static pid_t child_of(pid_t parent)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    return pid;
}

enum order { RUN_FIRST, RANKS_FIRST, GUARDIAN_FIRST, RANK_ALONE, ORDERS };

static void send_ranks(const struct processes *to, int number)
{
    for (int i = 0; i < to->count; i++)
        kill(to->ranks[i], number);
}

/** Sends a signal to every process, or to the last rank only. */
static void send_all(const struct processes *to, int order, int number, unsigned pause_us)
{
    switch (order) {
    case RUN_FIRST:
        kill(to->run, number);
        usleep(pause_us);
        kill(to->guardian, number);
        send_ranks(to, number);
        break;
    case RANKS_FIRST:
        send_ranks(to, number);
        usleep(pause_us);
        kill(to->guardian, number);
        kill(to->run, number);
        break;
    case GUARDIAN_FIRST:
        kill(to->guardian, number);
        kill(to->ranks[0], number);
        kill(to->run, number);
        usleep(pause_us);
        send_ranks(to, number); // the first one for the second time
        break;
    default:
        kill(to->ranks[to->count - 1], number);
    }
}

/** All ranks have stopped after the same step, and the job is to be started again. */
static void expect_stopped(struct run_command *run, int world)
{
    static const char said[] = "zero-run: stopped on request after step ";
    const char *at = strstr(run->err, said);
    const unsigned long step = at ? strtoul(at + sizeof said - 1, NULL, 10) : 0;
    if (run->status != 75 || step == 0 || strstr(run->err, "failed"))
        fail_msg("status %d: %s%s", run->status, run->out, run->err);
    for (int rank = 0; rank < world; rank++) {
        char line[64];
        snprintf(line, sizeof line, "[%d] stopped after %lu", rank, step);
        if (run_command_lines(run->out, line) != 1)
            fail_msg("no \"%s\": %s", line, run->out);
    }
    run_command_free(run);
}

/* ------------------------------------------------------------------ to every process */

static void every_process_may_get_it(void **state)
{
    (void)state;
    static const char *const how[] = {"listen", "exits"};
    for (int i = 0; i < 4 * ORDERS; i++) {
        struct run_command run;
        RUN_START(&run, "-n", i % 2 ? "3" : "2", "--max-restarts", "2", "--", rank_path,
                  how[i / ORDERS % 2], "100000", "1");
        run_await_output(&run, listening);
        const struct processes processes = find(run.pid, i % 2 ? 3 : 2);
        send_all(&processes, i % ORDERS, i / ORDERS < 2 ? SIGTERM : SIGINT,
                 i % 3 ? 3000u * (unsigned)i : 0);
        run_command_finish(&run);
        expect_stopped(&run, i % 2 ? 3 : 2);
    }
}

/** A shell that waits for the program is ended by what the program takes as a request. */
static void a_shell_may_be_around_the_program(void **state)
{
    (void)state;
    char script[1024];
    snprintf(script, sizeof script, "'%s' exits 100000 1; exit $?", rank_path);
    for (int i = 0; i <= ORDERS; i++) {
        struct run_command run;
        START_SCRIPT(&run, script, "-n", "2");
        run_await_output(&run, listening);
        const struct processes shells = find(run.pid, 2);
        struct processes all = shells;
        for (int rank = 0; rank < shells.count; rank++)
            all.ranks[all.count++] = child_of(shells.ranks[rank]);
        if (i < ORDERS) {
            send_all(&all, i, SIGTERM, 2000);
        } else { // their shells go, and the programs do not know of it yet
            send_ranks(&shells, SIGTERM);
            run_await_error(&run, "rank 0: SIGTERM has ended process ");
            run_await_error(&run, "rank 1: SIGTERM has ended process ");
            kill(run.pid, SIGTERM);
        }
        run_command_finish(&run);
        expect_stopped(&run, 2);
    }
}

static void it_may_come_before_the_first_step(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * ORDERS; i++) {
        struct run_command run;
        RUN_START(&run, "-n", "2", "--", rank_path, "early", "100000", i % 2 ? "50" : "200");
        // Both say so; commit and the first step are behind it.
        run_await_output(&run, "[0] listening\n");
        run_await_output(&run, "[1] listening\n");
        const struct processes processes = find(run.pid, 2);
        usleep(i < ORDERS ? 0 : 55000);
        send_all(&processes, i % ORDERS, SIGTERM, 1000);
        run_command_finish(&run);
        expect_stopped(&run, 2);
    }
}

static void evaluations_are_left(void **state)
{
    (void)state;
    for (int i = 0; i <= ORDERS; i++) {
        struct run_command run;
        RUN_START(&run, "-n", "2", "--grace", "10", "--", rank_path, "evaluate", "1000", "100");
        run_await_output(&run, listening);
        const struct processes processes = find(run.pid, 2);
        if (i < ORDERS)
            send_all(&processes, i, SIGTERM, 0);
        else
            kill(run.pid, SIGTERM); // zero-run alone
        run_command_finish(&run);
        assert_non_null(strstr(run.out, "[1] left after "));
        expect_stopped(&run, 2);
    }
}

static void the_first_thing_may_be_an_evaluation(void **state)
{
    (void)state;
    struct run_command run;
    RUN_START(&run, "-n", "2", "--", rank_path, "first", "1000", "100");
    run_await_output(&run, listening);
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 75);
    assert_non_null(strstr(run.err, "zero-run: stopped on request before the first step\n"));
    assert_int_equal(run_command_lines(run.out, "[1] stopped after 0"), 1);
    run_command_free(&run);
}

/* ------------------------------------------------------------------ --stop-signal */

static void other_signals_may_ask(void **state)
{
    (void)state;
    static const int numbers[] = {SIGUSR1, SIGHUP, SIGUSR2, SIGXCPU};
    for (int i = 0; i < 8; i++) {
        struct run_command run;
        RUN_START(&run, "-n", "2", "--stop-signal", "USR1, HUP", "--stop-signal=SIGUSR2,xcpu", "--",
                  rank_path, "listen", "100000", "1");
        run_await_output(&run, listening);
        const struct processes processes = find(run.pid, 2);
        if (i < 4)
            kill(run.pid, numbers[i]);
        else
            send_all(&processes, i % ORDERS, numbers[i % 4], 500);
        run_command_finish(&run);
        expect_stopped(&run, 2);
    }
}

/** The variable does what the option does. */
static void the_environment_may_name_them(void **state)
{
    (void)state;
    struct run_command run;
    setenv("ZERO_STOP_SIGNAL", "USR1", 1);
    RUN_START(&run, "-n", "2", "--", rank_path, "listen", "100000", "1");
    run_await_output(&run, listening);
    kill(run.pid, SIGUSR1);
    run_command_finish(&run);
    expect_stopped(&run, 2);
    setenv("ZERO_STOP_SIGNAL", "USR1;HUP", 1);
    RUN(&run, "--", "true");
    run_command_expect_line(&run, 64, "ZERO_STOP_SIGNAL takes names of signals", "'USR1;HUP'");
    unsetenv("ZERO_STOP_SIGNAL");
    RUN(&run, "--stop-signal", "USR1,KILL", "--", "true");
    run_command_expect_line(&run, 64, "--stop-signal takes names of signals", "'KILL'");
}

/** Without the option it is passed on, and whose end that is is said. */
static void others_are_passed_on(void **state)
{
    (void)state;
    struct run_command run;
    RUN_START(&run, "-n", "2", "--", rank_path, "listen", "100000", "1");
    run_await_output(&run, listening);
    kill(run.pid, SIGUSR1);
    run_command_finish(&run);
    assert_int_equal(run.status, 128 + SIGUSR1);
    assert_non_null(strstr(run.err, "ended: signal SIGUSR1, after zero-run had sent SIGUSR1"));
    assert_null(strstr(run.err, "failed"));
    run_command_free(&run);
    // What a rank gets by itself is a failure.
    RUN_START(&run, "-n", "2", "--", rank_path, "train", "100000", "1");
    usleep(100000);
    const struct processes processes = find(run.pid, 2);
    kill(processes.ranks[1], SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 128 + SIGTERM);
    assert_non_null(strstr(run.err, "failed first: signal SIGTERM"));
    run_command_free(&run);
}

/* ------------------------------------------------------------------ terminals */

/** Reads a terminal until it has shown these words, or to its end; what it has shown is added. */
static bool read_terminal(int terminal, char *shown, const char *words)
{
    size_t used = strlen(shown);
    ssize_t count;
    while (!words || !strstr(shown, words)) {
        count = read(terminal, shown + used, TERMINAL_BYTES - 1 - used);
        if (count <= 0)
            return false;
        used += (size_t)count;
        shown[used] = '\0';
    }
    return true;
}

/** Starts a program of NULL-ended `args` on a terminal of its own and waits until it listens. */
static pid_t start_on_terminal(const char *const *args, int *terminal, char *shown)
{
    const pid_t pid = forkpty(terminal, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(RUN_PATIENCE_S); // where a test has given up
        execv(args[0], (char *const *)(uintptr_t)args);
        _exit(99);
    }
    if (!read_terminal(*terminal, shown, "listening"))
        fail_msg("%s ended: %s", args[0], shown);
    return pid;
}

static int status_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/** Ctrl-C reaches the terminal's foreground process group: zero-run, or a program without it. */
static void a_keyboard_may_ask(void **state)
{
    (void)state;
    static const char control_c[] = "\003";
    for (int i = 0; i < 4; i++) {
        char *shown = calloc(TERMINAL_BYTES, 1);
        assert_non_null(shown);
        const char *const with[] = {run_command_path, "-n",     i ? "2" : "1", "--", rank_path,
                                    "exits",          "100000", "1",           NULL};
        const char *const without[] = {rank_path, i == 3 ? "deaf" : "exits", "100000", "1", NULL};
        int terminal;
        const pid_t pid = start_on_terminal(i < 2 ? with : without, &terminal, shown);
        assert_int_equal(write(terminal, control_c, 1), 1);
        if (i == 3) { // who does not stop is ended by the second one, however soon it comes
            usleep(50000);
            assert_int_equal(write(terminal, control_c, 1), 1);
        }
        read_terminal(terminal, shown, NULL);
        const int status = status_of(pid);
        if (status != (i == 3 ? 128 + SIGINT : 75) || (i < 3 && !strstr(shown, "stopped after")))
            fail_msg("%d: status %d: %s", i, status, shown);
        close(terminal);
        free(shown);
    }
}

/** A terminal that is closed is a request where SIGHUP is one, and what zero-run says there, which
 * fails from then on, is no reason to end ranks that are about to stop. */
static void a_closed_terminal_may_ask(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *shown = calloc(TERMINAL_BYTES, 1), script[1024];
        assert_non_null(shown);
        snprintf(script, sizeof script, "'%s' exits 100000 20; echo $? >$D/rank-$ZERO_RANK",
                 rank_path);
        const char *const args[] = {
            run_command_path, "-n", i ? "2" : "1", "--stop-signal", "HUP", "--", "sh", "-c",
            script,           NULL};
        int terminal;
        const pid_t pid = start_on_terminal(args, &terminal, shown);
        close(terminal); // the session's leader gets SIGHUP
        for (int rank = 0; rank <= i; rank++) {
            char name[16];
            snprintf(name, sizeof name, "rank-%d", rank);
            const int status = run_await_pid(name);
            if (i == 1)
                assert_int_equal(status, 75);
            unlink(temporary_path(&run_directory, name));
        }
        status_of(pid);
        free(shown);
    }
}

/* ------------------------------------------------------------------ without zero-run */

/** A rank as other launchers start it, on this host or as if each had a host of its own. */
static pid_t start_rank(int rank, int port, const char *path)
{
    char text[16];
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    setenv("RANK", rank ? "1" : "0", 1);
    setenv("LOCAL_RANK", rank && !port ? "1" : "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", port ? "1" : "2", 1);
    snprintf(text, sizeof text, "%d", port);
    if (port) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", text, 1);
    }
    if (freopen(path, "w", stdout))
        execl(rank_path, rank_path, "exits", "100000", "1", NULL);
    _exit(99);
}

static void await_listening(const char *path)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    char text[64] = "";
    while (strcmp(text, listening) != 0) {
        FILE *file = fopen(path, "r");
        if (file && !fgets(text, sizeof text, file))
            *text = '\0';
        if (file)
            fclose(file);
        if (base_clock_s() > deadline)
            fail_msg("the ranks do not come to their first step");
        usleep(1000);
    }
}

/** Two ranks, of which one gets it, or both. */
static void ranks_of_other_launchers_stop_too(void **state)
{
    (void)state;
    const char *path = temporary_path(&run_directory, "out");
    for (int i = 0; i < 6; i++) {
        int port = 0;
        const int held = i < 3 ? -1 : port_reserve(&port);
        pid_t pids[2];
        for (int rank = 1; rank >= 0; rank--)
            pids[rank] = start_rank(rank, port, rank ? "/dev/null" : path);
        await_listening(path);
        for (int rank = 0; rank < 2; rank++)
            if (i % 3 == 2 || i % 3 == rank)
                kill(pids[rank], SIGTERM);
        assert_int_equal(status_of(pids[0]), 75);
        assert_int_equal(status_of(pids[1]), 75);
        unlink(path);
        if (held >= 0)
            close(held);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    run_command_path = argv[1];
    rank_path = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_process_may_get_it),
        cmocka_unit_test(a_shell_may_be_around_the_program),
        cmocka_unit_test(it_may_come_before_the_first_step),
        cmocka_unit_test(evaluations_are_left),
        cmocka_unit_test(the_first_thing_may_be_an_evaluation),
        cmocka_unit_test(other_signals_may_ask),
        cmocka_unit_test(the_environment_may_name_them),
        cmocka_unit_test(others_are_passed_on),
        cmocka_unit_test(a_keyboard_may_ask),
        cmocka_unit_test(a_closed_terminal_may_ask),
        cmocka_unit_test(ranks_of_other_launchers_stop_too),
    };
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
