#include "tools/zero-run/run.h"
#include "tools/zero-run/utf8.h"

#include <string.h>

static void extend(struct run_tail_line *line, const char *bytes, size_t count)
{
    const size_t room = sizeof line->text - (size_t)line->used;
    const size_t fits = count < room ? count : room;
    memcpy(line->text + line->used, bytes, fits);
    line->used += (int)fits;
    line->cut = line->cut || fits < count;
}

static void end_line(struct run_tail *tail, int stream, int sink, uint64_t place)
{
    struct run_tail_line *open = &tail->open[stream];
    open->sink = sink;
    open->place = place;
    if (open->cut)
        open->used = (int)run_utf8_whole(open->text, (size_t)open->used);
    tail->lines[tail->count++ % RUN_TAIL_LINES] = *open;
    open->used = 0;
    open->cut = false;
}

void run_tail_add(struct run_tail *tail, int stream, const char *bytes, size_t count, int sink,
                  uint64_t place)
{
    const char *newline;
    while (count > 0 && (newline = memchr(bytes, '\n', count))) {
        const size_t length = (size_t)(newline - bytes);
        extend(&tail->open[stream], bytes, length);
        end_line(tail, stream, sink, place);
        bytes = newline + 1;
        count -= length + 1;
    }
    extend(&tail->open[stream], bytes, count);
}

void run_tail_end(struct run_tail *tail, int stream, int sink, uint64_t place)
{
    if (tail->open[stream].used > 0)
        end_line(tail, stream, sink, place);
}

const struct run_tail_line *run_tail_line(const struct run_tail *tail, int i)
{
    const uint64_t kept = tail->count < RUN_TAIL_LINES ? tail->count : RUN_TAIL_LINES;
    if ((uint64_t)i >= kept)
        return NULL;
    return &tail->lines[(tail->count - kept + (uint64_t)i) % RUN_TAIL_LINES];
}
