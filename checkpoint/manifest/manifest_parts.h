/**
 * checkpoint/manifest/manifest_parts.h: what writing and parsing a manifest have in common. All
 * *local*.
 */
#ifndef CHECKPOINT_MANIFEST_MANIFEST_PARTS_H
#define CHECKPOINT_MANIFEST_MANIFEST_PARTS_H

#include "checkpoint/manifest/manifest.h"

/** A manifest's last line, `"xxh3_128": "...32 digits..."}` and a line feed. */
enum { CKPT_LAST_LINE = 48 };

/** Makes the last line, and a final zero, for the `length` bytes before it. */
void ckpt_last_line(const char *text, size_t length, char line[CKPT_LAST_LINE + 1]);

/** Bytes as twice as many hexadecimal digits in lower case, and a final zero. */
void ckpt_hex(const uint8_t *bytes, size_t count, char *digits);

/** Reads `count` bytes of 2 * count hexadecimal digits in lower case; false: one of them is none.
 */
bool ckpt_unhex(const char *digits, uint8_t *bytes, size_t count);

/** Checks the last line against the bytes before it. ZERO_E_CORRUPT: it differs. */
zero_result ckpt_check_last_line(const char *text, size_t length, const char *path,
                                 struct base_error *error);

/** The run of a manifest that does not tell it: a hash of its job's name, seed, and tensors' names
 * and shapes. */
struct ckpt_run_id ckpt_derive_run(const struct ckpt_manifest *manifest);

/** The names of enum ckpt_dtype's first three. */
extern const char *const ckpt_dtype_names[CKPT_OTHER];

/** Whose fault it is if a manifest is not as it shall be: errors are `result`, with `path`. */
struct ckpt_error_context {
    const char *path;
    zero_result result;
};

/**
 * Checks all that the members' types don't say, and makes the index. After an error (also
 * ZERO_E_NOMEM) the index is empty.
 */
zero_result ckpt_manifest_check(const struct ckpt_manifest *manifest,
                                struct ckpt_manifest_index *index,
                                const struct ckpt_error_context *blame, struct base_error *error);

/** Frees an index, empty ones too. */
void ckpt_manifest_index_free(struct ckpt_manifest_index *index);

#endif
