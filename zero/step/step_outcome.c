#include "zero/step/step_outcome.h"
#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/core/stop.h"
#include "zero/snapshot/save_state.h"
#include "zero/step/fused.h"
#include "zero/step/gradient.h"
#include "zero/step/outcome.h"
#include "zero/step/zero_step.h"

#include "base/arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/** What a rank tells the others before an update; its metrics lie behind it. */
struct ballot {
    uint64_t motion_hash;
    struct base_exact_sum squares;
    struct eng_bad bad;
    struct eng_wrong wrong; /**< by eng_verdict_share() only */
    uint32_t overflow;
    uint32_t stop;  /**< it knows of a request to stop */
    uint32_t large; /**< some of its weights or moments may be large */
    uint32_t reserved;
    uint64_t save;                 /**< how far this rank's save is */
    struct eng_update_time update; /**< of the step before */
};

size_t eng_verdict_bytes(const zero_ctx *z)
{
    return sizeof(struct ballot) + eng_metric_bytes(z, ENG_MAX_METRICS);
}

double *eng_verdict_metrics(const zero_ctx *z)
{
    return (double *)(void *)(z->stepping.verdict_mine + sizeof(struct ballot));
}

/** A motion in its own words, which are exchanged only if they are not the same. */
struct words {
    char call[24];
    uint64_t fused;
    double scale, max_norm;
    uint64_t metrics; /**< hash of their names */
};

static struct words words_of(const zero_ctx *z, const struct eng_motion *motion)
{
    struct words words = {
        .fused = motion->final && eng_fused(z),
        .scale = motion->args->scale,
        .max_norm = motion->args->max_norm,
        .metrics = motion->final ? eng_metric_hash(z, 0) : 0,
    };
    memcpy(words.call, motion->call, strnlen(motion->call, sizeof words.call - 1));
    return words;
}

static uint64_t hash_motion(const zero_ctx *z, const struct eng_motion *motion)
{
    const struct words words = words_of(z, motion);
    uint64_t hash = base_hash64(&words, sizeof words, z->step);
    for (size_t g = 0; motion->args->hyper && g < z->model.group_count; g++)
        hash = base_hash64(eng_step_hyper(motion->args, g), sizeof(zero_hyper), hash);
    return hash;
}

static bool differ(double a, double b)
{
    return memcmp(&a, &b, sizeof a) != 0;
}

/** With as many digits as tell them apart. */
static void tell_values(char *text, size_t size, const char *what, double x, double y)
{
    char a[32], b[32];
    int digits = 5;
    do {
        digits++;
        snprintf(a, sizeof a, "%.*g", digits, x);
        snprintf(b, sizeof b, "%.*g", digits, y);
    } while (digits < 17 && strcmp(a, b) == 0);
    snprintf(text, size, "%s is %s and %s", what, a, b);
}

/** Finds a hyper-parameter that differs. */
static bool tell_hyper(const zero_ctx *z, const unsigned char *a, const unsigned char *b,
                       char *text, size_t size)
{
    for (size_t i = 0; i < z->model.group_count * ENG_HYPERS; i++) {
        double x, y;
        memcpy(&x, a + i * sizeof x, sizeof x);
        memcpy(&y, b + i * sizeof y, sizeof y);
        if (!differ(x, y))
            continue;
        char what[160];
        snprintf(what, sizeof what, "%s of group %.128s", eng_hyper_names[i % ENG_HYPERS],
                 z->model.groups[i / ENG_HYPERS].name);
        tell_values(text, size, what, x, y);
        return true;
    }
    return false;
}

/** What the words of two ranks, hyper-parameters behind them, differ in. */
static void tell(const zero_ctx *z, const unsigned char *mine, const unsigned char *theirs,
                 char *text, size_t size)
{
    struct words a, b;
    memcpy(&a, mine, sizeof a);
    memcpy(&b, theirs, sizeof b);
    if (strcmp(a.call, b.call) != 0)
        snprintf(text, size, "%s and %s", a.call, b.call);
    else if (a.fused != b.fused)
        snprintf(text, size, "only one of them called zero_step_in_backward");
    else if (differ(a.scale, b.scale))
        tell_values(text, size, "scale", a.scale, b.scale);
    else if (differ(a.max_norm, b.max_norm))
        tell_values(text, size, "max_norm", a.max_norm, b.max_norm);
    else if (!tell_hyper(z, mine + sizeof a, theirs + sizeof b, text, size))
        snprintf(text, size, "their metrics have other names");
}

/** All ranks have seen that rank `other` wants something else than rank 0, and tell each other what
 * they want. */
static zero_result diverged(zero_ctx *z, const struct eng_motion *motion, int other)
{
    const struct words words = words_of(z, motion);
    const size_t world = (size_t)z->config.world, groups = z->model.group_count;
    const size_t bytes = sizeof words + groups * sizeof(zero_hyper);
    char text[256] = "";
    unsigned char *all = base_calloc(world + 1, bytes);
    if (!all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare the arguments of %zu ranks", world);
    unsigned char *mine = all + world * bytes;
    memcpy(mine, &words, sizeof words);
    for (size_t g = 0; motion->args->hyper && g < groups; g++)
        memcpy(mine + sizeof words + g * sizeof(zero_hyper), eng_step_hyper(motion->args, g),
               sizeof(zero_hyper));
    zero_result r = eng_exchange(z, mine, bytes, all);
    if (!r) {
        tell(z, all, all + (size_t)other * bytes, text, sizeof text);
        r = eng_fail_agreed(z, ZERO_E_DIVERGED,
                            "ranks 0 and %d gave step %llu different arguments: %s", other,
                            (unsigned long long)z->step + 1, text);
    }
    base_free(all);
    return r;
}

static zero_result check_motion(zero_ctx *z, const struct eng_motion *motion, size_t stride)
{
    struct ballot first, other;
    memcpy(&first, z->stepping.verdict_all, sizeof first);
    for (int r = 1; r < z->config.world; r++) {
        memcpy(&other, z->stepping.verdict_all + (size_t)r * stride, sizeof other);
        if (other.motion_hash != first.motion_hash)
            return diverged(z, motion, r);
    }
    return ZERO_OK;
}

static void count_ballots(const zero_ctx *z, size_t stride, double scale,
                          struct eng_verdict *verdict)
{
    struct base_exact_sum squares;
    base_exact_sum_init(&squares);
    verdict->bad = (struct eng_bad){.micro = UINT64_MAX};
    verdict->finite = true;
    verdict->stop = verdict->large = false;
    for (int r = 0; r < z->config.world; r++) {
        struct ballot ballot;
        memcpy(&ballot, z->stepping.verdict_all + (size_t)r * stride, sizeof ballot);
        base_exact_sum_merge(&squares, &ballot.squares);
        eng_bad_min(&verdict->bad, &ballot.bad);
        if (ballot.overflow)
            verdict->finite = false;
        if (ballot.stop)
            verdict->stop = true;
        if (ballot.large)
            verdict->large = true;
    }
    if (verdict->bad.micro != UINT64_MAX)
        verdict->finite = false;
    verdict->norm = verdict->finite ? eng_step_norm(base_exact_sum_round(&squares), scale) : NAN;
    verdict->finite = eng_norm_finite(verdict->norm);
}

/** What ranks have said beside the verdict itself. */
static zero_result hear(zero_ctx *z, size_t stride)
{
    z->store->files->hear(z, z->stepping.verdict_all + offsetof(struct ballot, update), stride);
    return eng_save_advance(z, z->stepping.verdict_all + offsetof(struct ballot, save), stride);
}

zero_result eng_verdict_share(zero_ctx *z, struct eng_metrics *metrics, struct eng_bad *bad,
                              struct eng_wrong *wrong)
{
    const struct ballot ballot = {.bad = *bad, .wrong = *wrong};
    const size_t stride = sizeof ballot + eng_metric_bytes(z, metrics->count);
    memcpy(z->stepping.verdict_mine, &ballot, sizeof ballot);
    const zero_result r =
        eng_exchange(z, z->stepping.verdict_mine, stride, z->stepping.verdict_all);
    if (r)
        return r;
    struct eng_verdict all; // bad of it, and nothing else, is there
    count_ballots(z, stride, 1, &all);
    *bad = all.bad;
    for (int rank = 0; rank < z->config.world; rank++) {
        struct ballot theirs;
        memcpy(&theirs, z->stepping.verdict_all + (size_t)rank * stride, sizeof theirs);
        eng_wrong_min(wrong, &theirs.wrong);
    }
    eng_metric_reduce(z, metrics, z->stepping.verdict_all, stride, sizeof ballot);
    return ZERO_OK;
}

zero_result eng_verdict(zero_ctx *z, const struct eng_motion *motion, struct eng_verdict *verdict)
{
    const struct ballot ballot = {
        .motion_hash = hash_motion(z, motion),
        .squares = z->gradients.squares,
        .bad = z->gradients.bad,
        .overflow = z->gradients.squares_overflow,
        .stop = eng_stop_asked(z),
        .large = !motion->later && eng_outcome_large(z),
        .save = motion->final ? eng_save_word(z) : 0,
        .update = motion->final ? z->store->files->update_time(z) : (struct eng_update_time){0},
    };
    const bool averages = motion->final && !motion->later;
    const size_t metrics = averages ? eng_metric_bytes(z, z->micro.metrics.count) : 0;
    const size_t stride = sizeof ballot + metrics;
    memcpy(z->stepping.verdict_mine, &ballot, sizeof ballot);
    zero_result r = eng_exchange(z, z->stepping.verdict_mine, stride, z->stepping.verdict_all);
    if (!r)
        r = check_motion(z, motion, stride);
    if (r)
        return r;
    count_ballots(z, stride, motion->args->scale / z->stepping.scale.value, verdict);
    if (!motion->final)
        return ZERO_OK;
    if (averages)
        eng_metric_reduce(z, &z->micro.metrics, z->stepping.verdict_all, stride, sizeof ballot);
    return hear(z, stride);
}
