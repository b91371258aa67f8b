/* In a steady step a rank that has a processor of its own asks the kernel for nothing: no system
 * call, no page fault, no allocation. Waiting for a rank that is late may yield and sleep, and the
 * machine is shared: the ranks begin each step when both have a processor, and of many steps one
 * without any will do, and in no step anything else. */
#include "base/clock.h"
#include "base/cpu.h"
#include "tests/ranks/bind.h"
#include "tests/ranks/syscalls.h"
#include "tests/ranks/toy.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, WARM_UP = 3, STEPS = 200 };

#define PATIENCE_NS UINT64_C(1000000000)

/** What a rank asked for in one step. */
struct asked {
    unsigned yields, futexes;
    unsigned looks; /**< for ranks that have died: now and then in a long wait */
    unsigned others;
    long faults;
    uint64_t allocations;
};

struct job {
    struct toy toy;
    int stage;
    const char *gather;
    _Atomic int begun[WORLD]; /**< steps */
    struct asked asked[WORLD][STEPS];
};

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static uint64_t allocations(const struct team_rank *rank)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    return zero_stats(rank->z, &stats) == ZERO_OK ? stats.step_allocations : UINT64_MAX;
}

static bool measured_step(struct team_rank *rank, const struct toy *toy, struct asked *asked)
{
    const uint64_t allocated = allocations(rank);
    const unsigned yields = syscalls_count(SYS_sched_yield), futexes = syscalls_count(SYS_futex);
    const unsigned looks = syscalls_count(SYS_epoll_wait), all = syscalls_total();
    const long faulted = faults();
    syscalls_begin();
    const bool good = toy_train(rank, toy, 1) && !zero_stop_requested(rank->z);
    syscalls_end();
    asked->faults = faults() - faulted;
    asked->yields = syscalls_count(SYS_sched_yield) - yields;
    asked->futexes = syscalls_count(SYS_futex) - futexes;
    if (asked->yields > 0)
        asked->looks = syscalls_count(SYS_epoll_wait) - looks;
    asked->others = syscalls_total() - all - asked->yields - asked->futexes - asked->looks;
    asked->allocations = allocations(rank) - allocated;
    return good;
}

/** Keeps its processor until the other rank has one too, or for so long that something is wrong. */
static void begin_together(struct job *job, int rank, int step)
{
    const uint64_t began = base_clock_ns();
    atomic_store(&job->begun[rank], step + 1);
    while (atomic_load(&job->begun[1 - rank]) <= step && base_clock_ns() - began < PATIENCE_NS)
        base_cpu_relax();
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const char *why;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    TEAM_CHECK(bind_rank(rank->rank) && syscalls_prepare(&why));
    // The first zero_stop_requested() takes signals.
    if (!toy_open(rank, &job->toy) || !toy_train(rank, &job->toy, WARM_UP) ||
        zero_stop_requested(rank->z))
        return false;
    for (int s = 0; s < STEPS; s++) {
        begin_together(job, rank->rank, s);
        if (!measured_step(rank, &job->toy, &job->asked[rank->rank][s]))
            return false;
    }
    return true;
}

/** Prints what the ranks asked for. Returns how many steps needed nothing; no step may need
 * anything else than its turn. */
static int count_free_steps(const struct job *job)
{
    struct asked sum = {0};
    int free_steps = 0;
    for (int s = 0; s < STEPS; s++) {
        bool nothing = true;
        for (int r = 0; r < WORLD; r++) {
            const struct asked *a = &job->asked[r][s];
            nothing &= a->yields + a->futexes + a->others == 0 && a->faults == 0;
            sum.yields += a->yields;
            sum.futexes += a->futexes;
            sum.looks += a->looks;
            sum.others += a->others;
            sum.faults += a->faults;
            sum.allocations += a->allocations;
        }
        free_steps += nothing;
    }
    print_message(
        "stage %d, gather=%s: %d of %d steps asked for nothing; in the others %u yields, "
        "%u futexes, %u looks for the dead, %u other calls, %ld page faults, %llu allocations\n",
        job->stage, job->gather, free_steps, STEPS, sum.yields, sum.futexes, sum.looks, sum.others,
        sum.faults, (unsigned long long)sum.allocations);
    assert_int_equal(sum.others, 0);
    assert_int_equal(sum.allocations, 0);
    return free_steps;
}

/** Trains on a machine that others may use, too, until some step had the processors it needs. */
static bool is_steady(struct job *job)
{
    int free_steps = 0;
    for (int turn = 0; turn < 20 && free_steps == 0; turn++) {
        memset(job->asked, 0, sizeof job->asked);
        assert_true(team_run("shm", WORLD, train, job));
        free_steps = count_free_steps(job);
    }
    return free_steps > 0;
}

static void step_asks_for_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int shared = 0; shared < (stage == 0 ? 1 : 2); shared++) {
            struct job *job = team_shared(sizeof *job);
            assert_non_null(job);
            *job = (struct job){.toy = toy_odd, .stage = stage};
            job->toy.micro_batches = WORLD;
            job->gather = shared ? "shared" : "copy";
            assert_true(is_steady(job));
            team_shared_free(job, sizeof *job);
        }
}

/** Whether calls are counted, and reading the clock is none. */
static int check_machine(const char **why)
{
    if (!syscalls_prepare(why))
        return 77;
    syscalls_begin();
    sched_yield();
    const unsigned yielded = syscalls_total();
    base_clock_ns();
    const unsigned read = syscalls_total() - yielded;
    syscalls_end();
    *why = "system calls are not counted";
    if (yielded != 1 || syscalls_count(SYS_sched_yield) != 1)
        return 1;
    *why = "this kernel's clock can't be read without a system call";
    if (read > 0)
        return 77;
    *why = "two ranks need two processors";
    return base_cpu_allowed() < WORLD ? 77 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_asks_for_nothing),
    };
    const char *why;
    const int unfit = check_machine(&why);
    if (unfit != 0) {
        fprintf(stderr, "ranks.steady: %s\n", why);
        return unfit;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
