/**
 * golden_file.h: reads the golden safetensors files beside it, which are trusted: float tensors,
 * written by make_gpt2.py. Not for anything else.
 */
#ifndef TESTS_GOLDEN_FILE_H
#define TESTS_GOLDEN_FILE_H

#include <stddef.h>

struct golden_file;

/** Opens a file; fails the test where it can't. */
struct golden_file *golden_open(const char *folder, const char *name);

/** Frees it and what it gave. */
void golden_close(struct golden_file *file);

/** A tensor of `numel` elements, F32 or F64, as doubles, until the close; fails the test if it is
 * missing or has another size. */
const double *golden_tensor(struct golden_file *file, const char *name, size_t numel);

#endif
