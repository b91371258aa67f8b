#include "offload/tilefile.h"

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

enum { PLACES = 2, RECORDS = 2, PAGE = 4096 };

#define LOCK_PATIENCE_NS UINT64_C(2000000000)

static const char magic[8] = {'z', 'e', 'r', 'o', 's', 'l', 'o', 't'};
enum { FORMAT = 2 };

// How far records of another shape are looked for: the second one begins where the first one ends.
enum { SEARCHED = 16 << 20 };

// A record begins with it; the payload and an entry for each tile follow.
struct head {
    char magic[8];
    uint32_t format;
    uint32_t tiles;
    uint64_t identity[2];
    uint64_t shape;    // hash of the sizes of tiles and payload
    uint64_t sequence; // counts records
    uint64_t step;
    uint64_t payload_bytes;
    uint64_t checksum; // of the whole record, with 0 here
};

struct entry {
    uint64_t checksum; // of what is stored,
    uint64_t stored;   // so many bytes: the tile's, or fewer
    uint32_t place;
    uint32_t has;
};

// What is known of a tile: what was recorded last, and what the next record will say.
struct tile {
    uint64_t offset; // of its first place
    size_t bytes, room;
    bool filled; // its second place has been written to
    struct entry now, next;
};

struct off_slots {
    struct off_file file;
    uint64_t file_bytes;
    bool created, durable, in_place, unchecked;
    pid_t process; // that opened it
    bool (*counts)(uint64_t step);
    struct off_errands *errands; // who reads and writes; NULL: who calls
    uint64_t identity[2], shape;
    size_t tile_count;
    struct tile *tiles;
    size_t payload_bytes, record_bytes; // of the largest payload; of a record's room
    unsigned char *record;              // one, to be read or written
    int current;                        // record whose tiles are; -1: none
    uint64_t sequence;                  // its
    bool current_counts, older_whole;   // whether it does; and the other one is, its tiles too
    struct found {
        int number;
        uint64_t sequence, step;
    } found[RECORDS]; // when the file was opened; newest first
    int found_count;
    uint64_t torn[RECORDS]; // offsets of what was no whole record then
    int torn_count;
};

static size_t round_up(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t record_room(const struct off_slots_config *config)
{
    if (config->in_place)
        return 0;
    return round_up(sizeof(struct head) + config->payload_bytes +
                    config->tiles * sizeof(struct entry));
}

size_t off_slots_room_for(size_t tile_bytes)
{
    return round_up(tile_bytes);
}

uint64_t off_slots_file_bytes(const struct off_slots_config *config)
{
    const uint64_t places = config->in_place ? 1 : PLACES;
    uint64_t bytes = (uint64_t)RECORDS * record_room(config);
    for (size_t i = 0; i < config->tiles; i++)
        bytes += places * off_slots_room_for(config->tile_bytes[i]);
    return bytes;
}

size_t off_slots_memory(const struct off_slots_config *config)
{
    return sizeof(struct off_slots) + config->tiles * sizeof(struct tile) + record_room(config);
}

/* ------------------------------------------------------------------ what a disk may hang in */

// So much at a time: within the deadline something is moved of what is more.
static const size_t most_at_once = (size_t)16 << 20;

enum action { READ, WRITE, FLUSH };

struct order {
    enum action action;
    int fd;
    const char *path;
    unsigned char *memory;
    size_t bytes;
    uint64_t offset;
};

static zero_result obey(const void *argument, struct base_error *error)
{
    const struct order *o = argument;
    switch (o->action) {
    case READ:
        return base_pread_all(o->fd, o->memory, o->bytes, o->offset, o->path, error);
    case WRITE:
        return base_pwrite_direct(o->fd, o->memory, o->bytes, o->offset, o->path, error);
    default:
        return base_fdatasync(o->fd, o->path, error);
    }
}

static zero_result give_order(const struct off_slots *slots, const struct order *order,
                              struct base_error *error)
{
    if (!slots->errands)
        return obey(order, error);
    if (order->action == FLUSH)
        return off_errands_run(slots->errands, obey, order, sizeof *order, error, "%s: fdatasync",
                               order->path);
    return off_errands_run(slots->errands, obey, order, sizeof *order, error,
                           "%s: %s %zu bytes at offset %ju", order->path,
                           order->action == READ ? "reading" : "writing", order->bytes,
                           (uintmax_t)order->offset);
}

static zero_result flush(const struct off_slots *slots, struct base_error *error)
{
    const struct order order = {.action = FLUSH, .fd = slots->file.fd, .path = slots->file.path};
    return give_order(slots, &order, error);
}

static zero_result move(const struct off_slots *slots, enum action action, void *memory,
                        size_t bytes, uint64_t offset, struct base_error *error)
{
    struct order order = {.action = action, .fd = slots->file.fd, .path = slots->file.path};
    zero_result result = ZERO_OK;
    for (size_t at = 0; !result && at < bytes; at += order.bytes) {
        order.memory = (unsigned char *)memory + at;
        order.offset = offset + at;
        order.bytes = bytes - at < most_at_once ? bytes - at : most_at_once;
        result = give_order(slots, &order, error);
    }
    return result;
}

/* ------------------------------------------------------------------ records */

static size_t record_size(const struct off_slots *slots, size_t payload_bytes)
{
    return sizeof(struct head) + payload_bytes + slots->tile_count * sizeof(struct entry);
}

static uint64_t record_checksum(const struct off_slots *slots, size_t payload_bytes)
{
    const size_t at = offsetof(struct head, checksum);
    uint64_t kept;
    memcpy(&kept, slots->record + at, sizeof kept);
    memset(slots->record + at, 0, sizeof kept);
    const uint64_t sum = base_hash64(slots->record, record_size(slots, payload_bytes), 0);
    memcpy(slots->record + at, &kept, sizeof kept);
    return sum;
}

// Whether it is that of a record of this file, as far as it says.
static bool is_ours(const struct off_slots *slots, const struct head *head)
{
    return memcmp(head->magic, magic, sizeof magic) == 0 && head->format == FORMAT &&
           head->tiles == slots->tile_count && head->shape == slots->shape &&
           memcmp(head->identity, slots->identity, sizeof head->identity) == 0;
}

static bool counts(const struct off_slots *slots, uint64_t step)
{
    return !slots->counts || slots->counts(step);
}

// Reads record `number`; whether it is whole and ours.
static zero_result read_record(struct off_slots *slots, int number, struct head *head, bool *valid,
                               struct base_error *error)
{
    *valid = false;
    const zero_result result = move(slots, READ, slots->record, slots->record_bytes,
                                    (uint64_t)number * slots->record_bytes, error);
    if (result)
        return result;
    memcpy(head, slots->record, sizeof *head);
    *valid = is_ours(slots, head) && head->payload_bytes <= slots->payload_bytes &&
             head->checksum == record_checksum(slots, (size_t)head->payload_bytes);
    return ZERO_OK;
}

// Which records there are, newest first, and which are torn. A torn one that counts has a whole one
// beside it, a beginning at least, however its writer died: without that it was damaged.
static zero_result find_records(struct off_slots *slots, struct base_error *error)
{
    static const struct head none;
    bool lost = false;
    uint64_t damaged = 0;
    for (int number = 0; number < RECORDS; number++) {
        struct head head;
        bool valid;
        const zero_result result = read_record(slots, number, &head, &valid, error);
        if (result)
            return result;
        if (valid) {
            slots->found[slots->found_count++] =
                (struct found){.number = number, .sequence = head.sequence, .step = head.step};
        } else if (memcmp(&head, &none, sizeof head) != 0) {
            const uint64_t offset = (uint64_t)number * slots->record_bytes;
            slots->torn[slots->torn_count++] = offset;
            if (is_ours(slots, &head) && counts(slots, head.step)) {
                lost = true;
                damaged = offset;
            }
        }
    }
    if (lost && slots->found_count == 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "%s: the record at offset %ju is damaged, and there is no other: remove "
                         "the file to begin anew, or from a checkpoint",
                         slots->file.path, (uintmax_t)damaged);
    if (slots->found_count == 2 && slots->found[1].sequence > slots->found[0].sequence) {
        const struct found first = slots->found[0];
        slots->found[0] = slots->found[1];
        slots->found[1] = first;
    }
    return ZERO_OK;
}

int off_slots_torn(const struct off_slots *slots, uint64_t offsets[2])
{
    memcpy(offsets, slots->torn, sizeof slots->torn);
    return slots->torn_count;
}

uint64_t off_slots_step(const struct off_slots *slots, int age)
{
    return slots->found[age].step;
}

// With a power cut in mind the tiles are there before the record, and the record before anything
// is built on it.
static zero_result write_record(const struct off_slots *slots, int number, size_t payload_bytes,
                                struct base_error *error)
{
    const uint64_t offset = (uint64_t)number * slots->record_bytes;
    const size_t bytes = round_up(record_size(slots, payload_bytes));
    zero_result result = slots->durable ? flush(slots, error) : ZERO_OK;
    if (!result)
        result = move(slots, WRITE, slots->record, bytes, offset, error);
    if (!result && slots->durable)
        result = flush(slots, error);
    return result;
}

// Makes a record no record, for good.
static zero_result wipe_record(struct off_slots *slots, int number, struct base_error *error)
{
    memset(slots->record, 0, slots->record_bytes);
    return write_record(slots, number, 0, error);
}

zero_result off_slots_clear(struct off_slots *slots, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int number = 0; number < RECORDS && !slots->in_place && !result; number++)
        result = wipe_record(slots, number, error);
    return result;
}

zero_result off_slots_void_older(struct off_slots *slots, struct base_error *error)
{
    slots->older_whole = false;
    return slots->current < 0 ? ZERO_OK : wipe_record(slots, 1 - slots->current, error);
}

zero_result off_slots_give_up(struct off_slots *slots, struct base_error *error)
{
    const bool lost = slots->older_whole && !slots->current_counts;
    return lost ? off_slots_void_older(slots, error) : ZERO_OK;
}

// The entry of a tile in the record that was read. What is none is damage, whatever its checksum.
static zero_result read_entry(const struct off_slots *slots, size_t tile, size_t payload_bytes,
                              struct entry *entry, struct base_error *error)
{
    const struct tile *t = &slots->tiles[tile];
    memcpy(entry, slots->record + sizeof(struct head) + payload_bytes + tile * sizeof *entry,
           sizeof *entry);
    if (entry->has == 0 || (entry->has == 1 && entry->place < PLACES && entry->stored > 0 &&
                            entry->stored <= t->bytes))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "%s: its record has %ju bytes of tile %zu in place %u; the tile has %zu",
                     slots->file.path, (uintmax_t)entry->stored, tile, (unsigned)entry->place,
                     t->bytes);
}

zero_result off_slots_recover(struct off_slots *slots, int age, void *payload, size_t *bytes,
                              struct base_error *error)
{
    struct head head;
    bool valid;
    const struct found *found = &slots->found[age];
    const int number = found->number;
    zero_result result = read_record(slots, number, &head, &valid, error);
    if (result)
        return result;
    if (!valid)
        return zero_fail(error, ZERO_E_CORRUPT, "%s: the record of step %ju at offset %zu changed",
                         slots->file.path, (uintmax_t)found->step,
                         (size_t)number * slots->record_bytes);
    for (size_t i = 0; i < slots->tile_count && !result; i++)
        result = read_entry(slots, i, (size_t)head.payload_bytes, &slots->tiles[i].next, error);
    if (result) {
        off_slots_abandon(slots);
        return result;
    }
    *bytes = (size_t)head.payload_bytes;
    memcpy(payload, slots->record + sizeof head, *bytes);
    for (size_t i = 0; i < slots->tile_count; i++)
        slots->tiles[i].now = slots->tiles[i].next;
    // The other one's tiles are the next to be written over.
    const bool newer = age > 0 || slots->current == 1 - number;
    slots->current = number;
    slots->sequence = found->sequence;
    slots->older_whole = false;
    return newer ? wipe_record(slots, 1 - number, error) : ZERO_OK;
}

static void fill_record(struct off_slots *slots, uint64_t step, const void *payload, size_t bytes)
{
    struct head head = {
        .format = FORMAT,
        .tiles = (uint32_t)slots->tile_count,
        .identity = {slots->identity[0], slots->identity[1]},
        .shape = slots->shape,
        .sequence = slots->sequence + 1,
        .step = step,
        .payload_bytes = bytes,
    };
    memcpy(head.magic, magic, sizeof magic);
    memset(slots->record, 0, round_up(record_size(slots, bytes)));
    memcpy(slots->record, &head, sizeof head);
    if (bytes > 0)
        memcpy(slots->record + sizeof head, payload, bytes);
    for (size_t i = 0; i < slots->tile_count; i++)
        memcpy(slots->record + sizeof head + bytes + i * sizeof(struct entry),
               &slots->tiles[i].next, sizeof(struct entry));
    head.checksum = record_checksum(slots, bytes);
    memcpy(slots->record, &head, sizeof head);
}

// Whether somebody who opens the file by its name would find all of it.
static zero_result check_file(const struct off_slots *slots, struct base_error *error)
{
    struct stat status;
    const char *path = slots->file.path;
    if (fstat(slots->file.fd, &status) != 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "%s: fstat", path);
    if (status.st_nlink == 0)
        return zero_fail(error, ZERO_E_STATE, "%s: was removed, and the state in it is in use",
                         path);
    if ((uint64_t)status.st_size < slots->file_bytes)
        return zero_fail(error, ZERO_E_STATE, "%s: was cut to %ju of %ju bytes", path,
                         (uintmax_t)status.st_size, (uintmax_t)slots->file_bytes);
    return ZERO_OK;
}

// Whether tiles were written since the current record: to places of the one before.
static bool has_changed(const struct off_slots *slots)
{
    for (size_t i = 0; i < slots->tile_count; i++) {
        const struct entry *now = &slots->tiles[i].now, *next = &slots->tiles[i].next;
        if (next->place != now->place || next->has != now->has)
            return true;
    }
    return false;
}

// Where the next record goes: in place of the older one, or, where that may count and is still
// whole, of a current one that does not.
static int next_record(const struct off_slots *slots)
{
    if (slots->current < 0)
        return 0;
    const bool keeps = slots->older_whole && !slots->current_counts && !has_changed(slots);
    return keeps ? slots->current : 1 - slots->current;
}

static void make_current(struct off_slots *slots, int number, uint64_t step)
{
    if (number != slots->current)
        slots->older_whole = slots->current >= 0;
    slots->current = number;
    slots->current_counts = counts(slots, step);
    slots->sequence++;
    for (size_t i = 0; i < slots->tile_count; i++)
        slots->tiles[i].now = slots->tiles[i].next;
}

zero_result off_slots_record(struct off_slots *slots, uint64_t step, const void *payload,
                             size_t bytes, struct base_error *error)
{
    if (bytes > slots->payload_bytes)
        return zero_fail(error, ZERO_E_LIMIT,
                         "%s: %zu bytes beside the tiles; there is room for %zu", slots->file.path,
                         bytes, slots->payload_bytes);
    if (slots->in_place)
        return zero_fail(error, ZERO_E_INVALID, "%s: a file without records", slots->file.path);
    const int number = next_record(slots);
    zero_result result = check_file(slots, error);
    if (result)
        return result;
    fill_record(slots, step, payload, bytes);
    result = write_record(slots, number, bytes, error);
    if (!result)
        make_current(slots, number, step);
    return result;
}

void off_slots_abandon(struct off_slots *slots)
{
    if (has_changed(slots))
        slots->older_whole = false;
    for (size_t i = 0; i < slots->tile_count; i++)
        slots->tiles[i].next = slots->tiles[i].now;
}

/* ------------------------------------------------------------------ tiles */

const struct off_file *off_slots_file(const struct off_slots *slots)
{
    return &slots->file;
}

static uint64_t place_offset(const struct tile *tile, uint32_t place)
{
    return tile->offset + place * (uint64_t)tile->room;
}

uint64_t off_slots_place(const struct off_slots *slots, size_t tile)
{
    return place_offset(&slots->tiles[tile], slots->tiles[tile].now.place);
}

static uint32_t next_place(const struct off_slots *slots, const struct tile *tile)
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
    struct tile *t = &slots->tiles[tile];
    t->next = (struct entry){
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
    const struct entry *now = &slots->tiles[tile].now;
    return (struct off_contents){off_slots_place(slots, tile), now->checksum, (size_t)now->stored};
}

zero_result off_slots_check(const struct off_slots *slots, size_t tile, const void *stored,
                            struct base_error *error)
{
    const struct off_contents recorded = off_slots_recorded(slots, tile);
    return off_slots_check_recorded(slots, tile, &recorded, stored, error);
}

/* ------------------------------------------------------------------ life */

static zero_result allocate_memory(struct off_slots **out, const struct off_slots_config *config,
                                   struct base_error *error)
{
    struct off_slots *slots = base_calloc(1, sizeof *slots);
    *out = slots;
    if (slots) {
        slots->file.fd = -1;
        slots->tiles = base_calloc(config->tiles, sizeof *slots->tiles);
        slots->record_bytes = record_room(config);
        slots->file_bytes = off_slots_file_bytes(config);
        slots->record = base_aligned_alloc(PAGE, slots->record_bytes);
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
    uint64_t offset = (uint64_t)RECORDS * slots->record_bytes;
    for (size_t i = 0; i < config->tiles; i++) {
        const size_t room = off_slots_room_for(config->tile_bytes[i]);
        slots->tiles[i] = (struct tile){.offset = offset,
                                        .bytes = config->tile_bytes[i],
                                        .room = room,
                                        .filled = config->in_place};
        offset += (uint64_t)(config->in_place ? 1 : PLACES) * room;
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
    struct head head;
    memcpy(&head, page, sizeof head);
    if (memcmp(head.magic, magic, sizeof magic) != 0 || head.format != FORMAT ||
        memcmp(head.identity, slots->identity, sizeof head.identity) != 0)
        return ZERO_OK;
    const bool same = head.shape == slots->shape;
    if (same && size != slots->file_bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "%s: was %s %ju of %ju bytes, and has the state of this job: remove it to "
                         "begin anew, or from a checkpoint",
                         slots->file.path, size < slots->file_bytes ? "cut to" : "lengthened to",
                         (uintmax_t)size, (uintmax_t)slots->file_bytes);
    if (same || !counts(slots, head.step))
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
    const uint64_t end = size < SEARCHED ? size / PAGE * PAGE : SEARCHED;
    zero_result result = ZERO_OK;
    for (uint64_t at = 0; !result && at < end; at += PAGE) {
        result = base_pread_all(slots->file.fd, slots->record, PAGE, at, slots->file.path, error);
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
    const zero_result result = find_records(slots, error);
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
    slots->errands = config->errands;
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
