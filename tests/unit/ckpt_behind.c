// checkpoint/write_behind.h: whatever the disk's pace, a file has the bytes that were made, in
// order; after a failure nothing is written any more.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/write_behind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { UNIT = CKPT_STORE_UNIT, MOST = 8 * CKPT_BEHIND_BYTES };

// A file of which only ckpt_behind's thread and, at its end, the caller write.
struct ckpt_file {
    unsigned char *bytes;
    size_t size;
    int writes;
    int fails_at; // which write, from 1; 0: none
    long pause_us;
    bool used; // a write is under way
    int looks; // at what was to be written, and was what was made
};

static zero_result write_slowly(struct ckpt_file *file, const void *data, size_t bytes,
                                uint64_t offset, struct base_error *error)
{
    const struct timespec time = {.tv_nsec = file->pause_us * 1000};
    file->used = true;
    nanosleep(&time, NULL);
    file->used = false;
    file->writes++;
    if (file->writes == file->fails_at)
        return zero_fail(error, ZERO_E_IO, "write %d at %d fails", file->writes, (int)offset);
    if (offset != file->size || bytes > MOST - offset || bytes % UNIT != 0 ||
        (uintptr_t)data % UNIT != 0)
        return zero_fail(error, ZERO_E_INVALID, "%zu bytes at %d", bytes, (int)offset);
    memcpy(file->bytes + offset, data, bytes);
    file->size += bytes;
    return ZERO_OK;
}

static unsigned char *made;

// Everything that was made when the buffer was handed over is in it; only whole ones are.
static void look(void *user, const unsigned char *buffer, uint64_t offset)
{
    struct ckpt_file *looked_at = user;
    if (offset % CKPT_BEHIND_BYTES == 0 && offset == looked_at->size &&
        memcmp(buffer, made + offset, CKPT_BEHIND_BYTES) == 0)
        looked_at->looks++;
}

static const struct ckpt_store store = {.write = write_slowly};
static struct ckpt_behind *behind;
static struct ckpt_file file;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    file = (struct ckpt_file){.bytes = base_aligned_alloc(UNIT, MOST)};
    made = base_aligned_alloc(UNIT, MOST);
    if (!file.bytes || !made)
        return -1;
    for (size_t i = 0; i < MOST; i++)
        made[i] = (unsigned char)(i * 2654435761u >> 24);
    return ckpt_behind_create(&behind, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    ckpt_behind_destroy(behind);
    base_free(made);
    base_free(file.bytes);
    return 0;
}

// Makes a file of `bytes` bytes, `step` at a time.
static zero_result make(size_t bytes, size_t step, long pause_us)
{
    zero_result result = ZERO_OK;
    size_t used = 0;
    for (size_t at = 0, part; at < bytes && !result; at += part) {
        const struct timespec time = {.tv_nsec = pause_us * 1000};
        nanosleep(&time, NULL);
        part = bytes - at < step ? bytes - at : step;
        memcpy(ckpt_behind_buffer(behind) + used, made + at, part);
        used += part;
        if (used >= CKPT_BEHIND_BYTES) {
            result = ckpt_behind_write(behind, used, &failure);
            used -= CKPT_BEHIND_BYTES;
        }
    }
    const zero_result ended = ckpt_behind_end(behind, result ? 0 : used, &failure);
    assert_false(file.used);
    return result ? result : ended;
}

static void what_is_made_is_written(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0, UNIT, CKPT_BEHIND_BYTES - UNIT, CKPT_BEHIND_BYTES, CKPT_BEHIND_BYTES + UNIT, MOST};
    static const size_t steps[] = {CKPT_BEHIND_ROOM, CKPT_BEHIND_BYTES};
    const uint64_t allocations = base_allocation_count();
    for (size_t i = 0; i < 2 * 2 * 6; i++) {
        const size_t bytes = sizes[i % 6];
        file.size = 0;
        file.looks = 0;
        file.pause_us = i / 12 ? 0 : 3000;
        ckpt_behind_begin(behind, &store, &file, look, &file);
        assert_int_equal(make(bytes, steps[i / 6 % 2], i / 12 ? 300 : 0), ZERO_OK);
        assert_int_equal(file.size, bytes);
        assert_int_equal(file.looks, bytes / CKPT_BEHIND_BYTES);
        assert_memory_equal(file.bytes, made, bytes);
    }
    assert_int_equal(base_allocation_count(), allocations);
}

static void nothing_is_written_after_a_failure(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        char wanted[64];
        base_error_clear(&failure);
        file.size = 0;
        file.writes = file.looks = 0;
        file.fails_at = n;
        ckpt_behind_begin(behind, &store, &file, look, &file);
        // The last one is no whole buffer: the caller's own.
        assert_int_equal(make(MOST - UNIT, CKPT_BEHIND_ROOM, 0), ZERO_E_IO);
        snprintf(wanted, sizeof wanted, "write %d at %d fails", n, (n - 1) * CKPT_BEHIND_BYTES);
        assert_string_equal(failure.message, wanted);
        assert_int_equal(file.writes, n);
        assert_int_equal(file.looks, n < 8 ? n : 7);
        assert_int_equal(file.size, (size_t)(n - 1) * CKPT_BEHIND_BYTES);
        if (n < 8) // it stays so until another one begins
            assert_int_equal(ckpt_behind_end(behind, UNIT, NULL), ZERO_E_IO);
    }
    file.fails_at = 0;
    what_is_made_is_written(NULL);
}

static void one_is_given_up(void **state)
{
    (void)state;
    file.pause_us = 20000;
    ckpt_behind_begin(behind, &store, &file, look, &file);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ckpt_behind_write(behind, CKPT_BEHIND_BYTES, NULL), ZERO_OK);
    assert_int_equal(ckpt_behind_end(behind, 0, NULL), ZERO_OK);
    assert_false(file.used); // it could be closed now
    assert_int_equal(ckpt_behind_wait(behind, NULL), ZERO_OK);
    assert_int_equal(ckpt_behind_end(behind, 0, NULL), ZERO_OK);
    file.pause_us = 0;
    what_is_made_is_written(NULL);
}

static void one_that_is_not_made(void **state)
{
    (void)state;
    static const char *const points[] = {"alloc@1", "alloc@2", "thread@1"};
    struct ckpt_behind *none;
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        assert_int_equal(base_fault_set(points[i], NULL), ZERO_OK);
        assert_int_equal(ckpt_behind_create(&none, &failure), ZERO_E_NOMEM);
        assert_null(none);
        assert_int_equal(base_fault_fired(), 1);
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    }
    ckpt_behind_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_made_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_written_after_a_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_is_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_is_not_made, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
