// <zero/collectives.h> without memory: every allocation in the life of a family of one rank fails
// once. The call that needed it says so, and what it should have made is not there.

#include <zero/collectives.h>

#include "base/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/** A whole life, up to the first failure, which is checked. */
static zero_result live(void)
{
    zero_comm_config config = zero_comm_config_default();
    config.world = 1;
    config.log_level = -1;
    zero_comm *comm, *group = NULL;
    void *memory = NULL;
    zero_result result = zero_comm_open(&comm, &config);
    if (result) {
        assert_null(comm);
        assert_string_not_equal(zero_comm_error(NULL), "");
        return result;
    }
    result = zero_comm_alloc(comm, 100, &memory);
    assert_true(result || memory);
    if (!result) {
        result = zero_comm_split(comm, 0, 0, &group);
        assert_true(!result == (group != NULL));
    }
    float value = 2;
    if (!result)
        result = zero_comm_all_reduce(group, &value, memory, 1, ZERO_F32, ZERO_SUM);
    assert_true(result || *(float *)memory == 2);
    assert_true(!result || zero_comm_error(comm)[0]);
    zero_comm_close(comm);
    return result;
}

static void every_allocation(void **state)
{
    (void)state;
    zero_result result = ZERO_E_NOMEM;
    int nth = 0;
    while (result == ZERO_E_NOMEM && nth < 1000) {
        char fault[32];
        snprintf(fault, sizeof fault, "alloc@%d", ++nth);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        result = live();
        assert_int_equal(base_fault_fired(), result == ZERO_E_NOMEM);
        base_fault_set(NULL, NULL);
    }
    assert_int_equal(result, ZERO_OK);
    assert_in_range(nth, 20, 999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
