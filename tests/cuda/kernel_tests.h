/**
 * tests/cuda/kernel_tests.h: what tests of a GPU's kernels share: the GPU, the kernels on it, and
 * memory there.
 */
#ifndef TESTS_CUDA_KERNEL_TESTS_H
#define TESTS_CUDA_KERNEL_TESTS_H

#include "base/device.h"
#include "base/kernels/device_kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

extern const struct base_device *const device;
extern const struct base_device_kernels *const kernels;

/** Of the kernels, and one of the device's; while tests run. */
extern void *kernel_state, *kernel_stream;

void ok(zero_result result);

/** Memory of the device with the same bytes. */
void *put(const void *bytes, size_t size);

/** Gets them back, and frees it. */
void take(void *bytes, void *there, size_t size);

/** Words of 4 bytes; `turn` is for the message. */
void compare(const char *what, int turn, const void *a, const void *b, size_t size);

/** Whether there is no GPU, which it says: the program returns KERNEL_TESTS_SKIPPED. */
bool kernel_tests_skip(void);
enum { KERNEL_TESTS_SKIPPED = 77 };

/** Of the group of tests. */
int kernel_tests_set_up(void **unused);
int kernel_tests_tear_down(void **unused);

#endif
