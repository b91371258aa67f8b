#include "tests/unit/fake_device.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST_STREAMS = 8, MOST_WORK = 256, MOST_RANGES = 16, MOST_ENTERED = 4 };

struct event {
    uint64_t recorded, reached; // how often
};

enum kind { COPY, ZERO, RECORD, WAIT };

struct work {
    enum kind kind;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    struct event *event;
    uint64_t count; // of the event's
};

struct stream {
    bool exists;
    int number;           // of the device
    unsigned given, done; // done: begins when it is over
    struct work work[MOST_WORK];
};

// Memory of the device, at its address and where it really is; or fixed memory of the host.
struct range {
    unsigned char *memory, *there;
    size_t bytes;
    int number; // of the device
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t given, done;
    struct stream streams[MOST_STREAMS];
    struct range ranges[MOST_RANGES], pinned[MOST_RANGES];
    unsigned events;
    const char *complaint;
    uint32_t chance;
    size_t room; // of each device
} fake = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .given = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
    .chance = 1,
    .room = SIZE_MAX,
};

/* ------------------------------------------------------------------ mutex held */

static uint32_t any(uint32_t below)
{
    fake.chance = fake.chance * 1664525 + 1013904223;
    return (fake.chance >> 8) % below;
}

static void complain(const char *what)
{
    if (!fake.complaint)
        fake.complaint = what;
}

static struct range *find(struct range *ranges, const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    for (int i = 0; i < MOST_RANGES; i++)
        if (at >= (uintptr_t)ranges[i].memory && at < (uintptr_t)ranges[i].memory + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

// Where memory of the device really is; others are where they are.
static void *real(const void *memory)
{
    const struct range *range = find(fake.ranges, memory);
    if (range)
        return range->there + ((const unsigned char *)memory - range->memory);
    return (void *)(uintptr_t)memory;
}

// What this thread has entered, the last one on top.
static _Thread_local struct {
    int number[MOST_ENTERED], depth;
} entered;

static void begin(void)
{
    if (entered.depth == 0)
        complain("a thread that has not entered the device");
}

// That this thread uses; -1: none.
static int current(void)
{
    return entered.depth > 0 ? entered.number[entered.depth - 1] : -1;
}

static void give(void *stream, const struct work *work)
{
    struct stream *s = stream;
    if (s->number != current())
        complain("a stream of another device");
    while (s->given - s->done == MOST_WORK)
        pthread_cond_wait(&fake.done, &fake.mutex);
    s->work[s->given++ % MOST_WORK] = *work;
    pthread_cond_signal(&fake.given);
}

/* ------------------------------------------------------------------ its thread */

static bool can_begin(const struct stream *stream)
{
    const struct work *next = &stream->work[stream->done % MOST_WORK];
    return stream->given != stream->done &&
           (next->kind != WAIT || next->event->reached >= next->count);
}

// A stream that has something to do, any of them; NULL: none has.
static struct stream *choose(void)
{
    const unsigned first = any(MOST_STREAMS);
    for (unsigned i = 0; i < MOST_STREAMS; i++)
        if (can_begin(&fake.streams[(first + i) % MOST_STREAMS]))
            return &fake.streams[(first + i) % MOST_STREAMS];
    return NULL;
}

static void do_work(const struct work *work)
{
    const struct timespec pause = {.tv_nsec = any(4) > 0 ? 0 : (long)any(200000)};
    pthread_mutex_unlock(&fake.mutex);
    if (pause.tv_nsec > 0)
        nanosleep(&pause, NULL);
    if (work->kind == COPY)
        memcpy(work->to, work->from, work->bytes);
    else if (work->kind == ZERO)
        memset(work->to, 0, work->bytes);
    pthread_mutex_lock(&fake.mutex);
    if (work->kind == RECORD)
        work->event->reached = work->count;
}

static _Noreturn void *work_late(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&fake.mutex);
    for (;;) {
        struct stream *stream = choose();
        if (stream) {
            const struct work work = stream->work[stream->done % MOST_WORK];
            do_work(&work);
            stream->done++;
            pthread_cond_broadcast(&fake.done);
        } else {
            pthread_cond_wait(&fake.given, &fake.mutex);
        }
    }
}

// Once: it stays.
static void start(void)
{
    static bool started;
    pthread_t thread;
    if (started)
        return;
    started = true;
    if (pthread_create(&thread, NULL, work_late, NULL) != 0)
        abort();
    pthread_detach(thread);
}

/* ------------------------------------------------------------------ which one */

static zero_result fake_count(int *count, struct base_error *error)
{
    (void)error;
    *count = FAKE_DEVICES;
    return ZERO_OK;
}

static zero_result fake_enter(int number, struct base_error *error)
{
    if (number < 0 || number >= FAKE_DEVICES)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "fake %d: there are %d", number, FAKE_DEVICES);
    if (entered.depth == MOST_ENTERED)
        abort();
    entered.number[entered.depth++] = number;
    return ZERO_OK;
}

static void fake_leave(void)
{
    entered.depth--;
}

/* ------------------------------------------------------------------ memory */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

// Whether something is still to be done with these bytes, or with the event.
static bool is_needed(const void *memory, size_t bytes, const struct event *event)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        const struct stream *stream = &fake.streams[i];
        for (unsigned k = stream->done; k != stream->given; k++) {
            const struct work *work = &stream->work[k % MOST_WORK];
            if ((event && work->event == event) ||
                (memory && (overlap(memory, bytes, work->to, work->bytes) ||
                            overlap(memory, bytes, work->from, work->bytes))))
                return true;
        }
    }
    return false;
}

static struct range *add(struct range *ranges, void *memory, size_t bytes)
{
    for (int i = 0; i < MOST_RANGES; i++)
        if (!ranges[i].memory) {
            ranges[i] = (struct range){.memory = memory, .there = memory, .bytes = bytes};
            return &ranges[i];
        }
    abort();
}

// Of the device that this thread uses.
static size_t free_bytes(void)
{
    size_t used = 0;
    for (int i = 0; i < MOST_RANGES; i++)
        if (fake.ranges[i].memory && fake.ranges[i].number == current())
            used += fake.ranges[i].bytes;
    return used < fake.room ? fake.room - used : 0; // a test may have less from here on
}

static zero_result fake_memory(struct base_device_memory *memory, struct base_error *error)
{
    (void)error;
    pthread_mutex_lock(&fake.mutex);
    begin();
    *memory = (struct base_device_memory){
        .free = free_bytes(), .total = fake.room, .identity = {1, (unsigned char)current()}};
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_alloc(void **memory, size_t bytes, struct base_error *error)
{
    *memory = NULL;
    pthread_mutex_lock(&fake.mutex);
    const size_t some = bytes > 0 ? bytes : 1;
    zero_result result = ZERO_OK;
    begin();
    if (some > free_bytes())
        result = zero_fail(error, ZERO_E_NOMEM, "no %zu bytes on a fake device", some);
    if (!result) {
        void *here = mmap(NULL, some, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        unsigned char *there = malloc(some);
        if (here == MAP_FAILED || !there)
            abort();
        memset(there, 0xdd, some);
        struct range *made = add(fake.ranges, here, some);
        made->there = there;
        made->number = current();
        *memory = here;
    }
    pthread_mutex_unlock(&fake.mutex);
    return result;
}

static void fake_free(void *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&fake.mutex);
    struct range *range = find(fake.ranges, memory);
    if (!range || is_needed(range->there, range->bytes, NULL)) {
        complain("memory is freed that is still needed");
    } else {
        munmap(range->memory, range->bytes);
        free(range->there);
        *range = (struct range){.memory = NULL};
    }
    pthread_mutex_unlock(&fake.mutex);
}

static zero_result fake_pin(void *memory, size_t bytes, struct base_error *error)
{
    (void)error;
    pthread_mutex_lock(&fake.mutex);
    begin();
    add(fake.pinned, memory, bytes);
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static void fake_unpin(void *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&fake.mutex);
    struct range *range = find(fake.pinned, memory);
    if (!range || is_needed(range->memory, range->bytes, NULL))
        complain("memory is let go of that is still needed");
    else
        *range = (struct range){.memory = NULL};
    pthread_mutex_unlock(&fake.mutex);
}

/* ------------------------------------------------------------------ work */

static zero_result fake_copy(void *to, const void *from, size_t bytes, void *stream,
                             struct base_error *error)
{
    (void)error;
    pthread_mutex_lock(&fake.mutex);
    begin();
    if (!find(fake.ranges, to) == !find(fake.ranges, from))
        complain("a copy that is not between the device and the host");
    give(stream, &(struct work){.kind = COPY, .to = real(to), .from = real(from), .bytes = bytes});
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_zero(void *memory, size_t bytes, void *stream, struct base_error *error)
{
    (void)error;
    pthread_mutex_lock(&fake.mutex);
    begin();
    give(stream, &(struct work){.kind = ZERO, .to = real(memory), .bytes = bytes});
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_stream_create(void **stream, bool urgent, struct base_error *error)
{
    (void)error;
    (void)urgent; // any order is allowed
    *stream = NULL;
    pthread_mutex_lock(&fake.mutex);
    start();
    begin();
    for (int i = 0; i < MOST_STREAMS && !*stream; i++)
        if (!fake.streams[i].exists) {
            fake.streams[i].exists = true;
            fake.streams[i].number = current();
            *stream = &fake.streams[i];
        }
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_stream_sync(void *stream, struct base_error *error)
{
    (void)error;
    const struct stream *s = stream;
    pthread_mutex_lock(&fake.mutex);
    begin();
    const unsigned given = s->given;
    while ((int)(given - s->done) > 0)
        pthread_cond_wait(&fake.done, &fake.mutex);
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static void fake_stream_destroy(void *stream)
{
    struct stream *s = stream;
    if (!s)
        return;
    pthread_mutex_lock(&fake.mutex);
    if (!s->exists || s->given != s->done)
        complain("a stream is destroyed that has something to do");
    s->exists = false;
    pthread_mutex_unlock(&fake.mutex);
}

/* ------------------------------------------------------------------ events */

static zero_result fake_event_create(void **event, struct base_error *error)
{
    (void)error;
    *event = NULL;
    pthread_mutex_lock(&fake.mutex);
    begin();
    *event = calloc(1, sizeof(struct event));
    fake.events++;
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_event_record(void *event, void *stream, struct base_error *error)
{
    (void)error;
    struct event *e = event;
    pthread_mutex_lock(&fake.mutex);
    begin();
    give(stream, &(struct work){.kind = RECORD, .event = e, .count = ++e->recorded});
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_event_wait(void *event, void *stream, struct base_error *error)
{
    (void)error;
    struct event *e = event;
    pthread_mutex_lock(&fake.mutex);
    begin();
    give(stream, &(struct work){.kind = WAIT, .event = e, .count = e->recorded});
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static zero_result fake_event_query(void *event, struct base_error *error)
{
    const struct event *e = event;
    (void)error;
    pthread_mutex_lock(&fake.mutex);
    begin();
    const zero_result result = e->reached < e->recorded ? ZERO_AGAIN : ZERO_OK;
    pthread_mutex_unlock(&fake.mutex);
    return result;
}

static zero_result fake_event_sync(void *event, struct base_error *error)
{
    (void)error;
    const struct event *e = event;
    pthread_mutex_lock(&fake.mutex);
    begin();
    const uint64_t recorded = e->recorded;
    while (e->reached < recorded)
        pthread_cond_wait(&fake.done, &fake.mutex);
    pthread_mutex_unlock(&fake.mutex);
    return ZERO_OK;
}

static void fake_event_destroy(void *event)
{
    if (!event)
        return;
    pthread_mutex_lock(&fake.mutex);
    if (is_needed(NULL, 0, event)) {
        complain("an event is destroyed that is still needed");
    } else {
        free(event);
        fake.events--;
    }
    pthread_mutex_unlock(&fake.mutex);
}

const struct base_device fake_device = {
    .size = sizeof(struct base_device),
    .name = "fake",
    .count = fake_count,
    .enter = fake_enter,
    .leave = fake_leave,
    .memory = fake_memory,
    .alloc = fake_alloc,
    .free = fake_free,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .copy = fake_copy,
    .zero = fake_zero,
    .stream_create = fake_stream_create,
    .stream_sync = fake_stream_sync,
    .stream_destroy = fake_stream_destroy,
    .event_create = fake_event_create,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_query = fake_event_query,
    .event_sync = fake_event_sync,
    .event_destroy = fake_event_destroy,
};

/* ------------------------------------------------------------------ what tests ask */

void fake_device_room(size_t bytes)
{
    pthread_mutex_lock(&fake.mutex);
    fake.room = bytes;
    pthread_mutex_unlock(&fake.mutex);
}

unsigned fake_device_live(void)
{
    pthread_mutex_lock(&fake.mutex);
    unsigned live = fake.events;
    for (int i = 0; i < MOST_STREAMS; i++)
        live += fake.streams[i].exists;
    for (int i = 0; i < MOST_RANGES; i++)
        live += (fake.ranges[i].memory ? 1U : 0U) + (fake.pinned[i].memory ? 1U : 0U);
    pthread_mutex_unlock(&fake.mutex);
    return live;
}

const char *fake_device_complaint(void)
{
    pthread_mutex_lock(&fake.mutex);
    const char *complaint = fake.complaint;
    pthread_mutex_unlock(&fake.mutex);
    return complaint;
}
