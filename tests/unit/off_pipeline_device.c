// offload/pipeline.h on a device: what fails there, and what ends while it works. That tiles come
// and go with their contents is tried in off_pipeline.c.
#include "tests/sweep.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/off_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#include <cmocka.h>

static int tear_down(void **state)
{
    tiles_close(&tiles, true);
    fake_device_fail(0, false);
    return rig_tear_down(state);
}

// By and by in all ways.
static struct tiles_config config_of(unsigned number)
{
    return (struct tiles_config){.path = temporary_path(&temporary, "slots"),
                                 .engine = &off_io_engine_threads,
                                 .buffers = 5,
                                 .helpers = number % 3,
                                 .encode = number % 2,
                                 .device = true};
}

// Steps on a device of which the n-th operation fails, and all later ones if it is `dead` then.
static bool device_fails(unsigned n, bool dead)
{
    const struct tiles_config config = config_of(n);
    char words[64];
    // All that come later fail, too, and of two threads the later one may be first.
    if (dead)
        snprintf(words, sizeof words, " of the fake device, fails");
    else
        snprintf(words, sizeof words, ", operation %u of the fake device, fails", n);
    fake_device_fail(n, dead);
    zero_result result = tiles_open(&tiles, &config, &failure);
    const bool opened = result == ZERO_OK;
    for (int i = 0; i < 3 && !result; i++)
        result = tiles_step(&tiles, &failure);
    const bool failed = fake_device_failed();
    // Some of what fails is not needed.
    assert_true(result == ZERO_OK || result == ZERO_E_DEVICE);
    assert_true(failed || !result);
    if (result &&
        (!strstr(failure.message, words) || (opened && !strstr(failure.message, "/slots: tile "))))
        fail_msg("%s", failure.message);
    base_error_clear(&failure);
    if (!dead && opened) {
        fake_device_fail(0, false);
        steps(2);
        ok(tiles_check(&tiles, &failure));
    }
    tiles_close(&tiles, true);
    fake_device_fail(0, false);
    assert_int_equal(fake_device_live(), 0);
    return failed;
}

static void a_failed_device_leaves_the_step_before(void **state)
{
    (void)state;
    for (int dead = 0; dead < 2; dead++)
        for (unsigned n = 1; device_fails(n, dead); n += 1 + n / (TEST_STRIDE > 1 ? 2 : 16))
            ;
}

static atomic_bool worked;

static void work_slowly(void *memory, void *user)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    (void)memory, (void)user;
    nanosleep(&pause, NULL);
    worked = true;
}

// Whoever works on a tile that is out is waited for, by a pass that fails and by a pipeline that
// ends in the middle of one.
static void tiles_that_are_out_are_not_taken_away(void **state)
{
    (void)state;
    struct off_tile out, other;
    const struct tiles_config config = config_of(1);
    ok(tiles_open(&tiles, &config, &failure));
    steps(2);
    for (int fails = 1; fails >= 0; fails--) {
        worked = false;
        off_pipeline_begin(tiles.pipeline, tiles.order, TILES);
        ok(off_pipeline_next(tiles.pipeline, &out, &failure));
        ok(off_pipeline_next(tiles.pipeline, &other, &failure));
        fake_device_launch(tiles.device_stream, work_slowly, out.memory, NULL);
        fake_device_fail(fails ? 1 : 0, false);
        off_pipeline_put(tiles.pipeline, &other, true);
        if (fails) {
            assert_int_equal(off_pipeline_end(tiles.pipeline, NULL), ZERO_E_DEVICE);
            off_tilefile_abandon(tiles.tilefile);
        } else {
            tiles_close(&tiles, true);
        }
        assert_true(worked);
    }
}

static void memory_is_known_before(void **state)
{
    (void)state;
    const struct tiles_config config = config_of(1);
    struct off_pipeline_config pipeline = tiles_pipeline_config(&config);
    const struct off_pipeline_memory there = off_pipeline_memory(&pipeline, 3000000);
    assert_int_equal(there.device, (size_t)5 << 22); // two huge pages each
    pipeline.device = &base_device_cpu;
    const struct off_pipeline_memory here = off_pipeline_memory(&pipeline, 3000000);
    assert_int_equal(here.device, 0);
    assert_int_equal(here.buffers, there.buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failed_device_leaves_the_step_before, rig_set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(tiles_that_are_out_are_not_taken_away, rig_set_up,
                                        tear_down),
        cmocka_unit_test(memory_is_known_before),
    };
    return cmocka_run_group_tests_name("off_pipeline_device", tests, NULL, NULL);
}
