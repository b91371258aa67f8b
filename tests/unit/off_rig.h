/**
 * tests/unit/off_rig.h: tiles in a temporary directory: what every test of the pipeline sets up,
 * works on and tears down.
 */
#ifndef TESTS_UNIT_OFF_RIG_H
#define TESTS_UNIT_OFF_RIG_H

#include "tests/unit/off_tiles.h"
#include "tests/unit/temporary.h"

extern struct temporary temporary;
extern struct base_error failure;
extern struct tiles tiles;

/** How tiles are handled, by and by in all ways; those that fill are the last. */
enum { TILES_WAYS = 7, TILES_FILLING = 4 };

extern const struct tiles_config tiles_ways[TILES_WAYS];

/** For cmocka. */
int rig_set_up(void **state);
int rig_tear_down(void **state);

/** Fails the test, with what `failure` says, unless the result is ZERO_OK. */
void ok(zero_result result);

/** Opens the tiles handled in this way, in file `tilefile`; records are flushed if `buffers` is
 * odd.
 */
void open_tiles(const struct tiles_config *handled, const struct off_io_engine *engine,
                size_t buffers);

/** So many steps, all of which go well. */
void steps(int count);

#endif
