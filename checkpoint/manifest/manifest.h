/**
 * checkpoint/manifest/manifest.h: what a checkpoint is: FORMAT.md, section 4. All *local*, pure,
 * any thread.
 */
#ifndef CHECKPOINT_MANIFEST_MANIFEST_H
#define CHECKPOINT_MANIFEST_MANIFEST_H

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/safetensors/safetensors.h" // ckpt_dtype

#include <stdbool.h>

enum {
    CKPT_FORMAT = 1,
    CKPT_MAX_FIELDS = 3,
    CKPT_MAX_HYPER = 8,
    CKPT_GRANULE = 1024,
    CKPT_MAX_SHARDS = 1 << 20,
};

/** Longest manifest that is written or read, in bytes. */
#define CKPT_MAX_MANIFEST (UINT64_C(1) << 28)

/** Largest number in a manifest: what every reader of JSON holds exactly. */
#define CKPT_MAX_NUMBER (UINT64_C(1) << 53)

/** A hyper-parameter by name. */
struct ckpt_hyper {
    char name[24];
    double value;
};

struct ckpt_group {
    char *name;
    char *optimizer;
    char *decay; /**< "decoupled", "l2", or "own": the optimizer is the program's, and knows */
    bool nesterov, frozen;
    struct ckpt_hyper hyper[CKPT_MAX_HYPER];
    int hypers;
};

struct ckpt_table_tensor {
    char *name;
    int ndim;                      /**< 0 (a scalar) .. CKPT_MAX_DIMS */
    uint64_t shape[CKPT_MAX_DIMS]; /**< each extent at least 1 */
    uint64_t slices;               /**< equal parts, */
    uint64_t numel;                /**< and the elements of one */
    enum ckpt_dtype dtype, grad_dtype;
    uint32_t group;
    bool trains; /**< false: was registered frozen, so that it has one field */
    enum ckpt_dtype field[CKPT_MAX_FIELDS];
    int fields;
    struct base_hash128 sum; /**< its part of the fingerprint */
};

/** Elements first .. first+count-1 of a slice, in all fields. */
struct ckpt_run {
    uint32_t tensor, slice;
    uint64_t first, count;
};

struct ckpt_blob {
    char *name;
    bool of_rank;    /**< each rank has its own */
    uint64_t *bytes; /**< of a rank: one a shard; else one */
};

struct ckpt_shard_entry {
    uint64_t bytes;
    uint64_t index_offset;
    uint64_t index_xxh3;
    struct ckpt_run *runs;
    size_t run_count;
};

/**
 * A run: what one job began and others may have continued, each by loading a checkpoint of it.
 * 128 random bits, in every checkpoint that the run saves.
 */
struct ckpt_run_id {
    uint8_t bytes[16];
};

/** What is in it beside tensors. Numbers are at most CKPT_MAX_NUMBER, but for the seed. */
struct ckpt_state {
    uint64_t step, updates, skips;
    uint64_t micro_batches, sum_group;
    uint64_t seed;
    bool has_loss_scale, loss_scale_dynamic;
    double loss_scale;
    uint64_t loss_scale_clean;
    bool local;                 /**< local accumulation; "native" in the file */
    enum ckpt_dtype comm_dtype; /**< CKPT_OTHER: each gradient's own */
    int stage;
    uint8_t fingerprint[16];
};

/** Run number `run` of shard `shard`. */
struct ckpt_place {
    uint32_t shard;
    size_t run;
};

/** A tensor by name, which is the tensor's own. */
struct ckpt_named {
    const char *name;
    size_t number;
};

/** What finds tensors and elements fast. */
struct ckpt_manifest_index {
    struct ckpt_named *by_name; /**< all tensors, sorted */
    struct ckpt_place *places;  /**< all runs, sorted by tensor, slice, first element */
    size_t place_count;
};

/** All zero is an empty one. Owns all it points to. */
struct ckpt_manifest {
    uint8_t id[16];
    char *library, *job, *created;
    uint64_t sequence;      /**< its place in the directory's order: that of the commits, from 1 */
    struct ckpt_run_id run; /**< whose it is. Without `run_told`, as in files of earlier libraries,
                                 parsing derives one from what does not change in a run */
    bool run_told;          /**< the text has it */
    int level;
    struct ckpt_state state;
    struct ckpt_group *groups;
    size_t group_count;
    struct ckpt_table_tensor *tensors;
    size_t tensor_count;
    struct ckpt_blob *blobs;
    size_t blob_count;
    struct ckpt_shard_entry *shards; /**< one a rank of the job that saved */
    size_t world;
    struct ckpt_manifest_index index; /**< of a manifest that was parsed */
};

/**
 * Makes the file's text: *text, *length bytes, to be freed with base_free(); NULL after an error.
 * The manifest's index is not used. ZERO_E_INVALID: what ckpt_manifest_parse() would refuse, such
 * as a name that is no UTF-8 or given twice, or elements in no run or in two; ZERO_E_LIMIT: longer
 * than CKPT_MAX_MANIFEST; ZERO_E_NOMEM.
 */
zero_result ckpt_manifest_format(const struct ckpt_manifest *manifest, char **text, size_t *length,
                                 struct base_error *error);

/**
 * Parses and checks a whole file: its checksum, every member, that names are unique, that shapes,
 * slices and fields go together, and that the shards' runs cover every element exactly once, so
 * that nothing in it can make a reader go out of bounds. `path` is for messages. ZERO_E_CORRUPT,
 * ZERO_E_VERSION (a format of a later library), ZERO_E_NOMEM: then *manifest is empty.
 */
zero_result ckpt_manifest_parse(struct ckpt_manifest *manifest, const char *text, size_t length,
                                const char *path, struct base_error *error);

/** What a directory's checkpoints are ordered by, and whose each is. */
struct ckpt_manifest_head {
    uint64_t step, sequence;
    struct ckpt_run_id run; /**< as in struct ckpt_manifest */
};

/**
 * Only the head of a whole file, whose checksum is checked. Behind the head nothing is looked at
 * where the lines up to there are as ckpt_manifest_format() makes them; any other text is parsed.
 * Errors as of ckpt_manifest_parse().
 */
zero_result ckpt_manifest_parse_head(struct ckpt_manifest_head *head, const char *text,
                                     size_t length, const char *path, struct base_error *error);

/** Whether two runs are the same. */
bool ckpt_same_run(const struct ckpt_run_id *a, const struct ckpt_run_id *b);

/** Frees what it owns; it is empty then. */
void ckpt_manifest_free(struct ckpt_manifest *manifest);

/** Room for a shard's name with its final zero. */
enum { CKPT_SHARD_NAME = 24 };

/** The name of shard `rank` in its checkpoint's directory. */
void ckpt_shard_name(uint32_t rank, char name[CKPT_SHARD_NAME]);

/** The number of the tensor called `name`; SIZE_MAX if there is none. Of a parsed manifest. */
size_t ckpt_manifest_find(const struct ckpt_manifest *manifest, const char *name);

/** The number in index.places of the run that has an element, which the slice has. What comes after
 * the run is in the next one. Of a parsed manifest. */
size_t ckpt_manifest_locate(const struct ckpt_manifest *manifest, size_t tensor, uint32_t slice,
                            uint64_t element);

#endif
