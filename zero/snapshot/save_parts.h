/**
 * zero/snapshot/save_parts.h: what save_state.c and copy_on_write.c know of a context's saves, and
 * no other file does.
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

/** The program was held up by a save since then; for how many ns. */
uint64_t eng_save_count_blocked(zero_ctx *z, uint64_t began_ns);

#endif
