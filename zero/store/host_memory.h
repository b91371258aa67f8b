/**
 * zero/store/host_memory.h: allocates what the placement says; where the bytes of a section are.
 */
#ifndef ZERO_STORE_HOST_MEMORY_H
#define ZERO_STORE_HOST_MEMORY_H

#include "zero/core/context.h"

zero_result eng_memory_allocate(zero_ctx *z);
void eng_memory_free(zero_ctx *z);
/** Bytes of the tables beside tensors that a rank with this placement has; needs the layout only.
 */
size_t eng_memory_tables(const zero_ctx *z, const struct eng_placement *placement,
                         const struct eng_tier_needs *needs);
/** The byte where granule `granule` of a section's home lies. */
unsigned char *eng_home(const zero_ctx *z, size_t section, size_t granule);
/** fp32 master weights from element `element` of a section on, which must have them; state must
 * cover the element, here and below. Of state on a device: there, but in memory while a visit to it
 * is under way; so is eng_home(). */
float *eng_weights(const zero_ctx *z, size_t section, size_t element);
/** The same, or the working copy where there are no masters; *size: bytes of an element. */
void *eng_best_weights(const zero_ctx *z, size_t section, size_t element, size_t *size);
/** Of type config.moment_dtype. */
void *eng_moments(const zero_ctx *z, int which, size_t section, size_t element);
float *eng_own_sums(const zero_ctx *z, size_t section, size_t element);
/** The sums of the rank that owns the element; of others at stage 0 only. */
const float *eng_sums(const zero_ctx *z, int owner, size_t section, size_t element);
/** Where a program that goes on after a fatal error reads and writes without harm: zeros at first,
 * as large as the largest slice, nobody else's. NULL without such an error, or if there is none to
 * be had. */
void *eng_nowhere(zero_ctx *z);
/** This rank's unfinished blocks of a section; NULL if no round leaves any. */
float *eng_own_blocks(const zero_ctx *z, size_t section);

/** A slice's working copy; NULL if no slot has its unit. */
const unsigned char *eng_gathered(const zero_ctx *z, const struct eng_slice *slice);

#endif
