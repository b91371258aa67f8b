/**
 * zero/exec/device_tiles.h: state that passes through the device, tile by tile.
 */
#ifndef ZERO_EXEC_DEVICE_TILES_H
#define ZERO_EXEC_DEVICE_TILES_H

#include "zero/exec/device_parts.h"
#include "zero/model/ranges.h"

enum { DEVICE_TILE_BUFFERS = 8 };

/** What of a tile passes at a time: of files all of it, else what persists first. Of that nothing
 * is updated before the verdict. */
enum device_turn { DEVICE_ALL, DEVICE_PERSISTENT, DEVICE_OTHERS };

struct device_tiles {
    struct eng_tiles cut;
    unsigned char *memory;  /**< of the device: buffers, each of every DEVICE_TILE_BUFFERS-th tile,
                               and segments */
    size_t spacing;         /**< of buffers */
    size_t used;            /**< of them */
    void *inward, *outward; /**< streams */
    void *arrived, *worked; /**< events behind the newest tile's way in, and behind its update, */
    void
        *left[DEVICE_TILE_BUFFERS]; /**< and behind the way out of the newest tile of each buffer */
    size_t *first_segment;          /**< of each piece that trains, one more at the end, */
    size_t noted;                   /**< of which so many are known */
    enum device_turn turn;          /**< of the newest update, */
    size_t next;                    /**< and the first tile that it has not come to */
    void *pinned;
};

/** How the segments of an update are cut; tiles: that state passes through the device in, or NULL.
 */
static inline struct eng_range_cut device_segment_cut(const struct eng_layout *layout,
                                                      const struct eng_tiles *tiles)
{
    return (struct eng_range_cut){.layout = layout, .tiles = tiles, .most = BASE_DEVICE_SEGMENT};
}

/** How many there are at most. */
static inline size_t device_segments_count(const struct eng_layout *layout,
                                           const struct eng_placement *placement,
                                           const struct eng_tiles *tiles)
{
    const struct eng_range_cut cut = device_segment_cut(layout, tiles);
    return eng_ranges_count(&cut, placement);
}

/* ---- device_tiles.c */

/** Adds what tiles that pass through the device take. ZERO_E_NOMEM. */
zero_result device_tiles_need(const zero_ctx *z, const struct eng_placement *placement,
                              struct eng_need *need, struct base_error *error);
zero_result device_tiles_make(zero_ctx *z, struct base_error *error);
void device_tiles_free(zero_ctx *z);
/** How state is cut that passes through the device; NULL: none does. */
const struct eng_tiles *device_cut(const zero_ctx *z);
/** Memory of the device for the segments of an update. */
struct base_device_segment *device_segments(const zero_ctx *z);
/** Whether a field of a bucket is on the device between updates: its working copies are, and
 * these may be the only weights. */
bool device_field_stays(const zero_ctx *z, int field, size_t bucket);
/** Where a field is between updates. */
void *device_field_home(const zero_ctx *z, int field, size_t bucket, size_t element);
/** Where an update finds a field (0: weights, 1 + k: moment k) of an element on the device. */
void *device_field(const zero_ctx *z, int field, size_t bucket, size_t element);
/** Segment number `segment` begins at this element of a bucket: each segment, in order; and there
 * are so many.
 */
void device_tiles_note(const zero_ctx *z, size_t bucket, size_t element, size_t segment);
void device_tiles_noted(const zero_ctx *z, size_t segments);
/** Whether an address of state is the device's, where some is the host's. */
bool device_has(const zero_ctx *z, const void *address);
/** Waits until what passes is in memory of the host; or a stream does. */
zero_result device_tiles_settle(const zero_ctx *z, struct base_error *error);
zero_result device_tiles_before(const zero_ctx *z, void *stream, struct base_error *error);

/* ---- device_passes.c */

/** An update begins, with the buckets that persist. */
void device_tiles_begin(const zero_ctx *z);
/** It comes to a bucket that persists, or to one of the others, which come behind those. */
void device_tiles_turn(const zero_ctx *z, bool persistent);
/** Queues the update of all of a bucket that was not updated before; buckets come in order. */
zero_result device_tiles_bucket(const zero_ctx *z, size_t bucket, struct base_error *error);
/** A bucket, and its sums are queued, is updated before the verdict: so are now the tiles it was
 * the last one of. */
zero_result device_tiles_fused(const zero_ctx *z, size_t bucket, struct base_error *error);

#endif
