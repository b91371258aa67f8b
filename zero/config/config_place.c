// Which rank of which job a context is: what the program, its launcher and zero-run say.

#include "zero/config/config_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A number that zero-run passes; *value keeps its default if the variable isn't set.
static zero_result read_number(const char *name, int min, int max, int *value,
                               struct base_error *error)
{
    const char *text = getenv(name);
    if (!text)
        return ZERO_OK;
    const struct eng_key key = {
        .name = name, .kind = ENG_KEY_INT32, .min = min, .max = max, .doc = "set by zero-run"};
    char given[ENG_VALUE_BYTES];
    eng_key_show_given(given, name, text);
    int64_t number;
    const zero_result result = eng_key_parse(&key, text, given, &number, error);
    if (!result)
        *value = (int)number;
    return result;
}

static zero_result read_descriptor(const char *name, int *fd, struct base_error *error)
{
    *fd = -1;
    const zero_result result = read_number(name, 3, 1 << 20, fd, error);
    if (!result && *fd >= 0 && fcntl(*fd, F_GETFD) < 0)
        return zero_fail_errno(error, ZERO_E_INVALID, errno, "%s=%d is no open descriptor", name,
                               *fd);
    return result;
}

static zero_result read_plan_mode(struct eng_config *config, struct base_error *error)
{
    int plan = 0, probe = 0, world = config->world, here = 0, least = 0;
    zero_result result = read_number("ZERO_PLAN", 0, 1, &plan, error);
    if (!result)
        result = read_number("ZERO_PLAN_PROBE", 0, 1, &probe, error);
    if (!result)
        result = read_number("ZERO_PLAN_WORLD", 1, BOOT_WORLD_MAX, &world, error);
    if (!result)
        result = read_number("ZERO_PLAN_LOCAL_WORLD", 1, world, &here, error);
    if (!result)
        result = read_number("ZERO_PLAN_LEAST_LOCAL_WORLD", 1, here ? here : world, &least, error);
    if (!result)
        result = read_descriptor("ZERO_PLAN_FD", &config->plan_fd, error);
    if (!result)
        result = read_descriptor("ZERO_METRICS_FD", &config->metrics_fd, error);
    if (result)
        return result;
    config->plan = plan == 1;
    config->probe = plan == 1 && probe == 1;
    if (config->plan) {
        config->rank = 0;
        config->world = world;
        config->local_world = config->most_here = here;
        config->least_here = least;
        config->local_rank = -1;
    }
    if (config->plan || config->rank != 0)
        config->metrics_fd = -1;
    return ZERO_OK;
}

// The entry of the environment, unless it is empty, or the program's own word.
static void add_variable(struct eng_place_variables *variables, const char *name, char *own)
{
    const size_t length = strlen(name);
    char **next = variables->entries;
    while (*next)
        next++;
    *next = own;
    for (char **entry = environ; entry && *entry; entry++)
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=' && (*entry)[length + 1])
            *next = *entry;
}

char *const *eng_config_place_variables(const struct eng_config *config,
                                        struct eng_place_variables *variables)
{
    if (!*config->own_job)
        return environ;
    *variables = (struct eng_place_variables){.entries = {NULL}};
    snprintf(variables->job, sizeof variables->job, "ZERO_JOB=%s", config->own_job);
    snprintf(variables->address, sizeof variables->address, "ZERO_MASTER_ADDR=%s",
             config->own_address);
    snprintf(variables->port, sizeof variables->port, "ZERO_MASTER_PORT=%d", config->own_port);
    add_variable(variables, "ZERO_JOB", variables->job);
    add_variable(variables, "ZERO_MASTER_ADDR", variables->address);
    add_variable(variables, "ZERO_MASTER_PORT", variables->port);
    add_variable(variables, "ZERO_SECRET", NULL);
    return variables->entries;
}

// A word with its final zero.
static bool is_word(const char *text, size_t size)
{
    size_t length = 0;
    while (length < size && text[length] > ' ' && text[length] <= '~')
        length++;
    return length > 0 && length < size && !text[length];
}

// The job's name, and where its rank 0 is, if the program says that.
static zero_result read_own_place(struct eng_config *config, const zero_config *user,
                                  struct base_error *error)
{
    const bool with_address = *user->master_addr || user->master_port;
    if (!*user->job && !with_address)
        return ZERO_OK;
    if (!user->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.job, .master_addr or .master_port is set, but .world is 0: "
                         "give rank and world");
    if (!is_word(user->job, sizeof user->job))
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.job, which .master_addr and .master_port come with, is no "
                         "word of at most %zu bytes without blanks",
                         sizeof user->job - 1);
    if (with_address && (!is_word(user->master_addr, sizeof user->master_addr) ||
                         user->master_port < 1 || user->master_port > BOOT_PORT_MAX))
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.master_addr and .master_port = %d: give both, a word without "
                         "blanks and a port from 1 to %d, or none",
                         user->master_port, BOOT_PORT_MAX);
    memcpy(config->own_job, user->job, sizeof user->job);
    memcpy(config->own_address, user->master_addr, sizeof user->master_addr);
    config->own_port = user->master_port;
    return ZERO_OK;
}

static zero_result place_from_struct(struct eng_config *config, const zero_config *user,
                                     struct base_error *error)
{
    if (user->world > BOOT_WORLD_MAX || user->rank < 0 || user->rank >= user->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.rank = %d, .world = %d: a world has 1 to %d ranks, the "
                         "first is 0",
                         user->rank, user->world, BOOT_WORLD_MAX);
    config->rank = user->rank;
    config->world = user->world;
    config->local_rank = -1;
    snprintf(config->launcher, sizeof config->launcher, "zero_config");
    struct eng_place_variables variables;
    boot_job(config->job, eng_config_place_variables(config, &variables));
    eng_config_ask_launcher(config);
    return ZERO_OK;
}

// Ranks of several hosts of which it is not known how many are here can meet at an address only.
static zero_result check_address(const struct boot_place *place, struct base_error *error)
{
    struct boot_master master;
    struct base_error why = {.result = ZERO_OK};
    bool offered;
    if (!boot_place_is_apart(place) || place->local_world)
        return ZERO_OK;
    const zero_result result =
        boot_manager_look(&offered, place->rank, place->world, environ, error);
    if (result || offered || boot_find_master(&master, environ, &why) == ZERO_OK)
        return result;
    return zero_fail(error, why.result, "%s: the ranks are on %d hosts, but %s", place->source,
                     place->hosts, why.message);
}

static zero_result place_from_launcher(struct eng_config *config, const zero_config *user,
                                       struct base_error *error)
{
    if (user->rank || user->team)
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.%s is set, but .world is 0: give rank and world",
                         user->rank ? "rank" : "team");
    struct boot_place place;
    zero_result result = boot_manager_discover(&place, environ, error);
    if (!result)
        result = check_address(&place, error);
    if (result)
        return result;
    if (place.world > BOOT_WORLD_MAX)
        return zero_fail(error, ZERO_E_INVALID, "%s: a world has at most %d ranks", place.source,
                         BOOT_WORLD_MAX);
    config->rank = place.rank;
    config->world = place.world;
    config->local_world = place.local_world;
    config->local_rank = place.local_rank;
    memcpy(config->launcher, place.launcher, sizeof config->launcher);
    memcpy(config->job, place.job, sizeof config->job);
    return ZERO_OK;
}

// What zero-run says of the starts before, with those that it has found counted around it; without
// zero-run what others count. A world that the program has made up has no first one.
static zero_result read_history(struct eng_config *config, struct base_error *error)
{
    config->first_world = config->world;
    zero_result result = getenv("ZERO_RESTARTS")
                             ? read_number("ZERO_RESTARTS", 0, INT32_MAX, &config->restarts, error)
                             : boot_restarts(&config->restarts, environ, error);
    if (!result && !config->plan && !strcmp(config->launcher, "zero-run"))
        result = read_number("ZERO_FIRST_WORLD", 1, BOOT_WORLD_MAX, &config->first_world, error);
    return result;
}

zero_result eng_config_find_place(struct eng_config *config, const zero_config *user,
                                  struct base_error *error)
{
    const char *name = user->name ? user->name : ENG_CONTEXT_NAME;
    if (!*name || strlen(name) >= sizeof config->name)
        return zero_fail(error, ZERO_E_INVALID, "zero_config.name has %zu bytes: 1 to %zu fit",
                         strlen(name), sizeof config->name - 1);
    strcpy(config->name, name);
    config->team = user->team;
    zero_result result = read_own_place(config, user, error);
    if (!result)
        result = user->world ? place_from_struct(config, user, error)
                             : place_from_launcher(config, user, error);
    if (!result)
        result = read_plan_mode(config, error);
    return result ? result : read_history(config, error);
}
