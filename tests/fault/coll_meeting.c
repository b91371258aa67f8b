// Ranks that meet over TCP, of which one fails at its Nth call, or dies: none hangs, none works
// alone, and what all had met for by then is told as it is told later, with the reason.

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "collectives/rendezvous/mesh.h"
#include "tests/unit/port.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 4, NTH = 16, PATIENCE_S = 300 };

static const uint64_t second = UINT64_C(1000000000);

/** What a rank saw. */
struct verdict {
    bool opened; /**< it had met the others */
    bool fired;  /**< its fault was injected, and did not end it */
    zero_result result;
    char message[512];
};

struct job {
    char name[64], fault[64];
    int victim; /**< who has the fault */
    uint64_t timeout_ns;
    int reserved;
    struct boot_master master;
    struct verdict *verdicts; /**< shared with the processes */
    pid_t pids[WORLD];
};

/* ------------------------------------------------------------------ ranks */

static void be_rank(const struct job *job, int rank)
{
    struct verdict *verdict = &job->verdicts[rank];
    struct base_error error = {.result = ZERO_OK};
    struct coll_comm *comm;
    const struct coll_config config = {.transport = "tcp",
                                       .rank = rank,
                                       .world = WORLD,
                                       .job = job->name,
                                       .name = "meeting",
                                       .master = &job->master,
                                       .timeout_ns = job->timeout_ns};
    base_fault_set(rank == job->victim ? job->fault : NULL, NULL);
    verdict->result = coll_open(&comm, &config, &error);
    verdict->opened = verdict->result == ZERO_OK;
    verdict->fired = base_fault_fired() > 0;
    base_fault_set(NULL, NULL);
    for (int i = 0; i < 3 && verdict->result == ZERO_OK; i++)
        verdict->result = coll_barrier(comm);
    if (comm)
        coll_state(comm, &error);
    snprintf(verdict->message, sizeof verdict->message, "%s", error.message);
    coll_close(comm);
}

static void start(struct job *job, const char *point, int victim, int nth, uint64_t timeout_ns)
{
    static unsigned jobs;
    *job = (struct job){.victim = victim, .timeout_ns = timeout_ns};
    snprintf(job->name, sizeof job->name, "meeting-%d-%u", (int)getpid(), jobs++);
    snprintf(job->fault, sizeof job->fault, "%s@%d", point, nth);
    snprintf(job->master.address, sizeof job->master.address, "127.0.0.1");
    snprintf(job->master.source, sizeof job->master.source, "the test");
    job->reserved = port_reserve(&job->master.port);
    assert_true(job->reserved >= 0);
    job->verdicts = mmap(NULL, WORLD * sizeof *job->verdicts, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job->verdicts != MAP_FAILED);
    for (int rank = 0; rank < WORLD; rank++) {
        job->pids[rank] = fork();
        assert_true(job->pids[rank] >= 0);
        if (job->pids[rank] == 0) {
            alarm(PATIENCE_S);
            be_rank(job, rank);
            _exit(0);
        }
    }
}

static void fail_job(const struct job *job, int rank, const char *what)
{
    for (int i = 0; i < WORLD; i++)
        print_message("rank %d: %s%d: %s\n", i,
                      job->verdicts[i].opened ? "had met the others, " : "",
                      job->verdicts[i].result, job->verdicts[i].message);
    fail_msg("%s on rank %d: rank %d %s", job->fault, job->victim, rank, what);
}

/** Whether the fault came. All then have failed, and said why, or all are well. */
static bool finish(struct job *job)
{
    bool harmed = job->verdicts[job->victim].fired;
    for (int rank = 0; rank < WORLD; rank++) {
        int status = 0;
        assert_int_equal(waitpid(job->pids[rank], &status, 0), job->pids[rank]);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (killed ? rank != job->victim : status != 0)
            fail_job(job, rank, "did not end by itself");
        harmed |= killed || job->verdicts[rank].fired;
    }
    close(job->reserved);
    const int other = job->victim == 0 ? 1 : 0;
    for (int rank = 0; rank < WORLD; rank++) {
        const struct verdict *verdict = &job->verdicts[rank];
        if (rank != job->victim && !verdict->result != !job->verdicts[other].result)
            fail_job(job, rank, "is well, or not, alone");
        if (strstr(verdict->message, "no message of this job"))
            fail_job(job, rank, "has heard nonsense");
        if (verdict->result && !verdict->message[0])
            fail_job(job, rank, "does not say why");
        if (verdict->result && !harmed)
            fail_job(job, rank, "has failed for no reason");
    }
    return harmed;
}

/* ------------------------------------------------------------------ tests */

/** A point on a rank, from its `first` hit on. */
struct sweep {
    const char *point;
    int victim, first;
    struct job jobs[NTH];
};

static void begin(struct sweep *sweep, uint64_t timeout_ns)
{
    for (int n = 0; n < NTH; n++)
        start(&sweep->jobs[n], sweep->point, sweep->victim, sweep->first + n, timeout_ns);
}

/** How many of them came, and are of those that a check is about. */
static int end(struct sweep *sweep, bool (*check)(const struct job *job))
{
    int count = 0;
    for (int n = 0; n < NTH; n++) {
        count += finish(&sweep->jobs[n]) && (!check || check(&sweep->jobs[n]));
        munmap(sweep->jobs[n].verdicts, WORLD * sizeof *sweep->jobs[n].verdicts);
    }
    return count;
}

/** One in which no rank waits for the time-out. */
static int try(const char *point, int victim, int first, bool (*check)(const struct job *job))
{
    static struct sweep sweep;
    sweep = (struct sweep){.point = point, .victim = victim, .first = first};
    begin(&sweep, 30 * second);
    return end(&sweep, check);
}

/** Whether it was that rank 0 could not tell one that all had met: that is a death to the others,
 * which are about to meet it as ranks of its host. */
static bool check_told(const struct job *job)
{
    char death[64];
    int victim = -1, count = 0;
    for (int rank = 1; rank < WORLD; rank++)
        if (strstr(job->verdicts[rank].message, "meeting rank 0 (host ")) {
            victim = rank;
            count++;
        }
    if (count != 1)
        return false;
    snprintf(death, sizeof death, "rank %d died on ", victim);
    for (int rank = 0; rank < WORLD; rank++)
        if (!strstr(job->verdicts[rank].message, rank == victim ? "meeting rank 0 (host " : death))
            fail_job(job, rank, "says something else");
    return true;
}

static void who_is_not_told_that_all_have_met(void **state)
{
    (void)state;
    assert_int_equal(try("boot.send:epipe", 0, 1, check_told), WORLD - 1);
    assert_int_equal(try("boot.send:enobufs", 0, 1, check_told), WORLD - 1);
}

/** Whether a rank has heard why another one could not go on. */
static bool knows_reason(const struct job *job, int rank)
{
    char name[64];
    const struct verdict *verdict = &job->verdicts[rank];
    snprintf(name, sizeof name, "rank %d on ", job->victim);
    return verdict->result == ZERO_E_NOMEM &&
           strstr(verdict->message, job->verdicts[job->victim].message) &&
           strncmp(verdict->message, name, strlen(name)) == 0;
}

/** A rank that had met the others and could not go on: all others hear why, whether they have met
 * as ranks of one host by then or not. */
static bool check_reason(const struct job *job)
{
    int count = 0;
    for (int rank = 0; rank < WORLD; rank++)
        count += rank != job->victim && knows_reason(job, rank);
    for (int rank = 0; rank < WORLD && count > 0; rank++)
        if (rank != job->victim && !knows_reason(job, rank))
            fail_job(job, rank, "does not know the reason");
    return count > 0;
}

static void who_cannot_go_on(void **state)
{
    (void)state;
    assert_int_equal(try("net.thread", 0, 1, check_reason), 1);
    assert_int_equal(try("net.thread", 2, 1, check_reason), 1);
    assert_true(try("alloc", 1, 25, check_reason) > 0); // the first 24 are before it calls
}

/** Some are missed until it is too late. */
static void who_dies(void **state)
{
    (void)state;
    static struct sweep sweeps[] = {
        {.point = "boot.send:kill", .victim = 0, .first = 1},
        {.point = "boot.send:kill", .victim = 2, .first = 1},
        {.point = "boot.receive:kill", .victim = 0, .first = 1},
        {.point = "boot.receive:kill", .victim = 2, .first = 1},
        {.point = "boot.receive:econnreset", .victim = 0, .first = 1},
        {.point = "boot.receive:econnreset", .victim = 2, .first = 1},
    };
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++)
        begin(&sweeps[i], 10 * second);
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++)
        assert_true(end(&sweeps[i], NULL) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_not_told_that_all_have_met),
        cmocka_unit_test(who_cannot_go_on),
        cmocka_unit_test(who_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
