#include "tools/zero-run/run.h"

#include "base/control_group.h"

#include <stdio.h>

// The counter of our control group in one of the two hierarchies.
static bool group_counter(struct run_oom *oom, const char *root, bool second)
{
    static char text[4096];
    struct base_control_group group;
    if (!base_control_group_find(&group, root, second))
        return false;
    snprintf(oom->path, sizeof oom->path, "%s/%s", group.directory,
             second ? "memory.events" : "memory.oom_control");
    return base_read_text("", oom->path, text, sizeof text) &&
           base_find_number(text, "oom_kill", &oom->kills);
}

static bool host_counter(struct run_oom *oom, const char *root)
{
    static char text[32768];
    snprintf(oom->path, sizeof oom->path, "%s/proc/vmstat", root);
    return base_read_text("", oom->path, text, sizeof text) &&
           base_find_number(text, "oom_kill", &oom->kills);
}

void run_oom_begin(struct run_oom *oom, const char *root)
{
    *oom = (struct run_oom){.group = true};
    if (group_counter(oom, root, true) || group_counter(oom, root, false))
        return;
    oom->group = false;
    if (!host_counter(oom, root))
        oom->path[0] = '\0';
}

enum run_oom_verdict run_oom_check(struct run_oom *oom)
{
    static char text[32768];
    uint64_t kills = 0;
    if (!*oom->path || !base_read_text("", oom->path, text, sizeof text) ||
        !base_find_number(text, "oom_kill", &kills))
        return RUN_OOM_UNKNOWN;
    const bool more = kills > oom->kills;
    oom->kills = kills;
    if (!more)
        return RUN_OOM_NOT;
    return oom->group ? RUN_OOM_GROUP : RUN_OOM_HOST;
}
