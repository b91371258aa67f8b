// What becomes of requests: transfers that are handed to the engine, and their completions.

#include "offload/io/io_parts.h"

#include "base/clock.h"
#include "base/fault.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

enum {
    PATIENCE = 100, // repetitions of what comes to nothing, at least,
    HASTY = 8,      // and those of them without a pause
    AT_ONCE = 64,   // completions
};

// And so long it is repeated.
#define PATIENCE_NS UINT64_C(1000000000)

// What the engine could not begin it is asked for again after so long, or when something comes
// back.
#define ASK_AGAIN_NS UINT64_C(1000000)

static void append(struct off_io_list *list, struct off_request *request)
{
    assert(!list->first == !list->last && (!list->last || !list->last->next));
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

static struct off_request *take_first(struct off_io_list *list)
{
    assert(!list->first == !list->last);
    struct off_request *request = list->first;
    if (request && !(list->first = request->next))
        list->last = NULL;
    return request;
}

/* ------------------------------------------------------------------ handing out */

// The range that the memory lies in; range_count: in none.
static unsigned range_of(const struct off_io *io, const void *memory, size_t bytes)
{
    unsigned i = 0;
    for (; i < io->range_count; i++) {
        const size_t from = (uintptr_t)memory - (uintptr_t)io->ranges[i].memory;
        if ((uintptr_t)memory >= (uintptr_t)io->ranges[i].memory && from <= io->ranges[i].bytes &&
            bytes <= io->ranges[i].bytes - from)
            break;
    }
    return i;
}

zero_result off_io_submit(struct off_io *io, struct off_request *request, struct base_error *error)
{
    assert(request->direction == OFF_READ || request->direction == OFF_WRITE);
    if (request->file < 0 || request->file >= io->file_count)
        return zero_fail(error, ZERO_E_INVALID, "%s: no file %d", request->what, request->file);
    const struct off_io_file *file = &io->files[request->file];
    if (request->bytes == 0 || request->bytes % file->unit != 0 ||
        request->offset % file->unit != 0 || (uintptr_t)request->memory % file->unit != 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: %s: %zu bytes at %p, offset %ju: not all multiples of %zu",
                         file->path, request->what, request->bytes, request->memory,
                         (uintmax_t)request->offset, file->unit);
    if (range_of(io, request->memory, request->bytes) == io->range_count)
        return zero_fail(error, ZERO_E_INVALID, "%s: %s: %zu bytes at %p are in no range of memory",
                         file->path, request->what, request->bytes, request->memory);
    request->result = ZERO_OK;
    base_error_clear(&request->error);
    request->handed = 0;
    request->under_way = 0;
    append(&io->waiting[request->direction], request);
    io->pending++;
    io->uncommitted = true;
    return ZERO_OK;
}

static void hand_to_engine(struct off_io *io, unsigned number)
{
    assert(number < io->depth && io->parts[number].request);
    assert(io->parts[number].transfer.bytes > 0);
    io->use.engine->submit(io->state, number, &io->parts[number].transfer);
    io->uncommitted = true;
}

// Cuts the next transfer off a request. At multiples of its size within a range, so that none
// lies in two of the pieces that an engine may have to cut a range into, or in two huge pages.
static void hand_out(struct off_io *io, struct off_request *request)
{
    assert(io->spare_count > 0 && request->handed < request->bytes);
    const unsigned number = io->spare[--io->spare_count];
    struct off_io_part *part = &io->parts[number];
    unsigned char *memory = (unsigned char *)request->memory + request->handed;
    const unsigned range = range_of(io, request->memory, request->bytes);
    const size_t inside = (size_t)(memory - (unsigned char *)io->ranges[range].memory);
    const size_t most = io->transfer_bytes - inside % io->transfer_bytes;
    assert(range < io->range_count && most > 0);
    const size_t left = request->bytes - request->handed;
    *part = (struct off_io_part){
        .request = request,
        .transfer = {.direction = request->direction,
                     .file = request->file,
                     .fd = io->files[request->file].fd,
                     .memory = memory,
                     .bytes = left < most ? left : most,
                     .offset = request->offset + request->handed,
                     .range = range},
        .number = io->handed++,
    };
    request->handed += part->transfer.bytes;
    request->under_way++;
    io->under_way[request->direction]++;
    assert(request->handed <= request->bytes);
    hand_to_engine(io, number);
}

static void fail(struct off_request *request, const struct base_error *failure)
{
    assert(failure->result != ZERO_OK);
    if (request->result == ZERO_OK) {
        request->result = failure->result;
        request->error = *failure;
    }
}

// Whether a direction may hand out another part: of its own credits, or of those that the other one
// has no use for.
static bool has_credit(const struct off_io *io, enum off_direction direction)
{
    const enum off_direction other = direction == OFF_READ ? OFF_WRITE : OFF_READ;
    return io->spare_count > 0 &&
           (io->under_way[direction] < io->credits[direction] || io->waiting[other].first == NULL);
}

// Hands out what there are credits for; of a request that has failed, nothing more.
static void feed(struct off_io *io, enum off_direction direction)
{
    struct off_io_list *waiting = &io->waiting[direction];
    while (waiting->first && has_credit(io, direction)) {
        struct off_request *request = waiting->first;
        struct base_error error = {.result = ZERO_OK};
        const int errnum = base_fault("offload.submit");
        if (errnum != 0) {
            zero_fail_errno(&error, ZERO_E_IO, errnum, "%s: %s: handing over offset %ju",
                            io->files[request->file].path, request->what,
                            (uintmax_t)(request->offset + request->handed));
            fail(request, &error);
        }
        if (request->result == ZERO_OK)
            hand_out(io, request);
        if (request->result == ZERO_OK && request->handed < request->bytes)
            continue;
        take_first(waiting);
        request->handed = request->bytes;
        if (request->under_way == 0)
            append(&io->done, request);
    }
}

static const char *verb(enum off_direction direction)
{
    return direction == OFF_READ ? "reading" : "writing";
}

// The part that was handed out before all others; NULL: there is none.
static const struct off_io_part *oldest(const struct off_io *io)
{
    const struct off_io_part *found = NULL;
    for (unsigned i = 0; i < io->depth; i++)
        if (io->parts[i].request && (!found || io->parts[i].number < found->number))
            found = &io->parts[i];
    return found;
}

// Whether what has come to nothing once more goes again.
static bool has_patience(struct off_io_patience *patience)
{
    const uint64_t now = base_clock_ns();
    if (patience->fruitless++ == 0)
        patience->since = now;
    return patience->fruitless <= PATIENCE || now - patience->since <= PATIENCE_NS;
}

// The engine moves nothing any more: everything comes back with its failure.
static zero_result break_down(struct off_io *io, const struct base_error *failure,
                              struct base_error *error)
{
    assert(failure->result != ZERO_OK && failure->result != ZERO_AGAIN);
    io->broken = *failure;
    for (unsigned number = 0; number < io->depth; number++) {
        struct off_request *request = io->parts[number].request;
        if (!request)
            continue;
        io->parts[number].request = NULL;
        fail(request, failure);
        if (--request->under_way == 0 && request->handed == request->bytes)
            append(&io->done, request);
    }
    for (int d = 0; d < OFF_DIRECTIONS; d++)
        for (struct off_request *request; (request = take_first(&io->waiting[d]));) {
            fail(request, failure);
            append(&io->done, request);
        }
    return zero_fail(error, failure->result, "%s", failure->message);
}

// What an engine says when it was to begin something: if not all of it has begun it is asked again,
// as long as that is not in vain.
static zero_result judge(struct off_io *io, zero_result result, const struct base_error *failure,
                         struct base_error *error)
{
    struct base_error in_vain = {.result = ZERO_OK};
    struct off_io_patience *patience = &io->beginning;
    char text[128];
    if (result != ZERO_AGAIN)
        return result ? break_down(io, failure, error) : ZERO_OK;
    if (has_patience(patience)) {
        io->uncommitted = true;
        io->counts.put_off++;
        return ZERO_OK;
    }
    const struct off_io_part *part = oldest(io);
    zero_fail(&in_vain, ZERO_E_IO, "%s: %s: %s, %u times in %.1f s",
              part ? io->files[part->transfer.file].path : "", off_io_oldest(io, text, sizeof text),
              failure->message, patience->fruitless,
              (double)(base_clock_ns() - patience->since) * 1e-9);
    return break_down(io, &in_vain, error);
}

zero_result off_io_commit(struct off_io *io, struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK};
    if (io->broken.result)
        return break_down(io, &io->broken, error);
    feed(io, OFF_READ);
    feed(io, OFF_WRITE);
    feed(io, OFF_READ); // with what writes have left
    if (!io->uncommitted)
        return ZERO_OK;
    io->uncommitted = false;
    io->counts.commits++;
    const zero_result result = io->use.engine->commit(io->state, &failure);
    if (!result)
        io->beginning.fruitless = 0;
    return judge(io, result, &failure, error);
}

/* ------------------------------------------------------------------ what comes back */

// A part is done, or given up.
static void put_back(struct off_io *io, unsigned number)
{
    struct off_request *request = io->parts[number].request;
    assert(request && request->under_way > 0 && io->under_way[request->direction] > 0);
    assert(io->spare_count < io->depth);
    io->parts[number].request = NULL;
    io->spare[io->spare_count++] = number;
    io->under_way[request->direction]--;
    if (--request->under_way == 0 && request->handed == request->bytes)
        append(&io->done, request);
}

static void give_up(struct off_io *io, unsigned number, zero_result result, int errnum,
                    const char *why)
{
    const struct off_io_part *part = &io->parts[number];
    const struct off_transfer *transfer = &part->transfer;
    struct base_error failure = {.result = ZERO_OK};
    const char *path = io->files[transfer->file].path, *what = part->request->what;
    const uintmax_t offset = transfer->offset;
    if (errnum != 0)
        zero_fail_errno(&failure, result, errnum, "%s: %s: %s %zu bytes at offset %ju", path, what,
                        verb(transfer->direction), transfer->bytes, offset);
    else
        zero_fail(&failure, result, "%s: %s: %s %zu bytes at offset %ju: %s", path, what,
                  verb(transfer->direction), transfer->bytes, offset, why);
    fail(part->request, &failure);
    put_back(io, number);
}

// One pause for all transfers that have been repeated in haste, so that none waits for the others'.
static void take_breath(struct off_io *io)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    if (io->hurried)
        nanosleep(&pause, NULL);
    io->hurried = false;
}

// Goes on behind what was moved, at the last multiple of the unit.
static void go_on(struct off_io *io, unsigned number, size_t moved)
{
    struct off_io_part *part = &io->parts[number];
    const size_t unit = io->files[part->transfer.file].unit;
    const size_t whole = moved / unit * unit;
    assert(whole < part->transfer.bytes);
    if (whole > 0)
        part->patience.fruitless = 0;
    part->transfer.memory = (unsigned char *)part->transfer.memory + whole;
    part->transfer.offset += whole;
    part->transfer.bytes -= whole;
    io->counts.bytes[part->transfer.direction] += whole;
    hand_to_engine(io, number);
}

// What tests make of a completion.
static int with_faults(const struct off_io *io, const struct off_io_part *part, int result)
{
    if (result < 0)
        return result;
    const bool reads = part->transfer.direction == OFF_READ;
    const int errnum = base_fault(reads ? "offload.read" : "offload.write");
    if (errnum != 0)
        return -errnum;
    const size_t unit = io->files[part->transfer.file].unit;
    if ((size_t)result > unit && base_fault("offload.short") != 0)
        return (int)((size_t)result / 2);
    return result;
}

static void complete(struct off_io *io, struct off_completion completion)
{
    const unsigned number = completion.number;
    struct off_io_part *part = &io->parts[number];
    assert(number < io->depth && part->request);
    const enum off_direction direction = part->transfer.direction;
    const int result = with_faults(io, part, completion.result);
    const size_t unit = io->files[part->transfer.file].unit;
    if (result < 0 && result != -EAGAIN && result != -EINTR) {
        give_up(io, number, ZERO_E_IO, -result, NULL);
    } else if (result >= 0 && (size_t)result < unit && direction == OFF_READ) {
        give_up(io, number, ZERO_E_CORRUPT, 0, "the file ends before");
    } else if (result > 0 && (size_t)result >= part->transfer.bytes) {
        io->counts.bytes[direction] += part->transfer.bytes;
        io->counts.transfers[direction]++;
        put_back(io, number);
    } else if (!has_patience(&part->patience)) {
        give_up(io, number, ZERO_E_IO, result < 0 ? -result : 0, "nothing is moved any more");
    } else {
        if (result < 0)
            io->counts.repeated++;
        else
            io->counts.shortened++;
        io->hurried |= part->patience.fruitless > HASTY;
        go_on(io, number, result < 0 ? 0 : (size_t)result);
    }
}

static bool is_idle(const struct off_io *io)
{
    assert(io->spare_count <= io->depth);
    return io->spare_count == io->depth;
}

// Until when the engine may wait.
static uint64_t end_of_wait(const struct off_io *io, uint64_t deadline_ns)
{
    const uint64_t soon = io->uncommitted ? base_clock_ns() + ASK_AGAIN_NS : UINT64_MAX;
    return deadline_ns < soon ? deadline_ns : soon;
}

// Takes completions, and hands out what they make room for; whether there is more to be had.
static bool reap(struct off_io *io, uint64_t deadline_ns)
{
    struct off_completion done[AT_ONCE];
    struct base_error failure = {.result = ZERO_OK};
    size_t count = 0;
    if (off_io_commit(io, NULL) || is_idle(io))
        return io->done.first != NULL;
    const zero_result result = io->use.engine->reap(io->state, end_of_wait(io, deadline_ns), done,
                                                    AT_ONCE, &count, &failure);
    for (size_t i = 0; i < count; i++)
        complete(io, done[i]);
    if (count > 0)
        io->beginning.fruitless = 0;
    if (judge(io, result, &failure, NULL))
        return true;
    take_breath(io);
    if (count > 0)
        off_io_commit(io, NULL);
    // If it did not say ZERO_AGAIN: then it was woken, too.
    return count > 0 || (!result && io->uncommitted && deadline_ns > 0);
}

zero_result off_io_wait(struct off_io *io, uint64_t deadline_ns, struct off_request **done)
{
    // An engine may take its time for each part, and a request have many.
    while (!io->done.first && reap(io, deadline_ns))
        if (deadline_ns > 0 && base_clock_ns() >= deadline_ns)
            break;
    *done = take_first(&io->done);
    if (!*done)
        return ZERO_AGAIN;
    assert(io->pending > 0);
    io->pending--;
    return ZERO_OK;
}

void off_io_wake(struct off_io *io)
{
    io->use.engine->wake(io->state);
}

size_t off_io_pending(const struct off_io *io)
{
    return io->pending;
}

const char *off_io_oldest(const struct off_io *io, char *text, size_t size)
{
    const struct off_io_part *part = oldest(io);
    if (part)
        snprintf(text, size, "%s: %s %zu bytes at offset %ju", part->request->what,
                 verb(part->transfer.direction), part->transfer.bytes,
                 (uintmax_t)part->transfer.offset);
    else
        snprintf(text, size, "nothing");
    return text;
}
