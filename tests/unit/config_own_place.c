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

#define TEST(function) cmocka_unit_test_setup(function, config_clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_program_may_say_where_its_ranks_meet),
        TEST(half_a_place_is_refused),
    };
    return cmocka_run_group_tests_name("config_own_place", tests, NULL, NULL);
}
