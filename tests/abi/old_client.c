// A client compiled against older or newer headers: its structs are shorter or longer than ours.
#include <zero/zero.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

// The fields an older header ended with; what lies behind them is not the library's to read.
#define OLD_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)NULL)->last))

// A newer header's struct.
union newer_config {
    zero_config config;
    unsigned char bytes[sizeof(zero_config) + 64];
};

static void test_shorter_config(void **state)
{
    (void)state;
    zero_config config;
    memset(&config, 0x5a, sizeof config);
    memset(&config, 0, OLD_SIZE(zero_config, micro_batches));
    config.struct_size = OLD_SIZE(zero_config, micro_batches);
    config.world = 1;
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    assert_int_equal(zero_world(z), 1);
    zero_close(z);
}

static void test_longer_config(void **state)
{
    (void)state;
    union newer_config newer;
    memset(&newer, 0, sizeof newer);
    newer.config.struct_size = sizeof newer;
    newer.config.world = 1;
    newer.config.log_level = ZERO_OFF;
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &newer.config), ZERO_OK);
    zero_close(z);

    z = (zero_ctx *)&newer;
    newer.bytes[sizeof newer.bytes - 1] = 1;
    assert_int_equal(zero_open(&z, &newer.config), ZERO_E_INVALID);
    assert_null(z);
    assert_string_not_equal(zero_last_error(NULL), "");
}

static void test_no_size(void **state)
{
    (void)state;
    zero_config config = zero_config_default();
    config.struct_size = 0;
    config.log_level = ZERO_OFF;
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_E_INVALID);
    assert_null(z);
}

static zero_ctx *open_one(void)
{
    zero_config config = zero_config_default();
    config.world = 1;
    config.log_level = ZERO_OFF;
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    return z;
}

static void test_shorter_descriptions(void **state)
{
    (void)state;
    zero_ctx *z = open_one();

    zero_group_desc group;
    memset(&group, 0x5a, sizeof group);
    memset(&group, 0, OLD_SIZE(zero_group_desc, decay));
    group.struct_size = OLD_SIZE(zero_group_desc, decay);
    assert_int_equal(zero_add_group(z, NULL, &group), ZERO_OK);

    zero_param_desc param;
    memset(&param, 0x5a, sizeof param);
    memset(&param, 0, OLD_SIZE(zero_param_desc, data));
    param.struct_size = OLD_SIZE(zero_param_desc, data);
    param.name = "w";
    param.ndim = 1;
    param.shape[0] = 5;
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_OK);
    assert_int_equal(zero_commit(z), ZERO_OK);
    zero_close(z);
}

// Only as much of an output struct is written as its caller has.
static void test_shorter_outputs(void **state)
{
    (void)state;
    zero_ctx *z = open_one();
    zero_param_desc param = zero_param_default();
    param.name = "w";
    param.ndim = 1;
    param.shape[0] = 5;
    assert_int_equal(zero_add_group(z, NULL, NULL), ZERO_OK);
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_OK);
    assert_int_equal(zero_commit(z), ZERO_OK);

    zero_micro micro;
    memset(&micro, 0x5a, sizeof micro);
    micro.struct_size = OLD_SIZE(zero_micro, step);
    assert_int_equal(zero_micro_begin(z, 0, &micro), ZERO_OK);
    assert_int_equal(micro.counts, 1);
    assert_int_equal(micro.step, 0);
    assert_int_equal(micro.index, 0x5a5a5a5a5a5a5a5a);

    zero_statistics stats;
    memset(&stats, 0x5a, sizeof stats);
    stats.struct_size = OLD_SIZE(zero_statistics, gather_wait_s);
    assert_int_equal(zero_stats(z, &stats), ZERO_OK);
    assert_int_equal(stats.step_allocations, 0x5a5a5a5a5a5a5a5a);
    zero_close(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shorter_config),  cmocka_unit_test(test_longer_config),
        cmocka_unit_test(test_no_size),         cmocka_unit_test(test_shorter_descriptions),
        cmocka_unit_test(test_shorter_outputs),
    };
    return cmocka_run_group_tests_name("old_client", tests, NULL, NULL);
}
