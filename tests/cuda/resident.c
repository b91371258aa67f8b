// With all state on the GPU a program ends in the bits of one that computes on the host, whatever
// it has chosen; and zero_step() waits for nothing. So it is if master weights and moments are in
// memory of the host, or in files, and pass through the GPU: with the argument "streamed", or
// "files".
#include "base/arena.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "zero/exec/device_parts.h"

#include <zero/optimizer.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static bool streams, files; // masters and moments pass through the GPU; and are in files

static struct job resident_of(int world, int stage)
{
    struct job job = job_of(world, stage);
    job.resident = true;
    job.streamed = streams;
    job.nvme = files;
    job.gather = NULL;
    return job;
}

static struct job resident(int stage)
{
    return resident_of(1, stage);
}

static void every_stage_and_dtype_gives_the_bits_of_the_host(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = resident(stage);
        job.toy.absent = stage == 2;
        job_compare(1, &job);
    }
}

static void sums_of_four(zero_config *config)
{
    config->sum_group = 4;
}

static void several_ranks(const char *moves, int most)
{
    for (int turn = 0; turn < 8; turn++) {
        if (!test_takes(turn))
            continue;
        const int world = 2 + (turn + turn / 4) % (most - 1);
        struct job job = resident_of(world, turn % 4);
        job.moves = moves;
        job.toy.absent = turn == 2;
        job.releases_first = turn == 5;
        if (turn == 6)
            job.configure = sums_of_four;
        job_compare(world, &job);
    }
}

static void so_do_several_ranks(void **state)
{
    (void)state;
    several_ranks("host", JOB_RANKS);
}

static void so_do_they_over_nccl(void **state)
{
    (void)state;
    const int most = job_most_gpus();
    if (most < 2)
        skip();
    several_ranks("nccl", most);
}

static void so_does_one_alone_that_asks_for_nccl(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = resident(stage);
        job.moves = "nccl";
        job.releases_first = stage == 3;
        job_compare(1, &job);
    }
}

static void registered(zero_config *config)
{
    if (config->device)
        config->device_register = "on";
}

static void so_does_what_nccl_registers(void **state)
{
    (void)state;
    const int most = job_gpu_each(3) ? 3 : job_gpus();
    for (int turn = 0; turn < 8; turn++) {
        const int world = 1 + turn % most;
        struct job job = resident_of(world, turn % 4);
        if (!test_takes(turn))
            continue;
        job.moves = "nccl";
        job.configure = registered;
        job_compare(world, &job);
    }
}

static void so_does_every_optimizer(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "sgd", "lion", "adagrad"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        zero_group_desc groups[] = {zero_group_default(), zero_group_default()};
        groups[0].optimizer = names[i];
        groups[1].optimizer = names[(i + 1) % (sizeof names / sizeof *names)];
        struct job job = resident((int)i % 4);
        job.toy.groups = groups;
        job_compare(1, &job);
    }
}

static void narrow_gradients(zero_config *config)
{
    config->comm_dtype = ZERO_BF16;
}

static void so_do_other_precisions_and_orders(void **state)
{
    (void)state;
    static const struct {
        const char *master, *moments;
        void (*configure)(zero_config *config);
    } choices[] = {
        {NULL, "bf16", NULL},       {"none", NULL, NULL},           {"none", "bf16", NULL},
        {NULL, NULL, sums_of_four}, {NULL, NULL, narrow_gradients},
    };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct job job = resident((int)i % 4);
        job.toy.dtype = i % 2 ? ZERO_BF16 : ZERO_F16;
        job.master = choices[i].master;
        job.moments = choices[i].moments;
        job.configure = choices[i].configure;
        job_compare(1, &job);
    }
}

static void skips(zero_config *config)
{
    config->nonfinite = ZERO_NONFINITE_SKIP;
}

static void scale_of_few(zero_config *config)
{
    config->loss_scale = "dynamic";
    config->loss_scale_init = 8;
    config->loss_scale_window = 2;
}

static void steps_that_are_not_finite_are_skipped(void **state)
{
    (void)state;
    static void (*const choices[])(zero_config * config) = {skips, scale_of_few};
    for (size_t i = 0; i < 8; i++) {
        const int world = i < 4 ? 1 : 2 + (int)i % 2;
        struct job job = resident_of(world, (int)i % 4);
        job.toy.dtype = i % 2 ? ZERO_F16 : ZERO_BF16;
        job.configure = choices[i / 2 % 2];
        job.poisoned = i % 2 ? 1 : 6;
        job_compare(world, &job);
    }
}

// What the job has come to, by rank 0.
static bool conclude(const struct place *place)
{
    struct team_rank *rank = place->rank;
    double mean;
    TEAM_CHECK(job_conclude(place));
    TEAM_OK(rank, zero_metric_mean(rank->z, "number", &mean));
    if (rank->rank == 0)
        place->job->means[1] = mean;
    return true;
}

static bool skip_and_ask(struct place *place)
{
    struct team_rank *rank = place->rank;
    double norm;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    TEAM_OK(rank, zero_grad_norm(rank->z, 0.5, &norm));
    if (rank->rank == 0)
        place->job->means[0] = norm;
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[1]));
    place->steps++;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    TEAM_OK(rank, zero_skip_step(rank->z));
    place->steps++;
    if (!job_train(place, 2))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
    if (!job_train(place, 2))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    TEAM_OK(rank, zero_set_micro_batches(rank->z, 9));
    if (!job_train(place, 2))
        return false;
    return conclude(place);
}

static void a_program_may_decide_itself(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        const int world = 1 + stage % 3;
        struct job job = resident_of(world, stage);
        job.toy.frozen = 2;
        job.act = skip_and_ask;
        job_compare(world, &job);
    }
}

static void steps_may_be_fused(void **state)
{
    (void)state;
    struct job job = resident(1);
    job.toy.fused = job.toy.unclipped = true;
    job.toy.dtype = ZERO_BF16;
    job_compare(1, &job);
}

static bool skip_one(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_statistics before = {.struct_size = sizeof before}, after = before;
    TEAM_CHECK(job_train(place, 1));
    TEAM_OK(rank, zero_stats(rank->z, &before));
    TEAM_CHECK(job_train(place, 1));
    TEAM_OK(rank, zero_stats(rank->z, &after));
    TEAM_CHECK(before.state_tile_bytes > 0 && after.state_tile_bytes == before.state_tile_bytes);
    return true;
}

static void a_step_that_is_skipped_moves_no_tiles(void **state)
{
    (void)state;
    if (!files)
        skip();
    struct job job = resident(1);
    job.configure = skips;
    job.poisoned = 2; // the second
    job.act = skip_one;
    job_run_on_gpus(1, &job);
}

/* ------------------------------------------------------------------ waits */

static bool step_without_waiting(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result info = {.struct_size = sizeof info};
    if (!job_train_held(place))
        return false;
    TEAM_OK(rank, zero_step_wait(rank->z));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == 6);
    return conclude(place);
}

static void a_step_waits_for_nothing(void **state)
{
    (void)state;
    for (int turn = 0; turn < 8; turn++) {
        if (!test_takes(turn))
            continue;
        const int world = 1 + turn / 4;
        struct job job = resident_of(world, turn % 4);
        if (!job_gpu_each(world))
            skip();
        job.moves = "nccl";
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.act = step_without_waiting;
        job_shorten(&job, world);
        job_compare(world, &job);
    }
}

// A stream looks at a unit's weights late, long after it was released, and the step was queued.
static bool step_behind_a_look(struct place *place)
{
    const zero_unit unit = 4;
    struct team_rank *rank = place->rank;
    if (!job_micro_batches(place))
        return false;
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    if (!job_hold(place->streams[1]) || !job_queue_looks(place, unit, place->streams[1]))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    job_let_go(place, 400000);
    place->steps++;
    return job_train(place, 1) && conclude(place);
}

static void what_is_looked_at_is_not_updated(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = resident(stage);
        job.act = step_behind_a_look;
        job.toy.dtype = ZERO_BF16;
        job_shorten(&job, 1);
        job_compare(1, &job);
    }
}

// A unit is looked at late, when its slot at stage 3 has long been given to others.
static bool look_behind_others(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    for (zero_unit unit = 0; unit < place->job->toy.unit_count; unit++) {
        void *stream = place->streams[unit > 0];
        TEAM_OK(rank, zero_gather(rank->z, unit, stream));
        if (unit == 0 && !job_hold(stream))
            return false;
        if (!job_queue_looks(place, unit, stream))
            return false;
        TEAM_OK(rank, zero_release(rank->z, unit, stream));
    }
    TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 50000);
    return job_train(place, 1) && conclude(place);
}

static void a_slot_waits_for_who_looks_at_it(void **state)
{
    (void)state;
    if (!job_gpu_each(2))
        skip(); // by the host it would be waited for here
    struct job job = resident_of(2, 3);
    job.moves = "nccl";
    job.toy.dtype = ZERO_BF16;
    job.act = look_behind_others;
    job.persist = ZERO_OFF;
    job_compare(2, &job);
}

/* ------------------------------------------------------------------ unit by unit */

static const char update_kernel[] = "base_cuda_update";

// The last unit's update is held; the first one is there, and what reads the last one waits.
static bool hand_out_early(struct place *place)
{
    struct team_rank *rank = place->rank;
    const zero_unit last = place->job->toy.unit_count - 1;
    TEAM_CHECK(job_train(place, 1));
    job_hold_launch(place, update_kernel, 0);
    TEAM_CHECK(job_train(place, 1));
    const unsigned launches = job_hold_launch(place, update_kernel, 0);
    TEAM_CHECK(launches > 0 || !job_holds_launches(place));
    TEAM_CHECK(job_micro_batches(place));
    job_hold_launch(place, update_kernel, launches);
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps++;
    TEAM_OK(rank, zero_gather(rank->z, 0, place->streams[1]));
    TEAM_CHECK(job_queue_looks(place, 0, place->streams[1]));
    TEAM_OK(rank, zero_release(rank->z, 0, place->streams[1]));
    TEAM_CHECK(job_gets_on(place->streams[0]) && job_gets_on(place->streams[1]));
    TEAM_CHECK(launches == 0 ||
               base_device_cuda.event_query(rank->z->device->shown, NULL) == ZERO_AGAIN);
    TEAM_OK(rank, zero_gather(rank->z, last, place->streams[0]));
    TEAM_CHECK(job_queue_looks(place, last, place->streams[0]));
    TEAM_OK(rank, zero_release(rank->z, last, place->streams[0]));
    TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 20000);
    return job_train(place, 1) && conclude(place);
}

// What persists is read without a gather, and its update is held.
static bool read_what_persists(struct place *place)
{
    enum { SEVEN = 1 };
    struct team_rank *rank = place->rank;
    TEAM_CHECK(job_train(place, 1) && job_micro_batches(place));
    job_hold_launch(place, update_kernel, 1);
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps++;
    TEAM_CHECK(job_hold_launch(place, update_kernel, 0) > 0 || !job_holds_launches(place));
    TEAM_CHECK(job_queue_look(place, SEVEN, 0, place->streams[0]));
    TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 20000);
    return job_train(place, 1) && conclude(place);
}

// One rank that nothing passes through updates all in one go.
static void each_unit_is_there_when_it_is_updated(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        const int world = 1 + (turn < 8 ? turn / 4 : turn % 2), stage = turn % 4;
        struct job job = resident_of(world, stage);
        const bool at_once = !streams && (world == 1 || stage == 0);
        if (!test_takes(turn) || !job_gpu_each(world) || (turn < 8 && at_once))
            continue;
        job.moves = "nccl";
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.persist = turn % 3 ? 0 : ZERO_OFF;
        job.act = hand_out_early;
        job_shorten(&job, world);
        if (turn >= 8) {
            job.persist = 0;
            job.act = read_what_persists;
        }
        job_compare(world, &job);
    }
}

// A metric comes later than all else of its step.
static bool give_a_metric_late(struct place *place)
{
    const struct work value = {.micro = {.index = 100}, .gradient = place->metric + 1};
    struct team_rank *rank = place->rank;
    double mean;
    if (!job_train(place, 1) || !job_micro_batches(place) ||
        !job_queue(place, place->streams[1], job_take_time, &(struct work){.toy = NULL}, 1) ||
        !job_queue(place, place->streams[1], job_write_metric, &value, 1))
        return false;
    TEAM_OK(rank, zero_metric_from(rank->z, "late", place->metric + 1, place->streams[1]));
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps++;
    TEAM_OK(rank, zero_step_wait(rank->z));
    TEAM_OK(rank, zero_metric_mean(rank->z, "late", &mean));
    if (rank->rank == 0)
        place->job->means[2] = mean;
    return conclude(place);
}

static void a_verdict_waits_for_metrics(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        struct job job = resident_of(world, world);
        job.toy.dtype = ZERO_BF16;
        job.toy.micro_batches = world;
        job.act = give_a_metric_late;
        job_compare(world, &job);
    }
}

// Ranks are threads here, whose allocations are counted together. One group's tensor is frozen from
// the beginning, the others for some steps.
static bool count_allocations(struct place *place)
{
    struct team_rank *rank = place->rank;
    const zero_group group = 1;
    if (!job_train(place, 3))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, group, 1));
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    const uint64_t before = base_allocation_count();
    TEAM_OK(rank, zero_barrier(rank->z));
    if (!job_train(place, 3))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, group, 0));
    if (!job_train(place, 2))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(!place->streams[0] || base_allocation_count() == before);
    TEAM_OK(rank, zero_barrier(rank->z));
    return conclude(place);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        const int world = 1 + (turn > 0);
        struct job job = resident_of(world, turn + 1);
        if (turn == 2 && !job_gpu_each(world))
            skip();
        job.moves = turn == 2 ? "nccl" : "host";
        job.toy.frozen = 2;
        job.act = count_allocations;
        job_compare(world, &job);
    }
}

// The error comes when its verdict is known, and no later step has changed anything.
static bool train_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    TEAM_CHECK(job_train_badly(place));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 2: the gradient of "));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "is not finite in micro-batch 2"));
    return true;
}

static void what_is_not_finite_is_told_when_it_is_known(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        struct job job = resident_of(world, world);
        job.toy.dtype = ZERO_BF16;
        job.act = train_badly;
        job.poisoned = 2;
        job.looks_elsewhere = true; // for it learns of it sooner
        job_compare(world, &job);
    }
}

// zero_attach() is local, before zero_commit() and after steps whose verdicts are under way.
static bool attach_alone(struct place *place)
{
    static unsigned char blob[64];
    struct team_rank *rank = place->rank;
    if (!job_train(place, 2))
        return false;
    if (rank->rank == 0)
        TEAM_OK(rank, zero_attach(rank->z, "own", blob, sizeof blob, ZERO_OF_RANK));
    TEAM_OK(rank, zero_barrier(rank->z));
    return conclude(place);
}

static bool attach_early(struct team_rank *rank, void *user)
{
    static unsigned char blob[64];
    (void)user;
    rank->config.device = "cuda";
    TEAM_CHECK(team_open(rank) && toy_register(rank, &toy_odd));
    TEAM_OK(rank, zero_attach(rank->z, "early", blob, sizeof blob, ZERO_OF_RANK));
    TEAM_OK(rank, zero_commit(rank->z));
    team_close(rank);
    return true;
}

static void attaching_asks_nobody(void **state)
{
    (void)state;
    struct job job = resident_of(2, 1);
    job.act = attach_alone;
    job_compare(2, &job);
    assert_true(team_run(team_threads(1), 1, attach_early, NULL));
}

/* ------------------------------------------------------------------ what is freed */

static bool train_once(struct place *place)
{
    return job_train(place, 1) && job_conclude(place);
}

static size_t free_bytes(void)
{
    const struct base_device *gpu = base_device_find("cuda");
    assert_int_equal(gpu->enter(0, NULL), ZERO_OK);
    const size_t bytes = cuda_free_bytes();
    gpu->leave();
    return bytes;
}

// A driver keeps a little for the next one, so that it is the model's memory that is looked for.
static void what_was_closed_is_free_again(void **state)
{
    enum { NUMEL = 1 << 19, LEAST_BYTES = 14 * NUMEL, CYCLES = 6 };
    static const struct toy_tensor tensors[] = {{.name = "large", .slices = 1, .numel = NUMEL}};
    struct job job = resident(1);
    size_t after_first = 0;
    (void)state;
    job.toy = (struct toy){.tensors = tensors, .tensor_count = 1, .unit_count = 1};
    job.toy.micro_batches = 1;
    job.toy.dtype = ZERO_BF16;
    job.act = train_once;
    for (int i = 0; i < CYCLES; i++) {
        job_run_on_gpus(1, &job);
        if (i == 0)
            after_first = free_bytes();
    }
    assert_true(after_first > 0 && free_bytes() + LEAST_BYTES > after_first);
}

/* ------------------------------------------------------------------ what can't be there */

static void prepare_own(void *user, const zero_hyper *hyper, uint64_t updates, double scale,
                        void *scalars)
{
    (void)user;
    (void)hyper;
    (void)updates;
    (void)scale;
    (void)scalars;
}

static void update_own(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    (void)scalars;
    (void)run;
}

static bool optimizers_of_programs(struct team_rank *rank, void *user)
{
    zero_optimizer_desc desc = zero_optimizer_default();
    zero_group_desc group = zero_group_default();
    struct toy toy = toy_odd;
    (void)user;
    desc.name = "own";
    desc.prepare = prepare_own;
    desc.update = update_own;
    rank->config.device = "cuda";
    TEAM_CHECK(team_open(rank));
    TEAM_OK(rank, zero_add_optimizer(rank->z, &desc));
    group.optimizer = "own";
    toy.groups = (zero_group_desc[]){group, group};
    TEAM_CHECK(toy_register(rank, &toy));
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_UNSUPPORTED, "optimizer own is the program's");
    team_close(rank);
    return true;
}

static bool buffers_of_programs(struct team_rank *rank, void *user)
{
    static float values[1024];
    const bool lends = *(const bool *)user;
    zero_param_desc desc = zero_param_default();
    desc.name = "lent";
    desc.ndim = 1;
    desc.shape[0] = 1000;
    desc.borrow = lends ? values : NULL;
    desc.grad = lends ? NULL : values;
    rank->config.device = "cuda";
    TEAM_CHECK(team_open(rank));
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_INVALID,
               lends ? "tensor lent has a working copy of the caller's"
                     : "tensor lent has a gradient of the caller's");
    team_close(rank);
    return true;
}

static void what_is_the_programs_is_refused(void **state)
{
    (void)state;
    assert_true(team_run(team_threads(1), 1, optimizers_of_programs, NULL));
    assert_true(team_run(team_threads(1), 1, buffers_of_programs, &(bool){true}));
    assert_true(team_run(team_threads(1), 1, buffers_of_programs, &(bool){false}));
    assert_true(cuda_left_nothing());
}

int main(int argc, char **argv)
{
    files = argc > 1 && strcmp(argv[1], "files") == 0;
    streams = files || (argc > 1 && strcmp(argv[1], "streamed") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_and_dtype_gives_the_bits_of_the_host),
        cmocka_unit_test(so_do_several_ranks),
        cmocka_unit_test(so_does_every_optimizer),
        cmocka_unit_test(so_do_other_precisions_and_orders),
        cmocka_unit_test(steps_that_are_not_finite_are_skipped),
        cmocka_unit_test(a_step_that_is_skipped_moves_no_tiles),
        cmocka_unit_test(a_program_may_decide_itself),
        cmocka_unit_test(steps_may_be_fused),
    };
    // A step with files waits for its verdict, and for them.
    const struct CMUnitTest queued[] = {
        cmocka_unit_test(a_step_waits_for_nothing),
        cmocka_unit_test(what_is_looked_at_is_not_updated),
        cmocka_unit_test(each_unit_is_there_when_it_is_updated),
        cmocka_unit_test(steps_allocate_nothing),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(so_do_they_over_nccl),
        cmocka_unit_test(so_does_one_alone_that_asks_for_nccl),
        cmocka_unit_test(so_does_what_nccl_registers),
        cmocka_unit_test(what_is_not_finite_is_told_when_it_is_known),
        cmocka_unit_test(attaching_asks_nobody),
        cmocka_unit_test(a_slot_waits_for_who_looks_at_it),
        cmocka_unit_test(a_verdict_waits_for_metrics),
        cmocka_unit_test(what_was_closed_is_free_again),
        cmocka_unit_test(what_is_the_programs_is_refused),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    int failed = cmocka_run_group_tests(tests, job_set_up, job_tear_down);
    if (!files)
        failed += cmocka_run_group_tests(queued, NULL, NULL);
    if (!streams)
        failed += cmocka_run_group_tests(others, NULL, NULL);
    return failed;
}
