#include "tests/unit/boot_sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

size_t boot_name_length(const char *variable)
{
    return strcspn(variable, "=") + 1;
}

void boot_environment_add(struct boot_environment *made, const char *variables, bool replace)
{
    char *at = made->bytes + made->used;
    made->used += strlen(variables) + 1;
    assert_true(made->used <= sizeof made->bytes);
    strcpy(at, variables);
    for (char *one = strtok(at, " "); one; one = strtok(NULL, " ")) {
        int place = 0;
        while (place < made->count && strncmp(made->list[place], one, boot_name_length(one)) != 0)
            place++;
        assert_true(place < BOOT_SET_VARIABLES - 1);
        if (place == made->count || replace)
            made->list[place] = one;
        made->count += place == made->count;
    }
    made->list[made->count] = NULL;
}

void boot_environment_make(struct boot_environment *made, const char *variables, const char *others)
{
    *made = (struct boot_environment){.count = 0};
    boot_environment_add(made, variables, true);
    if (others)
        boot_environment_add(made, others, true);
}

/* ------------------------------------------------------------------ answers */

void boot_ask_library(char answer[BOOT_ANSWER_BYTES], char *const *environment)
{
    struct boot_place place;
    struct boot_master master;
    struct base_error error = {.result = ZERO_OK};
    if (boot_discover(&place, environment, &error)) {
        snprintf(answer, BOOT_ANSWER_BYTES, "! %s", error.message);
        return;
    }
    char local[2][16] = {"?", "?"}, hosts[16] = "?", address[BOOT_ADDRESS_BYTES + 8] = "?";
    if (place.local_rank >= 0)
        snprintf(local[0], sizeof local[0], "%d", place.local_rank);
    if (place.local_world)
        snprintf(local[1], sizeof local[1], "%d", place.local_world);
    if (place.hosts)
        snprintf(hosts, sizeof hosts, "%d", place.hosts);
    if (!boot_find_master(&master, environment, NULL))
        snprintf(address, sizeof address, "%s:%d", master.address, master.port);
    snprintf(answer, BOOT_ANSWER_BYTES, "rank %d of %d, %s of %s here, %s hosts, %s", place.rank,
             place.world, local[0], local[1], hosts, address);
}

void boot_ask_zero_run(char answer[BOOT_ANSWER_BYTES], const struct boot_hosts_given *given,
                       char *const *environment)
{
    struct boot_hosts hosts;
    struct base_error error = {.result = ZERO_OK};
    if (boot_find_hosts(&hosts, given, environment, &error))
        snprintf(answer, BOOT_ANSWER_BYTES, "! %s", error.message);
    else if (hosts.hosts == 1)
        snprintf(answer, BOOT_ANSWER_BYTES, "alone, %d ranks, %d restarts", hosts.ranks,
                 hosts.restarts);
    else
        snprintf(answer, BOOT_ANSWER_BYTES, "host %d of %d, %d ranks, %s:%d, job %s, %d restarts",
                 hosts.host, hosts.hosts, hosts.ranks,
                 *hosts.master.address ? hosts.master.address : "any", hosts.master.port,
                 *hosts.job ? hosts.job : "?", hosts.restarts);
}

// Whether an answer is the one that is wanted: "! TEXT" wants a message with TEXT in it.
static bool is_as(const char *answer, const char *want)
{
    if (*want == '!')
        return *answer == '!' && strstr(answer, want + 2);
    return !strcmp(answer, want);
}

void boot_check_answer(const char *name, const char *what, const char *answer, const char *want)
{
    if (!is_as(answer, want))
        fail_msg("%s, %s: '%s' instead of '%s'", name, what, answer, want);
    if (*answer == '!' && strlen(answer) + 1 >= sizeof((struct base_error *)0)->message)
        fail_msg("%s, %s: the message is cut: %s", name, what, answer);
}

/* ------------------------------------------------------------------ the sets */

const struct boot_set boot_sets[] = {
    // Those that start ranks.
    {.name = "azureml-pytorch-2x4",
     .variables =
         "AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r1 AZUREML_NODE_COUNT=2 "
         "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=8 "
         "NODE_RANK=1 RANK=5 LOCAL_RANK=1",
     .first = "NODE_RANK=0 RANK=0 LOCAL_RANK=0",
     .library = "rank 5 of 8, 1 of ? here, 2 hosts, 10.0.0.4:6106",
     .zero_run = BOOT_STARTED("torchrun")},
    {.name = "azureml-mpi-2x4",
     .variables = "AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 "
                  "AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 "
                  "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                  "OMPI_COMM_WORLD_LOCAL_SIZE=4",
     .first = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0",
     .library = "rank 5 of 8, 1 of 4 here, ? hosts, 10.0.0.4:6105",
     .zero_run = BOOT_STARTED("Open MPI")},
    {.name = "slurm-srun-uneven",
     .variables = "SLURM_JOB_ID=812 SLURM_STEP_ID=0 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NODEID=2 "
                  "SLURM_NTASKS=11 SLURM_STEP_NUM_TASKS=11 SLURM_STEP_NUM_NODES=3 "
                  "SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_STEP_NODELIST=n[07-09] "
                  "SLURM_JOB_NODELIST=n[07-09] SLURM_LAUNCH_NODE_IPADDR=10.1.0.2",
     .first = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
     .library = "rank 9 of 11, 1 of 3 here, 3 hosts, n07:21321",
     .zero_run = BOOT_STARTED("Slurm")},
    {.name = "torchrun-elastic-restarted",
     .variables =
         "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
         "ROLE_RANK=6 ROLE_WORLD_SIZE=8 ROLE_NAME=default MASTER_ADDR=node-0 MASTER_PORT=42317 "
         "TORCHELASTIC_RUN_ID=j7 TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_MAX_RESTARTS=3 "
         "TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1",
     .first = "RANK=0 LOCAL_RANK=0 GROUP_RANK=0 ROLE_RANK=0",
     .library = "rank 6 of 8, 2 of 4 here, 2 hosts, node-0:42318",
     .zero_run = BOOT_STARTED("torchrun")},
    {.name = "deepspeed-launcher-2x8",
     .variables = "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=16 CROSS_RANK=1 CROSS_SIZE=2 "
                  "LOCAL_SIZE=8 RANK=11 LOCAL_RANK=3 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
     .first = "CROSS_RANK=0 RANK=0 LOCAL_RANK=0",
     .library = "rank 11 of 16, 3 of 8 here, 2 hosts, 10.0.0.1:29501",
     .zero_run = BOOT_STARTED("torchrun")},
    {.name = "intel-mpi-hydra-2x4",
     .variables = "PMI_RANK=5 PMI_SIZE=8 PMI_FD=11 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 "
                  "I_MPI_MPIRUN=mpirun I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_FABRICS=shm:ofi "
                  "GFORTRAN_UNBUFFERED_PRECONNECTED=y",
     .first = "PMI_RANK=0 MPI_LOCALRANKID=0",
     .library = "rank 5 of 8, 1 of 4 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("MPICH")},
    {.name = "flux-run-2x4",
     .variables = "FLUX_JOB_ID=f23r45t FLUX_JOB_SIZE=8 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=5 "
                  "FLUX_TASK_LOCAL_ID=1 FLUX_URI=local:///run/flux/local PMI_RANK=5 PMI_SIZE=8 "
                  "PMI_FD=9 PMI_SPAWNED=0",
     .first = "FLUX_TASK_RANK=0 FLUX_TASK_LOCAL_ID=0 PMI_RANK=0",
     .library = "rank 5 of 8, 1 of ? here, 2 hosts, ?",
     .zero_run = BOOT_STARTED("Flux")},
    {.name = "lsf-jsrun",
     .variables = "JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 "
                  "JSM_NAMESPACE_LOCAL_SIZE=2 PMIX_NAMESPACE=x9 PMIX_RANK=3 LSB_JOBID=1234567",
     .first = "JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_LOCAL_RANK=0 PMIX_RANK=0",
     .library = "rank 3 of 4, 1 of 2 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("jsrun")},
    {.name = "ray-train",
     .variables = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 "
                  "MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
     .first = "RANK=0 LOCAL_RANK=0",
     .library = "rank 1 of 4, 1 of 2 here, ? hosts, 10.0.0.1:4001",
     .zero_run = BOOT_STARTED("torchrun")},
    {.name = "spark-barrier-task",
     .variables = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=1 "
                  "MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
     .first = "RANK=0 NODE_RANK=0",
     .library = "rank 1 of 2, 0 of 1 here, ? hosts, 10.0.0.1:4001",
     .zero_run = BOOT_STARTED("torchrun")},
    {.name = "horovod-elastic",
     .variables = "HOROVOD_RANK=5 HOROVOD_SIZE=6 HOROVOD_LOCAL_RANK=2 HOROVOD_LOCAL_SIZE=3 "
                  "HOROVOD_CROSS_RANK=1 HOROVOD_CROSS_SIZE=2 HOROVOD_ELASTIC=1 "
                  "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.1.1 HOROVOD_GLOO_RENDEZVOUS_PORT=4444",
     .first = "HOROVOD_RANK=0 HOROVOD_LOCAL_RANK=0 HOROVOD_CROSS_RANK=0",
     .library = "rank 5 of 6, 2 of 3 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("Horovod")},
    {.name = "mpirun-in-sbatch",
     .variables = "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NODEID=0 "
                  "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                  "OMPI_COMM_WORLD_LOCAL_SIZE=2",
     .first = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0",
     .library = "rank 3 of 4, 1 of 2 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("Open MPI")},
    {.name = "cray-pals-mpich",
     .variables = "PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4 PALS_NODEID=1 PALS_APID=3-4 "
                  "PALS_DEPTH=1 PMI_RANK=5 PMI_SIZE=8 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4",
     .first = "PALS_RANKID=0 PALS_LOCAL_RANKID=0 PALS_NODEID=0 PMI_RANK=0 PMI_LOCAL_RANK=0",
     .library = "rank 5 of 8, 1 of 4 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("PALS")},
    {.name = "cray-pals-pmix-no-size",
     .variables = "PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4 PALS_NODEID=1 PALS_APID=3-4 "
                  "PALS_DEPTH=1 PALS_PMI=pmix PMIX_RANK=5 PMIX_NAMESPACE=p",
     .first = "PALS_RANKID=0 PALS_LOCAL_RANKID=0 PALS_NODEID=0 PMIX_RANK=0",
     .library = "! PALS_RANKID=5",
     .zero_run = "! PALS_RANKID=5"},
    {.name = "mvapich2-mpirun-rsh",
     .variables = "MV2_COMM_WORLD_RANK=5 MV2_COMM_WORLD_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=1 "
                  "MV2_COMM_WORLD_LOCAL_SIZE=4 PMI_ID=5 PMI_SIZE=8 PMI_PORT=n1:4000",
     .first = "MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_LOCAL_RANK=0 PMI_ID=0",
     .library = "rank 5 of 8, 1 of 4 here, ? hosts, ?",
     .zero_run = BOOT_STARTED("MVAPICH2")},
    {.name = "sagemaker-smddp",
     .variables =
         "OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=8 SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 "
         "SM_NUM_GPUS=8 SMDATAPARALLEL_SERVER_ADDR=algo-1 SMDATAPARALLEL_SERVER_PORT=7592",
     .first = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 SM_CURRENT_HOST=algo-1",
     .library = "rank 9 of 16, 1 of 8 here, ? hosts, algo-1:7777",
     .zero_run = BOOT_STARTED("Open MPI")},
    // Those that start one process a host, which is rank or host.
    {.name = "azureml-tensorflow-ps",
     .variables =
         "AZUREML_EXPERIMENT_ID=e1 "
         "TF_CONFIG={\"cluster\":{\"chief\":[\"10.0.0.4:2222\"],\"ps\":[\"10.0.0.7:2222\"],"
         "\"worker\":[\"10.0.0.5:2222\",\"10.0.0.6:2222\"]},\"task\":{\"type\":\"worker\","
         "\"index\":1},\"environment\":\"cloud\"}",
     .library = "rank 2 of 3, 0 of 1 here, ? hosts, 10.0.0.4:2222",
     .zero_run = "host 2 of 3, 0 ranks, 10.0.0.4:2222, job TF_CONFIG.10.0.0.4:2222, 0 restarts",
     .alone = "TF_CONFIG"},
    {.name = "kubeflow-v1-one-process-a-pod",
     .variables = "MASTER_ADDR=job-master-0 MASTER_PORT=23456 RANK=2 WORLD_SIZE=3 "
                  "PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456 PET_NNODES=3 "
                  "PET_NODE_RANK=2 PET_NPROC_PER_NODE=1",
     .first = "RANK=0 PET_NODE_RANK=0",
     .library = "rank 2 of 3, 0 of 1 here, 3 hosts, job-master-0:23457",
     .zero_run = "host 2 of 3, 1 ranks, job-master-0:23456, job ?, 0 restarts"},
    {.name = "slurm, one task a node",
     .variables = "SLURM_JOB_ID=812 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 "
                  "SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 "
                  "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=n[07-08] "
                  "SLURM_RESTART_COUNT=2",
     .first = "SLURM_PROCID=0 SLURM_NODEID=0",
     .library = "rank 1 of 2, 0 of 1 here, 2 hosts, n07:19495",
     .zero_run = "host 1 of 2, 0 ranks, n07:19495, job Slurm.812.3, 2 restarts"},
    {.name = "azureml-pytorch, one process a node",
     .variables = "AZUREML_RUN_ID=r1 AZUREML_NODE_COUNT=2 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 "
                  "MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=2 NODE_RANK=1 RANK=1 "
                  "LOCAL_RANK=0",
     .first = "NODE_RANK=0 RANK=0",
     .library = "rank 1 of 2, 0 of ? here, 2 hosts, 10.0.0.4:6106",
     .zero_run = "host 1 of 2, 0 ranks, 10.0.0.4:6105, job torchrun.:10.0.0.4:6105:, 0 restarts"},
    {.name = "azureml-mpi, one process a node",
     .variables =
         "AZUREML_RUN_ID=r1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 "
         "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 OMPI_COMM_WORLD_RANK=1 "
         "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
     .first = "OMPI_COMM_WORLD_RANK=0",
     .library = "rank 1 of 2, 0 of 1 here, ? hosts, 10.0.0.4:6105",
     .zero_run = "host 1 of 2, 0 ranks, 10.0.0.4:6105, job Azure-ML.r1, 0 restarts"},
    {.name = "flux, one task a node",
     .variables = "FLUX_JOB_ID=f23 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=1 "
                  "FLUX_TASK_LOCAL_ID=0 MASTER_ADDR=n1 PMI_RANK=1 PMI_SIZE=2 PMI_FD=9",
     .first = "FLUX_TASK_RANK=0 PMI_RANK=0",
     .library = "rank 1 of 2, 0 of ? here, 2 hosts, ?",
     .zero_run = "host 1 of 2, 0 ranks, n1:29500, job Flux.f23, 0 restarts"},
    // Those that number hosts.
    {.name = "sagemaker-2-hosts",
     .variables = "SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8 "
                  "SM_NETWORK_INTERFACE_NAME=eth0 SM_MODEL_DIR=/opt/ml/model TRAINING_JOB_NAME=t1",
     .first = "SM_CURRENT_HOST=algo-1",
     .library = "! SM_HOSTS",
     .zero_run = "host 1 of 2, 8 ranks, algo-1:7777, job SageMaker.t1, 0 restarts"},
    {.name = "kubeflow-trainer-v2-2x4",
     .variables = "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 "
                  "PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1",
     .first = "PET_NODE_RANK=0 JOB_COMPLETION_INDEX=0",
     .library = "! PET_NNODES=2",
     .zero_run = "host 1 of 2, 4 ranks, job-node-0-0.job:29500, job ?, 0 restarts"},
    {.name = "kubeflow-v1-mixed",
     .variables = "RANK=1 WORLD_SIZE=8 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 "
                  "MASTER_ADDR=m MASTER_PORT=23456",
     .first = "RANK=0 PET_NODE_RANK=0",
     .library = "! PET_NNODES=2",
     .zero_run = "host 1 of 2, 4 ranks, m:23456, job ?, 0 restarts"},
    {.name = "kubeflow-v1, WORLD_SIZE of pods",
     .variables = "RANK=1 WORLD_SIZE=2 PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_RDZV_ID=j "
                  "MASTER_ADDR=m MASTER_PORT=23456",
     .first = "RANK=0",
     .library = "! PET_NNODES=2",
     .zero_run = "host 1 of 2, 0 ranks, m:23456, job Kubeflow.j, 0 restarts"},
    {.name = "kubernetes-indexed-job",
     .variables = "JOB_COMPLETION_INDEX=3 KUBERNETES_SERVICE_HOST=10.96.0.1 HOSTNAME=train-3",
     .first = "JOB_COMPLETION_INDEX=0 HOSTNAME=train-0",
     .library = "! JOB_COMPLETION_INDEX=3",
     .zero_run = "host 3 of 4, 0 ranks, train-0.train:29500, job ?, 0 restarts",
     .given = {4, "train-0.train"},
     .alone = "JOB_COMPLETION_INDEX"},
    {.name = "jobset",
     .variables = "JOB_COMPLETION_INDEX=3 JOBSET_NAME=lm REPLICATED_JOB_NAME=workers JOB_INDEX=0 "
                  "JOBSET_RESTART_ATTEMPT=1 HOSTNAME=lm-workers-0-3",
     .first = "JOB_COMPLETION_INDEX=0 HOSTNAME=lm-workers-0-0",
     .library = "! JOB_COMPLETION_INDEX=3",
     .zero_run = "host 3 of 4, 0 ranks, lm-workers-0-0.lm:29500, job Kubernetes.lm, 1 restarts",
     .given = {4, NULL},
     .alone = "JOB_COMPLETION_INDEX"},
    {.name = "jobset, by the name of the pod",
     .variables = "JOB_COMPLETION_INDEX=3 JOBSET_NAME=lm NNODES=4 NPROC_PER_NODE=8 "
                  "MASTER_PORT=29511 JOBSET_RESTART_ATTEMPT= HOSTNAME=lm-workers-0-3",
     .first = "JOB_COMPLETION_INDEX=0 HOSTNAME=lm-workers-0-0",
     .library = "! NNODES=4",
     .zero_run = "host 3 of 4, 8 ranks, lm-workers-0-0.lm:29511, job Kubernetes.lm, 0 restarts"},
    {.name = "volcano-pytorch",
     .variables = "VC_TASK_INDEX=0 VK_TASK_INDEX=0 VC_MASTER_NUM=1 VC_MASTER_HOSTS=j-master-0.j "
                  "VC_WORKER_NUM=1 VC_WORKER_HOSTS=j-worker-0.j RANK=1 WORLD_SIZE=2 "
                  "MASTER_ADDR=j-master-0.j MASTER_PORT=23456",
     .first = "RANK=0",
     .library = "! VC_TASK_INDEX=0, VC_MASTER_NUM=1, VC_WORKER_NUM=1",
     .zero_run = "host 1 of 2, 0 ranks, j-master-0.j:23456, job ?, 0 restarts"},
    {.name = "volcano, one task",
     .variables = "VC_TASK_INDEX=2 VC_WORKER_NUM=3 VC_WORKER_HOSTS=w-0.w,w-1.w,w-2.w",
     .first = "VC_TASK_INDEX=0",
     .library = "! VC_WORKER_NUM=3",
     .zero_run = "host 2 of 3, 0 ranks, w-0.w:29500, job ?, 0 restarts"},
    {.name = "aws-batch-multi-node",
     .variables = "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 "
                  "AWS_BATCH_JOB_MAIN_NODE_INDEX=0 AWS_BATCH_JOB_ID=7d3f#1 AWS_BATCH_JOB_ATTEMPT=3 "
                  "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
     .library = "! AWS_BATCH_JOB_NUM_NODES=2",
     .zero_run = "host 1 of 2, 0 ranks, 10.0.0.9:29500, job AWS-Batch.7d3f, 2 restarts"},
    {.name = "aws-batch, the main node is another one, and this",
     .variables = "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=1 "
                  "AWS_BATCH_JOB_MAIN_NODE_INDEX=1 AWS_BATCH_JOB_ID=7d3f#1",
     .library = "! AWS_BATCH_JOB_NUM_NODES=3",
     .zero_run = "host 0 of 3, 0 ranks, any:29500, job AWS-Batch.7d3f, 0 restarts"},
    {.name = "azureml, by its nodes",
     .variables = "AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r1 AZUREML_NODE_COUNT=2 "
                  "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 "
                  "AZUREML_CR_NODE_RANK=1",
     .first = "AZUREML_CR_NODE_RANK=0",
     .library = "! AZUREML_NODE_COUNT=2",
     .zero_run = "host 1 of 2, 0 ranks, 10.0.0.4:6105, job Azure-ML.r1, 0 restarts"},
    {.name = "azureml, by its list",
     .variables = "AZUREML_RUN_ID=r1 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 NODE_RANK=1",
     .first = "NODE_RANK=0",
     .library = "! AZ_BATCH_HOST_LIST",
     .zero_run = "host 1 of 2, 0 ranks, 10.0.0.4:6105, job Azure-ML.r1, 0 restarts",
     .alone = "AZ_BATCH_HOST_LIST"},
    {.name = "pai-dlc",
     .variables = "RANK=1 WORLD_SIZE=2 NPROC_PER_NODE=8 MASTER_ADDR=m MASTER_PORT=23456",
     .first = "RANK=0",
     .library = "! RANK=1, WORLD_SIZE=2",
     .zero_run = "host 1 of 2, 8 ranks, m:23456, job ?, 0 restarts"},
    {.name = "kubeflow-trainer-jax",
     .variables = "JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=j-node-0-0.j:6666 "
                  "JOB_COMPLETION_INDEX=1",
     .first = "JAX_PROCESS_ID=0 JOB_COMPLETION_INDEX=0",
     .library = "! JAX_PROCESS_ID=1, JAX_NUM_PROCESSES=2",
     .zero_run = "host 1 of 2, 0 ranks, j-node-0-0.j:6666, job ?, 0 restarts"},
    {.name = "skypilot",
     .variables = "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2 "
                  "SKYPILOT_NUM_GPUS_PER_NODE=4 SKYPILOT_TASK_ID=sky-1",
     .first = "SKYPILOT_NODE_RANK=0",
     .library = "! SKYPILOT_NUM_NODES=2",
     .zero_run = "host 1 of 2, 4 ranks, 10.0.0.1:29500, job SkyPilot.sky-1, 0 restarts",
     .alone = "SKYPILOT_NUM_NODES"},
    {.name = "by hand",
     .variables = "NODE_RANK=1 NNODES=2 NPROC_PER_NODE=4 MASTER_ADDR=n1",
     .first = "NODE_RANK=0",
     .library = "! NODE_RANK=1, NNODES=2",
     .zero_run = "host 1 of 2, 4 ranks, n1:29500, job ?, 0 restarts",
     .alone = "NNODES"},
};
const size_t boot_set_count = sizeof boot_sets / sizeof *boot_sets;
