// offload/io/io.h: every engine moves all of the bytes, or a request says what failed.
#include "base/clock.h"
#include "base/fault.h"
#include "offload/direct_file.h"
#include "offload/io/io.h"
#include "offload/io/io_engine.h"
#include "offload/pages.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { REQUESTS = 12, REQUEST_BYTES = 3 << 17, FILE_BYTES = REQUESTS * REQUEST_BYTES };
enum { TRANSFER_BYTES = 1 << 16 };

static struct temporary temporary;
static struct base_error failure;
static struct off_pages pages;
static struct off_request requests[REQUESTS];

// A queue and a file, made anew for each test and engine.
struct rig {
    struct off_io *io;
    struct off_direct_file file;
    int number;
};

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) && off_pages_create(&pages, FILE_BYTES, &failure) == ZERO_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    off_pages_destroy(&pages);
    temporary_remove(&temporary);
    return 0;
}

static unsigned char expected(size_t at)
{
    return (unsigned char)(at * 31 + at / 4096 * 7 + at / REQUEST_BYTES);
}

static void fill_memory(void)
{
    unsigned char *memory = pages.memory;
    for (size_t i = 0; i < FILE_BYTES; i++)
        memory[i] = expected(i);
}

static void check_memory(size_t from, size_t bytes)
{
    const unsigned char *memory = pages.memory;
    for (size_t i = from; i < from + bytes; i++)
        if (memory[i] != expected(i))
            fail_msg("byte %zu is %d, not %d", i, memory[i], expected(i));
}

static struct rig make_rig(const struct off_io_engine *engine)
{
    struct rig rig;
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_config config = {
        .engine = engine,
        .credits = {3, 5},
        .transfer_bytes = TRANSFER_BYTES,
        .ranges = &range,
        .range_count = 1,
    };
    const char *path = temporary_path(&temporary, "state");
    if (off_direct_file_open(&rig.file, path, O_CREAT, 0600, &failure) ||
        off_io_create(&rig.io, &config, &failure) ||
        off_io_add_file(rig.io, rig.file.fd, rig.file.unit, rig.file.path, &rig.number, &failure))
        fail_msg("%s: %s", engine->name, failure.message);
    return rig;
}

static void free_rig(struct rig *rig)
{
    off_io_destroy(rig->io);
    assert_int_equal(off_direct_file_close(&rig->file, NULL), ZERO_OK);
}

static void submit(struct rig *rig, int i, enum off_direction direction)
{
    requests[i] = (struct off_request){
        .direction = direction,
        .file = rig->number,
        .memory = (unsigned char *)pages.memory + (size_t)i * REQUEST_BYTES,
        .bytes = REQUEST_BYTES,
        .offset = (uint64_t)i * REQUEST_BYTES,
        .what = "tile of w",
    };
    assert_int_equal(off_io_submit(rig->io, &requests[i], &failure), ZERO_OK);
}

// Submits them all, waits for them, and says how many failed.
static int move_all(struct rig *rig, enum off_direction direction)
{
    int failed = 0;
    for (int i = 0; i < REQUESTS; i++)
        submit(rig, i, direction);
    assert_int_equal(off_io_pending(rig->io), REQUESTS);
    off_io_commit(rig->io, NULL);
    struct off_request *done;
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(off_io_wait(rig->io, UINT64_MAX, &done), ZERO_OK);
        assert_in_range((uintmax_t)(done - requests), 0, REQUESTS - 1);
        assert_int_equal(done->result, done->error.result);
        failed += done->result != ZERO_OK;
    }
    assert_int_equal(off_io_wait(rig->io, UINT64_MAX, &done), ZERO_AGAIN);
    assert_int_equal(off_io_pending(rig->io), 0);
    return failed;
}

static void write_file(struct rig *rig)
{
    fill_memory();
    assert_int_equal(move_all(rig, OFF_WRITE), 0);
}

static void read_and_check(struct rig *rig)
{
    memset(pages.memory, 0, FILE_BYTES);
    assert_int_equal(move_all(rig, OFF_READ), 0);
    check_memory(0, FILE_BYTES);
}

static void for_every_engine(void (*test)(struct rig *rig))
{
    const struct off_io_engine *engine;
    for (size_t i = 0; (engine = off_io_engine_at(i)); i++) {
        struct rig rig = make_rig(engine);
        test(&rig);
        base_fault_set(NULL, NULL);
        free_rig(&rig);
        assert_int_equal(unlink(temporary_path(&temporary, "state")), 0);
    }
}

/* ------------------------------------------------------------------ what works */

static void all_bytes_there_and_back(struct rig *rig)
{
    write_file(rig);
    // Seen through another descriptor, by the system's own means.
    FILE *file = fopen(temporary_path(&temporary, "state"), "rb");
    static unsigned char block[REQUEST_BYTES];
    for (size_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(fread(block, 1, sizeof block, file), sizeof block);
        for (size_t j = 0; j < sizeof block; j++)
            assert_int_equal(block[j], expected(i * REQUEST_BYTES + j));
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    read_and_check(rig);
    const struct off_io_counts counts = off_io_counts(rig->io);
    for (int d = 0; d < OFF_DIRECTIONS; d++) {
        assert_int_equal(counts.bytes[d], FILE_BYTES);
        assert_int_equal(counts.transfers[d], FILE_BYTES / TRANSFER_BYTES);
    }
}

static void engines_move_all_bytes(void **state)
{
    (void)state;
    for_every_engine(all_bytes_there_and_back);
}

// Sizes of one unit, of odd numbers of units, across the borders of transfers.
static void odd_sizes(struct rig *rig)
{
    write_file(rig);
    memset(pages.memory, 0, FILE_BYTES);
    const size_t unit = rig->file.unit, sizes[] = {1, 3, 63, 64, 65, 127, 201};
    size_t at = unit;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct off_request *done, request = {
                                      .direction = OFF_READ,
                                      .file = rig->number,
                                      .memory = (unsigned char *)pages.memory + at,
                                      .bytes = sizes[i] * unit,
                                      .offset = at,
                                      .what = "odd",
                                  };
        assert_int_equal(off_io_submit(rig->io, &request, NULL), ZERO_OK);
        assert_int_equal(off_io_wait(rig->io, UINT64_MAX, &done), ZERO_OK);
        assert_ptr_equal(done, &request);
        assert_int_equal(done->result, ZERO_OK);
        check_memory(at, request.bytes);
        at += request.bytes + unit;
        assert_int_equal(*((unsigned char *)pages.memory + at - 1), 0);
    }
}

static void engines_move_any_size(void **state)
{
    (void)state;
    for_every_engine(odd_sizes);
}

static const struct off_io_engine *woken_engine;

static void *wake_soon(void *engine_state)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    woken_engine->wake(engine_state);
    return NULL;
}

// Waits with nothing under way; returns the seconds that took.
static double seconds_of_waiting(void *engine_state, double patience)
{
    struct off_completion done;
    size_t count;
    const uint64_t before = base_clock_ns();
    const uint64_t deadline = before + (uint64_t)(patience * 1e9);
    assert_int_equal(woken_engine->reap(engine_state, deadline, &done, 1, &count, NULL), ZERO_OK);
    assert_int_equal(count, 0);
    return (double)(base_clock_ns() - before) * 1e-9;
}

// Nothing is under way in it when commit returns.
static bool never_waits(const struct off_io_engine *engine)
{
    return engine == &off_io_engine_sync;
}

static void waiting_ends_in_time(void **state)
{
    (void)state;
    for (size_t i = 0; (woken_engine = off_io_engine_at(i)); i++) {
        if (never_waits(woken_engine))
            continue;
        const struct off_io_engine_config config = {.depth = 2};
        void *engine_state;
        assert_int_equal(woken_engine->create(&engine_state, &config, &failure), ZERO_OK);
        assert_int_equal(woken_engine->commit(engine_state, &failure), ZERO_OK);
        assert_true(seconds_of_waiting(engine_state, 0.05) >= 0.05);
        for (int round = 0; round < 3; round++) {
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, wake_soon, engine_state), 0);
            assert_true(seconds_of_waiting(engine_state, 1000) < 100);
            pthread_join(thread, NULL);
        }
        woken_engine->wake(engine_state); // no caller waits: the next one doesn't
        assert_true(seconds_of_waiting(engine_state, 1000) < 100);
        assert_true(seconds_of_waiting(engine_state, 0.05) >= 0.05);
        woken_engine->destroy(engine_state);
    }
}

/* ------------------------------------------------------------------ what fails */

// The n-th completion is short, put off or interrupted: repeated, counted, nothing lost.
static void nothing_is_lost(struct rig *rig)
{
    write_file(rig);
    struct off_io_counts before = off_io_counts(rig->io);
    base_fault_set("offload.short@3+,offload.read:eagain@5,offload.read:eintr@17", NULL);
    read_and_check(rig);
    assert_true(base_fault_fired() > 100);
    struct off_io_counts after = off_io_counts(rig->io);
    assert_int_equal(after.repeated, before.repeated + 2);
    assert_int_equal(after.shortened + 2, base_fault_fired());
    assert_int_equal(after.bytes[OFF_READ] - before.bytes[OFF_READ], FILE_BYTES);

    fill_memory();
    base_fault_set("offload.short@1+,offload.write:eintr@2,offload.write:eagain@3", NULL);
    assert_int_equal(move_all(rig, OFF_WRITE), 0);
    base_fault_set(NULL, NULL);
    read_and_check(rig);
}

static void short_and_interrupted_transfers_go_on(void **state)
{
    (void)state;
    for_every_engine(nothing_is_lost);
}

// The n-th completion, or handing over, fails: one request does, with place and reason; the others
// are done, and so is it when it is tried again.
static void one_request_fails(struct rig *rig)
{
    static const struct {
        const char *point;
        enum off_direction direction;
        const char *reason;
    } failures[] = {
        {"offload.read:enospc", OFF_READ, "ENOSPC"},
        {"offload.write:enospc", OFF_WRITE, "ENOSPC"},
        {"offload.submit:eio", OFF_READ, "EIO"},
        {"offload.submit:eio", OFF_WRITE, "EIO"},
    };
    write_file(rig);
    for (size_t p = 0; p < sizeof failures / sizeof failures[0]; p++)
        for (int n = 1; n <= FILE_BYTES / TRANSFER_BYTES; n += TEST_STRIDE > 1 ? 5 : 1) {
            char fault[64];
            snprintf(fault, sizeof fault, "%s@%d", failures[p].point, n);
            base_fault_set(fault, NULL);
            assert_int_equal(move_all(rig, failures[p].direction), 1);
            assert_int_equal(base_fault_fired(), 1);
            for (int i = 0; i < REQUESTS; i++) {
                if (requests[i].result == ZERO_OK) {
                    check_memory((size_t)i * REQUEST_BYTES, REQUEST_BYTES);
                    continue;
                }
                assert_int_equal(requests[i].result, ZERO_E_IO);
                const char *message = requests[i].error.message;
                const char *at = strstr(message, "offset ");
                assert_non_null(at);
                const uintmax_t place = strtoumax(at + 7, NULL, 10);
                assert_in_range(place, requests[i].offset, requests[i].offset + REQUEST_BYTES - 1);
                assert_non_null(strstr(message, "/state: tile of w: "));
                assert_non_null(strstr(message, failures[p].reason));
            }
        }
    base_fault_set(NULL, NULL);
    read_and_check(rig);
}

static void a_failure_names_its_place(void **state)
{
    (void)state;
    for_every_engine(one_request_fails);
}

// All transfers of a request are under way when two of them fail.
static void two_transfers_fail(struct rig *rig)
{
    struct off_request *done;
    write_file(rig);
    base_fault_set("offload.read:enospc@1,offload.read:eio@2", NULL);
    submit(rig, 0, OFF_READ);
    while (off_io_wait(rig->io, UINT64_MAX, &done) == ZERO_AGAIN)
        ;
    assert_int_equal(base_fault_fired(), 2);
    base_fault_set(NULL, NULL);
    assert_int_equal(done->result, ZERO_E_IO);
    assert_non_null(strstr(done->error.message, "ENOSPC"));
}

static void the_first_failure_is_told(void **state)
{
    (void)state;
    for_every_engine(two_transfers_fail);
}

static void truncated(struct rig *rig)
{
    write_file(rig);
    const off_t cuts[] = {0, 100, 5 * REQUEST_BYTES, 5 * REQUEST_BYTES + 4096 + 17, FILE_BYTES - 1};
    for (size_t c = sizeof cuts / sizeof cuts[0]; c-- > 0;) {
        assert_int_equal(ftruncate(rig->file.fd, cuts[c]), 0);
        const int whole = (int)(cuts[c] / REQUEST_BYTES);
        assert_int_equal(move_all(rig, OFF_READ), REQUESTS - whole);
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(requests[i].result, i < whole ? ZERO_OK : ZERO_E_CORRUPT);
            if (i >= whole)
                assert_non_null(strstr(requests[i].error.message, "ends before"));
        }
    }
}

static void a_file_that_ends_too_soon_is_damaged(void **state)
{
    (void)state;
    for_every_engine(truncated);
}

static void endless(struct rig *rig)
{
    write_file(rig);
    base_fault_set("offload.read:eagain@1+", NULL);
    submit(rig, 0, OFF_READ);
    struct off_request *done;
    while (off_io_wait(rig->io, UINT64_MAX, &done) == ZERO_AGAIN)
        ;
    assert_int_equal(done->result, ZERO_E_IO);
    assert_non_null(strstr(done->error.message, "EAGAIN"));
}

static void patience_ends(void **state)
{
    (void)state;
    for_every_engine(endless);
}

// The kernel begins nothing the n-th time it is asked; then it does.
static void what_the_kernel_puts_off_is_repeated(void **state)
{
    (void)state;
    static const char *const names[] = {"eagain", "ebusy", "eintr"};
    for (int n = 1; n<12; n += TEST_STRIDE> 1 ? 2 : 1) {
        struct rig rig = make_rig(&off_io_engine_uring);
        char fault[64];
        snprintf(fault, sizeof fault, "offload.enter:%s@%d", names[n % 3], n);
        fill_memory();
        base_fault_set(fault, NULL);
        assert_int_equal(move_all(&rig, OFF_WRITE), 0);
        memset(pages.memory, 0, FILE_BYTES);
        assert_int_equal(move_all(&rig, OFF_READ), 0);
        check_memory(0, FILE_BYTES);
        assert_int_equal(base_fault_fired(), 1);
        assert_int_equal(off_io_counts(rig.io).put_off, 1);
        base_fault_set(NULL, NULL);
        free_rig(&rig);
    }
}

// It never does again, or says that it cannot: what has begun by then is waited for, and no more.
static void what_the_kernel_never_begins_is_told(void **state)
{
    (void)state;
    static const char *const faults[] = {"offload.enter:eagain@2+", "offload.enter:efault@1+",
                                         "offload.enter:efault@3+"};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct rig rig = make_rig(&off_io_engine_uring);
        base_fault_set(faults[i], NULL);
        assert_int_not_equal(move_all(&rig, OFF_WRITE), 0);
        const struct base_error *error = &requests[REQUESTS - 1].error;
        assert_int_equal(error->result, ZERO_E_IO);
        assert_non_null(strstr(error->message, i == 0 ? "EAGAIN" : "EFAULT"));
        if (i == 0)
            assert_non_null(strstr(error->message, "/state: tile of w: writing "));
        assert_true(i > 0 || off_io_counts(rig.io).put_off >= 100);
        free_rig(&rig);
        base_fault_set(NULL, NULL);
    }
}

static void really_full(void **state)
{
    (void)state;
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_engine *engine;
    for (size_t i = 0; (engine = off_io_engine_at(i)); i++) {
        const struct off_io_config config = {.engine = engine, .ranges = &range, .range_count = 1};
        struct rig rig;
        assert_int_equal(off_io_create(&rig.io, &config, &failure), ZERO_OK);
        assert_int_equal(off_direct_file_open(&rig.file, "/dev/full", 0, 0, &failure), ZERO_OK);
        assert_int_equal(
            off_io_add_file(rig.io, rig.file.fd, rig.file.unit, rig.file.path, &rig.number, NULL),
            ZERO_OK);
        submit(&rig, 1, OFF_WRITE);
        struct off_request *done;
        assert_int_equal(off_io_wait(rig.io, UINT64_MAX, &done), ZERO_OK);
        assert_int_equal(done->result, ZERO_E_IO);
        assert_non_null(strstr(done->error.message, "/dev/full: tile of w: writing"));
        assert_non_null(strstr(done->error.message, "ENOSPC"));
        free_rig(&rig);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    struct rig rig = make_rig(&off_io_engine_sync);
    const struct off_request good = {
        .file = rig.number, .memory = pages.memory, .bytes = REQUEST_BYTES, .what = "it"};
    const bool direct = rig.file.unit > 1;
    struct off_request bad[6];
    for (size_t i = 0; i < 6; i++)
        bad[i] = good;
    bad[0].file = 1;
    bad[1].bytes = 0;
    bad[2].memory = bad;
    bad[3].memory = (unsigned char *)pages.memory + FILE_BYTES - REQUEST_BYTES + 4096;
    bad[3].bytes = pages.bytes;
    bad[4].file = -1;
    bad[5].offset = direct ? 100 : 0;
    for (size_t i = 0; i < (direct ? 6 : 5); i++) {
        base_error_clear(&failure);
        assert_int_equal(off_io_submit(rig.io, &bad[i], &failure), ZERO_E_INVALID);
        assert_non_null(strstr(failure.message, "it: "));
    }
    assert_int_equal(off_io_pending(rig.io), 0);
    free_rig(&rig);
}

// Destroyed while transfers are under way: their memory is the caller's again.
static void abandoned(struct rig *rig)
{
    write_file(rig);
    for (int i = 0; i < REQUESTS; i++)
        submit(rig, i, OFF_READ);
    assert_int_equal(off_io_commit(rig->io, NULL), ZERO_OK);
    off_io_destroy(rig->io);
    rig->io = NULL;
    memset(pages.memory, 0x5a, FILE_BYTES);
    const struct timespec pause = {.tv_nsec = 5000000};
    nanosleep(&pause, NULL);
    const unsigned char *memory = pages.memory;
    for (size_t i = 0; i < FILE_BYTES; i++)
        assert_int_equal(memory[i], 0x5a);
}

static void nothing_goes_on_after_the_end(void **state)
{
    (void)state;
    for_every_engine(abandoned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(engines_move_all_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(engines_move_any_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(waiting_ends_in_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_and_interrupted_transfers_go_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failure_names_its_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_first_failure_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_ends_too_soon_is_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(patience_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_the_kernel_puts_off_is_repeated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_the_kernel_never_begins_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(really_full, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_arguments_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_goes_on_after_the_end, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_io", tests, NULL, NULL);
}
