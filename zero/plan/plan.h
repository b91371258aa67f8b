/**
 * The plan: what every rank needs, by purpose and at the moments when it is most; whether the host
 * has that; how ranks come by parameters and gradients; and where every configuration value came
 * from. As text for people, and as JSON.
 */
#ifndef ZERO_PLAN_PLAN_H
#define ZERO_PLAN_PLAN_H

#include "base/memory_limits.h"
#include "zero/config/config.h"
#include "zero/model/layout.h"
#include "zero/model/placement.h"

struct base_kernels;

/** What memory is for, in the order of the plan's rows. */
enum eng_purpose {
    ENG_FOR_PARAMS,
    ENG_FOR_GATHERED,
    ENG_FOR_GRADIENTS,
    ENG_FOR_SUMS,
    ENG_FOR_BLOCKS,
    ENG_FOR_PARTIAL_SUMS,
    ENG_FOR_WINDOWS,
    ENG_FOR_MOMENTS,
    ENG_FOR_MASTERS,
    ENG_FOR_TILES,
    ENG_FOR_PARAM_STRIPS,
    ENG_FOR_SUM_STRIPS,
    ENG_FOR_BOUNCE,
    ENG_FOR_TABLES,
    ENG_FOR_TRANSPORT,
    ENG_FOR_SAVING,
    ENG_PURPOSES
};

/** What memory of a GPU is for. */
enum eng_gpu_purpose {
    ENG_GPU_PARAMS,
    ENG_GPU_GATHERED,
    ENG_GPU_GRADIENTS,
    ENG_GPU_RECEIVED,
    ENG_GPU_SUMS,
    ENG_GPU_BLOCKS,
    ENG_GPU_MOMENTS,
    ENG_GPU_MASTERS,
    ENG_GPU_TILES,
    ENG_GPU_TABLES,
    ENG_GPU_PURPOSES
};

/** What a rank has in files of their own. */
enum eng_file { ENG_FILE_STATE, ENG_FILE_PARAMS, ENG_FILE_SUMS, ENG_FILES };

/** All zero: there is none. */
struct eng_file_needs {
    uint64_t bytes;   /**< of the file */
    size_t memory;    /**< of what it is moved through: buffers of a pipeline, and of tile I/O */
    uint64_t read;    /**< by a step: of parameters an estimate, as if each unit were gathered twice
                           in a micro-batch; of sums at most once a micro-batch, the update
                           included */
    uint64_t written; /**< by a step: of sums at most once a micro-batch */
};

/** Moments of a context's life. */
enum eng_peak { ENG_PEAK_COMMIT, ENG_PEAK_STEP, ENG_PEAK_SAVE, ENG_PEAK_LOAD, ENG_PEAKS };

/** Bytes of one rank; of memory that the ranks of a host share, its part. */
struct eng_need {
    size_t rows[ENG_PURPOSES];
    size_t total;                           /**< of the rows: what stays from commit to close */
    struct eng_file_needs files[ENG_FILES]; /**< on NVMe */
    size_t gpu[ENG_GPU_PURPOSES];           /**< on a GPU */
    size_t saving;           /**< of the rows: from the first zero_save() on, by default */
    size_t loading;          /**< beside them, while a checkpoint is loaded */
    size_t once;             /**< beside them, while zero_commit() makes the last of them */
    size_t peaks[ENG_PEAKS]; /**< the most at once */
};

/** One number of all ranks. */
struct eng_spread {
    size_t mine, least, most, sum;
    int largest; /**< the first rank with the most */
};

enum eng_fits { ENG_FITS_UNCHECKED, ENG_FITS, ENG_FITS_NOT, ENG_FITS_UNKNOWN };

/** Whether the host has what its ranks need. Bytes; UINT64_MAX: none. */
struct eng_fit {
    enum eng_fits verdict;
    uint64_t limit, left;        /**< what limits, and what of that is left for the ranks */
    uint64_t needed;             /**< by the ranks it limits */
    int group_ranks;             /**< in this rank's control group, */
    int host_ranks;              /**< and on its host; 0: see eng_plan_ranks_here() */
    int least_ranks, most_ranks; /**< where hosts have different numbers of ranks: the fewest and
                                      the most; else 0 */
    uint64_t least_needed, most_needed; /**< by such a host, as of zero_commit() */
    char source[256];                   /**< what limits: "MemAvailable", ...; "" if nothing does */
    char reason[400];                   /**< if not: needed, left, and what would help; else "" */
    struct base_memory_limits host;     /**< what was found */
};

/** Whether a rank's GPU has what the ranks that share it need there, beside whatever else is there:
 * as of zero_commit(). Bytes. */
struct eng_gpu_fit {
    enum eng_fits verdict;
    int ranks;            /**< that share it; where only a plan is made the one that needs most */
    uint64_t needed;      /**< by all of these */
    uint64_t free, total; /**< of its memory, where a rank has looked; else 0 */
    char reason[512];     /**< if it has not: needed, free, and what would help; if it is unknown,
                               why; else "" */
};

/** What an update of the host's is without memory: how many bytes of state threads update a second,
 * read and written together, of a block that stays in their caches. By the optimizer, and in the
 * types, of the tensor with the most elements of those that train. */
struct eng_update_rate {
    double bytes_s;
    const char *unknown; /**< bytes_s is 0, for this reason; else NULL */
};

/** What codec and processor make of bytes like those of state. */
struct eng_codec_rate {
    double bytes_s; /**< that one thread encodes, or decodes, a second: the mean of both */
    double ratio;   /**< encoded to as much of them */
};

/** Where files are. Where only a plan is made, what a short probe has found. */
struct eng_plan_disk {
    const char *directory; /**< NULL: there are no files, and nothing below is known */
    uint64_t found;        /**< bytes that are free, or in files that are used again */
    bool known;
    const char *pages;       /**< of memory for tiles, as they were got; NULL: not known yet */
    const char *engine;      /**< what reads and writes, as in the configuration; NULL: not known
                                  yet */
    char engine_passed[512]; /**< why io=auto passed over the one before it; "" if it did not */
    int passed_rank;         /**< on which rank; -1: on this one */
    char engine_ranks[96];   /**< how many ranks have which engine; "" if all have this one */
    uint64_t lock_limit;     /**< bytes that this user may lock; UINT64_MAX: any. Of plans only */
    bool opened;             /**< a file there was: it is known how they are read and written, */
    size_t direct_unit;      /**< off_direct_file's */
    double disk_rate;        /**< bytes a second of reads and writes together; 0: not probed */
    double read_rate;        /**< of reads alone, */
    double latency_s;        /**< and how long a small one takes */
    double memory_rate;      /**< bytes a second that a rank's threads copy, read and written, while
                                  all of the host's do */
    struct eng_update_rate update;
    struct eng_codec_rate codec;
};

/** What ranks have in files, and a step reads and writes. */
struct eng_plan_file {
    struct eng_spread bytes, read, written;
};

struct eng_plan {
    struct eng_plan_disk disk;
    struct eng_spread rows[ENG_PURPOSES], total, saving, loading, peaks[ENG_PEAKS];
    struct eng_spread gpu[ENG_GPU_PURPOSES], gpu_total;
    struct eng_plan_file files[ENG_FILES];
    struct eng_spread in_files; /**< bytes of all of them */
    size_t *ranks;              /**< each one's largest peak, */
    size_t *gpu_ranks;          /**< and what it has on its GPU */
    int world;
    struct eng_fit fit;
    struct eng_gpu_fit gpu_fit; /**< all zero: no rank has anything there */
    char *text, *json;
};

/** State in files, of this rank. */
struct eng_plan_files {
    size_t tiles, buffers, tile_bytes; /**< of the largest tile */
};

/** What only the transport knows. All zero before there is one. */
struct eng_plan_host {
    const char *private_path; /**< coll_unregistered_path() */
    const char *reason;       /**< coll_transport_reason() */
    size_t huge_bytes;        /**< of this rank's memory that peers read: in huge pages */
};

/** What ranks of a host send others of their gradients. */
struct eng_plan_between {
    bool several;     /**< there are several hosts whose ranks add on processors; else all zero */
    int ranks_a_host; /**< 0: they are not alike */
    bool sums;        /**< one sum of each block of a sum_group, of some buckets at least */
    char reason[160]; /**< if not: why every contribution travels; else "" */
    uint64_t bytes;   /**< that all hosts send in a step, without headers; 0: not known */
};

/** How offload_update=auto was decided. */
struct eng_updater {
    char why[512]; /**< the rule's reason; "": it needs none, or nothing was decided */
};

/** Everything the plan tells of. */
struct eng_plan_facts {
    const struct eng_config *config;
    const struct base_kernels *kernels; /**< the table in use */
    const struct eng_model *model;
    const struct eng_layout *layout;
    const struct eng_placement *placement;
    const struct eng_updater *updater;
    struct eng_plan_host host;
    struct eng_plan_between between;
    struct eng_plan_files files;
};

/** What a rank needs for its placement alone. */
struct eng_need eng_need_place(const struct eng_placement *placement);
/** What its rows have together. */
size_t eng_need_total(const struct eng_need *need);

/** Empties the plan and makes room for `world` ranks. ZERO_E_NOMEM. */
zero_result eng_plan_begin(struct eng_plan *plan, int world, struct base_error *error);
/** Adds a rank; each once, in order. */
void eng_plan_add(struct eng_plan *plan, int rank, const struct eng_need *need, bool mine);
/** Ranks of this host, as far as that is known: else all. */
int eng_plan_ranks_here(const struct eng_plan *plan);
/** Of bytes of all ranks, those of this host's: each rank has about the same. */
uint64_t eng_plan_of_host(const struct eng_plan *plan, uint64_t all);

/** The moment at which all ranks together need most. */
enum eng_peak eng_plan_worst(const struct eng_plan *plan);

/** Makes text and JSON, which replace those made before. ZERO_E_NOMEM. */
zero_result eng_plan_write(struct eng_plan *plan, const struct eng_plan_facts *facts,
                           struct base_error *error);

void eng_plan_free(struct eng_plan *plan);

/* ---- plan_text.c, plan_json.c */

/** How a row is called: in the text, and in the JSON. */
struct eng_plan_name {
    const char *title, *key;
};
extern const struct eng_plan_name eng_purpose_names[ENG_PURPOSES];
extern const struct eng_plan_name eng_gpu_names[ENG_GPU_PURPOSES];
extern const struct eng_plan_name eng_peak_names[ENG_PEAKS];
extern const struct eng_plan_name eng_file_names[ENG_FILES];

/** Bytes of all ranks that a step reads and writes. */
void eng_plan_moves(const struct eng_plan *plan, uint64_t *read, uint64_t *written);
enum eng_limit { ENG_LIMIT_DISK, ENG_LIMIT_MEMORY, ENG_LIMIT_COMPUTE, ENG_LIMIT_CODEC, ENG_LIMITS };
extern const struct eng_plan_name eng_limit_names[ENG_LIMITS];

/** What a step will take, in seconds, beside forward and backward. */
struct eng_expectation {
    double disk_s, memory_s;   /**< of what it moves, and of the state in memory */
    double compute_s;          /**< of the update without memory; 0: not known */
    double encoded_s, codec_s; /**< of the disk with state compressed, and of compressing it */
    bool compresses;           /**< whether it will, with the configured key */
    double step_s;             /**< all of that goes on side by side: what takes longest, */
    enum eng_limit limit;      /**< which is this */
};
/** false: it is not known. */
bool eng_plan_expects(const struct eng_plan *plan, const struct eng_config *config,
                      struct eng_expectation *expected);

/** How many of a rank's `units` in the file of working copies have to be kept ahead, so that a
 * program that takes as long for one as the disk does, *unit_s, waits for the disk's latency at
 * most a twentieth of that. 0: it is not known, or there is no such file. */
int eng_plan_prefetch(const struct eng_plan *plan, const struct eng_config *config, size_t units,
                      double *unit_s);

/** Everything that the plan says, as JSON; NULL: no memory for a part. */
struct json_t *eng_plan_describe(const struct eng_plan *plan, const struct eng_plan_facts *facts);
/** The plan of that for programs, and for people; to be freed with base_free(). NULL: no memory. */
char *eng_plan_json(const struct json_t *plan);
char *eng_plan_text(const struct json_t *plan);

/** Bytes that the ranks of this host would register with io_uring together, and so lock. */
uint64_t eng_plan_registers(const struct eng_plan *plan);

#endif
