#include "gpt2_option_table.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// strtol() and strtod() would also take blanks, signs and words.
static bool starts_number(const char *text)
{
    if (*text == '-')
        text++;
    return (*text >= '0' && *text <= '9') || (*text == '.' && text[1] >= '0' && text[1] <= '9');
}

static bool parse_integer(const struct spec *spec, const char *text, int *value,
                          struct reason *reason)
{
    char *end;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (!starts_number(text) || *end || errno || (double)number < spec->low ||
        (double)number > spec->high)
        return refuse(reason, "--%s: '%s' is not a whole number from %.0f to %.0f", spec->name,
                      text, spec->low, spec->high);
    *value = (int)number;
    return true;
}

static bool parse_seed(const struct spec *spec, const char *text, uint64_t *value,
                       struct reason *reason)
{
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return refuse(reason, "--%s: '%s' is not a whole number below 2^64", spec->name, text);
    *value = number;
    return true;
}

// A whole number, with KiB, MiB or GiB behind it or not.
static bool parse_bytes(const struct spec *spec, const char *text, int64_t *value,
                        struct reason *reason)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    for (int i = 0; i < 4 && *text >= '0' && *text <= '9' && !errno; i++)
        if (strcmp(end, units[i]) == 0 && number > 0 && number < 1ull << 50 >> 10 * i) {
            *value = (int64_t)(number << 10 * i);
            return true;
        }
    return refuse(reason, "--%s: '%s' is not a size: a number, or one with KiB, MiB or GiB",
                  spec->name, text);
}

static bool parse_number(const struct spec *spec, const char *text, double *value,
                         struct reason *reason)
{
    char *end;
    const double number = strtod(text, &end);
    const bool plain = starts_number(text) && !strpbrk(text, "xX") && !*end;
    if (!plain || !(number >= spec->low && number <= spec->high))
        return spec->high == BELOW_ONE
                   ? refuse(reason, "--%s: '%s' is not a number from %g to below 1", spec->name,
                            text, spec->low)
                   : refuse(reason, "--%s: '%s' is not a number from %g to %g", spec->name, text,
                            spec->low, spec->high);
    *value = number;
    return true;
}

// The index of text in a list with bars, or -1.
static int find_choice(const char *choices, const char *text)
{
    const size_t length = strlen(text);
    int index = 0;
    for (const char *at = choices; at; index++) {
        if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return index;
        at = strchr(at, '|');
        if (at)
            at++;
    }
    return -1;
}

static bool parse_choice(const struct spec *spec, const char *text, int *value,
                         struct reason *reason)
{
    *value = find_choice(spec->argument, text);
    if (*value < 0)
        return refuse(reason, "--%s: '%s' is none of %s", spec->name, text, spec->argument);
    return true;
}

static bool set_value(struct options *o, const struct spec *spec, const char *text,
                      struct reason *reason)
{
    void *field = (char *)o + spec->offset;
    switch (spec->kind) {
    case INTEGER:
        return parse_integer(spec, text, field, reason);
    case SEED:
        return parse_seed(spec, text, field, reason);
    case NUMBER:
        return parse_number(spec, text, field, reason);
    case BYTES:
        return parse_bytes(spec, text, field, reason);
    case CHOICE:
        return parse_choice(spec, text, field, reason);
    case TEXT:
        if (!*text)
            return refuse(reason, "--%s: the name is empty", spec->name);
        *(const char **)field = text;
        return true;
    case SWITCH:
        *(bool *)field = true;
        return true;
    case PATHS:
        if (!*text)
            return refuse(reason, "--%s: a path is empty", spec->name);
        o->data[o->data_count++] = text;
        return true;
    }
    return false;
}

// The option that argument `word` names, "--name" or "--name=value"; *value: what follows the
// equals sign, or NULL.
static const struct spec *find_spec(const char *word, const char **value)
{
    if (strncmp(word, "--", 2) != 0)
        return NULL;
    word += 2;
    const size_t length = strcspn(word, "=");
    *value = word[length] ? word + length + 1 : NULL;
    for (int i = 0; i < spec_count; i++)
        if (strlen(specs[i].name) == length && strncmp(specs[i].name, word, length) == 0)
            return &specs[i];
    return NULL;
}

static bool is_option(const char *word)
{
    return strncmp(word, "--", 2) == 0;
}

// Reads one option at argv[*i] and moves *i behind it.
static bool parse_option(struct options *o, int argc, char **argv, int *i, struct reason *reason)
{
    const char *word = argv[*i], *value = NULL;
    const struct spec *spec = find_spec(word, &value);
    if (!spec)
        return refuse(reason, is_option(word) ? "there is no option '%s'" : "what is '%s'?", word);
    ++*i;
    if (spec->kind == SWITCH) {
        if (value)
            return refuse(reason, "--%s takes no value", spec->name);
        value = "";
    } else if (!value) {
        if (*i == argc || is_option(argv[*i]))
            return refuse(reason, "--%s needs a value: %s", spec->name, spec->argument);
        value = argv[(*i)++];
    }
    o->text[spec - specs] = value;
    o->data_count = spec->kind == PATHS ? 0 : o->data_count;
    if (!set_value(o, spec, value, reason))
        return false;
    while (spec->kind == PATHS && *i < argc && !is_option(argv[*i]))
        if (!set_value(o, spec, argv[(*i)++], reason))
            return false;
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    assert(text); // an argument of the command line, or a default
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static const char **text_of(struct options *o, const char *name)
{
    for (int i = 0; i < spec_count; i++)
        if (strcmp(specs[i].name, name) == 0)
            return &o->text[i];
    return NULL;
}

// Defaults that depend on other options.
static bool derive(struct options *o, struct reason *reason)
{
    int binary = 0;
    for (int i = 0; i < o->data_count; i++)
        binary += ends_with(o->data[i], ".bin");
    if (binary != 0 && binary != o->data_count)
        return refuse(reason, "--data: text and .bin files don't mix");
    o->binary = binary > 0;
    if (o->dims.vocab == 0) {
        o->dims.vocab = o->binary ? 50257 : 256;
        snprintf(o->vocab_text, sizeof o->vocab_text, "%d", o->dims.vocab);
        *text_of(o, "vocab") = o->vocab_text;
    }
    if (!*text_of(o, "min-lr")) {
        snprintf(o->min_lr_text, sizeof o->min_lr_text, "%.9g", o->lr / 10);
        o->min_lr = strtod(o->min_lr_text, NULL);
        *text_of(o, "min-lr") = o->min_lr_text;
    }
    return true;
}

// Ranks of this process would not meet those that a launcher has started beside it.
static bool check_alone(const struct options *o, struct reason *reason)
{
    static const char *const sizes[] = {"ZERO_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "WORLD_SIZE"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *world = getenv(sizes[i]);
        if (o->ranks > 0 && world && strcmp(world, "1") != 0)
            return refuse(reason,
                          "--ranks %d makes ranks of its own, but a launcher has started "
                          "%s (%s)",
                          o->ranks, world, sizes[i]);
    }
    return true;
}

static bool check(const struct options *o, struct reason *reason)
{
    if (o->dims.width % o->dims.heads != 0)
        return refuse(reason, "--width %d is not a multiple of --heads %d", o->dims.width,
                      o->dims.heads);
    if (o->device == DEVICE_CUDA && o->dtype == DTYPE_F16)
        return refuse(reason, "--device cuda computes with --dtype f32 or bf16, not f16");
    if ((double)o->batch * o->dims.context > 1 << 24)
        return refuse(reason, "--batch %d times --context %d is more than %d tokens", o->batch,
                      o->dims.context, 1 << 24);
    if (o->nesterov && o->optimizer != OPTIMIZER_SGD)
        return refuse(reason, "--nesterov is for --optimizer sgd only");
    if (o->accumulate_local && o->stage > 1)
        return refuse(reason, "--accumulate-local is for --stage 0 and 1, where a rank has a whole "
                              "gradient");
    if (o->schedule != SCHEDULE_CONSTANT && o->min_lr > o->lr)
        return refuse(reason, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
    if (o->ranks > 1 && (o->transport != TRANSPORT_AUTO && o->transport != TRANSPORT_THREADS))
        return refuse(reason, "--ranks %d makes threads, which --transport %s doesn't join",
                      o->ranks, transport_name(o->transport));
    if (o->transport == TRANSPORT_THREADS && o->ranks == 0)
        return refuse(reason, "--transport threads needs --ranks");
    return true;
}

// Whether an option says nothing without a directory of checkpoints, and there is none. Where state
// is in files, a run can go on without.
static bool lacks_directory(const struct options *o, const struct spec *spec)
{
    const bool in_files = o->offload_optimizer && strcmp(o->offload_optimizer, "nvme") == 0;
    const bool from_path =
        o->resume && strcmp(o->resume, "auto") != 0 && strcmp(o->resume, "off") != 0;
    return !o->checkpoint && (spec->offset == AT(save_every) || spec->offset == AT(keep) ||
                              spec->offset == AT(beside_other_runs) ||
                              (spec->offset == AT(resume) && !from_path && !in_files));
}

static bool parse_all(struct options *o, int argc, char **argv, struct reason *reason)
{
    for (int i = 1; i < argc;)
        if (!parse_option(o, argc, argv, &i, reason))
            return false;
    for (int i = 0; i < spec_count; i++) {
        const bool idle = lacks_directory(o, &specs[i]);
        if (o->text[i] && idle)
            return refuse(reason, "--%s %s needs a directory: --checkpoint", specs[i].name,
                          o->text[i]);
        if (o->text[i] || !specs[i].fallback)
            continue;
        o->text[i] = idle ? NULL : specs[i].fallback;
        if (!set_value(o, &specs[i], specs[i].fallback, reason))
            return false;
    }
    return derive(o, reason) && check(o, reason) && check_alone(o, reason);
}

enum request options_parse(struct options *options, int argc, char **argv, struct reason *reason)
{
    *options = (struct options){.program = argc > 0 ? argv[0] : "gpt2", .prefetch = -1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return REQUEST_HELP;
        if (strcmp(argv[i], "--version") == 0)
            return REQUEST_VERSION;
    }
    options->data = calloc((size_t)argc + 1, sizeof *options->data);
    if (!options->data) {
        refuse(reason, "out of memory");
        return REQUEST_INVALID;
    }
    return parse_all(options, argc, argv, reason) ? REQUEST_TRAIN : REQUEST_INVALID;
}

void options_free(struct options *options)
{
    free(options->data);
    options->data = NULL;
}

void options_help(const char *program)
{
    printf("usage: %s [options]\n"
           "Trains a GPT-2, sharded over the ranks that zero-run, mpirun, torchrun or srun start\n"
           "(one rank without any of them). The same numbers come out, to the last bit, at every\n"
           "--stage, --threads and number of ranks, if --micro-batches is the same.\n\n",
           program);
    for (int i = 0; i < spec_count; i++) {
        char name[64];
        snprintf(name, sizeof name, "--%s %s", specs[i].name,
                 specs[i].argument ? specs[i].argument : "");
        printf("  %-34s %s", name, specs[i].help);
        if (specs[i].fallback)
            printf("%s(default %s)", *specs[i].help ? " " : "", specs[i].fallback);
        putchar('\n');
    }
    printf("  %-34s this text\n  %-34s the version of the library\n\n", "--help", "--version");
    printf(
        "Data: a directory is read file by file, names sorted, with those below it; hidden\n"
        "entries, links, .bin files and files with a zero byte are left out. A .bin file is read\n"
        "where it is named, as by --data DIR/*.bin, and has\n"
        "bare 16-bit tokens (little-endian, as nanoGPT writes them) or llm.c's header of 256\n"
        "32-bit integers before them.\n\n"
        "Of an option given twice the last one counts. The first line of output is a command\n"
        "that repeats the run, under the same zero-run: what its -o sets is not in it.\n\n"
        "Exit codes: 0 success; 1 the run failed (a file, memory, another rank), with the\n"
        "reason in one line on standard error; 2 the command line is wrong, 78 the library\n"
        "refuses a value of the configuration, likewise. 75: SIGTERM, SIGINT, a signal of\n"
        "ZERO_STOP_SIGNAL, or zero-run has asked for a stop: after the step under way it was\n"
        "saved, if there is --checkpoint; --resume auto goes on. A second signal ends it.\n");
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-./:=,+@%", c);
}

static void print_quoted(const char *word)
{
    bool plain = *word != '\0';
    for (const char *c = word; *c; c++)
        plain = plain && is_plain(*c);
    if (plain) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (const char *c = word; *c; c++)
        if (*c == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*c);
    putchar('\'');
}

void options_print(const struct options *options, int micro_batches)
{
    print_quoted(options->program);
    for (int i = 0; i < spec_count; i++) {
        const struct spec *spec = &specs[i];
        if (spec->offset == AT(micro_batches)) {
            printf(" --%s %d", spec->name, micro_batches);
            continue;
        }
        if (!options->text[i])
            continue;
        printf(" --%s", spec->name);
        if (spec->kind == PATHS) {
            for (int k = 0; k < options->data_count; k++) {
                putchar(' ');
                print_quoted(options->data[k]);
            }
        } else if (spec->kind != SWITCH) {
            putchar(' ');
            print_quoted(options->text[i]);
        }
    }
    putchar('\n');
}

const char *optimizer_name(int optimizer)
{
    static const char *const names[] = {
        [OPTIMIZER_ADAMW] = "adamw", [OPTIMIZER_ADAM] = "adam",       [OPTIMIZER_SGD] = "sgd",
        [OPTIMIZER_LION] = "lion",   [OPTIMIZER_ADAGRAD] = "adagrad",
    };
    return names[optimizer];
}

const char *transport_name(int transport)
{
    static const char *const names[] = {[TRANSPORT_SELF] = "self",
                                        [TRANSPORT_THREADS] = "threads",
                                        [TRANSPORT_SHM] = "shm",
                                        [TRANSPORT_TCP] = "tcp"};
    return transport == TRANSPORT_AUTO ? NULL : names[transport];
}
