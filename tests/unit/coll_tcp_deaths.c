// The end of a rank, or of a connection, as ranks of several hosts see it: all of them in the same
// failure.

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

enum { WORLD = 3 };

static const uint64_t second = UINT64_C(1000000000);

static bool ends_in(struct coll_comm *comm, zero_result expected, const char *words)
{
    struct base_error error = {0};
    zero_result result = ZERO_OK;
    while (result == ZERO_OK)
        result = coll_barrier(comm);
    CHECK(coll_state(comm, &error) == result);
    if (result == expected && strstr(error.message, words))
        return true;
    fprintf(stderr, "rank %d: %d: %s\n", coll_rank(comm), result, error.message);
    return false;
}

static bool killed_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 1)
        kill(getpid(), SIGKILL);
    return ends_in(comm, ZERO_E_PEER, "rank 1 died on host1; its last call: barrier #0");
}

static bool stopped_rank(struct coll_comm *comm, void *user)
{
    pid_t *victim = user;
    if (coll_rank(comm) == 1)
        *victim = getpid();
    CHECK_OK(comm, coll_broadcast(comm, victim, sizeof *victim, 1));
    coll_barrier(comm); // whom it ends has the number
    if (coll_rank(comm) == 1)
        raise(SIGSTOP);
    const bool good = ends_in(comm, ZERO_E_TIMEOUT, coll_rank(comm) == 1 ? "" : "rank 1 has given");
    if (coll_rank(comm) == 0) {
        usleep(100000);
        kill(*victim, SIGKILL);
    }
    return good;
}

/** Every operation that waits for others, until rank 1 dies at a point of one. */
static bool sudden_rank(struct coll_comm *comm, void *user)
{
    enum { COUNT = 5000 };
    static float source[WORLD * COUNT], result[WORLD * COUNT];
    const int me = coll_rank(comm);
    struct coll_span spans[WORLD], elements[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        elements[rank] = (struct coll_span){(size_t)rank * COUNT, COUNT};
        spans[rank] =
            (struct coll_span){elements[rank].offset * sizeof(float), sizeof(float) * COUNT};
    }
    const struct coll_all_gather gather = {.source = source, .recv = result, .spans = spans};
    const struct coll_reduce_scatter reduce = {.source = source,
                                               .dtype = ZERO_F32,
                                               .spans = elements,
                                               .accumulator = result,
                                               .contributors = WORLD,
                                               .store = true};
    const struct coll_all_reduce sum = {
        .source = source, .result = result, .count = COUNT, .dtype = ZERO_F32};
    const struct coll_message send = {source, sizeof source, (me + 1) % WORLD, {0}};
    const struct coll_message receive = {result, sizeof result, (me + 2) % WORLD, {0}};
    coll_barrier(comm);
    if (me == 1)
        CHECK(base_fault_set(user, NULL) == ZERO_OK);
    for (int turn = 0; turn < 100 && coll_state(comm, NULL) == ZERO_OK; turn++) {
        struct coll_request requests[5] = {0};
        coll_all_gather_start(comm, &gather, &requests[0]);
        coll_reduce_scatter_start(comm, &reduce, &requests[1]);
        coll_drain(comm, &requests[0]);
        coll_drain(comm, &requests[1]);
        coll_all_reduce_start(comm, &sum, &requests[2]);
        coll_drain(comm, &requests[2]);
        coll_send_start(comm, &send, &requests[3]);
        coll_receive_start(comm, &receive, &requests[4]);
        coll_drain(comm, &requests[3]);
        coll_drain(comm, &requests[4]);
    }
    return ends_in(comm, ZERO_E_PEER, "rank 1 died on host1; its last call: ");
}

static void deaths(void **state)
{
    (void)state;
    static char *const points[] = {"coll.all-gather.post:kill@2",
                                   "coll.all-gather.read:kill@5",
                                   "coll.reduce-scatter.meet:kill@4",
                                   "coll.reduce-scatter.done:kill@2",
                                   "coll.all-reduce.read:kill@2",
                                   "coll.all-reduce.done:kill@2",
                                   "coll.send.post:kill@2",
                                   "coll.receive.read:kill@2",
                                   "net.send:kill@20",
                                   "net.receive:kill@20"};
    pid_t victim = 0;
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        assert_true((i % 2 ? run_hosts_watched : run_tcp_watched)(WORLD, 1, 20 * second, 0,
                                                                  sudden_rank, points[i]));
    assert_true(run_tcp_watched(WORLD, 1, 20 * second, 0, killed_rank, NULL));
    assert_true(run_hosts_watched(WORLD, 1, 20 * second, 0, killed_rank, NULL));
    assert_true(run_tcp_watched(WORLD, 1, 20 * second, second, stopped_rank, &victim));
    assert_true(run_hosts_watched(WORLD, 1, 20 * second, second, stopped_rank, &victim));
}

/** A connection that breaks while this rank sends, on whichever thread. */
static bool cut_off_rank(struct coll_comm *comm, void *user)
{
    if (coll_rank(comm) != 0)
        return ends_in(comm, ZERO_E_PEER, "rank 0 died on host0");
    CHECK(base_fault_set(user, NULL) == ZERO_OK);
    return ends_in(comm, ZERO_E_PEER, "(the connection: Connection timed out)");
}

static void broken_connections(void **state)
{
    (void)state;
    for (int send = 1; send <= 20; send++) {
        char fault[32];
        snprintf(fault, sizeof fault, "net.send:etimedout@%d", send);
        assert_true(run_ranks("tcp", 2, 0, cut_off_rank, fault));
    }
}

/* ------------------------------------------------------------------ a child that lives on */

/** Rank 1 dies and has a child, whose number is *user, that has copies of its connections. */
static bool survived_rank(struct coll_comm *comm, void *user)
{
    _Atomic pid_t *child = user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 1) {
        const pid_t pid = fork();
        if (pid == 0) {
            pause();
            _exit(0);
        }
        atomic_store(child, pid);
        kill(getpid(), SIGKILL);
    }
    const uint64_t begin = base_clock_ns();
    CHECK(ends_in(comm, ZERO_E_PEER, "rank 1 died on host1"));
    CHECK(base_clock_ns() - begin < 2 * second);
    return true;
}

static void a_child_keeps_no_connection(void **state)
{
    (void)state;
    _Atomic pid_t *child =
        mmap(NULL, sizeof *child, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(child != MAP_FAILED);
    const bool good = run_tcp_watched(WORLD, 1, 20 * second, 0, survived_rank, (void *)child);
    assert_int_equal(kill(atomic_load(child), SIGKILL), 0); // it was there all the time
    assert_true(good);
    munmap((void *)child, sizeof *child);
}

/* ------------------------------------------------------------------ the same failure */

/** What the ranks tell the one who looks after them, and how two of them end. */
struct board {
    _Atomic pid_t pids[3];
    atomic_int ready, ended;
    char messages[2][COLL_MESSAGE_BYTES];
};

/** Rank 2 is killed. Rank 1 is suspended until rank 0 knows, and rank 0 just before it says so. */
static bool mourning_rank(struct coll_comm *comm, void *user)
{
    struct board *board = user;
    const int me = coll_rank(comm);
    struct base_error error = {0};
    CHECK_OK(comm, coll_barrier(comm));
    usleep(50000); // by then no rank has anything else to say
    atomic_store(&board->pids[me], getpid());
    if (me == 0)
        CHECK(base_fault_set("net.send:stop@1", NULL) == ZERO_OK);
    atomic_fetch_add(&board->ready, 1);
    if (me == 1)
        raise(SIGSTOP);
    while (coll_state(comm, &error) == ZERO_OK)
        usleep(1000);
    memcpy(board->messages[me], error.message, sizeof board->messages[me]);
    atomic_fetch_add(&board->ended, 1);
    return true;
}

/** Kills rank 2, and lets rank 1 go on, and then, when that might have lost patience, rank 0. */
static pid_t look_after(struct board *board)
{
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    while (atomic_load(&board->ready) < 3)
        usleep(1000);
    usleep(100000);
    kill(atomic_load(&board->pids[2]), SIGKILL);
    usleep(100000);
    kill(atomic_load(&board->pids[1]), SIGCONT);
    usleep(300000);
    while (atomic_load(&board->ended) < 2) {
        kill(atomic_load(&board->pids[0]), SIGCONT);
        kill(atomic_load(&board->pids[1]), SIGCONT);
        usleep(10000);
    }
    _exit(0);
}

/** Who is late to tell of a death ends in the same failure as the others. */
static void late_mourners(void **state)
{
    (void)state;
    int status;
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    const pid_t keeper = look_after(board);
    assert_true(keeper > 0);
    const bool good = run_tcp_watched(3, 2, 20 * second, 0, mourning_rank, board);
    if (!good)
        kill(keeper, SIGKILL);
    assert_int_equal(waitpid(keeper, &status, 0), keeper);
    assert_true(good);
    assert_string_equal(board->messages[1], board->messages[0]);
    assert_non_null(strstr(board->messages[0], "rank 2 died on host2"));
    munmap(board, sizeof *board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deaths),
        cmocka_unit_test(broken_connections),
        cmocka_unit_test(a_child_keeps_no_connection),
        cmocka_unit_test(late_mourners),
    };
    return cmocka_run_group_tests_name("coll_tcp_deaths", tests, NULL, NULL);
}
