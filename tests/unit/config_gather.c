// What ranks of a host share of the parameters.
#include "tests/unit/config_tests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/** Rank 2 of 3, alone on its host. */
static zero_config on_several_hosts(int stage, const char *gather)
{
    zero_config user = zero_config_default();
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("MASTER_ADDR", "node1", 1);
    setenv("MASTER_PORT", "29500", 1);
    user.stage = stage;
    user.gather = gather;
    return user;
}

static void expect(const zero_config *user, int most, const char *gather)
{
    struct eng_config config = config_resolved(user);
    eng_config_found_hosts(&config, 1, most);
    assert_string_equal(eng_config_gather(&config), gather);
    assert_int_equal(config.shared, strcmp(gather, "shared") == 0);
    assert_int_equal(config.host_slots, strcmp(gather, "slots") == 0);
}

// A rank finds out how many ranks other hosts have when it has met them.
static void slots_are_the_hosts_if_some_host_has_several_ranks(void **state)
{
    (void)state;
    zero_config user = on_several_hosts(3, NULL);
    struct eng_config config = config_resolved(&user);
    assert_string_equal(eng_config_gather(&config), "copy");
    expect(&user, 1, "copy");
    expect(&user, 2, "slots");
    user = on_several_hosts(3, "slots");
    expect(&user, 1, "slots");
    user = on_several_hosts(3, "copy");
    expect(&user, 2, "copy");
    user = on_several_hosts(3, "shared");
    expect(&user, 2, "shared");
    user = on_several_hosts(2, NULL);
    expect(&user, 2, "shared");
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "1", 1);
    user = (zero_config){.struct_size = sizeof user, .stage = 3};
    config = config_resolved(&user);
    assert_string_equal(eng_config_gather(&config), "slots");
}

static void ranks_of_one_host_share_all(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.world = 3;
    user.transport = "shm";
    user.stage = 3;
    expect(&user, 3, "shared");
    user.gather = "slots";
    expect(&user, 3, "slots");
}

static void what_has_no_slots_in_memory_is_told(void **state)
{
    (void)state;
    zero_config user = on_several_hosts(2, "slots");
    config_refused(&user, ZERO_E_INVALID, "gather=slots at stage 2");
    user = on_several_hosts(3, NULL);
    user.offload_optimizer = user.offload_params = "nvme";
    user.nvme_dir = "/tmp";
    expect(&user, 2, "copy");
    user.gather = "slots";
    config_refused(&user, ZERO_E_INVALID, "gather=slots with offload_params=nvme");
    user = on_several_hosts(3, "slots");
    user.device = "cuda";
    config_refused(&user, ZERO_E_INVALID, "gather=slots with device=cuda");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(slots_are_the_hosts_if_some_host_has_several_ranks, config_clean),
        cmocka_unit_test_setup(ranks_of_one_host_share_all, config_clean),
        cmocka_unit_test_setup(what_has_no_slots_in_memory_is_told, config_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
