/**
 * tests/cuda/leftovers.h: whether a test has left a GPU as it was.
 */
#ifndef TESTS_CUDA_LEFTOVERS_H
#define TESTS_CUDA_LEFTOVERS_H

#include <stdbool.h>

/** Whether nothing is left on any GPU and nothing was done that may not be; says so if not. Only
 * the driver of driver.h knows; with NVIDIA's it is true. */
bool cuda_left_nothing(void);

/** Has `function`, a pointer to a pointer to one, point to the driver's of this name. False, and it
 * is NULL: the driver is another one, or there is none. */
bool cuda_driver_find(const char *name, void *function);

#endif
