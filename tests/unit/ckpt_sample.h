/**
 * tests/unit/ckpt_sample.h: checkpoints whose every value is known, for tests of what writes and
 * reads them.
 */
#ifndef TESTS_UNIT_CKPT_SAMPLE_H
#define TESTS_UNIT_CKPT_SAMPLE_H

#include "checkpoint/shard/shard.h"

enum sample_size {
    SAMPLE_SMALL, /**< about a thousand elements, of every type, and small blobs */
    SAMPLE_LARGE, /**< around every border, up to 200,000 elements and bytes */
};

/**
 * A manifest without its shards' sizes. Each slice is dealt out to `world` shards, evenly or, with
 * another `deal` than 0, unevenly, so that some have no part of it. To be given to
 * ckpt_manifest_free().
 */
void sample_make(struct ckpt_manifest *manifest, enum sample_size size, uint32_t world,
                 unsigned deal);

/** Elements of a field of a slice. */
void sample_elements(const struct ckpt_manifest *manifest, size_t tensor, uint32_t slice, int field,
                     uint64_t first, uint64_t count, void *out);

/** A blob of a rank, or (rank 0) of all. */
void sample_blob(const struct ckpt_manifest *manifest, size_t blob, uint32_t rank, void *out);

/** Bytes of an element of a field. */
size_t sample_element_bytes(const struct ckpt_manifest *manifest, size_t tensor, int field);

/** How the elements of a field are made into planes. */
struct ckpt_block_code sample_code(const struct ckpt_manifest *manifest, size_t tensor, int field);

/** Bytes of a blob. */
size_t sample_blob_bytes(const struct ckpt_manifest *manifest, size_t blob, uint32_t rank);

/** Writes a shard to the file `path` and enters it in the manifest. */
zero_result sample_write_shard(struct ckpt_manifest *manifest, uint32_t rank,
                               const struct ckpt_store *store, const char *path, int level,
                               struct base_error *error);

/** Enters the sums of the tensors and the fingerprint, when all shards are written. */
void sample_seal(struct ckpt_manifest *manifest);

#endif
