#include "tests/unit/ckpt_command.h"

#include "base/arena.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

const char *tool_program;
struct temporary tool_temporary;
struct base_error tool_failure;
char tool_output[1 << 18];

int tool_set_up(void **state)
{
    (void)state;
    base_error_clear(&tool_failure);
    if (!temporary_make(&tool_temporary))
        return -1;
    return setenv("T", tool_temporary.directory, 1) ||
           setenv("D", temporary_path(&tool_temporary, "d"), 1);
}

int tool_tear_down(void **state)
{
    (void)state;
    temporary_remove(&tool_temporary);
    return 0;
}

int tool_run(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "%s %s 2>&1", tool_program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t length = fread(tool_output, 1, sizeof tool_output - 1, pipe);
    tool_output[length] = '\0';
    const int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void tool_expect(int status, const char *arguments, const char *part)
{
    const int got = tool_run(arguments);
    if (got != status || !strstr(tool_output, part))
        fail_msg("%s: status %d, not %d with '%s':\n%s", arguments, got, status, part, tool_output);
}

json_t *tool_run_json(int status, const char *arguments, const char *schema)
{
    const int got = tool_run(arguments);
    json_t *root = json_loads(tool_output, JSON_REJECT_DUPLICATES, NULL);
    if (got != status || !root)
        fail_msg("%s: status %d:\n%s", arguments, got, tool_output);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), schema);
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 1);
    return root;
}

void tool_save(const char *directory, enum sample_size size, uint64_t step, uint32_t world,
               const char *name, uint64_t micro_batches)
{
    struct ckpt_directory *owner;
    struct ckpt_manifest manifest;
    sample_make(&manifest, size, world, 0);
    manifest.state.step = step;
    manifest.state.micro_batches = micro_batches;
    if (name) {
        base_free(manifest.tensors[0].name);
        manifest.tensors[0].name = base_strdup(name);
    }
    assert_int_equal(
        ckpt_directory_open(&owner, &ckpt_store_posix, directory, world, &tool_failure), ZERO_OK);
    assert_int_equal(ckpt_begin(owner, step, &tool_failure), ZERO_OK);
    for (uint32_t r = 0; r < world; r++) {
        char path[CKPT_PATH_BYTES];
        snprintf(path, sizeof path, "%.3000s/saving-%08" PRIu64 "/shard-%05u.zst", directory, step,
                 r);
        if (sample_write_shard(&manifest, r, &ckpt_store_posix, path, 1, &tool_failure))
            fail_msg("%s", tool_failure.message);
    }
    sample_seal(&manifest);
    if (ckpt_commit(owner, &manifest, &tool_failure))
        fail_msg("%s", tool_failure.message);
    ckpt_directory_close(owner);
    ckpt_manifest_free(&manifest);
}

const char *tool_directory(void)
{
    return getenv("D");
}
