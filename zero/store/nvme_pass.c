#include "zero/core/addresses.h"
#include "zero/core/overwrite.h"
#include "zero/store/master_weights.h"
#include "zero/store/nvme_tier.h"
#include "zero/store/resident_walk.h"

#include "zero/store/host_visit.h"
#include "zero/store/stores.h"

#include <assert.h>
#include <string.h>

void *eng_tier_field(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    const struct eng_tier *tier = z->tier;
    const struct eng_piece *piece = eng_tiles_piece(&tier->tiles, bucket, element / BASE_GRANULE);
    assert(tier->memory[piece->tile]);
    return tier->memory[piece->tile] + eng_piece_offset(piece, field, element);
}

/** Whether a bucket's weights, or its working copy where it has no others, are in memory in any
 * case. */
static bool weights_at_home(const zero_ctx *z, size_t bucket)
{
    if (z->placement.buckets[bucket].staged)
        return false;
    return !eng_apart(&z->layout.buckets[bucket], &z->placement.buckets[bucket]);
}

/** Where they are then; *bytes: of `count` of them. */
static void *at_home(const zero_ctx *z, size_t bucket, size_t element, size_t count, size_t *bytes)
{
    const size_t size = eng_dtype_size(z->layout.buckets[bucket].dtype);
    *bytes = count * size;
    return eng_home(z, bucket, element / BASE_GRANULE) + element % BASE_GRANULE * size;
}

void eng_tier_keep(const zero_ctx *z, size_t bucket, size_t element, size_t count)
{
    size_t bytes;
    if (!weights_at_home(z, bucket))
        return;
    const void *weights = at_home(z, bucket, element, count, &bytes);
    memcpy(eng_tier_field(z, 0, bucket, element), weights, bytes);
}

void eng_tier_take_back(const zero_ctx *z, size_t bucket, size_t element, size_t count)
{
    size_t bytes;
    if (!weights_at_home(z, bucket))
        return;
    void *weights = at_home(z, bucket, element, count, &bytes);
    memcpy(weights, eng_tier_field(z, 0, bucket, element), bytes);
}

/* ------------------------------------------------------------------ a pass */

static void keep_tile(const zero_ctx *z, size_t tile)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    for (size_t i = range.first; i < range.first + range.count; i++) {
        const struct eng_piece *piece = &z->tier->tiles.pieces[i];
        eng_tier_keep(z, piece->bucket, piece->first * BASE_GRANULE,
                      piece->granules * BASE_GRANULE);
    }
}

/** Whether a pass writes tiles, or only looks at them. */
static bool writes(enum eng_access access)
{
    return access == ENG_CHANGE || access == ENG_REPLACE;
}

/** Whether what follows from the tiles is made anew. */
static bool makes_params(const zero_ctx *z, enum eng_access access)
{
    return z->config.params_nvme && (writes(access) || access == ENG_REREAD);
}

uint64_t eng_tier_put(zero_ctx *z, const struct off_tile *tile, bool changed)
{
    assert(z->tier->memory[tile->number] == tile->memory);
    z->tier->memory[tile->number] = NULL;
    const uint64_t waited_ns = changed ? eng_before_tile_overwrite(z, tile->number) : 0;
    off_pipeline_put(z->tier->pipeline, tile, changed);
    return waited_ns;
}

/** What a pass does with a tile. */
typedef zero_result (*eng_tile_fn)(zero_ctx *z, void *user, size_t tile, struct base_error *error);
static zero_result use_tile(zero_ctx *z, const struct off_tile *tile, enum eng_access access,
                            eng_tile_fn work, void *user, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    assert(!tier->memory[tile->number]);
    tier->memory[tile->number] = tile->memory;
    if (access == ENG_REPLACE)
        memset(tile->memory, 0, tier->tiles.bytes[tile->number]);
    zero_result r = work(z, user, tile->number, error);
    if (!r && writes(access) && !eng_state_on_device(z))
        keep_tile(z, tile->number);
    if (!r && makes_params(z, access))
        r = eng_params_make(z, tile->number, error);
    eng_tier_put(z, tile, !r && writes(access));
    return r;
}

void eng_tier_abandon(zero_ctx *z)
{
    if (!z->tier)
        return;
    off_tilefile_abandon(z->tier->tilefile);
    if (z->tier->pipeline)
        off_pipeline_forget(z->tier->pipeline);
}

/** Ends what is made of the tiles of the pass that `r` came of: its result. */
static zero_result end_params(zero_ctx *z, zero_result r, struct base_error *error)
{
    struct base_error end = {.result = r};
    eng_params_end(z, &end);
    return r || !end.result ? r : zero_fail(error, end.result, "%s", end.message);
}

zero_result eng_tier_pass_end(zero_ctx *z, zero_result r, struct base_error *error)
{
    struct base_error end = {0};
    const zero_result ended = off_pipeline_end(z->tier->pipeline, &end);
    if (!r && ended)
        r = zero_fail(error, ended, "%s", end.message);
    if (r)
        eng_tier_abandon(z);
    return r;
}

/** Calls `work` for `count` tiles of tier->order, each in memory while it is called. After an error
 * the file is what was recorded last. *Local.* ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT. */
static zero_result pass(zero_ctx *z, size_t count, enum eng_access access, eng_tile_fn work,
                        void *user, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct off_tile tile;
    zero_result r = ZERO_OK;
    if (writes(access))
        r = eng_tier_leave_point(z, error);
    // A load that was no good has recorded a beginning, and the step is the record before it.
    if (!r && writes(access))
        r = off_tilefile_void_before_write(tier->tilefile, error);
    if (r || count == 0)
        return r;
    assert(count <= tier->tiles.count);
    tier->up = true;
    if (access == ENG_REPLACE)
        off_pipeline_begin_anew(tier->pipeline, tier->order, count);
    else
        off_pipeline_begin(tier->pipeline, tier->order, count);
    if (makes_params(z, access))
        eng_params_begin(z, count);
    while (!r && (r = off_pipeline_next(tier->pipeline, &tile, error)) == ZERO_OK)
        r = use_tile(z, &tile, access, work, user, error);
    r = r == ZERO_NOT_FOUND ? ZERO_OK : r;
    if (makes_params(z, access))
        r = end_params(z, r, error);
    return eng_tier_pass_end(z, r, error);
}

/* ------------------------------------------------------------------ walks */

/** What a walk calls for what it comes to. */
struct walk {
    eng_part_fn visit;
    void *user;
    enum eng_access access;
    const struct eng_slice *only; /**< and of it, */
    size_t first, end;            /**< these elements; NULL: everything */
};

/** What a visit has changed of what is in memory anyway goes to the tile, too, while it is seen. */
static zero_result visit_and_keep(zero_ctx *z, void *user, const struct eng_part *part,
                                  struct base_error *error)
{
    const struct walk *walk = user;
    const zero_result r = walk->visit(z, walk->user, part, error);
    if (!r && writes(walk->access))
        eng_tier_keep(z, part->slice->bucket, part->slice->granule * BASE_GRANULE + part->first,
                      part->count);
    return r;
}

/** Visits a part whose tile is in memory: working copies that are on a device are seen, too. */
static zero_result visit_part(zero_ctx *z, const struct walk *walk, const struct eng_part *part,
                              struct base_error *error)
{
    const enum eng_access access = walk->access == ENG_REREAD ? ENG_CHANGE : walk->access;
    struct walk own = *walk;
    return eng_state_on_device(z) ? eng_bounce_visit(z, part, access, visit_and_keep, &own, error)
                                  : walk->visit(z, walk->user, part, error);
}

/** Visits what elements begin .. end-1 of a bucket have of a slice. */
static zero_result visit_slice(zero_ctx *z, const struct walk *walk, const struct eng_slice *slice,
                               size_t begin, size_t end, struct base_error *error)
{
    const size_t origin = slice->granule * BASE_GRANULE;
    assert(end > origin);
    size_t first = begin > origin ? begin - origin : 0, last = end - origin;
    last = last < slice->numel ? last : slice->numel;
    if (walk->only) {
        first = first > walk->first ? first : walk->first;
        last = last < walk->end ? last : walk->end;
    }
    if (first >= last)
        return ZERO_OK;
    const struct eng_part part = {.slice = slice, .first = first, .count = last - first};
    return visit_part(z, walk, &part, error);
}

static zero_result visit_piece(zero_ctx *z, const struct walk *walk, const struct eng_piece *piece,
                               struct base_error *error)
{
    const size_t begin = piece->first * BASE_GRANULE, end = begin + piece->granules * BASE_GRANULE;
    const struct eng_slice *slice = eng_layout_slice_at(&z->layout, piece->bucket, begin);
    const struct eng_slice *behind = z->layout.slices + z->layout.slice_count;
    zero_result r = ZERO_OK;
    for (; !r && slice < behind && slice->bucket == piece->bucket &&
           slice->granule * BASE_GRANULE < end;
         slice++)
        if (!walk->only || walk->only == slice)
            r = visit_slice(z, walk, slice, begin, end, error);
    return r;
}

static zero_result visit_tile(zero_ctx *z, void *user, size_t tile, struct base_error *error)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    zero_result r = ZERO_OK;
    for (size_t i = range.first; !r && i < range.first + range.count; i++)
        r = visit_piece(z, user, &z->tier->tiles.pieces[i], error);
    return r;
}

/** Visits what is in memory anyway, or on a device. */
static zero_result visit_resident(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                                  eng_part_fn visit, void *user, struct base_error *error)
{
    return eng_state_on_device(z) ? eng_bounce_visit(z, part, access, visit, user, error)
                                  : visit(z, user, part, error);
}

zero_result eng_tier_walk(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                          void *user, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    const struct eng_visit resident = {visit_resident, access, visit, user};
    // Frozen buckets have weights only, which are in memory unless they are staged.
    if (frozen && access == ENG_LOOK && !z->config.params_nvme)
        return eng_walk_resident(z, frozen, &resident, error);
    struct walk walk = {.visit = visit, .user = user, .access = access};
    const size_t first = frozen ? tier->tiles.training : 0;
    const size_t end = frozen ? tier->tiles.count : tier->tiles.training;
    for (size_t i = first; i < end; i++)
        tier->order[i - first] = i;
    return pass(z, end - first, access, visit_tile, &walk, error);
}

zero_result eng_tier_reread(zero_ctx *z, eng_part_fn visit, void *user, struct base_error *error)
{
    struct walk walk = {.visit = visit, .user = user, .access = ENG_REREAD};
    for (size_t i = 0; i < z->tier->tiles.count; i++)
        z->tier->order[i] = i;
    return pass(z, z->tier->tiles.count, ENG_REREAD, visit_tile, &walk, error);
}

zero_result eng_tier_visit(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                           eng_part_fn visit, void *user, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    const size_t bucket = part->slice->bucket;
    if (part->count == 0)
        return ZERO_OK;
    if (access == ENG_LOOK_AT_WEIGHTS && weights_at_home(z, bucket))
        return visit_resident(z, part, access, visit, user, error);
    struct walk walk = {.visit = visit,
                        .user = user,
                        .access = access,
                        .only = part->slice,
                        .first = part->first,
                        .end = part->first + part->count};
    const size_t begin = part->slice->granule + part->first / BASE_GRANULE;
    const size_t last = part->slice->granule + (walk.end - 1) / BASE_GRANULE;
    size_t first_tile = eng_tiles_piece(&tier->tiles, bucket, begin)->tile;
    size_t last_tile = eng_tiles_piece(&tier->tiles, bucket, last)->tile;
    if (makes_params(z, access)) {
        const struct eng_piece_range group = eng_tiles_group(&tier->tiles, last_tile);
        first_tile = eng_tiles_group(&tier->tiles, first_tile).first;
        last_tile = group.first + group.count - 1;
    }
    assert(first_tile <= last_tile && walk.end <= part->slice->numel);
    for (size_t i = first_tile; i <= last_tile; i++)
        tier->order[i - first_tile] = i;
    return pass(z, last_tile - first_tile + 1, access == ENG_LOOK_AT_WEIGHTS ? ENG_LOOK : access,
                visit_tile, &walk, error);
}
