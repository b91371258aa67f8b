/**
 * offload/tilefile.h: a rank's state in a file, in tiles, of which the last finished step is always
 * whole.
 *
 * A tile is some bytes that are read, changed and written together. It has two places in the file:
 * what a step writes goes to the place that its newest recorded contents don't have. A record,
 * written when a step's tiles are, makes them the current ones; it has their places and checksums,
 * and a payload of the caller's. There is room for two records, so the one before is still there:
 *
 *     open -> recover, or clear                       once
 *     next_place -> (write) -> wrote   ...            a step's tiles, in any order
 *     record, or abandon                              all of them count, or none
 *     place -> (read) -> check         ...            at any time: what was recorded
 *     close
 *
 * The file is allocated as a whole when it is created and written over for ever: overwriting is
 * three times as fast as extending. It is locked. This header moves no tiles: offload/pipeline.h
 * does.
 *
 * A step's tiles may be written when every rank has recorded the step before: until then some may
 * come back to the one before that, whose places they would take. All *local*, one thread at a
 * time, but for the functions about one tile: different tiles may be used by different threads.
 *
 * Points of base/fault.h: slots.allocate (ENOSPC, with half of the file reserved), and
 * those of base/file.h.
 */
#ifndef OFFLOAD_TILEFILE_H
#define OFFLOAD_TILEFILE_H

#include "offload/blocking_call.h"
#include "offload/direct_file.h"

struct off_tilefile;

struct off_tilefile_config {
    const char *path;
    uint64_t identity[2]; /**< of job, model and rank: what other files are not taken for */
    size_t tiles;
    const size_t *tile_bytes; /**< of each, > 0 */
    size_t payload_bytes;     /**< of a record, at most */
    bool durable;             /**< a record counts only when all of it would survive a power cut */
    /** Each tile has one place, and what is written to it is current at once: no job comes back to
     * it. The file has no name, `path` is its directory; there are no records. */
    bool in_place;
    bool unchecked;                /**< no checksums: what is read is believed */
    bool (*counts)(uint64_t step); /**< whether a job would come back at a record of this step;
                                        NULL: at any */
    /** Who writes and reads records, so that a disk that hangs is a ZERO_E_TIMEOUT; borrowed. NULL:
     * the caller does, and waits as long as it takes, as off_tilefile_open() and close do in any
     * case.
     */
    struct off_blocking_calls *blocking_calls;
};

/** Bytes that a tile of so many bytes has in the file, and in memory that it is read to. Pure. */
size_t off_tilefile_room_for(size_t tile_bytes);

/** Bytes of the file. Pure. */
uint64_t off_tilefile_file_bytes(const struct off_tilefile_config *config);

/** Bytes of memory, but for the path. Pure. */
size_t off_tilefile_memory(const struct off_tilefile_config *config);

/**
 * Opens the file, or creates and allocates it; what another identity has left is overwritten.
 * *recorded is how many records it has: 0 to 2. ZERO_E_STATE: another process has it, or there is a
 * record of this identity in another shape, which would be lost. ZERO_E_CORRUPT: the file has been
 * cut short since a record of this identity and shape was written (all of it is allocated before
 * the first record). Or a record that counts is damaged and there is no other. The call writes
 * nothing to such a file until the user has removed it, for it may be all that is left of a job.
 * ZERO_E_LIMIT: there is no room on the file system; the message has what is needed and what there
 * is. ZERO_E_UNSUPPORTED: the file system cannot reserve room. ZERO_E_IO, ZERO_E_NOMEM. On error
 * *tilefile is NULL, and a file that was created is gone.
 */
zero_result off_tilefile_open(struct off_tilefile **tilefile,
                              const struct off_tilefile_config *config, int *recorded,
                              struct base_error *error);

/** Offsets of what was neither a whole record nor a void one when the file was opened. Either its
 * writer died while it wrote, or it was damaged since. The library cannot tell the two apart, so it
 * takes the record before. Returns how many. */
int off_tilefile_torn(const struct off_tilefile *tilefile, uint64_t offsets[2]);

/** Step of record `age`, 0 for the newest, below `recorded`; as it was when the file was opened. */
uint64_t off_tilefile_step(const struct off_tilefile *tilefile, int age);

/**
 * Makes record `age` the current one, copies its payload, of at most the config's size, into
 * `payload`, and makes a newer one void, also one that was written since the file was opened, as
 * long as that was the only one. ZERO_E_IO, ZERO_E_TIMEOUT; ZERO_E_CORRUPT: it has changed
 * meanwhile, or says what cannot be.
 */
zero_result off_tilefile_recover(struct off_tilefile *tilefile, int age, void *payload,
                                 size_t *bytes, struct base_error *error);

/** Makes all records void, before a job that begins anew writes over their tiles. ZERO_E_IO,
 * ZERO_E_TIMEOUT. */
zero_result off_tilefile_clear(struct off_tilefile *tilefile, struct base_error *error);

/** Makes the record before the current one void, whose tiles are the next to be written over: for
 * who takes the current one for no step, and so would look at that one. ZERO_E_IO, ZERO_E_TIMEOUT.
 */
zero_result off_tilefile_void_older(struct off_tilefile *tilefile, struct base_error *error);

/** Before tiles are written: the same where the current record does not count, and what is written
 * would damage one that may. Once; elsewhere nothing. */
zero_result off_tilefile_void_before_write(struct off_tilefile *tilefile, struct base_error *error);

/** The file, for reads and writes. */
const struct off_direct_file *off_tilefile_file(const struct off_tilefile *tilefile);

/** Where a tile's current contents are, and where its next ones go. Multiples of 4,096, as is the
 * room behind them. */
uint64_t off_tilefile_current_place(const struct off_tilefile *tilefile, size_t tile);
uint64_t off_tilefile_next_place(const struct off_tilefile *tilefile, size_t tile);

/** Bytes of a tile, and of its room. */
size_t off_tilefile_tile_bytes(const struct off_tilefile *tilefile, size_t tile);
size_t off_tilefile_room_bytes(const struct off_tilefile *tilefile, size_t tile);

/** Whether a tile has contents: after its first record. */
bool off_tilefile_has_contents(const struct off_tilefile *tilefile, size_t tile);

/** Bytes that its current contents have in the file: those of the tile, or fewer, if a codec has
 * made them fewer. 0 without contents. */
size_t off_tilefile_stored_bytes(const struct off_tilefile *tilefile, size_t tile);

/** Notes what is about to be written, or has been, to a tile's next place: `bytes` bytes, at most
 * those of the tile. */
void off_tilefile_note_write(struct off_tilefile *tilefile, size_t tile, const void *stored,
                             size_t bytes);

/**
 * The first tile from `from` on whose second place has not been written to since the file was
 * created, the number of tiles if there is none; where that place is; and that it has been written
 * to. Nothing current or recorded is there before.
 */
size_t off_tilefile_unfilled(const struct off_tilefile *tilefile, size_t from);
uint64_t off_tilefile_fill_place(const struct off_tilefile *tilefile, size_t tile);
void off_tilefile_filled(struct off_tilefile *tilefile, size_t tile);

/** Contents of a tile that were recorded: to be read when newer ones may be, too, but no later than
 * the first write of the record after the next. */
struct off_contents {
    uint64_t offset, checksum;
    size_t stored; /**< off_tilefile_stored_bytes() */
};
struct off_contents off_tilefile_recorded(const struct off_tilefile *tilefile, size_t tile);

/** Compares what is stored of them with what was read. Any thread, while others do what they like
 * with the tile file. ZERO_E_CORRUPT as of off_tilefile_check(). */
zero_result off_tilefile_check_recorded(const struct off_tilefile *tilefile, size_t tile,
                                        const struct off_contents *contents, const void *stored,
                                        struct base_error *error);

/** Compares the off_tilefile_stored_bytes() bytes that were read from a tile's current place.
 * ZERO_E_CORRUPT names file, offset and tile. */
zero_result off_tilefile_check(const struct off_tilefile *tilefile, size_t tile, const void *stored,
                               struct base_error *error);

/**
 * Makes what was written since the last record current, with `step` and a payload of at most the
 * config's size. All of it has been written. The record takes the place of the one before the
 * current one; but where nothing was written since the current one, which does not count, it takes
 * that one's: the one before is there until this one is whole. ZERO_E_LIMIT: the payload.
 * ZERO_E_STATE: the file was removed, or cut short, and no job would find the record. ZERO_E_IO,
 * ZERO_E_TIMEOUT: what was current before still is, but nothing may be written any more: whether
 * the record counts finds out who opens the file next. ZERO_E_INVALID: in_place.
 */
zero_result off_tilefile_record(struct off_tilefile *tilefile, uint64_t step, const void *payload,
                                size_t bytes, struct base_error *error);

/** Forgets what was written since the last record. */
void off_tilefile_abandon(struct off_tilefile *tilefile);

/** Closes the file, and removes it if `remove` is set; accepts NULL. What was not recorded is
 * forgotten. In a forked child the file stays, and stays locked. With blocking calls their last
 * call does this, or the thread that has seen them end: before that a record may be under way. */
void off_tilefile_close(struct off_tilefile *tilefile, bool remove);

#endif
