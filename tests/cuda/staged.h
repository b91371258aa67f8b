/**
 * tests/cuda/staged.h: work on memory of a GPU by functions of the host, which can't touch a real
 * one's: what they read and write is copied to memory of the host before, and back afterwards, all
 * of it in the stream.
 */
#ifndef TESTS_CUDA_STAGED_H
#define TESTS_CUDA_STAGED_H

#include "base/device.h"

#include <stdbool.h>
#include <stddef.h>

/** Pinned memory that copies go through; all zero: there is none, nor anything to copy. */
struct staged {
    const struct base_device *device;
    unsigned char *memory;
    size_t used;
    size_t down, up; /**< bytes so far from the device, and back to it */
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
