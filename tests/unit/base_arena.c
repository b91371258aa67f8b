// base/arena.h, base/tables.h: pieces, limits, counting, and memory that is really there.
#include "base/arena.h"
#include "base/fault.h"
#include "base/tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

// Sanitizers stop the program at absurd sizes unless told that it expects NULL.
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct base_arena arena;
    assert_int_equal(base_arena_init(&arena, 10000, 2048, NULL), ZERO_OK);
    unsigned char *previous_end = arena.memory;
    static const struct {
        size_t size, alignment;
    } pieces[] = {{1, 1}, {7, 8}, {0, 64}, {100, 2048}, {3, 0}, {17, 1}, {1, 1}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        unsigned char *piece = base_arena_alloc(&arena, pieces[i].size, pieces[i].alignment);
        const size_t alignment = pieces[i].alignment ? pieces[i].alignment : 2048;
        assert_non_null(piece);
        assert_int_equal((uintptr_t)piece % alignment, 0);
        assert_true(piece >= previous_end);
        for (size_t k = 0; k < pieces[i].size; k++)
            assert_int_equal(piece[k], 0);
        memset(piece, 0xff, pieces[i].size);
        previous_end = piece + pieces[i].size;
    }
    assert_int_equal(arena.used, (size_t)(previous_end - arena.memory));
    base_arena_free(&arena);
    assert_null(arena.memory);
    base_arena_free(&arena);
    base_arena_free(NULL);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct base_arena arena;
    assert_int_equal(base_arena_init(&arena, 1000, 64, NULL), ZERO_OK);
    assert_null(base_arena_alloc(&arena, 1001, 1));
    assert_null(base_arena_alloc(&arena, SIZE_MAX, 1));
    assert_null(base_arena_alloc(&arena, 1, 128));
    assert_null(base_arena_alloc(&arena, 1, 48));
    assert_int_equal(arena.used, 0);
    assert_non_null(base_arena_alloc(&arena, 961, 1));
    assert_null(base_arena_alloc(&arena, 0, 64)); // the gap alone is too large
    assert_null(base_arena_alloc(&arena, SIZE_MAX - 38, 1));
    assert_non_null(base_arena_alloc(&arena, 39, 1));
    assert_null(base_arena_alloc(&arena, 1, 1));
    assert_int_equal(arena.used, 1000);
    base_arena_free(&arena);
    assert_null(base_arena_alloc(&arena, 1, 1));
}

static void arenas_of_odd_sizes(void **state)
{
    (void)state;
    struct base_arena arena;
    assert_int_equal(base_arena_init(&arena, 0, 4096, NULL), ZERO_OK);
    assert_null(base_arena_alloc(&arena, 1, 1));
    base_arena_free(&arena);

    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(base_arena_init(&arena, 10, 96, &error), ZERO_E_INVALID);
    assert_null(arena.memory);
    base_error_clear(&error);
    assert_int_equal(base_arena_init(&arena, SIZE_MAX - 10, 64, &error), ZERO_E_NOMEM);
    assert_null(arena.memory);
    base_error_clear(&error);
    assert_int_equal(base_arena_init(&arena, SIZE_MAX / 4, 64, &error), ZERO_E_NOMEM);
    assert_non_null(strstr(error.message, "bytes"));
}

static void every_page_is_there(void **state)
{
    (void)state;
    struct base_arena arena;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)9 << 20;
    assert_int_equal(base_arena_init(&arena, size, 4096, NULL), ZERO_OK);
    assert_int_equal((uintptr_t)arena.memory % ((size_t)2 << 20), 0);
    const size_t pages = (size + page - 1) / page;
    unsigned char *resident = calloc(pages, 1);
    assert_non_null(resident);
    assert_int_equal(mincore(arena.memory, size, resident), 0);
    for (size_t i = 0; i < pages; i++)
        assert_true(resident[i] & 1);
    free(resident);
    base_arena_free(&arena);
}

static void small_allocations(void **state)
{
    (void)state;
    unsigned char *memory = base_calloc(10, 7);
    assert_non_null(memory);
    for (int i = 0; i < 70; i++)
        assert_int_equal(memory[i], 0);
    base_free(memory);
    base_free(NULL);
    memory = base_calloc(0, 8);
    assert_non_null(memory);
    base_free(memory);
    assert_null(base_calloc(SIZE_MAX / 2, 3));
    char *copy = base_strdup("granule");
    assert_string_equal(copy, "granule");
    base_free(copy);
    memory = base_aligned_alloc(4096, 1);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 4096, 0);
    base_free(memory);
    assert_null(base_aligned_alloc(4096, SIZE_MAX));
}

static void allocations_are_counted(void **state)
{
    (void)state;
    struct base_arena arena;
    uint64_t count = base_allocation_count();
    base_free(base_calloc(1, 1));
    base_free(base_strdup(""));
    base_free(base_aligned_alloc(64, 1));
    assert_int_equal(base_allocation_count(), count += 3);
    assert_int_equal(base_arena_init(&arena, 100, 64, NULL), ZERO_OK);
    assert_int_equal(base_allocation_count(), ++count);
    assert_non_null(base_arena_alloc(&arena, 10, 1));
    base_arena_free(&arena);
    assert_int_equal(base_allocation_count(), count);
}

static void allocations_fail_on_demand(void **state)
{
    (void)state;
    struct base_arena arena;
    assert_int_equal(base_fault_set("alloc@2+", NULL), ZERO_OK);
    void *memory = base_calloc(1, 1);
    assert_non_null(memory);
    assert_null(base_calloc(1, 1));
    assert_null(base_strdup("x"));
    assert_null(base_aligned_alloc(64, 1));
    assert_int_equal(base_arena_init(&arena, 1, 1, NULL), ZERO_E_NOMEM);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    base_free(memory);
}

struct owner {
    struct base_tables tables;
    uint64_t *numbers;
    char *letters;
};

static void lay_out(struct owner *owner, size_t count)
{
    owner->numbers = base_tables_add(&owner->tables, count, sizeof *owner->numbers);
    owner->letters = base_tables_add(&owner->tables, count + 1, 1);
}

static void tables_take_what_was_counted(void **state)
{
    (void)state;
    struct owner counted = {.tables.counts = true}, owner = {.numbers = NULL};
    const uint64_t before = base_allocation_count();
    lay_out(&counted, 100);
    assert_int_equal(base_allocation_count(), before);
    assert_true(!counted.numbers && !counted.letters && !counted.tables.failed);
    assert_int_equal(counted.tables.bytes, 901);
    base_tables_free(&counted.tables);
    lay_out(&owner, 100);
    assert_int_equal(base_allocation_count(), before + 2);
    assert_false(owner.tables.failed);
    assert_int_equal(owner.tables.bytes, 901);
    for (int i = 0; i < 100; i++)
        assert_true(owner.numbers[i] == 0 && owner.letters[i] == 0);
    base_tables_free(&owner.tables);
    assert_int_equal(owner.tables.bytes, 0);
}

static void a_table_without_memory_is_told(void **state)
{
    (void)state;
    for (int which = 1; which <= 2; which++) {
        struct owner owner = {.numbers = NULL};
        assert_int_equal(base_fault_set(which == 1 ? "alloc@1" : "alloc@2", NULL), ZERO_OK);
        lay_out(&owner, 3);
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
        assert_true(owner.tables.failed);
        assert_true(which == 1 ? !owner.numbers && owner.letters : owner.numbers && !owner.letters);
        base_tables_free(&owner.tables);
        assert_false(owner.tables.failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(arenas_of_odd_sizes),
        cmocka_unit_test(every_page_is_there),
        cmocka_unit_test(small_allocations),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(allocations_fail_on_demand),
        cmocka_unit_test(tables_take_what_was_counted),
        cmocka_unit_test(a_table_without_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
