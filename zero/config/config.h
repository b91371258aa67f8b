/**
 * Configuration: what the program, the environment and zero-run's -o say, checked and made one.
 *
 * One table (config.c) has every key with its type, range, default and meaning; the struct,
 * ZERO_<KEY> and ZERO_OPTIONS are three ways to give the same keys, each stronger than the one
 * before. Rank, world, name, team, nccl_comm and the log callback come from the struct or the
 * launcher only.
 */
#ifndef ZERO_CONFIG_CONFIG_H
#define ZERO_CONFIG_CONFIG_H

#include "base/error.h"
#include "base/log.h"
#include "collectives/rendezvous/mesh.h"
#include "zero/zero.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    ENG_CONFIG_KEYS = 43,
    ENG_MAX_MICRO_BATCHES = 1 << 20,
    ENG_VALUE_BYTES = 256, /**< of a value as text */
    ENG_PATH_BYTES = 4096, /**< of a directory, with the working directory before it */
    ENG_SAMPLES = 6,       /**< granules that are compared for all of a slice */
};

struct eng_layout;
struct eng_model;

/** The name of a context without one. */
#define ENG_CONTEXT_NAME "main"

/** A value that is to be found out. */
#define ENG_KEY_AUTO (-1)

/** Values of the key `loss_scale` beside numbers, which are static scales. */
enum {
    ENG_LOSS_SCALE_AUTO = ENG_KEY_AUTO,
    ENG_LOSS_SCALE_DYNAMIC = -2,
    ENG_LOSS_SCALE_OFF = -3,
};

/** Where a value came from, weakest first. */
enum eng_source {
    ENG_SOURCE_DEFAULT,
    ENG_SOURCE_STRUCT,
    ENG_SOURCE_ENVIRONMENT, /**< ZERO_<KEY> */
    ENG_SOURCE_OPTION,      /**< ZERO_OPTIONS: zero-run -o key=value */
    ENG_SOURCE_CALL,        /**< zero_set_micro_batches() */
    ENG_SOURCE_CHECKPOINT,  /**< zero_load(), zero_resume() */
};

/** Effective values: no field means "the default" any more, and where zero_config has ZERO_OFF for
 * "none" there is 0. */
struct eng_config {
    int32_t stage;
    const char *transport;  /**< "self", "threads", "shm", "tcp", "ucx": a literal */
    int32_t micro_batches;  /**< V */
    int32_t prefetch_units; /**< 0: none */
    int32_t open_units;
    int32_t grad_units;
    int32_t cpu_threads;
    int allowed_cpus, online_cpus; /**< of this process, and of the host; 0 without files */
    int64_t persist_numel;         /**< 0: none */
    int64_t live_bytes;
    uint64_t seed;
    zero_nonfinite nonfinite; /**< from commit on ZERO_NONFINITE_ERROR or _SKIP */
    int64_t loss_scale;       /**< from commit on no ENG_LOSS_SCALE_AUTO any more */
    int64_t loss_scale_init, loss_scale_min;
    int32_t loss_scale_window;
    int32_t skip_limit; /**< 0: none */
    int32_t timeout_s;
    const char *kernels;   /**< "auto", "ref", "avx2", "avx512": a literal */
    const char *gather;    /**< "auto", "copy", "shared": a literal; what comes of it: .shared */
    const char *reduction; /**< "canonical", "local": a literal; the same as .local */
    int32_t sum_group;
    int32_t stall_s;      /**< 0: none */
    int64_t memory_limit; /**< 0: not checked; ENG_KEY_AUTO: what is found */
    bool by_network;      /**< transport tcp or ucx: ranks may be on several hosts */
    bool any_provider;    /**< tcp was not asked for, and becomes ucx if all hosts have that */
    bool shared;          /**< gather, decided: one copy of the parameters a host, */
    bool host_slots;      /**< or what is gathered of them on demand is in memory of the host */
    bool local;
    int32_t paranoid;        /**< 0, 1 */
    int32_t verify_micro;    /**< 0, 1 */
    const char *master;      /**< "f32", "none": a literal; the same as .no_masters */
    const char *moments;     /**< "f32", "bf16": a literal; the same as .moment_dtype */
    zero_dtype comm_dtype;   /**< ZERO_DTYPE_DEFAULT: each gradient's own */
    zero_dtype moment_dtype; /**< ZERO_F32 or ZERO_BF16 */
    bool no_masters;
    const char *offload_optimizer; /**< "none", "host", "nvme": a literal; the same as .nvme */
    bool nvme;                     /**< the optimizer's state is in a file */
    const char *offload_params;    /**< "host", "nvme": a literal; the same as .params_nvme */
    const char *offload_grads;     /**< "host", "nvme": a literal; the same as .grads_nvme */
    bool params_nvme;              /**< with .nvme only: working copies are in a file, */
    bool grads_nvme;               /**< sums of gradients are */
    char nvme_dir[ENG_PATH_BYTES]; /**< absolute */
    const char *io;                /**< "auto" or an engine of offload/io/: a literal */
    const char *recovery;          /**< "on", "durable": a literal */
    const char *compress;          /**< "auto", "on", "off": a literal */
    char device[ENG_VALUE_BYTES];
    bool on_device;               /**< device: the program computes on one, */
    int device_number;            /**< this one; -1: on none */
    const char *device_transport; /**< "nccl", "host": a literal */
    bool over_nccl;               /**< "nccl" was given: it is for one rank alone, too */
    void *nccl_comm;              /**< an ncclComm_t; NULL: none */
    const char *device_register;  /**< "auto", "on", "off": a literal */
    bool resident;                /**< and sums and updates there, too: */
    const char *offload_update;   /**< "auto", "host", "device": a literal */
    bool undecided;               /**< auto of state that is offloaded from a device, and
                                        zero_commit() has not found out yet: as "host" */
    bool streamed;                /**< resident, but for master weights and moments: these pass
                                        through the device in every update */
    int64_t tile_bytes;
    int64_t host_bytes;  /**< 0: not given */
    struct base_log log; /**< sink, levels (log_level, ZERO_LOG) and this rank */
    char log_text[128];  /**< value of the key `log`: levels by component; "" if none */
    enum eng_source sources[ENG_CONFIG_KEYS];

    char name[BOOT_NAME_BYTES];
    zero_team *team;
    int32_t rank;
    int32_t world;       /**< plan mode: the world to plan for, whatever was started */
    int32_t first_world; /**< of the run's first start, which decides V where it is not set */
    int32_t restarts;    /**< of the job, before this start */
    int32_t local_world; /**< ranks of this host; 0: not known, and taken for all of them */
    int32_t least_here, most_here; /**< ranks of the host that has the fewest, and the most; 0: not
                                        known, and taken for those of this host */
    int32_t local_rank; /**< among them, or among all processes of the launcher's on this host if
                             the program numbers its ranks by itself; -1: not known */
    char launcher[32];  /**< boot_place.launcher, or "zero_config" */
    char own_job[64];   /**< zero_config.job; "": none */
    char own_address[BOOT_ADDRESS_BYTES]; /**< zero_config.master_addr, with a job only; "": none */
    int32_t own_port;                     /**< zero_config.master_port */
    char job[BOOT_JOB_BYTES];
    struct boot_master meeting; /**< .by_network, or .unplaced: where rank 0 is */
    bool asks_manager;          /**< no variable says where rank 0 is, but a process manager can be
                                     asked: eng_config_meet() does */
    bool unplaced;              /**< the launcher says where rank 0 is, but not how many ranks are
                                     on this host: eng_config_meet() finds out */

    bool plan;      /**< ZERO_PLAN=1: make the plan, hand it over, ZERO_PLANNED. rank is 0
                         and meets no other rank */
    bool probe;     /**< ZERO_PLAN_PROBE=1, of a plan: measure, and say what a step will take */
    int plan_fd;    /**< ZERO_PLAN_FD: where zero-run reads the plan's text; -1 none */
    int metrics_fd; /**< ZERO_METRICS_FD: one JSON object a line and step; -1 none, as on
                         every rank but 0 */
};

/**
 * Resolves everything. `user` may be NULL (all defaults); its strings are copied. Warnings (a
 * ZERO_* variable that is no key) go to the log of the result, on rank 0. *Local.*
 *
 * ZERO_E_INVALID: an unknown key in ZERO_OPTIONS (the message has the closest one), a value that
 * is malformed or out of range (key, value, source, range), a contradiction (transport self with
 * several ranks, ...), what boot_discover() refuses, a tail of the struct that isn't zero.
 */
zero_result eng_config_resolve(struct eng_config *config, const zero_config *user,
                               struct base_error *error);

/** Of eng_config_resolve(), when all values are there: decides what follows from several of them,
 * and checks that they fit together. *Local.* ZERO_E_INVALID, ZERO_E_UNSUPPORTED; and of
 * boot_find_master(). */
zero_result eng_config_decide(struct eng_config *config, struct base_error *error);

/** Finds where rank 0 is, if ranks meet there: because they go by a network, or to find out whether
 * they have to. A variable that is missing does not say that all of them are on this host. Sets
 * .meeting, .asks_manager, .unplaced and .job. *Local.* ZERO_E_INVALID, ZERO_E_UNSUPPORTED. */
zero_result eng_config_find_master(struct eng_config *config, struct base_error *error);

/**
 * Asks the process manager where rank 0 is, if the rank .asks_manager, and leaves it in any case.
 * A rank that is .unplaced then meets the others where rank 0 is, learns how many are on this host,
 * and decides everything again that follows from it. local_rank stays what the launcher says, if it
 * says it. *mesh has the ranks' connections if they go by tcp, for coll_open(); else, and after a
 * failure, it is all zero. `asked` tells whether this rank is asked to stop meanwhile. Does nothing
 * for any other rank. *Collective.* Fails as boot_manager_master(), boot_mesh_open() and
 * eng_config_decide() do.
 */
zero_result eng_config_meet(struct eng_config *config, bool (*asked)(void), struct boot_mesh *mesh,
                            struct base_error *error);

/** Finds rank, world and job, in the struct or from the launcher, and what zero-run passes beside
 * them. ZERO_E_INVALID. *Local.* */
zero_result eng_config_find_place(struct eng_config *config, const zero_config *user,
                                  struct base_error *error);

/** Asks the launcher how many ranks are on this host, where the program gives rank and world. The
 * answer counts if the launcher counts the same ranks, or has started none elsewhere. Which of the
 * host's processes this one is the launcher knows in any case: all ranks go by its numbers, as no
 * two of them may take one GPU. *Local.* */
void eng_config_ask_launcher(struct eng_config *config);

/** Room for the variables that stand for what the program says of its place. */
struct eng_place_variables {
    char job[96], address[BOOT_ADDRESS_BYTES + 24], port[40];
    char *entries[5];
};

/** The environment that says which job this is: environ, or, if the program says it, its words as
 * variables in *variables. It also says where rank 0 is if .own_address does. ZERO_* of the
 * environment win over the program's words. *Local.* */
char *const *eng_config_place_variables(const struct eng_config *config,
                                        struct eng_place_variables *variables);

/** Sets how many ranks are on this host, and the transport that follows from it where none was
 * given. local_rank -1: unknown. *Local.* */
void eng_config_place(struct eng_config *config, int local_rank, int local_world);

/** Sets how many ranks the host with the fewest has, and the one with the most, and decides what
 * follows from it. *Local.* */
void eng_config_found_hosts(struct eng_config *config, int least, int most);

/** Sets the transport that was found where none was given: a literal. *Local.* */
void eng_config_found_transport(struct eng_config *config, const char *transport);

/** Whether the job is known to be on several hosts. */
bool eng_config_on_several_hosts(const struct eng_config *config);

/** Whether every rank has a copy of all sums of gradients: on a device, and where it can't read the
 * others' where they lie. With sums in files each has them there. */
bool eng_config_whole_sums(const struct eng_config *config, int stage);

/** Whether that is one copy a host. */
bool eng_config_shares_sums(const struct eng_config *config, int stage);

/** Whether what ranks give each other goes between their devices, by device_transport. */
bool eng_config_moves(const struct eng_config *config);

/** Whether the memory that goes between them is registered by NCCL. */
bool eng_config_registers(const struct eng_config *config);

/** With offload_params=nvme: of `units` kept ahead, how many a rank reads to their end and lets its
 * peers have before their turn, so that it matters less which rank is late. The others are on their
 * way from the disk. 0: no peer wants any. */
int eng_config_posted(const struct eng_config *config, int units);

/** Threads that compression takes: as many as there are processors for a rank, of those that this
 * process may keep busy, at most 4, as those that update wait if the disk is the limit. */
unsigned eng_config_codec_threads(const struct eng_config *config);

/** Threads that verify, encode and decode: those, or one if tiles are not compressed. */
unsigned eng_config_tile_threads(const struct eng_config *config);

/** Micro-batches a rank runs a step, the one that may not count included. */
int eng_config_rounds(const struct eng_config *config);

/** Whether some round but the last ends inside a block of sum_group micro-batches. */
bool eng_config_leaves_blocks(const struct eng_config *config);
/** Whether that may come to be with the V of a checkpoint, which counts where none was given. */
bool eng_config_may_leave_blocks(const struct eng_config *config);

/** Whether reduction, sum_group, stage and micro_batches go together. ZERO_E_INVALID. */
zero_result eng_config_check_reduction(const struct eng_config *config, struct base_error *error);

/** Whether values that were given have an effect on these tensors, and on those that do not stay in
 * memory anyway. ZERO_E_INVALID. */
zero_result eng_config_check_model(const struct eng_config *config, const struct eng_model *model,
                                   struct base_error *error);
zero_result eng_config_check_layout(const struct eng_config *config,
                                    const struct eng_layout *layout, struct base_error *error);

/** What the configuration says of placements. apart: a rank adds up micro-batches of its own before
 * they travel; blocks: rounds may leave blocks of micro-batches unfinished. */
struct eng_limits eng_config_limits(const struct eng_config *config, bool apart, bool blocks);

/** Shares what ranks of a host can share at the configured stage, as gather=auto does; or, as
 * `gather` says. */
void eng_config_share(struct eng_config *config);
void eng_config_decide_sharing(struct eng_config *config);
/** eng_config_decide_sharing(), if `gather` goes with the rest. ZERO_E_INVALID. */
zero_result eng_config_decide_gather(struct eng_config *config, struct base_error *error);
/** Why it is the host who updates what is offloaded, whatever is faster; NULL: nothing in the
 * configuration, and in the model, if there is one by now, says so. */
const char *eng_config_bound_updater(const struct eng_config *config,
                                     const struct eng_model *model);
/** Who updates what is offloaded, where that was undecided: the device, or the host. */
void eng_config_decide_update(struct eng_config *config, bool device);

/** The host or the device, which updates offloaded state, as the key has it: where no state is,
 * "auto" says no more than "host". */
int64_t eng_config_updater(const struct eng_config *config);
/** Where the state is, as the key has it; on the host "host" says no more than "none". */
int64_t eng_config_offload(const struct eng_config *config);
/** Who updates what is offloaded from a GPU, in a word: "host" or "device"; NULL: nothing is. */
const char *eng_config_updates_by(const struct eng_config *config);
/** How ranks of a host come by gathered parameters, in a word. */
const char *eng_config_gather(const struct eng_config *config);
/** Whether each rank keeps its part of the parameters only. */
bool eng_config_shards_params(const struct eng_config *config);
/** Whether the program may read a unit only while it holds it, and open_units of them at a time. */
bool eng_config_opens_units(const struct eng_config *config);
/** Whether a gather may take time: at stage 0, in memory, nothing is waited for. */
bool eng_config_gathers_wait(const struct eng_config *config);
/** Whether something of a fused step may be updated before zero_step(), on all ranks alike. */
bool eng_config_updates_early(const struct eng_config *config);
/** verify_micro: words of the hash of a gradient. */
size_t eng_config_hash_words(const struct eng_config *config);
/** How many granules of a slice have first values that ranks compare, where it has more: at most
 * ENG_SAMPLES, or SIZE_MAX. */
size_t eng_config_samples(const struct eng_config *config);
/** So many tiles of state are cut into strips (zero/store/strips.h) together. */
size_t eng_config_tiles_in_group(const struct eng_config *config);

/** The value of the key of this name: a number, or the index of a choice. */
int64_t eng_config_value(const struct eng_config *config, const char *key);
/** Where it came from. */
enum eng_source eng_config_source(const struct eng_config *config, const char *key);
void eng_config_set_source(struct eng_config *config, const char *key, enum eng_source source);
/** Whether the program, the environment or an option gave one. */
bool eng_config_given(const struct eng_config *config, const char *key);

/** One effective value, as -o would take it, and where it came from. */
struct eng_config_entry {
    const char *key;
    char value[ENG_VALUE_BYTES];
    char source[40];
};

/** Entry `index` of the world and all keys, from 0; false behind the last. *Local.* */
bool eng_config_entry(const struct eng_config *config, int index, struct eng_config_entry *entry);

/** Steps in a row that may be skipped: 0 with the policy `error`, UINT64_MAX without a limit. */
uint64_t eng_skip_limit(const struct eng_config *config);

#endif
