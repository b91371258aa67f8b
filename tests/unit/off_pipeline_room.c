// offload/pipeline.h and tilefile.h: what is taken, of memory and of the disk, and why it cannot
// be.
#include "base/arena.h"
#include "base/fault.h"
#include "tests/sweep.h"
#include "tests/unit/off_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { LARGE = 5 << 19 };

// Waits until the pipeline has nothing to fill any more, or has failed.
static uint64_t await_filled(uint64_t bytes)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    while (off_pipeline_counts(tiles.pipeline).filled < bytes && base_fault_fired() == 0)
        nanosleep(&pause, NULL);
    return off_pipeline_counts(tiles.pipeline).filled;
}

// Between passes all second places are written to, and no first one.
static void new_places_are_filled(void **state)
{
    (void)state;
    const struct tiles_config *fills = &tiles_ways[TILES_FILLING];
    uint64_t bytes = 0;
    for (size_t i = 0; i < TILES; i++)
        bytes += (tiles_bytes(i) + 4095) / 4096 * 4096;
    open_tiles(fills, &off_io_engine_threads, 3);
    steps(1);
    assert_int_equal(await_filled(bytes), bytes);
    ok(tiles_check(&tiles, &failure));
    steps(2);
    assert_int_equal(off_pipeline_counts(tiles.pipeline).filled, bytes);
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, true);
    // A failure is the next pass's, and only its.
    for (int n = 1; n <= TILES; n += TILES / 2) {
        char fault[32];
        snprintf(fault, sizeof fault, "offload.write@%d", n);
        base_fault_set(fault, NULL);
        open_tiles(fills, &off_io_engine_threads, 3);
        await_filled(bytes);
        base_fault_set(NULL, NULL);
        assert_int_equal(tiles_step(&tiles, &failure), ZERO_E_IO);
        assert_non_null(strstr(failure.message, "/slots: a place for later: writing"));
        base_error_clear(&failure);
        steps(3);
        ok(tiles_check(&tiles, &failure));
        tiles_close(&tiles, true);
    }
}

static void all_are(const unsigned char *bytes, unsigned char value)
{
    assert_int_equal(bytes[0], value);
    assert_memory_equal(bytes, bytes + 1, LARGE - 1);
}

// Of a tile that is more than what is written at a time, too, and nothing beside its second place.
static void large_places_are_filled_whole(void **state)
{
    (void)state;
    static unsigned char both[2 * LARGE];
    const size_t bytes = LARGE;
    const struct off_tilefile_config config = {
        .path = temporary_path(&temporary, "slots"), .tiles = 1, .tile_bytes = &bytes};
    struct off_pipeline_config pipeline = tiles_pipeline_config(&tiles_ways[TILES_FILLING + 1]);
    int recorded;
    tiles = (struct tiles){.step = 0};
    ok(off_tilefile_open(&tiles.tilefile, &config, &recorded, &failure));
    const off_t first = (off_t)(off_tilefile_fill_place(tiles.tilefile, 0) - LARGE);
    const int fd = open(config.path, O_RDWR);
    memset(both, 255, sizeof both);
    assert_int_equal(pwrite(fd, both, sizeof both, first), sizeof both);
    pipeline.engine = &off_io_engine_sync;
    pipeline.tilefile = tiles.tilefile;
    pipeline.tiles = 1;
    pipeline.buffers = 2;
    ok(off_pipeline_create(&tiles.pipeline, &pipeline, &failure));
    for (int patience = 0; off_pipeline_counts(tiles.pipeline).filled < LARGE; patience++) {
        assert_true(patience < 20000);
        usleep(1000);
    }
    assert_int_equal(pread(fd, both, sizeof both, first), sizeof both);
    close(fd);
    all_are(both, 255);
    all_are(both + LARGE, 0);
}

static size_t count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;
    while (readdir(tasks))
        count++;
    closedir(tasks);
    return count;
}

// What a pipeline takes is what was said before, and passes take nothing more.
static void memory_is_known_before(void **state)
{
    (void)state;
    size_t largest = 0;
    for (size_t i = 0; i < TILES; i++)
        largest = tiles_bytes(i) > largest ? tiles_bytes(i) : largest;
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++)
        for (size_t way = 0; way < TILES_WAYS; way++) {
            if (!test_takes((int)(e + way)))
                continue;
            const size_t threads = count_threads();
            open_tiles(&tiles_ways[way], engine, 5);
            struct off_pipeline_config config = tiles_pipeline_config(&tiles_ways[way]);
            config.engine = engine;
            config.buffers = 5;
            const struct off_pipeline_memory memory = off_pipeline_memory(&config, largest);
            assert_int_equal(memory.buffers, off_pipeline_pages(tiles.pipeline)->bytes);
            assert_int_equal(memory.threads, count_threads() - threads);
            assert_in_range(memory.tables, 5 * sizeof(struct off_request), 100000);
            steps(1);
            const uint64_t allocations = base_allocation_count();
            steps(2);
            ok(tiles_check(&tiles, &failure));
            assert_int_equal(base_allocation_count(), allocations);
            tiles_close(&tiles, true);
        }
}

// What a codec takes beside so many buffers, in tiles.
static size_t places_beside(size_t buffers, size_t tile_bytes, bool encode)
{
    const struct off_pipeline_config config = {
        .engine = &off_io_engine_sync,
        .buffers = buffers,
        .credits = {8, 8},
        .helpers = 2,
        .codec = &tiles_codec,
        .encode = encode,
    };
    return off_pipeline_memory(&config, tile_bytes).buffers / tile_bytes - buffers;
}

// One place each for who codes, and for what waits or is being written: of tiles that are several
// transfers that is fewer.
static void a_codec_takes_places_for_what_is_under_way(void **state)
{
    (void)state;
    const size_t mib = (size_t)1 << 20;
    assert_int_equal(places_beside(32, 2 * mib, false), 2);
    assert_int_equal(places_beside(32, mib, true), 2 + 6 + 8);
    assert_int_equal(places_beside(32, 2 * mib, true), 2 + 6 + 4);
    assert_int_equal(places_beside(32, 6 * mib, true), 2 + 6 + 2);
    assert_int_equal(places_beside(32, 12 * mib, true), 2 + 6 + 1);
    assert_int_equal(places_beside(4, 2 * mib, true), 4);
}

static void what_cannot_be_opened_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *fault, *words;
        zero_result result;
    } cases[] = {
        {"slots.allocate:enospc@1", "bytes are needed; the file system has ", ZERO_E_LIMIT},
        {"slots.allocate:eopnotsupp@1", "reserving", ZERO_E_UNSUPPORTED},
        {"slots.allocate:eio@1", "EIO", ZERO_E_IO},
        {"io.open:eacces@2", "EACCES", ZERO_E_IO},
        {"io.lock@1", "/slots", ZERO_E_IO},
        {"io.truncate@2", "/slots", ZERO_E_IO},
        {"thread@1", "thread", ZERO_E_NOMEM},
        {"pages.map:enomem@1,pages.reserved@1", "ENOMEM", ZERO_E_NOMEM},
        {"alloc@1", "memory", ZERO_E_NOMEM},
        {"alloc@4", "memory", ZERO_E_NOMEM},
        {"alloc@6", "memory", ZERO_E_NOMEM},
    };
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_sync, .buffers = 2};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        base_error_clear(&failure);
        base_fault_set(cases[i].fault, NULL);
        assert_int_equal(tiles_open(&tiles, &config, &failure), cases[i].result);
        base_fault_set(NULL, NULL);
        if (!strstr(failure.message, cases[i].words))
            fail_msg("%s: %s", cases[i].fault, failure.message);
        unlink(temporary_path(&temporary, "slots"));
    }
    ok(tiles_open(&tiles, &config, &failure));
}

// Nor does a file that was there before keep a part of it.
static void what_cannot_be_reserved_takes_no_room(void **state)
{
    (void)state;
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_sync, .buffers = 2};
    struct stat status;
    assert_true(temporary_write(&temporary, "slots", "state of another job"));
    base_fault_set("slots.allocate:enospc@1", NULL);
    assert_int_equal(tiles_open(&tiles, &config, &failure), ZERO_E_LIMIT);
    assert_int_equal(stat(config.path, &status), 0);
    assert_int_equal(status.st_size, 0);
    ok(tiles_open(&tiles, &config, &failure));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(new_places_are_filled, rig_set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(large_places_are_filled_whole, rig_set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(memory_is_known_before, rig_set_up, rig_tear_down),
        cmocka_unit_test(a_codec_takes_places_for_what_is_under_way),
        cmocka_unit_test_setup_teardown(what_cannot_be_opened_says_why, rig_set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_reserved_takes_no_room, rig_set_up,
                                        rig_tear_down),
    };
    return cmocka_run_group_tests_name("off_pipeline_room", tests, NULL, NULL);
}
