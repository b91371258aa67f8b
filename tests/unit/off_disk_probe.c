// offload/disk_probe.h: a disk has rates, and what fails leaves nothing.
#include "base/fault.h"
#include "offload/direct_file.h"
#include "offload/disk_probe.h"
#include "offload/io/io_engine.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { FILE_BYTES = 32 << 20 };

static struct temporary temporary;
static struct base_error failure;
static struct off_disk_probe probe;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static zero_result measure(const struct off_io_engine *engine, const char *directory)
{
    const struct off_disk_probe_config config = {
        .directory = directory, .engine = engine, .seconds = 0.1, .bytes = FILE_BYTES};
    return off_disk_probe(&probe, &config, &failure);
}

static void every_engine_has_rates(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    for (size_t i = 0; (engine = off_io_engine_at(i)); i++) {
        assert_int_equal(measure(engine, temporary.directory), ZERO_OK);
        assert_true(probe.read_rate > 0 && probe.write_rate > 0 && probe.mixed_rate > 0);
        assert_true(probe.latency_s > 0);
        assert_true(probe.transfer_bytes >= 1 << 20);
        assert_true(probe.credits[OFF_READ] > 0 && probe.credits[OFF_WRITE] > 0);
        assert_int_equal(temporary_entries(&temporary), 0);
    }
}

static uint64_t reads_end, writes_begin;

static void note(void *state, unsigned number, const struct off_transfer *transfer)
{
    const uint64_t end = transfer->offset + transfer->bytes;
    if (transfer->direction == OFF_READ)
        reads_end = end > reads_end ? end : reads_end;
    else
        writes_begin = transfer->offset < writes_begin ? transfer->offset : writes_begin;
    off_io_engine_sync.submit(state, number, transfer);
}

// A disk may have what was just written at hand.
static void nothing_is_read_that_is_written(void **state)
{
    (void)state;
    struct off_io_engine noted = off_io_engine_sync;
    noted.submit = note;
    reads_end = 0;
    writes_begin = FILE_BYTES;
    assert_int_equal(measure(&noted, temporary.directory), ZERO_OK);
    assert_true(reads_end > 0 && reads_end <= writes_begin && writes_begin < FILE_BYTES);
}

static void pages_are_those_that_were_got(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("pages.reserved@1,pages.transparent@1", NULL), ZERO_OK);
    assert_int_equal(measure(&off_io_engine_sync, temporary.directory), ZERO_OK);
    assert_int_equal(probe.pages, OFF_PAGES_PLAIN);
    assert_int_equal(base_fault_set("pages.reserved@1", NULL), ZERO_OK);
    assert_int_equal(measure(&off_io_engine_sync, temporary.directory), ZERO_OK);
    assert_int_not_equal(probe.pages, OFF_PAGES_RESERVED);
}

static void a_file_without_direct_is_told(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct off_io_engine *engine = off_io_engine_at((size_t)i);
        assert_int_equal(base_fault_set(i ? "file.direct:einval@1" : NULL, NULL), ZERO_OK);
        assert_int_equal(measure(engine, temporary.directory), ZERO_OK);
        struct off_direct_file file;
        base_fault_set(NULL, NULL);
        assert_int_equal(off_direct_file_open(&file, temporary.directory, O_TMPFILE, 0600, NULL),
                         ZERO_OK);
        assert_int_equal(probe.direct_unit, i ? 0 : file.direct_unit);
        off_direct_file_close(&file, NULL);
    }
}

static void what_fails_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *fault;
        zero_result result;
    } cases[] = {
        {"alloc@1", ZERO_E_NOMEM},
        {"io.open@1", ZERO_E_IO},
        {"pages.map:enomem@1,pages.reserved@1", ZERO_E_NOMEM},
        {"io.write:enospc@2", ZERO_E_IO},
        {"offload.read@3", ZERO_E_IO},
        {"offload.write@40", ZERO_E_IO},
        {"offload.submit@5", ZERO_E_IO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        base_error_clear(&failure);
        base_fault_set(cases[i].fault, NULL);
        assert_int_equal(measure(&off_io_engine_threads, temporary.directory), cases[i].result);
        assert_int_equal(failure.result, cases[i].result);
        assert_true(probe.mixed_rate == 0 && probe.transfer_bytes == 0);
        assert_int_equal(temporary_entries(&temporary), 0);
    }
    base_fault_set(NULL, NULL);
    base_error_clear(&failure);
    assert_int_equal(measure(&off_io_engine_sync, temporary_path(&temporary, "none")),
                     ZERO_NOT_FOUND);
    assert_non_null(strstr(failure.message, "/none"));
    base_error_clear(&failure);
    assert_int_equal(measure(&off_io_engine_sync, "/proc"), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "/proc"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_engine_has_rates, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_read_that_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pages_are_those_that_were_got, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_without_direct_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_fails_leaves_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_disk_probe", tests, NULL, NULL);
}
