#include "collectives/rendezvous/launcher_family.h"

#include "collectives/rendezvous/launcher_variables.h"

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
        const bool local = !strcmp(names[i], "TORCHELASTIC_RESTART_COUNT");
        // Ranks may be on several hosts where it is not said how many are on this one.
        const char *value = local && !here ? NULL : boot_variable(environment, names[i]);
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

static bool job_pals(struct base_text *text, char *const *environment)
{
    return job_of_variable(text, environment, "PALS_APID");
}

static bool job_flux(struct base_text *text, char *const *environment)
{
    return job_of_variable(text, environment, "FLUX_JOB_ID");
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

// PALS itself does not say how many ranks there are; cray-mpich's PMI does, if it is this rank's
// and not that of an mpiexec inside.
static zero_result read_pals(struct boot_reading *reading, char *const *environment,
                             struct base_error *error)
{
    const char *rank_text = boot_variable(environment, "PALS_RANKID");
    const char *world_text = boot_variable(environment, "PMI_SIZE");
    const char *pmi_text = boot_variable(environment, "PMI_RANK");
    int rank = 0, world = 0, pmi = 0;
    zero_result result = boot_number(&rank, "PALS_RANKID", rank_text, 0, BOOT_NUMBER_MAX, error);
    if (!result)
        result = boot_number(&world, "PMI_SIZE", world_text, 1, BOOT_NUMBER_MAX, error);
    if (!result && pmi_text)
        result = boot_number(&pmi, "PMI_RANK", pmi_text, 0, BOOT_NUMBER_MAX, error);
    if (result || rank >= world || (pmi_text && pmi != rank))
        return result;
    reading->present = true;
    reading->rank = rank;
    reading->world = world;
    struct base_text source = {reading->source, sizeof reading->source, 0};
    base_text_add(&source, "PALS_RANKID=%d, PMI_SIZE=%d", rank, world);
    return ZERO_OK;
}

#define BIT(family) (1U << (family))

// Launchers start each other: Slurm starts Open MPI's and hydra's daemons, and people start one
// torchrun a host by any of these. Their numbers then count daemons, not ranks.
const struct boot_family boot_families[BOOT_FAMILIES] = {
    [BOOT_ZERO] = {.launcher = "zero-run",
                   .rank = {"ZERO_RANK"},
                   .world = "ZERO_WORLD_SIZE",
                   .local_rank = {"ZERO_LOCAL_RANK"},
                   .local_world = {"ZERO_LOCAL_WORLD_SIZE"},
                   .hosts = {"ZERO_HOSTS"},
                   .job = job_zero},
    // DeepSpeed's launcher and Azure ML set these too.
    [BOOT_TORCHRUN] = {.launcher = "torchrun",
                       .rank = {"RANK"},
                       .world = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK"},
                       .local_world = {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"},
                       .hosts = {"GROUP_WORLD_SIZE", "CROSS_SIZE", "AZUREML_NODE_COUNT"},
                       .needs = {"LOCAL_RANK"},
                       .job = job_torchrun,
                       .around = BIT(BOOT_OPEN_MPI) | BIT(BOOT_MVAPICH) | BIT(BOOT_PMI) |
                                 BIT(BOOT_PALS) | BIT(BOOT_FLUX) | BIT(BOOT_JSM) | BIT(BOOT_SLURM) |
                                 BIT(BOOT_TENSORFLOW),
                       .around_if = "TORCHELASTIC_RUN_ID"},
    [BOOT_OPEN_MPI] = {.launcher = "Open MPI",
                       .rank = {"OMPI_COMM_WORLD_RANK"},
                       .world = "OMPI_COMM_WORLD_SIZE",
                       .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
                       .local_world = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
                       .job = job_open_mpi,
                       .around = BIT(BOOT_SLURM) | BIT(BOOT_FLUX)},
    [BOOT_MVAPICH] = {.launcher = "MVAPICH2",
                      .rank = {"MV2_COMM_WORLD_RANK"},
                      .world = "MV2_COMM_WORLD_SIZE",
                      .local_rank = {"MV2_COMM_WORLD_LOCAL_RANK"},
                      .local_world = {"MV2_COMM_WORLD_LOCAL_SIZE"},
                      .around = BIT(BOOT_SLURM) | BIT(BOOT_FLUX)},
    // mpirun_rsh calls the rank PMI_ID, cray-mpich the local ones PMI_LOCAL_*.
    [BOOT_PMI] = {.launcher = "MPICH",
                  .rank = {"PMI_RANK", "PMI_ID"},
                  .world = "PMI_SIZE",
                  .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
                  .local_world = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
                  .around = BIT(BOOT_SLURM) | BIT(BOOT_FLUX),
                  .spoken_by = BIT(BOOT_PALS) | BIT(BOOT_FLUX)},
    [BOOT_PALS] = {.launcher = "PALS",
                   .local_rank = {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
                   .local_world = {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
                   .needs = {"PALS_RANKID", "PMI_SIZE"},
                   .read = read_pals,
                   .job = job_pals},
    // The hosts are those of Flux: one shell each.
    [BOOT_FLUX] = {.launcher = "Flux",
                   .rank = {"FLUX_TASK_RANK"},
                   .world = "FLUX_JOB_SIZE",
                   .local_rank = {"FLUX_TASK_LOCAL_ID"},
                   .hosts = {"FLUX_JOB_NNODES"},
                   .job = job_flux},
    [BOOT_HOROVOD] = {.launcher = "Horovod",
                      .rank = {"HOROVOD_RANK"},
                      .world = "HOROVOD_SIZE",
                      .local_rank = {"HOROVOD_LOCAL_RANK"},
                      .local_world = {"HOROVOD_LOCAL_SIZE"},
                      .job = job_horovod,
                      .around = BIT(BOOT_SLURM) | BIT(BOOT_FLUX)},
    [BOOT_JSM] = {.launcher = "jsrun",
                  .rank = {"JSM_NAMESPACE_RANK"},
                  .world = "JSM_NAMESPACE_SIZE",
                  .local_rank = {"JSM_NAMESPACE_LOCAL_RANK"},
                  .local_world = {"JSM_NAMESPACE_LOCAL_SIZE"},
                  .job = job_jsm},
    [BOOT_SLURM] = {.launcher = "Slurm",
                    .rank = {"SLURM_PROCID"},
                    .world = "SLURM_STEP_NUM_TASKS",
                    .local_rank = {"SLURM_LOCALID"},
                    .hosts = {"SLURM_STEP_NUM_NODES"},
                    .needs = {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
                    .read = read_slurm,
                    .job = job_slurm},
    [BOOT_TENSORFLOW] = {.launcher = "TF_CONFIG",
                         .needs = {"TF_CONFIG"},
                         .read = boot_tensorflow_read,
                         .job = boot_tensorflow_address},
    [BOOT_KUBEFLOW] = {.launcher = "Kubeflow",
                       .needs = {"PET_NPROC_PER_NODE"},
                       .read = boot_kubeflow_read,
                       .counts_hosts = true},
    // What PMIx says where it is asked: no launcher sets PMIX_JOB_SIZE (boot_manager_discover()).
    [BOOT_PMIX] = {.launcher = "PMIx",
                   .rank = {"PMIX_RANK"},
                   .world = "PMIX_JOB_SIZE",
                   .local_rank = {"PMIX_LOCAL_RANK"},
                   .local_world = {"PMIX_LOCAL_SIZE"},
                   .hosts = {"PMIX_NUM_NODES"},
                   .needs = {"PMIX_NAMESPACE", "PMIX_JOB_SIZE"},
                   .job = job_jsm},
};

zero_result boot_half_fail(const struct boot_reading *half, struct base_error *error)
{
    if (!strncmp(half->missing, "ZERO_", 5))
        return zero_fail(error, ZERO_E_INVALID, "%s is set, but %s is not: set both, or none",
                         half->source, half->missing);
    return zero_fail(
        error, ZERO_E_INVALID,
        "%s is set, but %s is not: set both, or ZERO_RANK and ZERO_WORLD_SIZE (0 and 1 "
        "to train alone)",
        half->source, half->missing);
}

// The number of the one that is set.
static zero_result read_half(struct boot_reading *reading, const char *rank_name,
                             const char *world_name, char *const *environment,
                             struct base_error *error)
{
    const char *rank = boot_variable(environment, rank_name);
    struct base_text source = {reading->source, sizeof reading->source, 0};
    reading->missing = rank ? world_name : rank_name;
    reading->rank = -1;
    reading->world = 0;
    if (rank) {
        boot_text_add_variable(&source, rank_name, rank);
        return boot_number(&reading->rank, rank_name, rank, 0, BOOT_NUMBER_MAX, error);
    }
    const char *world = boot_variable(environment, world_name);
    boot_text_add_variable(&source, world_name, world);
    return boot_number(&reading->world, world_name, world, 1, BOOT_NUMBER_MAX, error);
}

zero_result boot_pair_read(struct boot_reading *reading, const char *rank_name,
                           const char *world_name, char *const *environment,
                           struct base_error *error)
{
    const char *rank = boot_variable(environment, rank_name);
    const char *world = boot_variable(environment, world_name);
    if (!rank && !world)
        return ZERO_OK;
    if (!rank || !world)
        return read_half(reading, rank_name, world_name, environment, error);

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
    const char *rank_name, *world_name;
    const char *rank =
        boot_first_variable(&rank_name, family->local_rank, BOOT_FAMILY_NAMES, environment);
    const char *world =
        boot_first_variable(&world_name, family->local_world, BOOT_FAMILY_NAMES, environment);
    zero_result result = ZERO_OK;
    if (world)
        result = boot_number(&reading->local_world, world_name, world, 1, reading->world, error);
    if (rank && !result) {
        const int ranks = reading->local_world ? reading->local_world : reading->world;
        result = boot_number(&reading->local_rank, rank_name, rank, 0, ranks - 1, error);
    }
    return result;
}

// All ranks of one host are here. There are no hosts without ranks.
static zero_result read_hosts(struct boot_reading *reading, const struct boot_family *family,
                              char *const *environment, struct base_error *error)
{
    const char *name;
    const char *value = boot_first_variable(&name, family->hosts, BOOT_FAMILY_NAMES, environment);
    if (!value)
        return ZERO_OK;
    const zero_result result = boot_number(&reading->hosts, name, value, 1, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    if (reading->hosts > reading->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s, but %s=%d: there are more hosts than ranks, so this process would "
                         "train without the others; unset what does not hold",
                         reading->source, name, reading->hosts);
    if (reading->hosts == 1 && !reading->local_world)
        reading->local_world = reading->world;
    return ZERO_OK;
}

zero_result boot_family_read(struct boot_reading *reading, const struct boot_family *family,
                             char *const *environment, struct base_error *error)
{
    *reading = (struct boot_reading){.local_rank = -1};
    for (size_t i = 0; i < BOOT_FAMILY_NEEDS && family->needs[i]; i++)
        if (!boot_variable(environment, family->needs[i]))
            return ZERO_OK;

    zero_result result = ZERO_OK;
    if (family->world) {
        const char *rank;
        boot_first_variable(&rank, family->rank, BOOT_FAMILY_NAMES, environment);
        result = boot_pair_read(reading, rank, family->world, environment, error);
    }
    if (family->read && !result)
        result = family->read(reading, environment, error);
    if (reading->present && !result)
        result = read_local(reading, family, environment, error);
    if (reading->present && !result)
        result = read_hosts(reading, family, environment, error);
    return result;
}
