#include "offload/tilefile_parts.h"

#include "base/file.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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
        assert(o->action == FLUSH);
        return base_fdatasync(o->fd, o->path, error);
    }
}

static zero_result give_order(const struct off_tilefile *tilefile, const struct order *order,
                              struct base_error *error)
{
    if (!tilefile->blocking_calls)
        return obey(order, error);
    if (order->action == FLUSH)
        return off_blocking_calls_run(tilefile->blocking_calls, obey, order, sizeof *order, error,
                                      "%s: fdatasync", order->path);
    return off_blocking_calls_run(tilefile->blocking_calls, obey, order, sizeof *order, error,
                                  "%s: %s %zu bytes at offset %ju", order->path,
                                  order->action == READ ? "reading" : "writing", order->bytes,
                                  (uintmax_t)order->offset);
}

static zero_result flush(const struct off_tilefile *tilefile, struct base_error *error)
{
    const struct order order = {
        .action = FLUSH, .fd = tilefile->file.fd, .path = tilefile->file.path};
    return give_order(tilefile, &order, error);
}

static zero_result move(const struct off_tilefile *tilefile, enum action action, void *memory,
                        size_t bytes, uint64_t offset, struct base_error *error)
{
    assert(action == READ || action == WRITE);
    assert(bytes % OFF_TILEFILE_PAGE == 0 && offset % OFF_TILEFILE_PAGE == 0);
    struct order order = {.action = action, .fd = tilefile->file.fd, .path = tilefile->file.path};
    zero_result result = ZERO_OK;
    for (size_t at = 0; !result && at < bytes; at += order.bytes) {
        order.memory = (unsigned char *)memory + at;
        order.offset = offset + at;
        order.bytes = bytes - at < most_at_once ? bytes - at : most_at_once;
        result = give_order(tilefile, &order, error);
    }
    return result;
}

/* ------------------------------------------------------------------ records */

static size_t record_size(const struct off_tilefile *tilefile, size_t payload_bytes)
{
    return sizeof(struct off_record_head) + payload_bytes +
           tilefile->tile_count * sizeof(struct off_record_entry);
}

static uint64_t record_checksum(const struct off_tilefile *tilefile, size_t payload_bytes)
{
    const size_t at = offsetof(struct off_record_head, checksum);
    uint64_t kept;
    memcpy(&kept, tilefile->record + at, sizeof kept);
    memset(tilefile->record + at, 0, sizeof kept);
    const uint64_t sum = base_hash64(tilefile->record, record_size(tilefile, payload_bytes), 0);
    memcpy(tilefile->record + at, &kept, sizeof kept);
    return sum;
}

// Whether it is that of a record of this file, as far as it says.
static bool is_ours(const struct off_tilefile *tilefile, const struct off_record_head *head)
{
    return memcmp(head->magic, OFF_TILEFILE_MAGIC, 8) == 0 && head->format == OFF_TILEFILE_FORMAT &&
           head->tiles == tilefile->tile_count && head->shape == tilefile->shape &&
           memcmp(head->identity, tilefile->identity, sizeof head->identity) == 0;
}

bool off_tilefile_step_counts(const struct off_tilefile *tilefile, uint64_t step)
{
    return !tilefile->counts || tilefile->counts(step);
}

// Reads record `number`; whether it is whole and ours.
static zero_result read_record(struct off_tilefile *tilefile, int number,
                               struct off_record_head *head, bool *valid, struct base_error *error)
{
    assert(number >= 0 && number < OFF_TILEFILE_RECORDS);
    *valid = false;
    const zero_result result = move(tilefile, READ, tilefile->record, tilefile->record_bytes,
                                    (uint64_t)number * tilefile->record_bytes, error);
    if (result)
        return result;
    memcpy(head, tilefile->record, sizeof *head);
    *valid = is_ours(tilefile, head) && head->payload_bytes <= tilefile->payload_bytes &&
             head->checksum == record_checksum(tilefile, (size_t)head->payload_bytes);
    return ZERO_OK;
}

// Which records there are, newest first, and which are torn. A torn one that counts has a whole one
// beside it, a beginning at least, however its writer died: without that it was damaged.
zero_result off_tilefile_find_records(struct off_tilefile *tilefile, struct base_error *error)
{
    assert(tilefile->found_count == 0 && tilefile->torn_count == 0);
    static const struct off_record_head none;
    bool lost = false;
    uint64_t damaged = 0;
    for (int number = 0; number < OFF_TILEFILE_RECORDS; number++) {
        struct off_record_head head;
        bool valid;
        const zero_result result = read_record(tilefile, number, &head, &valid, error);
        if (result)
            return result;
        if (valid) {
            tilefile->found[tilefile->found_count++] = (struct off_found_record){
                .number = number, .sequence = head.sequence, .step = head.step};
        } else if (memcmp(&head, &none, sizeof head) != 0) {
            const uint64_t offset = (uint64_t)number * tilefile->record_bytes;
            tilefile->torn[tilefile->torn_count++] = offset;
            if (is_ours(tilefile, &head) && off_tilefile_step_counts(tilefile, head.step)) {
                lost = true;
                damaged = offset;
            }
        }
    }
    if (lost && tilefile->found_count == 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "%s: the record at offset %ju is damaged, and there is no other: remove "
                         "the file to begin anew, or from a checkpoint",
                         tilefile->file.path, (uintmax_t)damaged);
    if (tilefile->found_count == 2 && tilefile->found[1].sequence > tilefile->found[0].sequence) {
        const struct off_found_record first = tilefile->found[0];
        tilefile->found[0] = tilefile->found[1];
        tilefile->found[1] = first;
    }
    return ZERO_OK;
}

int off_tilefile_torn(const struct off_tilefile *tilefile, uint64_t offsets[2])
{
    memcpy(offsets, tilefile->torn, sizeof tilefile->torn);
    return tilefile->torn_count;
}

uint64_t off_tilefile_step(const struct off_tilefile *tilefile, int age)
{
    assert(age >= 0 && age < tilefile->found_count);
    return tilefile->found[age].step;
}

// To survive a power cut the call flushes the tiles before it writes the record, and the record
// before anything is built on it.
static zero_result write_record(const struct off_tilefile *tilefile, int number,
                                size_t payload_bytes, struct base_error *error)
{
    const uint64_t offset = (uint64_t)number * tilefile->record_bytes;
    const size_t bytes = off_tilefile_round_up(record_size(tilefile, payload_bytes));
    assert(number >= 0 && number < OFF_TILEFILE_RECORDS && bytes <= tilefile->record_bytes);
    zero_result result = tilefile->durable ? flush(tilefile, error) : ZERO_OK;
    if (!result)
        result = move(tilefile, WRITE, tilefile->record, bytes, offset, error);
    if (!result && tilefile->durable)
        result = flush(tilefile, error);
    return result;
}

// Makes a record no record, for good.
static zero_result wipe_record(struct off_tilefile *tilefile, int number, struct base_error *error)
{
    memset(tilefile->record, 0, tilefile->record_bytes);
    return write_record(tilefile, number, 0, error);
}

zero_result off_tilefile_clear(struct off_tilefile *tilefile, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int number = 0; number < OFF_TILEFILE_RECORDS && !tilefile->in_place && !result; number++)
        result = wipe_record(tilefile, number, error);
    return result;
}

zero_result off_tilefile_void_older(struct off_tilefile *tilefile, struct base_error *error)
{
    tilefile->older_whole = false;
    return tilefile->current < 0 ? ZERO_OK : wipe_record(tilefile, 1 - tilefile->current, error);
}

zero_result off_tilefile_void_before_write(struct off_tilefile *tilefile, struct base_error *error)
{
    const bool lost = tilefile->older_whole && !tilefile->current_counts;
    return lost ? off_tilefile_void_older(tilefile, error) : ZERO_OK;
}

// The entry of a tile in the record that was read. What is none is damage, whatever its checksum.
static zero_result read_entry(const struct off_tilefile *tilefile, size_t tile,
                              size_t payload_bytes, struct off_record_entry *entry,
                              struct base_error *error)
{
    assert(tile < tilefile->tile_count && payload_bytes <= tilefile->payload_bytes);
    const struct off_tile_state *t = &tilefile->tiles[tile];
    memcpy(entry,
           tilefile->record + sizeof(struct off_record_head) + payload_bytes + tile * sizeof *entry,
           sizeof *entry);
    if (entry->has == 0)
        *entry = (struct off_record_entry){.has = 0}; // what else it says means nothing
    if (entry->has == 0 || (entry->has == 1 && entry->place < OFF_TILEFILE_PLACES &&
                            entry->stored > 0 && entry->stored <= t->bytes))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "%s: its record has %ju bytes of tile %zu in place %u; the tile has %zu",
                     tilefile->file.path, (uintmax_t)entry->stored, tile, (unsigned)entry->place,
                     t->bytes);
}

zero_result off_tilefile_recover(struct off_tilefile *tilefile, int age, void *payload,
                                 size_t *bytes, struct base_error *error)
{
    assert(age >= 0 && age < tilefile->found_count);
    struct off_record_head head;
    bool valid;
    const struct off_found_record *found = &tilefile->found[age];
    const int number = found->number;
    zero_result result = read_record(tilefile, number, &head, &valid, error);
    if (result)
        return result;
    if (!valid)
        return zero_fail(error, ZERO_E_CORRUPT, "%s: the record of step %ju at offset %zu changed",
                         tilefile->file.path, (uintmax_t)found->step,
                         (size_t)number * tilefile->record_bytes);
    for (size_t i = 0; i < tilefile->tile_count && !result; i++)
        result =
            read_entry(tilefile, i, (size_t)head.payload_bytes, &tilefile->tiles[i].next, error);
    if (result) {
        off_tilefile_abandon(tilefile);
        return result;
    }
    *bytes = (size_t)head.payload_bytes;
    memcpy(payload, tilefile->record + sizeof head, *bytes);
    for (size_t i = 0; i < tilefile->tile_count; i++)
        tilefile->tiles[i].now = tilefile->tiles[i].next;
    // The other one's tiles are the next to be written over.
    const bool newer = age > 0 || tilefile->current == 1 - number;
    tilefile->current = number;
    tilefile->sequence = found->sequence;
    tilefile->older_whole = false;
    return newer ? wipe_record(tilefile, 1 - number, error) : ZERO_OK;
}

static void fill_record(struct off_tilefile *tilefile, uint64_t step, const void *payload,
                        size_t bytes)
{
    assert(bytes <= tilefile->payload_bytes && !tilefile->in_place);
    struct off_record_head head = {
        .format = OFF_TILEFILE_FORMAT,
        .tiles = (uint32_t)tilefile->tile_count,
        .identity = {tilefile->identity[0], tilefile->identity[1]},
        .shape = tilefile->shape,
        .sequence = tilefile->sequence + 1,
        .step = step,
        .payload_bytes = bytes,
    };
    memcpy(head.magic, OFF_TILEFILE_MAGIC, 8);
    memset(tilefile->record, 0, off_tilefile_round_up(record_size(tilefile, bytes)));
    memcpy(tilefile->record, &head, sizeof head);
    if (bytes > 0)
        memcpy(tilefile->record + sizeof head, payload, bytes);
    for (size_t i = 0; i < tilefile->tile_count; i++)
        memcpy(tilefile->record + sizeof head + bytes + i * sizeof(struct off_record_entry),
               &tilefile->tiles[i].next, sizeof(struct off_record_entry));
    head.checksum = record_checksum(tilefile, bytes);
    memcpy(tilefile->record, &head, sizeof head);
}

// Whether a process that opens the file by its name would find all of it.
static zero_result check_file(const struct off_tilefile *tilefile, struct base_error *error)
{
    struct stat status;
    const char *path = tilefile->file.path;
    if (fstat(tilefile->file.fd, &status) != 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "%s: fstat", path);
    if (status.st_nlink == 0)
        return zero_fail(error, ZERO_E_STATE, "%s: was removed, and the state in it is in use",
                         path);
    if ((uint64_t)status.st_size < tilefile->file_bytes)
        return zero_fail(error, ZERO_E_STATE, "%s: was cut to %ju of %ju bytes", path,
                         (uintmax_t)status.st_size, (uintmax_t)tilefile->file_bytes);
    return ZERO_OK;
}

// Whether tiles were written since the current record: to places of the one before.
static bool has_changed(const struct off_tilefile *tilefile)
{
    for (size_t i = 0; i < tilefile->tile_count; i++) {
        const struct off_record_entry *now = &tilefile->tiles[i].now,
                                      *next = &tilefile->tiles[i].next;
        if (next->place != now->place || next->has != now->has)
            return true;
    }
    return false;
}

// Where the next record goes. It takes the place of the older one, or, where that may count and is
// still whole, of a current one that does not count.
static int next_record(const struct off_tilefile *tilefile)
{
    assert(tilefile->current < OFF_TILEFILE_RECORDS);
    if (tilefile->current < 0)
        return 0;
    const bool keeps = tilefile->older_whole && !tilefile->current_counts && !has_changed(tilefile);
    return keeps ? tilefile->current : 1 - tilefile->current;
}

static void make_current(struct off_tilefile *tilefile, int number, uint64_t step)
{
    assert(number >= 0 && number < OFF_TILEFILE_RECORDS);
    if (number != tilefile->current)
        tilefile->older_whole = tilefile->current >= 0;
    tilefile->current = number;
    tilefile->current_counts = off_tilefile_step_counts(tilefile, step);
    tilefile->sequence++;
    for (size_t i = 0; i < tilefile->tile_count; i++)
        tilefile->tiles[i].now = tilefile->tiles[i].next;
}

zero_result off_tilefile_record(struct off_tilefile *tilefile, uint64_t step, const void *payload,
                                size_t bytes, struct base_error *error)
{
    if (bytes > tilefile->payload_bytes)
        return zero_fail(error, ZERO_E_LIMIT,
                         "%s: %zu bytes beside the tiles; there is room for %zu",
                         tilefile->file.path, bytes, tilefile->payload_bytes);
    if (tilefile->in_place)
        return zero_fail(error, ZERO_E_INVALID, "%s: a file without records", tilefile->file.path);
    const int number = next_record(tilefile);
    zero_result result = check_file(tilefile, error);
    if (result)
        return result;
    fill_record(tilefile, step, payload, bytes);
    result = write_record(tilefile, number, bytes, error);
    if (!result)
        make_current(tilefile, number, step);
    return result;
}

void off_tilefile_abandon(struct off_tilefile *tilefile)
{
    if (has_changed(tilefile))
        tilefile->older_whole = false;
    for (size_t i = 0; i < tilefile->tile_count; i++)
        tilefile->tiles[i].next = tilefile->tiles[i].now;
}
