// Checkpoints of toys: they have the state of their step whatever happens beside them, what the
// program attached, and go on with the bits of a run that was not interrupted: checkpoints
// <zero-ckpt>
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include "base/bfloat16.h"
#include "base/fault.h"
#include "base/hash.h"

#include <zero/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, LARGE = 6, LARGE_ELEMENTS = 5000 };

static const char *program; /**< zero-ckpt */
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

/** Savers start a little later than they could, so that there is something left to write when the
 * state is about to change. */
static void delay_savers(void)
{
    assert_int_equal(base_fault_set("io.open:delay@1+", NULL), ZERO_OK);
}

/* ------------------------------------------------------------------ beside a save */

/** What a program does while its checkpoint is being written. */
enum change { STEPS, FUSED, WRITE, IMPORT, LOAD, FREEZE, BATCH, EVALUATE, CHANGES };

struct moment {
    enum change change;
    zero_save_options options;
    int stage;
    const char *gather;
    uint8_t digest[16]; /**< that was saved */
};

static bool write_all(struct team_rank *rank)
{
    static const float zeros[LARGE_ELEMENTS];
    for (int p = 0; p < toy_odd.tensor_count; p++)
        TEAM_OK(rank, zero_param_write(rank->z, p, 0, 0, toy_odd.tensors[p].numel, zeros));
    return true;
}

static bool evaluate(struct team_rank *rank)
{
    TEAM_OK(rank, zero_eval_begin(rank->z, 4));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit u = 0; u < toy_odd.unit_count; u++) {
            TEAM_OK(rank, zero_gather(rank->z, u, NULL));
            TEAM_OK(rank, zero_release(rank->z, u, NULL));
        }
    }
    TEAM_OK(rank, zero_eval_end(rank->z));
    return true;
}

static bool change(struct team_rank *rank, const struct toy *toy, enum change what)
{
    char path[SAVED_PATH];
    saved_path(path, directory.directory, 0);
    switch (what) {
    case WRITE:
        return write_all(rank);
    case IMPORT:
        TEAM_OK(rank, zero_import(rank->z, temporary_path(&directory, "weights"), NULL));
        return true;
    case LOAD:
        TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
        return true;
    case FREEZE:
        TEAM_OK(rank, zero_set_frozen(rank->z, 0, 1));
        return toy_train(rank, toy, 1);
    case BATCH:
        TEAM_OK(rank, zero_set_micro_batches(rank->z, 4));
        return toy_train(rank, toy, 1);
    case EVALUATE:
        return evaluate(rank);
    default:
        return toy_train(rank, toy, 3);
    }
}

/** Another model's first values become what was saved. */
static bool loads(struct team_rank *rank, const struct toy *toy, const struct moment *moment)
{
    struct toy other = *toy;
    char path[SAVED_PATH];
    zero_load_result result = {.struct_size = sizeof result};
    other.salt = 5;
    saved_path(path, directory.directory, 2);
    team_close(rank);
    rank->config.stage = (moment->stage + 1) % 4;
    rank->config.gather = NULL;
    if (!toy_open(rank, &other))
        return false;
    TEAM_OK(rank, zero_load(rank->z, path, NULL, &result));
    TEAM_CHECK(result.step == 2 && result.updates == 2 && result.saved_world == rank->world);
    TEAM_CHECK(result.missing == 0 && result.damaged == 0 && result.read_bytes > 0);
    TEAM_STATE(rank, moment->digest);
    return true;
}

static bool save_beside(struct team_rank *rank, void *user)
{
    struct moment *moment = user;
    struct toy toy = toy_odd;
    uint8_t digest[16];
    zero_save_info info = {.struct_size = sizeof info};
    toy.fused = toy.unclipped = moment->change == FUSED;
    rank->config.stage = moment->stage;
    rank->config.gather = moment->gather;
    if (!toy_open(rank, &toy))
        return false;
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_NONE);
    TEAM_OK(rank, zero_save_wait(rank->z));
    if (!saved_now(rank, directory.directory, NULL))
        return false;
    TEAM_OK(rank, zero_export(rank->z, temporary_path(&directory, "weights")));
    if (!toy_train(rank, &toy, 2))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(moment->digest, digest, sizeof digest);
    TEAM_OK(rank, zero_save(rank->z, directory.directory, &moment->options));
    if (!change(rank, &toy, moment->change))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    TEAM_CHECK(info.phase == ZERO_SAVE_COMPLETE && info.step == 2 && info.file_bytes > 0);
    TEAM_CHECK(info.done_bytes == info.state_bytes && info.state_bytes > 0);
    TEAM_CHECK(info.seconds > 0 && info.blocked_s >= 0);
    TEAM_CHECK(memcmp(info.fingerprint, digest, sizeof digest) == 0);
    return loads(rank, &toy, moment);
}

static void run_beside(struct moment *moment, int world)
{
    delay_savers();
    assert_true(temporary_empty(directory.directory));
    if (!team_run(team_threads(world), world, save_beside, moment))
        fail_msg("change %d, %d ranks, stage %d, level %d, room %d", moment->change, world,
                 moment->stage, moment->options.level, (int)moment->options.room_bytes);
}

static const int levels[] = {0, ZERO_OFF, 1, 19};
static const int64_t rooms[] = {0, ZERO_OFF, 30000, INT64_MAX};

static void what_is_saved_is_the_state_of_the_step(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int c = 0; c < CHANGES; c++) {
            struct moment moment = {
                .change = (enum change)c,
                .options = saved_options(levels[(c / 2) % 3], rooms[(world + c) % 4], 0, 0),
                .stage = (world + c) % 4,
                .gather = (world + c) % 4 && c % 3 == 0 ? "copy" : NULL,
            };
            if (test_takes(world - 1 + c))
                run_beside(&moment, world);
        }
}

static void no_level_and_no_room_changes_it(void **state)
{
    (void)state;
    uint8_t first[16];
    bool compared = false;
    for (int i = 0; i < 8; i++) {
        struct moment moment = {
            .change = STEPS,
            .options = saved_options(levels[i / 2], rooms[(i / 2 + i % 2) % 4], 0, 0),
            .stage = 3,
        };
        if (!test_takes(i))
            continue;
        run_beside(&moment, 2);
        if (!compared)
            memcpy(first, moment.digest, sizeof first);
        compared = true;
        assert_memory_equal(first, moment.digest, sizeof first);
    }
}

/* ------------------------------------------------------------------ models */

struct own_scalars {
    float scale, momentum, lr;
};

static void own_prepare(void *user, const zero_hyper *hyper, uint64_t updates,
                        double gradient_scale, void *scalars)
{
    (void)user;
    (void)updates;
    struct own_scalars *s = scalars;
    *s = (struct own_scalars){(float)gradient_scale, (float)hyper->beta1, (float)hyper->lr};
}

static void own_update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    const struct own_scalars *s = scalars;
    for (uint64_t i = 0; i < run->count; i++) {
        run->moment[0][i] = fmaf(s->momentum, run->moment[0][i], run->gradient[i] * s->scale);
        run->weight[i] = fmaf(-s->lr, run->moment[0][i], run->weight[i]);
    }
}

static bool add_own_optimizer(struct team_rank *rank)
{
    zero_optimizer_desc own = zero_optimizer_default();
    own.name = "mine";
    own.moments = 1;
    own.prepare = own_prepare;
    own.update = own_update;
    TEAM_OK(rank, zero_add_optimizer(rank->z, &own));
    return true;
}

/** Models and configurations with something of their own in their state. */
static const struct variant {
    const char *name;
    zero_dtype dtype;
    unsigned registered_frozen; /**< a bit a tensor */
    bool group_frozen;
    const char *optimizer, *master, *moments, *loss_scale, *reduction;
    zero_dtype comm_dtype;
    int sum_group;
} variants[] = {
    {.name = "plain"},
    {.name = "frozen", .dtype = ZERO_BF16, .registered_frozen = 1 << 2 | 1 << 8},
    {.name = "frozen group", .group_frozen = true},
    {.name = "no masters", .dtype = ZERO_BF16, .master = "none", .moments = "bf16"},
    {.name = "own optimizer", .optimizer = "mine"},
    {.name = "adagrad", .optimizer = "adagrad", .dtype = ZERO_F16},
    {.name = "fixed scale", .dtype = ZERO_F16, .loss_scale = "1024"},
    {.name = "batches of sums", .dtype = ZERO_BF16, .comm_dtype = ZERO_F32, .sum_group = 2},
};

enum { VARIANTS = sizeof variants / sizeof *variants, HALF = 3 };

struct journey {
    const struct variant *variant;
    int stage;
    bool load;
    const char *from;   /**< where */
    uint8_t digest[16]; /**< at the end */
};

static bool open_variant(struct team_rank *rank, const struct variant *variant,
                         const struct toy *toy)
{
    rank->config.micro_batches = toy->micro_batches;
    rank->config.master = variant->master;
    rank->config.moments = variant->moments;
    rank->config.loss_scale = variant->loss_scale;
    rank->config.comm_dtype = variant->comm_dtype;
    rank->config.sum_group = variant->sum_group;
    if (!team_open(rank) || !add_own_optimizer(rank) || !toy_register(rank, toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static bool travel(struct team_rank *rank, void *user)
{
    struct journey *journey = user;
    const struct variant *variant = journey->variant;
    zero_group_desc groups[2] = {zero_group_default(), zero_group_default()};
    struct toy toy = toy_odd;
    toy.dtype = variant->dtype ? variant->dtype : ZERO_F32;
    toy.frozen = variant->registered_frozen;
    toy.groups = groups;
    toy.salt = journey->load;
    groups[0].optimizer = variant->optimizer;
    rank->config.stage = journey->stage;
    if (!open_variant(rank, variant, &toy))
        return false;
    if (journey->load) {
        TEAM_OK(rank, zero_resume(rank->z, journey->from, NULL, NULL));
    } else {
        if (!toy_train(rank, &toy, HALF - 1))
            return false;
        if (variant->group_frozen)
            TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
        if (!toy_train(rank, &toy, 1))
            return false;
        TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    }
    if (!toy_train(rank, &toy, HALF))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    uint8_t digest[16];
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(journey->digest, digest, sizeof digest);
    return true;
}

/** Makes a checkpoint of what zero-ckpt has exported of another one. */
static bool goes_through_safetensors(const char *from, const char *to)
{
    char command[2048];
    snprintf(command, sizeof command,
             "exec >/dev/null; C='%s' A='%s' B='%s'; $C verify $A && "
             "$C export --state $A $B.safetensors && $C import $B.safetensors $B && "
             "$C verify $B && $C diff $A $B",
             program, from, to);
    return system(command) == 0;
}

static void every_model_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        struct journey first = {.variant = &variants[v], .stage = v % 4};
        struct journey second = {.variant = &variants[v], .stage = (v + 2) % 4, .load = true};
        const int worlds[] = {1 + v % MOST_RANKS, 1 + (v + 1) % MOST_RANKS};
        char again[512];
        snprintf(again, sizeof again, "%s/again.%d", directory.directory, v);
        second.from = v % 2 ? again : directory.directory;
        assert_true(temporary_empty(directory.directory));
        if (!team_run(team_threads(worlds[0]), worlds[0], travel, &first) ||
            !goes_through_safetensors(directory.directory, again) ||
            !team_run(team_threads(worlds[1]), worlds[1], travel, &second))
            fail_msg("%s", variants[v].name);
        if (memcmp(first.digest, second.digest, sizeof first.digest) != 0)
            fail_msg("%s: other bits", variants[v].name);
    }
}

/* ------------------------------------------------------------------ rollback */

static bool roll_back(struct team_rank *rank, void *user)
{
    const int *stage = user;
    uint8_t at_save[16], at_end[16];
    char path[SAVED_PATH];
    saved_path(path, directory.directory, 3);
    rank->config.stage = *stage;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 3))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, at_save));
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    if (!toy_train(rank, &toy_odd, 3))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, at_end));
    for (int again = 0; again < 2; again++) {
        TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
        TEAM_STATE(rank, at_save);
        if (!toy_train(rank, &toy_odd, 3))
            return false;
        TEAM_STATE(rank, at_end);
    }
    return true;
}

static void a_run_can_be_taken_back(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            assert_true(temporary_empty(directory.directory));
            if (test_takes(world - 1 + stage) &&
                !team_run(team_threads(world), world, roll_back, &stage))
                fail_msg("%d ranks, stage %d", world, stage);
        }
}

/* ------------------------------------------------------------------ no number of micro-batches */

/** Its V is the number of ranks of its first start, wherever it goes on. */
struct unset {
    int stage, sum_group, saved_world;
    bool load;
    uint8_t digest[16]; /**< at the end */
};

static bool leave_unset(struct team_rank *rank, void *user)
{
    struct unset *unset = user;
    struct toy toy = toy_odd;
    uint8_t digest[16];
    toy.micro_batches = unset->saved_world;
    rank->config.stage = unset->stage;
    rank->config.sum_group = unset->sum_group;
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    if (unset->load)
        TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    else if (!toy_train(rank, &toy, HALF) || !saved_now(rank, directory.directory, NULL))
        return false;
    TEAM_CHECK(zero_micro_total(rank->z) == unset->saved_world);
    if (!toy_train(rank, &toy, HALF))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(unset->digest, digest, sizeof digest);
    return true;
}

static void sums_in_blocks_go_on_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        struct unset first = {.stage = world % 4, .saved_world = world};
        first.sum_group = world > 3 ? 4 : 2;
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(world), world, leave_unset, &first));
        for (int now = 1; now <= 5; now++) {
            struct unset again = first;
            again.load = true;
            again.stage = (world + now) % 4;
            if (!team_run(team_threads(now), now, leave_unset, &again))
                fail_msg("saved by %d ranks, loaded by %d", world, now);
            assert_memory_equal(first.digest, again.digest, sizeof first.digest);
        }
    }
}

/* ------------------------------------------------------------------ another working copy */

struct conversion {
    zero_dtype dtype;
    bool load;
    float master[LARGE_ELEMENTS];
};

static bool convert(struct team_rank *rank, void *user)
{
    struct conversion *conversion = user;
    struct toy toy = toy_odd;
    float values[LARGE_ELEMENTS];
    toy.dtype = conversion->dtype;
    rank->config.stage = 2;
    if (!toy_open(rank, &toy))
        return false;
    if (!conversion->load) {
        if (!toy_train(rank, &toy, 2) || !saved_now(rank, directory.directory, NULL))
            return false;
        TEAM_OK(rank, zero_param_read(rank->z, LARGE, 0, 0, LARGE_ELEMENTS, values));
        if (rank->rank == 0)
            memcpy(conversion->master, values, sizeof values);
        return true;
    }
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    TEAM_OK(rank, zero_param_read(rank->z, LARGE, 0, 0, LARGE_ELEMENTS, values));
    TEAM_CHECK(memcmp(values, conversion->master, sizeof values) == 0);
    TEAM_OK(rank, zero_gather(rank->z, 4, NULL));
    const void *copy = zero_param_ptr(rank->z, LARGE, 0);
    for (uint64_t i = 0; i < LARGE_ELEMENTS; i++) {
        const float rounded = base_f32_from_bf16(base_bf16_from_f32(values[i]));
        TEAM_CHECK(toy_element(toy.dtype, copy, i) ==
                   (toy.dtype == ZERO_BF16 ? rounded : values[i]));
    }
    TEAM_OK(rank, zero_release(rank->z, 4, NULL));
    return toy_train(rank, &toy, 1);
}

static void masters_stay_when_the_working_copy_has_another_type(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
    for (int from = 0; from < 2; from++) {
        struct conversion conversion = {.dtype = dtypes[from]};
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(2), 2, convert, &conversion));
        conversion.load = true;
        conversion.dtype = dtypes[1 - from];
        assert_true(team_run(team_threads(3), 3, convert, &conversion));
    }
}

/** Without masters, too: values that were stored with 16 bits become masters, and the reverse. */
static bool convert_without_masters(struct team_rank *rank, void *user)
{
    struct conversion *conversion = user;
    struct toy toy = toy_odd;
    float values[LARGE_ELEMENTS];
    toy.dtype = ZERO_BF16;
    rank->config.master = conversion->load ? NULL : "none";
    rank->config.moments = conversion->load ? "bf16" : NULL;
    if (!toy_open(rank, &toy))
        return false;
    if (conversion->load)
        TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    else if (!toy_train(rank, &toy, 2) || !saved_now(rank, directory.directory, NULL))
        return false;
    TEAM_OK(rank, zero_param_read(rank->z, LARGE, 0, 0, LARGE_ELEMENTS, values));
    if (conversion->load)
        TEAM_CHECK(memcmp(values, conversion->master, sizeof values) == 0);
    else if (rank->rank == 0)
        memcpy(conversion->master, values, sizeof values);
    return toy_train(rank, &toy, 1);
}

static void masters_are_made_of_a_working_copy(void **state)
{
    (void)state;
    struct conversion conversion = {.load = false};
    assert_true(team_run(team_threads(1), 1, convert_without_masters, &conversion));
    conversion.load = true;
    assert_true(team_run(team_threads(2), 2, convert_without_masters, &conversion));
}

/* ------------------------------------------------------------------ attached */

/** Global blobs that were hashed in this thread. */
static _Thread_local int hashed;

struct base_hash128 __real_ckpt_digest_blob(const char *name, const void *bytes, size_t size);
struct base_hash128 __wrap_ckpt_digest_blob(const char *name, const void *bytes, size_t size);

struct base_hash128 __wrap_ckpt_digest_blob(const char *name, const void *bytes, size_t size)
{
    hashed++;
    return __real_ckpt_digest_blob(name, bytes, size);
}

struct attachment {
    int saved_world;
    bool load;
};

enum { GLOBAL_BYTES = 70000 };

static bool attach_and_go(struct team_rank *rank, void *user)
{
    const struct attachment *attachment = user;
    static _Thread_local char global[GLOBAL_BYTES], other[5];
    uint64_t position = 0;
    uint8_t digest[16], without[16];
    zero_load_result result = {.struct_size = sizeof result};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, without));
    memset(global, attachment->load ? 0 : 7, sizeof global);
    TEAM_OK(rank, zero_attach(rank->z, "data.position", other, sizeof other, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(rank->z, "gone", other, sizeof other, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(rank->z, "random-state", &position, sizeof position, ZERO_OF_RANK));
    TEAM_OK(rank, zero_attach(rank->z, "data.position", global, sizeof global, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(rank->z, "empty", other, 0, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(rank->z, "gone", NULL, 0, ZERO_GLOBAL));
    TEAM_OK(rank, zero_attach(rank->z, "never-there", NULL, 0, ZERO_OF_RANK));
    if (attachment->load) {
        const bool same = attachment->saved_world == rank->world;
        TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, &result));
        TEAM_CHECK(global[0] == 7 && memcmp(global, global + 1, sizeof global - 1) == 0);
        TEAM_CHECK(position == (same ? 100 + (uint64_t)rank->rank : 0));
        TEAM_CHECK(result.rank_blobs == same && result.saved_world == attachment->saved_world);
        return true;
    }
    position = 100 + (uint64_t)rank->rank;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_CHECK(memcmp(digest, without, sizeof digest) != 0);
    hashed = 0;
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    TEAM_CHECK(hashed == 2); // each once
    // They have been copied.
    memset(global, 8, sizeof global);
    position = 0;
    TEAM_OK(rank, zero_save_wait(rank->z));
    return true;
}

static void what_was_attached_comes_back(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++) {
        struct attachment attachment = {.saved_world = world};
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(world), world, attach_and_go, &attachment));
        attachment.load = true;
        for (int now = 1; now <= MOST_RANKS; now++)
            assert_true(team_run(team_threads(now), now, attach_and_go, &attachment));
    }
}

/** What a program draws from its generator as it goes: the order of its data, and a step's rate. */
struct draws {
    uint64_t state;
    uint32_t order[7];
};

struct shuffled {
    int stage;
    bool load, forget;
    uint8_t digest[16]; /**< at the end */
};

static bool train_shuffled(struct team_rank *rank, struct draws *draws, int steps)
{
    for (int s = 0; s < steps; s++) {
        for (uint32_t i = 7; i-- > 1;) {
            draws->state = draws->state * UINT64_C(6364136223846793005) + 1442695040888963407;
            const uint32_t other = (uint32_t)(draws->state >> 33) % (i + 1);
            const uint32_t moved = draws->order[i];
            draws->order[i] = draws->order[other];
            draws->order[other] = moved;
        }
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!toy_micro(rank, &toy_odd, i, NULL, NULL))
                return false;
        const zero_hyper hyper[2] = {
            {.lr = 1e-3 * (1 + draws->order[0]), .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
            {.lr = 1e-3 * (1 + draws->order[6]), .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
        };
        const zero_step_args args = zero_step_args_for(hyper, 2, 1.0 / 7, 0);
        TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    }
    return true;
}

static bool shuffle_and_go(struct team_rank *rank, void *user)
{
    struct shuffled *shuffled = user;
    struct draws draws = {.state = shuffled->load ? 0 : 5, .order = {0, 1, 2, 3, 4, 5, 6}};
    struct draws ignored = draws;
    uint8_t digest[16];
    rank->config.stage = shuffled->stage;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "draws", shuffled->forget ? &ignored : &draws, sizeof draws,
                              ZERO_GLOBAL));
    if (shuffled->load)
        TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    else if (!train_shuffled(rank, &draws, HALF) || !saved_now(rank, directory.directory, NULL))
        return false;
    if (!train_shuffled(rank, &draws, HALF))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "draws", &draws, sizeof draws, ZERO_GLOBAL));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(shuffled->digest, digest, sizeof digest);
    return true;
}

static void shuffled_data_go_on_where_they_were(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++) {
        struct shuffled first = {.stage = world % 4}, again = {.stage = world - 1, .load = true};
        const int other = 1 + world % MOST_RANKS;
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(world), world, shuffle_and_go, &first));
        assert_true(team_run(team_threads(other), other, shuffle_and_go, &again));
        assert_memory_equal(first.digest, again.digest, sizeof first.digest);
        again.forget = true;
        assert_true(team_run(team_threads(other), other, shuffle_and_go, &again));
        assert_memory_not_equal(first.digest, again.digest, sizeof first.digest);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_saved_is_the_state_of_the_step),
        TEST(no_level_and_no_room_changes_it),
        TEST(every_model_goes_on_with_the_same_bits),
        TEST(a_run_can_be_taken_back),
        TEST(sums_in_blocks_go_on_on_any_number_of_ranks),
        TEST(masters_stay_when_the_working_copy_has_another_type),
        TEST(masters_are_made_of_a_working_copy),
        TEST(what_was_attached_comes_back),
        TEST(shuffled_data_go_on_where_they_were),
    };
    if (argc != 2)
        return 2;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
