// State in files on a file system that is full, from its last page on page by page until there is
// room: nothing is begun, it is said what is needed and what there is, and nothing is left behind.
// Once the files are there, all the rest may be full: steps, and a job that is back, need no more.
// "memory" or "ext4": the file system.
#include "tests/fault/full_disk.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/off_tiles.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, STEPS = 3, MOST_FILES = 20 };

static struct temporary temporary;
static struct base_error failure;

static void ok(zero_result result)
{
    if (result)
        fail_msg("%s: %s", base_result_text(result), failure.message);
}

static const char *full(void)
{
    return temporary_path(&temporary, "full");
}

/** Entries of the file system beside its own. */
static int entries(void)
{
    struct temporary there;
    snprintf(there.directory, sizeof there.directory, "%s", full());
    return temporary_entries(&there) -
           (access(temporary_path(&temporary, "full/lost+found"), F_OK) == 0);
}

/* ------------------------------------------------------------------ a file */

/** A number in a message, behind these words. */
static uint64_t number_behind(const char *words)
{
    const char *found = strstr(failure.message, words);
    assert_non_null(found);
    return strtoull(found + strlen(words), NULL, 10);
}

/** Opens the file, or has it refused; some other one may have left its own there. */
static void open_with_little_room(struct tiles *tiles, const struct tiles_config *config, int left,
                                  const char *junk)
{
    assert_true(!junk || temporary_write(&temporary, "full/slots", junk));
    assert_true(full_disk_fill(&temporary, left));
    const uint64_t free = full_disk_free(&temporary) + (junk ? FULL_DISK_PAGE : 0);
    base_error_clear(&failure);
    const zero_result result = tiles_open(tiles, config, &failure);
    if (result) {
        assert_int_equal(result, ZERO_E_LIMIT);
        assert_true(number_behind("/slots: ") > number_behind("the file system has "));
        assert_int_equal(number_behind("the file system has "), free);
        assert_int_equal(full_disk_free(&temporary), free);
        assert_int_equal(unlink(config->path), junk ? 0 : -1);
    }
    full_disk_make_room(&temporary);
}

static void a_file_needs_room(void **state)
{
    (void)state;
    const struct tiles_config config = {.path = temporary_path(&temporary, "full/slots"),
                                        .engine = &off_io_engine_sync,
                                        .buffers = 4,
                                        .helpers = 1,
                                        .fill = true};
    struct tiles tiles = {.step = 0};
    int left = TEST_PART, failures = 0;
    for (;; left += 16 * TEST_STRIDE, failures++) {
        open_with_little_room(&tiles, &config, left, failures % 2 ? "state of another job" : NULL);
        if (tiles.tilefile)
            break;
    }
    assert_true(failures > 0);
    assert_true(full_disk_fill(&temporary, 0));
    for (int i = 0; i < 2 * STEPS; i++)
        ok(tiles_step(&tiles, &failure));
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, false);
    ok(tiles_open(&tiles, &config, &failure));
    assert_int_equal(tiles.step, 2 * STEPS);
    ok(tiles_step(&tiles, &failure));
    ok(tiles_check(&tiles, &failure));
    tiles_close(&tiles, true);
    full_disk_make_room(&temporary);
    assert_int_equal(entries(), 0);
}

/* ------------------------------------------------------------------ a job */

struct job {
    bool in_memory, comes_back, dies;
    zero_result expected; // of the commit
    const char *words;    // of its message
    uint8_t digest[16];
};

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    rank->config.stage = 3;
    rank->config.name = "full";
    rank->config.micro_batches = toy_odd.micro_batches;
    if (!job->in_memory) {
        rank->config.offload_optimizer = rank->config.offload_params = rank->config.offload_grads =
            "nvme";
        rank->config.nvme_dir = full();
        rank->config.tile_bytes = 65536;
    }
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    if (job->expected) {
        TEAM_FAILS(rank, zero_commit(rank->z), job->expected, job->words);
        return true;
    }
    TEAM_OK(rank, zero_commit(rank->z));
    if (rank->rank == 0 && !job->in_memory)
        TEAM_CHECK(full_disk_fill(&temporary, 0));
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (job->comes_back) {
        TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
        TEAM_CHECK(loaded.step == STEPS && loaded.recovered);
    }
    if (!toy_train(rank, &toy_odd, job->dies ? STEPS : 2 * STEPS - (int)loaded.step))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    if (job->dies) {
        zero_abort(rank->z, "for a test");
        while (zero_barrier(rank->z) == ZERO_OK)
            ;
    }
    return true;
}

static void run(struct job *job)
{
    assert_true(team_run(team_threads(WORLD), WORLD, work, job));
}

/** From a disk that had no room on to the end of a job that was killed on a disk without any. */
static void go_on_to_the_end(void)
{
    struct job whole = {.in_memory = true}, first = {.dies = true}, again = {.comes_back = true};
    run(&whole);
    run(&first);
    full_disk_make_room(&temporary);
    assert_int_equal(entries(), WORLD);
    run(&again);
    assert_memory_equal(whole.digest, again.digest, sizeof whole.digest);
    full_disk_make_room(&temporary);
    assert_int_equal(entries(), 0);
}

static void a_job_needs_room(void **state)
{
    (void)state;
    struct job refused = {.expected = ZERO_E_LIMIT, .words = " free there"};
    for (int left = 0; left < 100; left += 33) {
        assert_true(full_disk_fill(&temporary, left));
        run(&refused);
        full_disk_make_room(&temporary);
        assert_int_equal(entries(), 0);
    }
    go_on_to_the_end();
}

/** Each rank has three files, two of which have no names. */
static void a_job_needs_files(void **state)
{
    (void)state;
    struct job refused = {.expected = ZERO_E_IO, .words = "(ENOSPC)"};
    for (int left = 0; left < 3 * WORLD; left++) {
        assert_true(full_disk_fill_names(&temporary, left));
        run(&refused);
        full_disk_make_room(&temporary);
        assert_int_equal(entries(), 0);
    }
    go_on_to_the_end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_needs_room),
        cmocka_unit_test(a_job_needs_room),
        cmocka_unit_test(a_job_needs_files),
    };
    char why[MOUNTS_WHY];
    if (argc != 2 || !temporary_make(&temporary) || !temporary_folder(&temporary, "full"))
        return 2;
    const bool memory = strcmp(argv[1], "memory") == 0;
    int status = 77;
    if (mounts_begin(why) &&
        full_disk_mount(&temporary, argv[1], (size_t)(memory ? 12 : 32) << 20, MOST_FILES, why)) {
        status = cmocka_run_group_tests(tests, NULL, NULL);
        mounts_end(full());
    } else {
        printf("skipped: %s\n", why);
    }
    temporary_remove(&temporary);
    return status;
}
