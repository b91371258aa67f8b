#include "tests/unit/off_tiles.h"

#include "base/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

size_t tiles_bytes(size_t tile)
{
    return (tile * tile * 997 + tile * 4096 + 1) % 300000 + 1;
}

// Whether a step changes a tile.
static bool changes(uint64_t step, size_t tile)
{
    return step == 1 || (tile + step) % 5 != 0;
}

// The last step that changed a tile.
static uint64_t changed_last(uint64_t step, size_t tile)
{
    while (step > 1 && !changes(step, tile))
        step--;
    return step;
}

// Contents are a ramp in each block: this much higher from byte to byte, and it goes on from 255 at
// 0. All ramps lie in one, each where its first byte is, so that it is memcpy and memcmp that touch
// tiles, which a thread sanitizer makes a tenth as slow as loops over their bytes.
enum { BLOCK = 4096, SLOPE = 13, SLOPES_INVERSE = 197, VALUES = 256 };
_Static_assert(SLOPE *SLOPES_INVERSE % VALUES == 1, "finds where a value is");

static unsigned char ramps[VALUES + BLOCK];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_ramps(void)
{
    for (size_t i = 0; i < sizeof ramps; i++)
        ramps[i] = (unsigned char)(i * SLOPE);
}

static const unsigned char *ramp_from(unsigned char first)
{
    pthread_once(&once, make_ramps);
    return ramps + first * SLOPES_INVERSE % VALUES;
}

static const unsigned char *contents(uint64_t step, size_t tile, size_t block)
{
    return ramp_from((unsigned char)(step * 41 + tile * 7 + block));
}

static size_t block_bytes(size_t bytes, size_t block)
{
    const size_t left = bytes - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static size_t block_count(size_t bytes)
{
    return (bytes + BLOCK - 1) / BLOCK;
}

static zero_result compare(const struct off_tile *tile, uint64_t step, struct base_error *error)
{
    const unsigned char *memory = tile->memory;
    const uint64_t last = changed_last(step, tile->number);
    const size_t bytes = tiles_bytes(tile->number);
    for (size_t b = 0; b < block_count(bytes); b++)
        if (memcmp(memory + b * BLOCK, contents(last, tile->number, b), block_bytes(bytes, b)) != 0)
            return zero_fail(error, ZERO_E_INVALID,
                             "tile %zu after step %ju: block %zu begins with %d, and is not all as "
                             "it was, with %d",
                             tile->number, (uintmax_t)step, b, memory[b * BLOCK],
                             *contents(last, tile->number, b));
    return ZERO_OK;
}

static void change(const struct off_tile *tile, uint64_t step)
{
    unsigned char *memory = tile->memory;
    const size_t bytes = tiles_bytes(tile->number);
    for (size_t b = 0; b < block_count(bytes); b++)
        memcpy(memory + b * BLOCK, contents(step, tile->number, b), block_bytes(bytes, b));
}

/* ------------------------------------------------------------------ a codec */

// Of each block its first byte is stored, and behind all of them so much that each tile has another
// length.
static size_t stored_bytes(size_t tile, size_t bytes)
{
    return block_count(bytes) + bytes * (tile % 7 + 1) / 8;
}

static size_t coder_bytes(const void *user)
{
    (void)user;
    return BLOCK;
}

static zero_result coder_create(void **coder, const void *user, struct base_error *error)
{
    *coder = base_calloc(1, coder_bytes(user));
    return *coder ? ZERO_OK : zero_fail(error, ZERO_E_NOMEM, "no memory for a coder");
}

static size_t encode(void *coder, size_t tile, const void *contents, size_t bytes, void *out,
                     size_t room)
{
    (void)coder;
    const unsigned char *from = contents;
    unsigned char *to = out;
    const size_t stored = stored_bytes(tile, bytes);
    if (tile % 7 == 3 || stored > room)
        return 0;
    memset(out, (int)tile, stored);
    for (size_t b = 0; b < block_count(bytes); b++) {
        to[b] = from[b * BLOCK];
        if (memcmp(from + b * BLOCK, ramp_from(to[b]), block_bytes(bytes, b)) != 0)
            return 0;
    }
    return stored;
}

static zero_result decode(void *coder, size_t tile, const void *in, size_t stored, void *contents,
                          size_t bytes, struct base_error *error)
{
    (void)coder;
    const unsigned char *from = in;
    unsigned char *to = contents;
    if (stored != stored_bytes(tile, bytes))
        return zero_fail(error, ZERO_E_CORRUPT, "%zu bytes, not %zu", stored,
                         stored_bytes(tile, bytes));
    for (size_t b = 0; b < block_count(bytes); b++)
        memcpy(to + b * BLOCK, ramp_from(from[b]), block_bytes(bytes, b));
    return ZERO_OK;
}

const struct off_tile_codec tiles_codec = {
    .size = sizeof(struct off_tile_codec),
    .name = "blocks",
    .bytes = coder_bytes,
    .create = coder_create,
    .encode = encode,
    .decode = decode,
    .destroy = base_free,
};

/* ------------------------------------------------------------------ steps */

struct off_pipeline_config tiles_pipeline_config(const struct tiles_config *config)
{
    return (struct off_pipeline_config){
        .engine = config->engine,
        .tiles = TILES,
        .buffers = config->buffers,
        .transfer_bytes = 65536,
        .credits = {5, 4},
        .timeout_s = 60,
        .helpers = config->helpers,
        .codec = &tiles_codec,
        .encode = config->encode,
        .fill = config->fill,
    };
}

zero_result tiles_open(struct tiles *tiles, const struct tiles_config *config,
                       struct base_error *error)
{
    size_t bytes[TILES];
    for (size_t i = 0; i < TILES; i++)
        bytes[i] = tiles_bytes(i);
    const struct off_tilefile_config wanted = {
        .path = config->path,
        .identity = {17, 4},
        .tiles = TILES,
        .tile_bytes = bytes,
        .payload_bytes = PAYLOAD_BYTES,
        .durable = config->durable,
        .in_place = config->in_place,
        .unchecked = config->unchecked,
    };
    *tiles = (struct tiles){.in_place = config->in_place};
    int recorded;
    char payload[PAYLOAD_BYTES];
    size_t payload_bytes;
    zero_result result = off_tilefile_open(&tiles->tilefile, &wanted, &recorded, error);
    if (!result && recorded == 0)
        result = off_tilefile_clear(tiles->tilefile, error);
    if (!result && recorded > 0) {
        tiles->step = off_tilefile_step(tiles->tilefile, 0);
        result = off_tilefile_recover(tiles->tilefile, 0, payload, &payload_bytes, error);
        if (!result && (payload_bytes != tiles->step % PAYLOAD_BYTES ||
                        (payload_bytes > 0 && payload[payload_bytes - 1] != 'p')))
            result = zero_fail(error, ZERO_E_INVALID, "a payload of %zu bytes", payload_bytes);
    }
    struct off_pipeline_config pipeline = tiles_pipeline_config(config);
    pipeline.tilefile = tiles->tilefile;
    if (!result)
        result = off_pipeline_create(&tiles->pipeline, &pipeline, error);
    if (result)
        tiles_close(tiles, false);
    return result;
}

void tiles_close(struct tiles *tiles, bool remove)
{
    off_pipeline_destroy(tiles->pipeline);
    off_tilefile_close(tiles->tilefile, remove);
    *tiles = (struct tiles){.step = 0};
}

// Alternating steps go in alternating directions.
static void begin(struct tiles *tiles)
{
    for (size_t i = 0; i < TILES; i++)
        tiles->order[i] = tiles->step % 2 ? TILES - 1 - i : i;
    off_pipeline_begin(tiles->pipeline, tiles->order, TILES);
}

static void work(const struct off_tile *tile, struct tiles_work *work)
{
    if (work->step > 0 && compare(tile, work->step, &work->error))
        return;
    if (work->next > 0)
        change(tile, work->next);
}

// What a pass has found.
static zero_result verdict(const struct tiles *tiles, struct base_error *error)
{
    for (size_t i = 0; i < TILES; i++)
        if (tiles->work[i].error.result)
            return zero_fail(error, ZERO_E_INVALID, "%s", tiles->work[i].error.message);
    return ZERO_OK;
}

static zero_result pass(struct tiles *tiles, uint64_t next, struct base_error *error)
{
    struct off_tile tile;
    struct base_error end = {.result = ZERO_OK};
    zero_result result;
    memset(tiles->work, 0, sizeof tiles->work);
    begin(tiles);
    while ((result = off_pipeline_next(tiles->pipeline, &tile, error)) == ZERO_OK) {
        const bool changed = next > tiles->step && changes(next, tile.number);
        struct tiles_work *todo = &tiles->work[tile.number];
        *todo = (struct tiles_work){
            .tile = tile.number, .step = tiles->step, .next = changed ? next : 0};
        work(&tile, todo);
        off_pipeline_put(tiles->pipeline, &tile, changed);
    }
    const zero_result ended = off_pipeline_end(tiles->pipeline, &end);
    const zero_result found = verdict(tiles, error);
    if (result == ZERO_NOT_FOUND)
        result = found;
    return result ? result : ended ? zero_fail(error, ended, "%s", end.message) : ZERO_OK;
}

zero_result tiles_step(struct tiles *tiles, struct base_error *error)
{
    const uint64_t next = tiles->step + 1;
    char payload[PAYLOAD_BYTES];
    memset(payload, 'p', sizeof payload);
    zero_result result = pass(tiles, next, error);
    if (!result && !tiles->in_place)
        result = off_tilefile_record(tiles->tilefile, next, payload, next % PAYLOAD_BYTES, error);
    if (result) {
        off_tilefile_abandon(tiles->tilefile);
        off_pipeline_forget(tiles->pipeline);
        return result;
    }
    tiles->step = next;
    return ZERO_OK;
}

zero_result tiles_check(struct tiles *tiles, struct base_error *error)
{
    return pass(tiles, tiles->step, error);
}

bool tiles_flip(const struct off_tilefile *tilefile, size_t tile, size_t at)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", off_tilefile_file(tilefile)->fd);
    const int fd = open(path, O_RDWR);
    const off_t offset = (off_t)(off_tilefile_current_place(tilefile, tile) + at);
    unsigned char byte = 0;
    bool done = fd >= 0 && pread(fd, &byte, 1, offset) == 1;
    byte ^= 16;
    done = done && pwrite(fd, &byte, 1, offset) == 1;
    if (fd >= 0)
        close(fd);
    return done;
}
