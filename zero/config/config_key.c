#include "zero/config/config_key.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const transports[] = {[ENG_TRANSPORT_AUTO] = "auto",
                                         [ENG_TRANSPORT_SELF] = "self",
                                         [ENG_TRANSPORT_THREADS] = "threads",
                                         [ENG_TRANSPORT_SHM] = "shm",
                                         [ENG_TRANSPORT_TCP] = "tcp",
                                         [ENG_TRANSPORT_UCX] = "ucx",
                                         NULL};
static const char *const kernels[] = {"auto", "ref", "avx2", "avx512", NULL};
static const char *const gathers[] = {"auto", "copy", "slots", "shared", NULL};
static const char *const reductions[] = {"canonical", "local", NULL};
static const char *const masters[] = {"f32", "none", NULL};
static const char *const moments[] = {"f32", "bf16", NULL};
static const char *const comm_dtypes[] = {"default", "f32", "bf16", "f16", NULL};
static const char *const nonfinite[] = {"default", "error", "skip", NULL};
static const char *const loss_scales[] = {"auto", "dynamic", "off", NULL};
static const char *const state_tiers[] = {"none", "host", "nvme", NULL};
static const char *const tiers[] = {"host", "nvme", NULL};
static const char *const device_transports[] = {"nccl", "host", NULL};
static const char *const registers[] = {"auto", "on", "off", NULL};
static const char *const updaters[] = {"auto", "host", "device", NULL};
static const char *const engines[] = {"auto", "uring", "uring-plain", "threads", "sync", NULL};
static const char *const recoveries[] = {"on", "durable", NULL};
static const char *const compressions[] = {"auto", "on", "off", NULL};
static const char *const levels[] = {"off", "error", "warn", "info", "debug", "trace", NULL};

#define FIELD(name)                                                                                \
    .user_offset = offsetof(zero_config, name), .config_offset = offsetof(struct eng_config, name)

#define CHOICES(list) .max = (int64_t)(sizeof(list) / sizeof *(list)) - 2, .choices = (list)

const struct eng_key eng_keys[ENG_CONFIG_KEYS] = {
    {"stage", ENG_KEY_INT32, FIELD(stage), .max = 3, .doc = "what is sharded"},
    {"transport", ENG_KEY_CHOICE, FIELD(transport), .fallback = ENG_KEY_DERIVED,
     CHOICES(transports), .doc = "how ranks move bytes"},
    {"micro_batches", ENG_KEY_INT32, FIELD(micro_batches), .min = 1, .max = ENG_MAX_MICRO_BATCHES,
     .fallback = ENG_KEY_DERIVED, .doc = "micro-batches of a step over all ranks"},
    {"prefetch_units", ENG_KEY_INT32, FIELD(prefetch_units), .max = 4096,
     .fallback = ENG_KEY_DERIVED, .off = true, .doc = "gathers kept ahead"},
    {"open_units", ENG_KEY_INT32, FIELD(open_units), .min = 1, .max = 1 << 20, .fallback = 4,
     .doc = "units a rank may hold open at once"},
    {"grad_units", ENG_KEY_INT32, FIELD(grad_units), .min = 1, .max = 1 << 20, .fallback = 4,
     .doc = "gradients a rank may hold open or in flight"},
    {"cpu_threads", ENG_KEY_INT32, FIELD(cpu_threads), .min = 1, .max = 1024, .fallback = 1,
     .doc = "threads of the update and of copies to and from the caller's memory"},
    {"persist_numel", ENG_KEY_INT64, FIELD(persist_numel), .max = INT64_C(1) << 40,
     .fallback = 1024, .off = true, .doc = "elements up to which a slice stays resident"},
    {"live_bytes", ENG_KEY_BYTES, FIELD(live_bytes), .max = INT64_C(1) << 50,
     .doc = "bytes of gathered units that may stay between uses"},
    {"seed", ENG_KEY_UINT64, FIELD(seed), .doc = "of random numbers"},
    {"nonfinite", ENG_KEY_ENUM, FIELD(nonfinite), .min = 1, .max = 2, .choices = nonfinite,
     .doc = "what a gradient that is not finite does"},
    {"loss_scale", ENG_KEY_NAMED, FIELD(loss_scale), .min = 1, .max = INT64_C(1) << 40,
     .fallback = ENG_LOSS_SCALE_AUTO, .choices = loss_scales,
     .doc = "what the loss is multiplied by"},
    {"loss_scale_init", ENG_KEY_INT64, FIELD(loss_scale_init), .min = 1, .max = INT64_C(1) << 40,
     .fallback = 65536, .doc = "what a dynamic loss scale begins with"},
    {"loss_scale_min", ENG_KEY_INT64, FIELD(loss_scale_min), .min = 1, .max = INT64_C(1) << 40,
     .fallback = 1, .doc = "the least a dynamic loss scale may be"},
    {"loss_scale_window", ENG_KEY_INT32, FIELD(loss_scale_window), .min = 1, .max = 1 << 30,
     .fallback = 2000, .doc = "clean steps that double a dynamic loss scale"},
    {"skip_limit", ENG_KEY_INT32, FIELD(skip_limit), .min = 1, .max = 1 << 30, .fallback = 100,
     .off = true, .doc = "steps in a row that may be skipped"},
    {"timeout_s", ENG_KEY_INT32, FIELD(timeout_s), .min = 1, .max = 30 * 86400, .fallback = 600,
     .doc = "seconds, the longest wait for another rank"},
    {"kernels", ENG_KEY_CHOICE, FIELD(kernels), CHOICES(kernels),
     .doc = "instruction set of the update"},
    {"gather", ENG_KEY_CHOICE, FIELD(gather), CHOICES(gathers),
     .doc = "how ranks come by each other's parameters"},
    {"reduction", ENG_KEY_CHOICE, FIELD(reduction), CHOICES(reductions),
     .doc = "in which order gradients are added"},
    {"sum_group", ENG_KEY_INT32, FIELD(sum_group), .min = 1, .max = 1 << 20, .fallback = 1,
     .doc = "micro-batches that are added to each other first"},
    {"stall_s", ENG_KEY_INT32, FIELD(stall_s), .max = 30 * 86400, .fallback = 30, .off = true,
     .doc = "seconds, the longest silence of a rank"},
    {"memory_limit", ENG_KEY_BYTES, FIELD(memory_limit), .min = 1, .max = INT64_C(1) << 60,
     .fallback = ENG_KEY_AUTO, .off = true, .automatic = true,
     .doc = "bytes that the ranks of a host may have"},
    {"paranoid", ENG_KEY_INT32, FIELD(paranoid), .max = 1,
     .doc = "1: access outside of its window fails at every stage"},
    {"verify_micro", ENG_KEY_INT32, FIELD(verify_micro), .max = 1,
     .doc = "1: a micro-batch a rank and step is computed twice and compared"},
    {"comm_dtype", ENG_KEY_ENUM, FIELD(comm_dtype), .max = ZERO_F16, .choices = comm_dtypes,
     .doc = "in what gradients travel"},
    {"master", ENG_KEY_CHOICE, FIELD(master), CHOICES(masters),
     .doc = "master weights of 16-bit tensors"},
    {"moments", ENG_KEY_CHOICE, FIELD(moments), CHOICES(moments),
     .doc = "in what the optimizers keep moments"},
    {"offload_optimizer", ENG_KEY_CHOICE, FIELD(offload_optimizer), CHOICES(state_tiers),
     .doc = "where the optimizer's state is"},
    {"nvme_dir", ENG_KEY_TEXT, FIELD(nvme_dir), .doc = "directory of what is on NVMe"},
    {"io", ENG_KEY_CHOICE, FIELD(io), CHOICES(engines),
     .doc = "how files of state are read and written"},
    {"tile_bytes", ENG_KEY_BYTES, FIELD(tile_bytes), .min = 65536, .max = INT64_C(1) << 32,
     .fallback = INT64_C(2) << 20, .doc = "bytes of state that are moved together"},
    {"host_bytes", ENG_KEY_BYTES, FIELD(host_bytes), .min = 65536, .max = INT64_C(1) << 50,
     .fallback = 0, .doc = "memory of a rank for state on its way"},
    {"recovery", ENG_KEY_CHOICE, FIELD(recovery), CHOICES(recoveries),
     .doc = "what a finished step survives"},
    {"offload_params", ENG_KEY_CHOICE, FIELD(offload_params), CHOICES(tiers),
     .doc = "where working copies are"},
    {"offload_grads", ENG_KEY_CHOICE, FIELD(offload_grads), CHOICES(tiers),
     .doc = "where sums of gradients are"},
    {"compress", ENG_KEY_CHOICE, FIELD(compress), CHOICES(compressions),
     .doc = "whether tiles of state are written compressed"},
    {"device", ENG_KEY_TEXT, FIELD(device), .doc = "what the program computes on"},
    {"device_transport", ENG_KEY_CHOICE, FIELD(device_transport), CHOICES(device_transports),
     .doc = "how GPUs move bytes to each other"},
    {"device_register", ENG_KEY_CHOICE, FIELD(device_register), CHOICES(registers),
     .doc = "whether NCCL registers what GPUs move"},
    {"offload_update", ENG_KEY_CHOICE, FIELD(offload_update), CHOICES(updaters),
     .doc = "which processor updates state that is offloaded from a GPU"},
    {"log_level", ENG_KEY_ENUM, .user_offset = offsetof(zero_config, log_level),
     .config_offset = offsetof(struct eng_config, log.level), .max = ZERO_LOG_TRACE,
     .fallback = ZERO_LOG_WARN, .off = true, .choices = levels, .doc = "what is logged"},
    {"log", ENG_KEY_LEVELS, .doc = "what is logged, by component"},
};

int eng_key_find(const char *name, size_t length)
{
    for (int i = 0; i < ENG_CONFIG_KEYS; i++)
        if (strlen(eng_keys[i].name) == length && !memcmp(eng_keys[i].name, name, length))
            return i;
    return -1;
}

// Levenshtein's distance; both texts are cut at 31 bytes.
static size_t distance(const char *a, size_t a_length, const char *b)
{
    size_t row[32];
    const size_t n = a_length < 31 ? a_length : 31, m = strlen(b) < 31 ? strlen(b) : 31;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = row[j] < changed ? row[j] : changed;
        }
    }
    return row[m];
}

const char *eng_key_closest(const char *name, size_t length)
{
    const char *closest = NULL;
    size_t least = length / 2 + 1 < 5 ? length / 2 + 1 : 5;
    for (int i = 0; i < ENG_CONFIG_KEYS; i++) {
        const size_t steps = distance(name, length, eng_keys[i].name);
        if (steps < least) {
            least = steps;
            closest = eng_keys[i].name;
        }
    }
    return closest;
}

static bool is_list(const struct eng_key *key)
{
    return key->kind == ENG_KEY_CHOICE || key->kind == ENG_KEY_ENUM;
}

// The one place that says what a key takes.
static zero_result refuse(const struct eng_key *key, const char *given, struct base_error *error)
{
    const char *off = key->automatic              ? ", auto or off"
                      : key->off && !key->choices ? ", or off"
                                                  : "";
    char range[128] = "";
    if (is_list(key) && key->choices) {
        for (int64_t i = key->min; i <= key->max; i++) {
            const size_t used = strlen(range);
            snprintf(range + used, sizeof range - used, "%s%s", used ? ", " : "", key->choices[i]);
        }
    } else if (key->kind == ENG_KEY_UINT64) {
        snprintf(range, sizeof range, "0 to %" PRIu64, UINT64_MAX);
    } else {
        for (const char *const *name = key->choices; name && *name; name++) {
            const size_t used = strlen(range);
            snprintf(range + used, sizeof range - used, "%s, ", *name);
        }
        const size_t used = strlen(range);
        snprintf(range + used, sizeof range - used, "%s%" PRId64 " to %" PRId64, used ? "or " : "",
                 key->min, key->max);
    }
    return zero_fail(error, ZERO_E_INVALID, "%s: %s (%s) takes %s%s%s", given, key->name, key->doc,
                     range, off,
                     key->kind == ENG_KEY_BYTES ? "; KiB, MiB or GiB may follow a number" : "");
}

static int64_t choice_index(const struct eng_key *key, const char *text)
{
    assert(key->choices);
    for (int64_t i = key->min; i <= key->max; i++)
        if (!strcmp(key->choices[i], text))
            return i;
    return -1;
}

static bool parse_name(const struct eng_key *key, const char *text, int64_t *value)
{
    for (int64_t i = 0; key->choices[i]; i++)
        if (!strcmp(key->choices[i], text)) {
            *value = -1 - i;
            return true;
        }
    return false;
}

// Digits, and where they end; false if there are none or too many.
static bool parse_digits(const char *text, const char **end, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return false;
    char *stop;
    errno = 0;
    *value = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0;
}

static int unit_shift(const char *unit)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(unit, units[i]))
            return 10 * i;
    return -1;
}

/** A text that is no choice of the key; "native" was one, which has another name now. */
static zero_result refuse_choice(const struct eng_key *key, const char *text, const char *given,
                                 struct base_error *error)
{
    if (!strcmp(key->name, "reduction") && !strcmp(text, "native"))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: reduction=native is called reduction=local now", given);
    return refuse(key, given, error);
}

zero_result eng_key_parse(const struct eng_key *key, const char *text, const char *given,
                          int64_t *value, struct base_error *error)
{
    if (is_list(key)) {
        *value = choice_index(key, text);
        return *value < 0 ? refuse_choice(key, text, given, error) : ZERO_OK;
    }
    if (key->kind == ENG_KEY_NAMED && parse_name(key, text, value))
        return ZERO_OK;
    if (key->off && !strcmp(text, "off")) {
        *value = 0;
        return ZERO_OK;
    }
    if (key->automatic && !strcmp(text, "auto")) {
        *value = ENG_KEY_AUTO;
        return ZERO_OK;
    }
    uint64_t number;
    const char *end;
    if (!parse_digits(text, &end, &number))
        return refuse(key, given, error);
    const int shift = key->kind == ENG_KEY_BYTES ? unit_shift(end) : (*end ? -1 : 0);
    if (shift < 0)
        return refuse(key, given, error);
    if (key->kind != ENG_KEY_UINT64 &&
        (number > (uint64_t)key->max >> shift || number << shift < (uint64_t)key->min))
        return refuse(key, given, error);
    *value = (int64_t)(number << shift);
    return ZERO_OK;
}

static int64_t user_number(const struct eng_key *key, const zero_config *user)
{
    const void *field = (const char *)user + key->user_offset;
    int32_t narrow;
    int64_t wide;
    if (key->kind == ENG_KEY_INT32 || key->kind == ENG_KEY_ENUM) {
        memcpy(&narrow, field, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, field, sizeof wide);
    return wide;
}

zero_result eng_key_from_struct(const struct eng_key *key, const zero_config *user, int64_t *value,
                                bool *set, struct base_error *error)
{
    char given[96];
    *set = false;
    if (key->kind == ENG_KEY_LEVELS || key->kind == ENG_KEY_TEXT)
        return ZERO_OK;
    if (key->kind == ENG_KEY_CHOICE || key->kind == ENG_KEY_NAMED) {
        const char *text;
        memcpy(&text, (const char *)user + key->user_offset, sizeof text);
        if (!text)
            return ZERO_OK;
        *set = true;
        snprintf(given, sizeof given, "zero_config.%s = \"%.40s\"", key->name, text);
        return eng_key_parse(key, text, given, value, error);
    }
    const int64_t number = user_number(key, user);
    if (number == 0)
        return ZERO_OK;
    *set = true;
    *value = number;
    if (key->off && number == ZERO_OFF) {
        *value = 0;
        return ZERO_OK;
    }
    snprintf(given, sizeof given, "zero_config.%s = %" PRId64, key->name, number);
    if (key->kind != ENG_KEY_UINT64 && (number < key->min || number > key->max))
        return refuse(key, given, error);
    return ZERO_OK;
}

void eng_key_show(const struct eng_key *key, int64_t value, char *text, size_t size)
{
    assert(!is_list(key) || (value >= 0 && value <= key->max));
    if (is_list(key))
        snprintf(text, size, "%s", key->choices[value]);
    else if (key->kind == ENG_KEY_NAMED && value < 0)
        snprintf(text, size, "%s", key->choices[-1 - value]);
    else if (key->off && value == 0)
        snprintf(text, size, "off");
    else if (key->automatic && value == ENG_KEY_AUTO)
        snprintf(text, size, "auto");
    else if (key->kind == ENG_KEY_UINT64)
        snprintf(text, size, "%" PRIu64, (uint64_t)value);
    else
        snprintf(text, size, "%" PRId64, value);
}

void eng_key_show_given(char given[ENG_VALUE_BYTES], const char *name, const char *text)
{
    snprintf(given, ENG_VALUE_BYTES, "%s=%.60s", name, text);
    for (char *byte = given; *byte; byte++)
        if (*byte < ' ' || *byte > '~')
            *byte = '?';
}
