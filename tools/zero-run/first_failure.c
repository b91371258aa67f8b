// Which rank ended first. The kernel tells the other ranks of a death before it frees the dead
// one's memory, and zero-run only afterwards: who noticed it may be gone by then.

#include "tools/zero-run/run.h"

#include <stdio.h>
#include <string.h>

enum {
    EXITING = 4, // PF_EXITING of the kernel's flags, field 9 of /proc/PID/stat
    LOOK_MS = 10,
    LOOKS = 20,         // for the last of its threads to have heard of it
    FREEING_MS = 10000, // 100 GiB take as long
};

static bool is_exiting(pid_t pid)
{
    char path[32], line[512] = "", state = 0;
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *after = read ? strrchr(line, ')') : NULL; // a program's name may have anything
    if (!after || sscanf(after, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
        return false;
    return state == 'Z' || state == 'X' || (flags & EXITING);
}

struct run_rank *run_first_to_end(struct run_job *job)
{
    if (!job->watch.segment)
        return NULL;
    const int lost = control_first_lost(job->watch.segment);
    struct run_rank *rank = run_job_rank(job, lost);
    if (!rank)
        return NULL;
    struct pollfd end = {.fd = rank->pidfd, .events = POLLIN};
    // It may also have become another program, and will not end soon.
    bool exiting = false;
    for (int look = 0; look < LOOKS && !rank->ended && !exiting; look++) {
        exiting = is_exiting(rank->heir ? rank->heir : rank->pid);
        if (poll(&end, 1, exiting ? FREEING_MS : LOOK_MS) == 1)
            return rank;
    }
    return NULL;
}
