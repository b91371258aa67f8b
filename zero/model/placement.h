/**
 * Where everything lies in one rank's memory: a pure function of (layout, stage, rank, limits).
 * The plan adds it up before anything is allocated; host_memory.c allocates exactly it.
 *
 * Arenas and arrays of a rank:
 *  - params: the homes of the working copies (eng_residence), of this rank or of the host.
 *  - gather: slots for gathered units, where buckets are sharded, of this rank or of the host; read
 *    by peers if those are staged.
 *  - grads: slots for gradients, read by peers. Stages 0, 1: one a unit; 2, 3: grad_units a class.
 *    A slot holds a gradient twice if it travels in another dtype than the program writes.
 *  - sums: fp32 sums of this rank's shards, bucket by bucket; at stage 0 read by peers. Where sums
 *    are in a file: slots for those of a few units.
 *  - blocks: like sums: blocks of micro-batches that a round leaves unfinished. In slots they lie
 *    behind their unit's sums.
 *  - moments: optimizer state, fp32 or bf16, of a bucket one moment behind the other; stage 0: of
 *    everything, else of this rank's shards.
 *  - masters: fp32 master weights of bf16 and f16 buckets, unless there are none, like moments; an
 *    f32 working copy is its own.
 */
#ifndef ZERO_MODEL_PLACEMENT_H
#define ZERO_MODEL_PLACEMENT_H

#include "zero/model/layout.h"

#include <unistd.h>

/** Units whose buffers are of similar size (within a power of two) share slots. */
struct eng_slot_class {
    size_t bytes; /**< of one slot: the class's largest unit */
    int units;
    int slots;
    int first_slot;
};

#define ENG_MAX_CLASSES 64

/** A set of equal-purpose buffers: any `held` units fit at once, whichever they are. */
struct eng_slot_plan {
    struct eng_slot_class classes[ENG_MAX_CLASSES];
    int class_count;
    int slot_count;
    size_t bytes;
    int8_t *class_of_unit; /**< -1: the unit needs no slot */
};

/**
 * Where a bucket's working copy lives, and so what makes it whole after an update.
 *
 *     stage    gather   residence    its home on a rank     zero_gather() waits for
 *     0        copy     REPLICATED   all of it              nothing: each rank updates all
 *     1, 2     copy     COPIED       all of it              the owners' new values
 *     1 to 3   shared   SHARED       one for the host       the owners' word that it is current
 *     3        copy     SHARDED      this rank's shard      an all-gather into a slot
 *     3        slots    SHARDED      this rank's shard      an all-gather into the host's slot
 *     0 to 3   copy     SHARDED      none: `staged`         its file, then an all-gather
 *
 * The last line is offload_params=nvme; at stage 0 each rank's file has everything. What persists
 * is never SHARDED: at stage 3 it is COPIED. A rank alone on its GPU is as at stage 0.
 */
enum eng_residence { ENG_REPLICATED, ENG_COPIED, ENG_SHARED, ENG_SHARDED };

struct eng_bucket_place {
    enum eng_residence residence;
    bool windowed; /**< readable only between gather and release, whatever the residence */
    bool staged;   /**< its home is a file, from which it comes into a gather slot */
    size_t own_first, own_granules;     /**< this rank's shard, in granules of the bucket */
    size_t state_first, state_granules; /**< what this rank writes; what there is of moments and
                                             masters covers it */
    size_t home_first;     /**< granule at which the home begins: own_first if sharded, else 0 */
    size_t home;           /**< byte in params */
    size_t slot_offset;    /**< byte in a gather slot, if sharded */
    zero_dtype comm_dtype; /**< in which its gradient travels */
    size_t comm_offset;    /**< byte in a gradient slot: of what travels, */
    size_t grad_offset;    /**< and of what the program writes: the same if the dtypes are */
    size_t sum_offset;     /**< byte in a slot for sums, of state_first */
    bool master;    /**< it has fp32 weights: masters, or an f32 working copy, which is its own */
    size_t moments; /**< element of state_first in moments, of the first one */
    size_t masters; /**< element of state_first in masters; 16-bit dtypes with masters only */
};

/** Whether its master weights are something else than its working copies. */
static inline bool eng_apart(const struct eng_bucket *bucket, const struct eng_bucket_place *place)
{
    return place->master && bucket->dtype != ZERO_F32;
}

/** Paranoid: bytes of a slice's window up to its end, which is aligned for vectors, */
static inline size_t eng_window_kept(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/** and those of the pages at whose end it lies. */
static inline size_t eng_window_bytes(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (eng_window_kept(bytes) + page - 1) / page * page;
}

/** How large a unit's buffers are. */
struct eng_unit_place {
    size_t gather_bytes; /**< of its sharded buckets */
    size_t grad_bytes;
    size_t sum_bytes;         /**< of this rank's sums, if those are in a file; so many of blocks */
    size_t window_bytes;      /**< paranoid: pages of windows of its windowed buckets, else 0, */
    size_t grad_window_bytes; /**< and of its gradients as the program writes them */
};

struct eng_limits {
    int stage;
    bool alone;       /**< state is on the device of the only rank: nothing is gathered */
    bool sums_whole;  /**< every rank has a copy of all sums, */
    bool sums_shared; /**< which is the host's */
    bool shared;      /**< the ranks of the host share one copy of the parameters; not at stage 0 */
    bool slots_shared; /**< or one memory of gathered units; at stage 3 */
    int shared_by;     /**< how many they are; 0: all ranks */
    bool blocks;       /**< rounds leave blocks of micro-batches unfinished */
    bool paranoid;     /**< windows at every stage */
    int open_units;
    int prefetch_units;
    int grad_units;
    int grad_spare; /**< slots of a class beyond those for gradients that are open */
    int64_t live_bytes;
    bool narrow_moments;   /**< of 2 bytes an element instead of 4 */
    bool no_masters;       /**< 16-bit working copies are all there is of their weights */
    bool state_in_file;    /**< moments and masters are in tiles of a file: none in memory */
    bool params_in_file;   /**< and working copies of buckets that do not persist, */
    bool sums_in_file;     /**< and sums of gradients, with blocks */
    zero_dtype comm_dtype; /**< in which gradients travel; ZERO_DTYPE_DEFAULT: as they are */
};

struct eng_placement {
    struct eng_bucket_place *buckets;         /**< parallel to the layout's */
    struct eng_unit_place *units;             /**< parallel to the layout's */
    struct eng_slot_plan gather, grads, sums; /**< sums: if those are in a file */
    /** Paranoid: of what persists, and of as many units and gradients as may be open at once, in
     * whole pages, with room for tensors in buffers of the caller's, too. */
    size_t windows_bytes;
    size_t params_bytes; /**< of the arena */
    size_t params_part;  /**< of it, what counts as this rank's: the ranks of a host add up */
    size_t gather_part;  /**< of the gather slots, the same */
    size_t sums_bytes, blocks_bytes, moments_bytes, masters_bytes;
    size_t own_sums_bytes;     /**< of the sums: those of this rank's shards, */
    size_t sums_part;          /**< and what counts as this rank's */
    size_t partial_sums_bytes; /**< for sums of a host's blocks, if those travel; the budget's */
    struct base_tables tables;
};

/** Makes rank's placement. ZERO_E_NOMEM. After an error it is empty. */
zero_result eng_placement_make(struct eng_placement *placement, const struct eng_layout *layout,
                               int rank, const struct eng_limits *limits, struct base_error *error);

void eng_placement_free(struct eng_placement *placement);

#endif
