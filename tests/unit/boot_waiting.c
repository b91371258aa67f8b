// What ranks say while they wait for each other, over a socket of one host and over a network, and
// how they find out which of them are on one host.
#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"
#include "tests/unit/mesh_ranks.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t remind_ns = UINT64_C(60000000);

/* ------------------------------------------------------------------ what waiting ranks say */

// Waits until process i has said this.
static void await_words(const struct boot_ranks *ranks, int i, const char *part1, const char *part2)
{
    const struct boot_verdict *verdict = &ranks->verdicts[i];
    const uint64_t deadline = base_clock_ns() + ranks->patience_ns;
    for (bool said = false; !said; usleep(1000)) {
        const int lines = *(const volatile int *)&verdict->refusals;
        for (int line = 0; line < lines && line < 8; line++)
            said = said ||
                   (strstr(verdict->refused[line], part1) && strstr(verdict->refused[line], part2));
        if (!said && base_clock_ns() > deadline)
            fail_msg("process %d has not said \"%s\", but: %s", i, part1, verdict->refused[0]);
    }
}

static void ranks_of_a_host_say_whom_they_wait_for(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 30000);
    ranks.remind_ns = remind_ns;
    boot_ranks_start(&ranks, 3, 6, NULL);
    await_words(&ranks, 0, " s for rank 0 of 6, which does not listen",
                "the ranks at the rendezvous have waited ");
    await_words(&ranks, 0, "at the socket @zero-", "set MASTER_ADDR, MASTER_PORT");
    boot_ranks_start(&ranks, 0, 6, NULL);
    await_words(&ranks, 1, "the ranks at the rendezvous have waited ",
                " s for ranks 1, 2, 4, 5 of 6");
    await_words(&ranks, 0, "the ranks at the rendezvous have waited ",
                " s for ranks 1, 2, 4, 5 of 6");
    for (int rank = 1; rank < 6; rank++)
        if (rank != 3)
            boot_ranks_start(&ranks, rank, 6, NULL);
    boot_ranks_end(&ranks, -1);
    for (int i = 0; i < ranks.count; i++)
        boot_ranks_expect(&ranks, i, ZERO_OK, NULL, NULL);
}

// Where the launcher has said that all ranks are on this host, advice for others would mislead.
static void ranks_that_are_all_here_hear_of_no_other_host(void **state)
{
    (void)state;
    for (int here = 0; here < 2; here++) {
        struct boot_ranks ranks;
        boot_ranks_begin(&ranks, 300);
        ranks.all_here = here;
        boot_ranks_start(&ranks, 0, 2, NULL);
        boot_ranks_end(&ranks, -1);
        boot_ranks_expect(&ranks, 0, ZERO_E_TIMEOUT, "rank 1 of 2", "at the socket @zero-");
        const char *elsewhere = strstr(ranks.verdicts[0].error.message, "MASTER_ADDR");
        assert_true(here ? !elsewhere : elsewhere != NULL);
        elsewhere = strstr(ranks.verdicts[0].refused[0], "MASTER_ADDR");
        assert_true(here ? !elsewhere : elsewhere != NULL);
    }
}

static void ranks_of_several_hosts_say_whom_they_wait_for(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    char port[64];
    mesh_ranks_begin(&ranks, "127.0.0.1", 30000);
    snprintf(port, sizeof port, "port %d of 127.0.0.1 (the test)", ranks.master.port);
    ranks.set.remind_ns = remind_ns;
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 3, .world = 6});
    await_words(&ranks.set, 0, " s for rank 0 of 6", port);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 6});
    await_words(&ranks.set, 1, "rank 0 has waited", "for ranks 1, 2, 4, 5 of 6");
    await_words(&ranks.set, 1, "rank 0 has waited", port);
    await_words(&ranks.set, 1, "rank 0 has waited", "which is reached by ranks of this host only");
    await_words(&ranks.set, 0, "rank 3 (host ", "waits for ranks 1, 2, 4, 5 of 6");
    await_words(&ranks.set, 0, "rank 3 (host ", port);
    for (int rank = 1; rank < 6; rank++)
        if (rank != 3)
            mesh_ranks_start(&ranks, &(struct mesh_role){.rank = rank, .world = 6});
    mesh_ranks_end(&ranks);
    for (int i = 0; i < ranks.set.count; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
}

static void a_stranger_at_the_port_is_no_rank_0(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, "127.0.0.1", 600);
    ranks.set.remind_ns = remind_ns;
    const int stranger = mesh_ranks_usurp(&ranks);
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2});
    await_words(&ranks.set, 0, "rank 1 (host ", "has not answered as rank 0 of this job");
    close(stranger);
    mesh_ranks_end(&ranks);
    const struct boot_verdict *verdict = &ranks.set.verdicts[0];
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, "rank 0 of 2", NULL);
    for (int line = 0; line < verdict->refusals && line < 8; line++)
        assert_null(strstr(verdict->refused[line], "waits for"));
}

static void a_short_wait_is_spoken_of_in_its_middle(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 600);
    boot_ranks_start(&ranks, 0, 2, NULL);
    boot_ranks_end(&ranks, -1);
    boot_ranks_expect(&ranks, 0, ZERO_E_TIMEOUT, "rank 1 of 2", "at the socket @zero-");
    assert_int_equal(ranks.verdicts[0].refusals, 1);
    assert_non_null(strstr(ranks.verdicts[0].refused[0], " s for rank 1 of 2"));
}

static void contexts_in_another_order_are_named(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, "127.0.0.1", 1500);
    ranks.set.remind_ns = remind_ns;
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 0, .world = 2, .names = "ab"});
    mesh_ranks_start(&ranks, &(struct mesh_role){.rank = 1, .world = 2, .names = "ba"});
    mesh_ranks_end(&ranks);
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, "rank 1 of 2 did not come", "\"a\"");
    boot_ranks_expect(&ranks.set, 0, ZERO_E_TIMEOUT, "is opening \"b\" meanwhile", "in the same");
    boot_ranks_expect(&ranks.set, 1, ZERO_E_TIMEOUT, "it was opening \"a\"", "in the same order");
    await_words(&ranks.set, 0, "rank 0 has waited", "is opening \"b\" meanwhile");
    await_words(&ranks.set, 1, "it was opening \"a\"", "\"b\")");
}

/* ------------------------------------------------------------------ requests to stop */

// Shared by the processes: which of them is asked, -1: each.
static volatile pid_t *asked_process;

static bool is_asked(void)
{
    return *asked_process == -1 || *asked_process == getpid();
}

// Ranks 0 and 2 of 3 wait for rank 1; of several hosts, if `mesh`. One of them is asked, or both.
static void expect_a_stop(bool mesh, int whom)
{
    struct mesh_ranks ranks;
    *asked_process = 0;
    if (mesh)
        mesh_ranks_begin(&ranks, "127.0.0.1", 30000);
    else
        boot_ranks_begin(&ranks.set, 30000);
    ranks.set.remind_ns = remind_ns;
    ranks.set.asked = is_asked;
    for (int rank = 0; rank < 3; rank += 2)
        if (mesh)
            mesh_ranks_start(&ranks, &(struct mesh_role){.rank = rank, .world = 3});
        else
            boot_ranks_start(&ranks.set, rank, 3, NULL);
    await_words(&ranks.set, 1, "waited ", "for rank 1 of 3");
    *asked_process = whom < 0 ? -1 : ranks.set.pids[whom];
    if (mesh)
        mesh_ranks_end(&ranks);
    else
        boot_ranks_end(&ranks.set, -1);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_ABORTED, "asked to stop", "for rank 1 of 3");
}

static void a_request_to_stop_ends_the_wait_for_missing_ranks(void **state)
{
    (void)state;
    asked_process = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(asked_process, MAP_FAILED);
    expect_a_stop(false, -1);
    expect_a_stop(false, 1);
    expect_a_stop(true, 0);
    expect_a_stop(true, 1);
    munmap((void *)asked_process, 4096);
}

static void a_rank_without_rank_0_stops_alone(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    asked_process = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(asked_process, MAP_FAILED);
    *asked_process = -1;
    boot_ranks_begin(&ranks, 30000);
    ranks.asked = is_asked;
    boot_ranks_start(&ranks, 1, 2, NULL);
    boot_ranks_end(&ranks, -1);
    boot_ranks_expect(&ranks, 0, ZERO_E_ABORTED, "asked to stop", "for rank 0 of 2");
    // Ranks that come in time meet all the same: they learn of the request together.
    boot_ranks_begin(&ranks, 30000);
    ranks.asked = is_asked;
    boot_ranks_start(&ranks, 1, 2, NULL);
    boot_ranks_start(&ranks, 0, 2, NULL);
    boot_ranks_end(&ranks, -1);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks, i, ZERO_OK, NULL, NULL);
    munmap((void *)asked_process, 4096);
}

/* ------------------------------------------------------------------ which ranks are together */

// homes has a letter for the host of each rank.
static void expect_homes(const char *homes)
{
    const int world = (int)strlen(homes);
    struct mesh_ranks ranks;
    mesh_ranks_begin(&ranks, "127.0.0.1", 30000);
    for (int rank = world - 1; rank >= 0; rank--) {
        const char host_id[2] = {homes[rank], '\0'};
        mesh_ranks_start(&ranks,
                         &(struct mesh_role){.rank = rank, .world = world, .host_id = host_id});
    }
    mesh_ranks_end(&ranks);
    for (int rank = 0; rank < world; rank++) {
        const struct boot_verdict *verdict = &ranks.set.verdicts[world - 1 - rank];
        int before = 0, all = 0;
        for (int other = 0; other < world; other++) {
            before += other < rank && homes[other] == homes[rank];
            all += homes[other] == homes[rank];
        }
        boot_ranks_expect(&ranks.set, world - 1 - rank, ZERO_OK, NULL, NULL);
        if (verdict->local_rank != before || verdict->local_world != all)
            fail_msg("%s: rank %d is %d of %d", homes, rank, verdict->local_rank,
                     verdict->local_world);
    }
}

static void ranks_learn_who_is_beside_them(void **state)
{
    (void)state;
    static const char *const homes[] = {"a", "aaaa", "abcd", "aabb", "abab", "abbccc", "bacab"};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++)
        expect_homes(homes[i]);
}

static void a_network_namespace_is_a_host(void **state)
{
    (void)state;
    unsigned char(*homes)[BOOT_HOST_ID_BYTES] =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(homes, MAP_FAILED);
    bool apart = true;
    for (int i = 0; i < 3; i++) {
        const pid_t child = fork();
        int status;
        if (child == 0) {
            if (i == 2 && unshare(CLONE_NEWNET) != 0)
                _exit(1);
            boot_host_id(homes[i]);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        apart = status == 0;
    }
    assert_memory_equal(homes[0], homes[1], BOOT_HOST_ID_BYTES);
    if (!apart)
        print_message("not run: another network namespace, for unshare(CLONE_NEWNET) is not "
                      "allowed here\n");
    else
        assert_memory_not_equal(homes[0], homes[2], BOOT_HOST_ID_BYTES);
    munmap(homes, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_host_say_whom_they_wait_for),
        cmocka_unit_test(ranks_that_are_all_here_hear_of_no_other_host),
        cmocka_unit_test(ranks_of_several_hosts_say_whom_they_wait_for),
        cmocka_unit_test(a_stranger_at_the_port_is_no_rank_0),
        cmocka_unit_test(a_short_wait_is_spoken_of_in_its_middle),
        cmocka_unit_test(contexts_in_another_order_are_named),
        cmocka_unit_test(a_request_to_stop_ends_the_wait_for_missing_ranks),
        cmocka_unit_test(a_rank_without_rank_0_stops_alone),
        cmocka_unit_test(ranks_learn_who_is_beside_them),
        cmocka_unit_test(a_network_namespace_is_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
