// What copies, and the small operations, over every transport and many worlds. Argument `all`: in
// all cases.

#include "tests/sweep.h"
#include "tests/unit/coll_checks.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_BY_TCP = 5 };

static bool whole;

static void over_worlds(rank_fn fn)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 7, 8};
    assert_true(run_ranks("self", 1, 0, fn, &whole));
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        assert_true(run_ranks("threads", worlds[i], 0, fn, &whole));
        if (test_takes_transport("shm"))
            assert_true(run_ranks("shm", worlds[i], 0, fn, &whole));
        if (worlds[i] > MOST_BY_TCP)
            continue;
        assert_true(run_ranks("tcp:threads", worlds[i], 0, fn, &whole));
        if (test_takes_transport("tcp"))
            assert_true(run_ranks("tcp", worlds[i], 0, fn, &whole));
        if (test_takes_transport("hosts"))
            assert_true(run_ranks("hosts", worlds[i], 0, fn, &whole));
    }
}

static void copies(void **state)
{
    (void)state;
    over_worlds(check_copies);
}

static void small_operations(void **state)
{
    (void)state;
    over_worlds(check_small_operations);
}

int main(int argc, char **argv)
{
    whole = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),
        cmocka_unit_test(small_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
