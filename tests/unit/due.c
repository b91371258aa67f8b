/** The order of tiles in a fused step. */
#include "zero/store/tile_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int compare(const void *a, const void *b)
{
    const struct eng_due *x = a, *y = b;
    if (x->due != y->due)
        return x->due < y->due ? -1 : 1;
    return x->tile > y->tile ? -1 : x->tile < y->tile;
}

/** Sorts so many, whose moments are those of a backward pass, the other way round, all the same or
 * any, as the standard library does. */
static void check(size_t count, int kind)
{
    struct eng_due *list = calloc(count + 1, sizeof *list),
                   *wanted = calloc(count + 1, sizeof *list);
    uint64_t random = count;
    assert_non_null(list);
    assert_non_null(wanted);
    for (size_t i = 0; i < count; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const uint64_t dues[] = {i / 3, count - i, 7, random >> 60, UINT64_MAX - (random >> 63)};
        list[i] = wanted[i] = (struct eng_due){.due = dues[kind], .tile = count - 1 - i};
    }
    qsort(wanted, count, sizeof *wanted, compare);
    eng_due_sort(list, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(list[i].due, wanted[i].due);
        assert_int_equal(list[i].tile, wanted[i].tile);
    }
    free(list);
    free(wanted);
}

static void what_is_due_first_is_the_first(void **state)
{
    (void)state;
    for (size_t count = 0; count < 70; count++)
        for (int kind = 0; kind < 5; kind++)
            check(count, kind);
}

/** In tiles of 1 MiB that is the state of 25 billion parameters: what moves each past all others
 * takes minutes. */
static void very_many_take_no_time(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++)
        check(300000, kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_due_first_is_the_first),
        cmocka_unit_test(very_many_take_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
