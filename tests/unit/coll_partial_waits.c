// Who is named where sums travel instead of contributions, and a rank that makes some has started
// its calls but does nothing for them: all ranks wait for it in vain.

#include "collectives/comm/comm_internal.h"
#include "collectives/comm/partial_sums.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 4, EACH = 2, COUNT = 4096, CALLS = 3, IDLE = 2 };

static bool start(struct coll_comm *comm, const struct coll_span *spans, float memory[2][COUNT],
                  struct coll_request *request)
{
    const struct coll_reduce_scatter op = {.source = memory[0],
                                           .dtype = ZERO_F32,
                                           .spans = spans,
                                           .accumulator = memory[1],
                                           .contributors = WORLD,
                                           .sum_group = EACH,
                                           .last = true};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, request));
    return true;
}

static bool waiting_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    static float memory[CALLS][2][COUNT];
    struct coll_span spans[WORLD];
    struct coll_request requests[CALLS] = {0};
    struct base_error error = {0};
    for (size_t rank = 0; rank < WORLD; rank++)
        spans[rank] = (struct coll_span){rank * COUNT / WORLD, COUNT / WORLD};
    CHECK_OK(comm, coll_partial_sums_create(
                       comm, coll_partial_sums_bytes(WORLD, EACH, EACH, ZERO_F32, spans), NULL));
    for (int i = 0; i < CALLS; i++)
        CHECK(start(comm, spans, memory[i], &requests[i]));
    if (coll_rank(comm) == IDLE) {
        usleep(1500000);
        return true;
    }
    CHECK(coll_drain(comm, &requests[0]) == ZERO_E_TIMEOUT);
    CHECK(coll_state(comm, &error) == ZERO_E_TIMEOUT);
    CHECK(strstr(error.message, "reduce-scatter #2 for rank 2 ") ||
          strstr(error.message, ", rank 2 "));
    return true;
}

static void a_maker_is_named(void **state)
{
    (void)state;
    assert_true(run_ranks("hosts/2", WORLD, UINT64_C(500000000), waiting_rank, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_maker_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
