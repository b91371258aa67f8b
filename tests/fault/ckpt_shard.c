// The n-th failure of every call while a checkpoint's shards are written and read: an error that
// says where, nothing left open, and nothing taken for a checkpoint that is none.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/loader.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2 };

static struct temporary temporary;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&temporary) && temporary_folder(&temporary, "step-00000050") ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&temporary);
    return 0;
}

static int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void shard_path(char path[CKPT_PATH_BYTES], uint32_t rank)
{
    assert_int_equal(ckpt_shard_path(path, temporary.directory, 50, rank, NULL), ZERO_OK);
}

// Writes all shards, anew.
static zero_result save(struct ckpt_manifest *manifest)
{
    zero_result result = ZERO_OK;
    char path[CKPT_PATH_BYTES];
    for (uint32_t r = 0; r < WORLD; r++) {
        shard_path(path, r);
        unlink(path);
    }
    for (uint32_t r = 0; result == ZERO_OK && r < WORLD; r++) {
        shard_path(path, r);
        result = sample_write_shard(manifest, r, &ckpt_store_posix, path, 1, &failure);
    }
    return result;
}

static void put_manifest(struct ckpt_manifest *manifest)
{
    char *text, copy[8192];
    size_t length;
    sample_seal(manifest);
    assert_int_equal(ckpt_manifest_format(manifest, &text, &length, NULL), ZERO_OK);
    assert_true(length < sizeof copy);
    memcpy(copy, text, length);
    copy[length] = '\0';
    base_free(text);
    assert_true(temporary_write(&temporary, "step-00000050/manifest.json", copy));
}

static zero_result read_tensor(struct ckpt_loader *loader, const struct ckpt_manifest *manifest,
                               size_t t)
{
    static unsigned char got[8192], wanted[8192];
    zero_result result = ZERO_OK;
    for (int f = 0; result == ZERO_OK && f < manifest->tensors[t].fields; f++) {
        const uint64_t numel = manifest->tensors[t].numel;
        result = ckpt_loader_read(loader, t, 0, f, 0, numel, got, &failure);
        sample_elements(manifest, t, 0, f, 0, numel, wanted);
        if (result == ZERO_OK)
            assert_memory_equal(got, wanted, numel * sample_element_bytes(manifest, t, f));
    }
    return result;
}

static void ignore(void *user, const struct base_error *damage)
{
    (void)user;
    assert_true(damage->message[0] != '\0');
}

static zero_result load(const struct ckpt_manifest *manifest)
{
    const struct ckpt_verify_watch watch = {.damaged = ignore};
    struct ckpt_loader *loader;
    zero_result result =
        ckpt_loader_open(&loader, &ckpt_store_posix, temporary.directory, 50, &failure);
    for (size_t t = 0; result == ZERO_OK && t < manifest->tensor_count; t++)
        result = read_tensor(loader, manifest, t);
    if (result == ZERO_OK)
        result = ckpt_loader_verify(loader, &watch, &failure);
    ckpt_loader_close(loader);
    return result;
}

// Lets the n-th hit of `point` fail, for each n, until nothing fails any more. Returns how many
// did.
static int fail_each(const char *point, struct ckpt_manifest *manifest, bool saving)
{
    const int files = open_files();
    for (int n = 1;; n++) {
        char fault[64];
        snprintf(fault, sizeof fault, "%s@%d", point, n);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        base_error_clear(&failure);
        const zero_result result = saving ? save(manifest) : load(manifest);
        const bool failed = base_fault_fired() > 0;
        base_fault_set(NULL, NULL);
        assert_int_equal(open_files(), files);
        if (!failed) {
            assert_int_equal(result, ZERO_OK);
            return n - 1;
        }
        if (result == ZERO_OK || !failure.message[0])
            print_error("%s: %d '%s'\n", fault, (int)result, failure.message);
        assert_true(result != ZERO_OK && failure.result == result);
        if (strcmp(point, "alloc") == 0)
            assert_int_equal(result, ZERO_E_NOMEM);
        else
            assert_non_null(strstr(failure.message, temporary.directory));
    }
}

static void every_failure_of_writing_is_told(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    sample_make(&manifest, SAMPLE_SMALL, WORLD, 1);
    // Of each shard: writer, arena, codec, file and path; one write, truncation, flush.
    assert_true(fail_each("alloc", &manifest, true) >= 4 * WORLD);
    assert_int_equal(fail_each("io.write", &manifest, true), WORLD);
    assert_int_equal(fail_each("io.write:enospc", &manifest, true), WORLD);
    assert_int_equal(fail_each("io.truncate", &manifest, true), WORLD);
    assert_int_equal(fail_each("io.fsync", &manifest, true), WORLD);
    assert_int_equal(fail_each("io.open", &manifest, true), WORLD);
    assert_int_equal(fail_each("io.close", &manifest, true), WORLD);
    ckpt_manifest_free(&manifest);
}

static void every_failure_of_reading_is_told(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    sample_make(&manifest, SAMPLE_SMALL, WORLD, 1);
    assert_int_equal(save(&manifest), ZERO_OK);
    put_manifest(&manifest);
    assert_true(fail_each("alloc", &manifest, false) > 30);
    // The manifest, and of each shard header, end and some blocks, twice.
    assert_true(fail_each("io.read", &manifest, false) > 4 * WORLD);
    assert_true(fail_each("io.open", &manifest, false) >= 2 * WORLD);
    ckpt_manifest_free(&manifest);
}

// Short transfers and interrupted calls are no failures.
static void what_is_no_failure(void **state)
{
    (void)state;
    struct ckpt_manifest manifest;
    sample_make(&manifest, SAMPLE_SMALL, WORLD, 1);
    assert_int_equal(
        base_fault_set("io.short@1+,io.write:eintr@1,io.read:eintr@3,io.read:eintr@8", NULL),
        ZERO_OK);
    assert_int_equal(save(&manifest), ZERO_OK);
    put_manifest(&manifest);
    assert_int_equal(load(&manifest), ZERO_OK);
    assert_true(base_fault_fired() > 10);
    ckpt_manifest_free(&manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_failure_of_writing_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_failure_of_reading_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_failure, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
