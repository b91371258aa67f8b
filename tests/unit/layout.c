/** The layout and the placement: who owns what, and whether it all fits. */
#include "zero/model/layout.h"
#include "zero/model/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void add(struct eng_model *model, const char *name, zero_dtype dtype, uint64_t numel,
                zero_unit unit, int32_t unit_count)
{
    zero_param_desc desc = zero_param_default();
    desc.name = name;
    desc.dtype = dtype;
    desc.unit = unit;
    desc.unit_count = unit_count;
    desc.ndim = unit_count > 1 ? 2 : 1;
    desc.shape[0] = unit_count > 1 ? (uint64_t)unit_count : numel;
    desc.shape[1] = numel;
    struct base_error error = {0};
    assert_int_equal(eng_model_add_param(model, NULL, &desc, &error), ZERO_OK);
}

/** Odd sizes, both dtypes, stacked over units 1 to 3. */
static void make_model(struct eng_model *model)
{
    struct base_error error = {0};
    memset(model, 0, sizeof *model);
    add(model, "embedding", ZERO_BF16, 50257, 0, 1);
    add(model, "scalar", ZERO_F32, 1, 0, 1);
    add(model, "stacked", ZERO_BF16, 1025, 1, 3);
    add(model, "seven", ZERO_F32, 7, 2, 1);
    add(model, "edge", ZERO_F32, 1023, 3, 1);
    add(model, "full", ZERO_F32, 1024, 3, 1);
    add(model, "grid", ZERO_BF16, 240, 3, 1);
    assert_int_equal(eng_model_complete(model, &error), ZERO_OK);
}

/** Every granule has one owner, runs are in rank order, and no run is longer than ceil(G / W). */
static void every_granule_has_one_owner(void **state)
{
    (void)state;
    struct eng_model model;
    make_model(&model);
    for (int world = 1; world <= 9; world++) {
        struct eng_layout layout;
        struct base_error error = {0};
        assert_int_equal(eng_layout_make(&layout, &model, world, 1024, &error), ZERO_OK);
        for (size_t u = 0; u < layout.unit_count; u++) {
            const struct eng_unit_layout *unit = &layout.units[u];
            const size_t run = (unit->granules + (size_t)world - 1) / (size_t)world;
            size_t seen = 0;
            for (int r = 0; r < world; r++) {
                size_t mine = 0;
                for (size_t s = unit->first_bucket; s < unit->first_bucket + unit->bucket_count;
                     s++) {
                    size_t first, count;
                    eng_layout_own(&layout, s, r, &first, &count);
                    if (count)
                        assert_int_equal(layout.buckets[s].first + first, seen);
                    seen += count;
                    mine += count;
                }
                assert_true(mine <= run);
                assert_true(mine == run || seen == unit->granules);
            }
            assert_int_equal(seen, unit->granules);
        }
        eng_layout_free(&layout);
    }
    eng_model_free(&model);
}

/** Slices fill their buckets without gap, each in a bucket of its dtype and residence. */
static void slices_fill_their_buckets(void **state)
{
    (void)state;
    struct eng_model model;
    struct eng_layout layout;
    struct base_error error = {0};
    make_model(&model);
    assert_int_equal(eng_layout_make(&layout, &model, 3, 1024, &error), ZERO_OK);
    for (size_t s = 0; s < layout.bucket_count; s++) {
        size_t next = 0;
        for (size_t i = 0; i < layout.slice_count; i++) {
            const struct eng_slice *slice = &layout.slices[i];
            if (slice->bucket != s)
                continue;
            const struct eng_param *param = &model.params[slice->param];
            assert_int_equal(slice->granule, next);
            assert_int_equal(slice->granules, (slice->numel + 1023) / 1024);
            assert_int_equal(param->dtype, layout.buckets[s].dtype);
            assert_int_equal(param->grad_dtype, layout.buckets[s].grad_dtype);
            assert_int_equal(layout.buckets[s].moments, 2);
            assert_int_equal(param->slice_numel <= 1024, layout.buckets[s].persistent);
            assert_int_equal(param->unit + slice->index, layout.buckets[s].unit);
            assert_ptr_equal(eng_layout_slice(&layout, &model, slice->param, slice->index), slice);
            assert_ptr_equal(eng_layout_slice_at(&layout, s, next * 1024), slice);
            assert_ptr_equal(eng_layout_slice_at(&layout, s, (next + slice->granules) * 1024 - 1),
                             slice);
            next += slice->granules;
        }
        assert_int_equal(next, layout.buckets[s].granules);
    }
    assert_null(eng_layout_slice(&layout, &model, 2, 3));
    assert_null(eng_layout_slice(&layout, &model, -1, 0));
    assert_null(eng_layout_slice(&layout, &model, (zero_param)model.param_count, 0));
    eng_layout_free(&layout);
    eng_model_free(&model);
}

static void more_ranks_than_granules_is_refused(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct eng_layout layout;
    struct base_error error = {0};
    add(&model, "a", ZERO_F32, 1024, 0, 1);
    add(&model, "b", ZERO_F32, 1, 0, 1);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 2, 0, &error), ZERO_OK);
    eng_layout_free(&layout);
    assert_int_equal(eng_layout_make(&layout, &model, 3, 0, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "2 granules"));
    assert_null(layout.buckets);
    eng_model_free(&model);
}

/** What travels and what the program writes lie beside each other, one buffer where the types are
 * the same; buckets don't overlap. */
static void gradients_have_a_buffer_a_type(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    struct eng_model model = {0};
    struct eng_layout layout;
    struct eng_placement placement;
    struct base_error error = {0};
    for (int i = 0; i < 9; i++) {
        zero_param_desc desc = zero_param_default();
        const char name[] = {(char)('a' + i), 0};
        desc.name = name;
        desc.ndim = 1;
        desc.shape[0] = 2048;
        desc.dtype = dtypes[i / 3];
        desc.grad_dtype = dtypes[i % 3];
        assert_int_equal(eng_model_add_param(&model, NULL, &desc, &error), ZERO_OK);
    }
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 2, -1, &error), ZERO_OK);
    assert_int_equal(layout.bucket_count, 9);
    const struct eng_limits limits = {.grad_units = 1, .open_units = 1, .comm_dtype = ZERO_BF16};
    assert_int_equal(eng_placement_make(&placement, &layout, 0, &limits, &error), ZERO_OK);
    size_t next = 0;
    for (size_t s = 0; s < 9; s++) {
        const struct eng_bucket_place *place = &placement.buckets[s];
        const zero_dtype dtype = layout.buckets[s].grad_dtype;
        assert_int_equal(place->comm_dtype, ZERO_BF16);
        assert_int_equal(place->comm_offset, next);
        next += dtype == ZERO_BF16 ? 0 : 2048 * 2;
        assert_int_equal(place->grad_offset, next);
        next += 2048 * eng_dtype_size(dtype);
    }
    assert_int_equal(placement.grads.bytes, next);
    eng_placement_free(&placement);
    eng_layout_free(&layout);
    eng_model_free(&model);
}

/** Whichever `held` units are open, in whichever order they came and went, the next one fits. */
static void any_open_units_fit(void **state)
{
    (void)state;
    struct eng_model model = {0};
    char name[16];
    const uint64_t sizes[] = {100000, 3000, 3000, 70000, 1, 9000, 65536, 3000, 2048, 20000};
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "t%d", i);
        add(&model, name, ZERO_F32, sizes[i], i, 1);
    }
    struct base_error error = {0};
    struct eng_layout layout;
    struct eng_placement placement;
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 2, -1, &error), ZERO_OK);
    const struct eng_limits limits = {
        .stage = 3, .open_units = 3, .prefetch_units = 0, .grad_units = 3};
    assert_int_equal(eng_placement_make(&placement, &layout, 0, &limits, &error), ZERO_OK);
    const struct eng_slot_plan *plan = &placement.gather;
    int used[ENG_MAX_CLASSES] = {0}, held[3] = {-1, -1, -1};
    uint64_t random = 1;
    for (int turn = 0; turn < 10000; turn++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const int place = turn % 3, unit = (int)(random >> 33) % 10;
        if (held[place] >= 0)
            used[plan->class_of_unit[held[place]]]--;
        held[place] = -1;
        if (unit == held[0] || unit == held[1] || unit == held[2])
            continue;
        const int class = plan->class_of_unit[unit];
        assert_true(used[class] < plan->classes[class].slots);
        assert_true(plan->classes[class].bytes >= ((sizes[unit] + 1023) / 1024) * 4096);
        used[class]++;
        held[place] = unit;
    }
    eng_placement_free(&placement);
    eng_layout_free(&layout);
    eng_model_free(&model);
}

/** The bytes of DESIGN section 6, for a model without padding. */
static void bytes_a_parameter(void **state)
{
    (void)state;
    struct eng_model model = {0};
    char name[16];
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "t%d", i);
        add(&model, name, ZERO_BF16, 12288, i, 1);
    }
    struct base_error error = {0};
    struct eng_layout layout;
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 4, 0, &error), ZERO_OK);
    const size_t params = 8 * 12288, unit = 12288;
    for (int i = 0; i <= 6; i++) {
        struct eng_placement p;
        const int stage = i <= 3 ? i : i - 3;
        const bool shared = i > 3;
        const struct eng_limits limits = {.stage = stage,
                                          .shared = shared,
                                          .open_units = 2,
                                          .prefetch_units = 1,
                                          .grad_units = 2};
        assert_int_equal(eng_placement_make(&p, &layout, 1, &limits, &error), ZERO_OK);
        assert_int_equal(p.params_bytes, stage < 3 || shared ? 2 * params : 2 * params / 4);
        assert_int_equal(p.params_part, stage < 3 && !shared ? 2 * params : 2 * params / 4);
        assert_int_equal(p.grads.bytes, stage < 2 ? 2 * params : 2 * 2 * unit);
        assert_int_equal(p.sums_bytes, 4 * params / 4);
        assert_int_equal(p.moments_bytes + p.masters_bytes,
                         stage == 0 ? 12 * params : 12 * params / 4);
        assert_int_equal(p.gather.bytes, stage < 3 || shared ? 0 : 3 * 2 * unit);
        assert_int_equal(p.blocks_bytes, 0);
        eng_placement_free(&p);
    }
    eng_layout_free(&layout);
    eng_model_free(&model);
}

// Where sums are in a file there are slots for those of three units of a size, and for their
// blocks: of what the rank has of them.
static void sums_in_a_file(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct base_error error = {0};
    struct eng_layout layout;
    char name[16];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "t%d", i);
        add(&model, name, ZERO_BF16, i < 4 ? 12288 : 100, i, 1);
    }
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 4, 0, &error), ZERO_OK);
    for (int rank = 0; rank < 4; rank++)
        for (int blocks = 0; blocks <= 1; blocks++) {
            struct eng_placement p;
            const struct eng_limits limits = {
                .stage = 2, .sums_in_file = true, .blocks = blocks, .grad_units = 2};
            assert_int_equal(eng_placement_make(&p, &layout, rank, &limits, &error), ZERO_OK);
            const size_t large = 4 * 12288 / 4, small = rank == 0 ? 4 * 1024 : 0;
            assert_int_equal(p.sums_bytes, 0);
            assert_int_equal(p.blocks_bytes, 0);
            assert_int_equal(p.units[0].sum_bytes, large);
            assert_int_equal(p.units[4].sum_bytes, small);
            assert_int_equal(p.sums.class_of_unit[4], small ? 1 : -1);
            assert_int_equal(p.sums.bytes, (1 + (size_t)blocks) * (3 * large + small));
            eng_placement_free(&p);
        }
    eng_layout_free(&layout);
    eng_model_free(&model);
}

static void add_of_group(struct eng_model *model, const char *name, uint64_t granules,
                         zero_group group, int32_t frozen)
{
    zero_param_desc desc = zero_param_default();
    struct base_error error = {0};
    desc.name = name;
    desc.ndim = 1;
    desc.shape[0] = granules * 1024;
    desc.group = group;
    desc.frozen = frozen;
    assert_int_equal(eng_model_add_param(model, NULL, &desc, &error), ZERO_OK);
}

/** A small tensor with two moments does not make the others pay for two, in a unit either. */
static void every_tensor_has_its_own_moments(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"sgd", "adamw", "lion"};
    struct eng_model model = {0};
    struct eng_layout layout;
    struct base_error error = {0};
    for (size_t g = 0; g < 3; g++) {
        zero_group_desc desc = zero_group_default();
        desc.optimizer = optimizers[g];
        assert_int_equal(eng_model_add_group(&model, NULL, &desc, &error), ZERO_OK);
    }
    add_of_group(&model, "big", 24, 0, 0);
    add_of_group(&model, "small", 6, 1, 0);
    add_of_group(&model, "big.too", 12, 2, 0);
    add_of_group(&model, "still", 8, 1, 1);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 2, -1, &error), ZERO_OK);
    assert_int_equal(layout.bucket_count, 3);
    for (int i = 0; i < 8; i++) {
        struct eng_placement p;
        const bool narrow = i % 2;
        const int stage = i / 2;
        const struct eng_limits limits = {
            .stage = stage, .open_units = 1, .grad_units = 1, .narrow_moments = narrow};
        size_t sum = 0;
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(eng_placement_make(&p, &layout, rank, &limits, &error), ZERO_OK);
            sum += p.moments_bytes;
            // One moment behind the other, bucket by bucket.
            size_t next = 0;
            for (size_t s = 0; s < 2; s++) {
                assert_int_equal(layout.buckets[s].moments, s + 1);
                assert_int_equal(p.buckets[s].moments, next);
                next += (s + 1) * p.buckets[s].state_granules * 1024;
            }
            assert_int_equal(p.moments_bytes, next * (narrow ? 2 : 4));
            eng_placement_free(&p);
        }
        const size_t all = (24 + 12 + 2 * 6) * 1024 * (narrow ? 2 : 4);
        assert_int_equal(sum, stage == 0 ? 2 * all : all);
    }
    eng_layout_free(&layout);
    eng_model_free(&model);
}

/** What tensors of a unit have in common before a point, else the first one's name. */
static void units_have_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        zero_unit unit;
        int32_t unit_count;
    } tensors[] = {
        {"wte", 0, 1},          {"wpe", 0, 1},        {"h.1.attn.weight", 1, 1},
        {"h.1.mlp.w", 1, 1},    {"h.12.w", 2, 1},     {"h.13.w", 2, 1},
        {"block.weight", 3, 2}, {"block.bias", 3, 2}, {"ln_f.weight", 5, 1},
        {"stacked", 6, 2},      {".point", 8, 1},     {"a.b", 9, 1},
        {"a.bc", 9, 1},         {"same.bias", 10, 1}, {"same", 10, 1},
    };
    static const char *const names[] = {"wte",     "h.1",  "h",         "block.0",
                                        "block.1", "ln_f", "stacked.0", "stacked.1",
                                        ".point",  "a",    "same.bias"};
    struct eng_model model = {0};
    struct base_error error = {0};
    struct eng_layout layout;
    char name[16];
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        add(&model, tensors[i].name, i % 2 ? ZERO_F32 : ZERO_BF16, 100, tensors[i].unit,
            tensors[i].unit_count);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_OK);
    assert_int_equal(eng_layout_make(&layout, &model, 2, 1024, &error), ZERO_OK);
    for (zero_unit u = 0; u < 11; u++) {
        eng_layout_unit_name(&layout, &model, u, name, sizeof name);
        assert_string_equal(name, names[u]);
    }
    eng_layout_unit_name(&layout, &model, 7, name, 6);
    assert_string_equal(name, "stack");
    eng_layout_free(&layout);
    eng_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_granule_has_one_owner),
        cmocka_unit_test(slices_fill_their_buckets),
        cmocka_unit_test(more_ranks_than_granules_is_refused),
        cmocka_unit_test(gradients_have_a_buffer_a_type),
        cmocka_unit_test(any_open_units_fit),
        cmocka_unit_test(bytes_a_parameter),
        cmocka_unit_test(sums_in_a_file),
        cmocka_unit_test(every_tensor_has_its_own_moments),
        cmocka_unit_test(units_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
