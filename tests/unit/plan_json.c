/* The plan as JSON: what it says is what the text says and what ranks have; and what does not fit
 * is refused with numbers. */
#include <zero/optimizer.h>
#include <zero/zero.h>

#include "base/arena.h"
#include "base/memory_limits.h"
#include "zero/plan/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "tests/sweep.h"
#include "tests/unit/temporary.h"

enum { WORLD = 3, GRANULE = 1024 };

/** Six tensors of odd sizes in three units, two of them stacked. */
static zero_ctx *open_model(const zero_config *config)
{
    zero_ctx *z = NULL;
    if (zero_open(&z, config))
        fail_msg("%s", zero_last_error(NULL));
    for (int p = 0; p < 4; p++) {
        char name[16];
        zero_param_desc desc = zero_param_default();
        snprintf(name, sizeof name, "tensor%d", p);
        desc.name = name;
        desc.dtype = p % 2 ? ZERO_BF16 : ZERO_F32;
        desc.ndim = 2;
        desc.shape[0] = p == 2 ? 3 : 5;
        desc.shape[1] = (uint64_t)(3000 + 7000 * p);
        desc.unit_count = p == 2 ? 3 : 1;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
    assert_string_equal(zero_plan_json(z), "");
    return z;
}

static zero_config config_of(int stage, const char *gather)
{
    zero_config config = zero_config_default();
    config.stage = stage;
    config.gather = gather;
    config.log_level = ZERO_OFF;
    return config;
}

static void plan_for(int world)
{
    char number[16];
    snprintf(number, sizeof number, "%d", world);
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_WORLD", number, 1);
}

static int plan_no_more(void **state)
{
    (void)state;
    unsetenv("ZERO_PLAN");
    unsetenv("ZERO_PLAN_WORLD");
    unsetenv("ZERO_PLAN_LOCAL_WORLD");
    unsetenv("ZERO_PLAN_LEAST_LOCAL_WORLD");
    unsetenv("ZERO_PLAN_FD");
    unsetenv("ZERO_PLAN_PROBE");
    return 0;
}

static json_t *parse(const zero_ctx *z)
{
    json_error_t error;
    json_t *plan = json_loads(zero_plan_json(z), 0, &error);
    if (!plan)
        fail_msg("%s:\n%s", error.text, zero_plan_json(z));
    return plan;
}

/** What is at "a.b.c". */
static json_t *at(json_t *object, const char *path)
{
    char name[64];
    while (*path) {
        const size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        object = json_object_get(object, name);
        if (!object)
            fail_msg("the plan has no %s", path);
        path += length + (path[length] == '.');
    }
    return object;
}

static uint64_t number(json_t *object, const char *path)
{
    object = at(object, path);
    assert_true(json_is_integer(object));
    return (uint64_t)json_integer_value(object);
}

static const char *text(json_t *object, const char *path)
{
    object = at(object, path);
    assert_true(json_is_string(object));
    return json_string_value(object);
}

/** The text says the same as the JSON of what a rank has at most, and of the host. */
static void compare_with_text(const zero_ctx *z, json_t *plan)
{
    static const char *const moments[][2] = {{"zero_commit", "commit"},
                                             {"a step", "step"},
                                             {"zero_export", "save"},
                                             {"zero_import", "load"}};
    const char *line = strstr(zero_plan_text(z), "\nat most");
    char expected[64];
    for (int i = 0; i < 4; i++) {
        line = strchr(line + 1, '\n');
        snprintf(expected, sizeof expected, "\n  %-34s %-6s %16" PRIu64 " ", moments[i][0], "host",
                 number(at(at(plan, "memory.peaks"), moments[i][1]), "bytes"));
        assert_memory_equal(line, expected, strlen(expected));
    }
    snprintf(expected, sizeof expected, "(rank %" PRIu64 ")\n", number(plan, "host.largest_rank"));
    assert_true(number(plan, "world") == 1 || strstr(line, expected));
    // It is made of nothing else.
    char *rendered = eng_plan_text(plan);
    assert_string_equal(rendered, zero_plan_text(z));
    base_free(rendered);
}

/** A plan made for `world` ranks that are not there. */
static json_t *planned(const zero_config *config, int world)
{
    plan_for(world);
    zero_ctx *z = open_model(config);
    assert_int_equal(zero_commit(z), ZERO_PLANNED);
    json_t *plan = parse(z);
    compare_with_text(z, plan);
    zero_close(z);
    plan_no_more(NULL);
    return plan;
}

/** Bytes of all ranks, of the state, working copies or sums. */
static uint64_t of_file(json_t *plan, const char *file, const char *what)
{
    return number(at(at(at(plan, "memory.nvme.files"), file), what), "sum");
}

/** What is in files is told file by file, and all of it is moved by a step and needs room. */
static void every_file_is_told_of(void **state)
{
    (void)state;
    static const char *const files[] = {"state", "working_copies", "gradient_sums"};
    static const uint64_t elements = 5 * 3000 + 5 * 10000 + 3 * 17000 + 5 * 24000;
    const uint64_t narrow = 5 * 10000 + 5 * 24000;
    struct temporary directory;
    assert_true(temporary_make(&directory));
    for (uint64_t params = 0; params < 2; params++) {
        const uint64_t grads = 1 - params;
        zero_config config = config_of(2, NULL);
        config.micro_batches = 7;
        config.offload_optimizer = "nvme";
        config.offload_params = params ? "nvme" : NULL;
        config.offload_grads = grads ? "nvme" : "host";
        config.nvme_dir = directory.directory;
        json_t *plan = planned(&config, WORLD);
        uint64_t bytes = 0;
        for (int i = 0; i < 3; i++)
            bytes += of_file(plan, files[i], "bytes");
        assert_int_equal(bytes, number(plan, "memory.nvme.bytes.sum"));
        assert_in_range(number(plan, "memory.nvme.helpers"), 1, 4);
        assert_string_equal(json_string_value(at(plan, "memory.nvme.compress")), "auto");
        // Whole granules, whole pages: at least as much, and not much more.
        const uint64_t moved = of_file(plan, "state", "written");
        assert_int_equal(of_file(plan, "state", "read"), moved);
        assert_in_range(moved, 12 * elements, 13 * elements);
        const uint64_t copies = of_file(plan, "working_copies", "written");
        assert_in_range(copies, params * (4 * elements - 2 * narrow), params * 4 * elements);
        assert_int_equal(of_file(plan, "working_copies", "read"), 2 * 3 * copies);
        const uint64_t sums = of_file(plan, "gradient_sums", "written");
        assert_in_range(sums, grads * 3 * 4 * elements, grads * 3 * 5 * elements);
        assert_int_equal(of_file(plan, "gradient_sums", "read"), sums);
        assert_int_equal(number(plan, "memory.tiers.host.working_copy_buffers.min") > 0, params);
        assert_int_equal(number(plan, "memory.tiers.host.sum_buffers.min") > 0, grads);
        assert_int_equal(temporary_entries(&directory), 0);
        json_decref(plan);
    }
    temporary_remove(&directory);
}

static void prepare_nothing(void *user, const zero_hyper *hyper, uint64_t updates, double scale,
                            void *scalars)
{
    (void)user, (void)hyper, (void)updates, (void)scale, (void)scalars;
}

static void never_update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user, (void)scalars, (void)run;
    fail_msg("a plan has called the program's optimizer");
}

/** The plan of one tensor with this optimizer, "mine" being the program's. */
static json_t *plan_update(const zero_config *config, const char *optimizer, bool frozen)
{
    zero_ctx *z = NULL;
    zero_optimizer_desc own = zero_optimizer_default();
    zero_group_desc group = zero_group_default();
    zero_param_desc desc = zero_param_default();
    zero_group number;
    own.name = "mine";
    own.moments = 1;
    own.prepare = prepare_nothing;
    own.update = never_update;
    group.optimizer = optimizer;
    desc.name = "tensor";
    desc.dtype = ZERO_BF16;
    desc.ndim = 1;
    desc.shape[0] = 5000;
    desc.frozen = frozen;
    plan_for(1);
    assert_int_equal(zero_open(&z, config), ZERO_OK);
    assert_int_equal(zero_add_optimizer(z, &own), ZERO_OK);
    assert_int_equal(zero_add_group(z, &number, &group), ZERO_OK);
    desc.group = number;
    assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    if (zero_commit(z) != ZERO_PLANNED)
        fail_msg("%s", zero_last_error(z));
    json_t *plan = parse(z);
    plan_no_more(NULL);
    zero_close(z);
    return plan;
}

/** By an optimizer of ours, wide or narrow; what is not known is null, and no limit. */
static void an_update_is_timed(void **state)
{
    (void)state;
    static const struct {
        const char *optimizer, *master, *moments;
        int32_t threads;
        bool frozen, known;
    } cases[] = {
        {.optimizer = "adamw", .threads = 2, .known = true},
        {.optimizer = "lion", .master = "none", .moments = "bf16", .threads = 1, .known = true},
        {.optimizer = "mine", .threads = 1},
        {.frozen = true, .threads = 1},
    };
    struct temporary directory;
    assert_true(temporary_make(&directory));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool known = cases[i].known;
        zero_config config = config_of(1, NULL);
        config.offload_optimizer = "nvme";
        config.nvme_dir = directory.directory;
        config.cpu_threads = cases[i].threads;
        config.master = cases[i].master;
        config.moments = cases[i].moments;
        setenv("ZERO_PLAN_PROBE", "1", 1);
        json_t *plan = plan_update(&config, cases[i].optimizer, cases[i].frozen);
        json_t *compute = at(plan, "memory.nvme.compute_s"), *step = at(plan, "memory.nvme.step_s");
        assert_true(known ? json_real_value(compute) > 0 : json_is_null(compute));
        assert_true(known ? json_real_value(step) >= json_real_value(compute)
                          : strcmp(text(plan, "memory.nvme.limit"), "compute") != 0);
        assert_true(json_is_null(at(plan, "memory.nvme.prefetch_needed")));
        json_decref(plan);
    }
    temporary_remove(&directory);
}

/** Neither a plan that is only made nor that of a job, unless it is asked for. */
static void nothing_is_measured(void **state)
{
    (void)state;
    static const char *const fields[] = {"disk_s",          "memory_s", "compute_s",
                                         "prefetch_needed", "step_s",   "limit"};
    struct temporary directory;
    zero_config config = config_of(1, NULL);
    assert_true(temporary_make(&directory));
    config.offload_optimizer = "nvme";
    config.nvme_dir = directory.directory;
    for (int planned_only = 0; planned_only <= 1; planned_only++) {
        if (planned_only)
            plan_for(1);
        setenv("ZERO_PLAN_PROBE", planned_only ? "0" : "1", 1); // of no plan it says nothing
        zero_ctx *z = open_model(&config);
        assert_int_equal(zero_commit(z), planned_only ? ZERO_PLANNED : ZERO_OK);
        json_t *plan = parse(z);
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            assert_true(json_is_null(at(at(plan, "memory.nvme"), fields[i])));
        assert_true(json_is_null(at(plan, "memory.nvme.engine")) == planned_only);
        assert_null(strstr(zero_plan_text(z), " written by all ranks"));
        assert_null(strstr(zero_plan_text(z), "\n  expected "));
        json_decref(plan);
        zero_close(z);
    }
    temporary_remove(&directory);
}

/** Ranks of the smaller hosts share with fewer what their host has. */
static void hosts_of_several_sizes_are_told(void **state)
{
    (void)state;
    const zero_config config = config_of(3, NULL);
    setenv("ZERO_PLAN_LOCAL_WORLD", "2", 1);
    setenv("ZERO_PLAN_LEAST_LOCAL_WORLD", "1", 1);
    json_t *plan = planned(&config, WORLD);
    assert_string_equal(text(plan, "choices.gather"), "slots");
    assert_true(json_is_true(at(plan, "memory.gathered_units_shared")));
    assert_int_equal(number(plan, "host.uneven.least_ranks"), 1);
    assert_int_equal(number(plan, "host.uneven.most_ranks"), 2);
    assert_int_equal(number(plan, "host.uneven.most_need"), number(plan, "host.need_here"));
    const uint64_t least = number(plan, "host.uneven.least_need"),
                   most = number(plan, "host.uneven.most_need");
    assert_in_range(least, most / 2 + 1, most - 1); // its slots are as large
    json_decref(plan);
    setenv("ZERO_PLAN_LOCAL_WORLD", "2", 1);
    setenv("ZERO_PLAN_LEAST_LOCAL_WORLD", "2", 1);
    plan = planned(&config, WORLD);
    assert_true(json_is_null(at(plan, "host.uneven")));
    json_decref(plan);
}

/** A sum of two bf16 gradients in f32 is as large as they are; one of four is smaller. */
static void a_group_that_sends_no_sum_is_not_advised(void **state)
{
    (void)state;
    zero_config config = config_of(2, NULL);
    config.comm_dtype = ZERO_BF16;
    for (int here = 2; here <= 4; here += 2) {
        setenv("ZERO_PLAN_LOCAL_WORLD", here == 2 ? "2" : "4", 1);
        json_t *plan = planned(&config, 2 * here);
        assert_string_equal(text(plan, "choices.between_hosts.reason"),
                            here == 2 ? "sum_group=1"
                                      : "sum_group=1; sum_group=4 sends one sum of 4, which gives "
                                        "other bits");
        json_decref(plan);
    }
}

static void the_schema_is_that_of_the_manual(void **state)
{
    (void)state;
    zero_config config = config_of(2, "copy");
    config.micro_batches = 7;
    json_t *plan = planned(&config, WORLD);
    assert_string_equal(text(plan, "schema"), "zero-plan");
    assert_int_equal(number(plan, "version"), 1);
    assert_string_equal(text(plan, "library"), zero_version());
    assert_string_equal(text(plan, "name"), "main");
    assert_true(json_is_true(at(plan, "planned_only")));
    assert_int_equal(number(plan, "rank"), 0);
    assert_int_equal(number(plan, "world"), WORLD);
    assert_int_equal(number(plan, "stage"), 2);
    assert_int_equal(number(plan, "model.elements"), 5 * 3000 + 5 * 10000 + 3 * 17000 + 5 * 24000);
    assert_int_equal(number(plan, "model.tensors"), 4);
    assert_int_equal(number(plan, "model.units"), 3);
    assert_int_equal(number(plan, "model.granule_elements"), GRANULE);
    assert_string_equal(text(plan, "choices.gather"), "copy");
    assert_string_equal(text(plan, "choices.reduction"), "canonical");
    assert_string_equal(text(plan, "choices.transport"), "shm");
    assert_true(json_is_null(at(plan, "choices.private_memory")));
    assert_int_equal(number(plan, "choices.micro_batches"), 7);
    assert_int_equal(number(plan, "choices.micro_batches_per_rank"), 3);
    assert_true(json_is_false(at(plan, "memory.working_copies_shared")));
    assert_true(json_is_false(at(plan, "memory.gathered_units_shared")));
    assert_true(json_is_null(at(plan, "host.uneven")));
    assert_int_equal(number(plan, "memory.borrowed.working_copies"), 0);
    assert_int_equal(number(plan, "memory.borrowed.gradients"), 0);
    assert_int_equal(json_array_size(at(plan, "slots.gathered_units")), 0);
    assert_true(json_array_size(at(plan, "slots.gradients")) > 0);
    assert_string_equal(text(plan, "config.gather.value"), "copy");
    assert_string_equal(text(plan, "config.gather.source"), "zero_config");
    assert_string_equal(text(plan, "config.world.source"), "zero-run --plan");
    assert_int_equal(json_array_size(at(plan, "host.rank_bytes")), WORLD);
    assert_true(number(plan, "host.memory_total") >= number(plan, "host.memory_available"));
    json_decref(plan);
}

/** Rows add up to totals, and peaks are no less: a file takes a chunk of elements, or a header. */
static void check_sums(json_t *plan)
{
    static const char *const fields[] = {"bytes", "sum"};
    const char *key;
    json_t *row;
    for (int f = 0; f < 2; f++) {
        uint64_t sum = 0;
        json_object_foreach(at(plan, "memory.tiers.host"), key, row) sum += number(row, fields[f]);
        const uint64_t total = number(at(plan, "memory.total"), fields[f]);
        assert_int_equal(sum, total);
        json_object_foreach(at(plan, "memory.peaks"), key, row)
            assert_true(number(row, fields[f]) >= total);
    }
    const uint64_t total = number(plan, "memory.total.bytes");
    assert_true(number(plan, "memory.peaks.save.bytes") >= total + 64 * GRANULE * 4);
    assert_true(number(plan, "memory.peaks.load.bytes") > total);
    json_t *peaks = at(plan, "memory.peaks"), *worst = at(peaks, text(plan, "host.need_at"));
    uint64_t most = 0;
    json_object_foreach(peaks, key, row) most =
        number(row, "sum") > most ? number(row, "sum") : most;
    assert_int_equal(number(worst, "sum"), most);
    assert_int_equal(number(plan, "host.largest_rank"), number(worst, "largest_rank"));
    assert_int_equal(number(plan, "host.need"), most);
}

/** Every row's min, max and sum are those of what each rank says of itself. */
static void ranks_are_added_up(void **state)
{
    (void)state;
    for (int i = 0; i < 7; i++) {
        const zero_config config = config_of(i < 4 ? i : i - 3, i < 4 ? "copy" : "shared");
        json_t *plan = planned(&config, 5);
        check_sums(plan);
        const uint64_t world = number(plan, "world");
        const char *key;
        json_t *row;
        json_object_foreach(at(plan, "memory.tiers.host"), key, row)
        {
            assert_true(number(row, "min") <= number(row, "bytes"));
            assert_true(number(row, "bytes") <= number(row, "max"));
            assert_true(number(row, "sum") >= world * number(row, "min"));
            assert_true(number(row, "sum") <= world * number(row, "max"));
            assert_true(number(row, "largest_rank") < world);
        }
        // What is sharded adds up to one of each, whatever rank has it.
        const uint64_t granules = number(plan, "model.granules");
        const uint64_t moments = 2 * 4 * GRANULE * granules;
        assert_int_equal(number(plan, "memory.tiers.host.gradient_sums.sum"),
                         4 * GRANULE * granules);
        assert_int_equal(number(plan, "memory.tiers.host.moments.sum"),
                         config.stage ? moments : 5 * moments);
        json_decref(plan);
    }
}

/** A plan of this many tensors of one element, of which one trains. */
static json_t *planned_names(int world, int tensors)
{
    const zero_config config = config_of(3, "copy");
    plan_for(world);
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    for (int p = 0; p < tensors; p++) {
        char name[24];
        snprintf(name, sizeof name, "tensor%d", p);
        zero_param_desc desc = zero_param_vector(name, 1, NULL);
        desc.dtype = ZERO_BF16;
        desc.frozen = p > 0;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
    assert_int_equal(zero_commit(z), ZERO_PLANNED);
    json_t *plan = parse(z);
    zero_close(z);
    plan_no_more(NULL);
    return plan;
}

/** The moment that counts is that of all ranks together, whatever this one or the largest needs. */
static void ranks_need_most_at_other_moments(void **state)
{
    (void)state;
    json_t *plan = planned_names(5, 400), *peaks = at(plan, "memory.peaks");
    assert_true(number(peaks, "save.bytes") > number(peaks, "load.bytes"));
    assert_true(number(peaks, "save.max") > number(peaks, "load.max"));
    assert_true(number(peaks, "save.sum") < number(peaks, "load.sum"));
    check_sums(plan);
    json_decref(plan);
}

/** Many ranks compare many tensors: then zero_commit() needs more than a step. */
static void comparing_takes_memory(void **state)
{
    (void)state;
    enum { RANKS = 400, TENSORS = 1000 };
    json_t *plan = planned_names(RANKS, TENSORS);
    const uint64_t commit = number(plan, "memory.peaks.commit.bytes");
    assert_true(commit > number(plan, "memory.peaks.step.bytes"));
    assert_int_equal(commit,
                     8 * (1 + RANKS) * TENSORS + number(plan, "memory.tiers.host.transport.bytes"));
    check_sums(plan);
    json_decref(plan);
}

/** With one rank, the world that is there: the same numbers. */
static void the_plan_is_what_commit_makes(void **state)
{
    (void)state;
    for (int i = 0; i < 7; i++) {
        const zero_config config = config_of(i < 4 ? i : i - 3, i < 4 ? "copy" : "shared");
        json_t *before = planned(&config, 1);
        zero_ctx *z = open_model(&config);
        assert_int_equal(zero_commit(z), ZERO_OK);
        json_t *plan = parse(z);
        assert_true(json_equal(at(plan, "memory"), at(before, "memory")));
        assert_true(json_equal(at(plan, "slots"), at(before, "slots")));
        assert_true(json_is_false(at(plan, "planned_only")));
        assert_true(json_is_true(at(plan, "host.fits")));
        json_decref(before);
        json_decref(plan);
        zero_close(z);
    }
}

/** Allocations of JSON until one fails. */
static long countdown;

static void *fail_once(size_t bytes)
{
    return --countdown == 0 ? NULL : malloc(bytes);
}

/** Allocations fail, one at a time: the plan is whole, or an error. Parts of a plan repeat: a
 * stride that is prime meets each place of them in one part or another. */
static void no_part_is_left_out(void **state)
{
    (void)state;
    const zero_config config = config_of(3, "copy");
    json_t *whole = planned(&config, 2);
    int failures = 0;
    json_set_alloc_funcs(fail_once, free);
    for (long n = 1;; n += TEST_STRIDE == 1 ? 3 : 7) {
        plan_for(2);
        zero_ctx *z = open_model(&config);
        countdown = n;
        const zero_result result = zero_commit(z);
        const bool struck = countdown <= 0;
        countdown = 0;
        if (result == ZERO_E_NOMEM) {
            assert_non_null(strstr(zero_last_error(z), "no memory for the plan's text"));
            failures++;
        } else {
            assert_int_equal(result, ZERO_PLANNED);
            json_t *plan = parse(z);
            json_object_del(at(plan, "host"), "memory_available"); // changes all the time
            json_object_del(at(whole, "host"), "memory_available");
            json_object_del(at(plan, "host"), "left");
            json_object_del(at(whole, "host"), "left");
            if (!json_equal(plan, whole))
                fail_msg("allocation %ld: the plan lacks a part", n);
            json_decref(plan);
        }
        zero_close(z);
        if (!struck)
            break;
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(failures > 100);
    json_decref(whole);
}

/* ------------------------------------------------------------------ what does not fit */

static void a_limit_that_is_given_holds(void **state)
{
    (void)state;
    zero_config config = config_of(0, NULL);
    json_t *plan = planned(&config, 1);
    const uint64_t need = number(plan, "host.need");
    json_decref(plan);
    for (int i = 0; i < 2; i++) {
        config.memory_limit = (int64_t)need - i;
        zero_ctx *z = open_model(&config);
        assert_int_equal(zero_commit(z), i ? ZERO_E_NOMEM : ZERO_OK);
        plan = parse(z);
        assert_true(json_is_boolean(at(plan, "host.fits")));
        assert_int_equal(json_is_true(at(plan, "host.fits")), !i);
        assert_string_equal(text(plan, "host.limited_by"), "memory_limit");
        assert_int_equal(number(plan, "host.limit"), need - (uint64_t)i);
        if (i) {
            assert_non_null(strstr(zero_last_error(z), "1 rank at stage 0: "));
            assert_non_null(strstr(zero_last_error(z), "(memory_limit)"));
            assert_non_null(strstr(zero_last_error(z), text(plan, "host.reason")));
            assert_int_equal(zero_barrier(z), ZERO_E_NOMEM);
            zero_statistics stats = {.struct_size = sizeof stats};
            assert_int_equal(zero_stats(z, &stats), ZERO_OK);
            assert_null(zero_param_ptr(z, 0, 0));
        }
        json_decref(plan);
        zero_close(z);
    }
}

/** Of 64 ranks on this host, and a model that no machine here holds. */
static void a_plan_that_does_not_fit_is_a_plan(void **state)
{
    (void)state;
    zero_config config = config_of(0, NULL);
    plan_for(64);
    for (int i = 0; i < 2; i++) {
        zero_ctx *z = NULL;
        config.memory_limit = i ? ZERO_OFF : 0;
        assert_int_equal(zero_open(&z, &config), ZERO_OK);
        zero_param_desc desc = zero_param_default();
        desc.name = "large";
        desc.ndim = 1;
        desc.shape[0] = UINT64_C(1) << 40;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
        assert_int_equal(zero_commit(z), ZERO_PLANNED);
        json_t *plan = parse(z);
        assert_true(i ? json_is_null(at(plan, "host.fits")) : json_is_false(at(plan, "host.fits")));
        assert_true(i ? json_is_null(at(plan, "host.reason"))
                      : strstr(text(plan, "host.reason"), "; stage=1 would need ") != NULL);
        assert_true(i || !strstr(text(plan, "host.reason"), "; stage=0"));
        assert_non_null(strstr(zero_plan_text(z), i ? "fits         not checked: memory_limit=off"
                                                    : "fits         no: 64 ranks at stage 0: "));
        json_decref(plan);
        zero_close(z);
    }
}

/** What is said to help are the plans of other stages, each of which needs less than the last. */
static void suggestions_are_plans(void **state)
{
    (void)state;
    zero_config config = config_of(0, "copy");
    config.memory_limit = 1;
    json_t *plan = planned(&config, WORLD);
    const char *reason = text(plan, "host.reason");
    uint64_t least = number(plan, "host.need");
    int suggested = 0;
    config.gather = NULL;
    for (config.stage = 1; config.stage <= 3; config.stage++) {
        char expected[64];
        json_t *other = planned(&config, WORLD);
        const uint64_t need = number(other, "host.need");
        const double kibibytes = (double)need / 1024;
        snprintf(expected, sizeof expected, "; stage=%d, gather=auto would need %.1f %s;",
                 config.stage, kibibytes < 10240 ? kibibytes : kibibytes / 1024,
                 kibibytes < 10240 ? "KiB" : "MiB");
        if ((strstr(reason, expected) != NULL) != (need < least))
            fail_msg("\"%s\", after %" PRIu64 " bytes: %s", expected, least, reason);
        suggested += need < least;
        least = need < least ? need : least;
        json_decref(other);
    }
    assert_true(suggested > 0);
    json_decref(plan);
}

/** A stage that refuses the program's buffers is no help. */
static void only_stages_that_can_be_taken_are_suggested(void **state)
{
    (void)state;
    static float gradient;
    zero_config config = config_of(0, NULL);
    plan_for(64);
    for (int i = 0; i < 3; i++) {
        zero_ctx *z = NULL;
        config.reduction = i == 2 ? "local" : NULL;
        assert_int_equal(zero_open(&z, &config), ZERO_OK);
        zero_param_desc desc = zero_param_default();
        desc.name = "large";
        desc.ndim = 2;
        desc.shape[0] = 64;
        desc.shape[1] = UINT64_C(1) << 30;
        desc.unit_count = 64;
        desc.grad = i == 1 ? &gradient : NULL;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
        assert_int_equal(zero_commit(z), ZERO_PLANNED);
        json_t *plan = parse(z);
        const char *reason = text(plan, "host.reason");
        assert_non_null(strstr(reason, "; stage=1 would need "));
        assert_int_equal(strstr(reason, "; stage=2 would need ") != NULL, !i);
        json_decref(plan);
        zero_close(z);
    }
}

/** The plan of two ranks with 1 GiB of moments, made where a process has room for so many bytes of
 * addresses; 0: for any number. */
static json_t *plan_large(const char *gather, uint64_t room)
{
    struct rlimit before, tight;
    struct base_memory_limits limits;
    const zero_config config = config_of(1, gather);
    plan_for(2);
    zero_ctx *z = open_model(&config);
    zero_param_desc desc = zero_param_default();
    desc.name = "large";
    desc.ndim = 1;
    desc.shape[0] = UINT64_C(1) << 27;
    assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    base_memory_limits(&limits, "");
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    if (room)
        tight.rlim_cur = limits.address_used + room;
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    const zero_result result = zero_commit(z);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(result, ZERO_PLANNED);
    json_t *plan = parse(z);
    zero_close(z);
    return plan;
}

/** What a rank maps: its own, arenas of the other one, and shared parameters a second time. */
static uint64_t addresses_of(json_t *plan)
{
    static const char *const arenas[] = {"working_copies", "gradients", "gradient_sums"};
    json_t *rows = at(plan, "memory.tiers.host");
    uint64_t bytes = number(at(at(plan, "memory.peaks"), text(plan, "host.need_at")), "bytes");
    for (int i = 0; i < 3; i++) {
        json_t *row = at(rows, arenas[i]);
        bytes += number(row, "sum") - number(row, "bytes");
    }
    if (json_is_true(at(plan, "memory.working_copies_shared")))
        bytes += number(at(rows, "working_copies"), "sum");
    return bytes;
}

/** As many addresses as are needed suffice, a little less does not. */
static void addresses_are_counted(void **state)
{
    (void)state;
    const uint64_t little = 4 << 20;
    for (int i = 0; i < 2; i++) {
        const char *gather = i ? "shared" : "copy";
        json_t *plan = plan_large(gather, 0);
        const uint64_t needed = addresses_of(plan);
        const bool enough = json_is_true(at(plan, "host.fits"));
        json_decref(plan);
        plan = plan_large(gather, needed + little);
        assert_true(json_is_true(at(plan, "host.fits")) == enough);
        json_decref(plan);
        plan = plan_large(gather, needed - little);
        assert_true(json_is_false(at(plan, "host.fits")));
        if (enough) {
            assert_string_equal(text(plan, "host.limited_by"),
                                "address space of a process (ulimit -v)");
            assert_true(number(plan, "host.left") < number(plan, "host.limit"));
            assert_true(number(plan, "host.left") <= needed - little);
            assert_true(number(plan, "host.left") >= needed - 2 * little);
        }
        json_decref(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(hosts_of_several_sizes_are_told, plan_no_more),
        cmocka_unit_test_teardown(a_group_that_sends_no_sum_is_not_advised, plan_no_more),
        cmocka_unit_test_teardown(the_schema_is_that_of_the_manual, plan_no_more),
        cmocka_unit_test_teardown(every_file_is_told_of, plan_no_more),
        cmocka_unit_test_teardown(an_update_is_timed, plan_no_more),
        cmocka_unit_test_teardown(nothing_is_measured, plan_no_more),
        cmocka_unit_test_teardown(ranks_are_added_up, plan_no_more),
        cmocka_unit_test_teardown(ranks_need_most_at_other_moments, plan_no_more),
        cmocka_unit_test_teardown(comparing_takes_memory, plan_no_more),
        cmocka_unit_test_teardown(the_plan_is_what_commit_makes, plan_no_more),
        cmocka_unit_test_teardown(no_part_is_left_out, plan_no_more),
        cmocka_unit_test_teardown(a_limit_that_is_given_holds, plan_no_more),
        cmocka_unit_test_teardown(a_plan_that_does_not_fit_is_a_plan, plan_no_more),
        cmocka_unit_test_teardown(suggestions_are_plans, plan_no_more),
        cmocka_unit_test_teardown(only_stages_that_can_be_taken_are_suggested, plan_no_more),
        cmocka_unit_test_teardown(addresses_are_counted, plan_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
