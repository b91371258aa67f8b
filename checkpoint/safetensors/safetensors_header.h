/**
 * checkpoint/safetensors/safetensors_header.h: the JSON header of a safetensors file, and the table
 * it means.
 */
#ifndef CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H
#define CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H

#include "checkpoint/safetensors/safetensors.h"

/** Longest header that is read or written, as in the format's reference implementation. */
#define CKPT_MAX_HEADER UINT64_C(100000000)

/** Bytes before the header: its length. */
#define CKPT_HEADER_START UINT64_C(8)

/** The tensors of a file in the order of their bytes. All zero is empty. */
struct ckpt_header {
    struct ckpt_tensor *tensor;
    struct ckpt_tensor **by_name; /**< the same, sorted by name */
    size_t count;
    char *names;             /**< all names, one after the other */
    struct json_t *metadata; /**< an object of texts, or NULL */
};

/**
 * Parses and checks the `length` bytes of a header whose file goes on with `data_bytes` bytes of
 * tensors; offsets are made to count from the start of the file. `path` is for messages. *Local.*
 * Errors as in ckpt_safetensors_open(); then *header is empty.
 */
zero_result ckpt_header_parse(struct ckpt_header *header, const char *json, size_t length,
                              uint64_t data_bytes, const char *path, struct base_error *error);

/** Frees a header, empty ones too. *Local.* */
void ckpt_header_free(struct ckpt_header *header);

/**
 * Makes a header for `table` with `metadata`, and places its tensors: larger elements first, so
 * that all are aligned, else in the table's order. *text (to be freed with base_free()) are the
 * *length bytes of the file up to the first tensor, length field and padding to 8 bytes included;
 * table[i].count, .bytes and .offset are set. *Local.* Errors as in ckpt_safetensors_create(); then
 * *text is NULL.
 */
zero_result ckpt_header_format(struct ckpt_tensor *table, size_t tensors,
                               const struct ckpt_metadata *metadata, size_t metadata_count,
                               char **text, size_t *length, const char *path,
                               struct base_error *error);

/** Sorts tensors by name. *Local.* */
void ckpt_header_sort(struct ckpt_tensor **by_name, size_t count);

/** The one called `name` of tensors sorted by name, NULL if there is none. *Local.* */
const struct ckpt_tensor *ckpt_header_search(struct ckpt_tensor *const *by_name, size_t count,
                                             const char *name);

/** Fails with a message that names the tensor, from one that names file and offset. *Local.* */
zero_result ckpt_tensor_failed(struct base_error *error, const struct ckpt_tensor *tensor,
                               const struct base_error *cause);

/** ZERO_E_INVALID: elements first .. first+count-1 leave the tensor. *Local.* */
zero_result ckpt_tensor_check_range(const struct ckpt_tensor *tensor, uint64_t first,
                                    uint64_t count, const char *path, struct base_error *error);

/** Bytes of one element; 0 for CKPT_OTHER. *Local.* */
size_t ckpt_dtype_size(enum ckpt_dtype dtype);

#endif
