// offload/pipeline.h and tilefile.h: passes leave what was put, a step that fails leaves the one
// before, and what is damaged is found.
#include "base/fault.h"
#include "base/hash.h"
#include "tests/sweep.h"
#include "tests/unit/off_rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static size_t way; // of tiles_ways[]

static int set_up(void **state)
{
    way = 0;
    return rig_set_up(state);
}

static void open_in_way(const struct off_io_engine *engine, size_t buffers)
{
    open_tiles(&tiles_ways[way % TILES_WAYS], engine, buffers);
}

/* ------------------------------------------------------------------ what works */

// In the way of this number first.
static void passes_of(const struct off_io_engine *engine, size_t buffers, size_t first)
{
    way = first;
    open_in_way(engine, buffers);
    steps(6);
    ok(tiles_check(&tiles, &failure));
    const struct off_pipeline_counts counts = off_pipeline_counts(tiles.pipeline);
    if (buffers >= TILES)
        assert_int_equal(counts.io.bytes[OFF_READ], 0);
    assert_true(counts.found >= 6 * (buffers < TILES ? buffers / 2 : TILES));
    assert_int_equal(counts.io.bytes[OFF_WRITE] - counts.filled < counts.contents[OFF_WRITE],
                     tiles_ways[way % TILES_WAYS].encode);
    // What is stored of a tile is all of it, or fewer pages.
    for (size_t i = 0; i < TILES; i++) {
        const size_t stored = off_tilefile_stored_bytes(tiles.tilefile, i);
        assert_true(stored == tiles_bytes(i) ||
                    off_tilefile_room_for(stored) < off_tilefile_room_bytes(tiles.tilefile, i));
    }
    // Another process goes on from there, in another way.
    tiles_close(&tiles, false);
    way++;
    open_in_way(engine, buffers);
    assert_int_equal(tiles.step, 6);
    ok(tiles_check(&tiles, &failure));
    steps(3);
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, true);
    assert_int_equal(temporary_entries(&temporary), 0);
}

static void passes_leave_what_was_put(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    const size_t buffers[] = {2, 3, 8, TILES, TILES + 2};
    int number = 0;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++)
        for (size_t b = 0; b < sizeof buffers / sizeof buffers[0]; b++, number++)
            if (test_takes(number))
                passes_of(engine, buffers[b], (size_t)number);
}

// Where the file system has no O_DIRECT, or in too large units.
static void passes_go_through_the_cache(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++) {
        base_fault_set(e % 2 ? "file.unit@1+" : "file.direct:einval@1+", NULL);
        passes_of(engine, 3, TILES_FILLING + e);
        assert_int_equal(base_fault_fired(), 2);
    }
}

// At any time, and what is in the file is read all the same.
static void encoding_can_begin_and_end(void **state)
{
    (void)state;
    for (way = 1; way <= TILES_FILLING; way++) {
        open_in_way(&off_io_engine_sync, 4);
        for (int step = 0; step < 6; step++) {
            off_pipeline_encode(tiles.pipeline, step % 3 == 1);
            steps(1);
            ok(tiles_check(&tiles, &failure));
        }
        tiles_close(&tiles, true);
    }
}

// What a tile's last page has behind it when it is encoded is zeros, not what was in memory there.
static void nothing_lies_behind_encoded_tiles(void **state)
{
    (void)state;
    unsigned char page[4096];
    size_t tails = 0;
    way = 2;
    open_in_way(&off_io_engine_sync, 3);
    steps(3);
    const int fd = open(temporary_path(&temporary, "slots"), O_RDONLY);
    for (size_t i = 0; i < TILES; i++) {
        const size_t stored = off_tilefile_stored_bytes(tiles.tilefile, i),
                     used = stored % sizeof page;
        const uint64_t end = off_tilefile_current_place(tiles.tilefile, i) + stored;
        if (stored == tiles_bytes(i) || used == 0)
            continue;
        assert_int_equal(pread(fd, page, sizeof page, (off_t)(end - used)), sizeof page);
        for (size_t at = used; at < sizeof page; at++)
            assert_int_equal(page[at], 0);
        tails++;
    }
    assert_true(tails > 0);
    close(fd);
}

static void a_second_user_is_refused(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_sync, 4);
    steps(2);
    struct tiles other;
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_sync, .buffers = 2};
    assert_int_equal(tiles_open(&other, &config, &failure), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "/slots: another process"));
    base_error_clear(&failure);
    ok(tiles_check(&tiles, &failure));
}

// The older record is there as long as the next step has not begun.
static void the_step_before_is_there(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_threads, 4);
    steps(5);
    tiles_close(&tiles, false);

    size_t bytes[TILES];
    for (size_t i = 0; i < TILES; i++)
        bytes[i] = tiles_bytes(i);
    const struct off_tilefile_config config = {
        .path = temporary_path(&temporary, "slots"),
        .identity = {17, 4},
        .tiles = TILES,
        .tile_bytes = bytes,
        .payload_bytes = PAYLOAD_BYTES,
    };
    struct off_tilefile *tilefile;
    int recorded;
    char payload[PAYLOAD_BYTES];
    size_t payload_bytes;
    ok(off_tilefile_open(&tilefile, &config, &recorded, &failure));
    assert_int_equal(recorded, 2);
    assert_int_equal(off_tilefile_step(tilefile, 0), 5);
    assert_int_equal(off_tilefile_step(tilefile, 1), 4);
    ok(off_tilefile_recover(tilefile, 1, payload, &payload_bytes, &failure));
    assert_int_equal(payload_bytes, 4);
    off_tilefile_close(tilefile, false);

    open_in_way(&off_io_engine_threads, 4); // the newer one is void
    assert_int_equal(tiles.step, 4);
    ok(tiles_check(&tiles, &failure));
    steps(3);
    tiles_close(&tiles, false);

    // Another identity finds nothing.
    struct off_tilefile_config stranger = config;
    stranger.identity[1]++;
    ok(off_tilefile_open(&tilefile, &stranger, &recorded, &failure));
    assert_int_equal(recorded, 0);
    off_tilefile_close(tilefile, false);
    open_in_way(&off_io_engine_threads, 4);
    assert_int_equal(tiles.step, 7);
    ok(tiles_check(&tiles, &failure));
}

// A job that begins anew keeps what the one before has left until its own first step.
static void a_new_beginning_can_be_taken_back(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_threads, 4);
    steps(3);
    tiles_close(&tiles, false);
    open_in_way(&off_io_engine_threads, 4);
    struct off_tile tile;
    char payload[PAYLOAD_BYTES];
    size_t payload_bytes;
    for (size_t i = 0; i < TILES; i++)
        tiles.order[i] = i;
    off_pipeline_begin_anew(tiles.pipeline, tiles.order, TILES);
    while (off_pipeline_next(tiles.pipeline, &tile, NULL) == ZERO_OK) {
        memset(tile.memory, 0xee, tiles_bytes(tile.number));
        off_pipeline_put(tiles.pipeline, &tile, true);
    }
    ok(off_pipeline_end(tiles.pipeline, &failure));
    assert_int_equal(off_pipeline_counts(tiles.pipeline).io.bytes[OFF_READ], 0);
    ok(off_tilefile_record(tiles.tilefile, 0, NULL, 0, &failure));
    ok(off_tilefile_recover(tiles.tilefile, 0, payload, &payload_bytes, &failure));
    off_pipeline_forget(tiles.pipeline);
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, false);
    open_in_way(&off_io_engine_threads, 4); // and it stays taken back
    assert_int_equal(tiles.step, 3);
    ok(tiles_check(&tiles, &failure));
}

// What was written and not recorded is nothing, whatever is recorded afterwards.
static void an_abandoned_pass_counts_for_nothing(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_threads, 4);
    steps(3);
    struct off_tile tile;
    off_pipeline_begin(tiles.pipeline, tiles.order, TILES);
    while (off_pipeline_next(tiles.pipeline, &tile, NULL) == ZERO_OK) {
        memset(tile.memory, 0xee, tiles_bytes(tile.number));
        off_pipeline_put(tiles.pipeline, &tile, true);
    }
    ok(off_pipeline_end(tiles.pipeline, &failure));
    off_tilefile_abandon(tiles.tilefile);
    off_pipeline_forget(tiles.pipeline);
    ok(off_tilefile_record(tiles.tilefile, 3, "ppp", 3, &failure)); // as a skipped step does
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, false);
    open_in_way(&off_io_engine_threads, 4);
    ok(tiles_check(&tiles, &failure));
}

// Buffers of a pass that reads nothing have nothing that another one may find.
static void what_was_not_read_is_not_kept(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    open_in_way(&off_io_engine_threads, TILES);
    steps(3);
    off_pipeline_forget(tiles.pipeline);
    for (size_t i = 0; i < TILES; i++) // in other buffers than before
        tiles.order[i] = TILES - 1 - i;
    off_pipeline_begin_anew(tiles.pipeline, tiles.order, TILES);
    while (!off_pipeline_ready(tiles.pipeline))
        nanosleep(&pause, NULL);
    ok(off_pipeline_end(tiles.pipeline, &failure));
    ok(tiles_check(&tiles, &failure));
}

/* ------------------------------------------------------------------ what fails */

// Nothing of it is kept in memory, where there is room for all.
static void a_failed_pass_keeps_nothing(void **state)
{
    (void)state;
    struct off_tile tile;
    open_in_way(&off_io_engine_threads, TILES);
    steps(3);
    base_fault_set("offload.write@5", NULL);
    off_pipeline_begin(tiles.pipeline, tiles.order, TILES);
    while (off_pipeline_next(tiles.pipeline, &tile, NULL) == ZERO_OK) {
        memset(tile.memory, 0xee, tiles_bytes(tile.number));
        off_pipeline_put(tiles.pipeline, &tile, true);
    }
    assert_int_equal(off_pipeline_end(tiles.pipeline, &failure), ZERO_E_IO);
    base_fault_set(NULL, NULL);
    base_error_clear(&failure);
    off_tilefile_abandon(tiles.tilefile);
    ok(tiles_check(&tiles, &failure));
}

// Every n-th failure of a step, or some of them: an error, and the step before is there, in this
// process and in the next. What can be tried again is no failure. Each in another way.
static void sweep(const struct off_io_engine *engine, const char *point, bool fails)
{
    int fired = 0;
    for (int n = 1;; n += TEST_STRIDE > 1 ? 1 + n : 1) {
        way = (size_t)n % TILES_FILLING;
        open_in_way(engine, 5);
        steps(2);
        char fault[64];
        snprintf(fault, sizeof fault, "%s@%d", point, n);
        base_fault_set(fault, NULL);
        const zero_result result = tiles_step(&tiles, &failure);
        const bool none = base_fault_fired() == 0, done = none || !fails;
        base_fault_set(NULL, NULL);
        assert_int_equal(result, done ? ZERO_OK : ZERO_E_IO);
        assert_int_equal(tiles.step, done ? 3 : 2);
        if (!done)
            assert_non_null(strstr(failure.message, "/slots"));
        base_error_clear(&failure);
        ok(tiles_check(&tiles, &failure));
        tiles_close(&tiles, false);
        open_in_way(engine, 5);
        // A record that could not be flushed may be there nevertheless; it is whole then.
        const bool unsure = !done && strcmp(point, "io.fsync") == 0 && tiles.step == 3;
        assert_int_equal(tiles.step, done || unsure ? 3 : 2);
        ok(tiles_check(&tiles, &failure));
        steps(2);
        ok(tiles_check(&tiles, &failure));
        tiles_close(&tiles, true);
        if (none)
            break;
        fired++;
    }
    assert_true(fired > 0);
}

static void a_failed_step_leaves_the_one_before(void **state)
{
    (void)state;
    const struct {
        const char *point;
        bool fails;
    } failures[] = {
        {"offload.read", true},
        {"offload.write:enospc", true},
        {"offload.submit", true},
        {"offload.write", true},
        {"io.write", true},
        {"io.fsync", true},
        {"offload.read:eagain", false},
        {"offload.write:eintr", false},
        {"offload.short", false},
    };
    enum { POINTS = sizeof failures / sizeof failures[0] };
    const struct off_io_engine *engine;
    // Each point once in the three builds, and each engine in each of them.
    for (int e = 0; (engine = off_io_engine_at((size_t)e)); e++)
        for (int i = 0; i < POINTS; i++)
            if (TEST_STRIDE == 1 || i == e + 3 * TEST_PART)
                sweep(engine, failures[i].point, failures[i].fails);
}

// A flipped bit anywhere in current contents is found by the pass that reads them.
static void damage_is_found(void **state)
{
    (void)state;
    for (size_t tile = 0; tile < TILES; tile += 4) {
        way++;
        open_in_way(&off_io_engine_uring, 3);
        steps(3);
        off_pipeline_forget(tiles.pipeline);
        assert_true(
            tiles_flip(tiles.tilefile, tile, off_tilefile_stored_bytes(tiles.tilefile, tile) - 1));
        assert_int_equal(tiles_step(&tiles, &failure), ZERO_E_CORRUPT);
        char name[32];
        snprintf(name, sizeof name, "tile %zu, ", tile);
        assert_non_null(strstr(failure.message, name));
        tiles_close(&tiles, true);
        base_error_clear(&failure);
    }
}

// What a record's entry of a tile looks like.
struct entry {
    uint64_t checksum, stored;
    uint32_t place, has;
};

enum { TILE = 5, CHECKSUM_AT = 64, HEAD_BYTES = 72 };

// Has the newest record, of step 2, say something else of a tile, and be whole.
static void forge(const struct entry *entry)
{
    const size_t payload = 2, bytes = HEAD_BYTES + payload + TILES * sizeof *entry;
    unsigned char record[4096] = {0};
    const int fd = open(temporary_path(&temporary, "slots"), O_RDWR);
    const off_t second = 4096;
    assert_int_equal(pread(fd, record, sizeof record, second), sizeof record);
    memcpy(record + HEAD_BYTES + payload + TILE * sizeof *entry, entry, sizeof *entry);
    memset(record + CHECKSUM_AT, 0, 8);
    const uint64_t checksum = base_hash64(record, bytes, 0);
    memcpy(record + CHECKSUM_AT, &checksum, sizeof checksum);
    assert_int_equal(pwrite(fd, record, sizeof record, second), sizeof record);
    close(fd);
}

// Whatever a record says of a tile: nothing is read that is not there, nothing decoded that is not
// what was encoded.
static void records_that_lie_are_found(void **state)
{
    (void)state;
    unsigned char first[4096];
    const size_t bytes = tiles_bytes(TILE);
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_sync, .buffers = 3};
    way = 1;
    open_in_way(&off_io_engine_sync, 3);
    steps(2);
    const size_t stored = off_tilefile_stored_bytes(tiles.tilefile, TILE);
    assert_true(stored > 4096 && stored < bytes);
    const int fd = open(temporary_path(&temporary, "slots"), O_RDONLY);
    const off_t place = (off_t)off_tilefile_current_place(tiles.tilefile, TILE);
    assert_int_equal(pread(fd, first, sizeof first, place), sizeof first);
    close(fd);
    const struct {
        struct entry entry;
        const char *words;
    } cases[] = {
        {{.stored = 0, .has = 1}, "0 bytes of tile 5"},
        {{.stored = bytes + 1, .has = 1}, "bytes of tile 5"},
        {{.stored = UINT64_MAX, .has = 1}, "18446744073709551615 bytes of tile 5"},
        {{.stored = stored, .place = 2, .has = 1}, "in place 2"},
        {{.stored = stored, .has = 2}, "bytes of tile 5"},
        {{.stored = stored - 1, .place = 1, .has = 1}, "tile 5, "},
        {{.stored = bytes, .place = 1, .has = 1}, "tile 5, "},
        {{.checksum = base_hash64(first, 4096, TILE), .stored = 4096, .place = 1, .has = 1},
         "blocks: 4096 bytes, not "},
    };
    tiles_close(&tiles, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        forge(&cases[i].entry);
        base_error_clear(&failure);
        zero_result result = tiles_open(&tiles, &config, &failure);
        if (!result)
            result = tiles_check(&tiles, &failure);
        tiles_close(&tiles, false);
        assert_int_equal(result, ZERO_E_CORRUPT);
        if (!strstr(failure.message, cases[i].words))
            fail_msg("case %zu: %s", i, failure.message);
    }
}

// A pipeline without a codec says what it lacks.
static void encoded_tiles_want_a_codec(void **state)
{
    (void)state;
    struct off_tile tile;
    way = 1;
    open_in_way(&off_io_engine_threads, 3);
    steps(2);
    off_pipeline_destroy(tiles.pipeline);
    const struct off_pipeline_config config = {.engine = &off_io_engine_sync,
                                               .tilefile = tiles.tilefile,
                                               .tiles = TILES,
                                               .buffers = 2,
                                               .timeout_s = 60};
    ok(off_pipeline_create(&tiles.pipeline, &config, &failure));
    tiles.order[0] = TILE;
    off_pipeline_begin(tiles.pipeline, tiles.order, 1);
    assert_int_equal(off_pipeline_next(tiles.pipeline, &tile, &failure), ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(failure.message, "/slots: tile 5 is encoded, "));
    assert_int_equal(off_pipeline_end(tiles.pipeline, NULL), ZERO_E_UNSUPPORTED);
}

static void a_file_cut_short_is_found(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_uring, 3);
    steps(3);
    assert_int_equal(truncate(temporary_path(&temporary, "slots"), 100000), 0);
    assert_int_equal(tiles_step(&tiles, &failure), ZERO_E_CORRUPT);
    // Or another tile was written behind the cut before.
    assert_true(strstr(failure.message, "the file ends before") ||
                strstr(failure.message, "is not what was written there"));
    tiles_close(&tiles, false);
    // Nor is it begun anew: that is for a caller that has seen what became of the file.
    assert_int_equal(truncate(temporary_path(&temporary, "slots"), 100000), 0);
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_uring, .buffers = 3};
    base_error_clear(&failure);
    assert_int_equal(tiles_open(&tiles, &config, &failure), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "/slots: was cut to 100000 of "));
    assert_int_equal(unlink(config.path), 0);
    open_in_way(&off_io_engine_uring, 3);
    assert_int_equal(tiles.step, 0);
    steps(2);
}

// No job would find the state again: a step says so, and the file that has it.
static void a_file_that_is_gone_is_told(void **state)
{
    (void)state;
    open_in_way(&off_io_engine_uring, 3);
    steps(3);
    assert_int_equal(truncate(temporary_path(&temporary, "slots"), 100000), 0);
    assert_int_equal(off_tilefile_record(tiles.tilefile, 4, NULL, 0, &failure), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "/slots: was cut to 100000 of "));
    tiles_close(&tiles, true);
    open_in_way(&off_io_engine_uring, 3);
    steps(3);
    assert_int_equal(unlink(temporary_path(&temporary, "slots")), 0);
    assert_int_equal(tiles_step(&tiles, &failure), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "/slots: was removed"));
}

static void *open_another(void *argument)
{
    struct tiles *other = argument;
    const struct tiles_config config = {
        .path = temporary_path(&temporary, "slots"), .engine = &off_io_engine_sync, .buffers = 2};
    return tiles_open(other, &config, NULL) ? NULL : other;
}

// Who waits for a file that its owner then removes gets one of his own.
static void a_file_that_ends_is_made_anew(void **state)
{
    (void)state;
    struct tiles other;
    pthread_t thread;
    void *opened;
    open_in_way(&off_io_engine_sync, 2);
    steps(2);
    assert_int_equal(pthread_create(&thread, NULL, open_another, &other), 0);
    const struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    tiles_close(&tiles, true);
    assert_int_equal(pthread_join(thread, &opened), 0);
    assert_ptr_equal(opened, &other);
    tiles = other;
    assert_int_equal(temporary_entries(&temporary), 1);
    assert_int_equal(tiles.step, 0);
    steps(2);
}

// Without a second place and a name: what was put is there, and no job finds it.
static void in_place_leaves_nothing(void **state)
{
    (void)state;
    struct tiles_config config = {.path = temporary.directory,
                                  .engine = &off_io_engine_uring,
                                  .buffers = 3,
                                  .in_place = true};
    for (int i = 0; i < 2; i++) {
        config.unchecked = i == 1;
        config.encode = i == 0;
        ok(tiles_open(&tiles, &config, &failure));
        steps(4);
        ok(tiles_check(&tiles, &failure));
        assert_int_equal(temporary_entries(&temporary), 0);
        assert_int_equal(off_tilefile_record(tiles.tilefile, 1, NULL, 0, NULL), ZERO_E_INVALID);
        tiles_close(&tiles, true);
    }
    assert_int_equal(access(temporary.directory, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(passes_leave_what_was_put, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(passes_go_through_the_cache, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(encoding_can_begin_and_end, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(nothing_lies_behind_encoded_tiles, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_second_user_is_refused, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(the_step_before_is_there, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_new_beginning_can_be_taken_back, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(an_abandoned_pass_counts_for_nothing, set_up,
                                        rig_tear_down),
        cmocka_unit_test_setup_teardown(what_was_not_read_is_not_kept, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_failed_pass_keeps_nothing, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_failed_step_leaves_the_one_before, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(damage_is_found, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(records_that_lie_are_found, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(encoded_tiles_want_a_codec, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_file_cut_short_is_found, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_is_gone_is_told, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_ends_is_made_anew, set_up, rig_tear_down),
        cmocka_unit_test_setup_teardown(in_place_leaves_nothing, set_up, rig_tear_down),
    };
    return cmocka_run_group_tests_name("off_pipeline", tests, NULL, NULL);
}
