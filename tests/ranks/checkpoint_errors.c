// What zero_attach() and zero_save() refuse, and zero_load() and zero_resume() of another model or
// configuration; what is left behind then.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include "base/fault.h"

#include <zero/optimizer.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MOST_BLOBS = 64 };

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

/* ------------------------------------------------------------------ attaching */

static bool attach_wrongly(struct team_rank *rank, void *user)
{
    static _Thread_local uint8_t memory[8];
    zero_ctx *z;
    char name[MOST_BLOBS + 1] = {0};
    (void)user;
    if (!team_open(rank))
        return false;
    z = rank->z;
    TEAM_CHECK(zero_attach(NULL, "a", memory, 1, ZERO_GLOBAL) == ZERO_E_INVALID);
    TEAM_FAILS(rank, zero_attach(z, NULL, memory, 1, ZERO_GLOBAL), ZERO_E_INVALID, "name");
    TEAM_FAILS(rank, zero_attach(z, "", memory, 1, ZERO_GLOBAL), ZERO_E_INVALID, "name");
    TEAM_FAILS(rank, zero_attach(z, "a b", memory, 1, ZERO_GLOBAL), ZERO_E_INVALID, "name");
    TEAM_FAILS(rank, zero_attach(z, "a/b", memory, 1, ZERO_GLOBAL), ZERO_E_INVALID, "name");
    memset(name, 'n', MOST_BLOBS);
    TEAM_FAILS(rank, zero_attach(z, name, memory, 1, ZERO_GLOBAL), ZERO_E_INVALID, "63");
    name[MOST_BLOBS - 1] = '\0';
    TEAM_OK(rank, zero_attach(z, name, memory, 1, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(z, name, NULL, 0, ZERO_GLOBAL));
    TEAM_FAILS(rank, zero_attach(z, "a", memory, 1, (zero_scope)2), ZERO_E_INVALID, "scope 2");
    TEAM_FAILS(rank, zero_attach(z, "a", NULL, 1, ZERO_GLOBAL), ZERO_E_INVALID, "1 bytes");
    TEAM_FAILS(rank, zero_attach(z, "a", memory, UINT64_MAX, ZERO_GLOBAL), ZERO_E_INVALID, "bytes");
    for (int i = 0; i < MOST_BLOBS; i++) {
        snprintf(name, sizeof name, "blob-%d", i);
        TEAM_OK(rank, zero_attach(z, name, memory, 1, i % 2 ? ZERO_GLOBAL : ZERO_OF_RANK));
    }
    TEAM_FAILS(rank, zero_attach(z, "65th", memory, 1, ZERO_GLOBAL), ZERO_E_LIMIT, "65th");
    TEAM_OK(rank, zero_attach(z, "65th", NULL, 0, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(z, "blob-7", memory, 2, ZERO_OF_RANK));
    TEAM_OK(rank, zero_attach(z, "blob-9", NULL, 0, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(z, "65th", memory, 1, ZERO_GLOBAL));
    TEAM_FAILS(rank, zero_attach(z, "66th", memory, 1, ZERO_GLOBAL), ZERO_E_LIMIT, "66th");
    return true;
}

static void names_scopes_and_memory_of_blobs(void **state)
{
    (void)state;
    run(1, attach_wrongly, NULL);
}

static bool attach_at_a_bad_time(struct team_rank *rank, void *user)
{
    static _Thread_local uint8_t memory[8];
    uint8_t digest[16];
    (void)user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (!saved_fault(rank, "alloc@1+"))
        return false;
    TEAM_FAILS(rank, zero_attach(rank->z, "a", memory, 1, ZERO_GLOBAL), ZERO_E_NOMEM, "memory");
    if (!saved_fault(rank, NULL))
        return false;
    TEAM_STATE(rank, digest);
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_FAILS(rank, zero_attach(rank->z, "a", memory, 1, ZERO_GLOBAL), ZERO_E_STATE, "step");
    TEAM_FAILS(rank, zero_save(rank->z, directory.directory, NULL), ZERO_E_STATE, "step");
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_STATE, "step");
    TEAM_FAILS(rank, zero_load(rank->z, "a/step-1", NULL, NULL), ZERO_E_STATE, "step");
    TEAM_FAILS(rank, zero_resume(rank->z, "a", NULL, NULL), ZERO_E_STATE, "step");
    return true;
}

static void nothing_of_it_in_a_step(void **state)
{
    (void)state;
    run(2, attach_at_a_bad_time, NULL);
}

static bool while_a_unit_is_gathered(struct team_rank *rank, void *user)
{
    zero_save_info info = {.struct_size = 3};
    (void)user;
    if (!team_open(rank))
        return false;
    TEAM_FAILS(rank, zero_save(rank->z, directory.directory, NULL), ZERO_E_STATE, "zero_commit");
    team_close(rank);
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_CHECK(zero_save(NULL, directory.directory, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_save_wait(NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_load(NULL, "a/step-1", NULL, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_resume(NULL, "a", NULL, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_save_poll(rank->z, &info) == ZERO_E_INVALID);
    TEAM_CHECK(zero_save_poll(rank->z, NULL) == ZERO_E_INVALID);
    TEAM_OK(rank, zero_gather(rank->z, 2, NULL));
    TEAM_FAILS(rank, zero_save(rank->z, directory.directory, NULL), ZERO_E_STATE, "gathered");
    TEAM_FAILS(rank, zero_load(rank->z, "a/step-1", NULL, NULL), ZERO_E_STATE, "gathered");
    TEAM_FAILS(rank, zero_resume(rank->z, "a", NULL, NULL), ZERO_E_STATE, "gathered");
    TEAM_OK(rank, zero_release(rank->z, 2, NULL));
    TEAM_OK(rank, zero_eval_begin(rank->z, 2));
    TEAM_FAILS(rank, zero_save(rank->z, directory.directory, NULL), ZERO_E_STATE, "evaluation");
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_STATE, "evaluation");
    return true;
}

static void nothing_of_it_between_gather_and_release(void **state)
{
    (void)state;
    run(2, while_a_unit_is_gathered, NULL);
}

/* ------------------------------------------------------------------ saving */

static bool save_wrongly(struct team_rank *rank, void *user)
{
    static const zero_save_options wrong[] = {
        {.level = 20},      {.level = -2},     {.keep = -1},
        {.keep_every = -1}, {.keep_every = 5}, {.room_bytes = -2},
    };
    static const char *const says[] = {"level 20",   "level -2",     "keep -1",
                                       "keep_every", "keep_every 5", "room_bytes -2"};
    char path[4000];
    uint8_t digest[16];
    zero_save_info info = {.struct_size = sizeof info};
    (void)user;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        zero_save_options options = wrong[i];
        options.struct_size = sizeof options;
        TEAM_FAILS(rank, zero_save(rank->z, directory.directory, &options), ZERO_E_INVALID,
                   says[i]);
    }
    memset(path, 'd', sizeof path);
    path[sizeof path - 1] = '\0';
    TEAM_FAILS(rank, zero_save(rank->z, path, NULL), ZERO_E_INVALID, "directory");
    TEAM_FAILS(rank, zero_save(rank->z, "", NULL), ZERO_E_INVALID, "directory");
    TEAM_FAILS(rank, zero_save(rank->z, NULL, NULL), ZERO_E_INVALID, "directory");
    TEAM_FAILS(rank, zero_save(rank->z, temporary_path(&directory, "file"), NULL), ZERO_E_INVALID,
               "file");
    TEAM_FAILS(rank, zero_save(rank->z, temporary_path(&directory, "not/there"), NULL), ZERO_E_IO,
               "not/there");
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_NONE && info.step == 0 && info.seconds == 0);
    TEAM_STATE(rank, digest);
    return saved_now(rank, temporary_path(&directory, "there"), NULL) &&
           toy_train(rank, &toy_odd, 1);
}

static void options_and_directories_of_a_save(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        assert_true(temporary_empty(directory.directory));
        assert_true(temporary_write(&directory, "file", "text"));
        run(world, save_wrongly, NULL);
    }
}

/** Two contexts of one process: the directory belongs to the first one until it is closed. */
static bool save_where_another_saves(struct team_rank *rank, void *user)
{
    zero_ctx *first;
    (void)user;
    if (!toy_open(rank, &toy_odd) || !saved_now(rank, directory.directory, NULL))
        return false;
    first = rank->z;
    rank->z = NULL;
    rank->config.name = "second";
    bool good =
        toy_open(rank, &toy_odd) && saved_fails(rank, zero_save(rank->z, directory.directory, NULL),
                                                ZERO_E_STATE, directory.directory, "a second save");
    zero_close(first);
    if (!good)
        return false;
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    return saved_now(rank, directory.directory, NULL) && toy_train(rank, &toy_odd, 1);
}

static void one_job_saves_in_a_directory(void **state)
{
    (void)state;
    run(1, save_where_another_saves, NULL);
    assert_true(temporary_empty(directory.directory));
    run(2, save_where_another_saves, NULL);
}

/** What rank 1 does otherwise. */
enum difference { DIRECTORY, OPTIONS, NAMES, SCOPES, BYTES, CONTENTS, DIFFERENCES };

static bool save_another_way(struct team_rank *rank, void *user)
{
    const enum difference difference = *(enum difference *)user;
    const bool other = rank->rank == 1;
    static _Thread_local char blob[16];
    zero_save_options options = zero_save_options_default();
    const char *path = directory.directory;
    const char *name = other && difference == NAMES ? "b" : "a";
    if (!toy_open(rank, &toy_odd))
        return false;
    memset(blob, other && difference == CONTENTS, sizeof blob);
    options.keep = other && difference == OPTIONS;
    if (other && difference == DIRECTORY)
        path = temporary_path(&directory, "other");
    TEAM_OK(rank, zero_attach(rank->z, name, blob,
                              other && difference == BYTES ? sizeof blob : sizeof blob - 1,
                              other && difference == SCOPES ? ZERO_OF_RANK : ZERO_GLOBAL));
    static const char *const says[DIFFERENCES] = {
        [DIRECTORY] = "the arguments of zero_save",
        [OPTIONS] = "the arguments of zero_save",
        [NAMES] = "names and scopes",
        [SCOPES] = "names and scopes",
        [BYTES] = "ranks 0 and 1 differ in the attached bytes \"a\"",
        [CONTENTS] = "ranks 0 and 1 differ in the attached bytes \"a\"",
    };
    TEAM_FAILS(rank, zero_save(rank->z, path, &options), ZERO_E_DIVERGED, says[difference]);
    TEAM_CHECK(zero_save_wait(rank->z) == ZERO_E_DIVERGED);
    return true;
}

static void ranks_save_the_same(void **state)
{
    (void)state;
    for (int difference = 0; difference < DIFFERENCES; difference++) {
        enum difference which = (enum difference)difference;
        if (!team_run(team_threads(2), 2, save_another_way, &which))
            fail_msg("difference %d", difference);
    }
}

/** Whichever allocation fails, on whichever rank: no save, on any. Counts those that did not begin,
 * and those that failed later. */
static bool sweep_allocations(struct team_rank *rank, int *refused, int *late)
{
    char fault[32];
    zero_result r = ZERO_E_NOMEM;
    for (int n = 1; r; n++) {
        snprintf(fault, sizeof fault, "alloc@%d", n);
        if (!saved_fault(rank, fault))
            return false;
        const zero_result begun = zero_save(rank->z, directory.directory, NULL);
        const zero_result waited = begun ? ZERO_OK : zero_save_wait(rank->z);
        *refused += begun != ZERO_OK;
        *late += waited != ZERO_OK;
        r = begun ? begun : waited;
        TEAM_CHECK(r == ZERO_OK ||
                   (r == ZERO_E_NOMEM && strstr(zero_last_error(rank->z), "memory")));
        TEAM_CHECK(n < 500);
    }
    return saved_fault(rank, NULL);
}

static bool save_without_memory(struct team_rank *rank, void *user)
{
    uint8_t digest[16];
    int refused = 0, late = 0;
    (void)user;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    // The first save allocates more than the next ones.
    for (int round = 0; round < 2; round++)
        if (!sweep_allocations(rank, &refused, &late))
            return false;
    TEAM_CHECK(refused > 10 && late > 0);
    TEAM_STATE(rank, digest);
    return saved_now(rank, directory.directory, NULL);
}

static void a_save_without_memory(void **state)
{
    (void)state;
    run(1, save_without_memory, NULL);
    assert_true(temporary_empty(directory.directory));
    run(2, save_without_memory, NULL);
}

/* ------------------------------------------------------------------ something to load */

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

/* ------------------------------------------------------------------ another model */

/** What is another one where it is loaded, and what is said of it. */
struct otherness {
    const char *says;
    const char *key;  /**< of the configuration, */
    const char *text; /**< and its value */
    int value;
    int tensors;                      /**< of the model; 0: all */
    const struct toy_tensor *instead; /**< of the first one */
    zero_group_desc group;            /**< the second one's; without struct_size: the default */
    unsigned frozen;
    bool attached;
    bool stays; /**< the first tensor, as its group has another optimizer */
    zero_load_options options;
};

static bool is(const struct otherness *other, const char *key)
{
    return other->key && strcmp(other->key, key) == 0;
}

static void configure(zero_config *config, const struct otherness *other)
{
    config->micro_batches = toy_odd.micro_batches;
    if (is(other, "micro_batches"))
        config->micro_batches = other->value;
    if (is(other, "sum_group"))
        config->sum_group = other->value;
    if (is(other, "seed"))
        config->seed = (uint64_t)other->value;
    if (is(other, "loss_scale"))
        config->loss_scale = other->text;
    if (is(other, "comm_dtype"))
        config->comm_dtype = ZERO_BF16;
    if (is(other, "reduction"))
        config->reduction = other->text;
}

static bool open_other(struct team_rank *rank, const struct otherness *other)
{
    static _Thread_local struct toy_tensor tensors[16];
    static _Thread_local zero_group_desc groups[2];
    static _Thread_local struct toy toy;
    static _Thread_local char blob[100];
    toy = toy_odd;
    memcpy(tensors, toy.tensors, (size_t)toy.tensor_count * sizeof *tensors);
    if (other->instead)
        tensors[0] = *other->instead;
    groups[0] = groups[1] = zero_group_default();
    if (other->group.struct_size)
        groups[1] = other->group;
    toy.tensors = tensors;
    toy.groups = groups;
    toy.salt = 9;
    toy.frozen = other->frozen;
    if (other->tensors)
        toy.tensor_count = other->tensors;
    configure(&rank->config, other);
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    if (other->attached)
        TEAM_OK(rank, zero_attach(rank->z, "blob", blob, sizeof blob, ZERO_GLOBAL));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static bool load_another(struct team_rank *rank, void *user)
{
    const struct otherness *other = user;
    uint8_t digest[16];
    if (!open_other(rank, other))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), &other->options, NULL), ZERO_E_INVALID,
               other->says);
    TEAM_FAILS(rank, zero_resume(rank->z, directory.directory, &other->options, NULL),
               ZERO_E_INVALID, other->says);
    TEAM_STATE(rank, digest);
    return true;
}

#define GROUP .struct_size = sizeof(zero_group_desc)
#define STRICT .options = {.struct_size = sizeof(zero_load_options)}

static void another_model_or_configuration_is_refused(void **state)
{
    (void)state;
    static const struct toy_tensor longer = {
        .name = "scalar", .unit = 0, .slices = 1, .numel = 2, .group = 1};
    static const struct toy_tensor named = {
        .name = "renamed", .unit = 0, .slices = 1, .numel = 1, .group = 1};
    static const struct otherness others[] = {
        {"tensor scalar has another shape", .instead = &longer, STRICT},
        {"tensor renamed is not in it", .instead = &named, STRICT},
        {"tensor stacked is none of this model's", .tensors = 8, STRICT},
        {"optimizer", .group = {GROUP, .optimizer = "adam"}, STRICT},
        {"another optimizer", .group = {GROUP, .optimizer = "sgd"}, STRICT},
        {"decay", .group = {GROUP, .decay = ZERO_DECAY_L2}, STRICT},
        {"tensor seven", .frozen = 1 << 1, STRICT},
        {"blob", .attached = true, STRICT},
        {"micro_batches=7", .key = "micro_batches", .value = 8, STRICT},
        {"sum_group=1", .key = "sum_group", .value = 2, STRICT},
        {"seed=0", .key = "seed", .value = 3, STRICT},
        {"loss scale", .key = "loss_scale", .text = "dynamic", STRICT},
        {"loss scale", .key = "loss_scale", .text = "8", STRICT},
        {"comm_dtype", .key = "comm_dtype", STRICT},
    };
    make_checkpoints();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct otherness other = others[i];
        const int world = 1 + (int)i % 3;
        if (!team_run(team_threads(world), world, load_another, &other))
            fail_msg("%s, case %zu", other.says, i);
    }
    struct otherness local = {"reduction", .key = "reduction", .text = "local", STRICT};
    run(1, load_another, &local);
}

/* ------------------------------------------------------------------ in part */

static bool save_with_a_blob(struct team_rank *rank, void *user)
{
    static char blob[100] = "blob";
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "blob", blob, sizeof blob, ZERO_GLOBAL));
    return toy_train(rank, &toy_odd, SAVED_AT) && saved_now(rank, user, NULL);
}

static bool load_in_part(struct team_rank *rank, void *user)
{
    const struct otherness *other = user;
    zero_load_result result = {.struct_size = sizeof result};
    float value;
    if (!open_other(rank, other))
        return false;
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(2), &other->options, &result));
    TEAM_CHECK(result.missing == other->value && result.step == 2 && result.updates == 2);
    TEAM_OK(rank, zero_param_read(rank->z, 0, 0, 0, 1, &value));
    const struct toy toy = {.salt = 9};
    const char *name = other->instead ? other->instead->name : "scalar";
    TEAM_CHECK((value == toy_value(&toy, name, 0, 0)) == (other->instead || other->stays));
    return toy_train(rank, &toy_odd, other->instead || other->tensors ? 0 : 1);
}

static void a_part_may_be_loaded(void **state)
{
    (void)state;
    static const struct toy_tensor longer = {
        .name = "scalar", .unit = 0, .slices = 1, .numel = 2, .group = 1};
    static const struct toy_tensor named = {
        .name = "renamed", .unit = 0, .slices = 1, .numel = 1, .group = 1};
#define PARTIAL .options = {.struct_size = sizeof(zero_load_options), .partial = 1 }
    static const struct otherness others[] = {
        {.instead = &longer, .value = 1, PARTIAL},
        {.instead = &named, .value = 1, PARTIAL},
        {.tensors = 8, .value = 0, PARTIAL},
        {.value = 0, PARTIAL},
        {.attached = true, PARTIAL},
        {.group = {GROUP, .name = "head"}, .value = 0, PARTIAL},
        {.group = {GROUP, .decay = ZERO_DECAY_L2}, .value = 0, PARTIAL},
        {.group = {GROUP, .optimizer = "sgd"}, .value = 3, .stays = true, PARTIAL},
    };
    for (int blobs = 0; blobs < 2; blobs++) {
        assert_true(temporary_empty(directory.directory));
        run(2, blobs ? save_with_a_blob : saved_steps, directory.directory);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            struct otherness other = others[i];
            if (!team_run(team_threads(2), 2, load_in_part, &other))
                fail_msg("case %zu", i);
        }
    }
}

/* ------------------------------------------------------------------ V */

static bool take_the_batch(struct team_rank *rank, void *user)
{
    const zero_load_options anew = {.struct_size = sizeof anew, .allow_new_batch = 1};
    (void)user;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(zero_micro_total(rank->z) == rank->world);
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL));
    TEAM_CHECK(zero_micro_total(rank->z) == toy_odd.micro_batches);
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    team_close(rank);
    rank->config.micro_batches = 5;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(2), &anew, NULL));
    TEAM_CHECK(zero_micro_total(rank->z) == 5);
    return toy_train(rank, &toy_odd, 1);
}

static void the_batch_is_the_one_that_was_saved(void **state)
{
    (void)state;
    make_checkpoints();
    for (int world = 1; world <= 3; world++)
        run(world, take_the_batch, NULL);
}

/** A run with a schedule of V is taken back to before it changed, and forth. */
static bool take_a_schedule_back(struct team_rank *rank, void *user)
{
    const zero_load_options anew = {.struct_size = sizeof anew, .allow_new_batch = 1};
    struct toy toy = toy_odd, more = toy_odd;
    uint8_t digests[2][16];
    (void)user;
    more.micro_batches = 9;
    if (!toy_open(rank, &toy) || !saved_now(rank, directory.directory, NULL))
        return false;
    for (int s = 0; s < 2; s++) {
        TEAM_OK(rank, zero_set_micro_batches(rank->z, more.micro_batches));
        if (!toy_train(rank, &more, 1) || !saved_now(rank, directory.directory, NULL))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, digests[s]));
        TEAM_OK(rank, zero_load(rank->z, checkpoint_path(0), NULL, NULL));
        TEAM_CHECK(zero_micro_total(rank->z) == toy.micro_batches);
    }
    TEAM_CHECK(memcmp(digests[0], digests[1], sizeof digests[0]) == 0);
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(1), NULL, NULL));
    TEAM_CHECK(zero_micro_total(rank->z) == more.micro_batches);
    TEAM_STATE(rank, digests[0]);
    TEAM_OK(rank, zero_set_micro_batches(rank->z, 5));
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(0), &anew, NULL));
    TEAM_CHECK(zero_micro_total(rank->z) == 5);
    team_close(rank);
    // The configuration fixes it.
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(1), NULL, NULL), ZERO_E_INVALID,
               "micro_batches=9");
    TEAM_CHECK(zero_micro_total(rank->z) == toy.micro_batches);
    return true;
}

static void a_schedule_of_batches_goes_back(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        assert_true(temporary_empty(directory.directory));
        run(world, take_a_schedule_back, NULL);
    }
}

/** What reduction=local has saved goes on with the same bits on as many ranks, and with others on
 * another number, if V can be dealt out to them. */
struct local {
    int saved_world;
    uint8_t saved[16], end[16];
};

static bool go_on_locally(struct team_rank *rank, void *user)
{
    struct local *local = user;
    struct toy toy = toy_odd;
    uint8_t digest[16];
    toy.micro_batches = 12;
    rank->config.stage = local->saved_world ? 1 : 0;
    rank->config.reduction = "local";
    if (!toy_open(rank, &toy))
        return false;
    if (!local->saved_world) {
        if (!toy_train(rank, &toy, SAVED_AT) || !saved_now(rank, directory.directory, NULL))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, digest));
        if (rank->rank == 0)
            memcpy(local->saved, digest, sizeof digest);
        if (!toy_train(rank, &toy, SAVED_AT))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, digest));
        if (rank->rank == 0)
            memcpy(local->end, digest, sizeof digest);
        return true;
    }
    TEAM_OK(rank, zero_load(rank->z, checkpoint_path(SAVED_AT), NULL, NULL));
    TEAM_STATE(rank, local->saved);
    if (!toy_train(rank, &toy, SAVED_AT))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_CHECK((memcmp(digest, local->end, sizeof digest) == 0) ==
               (rank->world == local->saved_world));
    return true;
}

static bool deal_out_locally(struct team_rank *rank, void *user)
{
    uint8_t digest[16];
    (void)user;
    rank->config.reduction = "local"; // V is as many as ranks, and what V=12 needs is not planned
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(SAVED_AT), NULL, NULL), ZERO_E_INVALID,
               rank->world == 5 ? "on 5 ranks" : "no spare gradients");
    TEAM_STATE(rank, digest);
    return true;
}

static void local_sums_go_on_on_as_many_ranks(void **state)
{
    (void)state;
    struct local local = {.saved_world = 0};
    run(2, go_on_locally, &local);
    local.saved_world = 2;
    run(2, go_on_locally, &local);
    run(3, go_on_locally, &local);
    run(4, deal_out_locally, NULL);
    run(5, deal_out_locally, NULL);
}

/** The seed of a context that has not stepped is the one that was saved. */
static bool take_the_seed(struct team_rank *rank, void *user)
{
    const int *phase = user;
    uint8_t digest[16];
    rank->config.seed = *phase == 0 ? 7 : 0;
    if (!toy_open(rank, &toy_odd))
        return false;
    if (*phase == 0)
        return toy_train(rank, &toy_odd, 2) && saved_now(rank, directory.directory, NULL);
    if (*phase == 1) {
        TEAM_OK(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL));
        return toy_train(rank, &toy_odd, 1);
    }
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_FAILS(rank, zero_load(rank->z, checkpoint_path(2), NULL, NULL), ZERO_E_INVALID, "seed=7");
    TEAM_STATE(rank, digest);
    return true;
}

static void the_seed_is_the_one_that_was_saved(void **state)
{
    (void)state;
    for (int phase = 0; phase < 3; phase++)
        run(2, take_the_seed, &phase);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(names_scopes_and_memory_of_blobs),
        TEST(nothing_of_it_in_a_step),
        TEST(nothing_of_it_between_gather_and_release),
        TEST(options_and_directories_of_a_save),
        TEST(one_job_saves_in_a_directory),
        TEST(ranks_save_the_same),
        TEST(a_save_without_memory),
        TEST(another_model_or_configuration_is_refused),
        TEST(a_part_may_be_loaded),
        TEST(the_batch_is_the_one_that_was_saved),
        TEST(a_schedule_of_batches_goes_back),
        TEST(local_sums_go_on_on_as_many_ranks),
        TEST(the_seed_is_the_one_that_was_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
