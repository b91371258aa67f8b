#include "offload/tilefile_parts.h"

#include "base/file.h"
#include "base/hash.h"

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
        return base_fdatasync(o->fd, o->path, error);
    }
}

static zero_result give_order(const struct off_slots *slots, const struct order *order,
                              struct base_error *error)
{
    if (!slots->blocking_calls)
        return obey(order, error);
    if (order->action == FLUSH)
        return off_blocking_calls_run(slots->blocking_calls, obey, order, sizeof *order, error,
                                      "%s: fdatasync", order->path);
    return off_blocking_calls_run(slots->blocking_calls, obey, order, sizeof *order, error,
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
    return sizeof(struct off_record_head) + payload_bytes +
           slots->tile_count * sizeof(struct off_record_entry);
}

static uint64_t record_checksum(const struct off_slots *slots, size_t payload_bytes)
{
    const size_t at = offsetof(struct off_record_head, checksum);
    uint64_t kept;
    memcpy(&kept, slots->record + at, sizeof kept);
    memset(slots->record + at, 0, sizeof kept);
    const uint64_t sum = base_hash64(slots->record, record_size(slots, payload_bytes), 0);
    memcpy(slots->record + at, &kept, sizeof kept);
    return sum;
}

// Whether it is that of a record of this file, as far as it says.
static bool is_ours(const struct off_slots *slots, const struct off_record_head *head)
{
    return memcmp(head->magic, OFF_SLOTS_MAGIC, 8) == 0 && head->format == OFF_SLOTS_FORMAT &&
           head->tiles == slots->tile_count && head->shape == slots->shape &&
           memcmp(head->identity, slots->identity, sizeof head->identity) == 0;
}

bool off_slots_step_counts(const struct off_slots *slots, uint64_t step)
{
    return !slots->counts || slots->counts(step);
}

// Reads record `number`; whether it is whole and ours.
static zero_result read_record(struct off_slots *slots, int number, struct off_record_head *head,
                               bool *valid, struct base_error *error)
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
zero_result off_slots_find_records(struct off_slots *slots, struct base_error *error)
{
    static const struct off_record_head none;
    bool lost = false;
    uint64_t damaged = 0;
    for (int number = 0; number < OFF_SLOTS_RECORDS; number++) {
        struct off_record_head head;
        bool valid;
        const zero_result result = read_record(slots, number, &head, &valid, error);
        if (result)
            return result;
        if (valid) {
            slots->found[slots->found_count++] = (struct off_found_record){
                .number = number, .sequence = head.sequence, .step = head.step};
        } else if (memcmp(&head, &none, sizeof head) != 0) {
            const uint64_t offset = (uint64_t)number * slots->record_bytes;
            slots->torn[slots->torn_count++] = offset;
            if (is_ours(slots, &head) && off_slots_step_counts(slots, head.step)) {
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
        const struct off_found_record first = slots->found[0];
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
    const size_t bytes = off_slots_round_up(record_size(slots, payload_bytes));
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
    for (int number = 0; number < OFF_SLOTS_RECORDS && !slots->in_place && !result; number++)
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
                              struct off_record_entry *entry, struct base_error *error)
{
    const struct off_tile_state *t = &slots->tiles[tile];
    memcpy(entry,
           slots->record + sizeof(struct off_record_head) + payload_bytes + tile * sizeof *entry,
           sizeof *entry);
    if (entry->has == 0 || (entry->has == 1 && entry->place < OFF_SLOTS_PLACES &&
                            entry->stored > 0 && entry->stored <= t->bytes))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT,
                     "%s: its record has %ju bytes of tile %zu in place %u; the tile has %zu",
                     slots->file.path, (uintmax_t)entry->stored, tile, (unsigned)entry->place,
                     t->bytes);
}

zero_result off_slots_recover(struct off_slots *slots, int age, void *payload, size_t *bytes,
                              struct base_error *error)
{
    struct off_record_head head;
    bool valid;
    const struct off_found_record *found = &slots->found[age];
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
    struct off_record_head head = {
        .format = OFF_SLOTS_FORMAT,
        .tiles = (uint32_t)slots->tile_count,
        .identity = {slots->identity[0], slots->identity[1]},
        .shape = slots->shape,
        .sequence = slots->sequence + 1,
        .step = step,
        .payload_bytes = bytes,
    };
    memcpy(head.magic, OFF_SLOTS_MAGIC, 8);
    memset(slots->record, 0, off_slots_round_up(record_size(slots, bytes)));
    memcpy(slots->record, &head, sizeof head);
    if (bytes > 0)
        memcpy(slots->record + sizeof head, payload, bytes);
    for (size_t i = 0; i < slots->tile_count; i++)
        memcpy(slots->record + sizeof head + bytes + i * sizeof(struct off_record_entry),
               &slots->tiles[i].next, sizeof(struct off_record_entry));
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
        const struct off_record_entry *now = &slots->tiles[i].now, *next = &slots->tiles[i].next;
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
    slots->current_counts = off_slots_step_counts(slots, step);
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
