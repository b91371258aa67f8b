/**
 * zero/snapshot/run_identity.h: which runs a context belongs to: see run_identity.c.
 */
#ifndef ZERO_SNAPSHOT_RUN_IDENTITY_H
#define ZERO_SNAPSHOT_RUN_IDENTITY_H

#include "checkpoint/manifest/manifest.h"

#include <stdbool.h>
#include <stdint.h>

/** How many runs and directories a context remembers of each kind. */
enum { ENG_RUNS = 16 };

/** Which directory it is, whatever its name; zeros: none. */
struct eng_folder {
    uint64_t device, inode;
};

/** A run of which a checkpoint was loaded. Rank 0 knows the directory that had it, and the step. */
struct eng_run {
    struct ckpt_run_id id;
    struct eng_folder from;
    uint64_t step;
};

struct eng_runs {
    struct ckpt_run_id own;          /**< what it began, or went on with */
    struct eng_run loaded[ENG_RUNS]; /**< whose checkpoints it has loaded, the newest first */
    int count;
    uint64_t loads;                    /**< how many so far */
    struct eng_folder saved[ENG_RUNS]; /**< rank 0's: the directories that it has saved in, */
    struct eng_folder
        passed[ENG_RUNS]; /**< the damaged checkpoints that zero_resume() passed over */
    unsigned saved_count, passed_count; /**< so far: the newest 16 are known */
};

#endif
