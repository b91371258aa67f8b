// State that lives on a GPU is what it would be on the host, for code that reads and writes it from
// there: first values, parts of tensors, fingerprints, files, and checkpoints that are written
// while steps go on. Memory of the stand-in driver is closed to the host, and work is done late. So
// it is with what passes through the GPU, or does so from files: with the argument "streamed", or
// "files".
#include "base/arena.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda.h>

// A tensor is visited in three parts; the last one ends in the middle of a granule.
enum { STEPS = 2, HUGE_ELEMENTS = 140001, KINDS = 8 };

static bool streams, files;            // masters and moments pass through the GPU; and are in files
static cuda_driver_live_fn live_there; // NULL: the driver is a real one
static cuda_driver_fail_fn fail_next;
static cuda_driver_spare_fn spare;
static unsigned spared; // copies of a step

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
    .frozen = 1U << 4,
};

// Each kind of state in turn.
static struct job job_of_kind(int kind, bool (*act)(struct place *place))
{
    static const struct {
        zero_dtype dtype;
        const char *master, *moments;
    } kinds[KINDS] = {
        {ZERO_F32, NULL, NULL},    {ZERO_BF16, NULL, NULL},     {ZERO_F16, NULL, NULL},
        {ZERO_BF16, "none", NULL}, {ZERO_F16, "none", NULL},    {ZERO_F32, NULL, "bf16"},
        {ZERO_F16, NULL, "bf16"},  {ZERO_BF16, "none", "bf16"},
    };
    struct job job = {.toy = toy_huge, .stage = kind % 4, .resident = true, .act = act};
    job.streamed = streams;
    job.nvme = files;
    job.toy.dtype = kinds[kind].dtype;
    job.master = kinds[kind].master;
    job.moments = kinds[kind].moments;
    return job;
}

// Adds to what the job ends in.
static bool note(struct place *place, const uint8_t digest[16])
{
    uint8_t both[32];
    if (place->rank->rank > 0)
        return true;
    memcpy(both, place->job->digest, 16);
    memcpy(both + 16, digest, 16);
    base_hash128_bytes(base_hash128(both, sizeof both, 0), place->job->digest);
    return true;
}

static bool note_state(struct place *place)
{
    uint8_t digest[16];
    TEAM_OK(place->rank, zero_fingerprint(place->rank->z, digest));
    return note(place, digest);
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
                                    {65535, 2},      {32768, 32768}, {65536, 65536},
                                    {130000, 10001}, {5, 139990},    {140000, 1}};

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
    return note_state(place) && note_values(place) && job_train(place, STEPS) &&
           note_state(place) && write_parts(place) && note_values(place) && note_state(place) &&
           job_train(place, 1) && note_state(place);
}

static void values_are_read_and_written_as_on_the_host(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        const struct job job = job_of_kind(kind, read_and_write);
        if (test_takes(kind))
            job_compare(1, &job);
    }
}

// More of them than a fingerprint's table takes to the GPU at once.
static const struct toy_tensor layers = {.name = "layers", .slices = 30, .numel = 1100};

static bool train_and_note(struct place *place)
{
    return job_train(place, 1) && note_state(place);
}

static void many_slices_have_one_fingerprint(void **state)
{
    (void)state;
    struct job job = job_of_kind(1, train_and_note);
    job.toy = (struct toy){.tensors = &layers,
                           .tensor_count = 1,
                           .unit_count = layers.slices,
                           .micro_batches = 1,
                           .dtype = ZERO_BF16};
    job_compare(1, &job);
}

/* ------------------------------------------------------------------ files of tensors */

static bool export_and_import(struct place *place)
{
    struct team_rank *rank = place->rank;
    const char *file = temporary_path(&job_directory, place->streams[0] ? "gpu" : "host");
    if (!job_train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_export(rank->z, file));
    if (!job_train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_import(rank->z, file, NULL));
    return note_values(place) && note_state(place) && job_train(place, 1) && note_state(place);
}

static void tensors_go_to_files_and_back(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind += 3) {
        const struct job job = job_of_kind(kind, export_and_import);
        job_compare(1, &job);
    }
}

/* ------------------------------------------------------------------ checkpoints */

static int saves; // runs that have saved so far: each has a directory of its own

// The directory of the newest run; `where` tells two runs of one comparison apart.
static const char *saves_of(const char *where)
{
    char name[64];
    snprintf(name, sizeof name, "saves-%d%s", saves, where);
    return temporary_path(&job_directory, name);
}

static bool save_and_go_on(struct place *place)
{
    if (!job_train(place, STEPS) || !saved_now(place->rank, saves_of(""), NULL) ||
        !note_state(place))
        return false;
    return job_train(place, STEPS) && note_state(place);
}

static bool load_and_go_on(struct place *place)
{
    char path[SAVED_PATH];
    saved_path(path, saves_of(""), STEPS);
    if (!job_train(place, 1))
        return false;
    TEAM_OK(place->rank, zero_load(place->rank->z, path, NULL, NULL));
    return note_state(place) && job_train(place, STEPS) && note_state(place);
}

// 2N steps are N, a save, a load and N, wherever each of them is.
static void checkpoints_go_from_one_place_to_the_other(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        static struct job from, to;
        const int way = kind / 3; // to the GPU, from there, or both
        if (!test_takes(kind))
            continue;
        from = job_of_kind(kind, save_and_go_on);
        to = job_of_kind(kind, load_and_go_on);
        to.stage = (from.stage + 1 + way) % 4;
        saves++;
        if (way == 0)
            job_run_on_host(3, &from);
        else
            job_run_on_gpus(1, &from);
        if (way == 1)
            job_run_on_host(2, &to);
        else
            job_run_on_gpus(1, &to);
        if (memcmp(from.digest, to.digest, sizeof from.digest) != 0)
            fail_msg("kind %d, way %d: other bits", kind, way);
    }
}

static struct job small_job(int kind, bool (*act)(struct place *place))
{
    struct job job = job_of_kind(kind, act);
    const zero_dtype dtype = job.toy.dtype;
    job.toy = toy_odd;
    job.toy.dtype = dtype;
    job.moves = "host";
    return job;
}

// The same between GPUs, of which each has a part.
static void ranks_save_and_load_together(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        static struct job from, to;
        if (!test_takes(kind))
            continue;
        from = small_job(kind, save_and_go_on);
        to = small_job(kind, load_and_go_on);
        to.stage = (from.stage + 1) % 4;
        saves++;
        job_run_on_gpus(2, &from);
        job_run_on_gpus(3, &to);
        if (memcmp(from.digest, to.digest, sizeof from.digest) != 0)
            fail_msg("kind %d: other bits", kind);
    }
}

static int64_t room_bytes;

static bool save_while_steps_go_on(struct place *place)
{
    static const float values[1000];
    struct team_rank *rank = place->rank;
    const zero_save_options options = saved_options(0, files ? 0 : room_bytes, 0, 0);
    zero_save_info info = {.struct_size = sizeof info};
    uint8_t digest[16];
    char path[SAVED_PATH];
    unsigned live = 0;
    const char *where = place->streams[0] ? "-gpu" : "-host";
    for (int i = 0; i < 3; i++) {
        if (!job_train(place, 1))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, digest));
        TEAM_OK(rank, zero_save(rank->z, saves_of(where), &options));
        TEAM_CHECK(i == 0 || !live_there ||
                   live_there() == live); // the first save makes what all use
        live = live_there ? live_there() : 0;
        // The first change comes at once; the step after that when some more is written.
        TEAM_OK(rank, zero_param_write(rank->z, 2, 0, 65000, 1000, values));
        if (!job_train(place, 1) || !note(place, digest))
            return false;
    }
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(memcmp(info.fingerprint, digest, sizeof digest) == 0);
    saved_path(path, saves_of(where), info.step);
    if (!job_train(place, 1) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    TEAM_STATE(rank, digest);
    return job_train(place, 2) && note_state(place);
}

// With room for all that is not written yet when the next step comes, for some of it, for none.
static void a_save_has_the_bits_of_its_step(void **state)
{
    (void)state;
    static const int64_t rooms[] = {0, 600000, ZERO_OFF, 300000};
    for (int kind = 0; kind < 4; kind++) {
        const struct job job = job_of_kind(kind, save_while_steps_go_on);
        room_bytes = rooms[kind];
        saves++;
        job_compare(1, &job);
    }
}

// Parts that the next step changes are written before and after, and a tensor that is missing
// stays.
static bool load_some(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_load_options options = zero_load_options_default();
    char path[SAVED_PATH];
    options.partial = 1;
    saved_path(path, saves_of(""), STEPS);
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, &options, NULL));
    return note_state(place) && note_values(place) && job_train(place, 1) && note_state(place);
}

static void what_a_checkpoint_has_not_stays(void **state)
{
    (void)state;
    static struct job from;
    from = job_of_kind(1, save_and_go_on);
    from.toy.tensor_count -= 2;
    from.toy.frozen = 0;
    saves++;
    job_run_on_gpus(1, &from);
    const struct job job = job_of_kind(1, load_some);
    job_compare(1, &job);
}

/* ------------------------------------------------------------------ recovery points */

static bool die(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, STEPS) || !note_state(place))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

static bool come_back(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, temporary_path(&job_directory, "none"), NULL, &loaded));
    TEAM_CHECK(loaded.step == STEPS && loaded.recovered == 1);
    place->steps = STEPS;
    return note_state(place) && job_train(place, STEPS) && note_state(place);
}

static bool live_on(struct place *place)
{
    return job_train(place, STEPS) && note_state(place) && job_train(place, STEPS) &&
           note_state(place);
}

static void of_one_name(zero_config *config)
{
    config->name = "one"; // another one would be another job
    config->compress = config->nvme_dir ? "on" : NULL;
}

// What the host has left in files a GPU finds there, and the other way round.
static void a_job_comes_back_in_the_other_place(void **state)
{
    (void)state;
    if (!files)
        skip();
    for (int turn = 0; turn < 4; turn++) {
        const int world = 1 + turn / 2;
        struct job whole = job_of_kind(turn % 3, live_on);
        whole.configure = of_one_name;
        struct job first = whole, then = whole;
        first.act = die;
        then.act = come_back;
        whole.nvme = false;
        job_run_on_host(world, &whole);
        (turn % 2 ? job_run_on_host : job_run_on_gpus)(world, &first);
        (turn % 2 ? job_run_on_gpus : job_run_on_host)(world, &then);
        if (memcmp(whole.digest, then.digest, sizeof whole.digest) != 0)
            fail_msg("turn %d: other bits", turn);
    }
}

/* ------------------------------------------------------------------ failures */

// The checkpoint before a save that fails is good, and so is the state.
static bool fail_once(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_load_result result = {.struct_size = sizeof result};
    uint8_t saved[16], digest[16];
    float value;
    if (!job_train(place, STEPS) || !saved_now(rank, saves_of(""), NULL))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, saved));
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    // Only the copy that is to fail is made now.
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_FAILS(rank, zero_fingerprint(rank->z, digest), ZERO_E_DEVICE, "cuMemcpyAsync");
    if (!streams) { // there is a kernel for it
        fail_next("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED);
        TEAM_FAILS(rank, zero_fingerprint(rank->z, digest), ZERO_E_DEVICE, "base_cuda_digest");
    }
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_OK(rank, zero_save(rank->z, saves_of(""), NULL));
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_DEVICE, "cuMemcpyAsync");
    TEAM_STATE(rank, digest);
    TEAM_OK(rank, zero_resume(rank->z, saves_of(""), NULL, &result));
    TEAM_CHECK(result.step == STEPS && result.damaged == 0);
    TEAM_STATE(rank, saved);
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    TEAM_FAILS(rank, zero_param_read(rank->z, 1, 0, 0, 1, &value), ZERO_E_DEVICE, "copying state");
    return true;
}

static void a_failure_of_the_device_is_told(void **state)
{
    (void)state;
    if (!fail_next || files)
        skip(); // there is no way to have a real one fail; and a save of files asks none
    struct job job = job_of_kind(1, fail_once);
    saves++;
    job_run_on_gpus(1, &job);
}

static bool fail_among_tiles(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, STEPS) || !note_state(place) || !job_micro_batches(place))
        return false;
    fail_next("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED);
    spare(spared);
    TEAM_FAILS(rank, toy_update_on(rank, &place->job->toy, place->streams[0]), ZERO_E_DEVICE,
               "device cuda 0, updating a tile of a file: cuMemcpyAsync: ");
    TEAM_FAILS(rank, zero_barrier(rank->z), ZERO_E_DEVICE, "updating a tile");
    return true;
}

// Tiles are on their way to the GPU then, there, or on their way back. The next program finds the
// step before.
static void nothing_counts_of_a_step_that_fails_among_its_tiles(void **state)
{
    (void)state;
    if (!fail_next || !files)
        skip();
    struct job whole = job_of_kind(1, live_on);
    whole.configure = of_one_name;
    job_run_on_gpus(1, &whole);
    for (spared = 10; spared < 90; spared += 35) {
        struct job first = whole, then = whole;
        first.act = fail_among_tiles;
        then.act = come_back;
        memset(then.digest, 0, sizeof then.digest);
        job_run_on_gpus(1, &first);
        job_run_on_gpus(1, &then);
        if (memcmp(whole.digest, then.digest, sizeof whole.digest) != 0)
            fail_msg("after %u copies: other bits", spared);
    }
}

int main(int argc, char **argv)
{
    files = argc > 1 && strcmp(argv[1], "files") == 0;
    streams = files || (argc > 1 && strcmp(argv[1], "streamed") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_and_written_as_on_the_host),
        cmocka_unit_test(many_slices_have_one_fingerprint),
        cmocka_unit_test(tensors_go_to_files_and_back),
        cmocka_unit_test(checkpoints_go_from_one_place_to_the_other),
        cmocka_unit_test(ranks_save_and_load_together),
        cmocka_unit_test(a_save_has_the_bits_of_its_step),
        cmocka_unit_test(what_a_checkpoint_has_not_stays),
        cmocka_unit_test(a_job_comes_back_in_the_other_place),
        cmocka_unit_test(a_failure_of_the_device_is_told),
        cmocka_unit_test(nothing_counts_of_a_step_that_fails_among_its_tiles),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    cuda_driver_find(CUDA_DRIVER_LIVE, &live_there);
    cuda_driver_find(CUDA_DRIVER_FAIL, &fail_next);
    cuda_driver_find(CUDA_DRIVER_SPARE, &spare);
    return cmocka_run_group_tests(tests, job_set_up, job_tear_down);
}
