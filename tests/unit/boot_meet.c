// The rendezvous among ranks that mean well: meeting, exchanging, dying, disagreeing.
#include "base/clock.h"
#include "base/fault.h"
#include "tests/unit/boot_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seconds_from_now(int seconds)
{
    return base_clock_ns() + (uint64_t)seconds * UINT64_C(1000000000);
}

// In a rank: a check that failed.
static bool check(struct boot_verdict *verdict, bool condition, const char *what)
{
    if (!condition)
        zero_fail(&verdict->error, ZERO_E_CORRUPT, "%s (errno %d)", what, errno);
    return condition;
}

static void exchange_descriptors(struct boot_link *link, int rank, int world,
                                 struct boot_verdict *verdict)
{
    enum { EACH = 2 };
    int mine[EACH], all[BOOT_TEST_RANKS * EACH];
    for (int i = 0; i < EACH; i++) {
        mine[i] = memfd_create("test", MFD_CLOEXEC);
        const int value = 100 * rank + i;
        check(verdict, write(mine[i], &value, sizeof value) == sizeof value, "write");
    }
    boot_exchange_fds(link, mine, EACH, all, seconds_from_now(10), &verdict->error);
    for (int i = 0; i < world * EACH && !verdict->error.result; i++) {
        int value = -1;
        check(verdict, pread(all[i], &value, sizeof value, 0) == sizeof value, "read");
        check(verdict, value == 100 * (i / EACH) + i % EACH, "the descriptor is another rank's");
        check(verdict, fcntl(all[i], F_GETFD) == FD_CLOEXEC, "not close-on-exec");
        check(verdict, close(all[i]) == 0, "close");
    }
    for (int i = 0; i < EACH; i++)
        check(verdict, close(mine[i]) == 0, "mine is still mine");
}

static void exchange_of_size(struct boot_link *link, int rank, int world, size_t bytes,
                             struct boot_verdict *verdict)
{
    unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)world * bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = (unsigned char)((size_t)rank * 31 + i % 251);
    all[(size_t)world * bytes] = 77;
    boot_exchange_bytes(link, mine, bytes, all, seconds_from_now(10), &verdict->error);
    for (size_t i = 0; i < (size_t)world * bytes && !verdict->error.result; i++)
        check(verdict, all[i] == (unsigned char)(i / bytes * 31 + i % bytes % 251), "bytes");
    check(verdict, all[(size_t)world * bytes] == 77, "written beyond the end");
    free(mine);
    free(all);
}

static void exchange_everything(struct boot_link *link, int rank, int world,
                                struct boot_verdict *verdict)
{
    static const size_t sizes[] = {0, 1, 7, 32768, 32769, 100001, BOOT_BYTES_MAX};
    check(verdict, boot_peer_gone(link) == -1, "nobody has gone");
    check(verdict, boot_peer_pid(link, rank) == getpid(), "pid");
    exchange_descriptors(link, rank, world, verdict);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !verdict->error.result; i++)
        exchange_of_size(link, rank, world, sizes[i], verdict);
    int none[1];
    if (!verdict->error.result)
        boot_exchange_fds(link, NULL, 0, none, seconds_from_now(10), &verdict->error);
}

static void all_ranks_meet(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        struct boot_ranks ranks;
        boot_ranks_begin(&ranks, 20000);
        // Rank 0 comes last, and the others have to wait for it.
        for (int rank = worlds[w] - 1; rank >= 0; rank--)
            boot_ranks_start(&ranks, rank, worlds[w], exchange_everything);
        for (int i = 0; i < ranks.count; i++)
            boot_ranks_wait(&ranks, i);
        for (int i = 0; i < ranks.count; i++)
            boot_ranks_expect(&ranks, i, ZERO_OK, NULL, NULL);
        boot_ranks_end(&ranks, -1);
    }
}

// One communicator after the other of the same name: a fast rank must not get into the wrong one.
static void meet_again(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    (void)link;
    char job[64];
    snprintf(job, sizeof job, "again-%d", (int)getppid());
    for (int i = 0; i < 200 && !verdict->error.result; i++) {
        const struct boot_meeting meeting = {.rank = rank,
                                             .world = world,
                                             .job = job,
                                             .name = "again",
                                             .deadline_ns = seconds_from_now(10)};
        struct boot_link *next;
        int all[BOOT_TEST_RANKS] = {0};
        if (boot_meet(&next, &meeting, &verdict->error) == ZERO_OK)
            boot_exchange_bytes(next, &i, sizeof i, all, seconds_from_now(10), &verdict->error);
        for (int r = 0; r < world; r++)
            check(verdict, all[r] == i, "of another meeting");
        boot_close(next);
    }
}

static void meetings_follow_each_other(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, meet_again);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks, i, ZERO_OK, NULL, NULL);
    boot_ranks_end(&ranks, -1);
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 2500);
    boot_ranks_start(&ranks, 0, 6, NULL);
    ranks.timeout_ns = UINT64_C(20000000000); // it is rank 0 who tells them
    boot_ranks_start(&ranks, 2, 6, NULL);
    boot_ranks_start(&ranks, 4, 6, NULL);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks, i, ZERO_E_TIMEOUT, "ranks 1, 3, 5 of 6 did not come", ranks.job);
    boot_ranks_end(&ranks, -1);

    boot_ranks_begin(&ranks, 100);
    boot_ranks_start(&ranks, 1, 2, NULL);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_expect(&ranks, 0, ZERO_E_TIMEOUT, "rank 1: rank 0 of 2 did not come", ranks.job);
    boot_ranks_end(&ranks, -1);

    boot_ranks_begin(&ranks, 100);
    boot_ranks_start(&ranks, 0, 30, NULL);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_expect(&ranks, 0, ZERO_E_TIMEOUT, "ranks 1-29 of 30", "at the socket @zero-");
    boot_ranks_end(&ranks, -1);
}

static void ranks_that_disagree_on_the_world_fail_at_once(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    boot_ranks_start(&ranks, 0, 4, NULL);
    boot_ranks_start(&ranks, 2, 4, NULL);
    boot_ranks_await_arrivals(&ranks, 1);
    const uint64_t start = base_clock_ns();
    boot_ranks_start(&ranks, 1, 3, NULL);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    assert_true(base_clock_ns() - start < UINT64_C(10000000000));
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks, i, ZERO_E_INVALID, "says there are 3 ranks, rank 0 says 4", NULL);
    boot_ranks_end(&ranks, -1);
}

static void a_rank_is_there_once(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    boot_ranks_start(&ranks, 0, 3, exchange_everything);
    boot_ranks_await_host(&ranks);
    const int second = boot_ranks_start(&ranks, 0, 3, NULL);
    boot_ranks_wait(&ranks, second);
    boot_ranks_expect(&ranks, second, ZERO_E_INVALID, "listens already as rank 0", "ZERO_JOB");

    // Two of rank 1: whichever is later is refused, and the job goes on.
    const int twins[2] = {boot_ranks_start(&ranks, 1, 3, exchange_everything),
                          boot_ranks_start(&ranks, 1, 3, exchange_everything)};
    boot_ranks_await_refusals(&ranks, 3); // also of the two that only looked whether it listens
    boot_ranks_start(&ranks, 2, 3, exchange_everything);
    for (int i = 0; i < ranks.count; i++)
        boot_ranks_wait(&ranks, i);
    const bool first = ranks.verdicts[twins[0]].error.result == ZERO_OK;
    boot_ranks_expect(&ranks, twins[first], ZERO_E_INVALID, "rank 1 is there already", "refused");
    boot_ranks_expect(&ranks, twins[!first], ZERO_OK, NULL, NULL);
    boot_ranks_expect(&ranks, 0, ZERO_OK, NULL, NULL);
    boot_ranks_expect(&ranks, 4, ZERO_OK, NULL, NULL);
    boot_ranks_end(&ranks, -1);
}

static void a_rank_that_dies_before_all_have_met_is_named(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    boot_ranks_start(&ranks, 0, 3, NULL);
    const int victim = boot_ranks_start(&ranks, 2, 3, NULL);
    boot_ranks_await_arrivals(&ranks, 1);
    kill(ranks.pids[victim], SIGKILL);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_expect(&ranks, 0, ZERO_E_PEER, "rank 2 (process ", "went away before all");
    boot_ranks_end(&ranks, victim);

    boot_ranks_begin(&ranks, 20000);
    boot_ranks_start(&ranks, 0, 3, NULL);
    boot_ranks_start(&ranks, 2, 3, NULL);
    boot_ranks_await_arrivals(&ranks, 1);
    kill(ranks.pids[0], SIGKILL);
    boot_ranks_wait(&ranks, 1);
    boot_ranks_expect(&ranks, 1, ZERO_E_PEER, "rank 2: rank 0 (process ", "went away");
    boot_ranks_end(&ranks, 0);
}

// Rank 1 and then rank 3 end; the others see both, by boot_peer_gone() and in an exchange.
static void see_deaths(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    char all[BOOT_TEST_RANKS];
    if (rank == 1 || rank == 3) {
        usleep((unsigned)rank * 20000);
        kill(getpid(), SIGKILL);
    }
    const uint64_t deadline = seconds_from_now(15);
    unsigned seen = 0;
    while (seen != (1U << 1 | 1U << 3) && base_clock_ns() < deadline) {
        const int gone = boot_peer_gone(link);
        seen |= gone >= 0 ? 1U << gone : 0;
        usleep(1000);
    }
    check(verdict, seen == (1U << 1 | 1U << 3), "deaths");
    // None of the living has gone.
    for (int i = 0; i < 2 * world; i++)
        check(verdict, boot_peer_gone(link) % 2 == 1, "of the dead only");
    verdict->value = 1;
    // No rank leaves before all have looked.
    const volatile struct boot_verdict *of_rank_0 = verdict - rank;
    while (!(of_rank_0[0].value && of_rank_0[2].value && of_rank_0[4].value) &&
           base_clock_ns() < deadline)
        usleep(1000);
    boot_exchange_bytes(link, "x", 1, all, seconds_from_now(10), &verdict->error);
}

static void deaths_are_seen(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 5; rank++)
        boot_ranks_start(&ranks, rank, 5, see_deaths);
    for (int i = 0; i < 5; i++)
        boot_ranks_wait(&ranks, i);
    for (int i = 0; i < 5; i += 2) {
        assert_int_equal(ranks.verdicts[i].value, 1);
        boot_ranks_expect(&ranks, i, ZERO_E_PEER, "rank ", NULL);
    }
    boot_ranks_expect(&ranks, 0, ZERO_E_PEER, "rank 1 (process ", NULL);
    int status; // two were killed: collected here, so that the end need not excuse both
    for (int i = 0; i < 5; i++)
        waitpid(ranks.pids[i], &status, 0);
    ranks.count = 0;
    boot_ranks_end(&ranks, -1);
}

// Rank 1 runs another program, which closes its link; rank 0 sees it though the process lives on,
// and tells the others.
static void become_another(struct boot_link *link, int rank, int world,
                           struct boot_verdict *verdict)
{
    char all[BOOT_TEST_RANKS];
    (void)world;
    if (rank == 1) {
        verdict->value = 1;
        execl("/bin/sleep", "sleep", "20", (char *)NULL);
    }
    const uint64_t start = base_clock_ns();
    while (rank == 0 && boot_peer_gone(link) < 0 && base_clock_ns() < start + UINT64_C(5000000000))
        usleep(1000);
    check(verdict, rank > 0 || boot_peer_gone(link) == 1, "another program");
    boot_exchange_bytes(link, "x", 1, all, seconds_from_now(10), &verdict->error);
    check(verdict, base_clock_ns() - start < UINT64_C(5000000000), "late");
}

static void another_program_is_seen(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, become_another);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_wait(&ranks, 2);
    boot_ranks_expect(&ranks, 0, ZERO_E_PEER, "rank 1 (process ", NULL);
    boot_ranks_expect(&ranks, 2, ZERO_E_PEER, "rank 1 (process ", NULL);
    kill(ranks.pids[1], SIGKILL);
    boot_ranks_end(&ranks, 1);
}

// Ranks that die between two exchanges while a child of theirs holds their sockets open, as one
// does that was made by the system call itself: fork() would have closed them there.
static void leave_a_child(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    char all[BOOT_TEST_RANKS];
    if (rank == world - 1) {
        const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            alarm(30);
            pause();
        }
        verdict->value = child;
        kill(getpid(), SIGKILL);
    }
    const uint64_t start = base_clock_ns();
    boot_exchange_bytes(link, "x", 1, all, seconds_from_now(10), &verdict->error);
    check(verdict, base_clock_ns() - start < UINT64_C(8000000000), "late");
}

static void leave_a_child_of_rank_0(struct boot_link *link, int rank, int world,
                                    struct boot_verdict *verdict)
{
    leave_a_child(link, world - 1 - rank, world, verdict);
}

static void end_child(const struct boot_verdict *verdict)
{
    assert_true(verdict->value > 0);
    kill(verdict->value, SIGKILL);
}

static void a_child_left_behind_hides_no_death(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, leave_a_child);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    boot_ranks_expect(&ranks, 0, ZERO_E_PEER, "rank 2 (process ", "has gone away");
    boot_ranks_expect(&ranks, 1, ZERO_E_PEER, "rank 2 (process ", "has gone away");
    end_child(&ranks.verdicts[2]);
    boot_ranks_end(&ranks, 2);

    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, leave_a_child_of_rank_0);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    boot_ranks_expect(&ranks, 1, ZERO_E_PEER, "rank 0 (process ", "has gone away");
    boot_ranks_expect(&ranks, 2, ZERO_E_PEER, "rank 0 (process ", "has gone away");
    end_child(&ranks.verdicts[0]);
    boot_ranks_end(&ranks, 0);
}

static void exchange_different_sizes(struct boot_link *link, int rank, int world,
                                     struct boot_verdict *verdict)
{
    char mine[64] = {0}, all[64 * BOOT_TEST_RANKS];
    (void)world;
    boot_exchange_bytes(link, mine, rank == 2 ? 64 : 8, all, seconds_from_now(10), &verdict->error);
}

static void exchange_different_kinds(struct boot_link *link, int rank, int world,
                                     struct boot_verdict *verdict)
{
    int all[BOOT_TEST_RANKS], mine = 0;
    (void)world;
    if (rank == 1) {
        boot_exchange_fds(link, &mine, 1, all, seconds_from_now(10), &verdict->error);
        check(verdict, all[0] == -1 && all[1] == -1 && all[2] == -1, "descriptors after an error");
    } else {
        boot_exchange_bytes(link, &mine, 1, all, seconds_from_now(10), &verdict->error);
    }
}

static void leave_early(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    int mine = 0, all[BOOT_TEST_RANKS];
    if (rank == 1)
        return;
    boot_exchange_fds(link, &mine, 1, all, seconds_from_now(10), &verdict->error);
    for (int i = 0; i < world; i++)
        check(verdict, all[i] == -1, "descriptors after an error");
}

static void come_late(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    char all[BOOT_TEST_RANKS];
    (void)world;
    const volatile struct boot_verdict *of_rank_0 = verdict - rank;
    while (rank == 1 && of_rank_0->error.result == ZERO_OK)
        usleep(1000);
    boot_exchange_bytes(link, "x", 1, all, base_clock_ns() + UINT64_C(100000000), &verdict->error);
}

static void failed_exchange(boot_body_fn body, zero_result result, const char *part1,
                            const char *part2, int spared)
{
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, body);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    boot_ranks_expect(&ranks, 0, result, part1, part2);
    for (int i = 1; i < 3; i++)
        if (i != spared)
            assert_int_not_equal(ranks.verdicts[i].error.result, ZERO_OK);
    boot_ranks_end(&ranks, -1);
}

static void exchanges_fail_on_every_rank(void **state)
{
    (void)state;
    failed_exchange(exchange_different_sizes, ZERO_E_DIVERGED, "of 8 bytes", "of 64 bytes", -1);
    failed_exchange(exchange_different_kinds, ZERO_E_DIVERGED, "of 1 bytes", "of 1 descriptors",
                    -1);
    failed_exchange(leave_early, ZERO_E_PEER, "rank 1 (process ", NULL, 1);
    failed_exchange(come_late, ZERO_E_TIMEOUT, "rank 1 (process ", "in time", -1);
}

// Rank 1 may not have the descriptors it would get.
static void exchange_beyond_the_limit(struct boot_link *link, int rank, int world,
                                      struct boot_verdict *verdict)
{
    enum { EACH = 40 };
    int mine[EACH], all[3 * EACH];
    const struct rlimit limit = {.rlim_cur = 50, .rlim_max = 50};
    for (int i = 0; i < EACH; i++)
        mine[i] = STDERR_FILENO;
    if (rank == 1)
        check(verdict, setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    boot_exchange_fds(link, mine, EACH, all, seconds_from_now(10), &verdict->error);
    for (int i = 0; i < world * EACH; i++) {
        check(verdict, verdict->error.result == ZERO_OK || all[i] == -1, "an open descriptor");
        if (all[i] >= 0)
            close(all[i]);
    }
}

static void used_up_descriptors_are_reported(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_start(&ranks, rank, 3, exchange_beyond_the_limit);
    for (int i = 0; i < 3; i++)
        boot_ranks_wait(&ranks, i);
    boot_ranks_expect(&ranks, 1, ZERO_E_IO, "rank 1", "ulimit -n");
    boot_ranks_end(&ranks, -1);
}

// Sends itself more descriptors than its limit lets a user have under way, and lets a child keep
// them for a fifth of a second.
static void have_descriptors_under_way(struct boot_verdict *verdict)
{
    enum { EACH = 60, NOBODY = 65534 };
    int ends[2], fds[EACH];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){CMSG_LEN(sizeof fds), SOL_SOCKET, SCM_RIGHTS};
    for (int i = 0; i < EACH; i++)
        fds[i] = STDERR_FILENO;
    memcpy(CMSG_DATA(rights), fds, sizeof fds);
    const struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
    check(verdict, setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    // For root there is no such limit.
    if (geteuid() == 0)
        check(verdict, setuid(NOBODY) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0, "setuid");
    check(verdict, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    for (int i = 0; i < 2; i++)
        check(verdict, sendmsg(ends[0], &message, 0) == 1, "sendmsg");
    check(verdict, sendmsg(ends[0], &message, 0) < 0 && errno == ETOOMANYREFS, "no limit");
    const pid_t child = fork();
    if (child == 0) {
        usleep(200000);
        _exit(0);
    }
    check(verdict, child > 0, "fork");
    close(ends[0]);
    close(ends[1]);
}

static void exchange_while_many_are_under_way(struct boot_link *link, int rank, int world,
                                              struct boot_verdict *verdict)
{
    if (rank == 0)
        have_descriptors_under_way(verdict);
    exchange_descriptors(link, rank, world, verdict);
}

static void descriptors_under_way_are_waited_for(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    const uint64_t start = base_clock_ns();
    for (int rank = 0; rank < 2; rank++)
        boot_ranks_start(&ranks, rank, 2, exchange_while_many_are_under_way);
    for (int i = 0; i < 2; i++) {
        boot_ranks_wait(&ranks, i);
        boot_ranks_expect(&ranks, i, ZERO_OK, NULL, NULL);
    }
    assert_true(base_clock_ns() - start > UINT64_C(150000000));
    boot_ranks_end(&ranks, -1);
}

static void arguments_are_checked(void **state)
{
    (void)state;
    char long_name[BOOT_NAME_BYTES + 1] = "", long_job[BOOT_JOB_BYTES + 1] = "";
    memset(long_name, 'n', BOOT_NAME_BYTES);
    memset(long_job, 'j', BOOT_JOB_BYTES);
    const struct boot_meeting bad[] = {
        {.rank = 0, .world = 0, .job = "j", .name = "n"},
        {.rank = 1, .world = 1, .job = "j", .name = "n"},
        {.rank = -1, .world = 1, .job = "j", .name = "n"},
        {.rank = 0, .world = BOOT_HOST_RANKS_MAX + 1, .job = "j", .name = "n"},
        {.rank = 0, .world = 1, .job = "j", .name = long_name},
        {.rank = 0, .world = 1, .job = long_job, .name = "n"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct base_error error = {.result = ZERO_OK};
        struct boot_link *link = (struct boot_link *)&error;
        assert_int_equal(boot_meet(&link, &bad[i], &error), ZERO_E_INVALID);
        assert_null(link);
        assert_true(*error.message);
    }
    boot_close(NULL);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    const struct boot_meeting alone = {
        .rank = 0, .world = 1, .job = "alone", .name = "n", .deadline_ns = seconds_from_now(10)};
    int failures = 0;
    for (;; failures++) {
        char spec[32];
        snprintf(spec, sizeof spec, "alloc@%d", failures + 1);
        assert_int_equal(base_fault_set(spec, NULL), ZERO_OK);
        struct base_error error = {.result = ZERO_OK};
        struct boot_link *link;
        const zero_result result = boot_meet(&link, &alone, &error);
        const bool fired = base_fault_fired() > 0;
        boot_close(link);
        if (!fired) {
            assert_int_equal(result, ZERO_OK);
            break;
        }
        assert_int_equal(result, ZERO_E_NOMEM);
        assert_null(link);
    }
    base_fault_set(NULL, NULL);
    assert_true(failures >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_meet),
        cmocka_unit_test(meetings_follow_each_other),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(ranks_that_disagree_on_the_world_fail_at_once),
        cmocka_unit_test(a_rank_is_there_once),
        cmocka_unit_test(a_rank_that_dies_before_all_have_met_is_named),
        cmocka_unit_test(deaths_are_seen),
        cmocka_unit_test(another_program_is_seen),
        cmocka_unit_test(a_child_left_behind_hides_no_death),
        cmocka_unit_test(exchanges_fail_on_every_rank),
        cmocka_unit_test(used_up_descriptors_are_reported),
        cmocka_unit_test(descriptors_under_way_are_waited_for),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
