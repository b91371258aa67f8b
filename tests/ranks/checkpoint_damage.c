// Checkpoints that are not there, damaged, or can't be read: what zero_load() and zero_resume()
// say, and what they leave behind.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include "base/fault.h"
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

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

static void run(int world, team_fn fn, void *user)
{
    assert_true(team_run(team_threads(world), world, fn, user));
}

/** Checkpoints of steps 1 and 2, by two ranks. */
static void make_checkpoints(void)
{
    assert_true(temporary_empty(directory.directory));
    run(2, saved_steps, directory.directory);
}

static char *checkpoint_path(uint64_t step)
{
    static _Thread_local char path[SAVED_PATH];
    saved_path(path, directory.directory, step);
    return path;
}

/** Reads a file of a checkpoint, with a zero behind it. */
static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *contents = calloc(1, *bytes + 1);
    assert_int_equal(fread(contents, 1, *bytes, file), *bytes);
    fclose(file);
    return contents;
}

static void write_file(const char *path, const unsigned char *contents, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(contents, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/** Changes one byte of a file of a checkpoint. */
static void damage(uint64_t step, const char *name, size_t offset)
{
    char path[SAVED_PATH + 32];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", checkpoint_path(step), name);
    unsigned char *contents = read_file(path, &bytes);
    assert_true(offset < bytes);
    contents[offset] ^= 1;
    write_file(path, contents, bytes);
    free(contents);
}

/** Replaces a text of the manifest by one as long, and makes the checksum good again. */
static void forge(uint64_t step, const char *from, const char *to)
{
    enum { LAST_LINE = 48 };
    char path[SAVED_PATH + 32];
    size_t bytes;
    snprintf(path, sizeof path, "%s/manifest.json", checkpoint_path(step));
    unsigned char *contents = read_file(path, &bytes);
    char *at = strstr((char *)contents, from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    uint8_t sum[16];
    base_hash128_bytes(base_hash128(contents, bytes - LAST_LINE, 0), sum);
    char *digits = (char *)contents + bytes - LAST_LINE + strlen("\"xxh3_128\": \"");
    for (int i = 0; i < 16; i++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", sum[i]);
        memcpy(digits + 2 * (size_t)i, two, 2);
    }
    write_file(path, contents, bytes);
    free(contents);
}

/** Rank 0 does it while the others wait. */
#define ALONE(rank, action)                                                                        \
    do {                                                                                           \
        TEAM_OK(rank, zero_barrier((rank)->z));                                                    \
        if ((rank)->rank == 0)                                                                     \
            (void)(action);                                                                        \
        TEAM_OK(rank, zero_barrier((rank)->z));                                                    \
    } while (0)

/* ------------------------------------------------------------------ damage */

static bool load_wrongly(struct team_rank *rank, void *user)
{
    uint8_t digest[16];
    char path[4000];
    zero_load_result result = {.struct_size = 2};
    (void)user;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_FAILS(rank, zero_load(rank->z, directory.directory, NULL, NULL), ZERO_E_INVALID, "step-");
    TEAM_FAILS(rank, zero_load(rank->z, NULL, NULL, NULL), ZERO_E_INVALID, "path");
    TEAM_FAILS(rank, zero_load(rank->z, "", NULL, NULL), ZERO_E_INVALID, "path");
    memset(path, 'd', sizeof path);
    path[sizeof path - 1] = '\0';
    TEAM_FAILS(rank, zero_resume(rank->z, path, NULL, NULL), ZERO_E_INVALID, "path");
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, &result), ZERO_E_INVALID,
               "struct_size");
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_NOT_FOUND,
               "step-00000002");
    TEAM_FAILS(rank, zero_resume(rank->z, directory.directory, NULL, NULL), ZERO_NOT_FOUND,
               directory.directory);
    TEAM_FAILS(rank, zero_resume(rank->z, temporary_path(&directory, "none"), NULL, NULL),
               ZERO_NOT_FOUND, "none");
    TEAM_STATE(rank, digest);
    return toy_train(rank, &toy_odd, 1);
}

static void what_is_not_there(void **state)
{
    (void)state;
    run(1, load_wrongly, NULL);
    run(2, load_wrongly, NULL);
}

static bool load_elsewhere(struct team_rank *rank, void *user)
{
    (void)user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(rank->rank == 0 ? 1 : 2), NULL, NULL),
               ZERO_E_DIVERGED, "load");
    TEAM_CHECK(zero_load(rank->z, checkpoint_path(1), NULL, NULL) == ZERO_E_DIVERGED);
    team_close(rank);
    const char *path = rank->rank == 0 ? directory.directory : "elsewhere";
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, path, NULL, NULL), ZERO_E_DIVERGED, "load");
    team_close(rank);
    // One of them does not see the manifest: its third file, the other's sixth at most. Beside them
    // only those would be opened that say how much memory there is.
    rank->config.memory_limit = ZERO_OFF;
    if (!toy_open(rank, &toy_odd) || !saved_fault(rank, "io.open:enoent@6"))
        return false;
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(1), NULL, NULL), ZERO_E_DIVERGED,
               "does not see");
    return true;
}

static void ranks_load_the_same(void **state)
{
    (void)state;
    make_checkpoints();
    run(2, load_elsewhere, NULL);
}

static bool load_damaged(struct team_rank *rank, void *user)
{
    uint8_t digest[16];
    (void)user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    ALONE(rank, damage(2, "manifest.json", 100));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_CORRUPT,
               "manifest.json");
    ALONE(rank, damage(2, "manifest.json", 100));
    ALONE(rank, forge(2, "\"format\": 1", "\"format\": 9"));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_VERSION, "9");
    TEAM_FAILS(rank, zero_resume(rank->z, directory.directory, NULL, NULL), ZERO_E_VERSION, "9");
    ALONE(rank, forge(2, "\"format\": 9", "\"format\": 1"));
    TEAM_STATE(rank, digest);
    ALONE(rank, damage(2, "shard-00001.zst", 8192));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_CORRUPT, "tensor");
    TEAM_CHECK(zero_save(rank->z, directory.directory, NULL) == ZERO_E_CORRUPT);
    return true;
}

static void damage_is_found(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        assert_int_equal(set_up(NULL), 0);
        make_checkpoints();
        run(world, load_damaged, NULL);
        tear_down(NULL);
    }
    assert_int_equal(set_up(NULL), 0);
}

static bool load_without_a_shard(struct team_rank *rank, void *user)
{
    const char *fault = user;
    rank->config.memory_limit = ZERO_OFF; // or files are read that say how much there is
    if (!toy_open(rank, &toy_odd))
        return false;
    if (fault) {
        if (!saved_fault(rank, fault))
            return false;
        TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_IO,
                   "zero_load");
        return true;
    }
    char path[SAVED_PATH + 32];
    snprintf(path, sizeof path, "%s/shard-00001.zst", checkpoint_path(2));
    ALONE(rank, unlink(path));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_CORRUPT,
               "shard-00001");
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_CORRUPT);
    return true;
}

static void a_shard_that_is_gone_or_cannot_be_read(void **state)
{
    (void)state;
    static char faults[][24] = {"io.read@1", "io.read@3", "io.read@20+", "io.open@2"};
    make_checkpoints();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        run(2, load_without_a_shard, faults[i]);
        base_fault_set(NULL, NULL);
    }
    run(2, load_without_a_shard, NULL);
}

/** Whichever allocation fails, on whichever rank: the same for all, and a new context gets on. */
static bool load_without_memory(struct team_rank *rank, void *user)
{
    char fault[32];
    int refused = 0;
    (void)user;
    for (int n = 1; n < 2000; n++) {
        if (!rank->z && !toy_open(rank, &toy_odd))
            return false;
        snprintf(fault, sizeof fault, "alloc@%d", n);
        if (!saved_fault(rank, fault))
            return false;
        const zero_result r = n % 2 ? zero_load(rank->z, checkpoint_path(2), NULL, NULL)
                                    : zero_resume(rank->z, directory.directory, NULL, NULL);
        TEAM_CHECK(r == ZERO_OK || r == ZERO_E_NOMEM);
        if (r) {
            refused++;
            TEAM_CHECK(strstr(zero_last_error(rank->z), "memory"));
            // After values began to change it is fatal.
            if (zero_barrier(rank->z) == ZERO_E_NOMEM)
                team_close(rank);
        }
        if (!r)
            break;
    }
    TEAM_CHECK(refused > 10);
    return saved_fault(rank, NULL);
}

static void a_load_without_memory(void **state)
{
    (void)state;
    make_checkpoints();
    run(1, load_without_memory, NULL);
    run(2, load_without_memory, NULL);
}

/* ------------------------------------------------------------------ resuming */

struct warnings {
    int count;
    char first[512];
};

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    struct warnings *warnings = user;
    (void)component;
    if (level == ZERO_LOG_WARN && warnings->count++ == 0)
        snprintf(warnings->first, sizeof warnings->first, "%s", message);
}

static bool resume_from_older(struct team_rank *rank, void *user)
{
    struct warnings warnings = {0};
    zero_load_result result = {.struct_size = sizeof result};
    uint8_t digest[16];
    (void)user;
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    rank->config.log_user = &warnings;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (!toy_train(rank, &toy_odd, 2))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(result.step == 1 && result.damaged == 1);
    TEAM_CHECK(warnings.count == 1 && strstr(warnings.first, "step-00000002"));
    TEAM_STATE(rank, digest);
    return toy_train(rank, &toy_odd, 1);
}

static bool resume_from_nothing(struct team_rank *rank, void *user)
{
    const bool *changes = user;
    uint8_t digest[16];
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_FAILS(rank, zero_resume(rank->z, directory.directory, NULL, NULL), ZERO_E_CORRUPT,
               *changes ? "shard-00001.zst" : "step-00000001/manifest.json");
    TEAM_CHECK(*changes || strstr(zero_last_error(rank->z), "; nothing else in "));
    if (!*changes)
        TEAM_STATE(rank, digest);
    else
        TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_CORRUPT);
    return true;
}

static void the_one_before_is_taken(void **state)
{
    (void)state;
    static const char *const files[] = {"manifest.json", "shard-00001.zst"};
    static const size_t offsets[] = {100, 8192};
    for (int f = 0; f < 2; f++) {
        bool changes = f == 1;
        for (int world = 1; world <= 2; world++) {
            assert_int_equal(set_up(NULL), 0);
            make_checkpoints();
            damage(2, files[f], offsets[f]);
            run(world, resume_from_older, NULL);
            damage(1, files[f], offsets[f]);
            run(world, resume_from_nothing, &changes);
            tear_down(NULL);
        }
    }
    assert_int_equal(set_up(NULL), 0);
}

/** Saves step 2, and then, as after going back, step 1. */
static bool go_back(struct team_rank *rank, void *user)
{
    zero_save_options beside = zero_save_options_default();
    beside.beside_other_runs = 1;
    for (int step = 2; step >= 1; step--) {
        if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, step) ||
            !saved_now(rank, directory.directory, &beside))
            return false;
        team_close(rank);
    }
    return user == NULL;
}

/** Which of the two is taken if the read of a manifest fails that tells their order, and a word of
 * the only warning; NULL: there is none. */
struct doubt {
    const char *fault;
    uint64_t step;
    const char *warning;
};

static bool resume_in_doubt(struct team_rank *rank, void *user)
{
    const struct doubt *doubt = user;
    struct warnings warnings = {0};
    zero_load_result result = {.struct_size = sizeof result};
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    rank->config.log_user = &warnings;
    if (!toy_open(rank, &toy_odd) || !saved_fault(rank, doubt->fault))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(saved_fault(rank, NULL));
    TEAM_CHECK(result.step == doubt->step && result.damaged == 0);
    TEAM_CHECK(warnings.count == (doubt->warning != NULL));
    if (!doubt->warning)
        return true;
    TEAM_CHECK(strstr(warnings.first, "not certain which checkpoint is the newest"));
    TEAM_CHECK(strstr(warnings.first, doubt->warning));
    return true;
}

/** Nothing is damaged, but another one may be taken for the newest: that is told. */
static void an_order_that_is_not_known_is_told(void **state)
{
    (void)state;
    static const struct doubt doubts[] = {
        {NULL, 1, NULL},
        {"io.read@1", 2, "step-00000001/manifest.json' failed at offset 0: Input/output error"},
        {"io.read@2", 2, "step-00000002/manifest.json' failed at offset 0: Input/output error"},
    };
    run(1, go_back, NULL);
    for (size_t i = 0; i < sizeof doubts / sizeof *doubts; i++) {
        struct doubt doubt = doubts[i];
        run(1, resume_in_doubt, &doubt);
    }
}

/** Manifests that are read to put them in order: if that fails, the newer one may still be taken.
 */
enum { LISTED = 2 };

enum { BEFORE_LAST = 8, STACKED = 3, STACKED_ELEMENTS = 1500 };

/** Step 0 without the last tensor, then step 1 with all of them. */
static bool save_a_part_and_all(struct team_rank *rank, void *user)
{
    struct toy part = toy_odd;
    zero_save_options beside = zero_save_options_default();
    (void)user;
    beside.beside_other_runs = 1;
    part.tensor_count = BEFORE_LAST;
    if (!toy_open(rank, &part) || !saved_now(rank, directory.directory, NULL))
        return false;
    team_close(rank);
    return toy_open(rank, &toy_odd) && toy_train(rank, &toy_odd, 1) &&
           saved_now(rank, directory.directory, &beside);
}

static bool last_stays(struct team_rank *rank, const struct toy *toy)
{
    float values[STACKED_ELEMENTS];
    for (int s = 0; s < STACKED; s++) {
        TEAM_OK(rank, zero_param_read(rank->z, BEFORE_LAST, s, 0, STACKED_ELEMENTS, values));
        for (uint64_t i = 0; i < STACKED_ELEMENTS; i++)
            TEAM_CHECK(values[i] == toy_value(toy, "stacked", s, i));
    }
    return true;
}

/** What the older one has not stays, though the damaged newer one has it. */
static bool resume_in_part(struct team_rank *rank, void *user)
{
    const zero_load_options partial = {.struct_size = sizeof partial, .partial = 1};
    struct warnings warnings = {0};
    zero_load_result result = {.struct_size = sizeof result};
    struct toy toy = toy_odd;
    float values[1];
    (void)user;
    toy.salt = 9;
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    rank->config.log_user = &warnings;
    if (!toy_open(rank, &toy))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, &partial, &result));
    TEAM_CHECK(result.step == 0 && result.damaged == 1 && result.missing == 1);
    TEAM_CHECK(warnings.count == 1 && strstr(warnings.first, "step-00000001/shard-00001.zst"));
    TEAM_OK(rank, zero_param_read(rank->z, 0, 0, 0, 1, values));
    TEAM_CHECK(values[0] == toy_value(&toy_odd, "scalar", 0, 0));
    return last_stays(rank, &toy) && toy_train(rank, &toy, 1);
}

static void what_the_one_before_lacks_stays_as_it_is(void **state)
{
    (void)state;
    static const size_t offsets[] = {8192, 20000, 40000};
    run(2, save_a_part_and_all, NULL);
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        damage(1, "shard-00001.zst", offsets[i]);
        for (int world = 1; world <= 3; world++)
            run(world, resume_in_part, NULL);
        damage(1, "shard-00001.zst", offsets[i]);
    }
}

/** Whichever read fails: the newer one, or the older one and nothing of the newer one, or an error
 * after which nothing goes on. */
static bool resume_in_part_with_faults(struct team_rank *rank, void *user)
{
    const zero_load_options partial = {.struct_size = sizeof partial, .partial = 1};
    int *count = user;
    struct toy toy = toy_odd;
    toy.salt = 9;
    for (int n = 1, good = 0; good < LISTED + 1; n++) {
        char fault[32];
        zero_load_result result = {.struct_size = sizeof result};
        snprintf(fault, sizeof fault, "io.read@%d", n);
        if (!toy_open(rank, &toy) || !saved_fault(rank, fault))
            return false;
        const zero_result r = zero_resume(rank->z, directory.directory, &partial, &result);
        TEAM_CHECK(r == ZERO_OK || (r == ZERO_E_IO && zero_barrier(rank->z) == ZERO_E_IO));
        const bool older = r == ZERO_OK && result.step == 0;
        TEAM_CHECK(!older || (result.damaged == 1 && last_stays(rank, &toy)));
        good += r == ZERO_OK && result.damaged == 0;
        count[0] += older;
        count[1] += r != ZERO_OK;
        team_close(rank);
    }
    return true;
}

static void whichever_read_fails_no_value_is_wrong(void **state)
{
    (void)state;
    int count[2] = {0, 0};
    run(2, save_a_part_and_all, NULL);
    run(1, resume_in_part_with_faults, count);
    assert_true(count[0] > 10 && count[1] > 10);
}

/** Saves one step more, with bytes of each rank. */
static bool save_ranks_bytes(struct team_rank *rank, void *user)
{
    const int *step = user;
    int mine = 10 * *step + rank->rank;
    zero_save_options beside = zero_save_options_default();
    beside.beside_other_runs = 1;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "mine", &mine, sizeof mine, ZERO_OF_RANK));
    return toy_train(rank, &toy_odd, *step) && saved_now(rank, directory.directory, &beside);
}

/** Those of a rank whose own part of the newer one is good are none of that one's, either. */
static bool resume_ranks_bytes(struct team_rank *rank, void *user)
{
    zero_load_result result = {.struct_size = sizeof result};
    int mine = -1;
    (void)user;
    rank->config.stage = 2;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "mine", &mine, sizeof mine, ZERO_OF_RANK));
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
    TEAM_CHECK(result.step == 1 && result.damaged == 1 && result.rank_blobs == 0);
    TEAM_CHECK(mine == -1);
    return true;
}

static void bytes_of_ranks_are_those_of_what_is_loaded(void **state)
{
    (void)state;
    int steps[] = {1, 2};
    run(3, save_ranks_bytes, &steps[0]);
    run(2, save_ranks_bytes, &steps[1]);
    damage(2, "shard-00001.zst", 12288);
    run(2, resume_ranks_bytes, NULL);
}

/* ------------------------------------------------------------------ a later library's */

/** A hyper-parameter that this library does not know may decide what an update is. */
static bool load_other_hyper(struct team_rank *rank, void *user)
{
    const zero_load_options partial = {.struct_size = sizeof partial, .partial = 1};
    uint8_t digest[16];
    (void)user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    ALONE(rank, forge(2, "\"beta1\": ", "\"gamma\": "));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_INVALID,
               "group group0 has another set of hyper-parameters");
    TEAM_FAILS(rank, zero_resume(rank->z, directory.directory, NULL, NULL), ZERO_E_INVALID,
               "hyper-parameters");
    TEAM_STATE(rank, digest);
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(2), &partial, NULL));
    return toy_train(rank, &toy_odd, 1);
}

static void hyper_parameters_that_nobody_knows(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        assert_int_equal(set_up(NULL), 0);
        make_checkpoints();
        run(world, load_other_hyper, NULL);
        tear_down(NULL);
    }
    assert_int_equal(set_up(NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_not_there),
        TEST(ranks_load_the_same),
        TEST(damage_is_found),
        TEST(a_shard_that_is_gone_or_cannot_be_read),
        TEST(a_load_without_memory),
        TEST(the_one_before_is_taken),
        TEST(an_order_that_is_not_known_is_told),
        TEST(what_the_one_before_lacks_stays_as_it_is),
        TEST(whichever_read_fails_no_value_is_wrong),
        TEST(bytes_of_ranks_are_those_of_what_is_loaded),
        TEST(hyper_parameters_that_nobody_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
