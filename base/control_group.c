#include "base/control_group.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool base_read_text(const char *root, const char *path, char *text, size_t size)
{
    char full[2 * BASE_GROUP_PATH];
    int fd = -1;
    snprintf(full, sizeof full, "%s%s", root, path);
    if (base_open(&fd, full, O_RDONLY, 0, NULL))
        return false;
    size_t used = 0;
    ssize_t count;
    while ((count = read(fd, text + used, size - 1 - used)) > 0 || (count < 0 && errno == EINTR))
        used += count > 0 ? (size_t)count : 0;
    text[used] = '\0';
    base_close(&fd, full, NULL);
    return count == 0;
}

bool base_find_number(const char *text, const char *key, uint64_t *number)
{
    const size_t length = strlen(key);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, key, length))
            continue;
        const char *digits = line + length + (line[length] == ':');
        const size_t blanks = strspn(digits, " \t");
        if (blanks == 0 || digits[blanks] < '0' || digits[blanks] > '9')
            continue;
        *number = strtoull(digits + blanks, NULL, 10);
        return true;
    }
    return false;
}

// Of the lines "id:controllers:path" the path of ours: that of the memory controller (version 1),
// or of no controller (version 2).
static bool find_path(const char *text, bool second, char *path, size_t size)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const size_t length = strcspn(line, "\n");
        const char *first = memchr(line, ':', length);
        const char *colon =
            first ? memchr(first + 1, ':', length - (size_t)(first + 1 - line)) : NULL;
        if (!colon)
            continue;
        char controllers[128];
        snprintf(controllers, sizeof controllers, ",%.*s,", (int)(colon - first - 1), first + 1);
        if (second ? strcmp(controllers, ",,") != 0 : !strstr(controllers, ",memory,"))
            continue;
        snprintf(path, size, "%.*s", (int)(length - (size_t)(colon + 1 - line)), colon + 1);
        return true;
    }
    return false;
}

// Where that hierarchy is mounted, and which of its groups the mount shows as its root.
static bool find_mount(const char *text, bool second, char *root, char *point)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char entry[1024], kind[64], options[256];
        snprintf(entry, sizeof entry, "%.*s", (int)strcspn(line, "\n"), line);
        const char *dash = strstr(entry, " - ");
        if (!dash || sscanf(entry, "%*s %*s %*s %255s %255s", root, point) != 2 ||
            sscanf(dash, " - %63s %*s %255s", kind, options) != 2)
            continue;
        char list[264];
        snprintf(list, sizeof list, ",%s,", options);
        if (second ? !strcmp(kind, "cgroup2")
                   : !strcmp(kind, "cgroup") && strstr(list, ",memory,") != NULL)
            return true;
    }
    return false;
}

// Our group's path below the one that the mount shows as its root; "" if it is that one, or is not
// below it at all.
static const char *below_mount(const char *path, const char *mount_root)
{
    const size_t shown = strcmp(mount_root, "/") ? strlen(mount_root) : 0;
    const char *below = path + shown;
    const bool inside = strncmp(path, mount_root, shown) == 0 && *below == '/';
    return inside && strcmp(below, "/") ? below : "";
}

bool base_control_group_find(struct base_control_group *group, const char *root, bool second)
{
    char groups[8192], mounts[65536], path[256], mount_root[256], point[256];
    *group = (struct base_control_group){.second = second};
    if (!base_read_text(root, "/proc/self/cgroup", groups, sizeof groups) ||
        !base_read_text(root, "/proc/self/mountinfo", mounts, sizeof mounts) ||
        !find_path(groups, second, path, sizeof path) ||
        !find_mount(mounts, second, mount_root, point))
        return false;
    const int length = snprintf(group->directory, sizeof group->directory, "%s%s%s", root, point,
                                below_mount(path, mount_root));
    group->mount = strlen(root) + strlen(point);
    return length > 0 && (size_t)length < sizeof group->directory;
}
