/**
 * tests/fault/toy_checkpoint.h: small checkpoints of one tensor, each a `version` of it: what is
 * loaded says which save it is from.
 */
#ifndef TESTS_FAULT_TOY_CHECKPOINT_H
#define TESTS_FAULT_TOY_CHECKPOINT_H

#include "checkpoint/directory/directory.h"
#include "checkpoint/shard/shard.h"

enum { TOY_WORLD = 8 /**< the most ranks */ };

/** A rank's shard being written. All zero: none. */
struct toy_shard {
    const struct ckpt_store *store;
    struct ckpt_shard_writer *writer; /**< the rank's */
    struct ckpt_file *file;
    struct ckpt_shard_entry entry;
    bool entered; // all of it
};

/** Creates a rank's shard of a checkpoint that has begun, and enters all of it. */
zero_result toy_write_shard(struct toy_shard *shard, const struct ckpt_store *store,
                            const char *path, const struct ckpt_shard_id *id, uint64_t version,
                            struct base_error *error);

/** Finishes and flushes it, if all of it was entered, and closes it, unless there is none. */
zero_result toy_finish_shard(struct toy_shard *shard, struct base_error *error);

/** Which shard of which checkpoint. */
struct ckpt_shard_id toy_shard_id(uint64_t step, uint32_t rank, uint32_t world, uint64_t version);

/** Begins, writes all shards, all at the same time, and commits; a failure is followed by
 * ckpt_cancel(). */
zero_result toy_save(struct ckpt_directory *directory, const struct ckpt_store *store,
                     const char *path, uint64_t step, uint32_t world, uint64_t version,
                     struct base_error *error);

/** Commits a checkpoint whose shards these are. */
zero_result toy_commit(struct ckpt_directory *directory, uint64_t step, uint32_t world,
                       uint64_t version, const struct toy_shard *written, struct base_error *error);

/** Reads a checkpoint, every byte. Errors of the function that found damage. */
zero_result toy_load(const struct ckpt_store *store, const char *path, uint64_t step,
                     uint64_t *version, struct base_error *error);

#endif
