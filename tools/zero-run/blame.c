// Who never arrived where, from the flight recorders.

#include "tools/zero-run/blame_inquiry.h"

#include "base/arena.h"

#include <inttypes.h>
#include <string.h>

enum { LINE_BYTES = 512, MOST_MESSAGES = 2, MOST_OWN = 2 };

/* ------------------------------------------------------------------ the rank that failed */

/** The oldest record of a rank that is under way, else the newest one; 0: it has none. */
static uint64_t last_record(const struct blame_inquiry *inquiry, int rank, bool *open)
{
    uint64_t oldest = 0, newest = 0;
    for (int i = 0; i < inquiry->count; i++) {
        const struct blame_place *place = &inquiry->comms[i].places[rank];
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
static void add_call(struct base_text *text, const struct blame_inquiry *inquiry,
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
static void add_under_way(struct base_text *text, const struct blame_inquiry *inquiry,
                          const struct control_record *record, const char *before)
{
    base_text_add(text, "%s", before);
    blame_add_operation(text, inquiry, record);
    base_text_add(text, " for ");
    blame_add_duration(text, blame_since(inquiry, record->begin_ns));
}

/** Tells the last call that a rank's program made, and the operation that is under way in the call
 * or beside the program. */
static void tell_call(const struct blame_inquiry *inquiry, int rank,
                      const struct control_call *call, bool calling,
                      const struct control_record *open)
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
static void tell_operation(const struct blame_inquiry *inquiry, int rank,
                           const struct control_record *record, bool open)
{
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    base_text_add(&text, "rank %d was in ", rank);
    if (open) {
        add_under_way(&text, inquiry, record, "");
    } else {
        base_text_add(&text, "the program's own code, after ");
        blame_add_operation(&text, inquiry, record);
        base_text_add(&text, ", which began ");
        blame_add_duration(&text, blame_since(inquiry, record->begin_ns));
        base_text_add(&text, " before");
    }
    inquiry->line(inquiry->user, line);
}

static void tell_failed(const struct blame_inquiry *inquiry, int rank)
{
    struct control_record record;
    struct control_call call;
    bool open, calling;
    const bool any = blame_read_record(inquiry, rank, last_record(inquiry, rank, &open), &record);
    if (control_call_read(&inquiry->segment->ranks[rank], &call, &calling))
        tell_call(inquiry, rank, &call, calling, any && open ? &record : NULL);
    else if (any)
        tell_operation(inquiry, rank, &record, open);
}

/** Whether a rank's program is in no call of the library's, after one in this context; NULL: in
 * any. It waits for no operation of that context then, though some may be under way. */
static bool is_in_own_code(const struct blame_inquiry *inquiry, int rank, const char *context)
{
    struct control_call call;
    bool calling;
    return control_call_read(&inquiry->segment->ranks[rank], &call, &calling) && !calling &&
           strcmp(call.call, "zero_close") != 0 && (!context || !strcmp(call.context, context));
}

/** Tells of the ranks that have no line of their own, if there are any. */
static void tell_more(const struct blame_inquiry *inquiry, int more, const char *verb,
                      const struct blame_comm *comm)
{
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    if (more == 0)
        return;
    base_text_add(&text, "and so %s %d more rank%s", verb, more, more > 1 ? "s" : "");
    if (comm)
        blame_add_comm(&text, inquiry, comm->name, comm->ranks);
    inquiry->line(inquiry->user, line);
}

/** Where no rank has failed: tells the ranks that are in their program's own code. */
static void tell_own_code(const struct blame_inquiry *inquiry)
{
    int told = 0, more = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        if (!is_in_own_code(inquiry, rank, NULL))
            continue;
        if (told++ < MOST_OWN)
            tell_failed(inquiry, rank);
        else
            more++;
    }
    tell_more(inquiry, more, more > 1 ? "were" : "was", NULL);
}

/* ------------------------------------------------------------------ ordered operations */

/** How things stand with one operation of a communicator. */
struct standing {
    uint64_t sequence;
    bool *waiting, *missing; /**< of every rank */
    int missing_count;
    int unknown;                   /**< ranks of a group that have never been seen in it */
    int witness;                   /**< the rank that waits longest, */
    struct control_record longest; /**< and its operation; begin_ns UINT64_MAX: none can be read */
};

/** The least sequence from `from` on that a rank has under way as its oldest; UINT64_MAX. */
static uint64_t next_open(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                          uint64_t from)
{
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < inquiry->world; rank++) {
        const struct blame_place *place = &comm->places[rank];
        if (place->open && place->open_at >= from && place->open_at < least)
            least = place->open_at;
    }
    return least;
}

static void find_witness(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                         struct standing *standing)
{
    standing->longest.begin_ns = UINT64_MAX;
    for (int rank = 0; rank < inquiry->world; rank++) {
        struct control_record record;
        if (!standing->waiting[rank] ||
            !blame_read_record(inquiry, rank, comm->places[rank].open, &record) ||
            record.begin_ns >= standing->longest.begin_ns)
            continue;
        standing->longest = record;
        standing->witness = rank;
    }
}

static void stand(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                  struct standing *standing)
{
    int members = 0;
    standing->missing_count = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        const struct blame_place *place = &comm->places[rank];
        members += place->member;
        standing->missing[rank] = place->member && place->begun <= standing->sequence;
        standing->missing_count += standing->missing[rank];
        standing->waiting[rank] = place->open && place->open_at == standing->sequence;
    }
    find_witness(inquiry, comm, standing);
    standing->unknown = (int)comm->ranks > members ? (int)comm->ranks - members : 0;
}

static void tell_missing(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                         const struct standing *standing)
{
    const struct control_record *record = &standing->longest;
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    if (record->begin_ns == UINT64_MAX)
        return;
    if (standing->missing_count)
        blame_add_ranks(&text, standing->missing, inquiry->world);
    if (standing->unknown)
        base_text_add(&text, "%s%d rank%s without any operation there",
                      standing->missing_count ? " and " : "", standing->unknown,
                      standing->unknown > 1 ? "s" : "");
    base_text_add(&text, " never posted #%" PRIu64 " %s", record->sequence, record->kind);
    blame_add_unit(&text, record);
    blame_add_comm(&text, inquiry, comm->name, comm->ranks);
    base_text_add(&text, "; ");
    blame_add_ranks(&text, standing->waiting, inquiry->world);
    int waiting = 0;
    for (int rank = 0; rank < inquiry->world; rank++)
        waiting += standing->waiting[rank];
    base_text_add(&text, " wait%s since ", waiting == 1 ? "s" : "");
    blame_add_duration(&text, blame_since(inquiry, record->begin_ns));
    inquiry->line(inquiry->user, line);
}

/** Leaves out the ranks that wait for nothing. False: no rank is left. */
static bool keep_waiting(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                         struct standing *standing)
{
    for (int rank = 0; rank < inquiry->world; rank++)
        if (standing->waiting[rank] && is_in_own_code(inquiry, rank, comm->name))
            standing->waiting[rank] = false;
    find_witness(inquiry, comm, standing);
    return standing->longest.begin_ns != UINT64_MAX;
}

/** Tells who waits in an operation that every rank has posted. */
static void tell_stuck(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                       struct standing *standing)
{
    if (!keep_waiting(inquiry, comm, standing))
        return;
    char line[LINE_BYTES] = "";
    struct base_text text = {line, sizeof line, 0};
    blame_add_ranks(&text, standing->waiting, inquiry->world);
    base_text_add(&text, " in ");
    blame_add_operation(&text, inquiry, &standing->longest);
    base_text_add(&text, " since ");
    blame_add_duration(&text, blame_since(inquiry, standing->longest.begin_ns));
    base_text_add(&text, "; every rank has posted it");
    inquiry->line(inquiry->user, line);
}

/** Whether two ranks that wait have called different operations; if so, that is told. */
static bool tell_diverged(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                          const struct standing *standing)
{
    const struct control_record *first = &standing->longest;
    struct control_record other;
    for (int rank = 0; rank < inquiry->world && first->begin_ns != UINT64_MAX; rank++) {
        if (!standing->waiting[rank] ||
            !blame_read_record(inquiry, rank, comm->places[rank].open, &other) ||
            (!strcmp(first->kind, other.kind) && first->unit == other.unit &&
             !strcmp(first->name, other.name)))
            continue;
        char line[LINE_BYTES] = "";
        struct base_text text = {line, sizeof line, 0};
        base_text_add(&text, "rank %d in ", standing->witness);
        blame_add_operation(&text, inquiry, first);
        base_text_add(&text, ", but rank %d in ", rank);
        blame_add_operation(&text, inquiry, &other);
        inquiry->line(inquiry->user, line);
        return true;
    }
    return false;
}

/** The first operation that a rank is in, and the first that a rank has not posted. */
static void tell_ordered(const struct blame_inquiry *inquiry, const struct blame_comm *comm,
                         bool *flags)
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

static void tell_messages(const struct blame_inquiry *inquiry, const struct blame_comm *comm)
{
    int told = 0, more = 0;
    for (int rank = 0; rank < inquiry->world; rank++) {
        struct control_record record;
        if (!blame_read_record(inquiry, rank, comm->places[rank].message, &record))
            continue;
        if (told++ >= MOST_MESSAGES) {
            more++;
            continue;
        }
        char line[LINE_BYTES] = "";
        struct base_text text = {line, sizeof line, 0};
        base_text_add(&text, "rank %d is in ", rank);
        blame_add_operation(&text, inquiry, &record);
        base_text_add(&text, " since ");
        blame_add_duration(&text, blame_since(inquiry, record.begin_ns));
        inquiry->line(inquiry->user, line);
    }
    tell_more(inquiry, more, more > 1 ? "are" : "is", comm);
}

/** A rank that has not attached is not there for any communicator, and records nothing. */
static void tell_absent(const struct blame_inquiry *inquiry, bool *absent)
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
    blame_add_ranks(&text, absent, inquiry->world);
    base_text_add(&text, " never opened a context");
    inquiry->line(inquiry->user, line);
}

void run_blame(const struct control_segment *segment, int failed, uint64_t now_ns, run_line_fn line,
               void *user)
{
    struct blame_inquiry inquiry = {.segment = segment,
                                    .world = (int)segment->world,
                                    .now_ns = now_ns,
                                    .line = line,
                                    .user = user};
    bool *flags = base_calloc(2 * (size_t)inquiry.world, sizeof *flags);
    if (!flags) {
        line(user, "no memory to read the flight recorders");
        return;
    }
    blame_read_recorders(&inquiry);
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
