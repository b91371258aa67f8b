// Variables that number hosts (pods, nodes): one value for all processes of a host. Whoever starts
// the processes of a host may multiply them; a rank itself cannot tell what they mean for it.

#include "collectives/boot/environment.h"
#include "collectives/boot/family.h"

#include <jansson.h>
#include <string.h>

static zero_result read_kubeflow(struct boot_nodes *nodes, char *const *environment,
                                 struct base_error *error)
{
    const char *count = boot_variable(environment, "PET_NNODES");
    const char *processes = boot_variable(environment, "PET_NPROC_PER_NODE");
    if (!count)
        return ZERO_OK;
    nodes->present = true;
    // "1:4" is an elastic job: how many there are is decided while it runs.
    if (!strchr(count, ':')) {
        const zero_result result =
            boot_number(&nodes->nodes, "PET_NNODES", count, 1, BOOT_NUMBER_MAX, error);
        if (result)
            return result;
    }
    nodes->processes = !processes || !strcmp(processes, "1") ? 1 : 0;

    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_add_variable(&source, "PET_NNODES", count);
    if (processes) {
        base_text_add(&source, ", ");
        boot_text_add_variable(&source, "PET_NPROC_PER_NODE", processes);
    }
    return ZERO_OK;
}

static zero_result read_sagemaker(struct boot_nodes *nodes, char *const *environment,
                                  struct base_error *error)
{
    const char *hosts = boot_variable(environment, "SM_HOSTS");
    if (!hosts)
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_add_variable(&source, "SM_HOSTS", hosts);
    json_t *list = json_loads(hosts, 0, NULL);
    const size_t count = json_array_size(list);
    json_decref(list);
    if (count == 0 || count > BOOT_NUMBER_MAX)
        return zero_fail(error, ZERO_E_INVALID, "%s is no JSON list of hosts", nodes->source);
    nodes->present = true;
    nodes->nodes = (int)count;
    nodes->processes = 1;
    return ZERO_OK;
}

// A rank and a world that may count hosts as well as processes: both are the same if it is one.
static zero_result read_bare(struct boot_nodes *nodes, const char *rank, const char *world,
                             char *const *environment, struct base_error *error)
{
    struct boot_reading reading = {.local_rank = -1};
    const zero_result result = boot_pair_read(&reading, rank, world, environment, error);
    if (result || !reading.present)
        return result;
    nodes->present = true;
    nodes->nodes = reading.world;
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
    boot_text_add_variable(&source, "JOB_COMPLETION_INDEX", index);
    nodes->present = true;
}

zero_result boot_nodes_read(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error)
{
    *nodes = (struct boot_nodes){.present = false};
    zero_result result = read_kubeflow(nodes, environment, error);
    if (!result && !nodes->present)
        result = read_sagemaker(nodes, environment, error);
    if (!result && !nodes->present && !boot_variable(environment, "LOCAL_RANK"))
        result = read_bare(nodes, "RANK", "WORLD_SIZE", environment, error);
    if (!result && !nodes->present)
        result = read_bare(nodes, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", environment, error);
    if (!result && !nodes->present)
        read_indexed_job(nodes, environment);
    return result;
}
