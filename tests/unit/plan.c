/* The plan: every row, against bytes counted here; for worlds and models that are not there; and
 * where each value of the configuration came from. */
#include "zero/plan/plan.h"

#include <zero/zero.h>

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { GRANULE = 1024, ROWS = 16, UNITS = 6 };

static const char *const purposes[ROWS] = {"working copies",
                                           "gathered units",
                                           "gradients",
                                           "gradient sums",
                                           "unfinished blocks of sums",
                                           "sums for other hosts",
                                           "windows",
                                           "moments",
                                           "master weights",
                                           "tiles of state on NVMe",
                                           "buffers of working copies on NVMe",
                                           "buffers of sums on NVMe",
                                           "buffers of state on the GPU",
                                           "tables",
                                           "transport",
                                           "saving"};

/** Which row is which. */
enum row {
    WORKING,
    GATHERED,
    GRADIENTS,
    SUMS,
    BLOCKS,
    PARTIAL,
    WINDOWS,
    MOMENTS,
    MASTERS,
    TILES,
    PARAM_STRIPS,
    SUM_STRIPS,
    BOUNCE,
    TABLES,
    TRANSPORT,
    SAVING
};

struct rows {
    size_t bytes[ROWS];
    size_t total;
};

/** A unit of one tensor of whole granules. */
struct unit {
    size_t granules;
    zero_dtype dtype;
};

/** Two sizes, a factor of more than two apart, in both types. */
static const struct unit units[UNITS] = {
    {40, ZERO_F32},  {10, ZERO_BF16}, {10, ZERO_BF16},
    {10, ZERO_BF16}, {10, ZERO_BF16}, {5, ZERO_F32},
};

/** Every rank with slots of its own, where nothing else is said. */
static zero_config config_of(int stage)
{
    zero_config config = zero_config_default();
    config.stage = stage;
    config.gather = "copy";
    config.world = 1;
    config.persist_numel = ZERO_OFF;
    config.log_level = ZERO_OFF;
    return config;
}

/** What is registered frozen, and lent by the caller: a bit a unit. */
struct parts {
    unsigned frozen, borrowed;
};

static zero_ctx *open_parts(const zero_config *config, struct parts parts)
{
    static float lent[2][40 * GRANULE];
    zero_ctx *z = NULL;
    if (zero_open(&z, config))
        fail_msg("%s", zero_last_error(NULL));
    for (int u = 0; u < UNITS; u++) {
        char name[16];
        zero_param_desc desc = zero_param_default();
        snprintf(name, sizeof name, "unit%d", u);
        desc.name = name;
        desc.dtype = units[u].dtype;
        desc.ndim = 2;
        desc.shape[0] = units[u].granules;
        desc.shape[1] = GRANULE - (u == 5); // its last granule isn't full
        desc.unit = u;
        desc.frozen = parts.frozen >> u & 1;
        desc.borrow = parts.borrowed >> u & 1 ? lent[0] : NULL;
        desc.grad = desc.borrow && config->stage < 2 && !desc.frozen ? lent[1] : NULL;
        assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    }
    assert_string_equal(zero_plan_text(z), "");
    return z;
}

static zero_ctx *open_units(const zero_config *config)
{
    return open_parts(config, (struct parts){0});
}

/** The same number for people stands behind it. */
static void check_human(const char *text, size_t bytes)
{
    double value = 0;
    char unit[8];
    assert_int_equal(sscanf(text, "%lf %7s", &value, unit), 2);
    const double factor = strcmp(unit, "B") == 0     ? 1
                          : strcmp(unit, "KiB") == 0 ? 1024.0
                          : strcmp(unit, "MiB") == 0 ? 1048576.0
                          : strcmp(unit, "GiB") == 0 ? 1073741824.0
                                                     : 1099511627776.0;
    assert_true(factor == 1 ? value == (double)bytes : bytes >= 10240);
    assert_true(value * factor > 0.99 * (double)bytes - 1 &&
                value * factor < 1.01 * (double)bytes + 1);
}

/** Reads the rows between "memory" and "slots"; each must be there once, in order. */
static struct rows parse_rows(const char *text)
{
    struct rows rows = {.total = 0};
    const char *line = strstr(text, "\nmemory");
    assert_non_null(line);
    for (int i = 0; i <= ROWS; i++) {
        const char *name = i < ROWS ? purposes[i] : "total";
        line = strchr(line + 1, '\n');
        assert_non_null(line);
        if (strncmp(line + 3, name, strlen(name)) != 0)
            fail_msg("no row %s where it should be: %.40s", name, line);
        const char *number = line + 3 + strlen(name);
        number += strcspn(number, "0123456789\n");
        char *after;
        const size_t bytes = (size_t)strtoull(number, &after, 10);
        check_human(after, bytes);
        if (i < ROWS)
            rows.bytes[i] = bytes;
        else
            rows.total = bytes;
    }
    assert_non_null(strstr(line, "\nslots\n"));
    return rows;
}

static size_t sum_of(const struct rows *rows)
{
    size_t sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += rows->bytes[i];
    return sum;
}

static size_t size_of(zero_dtype dtype)
{
    return dtype == ZERO_BF16 ? 2 : 4;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Bytes of slots for up to `held` units at a time of each size: 40, 10 (four of them) and 5
 * granules. The 5 of f32 and the 10 of bf16 are of one size. */
static size_t slot_bytes(size_t held)
{
    return 40 * GRANULE * 4 + least(held, 5) * 10 * GRANULE * 2;
}

/** What rank 0 of `world` needs, counted from what DESIGN says. */
static struct rows expected_rows(int world, int stage, bool shared, size_t held, size_t gradients)
{
    struct rows rows = {.total = 0};
    for (int u = 0; u < UNITS; u++) {
        const size_t all = units[u].granules * GRANULE;
        const size_t own = (units[u].granules + (size_t)world - 1) / (size_t)world * GRANULE;
        const size_t state = stage == 0 ? all : own;
        rows.bytes[WORKING] += (stage == 3 || shared ? own : all) * size_of(units[u].dtype);
        rows.bytes[GRADIENTS] += all * size_of(units[u].dtype);
        rows.bytes[SUMS] += own * 4;
        rows.bytes[MOMENTS] += 2 * state * 4;
        rows.bytes[MASTERS] += units[u].dtype == ZERO_BF16 ? state * 4 : 0;
    }
    if (stage == 3 && !shared)
        rows.bytes[GATHERED] = slot_bytes(held);
    if (stage >= 2)
        rows.bytes[GRADIENTS] = slot_bytes(gradients);
    return rows;
}

static void compare_rows(const struct rows *rows, const struct rows *expected, int world, int stage)
{
    for (int i = 0; i < TABLES; i++)
        if (rows->bytes[i] != expected->bytes[i])
            fail_msg("world %d, stage %d, %s: %zu, not %zu", world, stage, purposes[i],
                     rows->bytes[i], expected->bytes[i]);
    assert_true(rows->bytes[TABLES] > 0);
    assert_int_equal(rows->total, sum_of(rows));
}

static void plan_for(int world)
{
    char number[16];
    snprintf(number, sizeof number, "%d", world);
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_WORLD", number, 1);
}

static void plan_no_more(void)
{
    unsetenv("ZERO_PLAN");
    unsetenv("ZERO_PLAN_WORLD");
    unsetenv("ZERO_PLAN_FD");
}

/** Opens, plans, and gives the text; what comes next is refused. */
static zero_ctx *planned_parts(const zero_config *config, struct parts parts)
{
    zero_ctx *z = open_parts(config, parts);
    const zero_result result = zero_commit(z);
    if (result != ZERO_PLANNED)
        fail_msg("zero_commit: %d: %s", result, zero_last_error(z));
    assert_int_equal(zero_gather(z, 0, NULL), ZERO_PLANNED);
    assert_null(zero_param_ptr(z, 0, 0));
    return z;
}

static zero_ctx *planned(const zero_config *config)
{
    return planned_parts(config, (struct parts){0});
}

static void every_row_is_what_the_layout_says(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 7, 64};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (int stage = 0; stage <= 3; stage++)
            for (int open = 1; open <= 4; open++) {
                const bool shared = stage > 0 && open > 2;
                plan_for(worlds[w]);
                zero_config config = config_of(stage);
                config.gather = open == 4 ? NULL : shared ? "shared" : "copy";
                config.open_units = open;
                config.prefetch_units = open % 2 ? 1 : ZERO_OFF;
                config.grad_units = 5 - open;
                zero_ctx *z = planned(&config);
                const struct rows rows = parse_rows(zero_plan_text(z));
                const size_t held = (size_t)open + (size_t)(open % 2);
                const struct rows expected =
                    expected_rows(worlds[w], stage, shared, held, (size_t)(5 - open));
                assert_true(!strstr(zero_plan_text(z), "shared by the host") == !shared);
                compare_rows(&rows, &expected, worlds[w], stage);
                zero_close(z);
            }
    plan_no_more();
}

/** Blocks are kept from round to round only where a round ends inside one, or may with the V of a
 * checkpoint, which counts if none (0) was given. */
static void unfinished_blocks_need_memory(void **state)
{
    (void)state;
    static const struct {
        int world, micro_batches, group;
        bool kept;
    } cases[] = {{2, 2, 4, false},  {2, 3, 4, true},  {2, 3, 2, false}, {4, 16, 2, false},
                 {4, 16, 8, true},  {3, 3, 2, false}, {3, 4, 2, true},  {3, 4, 1, false},
                 {1, 8, 2, true},   {1, 1, 8, false}, {5, 4, 8, false}, {6, 12, 4, true},
                 {6, 12, 2, false}, {4, 0, 2, false}, {3, 0, 2, true},  {1, 0, 4, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan_for(cases[i].world);
        zero_config config = config_of(2);
        config.micro_batches = cases[i].micro_batches;
        config.sum_group = cases[i].group;
        zero_ctx *z = planned(&config);
        const struct rows rows = parse_rows(zero_plan_text(z));
        assert_int_equal(rows.bytes[BLOCKS], cases[i].kept ? rows.bytes[SUMS] : 0);
        zero_close(z);
    }
    plan_no_more();
}

/** Slots for values that overwrite, in the micro-batches after the first. */
static void local_sums_need_spare_slots(void **state)
{
    (void)state;
    for (unsigned rounds = 1; rounds <= 2; rounds++) {
        plan_for(2);
        zero_config config = config_of(1);
        config.micro_batches = 2 * (int32_t)rounds;
        config.reduction = "local";
        config.grad_units = 3;
        zero_ctx *z = planned(&config);
        const struct rows rows = parse_rows(zero_plan_text(z));
        const struct rows plain = expected_rows(2, 1, false, 0, 0);
        const size_t spare = 3 * 40 * GRANULE * 4 + 3 * 10 * GRANULE * 2;
        assert_int_equal(rows.bytes[GRADIENTS], plain.bytes[GRADIENTS] + (rounds - 1) * spare);
        assert_non_null(strstr(zero_plan_text(z), "local: each rank adds up"));
        zero_close(z);
    }
    plan_no_more();
}

static void spare_bytes_become_slots(void **state)
{
    (void)state;
    plan_for(4);
    for (size_t spare = 0; spare <= 3; spare++) {
        zero_config config = config_of(3);
        config.open_units = 1;
        config.prefetch_units = ZERO_OFF;
        config.live_bytes = (int64_t)(spare * 10 * GRANULE * 2);
        zero_ctx *z = planned(&config);
        const struct rows rows = parse_rows(zero_plan_text(z));
        assert_int_equal(rows.bytes[GATHERED], slot_bytes(1 + spare));
        zero_close(z);
    }
    plan_no_more();
}

/** Gradients that travel in another type have a second buffer; weights and moments of 16 bits. */
static void precision_changes_the_rows(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        plan_for(3);
        zero_config config = config_of(stage);
        config.comm_dtype = ZERO_F16;
        config.master = "none";
        config.moments = "bf16";
        zero_ctx *z = planned(&config);
        const struct rows rows = parse_rows(zero_plan_text(z));
        struct rows expected = expected_rows(3, stage, false, 6, 4);
        expected.bytes[MOMENTS] /= 2;
        expected.bytes[MASTERS] = 0;
        // Two bytes an element more: f32 and bf16 gradients are rounded to f16 alike. Then the four
        // slots of 10 granules of bf16 are alone in their size, and the 5 of f32 are, too.
        if (stage < 2)
            expected.bytes[GRADIENTS] += (40 + 4 * 10 + 5) * GRANULE * 2;
        else
            expected.bytes[GRADIENTS] = 40 * GRANULE * 6 + 4 * 10 * GRANULE * 4 + 5 * GRANULE * 6;
        compare_rows(&rows, &expected, 3, stage);
        assert_non_null(strstr(zero_plan_text(z), "gradients    travel as f16"));
        assert_non_null(strstr(zero_plan_text(z), "have no masters"));
        assert_non_null(strstr(zero_plan_text(z), "moments      bf16"));
        zero_close(z);
    }
    plan_no_more();
}

/** A frozen tensor has a working copy only; what the caller lends is in no row. */
static void parts_change_the_rows(void **state)
{
    (void)state;
    // Those of f32 and the last of bf16: the others are of one size.
    const struct parts parts = {.frozen = 1u | 1u << 4 | 1u << 5, .borrowed = 1u << 1 | 1u << 4};
    for (int world = 1; world <= 4; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const size_t own = (10 + (size_t)world - 1) / (size_t)world * GRANULE;
            const size_t state_elements = 3 * (stage == 0 ? 10 * GRANULE : own);
            plan_for(world);
            zero_config config = config_of(stage);
            struct rows expected = expected_rows(world, stage, false, 6, 4);
            expected.bytes[GRADIENTS] = 3 * 10 * GRANULE * 2;
            expected.bytes[SUMS] = 3 * own * 4;
            expected.bytes[MOMENTS] = 2 * state_elements * 4;
            expected.bytes[MASTERS] = state_elements * 4;
            const struct parts given = {parts.frozen, stage < 3 ? parts.borrowed : 0};
            zero_ctx *z = planned_parts(&config, given);
            const struct rows rows = parse_rows(zero_plan_text(z));
            compare_rows(&rows, &expected, world, stage);
            zero_close(z);
        }
    plan_no_more();
}

static size_t tables_of(const zero_config *config)
{
    zero_ctx *z = planned(config);
    const struct rows rows = parse_rows(zero_plan_text(z));
    zero_close(z);
    return rows.bytes[TABLES];
}

/** verify_micro: hashes of each tensor, twice, of every rank and this one, and what a further
 * micro-batch adds to the metrics. paranoid: where windows are. */
static void options_have_tables(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += 2) {
        plan_for(world);
        zero_config config = config_of(3);
        const size_t plain = tables_of(&config), ranks = (size_t)world + 1;
        config.micro_batches = 2 * world; // one more a rank
        const size_t metrics = tables_of(&config) - plain;
        config.micro_batches = 0;
        config.verify_micro = 1;
        assert_int_equal(tables_of(&config) - plain, metrics + ranks * 2 * UNITS * 8);
        config.verify_micro = 0;
        config.paranoid = 1;
        assert_int_equal(tables_of(&config) - plain, 2 * UNITS * (sizeof(size_t) + 1));
    }
    plan_no_more();
}

/** The real thing: the same rows. */
static void what_is_planned_is_what_commit_does(void **state)
{
    (void)state;
    for (int i = 0; i <= 7; i++) {
        zero_config config = config_of(i % 4);
        config.gather = i < 4 ? "copy" : NULL;
        plan_for(1);
        zero_ctx *z = planned(&config);
        const struct rows before = parse_rows(zero_plan_text(z));
        zero_close(z);
        plan_no_more();

        z = open_units(&config);
        assert_int_equal(zero_commit(z), ZERO_OK);
        const struct rows rows = parse_rows(zero_plan_text(z));
        assert_memory_equal(rows.bytes, before.bytes, sizeof rows.bytes);
        assert_true(rows.bytes[TRANSPORT] > 0);
        zero_statistics stats = {.struct_size = sizeof stats};
        assert_int_equal(zero_stats(z, &stats), ZERO_OK);
        assert_int_equal(stats.allocated_bytes, rows.total);
        assert_int_equal(rows.total, sum_of(&rows));
        zero_close(z);
    }
}

static size_t resident_bytes(void)
{
    size_t size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu %zu", &size, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/** A model that no machine here holds. */
static void a_plan_allocates_nothing(void **state)
{
    (void)state;
    plan_for(64);
    const zero_config config = config_of(3);
    const size_t before = resident_bytes();
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    zero_param_desc desc = zero_param_default();
    desc.name = "stack";
    desc.dtype = ZERO_BF16;
    desc.ndim = 2;
    desc.shape[0] = 128;
    desc.shape[1] = UINT64_C(1) << 34;
    desc.unit_count = 128;
    assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    assert_int_equal(zero_commit(z), ZERO_PLANNED);
    assert_true(resident_bytes() < before + ((size_t)8 << 20));
    const struct rows rows = parse_rows(zero_plan_text(z));
    // 2^41 elements, a 64th of them a rank; slots for 6 units of 2^34, and for 4 gradients.
    const size_t own = (size_t)1 << 35, unit = (size_t)1 << 34;
    assert_int_equal(rows.bytes[WORKING], 2 * own);
    assert_int_equal(rows.bytes[GATHERED], 6 * 2 * unit);
    assert_int_equal(rows.bytes[GRADIENTS], 4 * 2 * unit);
    assert_int_equal(rows.bytes[SUMS], 4 * own);
    assert_int_equal(rows.bytes[MOMENTS], 8 * own);
    assert_int_equal(rows.bytes[MASTERS], 4 * own);
    const char *text = zero_plan_text(z);
    assert_non_null(strstr(text, "plan of rank 0 of 64, stage 3"));
    assert_non_null(strstr(text, "2199023255552 elements, 1 tensors, 128 units, 1 groups"));
    assert_non_null(strstr(text, "64 a step, at most 1 a rank: as many as ranks at first"));
    assert_non_null(strstr(text, "6 of 32.0 GiB for 128 units"));
    assert_non_null(strstr(text, "4 of 32.0 GiB for 128 units"));
    zero_close(z);
    plan_no_more();
}

static void the_plan_is_handed_over(void **state)
{
    (void)state;
    int ends[2];
    char number[16], text[32768];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    plan_for(5);
    setenv("ZERO_PLAN_FD", number, 1);
    const zero_config config = config_of(2);
    zero_ctx *z = planned(&config);
    const ssize_t length = read(ends[0], text, sizeof text);
    assert_true(length > 0 && text[length - 1] == '\0');
    // For people, for programs, and why it does not fit.
    const char *json = text + strlen(text) + 1, *reason = json + strlen(json) + 1;
    assert_string_equal(text, zero_plan_text(z));
    assert_string_equal(json, zero_plan_json(z));
    assert_string_equal(reason, "");
    assert_ptr_equal(reason + 1, text + length);
    zero_close(z);

    // No process reads it: an error, not a plan that got lost.
    close(ends[0]);
    close(ends[1]);
    zero_ctx *refused = NULL;
    assert_int_equal(zero_open(&refused, &config), ZERO_E_INVALID);
    assert_non_null(strstr(zero_last_error(NULL), "ZERO_PLAN_FD"));
    plan_no_more();
}

static void a_plan_that_cannot_be_is_an_error(void **state)
{
    (void)state;
    zero_ctx *z = NULL;
    const zero_config config = config_of(1);
    plan_for(86); // the model has 85 granules
    z = open_units(&config);
    assert_int_equal(zero_commit(z), ZERO_E_INVALID);
    assert_non_null(strstr(zero_last_error(z), "85 granules"));
    zero_close(z);
    plan_for(85);
    zero_close(planned(&config));
    setenv("ZERO_PLAN_WORLD", "0", 1);
    assert_int_equal(zero_open(&z, &config), ZERO_E_INVALID);
    assert_non_null(strstr(zero_last_error(NULL), "ZERO_PLAN_WORLD"));
    plan_for(1);
    setenv("ZERO_PLAN", "yes", 1);
    assert_int_equal(zero_open(&z, &config), ZERO_E_INVALID);
    plan_no_more();
    setenv("ZERO_PLAN", "0", 1); // no plan wanted
    z = open_units(&config);
    assert_int_equal(zero_commit(z), ZERO_OK);
    zero_close(z);
    plan_no_more();
}

/** Looks for the line "  key value (source)". */
static void shows(const char *text, const char *key, const char *value, const char *source)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\n  %s ", key);
    const char *line = strstr(strstr(text, "\nconfiguration\n"), pattern);
    if (!line)
        fail_msg("no line for %s", key);
    char found[64], origin[64];
    line += strlen(pattern);
    assert_int_equal(sscanf(line, "%63s (%63[^)])", found, origin), 2);
    if (strcmp(found, value) != 0 || strcmp(origin, source) != 0)
        fail_msg("%s: %s from %s, not %s from %s", key, found, origin, value, source);
}

static void a_host_has_its_ranks_share(void **state)
{
    (void)state;
    struct eng_plan plan = {.world = 4};
    assert_int_equal(eng_plan_of_host(&plan, 1003), 1003);
    plan.fit.host_ranks = 4;
    assert_int_equal(eng_plan_of_host(&plan, 1003), 1003);
    plan.fit.host_ranks = 3;
    assert_int_equal(eng_plan_of_host(&plan, 1000), 750);
    assert_int_equal(eng_plan_of_host(&plan, 1003), 753); // never less than it may be
}

static void every_value_has_its_source(void **state)
{
    (void)state;
    zero_config config = config_of(1);
    config.seed = 17;
    config.live_bytes = 4096;
    config.kernels = "ref";
    config.open_units = 3;
    config.stall_s = ZERO_OFF;
    setenv("ZERO_STAGE", "2", 1);
    setenv("ZERO_GATHER", "auto", 1);
    setenv("ZERO_TIMEOUT_S", "33", 1);
    setenv("ZERO_OPEN_UNITS", "7", 1);
    setenv("ZERO_OPTIONS", "stage=3\nlive_bytes=2MiB\nprefetch_units=off\nsum_group=4", 1);
    zero_ctx *z = open_units(&config);
    unsetenv("ZERO_STAGE");
    unsetenv("ZERO_GATHER");
    unsetenv("ZERO_TIMEOUT_S");
    unsetenv("ZERO_OPEN_UNITS");
    unsetenv("ZERO_OPTIONS");
    assert_int_equal(zero_commit(z), ZERO_OK);
    const char *text = zero_plan_text(z);
    assert_non_null(strstr(text, "stage 3"));
    shows(text, "world", "1", "zero_config");
    shows(text, "stage", "3", "-o");
    shows(text, "transport", "self", "default");
    shows(text, "micro_batches", "1", "default");
    shows(text, "prefetch_units", "off", "-o");
    shows(text, "open_units", "7", "ZERO_OPEN_UNITS");
    shows(text, "grad_units", "4", "default");
    shows(text, "cpu_threads", "1", "default");
    shows(text, "persist_numel", "off", "zero_config");
    shows(text, "live_bytes", "2097152", "-o");
    shows(text, "seed", "17", "zero_config");
    shows(text, "nonfinite", "error", "default");
    shows(text, "timeout_s", "33", "ZERO_TIMEOUT_S");
    shows(text, "kernels", "ref", "zero_config");
    shows(text, "gather", "auto", "ZERO_GATHER");
    shows(text, "reduction", "canonical", "default");
    shows(text, "sum_group", "4", "-o");
    shows(text, "stall_s", "off", "zero_config");
    shows(text, "log_level", "off", "zero_config");
    zero_close(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_what_the_layout_says),
        cmocka_unit_test(unfinished_blocks_need_memory),
        cmocka_unit_test(local_sums_need_spare_slots),
        cmocka_unit_test(spare_bytes_become_slots),
        cmocka_unit_test(precision_changes_the_rows),
        cmocka_unit_test(parts_change_the_rows),
        cmocka_unit_test(options_have_tables),
        cmocka_unit_test(what_is_planned_is_what_commit_does),
        cmocka_unit_test(a_plan_allocates_nothing),
        cmocka_unit_test(the_plan_is_handed_over),
        cmocka_unit_test(a_plan_that_cannot_be_is_an_error),
        cmocka_unit_test(a_host_has_its_ranks_share),
        cmocka_unit_test(every_value_has_its_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
