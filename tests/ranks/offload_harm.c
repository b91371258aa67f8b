// State in files that can't be had, or is damaged, or another job's; and disks that fail: what is
// refused, and what is left to come back at.
#include "base/arena.h"
#include "base/fault.h"
#include "base/hash.h"
#include "checkpoint/manifest/manifest.h"
#include "tests/ranks/offload_job.h"
#include "tests/ranks/saved.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, TILES_AT = 160000 };

static _Atomic int files_told;

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    (void)user;
    (void)level;
    (void)component;
    files_told += strstr(message, "1 file,") != NULL;
}

static bool find_nothing(struct team_rank *rank, void *user)
{
    const struct offload_job *job = user;
    const struct toy toy = offload_toy_of(job);
    rank->config.stage = job->stage;
    rank->config.persist_numel = job->persist;
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    offload_into_files(&rank->config);
    if (job->tile > 0)
        rank->config.tile_bytes = job->tile;
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return true;
}

// Where tensors lie elsewhere in tiles of the same sizes, they are not taken for each other, and it
// is told that there is something to come back at.
static void another_layout_is_another_job(void **state)
{
    (void)state;
    struct offload_job first = {.stage = 3, .steps = STEPS, .dies = true, .tile = 1 << 20};
    struct offload_job other = first;
    first.persist = 1023;
    other.persist = ZERO_OFF;
    files_told = 0;
    offload_run(1, &first);
    assert_true(team_run("self", 1, find_nothing, &other));
    assert_int_equal(files_told, 1);
}

static bool register_with_tiles(struct team_rank *rank, const struct offload_job *job,
                                int64_t bytes)
{
    const struct toy toy = offload_toy_of(job);
    rank->config.stage = job->stage;
    rank->config.micro_batches = toy.micro_batches;
    offload_into_files(&rank->config);
    if (bytes)
        rank->config.tile_bytes = bytes;
    return team_open(rank) && toy_register(rank, &toy);
}

// A step is not lost because the job begins with other tiles.
static bool commit_with_other_tiles(struct team_rank *rank, void *user)
{
    if (!register_with_tiles(rank, user, 2 * 65536))
        return false;
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_STATE, "a step of the same job, cut into");
    return true;
}

static void other_tiles_are_refused(void **state)
{
    (void)state;
    struct offload_job job = {.stage = 2, .steps = STEPS, .dies = true};
    offload_run(2, &job);
    assert_true(team_run(team_threads(2), 2, commit_with_other_tiles, &job));
    job.dies = false;
    job.comes_back = true;
    job.steps = 0;
    job.expected = STEPS;
    job.recovered = 1;
    offload_run(2, &job);
}

// A job that begins anew writes over what the one before has left: where it ends in the middle of
// that, neither of them has left anything.
static bool fail_in_the_first_step(struct team_rank *rank, void *user)
{
    const struct toy toy = offload_toy_of(user);
    rank->config.stage = 1;
    offload_into_files(&rank->config);
    if (!toy_open(rank, &toy) || !saved_fault(rank, "offload.write@3"))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
    TEAM_CHECK(toy_update(rank, &toy) == ZERO_E_IO);
    return true;
}

static void what_is_half_written_over_is_not_found(void **state)
{
    (void)state;
    struct offload_job first = {.stage = 1, .steps = STEPS, .dies = true};
    offload_run(1, &first);
    assert_true(team_run("self", 1, fail_in_the_first_step, &first));
    base_fault_set(NULL, NULL);
    assert_true(team_run("self", 1, find_nothing, &first));
    assert_int_equal(offload_files_left(), 0);
}

static int open_file_of_rank_0(void)
{
    DIR *entries = opendir(offload_directory.directory);
    struct dirent *entry;
    char path[512] = "";
    while ((entry = readdir(entries)))
        if (strstr(entry->d_name, "-rank-0.slots"))
            snprintf(path, sizeof path, "%s/%s", offload_directory.directory, entry->d_name);
    closedir(entries);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

// Changes a byte of every page of rank 0's tiles.
static void damage(void)
{
    const int fd = open_file_of_rank_0();
    const off_t end = lseek(fd, 0, SEEK_END);
    assert_true(end > TILES_AT);
    for (off_t at = TILES_AT; at < end; at += 4096)
        assert_int_equal(pwrite(fd, "?", 1, at + 1000), 1);
    close(fd);
}

// Rank 0's records get another number, and the checksum that belongs to it.
static int renumber(uint64_t number)
{
    enum { TILE_COUNT = 12, NUMBER = 48, PAYLOAD = 56, CHECKSUM = 64, HEAD = 72, ENTRY = 24 };
    static unsigned char record[1 << 16];
    const int fd = open_file_of_rank_0();
    int count = 0;
    for (off_t at = 0; at < TILES_AT; at += 4096) {
        uint32_t tiles;
        uint64_t payload;
        if (pread(fd, record, sizeof record, at) < HEAD || memcmp(record, "zeroslot", 8) != 0)
            continue;
        memcpy(&tiles, record + TILE_COUNT, sizeof tiles);
        memcpy(&payload, record + PAYLOAD, sizeof payload);
        const size_t size = HEAD + payload + (size_t)tiles * ENTRY;
        assert_true(size <= sizeof record);
        memcpy(record + NUMBER, &number, sizeof number);
        memset(record + CHECKSUM, 0, 8);
        const uint64_t sum = base_hash64(record, size, 0);
        memcpy(record + CHECKSUM, &sum, sizeof sum);
        assert_int_equal(pwrite(fd, record, size, at), size);
        count++;
    }
    close(fd);
    return count;
}

static bool refuse_the_number(struct team_rank *rank, void *user)
{
    if (!register_with_tiles(rank, user, 0))
        return false;
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_CORRUPT, "a number that no job reaches");
    return true;
}

// One rank's: the job could not count on from there, so no rank begins.
static void a_number_that_no_job_reaches_is_refused(void **state)
{
    (void)state;
    const uint64_t numbers[] = {UINT64_MAX - 1, UINT64_MAX - 3, UINT64_C(1) << 63};
    struct offload_job job = {.stage = 1, .steps = STEPS, .dies = true};
    offload_run(2, &job);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_int_equal(renumber(numbers[i]), 2);
        assert_true(team_run(team_threads(2), 2, refuse_the_number, &job));
        assert_int_equal(offload_files_left(), 2);
    }
}

// A checkpoint takes the place of a point that is damaged; without one the damage is named.
static void damage_is_found(void **state)
{
    (void)state;
    struct offload_job whole = {.stage = 1, .steps = 2 * STEPS, .in_memory = true};
    struct offload_job first = {.stage = 1, .steps = STEPS, .saves = true, .dies = true};
    struct offload_job again = {.stage = 1, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    again.damaged = 1;
    again.params = true; // some of which were made of the point, and are of the checkpoint then
    offload_run(1, &whole);
    offload_run(1, &first);
    damage();
    offload_run_to(&whole, 1, &again);
}

static bool resume_damaged(struct team_rank *rank, void *user)
{
    (void)user;
    rank->config.stage = 1;
    offload_into_files(&rank->config);
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = 1});
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_E_CORRUPT,
               "is not what was written there");
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_CORRUPT); // values have changed
    return true;
}

static void damage_without_a_checkpoint_is_named(void **state)
{
    (void)state;
    struct offload_job first = {.stage = 1, .steps = STEPS, .dies = true};
    offload_run(1, &first);
    damage();
    assert_true(team_run("self", 1, resume_damaged, NULL));
}

// Makes the sum of the first tensor of what was saved at step 2 another one.
static void change_a_sum(void)
{
    char path[512], *text;
    struct ckpt_manifest manifest;
    struct base_error error = {.result = ZERO_OK};
    static char old[1 << 16];
    size_t length;
    snprintf(path, sizeof path, "%s/saved/step-00000002/manifest.json",
             offload_directory.directory);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    length = fread(old, 1, sizeof old, file);
    assert_int_equal(ckpt_manifest_parse(&manifest, old, length, path, &error), ZERO_OK);
    manifest.tensors[0].sum.low ^= 1;
    assert_int_equal(ckpt_manifest_format(&manifest, &text, &length, &error), ZERO_OK);
    rewind(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    base_free(text);
    ckpt_manifest_free(&manifest);
}

static bool load_another_sum(struct team_rank *rank, void *user)
{
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = 1});
    (void)user;
    rank->config.stage = 1;
    offload_into_files(&rank->config);
    if (!toy_open(rank, &toy))
        return false;
    const char *path = temporary_path(&offload_directory, "saved/step-00000002");
    TEAM_FAILS(rank, zero_load(rank->z, path, NULL, NULL), ZERO_E_CORRUPT, "is not what was saved");
    team_close(rank);
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return true;
}

// What was loaded and is found to be something else is nothing to come back at.
static void a_wrong_state_is_no_point(void **state)
{
    (void)state;
    struct offload_job saves = {.stage = 1, .steps = STEPS, .saves = true, .in_memory = true};
    offload_run(1, &saves);
    change_a_sum();
    assert_true(team_run("self", 1, load_another_sum, NULL));
}

/** How a disk fails in a step, and what the error says. */
struct failing_disk {
    int stage;
    const char *fault, *says;
};

// All ranks are told, wherever in the step they meet it, and the step before is there.
static bool fail_in_a_step(struct team_rank *rank, void *user)
{
    const struct failing_disk *disk = user;
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = disk->stage});
    rank->config.stage = disk->stage;
    offload_into_files(&rank->config);
    rank->config.host_bytes = disk->stage < 2 ? 2 << 20 : 0;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS) || !saved_fault(rank, disk->fault))
        return false;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            r = zero_barrier(rank->z);
    if (!r)
        r = toy_update(rank, &toy);
    TEAM_CHECK(r == ZERO_E_IO || r == ZERO_E_PEER || r == ZERO_OK);
    // A rank that has not met it in the step does in the next call.
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_IO);
    TEAM_CHECK(strstr(zero_last_error(rank->z), disk->says));
    return true;
}

// The same of the file of working copies: a read behind a micro-batch, and in a step the n-th
// write, of state or of what was made of it.
struct failure {
    int stage, write; // 0: a read
    bool failed;
};

static bool fail_with_params(struct team_rank *rank, void *user)
{
    struct failure *failure = user;
    const struct toy toy = offload_toy_of(&(struct offload_job){.stage = failure->stage});
    char fault[64] = "offload.read@2";
    rank->config.stage = failure->stage;
    offload_into_files(&rank->config);
    rank->config.offload_params = "nvme";
    rank->config.offload_grads = "host";
    if (failure->write)
        snprintf(fault, sizeof fault, "offload.write@%d", failure->write);
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS) || !saved_fault(rank, fault))
        return false;
    zero_result r = ZERO_OK;
    if (!failure->write)
        for (zero_unit unit = 0; !r && unit < toy.unit_count; unit++)
            r = zero_gather(rank->z, unit, NULL) ? ZERO_E_IO : zero_release(rank->z, unit, NULL);
    for (int i = 0; failure->write && i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
    r = failure->write ? toy_update(rank, &toy) : r;
    const zero_result told = zero_barrier(rank->z);
    if (!failure->write || told)
        TEAM_CHECK(told == ZERO_E_IO && strstr(zero_last_error(rank->z), ": tile "));
    if (rank->rank == 0)
        failure->failed = told != ZERO_OK;
    return told != ZERO_OK || team_break_off(rank);
}

static void a_failing_file_of_parameters_does_too(void **state)
{
    (void)state;
    struct offload_job whole = {.stage = 2, .steps = 2 * STEPS, .in_memory = true};
    offload_run(2, &whole);
    struct failure failure = {.stage = 2, .failed = true};
    for (; failure.failed; failure.write += 1 + failure.write / 3) {
        struct offload_job again = {.stage = failure.stage, .comes_back = true, .params = true};
        assert_true(team_run("threads", 2, fail_with_params, &failure));
        base_fault_set(NULL, NULL);
        again.expected = STEPS + !failure.failed;
        again.steps = 2 * STEPS - (int)again.expected;
        again.recovered = 1;
        offload_run_to(&whole, 2, &again);
    }
    assert_true(failure.write > 3);
}

static void a_failing_disk_leaves_the_step_before(void **state)
{
    (void)state;
    // The state's tiles; sums of the first micro-batch, and in the next ones; and for the update.
    static const struct failing_disk disks[] = {
        {.stage = 1, .fault = "offload.write@1", .says = "-rank-"},
        {.stage = 2, .fault = "offload.write@1", .says = "gradient sums of unit"},
        {.stage = 3, .fault = "offload.read@1", .says = "gradient sums of unit"},
        {.stage = 2, .fault = "offload.read@16", .says = ": tile "},
    };
    for (size_t i = 0; i < sizeof disks / sizeof *disks; i++) {
        struct failing_disk disk = disks[i];
        struct offload_job whole = {.stage = disk.stage, .steps = 2 * STEPS, .in_memory = true};
        struct offload_job again = {.stage = disk.stage, .steps = STEPS, .comes_back = true};
        again.expected = STEPS;
        again.recovered = 1;
        offload_run(2, &whole);
        assert_true(team_run("threads", 2, fail_in_a_step, &disk));
        base_fault_set(NULL, NULL);
        offload_run_to(&whole, 2, &again);
    }
}

/** What is wrong with a configuration, and what the error says. */
struct wrong {
    int world;
    const char *directory;
    int64_t host_bytes;
    const char *fault;
    zero_result result;
    const char *says;
};

static bool commit_wrong(struct team_rank *rank, void *user)
{
    const struct wrong *wrong = user;
    rank->config.stage = 1;
    offload_into_files(&rank->config);
    if (wrong->directory)
        rank->config.nvme_dir = wrong->directory;
    rank->config.host_bytes = wrong->host_bytes;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_FAILS(rank, zero_commit(rank->z), wrong->result, wrong->says);
    return true;
}

static void what_cannot_be_had_is_an_error(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {.world = 2,
         .directory = "/nonexistent/x",
         .result = ZERO_E_IO,
         .says = "/nonexistent/x/zero-"},
        {.world = 1,
         .host_bytes = 100000,
         .result = ZERO_E_INVALID,
         .says = "2 tiles, with compress=off, take 2097152 bytes"},
        {.world = 2,
         .fault = "slots.allocate:enospc@1",
         .result = ZERO_E_LIMIT,
         .says = "bytes are needed"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct wrong wrong = wrongs[i];
        base_fault_set(wrong.fault, NULL);
        assert_true(team_run(team_threads(wrong.world), wrong.world, commit_wrong, &wrong));
        base_fault_set(NULL, NULL);
        assert_int_equal(offload_files_left(), 0);
    }
}

// Two jobs of one kind in one directory: the second is refused, and the first knows nothing of it.
static bool hold_and_train(struct team_rank *rank, void *user)
{
    (void)user;
    rank->config.stage = 1;
    offload_into_files(&rank->config);
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    struct team_rank second = {.rank = 0, .world = 1, .config = rank->config};
    if (!team_open(&second) || !toy_register(&second, &toy_odd))
        return false;
    TEAM_FAILS(&second, zero_commit(second.z), ZERO_E_STATE, "another process keeps its state");
    team_close(&second);
    return toy_train(rank, &toy_odd, 1);
}

static void a_second_job_is_refused(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, hold_and_train, NULL));
    assert_int_equal(offload_files_left(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, offload_set_up, offload_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(another_layout_is_another_job),
        TEST(other_tiles_are_refused),
        TEST(a_number_that_no_job_reaches_is_refused),
        TEST(what_is_half_written_over_is_not_found),
        TEST(damage_is_found),
        TEST(a_wrong_state_is_no_point),
        TEST(damage_without_a_checkpoint_is_named),
        TEST(a_failing_disk_leaves_the_step_before),
        TEST(a_failing_file_of_parameters_does_too),
        TEST(what_cannot_be_had_is_an_error),
        TEST(a_second_job_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
