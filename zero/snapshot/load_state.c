// Loading one checkpoint: all ranks agree before values change, and on whether all have read them.

#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/link/publish.h"
#include "zero/model/versioned.h"
#include "zero/param/gather_slots.h"
#include "zero/snapshot/load_parts.h"
#include "zero/snapshot/save_state.h"
#include "zero/step/batch_size.h"
#include "zero/step/micro_batch.h"
#include "zero/store/master_weights.h"

#include "base/arena.h"
#include "base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t eng_load_bytes(const zero_ctx *z, int rank)
{
    const struct ckpt_saver_load load = eng_save_load(z, rank);
    const size_t world = (size_t)z->config.world;
    const struct ckpt_loader_need need = {.shards = world,
                                          .tensors = z->model.param_count,
                                          .runs = world * load.sources,
                                          .blocks = world * load.blocks};
    struct base_tables tables = {.counts = true};
    struct eng_digest digest;
    struct eng_match match;
    struct eng_moment moment;
    eng_match_lay(z, &match, &tables);
    eng_moment_lay(z, &moment, &tables); // the checkpoint's,
    eng_moment_lay(z, &moment, &tables); // and what its fingerprint is checked with
    eng_digest_lay(z, &digest, &tables);
    return ckpt_loader_bytes(&need) + load.blob_bytes + ENG_LOAD_BLOCK + tables.bytes;
}

/* ------------------------------------------------------------------ before anything changes */

/** Every rank opens it, if there is memory for all of them, which is looked at before any has
 * taken its own: ZERO_NOT_FOUND if none of them sees it. */
static zero_result open_all(zero_ctx *z, struct eng_load *job)
{
    struct base_error error = {0};
    z->memory.planner->check_load(z, &error);
    zero_result r = eng_agree(z, &error, job->call);
    if (r)
        return r;
    ckpt_loader_open(&job->loader, &ckpt_store_posix, job->directory, job->step, &error);
    const uint64_t found = error.result != ZERO_NOT_FOUND;
    r = eng_exchange(z, &found, sizeof found, z->stepping.exchange.room.all);
    if (r)
        return r;
    int without = 0, missing = -1;
    for (int rank = z->config.world - 1; rank >= 0; rank--) {
        uint64_t sees;
        memcpy(&sees, z->stepping.exchange.room.all + (size_t)rank * sizeof sees, sizeof sees);
        if (!sees) {
            without++;
            missing = rank;
        }
    }
    base_error_clear(&z->error);
    if (without == z->config.world)
        return zero_fail(&z->error, ZERO_NOT_FOUND, "%s: %s", job->call, error.message);
    if (without > 0)
        return eng_fail_agreed(z, ZERO_E_DIVERGED,
                               "%s: rank %d does not see %s, and others do: a directory that all "
                               "ranks share is needed",
                               job->call, missing, job->path);
    return eng_agree(z, &error, job->call);
}

static uint64_t id_hash(const struct eng_load *job)
{
    return base_hash64(eng_load_manifest(job)->id, sizeof eng_load_manifest(job)->id, job->step);
}

/** The program's blob that blob `b` of the checkpoint is given back to; NULL: none. */
static const struct eng_blob *blob_that_returns(const zero_ctx *z, const struct eng_load *job,
                                                size_t b)
{
    const struct ckpt_manifest *manifest = eng_load_manifest(job);
    const struct ckpt_blob *saved = &manifest->blobs[b];
    if (saved->of_rank && manifest->world != (size_t)z->config.world)
        return NULL;
    return eng_blob_find(z, saved->name, saved->of_rank);
}

/** Reads blobs, but not to the program's memory: another checkpoint may not have them. */
static zero_result read_blobs(const zero_ctx *z, struct eng_load *job, struct base_error *error)
{
    const size_t count = eng_load_manifest(job)->blob_count;
    size_t bytes = 0;
    for (size_t b = 0; b < count; b++) {
        const struct eng_blob *blob = blob_that_returns(z, job, b);
        bytes += blob ? (size_t)blob->bytes : 0;
    }
    job->blobs = base_calloc(bytes, 1);
    if (!job->blobs)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the %zu bytes attached in %s", bytes,
                         job->path);
    zero_result r = ZERO_OK;
    unsigned char *to = job->blobs;
    for (size_t b = 0; !r && b < count; b++) {
        const struct eng_blob *blob = blob_that_returns(z, job, b);
        if (!blob || blob->bytes == 0)
            continue;
        r = ckpt_loader_blob(job->loader, b, (uint32_t)z->config.rank, to, error);
        to += blob->bytes;
    }
    assert(r || to == job->blobs + bytes);
    return r;
}

static void give_blobs(const zero_ctx *z, const struct eng_load *job)
{
    const unsigned char *from = job->blobs;
    for (size_t b = 0; b < eng_load_manifest(job)->blob_count; b++) {
        const struct eng_blob *blob = blob_that_returns(z, job, b);
        if (!blob || blob->bytes == 0)
            continue;
        memcpy(blob->memory, from, (size_t)blob->bytes);
        from += blob->bytes;
    }
}

/** What can be found out and is needed before values change. Of tensors that is all where the one
 * before might not have some of them: they stay as they are. */
static zero_result prepare(zero_ctx *z, struct eng_load *job, struct base_error *error)
{
    job->checked = job->newest && job->options.partial;
    eng_match_lay(z, &job->match, &job->tables);
    eng_moment_lay(z, &job->moment, &job->tables);
    if (job->tables.failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a table of %zu tensors",
                         z->model.param_count);
    zero_result r =
        eng_match(z, eng_load_manifest(job), job->path, &job->options, &job->match, error);
    const bool looks = job->checked || job->match.narrowed;
    if (!r && (job->match.converted || looks)) {
        job->block = base_calloc(1, ENG_LOAD_BLOCK);
        if (!job->block)
            return zero_fail(error, ZERO_E_NOMEM, "no memory for a block of %s", job->path);
    }
    if (!r)
        r = read_blobs(z, job, error);
    for (size_t i = 0; !r && looks && i < z->layout.slice_count; i++)
        r = eng_load_check_slice(z, job, &z->layout.slices[i], error);
    return r;
}

/** A shard that is gone, or of another version than the manifest, is damage. */
static void take_for_damage(struct base_error *error)
{
    if (error->result == ZERO_NOT_FOUND || error->result == ZERO_E_VERSION)
        error->result = ZERO_E_CORRUPT;
}

/* ------------------------------------------------------------------ afterwards */

/** Counters and scalars become those of the checkpoint. */
static void install_moment(zero_ctx *z, struct eng_load *job)
{
    const struct ckpt_state *state = &eng_load_manifest(job)->state;
    struct eng_moment *moment = &job->moment;
    eng_moment_take(z, (struct base_hash128){0, 0}, moment);
    moment->step = state->step;
    moment->updates = state->updates;
    moment->skips = state->skips;
    moment->scale.value = state->loss_scale;
    moment->scale.clean = state->loss_scale_clean;
    for (size_t g = 0; g < z->model.group_count; g++) {
        if (job->match.group[g] == SIZE_MAX)
            continue;
        const struct ckpt_group *saved = &eng_load_manifest(job)->groups[job->match.group[g]];
        eng_match_hyper(saved, &moment->hyper[g]); // eng_match() knows them
        moment->frozen[g] = saved->frozen;
    }
    eng_moment_install(z, moment);
    z->config.seed = state->seed;
}

/** Whether what is in memory now is what was saved, tensor by tensor. */
static zero_result compare_sums(zero_ctx *z, const struct eng_load *job, const uint8_t digest[16],
                                const struct base_hash128 *sums)
{
    const struct ckpt_manifest *manifest = eng_load_manifest(job);
    for (size_t p = 0; p < z->model.param_count; p++) {
        const size_t t = job->match.tensor[p];
        if (t != SIZE_MAX && memcmp(&manifest->tensors[t].sum, &sums[p], sizeof *sums) != 0)
            return eng_fail_agreed(z, ZERO_E_CORRUPT,
                                   "%s: %s: tensor %s is not what was saved, though every block is",
                                   job->call, job->path, z->model.params[p].name);
    }
    const bool whole = job->match.missing == 0 && !job->match.other_blobs &&
                       !job->match.other_groups && manifest->tensor_count == z->model.param_count &&
                       manifest->state.micro_batches == (uint64_t)z->config.micro_batches;
    if (whole && memcmp(digest, manifest->state.fingerprint, 16) != 0)
        return eng_fail_agreed(z, ZERO_E_CORRUPT, "%s: %s: the fingerprint is another one",
                               job->call, job->path);
    return ZERO_OK;
}

static zero_result check_fingerprint(zero_ctx *z, const struct eng_load *job)
{
    struct base_tables tables = {0};
    struct eng_digest digest;
    uint8_t bytes[16];
    if (job->match.converted)
        return ZERO_OK;
    eng_digest_lay(z, &digest, &tables);
    zero_result r = eng_digest_now(z, &digest, &tables, bytes);
    if (!r)
        r = compare_sums(z, job, bytes, digest.sums);
    base_tables_free(&tables);
    return r;
}

/* ------------------------------------------------------------------ one checkpoint */

zero_result eng_load_one(zero_ctx *z, struct eng_load *job)
{
    struct base_error error = {0};
    assert(!job->loader);
    snprintf(job->path, sizeof job->path, "%s/step-%08" PRIu64, job->directory, job->step);
    zero_result r = open_all(z, job);
    if (!r)
        r = eng_same(z, id_hash(job), "the checkpoint that they see");
    if (r)
        return r;
    prepare(z, job, &error);
    take_for_damage(&error);
    r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    if (!r)
        r = eng_agree(z, &error, job->call);
    if (!r && job->match.micro_batches != z->config.micro_batches)
        r = eng_batch_change(z, job->match.micro_batches, job->call);
    if (r)
        return r;
    job->changed = true;
    if (job->newest)
        z->store->records->pass_over(z);
    eng_load_read_all(z, job, &error);
    take_for_damage(&error);
    r = eng_agree(z, &error, job->call);
    if (r)
        return r;
    give_blobs(z, job);
    install_moment(z, job);
    // Nothing to come back at before it is known to be what was saved.
    r = z->store->records->record_beginning(z);
    if (!r)
        r = eng_publish_all(z);
    if (!r)
        r = check_fingerprint(z, job);
    if (!r)
        eng_runs_loaded(z, &eng_load_manifest(job)->run, job->newest, job->directory, job->step);
    return r ? r : z->store->records->record(z);
}

void eng_load_close(struct eng_load *job)
{
    ckpt_loader_close(job->loader);
    job->loader = NULL;
    base_tables_free(&job->tables);
    base_free(job->block);
    base_free(job->blobs);
    job->block = job->blobs = NULL;
}

zero_result eng_load_conclude(zero_ctx *z, const struct eng_load *job, zero_result r)
{
    if (!r || !job->changed || z->fatal)
        return r;
    const struct base_error error = z->error;
    base_error_clear(&z->error);
    return eng_fail_agreed(z, error.result, "%s", error.message);
}

void eng_load_report(zero_ctx *z, const struct eng_load *job, uint64_t began_ns,
                     zero_load_result *result)
{
    assert(job->recovered != (job->loader != NULL));
    zero_load_result full = {
        .saved_world = z->config.world,
        .step = z->step,
        .updates = z->updates,
        .rank_blobs = job->recovered ? eng_has_rank_blobs(z) : job->match.rank_blobs,
        .damaged = job->damaged,
        .missing = job->match.missing,
        .recovered = job->recovered,
        .seconds = (double)(base_clock_ns() - began_ns) * 1e-9,
    };
    if (job->recovered) {
        base_logf(&z->config.log, ZERO_LOG_INFO, "ckpt",
                  "step %" PRIu64 " is the recovery point in %s", z->step, z->config.nvme_dir);
    } else {
        full.saved_world = (int32_t)eng_load_manifest(job)->world;
        full.read_bytes = ckpt_loader_bytes_read(job->loader);
        base_logf(&z->config.log, ZERO_LOG_INFO, "ckpt",
                  "step %" PRIu64 " is loaded from %s, saved by %d ranks", z->step, job->path,
                  full.saved_world);
    }
    if (!result)
        return;
    full.struct_size = result->struct_size;
    eng_struct_give(result, &full, sizeof full);
}

/** Whether nothing but a recovery point is asked for. */
static bool only_point(const zero_ctx *z, const struct eng_load *job, const char *path)
{
    return !path && z->store->records->kept && job->newest;
}

zero_result eng_load_check_call(zero_ctx *z, struct eng_load *job, const char *path,
                                const zero_load_options *user, const zero_load_result *result)
{
    struct base_error error = {0};
    job->options = zero_load_options_default();
    if (user &&
        eng_struct_copy(&job->options, sizeof job->options, user, "zero_load_options", &error))
        return eng_fail_from(z, &error);
    if (!only_point(z, job, path) && (!path || !*path || strlen(path) >= CKPT_MAX_PATH))
        return eng_fail(z, ZERO_E_INVALID, "%s needs a path of 1 to %d bytes", job->call,
                        CKPT_MAX_PATH - 1);
    if (result && result->struct_size < sizeof result->struct_size)
        return eng_fail(z, ZERO_E_INVALID, "%s: struct_size of the result is not set", job->call);
    zero_result r = eng_between_steps(z, job->call);
    const uint64_t hash = base_hash64(&job->options, sizeof job->options, eng_blob_count(z));
    if (!r)
        r = eng_same(z, base_hash64(path, path ? strlen(path) : 0, hash), "what they are to load");
    if (!r)
        r = eng_save_finish(z);
    return r;
}

static zero_result load(zero_ctx *z, const char *path, const zero_load_options *options,
                        zero_load_result *result)
{
    const uint64_t began = base_clock_ns();
    char directory[CKPT_MAX_PATH];
    struct eng_load job = {.call = "zero_load", .directory = directory};
    zero_result r = eng_load_check_call(z, &job, path, options, result);
    if (r)
        return r;
    snprintf(directory, sizeof directory, "%s", path);
    if (!ckpt_split_path(directory, &job.step))
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_load: %s is not DIR/step-<n>, n with at least eight digits", path);
    r = eng_load_conclude(z, &job, eng_load_one(z, &job));
    if (!r)
        eng_load_report(z, &job, began, result);
    eng_load_close(&job);
    return r;
}

zero_result zero_load(zero_ctx *z, const char *path, const zero_load_options *options,
                      zero_load_result *result)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_load");
    if (!r)
        r = load(z, path, options, result);
    return eng_leave(z, r);
}
