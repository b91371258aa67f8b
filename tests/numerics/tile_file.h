/**
 * tests/numerics/tile_file.h: a reader of tile files that was written by offload/FORMAT.md. It
 * includes no header of the library and is not linked with it. Numbers in comments are sections of
 * that page.
 */
#ifndef TESTS_NUMERICS_TILE_FILE_H
#define TESTS_NUMERICS_TILE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ENTRY = 24, /**< bytes of one in a record */
    GRANULE = 1024,
    PERSIST = 1024,
    TILES_MAX = 64,
    PIECES_MAX = 64,
    JOBS = 2,
    TENSORS = 6 /**< of a job, at most */
};

enum dtype { F32 = 1, BF16 = 2 };

/* ------------------------------------------------------------------ what a reader has to know */

struct tensor {
    const char *name;
    uint64_t shape[8];
    uint32_t dimensions;
    enum dtype dtype;
    uint32_t unit, slices, group;
    bool frozen;
};

struct group {
    const char *optimizer;
    uint32_t moments;
    uint32_t squares; /**< bit k: moment k is never negative */
    uint32_t decay;   /**< 1 decoupled, 2 L2 */
    bool nesterov;
};

struct job {
    const char *name;
    uint32_t world, stage, micro_batches, sum_group, comm_dtype, units;
    int64_t loss_scale, loss_scale_init, loss_scale_window;
    uint64_t seed, tile_bytes;
    uint32_t tensor_count, group_count;
    struct tensor tensors[TENSORS];
    struct group groups[3];
    uint64_t blob_bytes[2]; /**< attached at zero_commit() */
};

/** The jobs whose files are in tests/data/a449ca1. */
extern const struct job jobs[JOBS];

/** Elements of a slice. */
uint64_t numel_of(const struct tensor *tensor);
uint32_t moments_of(const struct job *job, const struct tensor *tensor);
uint64_t weight_bytes(const struct tensor *tensor);

/** How many parts of `each` there are in `count`; the last one may be smaller. */
uint64_t parts(uint64_t count, uint64_t each);

/** 5.2: with the rank as the seed identity[0], with 2^64 - 1 identity[1]. */
uint64_t identity(const struct job *job, uint64_t seed);

/* ------------------------------------------------------------------ 5.4: tiles */

/** A run of granules of one bucket in one tile. */
struct piece {
    uint32_t unit;
    uint64_t kind;            /**< names the bucket in its unit */
    uint64_t first, granules; /**< of the bucket */
    uint32_t tile;
    uint64_t offset; /**< in the contents of the tile */
};

struct cut {
    struct piece pieces[PIECES_MAX];
    uint32_t piece_count, tile_count;
    uint64_t tile_bytes[TILES_MAX];
};

/** What sorts a unit's slices into buckets, in their order. */
uint64_t kind_of(const struct job *job, const struct tensor *tensor);

bool is_in(const struct tensor *tensor, uint32_t unit);

/** Bytes of an element with its moments, and of one of its fields (0: weights), in a bucket. */
uint64_t element_bytes(uint64_t kind);
uint64_t field_bytes(uint64_t kind, uint32_t field);

void cut_tiles(const struct job *job, uint32_t rank, struct cut *cut);

/* ------------------------------------------------------------------ 1, 2: file and records */

struct bytes {
    unsigned char *at;
    size_t count;
};

struct tile_file {
    struct bytes bytes;
    struct cut cut;
    uint64_t identity[2], shape, payload_most, record_room;
};

struct record {
    uint64_t sequence, number;
    const unsigned char *payload, *entries;
    uint64_t payload_bytes;
};

struct entry {
    uint64_t checksum, stored, place, has;
};

/** A little-endian number. */
uint64_t get(const unsigned char *at, size_t bytes);

/** Says what is wrong and ends the program. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/** Zeroed memory; there always is some. */
void *allocate(size_t bytes);

/** Frees them. */
void release(struct bytes *bytes);

/** A file, or what the command zstd has packed as `path`.zst. */
struct bytes read_file(const char *path);

/** Everything about a rank's file but its bytes. */
void describe(const struct job *job, uint32_t rank, struct tile_file *file);

uint64_t place_offset(const struct tile_file *file, uint32_t tile, uint64_t place);

/** Reads record `number`. NULL, or what is wrong with it. */
const char *read_record(const struct tile_file *file, uint64_t number, struct record *record);

struct entry entry_of(const struct record *record, uint32_t tile);

/** NULL, or what is wrong with a tile's entry or stored bytes. */
const char *check_tile(const struct tile_file *file, const struct record *record, uint32_t tile);

/** 5.5: the contents of a tile, decoded, to be freed. */
unsigned char *contents_of(const struct job *job, const struct tile_file *file,
                           const struct record *record, uint32_t tile);

/** 6: the example of the page at this path. */
void check_example(const char *page);

#endif
