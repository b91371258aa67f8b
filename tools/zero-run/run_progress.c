// How the training goes, from the status of the ranks.

#include "tools/zero-run/segment_view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct control_metric *find_metric(const struct control_status *status,
                                                const char *name)
{
    for (uint32_t m = 0; m < status->metric_count; m++)
        if (!strcmp(status->metrics[m].name, name))
            return &status->metrics[m];
    return NULL;
}

/** What all ranks know alike: taken from the first one that has something to say. */
static void read_shared(const struct control_status *status, struct run_progress *progress)
{
    const struct control_metric *loss = find_metric(status, "loss");
    const struct control_metric *tokens = find_metric(status, "tokens");
    progress->step = status->step;
    memcpy(progress->context, status->context, sizeof progress->context);
    if (loss) {
        progress->has_loss = true;
        progress->loss = loss->mean;
    }
    if (tokens) {
        progress->has_tokens = true;
        progress->tokens = tokens->mean * (double)status->micro_batches;
    }
}

void run_progress_read(const struct control_segment *segment, struct run_progress *progress)
{
    double step_ns = 0;
    int ranks = 0;
    *progress = (struct run_progress){.step = 0};
    for (uint32_t rank = 0; rank < segment->world; rank++) {
        struct control_status status;
        if (!control_status_read(&segment->ranks[rank], &status) || status.step_ns == 0)
            continue;
        if (ranks++ == 0)
            read_shared(&status, progress);
        step_ns += (double)status.step_ns;
        progress->gather += (double)status.gather_wait_ns;
        progress->reduce += (double)status.reduce_wait_ns;
        progress->verdict += (double)status.verdict_wait_ns;
        progress->update += (double)status.update_ns;
    }
    if (ranks == 0)
        return;
    progress->step_s = step_ns * 1e-9 / ranks;
    double *const shares[] = {&progress->gather, &progress->reduce, &progress->verdict,
                              &progress->update};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        *shares[i] /= step_ns;
}

/* ------------------------------------------------------------------ memory */

/** A process's memory in bytes, with its share of what is mapped by several; 0: cannot be read. */
static uint64_t read_share(const char *proc, uint32_t pid)
{
    char path[64], line[128];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%.32s/%" PRIu32 "/smaps_rollup", proc, pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Pss: %" SCNu64 " kB", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

static uint64_t read_resident(const char *proc, uint32_t pid)
{
    char path[64];
    uint64_t pages = 0;
    snprintf(path, sizeof path, "%.32s/%" PRIu32 "/statm", proc, pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%*u %" SCNu64, &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t sum_memory(const struct control_segment *segment, const char *proc,
                           uint64_t (*read)(const char *proc, uint32_t pid), bool *all)
{
    uint64_t sum = 0;
    *all = true;
    for (uint32_t rank = 0; rank < segment->world; rank++) {
        const uint32_t pid = control_pid(&segment->ranks[rank]);
        const uint64_t bytes = pid ? read(proc, pid) : 0;
        *all = *all && (!pid || bytes);
        sum += bytes;
    }
    return sum;
}

uint64_t run_progress_process(const char *proc, uint32_t pid, uint64_t *resident)
{
    const uint64_t share = pid ? read_share(proc, pid) : 0;
    *resident = pid && !share;
    return *resident ? read_resident(proc, pid) : share;
}

void run_progress_memory(const struct control_segment *segment, const char *proc,
                         struct run_progress *progress)
{
    bool all;
    progress->memory = sum_memory(segment, proc, read_share, &all);
    progress->resident = !all;
    if (!all)
        progress->memory = sum_memory(segment, proc, read_resident, &all);
}

/* ------------------------------------------------------------------ words */

/** Three digits and a unit: "52.1k". */
static void add_scaled(struct base_text *text, double value, double base, const char *const *units)
{
    while (units[1] && fabs(value) >= 0.9995 * base) {
        value /= base;
        units++;
    }
    const int digits = fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
    base_text_add(text, "%.*f%s", digits, value, *units);
}

static void add_tokens(const struct run_progress *progress, struct base_text *text)
{
    static const char *const units[] = {"", "k", "M", "G", "T", NULL};
    base_text_add(text, ", ");
    add_scaled(text, progress->tokens / progress->step_s, 1000, units);
    base_text_add(text, " tokens/s");
}

static void add_step_time(const struct run_progress *progress, struct base_text *text)
{
    static const char *const units[] = {" us", " ms", NULL};
    base_text_add(text, ", ");
    if (progress->step_s >= 10)
        base_text_add(text, "%.1f s", progress->step_s);
    else
        add_scaled(text, progress->step_s * 1e6, 1000, units);
    base_text_add(text, " a step");
}

static void add_memory(const struct run_progress *progress, struct base_text *text)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", NULL};
    base_text_add(text, ", ");
    add_scaled(text, (double)progress->memory, 1024, units);
    base_text_add(text, progress->resident ? " resident" : "");
}

void run_progress_text(const struct run_progress *progress, struct base_text *text)
{
    if (*progress->context)
        base_text_add(text, "%s: ", progress->context);
    base_text_add(text, "step %" PRIu64, progress->step);
    if (progress->has_loss)
        base_text_add(text, ", loss %.5g", progress->loss);
    if (progress->has_tokens)
        add_tokens(progress, text);
    if (progress->step_s > 0)
        add_step_time(progress, text);
    if (progress->memory)
        add_memory(progress, text);
    if (progress->restarts)
        base_text_add(text, ", %d restart%s", progress->restarts,
                      progress->restarts > 1 ? "s" : "");
    const double known = progress->gather + progress->reduce + progress->verdict + progress->update;
    base_text_add(text,
                  "; gather %.0f %%, reduce %.0f %%, verdict %.0f %%, update %.0f %%, rest %.0f %%",
                  100 * progress->gather, 100 * progress->reduce, 100 * progress->verdict,
                  100 * progress->update, known < 1 ? 100 * (1 - known) : 0.0);
}
