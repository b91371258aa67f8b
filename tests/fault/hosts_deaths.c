// Ranks, agents and whole hosts of a job on three hosts die, fall silent, or are cut off: each rank
// that is left is told which rank on which host, the job goes on on the hosts that are left, and
// ends with the bits of a run that nothing has disturbed:
//
//     hosts_deaths <zero-run> <far_rank>             some deaths, and a job that is suspended
//     hosts_deaths <zero-run> <far_rank> whole       all deaths and silences, each way, and by UCX
//
// Hosts are network namespaces with one table of processes. A platform has started zero-run on each
// of them, or zero-run starts its agents there by a remote shell of the test's.
#include "base/clock.h"
#include "base/error.h"
#include "tests/ranks/far_report.h"
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/run_command.h"
#include "tests/ranks/ucx_here.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    HOSTS = 3,
    EACH = 2, /**< ranks of a host */
    WORLD = HOSTS * EACH,
    LOST = 1, /**< the host that has bad luck */
    STALL_S = 2,
    AGENT_S = 3,
    PATIENCE_S = 60
};

static const char *far_rank;
static int jobs; /**< how many there have been: each has its directory and its port */

/* ------------------------------------------------------------------ a job */

struct job {
    struct run_command runs[HOSTS];
    int count; /**< of these */
    bool by_hand;
    uint64_t struck_ns;
};

/** What is behind the options of each zero-run. */
static void add_program(const char **list)
{
    static char checkpoints[96], stage[8];
    snprintf(checkpoints, sizeof checkpoints, "%s/job-%d", run_directory.directory, jobs);
    snprintf(stage, sizeof stage, "%d", jobs % 4);
    const char *const rest[] = {
        "-o", "stall_s=2", "-o",     "timeout_s=20", "--grace", "2",  "--agent-timeout",
        "3",  "--",        far_rank, checkpoints,    stage,     "30", NULL};
    memcpy(list, rest, sizeof rest);
}

static void start_on(struct run_command *run, int host, const char *const *options)
{
    assert_true(net_hosts_enter(host));
    run_command_start(run, options);
    assert_true(net_hosts_leave());
}

static void start_host(struct job *job, int host)
{
    char master[32], index[8];
    const char *options[32] = {"--nodes", "3", "--master", master, "-n", "1:2"};
    snprintf(master, sizeof master, "10.31.0.1:%d", 20000 + jobs);
    snprintf(index, sizeof index, "%d", host);
    add_program(options + 6);
    assert_int_equal(setenv("JOB_COMPLETION_INDEX", index, 1), 0);
    start_on(&job->runs[host], host, options);
    unsetenv("JOB_COMPLETION_INDEX");
}

static void start_by_platform(struct job *job)
{
    jobs++;
    *job = (struct job){.count = HOSTS};
    for (int host = HOSTS - 1; host >= 0; host--)
        start_host(job, host);
}

// A remote shell that comes to all hosts but one that is gone.
static const char *make_shell(void)
{
    const char *path = temporary_path(&run_directory, "rsh");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\nhost=$1; shift\n[ -e $D/gone-$host ] && exit 255\ncase $host in\n");
    for (int host = 0; host < HOSTS; host++)
        fprintf(file, "10.31.0.%d) process=%d ;;\n", host + 1, (int)net_hosts_holder(host));
    fprintf(file, "esac\nexec nsenter --target $process --net --uts \"$@\"\n");
    fclose(file);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static void start_by_hand(struct job *job)
{
    const char *options[32] = {
        "--hosts", "10.31.0.1:2,10.31.0.2:2,10.31.0.3:2", "--rsh", make_shell(), "-n", "3:6"};
    jobs++;
    *job = (struct job){.count = 1, .by_hand = true};
    unlink(temporary_path(&run_directory, "gone-10.31.0.2"));
    add_program(options + 6);
    start_on(&job->runs[0], 0, options);
}

/** A number behind words in what the ranks have written; 0: it is not there. */
static long find_number(const struct job *job, const char *words, const char *then)
{
    static char text[32768];
    const ssize_t count = pread(fileno(job->runs[0].files[0]), text, sizeof text - 1, 0);
    text[count > 0 ? count : 0] = '\0';
    const char *at = strstr(text, words), *end = at ? strchr(at, '\n') : NULL;
    const char *number = end ? strstr(at, then) : NULL;
    return number && number < end ? strtol(number + strlen(then), NULL, 10) : 0;
}

/** The process of a rank, once all ranks have finished some steps, and saved. */
static pid_t await_ranks(const struct job *job, int wanted)
{
    char words[32];
    pid_t pid = 0;
    for (int rank = 0; rank < WORLD; rank++) {
        snprintf(words, sizeof words, "rank %d in step", rank);
        run_await_output(&job->runs[0], words);
        if (rank != wanted)
            continue;
        while (pid == 0)
            pid = (pid_t)find_number(job, words, "process ");
    }
    return pid;
}

/* ------------------------------------------------------------------ what befalls it */

enum blow { KILL_RANK, KILL_AGENT, KILL_HOST, PULL_CABLE, STOP_HOST };

/** What zero-run calls the host that has bad luck. */
static const char *const names[2] = {"1 (hostb)", "10.31.0.2"};

static const struct fault {
    enum blow blow;
    const char *name;
    zero_result told;  /**< what the calls of the other ranks return */
    const char *said;  /**< by zero-run, with the name of the host */
    const char *again; /**< with how many ranks it goes on */
    double within_s;   /**< so soon are the other ranks told, on a busy machine, too */
} faults[] = {
    {KILL_RANK, "a rank is killed", ZERO_E_PEER, "rank 3 on host %s (process ", "with 5 ranks", 5},
    {KILL_AGENT, "an agent is killed", ZERO_E_PEER, "host %s with ranks 2 to 3 is lost: its agent",
     "with 4 ranks", 5},
    {KILL_HOST, "all processes of a host are killed", ZERO_E_PEER,
     "host %s with ranks 2 to 3 is lost: its agent", "with 4 ranks", 5},
    {PULL_CABLE, "a cable is pulled", ZERO_E_TIMEOUT,
     "host %s with ranks 2 to 3 is lost: nothing has been heard of it for 3 s", "with 4 ranks",
     STALL_S + 5},
    {STOP_HOST, "all processes of a host are stopped", ZERO_E_TIMEOUT,
     "host %s with ranks 2 to 3 is lost: nothing has been heard of it for 3 s", "with 4 ranks",
     STALL_S + 5},
};

// Not its guardian.
static void keep_agent(pid_t pid, void *found)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(name, sizeof name, file) && !strcmp(name, "zero-run\n"))
        *(pid_t *)found = pid;
    if (file)
        fclose(file);
}

static void strike(struct job *job, enum blow blow, pid_t rank)
{
    pid_t agent = 0;
    if (blow != KILL_RANK) // no shell comes there any more
        run_give_sign("gone-10.31.0.2");
    net_hosts_visit(LOST, keep_agent, &agent);
    job->struck_ns = base_clock_ns();
    switch (blow) {
    case KILL_RANK:
        assert_int_equal(kill(rank, SIGKILL), 0);
        break;
    case KILL_AGENT:
        assert_true(agent > 0 && kill(agent, SIGKILL) == 0);
        break;
    case KILL_HOST:
        assert_true(net_hosts_signal(LOST, SIGKILL) > 0);
        break;
    case PULL_CABLE:
        assert_true(net_hosts_plug(LOST, false));
        break;
    case STOP_HOST:
        assert_true(net_hosts_signal(LOST, SIGSTOP) > EACH);
        break;
    }
}

static void make_good(enum blow blow)
{
    if (blow == PULL_CABLE)
        assert_true(net_hosts_plug(LOST, true));
    if (blow == STOP_HOST)
        net_hosts_signal(LOST, SIGCONT);
}

/* ------------------------------------------------------------------ what comes of it */

static bool has_words(const char *line, const char *words)
{
    const char *at = strstr(line, words);
    return at && at < line + strcspn(line, "\n");
}

/** Whether a rank of the host that has bad luck is named, with the host. */
static bool names_the_lost(const struct fault *fault, const char *line)
{
    const bool host = has_words(line, "hostb"), last = has_words(line, "rank 3 ");
    return host && (last || (fault->blow != KILL_RANK && has_words(line, "rank 2 ")));
}

/** All ranks that are left are told in time. How long it has taken. */
static double check_told(const struct job *job, const struct fault *fault, const char *output)
{
    double longest = 0;
    for (int rank = 0; rank < WORLD; rank++) {
        struct far_report report;
        const bool lost = fault->blow == KILL_RANK ? rank == 3 : rank / EACH == LOST;
        if (lost)
            continue;
        if (!far_report_read(output, rank, &report))
            fail_msg("%s: rank %d says nothing: %s", fault->name, rank, output);
        const double took = (double)(report.at_ns - job->struck_ns) * 1e-9;
        longest = took > longest ? took : longest;
        if (report.result != (int)fault->told || !names_the_lost(fault, report.text) ||
            took > fault->within_s)
            fail_msg("%s: rank %d is told in %.3f s: %d, %.*s", fault->name, rank, took,
                     report.result, (int)strcspn(report.text, "\n"), report.text);
    }
    return longest;
}

static void expect_empty_hosts(const char *name)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    for (int host = 0; host < HOSTS; host++)
        while (net_hosts_visit(host, NULL, NULL) > 0) {
            if (base_clock_s() > deadline)
                fail_msg("%s: processes are left on host%c", name, 'a' + host);
            usleep(10000);
        }
}

// It goes on from a checkpoint.
static bool is_resumed(const char *output)
{
    const char *first = strstr(output, "resumed ");
    const char *second = first ? strstr(first + 1, "resumed ") : NULL;
    return second && strtol(second + strlen("resumed "), NULL, 10) > 0;
}

static void check_end(struct job *job, const struct fault *fault)
{
    struct run_command *run = &job->runs[0];
    char said[128];
    snprintf(said, sizeof said, fault->said, names[job->by_hand]);
    run_command_finish_in(run, PATIENCE_S);
    if (run->status || !strstr(run->err, said) || !strstr(run->err, fault->again) ||
        !is_resumed(run->out) || !strstr(run->out, "as undisturbed"))
        fail_msg("%s: status %d, no \"%s\", or not resumed: %s%s", fault->name, run->status, said,
                 run->out, run->err);
    print_message("%s: the others are told in %.1f ms, the job has ended in %.1f s\n", fault->name,
                  check_told(job, fault, run->out) * 1e3, run->seconds);
    make_good(fault->blow);
    for (int host = 1; host < job->count; host++) {
        run_command_finish_in(&job->runs[host], PATIENCE_S);
        const bool well = host != LOST || fault->blow == KILL_RANK;
        if (well != (job->runs[host].status == 0))
            fail_msg("%s: host %d: status %d, %s", fault->name, host, job->runs[host].status,
                     job->runs[host].err);
    }
    for (int host = 0; host < job->count; host++)
        run_command_free(&job->runs[host]);
    expect_empty_hosts(fault->name);
}

static void suffer(void (*start)(struct job *job), const struct fault *fault)
{
    struct job job;
    start(&job);
    strike(&job, fault->blow, await_ranks(&job, 3));
    check_end(&job, fault);
}

/* ------------------------------------------------------------------ tests */

static void some_deaths(void **state)
{
    (void)state;
    suffer(start_by_platform, &faults[KILL_RANK]);
    suffer(start_by_hand, &faults[KILL_AGENT]);
    suffer(start_by_hand, &faults[KILL_HOST]);
}

static void all_faults_on_a_platform(void **state)
{
    (void)state;
    for (enum blow blow = KILL_RANK; blow <= STOP_HOST; blow++)
        suffer(start_by_platform, &faults[blow]);
}

// What comes by the test's remote shell does not go through the cable.
static void all_faults_by_hand(void **state)
{
    (void)state;
    for (enum blow blow = KILL_RANK; blow <= STOP_HOST; blow++)
        if (blow != PULL_CABLE)
            suffer(start_by_hand, &faults[blow]);
}

static void all_faults_by_ucx(void **state)
{
    if (!ucx_is_here())
        return;
    for (int i = 0; ucx_settings[i]; i++)
        putenv((char *)(uintptr_t)ucx_settings[i]);
    all_faults_on_a_platform(state);
}

// Then there is no job any more, and nothing of it.
static void the_first_host_is_lost(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        struct job job;
        start_by_platform(&job);
        await_ranks(&job, 3);
        if (cut)
            assert_true(net_hosts_plug(0, false));
        else
            assert_true(net_hosts_signal(0, SIGKILL) > 0);
        for (int host = 1; host < HOSTS; host++) {
            run_command_finish_in(&job.runs[host], PATIENCE_S);
            if (job.runs[host].status == 0)
                fail_msg("host %d: %s", host, job.runs[host].err);
            run_command_free(&job.runs[host]);
        }
        if (cut) {
            assert_true(net_hosts_plug(0, true));
            net_hosts_signal(0, SIGKILL);
        }
        run_command_finish_in(&job.runs[0], PATIENCE_S);
        run_command_free(&job.runs[0]);
        expect_empty_hosts("the first host is lost");
    }
}

// The job is whole again, but for the rank that each failure costs.
static void a_platform_starts_a_host_again(void **state)
{
    (void)state;
    struct job job;
    struct run_command *run = &job.runs[LOST];
    start_by_platform(&job);
    await_ranks(&job, 3);
    kill(run->pid, SIGKILL);
    run_command_finish(run);
    run_command_free(run);
    start_host(&job, LOST);
    for (int host = HOSTS - 1; host >= 0; host--) {
        run = &job.runs[host];
        run_command_finish_in(run, PATIENCE_S);
        if (run->status ||
            (host == 0 && (!strstr(run->err, "with 5 ranks") || !is_resumed(run->out) ||
                           !strstr(run->out, "as undisturbed"))))
            fail_msg("host %d: status %d: %s%s", host, run->status, run->out, run->err);
        run_command_free(run);
    }
    expect_empty_hosts("a host comes again");
}

/* ------------------------------------------------------------------ a job that is suspended */

static void await_state(pid_t pid, bool stopped)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while ((run_process_state(pid) == 'T') != stopped) {
        if (base_clock_s() > deadline)
            fail_msg("process %d is in state %c", (int)pid, run_process_state(pid));
        usleep(1000);
    }
}

// Nothing has failed, and nothing is said.
static void suspend(void (*start)(struct job *job), unsigned ms)
{
    struct job job;
    struct run_command *run = &job.runs[0];
    pid_t pids[WORLD];
    run_command_grouped = true;
    start(&job);
    run_command_grouped = false;
    for (int rank = 0; rank < WORLD; rank++)
        pids[rank] = await_ranks(&job, rank);
    kill(run->pid, SIGTSTP);
    await_state(run->pid, true);
    for (int rank = 0; rank < WORLD; rank++)
        await_state(pids[rank], true);
    usleep(ms * 1000);
    kill(run->pid, SIGCONT);
    for (int host = 0; host < job.count; host++) {
        run = &job.runs[host];
        run_command_finish_in(run, PATIENCE_S);
        const bool well = host != 0 || (!*run->err && strstr(run->out, "as undisturbed"));
        if (run->status || !well)
            fail_msg("host %d: status %d: %s%s", host, run->status, run->out, run->err);
        run_command_free(run);
    }
    expect_empty_hosts("a suspended job");
}

static void a_suspended_job_goes_on(void **state)
{
    (void)state;
    suspend(start_by_hand, 300);
}

// Also if all stands for longer than a host or a rank may be silent.
static void a_job_is_suspended_for_long(void **state)
{
    (void)state;
    suspend(start_by_hand, (AGENT_S + 1) * 1000);
    suspend(start_by_platform, (AGENT_S + 1) * 1000);
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
    run_command_grouped = false;
    for (int host = 0; host < HOSTS; host++) {
        net_hosts_plug(host, true);
        net_hosts_signal(host, SIGKILL);
    }
    return 0;
}

static int tear_down(void **state)
{
    net_hosts_end();
    return run_remove_directory(state);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    run_command_path = argv[1];
    far_rank = argv[2];
    const char *lacks = net_hosts_make(HOSTS);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    const struct CMUnitTest some[] = {
        cmocka_unit_test_teardown(some_deaths, clear_hosts),
        cmocka_unit_test_teardown(a_suspended_job_goes_on, clear_hosts),
    };
    const struct CMUnitTest whole[] = {
        cmocka_unit_test_teardown(all_faults_on_a_platform, clear_hosts),
        cmocka_unit_test_teardown(all_faults_by_hand, clear_hosts),
        cmocka_unit_test_teardown(a_platform_starts_a_host_again, clear_hosts),
        cmocka_unit_test_teardown(a_job_is_suspended_for_long, clear_hosts),
        cmocka_unit_test_teardown(the_first_host_is_lost, clear_hosts),
        cmocka_unit_test_teardown(all_faults_by_ucx, clear_hosts),
    };
    return argc > 3 ? cmocka_run_group_tests(whole, set_up, tear_down)
                    : cmocka_run_group_tests(some, set_up, tear_down);
}
