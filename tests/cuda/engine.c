// A program that computes on a GPU ends in the bits of one that computes on the host, at every
// stage and number of ranks. Its work is queued and done late, and nobody waits for it but the
// engine: who reads or writes too early ends in other bits. Without a GPU only: work is functions
// of this program, which the stand-in driver calls (driver.h).
#include "zero/engine.h"
#include "base/device.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda.h>

enum { SKIPPED = 77, STEPS = 3, MOST_RANKS = 4, MOST_LOOKS = 1000, EVALUATED = 3 };

static const struct base_device *const gpu = &base_device_cuda;
static __typeof__(cuLaunchHostFunc) *launch;
static cuda_driver_bytes_fn bytes_there;
static struct temporary directory;

struct place;

struct job {
    struct toy toy;
    bool (*act)(struct place *place); // what is done; NULL: some steps
    int stage;
    const char *gather;
    int64_t persist;
    bool native, verify, nvme, params_nvme, sums_nvme;
    bool releases_first; // before gradients are handed over, and one of them may be on its way
    // Filled in: the fingerprint, the metric's mean of a step and of an evaluation, and the sums of
    // all weights that work has looked at.
    uint8_t digest[16];
    double means[4], sums[MOST_RANKS][MOST_LOOKS];
};

// A rank's place on its GPU.
struct place {
    struct team_rank *rank;
    struct job *job;
    void *streams[2]; // used in turns, unit by unit and step by step
    float *metric;    // two, memory of the GPU
    int looks, steps; // so far
};

static void *stream_of(const struct place *place, zero_unit unit)
{
    return place->streams[(unit + place->steps) % 2];
}

/* ------------------------------------------------------------------ work */

struct work {
    const struct toy *toy;
    const struct toy_tensor *tensor;
    zero_micro micro;
    float factor;
    const void *weights;
    void *gradient;
    double *sum;
};

static void add_gradient(void *user)
{
    struct work *work = user;
    toy_add_gradient(work->toy, work->tensor, &work->micro, work->factor, work->weights,
                     work->gradient);
    free(work);
}

// Of the metric: a number for each micro-batch and step.
static void write_metric(void *user)
{
    struct work *work = user;
    *(float *)work->gradient = (float)(work->micro.index * 3 + work->micro.step);
    free(work);
}

// Adds a slice's weights up.
static void look(void *user)
{
    struct work *work = user;
    for (uint64_t k = 0; k < work->tensor->numel; k++)
        *work->sum += toy_element(toy_dtype(work->toy, work->tensor), work->weights, k);
    free(work);
}

static bool queue(void *stream, void (*call)(void *user), const struct work *work)
{
    struct work *own = malloc(sizeof *own);
    TEAM_CHECK(own);
    *own = *work;
    if (!stream)
        call(own);
    else
        TEAM_CHECK(launch(stream, call, own) == CUDA_SUCCESS);
    return true;
}

/* ------------------------------------------------------------------ a micro-batch */

static bool queue_looks(struct place *place, zero_unit unit, void *stream)
{
    const struct toy *toy = &place->job->toy;
    TEAM_CHECK(place->looks < MOST_LOOKS);
    double *sum = &place->job->sums[place->rank->rank][place->looks++];
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        const struct work work = {
            .toy = toy,
            .tensor = &toy->tensors[p],
            .weights = slice < 0 ? NULL : zero_param_ptr(place->rank->z, p, slice),
            .sum = sum,
        };
        if (slice >= 0 && !queue(stream, look, &work))
            return false;
    }
    return true;
}

static bool queue_gradients(const struct place *place, zero_unit unit, const zero_micro *micro,
                            void *stream)
{
    const struct toy *toy = &place->job->toy;
    zero_ctx *z = place->rank->z;
    TEAM_OK(place->rank,
            toy->raw ? zero_grad_open_raw(z, unit, stream) : zero_grad_open(z, unit, stream));
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        const struct work work = {
            .toy = toy,
            .tensor = &toy->tensors[p],
            .micro = *micro,
            .factor = (float)zero_loss_scale(z),
            .weights = slice < 0 ? NULL : zero_param_ptr(z, p, slice),
            .gradient = slice < 0 ? NULL : zero_grad_ptr(z, p, slice),
        };
        if (slice >= 0 && !queue(stream, add_gradient, &work))
            return false;
    }
    return true;
}

static bool backward(struct place *place, zero_unit unit, const zero_micro *micro)
{
    struct team_rank *rank = place->rank;
    void *stream = stream_of(place, unit + 1); // the other one than forward's
    const struct toy *toy = &place->job->toy;
    const bool first = toy->ahead || place->job->releases_first;
    const bool absent = toy->absent && (micro->index + (uint64_t)unit) % 3 == 0;
    TEAM_OK(rank, zero_gather(rank->z, unit, stream));
    if (!absent && !queue_gradients(place, unit, micro, stream))
        return false;
    if (first)
        TEAM_OK(rank, zero_release(rank->z, unit, stream));
    TEAM_OK(rank,
            absent ? zero_grad_none(rank->z, unit, stream) : zero_grad_done(rank->z, unit, stream));
    if (first)
        return true;
    if (!queue_looks(place, unit, stream))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, stream));
    return true;
}

static bool give_metrics(const struct place *place, const zero_micro *micro)
{
    static const char *const names[] = {"number", "other"};
    for (int m = 0; m < 2; m++) {
        const struct work work = {.micro = *micro, .gradient = place->metric + m};
        if (!queue(place->streams[m], write_metric, &work))
            return false;
        TEAM_OK(place->rank,
                zero_metric_from(place->rank->z, names[m], place->metric + m, place->streams[m]));
    }
    return true;
}

static bool forward(struct place *place, const zero_micro *micro)
{
    struct team_rank *rank = place->rank;
    if (!give_metrics(place, micro))
        return false;
    for (zero_unit unit = 0; unit < place->job->toy.unit_count; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, stream_of(place, unit)));
        TEAM_OK(rank, zero_gather(rank->z, unit, stream_of(place, unit + 1)));
        if (!queue_looks(place, unit, stream_of(place, unit)))
            return false;
        TEAM_OK(rank, zero_release(rank->z, unit, stream_of(place, unit)));
        TEAM_OK(rank, zero_release(rank->z, unit, stream_of(place, unit + 1)));
    }
    return true;
}

static bool micro_batch(struct place *place, int i)
{
    const struct toy *toy = &place->job->toy;
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    if (!forward(place, &micro))
        return false;
    if (toy->ahead && i == zero_micro_count(rank->z) - 1)
        TEAM_OK(rank, toy_announce(rank, toy));
    for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--)
        if (!backward(place, unit, &micro))
            return false;
    return true;
}

static bool train(struct place *place, int steps)
{
    struct team_rank *rank = place->rank;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!micro_batch(place, i))
                return false;
        TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
        place->steps++;
    }
    return true;
}

static bool evaluate(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_eval_begin(rank->z, EVALUATED));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        if (!forward(place, &micro))
            return false;
    }
    TEAM_OK(rank, zero_eval_end(rank->z));
    return true;
}

/* ------------------------------------------------------------------ a job */

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.persist_numel = job->persist;
    rank->config.verify_micro = job->verify;
    rank->config.open_units = 2;
    rank->config.prefetch_units = job->stage % 2 ? 1 : ZERO_OFF;
    rank->config.reduction = job->native ? "native" : NULL;
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = job->params_nvme ? "nvme" : "host";
        rank->config.offload_grads = job->sums_nvme ? "nvme" : "host";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = 65536;
    }
    if (job->releases_first)
        rank->config.grad_units = 1;
    if (job->toy.ahead)
        rank->config.nonfinite = ZERO_NONFINITE_ERROR;
    return toy_open(rank, &job->toy);
}

static bool train_and_look(struct place *place)
{
    struct team_rank *rank = place->rank;
    uint8_t digest[16];
    double means[4];
    const float value = 1000;
    if (!train(place, STEPS))
        return false;
    TEAM_OK(rank, zero_metric_mean(rank->z, "number", &means[0]));
    TEAM_OK(rank, zero_metric_mean(rank->z, "other", &means[1]));
    if (!evaluate(place))
        return false;
    TEAM_OK(rank, zero_metric_mean(rank->z, "number", &means[2]));
    TEAM_OK(rank, zero_metric_mean(rank->z, "other", &means[3]));
    // What the evaluation has queued still sees what was there before; the next step does not.
    for (zero_param p = 0; p < place->job->toy.tensor_count; p++)
        TEAM_OK(rank, zero_param_write(rank->z, p, 0, 0, 1, &value));
    if (!train(place, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0) {
        memcpy(place->job->digest, digest, sizeof digest);
        memcpy(place->job->means, means, sizeof means);
    }
    return true;
}

static bool act(struct place *place)
{
    return place->job->act ? place->job->act(place) : train_and_look(place);
}

static bool work_on_host(struct team_rank *rank, void *user)
{
    struct job *job = user;
    float metric[2];
    struct place place = {.rank = rank, .job = job, .metric = metric};
    return open_job(rank, job) && act(&place);
}

// All there is on the GPU is in the plan, but for the metrics' two numbers.
static bool is_planned(const struct team_rank *rank)
{
    const struct eng_spread *planned = rank->z->plan.gpu;
    TEAM_CHECK(strstr(zero_plan_text(rank->z), " gpu "));
    TEAM_CHECK(strstr(zero_plan_json(rank->z), "\"gpu\": {"));
    TEAM_CHECK(rank->world > 1 || bytes_there() == planned[ENG_GPU_PARAMS].mine +
                                                       planned[ENG_GPU_GRADIENTS].mine +
                                                       2 * sizeof(float));
    return true;
}

static bool work_on_gpu(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct place place = {.rank = rank, .job = job};
    void *metric = NULL;
    char device[16];
    const int number = rank->rank % CUDA_DRIVER_GPUS;
    snprintf(device, sizeof device, "cuda:%d", number);
    rank->config.device = device;
    TEAM_CHECK(gpu->enter(number, NULL) == ZERO_OK);
    bool good = gpu->stream_create(&place.streams[0], false, NULL) == ZERO_OK &&
                gpu->stream_create(&place.streams[1], true, NULL) == ZERO_OK &&
                gpu->alloc(&metric, 2 * sizeof *place.metric, NULL) == ZERO_OK;
    place.metric = metric;
    good = good && open_job(rank, job) && act(&place);
    good = good && is_planned(rank);
    for (int s = 0; s < 2; s++)
        gpu->stream_sync(place.streams[s], NULL);
    team_close(rank);
    for (int s = 0; s < 2; s++)
        gpu->stream_destroy(place.streams[s]);
    gpu->free(metric);
    gpu->leave();
    return good;
}

static void compare(int world, const struct job *job)
{
    static struct job host, there;
    host = there = *job;
    if (!team_run(team_threads(world), world, work_on_host, &host) ||
        !team_run(team_threads(world), world, work_on_gpu, &there))
        fail_msg("%d ranks, stage %d, dtype %d", world, job->stage, job->toy.dtype);
    if (memcmp(host.digest, there.digest, sizeof host.digest) != 0)
        fail_msg("%d ranks, stage %d, dtype %d: other bits", world, job->stage, job->toy.dtype);
    for (int i = 0; i < 4; i++)
        if (host.means[i] != there.means[i])
            fail_msg("%d ranks, stage %d: the mean is %g instead of %g", world, job->stage,
                     there.means[i], host.means[i]);
    for (int i = 0; i < MOST_RANKS * MOST_LOOKS; i++)
        if (host.sums[i / MOST_LOOKS][i % MOST_LOOKS] != there.sums[i / MOST_LOOKS][i % MOST_LOOKS])
            fail_msg("%d ranks, stage %d: look %d of rank %d has seen other weights", world,
                     job->stage, i % MOST_LOOKS, i / MOST_LOOKS);
    assert_true(cuda_left_nothing());
}

/* ------------------------------------------------------------------ tests */

static struct job job_of(int world, int stage)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    struct job job = {.toy = toy_odd, .stage = stage};
    job.toy.dtype = dtypes[(world + stage) % 3];
    job.toy.micro_batches = 5;
    job.persist = world % 2 ? ZERO_OFF : 0;
    job.gather = stage > 0 && world > 2 ? "copy" : NULL;
    job.toy.raw = stage % 2;
    job.toy.absent = world == 3;
    return job;
}

static void a_gpu_gives_the_bits_of_the_host(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const struct job job = job_of(world, stage);
            if (test_takes(world + stage))
                compare(world, &job);
        }
}

static void so_it_does_with_steps_that_are_announced(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = job_of(1 + stage % 3, stage);
        job.toy.ahead = job.toy.unclipped = true;
        job.toy.dtype = stage % 2 ? ZERO_F32 : ZERO_BF16;
        compare(1 + stage % 3, &job);
    }
}

static void and_with_other_orders_of_sums(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct job job = job_of(2, turn % 2);
        job.native = job.toy.absent = true;
        job.toy.raw = turn > 1;
        job.toy.micro_batches = 8;
        compare(2, &job);
    }
    struct job job = job_of(3, 2);
    job.verify = true;
    compare(3, &job);
}

// Ranks without a gradient say so where others hand theirs over, not where these are opened.
static void and_with_one_gradient_on_its_way(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        struct job job = job_of(3, stage);
        job.releases_first = true;
        compare(3, &job);
    }
}

static void and_with_state_in_files(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        struct job job = job_of(world, world);
        job.nvme = true;
        job.params_nvme = world > 1;
        job.sums_nvme = world != 2;
        compare(world, &job);
    }
}

static _Atomic bool may_look;

static void wait_for_leave(void *user)
{
    while (!may_look)
        usleep(100);
    free(user);
}

// A stream looks at a unit's weights late, long after another one has released the unit last, and
// the program has changed them.
static bool look_late(struct place *place)
{
    const zero_unit unit = 4;
    const float value = 1000;
    struct team_rank *rank = place->rank;
    may_look = !place->streams[0];
    for (int s = 0; s < 2; s++)
        TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[s]));
    if (!queue(place->streams[0], wait_for_leave, &(struct work){.toy = NULL}) ||
        !queue_looks(place, unit, place->streams[0]))
        return false;
    for (int s = 0; s < 2; s++)
        TEAM_OK(rank, zero_release(rank->z, unit, place->streams[s]));
    TEAM_OK(rank, zero_param_write(rank->z, 6, 0, 4321, 1, &value));
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    if (!queue_looks(place, unit, place->streams[1]))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    usleep(20000);
    may_look = true;
    return true;
}

static void what_is_looked_at_is_not_written_over(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = job_of(1, stage);
        job.act = look_late;
        compare(1, &job);
    }
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
        cmocka_unit_test(a_gpu_gives_the_bits_of_the_host),
        cmocka_unit_test(so_it_does_with_steps_that_are_announced),
        cmocka_unit_test(and_with_other_orders_of_sums),
        cmocka_unit_test(what_is_looked_at_is_not_written_over),
        cmocka_unit_test(and_with_one_gradient_on_its_way),
        cmocka_unit_test(and_with_state_in_files),
    };
    void *found = cuda_driver_function("cuLaunchHostFunc");
    if (!cuda_driver_function(CUDA_DRIVER_LIVE) || !found) {
        printf("skipped: functions of this program are no kernels of a GPU\n");
        return SKIPPED;
    }
    memcpy(&launch, &found, sizeof launch);
    found = cuda_driver_function(CUDA_DRIVER_BYTES);
    memcpy(&bytes_there, &found, sizeof bytes_there);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
