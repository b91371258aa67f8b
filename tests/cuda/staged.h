/**
 * tests/cuda/staged.h: work on memory of a GPU by functions of the host, also where that memory is
 * a real GPU's, which such functions can't touch: what they read and write is copied to memory of
 * the host before, and back afterwards, all of it in the stream.
 */
#ifndef TESTS_CUDA_STAGED_H
#define TESTS_CUDA_STAGED_H

#include "base/device.h"

#include <stdbool.h>
#include <stddef.h>

/** Pinned memory that copies go through; all zero: there is none, and functions touch memory of the
 * device as if it were the host's, which is what the stand-in driver lets them do. */
struct staged {
    const struct base_device *device;
    unsigned char *memory;
    size_t used;
};

/** What all of a test's work may copy. */
#define STAGED_BYTES ((size_t)64 << 20)

bool staged_make(struct staged *staged, const struct base_device *device);
/** Nothing may be under way. */
void staged_free(struct staged *staged);

/** Where a function finds `bytes` bytes of the device, as they will be when the stream has come to
 * it; NULL: there is no room, or the device has failed. NULL stays NULL. */
void *staged_in(struct staged *staged, void *stream, const void *there, size_t bytes);

/** Copies what a function has written there back, behind it. */
bool staged_out(struct staged *staged, void *stream, void *there, const void *here, size_t bytes);

#endif
