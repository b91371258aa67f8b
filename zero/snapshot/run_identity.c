// Whose checkpoints this context saves, and beside whose it may. Ranks have the same answers; rank
// 0 alone looks at directories.

#include "zero/core/api_call.h"
#include "zero/snapshot/snapshot.h"

#include "base/arena.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

zero_result eng_runs_begin(zero_ctx *z)
{
    struct base_error error = {0};
    struct ckpt_run_id *own = &z->saving.runs.own;
    if (z->config.rank == 0 && getrandom(own->bytes, sizeof own->bytes, 0) != sizeof own->bytes)
        zero_fail_errno(&error, ZERO_E_IO, errno, "no random number for a run");
    const zero_result r = eng_agree_on_file(z, &error, "zero_commit");
    if (r)
        return r;
    const zero_result sent = coll_broadcast(z->comm, own->bytes, sizeof own->bytes, 0);
    return sent ? eng_comm_failed(z, sent) : ZERO_OK;
}

static struct eng_folder folder_of(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return (struct eng_folder){0, 0};
    return (struct eng_folder){(uint64_t)status.st_dev, (uint64_t)status.st_ino};
}

static bool same_folder(struct eng_folder a, struct eng_folder b)
{
    return a.device == b.device && a.inode == b.inode;
}

static void add_folder(struct eng_folder *list, unsigned *count, struct eng_folder folder)
{
    list[(*count)++ % ENG_RUNS] = folder;
}

static bool has_folder(const struct eng_folder *list, unsigned count, struct eng_folder folder)
{
    bool has = false;
    for (unsigned i = 0; i < count && i < ENG_RUNS; i++)
        has |= same_folder(list[i], folder);
    return has && folder.inode != 0;
}

/** Puts a run in front of those that are known. With too many the oldest is forgotten. */
static struct eng_run *remember(struct eng_runs *runs, const struct ckpt_run_id *run)
{
    struct eng_run one = {.id = *run};
    int at = 0;
    while (at < runs->count && !ckpt_same_run(&runs->loaded[at].id, run))
        at++;
    if (at < runs->count)
        one = runs->loaded[at];
    if (at == runs->count && runs->count < ENG_RUNS)
        runs->count++;
    if (at == ENG_RUNS)
        at--;
    assert(at < ENG_RUNS && runs->count <= ENG_RUNS);
    memmove(runs->loaded + 1, runs->loaded, (size_t)at * sizeof one);
    runs->loaded[0] = one;
    return runs->loaded;
}

void eng_runs_continue(zero_ctx *z, const struct ckpt_run_id *run)
{
    const struct ckpt_run_id before = z->saving.runs.own;
    remember(&z->saving.runs, &before);
    z->saving.runs.own = *run;
}

void eng_runs_loaded(zero_ctx *z, const struct ckpt_run_id *run, bool resumed,
                     const char *directory, uint64_t step)
{
    if (resumed)
        eng_runs_continue(z, run);
    struct eng_run *loaded = remember(&z->saving.runs, run);
    loaded->from = (struct eng_folder){0, 0};
    if (directory && z->config.rank == 0)
        loaded->from = folder_of(directory);
    loaded->step = step;
    assert(z->saving.runs.count >= 1);
    z->saving.runs.loads++;
}

void eng_runs_passed(zero_ctx *z, const char *path)
{
    if (z->config.rank == 0)
        add_folder(z->saving.runs.passed, &z->saving.runs.passed_count, folder_of(path));
}

static const struct eng_run *find_loaded(const struct eng_runs *runs, const struct ckpt_run_id *run)
{
    for (int i = 0; i < runs->count; i++)
        if (ckpt_same_run(&runs->loaded[i].id, run))
            return &runs->loaded[i];
    return NULL;
}

/** What the checkpoints of a directory are to this context. */
struct belongings {
    const struct ckpt_listed *own, *loaded; /**< the newest of each kind; NULL: there is none */
    const struct ckpt_listed *other, *in_the_way;
    const struct ckpt_listed *unknown; /**< its run is not known */
    const struct ckpt_listed *branch;  /**< another job has gone on with the run to it */
};

/** Whether another job has saved a checkpoint of a run that this context has loaded: in another
 * directory than that one, and later. */
static bool is_branch(const struct eng_runs *runs, const struct ckpt_listed *one,
                      struct eng_folder here)
{
    const struct eng_run *run = find_loaded(runs, &one->run);
    return run && run->from.inode != 0 && one->step > run->step && !same_folder(run->from, here) &&
           !has_folder(runs->saved, runs->saved_count, here);
}

/** Whether a checkpoint whose manifest can't be read is this context's to replace. */
static bool is_passed(const struct eng_runs *runs, const char *path, uint64_t step)
{
    char place[CKPT_PATH_BYTES];
    snprintf(place, sizeof place, "%.3072s/step-%08" PRIu64, path, step);
    return has_folder(runs->passed, runs->passed_count, folder_of(place));
}

static struct belongings sort_out(const zero_ctx *z, const char *path, bool beside,
                                  const struct ckpt_listed *listed, size_t count)
{
    assert(z->config.rank == 0);
    struct belongings found = {NULL, NULL, NULL, NULL, NULL, NULL};
    const struct eng_folder here = folder_of(path);
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_listed *one = &listed[i];
        const bool own = one->run_known && ckpt_same_run(&one->run, &z->saving.runs.own);
        const bool known = own || (one->run_known && find_loaded(&z->saving.runs, &one->run));
        if (own)
            found.own = one;
        else if (known)
            found.loaded = one;
        else if (one->run_known)
            found.other = one;
        else
            found.unknown = one;
        if (known && is_branch(&z->saving.runs, one, here))
            found.branch = one;
        if (!known && one->step == z->step &&
            (one->run_known || beside || !is_passed(&z->saving.runs, path, one->step)))
            found.in_the_way = one;
    }
    // Beside a run's checkpoints one that can't be read is nothing that keeps it from saving.
    if (!found.own && !found.loaded && !found.other)
        found.other = found.unknown;
    return found;
}

/** A run as messages name it: its first 12 digits. */
static const char *run_text(const struct ckpt_listed *listed, char text[ENG_RUN_TEXT])
{
    uint64_t half = 0;
    for (int i = 0; i < 6; i++)
        half = half << 8 | listed->run.bytes[i];
    if (listed->run_known)
        snprintf(text, ENG_RUN_TEXT, "%012" PRIx64 "...", half);
    else
        snprintf(text, ENG_RUN_TEXT, "not known: its manifest can't be read");
    return text;
}

static zero_result refuse(const char *path, const struct ckpt_listed *other,
                          struct base_error *error)
{
    char run[ENG_RUN_TEXT];
    return zero_fail(error, ZERO_E_STATE,
                     "'%.300s' has checkpoints of another run, which this job neither began nor "
                     "resumed; the newest is step-%08" PRIu64 " (run %s): go on from it by "
                     "zero_resume(), save to another directory, or beside them "
                     "(zero_save_options.beside_other_runs)",
                     path, other->step, run_text(other, run));
}

static zero_result refuse_branch(const char *path, const struct ckpt_listed *branch,
                                 struct base_error *error)
{
    char run[ENG_RUN_TEXT];
    return zero_fail(error, ZERO_E_STATE,
                     "'%.300s/step-%08" PRIu64 "' is of the run that this job goes on with (%s), "
                     "but later than what it has loaded from another directory: another job has "
                     "saved it; go on from it by zero_resume(), or save to another directory",
                     path, branch->step, run_text(branch, run));
}

static zero_result refuse_step(const char *path, const struct ckpt_listed *other,
                               struct base_error *error)
{
    char run[ENG_RUN_TEXT];
    return zero_fail(error, ZERO_E_STATE,
                     "'%.300s/step-%08" PRIu64 "' is %sanother run's (%s), and is not replaced: "
                     "save to another directory, or move it away",
                     path, other->step, other->run_known ? "" : "perhaps ", run_text(other, run));
}

zero_result eng_runs_decide(zero_ctx *z, const char *path, bool beside,
                            struct eng_run_choice *choice, struct base_error *error)
{
    struct ckpt_order order;
    struct ckpt_listed *listed;
    size_t count;
    assert(z->config.rank == 0);
    const zero_result r = ckpt_list_runs(&ckpt_store_posix, path, &listed, &count, &order, error);
    if (r)
        return r > 0 ? zero_fail(error, ZERO_E_IO, "'%.300s' is gone", path) : r;
    const struct belongings found = sort_out(z, path, beside, listed, count);
    choice->run = found.own || !found.loaded ? z->saving.runs.own : found.loaded->run;
    choice->loads = z->saving.runs.loads;
    choice->others = found.other || found.unknown;
    if (found.other && !found.other->run_known && order.doubts.result)
        zero_fail(error, order.doubts.result, "whose checkpoints '%.300s' has is not known: %s",
                  path, order.doubts.message);
    else if (found.other && !beside)
        refuse(path, found.other, error);
    else if (found.branch)
        refuse_branch(path, found.branch, error);
    else if (found.in_the_way)
        refuse_step(path, found.in_the_way, error);
    base_free(listed);
    const struct eng_folder here = folder_of(path);
    if (!error->result && !has_folder(z->saving.runs.saved, z->saving.runs.saved_count, here))
        add_folder(z->saving.runs.saved, &z->saving.runs.saved_count, here);
    return error->result;
}
