/* reduction=local: each rank adds up its own micro-batches. The bits are the same at one world
 * size, and those of the canonical order where no rank has more than one. */
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, STEPS = 4, UNITS = 5 };

struct job {
    struct toy toy;
    int stage, grad_units;
    zero_dtype comm_dtype;
    const char *reduction;
    bool files; /**< state and sums are in files */
    uint8_t digest[MOST_RANKS][16];
    double sum[UNITS]; /**< of the units' weights at the end, as rank 0 sees them */
};

static struct temporary directory; // of files

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.reduction = job->reduction;
    rank->config.grad_units = job->grad_units;
    rank->config.comm_dtype = job->comm_dtype;
    if (job->files) {
        rank->config.offload_optimizer = rank->config.offload_grads = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = 65536;
    }
    return toy_open(rank, &job->toy);
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_job(rank, job) || !toy_train(rank, &job->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        if (rank->rank == 0)
            job->sum[unit] = toy_unit_sum(rank, &job->toy, unit);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    const bool local = job->reduction && strcmp(job->reduction, "local") == 0;
    TEAM_CHECK(!strstr(zero_plan_text(rank->z), "reduction    local") == !local);
    return true;
}

/** Trains; every rank must have the same fingerprint. */
static struct job trained(const struct job *like, const char *transport, int world)
{
    struct job *job = team_shared(sizeof *job);
    *job = *like;
    if (!team_run(transport, world, train, job))
        fail_msg("%s, %d ranks, stage %d, V %d%s", transport, world, job->stage,
                 job->toy.micro_batches, job->files ? ", sums in files" : "");
    for (int r = 1; r < world; r++)
        assert_memory_equal(job->digest[r], job->digest[0], 16);
    const struct job result = *job;
    team_shared_free(job, sizeof *job);
    return result;
}

static struct job job_of(zero_dtype dtype, int micro_batches, const char *reduction)
{
    struct job job = {.toy = toy_odd, .reduction = reduction};
    job.toy.dtype = dtype;
    job.toy.micro_batches = micro_batches;
    return job;
}

static void one_micro_batch_a_rank_is_canonical(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++) {
        static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
        struct job job = job_of(dtypes[world % 3], world, NULL);
        job.toy.grad_dtype = world > 2 ? ZERO_F32 : ZERO_DTYPE_DEFAULT;
        job.comm_dtype = world > 3 ? ZERO_BF16 : ZERO_DTYPE_DEFAULT;
        const struct job canonical = trained(&job, team_threads(world), world);
        job.reduction = "local";
        for (job.stage = 0; job.stage <= 1; job.stage++) {
            const struct job local = trained(&job, team_threads(world), world);
            assert_memory_equal(local.digest[0], canonical.digest[0], 16);
        }
    }
}

/** Neither stage nor transport changes a bit, nor whether an f32 gradient is added or overwrites (a
 * bf16 one is rounded once more then); the order of additions does. */
static void compare_ways(zero_dtype dtype, int world)
{
    struct job job = job_of(dtype, 3 * world, NULL);
    const struct job canonical = trained(&job, team_threads(world), world);
    job.reduction = "local";
    const struct job local = trained(&job, team_threads(world), world);
    job.toy.raw = true;
    const struct job raw = trained(&job, team_threads(world), world);
    const bool wide = dtype == ZERO_F32;
    assert_true((memcmp(raw.digest[0], local.digest[0], 16) == 0) == wide);
    for (int way = 1; way < 8; way++) {
        job.stage = way & 1;
        job.files = way % 4 == 3;
        job.toy.raw = way & 2;
        const struct job other = trained(&job, way & 4 ? "shm" : team_threads(world), world);
        assert_memory_equal(other.digest[0], (way & 2 ? &raw : &local)->digest[0], 16);
    }
    // One rank adds f32 gradients in the canonical order; all others differ.
    assert_true((memcmp(local.digest[0], canonical.digest[0], 16) == 0) == (world == 1 && wide));
    for (int u = 0; u < UNITS; u++)
        assert_true(fabs(local.sum[u] - canonical.sum[u]) <
                    (wide ? 1e-4 : 2e-2) * (1 + fabs(canonical.sum[u])));
}

static void the_same_bits_at_one_world_size(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        compare_ways(ZERO_F32, world);
        compare_ways(world % 2 ? ZERO_BF16 : ZERO_F16, world);
    }
}

/** Gradients that overwrite need buffers beside those of the sums: as many as grad_units. */
static bool open_spares(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!open_job(rank, job))
        return false;
    if (!toy_micro(rank, &job->toy, 0, NULL, NULL))
        return false;
    TEAM_OK(rank, zero_micro_begin(rank->z, 1, NULL));
    TEAM_OK(rank, zero_grad_open_raw(rank->z, 1, NULL));
    TEAM_OK(rank, zero_grad_open_raw(rank->z, 2, NULL));
    TEAM_OK(rank, zero_grad_open(rank->z, 3, NULL)); // the sum itself
    TEAM_OK(rank, zero_barrier(rank->z));
    const zero_unit third = 0;
    TEAM_CHECK(zero_grad_open_raw(rank->z, third, NULL) == ZERO_E_LIMIT);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "grad_units"));
    return true;
}

static void spare_buffers_are_limited(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, 4, "local");
    job.grad_units = 2;
    static const struct toy_tensor alike[] = {{.name = "w", .slices = UNITS, .numel = 2000}};
    job.toy.tensors = alike;
    job.toy.tensor_count = 1;
    assert_true(team_run("threads", 2, open_spares, &job));
}

/** Steps in which everything is frozen, with no gradient in the first micro-batch, and in the
 * second one that no rank needs, if `hands_over`; then others. */
struct late {
    struct job job;
    bool hands_over;
};

static bool hand_over_late(struct team_rank *rank, void *user)
{
    struct late *late = user;
    const struct toy *toy = &late->job.toy;
    if (!open_job(rank, &late->job))
        return false;
    for (zero_group group = 0; group < 2; group++)
        TEAM_OK(rank, zero_set_frozen(rank->z, group, 1));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; unit < UNITS && i > 0 && late->hands_over; unit++) {
            TEAM_OK(rank, toy->raw ? zero_grad_open_raw(rank->z, unit, NULL)
                                   : zero_grad_open(rank->z, unit, NULL));
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        }
    }
    TEAM_OK(rank, toy_update(rank, toy));
    for (zero_group group = 0; group < 2; group++)
        TEAM_OK(rank, zero_set_frozen(rank->z, group, 0));
    if (!toy_train(rank, toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, late->job.digest[rank->rank]));
    return true;
}

static void a_first_gradient_may_be_late(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct late late = {.job = job_of(ZERO_F32, 6, "local")};
        late.job.stage = way & 1;
        late.job.toy.raw = way & 2;
        assert_true(team_run("threads", 2, hand_over_late, &late));
        struct late other = late;
        other.hands_over = true;
        assert_true(team_run("threads", 2, hand_over_late, &other));
        assert_memory_equal(other.job.digest, late.job.digest, sizeof late.job.digest);
    }
}

/** A sum that is not finite is named by its rank. */
static bool overflow(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!open_job(rank, job))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; unit < UNITS; unit++) {
            TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
            float *gradient = zero_grad_ptr(rank->z, 0, unit);
            if (unit == 2 && i == 0 && rank->rank == 1)
                gradient[1500] += INFINITY;
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        }
    }
    TEAM_CHECK(toy_update(rank, &job->toy) == ZERO_E_NONFINITE);
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.bad_rank == 1 && info.bad_slice == 2 && info.bad_element == 1500);
    return true;
}

static void the_rank_of_a_bad_sum_is_named(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, 6, "local");
    static const struct toy_tensor alike[] = {{.name = "w", .slices = UNITS, .numel = 2000}};
    job.toy.tensors = alike;
    job.toy.tensor_count = 1;
    assert_true(team_run("threads", 2, overflow, &job));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_micro_batch_a_rank_is_canonical),
        cmocka_unit_test(the_same_bits_at_one_world_size),
        cmocka_unit_test(spare_buffers_are_limited),
        cmocka_unit_test(a_first_gradient_may_be_late),
        cmocka_unit_test(the_rank_of_a_bad_sum_is_named),
    };
    if (!temporary_make(&directory))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temporary_remove(&directory);
    return failed;
}
