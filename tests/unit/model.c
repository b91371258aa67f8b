/** What the model accepts, and that what it refuses changes nothing. */
#include "zero/model/registry.h"
#include "zero/model/versioned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static zero_param_desc good(void)
{
    zero_param_desc desc = zero_param_default();
    desc.name = "w";
    desc.ndim = 2;
    desc.shape[0] = 3;
    desc.shape[1] = 5;
    return desc;
}

static void refuse(struct eng_model *model, const zero_param_desc *desc, const char *says)
{
    struct base_error error = {0};
    const size_t before = model->param_count;
    assert_int_equal(eng_model_add_param(model, NULL, desc, &error), ZERO_E_INVALID);
    if (!strstr(error.message, says))
        fail_msg("\"%s\" does not say \"%s\"", error.message, says);
    assert_int_equal(model->param_count, before);
}

static void tensors_are_checked(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct base_error error = {0};
    zero_param id = -1;
    zero_param_desc desc = good();
    assert_int_equal(eng_model_add_param(&model, &id, &desc, &error), ZERO_OK);
    assert_int_equal(id, 0);
    assert_int_equal(model.params[0].slice_numel, 15);
    assert_int_equal(model.params[0].dtype, ZERO_F32);
    assert_int_equal(model.params[0].grad_dtype, ZERO_F32);
    refuse(&model, &desc, "already");
#define REFUSE(field, value, says)                                                                 \
    do {                                                                                           \
        desc = good();                                                                             \
        desc.name = "x";                                                                           \
        desc.field = (value);                                                                      \
        refuse(&model, &desc, says);                                                               \
    } while (0)
    REFUSE(name, NULL, "name");
    REFUSE(name, "", "name");
    REFUSE(name, "a b", "name");
    REFUSE(name, "a\n", "name");
    REFUSE(name, "caf\xc3\xa9", "printable");
    REFUSE(name, "__metadata__", "tensor __metadata__: safetensors");
    REFUSE(dtype, (zero_dtype)9, "dtype 9");
    REFUSE(dtype, ZERO_F64, "dtype 4, grad_dtype 0: tensors and gradients are f32, bf16 or f16");
    REFUSE(grad_dtype, ZERO_F64, "dtype 0, grad_dtype 4");
    REFUSE(grad_dtype, (zero_dtype)-1, "grad_dtype -1");
    REFUSE(ndim, -1, "ndim -1");
    REFUSE(ndim, ZERO_MAX_DIMS + 1, "ndim 9");
    REFUSE(shape[1], 0, "extent 1");
    REFUSE(shape[0], UINT64_MAX, "overflows");
    REFUSE(unit, -1, "unit -1");
    REFUSE(unit, INT32_MAX, "unit");
    REFUSE(unit_count, -2, "unit_count -2");
    REFUSE(unit_count, 4, "first extent must be 4");
    REFUSE(group, 1, "group 1");
    REFUSE(group, -1, "group -1");
    REFUSE(struct_size, 2, "struct_size");
    REFUSE(frozen, 2, "frozen is 2");
#undef REFUSE
    for (zero_dtype dtype = ZERO_F32; dtype <= ZERO_F16; dtype++) {
        desc = good();
        desc.name = "x";
        desc.frozen = 1;
        desc.grad_dtype = dtype;
        refuse(&model, &desc, "tensor x is frozen: it has no gradient of a grad_dtype");
    }
    refuse(&model, NULL, "description");
    desc = good();
    desc.name = "x";
    desc.unit_count = 3;
    desc.dtype = ZERO_F16;
    assert_int_equal(eng_model_add_param(&model, &id, &desc, &error), ZERO_OK);
    assert_int_equal(model.params[id].grad_dtype, ZERO_F16);
    assert_int_equal(model.params[id].slice_count, 3);
    assert_int_equal(model.params[id].slice_numel, 5);
    assert_int_equal(model.unit_count, 3);
    eng_model_free(&model);
}

static void units_are_dense(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct base_error error = {0};
    assert_int_equal(eng_model_complete(&model, &error), ZERO_E_INVALID);
    base_error_clear(&error);
    zero_param_desc desc = good();
    desc.unit_count = 3;
    assert_int_equal(eng_model_add_param(&model, NULL, &desc, &error), ZERO_OK);
    desc = good();
    desc.name = "far";
    desc.unit = 4;
    assert_int_equal(eng_model_add_param(&model, NULL, &desc, &error), ZERO_OK);
    assert_int_equal(eng_model_complete(&model, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "densely"));
    eng_model_free(&model);
}

static void groups_are_checked(void **state)
{
    (void)state;
    struct eng_model model = {0};
    struct base_error error = {0};
    zero_group id = -1;
    zero_group_desc desc = zero_group_default();
    desc.optimizer = "adamwww";
    assert_int_equal(eng_model_add_group(&model, &id, &desc, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "adamwww"));
    assert_int_equal(model.group_count, 0);
    base_error_clear(&error);
    assert_int_equal(eng_model_add_group(&model, &id, NULL, &error), ZERO_OK);
    assert_int_equal(eng_model_add_group(&model, &id, NULL, &error), ZERO_OK);
    assert_int_equal(id, 1);
    assert_string_equal(model.groups[1].name, "group1");
    eng_model_free(&model);
}

/** A struct of an older caller is filled up; one of a newer caller may only have zeros at its end.
 */
static void structs_grow(void **state)
{
    (void)state;
    struct newer {
        uint32_t struct_size;
        uint32_t a, b, c;
    } in = {sizeof in, 1, 2, 0};
    struct older {
        uint32_t struct_size;
        uint32_t a, b;
    } out = {0};
    struct base_error error = {0};
    assert_int_equal(eng_struct_copy(&out, sizeof out, &in, "s", &error), ZERO_OK);
    assert_int_equal(out.b, 2);
    in.c = 7;
    assert_int_equal(eng_struct_copy(&out, sizeof out, &in, "s", &error), ZERO_E_INVALID);
    in.struct_size = 8;
    out.b = 5;
    base_error_clear(&error);
    assert_int_equal(eng_struct_copy(&out, sizeof out, &in, "s", &error), ZERO_OK);
    assert_int_equal(out.a, 1);
    assert_int_equal(out.b, 0);

    struct newer given = {sizeof given, 9, 9, 9};
    const struct older full = {sizeof given, 1, 2};
    eng_struct_give(&given, &full, sizeof full);
    assert_int_equal(given.b, 2);
    assert_int_equal(given.c, 0);
    struct newer small = {8, 9, 9, 9};
    const struct older answer = {8, 1, 2};
    eng_struct_give(&small, &answer, sizeof answer);
    assert_int_equal(small.a, 1);
    assert_int_equal(small.b, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(units_are_dense),
        cmocka_unit_test(groups_are_checked),
        cmocka_unit_test(structs_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
