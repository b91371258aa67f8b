/**
 * checkpoint/loader.h: elements of a checkpoint, wherever in its shards they are.
 *
 * No rank asks another: the manifest says which shard has which elements, shards are opened when
 * something of them is wanted, and only the blocks that hold it are read. At most 32 files are open
 * at a time; what their indexes say is read once, and kept. All *local*, one thread at a time.
 */
#ifndef CHECKPOINT_LOADER_H
#define CHECKPOINT_LOADER_H

#include "checkpoint/directory/directory.h"
#include "checkpoint/shard/shard.h"

/** A checkpoint that is being read. */
struct ckpt_loader;

/**
 * Opens `path`/step-<step> and checks its manifest; holds the readers' lock until close. Errors of
 * ckpt_reader_enter() and ckpt_read_manifest(); ZERO_E_NOMEM: *loader is NULL.
 */
zero_result ckpt_loader_open(struct ckpt_loader **loader, const struct ckpt_store *store,
                             const char *path, uint64_t step, struct base_error *error);

/** How much there is in a checkpoint: what the memory of who reads it depends on. */
struct ckpt_loader_need {
    size_t shards, tensors;
    size_t runs;   /**< of all shards */
    size_t blocks; /**< of all shards from which something is read */
};

/** About what a loader takes, at most: manifest, indexes, and room for a block. *Local*, pure. */
size_t ckpt_loader_bytes(const struct ckpt_loader_need *need);

/** Belongs to the loader. */
const struct ckpt_manifest *ckpt_loader_manifest(const struct ckpt_loader *loader);

/**
 * Reads elements first .. first+count-1 of a field of a slice, as they were stored. A block is read
 * again when the next call wants another part of it, but for the last one read. Contents of out are
 * undefined after an error, and other elements can still be read. ZERO_E_INVALID: there is no such
 * slice or field, or the range leaves it; ZERO_E_CORRUPT, ZERO_E_VERSION, ZERO_E_IO,
 * ZERO_NOT_FOUND: a shard is damaged or gone; the message names it, offset and, if its index is
 * whole, tensor.
 */
zero_result ckpt_loader_read(struct ckpt_loader *loader, size_t tensor, uint32_t slice, int field,
                             uint64_t first, uint64_t count, void *out, struct base_error *error);

/** Reads a blob of shard `rank` (a global one: of shard 0, whatever `rank` is), whole. Errors as
 * of ckpt_loader_read(). */
zero_result ckpt_loader_blob(struct ckpt_loader *loader, size_t blob, uint32_t rank, void *out,
                             struct base_error *error);

/** Bytes read from shards so far. */
uint64_t ckpt_loader_bytes_read(const struct ckpt_loader *loader);

/** Who hears of a verification. Functions may be NULL. */
struct ckpt_verify_watch {
    /** Of each piece of damage; its message names what is known of file, offset and tensor. */
    void (*damaged)(void *user, const struct base_error *damage);
    /** After each block: bytes read from shards so far. */
    void (*progress)(void *user, uint64_t bytes_read);
    void *user;
};

/**
 * Reads every byte of every shard and checks all that the checkpoint says of itself: its blocks,
 * the sum of each tensor, and the fingerprint. Goes on after damage, piece by piece: a block that
 * is damaged or can't be read, a whole shard, a tensor all of whose blocks are good and that has
 * other values than its sum says, the fingerprint. ZERO_E_CORRUPT: there was some, the first piece
 * of which is in the message; ZERO_E_NOMEM: it could not go on.
 */
zero_result ckpt_loader_verify(struct ckpt_loader *loader, const struct ckpt_verify_watch *watch,
                               struct base_error *error);

/** Closes all files, gives the lock back, and frees it; accepts NULL. */
void ckpt_loader_close(struct ckpt_loader *loader);

#endif
