/**
 * zero/snapshot/snapshot.h: what decides the future of a run, and how it gets to files and back.
 *
 *   save_state.c         zero_save(): arguments, the directory, and when all ranks begin.
 *   save_memory.c        what saves use: memory, the store's snapshot, the saver thread.
 *   save_phases.c        how far each rank is: what ranks tell each other.
 *   save_status.c        zero_save_poll().
 *   copy_on_write.c      what changes of the state wait for, of a save under way.
 *   sources.c            where the state is, for the thread that writes it.
 *   describe.c           the manifest of a model and a moment.
 *   fingerprint.c        hashes of the state.
 *   shared_directory.c   whether all ranks see the directory of a save.
 *   load_state.c         zero_load(): agreeing, reading, installing.
 *   load_tensors.c       reading what this rank holds.
 *   resume_run.c         zero_resume(): a recovery point, or which checkpoint.
 *   compatibility.c      whether a checkpoint is one of this model and configuration.
 *   attachments.c        the program's own bytes.
 *   recovery_point.c     what a recovery point has beside tiles.
 *   train_progress.c     counters and scalars between two steps.
 *   run_identity.c       the run whose checkpoints this context saves, and the runs beside it.
 */
#ifndef ZERO_SNAPSHOT_SNAPSHOT_H
#define ZERO_SNAPSHOT_SNAPSHOT_H

#include "base/hash.h"
#include "base/tables.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "checkpoint/tensor_digest.h"
#include "zero/core/state_fields.h"

/* ---- train_progress.c */

/** What decides the future beside tensors, between two steps. */
struct eng_moment {
    uint64_t step, updates, skips;
    int32_t micro_batches;
    struct base_scale scale;
    zero_hyper *hyper;         /**< one a group, */
    bool *frozen;              /**< and whether it is */
    struct base_hash128 blobs; /**< of the global ones; zero without */
};

/** Adds the tables of a moment of this model. */
void eng_moment_lay(const zero_ctx *z, struct eng_moment *moment, struct base_tables *tables);
/** Now; `blobs` is eng_blob_hash(). */
void eng_moment_take(const zero_ctx *z, struct base_hash128 blobs, struct eng_moment *moment);
/** Makes it now, but for V and blobs; the loss scale's value where that is dynamic. */
void eng_moment_install(zero_ctx *z, const struct eng_moment *moment);

/* ---- fingerprint.c */

struct eng_named_sum {
    const struct eng_param *param;
    struct base_hash128 sum;
};

/** What a fingerprint is made in. */
struct eng_digest {
    struct base_hash128 *sums; /**< one a tensor: of what this rank owns, in the end of all of it */
    struct base_hash128 *all;  /**< every rank's */
    struct eng_named_sum *named;
};

/** Adds the tables of a digest. */
void eng_digest_lay(const zero_ctx *z, struct eng_digest *digest, struct base_tables *tables);
/** Adds the hashes of the granules in elements first .. first+count-1 of one field of a slice;
 * first is at a granule. */
void eng_digest_add(const zero_ctx *z, const struct eng_slice *slice, int field, uint64_t first,
                    size_t count, const void *elements, struct base_hash128 *sum);
/** Adds every rank's sums up and makes the fingerprint of them and of a moment. Collective.
 * Allocates nothing. */
zero_result eng_digest_conclude(zero_ctx *z, const struct eng_moment *moment,
                                struct eng_digest *digest, uint8_t bytes[16]);
/** The fingerprint of the state as it is, in a digest as eng_digest_lay() left it in `tables`,
 * which gets a moment, too. Collective. ZERO_E_NOMEM: there was no memory for them. */
zero_result eng_digest_now(zero_ctx *z, struct eng_digest *digest, struct base_tables *tables,
                           uint8_t bytes[16]);

/* ---- attachments.c */

enum { ENG_MAX_BLOBS = CKPT_MAX_BLOBS, ENG_BLOB_NAME = 64 };

struct eng_blob {
    char name[ENG_BLOB_NAME];
    void *memory;
    uint64_t bytes;
    zero_scope scope;
};

struct eng_blobs {
    struct eng_blob list[ENG_MAX_BLOBS];
    size_t count;
};

/** The blob of that name and scope, NULL if there is none. */
const struct eng_blob *eng_blob_find(const zero_ctx *z, const char *name, bool of_rank);
/** Whether some are of a rank. */
bool eng_has_rank_blobs(const zero_ctx *z);
/** Number of blobs. */
size_t eng_blob_count(const zero_ctx *z);
/** Hash of the global ones, names included; zero if there is none. */
struct base_hash128 eng_blob_hash(const zero_ctx *z);
/** Hash of what must be the same on all ranks: names, scopes, and the global ones, of which
 * eng_blob_hash() is given. */
uint64_t eng_blob_agreement(const zero_ctx *z, struct base_hash128 global);

/* ---- sources.c */

/** Adds the tables of so many sources. */
void eng_sources_lay(struct eng_sources *sources, size_t count, struct base_tables *tables);
/** Fills them with those of this rank, whose number eng_save_load() says. */
void eng_sources_fill(const zero_ctx *z, struct eng_sources *sources);
/** The part of a slice that `rank` owns; false: none. */
bool eng_own_run(const struct eng_layout *layout, const struct eng_slice *slice, int rank,
                 struct ckpt_run *run);
/** What a rank's saver writes. */
struct ckpt_saver_load eng_save_load(const zero_ctx *z, int rank);

/* ---- describe.c */

/** The manifest of the model at a moment, without `id`, shards' files and the sums of tensors.
 * ZERO_E_NOMEM: it is empty. */
zero_result eng_describe(const zero_ctx *z, const struct eng_moment *moment,
                         struct ckpt_manifest *manifest, struct base_error *error);
/** What of it is beside tensors and groups, without the fingerprint. Pure. */
struct ckpt_state eng_describe_state(const zero_ctx *z, const struct eng_moment *moment);
/** A dtype as files call it. */
enum ckpt_dtype eng_ckpt_dtype(zero_dtype dtype);

/* ---- save_phases.c */

/** Waits for the save under way, on all ranks. Collective. Its failure is none of this call. */
zero_result eng_save_finish(zero_ctx *z);

/* ---- run_identity.c */

/** Room for the text of a run. */
enum { ENG_RUN_TEXT = 48 };

/** What was decided of a directory. */
struct eng_run_choice {
    struct ckpt_run_id run; /**< that what is saved there is of */
    uint64_t loads;         /**< runs.loads then: more have been loaded since where it differs */
    bool others;            /**< checkpoints of other runs are there, too */
};

/** Begins a run of this context's own, the same on all ranks. Collective, in zero_commit().
 * ZERO_E_IO. */
zero_result eng_runs_begin(zero_ctx *z);

/** The checkpoint of this run and step was loaded from `directory`; NULL: a recovery point was.
 * `resumed`: the context goes on with the run wherever it saves; else it does where it saves beside
 * the run's checkpoints only. */
void eng_runs_loaded(zero_ctx *z, const struct ckpt_run_id *run, bool resumed,
                     const char *directory, uint64_t step);
/** zero_resume() has passed over the damaged checkpoint `path`. */
void eng_runs_passed(zero_ctx *z, const char *path);
/** What this context saves from now on is of this run; it may still save beside those of the run
 * before. */
void eng_runs_continue(zero_ctx *z, const struct ckpt_run_id *run);
/**
 * Rank 0: which run a save of the current step in directory `path`, which is this job's, belongs
 * to. ZERO_E_STATE: checkpoints of runs are there that the context neither began nor loaded, and
 * `beside` is not set, or one of them has this step, or another job has gone on with the run there;
 * errors of ckpt_list_runs(). *choice is set
 * after ZERO_E_STATE, too.
 */
zero_result eng_runs_decide(zero_ctx *z, const char *path, bool beside,
                            struct eng_run_choice *choice, struct base_error *error);

/* ---- shared_directory.c */

/** Whether ranks of other hosts see what rank 0 has written to a directory: by a file named by the
 * id, which is gone afterwards. Collective. ZERO_E_IO, on all ranks. */
zero_result eng_shared_check(zero_ctx *z, const char *directory, const uint8_t id[16],
                             const char *call);

/** After rank 0 has begun a checkpoint of the current step in `path`, what a relative `directory`
 * is on this rank: whether ranks of rank 0's host whose path is another one see it. Collective.
 * ZERO_E_IO, on all ranks, with both paths. */
zero_result eng_shared_place(zero_ctx *z, const char *directory, const char *path,
                             const char *call);

/* ---- compatibility.c */

/** What of a checkpoint goes where. */
struct eng_match {
    size_t *tensor; /**< of each of the model's: its number in the manifest; SIZE_MAX: missing */
    int missing;
    size_t *group;         /**< of each of the model's, SIZE_MAX: it stays as it is */
    bool other_groups;     /**< some do, or have another number in it, or it has more */
    int32_t micro_batches; /**< V to go on with */
    bool converted;        /**< some values are stored with another type than they have here, */
    bool narrowed;         /**< or will have a narrower one, working copies included */
    bool other_blobs;      /**< some are on one side only */
    bool rank_blobs;       /**< those of a rank that are here are in it, and this rank's */
};

/** Adds the tables of a match. */
void eng_match_lay(const zero_ctx *z, struct eng_match *match, struct base_tables *tables);
/** Compares a checkpoint with model and configuration. ZERO_E_INVALID: the message says what
 * differs. */
zero_result eng_match(const zero_ctx *z, const struct ckpt_manifest *manifest, const char *path,
                      const zero_load_options *options, struct eng_match *match,
                      struct base_error *error);
/** The type that values of this field of a saved tensor are to fit in, as it is narrower than what
 * they were kept in, here or in the working copy; ZERO_F32: they fit. */
zero_dtype eng_match_narrows(const zero_ctx *z, const struct ckpt_table_tensor *saved,
                             zero_param param, int field);
/** A group's hyper-parameters as they were saved; false: some of them are missing or unknown. */
bool eng_match_hyper(const struct ckpt_group *saved, zero_hyper *hyper);

#endif
