/**
 * tests/unit/config_tests.h: what tests of the configuration have in common.
 */
#ifndef TESTS_UNIT_CONFIG_TESTS_H
#define TESTS_UNIT_CONFIG_TESTS_H

#include "zero/config/config.h"

/** cmocka's set-up: no variable of zero's or a launcher's is left. */
int config_clean(void **state);

/** What comes of it. Fails the test if it is refused. */
struct eng_config config_resolved(const zero_config *user);

/** Fails the test unless it is refused with this result, by one line with `part` in it. */
void config_refused(const zero_config *user, zero_result result, const char *part);

#endif
