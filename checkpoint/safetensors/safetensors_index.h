/**
 * checkpoint/safetensors/safetensors_index.h: the index of a model in several safetensors files: a
 * JSON object whose "weight_map" has the name of a file for each tensor. What else is in it is not
 * looked at.
 */
#ifndef CHECKPOINT_SAFETENSORS_SAFETENSORS_INDEX_H
#define CHECKPOINT_SAFETENSORS_SAFETENSORS_INDEX_H

#include "checkpoint/safetensors/safetensors_header.h"

/** An index. All zero is empty. */
struct ckpt_index {
    const char *path; /**< borrowed, for messages */
    struct json_t *root, *map;
    const char **file; /**< names of the files, sorted, each once */
    size_t files;
};

/** Whether a path is an index's. *Local*, pure. */
bool ckpt_index_is(const char *path);

/**
 * Reads and checks an index. *Local.* ZERO_NOT_FOUND; ZERO_E_CORRUPT: no index, or one that names a
 * file that is not beside it; ZERO_E_INVALID: no regular file; ZERO_E_IO, ZERO_E_NOMEM: *index is
 * empty.
 */
zero_result ckpt_index_read(struct ckpt_index *index, const char *path, struct base_error *error);

/** The path of file `number`, to be freed with base_free(); NULL: no memory. *Local.* */
char *ckpt_index_path(const struct ckpt_index *index, size_t number);

/** ZERO_E_CORRUPT: file `number` does not have exactly the tensors that the index says. *Local.* */
zero_result ckpt_index_check(const struct ckpt_index *index, size_t number,
                             const struct ckpt_header *header, struct base_error *error);

/** Frees it, empty ones too. *Local.* */
void ckpt_index_free(struct ckpt_index *index);

#endif
