// offload/blocking_call.h: results of calls are told, one at a time. A call that does not come back
// is told, too, in time: to the caller that asked for it, to all later callers, and at the end.
#include "base/fault.h"
#include "offload/blocking_call.h"
#include "offload/tilefile.h"
#include "tests/unit/temporary.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary temporary;
static struct off_blocking_calls *blocking_calls;
static struct base_error failure;
static atomic_int under_way, made, ended;
static atomic_int obeyed; // the order that was made last, as it is in the end

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    under_way = made = ended = 0;
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static void create(double timeout_s)
{
    assert_int_equal(off_blocking_calls_create(&blocking_calls, timeout_s, &failure), ZERO_OK);
}

// The last call, which comes behind all others.
static void note_end(void *user)
{
    struct off_tilefile *tilefile = user;
    atomic_store(&ended, 1 + (under_way == 0));
    off_tilefile_close(tilefile, true);
}

static void wait_for_the_end(void)
{
    while (atomic_load(&ended) == 0)
        usleep(1000);
    assert_int_equal(ended, 2);
}

static zero_result end(struct off_tilefile *tilefile)
{
    base_error_clear(&failure);
    return off_blocking_calls_end(blocking_calls, note_end, tilefile, &failure);
}

struct order {
    int number;
    zero_result result;
};

static zero_result obey(const void *argument, struct base_error *error)
{
    const struct order *order = argument;
    const bool alone = atomic_fetch_add(&under_way, 1) == 0;
    zero_result result = alone ? order->result : ZERO_E_STATE;
    if (base_fault("obey"))
        result = ZERO_E_STATE;
    obeyed = order->number;
    made++;
    under_way--;
    return result ? zero_fail(error, result, "order %d", order->number) : ZERO_OK;
}

static zero_result run(const struct order *order, struct base_error *error)
{
    return off_blocking_calls_run(blocking_calls, obey, order, sizeof *order, error, "file %d",
                                  order->number);
}

static void *run_many(void *argument)
{
    const int number = *(const int *)argument;
    for (int i = 0; i < 300; i++) {
        const struct order order = {.number = number, .result = i % 3 ? ZERO_OK : ZERO_E_IO};
        struct base_error error = {.result = ZERO_OK};
        char words[32];
        snprintf(words, sizeof words, "order %d", number);
        if (run(&order, &error) != order.result ||
            strcmp(error.message, order.result ? words : "") != 0)
            return argument;
    }
    return NULL;
}

static void each_is_told_what_his_has_come_to(void **state)
{
    (void)state;
    pthread_t threads[3];
    int numbers[3] = {1, 20, 300};
    create(60);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_many, &numbers[i]), 0);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(made, 900);
    assert_int_equal(end(NULL), ZERO_OK);
    assert_int_equal(ended, 2);
}

// The second caller waits for his turn when the first one's call hangs: both are told of that one.
static void *run_second(void *argument)
{
    const struct order order = {.number = 2};
    while (atomic_load(&under_way) == 0)
        usleep(1000);
    run(&order, argument);
    return NULL;
}

static void what_hangs_is_told(void **state)
{
    (void)state;
    static const char words[] = "file 1: has not come back for 0.2 s";
    const struct order first = {.number = 1, .result = ZERO_E_IO};
    struct base_error second = {.result = ZERO_OK};
    pthread_t thread;
    create(0.2);
    assert_int_equal(base_fault_set("obey:hang@1", NULL), ZERO_OK);
    assert_int_equal(pthread_create(&thread, NULL, run_second, &second), 0);
    assert_int_equal(run(&first, &failure), ZERO_E_TIMEOUT);
    assert_string_equal(failure.message, words);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(second.result, ZERO_E_TIMEOUT);
    assert_string_equal(second.message, words);
    assert_int_equal(end(NULL), ZERO_E_TIMEOUT);
    assert_string_equal(failure.message, words);
    assert_int_equal(ended, 0);
    base_fault_set(NULL, NULL);
    wait_for_the_end();
    assert_int_equal(made, 1);
    assert_int_equal(obeyed, first.number); // the thread has not written over it meanwhile
}

static void an_end_that_hangs_is_told(void **state)
{
    (void)state;
    const struct off_tilefile_config config = {.path = temporary_path(&temporary, "slots")};
    struct off_tilefile *tilefile;
    int recorded;
    create(0.2);
    assert_int_equal(off_tilefile_open(&tilefile, &config, &recorded, &failure), ZERO_OK);
    assert_int_equal(base_fault_set("io.unlink:hang@1", NULL), ZERO_OK);
    assert_int_equal(end(tilefile), ZERO_E_TIMEOUT);
    assert_non_null(strstr(failure.message, "has not come back for 0.2 s"));
    base_fault_set(NULL, NULL);
    while (temporary_entries(&temporary) > 0)
        usleep(1000);
}

static void a_thread_that_cannot_be_had_is_told(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        base_error_clear(&failure);
        base_fault_set(i ? "thread@1" : "alloc@1", NULL);
        assert_int_equal(off_blocking_calls_create(&blocking_calls, 60, &failure), ZERO_E_NOMEM);
        assert_null(blocking_calls);
    }
}

/* ------------------------------------------------------------------ records */

static const size_t tile_bytes[] = {5000, 4096};

// A file with a record, opened again: nothing is asked of its blocking calls but what hangs.
static struct off_tilefile *open_recorded(bool durable)
{
    struct off_tilefile_config config = {
        .path = temporary_path(&temporary, "slots"),
        .tiles = 2,
        .tile_bytes = tile_bytes,
        .durable = durable, // then a flush comes first
    };
    static unsigned char tile[8192];
    struct off_tilefile *tilefile;
    int recorded;
    assert_int_equal(off_tilefile_open(&tilefile, &config, &recorded, &failure), ZERO_OK);
    off_tilefile_note_write(tilefile, 0, tile, tile_bytes[0]);
    assert_int_equal(off_tilefile_record(tilefile, 1, NULL, 0, &failure), ZERO_OK);
    off_tilefile_close(tilefile, false);
    create(0.2);
    config.blocking_calls = blocking_calls;
    assert_int_equal(off_tilefile_open(&tilefile, &config, &recorded, &failure), ZERO_OK);
    assert_int_equal(recorded, 1);
    return tilefile;
}

enum what { WRITES, FLUSHES, RECOVERS, CLEARS, KINDS };

static zero_result do_it(struct off_tilefile *tilefile, enum what what, void *memory)
{
    size_t bytes;
    switch (what) {
    case RECOVERS:
        return off_tilefile_recover(tilefile, 0, memory, &bytes, &failure);
    case CLEARS:
        return off_tilefile_clear(tilefile, &failure);
    default:
        return off_tilefile_record(tilefile, 2, NULL, 0, &failure);
    }
}

static void slots_that_hang_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *fault, *words;
    } hangs[KINDS] = {
        [WRITES] = {"io.write:hang@1", "/slots: writing 4096 bytes at offset 0: has"},
        [FLUSHES] = {"io.fsync:hang@1", "/slots: fdatasync: has not come back for 0.2 s"},
        [RECOVERS] = {"io.read:hang@1", "/slots: reading 4096 bytes at offset 0: has"},
        [CLEARS] = {"io.write:hang@1", "/slots: writing 4096 bytes at offset 0: has"},
    };
    static unsigned char memory[8192];
    for (enum what what = WRITES; what < KINDS; what++) {
        struct off_tilefile *tilefile = open_recorded(what == FLUSHES);
        ended = 0;
        base_error_clear(&failure);
        assert_int_equal(base_fault_set(hangs[what].fault, NULL), ZERO_OK);
        assert_int_equal(do_it(tilefile, what, memory), ZERO_E_TIMEOUT);
        assert_non_null(strstr(failure.message, hangs[what].words));
        assert_non_null(strstr(failure.message, "has not come back for 0.2 s"));
        assert_int_equal(end(tilefile), ZERO_E_TIMEOUT);
        base_fault_set(NULL, NULL);
        wait_for_the_end();
        while (temporary_entries(&temporary) > 0)
            usleep(1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_is_told_what_his_has_come_to, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_hangs_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_end_that_hangs_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_thread_that_cannot_be_had_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(slots_that_hang_are_told, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
