// Groups: every way to cut, groups of groups and overlapping ones, many of them one after the
// other; what one rank's wait does for the other groups; failures and leaving.
//
//     unit.coll_groups [rounds of groups that come and go]

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/comm/comm_internal.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_WORLD = 7, MOST_COUNT = 500 };

static const char *const transports[] = {"threads", "shm", "tcp:threads", "tcp", "hosts"};

enum { TRANSPORTS = sizeof transports / sizeof *transports };

/** How a rank of a communicator of `world` chooses. */
struct cut {
    const char *name;
    int (*color)(int rank, int world);
    int (*key)(int rank, int world);
};

static int zero(int rank, int world)
{
    (void)rank;
    (void)world;
    return 0;
}

static int backwards(int rank, int world)
{
    return world - rank;
}

static int parity(int rank, int world)
{
    (void)world;
    return rank % 2;
}

static int halves(int rank, int world)
{
    return rank < world / 2 ? 1000000 : 7;
}

static int alone(int rank, int world)
{
    (void)world;
    return rank;
}

static int all_but_first(int rank, int world)
{
    (void)world;
    return rank == 0 ? -1 : 3;
}

static int nobody(int rank, int world)
{
    (void)rank;
    (void)world;
    return -5;
}

static const struct cut cuts[] = {
    {"all", zero, zero},
    {"all, backwards", zero, backwards},
    {"even and odd", parity, zero},
    {"halves, backwards", halves, backwards},
    {"each alone", alone, zero},
    {"all but the first", all_but_first, parity},
    {"nobody", nobody, zero},
};

enum { CUTS = sizeof cuts / sizeof *cuts };

/** What every rank of the root has, in an arena: enough for any operation here. */
struct bench {
    struct coll_comm *root;
    struct coll_arena *arena;
    unsigned char *bytes;
};

static bool setup(struct bench *bench, struct coll_comm *root)
{
    struct base_error error = {0};
    bench->root = root;
    CHECK_OK(root, coll_arena_create(root, MOST_COUNT, &bench->arena, &error));
    bench->bytes = coll_arena_base(bench->arena);
    return true;
}

/** Small and bulk operations within a group see its ranks alone, in its order. */
static bool use(struct bench *bench, struct coll_comm *group)
{
    const int rank = coll_rank(group), world = coll_world(group);
    int32_t me = coll_rank(bench->root), all[MOST_WORLD];
    CHECK(coll_root_rank(group, rank) == me);
    CHECK_OK(group, coll_exchange(group, &me, sizeof me, all));
    for (int r = 0; r < world; r++)
        CHECK(all[r] == coll_root_rank(group, r));
    double sum = me;
    CHECK_OK(group, coll_all_reduce(group, &sum, 1, BASE_SUM));
    for (int r = 0; r < world; r++)
        sum -= all[r];
    CHECK(sum == 0);

    struct coll_span spans[MOST_WORLD];
    unsigned char result[MOST_COUNT];
    for (int r = 0; r < world; r++)
        spans[r] = (struct coll_span){.offset = (size_t)r * 20, .count = (size_t)(r + 3)};
    memset(bench->bytes, me + 1, MOST_COUNT);
    struct coll_request request = {0};
    const struct coll_all_gather op = {.source = bench->bytes, .recv = result, .spans = spans};
    CHECK_OK(group, coll_all_gather_start(group, &op, &request));
    CHECK_OK(group, coll_drain(group, &request));
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < spans[r].count; i++)
            CHECK(result[spans[r].offset + i] == all[r] + 1);
    return true;
}

/** The group that a cut must give this rank of `parent`; empty: none. */
static int expect(const struct coll_comm *parent, const struct cut *cut, int *root_ranks)
{
    const int world = coll_world(parent), mine = cut->color(coll_rank(parent), world);
    bool taken[MOST_WORLD] = {false};
    int count = 0;
    for (;;) {
        int next = -1;
        for (int r = 0; r < world; r++)
            if (mine >= 0 && !taken[r] && cut->color(r, world) == mine &&
                (next < 0 || cut->key(r, world) < cut->key(next, world)))
                next = r;
        if (next < 0)
            return count;
        taken[next] = true;
        root_ranks[count++] = coll_root_rank(parent, next);
    }
}

static bool split(struct bench *bench, struct coll_comm *parent, const struct cut *cut,
                  struct coll_comm **group)
{
    struct base_error error = {0};
    const int rank = coll_rank(parent), world = coll_world(parent);
    int ranks[MOST_WORLD];
    const int count = expect(parent, cut, ranks);
    CHECK_OK(parent,
             coll_split(parent, cut->color(rank, world), cut->key(rank, world), group, &error));
    CHECK((*group != NULL) == (count > 0));
    if (!*group)
        return true;
    CHECK(coll_world(*group) == count);
    for (int r = 0; r < count; r++)
        CHECK(coll_root_rank(*group, r) == ranks[r]);
    CHECK(strcmp(coll_transport_name(*group), coll_transport_name(parent)) == 0);
    return use(bench, *group);
}

/** Each cut of the root, and each cut of each of its groups, all of them kept. */
static bool cut_twice(struct coll_comm *root, void *user)
{
    (void)user;
    struct bench bench;
    CHECK(setup(&bench, root));
    struct coll_comm *first[CUTS], *second[CUTS][CUTS] = {{NULL}};
    for (int i = 0; i < CUTS; i++) {
        CHECK(split(&bench, root, &cuts[i], &first[i]));
        for (int k = 0; k < CUTS && first[i]; k++)
            CHECK(split(&bench, first[i], &cuts[k], &second[i][k]));
    }
    for (int i = 0; i < CUTS; i++) {
        CHECK(!first[i] || use(&bench, first[i]));
        for (int k = 0; k < CUTS; k++)
            CHECK(!second[i][k] || use(&bench, second[i][k]));
    }
    // A group lives without the one it was cut from; closing the root closes the rest.
    for (int i = 0; i < CUTS; i++)
        coll_close(first[i]);
    for (int i = 0; i < CUTS; i++)
        for (int k = 0; k < CUTS; k++)
            CHECK(!second[i][k] || use(&bench, second[i][k]));
    for (int k = 0; k < CUTS; k++)
        coll_close(second[0][k]);
    struct coll_comm *last;
    CHECK(split(&bench, root, &cuts[0], &last));
    return use(&bench, root);
}

static void test_cuts(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, MOST_WORLD};
    for (int w = 0; w < (int)(sizeof worlds / sizeof *worlds); w++)
        for (int i = 0; i < TRANSPORTS; i++)
            if (test_takes_transport(transports[i]) && (i < 2 || test_takes(w + i)))
                assert_true(run_ranks(transports[i], worlds[w], 0, cut_twice, NULL));
    assert_true(run_ranks("self", 1, 0, cut_twice, NULL));
}

/* ------------------------------------------------------------------ room */

/** Groups come and go; their room is used again. */
static bool come_and_go(struct coll_comm *root, void *user)
{
    const int *rounds = user;
    struct bench bench;
    CHECK(setup(&bench, root));
    struct coll_counters before, first, after;
    coll_counters(root, &before);
    for (int i = 0; i < *rounds; i++) {
        struct coll_comm *group, *inner = NULL;
        const struct cut *cut = &cuts[i % CUTS], *other = &cuts[i / CUTS % CUTS];
        CHECK(split(&bench, root, cut, &group));
        CHECK(!group || split(&bench, group, other, &inner));
        if (i % 2)
            coll_close(inner);
        coll_close(group);
        if (i % 2 == 0)
            coll_close(inner);
        coll_counters(root, i == 0 ? &first : &after);
    }
    // Two groups at a time, and what a rank that dawdles still holds.
    CHECK(after.memory_bytes - before.memory_bytes <=
          3 * (first.memory_bytes - before.memory_bytes));
    return true;
}

/** All room taken: every rank is told, and is as before. */
static bool fill(struct coll_comm *root, void *user)
{
    (void)user;
    struct bench bench;
    CHECK(setup(&bench, root));
    struct coll_comm *groups[COLL_GROUPS_MAX], *more;
    // Rank 0 is in one group more than the others.
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, coll_rank(root) == 0 ? 1 : -1, 0, &groups[0], &error));
    for (int i = 1; i < COLL_GROUPS_MAX; i++)
        CHECK_OK(root, coll_split(root, 0, 0, &groups[i], &error));
    for (int again = 0; again < 3; again++) {
        CHECK(coll_split(root, 0, 0, &more, &error) == ZERO_E_LIMIT);
        CHECK(!more && strstr(error.message, "rank 0: ") && strstr(error.message, "64 groups"));
        CHECK(coll_state(root, NULL) == ZERO_OK);
    }
    CHECK_OK(root, coll_split(root, coll_rank(root) == 0 ? -1 : 1, 0, &more, &error));
    coll_close(more);
    coll_close(groups[0]);
    coll_close(groups[5]);
    groups[0] = NULL;
    CHECK_OK(root, coll_split(root, 0, 0, &groups[5], &error));
    for (int i = 1; i < COLL_GROUPS_MAX; i++)
        CHECK(use(&bench, groups[i]));
    return true;
}

static int rounds = 100 / TEST_LONG_STRIDE;

static void test_room(void **state)
{
    (void)state;
    for (int i = 0; i < TRANSPORTS; i++) {
        if (!test_takes_transport(transports[i]))
            continue;
        assert_true(run_ranks(transports[i], 3, 0, come_and_go, &rounds));
        assert_true(run_ranks(transports[i], 2, 0, fill, NULL));
    }
}

/* ------------------------------------------------------------------ waiting */

static int rows(int rank, int world)
{
    (void)world;
    return rank / 2;
}

enum { RING_REPEATS = 200, RING_BYTES = 64 };

/** In both pairs at once, waiting for one first. */
static bool turn_ring(struct coll_comm *root, struct coll_comm *const pairs[2],
                      unsigned char *sources)
{
    enum { BYTES = RING_BYTES };
    const int me = coll_rank(root);
    for (int n = 0; n < RING_REPEATS; n++) {
        const struct coll_span spans[] = {{0, BYTES}, {BYTES, BYTES}};
        unsigned char results[2][2 * BYTES];
        struct coll_request requests[2] = {0};
        for (int i = 0; i < 2; i++) {
            const int at = (i + me) % 2;
            memset(sources + at * BYTES, me + n + at * 100, BYTES);
            const struct coll_all_gather op = {
                .source = sources + at * BYTES, .recv = results[at], .spans = spans};
            CHECK_OK(root, coll_all_gather_start(pairs[at], &op, &requests[at]));
        }
        // Drained: the peer has read it, which it does while it waits for something else.
        CHECK_OK(root, coll_drain(pairs[n % 2], &requests[n % 2]));
        CHECK_OK(root, coll_drain(pairs[1 - n % 2], &requests[1 - n % 2]));
        for (int at = 0; at < 2; at++)
            for (int r = 0; r < 2; r++) {
                const int who = coll_root_rank(pairs[at], r);
                CHECK(results[at][r * BYTES] ==
                      (unsigned char)(who + n + (who == me ? at : 1 - at) * 100));
            }
    }
    return true;
}

/** Every pair of neighbours in a ring is a group, and every rank waits for another one first. Had
 * no rank been woken by what happens in another group each wait would have slept a while; where the
 * machine is busy it may take as long once, not every time. */
static bool ring(struct coll_comm *root, void *user)
{
    (void)user;
    enum { TRIES = 10 };
    const int me = coll_rank(root), world = coll_world(root);
    struct coll_comm *pairs[2]; // with the next one, with the one before
    struct base_error error = {0};
    for (int k = 0; k < world; k++) {
        struct coll_comm *pair;
        const bool mine = k == me || k == (me + world - 1) % world;
        CHECK_OK(root, coll_split(root, mine ? 0 : -1, 0, &pair, &error));
        if (pair)
            pairs[k == me ? 0 : 1] = pair;
    }
    struct coll_arena *arena;
    CHECK_OK(root, coll_arena_create(root, 2 * RING_BYTES, &arena, &error));
    double seconds = INFINITY;
    for (int i = 0; i < TRIES && seconds > RING_REPEATS * 0.01; i++) {
        const double began = base_clock_s();
        CHECK(turn_ring(root, pairs, coll_arena_base(arena)));
        seconds = base_clock_s() - began;
        CHECK_OK(root, coll_all_reduce(root, &seconds, 1, BASE_MAX));
    }
    CHECK(seconds <= RING_REPEATS * 0.01);
    return true;
}

/** In reverse orders: starts in one, waits in the other. */
static bool crossed(struct coll_comm *root, void *user)
{
    (void)user;
    enum { GROUPS = 6 };
    const int me = coll_rank(root);
    struct coll_comm *groups[GROUPS];
    struct base_error error = {0};
    for (int i = 0; i < GROUPS; i++)
        CHECK_OK(root, coll_split(root, i % 2 ? 0 : rows(me, 0), 0, &groups[i], &error));
    struct coll_arena *arena;
    CHECK_OK(root, coll_arena_create(root, GROUPS * MOST_WORLD, &arena, &error));
    for (uint32_t n = 0; n < 100; n++) {
        struct coll_request requests[GROUPS] = {0};
        unsigned char result[GROUPS][MOST_WORLD];
        struct coll_span spans[MOST_WORLD];
        for (size_t r = 0; r < MOST_WORLD; r++)
            spans[r] = (struct coll_span){r, 1};
        for (int i = 0; i < GROUPS; i++) {
            const int at = me % 2 ? i : GROUPS - 1 - i;
            unsigned char *source = (unsigned char *)coll_arena_base(arena) + at;
            *source = (unsigned char)mix(n, (uint32_t)me, (uint32_t)at);
            const struct coll_all_gather op = {
                .source = source, .recv = result[at], .spans = spans};
            CHECK_OK(root, coll_all_gather_start(groups[at], &op, &requests[at]));
        }
        for (int i = 0; i < GROUPS; i++) {
            const int at = (me + i) % GROUPS;
            CHECK_OK(root, coll_drain(groups[at], &requests[at]));
            for (int r = 0; r < coll_world(groups[at]); r++)
                CHECK(result[at][r] ==
                      (unsigned char)mix(n, (uint32_t)coll_root_rank(groups[at], r), (uint32_t)at));
        }
    }
    return true;
}

static void test_no_circle(void **state)
{
    (void)state;
    for (int i = 0; i < TRANSPORTS; i++)
        for (int world = 3; world <= 4 && test_takes_transport(transports[i]); world++) {
            assert_true(run_ranks(transports[i], world, 0, ring, NULL));
            assert_true(run_ranks(transports[i], world, 0, crossed, NULL));
        }
}

/* ------------------------------------------------------------------ failures */

/** A failure in one group is the family's, and names ranks by their numbers in the root. */
static bool diverge(struct coll_comm *root, void *user)
{
    (void)user;
    struct coll_comm *row, *column;
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, coll_rank(root) / 2, 0, &row, &error));
    CHECK_OK(root, coll_split(root, coll_rank(root) % 2, 0, &column, &error));
    zero_result result;
    if (coll_rank(root) == 2) {
        double value = 0;
        result = coll_all_reduce(row, &value, 1, BASE_SUM);
    } else {
        result = coll_rank(root) == 3 ? coll_barrier(row) : coll_barrier(root);
    }
    CHECK(result == ZERO_E_DIVERGED);
    CHECK(coll_state(column, &error) == ZERO_E_DIVERGED);
    CHECK(strstr(error.message, "test/1.1") &&
          strstr(error.message, "rank 2 called all-reduce #0") &&
          strstr(error.message, "rank 3 called barrier #0"));
    struct coll_comm *none;
    CHECK(coll_split(root, 0, 0, &none, &error) == ZERO_E_DIVERGED && !none);
    coll_close(column);
    return true;
}

/** A rank that has left a group is missed there, and not in the others. */
static bool leave(struct coll_comm *root, void *user)
{
    (void)user;
    struct bench bench;
    CHECK(setup(&bench, root));
    struct coll_comm *row, *column;
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, coll_rank(root) / 2, 0, &row, &error));
    CHECK_OK(root, coll_split(root, coll_rank(root) % 2, 0, &column, &error));
    if (coll_rank(root) == 1) {
        coll_close(row);
        CHECK(use(&bench, column) && use(&bench, root));
        CHECK_OK(root, coll_barrier(root));
        CHECK(coll_barrier(root) == ZERO_E_PEER);
    } else {
        CHECK(use(&bench, column) && use(&bench, root));
        CHECK_OK(root, coll_barrier(root));
        CHECK((coll_rank(root) == 0 ? coll_barrier(row) : coll_barrier(root)) == ZERO_E_PEER);
    }
    CHECK(coll_state(root, &error) == ZERO_E_PEER);
    CHECK(strstr(error.message, "rank 1 has closed") && strstr(error.message, "test/1.0"));
    return true;
}

static bool abort_group(struct coll_comm *root, void *user)
{
    (void)user;
    struct coll_comm *group;
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, coll_rank(root) / 2, 0, &group, &error));
    if (coll_rank(root) == 3)
        coll_abort(group, ZERO_E_ABORTED, "enough");
    CHECK((coll_rank(root) % 2 ? coll_barrier(root) : coll_barrier(group)) == ZERO_E_ABORTED ||
          coll_barrier(root) == ZERO_E_ABORTED);
    CHECK(coll_state(group, &error) == ZERO_E_ABORTED);
    CHECK(strstr(error.message, "rank 3: enough"));
    return true;
}

/** A rank dies: those of its groups are told, and those of others too. */
static bool die(struct coll_comm *root, void *user)
{
    (void)user;
    struct coll_comm *row;
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, coll_rank(root) / 2, 0, &row, &error));
    CHECK_OK(root, coll_barrier(root));
    if (coll_rank(root) == 3)
        raise(SIGKILL);
    unsigned char data = 0;
    struct coll_request request = {0};
    const struct coll_message never = {&data, 1, 1 - coll_rank(row), {0}};
    CHECK(coll_receive_start(row, &never, &request) == ZERO_E_PEER ||
          coll_drain(row, &request) == ZERO_E_PEER);
    CHECK(coll_state(root, &error) == ZERO_E_PEER && strstr(error.message, "rank 3 "));
    return true;
}

static void test_failures(void **state)
{
    assert_true(run_ranks_killed(4, 3, die, NULL));
    (void)state;
    for (int i = 0; i < TRANSPORTS; i++) {
        if (!test_takes_transport(transports[i]))
            continue;
        assert_true(run_ranks(transports[i], 4, 0, diverge, NULL));
        assert_true(run_ranks(transports[i], 4, 0, leave, NULL));
        assert_true(run_ranks(transports[i], 4, 0, abort_group, NULL));
    }
}

/** Rank 1 lacks memory somewhere in a split: all are told. */
static bool short_of_memory(struct coll_comm *root, void *user)
{
    struct bench bench;
    CHECK(setup(&bench, root));
    struct base_error error = {0};
    struct coll_comm *group;
    CHECK(base_fault_set(coll_rank(root) == 1 ? user : "", &error) == ZERO_OK);
    zero_result result = coll_split(root, 0, -coll_rank(root), &group, &error);
    CHECK(base_fault_set(NULL, NULL) == ZERO_OK);
    CHECK(result == ZERO_E_NOMEM && !group && strstr(error.message, "rank 1: "));
    if (coll_state(root, NULL) != ZERO_OK) // it could not even tell the others
        return coll_barrier(root) == ZERO_E_NOMEM;
    for (int i = 0; i < COLL_GROUPS_MAX; i++) {
        CHECK_OK(root, coll_split(root, 0, -coll_rank(root), &group, &error));
        CHECK(use(&bench, group) && use(&bench, root));
    }
    return true;
}

static void test_short_of_memory(void **state)
{
    (void)state;
    // The tables of the split, of the group, of its link; what the ranks tell each other; pages.
    char *const faults[] = {"alloc@1", "alloc@3", "alloc@4",  "alloc@5",  "alloc@6",
                            "alloc@7", "alloc@9", "alloc@12", "alloc@13", "shm.allocate@1"};
    if (!test_takes_transport("shm"))
        skip();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_true(run_ranks("shm", 3, 0, short_of_memory, faults[i]));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_no_circle),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_short_of_memory),
    };
    return cmocka_run_group_tests_name("coll_groups", tests, NULL, NULL);
}
