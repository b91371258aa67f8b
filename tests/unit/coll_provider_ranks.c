// Ranks whose arenas are copied by UCX: what becomes of them when one dies, or can't be read any
// more. Skipped where UCX is not to be had.
#include "base/clock.h"
#include "base/fault.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3 };

static const uint64_t second = UINT64_C(1000000000);

/** Gathers from arenas until something fails. */
static bool gathering_rank(struct coll_comm *comm, void *user)
{
    enum { BLOCK = 1 << 20 };
    const char *const *fault = user; // of rank 1, and what the others hear
    const int me = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[WORLD];
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK_OK(comm, coll_arena_create(comm, (size_t)world * BLOCK, &arena, NULL));
    unsigned char *all = coll_arena_base(arena);
    for (int rank = 0; rank < world; rank++)
        spans[rank] = (struct coll_span){(size_t)rank * BLOCK, BLOCK};
    CHECK_OK(comm, coll_barrier(comm));
    if (me == 1)
        CHECK(base_fault_set(fault[0], NULL) == ZERO_OK);
    const uint64_t began = base_clock_ns();
    for (unsigned turn = 0; coll_state(comm, &error) == ZERO_OK; turn++) {
        struct coll_request request = {0};
        const struct coll_all_gather op = {
            .source = all + spans[me].offset, .recv = all, .spans = spans};
        memset(all + spans[me].offset, (int)turn + me, BLOCK);
        if (coll_all_gather_start(comm, &op, &request) == ZERO_OK)
            coll_drain(comm, &request);
        for (int rank = 0; rank < world && coll_state(comm, NULL) == ZERO_OK; rank++)
            CHECK(all[spans[rank].offset + BLOCK - 1] == (unsigned char)(turn + (unsigned)rank));
        CHECK(base_clock_ns() - began < 20 * second);
    }
    if (strstr(error.message, fault[1]))
        return true;
    fprintf(stderr, "rank %d: %s\n", me, error.message);
    return false;
}

static void deaths_are_told_by_tcp(void **state)
{
    (void)state;
    static const char *const faults[][2] = {
        {"coll.all-gather.read:kill@5", "rank 1 died on host1"},
        {"coll.all-gather.post:kill@3", "rank 1 died on host1"},
        {"ucx.get:kill@4", "rank 1 died on host1"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const uint64_t began = base_clock_ns();
        assert_true(run_tcp_watched(WORLD, 1, 20 * second, 0, gathering_rank,
                                    (void *)(uintptr_t)faults[i]));
        assert_true(base_clock_ns() - began < 10 * second); // none waits for the provider's word
    }
}

/** All ranks live, and one can't read another one's memory any more. */
static void a_lost_way_fails_all(void **state)
{
    (void)state;
    static const char *const fault[] = {"ucx.get@4+", "rank 1, all-gather"};
    assert_true(
        run_tcp_watched(WORLD, -1, 20 * second, 0, gathering_rank, (void *)(uintptr_t)fault));
}

/** A rank of two hosts. */
static bool counting_rank(struct coll_comm *comm, void *user)
{
    struct coll_counters counters;
    const int world = coll_world(comm);
    (void)user;
    coll_counters(comm, &counters);
    CHECK(counters.memory_bytes == coll_memory_needed("ucx", false, world, 2));
    CHECK(counters.memory_bytes < coll_memory_needed("ucx", false, world, world));
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

/** Ranks of a host need no connection between them. */
static void memory_is_for_ranks_of_other_hosts(void **state)
{
    (void)state;
    assert_true(run_ranks("hosts", 4, 0, counting_rank, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deaths_are_told_by_tcp),
        cmocka_unit_test(a_lost_way_fails_all),
        cmocka_unit_test(memory_is_for_ranks_of_other_hosts),
    };
    setenv("UCX_TLS", "tcp,self", 0);
    setenv("ZERO_TEST_PROVIDER", "ucx", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
