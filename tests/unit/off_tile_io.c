// offload/tile_io.h: moves in any order leave what was given and give what was left, and whatever
// fails is told by the moves it has kept from it.
#include "base/arena.h"
#include "base/fault.h"
#include "offload/io/io_engine.h"
#include "offload/tile_io.h"
#include "tests/sweep.h"
#include "tests/unit/off_late.h"
#include "tests/unit/off_tiles.h"
#include "tests/unit/temporary.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

// What a move brings or fetches: contents that are others in each version.
struct cargo {
    struct off_tile_op op;
    unsigned version;
    int exchanged; // times
    bool same;     // what was read last
};

static struct temporary temporary;
static struct base_error failure;
static struct off_tilefile *tilefile;
static struct off_tile_io *tile_io;
static struct cargo cargos[TILES];
static unsigned char noise[8192];

static int set_up(void **state)
{
    (void)state;
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof noise; i++) {
        random = random * 1664525 + 1013904223;
        noise[i] = (unsigned char)(random >> 24);
    }
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static void close_all(void)
{
    off_tile_io_destroy(tile_io);
    off_tilefile_close(tilefile, true);
    tile_io = NULL;
    tilefile = NULL;
}

static atomic_bool blocked, stuck; // engine commits are to be, one is

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    blocked = false;
    close_all();
    temporary_remove(&temporary);
    return 0;
}

static void ok(zero_result result)
{
    if (result)
        fail_msg("%s: %s", base_result_text(result), failure.message);
}

static struct off_tile_io_config tile_io_config(const struct off_io_engine *engine, size_t buffers)
{
    return (struct off_tile_io_config){
        .engine = engine,
        .tilefile = tilefile,
        .tiles = TILES,
        .buffers = buffers,
        .transfer_bytes = 65536,
        .credits = {5, 4},
        .timeout_s = 60,
    };
}

static void tile_io_anew(const struct off_io_engine *engine, size_t buffers, double timeout_s)
{
    struct off_tile_io_config config = tile_io_config(engine, buffers);
    config.timeout_s = timeout_s;
    off_tile_io_destroy(tile_io);
    ok(off_tile_io_create(&tile_io, &config, &failure));
}

static void open_tilefile(bool in_place)
{
    size_t bytes[TILES];
    int recorded;
    for (size_t i = 0; i < TILES; i++) {
        bytes[i] = tiles_bytes(i);
        cargos[i] = (struct cargo){.version = 0};
    }
    const struct off_tilefile_config config = {
        .path = in_place ? temporary.directory : temporary_path(&temporary, "slots"),
        .tiles = TILES,
        .tile_bytes = bytes,
        .in_place = in_place,
    };
    ok(off_tilefile_open(&tilefile, &config, &recorded, &failure));
    ok(off_tilefile_clear(tilefile, &failure));
}

static void open_all(const struct off_io_engine *engine, size_t buffers, bool in_place)
{
    base_error_clear(&failure);
    open_tilefile(in_place);
    tile_io_anew(engine, buffers, 60);
}

/* ------------------------------------------------------------------ moves */

enum { BLOCK = 4096 };

// What a block of a tile has: `noise`, from another place on in each.
static const unsigned char *contents_of(unsigned version, size_t tile, size_t block)
{
    return noise + (version * 41 + tile * 7 + block * 13) % BLOCK;
}

static size_t bytes_of(size_t tile, size_t block)
{
    const size_t left = tiles_bytes(tile) - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static void give(void *user, size_t tile, void *contents)
{
    struct cargo *cargo = user;
    unsigned char *to = contents;
    cargo->exchanged++;
    for (size_t b = 0; b * BLOCK < tiles_bytes(tile); b++)
        memcpy(to + b * BLOCK, contents_of(cargo->version, tile, b), bytes_of(tile, b));
}

static void take(void *user, size_t tile, void *contents)
{
    struct cargo *cargo = user;
    const unsigned char *from = contents;
    cargo->exchanged++;
    cargo->same = true;
    for (size_t b = 0; b * BLOCK < tiles_bytes(tile); b++)
        cargo->same &=
            memcmp(from + b * BLOCK, contents_of(cargo->version, tile, b), bytes_of(tile, b)) == 0;
}

static struct off_tile_op *start(size_t tile, enum off_direction direction)
{
    struct cargo *cargo = &cargos[tile];
    cargo->op.direction = direction;
    cargo->op.tile = tile;
    cargo->op.exchange = direction == OFF_READ ? take : give;
    cargo->op.user = cargo;
    cargo->version += direction == OFF_WRITE;
    cargo->exchanged = 0;
    cargo->same = direction == OFF_WRITE;
    off_tile_io_start(tile_io, &cargo->op);
    return &cargo->op;
}

static void end(size_t tile)
{
    struct cargo *cargo = &cargos[tile];
    ok(off_tile_io_wait(tile_io, &cargo->op, &failure));
    assert_true(off_tile_io_done(tile_io, &cargo->op));
    assert_int_equal(cargo->exchanged, 1);
    if (!cargo->same)
        fail_msg("tile %zu is not version %u", tile, cargo->version);
}

// All tiles, in the order of this stride, which has no factor in common with their number.
static void start_all(enum off_direction direction, size_t stride)
{
    for (size_t i = 0; i < TILES; i++)
        start(i * stride % TILES, direction);
}

static void end_all(size_t stride)
{
    for (size_t i = 0; i < TILES; i++)
        end(i * stride % TILES);
}

/* ------------------------------------------------------------------ what works */

static void moves_of(const struct off_io_engine *engine, size_t buffers)
{
    uint64_t bytes = 0, rounded = 0;
    uint32_t random = (uint32_t)buffers;
    open_all(engine, buffers, true);
    start_all(OFF_WRITE, 5);
    end_all(9);
    const uint64_t allocations = base_allocation_count();
    start_all(OFF_READ, 3);
    end_all(1);
    // Then as they come: reads and writes of other tiles lie between those of one.
    for (int i = 0; i < 150; i++) {
        random = random * 1664525 + 1013904223;
        const size_t tile = (random >> 16) % TILES;
        end(tile);
        start(tile, random >> 31 ? OFF_WRITE : OFF_READ);
    }
    end_all(2);
    start_all(OFF_READ, 1);
    end_all(1);
    assert_int_equal(base_allocation_count(), allocations);
    const struct off_tile_io_counts counts = off_tile_io_counts(tile_io);
    assert_int_equal(counts.moves[OFF_READ] + counts.moves[OFF_WRITE], 3 * TILES + 150);
    for (size_t i = 0; i < TILES; i++) {
        bytes += tiles_bytes(i) * cargos[i].version;
        rounded += (tiles_bytes(i) + 4095) / 4096 * 4096 * cargos[i].version;
    }
    assert_int_equal(counts.contents[OFF_WRITE], bytes);
    assert_int_equal(counts.io.bytes[OFF_WRITE], rounded);
    close_all();
    assert_int_equal(temporary_entries(&temporary), 0);
}

static void moves_in_any_order(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    const size_t buffers[] = {1, 2, 5, TILES + 3};
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++)
        for (size_t b = 0; b < sizeof buffers / sizeof buffers[0]; b++)
            if (test_takes((int)(e + b)))
                moves_of(engine, buffers[b]);
}

// Where the file system has no O_DIRECT.
static void moves_go_through_the_cache(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++) {
        base_fault_set("file.direct:einval@1+", NULL);
        moves_of(engine, 2);
        assert_int_equal(base_fault_fired(), 1);
    }
}

// What is written elsewhere than in place is current when it is recorded, and not before.
static void records_make_it_current(void **state)
{
    (void)state;
    open_all(&off_io_engine_threads, 3, false);
    start_all(OFF_WRITE, 5);
    end_all(1);
    ok(off_tilefile_record(tilefile, 1, NULL, 0, &failure));
    start_all(OFF_WRITE, 7);
    end_all(1);
    for (size_t i = 0; i < TILES; i++)
        cargos[i].version--;
    start_all(OFF_READ, 3);
    end_all(1);
    ok(off_tilefile_record(tilefile, 2, NULL, 0, &failure));
    for (size_t i = 0; i < TILES; i++)
        cargos[i].version++;
    start_all(OFF_READ, 3);
    end_all(1);
}

// Recorded contents can be had when others are current, or about to be.
static void what_was_recorded_is_read(void **state)
{
    (void)state;
    struct off_contents recorded[TILES];
    open_all(&off_io_engine_threads, 3, false);
    start_all(OFF_WRITE, 5);
    end_all(1);
    ok(off_tilefile_record(tilefile, 1, NULL, 0, &failure));
    for (size_t i = 0; i < TILES; i++) {
        recorded[i] = off_tilefile_recorded(tilefile, i);
        recorded[i].checksum++; // who takes them verifies them
    }
    start_all(OFF_WRITE, 7);
    end_all(1);
    for (int newer = 1; newer <= 2; newer++) {
        for (size_t i = 0; i < TILES; i++) {
            cargos[i].version--;
            cargos[i].op.recorded = &recorded[i];
        }
        start_all(OFF_READ, 3);
        end_all(1);
        for (size_t i = 0; i < TILES; i++) {
            cargos[i].version++;
            cargos[i].op.recorded = NULL;
        }
        ok(newer == 1 ? off_tilefile_record(tilefile, 2, NULL, 0, &failure) : ZERO_OK);
    }
    start_all(OFF_READ, 3);
    end_all(1);
}

static void one_byte(void *user, size_t tile, void *contents)
{
    (void)tile;
    *(unsigned char *)contents = *(unsigned char *)user;
}

static void same_byte(void *user, size_t tile, void *contents)
{
    (void)tile;
    assert_int_equal(*(unsigned char *)contents, *(unsigned char *)user);
}

// The checksum is of the tile's byte, and not of what is written behind it.
static void a_tile_may_be_one_byte(void **state)
{
    (void)state;
    const size_t bytes = 1;
    int recorded;
    unsigned char byte = 17;
    const struct off_tilefile_config config = {
        .path = temporary.directory, .tiles = 1, .tile_bytes = &bytes, .in_place = true};
    ok(off_tilefile_open(&tilefile, &config, &recorded, &failure));
    struct off_tile_io_config wanted = tile_io_config(&off_io_engine_uring, 1);
    wanted.tiles = 1;
    ok(off_tile_io_create(&tile_io, &wanted, &failure));
    struct off_tile_op op = {.direction = OFF_WRITE, .exchange = one_byte, .user = &byte};
    ok(off_tile_io_wait(tile_io, &op, &failure)); // was never started
    off_tile_io_start(tile_io, &op);
    ok(off_tile_io_wait(tile_io, &op, &failure));
    op.direction = OFF_READ;
    op.exchange = same_byte;
    off_tile_io_start(tile_io, &op);
    ok(off_tile_io_wait(tile_io, &op, &failure));
}

/* ------------------------------------------------------------------ what fails */

// What comes of tiles after writes that may have failed: the new contents, or an error. Those whose
// write has not begun have none.
static void look_again(const struct off_io_engine *engine, const bool *written)
{
    tile_io_anew(engine, 1, 60);
    for (size_t i = 0; i < TILES; i++) {
        assert_true(off_tilefile_has_contents(tilefile, i) || !written[i]);
        if (!off_tilefile_has_contents(tilefile, i))
            continue;
        base_error_clear(&failure);
        const zero_result result = off_tile_io_wait(tile_io, start(i, OFF_READ), &failure);
        if (written[i] || result == ZERO_OK) {
            end(i);
        } else {
            assert_int_equal(result, ZERO_E_CORRUPT);
            tile_io_anew(engine, 1, 60);
        }
    }
}

// Writes all tiles and reads them again; whether all went well. Each move does what it says, and
// after the first that fails nothing begins any more.
static bool round_trip(const struct off_io_engine *engine)
{
    bool written[TILES] = {false}, whole = true;
    struct base_error first = {.result = ZERO_OK};
    for (int direction = OFF_WRITE; direction >= OFF_READ; direction--) {
        start_all((enum off_direction)direction, 3);
        for (size_t i = 0; i < TILES; i++) {
            struct base_error error = {.result = ZERO_OK};
            const zero_result result = off_tile_io_wait(tile_io, &cargos[i].op, &error);
            if (direction == OFF_WRITE)
                written[i] = result == ZERO_OK;
            if (!result) {
                end(i);
                continue;
            }
            whole = false;
            assert_int_equal(result, ZERO_E_IO);
            assert_non_null(strstr(error.message, temporary.directory));
            assert_non_null(strstr(error.message, ": tile "));
            if (first.result)
                assert_string_equal(error.message, first.message);
            first = error;
        }
    }
    if (whole)
        return true;
    cargos[0].op.direction = OFF_WRITE;
    cargos[0].exchanged = 0;
    off_tile_io_start(tile_io, &cargos[0].op);
    assert_int_equal(off_tile_io_wait(tile_io, &cargos[0].op, NULL), ZERO_E_IO);
    assert_int_equal(cargos[0].exchanged, 0);
    base_fault_set(NULL, NULL);
    look_again(engine, written);
    return false;
}

static void sweep(const struct off_io_engine *engine, const char *point, bool fails)
{
    int fired = 0;
    for (int n = 1;; n += TEST_STRIDE > 1 ? 2 * n : 1) {
        char fault[64];
        open_all(engine, (size_t)(n % 4) + 1, true);
        snprintf(fault, sizeof fault, "%s@%d", point, n);
        base_fault_set(fault, NULL);
        const bool whole = round_trip(engine);
        const bool done = base_fault_fired() == 0;
        const struct off_io_counts counts = off_tile_io_counts(tile_io).io;
        base_fault_set(NULL, NULL);
        if (!fails) {
            assert_true(whole);
            assert_int_equal(counts.shortened + counts.repeated, done ? 0 : 1);
        }
        close_all();
        if (whole && done)
            break;
        fired++;
    }
    assert_true(fired > 0);
}

static void failures_are_told(void **state)
{
    (void)state;
    const struct {
        const char *point;
        bool fails;
    } points[] = {
        {"offload.read", true},         {"offload.write:enospc", true}, {"offload.submit", true},
        {"offload.read:eagain", false}, {"offload.write:eintr", false}, {"offload.short", false},
    };
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++)
        for (size_t p = 0; p < sizeof points / sizeof points[0]; p++)
            if (test_takes((int)(e + p)))
                sweep(engine, points[p].point, points[p].fails);
}

// Of moves that keep their failures one fails alone, whichever it is, and can be begun again.
static void a_failure_may_be_a_moves_own(void **state)
{
    (void)state;
    struct base_error own[TILES];
    open_all(&off_io_engine_uring, 3, true);
    start_all(OFF_WRITE, 5);
    end_all(1);
    base_fault_set("offload.read@4,offload.read@9", NULL);
    for (int failed = 2, round = 0; round < 2; round++, failed = 0) {
        for (size_t i = 0; i < TILES; i++) {
            base_error_clear(&own[i]);
            cargos[i].op.failure = &own[i];
        }
        start_all(OFF_READ, 3);
        for (size_t i = 0; i < TILES; i++) {
            struct base_error error = {.result = ZERO_OK};
            const zero_result result = off_tile_io_wait(tile_io, &cargos[i].op, &error);
            assert_int_equal(own[i].result, result);
            if (!result) {
                end(i);
                continue;
            }
            failed--;
            assert_int_equal(result, ZERO_E_IO);
            assert_string_equal(error.message, own[i].message);
            assert_int_equal(cargos[i].exchanged, 0);
        }
        assert_int_equal(failed, 0);
    }
    for (size_t i = 0; i < TILES; i++)
        cargos[i].op.failure = NULL;
}

// A flipped bit is found by the read, which says where, and gives nothing away.
static void damage_is_found(void **state)
{
    (void)state;
    for (size_t tile = 0; tile < TILES; tile += 4) {
        char words[64];
        open_all(&off_io_engine_uring, 3, true);
        start_all(OFF_WRITE, 5);
        end_all(1);
        assert_true(tiles_flip(tilefile, tile, tiles_bytes(tile) - 1));
        start(tile, OFF_READ);
        assert_int_equal(off_tile_io_wait(tile_io, &cargos[tile].op, &failure), ZERO_E_CORRUPT);
        assert_int_equal(cargos[tile].exchanged, 0);
        snprintf(words, sizeof words, ": tile %zu, %zu bytes at offset %ju, ", tile,
                 tiles_bytes(tile), (uintmax_t)off_tilefile_current_place(tilefile, tile));
        assert_non_null(strstr(failure.message, temporary.directory));
        assert_non_null(strstr(failure.message, words));
        close_all();
    }
}

// One that is there twice, one that is there in another's place, and one that has nothing to read.
static void mistakes_are_told(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct cargo other = {.version = 0};
    for (int which = 0; which < 3; which++) {
        open_all(&off_io_engine_late, 2, true); // whose first write takes a while
        struct off_tile_op *op = start(0, OFF_WRITE);
        while (!late.begun)
            nanosleep(&pause, NULL);
        struct off_tile_op another = {
            .direction = OFF_WRITE, .tile = 0, .exchange = give, .user = &other};
        if (which == 0) {
            off_tile_io_start(tile_io, op);
        } else {
            another.tile = which == 2 ? 7 : 0;
            another.direction = which == 2 ? OFF_READ : OFF_WRITE;
            off_tile_io_start(tile_io, &another);
            assert_true(off_tile_io_done(tile_io, &another));
            assert_int_equal(off_tile_io_wait(tile_io, &another, &failure), ZERO_E_STATE);
        }
        if (which == 0)
            assert_int_equal(off_tile_io_wait(tile_io, op, &failure), ZERO_E_STATE);
        assert_non_null(strstr(failure.message, which == 2 ? "tile 7 is to be read and was never"
                                                           : "tile 0 is to be moved, and is "));
        assert_int_equal(other.exchanged, 0);
        assert_int_equal(off_tile_io_wait(tile_io, start(3, OFF_WRITE), NULL), ZERO_E_STATE);
        close_all();
    }
}

// What does not come back is waited for so long, whatever has failed before; its tile's neighbours
// don't come, either.
static void a_stuck_write_is_told(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        open_tilefile(true);
        tile_io_anew(&off_io_engine_late, 2, 0.1);
        late.never = true;
        struct off_tile_op *moves[] = {start(0, OFF_WRITE), start(1, OFF_WRITE),
                                       start(2, OFF_WRITE)};
        base_fault_set(fails ? "offload.write@1" : NULL, NULL);
        base_error_clear(&failure);
        assert_int_equal(off_tile_io_wait(tile_io, moves[0], &failure), ZERO_E_TIMEOUT);
        assert_non_null(strstr(failure.message, ": nothing was read or written for 0.1 s, with 1"));
        assert_non_null(strstr(failure.message, " under way, the longest tile "));
        assert_non_null(strstr(failure.message, " at offset "));
        assert_int_equal(strstr(failure.message, "EIO") != NULL, fails);
        base_fault_set(NULL, NULL);
        for (int i = 1; fails && i < 3; i++)
            assert_int_equal(off_tile_io_wait(tile_io, moves[i], NULL), ZERO_E_TIMEOUT);
        start(5, OFF_WRITE);
        assert_int_equal(off_tile_io_wait(tile_io, &cargos[5].op, NULL), ZERO_E_TIMEOUT);
        close_all();
    }
}

// Nor is it a failure of the move's own, if there may be one.
static void a_stuck_read_is_every_moves_failure(void **state)
{
    (void)state;
    struct base_error own = {.result = ZERO_OK};
    open_all(&off_io_engine_sync, 2, false);
    start_all(OFF_WRITE, 5);
    end_all(1);
    ok(off_tilefile_record(tilefile, 1, NULL, 0, &failure));
    const struct off_contents recorded = off_tilefile_recorded(tilefile, 0);
    tile_io_anew(&off_io_engine_late, 2, 0.1);
    late.never = late.begun = true; // of the reads the last one is held, too
    cargos[0].op.recorded = &recorded;
    cargos[0].op.failure = &own;
    const zero_result result = off_tile_io_wait(tile_io, start(0, OFF_READ), &failure);
    cargos[0].op.recorded = NULL;
    cargos[0].op.failure = NULL;
    assert_int_equal(result, ZERO_E_TIMEOUT);
    assert_int_equal(own.result, ZERO_OK);
    assert_int_equal(cargos[0].exchanged, 0);
    assert_non_null(strstr(failure.message, ": nothing was read or written for 0.1 s, with 1"));
    assert_int_equal(off_tile_io_wait(tile_io, start(1, OFF_READ), NULL), ZERO_E_TIMEOUT);
}

// As a read or write that the kernel does not come back from.
static zero_result commit_blocked(void *state, struct base_error *error)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (; blocked; stuck = true)
        nanosleep(&pause, NULL);
    return off_io_engine_sync.commit(state, error);
}

// Then the tile I/O's thread cannot tell, and the caller that waits for it does.
static void a_stuck_engine_is_told(void **state)
{
    (void)state;
    static struct off_io_engine engine; // until the tile I/O's end
    engine = off_io_engine_sync;
    engine.commit = commit_blocked;
    open_tilefile(true);
    tile_io_anew(&engine, 2, 0.1);
    blocked = true;
    struct off_tile_op *moves[] = {start(0, OFF_WRITE), start(1, OFF_WRITE), start(2, OFF_WRITE)};
    for (int i = 0; i < 3; i++) {
        base_error_clear(&failure);
        assert_int_equal(off_tile_io_wait(tile_io, moves[i], &failure), ZERO_E_TIMEOUT);
        assert_non_null(strstr(failure.message, ": reads and writes have not come back for 0.1 s, "
                                                "of which one is tile "));
        assert_non_null(strstr(failure.message, " to offset "));
    }
    blocked = false;
    close_all();
}

static atomic_bool exchanging, exchanged;

static void give_slowly(void *user, size_t tile, void *contents)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    (void)user, (void)tile, (void)contents;
    exchanging = true;
    nanosleep(&pause, NULL);
    exchanged = true;
}

// The caller that stops the tile I/O gives up the memory that is just being copied from.
static void a_stop_waits_for_what_is_exchanged(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    static struct off_tile_op op; // until the tile I/O's end
    op = (struct off_tile_op){.direction = OFF_WRITE, .tile = 0, .exchange = give_slowly};
    open_all(&off_io_engine_sync, 2, true);
    exchanging = exchanged = false;
    off_tile_io_start(tile_io, &op);
    while (!exchanging)
        nanosleep(&pause, NULL);
    off_tile_io_stop(tile_io);
    assert_true(exchanged);
}

// What a read brings then belongs to no caller: the one that stops the tile I/O gives up the memory
// it was for.
static void nothing_is_exchanged_after_stop(void **state)
{
    (void)state;
    static struct off_io_engine engine; // until the tile I/O's end
    const struct timespec pause = {.tv_nsec = 1000000};
    engine = off_io_engine_sync;
    engine.commit = commit_blocked;
    open_all(&engine, 2, true);
    start(0, OFF_WRITE);
    end(0);
    stuck = false;
    blocked = true;
    start(0, OFF_READ);
    while (!stuck)
        nanosleep(&pause, NULL);
    off_tile_io_stop(tile_io);
    blocked = false;
    close_all();
    assert_int_equal(cargos[0].exchanged, 0);
    off_tile_io_stop(NULL);
}

// Stops the process for longer than anything may take, once it is told to.
static pid_t stop_once_told(const int told[2])
{
    const struct timespec nap = {.tv_sec = 2};
    char byte;
    const pid_t child = fork();
    if (child != 0)
        return child;
    if (read(told[0], &byte, 1) != 1 || kill(getppid(), SIGSTOP) != 0)
        _exit(1);
    nanosleep(&nap, NULL);
    _exit(kill(getppid(), SIGCONT) != 0);
}

static void a_stopped_process_is_not_late(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 1000000};
    int told[2], status;
    open_tilefile(true);
    tile_io_anew(&off_io_engine_late, 2, 1.6);
    late.ns = UINT64_C(2300000000); // it goes on after the process does
    assert_int_equal(pipe(told), 0);
    const pid_t child = stop_once_told(told);
    assert_true(child > 0);
    start(0, OFF_WRITE);
    while (!late.begun)
        nanosleep(&pause, NULL);
    assert_int_equal(write(told[1], "", 1), 1);
    end(0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(told[0]);
    close(told[1]);
}

static void destroy_waits_for_the_kernel_alone(void **state)
{
    (void)state;
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++) {
        open_all(engine, 3, true);
        start_all(OFF_WRITE, 5);
        off_tile_io_destroy(tile_io);
        tile_io = NULL;
        for (size_t i = 0; i < TILES; i++)
            assert_in_range(cargos[i].exchanged, 0, 1);
        close_all();
    }
    off_tile_io_destroy(NULL);
}

/* ------------------------------------------------------------------ what it takes */

static void memory_is_known_before(void **state)
{
    (void)state;
    size_t largest = 0;
    for (size_t i = 0; i < TILES; i++)
        largest = tiles_bytes(i) > largest ? tiles_bytes(i) : largest;
    const struct off_io_engine *engine;
    for (size_t e = 0; (engine = off_io_engine_at(e)); e++) {
        open_all(engine, 5, true);
        const struct off_tile_io_config config = tile_io_config(engine, 5);
        const struct off_pipeline_memory memory = off_tile_io_memory(&config, largest);
        assert_int_equal(memory.buffers, off_tile_io_pages(tile_io)->bytes);
        assert_in_range(memory.threads, 1, 10);
        assert_in_range(memory.tables, 5 * sizeof(struct off_request), 100000);
        close_all();
    }
}

static void what_cannot_be_created_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *fault, *words;
    } cases[] = {
        {"thread@1", "thread"}, {"pages.map:enomem@1,pages.reserved@1", "ENOMEM"},
        {"alloc@1", "memory"},  {"alloc@2", "memory"},
        {"alloc@3", "memory"},  {"alloc@4", "memory"},
    };
    open_tilefile(true);
    struct off_tile_io_config config = tile_io_config(&off_io_engine_sync, 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        base_error_clear(&failure);
        base_fault_set(cases[i].fault, NULL);
        assert_int_equal(off_tile_io_create(&tile_io, &config, &failure), ZERO_E_NOMEM);
        base_fault_set(NULL, NULL);
        assert_null(tile_io);
        if (!strstr(failure.message, cases[i].words))
            fail_msg("%s: %s", cases[i].fault, failure.message);
    }
    config.buffers = 0;
    assert_int_equal(off_tile_io_create(&tile_io, &config, NULL), ZERO_E_INVALID);
    config.buffers = 1;
    config.transfer_bytes = 5000;
    assert_int_equal(off_tile_io_create(&tile_io, &config, NULL), ZERO_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(moves_in_any_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(moves_go_through_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(records_make_it_current, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_recorded_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tile_may_be_one_byte, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failures_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failure_may_be_a_moves_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mistakes_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stuck_write_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stuck_read_is_every_moves_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stuck_engine_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stop_waits_for_what_is_exchanged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_exchanged_after_stop, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stopped_process_is_not_late, set_up, tear_down),
        cmocka_unit_test_setup_teardown(destroy_waits_for_the_kernel_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_is_known_before, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_created_says_why, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_tile_io", tests, NULL, NULL);
}
