/**
 * Public structs that grow: struct_size, their first field, says how much of one the caller has.
 */
#ifndef ZERO_MODEL_VERSIONED_H
#define ZERO_MODEL_VERSIONED_H

#include "base/error.h"

#include <stddef.h>

/**
 * Copies a versioned public struct of `given` bytes into `out` of `known` bytes: a shorter one is
 * filled up with zeros, a longer one is accepted if its tail is zero. `what` names the struct.
 */
zero_result eng_struct_copy(void *out, size_t known, const void *in, const char *what,
                            struct base_error *error);

/** Copies `known` bytes of an output struct to a caller whose struct_size (the first field of both)
 * may be smaller, or larger: then its tail becomes zero. */
void eng_struct_give(void *out, const void *full, size_t known);

#endif
