// A platform has started zero-run once on each of three hosts, with --nodes 2:3 and one rank a
// host. A rank that fails costs no host. The job goes on on the two hosts that are left when one is
// lost, to the bits of a run that nothing has disturbed, and ends when another one is lost:
//
//     hosts_least <zero-run> <far_rank>
//
// Hosts are network namespaces with one table of processes.
#include "base/clock.h"
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/run_command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { HOSTS = 3, PATIENCE_S = 60 };

static const char *far_rank;

/* ------------------------------------------------------------------ a job */

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    assert_int_equal(setenv(name, text, 1), 0);
}

/** Starts zero-run on a host: `options` and far_rank with `last`, both ended by NULL. */
static void start_host(struct run_command *run, int host, const char *const *options,
                       const char *const *last)
{
    const char *list[32] = {"--master", "10.31.0.1:20100", "--nodes", "2:3", "--grace",
                            "2",        "--agent-timeout", "2"};
    int count = 8;
    while (*options)
        list[count++] = *options++;
    list[count++] = "--";
    list[count++] = far_rank;
    while (*last)
        list[count++] = *last++;
    list[count] = NULL;
    assert_true(net_hosts_enter(host));
    run_command_start(run, list);
    assert_true(net_hosts_leave());
}

/** How often what a rank has written has some words. */
static int count_words(const struct run_command *run, const char *words)
{
    static char text[32768];
    const ssize_t size = pread(fileno(run->files[0]), text, sizeof text - 1, 0);
    int count = 0;
    text[size > 0 ? size : 0] = '\0';
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

static void await_words(const struct run_command *run, const char *words, int count)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while (count_words(run, words) < count) {
        if (base_clock_s() > deadline)
            fail_msg("not %d times \"%s\"", count, words);
        usleep(10000);
    }
}

static void expect(const struct run_command *run, const char *words)
{
    if (!strstr(run->err, words) && !strstr(run->out, words))
        fail_msg("status %d, and no \"%s\": %s%s", run->status, words, run->out, run->err);
}

static void finish(struct run_command *runs, const int *statuses)
{
    for (int host = 0; host < HOSTS; host++) {
        run_command_finish_in(&runs[host], PATIENCE_S);
        if (runs[host].status != statuses[host])
            fail_msg("host %d: status %d, not %d: %s%s", host, runs[host].status, statuses[host],
                     runs[host].out, runs[host].err);
    }
}

static void release(struct run_command *runs)
{
    for (int host = 0; host < HOSTS; host++)
        run_command_free(&runs[host]);
}

/* ------------------------------------------------------------------ tests */

// The platform says that each host has one rank.
static void a_job_goes_on_on_two_of_three_hosts(void **state)
{
    (void)state;
    struct run_command runs[HOSTS];
    const char *const options[] = {"--max-restarts", "2", NULL};
    const char *const last[] = {temporary_path(&run_directory, "two"), "3", "30", "2", "7", NULL};
    set("PET_NNODES", HOSTS);
    set("PET_NPROC_PER_NODE", 1);
    for (int host = HOSTS - 1; host >= 0; host--) {
        set("PET_NODE_RANK", host);
        start_host(&runs[host], host, options, last);
    }
    unsetenv("PET_NNODES");
    unsetenv("PET_NPROC_PER_NODE");
    unsetenv("PET_NODE_RANK");
    await_words(&runs[0], "rank 1 in step", 2); // rank 2 has been killed before
    assert_true(net_hosts_signal(1, SIGKILL) > 1);
    finish(runs, (const int[]){0, 137, 0});
    expect(&runs[0], "rank 2 on host 2 (hostc) (process ");
    expect(&runs[0], "restart 1 of 2, with 3 ranks");
    expect(&runs[0], "host 1 (hostb) with rank 1 is lost");
    expect(&runs[0], "restart 2 of 2, with 2 ranks");
    expect(&runs[0], "; then 2 ranks from step ");
    expect(&runs[0], "as undisturbed");
    assert_int_equal(run_command_lines(runs[0].out, "[0] resumed 0"), 1);
    release(runs);
}

// MIN of --nodes allows one restart, and two hosts.
static void one_of_three_hosts_is_too_few(void **state)
{
    (void)state;
    struct run_command runs[HOSTS];
    const char *const options[] = {"-n", "1", NULL};
    const char *const last[] = {temporary_path(&run_directory, "one"), "1", "30", NULL};
    for (int host = HOSTS - 1; host >= 0; host--) {
        set("JOB_COMPLETION_INDEX", host);
        start_host(&runs[host], host, options, last);
    }
    unsetenv("JOB_COMPLETION_INDEX");
    await_words(&runs[0], "rank 2 in step", 1);
    assert_true(net_hosts_signal(2, SIGKILL) > 1);
    await_words(&runs[0], "rank 1 in step", 2);
    assert_true(net_hosts_signal(1, SIGKILL) > 1);
    finish(runs, (const int[]){137, 137, 137});
    expect(&runs[0], "restart 1 of 1, with 2 ranks");
    expect(&runs[0], "not started again: 1 host is left, and --nodes wants 2 at least");
    release(runs);
}

static void hosts_that_are_enough_are_explained(void **state)
{
    (void)state;
    struct run_command run;
    set("JOB_COMPLETION_INDEX", 1);
    RUN(&run, "--explain", "--nodes", "2:3", "--master", "10.31.0.1", "-n", "1");
    unsetenv("JOB_COMPLETION_INDEX");
    assert_int_equal(run.status, 0);
    expect(&run, "ranks        1 on each of 3 hosts, from -n\n");
    expect(&run, "hosts        2 are enough after a loss, from --nodes\n");
    run_command_free(&run);
}

static void a_platform_that_says_another_number_is_heard(void **state)
{
    (void)state;
    static const char *const wrong[] = {"2:4", "1:2", "3:4"};
    set("PET_NNODES", HOSTS);
    set("PET_NODE_RANK", 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct run_command run;
        RUN(&run, "--nodes", wrong[i], "--", "true");
        run_command_expect_line(&run, 78, "--nodes ", "PET_NNODES=3");
    }
    unsetenv("PET_NNODES");
    unsetenv("PET_NODE_RANK");
}

static int set_up(void **state)
{
    setenv("ZERO_SECRET", "of this test", 1);
    return run_make_directory(state);
}

// What a test that has failed leaves.
static int clear_hosts(void **state)
{
    (void)state;
    for (int host = 0; host < HOSTS; host++)
        net_hosts_signal(host, SIGKILL);
    return 0;
}

static int tear_down(void **state)
{
    net_hosts_end();
    return run_remove_directory(state);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    run_command_path = argv[1];
    far_rank = argv[2];
    const char *lacks = net_hosts_make(HOSTS);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_job_goes_on_on_two_of_three_hosts, clear_hosts),
        cmocka_unit_test_teardown(one_of_three_hosts_is_too_few, clear_hosts),
        cmocka_unit_test(hosts_that_are_enough_are_explained),
        cmocka_unit_test(a_platform_that_says_another_number_is_heard),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
