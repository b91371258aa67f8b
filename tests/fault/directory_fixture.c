#include "tests/fault/directory_fixture.h"

#include "base/arena.h"
#include "base/fault.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

const struct ckpt_store *const store = &ckpt_store_posix;
struct temporary temporary;
struct base_error failure;
char path[128];

int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    if (!temporary_make(&temporary))
        return -1;
    snprintf(path, sizeof path, "%s/c", temporary.directory);
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

struct ckpt_directory *open_directory(uint32_t world)
{
    struct ckpt_directory *directory = NULL;
    assert_int_equal(ckpt_directory_open(&directory, store, path, world, &failure), ZERO_OK);
    return directory;
}

void save(struct ckpt_directory *directory, uint64_t step, uint32_t world, uint64_t version)
{
    base_error_clear(&failure);
    const zero_result result = toy_save(directory, store, path, step, world, version, &failure);
    if (result)
        print_error("%s\n", failure.message);
    assert_int_equal(result, ZERO_OK);
}

void expect_version(uint64_t step, uint64_t version)
{
    uint64_t found = 0;
    base_error_clear(&failure);
    assert_int_equal(toy_load(store, path, step, &found, &failure), ZERO_OK);
    assert_int_equal(found, version);
}

void expect_steps(const char *wanted)
{
    char text[256] = "";
    uint64_t *steps;
    size_t count;
    assert_int_equal(ckpt_list(store, path, &steps, &count, NULL), ZERO_OK);
    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%" PRIu64, i ? " " : "",
                 steps[i]);
    base_free(steps);
    assert_string_equal(text, wanted);
}

bool exists(const char *name)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    return access(whole, F_OK) == 0;
}

ino_t inode_of(const char *name)
{
    char whole[256];
    struct stat status = {0};
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    assert_int_equal(stat(whole, &status), 0);
    return status.st_ino;
}

void write_file(const char *name, const char *text)
{
    char whole[256];
    snprintf(whole, sizeof whole, "c/%s", name);
    assert_true(temporary_write(&temporary, whole, text));
}

void make_folder(const char *name)
{
    char whole[256];
    snprintf(whole, sizeof whole, "c/%s", name);
    assert_true(temporary_folder(&temporary, whole));
}
