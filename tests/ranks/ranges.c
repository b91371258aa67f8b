// Values that a tensor of 16 bits cannot hold: the program is told which one it is, on every rank,
// and nothing has changed.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include "checkpoint/safetensors/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ELEMENTS = 5000, PLACE = 3210 };

static struct temporary directory;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) && temporary_folder(&directory, "state") ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

/** One value among zeros, and what becomes of it. */
struct job {
    zero_dtype dtype;
    float value;
    bool refused, frozen, nvme, no_masters;
    int stage;
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    const struct job *job = user;
    (void)name;
    (void)slice;
    for (uint64_t i = 0; i < count; i++)
        out[i] = job && first + i == PLACE ? job->value : 0;
    return ZERO_OK;
}

/** "scale" trains and is f32, "w" is what the job says. */
static bool register_model(struct team_rank *rank, const struct job *job, const struct job *filled)
{
    rank->config.stage = job->stage;
    rank->config.micro_batches = 2;
    rank->config.loss_scale = "off"; // f16 has one by default
    rank->config.master = job->no_masters ? "none" : NULL;
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = temporary_path(&directory, "state");
        rank->config.io = "threads";
    }
    if (!team_open(rank))
        return false;
    zero_param_desc scale = zero_param_vector("scale", ELEMENTS, NULL);
    zero_param_desc w = zero_param_vector("w", ELEMENTS, NULL);
    w.dtype = job->dtype;
    w.frozen = job->frozen;
    w.fill = fill;
    w.fill_user = (void *)(uintptr_t)filled;
    if (!job->no_masters)
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &scale));
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &w));
    return true;
}

static bool is_said(const struct team_rank *rank, const struct job *job)
{
    const char *message = zero_last_error(rank->z);
    if (!strstr(message, ": slice 0, element 3210 of tensor w is"))
        fprintf(stderr, "%s\n", message);
    TEAM_CHECK(strstr(message, ": slice 0, element 3210 of tensor w is"));
    TEAM_CHECK(strstr(message, job->dtype == ZERO_F16 ? "the largest f16 is 65504"
                                                      : "the largest bf16 is 3.38953e+38"));
    return true;
}

static bool fills(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!register_model(rank, job, job))
        return false;
    const zero_result r = zero_commit(rank->z);
    TEAM_CHECK(r == (job->refused ? ZERO_E_INVALID : ZERO_OK));
    return r == ZERO_OK || is_said(rank, job);
}

/** The call has failed as it is to, and nothing else has happened; or it has not. */
static bool ends(struct team_rank *rank, const struct job *job, zero_result r,
                 const uint8_t before[16])
{
    if (r != (job->refused ? ZERO_E_INVALID : ZERO_OK))
        fprintf(stderr, "%g: %d, %s\n", (double)job->value, r, zero_last_error(rank->z));
    TEAM_CHECK(r == (job->refused ? ZERO_E_INVALID : ZERO_OK));
    if (r && !is_said(rank, job))
        return false;
    if (r)
        TEAM_STATE(rank, before);
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}

static bool writes(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    float values[3] = {1, 2, 3};
    uint8_t before[16];
    if (!register_model(rank, job, NULL))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    values[1] = job->value;
    const zero_param w = job->no_masters ? 0 : 1;
    return ends(rank, job, zero_param_write(rank->z, w, 0, PLACE - 1, 3, values), before);
}

static bool imports(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    uint8_t before[16];
    if (!register_model(rank, job, NULL))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    return ends(rank, job, zero_import(rank->z, temporary_path(&directory, "weights"), NULL),
                before);
}

static void write_weights(float value)
{
    static float values[ELEMENTS];
    const struct ckpt_tensor table[] = {
        {.name = "scale", .dtype = CKPT_F32, .ndim = 1, .shape = {ELEMENTS}},
        {.name = "w", .dtype = CKPT_F32, .ndim = 1, .shape = {ELEMENTS}},
    };
    struct ckpt_safetensors_writer *writer;
    const char *path = temporary_path(&directory, "weights");
    assert_int_equal(ckpt_safetensors_create(&writer, path, table, 2, NULL, NULL), ZERO_OK);
    for (size_t t = 0; t < 2; t++) {
        values[PLACE] = t == 1 ? value : 1;
        assert_int_equal(ckpt_safetensors_write(writer, t, 0, ELEMENTS, values, NULL), ZERO_OK);
    }
    assert_int_equal(ckpt_safetensors_finish(writer, NULL), ZERO_OK);
}

static const struct job jobs[] = {
    {.dtype = ZERO_F16, .value = 1e6f, .refused = true},
    {.dtype = ZERO_F16, .value = -1e6f, .refused = true, .stage = 3},
    {.dtype = ZERO_F16, .value = 65520, .refused = true, .stage = 1},
    {.dtype = ZERO_F16, .value = 65519, .stage = 2},
    {.dtype = ZERO_F16, .value = INFINITY, .stage = 1},
    {.dtype = ZERO_F16, .value = NAN},
    {.dtype = ZERO_F16, .value = 1e6f, .refused = true, .frozen = true, .stage = 2},
    {.dtype = ZERO_F16, .value = 1e6f, .refused = true, .nvme = true, .stage = 2},
    {.dtype = ZERO_F16, .value = 1e6f, .refused = true, .no_masters = true, .stage = 3},
    {.dtype = ZERO_BF16, .value = 0x1.ffp127f, .refused = true},
    {.dtype = ZERO_BF16, .value = -0x1.fffffep127f, .refused = true, .frozen = true},
    {.dtype = ZERO_BF16, .value = 0x1.fefffep127f, .stage = 3},
    {.dtype = ZERO_F32, .value = 0x1.fffffep127f},
};

enum { JOBS = sizeof jobs / sizeof *jobs };

static void each_job(team_fn fn)
{
    for (int i = 0; i < JOBS; i++) {
        struct job job = jobs[i];
        const int world = 1 + i % 3;
        write_weights(job.value);
        if (!team_run(team_threads(world), world, fn, &job))
            fail_msg("job %d, %g, on %d ranks", i, (double)job.value, world);
    }
}

static void of_first_values(void **state)
{
    (void)state;
    each_job(fills);
}

static void of_what_is_written(void **state)
{
    (void)state;
    each_job(writes);
}

static void of_a_file(void **state)
{
    (void)state;
    each_job(imports);
}

/* ------------------------------------------------------------------ checkpoints */

static bool saves(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct job wide = {.dtype = ZERO_F32};
    if (!register_model(rank, &wide, job))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    return saved_now(rank, temporary_path(&directory, "saved"), NULL);
}

static bool loads(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const char *saved = temporary_path(&directory, "saved");
    char path[SAVED_PATH];
    uint8_t before[16];
    saved_path(path, saved, 0);
    if (!register_model(rank, job, NULL))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    return ends(rank, job, zero_load(rank->z, path, NULL, NULL), before) &&
           ends(rank, job, zero_resume(rank->z, saved, NULL, NULL), before);
}

/** One of another working copy. */
static void of_a_checkpoint(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        struct job job = jobs[i];
        if (job.frozen || job.no_masters) // another model
            continue;
        const char *saved = temporary_path(&directory, "saved");
        assert_true(temporary_folder(&directory, "saved") || temporary_empty(saved));
        assert_true(team_run(team_threads(2), 2, saves, &job));
        const int world = 1 + i % 3;
        if (!team_run(team_threads(world), world, loads, &job))
            fail_msg("job %d, %g, on %d ranks", i, (double)job.value, world);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(of_first_values),
        TEST(of_what_is_written),
        TEST(of_a_file),
        TEST(of_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
