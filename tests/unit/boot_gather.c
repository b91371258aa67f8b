// Ranks of one host gather before they meet those of other hosts: one of them speaks for all,
// whichever is first; what is wrong with one rank is told on all, and names that rank.
#include "base/clock.h"
#include "base/hash.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/mesh_ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const ipv4 = "127.0.0.1";

static int start(struct mesh_ranks *ranks, int rank, int world, const char *host_id)
{
    return mesh_ranks_start(ranks,
                            &(struct mesh_role){.rank = rank, .world = world, .host_id = host_id});
}

static void expect_all(struct mesh_ranks *ranks, zero_result result, const char *part)
{
    mesh_ranks_end(ranks);
    for (int i = 0; i < ranks->set.count; i++)
        boot_ranks_expect(&ranks->set, i, result, part, NULL);
}

/** Waits until a process listens where the ranks of a host gather, and calls it. */
static int call_speaker(const struct mesh_ranks *ranks, const char *host_id)
{
    const struct boot_meeting place = {.job = ranks->set.job, .name = "main"};
    unsigned char id[BOOT_HOST_ID_BYTES];
    const uint64_t deadline = base_clock_ns() + ranks->set.patience_ns;
    struct sockaddr_un address;
    base_hash128_bytes(base_hash128(host_id, strlen(host_id), 0), id);
    const socklen_t length = boot_host_address(&address, &place, ranks->master.port, id);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(fd, (struct sockaddr *)&address, length)) {
        assert_int_equal(errno, ECONNREFUSED);
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
    return fd;
}

/* ------------------------------------------------------------------ who speaks */

// On each host ranks come in another order: the first one speaks, and the lowest is the leader.
static void whichever_is_first_speaks(void **state)
{
    (void)state;
    static const struct {
        const char *homes;
        int order[8];
    } cases[] = {
        {"abab", {3, 2, 1, 0}},     {"aabb", {3, 1, 0, 2}},
        {"aaaa", {0, 3, 2, 1}},     {"abbbccc", {0, 3, 6, 1, 2, 4, 5}},
        {"baaab", {0, 4, 3, 2, 1}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct mesh_ranks ranks;
        const int world = (int)strlen(cases[c].homes);
        mesh_ranks_begin(&ranks, ipv4, 30000);
        for (int i = 0; i < world; i++) {
            const char host_id[2] = {cases[c].homes[cases[c].order[i]], '\0'};
            start(&ranks, cases[c].order[i], world, host_id);
            if (cases[c].order[0] == 0) // process 0 knows who has come
                boot_ranks_await_arrivals(&ranks.set, i < world - 1 ? i : 0);
            else
                usleep(20000);
        }
        expect_all(&ranks, ZERO_OK, NULL);
    }
}

static void ranks_prove_the_secret_to_their_speaker(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct mesh_ranks ranks;
        mesh_ranks_begin(&ranks, ipv4, 30000);
        mesh_ranks_start(&ranks, &(struct mesh_role){.world = 3, .secret = "swordfish"});
        mesh_ranks_start(&ranks, &(struct mesh_role){
                                     .rank = 2, .world = 3, .host_id = "a", .secret = "swordfish"});
        boot_ranks_await_arrivals(&ranks.set, 1);
        const int last = mesh_ranks_start(
            &ranks, &(struct mesh_role){.rank = 1,
                                        .world = 3,
                                        .host_id = "a",
                                        .secret = wrong ? "swordfisj" : "swordfish"});
        if (wrong) {
            boot_ranks_wait(&ranks.set, last);
            boot_ranks_expect(&ranks.set, last, ZERO_E_INVALID, "refused by rank 2 (host ",
                              "it does not know the job's secret");
            mesh_ranks_start(
                &ranks,
                &(struct mesh_role){.rank = 1, .world = 3, .host_id = "a", .secret = "swordfish"});
        }
        mesh_ranks_end(&ranks);
        for (int i = 0; i < ranks.set.count; i++)
            if (!wrong || i != last)
                boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
    }
}

// The one that speaks for a host ends before rank 0 is there: another one takes its place.
static void a_speaker_that_ends_early_is_replaced(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const int first = start(&ranks, 2, 4, "a");
    close(call_speaker(&ranks, "a"));
    for (int rank = 1; rank < 4; rank += 2)
        start(&ranks, rank, 4, "a");
    usleep(50000);
    kill(ranks.set.pids[first], SIGKILL);
    start(&ranks, 2, 4, "a");
    start(&ranks, 0, 4, "b");
    boot_ranks_end(&ranks.set, first);
    close(ranks.reserved);
    for (int i = 1; i < ranks.set.count; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
}

/* ------------------------------------------------------------------ what goes wrong */

static void missing_ranks_are_named_and_those_that_came(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 1500);
    start(&ranks, 0, 7, "a");
    start(&ranks, 1, 7, "a");
    for (int rank = 3; rank < 6; rank++)
        start(&ranks, rank, 7, "b");
    mesh_ranks_end(&ranks);
    for (int i = 0; i < ranks.set.count; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_TIMEOUT, "ranks 2, 6 of 7 did not come",
                          "there are ranks 0, 1 of host ");
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, ", ranks 3-5 of host ", NULL);
    boot_ranks_expect(&ranks.set, 3, ZERO_E_TIMEOUT, "rank 4 (host ", NULL);
}

static void without_rank_0_all_of_a_host_say_where_they_called(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 1000);
    for (int rank = 1; rank < 4; rank++)
        start(&ranks, rank, 4, "a");
    expect_all(&ranks, ZERO_E_TIMEOUT, "of 127.0.0.1 (the test)");
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_TIMEOUT, "ECONNREFUSED", NULL);
}

// A rank that is there already, beside it or on another host: the speaker or rank 0 says so.
static void a_rank_that_comes_twice_is_turned_away(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    start(&ranks, 0, 5, "a");
    start(&ranks, 1, 5, "b");
    start(&ranks, 2, 5, "c");
    boot_ranks_await_arrivals(&ranks.set, 2);
    const int beside = start(&ranks, 1, 5, "b");
    const int elsewhere = start(&ranks, 1, 5, "c");
    const int none =
        mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 5, .host_id = "b"});
    boot_ranks_wait(&ranks.set, beside);
    boot_ranks_wait(&ranks.set, elsewhere);
    boot_ranks_wait(&ranks.set, none);
    start(&ranks, 3, 5, "b");
    start(&ranks, 4, 5, "c");
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, beside, ZERO_E_INVALID, "rank 1 is there already",
                      "refused by rank 1 (host");
    boot_ranks_expect(&ranks.set, elsewhere, ZERO_E_INVALID, "rank 1 is there already",
                      "refused by rank 0 (host");
    boot_ranks_expect(&ranks.set, none, ZERO_E_INVALID, "rank 2 is there already",
                      "refused by rank 0 (host");
    for (int i = 0; i < ranks.set.count; i++)
        if (i != beside && i != elsewhere && i != none)
            boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
}

static void another_world_ends_the_meeting(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    start(&ranks, 0, 4, "a");
    start(&ranks, 1, 4, "b");
    boot_ranks_await_arrivals(&ranks.set, 1);
    start(&ranks, 2, 5, "b");
    expect_all(&ranks, ZERO_E_INVALID, "says there are 5 ranks, rank 0 says 4");
}

// A rank that ends before all have met is named on every rank: one that another speaks for, and
// one that speaks.
static void who_goes_away_is_named(void **state)
{
    (void)state;
    for (int speaker = 0; speaker < 2; speaker++) {
        struct mesh_ranks ranks;
        mesh_ranks_begin(&ranks, ipv4, 30000);
        start(&ranks, 0, 6, "a");
        start(&ranks, 4, 6, "b");
        boot_ranks_await_arrivals(&ranks.set, 1);
        start(&ranks, 3, 6, "b");
        start(&ranks, 5, 6, "b");
        start(&ranks, 1, 6, "a");
        boot_ranks_await_arrivals(&ranks.set, 4);
        const int victim = speaker ? 1 : 2;
        kill(ranks.set.pids[victim], SIGKILL);
        boot_ranks_end(&ranks.set, victim);
        close(ranks.reserved);
        for (int i = 0; i < ranks.set.count; i++)
            if (i != victim)
                boot_ranks_expect(&ranks.set, i, ZERO_E_PEER,
                                  speaker && (i == 2 || i == 3) ? "of this host, which speaks for"
                                  : speaker                     ? "rank 4 (host "
                                                                : "rank 3 (host ",
                                  "went away");
    }
}

static volatile pid_t *asked_process;

static bool is_asked(void)
{
    return *asked_process == getpid();
}

static void one_that_is_asked_to_stop_ends_the_wait_of_all(void **state)
{
    (void)state;
    asked_process = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(asked_process, MAP_FAILED);
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    ranks.set.asked = is_asked;
    start(&ranks, 0, 5, "a");
    start(&ranks, 1, 5, "b");
    boot_ranks_await_arrivals(&ranks.set, 1);
    start(&ranks, 2, 5, "b");
    start(&ranks, 3, 5, "c");
    boot_ranks_await_arrivals(&ranks.set, 3);
    *asked_process = ranks.set.pids[2];
    expect_all(&ranks, ZERO_E_ABORTED, "rank 2: asked to stop");
    munmap((void *)asked_process, 4096);
}

/* ------------------------------------------------------------------ callers that are no ranks */

static void noise_costs_a_line(void **state)
{
    (void)state;
    enum { NOISE = 5 };
    struct mesh_ranks ranks;
    int noise[NOISE];
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const int speaker = start(&ranks, 1, 4, "a");
    for (int i = 0; i < NOISE; i++)
        noise[i] = call_speaker(&ranks, "a");
    struct boot_header header = {
        .magic = BOOT_MAGIC, .protocol = BOOT_PROTOCOL + 1, .type = BOOT_HELLO};
    assert_int_equal(send(noise[0], "GET / HTTP/1.1\r\nHost: here\r\n\r\n....", 34, MSG_NOSIGNAL),
                     34);
    assert_int_equal(send(noise[1], &header, sizeof header, MSG_NOSIGNAL), sizeof header);
    header.protocol = BOOT_PROTOCOL;
    header.length = UINT32_MAX;
    assert_int_equal(send(noise[2], &header, sizeof header, MSG_NOSIGNAL), sizeof header);
    close(noise[3]); // and the last one stays silent
    start(&ranks, 0, 4, "b");
    struct boot_header answer;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(
        boot_receive(noise[4], &answer, 0, base_clock_ns() + ranks.set.patience_ns, &error),
        ZERO_E_TIMEOUT);
    assert_non_null(strstr(error.message, "it did not introduce itself within 2 s"));
    start(&ranks, 2, 4, "a");
    start(&ranks, 3, 4, "b");
    expect_all(&ranks, ZERO_OK, NULL);
    assert_int_equal(ranks.set.verdicts[speaker].refusals, 4);
    for (int i = 0; i < NOISE; i++)
        if (i != 3)
            close(noise[i]);
}

/** Introduces this process as rank 1, which speaks for a host that no process is on. */
static int pretend_to_speak(const struct mesh_ranks *ranks, int world)
{
    const uint64_t deadline = base_clock_ns() + ranks->set.patience_ns;
    struct boot_hello hello = {.rank = 1, .world = world, .pid = 77, .port = 1};
    struct boot_header header;
    snprintf(hello.job, sizeof hello.job, "%s", ranks->set.job);
    snprintf(hello.name, sizeof hello.name, "main");
    snprintf(hello.host, sizeof hello.host, "elsewhere");
    const int fd = mesh_ranks_call(ranks);
    assert_int_equal(boot_send(fd, BOOT_HELLO, &hello, sizeof hello, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive(fd, &header, 0, deadline, NULL), ZERO_OK);
    assert_int_equal(header.type, BOOT_KNOWN);
    return fd;
}

static void bring(int fd, int rank, int world, int pid)
{
    const struct boot_member member = {.rank = rank, .world = world, .pid = pid};
    assert_int_equal(boot_send(fd, BOOT_MEMBER, &member, sizeof member,
                               base_clock_ns() + UINT64_C(20000000000), NULL),
                     ZERO_OK);
}

// A speaker may bring any rank: rank 0 turns away those that cannot be, and goes on.
static void what_a_speaker_brings_is_checked(void **state)
{
    (void)state;
    static const struct {
        int rank, pid;
        const char *why;
    } cases[] = {{0, 78, "there is no rank 0 of 3"},    {3, 78, "there is no rank 3 of 3"},
                 {INT32_MIN, 78, "there is no rank "},  {2, 0, "rank 2 can't be process 0"},
                 {2, -1, "rank 2 can't be process -1"}, {1, 78, "rank 1 is there already"}};
    struct mesh_ranks ranks;
    struct boot_header header;
    struct {
        uint64_t token;
        struct mesh_rank ranks[3];
        struct mesh_entry entries[2];
    } table;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const uint64_t deadline = base_clock_ns() + ranks.set.patience_ns;
    start(&ranks, 0, 3, "a");
    const int fd = pretend_to_speak(&ranks, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct {
            struct boot_turned turned;
            char why[BOOT_TEXT_BYTES + 1];
        } said = {.turned = {.rank = 0}};
        bring(fd, cases[i].rank, 3, cases[i].pid);
        assert_int_equal(boot_receive(fd, &header, sizeof said, deadline, NULL), ZERO_OK);
        assert_int_equal(header.type, BOOT_TURNED);
        assert_int_equal(boot_receive_bytes(fd, &said, header.length, deadline, NULL), ZERO_OK);
        assert_int_equal(said.turned.rank, cases[i].rank);
        assert_non_null(strstr(said.why, cases[i].why));
    }
    bring(fd, 2, 3, 78);
    assert_int_equal(boot_receive(fd, &header, sizeof table, deadline, NULL), ZERO_OK);
    assert_int_equal(header.type, BOOT_TABLE);
    assert_int_equal(header.length, sizeof table);
    assert_int_equal(boot_receive_bytes(fd, &table, sizeof table, deadline, NULL), ZERO_OK);
    assert_int_equal(table.ranks[2].pid, 78);
    assert_int_equal(table.ranks[2].entry, 1);
    assert_int_equal(table.entries[1].rank, 1);
    close(fd);
    expect_all(&ranks, ZERO_E_PEER, "rank 1 (host elsewhere, process 77) went away");
}

// Half a message, or another one than ranks send: the meeting ends, and rank 0 with it.
static void a_speaker_that_talks_nonsense_ends_the_meeting(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct mesh_ranks ranks;
        struct boot_header header = {.magic = BOOT_MAGIC,
                                     .protocol = BOOT_PROTOCOL,
                                     .type = half ? BOOT_MEMBER : BOOT_TABLE,
                                     .length = half ? sizeof(struct boot_member) : 0};
        mesh_ranks_begin(&ranks, ipv4, 30000);
        start(&ranks, 0, 3, "a");
        const int fd = pretend_to_speak(&ranks, 3);
        assert_int_equal(send(fd, &header, sizeof header, MSG_NOSIGNAL), sizeof header);
        expect_all(&ranks, ZERO_E_PEER, "rank 1 (host elsewhere, process 77) went away");
        close(fd);
    }
}

// Another user's process listens where the ranks of this one gather.
static void a_listener_of_another_user_is_not_trusted(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    if (geteuid() != 0) {
        print_message("not run: this needs a second user\n");
        skip();
    }
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const struct boot_meeting place = {.job = ranks.set.job, .name = "main"};
    unsigned char id[BOOT_HOST_ID_BYTES];
    struct sockaddr_un address;
    base_hash128_bytes(base_hash128("a", 1, 0), id);
    const socklen_t length = boot_host_address(&address, &place, ranks.master.port, id);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        const bool good = setuid(65534) == 0 &&
                          bind(fd, (struct sockaddr *)&address, length) == 0 &&
                          listen(fd, 5) == 0 && write(ready[1], "x", 1) == 1;
        pause();
        _exit(good);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    start(&ranks, 1, 2, "a");
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_INVALID, "of user 65534 listens where", NULL);
    kill(child, SIGKILL);
    close(ready[0]);
    close(ready[1]);
}

/* ------------------------------------------------------------------ what a system refuses */

enum { FAULTED = 5, NTH = 12 };

static const char homes[FAULTED] = {'a', 'b', 'a', 'b', 'b'}; // whose leaders are ranks 0 and 1

static void expect_agreement(struct mesh_ranks *ranks, const char *point, int nth, int faulty)
{
    const struct boot_verdict *verdicts = ranks->set.verdicts;
    mesh_ranks_end(ranks);
    const bool met = verdicts[0].value && verdicts[1].value;
    for (int i = 0; i < FAULTED; i++)
        if ((i < 2 && !met && !verdicts[i].error.result) ||
            verdicts[i].error.result == ZERO_E_CORRUPT) // what talk() has found
            fail_msg("%s@%d on rank %d: rank 0: %s; rank %d: %s", point, nth, faulty,
                     verdicts[0].error.message, i, verdicts[i].error.message);
}

static void begin_with_fault(struct mesh_ranks *ranks, const char *point, int nth, int faulty)
{
    char fault[64];
    snprintf(fault, sizeof fault, "%s@%d", point, nth);
    mesh_ranks_begin(ranks, ipv4, 1000);
    for (int i = 0; i < FAULTED; i++)
        mesh_ranks_start(ranks, &(struct mesh_role){.rank = i,
                                                    .world = FAULTED,
                                                    .host_id = (char[2]){homes[i], '\0'},
                                                    .secret = nth % 2 ? NULL : "swordfish",
                                                    .fault = i == faulty ? fault : NULL});
}

// The Nth call of a kind fails on one rank: all leaders meet nevertheless, or none believes that
// they have; another rank that could not be told so fails alone, and to the others of its host its
// connection ends.
// None hangs, and none leaks a descriptor.
static void any_call_may_fail(void **state)
{
    (void)state;
    static const char *const points[] = {"boot.socket:emfile", "boot.accept:emfile",
                                         "boot.send:enobufs", "boot.receive:eio"};
    static struct mesh_ranks sets[NTH][FAULTED];
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int fired = 0;
        for (int n = 0; n < NTH; n++)
            for (int rank = 0; rank < FAULTED; rank++)
                begin_with_fault(&sets[n][rank], points[p], n + 1, rank);
        for (int n = 0; n < NTH; n++)
            for (int rank = 0; rank < FAULTED; rank++) {
                expect_agreement(&sets[n][rank], points[p], n + 1, rank);
                fired += sets[n][rank].set.verdicts[rank].fired;
            }
        assert_true(fired > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whichever_is_first_speaks),
        cmocka_unit_test(ranks_prove_the_secret_to_their_speaker),
        cmocka_unit_test(a_speaker_that_ends_early_is_replaced),
        cmocka_unit_test(missing_ranks_are_named_and_those_that_came),
        cmocka_unit_test(without_rank_0_all_of_a_host_say_where_they_called),
        cmocka_unit_test(a_rank_that_comes_twice_is_turned_away),
        cmocka_unit_test(another_world_ends_the_meeting),
        cmocka_unit_test(who_goes_away_is_named),
        cmocka_unit_test(one_that_is_asked_to_stop_ends_the_wait_of_all),
        cmocka_unit_test(noise_costs_a_line),
        cmocka_unit_test(what_a_speaker_brings_is_checked),
        cmocka_unit_test(a_speaker_that_talks_nonsense_ends_the_meeting),
        cmocka_unit_test(a_listener_of_another_user_is_not_trusted),
        cmocka_unit_test(any_call_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
