/**
 * zero/api/commit.h: from the registered model to memory with first values.
 */
#ifndef ZERO_API_COMMIT_H
#define ZERO_API_COMMIT_H

#include "zero/core/context.h"

/** Bytes that zero_commit() uses beside layout and transport before the rows are allocated. */
size_t eng_commit_bytes(const zero_ctx *z);

#endif
