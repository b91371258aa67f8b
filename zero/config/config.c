#include "zero/config/config.h"

#include "base/file.h"
#include "zero/config/config_key.h"
#include "zero/model/versioned.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Variables that zero-run, launchers and tests set: known, but no keys.
static const char *const other_variables[] = {
    "ZERO_FAULT",       "ZERO_JOB",
    "ZERO_LOCAL_RANK",  "ZERO_LOCAL_WORLD_SIZE",
    "ZERO_OPTIONS",     "ZERO_METRICS_FD",
    "ZERO_CONTROL_FD",  "ZERO_PLAN",
    "ZERO_PLAN_FD",     "ZERO_PLAN_WORLD",
    "ZERO_RANK",        "ZERO_WORLD_SIZE",
    "ZERO_RESTARTS",    "ZERO_FIRST_WORLD",
    "ZERO_MASTER_ADDR", "ZERO_MASTER_PORT",
    "ZERO_SECRET",      "ZERO_PLAN_LOCAL_WORLD",
    "ZERO_PMI",         "ZERO_STOP_SIGNAL",
    "ZERO_PLAN_PROBE",  "ZERO_HOST",
    "ZERO_HOSTS",       "ZERO_PLAN_LEAST_LOCAL_WORLD",
};

// What zero_config has beside the keys: no option can set it for every context of a program.
static const char *const struct_only[] = {
    "world", "rank", "name", "team", "nccl_comm", "log_user", "job", "master_addr", "master_port"};

struct resolution {
    struct eng_config *config;
    int64_t values[ENG_CONFIG_KEYS];
    struct base_error *error;
};

// A text that is taken as it is.
static zero_result set_text(struct resolution *resolution, int index, const char *text,
                            const char *given)
{
    char *field = (char *)resolution->config + eng_keys[index].config_offset;
    if (!*text || strlen(text) >= ENG_VALUE_BYTES)
        return zero_fail(resolution->error, ZERO_E_INVALID, "%s: %s (%s) has 1 to %d bytes", given,
                         eng_keys[index].name, eng_keys[index].doc, ENG_VALUE_BYTES - 1);
    memcpy(field, text, strlen(text) + 1);
    return ZERO_OK;
}

static zero_result set_from_text(struct resolution *resolution, int index, const char *text,
                                 enum eng_source source, const char *given)
{
    struct eng_config *config = resolution->config;
    config->sources[index] = source;
    if (eng_keys[index].kind == ENG_KEY_TEXT)
        return set_text(resolution, index, text, given);
    if (eng_keys[index].kind != ENG_KEY_LEVELS)
        return eng_key_parse(&eng_keys[index], text, given, &resolution->values[index],
                             resolution->error);
    struct base_log scratch = {.sink = NULL};
    struct base_error reason = {.result = ZERO_OK};
    if (strlen(text) >= sizeof config->log_text)
        return zero_fail(resolution->error, ZERO_E_INVALID, "%s: too long", given);
    if (base_log_parse(&scratch, text, &reason))
        return zero_fail(resolution->error, ZERO_E_INVALID, "%s: %s", given, reason.message);
    strcpy(config->log_text, text);
    return ZERO_OK;
}

static zero_result read_text(struct resolution *resolution, int index, const zero_config *user)
{
    char given[ENG_VALUE_BYTES];
    const char *text;
    memcpy(&text, (const char *)user + eng_keys[index].user_offset, sizeof text);
    if (!text)
        return ZERO_OK;
    snprintf(given, sizeof given, "zero_config.%s = \"%.40s\"", eng_keys[index].name, text);
    return set_from_text(resolution, index, text, ENG_SOURCE_STRUCT, given);
}

static zero_result read_struct(struct resolution *resolution, const zero_config *user)
{
    for (int i = 0; i < ENG_CONFIG_KEYS; i++) {
        bool set;
        const zero_result result = eng_key_from_struct(&eng_keys[i], user, &resolution->values[i],
                                                       &set, resolution->error);
        if (result)
            return result;
        if (set)
            resolution->config->sources[i] = ENG_SOURCE_STRUCT;
        if (eng_keys[i].kind == ENG_KEY_TEXT && read_text(resolution, i, user))
            return resolution->error->result;
    }
    return ZERO_OK;
}

// ZERO_ and the key in upper case.
static void variable_name(const char *key, char *name, size_t size)
{
    snprintf(name, size, "ZERO_%s", key);
    for (char *byte = name; *byte; byte++)
        if (*byte >= 'a' && *byte <= 'z')
            *byte = (char)(*byte - 'a' + 'A');
}

static zero_result read_environment(struct resolution *resolution)
{
    for (int i = 0; i < ENG_CONFIG_KEYS; i++) {
        char name[40], given[ENG_VALUE_BYTES];
        variable_name(eng_keys[i].name, name, sizeof name);
        const char *text = getenv(name);
        if (!text)
            continue;
        eng_key_show_given(given, name, text);
        const zero_result result =
            set_from_text(resolution, i, text, ENG_SOURCE_ENVIRONMENT, given);
        if (result)
            return result;
    }
    return ZERO_OK;
}

static zero_result refuse_option(const char *line, size_t name_length, struct base_error *error)
{
    const int length = name_length < 40 ? (int)name_length : 40;
    for (size_t i = 0; i < sizeof struct_only / sizeof *struct_only; i++)
        if (strlen(struct_only[i]) == name_length && !memcmp(struct_only[i], line, name_length))
            return zero_fail(error, ZERO_E_INVALID,
                             "-o %.*s: comes from the launcher or the program, never from an "
                             "option",
                             length, line);
    const char *closest = eng_key_closest(line, name_length);
    return zero_fail(error, ZERO_E_INVALID, "-o %.*s: there is no such key%s%s%s", length, line,
                     closest ? "; did you mean " : "", closest ? closest : "", closest ? "?" : "");
}

// One line of ZERO_OPTIONS, "key=value".
static zero_result read_option(struct resolution *resolution, const char *line, size_t length)
{
    struct base_error *error = resolution->error;
    const char *equals = memchr(line, '=', length);
    if (!equals)
        return zero_fail(error, ZERO_E_INVALID, "-o %.*s: write it as key=value",
                         length < 60 ? (int)length : 60, line);
    const size_t name_length = (size_t)(equals - line);
    const int index = eng_key_find(line, name_length);
    if (index < 0)
        return refuse_option(line, name_length, error);
    if (resolution->config->sources[index] == ENG_SOURCE_OPTION)
        return zero_fail(error, ZERO_E_INVALID, "-o %s is given twice", eng_keys[index].name);

    char text[ENG_VALUE_BYTES], given[ENG_VALUE_BYTES];
    const size_t text_length = length - name_length - 1;
    if (text_length >= sizeof text)
        return zero_fail(error, ZERO_E_INVALID, "-o %s: the value is too long",
                         eng_keys[index].name);
    memcpy(text, equals + 1, text_length);
    text[text_length] = '\0';
    char option[40];
    snprintf(option, sizeof option, "-o %s", eng_keys[index].name);
    eng_key_show_given(given, option, text);
    return set_from_text(resolution, index, text, ENG_SOURCE_OPTION, given);
}

static zero_result read_options(struct resolution *resolution)
{
    const char *line = getenv("ZERO_OPTIONS");
    while (line && *line) {
        const size_t length = strcspn(line, "\n");
        const zero_result result = length ? read_option(resolution, line, length) : ZERO_OK;
        if (result)
            return result;
        line += length;
        line += *line == '\n';
    }
    return ZERO_OK;
}

bool eng_config_on_several_hosts(const struct eng_config *config)
{
    return config->local_world && config->local_world != config->world;
}

// A default that follows from the place, or from another value.
static int64_t derive(const struct eng_config *config, const struct eng_key *key)
{
    if (key->config_offset == offsetof(struct eng_config, micro_batches))
        return config->first_world;
    if (key->config_offset == offsetof(struct eng_config, prefetch_units))
        return strcmp(config->offload_params, "nvme") ? 2 : 4;
    return config->team                          ? ENG_TRANSPORT_THREADS
           : config->world == 1                  ? ENG_TRANSPORT_SELF
           : eng_config_on_several_hosts(config) ? ENG_TRANSPORT_TCP
                                                 : ENG_TRANSPORT_SHM;
}

static void store(struct eng_config *config, const struct eng_key *key, int64_t value)
{
    void *field = (char *)config + key->config_offset;
    const int32_t narrow = (int32_t)value;
    assert(key->kind != ENG_KEY_CHOICE || (value >= 0 && value <= key->max));
    switch (key->kind) {
    case ENG_KEY_INT32:
    case ENG_KEY_ENUM:
        memcpy(field, &narrow, sizeof narrow);
        break;
    case ENG_KEY_INT64:
    case ENG_KEY_BYTES:
    case ENG_KEY_UINT64:
    case ENG_KEY_NAMED:
        memcpy(field, &value, sizeof value);
        break;
    case ENG_KEY_CHOICE:
        memcpy(field, &key->choices[value], sizeof key->choices[value]);
        break;
    case ENG_KEY_TEXT:
    case ENG_KEY_LEVELS:
        break;
    }
}

// The reverse of store().
static int64_t load(const struct eng_config *config, const struct eng_key *key)
{
    const void *field = (const char *)config + key->config_offset;
    int32_t narrow;
    int64_t wide;
    const char *text;
    switch (key->kind) {
    case ENG_KEY_INT32:
    case ENG_KEY_ENUM:
        memcpy(&narrow, field, sizeof narrow);
        return narrow;
    case ENG_KEY_INT64:
    case ENG_KEY_BYTES:
    case ENG_KEY_UINT64:
    case ENG_KEY_NAMED:
        memcpy(&wide, field, sizeof wide);
        return wide;
    case ENG_KEY_CHOICE:
        memcpy(&text, field, sizeof text);
        for (wide = 0; strcmp(key->choices[wide], text); wide++)
            ;
        return wide;
    case ENG_KEY_TEXT:
    case ENG_KEY_LEVELS:
        break;
    }
    return 0;
}

void eng_config_place(struct eng_config *config, int local_rank, int local_world)
{
    const struct eng_key *key = &eng_keys[eng_key_find("transport", strlen("transport"))];
    config->local_rank = local_rank;
    config->local_world = local_world;
    if (!eng_config_given(config, "transport"))
        store(config, key, derive(config, key));
}

void eng_config_found_transport(struct eng_config *config, const char *transport)
{
    const struct eng_key *key = &eng_keys[eng_key_find("transport", strlen("transport"))];
    if (config->any_provider && strcmp(transport, "ucx") == 0)
        store(config, key, ENG_TRANSPORT_UCX);
}

// "auto" is what no value is.
static void drop_auto_transport(struct resolution *resolution)
{
    const int index = eng_key_find("transport", strlen("transport"));
    if (resolution->values[index] != ENG_TRANSPORT_AUTO)
        return;
    resolution->values[index] = ENG_KEY_DERIVED;
    resolution->config->sources[index] = ENG_SOURCE_DEFAULT;
}

static void store_all(struct resolution *resolution)
{
    drop_auto_transport(resolution);
    for (int i = 0; i < ENG_CONFIG_KEYS; i++)
        if (resolution->values[i] != ENG_KEY_DERIVED)
            store(resolution->config, &eng_keys[i], resolution->values[i]);
    for (int i = 0; i < ENG_CONFIG_KEYS; i++)
        if (resolution->values[i] == ENG_KEY_DERIVED)
            store(resolution->config, &eng_keys[i], derive(resolution->config, &eng_keys[i]));
}

static zero_result set_log(struct eng_config *config, const zero_config *user,
                           struct base_error *error)
{
    config->log.sink = user->log;
    config->log.user = user->log_user;
    config->log.rank = config->rank;
    return base_log_parse(&config->log, config->log_text, error);
}

static bool known_variable(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof other_variables / sizeof *other_variables; i++)
        if (strlen(other_variables[i]) == length && !memcmp(other_variables[i], name, length))
            return true;
    for (int i = 0; i < ENG_CONFIG_KEYS; i++) {
        char variable[40];
        variable_name(eng_keys[i].name, variable, sizeof variable);
        if (strlen(variable) == length && !memcmp(variable, name, length))
            return true;
    }
    return false;
}

// Other programs may have variables of that prefix, so these are no errors.
static void warn_of_unknown_variables(const struct eng_config *config)
{
    for (char *const *entry = environ; config->rank == 0 && entry && *entry; entry++) {
        const size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "ZERO_", 5) || known_variable(*entry, length))
            continue;
        char key[40];
        snprintf(key, sizeof key, "%.*s", (int)(length - 5), *entry + 5);
        for (char *byte = key; *byte; byte++)
            if (*byte >= 'A' && *byte <= 'Z')
                *byte = (char)(*byte - 'A' + 'a');
        const char *closest = eng_key_closest(key, strlen(key));
        char variable[40] = "";
        if (closest)
            variable_name(closest, variable, sizeof variable);
        base_logf(&config->log, ZERO_LOG_WARN, "core", "%.*s is no variable of zero%s%s%s",
                  (int)length, *entry, closest ? "; did you mean " : "", variable,
                  closest ? "?" : "");
    }
}

/** Files stay where they are when the program changes its working directory. */
static zero_result resolve_directory(struct eng_config *config, struct base_error *error)
{
    char given[ENG_VALUE_BYTES];
    if (!*config->nvme_dir)
        return ZERO_OK;
    snprintf(given, sizeof given, "%.*s", (int)sizeof given - 1, config->nvme_dir);
    return base_absolute_path(given, config->nvme_dir, sizeof config->nvme_dir, error);
}

zero_result eng_config_resolve(struct eng_config *config, const zero_config *user,
                               struct base_error *error)
{
    const zero_config defaults = zero_config_default();
    zero_config known;
    *config = (struct eng_config){
        .plan_fd = -1,
        .metrics_fd = -1,
    };
    zero_result result =
        eng_struct_copy(&known, sizeof known, user ? user : &defaults, "zero_config", error);
    if (!result && (known.reserved || known.reserved_end))
        result = zero_fail(error, ZERO_E_INVALID, "zero_config.reserved%s is %u: it must be 0",
                           known.reserved ? "" : "_end",
                           known.reserved ? known.reserved : known.reserved_end);
    if (!result)
        result = eng_config_find_place(config, &known, error);

    struct resolution resolution = {.config = config, .error = error};
    for (int i = 0; i < ENG_CONFIG_KEYS; i++)
        resolution.values[i] = eng_keys[i].fallback;
    if (!result)
        result = read_struct(&resolution, &known);
    if (!result)
        result = read_environment(&resolution);
    if (!result)
        result = read_options(&resolution);
    if (result) {
        boot_manager_leave();
        return result;
    }

    store_all(&resolution);
    config->nccl_comm = known.nccl_comm;
    result = resolve_directory(config, error);
    if (!result)
        result = eng_config_decide(config, error);
    if (!result)
        result = set_log(config, &known, error);
    if (!result)
        warn_of_unknown_variables(config);
    if (result)
        boot_manager_leave();
    return result;
}

enum eng_source eng_config_source(const struct eng_config *config, const char *key)
{
    const int index = eng_key_find(key, strlen(key));
    assert(index >= 0);
    return config->sources[index];
}

void eng_config_set_source(struct eng_config *config, const char *key, enum eng_source source)
{
    const int index = eng_key_find(key, strlen(key));
    assert(index >= 0);
    config->sources[index] = source;
}

int64_t eng_config_value(const struct eng_config *config, const char *key)
{
    const int index = eng_key_find(key, strlen(key));
    assert(index >= 0);
    return load(config, &eng_keys[index]);
}

bool eng_config_given(const struct eng_config *config, const char *key)
{
    const enum eng_source source = eng_config_source(config, key);
    return source != ENG_SOURCE_DEFAULT && source != ENG_SOURCE_CHECKPOINT;
}

static void source_name(const struct eng_config *config, int index, char *name, size_t size)
{
    switch (config->sources[index]) {
    case ENG_SOURCE_DEFAULT:
        snprintf(name, size, "default");
        break;
    case ENG_SOURCE_STRUCT:
        snprintf(name, size, "zero_config");
        break;
    case ENG_SOURCE_ENVIRONMENT:
        variable_name(eng_keys[index].name, name, size);
        break;
    case ENG_SOURCE_OPTION:
        snprintf(name, size, "-o");
        break;
    case ENG_SOURCE_CALL:
        snprintf(name, size, "zero_set_micro_batches");
        break;
    case ENG_SOURCE_CHECKPOINT:
        snprintf(name, size, "checkpoint");
        break;
    }
}

static void describe_key(const struct eng_config *config, int index, struct eng_config_entry *entry)
{
    entry->key = eng_keys[index].name;
    if (eng_keys[index].kind == ENG_KEY_LEVELS || eng_keys[index].kind == ENG_KEY_TEXT) {
        const char *text = eng_keys[index].kind == ENG_KEY_TEXT
                               ? (const char *)config + eng_keys[index].config_offset
                               : config->log_text;
        snprintf(entry->value, sizeof entry->value, "%s", *text ? text : "-");
    } else
        eng_key_show(&eng_keys[index], load(config, &eng_keys[index]), entry->value,
                     sizeof entry->value);
    source_name(config, index, entry->source, sizeof entry->source);
}

bool eng_config_entry(const struct eng_config *config, int index, struct eng_config_entry *entry)
{
    if (index > ENG_CONFIG_KEYS)
        return false;
    if (index > 0) {
        describe_key(config, index - 1, entry);
        return true;
    }
    entry->key = "world";
    snprintf(entry->value, sizeof entry->value, "%d", config->world);
    snprintf(entry->source, sizeof entry->source, "%s",
             config->plan ? "zero-run --plan" : config->launcher);
    return true;
}
