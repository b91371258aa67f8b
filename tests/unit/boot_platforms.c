// Environments of platforms and launchers, as a program sees them that is to be a rank, and as
// zero-run does, which may start the ranks of a host: the right answer, or one line that names the
// variables, and never a process that is alone. Each environment is also
// tried with a variable missing, with two that disagree, and beside what is left of other jobs.
#include "tests/unit/boot_sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void every_set_is_understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++) {
        struct boot_environment made;
        char answer[BOOT_ANSWER_BYTES];
        boot_environment_make(&made, boot_sets[i].variables, NULL);
        boot_ask_library(answer, made.list);
        boot_check_answer(boot_sets[i].name, "library", answer, boot_sets[i].library);
        boot_ask_zero_run(answer, &boot_sets[i].given, made.list);
        boot_check_answer(boot_sets[i].name, "zero-run", answer, boot_sets[i].zero_run);
    }
}

/* ------------------------------------------------------------------ half of a set */

static bool names_any(const char *answer, const struct boot_environment *made)
{
    for (int i = 0; i < made->count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)boot_name_length(made->list[i]) - 1,
                 made->list[i]);
        if (strstr(answer, name))
            return true;
    }
    return false;
}

static bool is_free(const struct boot_set *set, const char *variable)
{
    const size_t length = boot_name_length(variable) - 1;
    return set->alone && strlen(set->alone) == length && !strncmp(set->alone, variable, length);
}

// A message that names a variable, or the beginning of the answer of the whole set: rank and world,
// or host and hosts.
static void check_half(const struct boot_set *set, const char *dropped,
                       const struct boot_environment *made, const char *answer, const char *whole)
{
    const size_t numbers = strcspn(whole, ",");
    if (*answer == '!' ? names_any(answer, made)
                       : *whole != '!' && !strncmp(answer, whole, numbers + 1))
        return;
    fail_msg("%s without %s: '%s'; with it '%s'", set->name, dropped, answer, whole);
}

static void try_halves(const struct boot_set *set, const char *others)
{
    struct boot_environment whole;
    char library[BOOT_ANSWER_BYTES], zero_run[BOOT_ANSWER_BYTES], answer[BOOT_ANSWER_BYTES];
    boot_environment_make(&whole, set->variables, others);
    boot_ask_library(library, whole.list);
    boot_ask_zero_run(zero_run, &set->given, whole.list);
    for (int drop = 0; drop < whole.count; drop++) {
        if (is_free(set, whole.list[drop]))
            continue;
        struct boot_environment made = {.count = 0};
        for (int i = 0; i < whole.count; i++)
            if (i != drop)
                made.list[made.count++] = whole.list[i];
        boot_ask_library(answer, made.list);
        check_half(set, whole.list[drop], &made, answer, library);
        boot_ask_zero_run(answer, &set->given, made.list);
        check_half(set, whole.list[drop], &made, answer, zero_run);
    }
}

static void half_a_set_is_no_other_job(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++) {
        try_halves(&boot_sets[i], NULL);
        if (boot_sets[i].first)
            try_halves(&boot_sets[i], boot_sets[i].first);
    }
}

/* ------------------------------------------------------------------ what other jobs left */

static const char *const left[] = {
    "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NNODES=2",
    "SLURM_PROCID=0 SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE=2(x2)",
    "PBS_JOBID=1.head PBS_NODEFILE=/var/spool/pbs/1 PBS_NODENUM=0 PBS_TASKNUM=1",
    "LSB_JOBID=3 LSB_DJOB_NUMPROC=8 LSB_JOBINDEX=2",
    "KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_PORT=tcp://10.96.0.1:443",
    "I_MPI_ROOT=/opt/intel MPI_HOME=/usr OMPI_MCA_btl=tcp,self PMIX_INSTALL_PREFIX=/usr",
    "ZERO_HOST=1 ZERO_HOSTS=3 ZERO_FIRST_WORLD=4 ZERO_LOCAL_RANK=1 ZERO_LOCAL_WORLD_SIZE=2",
    "AWS_BATCH_JOB_ARRAY_INDEX=3 SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=9",
    "FLUX_URI=local:///run/flux/local FLUX_ENCLOSING_ID=f1",
    "AZUREML_RUN_ID=old SM_MODEL_DIR=/opt/ml/model TRAINING_JOB_NAME=old NNODES=1 NODE_RANK=0",
};

static void leavings_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++)
        for (size_t k = 0; k < sizeof left / sizeof *left; k++) {
            struct boot_environment made, around;
            char want[BOOT_ANSWER_BYTES], answer[BOOT_ANSWER_BYTES];
            // What sets a number of hosts is no leaving beside another one.
            if (k == sizeof left / sizeof *left - 1 && boot_sets[i].zero_run[0] != '!')
                continue;
            boot_environment_make(&made, boot_sets[i].variables, NULL);
            boot_environment_make(&around, boot_sets[i].variables, NULL);
            boot_environment_add(&around, left[k], false);
            boot_ask_library(want, made.list);
            boot_ask_library(answer, around.list);
            boot_check_answer(boot_sets[i].name, left[k], answer, want);
            boot_ask_zero_run(want, &boot_sets[i].given, made.list);
            boot_ask_zero_run(answer, &boot_sets[i].given, around.list);
            boot_check_answer(boot_sets[i].name, left[k], answer, want);
        }
}

/* ------------------------------------------------------------------ sets that can't be true */

#define HOST_1 "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=m "

static const struct {
    const char *variables;
    struct boot_hosts_given given;
    const char *parts[2]; // of the message
} contradictions[] = {
    {"PET_NNODES=2 PET_NODE_RANK=2 PET_MASTER_ADDR=m", {0}, {"PET_NODE_RANK=2", "2 hosts"}},
    {HOST_1 "RANK=0 WORLD_SIZE=2", {0}, {"PET_NODE_RANK=1", "RANK=0, WORLD_SIZE=2"}},
    {HOST_1 "RANK=1 WORLD_SIZE=3", {0}, {"PET_NNODES=2", "RANK=1, WORLD_SIZE=3"}},
    {HOST_1 "JOB_COMPLETION_INDEX=0", {0}, {"PET_NODE_RANK=1", "JOB_COMPLETION_INDEX=0"}},
    {HOST_1 "SM_HOSTS=[\"a\"] SM_CURRENT_HOST=a", {0}, {"PET_NNODES=2", "SM_HOSTS="}},
    {HOST_1 "AWS_BATCH_JOB_NUM_NODES=4 AWS_BATCH_JOB_NODE_INDEX=1",
     {0},
     {"PET_NNODES=2", "AWS_BATCH_JOB_NUM_NODES=4"}},
    {HOST_1 "LOCAL_RANK=0", {0}, {"LOCAL_RANK=0", "RANK and WORLD_SIZE are not set"}},
    {HOST_1, {3, NULL}, {"--nodes 3", "PET_NNODES=2"}},
    {"PET_NNODES=2:4 PET_NODE_RANK=1", {5, "m"}, {"--nodes 5", "PET_NNODES=2:4"}},
    {"PET_NNODES=2:4 PET_NODE_RANK=1", {1, NULL}, {"--nodes 1", "PET_NNODES=2:4"}},
    {HOST_1 "PALS_RANKID=1", {0}, {"PALS_RANKID=1", NULL}},
    {"PET_NNODES=two PET_NODE_RANK=1", {0}, {"PET_NNODES=two", NULL}},
    {"PET_NNODES=4:1 PET_NODE_RANK=1", {0}, {"PET_NNODES=4:1", NULL}},
    {"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=m PET_MASTER_PORT=99999",
     {0},
     {"PET_MASTER_PORT=99999", NULL}},
    {"SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-3",
     {0},
     {"algo-3", "none of the list"}},
    {"PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=m",
     {0},
     {"PET_NODE_RANK=0", "how many hosts"}},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 AZUREML_NODE_COUNT=2 MASTER_ADDR=m",
     {0},
     {"torchrun has started several", NULL}},
    {"SM_CURRENT_HOST=algo-1", {0}, {"SM_CURRENT_HOST=algo-1", "SM_HOSTS is not"}},
    {"SM_HOSTS=algo-1 SM_CURRENT_HOST=algo-1", {0}, {"no JSON list", NULL}},
    {"AZUREML_NODE_COUNT=3 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 AZUREML_CR_NODE_RANK=1",
     {0},
     {"AZUREML_NODE_COUNT=3", "AZ_BATCH_HOST_LIST="}},
    {"AZUREML_NODE_COUNT=2 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 AZUREML_CR_NODE_RANK=1 NODE_RANK=0",
     {0},
     {"AZUREML_CR_NODE_RANK=1", "NODE_RANK=0"}},
    {"AZUREML_NODE_COUNT=two AZUREML_CR_NODE_RANK=1", {0}, {"AZUREML_NODE_COUNT=two", NULL}},
    {"VC_TASK_INDEX=1 VC_WORKER_NUM=3 VC_WORKER_HOSTS=w-0,w-1",
     {0},
     {"VC_WORKER_NUM=3", "lists 2"}},
    {"VC_TASK_INDEX=3 VC_WORKER_NUM=2 VC_WORKER_HOSTS=w-0,w-1",
     {0},
     {"VC_TASK_INDEX=3", "2 hosts"}},
    {"AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=2", {0}, {"NODE_INDEX=2", "2 hosts"}},
    {"AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=2",
     {0},
     {"AWS_BATCH_JOB_MAIN_NODE_INDEX=2", NULL}},
    {"AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_ATTEMPT=0",
     {0},
     {"AWS_BATCH_JOB_ATTEMPT=0", NULL}},
    {"JOB_COMPLETION_INDEX=4", {4, "m"}, {"JOB_COMPLETION_INDEX=4", "4 hosts"}},
    {"JOB_COMPLETION_INDEX=1 JOB_INDEX=2 JOBSET_NAME=lm", {4, NULL}, {"JOB_INDEX=2", "which host"}},
    {"JOB_COMPLETION_INDEX=1 JOBSET_NAME=lm HOSTNAME=lm-w-2-1",
     {4, NULL},
     {"lm-w-2-1", "which host"}},
    {"RANK=1 WORLD_SIZE=2 NNODES=3 NODE_RANK=1 MASTER_ADDR=m", {0}, {"NNODES=3", "WORLD_SIZE=2"}},
    {"RANK=1 WORLD_SIZE=8 PET_NPROC_PER_NODE=4 MASTER_ADDR=m", {0}, {"RANK=1", "how many hosts"}},
    {"PET_NNODES=1:4 PET_NPROC_PER_NODE=2 RANK=1 WORLD_SIZE=2 MASTER_ADDR=m",
     {0},
     {"PET_NNODES=1:4", "how many hosts"}},
    {"JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 JOB_COMPLETION_INDEX=0 MASTER_ADDR=m",
     {0},
     {"JAX_PROCESS_ID=1", "JOB_COMPLETION_INDEX=0"}},
    {"SLURM_JOB_ID=8 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 "
     "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-2]",
     {3, NULL},
     {"--nodes 3", "SLURM_STEP_NUM_TASKS=2"}},
    {"SLURM_JOB_ID=8 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=3",
     {0},
     {"SLURM_STEP_NUM_NODES=3", "more hosts than ranks"}},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 SM_HOSTS=[\"a\",\"b\"]", {0}, {"RANK=0", "SM_HOSTS"}},
    {"NODE_RANK=1 NNODES=2", {0}, {"NNODES=2", "where host 0 is"}},
    {"NODE_RANK=0 NNODES=2", {0}, {"NNODES=2", "where host 0 is"}},
    {"NNODES=2 MASTER_ADDR=m", {0}, {"NNODES=2", "which host"}},
    {"NNODES=2 NODE_RANK=1 MASTER_ADDR=", {0}, {"MASTER_ADDR=", "no name or address"}},
    {"NNODES=2 NODE_RANK=1", {0, "a b"}, {"--master=a b", NULL}},
    {"NNODES=2 NODE_RANK=1", {0, "a:x"}, {"the port of --master=x", NULL}},
    {"GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=m", {0}, {"GROUP_RANK=1", NULL}},
    {"CROSS_RANK=0 CROSS_SIZE=2", {0}, {"CROSS_SIZE=2", NULL}},
    {"FLUX_JOB_NNODES=2", {0}, {"FLUX_JOB_NNODES=2", NULL}},
    {"HOME=/", {2, NULL}, {"--nodes", "which host"}},
    {"NODE_RANK=1 NNODES=2 MASTER_ADDR=m ZERO_SECRET=", {0}, {"ZERO_SECRET", NULL}},
    {"RANK=1 WORLD_SIZE=8 LOCAL_RANK=0 GROUP_WORLD_SIZE=8 TORCHELASTIC_RUN_ID=x",
     {0},
     {"torchrun has started several processes already", NULL}},
    {"SLURM_RESTART_COUNT=x", {0}, {"SLURM_RESTART_COUNT=x", NULL}},
};

static void contradictions_are_shown(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        struct boot_environment made;
        char answer[BOOT_ANSWER_BYTES];
        boot_environment_make(&made, contradictions[i].variables, NULL);
        boot_ask_zero_run(answer, &contradictions[i].given, made.list);
        for (int part = 0; part < 2 && contradictions[i].parts[part]; part++)
            if (*answer != '!' || !strstr(answer, contradictions[i].parts[part]))
                fail_msg("%s: '%s' is not in '%s'", contradictions[i].variables,
                         contradictions[i].parts[part], answer);
        assert_null(strchr(answer, '\n'));
        assert_true(strlen(answer) + 1 < sizeof((struct base_error *)0)->message);
    }
}

/* ------------------------------------------------------------------ more than that */

static const struct {
    const char *variables;
    struct boot_hosts_given given;
    const char *answer;
} others[] = {
    // Alone, and how many ranks a platform wants.
    {"HOME=/", {0}, "alone, 0 ranks, 0 restarts"},
    {"PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8", {0}, "alone, 8 ranks, 0 restarts"},
    {"SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1 SM_NUM_GPUS=4",
     {0},
     "alone, 4 ranks, 0 restarts"},
    {"RANK=0 WORLD_SIZE=1 NPROC_PER_NODE=2", {0}, "alone, 2 ranks, 0 restarts"},
    {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_RESTART_COUNT=2",
     {0},
     "alone, 0 ranks, 2 restarts"},
    {"JOB_COMPLETION_INDEX=3", {1, NULL}, "alone, 0 ranks, 0 restarts"},
    {"PET_NNODES=2 PET_NODE_RANK=1 ZERO_RANK=0 ZERO_WORLD_SIZE=1",
     {0},
     "alone, 0 ranks, 0 restarts"},
    // What is said by hand holds, and is enough.
    {HOST_1, {2, "n7"}, "host 1 of 2, 4 ranks, n7:29500, job ?, 0 restarts"},
    {HOST_1 "PET_MASTER_PORT=7", {0, "n7:8"}, "host 1 of 2, 4 ranks, n7:8, job ?, 0 restarts"},
    {HOST_1 "PET_MASTER_PORT=7", {0, "n7"}, "host 1 of 2, 4 ranks, n7:7, job ?, 0 restarts"},
    {HOST_1 "MASTER_ADDR=n8", {0}, "host 1 of 2, 4 ranks, n8:29500, job ?, 0 restarts"},
    {HOST_1, {0, "[fe00::1]:8"}, "host 1 of 2, 4 ranks, fe00::1:8, job ?, 0 restarts"},
    {HOST_1, {0, "fe00::1"}, "host 1 of 2, 4 ranks, fe00::1:29500, job ?, 0 restarts"},
    {"NODE_RANK=1", {2, "n7"}, "host 1 of 2, 0 ranks, n7:29500, job ?, 0 restarts"},
    {HOST_1 "ZERO_JOB=mine", {0}, "host 1 of 2, 4 ranks, m:29500, job zero-run.mine, 0 restarts"},
    // Elastic jobs have a number where it is given.
    {"PET_NNODES=1:4 PET_NPROC_PER_NODE=2 RANK=1 WORLD_SIZE=4 MASTER_ADDR=m MASTER_PORT=1",
     {2, NULL},
     "host 1 of 2, 2 ranks, m:1, job ?, 0 restarts"},
    {"PET_NNODES=1:4 PET_NPROC_PER_NODE=1 RANK=1 WORLD_SIZE=4 MASTER_ADDR=m MASTER_PORT=1",
     {0},
     "host 1 of 4, 1 ranks, m:1, job ?, 0 restarts"},
    {"PET_NNODES=2:2 PET_NPROC_PER_NODE=2 RANK=1 WORLD_SIZE=4 PET_RDZV_ENDPOINT=j-worker-0:23456 "
     "PET_RDZV_BACKEND=c10d PET_RDZV_ID=j",
     {0},
     "host 1 of 2, 2 ranks, j-worker-0:23456, job Kubeflow.j, 0 restarts"},
    {"AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=2 "
     "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
     {0},
     "host 1 of 3, 0 ranks, 10.0.0.9:29500, job ?, 0 restarts"},
    // Volcano's own number is one of a task.
    {"VC_TASK_INDEX=0 VC_A_HOSTS=a-0 VC_B_HOSTS=b-0,b-1 NODE_RANK=2 MASTER_ADDR=a-0",
     {3, NULL},
     "host 2 of 3, 0 ranks, a-0:29500, job ?, 0 restarts"},
    {"LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=l-0.l.ns",
     {0},
     "host 1 of 2, 0 ranks, l-0.l.ns:29500, job ?, 0 restarts"},
    {"TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=t-0,t-1",
     {0},
     "host 1 of 2, 0 ranks, t-0:29500, job ?, 0 restarts"},
};

static void hosts_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct boot_environment made;
        char answer[BOOT_ANSWER_BYTES];
        boot_environment_make(&made, others[i].variables, NULL);
        boot_ask_zero_run(answer, &others[i].given, made.list);
        boot_check_answer(others[i].variables, "zero-run", answer, others[i].answer);
    }
}

// Ranks that zero-run has started on hosts of a platform have the platform's variables, too.
static void ranks_of_hosts_know_their_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++) {
        struct boot_environment made;
        char answer[BOOT_ANSWER_BYTES];
        if (*boot_sets[i].zero_run == '!')
            continue;
        boot_environment_make(
            &made, boot_sets[i].variables,
            "ZERO_RANK=5 ZERO_WORLD_SIZE=8 ZERO_LOCAL_RANK=1 ZERO_LOCAL_WORLD_SIZE=4 RANK=5 "
            "WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 ZERO_HOST=1 ZERO_HOSTS=2 "
            "ZERO_MASTER_ADDR=h ZERO_MASTER_PORT=9 ZERO_JOB=j");
        boot_ask_library(answer, made.list);
        boot_check_answer(boot_sets[i].name, "rank", answer,
                          "rank 5 of 8, 1 of 4 here, 2 hosts, h:9");
        boot_ask_zero_run(answer, NULL, made.list);
        boot_check_answer(boot_sets[i].name, "rank", answer, BOOT_STARTED("zero-run"));
    }
}

// A job of two hosts that goes on with one rank, beside the step that has started both.
static void the_last_rank_of_hosts_is_alone(void **state)
{
    (void)state;
    struct boot_environment made;
    char answer[BOOT_ANSWER_BYTES];
    boot_environment_make(&made,
                          "SLURM_JOB_ID=8 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "
                          "ZERO_RANK=0 ZERO_WORLD_SIZE=1 ZERO_HOST=1 ZERO_HOSTS=1 ZERO_JOB=j",
                          NULL);
    boot_ask_library(answer, made.list);
    boot_check_answer("one rank", "rank", answer, "rank 0 of 1, ? of 1 here, 1 hosts, ?");
}

/* ------------------------------------------------------------------ any set */

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

// A variable of any set, with its own value or another one.
static void add_any(struct boot_environment *made, uint64_t *seed)
{
    static const char *const values[] = {"",  "0",  "1",   "2",       "3",
                                         "x", "-1", "1:2", "[\"1\"]", "1,2"};
    static struct boot_environment from;
    char variable[BOOT_SET_BYTES];
    boot_environment_make(&from, boot_sets[next(seed) % boot_set_count].variables, NULL);
    const char *entry = from.list[next(seed) % (uint64_t)from.count];
    if (next(seed) % 2)
        snprintf(variable, sizeof variable, "%s", entry);
    else
        snprintf(variable, sizeof variable, "%.*s%s", (int)boot_name_length(entry), entry,
                 values[next(seed) % (sizeof values / sizeof *values)]);
    boot_environment_add(made, variable, true);
}

// Whatever there is, rank and zero-run do not contradict each other, and answers are whole.
static void any_set_has_one_answer(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        struct boot_environment made = {.count = 0};
        struct boot_hosts hosts;
        struct boot_place place;
        struct base_error error = {.result = ZERO_OK};
        const struct boot_hosts_given given = {.hosts = (int)(next(&seed) % 8 ? 0 : 2)};
        static char text[8192];
        for (uint64_t count = next(&seed) % 9; count > 0; count--)
            add_any(&made, &seed);
        const zero_result found = boot_find_hosts(&hosts, &given, made.list, &error);
        const bool ranked = boot_discover(&place, made.list, NULL) == ZERO_OK;
        boot_explain(&given, made.list, text, sizeof text);
        assert_true(strlen(text) + 1 < sizeof text);
        if (found) {
            assert_true(found == ZERO_E_INVALID || found == ZERO_E_UNSUPPORTED);
            assert_null(strchr(error.message, '\n'));
            assert_true(strlen(error.message) > 8);
            continue;
        }
        assert_true(hosts.host >= 0 && hosts.host < hosts.hosts);
        if (hosts.hosts > 1)
            assert_true(hosts.master.port && (*hosts.master.address || hosts.host == 0));
        if (ranked &&
            (place.world > 1 ? place.world != hosts.hosts : hosts.hosts > 1 && !given.hosts))
            fail_msg("rank %d of %d, but host %d of %d:\n%s", place.rank, place.world, hosts.host,
                     hosts.hosts, text);
    }
}

static void restarts_are_added(void **state)
{
    (void)state;
    static const struct {
        const char *variables;
        int restarts;
    } cases[] = {
        {"HOME=/", 0},
        {"ZERO_RESTARTS=3 TORCHELASTIC_RESTART_COUNT=9", 9},
        {"TORCHELASTIC_RESTART_COUNT=2 SLURM_RESTART_COUNT=1", 3},
        {"JOBSET_RESTART_ATTEMPT=4", 4},
        {"JOBSET_RESTART_ATTEMPT=", 0},
        {"AWS_BATCH_JOB_ATTEMPT=1", 0},
        {"AWS_BATCH_JOB_ATTEMPT=2", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct boot_environment made;
        int restarts = -1;
        boot_environment_make(&made, cases[i].variables, NULL);
        assert_int_equal(boot_restarts(&restarts, made.list, NULL), ZERO_OK);
        assert_int_equal(restarts, cases[i].restarts);
    }
    struct boot_environment made;
    struct base_error error = {.result = ZERO_OK};
    int restarts;
    boot_environment_make(&made, "JOBSET_RESTART_ATTEMPT=often", NULL);
    assert_int_equal(boot_restarts(&restarts, made.list, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "JOBSET_RESTART_ATTEMPT=often"));
}

static void hosts_are_explained(void **state)
{
    (void)state;
    struct boot_environment made;
    char text[4096];
    boot_environment_make(&made, HOST_1 "PET_MASTER_PORT=23456 SLURM_RESTART_COUNT=2", NULL);
    boot_explain(NULL, made.list, text, sizeof text);
    assert_non_null(strstr(text, "no rank      PET_NNODES=2, "));
    assert_non_null(strstr(text, "host         1 of 2, ranks of each 4, from PET_NNODES=2, "
                                 "PET_NODE_RANK=1, PET_NPROC_PER_NODE=4 (Kubeflow)\n"));
    assert_non_null(strstr(text, "host 0 is at port 23456 of m, from PET_MASTER_ADDR, "
                                 "PET_MASTER_PORT\n"));
    assert_non_null(strstr(text, "restarts     2 so far\n"));
    boot_environment_make(&made, "JOB_COMPLETION_INDEX=1", NULL);
    boot_explain(&(struct boot_hosts_given){.hosts = 3, .master = "m"}, made.list, text,
                 sizeof text);
    assert_non_null(strstr(text, "host         1 of 3, ranks of each left open, from "
                                 "JOB_COMPLETION_INDEX=1, --nodes (Kubernetes)\n"));
    assert_non_null(strstr(text, "host 0 is at port 29500 of m, from --master\n"));
    boot_environment_make(&made, boot_sets[0].variables, NULL);
    boot_explain(NULL, made.list, text, sizeof text);
    assert_null(strstr(text, "host 0 is at"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_is_understood),
        cmocka_unit_test(half_a_set_is_no_other_job),
        cmocka_unit_test(leavings_change_nothing),
        cmocka_unit_test(contradictions_are_shown),
        cmocka_unit_test(hosts_are_found),
        cmocka_unit_test(ranks_of_hosts_know_their_place),
        cmocka_unit_test(the_last_rank_of_hosts_is_alone),
        cmocka_unit_test(any_set_has_one_answer),
        cmocka_unit_test(restarts_are_added),
        cmocka_unit_test(hosts_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
