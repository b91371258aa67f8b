#include "tools/zero-ckpt/tool.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

enum { FIRST_MS = 500, THEN_MS = 200 };

static uint64_t in_ms(uint64_t from_ns, int ms)
{
    return from_ns + (uint64_t)ms * 1000000;
}

void tool_progress_begin(struct tool_progress *progress, const char *what, uint64_t total)
{
    const uint64_t now = base_clock_ns();
    *progress = (struct tool_progress){.what = what, .total = total, .begin_ns = now};
    progress->next_ns = isatty(STDERR_FILENO) ? in_ms(now, FIRST_MS) : UINT64_MAX;
}

void tool_progress_update(struct tool_progress *progress, uint64_t done)
{
    const uint64_t now = base_clock_ns();
    if (now < progress->next_ns)
        return;
    const double seconds = (double)(now - progress->begin_ns) * 1e-9;
    const double part = progress->total ? (double)done / (double)progress->total : 0;
    fprintf(stderr, "\r\033[K%s: %.0f %% of %s, %s/s", progress->what, 100 * part,
            tool_size(progress->total).text, tool_size((uint64_t)((double)done / seconds)).text);
    fflush(stderr);
    progress->shown = true;
    progress->next_ns = in_ms(now, THEN_MS);
}

void tool_progress_end(struct tool_progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}
