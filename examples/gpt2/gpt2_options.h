/**
 * gpt2_options.h: the command line.
 */
#ifndef GPT2_OPTIONS_H
#define GPT2_OPTIONS_H

#include "gpt2_tensors.h"
#include "reason.h"

#include <stdbool.h>

/** Exit codes, as --help documents them. After 2 and 78 zero-run does not try again. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_STOPPED = 75, // it was asked to stop: start it again
    EXIT_CONFIG = 78,
};

enum device_choice { DEVICE_CPU, DEVICE_CUDA };
enum dtype_choice { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
enum optimizer_choice {
    OPTIMIZER_ADAMW,
    OPTIMIZER_ADAM,
    OPTIMIZER_SGD,
    OPTIMIZER_LION,
    OPTIMIZER_ADAGRAD
};
enum schedule_choice { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum order_choice { ORDER_SHUFFLED, ORDER_SEQUENTIAL };
enum transport_choice {
    TRANSPORT_AUTO,
    TRANSPORT_SELF,
    TRANSPORT_THREADS,
    TRANSPORT_SHM,
    TRANSPORT_TCP
};

#define OPTIONS_MAX 56

/** Every option's value, defaults filled in. */
struct options {
    int stage;
    int device;
    int dtype;
    struct dims dims;
    int batch;
    int micro_batches; /**< 0: the number of ranks */
    int steps;
    int optimizer;
    bool nesterov;
    double lr, min_lr;
    int warmup;
    int schedule;
    double beta1, beta2, eps, weight_decay, clip;
    uint64_t seed;
    const char **data; /**< data_count paths */
    int data_count;
    bool binary; /**< they are .bin files: tokens are no characters */
    int order;
    const char *init, *save;         /**< NULL: none */
    const char *checkpoint, *resume; /**< a directory, or NULL; "off", "auto" or a path */
    int save_every, keep;
    bool beside_other_runs;
    int sample, fingerprint, eval;
    int threads;
    bool recompute;
    int ranks; /**< 0: what the launcher says */
    int transport;
    int prefetch; /**< -1: the library's default */
    bool accumulate_local;
    /** NULL, 0: the library's defaults. */
    const char *offload_optimizer, *offload_params, *offload_grads, *nvme_dir, *io, *compress;
    int64_t tile_bytes, host_bytes;

    const char *program;           /**< argv[0] */
    const char *text[OPTIONS_MAX]; /**< each value as it was given, in the order of --help */
    char vocab_text[16], min_lr_text[32];
};

/** What a command line asks for. */
enum request { REQUEST_TRAIN, REQUEST_HELP, REQUEST_VERSION, REQUEST_INVALID };

/** Reads the command line; strings stay argv's. For REQUEST_INVALID the reason is given. */
enum request options_parse(struct options *options, int argc, char **argv, struct reason *reason);

/** Frees what options_parse() allocated. */
void options_free(struct options *options);

/** Prints what --help prints. */
void options_help(const char *program);

/** Prints a command that repeats the run, every option explicit, quoted for a shell. */
void options_print(const struct options *options, int micro_batches);

/** "sgd" for OPTIMIZER_SGD ... */
const char *optimizer_name(int optimizer);

/** "shm" for TRANSPORT_SHM ..., NULL for TRANSPORT_AUTO. */
const char *transport_name(int transport);

#endif
