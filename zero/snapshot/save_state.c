// Saving: what was asked for, the directory, and how all ranks begin to write at the same moment.

#include "zero/snapshot/save_state.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/model/versioned.h"
#include "zero/snapshot/save_parts.h"
#include "zero/step/micro_batch.h"

#include "base/clock.h"
#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/** What was asked for, with defaults. */
struct plan {
    int level;
    size_t room_bytes;
    struct ckpt_retention retention;
    bool beside_other_runs;
};

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
    unsigned char *all = z->stepping.exchange.room.all;
    zero_result r = eng_exchange(z, &mine, sizeof mine, all);
    for (int rank = 1; !r && rank < z->config.world; rank++)
        if (memcmp(all + (size_t)rank * sizeof mine, all, sizeof mine) != 0) {
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
    assert(z->config.rank == 0);
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
    assert(count <= ENG_MAX_BLOBS);
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
    assert(!eng_save_under_way(z));
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
        r = eng_save_prepare(z, plan.level, plan.room_bytes);
    if (r)
        return r;
    eng_moment_take(z, blobs, &z->saving.save->moment);
    r = begin_writing(z, directory, &plan);
    if (!r)
        eng_save_tell_begun(z, began);
    return r;
}

zero_result zero_save(zero_ctx *z, const char *directory, const zero_save_options *options)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_save");
    if (!r)
        r = save(z, directory, options);
    return eng_leave(z, r);
}

/* ------------------------------------------------------------------ waiting */

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
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_save_wait");
    if (!r)
        r = wait_for_save(z);
    return eng_leave(z, r);
}

void eng_save_close(zero_ctx *z)
{
    const bool told = z->fatal != ZERO_OK; // a call has returned why
    if (eng_save_under_way(z)) {
        zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_close");
        if (!r)
            r = eng_outside(z, "zero_close");
        eng_leave(z, r ? r : eng_save_finish(z));
    }
    // After an error, and in the middle of a step, a rank does not wait for the others.
    if (eng_save_under_way(z))
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt",
                  "the save of step %llu in %s is given up%s%s",
                  (unsigned long long)z->saving.save->moment.step, z->saving.save->path,
                  told ? "" : ": ", told ? "" : z->error.message);
    eng_save_release(z);
}
