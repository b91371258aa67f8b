// The all-gather that the ranks of a host do together, into one memory of theirs: what each of them
// reads there stays until it makes the next call for the same place, whoever is late; each host is
// sent each block once; what becomes of ranks that leave, die, or want it elsewhere.

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 8, SLOTS = 2, TURNS = 24, BLOCK = 30000, HOSTS = 2 };

static const uint64_t second = UINT64_C(1000000000);

static const char *const transports[] = {"threads", "shm", "hosts:threads", "hosts", "tcp"};

/** On how many hosts ranks are by a transport. */
static int hosts_of(const char *transport, int world)
{
    if (strncmp(transport, "hosts", 5) == 0)
        return HOSTS < world ? HOSTS : world;
    return strcmp(transport, "tcp") == 0 ? world : 1;
}

struct task {
    int hosts;
    bool kept;    /**< sources lie in an arena */
    bool ragged;  /**< some rank has no block, and one a large one */
    bool in_pair; /**< two operations are under way at a time */
};

/** One rank's slots and blocks. */
struct slots {
    struct coll_comm *comm;
    const struct task *task;
    struct coll_arena *arena, *own;
    struct coll_span spans[MOST];
    size_t bytes; /**< of a slot */
    unsigned char *base, *source, *to_free;
    const unsigned char *view;
};

static unsigned char byte_of(int rank, uint32_t turn, size_t at)
{
    return (unsigned char)(mix((uint32_t)rank, turn, (uint32_t)(at / 1024)) >> 8);
}

static size_t block_of(const struct task *task, int rank, int world)
{
    if (!task->ragged)
        return BLOCK;
    return rank == world - 1 && world > 1 ? 0 : rank == 0 ? 5 * BLOCK + 1 : (size_t)rank * 4097;
}

static bool make_slots(struct slots *slots, struct coll_comm *comm, const struct task *task)
{
    const int me = coll_rank(comm), world = coll_world(comm);
    size_t total = 0;
    *slots = (struct slots){.comm = comm, .task = task};
    for (int rank = 0; rank < world; rank++) {
        slots->spans[rank] = (struct coll_span){total, block_of(task, rank, world)};
        total += slots->spans[rank].count;
    }
    slots->bytes = (total + 2047) / 2048 * 2048;
    const size_t all = SLOTS * slots->bytes, begin = all * (size_t)me / (size_t)world,
                 end = all * ((size_t)me + 1) / (size_t)world;
    const struct coll_span mine = {begin, end - begin};
    CHECK_OK(comm, coll_arena_create_shared(comm, all, &mine, 1, &slots->arena, NULL));
    slots->base = coll_arena_base(slots->arena);
    slots->view = coll_arena_view(slots->arena);
    const size_t own = slots->spans[me].count + 1;
    CHECK_OK(comm, coll_arena_create(comm, task->kept ? TURNS * own : 0, &slots->own, NULL));
    slots->source =
        task->kept ? coll_arena_base(slots->own) : (slots->to_free = malloc(TURNS * own));
    CHECK(slots->source);
    return true;
}

static zero_result start(struct slots *slots, uint32_t turn, struct coll_request *request)
{
    const int me = coll_rank(slots->comm);
    const size_t bytes = slots->spans[me].count;
    // Each turn has a source of its own: only the slots are used again.
    unsigned char *source = slots->source + turn * (bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        source[i] = byte_of(me, turn, i);
    const struct coll_all_gather op = {.source = source,
                                       .recv = slots->base + turn % SLOTS * slots->bytes,
                                       .spans = slots->spans,
                                       .together = true,
                                       .label = {"unit", turn, "slot"}};
    return coll_all_gather_start(slots->comm, &op, request);
}

static bool holds(const struct slots *slots, uint32_t turn)
{
    const unsigned char *slot = slots->view + turn % SLOTS * slots->bytes;
    for (int rank = 0; rank < coll_world(slots->comm); rank++)
        for (size_t i = 0; i < slots->spans[rank].count; i += 97)
            if (slot[slots->spans[rank].offset + i] != byte_of(rank, turn, i)) {
                fprintf(stderr, "rank %d, turn %u: byte %zu of rank %d's block\n",
                        coll_rank(slots->comm), (unsigned)turn, i, rank);
                return false;
            }
    return true;
}

/** What all ranks of a host have copied from others is what is far, once. */
static bool gathered_once(struct slots *slots)
{
    const int me = coll_rank(slots->comm), world = coll_world(slots->comm);
    const int hosts = slots->task->hosts;
    struct coll_counters counters;
    double gathered[MOST] = {0};
    coll_counters(slots->comm, &counters);
    gathered[me % hosts] = (double)counters.gathered_bytes;
    CHECK_OK(slots->comm, coll_all_reduce(slots->comm, gathered, (size_t)hosts, BASE_SUM));
    for (int host = 0; host < hosts; host++) {
        double far = 0;
        for (int rank = 0; rank < world; rank++)
            far += rank % hosts == host ? 0 : (double)slots->spans[rank].count * TURNS;
        CHECK(gathered[host] == far);
    }
    return true;
}

/** Gathers into slots in turn; reads each twice, with a pause. A rank that is fast is ahead of one
 * that is slow by the slots there are. */
static bool gathering_rank(struct coll_comm *comm, void *user)
{
    struct slots slots;
    struct coll_request requests[SLOTS] = {0};
    uint32_t random = 17u + (uint32_t)coll_rank(comm);
    CHECK(make_slots(&slots, comm, user));
    const uint32_t ahead = slots.task->in_pair ? 1 : 0;
    for (uint32_t turn = 0; turn < TURNS + ahead; turn++) {
        if (turn < TURNS) {
            CHECK_OK(comm, coll_drain(comm, &requests[turn % SLOTS]));
            CHECK_OK(comm, start(&slots, turn, &requests[turn % SLOTS]));
        }
        if (turn < ahead)
            continue;
        const uint32_t read = turn - ahead;
        CHECK_OK(comm, coll_wait(comm, &requests[read % SLOTS]));
        CHECK(holds(&slots, read));
        nap(&random, 1500);
        CHECK(holds(&slots, read));
    }
    for (int slot = 0; slot < SLOTS; slot++)
        CHECK_OK(comm, coll_drain(comm, &requests[slot]));
    CHECK(gathered_once(&slots));
    CHECK_OK(comm, coll_barrier(comm));
    free(slots.to_free);
    return true;
}

static void a_slot_is_filled_when_all_have_released_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        for (int world = 1; world <= 6 && test_takes_transport(transports[i]); world++) {
            const bool odd = (world + (int)i) % 2;
            struct task task = {hosts_of(transports[i], world), odd, world > 2, !odd};
            assert_true(run_ranks(transports[i], world, 0, gathering_rank, &task));
            task = (struct task){task.hosts, !task.kept, !task.ragged, task.in_pair};
            if (test_takes(world))
                assert_true(run_ranks(transports[i], world, 0, gathering_rank, &task));
        }
}

/* ------------------------------------------------------------------ long all-reduces between */

/** Both count steps. */
static bool mixing_rank(struct coll_comm *comm, void *user)
{
    enum { COUNT = 40000 };
    struct slots slots;
    struct coll_request gather = {0}, reduce = {0};
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values && make_slots(&slots, comm, user));
    for (uint32_t turn = 0; turn < 6; turn++) {
        const struct coll_all_reduce sum = {
            .source = values, .result = values, .count = COUNT, .dtype = ZERO_F32, .op = BASE_SUM};
        for (size_t i = 0; i < COUNT; i++)
            values[i] = (float)(coll_rank(comm) + (int)turn);
        CHECK_OK(comm, start(&slots, turn, &gather));
        CHECK_OK(comm, coll_all_reduce_start(comm, &sum, &reduce));
        CHECK_OK(comm, coll_drain(comm, &reduce));
        CHECK_OK(comm, coll_drain(comm, &gather));
        const int world = coll_world(comm);
        CHECK(holds(&slots, turn));
        const int expected = world * (world - 1) / 2 + world * (int)turn;
        CHECK(values[COUNT - 1] == (float)expected);
    }
    CHECK_OK(comm, coll_barrier(comm));
    free(values);
    free(slots.to_free);
    return true;
}

static void other_operations_go_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (test_takes_transport(transports[i]))
            assert_true(run_ranks(transports[i], 5, 0, mixing_rank,
                                  &(struct task){.hosts = hosts_of(transports[i], 5)}));
}

/* ------------------------------------------------------------------ what goes wrong */

/** Rank 2 leaves at once, and the others of its host bring its part. */
static bool leaving_rank(struct coll_comm *comm, void *user)
{
    struct slots slots;
    static _Thread_local struct coll_request request;
    request = (struct coll_request){0};
    CHECK(make_slots(&slots, comm, user));
    if (coll_rank(comm) == 1)
        usleep(50000);
    CHECK_OK(comm, start(&slots, 0, &request));
    if (coll_rank(comm) == 2)
        return true;
    CHECK_OK(comm, coll_wait(comm, &request));
    return holds(&slots, 0);
}

static void ranks_that_leave_leave_their_parts(void **state)
{
    (void)state;
    static const char *const of_hosts[] = {"hosts:threads", "hosts"};
    for (size_t i = 0; i < sizeof of_hosts / sizeof *of_hosts; i++)
        for (int world = 3; world <= 6 && test_takes_transport(of_hosts[i]); world++)
            assert_true(run_ranks(of_hosts[i], world, 0, leaving_rank,
                                  &(struct task){.hosts = HOSTS, .kept = true}));
}

/** Rank 2 takes the slots in another order than rank 0, of its host. */
static bool other_slot_rank(struct coll_comm *comm, void *user)
{
    struct slots slots;
    struct coll_request request = {0};
    struct base_error error = {0};
    CHECK(make_slots(&slots, comm, user));
    const struct coll_all_gather op = {
        .source = slots.source,
        .recv = slots.base + (coll_rank(comm) == 2 ? slots.bytes : 0),
        .spans = slots.spans,
        .together = true,
        .label = {"unit", 7, "h.2"},
    };
    zero_result result = coll_all_gather_start(comm, &op, &request);
    if (result == ZERO_OK)
        result = coll_wait(comm, &request);
    CHECK(result == ZERO_E_DIVERGED && coll_state(comm, &error) == ZERO_E_DIVERGED);
    CHECK(strstr(error.message, "unit 7 (h.2)") &&
          strstr(error.message, "same units in the same order"));
    free(slots.to_free);
    return true;
}

/** Only rank 1 does it by itself, or all want it outside of shared arenas. */
static bool refused_rank(struct coll_comm *comm, void *user)
{
    struct slots slots;
    struct coll_request request = {0};
    struct base_error error = {0};
    const struct task *task = user;
    CHECK(make_slots(&slots, comm, user));
    unsigned char *outside = calloc(1, slots.bytes);
    const struct coll_all_gather op = {.source = slots.source,
                                       .recv = task->in_pair ? outside : slots.base,
                                       .spans = slots.spans,
                                       .together = task->in_pair || coll_rank(comm) != 1};
    const zero_result wanted = task->in_pair ? ZERO_E_INVALID : ZERO_E_DIVERGED;
    zero_result result = coll_all_gather_start(comm, &op, &request);
    if (result == ZERO_OK)
        result = coll_wait(comm, &request);
    CHECK(result == wanted && coll_state(comm, &error) == wanted);
    CHECK(strstr(error.message, task->in_pair ? "not into a shared arena"
                                              : "only one of them into memory of its host"));
    free(outside);
    free(slots.to_free);
    return true;
}

static void ranks_that_differ_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        if (!test_takes_transport(transports[i]))
            continue;
        struct task task = {.hosts = hosts_of(transports[i], 3)};
        if (task.hosts < 3)
            assert_true(run_ranks(transports[i], 3, 0, other_slot_rank, &task));
        assert_true(run_ranks(transports[i], 3, 0, refused_rank, &task));
        task.in_pair = true;
        assert_true(run_ranks(transports[i], 3, 0, refused_rank, &task));
    }
}

/** Rank 2 dies while it reads a slot that the others want to fill again. */
static bool dying_rank(struct coll_comm *comm, void *user)
{
    struct slots slots;
    struct base_error error = {0};
    CHECK(make_slots(&slots, comm, user));
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct coll_request request = {0};
        if (coll_rank(comm) == 2 && turn == 3) {
            usleep(30000);
            base_fault_set("coll.all-gather.post:kill@1", NULL);
        }
        if (start(&slots, turn, &request) != ZERO_OK || coll_drain(comm, &request) != ZERO_OK)
            break;
        CHECK(holds(&slots, turn));
    }
    CHECK(coll_state(comm, &error) == ZERO_E_PEER && strstr(error.message, "rank 2 died"));
    // What is held stays readable.
    CHECK(holds(&slots, 2));
    free(slots.to_free);
    return true;
}

static void deaths_end_the_wait_for_a_release(void **state)
{
    (void)state;
    struct task task = {.hosts = HOSTS};
    const uint64_t began = base_clock_ns();
    if (test_takes_transport("hosts"))
        assert_true(run_hosts_watched(4, 2, 30 * second, 0, dying_rank, &task));
    if (test_takes_transport("shm"))
        assert_true(run_ranks_watched(4, 2, 30 * second, 0, dying_rank, &task));
    assert_true(base_clock_ns() - began < 20 * second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_is_filled_when_all_have_released_it),
        cmocka_unit_test(other_operations_go_on),
        cmocka_unit_test(ranks_that_leave_leave_their_parts),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(deaths_end_the_wait_for_a_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
