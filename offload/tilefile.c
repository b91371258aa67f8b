#include "offload/tilefile_parts.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

size_t off_slots_record_room(const struct off_slots_config *config)
{
    if (config->in_place)
        return 0;
    return off_slots_round_up(sizeof(struct off_record_head) + config->payload_bytes +
                              config->tiles * sizeof(struct off_record_entry));
}

size_t off_slots_room_for(size_t tile_bytes)
{
    return off_slots_round_up(tile_bytes);
}

uint64_t off_slots_file_bytes(const struct off_slots_config *config)
{
    const uint64_t places = config->in_place ? 1 : OFF_SLOTS_PLACES;
    uint64_t bytes = (uint64_t)OFF_SLOTS_RECORDS * off_slots_record_room(config);
    for (size_t i = 0; i < config->tiles; i++)
        bytes += places * off_slots_room_for(config->tile_bytes[i]);
    return bytes;
}

size_t off_slots_memory(const struct off_slots_config *config)
{
    return sizeof(struct off_slots) + config->tiles * sizeof(struct off_tile_state) +
           off_slots_record_room(config);
}

/* ------------------------------------------------------------------ tiles */

const struct off_file *off_slots_file(const struct off_slots *slots)
{
    return &slots->file;
}

static uint64_t place_offset(const struct off_tile_state *tile, uint32_t place)
{
    return tile->offset + place * (uint64_t)tile->room;
}

uint64_t off_slots_place(const struct off_slots *slots, size_t tile)
{
    return place_offset(&slots->tiles[tile], slots->tiles[tile].now.place);
}

static uint32_t next_place(const struct off_slots *slots, const struct off_tile_state *tile)
{
    return tile->now.has && !slots->in_place ? 1 - tile->now.place : 0;
}

uint64_t off_slots_next_place(const struct off_slots *slots, size_t tile)
{
    return place_offset(&slots->tiles[tile], next_place(slots, &slots->tiles[tile]));
}

size_t off_slots_tile_bytes(const struct off_slots *slots, size_t tile)
{
    return slots->tiles[tile].bytes;
}

size_t off_slots_room(const struct off_slots *slots, size_t tile)
{
    return slots->tiles[tile].room;
}

bool off_slots_has(const struct off_slots *slots, size_t tile)
{
    return slots->tiles[tile].now.has != 0;
}

size_t off_slots_stored(const struct off_slots *slots, size_t tile)
{
    return (size_t)slots->tiles[tile].now.stored;
}

void off_slots_wrote(struct off_slots *slots, size_t tile, const void *stored, size_t bytes)
{
    struct off_tile_state *t = &slots->tiles[tile];
    t->next = (struct off_record_entry){
        .checksum = slots->unchecked ? 0 : base_hash64(stored, bytes, tile),
        .stored = bytes,
        .place = next_place(slots, t),
        .has = 1,
    };
    t->filled = t->filled || t->next.place == 1;
    if (slots->in_place)
        t->now = t->next;
}

size_t off_slots_unfilled(const struct off_slots *slots, size_t from)
{
    while (from < slots->tile_count && slots->tiles[from].filled)
        from++;
    return from;
}

uint64_t off_slots_fill_place(const struct off_slots *slots, size_t tile)
{
    return place_offset(&slots->tiles[tile], 1);
}

void off_slots_filled(struct off_slots *slots, size_t tile)
{
    slots->tiles[tile].filled = true;
}

zero_result off_slots_check_recorded(const struct off_slots *slots, size_t tile,
                                     const struct off_contents *contents, const void *stored,
                                     struct base_error *error)
{
    if (slots->unchecked || base_hash64(stored, contents->stored, tile) == contents->checksum)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "%s: tile %zu, %zu bytes at offset %ju, is not what was written there",
                     slots->file.path, tile, contents->stored, (uintmax_t)contents->offset);
}

struct off_contents off_slots_recorded(const struct off_slots *slots, size_t tile)
{
    const struct off_record_entry *now = &slots->tiles[tile].now;
    return (struct off_contents){off_slots_place(slots, tile), now->checksum, (size_t)now->stored};
}

zero_result off_slots_check(const struct off_slots *slots, size_t tile, const void *stored,
                            struct base_error *error)
{
    const struct off_contents recorded = off_slots_recorded(slots, tile);
    return off_slots_check_recorded(slots, tile, &recorded, stored, error);
}

/* ------------------------------------------------------------------ life */

// How far records of another shape are looked for: the second one begins where the first one ends.
enum { SEARCHED = 16 << 20 };

#define LOCK_PATIENCE_NS UINT64_C(2000000000)

static zero_result allocate_memory(struct off_slots **out, const struct off_slots_config *config,
                                   struct base_error *error)
{
    struct off_slots *slots = base_calloc(1, sizeof *slots);
    *out = slots;
    if (slots) {
        slots->file.fd = -1;
        slots->tiles = base_calloc(config->tiles, sizeof *slots->tiles);
        slots->record_bytes = off_slots_record_room(config);
        slots->file_bytes = off_slots_file_bytes(config);
        slots->record = base_aligned_alloc(OFF_SLOTS_PAGE, slots->record_bytes);
    }
    if (!slots || !slots->tiles || !slots->record)
        return zero_fail(error, ZERO_E_NOMEM, "%s: no memory for the places of %zu tiles",
                         config->path, config->tiles);
    slots->current = -1;
    slots->process = getpid();
    slots->counts = config->counts;
    slots->durable = config->durable;
    slots->in_place = config->in_place;
    slots->unchecked = config->unchecked;
    slots->payload_bytes = config->payload_bytes;
    slots->tile_count = config->tiles;
    slots->shape = base_hash64(config->tile_bytes, config->tiles * sizeof *config->tile_bytes,
                               config->payload_bytes);
    memcpy(slots->identity, config->identity, sizeof slots->identity);
    uint64_t offset = (uint64_t)OFF_SLOTS_RECORDS * slots->record_bytes;
    for (size_t i = 0; i < config->tiles; i++) {
        const size_t room = off_slots_room_for(config->tile_bytes[i]);
        slots->tiles[i] = (struct off_tile_state){.offset = offset,
                                                  .bytes = config->tile_bytes[i],
                                                  .room = room,
                                                  .filled = config->in_place};
        offset += (uint64_t)(config->in_place ? 1 : OFF_SLOTS_PLACES) * room;
    }
    return ZERO_OK;
}

// What is free on the file system of the file, for messages; 0 if nobody knows.
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
static zero_result allocate_file(const struct off_slots *slots, uint64_t bytes,
                                 struct base_error *error)
{
    const struct off_file *file = &slots->file;
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

static zero_result open_file(struct off_slots *slots, const char *path, struct base_error *error)
{
    if (slots->in_place)
        return off_file_open(&slots->file, path, O_TMPFILE, 0600, error);
    zero_result result = off_file_open(&slots->file, path, 0, 0, error);
    if (result != ZERO_NOT_FOUND)
        return result;
    base_error_clear(error);
    result = off_file_open(&slots->file, path, O_CREAT, 0600, error);
    slots->created = !result;
    return result;
}

// Locks the file, which a process that has died may still have for a moment: until the last write
// that it has left to the kernel is done. That is waited for, for the place may be used again.
static zero_result lock_file(const struct off_file *file, struct base_error *error)
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

// Opens the file and locks it. Whoever has ended meanwhile has removed it: then again.
static zero_result take_file(struct off_slots *slots, const char *path, struct base_error *error)
{
    struct stat status;
    for (;;) {
        zero_result result = open_file(slots, path, error);
        if (!result && !slots->in_place)
            result = lock_file(&slots->file, error);
        if (result == ZERO_E_STATE)
            slots->created = false; // it is the other one's
        if (result || slots->in_place)
            return result;
        if (fstat(slots->file.fd, &status) != 0)
            return zero_fail_errno(error, ZERO_E_IO, errno, "%s: fstat", path);
        if (status.st_nlink > 0)
            return ZERO_OK;
        off_file_close(&slots->file, NULL);
        slots->created = false;
    }
}

// Refuses a page that begins a record of this identity that counts, or any of this shape in a file
// of another size. One of this shape and size is damaged.
static zero_result check_page(const struct off_slots *slots, uint64_t size,
                              const unsigned char *page, struct base_error *error)
{
    struct off_record_head head;
    memcpy(&head, page, sizeof head);
    if (memcmp(head.magic, OFF_SLOTS_MAGIC, 8) != 0 || head.format != OFF_SLOTS_FORMAT ||
        memcmp(head.identity, slots->identity, sizeof head.identity) != 0)
        return ZERO_OK;
    const bool same = head.shape == slots->shape;
    if (same && size != slots->file_bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "%s: was %s %ju of %ju bytes, and has the state of this job: remove it to "
                         "begin anew, or from a checkpoint",
                         slots->file.path, size < slots->file_bytes ? "cut to" : "lengthened to",
                         (uintmax_t)size, (uintmax_t)slots->file_bytes);
    if (same || !off_slots_step_counts(slots, head.step))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_STATE,
                     "%s: %ju bytes with a step of the same job, cut into %u tiles; now it would "
                     "be %ju bytes and %zu tiles: begin with the tile_bytes and the attached bytes "
                     "of then, or remove the file, and that step with it",
                     slots->file.path, (uintmax_t)size, (unsigned)head.tiles,
                     (uintmax_t)slots->file_bytes, slots->tile_count);
}

// What the same job has left in another shape, or in a file that was cut, is not written over.
static zero_result check_left(struct off_slots *slots, uint64_t size, struct base_error *error)
{
    const uint64_t end = size < SEARCHED ? size / OFF_SLOTS_PAGE * OFF_SLOTS_PAGE : SEARCHED;
    zero_result result = ZERO_OK;
    for (uint64_t at = 0; !result && at < end; at += OFF_SLOTS_PAGE) {
        result = base_pread_all(slots->file.fd, slots->record, OFF_SLOTS_PAGE, at, slots->file.path,
                                error);
        if (!result)
            result = check_page(slots, size, slots->record, error);
    }
    return result;
}

// Looks for records in a file of the right size.
static zero_result look_again(struct off_slots *slots, struct base_error *error)
{
    for (size_t i = 0; i < slots->tile_count; i++)
        slots->tiles[i].filled = true;
    const zero_result result = off_slots_find_records(slots, error);
    return result || slots->found_count > 0 ? result : check_left(slots, slots->file_bytes, error);
}

static zero_result begin_anew(struct off_slots *slots, uint64_t size, struct base_error *error)
{
    zero_result result = check_left(slots, size, error);
    if (!result) // what is left by then is not to be taken for a record
        result = base_truncate(slots->file.fd, 0, slots->file.path, error);
    return result ? result : allocate_file(slots, slots->file_bytes, error);
}

// Opens, locks, allocates, and looks for records.
static zero_result prepare_file(struct off_slots *slots, const char *path, struct base_error *error)
{
    uint64_t size = 0;
    zero_result result = take_file(slots, path, error);
    if (!result)
        result = base_file_size(slots->file.fd, &size, slots->file.path, error);
    if (!result)
        result =
            size == slots->file_bytes ? look_again(slots, error) : begin_anew(slots, size, error);
    if (!result && slots->durable && !slots->in_place) // its name, too, whoever has made it
        result = base_fsync_parent(path, error);
    return result;
}

zero_result off_slots_open(struct off_slots **out, const struct off_slots_config *config,
                           int *recorded, struct base_error *error)
{
    struct off_slots *slots;
    *out = NULL;
    zero_result result = allocate_memory(&slots, config, error);
    if (!result)
        result = prepare_file(slots, config->path, error);
    if (result) {
        off_slots_close(slots, slots && slots->created);
        return result;
    }
    slots->blocking_calls = config->blocking_calls;
    *recorded = slots->found_count;
    *out = slots;
    return ZERO_OK;
}

void off_slots_close(struct off_slots *slots, bool remove)
{
    if (!slots)
        return;
    // A child that was forked has the same lock and the same file: both are its parent's.
    const bool ours = slots->file.fd >= 0 && slots->process == getpid();
    if (ours && remove && !slots->in_place)
        base_unlink(slots->file.path, NULL);
    if (ours)
        base_unlock(slots->file.fd);
    off_file_close(&slots->file, NULL);
    base_free(slots->tiles);
    base_free(slots->record);
    base_free(slots);
}
