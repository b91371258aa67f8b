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
    // What persists, a page each; one unit and one gradient: five granules each, in whole pages.
    const struct toy_tensor *largest = &job->toy.tensors[PARAM];
    const size_t of_f32 = 20480, of_half = 12288, persistent = 5 * 4096;
    const size_t windows = persistent +
                           (toy_dtype(&job->toy, largest) == ZERO_F32 ? of_f32 : of_half) +
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
            job.gather = way % 2 && stage > 0 ? "shared" : stage == 3 ? "slots" : "copy";
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
            struct job job = {.toy = toy_odd, .stage = stage, .reduction = "local"};
            job.toy.raw = raw;
            job.toy.micro_batches = 4;
            compare(&job, 2);
        }
}

/* ------------------------------------------------------------------ wrong ones */

static volatile float sink;
static char said[4096];

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

/* A stacked tensor as a trainer's loop over layers has it: three slices of 1,500 elements from unit
 * 1 on, beside two that persist. */
enum { STACKED = 8, FIRST_UNIT = 1, SLICE = 1500, BELOW = 2, BELOW_SIZE = 1023 };

static bool adds_to_a_slice(zero_ctx *z)
{
    const float *w = zero_gather(z, FIRST_UNIT + 1, NULL) ? NULL : zero_param_ptr(z, STACKED, 1);
    sink = w ? w[1 * SLICE + SLICE - 1] : 0;
    return w != NULL;
}

static bool adds_twice_to_a_slice(zero_ctx *z)
{
    const float *w = zero_gather(z, FIRST_UNIT + 2, NULL) ? NULL : zero_param_ptr(z, STACKED, 2);
    sink = w ? w[2 * SLICE + SLICE - 1] : 0;
    return w != NULL;
}

static bool adds_nothing_to_a_base(zero_ctx *z)
{
    const float *w = zero_gather(z, FIRST_UNIT + 2, NULL) ? NULL : zero_param_base(z, STACKED, 2);
    sink = w ? w[0] : 0;
    return w != NULL;
}

static bool adds_to_a_gradient(zero_ctx *z)
{
    float *g = zero_micro_begin(z, 0, NULL) || zero_grad_open(z, FIRST_UNIT + 1, NULL)
                   ? NULL
                   : zero_grad_ptr(z, STACKED, 1);
    if (g)
        g[SLICE + SLICE - 1] += 1;
    return g != NULL;
}

static bool reads_behind_what_persists(zero_ctx *z)
{
    const float *w = zero_param_ptr(z, BELOW, 0);
    sink = w[BELOW_SIZE + 1];
    return true;
}

static bool writes_what_persists(zero_ctx *z)
{
    ((float *)(uintptr_t)zero_param_ptr(z, BELOW, 0))[3] = 1;
    return true;
}

/** Runs it in a process of its own; the status wait() has, or -1. What it says is in `said`. */
static int run_wrong(bool (*wrong)(zero_ctx *z), int stage, bool paranoid)
{
    int status = -1, ends[2];
    memset(said, 0, sizeof said);
    fflush(NULL);
    if (pipe(ends))
        return -1;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); // a sanitizer's would make another status of it
        dup2(ends[1], STDERR_FILENO);
        struct toy toy = toy_odd;
        struct team_rank rank = {.world = 1, .config = zero_config_default()};
        rank.config.world = 1;
        rank.config.stage = stage;
        rank.config.gather = stage % 2 ? "shared" : "copy";
        rank.config.paranoid = paranoid;
        _exit(toy_open(&rank, &toy) && wrong(rank.z) ? 0 : 1);
    }
    close(ends[1]);
    for (size_t had = 0, more = 1; child > 0 && more > 0 && had < sizeof said - 1; had += more) {
        const ssize_t got = read(ends[0], said + had, sizeof said - 1 - had);
        more = got > 0 ? (size_t)got : 0;
    }
    close(ends[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    return status;
}

static void expect_fault(const char *name, bool (*wrong)(zero_ctx *z), int stage, const char *says)
{
    const int status = run_wrong(wrong, stage, true);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        fail_msg("%s, stage %d: wait status 0x%x", name, stage, (unsigned)status);
    if (!strstr(said, "zero: paranoid: rank 0: ") || !strstr(said, says))
        fail_msg("%s, stage %d, does not say \"%s\" but: %s", name, stage, says, said);
}

static void a_wrong_program_faults(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool (*wrong)(zero_ctx *z);
        const char *says;
    } programs[] = {
        {"reads after release", reads_after_release, "weights of tensor large, slice 0 of 1"},
        {"keeps an address", keeps_an_address, "an earlier time"},
        {"writes parameters", writes_parameters, "written, and weights are read-only"},
        {"writes after done", writes_after_done, "the gradient of tensor large, slice 0 of 1"},
        {"reads a closed gradient", reads_a_closed_gradient, "its gradient is not open"},
        {"adds to a slice", adds_to_a_slice, "element 2999 was touched, and it has 1500: the next"},
        {"adds twice", adds_twice_to_a_slice, "tensor stacked, slice 2 of 3, unit 3"},
        {"adds nothing to a base", adds_nothing_to_a_base, "3000 elements before it was touched"},
        {"adds to a gradient", adds_to_a_gradient, "the gradient of tensor stacked, slice 1 of 3"},
        {"reads behind what persists", reads_behind_what_persists, "element 1024 was touched"},
        {"writes what persists", writes_what_persists, "tensor below, slice 0 of 1, unit 1"},
    };
    for (int stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            expect_fault(programs[i].name, programs[i].wrong, stage, programs[i].says);
    // What makes it worth its while: at stage 0 nothing of it shows by itself.
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        assert_int_equal(run_wrong(programs[i].wrong, 0, false), 0);
}

/** Behind a window's last granule nothing is open, though other windows may follow. */
static void a_window_ends_with_its_unit(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        expect_fault("reads behind parameters", reads_behind_parameters, stage, "5120");
        expect_fault("writes behind a gradient", writes_behind_a_gradient, stage,
                     "and it has 5000");
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
            assert_int_equal((uintptr_t)seen[turn] % 64, 0);
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

/** A page is the least that can fault: what is added within one, beside a slice, is found when the
 * gradient is handed over; weights there are no numbers. */
static void what_lies_beside_a_slice_is_no_value(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int behind = 0; behind < 2; behind++) {
            struct team_rank rank;
            zero_ctx *z = open_paranoid(&rank, stage);
            const float *seven = zero_param_ptr(z, 1, 0);
            assert_true(seven[behind ? 7 : -1] != seven[behind ? 7 : -1]);
            assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
            assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_OK);
            ((float *)zero_grad_ptr(z, 1, 0))[behind ? 7 : -1] += 1;
            assert_int_equal(zero_grad_done(z, 0, NULL), ZERO_E_CORRUPT);
            assert_non_null(
                strstr(zero_last_error(z), behind ? "written behind" : "written before"));
            assert_non_null(strstr(zero_last_error(z), "tensor seven, slice 0"));
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
        cmocka_unit_test(what_lies_beside_a_slice_is_no_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
