#include "zero/engine.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

/** What a rank tells the others before an update; its metrics lie behind it. */
struct ballot {
    uint64_t args_hash;
    struct base_exact_sum squares;
    struct eng_bad bad;
    uint64_t overflow;
};

size_t eng_verdict_bytes(const zero_ctx *z)
{
    return sizeof(struct ballot) + eng_metric_bytes(z, ENG_MAX_METRICS);
}

double *eng_verdict_metrics(const zero_ctx *z)
{
    return (double *)(void *)(z->verdict_mine + sizeof(struct ballot));
}

zero_result eng_exchange(zero_ctx *z, const void *mine, size_t bytes, void *all)
{
    const uint64_t begin = base_clock_ns();
    const zero_result r = coll_exchange(z->comm, mine, bytes, all);
    eng_stretch(z, CONTROL_VERDICT, -1, begin, &z->stats.step_wait_s);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

static zero_result check_args(zero_ctx *z, size_t stride)
{
    struct ballot first, other;
    memcpy(&first, z->verdict_all, sizeof first);
    for (int r = 1; r < z->config.world; r++) {
        memcpy(&other, z->verdict_all + (size_t)r * stride, sizeof other);
        if (other.args_hash != first.args_hash)
            return eng_fail_agreed(z, ZERO_E_DIVERGED,
                                   "ranks 0 and %d gave step %llu different arguments (scale, "
                                   "max_norm, hyper-parameters or metric names), or not all "
                                   "announced or skipped it",
                                   r, (unsigned long long)z->step + 1);
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
    for (int r = 0; r < z->config.world; r++) {
        struct ballot ballot;
        memcpy(&ballot, z->verdict_all + (size_t)r * stride, sizeof ballot);
        base_exact_sum_merge(&squares, &ballot.squares);
        eng_bad_min(&verdict->bad, &ballot.bad);
        if (ballot.overflow)
            verdict->finite = false;
    }
    if (verdict->bad.micro != UINT64_MAX)
        verdict->finite = false;
    verdict->norm = verdict->finite ? sqrt(base_exact_sum_round(&squares)) * fabs(scale) : NAN;
    if (!isfinite(verdict->norm))
        verdict->finite = false;
}

zero_result eng_verdict(zero_ctx *z, double scale, uint64_t args_hash, bool final,
                        struct eng_verdict *verdict)
{
    const struct ballot ballot = {
        .args_hash = args_hash,
        .squares = z->squares,
        .bad = z->bad,
        .overflow = z->squares_overflow,
    };
    const size_t metrics = final ? eng_metric_bytes(z, z->metrics.count) : 0;
    const size_t stride = sizeof ballot + metrics;
    memcpy(z->verdict_mine, &ballot, sizeof ballot);
    zero_result r = eng_exchange(z, z->verdict_mine, stride, z->verdict_all);
    if (!r)
        r = check_args(z, stride);
    if (r)
        return r;
    count_ballots(z, stride, scale, verdict);
    if (final)
        eng_metric_reduce(z, z->verdict_all, stride, sizeof ballot);
    return ZERO_OK;
}
