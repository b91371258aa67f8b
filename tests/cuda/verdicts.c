// What a step comes to is the same on a device as on the host: squares that are added up exactly,
// and the verdict, bit by bit: cuda.cu on the processor (on_host.h), or on a GPU.
#include "base/exact_sum.h"
#include "tests/cuda/kernel_tests.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ squares */

enum { MOST_SQUARES = 3000 };

struct squares {
    double squares[MOST_SQUARES];
    int64_t limbs[BASE_EXACT_SUM_LIMBS];
    uint64_t wrong;
    uint32_t overflow, unused;
};

static double any_square(int turn, uint64_t i)
{
    float x;
    const uint32_t bits = input_bits((enum input_kind)(turn % INPUT_KINDS), 30, i) & 0x7fffffff;
    memcpy(&x, &bits, sizeof bits);
    const double wide = x;
    if (turn % 5 == 4 && i == 17)
        return 1.0000001e300;
    return turn % 4 == 3 ? wide * 4.9406564584124654e-324 * 3 : wide * wide;
}

static void squares_turn(int turn, size_t count)
{
    static struct squares here;
    struct base_exact_sum exact, added;
    uint32_t overflow = 0;
    here = (struct squares){.wrong = turn % 6 == 5 ? 7 : UINT64_MAX};
    overflow = turn % 6 == 5 && count > 0;
    base_exact_sum_init(&exact);
    for (size_t i = 0; i < count; i++) {
        here.squares[i] = any_square(turn, i);
        if (here.squares[i] <= 1e300)
            base_exact_sum_add(&exact, here.squares[i]);
        else
            overflow = 1;
    }
    struct squares *there = put(&here, sizeof here);
    const struct base_device_squares squares = {there->squares, count, there->limbs,
                                                &there->overflow, &there->wrong};
    ok(kernels->squares(kernel_state, &squares, kernel_stream, NULL));
    take(&here, there, sizeof here);
    memcpy(added.limb, here.limbs, sizeof added.limb);
    assert_int_equal(here.overflow, overflow);
    const double a = base_exact_sum_round(&added), b = base_exact_sum_round(&exact);
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("turn %d, %zu squares: %a instead of %a", turn, count, a, b);
}

static void squares_are_added_without_rounding(void **unused)
{
    (void)unused;
    static const size_t some[] = {0, 1, 2, 255, 256, 257, 3000};
    for (int turn = 0; turn < 20; turn++)
        squares_turn(turn, some[turn % 7]);
}

/* ------------------------------------------------------------------ verdicts */

enum { MOST_VOTES = 3, JUDGED_GROUPS = 300, JUDGED_KEYS = 7, BLAMED = 5 };

struct judged {
    struct base_device_ballot ballots[MOST_VOTES];
    struct base_device_course course;
    struct base_rule_scalars prepared[2][JUDGED_GROUPS], scalars[JUDGED_GROUPS];
    uint64_t prepared_keys[2][JUDGED_KEYS], keys[JUDGED_KEYS];
    uint64_t bad[BLAMED], blamed[BLAMED];
    struct base_device_record record;
    uint64_t wrong;
    uint32_t gate, unused;
};

static struct base_device_judgement judgement_of(struct judged *at, int turn)
{
    const struct base_scale scale = {
        .value = 8, .dynamic = turn % 3 > 0, .least = turn % 9 == 1 ? 8 : 2, .window = 2};
    return (struct base_device_judgement){
        .ballots = at->ballots,
        .ranks = 1 + (size_t)turn % MOST_VOTES,
        .course = &at->course,
        .given = {.scale = scale,
                  .updates = 5,
                  .skips = 1,
                  .skip_limit = turn % 5 ? UINT64_MAX : (uint64_t)(turn % 2)},
        .known = turn % 4 > 0,
        .scale = turn % 2 ? -0.7 : 3e-5,
        .max_norm = turn % 3 == 2 ? 0.01 : 0,
        .most = turn % 7 == 6 ? 1e-3 : INFINITY,
        .wrong = &at->wrong,
        .first_update = turn % 4 > 0 ? 6 : 5,
        .prepared = at->prepared[0],
        .scalars = at->scalars,
        .groups = JUDGED_GROUPS,
        .prepared_keys = at->prepared_keys[0],
        .keys = at->keys,
        .key_count = JUDGED_KEYS,
        .bad = at->bad,
        .blamed = at->blamed,
        .bad_count = BLAMED,
        .gate = &at->gate,
        .record = &at->record,
    };
}

static void fill_verdict(int turn, struct judged *at)
{
    memset(at, 0, sizeof *at);
    for (size_t r = 0; r < MOST_VOTES; r++)
        for (int i = 0; turn > 0 && i < 3000; i++) {
            struct base_exact_sum one;
            base_exact_sum_init(&one);
            base_exact_sum_add(&one, any_square(turn - turn % 5, (uint64_t)i + 5000 * r));
            for (int l = 0; l < BASE_EXACT_SUM_LIMBS; l++) // without carrying
                at->ballots[r].limbs[l] += one.limb[l];
        }
    at->ballots[turn % MOST_VOTES].overflow = turn % 5 == 4;
    at->course = (struct base_device_course){
        .scale = {.value = 16, .dynamic = true, .least = 1, .window = 3, .clean = 2},
        .updates = 5,
        .skip_limit = UINT64_MAX,
        .halted = turn % 8 == 0,
    };
    for (int g = 0; g < 2 * JUDGED_GROUPS; g++)
        at->prepared[g % 2][g / 2].step_size = (float)g;
    for (int k = 0; k < 2 * JUDGED_KEYS; k++)
        at->prepared_keys[k % 2][k / 2] = (uint64_t)k * 77;
    for (int s = 0; s < BLAMED; s++)
        at->bad[s] = (uint64_t)(turn * s);
    at->wrong = turn % 2 ? UINT64_MAX : (uint64_t)turn;
}

// The same by what the host has.
static void decide_on_host(struct judged *at, const struct base_device_judgement *j)
{
    struct base_device_course course = j->known ? j->given : at->course;
    const double scale = j->scale / course.scale.value;
    struct base_exact_sum sum;
    bool finite = true;
    base_exact_sum_init(&sum);
    for (size_t r = 0; r < j->ranks; r++) {
        struct base_exact_sum one;
        memcpy(one.limb, at->ballots[r].limbs, sizeof one.limb);
        base_exact_sum_merge(&sum, &one);
        finite = finite && !at->ballots[r].overflow;
    }
    at->record.norm = finite ? sqrt(base_exact_sum_round(&sum)) * fabs(scale) : NAN;
    finite = isfinite(at->record.norm);
    const double clip =
        finite && j->max_norm > 0 ? fmin(1.0, j->max_norm / (at->record.norm + 1e-6)) : 1;
    finite = finite && at->record.norm * clip <= j->most;
    at->record.finite = finite;
    at->record.wrong = at->wrong;
    at->gate = finite && !course.halted;
    const size_t which = course.updates + 1 - j->first_update;
    for (int g = 0; at->gate && g < JUDGED_GROUPS; g++) {
        at->scalars[g] = at->prepared[which][g];
        at->scalars[g].gradient_scale = (float)(scale * clip);
    }
    if (at->gate)
        memcpy(at->keys, at->prepared_keys[which], sizeof at->keys);
    if (at->gate) {
        course.updates++;
        course.skips = 0;
        base_scale_clean(&course.scale);
    } else if (!course.halted) {
        course.skips++;
        course.halted =
            course.skips > course.skip_limit || !base_scale_overflow(&course.scale) ? 1 : 0;
    }
    at->course = course;
    memcpy(at->blamed, at->bad, sizeof at->bad);
    memset(at->bad, 0xff, sizeof at->bad);
    memset(at->ballots, 0, j->ranks * sizeof *at->ballots);
}

static void verdicts_are_those_of_the_host(void **unused)
{
    (void)unused;
    static struct judged here, result;
    for (int turn = 0; turn < 72; turn++) {
        fill_verdict(turn, &here);
        struct judged *there = put(&here, sizeof here);
        struct base_device_judgement judgement = judgement_of(there, turn);
        ok(kernels->judge(kernel_state, &judgement, kernel_stream, NULL));
        take(&result, there, sizeof result);
        judgement = judgement_of(&here, turn);
        decide_on_host(&here, &judgement);
        if (isnan(here.record.norm) && isnan(result.record.norm))
            result.record.norm = here.record.norm;
        compare("verdict", turn, &result, &here, sizeof here);
    }
}

// The verdict on a fused step changes only what its update needs.
static void a_fused_step_changes_nothing_else(void **unused)
{
    (void)unused;
    static struct judged here, result;
    for (int turn = 0; turn < 24; turn++) {
        fill_verdict(turn, &here);
        struct judged *there = put(&here, sizeof here);
        struct base_device_judgement judgement = judgement_of(there, turn);
        judgement.fused = true;
        judgement.max_norm = 0;
        ok(kernels->judge(kernel_state, &judgement, kernel_stream, NULL));
        take(&result, there, sizeof result);
        static struct judged judged;
        judged = here;
        memset(judged.ballots, 0, sizeof judged.ballots);
        judgement = judgement_of(&judged, turn);
        judgement.max_norm = 0;
        decide_on_host(&judged, &judgement);
        here.gate = judged.gate;
        memcpy(here.scalars, judged.scalars, sizeof here.scalars);
        memcpy(here.keys, judged.keys, sizeof here.keys);
        compare("fused step", turn, &result, &here, sizeof here);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squares_are_added_without_rounding),
        cmocka_unit_test(verdicts_are_those_of_the_host),
        cmocka_unit_test(a_fused_step_changes_nothing_else),
    };
    if (kernel_tests_skip())
        return KERNEL_TESTS_SKIPPED;
    return cmocka_run_group_tests(tests, kernel_tests_set_up, kernel_tests_tear_down);
}
