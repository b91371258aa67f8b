/**
 * Who owns which elements: a pure function of (table of tensors, world size, persist_numel).
 *
 *     tensor   | slice       | slice       |     one in each of its units
 *     slice    | granule | granule | gr....|     1,024 elements; `....` is padding, zero for ever
 *     bucket   | slice | slice     | slice |     one range of bytes, which a collective moves
 *     unit     | bucket      | bucket      |     those that train; frozen ones by themselves
 *              | run 0  | run 1  | run 2   |     of ceil(granules / world); run r is rank r's
 *     run      | range | range | range     |     for a task each (ranges.h); also: segment
 *     file     | tile | tile | tile | tile |     a rank's state (state_tiles.h)
 *     tile     | piece       | piece       |     granules of one bucket
 *     strip    | piece | piece |                 of one unit (store/strips.h)
 *
 * A granule belongs to one tensor, one group and one rank; the last ranks may own none. Slices of a
 * unit are sorted (stably) into buckets that agree in type, gradient type, number of moments, and
 * in whether they are frozen and persistent. No rank asks another.
 */
#ifndef ZERO_MODEL_LAYOUT_H
#define ZERO_MODEL_LAYOUT_H

#include "base/tables.h"
#include "collectives/comm/comm.h"
#include "zero/model/registry.h"

#include <stdbool.h>

/** One tensor's part in one unit. */
struct eng_slice {
    zero_param param;
    int32_t index; /**< which slice of the tensor */
    size_t numel;
    size_t bucket;  /**< index into eng_layout.buckets */
    size_t granule; /**< first granule, within the bucket */
    size_t granules;
};

struct eng_bucket {
    zero_unit unit;
    zero_dtype dtype, grad_dtype;
    bool persistent;         /**< resident on every rank, whatever the stage and the tier */
    bool frozen;             /**< registered so: never updated, no gradient */
    int moments;             /**< values of optimizer state an element */
    unsigned never_negative; /**< bit k: moment k is a sum of squares for all of them */
    size_t first;            /**< first granule, among the unit's that train, or are frozen, too */
    size_t granules;
    struct coll_span *elements; /**< what each rank owns, in elements of the bucket */
    struct coll_span *bytes;    /**< the same in bytes of dtype */
    size_t *before; /**< elements each rank owns in the buckets before this one that train */
};

struct eng_unit_layout {
    size_t first_slice, slice_count;
    size_t first_bucket, bucket_count;
    size_t granules; /**< that train, */
    size_t frozen;   /**< and that don't */
};

struct eng_layout {
    int world;
    size_t unit_count, bucket_count, slice_count, granules;
    size_t bucket_room; /**< buckets there could be */
    size_t param_count;
    struct eng_unit_layout *units;
    struct eng_bucket *buckets;
    struct eng_slice *slices; /**< by unit, then bucket, then order of registration */
    size_t *param_first;      /**< per tensor: where its slices start in slice_of */
    size_t *slice_of;         /**< (tensor, slice) to index into slices */
    struct coll_span *spans;  /**< storage of all buckets' spans, */
    size_t *before;           /**< and of their `before` */
    struct base_tables tables;
};

/** Makes the layout of a complete model. persist_numel < 0: nothing persists. ZERO_E_INVALID:
 * fewer granules than ranks; ZERO_E_NOMEM. After an error the layout is empty. */
zero_result eng_layout_make(struct eng_layout *layout, const struct eng_model *model, int world,
                            int64_t persist_numel, struct base_error *error);

void eng_layout_free(struct eng_layout *layout);

/** The slice of a tensor; NULL if there is none. */
const struct eng_slice *eng_layout_slice(const struct eng_layout *layout,
                                         const struct eng_model *model, zero_param param,
                                         int32_t index);

/** Slices by number, in order of registration, and of a tensor one after the other. */
static inline const struct eng_slice *eng_slice_numbered(const struct eng_layout *layout,
                                                         size_t number)
{
    return &layout->slices[layout->slice_of[number]];
}

static inline size_t eng_slice_number(const struct eng_layout *layout,
                                      const struct eng_slice *slice)
{
    return layout->param_first[slice->param] + (size_t)slice->index;
}

/**
 * What to call a unit in messages, cut at size - 1 bytes: what its tensors' names have in common
 * before a '.' ("h.4" of h.4.attn.weight and h.4.mlp.weight), else its first tensor's name; of a
 * stacked tensor with the slice's index behind it.
 */
void eng_layout_unit_name(const struct eng_layout *layout, const struct eng_model *model,
                          zero_unit unit, char *name, size_t size);

/** The slice that holds element `element` of a bucket. */
const struct eng_slice *eng_layout_slice_at(const struct eng_layout *layout, size_t bucket,
                                            size_t element);

/** The rank that owns element `element` of a bucket; *count is cut down to how many it owns from
 * there on. */
int eng_layout_owner(const struct eng_layout *layout, size_t bucket, size_t element, size_t *count);

/** Granules of `bucket` that `rank` owns: the first, and how many. */
void eng_layout_own(const struct eng_layout *layout, size_t bucket, int rank, size_t *first,
                    size_t *granules);

#endif
