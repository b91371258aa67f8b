// verify_micro=1 where GPUs add gradients up, and hash them: a program that is right trains as on
// the host, and one that is wrong is told so in the same words.
#include "tests/cuda/job.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/** How ranks meet, and who keeps the state. */
enum way { HOST, NCCL, LOCAL, LOCAL_NCCL, STREAMED, FILES, WAYS };

static struct job verified(int world, int stage, enum way way)
{
    struct job job = job_of(world, stage);
    job.resident = job.verify = true;
    job.gather = NULL;
    job.moves = way == NCCL || way == LOCAL_NCCL ? "nccl" : "host";
    job.local = way == LOCAL || way == LOCAL_NCCL;
    job.streamed = way >= STREAMED;
    job.nvme = way == FILES;
    return job;
}

/** NCCL wants a GPU each, and each rank as many micro-batches. */
static bool possible(int world, int stage, enum way way)
{
    const bool nccl = way == NCCL || way == LOCAL_NCCL;
    return (stage < 2 || (way != LOCAL && way != LOCAL_NCCL)) && (!nccl || job_gpu_each(world));
}

/* ------------------------------------------------------------------ the right program */

static bool train(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_statistics stats = {.struct_size = sizeof stats};
    if (!job_train(place, JOB_STEPS))
        return false;
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0 || !place->streams[0]);
    return job_conclude(place);
}

static void a_right_program_has_the_same_bits(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4 * WAYS; turn++) {
        const int world = 1 + (turn + turn / WAYS) % 3, stage = turn / WAYS;
        const enum way way = (enum way)(turn % WAYS);
        if (!test_takes(turn + stage) || !possible(world, stage, way))
            continue;
        struct job job = verified(world, stage, way);
        job.act = train;
        if (job.local) {
            // NCCL may add two ranks' in one order only.
            job.toy.micro_batches = way == LOCAL ? 2 * world : world;
            job.toy.dtype = ZERO_F32;
        }
        if (way == LOCAL_NCCL && world > 2)
            continue;
        job_compare(world, &job);
    }
}

/** A step in which all is frozen: units are handed over, or not, as the program likes. */
static bool rest(struct place *place)
{
    struct team_rank *rank = place->rank;
    for (zero_group group = 0; group < 2; group++)
        TEAM_OK(rank, zero_set_frozen(rank->z, group, 1));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; i == 0 && unit < place->job->toy.unit_count; unit++)
            TEAM_OK(rank, zero_grad_none(rank->z, unit, place->streams[1]));
    }
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    for (zero_group group = 0; group < 2; group++)
        TEAM_OK(rank, zero_set_frozen(rank->z, group, 0));
    return true;
}

/** Whatever ends a step is followed by another one, on the other streams. */
static bool end_in_every_way(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    TEAM_OK(rank, zero_skip_step(rank->z));
    place->steps++;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
    if (!job_train(place, 2))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    TEAM_OK(rank, zero_set_micro_batches(rank->z, 2 * rank->world));
    if (!rest(place))
        return false;
    return job_train(place, 2) && job_conclude(place);
}

static void so_it_has_whatever_ends_its_steps(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = verified(1 + turn % 3, turn, HOST);
        job.toy.frozen = turn == 1 ? 2 : 0;
        job.act = end_in_every_way;
        job_compare(1 + turn % 3, &job);
    }
}

/* ------------------------------------------------------------------ wrong ones */

enum { LONG = 70001, MOST_WORDS = 1024 };

/** One slice has more granules than a hash's run. */
static const struct toy_tensor tensors[] = {
    {.name = "short", .unit = 0, .slices = 1, .numel = 3},
    {.name = "long", .unit = 1, .slices = 1, .numel = LONG},
    {.name = "stacked", .unit = 0, .slices = 3, .numel = 1500},
    {.name = "frozen", .unit = 2, .slices = 1, .numel = 100, .group = 1},
};

/** What one element's gradient depends on beside its micro-batch: how often it was computed, by
 * which rank, or what was computed before. */
enum fault { TIME, RANK, ACCUMULATION, FAULTS };

static const struct wrong {
    int tensor, slice;
    uint64_t element;
} wrongs[] = {{0, 0, 2},         {1, 0, 0},    {1, 0, 65535}, {1, 0, 65536},
              {1, 0, LONG - 1u}, {2, 1, 1499}, {2, 2, 1024}};

enum { WRONGS = sizeof wrongs / sizeof *wrongs };

static struct wrong wrong;
static enum fault fault;
static char said[2][MOST_WORDS]; // by rank 0, on the host and there

/** Writes numbers, and another one at an element. */
static void write_numbers(struct work *work)
{
    float *gradient = work->gradient;
    for (uint64_t k = 0; k < work->tensor->numel; k++)
        gradient[k] = (float)(work->micro.index + 1) * 0x1p-8f;
    if (work->factor != 0)
        gradient[wrong.element % work->tensor->numel] += work->factor;
}

/** How large the fault is in the gradient of a slice. */
static float fault_of(const struct place *place, int tensor, int slice, int local, float before)
{
    const int frozen = 3;
    if (tensor == frozen)
        return (float)(local + 1); // which no rank compares
    if (tensor != wrong.tensor || slice != wrong.slice)
        return 0;
    return fault == TIME   ? (float)(local + 1) * 0x1p-10f
           : fault == RANK ? (float)place->rank->rank
                           : before;
}

static bool write_wrongly(struct place *place, const zero_micro *micro, int local, float before)
{
    struct team_rank *rank = place->rank;
    const struct toy *toy = &place->job->toy;
    for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--) {
        void *stream = place->streams[(unit + local) % 2];
        struct work works[JOB_WORKS];
        int count = 0;
        TEAM_OK(rank, zero_grad_open_raw(rank->z, unit, stream));
        for (int p = 0; p < toy->tensor_count; p++) {
            const int slice = toy_slice_in(&toy->tensors[p], unit);
            const struct work work = {
                .toy = toy,
                .tensor = &toy->tensors[p],
                .micro = *micro,
                .factor = fault_of(place, p, slice, local, before),
                .gradient = slice < 0 ? NULL : zero_grad_ptr(rank->z, p, slice),
            };
            if (work.gradient)
                works[count++] = work;
        }
        if (!job_queue(place, stream, write_numbers, works, count))
            return false;
        TEAM_OK(rank, zero_grad_done(rank->z, unit, stream));
    }
    return true;
}

static bool train_wrongly(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    float before = 0;
    for (int i = 0; i < zero_micro_count(rank->z); i++, before += (float)(micro.index + 1)) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        if (!write_wrongly(place, &micro, i, before))
            return false;
    }
    const zero_result result = toy_update_on(rank, &place->job->toy, place->streams[0]);
    if (!place->job->verify)
        return team_ok(rank, result, "zero_step");
    TEAM_CHECK(result == ZERO_E_DIVERGED && zero_barrier(rank->z) == ZERO_E_DIVERGED);
    if (rank->rank == 0)
        snprintf(said[place->streams[0] != NULL], MOST_WORDS, "%s", zero_last_error(rank->z));
    return true;
}

static bool train_frozen(struct place *place)
{
    TEAM_OK(place->rank, zero_set_frozen(place->rank->z, 1, 1));
    return train_wrongly(place);
}

static void what_a_gradient_depends_on_is_named(void **state)
{
    (void)state;
    char words[64];
    for (int turn = 0; turn < FAULTS * WRONGS; turn++) {
        fault = (enum fault)(turn % FAULTS);
        wrong = wrongs[turn / FAULTS];
        const int world = (fault == RANK ? 2 : 1) + turn % 2, stage = turn % 4;
        const enum way way = (enum way)((turn + turn / 4) % WAYS);
        if (!test_takes(turn) || !possible(world, stage, way))
            continue;
        struct job job = verified(world, stage, way);
        job.toy = (struct toy){
            .tensors = tensors, .tensor_count = 4, .unit_count = 3, .dtype = ZERO_F32, .raw = true};
        job.toy.micro_batches = (1 + turn % 3) * world;
        job.act = train_frozen;
        job_run_on_host(world, &job);
        job_run_on_gpus(world, &job);
        snprintf(words, sizeof words, ": %s, slice %d, differs between rank ",
                 tensors[wrong.tensor].name, wrong.slice);
        if (!strstr(said[1], words) || strcmp(said[0], said[1]) != 0)
            fail_msg("turn %d: '%s' on the host, '%s' there", turn, said[0], said[1]);
        job.verify = false;
        job_run_on_gpus(world, &job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_program_has_the_same_bits),
        cmocka_unit_test(so_it_has_whatever_ends_its_steps),
        cmocka_unit_test(what_a_gradient_depends_on_is_named),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    return cmocka_run_group_tests(tests, job_set_up, job_tear_down);
}
