// Who never arrived where, from the flight recorders.

#include "tools/zero-run/segment_view.h"

#include "base/arena.h"

#include <inttypes.h>
#include <string.h>

enum { LINE_BYTES = 512, MOST_COMMS = 64, MOST_MESSAGES = 2, MOST_OWN = 2 };

/** Where a rank is in a communicator. Records by their number in the rank's area, 0: none. */
struct place {
    bool member;
    uint64_t begun;   /**< ordered operations so far */
    uint64_t newest;  /**< record of the newest of them */
    uint64_t open;    /**< record of the oldest one that is under way, */
    uint64_t open_at; /**< and its sequence */
    uint64_t message; /**< record of the oldest message under way */
};

struct comm {
    char name[sizeof((struct control_record *)0)->comm];
    uint32_t ranks, first;
    struct place *places; /**< of every rank of the job */
};

/** What has been found out so far, and where it goes. */
struct inquiry {
    const struct control_segment *segment;
    int world;
    uint64_t now_ns;
    struct comm comms[MOST_COMMS];
    int count;
    run_line_fn line;
    void *user;
};

/* ------------------------------------------------------------------ reading */

/** The communicator of a record; NULL if there are too many, or no memory. */
static struct comm *find_comm(struct inquiry *inquiry, const struct control_record *record)
{
    for (int i = 0; i < inquiry->count; i++) {
        struct comm *comm = &inquiry->comms[i];
        if (comm->ranks == record->ranks && comm->first == record->first &&
            !strcmp(comm->name, record->comm))
            return comm;
    }
    if (inquiry->count == MOST_COMMS)
        return NULL;
    struct comm *comm = &inquiry->comms[inquiry->count];
    comm->places = base_calloc((size_t)inquiry->world, sizeof *comm->places);
    if (!comm->places)
        return NULL;
    memcpy(comm->name, record->comm, sizeof comm->name);
    comm->ranks = record->ranks;
    comm->first = record->first;
    // Of a group it is not known who is in it before they have done something there.
    for (int rank = 0; rank < inquiry->world && comm->ranks == (uint32_t)inquiry->world; rank++)
        comm->places[rank].member = true;
    inquiry->count++;
    return comm;
}

static void note(struct inquiry *inquiry, int rank, const struct control_record *record)
{
    struct comm *comm = find_comm(inquiry, record);
    if (!comm)
        return;
    struct place *place = &comm->places[rank];
    const bool open = record->end_ns == 0;
    place->member = true;
    if (record->peer != CONTROL_NO_PEER) {
        if (open && !place->message)
            place->message = record->number;
        return;
    }
    // A program may close a communicator and open another one of the same name.
    if (record->sequence < place->begun)
        *place = (struct place){.member = true};
    place->begun = record->sequence + 1;
    place->newest = record->number;
    if (open && !place->open) {
        place->open = record->number;
        place->open_at = record->sequence;
    }
}

static void read_recorders(struct inquiry *inquiry)
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

/** The ranks for which `chosen` is set, as "rank 3" or "ranks 0-2,5". */
static void add_ranks(struct base_text *text, const bool *chosen, int world)
{
    int count = 0;
    for (int rank = 0; rank < world; rank++)
        count += chosen[rank];
    base_text_add(text, "rank%s", count == 1 ? "" : "s");
    const char *separator = " ";
    for (int rank = 0; rank < world; rank++) {
        if (!chosen[rank])
            continue;
        int last = rank;
        while (last + 1 < world && chosen[last + 1])
            last++;
        base_text_add(text, "%s%d", separator, rank);
        if (last > rank)
            base_text_add(text, "%c%d", last > rank + 1 ? '-' : ',', last);
        rank = last;
        separator = ",";
    }
}

static void add_duration(struct base_text *text, uint64_t ns)
{
    if (ns < UINT64_C(10000000))
        base_text_add(text, "%.1f ms", (double)ns * 1e-6);
    else if (ns < UINT64_C(10000000000))
        base_text_add(text, "%.0f ms", (double)ns * 1e-6);
    else
        base_text_add(text, "%.1f s", (double)ns * 1e-9);
}

static uint64_t since(const struct inquiry *inquiry, uint64_t then_ns)
{
    return inquiry->now_ns > then_ns ? inquiry->now_ns - then_ns : 0;
}

/** ", unit 17 (h.4)" */
static void add_unit(struct base_text *text, const struct control_record *record)
{
    if (record->unit != CONTROL_NO_UNIT)
        base_text_add(text, ", unit %" PRIu32, record->unit);
    if (*record->name)
        base_text_add(text, " (%s)", record->name);
}

/** ", in context "main"", where there are several; a group has fewer ranks than the job. */
static void add_comm(struct base_text *text, const struct inquiry *inquiry, const char *name,
                     uint32_t ranks)
{
    if (inquiry->count > 1)
        base_text_add(text, ", in %s \"%s\"",
                      ranks == (uint32_t)inquiry->world ? "context" : "group", name);
}

/** "reduce-scatter #1233, unit 16 (h.3)" */
static void add_operation(struct base_text *text, const struct inquiry *inquiry,
                          const struct control_record *record)
{
    if (record->peer == CONTROL_NO_PEER)
        base_text_add(text, "%s #%" PRIu64, record->kind, record->sequence);
    else
        base_text_add(text, "%s %s rank %u", record->kind,
                      !strcmp(record->kind, "send") ? "to" : "from", record->peer);
    add_unit(text, record);
    add_comm(text, inquiry, record->comm, record->ranks);
}

static bool read_record(const struct inquiry *inquiry, int rank, uint64_t number,
                        struct control_record *record)
{
    return number && control_read(&inquiry->segment->ranks[rank], number, record);
}

/* ------------------------------------------------------------------ the rank that failed */

/** The oldest record of a rank that is under way, else the newest one; 0: it has none. */
static uint64_t last_record(const struct inquiry *inquiry, int rank, bool *open)
{
    uint64_t oldest = 0, newest = 0;
    for (int i = 0; i < inquiry->count; i++) {
        const struct place *place = &inquiry->comms[i].places[rank];
        const uint64_t candidates[] = {place->open, place->message};
        for (int k = 0; k < 2; k++)
            if (candidates[k] && (!oldest || candidates[k] < oldest))
                oldest = candidates[k];
        if (place->newest > newest)
            newest = place->newest;
    }
    *open = oldest > 0;
    return oldest ? oldest : newest;
}

/** "zero_gather(unit 3 "h.3") of step 12" */
static void add_call(struct base_text *text, const struct inquiry *inquiry,
                     const struct control_call *call)
{
    const unsigned long long step = call->step;
    const char *plural = step == 1 ? "" : "s";
    base_text_add(text, "%s", call->call);
    if (call->unit != CONTROL_NO_UNIT)
        base_text_add(text, "(unit %" PRIu32 " \"%s\")", call->unit, call->name);
    if (call->moment == CONTROL_IN_STEP)
        base_text_add(text, " of step %llu", step);
    else if (call->moment == CONTROL_IN_EVALUATION)
        base_text_add(text, " of an evaluation after %llu step%s", step, plural);
    else if (call->moment == CONTROL_BETWEEN && step > 0)
        base_text_add(text, " after %llu step%s", step, plural);
    if (inquiry->count > 1)
        base_text_add(text, ", in context \"%s\"", call->context);
}

/** ", in reduce-scatter #1233, unit 16 (h.3), for 3.1 ms" */
static void add_under_way(struct base_text *text, const struct inquiry *inquiry,
                          const struct control_record *record, const char *before)
{
    base_text_add(text, "%s", before);
    add_operation(text, inquiry, record);
    base_text_add(text, " for ");
    add_duration(text, since(inquiry, record->begin_ns));
}

/** Tells the last call that a rank's program made, and the operation that is under way in the call
 * or beside the program. */
static void tell_call(const struct inquiry *inquiry, int rank, const struct control_call *call,
                      bool calling, const struct control_record *open)
{
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    base_text_add(&text, "rank %d was in %s", rank,
                  calling ? "" : "the program's own code, after ");
    add_call(&text, inquiry, call);
    if (open)
        add_under_way(&text, inquiry, open, calling ? ", in " : "; under way: ");
    inquiry->line(inquiry->user, line);
}

/** Tells the operation that a program was in, or had begun last, if it uses communicators only. */
static void tell_operation(const struct inquiry *inquiry, int rank,
                           const struct control_record *record, bool open)
{
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    base_text_add(&text, "rank %d was in ", rank);
    if (open) {
        add_under_way(&text, inquiry, record, "");
    } else {
        base_text_add(&text, "the program's own code, after ");
        add_operation(&text, inquiry, record);
        base_text_add(&text, ", which began ");
        add_duration(&text, since(inquiry, record->begin_ns));
        base_text_add(&text, " before");
    }
    inquiry->line(inquiry->user, line);
}

static void tell_failed(const struct inquiry *inquiry, int rank)
{
    struct control_record record;
    struct control_call call;
    bool open, calling;
    const bool any = read_record(inquiry, rank, last_record(inquiry, rank, &open), &record);
    if (control_call_read(&inquiry->segment->ranks[rank], &call, &calling))
        tell_call(inquiry, rank, &call, calling, any && open ? &record : NULL);
    else if (any)
        tell_operation(inquiry, rank, &record, open);
}

/** Whether a rank's program is in no call of the library's, after one in this context; NULL: in
 * any. It waits for no operation of that context then, though some may be under way. */
static bool is_in_own_code(const struct inquiry *inquiry, int rank, const char *context)
{
    struct control_call call;
    bool calling;
    return control_call_read(&inquiry->segment->ranks[rank], &call, &calling) && !calling &&
           strcmp(call.call, "zero_close") != 0 && (!context || !strcmp(call.context, context));
}

/** Where no rank has failed: tells the ranks that are in their program's own code. */
static void tell_own_code(const struct inquiry *inquiry)
{
    int told = 0, more = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        if (!is_in_own_code(inquiry, rank, NULL))
            continue;
        if (told < MOST_OWN) {
            tell_failed(inquiry, rank);
            told++;
        } else {
            more++;
        }
    }
    if (more) {
        char line[LINE_BYTES] = "";
        base_text_add(&(struct base_text){line, sizeof line, 0}, "and so %s %d more rank%s",
                      more > 1 ? "were" : "was", more, more > 1 ? "s" : "");
        inquiry->line(inquiry->user, line);
    }
}

/* ------------------------------------------------------------------ ordered operations */

/** How things stand with one operation of a communicator. */
struct standing {
    uint64_t sequence;
    bool *waiting, *missing; /**< of every rank */
    int missing_count;
    int unknown;       /**< ranks of a group that have never been seen in it */
    int witness;       /**< a rank that waits */
    uint64_t begin_ns; /**< of the one that waits longest */
};

/** The least sequence from `from` on that somebody has under way as its oldest; UINT64_MAX. */
static uint64_t next_open(const struct inquiry *inquiry, const struct comm *comm, uint64_t from)
{
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < inquiry->world; rank++) {
        const struct place *place = &comm->places[rank];
        if (place->open && place->open_at >= from && place->open_at < least)
            least = place->open_at;
    }
    return least;
}

static void stand(const struct inquiry *inquiry, const struct comm *comm, struct standing *standing)
{
    int members = 0;
    standing->missing_count = 0;
    standing->begin_ns = UINT64_MAX;
    for (int rank = 0; rank < inquiry->world; rank++) {
        const struct place *place = &comm->places[rank];
        struct control_record record;
        members += place->member;
        standing->missing[rank] = place->member && place->begun <= standing->sequence;
        standing->missing_count += standing->missing[rank];
        standing->waiting[rank] = place->open && place->open_at == standing->sequence;
        if (standing->waiting[rank] && read_record(inquiry, rank, place->open, &record) &&
            record.begin_ns < standing->begin_ns) {
            standing->begin_ns = record.begin_ns;
            standing->witness = rank;
        }
    }
    standing->unknown = (int)comm->ranks > members ? (int)comm->ranks - members : 0;
}

static void tell_missing(const struct inquiry *inquiry, const struct comm *comm,
                         const struct standing *standing)
{
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    struct control_record record;
    if (!read_record(inquiry, standing->witness, comm->places[standing->witness].open, &record))
        return;
    if (standing->missing_count)
        add_ranks(&text, standing->missing, inquiry->world);
    if (standing->unknown)
        base_text_add(&text, "%s%d rank%s without any operation there",
                      standing->missing_count ? " and " : "", standing->unknown,
                      standing->unknown > 1 ? "s" : "");
    base_text_add(&text, " never posted #%" PRIu64 " %s", record.sequence, record.kind);
    add_unit(&text, &record);
    add_comm(&text, inquiry, comm->name, comm->ranks);
    base_text_add(&text, "; ");
    add_ranks(&text, standing->waiting, inquiry->world);
    int waiting = 0;
    for (int rank = 0; rank < inquiry->world; rank++)
        waiting += standing->waiting[rank];
    base_text_add(&text, " wait%s since ", waiting == 1 ? "s" : "");
    add_duration(&text, since(inquiry, standing->begin_ns));
    inquiry->line(inquiry->user, line);
}

/** Leaves out the ranks that wait for nothing. False: no rank is left. */
static bool keep_waiting(const struct inquiry *inquiry, const struct comm *comm,
                         struct standing *standing)
{
    struct control_record record;
    standing->begin_ns = UINT64_MAX;
    for (int rank = 0; rank < inquiry->world; rank++) {
        if (standing->waiting[rank] && is_in_own_code(inquiry, rank, comm->name))
            standing->waiting[rank] = false;
        if (standing->waiting[rank] &&
            read_record(inquiry, rank, comm->places[rank].open, &record) &&
            record.begin_ns < standing->begin_ns) {
            standing->begin_ns = record.begin_ns;
            standing->witness = rank;
        }
    }
    return standing->begin_ns != UINT64_MAX;
}

/** Tells who waits in an operation that every rank has posted. */
static void tell_stuck(const struct inquiry *inquiry, const struct comm *comm,
                       struct standing *standing)
{
    if (!keep_waiting(inquiry, comm, standing))
        return;
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    struct control_record record;
    if (!read_record(inquiry, standing->witness, comm->places[standing->witness].open, &record))
        return;
    add_ranks(&text, standing->waiting, inquiry->world);
    base_text_add(&text, " in ");
    add_operation(&text, inquiry, &record);
    base_text_add(&text, " since ");
    add_duration(&text, since(inquiry, standing->begin_ns));
    base_text_add(&text, "; every rank has posted it");
    inquiry->line(inquiry->user, line);
}

/** Whether two ranks that wait have called different operations; if so, that is told. */
static bool tell_diverged(const struct inquiry *inquiry, const struct comm *comm,
                          const struct standing *standing)
{
    struct control_record first, other;
    if (!read_record(inquiry, standing->witness, comm->places[standing->witness].open, &first))
        return false;
    for (int rank = 0; rank < inquiry->world; rank++) {
        if (!standing->waiting[rank] ||
            !read_record(inquiry, rank, comm->places[rank].open, &other) ||
            (!strcmp(first.kind, other.kind) && first.unit == other.unit &&
             !strcmp(first.name, other.name)))
            continue;
        char line[LINE_BYTES] = "";
        struct base_text text = {line, sizeof line, 0};
        base_text_add(&text, "rank %d in ", standing->witness);
        add_operation(&text, inquiry, &first);
        base_text_add(&text, ", but rank %d in ", rank);
        add_operation(&text, inquiry, &other);
        inquiry->line(inquiry->user, line);
        return true;
    }
    return false;
}

/** The first operation that somebody is in, and the first that somebody has not posted. */
static void tell_ordered(const struct inquiry *inquiry, const struct comm *comm, bool *flags)
{
    struct standing standing = {.waiting = flags, .missing = flags + inquiry->world};
    standing.sequence = next_open(inquiry, comm, 0);
    for (bool first = true; standing.sequence != UINT64_MAX; first = false) {
        stand(inquiry, comm, &standing);
        if (tell_diverged(inquiry, comm, &standing))
            return;
        if (standing.missing_count || standing.unknown) {
            tell_missing(inquiry, comm, &standing);
            return;
        }
        if (first)
            tell_stuck(inquiry, comm, &standing);
        standing.sequence = next_open(inquiry, comm, standing.sequence + 1);
    }
}

/* ------------------------------------------------------------------ messages */

static void tell_messages(const struct inquiry *inquiry, const struct comm *comm)
{
    int told = 0, more = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        struct control_record record;
        if (!read_record(inquiry, rank, comm->places[rank].message, &record))
            continue;
        if (told == MOST_MESSAGES) {
            more++;
            continue;
        }
        char line[LINE_BYTES] = "";
        struct base_text text = {line, sizeof line, 0};
        base_text_add(&text, "rank %d is in ", rank);
        add_operation(&text, inquiry, &record);
        base_text_add(&text, " since ");
        add_duration(&text, since(inquiry, record.begin_ns));
        inquiry->line(inquiry->user, line);
        told++;
    }
    if (more) {
        char line[LINE_BYTES] = "";
        struct base_text text = {line, sizeof line, 0};
        base_text_add(&text, "and so %s %d more rank%s", more > 1 ? "are" : "is", more,
                      more > 1 ? "s" : "");
        add_comm(&text, inquiry, comm->name, comm->ranks);
        inquiry->line(inquiry->user, line);
    }
}

/** Whoever has not attached is not there for any communicator, and records nothing. */
static void tell_absent(const struct inquiry *inquiry, bool *absent)
{
    int count = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        absent[rank] = control_pid(&inquiry->segment->ranks[rank]) == 0;
        count += absent[rank];
    }
    if (count == 0 || count == inquiry->world)
        return;
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    add_ranks(&text, absent, inquiry->world);
    base_text_add(&text, " never opened a context");
    inquiry->line(inquiry->user, line);
}

void run_blame(const struct control_segment *segment, int failed, uint64_t now_ns, run_line_fn line,
               void *user)
{
    struct inquiry inquiry = {.segment = segment,
                              .world = (int)segment->world,
                              .now_ns = now_ns,
                              .line = line,
                              .user = user};
    bool *flags = base_calloc(2 * (size_t)inquiry.world, sizeof *flags);
    if (!flags) {
        line(user, "no memory to read the flight recorders");
        return;
    }
    read_recorders(&inquiry);
    if (failed >= 0)
        tell_failed(&inquiry, failed);
    else
        tell_own_code(&inquiry);
    tell_absent(&inquiry, flags);
    for (int i = 0; i < inquiry.count; i++) {
        tell_ordered(&inquiry, &inquiry.comms[i], flags);
        tell_messages(&inquiry, &inquiry.comms[i]);
    }
    for (int i = 0; i < inquiry.count; i++)
        base_free(inquiry.comms[i].places);
    base_free(flags);
}
