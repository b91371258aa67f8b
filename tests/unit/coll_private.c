// Sources outside arenas: among threads, read from the other process, and copied by their owner.

#include "base/arena.h"
#include "base/fault.h"
#include "collectives/comm.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 8 };

/** How peers get at private memory. */
static const struct {
    const char *transport, *fault, *path;
} ways[] = {
    {"threads", NULL, "direct"},
    {"shm", NULL, "process_vm_readv"},
    {"shm", "shm.peek@1", "copied"},
};

static bool (*body)(struct coll_comm *comm, void *user);
static const char *expected_path;

static bool check_path(struct coll_comm *comm, void *user)
{
    CHECK(strcmp(coll_private_path(comm), expected_path) == 0);
    return body(comm, user);
}

/** Runs fn on `world` ranks in each of the ways. */
static void on_all(int world, rank_fn fn, void *user)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        assert_int_equal(base_fault_set(world > 1 ? ways[i].fault : NULL, NULL), ZERO_OK);
        body = fn;
        expected_path = world > 1 || i == 0 ? ways[i].path : "process_vm_readv";
        assert_true(run_ranks(ways[i].transport, world, 0, check_path, user));
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static unsigned char byte_of(int rank, size_t at, uint32_t turn)
{
    return (unsigned char)(mix((uint32_t)at, (uint32_t)rank, turn) >> 9);
}

/* ------------------------------------------------------------------ all-gather */

static bool all_gather_rank(struct coll_comm *comm, void *user)
{
    const size_t most = *(const size_t *)user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[MOST];
    size_t total = 1; // not aligned
    for (int r = 0; r < world; r++) {
        spans[r] = (struct coll_span){total, r % 3 == 2 ? 0 : most / (size_t)(r + 1)};
        total += spans[r].count + 3;
    }
    unsigned char *source = malloc(spans[rank].count + 1), *recv = calloc(total, 1);
    CHECK(source && recv);
    for (uint32_t turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < spans[rank].count; i++)
            source[i + 1] = byte_of(rank, i, turn);
        const struct coll_all_gather op = {.source = source + 1, .recv = recv, .spans = spans};
        struct coll_request request = {0};
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        for (int r = 0; r < world; r++)
            for (size_t i = 0; i < spans[r].count; i++)
                CHECK(recv[spans[r].offset + i] == byte_of(r, i, turn));
        CHECK(recv[0] == 0 && recv[total - 1] == 0);
    }
    free(source);
    free(recv);
    return true;
}

static void all_gather(void **state)
{
    (void)state;
    static size_t sizes[] = {0, 1, 4097, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        on_all(3, all_gather_rank, &sizes[i]);
    for (int world = 1; world <= 5; world++)
        on_all(world, all_gather_rank, &sizes[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
