/**
 * tests/cuda/leftovers.h: whether a test has left a GPU as it was.
 */
#ifndef TESTS_CUDA_LEFTOVERS_H
#define TESTS_CUDA_LEFTOVERS_H

#include <stdbool.h>
#include <stddef.h>

/** Whether nothing is left on any GPU and nothing was done that may not be; says so if not. Only
 * the driver of driver.h knows; with NVIDIA's it is true, and compute-sanitizer finds it out when
 * the process exits. */
bool cuda_left_nothing(void);

/** Ends what this process has of the GPUs, which it does not use any more: what it has not freed is
 * a leak then, to compute-sanitizer. Who has called cuda_left_nothing() does so by exit(). */
void cuda_end(void);

/** Bytes that are free on the GPU that this thread has entered. */
size_t cuda_free_bytes(void);

/** Has `function`, a pointer to a pointer to one, point to the driver's of this name. False, and it
 * is NULL: the driver is another one, or there is none. */
bool cuda_driver_find(const char *name, void *function);

#endif
