#include "offload/tilefile_parts.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/** Bytes of the room of a record; 0 in place. Pure. */
static size_t record_room(const struct off_tilefile_config *config)
{
    if (config->in_place)
        return 0;
    return off_tilefile_round_up(sizeof(struct off_record_head) + config->payload_bytes +
                                 config->tiles * sizeof(struct off_record_entry));
}

size_t off_tilefile_room_for(size_t tile_bytes)
{
    return off_tilefile_round_up(tile_bytes);
}

uint64_t off_tilefile_file_bytes(const struct off_tilefile_config *config)
{
    const uint64_t places = config->in_place ? 1 : OFF_TILEFILE_PLACES;
    uint64_t bytes = (uint64_t)OFF_TILEFILE_RECORDS * record_room(config);
    for (size_t i = 0; i < config->tiles; i++)
        bytes += places * off_tilefile_room_for(config->tile_bytes[i]);
    return bytes;
}

size_t off_tilefile_memory(const struct off_tilefile_config *config)
{
    return sizeof(struct off_tilefile) + config->tiles * sizeof(struct off_tile_state) +
           record_room(config);
}

/* ------------------------------------------------------------------ tiles */

const struct off_direct_file *off_tilefile_file(const struct off_tilefile *tilefile)
{
    return &tilefile->file;
}

static uint64_t place_offset(const struct off_tile_state *tile, uint32_t place)
{
    assert(place < OFF_TILEFILE_PLACES);
    return tile->offset + place * (uint64_t)tile->room;
}

uint64_t off_tilefile_current_place(const struct off_tilefile *tilefile, size_t tile)
{
    assert(tile < tilefile->tile_count);
    return place_offset(&tilefile->tiles[tile], tilefile->tiles[tile].now.place);
}

static uint32_t next_place(const struct off_tilefile *tilefile, const struct off_tile_state *tile)
{
    assert(tile->now.place < OFF_TILEFILE_PLACES);
    return tile->now.has && !tilefile->in_place ? 1 - tile->now.place : 0;
}

uint64_t off_tilefile_next_place(const struct off_tilefile *tilefile, size_t tile)
{
    assert(tile < tilefile->tile_count);
    return place_offset(&tilefile->tiles[tile], next_place(tilefile, &tilefile->tiles[tile]));
}

size_t off_tilefile_tile_bytes(const struct off_tilefile *tilefile, size_t tile)
{
    assert(tile < tilefile->tile_count);
    return tilefile->tiles[tile].bytes;
}

size_t off_tilefile_room_bytes(const struct off_tilefile *tilefile, size_t tile)
{
    assert(tile < tilefile->tile_count);
    return tilefile->tiles[tile].room;
}

bool off_tilefile_has_contents(const struct off_tilefile *tilefile, size_t tile)
{
    return tilefile->tiles[tile].now.has != 0;
}

size_t off_tilefile_stored_bytes(const struct off_tilefile *tilefile, size_t tile)
{
    assert(tile < tilefile->tile_count);
    return (size_t)tilefile->tiles[tile].now.stored;
}

void off_tilefile_note_write(struct off_tilefile *tilefile, size_t tile, const void *stored,
                             size_t bytes)
{
    assert(tile < tilefile->tile_count && bytes > 0);
    assert(bytes <= tilefile->tiles[tile].bytes);
    struct off_tile_state *t = &tilefile->tiles[tile];
    t->next = (struct off_record_entry){
        .checksum = tilefile->unchecked ? 0 : base_hash64(stored, bytes, tile),
        .stored = bytes,
        .place = next_place(tilefile, t),
        .has = 1,
    };
    t->filled = t->filled || t->next.place == 1;
    if (tilefile->in_place)
        t->now = t->next;
}

size_t off_tilefile_unfilled(const struct off_tilefile *tilefile, size_t from)
{
    while (from < tilefile->tile_count && tilefile->tiles[from].filled)
        from++;
    return from;
}

uint64_t off_tilefile_fill_place(const struct off_tilefile *tilefile, size_t tile)
{
    assert(!tilefile->in_place && tile < tilefile->tile_count);
    return place_offset(&tilefile->tiles[tile], 1);
}

void off_tilefile_filled(struct off_tilefile *tilefile, size_t tile)
{
    tilefile->tiles[tile].filled = true;
}

zero_result off_tilefile_check_recorded(const struct off_tilefile *tilefile, size_t tile,
                                        const struct off_contents *contents, const void *stored,
                                        struct base_error *error)
{
    if (tilefile->unchecked || base_hash64(stored, contents->stored, tile) == contents->checksum)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "%s: tile %zu, %zu bytes at offset %ju, is not what was written there",
                     tilefile->file.path, tile, contents->stored, (uintmax_t)contents->offset);
}

struct off_contents off_tilefile_recorded(const struct off_tilefile *tilefile, size_t tile)
{
    const struct off_record_entry *now = &tilefile->tiles[tile].now;
    return (struct off_contents){off_tilefile_current_place(tilefile, tile), now->checksum,
                                 (size_t)now->stored};
}

zero_result off_tilefile_check(const struct off_tilefile *tilefile, size_t tile, const void *stored,
                               struct base_error *error)
{
    const struct off_contents recorded = off_tilefile_recorded(tilefile, tile);
    return off_tilefile_check_recorded(tilefile, tile, &recorded, stored, error);
}

/* ------------------------------------------------------------------ life */

// How far records of another shape are looked for: the second one begins where the first one ends.
enum { SEARCHED = 16 << 20 };

#define LOCK_PATIENCE_NS UINT64_C(2000000000)

static zero_result allocate_memory(struct off_tilefile **out,
                                   const struct off_tilefile_config *config,
                                   struct base_error *error)
{
    struct off_tilefile *tilefile = base_calloc(1, sizeof *tilefile);
    *out = tilefile;
    if (tilefile) {
        tilefile->file.fd = -1;
        tilefile->tiles = base_calloc(config->tiles, sizeof *tilefile->tiles);
        tilefile->record_bytes = record_room(config);
        tilefile->file_bytes = off_tilefile_file_bytes(config);
        tilefile->record = base_aligned_alloc(OFF_TILEFILE_PAGE, tilefile->record_bytes);
    }
    if (!tilefile || !tilefile->tiles || !tilefile->record)
        return zero_fail(error, ZERO_E_NOMEM, "%s: no memory for the places of %zu tiles",
                         config->path, config->tiles);
    tilefile->current = -1;
    tilefile->process = getpid();
    tilefile->counts = config->counts;
    tilefile->durable = config->durable;
    tilefile->in_place = config->in_place;
    tilefile->unchecked = config->unchecked;
    tilefile->payload_bytes = config->payload_bytes;
    tilefile->tile_count = config->tiles;
    tilefile->shape = base_hash64(config->tile_bytes, config->tiles * sizeof *config->tile_bytes,
                                  config->payload_bytes);
    memcpy(tilefile->identity, config->identity, sizeof tilefile->identity);
    uint64_t offset = (uint64_t)OFF_TILEFILE_RECORDS * tilefile->record_bytes;
    for (size_t i = 0; i < config->tiles; i++) {
        const size_t room = off_tilefile_room_for(config->tile_bytes[i]);
        tilefile->tiles[i] = (struct off_tile_state){.offset = offset,
                                                     .bytes = config->tile_bytes[i],
                                                     .room = room,
                                                     .filled = config->in_place};
        offset += (uint64_t)(config->in_place ? 1 : OFF_TILEFILE_PLACES) * room;
    }
    assert(offset == tilefile->file_bytes);
    return ZERO_OK;
}

// The free bytes of the file's file system, for messages; 0 if they are unknown.
static uint64_t free_bytes(int fd)
{
    struct statvfs status;
    return fstatvfs(fd, &status) == 0 ? (uint64_t)status.f_bavail * status.f_frsize : 0;
}

static int reserve(int fd, uint64_t bytes)
{
    int failed;
    do {
        failed = base_fault("slots.allocate");
        if (failed != 0) // as a full disk leaves it
            fallocate(fd, 0, 0, (off_t)(bytes / 2));
        else if (fallocate(fd, 0, 0, (off_t)bytes) != 0)
            failed = errno;
    } while (failed == EINTR);
    return failed;
}

// Gives the file its size, all of it allocated.
static zero_result allocate_file(const struct off_tilefile *tilefile, uint64_t bytes,
                                 struct base_error *error)
{
    const struct off_direct_file *file = &tilefile->file;
    const int failed = reserve(file->fd, bytes);
    if (failed != 0) // a part of it may be reserved
        base_truncate(file->fd, 0, file->path, NULL);
    if (failed == ENOSPC || failed == EFBIG || failed == EDQUOT)
        return zero_fail_errno(error, ZERO_E_LIMIT, failed,
                               "%s: %ju bytes are needed; the file system has %ju free", file->path,
                               (uintmax_t)bytes, (uintmax_t)free_bytes(file->fd));
    if (failed != 0)
        return zero_fail_errno(error, failed == EOPNOTSUPP ? ZERO_E_UNSUPPORTED : ZERO_E_IO, failed,
                               "%s: reserving %ju bytes", file->path, (uintmax_t)bytes);
    return base_truncate(file->fd, bytes, file->path, error);
}

static zero_result open_file(struct off_tilefile *tilefile, const char *path,
                             struct base_error *error)
{
    if (tilefile->in_place)
        return off_direct_file_open(&tilefile->file, path, O_TMPFILE, 0600, error);
    zero_result result = off_direct_file_open(&tilefile->file, path, 0, 0, error);
    if (result != ZERO_NOT_FOUND)
        return result;
    base_error_clear(error);
    result = off_direct_file_open(&tilefile->file, path, O_CREAT, 0600, error);
    tilefile->created = !result;
    return result;
}

// Locks the file, which a process that has died may still have for a moment: until the last write
// that it has left to the kernel is done. That is waited for, for the place may be used again.
static zero_result lock_file(const struct off_direct_file *file, struct base_error *error)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const uint64_t deadline = base_clock_ns() + LOCK_PATIENCE_NS;
    zero_result result;
    while ((result = base_lock(file->fd, true, file->path, error)) == ZERO_AGAIN &&
           base_clock_ns() < deadline)
        nanosleep(&pause, NULL);
    if (result != ZERO_AGAIN)
        return result;
    char holder[BASE_HOLDER_BYTES];
    base_lock_holder(file->path, holder);
    return zero_fail(error, ZERO_E_STATE, "%s: another process keeps its state in it%s", file->path,
                     holder);
}

// Opens the file and locks it. A process that has ended meanwhile may have removed it: then tries
// again.
static zero_result take_file(struct off_tilefile *tilefile, const char *path,
                             struct base_error *error)
{
    struct stat status;
    for (;;) {
        zero_result result = open_file(tilefile, path, error);
        if (!result && !tilefile->in_place)
            result = lock_file(&tilefile->file, error);
        if (result == ZERO_E_STATE)
            tilefile->created = false; // it is the other one's
        if (result || tilefile->in_place)
            return result;
        if (fstat(tilefile->file.fd, &status) != 0)
            return zero_fail_errno(error, ZERO_E_IO, errno, "%s: fstat", path);
        if (status.st_nlink > 0)
            return ZERO_OK;
        off_direct_file_close(&tilefile->file, NULL);
        tilefile->created = false;
    }
}

// Refuses a page that begins a record of this identity that counts, or any of this shape in a file
// of another size. One of this shape and size is damaged.
static zero_result check_page(const struct off_tilefile *tilefile, uint64_t size,
                              const unsigned char *page, struct base_error *error)
{
    struct off_record_head head;
    memcpy(&head, page, sizeof head);
    if (memcmp(head.magic, OFF_TILEFILE_MAGIC, 8) != 0 || head.format != OFF_TILEFILE_FORMAT ||
        memcmp(head.identity, tilefile->identity, sizeof head.identity) != 0)
        return ZERO_OK;
    const bool same = head.shape == tilefile->shape;
    if (same && size != tilefile->file_bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "%s: was %s %ju of %ju bytes, and has the state of this job: remove it to "
                         "begin anew, or from a checkpoint",
                         tilefile->file.path,
                         size < tilefile->file_bytes ? "cut to" : "lengthened to", (uintmax_t)size,
                         (uintmax_t)tilefile->file_bytes);
    if (same || !off_tilefile_step_counts(tilefile, head.step))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_STATE,
                     "%s: %ju bytes with a step of the same job, cut into %u tiles; now it would "
                     "be %ju bytes and %zu tiles: begin with the tile_bytes and the attached bytes "
                     "of then, or remove the file, and that step with it",
                     tilefile->file.path, (uintmax_t)size, (unsigned)head.tiles,
                     (uintmax_t)tilefile->file_bytes, tilefile->tile_count);
}

// What the same job has left in another shape, or in a file that was cut, is not written over.
static zero_result check_left(struct off_tilefile *tilefile, uint64_t size,
                              struct base_error *error)
{
    const uint64_t end = size < SEARCHED ? size / OFF_TILEFILE_PAGE * OFF_TILEFILE_PAGE : SEARCHED;
    zero_result result = ZERO_OK;
    for (uint64_t at = 0; !result && at < end; at += OFF_TILEFILE_PAGE) {
        result = base_pread_all(tilefile->file.fd, tilefile->record, OFF_TILEFILE_PAGE, at,
                                tilefile->file.path, error);
        if (!result)
            result = check_page(tilefile, size, tilefile->record, error);
    }
    return result;
}

// Looks for records in a file of the right size.
static zero_result look_again(struct off_tilefile *tilefile, struct base_error *error)
{
    for (size_t i = 0; i < tilefile->tile_count; i++)
        tilefile->tiles[i].filled = true;
    const zero_result result = off_tilefile_find_records(tilefile, error);
    return result || tilefile->found_count > 0 ? result
                                               : check_left(tilefile, tilefile->file_bytes, error);
}

static zero_result begin_anew(struct off_tilefile *tilefile, uint64_t size,
                              struct base_error *error)
{
    zero_result result = check_left(tilefile, size, error);
    if (!result) // what is left by then is not to be taken for a record
        result = base_truncate(tilefile->file.fd, 0, tilefile->file.path, error);
    return result ? result : allocate_file(tilefile, tilefile->file_bytes, error);
}

// Opens, locks, allocates, and looks for records.
static zero_result prepare_file(struct off_tilefile *tilefile, const char *path,
                                struct base_error *error)
{
    uint64_t size = 0;
    zero_result result = take_file(tilefile, path, error);
    if (!result)
        result = base_file_size(tilefile->file.fd, &size, tilefile->file.path, error);
    if (!result)
        result = size == tilefile->file_bytes ? look_again(tilefile, error)
                                              : begin_anew(tilefile, size, error);
    if (!result && tilefile->durable && !tilefile->in_place) // its name, too, whichever job made it
        result = base_fsync_parent(path, error);
    return result;
}

zero_result off_tilefile_open(struct off_tilefile **out, const struct off_tilefile_config *config,
                              int *recorded, struct base_error *error)
{
    struct off_tilefile *tilefile;
    *out = NULL;
    zero_result result = allocate_memory(&tilefile, config, error);
    if (!result)
        result = prepare_file(tilefile, config->path, error);
    if (result) {
        off_tilefile_close(tilefile, tilefile && tilefile->created);
        return result;
    }
    tilefile->blocking_calls = config->blocking_calls;
    *recorded = tilefile->found_count;
    *out = tilefile;
    return ZERO_OK;
}

void off_tilefile_close(struct off_tilefile *tilefile, bool remove)
{
    if (!tilefile)
        return;
    // A child that was forked has the same lock and the same file: both are its parent's.
    const bool ours = tilefile->file.fd >= 0 && tilefile->process == getpid();
    if (ours && remove && !tilefile->in_place)
        base_unlink(tilefile->file.path, NULL);
    if (ours)
        base_unlock(tilefile->file.fd);
    off_direct_file_close(&tilefile->file, NULL);
    base_free(tilefile->tiles);
    base_free(tilefile->record);
    base_free(tilefile);
}
