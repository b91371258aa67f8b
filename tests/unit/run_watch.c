// What zero-run makes of hand-made control segments: who never arrived, how it goes, a trace.
#include "tools/zero-run/segment_view.h"

#include "base/clock.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

enum { MOST_WORLD = 70, MOST_LINES = 16, LINE_BYTES = 600 };

#define NOW_NS UINT64_C(100000000000)
#define MS UINT64_C(1000000)

static struct control_segment *segment;

static char lines[MOST_LINES][LINE_BYTES];
static int line_count;

static void make_segment(int world)
{
    struct base_error error = {0};
    int fd;
    assert_int_equal(control_create(&segment, &fd, world, true, &error), ZERO_OK);
    close(fd);
    for (int rank = 0; rank < world; rank++)
        segment->ranks[rank].pid = (uint32_t)getpid();
}

static int free_segment(void **state)
{
    (void)state;
    control_detach(segment);
    segment = NULL;
    return 0;
}

/** An operation of "main" that began begin_ms before now, and ended if end_ms > 0; valid until the
 * call after the next. */
static struct control_record *operation(const char *kind, uint64_t sequence, uint64_t begin_ms,
                                        uint64_t end_ms)
{
    static struct control_record records[2];
    static unsigned next;
    struct control_record *record = &records[next++ % 2];
    *record = (struct control_record){
        .sequence = sequence,
        .begin_ns = NOW_NS - begin_ms * MS,
        .end_ns = end_ms ? NOW_NS - end_ms * MS : 0,
        .what = CONTROL_OPERATION,
        .peer = CONTROL_NO_PEER,
        .unit = CONTROL_NO_UNIT,
        .ranks = segment->world,
    };
    control_copy_name(record->kind, sizeof record->kind, kind);
    control_copy_name(record->comm, sizeof record->comm, "main");
    return record;
}

static void put(int rank, struct control_record *record)
{
    assert_int_not_equal(control_begin(&segment->ranks[rank], record), 0);
}

static void put_unit(int rank, struct control_record *record, uint32_t unit, const char *name)
{
    record->unit = unit;
    control_copy_name(record->name, sizeof record->name, name);
    put(rank, record);
}

/* ------------------------------------------------------------------ blame */

static void take_line(void *user, const char *line)
{
    assert_ptr_equal(user, lines);
    assert_true(line_count < MOST_LINES);
    snprintf(lines[line_count++], LINE_BYTES, "%s", line);
}

static void blame(int failed)
{
    line_count = 0;
    run_blame(segment, failed, NOW_NS, take_line, lines);
}

static void nothing_is_said_of_ranks_that_wait_for_nothing(void **state)
{
    (void)state;
    make_segment(3);
    blame(-1);
    assert_int_equal(line_count, 0);
    for (int rank = 0; rank < 3; rank++)
        put(rank, operation("barrier", 0, 10, 5));
    blame(-1);
    assert_int_equal(line_count, 0);
    blame(1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 1 was in the program's own code, after barrier #0, "
                                  "which began 10 ms before");
}

static void who_never_posted_is_named(void **state)
{
    (void)state;
    make_segment(4);
    for (int rank = 0; rank < 4; rank++)
        put_unit(rank, operation("reduce-scatter", 1233, 820, rank == 3 ? 0 : 815), 16, "h.3");
    for (int rank = 0; rank < 3; rank++)
        put_unit(rank, operation("reduce-scatter", 1234, (uint64_t)(812 - rank), 0), 17, "h.4");
    blame(3);
    assert_int_equal(line_count, 3);
    assert_string_equal(lines[0], "rank 3 was in reduce-scatter #1233, unit 16 (h.3) for 820 ms");
    assert_string_equal(lines[1], "rank 3 in reduce-scatter #1233, unit 16 (h.3) since 820 ms; "
                                  "every rank has posted it");
    assert_string_equal(lines[2], "rank 3 never posted #1234 reduce-scatter, unit 17 (h.4); "
                                  "ranks 0-2 wait since 812 ms");
}

/** A call of the library's on rank 0. */
static void put_call(const char *name, enum control_moment moment, uint64_t step, uint32_t unit)
{
    struct control_call call = {.step = step, .unit = unit, .moment = moment};
    control_copy_name(call.call, sizeof call.call, name);
    control_copy_name(call.name, sizeof call.name, unit == CONTROL_NO_UNIT ? "" : "h.3");
    control_copy_name(call.context, sizeof call.context, "main");
    control_call_begin(&segment->ranks[0], &call);
}

static void expect_blame(const char *line)
{
    blame(0);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], line);
}

static void the_last_call_is_told_before_the_last_operation(void **state)
{
    (void)state;
    make_segment(1);
    put(0, operation("all-gather", 4, 3, 2));
    put_call("zero_gather", CONTROL_IN_STEP, 12, 3);
    expect_blame("rank 0 was in zero_gather(unit 3 \"h.3\") of step 12");
    control_call_end(&segment->ranks[0]);
    expect_blame("rank 0 was in the program's own code, after zero_gather(unit 3 \"h.3\") of step "
                 "12");
    put_call("zero_add_param", CONTROL_BEFORE_COMMIT, 0, CONTROL_NO_UNIT);
    control_call_end(&segment->ranks[0]);
    expect_blame("rank 0 was in the program's own code, after zero_add_param");
    put_call("zero_save", CONTROL_BETWEEN, 1, CONTROL_NO_UNIT);
    expect_blame("rank 0 was in zero_save after 1 step");
    put_call("zero_release", CONTROL_IN_EVALUATION, 2, 3);
    expect_blame("rank 0 was in zero_release(unit 3 \"h.3\") of an evaluation after 2 steps");
}

static void operations_under_way_are_told_with_the_call(void **state)
{
    (void)state;
    make_segment(1);
    put_unit(0, operation("reduce-scatter", 4, 3, 0), 2, "h.1");
    put_call("zero_step", CONTROL_IN_STEP, 12, CONTROL_NO_UNIT);
    blame(0);
    assert_string_equal(lines[0], "rank 0 was in zero_step of step 12, in reduce-scatter #4, unit "
                                  "2 (h.1) for 3.0 ms");
    control_call_end(&segment->ranks[0]);
    blame(0);
    assert_string_equal(lines[0], "rank 0 was in the program's own code, after zero_step of step "
                                  "12; under way: reduce-scatter #4, unit 2 (h.1) for 3.0 ms");
}

static void ranks_in_their_own_code_wait_in_no_operation(void **state)
{
    (void)state;
    make_segment(2);
    for (int rank = 0; rank < 2; rank++)
        put_unit(rank, operation("all-gather", 35, 2030, 0), 2, "h.1");
    put_call("zero_step", CONTROL_BETWEEN, 1, CONTROL_NO_UNIT);
    blame(-1);
    assert_int_equal(line_count, 1); // rank 0 is in its call, rank 1 has made none
    assert_string_equal(lines[0], "ranks 0,1 in all-gather #35, unit 2 (h.1) since 2030 ms; every "
                                  "rank has posted it");
    control_call_end(&segment->ranks[0]);
    blame(-1);
    assert_int_equal(line_count, 2);
    assert_string_equal(lines[0], "rank 0 was in the program's own code, after zero_step after 1 "
                                  "step; under way: all-gather #35, unit 2 (h.1) for 2030 ms");
    assert_string_equal(lines[1], "rank 1 in all-gather #35, unit 2 (h.1) since 2030 ms; every "
                                  "rank has posted it");
    blame(0);
    assert_int_equal(line_count, 2);
    put_call("zero_close", CONTROL_BETWEEN, 1, CONTROL_NO_UNIT);
    control_call_end(&segment->ranks[0]);
    blame(-1);
    assert_int_equal(line_count, 1);
}

static void contexts_are_named_where_there_are_several(void **state)
{
    (void)state;
    make_segment(1);
    put(0, operation("barrier", 0, 9, 8));
    struct control_record *record = operation("barrier", 0, 7, 6);
    control_copy_name(record->comm, sizeof record->comm, "critic");
    put(0, record);
    put_call("zero_step", CONTROL_IN_STEP, 12, CONTROL_NO_UNIT);
    expect_blame("rank 0 was in zero_step of step 12, in context \"main\"");
}

static void lists_of_ranks_are_short(void **state)
{
    (void)state;
    make_segment(MOST_WORLD);
    for (int rank = 0; rank < MOST_WORLD; rank++) {
        put(rank, operation("exchange", 7, 30000, 20000));
        if (rank != 0 && rank != 3 && rank != 4 && (rank < 10 || rank > 60))
            put(rank, operation("all-gather", 8, 15000, 0));
    }
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "ranks 0,3,4,10-60 never posted #8 all-gather; ranks "
                                  "1,2,5-9,61-69 wait since 15.0 s");
}

static void one_waits_for_all_others(void **state)
{
    (void)state;
    make_segment(3);
    put(1, operation("barrier", 0, 1, 0));
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "ranks 0,2 never posted #0 barrier; rank 1 waits since 1.0 ms");
}

static void whoever_never_attached_is_named(void **state)
{
    (void)state;
    make_segment(3);
    segment->ranks[1].pid = 0;
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 1 never opened a context");
    segment->ranks[0].pid = segment->ranks[2].pid = 0; // no program of ours
    blame(1);
    assert_int_equal(line_count, 0);
}

static void operations_that_all_posted_are_told(void **state)
{
    (void)state;
    make_segment(4);
    for (int rank = 0; rank < 4; rank++)
        put(rank, operation("all-to-all", 5, 300, rank == 2 ? 0 : 299));
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 2 in all-to-all #5 since 300 ms; every rank has posted it");
}

static void ranks_in_different_operations_are_told(void **state)
{
    (void)state;
    make_segment(3);
    for (int rank = 0; rank < 3; rank++)
        put_unit(rank, operation(rank == 1 ? "barrier" : "all-gather", 5, 300, 0), 7, "h.1");
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 0 in all-gather #5, unit 7 (h.1), but rank 1 in "
                                  "barrier #5, unit 7 (h.1)");
    free_segment(state);
    make_segment(4); // the last rank has not come
    for (int rank = 0; rank < 3; rank++)
        put_unit(rank, operation("all-gather", 5, 300, 0), rank == 2 ? 8 : 7, "");
    blame(-1);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 0 in all-gather #5, unit 7, but rank 2 in "
                                  "all-gather #5, unit 8");
}

static void groups_are_told_apart(void **state)
{
    (void)state;
    make_segment(4);
    for (int rank = 0; rank < 4; rank++) {
        struct control_record *record = operation("barrier", 3, 100, 0);
        record->ranks = 2;
        record->first = (uint32_t)(rank % 2);
        control_copy_name(record->comm, sizeof record->comm, "main/0");
        if (rank < 2)
            put(rank, record);
        record->sequence--;
        record->end_ns = NOW_NS;
        if (rank == 3)
            put(rank, record);
    }
    blame(-1);
    assert_int_equal(line_count, 2);
    assert_string_equal(lines[0], "1 rank without any operation there never posted #3 barrier, in "
                                  "group \"main/0\"; rank 0 waits since 100 ms");
    assert_string_equal(lines[1],
                        "rank 3 never posted #3 barrier, in group \"main/0\"; rank 1 waits since "
                        "100 ms");
}

static void a_second_communicator_of_a_name_starts_anew(void **state)
{
    (void)state;
    make_segment(2);
    for (int rank = 0; rank < 2; rank++) {
        put(rank, operation("barrier", 0, 100, 99));
        put(rank, operation("barrier", 1, 98, 0)); // failed, and the program tried again
        put(rank, operation("exchange", 0, 50, rank ? 0 : 49));
    }
    put(0, operation("all-gather", 1, 40, 0));
    blame(-1);
    assert_int_equal(line_count, 2);
    assert_string_equal(lines[0], "rank 1 in exchange #0 since 50 ms; every rank has posted it");
    assert_string_equal(lines[1], "rank 1 never posted #1 all-gather; rank 0 waits since 40 ms");
}

static void messages_name_the_other_side(void **state)
{
    (void)state;
    make_segment(6);
    for (int rank = 0; rank < 5; rank++) {
        struct control_record *record =
            operation(rank == 1 ? "send" : "receive", 0, (uint64_t)rank + 1, 0);
        record->peer = 5;
        if (rank == 0)
            put_unit(rank, record, 2, "");
        else
            put(rank, record);
    }
    blame(5);
    assert_int_equal(line_count, 3);
    assert_string_equal(lines[0], "rank 0 is in receive from rank 5, unit 2 since 1.0 ms");
    assert_string_equal(lines[1], "rank 1 is in send to rank 5 since 2.0 ms");
    assert_string_equal(lines[2], "and so are 3 more ranks");
}

static void garbage_is_no_blame(void **state)
{
    (void)state;
    make_segment(2);
    memset((void *)segment->ranks[0].ring, 0xa5, sizeof segment->ranks[0].ring);
    segment->ranks[0].records = UINT64_MAX - 3;
    put(1, operation("barrier", 0, 1, 0));
    blame(0);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0], "rank 0 never posted #0 barrier; rank 1 waits since 1.0 ms");
}

/* ------------------------------------------------------------------ progress */

static void put_status(int rank, uint64_t step, uint64_t step_ms, uint64_t update_ms)
{
    struct control_status status = {
        .step = step,
        .step_ns = step_ms * MS,
        .gather_wait_ns = step_ms * MS / 10,
        .reduce_wait_ns = step_ms * MS / 4,
        .verdict_wait_ns = step_ms * MS / 100,
        .update_ns = update_ms * MS,
        .micro_batches = 8,
        .metric_count = 2,
        .metrics = {{"loss", 3.21456}, {"tokens", 256}},
    };
    control_status_write(&segment->ranks[rank], &status);
}

static void expect_progress(const char *expected)
{
    struct run_progress progress;
    char bytes[256] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    run_progress_read(segment, &progress);
    run_progress_text(&progress, &text);
    assert_string_equal(bytes, expected);
}

static void progress_is_one_line(void **state)
{
    (void)state;
    make_segment(3);
    struct run_progress progress;
    run_progress_read(segment, &progress);
    assert_int_equal(progress.step, 0);
    put_status(1, 1200, 40, 10);
    put_status(2, 1201, 40, 6);
    expect_progress("step 1200, loss 3.2146, 51.2k tokens/s, 40.0 ms a step; gather 10 %, reduce "
                    "25 %, verdict 1 %, update 20 %, rest 44 %");
    put_status(1, 1202, 12345, 0);
    put_status(2, 1202, 12345, 0);
    expect_progress("step 1202, loss 3.2146, 166 tokens/s, 12.3 s a step; gather 10 %, reduce "
                    "25 %, verdict 1 %, update 0 %, rest 64 %");
}

static void a_context_that_has_a_name_is_named(void **state)
{
    (void)state;
    make_segment(1);
    struct control_status status = {.step = 7, .step_ns = 2 * MS};
    memset(status.context, 'x', sizeof status.context); // no zero at the end
    memcpy(status.context, "actor", sizeof "actor");
    control_status_write(&segment->ranks[0], &status);
    expect_progress("actor: step 7, 2.00 ms a step; gather 0 %, reduce 0 %, verdict 0 %, "
                    "update 0 %, rest 100 %");
}

static void without_metrics_there_is_time(void **state)
{
    (void)state;
    make_segment(1);
    struct control_status status = {.step = 1, .step_ns = 999999, .metric_count = 1};
    strcpy(status.metrics[0].name, "lossy");
    control_status_write(&segment->ranks[0], &status);
    expect_progress("step 1, 1.00 ms a step; gather 0 %, reduce 0 %, verdict 0 %, update 0 %, "
                    "rest 100 %");
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void memory_is_added_up(void **state)
{
    (void)state;
    struct temporary proc;
    char path[256];
    make_segment(3);
    assert_true(temporary_make(&proc));
    for (uint32_t rank = 0; rank < 2; rank++) {
        segment->ranks[rank].pid = 1000 + rank;
        snprintf(path, sizeof path, "%s/%u", proc.directory, 1000 + rank);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/%u/statm", proc.directory, 1000 + rank);
        write_file(path, "900 200 100 1 0 300 0\n");
        snprintf(path, sizeof path, "%s/%u/smaps_rollup", proc.directory, 1000 + rank);
        write_file(path, "5581-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  2048 kB\nPss:  1024 kB\n"
                         "Pss_Anon: 512 kB\n");
    }
    segment->ranks[2].pid = 0;
    struct run_progress progress = {.step = 1};
    run_progress_memory(segment, proc.directory, &progress);
    assert_int_equal(progress.memory, 2 * 1024 * 1024);
    assert_false(progress.resident);
    assert_int_equal(unlink(path), 0); // as where it may not be read
    run_progress_memory(segment, proc.directory, &progress);
    assert_int_equal(progress.memory, 2 * 200 * sysconf(_SC_PAGESIZE));
    assert_true(progress.resident);
    char bytes[256] = "";
    progress.restarts = 2;
    run_progress_text(&progress, &(struct base_text){bytes, sizeof bytes, 0});
    assert_string_equal(
        bytes, "step 1, 1.56 MiB resident, 2 restarts; gather 0 %, reduce 0 %, verdict 0 %, "
               "update 0 %, rest 100 %");
    temporary_remove(&proc);
}

/* ------------------------------------------------------------------ trace */

static struct temporary directory;
static struct run_trace *trace;

static void open_trace(int world)
{
    struct base_error error = {0};
    make_segment(world);
    assert_true(temporary_make(&directory));
    assert_int_equal(run_trace_open(&trace, temporary_path(&directory, "trace"), segment, &error),
                     ZERO_OK);
}

/** Ends the trace and reads it. */
static json_t *read_trace(void)
{
    json_error_t error;
    run_trace_finish(trace);
    assert_int_equal(run_trace_failed(trace), 0);
    run_trace_close(trace);
    json_t *events = json_load_file(temporary_path(&directory, "trace"), 0, &error);
    if (!events)
        fail_msg("line %d: %s", error.line, error.text);
    assert_true(json_is_array(events));
    temporary_remove(&directory);
    return events;
}

static json_int_t integer(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static const char *text_of(const json_t *event, const char *key)
{
    return json_string_value(json_object_get(event, key));
}

/** The n-th complete event of a rank. */
static const json_t *event_of(const json_t *events, int rank, int n)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) if (!strcmp(text_of(event, "ph"), "X") &&
                                             integer(event, "pid") == rank &&
                                             n-- == 0) return event;
    return NULL;
}

/** The argument of the metadata event `name` of a thread. */
static const char *thread_name(const json_t *events, int rank, json_int_t tid)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) if (!strcmp(text_of(event, "name"), "thread_name") &&
                                             integer(event, "pid") == rank &&
                                             integer(event, "tid") ==
                                                 tid) return text_of(json_object_get(event, "args"),
                                                                     "name");
    return "";
}

/** A record of the trace's own time: from begin_us to end_us, 0: not ended. */
static struct control_record *timed(enum control_what what, uint64_t start_ns, uint64_t begin_us,
                                    uint64_t end_us)
{
    struct control_record *record = operation("all-gather", 3, 0, 0);
    record->what = (uint16_t)what;
    record->begin_ns = start_ns + 1000 * begin_us;
    record->end_ns = end_us ? start_ns + 1000 * end_us : 0;
    record->bytes = 4096;
    return record;
}

static void an_empty_trace_is_valid(void **state)
{
    (void)state;
    open_trace(2);
    run_trace_drain(trace);
    json_t *events = read_trace();
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
}

static void records_become_events(void **state)
{
    (void)state;
    open_trace(2);
    const uint64_t start = base_clock_ns() + MS;
    put_unit(1, timed(CONTROL_OPERATION, start, 10, 25), 4, "h.\"4\"\n\xc3\xa9\xff\xe2\x82");
    put(1, timed(CONTROL_STEP, start, 5, 30));
    run_trace_drain(trace);
    json_t *events = read_trace();
    const json_t *event = event_of(events, 1, 0), *args = json_object_get(event, "args");
    assert_null(event_of(events, 0, 0));
    assert_string_equal(text_of(event, "name"), "all-gather");
    assert_string_equal(text_of(event, "cat"), "operation");
    assert_true(number(event, "ts") >= 1000 + 10);
    assert_true(fabs(number(event, "dur") - 15) < 1e-6);
    assert_int_equal(integer(args, "sequence"), 3);
    assert_int_equal(integer(args, "bytes"), 4096);
    assert_int_equal(integer(args, "unit"), 4);
    assert_string_equal(text_of(args, "name"), "h.\"4\"\n\xc3\xa9???");
    assert_string_equal(thread_name(events, 1, integer(event, "tid")), "main: operations");
    const json_t *step = event_of(events, 1, 1);
    assert_string_equal(text_of(step, "name"), "step");
    assert_string_equal(thread_name(events, 1, integer(step, "tid")), "main: engine");
    assert_true(fabs(number(event, "ts") - number(step, "ts") - 5) < 1e-6);
    json_decref(events);
}

static void what_overlaps_lies_in_lanes(void **state)
{
    (void)state;
    open_trace(1);
    struct control_rank *area = &segment->ranks[0];
    const uint64_t start = base_clock_ns();
    struct control_record *first = timed(CONTROL_OPERATION, start, 10, 0);
    const uint64_t number_of_first = control_begin(area, first);
    put(0, timed(CONTROL_OPERATION, start, 12, 20)); // while the first is under way
    run_trace_drain(trace);
    put(0, timed(CONTROL_OPERATION, start, 20, 30)); // where the second was
    put(0, timed(CONTROL_OPERATION, start, 25, 0));  // beside both
    run_trace_drain(trace);
    control_end(area, number_of_first);
    run_trace_drain(trace);
    put(0, timed(CONTROL_OPERATION, start + 3600000 * MS, 0, 1)); // where the first was
    json_t *events = read_trace();
    static const struct {
        json_int_t lane;
        bool finished;
    } expected[] = {{3, true}, {3, true}, {2, true}, {2, true}, {4, false}};
    for (int i = 0; i < 5; i++) {
        const json_t *event = event_of(events, 0, i);
        assert_non_null(event);
        assert_int_equal(integer(event, "tid"), expected[i].lane);
        assert_int_equal(integer(json_object_get(event, "args"), "unfinished"),
                         !expected[i].finished);
    }
    assert_null(event_of(events, 0, 5));
    assert_string_equal(thread_name(events, 0, 4), "main: operations 3");
    json_decref(events);
}

static void what_was_overwritten_is_counted(void **state)
{
    (void)state;
    open_trace(1);
    const uint64_t start = base_clock_ns();
    put(0, timed(CONTROL_OPERATION, start, 1, 0)); // taken, but its end will not be seen
    put(0, timed(CONTROL_OPERATION, start, 1, 2));
    run_trace_drain(trace);
    for (uint64_t i = 0; i < CONTROL_RECORDS + 5; i++)
        put(0, timed(CONTROL_UPDATE, start, 10 + i, 11 + i));
    run_trace_drain(trace);
    assert_int_equal(run_trace_lost(trace), 1 + 5);
    for (uint64_t i = 0; i < 3 * CONTROL_RECORDS; i++)
        put(0, timed(CONTROL_UPDATE, start, 10 + i, 11 + i));
    run_trace_drain(trace);
    assert_int_equal(run_trace_lost(trace), 1 + 5 + 2 * CONTROL_RECORDS);
    json_t *events = read_trace();
    int count = 0;
    while (event_of(events, 0, count) && count < 10)
        count++;
    assert_int_equal(count, 10);
    assert_int_equal(json_array_size(events), 1 + 2 * CONTROL_RECORDS + 2 + 3 * 2);
    json_decref(events);
}

static void every_communicator_has_its_tracks(void **state)
{
    (void)state;
    open_trace(1);
    const uint64_t start = base_clock_ns();
    for (int i = 0; i < 70; i++) {
        struct control_record *record = timed(CONTROL_OPERATION, start, 1, 2);
        snprintf(record->comm, sizeof record->comm, "comm %d", i);
        put(0, record);
    }
    json_t *events = read_trace();
    const json_t *last = event_of(events, 0, 63);
    assert_non_null(last);
    assert_string_equal(thread_name(events, 0, integer(last, "tid")), "comm 63: operations");
    assert_null(event_of(events, 0, 64)); // more are counted as lost
    json_decref(events);
}

static void garbage_is_no_event(void **state)
{
    (void)state;
    open_trace(2);
    struct control_record *record = timed(CONTROL_OPERATION, base_clock_ns(), 20, 10);
    put(1, record); // ends before it begins
    record->what = 77;
    put(1, record);
    memset((void *)segment->ranks[0].ring, 0xa5, sizeof segment->ranks[0].ring);
    segment->ranks[0].records = UINT64_MAX - 3;
    run_trace_drain(trace);
    segment->ranks[0].records = 5;
    run_trace_drain(trace);
    json_t *events = read_trace();
    assert_true(number(event_of(events, 1, 0), "dur") >= 0);
    assert_null(event_of(events, 1, 1));
    assert_null(event_of(events, 0, 0));
    json_decref(events);
}

static void a_full_disk_is_reported(void **state)
{
    (void)state;
    struct base_error error = {0};
    make_segment(1);
    assert_int_equal(run_trace_open(&trace, "/nowhere/trace", segment, &error), ZERO_NOT_FOUND);
    assert_null(trace);
    assert_int_equal(run_trace_open(&trace, "/dev/full", segment, &error), ZERO_OK);
    put(0, timed(CONTROL_UPDATE, base_clock_ns(), 1, 2));
    assert_int_equal(run_trace_failed(trace), 0);
    run_trace_drain(trace);
    assert_int_equal(run_trace_failed(trace), ENOSPC);
    run_trace_finish(trace);
    assert_int_equal(run_trace_failed(trace), ENOSPC);
    run_trace_close(trace);
    run_trace_close(NULL);
}

int main(void)
{
#define WITH_SEGMENT(test) cmocka_unit_test_teardown(test, free_segment)
    const struct CMUnitTest tests[] = {
        WITH_SEGMENT(nothing_is_said_of_ranks_that_wait_for_nothing),
        WITH_SEGMENT(who_never_posted_is_named),
        WITH_SEGMENT(the_last_call_is_told_before_the_last_operation),
        WITH_SEGMENT(operations_under_way_are_told_with_the_call),
        WITH_SEGMENT(ranks_in_their_own_code_wait_in_no_operation),
        WITH_SEGMENT(contexts_are_named_where_there_are_several),
        WITH_SEGMENT(lists_of_ranks_are_short),
        WITH_SEGMENT(one_waits_for_all_others),
        WITH_SEGMENT(whoever_never_attached_is_named),
        WITH_SEGMENT(operations_that_all_posted_are_told),
        WITH_SEGMENT(ranks_in_different_operations_are_told),
        WITH_SEGMENT(groups_are_told_apart),
        WITH_SEGMENT(a_second_communicator_of_a_name_starts_anew),
        WITH_SEGMENT(messages_name_the_other_side),
        WITH_SEGMENT(garbage_is_no_blame),
        WITH_SEGMENT(progress_is_one_line),
        WITH_SEGMENT(a_context_that_has_a_name_is_named),
        WITH_SEGMENT(without_metrics_there_is_time),
        WITH_SEGMENT(memory_is_added_up),
        WITH_SEGMENT(an_empty_trace_is_valid),
        WITH_SEGMENT(records_become_events),
        WITH_SEGMENT(what_overlaps_lies_in_lanes),
        WITH_SEGMENT(what_was_overwritten_is_counted),
        WITH_SEGMENT(every_communicator_has_its_tracks),
        WITH_SEGMENT(garbage_is_no_event),
        WITH_SEGMENT(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
