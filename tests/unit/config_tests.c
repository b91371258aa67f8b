#include "tests/unit/config_tests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int config_clean(void **state)
{
    (void)state;
    clearenv();
    return setenv("PATH", "/bin:/usr/bin", 1);
}

struct eng_config config_resolved(const zero_config *user)
{
    struct eng_config config;
    struct base_error error = {.result = ZERO_OK};
    if (eng_config_resolve(&config, user, &error))
        fail_msg("%s", error.message);
    return config;
}

void config_refused(const zero_config *user, zero_result result, const char *part)
{
    struct eng_config config;
    struct base_error error = {.result = ZERO_OK};
    const zero_result got = eng_config_resolve(&config, user, &error);
    if (got != result || !strstr(error.message, part))
        fail_msg("result %d: %s; expected %s", got, error.message, part);
    assert_null(strchr(error.message, '\n'));
}
