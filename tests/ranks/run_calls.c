// zero-run where a platform has started it on each host: calls of agents that host 0 does not take
// at once, or not at all, and options that each host refuses alike.
#include "base/clock.h"
#include "tests/ranks/run_command.h"
#include "tests/unit/port.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char host_name[64];

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    assert_int_equal(setenv(name, text, 1), 0);
}

// What Kubeflow's trainer sets on a host.
static void be_host(int host, int hosts, int ranks)
{
    assert_int_equal(setenv("PET_MASTER_ADDR", "127.0.0.1", 1), 0);
    set("PET_MASTER_PORT", 20000 + (int)getpid() % 10000);
    set("PET_NNODES", hosts);
    set("PET_NODE_RANK", host);
    set("PET_NPROC_PER_NODE", ranks);
}

static void expect(const struct run_command *run, int status, const char *words)
{
    if (run->status != status || !strstr(run->err, words))
        fail_msg("status %d, expected %d and \"%s\": %s", run->status, status, words, run->err);
}

// Two hosts have one number: the second waits. Then the first one is silent, as one is whose
// machine has lost its power: the second takes its place.
static void an_agent_that_calls_again_is_taken(void **state)
{
    (void)state;
    struct run_command first, second, head;
    char words[256];
    be_host(1, 2, 1);
    RUN_START(&first, "--", "true");
    be_host(0, 2, 1);
    START_SCRIPT(&head,
                 "echo $ZERO_RESTARTS there; [ $ZERO_RESTARTS = 1 ] || exec sleep 100; exit 0",
                 "--max-restarts", "1", "--grace", "1");
    run_await_output(&head, "[1] 0 there");
    be_host(1, 2, 1);
    RUN_START(&second, "--", "true");
    snprintf(
        words, sizeof words,
        "zero-run: host 1 waits: host 0 has host 1 already (%s); NODE_RANK may be wrong on one",
        host_name);
    run_await_error(&second, words);
    snprintf(words, sizeof words, "host 1 (%s) has called again", host_name);
    run_await_error(&head, words);
    assert_int_equal(kill(first.pid, SIGSTOP), 0);
    run_command_finish(&head);
    run_command_finish(&second);
    snprintf(words, sizeof words,
             "host 1 (%s) with rank 1 is lost: its agent says nothing any more", host_name);
    expect(&head, 0, words);
    expect(&second, 0, "has all output");
    snprintf(words, sizeof words, "| 1: rank 1 on host 1 (%s): the host was lost; then 2 ranks",
             host_name);
    expect(&head, 0, words);
    assert_int_equal(run_command_lines(head.out, "[1] 1 there"), 1);
    kill(first.pid, SIGKILL);
    run_command_finish(&first);
    run_command_free(&first);
    run_command_free(&second);
    run_command_free(&head);
}

// Host 1 is lost, and the ranks go on without it. Its next agent waits for a restart: it can be
// stopped meanwhile.
static void an_agent_that_is_not_needed_yet_can_be_stopped(void **state)
{
    (void)state;
    struct run_command first, second, head;
    be_host(1, 2, 2);
    RUN_START(&first, "--", "true");
    be_host(0, 2, 2);
    START_SCRIPT(&head, "echo $ZERO_RESTARTS there; exec sleep 100", "-n", "1:2", "--agent-timeout",
                 "1", "--grace", "1");
    run_await_output(&head, "[2] 0 there");
    assert_int_equal(kill(first.pid, SIGKILL), 0);
    run_command_finish(&first);
    run_await_output(&head, "[0] 1 there");
    be_host(1, 2, 2);
    RUN_START(&second, "--", "true");
    run_await_error(&second, "has all output");
    usleep(300000);
    const double began = base_clock_s();
    assert_int_equal(kill(second.pid, SIGTERM), 0);
    run_command_finish(&second);
    expect(&second, 75, "was asked to stop while it waited for host 0 to need it");
    assert_true(base_clock_s() - began < 4);
    kill(head.pid, SIGINT);
    run_command_finish(&head);
    run_command_free(&first);
    run_command_free(&second);
    run_command_free(&head);
}

// The second host of a number ends soon when host 0 is gone, and leaves no connection behind.
static void the_second_of_a_number_ends_with_the_job(void **state)
{
    (void)state;
    struct run_command first, second, head;
    be_host(1, 2, 1);
    RUN_START(&first, "--", "true");
    be_host(0, 2, 1);
    START_SCRIPT(&head, "echo there; exec sleep 100", "--grace", "1");
    run_await_output(&head, "[1] there");
    be_host(1, 2, 1);
    RUN_START(&second, "--", "true");
    run_await_error(&second, "zero-run: host 1 waits: ");
    kill(head.pid, SIGINT);
    run_command_finish(&head);
    run_command_finish(&first);
    const double began = base_clock_s();
    run_command_finish(&second);
    expect(&second, 69, "NODE_RANK may be wrong on one of the two; then host 0 was gone");
    assert_true(base_clock_s() - began < 30);
    run_command_free(&first);
    run_command_free(&second);
    run_command_free(&head);
}

static void a_number_that_is_none_is_told_so(void **state)
{
    (void)state;
    struct run_command head, stranger;
    assert_int_equal(setenv("ZERO_SECRET", "a secret", 1), 0);
    be_host(0, 2, 1);
    RUN_START(&head, "--", "sleep", "100");
    be_host(4, 5, 1);
    RUN(&stranger, "--", "sleep", "100");
    expect(&stranger, 78, "host 0: it says that it is host 4, and the job has the hosts 0 to 1");
    run_command_free(&stranger);
    run_await_error(&head, "it says that it is host 4");
    kill(head.pid, SIGINT);
    run_command_finish(&head);
    expect(&head, 75, "");
    run_command_free(&head);
    unsetenv("ZERO_SECRET");
}

// Host 1 ends at once with a reason of its own; host 0 goes on waiting for the right one.
static void a_secret_or_job_of_one_side_ends_the_agent(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *head, *far, *why;
    } cases[] = {
        {"ZERO_SECRET", "a secret", NULL, "ZERO_SECRET is set there and not here"},
        {"ZERO_SECRET", NULL, "a secret", "ZERO_SECRET is set here and not there"},
        {"ZERO_SECRET", "a secret", "another", "its ZERO_SECRET is another one"},
        {"ZERO_JOB", "job-1", "job-2",
         "it is of job zero-run.job-1, and this is job zero-run.job-2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run_command head, far;
        be_host(0, 2, 1);
        unsetenv(cases[i].variable);
        if (cases[i].head)
            setenv(cases[i].variable, cases[i].head, 1);
        RUN_START(&head, "--", "sleep", "100");
        be_host(1, 2, 1);
        unsetenv(cases[i].variable);
        if (cases[i].far)
            setenv(cases[i].variable, cases[i].far, 1);
        RUN(&far, "--timeout", "40", "--", "true");
        expect(&far, 69, cases[i].why);
        run_await_error(&head, "a caller was refused, 127.0.0.1: ");
        kill(head.pid, SIGINT);
        run_command_finish(&head);
        expect(&head, 75, "");
        run_command_free(&far);
        run_command_free(&head);
        unsetenv(cases[i].variable);
    }
}

static void numbers_that_differ_are_told(void **state)
{
    (void)state;
    struct run_command head, far;
    be_host(0, 2, 1);
    unsetenv("PET_NPROC_PER_NODE");
    RUN_START(&head, "-n", "1", "--", "sleep", "100");
    be_host(1, 2, 1);
    unsetenv("PET_NPROC_PER_NODE");
    RUN(&far, "-n", "2", "--", "true");
    run_command_finish(&head);
    expect(&head, 78, " has -n 2, and host 0 has 1: give all the same");
    expect(&far, 78, "the job has ended with status 78");
    run_command_free(&far);
    run_command_free(&head);
    be_host(0, 2, 1);
    RUN_START(&head, "--", "sleep", "100");
    be_host(1, 3, 1);
    RUN(&far, "--", "true");
    run_command_finish(&head);
    expect(&head, 78, " has --nodes 3, and host 0 has 2: give all the same");
    run_command_free(&far);
    run_command_free(&head);
}

// On host 1, which else would wait for a host 0 that has refused them.
static void each_host_refuses_wrong_options(void **state)
{
    (void)state;
    struct run_command run;
    be_host(1, 2, 2);
    RUN(&run, "--trace", "file", "--", "true");
    run_command_expect_line(&run, 64, "--trace is for a job of one host", "leave it out");
    RUN(&run, "--only", "4", "--", "true");
    run_command_expect_line(&run, 64, "--only", "4");
    RUN(&run, "-n", "3:4", "--", "true");
    run_command_expect_line(&run, 64, "-n 3:4 wants at least 3 ranks of each host, which has 2",
                            "PET_NPROC_PER_NODE=2");
    be_host(1, 5, 4096);
    RUN(&run, "--", "true");
    run_command_expect_line(&run, 64, "on each of 5 hosts are 20480, and a job has at most 16384",
                            "4096 ranks (");
    be_host(1, 513, 1);
    RUN(&run, "--", "true");
    run_command_expect_line(&run, 64, "513 hosts (", "a job has at most 512");
}

static void a_port_that_is_taken_is_named(void **state)
{
    (void)state;
    struct run_command run;
    int port;
    const int taken = port_reserve(&port);
    assert_true(taken >= 0 && listen(taken, 1) == 0);
    be_host(0, 2, 1);
    set("PET_MASTER_PORT", port);
    assert_int_equal(setenv("ZERO_SECRET", "a secret", 1), 0);
    RUN(&run, "--", "true");
    run_command_expect_line(&run, 71, "where the other hosts call, is in use on this one",
                            "another MASTER_PORT");
    unsetenv("ZERO_SECRET");
    close(taken);
}

static void an_agent_waits_as_long_as_the_job_may(void **state)
{
    (void)state;
    struct run_command run;
    be_host(1, 2, 1);
    RUN(&run, "--timeout", "1", "--", "true");
    run_command_expect_line(&run, 75, "the coordinator has not answered in 1", "ECONNREFUSED");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_that_calls_again_is_taken),
        cmocka_unit_test(an_agent_that_is_not_needed_yet_can_be_stopped),
        cmocka_unit_test(the_second_of_a_number_ends_with_the_job),
        cmocka_unit_test(a_number_that_is_none_is_told_so),
        cmocka_unit_test(a_secret_or_job_of_one_side_ends_the_agent),
        cmocka_unit_test(numbers_that_differ_are_told),
        cmocka_unit_test(a_port_that_is_taken_is_named),
        cmocka_unit_test(an_agent_waits_as_long_as_the_job_may),
        cmocka_unit_test(each_host_refuses_wrong_options),
    };
    if (argc != 2 || gethostname(host_name, sizeof host_name - 1))
        return 2;
    run_command_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
