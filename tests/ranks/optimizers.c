// Optimizers in the engine: several in one model, and the program's own (<zero/optimizer.h>), give
// the same bits at every number of ranks and stage.
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <zero/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, MOST_RANKS = 4, MOST_ELEMENTS = 5000 };

/* ------------------------------------------------------------------ an optimizer of our own */

struct own_scalars {
    float scale, momentum, lr, decay;
};

static zero_result own_check(void *user, const zero_hyper *hyper, char *message, uint64_t size)
{
    (void)user;
    if (hyper->lr < 0.5)
        return ZERO_OK;
    snprintf(message, size, "lr is %g, which is bold", hyper->lr);
    return ZERO_E_INVALID;
}

static void own_prepare(void *user, const zero_hyper *hyper, uint64_t updates,
                        double gradient_scale, void *scalars)
{
    (void)user;
    (void)updates;
    struct own_scalars *s = scalars;
    *s = (struct own_scalars){(float)gradient_scale, (float)hyper->beta1, (float)hyper->lr,
                              (float)hyper->weight_decay};
}

// The formula of "sgd", L2 decay.
static void own_update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    const struct own_scalars *s = scalars;
    for (uint64_t i = 0; i < run->count; i++) {
        const float g = fmaf(s->decay, run->weight[i], run->gradient[i] * s->scale);
        run->moment[0][i] = fmaf(s->momentum, run->moment[0][i], g);
        run->weight[i] = fmaf(-s->lr, run->moment[0][i], run->weight[i]);
    }
}

static zero_optimizer_desc own_desc(void)
{
    zero_optimizer_desc desc = zero_optimizer_default();
    desc.name = "mine";
    desc.moments = 1;
    desc.check = own_check;
    desc.prepare = own_prepare;
    desc.update = own_update;
    return desc;
}

/* ------------------------------------------------------------------ the same bits */

struct training {
    struct toy toy;
    zero_group_desc groups[2];
    int stage, threads;
    bool own; // "mine" is registered
    uint8_t digest[16];
    float weights[MOST_ELEMENTS]; // of the largest tensor
};

static zero_group_desc group_of(const char *optimizer, zero_decay decay, int32_t nesterov)
{
    zero_group_desc desc = zero_group_default();
    desc.optimizer = optimizer;
    desc.decay = decay;
    desc.nesterov = nesterov;
    return desc;
}

static bool train(struct team_rank *rank, void *user)
{
    struct training *training = user;
    const zero_optimizer_desc own = own_desc();
    float weights[MOST_ELEMENTS];
    uint8_t digest[16];
    rank->config.stage = training->stage;
    rank->config.cpu_threads = training->threads;
    rank->config.micro_batches = training->toy.micro_batches;
    if (!team_open(rank))
        return false;
    if (training->own)
        TEAM_OK(rank, zero_add_optimizer(rank->z, &own));
    if (!toy_register(rank, &training->toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    if (!toy_train(rank, &training->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    TEAM_OK(rank, zero_param_read(rank->z, 6, 0, 0, MOST_ELEMENTS, weights));
    if (rank->rank == 0) {
        memcpy(training->digest, digest, sizeof digest);
        memcpy(training->weights, weights, sizeof weights);
    }
    return true;
}

static void run(struct training *training, int world, int stage)
{
    training->toy.groups = training->groups;
    training->stage = stage;
    if (!team_run(team_threads(world), world, train, training))
        fail_msg("%s and %s: %d ranks, stage %d", training->groups[0].optimizer,
                 training->groups[1].optimizer, world, stage);
}

// Every world size and stage against one rank at stage 0.
static void assert_same_everywhere(struct training *training)
{
    uint8_t expected[16];
    run(training, 1, 0);
    memcpy(expected, training->digest, sizeof expected);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!test_takes(world - 1 + stage))
                continue;
            training->threads = 1 + (world + stage) % 2;
            run(training, world, stage);
            if (memcmp(training->digest, expected, sizeof expected) != 0)
                fail_msg("%s and %s: other bits with %d ranks at stage %d",
                         training->groups[0].optimizer, training->groups[1].optimizer, world,
                         stage);
        }
}

static void several_in_one_model(void **state)
{
    (void)state;
    static struct training training;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
    const zero_group_desc pairs[][2] = {
        {group_of("adamw", ZERO_DECAY_L2, 0), group_of("sgd", ZERO_DECAY_DEFAULT, 1)},
        {group_of("lion", ZERO_DECAY_DEFAULT, 0), group_of("adam", ZERO_DECAY_DECOUPLED, 0)},
        {group_of("sgd", ZERO_DECAY_DECOUPLED, 0), group_of("adagrad", ZERO_DECAY_DEFAULT, 0)},
    };
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        training = (struct training){.toy = toy_odd};
        training.toy.dtype = dtypes[p % 2];
        memcpy(training.groups, pairs[p], sizeof training.groups);
        assert_same_everywhere(&training);
    }
}

static void the_programs_own(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
    static struct training ours, own;
    for (size_t d = 0; d < 2; d++) {
        ours = (struct training){.toy = toy_odd};
        ours.toy.dtype = dtypes[d];
        ours.groups[0] = group_of("sgd", ZERO_DECAY_DEFAULT, 0);
        ours.groups[1] = group_of("adamw", ZERO_DECAY_DEFAULT, 0);
        own = ours;
        own.own = true;
        own.groups[0] = group_of("mine", ZERO_DECAY_DEFAULT, 0);
        run(&ours, 1, 0);
        run(&own, 3, 2);
        assert_memory_equal(ours.weights, own.weights, sizeof own.weights);
        assert_memory_not_equal(ours.digest, own.digest, sizeof own.digest);
    }
    assert_same_everywhere(&own);
}

/* ------------------------------------------------------------------ what is refused */

static bool refuses(struct team_rank *rank, const zero_optimizer_desc *desc, const char *message)
{
    TEAM_CHECK(zero_add_optimizer(rank->z, desc) == ZERO_E_INVALID);
    if (!strstr(zero_last_error(rank->z), message))
        fprintf(stderr, "\"%s\" instead of \"%s\"\n", zero_last_error(rank->z), message);
    TEAM_CHECK(strstr(zero_last_error(rank->z), message));
    return true;
}

static bool refuses_descriptions(struct team_rank *rank)
{
    zero_optimizer_desc desc = own_desc();
    bool ok = refuses(rank, NULL, "needs a description");
    desc.name = "adamw";
    ok &= refuses(rank, &desc, "optimizer adamw: there is one of that name");
    desc.name = "two words";
    ok &= refuses(rank, &desc, "a name is 1 .. 63");
    desc.name = NULL;
    ok &= refuses(rank, &desc, "a name is 1 .. 63");
    desc = own_desc();
    desc.moments = 3;
    ok &= refuses(rank, &desc, "optimizer mine: 3 moments, not 0 .. 2");
    desc.moments = -1;
    ok &= refuses(rank, &desc, "optimizer mine: -1 moments");
    desc = own_desc();
    desc.update = NULL;
    ok &= refuses(rank, &desc, "optimizer mine has no update");
    desc = own_desc();
    desc.prepare = NULL;
    ok &= refuses(rank, &desc, "optimizer mine has no prepare");
    desc = own_desc();
    desc.struct_size = 2;
    return ok & refuses(rank, &desc, "zero_optimizer_desc.struct_size is 2");
}

static bool refuses_groups(struct team_rank *rank)
{
    const zero_group_desc decay = group_of("mine", ZERO_DECAY_L2, 0);
    const zero_group_desc nesterov = group_of("mine", ZERO_DECAY_DEFAULT, 1);
    const zero_group_desc unknown = group_of("yours", ZERO_DECAY_DEFAULT, 0);
    TEAM_CHECK(zero_add_group(rank->z, NULL, &decay) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "decay is its own"));
    TEAM_CHECK(zero_add_group(rank->z, NULL, &nesterov) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "has no Nesterov form"));
    TEAM_CHECK(zero_add_group(rank->z, NULL, &unknown) == ZERO_E_INVALID);
    return true;
}

static bool refuse(struct team_rank *rank, void *user)
{
    (void)user;
    const zero_optimizer_desc own = own_desc();
    const zero_group_desc groups[] = {group_of("mine", ZERO_DECAY_DEFAULT, 0),
                                      group_of("sgd", ZERO_DECAY_DEFAULT, 1)};
    struct toy toy = toy_odd;
    toy.groups = groups;
    rank->config.micro_batches = toy.micro_batches;
    if (!team_open(rank) || !refuses_descriptions(rank))
        return false;
    TEAM_CHECK(zero_add_optimizer(NULL, &own) == ZERO_E_INVALID);
    TEAM_OK(rank, zero_add_optimizer(rank->z, &own));
    if (!refuses(rank, &own, "there is one of that name") || !refuses_groups(rank))
        return false;
    // Commit would fail with what was refused first: a context without refusals goes on.
    team_close(rank);
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_optimizer(rank->z, &own));
    if (!toy_register(rank, &toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(zero_add_optimizer(rank->z, &own) == ZERO_E_STATE);

    // Hyper-parameters that are refused change nothing, and the step can be made with others.
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
    const zero_hyper bold[] = {{1, 0.9, 0, 0, 0}, {1e-2, 0.9, 0, 0, 0}};
    const zero_hyper still[] = {{0.1, 0.9, 0, 0, 0}, {1e-2, 0, 0, 0, 0}};
    zero_step_args args = zero_step_args_default();
    args.group_count = 2;
    args.hyper = bold;
    TEAM_CHECK(zero_step(rank->z, &args, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "group group0: mine: lr is 1, which is bold"));
    args.hyper = still;
    TEAM_CHECK(zero_step(rank->z, &args, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "group group1: sgd: nesterov needs a momentum"));
    TEAM_OK(rank, toy_update(rank, &toy));
    return true;
}

static void errors(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, refuse, NULL));
    assert_true(team_run("threads", 2, refuse, NULL));
}

// Ranks whose groups differ in nothing but the form of one are told so.
static bool diverge(struct team_rank *rank, void *user)
{
    (void)user;
    const zero_group_desc groups[] = {group_of("sgd", ZERO_DECAY_DEFAULT, rank->rank),
                                      group_of("sgd", ZERO_DECAY_DEFAULT, 0)};
    struct toy toy = toy_odd;
    toy.groups = groups;
    rank->config.micro_batches = toy.micro_batches;
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    TEAM_CHECK(zero_commit(rank->z) == ZERO_E_DIVERGED);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "its nesterov is "));
    return true;
}

static void ranks_agree(void **state)
{
    (void)state;
    assert_true(team_run("threads", 2, diverge, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_in_one_model),
        cmocka_unit_test(the_programs_own),
        cmocka_unit_test(errors),
        cmocka_unit_test(ranks_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
