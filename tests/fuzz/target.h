/**
 * tests/fuzz/target.h: what a fuzz target defines, by libFuzzer's convention.
 */
#ifndef TESTS_FUZZ_TARGET_H
#define TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/** Tries one input; aborts if something is wrong; returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
