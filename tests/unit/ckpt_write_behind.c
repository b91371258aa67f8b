// checkpoint/shard/write_behind.h: whatever the disk's pace, and whichever thread first has made
// its bytes, a file has the bytes that were made, in order. After a failure no write begins any
// more.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/shard/write_behind.h"
#include "tests/sweep.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { UNIT = CKPT_STORE_UNIT, PIECE = CKPT_WRITE_BEHIND_PIECE, MOST = 3 * CKPT_WRITE_BEHIND_RING };

// A file that any thread may write to, in any order.
struct ckpt_file {
    unsigned char *bytes;
    atomic_size_t size, writes;
    size_t fails_at; // which write, from 1; 0: none
    long pause_us;
    atomic_int used; // writes under way
};

static void pause_us(long us)
{
    const struct timespec time = {.tv_nsec = us * 1000};
    if (us > 0)
        nanosleep(&time, NULL);
}

static zero_result write_slowly(struct ckpt_file *file, const void *data, size_t bytes,
                                uint64_t offset, struct base_error *error)
{
    const size_t number = atomic_fetch_add(&file->writes, 1) + 1;
    atomic_fetch_add(&file->used, 1);
    const bool fails = number == file->fails_at;
    if (!fails && file->fails_at && number > file->fails_at)
        pause_us(20000); // what is under way beside the one that fails takes longer
    else if (!fails)
        pause_us(number % 2 ? file->pause_us : file->pause_us / 3);
    atomic_fetch_sub(&file->used, 1);
    if (fails)
        return zero_fail(error, ZERO_E_IO, "write %zu fails", number);
    if (bytes > MOST - offset || bytes % UNIT != 0 || offset % PIECE != 0 ||
        (uintptr_t)data % UNIT != 0)
        return zero_fail(error, ZERO_E_INVALID, "%zu bytes at %d", bytes, (int)offset);
    memcpy(file->bytes + offset, data, bytes);
    atomic_fetch_add(&file->size, bytes);
    return ZERO_OK;
}

static const struct ckpt_store store = {.write = write_slowly};
static unsigned char *made;
static struct ckpt_write_behind *behind;
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
    return ckpt_write_behind_create(&behind, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    ckpt_write_behind_destroy(behind);
    base_free(made);
    base_free(file.bytes);
    return 0;
}

static void begin(long pause)
{
    memset(file.bytes, 0, MOST);
    file.size = file.writes = 0;
    file.pause_us = pause;
    ckpt_write_behind_begin(behind, &store, &file);
}

// Takes up to `step` bytes at a time, until the file has `bytes` bytes, and makes them.
struct maker {
    size_t bytes, step;
    long pause_us;
    pthread_mutex_t *mutex; // of whose turn it is
    size_t *taken;
    zero_result result;
};

static void *make(void *user)
{
    struct maker *maker = user;
    for (;;) {
        struct ckpt_write_behind_part part = {0};
        pthread_mutex_lock(maker->mutex);
        const size_t left = maker->bytes - *maker->taken;
        const size_t bytes = left < maker->step ? left : maker->step;
        if (bytes > 0 && !maker->result)
            maker->result = ckpt_write_behind_reserve(behind, bytes, &part, NULL);
        *maker->taken += maker->result ? 0 : bytes;
        pthread_mutex_unlock(maker->mutex);
        if (bytes == 0 || maker->result)
            return NULL;
        pause_us(maker->pause_us);
        memcpy(part.memory, made + part.offset, part.bytes);
        ckpt_write_behind_submit(behind, &part);
    }
}

// By two threads, of which one takes its time, or by one.
static zero_result make_all(size_t bytes, size_t step, int threads, long pause)
{
    pthread_t thread;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    size_t taken = 0;
    struct maker one = {bytes, step, pause, &mutex, &taken, ZERO_OK}, other = one;
    other.pause_us = 2 * pause;
    if (threads == 2)
        assert_int_equal(pthread_create(&thread, NULL, make, &other), 0);
    make(&one);
    if (threads == 2)
        pthread_join(thread, NULL);
    return one.result ? one.result : other.result;
}

static void what_is_made_is_written(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,   UNIT, PIECE - UNIT, PIECE, CKPT_WRITE_BEHIND_RING + UNIT,
                                   MOST};
    static const size_t steps[] = {CKPT_WRITE_BEHIND_MOST, 99991, 4000};
    const uint64_t allocations = base_allocation_count();
    for (size_t i = 0; i < 2 * 2 * 3 * 6; i++) {
        // For each size, disk and number of threads another step.
        if (!test_takes((int)(i + i / 6 + i / 18)))
            continue;
        const size_t bytes = sizes[i % 6], step = steps[i / 6 % 3];
        const bool slow_disk = i / 18 % 2;
        begin(slow_disk ? 3000 : 0);
        assert_int_equal(make_all(bytes, step, i / 36 ? 2 : 1, slow_disk || step < UNIT ? 0 : 200),
                         ZERO_OK);
        assert_int_equal(ckpt_write_behind_end(behind, &failure), ZERO_OK);
        assert_int_equal(file.size, bytes);
        assert_int_equal(file.writes, (bytes + PIECE - 1) / PIECE);
        assert_int_equal(file.used, 0);
        assert_memory_equal(file.bytes, made, bytes);
    }
    assert_int_equal(base_allocation_count(), allocations);
}

// Of two threads whose bytes come in the wrong order, what comes first is awaited.
static void nothing_is_written_before_it_is_made(void **state)
{
    (void)state;
    struct ckpt_write_behind_part first, second;
    begin(0);
    assert_int_equal(ckpt_write_behind_reserve(behind, UNIT, &first, NULL), ZERO_OK);
    for (size_t at = UNIT; at + CKPT_WRITE_BEHIND_MOST <= CKPT_WRITE_BEHIND_RING;
         at += CKPT_WRITE_BEHIND_MOST) {
        assert_int_equal(ckpt_write_behind_reserve(behind, CKPT_WRITE_BEHIND_MOST, &second, NULL),
                         ZERO_OK);
        memcpy(second.memory, made + second.offset, second.bytes);
        ckpt_write_behind_submit(behind, &second);
    }
    pause_us(20000);
    assert_int_equal(file.writes, 0);
    memcpy(first.memory, made, UNIT);
    ckpt_write_behind_submit(behind, &first);
    assert_int_equal(ckpt_write_behind_end(behind, NULL), ZERO_OK);
    assert_memory_equal(file.bytes, made, file.size);
    assert_true(file.size == second.offset + second.bytes);
}

static void nothing_is_written_after_a_failure(void **state)
{
    (void)state;
    for (size_t n = 1; n <= MOST / PIECE; n++) {
        char wanted[64];
        base_error_clear(&failure);
        begin(300);
        file.fails_at = n;
        const zero_result result = make_all(MOST, CKPT_WRITE_BEHIND_MOST, 2, 0);
        assert_true(result == ZERO_OK || result == ZERO_E_IO);
        assert_int_equal(ckpt_write_behind_end(behind, &failure), ZERO_E_IO);
        snprintf(wanted, sizeof wanted, "write %zu fails", n);
        assert_string_equal(failure.message, wanted);
        // One was under way beside it, and one may have begun before it was known.
        assert_true(file.writes >= n && file.writes <= n + 2);
        assert_int_equal(file.used, 0);
        struct ckpt_write_behind_part part;
        assert_int_equal(ckpt_write_behind_reserve(behind, UNIT, &part, NULL), ZERO_E_IO);
        ckpt_write_behind_cancel(behind);
    }
    file.fails_at = 0;
    what_is_made_is_written(NULL);
}

static void one_is_given_up(void **state)
{
    (void)state;
    const size_t all = CKPT_WRITE_BEHIND_RING / PIECE;
    size_t writes = all;
    ckpt_write_behind_cancel(behind);
    // On a busy machine all may have been written before it is given up: a slower disk, then.
    for (long pause = 20000; writes == all && pause < 1000000; pause *= 4) {
        begin(pause);
        assert_int_equal(make_all(CKPT_WRITE_BEHIND_RING, CKPT_WRITE_BEHIND_MOST, 1, 0), ZERO_OK);
        ckpt_write_behind_cancel(behind);
        assert_int_equal(file.used, 0); // it could be closed now
        writes = file.writes;
    }
    assert_true(writes < all);
    ckpt_write_behind_cancel(behind);
    pause_us(1000);
    assert_int_equal(file.writes, writes);
    what_is_made_is_written(NULL);
}

static void one_that_is_not_made(void **state)
{
    (void)state;
    static const char *const points[] = {"alloc@1", "alloc@2", "thread@1", "thread@2"};
    struct ckpt_write_behind *none;
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        assert_int_equal(base_fault_set(points[i], NULL), ZERO_OK);
        assert_int_equal(ckpt_write_behind_create(&none, &failure), ZERO_E_NOMEM);
        assert_null(none);
        assert_int_equal(base_fault_fired(), 1);
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    }
    ckpt_write_behind_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_made_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_written_before_it_is_made, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_written_after_a_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_is_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_is_not_made, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
