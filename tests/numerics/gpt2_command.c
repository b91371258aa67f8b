#include "gpt2_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

int command_run(char *output, const char *format, ...)
{
    char command[8192], both[8256];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    assert_in_range(length, 1, sizeof command - 1);
    snprintf(both, sizeof both, "exec 2>&1; %s", command);
    FILE *stream = popen(both, "r");
    assert_non_null(stream);
    const size_t size = fread(output, 1, COMMAND_OUTPUT_BYTES - 1, stream);
    output[size] = '\0';
    const int status = pclose(stream);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}
