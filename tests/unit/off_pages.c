// offload/pages.h: memory that is there, zero, and says of what pages it is made.
#include "base/fault.h"
#include "offload/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const size_t huge = (size_t)2 << 20;
static struct off_pages pages;
static struct base_error failure;

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    base_error_clear(&failure);
    off_pages_destroy(&pages);
    assert_null(pages.memory);
    return 0;
}

static void check_memory(size_t bytes)
{
    const unsigned char *memory = pages.memory;
    assert_int_equal((uintptr_t)memory % huge, 0);
    assert_int_equal(pages.bytes, (bytes + huge - 1) / huge * huge);
    for (size_t i = 0; i < pages.bytes; i++)
        assert_int_equal(memory[i], 0);
    memset(pages.memory, 1, pages.bytes);
}

static void any_size_is_whole_pages(void **state)
{
    const size_t sizes[] = {1, 4096, huge, huge + 1, 3 * huge};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(off_pages_create(&pages, sizes[i], &failure), ZERO_OK);
        check_memory(sizes[i]);
        assert_true(pages.huge_bytes <= pages.bytes);
        tear_down(state);
    }
    assert_int_equal(off_pages_create(&pages, 0, &failure), ZERO_OK);
    assert_null(pages.memory);
}

// What kind of pages it was is what the text says, whatever could not be had.
static void kinds_are_named(void **state)
{
    static const struct {
        const char *fault;
        enum off_page_kind least;
    } cases[] = {
        {"pages.none@1", OFF_PAGES_RESERVED},
        {"pages.reserved@1", OFF_PAGES_TRANSPARENT},
        {"pages.reserved@1,pages.transparent@1", OFF_PAGES_PLAIN},
    };
    static const char *const texts[] = {"reserved", "transparent", "4 KiB"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        base_fault_set(cases[i].fault, NULL);
        assert_int_equal(off_pages_create(&pages, 2 * huge, &failure), ZERO_OK);
        check_memory(2 * huge);
        assert_true(pages.kind >= cases[i].least);
        assert_int_equal(pages.huge_bytes == pages.bytes, pages.kind != OFF_PAGES_PLAIN);
        assert_non_null(strstr(off_pages_text(pages.kind), texts[pages.kind]));
        tear_down(state);
    }
}

// Pages of the process's addresses.
static long addresses(void)
{
    long pages_mapped = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld", &pages_mapped), 1);
    fclose(file);
    return pages_mapped;
}

// Not even addresses that were only mapped to find some that begin at a huge page.
static void nothing_stays(void **state)
{
    enum { TIMES = 64, SMALL = 4096 };
    long before = 0;
    for (int i = 0; i <= TIMES; i++) {
        base_fault_set("pages.reserved@1", NULL);
        assert_int_equal(off_pages_create(&pages, huge, &failure), ZERO_OK);
        tear_down(state);
        before = i > 0 ? before : addresses();
    }
    assert_true(addresses() - before < (long)(huge / SMALL));
}

static void too_much_is_an_error(void **state)
{
    (void)state;
    base_fault_set("pages.reserved@1,pages.map:enomem@1", NULL);
    assert_int_equal(off_pages_create(&pages, huge, &failure), ZERO_E_NOMEM);
    assert_non_null(strstr(failure.message, "2097152 bytes"));
    assert_null(pages.memory);
    base_fault_set(NULL, NULL);
    base_error_clear(&failure);
    assert_int_equal(off_pages_create(&pages, SIZE_MAX / 4, &failure), ZERO_E_NOMEM);
    assert_int_equal(off_pages_create(&pages, SIZE_MAX, &failure), ZERO_E_NOMEM);
    assert_null(pages.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(any_size_is_whole_pages, tear_down),
        cmocka_unit_test_teardown(kinds_are_named, tear_down),
        cmocka_unit_test_teardown(nothing_stays, tear_down),
        cmocka_unit_test_teardown(too_much_is_an_error, tear_down),
    };
    return cmocka_run_group_tests_name("off_pages", tests, NULL, NULL);
}
