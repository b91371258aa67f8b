// Groups of a checkpoint go to the groups of the same name: what is frozen, and with which
// hyper-parameters, does not depend on the order in which a program adds them.
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>

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
    temporary_remove(&directory);
    return 0;
}

enum { GROUPS = 3, ELEMENTS = 3000 };

/** Groups in the order in which they are added: a name, NULL: none; "": no more. */
struct model {
    const char *group[GROUPS];
    const char *optimizer[GROUPS];
    int of[2];  /**< the groups of "backbone.w" and of "head.w" */
    int frozen; /**< this group, if it is not negative */
    zero_load_options options;
    const char *refused; /**< zero_load() says so, NULL: it loads */
    bool trains[2];      /**< after loading, which tensors a step changes */
};

static bool open_model(struct team_rank *rank, const struct model *model)
{
    static const char *const names[] = {"backbone.w", "head.w"};
    rank->config.micro_batches = 3;
    if (!team_open(rank))
        return false;
    for (int g = 0; g < GROUPS && (!model->group[g] || *model->group[g]); g++) {
        zero_group_desc desc = zero_group_default();
        desc.name = model->group[g];
        desc.optimizer = model->optimizer[g];
        TEAM_OK(rank, zero_add_group(rank->z, NULL, &desc));
    }
    for (int p = 0; p < 2; p++) {
        zero_param_desc desc = zero_param_vector(names[p], ELEMENTS, NULL);
        desc.group = model->of[p];
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static bool step(struct team_rank *rank, const struct model *model)
{
    zero_hyper hyper[GROUPS];
    int groups = 0;
    while (groups < GROUPS && (!model->group[groups] || *model->group[groups])) {
        const double lr = groups == model->of[0] ? 0.25 : groups == model->of[1] ? 0.5 : 0;
        hyper[groups++] = (zero_hyper){.lr = lr, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
    }
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        TEAM_OK(rank, zero_grad_open(rank->z, 0, NULL));
        for (int p = 0; p < 2; p++)
            for (int e = 0; e < ELEMENTS; e++)
                ((float *)zero_grad_ptr(rank->z, p, 0))[e] = 1;
        TEAM_OK(rank, zero_grad_done(rank->z, 0, NULL));
    }
    const zero_step_args args = zero_step_args_for(hyper, groups, 1, 0);
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

static bool read_both(const struct team_rank *rank, float values[2])
{
    for (int p = 0; p < 2; p++)
        TEAM_OK(rank, zero_param_read(rank->z, p, 0, 7, 1, &values[p]));
    return true;
}

static bool save_model(struct team_rank *rank, void *user)
{
    const struct model *model = user;
    if (!open_model(rank, model) || !step(rank, model))
        return false;
    if (model->frozen >= 0)
        TEAM_OK(rank, zero_set_frozen(rank->z, model->frozen, 1));
    return saved_now(rank, directory.directory, NULL);
}

static bool load_model(struct team_rank *rank, void *user)
{
    const struct model *model = user;
    char path[SAVED_PATH];
    float before[2], after[2];
    uint8_t digest[16];
    saved_path(path, directory.directory, 1);
    if (!open_model(rank, model))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (model->refused) {
        TEAM_FAILS(rank, zero_load(rank->z, path, &model->options, NULL), ZERO_E_INVALID,
                   model->refused);
        TEAM_STATE(rank, digest);
        return true;
    }
    TEAM_OK(rank, zero_load(rank->z, path, &model->options, NULL));
    if (!read_both(rank, before) || !step(rank, model) || !read_both(rank, after))
        return false;
    for (int p = 0; p < 2; p++) {
        TEAM_CHECK(before[p] != 0);
        TEAM_CHECK((before[p] != after[p]) == model->trains[p]);
    }
    return saved_now(rank, directory.directory, NULL);
}

#define STRICT .options = {.struct_size = sizeof(zero_load_options)}
#define PARTIAL .options = {.struct_size = sizeof(zero_load_options), .partial = 1}

static void expect(const struct model *saved, const struct model *loaded, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct model first = *saved, second = loaded[i];
        assert_true(temporary_empty(directory.directory));
        assert_true(team_run(team_threads(2), 2, save_model, &first));
        const int world = 1 + (int)i % 3;
        if (!team_run(team_threads(world), world, load_model, &second))
            fail_msg("model %zu on %d ranks", i, world);
    }
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void named_groups_may_be_added_in_any_order(void **state)
{
    (void)state;
    static const struct model saved = {
        .group = {"backbone", "head", ""}, .of = {0, 1}, .frozen = 0};
    static const struct model loaded[] = {
        {.group = {"backbone", "head", ""}, .of = {0, 1}, .trains = {false, true}, STRICT},
        {.group = {"head", "backbone", ""}, .of = {1, 0}, .trains = {false, true}, STRICT},
        {.group = {"head", "backbone", ""},
         .of = {0, 1},
         .refused = "tensor backbone.w is in group backbone in it, and in group head here",
         STRICT},
        {.group = {"head", "backbone", ""}, .of = {0, 1}, .trains = {true, false}, PARTIAL},
        {.group = {"head", "body", ""}, .of = {1, 0}, .refused = "group backbone is none", STRICT},
        {.group = {"head", "body", ""}, .of = {1, 0}, .trains = {true, true}, PARTIAL},
        {.group = {"head", "backbone", "more"},
         .of = {1, 0},
         .refused = "has no group more (option partial",
         STRICT},
        {.group = {"head", ""}, .of = {0, 0}, .refused = "group backbone is none", STRICT},
        {.group = {"head", "backbone", ""},
         .optimizer = {"adamw", "adam"},
         .of = {1, 0},
         .refused = "group backbone has another optimizer",
         STRICT},
        {.group = {NULL, "head", ""}, .of = {0, 1}, .refused = "group backbone is none", STRICT},
    };
    expect(&saved, loaded, COUNT(loaded));
}

static void groups_without_a_name_go_by_their_order(void **state)
{
    (void)state;
    static const struct model saved = {.group = {NULL, NULL, "head"}, .of = {1, 2}, .frozen = 1};
    static const struct model loaded[] = {
        {.group = {NULL, NULL, "head"}, .of = {1, 2}, .trains = {false, true}, STRICT},
        {.group = {"head", NULL, NULL}, .of = {2, 0}, .trains = {false, true}, STRICT},
        {.group = {NULL, "head", NULL}, .of = {2, 1}, .trains = {false, true}, STRICT},
        {.group = {NULL, "head", NULL},
         .of = {0, 1},
         .refused = "tensor backbone.w is in group group1 in it, and in group group0 here",
         STRICT},
        // A name that the library might have given.
        {.group = {"group1", "group0", "head"}, .of = {0, 2}, .trains = {false, true}, STRICT},
        {.group = {"group1", NULL, "head"}, .of = {0, 2}, .trains = {false, true}, STRICT},
    };
    expect(&saved, loaded, COUNT(loaded));
}

static void groups_may_have_one_name(void **state)
{
    (void)state;
    static const struct model saved = {.group = {"a", "a", ""}, .of = {0, 1}, .frozen = 1};
    static const struct model loaded[] = {
        {.group = {"a", "a", ""}, .of = {0, 1}, .trains = {true, false}, STRICT},
        {.group = {"a", "a", ""}, .of = {1, 0}, .refused = "tensor backbone.w is in", STRICT},
    };
    expect(&saved, loaded, COUNT(loaded));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(named_groups_may_be_added_in_any_order),
        TEST(groups_without_a_name_go_by_their_order),
        TEST(groups_may_have_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
