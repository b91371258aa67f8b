#include "tests/cuda/job.h"

#include "base/library.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"
#include "tests/cuda/nccl_double.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda.h>

enum { MOST_WAITS = 600000 }; // for ranks that may have failed, and calls that wait

struct temporary job_directory;

int job_set_up(void **state)
{
    (void)state;
    return temporary_make(&job_directory) ? 0 : -1;
}

int job_tear_down(void **state)
{
    (void)state;
    temporary_remove(&job_directory);
    return 0;
}

static const struct base_device *const gpu = &base_device_cuda;
static __typeof__(cuLaunchHostFunc) *launch;
static cuda_driver_bytes_fn bytes_there; // NULL: the GPUs are real
static cuda_driver_waits_fn waits_there; // likewise
static cuda_driver_before_fn before_launch;
static int gpus;

static void *stream_of(const struct place *place, zero_unit unit)
{
    return place->streams[(unit + place->steps + place->rank->z->micro.index + 1) % 2];
}

/* ------------------------------------------------------------------ work */

static void add_gradient(struct work *work)
{
    toy_add_gradient(work->toy, work->tensor, &work->micro, work->factor, work->weights,
                     work->gradient);
}

void job_write_metric(struct work *work)
{
    *(float *)work->gradient = (float)(work->micro.index * 3 + work->micro.step);
}

void job_take_time(struct work *work)
{
    (void)work;
    usleep(100000);
}

// Adds a slice's weights up.
static void look(struct work *work)
{
    for (uint64_t k = 0; k < work->tensor->numel; k++)
        *work->sum += toy_element(toy_dtype(work->toy, work->tensor), work->weights, k);
}

static size_t bytes_of(zero_dtype dtype, const struct work *work)
{
    return (size_t)work->tensor->numel * (dtype == ZERO_F32 ? 4 : 2);
}

static size_t gradient_bytes(const struct work *work)
{
    return work->tensor ? bytes_of(toy_grad_dtype(work->toy, work->tensor), work) : sizeof(float);
}

static bool stage_in(struct place *place, void *stream, struct work *work)
{
    const void *weights = work->weights, *gradient = work->gradient;
    const size_t bytes = weights ? bytes_of(toy_dtype(work->toy, work->tensor), work) : 0;
    work->weights = staged_in(&place->staged, stream, weights, bytes);
    work->gradient = staged_in(&place->staged, stream, gradient, gradient_bytes(work));
    return (work->weights || !weights) && (work->gradient || !gradient);
}

struct batch {
    work_fn call;
    int count;
    struct work works[JOB_WORKS];
};

static void call_and_free(void *user)
{
    struct batch *batch = user;
    for (int i = 0; i < batch->count; i++)
        batch->call(&batch->works[i]);
    free(batch);
}

bool job_queue(struct place *place, void *stream, work_fn call, const struct work *works, int count)
{
    void *written[JOB_WORKS];
    if (count == 0)
        return true;
    struct batch *batch = count <= JOB_WORKS ? malloc(sizeof *batch) : NULL;
    TEAM_CHECK(batch);
    *batch = (struct batch){.call = call, .count = count};
    memcpy(batch->works, works, (size_t)count * sizeof *works);
    if (!stream) {
        call_and_free(batch);
        return true;
    }
    for (int i = 0; i < count; i++) {
        TEAM_CHECK(stage_in(place, stream, &batch->works[i]));
        written[i] = batch->works[i].gradient;
    }
    TEAM_CHECK(launch(stream, call_and_free, batch) == CUDA_SUCCESS); // frees it, perhaps at once
    for (int i = 0; i < count; i++)
        TEAM_CHECK(!written[i] || staged_out(&place->staged, stream, works[i].gradient, written[i],
                                             gradient_bytes(&works[i])));
    return true;
}

static _Atomic bool held; // by any rank
static _Atomic bool held_in_vain;

// A driver's queue has an end, and who waits there for room would wait for ever.
static void wait_to_be_let_go(void *user)
{
    (void)user;
    for (int turn = 0; held && !held_in_vain; turn++) {
        usleep(100);
        if (turn > MOST_WAITS)
            held_in_vain = true;
    }
}

bool job_hold(void *stream)
{
    if (!stream)
        return true;
    held = true;
    TEAM_CHECK(launch(stream, wait_to_be_let_go, NULL) == CUDA_SUCCESS);
    return true;
}

bool job_holds_launches(const struct place *place)
{
    return place->streams[0] && before_launch;
}

unsigned job_hold_launch(const struct place *place, const char *kernel, unsigned number)
{
    if (!job_holds_launches(place))
        return 0;
    if (number > 0) // otherwise others may hold, or have just let go
        held = true;
    return before_launch(kernel, number, wait_to_be_let_go);
}

void job_let_go(const struct place *place, unsigned after_us)
{
    if (!place->streams[0])
        return;
    usleep(after_us);
    held = false;
}

bool job_gets_on(void *stream)
{
    void *event;
    zero_result r = ZERO_AGAIN;
    TEAM_CHECK(!stream || gpu->event_create(&event, NULL) == ZERO_OK);
    TEAM_CHECK(!stream || gpu->event_record(event, stream, NULL) == ZERO_OK);
    for (int ms = 0; stream && ms < 10000 && r == ZERO_AGAIN; ms++) {
        usleep(1000);
        r = gpu->event_query(event, NULL);
    }
    if (stream)
        gpu->event_destroy(event);
    return !stream || r == ZERO_OK;
}

/* ------------------------------------------------------------------ a micro-batch */

// Where a rank's next look adds weights up.
static double *next_look(struct place *place)
{
    return &place->job->sums[place->rank->rank][place->looks++];
}

static struct work look_at(const struct place *place, zero_param p, int slice, double *sum)
{
    const struct toy *toy = &place->job->toy;
    return (struct work){
        .toy = toy,
        .tensor = &toy->tensors[p],
        .weights = zero_param_ptr(place->rank->z, p, slice),
        .sum = sum,
    };
}

bool job_queue_look(struct place *place, zero_param param, int slice, void *stream)
{
    TEAM_CHECK(place->looks < JOB_LOOKS);
    const struct work work = look_at(place, param, slice, next_look(place));
    return job_queue(place, stream, look, &work, 1);
}

bool job_queue_looks(struct place *place, zero_unit unit, void *stream)
{
    struct work works[JOB_WORKS];
    int count = 0;
    const struct toy *toy = &place->job->toy;
    TEAM_CHECK(place->looks < JOB_LOOKS);
    double *sum = next_look(place);
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        if (slice >= 0)
            works[count++] = look_at(place, p, slice, sum);
    }
    return job_queue(place, stream, look, works, count);
}

static bool poisons(const struct place *place, zero_unit unit, const zero_micro *micro)
{
    const uint64_t third = 2 % (uint64_t)place->job->toy.micro_batches;
    return place->job->poisoned >> micro->step & 1 && unit == 3 && micro->index == third;
}

bool job_queue_gradients(struct place *place, zero_unit unit, const zero_micro *micro, void *stream)
{
    const struct toy *toy = &place->job->toy;
    zero_ctx *z = place->rank->z;
    struct work works[JOB_WORKS];
    int count = 0;
    TEAM_OK(place->rank,
            toy->raw ? zero_grad_open_raw(z, unit, stream) : zero_grad_open(z, unit, stream));
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        const struct work work = {
            .toy = toy,
            .tensor = &toy->tensors[p],
            .micro = *micro,
            .factor = poisons(place, unit, micro) ? INFINITY : (float)zero_loss_scale(z),
            .weights = slice < 0 ? NULL : zero_param_ptr(z, p, slice),
            .gradient = slice < 0 ? NULL : zero_grad_ptr(z, p, slice),
        };
        if (work.gradient)
            works[count++] = work;
    }
    return job_queue(place, stream, add_gradient, works, count);
}

static bool backward(struct place *place, zero_unit unit, const zero_micro *micro)
{
    struct team_rank *rank = place->rank;
    void *stream = stream_of(place, unit + 1); // the other one than forward's
    const struct toy *toy = &place->job->toy;
    const bool first = toy->fused || place->job->releases_first;
    const bool absent = toy->absent && (micro->index + (uint64_t)unit) % 3 == 0;
    TEAM_OK(rank, zero_gather(rank->z, unit, stream));
    if (!absent && !job_queue_gradients(place, unit, micro, stream))
        return false;
    if (first)
        TEAM_OK(rank, zero_release(rank->z, unit, stream));
    TEAM_OK(rank,
            absent ? zero_grad_none(rank->z, unit, stream) : zero_grad_done(rank->z, unit, stream));
    if (first)
        return true;
    if (!job_queue_looks(place, unit, stream))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, stream));
    return true;
}

static bool give_metrics(struct place *place, const zero_micro *micro)
{
    static const char *const names[] = {"number", "other"};
    for (int m = 0; m < 2; m++) {
        const struct work work = {.micro = *micro, .gradient = place->metric + m};
        if (!job_queue(place, place->streams[m], job_write_metric, &work, 1))
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
        if (!job_queue_looks(place, unit, stream_of(place, unit)))
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
    if (toy->fused && i == zero_micro_count(rank->z) - 1)
        TEAM_OK(rank, toy_fuse(rank, toy));
    for (zero_unit unit = toy->unit_count - 1; unit >= 0; unit--)
        if (!backward(place, unit, &micro))
            return false;
    return true;
}

bool job_micro_batches(struct place *place)
{
    for (int i = 0; i < zero_micro_count(place->rank->z); i++)
        if (!micro_batch(place, i))
            return false;
    return true;
}

bool job_train(struct place *place, int steps)
{
    struct team_rank *rank = place->rank;
    for (int step = 0; step < steps; step++) {
        if (!job_micro_batches(place))
            return false;
        TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
        place->steps++;
    }
    return true;
}

// All ranks, which are threads, are here; the engine does nothing for it.
static void meet(struct place *place)
{
    const int all = ++place->meetings * place->rank->world;
    place->job->met++;
    for (int i = 0; i < MOST_WAITS && place->job->met < all; i++)
        usleep(100);
}

bool job_train_queued(struct place *place, bool (*train)(struct place *, int), int steps)
{
    const char *last = NULL;
    if (!place->streams[0] || !waits_there)
        return train(place, steps);
    TEAM_OK(place->rank, zero_barrier(place->rank->z)); // what is queued is done
    meet(place);
    const unsigned before = waits_there(&last);
    meet(place);
    const bool good = train(place, steps);
    meet(place);
    const unsigned waits = waits_there(&last) - before;
    meet(place);
    if (waits > 0)
        fprintf(stderr, "rank %d: %u calls in %d steps have waited, the last one in %s\n",
                place->rank->rank, waits, steps, last);
    return good && waits == 0;
}

bool job_train_held(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result info = {.struct_size = sizeof info};
    if (!job_hold(place->streams[0]) || !job_train(place, 2))
        return false;
    if (place->streams[0])
        TEAM_CHECK(zero_step_info(rank->z, &info) == ZERO_AGAIN);
    TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 0);
    return job_train_queued(place, job_train, 4);
}

static bool evaluate(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_eval_begin(rank->z, JOB_EVALUATED));
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
    TEAM_CHECK(job->toy.tensor_count <= JOB_WORKS);
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.persist_numel = job->persist;
    rank->config.verify_micro = job->verify;
    rank->config.open_units = 2;
    rank->config.prefetch_units = job->stage % 2 ? 1 : ZERO_OFF;
    rank->config.reduction = job->local ? "local" : NULL;
    if (rank->config.device && !job->resident) {
        rank->config.offload_optimizer = "host";
        rank->config.offload_update = "host";
    }
    if (rank->config.device && job->resident)
        rank->config.device_transport = job->moves ? job->moves : "host";
    if (rank->config.device && job->streamed && !job->nvme) {
        rank->config.offload_optimizer = "host";
        rank->config.offload_update = "device";
        rank->config.tile_bytes = 65536;
    }
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = job->params_nvme ? "nvme" : "host";
        rank->config.offload_grads = job->sums_nvme ? "nvme" : "host";
        rank->config.nvme_dir = job_directory.directory;
        rank->config.tile_bytes = 65536;
        if (rank->config.device && job->streamed)
            rank->config.offload_update = "device";
    }
    rank->config.master = job->master;
    rank->config.moments = job->moments;
    if (job->releases_first)
        rank->config.grad_units = 1;
    if (job->configure)
        job->configure(&rank->config);
    if (job->toy.fused)
        rank->config.nonfinite = ZERO_NONFINITE_ERROR;
    return toy_open(rank, &job->toy);
}

bool job_conclude(const struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result last = {.struct_size = sizeof last};
    uint8_t digest[16];
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_OK(rank, zero_step_info(rank->z, &last));
    if (rank->rank == 0) {
        place->job->last = last;
        memcpy(place->job->digest, digest, sizeof digest);
    }
    return true;
}

bool job_train_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result last = {.struct_size = sizeof last};
    zero_result r = ZERO_OK;
    for (int step = 0; !r && step < 6; step++) {
        if (!job_micro_batches(place))
            break;
        r = toy_update_on(rank, &place->job->toy, place->streams[0]);
    }
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_NONFINITE);
    TEAM_OK(rank, zero_step_info(rank->z, &last));
    if (rank->rank == 0)
        place->job->last = last;
    return true;
}

static bool train_and_look(struct place *place)
{
    struct team_rank *rank = place->rank;
    uint8_t digest[16];
    double means[4];
    const float value = 1000;
    if (!job_train(place, JOB_STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest)); // and all verdicts are known
    TEAM_OK(rank, zero_metric_mean(rank->z, "number", &means[0]));
    TEAM_OK(rank, zero_metric_mean(rank->z, "other", &means[1]));
    if (!evaluate(place))
        return false;
    TEAM_OK(rank, zero_metric_mean(rank->z, "number", &means[2]));
    TEAM_OK(rank, zero_metric_mean(rank->z, "other", &means[3]));
    // What the evaluation has queued still sees what was there before; the next step does not.
    for (zero_param p = 0; p < place->job->toy.tensor_count; p++)
        TEAM_OK(rank, zero_param_write(rank->z, p, 0, 0, 1, &value));
    if (!job_train(place, 1))
        return false;
    if (rank->rank == 0)
        memcpy(place->job->means, means, sizeof means);
    return job_conclude(place);
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

// A function of NCCL's double, if that was loaded.
static bool find_double(const char *name, void *function)
{
    const struct base_symbol symbol = {name, function};
    void *const library = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_NOLOAD);
    return library && !base_library_find(library, &symbol, 1);
}

// One rank alone moves nothing, unless it asks for that; memory is registered where it says so.
static bool is_over_nccl(const struct team_rank *rank)
{
    const struct eng_config *config = &rank->z->config;
    const char *text = zero_plan_text(rank->z);
    const bool expected = config->resident && rank->config.device_transport &&
                          strcmp(rank->config.device_transport, "nccl") == 0;
    const bool registers =
        expected && (rank->config.device_register || strcmp(config->transport, "tcp") == 0);
    nccl_double_live_fn live;
    nccl_double_registered_fn registered;
    unsigned made, ended;
    TEAM_CHECK(expected == (strstr(text, "NCCL's own buffers") != NULL));
    TEAM_CHECK(registers == (strstr(text, "registered by NCCL") != NULL));
    if (!find_double(NCCL_DOUBLE_LIVE, &live) || !find_double(NCCL_DOUBLE_REGISTERED, &registered))
        return true;
    registered(&made, &ended);
    TEAM_CHECK(expected == (live() > 0));
    TEAM_CHECK(!registers || made > ended);
    return true;
}

// All there is on the GPUs is in the plan, but for each rank's two numbers of metrics.
static bool is_planned(const struct team_rank *rank)
{
    const struct eng_spread *planned = rank->z->plan.gpu;
    size_t bytes = (size_t)rank->world * 2 * sizeof(float);
    for (int i = 0; i < ENG_GPU_PURPOSES; i++)
        bytes += planned[i].sum;
    TEAM_CHECK(strstr(zero_plan_text(rank->z), " gpu "));
    TEAM_CHECK(strstr(zero_plan_json(rank->z), "\"gpu\": {"));
    // By which the GPUs of several ranks meet is in the plan, too.
    const size_t transport = rank->z->plan.rows[ENG_FOR_TRANSPORT].mine;
    const size_t host = coll_memory_needed(rank->z->config.transport, false, rank->world, 0);
    TEAM_CHECK(rank->z->config.resident && rank->world > 1 ? transport > host + 10000
                                                           : transport >= host);
    TEAM_CHECK(is_over_nccl(rank));
    // All ranks are here, and none has left, unless they have failed.
    const bool meet = zero_barrier(rank->z) == ZERO_OK;
    TEAM_CHECK(!meet || !bytes_there || bytes_there() == bytes);
    TEAM_CHECK(!meet || zero_barrier(rank->z) == ZERO_OK);
    return true;
}

static bool work_on_gpu(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct place place = {.rank = rank, .job = job};
    void *metric = NULL;
    char device[24];
    const int number = rank->rank % gpus;
    snprintf(device, sizeof device, "cuda:%d", number);
    rank->config.device = device;
    TEAM_CHECK(gpu->enter(number, NULL) == ZERO_OK);
    bool good = gpu->stream_create(&place.streams[0], false, NULL) == ZERO_OK &&
                gpu->stream_create(&place.streams[1], true, NULL) == ZERO_OK &&
                gpu->alloc(&metric, 2 * sizeof *place.metric, NULL) == ZERO_OK &&
                staged_make(&place.staged, gpu);
    place.metric = metric;
    good = good && open_job(rank, job) && act(&place);
    good = good && is_planned(rank);
    job_let_go(&place, 0);
    for (int s = 0; s < 2; s++)
        gpu->stream_sync(place.streams[s], NULL);
    team_close(rank);
    for (int s = 0; s < 2; s++)
        gpu->stream_destroy(place.streams[s]);
    gpu->free(metric);
    staged_free(&place.staged);
    gpu->leave();
    return good;
}

void job_run_on_host(int world, struct job *job)
{
    if (!team_run(team_threads(world), world, work_on_host, job))
        fail_msg("on the host: %d ranks, stage %d, dtype %d", world, job->stage, job->toy.dtype);
}

void job_run_on_gpus(int world, struct job *job)
{
    if (!team_run(team_threads(world), world, work_on_gpu, job))
        fail_msg("%d ranks, stage %d, dtype %d", world, job->stage, job->toy.dtype);
    assert_true(cuda_left_nothing());
    if (atomic_exchange(&held_in_vain, false))
        fail_msg("%d ranks, stage %d: nobody let a stream go, a call waits for it", world,
                 job->stage);
}

void job_compare(int world, const struct job *job)
{
    static struct job host, there;
    host = there = *job;
    job_run_on_host(world, &host);
    job_run_on_gpus(world, &there);
    if (memcmp(host.digest, there.digest, sizeof host.digest) != 0)
        fail_msg("%d ranks, stage %d, dtype %d: other bits", world, job->stage, job->toy.dtype);
    if (memcmp(&host.last, &there.last, sizeof host.last) != 0)
        fail_msg("%d ranks, stage %d: the last step has norm %g instead of %g, or other counts",
                 world, job->stage, there.last.norm, host.last.norm);
    for (int i = 0; i < 4; i++)
        if (host.means[i] != there.means[i])
            fail_msg("%d ranks, stage %d: the mean is %g instead of %g", world, job->stage,
                     there.means[i], host.means[i]);
    for (int i = 0; i < JOB_RANKS * JOB_LOOKS && !job->looks_elsewhere; i++)
        if (host.sums[i / JOB_LOOKS][i % JOB_LOOKS] != there.sums[i / JOB_LOOKS][i % JOB_LOOKS])
            fail_msg("%d ranks, stage %d: look %d of rank %d has seen other weights", world,
                     job->stage, i % JOB_LOOKS, i / JOB_LOOKS);
}

struct job job_of(int world, int stage)
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

void job_shorten(struct job *job, int world)
{
    job->toy.micro_batches = 2 * world;
}

int job_gpus(void)
{
    return gpus;
}

bool job_gpu_each(int ranks)
{
    if (ranks > gpus)
        printf("left out: %d ranks with a GPU each, of which there %s %d\n", ranks,
               gpus == 1 ? "is" : "are", gpus);
    return ranks <= gpus;
}

int job_most_gpus(void)
{
    return job_gpu_each(JOB_RANKS) ? JOB_RANKS : gpus;
}

bool job_begin(void)
{
    struct base_error error = {0};
    if (gpu->count(&gpus, &error) || !cuda_driver_find("cuLaunchHostFunc", &launch)) {
        printf("skipped: %s\n",
               error.result ? error.message : "the driver has no cuLaunchHostFunc");
        return false;
    }
    cuda_driver_find(CUDA_DRIVER_BYTES, &bytes_there);
    cuda_driver_find(CUDA_DRIVER_WAITS, &waits_there);
    cuda_driver_find(CUDA_DRIVER_BEFORE, &before_launch);
    return true;
}
