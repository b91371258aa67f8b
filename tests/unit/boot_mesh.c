// The meeting of ranks of several hosts, over loopback: ranks that mean well, that disagree, that
// are missing or go away, and callers that are no ranks.
#include "base/clock.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/mesh_ranks.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const ipv4 = "127.0.0.1";

static void expect_all_good(struct mesh_ranks *ranks)
{
    mesh_ranks_end(ranks);
    for (int i = 0; i < ranks->set.count; i++)
        boot_ranks_expect(&ranks->set, i, ZERO_OK, NULL, NULL);
}

static bool has_ipv6(void)
{
    char line[128];
    FILE *file = fopen("/proc/net/if_inet6", "r");
    const bool found = file && fgets(line, sizeof line, file) &&
                       !strncmp(line, "00000000000000000000000000000001", 32);
    if (file)
        fclose(file);
    return found;
}

// The last address is none that is by its name a host's own: ranks listen everywhere then.
static void any_number_of_ranks_meets(void **state)
{
    (void)state;
    static const char *const addresses[] = {"127.0.0.1", "localhost", "0.0.0.0", "::1"};
    static const int worlds[] = {1, 2, 3, 5, 8};
    for (size_t a = 0; a < sizeof addresses / sizeof *addresses; a++) {
        if (!strcmp(addresses[a], "::1") && !has_ipv6()) {
            print_message("not run: this machine has no address ::1\n");
            continue;
        }
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            struct mesh_ranks ranks;
            mesh_ranks_begin(&ranks, addresses[a], 30000);
            // Rank 0 last: the others call before it listens.
            for (int rank = worlds[w] - 1; rank >= 0; rank--)
                mesh_ranks_start(&ranks, &(struct mesh_role){.rank = rank,
                                                             .world = worlds[w],
                                                             .host_id = w % 2 ? "one" : NULL,
                                                             .each_rank = w % 2});
            expect_all_good(&ranks);
        }
    }
}

// An address of this machine that other hosts might reach.
static bool own_address(char *text, socklen_t size)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    assert_int_equal(getifaddrs(&list), 0);
    for (const struct ifaddrs *one = list; one && !found; one = one->ifa_next) {
        const struct sockaddr *address = one->ifa_addr;
        found = address && address->sa_family == AF_INET && !(one->ifa_flags & IFF_LOOPBACK) &&
                (one->ifa_flags & IFF_UP) &&
                inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, size);
    }
    freeifaddrs(list);
    return found;
}

// Rank 1, beside rank 0, calls it over loopback, where other hosts find no rank: they are told the
// address at which they found rank 0.
static void ranks_beside_rank_0_are_found_from_outside(void **state)
{
    (void)state;
    char outside[64];
    struct mesh_ranks ranks;
    if (!own_address(outside, sizeof outside)) {
        print_message("not run: this machine has no address but loopback's\n");
        skip();
    }
    mesh_ranks_begin(&ranks, "0.0.0.0", 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 4});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 4});
    for (int rank = 2; rank < 4; rank++)
        mesh_ranks_start(&ranks, &(struct mesh_role){.rank = rank, .world = 4, .address = outside});
    expect_all_good(&ranks);
    assert_true(ranks.set.verdicts[1].inside); // rank 0
    for (int rank = 2; rank < 4; rank++)
        assert_false(ranks.set.verdicts[rank].inside);
}

static void several_communicators_meet_at_one_port(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    // A process for each rank, which opens one after the other, at its own pace; beside them ranks
    // of another name, whose rank 0 has to wait for the port.
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3, .names = "abc"});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3, .names = "abc"});
    mesh_ranks_start(&ranks,
                     &(struct mesh_role){.rank = 2, .world = 3, .names = "abc", .pause_ms = 40});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2, .names = "d"});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2, .names = "d"});
    expect_all_good(&ranks);
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 1500);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 5});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 3, .world = 5});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 5});
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_TIMEOUT, "ranks 2, 4 of 5 did not come",
                          "of 127.0.0.1 (the test)");
    boot_ranks_expect(&ranks.set, 1, ZERO_E_TIMEOUT, "rank 3 (host ", NULL);
}

static void without_rank_0_its_address_is_named(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 2000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3});
    mesh_ranks_end(&ranks);
    char port[64];
    snprintf(port, sizeof port, "at port %d of 127.0.0.1 (the test)", ranks.master.port);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, port, "ECONNREFUSED");
    assert_int_equal(ranks.set.verdicts[0].refusals, 1); // not only when it is too late
    assert_non_null(strstr(ranks.set.verdicts[0].refused[0], " s for rank 0 of 3 at port"));

    mesh_ranks_begin(&ranks, "no-such-host.invalid", 600);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3});
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, "of no-such-host.invalid", "its address: ");
}

static void strangers_are_refused_and_told_why(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3, .secret = "swordfish"});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3, .secret = "swordfish"});
    boot_ranks_await_arrivals(&ranks.set, 1);
    const int other = mesh_ranks_start(
        &ranks, &(struct mesh_role){.rank = 2, .world = 3, .job = "other", .secret = "swordfish"});
    const int guess =
        mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3, .secret = "swordfisj"});
    const int beyond = mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3});
    const int twice = mesh_ranks_start(
        &ranks, &(struct mesh_role){.rank = 1, .world = 3, .secret = "swordfish", .host_id = "z"});
    boot_ranks_await_refusals(&ranks.set, 4);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3, .secret = "swordfish"});
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_OK, NULL, NULL);
    boot_ranks_expect(&ranks.set, 1, ZERO_OK, NULL, NULL);
    boot_ranks_expect(&ranks.set, other, ZERO_E_INVALID, "it is of job other", "ZERO_JOB");
    boot_ranks_expect(&ranks.set, guess, ZERO_E_INVALID, "ZERO_SECRET", "refused by rank 0 (host");
    boot_ranks_expect(&ranks.set, beyond, ZERO_E_INVALID, "ZERO_SECRET", NULL);
    boot_ranks_expect(&ranks.set, twice, ZERO_E_INVALID, "rank 1 is there already", NULL);
    boot_ranks_expect(&ranks.set, ranks.set.count - 1, ZERO_OK, NULL, NULL);
    for (int i = 0; i < 4; i++)
        assert_null(strstr(ranks.set.verdicts[0].refused[i], "swordfis"));
}

static void another_world_ends_the_meeting(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3});
    boot_ranks_await_arrivals(&ranks.set, 1);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 4});
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_INVALID, "says there are 4 ranks, rank 0 says 3",
                          NULL);
}

static void arguments_are_checked(void **state)
{
    (void)state;
    const struct boot_master nowhere = {.port = 0};
    struct boot_meeting meeting = {.world = 16385, .job = "j", .name = "n"};
    struct boot_mesh mesh;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(boot_mesh_open(&mesh, &meeting, &nowhere, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "1 to 16384 ranks"));
    base_error_clear(&error);
    meeting.world = 513;
    meeting.each_rank = true;
    assert_int_equal(boot_mesh_open(&mesh, &meeting, &nowhere, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "1 to 512 ranks"));
    base_error_clear(&error);
    meeting.world = 2;
    assert_int_equal(boot_mesh_open(&mesh, &meeting, &nowhere, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "port 0"));
    boot_mesh_close(&mesh);
}

/* ------------------------------------------------------------------ callers that are no ranks */

static void say(int fd, const void *bytes, size_t length)
{
    assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

static struct boot_hello hello_of(const struct mesh_ranks *ranks, int rank, int world)
{
    struct boot_hello hello = {.rank = rank, .world = world, .pid = 77, .port = 1};
    snprintf(hello.job, sizeof hello.job, "%s", ranks->set.job);
    snprintf(hello.name, sizeof hello.name, "main");
    snprintf(hello.host, sizeof hello.host, "elsewhere");
    return hello;
}

static void noise_costs_a_line(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    int noise[6];
    for (int i = 0; i < 6; i++)
        noise[i] = mesh_ranks_call(&ranks);
    struct boot_header header = {
        .magic = BOOT_MAGIC, .protocol = BOOT_PROTOCOL, .type = BOOT_HELLO};
    say(noise[0], "GET / HTTP/1.1\r\nHost: here\r\n\r\n", 30);
    header.length = UINT32_MAX;
    say(noise[1], &header, sizeof header);
    header.length = sizeof(struct boot_hello);
    header.protocol = 99;
    say(noise[2], &header, sizeof header);
    header.protocol = BOOT_PROTOCOL;
    header.type = BOOT_GO;
    say(noise[3], &header, sizeof header);
    header.type = BOOT_HELLO;
    say(noise[4], &header, sizeof header); // and no more: it is too late after 2 s
    close(noise[5]);
    boot_ranks_await_refusals(&ranks.set, 5);
    struct boot_header answer;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(boot_receive(noise[2], &answer, 0, base_clock_ns() + 1000000000, &error),
                     ZERO_E_VERSION);
    assert_non_null(strstr(error.message, "version 99"));
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    expect_all_good(&ranks);
    for (int i = 0; i < 5; i++)
        close(noise[i]);
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

// A greeting of rank 9 of 2 with some bytes changed, or a part of it; whether it has to be refused,
// because it is whole, or its header is, and was changed.
static bool say_damaged(const struct mesh_ranks *ranks, bool whole, uint32_t *seed)
{
    struct {
        struct boot_header header;
        struct boot_hello hello;
    } said = {{.magic = BOOT_MAGIC,
               .protocol = BOOT_PROTOCOL,
               .type = BOOT_HELLO,
               .length = sizeof said.hello},
              hello_of(ranks, 9, 2)};
    const struct boot_header header = said.header;
    unsigned char *bytes = (unsigned char *)&said;
    const size_t end = sizeof said - sizeof said.hello + offsetof(struct boot_hello, name);
    for (uint32_t n = 1 + next_random(seed) % 4; n > 0; n--) {
        const size_t at = next_random(seed) % end;
        bytes[at] ^= (unsigned char)(1 + next_random(seed) % 255);
    }
    said.header.result = 0; // which no rank looks at here
    said.hello.rank |= 8;   // but not as rank 1,
    said.hello.world = 2;   // and another world would end the meeting
    const size_t length = whole ? sizeof said : 1 + next_random(seed) % sizeof said;
    const int fd = mesh_ranks_call(ranks);
    say(fd, bytes, length);
    close(fd);
    return length == sizeof said ||
           (length >= sizeof header && memcmp(&said.header, &header, sizeof header) != 0);
}

static void damaged_greetings_do_no_harm(void **state)
{
    (void)state;
    enum { CALLS = 300 };
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    uint32_t seed = 1;
    int refused = 0;
    for (int i = 0; i < CALLS; i++)
        refused += say_damaged(&ranks, i % 2, &seed);
    assert_true(refused > CALLS / 2); // some of those that end early, too
    boot_ranks_await_refusals(&ranks.set, refused);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    expect_all_good(&ranks);
}

static void a_port_in_use_is_told(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    char port[64];
    mesh_ranks_begin(&ranks, ipv4, 500);
    const int listener = mesh_ranks_usurp(&ranks);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    mesh_ranks_end(&ranks);
    snprintf(port, sizeof port, "port %d (the test) is in use", ranks.master.port);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_IO, port, "ZERO_MASTER_PORT");
    boot_ranks_expect(&ranks.set, 1, ZERO_E_TIMEOUT, "it does not answer in time", "the test");
    close(listener);
}

static void a_stranger_in_place_of_rank_0_is_noticed(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const int listener = mesh_ranks_usurp(&ranks);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    const int fd = mesh_ranks_take_call(&ranks, listener);
    say(fd, "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", 32);
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_INVALID, "it is no rank of zero", "the test");
    close(fd);
    close(listener);
}

// As when rank 0 has closed its port before it looked at a call, and when it heard nothing of this
// rank for too long, for it was stopped.
static void a_rank_that_comes_at_a_bad_time_calls_again(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    const int listener = mesh_ranks_usurp(&ranks);
    close(mesh_ranks_take_call(&ranks, listener));
    const int fd = mesh_ranks_take_call(&ranks, listener);
    boot_send_failure(fd, ZERO_E_TIMEOUT, "it did not introduce itself within 2 s");
    close(listener);
    close(fd);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    expect_all_good(&ranks);
}

// A call to a port without a listener may start from that very port, about one in as many as a
// system has for calls, and is connected to itself then.
static void nobody_answers_himself(void **state)
{
    (void)state;
    enum { PORT = 40000, MOST = 40000 };
    static const unsigned char loopback[MESH_ADDRESS_BYTES] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    for (int i = 0; i < MOST; i++) {
        unsigned char own[MESH_ADDRESS_BYTES];
        int fd, port;
        if (mesh_connect(&fd, loopback, PORT, base_clock_ns() + UINT64_C(20000000000), NULL))
            continue;
        assert_true(mesh_address(fd, false, own, &port));
        assert_int_not_equal(port, PORT); // but a stranger may listen
        close(fd);
    }
}

static void hear_stranger(const void *bytes, size_t length, zero_result result, const char *part)
{
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const int listener = mesh_ranks_usurp(&ranks);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    const int fd = mesh_ranks_take_call(&ranks, listener);
    send(fd, bytes, length, MSG_NOSIGNAL);
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, result, part, "the test");
    close(fd);
    close(listener);
}

static void what_a_stranger_says_is_short_and_shown_as_text(void **state)
{
    (void)state;
    struct {
        struct boot_header header;
        char text[4 * BOOT_TEXT_BYTES];
    } said = {.header = {.magic = BOOT_MAGIC,
                         .protocol = BOOT_PROTOCOL,
                         .type = BOOT_FAIL,
                         .result = ZERO_E_LIMIT,
                         .length = 12}};
    memcpy(said.text, "go\033[2J\naway", 12);
    hear_stranger(&said, sizeof said.header + 12, ZERO_E_LIMIT, "go?[2J?away");
    said.header.length = sizeof said.text;
    memset(said.text, 'x', sizeof said.text);
    hear_stranger(&said, sizeof said, ZERO_E_INVALID, "it announces");
    said.header.type = BOOT_KNOWN;
    said.header.length = 1;
    hear_stranger(&said, sizeof said.header + 1, ZERO_E_INVALID, "it announces 1 bytes");
}

/* ------------------------------------------------------------------ ranks that fail meanwhile */

// Introduces this process as a rank that listens nowhere.
static int pretend(const struct mesh_ranks *ranks, int rank, int world)
{
    const struct boot_hello hello = hello_of(ranks, rank, world);
    const int fd = mesh_ranks_call(ranks);
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    struct boot_header header;
    assert_int_equal(boot_send(fd, BOOT_HELLO, &hello, sizeof hello, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive(fd, &header, 0, deadline, NULL), ZERO_OK);
    assert_int_equal(header.type, BOOT_KNOWN);
    return fd;
}

// No rank could call it, and all would refuse a table in which it is.
static void who_cannot_be_called_is_refused(void **state)
{
    (void)state;
    static const struct {
        int32_t pid;
        uint32_t port;
        const char *why;
    } callers[] = {{77, 0, "process 77 that listens at port 0"},
                   {77, 65536, "process 77 that listens at port 65536"},
                   {0, 1, "process 0 that listens at port 1"}};
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++) {
        const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
        struct boot_hello hello = hello_of(&ranks, 1, 2);
        struct boot_header header;
        struct base_error error = {.result = ZERO_OK};
        hello.pid = callers[i].pid;
        hello.port = callers[i].port;
        const int fd = mesh_ranks_call(&ranks);
        assert_int_equal(boot_send(fd, BOOT_HELLO, &hello, sizeof hello, deadline, NULL), ZERO_OK);
        assert_int_equal(boot_receive(fd, &header, 0, deadline, &error), ZERO_E_INVALID);
        assert_non_null(strstr(error.message, callers[i].why));
        close(fd);
    }
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    expect_all_good(&ranks);
}

// Says to the rank of an entry who calls it.
static int call_peer(const struct mesh_entry *entry, uint64_t token, uint32_t rank)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    const struct boot_peer peer = {.token = token, .rank = rank, .called = 1};
    int fd;
    assert_int_equal(mesh_connect(&fd, entry->address, (int)entry->port, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_send(fd, BOOT_PEER, &peer, sizeof peer, deadline, NULL), ZERO_OK);
    return fd;
}

static void expect_hung_up(int fd)
{
    char byte;
    assert_int_equal(
        boot_receive_bytes(fd, &byte, 1, base_clock_ns() + UINT64_C(20000000000), NULL),
        ZERO_E_PEER);
    close(fd);
}

// Rank 1 waits for rank 2: it hangs up on every other caller, and on one without the token.
static void only_the_missing_rank_is_let_in(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    struct boot_header header;
    struct {
        uint64_t token;
        struct mesh_rank ranks[3];
        struct mesh_entry entries[3];
    } table;
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3});
    const int fd = pretend(&ranks, 2, 3);
    assert_int_equal(mesh_table_bytes(3, 3), sizeof table);
    assert_int_equal(boot_receive(fd, &header, sizeof table, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive_bytes(fd, &table, sizeof table, deadline, NULL), ZERO_OK);
    expect_hung_up(call_peer(&table.entries[1], table.token + 1, 2));
    expect_hung_up(call_peer(&table.entries[1], table.token, 0));
    expect_hung_up(call_peer(&table.entries[1], table.token, 1));
    expect_hung_up(call_peer(&table.entries[1], table.token, 3));
    // What does not begin as a rank does is not listened to any further.
    struct boot_header noise = {.magic = BOOT_MAGIC + 1};
    int stranger;
    assert_int_equal(mesh_connect(&stranger, table.entries[1].address, (int)table.entries[1].port,
                                  deadline, NULL),
                     ZERO_OK);
    say(stranger, &noise, sizeof noise);
    expect_hung_up(stranger);
    close(fd);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_PEER,
                          "rank 2 (host elsewhere, process 77) went away", NULL);
    assert_int_equal(ranks.set.verdicts[1].refusals, 5);
    assert_non_null(strstr(ranks.set.verdicts[1].refused[3], "it is no missing rank's"));
    assert_non_null(strstr(ranks.set.verdicts[1].refused[4], "it is no rank of zero"));
}

static void who_goes_away_is_named(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 4});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 4});
    const int fd = pretend(&ranks, 2, 4);
    boot_ranks_await_arrivals(&ranks.set, 2);
    close(fd);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_PEER,
                          "rank 2 (host elsewhere, process 77) went away", NULL);
}

// A rank that gives up because of another one has not gone away itself.
static void who_gives_up_says_why(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3});
    const int fd = pretend(&ranks, 2, 3);
    boot_ranks_await_arrivals(&ranks.set, 2);
    boot_send_failure(fd, ZERO_E_PEER, "reaching rank 1: it has hung up");
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_PEER, "rank 2 (host elsewhere)", "it has hung up");
    close(fd);
}

// As behind a firewall: rank 3 cannot reach rank 2, and all hear of it.
static void ranks_that_cannot_reach_each_other_are_named(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 4});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 4});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 3, .world = 4});
    const int fd = pretend(&ranks, 2, 4);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_IO, "reaching rank 2 (host elsewhere) at port 1",
                          "ECONNREFUSED");
    boot_ranks_expect(&ranks.set, 0, ZERO_E_IO, "rank 3 (host ", NULL);
    close(fd);
}

/* ------------------------------------------------------------------ what a system refuses */

enum { FAULTED = 3, NTH = 12 };

static void begin_with_fault(struct mesh_ranks *ranks, const char *point, int rank, int nth)
{
    char fault[64];
    snprintf(fault, sizeof fault, "%s@%d", point, nth);
    mesh_ranks_begin(ranks, ipv4, 1000);
    for (int i = 0; i < FAULTED; i++)
        mesh_ranks_start(ranks, &(struct mesh_role){.rank = i,
                                                    .world = FAULTED,
                                                    .secret = nth % 2 ? NULL : "swordfish",
                                                    .fault = i == rank ? fault : NULL});
}

// The Nth call of a kind fails on one rank, with a secret if N is even: all meet nevertheless, or
// none believes that they have; none hangs, and none leaks a descriptor.
static void any_call_may_fail(void **state)
{
    (void)state;
    static const char *const points[] = {"boot.socket:emfile", "boot.accept:emfile",
                                         "boot.send:enobufs", "boot.receive:eio"};
    static struct mesh_ranks sets[FAULTED][NTH];
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int fired = 0;
        for (int rank = 0; rank < FAULTED; rank++)
            for (int n = 0; n < NTH; n++)
                begin_with_fault(&sets[rank][n], points[p], rank, n + 1);
        for (int rank = 0; rank < FAULTED; rank++)
            for (int n = 0; n < NTH; n++) {
                const struct boot_verdict *verdicts = sets[rank][n].set.verdicts;
                mesh_ranks_end(&sets[rank][n]);
                fired += verdicts[rank].fired;
                for (int i = 0; i < FAULTED; i++)
                    if (!verdicts[i].error.result != !verdicts[0].error.result ||
                        verdicts[i].error.result == ZERO_E_CORRUPT) // what talk() has found
                        fail_msg("%s@%d on rank %d: rank 0: %s; rank %d: %s", points[p], n + 1,
                                 rank, verdicts[0].error.message, i, verdicts[i].error.message);
            }
        assert_true(fired > 0);
    }
}

// Rank 0 has descriptors for its listener and two more: strangers make room for rank 1.
static void strangers_do_not_use_up_descriptors(void **state)
{
    (void)state;
    enum { STRANGERS = 3 };
    struct mesh_ranks ranks;
    int strangers[STRANGERS];
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2, .spare = 3});
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = mesh_ranks_call(&ranks);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    expect_all_good(&ranks);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    assert_true(ranks.set.verdicts[0].refusals >= 2);
    assert_non_null(strstr(ranks.set.verdicts[0].refused[0], "no descriptor is left for others"));
}

// The same of another rank than 0, which has a connection to that, too.
static void strangers_do_not_use_up_a_guests_descriptors(void **state)
{
    (void)state;
    enum { STRANGERS = 3 };
    struct mesh_ranks ranks;
    struct boot_header header;
    struct {
        uint64_t token;
        struct mesh_rank ranks[3];
        struct mesh_entry entries[3];
    } table;
    int strangers[STRANGERS];
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    mesh_ranks_begin(&ranks, ipv4, 30000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3, .spare = 4});
    const int fd = pretend(&ranks, 2, 3);
    assert_int_equal(boot_receive(fd, &header, sizeof table, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive_bytes(fd, &table, sizeof table, deadline, NULL), ZERO_OK);
    const struct mesh_entry *entry = &table.entries[1];
    for (int i = 0; i < STRANGERS; i++)
        assert_int_equal(
            mesh_connect(&strangers[i], entry->address, (int)entry->port, deadline, NULL), ZERO_OK);
    const int peer = call_peer(entry, table.token, 2);
    expect_hung_up(strangers[0]);
    assert_int_equal(boot_send(fd, BOOT_READY, NULL, 0, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive(fd, &header, 0, deadline, NULL), ZERO_OK);
    assert_int_equal(header.type, BOOT_GO); // as rank 1 is ready, too
    close(fd);
    close(peer);
    for (int i = 1; i < STRANGERS; i++)
        close(strangers[i]);
    mesh_ranks_end(&ranks);
}

// There is no caller that rank 0 could hang up on.
static void descriptors_that_ranks_need_are_an_error(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 2000);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 3, .spare = 2});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 3});
    boot_ranks_await_arrivals(&ranks.set, 1);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 2, .world = 3});
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_IO, "open files; `ulimit -n`", "EMFILE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_meets),
        cmocka_unit_test(ranks_beside_rank_0_are_found_from_outside),
        cmocka_unit_test(several_communicators_meet_at_one_port),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(without_rank_0_its_address_is_named),
        cmocka_unit_test(strangers_are_refused_and_told_why),
        cmocka_unit_test(another_world_ends_the_meeting),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(noise_costs_a_line),
        cmocka_unit_test(damaged_greetings_do_no_harm),
        cmocka_unit_test(a_port_in_use_is_told),
        cmocka_unit_test(a_stranger_in_place_of_rank_0_is_noticed),
        cmocka_unit_test(nobody_answers_himself),
        cmocka_unit_test(a_rank_that_comes_at_a_bad_time_calls_again),
        cmocka_unit_test(what_a_stranger_says_is_short_and_shown_as_text),
        cmocka_unit_test(who_cannot_be_called_is_refused),
        cmocka_unit_test(only_the_missing_rank_is_let_in),
        cmocka_unit_test(who_goes_away_is_named),
        cmocka_unit_test(who_gives_up_says_why),
        cmocka_unit_test(ranks_that_cannot_reach_each_other_are_named),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(strangers_do_not_use_up_descriptors),
        cmocka_unit_test(strangers_do_not_use_up_a_guests_descriptors),
        cmocka_unit_test(descriptors_that_ranks_need_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
