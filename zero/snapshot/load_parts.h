/**
 * zero/snapshot/load_parts.h: what the files load_*.c and resume_run.c know of a checkpoint that is
 * being loaded, and no other file.
 */
#ifndef ZERO_SNAPSHOT_LOAD_PARTS_H
#define ZERO_SNAPSHOT_LOAD_PARTS_H

#include "zero/snapshot/snapshot.h"

/** Bytes of one block of a checkpoint in memory, as fp32. */
#define ENG_LOAD_BLOCK (CKPT_BLOCK_ELEMENTS * sizeof(float))

/** One checkpoint that is being loaded. */
struct eng_load {
    const char *call;
    const char *directory;
    uint64_t step;
    char path[CKPT_MAX_PATH + 64]; /**< for messages: directory/step-n */
    zero_load_options options;
    struct ckpt_loader *loader;
    struct base_tables tables; /**< of the two below */
    struct eng_match match;
    struct eng_moment moment; /**< room for what becomes the present */
    unsigned char *block; /**< elements as they were stored, where they are converted or checked */
    unsigned char *blobs; /**< bytes of those that come back, until all else has been read */
    bool checked;         /**< all tensors are, before a value changes */
    bool newest;          /**< the one before may do, or a recovery point */
    bool changed;         /**< values of this context have begun to change */
    bool recovered;       /**< it is no checkpoint, but the recovery point on NVMe */
    struct ckpt_run_id newest_run; /**< that of the newest checkpoint, if there is one */
    bool has_newest_run;
    int32_t damaged;  /**< newer ones that were passed over */
    const char *next; /**< what is tried after the last one of these; NULL: there is none */
};

static inline const struct ckpt_manifest *eng_load_manifest(const struct eng_load *job)
{
    return ckpt_loader_manifest(job->loader);
}

/* ---- load_tensors.c */

/** Reads what this rank is going to read of a slice, and keeps nothing of it: all of it, or what
 * may not fit. *Local.* Errors as of ckpt_loader_read(); ZERO_E_INVALID: a value does not fit. */
zero_result eng_load_check_slice(zero_ctx *z, struct eng_load *job, const struct eng_slice *slice,
                                 struct base_error *error);
/** Reads all that this rank writes into its state. *Local.* After an error the store has abandoned
 * what was read. */
zero_result eng_load_read_all(zero_ctx *z, struct eng_load *job, struct base_error *error);

/* ---- load_state.c */

/** Checks the arguments of zero_load() or zero_resume(), and that ranks agree on them; then waits
 * for the save under way. Collective. `path` NULL: a recovery point alone is asked for. */
zero_result eng_load_check_call(zero_ctx *z, struct eng_load *job, const char *path,
                                const zero_load_options *user, const zero_load_result *result);
/** Loads checkpoint job->step of job->directory. Collective. ZERO_E_CORRUPT, ZERO_E_IO,
 * ZERO_NOT_FOUND: another one may be tried. */
zero_result eng_load_one(zero_ctx *z, struct eng_load *job);
/** The result of the call: a failure after values have begun to change is one that no later call
 * gets over. */
zero_result eng_load_conclude(zero_ctx *z, const struct eng_load *job, zero_result r);
/** Logs what was loaded, and fills *result unless that is NULL. */
void eng_load_report(zero_ctx *z, const struct eng_load *job, uint64_t began_ns,
                     zero_load_result *result);
/** Frees what a checkpoint took; another one may be tried with the job. */
void eng_load_close(struct eng_load *job);

#endif
