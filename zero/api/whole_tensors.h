/**
 * zero/api/whole_tensors.h: what exporting and importing whole tensors needs.
 */
#ifndef ZERO_API_WHOLE_TENSORS_H
#define ZERO_API_WHOLE_TENSORS_H

#include "zero/core/context.h"

/** Bytes that zero_export() and zero_import() use on a rank beside the rows; those of a file's
 * header are an estimate. */
size_t eng_export_bytes(const zero_ctx *z, int rank);
size_t eng_import_bytes(const zero_ctx *z);

#endif
