#include "tests/ranks/net_job.h"

#include "base/clock.h"
#include "tests/ranks/net_hosts.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_S = 60 };

static int world_of(const struct net_job *job)
{
    return (int)strlen(job->hosts);
}

/** Ranks of the same host among the first `count`. */
static int count_beside(const struct net_job *job, int rank, int count)
{
    int beside = 0;
    for (int other = 0; other < count; other++)
        beside += job->hosts[other] == job->hosts[rank];
    return beside;
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

// A port of its own for each job: the kernel may keep that of the job before.
static void set_environment(const struct net_job *job, int rank)
{
    char address[32];
    snprintf(address, sizeof address, "10.31.0.%d", job->hosts[0] - 'a' + 1);
    setenv("MASTER_ADDR", address, 1);
    set_number("MASTER_PORT", 6105);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_of(job));
    set_number("LOCAL_RANK", count_beside(job, rank, rank));
    set_number("LOCAL_WORLD_SIZE", count_beside(job, rank, world_of(job)));
    for (int i = 0; job->settings && job->settings[i]; i++)
        putenv((char *)(uintptr_t)job->settings[i]);
}

static _Noreturn void be_rank(const struct net_job *job, int rank)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!net_hosts_enter(job->hosts[rank] - 'a'))
        _exit(98);
    set_environment(job, rank);
    dup2(fileno(job->output), STDOUT_FILENO);
    dup2(fileno(job->output), STDERR_FILENO);
    execv(job->program[0], (char *const *)(uintptr_t)job->program);
    _exit(99);
}

void net_job_start(struct net_job *job)
{
    assert_true(world_of(job) <= NET_JOB_RANKS);
    job->output = tmpfile();
    assert_non_null(job->output);
    job->started = base_clock_s();
    for (int rank = 0; rank < world_of(job); rank++) {
        job->pids[rank] = fork();
        assert_true(job->pids[rank] >= 0);
        if (job->pids[rank] == 0)
            be_rank(job, rank);
    }
}

int net_job_wait(struct net_job *job, int rank, int seconds)
{
    const double deadline = base_clock_s() + seconds;
    int status;
    pid_t ended;
    while ((ended = waitpid(job->pids[rank], &status, WNOHANG)) == 0) {
        if (base_clock_s() > deadline) {
            for (int other = 0; other < world_of(job); other++)
                kill(job->pids[other], SIGKILL);
            fail_msg("%s: rank %d has not ended in %d s: %s", job->hosts, rank, seconds,
                     net_job_text(job));
        }
        usleep(2000);
    }
    assert_int_equal(ended, job->pids[rank]);
    return status;
}

const char *net_job_text(const struct net_job *job)
{
    static char text[16384];
    const ssize_t count = pread(fileno(job->output), text, sizeof text - 1, 0);
    text[count > 0 ? count : 0] = '\0';
    return text;
}

static int count_words(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

void net_job_await(const struct net_job *job, const char *words, int times)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    while (count_words(net_job_text(job), words) < times) {
        if (base_clock_s() > deadline)
            fail_msg("not %d times \"%s\": %s", times, words, net_job_text(job));
        usleep(1000);
    }
}

void net_job_end(struct net_job *job)
{
    fclose(job->output);
    job->output = NULL;
}

double net_job_finish(struct net_job *job, int seconds)
{
    for (int rank = 0; rank < world_of(job); rank++) {
        const int status = net_job_wait(job, rank, seconds);
        if (status)
            fail_msg("%s: rank %d: status %x: %s", job->hosts, rank, status, net_job_text(job));
    }
    const double took = base_clock_s() - job->started;
    net_job_end(job);
    return took;
}
