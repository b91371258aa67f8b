// Files that an earlier commit has written, tests/data/a449ca1: its checkpoints, recovery points
// and files of safetensors give the fingerprints that it gave, here and after further steps.
#include "tests/data/a449ca1/job.h"
#include "tests/numerics/gpt2_command.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

enum { PATH_BYTES = 512, MOST_FILE = 2 << 20, DIGITS = 32 };

static const char *tool, *reader, *data; // zero-ckpt, tile_file_reader, and the directory of files
static struct temporary directory;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

/* ------------------------------------------------------------------ what was kept */

// Finds the fingerprint of a job that was trained, or began with imported weights, after so many
// steps.
static void expected_fingerprint(enum old_kind kind, const char *how, uint64_t step,
                                 char text[DIGITS + 1])
{
    char path[PATH_BYTES], line[128], wanted[64];
    snprintf(path, sizeof path, "%s/fingerprints", data);
    const int length =
        snprintf(wanted, sizeof wanted, "%s %s %d ", old_names[kind], how, (int)step);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[0] = '\0';
    while (fgets(line, sizeof line, file))
        if (strncmp(line, wanted, (size_t)length) == 0)
            snprintf(text, DIGITS + 1, "%.32s", line + length);
    fclose(file);
    assert_int_equal(strlen(text), DIGITS);
}

static size_t read_file(const char *path, void *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, MOST_FILE, file);
    assert_in_range(count, 1, MOST_FILE - 1);
    fclose(file);
    return count;
}

// Unpacks NAME.zst of a job to the test's directory.
static void unpack(enum old_kind kind, const char *name)
{
    char path[PATH_BYTES];
    unsigned char *packed = malloc(MOST_FILE), *bytes = malloc(MOST_FILE);
    assert_true(packed && bytes);
    snprintf(path, sizeof path, "%s/%s/%s.zst", data, old_names[kind], name);
    const size_t count = ZSTD_decompress(bytes, MOST_FILE, packed, read_file(path, packed));
    assert_false(ZSTD_isError(count));
    FILE *file = fopen(temporary_path(&directory, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    free(packed);
    free(bytes);
}

// Unpacks the tile files of all ranks, under the names that they had.
static void unpack_tiles(enum old_kind kind)
{
    static const char *const job[OLD_KINDS] = {"acff05384483e009", "d9577b9eab15bc75"};
    char name[64];
    for (int rank = 0; rank < old_world(kind); rank++) {
        snprintf(name, sizeof name, "zero-%s-rank-%d.slots", job[kind], rank);
        unpack(kind, name);
    }
}

/* ------------------------------------------------------------------ jobs that go on from it */

// How the state comes into a job.
enum source { LOADED, RESUMED, RECOVERED, IMPORTED };

struct job {
    enum old_kind kind;
    enum source source;
    const char *path;
    int stage; // -1: that of the job before
    bool in_files, params, other_way;
    uint64_t step;          // that it begins with,
    char first[DIGITS + 1]; // its fingerprint,
    uint64_t last_step;     // and the one of the last step
    char last[DIGITS + 1];
};

static void configure(zero_config *config, const struct job *job)
{
    old_configure(job->kind, config);
    if (job->stage >= 0)
        config->stage = job->stage;
    if (!job->in_files)
        return;
    old_offload(job->kind, config, directory.directory);
    if (job->params) {
        config->gather = "copy";
        config->offload_params = "nvme";
        config->offload_grads = "nvme";
    }
    if (job->other_way) {
        config->compress = job->kind == OLD_ADAMW ? "on" : "off";
        config->io = "threads";
    }
}

static bool take(struct team_rank *rank, const struct job *job, const struct old_blobs *blobs)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (job->source == IMPORTED) {
        TEAM_OK(rank, zero_import(rank->z, job->path, NULL));
        return true;
    }
    if (job->source == LOADED)
        TEAM_OK(rank, zero_load(rank->z, job->path, NULL, &loaded));
    else
        TEAM_OK(rank, zero_resume(rank->z, job->path, NULL, &loaded));
    TEAM_CHECK(loaded.step == job->step);
    TEAM_CHECK(loaded.recovered == (job->source == RECOVERED));
    TEAM_CHECK(old_blobs_are(blobs, job->step, rank->rank, rank->world == old_world(job->kind)));
    return true;
}

static bool is_state(struct team_rank *rank, const char *what, const char *expected)
{
    char text[DIGITS + 1];
    TEAM_OK(rank, old_fingerprint(rank->z, text));
    if (strcmp(text, expected) != 0)
        fprintf(stderr, "rank %d of %d: %s has the fingerprint %s, not %s\n", rank->rank,
                rank->world, what, text, expected);
    return strcmp(text, expected) == 0;
}

static bool go_on(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct old_blobs blobs;
    configure(&rank->config, job);
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, old_commit(rank->z, job->kind, true, &blobs));
    if (!take(rank, job, &blobs) || !is_state(rank, "what was read", job->first))
        return false;
    TEAM_OK(rank, old_train(rank->z, job->kind, &blobs, job->step, job->last_step));
    return is_state(rank, "the last step", job->last);
}

static void run(struct job *job, int world)
{
    const char *how = job->source == IMPORTED ? "imported" : "trained";
    expected_fingerprint(job->kind, how, job->step, job->first);
    expected_fingerprint(job->kind, how, job->last_step, job->last);
    if (!team_run(team_threads(world), world, go_on, job))
        fail_msg("%s, %d ranks, stage %d, %s", old_names[job->kind], world, job->stage,
                 job->in_files ? "in files" : "in memory");
}

/* ------------------------------------------------------------------ checkpoints */

// At any number of ranks and stage, with the state in memory, on NVMe, or all of the model there.
static void load_everywhere(enum old_kind kind, const char *path)
{
    int cases = (int)kind;
    for (int world = 1; world <= 4; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int tier = 0; tier < 3; tier++) {
                if (!test_takes(cases++ + stage))
                    continue;
                struct job job = {.kind = kind,
                                  .source = LOADED,
                                  .path = path,
                                  .stage = stage,
                                  .in_files = tier > 0,
                                  .params = tier > 1,
                                  .step = OLD_SAVED_STEP,
                                  .last_step = OLD_LAST_STEP};
                run(&job, world);
            }
}

static void checkpoints_load(void **state)
{
    (void)state;
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s/step-00000003", data, old_names[kind]);
        load_everywhere(kind, path);
    }
}

static void jobs_resume_from_checkpoints(void **state)
{
    (void)state;
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", data, old_names[kind]);
        struct job job = {.kind = kind,
                          .source = RESUMED,
                          .path = path,
                          .stage = -1,
                          .step = OLD_SAVED_STEP,
                          .last_step = OLD_LAST_STEP};
        run(&job, old_world(kind));
    }
}

/* ------------------------------------------------------------------ recovery points */

static void recovery_points_come_back(void **state)
{
    (void)state;
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++)
        for (int way = 0; way < 4; way++) {
            struct job job = {.kind = kind,
                              .source = RECOVERED,
                              .stage = -1,
                              .in_files = true,
                              .params = way % 2,
                              .other_way = way / 2,
                              .step = OLD_RECORDED_STEP,
                              .last_step = OLD_LAST_STEP};
            unpack_tiles(kind);
            run(&job, old_world(kind));
            assert_int_equal(temporary_entries(&directory), 0); // it has ended well
        }
}

static bool leave_a_point(struct team_rank *rank, void *user)
{
    const enum old_kind kind = *(const enum old_kind *)user;
    struct old_blobs blobs;
    old_configure(kind, &rank->config);
    old_offload(kind, &rank->config, temporary_path(&directory, old_names[kind]));
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, old_commit(rank->z, kind, false, &blobs));
    TEAM_OK(rank, old_train(rank->z, kind, &blobs, 0, OLD_RECORDED_STEP));
    return team_break_off(rank);
}

// Tile files are still what offload/FORMAT.md says, by which the reader was written.
static void tile_files_are_what_their_format_says(void **state)
{
    (void)state;
    char output[COMMAND_OUTPUT_BYTES];
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++) {
        const int world = old_world(kind);
        assert_true(temporary_folder(&directory, old_names[kind]));
        assert_true(team_run(team_threads(world), world, leave_a_point, &kind));
    }
    const int status = command_run(output, "%s %s %s", reader, directory.directory, data);
    if (status)
        fail_msg("status %d: %s", status, output);
}

/* ------------------------------------------------------------------ safetensors */

static void imported_states_load(void **state)
{
    (void)state;
    char output[COMMAND_OUTPUT_BYTES];
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++) {
        unpack(kind, "state.safetensors");
        const int status = command_run(output, "%s import --force %s %s", tool,
                                       temporary_path(&directory, "state.safetensors"),
                                       temporary_path(&directory, old_names[kind]));
        if (status)
            fail_msg("zero-ckpt import: status %d: %s", status, output);
        struct job job = {.kind = kind,
                          .source = RESUMED,
                          .path = temporary_path(&directory, old_names[kind]),
                          .stage = 3,
                          .step = OLD_SAVED_STEP,
                          .last_step = OLD_LAST_STEP};
        for (int world = 1; world <= 3; world++)
            run(&job, world);
    }
}

static void weights_are_imported(void **state)
{
    (void)state;
    for (enum old_kind kind = 0; kind < OLD_KINDS; kind++) {
        unpack(kind, "weights.safetensors");
        for (int world = 1; world <= 3; world++)
            for (int in_files = 0; in_files < 2; in_files++) {
                struct job job = {.kind = kind,
                                  .source = IMPORTED,
                                  .path = temporary_path(&directory, "weights.safetensors"),
                                  .stage = world,
                                  .in_files = in_files,
                                  .last_step = OLD_SAVED_STEP};
                run(&job, world);
            }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(checkpoints_load),
        TEST(jobs_resume_from_checkpoints),
        TEST(recovery_points_come_back),
        TEST(imported_states_load),
        TEST(tile_files_are_what_their_format_says),
        TEST(weights_are_imported),
    };
    if (argc != 4) {
        fprintf(stderr, "old_files ZERO-CKPT TILE-FILE-READER DATA\n");
        return 2;
    }
    tool = argv[1];
    reader = argv[2];
    data = argv[3];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
