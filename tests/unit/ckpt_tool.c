// zero-ckpt as a command, on checkpoints that are whole, damaged, unfinished, or not there.
#include "base/arena.h"
#include "checkpoint/directory.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/temporary.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static const char *program;
static struct temporary temporary;
static struct base_error failure;
static char output[1 << 18]; // of the last command, standard error included

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    if (!temporary_make(&temporary))
        return -1;
    return setenv("D", temporary_path(&temporary, "d"), 1);
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

// Runs `zero-ckpt arguments` by the shell and returns its status; $D is the directory.
static int run(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "%s %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    const int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(int status, const char *arguments, const char *part)
{
    const int got = run(arguments);
    if (got != status || !strstr(output, part))
        fail_msg("%s: status %d, not %d with '%s':\n%s", arguments, got, status, part, output);
}

static json_t *run_json(int status, const char *arguments, const char *schema)
{
    const int got = run(arguments);
    json_t *root = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    if (got != status || !root)
        fail_msg("%s: status %d:\n%s", arguments, got, output);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), schema);
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 1);
    return root;
}

// Saves the sample as `step`; its first tensor has `name`.
static void save(const char *directory, uint64_t step, uint32_t world, const char *name,
                 uint64_t micro_batches)
{
    struct ckpt_directory *owner;
    struct ckpt_manifest manifest;
    sample_make(&manifest, SAMPLE_SMALL, world, 0);
    manifest.state.step = step;
    manifest.state.micro_batches = micro_batches;
    if (name) {
        base_free(manifest.tensors[0].name);
        manifest.tensors[0].name = base_strdup(name);
    }
    assert_int_equal(ckpt_directory_open(&owner, &ckpt_store_posix, directory, world, &failure),
                     ZERO_OK);
    assert_int_equal(ckpt_begin(owner, step, &failure), ZERO_OK);
    for (uint32_t r = 0; r < world; r++) {
        char path[CKPT_PATH_BYTES];
        snprintf(path, sizeof path, "%.3000s/saving-%08" PRIu64 "/shard-%05u.zst", directory, step,
                 r);
        if (sample_write_shard(&manifest, r, &ckpt_store_posix, path, 1, &failure))
            fail_msg("%s", failure.message);
    }
    sample_seal(&manifest);
    if (ckpt_commit(owner, &manifest, &failure))
        fail_msg("%s", failure.message);
    ckpt_directory_close(owner);
    ckpt_manifest_free(&manifest);
}

static const char *directory(void)
{
    return getenv("D");
}

// Changes one byte of a file below the directory.
static void flip(const char *name, long offset)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory(), name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* ------------------------------------------------------------------ tests */

static void test_hostile_command_lines(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "nothing",
        "--nothing",
        "list",
        "list a b",
        "list ''",
        "list --keep 3 a",
        "inspect --dry-run a",
        "diff a",
        "diff a b c",
        "verify",
        "prune a",
        "prune --keep 0 a",
        "prune --keep -1 a",
        "prune --keep 9007199254740993 a",
        "prune --keep",
        "prune --keep=1 --keep-every 1x a",
        "list --json=1 a",
        "list --color blue a",
        "list a/step-00000050",
        "verify --all a/step-00000050/",
        "prune --keep 1 step-00000050",
        "inspect $(printf '%05000d' 0)",
        "list $(printf '%03500d' 0)",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(64, wrong[i], "zero-ckpt: ");
    expect(0, "--help", "usage: ");
    expect(0, "list --help", "usage: ");
    expect(0, "--version", "zero-ckpt ");
    expect(74, "--help 2>&1 >/dev/full #", "standard output");
}

static void test_nothing_there(void **state)
{
    (void)state;
    static const char *const commands[] = {"inspect $D", "verify $D", "diff $D $D",
                                           "inspect $D/step-00000050"};
    expect(66, "list $D", "No such file");
    expect(66, "prune --keep 1 $D", "No such file");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect(66, commands[i], "zero-ckpt: ");
    assert_true(temporary_folder(&temporary, "d"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect(66, commands[i], "zero-ckpt: ");
    expect(66, "prune --keep 1 $D", "no checkpoint");
    expect(66, "prune --keep 1 --dry-run $D", "no checkpoint");
    assert_int_equal(access(temporary_path(&temporary, "d/lock"), F_OK), -1); // nor made one
    expect(0, "list $D", "STEP");
    expect(66, "verify --all $D", "there is no checkpoint");
    json_t *root = run_json(0, "list --json $D", "zero-ckpt-list");
    assert_int_equal(json_array_size(json_object_get(root, "checkpoints")), 0);
    json_decref(root);
    expect(74, "list /dev/null", "zero-ckpt: ");
    if (geteuid() != 0) { // root may read anything
        assert_int_equal(chmod(directory(), 0), 0);
        expect(74, "list $D", "Permission denied");
        assert_int_equal(chmod(directory(), 0700), 0);
    }
}

static void test_list_and_inspect(void **state)
{
    (void)state;
    save(directory(), 50, 2, "a\tname\033[2J\nof it", 8);
    save(directory(), 100, 1, NULL, 8);
    assert_true(temporary_folder(&temporary, "d/saving-00000150"));
    assert_true(temporary_folder(&temporary, "d/step-00000160"));
    expect(0, "list $D", "unfinished");
    assert_null(strchr(output, '\033'));
    expect(0, "list --color always $D", "\033[33m");
    json_t *root = run_json(0, "list $D --json", "zero-ckpt-list");
    json_t *list = json_object_get(root, "checkpoints");
    static const char *const states[] = {"whole", "whole", "unfinished", "unfinished"};
    static const int steps[] = {50, 100, 150, 160};
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *one = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(one, "state")), states[i]);
        assert_int_equal(json_integer_value(json_object_get(one, "step")), steps[i]);
    }
    json_decref(root);
    // Nothing of a name moves a cursor or breaks a line; JSON has it as it is.
    expect(0, "inspect $D/step-00000050/", "a?name?[2J?of it\n");
    root = run_json(0, "inspect --json $D/step-00000050", "zero-ckpt-inspect");
    json_t *tensor = json_array_get(json_object_get(root, "tensors"), 0);
    assert_string_equal(json_string_value(json_object_get(tensor, "name")),
                        "a\tname\033[2J\nof it");
    assert_true(json_integer_value(json_object_get(tensor, "stored_bytes")) > 0);
    assert_int_equal(json_array_size(json_object_get(root, "shards")), 2);
    json_decref(root);
    expect(0, "inspect $D", "step-00000100");
}

static void test_damage(void **state)
{
    (void)state;
    save(directory(), 50, 2, NULL, 8);
    save(directory(), 100, 2, NULL, 8);
    expect(0, "verify --all $D", "whole");
    // Of the header, of the first block, of the file's last byte.
    static const struct {
        const char *shard;
        long offset;
    } flips[] = {{"00000", 9}, {"00001", 4096}, {"00001", -1}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        char name[64];
        snprintf(name, sizeof name, "d/step-00000100/shard-%s.zst", flips[i].shard);
        struct stat status;
        assert_int_equal(stat(temporary_path(&temporary, name), &status), 0);
        const long offset = flips[i].offset < 0 ? (long)status.st_size - 1 : flips[i].offset;
        flip(name + 2, offset);
        snprintf(name, sizeof name, "shard-%s.zst", flips[i].shard);
        expect(1, "verify $D", name);
        json_t *root = run_json(1, "verify --all --json $D", "zero-ckpt-verify");
        json_t *both = json_object_get(root, "checkpoints");
        assert_int_equal(json_array_size(json_object_get(json_array_get(both, 0), "damage")), 0);
        assert_int_equal(json_array_size(json_object_get(json_array_get(both, 1), "damage")), 1);
        json_decref(root);
        snprintf(name, sizeof name, "step-00000100/shard-%s.zst", flips[i].shard);
        flip(name, offset);
    }
    assert_int_equal(remove(temporary_path(&temporary, "d/step-00000050/shard-00001.zst")), 0);
    expect(1, "list $D", "damaged: ");
    expect(1, "inspect $D/step-00000050", "shard-00001.zst");
    json_decref(run_json(1, "inspect --json $D/step-00000050", "zero-ckpt-inspect"));
    flip("step-00000100/manifest.json", 20);
    expect(1, "verify $D", "manifest.json");
    expect(1, "list $D", "manifest.json");
    expect(65, "inspect $D", "manifest.json");
    expect(65, "diff $D $D/step-00000050", "manifest.json");
    expect(65, "prune --keep 1 $D", "manifest.json");
    expect(1, "list $D", "50  ");
}

static void test_diff(void **state)
{
    (void)state;
    save(directory(), 50, 2, NULL, 8);
    save(temporary_path(&temporary, "same"), 50, 1, NULL, 8);
    save(temporary_path(&temporary, "other"), 60, 2, "renamed", 4);
    expect(0, "diff $D $D/../same", "the same state");
    expect(1, "diff $D $D/../other", "renamed");
    json_t *root = run_json(1, "diff --json $D $D/../other", "zero-ckpt-diff");
    assert_true(json_is_false(json_object_get(root, "same")));
    static const char *const differ[] = {"step", "micro_batches", "tensor", "tensor",
                                         "fingerprint"};
    json_t *list = json_object_get(root, "differences");
    assert_int_equal(json_array_size(list), 5);
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, i), "what")),
                            differ[i]);
    json_decref(root);
}

static void test_prune(void **state)
{
    (void)state;
    for (uint64_t step = 10; step <= 50; step += 10)
        save(directory(), step, 1, NULL, 8);
    assert_true(temporary_folder(&temporary, "d/saving-00000060"));
    expect(0, "prune --keep 2 --keep-every 20 --dry-run $D", "would remove step-00000010\n");
    json_t *root = run_json(0, "list --json $D", "zero-ckpt-list");
    assert_int_equal(json_array_size(json_object_get(root, "checkpoints")), 6);
    json_decref(root);

    struct ckpt_directory *job;
    assert_int_equal(ckpt_directory_open(&job, &ckpt_store_posix, directory(), 1, &failure),
                     ZERO_OK);
    expect(75, "prune --keep 2 $D", "another job");
    ckpt_directory_close(job);
    struct ckpt_file *reader;
    assert_int_equal(ckpt_reader_enter(&ckpt_store_posix, directory(), &reader, &failure), ZERO_OK);
    expect(75, "prune --keep 2 $D", "being read");
    ckpt_reader_leave(&ckpt_store_posix, &reader);

    root = run_json(0, "prune --keep 2 --keep-every 20 --json $D", "zero-ckpt-prune");
    assert_int_equal(json_array_size(json_object_get(root, "removed")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "kept")), 3);
    json_decref(root);
    expect(0, "prune --keep 1 $D", "removed step-00000040\n");
    expect(0, "prune --keep 1 $D", "");
    assert_string_equal(output, "");
    expect(0, "verify --all $D", "step-00000050: whole");
}

// A job that went back: what it has saved since is newer, whatever the step.
static void test_order(void **state)
{
    (void)state;
    static const uint64_t saved[] = {10, 30, 40, 20, 30};
    static const int steps[] = {10, 40, 20, 30}, sequences[] = {1, 3, 4, 5};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
        save(directory(), saved[i], 1, NULL, 8);
    json_t *root = run_json(0, "list --json $D", "zero-ckpt-list");
    json_t *list = json_object_get(root, "checkpoints");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *one = json_array_get(list, i);
        assert_int_equal(json_integer_value(json_object_get(one, "step")), steps[i]);
        assert_int_equal(json_integer_value(json_object_get(one, "sequence")), sequences[i]);
        assert_int_equal(json_is_true(json_object_get(one, "newest")), i == 3);
    }
    json_decref(root);
    expect(0, "list $D", "whole, the newest");
    expect(0, "inspect $D", "step-00000030");
    // Without its shard it is none any more.
    assert_int_equal(remove(temporary_path(&temporary, "d/step-00000030/shard-00000.zst")), 0);
    root = run_json(1, "list --json $D", "zero-ckpt-list");
    json_t *third = json_array_get(json_object_get(root, "checkpoints"), 2);
    assert_true(json_is_true(json_object_get(third, "newest")));
    json_decref(root);
    save(directory(), 30, 1, NULL, 8);
    expect(0, "prune --keep 2 $D", "removed step-00000010\nremoved step-00000040\n");
    expect(0, "verify --all $D", "step-00000030: whole");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hostile_command_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_list_and_inspect, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_diff, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prune, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
    };
    if (argc != 2)
        return 2;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
