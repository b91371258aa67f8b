/**
 * checkpoint/tensor_digest.h: the sums of tensors, and the fingerprint of a state: FORMAT.md,
 * section 5.
 *
 * The engine makes them of what is in memory, who verifies a checkpoint of what is in its files: by
 * the same functions. All *local*, pure, any thread.
 */
#ifndef CHECKPOINT_TENSOR_DIGEST_H
#define CHECKPOINT_TENSOR_DIGEST_H

#include "base/hash.h"
#include "checkpoint/manifest/manifest.h"

/** XXH3-64 of a tensor's name, which stands for it in what is hashed. */
uint64_t ckpt_digest_name(const char *name);

/** Which elements are summed up: a field of a slice of a tensor. */
struct ckpt_digest_place {
    uint64_t name; /**< ckpt_digest_name() */
    uint64_t slice;
    int field;
    bool trains;
    size_t element_bytes;
};

/** What stands for the field in what is hashed, below 2^32. */
uint64_t ckpt_digest_array(const struct ckpt_digest_place *place);

/** Adds the hashes of the granules that elements first .. first+count-1 fill to *sum; first is at a
 * granule, and the last one is short only where its slice ends. */
void ckpt_digest_add(struct base_hash128 *sum, const struct ckpt_digest_place *place,
                     uint64_t first, size_t count, const void *elements);

/** The hash of a global blob. That of all of them is the sum. */
struct base_hash128 ckpt_digest_blob(const char *name, const void *bytes, size_t size);

/** What of a group is in the fingerprint. */
struct ckpt_digest_group {
    const char *optimizer, *decay;
    bool nesterov;
    const double *hyper;
    int hypers;
};

/* A fingerprint, link by link: the state, each group, the number of each frozen group, the blobs,
 * each tensor in the order of the names. */
struct base_hash128 ckpt_digest_state(const struct ckpt_state *state);
struct base_hash128 ckpt_digest_group(struct base_hash128 root,
                                      const struct ckpt_digest_group *group);
struct base_hash128 ckpt_digest_frozen(struct base_hash128 root, uint64_t group);
struct base_hash128 ckpt_digest_blobs(struct base_hash128 root, struct base_hash128 blobs);
struct base_hash128 ckpt_digest_tensor(struct base_hash128 root, uint64_t name,
                                       struct base_hash128 sum);

/** All of it: the fingerprint of a manifest with these tensors' sums, given its global blobs' hash.
 * Of a parsed manifest. */
void ckpt_digest_manifest(const struct ckpt_manifest *manifest, struct base_hash128 blobs,
                          uint8_t fingerprint[16]);

#endif
