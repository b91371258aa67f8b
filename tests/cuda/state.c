// State that lives on a GPU is what it would be on the host, for whoever reads and writes it from
// there: first values, parts of tensors, fingerprints, files, and checkpoints that are written while
// steps go on. Without a GPU only, as engine.c: memory of the stand-in driver is closed to the host,
// and work is done late.
#include "base/arena.h"
#include "base/device.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"
#include "zero/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda.h>

// A tensor is visited in three parts; the last one ends in the middle of a granule.
enum { SKIPPED = 77, STEPS = 2, HUGE_ELEMENTS = 270001, MOST_DIGESTS = 8 };

static const struct base_device *const gpu = &base_device_cuda;
static __typeof__(cuLaunchHostFunc) *launch;
static cuda_driver_live_fn live_there;
static cuda_driver_fail_fn fail_next;
static struct temporary directory;

static const struct toy_tensor tensors[] = {
    {.name = "small", .unit = 0, .slices = 1, .numel = 7, .group = 1},
    {.name = "wide", .unit = 0, .slices = 1, .numel = 3000, .wide = true},
    {.name = "huge", .unit = 1, .slices = 1, .numel = HUGE_ELEMENTS},
    {.name = "stacked", .unit = 0, .slices = 2, .numel = 1500, .group = 1},
    {.name = "frozen", .unit = 1, .slices = 1, .numel = 5000},
};

static const struct toy toy_huge = {
    .tensors = tensors,
    .tensor_count = sizeof tensors / sizeof *tensors,
    .unit_count = 2,
    .micro_batches = 2,
    .dtype = ZERO_F32,
    .frozen = 1U << 4,
};

struct place;

struct job {
    struct toy toy;
    int stage;
    const char *master, *moments;
    bool (*act)(struct place *place);
    int64_t room_bytes; // of saves
    const char *from;   // what is loaded
    // Filled in: what all runs of the job end in.
    uint8_t digests[MOST_DIGESTS][16];
    int digest_count;
};

// A rank's place: on the host without a stream.
struct place {
    struct team_rank *rank;
    struct job *job;
    void *stream;
};

/* ------------------------------------------------------------------ steps */

struct work {
    const struct toy *toy;
    const struct toy_tensor *tensor;
    zero_micro micro;
    float factor;
    const void *weights;
    void *gradient;
};

static void add_gradient(void *user)
{
    struct work *work = user;
    toy_add_gradient(work->toy, work->tensor, &work->micro, work->factor, work->weights,
                     work->gradient);
    free(work);
}

static bool queue(void *stream, const struct work *work)
{
    struct work *own = malloc(sizeof *own);
    TEAM_CHECK(own);
    *own = *work;
    if (stream)
        TEAM_CHECK(launch(stream, add_gradient, own) == CUDA_SUCCESS);
    else
        add_gradient(own);
    return true;
}

static bool backward(struct place *place, zero_unit unit, const zero_micro *micro)
{
    const struct toy *toy = &place->job->toy;
    struct team_rank *rank = place->rank;
    zero_ctx *z = rank->z;
    TEAM_OK(rank, zero_gather(z, unit, place->stream));
    TEAM_OK(rank, zero_grad_open(z, unit, place->stream));
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        if (slice < 0 || toy->frozen >> p & 1)
            continue;
        const struct work work = {
            .toy = toy,
            .tensor = &toy->tensors[p],
            .micro = *micro,
            .factor = (float)zero_loss_scale(z),
            .weights = zero_param_ptr(z, p, slice),
            .gradient = zero_grad_ptr(z, p, slice),
        };
        if (!queue(place->stream, &work))
            return false;
    }
    TEAM_OK(rank, zero_grad_done(z, unit, place->stream));
    TEAM_OK(rank, zero_release(z, unit, place->stream));
    return true;
}

static bool train(struct place *place, int steps)
{
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
            for (zero_unit unit = place->job->toy.unit_count - 1; unit >= 0; unit--)
                if (!backward(place, unit, &micro))
                    return false;
        }
        TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->stream));
    }
    return true;
}

/* ------------------------------------------------------------------ a job */

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.master = job->master;
    rank->config.moments = job->moments;
    return toy_open(rank, &job->toy);
}

// The next of the job's results.
static bool note(struct place *place, const uint8_t digest[16])
{
    TEAM_CHECK(place->job->digest_count < MOST_DIGESTS);
    if (place->rank->rank == 0)
        memcpy(place->job->digests[place->job->digest_count++], digest, 16);
    return true;
}

static bool note_state(struct place *place)
{
    uint8_t digest[16];
    TEAM_OK(place->rank, zero_fingerprint(place->rank->z, digest));
    return note(place, digest);
}

static bool work_on_host(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct place place = {.rank = rank, .job = job};
    return open_job(rank, job) && job->act(&place);
}

static bool work_on_gpu(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct place place = {.rank = rank, .job = job};
    rank->config.device = "cuda:1";
    TEAM_CHECK(gpu->enter(1, NULL) == ZERO_OK);
    const bool good = gpu->stream_create(&place.stream, false, NULL) == ZERO_OK &&
                      open_job(rank, job) && eng_state_on_device(rank->z) && job->act(&place);
    gpu->stream_sync(place.stream, NULL);
    team_close(rank);
    gpu->stream_destroy(place.stream);
    gpu->leave();
    return good;
}

static void run_on_host(struct job *job, int world)
{
    if (!team_run(team_threads(world), world, work_on_host, job))
        fail_msg("on the host, %d ranks, stage %d, dtype %d", world, job->stage, job->toy.dtype);
}

static void run_on_gpu(struct job *job)
{
    if (!team_run(team_threads(1), 1, work_on_gpu, job))
        fail_msg("stage %d, dtype %d", job->stage, job->toy.dtype);
    assert_true(cuda_left_nothing());
}

// Both end in the same.
static void compare(const struct job *job)
{
    static struct job host, there;
    host = there = *job;
    run_on_host(&host, 1);
    run_on_gpu(&there);
    assert_int_equal(host.digest_count, there.digest_count);
    for (int i = 0; i < host.digest_count; i++)
        if (memcmp(host.digests[i], there.digests[i], 16) != 0)
            fail_msg("stage %d, dtype %d, master %s, moments %s: result %d is another one",
                     job->stage, job->toy.dtype, job->master, job->moments, i);
}

// Each kind of state in turn.
enum { KINDS = 8 };

static struct job job_of(int kind, bool (*act)(struct place *place))
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16, ZERO_BF16,
                                        ZERO_F32, ZERO_F16,  ZERO_F16, ZERO_BF16};
    struct job job = {.toy = toy_huge, .stage = kind % 4, .act = act};
    job.toy.dtype = dtypes[kind];
    job.master = kind == 3 || kind == 5 || kind == 7 ? "none" : NULL;
    job.moments = kind >= 4 && kind != 5 ? "bf16" : NULL;
    return job;
}

/* ------------------------------------------------------------------ parts of tensors */

// The hash of all values of all tensors, as they are read.
static bool note_values(struct place *place)
{
    const struct toy *toy = &place->job->toy;
    struct base_hash128 sum = {0};
    uint8_t bytes[16];
    float *values = base_calloc(HUGE_ELEMENTS, sizeof *values);
    TEAM_CHECK(values);
    for (int p = 0; p < toy->tensor_count; p++)
        for (int s = 0; s < toy->tensors[p].slices; s++) {
            const uint64_t numel = toy->tensors[p].numel;
            TEAM_OK(place->rank, zero_param_read(place->rank->z, p, s, 0, numel, values));
            const uint64_t hash = base_hash64(values, numel * sizeof *values, (uint64_t)p);
            sum = base_hash128_add(sum, (struct base_hash128){hash, hash});
        }
    base_free(values);
    base_hash128_bytes(sum, bytes);
    return note(place, bytes);
}

// Where parts begin and how long they are: granules, blocks and buffers end in them, and they in
// these.
static const uint64_t parts[][2] = {{0, 1},          {1, 1023},      {1023, 2},
                                    {131071, 2},     {65536, 65536}, {131072, 131072},
                                    {260000, 10001}, {5, 269990},    {270000, 1}};

static bool write_parts(struct place *place)
{
    struct team_rank *rank = place->rank;
    float *values = base_calloc(HUGE_ELEMENTS, sizeof *values);
    TEAM_CHECK(values);
    const uint64_t allocations = base_allocation_count();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const uint64_t first = parts[i][0], count = parts[i][1];
        for (uint64_t k = 0; k < count; k++)
            values[k] = toy_value(&place->job->toy, "other", (int)i, k);
        TEAM_OK(rank, zero_param_write(rank->z, 2, 0, first, count, values));
        memset(values, 0, count * sizeof *values);
        TEAM_OK(rank, zero_param_read(rank->z, 2, 0, first, count, values));
        for (uint64_t k = 0; k < count && !place->job->master; k++)
            TEAM_CHECK(values[k] == toy_value(&place->job->toy, "other", (int)i, k));
        TEAM_OK(rank, zero_param_write(rank->z, 0, 0, i % 7, 1, values));
        TEAM_OK(rank, zero_param_write(rank->z, 4, 0, first % 4999, 2, values));
    }
    TEAM_CHECK(base_allocation_count() == allocations);
    base_free(values);
    return true;
}

// What is read and written between steps, before, and after: the steps see it.
static bool read_and_write(struct place *place)
{
    return note_state(place) && note_values(place) && train(place, STEPS) && note_state(place) &&
           write_parts(place) && note_values(place) && note_state(place) &&
           train(place, 1) && note_state(place);
}

static void values_are_read_and_written_as_on_the_host(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        const struct job job = job_of(kind, read_and_write);
        compare(&job);
    }
}

/* ------------------------------------------------------------------ files of tensors */

static bool export_and_import(struct place *place)
{
    struct team_rank *rank = place->rank;
    const char *file = temporary_path(&directory, place->stream ? "gpu" : "host");
    if (!train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_export(rank->z, file));
    if (!train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_import(rank->z, file, NULL));
    return note_values(place) && note_state(place) && train(place, 1) && note_state(place);
}

static void tensors_go_to_files_and_back(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind += 3) {
        const struct job job = job_of(kind, export_and_import);
        compare(&job);
    }
}

/* ------------------------------------------------------------------ checkpoints */

static bool save_and_go_on(struct place *place)
{
    if (!train(place, STEPS) || !saved_now(place->rank, directory.directory, NULL) ||
        !note_state(place))
        return false;
    return train(place, STEPS) && note_state(place);
}

static bool load_and_go_on(struct place *place)
{
    char path[SAVED_PATH];
    saved_path(path, directory.directory, STEPS);
    if (!train(place, 1))
        return false;
    TEAM_OK(place->rank, zero_load(place->rank->z, path, NULL, NULL));
    return note_state(place) && train(place, STEPS) && note_state(place);
}

// 2N steps are N, a save, a load and N, wherever each of them is.
static void checkpoints_go_from_one_place_to_the_other(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        static struct job from, to;
        const int way = kind % 3; // to the GPU, from there, or both
        from = job_of(kind, save_and_go_on);
        to = job_of(kind, load_and_go_on);
        to.stage = (from.stage + 1 + way) % 4;
        if (way == 0)
            run_on_host(&from, 3);
        else
            run_on_gpu(&from);
        if (way == 1)
            run_on_host(&to, 2);
        else
            run_on_gpu(&to);
        assert_int_equal(from.digest_count, 2);
        if (memcmp(from.digests, to.digests, sizeof from.digests) != 0)
            fail_msg("kind %d, way %d: other bits", kind, way);
    }
}

static bool save_while_steps_go_on(struct place *place)
{
    static const float values[1000];
    struct team_rank *rank = place->rank;
    const zero_save_options options = saved_options(0, place->job->room_bytes, 0, 0);
    zero_save_info info = {.struct_size = sizeof info};
    uint8_t digest[16];
    char path[SAVED_PATH];
    unsigned live = 0;
    for (int i = 0; i < 3; i++) {
        if (!train(place, 1))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, digest));
        TEAM_OK(rank, zero_save(rank->z, directory.directory, &options));
        TEAM_CHECK(i == 0 || live_there() == live); // the first save makes what all use
        live = live_there();
        // The first change comes at once; the step after that when some more is written.
        TEAM_OK(rank, zero_param_write(rank->z, 2, 0, 131000, 1000, values));
        if (!train(place, 1) || !note(place, digest))
            return false;
    }
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(memcmp(info.fingerprint, digest, sizeof digest) == 0);
    saved_path(path, directory.directory, info.step);
    if (!train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    TEAM_STATE(rank, digest);
    return train(place, 2) && note_state(place);
}

// With room for all that is not written yet when the next step comes, for some of it, for none.
static void a_save_has_the_bits_of_its_step(void **state)
{
    (void)state;
    static const int64_t rooms[] = {0, 1000000, ZERO_OFF, 300000};
    for (int kind = 0; kind < 4; kind++) {
        struct job job = job_of(kind, save_while_steps_go_on);
        job.room_bytes = rooms[kind];
        compare(&job);
    }
}

// Parts that the next step changes are written before and after, and a tensor that is missing stays.
static bool load_some(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_load_options options = zero_load_options_default();
    char path[SAVED_PATH];
    options.partial = 1;
    saved_path(path, directory.directory, STEPS);
    if (!train(place, 1))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, &options, NULL));
    return note_state(place) && note_values(place) && train(place, 1) && note_state(place);
}

static void what_a_checkpoint_has_not_stays(void **state)
{
    (void)state;
    static struct job from;
    from = job_of(1, save_and_go_on);
    from.toy.tensor_count -= 2;
    from.toy.frozen = 0;
    run_on_gpu(&from);
    const struct job job = job_of(1, load_some);
    compare(&job);
}

/* ------------------------------------------------------------------ failures */

// The checkpoint before a save that fails is good, and so is the state.
static bool fail_once(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_load_result result = {.struct_size = sizeof result};
    uint8_t saved[16], digest[16];
    float value;
    if (!train(place, STEPS) || !saved_now(rank, directory.directory, NULL))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, saved));
    if (!train(place, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    // Nobody copies now but who is to fail.
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_FAILS(rank, zero_fingerprint(rank->z, digest), ZERO_E_DEVICE, "cuMemcpyAsync");
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_DEVICE, "cuMemcpyAsync");
    TEAM_STATE(rank, digest);
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(result.step == STEPS && result.damaged == 0);
    TEAM_STATE(rank, saved);
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_FAILS(rank, zero_param_read(rank->z, 0, 0, 0, 1, &value), ZERO_E_DEVICE, "copying state");
    return true;
}

static void a_failure_of_the_device_is_told(void **state)
{
    (void)state;
    struct job job = job_of(1, fail_once);
    run_on_gpu(&job);
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

static bool find(const char *name, void *function)
{
    void *found = cuda_driver_function(name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_and_written_as_on_the_host),
        cmocka_unit_test(tensors_go_to_files_and_back),
        cmocka_unit_test(checkpoints_go_from_one_place_to_the_other),
        cmocka_unit_test(a_save_has_the_bits_of_its_step),
        cmocka_unit_test(what_a_checkpoint_has_not_stays),
        cmocka_unit_test(a_failure_of_the_device_is_told),
    };
    if (!find(CUDA_DRIVER_LIVE, &live_there) || !find("cuLaunchHostFunc", &launch)) {
        printf("skipped: functions of this program are no kernels of a GPU\n");
        return SKIPPED;
    }
    if (!find(CUDA_DRIVER_FAIL, &fail_next))
        return 1;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
