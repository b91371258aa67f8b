/** The order of calls on one rank: what is refused, what it says, and what it leaves behind. */
#include <zero/zero.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 6, NUMEL = 3000 };

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(first + i) * 1e-3f + (float)slice + (float)name[1];
    return ZERO_OK;
}

static void add_model(zero_ctx *z)
{
    static const char *const names[UNITS] = {"u0", "u1", "u2", "u3", "u4", "u5"};
    for (int u = 0; u < UNITS; u++) {
        zero_param_desc desc = zero_param_default();
        desc.name = names[u];
        desc.ndim = 1;
        desc.shape[0] = NUMEL;
        desc.unit = u;
        desc.fill = fill;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
}

static zero_ctx *open_stage(int stage, int micro_batches, zero_nonfinite policy)
{
    zero_config config = zero_config_default();
    config.stage = stage;
    config.world = 1;
    config.micro_batches = micro_batches;
    config.open_units = 2;
    config.grad_units = 2;
    config.nonfinite = policy;
    config.log_level = ZERO_OFF;
    zero_ctx *z = NULL;
    if (zero_open(&z, &config))
        fail_msg("%s", zero_last_error(NULL));
    add_model(z);
    if (zero_commit(z))
        fail_msg("%s", zero_last_error(z));
    return z;
}

static void says(const zero_ctx *z, const char *text)
{
    if (!strstr(zero_last_error(z), text))
        fail_msg("\"%s\" does not say \"%s\"", zero_last_error(z), text);
}

/** One micro-batch in which every gradient element is `value`. */
static void micro_batch(zero_ctx *z, int i, float value)
{
    assert_int_equal(zero_micro_begin(z, i, NULL), ZERO_OK);
    for (int u = 0; u < UNITS; u++) {
        assert_int_equal(zero_gather(z, u, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open(z, u, NULL), ZERO_OK);
        float *grad = zero_grad_ptr(z, u, 0);
        for (int k = 0; k < NUMEL; k++)
            grad[k] += value;
        assert_int_equal(zero_grad_done(z, u, NULL), ZERO_OK);
        assert_null(zero_grad_ptr(z, u, 0));
        assert_int_equal(zero_release(z, u, NULL), ZERO_OK);
    }
}

static zero_result step(zero_ctx *z, double max_norm)
{
    const zero_hyper hyper = {1e-3, 0.9, 0.999, 1e-8, 0.1};
    zero_step_args args = zero_step_args_default();
    args.hyper = &hyper;
    args.group_count = 1;
    args.scale = 0.5;
    args.max_norm = max_norm;
    return zero_step(z, &args, NULL);
}

static void calls_before_commit_are_refused(void **state)
{
    (void)state;
    zero_config config = zero_config_default();
    config.world = 1;
    config.log_level = ZERO_OFF;
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    assert_int_equal(zero_gather(z, 0, NULL), ZERO_E_STATE);
    says(z, "before zero_commit");
    assert_int_equal(zero_step_wait(z), ZERO_E_STATE);
    assert_null(zero_param_ptr(z, 0, 0));
    assert_string_equal(zero_plan_text(z), "");
    assert_int_equal(zero_commit(z), ZERO_E_INVALID);
    says(z, "no tensor");
    assert_int_equal(zero_commit(z), ZERO_E_INVALID);
    zero_close(z);
    zero_close(NULL);
}

static void first_values_are_the_fill(void **state)
{
    for (int stage = 0; stage <= 3; stage++) {
        (void)state;
        zero_ctx *z = open_stage(stage, 1, ZERO_NONFINITE_DEFAULT);
        for (int u = 0; u < UNITS; u++) {
            float expected[NUMEL];
            const char name[3] = {'u', (char)('0' + u), '\0'};
            fill(NULL, name, 0, 0, NUMEL, expected);
            if (stage == 3)
                assert_null(zero_param_ptr(z, u, 0));
            assert_int_equal(zero_gather(z, u, NULL), ZERO_OK);
            assert_memory_equal(zero_param_ptr(z, u, 0), expected, sizeof expected);
            assert_int_equal((uintptr_t)zero_param_ptr(z, u, 0) % 2048, 0);
            assert_int_equal(zero_release(z, u, NULL), ZERO_OK);
        }
        zero_close(z);
    }
}

static void calls_out_of_order_change_nothing(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(3, 2, ZERO_NONFINITE_DEFAULT);
    zero_step_result info = {.struct_size = sizeof info};
    assert_int_equal(zero_step_info(z, &info), ZERO_E_STATE);
    assert_int_equal(zero_micro_count(z), 2);
    assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_E_STATE);
    assert_int_equal(zero_micro_begin(z, 1, NULL), ZERO_E_STATE);
    assert_int_equal(zero_release(z, 0, NULL), ZERO_E_STATE);
    assert_int_equal(zero_gather(z, UNITS, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_gather(z, -1, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_gather(z, 0, &info), ZERO_E_INVALID);
    assert_int_equal(step(z, 0), ZERO_E_STATE);
    says(z, "0 of 2 micro-batches");

    micro_batch(z, 0, 1);
    assert_int_equal(step(z, 0), ZERO_E_STATE);
    assert_int_equal(zero_grad_open(z, 2, NULL), ZERO_E_STATE);
    says(z, "handed over already");
    assert_int_equal(zero_grad_done(z, 2, NULL), ZERO_E_STATE);
    micro_batch(z, 1, 1);
    assert_int_equal(zero_gather(z, 3, NULL), ZERO_OK);
    assert_int_equal(step(z, 0), ZERO_E_STATE);
    says(z, "unit 3 (u3) is gathered: zero_release() is due");
    assert_int_equal(zero_release(z, 3, NULL), ZERO_OK);
    assert_int_equal(step(z, 0), ZERO_OK);
    assert_int_equal(zero_step_wait(z), ZERO_OK);
    assert_int_equal(zero_step_info(z, &info), ZERO_OK);
    assert_int_equal(info.step, 1);
    assert_int_equal(info.updates, 1);
    const double expected = 0.5 * sqrt(UNITS * NUMEL * 4.0);
    assert_true(fabs(info.norm - expected) < 1e-9 * expected);
    zero_close(z);
}

static void a_missing_gradient_is_named(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(1, 1, ZERO_NONFINITE_DEFAULT);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    for (int u = 0; u < UNITS; u++) {
        if (u == 4)
            continue;
        assert_int_equal(zero_grad_open(z, u, NULL), ZERO_OK);
        assert_int_equal(zero_grad_done(z, u, NULL), ZERO_OK);
    }
    assert_int_equal(step(z, 0), ZERO_E_STATE);
    says(z, "unit 4");
    assert_int_equal(zero_grad_open(z, 4, NULL), ZERO_OK);
    assert_int_equal(step(z, 0), ZERO_E_STATE);
    says(z, "unit 4 (u4) is open: zero_grad_done() is due");
    assert_int_equal(zero_grad_done(z, 4, NULL), ZERO_OK);
    assert_int_equal(step(z, 0), ZERO_OK);
    zero_close(z);
}

static void limits_are_named_and_fatal(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(3, 1, ZERO_NONFINITE_DEFAULT);
    assert_int_equal(zero_gather(z, 1, NULL), ZERO_OK);
    assert_int_equal(zero_gather(z, 1, NULL), ZERO_OK);
    assert_int_equal(zero_gather(z, 4, NULL), ZERO_OK);
    assert_int_equal(zero_gather(z, 5, NULL), ZERO_E_LIMIT);
    says(z, "open_units");
    says(z, "unit 5 (u5): 2 units are gathered already: 1 (u1), 4 (u4)");
    says(z, "(2)");
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_E_LIMIT);
    float expected[NUMEL];
    fill(NULL, "u4", 0, 0, NUMEL, expected);
    assert_memory_equal(zero_param_ptr(z, 4, 0), expected, sizeof expected);
    const float *nowhere = zero_param_ptr(z, 5, 0);
    assert_non_null(nowhere);
    for (size_t i = 0; i < NUMEL; i++)
        assert_true(nowhere[i] == 0);
    assert_null(zero_param_ptr(z, UNITS, 0));
    zero_close(z);

    z = open_stage(2, 1, ZERO_NONFINITE_DEFAULT);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_grad_open(z, 1, NULL), ZERO_OK);
    assert_int_equal(zero_grad_open(z, 2, NULL), ZERO_E_LIMIT);
    says(z, "unit 2 (u2): 2 gradients are open already: 0 (u0), 1 (u1)");
    says(z, "grad_units (2)");
    zero_close(z);

    z = open_stage(2, 1, ZERO_NONFINITE_DEFAULT);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_grad_open(z, 1, NULL), ZERO_OK);
    assert_int_equal(zero_grad_none(z, 2, NULL), ZERO_E_LIMIT);
    zero_close(z);
}

/** Units below these limits are not counted. */
static void other_stages_have_no_limits(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++) {
        zero_ctx *z = open_stage(stage, 1, ZERO_NONFINITE_DEFAULT);
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
        for (int u = 0; u < UNITS; u++) {
            assert_int_equal(zero_gather(z, u, NULL), ZERO_OK);
            if (stage < 2)
                assert_int_equal(zero_grad_open(z, u, NULL), ZERO_OK);
        }
        for (int u = 0; u < UNITS; u++) {
            assert_int_equal(zero_release(z, u, NULL), ZERO_OK);
            assert_int_equal(stage < 2 ? zero_grad_done(z, u, NULL) : zero_grad_none(z, u, NULL),
                             ZERO_OK);
        }
        assert_int_equal(step(z, 0), ZERO_OK);
        zero_close(z);
    }
}

/** A missing gradient is one of zeros, and stands for the unit's only one. */
static void no_gradient_is_one_of_zeros(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        zero_ctx *z = open_stage(stage, 2, ZERO_NONFINITE_DEFAULT);
        assert_int_equal(zero_grad_none(z, 0, NULL), ZERO_E_STATE);
        says(z, "outside a micro-batch: zero_micro_begin() is due");
        micro_batch(z, 0, 1);
        assert_int_equal(zero_micro_begin(z, 1, NULL), ZERO_OK);
        for (int u = 0; u < UNITS; u++) {
            assert_int_equal(zero_grad_none(z, u, NULL), ZERO_OK);
            assert_null(zero_grad_ptr(z, u, 0));
            assert_int_equal(zero_grad_none(z, u, NULL), ZERO_E_STATE);
            says(z, "handed over already");
            assert_int_equal(zero_grad_open(z, u, NULL), ZERO_E_STATE);
        }
        double norm = 0;
        assert_int_equal(zero_grad_norm(z, 1, &norm), ZERO_OK);
        assert_true(fabs(norm - sqrt(UNITS * NUMEL)) < 1e-9 * norm);
        assert_int_equal(step(z, 0), ZERO_OK);
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_OK);
        assert_int_equal(zero_grad_none(z, 0, NULL), ZERO_E_STATE);
        says(z, "is open already");
        assert_int_equal(zero_grad_none(z, UNITS, NULL), ZERO_E_INVALID);
        zero_close(z);
    }
    assert_int_equal(zero_grad_none(NULL, 0, NULL), ZERO_E_INVALID);
}

static void arguments_of_a_step_are_checked(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(2, 1, ZERO_NONFINITE_DEFAULT);
    uint8_t before[16], after[16];
    assert_int_equal(zero_fingerprint(z, before), ZERO_OK);
    micro_batch(z, 0, 1);
    assert_int_equal(zero_fingerprint(z, after), ZERO_E_STATE);
    zero_hyper hyper = {NAN, 0.9, 0.999, 1e-8, 0};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    assert_int_equal(zero_step(z, &args, NULL), ZERO_E_INVALID);
    args.hyper = &hyper;
    assert_int_equal(zero_step(z, &args, NULL), ZERO_E_INVALID);
    says(z, "lr");
    hyper.lr = 1e-3;
    args.scale = INFINITY;
    assert_int_equal(zero_step(z, &args, NULL), ZERO_E_INVALID);
    args.scale = 1;
    args.max_norm = -1;
    assert_int_equal(zero_step(z, &args, NULL), ZERO_E_INVALID);
    args.max_norm = 0;
    args.group_count = 2;
    assert_int_equal(zero_step(z, &args, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_step(z, NULL, NULL), ZERO_E_INVALID);
    args.group_count = 1;
    double norm = 0;
    assert_int_equal(zero_grad_norm(z, -2, &norm), ZERO_OK);
    assert_true(fabs(norm - 2 * sqrt(UNITS * NUMEL)) < 1e-9 * norm);
    assert_int_equal(zero_step(z, &args, NULL), ZERO_OK);
    assert_int_equal(zero_fingerprint(z, after), ZERO_OK);
    assert_memory_not_equal(before, after, sizeof before);
    zero_close(z);
}

static void a_nonfinite_gradient_is_an_error_or_a_skip(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        zero_ctx *z = open_stage(stage, 2, ZERO_NONFINITE_ERROR);
        micro_batch(z, 0, 1);
        micro_batch(z, 1, INFINITY);
        assert_int_equal(step(z, 1), ZERO_E_NONFINITE);
        says(z, "u0, slice 0, element 0");
        says(z, "micro-batch 1");
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_E_NONFINITE);
        zero_step_result info = {.struct_size = sizeof info};
        assert_int_equal(zero_step_info(z, &info), ZERO_OK);
        assert_int_equal(info.bad_param, 0);
        assert_int_equal(info.bad_micro, 1);
        zero_close(z);

        z = open_stage(stage, 2, ZERO_NONFINITE_SKIP);
        float before[NUMEL];
        assert_int_equal(zero_gather(z, 0, NULL), ZERO_OK);
        memcpy(before, zero_param_ptr(z, 0, 0), sizeof before);
        assert_int_equal(zero_release(z, 0, NULL), ZERO_OK);
        micro_batch(z, 0, NAN);
        micro_batch(z, 1, 1);
        assert_int_equal(step(z, 1), ZERO_OK);
        assert_int_equal(zero_step_info(z, &info), ZERO_OK);
        assert_int_equal(info.skipped, 1);
        assert_int_equal(info.step, 1);
        assert_int_equal(info.updates, 0);
        assert_int_equal(zero_gather(z, 0, NULL), ZERO_OK);
        assert_memory_equal(zero_param_ptr(z, 0, 0), before, sizeof before);
        assert_int_equal(zero_release(z, 0, NULL), ZERO_OK);
        // The next step starts afresh.
        micro_batch(z, 0, 1);
        micro_batch(z, 1, 1);
        assert_int_equal(step(z, 1), ZERO_OK);
        assert_int_equal(zero_step_info(z, &info), ZERO_OK);
        assert_int_equal(info.skipped, 0);
        assert_int_equal(info.bad_param, -1);
        assert_int_equal(info.updates, 1);
        zero_close(z);
    }
}

/** Finite contributions whose sum is not: no tensor is to blame, nothing is updated. */
static void an_overflowing_sum_is_not_finite(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(2, 2, ZERO_NONFINITE_SKIP);
    micro_batch(z, 0, 3e38f);
    micro_batch(z, 1, 3e38f);
    assert_int_equal(step(z, 0), ZERO_OK);
    zero_step_result info = {.struct_size = sizeof info};
    assert_int_equal(zero_step_info(z, &info), ZERO_OK);
    assert_int_equal(info.skipped, 1);
    assert_int_equal(info.bad_param, -1);
    zero_close(z);
}

static void metrics_are_means_in_order(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(2, 2, ZERO_NONFINITE_DEFAULT);
    double mean = 0;
    assert_int_equal(zero_metric(z, "loss", 1), ZERO_E_STATE);
    assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_NOT_FOUND);
    micro_batch(z, 0, 1);
    assert_int_equal(zero_metric(z, "a b", 1), ZERO_E_INVALID);
    assert_int_equal(zero_metric(z, "loss", 1), ZERO_OK);
    assert_int_equal(zero_metric(z, "loss", 1), ZERO_E_STATE);
    assert_int_equal(zero_metric(z, "accuracy", 10), ZERO_OK);
    micro_batch(z, 1, 1);
    assert_int_equal(zero_metric(z, "accuracy", 1), ZERO_E_STATE);
    assert_int_equal(zero_metric(z, "loss", 2), ZERO_OK);
    float value = 20;
    assert_int_equal(zero_metric_from(z, "accuracy", NULL, NULL), ZERO_E_INVALID);
    says(z, "value is NULL");
    assert_int_equal(zero_metric_from(z, "accuracy", &value, &value), ZERO_E_INVALID);
    assert_int_equal(zero_metric_from(z, "", &value, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_metric_from(z, "accuracy", &value, NULL), ZERO_OK);
    value = 1; // it was read at once
    assert_int_equal(zero_metric(z, "more", 20), ZERO_E_STATE);
    assert_int_equal(step(z, 0), ZERO_OK);
    assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_OK);
    assert_true(mean == 1.5);
    assert_int_equal(zero_metric_mean(z, "accuracy", &mean), ZERO_OK);
    assert_true(mean == 15);
    assert_int_equal(zero_metric_mean(z, "more", &mean), ZERO_NOT_FOUND);
    zero_close(z);
}

/** One micro-batch of an evaluation. */
static void look(zero_ctx *z, int i, double value)
{
    assert_int_equal(zero_micro_begin(z, i, NULL), ZERO_OK);
    assert_int_equal(zero_gather(z, 3, NULL), ZERO_OK);
    assert_non_null(zero_param_ptr(z, 3, 0));
    assert_int_equal(zero_release(z, 3, NULL), ZERO_OK);
    assert_int_equal(zero_metric(z, "loss", value), ZERO_OK);
}

static void an_evaluation_begins_between_steps(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(3, 1, ZERO_NONFINITE_DEFAULT);
    assert_int_equal(zero_eval_end(z), ZERO_E_STATE);
    says(z, "without zero_eval_begin");
    assert_int_equal(zero_eval_begin(z, 0), ZERO_E_INVALID);
    assert_int_equal(zero_eval_begin(z, -1), ZERO_E_INVALID);
    assert_int_equal(zero_eval_begin(z, (1 << 20) + 1), ZERO_E_INVALID);
    says(z, "1 to 1048576");
    assert_int_equal(zero_gather(z, 2, NULL), ZERO_OK);
    assert_int_equal(zero_eval_begin(z, 2), ZERO_E_STATE);
    says(z, "unit 2 (u2) is gathered");
    assert_int_equal(zero_release(z, 2, NULL), ZERO_OK);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_eval_begin(z, 2), ZERO_E_STATE);
    says(z, "inside a step");
    assert_int_equal(zero_eval_end(z), ZERO_E_STATE);
    zero_close(z);
}

static void inside_an_evaluation_nothing_is_trained(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        zero_ctx *z = open_stage(stage, 1, ZERO_NONFINITE_DEFAULT);
        uint8_t before[16], after[16];
        double mean = 0;
        assert_int_equal(zero_fingerprint(z, before), ZERO_OK);
        assert_int_equal(zero_eval_begin(z, 3), ZERO_OK);
        assert_int_equal(zero_micro_count(z), 3);
        assert_int_equal(zero_metric(z, "loss", 1), ZERO_E_STATE);
        assert_int_equal(zero_eval_begin(z, 3), ZERO_E_STATE);
        says(z, "inside an evaluation");
        assert_int_equal(zero_eval_end(z), ZERO_E_STATE);
        says(z, "0 of 3");
        look(z, 0, 1);
        assert_int_equal(zero_eval_end(z), ZERO_E_STATE);
        says(z, "1 of 3");
        assert_int_equal(zero_grad_open(z, 3, NULL), ZERO_E_STATE);
        says(z, "in an evaluation");
        assert_int_equal(step(z, 0), ZERO_E_STATE);
        says(z, "inside an evaluation");
        assert_int_equal(zero_grad_norm(z, 1, &mean), ZERO_E_STATE);
        assert_int_equal(zero_fingerprint(z, after), ZERO_E_STATE);
        assert_int_equal(zero_export(z, "/nowhere"), ZERO_E_STATE);
        assert_int_equal(zero_import(z, "/nowhere", NULL), ZERO_E_STATE);
        assert_int_equal(zero_micro_begin(z, 2, NULL), ZERO_E_STATE);
        look(z, 1, 2);
        assert_int_equal(zero_micro_begin(z, 2, NULL), ZERO_OK);
        assert_int_equal(zero_eval_end(z), ZERO_E_STATE);
        says(z, "metric loss");
        assert_int_equal(zero_metric(z, "loss", 6), ZERO_OK);
        assert_int_equal(zero_micro_begin(z, 3, NULL), ZERO_E_STATE);
        assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_NOT_FOUND);
        assert_int_equal(zero_eval_end(z), ZERO_OK);
        assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_OK);
        assert_true(mean == 3);
        assert_int_equal(zero_micro_count(z), 1);
        assert_int_equal(zero_fingerprint(z, after), ZERO_OK);
        assert_memory_equal(before, after, sizeof before);
        micro_batch(z, 0, 1);
        assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_OK);
        assert_int_equal(step(z, 0), ZERO_OK);
        assert_int_equal(zero_metric_mean(z, "loss", &mean), ZERO_NOT_FOUND);
        zero_close(z);
    }
}

static void abort_is_sticky(void **state)
{
    (void)state;
    zero_ctx *z = open_stage(2, 1, ZERO_NONFINITE_DEFAULT);
    zero_abort(z, "the operator said so");
    assert_int_equal(zero_barrier(z), ZERO_E_ABORTED);
    says(z, "the operator said so");
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_E_ABORTED);
    zero_close(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_before_commit_are_refused),
        cmocka_unit_test(first_values_are_the_fill),
        cmocka_unit_test(calls_out_of_order_change_nothing),
        cmocka_unit_test(a_missing_gradient_is_named),
        cmocka_unit_test(limits_are_named_and_fatal),
        cmocka_unit_test(other_stages_have_no_limits),
        cmocka_unit_test(no_gradient_is_one_of_zeros),
        cmocka_unit_test(arguments_of_a_step_are_checked),
        cmocka_unit_test(a_nonfinite_gradient_is_an_error_or_a_skip),
        cmocka_unit_test(an_overflowing_sum_is_not_finite),
        cmocka_unit_test(metrics_are_means_in_order),
        cmocka_unit_test(an_evaluation_begins_between_steps),
        cmocka_unit_test(inside_an_evaluation_nothing_is_trained),
        cmocka_unit_test(abort_is_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
