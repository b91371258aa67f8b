// zero-run with --hosts: one job of several hosts, which are one machine here. Hosts that are this
// machine have agents that are children; with a remote shell of the test's own, "other" hosts are
// this machine, too.
#include "tests/ranks/run_command.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define HERE "localhost:2,127.0.0.1:2"

static const char *synthetic, *watched;

static void expect(const struct run_command *run, int status, const char *words)
{
    if (run->status != status || !strstr(run->err, words))
        fail_msg("status %d, expected %d and \"%s\": %s", run->status, status, words, run->err);
}

// A remote shell that runs commands here, if the host is not "away". Files of "small" end at 2 MiB,
// "slow" does not answer, and the name server of "deaf" does not.
static const char *make_shell(void)
{
    const char *path = temporary_path(&run_directory, "rsh");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("#!/bin/sh\nhost=$1; shift\n"
          "[ $host = away ] && { echo no route to $host >&2; exit 255; }\n"
          "[ $host = slow ] && sleep 100\n"
          "[ $host = small ] && ulimit -f 4096\n"
          "[ $host = deaf ] && exec unshare -m sh -c "
          "'mount --bind \"$RESOLV\" /etc/resolv.conf && exec sh -c \"$0\"' \"$*\"\n"
          "unset ONLY_HERE; cd /; exec \"$@\"\n",
          file);
    fclose(file);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static void ranks_know_their_place(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "echo $RANK.$LOCAL_RANK.$WORLD_SIZE.$LOCAL_WORLD_SIZE.$ZERO_HOST.$ZERO_HOSTS; "
               "echo to error >&2",
               "--hosts", "localhost:2,127.0.0.1:1", "--prefix", "never");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "0.0.3.2.0.2"), 1);
    assert_int_equal(run_command_lines(run.out, "1.1.3.2.0.2"), 1);
    assert_int_equal(run_command_lines(run.out, "2.0.3.1.1.2"), 1);
    assert_int_equal(run_command_lines(run.err, "to error"), 3);
    run_command_free(&run);
}

static void hosts_have_one_fingerprint(void **state)
{
    (void)state;
    static const char *const stages[] = {"0", "1", "2", "3"};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        struct run_command run;
        RUN(&run, "--hosts", HERE, "--", synthetic, stages[i], "f32", "5");
        if (run.status)
            fail_msg("stage %s: %s", stages[i], run.err);
        run_command_free(&run);
    }
}

// What a shell starts has another directory and environment: both travel.
static void a_remote_shell_starts_agents(void **state)
{
    (void)state;
    struct run_command run;
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(setenv("ONLY_HERE", "and there", 1), 0);
    assert_int_equal(setenv("ZERO_TEST_WORD", "a b", 1), 0);
    RUN_SCRIPT(&run, "echo $PWD; echo $ZERO_TEST_WORD/$ONLY_HERE/$WITH", "--hosts",
               "localhost:1,there:2", "--rsh", make_shell(), "-x", "ONLY_HERE", "-x", "WITH=x y");
    if (run.status)
        fail_msg("status %d: %s", run.status, run.err);
    for (int rank = 0; rank < 3; rank++) {
        char line[4200];
        snprintf(line, sizeof line, "[%d] %s", rank, here);
        assert_int_equal(run_command_lines(run.out, line), 1);
        snprintf(line, sizeof line, "[%d] a b/and there/x y", rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
    }
    run_command_free(&run);
    unsetenv("ONLY_HERE");
    unsetenv("ZERO_TEST_WORD");
}

static void a_host_that_is_not_reached(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "--hosts", "localhost:1,away:1", "--rsh", make_shell(), "--", "true");
    expect(&run, 69, "no route to away");
    assert_non_null(strstr(run.err, "host away: "));
    run_command_free(&run);
    RUN(&run, "--hosts", HERE, "--", "/nowhere/program");
    expect(&run, 66, "cannot run '/nowhere/program'");
    assert_non_null(strstr(run.err, "host "));
    run_command_free(&run);
}

// A remote shell that passes this process's own connection on says nothing of the first host's
// address.
static void another_connection_is_no_address(void **state)
{
    (void)state;
    struct run_command run;
    setenv("SSH_CONNECTION", "192.0.2.1 1000 192.0.2.2 22", 1);
    RUN(&run, "--hosts", "no-such-host:1", "--rsh", make_shell(), "--", "true");
    unsetenv("SSH_CONNECTION");
    expect(&run, 69, "the first host's name 'no-such-host' is not known here");
    run_command_free(&run);
}

// The host lives meanwhile, as zero-run hears.
static void name_servers_that_do_not_answer_are_told(void **state)
{
    (void)state;
    const struct sockaddr_in server = {.sin_family = AF_INET,
                                       .sin_port = htons(53),
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 77)};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct run_command run;
    if (geteuid() != 0 || bind(fd, (const struct sockaddr *)&server, sizeof server)) {
        close(fd);
        skip();
    }
    assert_true(temporary_write(&run_directory, "resolv.conf",
                                "nameserver 127.0.0.78\noptions timeout:20\n"));
    setenv("RESOLV", temporary_path(&run_directory, "resolv.conf"), 1);
    RUN(&run, "--hosts", "deaf:1", "--agent-timeout", "3", "--rsh", make_shell(), "--", "true");
    unsetenv("RESOLV");
    close(fd);
    expect(&run, 69, "name deaf: no answer from the name servers in 5 s");
    run_command_free(&run);
}

// A host's words are cut somewhere, and may have any bytes: neither is the end of its link.
static void a_name_that_is_long_is_told(void **state)
{
    (void)state;
    struct run_command run;
    char program[400] = "/nowhere/";
    for (int i = 0; i < 120; i++)
        strcat(program, "\342\202\254");
    RUN(&run, "--hosts", HERE, "--", program);
    expect(&run, 66, "cannot run '/nowhere/\342\202\254");
    run_command_free(&run);
}

static void hosts_are_explained(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "--hosts", "localhost:2,there:2", "-n", "3", "--rsh", "my shell", "--explain");
    assert_int_equal(run.status, 0);
    assert_int_equal(
        run_command_lines(run.out, "host         localhost: ranks 0 to 1, this machine"), 1);
    assert_int_equal(run_command_lines(run.out, "host         there: rank 2, by my shell"), 1);
    run_command_free(&run);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "--hosts", "a:1,b:1", "-n", "3", "--", "true");
    run_command_expect_line(&run, 64, "room for 2 ranks, not for 3", NULL);
    RUN(&run, "--hosts", "a", "--hostfile", "b", "--", "true");
    run_command_expect_line(&run, 64, "--hosts and --hostfile", NULL);
    RUN(&run, "--rsh", "ssh", "--", "true");
    run_command_expect_line(&run, 64, "--rsh is for --hosts only", NULL);
    RUN(&run, "--hosts", "a", "-x", "NO_SUCH_VARIABLE", "--", "true");
    run_command_expect_line(&run, 64, "there is no such variable", NULL);
    RUN(&run, "--hosts", "a:1", "b:1", "--", "true");
    run_command_expect_line(&run, 64, "--hosts takes one list: a:1,b:1", NULL);
    RUN(&run, "--hosts", "a", "--trace", "t", "--", "true");
    run_command_expect_line(&run, 64, "--trace is for a job of one host", NULL);
}

static void standard_input_is_for_no_rank(void **state)
{
    (void)state;
    struct run_command run;
    const int before = dup(STDIN_FILENO);
    assert_true(temporary_write(&run_directory, "input", "a line\n"));
    FILE *file = fopen(temporary_path(&run_directory, "input"), "r");
    assert_non_null(file);
    assert_true(before >= 0 && dup2(fileno(file), STDIN_FILENO) >= 0);
    RUN_SCRIPT(&run, "read line; echo \"got $line\"", "--hosts", "localhost:1,127.0.0.1:1");
    assert_true(dup2(before, STDIN_FILENO) >= 0);
    close(before);
    fclose(file);
    expect(&run, 0, "standard input is not read: ranks of several hosts have /dev/null");
    assert_int_equal(run_command_lines(run.out, "[0] got "), 1);
    assert_int_equal(run_command_lines(run.out, "[1] got "), 1);
    run_command_free(&run);
}

static void hosts_come_from_a_file(void **state)
{
    (void)state;
    struct run_command run;
    assert_true(
        temporary_write(&run_directory, "hosts", "# two\nlocalhost slots=2\n127.0.0.1 slots=1\n"));
    RUN_SCRIPT(&run, "echo $RANK of $WORLD_SIZE", "--hostfile",
               temporary_path(&run_directory, "hosts"));
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "[2] 2 of 3"), 1);
    run_command_free(&run);
}

static void metrics_and_logs_are_written(void **state)
{
    (void)state;
    struct run_command run;
    char metrics[4096], text[8192] = "";
    snprintf(metrics, sizeof metrics, "%s", temporary_path(&run_directory, "metrics"));
    RUN(&run, "--hosts", HERE, "--metrics", metrics, "--log-dir", run_directory.directory, "--",
        watched, "train", "3", "1");
    if (run.status)
        fail_msg("status %d: %s", run.status, run.err);
    run_command_free(&run);
    FILE *file = fopen(metrics, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "\"step\":3,"));
    for (int rank = 0; rank < 4; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank-%d.log", rank);
        assert_int_equal(access(temporary_path(&run_directory, name), R_OK), 0);
    }
}

static void expect_log(const char *name, const char *content)
{
    char text[256] = "";
    FILE *file = fopen(temporary_path(&run_directory, name), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, content);
}

// Also where Slurm has started the whole job again before.
static void logs_go_on_after_a_restart(void **state)
{
    (void)state;
    struct run_command run;
    assert_int_equal(setenv("SLURM_RESTART_COUNT", "2", 1), 0);
    assert_true(temporary_write(&run_directory, "rank-1.log", "of an earlier job\n"));
    assert_true(temporary_write(&run_directory, "rank-9.log", "of an earlier job\n"));
    RUN_SCRIPT(&run, "echo start $ZERO_RESTARTS; [ $ZERO_RESTARTS = 3 ] || exit 5", "--hosts",
               "localhost:1,127.0.0.1:1", "--log-dir", run_directory.directory, "--max-restarts",
               "1");
    if (run.status)
        fail_msg("status %d: %s", run.status, run.err);
    expect_log("rank-1.log", "start 2\nstart 3\n");
    assert_int_not_equal(access(temporary_path(&run_directory, "rank-9.log"), F_OK), 0);
    run_command_free(&run);
    unsetenv("SLURM_RESTART_COUNT");
}

static void a_log_that_is_lost_elsewhere_counts(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "[ $RANK = 0 ] || seq 1 400000", "--hosts", "localhost:1,small:1", "--rsh",
               make_shell(), "--log-dir", run_directory.directory);
    expect(&run, 74, "host small: cannot write the log of rank 1: File too large");
    assert_int_equal(run_command_lines(run.out, "[1] 400000"), 1);
    run_command_free(&run);
}

// A host that has room for more ranks than it gets has logs of these only.
static void a_rank_that_is_not_there_has_no_log(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "echo there", "--hosts", HERE, "-n", "3", "--log-dir",
               run_directory.directory);
    assert_int_equal(run.status, 0);
    expect_log("rank-2.log", "there\n");
    assert_int_not_equal(access(temporary_path(&run_directory, "rank-3.log"), F_OK), 0);
    run_command_free(&run);
}

// Much output of ranks of both hosts comes whole, also if its reader is slow.
static void output_is_whole(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "seq 1 60000", "--hosts", HERE);
    assert_int_equal(run.status, 0);
    for (int rank = 0; rank < 4; rank++) {
        char first[32], last[32];
        snprintf(first, sizeof first, "[%d] 1", rank);
        snprintf(last, sizeof last, "[%d] 60000", rank);
        assert_int_equal(run_command_lines(run.out, first), 1);
        assert_int_equal(run_command_lines(run.out, last), 1);
    }
    size_t lines = 0;
    for (const char *at = run.out; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_int_equal(lines, 4 * 60000);
    run_command_free(&run);
}

static void a_job_stops_on_request(void **state)
{
    (void)state;
    struct run_command run;
    RUN_START(&run, "--hosts", HERE, "--status", "1", "--", watched, "listen", "100000", "5");
    run_await_output(&run, "listening");
    run_await_error(&run, "iB; gather "); // of step, time and memory
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    expect(&run, 75, "stopped on request after step ");
    assert_non_null(strstr(run.err, "SIGTERM: asking the ranks to stop after this step"));
    run_command_free(&run);
    // Programs that do not listen get the signal.
    START_SCRIPT(&run, "echo there; exec sleep 30", "--hosts", HERE);
    run_await_output(&run, "[3] there");
    kill(run.pid, SIGINT);
    run_command_finish(&run);
    expect(&run, 130, "SIGINT: passed on to the ranks");
    run_command_free(&run);
}

// No rank is there yet.
static void a_job_that_waits_for_a_host_can_be_stopped(void **state)
{
    (void)state;
    struct run_command run;
    RUN_START(&run, "--hosts", "localhost:1,slow:1", "--rsh", make_shell(), "--", "true");
    run_await_error(&run, "s for 1 of 2 hosts, and waits ");
    kill(run.pid, SIGINT);
    run_command_finish(&run);
    expect(&run, 75, "zero-run: SIGINT: the job is not started\n");
    run_command_free(&run);
}

// Three of four ranks say the same of the fourth one. Where they are on several hosts, what one of
// them says may come before zero-run knows of the death.
static void what_ranks_say_of_a_death_is_said_once(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "4", "--", watched, "killed", "3");
    expect(&run, 137, "rank 1 (process ");
    const char *line = strstr(run.err, "[0,2-3] ");
    if (!line || strstr(run.err, "[0] ") || strstr(run.err, "[2] ") || strstr(run.err, "[3] "))
        fail_msg("%s", run.err);
    assert_non_null(strstr(line, " (3 ranks)\n"));
    run_command_free(&run);
}

// What Kubeflow's trainer sets on host `host` of two.
static void start_on_platform(struct run_command *run, int host, const char *script)
{
    char number[8];
    snprintf(number, sizeof number, "%d", host);
    assert_int_equal(setenv("PET_NODE_RANK", number, 1), 0);
    START_SCRIPT(run, script, "--grace", "20");
}

static void set_platform(int set)
{
    static const char *const names[] = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR",
                                        "PET_MASTER_PORT", "PET_NODE_RANK"};
    char port[16];
    snprintf(port, sizeof port, "%d", 20000 + (int)getpid() % 10000);
    const char *const values[] = {"2", "2", "127.0.0.1", port, "0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(set ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
}

// The other hosts' containers may start first; each exits with the job's status.
static void a_platform_starts_one_on_each_host(void **state)
{
    (void)state;
    struct run_command runs[2];
    set_platform(1);
    start_on_platform(&runs[1], 1, "false");
    start_on_platform(&runs[0], 0, "echo $RANK.$LOCAL_RANK.$WORLD_SIZE.$ZERO_HOST; exit 0");
    for (int host = 0; host < 2; host++) {
        run_command_finish(&runs[host]);
        if (runs[host].status)
            fail_msg("host %d: status %d: %s", host, runs[host].status, runs[host].err);
    }
    assert_int_equal(run_command_lines(runs[0].out, "[3] 3.1.4.1"), 1);
    assert_string_equal(runs[1].out, "");
    run_command_free(&runs[0]);
    run_command_free(&runs[1]);
    // A platform that takes a host back sends its zero-run SIGTERM: all ranks are asked.
    start_on_platform(&runs[0], 0, "trap 'exit 75' TERM; echo there; sleep 30 & wait");
    start_on_platform(&runs[1], 1, "");
    for (int rank = 0; rank < 4; rank++) {
        char there[16];
        snprintf(there, sizeof there, "[%d] there", rank);
        run_await_output(&runs[0], there);
    }
    kill(runs[1].pid, SIGTERM);
    for (int host = 0; host < 2; host++) {
        run_command_finish(&runs[host]);
        assert_int_equal(runs[host].status, 75);
        run_command_free(&runs[host]);
    }
    set_platform(0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    run_command_path = argv[1];
    synthetic = argv[2];
    watched = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_know_their_place),
        cmocka_unit_test(hosts_have_one_fingerprint),
        cmocka_unit_test(a_remote_shell_starts_agents),
        cmocka_unit_test(a_host_that_is_not_reached),
        cmocka_unit_test(another_connection_is_no_address),
        cmocka_unit_test(name_servers_that_do_not_answer_are_told),
        cmocka_unit_test(a_name_that_is_long_is_told),
        cmocka_unit_test(hosts_are_explained),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(standard_input_is_for_no_rank),
        cmocka_unit_test(hosts_come_from_a_file),
        cmocka_unit_test(metrics_and_logs_are_written),
        cmocka_unit_test(logs_go_on_after_a_restart),
        cmocka_unit_test(a_rank_that_is_not_there_has_no_log),
        cmocka_unit_test(a_log_that_is_lost_elsewhere_counts),
        cmocka_unit_test(output_is_whole),
        cmocka_unit_test(a_job_stops_on_request),
        cmocka_unit_test(a_job_that_waits_for_a_host_can_be_stopped),
        cmocka_unit_test(what_ranks_say_of_a_death_is_said_once),
        cmocka_unit_test(a_platform_starts_one_on_each_host),
    };
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
