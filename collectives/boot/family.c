#include "collectives/boot/family.h"

#include "collectives/boot/environment.h"

#include <stdlib.h>
#include <string.h>

// Reads "4(x2),3", ranks of each host in order, and gives those of host `node`; 0 if malformed or
// the list is shorter.
static int ranks_of_node(const char *list, int node)
{
    while (*list) {
        char *end;
        const long ranks = strtol(list, &end, 10);
        long repeat = 1;
        if (end == list || ranks < 1 || ranks > BOOT_NUMBER_MAX)
            return 0;
        if (!strncmp(end, "(x", 2)) {
            repeat = strtol(end + 2, &end, 10);
            if (repeat < 1 || repeat > BOOT_NUMBER_MAX || *end++ != ')')
                return 0;
        }
        if (node < repeat)
            return (int)ranks;
        node -= (int)repeat;
        if (*end && *end++ != ',')
            return 0;
        list = end;
    }
    return 0;
}

static zero_result read_slurm(struct boot_reading *reading, char *const *environment,
                              struct base_error *error)
{
    const char *list = boot_variable(environment, "SLURM_STEP_TASKS_PER_NODE");
    const char *node_text = boot_variable(environment, "SLURM_NODEID");
    if (!list || !node_text)
        return ZERO_OK;

    int node = 0;
    const zero_result result =
        boot_number(&node, "SLURM_NODEID", node_text, 0, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    reading->local_world = ranks_of_node(list, node);
    if (reading->local_world)
        return ZERO_OK;
    char shown[128];
    struct base_text text = {shown, sizeof shown, 0};
    boot_text_add_variable(&text, "SLURM_STEP_TASKS_PER_NODE", list);
    return zero_fail(error, ZERO_E_INVALID, "%s does not say how many ranks node %d has", shown,
                     node);
}

static bool job_of_variable(struct base_text *text, char *const *environment, const char *name)
{
    const char *value = boot_variable(environment, name);
    if (!value || !*value)
        return false;
    base_text_add(text, "%s", value);
    return true;
}

static bool job_zero(struct base_text *text, char *const *environment)
{
    return job_of_variable(text, environment, "ZERO_JOB");
}

// The run id alone is "none" by default: the port tells jobs of one host apart, the restart count
// lives of one job. Every host counts its own restarts, and all have ended before any starts again.
static bool job_torchrun(struct base_text *text, char *const *environment)
{
    static const char *const names[] = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT",
                                        "TORCHELASTIC_RESTART_COUNT"};
    const char *port = boot_variable(environment, "MASTER_PORT");
    if (!port || !*port)
        return false;
    const char *world = boot_variable(environment, "WORLD_SIZE");
    const char *here = boot_variable(environment, "LOCAL_WORLD_SIZE");
    const size_t count = sizeof names / sizeof *names - (world && here && strcmp(world, here) != 0);
    for (size_t i = 0; i < count; i++) {
        const char *value = boot_variable(environment, names[i]);
        base_text_add(text, "%s%s", i ? ":" : "", value ? value : "");
    }
    return true;
}

static bool job_open_mpi(struct base_text *text, char *const *environment)
{
    return job_of_variable(text, environment, "PMIX_NAMESPACE") ||
           job_of_variable(text, environment, "OMPI_MCA_ess_base_jobid");
}

static bool job_horovod(struct base_text *text, char *const *environment)
{
    const char *address = boot_variable(environment, "HOROVOD_GLOO_RENDEZVOUS_ADDR");
    const char *port = boot_variable(environment, "HOROVOD_GLOO_RENDEZVOUS_PORT");
    if (!address || !port)
        return false;
    base_text_add(text, "%s:%s", address, port);
    return true;
}

static bool job_jsm(struct base_text *text, char *const *environment)
{
    return job_of_variable(text, environment, "PMIX_NAMESPACE");
}

static bool job_slurm(struct base_text *text, char *const *environment)
{
    const char *job = boot_variable(environment, "SLURM_JOB_ID");
    const char *step = boot_variable(environment, "SLURM_STEP_ID");
    if (!job || !step)
        return false;
    base_text_add(text, "%s.%s", job, step);
    return true;
}

#define BIT(family) (1U << (family))

// Launchers start each other: Slurm starts Open MPI's and hydra's daemons, and people start one
// torchrun a host by any of these. Their numbers then count daemons, not ranks.
const struct boot_family boot_families[BOOT_FAMILIES] = {
    [BOOT_ZERO] = {.launcher = "zero-run",
                   .rank = "ZERO_RANK",
                   .world = "ZERO_WORLD_SIZE",
                   .local_rank = "ZERO_LOCAL_RANK",
                   .local_world = "ZERO_LOCAL_WORLD_SIZE",
                   .job = job_zero},
    [BOOT_TORCHRUN] = {.launcher = "torchrun",
                       .rank = "RANK",
                       .world = "WORLD_SIZE",
                       .local_rank = "LOCAL_RANK",
                       .local_world = "LOCAL_WORLD_SIZE",
                       .needs = {"LOCAL_RANK"},
                       .job = job_torchrun,
                       .around = BIT(BOOT_OPEN_MPI) | BIT(BOOT_PMI) | BIT(BOOT_JSM) |
                                 BIT(BOOT_SLURM) | BIT(BOOT_TENSORFLOW),
                       .around_if = "TORCHELASTIC_RUN_ID"},
    [BOOT_OPEN_MPI] = {.launcher = "Open MPI",
                       .rank = "OMPI_COMM_WORLD_RANK",
                       .world = "OMPI_COMM_WORLD_SIZE",
                       .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                       .local_world = "OMPI_COMM_WORLD_LOCAL_SIZE",
                       .job = job_open_mpi,
                       .around = BIT(BOOT_SLURM)},
    [BOOT_PMI] = {.launcher = "MPICH",
                  .rank = "PMI_RANK",
                  .world = "PMI_SIZE",
                  .local_rank = "MPI_LOCALRANKID",
                  .local_world = "MPI_LOCALNRANKS",
                  .around = BIT(BOOT_SLURM)},
    [BOOT_HOROVOD] = {.launcher = "Horovod",
                      .rank = "HOROVOD_RANK",
                      .world = "HOROVOD_SIZE",
                      .local_rank = "HOROVOD_LOCAL_RANK",
                      .local_world = "HOROVOD_LOCAL_SIZE",
                      .job = job_horovod,
                      .around = BIT(BOOT_SLURM)},
    [BOOT_JSM] = {.launcher = "jsrun",
                  .rank = "JSM_NAMESPACE_RANK",
                  .world = "JSM_NAMESPACE_SIZE",
                  .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
                  .local_world = "JSM_NAMESPACE_LOCAL_SIZE",
                  .job = job_jsm},
    [BOOT_SLURM] = {.launcher = "Slurm",
                    .rank = "SLURM_PROCID",
                    .world = "SLURM_STEP_NUM_TASKS",
                    .local_rank = "SLURM_LOCALID",
                    .needs = {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
                    .read = read_slurm,
                    .job = job_slurm},
    [BOOT_TENSORFLOW] = {.launcher = "TF_CONFIG",
                         .needs = {"TF_CONFIG"},
                         .read = boot_tensorflow_read,
                         .job = boot_tensorflow_address},
};

static zero_result half(struct base_error *error, const char *name, const char *value,
                        const char *missing)
{
    char shown[128];
    struct base_text text = {shown, sizeof shown, 0};
    boot_text_add_variable(&text, name, value);
    return zero_fail(error, ZERO_E_INVALID, "%s is set, but %s is not", shown, missing);
}

zero_result boot_pair_read(struct boot_reading *reading, const char *rank_name,
                           const char *world_name, char *const *environment,
                           struct base_error *error)
{
    const char *rank = boot_variable(environment, rank_name);
    const char *world = boot_variable(environment, world_name);
    if (!rank && !world)
        return ZERO_OK;
    if (!rank)
        return half(error, world_name, world, rank_name);
    if (!world)
        return half(error, rank_name, rank, world_name);

    zero_result result = boot_number(&reading->world, world_name, world, 1, BOOT_NUMBER_MAX, error);
    if (!result)
        result = boot_number(&reading->rank, rank_name, rank, 0, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    reading->present = true;

    struct base_text source = {reading->source, sizeof reading->source, 0};
    boot_text_add_variable(&source, rank_name, rank);
    base_text_add(&source, ", ");
    boot_text_add_variable(&source, world_name, world);
    if (reading->rank >= reading->world)
        return zero_fail(error, ZERO_E_INVALID, "%s: the rank must be below the world",
                         reading->source);
    return ZERO_OK;
}

static zero_result read_local(struct boot_reading *reading, const struct boot_family *family,
                              char *const *environment, struct base_error *error)
{
    const char *rank = family->local_rank ? boot_variable(environment, family->local_rank) : NULL;
    const char *world =
        family->local_world ? boot_variable(environment, family->local_world) : NULL;
    zero_result result = ZERO_OK;
    if (world)
        result = boot_number(&reading->local_world, family->local_world, world, 1, reading->world,
                             error);
    if (rank && !result) {
        const int ranks = reading->local_world ? reading->local_world : reading->world;
        result = boot_number(&reading->local_rank, family->local_rank, rank, 0, ranks - 1, error);
    }
    return result;
}

zero_result boot_family_read(struct boot_reading *reading, const struct boot_family *family,
                             char *const *environment, struct base_error *error)
{
    *reading = (struct boot_reading){.local_rank = -1};
    for (size_t i = 0; i < BOOT_FAMILY_NEEDS && family->needs[i]; i++)
        if (!boot_variable(environment, family->needs[i]))
            return ZERO_OK;

    zero_result result = ZERO_OK;
    if (family->rank)
        result = boot_pair_read(reading, family->rank, family->world, environment, error);
    if (family->read && !result)
        result = family->read(reading, environment, error);
    if (reading->present && !result)
        result = read_local(reading, family, environment, error);
    return result;
}
