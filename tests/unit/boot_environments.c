// Environments as launchers and platforms make them, and what a process is to make of each: its
// place and where rank 0 is, or an error that names a variable; and never rank 0 of 1 in a job of
// many.
#include "collectives/rendezvous/mesh.h"
#include "collectives/rendezvous/rendezvous.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VARIABLES = 32, ENVIRONMENT_BYTES = 1024 };

/** An environment, its variables with a blank between them. */
struct environment {
    char bytes[ENVIRONMENT_BYTES];
    char *list[VARIABLES];
};

static char *const *environment_of(struct environment *made, const char *variables)
{
    assert_true(strlen(variables) < sizeof made->bytes);
    strcpy(made->bytes, variables);
    int count = 0;
    for (char *one = strtok(made->bytes, " "); one; one = strtok(NULL, " ")) {
        assert_true(count < VARIABLES - 1);
        made->list[count++] = one;
    }
    made->list[count] = NULL;
    return made->list;
}

/* ------------------------------------------------------------------ places */

struct placed {
    const char *name;
    const char *variables;
    int rank, world, local_rank, local_world, hosts;
    const char *launcher;
    const char *master; // "address:port" where rank 0 listens; NULL: no variable says
    const char *job;    // a part of the job's id; NULL: not looked at
};

#define DEEPSPEED                                                                                  \
    "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=16 CROSS_RANK=1 CROSS_SIZE=2 LOCAL_SIZE=8 " \
    "RANK=11 LOCAL_RANK=3 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
#define ONE_RANK "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "
#define FLUX                                                                                       \
    "FLUX_JOB_ID=f23r45t FLUX_JOB_SIZE=8 FLUX_TASK_RANK=5 FLUX_TASK_LOCAL_ID=1 "                   \
    "FLUX_URI=local:///run/flux/local"
#define PALS                                                                                       \
    "PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4 PALS_NODEID=1 PALS_APID=3-4 PALS_DEPTH=1"

// Port 6105 and the like that MASTER_PORT gives is torchrun's own: rank 0 listens at the next.
static const struct placed places[] = {
    {"Azure ML, PyTorch, 2 hosts of 4",
     "AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r1 AZUREML_NODE_COUNT=2 "
     "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=8 "
     "NODE_RANK=1 RANK=5 LOCAL_RANK=1",
     5, 8, 1, 0, 2, "torchrun", "10.0.0.4:6106", NULL},
    {"Azure ML, PyTorch, 1 host",
     "AZUREML_RUN_ID=r1 AZUREML_NODE_COUNT=1 AZ_BATCH_HOST_LIST=10.0.0.4 MASTER_ADDR=10.0.0.4 "
     "MASTER_PORT=6105 WORLD_SIZE=4 NODE_RANK=0 RANK=3 LOCAL_RANK=3",
     3, 4, 3, 4, 1, "torchrun", "10.0.0.4:6106", NULL},
    {"Azure ML, PyTorch, no count of hosts",
     "MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=8 NODE_RANK=1 RANK=5 LOCAL_RANK=1", 5, 8, 1,
     0, 0, "torchrun", "10.0.0.4:6106", NULL},
    {"Azure ML, MPI, 2 hosts of 4",
     "AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 "
     "AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 "
     "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=4",
     5, 8, 1, 4, 0, "Open MPI", "10.0.0.4:6105", NULL},
    {"Azure ML, TensorFlow, with a parameter server",
     "AZUREML_EXPERIMENT_ID=e1 "
     "TF_CONFIG={\"cluster\":{\"chief\":[\"10.0.0.4:2222\"],\"ps\":[\"10.0.0.7:2222\"],\"worker\":["
     "\"10.0.0.5:2222\",\"10.0.0.6:2222\"]},\"task\":{\"type\":\"worker\",\"index\":1},"
     "\"environment\":\"cloud\"}",
     2, 3, 0, 1, 0, "TF_CONFIG", "10.0.0.4:2222", NULL},
    {"Kubeflow 1, one process a pod",
     "MASTER_ADDR=job-master-0 MASTER_PORT=23456 RANK=2 WORLD_SIZE=3 "
     "PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456 PET_NNODES=3 PET_NODE_RANK=2 "
     "PET_NPROC_PER_NODE=1",
     2, 3, 0, 1, 3, "Kubeflow", "job-master-0:23457", NULL},
    {"Kubeflow 1, no number of the pod but RANK",
     "MASTER_ADDR=m MASTER_PORT=23456 RANK=0 WORLD_SIZE=3 PET_NNODES=3 PET_NPROC_PER_NODE=1", 0, 3,
     0, 1, 3, "Kubeflow", "m:23457", NULL},
    {"Kubeflow 1, one process a pod, no number of pods but WORLD_SIZE",
     "RANK=1 WORLD_SIZE=2 PET_NPROC_PER_NODE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=23456", 1, 2, 0, 1,
     2, "Kubeflow", "10.0.0.1:23457", NULL},
    {"Kubeflow 1, elastic, one process a pod",
     "PET_NNODES=1:3 PET_NPROC_PER_NODE=1 RANK=1 WORLD_SIZE=3 MASTER_ADDR=m MASTER_PORT=23456", 1,
     3, 0, 1, 3, "Kubeflow", "m:23457", NULL},
    {"Kubeflow 1, torchrun with more processes in its pods",
     "PET_NPROC_PER_NODE=1 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=m "
     "MASTER_PORT=23456",
     5, 8, 1, 4, 0, "torchrun", "m:23457", NULL},
    {"Kubeflow 2, one process a pod",
     "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job "
     "PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1",
     1, 2, 0, 1, 2, "Kubeflow", "job-node-0-0.job:29501", NULL},
    {"Kubeflow 2, torchrun with more processes in its pods",
     "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1 PET_MASTER_ADDR=n PET_MASTER_PORT=29500 "
     "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_WORLD_SIZE=2 MASTER_ADDR=n "
     "MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none",
     5, 8, 1, 4, 2, "torchrun", "n:29501", NULL},
    {"srun, hosts with different numbers of tasks",
     "SLURM_JOB_ID=812 SLURM_STEP_ID=0 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NODEID=2 "
     "SLURM_NTASKS=11 SLURM_STEP_NUM_TASKS=11 SLURM_STEP_NUM_NODES=3 "
     "SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_STEP_NODELIST=n[07-09] SLURM_JOB_NODELIST=n[07-09] "
     "SLURM_LAUNCH_NODE_IPADDR=10.1.0.2",
     9, 11, 1, 3, 3, "Slurm", "n07:21321", ".Slurm.812.0"},
    {"srun, with WORLD_SIZE and MASTER_* exported by its script",
     "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 WORLD_SIZE=4 "
     "MASTER_ADDR=n1 MASTER_PORT=29500",
     1, 4, -1, 0, 0, "Slurm", "n1:29501", ".Slurm.1.0"},
    {"torchrun, started again",
     "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
     "ROLE_RANK=6 ROLE_WORLD_SIZE=8 ROLE_NAME=default MASTER_ADDR=node-0 MASTER_PORT=42317 "
     "TORCHELASTIC_RUN_ID=j7 TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_MAX_RESTARTS=3 "
     "TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1",
     6, 8, 2, 4, 2, "torchrun", "node-0:42318", ".torchrun.j7:node-0:42317"},
    {"DeepSpeed's launcher", DEEPSPEED, 11, 16, 3, 8, 2, "torchrun", "10.0.0.1:29501", NULL},
    {"Intel MPI, 2 hosts of 4",
     "PMI_RANK=5 PMI_SIZE=8 PMI_FD=11 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 I_MPI_MPIRUN=mpirun "
     "I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_FABRICS=shm:ofi GFORTRAN_UNBUFFERED_PRECONNECTED=y",
     5, 8, 1, 4, 0, "MPICH", NULL, ".parent."},
    {"MPICH, 2 hosts, MASTER_* by hand",
     "PMI_RANK=5 PMI_SIZE=8 PMI_FD=11 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 PBS_JOBID=17.head "
     "MASTER_ADDR=n1 MASTER_PORT=29500",
     5, 8, 1, 4, 0, "MPICH", "n1:29501", NULL},
    {"MVAPICH2, mpirun_rsh",
     "MV2_COMM_WORLD_RANK=5 MV2_COMM_WORLD_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=1 "
     "MV2_COMM_WORLD_LOCAL_SIZE=4 PMI_ID=5 PMI_SIZE=8 PMI_PORT=n1:4000 MPISPAWN_ID=1",
     5, 8, 1, 4, 0, "MVAPICH2", NULL, NULL},
    {"MVAPICH2, PMI_ID only", "PMI_ID=5 PMI_SIZE=8 PMI_PORT=n1:4000", 5, 8, -1, 0, 0, "MPICH", NULL,
     NULL},
    {"Flux, 2 hosts of 4", FLUX " FLUX_JOB_NNODES=2 PMI_RANK=5 PMI_SIZE=8 PMI_FD=9 PMI_SPAWNED=0",
     5, 8, 1, 0, 2, "Flux", NULL, ".Flux.f23r45t"},
    {"Flux, -o pmi=none", FLUX " FLUX_JOB_NNODES=2", 5, 8, 1, 0, 2, "Flux", NULL, ".Flux.f23r45t"},
    {"Flux, 1 host",
     "FLUX_JOB_ID=f2 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_TASK_RANK=1 "
     "FLUX_TASK_LOCAL_ID=1",
     1, 2, 1, 2, 1, "Flux", NULL, ".Flux.f2"},
    {"mpiexec of MPICH inside of a task of Flux",
     "FLUX_JOB_ID=f2 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=1 PMI_RANK=3 PMI_SIZE=4 "
     "MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
     3, 4, 1, 2, 0, "MPICH", NULL, NULL},
    {"PALS with cray-mpich", PALS " PMI_RANK=5 PMI_SIZE=8 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4", 5, 8,
     1, 4, 0, "PALS", NULL, ".PALS.3-4"},
    {"PALS, PMI says how many ranks there are", PALS " PMI_SIZE=8", 5, 8, 1, 4, 0, "PALS", NULL,
     ".PALS.3-4"},
    {"mpiexec of MPICH inside of a task of PALS",
     "PALS_RANKID=1 PALS_LOCAL_SIZE=1 PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", 3,
     4, 1, 2, 0, "MPICH", NULL, NULL},
    {"DeepSpeed by mpiexec",
     "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_SIZE=4 PMI_RANK=5 PMI_SIZE=8 MASTER_ADDR=n1 "
     "MASTER_PORT=29500",
     5, 8, 1, 4, 0, "torchrun", "n1:29501", NULL},
    {"Intel MPI with WORLD_SIZE and LOCAL_SIZE exported",
     "WORLD_SIZE=8 LOCAL_SIZE=4 PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4", 5, 8, 1,
     4, 0, "MPICH", NULL, NULL},
    {"cray-mpich under srun",
     "PMI_RANK=5 PMI_SIZE=8 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4 SLURM_JOB_ID=1 SLURM_STEP_ID=2 "
     "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8",
     5, 8, 1, 4, 0, "MPICH", NULL, ".Slurm.1.2"},
    {"PMIx beside Open MPI 5",
     "PMIX_RANK=1 PMIX_NAMESPACE=prterun-1 PMIX_HOSTNAME=n1 OMPI_COMM_WORLD_RANK=1 "
     "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "OMPI_COMM_WORLD_NODE_RANK=1",
     1, 2, 1, 2, 1, "Open MPI", NULL, ".Open-MPI.prterun-1"},
    {"SageMaker's smddp: mpirun on 2 hosts",
     "OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=8 SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 "
     "SM_NUM_GPUS=8 TRAINING_JOB_NAME=t1",
     9, 16, 1, 8, 0, "Open MPI", "algo-1:7777", NULL},
    {"jsrun",
     "JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 PMIX_NAMESPACE=x9 "
     "PMIX_RANK=3 LSB_JOBID=1234567",
     3, 4, 1, 0, 0, "jsrun", NULL, ".jsrun.x9"},
    {"any launcher inside of AWS Batch",
     "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 " DEEPSPEED, 11, 16, 3, 8, 2, "torchrun",
     "10.0.0.1:29501", NULL},
    {"by hand, where a platform says too little",
     "PALS_RANKID=3 PMIX_RANK=3 ZERO_RANK=3 ZERO_WORLD_SIZE=8 ZERO_MASTER_ADDR=n1 "
     "ZERO_MASTER_PORT=4000",
     3, 8, -1, 0, 0, "zero-run", "n1:4000", NULL},
    {"alone by hand, where a platform has several hosts",
     "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 PMIX_RANK=1 ZERO_RANK=0 "
     "ZERO_WORLD_SIZE=1",
     0, 1, -1, 0, 0, "zero-run", NULL, NULL},
};

static void check_master(const struct placed *want, char *const *environment)
{
    struct boot_master master;
    struct base_error error = {.result = ZERO_OK};
    const zero_result result = boot_find_master(&master, environment, &error);
    char found[BOOT_ADDRESS_BYTES + 16] = "";
    if (!result)
        snprintf(found, sizeof found, "%s:%d", master.address, master.port);
    if (want->master ? strcmp(found, want->master) != 0 : !result)
        fail_msg("%s: rank 0 is at %s%s", want->name, found, error.message);
}

static void places_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct placed *want = &places[i];
        struct environment made;
        char *const *environment = environment_of(&made, want->variables);
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK};
        if (boot_discover(&place, environment, &error))
            fail_msg("%s: %s", want->name, error.message);
        if (place.rank != want->rank || place.world != want->world ||
            place.local_rank != want->local_rank || place.local_world != want->local_world ||
            place.hosts != want->hosts || strcmp(place.launcher, want->launcher))
            fail_msg("%s: %s says rank %d of %d, here %d of %d, %d hosts", want->name,
                     place.launcher, place.rank, place.world, place.local_rank, place.local_world,
                     place.hosts);
        if (want->job && !strstr(place.job, want->job))
            fail_msg("%s: job %s", want->name, place.job);
        check_master(want, environment);
    }
}

/* ------------------------------------------------------------------ one of many, or of hosts */

struct refused {
    const char *variables;
    const char *named; // a part of the message
    const char *host;  // what is explained of the host; NULL: nothing
};

static const struct refused refusals[] = {
    // Hosts, whose ranks a launcher has to start yet.
    {"SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8 "
     "SM_NETWORK_INTERFACE_NAME=eth0 SM_MODEL_DIR=/opt/ml/model",
     "SM_HOSTS", "host         1 of 2, ranks of each 8, "},
    {"PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job "
     "PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1",
     "PET_NNODES=2", "host         1 of 2, ranks of each 4, "},
    {"JOB_COMPLETION_INDEX=3 KUBERNETES_SERVICE_HOST=10.96.0.1 HOSTNAME=train-3",
     "JOB_COMPLETION_INDEX=3", "host         3 of unknown, ranks of each unknown, "},
    {"RANK=1 WORLD_SIZE=8 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 MASTER_ADDR=m "
     "MASTER_PORT=23456",
     "PET_NNODES=2, PET_NODE_RANK=1, PET_NPROC_PER_NODE=4",
     "host         1 of 2, ranks of each 4, "},
    {"RANK=1 WORLD_SIZE=2 PET_NPROC_PER_NODE=4 MASTER_ADDR=m MASTER_PORT=23456",
     "PET_NPROC_PER_NODE=4", "host         unknown of unknown, ranks of each 4, "},
    {"PET_NNODES=1:3 PET_NPROC_PER_NODE=1 RANK=1 WORLD_SIZE=4", "PET_NNODES=1:3", NULL},
    {"PET_NNODES=1:3 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1", "PET_NNODES=1:3", NULL},
    {"PET_NPROC_PER_NODE=1 RANK=1 WORLD_SIZE=3 PET_NODE_RANK=2", "PET_NODE_RANK=2", NULL},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=m MASTER_PORT=23456 NPROC_PER_NODE=8", "RANK=1, WORLD_SIZE=2",
     "host         1 of 2, ranks of each 8, "},
    {"VC_TASK_INDEX=0 VK_TASK_INDEX=0 VC_WORKER_NUM=2 VC_WORKER_HOSTS=w-0,w-1", "VC_WORKER_NUM=2",
     "host         0 of 2, "},
    {"VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=1", "VC_MASTER_NUM=1, VC_WORKER_NUM=1",
     "host         unknown of 2, "},
    {"VK_WORKER_NUM=3 VK_WORKER_HOSTS=w-0,w-1,w-2", "VK_WORKER_NUM=3", "host         unknown of 3"},
    {"AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=0 "
     "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
     "AWS_BATCH_JOB_NUM_NODES=2", "host         1 of 2, "},
    {"AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_NUM_NODES=2", "host         unknown of 2, "},
    {"AWS_BATCH_JOB_NUM_NODES=two", "AWS_BATCH_JOB_NUM_NODES=two", NULL},
    {"AZUREML_NODE_COUNT=2 AZUREML_CR_NODE_RANK=0", "AZUREML_NODE_COUNT=2", "host         0 of 2"},
    {"AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5", "AZ_BATCH_HOST_LIST", "host         unknown of 2, "},
    {"SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=4", "SKYPILOT_NUM_NODES=4", "host         0 of 4, "},
    {"NODE_RANK=0 NNODES=2", "NNODES=2", "host         0 of 2, "},
    {"NODE_RANK=1", "NODE_RANK=1", NULL},
    {"JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0", "JAX_NUM_PROCESSES=2", "host         0 of 2, "},
    {"FLUX_JOB_NNODES=2", "FLUX_JOB_NNODES=2", NULL},
    {"PET_NODE_RANK=0 PET_MASTER_ADDR=m", "PET_NODE_RANK=0", NULL},
    {"PET_NNODES=1 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1", "PET_NODE_RANK=1", NULL},
    {"SM_HOSTS=[\"algo-1\"] JOB_COMPLETION_INDEX=2", "JOB_COMPLETION_INDEX=2", NULL},
    // Ranks of a launcher that does not say of how many.
    {PALS " PALS_PMI=pmix PMIX_RANK=5 PMIX_NAMESPACE=p", "PALS_RANKID=5", NULL},
    {"PALS_RANKID=0 PALS_LOCAL_SIZE=1", "PALS_RANKID=0", NULL},
    {"PALS_LOCAL_SIZE=2", "PALS_LOCAL_SIZE=2", NULL},
    {"PALS_APID=3-4", "PALS_APID=3-4", NULL},
    {"PALS_RANKID=1 SM_HOSTS=[\"algo-1\"]", "PALS_RANKID=1", NULL},
    {"PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_RANK=0", NULL},
    {"PMIX_RANK=2 RANK=0 WORLD_SIZE=1", "PMIX_RANK=2", NULL},
    {"FLUX_TASK_RANK=1", "FLUX_TASK_RANK=1", NULL},
    {"FLUX_JOB_SIZE=2 FLUX_JOB_ID=f1", "FLUX_JOB_SIZE=2", NULL},
    {"PMI_ID=3 PMI_PORT=n1:4000", "PMI_ID=3 is set, but PMI_SIZE is not", NULL},
    {"PMI_FD=7", "PMI_FD=7", NULL},
    {"MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0", NULL},
    {"MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_RANK=0", NULL},
    {"MV2_COMM_WORLD_LOCAL_RANK=0", "MV2_COMM_WORLD_LOCAL_RANK=0", NULL},
    {"OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0", NULL},
    {"HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1", "HOROVOD_LOCAL_RANK=0", NULL},
    {"TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RUN_ID=none", NULL},
    {"LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4", NULL},
    {"LOCAL_SIZE=4 CROSS_RANK=0", "LOCAL_SIZE=4", NULL},
    {"SLURM_PROCID=3 SLURM_NTASKS=4", "SLURM_PROCID=3", NULL},
    {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=4", "SLURM_STEP_ID=0", NULL},
    {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=4", NULL},
    {"JAX_COORDINATOR_ADDRESS=n1:1", "JAX_COORDINATOR_ADDRESS=n1:1", NULL},
    {"MLX_RANK=0", "MLX_RANK=0", NULL},
    {"DMLC_TASK_ID=0 DMLC_NUM_WORKER=2", "DMLC_NUM_WORKER=2", NULL},
    {"PADDLE_TRAINER_ID=1 PADDLE_TRAINERS_NUM=2", "PADDLE_TRAINERS_NUM=2", NULL},
    {"ALPS_APP_PE=0", "ALPS_APP_PE=0", NULL},
    {"PBS_VNODENUM=1 PBS_NODENUM=0", "PBS_VNODENUM=1", NULL},
    {"HOROVOD_CROSS_SIZE=2", "HOROVOD_CROSS_SIZE=2", NULL},
    {"NEURON_PJRT_PROCESS_INDEX=0 NEURON_PJRT_PROCESSES_NUM_DEVICES=64,64",
     "NEURON_PJRT_PROCESSES_NUM_DEVICES", NULL},
    // One rank, says one; of many, says another.
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 PALS_RANKID=3", "PALS_RANKID=3", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE=1 "
     "AWS_BATCH_JOB_NUM_NODES=4",
     "AWS_BATCH_JOB_NUM_NODES=4", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 AZUREML_NODE_COUNT=2", "AZUREML_NODE_COUNT=2", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none OMPI_COMM_WORLD_RANK=1 "
     "OMPI_COMM_WORLD_SIZE=4",
     "OMPI_COMM_WORLD_SIZE=4", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1",
     "PET_NNODES=2", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_HOSTS", NULL},
    {ONE_RANK "JOB_COMPLETION_INDEX=1", "JOB_COMPLETION_INDEX=1", NULL},
    {ONE_RANK "NODE_RANK=1", "NODE_RANK=1", NULL},
    {ONE_RANK "GROUP_RANK=1", "GROUP_RANK=1", NULL},
    {ONE_RANK "CROSS_RANK=1", "CROSS_RANK=1", NULL},
    {ONE_RANK "LWS_WORKER_INDEX=1", "LWS_WORKER_INDEX=1", NULL},
    {ONE_RANK "SKYPILOT_NODE_RANK=1", "SKYPILOT_NODE_RANK=1", NULL},
    {ONE_RANK "VC_TASK_INDEX=1", "VC_TASK_INDEX=1", NULL},
    {ONE_RANK "AZUREML_CR_NODE_RANK=1", "AZUREML_CR_NODE_RANK=1", NULL},
    {ONE_RANK "AWS_BATCH_JOB_NODE_INDEX=1", "AWS_BATCH_JOB_NODE_INDEX=1", NULL},
    {ONE_RANK "SLURM_NODEID=1", "SLURM_NODEID=1", NULL},
    {ONE_RANK "SLURM_PROCID=1 SLURM_NTASKS=2", "SLURM_PROCID=1", NULL},
    {ONE_RANK "SLURM_JOB_ID=7 SLURM_STEP_ID=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
     "SLURM_PROCID=1", NULL},
    {ONE_RANK "LSF_PM_TASKID=2", "LSF_PM_TASKID=2", NULL},
    {"LSF_PM_TASKID=2 LSB_JOBID=3", "LSF_PM_TASKID=2", NULL},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 JOB_COMPLETION_INDEX=3",
     "JOB_COMPLETION_INDEX=3", NULL},
    // Two that say different things of one process.
    {"RANK=2 WORLD_SIZE=3 PET_NNODES=4 PET_NODE_RANK=2 PET_NPROC_PER_NODE=1", "PET_NNODES=4", NULL},
    {"WORLD_SIZE=8 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4", "WORLD_SIZE=8", NULL},
    {"ZERO_RANK=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "ZERO_WORLD_SIZE is not", NULL},
};

// What the message says to set for a process that is to train alone.
static void try_advice(const char *variables)
{
    char text[ENVIRONMENT_BYTES];
    struct environment made;
    struct boot_place place;
    struct base_error error = {.result = ZERO_OK};
    snprintf(text, sizeof text, "%s ZERO_RANK=0 ZERO_WORLD_SIZE=1", variables);
    if (boot_discover(&place, environment_of(&made, text), &error))
        fail_msg("%s: %s", text, error.message);
    assert_int_equal(place.world, 1);
}

static void parts_of_jobs_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refused *want = &refusals[i];
        struct environment made;
        char *const *environment = environment_of(&made, want->variables);
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK}, alone = {.result = ZERO_OK};
        if (boot_discover(&place, environment, &error) != ZERO_E_INVALID)
            fail_msg("%s: rank %d of %d", want->variables, place.rank, place.world);
        if (!strstr(error.message, want->named))
            fail_msg("%s: %s", want->variables, error.message);
        if (strstr(error.message, "ZERO_RANK and") || strstr(error.message, "ZERO_RANK=0"))
            try_advice(want->variables);
        if (strlen(error.message) + 1 == sizeof error.message)
            fail_msg("%s: the message is cut: %s", want->variables, error.message);
        if (!boot_check_alone(environment, &alone))
            fail_msg("%s: zero-run would start ranks", want->variables);
        char text[4096];
        boot_explain(NULL, environment, text, sizeof text);
        if ((!strstr(text, "error        ") && !strstr(text, "no rank      ") &&
             !strstr(text, "rank         asked of PMIx")) ||
            (want->host && !strstr(text, want->host)))
            fail_msg("%s: %s", want->variables, text);
    }
}

/* ------------------------------------------------------------------ alone */

// What is left of a launcher, or says that there is one process, is harmless.
static const struct {
    const char *variables;
} lonely[] = {
    {"HOME=/root TERM=xterm"},
    {"SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NNODES=2 "
     "SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE=2(x2)"},
    {"SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=9 SLURM_JOB_ID=77 SLURM_PROCID=0"},
    {"KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_PORT=tcp://10.96.0.1:443 HOSTNAME=train-0"},
    {"MASTER_ADDR=localhost MASTER_PORT=29500"},
    {"NODE_RANK=0"},
    {"NODE_RANK=worker NNODES=some"},
    {"NNODES=1 NODE_RANK=0"},
    {"AZUREML_RUN_ID=r AZUREML_NODE_COUNT=1 AZUREML_CR_NODE_RANK=0 AZ_BATCH_HOST_LIST=10.0.0.4"},
    {"AWS_BATCH_JOB_NUM_NODES=1 AWS_BATCH_JOB_NODE_INDEX=0"},
    {"AWS_BATCH_JOB_ID=1 AWS_BATCH_JOB_ARRAY_INDEX=3"},
    {"SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1 SM_NUM_GPUS=8"},
    {"PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1 JOB_COMPLETION_INDEX=0"},
    {"VC_TASK_INDEX=0 VC_TRAIN_NUM=1 VC_TRAIN_HOSTS=t-0"},
    {"VC_BUILD_NUM=1234"},
    {"SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1"},
    {"TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=localhost"},
    {"DMLC_TASK_ID=0 DMLC_NUM_WORKER=1"},
    {"NEURON_PJRT_PROCESS_INDEX=0 NEURON_PJRT_PROCESSES_NUM_DEVICES=64"},
    {"PBS_JOBID=1.head PBS_NODEFILE=/var/spool/pbs/1 PBS_NODENUM=0 PBS_TASKNUM=1"},
    {"LSB_JOBID=3 LSB_DJOB_NUMPROC=8 LSB_JOBINDEX=2"},
    {"FLUX_URI=local:///run/flux/local FLUX_ENCLOSING_ID=f1"},
    {"I_MPI_ROOT=/opt/intel MPI_HOME=/usr OMPI_MCA_btl=tcp,self PMIX_INSTALL_PREFIX=/usr"},
    {"HOROVOD_TIMELINE=/tmp/t HOROVOD_FUSION_THRESHOLD=1"},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMIX_RANK=0"},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 JOB_COMPLETION_INDEX=0"},
    // The numbers of the daemon that has started the rank.
    {ONE_RANK "OMPI_COMM_WORLD_NODE_RANK=2 SLURM_JOB_ID=7 SLURM_STEP_ID=4 SLURM_PROCID=0 "
              "SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=2"},
    {ONE_RANK "SLURM_JOB_ID=7 SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=9 SLURM_PROCID=0 "
              "SLURM_NODEID=0 SLURM_NTASKS=4"},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
     "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=9"},
    {ONE_RANK "NODE_RANK=0 GROUP_RANK=0 CROSS_RANK=0 LWS_WORKER_INDEX=0 SKYPILOT_NODE_RANK=0 "
              "VC_TASK_INDEX=0 AZUREML_CR_NODE_RANK=0 JOB_COMPLETION_INDEX=0"},
    {ONE_RANK "LSB_JOBID=3 LSF_PM_TASKID=1"},
    {"LSF_PM_TASKID=1"},
};

static void the_only_process_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lonely / sizeof *lonely; i++) {
        struct environment made;
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK};
        if (boot_discover(&place, environment_of(&made, lonely[i].variables), &error))
            fail_msg("%s: %s", lonely[i].variables, error.message);
        if (place.rank != 0 || place.world != 1)
            fail_msg("%s: rank %d of %d", lonely[i].variables, place.rank, place.world);
    }
}

/* ------------------------------------------------------------------ where rank 0 is */

static void lsf_has_a_list_of_hosts(void **state)
{
    (void)state;
    char path[] = "/tmp/zero-rankfile-XXXXXX", text[512];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char hosts[] = "batch5\nh21n02\nh21n02\nh22n01\n";
    assert_int_equal(write(fd, hosts, strlen(hosts)), strlen(hosts));
    close(fd);
    snprintf(text, sizeof text,
             "LSB_DJOB_RANKFILE=%s LSB_JOBID=1234567 JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4",
             path);
    struct environment made;
    struct boot_master master;
    assert_int_equal(boot_find_master(&master, environment_of(&made, text), NULL), ZERO_OK);
    assert_string_equal(master.address, "h21n02");
    assert_int_equal(master.port, 10567);
    unlink(path);
    // A list that is not there says nothing.
    assert_int_equal(boot_find_master(&master, environment_of(&made, text), NULL), ZERO_E_INVALID);
}

static void hosts_are_explained(void **state)
{
    (void)state;
    struct environment made;
    char text[4096];
    boot_explain(NULL, environment_of(&made, FLUX " FLUX_JOB_NNODES=2"), text, sizeof text);
    assert_non_null(strstr(text, "on this host 1 of unknown\nhosts        2\nlauncher     Flux\n"));
    assert_non_null(strstr(text, "rank 0 is at unknown: no variable says where rank 0 is"));
    boot_explain(NULL, environment_of(&made, "PMI_RANK=1 PMI_SIZE=2"), text, sizeof text);
    assert_non_null(strstr(text, "rank 0 is at unknown: only ranks of this host can meet; "));
    boot_explain(NULL,
                 environment_of(&made, "AZ_BATCHAI_MPI_MASTER_NODE=h OMPI_COMM_WORLD_RANK=1 "
                                       "OMPI_COMM_WORLD_SIZE=2"),
                 text, sizeof text);
    assert_non_null(strstr(text, "rank 0 is at port 54965 of h, from AZ_BATCHAI_MPI_MASTER_NODE"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_found),      cmocka_unit_test(parts_of_jobs_are_refused),
        cmocka_unit_test(the_only_process_runs), cmocka_unit_test(lsf_has_a_list_of_hosts),
        cmocka_unit_test(hosts_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
