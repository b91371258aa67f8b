// TF_CONFIG: {"cluster": {"chief": ["host:port"], "worker": [...]}, "task": {"type": "worker",
// "index": 0}}. The chief, if there is one, is rank 0, and the workers follow.

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <jansson.h>
#include <string.h>

static json_t *load(char *const *environment)
{
    const char *value = boot_variable(environment, "TF_CONFIG");
    return value ? json_loads(value, JSON_REJECT_DUPLICATES, NULL) : NULL;
}

// The address of rank `rank`, NULL if there is none or it is no string.
static const char *address_of(json_t *cluster, size_t rank)
{
    json_t *chief = json_object_get(cluster, "chief");
    const size_t chiefs = json_array_size(chief);
    return rank < chiefs ? json_string_value(json_array_get(chief, rank))
                         : json_string_value(
                               json_array_get(json_object_get(cluster, "worker"), rank - chiefs));
}

static size_t host_length(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon ? (size_t)(colon - address) : strlen(address);
}

// Ranks whose address has the same host, and how many of them come before this one.
static bool count_local(struct boot_reading *reading, json_t *cluster)
{
    const char *mine = address_of(cluster, (size_t)reading->rank);
    reading->local_rank = 0;
    reading->local_world = 0;
    for (int rank = 0; rank < reading->world; rank++) {
        const char *other = address_of(cluster, (size_t)rank);
        if (!mine || !other)
            return false;
        const size_t length = host_length(mine);
        if (host_length(other) != length || memcmp(mine, other, length))
            continue;
        reading->local_world++;
        reading->local_rank += rank < reading->rank;
    }
    return true;
}

static bool parse(struct boot_reading *reading, json_t *root)
{
    json_t *cluster = json_object_get(root, "cluster"), *task = json_object_get(root, "task");
    const char *type = json_string_value(json_object_get(task, "type"));
    json_t *index = json_object_get(task, "index");
    const size_t chiefs = json_array_size(json_object_get(cluster, "chief"));
    const size_t workers = json_array_size(json_object_get(cluster, "worker"));
    if (!type || !json_is_integer(index) || chiefs + workers == 0 ||
        chiefs + workers > BOOT_NUMBER_MAX)
        return false;

    const bool chief = !strcmp(type, "chief");
    if (!chief && strcmp(type, "worker"))
        return false;
    const json_int_t place = json_integer_value(index);
    if (place < 0 || (size_t)place >= (chief ? chiefs : workers))
        return false;
    reading->rank = (int)place + (chief ? 0 : (int)chiefs);
    reading->world = (int)(chiefs + workers);
    return count_local(reading, cluster);
}

zero_result boot_tensorflow_read(struct boot_reading *reading, char *const *environment,
                                 struct base_error *error)
{
    json_t *root = load(environment);
    const bool good = json_is_object(root);
    // Without a cluster it describes one process, and says nothing about ranks.
    reading->present = good && json_object_get(root, "cluster");
    const bool understood = good && (!reading->present || parse(reading, root));
    json_decref(root);
    if (!understood) {
        char shown[128];
        struct base_text text = {shown, sizeof shown, 0};
        boot_text_add_variable(&text, "TF_CONFIG", boot_variable(environment, "TF_CONFIG"));
        return zero_fail(error, ZERO_E_INVALID,
                         "%s is no JSON with a cluster of chief and workers, and one of them as "
                         "task",
                         shown);
    }
    struct base_text source = {reading->source, sizeof reading->source, 0};
    base_text_add(&source, "TF_CONFIG (task %d of %d)", reading->rank, reading->world);
    return ZERO_OK;
}

bool boot_tensorflow_address(struct base_text *text, char *const *environment)
{
    json_t *root = load(environment);
    const char *address = address_of(json_object_get(root, "cluster"), 0);
    if (address)
        base_text_add(text, "%s", address);
    json_decref(root);
    return address != NULL;
}
