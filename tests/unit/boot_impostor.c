// An impostor in place of rank 0, and of all ranks but one: what that learns of where the ranks
// are, and who calls it.
#include "base/clock.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/mesh_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const ipv4 = "127.0.0.1";

static const uint64_t patience_ns = UINT64_C(20000000000);

struct table {
    uint64_t token;
    struct mesh_rank ranks[4];
    struct mesh_entry entries[4];
};

// As rank 2 of 4, process `pid`, would hear it.
static struct table right_table(int pid)
{
    struct table table = {.token = 5};
    for (int rank = 0; rank < 4; rank++) {
        struct mesh_entry *entry = &table.entries[rank];
        *entry = (struct mesh_entry){.address = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                                     .port = (uint32_t)rank, // no rank is to call that
                                     .rank = rank,
                                     .host_id = {(unsigned char)rank}};
        table.ranks[rank] = (struct mesh_rank){.pid = pid + 2 - rank, .entry = (uint32_t)rank};
        snprintf(entry->host, sizeof entry->host, "node%d", rank);
    }
    return table;
}

static void long_name(struct table *table)
{
    memset(table->entries[1].host, 'x', BOOT_HOST_BYTES);
}
static void terminal_name(struct table *table)
{
    memcpy(table->entries[0].host, "\033[2J\233", 6);
}
static void name_with_more(struct table *table)
{
    memcpy(table->entries[3].host, "node\0more", 10);
}
static void no_port(struct table *table)
{
    table->entries[3].port = 0;
}
static void great_port(struct table *table)
{
    table->entries[1].port += 65536;
}
static void no_process(struct table *table)
{
    table->ranks[0].pid = -1;
}
static void other_process(struct table *table)
{
    table->ranks[2].pid++;
}
static void no_address(struct table *table)
{
    memset(table->entries[1].address, 0, MESH_ADDRESS_BYTES);
}
static void any_address(struct table *table)
{
    memset(table->entries[3].address + 12, 0, 4);
}
static void one_place(struct table *table)
{
    table->entries[3].port = table->entries[1].port;
}

static void no_speaker(struct table *table)
{
    table->ranks[3].entry = 4;
}
static void other_order(struct table *table)
{
    table->ranks[1].entry = 2;
    table->ranks[2].entry = 1;
}
static void speaker_of_none(struct table *table)
{
    table->ranks[3].entry = 1;
}
static void speaker_for_another(struct table *table)
{
    table->ranks[3].entry = 2;
}

/** Rank 2 of 4, and an impostor that has heard where it listens. */
struct deceived {
    struct mesh_ranks ranks;
    struct boot_hello hello;
    int listener, fd;
};

static void deceive(struct deceived *deceived)
{
    struct boot_header header;
    struct boot_hello *hello = &deceived->hello;
    const uint64_t deadline = base_clock_ns() + patience_ns;
    mesh_ranks_begin(&deceived->ranks, ipv4, 30000);
    deceived->listener = mesh_ranks_usurp(&deceived->ranks);
    mesh_ranks_start(&deceived->ranks, &(struct mesh_role){.rank = 2, .world = 4});
    deceived->fd = mesh_ranks_take_call(&deceived->ranks, deceived->listener);
    assert_int_equal(boot_receive(deceived->fd, &header, sizeof *hello, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_receive_bytes(deceived->fd, hello, sizeof *hello, deadline, NULL),
                     ZERO_OK);
}

static void send_table(const struct deceived *deceived, const struct table *table)
{
    const uint64_t deadline = base_clock_ns() + patience_ns;
    boot_send(deceived->fd, BOOT_KNOWN, NULL, 0, deadline, NULL);
    boot_send(deceived->fd, BOOT_TABLE, table, sizeof *table, deadline, NULL);
}

static void end(struct deceived *deceived)
{
    close(deceived->fd);
    close(deceived->listener);
    mesh_ranks_end(&deceived->ranks);
}

// What rank 2 makes of it is what it says, and what rank 0 hears.
static void hear_table(void (*spoil)(struct table *table), const char *wrong)
{
    struct deceived deceived;
    struct boot_header header;
    struct base_error told = {.result = ZERO_OK};
    deceive(&deceived);
    struct table table = right_table(deceived.hello.pid);
    spoil(&table);
    send_table(&deceived, &table);
    assert_int_equal(boot_receive(deceived.fd, &header, 0, base_clock_ns() + patience_ns, &told),
                     ZERO_E_INVALID);
    end(&deceived);
    boot_ranks_expect(&deceived.ranks.set, 0, ZERO_E_INVALID,
                      "what came as rank 0's table of all ranks", wrong);
    assert_non_null(strstr(told.message, wrong));
}

static void a_table_that_cannot_be_is_refused(void **state)
{
    (void)state;
    hear_table(long_name, "no printable name of rank 1's host");
    hear_table(terminal_name, "no printable name of rank 0's host");
    hear_table(name_with_more, "no printable name of rank 3's host");
    hear_table(no_port, "that rank 3 (host node3) listens at port 0");
    hear_table(great_port, "that rank 1 (host node1) listens at port 65537");
    hear_table(no_process, "that rank 0 (host node0) is process -1");
    hear_table(other_process, "that this rank is process ");
    hear_table(no_address, "no address of rank 1 (host node1)");
    hear_table(any_address, "no address of rank 3 (host node3)");
    hear_table(one_place, "that ranks 1 and 3 listen at one port, 1");
    hear_table(no_speaker, "that rank 3 is of speaker 4 of 4");
    hear_table(other_order, "that rank 1 is of speaker 2 of 4");
    hear_table(speaker_of_none, "that 4 ranks have 3 speakers, and has 4");
    hear_table(speaker_for_another, "that this rank speaks for rank 3");
}

// A CSI of one byte.
static void why_rank_0_gives_up_is_printable(void **state)
{
    (void)state;
    struct deceived deceived;
    deceive(&deceived);
    boot_send_failure(deceived.fd, ZERO_E_LIMIT, "gone\233[2J");
    end(&deceived);
    boot_ranks_expect(&deceived.ranks.set, 0, ZERO_E_LIMIT, "gone?[2J", NULL);
}

/* ------------------------------------------------------------------ who calls */

static int call(const struct mesh_entry *entry, uint32_t port)
{
    int fd;
    assert_int_equal(
        mesh_connect(&fd, entry->address, (int)port, base_clock_ns() + patience_ns, NULL), ZERO_OK);
    return fd;
}

// Each may be silent for two seconds, but together they take no longer than one.
static void silent_callers_hold_up_nobody(void **state)
{
    (void)state;
    enum { SILENT = 40 };
    struct deceived deceived;
    struct boot_header header;
    int silent[SILENT], port;
    unsigned char address[MESH_ADDRESS_BYTES];
    deceive(&deceived);
    struct table table = right_table(deceived.hello.pid);
    assert_true(mesh_address(deceived.listener, false, address, &port));
    table.entries[1].port = (uint32_t)port; // the impostor is rank 1 as well,
    table.entries[2].port = deceived.hello.port;
    for (int i = 0; i < SILENT; i++)
        silent[i] = call(&table.entries[2], deceived.hello.port);
    const struct boot_peer peer = {.token = table.token, .rank = 3, .called = 2}; // and rank 3
    const int caller = call(&table.entries[2], deceived.hello.port);
    boot_send(caller, BOOT_PEER, &peer, sizeof peer, base_clock_ns() + patience_ns, NULL);
    send_table(&deceived, &table);
    const int called = mesh_ranks_take_call(&deceived.ranks, deceived.listener);
    boot_send(called, BOOT_KNOWN, NULL, 0, base_clock_ns() + patience_ns, NULL);
    assert_int_equal(boot_receive(deceived.fd, &header, 0, base_clock_ns() + patience_ns, NULL),
                     ZERO_OK);
    assert_int_equal(header.type, BOOT_READY);
    close(called);
    end(&deceived);
    boot_ranks_expect(&deceived.ranks.set, 0, ZERO_E_PEER, "it has closed its connection", NULL);
    close(caller);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
}

/* ------------------------------------------------------------------ several addresses */

static int listen_at(unsigned char last, int port)
{
    const unsigned char address[MESH_ADDRESS_BYTES] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = last};
    int listener;
    assert_int_equal(mesh_listen(&listener, address, port, 5, NULL), ZERO_OK);
    return listener;
}

// Of rank 0's addresses some lead nowhere, and one to something else that has the same port.
static void rank_0_is_found_at_one_of_its_addresses(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 30000);
    const int elsewhere = listen_at(2, ranks.master.port);
    for (int rank = 0; rank < 3; rank++)
        mesh_ranks_start(
            &ranks,
            &(struct mesh_role){.rank = rank,
                                .world = 3,
                                .address = rank == 0   ? NULL
                                           : rank == 1 ? "no-such-host.invalid,127.0.0.3,127.0.0.1"
                                                       : "127.0.0.2,127.0.0.1"});
    const int fd = mesh_ranks_take_call(&ranks, elsewhere);
    assert_int_equal(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n......", 34, MSG_NOSIGNAL), 34);
    mesh_ranks_end(&ranks);
    for (int rank = 0; rank < 3; rank++)
        boot_ranks_expect(&ranks.set, rank, ZERO_OK, NULL, NULL);
    close(fd);
    close(elsewhere);
}

// At the first address something listens that never says anything.
static void a_silent_listener_does_not_take_all_the_time(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, ipv4, 6000);
    const int elsewhere = listen_at(2, ranks.master.port);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2});
    mesh_ranks_start(&ranks,
                     &(struct mesh_role){.rank = 1, .world = 2, .address = "127.0.0.2,127.0.0.1"});
    const int fd = mesh_ranks_take_call(&ranks, elsewhere);
    mesh_ranks_end(&ranks);
    for (int rank = 0; rank < 2; rank++)
        boot_ranks_expect(&ranks.set, rank, ZERO_OK, NULL, NULL);
    close(fd);
    close(elsewhere);
}

// Where none of them is rank 0 a rank hears so, and does not call for ever.
static void what_is_at_none_of_its_addresses_is_told(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    int listeners[2];
    mesh_ranks_begin(&ranks, ipv4, 30000);
    for (int i = 0; i < 2; i++)
        listeners[i] = listen_at((unsigned char)(2 + i), ranks.master.port);
    mesh_ranks_start(&ranks,
                     &(struct mesh_role){.rank = 1, .world = 2, .address = "127.0.0.2,127.0.0.3"});
    for (int i = 0; i < 2; i++) {
        const int fd = mesh_ranks_take_call(&ranks, listeners[i]);
        assert_int_equal(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n......", 34, MSG_NOSIGNAL), 34);
        close(fd);
    }
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_INVALID, "it is no rank of zero",
                      "127.0.0.2,127.0.0.3");
    for (int i = 0; i < 2; i++)
        close(listeners[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_is_found_at_one_of_its_addresses),
        cmocka_unit_test(what_is_at_none_of_its_addresses_is_told),
        cmocka_unit_test(a_silent_listener_does_not_take_all_the_time),
        cmocka_unit_test(a_table_that_cannot_be_is_refused),
        cmocka_unit_test(why_rank_0_gives_up_is_printable),
        cmocka_unit_test(silent_callers_hold_up_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
