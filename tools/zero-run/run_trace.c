// The flight recorders as a trace. Records are taken in the order of their numbers, which is that
// of their beginnings, but written when they have ended. Operations of one communicator overlap,
// and what is on one track must not: each takes the first lane that is free when it begins.

#include "tools/zero-run/segment_view.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

enum {
    BUFFER_BYTES = 64 * 1024,
    EVENT_BYTES = 1024, // more than any takes
    MOST_TRACKS = 64,   // communicators of a rank
    MOST_LANES = 200,   // operations of a communicator that can be under way, and more
    TRACK_TIDS = 1000,  // thread ids of a communicator: the first is the engine's, the others lanes
};

struct lane {
    uint64_t number; /**< of the record that has it; 0: free */
    uint64_t end_ns; /**< of the one before */
};

/** A communicator of a rank. */
struct track {
    char comm[sizeof((struct control_record *)0)->comm];
    bool engine_named;
    int lane_count;
    struct lane lanes[MOST_LANES];
};

enum state { STATE_NEW, STATE_OPEN, STATE_DONE };

struct rank_trace {
    bool named;
    uint64_t next; /**< the first record that is not done */
    int track_count;
    struct track *tracks[MOST_TRACKS];
    unsigned char states[CONTROL_RECORDS];  /**< of records from `next` on */
    unsigned char in_lane[CONTROL_RECORDS]; /**< which lane an open one has */
};

struct run_trace {
    const struct control_segment *segment; /**< NULL: left */
    int fd;
    int failed;
    uint64_t start_ns;
    uint64_t lost;
    bool begun; /**< there is an event, and the next one needs a comma */
    struct base_text text;
    char buffer[BUFFER_BYTES];
    uint32_t world; /**< of the segment */
    uint32_t room;
    struct rank_trace ranks[];
};

/* ------------------------------------------------------------------ writing */

static void flush(struct run_trace *trace)
{
    errno = 0;
    if (!trace->failed &&
        base_write_all(trace->fd, trace->buffer, trace->text.used, "the trace", NULL))
        trace->failed = errno ? errno : EIO;
    trace->text.used = 0;
}

/** Begins an event: there is room for all of it. */
static struct base_text *begin_event(struct run_trace *trace)
{
    if (trace->text.used + EVENT_BYTES > trace->text.size)
        flush(trace);
    base_text_add(&trace->text, trace->begun ? ",\n" : "[\n");
    trace->begun = true;
    return &trace->text;
}

/** Bytes of a UTF-8 sequence; 0: it is none. */
static size_t sequence_length(const char *text)
{
    const unsigned char *byte = (const unsigned char *)text;
    const size_t length = byte[0] < 0x80                      ? 1
                          : byte[0] >= 0xc2 && byte[0] < 0xe0 ? 2
                          : byte[0] >= 0xe0 && byte[0] < 0xf0 ? 3
                          : byte[0] >= 0xf0 && byte[0] < 0xf5 ? 4
                                                              : 0;
    for (size_t i = 1; i < length; i++)
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
    // Longer than need be, a surrogate, or beyond the last character.
    if ((byte[0] == 0xe0 && byte[1] < 0xa0) || (byte[0] == 0xed && byte[1] > 0x9f) ||
        (byte[0] == 0xf0 && byte[1] < 0x90) || (byte[0] == 0xf4 && byte[1] > 0x8f))
        return 0;
    return length;
}

/** A JSON string. Names are the program's, and cut where a field ends. */
static void add_string(struct base_text *text, const char *string)
{
    base_text_add(text, "\"");
    while (*string) {
        const size_t length = sequence_length(string);
        if (length == 0)
            base_text_add(text, "?");
        else if (*string == '"' || *string == '\\')
            base_text_add(text, "\\%c", *string);
        else if (length == 1 && (unsigned char)*string < 0x20)
            base_text_add(text, "\\u%04x", (unsigned)*string);
        else
            base_text_add(text, "%.*s", (int)length, string);
        string += length ? length : 1;
    }
    base_text_add(text, "\"");
}

static void name_rank(struct run_trace *trace, uint32_t rank)
{
    if (trace->ranks[rank].named)
        return;
    trace->ranks[rank].named = true;
    base_text_add(begin_event(trace),
                  "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%" PRIu32
                  ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
                  rank, rank);
    base_text_add(begin_event(trace),
                  "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%" PRIu32
                  ",\"args\":{\"sort_index\":%" PRIu32 "}}",
                  rank, rank);
}

static void name_thread(struct run_trace *trace, uint32_t rank, int tid, const char *comm,
                        const char *what, int number)
{
    name_rank(trace, rank);
    struct base_text *text = begin_event(trace);
    base_text_add(text,
                  "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%" PRIu32
                  ",\"tid\":%d,\"args\":{\"name\":",
                  rank, tid);
    char name[64];
    struct base_text words = {name, sizeof name, 0};
    base_text_add(&words, "%s: %s", comm, what);
    if (number > 1)
        base_text_add(&words, " %d", number);
    add_string(text, name);
    base_text_add(text, "}}");
    base_text_add(begin_event(trace),
                  "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%" PRIu32
                  ",\"tid\":%d,\"args\":{\"sort_index\":%d}}",
                  rank, tid, tid);
}

/** Microseconds, with three decimals. */
static void add_time(struct base_text *text, const char *key, uint64_t ns)
{
    base_text_add(text, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static const char *name_of(const struct control_record *record)
{
    static const char *const names[CONTROL_WHATS] = {
        [CONTROL_NOTHING] = "nothing",       [CONTROL_GATHER] = "gather",
        [CONTROL_REDUCE] = "reduce",         [CONTROL_VERDICT] = "verdict",
        [CONTROL_UPDATE] = "update",         [CONTROL_STEP] = "step",
        [CONTROL_EVALUATION] = "evaluation",
    };
    return record->what == CONTROL_OPERATION ? record->kind : names[record->what];
}

/** Writes a record that ended, or is cut off, at end_ns. */
static void write_record(struct run_trace *trace, uint32_t rank, int tid,
                         const struct control_record *record, uint64_t end_ns)
{
    const bool operation = record->what == CONTROL_OPERATION;
    const uint64_t begin_ns =
        record->begin_ns > trace->start_ns ? record->begin_ns - trace->start_ns : 0;
    struct base_text *text = begin_event(trace);
    base_text_add(text, "{\"name\":");
    add_string(text, name_of(record));
    base_text_add(text, ",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%d",
                  operation ? "operation" : "engine", rank, tid);
    add_time(text, "ts", begin_ns);
    add_time(text, "dur", end_ns > record->begin_ns ? end_ns - record->begin_ns : 0);
    const char *separator = "";
    base_text_add(text, ",\"args\":{");
    if (operation) {
        base_text_add(text, "\"sequence\":%" PRIu64 ",\"bytes\":%" PRIu64, record->sequence,
                      record->bytes);
        separator = ",";
    }
    if (record->unit != CONTROL_NO_UNIT) {
        base_text_add(text, "%s\"unit\":%" PRIu32, separator, record->unit);
        separator = ",";
    }
    if (*record->name) {
        base_text_add(text, "%s\"name\":", separator);
        add_string(text, record->name);
        separator = ",";
    }
    if (record->end_ns == 0)
        base_text_add(text, "%s\"unfinished\":1", separator);
    base_text_add(text, "}}");
}

/* ------------------------------------------------------------------ tracks and lanes */

/** The track of a record's communicator, its index; -1: there are too many, or no memory. */
static int find_track(struct rank_trace *rank, const char *comm)
{
    for (int i = 0; i < rank->track_count; i++)
        if (!strcmp(rank->tracks[i]->comm, comm))
            return i;
    if (rank->track_count == MOST_TRACKS)
        return -1;
    struct track *track = base_calloc(1, sizeof *track);
    if (!track)
        return -1;
    strcpy(track->comm, comm);
    rank->tracks[rank->track_count] = track;
    return rank->track_count++;
}

/** The first lane that is free from begin_ns on; -1: none. */
static int find_lane(struct track *track, uint64_t begin_ns)
{
    for (int i = 0; i < track->lane_count; i++)
        if (track->lanes[i].number == 0 && track->lanes[i].end_ns <= begin_ns)
            return i;
    return track->lane_count < MOST_LANES ? track->lane_count++ : -1;
}

/** Frees the lane of a record that will not come any more. */
static void forget_lane(struct rank_trace *rank, uint64_t number)
{
    for (int i = 0; i < rank->track_count; i++)
        for (int k = 0; k < rank->tracks[i]->lane_count; k++)
            if (rank->tracks[i]->lanes[k].number == number)
                rank->tracks[i]->lanes[k].number = 0;
}

/* ------------------------------------------------------------------ draining */

static unsigned char *state_of(struct rank_trace *rank, uint64_t number)
{
    return &rank->states[number % CONTROL_RECORDS];
}

static void take_stretch(struct run_trace *trace, uint32_t rank, int track,
                         const struct control_record *record)
{
    struct track *of = trace->ranks[rank].tracks[track];
    const int tid = track * TRACK_TIDS + 1;
    if (!of->engine_named)
        name_thread(trace, rank, tid, of->comm, "engine", 1);
    of->engine_named = true;
    write_record(trace, rank, tid, record, record->end_ns);
}

/** Gives an operation its lane, and writes it once it has ended. Returns its state. */
static enum state take_operation(struct run_trace *trace, uint32_t rank, int track,
                                 const struct control_record *record)
{
    struct rank_trace *of = &trace->ranks[rank];
    const size_t slot = record->number % CONTROL_RECORDS;
    if (of->states[slot] == STATE_NEW) {
        const int before = of->tracks[track]->lane_count;
        const int found = find_lane(of->tracks[track], record->begin_ns);
        if (found < 0) {
            trace->lost++;
            return STATE_DONE;
        }
        if (found == before)
            name_thread(trace, rank, track * TRACK_TIDS + 2 + found, record->comm, "operations",
                        found + 1);
        of->in_lane[slot] = (unsigned char)found;
        of->tracks[track]->lanes[found].number = record->number;
    }
    if (record->end_ns == 0)
        return STATE_OPEN;
    struct lane *lane = &of->tracks[track]->lanes[of->in_lane[slot]];
    lane->number = 0;
    lane->end_ns = record->end_ns;
    write_record(trace, rank, track * TRACK_TIDS + 2 + of->in_lane[slot], record, record->end_ns);
    return STATE_DONE;
}

static enum state take(struct run_trace *trace, uint32_t rank, const struct control_record *record)
{
    if (record->what == CONTROL_NOTHING || record->what >= CONTROL_WHATS)
        return STATE_DONE;
    const int track = find_track(&trace->ranks[rank], record->comm);
    if (track < 0) {
        trace->lost++;
        return STATE_DONE;
    }
    if (record->what == CONTROL_OPERATION)
        return take_operation(trace, rank, track, record);
    take_stretch(trace, rank, track, record);
    return STATE_DONE;
}

/** Gives up what has been overwritten: everything before `oldest`. */
static void skip_to(struct run_trace *trace, uint32_t rank, uint64_t oldest)
{
    struct rank_trace *of = &trace->ranks[rank];
    for (int i = 0; i < CONTROL_RECORDS && of->next < oldest; i++, of->next++) {
        unsigned char *state = state_of(of, of->next);
        trace->lost += *state != STATE_DONE;
        if (*state == STATE_OPEN)
            forget_lane(of, of->next);
        *state = STATE_NEW;
    }
    if (of->next < oldest) {
        trace->lost += oldest - of->next;
        of->next = oldest;
    }
}

static void drain_rank(struct run_trace *trace, uint32_t rank)
{
    const struct control_rank *area = &trace->segment->ranks[rank];
    struct rank_trace *of = &trace->ranks[rank];
    const uint64_t newest = control_newest(area);
    if (newest >= CONTROL_RECORDS)
        skip_to(trace, rank, newest - CONTROL_RECORDS + 1);
    for (uint64_t n = of->next; n <= newest; n++) {
        struct control_record record;
        unsigned char *state = state_of(of, n);
        if (*state != STATE_DONE && control_read(area, n, &record))
            *state = (unsigned char)take(trace, rank, &record);
    }
    for (; of->next <= newest && *state_of(of, of->next) == STATE_DONE; of->next++)
        *state_of(of, of->next) = STATE_NEW;
}

void run_trace_drain(struct run_trace *trace)
{
    for (uint32_t rank = 0; rank < trace->world; rank++)
        drain_rank(trace, rank);
    if (trace->text.used)
        flush(trace);
}

/** What is under way at the end, as far as it got. */
static void cut_off(struct run_trace *trace, uint32_t rank, uint64_t now_ns)
{
    struct rank_trace *of = &trace->ranks[rank];
    for (int i = 0; i < of->track_count; i++)
        for (int k = 0; k < of->tracks[i]->lane_count; k++) {
            struct control_record record;
            const uint64_t number = of->tracks[i]->lanes[k].number;
            if (number && control_read(&trace->segment->ranks[rank], number, &record))
                write_record(trace, rank, i * TRACK_TIDS + 2 + k, &record,
                             record.end_ns ? record.end_ns : now_ns);
        }
}

void run_trace_leave(struct run_trace *trace)
{
    run_trace_drain(trace);
    const uint64_t now_ns = base_clock_ns();
    for (uint32_t rank = 0; rank < trace->world; rank++)
        cut_off(trace, rank, now_ns);
    trace->segment = NULL;
}

/** Nothing of the segment before is under way; its tracks stay. */
static void begin_again(struct rank_trace *rank)
{
    rank->next = 1;
    memset(rank->states, STATE_NEW, sizeof rank->states);
    for (int i = 0; i < rank->track_count; i++)
        for (int k = 0; k < rank->tracks[i]->lane_count; k++)
            rank->tracks[i]->lanes[k] = (struct lane){.number = 0};
}

void run_trace_join(struct run_trace *trace, const struct control_segment *segment)
{
    trace->segment = segment;
    trace->world = segment->world;
    for (uint32_t rank = 0; rank < trace->world; rank++)
        begin_again(&trace->ranks[rank]);
}

void run_trace_finish(struct run_trace *trace)
{
    if (trace->segment)
        run_trace_leave(trace);
    base_text_add(&trace->text, trace->begun ? "\n]\n" : "[]\n");
    flush(trace);
    struct base_error error = {.result = ZERO_OK};
    if (base_close(&trace->fd, "the trace", &error) && !trace->failed)
        trace->failed = errno ? errno : EIO;
}

/* ------------------------------------------------------------------ life */

zero_result run_trace_open(struct run_trace **trace, const char *path,
                           const struct control_segment *segment, struct base_error *error)
{
    const uint32_t world = segment->world;
    *trace = NULL;
    struct run_trace *made = base_calloc(1, sizeof *made + world * sizeof *made->ranks);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a trace of %" PRIu32 " ranks", world);
    made->segment = segment;
    made->world = made->room = world;
    made->start_ns = base_clock_ns();
    made->text = (struct base_text){made->buffer, sizeof made->buffer, 0};
    for (uint32_t rank = 0; rank < world; rank++)
        made->ranks[rank].next = 1;
    // Not blocking: a slow reader of a pipe must not hold up the job.
    const zero_result result = base_open(
        &made->fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NONBLOCK, 0666, error);
    if (result) {
        run_trace_close(made);
        return result;
    }
    *trace = made;
    return ZERO_OK;
}

int run_trace_failed(const struct run_trace *trace)
{
    return trace->failed;
}

uint64_t run_trace_lost(const struct run_trace *trace)
{
    return trace->lost;
}

void run_trace_close(struct run_trace *trace)
{
    if (!trace)
        return;
    base_close(&trace->fd, "the trace", NULL);
    for (uint32_t rank = 0; rank < trace->room; rank++)
        for (int i = 0; i < trace->ranks[rank].track_count; i++)
            base_free(trace->ranks[rank].tracks[i]);
    base_free(trace);
}
