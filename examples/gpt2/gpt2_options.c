#include "gpt2_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { INTEGER, SEED, NUMBER, BYTES, CHOICE, TEXT, SWITCH, PATHS };

// One option. `low` and `high` bound INTEGER and NUMBER; choices are separated by bars.
struct spec {
    const char *name;
    const char *argument;
    enum kind kind;
    size_t offset;
    double low, high;
    const char *fallback; // the default; NULL: none, or said in `help`
    const char *help;
};

#define AT(field) offsetof(struct options, field)
#define BELOW_ONE 0.999999999999

static const struct spec specs[] = {
    {"stage", "0..3", INTEGER, AT(stage), 0, 3, "0",
     "what is sharded: 1 optimizer state, 2 gradients, 3 parameters"},
    {"device", "cpu|cuda", CHOICE, AT(device), 0, 0, "cpu",
     "what computes: cuda is the GPU with the rank's number on its host, with f32 or bf16"},
    {"dtype", "f32|bf16|f16", CHOICE, AT(dtype), 0, 0, "f32",
     "of working copies and gradients; f16 has a dynamic loss scale"},
    {"layers", "N", INTEGER, AT(dims.layers), 1, 4096, "4", "blocks"},
    {"heads", "N", INTEGER, AT(dims.heads), 1, 4096, "4", "attention heads"},
    {"width", "N", INTEGER, AT(dims.width), 1, 65536, "128", "of the residual stream"},
    {"context", "T", INTEGER, AT(dims.context), 1, 65536, "128", "tokens a sequence"},
    {"vocab", "N", INTEGER, AT(dims.vocab), 2, 65536, NULL,
     "number of tokens (default 256, for .bin files 50257)"},
    {"batch", "B", INTEGER, AT(batch), 1, 65536, "4", "sequences a micro-batch"},
    {"micro-batches", "V", INTEGER, AT(micro_batches), 1, 1e6, NULL,
     "micro-batches a step, over all ranks (default: as many as ranks)"},
    {"steps", "N", INTEGER, AT(steps), 1, 1e9, "600", "steps to train"},
    {"optimizer", "adamw|adam|sgd|lion|adagrad", CHOICE, AT(optimizer), 0, 0, "adamw", ""},
    {"nesterov", NULL, SWITCH, AT(nesterov), 0, 0, NULL, "sgd: Nesterov's form of momentum"},
    {"lr", "X", NUMBER, AT(lr), 0, 1e6, "3e-3", "learning rate after the warm-up"},
    {"warmup", "N", INTEGER, AT(warmup), 0, 1e9, "20", "steps of linear warm-up"},
    {"schedule", "constant|linear|cosine", CHOICE, AT(schedule), 0, 0, "cosine",
     "of the learning rate after the warm-up"},
    {"min-lr", "X", NUMBER, AT(min_lr), 0, 1e6, NULL,
     "learning rate at the last step, unless constant (default: a tenth of lr)"},
    {"beta1", "X", NUMBER, AT(beta1), 0, BELOW_ONE, "0.9",
     "of adamw, adam, lion; the momentum of sgd, without dampening"},
    {"beta2", "X", NUMBER, AT(beta2), 0, BELOW_ONE, "0.95", "of adamw, adam, lion"},
    {"eps", "X", NUMBER, AT(eps), 0, 1, "1e-8", "of adamw, adam, adagrad"},
    {"weight-decay", "X", NUMBER, AT(weight_decay), 0, 1e6, "0.1",
     "on tensors of two dimensions: decoupled of adamw and lion, else L2"},
    {"clip", "X", NUMBER, AT(clip), 0, 1e30, "1", "largest gradient norm; 0: don't clip"},
    {"seed", "S", SEED, AT(seed), 0, 0, "1", "of first weights, shuffling and sampling"},
    {"data", "PATH...", PATHS, AT(data), 0, 0, ".",
     "text files or directories of them, read as bytes; or .bin files of tokens: llm.c's, of 16 or "
     "32 bits, or 16-bit ones without a header"},
    {"order", "shuffled|sequential", CHOICE, AT(order), 0, 0, "shuffled", "of the data"},
    {"init", "FILE", TEXT, AT(init), 0, 0, NULL,
     "first weights from this safetensors file, or index of several (default: random)"},
    {"save", "FILE", TEXT, AT(save), 0, 0, NULL,
     "write the weights to this safetensors file at the end (default: don't)"},
    {"checkpoint", "DIR", TEXT, AT(checkpoint), 0, 0, NULL,
     "save checkpoints of the run in this directory: every --save-every steps, and if the job is "
     "asked to stop (default: don't)"},
    {"save-every", "N", INTEGER, AT(save_every), 0, 1e9, "0",
     "steps from one checkpoint to the next; 0: none but at a stop"},
    {"keep", "N", INTEGER, AT(keep), 0, 1e9, "3", "checkpoints that remain; 0: all"},
    {"beside-other-runs", NULL, SWITCH, AT(beside_other_runs), 0, 0, NULL,
     "save in --checkpoint although there are checkpoints of other runs, which stay as they are"},
    {"resume", "off|auto|DIR/step-N", TEXT, AT(resume), 0, 0, "off",
     "go on from a checkpoint: auto is the newest good one of --checkpoint, if there is any; off: "
     "there must be none, but with --beside-other-runs"},
    {"sample", "N", INTEGER, AT(sample), 0, 1e6, "200", "tokens to generate at the end"},
    {"fingerprint", "N", INTEGER, AT(fingerprint), 0, 1e9, "0",
     "print the fingerprint every N steps, not only after the last"},
    {"eval", "N", INTEGER, AT(eval), 0, 1e9, "0",
     "every N steps print the loss of the data's last tenth, which is then kept from training"},
    {"threads", "N", INTEGER, AT(threads), 1, 1024, "1", "threads a rank; changes no bit"},
    {"recompute", NULL, SWITCH, AT(recompute), 0, 0, NULL,
     "compute activations again in backward, not keep them; changes no bit"},
    {"ranks", "N", INTEGER, AT(ranks), 1, 1024, NULL,
     "run N ranks as threads of this process (default: what the launcher says)"},
    {"transport", "auto|self|threads|shm|tcp", CHOICE, AT(transport), 0, 0, "auto",
     "how ranks exchange data"},
    {"prefetch", "N", INTEGER, AT(prefetch), 0, 1024, NULL,
     "units gathered ahead at stage 3 (default 2; 4 with --offload-params nvme)"},
    {"accumulate-local", NULL, SWITCH, AT(accumulate_local), 0, 0, NULL,
     "stages 0, 1: add a rank's micro-batches before they travel; same bits at one number of "
     "ranks"},
    {"offload-optimizer", "host|nvme", TEXT, AT(offload_optimizer), 0, 0, NULL,
     "where moments and master weights are: nvme is a file of --nvme-dir; changes no bit, and with "
     "--resume auto a killed run goes on after its last step (default host)"},
    {"offload-params", "host|nvme", TEXT, AT(offload_params), 0, 0, NULL,
     "where working copies are: nvme, with --offload-optimizer nvme, is another file there, read "
     "for each gather; changes no bit (default host)"},
    {"offload-grads", "host|nvme", TEXT, AT(offload_grads), 0, 0, NULL,
     "where sums of gradients are, likewise (default host)"},
    {"nvme-dir", "DIR", TEXT, AT(nvme_dir), 0, 0, NULL, "of these files, which exists"},
    {"io", "auto|uring|uring-plain|threads|sync", TEXT, AT(io), 0, 0, NULL,
     "how they are read and written (default auto)"},
    {"tile", "SIZE", BYTES, AT(tile_bytes), 0, 0, NULL,
     "what is read, updated and written together, as 12MiB (default 2MiB)"},
    {"host-bytes", "SIZE", BYTES, AT(host_bytes), 0, 0, NULL,
     "memory of a rank for tiles (default: that of 48, and of those being compressed)"},
    {"compress", "auto|on|off", TEXT, AT(compress), 0, 0, NULL,
     "whether tiles are written compressed (default auto: if the first steps are faster with it)"},
};

#define SPECS (int)(sizeof specs / sizeof *specs)
_Static_assert(sizeof specs / sizeof *specs <= OPTIONS_MAX, "options.text is too short");

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
    for (int i = 0; i < SPECS; i++)
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
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static const char **text_of(struct options *o, const char *name)
{
    for (int i = 0; i < SPECS; i++)
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
    for (int i = 0; i < SPECS; i++) {
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
    for (int i = 0; i < SPECS; i++) {
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
    for (int i = 0; i < SPECS; i++) {
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
