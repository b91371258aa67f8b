#include "base/control_group.h"

#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool base_read_text(const char *root, const char *path, char *text, size_t size)
{
    assert(size > 0);
    char full[2 * BASE_GROUP_PATH];
    int fd = -1;
    snprintf(full, sizeof full, "%s%s", root, path);
    if (base_open(&fd, full, O_RDONLY, 0, NULL))
        return false;
    size_t used = 0;
    ssize_t count;
    while ((count = read(fd, text + used, size - 1 - used)) > 0 || (count < 0 && errno == EINTR))
        used += count > 0 ? (size_t)count : 0;
    assert(used < size);
    text[used] = '\0';
    base_close(&fd, full, NULL);
    return count == 0;
}

bool base_find_number(const char *text, const char *key, uint64_t *number)
{
    assert(*key);
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

/** What the kernel's lists say of a hierarchy. */
struct hierarchy {
    bool second;
    char path[256];  // our group's
    char root[256];  // the group that the mount shows as its root
    char point[256]; // where it is mounted
};

// A line "id:controllers:path" that has our group's path: that of the memory controller (version
// 1), or of no controller (version 2).
static bool is_path(const char *line, struct hierarchy *hierarchy)
{
    const char *first = strchr(line, ':'), *colon = first ? strchr(first + 1, ':') : NULL;
    if (!colon)
        return false;
    char controllers[128];
    snprintf(controllers, sizeof controllers, ",%.*s,", (int)(colon - first - 1), first + 1);
    if (hierarchy->second ? strcmp(controllers, ",,") != 0 : !strstr(controllers, ",memory,"))
        return false;
    snprintf(hierarchy->path, sizeof hierarchy->path, "%s", colon + 1);
    return true;
}

// A line of mountinfo that says where the hierarchy is mounted.
static bool is_mount(const char *line, struct hierarchy *hierarchy)
{
    char kind[64], options[256], list[264];
    const char *dash = strstr(line, " - ");
    if (!dash || sscanf(line, "%*s %*s %*s %255s %255s", hierarchy->root, hierarchy->point) != 2 ||
        sscanf(dash, " - %63s %*s %255s", kind, options) != 2)
        return false;
    snprintf(list, sizeof list, ",%s,", options);
    return hierarchy->second ? !strcmp(kind, "cgroup2")
                             : !strcmp(kind, "cgroup") && strstr(list, ",memory,") != NULL;
}

// Finds the first line that `is` accepts. Lists of mounts can be long, stacks small: only one line
// is kept, cut where it does not fit.
static bool find_line(const char *root, const char *path, struct hierarchy *hierarchy,
                      bool (*is)(const char *line, struct hierarchy *hierarchy))
{
    char full[2 * BASE_GROUP_PATH], bytes[512], line[1024];
    size_t used = 0;
    bool found = false;
    int fd = -1;
    snprintf(full, sizeof full, "%s%s", root, path);
    if (base_open(&fd, full, O_RDONLY, 0, NULL))
        return false;
    ssize_t count;
    while (!found && ((count = read(fd, bytes, sizeof bytes)) > 0 || (count < 0 && errno == EINTR)))
        for (ssize_t i = 0; i < count && !found; i++) {
            if (bytes[i] != '\n' && used < sizeof line - 1)
                line[used++] = bytes[i];
            if (bytes[i] != '\n')
                continue;
            line[used] = '\0';
            used = 0;
            found = is(line, hierarchy);
        }
    assert(used < sizeof line);
    line[used] = '\0';
    found = found || is(line, hierarchy);
    base_close(&fd, full, NULL);
    return found;
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
    struct hierarchy hierarchy = {.second = second};
    *group = (struct base_control_group){.second = second};
    if (!find_line(root, "/proc/self/cgroup", &hierarchy, is_path) ||
        !find_line(root, "/proc/self/mountinfo", &hierarchy, is_mount))
        return false;
    const int length = snprintf(group->directory, sizeof group->directory, "%s%s%s", root,
                                hierarchy.point, below_mount(hierarchy.path, hierarchy.root));
    group->mount = strlen(root) + strlen(hierarchy.point);
    assert(length < 0 || (size_t)length >= group->mount);
    return length > 0 && (size_t)length < sizeof group->directory;
}
