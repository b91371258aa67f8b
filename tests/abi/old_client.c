/* A client compiled against older or newer headers: its structs are shorter or longer than ours.
 *
 * Every public struct with a struct_size is here; structs.sh sees to that. */
#include <zero/collectives.h>
#include <zero/optimizer.h>
#include <zero/zero.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "one_rank.h"
#include "tests/unit/temporary.h"

enum { TAIL = 64, ROOM = 1024, GARBAGE = 0x5a };

/** The fields an older header ended with; what lies behind them is not the library's to read. */
#define OLD_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)NULL)->last))

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

/* ------------------------------------------------------------------ what the library reads */

/** Hands over a gradient of zeros. */
static void finish_micro(zero_ctx *z)
{
    assert_int_equal(zero_grad_open(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_grad_done(z, 0, NULL), ZERO_OK);
}

static void fill_config(void *memory)
{
    const zero_config config = one_rank();
    memcpy(memory, &config, sizeof config);
}

static zero_result give_config(const void *memory)
{
    zero_ctx *z = (zero_ctx *)(uintptr_t)memory;
    const zero_result result = zero_open(&z, memory);
    assert_int_equal(result == ZERO_OK, z != NULL);
    zero_close(z);
    return result;
}

static void fill_group(void *memory)
{
    const zero_group_desc group = zero_group_default();
    memcpy(memory, &group, sizeof group);
}

static zero_result give_group(const void *memory)
{
    zero_ctx *z = one_rank_open();
    const zero_result result = zero_add_group(z, NULL, memory);
    zero_close(z);
    return result;
}

static void fill_param(void *memory)
{
    zero_param_desc param = zero_param_default();
    param.name = "w";
    param.ndim = 1;
    param.shape[0] = 5;
    memcpy(memory, &param, sizeof param);
}

static zero_result give_param(const void *memory)
{
    zero_ctx *z = one_rank_open();
    zero_result result = zero_add_param(z, NULL, memory);
    if (!result)
        result = zero_commit(z);
    zero_close(z);
    return result;
}

static zero_step_args usual_args(void)
{
    static const zero_hyper hyper = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    return args;
}

/** A whole step. */
static void train(zero_ctx *z)
{
    const zero_step_args args = usual_args();
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    finish_micro(z);
    assert_int_equal(zero_step(z, &args, NULL), ZERO_OK);
}

static void fill_args(void *memory)
{
    const zero_step_args args = usual_args();
    memcpy(memory, &args, sizeof args);
}

static zero_result give_args(const void *memory)
{
    zero_ctx *z = one_rank_committed();
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    finish_micro(z);
    const zero_result result = zero_step(z, memory, NULL);
    zero_close(z);
    return result;
}

/** What callbacks are given says how much it has. */
#define GIVEN(type, pointer) assert_int_equal((pointer)->struct_size, sizeof(type))

static int runs;

static void update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    (void)scalars;
    GIVEN(zero_optimizer_run, run);
    runs++;
}

static void fill_optimizer(void *memory)
{
    zero_optimizer_desc desc = zero_optimizer_default();
    desc.name = "own";
    desc.prepare = one_rank_prepare;
    desc.update = update;
    memcpy(memory, &desc, sizeof desc);
}

static zero_result give_optimizer(const void *memory)
{
    zero_ctx *z = one_rank_open();
    const zero_result result = zero_add_optimizer(z, memory);
    if (result) {
        zero_close(z);
        return result;
    }
    zero_group_desc group = zero_group_default();
    group.optimizer = "own";
    assert_int_equal(zero_add_group(z, NULL, &group), ZERO_OK);
    one_rank_commit(z);
    train(z);
    assert_true(runs-- > 0);
    zero_close(z);
    return result;
}

static void fill_comm_config(void *memory)
{
    zero_comm_config config = zero_comm_config_default();
    config.world = 1;
    memcpy(memory, &config, sizeof config);
}

static zero_result give_comm_config(const void *memory)
{
    zero_comm *comm = NULL;
    const zero_result result = zero_comm_open(&comm, memory);
    zero_comm_close(comm);
    return result;
}

static void fill_save_options(void *memory)
{
    const zero_save_options options = zero_save_options_default();
    memcpy(memory, &options, sizeof options);
}

static zero_result give_save_options(const void *memory)
{
    zero_ctx *z = one_rank_committed();
    assert_true(temporary_empty(directory.directory));
    const zero_result result = zero_save(z, directory.directory, memory);
    zero_close(z);
    return result;
}

static void fill_load_options(void *memory)
{
    const zero_load_options options = zero_load_options_default();
    memcpy(memory, &options, sizeof options);
}

static void save(zero_ctx *z)
{
    assert_true(temporary_empty(directory.directory));
    assert_int_equal(zero_save(z, directory.directory, NULL), ZERO_OK);
    assert_int_equal(zero_save_wait(z), ZERO_OK);
}

static zero_result give_load_options(const void *memory)
{
    zero_ctx *z = one_rank_committed();
    save(z);
    const zero_result result = zero_resume(z, directory.directory, memory, NULL);
    zero_close(z);
    return result;
}

#define INPUT(type, last, fill, give)                                                              \
    {                                                                                              \
#type, sizeof(type), OLD_SIZE(type, last), fill, give                                      \
    }

static const struct input {
    const char *name;
    size_t size;
    size_t oldest; /**< what every header has had */
    void (*fill)(void *memory);
    zero_result (*give)(const void *memory);
} inputs[] = {
    INPUT(zero_config, micro_batches, fill_config, give_config),
    INPUT(zero_group_desc, decay, fill_group, give_group),
    INPUT(zero_param_desc, group, fill_param, give_param),
    INPUT(zero_step_args, scale, fill_args, give_args),
    INPUT(zero_optimizer_desc, update, fill_optimizer, give_optimizer),
    INPUT(zero_comm_config, rank, fill_comm_config, give_comm_config),
    INPUT(zero_save_options, level, fill_save_options, give_save_options),
    INPUT(zero_load_options, allow_new_batch, fill_load_options, give_load_options),
};

enum { INPUTS = sizeof inputs / sizeof *inputs };

/** A struct whose size is said to be `size`, with garbage behind it. */
static zero_result give(const struct input *input, size_t size, unsigned char tail)
{
    _Alignas(16) unsigned char memory[ROOM];
    const uint32_t said = (uint32_t)size;
    assert_true(input->size + TAIL <= sizeof memory);
    memset(memory, 0, sizeof memory);
    input->fill(memory);
    memset(memory + size, GARBAGE, sizeof memory - size);
    memcpy(memory, &said, sizeof said);
    if (size > input->size)
        memory[size - 1] = tail;
    return input->give(memory);
}

/** Compiled against any older header: what that lacked is at its default. */
static void shorter_inputs_are_read_as_far_as_they_go(void **state)
{
    (void)state;
    for (int i = 0; i < INPUTS; i++)
        for (size_t size = inputs[i].oldest; size <= inputs[i].size; size += 8 - size % 8)
            if (give(&inputs[i], size, 0))
                fail_msg("%s of %zu bytes", inputs[i].name, size);
}

/** What a newer header has is accepted if it says nothing. */
static void longer_inputs_must_say_nothing_new(void **state)
{
    (void)state;
    for (int i = 0; i < INPUTS; i++)
        for (size_t size = inputs[i].size + 1; size <= inputs[i].size + TAIL; size += 7)
            for (int tail = 0; tail < 2; tail++)
                if (give(&inputs[i], size, (unsigned char)tail) !=
                    (tail ? ZERO_E_INVALID : ZERO_OK))
                    fail_msg("%s of %zu bytes, tail %d", inputs[i].name, size, tail);
}

static void inputs_without_a_size_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < INPUTS; i++)
        for (uint32_t said = 0; said < sizeof said; said++) {
            _Alignas(16) unsigned char memory[ROOM] = {0};
            inputs[i].fill(memory);
            memcpy(memory, &said, sizeof said);
            if (inputs[i].give(memory) != ZERO_E_INVALID)
                fail_msg("%s of %u bytes", inputs[i].name, said);
        }
}

/* ------------------------------------------------------------------ what the library writes */

static zero_result take_micro(zero_ctx *z, void *memory)
{
    const zero_result result = zero_micro_begin(z, 0, memory);
    if (result)
        return result;
    const zero_step_args args = usual_args();
    finish_micro(z);
    return zero_step(z, &args, NULL);
}

static zero_result take_result(zero_ctx *z, void *memory)
{
    zero_step_result first = {.struct_size = sizeof first};
    if (zero_step_info(z, &first) == ZERO_E_STATE)
        train(z);
    return zero_step_info(z, memory);
}

static zero_result take_statistics(zero_ctx *z, void *memory)
{
    return zero_stats(z, memory);
}

static zero_result take_save_info(zero_ctx *z, void *memory)
{
    zero_save_info info = {.struct_size = sizeof info};
    if (zero_save_poll(z, &info) == ZERO_OK && info.phase == ZERO_SAVE_NONE)
        save(z);
    return zero_save_poll(z, memory);
}

static zero_result take_load_result(zero_ctx *z, void *memory)
{
    save(z);
    return zero_resume(z, directory.directory, NULL, memory);
}

#define OUTPUT(type, take)                                                                         \
    {                                                                                              \
#type, sizeof(type), take                                                                  \
    }

static const struct output {
    const char *name;
    size_t size;
    zero_result (*take)(zero_ctx *z, void *memory);
} outputs[] = {
    OUTPUT(zero_micro, take_micro),
    OUTPUT(zero_step_result, take_result),
    OUTPUT(zero_statistics, take_statistics),
    OUTPUT(zero_save_info, take_save_info),
    OUTPUT(zero_load_result, take_load_result),
};

enum { OUTPUTS = sizeof outputs / sizeof *outputs };

/** A struct whose size is said to be `size` comes back filled so far and no further; of what a
 * newer header has zero. */
static void take(const struct output *output, zero_ctx *z, size_t size, unsigned char *memory)
{
    const uint32_t said = (uint32_t)size;
    memset(memory, GARBAGE, ROOM);
    memcpy(memory, &said, sizeof said);
    assert_int_equal(output->take(z, memory), ZERO_OK);
    for (size_t i = size; i < ROOM; i++)
        if (memory[i] != GARBAGE)
            fail_msg("%s of %zu bytes: byte %zu was written", output->name, size, i);
    for (size_t i = output->size; i < size; i++)
        if (memory[i] != 0)
            fail_msg("%s of %zu bytes: byte %zu was not cleared", output->name, size, i);
    assert_memory_equal(memory, &said, sizeof said);
}

static void outputs_are_written_as_far_as_they_go(void **state)
{
    (void)state;
    for (int i = 0; i < OUTPUTS; i++) {
        _Alignas(16) unsigned char full[ROOM], memory[ROOM];
        zero_ctx *z = one_rank_committed();
        take(&outputs[i], z, outputs[i].size, full);
        for (size_t size = 4; size <= outputs[i].size + TAIL; size += 4) {
            take(&outputs[i], z, size, memory);
            const size_t shared = size < outputs[i].size ? size : outputs[i].size;
            // A later step counts on, and another load takes its own time.
            if (outputs[i].take != take_micro && outputs[i].take != take_load_result)
                assert_memory_equal(memory + 4, full + 4, shared - 4);
        }
        zero_close(z);
    }
}

static void outputs_without_a_size_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < OUTPUTS; i++)
        for (uint32_t said = 0; said < sizeof said; said++) {
            zero_ctx *z = one_rank_committed();
            _Alignas(16) unsigned char memory[ROOM] = {0};
            memcpy(memory, &said, sizeof said);
            if (outputs[i].take(z, memory) != ZERO_E_INVALID)
                fail_msg("%s of %u bytes", outputs[i].name, said);
            zero_close(z);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shorter_inputs_are_read_as_far_as_they_go),
        cmocka_unit_test(longer_inputs_must_say_nothing_new),
        cmocka_unit_test(inputs_without_a_size_are_refused),
        cmocka_unit_test(outputs_are_written_as_far_as_they_go),
        cmocka_unit_test(outputs_without_a_size_are_refused),
    };
    return cmocka_run_group_tests_name("old_client", tests, set_up, tear_down);
}
