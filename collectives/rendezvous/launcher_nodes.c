// What PET_*, SageMaker, AWS Batch, Volcano and indexed Jobs of Kubernetes say of hosts, each in a
// way of its own.

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_platforms.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ PET_* */

// "1:4" is an elastic job: how many hosts there are is decided while it runs.
static zero_result read_pet_nodes(struct boot_nodes *nodes, const char *count,
                                  struct base_error *error)
{
    char least[16];
    const char *colon = strchr(count, ':');
    int from = 0, to = 0;
    nodes->nodes = 0;
    if (!colon)
        return boot_number(&nodes->nodes, "PET_NNODES", count, 1, BOOT_NUMBER_MAX, error);
    snprintf(least, sizeof least, "%.*s", (int)(colon - count), count);
    if (boot_number(&from, "", least, 1, BOOT_NUMBER_MAX, NULL) ||
        boot_number(&to, "", colon + 1, from, BOOT_NUMBER_MAX, NULL)) {
        char shown[128];
        struct base_text text = {shown, sizeof shown, 0};
        boot_text_add_variable(&text, "PET_NNODES", count);
        return zero_fail(error, ZERO_E_INVALID, "%s is no number of hosts, and no range MIN:MAX",
                         shown);
    }
    nodes->nodes = from == to ? from : 0;
    nodes->least = from;
    nodes->most = to;
    return ZERO_OK;
}

// How many processes a pod has: a number, or "auto", "gpu" and the like, which leave it open. A job
// that says nothing has one.
static bool has_one_process(const char *processes)
{
    return !processes || !strcmp(processes, "1");
}

zero_result boot_pet_read(struct boot_nodes *nodes, char *const *environment,
                          struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    const char *processes = boot_variable(environment, "PET_NPROC_PER_NODE");
    const char *node = boot_variable(environment, "PET_NODE_RANK");
    // Without a number of pods WORLD_SIZE may count pods or, where they have several, processes.
    const bool several = !has_one_process(processes) && boot_variable(environment, "RANK") &&
                         !boot_variable(environment, "LOCAL_RANK");
    if (!count && !node && !several)
        return ZERO_OK;
    nodes->present = true;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "PET_NNODES", count);
    boot_text_list_variable(&source, "PET_NODE_RANK", node);
    zero_result result = count ? read_pet_nodes(nodes, count, error) : ZERO_OK;
    if (!result && node)
        result = boot_number(&nodes->node, "PET_NODE_RANK", node, 0, BOOT_NUMBER_MAX, error);
    nodes->alone = nodes->nodes == 1 && has_one_process(processes);
    return result;
}

// PET_NNODES; or WORLD_SIZE, which counts pods where it is none of torchrun's, if PET_NNODES is
// missing or a range ("1:4") with that number in it. 0: they don't say.
static zero_result read_pods(int *pods, char *const *environment, struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    struct boot_nodes said = {.most = BOOT_NUMBER_MAX};
    zero_result result = count ? read_pet_nodes(&said, count, error) : ZERO_OK;
    *pods = said.nodes;
    if (result || *pods || boot_variable(environment, "LOCAL_RANK"))
        return result;
    struct boot_reading world = {.local_rank = -1};
    result = boot_pair_read(&world, "RANK", "WORLD_SIZE", environment, error);
    if (!result && world.present)
        *pods = world.world <= said.most ? world.world : 0;
    return result;
}

// The number of the pod: in jobs of the training operator RANK and WORLD_SIZE count pods too.
static zero_result read_pet_rank(struct boot_reading *reading, char *const *environment,
                                 struct base_error *error)
{
    const char *node = boot_variable(environment, "PET_NODE_RANK");
    if (node)
        return boot_number(&reading->rank, "PET_NODE_RANK", node, 0, reading->world - 1, error);
    struct boot_reading pods = {.local_rank = -1};
    const zero_result result = boot_pair_read(&pods, "RANK", "WORLD_SIZE", environment, error);
    reading->rank = !result && pods.present && pods.world == reading->world ? pods.rank : -1;
    return result;
}

zero_result boot_kubeflow_read(struct boot_reading *reading, char *const *environment,
                               struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    const char *processes = boot_variable(environment, "PET_NPROC_PER_NODE");
    if (strcmp(processes, "1") != 0)
        return ZERO_OK;
    zero_result result = read_pods(&reading->world, environment, error);
    if (result || reading->world <= 1)
        return result;
    result = read_pet_rank(reading, environment, error);
    if (result || reading->rank < 0)
        return result;
    reading->present = true;
    reading->local_rank = 0;
    reading->local_world = 1;
    reading->hosts = reading->world;
    const char *node = boot_variable(environment, "PET_NODE_RANK");
    const bool of_world = !count || strchr(count, ':');
    struct base_text source = {reading->source, sizeof reading->source, 0};
    boot_text_list_variable(&source, node ? "PET_NODE_RANK" : "RANK",
                            node ? node : boot_variable(environment, "RANK"));
    boot_text_list_variable(&source, "WORLD_SIZE",
                            of_world ? boot_variable(environment, "WORLD_SIZE") : NULL);
    boot_text_list_variable(&source, "PET_NNODES", count);
    boot_text_list_variable(&source, "PET_NPROC_PER_NODE", processes);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ others */

zero_result boot_sagemaker_read(struct boot_nodes *nodes, char *const *environment,
                                struct base_error *error)
{
    const char *hosts = boot_variable(environment, "SM_HOSTS");
    const char *here = boot_variable(environment, "SM_CURRENT_HOST");
    if (!hosts && !here)
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "SM_HOSTS", hosts);
    boot_text_list_variable(&source, "SM_CURRENT_HOST", here);
    nodes->present = true;
    if (!hosts)
        return zero_fail(error, ZERO_E_INVALID, "%s is set, but SM_HOSTS is not", nodes->source);
    json_t *list = json_loads(hosts, 0, NULL);
    const size_t count = json_array_size(list);
    const char *first = json_string_value(json_array_get(list, 0));
    for (size_t i = 0; here && i < count && i < BOOT_NUMBER_MAX; i++) {
        const char *host = json_string_value(json_array_get(list, i));
        if (host && !strcmp(host, here))
            nodes->node = (int)i;
    }
    if (first && strlen(first) < sizeof nodes->address)
        strcpy(nodes->address, first);
    nodes->address_from = "SM_HOSTS";
    json_decref(list);
    if (count == 0 || count > BOOT_NUMBER_MAX)
        return zero_fail(error, ZERO_E_INVALID, "%s: SM_HOSTS is no JSON list of hosts",
                         nodes->source);
    if (here && nodes->node < 0)
        return zero_fail(error, ZERO_E_INVALID, "%s: this host is none of the list", nodes->source);
    nodes->alone = count == 1;
    nodes->nodes = (int)count;
    return ZERO_OK;
}

// The main node is host 0, whatever its number; all others are told its address.
zero_result boot_aws_read(struct boot_nodes *nodes, char *const *environment,
                          struct base_error *error)
{
    const char *text = boot_variable(environment, "AWS_BATCH_JOB_MAIN_NODE_INDEX");
    nodes->alone = nodes->nodes == 1;
    if (!nodes->present || !text)
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, strlen(nodes->source)};
    boot_text_list_variable(&source, "AWS_BATCH_JOB_MAIN_NODE_INDEX", text);
    int main_node = 0;
    const int most = nodes->nodes ? nodes->nodes - 1 : BOOT_NUMBER_MAX;
    const zero_result result =
        boot_number(&main_node, "AWS_BATCH_JOB_MAIN_NODE_INDEX", text, 0, most, error);
    if (!result && nodes->nodes && nodes->node >= 0 && nodes->node < nodes->nodes)
        nodes->node = (nodes->node - main_node + nodes->nodes) % nodes->nodes;
    assert(nodes->node >= -1);
    return result;
}

// RANK and WORLD_SIZE without LOCAL_RANK, which may count hosts as well as processes: both are the
// same if it is one. A half is none.
zero_result boot_bare_read(struct boot_nodes *nodes, char *const *environment,
                           struct base_error *error)
{
    struct boot_reading reading = {.local_rank = -1};
    if (boot_variable(environment, "LOCAL_RANK"))
        return ZERO_OK;
    const zero_result result = boot_pair_read(&reading, "RANK", "WORLD_SIZE", environment, error);
    if (result || !reading.present)
        return result;
    nodes->present = true;
    nodes->alone = reading.world == 1;
    nodes->nodes = reading.world;
    nodes->node = reading.rank;
    memcpy(nodes->source, reading.source, sizeof nodes->source);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ Volcano */

/** A task of a job, while its variables are read: VC_<TASK>_NUM, VC_<TASK>_HOSTS. */
struct task {
    char name[100]; /**< without the end */
    const char *number, *hosts;
};

static const char *variable_of_task(const struct task *task, const char *end,
                                    char *const *environment)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", task->name, end);
    return boot_variable(environment, name);
}

// Whether an entry of the environment is a task's, seen for the first time.
static bool read_task(struct task *task, const char *prefix, const char *entry,
                      char *const *environment)
{
    const char *value = strchr(entry, '=');
    const size_t length = value ? (size_t)(value - entry) : 0;
    const bool number = length > 7 && !strncmp(value - 4, "_NUM", 4);
    const bool hosts = length > 9 && !strncmp(value - 6, "_HOSTS", 6);
    if (strncmp(entry, prefix, 3) != 0 || (!number && !hosts) || length > sizeof task->name)
        return false;
    snprintf(task->name, sizeof task->name, "%.*s", (int)length - (number ? 4 : 6), entry);
    task->number = variable_of_task(task, "_NUM", environment);
    task->hosts = variable_of_task(task, "_HOSTS", environment);
    if (hosts && task->number)
        return false;
    return (task->number && task->hosts) || boot_variable(environment, "VC_TASK_INDEX") ||
           boot_variable(environment, "VK_TASK_INDEX");
}

static zero_result add_task(struct boot_nodes *nodes, const struct task *task,
                            struct base_error *error)
{
    char name[128];
    struct base_text source = {nodes->source, sizeof nodes->source, strlen(nodes->source)};
    assert(task->number || task->hosts);
    snprintf(name, sizeof name, "%s_%s", task->name, task->number ? "NUM" : "HOSTS");
    boot_text_list_variable(&source, name, task->number ? task->number : task->hosts);
    nodes->present = true;
    int pods = 0;
    const int listed = task->hosts ? boot_items(task->hosts) : 0;
    const zero_result result =
        task->number ? boot_number(&pods, name, task->number, 0, BOOT_NUMBER_MAX, error) : ZERO_OK;
    if (result)
        return result;
    if (task->number && task->hosts && pods != listed)
        return zero_fail(error, ZERO_E_INVALID, "%s, but %s_HOSTS lists %d", nodes->source,
                         task->name, listed);
    // Host 0 is the first one of the only task.
    const char *first = task->hosts;
    const size_t length = first ? boot_first_item(&first) : 0;
    const bool found = length && length < sizeof nodes->address && !nodes->nodes;
    snprintf(nodes->address, sizeof nodes->address, "%.*s", found ? (int)length : 0,
             found ? first : "");
    nodes->address_from = "the first of VC_*_HOSTS";
    nodes->nodes += task->number ? pods : listed;
    return ZERO_OK;
}

// Volcano gives each pod VC_<TASK>_NUM, the number of a task's pods, and VC_<TASK>_HOSTS for all
// tasks of its job (VK_* in older ones). All of these pods are the job. The index is of a task, so
// it numbers the pods of a job with one task only.
zero_result boot_volcano_read(struct boot_nodes *nodes, char *const *environment,
                              struct base_error *error)
{
    static const char *const prefixes[] = {"VC_", "VK_"};
    static const char *const names[] = {"VC_TASK_INDEX", "VK_TASK_INDEX"};
    const char *name;
    const char *index = boot_first_variable(&name, names, 2, environment);
    int tasks = 0;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, name, index);
    zero_result result = ZERO_OK;
    for (int i = 0; i < 2 && !tasks; i++)
        for (char *const *entry = environment; entry && *entry && !result; entry++) {
            struct task task;
            if (!read_task(&task, prefixes[i], *entry, environment))
                continue;
            result = add_task(nodes, &task, error);
            tasks++;
        }
    nodes->alone = nodes->nodes == 1;
    if (!result && tasks == 1 && index)
        result = boot_number(&nodes->node, name, index, 0, BOOT_NUMBER_MAX, error);
    return result;
}

/* ------------------------------------------------------------------ Kubernetes */

// "train-workers-2-7", pod 7 of the third of several jobs: whether there are others before it.
static bool is_of_later_job(const char *host, const char *index)
{
    const size_t digits = strlen(index), length = strlen(host);
    if (length < digits + 3 || strcmp(host + length - digits, index) != 0 ||
        host[length - digits - 1] != '-')
        return false;
    const char *job = host + length - digits - 1;
    while (job > host && job[-1] >= '0' && job[-1] <= '9')
        job--;
    return job > host && job[-1] == '-' && *job != '0';
}

// Pod 0 of a JobSet's first job: its domain has the JobSet's name.
static void find_pod_0(struct boot_nodes *nodes, const char *index, char *const *environment)
{
    static const char *const names[] = {"REPLICATED_JOB_NAME", "REPLICATED_JOB"};
    const char *name;
    const char *set = boot_variable(environment, "JOBSET_NAME");
    const char *part = boot_first_variable(&name, names, 2, environment);
    const char *host = boot_variable(environment, "HOSTNAME");
    const size_t length = set ? strlen(set) : 0, host_length = host ? strlen(host) : 0;
    const size_t tail = strlen(index) + 3; // "-0-7"
    if (!length)
        return;
    nodes->address_from =
        part && *part ? "JOBSET_NAME, REPLICATED_JOB_NAME" : "JOBSET_NAME, HOSTNAME";
    if (part && *part)
        snprintf(nodes->address, sizeof nodes->address, "%s-%s-0-0.%s", set, part, set);
    else if (host && !strncmp(host, set, length) && host_length > length + tail &&
             !strncmp(host + host_length - tail, "-0-", 3) &&
             !strcmp(host + host_length - strlen(index), index))
        snprintf(nodes->address, sizeof nodes->address, "%.*s-0-0.%s", (int)(host_length - tail),
                 host, set);
}

// An indexed Job, or one of those of a JobSet.
zero_result boot_indexed_read(struct boot_nodes *nodes, char *const *environment,
                              struct base_error *error)
{
    const char *index = boot_variable(environment, "JOB_COMPLETION_INDEX");
    const char *job = boot_variable(environment, "JOB_INDEX");
    const char *host = boot_variable(environment, "HOSTNAME");
    if (!index)
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "JOB_COMPLETION_INDEX", index);
    nodes->present = true;
    const zero_result result =
        boot_number(&nodes->node, "JOB_COMPLETION_INDEX", index, 0, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    const bool of_set = boot_variable(environment, "JOBSET_NAME");
    if ((job && strcmp(job, "0") != 0) || (of_set && host && is_of_later_job(host, index))) {
        boot_text_list_variable(&source, job ? "JOB_INDEX" : "HOSTNAME", job ? job : host);
        nodes->node = -1;
    }
    find_pod_0(nodes, index, environment);
    return ZERO_OK;
}
