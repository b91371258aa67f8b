/**
 * checkpoint/directory/directory_parts.h: what the files of directory.h share. Private to them.
 */
#ifndef CHECKPOINT_DIRECTORY_DIRECTORY_PARTS_H
#define CHECKPOINT_DIRECTORY_DIRECTORY_PARTS_H

#include "checkpoint/directory/directory.h"

/** An owner's directory. */
struct ckpt_directory {
    const struct ckpt_store *store;
    struct ckpt_file *lock;
    uint32_t world;
    bool begun; /**< `saving` is there, of step `step` */
    uint64_t step;
    uint64_t next; /**< sequence of the next one to be committed; 0: not known yet */
    bool lost;     /**< a flush of it has failed: what is in memory and on disk may differ */
    char path[CKPT_MAX_PATH + 1];
};

/** ZERO_E_IO if a flush has failed. */
zero_result ckpt_check_lost(const struct ckpt_directory *directory, struct base_error *error);

/* ------------------------------------------------------------------ names */

#define CKPT_MANIFEST_NAME "manifest.json"
#define CKPT_REMOVED_NAME "removed.json"
#define CKPT_LOCK_NAME "lock"
#define CKPT_READERS_NAME "readers"
#define CKPT_GATE_NAME "gate"
#define CKPT_POOL_NAME "pool"

/** A path of which all of what this folder makes fits in. */
struct ckpt_path {
    char text[CKPT_PATH_BYTES];
};

/** `directory`/`name`. */
struct ckpt_path ckpt_path_below(const char *directory, const char *name);

/** `directory`/step-<step>, and `directory`/saving-<step>. */
struct ckpt_path ckpt_path_step(const char *directory, uint64_t step);
struct ckpt_path ckpt_path_saving(const char *directory, uint64_t step);

/** A rank's shard below such a directory. */
struct ckpt_path ckpt_path_shard(const char *directory, uint32_t rank);

/** Whether a name is exactly that of a step, of something being saved, of a shard. */
bool ckpt_name_is_step(const char *name, uint64_t *step);
bool ckpt_name_is_saving(const char *name, uint64_t *step);
bool ckpt_name_is_shard(const char *name, uint32_t *rank);

/** ZERO_E_INVALID if the path of a directory is empty or too long. */
zero_result ckpt_check_path(const char *path, struct base_error *error);

/* ------------------------------------------------------------------ readers */

/** The locks of an owner who is alone: readers have left, and those who come wait. */
struct ckpt_exclusive {
    struct ckpt_file *gate, *readers;
};

/** Shuts the gate and waits for a second until all readers have left. ZERO_AGAIN (no message): they
 * have not; then, and after an error, the gate is open. */
zero_result ckpt_exclusive_begin(const struct ckpt_directory *directory,
                                 struct ckpt_exclusive *alone, struct base_error *error);

/** Opens it again; one that has not begun has ended. */
void ckpt_exclusive_end(const struct ckpt_directory *directory, struct ckpt_exclusive *alone);

/* ------------------------------------------------------------------ taking away */

/** What becomes of the shards of what is removed. */
enum ckpt_shards { CKPT_SHARDS_GO, CKPT_SHARDS_TO_POOL };

/**
 * Removes a directory of a checkpoint, or of what never became one. The manifest becomes the mark
 * "removed.json", durably; then the shards go, durably; then the mark, and the directory, which
 * stays where another program has put something in it.
 * CKPT_SHARDS_TO_POOL: no process may be reading. ZERO_NOT_FOUND.
 */
zero_result ckpt_remove(const struct ckpt_directory *directory, const char *path,
                        enum ckpt_shards shards, struct base_error *error);

/** Whether a directory has the mark of a removal that has not ended, and no manifest.
 * ZERO_E_NOMEM. */
zero_result ckpt_is_removed(const struct ckpt_store *store, const char *path, bool *removed,
                            struct base_error *error);

/** Removes what no job will ever finish, and what in the pool belongs to no job. The directory is
 * durable. */
zero_result ckpt_clean(struct ckpt_directory *directory, struct base_error *error);

/** Whether a checkpoint has a manifest, whole or not, or one that can't be opened. ZERO_E_NOMEM. */
zero_result ckpt_has_manifest(const struct ckpt_store *store, const char *path, bool *has,
                              struct base_error *error);

/** ckpt_has_manifest() of a file of any name in a directory. */
zero_result ckpt_has_file(const struct ckpt_store *store, const char *path, const char *name,
                          bool *has, struct base_error *error);

#endif
