#include "zero/store/strip_file.h"

#include "offload/io/io_engine.h"
#include "zero/store/nvme_tier.h"

#include <assert.h>

// Beside the tiles' own queue, which keeps the disk busy, 8 MiB under way do for each of these; one
// that goes in one direction alone has the credits of both.
enum {
    LEAST_BUFFERS = 2,
    HELPERS = 1,
    CREDITS = (8 << 20) / OFF_USUAL_TRANSFER,
};

static size_t at_once(size_t wanted, const struct eng_strips *strips)
{
    const size_t some = strips->count < wanted ? strips->count : wanted;
    return some > LEAST_BUFFERS ? some : LEAST_BUFFERS;
}

static struct off_tilefile_config tilefile_config(const zero_ctx *z,
                                                  const struct eng_strips *strips)
{
    return (struct off_tilefile_config){
        .path = z->config.nvme_dir,
        .tiles = strips->count,
        .tile_bytes = strips->bytes,
        .in_place = true,
    };
}

static struct off_pipeline_config pipeline_config(const zero_ctx *z,
                                                  const struct eng_strips *strips, size_t buffers)
{
    return (struct off_pipeline_config){
        .engine = off_io_engine_find(z->config.io),
        .tiles = strips->count,
        .buffers = at_once(buffers, strips),
        .credits = {CREDITS, CREDITS},
        .timeout_s = z->config.timeout_s,
        .helpers = HELPERS,
    };
}

static struct off_tile_io_config tile_io_config(const zero_ctx *z, const struct eng_strips *strips,
                                                size_t buffers)
{
    return (struct off_tile_io_config){
        .engine = off_io_engine_find(z->config.io),
        .tiles = strips->count,
        .buffers = at_once(buffers, strips),
        .credits = {CREDITS, CREDITS},
        .timeout_s = z->config.timeout_s,
    };
}

void eng_strip_file_needs(const zero_ctx *z, const struct eng_strips *strips,
                          struct eng_strip_buffers buffers, struct eng_file_needs *file,
                          size_t *tables)
{
    *tables += strips->tables.bytes;
    if (strips->count == 0)
        return;
    const struct off_tilefile_config tilefile = tilefile_config(z, strips);
    const struct off_pipeline_config pipeline = pipeline_config(z, strips, buffers.pass);
    const struct off_tile_io_config tile_io = tile_io_config(z, strips, buffers.moves);
    const struct off_pipeline_memory pass = off_pipeline_memory(&pipeline, strips->largest);
    const struct off_pipeline_memory moves = off_tile_io_memory(&tile_io, strips->largest);
    file->bytes += off_tilefile_file_bytes(&tilefile);
    file->memory += pass.buffers + moves.buffers;
    *tables += off_tilefile_memory(&tilefile) + pass.tables + moves.tables;
}

zero_result eng_strip_file_open(const zero_ctx *z, struct eng_strip_file *file,
                                struct eng_strip_buffers buffers, struct base_error *error)
{
    const struct eng_strips *strips = &file->strips;
    const struct off_tilefile_config tilefile = tilefile_config(z, strips);
    struct off_pipeline_config pipeline = pipeline_config(z, strips, buffers.pass);
    struct off_tile_io_config tile_io = tile_io_config(z, strips, buffers.moves);
    int recorded;
    if (strips->count == 0)
        return ZERO_OK;
    zero_result r = off_tilefile_open(&file->tilefile, &tilefile, &recorded, error);
    pipeline.tilefile = tile_io.tilefile = file->tilefile;
    if (!r)
        r = off_pipeline_create(&file->pipeline, &pipeline, error);
    return r ? r : off_tile_io_create(&file->tile_io, &tile_io, error);
}

struct off_io_counts eng_strip_file_counts(const struct eng_strip_file *file)
{
    struct off_io_counts counts = {.commits = 0};
    if (file->pipeline)
        counts = off_pipeline_counts(file->pipeline).io;
    if (!file->tile_io)
        return counts;
    const struct off_io_counts moves = off_tile_io_counts(file->tile_io).io;
    off_io_counts_add(&counts, &moves);
    return counts;
}

void eng_strip_file_close(struct eng_strip_file *file)
{
    off_tile_io_destroy(file->tile_io);
    off_pipeline_destroy(file->pipeline);
    off_tilefile_close(file->tilefile, true);
    eng_strips_free(&file->strips);
}

/* ------------------------------------------------------------------ passes */

/** Appends a tile's strips to so many, but for one that goes on from the tile before. */
static size_t add_strips(const zero_ctx *z, struct eng_strip_file *file, size_t tile, size_t count,
                         eng_strip_wanted_fn wanted)
{
    const struct eng_piece_range range = file->strips.of_tile[tile];
    for (size_t i = 0; i < range.count; i++) {
        const size_t strip = range.first + (z->tier->up ? i : range.count - 1 - i);
        const bool goes_on = count > 0 && file->strips.order[count - 1] == strip;
        if (!goes_on && (!wanted || wanted(z, &file->strips.list[strip])))
            file->strips.order[count++] = strip;
    }
    return count;
}

void eng_strip_file_begin(const zero_ctx *z, struct eng_strip_file *file, size_t tiles,
                          eng_strip_wanted_fn wanted, bool makes)
{
    size_t count = 0;
    assert(tiles > 0 && tiles <= z->tier->tiles.count && !file->at_strip);
    file->makes = makes;
    if (!file->pipeline)
        return;
    for (size_t i = 0; i < tiles; i++)
        count = add_strips(z, file, z->tier->order[i], count, wanted);
    assert(count <= file->strips.count);
    if (makes)
        off_pipeline_begin_anew(file->pipeline, file->strips.order, count);
    else
        off_pipeline_begin(file->pipeline, file->strips.order, count);
}

static bool has(const struct eng_strip_file *file, size_t piece)
{
    const struct eng_strip *strip = &file->strips.list[file->strip.number];
    return file->at_strip && piece >= strip->first_piece &&
           piece < strip->first_piece + strip->pieces;
}

bool eng_strip_file_ready(const struct eng_strip_file *file, size_t piece)
{
    return !file->pipeline || has(file, piece) || off_pipeline_ready(file->pipeline);
}

static void leave(struct eng_strip_file *file)
{
    if (file->at_strip)
        off_pipeline_put(file->pipeline, &file->strip, file->makes);
    file->at_strip = false;
}

zero_result eng_strip_file_piece(struct eng_strip_file *file, size_t piece, unsigned char **bytes,
                                 struct base_error *error)
{
    if (!has(file, piece)) {
        leave(file);
        const zero_result r = off_pipeline_next(file->pipeline, &file->strip, error);
        if (r)
            return r;
        file->at_strip = true;
        assert(has(file, piece));
    }
    *bytes = (unsigned char *)file->strip.memory + file->strips.offset_of_piece[piece];
    return ZERO_OK;
}

zero_result eng_strip_file_end(struct eng_strip_file *file, struct base_error *error)
{
    if (!file->pipeline)
        return ZERO_OK;
    leave(file);
    return off_pipeline_end(file->pipeline, error);
}
