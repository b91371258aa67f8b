// Updates on a GPU whose results are not finite, though every gradient is: what the host does in
// the same step the GPU's job comes to know later, and nothing is updated in between. With the
// argument "streamed" master weights and moments pass through the GPU, with "files" from files,
// with "host" the host updates them.
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bool streams, files, host;

static struct job overflowing(int world, int stage)
{
    struct job job = job_of(world, stage);
    job.resident = !host;
    job.streamed = streams;
    job.nvme = files;
    job.moves = "host";
    job.gather = NULL;
    job.toy.unclipped = true;
    job.toy.dtype = stage % 2 ? ZERO_F32 : ZERO_BF16; // whose steps are not skipped
    return job;
}

// A gradient whose square is none: scaled by so much.
static zero_result step_badly(const struct place *place)
{
    const zero_hyper hyper = {1e-3, 0.9, 0.95, 1e-8, 0};
    const zero_hyper both[] = {hyper, hyper};
    const zero_step_args args = zero_step_args_for(both, 2, 1e30, 0);
    return zero_step(place->rank->z, &args, place->streams[0]);
}

static bool is_told(const struct place *place)
{
    struct team_rank *rank = place->rank;
    const char *name = place->job->toy.tensors[0].name;
    char what[96];
    uint8_t digest[16];
    zero_step_result info = {.struct_size = sizeof info};
    snprintf(what, sizeof what, " in %s, slice 0, element 0;", name);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 2: every gradient is finite, but what"));
    TEAM_CHECK(strstr(zero_last_error(rank->z), what));
    TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_save(rank->z, job_directory.directory, NULL) == ZERO_E_NONFINITE);
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.bad_param == 0 && info.bad_slice == 0 && info.bad_element == 0);
    return true;
}

static bool waits_and_fails(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    const zero_result r = step_badly(place);
    TEAM_CHECK(r == (files || host ? ZERO_E_NONFINITE : ZERO_OK));
    TEAM_CHECK(zero_step_wait(rank->z) == ZERO_E_NONFINITE);
    return is_told(place);
}

// A call between steps is the first that knows.
static bool saves_and_fails(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    step_badly(place);
    TEAM_CHECK(zero_save(rank->z, job_directory.directory, NULL) == ZERO_E_NONFINITE);
    return is_told(place);
}

// The steps behind it are queued, and change nothing.
static bool goes_on_and_fails(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_result r = ZERO_OK;
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    r = step_badly(place);
    for (int i = 0; !r && i < 3; i++) {
        for (int m = 0; !r && m < zero_micro_count(rank->z); m++) {
            r = zero_micro_begin(rank->z, m, NULL);
            for (zero_unit unit = 0; !r && unit < place->job->toy.unit_count; unit++)
                r = zero_grad_none(rank->z, unit, place->streams[0]);
            r = r ? r : zero_metric(rank->z, "number", 1);
        }
        if (!r)
            r = toy_update_on(rank, &place->job->toy, place->streams[0]);
    }
    TEAM_CHECK(r == ZERO_E_NONFINITE);
    return is_told(place);
}

static void skipping(zero_config *config)
{
    config->nonfinite = ZERO_NONFINITE_SKIP;
}

static bool skips(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result info = {.struct_size = sizeof info};
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    TEAM_OK(rank, step_badly(place));
    TEAM_OK(rank, zero_step_wait(rank->z));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 1 && isfinite(info.norm) && info.updates == 1 && info.step == 2);
    return job_train(place, 1);
}

static void everywhere(bool (*act)(struct place *place), void (*configure)(zero_config *config))
{
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct job job = overflowing(world, stage);
            job.act = act;
            job.configure = configure;
            job_run_on_gpus(world, &job);
        }
}

static void is_known_when_it_is_waited_for(void **state)
{
    (void)state;
    everywhere(waits_and_fails, NULL);
}

static void is_known_between_steps(void **state)
{
    (void)state;
    everywhere(saves_and_fails, NULL);
}

static void is_known_to_the_steps_behind(void **state)
{
    (void)state;
    everywhere(goes_on_and_fails, NULL);
}

static void is_skipped(void **state)
{
    (void)state;
    everywhere(skips, skipping);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_known_when_it_is_waited_for),
        cmocka_unit_test(is_known_between_steps),
        cmocka_unit_test(is_known_to_the_steps_behind),
        cmocka_unit_test(is_skipped),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    host = argc > 1 && strcmp(argv[1], "host") == 0;
    files = argc > 1 && strcmp(argv[1], "files") == 0;
    streams = files || (argc > 1 && strcmp(argv[1], "streamed") == 0);
    return cmocka_run_group_tests(tests, job_set_up, job_tear_down);
}
