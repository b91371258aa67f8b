/**
 * base/kernels/device_kernels.h: the arithmetic of a step on devices whose work is given and done
 * later, one table a kind of device. The bits are those that kernels.h defines.
 *
 * All memory that is named here is the device's, and so are the arrays of segments, scalars and
 * keys; addresses of elements are those of a granule, or so many granules further on. Functions are
 * called by a thread that has entered the device (base/device.h); they give work to a stream and
 * return. *Local.* Errors: ZERO_E_DEVICE. C, and C++ too.
 */
#ifndef BASE_KERNELS_DEVICE_KERNELS_H
#define BASE_KERNELS_DEVICE_KERNELS_H

#include "base/error.h"
#include "base/exact_sum.h"
#include "base/kernels/decide.h"
#include "base/kernels/kernels.h"

/** The most elements of a segment. */
#define BASE_DEVICE_SEGMENT (16 * BASE_GRANULE)

/** What an update stores by stochastic rounding has a key of its own for each slice: the weight's,
 * then the moments'. */
#define BASE_DEVICE_KEYS (1 + BASE_MAX_MOMENTS)

/** Elements of one slice, from a granule on, which are updated together. */
struct base_device_segment {
    const void *gradient; /**< the canonical sum, or the only contribution to it */
    void *weight;         /**< fp32 master, or the working copy itself where there is none */
    void *moment[BASE_MAX_MOMENTS];
    uint16_t *work;        /**< receives the new weight, rounded to nearest even; may be NULL */
    const double *squares; /**< of the gradient, a granule each; NULL: not wanted */
    uint64_t first;        /**< element of the slice that is the segment's first */
    uint32_t count;        /**< at most BASE_DEVICE_SEGMENT */
    uint32_t group;        /**< whose scalars */
    uint32_t key;          /**< its slice's keys are keys[key], and those behind it: a
                                multiple of BASE_DEVICE_KEYS, below 2^24 of them */
    uint8_t gradient_dtype, weight_dtype, moment_dtype, work_dtype; /**< of zero_dtype */
};

/** An update of all of some segments, in one go. */
struct base_device_update {
    const struct base_device_segment *segments;
    size_t count;
    bool rounds; /**< some of their weights or moments are not fp32: they are stored by stochastic
                      rounding */
    const struct base_rule_scalars *scalars; /**< of every group */
    const uint64_t *keys;                    /**< may be NULL if nothing is rounded so */
    const uint32_t *gate; /**< 0 there, when the work is done: nothing is updated; NULL: it is */
    uint64_t *wrong; /**< the least of what is there and (key / BASE_DEVICE_KEYS) << 40 | element of
                        the slice, of what  is stored and not finite: UINT64_MAX if nothing was.
                        NULL: not wanted */
    bool finite_only; /**< segments are left out that have a sum that is not finite, as squares say
                       */
};

/** A bucket's contributions, added in order to what a rank owns of it: coll_reduce_scatter in
 * collectives/comm/comm.h says how. */
struct base_device_sum {
    const void *received; /**< contribution k, but for the own one, at received + k * stride */
    size_t stride;        /**< bytes */
    const void *own;
    int own_index; /**< which one that is; -1: none */
    zero_dtype dtype;
    int count;          /**< of contributions, at least 1 */
    size_t granules;    /**< that are owned; padding is zeros */
    float *accumulator; /**< of what is owned; NULL: this is the only contribution to the sums,
                           which is left where it is */
    float *block;    /**< the same of a block that is left unfinished; may be NULL where none is */
    uint64_t number; /**< of contribution 0 in the step's sequence, below 2^24 */
    uint32_t sum_group; /**< contributions of a block, at least 1 */
    bool store;         /**< the first block that is finished is stored instead of added */
    bool last;          /**< finishes the last block */
    double *squares;    /**< sum_squares() of the accumulator; NULL: not wanted */
    uint64_t element;   /**< of the bucket, that is the first owned, below 2^40 */
    /** The least of what is there and number << 40 | element of each contribution's elements that
     * are not finite: UINT64_MAX if none was. NULL: not wanted */
    uint64_t *bad;
};
#define BASE_DEVICE_BAD_SHIFT 40

/** Adds elements to others of the same dtype, each sum rounded to it, to nearest even. */
struct base_device_addition {
    void *to;
    const void *from;
    zero_dtype dtype;
    size_t count;
};

/** A search of a contribution as it travels: what base_device_sum does with values that are not
 * finite. */
struct base_device_search {
    const void *values; /**< the whole bucket */
    zero_dtype dtype;
    size_t count;
    uint64_t number; /**< of the contribution */
    uint64_t *bad;
};

/** Bytes of a buffer, an even number from an even one on, and less than those of a granule. */
struct base_device_gap {
    uint64_t first;
    uint64_t bytes;
};

/** Makes them zeros. */
struct base_device_clearing {
    const struct base_device_gap *gaps;
    size_t count;
    void *buffer;
};

/** Squares of granules, added without rounding to the limbs of a base_exact_sum (which may be more
 * than 32 bits wide afterwards); those above 1e300, which the sum is not made for, only set
 * *overflow to 1. */
struct base_device_squares {
    const double *squares;
    size_t count;
    int64_t *limbs;
    uint32_t *overflow;
    const uint64_t *wrong; /**< not UINT64_MAX there sets *overflow, too; may be NULL */
};

/** Elements from one dtype to another, to nearest even. */
struct base_device_conversion {
    const void *from;
    void *to;
    zero_dtype from_dtype, to_dtype;
    size_t count;
};

/** What a rank tells of its sums. */
struct base_device_ballot {
    int64_t limbs[BASE_EXACT_SUM_LIMBS]; /**< of the squares of all it owns */
    uint32_t overflow;                   /**< a sum is not finite, or too large */
    uint32_t reserved;
};

/** What becomes of steps, as far as later ones depend on it. */
struct base_device_course {
    struct base_scale scale;
    uint64_t updates;
    uint64_t skips;      /**< steps in a row that were not finite */
    uint64_t skip_limit; /**< of the row; UINT64_MAX: none; 0: no step is skipped */
    uint32_t halted;     /**< there were more: nothing is updated any more */
    uint32_t reserved;
};

/** A step's verdict, for the host. */
struct base_device_record {
    double norm; /**< of scale / loss scale * sum; NaN if that is not finite */
    uint64_t finite;
    uint64_t wrong; /**< what updates so far have stored that is not finite, as they tell it */
};

/**
 * The verdict on a step: norm, clipping, whether it is updated, and with which scalars and keys. Of
 * those the host has prepared what they are if update `first_update` is the next one, the one
 * behind that, and so on, without the gradient scale.
 *
 * With `fused` the kernel takes for granted that the step is finite, which a later verdict judges.
 * Gate, scalars and keys become those of its update. The kernel reads and changes nothing else.
 */
struct base_device_judgement {
    struct base_device_ballot *ballots; /**< one a rank, zeros afterwards */
    size_t ranks;
    struct base_device_course *course;
    struct base_device_course given; /**< if `known`: what the course is so far */
    bool known, fused;
    double scale, max_norm; /**< of the step's arguments; max_norm 0: none */
    double most; /**< of the norm of a clipped gradient: a step with more counts as not finite */
    const uint64_t *wrong;
    uint64_t first_update;
    const struct base_rule_scalars *prepared; /**< [update][group] */
    struct base_rule_scalars *scalars;        /**< of those the update's */
    size_t groups;
    const uint64_t *prepared_keys; /**< [update][key] */
    uint64_t *keys;
    size_t key_count;
    uint64_t *bad;    /**< of sums: UINT64_MAX afterwards, */
    uint64_t *blamed; /**< where they go */
    size_t bad_count;
    uint32_t *gate; /**< of the update */
    struct base_device_record *record;
};

/** The most granules of a part of a digest. */
#define BASE_DEVICE_GRANULES 64

/** Granules of one array of a slice, side by side. Their hashes are those of
 * checkpoint/tensor_digest.h, of whose place some of this is. */
struct base_device_granules {
    const void *elements;
    uint64_t name;
    uint64_t first; /**< number of the first granule in the slice */
    uint32_t slice, array;
    uint32_t count; /**< elements: BASE_DEVICE_GRANULES granules at most, the last one of which may
                       be short */
    uint32_t element_bytes; /**< 2 or 4 */
    uint32_t sum;           /**< which one they are added to */
    uint32_t reserved;
};

/** Adds the hashes of the granules of some parts to sums. */
struct base_device_digest {
    const struct base_device_granules *parts;
    size_t count;
    uint64_t *sums; /**< modulo 2^128: of each the lower word, then the upper one */
    size_t offset;  /**< bytes by which all elements are behind where their parts have them */
};

struct base_device_kernels {
    size_t size; /**< sizeof(struct base_device_kernels) of the code that filled it */
    const char *name;

    /** Gets ready on the device entered; *state NULL on error. Also ZERO_E_UNSUPPORTED: they cannot
     * run there; ZERO_E_NOMEM. */
    zero_result (*open)(void **state, struct base_error *error);
    /** Nothing of it may be under way. Accepts NULL. */
    void (*close)(void *state);

    zero_result (*update)(void *state, const struct base_device_update *update, void *stream,
                          struct base_error *error);
    zero_result (*sum)(void *state, const struct base_device_sum *sum, void *stream,
                       struct base_error *error);
    zero_result (*add)(void *state, const struct base_device_addition *addition, void *stream,
                       struct base_error *error);
    zero_result (*search)(void *state, const struct base_device_search *search, void *stream,
                          struct base_error *error);
    zero_result (*clear)(void *state, const struct base_device_clearing *clearing, void *stream,
                         struct base_error *error);
    zero_result (*squares)(void *state, const struct base_device_squares *squares, void *stream,
                           struct base_error *error);
    zero_result (*convert)(void *state, const struct base_device_conversion *conversion,
                           void *stream, struct base_error *error);
    zero_result (*judge)(void *state, const struct base_device_judgement *judgement, void *stream,
                         struct base_error *error);
    zero_result (*digest)(void *state, const struct base_device_digest *digest, void *stream,
                          struct base_error *error);
};

/** The table for the device called `name`, which this build has. */
const struct base_device_kernels *base_device_kernels_find(const char *name);

#ifdef ZERO_WITH_CUDA
/** For base_device_cuda. */
extern const struct base_device_kernels base_device_kernels_cuda;
#endif

#endif
