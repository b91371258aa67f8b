// Records and the status are written under the eyes of readers in other processes. Words are
// stored in order (release) and loaded in order (acquire), which costs nothing on x86: a reader
// that sees a new word sees the odd stamp that was stored before it.

#include "collectives/control/control.h"

#include "base/clock.h"
#include "base/cpu.h"

#include <assert.h>
#include <string.h>

enum {
    CLAIM_TRIES =
        1000, // an end takes some stores; a thread that was stopped meanwhile is not waited for
    READ_TRIES = 1000,
};

typedef uint64_t __attribute__((may_alias)) word;

/** Where what follows the stamp begins. */
#define PAYLOAD sizeof(uint64_t)

_Static_assert(sizeof(struct control_record) == CONTROL_LINE, "a record is a line");
_Static_assert(sizeof(struct control_call) == CONTROL_LINE, "a call is a line");
_Static_assert(sizeof(struct control_status) % sizeof(word) == 0, "a status is whole words");

static void store_words(void *to, const void *from, size_t bytes)
{
    assert(bytes % sizeof(word) == 0 && (uintptr_t)to % sizeof(word) == 0);
    word *words = to;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        uint64_t value;
        memcpy(&value, (const unsigned char *)from + i * sizeof value, sizeof value);
        __atomic_store_n(&words[i], value, __ATOMIC_RELEASE);
    }
}

static void load_words(void *to, const void *from, size_t bytes)
{
    assert(bytes % sizeof(word) == 0 && (uintptr_t)from % sizeof(word) == 0);
    const word *words = from;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        const uint64_t value = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
        memcpy((unsigned char *)to + i * sizeof value, &value, sizeof value);
    }
}

static void store_payload(void *to, const void *from, size_t size)
{
    store_words((unsigned char *)to + PAYLOAD, (const unsigned char *)from + PAYLOAD,
                size - PAYLOAD);
}

static void load_payload(void *to, const void *from, size_t size)
{
    load_words((unsigned char *)to + PAYLOAD, (const unsigned char *)from + PAYLOAD,
               size - PAYLOAD);
}

static struct control_record *slot_of(struct control_rank *area, uint64_t number)
{
    assert(number > 0);
    return &area->ring[(number - 1) % CONTROL_RECORDS];
}

/** Makes a slot record `number`'s; false if a newer one has it, or if it cannot be had. */
static bool claim(struct control_record *slot, uint64_t number)
{
    assert(number > 0);
    uint64_t seen = atomic_load_explicit(&slot->stamp, memory_order_relaxed);
    for (int i = 0; i < CLAIM_TRIES && seen < 2 * number; i++) {
        if (seen % 2 == 0 &&
            atomic_compare_exchange_weak_explicit(&slot->stamp, &seen, 2 * number + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
        if (seen % 2) {
            base_cpu_relax();
            seen = atomic_load_explicit(&slot->stamp, memory_order_relaxed);
        }
    }
    return false;
}

uint64_t control_begin(struct control_rank *area, struct control_record *record)
{
    if (!area)
        return 0;
    if (record->begin_ns == 0)
        record->begin_ns = base_clock_ns();
    record->number = atomic_fetch_add_explicit(&area->records, 1, memory_order_relaxed) + 1;
    struct control_record *slot = slot_of(area, record->number);
    if (!claim(slot, record->number))
        return 0;
    store_payload(slot, record, sizeof *record);
    atomic_store_explicit(&slot->stamp, 2 * record->number, memory_order_release);
    return record->number;
}

void control_end(struct control_rank *area, uint64_t number)
{
    if (!area || number == 0)
        return;
    struct control_record *slot = slot_of(area, number);
    const bool traced = atomic_load_explicit(&area->trace, memory_order_relaxed) != 0;
    uint64_t end_ns = traced ? base_clock_ns() : 0, expected = 2 * number;
    if (!atomic_compare_exchange_strong_explicit(&slot->stamp, &expected, 2 * number + 1,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    if (!traced)
        load_words(&end_ns, &slot->begin_ns, sizeof end_ns);
    store_words(&slot->end_ns, &end_ns, sizeof end_ns);
    atomic_store_explicit(&slot->stamp, 2 * number, memory_order_release);
}

void control_copy_name(char *field, size_t size, const char *text)
{
    assert(size > 0);
    size_t i = 0;
    for (; i < size - 1 && text[i]; i++)
        field[i] = text[i];
    for (; i < size; i++)
        field[i] = '\0';
}

/** With a reason, or NULL. */
static void note_lost(struct control_rank *area, int lost, const char *reason)
{
    assert(lost >= 0);
    uint64_t never = 0;
    if (!area ||
        !atomic_compare_exchange_strong_explicit(&area->lost_ns, &never, base_clock_ns(),
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    if (reason)
        control_copy_name(area->reason, sizeof area->reason, reason);
    atomic_store_explicit(&area->lost, (uint32_t)lost + 1, memory_order_release);
}

void control_note_lost(struct control_rank *area, int lost)
{
    note_lost(area, lost, NULL);
}

void control_note_reason(struct control_rank *area, int rank, const char *reason)
{
    note_lost(area, rank, reason);
}

bool control_reason(const struct control_segment *segment, int rank,
                    char reason[CONTROL_REASON_BYTES])
{
    assert(rank >= 0 && (uint32_t)rank < segment->world);
    const struct control_rank *area = &segment->ranks[rank];
    *reason = '\0';
    if (atomic_load_explicit(&area->lost, memory_order_acquire) != (uint32_t)rank + 1)
        return false;
    size_t at = 0;
    for (; at < CONTROL_REASON_BYTES - 1 && area->reason[at]; at++) {
        const unsigned char byte = (unsigned char)area->reason[at];
        reason[at] = byte < ' ' || byte == 0x7f ? '?' : (char)byte; // it goes to terminals
    }
    reason[at] = '\0';
    return at > 0;
}

int control_first_lost(const struct control_segment *segment)
{
    uint64_t first_ns = UINT64_MAX;
    int first = -1;
    for (uint32_t rank = 0; rank < segment->world; rank++) {
        const struct control_rank *area = &segment->ranks[rank];
        const uint32_t lost = atomic_load_explicit(&area->lost, memory_order_acquire);
        const uint64_t lost_ns = atomic_load_explicit(&area->lost_ns, memory_order_relaxed);
        if (lost == 0 || lost > segment->world || lost_ns >= first_ns)
            continue;
        first_ns = lost_ns;
        first = (int)lost - 1;
    }
    return first;
}

uint64_t control_newest(const struct control_rank *area)
{
    return atomic_load_explicit(&area->records, memory_order_relaxed);
}

uint32_t control_pid(const struct control_rank *area)
{
    return atomic_load_explicit(&area->pid, memory_order_relaxed);
}

bool control_read(const struct control_rank *area, uint64_t number, struct control_record *record)
{
    const struct control_record *slot = &area->ring[(number - 1) % CONTROL_RECORDS];
    for (int i = 0; number > 0 && i < READ_TRIES; i++) {
        const uint64_t before = atomic_load_explicit(&slot->stamp, memory_order_acquire);
        if (before / 2 != number)
            return false;
        if (before % 2) {
            base_cpu_relax();
            continue;
        }
        load_payload(record, slot, sizeof *record);
        if (atomic_load_explicit(&slot->stamp, memory_order_relaxed) != before)
            continue;
        record->kind[sizeof record->kind - 1] = '\0';
        record->name[sizeof record->name - 1] = '\0';
        record->comm[sizeof record->comm - 1] = '\0';
        return record->number == number;
    }
    return false;
}

bool control_reports(struct control_rank *area, const void *who)
{
    uint64_t reporter = 0;
    return atomic_compare_exchange_strong_explicit(&area->reporter, &reporter, (uintptr_t)who,
                                                   memory_order_relaxed, memory_order_relaxed) ||
           reporter == (uintptr_t)who;
}

void control_reports_no_more(struct control_rank *area, const void *who)
{
    uint64_t reporter = (uintptr_t)who;
    atomic_compare_exchange_strong_explicit(&area->reporter, &reporter, 0, memory_order_relaxed,
                                            memory_order_relaxed);
}

/** Writes what begins with a stamp that counts, unless another thread is writing it. */
static void write_counted(_Atomic uint64_t *stamp, void *shared, const void *value, size_t size)
{
    uint64_t seen = atomic_load_explicit(stamp, memory_order_relaxed);
    if (seen % 2 || !atomic_compare_exchange_strong_explicit(
                        stamp, &seen, seen + 1, memory_order_relaxed, memory_order_relaxed))
        return;
    store_payload(shared, value, size);
    atomic_store_explicit(stamp, seen + 2, memory_order_release);
}

/** Reads it; false if it was never written, or is always being written. */
static bool read_counted(const _Atomic uint64_t *stamp, const void *shared, void *value,
                         size_t size)
{
    for (int i = 0; i < READ_TRIES; i++) {
        const uint64_t before = atomic_load_explicit(stamp, memory_order_acquire);
        if (before == 0)
            return false;
        if (before % 2) {
            base_cpu_relax();
            continue;
        }
        load_payload(value, shared, size);
        if (atomic_load_explicit(stamp, memory_order_relaxed) == before)
            return true;
    }
    return false;
}

void control_status_write(struct control_rank *area, const struct control_status *status)
{
    write_counted(&area->status.stamp, &area->status, status, sizeof *status);
}

bool control_status_read(const struct control_rank *area, struct control_status *status)
{
    if (!read_counted(&area->status.stamp, &area->status, status, sizeof *status))
        return false;
    if (status->metric_count > CONTROL_METRICS)
        status->metric_count = CONTROL_METRICS;
    status->context[sizeof status->context - 1] = '\0';
    for (uint32_t m = 0; m < status->metric_count; m++)
        status->metrics[m].name[CONTROL_NAME_BYTES - 1] = '\0';
    return true;
}

void control_call_begin(struct control_rank *area, const struct control_call *call)
{
    if (!area)
        return;
    write_counted(&area->call.stamp, &area->call, call, sizeof *call);
    atomic_store_explicit(&area->calling, 1, memory_order_release);
}

void control_call_end(struct control_rank *area)
{
    if (area)
        atomic_store_explicit(&area->calling, 0, memory_order_release);
}

bool control_call_read(const struct control_rank *area, struct control_call *call, bool *under_way)
{
    if (!read_counted(&area->call.stamp, &area->call, call, sizeof *call))
        return false;
    *under_way = atomic_load_explicit(&area->calling, memory_order_acquire) != 0;
    call->call[sizeof call->call - 1] = '\0';
    call->name[sizeof call->name - 1] = '\0';
    call->context[sizeof call->context - 1] = '\0';
    return true;
}
