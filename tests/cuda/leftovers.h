/**
 * tests/cuda/leftovers.h: whether a test has left a GPU as it was.
 */
#ifndef TESTS_CUDA_LEFTOVERS_H
#define TESTS_CUDA_LEFTOVERS_H

#include <stdbool.h>

/** Whether nothing is left on any GPU and nothing was done that may not be; says so if not. Only
 * the driver of driver.h knows; with NVIDIA's it is true. */
bool cuda_left_nothing(void);

/** A function of that driver by its name; NULL: the driver is another one, or there is none. */
void *cuda_driver_function(const char *name);

#endif
