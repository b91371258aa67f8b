/* How much memory there is: of made-up hosts, in both versions of control groups. */
#include "base/memory_limits.h"

#include "tests/unit/temporary.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static struct temporary dir;

static void write_file(const char *name, const char *text)
{
    assert_true(temporary_write(&dir, name, text));
}

static struct base_memory_limits look(void)
{
    struct base_memory_limits limits;
    base_memory_limits(&limits, dir.directory);
    return limits;
}

/** The tightest group is the one at `name` below the made-up root. */
static void expect_group(const char *name, uint64_t limit, uint64_t used)
{
    const struct base_memory_limits limits = look();
    assert_int_equal(limits.group_limit, limit);
    assert_int_equal(limits.group_used, used);
    assert_string_equal(limits.group, temporary_path(&dir, name));
}

static void nothing_is_known_of_an_empty_host(void **state)
{
    (void)state;
    const struct base_memory_limits limits = look();
    assert_true(limits.total == UINT64_MAX && limits.available == UINT64_MAX);
    assert_true(limits.group_limit == UINT64_MAX);
    assert_string_equal(limits.group, "");
    assert_true(base_memory_left(UINT64_MAX, 5) == UINT64_MAX);
    assert_int_equal(base_memory_left(7, 5), 2);
    assert_int_equal(base_memory_left(5, 7), 0);
}

static void the_host_says_what_is_available(void **state)
{
    (void)state;
    assert_true(temporary_folder(&dir, "proc"));
    assert_true(temporary_folder(&dir, "proc/self"));
    write_file("proc/meminfo",
               "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:  2048 kB\n");
    write_file("proc/self/status", "Name:\tx\nVmSize:\t    4096 kB\n");
    const struct base_memory_limits limits = look();
    assert_int_equal(limits.total, 16 * MIB);
    assert_int_equal(limits.available, 2 * MIB);
    assert_int_equal(limits.address_used, 4 * MIB);
}

static void no_more_is_available_than_there_is(void **state)
{
    (void)state;
    write_file("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable:  16384 kB\n");
    assert_int_equal(look().available, 2 * MIB);
    write_file("proc/meminfo", "MemTotal:  2048 kB\n");
    assert_true(look().available == UINT64_MAX && look().total == 2 * MIB);
}

/** Every group above ours limits us too, up to where the hierarchy is mounted. */
static void the_tightest_group_counts(void **state)
{
    (void)state;
    assert_true(temporary_folder(&dir, "cg"));
    assert_true(temporary_folder(&dir, "cg/job"));
    assert_true(temporary_folder(&dir, "cg/job/step"));
    write_file("proc/self/mountinfo", "30 22 0:26 / /cg rw shared:9 - cgroup2 cgroup2 rw\n");
    write_file("proc/self/cgroup", "0::/job/step\n");
    assert_true(look().group_limit == UINT64_MAX);
    write_file("cg/job/step/memory.max", "max\n");
    write_file("cg/job/memory.max", "1048576000\n");
    write_file("cg/job/memory.current", "800000000\n");
    write_file("cg/job/memory.stat", "anon 5\nactive_file 200000000\ninactive_file 99\n"
                                     "slab_reclaimable 1\ninactive_file_x 7\n");
    expect_group("cg/job", 1048576000, 599999900);
    write_file("cg/job/step/memory.max", "500000000\n");
    write_file("cg/job/step/memory.current", "3000\n");
    expect_group("cg/job", 1048576000, 599999900); // has less left
    write_file("cg/job/step/memory.current", "100000000\n");
    expect_group("cg/job/step", 500000000, 100000000);
    write_file("cg/memory.max", "300000000\n"); // of a container's mount
    expect_group("cg", 300000000, 0);
    // Over its limit by what can be taken back.
    write_file("cg/memory.current", "350000000\n");
    write_file("cg/memory.stat", "active_file 60000000\n");
    expect_group("cg", 300000000, 290000000);
}

/** A container's mount shows one group as its root: ours is that one, below it, or elsewhere. */
static void a_mount_shows_a_part(void **state)
{
    (void)state;
    assert_true(temporary_folder(&dir, "part"));
    assert_true(temporary_folder(&dir, "part/step"));
    write_file("part/memory.max", "9000000\n");
    write_file("part/step/memory.max", "7000000\n");
    write_file("proc/self/mountinfo", "30 22 0:26 /box /part rw - cgroup2 cgroup2 rw\n");
    write_file("proc/self/cgroup", "0::/box/step\n");
    expect_group("part/step", 7000000, 0);
    write_file("proc/self/cgroup", "0::/box\n");
    expect_group("part", 9000000, 0);
    write_file("proc/self/cgroup", "0::/box/step-by-step\n");
    expect_group("part", 9000000, 0);
    write_file("proc/self/cgroup", "0::/boxes\n"); // is no group below /box
    expect_group("part", 9000000, 0);
}

static void *look_from_thread(void *limits)
{
    *(struct base_memory_limits *)limits = look();
    return NULL;
}

/** Hosts of many containers have long lists of mounts, and programs threads with small stacks. */
static void a_long_list_and_a_small_stack(void **state)
{
    (void)state;
    enum { LINES = 1000, STACK = 64 * 1024 };
    static const char line[] = "30 22 0:26 / /layers rw - overlay overlay rw,lowerdir=%0*d\n";
    static const char last[] = "30 22 0:26 /box /part rw - cgroup2 cgroup2 rw"; // without its end
    char *text = calloc(LINES * 256 + 8192, 1);
    assert_non_null(text);
    size_t used = 0;
    for (int i = 0; i < LINES; i++)
        used += (size_t)sprintf(text + used, line, i == 500 ? 4000 : 60, i);
    strcpy(text + used, last);
    write_file("proc/self/mountinfo", text);
    write_file("proc/self/cgroup", "0::/box/step");
    free(text);
    struct base_memory_limits limits;
    pthread_attr_t small;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, STACK), 0);
    assert_int_equal(pthread_create(&thread, &small, look_from_thread, &limits), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&small);
    assert_int_equal(limits.group_limit, 7000000);
    assert_string_equal(limits.group, temporary_path(&dir, "part/step"));
}

static void version_1_counts_what_is_below(void **state)
{
    (void)state;
    assert_true(temporary_folder(&dir, "old"));
    assert_true(temporary_folder(&dir, "old/sub"));
    write_file("proc/self/mountinfo", "32 22 0:28 / /old rw - cgroup cgroup rw,memory\n");
    write_file("proc/self/cgroup", "3:memory:/sub\n");
    write_file("old/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("old/sub/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(look().group_limit == UINT64_MAX);
    write_file("old/sub/memory.limit_in_bytes", "70000000\n");
    write_file("old/sub/memory.usage_in_bytes", "30000000\n");
    write_file("old/sub/memory.stat", "active_file 1\ntotal_active_file 4000000\n"
                                      "total_inactive_file 6000000\n");
    expect_group("old/sub", 70000000, 20000000);
}

static void addresses_are_limited(void **state)
{
    (void)state;
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)1 << 45;
    if (before.rlim_max != RLIM_INFINITY && limit.rlim_cur > before.rlim_max)
        limit.rlim_cur = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    struct base_memory_limits limits;
    base_memory_limits(&limits, "");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(limits.address_limit, limit.rlim_cur);
    assert_true(limits.address_used >= 4096);
    assert_true(limits.available <= limits.total && limits.available > 0);
}

static int make_directory(void **state)
{
    (void)state;
    return temporary_make(&dir) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    temporary_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_of_an_empty_host),
        cmocka_unit_test(the_host_says_what_is_available),
        cmocka_unit_test(no_more_is_available_than_there_is),
        cmocka_unit_test(the_tightest_group_counts),
        cmocka_unit_test(a_mount_shows_a_part),
        cmocka_unit_test(a_long_list_and_a_small_stack),
        cmocka_unit_test(version_1_counts_what_is_below),
        cmocka_unit_test(addresses_are_limited),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
