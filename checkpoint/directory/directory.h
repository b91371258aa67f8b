/**
 * checkpoint/directory/directory.h: the directory in which a job's checkpoints are: FORMAT.md,
 * section 1.
 *
 * One process of a job, rank 0's, owns the directory: it opens it for saving, begins, commits and
 * prunes. The others only create their shards between ckpt_begin() and ckpt_commit(). All *local*,
 * one thread at a time.
 *
 *     open                                            once
 *     begin -> create_shard (each rank) -> commit     a checkpoint; instead of commit, or after
 *              [prune]                                its failure: cancel
 *     close
 *
 * Errors are ZERO_E_IO unless said otherwise; a path longer than CKPT_MAX_PATH is ZERO_E_INVALID
 * everywhere.
 */
#ifndef CHECKPOINT_DIRECTORY_DIRECTORY_H
#define CHECKPOINT_DIRECTORY_DIRECTORY_H

#include "checkpoint/files/ckpt_store.h"
#include "checkpoint/manifest/manifest.h"

/** Longest path of a directory, without what is below it; and room for that, too. */
enum { CKPT_MAX_PATH = 3072, CKPT_PATH_BYTES = 4096 };

/** Which checkpoints remain. */
struct ckpt_retention {
    uint64_t keep;       /**< the newest ones; 0: all */
    uint64_t keep_every; /**< and those whose step is a multiple of this; 0: no others */
};

struct ckpt_directory;

/**
 * Opens a directory for saving: makes it, if only its last part is missing, takes its lock, makes
 * durable what is there, and removes what was left unfinished, as well as shards in the pool that
 * none of `world` ranks will use. Unfinished are `saving-<n>`, and a `step-<n>` whose removal has
 * begun; one that has no manifest for another reason stays. Here and below only shards and
 * manifests are ever removed: what other programs have put beside them stays. ZERO_E_STATE: another
 * job saves here (the message says so); ZERO_E_INVALID: something else than a directory has the
 * name; ZERO_E_NOMEM. On error *directory is NULL.
 */
zero_result ckpt_directory_open(struct ckpt_directory **directory, const struct ckpt_store *store,
                                const char *path, uint32_t world, struct base_error *error);

/** Gives the lock back; accepts NULL. What was begun stays for the next open to remove. */
void ckpt_directory_close(struct ckpt_directory *directory);

/** Whether the directory is the one that was opened, and no flush of it has failed. Else it is to
 * be closed and opened again: it may have been moved away, and another job may save to the one that
 * has its name now. */
bool ckpt_directory_is_held(const struct ckpt_directory *directory);

/** Begins a checkpoint: makes `saving-<step>`. ZERO_E_STATE: one has begun already. */
zero_result ckpt_begin(struct ckpt_directory *directory, uint64_t step, struct base_error *error);

/** Creates a rank's shard in `saving-<step>`, from its file in the pool if there is one. Any
 * process, after ckpt_begin() has returned in the owner's. On error *file is NULL. ZERO_E_NOMEM. */
zero_result ckpt_create_shard(const struct ckpt_store *store, const char *path, uint64_t step,
                              uint32_t rank, struct ckpt_file **file, struct base_error *error);

/**
 * Commits: writes the manifest, as the next one in the directory's order (its `sequence` is not
 * used), renames, flushes. All shards are durable. ZERO_OK: the checkpoint survives whatever comes,
 * is the newest, and one that had the same step is gone. After an error there is no new
 * checkpoint, and no old one is touched, but for a failed flush of the directory at the very end:
 * then it may or may not be one, is whole if it is, and nothing can be begun or removed any more.
 * ZERO_E_STATE: the manifest is of another step than the one begun; ZERO_E_UNSUPPORTED: there is
 * one of this step, which this file system can't replace; errors of ckpt_manifest_format().
 */
zero_result ckpt_commit(struct ckpt_directory *directory, const struct ckpt_manifest *manifest,
                        struct base_error *error);

/** Removes what ckpt_begin() began, if anything; what can't be removed now is by the next
 * ckpt_directory_open(). */
void ckpt_cancel(struct ckpt_directory *directory);

/**
 * Removes what retention doesn't keep of a run's checkpoints, or, where `run` is NULL, of all, the
 * oldest first, once the newest of them was found whole. Those of other runs, and those
 * whose run is not known, neither count nor go.
 * Who comes to read waits meanwhile, and who reads is waited for, for a second at most. ZERO_AGAIN
 * (no message): a reader still does, so that all of them stay until the next time. *removed:
 * how many are gone. An error leaves the rest: ZERO_E_CORRUPT, for one, if the newest isn't whole;
 * ZERO_E_IO and ZERO_E_VERSION if some manifest, and so the order, is not known.
 */
zero_result ckpt_prune(struct ckpt_directory *directory, const struct ckpt_retention *retention,
                       const struct ckpt_run_id *run, size_t *removed, struct base_error *error);

/** Whether number `i` of these steps, in the order of ckpt_list(), remains. Pure. */
bool ckpt_keeps(const struct ckpt_retention *retention, const uint64_t *steps, size_t count,
                size_t i);

/* ------------------------------------------------------------------ finding */

/**
 * The steps of what is called `step-<n>` and has a manifest, whole or not, in the order in which
 * they were committed: the newest is the last one. A job that went back has saved lower steps after
 * higher ones. What has a manifest that can't be read stands behind the step before it. *steps is
 * to be freed with base_free(), NULL if there are none. ZERO_NOT_FOUND: no directory (the error is
 * set); ZERO_E_NOMEM.
 */
zero_result ckpt_list(const struct ckpt_store *store, const char *path, uint64_t **steps,
                      size_t *count, struct base_error *error);

/** What is known of the order of a directory's checkpoints. */
struct ckpt_order {
    uint64_t next;            /**< sequence of one that is committed now */
    struct base_error doubts; /**< about one that may be good, though its manifest can't be read:
                                   it may stand somewhere else */
};

/** ckpt_list(), and what is known of the order. */
zero_result ckpt_list_order(const struct ckpt_store *store, const char *path, uint64_t **steps,
                            size_t *count, struct ckpt_order *order, struct base_error *error);

/** A checkpoint, its place in the order, and whose it is. */
struct ckpt_listed {
    uint64_t step, sequence;
    struct ckpt_run_id run;
    bool run_known; /**< false: its manifest can't be read; it may be any run's */
};

/** ckpt_list_order() with runs. *listed is to be freed with base_free(). */
zero_result ckpt_list_runs(const struct ckpt_store *store, const char *path,
                           struct ckpt_listed **listed, size_t *count, struct ckpt_order *order,
                           struct base_error *error);

/** Lists what is no checkpoint, ascending: `saving-<n>`, and `step-<n>` without a manifest. It is
 * being written or removed, or the process that did that has died, or its manifest is gone. */
zero_result ckpt_list_unfinished(const struct ckpt_store *store, const char *path, uint64_t **steps,
                                 size_t *count, struct base_error *error);

/** ZERO_OK if a checkpoint is whole, as far as its manifest and the sizes of its files tell. */
zero_result ckpt_check_whole(const struct ckpt_store *store, const char *path, uint64_t step,
                             struct base_error *error);

/** Reads the manifest of `path`/step-<step>. ZERO_NOT_FOUND (the error is set); errors of
 * ckpt_manifest_parse(); ZERO_E_CORRUPT also: it has another step than its name. *manifest is empty
 * after an error. */
zero_result ckpt_read_manifest(struct ckpt_manifest *manifest, const struct ckpt_store *store,
                               const char *path, uint64_t step, struct base_error *error);

/** Path of shard `rank` of a checkpoint. */
zero_result ckpt_shard_path(char out[CKPT_PATH_BYTES], const char *path, uint64_t step,
                            uint32_t rank, struct base_error *error);

/** If `path` names one checkpoint (ends in step-<n>), cuts that off, and gives its number. */
bool ckpt_split_path(char *path, uint64_t *step);

/**
 * Says that the directory is being read, until ckpt_reader_leave(): no file of it is taken away
 * meanwhile, but for those of a step that is saved again while a process reads for more than a
 * second: of these a reader may find a part missing or of the new save, and says so. Waits while
 * one is, for 30 seconds: ZERO_E_TIMEOUT. Where no job has saved yet (it may be a copy) there is
 * nothing to say: *lock is NULL. ZERO_E_NOMEM.
 */
zero_result ckpt_reader_enter(const struct ckpt_store *store, const char *path,
                              struct ckpt_file **lock, struct base_error *error);

/** Ends it; *lock may be NULL. */
void ckpt_reader_leave(const struct ckpt_store *store, struct ckpt_file **lock);

#endif
