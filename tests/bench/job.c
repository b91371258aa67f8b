#include "tests/bench/job.h"

#include "tests/ranks/bind.h"

#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int finish = -1;

enum { REST_NS = 5000000 };

int job_processes(int world, job_rank_fn fn, void *user)
{
    char job[64];
    cpu_set_t before; // rank 0 is bound, this process shall not be
    snprintf(job, sizeof job, "bench-%d-%d", (int)getpid(), world);
    fflush(NULL);
    const bool known = sched_getaffinity(0, sizeof before, &before) == 0;
    for (int r = 1; r < world; r++)
        if (fork() == 0)
            _exit(fn(r, world, job, user));
    int failed = fn(0, world, job, user);
    if (known)
        sched_setaffinity(0, sizeof before, &before);
    for (int r = 1; r < world; r++) {
        int status = 0;
        failed |= wait(&status) < 0 || status != 0;
    }
    return failed;
}

zero_result job_open(struct coll_comm **comm, int rank, int world, const char *job,
                     struct base_error *error)
{
    const struct coll_config config = {
        .transport = "shm",
        .rank = rank,
        .world = world,
        .job = job,
        .name = "bench",
        .timeout_ns = UINT64_C(60000000000),
    };
    if (!bind_rank(rank))
        return zero_fail(error, ZERO_E_IO, "rank %d can't be bound to a processor", rank);
    return coll_open(comm, &config, error);
}

/** What both functions of a row are given. */
struct pair {
    struct job *job;
    const struct job_row *row;
};

/** All ranks do the work; *seconds: from the last one's start to the last one's end. They rest
 * first: the scheduler lets those wait that have used more than their share in the work before. */
static zero_result run_once(struct job *job, int work, double *seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    zero_result r = coll_barrier(job->comm);
    const double begin = bench_now();
    if (!r)
        r = job->run(job->user, work);
    if (!r)
        r = coll_barrier(job->comm);
    *seconds = bench_now() - begin;
    return r;
}

static double timed(struct job *job, int work)
{
    double seconds;
    if (coll_broadcast(job->comm, &work, sizeof work, 0) || run_once(job, work, &seconds))
        return 0.0;
    return seconds;
}

static double ours(void *user)
{
    const struct pair *pair = user;
    return timed(pair->job, pair->row->work);
}

static double reference(void *user)
{
    const struct pair *pair = user;
    return timed(pair->job, pair->row->reference);
}

void job_measure(struct job *job, const struct job_row *row)
{
    char name[80];
    struct pair pair = {job, row};
    snprintf(name, sizeof name, "%s, %d ranks", row->name, coll_world(job->comm));
    const struct bench_row r = {
        .name = name,
        .reference_name = row->reference_name,
        .unit = row->unit,
        .ours_amount = row->amount,
        .reference_amount = row->reference_amount,
        .ours = ours,
        .reference = reference,
        .user = &pair,
        .target = row->target,
        .target_rate = row->target_rate,
    };
    bench_run(&r);
}

zero_result job_finish(struct job *job)
{
    int work = finish;
    return coll_broadcast(job->comm, &work, sizeof work, 0);
}

zero_result job_follow(struct job *job)
{
    for (;;) {
        int work;
        double seconds;
        zero_result r = coll_broadcast(job->comm, &work, sizeof work, 0);
        if (r || work == finish || (r = run_once(job, work, &seconds)))
            return r;
    }
}
