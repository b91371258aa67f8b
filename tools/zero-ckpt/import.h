/**
 * The command import: import.c says what is made of which file, import_write.c makes it.
 */
#ifndef TOOLS_ZERO_CKPT_IMPORT_H
#define TOOLS_ZERO_CKPT_IMPORT_H

#include "tools/zero-ckpt/tool.h"

/** What is under way. */
struct import {
    const struct tool_options *options;
    struct ckpt_safetensors *file;
    const struct ckpt_tensor **fields; /**< of the file: CKPT_MAX_FIELDS a tensor; NULL: zeros */
    struct tool_place place;           /**< --like: where it is, */
    struct ckpt_loader *like;          /**< and what; else NULL */
    struct ckpt_manifest manifest;     /**< of the checkpoint that is made; its sums are given */
    uint64_t step;                     /**< that it is to have */
    json_t *changed;                   /**< tensors that are not what was exported */
    struct tool_progress progress;
    uint64_t done;
};

/** Elements of a field, counted over all slices, as they are to be stored. */
zero_result tool_import_elements(struct import *job, size_t tensor, int field, uint64_t at,
                                 uint64_t count, void *out, struct base_error *error);
/** A blob of a rank, whole. */
zero_result tool_import_blob(struct import *job, size_t blob, uint32_t rank, void *out,
                             struct base_error *error);

/** Makes the checkpoint, and enters its sums and fingerprint in the manifest. ZERO_E_CORRUPT: the
 * file has other values than were exported, which wasn't asked for. */
zero_result tool_import_write(struct import *job, struct base_error *error);

#endif
