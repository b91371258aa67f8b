// Every operation over every transport and many worlds.

#include "tests/unit/coll_checks.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void over_worlds(rank_fn fn)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 7};
    assert_true(run_ranks("self", 1, 0, fn, NULL));
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        assert_true(run_ranks("threads", worlds[i], 0, fn, NULL));
        assert_true(run_ranks("shm", worlds[i], 0, fn, NULL));
    }
}

static void all_gather(void **state)
{
    (void)state;
    over_worlds(check_all_gather);
}

static void reduce_scatter(void **state)
{
    (void)state;
    over_worlds(check_reduce_scatter);
}

static void small_operations(void **state)
{
    (void)state;
    over_worlds(check_small_operations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather),
        cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(small_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
