// Saves on a file system that is full, from its last page on page by page until there is room: each
// fails on all ranks and says where and why, leaves what was there before and nothing else, and the
// next one succeeds as soon as there is room. The same where nothing can be written at all.
// "memory" or "ext4": the file system.
#include "base/arena.h"
#include "base/hash.h"
#include "checkpoint/loader.h"
#include "tests/fault/full_disk.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, SMALL = 100, LARGE = 20000, MOST = 400 };

static struct temporary temporary;

/** What is used up, and what the saves before have left behind. */
struct shortage {
    bool of_names;  /**< files there can be no more; else there is no more room in them */
    bool of_others; /**< the pool has files, which are too short */
    int left;       /**< pages, or files, that there still are */
    bool failed[WORLD];
    uint8_t digest[16];
};

static const char *place(void)
{
    return temporary_path(&temporary, "full/c");
}

/** The checkpoints that are there are these, whole, and nothing is unfinished. */
static bool holds(const char *wanted)
{
    const struct ckpt_store *store = &ckpt_store_posix;
    char found[64] = "";
    uint64_t *steps, *unfinished;
    size_t count, rest;
    TEAM_CHECK(ckpt_list(store, place(), &steps, &count, NULL) == ZERO_OK);
    TEAM_CHECK(ckpt_list_unfinished(store, place(), &unfinished, &rest, NULL) == ZERO_OK);
    bool good = rest == 0;
    for (size_t i = 0; i < count; i++) {
        struct ckpt_loader *loader = NULL;
        good = good && ckpt_loader_open(&loader, store, place(), steps[i], NULL) == ZERO_OK &&
               ckpt_loader_verify(loader, &(struct ckpt_verify_watch){0}, NULL) == ZERO_OK;
        ckpt_loader_close(loader);
        snprintf(found + strlen(found), sizeof found - strlen(found), "%d ", (int)steps[i]);
    }
    base_free(steps);
    base_free(unfinished);
    if (good && strcmp(found, wanted) == 0)
        return true;
    fprintf(stderr, "found \"%s\" and %zu unfinished, expected \"%s\"\n", found, rest, wanted);
    return false;
}

/** Two saves, of which one remains if the pool is to have files. The blob can't be compressed. */
static bool save_two(struct team_rank *rank, const zero_save_options *options,
                     unsigned char blob[LARGE])
{
    if (!toy_open(rank, &toy_odd))
        return false;
    for (uint64_t i = 0; i < LARGE; i++)
        blob[i] = (unsigned char)base_hash64(&i, sizeof i, (uint64_t)rank->rank);
    TEAM_OK(rank, zero_attach(rank->z, "blob", blob, SMALL, ZERO_OF_RANK));
    for (int step = 1; step <= 2; step++)
        if (!toy_train(rank, &toy_odd, 1) || !saved_now(rank, place(), options))
            return false;
    return true;
}

/** A save that may fail says so everywhere, in the same words. */
static bool save_again(struct team_rank *rank, const zero_save_options *options, bool *failed)
{
    zero_save_info info = {.struct_size = sizeof info};
    zero_result r = zero_save(rank->z, place(), options);
    const bool begun = r == ZERO_OK;
    if (begun)
        r = zero_save_wait(rank->z);
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    *failed = r != ZERO_OK;
    if (begun)
        TEAM_CHECK(info.step == 3 && info.phase == (r ? ZERO_SAVE_FAILED : ZERO_SAVE_COMPLETE));
    if (r)
        TEAM_CHECK(saved_fails(rank, r, ZERO_E_IO, place(), "a save") &&
                   saved_fails(rank, r, ZERO_E_IO, "(ENOSPC)", "a save"));
    return true;
}

static bool run_short(struct team_rank *rank, void *user)
{
    static _Thread_local unsigned char blob[LARGE];
    struct shortage *shortage = user;
    const zero_save_options options = saved_options(0, 0, shortage->of_others ? 1 : 0, 0);
    if (!save_two(rank, &options, blob) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "blob", blob, LARGE, ZERO_OF_RANK));
    if (rank->rank == 0)
        TEAM_CHECK(shortage->of_names ? full_disk_fill_names(&temporary, shortage->left)
                                      : full_disk_fill(&temporary, shortage->left));
    TEAM_OK(rank, zero_barrier(rank->z));
    if (!save_again(rank, &options, &shortage->failed[rank->rank]))
        return false;
    if (rank->rank == 0 && shortage->failed[0])
        TEAM_CHECK(holds(shortage->of_others ? "2 " : "1 2 "));
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        full_disk_make_room(&temporary);
    TEAM_OK(rank, zero_barrier(rank->z));
    if (shortage->failed[rank->rank] && !saved_now(rank, place(), &options))
        return false;
    if (rank->rank == 0) {
        TEAM_CHECK(holds(shortage->of_others ? "3 " : "1 2 3 "));
        TEAM_OK(rank, zero_fingerprint(rank->z, shortage->digest));
    } else {
        uint8_t digest[16];
        TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    }
    return true;
}

static bool resume(struct team_rank *rank, void *user)
{
    static _Thread_local unsigned char blob[LARGE];
    const struct shortage *shortage = user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "blob", blob, LARGE, ZERO_OF_RANK));
    TEAM_OK(rank, zero_resume(rank->z, place(), NULL, &loaded));
    TEAM_CHECK(loaded.step == 3 && loaded.damaged == 0);
    return saved_state(rank, shortage->digest);
}

/** More and more is left, until it is enough: few files are. */
static void sweep(struct shortage shortage)
{
    const int stride = shortage.of_names ? 1 : TEST_STRIDE;
    int failures = 0;
    shortage.left = shortage.of_names ? 0 : TEST_PART;
    do {
        shortage.failed[0] = false;
        if (!team_run(team_threads(WORLD), WORLD, run_short, &shortage) ||
            !team_run(team_threads(WORLD), WORLD, resume, &shortage))
            fail_msg("%d %s left", shortage.left, shortage.of_names ? "files" : "pages");
        assert_int_equal(shortage.failed[0], shortage.failed[1]);
        failures += shortage.failed[0];
        shortage.left += stride;
        nftw(place(), temporary_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    } while (shortage.failed[0] && shortage.left < MOST);
    assert_false(shortage.failed[0]);
    assert_true(failures > 0);
    print_message("%d saves failed\n", failures);
}

static void no_room(void **state)
{
    (void)state;
    sweep((struct shortage){.of_others = false});
}

static void no_room_for_more_than_the_pool_has(void **state)
{
    (void)state;
    sweep((struct shortage){.of_others = true});
}

static void no_more_files(void **state)
{
    (void)state;
    sweep((struct shortage){.of_names = true});
    sweep((struct shortage){.of_names = true, .of_others = true});
}

/** What is there is loaded; a save fails, or not. */
static bool resume_and_save(struct team_rank *rank, void *user)
{
    const bool *written = user;
    const zero_result r =
        toy_open(rank, &toy_odd) ? zero_resume(rank->z, place(), NULL, NULL) : ZERO_E_STATE;
    TEAM_CHECK(r == ZERO_OK || r == ZERO_NOT_FOUND);
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    if (*written)
        return saved_now(rank, place(), NULL);
    TEAM_FAILS(rank, zero_save(rank->z, place(), NULL), ZERO_E_IO, place());
    TEAM_FAILS(rank, zero_save(rank->z, place(), NULL), ZERO_E_IO, "(EROFS)");
    return true;
}

static void nothing_can_be_written(void **state)
{
    (void)state;
    char full[SAVED_PATH];
    snprintf(full, sizeof full, "%s/full", temporary.directory);
    for (int i = 0; i < 3; i++) {
        bool written = i != 1;
        assert_true(mounts_allow(full, written));
        assert_true(team_run(team_threads(WORLD), WORLD, resume_and_save, &written));
        assert_true(holds(i < 2 ? "1 " : "1 2 "));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_room),
        cmocka_unit_test(no_room_for_more_than_the_pool_has),
        cmocka_unit_test(no_more_files),
        cmocka_unit_test(nothing_can_be_written),
    };
    char why[MOUNTS_WHY], full[SAVED_PATH];
    if (argc != 2 || !temporary_make(&temporary) || !temporary_folder(&temporary, "full"))
        return 2;
    int status = 77;
    if (mounts_begin(why) &&
        full_disk_mount(&temporary, argv[1], strcmp(argv[1], "memory") == 0 ? 2 << 20 : 24 << 20,
                        40, why)) {
        snprintf(full, sizeof full, "%s/full", temporary.directory);
        status = cmocka_run_group_tests(tests, NULL, NULL);
        mounts_end(full);
    } else {
        printf("skipped: %s\n", why);
    }
    temporary_remove(&temporary);
    return status;
}
