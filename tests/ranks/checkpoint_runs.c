// A directory of checkpoints belongs to a run: who may save there, what is removed and what never
// is.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include "base/fault.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/manifest/manifest_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct temporary directory; // in it "a", "b" of checkpoints, and "state"

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) && temporary_folder(&directory, "state") ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

/** What a job does, in this order. */
struct job {
    const char *resumes, *loads; /**< before it trains: a directory, a checkpoint */
    uint64_t at;                 /**< the step that brings it to */
    bool recovered;              /**< by a point */
    int to;                      /**< the step it trains to, */
    const char *saves;           /**< and saves in this directory, */
    int keep, beside;            /**< with these options: */
    const char *refused;         /**< which fails with ZERO_E_STATE, and these words */
    const char *then;            /**< and then in this one */
    bool small;                  /**< a model of fewer tensors */
    bool nvme, dies;
};

static bool begin(struct team_rank *rank, const struct job *job, struct toy *toy)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    rank->config.name = "run"; // as long as one does, and one at a time
    if (job->small)
        toy->tensor_count = 8;
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = temporary_path(&directory, "state");
        rank->config.io = "threads";
    }
    if (!toy_open(rank, toy))
        return false;
    if (job->resumes)
        TEAM_OK(rank,
                zero_resume(rank->z, temporary_path(&directory, job->resumes), NULL, &loaded));
    if (job->loads)
        TEAM_OK(rank, zero_load(rank->z, temporary_path(&directory, job->loads), NULL, &loaded));
    TEAM_CHECK(loaded.step == job->at && (loaded.recovered != 0) == job->recovered);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy = toy_odd;
    zero_save_options options = saved_options(0, 0, job->keep, 0);
    options.beside_other_runs = job->beside;
    if (!begin(rank, job, &toy) || !toy_train(rank, &toy, job->to - (int)job->at))
        return false;
    if (job->refused) {
        const char *where = temporary_path(&directory, job->saves);
        TEAM_FAILS(rank, zero_save(rank->z, where, &options), ZERO_E_STATE, job->refused);
        TEAM_FAILS(rank, zero_save(rank->z, where, &options), ZERO_E_STATE, where);
    } else if (job->saves && !saved_now(rank, temporary_path(&directory, job->saves), &options)) {
        return false;
    }
    if (job->then && !saved_now(rank, temporary_path(&directory, job->then), &options))
        return false;
    return !job->dies || (toy_train(rank, &toy, 1) && team_break_off(rank));
}

static void run(int world, struct job job)
{
    if (!team_run(team_threads(world), world, work, &job))
        fail_msg("%d ranks, to step %d, saves in %s", world, job.to, job.saves);
}

static bool exists(const char *path)
{
    return access(temporary_path(&directory, path), F_OK) == 0;
}

/** Steps 2 and 4 of a run. */
static void make_run(const char *in)
{
    run(2, (struct job){.to = 2, .saves = in});
    run(1, (struct job){.resumes = in, .at = 2, .to = 4, .saves = in});
}

static void anothers_checkpoints_stay(void **state)
{
    (void)state;
    make_run("a");
    for (int world = 1; world <= 3; world++)
        for (int small = 0; small < 2; small++)
            run(world, (struct job){.to = 5,
                                    .saves = "a",
                                    .keep = 1,
                                    .small = small != 0,
                                    .refused = "another run, which this job neither began nor "
                                               "resumed; the newest is step-00000004 (run "});
    assert_true(exists("a/step-00000002") && exists("a/step-00000004"));
    assert_false(exists("a/step-00000005") || exists("a/saving-00000005"));
    // Who is refused saves elsewhere, and holds nothing of the directory.
    run(2, (struct job){.to = 5, .saves = "a", .then = "b", .refused = "beside_other_runs"});
    run(1, (struct job){.resumes = "a", .at = 4, .to = 6, .saves = "a"});
}

static void beside_others_only_the_own_are_removed(void **state)
{
    (void)state;
    make_run("a");
    run(1, (struct job){.to = 3, .saves = "a", .keep = 1, .beside = 1});
    run(2, (struct job){
               .loads = "a/step-00000003", .at = 3, .to = 5, .saves = "a", .keep = 1, .beside = 1});
    assert_true(exists("a/step-00000002") && exists("a/step-00000004"));
    assert_true(exists("a/step-00000005") && !exists("a/step-00000003"));
    // A step of another run is not replaced, either.
    run(2, (struct job){.to = 4, .saves = "a", .beside = 1, .refused = "is another run's ("});
    // Each save says so.
    run(2, (struct job){
               .loads = "a/step-00000005", .at = 5, .to = 6, .saves = "a", .refused = "another"});
}

static void who_resumes_goes_on_with_the_run(void **state)
{
    (void)state;
    make_run("a");
    run(3, (struct job){.resumes = "a", .at = 4, .to = 6, .saves = "a", .keep = 1});
    assert_true(exists("a/step-00000006"));
    assert_false(exists("a/step-00000002") || exists("a/step-00000004"));
    run(1, (struct job){.loads = "a/step-00000006", .at = 6, .to = 7, .saves = "a", .keep = 1});
    assert_true(exists("a/step-00000007") && !exists("a/step-00000006"));
}

static void resumed_from_one_saved_to_another(void **state)
{
    (void)state;
    make_run("a");
    make_run("b");
    run(2, (struct job){.resumes = "a", .at = 4, .to = 6, .saves = "b", .refused = "another run"});
    run(2, (struct job){
               .loads = "a/step-00000002", .at = 2, .to = 6, .saves = "b", .refused = "another"});
    assert_true(exists("b/step-00000002") && exists("b/step-00000004"));
}

/** Where a checkpoint was only loaded, a directory without its run's begins another run. */
static void what_is_loaded_and_saved_elsewhere_is_a_run(void **state)
{
    (void)state;
    make_run("a");
    const struct job fork = {.loads = "a/step-00000004", .at = 4, .to = 6, .saves = "b", .keep = 1};
    run(2, fork);
    struct job again = fork;
    again.to = 7;
    again.refused = "step-00000006";
    run(2, again);
    run(3, (struct job){.resumes = "b", .at = 6, .to = 8, .saves = "b"});
    // And both directories of who has resumed are the run's, also after the next start.
    run(1, (struct job){.resumes = "a", .at = 4, .to = 5, .saves = "c", .then = "a"});
    run(1, (struct job){.resumes = "a", .at = 5, .to = 6, .saves = "c", .then = "a"});
}

/** Jobs that go on from the same checkpoint elsewhere leave each other's alone. */
static void two_go_on_from_one(void **state)
{
    (void)state;
    make_run("a");
    run(2, (struct job){.resumes = "a", .at = 4, .to = 6, .saves = "b", .keep = 1});
    for (int beside = 0; beside < 2; beside++)
        for (int to = 5; to <= 7; to++)
            run(1, (struct job){.resumes = "a",
                                .at = 4,
                                .to = to,
                                .saves = "b",
                                .keep = 1,
                                .beside = beside,
                                .refused = "another job has saved it"});
    assert_true(exists("b/step-00000006"));
    run(2, (struct job){.resumes = "b", .at = 6, .to = 7, .saves = "b", .keep = 1});
    run(2, (struct job){.resumes = "a", .at = 4, .to = 5, .saves = "c", .then = "c"});
}

/** A job that comes back at a recovery point has loaded no checkpoint. */
static void a_point_is_of_the_run(void **state)
{
    (void)state;
    run(2, (struct job){.to = 2, .saves = "a", .nvme = true, .dies = true});
    run(2, (struct job){.resumes = "a",
                        .at = 3,
                        .recovered = true,
                        .to = 4,
                        .saves = "a",
                        .nvme = true,
                        .dies = true});
    run(2, (struct job){
               .resumes = "a", .at = 5, .recovered = true, .to = 6, .saves = "a", .nvme = true});
    // One that has loaded another's, too.
    run(2, (struct job){.loads = "a/step-00000002", .at = 2, .to = 2, .nvme = true, .dies = true});
    run(2, (struct job){.resumes = "a", .at = 6, .to = 7, .saves = "a", .nvme = true});
}

/** Makes a manifest one of a library that does not know of runs. */
static void forget_run(const char *path)
{
    char text[65536], line[CKPT_LAST_LINE + 1];
    FILE *file = fopen(temporary_path(&directory, path), "r+");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text, file);
    text[length] = '\0';
    char *from = strstr(text, "\"run\": ");
    assert_non_null(from);
    char *to = strchr(from, '\n') + 1;
    memmove(from, to, (size_t)(text + length - to));
    length -= (size_t)(to - from);
    ckpt_last_line(text, length - CKPT_LAST_LINE, line);
    memcpy(text + length - CKPT_LAST_LINE, line, CKPT_LAST_LINE);
    rewind(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(ftruncate(fileno(file), (off_t)length), 0);
    assert_int_equal(fclose(file), 0);
}

static void what_does_not_tell_its_run(void **state)
{
    (void)state;
    make_run("a");
    forget_run("a/step-00000002/manifest.json");
    forget_run("a/step-00000004/manifest.json");
    run(2, (struct job){.to = 5, .saves = "a", .keep = 1, .refused = "step-00000004"});
    run(2, (struct job){.resumes = "a", .at = 4, .to = 5, .saves = "a"});
    assert_true(exists("a/step-00000002"));
    run(2, (struct job){.resumes = "a", .at = 5, .to = 6, .saves = "a", .keep = 2});
    assert_false(exists("a/step-00000002") || exists("a/step-00000004"));
    assert_true(exists("a/step-00000005") && exists("a/step-00000006"));
}

static void what_cannot_be_read(void **state)
{
    (void)state;
    make_run("a");
    assert_true(temporary_write(&directory, "a/step-00000004/manifest.json", "damaged"));
    run(1, (struct job){.to = 5, .saves = "a", .keep = 1, .refused = "step-00000002 (run "});
    // It may be any run's: it keeps none from saving, and only one that passes it replaces it.
    run(1, (struct job){.resumes = "a", .at = 2, .to = 5, .saves = "a", .keep = 1});
    assert_true(exists("a/step-00000004") && !exists("a/step-00000002"));
    run(1, (struct job){.to = 6, .saves = "a", .keep = 1, .beside = 1});
    run(1, (struct job){.to = 4, .saves = "a", .beside = 1, .refused = "perhaps another run's"});
    assert_true(exists("a/step-00000004") && exists("a/step-00000005"));
    make_run("b");
    assert_true(temporary_write(&directory, "b/step-00000004/manifest.json", "damaged"));
    run(1, (struct job){.loads = "b/step-00000002",
                        .at = 2,
                        .to = 4,
                        .saves = "b",
                        .refused = "perhaps another run's"});
    run(2, (struct job){.resumes = "b", .at = 2, .to = 4, .saves = "b", .keep = 1});
    run(1, (struct job){.resumes = "b", .at = 4, .to = 4, .saves = "b"});
    assert_true(temporary_write(&directory, "b/step-00000004/manifest.json", "damaged"));
    run(1, (struct job){.to = 6, .saves = "b", .refused = "not known"});
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(anothers_checkpoints_stay),
        TEST(beside_others_only_the_own_are_removed),
        TEST(who_resumes_goes_on_with_the_run),
        TEST(resumed_from_one_saved_to_another),
        TEST(what_is_loaded_and_saved_elsewhere_is_a_run),
        TEST(two_go_on_from_one),
        TEST(a_point_is_of_the_run),
        TEST(what_does_not_tell_its_run),
        TEST(what_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
