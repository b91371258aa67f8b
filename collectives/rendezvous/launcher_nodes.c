// Variables that number hosts (pods, nodes): one value for all processes of a host. A launcher that
// starts the processes of a host may multiply them; a rank itself cannot tell what they mean for
// it, unless they say that there is one process a host.

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <jansson.h>
#include <string.h>

/* ------------------------------------------------------------------ PET_* */

// "1:4" is an elastic job: how many hosts there are is decided while it runs.
static zero_result read_pet_nodes(int *nodes, const char *count, struct base_error *error)
{
    *nodes = 0;
    return strchr(count, ':') ? ZERO_OK
                              : boot_number(nodes, "PET_NNODES", count, 1, BOOT_NUMBER_MAX, error);
}

static zero_result read_pet(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    const char *processes = boot_variable(environment, "PET_NPROC_PER_NODE");
    const char *node = boot_variable(environment, "PET_NODE_RANK");
    if (!count)
        return ZERO_OK;
    nodes->present = true;
    zero_result result = read_pet_nodes(&nodes->nodes, count, error);
    if (!result && node)
        result = boot_number(&nodes->node, "PET_NODE_RANK", node, 0, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    // A number, or "auto", "gpu" and the like.
    if (!processes || boot_number(&nodes->processes, "", processes, 1, BOOT_NUMBER_MAX, NULL))
        nodes->processes = processes ? 0 : 1;
    nodes->alone = nodes->nodes == 1 && nodes->processes == 1;

    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "PET_NNODES", count);
    boot_text_list_variable(&source, "PET_NPROC_PER_NODE", processes);
    return ZERO_OK;
}

// PET_NNODES; or WORLD_SIZE, which counts pods where it is none of torchrun's, if PET_NNODES is
// missing or a range ("1:4") with that number in it. 0: they don't say.
static zero_result read_pods(int *pods, char *const *environment, struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    *pods = 0;
    zero_result result = count ? read_pet_nodes(pods, count, error) : ZERO_OK;
    if (result || *pods || boot_variable(environment, "LOCAL_RANK"))
        return result;
    struct boot_reading world = {.local_rank = -1};
    result = boot_pair_read(&world, "RANK", "WORLD_SIZE", environment, error);
    int most = BOOT_NUMBER_MAX;
    if (result || !world.present ||
        (count && boot_number(&most, "", strchr(count, ':') + 1, 1, BOOT_NUMBER_MAX, NULL)))
        return result;
    *pods = world.world <= most ? world.world : 0;
    return ZERO_OK;
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

static zero_result read_sagemaker(struct boot_nodes *nodes, char *const *environment,
                                  struct base_error *error)
{
    const char *hosts = boot_variable(environment, "SM_HOSTS");
    const char *here = boot_variable(environment, "SM_CURRENT_HOST");
    const char *devices = boot_variable(environment, "SM_NUM_GPUS");
    if (!hosts)
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "SM_HOSTS", hosts);
    json_t *list = json_loads(hosts, 0, NULL);
    const size_t count = json_array_size(list);
    for (size_t i = 0; here && i < count && i < BOOT_NUMBER_MAX; i++) {
        const char *host = json_string_value(json_array_get(list, i));
        if (host && !strcmp(host, here))
            nodes->node = (int)i;
    }
    json_decref(list);
    if (count == 0 || count > BOOT_NUMBER_MAX)
        return zero_fail(error, ZERO_E_INVALID, "%s is no JSON list of hosts", nodes->source);
    nodes->present = true;
    nodes->alone = count == 1;
    nodes->nodes = (int)count;
    // Without GPUs it does not say how many.
    if (devices)
        boot_number(&nodes->processes, "", devices, 1, BOOT_NUMBER_MAX, NULL);
    return ZERO_OK;
}

// A rank and a world that may count hosts as well as processes: both are the same if it is one.
// A half is none.
static zero_result read_bare(struct boot_nodes *nodes, const char *rank, const char *world,
                             char *const *environment, struct base_error *error)
{
    struct boot_reading reading = {.local_rank = -1};
    const zero_result result = boot_pair_read(&reading, rank, world, environment, error);
    if (result || !reading.present)
        return result;
    nodes->present = true;
    nodes->alone = reading.world == 1;
    nodes->nodes = reading.world;
    nodes->node = reading.rank;
    nodes->processes = reading.world == 1 ? 1 : 0;
    memcpy(nodes->source, reading.source, sizeof nodes->source);
    return ZERO_OK;
}

static void read_indexed_job(struct boot_nodes *nodes, char *const *environment)
{
    const char *index = boot_variable(environment, "JOB_COMPLETION_INDEX");
    if (!index)
        return;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, "JOB_COMPLETION_INDEX", index);
    boot_number(&nodes->node, "", index, 0, BOOT_NUMBER_MAX, NULL);
    nodes->present = true;
}

zero_result boot_nodes_read(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error)
{
    *nodes = (struct boot_nodes){.node = -1};
    zero_result result = read_pet(nodes, environment, error);
    if (!result && !nodes->present)
        result = read_sagemaker(nodes, environment, error);
    if (!result && !nodes->present && !boot_variable(environment, "LOCAL_RANK"))
        result = read_bare(nodes, "RANK", "WORLD_SIZE", environment, error);
    if (!result && !nodes->present)
        result = read_bare(nodes, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", environment, error);
    if (!result && !nodes->present)
        boot_signs_of_hosts(nodes, environment);
    if (!result && !nodes->present)
        read_indexed_job(nodes, environment);
    return result;
}
