/**
 * The program zero-ckpt: what is in checkpoints, whether they are whole, in what two differ; to and
 * from safetensors.
 *
 *   ckpt_main.c      what to do with the command line; the order of things.
 *   ckpt_options.c   the command line.
 *   ckpt_help.c      --help.
 *   ckpt_path.c      which checkpoint a path means.
 *   ckpt_output.c    tables, sizes, colours, JSON.
 *   ckpt_progress.c  how far a long command is, on a terminal.
 *   elements.c       elements of tensors, counted over their slices, and what they are called.
 *   diff_blobs.c     compares byte by byte.
 *   diff_values.c    compares element by element.
 *   import_write.c   writes a checkpoint of what a file has.
 *
 * Each command has a file: list.c, inspect.c, ckpt_verify.c, diff.c, export.c, import.c, prune.c.
 *
 * Nothing in a checkpoint is trusted: names are printed without control characters. One thread.
 * All but ckpt_main.c is a library that tests link too.
 */
#ifndef TOOLS_ZERO_CKPT_TOOL_H
#define TOOLS_ZERO_CKPT_TOOL_H

#include "base/error.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/loader.h"
#include "checkpoint/shard/shard.h"
#include "tools/options.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Exit statuses, a contract (--help has it). */
enum tool_status {
    TOOL_OK = 0,
    TOOL_FOUND = 1,       /**< list, inspect, verify: damage; diff: a difference */
    TOOL_USAGE = 64,      /**< the command line */
    TOOL_UNREADABLE = 65, /**< it could not be done: a file is damaged, or of a later version */
    TOOL_NOTHING = 66,    /**< there is no such directory or checkpoint */
    TOOL_SYSTEM = 71,     /**< no memory */
    TOOL_IO = 74,         /**< reading or writing failed, standard output's too */
    TOOL_BUSY = 75,       /**< prune: a job saves here, or a process reads; later it may work */
};

/* ------------------------------------------------------------------ ckpt_options.c */

struct tool_options {
    const struct tool_command *command; /**< NULL with help and version only */
    char **paths;
    int path_count;
    bool json;
    enum option_when color;
    bool help, version;
    bool all;              /**< verify: every checkpoint of a directory */
    bool values;           /**< diff: the elements too */
    bool force;            /**< export, import: replace what is there */
    bool state;            /**< export: the moments and all else too */
    bool edited;           /**< import: other values than were exported */
    const char *tensor;    /**< export: a pattern; NULL: all */
    bool dtype_given;      /**< export: */
    enum ckpt_dtype dtype; /**< convert to this */
    const char *like;      /**< import: a checkpoint; NULL: the file's own state */
    bool step_given;       /**< import: */
    uint64_t step;
    bool dry_run; /**< prune */
    struct ckpt_retention retention;
};

/** What a command does. *found: its status is TOOL_FOUND. */
typedef zero_result (*tool_run_fn)(const struct tool_options *options, bool *found,
                                   struct base_error *error);

struct tool_command {
    const char *name;
    const char *takes; /**< its paths, for messages */
    int fewest, most;  /**< of them */
    tool_run_fn run;
};

/** Reads the command line. ZERO_E_INVALID: what is wrong. */
zero_result tool_options_parse(struct tool_options *options, int argc, char **argv,
                               struct base_error *error);

/* ------------------------------------------------------------------ ckpt_help.c */

extern const char tool_help[];

/* ------------------------------------------------------------------ ckpt_path.c */

/** One checkpoint. Its directory is locked for reading. */
struct tool_place {
    char directory[CKPT_PATH_BYTES];
    uint64_t step;
    struct ckpt_file *lock;
};

/** Opens directory/step-<n>, or the newest checkpoint of a directory. ZERO_NOT_FOUND: there is
 * none. In either case it is to be closed. */
zero_result tool_place_open(struct tool_place *place, const char *path, struct base_error *error);
void tool_place_close(struct tool_place *place);
/** ZERO_E_INVALID if a path is that of one checkpoint, where the command wants the directory. */
zero_result tool_place_directory(const char *path, struct base_error *error);

/* ------------------------------------------------------------------ ckpt_output.c */

/** A short text. */
struct tool_text {
    char text[64];
};

/** "1.5GiB": no space, so that columns stay columns. */
struct tool_text tool_size(uint64_t bytes);
/** "3h" since a time that a manifest gives; "-" if it gives none. */
struct tool_text tool_age(const char *created);
/** plain / stored with two digits; "-" if there is nothing. */
struct tool_text tool_ratio(uint64_t plain, uint64_t stored);
/** 2 * count lower-case digits of at most 16 bytes. */
struct tool_text tool_hex(const uint8_t *bytes, size_t count);
struct tool_text tool_sum(struct base_hash128 sum);
const char *tool_dtype(enum ckpt_dtype dtype);
/** Bytes of an element. */
size_t tool_dtype_bytes(enum ckpt_dtype dtype);

/** A text as by printf, to be freed with base_free(); NULL: no memory. */
char *tool_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum tool_color { TOOL_PLAIN, TOOL_BOLD, TOOL_RED, TOOL_GREEN, TOOL_YELLOW };

/** Whether what is printed has colours. */
bool tool_colors(const struct tool_options *options);

/** Rows that are printed with aligned columns. All zero but `columns` is an empty one. */
struct tool_table {
    int columns;
    struct tool_row *rows;
    size_t count, room;
    bool failed; /**< there was no memory for a row */
};

/** Adds a row: cells separated by tabs; the last one may hold anything. TOOL_BOLD is a title's:
 * there a cell that begins with '>' has its column aligned to the right. */
void tool_table_add(struct tool_table *table, enum tool_color color, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Prints and frees it. ZERO_E_NOMEM. */
zero_result tool_table_print(struct tool_table *table, const struct tool_options *options,
                             struct base_error *error);
/** Frees what was not printed. */
void tool_table_free(struct tool_table *table);

/** Prints an object, or says that there was no memory for it (NULL), and gives it back. */
zero_result tool_json_print(json_t *root, struct base_error *error);
/** The object or array with a value more; NULL if there was no memory for either. */
json_t *tool_json_set(json_t *object, const char *key, json_t *value);
json_t *tool_json_append(json_t *array, json_t *value);
/** Any text, as JSON can have it. */
json_t *tool_json_text(const char *text);
/** null where readers of JSON would round it. */
json_t *tool_json_number(uint64_t number);
/** The object that every command prints, with `schema` and `version` only. */
json_t *tool_json_root(const char *command);

/* ------------------------------------------------------------------ ckpt_progress.c */

struct tool_progress {
    bool shown; /**< standard error is a terminal, and it takes long */
    const char *what;
    uint64_t total, begin_ns, next_ns;
};

void tool_progress_begin(struct tool_progress *progress, const char *what, uint64_t total);
/** So many bytes are done. */
void tool_progress_update(struct tool_progress *progress, uint64_t done);
/** Takes the line away. */
void tool_progress_end(struct tool_progress *progress);

/* ------------------------------------------------------------------ elements.c */

/** Of elements counted over all slices: how many there are from `at` on that are in one block. */
uint64_t tool_part(const struct ckpt_table_tensor *tensor, uint64_t at);
/** Reads so many of them, as they are stored. Errors of ckpt_loader_read(). */
zero_result tool_read(struct ckpt_loader *loader, size_t tensor, int field, uint64_t at,
                      uint64_t count, void *out, struct base_error *error);
/** To fp32, exact. */
void tool_widen(enum ckpt_dtype dtype, const void *elements, size_t count, float *out);
/** What a field is called: "weight", "exp_avg". */
struct tool_text tool_field(const struct ckpt_manifest *manifest,
                            const struct ckpt_table_tensor *tensor, int field);
/** What it is called in a file of safetensors: "wte", "wte.exp_avg". To be freed with base_free();
 * NULL: no memory. */
char *tool_tensor_name(const struct ckpt_manifest *manifest, const struct ckpt_table_tensor *tensor,
                       int field);
/** The metadata of such a file that have the manifest, and a blob. */
#define TOOL_MANIFEST_KEY "zero.manifest"
char *tool_blob_key(const struct ckpt_blob *blob, uint32_t rank);

/* ------------------------------------------------------------------ inspect.c */

/** Elements of a tensor. */
uint64_t tool_elements(const struct ckpt_table_tensor *tensor);
/** Bytes of a tensor's fields, uncompressed. */
uint64_t tool_tensor_bytes(const struct ckpt_table_tensor *tensor);
/** Bytes of all tensors and blobs, uncompressed, and of all shards. */
uint64_t tool_plain_bytes(const struct ckpt_manifest *manifest);
uint64_t tool_stored_bytes(const struct ckpt_manifest *manifest);
/** "768x2304"; a scalar: "1". */
struct tool_shape {
    char text[CKPT_MAX_DIMS * 21 + 1];
} tool_shape(const struct ckpt_table_tensor *tensor);

/* ------------------------------------------------------------------ the commands */

zero_result tool_list(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_inspect(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_verify(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_diff(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_export(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_import(const struct tool_options *options, bool *found, struct base_error *error);
zero_result tool_prune(const struct tool_options *options, bool *found, struct base_error *error);

#endif
