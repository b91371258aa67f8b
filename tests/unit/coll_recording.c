// What the flight recorder says about operations: all of them, in order, and whether they ended.
#include "collectives/comm/comm_internal.h"
#include "collectives/control/control.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, COUNT = 64 };

static struct control_segment *segment;

static bool check_record(const struct control_rank *area, uint64_t number, const char *kind,
                         uint64_t sequence, uint64_t bytes, uint32_t unit, const char *name)
{
    struct control_record record;
    CHECK(control_read(area, number, &record));
    CHECK(record.what == CONTROL_OPERATION);
    CHECK(!strcmp(record.kind, kind));
    CHECK(record.sequence == sequence || record.peer != CONTROL_NO_PEER);
    CHECK(record.bytes == bytes);
    CHECK(record.unit == unit);
    CHECK(!strcmp(record.name, name));
    CHECK(!strcmp(record.comm, "test"));
    CHECK(record.ranks == WORLD && record.first == 0);
    CHECK(record.begin_ns > 0 && record.end_ns >= record.begin_ns);
    return true;
}

/** The bulk operations, messages around the ring of ranks, and the small ones. */
static bool run_operations(struct coll_comm *comm)
{
    const int rank = coll_rank(comm), world = coll_world(comm);
    float source[WORLD * COUNT] = {0}, sum[COUNT], all[WORLD * COUNT], from_left;
    double value = 1;
    struct coll_span elements[WORLD], bytes[WORLD];
    for (size_t i = 0; i < WORLD; i++) {
        elements[i] = (struct coll_span){i * COUNT, COUNT};
        bytes[i] = (struct coll_span){i * sizeof sum, sizeof sum};
    }
    struct coll_request requests[4] = {0};
    const struct coll_reduce_scatter reduce = {
        .source = source,
        .dtype = ZERO_F32,
        .spans = elements,
        .accumulator = sum,
        .contributors = world,
        .store = true,
        .label = {.what = "unit", .number = 17, .name = "h.4"},
    };
    const struct coll_all_gather gather = {
        .source = sum,
        .recv = all,
        .spans = bytes,
        .label = {.what = "step", .number = 5, .name = "a name that is longer than a record has"},
    };
    const struct coll_message send = {
        .data = sum, .bytes = sizeof from_left, .peer = (rank + 1) % world};
    const struct coll_message receive = {
        .data = &from_left, .bytes = sizeof from_left, .peer = (rank + world - 1) % world};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &reduce, &requests[0]));
    CHECK_OK(comm, coll_drain(comm, &requests[0]));
    CHECK_OK(comm, coll_all_gather_start(comm, &gather, &requests[1]));
    CHECK_OK(comm, coll_send_start(comm, &send, &requests[2]));
    CHECK_OK(comm, coll_receive_start(comm, &receive, &requests[3]));
    for (int i = 1; i < 4; i++)
        CHECK_OK(comm, coll_drain(comm, &requests[i]));
    CHECK_OK(comm, coll_all_reduce(comm, &value, 1, BASE_SUM));
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static bool record_everything(struct coll_comm *comm, void *user)
{
    (void)user;
    const int rank = coll_rank(comm);
    struct control_rank *area = &segment->ranks[rank];
    comm->comm_world->control = area;
    CHECK(run_operations(comm));
    const uint64_t part = COUNT * sizeof(float);
    CHECK(control_newest(area) == 6);
    CHECK(check_record(area, 1, "reduce-scatter", 0, part, 17, "h.4"));
    CHECK(check_record(area, 2, "all-gather", 1, part, CONTROL_NO_UNIT, "a name that is longer t"));
    CHECK(check_record(area, 3, "send", 0, sizeof(float), CONTROL_NO_UNIT, ""));
    CHECK(check_record(area, 4, "receive", 0, sizeof(float), CONTROL_NO_UNIT, ""));
    CHECK(check_record(area, 5, "all-reduce", 2, sizeof(double), CONTROL_NO_UNIT, ""));
    CHECK(check_record(area, 6, "barrier", 3, 0, CONTROL_NO_UNIT, ""));
    struct control_record record;
    CHECK(control_read(area, 3, &record) && record.peer == (rank + 1) % WORLD);
    CHECK(control_read(area, 4, &record) && record.peer == (rank + WORLD - 1) % WORLD);
    return true;
}

/** Rank 0 comes last; the others' records say that they are still in it. */
static bool record_a_wait(struct coll_comm *comm, void *user)
{
    (void)user;
    static const struct coll_span spans[WORLD] = {{0, 1}};
    const int rank = coll_rank(comm);
    struct control_rank *area = &segment->ranks[rank];
    struct coll_request request = {0};
    struct control_record record;
    comm->comm_world->control = area;
    const struct coll_all_gather word = {.spans = spans}; // of rank 0's
    if (rank == 0)
        for (int other = 1; other < WORLD; other++)
            while (!control_read(&segment->ranks[other], 1, &record) || record.end_ns != 0)
                usleep(100);
    CHECK_OK(comm, coll_all_gather_start(comm, &word, &request));
    CHECK(rank == 0 || (control_read(area, 1, &record) && record.number == request.record));
    CHECK_OK(comm, coll_drain(comm, &request));
    CHECK_OK(comm, coll_barrier(comm));
    CHECK(control_read(area, 2, &record) && record.end_ns != 0);
    return true;
}

static bool record_nothing(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK(run_operations(comm));
    return true;
}

static void with_segment(rank_fn fn)
{
    static const char *const transports[] = {"threads", "shm", "tcp:threads", "tcp"};
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        struct base_error error = {0};
        int fd;
        assert_int_equal(control_create(&segment, &fd, WORLD, false, &error), ZERO_OK);
        close(fd);
        assert_true(run_ranks(transports[i], WORLD, 0, fn, NULL));
        if (fn == record_nothing)
            assert_int_equal(control_newest(&segment->ranks[0]), 0);
        control_detach(segment);
    }
}

static void every_operation_is_recorded(void **state)
{
    (void)state;
    with_segment(record_everything);
}

static void waiting_ones_have_not_ended(void **state)
{
    (void)state;
    with_segment(record_a_wait);
}

static void without_a_recorder_nothing_is(void **state)
{
    (void)state;
    with_segment(record_nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_recorded),
        cmocka_unit_test(waiting_ones_have_not_ended),
        cmocka_unit_test(without_a_recorder_nothing_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
