/**
 * zero/store/nvme_compress.h: whether tiles of state are written encoded (zero/store/nvme_codec.h),
 * which the key `compress` says: on, off, or auto, as the first updates show.
 *
 * That it gains wants a disk that updates wait for, and processors that are idle meanwhile, beside
 * whatever else the program does. So with auto no probe decides but the updates themselves: two are
 * measured without it, then two with it. In both cases one goes before that only prepares: the
 * first of all writes to new places, and the first with it reads what is not encoded yet. If the
 * updates without compression wait for the disk for less than a tenth of their time, there are none
 * with it. Compression stays if it makes updates shorter. In a fused step a change takes effect
 * with the next step, and the time that counts is what the program spent in its calls. What ranks
 * measure travels with the scalars of the next step, and the slowest one counts: all decide alike.
 * What is in a file says itself whether it is encoded: no bit depends on any of this.
 */
#ifndef ZERO_STORE_NVME_COMPRESS_H
#define ZERO_STORE_NVME_COMPRESS_H

#include "zero/plan/plan.h"

/** An update: how long the program was in it, and of that it waited for tiles. All zero: there was
 * none. */
struct eng_update_time {
    double seconds, waited_s;
};

struct eng_compression {
    bool encodes;                  /**< at present */
    bool decided;                  /**< it stays so */
    unsigned heard;                /**< updates of the trial, */
    double without_s;              /**< and the shorter one of either kind */
    double waited_s;               /**< of the one without */
    double with_s;                 /**< 0: not measured */
    uint64_t spent_ns;             /**< by the program, in the update under way */
    double waited_then;            /**< for tiles, before it */
    struct eng_update_time newest; /**< that the other ranks don't know yet */
};

struct eng_compression eng_compression_begin(const struct eng_config *config);

/** The next update of the slowest rank; one that took no time tells nothing. */
void eng_compression_hear(struct eng_compression *compression, const struct eng_update_time *time);

/** Why it is as it is, for people; returns `text`. */
const char *eng_compression_text(const struct eng_compression *compression, char *text,
                                 size_t size);

/** Weights and two moments as training leaves them, `count` of each one behind the other: noise
 * below exponents that are much alike. */
void eng_codec_sample(float *fields, size_t count, uint64_t seed);

/** Finds out, in some 20 ms. ZERO_E_NOMEM, ZERO_E_UNSUPPORTED: this libzstd cannot. */
zero_result eng_codec_probe(struct eng_codec_rate *rate, struct base_error *error);

#endif
