// Where rank 0 of a job of several hosts is: address and port each from the first source that has
// one.

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/mesh.h"
#include "collectives/rendezvous/process_manager.h"

#include "base/hash.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum {
    SLURM_PORT = 10000,
    SLURM_PORTS = 20000,
    LSF_PORT = 10000,
    LSF_PORTS = 1000,
    AZURE_PORT = 6105,
    AZURE_ONLY_PORT = 54965,
    SAGEMAKER_PORT = 7777,
};

static void add_source(struct boot_master *master, const char *source)
{
    const size_t used = strlen(master->source);
    if (strcmp(master->source, source) != 0)
        snprintf(master->source + used, sizeof master->source - used, "%s%s", used ? ", " : "",
                 source);
}

static zero_result set_address(struct boot_master *master, const char *name, const char *value,
                               size_t length, struct base_error *error)
{
    if (length > 2 && value[0] == '[' && value[length - 1] == ']') { // as in a URL
        value++;
        length -= 2;
    }
    bool good = length > 0 && length < sizeof master->address;
    for (size_t i = 0; i < length && good; i++)
        good = value[i] > ' ' && value[i] <= '~';
    if (!good) {
        char shown[128];
        struct base_text text = {shown, sizeof shown, 0};
        boot_text_add_variable(&text, name, value);
        return zero_fail(error, ZERO_E_INVALID, "%s has no name or address of a host", shown);
    }
    memcpy(master->address, value, length);
    master->address[length] = '\0';
    add_source(master, name);
    return ZERO_OK;
}

static void set_port(struct boot_master *master, int port, const char *source)
{
    master->port = port;
    add_source(master, source);
}

// The first host of "a[001-003,7]-x[1,2],b": "a001-x1". Returns its length, 0: there is none, or
// it does not fit.
static size_t first_host(const char *list, char *host, size_t size)
{
    size_t used = 0;
    for (; *list && *list != ',' && used < size; list++) {
        if (*list != '[') {
            host[used++] = *list;
            continue;
        }
        for (list++; *list && !strchr("-,]", *list) && used < size; list++)
            host[used++] = *list;
        list += strcspn(list, "]");
        if (!*list)
            return 0;
    }
    return used < size ? used : 0;
}

// Whether Slurm's step is of the job's own processes, and not of another launcher's daemons.
static bool is_of_slurm(char *const *environment)
{
    struct boot_reading slurm = {.present = false};
    struct boot_place place;
    return boot_family_read(&slurm, &boot_families[BOOT_SLURM], environment, NULL) == ZERO_OK &&
           slurm.present && boot_discover(&place, environment, NULL) == ZERO_OK &&
           place.rank == slurm.rank && place.world == slurm.world;
}

static zero_result of_slurm(struct boot_master *master, char *const *environment,
                            struct base_error *error)
{
    const char *job = boot_variable(environment, "SLURM_JOB_ID");
    const char *step = boot_variable(environment, "SLURM_STEP_ID");
    const char *name = "SLURM_STEP_NODELIST", *list = boot_variable(environment, name);
    if (!job || !step || !list || !is_of_slurm(environment))
        return ZERO_OK;
    if (!*master->address) {
        char host[BOOT_ADDRESS_BYTES];
        const size_t length = first_host(list, host, sizeof host);
        const zero_result result = set_address(master, name, length ? host : list, length, error);
        if (result)
            return result;
    }
    if (!master->port) {
        char id[64];
        const int length = snprintf(id, sizeof id, "%.30s.%.30s", job, step);
        set_port(master, SLURM_PORT + (int)(base_hash64(id, (size_t)length, 0) % SLURM_PORTS),
                 "SLURM_JOB_ID, SLURM_STEP_ID");
    }
    return ZERO_OK;
}

static zero_result of_tensorflow(struct boot_master *master, char *const *environment,
                                 struct base_error *error)
{
    char bytes[BOOT_ADDRESS_BYTES + 16] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    if (!boot_tensorflow_address(&text, environment))
        return ZERO_OK;
    const char *colon = strrchr(bytes, ':');
    zero_result result = ZERO_OK;
    if (!*master->address)
        result = set_address(master, "TF_CONFIG", bytes,
                             colon ? (size_t)(colon - bytes) : strlen(bytes), error);
    if (!result && !master->port && colon) {
        int port = 0;
        result = boot_number(&port, "the port of task 0 in TF_CONFIG", colon + 1, 1, BOOT_PORT_MAX,
                             error);
        set_port(master, port, "TF_CONFIG");
    }
    return result;
}

static zero_result of_variables(struct boot_master *master, char *const *environment,
                                const char *address_name, const char *port_name, int beyond,
                                struct base_error *error)
{
    const char *address = boot_variable(environment, address_name);
    const char *port = boot_variable(environment, port_name);
    zero_result result = ZERO_OK;
    if (address && !*master->address)
        result = set_address(master, address_name, address, strlen(address), error);
    if (port && !master->port && !result) {
        int number = 0;
        result = boot_number(&number, port_name, port, 1, BOOT_PORT_MAX - beyond, error);
        char source[64];
        snprintf(source, sizeof source, "%s%s", port_name, beyond ? " + 1" : "");
        set_port(master, number + beyond, source);
    }
    return result;
}

// An address without a port of ours, and the port that users of its platform take.
static zero_result of_platform(struct boot_master *master, const char *name, const char *address,
                               size_t length, int port, struct base_error *error)
{
    zero_result result = ZERO_OK;
    if (!*master->address)
        result = set_address(master, name, address, length, error);
    if (!result && !master->port)
        set_port(master, port, name);
    return result;
}

// AZ_BATCH_MASTER_NODE has a port too, the batch service's own. Jobs of one host have the other.
static zero_result of_azure(struct boot_master *master, char *const *environment,
                            struct base_error *error)
{
    const char *batch = boot_variable(environment, "AZ_BATCH_MASTER_NODE");
    const char *only = boot_variable(environment, "AZ_BATCHAI_MPI_MASTER_NODE");
    if (batch) {
        const char *colon = strrchr(batch, ':');
        return of_platform(master, "AZ_BATCH_MASTER_NODE", batch,
                           colon ? (size_t)(colon - batch) : strlen(batch), AZURE_PORT, error);
    }
    return only ? of_platform(master, "AZ_BATCHAI_MPI_MASTER_NODE", only, strlen(only),
                              AZURE_ONLY_PORT, error)
                : ZERO_OK;
}

static zero_result of_sagemaker(struct boot_master *master, char *const *environment,
                                struct base_error *error)
{
    const char *hosts = boot_variable(environment, "SM_HOSTS");
    json_t *list = hosts ? json_loads(hosts, 0, NULL) : NULL;
    const char *first = json_string_value(json_array_get(list, 0));
    const zero_result result =
        first ? of_platform(master, "SM_HOSTS", first, strlen(first), SAGEMAKER_PORT, error)
              : ZERO_OK;
    json_decref(list);
    return result;
}

// The first host that jsrun starts ranks on: LSF's list has the one of the batch script before it.
static size_t second_line(const char *path, char *host, size_t size)
{
    FILE *file = fopen(path, "re");
    const bool there = file && fgets(host, (int)size, file) && fgets(host, (int)size, file);
    if (file)
        fclose(file);
    return there ? strcspn(host, " \t\r\n") : 0;
}

static zero_result of_lsf(struct boot_master *master, char *const *environment,
                          struct base_error *error)
{
    const char *path = boot_variable(environment, "LSB_DJOB_RANKFILE");
    const char *job = boot_variable(environment, "LSB_JOBID");
    char host[BOOT_ADDRESS_BYTES] = "";
    const size_t digits = job ? strlen(job) : 0;
    int number = 0;
    if (!path || !digits || !boot_variable(environment, "JSM_NAMESPACE_RANK") ||
        boot_number(&number, "LSB_JOBID", digits > 3 ? job + digits - 3 : job, 0, LSF_PORTS - 1,
                    NULL))
        return ZERO_OK;
    const size_t length = second_line(path, host, sizeof host);
    return length ? of_platform(master, "LSB_DJOB_RANKFILE, LSB_JOBID", host, length,
                                LSF_PORT + number, error)
                  : ZERO_OK;
}

static zero_result of_platforms(struct boot_master *master, char *const *environment,
                                struct base_error *error)
{
    zero_result result = of_azure(master, environment, error);
    if (!result)
        result = of_sagemaker(master, environment, error);
    return result ? result : of_lsf(master, environment, error);
}

zero_result boot_master_secret(struct boot_master *master, char *const *environment,
                               struct base_error *error)
{
    const char *secret = boot_variable(environment, "ZERO_SECRET");
    if (!secret)
        return ZERO_OK;
    if (!*secret || strlen(secret) >= sizeof master->secret)
        return zero_fail(error, ZERO_E_INVALID, "ZERO_SECRET has %zu bytes: 1 to %zu fit",
                         strlen(secret), sizeof master->secret - 1);
    strcpy(master->secret, secret);
    return ZERO_OK;
}

// What the variables say, complete or not.
static zero_result look_for_master(struct boot_master *master, char *const *environment,
                                   struct base_error *error)
{
    *master = (struct boot_master){.port = 0};
    zero_result result =
        of_variables(master, environment, "ZERO_MASTER_ADDR", "ZERO_MASTER_PORT", 0, error);
    if (!result)
        result = of_variables(master, environment, "MASTER_ADDR", "MASTER_PORT", 1, error);
    if (!result)
        result = of_variables(master, environment, "PET_MASTER_ADDR", "PET_MASTER_PORT", 1, error);
    if (!result)
        result = of_slurm(master, environment, error);
    if (!result)
        result = of_tensorflow(master, environment, error);
    if (!result)
        result = of_platforms(master, environment, error);
    return result ? result : boot_master_secret(master, environment, error);
}

static zero_result check_complete(const struct boot_master *master, char *const *environment,
                                  struct base_error *error)
{
    if (*master->address && master->port)
        return ZERO_OK;
    const char *manager = *master->address ? NULL : boot_manager_name(environment);
    if (manager)
        return zero_fail(error, ZERO_E_INVALID,
                         "no variable says where rank 0 is: the ranks ask %s", manager);
    const bool asks =
        !*master->address && !boot_variable(environment, "ZERO_PMI") &&
        (boot_variable(environment, "PMI_FD") || boot_variable(environment, "PMI_PORT"));
    return zero_fail(
        error, ZERO_E_INVALID,
        "no variable says %s: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port of "
        "it, the same on all ranks%s",
        *master->address ? "at which port rank 0 listens" : "where rank 0 is",
        asks ? "; or ZERO_PMI=1, for a program without MPI, to ask the launcher" : "");
}

zero_result boot_find_master(struct boot_master *master, char *const *environment,
                             struct base_error *error)
{
    const zero_result result = look_for_master(master, environment, error);
    return result ? result : check_complete(master, environment, error);
}

zero_result boot_find_any_master(struct boot_master *master, char *const *environment,
                                 struct base_error *error)
{
    const zero_result result = look_for_master(master, environment, error);
    return result || !*master->address ? result : check_complete(master, environment, error);
}
