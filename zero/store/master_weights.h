/**
 * zero/store/master_weights.h: reading and writing master weights, and the working copies made of
 * them.
 */
#ifndef ZERO_STORE_MASTER_WEIGHTS_H
#define ZERO_STORE_MASTER_WEIGHTS_H

#include "zero/core/context.h"

/** Gives fp32 values of elements first .. first+count-1 of a slice. */
typedef zero_result (*eng_source_fn)(const zero_ctx *z, void *user, const struct eng_slice *slice,
                                     uint64_t first, uint64_t count, float *out,
                                     struct base_error *error);
/** ZERO_E_INVALID if one of these values of a slice is finite and would be an infinity in `dtype`;
 * `what` says whose they are. */
zero_result eng_values_fit(const zero_ctx *z, zero_dtype dtype, const struct eng_slice *slice,
                           uint64_t first, uint64_t count, const float *values, const char *what,
                           struct base_error *error);
/** Whether sums are scratch between steps, where values may wait: in no file, on no device. */
bool eng_sums_are_scratch(const zero_ctx *z);
/** Reads this rank's runs from the source into its sums, once eng_sums_reclaim() has returned;
 * where sums are no scratch the source is only tried. Changes no weight. */
zero_result eng_values_read(zero_ctx *z, eng_source_fn source, void *user,
                            struct base_error *error);
/** Tries the source of what this rank writes of frozen tensors, which have no sums. */
zero_result eng_values_try_frozen(zero_ctx *z, eng_source_fn source, void *user,
                                  struct base_error *error);
/** Reads what no sums keep, through a tile, into weights and working copy: frozen tensors, and
 * where sums are no scratch all others, with `access` as below. Where the source was tried before
 * it is read again. */
zero_result eng_values_write(zero_ctx *z, enum eng_access access, eng_source_fn source, void *user,
                             struct base_error *error);
/** Makes what eng_values_read() read into sums the master weights (access ENG_REPLACE: moments
 * become zeros), and publishes. Collective, ordered, when all ranks have read and written. A
 * failure meanwhile leaves all of this rank's values written. */
zero_result eng_values_install(zero_ctx *z, enum eng_access access);
/** Writes master weights and working copy from element `element` of a bucket on; this rank's state
 * must cover them. */
void eng_values_put(zero_ctx *z, size_t bucket, size_t element, size_t count, const float *values);
/** Makes the working copy of master weights that were written in place, from a granule on. */
void eng_values_refresh(zero_ctx *z, size_t bucket, size_t element, size_t count);
/** What this rank writes of a slice. */
struct eng_part eng_state_part(const zero_ctx *z, const struct eng_slice *slice);
/** Reads master weights, or the working copy where there are none. *Local.* ZERO_E_IO,
 * ZERO_E_CORRUPT: of state in files; ZERO_E_DEVICE. */
zero_result eng_values_get(zero_ctx *z, const struct eng_part *part, float *values,
                           struct base_error *error);
/** First values: data, fill, or zeros. */
zero_result eng_values_first(const zero_ctx *z, void *user, const struct eng_slice *slice,
                             uint64_t first, uint64_t count, float *out, struct base_error *error);

#endif
