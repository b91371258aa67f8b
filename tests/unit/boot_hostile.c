// The rendezvous among processes that don't belong to it: each is refused and logged, and the job
// meets all the same.
#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"
#include "tests/unit/boot_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NOBODY = 65534 };

static void meet_only(struct boot_link *link, int rank, int world, struct boot_verdict *verdict)
{
    int all[BOOT_TEST_RANKS];
    boot_exchange_bytes(link, &rank, sizeof rank, all, base_clock_ns() + UINT64_C(10000000000),
                        &verdict->error);
    for (int i = 0; i < world && !verdict->error.result; i++)
        if (all[i] != i)
            zero_fail(&verdict->error, ZERO_E_CORRUPT, "rank %d is not where it should be", i);
}

struct intruder {
    const char *name;
    struct boot_header header;
    struct boot_hello hello;
    size_t bytes;        // sent; 0: as the header says
    const char *refusal; // part of rank 0's log
};

// A right hello of rank 1 of 3, to be spoiled.
static struct intruder right_hello(const struct boot_ranks *ranks, const char *name,
                                   const char *refusal)
{
    struct intruder intruder = {.name = name,
                                .refusal = refusal,
                                .header = {.magic = BOOT_MAGIC,
                                           .protocol = BOOT_PROTOCOL,
                                           .type = BOOT_HELLO,
                                           .length = sizeof(struct boot_hello)},
                                .hello = {.rank = 1, .world = 3, .pid = 77, .name = "main"}};
    snprintf(intruder.hello.job, sizeof intruder.hello.job, "%s", ranks->job);
    return intruder;
}

// What rank 0 answers.
struct answer {
    struct boot_header header;
    char text[BOOT_TEXT_BYTES];
};

// Sends it and reads until rank 0 hangs up; whatever it answers says why.
static void intrude(const struct boot_ranks *ranks, const struct intruder *intruder)
{
    unsigned char bytes[sizeof intruder->header + sizeof intruder->hello];
    memcpy(bytes, &intruder->header, sizeof intruder->header);
    memcpy(bytes + sizeof intruder->header, &intruder->hello, sizeof intruder->hello);
    const size_t count = intruder->bytes ? intruder->bytes : sizeof bytes;
    int fd = boot_ranks_call(ranks);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, bytes, count, 0), count);

    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct answer answer;
    assert_int_equal(poll(&ready, 1, 5000), 1);
    const ssize_t got = recv(fd, &answer, sizeof answer, 0);
    assert_true(got >= (ssize_t)sizeof answer.header);
    assert_int_equal(answer.header.type, BOOT_FAIL);
    assert_int_equal(poll(&ready, 1, 5000), 1);
    assert_int_equal(recv(fd, &answer, sizeof answer, 0), 0);
    close(fd);
}

static int make_intruders(const struct boot_ranks *ranks, struct intruder intruders[16])
{
    int n = 0;
    intruders[n] = right_hello(ranks, "another magic", "it is no rank of zero");
    intruders[n++].header.magic++;
    intruders[n] = right_hello(ranks, "another version", "speaks version 6 of the rendezvous");
    intruders[n++].header.protocol++;
    intruders[n] = right_hello(ranks, "another job", "it is of job x");
    intruders[n++].hello.job[0] = 'x';
    intruders[n] = right_hello(ranks, "another communicator", "\"xain\", and this is job");
    intruders[n++].hello.name[0] = 'x';
    intruders[n] = right_hello(ranks, "a job without an end", "it is of job xxx");
    memset(intruders[n++].hello.job, 'x', BOOT_JOB_BYTES);
    intruders[n] = right_hello(ranks, "rank 0", "no rank 0 of 3 to wait for");
    intruders[n++].hello.rank = 0;
    intruders[n] = right_hello(ranks, "rank 3", "no rank 3 of 3 to wait for");
    intruders[n++].hello.rank = 3;
    intruders[n] = right_hello(ranks, "a negative rank", "no rank -7 of 3 to wait for");
    intruders[n++].hello.rank = -7;
    intruders[n] = right_hello(ranks, "no hello", "does not introduce it");
    intruders[n++].header.type = BOOT_KNOWN;
    intruders[n] = right_hello(ranks, "a wrong length", "does not introduce it");
    intruders[n++].header.length = 7;
    intruders[n] =
        right_hello(ranks, "descriptors that don't come", "descriptors that no rank asked for");
    intruders[n++].header.fds = 3;
    intruders[n] = right_hello(ranks, "half a header", "did not introduce itself within 2 s");
    intruders[n++].bytes = 20;
    intruders[n] = right_hello(ranks, "three bytes", "did not introduce itself within 2 s");
    intruders[n++].bytes = 3;
    return n;
}

// The ranks that were missing come, and all is well.
static void complete(struct boot_ranks *ranks)
{
    boot_ranks_start(ranks, 1, 3, meet_only);
    boot_ranks_start(ranks, 2, 3, meet_only);
    for (int i = 0; i < ranks->count; i++)
        boot_ranks_wait(ranks, i);
    for (int i = 0; i < ranks->count; i++)
        boot_ranks_expect(ranks, i, ZERO_OK, NULL, NULL);
}

static void begin(struct boot_ranks *ranks)
{
    boot_ranks_begin(ranks, 20000);
    boot_ranks_start(ranks, 0, 3, meet_only);
    boot_ranks_await_host(ranks);
    boot_ranks_await_refusals(ranks, 1);
}

static void wrong_messages_are_refused(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    begin(&ranks);
    struct intruder intruders[16];
    const int count = make_intruders(&ranks, intruders);
    for (int i = 0; i < count; i++) {
        struct boot_verdict *host = &ranks.verdicts[0];
        host->refusals = 0; // rank 0 is silent until the next one
        intrude(&ranks, &intruders[i]);
        boot_ranks_await_refusals(&ranks, 1);
        if (!strstr(host->refused[0], intruders[i].refusal))
            fail_msg("%s: %s", intruders[i].name, host->refused[0]);
    }
    complete(&ranks);
    boot_ranks_end(&ranks, -1);
}

// More than a message of a rank may have, and than there is room for.
static void send_many_descriptors(const struct boot_ranks *ranks, const struct intruder *hello)
{
    enum { MANY = 200 };
    static union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
    } control;
    struct boot_header header = hello->header;
    header.fds = MANY;
    struct iovec parts[] = {{&header, sizeof header},
                            {(void *)(uintptr_t)&hello->hello, sizeof hello->hello}};
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(MANY * sizeof(int)),
                                                .cmsg_level = SOL_SOCKET,
                                                .cmsg_type = SCM_RIGHTS};
    const int fd = boot_ranks_call(ranks);
    assert_int_equal(sendmsg(fd, &message, 0), sizeof header + sizeof hello->hello);
    close(fd);
}

static void oversize_and_descriptors_are_refused(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    enum { MUCH = 32768 };
    static unsigned char big[sizeof(struct boot_header) + MUCH];
    begin(&ranks);
    const struct intruder hello = right_hello(&ranks, "", "");
    struct boot_header whole = hello.header;
    whole.length = MUCH;
    memcpy(big, &whole, sizeof whole);
    int fd = boot_ranks_call(&ranks);
    assert_int_equal(send(fd, big, sizeof big, 0), sizeof big);
    boot_ranks_await_refusals(&ranks, 2);
    assert_non_null(strstr(ranks.verdicts[0].refused[1], "it announces 32768 bytes"));
    close(fd);

    // Descriptors that were not asked for are closed: rank 0's own check for leaks sees them.
    static const int fds[BOOT_FDS_MAX];
    fd = boot_ranks_call(&ranks);
    const struct iovec payload[2] = {{(void *)(uintptr_t)&hello.hello, sizeof hello.hello}};
    assert_int_equal(boot_send_with(fd, BOOT_HELLO, payload, fds, BOOT_FDS_MAX,
                                    base_clock_ns() + UINT64_C(10000000000), NULL),
                     ZERO_OK);
    boot_ranks_await_refusals(&ranks, 3);
    assert_non_null(strstr(ranks.verdicts[0].refused[2], "descriptors that no rank asked for"));
    close(fd);
    send_many_descriptors(&ranks, &hello);
    boot_ranks_await_refusals(&ranks, 4);
    assert_non_null(strstr(ranks.verdicts[0].refused[3], "descriptors that no rank asked for"));
    complete(&ranks);
    boot_ranks_end(&ranks, -1);
}

static uint64_t meet_beside_silence(void)
{
    struct boot_ranks ranks;
    begin(&ranks);
    int fds[BOOT_CALLERS_MAX];
    int connected = 0;
    // Fewer than there is room for: the ranks get in beside them.
    for (; connected < BOOT_CALLERS_MAX / 2; connected++)
        assert_true((fds[connected] = boot_ranks_call(&ranks)) >= 0);
    const uint64_t start = base_clock_ns();
    complete(&ranks);
    const uint64_t took = base_clock_ns() - start;
    for (int i = 0; i < connected; i++)
        close(fds[i]);
    boot_ranks_end(&ranks, -1);
    return took;
}

// Who says nothing is sent away after 2 s; that this is not waited for shows when all processes get
// a processor in time, which may not be so at once.
static void silence_holds_nobody_up(void **state)
{
    (void)state;
    const uint64_t limit = UINT64_C(1500000000);
    uint64_t took = meet_beside_silence();
    for (int i = 0; i < 4 && took >= limit; i++)
        took = meet_beside_silence();
    assert_true(took < limit);
}

static void a_crowd_is_sent_away_in_time(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    begin(&ranks);
    int fds[2 * BOOT_CALLERS_MAX];
    int connected = 0;
    // As many as the system lets wait: no rank gets through before they are refused.
    for (; connected < 2 * BOOT_CALLERS_MAX; connected++) {
        fds[connected] = boot_ranks_call(&ranks);
        if (fds[connected] < 0)
            break;
    }
    assert_true(connected >= BOOT_CALLERS_MAX);
    complete(&ranks);
    assert_non_null(strstr(ranks.verdicts[0].refused[1], "did not introduce itself within 2 s"));
    for (int i = 0; i < connected; i++)
        close(fds[i]);
    boot_ranks_end(&ranks, -1);
}

// Calls as often as it can, says nothing, nonsense, or half of something, and hangs up.
static void call_again_and_again(const struct boot_ranks *ranks, const atomic_int *over)
{
    const struct intruder hello = right_hello(ranks, "", "");
    alarm(30);
    for (unsigned i = 0; !atomic_load(over); i++) {
        int fd = boot_ranks_call(ranks);
        if (fd >= 0 && i % 3 > 0)
            send(fd, i % 3 == 1 ? (const void *)"nonsense" : &hello.header, 8, MSG_NOSIGNAL);
        boot_fd_close(&fd);
    }
    _exit(0);
}

static void a_flood_holds_nobody_up(void **state)
{
    (void)state;
    enum { CALLERS = 4 };
    struct boot_ranks ranks;
    pid_t pids[CALLERS];
    atomic_int *over =
        mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(over, MAP_FAILED);
    begin(&ranks);
    for (int i = 0; i < CALLERS; i++)
        if ((pids[i] = fork()) == 0)
            call_again_and_again(&ranks, over);
    boot_ranks_await_refusals(&ranks, 200);
    complete(&ranks);
    atomic_store(over, 1);
    for (int i = 0; i < CALLERS; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    munmap(over, sizeof *over);
    boot_ranks_end(&ranks, -1);
}

struct false_part {
    struct boot_header header;
    struct boot_part part;
};

// Knows job and user, comes as rank 1, and sends what no rank sends: the job can't be, and rank 0
// says whose fault it is.
static void expect_false_rank(const struct false_part *part, const char *words)
{
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 20000);
    boot_ranks_start(&ranks, 0, 2, meet_only);
    boot_ranks_await_host(&ranks);
    struct intruder hello = right_hello(&ranks, "", "");
    hello.hello.world = 2;
    int fd = boot_ranks_call(&ranks);
    assert_int_equal(boot_send(fd, BOOT_HELLO, &hello.hello, sizeof hello.hello,
                               base_clock_ns() + UINT64_C(10000000000), NULL),
                     ZERO_OK);
    assert_int_equal(send(fd, part, sizeof *part, 0), sizeof *part);
    boot_ranks_wait(&ranks, 0);
    if (ranks.verdicts[0].error.result >= 0 || !strstr(ranks.verdicts[0].error.message, "rank 1") ||
        !strstr(ranks.verdicts[0].error.message, words))
        fail_msg("%s: %d, %s", words, ranks.verdicts[0].error.result,
                 ranks.verdicts[0].error.message);
    close(fd);
    boot_ranks_end(&ranks, -1);
}

static void a_false_rank_is_named(void **state)
{
    (void)state;
    // The first exchange is of one descriptor each.
    struct false_part said = {
        .header = {.magic = BOOT_MAGIC,
                   .protocol = BOOT_PROTOCOL,
                   .type = BOOT_PART,
                   .length = sizeof said.part},
        .part = {.sequence = 1, .total = 1, .source = 1, .kind = BOOT_SHARE_FDS}};
    expect_false_rank(&said, "sent a part out of place"); // has none
    said.header.fds = 1;
    expect_false_rank(&said, "0 of 1 descriptors arrived");
    said.header.fds = 0;
    said.part.source = 77;
    expect_false_rank(&said, "sent a part out of place");
    said.part.total = UINT64_MAX;
    expect_false_rank(&said, "of 18446744073709551615 descriptors");
    said.part.total = 1;
    said.header.length = sizeof said.part + 1000;
    expect_false_rank(&said, "sent a part out of place");
    said.header.length = 7;
    expect_false_rank(&said, "descriptors");
    said.header.length = sizeof said.part + BOOT_BYTES_MAX + 1;
    expect_false_rank(&said, "it announces");
    said.header.magic = 0;
    expect_false_rank(&said, "it is no rank of zero");
}

// Runs in a process of another user; the status says what it saw.
static int call_as_nobody(const struct boot_ranks *ranks)
{
    int fd = boot_ranks_call(ranks); // of root's name
    if (fd < 0 || setuid(NOBODY))
        return 1;
    boot_fd_close(&fd);
    // Credentials are those at connect(): call again.
    struct sockaddr_un address;
    socklen_t length = boot_address(&address, ranks->job, "main");
    // The name has the user in it: root's has another one.
    char *user = strstr(address.sun_path + 1, "65534");
    if (!user)
        return 2;
    memmove(user + 1, user + 5, strlen(user + 5) + 1);
    *user = '0';
    length -= 4;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length))
        return 3;
    struct answer answer;
    const ssize_t got = recv(fd, &answer, sizeof answer, 0);
    return got > 0 && answer.header.type == BOOT_FAIL ? 0 : 4;
}

static void other_users_are_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("needs root, to become another user\n");
        skip();
    }
    struct boot_ranks ranks;
    begin(&ranks);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(call_as_nobody(&ranks));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    boot_ranks_await_refusals(&ranks, 2);
    bool told = false;
    for (int i = 0; i < 8; i++)
        told = told || strstr(ranks.verdicts[0].refused[i], "belongs to another user");
    assert_true(told);
    complete(&ranks);
    boot_ranks_end(&ranks, -1);
}

// Another user has taken the name before rank 0 could: a rank must not talk to it.
static void a_foreign_listener_is_not_trusted(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("needs root, to become another user\n");
        skip();
    }
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 5000);
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, ranks.job, "main");
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        const bool listens = setuid(NOBODY) == 0 &&
                             bind(fd, (struct sockaddr *)&address, length) == 0 &&
                             listen(fd, 4) == 0;
        const ssize_t told = write(ready[1], "x", listens);
        alarm(30);
        pause();
        _exit(told != 1);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    boot_ranks_start(&ranks, 1, 2, NULL);
    boot_ranks_start(&ranks, 0, 2, NULL);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_wait(&ranks, 1);
    boot_ranks_expect(&ranks, 0, ZERO_E_INVALID, "of user 65534 listens in place of rank 0", NULL);
    boot_ranks_expect(&ranks, 1, ZERO_E_INVALID, "listens already as rank 0", NULL);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    boot_ranks_end(&ranks, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_messages_are_refused),
        cmocka_unit_test(oversize_and_descriptors_are_refused),
        cmocka_unit_test(silence_holds_nobody_up),
        cmocka_unit_test(a_crowd_is_sent_away_in_time),
        cmocka_unit_test(a_flood_holds_nobody_up),
        cmocka_unit_test(a_false_rank_is_named),
        cmocka_unit_test(other_users_are_refused),
        cmocka_unit_test(a_foreign_listener_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
