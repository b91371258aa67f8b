#include "zero/step/step_outcome.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/core/progress.h"
#include "zero/core/step_kind.h"
#include "zero/step/outcome.h"
#include "zero/step/zero_step.h"

#include "base/arena.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/** What a rank tells the others of its sums. */
struct sums {
    struct base_exact_sum squares;
    struct eng_bad bad;
    uint64_t overflow;
};

/** A request as bytes, which ranks exchange only if their hashes differ. */
struct words {
    char call[24];
    uint64_t fused;
    double scale, max_norm;
    uint64_t metrics; /**< hash of their names */
};

static struct words words_of(const zero_ctx *z, const struct eng_step_request *request)
{
    struct words words = {
        .fused = request->final && z->stepping.kind->in_backward,
        .scale = request->args->scale,
        .max_norm = request->args->max_norm,
        .metrics = request->final ? eng_metric_hash(z, 0) : 0,
    };
    memcpy(words.call, request->call, strnlen(request->call, sizeof words.call - 1));
    return words;
}

static uint64_t hash_request(const zero_ctx *z, const struct eng_step_request *request)
{
    const struct words words = words_of(z, request);
    uint64_t hash = base_hash64(&words, sizeof words, z->step);
    for (size_t g = 0; request->args->hyper && g < z->model.group_count; g++)
        hash = base_hash64(eng_step_hyper(request->args, g), sizeof(zero_hyper), hash);
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
static zero_result diverged(zero_ctx *z, const struct eng_step_request *request, int other)
{
    const struct words words = words_of(z, request);
    const size_t world = (size_t)z->config.world, groups = z->model.group_count;
    const size_t bytes = sizeof words + groups * sizeof(zero_hyper);
    char text[256] = "";
    unsigned char *all = base_calloc(world + 1, bytes);
    if (!all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare the arguments of %zu ranks", world);
    unsigned char *mine = all + world * bytes;
    memcpy(mine, &words, sizeof words);
    for (size_t g = 0; request->args->hyper && g < groups; g++)
        memcpy(mine + sizeof words + g * sizeof(zero_hyper), eng_step_hyper(request->args, g),
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

/* ------------------------------------------------------------------ parts of the exchange */

static void fill_request(const zero_ctx *z, unsigned char *mine)
{
    const uint64_t hash = hash_request(z, z->stepping.request);
    memcpy(mine, &hash, sizeof hash);
}

static zero_result compare_requests(zero_ctx *z, const unsigned char *all, size_t stride)
{
    for (int r = 1; r < z->config.world; r++)
        if (memcmp(all + (size_t)r * stride, all, sizeof(uint64_t)) != 0)
            return diverged(z, z->stepping.request, r);
    return ZERO_OK;
}

const struct eng_exchange_part eng_request_part = {
    .name = "request",
    .kinds = ENG_EXCHANGE_NORM | ENG_EXCHANGE_STEP | ENG_EXCHANGE_EARLY,
    .bytes = sizeof(uint64_t),
    .fill = fill_request,
    .hear = compare_requests,
};

static void fill_sums(const zero_ctx *z, unsigned char *mine)
{
    const struct sums sums = {
        .squares = z->gradients.squares,
        .bad = z->gradients.bad,
        .overflow = z->gradients.squares_overflow,
    };
    memcpy(mine, &sums, sizeof sums);
}

static zero_result count_sums(zero_ctx *z, const unsigned char *all, size_t stride)
{
    struct eng_verdict *verdict = z->stepping.verdict;
    const double scale = z->stepping.request->args->scale / z->stepping.scale.value;
    struct base_exact_sum squares;
    base_exact_sum_init(&squares);
    verdict->bad = (struct eng_bad){.micro = UINT64_MAX};
    verdict->finite = true;
    for (int r = 0; r < z->config.world; r++) {
        struct sums sums;
        memcpy(&sums, all + (size_t)r * stride, sizeof sums);
        base_exact_sum_merge(&squares, &sums.squares);
        eng_bad_min(&verdict->bad, &sums.bad);
        if (sums.overflow)
            verdict->finite = false;
    }
    if (verdict->bad.micro != UINT64_MAX)
        verdict->finite = false;
    verdict->norm = verdict->finite ? base_step_norm(base_exact_sum_round(&squares), scale) : NAN;
    verdict->finite = base_norm_finite(verdict->norm);
    return ZERO_OK;
}

const struct eng_exchange_part eng_norm_part = {
    .name = "norm",
    .kinds = ENG_EXCHANGE_NORM | ENG_EXCHANGE_STEP | ENG_EXCHANGE_EARLY,
    .bytes = sizeof(struct sums),
    .fill = fill_sums,
    .hear = count_sums,
};

zero_result eng_step_agree(zero_ctx *z, const struct eng_step_request *request,
                           struct eng_verdict *verdict)
{
    z->stepping.request = request;
    z->stepping.verdict = verdict;
    const zero_result r = eng_exchange_parts(z, !request->final  ? ENG_EXCHANGE_NORM
                                                : request->later ? ENG_EXCHANGE_EARLY
                                                                 : ENG_EXCHANGE_STEP);
    z->stepping.request = NULL;
    z->stepping.verdict = NULL;
    return r;
}

/* ------------------------------------------------------------------ what is known later */

/** What a rank has found in a step that was decided without the host. */
struct findings {
    struct eng_bad bad;
    struct eng_wrong wrong;
};

zero_result eng_verdict_share(zero_ctx *z, struct eng_metrics *metrics, struct eng_bad *bad,
                              struct eng_wrong *wrong)
{
    const struct findings mine = {.bad = *bad, .wrong = *wrong};
    const struct eng_exchange_room *room = &z->stepping.exchange.room;
    const size_t values = eng_metric_bytes(z, metrics->count), stride = sizeof mine + values;
    assert(values <= eng_metric_bytes(z, ENG_MAX_METRICS));
    _Static_assert(sizeof mine <= sizeof(struct sums), "there is room for it");
    memcpy(room->mine, &mine, sizeof mine);
    memcpy(room->mine + sizeof mine, z->micro.values, values);
    const zero_result r = eng_exchange(z, room->mine, stride, room->all);
    for (int rank = 0; !r && rank < z->config.world; rank++) {
        struct findings theirs;
        memcpy(&theirs, room->all + (size_t)rank * stride, sizeof theirs);
        eng_bad_min(bad, &theirs.bad);
        eng_wrong_min(wrong, &theirs.wrong);
    }
    if (!r)
        eng_metric_reduce(z, metrics, room->all, stride, sizeof mine);
    return r;
}
