// Configuration of a program that brings its own rank and world: which job it is, where its rank 0
// is.
#include "tests/unit/config_tests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// What the program says of its place holds beside a launcher's variables, but not beside ZERO_*.
static void a_program_may_say_where_its_ranks_meet(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.rank = 1;
    user.world = 2;
    strcpy(user.job, "mine");
    struct eng_config config = config_resolved(&user);
    assert_non_null(strstr(config.job, ".mine"));
    assert_string_equal(config.transport, "shm");
    assert_false(config.unplaced);

    setenv("MASTER_ADDR", "node1", 1);
    setenv("MASTER_PORT", "29500", 1);
    config = config_resolved(&user);
    assert_string_equal(config.meeting.address, "node1");
    assert_int_equal(config.meeting.port, 29501);
    assert_non_null(strstr(config.job, ".mine"));

    strcpy(user.master_addr, "10.0.0.7");
    user.master_port = 25000;
    setenv("ZERO_SECRET", "word", 1);
    config = config_resolved(&user);
    assert_true(config.unplaced);
    assert_string_equal(config.meeting.address, "10.0.0.7");
    assert_int_equal(config.meeting.port, 25000);
    assert_string_equal(config.meeting.source, "zero_config.master_addr");
    assert_string_equal(config.meeting.secret, "word");
    assert_non_null(strstr(config.job, ".mine"));

    setenv("ZERO_JOB", "theirs", 1);
    setenv("ZERO_MASTER_ADDR", "10.0.0.8", 1);
    config = config_resolved(&user);
    assert_string_equal(config.meeting.address, "10.0.0.8");
    assert_int_equal(config.meeting.port, 25000);
    assert_non_null(strstr(config.job, ".theirs"));
    setenv("ZERO_OPTIONS", "job=ours", 1);
    config_refused(&user, ZERO_E_INVALID, "-o job: comes from the launcher or the program");
}

static void half_a_place_is_refused(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    strcpy(user.job, "mine");
    config_refused(&user, ZERO_E_INVALID,
                   "zero_config.job, .master_addr or .master_port is set, but "
                   ".world is 0");
    user.world = 2;
    user.master_port = 25000;
    config_refused(&user, ZERO_E_INVALID, ".master_addr and .master_port = 25000: give both");
    strcpy(user.master_addr, "node 1");
    config_refused(&user, ZERO_E_INVALID, "give both, a word without blanks");
    strcpy(user.master_addr, "node1");
    user.master_port = 65536;
    config_refused(&user, ZERO_E_INVALID, ".master_port = 65536");
    user.master_port = 25000;
    memset(user.job, 'j', sizeof user.job);
    config_refused(&user, ZERO_E_INVALID, "is no word of at most 63 bytes");
    user.job[0] = '\0';
    config_refused(&user, ZERO_E_INVALID,
                   "zero_config.job, which .master_addr and .master_port come with");
    strcpy(user.job, "mine");
    memset(user.master_addr, 'a', sizeof user.master_addr);
    config_refused(&user, ZERO_E_INVALID, ".master_addr and .master_port = 25000: give both");
    user.master_addr[0] = '\0';
    user.master_port = 0;
    user.reserved_end = 1;
    config_refused(&user, ZERO_E_INVALID, "zero_config.reserved_end is 1");
}

// The processes of a host have different numbers, whatever order the program gives its ranks: by
// the launcher's they take their GPUs, those whose rank is the launcher's by chance and the others.
static void ranks_in_another_order_have_gpus_of_their_own(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.device = "cuda";
    setenv("MASTER_ADDR", "node1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    const struct {
        const char *rank, *local_rank;
        int32_t own;
    } ranks[] = {{"0", "0", 3}, {"1", "1", 1}};
    for (size_t i = 0; i < 2; i++) {
        setenv("OMPI_COMM_WORLD_RANK", ranks[i].rank, 1);
        setenv("OMPI_COMM_WORLD_LOCAL_RANK", ranks[i].local_rank, 1);
        user.rank = ranks[i].own;
        user.world = 4;
        assert_int_equal(config_resolved(&user).device_number, i);
    }
    // Half of them are a job of their own, beside that of the others.
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3", 1);
    user.rank = 1;
    user.world = 2;
    const struct eng_config config = config_resolved(&user);
    assert_int_equal(config.local_world, 2);
    assert_int_equal(config.device_number, 3);
}

#define TEST(function) cmocka_unit_test_setup(function, config_clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_program_may_say_where_its_ranks_meet),
        TEST(half_a_place_is_refused),
        TEST(ranks_in_another_order_have_gpus_of_their_own),
    };
    return cmocka_run_group_tests_name("config_own_place", tests, NULL, NULL);
}
