/* paranoid=1: a program that touches what it may not touch is caught at every stage, one that is
 * right has the same bits. */
#include "tests/ranks/toy.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 3, UNIT = 4, PARAM = 6 /* "large": never resident as a whole */ };

struct job {
    struct toy toy;
    int stage;
    const char *gather, *reduction;
    zero_dtype comm_dtype;
    bool paranoid;
    uint8_t digest[MOST_RANKS][16];
};

/* ------------------------------------------------------------------ the right program */

/** What the plan says of windows. */
static size_t windows_bytes(const zero_ctx *z)
{
    const char *row = strstr(zero_plan_text(z), "\n  windows ");
    size_t bytes = SIZE_MAX;
    return row && sscanf(row, "%*s %*s %zu", &bytes) == 1 ? bytes : SIZE_MAX;
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.reduction = job->reduction;
    rank->config.comm_dtype = job->comm_dtype;
    rank->config.open_units = 1;
    rank->config.grad_units = 1;
    rank->config.paranoid = job->paranoid;
    if (!toy_open(rank, &job->toy))
        return false;
    // One unit and one gradient: five granules each, in whole pages.
    const struct toy_tensor *largest = &job->toy.tensors[PARAM];
    const size_t of_f32 = 20480, of_half = 12288;
    const size_t windows = (toy_dtype(&job->toy, largest) == ZERO_F32 ? of_f32 : of_half) +
                           (toy_grad_dtype(&job->toy, largest) == ZERO_F32 ? of_f32 : of_half);
    TEAM_CHECK(windows_bytes(rank->z) == (job->paranoid ? windows : 0));
    if (!toy_train(rank, &job->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    return true;
}

/** Trains with and without. */
static void compare(struct job *job, int world)
{
    static struct job plain;
    const char *transport = world % 2 ? team_threads(world) : "shm";
    struct job *paranoid = team_shared(sizeof *paranoid);
    assert_non_null(paranoid);
    plain = *job;
    assert_true(team_run(team_threads(world), world, train, &plain));
    *paranoid = *job;
    paranoid->paranoid = true;
    if (!team_run(transport, world, train, paranoid))
        fail_msg("%d ranks, stage %d, gather=%s, reduction=%s", world, job->stage,
                 job->gather ? job->gather : "auto", job->reduction ? job->reduction : "canonical");
    for (int r = 0; r < world; r++)
        assert_memory_equal(paranoid->digest[r], plain.digest[0], 16);
    team_shared_free(paranoid, sizeof *paranoid);
}

static void a_right_program_has_the_same_bits(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int way = 0; way < 4; way++) {
            const int world = 1 + (stage + way) % MOST_RANKS;
            struct job job = {.toy = toy_odd, .stage = stage};
            job.gather = way % 2 && stage > 0 ? "shared" : "copy";
            job.toy.dtype = way % 3 ? ZERO_BF16 : ZERO_F32;
            job.toy.grad_dtype = way == 1 ? ZERO_F32 : ZERO_DTYPE_DEFAULT;
            job.toy.raw = way / 2;
            // What travels is another buffer then, and has no window.
            job.comm_dtype = way == 1 ? ZERO_F32 : way == 3 ? ZERO_BF16 : ZERO_DTYPE_DEFAULT;
            compare(&job, world);
        }
}

static void so_it_has_where_micro_batches_are_added_up_first(void **state)
{
    (void)state;
    for (int raw = 0; raw < 2; raw++)
        for (int stage = 0; stage <= 1; stage++) {
            struct job job = {.toy = toy_odd, .stage = stage, .reduction = "native"};
            job.toy.raw = raw;
            job.toy.micro_batches = 4;
            compare(&job, 2);
        }
}

/* ------------------------------------------------------------------ wrong ones */

static volatile float sink;

static const float *weights(zero_ctx *z)
{
    return zero_param_ptr(z, PARAM, 0);
}

static bool gathered(zero_ctx *z)
{
    return zero_gather(z, UNIT, NULL) == ZERO_OK && weights(z);
}

static bool reads_after_release(zero_ctx *z)
{
    const float *w = gathered(z) ? weights(z) : NULL;
    if (!w || zero_release(z, UNIT, NULL) != ZERO_OK)
        return false;
    sink = w[0];
    return true;
}

static bool keeps_an_address(zero_ctx *z)
{
    const float *w = gathered(z) ? weights(z) : NULL;
    if (!w || zero_release(z, UNIT, NULL) != ZERO_OK || !gathered(z))
        return false;
    sink = w[4999];
    return true;
}

static bool writes_parameters(zero_ctx *z)
{
    float *w = gathered(z) ? (float *)(uintptr_t)weights(z) : NULL;
    if (!w)
        return false;
    w[17] = 1;
    return true;
}

static bool reads_behind_parameters(zero_ctx *z)
{
    if (!gathered(z))
        return false;
    sink = weights(z)[5 * 1024];
    return true;
}

static float *opened(zero_ctx *z, bool raw)
{
    const zero_result r = raw ? zero_grad_open_raw(z, UNIT, NULL) : zero_grad_open(z, UNIT, NULL);
    return r == ZERO_OK ? zero_grad_ptr(z, PARAM, 0) : NULL;
}

static bool writes_after_done(zero_ctx *z)
{
    float *gradient = zero_micro_begin(z, 0, NULL) == ZERO_OK ? opened(z, false) : NULL;
    if (!gradient || zero_grad_done(z, UNIT, NULL) != ZERO_OK)
        return false;
    gradient[1] = 1;
    return true;
}

static bool reads_a_closed_gradient(zero_ctx *z)
{
    float *gradient = zero_micro_begin(z, 0, NULL) == ZERO_OK ? opened(z, true) : NULL;
    if (!gradient || zero_grad_done(z, UNIT, NULL) != ZERO_OK)
        return false;
    sink = gradient[4999];
    return true;
}

static bool writes_behind_a_gradient(zero_ctx *z)
{
    float *gradient = zero_micro_begin(z, 0, NULL) == ZERO_OK ? opened(z, false) : NULL;
    if (!gradient)
        return false;
    gradient[5 * 1024] = 1;
    return true;
}

/** Runs it in a process of its own; the status wait() has, or -1. */
static int run_wrong(bool (*wrong)(zero_ctx *z), int stage, bool paranoid)
{
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); // a sanitizer's would make another status of it
        struct toy toy = toy_odd;
        struct team_rank rank = {.world = 1, .config = zero_config_default()};
        rank.config.world = 1;
        rank.config.stage = stage;
        rank.config.gather = stage % 2 ? "shared" : "copy";
        rank.config.paranoid = paranoid;
        _exit(toy_open(&rank, &toy) && wrong(rank.z) ? 0 : 1);
    }
    if (child > 0)
        waitpid(child, &status, 0);
    return status;
}

static void expect_fault(const char *name, bool (*wrong)(zero_ctx *z), int stage)
{
    const int status = run_wrong(wrong, stage, true);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        fail_msg("%s, stage %d: wait status 0x%x", name, stage, (unsigned)status);
}

static void a_wrong_program_faults(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool (*wrong)(zero_ctx *z);
    } programs[] = {
        {"reads after release", reads_after_release},
        {"keeps an address", keeps_an_address},
        {"writes parameters", writes_parameters},
        {"writes after done", writes_after_done},
        {"reads a closed gradient", reads_a_closed_gradient},
    };
    for (int stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            expect_fault(programs[i].name, programs[i].wrong, stage);
    // What makes it worth its while: at stage 0 nothing of it shows by itself.
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        assert_int_equal(run_wrong(programs[i].wrong, 0, false), 0);
}

/** Behind a window's last granule nothing is open, though other windows may follow. */
static void a_window_ends_with_its_unit(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        expect_fault("reads behind parameters", reads_behind_parameters, stage);
        expect_fault("writes behind a gradient", writes_behind_a_gradient, stage);
    }
}

/* ------------------------------------------------------------------ what needs no fault */

static zero_ctx *open_paranoid(struct team_rank *rank, int stage)
{
    *rank = (struct team_rank){.world = 1, .config = zero_config_default()};
    rank->config.world = 1;
    rank->config.stage = stage;
    rank->config.paranoid = 1;
    rank->config.open_units = 2;
    rank->config.grad_units = 2;
    rank->config.log_level = ZERO_OFF;
    struct toy toy = toy_odd;
    toy.micro_batches = 1;
    assert_true(toy_open(rank, &toy));
    return rank->z;
}

static void addresses_are_given_as_at_stage_3(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct team_rank rank;
        zero_ctx *z = open_paranoid(&rank, stage);
        assert_null(weights(z));
        assert_non_null(zero_param_ptr(z, 0, 0)); // the scalar: it is resident
        const float *seen[4];
        for (int turn = 0; turn < 4; turn++) {
            assert_true(gathered(z));
            seen[turn] = weights(z);
            assert_int_equal((uintptr_t)seen[turn] % 2048, 0);
            for (int before = 0; before < turn; before++)
                assert_ptr_not_equal(seen[turn], seen[before]);
            for (uint64_t k = 0; k < 5000; k++)
                assert_true(seen[turn][k] == toy_value(&toy_odd, "large", 0, k));
            assert_int_equal(zero_gather(z, UNIT, NULL), ZERO_OK); // the same window
            assert_ptr_equal(weights(z), seen[turn]);
            assert_int_equal(zero_release(z, UNIT, NULL), ZERO_OK);
            sink = seen[turn][4999];
            assert_int_equal(zero_release(z, UNIT, NULL), ZERO_OK);
            assert_null(weights(z));
        }
        zero_close(z);
    }
}

static void limits_hold_at_every_stage(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct team_rank rank;
        zero_ctx *z = open_paranoid(&rank, stage);
        assert_int_equal(zero_gather(z, 1, NULL), ZERO_OK);
        assert_int_equal(zero_gather(z, 4, NULL), ZERO_OK);
        assert_int_equal(zero_gather(z, 2, NULL), ZERO_E_LIMIT);
        assert_non_null(strstr(zero_last_error(z), "open_units"));
        sink = weights(z)[0]; // what was given out stays
        zero_close(z);

        z = open_paranoid(&rank, stage);
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open(z, 1, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open(z, 4, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open(z, 2, NULL), ZERO_E_LIMIT);
        assert_non_null(strstr(zero_last_error(z), "grad_units"));
        zero_close(z);
    }
}

/** A raw gradient of which one element is left as it is. */
static void what_a_raw_gradient_leaves_out_is_named(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct team_rank rank;
        zero_ctx *z = open_paranoid(&rank, stage);
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
        for (zero_unit u = 0; u < toy_odd.unit_count; u++) {
            if (u != UNIT) {
                assert_int_equal(zero_grad_open(z, u, NULL), ZERO_OK);
            } else {
                float *gradient = opened(z, true);
                for (int k = 0; k < 5000; k++)
                    if (k != 4321)
                        gradient[k] = 0.5f;
            }
            assert_int_equal(zero_grad_done(z, u, NULL), ZERO_OK);
        }
        struct toy toy = toy_odd;
        toy.micro_batches = 1;
        assert_int_equal(toy_update(&rank, &toy), ZERO_E_NONFINITE);
        assert_non_null(strstr(zero_last_error(z), "large, slice 0, element 4321"));
        zero_close(z);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_program_has_the_same_bits),
        cmocka_unit_test(so_it_has_where_micro_batches_are_added_up_first),
        cmocka_unit_test(a_wrong_program_faults),
        cmocka_unit_test(a_window_ends_with_its_unit),
        cmocka_unit_test(addresses_are_given_as_at_stage_3),
        cmocka_unit_test(limits_hold_at_every_stage),
        cmocka_unit_test(what_a_raw_gradient_leaves_out_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
