// What a rank says while it waits for others in an operation: which communicator, which operation,
// which ranks, at growing intervals, and not in every step that is a little late.
#include "base/clock.h"
#include "collectives/comm/comm.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 6, LINES = 16 };

static const uint64_t millisecond = 1000000;

/** What a rank does with its two communicators. */
struct act;
typedef void (*act_fn)(const struct act *act, int rank, struct coll_comm *const comms[2]);

struct act {
    const char *transport;
    int world;
    uint64_t timeout_ns;
    act_fn act;
    struct coll_team *team;
    char job[64];
};

/** What a rank has said, and the message of its failure; shared with ranks that are processes. */
struct said {
    int count;
    char lines[LINES][512];
    char failure[2][512];
};

static struct said *said; // of MOST_RANKS

static void keep(void *user, zero_log_level level, const char *component, const char *message)
{
    struct said *mine = user;
    if (level != ZERO_LOG_WARN || strcmp(component, "coll") != 0)
        return;
    if (mine->count < LINES)
        snprintf(mine->lines[mine->count], sizeof mine->lines[0], "%s", message);
    mine->count++;
}

static bool has_said(int rank, const char *first, const char *second)
{
    for (int line = 0; line < said[rank].count && line < LINES; line++)
        if (strstr(said[rank].lines[line], first) && strstr(said[rank].lines[line], second))
            return true;
    return false;
}

static void expect_said(int rank, const char *first, const char *second)
{
    if (!has_said(rank, first, second))
        fail_msg("rank %d has not said \"%s\", \"%s\", but %d lines: %s", rank, first, second,
                 said[rank].count, said[rank].lines[0]);
}

/* ------------------------------------------------------------------ ranks */

static void be_rank(const struct act *act, int rank)
{
    static const char *const names[] = {"actor", "critic"};
    struct coll_comm *comms[2] = {NULL};
    const struct base_log log = {
        .sink = keep, .user = &said[rank], .level = ZERO_LOG_WARN, .rank = rank};
    for (int i = 0; i < 2; i++) {
        const struct coll_config config = {.transport = act->transport,
                                           .rank = rank,
                                           .world = act->world,
                                           .job = act->job,
                                           .name = names[i],
                                           .team = act->team,
                                           .timeout_ns = act->timeout_ns,
                                           .log = &log,
                                           .remind_ns = 100 * millisecond};
        struct base_error error = {.result = ZERO_OK};
        if (coll_open(&comms[i], &config, &error))
            snprintf(said[rank].failure[i], sizeof said[rank].failure[i], "%s", error.message);
    }
    if (comms[0] && comms[1])
        act->act(act, rank, comms);
    for (int i = 0; i < 2; i++) {
        struct base_error error = {.result = ZERO_OK};
        if (comms[i] && coll_state(comms[i], &error))
            snprintf(said[rank].failure[i], sizeof said[rank].failure[i], "%s", error.message);
        coll_close(comms[i]);
    }
}

struct thread {
    const struct act *act;
    int rank;
};

static void *be_thread(void *argument)
{
    const struct thread *thread = argument;
    be_rank(thread->act, thread->rank);
    return NULL;
}

static void run_threads(struct act *act)
{
    pthread_t threads[MOST_RANKS];
    struct thread ranks[MOST_RANKS];
    assert_int_equal(coll_team_create(&act->team, act->world, NULL), ZERO_OK);
    for (int rank = 0; rank < act->world; rank++) {
        ranks[rank] = (struct thread){act, rank};
        assert_int_equal(pthread_create(&threads[rank], NULL, be_thread, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < act->world; rank++)
        pthread_join(threads[rank], NULL);
    coll_team_free(act->team);
}

static void run_processes(const struct act *act)
{
    pid_t pids[MOST_RANKS];
    for (int rank = 0; rank < act->world; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            alarm(60);
            be_rank(act, rank);
            _exit(0);
        }
    }
    for (int rank = 0; rank < act->world; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
}

static void run(const char *transport, int world, uint64_t timeout_ns, act_fn fn)
{
    static int number;
    struct act act = {.transport = transport, .world = world, .timeout_ns = timeout_ns, .act = fn};
    snprintf(act.job, sizeof act.job, "coll-waits-%d-%d", (int)getpid(), number++);
    memset(said, 0, MOST_RANKS * sizeof *said);
    if (strcmp(transport, "threads") == 0)
        run_threads(&act);
    else
        run_processes(&act);
}

/* ------------------------------------------------------------------ tests */

static void in_another_order(const struct act *act, int rank, struct coll_comm *const comms[2])
{
    (void)act;
    coll_barrier(comms[rank == 0 ? 0 : 1]);
    coll_barrier(comms[rank == 0 ? 1 : 0]);
}

static void communicators_in_another_order_are_named(void **state)
{
    (void)state;
    static const char *const transports[] = {"threads", "shm"};
    for (int i = 0; i < 2; i++) {
        run(transports[i], 2, 1500 * millisecond, in_another_order);
        expect_said(0, "the ranks in barrier #0 of \"actor\" have waited ",
                    " s for rank 1 (last call: ");
        expect_said(1, "the ranks in barrier #0 of \"critic\" have waited ",
                    " s for rank 0 (last call: ");
        // The one whose time is over first comes to the other one's.
        assert_true(strstr(said[0].failure[0], " s in barrier #0 for rank 1") ||
                    strstr(said[1].failure[1], " s in barrier #0 for rank 0"));
        // After 0.1, 0.3, 0.6 and 1.2 s.
        assert_in_range(said[0].count, 2, 4);
    }
}

static void be_late(const struct act *act, int rank, struct coll_comm *const comms[2])
{
    for (int turn = 0; turn < 4; turn++) {
        if (rank == act->world - 1)
            usleep(300000);
        coll_barrier(comms[0]);
    }
}

static void what_is_always_late_is_said_once(void **state)
{
    (void)state;
    run("threads", 2, 60000 * millisecond, be_late);
    assert_string_equal(said[0].failure[0], "");
    expect_said(0, " of \"actor\" have waited ", "for rank 1 (last call: ");
    assert_in_range(said[0].count, 1, 3); // of four waits, each of which is long enough for it
    assert_int_equal(said[1].count, 0);
}

static void be_missing(const struct act *act, int rank, struct coll_comm *const comms[2])
{
    (void)act;
    coll_barrier(comms[0]);
    if (rank > 0)
        usleep(400000);
    coll_barrier(comms[0]);
}

static void many_are_listed_in_runs(void **state)
{
    (void)state;
    run("threads", MOST_RANKS, 60000 * millisecond, be_missing);
    expect_said(0, "for ranks 1-5 (last call of rank 1: barrier #0", "to come");
}

static void rank_1_never_comes(const struct act *act, int rank, struct coll_comm *const comms[2])
{
    (void)act;
    (void)rank;
    (void)comms;
}

static void threads_that_are_not_there_are_named(void **state)
{
    (void)state;
    struct act act = {.transport = "threads",
                      .world = 3,
                      .timeout_ns = 300 * millisecond,
                      .act = rank_1_never_comes};
    memset(said, 0, MOST_RANKS * sizeof *said);
    assert_int_equal(coll_team_create(&act.team, act.world, NULL), ZERO_OK);
    be_rank(&act, 0);
    coll_team_free(act.team);
    expect_said(0, "the ranks that open \"actor\" have waited", "for ranks 1, 2 of 3");
    assert_non_null(strstr(said[0].failure[0], "for ranks 1, 2 of 3"));
}

static int set_up(void **state)
{
    (void)state;
    said = mmap(NULL, MOST_RANKS * sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    return said == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communicators_in_another_order_are_named),
        cmocka_unit_test(what_is_always_late_is_said_once),
        cmocka_unit_test(many_are_listed_in_runs),
        cmocka_unit_test(threads_that_are_not_there_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
