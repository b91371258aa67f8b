// The liveness threads: what they see, what they must not take for a death or a silence, and that
// they hold no other rank up.

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/comm/comm_internal.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 5 };

static const uint64_t millisecond = 1000000;

// What has to come at all comes in this time, with which a time-out of 20 s is not needed.
static const uint64_t patience_ns = UINT64_C(15000000000);

/** What ranks and the test tell each other. */
struct board {
    _Atomic pid_t pids[MOST];
    atomic_int ready, released;
};

static struct board *board;

/** Rank 0's, where it has another one in its place. */
static const struct coll_transport *real_transport;

static int prepare(void **state)
{
    (void)state;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : 0;
}

static int clean_up(void **state)
{
    (void)state;
    return munmap(board, sizeof *board);
}

static void await(const atomic_int *counter, int count)
{
    while (atomic_load(counter) < count)
        usleep(1000);
}

/** The family fails without any call that waits. */
static bool learns(struct coll_comm *comm, zero_result result, const char *words)
{
    struct base_error error = {0};
    const uint64_t begin = base_clock_ns();
    while (coll_state(comm, NULL) == ZERO_OK && base_clock_ns() - begin < patience_ns)
        usleep(1000);
    CHECK(coll_state(comm, &error) == result);
    if (!strstr(error.message, words)) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    CHECK(coll_barrier(comm) == result);
    return true;
}

/* ------------------------------------------------------------------ deaths */

/** No rank waits for another, and all the same the others know. */
static bool dying_rank(struct coll_comm *comm, void *user)
{
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == *(const int *)user)
        raise(SIGKILL);
    char words[64];
    snprintf(words, sizeof words, "rank %d died; its last call: barrier #0", *(const int *)user);
    return learns(comm, ZERO_E_PEER, words);
}

static void a_death_is_seen_by_ranks_that_wait_for_nobody(void **state)
{
    (void)state;
    for (int world = 2; world <= MOST; world++)
        for (int victim = 0; victim < world; victim++)
            assert_true(
                run_ranks_watched(world, victim, 20000 * millisecond, 0, dying_rank, &victim));
}

/** Lets rank 1 come, pass and die between two looks of rank 0 at what it waits for. */
static int late_look(const struct coll_comm *root)
{
    atomic_store(&board->ready, 1);
    while (real_transport->dead_in_sight(root) < 0)
        usleep(1000);
    return real_transport->dead_in_sight(root);
}

static bool passing_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    if (coll_rank(comm) == 1) {
        await(&board->ready, 1);
        CHECK_OK(comm, coll_barrier(comm));
        raise(SIGKILL);
    }
    struct coll_transport late = *comm->transport;
    real_transport = comm->transport;
    late.dead_in_sight = late_look;
    comm->transport = &late;
    const zero_result result = coll_barrier(comm);
    comm->transport = real_transport;
    CHECK_OK(comm, result);
    return learns(comm, ZERO_E_PEER, "rank 1 died; its last call: barrier #0");
}

static void what_the_dead_have_come_to_is_completed(void **state)
{
    (void)state;
    atomic_store(&board->ready, 0);
    assert_true(run_ranks_watched(2, 1, 20000 * millisecond, 0, passing_rank, NULL));
}

/** Ranks 1 and 2 leave in peace; then rank 3 dies, and rank 0 has to watch it. */
static bool leaving_rank(struct coll_comm *comm, void *user)
{
    const uint64_t stall_ns = *(const uint64_t *)user;
    CHECK_OK(comm, coll_barrier(comm));
    const int rank = coll_rank(comm);
    if (rank == 1 || rank == 2) {
        usleep(20000 * (unsigned)rank);
        atomic_fetch_add(&board->ready, 1);
        return true;
    }
    await(&board->ready, 2);
    usleep(50000 + (unsigned)(stall_ns / 800)); // they have left, and are long silent
    CHECK(coll_state(comm, NULL) == ZERO_OK);
    atomic_fetch_add(&board->released, 1);
    await(&board->released, 2);
    if (rank == 3)
        raise(SIGKILL);
    return learns(comm, ZERO_E_PEER, "rank 3 died");
}

static void who_has_left_is_passed_over(void **state)
{
    (void)state;
    uint64_t stalls_ns[] = {0, 2500 * millisecond};
    for (int i = 0; i < 2; i++) {
        atomic_store(&board->ready, 0);
        atomic_store(&board->released, 0);
        assert_true(run_ranks_watched(4, 3, 20000 * millisecond, stalls_ns[i], leaving_rank,
                                      &stalls_ns[i]));
    }
}

/* ------------------------------------------------------------------ closing */

/** Rank 0 closes, and ends, while its neighbour stays, and nothing ticks. */
static bool closing_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 0) {
        atomic_store(&board->pids[0], getpid());
        return true;
    }
    const uint64_t begin = base_clock_ns();
    while (atomic_load(&board->pids[0]) == 0 || kill(atomic_load(&board->pids[0]), 0) == 0) {
        CHECK(base_clock_ns() - begin < patience_ns);
        usleep(1000);
    }
    return true;
}

static void closing_waits_for_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        atomic_store(&board->pids[0], 0);
        assert_true(run_ranks_watched(3, -1, 20000 * millisecond, 0, closing_rank, NULL));
    }
}

/** A child that a rank has forked closes the communicator, ends, and is no rank. */
static bool forking_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 1) {
        int status = -1;
        const pid_t child = fork();
        if (child == 0) {
            alarm(10);
            coll_close(comm);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        CHECK(system("exit 7") >> 8 == 7); // one that runs another program
    }
    for (int i = 0; i < 20; i++) {
        usleep(5000);
        CHECK_OK(comm, coll_barrier(comm));
    }
    return true;
}

static void a_forked_child_is_no_rank(void **state)
{
    (void)state;
    assert_true(
        run_ranks_watched(3, -1, 20000 * millisecond, 5000 * millisecond, forking_rank, NULL));
}

/* ------------------------------------------------------------------ time */

/** Suspends all ranks that have said who they are, for a time. */
static pid_t suspend_all(int world, unsigned us)
{
    const pid_t suspender = fork();
    if (suspender != 0)
        return suspender;
    await(&board->ready, world);
    usleep(100000);
    for (int rank = 0; rank < world; rank++)
        kill(atomic_load(&board->pids[rank]), SIGSTOP);
    usleep(us);
    for (int rank = 0; rank < world; rank++)
        kill(atomic_load(&board->pids[rank]), SIGCONT);
    atomic_store(&board->released, 1);
    _exit(0);
}

/** Rank 0 waits meanwhile, for rank 1, which comes afterwards. */
static bool suspended_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    atomic_store(&board->pids[coll_rank(comm)], getpid());
    atomic_fetch_add(&board->ready, 1);
    if (coll_rank(comm) == 1)
        await(&board->released, 1);
    CHECK_OK(comm, coll_barrier(comm));
    usleep(200000); // the threads tick
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void a_suspended_job_goes_on(void **state)
{
    (void)state;
    int status;
    atomic_store(&board->ready, 0);
    atomic_store(&board->released, 0);
    const pid_t suspender = suspend_all(3, 5000000);
    assert_true(
        run_ranks_watched(3, -1, 3500 * millisecond, 2500 * millisecond, suspended_rank, NULL));
    assert_int_equal(waitpid(suspender, &status, 0), suspender);
    assert_int_equal(status, 0);
}

/** One rank is stopped while no rank waits for it: the others learn it, and so does it when it goes
 * on. */
static bool stopped_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 2) {
        atomic_store(&board->pids[2], getpid());
        kill(getpid(), SIGSTOP);
        return learns(comm, ZERO_E_TIMEOUT, "rank 2 has given no sign of life for 2.5 s");
    }
    CHECK(learns(comm, ZERO_E_TIMEOUT,
                 "rank 2 has given no sign of life for 2.5 s (its process is stopped or starved); "
                 "its last call: barrier #0"));
    if (coll_rank(comm) == 0)
        kill(atomic_load(&board->pids[2]), SIGCONT);
    return true;
}

static void silence_is_a_failure(void **state)
{
    (void)state;
    assert_true(
        run_ranks_watched(3, -1, 20000 * millisecond, 2500 * millisecond, stopped_rank, NULL));
}

/* ------------------------------------------------------------------ opening */

/** One rank has no thread: no rank opens. */
static void open_without_thread(const char *job, int rank, bool *good)
{
    struct coll_comm *comm;
    struct base_error error = {0};
    const struct coll_config config = {.transport = "shm",
                                       .rank = rank,
                                       .world = 3,
                                       .job = job,
                                       .name = "test",
                                       .timeout_ns = 10000 * millisecond};
    if (rank == 1)
        base_fault_set("live.thread:eagain@1", NULL);
    const zero_result result = coll_open(&comm, &config, &error);
    *good = rank == 1 ? result == ZERO_E_NOMEM && strstr(error.message, "EAGAIN")
                      : result == ZERO_E_PEER && strstr(error.message, "rank 1");
    if (!*good)
        fprintf(stderr, "rank %d: %d %s\n", rank, result, error.message);
}

static void without_a_thread_nobody_opens(void **state)
{
    (void)state;
    char job[64];
    pid_t ranks[3];
    snprintf(job, sizeof job, "coll-live-%d", (int)getpid());
    for (int rank = 0; rank < 3; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] == 0) {
            bool good;
            open_without_thread(job, rank, &good);
            _exit(good ? 0 : 1);
        }
    }
    for (int rank = 0; rank < 3; rank++) {
        int status;
        assert_int_equal(waitpid(ranks[rank], &status, 0), ranks[rank]);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_seen_by_ranks_that_wait_for_nobody),
        cmocka_unit_test(what_the_dead_have_come_to_is_completed),
        cmocka_unit_test(who_has_left_is_passed_over),
        cmocka_unit_test(closing_waits_for_nothing),
        cmocka_unit_test(a_forked_child_is_no_rank),
        cmocka_unit_test(a_suspended_job_goes_on),
        cmocka_unit_test(silence_is_a_failure),
        cmocka_unit_test(without_a_thread_nobody_opens),
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
