/**
 * zero/snapshot/save_parts.h: what the files save_*.c, copy_on_write.c and sources.c know of a
 * context's saves, and no other file.
 */
#ifndef ZERO_SNAPSHOT_SAVE_PARTS_H
#define ZERO_SNAPSHOT_SAVE_PARTS_H

#include "zero/snapshot/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>

enum eng_save_phase { SAVE_NONE, SAVE_WRITING, SAVE_COMMITTING, SAVE_COMPLETE, SAVE_FAILED };

/** Room for copies of what changes while it is saved, unless the program asks for another. */
#define ENG_SAVE_ROOM ((size_t)256 << 20)

/** What rank 0 has to know of a shard. */
struct eng_shard_report {
    uint64_t bytes, index_offset, index_xxh3;
    uint64_t blob[ENG_MAX_BLOBS];
};

struct eng_save {
    struct ckpt_saver *saver;
    struct eng_snapshot *snapshot; /**< what is saved, as the store has made it */
    int level;                     /**< the saver's, */
    size_t room_bytes, blob_bytes; /**< and how much room it has for copies, and for blobs */
    struct base_tables tables;     /**< of sources, digest and moment, and of all ranks' reports */
    struct eng_sources sources;
    struct eng_digest digest;
    pthread_mutex_t summing;  /**< its sums */
    struct eng_moment moment; /**< when the save began */
    struct eng_shard_report mine, *all;
    struct ckpt_directory *directory; /**< rank 0's, locked, */
    struct eng_run_choice choice;     /**< and what there is in it */
    char path[CKPT_MAX_PATH];         /**< of the directory, */
    bool shared;                      /**< which all ranks see */
    struct ckpt_retention retention;
    struct ckpt_manifest manifest; /**< rank 0's, of the save under way */
    struct base_error pruning;     /**< rank 0: what went wrong after the commit */
    struct base_error error;       /**< of a save that failed, the same on all ranks */
    bool returned;                 /**< the call under way returns such a failure */
    uint8_t fingerprint[16];
};

static inline enum eng_save_phase eng_save_phase(const zero_ctx *z)
{
    return (enum eng_save_phase)atomic_load_explicit(&z->saving.status.phase, memory_order_acquire);
}

/** Whether files are still written, or rank 0 still commits. */
static inline bool eng_save_under_way(const zero_ctx *z)
{
    const enum eng_save_phase phase = eng_save_phase(z);
    return phase == SAVE_WRITING || phase == SAVE_COMMITTING;
}

/* ---- save_memory.c */

/** All ranks get what a save with this level and room for copies needs, or none does. Collective.
 * ZERO_E_NOMEM, ZERO_E_DEVICE; ZERO_E_LIMIT, ZERO_E_UNSUPPORTED: as zero_commit(). */
zero_result eng_save_prepare(zero_ctx *z, int level, size_t room_bytes);
/** Gives up a save that is under way, and frees what all saves use. */
void eng_save_release(zero_ctx *z);

/* ---- save_status.c */

/** The save enters a phase: from now on zero_save_poll() tells of it. */
void eng_save_enter(zero_ctx *z, enum eng_save_phase phase);
/** A save of the current step has begun, in a call that began then. */
void eng_save_tell_begun(zero_ctx *z, uint64_t began_ns);
/** The program was held up by a save since then; for how many ns. */
uint64_t eng_save_count_blocked(zero_ctx *z, uint64_t began_ns);

#endif
