// First values that are not the same on all ranks: zero_commit() says where, on every rank.
#include "base/bfloat16.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NUMEL = 20000, SLICES = 2, MOST_RANKS = 5, EVERY_RANK = -1 };

static struct temporary directory;

// What a callback keeps between calls: nothing, a number that it counts on with each element, or
// one that it begins again with each slice.
enum state { PURE, COUNTED, BEGUN };

struct job {
    int32_t stage;
    enum state state;
    int odd;          // the rank that gives another value of
    const char *name; // this tensor
    int32_t slice;
    uint64_t element;
    bool whole;  // and of all its other elements
    bool nan;    // a NaN with other bits
    bool half;   // "stacked" is f16
    float value; // of the element, if it is not 0
    bool frozen, borrow, nvme, paranoid, missing, fails;
    zero_dtype dtype;
    const char *message;
    zero_result result;
};

// What a rank's callback is given.
struct giver {
    const struct job *job;
    int rank;
    uint64_t count; // the state
    int warnings;   // about an element
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    struct giver *giver = user;
    const struct job *job = giver->job;
    const bool odd =
        (giver->rank == job->odd || job->odd == EVERY_RANK) && !strcmp(name, job->name);
    if (odd && job->fails)
        return ZERO_E_IO;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t e = first + i;
        out[i] = 0.25F * (float)(e % 7) + (float)slice;
        if (job->state == BEGUN && e == 0)
            giver->count = 0;
        if (job->state != PURE)
            out[i] = (float)giver->count++;
        if (odd && slice == job->slice && (job->whole || e == job->element))
            out[i] = job->nan             ? base_f32_from_bits(0x7fc00000U + (uint32_t)giver->rank)
                     : job->value != 0.0F ? job->value
                                          : 100.0F + (float)giver->rank;
    }
    return ZERO_OK;
}

// A tensor with `data`, which is of its type.
static void *data_of(struct giver *giver, const struct job *job, int32_t slices)
{
    const size_t size = job->dtype == ZERO_F32 ? 4 : 2;
    unsigned char *data = calloc((size_t)slices * NUMEL, size);
    float value;
    for (int32_t s = 0; data && s < slices; s++)
        for (uint64_t e = 0; e < NUMEL; e++) {
            fill(giver, "data", s, e, 1, &value);
            const size_t at = (size_t)s * NUMEL + e;
            const uint16_t half = base_bf16_from_f32(value);
            memcpy(data + at * size, size == 4 ? (void *)&value : (void *)&half, size);
        }
    return data;
}

static bool add(struct team_rank *rank, const struct job *job, struct giver *giver, void *data)
{
    zero_param_desc desc = zero_param_default();
    desc.ndim = 1;
    desc.shape[0] = NUMEL;
    desc.name = "filled";
    desc.fill = fill;
    desc.fill_user = giver;
    desc.frozen = job->frozen;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    desc.name = "stacked";
    desc.frozen = 0;
    desc.ndim = 2;
    desc.shape[0] = SLICES;
    desc.shape[1] = NUMEL;
    desc.unit = 1;
    desc.unit_count = SLICES;
    desc.dtype = job->half ? ZERO_F16 : ZERO_F32;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    desc = zero_param_default();
    desc.name = "data";
    desc.ndim = 1;
    desc.shape[0] = NUMEL;
    desc.dtype = job->dtype;
    desc.data = job->missing && rank->rank == job->odd ? NULL : data;
    desc.borrow = job->borrow ? data : NULL;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    return true;
}

static bool open_and_add(struct team_rank *rank, const struct job *job, struct giver *giver,
                         void *data)
{
    rank->config.stage = job->stage;
    rank->config.paranoid = job->paranoid;
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.io = "sync";
    }
    return team_open(rank) && add(rank, job, giver, data);
}

static bool refused(struct team_rank *rank, const struct job *job, struct giver *giver, void *data)
{
    if (!open_and_add(rank, job, giver, data))
        return false;
    const zero_result r = zero_commit(rank->z);
    if (r != job->result || !strstr(zero_last_error(rank->z), job->message))
        fprintf(stderr, "rank %d: %d, \"%s\" instead of \"%s\"\n", rank->rank, (int)r,
                zero_last_error(rank->z), job->message);
    TEAM_CHECK(r == job->result);
    TEAM_CHECK(strstr(zero_last_error(rank->z), job->message));
    TEAM_CHECK(zero_barrier(rank->z) == job->result);
    return true;
}

static bool taken(struct team_rank *rank, const struct job *job, struct giver *giver, void *data)
{
    uint8_t digest[16];
    if (!open_and_add(rank, job, giver, data))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    return true;
}

static bool with_data(struct team_rank *rank, const struct job *job,
                      bool (*commit)(struct team_rank *, const struct job *, struct giver *,
                                     void *))
{
    struct giver giver = {job, rank->rank, 0, 0};
    void *data = data_of(&giver, job, 1);
    const bool good = data && commit(rank, job, &giver, data);
    team_close(rank);
    free(data);
    return good;
}

static bool is_refused(struct team_rank *rank, void *user)
{
    return with_data(rank, user, refused);
}

static bool is_taken(struct team_rank *rank, void *user)
{
    return with_data(rank, user, taken);
}

static struct job job_of(const char *name, uint64_t element, const char *message)
{
    return (struct job){
        .odd = 1,
        .name = name,
        .element = element,
        .dtype = ZERO_F32,
        .result = ZERO_E_DIVERGED,
        .message = message,
    };
}

static void everywhere(const struct job *job, team_fn fn)
{
    for (int world = 2; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct job one = *job;
            one.stage = stage;
            one.odd = job->odd == MOST_RANKS ? world - 1 : job->odd;
            if (!test_takes(world + stage) || (job->borrow && stage == 3))
                continue;
            if (!team_run("threads", world, fn, &one))
                fail_msg("%s, world %d, stage %d", job->name, world, stage);
        }
}

static void of_one_element(void **state)
{
    (void)state;
    struct job job = job_of("filled", 0,
                            "ranks give different first values of tensor filled, slice 0, element "
                            "0: rank 0 0, rank 1 101; `data`");
    everywhere(&job, is_refused);
    job.frozen = true;
    everywhere(&job, is_refused);
    job.nvme = true;
    job.frozen = false;
    everywhere(&job, is_refused);
    job = job_of("stacked", NUMEL - 1, "tensor stacked, slice 1, element 19999: rank 0 1");
    job.slice = 1;
    job.odd = MOST_RANKS;
    everywhere(&job, is_refused);
    assert_int_equal(temporary_entries(&directory), 0);
}

static void of_a_whole_tensor(void **state)
{
    (void)state;
    struct job job = job_of("stacked", 0, "tensor stacked, slice 0, element 0: rank 0 0, rank 1 ");
    job.whole = true;
    everywhere(&job, is_refused);
    job.name = "data";
    job.message = "tensor data, slice 0, element 0: rank 0 0, rank 1 101";
    everywhere(&job, is_refused);
    job.dtype = ZERO_BF16;
    everywhere(&job, is_refused);
    job.dtype = ZERO_F32;
    job.borrow = true;
    everywhere(&job, is_refused);
}

// fp32 keeps the bits of a NaN, and the fingerprint is made of them.
static void of_a_nan(void **state)
{
    (void)state;
    struct job job = job_of("filled", 3,
                            "tensor filled, slice 0, element 3: rank 0 0.75, rank 1 "
                            "NaN (0x7fc00001)");
    job.nan = true;
    everywhere(&job, is_refused);
    job.odd = EVERY_RANK;
    job.message = "element 3: rank 0 NaN (0x7fc00000), rank 1 NaN (0x7fc00001)";
    everywhere(&job, is_refused);
}

static void of_a_value_beyond_the_type(void **state)
{
    (void)state;
    struct job job = job_of("stacked", 77,
                            "first values: fill: slice 1, element 77 of tensor "
                            "stacked is 1e+06, and the largest f16 is 65504");
    job.slice = 1;
    job.odd = EVERY_RANK;
    job.half = true;
    job.value = 1e6F;
    job.result = ZERO_E_INVALID;
    if (!team_run("self", 1, is_refused, &job))
        fail_msg("at one rank");
}

static void count_warning(void *user, zero_log_level level, const char *component,
                          const char *message)
{
    struct giver *giver = user;
    (void)component;
    giver->warnings += level == ZERO_LOG_WARN && strstr(message, giver->job->message);
}

static bool warns(struct team_rank *rank, const struct job *job, struct giver *giver, void *data)
{
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = count_warning;
    rank->config.log_user = giver;
    if (!taken(rank, job, giver, data))
        return false;
    static int told[MOST_RANKS];
    int all = 0;
    told[rank->rank] = giver->warnings;
    TEAM_OK(rank, zero_barrier(rank->z));
    for (int i = 0; i < rank->world; i++)
        all += told[i];
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(all == 1);
    return true;
}

static bool is_warned_of(struct team_rank *rank, void *user)
{
    return with_data(rank, user, warns);
}

// By the rank that owns it, once.
static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    struct job job = job_of("stacked", 77, "slice 1, element 77 of tensor stacked is ");
    job.slice = 1;
    job.odd = EVERY_RANK;
    job.value = INFINITY;
    everywhere(&job, is_warned_of);
    job.value = NAN;
    job.nvme = true;
    everywhere(&job, is_warned_of);
}

// NULL counts as zeros.
static void of_data_that_some_have(void **state)
{
    (void)state;
    struct job job = job_of("none", 0, "tensor data, slice 0, element 1: rank 0 0.25, rank 1 0;");
    job.missing = true;
    everywhere(&job, is_refused);
}

// One element in the middle is seen if all are compared.
static void of_what_no_sample_has(void **state)
{
    (void)state;
    struct job job = job_of("filled", 7777, "tensor filled, slice 0, element 7777: rank 0 0, ");
    job.paranoid = true;
    everywhere(&job, is_refused);
}

static void of_a_callback_that_fails(void **state)
{
    (void)state;
    struct job job = job_of("stacked", 0, "the fill callback of stacked failed at slice 0");
    job.fails = true;
    job.result = ZERO_E_IO;
    everywhere(&job, is_refused);
}

// All ranks ask in the same order, and get the same. At one rank it is refused as at many.
static void of_a_callback_with_a_state(void **state)
{
    (void)state;
    const enum state states[] = {COUNTED, BEGUN};
    struct job job = job_of("none", 0, "first values: ");
    job.result = ZERO_E_INVALID;
    for (int i = 0; i < 4; i++) {
        job.state = states[i / 2];
        job.paranoid = i % 2 != 0;
        job.message = "fill of filled gave ";
        everywhere(&job, is_refused);
        if (!team_run("threads", 1, is_refused, &job))
            fail_msg("state %d at one rank", (int)job.state);
        job.message = ": it has to be a pure function of name, slice and element";
        if (!team_run("threads", 2, is_refused, &job))
            fail_msg("state %d at two ranks", (int)job.state);
    }
}

static void the_same_is_taken(void **state)
{
    (void)state;
    struct job job = job_of("none", 0, "");
    everywhere(&job, is_taken);
    job.paranoid = true;
    everywhere(&job, is_taken);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_one_element),
        cmocka_unit_test(of_a_whole_tensor),
        cmocka_unit_test(of_data_that_some_have),
        cmocka_unit_test(of_what_no_sample_has),
        cmocka_unit_test(of_a_callback_that_fails),
        cmocka_unit_test(of_a_callback_with_a_state),
        cmocka_unit_test(of_a_nan),
        cmocka_unit_test(of_a_value_beyond_the_type),
        cmocka_unit_test(what_is_not_finite_is_told),
        cmocka_unit_test(the_same_is_taken),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
