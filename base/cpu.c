#include "base/cpu.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { PATH_SIZE = 4096, LARGEST_MASK = 1 << 20 };

// CPUs of the affinity mask, which may be larger than a cpu_set_t.
static int affinity_cpus(void)
{
    for (size_t cpus = CPU_SETSIZE; cpus <= LARGEST_MASK; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set)
            break;
        const size_t size = CPU_ALLOC_SIZE(cpus);
        const int failed = sched_getaffinity(0, size, set) != 0;
        const int count = failed ? 0 : CPU_COUNT_S(size, set);
        const int retry = failed && errno == EINVAL;
        CPU_FREE(set);
        if (!retry && count > 0)
            return count;
        if (!retry)
            break;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

// Reads the first line of a small file; false if there is none.
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(line, (int)size, file) != NULL;
    fclose(file);
    return read;
}

// Quota over period, rounded up; 0: no limit.
static int cpus_of(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    const long long cpus = quota / period + (quota % period > 0);
    return cpus < LARGEST_MASK ? (int)cpus : 0;
}

// The quota of one group's directory, by the file of version 2 or the files of version 1.
static int group_quota(const char *directory)
{
    char path[PATH_SIZE + 32], line[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (read_line(path, line, sizeof line))
        return sscanf(line, "%lld %lld", &quota, &period) == 2 ? cpus_of(quota, period) : 0;

    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
        return 0;
    return cpus_of(quota, period);
}

static int smaller_limit(int a, int b)
{
    assert(a >= 0 && b >= 0);
    if (a == 0 || b == 0)
        return a + b;
    return a < b ? a : b;
}

// The smallest quota from mount/controller/group up to mount/controller. A container may see its
// own group as the root and yet be told its full path; what isn't there is passed over.
static int hierarchy_quota(const char *mount, const char *controller, const char *group)
{
    char directory[PATH_SIZE];
    const int root = snprintf(directory, sizeof directory, "%s%s", mount, controller);
    const int length = snprintf(directory, sizeof directory, "%s%s%s", mount, controller, group);
    if (root < 0 || length < 0 || (size_t)length >= sizeof directory)
        return 0;
    assert(root <= length);
    int limit = 0;
    for (;;) {
        limit = smaller_limit(limit, group_quota(directory));
        char *slash = strrchr(directory, '/');
        if (!slash || slash - directory < root)
            return limit;
        *slash = '\0';
    }
}

// True if the comma-separated list holds the word "cpu".
static bool lists_cpu(const char *list)
{
    for (;; list++) {
        const size_t length = strcspn(list, ",");
        if (length == 3 && memcmp(list, "cpu", 3) == 0)
            return true;
        list += length;
        if (!*list)
            return false;
    }
}

int base_cpu_quota(const char *membership, const char *mount)
{
    FILE *file = fopen(membership, "re");
    if (!file)
        return 0;
    int limit = 0;
    char line[PATH_SIZE];
    while (fgets(line, sizeof line, file)) { // "id:controllers:/group"
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        if (*controllers == '\0') {
            limit = smaller_limit(limit, hierarchy_quota(mount, "", group));
            limit = smaller_limit(limit, hierarchy_quota(mount, "/unified", group));
        } else if (lists_cpu(controllers)) {
            limit = smaller_limit(limit, hierarchy_quota(mount, "/cpu", group));
        }
    }
    fclose(file);
    return limit;
}

int base_cpu_allowed(void)
{
    return smaller_limit(affinity_cpus(), base_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"));
}

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports() knows it.
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

struct base_cpu base_cpu_detect(void)
{
    struct base_cpu cpu = {.avx2 = false};
#if defined(__x86_64__)
    __builtin_cpu_init();
    cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
    cpu.bmi2 = __builtin_cpu_supports("bmi2");
    cpu.amd = __builtin_cpu_is("amd") != 0;
#endif
    assert(!cpu.avx512 || cpu.avx2);
    return cpu;
}
