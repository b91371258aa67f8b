#include "base/memory_limits.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/** Version 1 says so, rounded down to a page. */
static const uint64_t no_limit = UINT64_C(1) << 62;

uint64_t base_memory_left(uint64_t limit, uint64_t used)
{
    return limit == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;
}

static uint64_t kibibytes(const char *text, const char *key)
{
    uint64_t number;
    return base_find_number(text, key, &number) ? number * 1024 : UINT64_MAX;
}

/** A file with one number; UINT64_MAX if it has none, such as "max". */
static uint64_t read_number(const char *directory, const char *name)
{
    char path[BASE_GROUP_PATH + 64], text[64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!base_read_text("", path, text, sizeof text) || *text < '0' || *text > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/** What the kernel can take back from a group when its memory is short. */
static uint64_t reclaimable(const char *directory, bool second)
{
    static const char *const keys[2][3] = {
        {"total_active_file", "total_inactive_file", "total_slab_reclaimable"},
        {"active_file", "inactive_file", "slab_reclaimable"}};
    char path[BASE_GROUP_PATH + 64], text[8192];
    uint64_t sum = 0, number;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    if (!base_read_text("", path, text, sizeof text))
        return 0;
    for (int i = 0; i < 3; i++)
        if (base_find_number(text, keys[second][i], &number))
            sum += number;
    return sum;
}

/** Takes the group at `directory` for the tightest if less is left of it than of the one before. */
static void look_at_group(struct base_memory_limits *limits, const char *directory, bool second)
{
    const uint64_t limit = read_number(directory, second ? "memory.max" : "memory.limit_in_bytes");
    if (limit >= no_limit)
        return;
    const uint64_t charged =
        read_number(directory, second ? "memory.current" : "memory.usage_in_bytes");
    const uint64_t back = reclaimable(directory, second);
    const uint64_t used = charged == UINT64_MAX || charged < back ? 0 : charged - back;
    if (base_memory_left(limit, used) >= base_memory_left(limits->group_limit, limits->group_used))
        return;
    limits->group_limit = limit;
    limits->group_used = used;
    snprintf(limits->group, sizeof limits->group, "%s", directory);
}

/** From our group up to where its hierarchy is mounted: each limit holds for what is below. */
static void look_at_groups(struct base_memory_limits *limits, const char *root, bool second)
{
    assert(root && limits);
    struct base_control_group group;
    if (!base_control_group_find(&group, root, second))
        return;
    for (size_t length = strlen(group.directory); length >= group.mount;) {
        look_at_group(limits, group.directory, second);
        assert(group.directory[length] == '\0' && length < sizeof group.directory);
        while (length > group.mount && group.directory[length - 1] != '/')
            length--;
        if (length == group.mount)
            break;
        group.directory[--length] = '\0';
    }
}

void base_memory_limits(struct base_memory_limits *limits, const char *root)
{
    static const uint64_t unknown = UINT64_MAX;
    char text[16384];
    struct rlimit address;
    *limits = (struct base_memory_limits){
        .total = unknown, .available = unknown, .group_limit = unknown, .address_limit = unknown};
    if (base_read_text(root, "/proc/meminfo", text, sizeof text)) {
        limits->total = kibibytes(text, "MemTotal");
        limits->available = kibibytes(text, "MemAvailable");
        const bool contradicts = limits->available > limits->total; // a container's file may
        if (contradicts && limits->available != unknown)
            limits->available = limits->total;
    }
    look_at_groups(limits, root, true);
    look_at_groups(limits, root, false);
    if (getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY)
        limits->address_limit = address.rlim_cur;
    uint64_t mapped;
    if (base_read_text(root, "/proc/self/status", text, sizeof text) &&
        base_find_number(text, "VmSize", &mapped))
        limits->address_used = mapped * 1024;
}
