// Variables that only processes of a larger job have, from launchers that do not say enough for a
// place in it. A process that has one and no place would train alone, as each of the others would.

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_platforms.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <string.h>

enum {
    HOSTS = 1, // they number hosts: each process of a host has the same
    WEAK = 2, // an index of 0, and what is no number, say nothing: people use the names as well, or
              // the only process of a job has 0
    MARK = 4, // the index is no number: only a part of a job has it
    LIST = 8, // the count is a list with commas
    FROM_1 = 16, // the first index is 1
};

struct sign {
    const char *launcher;
    const char *index; // this process's or host's number; or NULL
    const char *count; // how many there are; or NULL
    unsigned flags;
    const char *why; // NULL: no variable says which rank it is
};

static const struct sign signs[] = {
    {"torchrun", "LOCAL_RANK", NULL, 0, "RANK and WORLD_SIZE are not set"},
    {"torchrun", NULL, "LOCAL_WORLD_SIZE", 0, "RANK and WORLD_SIZE are not set"},
    {"torchrun", "GROUP_RANK", "GROUP_WORLD_SIZE", HOSTS, NULL},
    {"torchrun", "ROLE_RANK", "ROLE_WORLD_SIZE", 0, NULL},
    {"torchrun", "TORCHELASTIC_RUN_ID", NULL, MARK, "RANK and WORLD_SIZE are not set"},
    {"torchrun", "PET_NODE_RANK", NULL, HOSTS | WEAK, NULL},
    {"torchrun", "NODE_RANK", "NNODES", HOSTS | WEAK, NULL},
    {"DeepSpeed", "CROSS_RANK", "CROSS_SIZE", HOSTS | WEAK, NULL},
    {"DeepSpeed", NULL, "LOCAL_SIZE", WEAK, NULL},
    {"PALS", "PALS_RANKID", NULL, 0, "no variable says how many ranks there are"},
    {"PALS", "PALS_LOCAL_RANKID", NULL, 0, NULL},
    {"PALS", "PALS_APID", NULL, MARK, NULL},
    {"PALS", NULL, "PALS_LOCAL_SIZE", 0, NULL},
    {"PMIx", "PMIX_RANK", NULL, 0, "how many ranks there are is known to PMIx only"},
    {"PMIx", "PMIX_NAMESPACE", NULL, MARK, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", NULL, 0, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_NODE_RANK", NULL, MARK, NULL},
    {"Open MPI", NULL, "OMPI_COMM_WORLD_LOCAL_SIZE", 0, NULL},
    {"MVAPICH2", "MV2_COMM_WORLD_LOCAL_RANK", NULL, 0, NULL},
    {"MVAPICH2", NULL, "MV2_COMM_WORLD_LOCAL_SIZE", 0, NULL},
    {"MPICH", "MPI_LOCALRANKID", NULL, 0, NULL},
    {"MPICH", "PMI_LOCAL_RANK", NULL, 0, NULL},
    {"MPICH", "PMI_FD", NULL, MARK, NULL},
    {"MPICH", "PMI_PORT", NULL, MARK, NULL},
    {"MPICH", NULL, "MPI_LOCALNRANKS", 0, NULL},
    {"MPICH", NULL, "PMI_LOCAL_SIZE", 0, NULL},
    {"Platform MPI", "MPI_RANKID", "MPI_NRANKS", 0, NULL},
    {"mpirun_rsh", "MPIRUN_RANK", "MPIRUN_NPROCS", 0, NULL},
    {"aprun", "ALPS_APP_PE", NULL, 0, "no variable says how many ranks there are"},
    {"poe", "MP_CHILD", NULL, 0, NULL},
    {"Flux", "FLUX_TASK_LOCAL_ID", NULL, 0, NULL},
    {"Flux", NULL, "FLUX_JOB_NNODES", HOSTS, NULL},
    {"Horovod", "HOROVOD_LOCAL_RANK", NULL, 0, NULL},
    {"Horovod", "HOROVOD_CROSS_RANK", NULL, 0, NULL},
    {"Horovod", "HOROVOD_GLOO_RENDEZVOUS_ADDR", NULL, MARK, NULL},
    {"Horovod", NULL, "HOROVOD_LOCAL_SIZE", 0, NULL},
    {"Horovod", NULL, "HOROVOD_CROSS_SIZE", 0, NULL},
    {"jsrun", "JSM_NAMESPACE_LOCAL_RANK", NULL, 0, NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", WEAK, "SLURM_STEP_ID is not set"},
    {"Slurm", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", MARK, NULL},
    {"Slurm", NULL, "SLURM_STEP_NUM_NODES", 0, NULL},
    {"Slurm", "SLURM_LOCALID", NULL, WEAK, NULL},
    {"Slurm", "SLURM_NODEID", NULL, WEAK, NULL},
    {"LSF's blaunch", "LSF_PM_TASKID", NULL, WEAK | FROM_1, NULL},
    {"PBS", "PBS_NODENUM", NULL, WEAK, NULL},
    {"PBS", "PBS_VNODENUM", NULL, WEAK, NULL},
    {"JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", HOSTS, "JAX_NUM_PROCESSES is not set"},
    {"JAX", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", HOSTS | MARK, NULL},
    {"mlx.launch", "MLX_RANK", "MLX_WORLD_SIZE", 0, NULL},
    {"Paddle", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", 0, NULL},
    {"a DMLC tracker", "DMLC_TASK_ID", "DMLC_NUM_WORKER", 0, NULL},
    {"AWS Batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", HOSTS, NULL},
    {"AWS Batch", "AWS_BATCH_JOB_MAIN_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", HOSTS | MARK, NULL},
    {"Azure ML", "AZUREML_CR_NODE_RANK", "AZUREML_NODE_COUNT", HOSTS | WEAK, NULL},
    {"Azure ML", "AZUREML_CR_NODE_RANK", "AZ_BATCH_HOST_LIST", HOSTS | WEAK | LIST, NULL},
    {"SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", HOSTS, NULL},
    {"LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", HOSTS, NULL},
    {"Beaker", "BEAKER_REPLICA_RANK", "BEAKER_REPLICA_COUNT", HOSTS, NULL},
    {"Base Command", "NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", HOSTS, NULL},
    {"dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", HOSTS, NULL},
    {"a TPU slice", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", HOSTS | WEAK | LIST, NULL},
    {"a TPU slice", "CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", WEAK | LIST, NULL},
    {"Neuron", "NEURON_PJRT_PROCESS_INDEX", "NEURON_PJRT_PROCESSES_NUM_DEVICES", LIST, NULL},
    {"torchft", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", HOSTS | WEAK, NULL},
    {"Volcano", "VC_TASK_INDEX", NULL, HOSTS | WEAK, NULL},
    {"Volcano", "VK_TASK_INDEX", NULL, HOSTS | WEAK, NULL},
    {"Kubernetes", "JOB_COMPLETION_INDEX", NULL, HOSTS | WEAK, NULL},
};
enum { SIGNS = sizeof signs / sizeof *signs };

/** What the variables of a sign say. */
struct seen {
    bool index_there, count_there;
    int index; // -1: it is no number
    int count; // 0: it is no number
    char source[160];
};

static int number_of(const char *value, int min, int otherwise)
{
    int number = otherwise;
    boot_number(&number, "", value, min, BOOT_NUMBER_MAX, NULL);
    return number;
}

static struct seen look(const struct sign *sign, char *const *environment)
{
    const char *index = sign->index ? boot_variable(environment, sign->index) : NULL;
    const char *count = sign->count ? boot_variable(environment, sign->count) : NULL;
    struct seen seen = {.index_there = index, .count_there = count, .index = -1};
    struct base_text source = {seen.source, sizeof seen.source, 0};
    if (index) {
        const int first = sign->flags & FROM_1 ? 1 : 0;
        seen.index = number_of(index, first, first - 1) - first;
        boot_text_list_variable(&source, sign->index, index);
    }
    if (count) {
        seen.count = sign->flags & LIST ? boot_items(count) : number_of(count, 1, 0);
        boot_text_list_variable(&source, sign->count, count);
    }
    return seen;
}

// Whether the process is one of several.
static bool is_part(const struct sign *sign, const struct seen *seen)
{
    if (seen->count > 1 || (seen->index > 0 && !(sign->flags & MARK)))
        return true;
    return !(sign->flags & WEAK) && (seen->count_there ? !seen->count : seen->index_there);
}

// Whether the process is one of several though another launcher says that it is alone. An index
// above 0 proves another process, or host. A number of 0 proves nothing: the only process has it,
// and one that the launcher's own daemon has. What counts processes may count daemons.
static bool is_part_still(const struct sign *sign, const struct seen *seen)
{
    return (sign->flags & HOSTS && seen->count > 1) || (!(sign->flags & MARK) && seen->index > 0);
}

static zero_result fail(const char *launcher, const char *source, const char *why, bool hosts,
                        const struct boot_reading *place, struct base_error *error)
{
    static const char advice[] =
        "set ZERO_RANK and ZERO_WORLD_SIZE for each (0 and 1 for one that trains alone), and on "
        "several hosts ZERO_MASTER_ADDR and ZERO_MASTER_PORT";
    if (place)
        return zero_fail(
            error, ZERO_E_INVALID,
            "%s: one rank, but %s says that %s has started several processes, and each "
            "would train alone: start one job for all of them, or %s",
            place->source, source, launcher, advice);
    return zero_fail(error, ZERO_E_INVALID,
                     "%s: %s has started this process as one of several, but %s: %s%s", source,
                     launcher, why ? why : "no variable says which rank it is",
                     hosts ? "start it on each host by zero-run or torchrun, or " : "", advice);
}

/* ------------------------------------------------------------------ all of them */

zero_result boot_signs_check(const struct boot_reading *place, char *const *environment,
                             struct base_error *error)
{
    for (size_t i = 0; i < SIGNS; i++) {
        const struct seen seen = look(&signs[i], environment);
        if (place ? is_part_still(&signs[i], &seen) : is_part(&signs[i], &seen))
            return fail(signs[i].launcher, seen.source, signs[i].why, signs[i].flags & HOSTS, place,
                        error);
    }
    struct boot_nodes pods = {.node = -1};
    const bool malformed = boot_volcano_read(&pods, environment, NULL) != ZERO_OK;
    return malformed || pods.nodes > 1 ? fail("Volcano", pods.source, NULL, true, place, error)
                                       : ZERO_OK;
}

zero_result boot_signs_of_ranks(char *const *environment, struct base_error *error)
{
    for (size_t i = 0; i < SIGNS; i++) {
        const struct seen seen = look(&signs[i], environment);
        if (!(signs[i].flags & HOSTS) && is_part(&signs[i], &seen))
            return fail(signs[i].launcher, seen.source, signs[i].why, false, NULL, error);
    }
    return ZERO_OK;
}
