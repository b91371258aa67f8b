// The phases of a save: what each rank's saver does is told to all in the exchange of every step,
// so all ranks go through the same phases at the same steps.

#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/snapshot/save_parts.h"
#include "zero/snapshot/save_state.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

/** What a rank says of itself. */
enum word { BUSY, READY, BROKEN };

static uint64_t save_word(const zero_ctx *z)
{
    if (!eng_save_under_way(z))
        return READY;
    switch (ckpt_saver_state(z->saving.save->saver)) {
    case CKPT_SAVE_WRITING:
    case CKPT_SAVE_RUNNING:
        return BUSY;
    case CKPT_SAVE_FAILED:
        return BROKEN;
    default:
        return READY;
    }
}

static void fill_word(const zero_ctx *z, unsigned char *mine)
{
    const uint64_t word = save_word(z);
    memcpy(mine, &word, sizeof word);
}

static uint64_t word_of(const void *words, size_t stride, int rank)
{
    uint64_t word;
    memcpy(&word, (const unsigned char *)words + (size_t)rank * stride, sizeof word);
    return word;
}

/** All ranks hear of a failure that some rank has found; `mine` has this rank's, or none. */
static zero_result fail_save(zero_ctx *z, const struct base_error *mine)
{
    struct eng_save *save = z->saving.save;
    assert(eng_save_under_way(z));
    const zero_result r = eng_agree_on_file(z, mine, "zero_save");
    if (z->fatal)
        return z->fatal;
    if (!r)
        return ZERO_OK;
    save->error = z->error;
    save->shared = false; // the next one asks again
    if (save->directory)
        ckpt_cancel(save->directory);
    eng_save_enter(z, SAVE_FAILED);
    if (!save->returned)
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt", "%s", save->error.message);
    return ZERO_OK;
}

/** On rank 0, in the saver's thread. */
static zero_result commit(void *user, struct base_error *error)
{
    struct eng_save *save = user;
    size_t removed;
    const zero_result r = ckpt_commit(save->directory, &save->manifest, error);
    if (r)
        return r;
    // The checkpoint is there, whatever becomes of older ones.
    base_error_clear(&save->pruning);
    if (ckpt_prune(save->directory, &save->retention, &save->manifest.run, &removed,
                   &save->pruning) == ZERO_AGAIN)
        zero_fail(&save->pruning, ZERO_AGAIN,
                  "a process has read %s for a second: older checkpoints stay until the next save",
                  save->path);
    return ZERO_OK;
}

/** Rank 0: what the manifest says of each shard and tensor. */
static void complete_manifest(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    struct ckpt_manifest *manifest = &save->manifest;
    assert(manifest->world == (size_t)z->config.world);
    assert(manifest->tensor_count == z->model.param_count);
    for (size_t r = 0; r < manifest->world; r++) {
        struct ckpt_shard_entry *shard = &manifest->shards[r];
        shard->bytes = save->all[r].bytes;
        shard->index_offset = save->all[r].index_offset;
        shard->index_xxh3 = save->all[r].index_xxh3;
        for (size_t b = 0; b < manifest->blob_count; b++)
            if (manifest->blobs[b].of_rank)
                manifest->blobs[b].bytes[r] = save->all[r].blob[b];
    }
    for (size_t t = 0; t < manifest->tensor_count; t++)
        manifest->tensors[t].sum = save->digest.sums[t];
    memcpy(manifest->state.fingerprint, save->fingerprint, sizeof save->fingerprint);
}

/** Every rank has come to an end. */
static zero_result all_written(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    const bool broken = ckpt_saver_state(save->saver) == CKPT_SAVE_FAILED;
    static const struct base_error none;
    zero_result r = fail_save(z, broken ? ckpt_saver_error(save->saver) : &none);
    if (r || eng_save_phase(z) == SAVE_FAILED)
        return r;
    const struct ckpt_shard_entry *entry = ckpt_saver_entry(save->saver);
    save->mine.bytes = entry->bytes;
    save->mine.index_offset = entry->index_offset;
    save->mine.index_xxh3 = entry->index_xxh3;
    r = eng_exchange(z, &save->mine, sizeof save->mine, save->all);
    if (!r)
        r = eng_digest_conclude(z, &save->moment, &save->digest, save->fingerprint);
    if (r)
        return r;
    uint64_t bytes = 0;
    for (int rank = 0; rank < z->config.world; rank++)
        bytes += save->all[rank].bytes;
    atomic_store_explicit(&z->saving.status.file_bytes, bytes, memory_order_relaxed);
    for (int i = 0; i < 2; i++) {
        uint64_t half;
        memcpy(&half, save->fingerprint + i * 8, sizeof half);
        atomic_store_explicit(&z->saving.status.fingerprint[i], half, memory_order_relaxed);
    }
    eng_save_enter(z, SAVE_COMMITTING);
    if (z->config.rank == 0) {
        complete_manifest(z);
        ckpt_saver_run(save->saver, commit, save);
    }
    return ZERO_OK;
}

/** Rank 0 has committed, or failed to. */
static zero_result all_committed(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    const bool broken = ckpt_saver_state(save->saver) == CKPT_SAVE_FAILED;
    static const struct base_error none;
    const zero_result r = fail_save(z, broken ? ckpt_saver_error(save->saver) : &none);
    if (r || eng_save_phase(z) == SAVE_FAILED)
        return r;
    if (save->pruning.result)
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt", "%s", save->pruning.message);
    eng_save_enter(z, SAVE_COMPLETE);
    base_logf(&z->config.log, ZERO_LOG_INFO, "ckpt", "step %llu is saved in %s, %llu bytes",
              (unsigned long long)save->moment.step, save->path,
              (unsigned long long)atomic_load(&z->saving.status.file_bytes));
    return ZERO_OK;
}

/** Goes on to the next phase when all ranks have come to the end of theirs. */
static zero_result advance_save(zero_ctx *z, const unsigned char *words, size_t stride)
{
    if (!eng_save_under_way(z))
        return ZERO_OK;
    const uint64_t began = base_clock_ns();
    const bool writing = eng_save_phase(z) == SAVE_WRITING;
    for (int rank = 0; rank < (writing ? z->config.world : 1); rank++)
        if (word_of(words, stride, rank) == BUSY)
            return ZERO_OK;
    const zero_result r = writing ? all_written(z) : all_committed(z);
    eng_save_count_blocked(z, began);
    return r;
}

const struct eng_exchange_part eng_save_part = {
    .name = "save",
    .kinds = ENG_EXCHANGE_STEP | ENG_EXCHANGE_EARLY,
    .bytes = sizeof(uint64_t),
    .fill = fill_word,
    .hear = advance_save,
};

zero_result eng_save_finish(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    while (eng_save_under_way(z)) {
        const uint64_t began = base_clock_ns();
        ckpt_saver_wait(save->saver);
        const uint64_t word = save_word(z);
        zero_result r = eng_exchange(z, &word, sizeof word, z->stepping.exchange.room.all);
        eng_save_count_blocked(z, began);
        if (!r)
            r = advance_save(z, z->stepping.exchange.room.all, sizeof word);
        if (r)
            return r;
    }
    return ZERO_OK;
}
