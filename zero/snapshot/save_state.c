// Saving: what each rank's saver does is told to all in the exchange of every step, so all ranks
// go through the same phases at the same steps.

#include "zero/snapshot/save_state.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/core/planner.h"
#include "zero/model/versioned.h"
#include "zero/plan/plan.h"
#include "zero/snapshot/save_parts.h"
#include "zero/step/gradient.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/** What a rank says of itself. */
enum word { BUSY, READY, BROKEN };

/** What was asked for, with defaults. */
struct plan {
    int level;
    size_t room_bytes;
    struct ckpt_retention retention;
    bool beside_other_runs;
};

static bool under_way(const zero_ctx *z)
{
    const enum eng_save_phase phase = eng_save_phase(z);
    return phase == SAVE_WRITING || phase == SAVE_COMMITTING;
}

static void enter_phase(zero_ctx *z, enum eng_save_phase phase)
{
    if (phase == SAVE_COMPLETE || phase == SAVE_FAILED)
        atomic_store_explicit(&z->saving.status.ended_ns, base_clock_ns(), memory_order_relaxed);
    atomic_store_explicit(&z->saving.status.phase, phase, memory_order_release);
}

/* ------------------------------------------------------------------ memory */

static void see(void *user, const struct ckpt_source *source, int field, uint64_t first,
                size_t count, const void *elements)
{
    const zero_ctx *z = user;
    struct eng_save *save = z->saving.save;
    const struct eng_slice *slice = save->sources.slice[source - save->sources.list];
    struct base_hash128 sum = {0}, *sums = save->digest.sums;
    eng_digest_add(z, slice, field, first, count, elements, &sum);
    pthread_mutex_lock(&save->summing);
    sums[slice->param] = base_hash128_add(sums[slice->param], sum);
    pthread_mutex_unlock(&save->summing);
}

/** What the saver cannot read itself. */
static zero_result fetch(void *user, const struct ckpt_source *source, int field, uint64_t first,
                         size_t count, const void **elements, struct base_error *error)
{
    zero_ctx *z = user;
    struct eng_save *save = z->saving.save;
    const struct eng_slice *slice = save->sources.slice[source - save->sources.list];
    return z->store->snapshot->read(z, save->snapshot, source, slice, field, first, count, elements,
                                    error);
}

/** What the saver cannot copy itself. */
static zero_result copy(void *user, const struct ckpt_source *source, int field, uint64_t first,
                        size_t count, void *to, struct base_error *error)
{
    const zero_ctx *z = user;
    return z->store->snapshot->copy(z, z->saving.save->snapshot, source, field, first, count, to,
                                    error);
}

static struct ckpt_saver_config saver_config(zero_ctx *z)
{
    return (struct ckpt_saver_config){
        .store = &ckpt_store_posix,
        .level = z->saving.save->level,
        .budget = z->store->records->kept ? 0 : z->saving.save->room_bytes,
        .sources = z->saving.save->sources.list,
        .load = eng_save_load(z, z->config.rank),
        .seen = see,
        .seen_user = z,
        .fetch = z->store->snapshot->read ? fetch : NULL,
        .copy = z->store->snapshot->copy ? copy : NULL,
        .fetch_user = z,
        .progress = &z->saving.status.done_bytes,
    };
}

static void drop_saver(const zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    z->store->snapshot->leave_room(z, save->snapshot);
    ckpt_saver_destroy(save->saver);
    save->saver = NULL;
}

/** A saver with room for the blobs there are. */
static zero_result prepare_saver(zero_ctx *z, struct base_error *error)
{
    struct eng_save *save = z->saving.save;
    const struct ckpt_saver_config config = saver_config(z);
    if (save->saver && save->blob_bytes >= config.load.blob_bytes)
        return ZERO_OK;
    drop_saver(z);
    save->blob_bytes = config.load.blob_bytes;
    atomic_store_explicit(&z->saving.status.state_bytes, config.load.bytes, memory_order_relaxed);
    const zero_result r = ckpt_saver_create(&save->saver, &config, error);
    if (r)
        return r;
    size_t bytes;
    void *room = ckpt_saver_copy_buffer(save->saver, &bytes);
    return z->store->snapshot->take_room(z, save->snapshot, room, bytes, error);
}

/** What all saves of a context use, but for the saver. */
static zero_result make(zero_ctx *z, struct base_error *error)
{
    struct eng_save *save = base_calloc(1, sizeof *save);
    z->saving.save = save;
    z->update.guard = &eng_save_guard;
    if (save) {
        pthread_mutex_init(&save->summing, NULL);
        save->all = base_calloc((size_t)z->config.world, sizeof *save->all);
    }
    if (!save || !save->all) {
        zero_fail(error, ZERO_E_NOMEM, "no memory for saving %d shards", z->config.world);
        return ZERO_E_NOMEM;
    }
    zero_result r = eng_sources_make(z, &save->sources, error);
    if (!r)
        r = z->store->snapshot->make(z, &save->sources, &save->snapshot, error);
    if (!r)
        r = eng_digest_make(z, &save->digest, error);
    return r ? r : eng_moment_make(z, &save->moment, error);
}

/** Gives up a save that is under way, and frees what all of them use. */
static void release(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    if (!save)
        return;
    drop_saver(z);
    if (save->directory && under_way(z))
        ckpt_cancel(save->directory);
    ckpt_directory_close(save->directory);
    ckpt_manifest_free(&save->manifest);
    eng_moment_free(&save->moment);
    eng_digest_free(&save->digest);
    eng_sources_free(&save->sources);
    z->store->snapshot->free(z, save->snapshot);
    pthread_mutex_destroy(&save->summing);
    base_free(save->all);
    base_free(save);
    z->saving.save = NULL;
    z->update.guard = NULL;
}

/** Where memory is short: how much of it is for copies, which the caller decides. */
static void tell_room(const zero_ctx *z, struct base_error *error)
{
    const struct base_error short_of = *error;
    const size_t room = z->saving.save && !z->store->records->kept ? z->saving.save->room_bytes : 0;
    const uint64_t state = eng_save_load(z, z->config.rank).bytes;
    char size[32];
    if (short_of.result != ZERO_E_NOMEM || room == 0)
        return;
    base_error_clear(error);
    zero_fail(error, ZERO_E_NOMEM,
              "%s; %s of it on rank %d are room_bytes of zero_save_options: a smaller number, or "
              "ZERO_OFF, needs less",
              short_of.message, eng_human(state < room ? state : room, size), z->config.rank);
}

/** The first save, or other options: there must be memory for it before any is touched. */
static zero_result prepare_anew(zero_ctx *z, const struct plan *plan)
{
    struct base_error error = {0};
    if (z->saving.save)
        drop_saver(z);
    else
        make(z, &error);
    if (z->saving.save) {
        z->saving.save->level = plan->level;
        z->saving.save->room_bytes = plan->room_bytes;
    }
    z->memory.planner->check(z, &error);
    tell_room(z, &error);
    const zero_result r = eng_agree(z, &error, "zero_save");
    if (r)
        return r;
    if (!z->store->snapshot->open(z, z->saving.save->snapshot, &error))
        prepare_saver(z, &error);
    tell_room(z, &error);
    return z->memory.planner->renew(z, "zero_save", &error);
}

/** All ranks have what they need, or none begins. */
static zero_result prepare(zero_ctx *z, const struct plan *plan)
{
    struct base_error error = {0};
    struct eng_save *save = z->saving.save;
    const bool first = !save;
    zero_result r;
    if (save && save->saver && save->level == plan->level && save->room_bytes == plan->room_bytes) {
        prepare_saver(z, &error);
        tell_room(z, &error);
        r = eng_agree(z, &error, "zero_save");
    } else {
        r = prepare_anew(z, plan);
    }
    if (r && first)
        release(z);
    else if (r)
        drop_saver(z); // on all ranks
    return r;
}

/* ------------------------------------------------------------------ what ranks tell each other */

static uint64_t save_word(const zero_ctx *z)
{
    if (!under_way(z))
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
    const zero_result r = eng_agree_on_file(z, mine, "zero_save");
    if (z->fatal)
        return z->fatal;
    if (!r)
        return ZERO_OK;
    save->error = z->error;
    save->shared = false; // the next one asks again
    if (save->directory)
        ckpt_cancel(save->directory);
    enter_phase(z, SAVE_FAILED);
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
                  "%s is being read, and was for a second: older checkpoints stay until the next "
                  "save",
                  save->path);
    return ZERO_OK;
}

/** Rank 0: what the manifest says of each shard and tensor. */
static void complete_manifest(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    struct ckpt_manifest *manifest = &save->manifest;
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
    enter_phase(z, SAVE_COMMITTING);
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
    enter_phase(z, SAVE_COMPLETE);
    base_logf(&z->config.log, ZERO_LOG_INFO, "ckpt", "step %llu is saved in %s, %llu bytes",
              (unsigned long long)save->moment.step, save->path,
              (unsigned long long)atomic_load(&z->saving.status.file_bytes));
    return ZERO_OK;
}

/** Goes on to the next phase when all ranks have come to the end of theirs. */
static zero_result advance_save(zero_ctx *z, const unsigned char *words, size_t stride)
{
    if (!under_way(z))
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
    while (under_way(z)) {
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

void eng_save_close(zero_ctx *z)
{
    const bool told = z->fatal != ZERO_OK; // a call has returned why
    if (under_way(z)) {
        zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_close");
        if (!r)
            r = eng_outside(z, "zero_close");
        eng_leave(z, r ? r : eng_save_finish(z));
    }
    // After an error, and in the middle of a step, nobody waits for the others.
    if (under_way(z))
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt",
                  "the save of step %llu in %s is given up%s%s",
                  (unsigned long long)z->saving.save->moment.step, z->saving.save->path,
                  told ? "" : ": ", told ? "" : z->error.message);
    release(z);
}

/* ------------------------------------------------------------------ beginning */

static zero_result check_options(zero_ctx *z, const char *directory, const zero_save_options *user,
                                 zero_save_options *options)
{
    struct base_error error = {0};
    *options = zero_save_options_default();
    if (user && eng_struct_copy(options, sizeof *options, user, "zero_save_options", &error))
        return eng_fail_from(z, &error);
    if (!directory || !*directory || strlen(directory) >= CKPT_MAX_PATH)
        return eng_fail(z, ZERO_E_INVALID, "zero_save needs a directory of 1 to %d bytes",
                        CKPT_MAX_PATH - 1);
    if (options->level < ZERO_OFF || options->level > CKPT_LEVEL_MOST)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_save: level %d is not in 0 to %d, and not ZERO_OFF", options->level,
                        CKPT_LEVEL_MOST);
    if (options->keep < 0 || options->keep_every < 0)
        return eng_fail(z, ZERO_E_INVALID, "zero_save: keep %d or keep_every %d is negative",
                        options->keep, options->keep_every);
    if (options->room_bytes < ZERO_OFF)
        return eng_fail(z, ZERO_E_INVALID, "zero_save: room_bytes %lld is negative",
                        (long long)options->room_bytes);
    if (options->room_bytes > 0 && z->store->records->kept)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_save: room_bytes %lld has no effect where state is on NVMe: nothing "
                        "is copied",
                        (long long)options->room_bytes);
    if (options->keep_every > 0 && options->keep == 0)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_save: keep_every %d has no effect where all are kept (keep 0)",
                        options->keep_every);
    if (options->beside_other_runs != 0 && options->beside_other_runs != 1)
        return eng_fail(z, ZERO_E_INVALID, "zero_save: beside_other_runs is %d, neither 0 nor 1",
                        options->beside_other_runs);
    return eng_between_steps(z, "zero_save");
}

static uint64_t hash_arguments(const zero_ctx *z, const char *directory,
                               const zero_save_options *options, struct base_hash128 blobs)
{
    const uint64_t hash = base_hash64(options, sizeof *options, eng_blob_agreement(z, blobs));
    return base_hash64(directory, strlen(directory), hash);
}

/** Ranks differ in the arguments: in what. The names of blobs are known to be alike when the blobs
 * are compared. */
static zero_result name_difference(zero_ctx *z, const char *directory,
                                   const zero_save_options *options)
{
    static const char *const arguments = "the arguments of zero_save";
    const uint64_t hash = base_hash64(options, sizeof *options, 0);
    zero_result r = eng_same(z, base_hash64(directory, strlen(directory), hash), arguments);
    if (!r)
        r = eng_same(z, eng_blob_agreement(z, (struct base_hash128){0}),
                     "what is attached (names and scopes) at zero_save");
    for (size_t i = 0; !r && i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        char what[128];
        if (blob->scope != ZERO_GLOBAL)
            continue;
        const struct base_hash128 sum =
            ckpt_digest_blob(blob->name, blob->memory, (size_t)blob->bytes);
        snprintf(what, sizeof what, "the attached bytes \"%s\" (ZERO_GLOBAL) at zero_save",
                 blob->name);
        r = eng_same(z, base_hash64(&sum, sizeof sum, 0), what);
    }
    return r;
}

static zero_result check_arguments(zero_ctx *z, const char *directory,
                                   const zero_save_options *options, struct base_hash128 blobs)
{
    const uint64_t mine = hash_arguments(z, directory, options, blobs);
    zero_result r = eng_exchange(z, &mine, sizeof mine, z->stepping.exchange.room.all);
    for (int rank = 1; !r && rank < z->config.world; rank++)
        if (word_of(z->stepping.exchange.room.all, sizeof mine, rank) !=
            word_of(z->stepping.exchange.room.all, sizeof mine, 0)) {
            r = name_difference(z, directory, options);
            return r ? r : eng_same(z, mine, "the arguments of zero_save");
        }
    return r;
}

static void leave_directory(struct eng_save *save)
{
    ckpt_directory_close(save->directory);
    save->directory = NULL;
}

/** Rank 0: the directory is this job's, and this run's. Only this job adds to it, so what was found
 * stays true; where there are checkpoints of others, each save has to say that it may. */
static zero_result take_directory(zero_ctx *z, const char *path, bool beside,
                                  struct base_error *error)
{
    struct eng_save *save = z->saving.save;
    if (save->directory &&
        (strcmp(save->path, path) != 0 || !ckpt_directory_is_held(save->directory)))
        leave_directory(save);
    const bool known = save->directory != NULL;
    if (!known && ckpt_directory_open(&save->directory, &ckpt_store_posix, path,
                                      (uint32_t)z->config.world, error))
        return error->result;
    if (known && !save->choice.others && save->choice.loads == z->saving.runs.loads)
        return ZERO_OK;
    const zero_result r = eng_runs_decide(z, path, beside, &save->choice, error);
    if (r)
        leave_directory(save);
    return r;
}

/** Rank 0: the checkpoint is begun. */
static zero_result begin_directory(zero_ctx *z, const char *path, bool beside,
                                   struct base_error *error)
{
    struct eng_save *save = z->saving.save;
    zero_result r = take_directory(z, path, beside, error);
    if (!r)
        r = ckpt_begin(save->directory, z->step, error);
    ckpt_manifest_free(&save->manifest);
    return r ? r : eng_describe(z, &save->moment, &save->manifest, error);
}

static zero_result random_id(uint8_t id[16], struct base_error *error)
{
    if (getrandom(id, 16, 0) == 16)
        return ZERO_OK;
    return zero_fail_errno(error, ZERO_E_IO, errno, "no random number for a checkpoint");
}

/** Starts this rank's saver. */
static zero_result start(zero_ctx *z, const uint8_t id[16], struct base_error *error)
{
    struct eng_save *save = z->saving.save;
    struct ckpt_blob_source blobs[ENG_MAX_BLOBS];
    size_t count = 0;
    memset(save->mine.blob, 0, sizeof save->mine.blob);
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        save->mine.blob[i] = blob->bytes;
        if (blob->scope == ZERO_OF_RANK || z->config.rank == 0)
            blobs[count++] = (struct ckpt_blob_source){
                .number = (uint32_t)i, .bytes = blob->memory, .size = (size_t)blob->bytes};
    }
    struct ckpt_target target = {
        .id = {.step = z->step,
               .rank = (uint32_t)z->config.rank,
               .world = (uint32_t)z->config.world},
        .path = save->path,
    };
    memcpy(target.id.checkpoint, id, sizeof target.id.checkpoint);
    if (z->store->snapshot->begin(z, save->snapshot, error))
        return error->result;
    memset(save->digest.sums, 0, z->model.param_count * sizeof *save->digest.sums);
    return ckpt_saver_start(save->saver, &target, blobs, count, error);
}

static struct plan plan_of(const zero_save_options *options)
{
    return (struct plan){
        .level = options->level == 0          ? CKPT_LEVEL_DEFAULT
                 : options->level == ZERO_OFF ? CKPT_LEVEL_STORED
                                              : options->level,
        .room_bytes = options->room_bytes == 0          ? ENG_SAVE_ROOM
                      : options->room_bytes == ZERO_OFF ? 0
                                                        : (size_t)options->room_bytes,
        .retention = {.keep = (uint64_t)options->keep, .keep_every = (uint64_t)options->keep_every},
        .beside_other_runs = options->beside_other_runs != 0,
    };
}

/** What rank 0 tells of a checkpoint that begins. */
struct naming {
    uint8_t id[16];
    struct ckpt_run_id run;
};

/** From the first save beside a run's checkpoints on the context goes on with that run. */
static void name(zero_ctx *z, const struct naming *naming)
{
    struct ckpt_manifest *manifest = &z->saving.save->manifest;
    memcpy(manifest->id, naming->id, sizeof manifest->id);
    manifest->run = naming->run;
    manifest->run_told = true;
    if (!ckpt_same_run(&z->saving.runs.own, &naming->run))
        eng_runs_continue(z, &naming->run);
}

/** Rank 0 begins the checkpoint of the moment and names it. */
static zero_result begin(zero_ctx *z, const char *directory, const struct plan *plan,
                         uint8_t id[16])
{
    struct eng_save *save = z->saving.save;
    struct base_error error = {0};
    char path[CKPT_MAX_PATH];
    struct naming naming = {.run = z->saving.runs.own};
    base_absolute_path(directory, path, sizeof path, &error);
    if (z->config.rank == 0 && !error.result &&
        !begin_directory(z, path, plan->beside_other_runs, &error) && !random_id(naming.id, &error))
        naming.run = save->choice.run;
    // A rank whose working directory has changed may have another path than the others.
    save->shared = save->shared && *directory == '/' && strcmp(save->path, path) == 0;
    snprintf(save->path, sizeof save->path, "%s", path);
    zero_result r = eng_agree_on_file(z, &error, "zero_save");
    if (r)
        return r;
    const zero_result sent = coll_broadcast(z->comm, &naming, sizeof naming, 0);
    if (sent)
        return eng_comm_failed(z, sent);
    memcpy(id, naming.id, sizeof naming.id);
    name(z, &naming);
    save->manifest.level = plan->level;
    save->retention = plan->retention;
    if (*directory != '/')
        r = eng_shared_place(z, directory, path, "zero_save");
    if (!r && !save->shared)
        r = eng_shared_check(z, path, id, "zero_save");
    save->shared = !r;
    return r;
}

/** All ranks write, or none does. */
static zero_result begin_writing(zero_ctx *z, const char *directory, const struct plan *plan)
{
    struct base_error error = {0};
    uint8_t id[16] = {0};
    zero_result r = begin(z, directory, plan, id);
    if (!r) {
        start(z, id, &error);
        r = eng_agree_on_file(z, &error, "zero_save");
    }
    if (!r)
        return ZERO_OK;
    z->saving.save->shared = false;
    ckpt_saver_cancel(z->saving.save->saver);
    if (z->saving.save->directory)
        ckpt_cancel(z->saving.save->directory);
    return r;
}

/** From now on zero_save_poll() tells of this save. Who reads a new value reads that there was a
 * change, too. */
static void tell_begun(zero_ctx *z, uint64_t began_ns)
{
    struct eng_save_status *status = &z->saving.status;
    const uint64_t blocked_ns = base_clock_ns() - began_ns;
    atomic_fetch_add_explicit(&status->changes, 1, memory_order_relaxed);
    atomic_store_explicit(&status->step, z->step, memory_order_release);
    atomic_store_explicit(&status->began_ns, began_ns, memory_order_release);
    atomic_store_explicit(&status->blocked_ns, blocked_ns, memory_order_release);
    enter_phase(z, SAVE_WRITING);
    atomic_fetch_add_explicit(&status->changes, 1, memory_order_release);
}

static zero_result save(zero_ctx *z, const char *directory, const zero_save_options *user)
{
    const uint64_t began = base_clock_ns();
    zero_save_options options;
    zero_result r = check_options(z, directory, user, &options);
    if (r)
        return r;
    const struct base_hash128 blobs = eng_blob_hash(z);
    const struct plan plan = plan_of(&options);
    r = check_arguments(z, directory, &options, blobs);
    if (!r)
        r = eng_save_finish(z);
    if (!r)
        r = prepare(z, &plan);
    if (r)
        return r;
    eng_moment_take(z, blobs, &z->saving.save->moment);
    r = begin_writing(z, directory, &plan);
    if (!r)
        tell_begun(z, began);
    return r;
}

zero_result zero_save(zero_ctx *z, const char *directory, const zero_save_options *options)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_save");
    if (!r)
        r = save(z, directory, options);
    return eng_leave(z, r);
}

/* ------------------------------------------------------------------ asking */

static zero_result wait_for_save(zero_ctx *z)
{
    zero_result r = eng_outside(z, "zero_save_wait");
    if (!r && z->saving.save) {
        z->saving.save->returned = true;
        r = eng_save_finish(z);
        z->saving.save->returned = false;
    }
    if (r || eng_save_phase(z) != SAVE_FAILED)
        return r;
    z->error = z->saving.save->error;
    return z->error.result;
}

zero_result zero_save_wait(zero_ctx *z)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_save_wait");
    if (!r)
        r = wait_for_save(z);
    return eng_leave(z, r);
}

static int32_t public_phase(enum eng_save_phase phase)
{
    switch (phase) {
    case SAVE_NONE:
        return ZERO_SAVE_NONE;
    case SAVE_COMPLETE:
        return ZERO_SAVE_COMPLETE;
    case SAVE_FAILED:
        return ZERO_SAVE_FAILED;
    default:
        return ZERO_SAVE_WRITING;
    }
}

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_acquire);
}

static void fill_info(const struct eng_save_status *status, enum eng_save_phase phase,
                      zero_save_info *info)
{
    const bool ended = phase == SAVE_COMPLETE || phase == SAVE_FAILED;
    const uint64_t end = ended ? load(&status->ended_ns) : base_clock_ns();
    info->step = load(&status->step);
    info->state_bytes = load(&status->state_bytes);
    info->done_bytes = phase == SAVE_COMPLETE ? info->state_bytes : load(&status->done_bytes);
    info->seconds = (double)(end - load(&status->began_ns)) * 1e-9;
    info->blocked_s = (double)load(&status->blocked_ns) * 1e-9;
    if (phase != SAVE_COMPLETE)
        return;
    info->file_bytes = load(&status->file_bytes);
    for (int i = 0; i < 2; i++) {
        const uint64_t half = load(&status->fingerprint[i]);
        memcpy(info->fingerprint + i * 8, &half, sizeof half);
    }
}

zero_result zero_save_poll(const zero_ctx *z, zero_save_info *info)
{
    if (!z || !info || info->struct_size < sizeof info->struct_size)
        return ZERO_E_INVALID;
    const struct eng_save_status *status = &z->saving.status;
    zero_save_info full;
    uint64_t changes;
    do {
        changes = load(&status->changes);
        const enum eng_save_phase phase = eng_save_phase(z);
        full = (zero_save_info){.struct_size = info->struct_size, .phase = public_phase(phase)};
        if (phase != SAVE_NONE)
            fill_info(status, phase, &full);
    } while (changes % 2 != 0 || changes != load(&status->changes));
    eng_struct_give(info, &full, sizeof full);
    return ZERO_OK;
}
