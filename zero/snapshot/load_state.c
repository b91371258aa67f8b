// Loading: every rank reads what it holds, in place; all ranks agree before values change, and on
// whether they have all been read.

#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/link/publish.h"
#include "zero/model/versioned.h"
#include "zero/param/gather_slots.h"
#include "zero/snapshot/recovery_point.h"
#include "zero/snapshot/save_state.h"
#include "zero/snapshot/snapshot.h"
#include "zero/step/batch_size.h"
#include "zero/step/gradient.h"
#include "zero/store/master_weights.h"

#include "base/arena.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/** At once, and after a second. */
enum { RECOVER_TRIES = 3 };

enum { PATH = CKPT_MAX_PATH + 64, BLOCK_BYTES = CKPT_BLOCK_ELEMENTS * sizeof(float) };

/** One checkpoint that is being loaded. */
struct load {
    const char *call;
    const char *directory;
    uint64_t step;
    char path[PATH]; /**< for messages: directory/step-n */
    zero_load_options options;
    struct ckpt_loader *loader;
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

static const struct ckpt_manifest *manifest_of(const struct load *job)
{
    return ckpt_loader_manifest(job->loader);
}

size_t eng_load_bytes(const zero_ctx *z, int rank)
{
    const struct ckpt_saver_load load = eng_save_load(z, rank);
    const size_t world = (size_t)z->config.world, params = z->model.param_count;
    const struct ckpt_loader_need need = {.shards = world,
                                          .tensors = params,
                                          .runs = world * load.sources,
                                          .blocks = world * load.blocks};
    return ckpt_loader_bytes(&need) + load.blob_bytes + BLOCK_BYTES +
           params * (sizeof(size_t) + (1 + world) * sizeof(struct base_hash128) +
                     sizeof(struct eng_named_sum)) +
           z->model.group_count * (sizeof(size_t) + sizeof(zero_hyper) + sizeof(bool));
}

/* ------------------------------------------------------------------ before anything changes */

/** Every rank opens it, if there is memory for all of them, which is looked at before any has
 * taken its own: ZERO_NOT_FOUND if none of them sees it. */
static zero_result open_all(zero_ctx *z, struct load *job)
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

static uint64_t id_hash(const struct load *job)
{
    return base_hash64(manifest_of(job)->id, sizeof manifest_of(job)->id, job->step);
}

/** The program's blob that blob `b` of the checkpoint is given back to; NULL: none. */
static const struct eng_blob *blob_that_returns(const zero_ctx *z, const struct load *job, size_t b)
{
    const struct ckpt_manifest *manifest = manifest_of(job);
    const struct ckpt_blob *saved = &manifest->blobs[b];
    if (saved->of_rank && manifest->world != (size_t)z->config.world)
        return NULL;
    return eng_blob_find(z, saved->name, saved->of_rank);
}

/** Reads blobs, but not to the program's memory: another checkpoint may not have them. */
static zero_result read_blobs(const zero_ctx *z, struct load *job, struct base_error *error)
{
    const size_t count = manifest_of(job)->blob_count;
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
    return r;
}

static void give_blobs(const zero_ctx *z, const struct load *job)
{
    const unsigned char *from = job->blobs;
    for (size_t b = 0; b < manifest_of(job)->blob_count; b++) {
        const struct eng_blob *blob = blob_that_returns(z, job, b);
        if (!blob || blob->bytes == 0)
            continue;
        memcpy(blob->memory, from, (size_t)blob->bytes);
        from += blob->bytes;
    }
}

static zero_dtype type_of(enum ckpt_dtype dtype)
{
    static const zero_dtype types[] = {
        [CKPT_F32] = ZERO_F32, [CKPT_BF16] = ZERO_BF16, [CKPT_F16] = ZERO_F16};
    return types[dtype];
}

/** Whether elements of the block that were read, of which `first` is the first, fit in what they
 * are to become. */
static zero_result check_range(zero_ctx *z, const struct load *job, const struct eng_slice *slice,
                               int field, uint64_t first, uint64_t count, struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    const struct ckpt_table_tensor *saved = &manifest_of(job)->tensors[tensor];
    const zero_dtype stored = type_of(saved->field[field]);
    const zero_dtype narrow = eng_match_narrows(z, saved, slice->param, field);
    float values[ENG_GRANULE];
    zero_result r = ZERO_OK;
    if (narrow == ZERO_F32)
        return ZERO_OK;
    for (uint64_t at = 0, n; !r && at < count; at += n) {
        n = count - at < ENG_GRANULE ? count - at : ENG_GRANULE;
        eng_widen(z->cpu.kernels, stored, job->block + at * eng_dtype_size(stored), (size_t)n,
                  values);
        r = eng_values_fit(z, narrow, slice, first + at, n, values,
                           field == 0 ? job->path : "moments", error);
    }
    return r;
}

/** Reads what this rank is going to read of a slice, and keeps nothing of it: all of it, or what
 * may not fit. */
static zero_result check_slice(zero_ctx *z, struct load *job, const struct eng_slice *slice,
                               struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    zero_result r = ZERO_OK;
    const struct eng_part mine = eng_state_part(z, slice);
    const uint64_t end = mine.first + mine.count;
    const int fields = tensor == SIZE_MAX ? 0 : eng_state_fields(z, slice->param);
    const struct ckpt_table_tensor *saved = fields ? &manifest_of(job)->tensors[tensor] : NULL;
    for (int f = 0; f < fields; f++) {
        if (!job->checked && eng_match_narrows(z, saved, slice->param, f) == ZERO_F32)
            continue;
        for (uint64_t at = mine.first, n; !r && at < end; at += n) {
            n = ckpt_block_end(at, end) - at;
            r = ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, f, at, n, job->block,
                                 error);
            if (!r)
                r = check_range(z, job, slice, f, at, n, error);
        }
    }
    return r;
}

/** What can be found out and is needed before values change. Of tensors that is all where the one
 * before might not have some of them: they stay as they are. */
static zero_result prepare(zero_ctx *z, struct load *job, struct base_error *error)
{
    job->checked = job->newest && job->options.partial;
    zero_result r = eng_match(z, manifest_of(job), job->path, &job->options, &job->match, error);
    const bool looks = job->checked || job->match.narrowed;
    if (!r && (job->match.converted || looks)) {
        job->block = base_calloc(1, BLOCK_BYTES);
        if (!job->block)
            return zero_fail(error, ZERO_E_NOMEM, "no memory for a block of %s", job->path);
    }
    if (!r)
        r = eng_moment_make(z, &job->moment, error);
    if (!r)
        r = read_blobs(z, job, error);
    for (size_t i = 0; !r && looks && i < z->layout.slice_count; i++)
        r = check_slice(z, job, &z->layout.slices[i], error);
    return r;
}

/** A shard that is gone, or of another version than the manifest, is damage. */
static void take_for_damage(struct base_error *error)
{
    if (error->result == ZERO_NOT_FOUND || error->result == ZERO_E_VERSION)
        error->result = ZERO_E_CORRUPT;
}

/* ------------------------------------------------------------------ reading */

/** Reads elements that are stored with another type than they have here. */
static zero_result read_converted(zero_ctx *z, struct load *job, size_t tensor,
                                  const struct eng_slice *slice, int field, uint64_t first,
                                  uint64_t count, struct base_error *error)
{
    const zero_dtype stored = type_of(manifest_of(job)->tensors[tensor].field[field]);
    const zero_dtype mine = eng_state_dtype(z, slice->param, field);
    float values[ENG_GRANULE];
    zero_result r = ZERO_OK;
    for (uint64_t at = first, n; !r && at < first + count; at += n) {
        n = first + count - at < ENG_GRANULE ? first + count - at : ENG_GRANULE;
        r = ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, field, at, n, job->block,
                             error);
        if (r)
            break;
        eng_widen(z->cpu.kernels, stored, job->block, (size_t)n, values);
        eng_narrow(z->cpu.kernels, mine, values, (size_t)n, eng_state_memory(z, slice, field, at));
    }
    return r;
}

static zero_result read_field(zero_ctx *z, struct load *job, const struct eng_slice *slice,
                              int field, uint64_t first, uint64_t count, struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    const enum ckpt_dtype stored = manifest_of(job)->tensors[tensor].field[field];
    if (stored != eng_ckpt_dtype(eng_state_dtype(z, slice->param, field)))
        return read_converted(z, job, tensor, slice, field, first, count, error);
    return ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, field, first, count,
                            eng_state_memory(z, slice, field, first), error);
}

/** Reads a part of what this rank writes, and makes its working copy. */
static zero_result read_part(zero_ctx *z, void *user, const struct eng_part *part,
                             struct base_error *error)
{
    struct load *job = user;
    const struct eng_slice *slice = part->slice;
    if (job->match.tensor[slice->param] == SIZE_MAX)
        return ZERO_OK;
    zero_result r = ZERO_OK;
    for (int f = 0; !r && f < eng_state_fields(z, slice->param); f++)
        r = read_field(z, job, slice, f, part->first, part->count, error);
    if (!r)
        eng_values_refresh(z, slice->section, slice->granule * ENG_GRANULE + part->first,
                           part->count);
    return r;
}

static zero_result read_all(zero_ctx *z, struct load *job, struct base_error *error)
{
    const enum eng_access access = job->options.partial ? ENG_CHANGE : ENG_REPLACE;
    zero_result r = z->store->walk(z, false, access, read_part, job, error);
    if (!r)
        r = z->store->walk(z, true, access, read_part, job, error);
    if (r)
        z->store->records->abandon(z);
    return r;
}

/* ------------------------------------------------------------------ afterwards */

/** Counters and scalars become those of the checkpoint. */
static void install_moment(zero_ctx *z, struct load *job)
{
    const struct ckpt_state *state = &manifest_of(job)->state;
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
        const struct ckpt_group *saved = &manifest_of(job)->groups[job->match.group[g]];
        eng_match_hyper(saved, &moment->hyper[g]); // eng_match() knows them
        moment->frozen[g] = saved->frozen;
    }
    eng_moment_install(z, moment);
    z->config.seed = state->seed;
}

/** Whether what is in memory now is what was saved, tensor by tensor. */
static zero_result compare_sums(zero_ctx *z, const struct load *job, const uint8_t digest[16],
                                const struct base_hash128 *sums)
{
    const struct ckpt_manifest *manifest = manifest_of(job);
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

static zero_result check_fingerprint(zero_ctx *z, const struct load *job)
{
    struct base_error error = {0};
    struct eng_digest digest;
    uint8_t bytes[16];
    if (job->match.converted)
        return ZERO_OK;
    if (eng_digest_make(z, &digest, &error))
        return eng_fail_from(z, &error);
    zero_result r = eng_digest_now(z, &digest, bytes);
    if (!r)
        r = compare_sums(z, job, bytes, digest.sums);
    eng_digest_free(&digest);
    return r;
}

/* ------------------------------------------------------------------ one checkpoint */

/** Loads it. ZERO_E_CORRUPT, ZERO_E_IO, ZERO_NOT_FOUND: another one may be tried. */
static zero_result load_one(zero_ctx *z, struct load *job)
{
    struct base_error error = {0};
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
    read_all(z, job, &error);
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
        eng_runs_loaded(z, &manifest_of(job)->run, job->newest, job->directory, job->step);
    return r ? r : z->store->records->record(z);
}

static void close_job(struct load *job)
{
    ckpt_loader_close(job->loader);
    job->loader = NULL;
    eng_match_free(&job->match);
    eng_moment_free(&job->moment);
    base_free(job->block);
    base_free(job->blobs);
    job->block = job->blobs = NULL;
}

/** A failure after values have begun to change is one that no later call gets over. */
static zero_result conclude(zero_ctx *z, const struct load *job, zero_result r)
{
    if (!r || !job->changed || z->fatal)
        return r;
    const struct base_error error = z->error;
    base_error_clear(&z->error);
    return eng_fail_agreed(z, error.result, "%s", error.message);
}

static void report(zero_ctx *z, const struct load *job, uint64_t began_ns, zero_load_result *result)
{
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
        full.saved_world = (int32_t)manifest_of(job)->world;
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
static bool only_point(const zero_ctx *z, const struct load *job, const char *path)
{
    return !path && z->store->records->kept && job->newest;
}

static zero_result check_call(zero_ctx *z, struct load *job, const char *path,
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
    struct load job = {.call = "zero_load", .directory = directory};
    zero_result r = check_call(z, &job, path, options, result);
    if (r)
        return r;
    snprintf(directory, sizeof directory, "%s", path);
    if (!ckpt_split_path(directory, &job.step))
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_load: %s is not DIR/step-<n>, n with at least eight digits", path);
    r = conclude(z, &job, load_one(z, &job));
    if (!r)
        report(z, &job, began, result);
    close_job(&job);
    return r;
}

zero_result zero_load(zero_ctx *z, const char *path, const zero_load_options *options,
                      zero_load_result *result)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_load");
    if (!r)
        r = load(z, path, options, result);
    return eng_leave(z, r);
}

/* ------------------------------------------------------------------ the newest good one */

/** Rank 0's: the checkpoints that have not been tried yet, the newest is the last. */
struct candidates {
    struct ckpt_listed *listed;
    size_t count;
};

static zero_result find_candidates(zero_ctx *z, const char *directory,
                                   struct candidates *candidates)
{
    struct base_error error = {0};
    struct ckpt_order order = {0};
    if (z->config.rank == 0 && ckpt_list_runs(&ckpt_store_posix, directory, &candidates->listed,
                                              &candidates->count, &order, &error) == ZERO_NOT_FOUND)
        base_error_clear(&error);
    if (order.doubts.result)
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt",
                  "zero_resume: it is not certain which checkpoint is the newest: %s",
                  order.doubts.message);
    return eng_agree(z, &error, "zero_resume");
}

/** Rank 0 tells the others which one comes next; *found: there is one. */
static zero_result next_candidate(zero_ctx *z, struct candidates *candidates, uint64_t *step,
                                  bool *found)
{
    uint64_t told[2] = {candidates->count > 0};
    if (told[0])
        told[1] = candidates->listed[--candidates->count].step;
    const zero_result sent = coll_broadcast(z->comm, told, sizeof told, 0);
    *found = told[0] != 0;
    *step = told[1];
    return sent ? eng_comm_failed(z, sent) : ZERO_OK;
}

/** Whether an older checkpoint may do where this one did not. In part it may not after values have
 * changed: what they were is gone. */
static bool is_damage(const zero_ctx *z, const struct load *job, zero_result r)
{
    return !z->fatal && !(job->changed && job->options.partial) &&
           (r == ZERO_E_CORRUPT || r == ZERO_E_IO || r == ZERO_NOT_FOUND);
}

/** None of them was, or there was none. */
static zero_result nothing_good(zero_ctx *z, const struct load *job)
{
    const struct base_error last = z->error;
    const char *broken = z->store->records->broken(z);
    base_error_clear(&z->error);
    if (broken && !job->damaged)
        return zero_fail(&z->error, ZERO_E_CORRUPT,
                         "zero_resume: %s, and not all ranks have the recovery point in %s (%s): "
                         "put back what is missing, or remove the rest, zero-*-rank-*.slots, to "
                         "begin anew",
                         job->directory ? "there is no checkpoint"
                                        : "no directory of checkpoints was given",
                         z->config.nvme_dir, broken);
    if (!job->directory && job->damaged)
        return zero_fail(&z->error, ZERO_E_CORRUPT, "%s", last.message);
    if (!job->directory)
        return zero_fail(&z->error, ZERO_NOT_FOUND, "zero_resume: no recovery point in %s",
                         z->config.nvme_dir);
    if (job->damaged)
        return zero_fail(&z->error, ZERO_E_CORRUPT, "%s; nothing else in %s can be loaded",
                         last.message, job->directory);
    return zero_fail(&z->error, ZERO_NOT_FOUND, "zero_resume: no checkpoint in %s", job->directory);
}

/** Loads the newest one that is good. */
static zero_result load_newest(zero_ctx *z, struct load *job, struct candidates *candidates)
{
    for (;;) {
        bool found;
        zero_result r = next_candidate(z, candidates, &job->step, &found);
        if (r)
            return r;
        if (!found)
            return nothing_good(z, job); // which returns the last failure
        if (job->next)
            base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt", "%s; trying %s", z->error.message,
                      job->next);
        r = load_one(z, job);
        if (!is_damage(z, job, r))
            return r;
        job->next = "the one before";
        job->damaged++;
        eng_runs_passed(z, job->path);
        close_job(job);
    }
}

/** Whether the recovery point on NVMe is the newer one, or as new: rank 0 tells the others. */
static zero_result prefer_point(zero_ctx *z, const struct candidates *candidates, struct load *job,
                                bool *preferred)
{
    struct {
        uint64_t preferred, has_run;
        struct ckpt_run_id run;
    } told = {.preferred = 0};
    uint64_t step = 0;
    *preferred = false;
    if (!z->store->records->recoverable(z, &step))
        return ZERO_OK;
    const size_t count = candidates->count;
    told.preferred = count == 0 || step >= candidates->listed[count - 1].step;
    for (size_t i = 0; i < count; i++)
        if (candidates->listed[i].run_known) {
            told.has_run = 1;
            told.run = candidates->listed[i].run;
        }
    const zero_result sent = coll_broadcast(z->comm, &told, sizeof told, 0);
    *preferred = told.preferred != 0;
    job->has_newest_run = told.has_run != 0;
    job->newest_run = told.run;
    return sent ? eng_comm_failed(z, sent) : ZERO_OK;
}

/** Comes back at the recovery point. What a disk refuses for a moment is asked for again: taking a
 * checkpoint instead would be for good. */
static zero_result recover_patiently(zero_ctx *z, struct load *job)
{
    const struct timespec pause = {.tv_sec = 1};
    zero_result r = eng_point_recover(z, job->call, &job->changed);
    for (int tries = 1; r == ZERO_E_IO && !z->fatal && tries < RECOVER_TRIES; tries++) {
        base_logf(&z->config.log, ZERO_LOG_WARN, "ckpt", "%s; trying again", z->error.message);
        if (tries > 1)
            nanosleep(&pause, NULL);
        r = eng_point_recover(z, job->call, &job->changed);
    }
    return r;
}

/** Recovers; *done: it has, or nothing else is to be tried. */
static zero_result recover(zero_ctx *z, struct load *job, bool *done)
{
    zero_result r = recover_patiently(z, job);
    *done = !is_damage(z, job, r);
    if (!r)
        job->recovered = true;
    // Points that libraries before this one have left don't say of which run they are.
    if (!r && !eng_point_take_run(z) && job->has_newest_run)
        eng_runs_loaded(z, &job->newest_run, true, NULL, 0);
    if (*done)
        return r;
    job->next = "checkpoints";
    job->damaged++;
    return ZERO_OK;
}

/** The recovery point or the newest good checkpoint. */
static zero_result load_any(zero_ctx *z, struct load *job, struct candidates *candidates)
{
    bool done = false;
    zero_result r = prefer_point(z, candidates, job, &done);
    if (!r && done)
        r = recover(z, job, &done);
    return r || done ? r : load_newest(z, job, candidates);
}

static zero_result resume(zero_ctx *z, const char *directory, const zero_load_options *options,
                          zero_load_result *result)
{
    const uint64_t began = base_clock_ns();
    struct load job = {.call = "zero_resume", .directory = directory, .newest = true};
    struct candidates candidates = {.listed = NULL};
    zero_result r = check_call(z, &job, directory, options, result);
    if (!r && directory)
        r = find_candidates(z, directory, &candidates);
    if (!r)
        r = load_any(z, &job, &candidates);
    base_free(candidates.listed);
    r = conclude(z, &job, r);
    if (!r)
        report(z, &job, began, result);
    close_job(&job);
    return r;
}

zero_result zero_resume(zero_ctx *z, const char *directory, const zero_load_options *options,
                        zero_load_result *result)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_resume");
    if (!r)
        r = resume(z, directory, options, result);
    return eng_leave(z, r);
}
