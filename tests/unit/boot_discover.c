// Rank and world from launchers' variables: every launcher, every trap, and what is refused.
#include "collectives/rendezvous/mesh.h"
#include "collectives/rendezvous/rendezvous.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VARIABLES = 16 };

struct good {
    const char *name;
    const char *variables[VARIABLES];
    int rank, world, local_rank, local_world;
    const char *launcher;
    const char *job; // after the user id; NULL: not looked at
};

#define TORCHRUN                                                                                   \
    "RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",                \
        "MASTER_ADDR=node-0", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none",                     \
        "TORCHELASTIC_RESTART_COUNT=2"
#define SLURM(rank, world)                                                                         \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=3", ("SLURM_PROCID=" rank), ("SLURM_STEP_NUM_TASKS=" world)
#define OPEN_MPI(rank, world) ("OMPI_COMM_WORLD_RANK=" rank), ("OMPI_COMM_WORLD_SIZE=" world)
#define TF(cluster, task) ("TF_CONFIG={\"cluster\": {" cluster "}, \"task\": {" task "}}")

static const struct good good_cases[] = {
    {"nothing", {NULL}, 0, 1, 0, 1, "none", NULL},
    {"other variables", {"PATH=/bin", "RANKS=3", "XRANK=1"}, 0, 1, 0, 1, "none", NULL},
    {"zero-run",
     {"ZERO_RANK=1", "ZERO_WORLD_SIZE=3", "ZERO_LOCAL_RANK=1", "ZERO_LOCAL_WORLD_SIZE=3",
      "ZERO_JOB=abc", "RANK=1", "WORLD_SIZE=3", "LOCAL_RANK=1"},
     1,
     3,
     1,
     3,
     "zero-run",
     ".zero-run.abc"},
    {"zero-run by hand", {"ZERO_RANK=0", "ZERO_WORLD_SIZE=2"}, 0, 2, -1, 0, "zero-run", NULL},
    {"torchrun, each host's with a count of restarts of its own",
     {TORCHRUN},
     3,
     8,
     1,
     2,
     "torchrun",
     ".torchrun.none:node-0:29500"},
    {"torchrun on one host",
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=n",
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=2"},
     1,
     2,
     1,
     2,
     "torchrun",
     ".torchrun.none:n:29500:2"},
    {"Azure ML pytorch",
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "NODE_RANK=1", "MASTER_ADDR=h", "MASTER_PORT=6105"},
     1,
     2,
     0,
     0,
     "torchrun",
     ".torchrun.:h:6105:"},
    {"torchrun, one daemon a host by srun",
     {TORCHRUN, SLURM("1", "2")},
     3,
     8,
     1,
     2,
     "torchrun",
     NULL},
    {"torchrun, one daemon a host by mpirun",
     {TORCHRUN, OPEN_MPI("1", "2")},
     3,
     8,
     1,
     2,
     "torchrun",
     NULL},
    {"Open MPI",
     {OPEN_MPI("2", "4"), "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
      "OMPI_COMM_WORLD_NODE_RANK=0", "PMIX_RANK=2", "PMIX_NAMESPACE=19555"},
     2,
     4,
     0,
     2,
     "Open MPI",
     ".Open-MPI.19555"},
    {"Open MPI 4 without PMIx",
     {OPEN_MPI("0", "2"), "OMPI_MCA_ess_base_jobid=11"},
     0,
     2,
     -1,
     0,
     "Open MPI",
     ".Open-MPI.11"},
    {"srun --mpi=pmi2: how many ranks a host has Slurm says",
     {"PMI_RANK=2", "PMI_SIZE=3", SLURM("2", "3"), "SLURM_LOCALID=0", "SLURM_NODEID=1",
      "SLURM_STEP_TASKS_PER_NODE=2,1"},
     2,
     3,
     0,
     1,
     "MPICH",
     NULL},
    {"mpirun inside Slurm: SLURM_PROCID is the daemon's",
     {OPEN_MPI("3", "4"), SLURM("1", "2")},
     3,
     4,
     -1,
     0,
     "Open MPI",
     NULL},
    {"Azure ML mpi",
     {OPEN_MPI("1", "2"), "AZ_BATCH_MASTER_NODE=10.0.0.4:6000"},
     1,
     2,
     -1,
     0,
     "Open MPI",
     NULL},
    {"hydra",
     {"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=6", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"},
     1,
     2,
     1,
     2,
     "MPICH",
     NULL},
    {"hydra inside Slurm",
     {"PMI_RANK=1", "PMI_SIZE=4", SLURM("0", "2")},
     1,
     4,
     -1,
     0,
     "MPICH",
     NULL},
    {"srun --mpi=pmi2: the step has the id",
     {"PMI_RANK=1", "PMI_SIZE=4", SLURM("1", "4")},
     1,
     4,
     -1,
     0,
     "MPICH",
     ".Slurm.77.3"},
    {"Horovod",
     {"HOROVOD_RANK=5", "HOROVOD_SIZE=6", "HOROVOD_LOCAL_RANK=2", "HOROVOD_LOCAL_SIZE=3",
      "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.1.1", "HOROVOD_GLOO_RENDEZVOUS_PORT=4444"},
     5,
     6,
     2,
     3,
     "Horovod",
     ".Horovod.10.1.1.1:4444"},
    {"jsrun",
     {"JSM_NAMESPACE_RANK=3", "JSM_NAMESPACE_SIZE=4", "JSM_NAMESPACE_LOCAL_RANK=1",
      "PMIX_NAMESPACE=x9", "JSM_NAMESPACE_LOCAL_SIZE=2"},
     3,
     4,
     1,
     2,
     "jsrun",
     ".jsrun.x9"},
    {"srun",
     {SLURM("5", "11"), "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=4(x2),3",
      "SLURM_NTASKS=99"},
     5,
     11,
     1,
     4,
     "Slurm",
     ".Slurm.77.3"},
    {"srun, the last host",
     {SLURM("9", "11"), "SLURM_LOCALID=1", "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=4(x2),3"},
     9,
     11,
     1,
     3,
     "Slurm",
     NULL},
    {"srun --mpi=pmix",
     {SLURM("1", "2"), "PMIX_RANK=1", "PMIX_NAMESPACE=slurm.77"},
     1,
     2,
     -1,
     0,
     "Slurm",
     NULL},
    {"an sbatch script is no step",
     {"SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_NTASKS=4"},
     0,
     1,
     0,
     1,
     "none",
     NULL},
    {"a shell of srun --pty holds any launcher",
     {OPEN_MPI("1", "2"), SLURM("0", "1")},
     1,
     2,
     -1,
     0,
     "Open MPI",
     NULL},
    {"zero-run inside a step of one task",
     {"ZERO_RANK=1", "ZERO_WORLD_SIZE=4", SLURM("0", "1")},
     1,
     4,
     -1,
     0,
     "zero-run",
     NULL},
    {"TF_CONFIG, with a chief",
     {TF("\"chief\": [\"a:1\"], \"worker\": [\"b:1\", \"c:1\"]",
         "\"type\": \"worker\", \"index\": 1")},
     2,
     3,
     0,
     1,
     "TF_CONFIG",
     ".TF_CONFIG.a:1"},
    {"TF_CONFIG, the chief",
     {TF("\"chief\": [\"a:1\"], \"worker\": [\"b:1\"]", "\"type\": \"chief\", \"index\": 0")},
     0,
     2,
     0,
     1,
     "TF_CONFIG",
     NULL},
    {"TF_CONFIG, workers of one host",
     {TF("\"worker\": [\"h:1\", \"h:2\", \"g:1\", \"h:3\"]", "\"type\": \"worker\", \"index\": 3")},
     3,
     4,
     2,
     3,
     "TF_CONFIG",
     NULL},
    {"TF_CONFIG without a cluster", {"TF_CONFIG={\"task\": {}}"}, 0, 1, 0, 1, "none", NULL},
    {"one pod",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=p", "MASTER_PORT=1"},
     0,
     1,
     0,
     1,
     "none",
     NULL},
    {"one node of Kubeflow's trainer",
     {"PET_NNODES=1", "PET_NODE_RANK=0", "PET_NPROC_PER_NODE=1", "JOB_COMPLETION_INDEX=0"},
     0,
     1,
     0,
     1,
     "none",
     NULL},
    {"one host of SageMaker",
     {"SM_HOSTS=[\"algo-1\"]", "SM_CURRENT_HOST=algo-1"},
     0,
     1,
     0,
     1,
     "none",
     NULL},
    {"ZERO_JOB names the job of any launcher",
     {OPEN_MPI("0", "2"), "ZERO_JOB=mine"},
     0,
     2,
     -1,
     0,
     "Open MPI",
     ".zero-run.mine"},
    {"the first of two wins",
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "RANK=0"},
     1,
     2,
     1,
     0,
     "torchrun",
     NULL},
    {"families that agree",
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", OPEN_MPI("1", "2")},
     1,
     2,
     1,
     0,
     "torchrun",
     NULL},
};

static char **as_environment(const char *const *variables)
{
    return (char **)(uintptr_t)variables;
}

static void launchers_are_understood(void **state)
{
    (void)state;
    char user[32];
    const size_t user_length = (size_t)snprintf(user, sizeof user, "%u", (unsigned)getuid());
    for (size_t i = 0; i < sizeof good_cases / sizeof *good_cases; i++) {
        const struct good *want = &good_cases[i];
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK};
        if (boot_discover(&place, as_environment(want->variables), &error))
            fail_msg("%s: %s", want->name, error.message);
        if (place.rank != want->rank || place.world != want->world ||
            place.local_rank != want->local_rank || place.local_world != want->local_world ||
            strcmp(place.launcher, want->launcher))
            fail_msg("%s: %s says rank %d of %d, here %d of %d", want->name, place.launcher,
                     place.rank, place.world, place.local_rank, place.local_world);
        assert_memory_equal(place.job, user, user_length);
        if (want->job && strcmp(place.job + user_length, want->job))
            fail_msg("%s: job %s", want->name, place.job);
    }
}

struct bad {
    const char *variables[VARIABLES];
    const char *message[3]; // parts that the message must have
};

static const struct bad bad_cases[] = {
    // Half a family.
    {{"ZERO_RANK=0"}, {"ZERO_RANK=0", "ZERO_WORLD_SIZE is not"}},
    {{"ZERO_WORLD_SIZE=2"}, {"ZERO_WORLD_SIZE=2", "ZERO_RANK is not"}},
    {{"RANK=0"}, {"RANK=0", "WORLD_SIZE is not"}},
    {{"WORLD_SIZE=2", "LOCAL_RANK=0"}, {"WORLD_SIZE=2", "but RANK is not"}},
    {{"LOCAL_RANK=1"}, {"LOCAL_RANK", "RANK and WORLD_SIZE are not"}},
    {{"OMPI_COMM_WORLD_RANK=1"}, {"OMPI_COMM_WORLD_SIZE is not"}},
    {{"PMI_SIZE=1"}, {"PMI_RANK is not"}},
    {{"HOROVOD_RANK=0"}, {"HOROVOD_SIZE is not"}},
    {{"JSM_NAMESPACE_SIZE=3"}, {"JSM_NAMESPACE_RANK is not"}},
    {{"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}, {"SLURM_PROCID is not"}},
    {{"PMIX_RANK=1"}, {"PMIX_RANK", "PMIx only"}},
    // No numbers.
    {{"ZERO_RANK=", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK= is no number from 0"}},
    {{"ZERO_RANK=0", "ZERO_WORLD_SIZE="}, {"ZERO_WORLD_SIZE= is no number"}},
    {{"ZERO_RANK= 1", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK= 1 is no"}},
    {{"ZERO_RANK=+1", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK=+1 is no"}},
    {{"ZERO_RANK=-1", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK=-1 is no"}},
    {{"ZERO_RANK=1x", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK=1x is no"}},
    {{"ZERO_RANK=0x1", "ZERO_WORLD_SIZE=2"}, {"0x1"}},
    {{"ZERO_RANK=0", "ZERO_WORLD_SIZE=0"}, {"ZERO_WORLD_SIZE=0 is no number from 1"}},
    {{"ZERO_RANK=0", "ZERO_WORLD_SIZE=1000001"}, {"1000001"}},
    {{"ZERO_RANK=18446744073709551616", "ZERO_WORLD_SIZE=2"}, {"18446744073709551616"}},
    {{"ZERO_RANK=4294967296", "ZERO_WORLD_SIZE=2"}, {"4294967296"}},
    {{"ZERO_RANK=1\n2", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK=1?2"}},
    {{"ZERO_RANK=99999999999999999999999999999999999999999999999999999999999999999999999999",
      "ZERO_WORLD_SIZE=2"},
     {"999..."}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=x"}, {"LOCAL_RANK=x"}},
    // Out of range.
    {{"ZERO_RANK=2", "ZERO_WORLD_SIZE=2"}, {"ZERO_RANK=2", "below the world"}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2"}, {"LOCAL_RANK=2"}},
    {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, {"LOCAL_RANK=2"}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3"}, {"LOCAL_WORLD_SIZE=3"}},
    {{SLURM("0", "4"), "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=two"}, {"=two", "node 0"}},
    {{SLURM("0", "4"), "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=2(x2)"}, {"2(x2)", "node 2"}},
    {{SLURM("0", "4"), "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=2(x"}, {"2(x"}},
    {{SLURM("0", "4"), "SLURM_NODEID=9", "SLURM_STEP_TASKS_PER_NODE=2;2"}, {"2;2"}},
    // Two that disagree, both shown.
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", OPEN_MPI("1", "4")},
     {"RANK=0, WORLD_SIZE=2 (torchrun)", "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4",
      "disagree"}},
    {{"ZERO_RANK=0", "ZERO_WORLD_SIZE=2", "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"},
     {"ZERO_RANK=0, ZERO_WORLD_SIZE=2", "RANK=1, WORLD_SIZE=2", "disagree"}},
    {{OPEN_MPI("0", "2"), "PMI_RANK=0", "PMI_SIZE=3"}, {"Open MPI", "MPICH", "disagree"}},
    {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=0", SLURM("1", "4")}, {"torchrun", "Slurm"}},
    {{"HOROVOD_RANK=0", "HOROVOD_SIZE=2", "JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=3"},
     {"Horovod", "jsrun"}},
    {{OPEN_MPI("0", "4"), "RANK=1", "WORLD_SIZE=4"}, {"OMPI", "RANK=1", "without LOCAL_RANK"}},
    {{"ZERO_RANK=0", "ZERO_WORLD_SIZE=1", SLURM("1", "2")}, {"zero-run", "Slurm"}},
    // Hosts, not processes.
    {{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=p", "MASTER_PORT=23456"},
     {"RANK=1, WORLD_SIZE=2", "LOCAL_RANK"}},
    {{"PET_NNODES=2", "PET_NODE_RANK=1", "PET_NPROC_PER_NODE=4", "RANK=1", "WORLD_SIZE=8"},
     {"PET_NNODES=2, PET_NODE_RANK=1, PET_NPROC_PER_NODE=4"}},
    {{"PET_NNODES=1", "PET_NPROC_PER_NODE=auto"}, {"PET_NPROC_PER_NODE=auto"}},
    {{"PET_NNODES=1:4"}, {"PET_NNODES=1:4"}},
    {{"PET_NNODES=0"}, {"PET_NNODES=0 is no number"}},
    {{"SM_HOSTS=[\"algo-1\", \"algo-2\"]"}, {"SM_HOSTS"}},
    // A job of its own on each of several hosts.
    {{OPEN_MPI("1", "2"), "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PET_NNODES=2", "PET_NODE_RANK=1"},
     {"OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_SIZE=2: all ranks are on this host",
      "PET_NNODES=2", "2 hosts"}},
    {{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", "AZUREML_NODE_COUNT=3"},
     {"MPI_LOCALNRANKS=2: all", "AZUREML_NODE_COUNT=3"}},
    {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=4",
      "SM_HOSTS=[\"algo-1\", \"algo-2\"]"},
     {"WORLD_SIZE=4, LOCAL_WORLD_SIZE=4: all", "SM_HOSTS"}},
    {{"SM_HOSTS=algo-1"}, {"no JSON list"}},
    {{"JOB_COMPLETION_INDEX=2"}, {"JOB_COMPLETION_INDEX=2"}},
    {{"JAX_PROCESS_ID=0", "JAX_NUM_PROCESSES=2"}, {"JAX_PROCESS_ID=0, JAX_NUM_PROCESSES=2"}},
    {{"JAX_PROCESS_ID=0"}, {"JAX_NUM_PROCESSES is not"}},
    // TF_CONFIG.
    {{"TF_CONFIG=x"}, {"TF_CONFIG=x is no JSON"}},
    {{"TF_CONFIG="}, {"TF_CONFIG= is no JSON"}},
    {{"TF_CONFIG=[]"}, {"no JSON with a cluster"}},
    {{TF("", "\"type\": \"worker\", \"index\": 0")}, {"no JSON with a cluster"}},
    {{TF("\"worker\": [\"a:1\"]", "\"type\": \"worker\", \"index\": 1")}, {"TF_CONFIG="}},
    {{TF("\"worker\": [\"a:1\"]", "\"type\": \"worker\", \"index\": -1")}, {"TF_CONFIG="}},
    {{TF("\"worker\": [\"a:1\"]", "\"type\": \"worker\", \"index\": \"0\"")}, {"TF_CONFIG="}},
    {{TF("\"worker\": [\"a:1\"]", "\"type\": \"ps\", \"index\": 0")}, {"TF_CONFIG="}},
    {{TF("\"worker\": [\"a:1\", 7]", "\"type\": \"worker\", \"index\": 0")}, {"TF_CONFIG="}},
    {{TF("\"worker\": \"a:1\"", "\"type\": \"worker\", \"index\": 0")}, {"TF_CONFIG="}},
};

static void the_rest_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
        const struct bad *want = &bad_cases[i];
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK};
        const zero_result result = boot_discover(&place, as_environment(want->variables), &error);
        if (result != ZERO_E_INVALID || error.result != result)
            fail_msg("case %zu (%s): result %d, %s", i, want->variables[0], result, error.message);
        assert_null(strchr(error.message, '\n'));
        for (size_t part = 0; part < 3 && want->message[part]; part++)
            if (!strstr(error.message, want->message[part]))
                fail_msg("case %zu: '%s' is not in: %s", i, want->message[part], error.message);
    }
}

// A job's id must be the same for its ranks, another one for any other job, and fit.
static void jobs_have_ids(void **state)
{
    (void)state;
    char first[BOOT_JOB_BYTES], second[BOOT_JOB_BYTES], parent[BOOT_JOB_BYTES];
    boot_job(first, as_environment((const char *[]){OPEN_MPI("0", "2"), "PMIX_NAMESPACE=1", NULL}));
    boot_job(second,
             as_environment((const char *[]){OPEN_MPI("1", "2"), "PMIX_NAMESPACE=1", NULL}));
    assert_string_equal(first, second);
    boot_job(second,
             as_environment((const char *[]){OPEN_MPI("1", "2"), "PMIX_NAMESPACE=2", NULL}));
    assert_string_not_equal(first, second);

    boot_job(parent, as_environment((const char *[]){NULL}));
    snprintf(second, sizeof second, "%u.parent.%d", (unsigned)getuid(), (int)getppid());
    assert_string_equal(parent, second);

    // Whatever a launcher thinks of: hashed, and still told apart.
    char *long_job = malloc(10000);
    memset(long_job, 'x', 9999);
    memcpy(long_job, "ZERO_JOB=", 9);
    long_job[9999] = '\0';
    boot_job(first, as_environment((const char *[]){long_job, NULL}));
    long_job[3000] = 'y';
    boot_job(second, as_environment((const char *[]){long_job, NULL}));
    assert_string_not_equal(first, second);
    assert_true(strlen(first) < 64);
    free(long_job);
    boot_job(first, as_environment((const char *[]){"ZERO_JOB=a\nb", NULL}));
    boot_job(second, as_environment((const char *[]){"ZERO_JOB=a\nc", NULL}));
    assert_null(strchr(first, '\n'));
    assert_string_not_equal(first, second);
    boot_job(first, as_environment((const char *[]){"ZERO_JOB=", NULL}));
    assert_string_equal(first, parent);
    // Malformed variables are boot_discover()'s to report.
    boot_job(first, as_environment((const char *[]){"RANK=x", NULL}));
    assert_string_equal(first, parent);
}

static void check_job_at(const char *const *variables, const char *address, const char *job)
{
    struct boot_master master = {.port = 4000};
    char found[BOOT_JOB_BYTES];
    snprintf(master.address, sizeof master.address, "%s", address);
    boot_job_at(found, &master, as_environment(variables));
    assert_string_equal(found, job);
}

// Ranks that meet at an address may have another number of their user on each host. Where only the
// address is known, and it is the loopback's, two users of a host are told apart.
static void jobs_at_an_address_have_no_user(void **state)
{
    (void)state;
    char job[BOOT_JOB_BYTES];
    check_job_at((const char *[]){"ZERO_JOB=j1", NULL}, "n1", "zero-run.j1");
    check_job_at((const char *[]){"ZERO_JOB=j1", NULL}, "127.0.0.1", "zero-run.j1");
    check_job_at((const char *[]){OPEN_MPI("0", "2"), "PMIX_NAMESPACE=1", NULL}, "n1",
                 "Open-MPI.1");
    check_job_at((const char *[]){"PMI_RANK=1", "PMI_SIZE=2", "PBS_JOBID=17.head", NULL}, "n1",
                 "at.n1:4000:17.head");
    check_job_at((const char *[]){"PBS_JOBID=17.head", NULL}, "n1", "at.n1:4000");
    check_job_at((const char *[]){NULL}, "n1", "at.n1:4000");
    check_job_at((const char *[]){NULL}, "10.0.0.1", "at.10.0.0.1:4000");
    snprintf(job, sizeof job, "%u.at.127.0.0.1:4000", (unsigned)getuid());
    check_job_at((const char *[]){NULL}, "127.0.0.1", job);
    snprintf(job, sizeof job, "%u.at.localhost:4000", (unsigned)getuid());
    check_job_at((const char *[]){NULL}, "localhost", job);
}

static void explained(const char *const *variables, const char *part)
{
    char text[4096];
    boot_explain(NULL, as_environment(variables), text, sizeof text);
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void decisions_are_explained(void **state)
{
    (void)state;
    const char *nested[] = {OPEN_MPI("3", "4"), SLURM("1", "2"), NULL};
    explained(nested, "rank         3 of 4\n");
    explained(nested, "launcher     Open MPI\n");
    explained(nested, "from         OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=4\n");
    explained(nested, "not used     SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2 (Slurm): stands around");
    explained((const char *[]){"SLURM_PROCID=0", NULL}, "rank         0 of 1\n");
    explained((const char *[]){"SLURM_PROCID=0", NULL}, "SLURM_PROCID=0: a batch script");
    const char *different[] = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", OPEN_MPI("1", "4"), NULL};
    explained(different, "error        RANK=0");
    explained(different, "(Open MPI): disagrees");
    explained((const char *[]){"ZERO_RANK=x", "ZERO_WORLD_SIZE=2", NULL}, "error        ZERO_RANK");
    const char *hosts[] = {"RANK=0",
                           "WORLD_SIZE=2",
                           "LOCAL_RANK=0",
                           "LOCAL_WORLD_SIZE=1",
                           "MASTER_ADDR=node1",
                           "MASTER_PORT=29500",
                           NULL};
    explained(hosts, "rank 0 is at port 29501 of node1, from MASTER_ADDR, MASTER_PORT + 1\n");
    hosts[4] = "HOME=/";
    explained(hosts, "rank 0 is at unknown: no variable says where rank 0 is");
    explained((const char *[]){"PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL},
              "rank         asked of PMIx when a program opens a context");
    explained((const char *[]){"PMIX_NAMESPACE=job7", "PMIX_RANK=1", "ZERO_PMI=0", NULL},
              "error        PMIX_RANK=1");
    // What is malformed is the error, and nothing besides.
    static char only_error[1024];
    boot_explain(NULL, as_environment((const char *[]){"PMI_RANK=5", "PMI_SIZE=2", NULL}),
                 only_error, sizeof only_error);
    assert_string_equal(only_error,
                        "error        PMI_RANK=5, PMI_SIZE=2: the rank must be below the world\n");
    explained((const char *[]){OPEN_MPI("0", "2"), "PET_NNODES=2", NULL},
              "not used     PET_NNODES=2: counts hosts");

    char text[16];
    memset(text, 'x', sizeof text);
    boot_explain(NULL, as_environment(nested), text, 8);
    assert_int_equal(strlen(text), 7);
    assert_int_equal(text[8], 'x');
    boot_explain(NULL, as_environment(nested), text, 0);
}

static void check_alone(const char *const *variables, zero_result want, const char *part)
{
    struct base_error error = {.result = ZERO_OK};
    const zero_result result = boot_check_alone(as_environment(variables), &error);
    if (result != want || !strstr(error.message, part))
        fail_msg("%s: result %d, %s", variables[0], result, error.message);
}

static void starting_ranks_inside_a_launcher_is_refused(void **state)
{
    (void)state;
    check_alone((const char *[]){NULL}, ZERO_OK, "");
    check_alone((const char *[]){SLURM("0", "1"), NULL}, ZERO_OK, "");
    check_alone((const char *[]){"SLURM_PROCID=0", "SLURM_NTASKS=4", NULL}, ZERO_OK, "");
    check_alone((const char *[]){"PET_NNODES=1", "PET_NPROC_PER_NODE=8", NULL}, ZERO_OK, "");
    check_alone((const char *[]){OPEN_MPI("0", "2"), NULL}, ZERO_E_UNSUPPORTED, "Open MPI");
    check_alone((const char *[]){"RANK=0", "WORLD_SIZE=2", NULL}, ZERO_E_UNSUPPORTED, "WORLD_SIZE");
    check_alone((const char *[]){"PET_NNODES=1:2", NULL}, ZERO_E_UNSUPPORTED, "PET_NNODES=1:2");
    check_alone((const char *[]){"JOB_COMPLETION_INDEX=0", NULL}, ZERO_E_UNSUPPORTED, "INDEX=0");
    check_alone((const char *[]){OPEN_MPI("0", "x"), NULL}, ZERO_E_INVALID, "SIZE=x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_understood),
        cmocka_unit_test(the_rest_is_refused),
        cmocka_unit_test(jobs_have_ids),
        cmocka_unit_test(jobs_at_an_address_have_no_user),
        cmocka_unit_test(decisions_are_explained),
        cmocka_unit_test(starting_ranks_inside_a_launcher_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
