#include "tests/unit/boot_ranks.h"

#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

int boot_ranks_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static void keep_log(void *user, zero_log_level level, const char *component, const char *message)
{
    struct boot_verdict *verdict = user;
    if (strcmp(component, "coll"))
        return;
    if (level == ZERO_LOG_DEBUG)
        verdict->arrivals++;
    if (level != ZERO_LOG_WARN)
        return;
    if (verdict->refusals < 8)
        snprintf(verdict->refused[verdict->refusals], sizeof verdict->refused[0], "%s", message);
    verdict->refusals++;
}

struct base_log boot_ranks_log(struct boot_verdict *verdict, int rank)
{
    return (struct base_log){
        .sink = keep_log, .user = verdict, .level = ZERO_LOG_DEBUG, .rank = rank};
}

void boot_ranks_begin(struct boot_ranks *ranks, int timeout_ms)
{
    static int number;
    *ranks = (struct boot_ranks){.timeout_ns = (uint64_t)timeout_ms * 1000000,
                                 .patience_ns = UINT64_C(10000000000)};
    snprintf(ranks->job, sizeof ranks->job, "test-%d-%d", (int)getpid(), number++);
    ranks->verdicts = mmap(NULL, BOOT_TEST_RANKS * sizeof *ranks->verdicts, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(ranks->verdicts, MAP_FAILED);
}

int boot_ranks_fork(struct boot_ranks *ranks, unsigned seconds,
                    void (*body)(const void *user, struct boot_verdict *verdict), const void *user)
{
    const int i = ranks->count++;
    assert_true(i < BOOT_TEST_RANKS);
    ranks->pids[i] = fork();
    assert_true(ranks->pids[i] >= 0);
    if (ranks->pids[i] == 0) {
        alarm(seconds); // nothing there takes that long
        body(user, &ranks->verdicts[i]);
        _exit(0);
    }
    return i;
}

/** Who meets the others of its host. */
struct guest {
    const struct boot_ranks *ranks;
    int rank, world;
    boot_body_fn body;
};

static void be_rank(const void *user, struct boot_verdict *verdict)
{
    const struct guest *guest = user;
    const struct base_log log = boot_ranks_log(verdict, guest->rank);
    const struct boot_meeting meeting = {.rank = guest->rank,
                                         .world = guest->world,
                                         .job = guest->ranks->job,
                                         .name = "main",
                                         .deadline_ns = base_clock_ns() + guest->ranks->timeout_ns,
                                         .log = &log,
                                         .remind_ns = guest->ranks->remind_ns,
                                         .all_here = guest->ranks->all_here,
                                         .asked = guest->ranks->asked};
    const int before = boot_ranks_descriptors();
    struct boot_link *link;
    if (boot_meet(&link, &meeting, &verdict->error) == ZERO_OK && guest->body)
        guest->body(link, guest->rank, guest->world, verdict);
    boot_close(link);
    verdict->leaked = boot_ranks_descriptors() != before;
}

int boot_ranks_start(struct boot_ranks *ranks, int rank, int world, boot_body_fn body)
{
    const struct guest guest = {ranks, rank, world, body};
    return boot_ranks_fork(ranks, 30, be_rank, &guest);
}

void boot_ranks_wait(struct boot_ranks *ranks, int i)
{
    siginfo_t end;
    assert_int_equal(waitid(P_PID, (id_t)ranks->pids[i], &end, WEXITED | WNOWAIT), 0);
}

void boot_ranks_end(struct boot_ranks *ranks, int killed)
{
    for (int i = 0; i < ranks->count; i++) {
        int status = 0;
        assert_int_equal(waitpid(ranks->pids[i], &status, 0), ranks->pids[i]);
        if (i != killed && (status || ranks->verdicts[i].leaked))
            fail_msg("process %d: status %x, leaked %d", i, status, ranks->verdicts[i].leaked);
    }
}

int boot_ranks_call(const struct boot_ranks *ranks)
{
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, ranks->job, "main");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, length))
        boot_fd_close(&fd);
    return fd;
}

void boot_ranks_await_host(const struct boot_ranks *ranks)
{
    const uint64_t deadline = base_clock_ns() + ranks->patience_ns;
    int fd;
    while ((fd = boot_ranks_call(ranks)) < 0) {
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
    close(fd);
}

static void await(const struct boot_ranks *ranks, const volatile int *counter, int count)
{
    const uint64_t deadline = base_clock_ns() + ranks->patience_ns;
    while (*counter < count) {
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
}

void boot_ranks_await_arrivals(const struct boot_ranks *ranks, int count)
{
    await(ranks, &ranks->verdicts[0].arrivals, count);
}

void boot_ranks_await_refusals(const struct boot_ranks *ranks, int count)
{
    await(ranks, &ranks->verdicts[0].refusals, count);
}

void boot_ranks_expect(const struct boot_ranks *ranks, int i, zero_result result, const char *part1,
                       const char *part2)
{
    const struct base_error *error = &ranks->verdicts[i].error;
    if (error->result != result || (part1 && !strstr(error->message, part1)) ||
        (part2 && !strstr(error->message, part2)))
        fail_msg("process %d: result %d, %s", i, error->result, error->message);
}
