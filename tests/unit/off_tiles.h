/**
 * tests/unit/off_tiles.h: tiles of uneven sizes whose contents are a function of tile and step, and
 * steps over them.
 */
#ifndef TESTS_UNIT_OFF_TILES_H
#define TESTS_UNIT_OFF_TILES_H

#include "offload/io/io_engine.h"
#include "offload/pipeline.h"

enum { TILES = 23, PAYLOAD_BYTES = 100 };

/** What is done to a tile in a pass. */
struct tiles_work {
    size_t tile;
    uint64_t step, next; /**< it is compared with, and changed to; 0: it is not */
    struct base_error error;
};

/** Slots and a pipeline over them. */
struct tiles {
    struct off_tilefile *tilefile;
    struct off_pipeline *pipeline;
    size_t order[TILES];
    uint64_t step;
    bool in_place;
    struct tiles_work work[TILES];
};

struct tiles_config {
    const char *path;
    const struct off_io_engine *engine;
    size_t buffers;
    bool durable;
    unsigned helpers;
    bool encode; /**< with tiles_codec, which decodes in any case */
    bool fill, in_place, unchecked;
};

/** That of the pipeline, but for the tile file. */
struct off_pipeline_config tiles_pipeline_config(const struct tiles_config *config);

/** Encodes all tiles but each seventh, to a tenth and more of their bytes. */
extern const struct off_tile_codec tiles_codec;

/** Opens them at the newest record, or clears them: step 0 with no contents. */
zero_result tiles_open(struct tiles *tiles, const struct tiles_config *config,
                       struct base_error *error);

void tiles_close(struct tiles *tiles, bool remove);

/** A step: every tile but each fifth is read, checked to be what the step before left, and
 * changed; all are recorded. After an error all is as before the step. */
zero_result tiles_step(struct tiles *tiles, struct base_error *error);

/** Reads all tiles; whether they are what the steps so far have left. */
zero_result tiles_check(struct tiles *tiles, struct base_error *error);

/** Bytes of a tile. */
size_t tiles_bytes(size_t tile);

/** Changes a bit of byte `at` of what the file, which may have no name, has of a tile; whether it
 * could. */
bool tiles_flip(const struct off_tilefile *tilefile, size_t tile, size_t at);

#endif
