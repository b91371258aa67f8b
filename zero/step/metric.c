#include "base/file.h"
#include "base/text.h"
#include "zero/core/api_call.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"
#include "zero/step/step_outcome.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool valid_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const size_t length = name ? strlen(name) : 0;
    return length > 0 && length < ENG_METRIC_NAME && strspn(name, allowed) == length;
}

/** What the lines for zero-run have beside metrics. */
enum key { STEP, UPDATES, CONTEXT, EVAL, NORM, CLIP, SKIPPED, LR, LOSS_SCALE, KEYS };

static const char *const keys[KEYS] = {
    [STEP] = "step",       [UPDATES] = "updates", [CONTEXT] = "context",
    [EVAL] = "eval",       [NORM] = "norm",       [CLIP] = "clip",
    [SKIPPED] = "skipped", [LR] = "lr",           [LOSS_SCALE] = "loss_scale",
};

/** Whether the lines have a key of that name already. */
static bool taken_name(const char *name)
{
    for (int key = 0; key < KEYS; key++)
        if (strcmp(keys[key], name) == 0)
            return true;
    return false;
}

/** Enters the name in the first micro-batch of a step, compares it in the later ones. */
static zero_result name_metric(zero_ctx *z, const char *name)
{
    struct eng_metrics *metrics = &z->micro.metrics;
    const int m = z->micro.metric_next;
    if (z->micro.index > 0) {
        if (m < metrics->count && strcmp(metrics->list[m].name, name) == 0)
            return ZERO_OK;
        return eng_fail(z, ZERO_E_STATE,
                        "metric %s in micro-batch %d, where micro-batch 0 had %s at this place",
                        name, z->micro.index, m < metrics->count ? metrics->list[m].name : "none");
    }
    if (taken_name(name))
        return eng_fail(z, ZERO_E_INVALID,
                        "metric %s: the lines that zero-run writes have a value of that name",
                        name);
    if (m == ENG_MAX_METRICS)
        return eng_fail(z, ZERO_E_LIMIT, "metric %s: there are %d already", name, m);
    for (int k = 0; k < m; k++)
        if (strcmp(metrics->list[k].name, name) == 0)
            return eng_fail(z, ZERO_E_STATE, "metric %s was given twice in a micro-batch", name);
    assert(m == metrics->count);
    snprintf(metrics->list[m].name, sizeof metrics->list[m].name, "%s", name);
    metrics->count = m + 1;
    return ZERO_OK;
}

void eng_metric_set(const zero_ctx *z, int metric, double value)
{
    // Kept by metric, then local micro-batch, with room for the most metrics there can be.
    assert(metric >= 0 && metric < ENG_MAX_METRICS && z->micro.index >= 0);
    double *values = z->micro.evaluation.active ? eng_evaluation_metrics(z) : z->micro.values;
    values[metric * eng_micro_count(z) + z->micro.index] = value;
    if (!z->micro.evaluation.active)
        z->exec->metric_set(z, metric, value);
}

static zero_result give(zero_ctx *z, const char *name, double value)
{
    if (!valid_name(name))
        return eng_fail(z, ZERO_E_INVALID,
                        "a metric's name is 1 .. %d of [A-Za-z0-9_.-], not \"%.40s\"",
                        ENG_METRIC_NAME - 1, name ? name : "");
    if (z->micro.index < 0)
        return eng_fail(z, ZERO_E_STATE,
                        "metric %s given outside a micro-batch: zero_micro_begin() is due", name);
    const zero_result r = name_metric(z, name);
    if (r)
        return r;
    eng_metric_set(z, z->micro.metric_next++, value);
    return ZERO_OK;
}

zero_result zero_metric(zero_ctx *z, const char *name, double value)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_metric");
    if (!r)
        r = give(z, name, value);
    return eng_leave(z, r);
}

static zero_result give_from(zero_ctx *z, const char *name, const float *value)
{
    const zero_result r = give(z, name, NAN); // until it is here
    return r ? r : z->exec->metric_fetch(z, z->micro.metric_next - 1, value);
}

zero_result zero_metric_from(zero_ctx *z, const char *name, const float *value, zero_stream stream)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_metric_from");
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = value ? give_from(z, name, value)
                  : eng_fail(z, ZERO_E_INVALID, "zero_metric_from: value is NULL");
    return eng_leave(z, r);
}

uint64_t eng_metric_hash(const zero_ctx *z, uint64_t hash)
{
    for (int m = 0; m < z->micro.metrics.count; m++) {
        const char *name = z->micro.metrics.list[m].name;
        hash = base_hash64(name, strlen(name), hash);
    }
    return hash;
}

void eng_metric_reduce(zero_ctx *z, struct eng_metrics *metrics, const unsigned char *all,
                       size_t stride, size_t offset)
{
    const int world = z->config.world, total = eng_micro_total(z), count = eng_micro_count(z);
    assert(total > 0);
    for (int m = 0; m < metrics->count; m++) {
        double sum = 0;
        for (int l = 0; l < total; l++) {
            double value;
            const size_t at = (size_t)m * (size_t)count + (size_t)(l / world);
            memcpy(&value, all + (size_t)(l % world) * stride + offset + at * sizeof value,
                   sizeof value);
            sum += value;
        }
        metrics->list[m].mean = sum / total;
    }
    z->micro.means = *metrics;
}

/* ------------------------------------------------------------------ in the exchange of a step */

static size_t values_bytes(const zero_ctx *z, bool most)
{
    return eng_metric_bytes(z, most ? ENG_MAX_METRICS : z->micro.metrics.count);
}

static void fill_values(const zero_ctx *z, unsigned char *mine)
{
    memcpy(mine, z->micro.values, values_bytes(z, false));
}

static zero_result hear_values(zero_ctx *z, const unsigned char *all, size_t stride)
{
    eng_metric_reduce(z, &z->micro.metrics, all, stride, 0);
    return ZERO_OK;
}

const struct eng_exchange_part eng_metric_part = {
    .name = "metrics",
    .kinds = ENG_EXCHANGE_STEP,
    .more = values_bytes,
    .fill = fill_values,
    .hear = hear_values,
};

zero_result zero_metric_mean(const zero_ctx *z, const char *name, double *mean)
{
    if (!z || !name || !mean)
        return ZERO_E_INVALID;
    for (int m = 0; m < z->micro.means.count; m++)
        if (strcmp(z->micro.means.list[m].name, name) == 0) {
            *mean = z->micro.means.list[m].mean;
            return ZERO_OK;
        }
    return ZERO_NOT_FOUND;
}

/** Adds "key":value, null for what JSON cannot say. */
static void add_number(struct base_text *line, const char *key, double value)
{
    if (isfinite(value))
        base_text_add(line, ",\"%s\":%.17g", key, value);
    else
        base_text_add(line, ",\"%s\":null", key);
}

/** Writes without SIGPIPE: a reader that has gone must not end the program. */
static zero_result write_line(int fd, const char *line, size_t bytes, struct base_error *error)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    const zero_result r = base_write_all(fd, line, bytes, "the metrics file", error);
    const struct timespec now = {0};
    if (r && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&pipe_signal, NULL, &now) < 0 && errno == EINTR)
            continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

/** Adds which context it is, if the program gave it a name: several write the same file. */
static void add_context(const zero_ctx *z, struct base_text *line)
{
    const char *name = z->config.name;
    if (strcmp(name, ENG_CONTEXT_NAME) == 0)
        return;
    base_text_add(line, ",\"%s\":\"", keys[CONTEXT]);
    for (; *name; name++) {
        const unsigned char byte = (unsigned char)*name;
        if (byte == '"' || byte == '\\')
            base_text_add(line, "\\%c", byte);
        else
            base_text_add(line, byte < ' ' ? "\\u%04x" : "%c", byte);
    }
    base_text_add(line, "\"");
}

/** Begins a line where the run stands. */
static void begin_line(const zero_ctx *z, uint64_t step, struct base_text *line)
{
    base_text_add(line, "{\"%s\":%llu,\"%s\":%llu", keys[STEP], (unsigned long long)step,
                  keys[UPDATES], (unsigned long long)z->updates);
    add_context(z, line);
}

/** Adds the means, and writes the line. */
static void end_line(zero_ctx *z, struct base_text *line)
{
    for (int m = 0; m < z->micro.means.count; m++)
        add_number(line, z->micro.means.list[m].name, z->micro.means.list[m].mean);
    base_text_add(line, "}\n");
    struct base_error error = {0};
    if (write_line(z->config.metrics_fd, line->bytes, line->used, &error)) {
        // Training goes on without its metrics, but not without a word.
        base_logf(&z->config.log, ZERO_LOG_WARN, "core", "%s; no more metrics are written",
                  error.message);
        z->config.metrics_fd = -1;
    }
}

void eng_metric_step_line(zero_ctx *z, double lr)
{
    if (z->config.metrics_fd < 0)
        return;
    char bytes[2048];
    struct base_text line = {bytes, sizeof bytes, 0};
    begin_line(z, z->stepping.result.step, &line);
    add_number(&line, keys[NORM], z->stepping.result.norm);
    add_number(&line, keys[CLIP], z->stepping.result.clip);
    add_number(&line, keys[SKIPPED], z->stepping.result.skipped);
    add_number(&line, keys[LR], lr);
    if (z->config.loss_scale != ENG_LOSS_SCALE_OFF)
        add_number(&line, keys[LOSS_SCALE], z->stepping.result.loss_scale);
    end_line(z, &line);
}

void eng_metric_evaluation_line(zero_ctx *z)
{
    if (z->config.metrics_fd < 0)
        return;
    char bytes[2048];
    struct base_text line = {bytes, sizeof bytes, 0};
    begin_line(z, z->step, &line);
    add_number(&line, keys[EVAL], z->micro.evaluation.total);
    end_line(z, &line);
}
