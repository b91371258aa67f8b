// base/cpu.h: limits of made-up control groups, and of this process.
#include "base/cpu.h"
#include "tests/unit/temporary.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

static struct temporary temporary;

static int make_temporary(void **state)
{
    (void)state;
    return temporary_make(&temporary) ? 0 : -1;
}

static int remove_temporary(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

// Writes a file below the directory, and the directories above it.
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s", temporary_path(&temporary, name));
    for (char *slash = path + strlen(temporary.directory) + 1; (slash = strchr(slash, '/'));) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash++ = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int quota(void)
{
    return base_cpu_quota(temporary_path(&temporary, "cgroup"), temporary.directory);
}

static void version_2(void **state)
{
    (void)state;
    assert_int_equal(quota(), 0); // no file at all
    put("cgroup", "0::/user.slice/job\n");
    assert_int_equal(quota(), 0);
    put("user.slice/job/cpu.max", "max 100000\n");
    assert_int_equal(quota(), 0);
    put("user.slice/job/cpu.max", "250000 100000\n");
    assert_int_equal(quota(), 3);
    put("user.slice/cpu.max", "200000 100000\n");
    assert_int_equal(quota(), 2);
    put("cpu.max", "1000 100000\n"); // as a container sees its own group
    assert_int_equal(quota(), 1);
    put("cpu.max", "800000 100000\n");
    assert_int_equal(quota(), 2);
    put("cgroup", "0::/\n");
    assert_int_equal(quota(), 8);
    put("cgroup", "0::/not/visible/here\n");
    assert_int_equal(quota(), 8);
    put("cpu.max", "garbage\n");
    assert_int_equal(quota(), 0);
    put("cpu.max", "-5 100000\n");
    assert_int_equal(quota(), 0);
    put("cpu.max", "5 0\n");
    assert_int_equal(quota(), 0);
    put("cpu.max", "");
    assert_int_equal(quota(), 0);
}

static void version_1(void **state)
{
    (void)state;
    put("cgroup", "garbage\n12:memory:/big\n4:cpuset:/other\n3:cpu,cpuacct:/job/step\n"
                  "1:name=systemd:/x\n");
    assert_int_equal(quota(), 0);
    put("cpu/job/step/cpu.cfs_quota_us", "-1\n");
    put("cpu/job/step/cpu.cfs_period_us", "100000\n");
    put("cpu/other/cpu.cfs_quota_us", "100000\n");
    put("cpu/other/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(), 0);
    put("cpu/job/cpu.cfs_quota_us", "350000\n");
    assert_int_equal(quota(), 0); // the period is missing
    put("cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(), 4);
    put("cpu/job/step/cpu.cfs_quota_us", "150000\n");
    assert_int_equal(quota(), 2);
}

static void this_process(void **state)
{
    (void)state;
    const struct base_cpu cpu = base_cpu_detect();
    const int allowed = base_cpu_allowed();
    assert_true(allowed >= 1);
    assert_true(!cpu.avx512 || cpu.avx2);

    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_true(allowed <= CPU_COUNT(&before));
    size_t first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(base_cpu_allowed(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2, make_temporary, remove_temporary),
        cmocka_unit_test_setup_teardown(version_1, make_temporary, remove_temporary),
        cmocka_unit_test(this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
