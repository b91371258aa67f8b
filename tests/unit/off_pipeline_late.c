// offload/pipeline.h: what comes late, and what never does.
#include "base/clock.h"
#include "base/fault.h"
#include "base/patience.h"
#include "offload/tile_queue.h"
#include "tests/unit/off_late.h"
#include "tests/unit/off_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#include <cmocka.h>

static const struct tiles_config as_they_are = {.helpers = 0};
static const struct tiles_config encoded = {.helpers = 1, .encode = true};

static atomic_bool blocked;

static int tear_down(void **state)
{
    blocked = false;
    return rig_tear_down(state);
}

// A fill that is still under way when its place has contents is done before they are written.
static void late_fills_come_before_contents(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct tiles_config fills = {.helpers = 2, .encode = true, .fill = true};
    open_tiles(&fills, &off_io_engine_late,
               4); // records are not flushed: both steps are done before the fill
    while (!late.begun)
        nanosleep(&pause, NULL);
    for (int i = 0; i < 2; i++)
        ok(tiles_step(&tiles, &failure));
    while (base_clock_ns() - late.since < 2 * (uint64_t)LATE_NS)
        nanosleep(&pause, NULL);
    off_pipeline_forget(tiles.pipeline); // so that the file is what is looked at
    ok(tiles_check(&tiles, &failure));
}

static zero_result create_held(void **state, const struct off_io_engine_config *config,
                               struct base_error *error)
{
    const zero_result result = off_io_engine_late.create(state, config, error);
    late.never = true;
    return result;
}

// A fill that was begun before a pass and fails in it: tiles may lie in places with a hole then.
static void a_late_fill_that_fails_is_told(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct tiles_config fills = {.helpers = 1, .fill = true};
    static struct off_io_engine held; // until the pipeline's end
    struct off_tile tile;
    held = off_io_engine_late;
    held.create = create_held;
    open_tiles(&fills, &held, 4);
    while (!late.begun)
        nanosleep(&pause, NULL);
    off_pipeline_begin_anew(tiles.pipeline, tiles.order, 1);
    ok(off_pipeline_next(tiles.pipeline, &tile, &failure));
    base_fault_set("offload.write@1", NULL);
    late.ns = 0;
    late.never = false;
    memset(tile.memory, 1, tiles_bytes(tile.number));
    off_pipeline_put(tiles.pipeline, &tile, true); // it is written when all fills are done
    assert_int_equal(off_pipeline_end(tiles.pipeline, &failure), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "/slots: a place for later: writing"));
    off_tilefile_abandon(tiles.tilefile);
    base_error_clear(&failure);
    ok(tiles_step(&tiles, &failure));
    ok(tiles_check(&tiles, &failure));
}

// A pipeline over the same tile file that handles tiles in another way.
static void pipeline_anew(const struct off_pipeline_config *config)
{
    off_pipeline_destroy(tiles.pipeline);
    ok(off_pipeline_create(&tiles.pipeline, config, &failure));
}

// Writes two small tiles, as far as that gets.
static void write_two(void)
{
    struct off_tile tile;
    tiles.order[0] = 0;
    tiles.order[1] = 1;
    off_pipeline_begin_anew(tiles.pipeline, tiles.order, 2);
    for (int i = 0; i < 2 && !off_pipeline_next(tiles.pipeline, &tile, NULL); i++) {
        memset(tile.memory, 1, tiles_bytes(tile.number));
        off_pipeline_put(tiles.pipeline, &tile, true);
    }
}

// What does not come back is waited for so long, whatever has failed before.
static void a_stuck_write_ends_a_pass(void **state)
{
    (void)state;
    struct off_pipeline_config config = tiles_pipeline_config(&as_they_are);
    open_tiles(&as_they_are, &off_io_engine_sync, 3);
    config.engine = &off_io_engine_late;
    config.tilefile = tiles.tilefile;
    config.buffers = 3;
    config.timeout_s = 0.1;
    for (int fails = 0; fails < 2; fails++) {
        pipeline_anew(&config);
        late.never = true;
        base_fault_set(fails ? "offload.write@1" : NULL, NULL);
        write_two();
        base_error_clear(&failure);
        assert_int_equal(off_pipeline_end(tiles.pipeline, &failure), ZERO_E_TIMEOUT);
        assert_non_null(strstr(failure.message, "/slots: nothing was read or written for 0.1 s, "));
        assert_true(strstr(failure.message, " under way, the longest tile 0: writing 4096 bytes at "
                                            "offset ") ||
                    strstr(failure.message, " under way, the longest tile 1: writing 4096 bytes at "
                                            "offset "));
        assert_int_equal(strstr(failure.message, "EIO") != NULL, fails);
        base_fault_set(NULL, NULL);
        // Nor is there another pass: buffers may still be written from.
        for (int again = 0; again < 2; again++) {
            struct off_tile tile;
            off_pipeline_begin(tiles.pipeline, tiles.order, TILES);
            assert_int_equal(off_pipeline_next(tiles.pipeline, &tile, &failure), ZERO_E_TIMEOUT);
            assert_int_equal(off_pipeline_end(tiles.pipeline, &failure), ZERO_E_TIMEOUT);
        }
    }
}

// Waits a part less than all that the queue waits.
static void almost_time_out(struct off_tile_queue *queue)
{
    struct off_request *done;
    for (int part = 1; part < BASE_PATIENCE_PARTS; part++)
        assert_int_equal(off_tile_queue_take(queue, true, &done), ZERO_AGAIN);
}

// Whatever comes back in time: the next transfer has all of the timeout for itself.
static void patience_begins_anew(void **state)
{
    (void)state;
    const unsigned credits[OFF_DIRECTIONS] = {1, 1};
    open_tiles(&as_they_are, &off_io_engine_sync, 2);
    const struct off_tile_queue_config config = {.engine = &off_io_engine_late,
                                                 .tilefile = tiles.tilefile,
                                                 .tiles = TILES,
                                                 .places = 1,
                                                 .transfer_bytes = 65536,
                                                 .credits = credits,
                                                 .timeout_s = 0.032};
    struct off_tile_queue queue;
    struct off_request *done;
    ok(off_tile_queue_create(&queue, &config, &failure));
    struct off_tile_request request = {
        .stored = tiles_bytes(0),
        .request = {.direction = OFF_WRITE, .memory = off_tile_queue_place(&queue, 0)}};
    late.ns = 0;
    for (int turn = 0; turn < 2; turn++) {
        late.begun = false;
        late.never = true;
        ok(off_tile_queue_submit(&queue, &request, false, &failure));
        almost_time_out(&queue);
        late.never = turn > 0;
        assert_int_equal(off_tile_queue_take(&queue, true, &done),
                         turn > 0 ? ZERO_E_TIMEOUT : ZERO_OK);
    }
    off_tile_queue_end(&queue);
    off_tile_queue_destroy(&queue);
}

// As a read or write that the kernel does not come back from.
static zero_result commit_blocked(void *state, struct base_error *error)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    while (blocked)
        nanosleep(&pause, NULL);
    return off_io_engine_sync.commit(state, error);
}

// Then the pipeline's thread cannot tell, and the caller that waits for it does.
static void a_stuck_engine_ends_a_pass(void **state)
{
    (void)state;
    static struct off_io_engine engine; // until the pipeline's end
    struct off_pipeline_config config = tiles_pipeline_config(&as_they_are);
    engine = off_io_engine_sync;
    engine.commit = commit_blocked;
    open_tiles(&as_they_are, &off_io_engine_sync, 3);
    config.engine = &engine;
    config.tilefile = tiles.tilefile;
    config.buffers = 3;
    config.timeout_s = 0.1;
    pipeline_anew(&config);
    blocked = true;
    write_two();
    base_error_clear(&failure);
    assert_int_equal(off_pipeline_end(tiles.pipeline, &failure), ZERO_E_TIMEOUT);
    assert_non_null(strstr(failure.message,
                           "/slots: reads and writes have not come back for 0.1 s, "
                           "of which one is tile "));
    assert_non_null(strstr(failure.message, " bytes to offset "));
    blocked = false;
}

static atomic_bool sealing;

static size_t encode_slowly(void *coder, size_t tile, const void *contents, size_t bytes, void *out,
                            size_t room)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    (void)coder, (void)tile, (void)contents, (void)bytes, (void)out, (void)room;
    sealing = true;
    nanosleep(&pause, NULL);
    return 0;
}

// A pipeline that ends in the middle of a pass: a helper that is done later finds no queue.
static void helpers_may_be_late(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct off_tile_codec slow = tiles_codec;
    struct off_pipeline_config config = tiles_pipeline_config(&encoded);
    slow.encode = encode_slowly;
    open_tiles(&encoded, &off_io_engine_sync, 3);
    config.engine = &off_io_engine_late;
    config.tilefile = tiles.tilefile;
    config.buffers = 3;
    config.codec = &slow;
    pipeline_anew(&config);
    write_two();
    while (!sealing)
        nanosleep(&pause, NULL);
    off_pipeline_destroy(tiles.pipeline);
    tiles.pipeline = NULL;
    assert_true(late.gone && !late.asked);
}

static atomic_bool gate;

static size_t encode_behind_a_gate(void *coder, size_t tile, const void *contents, size_t bytes,
                                   void *out, size_t room)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)coder, (void)tile, (void)contents, (void)bytes, (void)out, (void)room;
    while (!gate)
        nanosleep(&pause, NULL);
    return 0;
}

// Who asks first never waits: the third of three tiles has to, until the first is written.
static void a_tile_that_is_not_there_is_not_ready(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct off_tile_codec slow = tiles_codec;
    struct off_pipeline_config config = tiles_pipeline_config(&encoded);
    struct off_tile tile;
    slow.encode = encode_behind_a_gate;
    gate = false;
    open_tiles(&encoded, &off_io_engine_sync, 2);
    config.engine = &off_io_engine_sync;
    config.tilefile = tiles.tilefile;
    config.buffers = 2;
    config.codec = &slow;
    pipeline_anew(&config);
    assert_true(off_pipeline_ready(tiles.pipeline));
    for (size_t i = 0; i < 3; i++)
        tiles.order[i] = 2 - i; // tile 0 is too small to be encoded
    off_pipeline_begin_anew(tiles.pipeline, tiles.order, 3);
    for (int i = 0; i < 3; i++) {
        while (i == 2 && !off_pipeline_ready(tiles.pipeline))
            nanosleep(&pause, NULL);
        ok(off_pipeline_next(tiles.pipeline, &tile, &failure));
        memset(tile.memory, 1, tiles_bytes(tile.number));
        off_pipeline_put(tiles.pipeline, &tile, true);
        if (i > 0) // both buffers wait at the gate; the pass is at its end
            assert_int_equal(off_pipeline_ready(tiles.pipeline), i == 2);
        gate = i > 0;
    }
    assert_int_equal(off_pipeline_next(tiles.pipeline, &tile, &failure), ZERO_NOT_FOUND);
    ok(off_pipeline_end(tiles.pipeline, &failure));
    off_pipeline_destroy(tiles.pipeline); // its codec goes, too
    tiles.pipeline = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(late_fills_come_before_contents, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_late_fill_that_fails_is_told, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stuck_write_ends_a_pass, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(patience_begins_anew, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stuck_engine_ends_a_pass, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(helpers_may_be_late, rig_set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tile_that_is_not_there_is_not_ready, rig_set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests_name("off_pipeline_late", tests, NULL, NULL);
}
