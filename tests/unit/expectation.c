// zero/plan/plan.h: what a step is expected to take, and what limits it, of rates that are made up.
#include "zero/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// Two ranks, on one host, each with 800 bytes of state to read and as many to write; the first one
// has 200 bytes of each more.
static struct eng_plan plan_of(double disk, double memory, double update)
{
    const struct eng_spread moved = {.mine = 800, .least = 800, .most = 1000, .sum = 1800};
    struct eng_plan plan = {.world = 2, .fit.host_ranks = 2};
    plan.files[ENG_FILE_STATE] = (struct eng_plan_file){.read = moved, .written = moved};
    plan.disk.disk_rate = disk;
    plan.disk.memory_rate = memory;
    plan.disk.update.bytes_s = update;
    plan.disk.codec = (struct eng_codec_rate){.bytes_s = 1000, .ratio = 0.75};
    return plan;
}

// So that a rank has one thread to compress.
static struct eng_config config_of(const char *compress)
{
    return (struct eng_config){
        .world = 2, .compress = compress, .online_cpus = 2, .allowed_cpus = 2};
}

static struct eng_expectation expect(const struct eng_plan *plan, const char *compress)
{
    const struct eng_config config = config_of(compress);
    struct eng_expectation expected;
    assert_true(eng_plan_expects(plan, &config, &expected));
    return expected;
}

static void check_near(double is, double should)
{
    if (!(is > should * (1 - 1e-9) && is < should * (1 + 1e-9)))
        fail_msg("%.9g, not %.9g", is, should);
}

// All ranks share the disk; memory and processors are those of the rank that has most.
static void what_takes_longest_is_the_limit(void **state)
{
    (void)state;
    static const struct {
        double disk, memory, update;
        enum eng_limit limit;
    } cases[] = {
        {100, 500, 400, ENG_LIMIT_DISK},
        {1000, 100, 400, ENG_LIMIT_MEMORY},
        {1000, 500, 50, ENG_LIMIT_COMPUTE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct eng_plan plan = plan_of(cases[i].disk, cases[i].memory, cases[i].update);
        const struct eng_expectation expected = expect(&plan, "off");
        check_near(expected.disk_s, 3600 / cases[i].disk);
        check_near(expected.memory_s, 2000 / cases[i].memory);
        check_near(expected.compute_s, 2000 / cases[i].update);
        assert_int_equal(expected.limit, cases[i].limit);
        check_near(expected.step_s, cases[i].limit == ENG_LIMIT_DISK     ? expected.disk_s
                                    : cases[i].limit == ENG_LIMIT_MEMORY ? expected.memory_s
                                                                         : expected.compute_s);
        assert_false(expected.compresses);
    }
}

static void compression_is_the_limit_where_it_is_on(void **state)
{
    (void)state;
    struct eng_plan plan = plan_of(2000, 4000, 4000); // 1.8 s, 0.5 s and 0.5 s; compressing 2 s
    struct eng_expectation expected = expect(&plan, "on");
    assert_true(expected.compresses);
    check_near(expected.codec_s, 2);
    check_near(expected.encoded_s, 1.8 * 0.75);
    assert_int_equal(expected.limit, ENG_LIMIT_CODEC);
    check_near(expected.step_s, 2);
    expected = expect(&plan, "auto"); // would be worse
    assert_false(expected.compresses);
    assert_int_equal(expected.limit, ENG_LIMIT_DISK);
    check_near(expected.step_s, 1.8);
    plan.disk.codec.bytes_s = 4000;
    expected = expect(&plan, "auto");
    assert_true(expected.compresses);
    assert_int_equal(expected.limit, ENG_LIMIT_DISK);
    check_near(expected.step_s, 1.8 * 0.75);
    plan.disk.update.bytes_s = 1000; // 2 s: the disk is not waited for
    expected = expect(&plan, "auto");
    assert_false(expected.compresses);
    assert_int_equal(expected.limit, ENG_LIMIT_COMPUTE);
}

// What is not state is not compressed.
static void all_files_are_the_disks(void **state)
{
    (void)state;
    struct eng_plan plan = plan_of(100, 4000, 4000);
    plan.files[ENG_FILE_PARAMS].read.sum = 5000;
    plan.files[ENG_FILE_SUMS].written.sum = 400;
    const struct eng_expectation expected = expect(&plan, "on");
    check_near(expected.disk_s, 90);
    check_near(expected.encoded_s, 90 - 36 * 0.25);
    check_near(expected.step_s, expected.encoded_s);
}

// Of several hosts each has a disk.
static void ranks_of_other_hosts_have_disks_of_their_own(void **state)
{
    (void)state;
    struct eng_plan plan = plan_of(100, 500, 400);
    plan.world = 4;
    plan.files[ENG_FILE_STATE].read.sum = plan.files[ENG_FILE_STATE].written.sum = 3400;
    const struct eng_expectation expected = expect(&plan, "off");
    check_near(expected.disk_s, 34);
    check_near(expected.memory_s, 4);
    plan.fit.host_ranks = 4;
    check_near(expect(&plan, "off").disk_s, 68);
}

static void what_is_not_known_is_no_limit(void **state)
{
    (void)state;
    struct eng_plan plan = plan_of(1000, 500, 0);
    struct eng_expectation expected;
    const struct eng_config config = config_of("off");
    plan.disk.update.unknown = "nobody knows";
    expected = expect(&plan, "off");
    assert_true(expected.compute_s == 0);
    assert_int_equal(expected.limit, ENG_LIMIT_MEMORY);
    check_near(expected.step_s, 4);
    plan = plan_of(0, 500, 400);
    assert_false(eng_plan_expects(&plan, &config, &expected));
}

// As many as the disk needs to begin the next one while it moves one; a twentieth may be waited.
static void the_prefetch_covers_the_latency(void **state)
{
    (void)state;
    static const struct {
        double latency_s;
        int needed, with_peers; // who are let have some
    } cases[] = {{0, 1, 1},    {0.04, 1, 1}, {0.06, 2, 5},  {1, 2, 5},
                 {1.09, 2, 5}, {1.11, 3, 7}, {9.4, 10, 21}, {9.6, 11, 23}};
    const struct eng_config alone = {.world = 1, .stage = 3}, peers = {.world = 2, .stage = 3};
    struct eng_plan plan = plan_of(100, 500, 400);
    double unit_s;
    plan.files[ENG_FILE_PARAMS].bytes.sum = 5000;
    plan.disk.read_rate = 500; // ten units: each takes a second
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan.disk.latency_s = cases[i].latency_s;
        assert_int_equal(eng_plan_prefetch(&plan, &alone, 10, &unit_s), cases[i].needed);
        assert_int_equal(eng_plan_prefetch(&plan, &peers, 10, &unit_s), cases[i].with_peers);
        check_near(unit_s, 1);
    }
    plan.world = 4; // of which this host has half
    eng_plan_prefetch(&plan, &peers, 10, &unit_s);
    check_near(unit_s, 0.5);
    assert_int_equal(eng_plan_prefetch(&plan, &peers, 0, &unit_s), 0);
    plan.files[ENG_FILE_PARAMS].bytes.sum = 0;
    assert_int_equal(eng_plan_prefetch(&plan, &peers, 10, &unit_s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_takes_longest_is_the_limit),
        cmocka_unit_test(compression_is_the_limit_where_it_is_on),
        cmocka_unit_test(all_files_are_the_disks),
        cmocka_unit_test(ranks_of_other_hosts_have_disks_of_their_own),
        cmocka_unit_test(what_is_not_known_is_no_limit),
        cmocka_unit_test(the_prefetch_covers_the_latency),
    };
    return cmocka_run_group_tests_name("expectation", tests, NULL, NULL);
}
