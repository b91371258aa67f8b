// Saves one after the other: what remains of them, what replaces what, and what becomes of those
// that are given up or fail.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include "base/fault.h"
#include "checkpoint/directory/directory.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 3 };

static struct temporary directory;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    return 0;
}

/* ------------------------------------------------------------------ what remains */

struct retention {
    int keep, keep_every;
    int saves; /**< at steps 0, 1, 2, ... */
    const char *remain;
};

static bool save_many(struct team_rank *rank, void *user)
{
    const struct retention *retention = user;
    const zero_save_options options =
        saved_options(ZERO_OFF, 0, retention->keep, retention->keep_every);
    struct toy toy = toy_odd;
    toy.micro_batches = 2;
    if (!toy_open(rank, &toy))
        return false;
    for (int i = 0; i < retention->saves; i++) {
        // The one before may be under way still.
        TEAM_OK(rank, zero_save(rank->z, directory.directory, &options));
        if (!toy_train(rank, &toy, 1))
            return false;
    }
    TEAM_OK(rank, zero_save_wait(rank->z));
    return true;
}

static bool exists(uint64_t step)
{
    char path[SAVED_PATH];
    saved_path(path, directory.directory, step);
    return access(path, F_OK) == 0;
}

static void the_newest_and_every_so_many_remain(void **state)
{
    (void)state;
    static const struct retention retentions[] = {
        {0, 0, 5, "01234"}, {1, 0, 4, "3"},    {2, 0, 5, "34"},
        {1, 2, 6, "0245"},  {2, 3, 7, "0356"}, {9, 0, 3, "012"},
    };
    for (size_t i = 0; i < sizeof retentions / sizeof *retentions; i++) {
        struct retention retention = retentions[i];
        assert_int_equal(set_up(NULL), 0);
        assert_true(team_run(team_threads(2), 2, save_many, &retention));
        for (int step = 0; step < retention.saves; step++)
            if (exists((uint64_t)step) != (strchr(retention.remain, '0' + step) != NULL))
                fail_msg("keep %d, keep_every %d: step %d", retention.keep, retention.keep_every,
                         step);
        tear_down(NULL);
    }
    assert_int_equal(set_up(NULL), 0);
}

/** A step that is saved again, with another state, and in two directories in turn. */
static bool save_again(struct team_rank *rank, void *user)
{
    static const float value[] = {3};
    float read = 0;
    char path[SAVED_PATH];
    const char *second = temporary_path(&directory, "second");
    (void)user;
    saved_path(path, directory.directory, 1);
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1) ||
        !saved_now(rank, directory.directory, NULL) || !saved_now(rank, second, NULL))
        return false;
    TEAM_OK(rank, zero_param_write(rank->z, 0, 0, 0, 1, value));
    if (!saved_now(rank, directory.directory, NULL))
        return false;
    TEAM_OK(rank,
            zero_load(rank->z, temporary_path(&directory, "second/step-00000001"), NULL, NULL));
    TEAM_OK(rank, zero_param_read(rank->z, 0, 0, 0, 1, &read));
    TEAM_CHECK(read != 3);
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    TEAM_OK(rank, zero_param_read(rank->z, 0, 0, 0, 1, &read));
    TEAM_CHECK(read == 3);
    return true;
}

static void a_step_is_saved_again(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++) {
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(world), world, save_again, NULL));
    }
}

/* ------------------------------------------------------------------ going back */

/** What is loaded, and what a new job goes on from. */
struct rollback {
    uint64_t step;
    uint8_t digest[16];
};

static bool train_and_save(struct team_rank *rank, const struct toy *toy, int steps,
                           const zero_save_options *options)
{
    for (int i = 0; i < steps; i++)
        if (!toy_train(rank, toy, 1) || !saved_now(rank, directory.directory, options))
            return false;
    return true;
}

/** Steps 1 to 4, back to 2, another step 3. */
static bool go_back(struct team_rank *rank, void *user)
{
    const zero_save_options two = saved_options(0, 0, 2, 0);
    struct rollback *rollback = user;
    struct toy other = toy_odd;
    char path[SAVED_PATH];
    uint8_t digest[16];
    saved_path(path, directory.directory, 2);
    other.unclipped = true;
    if (!toy_open(rank, &toy_odd) || !train_and_save(rank, &toy_odd, 4, NULL))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    if (!train_and_save(rank, &other, rollback->step == 3 ? 1 : 0, NULL))
        return false;
    if (rollback->step == 2 && !saved_now(rank, directory.directory, &two)) // so that it lasts
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(rollback->digest, digest, sizeof digest);
    return true;
}

static bool come_back(struct team_rank *rank, void *user)
{
    const struct rollback *rollback = user;
    zero_load_result result = {.struct_size = sizeof result};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(result.step == rollback->step && result.damaged == 0);
    TEAM_STATE(rank, rollback->digest);
    return true;
}

static void a_run_that_went_back_goes_on_from_there(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (uint64_t step = 2; step <= 3; step++) {
            struct rollback rollback = {.step = step};
            assert_int_equal(set_up(NULL), 0);
            assert_true(team_run(team_threads(world), world, go_back, &rollback));
            // Only retention removes what was abandoned, as the oldest.
            assert_true(exists(1) == (step == 3) && exists(2) && exists(4));
            assert_true(exists(3) == (step == 3));
            assert_true(team_run(team_threads(MOST_RANKS - world + 1), MOST_RANKS - world + 1,
                                 come_back, &rollback));
            tear_down(NULL);
        }
    assert_int_equal(set_up(NULL), 0);
}

/* ------------------------------------------------------------------ sooner or later */

enum { TIMINGS = 4, HEADER = 4096, SEVERAL_BLOCKS = 140000 };

/** When what is written of a state: faults that delay, what is copied, and the steps beside it. */
static const struct timing {
    const char *name, *fault;
    int64_t room_bytes;
    int steps;
} timings[TIMINGS] = {
    {"alone", NULL, 0, 0},
    {"late", "io.open:delay@1+", 0, 2},
    {"slow", "io.write:delay@1+", 300000, 2},
    {"late-in-place", "io.open:delay@1+", ZERO_OFF, 1},
};

struct timed {
    const struct timing *timing;
    uint8_t digest[16];
};

static bool save_timed(struct team_rank *rank, void *user)
{
    struct timed *timed = user;
    const struct timing *timing = timed->timing;
    const zero_save_options options = saved_options(0, timing->room_bytes, 0, 0);
    struct toy_tensor tensors[16];
    struct toy toy = toy_odd;
    zero_save_info info = {.struct_size = sizeof info};
    memcpy(tensors, toy.tensors, (size_t)toy.tensor_count * sizeof *tensors);
    tensors[6].numel = SEVERAL_BLOCKS;
    toy.tensors = tensors;
    toy.micro_batches = 2;
    rank->config.stage = rank->world % 4;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, 1) || !saved_fault(rank, timing->fault))
        return false;
    TEAM_OK(rank, zero_save(rank->z, temporary_path(&directory, timing->name), &options));
    if (!toy_train(rank, &toy, timing->steps))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_COMPLETE);
    if (rank->rank == 0)
        memcpy(timed->digest, info.fingerprint, sizeof timed->digest);
    return saved_fault(rank, NULL);
}

/** A shard behind its header, in which the checkpoint's identity is. */
static FILE *open_shard(const char *name, int rank)
{
    char path[64];
    snprintf(path, sizeof path, "%s/step-00000001/shard-%05d.zst", name, rank);
    FILE *file = fopen(temporary_path(&directory, path), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, HEADER, SEEK_SET), 0);
    return file;
}

static bool same_shards(const struct timing *one, const struct timing *other, int rank)
{
    FILE *a = open_shard(one->name, rank), *b = open_shard(other->name, rank);
    int byte = getc(a);
    assert_int_not_equal(byte, EOF);
    while (byte == getc(b) && byte != EOF)
        byte = getc(a);
    const bool same = feof(a) && feof(b);
    fclose(a);
    fclose(b);
    return same;
}

static void no_timing_changes_a_byte(void **state)
{
    (void)state;
    uint8_t digest[16];
    for (int world = 1; world <= MOST_RANKS; world++) {
        assert_int_equal(set_up(NULL), 0);
        for (int t = 0; t < TIMINGS; t++) {
            struct timed timed = {.timing = &timings[t]};
            if (!team_run(team_threads(world), world, save_timed, &timed))
                fail_msg("%d ranks, %s", world, timings[t].name);
            if (world == 1 && t == 0)
                memcpy(digest, timed.digest, sizeof digest);
            assert_memory_equal(digest, timed.digest, sizeof digest);
            for (int rank = 0; rank < world; rank++)
                if (!same_shards(&timings[0], &timings[t], rank))
                    fail_msg("%d ranks, shard %d: other bytes %s", world, rank, timings[t].name);
        }
        tear_down(NULL);
    }
    assert_int_equal(set_up(NULL), 0);
}

/* ------------------------------------------------------------------ interrupted, and failing */

/** How a context comes to its end while it saves. */
enum ending { BETWEEN_STEPS, FAILED_WRITES, ABORTED, TOLD, INSIDE_A_STEP, ENDINGS };

enum { WARNING = 512 };

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    (void)component;
    if (level == ZERO_LOG_WARN)
        snprintf(user, WARNING, "%s", message);
}

/** What closing says of the save: nothing if it is complete, else why not. */
static bool is_the_ending(const struct team_rank *rank, enum ending ending, const char *warning)
{
    const bool last = rank->rank == rank->world - 1;
    switch (ending) {
    case BETWEEN_STEPS:
        return *warning == '\0';
    case FAILED_WRITES:
        return strstr(warning, "zero_save");
    case ABORTED:
        return strstr(warning, "the save of step 2 in ") && strstr(warning, "enough");
    case TOLD: // what a call has returned is not said again
        return strstr(warning, "the save of step 2 in ") && !strstr(warning, "enough");
    default:
        return strstr(warning, "given up: ") &&
               strstr(warning, last ? "inside a step" : "has closed");
    }
}

static bool close_in_the_middle(struct team_rank *rank, void *user)
{
    const enum ending ending = *(enum ending *)user;
    char warning[WARNING] = "";
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    rank->config.log_user = warning;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1) ||
        !saved_now(rank, directory.directory, NULL) || !toy_train(rank, &toy_odd, 1))
        return false;
    if (!saved_fault(rank, ending == FAILED_WRITES ? "io.write@1+" : "io.open:delay@1+"))
        return false;
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    const bool last = rank->rank == rank->world - 1;
    if (ending == ABORTED && last)
        zero_abort(rank->z, "enough");
    if (ending == TOLD) {
        zero_abort(rank->z, "enough");
        TEAM_CHECK(zero_save_wait(rank->z) == ZERO_E_ABORTED);
    }
    if (ending == INSIDE_A_STEP && last) // the others are not
        TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    team_close(rank);
    if (!is_the_ending(rank, ending, warning))
        fprintf(stderr, "rank %d of %d: '%s'\n", rank->rank, rank->world, warning);
    return is_the_ending(rank, ending, warning);
}

static bool save_after_that(struct team_rank *rank, void *user)
{
    const enum ending ending = *(enum ending *)user;
    zero_load_result result = {.struct_size = sizeof result};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(result.step == (ending == BETWEEN_STEPS ? 2 : 1) && result.damaged == 0);
    return toy_train(rank, &toy_odd, 1) && saved_now(rank, directory.directory, NULL);
}

/** While a process reads nothing is removed; that is told, and no save fails of it. */
static bool save_beside_a_reader(struct team_rank *rank, void *user)
{
    const zero_save_options one = saved_options(ZERO_OFF, 0, 1, 0);
    char warning[WARNING] = "";
    struct ckpt_file *reader = NULL;
    (void)user;
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    rank->config.log_user = warning;
    if (!toy_open(rank, &toy_odd) || !saved_now(rank, directory.directory, &one))
        return false;
    TEAM_CHECK(rank->rank > 0 ||
               ckpt_reader_enter(&ckpt_store_posix, directory.directory, &reader, NULL) == ZERO_OK);
    if (!toy_train(rank, &toy_odd, 1) || !saved_now(rank, directory.directory, &one))
        return false;
    TEAM_CHECK(exists(0) && exists(1));
    TEAM_CHECK(rank->rank > 0 || strstr(warning, "a process has read"));
    ckpt_reader_leave(&ckpt_store_posix, &reader);
    *warning = '\0';
    if (!toy_train(rank, &toy_odd, 1) || !saved_now(rank, directory.directory, &one))
        return false;
    TEAM_CHECK(!exists(0) && !exists(1) && exists(2) && *warning == '\0');
    return true;
}

static void readers_put_off_what_is_removed_only(void **state)
{
    (void)state;
    assert_true(team_run(team_threads(2), 2, save_beside_a_reader, NULL));
}

/** A rank that closes it between steps has the checkpoint; after an error none waits for it. */
static void a_context_may_be_closed_in_the_middle(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int e = 0; e < ENDINGS; e++) {
            enum ending ending = (enum ending)e;
            assert_int_equal(set_up(NULL), 0);
            if (!team_run(team_threads(world), world, close_in_the_middle, &ending))
                fail_msg("%d ranks, ending %d", world, e);
            base_fault_set(NULL, NULL);
            if (exists(2) != (ending == BETWEEN_STEPS))
                fail_msg("%d ranks, ending %d: step 2", world, e);
            assert_true(team_run(team_threads(world), world, save_after_that, &ending));
            assert_true(exists(1) && exists(ending == BETWEEN_STEPS ? 3 : 2));
            tear_down(NULL);
        }
    assert_int_equal(set_up(NULL), 0);
}

/** What fails a save, and how it is reported. */
static const struct failure {
    const char *fault;
    zero_result result;
} failures[] = {
    {"io.write@1+", ZERO_E_IO}, {"io.write:enospc@1+", ZERO_E_IO}, {"io.write@2", ZERO_E_IO},
    {"io.fsync@3+", ZERO_E_IO}, {"io.rename@1+", ZERO_E_IO},       {"io.open@2", ZERO_E_IO},
};

struct failing {
    const struct failure *failure;
    uint8_t digest[16]; /**< at the end */
};

static bool go_on_after_a_failure(struct team_rank *rank, void *user)
{
    struct failing *failing = user;
    zero_save_info info = {.struct_size = sizeof info};
    rank->config.stage = 3;
    if (!toy_open(rank, &toy_odd) || !saved_now(rank, directory.directory, NULL) ||
        !toy_train(rank, &toy_odd, 1))
        return false;
    if (failing->failure) {
        if (!saved_fault(rank, failing->failure->fault))
            return false;
        const zero_result begun = zero_save(rank->z, directory.directory, NULL);
        TEAM_CHECK(begun == ZERO_OK || begun == ZERO_E_IO);
        if (!toy_train(rank, &toy_odd, 2))
            return false;
        if (!begun) {
            TEAM_FAILS(rank, zero_save_wait(rank->z), failing->failure->result, "zero_save");
            TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_IO, "zero_save");
            TEAM_OK(rank, zero_save_poll(rank->z, &info));
            TEAM_CHECK(info.phase == ZERO_SAVE_FAILED && info.step == 1 && info.file_bytes == 0);
        }
        TEAM_CHECK(exists(0) && !exists(1));
        if (!saved_fault(rank, NULL) || !saved_now(rank, directory.directory, NULL))
            return false;
        TEAM_CHECK(exists(3));
    } else if (!toy_train(rank, &toy_odd, 2)) {
        return false;
    }
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    if (failing->failure)
        TEAM_STATE(rank, failing->digest);
    else if (rank->rank == 0)
        TEAM_OK(rank, zero_fingerprint(rank->z, failing->digest));
    return true;
}

static void a_save_that_fails_harms_nothing(void **state)
{
    (void)state;
    struct failing failing = {.failure = NULL};
    assert_true(team_run(team_threads(1), 1, go_on_after_a_failure, &failing));
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        for (int world = 1; world <= 2; world++) {
            assert_int_equal(set_up(NULL), 0);
            failing.failure = &failures[i];
            if (!team_run(team_threads(world), world, go_on_after_a_failure, &failing))
                fail_msg("%s, %d ranks", failures[i].fault, world);
            assert_true(base_fault_fired() == 0);
            tear_down(NULL);
        }
    assert_int_equal(set_up(NULL), 0);
}

/* ------------------------------------------------------------------ asking from another thread */

enum { ASKED = 60 };

struct asking {
    const zero_ctx *z;
    uint8_t digest[ASKED][16]; /**< of each step, before it is saved */
    _Atomic bool ended;
    uint64_t wrong; /**< answers that were not true */
};

/** What is said of a save is said of one save. */
static void *ask(void *user)
{
    struct asking *asking = user;
    while (!asking->ended) {
        zero_save_info info = {.struct_size = sizeof info};
        zero_save_poll(asking->z, &info);
        const bool complete = info.phase == ZERO_SAVE_COMPLETE;
        const bool sane = info.seconds < 1000 && info.blocked_s < 1000 && info.step < ASKED;
        if (!sane || (complete && (memcmp(info.fingerprint, asking->digest[info.step], 16) != 0 ||
                                   info.done_bytes != info.state_bytes)))
            asking->wrong++;
    }
    return NULL;
}

static bool save_while_asked(struct team_rank *rank, void *user)
{
    struct asking *asking = user;
    pthread_t thread;
    bool good = true;
    struct toy toy = toy_odd;
    toy.micro_batches = 1;
    if (!toy_open(rank, &toy))
        return false;
    asking->z = rank->z;
    TEAM_CHECK(pthread_create(&thread, NULL, ask, asking) == 0);
    for (int step = 0; good && step < ASKED; step++) {
        good = zero_fingerprint(rank->z, asking->digest[step]) == ZERO_OK &&
               saved_now(rank, directory.directory, NULL) && toy_train(rank, &toy, 1);
    }
    asking->ended = true;
    pthread_join(thread, NULL);
    TEAM_CHECK(good && asking->wrong == 0);
    return true;
}

static void what_is_said_of_a_save_is_of_one(void **state)
{
    (void)state;
    struct asking asking = {.ended = false};
    assert_true(team_run(team_threads(1), 1, save_while_asked, &asking));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_newest_and_every_so_many_remain),     TEST(a_step_is_saved_again),
        TEST(a_run_that_went_back_goes_on_from_there), TEST(no_timing_changes_a_byte),
        TEST(readers_put_off_what_is_removed_only),    TEST(a_context_may_be_closed_in_the_middle),
        TEST(a_save_that_fails_harms_nothing),         TEST(what_is_said_of_a_save_is_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
