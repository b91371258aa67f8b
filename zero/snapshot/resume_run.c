// zero_resume(): the recovery point, or the newest checkpoint that is good.

#include "zero/core/api_call.h"
#include "zero/snapshot/load_parts.h"
#include "zero/snapshot/recovery_point.h"

#include "base/arena.h"
#include "base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <time.h>

/** At once, and after a second. */
enum { RECOVER_TRIES = 3 };

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
    assert(z->config.rank == 0 || candidates->count == 0);
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
static bool is_damage(const zero_ctx *z, const struct eng_load *job, zero_result r)
{
    return !z->fatal && !(job->changed && job->options.partial) &&
           (r == ZERO_E_CORRUPT || r == ZERO_E_IO || r == ZERO_NOT_FOUND);
}

/** None of them was, or there was none. */
static zero_result nothing_good(zero_ctx *z, const struct eng_load *job)
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
static zero_result load_newest(zero_ctx *z, struct eng_load *job, struct candidates *candidates)
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
        r = eng_load_one(z, job);
        if (!is_damage(z, job, r))
            return r;
        job->next = "the one before";
        job->damaged++;
        eng_runs_passed(z, job->path);
        eng_load_close(job);
    }
}

/** Whether the recovery point on NVMe is the newer one, or as new: rank 0 tells the others. */
static zero_result prefer_point(zero_ctx *z, const struct candidates *candidates,
                                struct eng_load *job, bool *preferred)
{
    assert(z->config.rank == 0 || candidates->count == 0);
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
static zero_result recover_patiently(zero_ctx *z, struct eng_load *job)
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

/** Comes back at the recovery point; *done: it did, or nothing else is to be tried. */
static zero_result recover(zero_ctx *z, struct eng_load *job, bool *done)
{
    assert(!job->recovered);
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
static zero_result load_any(zero_ctx *z, struct eng_load *job, struct candidates *candidates)
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
    struct eng_load job = {.call = "zero_resume", .directory = directory, .newest = true};
    struct candidates candidates = {.listed = NULL};
    zero_result r = eng_load_check_call(z, &job, directory, options, result);
    if (!r && directory)
        r = find_candidates(z, directory, &candidates);
    if (!r)
        r = load_any(z, &job, &candidates);
    base_free(candidates.listed);
    r = eng_load_conclude(z, &job, r);
    if (!r)
        eng_load_report(z, &job, began, result);
    eng_load_close(&job);
    return r;
}

zero_result zero_resume(zero_ctx *z, const char *directory, const zero_load_options *options,
                        zero_load_result *result)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_resume");
    if (!r)
        r = resume(z, directory, options, result);
    return eng_leave(z, r);
}
