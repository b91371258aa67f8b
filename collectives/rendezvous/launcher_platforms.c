// Platforms that start one process a host, most of them by a pair of variables. A launcher of the
// host's ranks may multiply them; a rank itself cannot tell what they mean for it, unless they say
// that there is one process a host.

#include "collectives/rendezvous/launcher_platforms.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { NAMES = 3, SAGEMAKER_PORT = 7777, AZURE_PORT = 6105 };

/** Variables of one platform. The first name of a list that is set counts. */
struct platform {
    const char *name;
    const char *index[NAMES];   /**< this host's number */
    const char *count[NAMES];   /**< how many hosts there are */
    const char *ranks[NAMES];   /**< of each host */
    const char *address[NAMES]; /**< of host 0; the first one of a list */
    const char *job[NAMES];
    int port;
    unsigned flags;
    /** Reads it instead of index and count, and what more there is; may be NULL. */
    zero_result (*read)(struct boot_nodes *nodes, char *const *environment,
                        struct base_error *error);
};

static const struct platform platforms[] = {
    {.name = "Kubeflow",
     .ranks = {"PET_NPROC_PER_NODE"},
     .address = {"PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"},
     .job = {"PET_RDZV_ID"},
     .flags = BOOT_NODES_INDEXED,
     .read = boot_pet_read},
    {.name = "SageMaker",
     .ranks = {"SM_NUM_GPUS"},
     .job = {"TRAINING_JOB_NAME"},
     .port = SAGEMAKER_PORT,
     .read = boot_sagemaker_read},
    {.name = "by hand",
     .index = {"NODE_RANK"},
     .count = {"NNODES"},
     .ranks = {"NPROC_PER_NODE"},
     .flags = BOOT_NODES_WEAK},
    {.name = "AWS Batch",
     .index = {"AWS_BATCH_JOB_NODE_INDEX"},
     .count = {"AWS_BATCH_JOB_NUM_NODES"},
     .address = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"},
     .job = {"AWS_BATCH_JOB_ID"},
     .flags = BOOT_NODES_OTHERS,
     .read = boot_aws_read},
    {.name = "Azure ML",
     .index = {"AZUREML_CR_NODE_RANK", "NODE_RANK"},
     .count = {"AZUREML_NODE_COUNT"},
     .address = {"AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP", "AZ_BATCH_HOST_LIST"},
     .job = {"AZUREML_RUN_ID"},
     .port = AZURE_PORT},
    {.name = "Azure ML",
     .index = {"NODE_RANK", "AZUREML_CR_NODE_RANK"},
     .count = {"AZ_BATCH_HOST_LIST"},
     .address = {"AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP", "AZ_BATCH_HOST_LIST"},
     .job = {"AZUREML_RUN_ID"},
     .port = AZURE_PORT,
     .flags = BOOT_NODES_LIST},
    {.name = "SkyPilot",
     .index = {"SKYPILOT_NODE_RANK"},
     .count = {"SKYPILOT_NUM_NODES"},
     .ranks = {"SKYPILOT_NUM_GPUS_PER_NODE"},
     .address = {"SKYPILOT_NODE_IPS"},
     .job = {"SKYPILOT_TASK_ID"}},
    {.name = "LeaderWorkerSet",
     .index = {"LWS_WORKER_INDEX"},
     .count = {"LWS_GROUP_SIZE"},
     .address = {"LWS_LEADER_ADDRESS"}},
    {.name = "Beaker",
     .index = {"BEAKER_REPLICA_RANK"},
     .count = {"BEAKER_REPLICA_COUNT"},
     .ranks = {"BEAKER_ASSIGNED_GPU_COUNT"},
     .address = {"BEAKER_LEADER_REPLICA_HOSTNAME"}},
    {.name = "Base Command", .index = {"NGC_ARRAY_INDEX"}, .count = {"NGC_ARRAY_SIZE"}},
    {.name = "dstack",
     .index = {"DSTACK_NODE_RANK"},
     .count = {"DSTACK_NODES_NUM"},
     .ranks = {"DSTACK_GPUS_PER_NODE"},
     .address = {"DSTACK_MASTER_NODE_IP"}},
    {.name = "a TPU slice",
     .index = {"TPU_WORKER_ID"},
     .count = {"TPU_WORKER_HOSTNAMES"},
     .address = {"TPU_WORKER_HOSTNAMES"},
     .flags = BOOT_NODES_WEAK | BOOT_NODES_LIST},
    {.name = "JAX",
     .index = {"JAX_PROCESS_ID"},
     .count = {"JAX_NUM_PROCESSES"},
     .address = {"JAX_COORDINATOR_ADDRESS"},
     .flags = BOOT_NODES_INDEXED},
    {.name = "Volcano", .flags = BOOT_NODES_PART, .read = boot_volcano_read},
    {.name = "torchrun",
     .index = {"GROUP_RANK"},
     .count = {"GROUP_WORLD_SIZE"},
     .flags = BOOT_NODES_STARTED},
    {.name = "DeepSpeed",
     .index = {"CROSS_RANK"},
     .count = {"CROSS_SIZE"},
     .flags = BOOT_NODES_WEAK | BOOT_NODES_STARTED},
    {.name = "Flux", .count = {"FLUX_JOB_NNODES"}, .flags = BOOT_NODES_STARTED},
    {.name = "torchft",
     .index = {"REPLICA_GROUP_ID"},
     .count = {"NUM_REPLICA_GROUPS"},
     .flags = BOOT_NODES_WEAK | BOOT_NODES_STARTED},
    {.name = "without LOCAL_RANK",
     .ranks = {"NPROC_PER_NODE"},
     .flags = BOOT_NODES_BARE,
     .read = boot_bare_read},
    {.name = "Kubernetes",
     .job = {"JOBSET_NAME"},
     .flags = BOOT_NODES_PART,
     .read = boot_indexed_read},
};
const size_t boot_platforms = sizeof platforms / sizeof *platforms;

static const char *value_of(const char **name, const char *const names[NAMES],
                            char *const *environment)
{
    return boot_first_variable(name, names, NAMES, environment);
}

static zero_result read_pair(struct boot_nodes *nodes, const struct platform *platform,
                             bool counted, char *const *environment, struct base_error *error)
{
    const char *index_name = NULL, *count_name = NULL;
    const char *index = value_of(&index_name, platform->index, environment);
    const char *count = value_of(&count_name, platform->count, environment);
    const bool weak = platform->flags & BOOT_NODES_WEAK;
    if (!count && !(counted && index))
        return ZERO_OK;
    int number = 0, place = -1;
    zero_result result = ZERO_OK;
    if (count && platform->flags & BOOT_NODES_LIST)
        number = boot_items(count);
    else if (count)
        result = boot_number(&number, count_name, count, 1, BOOT_NUMBER_MAX, weak ? NULL : error);
    if (!result && index)
        result = boot_number(&place, index_name, index, 0, BOOT_NUMBER_MAX, weak ? NULL : error);
    if (weak && (result || (count && !number)))
        return ZERO_OK;
    struct base_text source = {nodes->source, sizeof nodes->source, 0};
    boot_text_list_variable(&source, index_name, index);
    boot_text_list_variable(&source, count_name, count);
    assert(number >= 0 && place >= -1);
    nodes->present = true;
    nodes->nodes = number;
    nodes->node = place;
    return result;
}

// The first of a list, without the port that some have.
static void read_address(struct boot_nodes *nodes, const struct platform *platform,
                         char *const *environment)
{
    const char *name;
    const char *value = value_of(&name, platform->address, environment);
    if (!value || *nodes->address)
        return;
    const size_t length = boot_first_item(&value);
    if (length == 0 || length >= sizeof nodes->address)
        return;
    memcpy(nodes->address, value, length);
    nodes->address[length] = '\0';
    nodes->address_from = name;
    char *colon = strrchr(nodes->address, ':');
    if (!colon || strchr(nodes->address, ':') != colon)
        return; // of IPv6 perhaps
    // The port of Azure's batch service is its own.
    if (!nodes->port)
        boot_number(&nodes->port, "", colon + 1, 1, BOOT_PORT_MAX, NULL);
    *colon = '\0';
}

zero_result boot_platform_read(struct boot_nodes *nodes, size_t index, bool counted,
                               char *const *environment, struct base_error *error)
{
    assert(index < boot_platforms);
    const struct platform *platform = &platforms[index];
    *nodes = (struct boot_nodes){
        .node = -1, .flags = platform->flags, .platform = platform->name, .port = platform->port};
    zero_result result = ZERO_OK;
    if (platform->index[0] || platform->count[0])
        result = read_pair(nodes, platform, counted, environment, error);
    if (!result && platform->read)
        result = platform->read(nodes, environment, error);
    if (!nodes->present)
        return result;
    const char *name = NULL;
    const char *ranks = value_of(&name, platform->ranks, environment);
    if (ranks) // a number, or "auto", "gpu" and the like, which leave it open
        boot_number(&nodes->processes, "", ranks, 1, BOOT_NUMBER_MAX, NULL);
    struct base_text source = {nodes->source, sizeof nodes->source, strlen(nodes->source)};
    boot_text_list_variable(&source, name, ranks);
    nodes->job = value_of(&name, platform->job, environment);
    read_address(nodes, platform, environment);
    if (!platform->read)
        nodes->alone = nodes->nodes == 1;
    return result;
}

// A launcher's ranks do without most platforms: what is malformed there is an error only where it
// would be used.
zero_result boot_nodes_read(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error)
{
    for (size_t i = 0; i < boot_platforms; i++) {
        const bool strict = i < 2 || platforms[i].flags & BOOT_NODES_BARE;
        const zero_result result =
            boot_platform_read(nodes, i, false, environment, strict ? error : NULL);
        if (result && strict)
            return result;
        if (result)
            nodes->nodes = nodes->alone = 0;
        if (nodes->present)
            return ZERO_OK;
    }
    *nodes = (struct boot_nodes){.node = -1};
    return ZERO_OK;
}
