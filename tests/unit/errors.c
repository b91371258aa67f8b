/* Errors that the headers document and that no test of a part reaches through the public call. */
#include <zero/collectives.h>
#include <zero/optimizer.h>
#include <zero/zero.h>

#include "base/fault.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/abi/one_rank.h"

static struct temporary dir;

static zero_comm *join_one(void)
{
    zero_comm_config config = zero_comm_config_default();
    config.world = 1;
    config.log_level = -1;
    zero_comm *comm = NULL;
    assert_int_equal(zero_comm_open(&comm, &config), ZERO_OK);
    return comm;
}

/** Every allocation fails from now on. */
static void no_memory(void)
{
    assert_int_equal(base_fault_set("alloc@1+", NULL), ZERO_OK);
}

static int memory_again(void **state)
{
    (void)state;
    return base_fault_set(NULL, NULL);
}

/** What failed has said so, and the context can be closed. */
static void close_failed(zero_ctx *z)
{
    memory_again(NULL);
    assert_string_not_equal(zero_last_error(z), "");
    zero_close(z);
}

static void registration_without_memory(void **state)
{
    (void)state;
    zero_ctx *z = one_rank_open();
    zero_param_desc param = zero_param_default();
    param.name = "w";
    no_memory();
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_E_NOMEM);
    close_failed(z);

    z = one_rank_open();
    no_memory();
    assert_int_equal(zero_add_group(z, NULL, NULL), ZERO_E_NOMEM);
    close_failed(z);
}

static void update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    (void)scalars;
    (void)run;
}

static void optimizers_without_memory(void **state)
{
    (void)state;
    zero_ctx *z = one_rank_open();
    zero_optimizer_desc own = zero_optimizer_default();
    own.name = "own";
    own.prepare = one_rank_prepare;
    own.update = update;
    no_memory();
    assert_int_equal(zero_add_optimizer(z, &own), ZERO_E_NOMEM);
    close_failed(z);
}

static void registration_after_commit_or_of_nonsense(void **state)
{
    (void)state;
    zero_ctx *z = one_rank_open();
    zero_param_desc param = zero_param_default();
    param.name = "with blank";
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_E_INVALID);
    assert_int_equal(zero_add_param(z, NULL, NULL), ZERO_E_INVALID);
    zero_close(z);
    z = one_rank_committed();
    param.name = "late";
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_E_STATE);
    assert_int_equal(zero_add_group(z, NULL, NULL), ZERO_E_STATE);
    assert_int_equal(zero_barrier(z), ZERO_OK);
    zero_close(z);
}

/* ------------------------------------------------------------------ joining */

static void teams(void **state)
{
    (void)state;
    zero_team *team = (zero_team *)&dir;
    assert_int_equal(zero_team_create(&team, 0), ZERO_E_INVALID);
    assert_null(team);
    no_memory();
    assert_int_equal(zero_team_create(&team, 2), ZERO_E_NOMEM);
    assert_null(team);
    assert_string_not_equal(zero_last_error(NULL), "");
}

static void contexts_and_families_without_memory(void **state)
{
    (void)state;
    const zero_config config = one_rank();
    zero_comm_config how = zero_comm_config_default();
    zero_ctx *z = (zero_ctx *)&dir;
    zero_comm *comm = (zero_comm *)&dir;
    how.world = 1;
    no_memory();
    assert_int_equal(zero_open(&z, &config), ZERO_E_NOMEM);
    assert_int_equal(zero_comm_open(&comm, &how), ZERO_E_NOMEM);
    assert_true(z == NULL && comm == NULL);
}

/** Of two ranks one never comes. */
static void who_is_missing_is_waited_for(void **state)
{
    (void)state;
    zero_config config = one_rank();
    zero_comm_config how = zero_comm_config_default();
    zero_ctx *z = (zero_ctx *)&dir;
    zero_comm *comm = (zero_comm *)&dir;
    config.world = how.world = 2;
    config.timeout_s = how.timeout_s = 1;
    config.name = how.name = "never";
    how.log_level = -1;
    assert_int_equal(zero_open(&z, &config), ZERO_E_TIMEOUT);
    assert_non_null(strstr(zero_last_error(NULL), "1"));
    assert_int_equal(zero_comm_open(&comm, &how), ZERO_E_TIMEOUT);
    assert_true(z == NULL && comm == NULL);
}

/** No descriptor is left for a socket. */
static void joining_needs_descriptors(void **state)
{
    (void)state;
    struct rlimit before, none;
    zero_config config = one_rank();
    zero_comm_config how = zero_comm_config_default();
    zero_ctx *z = (zero_ctx *)&dir;
    zero_comm *comm = (zero_comm *)&dir;
    config.world = how.world = 2;
    config.timeout_s = how.timeout_s = 1;
    how.log_level = -1;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){3, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const zero_result opened = zero_open(&z, &config), joined = zero_comm_open(&comm, &how);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(opened, ZERO_E_IO);
    assert_int_equal(joined, ZERO_E_IO);
    assert_true(z == NULL && comm == NULL);
}

static void a_process_manager_is_not_there(void **state)
{
    (void)state;
    zero_ctx *z = (zero_ctx *)&dir;
    zero_comm *comm = (zero_comm *)&dir;
    static const char *const variables[][2] = {
        {"PMI_RANK", "0"},        {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "1"}, {"PMI_FD", "999"}, {"ZERO_PMI", "1"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        setenv(variables[i][0], variables[i][1], 1);
    const zero_result opened = zero_open(&z, NULL), joined = zero_comm_open(&comm, NULL);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i][0]);
    assert_int_equal(opened, ZERO_E_UNSUPPORTED);
    assert_int_equal(joined, ZERO_E_UNSUPPORTED);
    assert_true(z == NULL && comm == NULL);
}

/* ------------------------------------------------------------------ the engine */

static zero_ctx *with_16_metrics(void)
{
    zero_ctx *z = one_rank_committed();
    char name[16];
    const float value = 1;
    assert_int_equal(zero_metric_from(z, "early", &value, NULL), ZERO_E_STATE);
    assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_metric(z, "norm", 1), ZERO_E_INVALID);
    assert_non_null(strstr(zero_last_error(z), "metric norm"));
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "metric%d", i);
        assert_int_equal(zero_metric(z, name, i), ZERO_OK);
    }
    return z;
}

static void a_micro_batch_has_16_metrics(void **state)
{
    (void)state;
    const float value = 16;
    zero_ctx *z = with_16_metrics();
    assert_int_equal(zero_metric(z, "metric16", 16), ZERO_E_LIMIT);
    zero_close(z);
    z = with_16_metrics();
    assert_int_equal(zero_metric_from(z, "metric16", &value, NULL), ZERO_E_LIMIT);
    zero_close(z);
}

/** Bytes that the library has on this rank. */
static uint64_t allocated(const zero_ctx *z)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    assert_int_equal(zero_stats(z, &stats), ZERO_OK);
    return stats.allocated_bytes;
}

/** The rest of an evaluation of as many micro-batches, with as many metrics as there can be. */
static void evaluate(zero_ctx *z, int32_t count)
{
    double mean = -1;
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(zero_micro_begin(z, i, NULL), ZERO_OK);
        for (char name[] = "a"; *name <= 'p'; ++*name)
            assert_int_equal(zero_metric(z, name, i), ZERO_OK);
    }
    assert_int_equal(zero_eval_end(z), ZERO_OK);
    assert_int_equal(zero_metric_mean(z, "p", &mean), ZERO_OK);
    assert_true(mean == 0.5 * (count - 1));
}

/** What asks for memory between steps can be asked for again; what does not, goes on without. */
static void calls_between_steps_without_memory(void **state)
{
    (void)state;
    float value;
    zero_ctx *z = one_rank_committed();
    const uint64_t before = allocated(z);
    no_memory();
    assert_int_equal(zero_eval_begin(z, 3), ZERO_E_NOMEM);
    assert_non_null(strstr(zero_last_error(z), "no memory"));
    assert_int_equal(zero_set_micro_batches(z, 3), ZERO_E_NOMEM);
    assert_int_equal(zero_micro_total(z), 1);
    assert_int_equal(zero_param_read(z, 0, 0, 0, 1, &value), ZERO_OK);
    assert_int_equal(zero_param_write(z, 0, 0, 0, 1, &value), ZERO_OK);
    assert_int_equal(zero_set_frozen(z, 0, 1), ZERO_OK);
    assert_int_equal(allocated(z), before);
    memory_again(NULL);
    assert_int_equal(zero_set_micro_batches(z, 3), ZERO_OK);
    assert_int_equal(zero_eval_begin(z, 3), ZERO_OK);
    assert_int_equal(zero_micro_total(z), 3);
    evaluate(z, 3);
    zero_close(z);
}

/** The first evaluation of a size is in the plan from then on: 128 bytes a micro-batch, and as much
 * for this rank's own; the moment of zero_commit() is past. */
static void evaluations_are_in_the_plan(void **state)
{
    (void)state;
    zero_ctx *z = one_rank_committed();
    const uint64_t before = allocated(z);
    for (int32_t count = 3; count <= 5; count++) {
        assert_int_equal(zero_eval_begin(z, count), ZERO_OK);
        evaluate(z, count);
        // A hash of names stands before the values.
        assert_int_equal(allocated(z) - before, 2 * (8 + 128 * count));
    }
    assert_int_equal(zero_eval_begin(z, 2), ZERO_OK);
    assert_int_equal(allocated(z) - before, 2 * (8 + 128 * 5));
    evaluate(z, 2);
    assert_int_equal(zero_eval_begin(z, 1 << 20), ZERO_OK);
    assert_int_equal(allocated(z) - before, 2 * (8 + 128 * (UINT64_C(1) << 20)));
    assert_non_null(strstr(zero_plan_text(z), "  fits         yes\n"));
    zero_close(z);
}

/** A safetensors file with a type that no version knows. */
static void a_file_of_an_unknown_type(void **state)
{
    (void)state;
    zero_ctx *z = one_rank_committed();
    const char json[] = "{\"w\":{\"dtype\":\"Q9\",\"shape\":[5],\"data_offsets\":[0,20]}} ";
    const char path[] = "unknown.safetensors";
    uint8_t before[16], after[16], bytes[8 + sizeof json - 1 + 20] = {sizeof json - 1};
    memcpy(bytes + 8, json, sizeof json - 1);
    FILE *file = fopen(temporary_path(&dir, path), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(zero_fingerprint(z, before), ZERO_OK);
    assert_int_equal(zero_import(z, temporary_path(&dir, path), NULL), ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(zero_last_error(z), "unknown dtype 'Q9'"));
    assert_int_equal(zero_fingerprint(z, after), ZERO_OK);
    assert_memory_equal(before, after, sizeof before);
    zero_close(z);
}

/* ------------------------------------------------------------------ collectives */

static void families_have_so_many_memories(void **state)
{
    (void)state;
    zero_comm *comm = join_one();
    void *memory = NULL;
    zero_result result = ZERO_OK;
    int count = 0;
    while (count <= 1024 && (result = zero_comm_alloc(comm, 1, &memory)) == ZERO_OK)
        count++;
    assert_int_equal(count, 1024);
    assert_int_equal(result, ZERO_E_LIMIT);
    assert_int_equal(zero_comm_alloc(comm, 1, &memory), ZERO_E_LIMIT);
    assert_null(memory);
    assert_int_equal(zero_comm_barrier(comm), ZERO_OK);
    zero_comm_close(comm);
}

static void families_without_memory(void **state)
{
    (void)state;
    zero_comm *comm = join_one(), *group = (zero_comm *)&dir;
    void *memory = &dir;
    no_memory();
    assert_int_equal(zero_comm_alloc(comm, 1, &memory), ZERO_E_NOMEM);
    assert_null(memory);
    memory_again(NULL);
    assert_string_not_equal(zero_comm_error(comm), "");
    zero_comm_close(comm);

    comm = join_one();
    no_memory();
    assert_int_equal(zero_comm_split(comm, 0, 0, &group), ZERO_E_NOMEM);
    assert_null(group);
    memory_again(NULL);
    zero_comm_close(comm);
}

/** One side gives four bytes, the other eight, in each of the forms. */
static void messages_of_two_sizes(void **state)
{
    (void)state;
    char bytes[8] = {0};
    zero_request request = {{0}};
    zero_comm *comm = join_one();
    assert_int_equal(zero_comm_send_start(comm, bytes, 4, 0, &request), ZERO_OK);
    assert_int_equal(zero_comm_receive(comm, bytes, 8, 0), ZERO_E_DIVERGED);
    assert_string_not_equal(zero_comm_error(comm), "");
    zero_comm_close(comm);

    comm = join_one();
    request = (zero_request){{0}};
    assert_int_equal(zero_comm_receive_start(comm, bytes, 8, 0, &request), ZERO_OK);
    assert_int_equal(zero_comm_send(comm, bytes, 4, 0), ZERO_E_DIVERGED);
    zero_comm_close(comm);
}

static int make_directory(void **state)
{
    (void)state;
    return temporary_make(&dir) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    temporary_remove(&dir);
    return 0;
}

#define TEST(function) cmocka_unit_test_teardown(function, memory_again)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(registration_without_memory),
        TEST(optimizers_without_memory),
        TEST(registration_after_commit_or_of_nonsense),
        TEST(teams),
        TEST(contexts_and_families_without_memory),
        TEST(who_is_missing_is_waited_for),
        TEST(joining_needs_descriptors),
        TEST(a_process_manager_is_not_there),
        TEST(a_micro_batch_has_16_metrics),
        TEST(calls_between_steps_without_memory),
        TEST(evaluations_are_in_the_plan),
        TEST(a_file_of_an_unknown_type),
        TEST(families_have_so_many_memories),
        TEST(families_without_memory),
        TEST(messages_of_two_sizes),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
