// Which cores a rank gets, on topologies that aren't there.
#include "tools/zero-run/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 512 };

static hwloc_topology_t topology;
static struct run_share shares[MOST];

static void load(const char *description)
{
    assert_int_equal(hwloc_topology_init(&topology), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topology, description), 0);
    assert_int_equal(hwloc_topology_load(topology), 0);
}

static void unload(void)
{
    hwloc_topology_destroy(topology);
}

// Deals `allowed`, NULL: everything.
static void deal(const char *allowed, bool numa, int ranks)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
    assert_true(ranks <= MOST);
    if (allowed)
        assert_int_equal(hwloc_bitmap_list_sscanf(cpus, allowed), 0);
    for (int i = 0; i < ranks; i++) {
        shares[i].cpus = hwloc_bitmap_alloc();
        shares[i].nodes = hwloc_bitmap_alloc();
    }
    run_bind_deal(topology, cpus, numa, ranks, shares);
    for (int i = 0; i < ranks; i++)
        assert_true(!hwloc_bitmap_iszero(shares[i].cpus) &&
                    hwloc_bitmap_isincluded(shares[i].cpus, cpus));
    hwloc_bitmap_free(cpus);
}

static void release(int ranks)
{
    for (int i = 0; i < ranks; i++) {
        hwloc_bitmap_free(shares[i].cpus);
        hwloc_bitmap_free(shares[i].nodes);
    }
}

// Compares with the ranks' lists of CPUs, separated by spaces.
static void expect(const char *description, const char *allowed, bool numa, int ranks,
                   const char *wanted)
{
    char got[4096] = "";
    load(description);
    deal(allowed, numa, ranks);
    for (int i = 0; i < ranks; i++) {
        char list[256];
        hwloc_bitmap_list_snprintf(list, sizeof list, shares[i].cpus);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "", list);
    }
    if (strcmp(got, wanted) != 0)
        fail_msg("%s, %d ranks: %s, not %s", description, ranks, got, wanted);
    release(ranks);
    unload();
}

static void cores_are_whole_and_of_one_node(void **state)
{
    (void)state;
    const char *two = "numa:2 core:4 pu:2", *four = "numa:4 core:2 pu:1";
    expect("core:8 pu:2", NULL, false, 1, "0-15");
    expect("core:8 pu:2", NULL, false, 3, "0-5 6-9 10-15");
    expect(two, NULL, false, 1, "0-15");
    expect(two, NULL, false, 2, "0-7 8-15");
    expect(two, NULL, false, 3, "0-3 4-7 8-15"); // the third shares its node with no rank
    expect(two, NULL, false, 4, "0-3 4-7 8-11 12-15");
    expect(two, NULL, false, 8, "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15");
    expect(four, NULL, false, 2, "0-3 4-7");
    expect(four, NULL, false, 3, "0-1 2-5 6-7");
    expect(four, NULL, false, 4, "0-1 2-3 4-5 6-7");
    expect(four, NULL, false, 5, "0 1 2-3 4-5 6-7");
    expect("numa:8 core:1 pu:1", NULL, false, 4, "0-1 2-3 4-5 6-7");
    // Caches are kept whole like nodes: six cores would be two a rank.
    expect("numa:1 l3:3 core:2 pu:1", NULL, false, 2, "0-3 4-5");
    expect("numa:1 l3:3 core:2 pu:1", NULL, false, 4, "0 1 2-3 4-5");
}

static void more_ranks_than_cores_share_them(void **state)
{
    (void)state;
    expect("core:2 pu:2", NULL, false, 5, "0-1 0-1 0-1 2-3 2-3");
    expect("numa:2 core:1 pu:1", NULL, false, 4, "0 0 1 1");
    expect("core:1 pu:1", NULL, false, 3, "0 0 0");
}

static void only_what_is_allowed_is_dealt(void **state)
{
    (void)state;
    const char *two = "numa:2 core:4 pu:2";
    expect(two, "8-15", false, 2, "8-11 12-15");
    expect(two, "0,8-15", false, 2, "8-11 12-15"); // a node with half a core is a bad place
    expect(two, "0-3,8-11", false, 2, "0-3 8-11");
    expect(two, "1,3,5", false, 2, "1,3 5"); // one half of three cores
    expect(two, "15", false, 3, "15 15 15");
    expect(two, "6-9", false, 2, "6-7 8-9");
    expect(two, "0-3,12", true, 1, "0-3,12");
    expect(two, "0-3,12", true, 2, "0-3 12");
}

static void nodes_are_dealt_whole(void **state)
{
    (void)state;
    const char *two = "numa:2 core:4 pu:2", *four = "numa:4 core:2 pu:1";
    expect(two, NULL, true, 1, "0-15");
    expect(two, NULL, true, 2, "0-7 8-15");
    expect(two, NULL, true, 3, "0-7 0-7 8-15");
    expect(four, NULL, true, 2, "0-3 4-7");
    expect(four, NULL, true, 6, "0-1 0-1 2-3 2-3 4-5 6-7");
    expect("core:4 pu:1", NULL, true, 2, "0-3 0-3");
    load(two);
    deal(NULL, true, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hwloc_bitmap_weight(shares[i].nodes), 1);
        assert_true(hwloc_bitmap_isset(shares[i].nodes, i == 2));
        assert_int_equal(shares[i].together, i == 2 ? 1 : 2);
        assert_int_equal(shares[i].cores, 4);
    }
    release(3);
    unload();
}

// Whatever the machine and the number of ranks: no core is in two shares while there are enough of
// them, none is split, none is left, and no share mixes nodes unless it has them whole.
static void check(const char *description, int ranks)
{
    load(description);
    deal(NULL, false, ranks);
    const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    hwloc_bitmap_t all = hwloc_bitmap_alloc();
    hwloc_obj_t core = NULL, node = NULL;
    for (int i = 0; i < ranks; i++) {
        if (hwloc_bitmap_intersects(all, shares[i].cpus) != (shares[i].together > 1))
            assert_true(ranks > cores);
        hwloc_bitmap_or(all, all, shares[i].cpus);
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
            assert_true(!hwloc_bitmap_intersects(core->cpuset, shares[i].cpus) ||
                        hwloc_bitmap_isincluded(core->cpuset, shares[i].cpus));
        const bool mixed = hwloc_bitmap_weight(shares[i].nodes) > 1;
        while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
            assert_true(!mixed || !hwloc_bitmap_intersects(node->cpuset, shares[i].cpus) ||
                        hwloc_bitmap_isincluded(node->cpuset, shares[i].cpus));
        assert_true(shares[i].cores == 1 || ranks <= cores);
    }
    assert_true(hwloc_bitmap_isequal(all, hwloc_topology_get_allowed_cpuset(topology)));
    hwloc_bitmap_free(all);
    release(ranks);
    unload();
}

static void every_machine_is_dealt_fairly(void **state)
{
    (void)state;
    static const char *const machines[] = {
        "core:1 pu:1",
        "core:6 pu:2",
        "numa:2 core:3 pu:2",
        "pack:2 numa:2 l3:2 core:4 pu:2",
        "pack:2 [numa] l3:4 core:8 pu:2",
        "numa:8 core:8 pu:1",
        "numa:4 l3:3 core:3 pu:1",
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int ranks = 1; ranks <= 40; ranks++)
            check(machines[i], ranks);
    check("numa:8 core:160 pu:2", 256); // beyond the 1,024 CPUs of a cpu_set_t
    load("numa:8 core:160 pu:2");
    deal(NULL, false, 8);
    assert_int_equal(hwloc_bitmap_first(shares[7].cpus), 2240);
    assert_int_equal(hwloc_bitmap_last(shares[7].cpus), 2559);
    release(8);
    unload();
}

static void a_table_says_who_gets_what(void **state)
{
    (void)state;
    char bytes[4096] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    struct base_error error = {.result = ZERO_OK};
    struct run_binding *binding;
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:2", 1);
    assert_int_equal(run_bind_open(&binding, RUN_BIND_NUMA, 3, &error), ZERO_OK);
    run_bind_explain(binding, &text);
    assert_string_equal(bytes,
                        "bind         rank  cores  shared by  NUMA nodes  CPUs\n"
                        "                0      2          2           0  0-3\n"
                        "                1      2          2           0  0-3\n"
                        "                2      2          1           1  4-7\n"
                        "memory       of a rank's own NUMA nodes as long as they have some\n");
    // The table is right, but of no use here.
    assert_int_equal(run_bind_check(binding, &error), ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "HWLOC_SYNTHETIC"));
    run_bind_close(binding);
    base_error_clear(&error);

    assert_int_equal(run_bind_open(&binding, RUN_BIND_AUTO, 4, &error), ZERO_OK);
    assert_non_null(binding);
    assert_false(binding->memory);
    run_bind_close(binding);
    assert_int_equal(run_bind_open(&binding, RUN_BIND_AUTO, 5, &error), ZERO_OK);
    assert_null(binding); // too few cores
    assert_int_equal(run_bind_open(&binding, RUN_BIND_NONE, 2, &error), ZERO_OK);
    assert_null(binding);
    unsetenv("HWLOC_SYNTHETIC");
}

// In a process of its own: what the kernel then says of it.
static _Noreturn void bound_child(struct run_binding *binding)
{
    static char maps[1 << 16];
    binding->memory = true;
    if (!run_bind_apply(binding, 1))
        _exit(errno == EPERM || errno == ENOSYS ? 77 : 1);
    hwloc_bitmap_t got = hwloc_bitmap_alloc();
    if (!got || hwloc_get_cpubind(binding->topology, got, HWLOC_CPUBIND_PROCESS) ||
        !hwloc_bitmap_isequal(got, binding->shares[1].cpus))
        _exit(2);
    const int fd = open("/proc/self/numa_maps", O_RDONLY);
    if (fd < 0)
        _exit(77);
    const ssize_t count = read(fd, maps, sizeof maps - 1);
    _exit(count > 0 && strstr(maps, " prefer") && !strstr(maps, " bind:") ? 0 : 3);
}

static void cores_and_memory_are_bound(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    struct run_binding *binding;
    int status;
    assert_int_equal(run_bind_open(&binding, RUN_BIND_NUMA, 2, &error), ZERO_OK);
    assert_int_equal(run_bind_check(binding, &error), ZERO_OK);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        bound_child(binding);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    run_bind_close(binding);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("this kernel has no memory policies, or does not allow them\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_whole_and_of_one_node),
        cmocka_unit_test(more_ranks_than_cores_share_them),
        cmocka_unit_test(only_what_is_allowed_is_dealt),
        cmocka_unit_test(nodes_are_dealt_whole),
        cmocka_unit_test(every_machine_is_dealt_fairly),
        cmocka_unit_test(a_table_says_who_gets_what),
        cmocka_unit_test(cores_and_memory_are_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
