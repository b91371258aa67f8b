// What a context tells zero-run: nothing without a control segment, its status and operations with
// one, and where all of its time goes if a trace is made.
#include "base/clock.h"
#include "collectives/control/control.h"
#include "tests/numerics/synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, PAUSE_MS = 400 };

static const struct synthetic model = {.dtype = ZERO_BF16, .micro_batches = 4};

static struct control_segment *segment;
static int fd;

static void make_segment(int world, bool trace)
{
    struct base_error error = {0};
    char number[16];
    assert_int_equal(control_create(&segment, &fd, world, trace, &error), ZERO_OK);
    snprintf(number, sizeof number, "%d", fd);
    setenv("ZERO_CONTROL_FD", number, 1);
}

static int free_segment(void **state)
{
    (void)state;
    unsetenv("ZERO_CONTROL_FD");
    control_detach(segment);
    close(fd);
    segment = NULL;
    fd = -1;
    return 0;
}

static zero_ctx *open_context(const char *name)
{
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = 3;
    config.micro_batches = model.micro_batches;
    config.name = name;
    if (zero_open(&z, &config) != ZERO_OK)
        fail_msg("%s", zero_last_error(NULL));
    return z;
}

static void train(zero_ctx *z)
{
    if (synthetic_commit(z, &model) != ZERO_OK)
        fail_msg("%s", zero_last_error(z));
    for (uint64_t step = 0; step < STEPS; step++)
        if (synthetic_step(z, &model, step) != ZERO_OK)
            fail_msg("%s", zero_last_error(z));
}

/** Records of a kind that name this context. */
static int count_records(enum control_what what, const char *comm)
{
    const struct control_rank *area = &segment->ranks[0];
    int count = 0;
    for (uint64_t n = 1; n <= control_newest(area); n++) {
        struct control_record record;
        assert_true(control_read(area, n, &record));
        assert_true(record.end_ns >= record.begin_ns && record.begin_ns > 0);
        count += record.what == what && !strcmp(record.comm, comm);
    }
    return count;
}

static void a_wrong_descriptor_is_refused(void **state)
{
    (void)state;
    zero_ctx *z = NULL;
    const zero_config config = zero_config_default();
    static const char *const wrong[] = {"987654", "none", "0"};
    fd = -1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("ZERO_CONTROL_FD", wrong[i], 1);
        assert_int_equal(zero_open(&z, &config), ZERO_E_INVALID);
        assert_null(z);
        assert_non_null(strstr(zero_last_error(NULL), "ZERO_CONTROL_FD"));
    }
}

static void the_status_is_that_of_the_newest_step(void **state)
{
    (void)state;
    struct control_status status;
    make_segment(1, false);
    zero_ctx *z = open_context(NULL);
    assert_false(control_status_read(&segment->ranks[0], &status));
    train(z);
    assert_true(control_status_read(&segment->ranks[0], &status));
    assert_int_equal(status.step, STEPS);
    assert_true(status.step_ns > 0 && status.update_ns > 0 && status.update_ns <= status.step_ns);
    assert_true(status.gather_wait_ns + status.reduce_wait_ns <= status.step_ns);
    assert_int_equal(status.micro_batches, model.micro_batches);
    zero_statistics stats = {.struct_size = sizeof stats};
    assert_int_equal(zero_stats(z, &stats), ZERO_OK);
    assert_int_equal(status.planned_bytes, stats.allocated_bytes);
    assert_int_equal(status.metric_count, 2);
    assert_string_equal(status.metrics[0].name, "loss");
    double loss;
    assert_int_equal(zero_metric_mean(z, "loss", &loss), ZERO_OK);
    assert_true(status.metrics[0].mean == loss);
    zero_close(z);
}

static void without_a_trace_there_are_operations_only(void **state)
{
    (void)state;
    make_segment(1, false);
    zero_ctx *z = open_context(NULL);
    train(z);
    zero_close(z);
    assert_true(count_records(CONTROL_OPERATION, "main") > STEPS);
    assert_int_equal(count_records(CONTROL_OPERATION, "main"), control_newest(&segment->ranks[0]));
}

static void a_trace_has_every_stretch(void **state)
{
    (void)state;
    make_segment(1, true);
    zero_ctx *z = open_context("critic");
    train(z);
    zero_close(z);
    assert_int_equal(count_records(CONTROL_STEP, "critic"), STEPS);
    assert_int_equal(count_records(CONTROL_UPDATE, "critic"), STEPS);
    assert_int_equal(count_records(CONTROL_VERDICT, "critic"), STEPS);
    assert_true(count_records(CONTROL_GATHER, "critic") >
                STEPS * model.micro_batches * SYNTHETIC_UNITS);
    assert_true(count_records(CONTROL_REDUCE, "critic") >
                STEPS * model.micro_batches * SYNTHETIC_UNITS);
}

/** An evaluation has a stretch and a line of metrics of its own, and is part of no step. */
static void an_evaluation_is_no_part_of_a_step(void **state)
{
    (void)state;
    struct control_status status;
    char number[16], line[3][512] = {""};
    FILE *metrics = tmpfile();
    assert_non_null(metrics);
    snprintf(number, sizeof number, "%d", fileno(metrics));
    setenv("ZERO_METRICS_FD", number, 1);
    make_segment(1, true);
    zero_ctx *z = open_context(NULL);
    unsetenv("ZERO_METRICS_FD");
    assert_int_equal(synthetic_commit(z, &model), ZERO_OK);
    const uint64_t began = base_clock_ns();
    assert_int_equal(synthetic_step(z, &model, 0), ZERO_OK);
    assert_int_equal(synthetic_evaluate(z, &model, 3), ZERO_OK);
    assert_true(control_status_read(&segment->ranks[0], &status));
    assert_int_equal(status.step, 1);
    assert_true(status.metrics[1].mean == 1.5); // of the step: the mean of 0 .. 3

    assert_int_equal(zero_eval_begin(z, 1), ZERO_OK);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    usleep(PAUSE_MS * 1000);
    assert_int_equal(zero_eval_end(z), ZERO_OK);
    assert_int_equal(synthetic_step(z, &model, 1), ZERO_OK);
    assert_true(control_status_read(&segment->ranks[0], &status));
    assert_true(status.step_ns > 0);
    assert_true(status.step_ns < base_clock_ns() - began - PAUSE_MS * UINT64_C(1000000));
    assert_true(status.gather_wait_ns + status.verdict_wait_ns <= status.step_ns);
    zero_close(z);
    assert_int_equal(count_records(CONTROL_EVALUATION, "main"), 2);

    rewind(metrics);
    for (int i = 0; i < 3; i++)
        assert_non_null(fgets(line[i], sizeof line[i], metrics));
    assert_non_null(strstr(line[0], "\"norm\":"));
    assert_null(strstr(line[0], "\"eval\":"));
    assert_ptr_equal(strstr(line[1], "{\"step\":1,\"updates\":1,\"eval\":3,\"loss\":"), line[1]);
    assert_non_null(strstr(line[1], ",\"index\":1}\n"));
    assert_string_equal(line[2], "{\"step\":1,\"updates\":1,\"eval\":1}\n");
    fclose(metrics);
}

/** Of several contexts the first that has finished a step reports, until it is closed. */
static void expect_reporter(const char *context, uint64_t step)
{
    struct control_status status;
    assert_true(control_status_read(&segment->ranks[0], &status));
    assert_string_equal(status.context, context);
    assert_int_equal(status.step, step);
}

static void contexts_of_a_process_share_its_area(void **state)
{
    (void)state;
    make_segment(1, false);
    zero_ctx *actor = open_context("actor"), *critic = open_context("critic");
    train(critic);
    train(actor);
    expect_reporter("critic", STEPS);
    zero_close(critic);
    if (synthetic_step(actor, &model, STEPS) != ZERO_OK)
        fail_msg("%s", zero_last_error(actor));
    expect_reporter("actor", STEPS + 1);
    zero_close(actor);
    assert_true(count_records(CONTROL_OPERATION, "critic") > STEPS);
    assert_true(count_records(CONTROL_OPERATION, "actor") >
                count_records(CONTROL_OPERATION, "critic"));
}

static void a_world_of_the_programs_own_is_not_watched(void **state)
{
    (void)state;
    struct control_status status;
    make_segment(2, true);
    zero_ctx *z = open_context(NULL);
    train(z);
    zero_close(z);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(control_newest(&segment->ranks[rank]), 0);
        assert_int_equal(control_pid(&segment->ranks[rank]), 0);
        assert_false(control_status_read(&segment->ranks[rank], &status));
    }
}

int main(void)
{
#define WITH_SEGMENT(test) cmocka_unit_test_teardown(test, free_segment)
    const struct CMUnitTest tests[] = {
        WITH_SEGMENT(a_wrong_descriptor_is_refused),
        WITH_SEGMENT(the_status_is_that_of_the_newest_step),
        WITH_SEGMENT(without_a_trace_there_are_operations_only),
        WITH_SEGMENT(a_trace_has_every_stretch),
        WITH_SEGMENT(an_evaluation_is_no_part_of_a_step),
        WITH_SEGMENT(contexts_of_a_process_share_its_area),
        WITH_SEGMENT(a_world_of_the_programs_own_is_not_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
