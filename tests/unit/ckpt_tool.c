// zero-ckpt as a command, on checkpoints that are whole, damaged, unfinished, or not there.
#include "tests/unit/ckpt_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// Changes one byte of a file below the directory.
static void flip(const char *name, long offset)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", tool_directory(), name);
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
        "diff --state a b",
        "export a",
        "export a b --dtype f64",
        "export a b --dtype",
        "export a b --like c",
        "export a b --step 3",
        "export '' b",
        "import a",
        "import a b --step -1",
        "import a b --tensor w",
        "import a b --state",
        "list --force a",
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
        tool_expect(64, wrong[i], "zero-ckpt: ");
    tool_expect(0, "--help", "usage: ");
    tool_expect(0, "list --help", "usage: ");
    tool_expect(0, "--version", "zero-ckpt ");
    tool_expect(74, "--help 2>&1 >/dev/full #", "standard output");
}

static void test_nothing_there(void **state)
{
    (void)state;
    static const char *const commands[] = {"inspect $D", "verify $D", "diff $D $D",
                                           "inspect $D/step-00000050"};
    tool_expect(66, "list $D", "No such file");
    tool_expect(66, "prune --keep 1 $D", "No such file");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        tool_expect(66, commands[i], "zero-ckpt: ");
    assert_true(temporary_folder(&tool_temporary, "d"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        tool_expect(66, commands[i], "zero-ckpt: ");
    tool_expect(66, "prune --keep 1 $D", "no checkpoint");
    tool_expect(66, "prune --keep 1 --dry-run $D", "no checkpoint");
    assert_int_equal(access(temporary_path(&tool_temporary, "d/lock"), F_OK), -1); // nor made one
    tool_expect(0, "list $D", "STEP");
    tool_expect(66, "verify --all $D", "there is no checkpoint");
    json_t *root = tool_run_json(0, "list --json $D", "zero-ckpt-list");
    assert_int_equal(json_array_size(json_object_get(root, "checkpoints")), 0);
    json_decref(root);
    tool_expect(74, "list /dev/null", "zero-ckpt: ");
    if (geteuid() != 0) { // root may read anything
        assert_int_equal(chmod(tool_directory(), 0), 0);
        tool_expect(74, "list $D", "Permission denied");
        assert_int_equal(chmod(tool_directory(), 0700), 0);
    }
}

static void test_list_and_inspect(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, "a\tname\033[2J\nof it", 8);
    tool_save(tool_directory(), SAMPLE_SMALL, 100, 1, NULL, 8);
    assert_true(temporary_folder(&tool_temporary, "d/saving-00000150"));
    assert_true(temporary_folder(&tool_temporary, "d/step-00000160"));
    tool_expect(0, "list $D", "unfinished");
    assert_null(strchr(tool_output, '\033'));
    tool_expect(0, "list --color always $D", "\033[33m");
    json_t *root = tool_run_json(0, "list $D --json", "zero-ckpt-list");
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
    tool_expect(0, "inspect $D/step-00000050/", "a?name?[2J?of it\n");
    root = tool_run_json(0, "inspect --json $D/step-00000050", "zero-ckpt-inspect");
    json_t *tensor = json_array_get(json_object_get(root, "tensors"), 0);
    assert_string_equal(json_string_value(json_object_get(tensor, "name")),
                        "a\tname\033[2J\nof it");
    assert_true(json_integer_value(json_object_get(tensor, "stored_bytes")) > 0);
    assert_int_equal(json_array_size(json_object_get(root, "shards")), 2);
    json_decref(root);
    tool_expect(0, "inspect $D", "step-00000100");
}

static void test_damage(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_save(tool_directory(), SAMPLE_SMALL, 100, 2, NULL, 8);
    tool_expect(0, "verify --all $D", "whole");
    // Of the header, of the first block, of the file's last byte.
    static const struct {
        const char *shard;
        long offset;
    } flips[] = {{"00000", 9}, {"00001", 4096}, {"00001", -1}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        char name[64];
        snprintf(name, sizeof name, "d/step-00000100/shard-%s.zst", flips[i].shard);
        struct stat status;
        assert_int_equal(stat(temporary_path(&tool_temporary, name), &status), 0);
        const long offset = flips[i].offset < 0 ? (long)status.st_size - 1 : flips[i].offset;
        flip(name + 2, offset);
        snprintf(name, sizeof name, "shard-%s.zst", flips[i].shard);
        tool_expect(1, "verify $D", name);
        json_t *root = tool_run_json(1, "verify --all --json $D", "zero-ckpt-verify");
        json_t *both = json_object_get(root, "checkpoints");
        assert_int_equal(json_array_size(json_object_get(json_array_get(both, 0), "damage")), 0);
        assert_int_equal(json_array_size(json_object_get(json_array_get(both, 1), "damage")), 1);
        json_decref(root);
        snprintf(name, sizeof name, "step-00000100/shard-%s.zst", flips[i].shard);
        flip(name, offset);
    }
    assert_int_equal(remove(temporary_path(&tool_temporary, "d/step-00000050/shard-00001.zst")), 0);
    tool_expect(1, "list $D", "damaged: ");
    tool_expect(1, "inspect $D/step-00000050", "shard-00001.zst");
    json_decref(tool_run_json(1, "inspect --json $D/step-00000050", "zero-ckpt-inspect"));
    flip("step-00000100/manifest.json", 20);
    tool_expect(1, "verify $D", "manifest.json");
    tool_expect(1, "list $D", "manifest.json");
    tool_expect(65, "inspect $D", "manifest.json");
    tool_expect(65, "diff $D $D/step-00000050", "manifest.json");
    tool_expect(65, "prune --keep 1 $D", "manifest.json");
    tool_expect(1, "list $D", "50  ");
}

static void test_diff(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_save(temporary_path(&tool_temporary, "same"), SAMPLE_SMALL, 50, 1, NULL, 8);
    tool_save(temporary_path(&tool_temporary, "other"), SAMPLE_SMALL, 60, 2, "renamed", 4);
    tool_expect(0, "diff $D $D/../same", "the same state");
    tool_expect(1, "diff $D $D/../other", "renamed");
    json_t *root = tool_run_json(1, "diff --json $D $D/../other", "zero-ckpt-diff");
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
        tool_save(tool_directory(), SAMPLE_SMALL, step, 1, NULL, 8);
    assert_true(temporary_folder(&tool_temporary, "d/saving-00000060"));
    tool_expect(0, "prune --keep 2 --keep-every 20 --dry-run $D",
                "would remove step-00000010 of run ");
    json_t *root = tool_run_json(0, "list --json $D", "zero-ckpt-list");
    assert_int_equal(json_array_size(json_object_get(root, "checkpoints")), 6);
    json_decref(root);

    struct ckpt_directory *job;
    assert_int_equal(
        ckpt_directory_open(&job, &ckpt_store_posix, tool_directory(), 1, &tool_failure), ZERO_OK);
    tool_expect(75, "prune --keep 2 $D", "another job");
    ckpt_directory_close(job);
    struct ckpt_file *reader;
    assert_int_equal(ckpt_reader_enter(&ckpt_store_posix, tool_directory(), &reader, &tool_failure),
                     ZERO_OK);
    tool_expect(75, "prune --keep 2 $D", "a process reads");
    ckpt_reader_leave(&ckpt_store_posix, &reader);

    root = tool_run_json(0, "prune --keep 2 --keep-every 20 --json $D", "zero-ckpt-prune");
    assert_int_equal(json_array_size(json_object_get(root, "removed")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "kept")), 3);
    json_decref(root);
    tool_expect(0, "prune --keep 1 $D", "removed step-00000040 of run ");
    tool_expect(0, "prune --keep 1 $D", "");
    assert_string_equal(tool_output, "");
    tool_expect(0, "verify --all $D", "step-00000050: whole");
}

// A job that went back: what it has saved since is newer, whatever the step.
static void test_order(void **state)
{
    (void)state;
    static const uint64_t saved[] = {10, 30, 40, 20, 30};
    static const int steps[] = {10, 40, 20, 30}, sequences[] = {1, 3, 4, 5};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
        tool_save(tool_directory(), SAMPLE_SMALL, saved[i], 1, NULL, 8);
    json_t *root = tool_run_json(0, "list --json $D", "zero-ckpt-list");
    json_t *list = json_object_get(root, "checkpoints");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *one = json_array_get(list, i);
        assert_int_equal(json_integer_value(json_object_get(one, "step")), steps[i]);
        assert_int_equal(json_integer_value(json_object_get(one, "sequence")), sequences[i]);
        assert_int_equal(json_is_true(json_object_get(one, "newest")), i == 3);
    }
    json_decref(root);
    tool_expect(0, "list $D", "whole, the newest");
    tool_expect(0, "inspect $D", "step-00000030");
    // Without its shard it is none any more.
    assert_int_equal(remove(temporary_path(&tool_temporary, "d/step-00000030/shard-00000.zst")), 0);
    root = tool_run_json(1, "list --json $D", "zero-ckpt-list");
    json_t *third = json_array_get(json_object_get(root, "checkpoints"), 2);
    assert_true(json_is_true(json_object_get(third, "newest")));
    json_decref(root);
    tool_save(tool_directory(), SAMPLE_SMALL, 30, 1, NULL, 8);
    tool_expect(0, "prune --keep 2 $D", "removed step-00000010 of run ");
    assert_non_null(strstr(tool_output, "\nremoved step-00000040 of run "));
    tool_expect(0, "verify --all $D", "step-00000030: whole");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hostile_command_lines, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_there, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_list_and_inspect, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_damage, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_diff, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_prune, tool_set_up, tool_tear_down),
        cmocka_unit_test_setup_teardown(test_order, tool_set_up, tool_tear_down),
    };
    if (argc != 2)
        return 2;
    tool_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
