#include "tools/zero-run/blame_inquiry.h"

#include "base/arena.h"
#include "tools/zero-run/run_options.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ reading */

/** The communicator of a record; NULL if there are too many, or no memory. */
static struct blame_comm *find_comm(struct blame_inquiry *inquiry,
                                    const struct control_record *record)
{
    for (int i = 0; i < inquiry->count; i++) {
        struct blame_comm *comm = &inquiry->comms[i];
        if (comm->ranks == record->ranks && comm->first == record->first &&
            !strcmp(comm->name, record->comm))
            return comm;
    }
    if (inquiry->count == BLAME_MOST_COMMS)
        return NULL;
    struct blame_comm *comm = &inquiry->comms[inquiry->count];
    comm->places = base_calloc((size_t)inquiry->world, sizeof *comm->places);
    if (!comm->places)
        return NULL;
    memcpy(comm->name, record->comm, sizeof comm->name);
    comm->ranks = record->ranks;
    comm->first = record->first;
    // A group's members are not known before they have done something there.
    for (int rank = 0; rank < inquiry->world && comm->ranks == (uint32_t)inquiry->world; rank++)
        comm->places[rank].member = true;
    inquiry->count++;
    return comm;
}

static void note(struct blame_inquiry *inquiry, int rank, const struct control_record *record)
{
    struct blame_comm *comm = find_comm(inquiry, record);
    if (!comm)
        return;
    struct blame_place *place = &comm->places[rank];
    const bool open = record->end_ns == 0;
    place->member = true;
    if (record->peer != CONTROL_NO_PEER) {
        if (open && !place->message)
            place->message = record->number;
        return;
    }
    // A program may close a communicator and open another one of the same name.
    if (record->sequence < place->begun)
        *place = (struct blame_place){.member = true};
    place->begun = record->sequence + 1;
    place->newest = record->number;
    if (open && !place->open) {
        place->open = record->number;
        place->open_at = record->sequence;
    }
}

void blame_read_recorders(struct blame_inquiry *inquiry)
{
    for (int rank = 0; rank < inquiry->world; rank++) {
        const struct control_rank *area = &inquiry->segment->ranks[rank];
        const uint64_t newest = control_newest(area);
        struct control_record record;
        for (uint64_t n = newest > CONTROL_RECORDS ? newest - CONTROL_RECORDS + 1 : 1; n <= newest;
             n++)
            if (control_read(area, n, &record) && record.what == CONTROL_OPERATION)
                note(inquiry, rank, &record);
    }
}

/* ------------------------------------------------------------------ words */

void blame_add_ranks(struct base_text *text, const bool *chosen, int world)
{
    int count = 0;
    for (int rank = 0; rank < world; rank++)
        count += chosen[rank];
    base_text_add(text, "rank%s ", count == 1 ? "" : "s");
    run_only_show(text, (const unsigned char *)chosen, world, ',');
}

void blame_add_duration(struct base_text *text, uint64_t ns)
{
    if (ns < UINT64_C(10000000))
        base_text_add(text, "%.1f ms", (double)ns * 1e-6);
    else if (ns < UINT64_C(10000000000))
        base_text_add(text, "%.0f ms", (double)ns * 1e-6);
    else
        base_text_add(text, "%.1f s", (double)ns * 1e-9);
}

uint64_t blame_since(const struct blame_inquiry *inquiry, uint64_t then_ns)
{
    return inquiry->now_ns > then_ns ? inquiry->now_ns - then_ns : 0;
}

void blame_add_unit(struct base_text *text, const struct control_record *record)
{
    if (record->unit != CONTROL_NO_UNIT)
        base_text_add(text, ", unit %" PRIu32, record->unit);
    if (*record->name)
        base_text_add(text, " (%s)", record->name);
}

void blame_add_comm(struct base_text *text, const struct blame_inquiry *inquiry, const char *name,
                    uint32_t ranks)
{
    if (inquiry->count > 1)
        base_text_add(text, ", in %s \"%s\"",
                      ranks == (uint32_t)inquiry->world ? "context" : "group", name);
}

void blame_add_operation(struct base_text *text, const struct blame_inquiry *inquiry,
                         const struct control_record *record)
{
    if (record->peer == CONTROL_NO_PEER)
        base_text_add(text, "%s #%" PRIu64, record->kind, record->sequence);
    else
        base_text_add(text, "%s %s rank %u", record->kind,
                      !strcmp(record->kind, "send") ? "to" : "from", record->peer);
    blame_add_unit(text, record);
    blame_add_comm(text, inquiry, record->comm, record->ranks);
}

bool blame_read_record(const struct blame_inquiry *inquiry, int rank, uint64_t number,
                       struct control_record *record)
{
    return number && control_read(&inquiry->segment->ranks[rank], number, record);
}
