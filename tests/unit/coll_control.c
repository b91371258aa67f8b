// The control segment: what a rank accepts as one, and records that are read while they change.
#include "collectives/control/control.h"

#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, WRITERS = 2, ROUNDS = 40000 };

static struct control_segment *segment;
static int fd;

static void name_descriptor(int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv("ZERO_CONTROL_FD", text, 1);
}

static int make_segment(void **state)
{
    (void)state;
    struct base_error error = {0};
    assert_int_equal(control_create(&segment, &fd, WORLD, true, &error), ZERO_OK);
    name_descriptor(fd);
    return 0;
}

static int free_segment(void **state)
{
    (void)state;
    unsetenv("ZERO_CONTROL_FD");
    control_detach(segment);
    close(fd);
    return 0;
}

/* ------------------------------------------------------------------ attaching */

static void refused(zero_result result, const char *part)
{
    struct base_error error = {0};
    struct control_segment *attached = segment;
    assert_int_equal(control_attach(&attached, 1, WORLD, &error), result);
    assert_null(attached);
    if (!strstr(error.message, part))
        fail_msg("\"%s\" lacks \"%s\"", error.message, part);
}

static void without_a_segment_nothing_is_recorded(void **state)
{
    (void)state;
    struct base_error error = {0};
    struct control_segment *attached = segment;
    unsetenv("ZERO_CONTROL_FD");
    assert_int_equal(control_attach(&attached, 0, 1, &error), ZERO_OK);
    assert_null(attached);
    struct control_record record = {.what = CONTROL_OPERATION};
    assert_int_equal(control_begin(NULL, &record), 0);
    assert_int_equal(record.begin_ns, 0);
    control_end(NULL, 1);
    control_detach(NULL);
}

static void a_rank_attaches(void **state)
{
    (void)state;
    struct base_error error = {0};
    struct control_segment *attached;
    fcntl(fd, F_SETFD, 0);
    assert_int_equal(control_pid(&segment->ranks[1]), 0);
    assert_int_equal(control_attach(&attached, 1, WORLD, &error), ZERO_OK);
    assert_non_null(attached);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(control_pid(&segment->ranks[1]), getpid());
    assert_int_equal(control_pid(&segment->ranks[0]), 0);
    assert_int_equal(control_pid(&segment->ranks[2]), 0);
    assert_int_equal(attached->trace, 1);

    struct control_record record = {.what = CONTROL_UPDATE, .unit = 7}, seen;
    assert_int_equal(control_begin(&attached->ranks[1], &record), 1);
    assert_true(control_read(&segment->ranks[1], 1, &seen));
    assert_int_equal(seen.unit, 7);
    assert_int_equal(control_newest(&segment->ranks[0]), 0);
    control_detach(attached);
    // A second context of the process.
    assert_int_equal(control_attach(&attached, 1, WORLD, &error), ZERO_OK);
    control_detach(attached);
}

static void a_world_of_another_size_is_not_recorded(void **state)
{
    (void)state;
    struct base_error error = {0};
    struct control_segment *attached = segment;
    assert_int_equal(control_attach(&attached, 0, WORLD + 1, &error), ZERO_OK);
    assert_null(attached);
    assert_int_equal(control_pid(&segment->ranks[0]), 0);
}

static void malformed_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "x", "-1", " 3", "3 ", "3x", "99999999999", "0x3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("ZERO_CONTROL_FD", wrong[i], 1);
        refused(ZERO_E_INVALID, "ZERO_CONTROL_FD");
    }
    struct base_error error = {0};
    struct control_segment *attached;
    name_descriptor(fd);
    assert_int_equal(control_attach(&attached, WORLD, WORLD, &error), ZERO_E_INVALID);
    assert_null(attached);
}

static void other_descriptors_are_refused(void **state)
{
    (void)state;
    int ends[2];
    const int closed = dup(fd);
    close(closed);
    name_descriptor(closed);
    refused(ZERO_E_INVALID, "is no open descriptor");

    assert_int_equal(pipe(ends), 0);
    name_descriptor(ends[0]);
    refused(ZERO_E_INVALID, "is no control segment");
    close(ends[0]);
    close(ends[1]);

    FILE *file = tmpfile();
    assert_non_null(file);
    name_descriptor(fileno(file));
    refused(ZERO_E_INVALID, "is no control segment");
    assert_int_equal(ftruncate(fileno(file), (off_t)control_bytes(WORLD)), 0);
    refused(ZERO_E_INVALID, "is no control segment"); // it could shrink
    fclose(file);
}

/** A memfd of this size that begins with this head. */
static int made_up(const struct control_segment *head, size_t bytes)
{
    const int made = memfd_create("made-up", MFD_ALLOW_SEALING);
    assert_true(made >= 0);
    const size_t written = bytes < sizeof *head ? bytes : sizeof *head;
    assert_int_equal(pwrite(made, head, written, 0), written);
    assert_int_equal(ftruncate(made, (off_t)bytes), 0);
    assert_int_equal(fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return made;
}

static void malformed_segments_are_refused(void **state)
{
    (void)state;
    const size_t bytes = control_bytes(WORLD);
    static const struct {
        int magic, version, world, stated, file;
        zero_result result;
        const char *part;
    } wrong[] = {
        {1, 0, 0, 0, 0, ZERO_E_INVALID, "it begins with"},
        {0, 1, 0, 0, 0, ZERO_E_VERSION, "has version 6 of the control segment, this library 5"},
        {0, -1, 0, 0, 0, ZERO_E_VERSION, "has version 4"},
        {0, 0, -WORLD, 0, 0, ZERO_E_INVALID, "of 0 ranks"},
        {0, 0, 1 << 20, 0, 0, ZERO_E_INVALID, "ranks"},
        {0, 0, 1, 0, 0, ZERO_E_INVALID, "of 4 ranks has"},
        {0, 0, 0, 8, 0, ZERO_E_INVALID, "it says"},
        {0, 0, 0, 0, -8, ZERO_E_INVALID, "it says"},
        {0, 0, 0, 0, 4096, ZERO_E_INVALID, "it says"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        static struct control_segment head;
        head = (struct control_segment){
            .magic = CONTROL_MAGIC + (uint64_t)wrong[i].magic,
            .version = CONTROL_VERSION + (uint32_t)wrong[i].version,
            .world = (uint32_t)(WORLD + wrong[i].world),
            .bytes = bytes + (size_t)wrong[i].stated,
        };
        const int made = made_up(&head, bytes + (size_t)wrong[i].file);
        name_descriptor(made);
        refused(wrong[i].result, wrong[i].part);
        close(made);
    }
    const int made = made_up(&(struct control_segment){.magic = CONTROL_MAGIC}, 100);
    name_descriptor(made);
    refused(ZERO_E_INVALID, "is no control segment");
    close(made);
}

/* ------------------------------------------------------------------ records */

static void records_are_read_until_they_are_overwritten(void **state)
{
    (void)state;
    struct control_rank *area = &segment->ranks[0];
    struct control_record record = {.what = CONTROL_OPERATION}, seen;
    control_copy_name(record.kind, sizeof record.kind, "a kind that is much too long");
    const uint64_t before = base_clock_ns();
    assert_int_equal(control_begin(area, &record), 1);
    assert_false(control_read(area, 0, &seen));
    assert_false(control_read(area, 2, &seen));
    assert_true(control_read(area, 1, &seen));
    assert_string_equal(seen.kind, "a kind that is ");
    assert_true(seen.begin_ns >= before && seen.end_ns == 0);
    control_end(area, 1);
    assert_true(control_read(area, 1, &seen));
    assert_true(seen.end_ns >= seen.begin_ns && seen.end_ns <= base_clock_ns());

    for (uint64_t n = 2; n <= CONTROL_RECORDS + 1; n++) {
        record.begin_ns = n;
        record.end_ns = n + 1;
        assert_int_equal(control_begin(area, &record), n);
    }
    assert_int_equal(control_newest(area), CONTROL_RECORDS + 1);
    assert_false(control_read(area, 1, &seen));
    assert_true(control_read(area, 2, &seen));
    control_end(area, 1); // not the one that is there now
    assert_true(control_read(area, CONTROL_RECORDS + 1, &seen));
    assert_int_equal(seen.begin_ns, CONTROL_RECORDS + 1);
    assert_int_equal(seen.end_ns, CONTROL_RECORDS + 2);
}

static void a_writer_that_died_is_not_waited_for(void **state)
{
    (void)state;
    struct control_rank *area = &segment->ranks[0];
    struct control_record record = {.what = CONTROL_OPERATION}, seen;
    struct control_status status = {.step = 3};
    assert_int_equal(control_begin(area, &record), 1);
    atomic_fetch_add(&area->ring[0].stamp, 1);
    assert_false(control_read(area, 1, &seen));
    control_end(area, 1);
    area->records = CONTROL_RECORDS; // the next one's place is this one's
    assert_int_equal(control_begin(area, &record), 0);
    assert_int_equal(control_begin(area, &record), CONTROL_RECORDS + 2);

    assert_false(control_status_read(area, &status));
    control_status_write(area, &status);
    atomic_fetch_add(&area->status.stamp, 1);
    assert_false(control_status_read(area, &status));
    control_status_write(area, &status);
    atomic_fetch_add(&area->status.stamp, 1);
    assert_true(control_status_read(area, &status));
    assert_int_equal(status.step, 3);
}

static void the_first_death_noticed_counts(void **state)
{
    (void)state;
    control_note_lost(NULL, 1);
    assert_int_equal(control_first_lost(segment), -1);
    control_note_lost(&segment->ranks[2], 0);
    assert_int_equal(control_first_lost(segment), 0);
    control_note_lost(&segment->ranks[0], 1);
    control_note_lost(&segment->ranks[2], 1);
    assert_int_equal(control_first_lost(segment), 0);
    segment->ranks[2].lost = WORLD + 1; // no rank
    assert_int_equal(control_first_lost(segment), 1);
}

static void garbage_is_read_without_harm(void **state)
{
    (void)state;
    struct control_rank *area = &segment->ranks[2];
    struct control_record seen;
    struct control_status status;
    memset((void *)area, 0xfe, sizeof *area);
    assert_false(control_read(area, 1, &seen));
    assert_false(control_read(area, UINT64_C(0xfefefefefefefefe) / 2, &seen));
    assert_true(control_status_read(area, &status));
    assert_int_equal(status.metric_count, CONTROL_METRICS);
    assert_int_equal(strlen(status.metrics[CONTROL_METRICS - 1].name), CONTROL_NAME_BYTES - 1);
}

/* ------------------------------------------------------------------ while they change */

/** What is in a record follows from one number. */
static struct control_record numbered(uint64_t seed)
{
    struct control_record record = {
        .sequence = seed,
        .bytes = ~seed,
        .begin_ns = 3 * seed,
        .what = CONTROL_OPERATION,
        .unit = (uint32_t)seed,
    };
    memset(record.comm, (int)('a' + seed % 26), sizeof record.comm - 1);
    return record;
}

static int whole(const struct control_record *record)
{
    const struct control_record expected = numbered(record->sequence);
    return record->bytes == expected.bytes && record->begin_ns == expected.begin_ns &&
           record->unit == expected.unit && !strcmp(record->comm, expected.comm);
}

static void *write_records(void *argument)
{
    const uint64_t writer = (uint64_t)(uintptr_t)argument;
    struct control_rank *area = &segment->ranks[0];
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        struct control_record record = numbered(WRITERS * i + writer);
        const uint64_t number = control_begin(area, &record);
        struct control_status status = {.step = i, .step_ns = ~i, .planned_bytes = i};
        control_status_write(area, &status);
        control_end(area, number);
    }
    return NULL;
}

/** Reads whatever is there until the writers are done; returns how many were torn. */
static uint64_t read_records(void)
{
    const struct control_rank *area = &segment->ranks[0];
    uint64_t torn = 0, newest = 0;
    while (newest < (uint64_t)WRITERS * ROUNDS) {
        newest = control_newest(area);
        for (uint64_t back = 0; back < 64 && back < newest; back++) {
            // The newest ones, and those that are about to go.
            struct control_record record;
            const uint64_t old = newest > CONTROL_RECORDS ? newest - CONTROL_RECORDS + 1 : 1;
            if (control_read(area, newest - back, &record))
                torn += !whole(&record);
            if (control_read(area, old + back, &record))
                torn += !whole(&record);
        }
        struct control_status status;
        if (control_status_read(area, &status))
            torn += status.step_ns != ~status.step || status.planned_bytes != status.step;
    }
    return torn;
}

static void *read_in_thread(void *argument)
{
    *(uint64_t *)argument = read_records();
    return NULL;
}

static void no_reader_sees_half_a_record(void **state)
{
    (void)state;
    pthread_t writers[WRITERS], reader;
    uint64_t torn = 1;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(read_records() ? 1 : 0);
    assert_int_equal(pthread_create(&reader, NULL, read_in_thread, &torn), 0);
    for (uintptr_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, write_records, (void *)i), 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    pthread_join(reader, NULL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(torn, 0);
    // All but what a stopped writer was in the way of is there, and has ended.
    int there = 0;
    for (uint64_t back = 0; back < CONTROL_RECORDS; back++) {
        struct control_record record;
        if (!control_read(&segment->ranks[0], (uint64_t)WRITERS * ROUNDS - back, &record))
            continue;
        assert_true(whole(&record) && record.end_ns > 0);
        there++;
    }
    assert_true(there > CONTROL_RECORDS / 2);
}

int main(void)
{
#define WITH_SEGMENT(test) cmocka_unit_test_setup_teardown(test, make_segment, free_segment)
    const struct CMUnitTest tests[] = {
        WITH_SEGMENT(without_a_segment_nothing_is_recorded),
        WITH_SEGMENT(a_rank_attaches),
        WITH_SEGMENT(a_world_of_another_size_is_not_recorded),
        WITH_SEGMENT(malformed_numbers_are_refused),
        WITH_SEGMENT(other_descriptors_are_refused),
        WITH_SEGMENT(malformed_segments_are_refused),
        WITH_SEGMENT(records_are_read_until_they_are_overwritten),
        WITH_SEGMENT(a_writer_that_died_is_not_waited_for),
        WITH_SEGMENT(the_first_death_noticed_counts),
        WITH_SEGMENT(garbage_is_read_without_harm),
        WITH_SEGMENT(no_reader_sees_half_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
