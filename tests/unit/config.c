// Configuration: who wins, what is refused and how that is said, where every value came from.
#include "base/text.h"
#include "tests/unit/config_tests.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void refused_variable(const char *name, const char *value, const char *part)
{
    setenv(name, value, 1);
    config_refused(NULL, ZERO_E_INVALID, part);
    unsetenv(name);
}

static void defaults_are_those_of_the_manual(void **state)
{
    (void)state;
    const zero_config empty = zero_config_default();
    for (int i = 0; i < 2; i++) {
        const struct eng_config config = config_resolved(i ? &empty : NULL);
        assert_int_equal(config.stage, 0);
        assert_string_equal(config.name, "main");
        assert_string_equal(config.transport, "self");
        assert_int_equal(config.rank, 0);
        assert_int_equal(config.world, 1);
        assert_int_equal(config.micro_batches, 1);
        assert_int_equal(config.prefetch_units, 2);
        assert_int_equal(config.open_units, 4);
        assert_int_equal(config.grad_units, 4);
        assert_int_equal(config.cpu_threads, 1);
        assert_int_equal(config.persist_numel, 1024);
        assert_int_equal(config.live_bytes, 0);
        assert_int_equal(config.seed, 0);
        assert_int_equal(config.nonfinite, ZERO_NONFINITE_DEFAULT);
        assert_int_equal(config.loss_scale, ENG_LOSS_SCALE_AUTO);
        assert_int_equal(config.loss_scale_init, 65536);
        assert_int_equal(config.loss_scale_min, 1);
        assert_int_equal(config.loss_scale_window, 2000);
        assert_int_equal(config.skip_limit, 100);
        assert_int_equal(config.timeout_s, 600);
        assert_string_equal(config.kernels, "auto");
        assert_string_equal(config.gather, "auto");
        assert_false(config.shared);
        assert_string_equal(config.reduction, "canonical");
        assert_false(config.local);
        assert_int_equal(config.sum_group, 1);
        assert_int_equal(config.comm_dtype, ZERO_DTYPE_DEFAULT);
        assert_string_equal(config.master, "f32");
        assert_false(config.no_masters);
        assert_string_equal(config.moments, "f32");
        assert_int_equal(config.moment_dtype, ZERO_F32);
        assert_string_equal(config.offload_params, "host");
        assert_string_equal(config.offload_grads, "host");
        assert_false(config.nvme || config.params_nvme || config.grads_nvme);
        assert_int_equal(config.stall_s, 30);
        assert_int_equal(config.memory_limit, ENG_KEY_AUTO);
        assert_int_equal(config.log.level, ZERO_LOG_WARN);
        assert_false(config.plan);
        assert_int_equal(config.plan_fd, -1);
        assert_int_equal(config.metrics_fd, -1);
    }
}

static void the_struct_is_read(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.stage = 3;
    user.name = "critic";
    user.world = 4;
    user.rank = 3;
    user.transport = "shm";
    user.micro_batches = 7;
    user.prefetch_units = ZERO_OFF;
    user.open_units = 9;
    user.grad_units = 1;
    user.cpu_threads = 2;
    user.persist_numel = ZERO_OFF;
    user.live_bytes = INT64_C(1) << 40;
    user.seed = UINT64_MAX;
    user.nonfinite = ZERO_NONFINITE_SKIP;
    user.loss_scale = "1024";
    user.loss_scale_init = 8;
    user.loss_scale_min = 4;
    user.loss_scale_window = 50;
    user.skip_limit = ZERO_OFF;
    user.timeout_s = 5;
    user.kernels = "ref";
    user.gather = "copy";
    user.sum_group = 8;
    user.comm_dtype = ZERO_F16;
    user.master = "none";
    user.moments = "bf16";
    user.stall_s = ZERO_OFF;
    user.memory_limit = ZERO_OFF;
    user.log_level = ZERO_OFF;
    const struct eng_config config = config_resolved(&user);
    assert_int_equal(config.stage, 3);
    assert_string_equal(config.name, "critic");
    assert_int_equal(config.world, 4);
    assert_int_equal(config.rank, 3);
    assert_string_equal(config.launcher, "zero_config");
    assert_int_equal(config.micro_batches, 7);
    assert_int_equal(config.prefetch_units, 0);
    assert_int_equal(config.open_units, 9);
    assert_int_equal(config.grad_units, 1);
    assert_int_equal(config.cpu_threads, 2);
    assert_int_equal(config.persist_numel, 0);
    assert_int_equal(config.live_bytes, INT64_C(1) << 40);
    assert_true(config.seed == UINT64_MAX);
    assert_int_equal(config.nonfinite, ZERO_NONFINITE_SKIP);
    assert_int_equal(config.loss_scale, 1024);
    assert_int_equal(config.loss_scale_init, 8);
    assert_int_equal(config.loss_scale_min, 4);
    assert_int_equal(config.loss_scale_window, 50);
    assert_int_equal(config.skip_limit, 0);
    assert_int_equal(config.timeout_s, 5);
    assert_string_equal(config.kernels, "ref");
    assert_string_equal(config.gather, "copy");
    assert_false(config.shared);
    assert_int_equal(config.sum_group, 8);
    assert_int_equal(config.comm_dtype, ZERO_F16);
    assert_string_equal(config.master, "none");
    assert_true(config.no_masters);
    assert_string_equal(config.moments, "bf16");
    assert_int_equal(config.moment_dtype, ZERO_BF16);
    assert_int_equal(config.stall_s, 0);
    assert_int_equal(config.memory_limit, 0);
    assert_int_equal(config.log.level, 0);
    assert_int_equal(config.log.rank, 3);
}

static void parameters_on_nvme_are_not_shared(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.stage = 2;
    user.offload_optimizer = "nvme";
    user.nvme_dir = "/nvme";
    struct eng_config config = config_resolved(&user);
    assert_true(config.nvme && config.shared && !config.params_nvme && !config.grads_nvme);
    user.offload_grads = "nvme";
    config = config_resolved(&user);
    assert_true(config.grads_nvme && config.shared && !config.params_nvme);
    assert_int_equal(config.prefetch_units, 2);
    user.offload_params = "nvme";
    user.offload_grads = "host";
    config = config_resolved(&user);
    assert_true(config.params_nvme && !config.grads_nvme);
    assert_int_equal(config.prefetch_units, 4);
    // There is nothing to share.
    assert_string_equal(config.gather, "auto");
    assert_false(config.shared);
}

#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        zero_config user = zero_config_default();                                                  \
        user.field = (value);                                                                      \
        config_refused(&user, ZERO_E_INVALID, part);                                               \
    } while (0)

static void fields_out_of_range_are_refused(void **state)
{
    (void)state;
    REFUSED(stage, 4, "zero_config.stage = 4: stage (what is sharded) takes 0 to 3");
    REFUSED(stage, -1, "zero_config.stage = -1");
    REFUSED(name, "", "zero_config.name has 0 bytes");
    REFUSED(transport, "udp", "zero_config.transport = \"udp\"");
    REFUSED(transport, "udp", "takes auto, self, threads, shm, tcp");
    REFUSED(world, -1, ".world = -1");
    REFUSED(world, BOOT_WORLD_MAX + 1, "1 to 16384 ranks");
    REFUSED(rank, 1, "zero_config.rank is set, but .world is 0");
    REFUSED(micro_batches, -1, "micro_batches");
    REFUSED(prefetch_units, -2, "zero_config.prefetch_units = -2");
    REFUSED(prefetch_units, -2, "0 to 4096, or off");
    REFUSED(open_units, ZERO_OFF, "open_units");
    REFUSED(grad_units, -3, "grad_units");
    REFUSED(cpu_threads, 1025, "1 to 1024");
    REFUSED(persist_numel, -2, "persist_numel");
    REFUSED(live_bytes, ZERO_OFF, "live_bytes");
    REFUSED(nonfinite, (zero_nonfinite)3, "takes error, skip");
    REFUSED(nonfinite, (zero_nonfinite)-1, "nonfinite");
    REFUSED(loss_scale, "some",
            "zero_config.loss_scale = \"some\": loss_scale (what the loss is multiplied by) takes "
            "auto, dynamic, off, or 1 to 1099511627776");
    REFUSED(loss_scale, "0", "loss_scale");
    REFUSED(loss_scale, "2.5", "loss_scale");
    REFUSED(loss_scale, "", "loss_scale");
    REFUSED(loss_scale, "1099511627777", "loss_scale");
    REFUSED(loss_scale_init, -1, "takes 1 to 1099511627776");
    REFUSED(loss_scale_min, -1, "loss_scale_min");
    REFUSED(loss_scale_window, ZERO_OFF, "loss_scale_window");
    REFUSED(skip_limit, -2, "takes 1 to 1073741824, or off");
    REFUSED(timeout_s, -1, "timeout_s");
    REFUSED(kernels, "sse", "takes auto, ref, avx2, avx512");
    REFUSED(log_level, 6, "off, error, warn, info, debug, trace");
    REFUSED(gather, "some", "takes auto, copy, slots, shared");
    REFUSED(gather, "shared", "gather=shared at stage 0");
    REFUSED(reduction, "fast", "takes canonical, local");
    REFUSED(reduction, "native", "reduction=native is called reduction=local now");
    REFUSED(sum_group, 3, "sum_group=3: it must be a power of two");
    REFUSED(sum_group, -2, "sum_group");
    REFUSED(comm_dtype, ZERO_F64, "takes default, f32, bf16, f16");
    REFUSED(master, "f16", "takes f32, none");
    REFUSED(moments, "f16", "takes f32, bf16");
    REFUSED(offload_params, "disk",
            "zero_config.offload_params = \"disk\": offload_params (where working copies are) "
            "takes host, nvme");
    REFUSED(offload_grads, "nvme", "offload_grads=nvme needs offload_optimizer=nvme");
    REFUSED(stall_s, -2, "stall_s");
    REFUSED(memory_limit, -2, "takes 1 to 1152921504606846976, auto or off");
    REFUSED(reserved, 1, "reserved");
    REFUSED(struct_size, 2, "struct_size");

    char long_name[BOOT_NAME_BYTES + 1];
    memset(long_name, 'n', BOOT_NAME_BYTES);
    long_name[BOOT_NAME_BYTES] = '\0';
    REFUSED(name, long_name, "has 96 bytes");
    zero_config user = zero_config_default();
    user.world = 2;
    user.rank = 2;
    config_refused(&user, ZERO_E_INVALID, ".rank = 2, .world = 2");
}

static void older_and_newer_structs_are_accepted(void **state)
{
    (void)state;
    struct {
        zero_config known;
        uint64_t tail;
    } newer = {.known = zero_config_default()};
    newer.known.struct_size = sizeof newer;
    newer.known.stage = 2;
    assert_int_equal(config_resolved(&newer.known).stage, 2);
    newer.tail = UINT64_C(1) << 56;
    config_refused(&newer.known, ZERO_E_INVALID, "zero_config has a value at byte");

    // What an older caller doesn't have isn't looked at.
    zero_config older = zero_config_default();
    older.struct_size = offsetof(zero_config, seed);
    older.stage = 1;
    older.seed = 42;
    older.timeout_s = -9;
    const struct eng_config config = config_resolved(&older);
    assert_int_equal(config.stage, 1);
    assert_int_equal(config.seed, 0);
    assert_int_equal(config.timeout_s, 600);
}

/** What goes with what. */
static void choices_that_contradict_are_refused(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        static const char *const gathers[] = {NULL, "auto", "shared", "copy"};
        for (int i = 0; i < 4; i++) {
            zero_config user = zero_config_default();
            user.stage = stage;
            user.gather = gathers[i];
            assert_int_equal(config_resolved(&user).shared, i < 3);
        }
    }
    for (int stage = 0; stage <= 3; stage++) {
        zero_config user = zero_config_default();
        user.stage = stage;
        user.world = 3;
        user.transport = "shm";
        user.micro_batches = 6;
        user.reduction = "local";
        if (stage < 2)
            assert_true(config_resolved(&user).local);
        else
            config_refused(&user, ZERO_E_INVALID, "reduction=local at stage");
    }
    zero_config user = zero_config_default();
    user.world = 3;
    user.transport = "shm";
    user.micro_batches = 7;
    user.reduction = "local";
    config_refused(&user, ZERO_E_INVALID, "7 micro-batches on 3 ranks");
    user.micro_batches = 6;
    user.sum_group = 2;
    config_refused(&user, ZERO_E_INVALID, "sum_group=2 with reduction=local");
}

/** A line an entry, as the plan has them. */
static void write_entries(const struct eng_config *config, char *bytes, size_t size)
{
    struct base_text text = {bytes, size, 0};
    struct eng_config_entry entry;
    for (int i = 0; eng_config_entry(config, i, &entry); i++)
        base_text_add(&text, "  %-18s %-16s (%s)\n", entry.key, entry.value, entry.source);
}

static void the_stronger_source_wins(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    user.stage = 1;
    user.cpu_threads = 3;
    user.timeout_s = 10;
    setenv("ZERO_STAGE", "2", 1);
    setenv("ZERO_CPU_THREADS", "4", 1);
    setenv("ZERO_OPTIONS", "\nstage=3\n\nlive_bytes=64MiB\nseed=18446744073709551615\n", 1);
    const struct eng_config config = config_resolved(&user);
    assert_int_equal(config.stage, 3);
    assert_int_equal(config.cpu_threads, 4);
    assert_int_equal(config.timeout_s, 10);
    assert_int_equal(config.live_bytes, 64 << 20);
    assert_true(config.seed == UINT64_MAX);

    char text[4096];
    write_entries(&config, text, sizeof text);
    assert_non_null(strstr(text, "  world              1                (none)\n"));
    assert_non_null(strstr(text, "  stage              3                (-o)\n"));
    assert_non_null(strstr(text, "  cpu_threads        4                (ZERO_CPU_THREADS)\n"));
    assert_non_null(strstr(text, "  timeout_s          10               (zero_config)\n"));
    assert_non_null(strstr(text, "  kernels            auto             (default)\n"));
    assert_non_null(strstr(text, "  live_bytes         67108864         (-o)\n"));
    assert_non_null(strstr(text, "  log                -                (default)\n"));
    int lines = 0;
    for (const char *byte = text; *byte; byte++)
        lines += *byte == '\n';
    assert_int_equal(lines, 1 + ENG_CONFIG_KEYS);
}

static void text_values_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"0", 0},
                 {"1", 1},
                 {"3KiB", 3 << 10},
                 {"5MiB", 5 << 20},
                 {"2GiB", INT64_C(2) << 30},
                 {"1TiB", INT64_C(1) << 40},
                 {"1024TiB", INT64_C(1) << 50}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        setenv("ZERO_LIVE_BYTES", sizes[i].text, 1);
        assert_int_equal(config_resolved(NULL).live_bytes, sizes[i].bytes);
    }
    unsetenv("ZERO_LIVE_BYTES");
    setenv("ZERO_PREFETCH_UNITS", "off", 1);
    setenv("ZERO_NONFINITE", "skip", 1);
    setenv("ZERO_LOG_LEVEL", "off", 1);
    setenv("ZERO_KERNELS", "ref", 1);
    const struct eng_config config = config_resolved(NULL);
    assert_int_equal(config.prefetch_units, 0);
    assert_int_equal(config.nonfinite, ZERO_NONFINITE_SKIP);
    assert_int_equal(config.log.level, 0);
    assert_string_equal(config.kernels, "ref");
    char text[4096];
    write_entries(&config, text, sizeof text);
    assert_non_null(strstr(text, "  prefetch_units     off              (ZERO_PREFETCH_UNITS)\n"));
    assert_non_null(strstr(text, "  nonfinite          skip             (ZERO_NONFINITE)\n"));
    assert_non_null(strstr(text, "  log_level          off              (ZERO_LOG_LEVEL)\n"));
}

static void bad_variables_are_refused(void **state)
{
    (void)state;
    refused_variable("ZERO_STAGE", "4", "ZERO_STAGE=4: stage (what is sharded) takes 0 to 3");
    refused_variable("ZERO_STAGE", "", "ZERO_STAGE=: stage");
    refused_variable("ZERO_STAGE", "-1", "ZERO_STAGE=-1");
    refused_variable("ZERO_STAGE", " 1", "ZERO_STAGE= 1");
    refused_variable("ZERO_STAGE", "1 ", "ZERO_STAGE=1 ");
    refused_variable("ZERO_STAGE", "1\n", "ZERO_STAGE=1?");
    refused_variable("ZERO_STAGE", "two", "ZERO_STAGE=two");
    refused_variable("ZERO_STAGE", "off", "ZERO_STAGE=off");
    refused_variable("ZERO_STAGE", "4294967296", "ZERO_STAGE=4294967296");
    refused_variable("ZERO_STAGE", "18446744073709551616", "ZERO_STAGE=18446744073709551616");
    refused_variable("ZERO_OPEN_UNITS", "1KiB", "ZERO_OPEN_UNITS=1KiB");
    refused_variable("ZERO_LIVE_BYTES", "1kB", "ZERO_LIVE_BYTES=1kB");
    refused_variable("ZERO_LIVE_BYTES", "1025TiB", "ZERO_LIVE_BYTES=1025TiB");
    refused_variable("ZERO_LIVE_BYTES", "17179869184TiB", "takes 0 to 1125899906842624");
    refused_variable("ZERO_SEED", "18446744073709551616", "0 to 18446744073709551615");
    refused_variable("ZERO_TRANSPORT", "mpi", "takes auto, self, threads, shm");
    refused_variable("ZERO_LOG", "loud", "ZERO_LOG=loud: log level 'loud'");
    refused_variable("ZERO_LOG", "x=info", "log component 'x'");
    refused_variable("ZERO_PLAN", "yes", "ZERO_PLAN=yes");
    refused_variable("ZERO_PLAN_WORLD", "0", "ZERO_PLAN_WORLD=0");
    refused_variable("ZERO_PLAN_PROBE", "2", "ZERO_PLAN_PROBE=2");
    refused_variable("ZERO_PLAN_FD", "987654", "ZERO_PLAN_FD=987654 is no open descriptor");
    refused_variable("ZERO_METRICS_FD", "1", "ZERO_METRICS_FD=1");
    refused_variable("ZERO_RANK", "0", "ZERO_WORLD_SIZE is not");
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    refused_variable("ZERO_OPTIONS", "stag=1",
                     "-o stag: there is no such key; did you mean stage?");
    refused_variable("ZERO_OPTIONS", "prefetch_unit=1", "did you mean prefetch_units?");
    refused_variable("ZERO_OPTIONS", "cpu-threads=1", "did you mean cpu_threads?");
    refused_variable("ZERO_OPTIONS", "something_else=1", "-o something_else: there is no such key");
    refused_variable("ZERO_OPTIONS", "=1", "-o : there is no such key");
    refused_variable("ZERO_OPTIONS", "stage", "-o stage: write it as key=value");
    refused_variable("ZERO_OPTIONS", "stage=1\nseed=2\nstage=2", "-o stage is given twice");
    refused_variable("ZERO_OPTIONS", "stage=9", "-o stage=9: stage");
    refused_variable("ZERO_OPTIONS", "world=4", "-o world: comes from the launcher");
    refused_variable("ZERO_OPTIONS", "name=x", "-o name: comes from the launcher");
    refused_variable("ZERO_OPTIONS", "log=loud", "-o log=loud: ");
    char long_value[400];
    memset(long_value, '1', sizeof long_value - 1);
    memcpy(long_value, "seed=", 5);
    long_value[sizeof long_value - 1] = '\0';
    refused_variable("ZERO_OPTIONS", long_value, "-o seed: the value is too long");
    memcpy(long_value, "aaaaa", 5);
    refused_variable("ZERO_OPTIONS", long_value, "write it as key=value");
}

static void the_launcher_gives_the_place(void **state)
{
    (void)state;
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_RANK", "2", 1);
    setenv("ZERO_JOB", "abc", 1);
    struct eng_config config = config_resolved(NULL);
    assert_int_equal(config.rank, 2);
    assert_int_equal(config.world, 3);
    assert_int_equal(config.micro_batches, 3);
    assert_string_equal(config.transport, "shm");
    setenv("ZERO_TRANSPORT", "tcp", 1);
    setenv("ZERO_OPTIONS", "transport=auto", 1);
    const struct eng_config automatic = config_resolved(NULL);
    assert_string_equal(automatic.transport, "shm");
    assert_false(eng_config_given(&automatic, "transport"));
    unsetenv("ZERO_TRANSPORT");
    unsetenv("ZERO_OPTIONS");
    assert_string_equal(config.launcher, "torchrun");
    assert_non_null(strstr(config.job, ".zero-run.abc"));

    // The struct is stronger; the job is the same.
    zero_config user = zero_config_default();
    user.world = 2;
    user.rank = 1;
    config = config_resolved(&user);
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.world, 2);
    assert_non_null(strstr(config.job, ".zero-run.abc"));

    setenv("LOCAL_WORLD_SIZE", "3", 1);
    assert_int_equal(config_resolved(NULL).local_world, 3);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "5", 1);
    config_refused(NULL, ZERO_E_INVALID, "disagree");
}

static void a_part_of_a_job_is_no_job(void **state)
{
    (void)state;
    setenv("AWS_BATCH_JOB_NUM_NODES", "2", 1);
    config_refused(NULL, ZERO_E_INVALID, "AWS_BATCH_JOB_NUM_NODES=2");
    setenv("PMIX_RANK", "1", 1);
    setenv("ZERO_RANK", "0", 1);
    setenv("ZERO_WORLD_SIZE", "1", 1);
    assert_int_equal(config_resolved(NULL).world, 1);
}

static void ranks_of_several_hosts_take_tcp(void **state)
{
    (void)state;
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    config_refused(NULL, ZERO_E_INVALID, "no variable says where rank 0 is");
    setenv("MASTER_ADDR", "node1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("ZERO_OPTIONS", "transport=auto", 1);
    assert_string_equal(config_resolved(NULL).transport, "tcp");
    unsetenv("ZERO_OPTIONS");
    struct eng_config config = config_resolved(NULL);
    assert_string_equal(config.transport, "tcp");
    assert_true(config.by_network);
    assert_false(config.shared);
    assert_string_equal(config.meeting.address, "node1");
    assert_int_equal(config.meeting.port, 29501);

    zero_config user = zero_config_default();
    user.transport = "shm";
    config_refused(&user, ZERO_E_INVALID,
                   "transport=shm, but 1 of 3 ranks are on this host (torchrun says)");
    user.transport = NULL;
    user.stage = 1;
    user.gather = "shared";
    assert_true(config_resolved(&user).shared);
    user.gather = NULL;
    for (user.stage = 3; user.stage > 0; user.stage--) // of stage 3 only where it is asked for
        assert_int_equal(config_resolved(&user).shared, user.stage < 3);

    // Without an address only ranks of one host can find out that they are.
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    setenv("AZUREML_NODE_COUNT", "2", 1);
    config_refused(
        NULL, ZERO_E_INVALID,
        "RANK=2, WORLD_SIZE=3: the ranks are on 2 hosts, but no variable says where rank 0 is");
    unsetenv("AZUREML_NODE_COUNT");
    setenv("MASTER_ADDR", "node1", 1);

    // Ranks of one host take it only if they are told to.
    setenv("LOCAL_RANK", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "3", 1);
    assert_string_equal(config_resolved(NULL).transport, "shm");
    user.gather = NULL;
    user.transport = "tcp";
    assert_true(config_resolved(&user).by_network);
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    int team = 0; // the layer never looks into it
    zero_config user = zero_config_default();
    user.world = 2;
    user.transport = "self";
    config_refused(&user, ZERO_E_INVALID, "transport=self is for one rank, and there are 2");
    user.transport = "threads";
    config_refused(&user, ZERO_E_INVALID, "transport=threads needs zero_config.team");
    user.team = (zero_team *)(void *)&team;
    assert_ptr_equal(config_resolved(&user).team, user.team);
    user.transport = NULL;
    assert_string_equal(config_resolved(&user).transport, "threads");
    user.transport = "shm";
    config_refused(&user, ZERO_E_INVALID, "transport=shm, but zero_config.team");
    user.world = 0;
    config_refused(&user, ZERO_E_INVALID, "zero_config.team is set, but .world is 0");
}

static void what_state_on_a_gpu_rules_out(void **state)
{
    (void)state;
    int comm = 0; // the layer never looks into it
    zero_config user = zero_config_default();
    user.device = "gpu";
    config_refused(&user, ZERO_E_INVALID, "device=gpu: it is cpu, cuda");
    user.device = "cuda:1";
    user.nccl_comm = &comm;
    assert_ptr_equal(config_resolved(&user).nccl_comm, &comm);
    assert_int_equal(config_resolved(&user).device_number, 1);
    user.device_transport = "host";
    config_refused(&user, ZERO_E_INVALID,
                   "zero_config.nccl_comm is set, but device_transport=host");
    user.device_transport = NULL;
    user.offload_optimizer = "host";
    user.offload_update = "host";
    config_refused(&user, ZERO_E_INVALID, "zero_config.nccl_comm is set, but no state is on a GPU");
    user.nccl_comm = NULL;
    user.device_transport = "nccl";
    config_refused(&user, ZERO_E_INVALID, "device_transport is set, but no state is on a GPU");
    user.device_transport = NULL;
    user.device_register = "auto";
    config_refused(&user, ZERO_E_INVALID, "device_register is set, but no state is on a GPU");
    user.offload_optimizer = user.offload_update = NULL;
    user.device_transport = "host";
    user.device_register = "on";
    config_refused(&user, ZERO_E_INVALID,
                   "device_register=on, but device_transport=host: it is for nccl");
    user.device_register = user.device_transport = NULL;
    user.paranoid = 1;
    config_refused(&user, ZERO_E_INVALID, "paranoid=1 with device=cuda:1");
    user.paranoid = 0;
    user.stage = 1;
    user.gather = "shared";
    config_refused(&user, ZERO_E_INVALID, "gather=shared with device=cuda:1");
}

static void who_updates_is_open_where_state_is_offloaded(void **state)
{
    (void)state;
    zero_config user = zero_config_default();
    assert_string_equal(config_resolved(&user).offload_update, "auto");
    assert_false(config_resolved(&user).undecided);
    user.offload_optimizer = "host";
    assert_false(config_resolved(&user).undecided);
    user.device = "cuda";
    user.offload_optimizer = NULL;
    assert_false(config_resolved(&user).undecided);
    user.offload_optimizer = "host";
    assert_true(config_resolved(&user).undecided && !config_resolved(&user).resident);
    user.device_transport = "host";
    user.tile_bytes = 65536;
    assert_true(config_resolved(&user).undecided);
    // A job that says how the device does it has to be able to have that.
    user.stage = 1;
    user.gather = "shared";
    config_refused(&user, ZERO_E_INVALID, "tile_bytes is set, but nothing is moved in tiles");
    user.tile_bytes = 0;
    config_refused(&user, ZERO_E_INVALID,
                   "device_transport is set, but no state is on a GPU, and the host updates it: "
                   "gather=shared: it is for");
    user.device_transport = user.gather = NULL;
    user.reduction = "local";
    user.device_register = "off";
    assert_true(config_resolved(&user).undecided);
    setenv("ZERO_RANK", "1", 1);
    setenv("ZERO_WORLD_SIZE", "2", 1);
    config_refused(&user, ZERO_E_INVALID,
                   "device_register is set, but no state is on a GPU, and the host "
                   "updates it: reduction=local, whose bits depend on it");
    user.reduction = user.device_register = NULL;
    user.offload_optimizer = "nvme";
    user.nvme_dir = "/tmp";
    user.tile_bytes = 65536;
    assert_true(config_resolved(&user).undecided);
    user.device_transport = "nccl";
    config_refused(&user, ZERO_E_INVALID, "and the host updates it: state is in files");
}

static void the_first_start_decides_the_batch(void **state)
{
    (void)state;
    setenv("ZERO_RANK", "1", 1);
    setenv("ZERO_WORLD_SIZE", "2", 1);
    setenv("ZERO_FIRST_WORLD", "4", 1);
    setenv("ZERO_RESTARTS", "3", 1);
    struct eng_config config = config_resolved(NULL);
    assert_int_equal(config.world, 2);
    assert_int_equal(config.micro_batches, 4);
    assert_int_equal(config.restarts, 3);
    // A world that the program has made up has no other start.
    zero_config user = zero_config_default();
    user.world = 3;
    assert_int_equal(config_resolved(&user).micro_batches, 3);
    user = zero_config_default();
    user.micro_batches = 5;
    assert_int_equal(config_resolved(&user).micro_batches, 5);
    refused_variable("ZERO_RESTARTS", "-1", "ZERO_RESTARTS");
    refused_variable("ZERO_FIRST_WORLD", "0", "ZERO_FIRST_WORLD");
}

static void restarts_by_others_count(void **state)
{
    (void)state;
    setenv("SLURM_RESTART_COUNT", "2", 1);
    assert_int_equal(config_resolved(NULL).restarts, 2);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    assert_int_equal(config_resolved(NULL).restarts, 3);
    refused_variable("JOBSET_RESTART_ATTEMPT", "often", "JOBSET_RESTART_ATTEMPT=often");
    // zero-run has counted them.
    setenv("ZERO_RESTARTS", "4", 1);
    assert_int_equal(config_resolved(NULL).restarts, 4);
}

static void a_plan_is_made_for_any_world(void **state)
{
    (void)state;
    int ends[2];
    char number[16];
    assert_int_equal(pipe(ends), 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    setenv("ZERO_RANK", "0", 1);
    setenv("ZERO_WORLD_SIZE", "1", 1);
    setenv("ZERO_LOCAL_WORLD_SIZE", "1", 1);
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_WORLD", "64", 1);
    setenv("ZERO_FIRST_WORLD", "1", 1);
    setenv("ZERO_PLAN_FD", number, 1);
    setenv("ZERO_METRICS_FD", number, 1);
    struct eng_config config = config_resolved(NULL);
    assert_true(config.plan);
    assert_int_equal(config.world, 64);
    assert_int_equal(config.rank, 0);
    assert_int_equal(config.micro_batches, 64);
    assert_string_equal(config.transport, "shm");
    assert_int_equal(config.plan_fd, ends[1]);
    assert_int_equal(config.metrics_fd, -1);
    char text[4096];
    write_entries(&config, text, sizeof text);
    assert_non_null(strstr(text, "  world              64               (zero-run --plan)\n"));

    // Without it the descriptor is for metrics, of rank 0.
    setenv("ZERO_PLAN", "0", 1);
    config = config_resolved(NULL);
    assert_false(config.plan);
    assert_int_equal(config.world, 1);
    assert_int_equal(config.metrics_fd, ends[1]);
    setenv("ZERO_RANK", "1", 1);
    setenv("ZERO_WORLD_SIZE", "2", 1);
    setenv("ZERO_LOCAL_WORLD_SIZE", "2", 1);
    assert_int_equal(config_resolved(NULL).metrics_fd, -1);
    close(ends[0]);
    close(ends[1]);
}

struct sink {
    int count;
    char last[1100];
};

static void keep(void *user, zero_log_level level, const char *component, const char *message)
{
    struct sink *sink = user;
    if (level == ZERO_LOG_WARN && !strcmp(component, "core")) {
        sink->count++;
        snprintf(sink->last, sizeof sink->last, "%s", message);
    }
}

static void unknown_variables_are_warned_of(void **state)
{
    (void)state;
    struct sink sink = {.count = 0};
    zero_config user = zero_config_default();
    user.log = keep;
    user.log_user = &sink;
    setenv("ZERO_JOB", "j", 1);
    setenv("ZERO_FAULT", "", 1);
    setenv("ZERO_LOG", "error,coll=debug", 1);
    setenv("ZERO_LOG_LEVEL", "warn", 1);
    setenv("ZEROS", "1", 1);
    struct eng_config config = config_resolved(&user);
    assert_int_equal(sink.count, 0);
    assert_int_equal(config.log.level, ZERO_LOG_ERROR);
    assert_int_equal(config.log.component_level[BASE_LOG_COLL], ZERO_LOG_DEBUG);
    assert_ptr_equal(config.log.user, &sink);

    unsetenv("ZERO_LOG");
    setenv("ZERO_STAGES", "3", 1);
    config_resolved(&user);
    assert_int_equal(sink.count, 1);
    assert_string_equal(sink.last, "ZERO_STAGES is no variable of zero; did you mean ZERO_STAGE?");
    unsetenv("ZERO_STAGES");
    setenv("ZERO_INSTALLATION_PATH", "x", 1);
    config_resolved(&user);
    assert_string_equal(sink.last, "ZERO_INSTALLATION_PATH is no variable of zero");
    assert_int_equal(sink.count, 2);
    // One rank says it.
    user.world = 2;
    user.rank = 1;
    config_resolved(&user);
    assert_int_equal(sink.count, 2);
}

#define TEST(function) cmocka_unit_test_setup(function, config_clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults_are_those_of_the_manual),
        TEST(the_struct_is_read),
        TEST(parameters_on_nvme_are_not_shared),
        TEST(fields_out_of_range_are_refused),
        TEST(older_and_newer_structs_are_accepted),
        TEST(choices_that_contradict_are_refused),
        TEST(the_stronger_source_wins),
        TEST(text_values_are_understood),
        TEST(bad_variables_are_refused),
        TEST(bad_options_are_refused),
        TEST(the_launcher_gives_the_place),
        TEST(a_part_of_a_job_is_no_job),
        TEST(ranks_of_several_hosts_take_tcp),
        TEST(contradictions_are_refused),
        TEST(what_state_on_a_gpu_rules_out),
        TEST(who_updates_is_open_where_state_is_offloaded),
        TEST(the_first_start_decides_the_batch),
        TEST(restarts_by_others_count),
        TEST(a_plan_is_made_for_any_world),
        TEST(unknown_variables_are_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
