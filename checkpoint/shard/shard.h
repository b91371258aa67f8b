/**
 * checkpoint/shard/shard.h: one rank's file of a checkpoint: FORMAT.md, section 3.
 *
 * Written in one pass from front to back (by a thread of the writer's, behind those who encode),
 * read in any order. All *local*, one thread at a time unless said otherwise.
 */
#ifndef CHECKPOINT_SHARD_SHARD_H
#define CHECKPOINT_SHARD_SHARD_H

#include "checkpoint/codec/block_codec.h"
#include "checkpoint/files/ckpt_store.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/shard/write_behind.h"

/** Which shard of which checkpoint. */
struct ckpt_shard_id {
    uint8_t checkpoint[16];
    uint64_t step;
    uint32_t rank, world;
};

/** Where the block that begins at element `first` ends, of a run that ends before `end`. */
static inline uint64_t ckpt_block_end(uint64_t first, uint64_t end)
{
    const uint64_t next = first - first % CKPT_BLOCK_ELEMENTS + CKPT_BLOCK_ELEMENTS;
    return next < end ? next : end;
}

/** Into how many blocks a field of elements first .. first+count-1 is cut. */
static inline uint64_t ckpt_block_count(uint64_t first, uint64_t count)
{
    return count == 0 ? 0
                      : (first + count - 1) / CKPT_BLOCK_ELEMENTS - first / CKPT_BLOCK_ELEMENTS + 1;
}

/** One block in the index. */
struct ckpt_block {
    uint64_t offset;
    uint64_t xxh3;   /**< of the elements, */
    uint64_t stored; /**< and of the bytes in the file */
    uint32_t count;
    struct ckpt_block_code code;
    uint16_t field;
    uint32_t plane_bytes[CKPT_MAX_PLANES];
};

/* ------------------------------------------------------------------ writing */

struct ckpt_shard_writer;

/** Bytes that a writer takes for a shard of so many runs, blobs and blocks, its buffers included.
 * SIZE_MAX: no index has so many. */
size_t ckpt_shard_writer_bytes(size_t runs, size_t blobs, size_t blocks);

/**
 * Makes a writer with room for the index of a shard of so many runs, blobs and blocks; it is used
 * for one shard after the other. Later calls allocate nothing. ZERO_E_LIMIT: an index has at most
 * 4 GiB; ZERO_E_NOMEM (also where the system refuses a thread): *writer is NULL.
 */
zero_result ckpt_shard_writer_create(struct ckpt_shard_writer **writer, size_t runs, size_t blobs,
                                     size_t blocks, struct base_error *error);

/**
 * Begins a shard in `file`, which is open for writing and belongs to the caller, and whose old
 * contents are written over. It is used until ckpt_shard_finish() or ckpt_shard_give_up() has
 * returned: one of them ends what has begun. After an error of this or one of the calls below,
 * which are the store's and may be of what was added before, there is no shard in the file; those
 * below return ZERO_E_INVALID, too, for more than the writer was made for.
 */
zero_result ckpt_shard_begin(struct ckpt_shard_writer *writer, const struct ckpt_store *store,
                             struct ckpt_file *file, const struct ckpt_shard_id *id,
                             struct base_error *error);

/** Enters a blob, then its blocks; before all runs. */
zero_result ckpt_shard_blob(struct ckpt_shard_writer *writer, uint32_t number, uint64_t bytes,
                            struct base_error *error);

/** Enters a run, whose blocks come next, in FORMAT.md's order. What is left out, or comes in
 * another order, makes a shard that no reader takes. */
zero_result ckpt_shard_run(struct ckpt_shard_writer *writer, const struct ckpt_run *run,
                           struct base_error *error);

/** Adds one block, encoded by `codec`. Written, while the next ones are encoded, when enough has
 * come together. */
zero_result ckpt_shard_block(struct ckpt_shard_writer *writer, struct ckpt_block_codec *codec,
                             struct ckpt_block_code code, uint16_t field, const void *elements,
                             size_t count, struct base_error *error);

/**
 * ckpt_shard_block() in three calls, for several threads that encode blocks beside each other, each
 * block with a codec that is used for nothing else meanwhile. The first one is for any thread, with
 * every block. The second one gives it its place and is for one thread at a time, with the blocks
 * in their order; it waits for room. Then the third one is for any thread, before
 * ckpt_shard_finish() and ckpt_shard_give_up(), with up to CKPT_SHARD_PLACED blocks at a time. The
 * elements are there until it has returned.
 */
struct ckpt_shard_part {
    struct ckpt_block_codec *codec;
    const void *elements;
    struct ckpt_block block;
    size_t number;                      /**< of the block in the shard */
    struct ckpt_write_behind_part part; /**< its place */
};

zero_result ckpt_shard_encode(struct ckpt_shard_part *part, struct ckpt_block_codec *codec,
                              struct ckpt_block_code code, uint16_t field, const void *elements,
                              size_t count, struct base_error *error);
zero_result ckpt_shard_take(struct ckpt_shard_writer *writer, struct ckpt_shard_part *part,
                            struct base_error *error);
void ckpt_shard_put(struct ckpt_shard_writer *writer, struct ckpt_shard_part *part);
enum { CKPT_SHARD_PLACED = CKPT_WRITE_BEHIND_PARTS };

/** Writes index and tail, cuts the file to its size and flushes it: it is durable. *entry: what the
 * manifest says of it, without runs. */
zero_result ckpt_shard_finish(struct ckpt_shard_writer *writer, struct ckpt_shard_entry *entry,
                              struct base_error *error);

/** Ends a shard that is not to be finished; does nothing where none has begun or all have ended. */
void ckpt_shard_give_up(struct ckpt_shard_writer *writer);

/** Frees it; accepts NULL. */
void ckpt_shard_writer_destroy(struct ckpt_shard_writer *writer);

/* ------------------------------------------------------------------ reading */

/** An open shard, whose header, index and tail have been checked. */
struct ckpt_shard;

/**
 * Opens shard `rank` of a checkpoint whose manifest is there and checks header, index and tail,
 * also against the manifest: nothing in it can make a reader go out of bounds. `path` and
 * `manifest` are borrowed until close. ZERO_NOT_FOUND; ZERO_E_CORRUPT: damaged, or of another
 * checkpoint (the message names file and offset); ZERO_E_VERSION, ZERO_E_IO, ZERO_E_NOMEM: *shard
 * is NULL.
 */
zero_result ckpt_shard_open(struct ckpt_shard **shard, const struct ckpt_store *store,
                            const char *path, const struct ckpt_manifest *manifest, uint32_t rank,
                            struct base_error *error);

/** Number of blocks, in the order of the file. */
size_t ckpt_shard_blocks(const struct ckpt_shard *shard);

/** What a block is: of which run (SIZE_MAX: of a blob) or blob of the manifest, and from which
 * element of the slice, or byte of the blob, on. */
struct ckpt_block_place {
    const struct ckpt_block *block;
    size_t run, blob;
    uint64_t first;
};

/** What block number `block` is. */
struct ckpt_block_place ckpt_shard_place(const struct ckpt_shard *shard, size_t block);

/** Number of the first block of run `run`: block i of it in field f is that + i * fields + f. */
size_t ckpt_shard_run_blocks(const struct ckpt_shard *shard, size_t run);

/** The number of the first block of a blob of the manifest's, which the shard has. */
size_t ckpt_shard_blob_blocks(const struct ckpt_shard *shard, size_t blob);

/** Room for a stored block that ckpt_shard_read() needs. */
size_t ckpt_shard_room(void);

/**
 * Reads one block, checks and decodes it into `elements`, which has room for all of them; `room` is
 * ckpt_shard_room() bytes of scratch. Elements are undefined after an error. ZERO_E_CORRUPT: the
 * message names tensor, slice, field and elements, offset and file; ZERO_E_IO. Any thread, each
 * with a codec and scratch of its own; but only one after ckpt_shard_rest(), and then also
 * ZERO_NOT_FOUND.
 */
zero_result ckpt_shard_read(struct ckpt_shard *shard, size_t block, struct ckpt_block_codec *codec,
                            void *room, void *elements, struct base_error *error);

/** Closes the file, not what is known of it: the next block that is read opens it again. No
 * thread may be reading. */
void ckpt_shard_rest(struct ckpt_shard *shard);

/** Whether its file is closed. */
bool ckpt_shard_rests(const struct ckpt_shard *shard);

/** Bytes read from the file so far, by all threads. */
uint64_t ckpt_shard_bytes_read(const struct ckpt_shard *shard);

/** Closes the file, if it is open, and frees it; accepts NULL. */
void ckpt_shard_close(struct ckpt_shard *shard);

#endif
