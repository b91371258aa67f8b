// Whose checkpoints this context saves, and beside whose it may. Ranks have the same answers; rank
// 0 alone looks at directories.

#include "zero/state/state.h"

#include "base/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

zero_result eng_runs_begin(zero_ctx *z)
{
    struct base_error error = {0};
    struct ckpt_run_id *own = &z->runs.own;
    if (z->config.rank == 0 && getrandom(own->bytes, sizeof own->bytes, 0) != sizeof own->bytes)
        zero_fail_errno(&error, ZERO_E_IO, errno, "no random number for a run");
    const zero_result r = eng_agree_on_file(z, &error, "zero_commit");
    if (r)
        return r;
    const zero_result sent = coll_broadcast(z->comm, own->bytes, sizeof own->bytes, 0);
    return sent ? eng_comm_failed(z, sent) : ZERO_OK;
}

/** Puts a run in front of those that are known. With too many the oldest is forgotten. */
static void remember(struct eng_runs *runs, const struct ckpt_run_id *run)
{
    int at = 0;
    while (at < runs->count && !ckpt_same_run(&runs->loaded[at], run))
        at++;
    if (at == runs->count && runs->count < ENG_RUNS)
        runs->count++;
    if (at == ENG_RUNS)
        at--;
    memmove(runs->loaded + 1, runs->loaded, (size_t)at * sizeof *run);
    runs->loaded[0] = *run;
}

void eng_runs_continue(zero_ctx *z, const struct ckpt_run_id *run)
{
    const struct ckpt_run_id before = z->runs.own;
    remember(&z->runs, &before);
    z->runs.own = *run;
}

void eng_runs_loaded(zero_ctx *z, const struct ckpt_run_id *run, bool resumed)
{
    if (resumed)
        eng_runs_continue(z, run);
    remember(&z->runs, run);
    z->runs.loads++;
}

static bool is_loaded(const struct eng_runs *runs, const struct ckpt_run_id *run)
{
    for (int i = 0; i < runs->count; i++)
        if (ckpt_same_run(&runs->loaded[i], run))
            return true;
    return false;
}

/** What the checkpoints of a directory are to this context. */
struct belongings {
    const struct ckpt_listed *own, *loaded; /**< the newest of each kind; NULL: there is none */
    const struct ckpt_listed *other, *in_the_way;
};

static struct belongings sort_out(const zero_ctx *z, const struct ckpt_listed *listed, size_t count)
{
    struct belongings found = {NULL, NULL, NULL, NULL};
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_listed *one = &listed[i];
        if (one->run_known && ckpt_same_run(&one->run, &z->runs.own))
            found.own = one;
        else if (one->run_known && is_loaded(&z->runs, &one->run))
            found.loaded = one;
        else
            found.other = one;
        if (found.other == one && one->step == z->step)
            found.in_the_way = one;
    }
    return found;
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
                     path, other->step, eng_run_text(other, run));
}

static zero_result refuse_step(const char *path, const struct ckpt_listed *other,
                               struct base_error *error)
{
    char run[ENG_RUN_TEXT];
    return zero_fail(error, ZERO_E_STATE,
                     "'%.300s/step-%08" PRIu64 "' is another run's (%s), and is not replaced: save "
                     "to another directory, or move it away",
                     path, other->step, eng_run_text(other, run));
}

const char *eng_run_text(const struct ckpt_listed *listed, char text[ENG_RUN_TEXT])
{
    uint64_t half = 0;
    for (int i = 0; i < 6; i++)
        half = half << 8 | listed->run.bytes[i];
    if (listed->run_known)
        snprintf(text, ENG_RUN_TEXT, "%012" PRIx64 "...", half);
    else
        snprintf(text, ENG_RUN_TEXT, "not known: no manifest can be read");
    return text;
}

zero_result eng_runs_decide(const zero_ctx *z, const char *path, bool beside,
                            struct eng_run_choice *choice, struct base_error *error)
{
    struct ckpt_order order;
    struct ckpt_listed *listed;
    size_t count;
    const zero_result r = ckpt_list_runs(&ckpt_store_posix, path, &listed, &count, &order, error);
    if (r)
        return r > 0 ? zero_fail(error, ZERO_E_IO, "'%.300s' is gone", path) : r;
    const struct belongings found = sort_out(z, listed, count);
    choice->run = found.own || !found.loaded ? z->runs.own : found.loaded->run;
    choice->loads = z->runs.loads;
    choice->others = found.other != NULL;
    if (found.other && !found.other->run_known && order.doubts.result)
        zero_fail(error, order.doubts.result, "whose checkpoints '%.300s' has is not known: %s",
                  path, order.doubts.message);
    else if (found.other && !beside)
        refuse(path, found.other, error);
    else if (found.in_the_way)
        refuse_step(path, found.in_the_way, error);
    base_free(listed);
    return error->result;
}
