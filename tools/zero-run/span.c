#include "tools/zero-run/span.h"
#include "tools/zero-run/utf8.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

void run_area_read(const struct control_rank *from, struct run_area *area)
{
    memset(area, 0, sizeof *area); // what is sent is compared with what was sent before
    area->pid = control_pid(from);
    area->lost = atomic_load(&from->lost);
    area->lost_ns = atomic_load(&from->lost_ns);
    area->heard = atomic_load(&from->heard);
    area->listens = control_rank_listens(from);
    if (area->lost)
        memcpy(area->reason, from->reason, sizeof area->reason);
    area->has_status = control_status_read(from, &area->status);
}

// A time of the other clock. 0 stays 0, which means never.
static uint64_t shift(uint64_t time_ns, uint64_t theirs_ns, uint64_t ours_ns)
{
    return time_ns ? time_ns - theirs_ns + ours_ns : 0;
}

bool run_area_write(const struct run_area *area, uint64_t now_ns, struct control_rank *to)
{
    struct control_status status = area->status;
    if (status.metric_count > CONTROL_METRICS || area->reason[sizeof area->reason - 1] ||
        status.context[sizeof status.context - 1])
        return false;
    for (uint32_t i = 0; i < status.metric_count; i++)
        if (status.metrics[i].name[sizeof status.metrics[i].name - 1])
            return false;
    memcpy(to->reason, area->reason, sizeof to->reason);
    atomic_store(&to->pid, area->pid);
    atomic_store(&to->lost_ns, shift(area->lost_ns, area->now_ns, now_ns));
    atomic_store(&to->lost, area->lost);
    atomic_store(&to->heard, area->heard);
    atomic_store(&to->listens, area->listens);
    status.at_ns = shift(status.at_ns, area->now_ns, now_ns);
    status.first_ns = shift(status.first_ns, area->now_ns, now_ns);
    if (area->has_status)
        control_status_write(to, &status);
    return true;
}

/* ------------------------------------------------------------------ records */

size_t run_records_read(const struct control_rank *from, uint64_t now_ns,
                        struct run_records *records)
{
    bool calling = false;
    memset(records, 0, sizeof *records);
    records->now_ns = now_ns;
    records->newest = control_newest(from);
    records->pid = control_pid(from);
    records->has_call = control_call_read(from, &records->call, &calling);
    records->calling = calling;
    const uint64_t newest = records->newest;
    for (uint64_t n = newest > RUN_SPAN_RECORDS ? newest - RUN_SPAN_RECORDS + 1 : 1; n <= newest;
         n++)
        records->count += control_read(from, n, &records->records[records->count]);
    return offsetof(struct run_records, records) + records->count * sizeof(struct control_record);
}

static void mirror_record(const struct control_record *record, const struct run_records *records,
                          uint64_t now_ns, struct control_rank *to)
{
    struct control_record *slot = &to->ring[(record->number - 1) % CONTROL_RECORDS];
    *slot = *record;
    slot->begin_ns = shift(record->begin_ns, records->now_ns, now_ns);
    slot->end_ns = shift(record->end_ns, records->now_ns, now_ns);
    atomic_store(&slot->stamp, 2 * record->number);
}

bool run_records_write(const struct run_records *records, size_t bytes, uint64_t now_ns,
                       struct control_rank *to)
{
    const size_t head = offsetof(struct run_records, records);
    if (bytes < head || records->count > RUN_SPAN_RECORDS ||
        bytes != head + records->count * sizeof(struct control_record))
        return false;
    struct control_call call = records->call;
    call.call[sizeof call.call - 1] = call.name[sizeof call.name - 1] = '\0';
    call.context[sizeof call.context - 1] = '\0';
    for (uint32_t i = 0; i < records->count; i++)
        if (records->records[i].number > 0)
            mirror_record(&records->records[i], records, now_ns, to);
    if (records->has_call)
        control_call_begin(to, &call);
    if (records->has_call && !records->calling)
        control_call_end(to);
    atomic_store(&to->pid, records->pid);
    atomic_store(&to->records, records->newest);
    return true;
}

/* ------------------------------------------------------------------ control frames */

json_t *run_span_string(const char *text)
{
    char clean[2048];
    snprintf(clean, sizeof clean, "%s", text);
    run_utf8_clean(clean);
    return json_string(clean);
}

const char *run_span_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

int run_span_number(const json_t *object, const char *name, int otherwise)
{
    const json_t *value = json_object_get(object, name);
    const json_int_t number = json_integer_value(value);
    return json_is_integer(value) && number >= INT_MIN && number <= INT_MAX ? (int)number
                                                                            : otherwise;
}

bool run_span_is(const json_t *object, const char *kind)
{
    return !strcmp(run_span_text(object, "is"), kind);
}
