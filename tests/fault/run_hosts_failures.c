// A job of several hosts of which something dies: a rank, an agent, a whole host, the coordinator;
// or of which a host falls silent. Hosts are this machine: each agent is a child of zero-run, and
// the parent of its ranks.
#include "tests/ranks/run_command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HERE "--hosts", "localhost:2,127.0.0.1:2"

static const char *watched;

// Each rank leaves its number in a file, so that what is left of the job can be looked for.
#define LEAVE "echo $$ > $D/p$ZERO_RESTARTS$RANK; "
#define AWAIT_ALL "for rank in 0 1 2 3; do until [ -s $D/p0$rank ]; do sleep 0.02; done; done; "

static void expect(const struct run_command *run, int status, const char *words)
{
    if (run->status != status || !strstr(run->err, words))
        fail_msg("status %d, expected %d and \"%s\": %s", run->status, status, words, run->err);
}

static bool is_left(int start)
{
    bool left = false;
    for (int rank = 0; rank < 4; rank++) {
        char name[8];
        snprintf(name, sizeof name, "p%d%d", start, rank);
        left = left || run_command_alive(run_await_pid(name));
    }
    return left;
}

// A guardian takes a moment.
static void expect_none_left(int start)
{
    for (int i = 0; i < RUN_PATIENCE_S * 20 && is_left(start); i++)
        usleep(50000);
    assert_false(is_left(start));
    for (int rank = 0; rank < 4; rank++) {
        char name[8];
        snprintf(name, sizeof name, "p%d%d", start, rank);
        unlink(temporary_path(&run_directory, name));
    }
}

static void a_dead_rank_is_named_with_its_host(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, LEAVE AWAIT_ALL "[ $RANK = 2 ] && echo last && kill -KILL $$; exec sleep 30",
               HERE);
    expect(&run, 137, "rank 2 on host 127.0.0.1 (process ");
    assert_non_null(strstr(run.err, ") failed first: signal SIGKILL"));
    assert_non_null(strstr(run.err, "zero-run: | last"));
    run_command_free(&run);
    expect_none_left(0);
}

static void all_hosts_start_again(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, HERE, "--max-restarts", "1", "--", watched, "again", "6");
    expect(&run, 0, "rank 1 on host localhost (process ");
    assert_non_null(strstr(run.err, "restart 1 of 1, with 4 ranks"));
    assert_null(strstr(run.err, "rank 3 on host"));
    run_command_free(&run);
}

static void a_dead_agent_is_its_hosts(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, LEAVE AWAIT_ALL "[ $RANK = 3 ] && kill -KILL $PPID; exec sleep 30", HERE);
    expect(&run, 137, "host 127.0.0.1 with ranks 2 to 3 is lost: its agent (process ");
    assert_null(strstr(run.err, "failed first"));
    run_command_free(&run);
    expect_none_left(0);
}

static void an_agent_is_started_again(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "[ $ZERO_RESTARTS$RANK = 03 ] && kill -KILL $PPID; "
               "[ $ZERO_RESTARTS = 0 ] && exec sleep 30; echo again of $WORLD_SIZE",
               HERE, "--max-restarts", "1");
    expect(&run, 0, "restart 1 of 1, with 4 ranks");
    assert_int_equal(run_command_lines(run.out, "[3] again of 4"), 1);
    run_command_free(&run);
}

// Its remote shell lets the host in only once.
static void the_hosts_that_are_left_go_on(void **state)
{
    (void)state;
    struct run_command run;
    char shell[4096];
    snprintf(shell, sizeof shell,
             "sh -c '[ -e %s/once ] && exit 255; : > %s/once; shift; exec \"$@\"' sh",
             run_directory.directory, run_directory.directory);
    RUN_SCRIPT(&run,
               "[ $ZERO_RESTARTS$RANK = 02 ] && kill -KILL $PPID; "
               "[ $ZERO_RESTARTS = 0 ] && exec sleep 30; echo again of $WORLD_SIZE",
               "--hosts", "localhost:2,there:2", "--rsh", shell, "-n", "2:4");
    expect(&run, 0, "with 2 ranks");
    assert_non_null(strstr(run.err, "host there with ranks 2 to 3 is lost"));
    assert_int_equal(run_command_lines(run.out, "[1] again of 2"), 1);
    run_command_free(&run);
    // Without leave to go on with fewer it ends.
    unlink(temporary_path(&run_directory, "once"));
    RUN_SCRIPT(&run, "[ $RANK = 2 ] && kill -KILL $PPID; exec sleep 30", "--hosts",
               "localhost:2,there:2", "--rsh", shell, "--max-restarts", "2");
    expect(&run, 137, "not started again: the hosts that are left have room for 2 ranks");
    run_command_free(&run);
}

static void a_silent_host_is_told_apart(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, LEAVE AWAIT_ALL "[ $RANK = 2 ] && kill -STOP $PPID; exec sleep 30", HERE,
               "--agent-timeout", "2");
    expect(&run, 137, "is lost: nothing has been heard of it for 2 s");
    run_command_free(&run);
    expect_none_left(0);
}

// All agents see the end of their links, and end their ranks.
static void nothing_outlives_the_coordinator(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, LEAVE "trap '' TERM; echo there; sleep 30; sleep 30", HERE, "--grace", "1");
    for (int rank = 0; rank < 4; rank++) {
        char line[32];
        snprintf(line, sizeof line, "[%d] there", rank);
        run_await_output(&run, line);
    }
    kill(run.pid, SIGKILL);
    run_command_finish(&run);
    assert_int_equal(run.status, 137);
    run_command_free(&run);
    expect_none_left(0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    run_command_path = argv[1];
    watched = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_rank_is_named_with_its_host),
        cmocka_unit_test(all_hosts_start_again),
        cmocka_unit_test(a_dead_agent_is_its_hosts),
        cmocka_unit_test(an_agent_is_started_again),
        cmocka_unit_test(the_hosts_that_are_left_go_on),
        cmocka_unit_test(a_silent_host_is_told_apart),
        cmocka_unit_test(nothing_outlives_the_coordinator),
    };
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
