// Saves to places that can't be saved to: nothing is there, something else is, the rights are not,
// one rank sees another place, the directory is moved away. Each is an error on all ranks that
// names path and reason; nothing is left behind, and the job saves as soon as it can.
#include "checkpoint/directory/directory.h"
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, NOBODY = 65534 };

static struct temporary temporary;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

static const char *at(const char *name)
{
    return temporary_path(&temporary, name);
}

/** Ranks that are processes, each with rights and a working directory of its own. */
static void run(team_fn fn, void *user, const char *what)
{
    if (!team_run("shm", WORLD, fn, user))
        fail_msg("%s", what);
}

/* ------------------------------------------------------------------ places that can be mended */

static bool nothing(void)
{
    return true;
}

static bool make_parent(void)
{
    return temporary_folder(&temporary, "p");
}

static bool put_file(void)
{
    return temporary_write(&temporary, "c", "what is this?");
}

static bool remove_it(void)
{
    return unlink(at("c")) == 0;
}

static bool put_file_above(void)
{
    return temporary_write(&temporary, "p", "what is this?");
}

static bool make_it_a_directory(void)
{
    return unlink(at("p")) == 0 && make_parent();
}

static bool put_dangling_link(void)
{
    return symlink("nowhere", at("c")) == 0;
}

static bool put_endless_link(void)
{
    return symlink("p", at("p")) == 0;
}

static bool no_writing(void)
{
    return mkdir(at("c"), 0555) == 0;
}

static bool no_searching(void)
{
    return mkdir(at("c"), 0666) == 0;
}

static bool no_listing(void)
{
    return mkdir(at("c"), 0333) == 0;
}

static bool no_writing_above(void)
{
    return mkdir(at("p"), 0555) == 0;
}

static bool allow(void)
{
    return chmod(at("c"), 0755) == 0;
}

static bool allow_above(void)
{
    return chmod(at("p"), 0755) == 0;
}

static const struct scene {
    const char *name, *path;
    bool (*arrange)(void);
    bool (*mend)(void);
    zero_result result;
    const char *words;
} scenes[] = {
    {"no directory above", "p/c", nothing, make_parent, ZERO_E_IO, "(ENOENT)"},
    {"a file", "c", put_file, remove_it, ZERO_E_INVALID, "is no directory"},
    {"a file above", "p/c", put_file_above, make_it_a_directory, ZERO_E_IO, "(ENOTDIR)"},
    {"a link to nowhere", "c", put_dangling_link, remove_it, ZERO_E_IO, "(EEXIST)"},
    {"a link to itself", "p/c", put_endless_link, make_it_a_directory, ZERO_E_IO, "(ELOOP)"},
    {"no right to write", "c", no_writing, allow, ZERO_E_IO, "(EACCES)"},
    {"no right to search", "c", no_searching, allow, ZERO_E_IO, "(EACCES)"},
    {"no right to list", "c", no_listing, allow, ZERO_E_IO, "(EACCES)"},
    {"no right to write above", "p/c", no_writing_above, allow_above, ZERO_E_IO, "(EACCES)"},
};

/** Rights mean nothing to root: he becomes nobody. */
static bool be_nobody_special(void)
{
    return geteuid() != 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
}

static bool refused_then_saved(struct team_rank *rank, void *user)
{
    const struct scene *scene = user;
    char path[SAVED_PATH];
    strcpy(path, at(scene->path));
    TEAM_CHECK(be_nobody_special());
    if (rank->rank == 0)
        TEAM_CHECK(scene->arrange());
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_FAILS(rank, zero_save(rank->z, path, NULL), scene->result, path);
    TEAM_FAILS(rank, zero_save(rank->z, path, NULL), scene->result, scene->words);
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    if (rank->rank == 0)
        TEAM_CHECK(scene->mend());
    TEAM_OK(rank, zero_barrier(rank->z));
    return saved_now(rank, path, NULL);
}

static bool resume_two_steps(struct team_rank *rank, void *user)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, user, NULL, &loaded));
    TEAM_CHECK(loaded.step == 2 && loaded.damaged == 0);
    return true;
}

static void places_that_can_be_mended(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        char path[SAVED_PATH];
        assert_int_equal(set_up(NULL), 0);
        assert_int_equal(chmod(temporary.directory, 0777), 0);
        strcpy(path, at(scenes[i].path));
        run(refused_then_saved, (void *)(uintptr_t)&scenes[i], scenes[i].name);
        run(resume_two_steps, path, scenes[i].name);
        tear_down(NULL);
    }
}

/* ------------------------------------------------------------------ names */

static bool save_and_resume(struct team_rank *rank, void *user)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1) || !saved_now(rank, user, NULL))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, user, NULL, &loaded));
    TEAM_CHECK(loaded.step == 1);
    return true;
}

static bool refused_in_one_line(struct team_rank *rank, void *user)
{
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_FAILS(rank, zero_save(rank->z, user, NULL), ZERO_E_INVALID, "is no directory");
    TEAM_CHECK(!strchr(zero_last_error(rank->z), '\n'));
    return true;
}

static void any_name_will_do(void **state)
{
    (void)state;
    static const char *const names[] = {"two words", "a\nline", "\"'$&;\\",     "%s%n",
                                        "\xc3\xa9",  "-rf",     "step-00000007"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[SAVED_PATH];
        strcpy(path, at(names[i]));
        run(save_and_resume, path, names[i]);
        snprintf(path, sizeof path, "%s/%s.", temporary.directory, names[i]);
        assert_true(temporary_write(&temporary, strrchr(path, '/') + 1, "a file"));
        run(refused_in_one_line, path, names[i]);
    }
}

static void a_link_stays_one(void **state)
{
    (void)state;
    char path[SAVED_PATH];
    struct stat status;
    strcpy(path, at("link"));
    assert_true(temporary_folder(&temporary, "real"));
    assert_int_equal(symlink("real", path), 0);
    run(save_and_resume, path, "a link");
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(access(at("real/step-00000001/manifest.json"), F_OK), 0);
}

/* ------------------------------------------------------------------ one rank is elsewhere */

static bool in_another_place(struct team_rank *rank, void *user)
{
    (void)user;
    TEAM_CHECK(chdir(rank->rank == 1 ? "/" : temporary.directory) == 0);
    if (!toy_open(rank, &toy_odd))
        return false;
    char both[2 * SAVED_PATH];
    snprintf(both, sizeof both, "c is %s/c on rank 0 and /c on rank 1", temporary.directory);
    TEAM_FAILS(rank, zero_save(rank->z, "c", NULL), ZERO_E_IO, both);
    TEAM_FAILS(rank, zero_save(rank->z, "c", NULL), ZERO_E_IO, "working directories differ");
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    if (rank->rank == 0)
        TEAM_CHECK(access("c/saving-00000000", F_OK) != 0);
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(chdir(temporary.directory) == 0);
    if (!saved_now(rank, "c", NULL) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_CHECK(chdir(rank->rank == 1 ? "/" : temporary.directory) == 0);
    TEAM_FAILS(rank, zero_load(rank->z, "c/step-00000001", NULL, NULL), ZERO_E_DIVERGED,
               "rank 1 does not see c/step-00000001");
    return true;
}

static void a_rank_that_does_not_see_it(void **state)
{
    (void)state;
    run(in_another_place, NULL, "a rank in another directory");
}

/* ------------------------------------------------------------------ ranks that go elsewhere */

/** A relative path is what it was when the save began, and the directory of state what it was when
 * the context was opened. */
static bool goes_elsewhere(struct team_rank *rank, void *user)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    const char *elsewhere = user;
    TEAM_CHECK(chdir(temporary.directory) == 0);
    rank->config.offload_optimizer = "nvme";
    rank->config.nvme_dir = "state";
    rank->config.io = "threads";
    rank->config.micro_batches = toy_odd.micro_batches;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_CHECK(chdir(elsewhere) == 0);
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(chdir(temporary.directory) == 0);
    for (int step = 0; step < 3; step++) {
        TEAM_OK(rank, zero_save(rank->z, step == 1 ? "./c/" : "c", NULL));
        TEAM_CHECK(chdir(elsewhere) == 0);
        if (!toy_train(rank, &toy_odd, 1))
            return false;
        TEAM_OK(rank, zero_save_wait(rank->z));
        TEAM_CHECK(chdir(temporary.directory) == 0);
    }
    TEAM_OK(rank, zero_resume(rank->z, "c", NULL, &loaded));
    TEAM_CHECK(loaded.step == 2);
    TEAM_CHECK(chdir(elsewhere) == 0);
    team_close(rank);
    return true;
}

static void a_relative_directory_is_resolved_once(void **state)
{
    (void)state;
    assert_true(temporary_folder(&temporary, "state") && temporary_folder(&temporary, "other"));
    run(goes_elsewhere, (void *)(uintptr_t)at("other"), "to another directory");
    assert_int_equal(access(at("c/step-00000002/manifest.json"), F_OK), 0);
    assert_int_equal(rmdir(at("state")), 0); // nothing is left there
    assert_int_equal(rmdir(at("other")), 0);
}

static bool without_a_place(struct team_rank *rank, void *user)
{
    const char *path = user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_CHECK(chdir(path) == 0);
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        TEAM_CHECK(rmdir(path) == 0);
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_FAILS(rank, zero_save(rank->z, "c", NULL), ZERO_E_IO, "working directory");
    return saved_now(rank, at("c"), NULL);
}

static void a_working_directory_that_is_gone(void **state)
{
    (void)state;
    assert_true(temporary_folder(&temporary, "gone"));
    run(without_a_place, (void *)(uintptr_t)at("gone"), "a removed working directory");
}

/* ------------------------------------------------------------------ a directory that goes away */

enum successor { NOBODY_COMES, AN_EMPTY_ONE, ANOTHER_JOBS, SUCCESSORS };

/** Rank 0: c is moved away, and perhaps something comes in its place. */
static bool move_away(enum successor successor, struct ckpt_directory **other)
{
    *other = NULL;
    TEAM_CHECK(rename(at("c"), at("moved")) == 0);
    if (successor == AN_EMPTY_ONE)
        TEAM_CHECK(temporary_folder(&temporary, "c"));
    if (successor == ANOTHER_JOBS)
        TEAM_CHECK(ckpt_directory_open(other, &ckpt_store_posix, at("c"), 1, NULL) == ZERO_OK);
    return true;
}

static bool exists(const char *name)
{
    return access(at(name), F_OK) == 0;
}

/** Between two saves. */
static bool moved_between(struct team_rank *rank, enum successor successor)
{
    struct ckpt_directory *other = NULL;
    char path[SAVED_PATH];
    strcpy(path, at("c"));
    if (!saved_now(rank, path, NULL) || !toy_train(rank, &toy_odd, 1))
        return false;
    if (rank->rank == 0)
        TEAM_CHECK(move_away(successor, &other));
    TEAM_OK(rank, zero_barrier(rank->z));
    if (successor == ANOTHER_JOBS) {
        TEAM_FAILS(rank, zero_save(rank->z, path, NULL), ZERO_E_STATE, "another job saves to");
        TEAM_CHECK(!exists("c/saving-00000002") && !exists("c/step-00000002"));
        TEAM_OK(rank, zero_barrier(rank->z));
        ckpt_directory_close(other);
    }
    if (!saved_now(rank, path, NULL))
        return false;
    TEAM_CHECK(exists("c/step-00000002/manifest.json"));
    TEAM_CHECK(!exists("c/step-00000001") && exists("moved/step-00000001/manifest.json"));
    return true;
}

/** While a save is under way: it fails, and the next one is in the new place. */
static bool moved_within(struct team_rank *rank, enum successor successor)
{
    struct ckpt_directory *other = NULL;
    char path[SAVED_PATH];
    strcpy(path, at("c"));
    TEAM_OK(rank, zero_save(rank->z, path, NULL));
    if (rank->rank == 0)
        TEAM_CHECK(move_away(successor, &other));
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_IO, path);
    TEAM_CHECK(!exists("c/step-00000001"));
    TEAM_OK(rank, zero_barrier(rank->z));
    ckpt_directory_close(other);
    if (!toy_train(rank, &toy_odd, 1) || !saved_now(rank, path, NULL))
        return false;
    TEAM_CHECK(exists("c/step-00000002/manifest.json"));
    return true;
}

struct move {
    enum successor successor;
    bool within;
};

static bool go_on_elsewhere(struct team_rank *rank, void *user)
{
    const struct move *move = user;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    return move->within ? moved_within(rank, move->successor)
                        : moved_between(rank, move->successor);
}

static void a_directory_that_is_moved_away(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * SUCCESSORS; i++) {
        struct move move = {(enum successor)(i / 2), i % 2};
        char path[SAVED_PATH];
        assert_int_equal(set_up(NULL), 0);
        strcpy(path, at("c"));
        run(go_on_elsewhere, &move, move.within ? "while a save is under way" : "between saves");
        run(resume_two_steps, path, "afterwards");
        tear_down(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_that_can_be_mended),
        cmocka_unit_test_setup_teardown(any_name_will_do, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_link_stays_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_see_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_relative_directory_is_resolved_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_working_directory_that_is_gone, set_up, tear_down),
        cmocka_unit_test(a_directory_that_is_moved_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
