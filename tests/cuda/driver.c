#include "tests/cuda/driver_inner.h"
#include "tests/cuda/on_host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cuda.h>

enum {
    MOST_ENTERED = 8,
    PAGE = 4096,
    ALIGNED = 256, // memory, as NVIDIA's is at least
    LEAST_PRIORITY = 0,
    GREATEST_PRIORITY = -5,
};

struct driver driver = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .chance = 1,
};

static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;
static char contexts[CUDA_DRIVER_GPUS];

static _Thread_local struct {
    CUcontext context[MOST_ENTERED];
    int depth;
} current;

/* ------------------------------------------------------------------ mutex held */

static void complain(const char *what)
{
    if (!driver.complaint)
        driver.complaint = what;
}

static void count_wait(const char *function)
{
    driver.waits++;
    driver.waited = function;
}

static uint32_t any(uint32_t below)
{
    driver.chance = driver.chance * 1664525 + 1013904223;
    return (driver.chance >> 8) % below;
}

static size_t up_to(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

// The pages of a GPU's memory, at whose end it lies as far as ALIGNED allows; behind them there is
// one that stays closed.
static size_t pages_of(const struct memory *memory, void **pages)
{
    const size_t used = up_to(memory->bytes, ALIGNED), bytes = up_to(used, PAGE);
    *pages = (char *)memory->address + used - bytes;
    return bytes;
}

static void open_memory(bool open)
{
    for (int i = 0; i < MOST_MEMORIES; i++) {
        void *pages;
        if (!driver.memories[i].address)
            continue;
        const size_t bytes = pages_of(&driver.memories[i], &pages);
        if (mprotect(pages, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            abort();
    }
}

static bool is_reached(const struct event *event, uint64_t count)
{
    return count == 0 || event->reached[count % MOST_RECORDS] >= count;
}

// The GPU that this thread has entered; -1: none.
static int entered(void)
{
    return current.depth > 0 ? (int)((char *)current.context[current.depth - 1] - contexts) : -1;
}

static bool is_idle(const struct stream *stream)
{
    return stream->given == stream->done;
}

static void wait_for_change(void)
{
    driver.waiting++;
    pthread_cond_wait(&driver.changed, &driver.mutex);
    driver.waiting--;
}

static bool waits_in_vain(const struct stream *stream)
{
    const struct work *next = &stream->work[stream->done % MOST_WORK];
    return is_idle(stream) || (next->kind == WAIT && !is_reached(next->event, next->count));
}

// An event is reached.
static void wake_streams(const struct event *event)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        struct stream *stream = driver.streams[i];
        if (stream && !is_idle(stream) && stream->work[stream->done % MOST_WORK].event == event)
            pthread_cond_signal(&stream->more);
    }
}

/* ------------------------------------------------------------------ a stream's thread */

static void do_work(const struct work *work)
{
    switch (work->kind) {
    case COPY:
        memcpy(work->to, work->from, work->bytes);
        break;
    case SET:
        memset(work->to, work->value, work->bytes);
        break;
    case KERNEL:
        pthread_mutex_lock(&one_kernel);
        work->kernel->run(work->blocks, work->argument);
        pthread_mutex_unlock(&one_kernel);
        free(work->argument);
        break;
    case CALL:
        work->call(work->user);
        break;
    default:
        break;
    }
}

// With the mutex held before and afterwards.
static void do_late(const struct work *work, int gpu)
{
    const long late = any(4) > 0 ? 0 : (long)any(200000);
    const long slow = work->kind == COPY ? (long)(work->bytes >> 20) * driver.slow[gpu] : 0;
    const long pause_us = slow + late / 1000;
    const struct timespec pause = {.tv_sec = pause_us / 1000000,
                                   .tv_nsec = pause_us % 1000000 * 1000};
    if (driver.working++ == 0)
        open_memory(true);
    pthread_mutex_unlock(&driver.mutex);
    if (pause.tv_sec > 0 || pause.tv_nsec > 0)
        nanosleep(&pause, NULL);
    do_work(work);
    pthread_mutex_lock(&driver.mutex);
    if (--driver.working == 0)
        open_memory(false);
}

static void *serve(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&driver.mutex);
    while (!stream->ends || !is_idle(stream)) {
        if (waits_in_vain(stream)) {
            pthread_cond_wait(&stream->more, &driver.mutex);
            continue;
        }
        const struct work work = stream->work[stream->done % MOST_WORK];
        if (work.kind != WAIT)
            do_late(&work, stream->gpu);
        if (work.kind == RECORD) {
            work.event->reached[work.count % MOST_RECORDS] = work.count;
            wake_streams(work.event);
        }
        stream->done++;
        stream->calls -= work.behind;
        if (driver.waiting > 0)
            pthread_cond_broadcast(&driver.changed);
    }
    pthread_mutex_unlock(&driver.mutex);
    return NULL;
}

/* ------------------------------------------------------------------ calls */

// What a function returns that could do what it is for.
static CUresult outcome(const char *function)
{
    pthread_mutex_lock(&driver.mutex);
    const bool passes = !driver.jams_entering && strcmp(function, "cuCtxPushCurrent") == 0;
    while (driver.jammed && !passes && !pthread_equal(driver.jammer, pthread_self()))
        wait_for_change();
    const bool meant = driver.failing && strcmp(function, driver.failing) == 0;
    const bool fails = meant && driver.spared == 0;
    if (fails)
        driver.failing = NULL;
    else if (meant)
        driver.spared--;
    const CUresult status = fails ? driver.status : CUDA_SUCCESS;
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

CUresult driver_in_context(const char *function)
{
    return current.depth > 0 ? outcome(function) : CUDA_ERROR_INVALID_CONTEXT;
}

void driver_count_modules(unsigned change)
{
    pthread_mutex_lock(&driver.mutex);
    driver.modules += change;
    pthread_mutex_unlock(&driver.mutex);
}

// NVIDIA's takes any number of records and waits, and of calls that have nothing between them.
static bool has_room(const struct stream *stream, const struct work *work)
{
    return stream->given - stream->done < MOST_WORK &&
           (!work->behind || stream->calls < MOST_CALLS);
}

// With the mutex held.
static void put(struct stream *stream, struct work work)
{
    work.behind = work.kind == CALL && stream->worked;
    while (!has_room(stream, &work))
        wait_for_change();
    stream->work[stream->given++ % MOST_WORK] = work;
    stream->calls += work.behind;
    if (work.kind != RECORD && work.kind != WAIT)
        stream->worked = work.kind != CALL;
    pthread_cond_signal(&stream->more);
}

CUresult driver_give(const char *function, CUstream handle, const struct work *work)
{
    struct stream *stream = (struct stream *)(void *)handle;
    if (!stream || stream->gpu != entered())
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult status = driver_in_context(function);
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&driver.mutex);
    put(stream, *work);
    pthread_mutex_unlock(&driver.mutex);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuInit(unsigned flags)
{
    (void)flags;
    return outcome("cuInit");
}

EXPORTED CUresult cuGetErrorName(CUresult status, const char **name)
{
    *name = status == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGetErrorString(CUresult status, const char **text)
{
    *text = status == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "not real";
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int *count)
{
    const char *number = getenv(CUDA_DRIVER_GPUS_VARIABLE);
    *count = number ? atoi(number) : CUDA_DRIVER_GPUS;
    return outcome("cuDeviceGetCount");
}

EXPORTED CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = number;
    return outcome("cuDeviceGet");
}

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(void *)&contexts[device];
    return outcome("cuDevicePrimaryCtxRetain");
}

EXPORTED CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return device < CUDA_DRIVER_GPUS ? outcome("cuDevicePrimaryCtxReset")
                                     : CUDA_ERROR_INVALID_DEVICE;
}

EXPORTED CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice device)
{
    *id = (CUuuid){.bytes = {'G', 'P', 'U', '-', (char)('0' + device)}};
    return outcome("cuDeviceGetUuid");
}

EXPORTED CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = entered();
    return driver_in_context("cuCtxGetDevice");
}

EXPORTED CUresult cuCtxPushCurrent(CUcontext context)
{
    const CUresult status = outcome("cuCtxPushCurrent");
    if (status == CUDA_SUCCESS && current.depth == MOST_ENTERED)
        abort();
    if (status == CUDA_SUCCESS)
        current.context[current.depth++] = context;
    return status;
}

EXPORTED CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (current.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current.context[--current.depth];
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = LEAST_PRIORITY;
    *greatest = GREATEST_PRIORITY;
    return driver_in_context("cuCtxGetStreamPriorityRange");
}

/* ------------------------------------------------------------------ memory */

static struct memory make_memory(size_t bytes, int gpu)
{
    const size_t used = up_to(bytes, ALIGNED), pages = up_to(used, PAGE);
    char *made =
        mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || mprotect(made + pages, PAGE, PROT_NONE) != 0)
        abort();
    memset(made, 0xdd, pages);
    return (struct memory){made + pages - used, bytes, gpu};
}

void driver_keep(void)
{
    pthread_mutex_lock(&driver.mutex);
    driver.loaded[entered()] = true;
    pthread_mutex_unlock(&driver.mutex);
}

size_t driver_room(int gpu)
{
    return driver.room[gpu] > 0 ? driver.room[gpu] : CUDA_DRIVER_ROOM;
}

size_t driver_free(int gpu)
{
    const size_t room = driver_room(gpu), kept = driver.loaded[gpu] ? driver.keeps : 0;
    size_t bytes = kept < room ? room - kept : 0;
    for (int i = 0; i < MOST_MEMORIES; i++)
        if (driver.memories[i].gpu == gpu)
            bytes -= driver.memories[i].bytes < bytes ? driver.memories[i].bytes : bytes;
    return bytes;
}

EXPORTED CUresult cuMemGetInfo(size_t *free, size_t *all)
{
    const CUresult status = driver_in_context("cuMemGetInfo");
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&driver.mutex);
    *all = driver_room(entered());
    *free = driver_free(entered());
    pthread_mutex_unlock(&driver.mutex);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    *memory = 0;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult status = driver_in_context("cuMemAlloc");
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&driver.mutex);
    int i = 0;
    count_wait("cuMemAlloc");
    if (bytes > driver_free(entered())) {
        pthread_mutex_unlock(&driver.mutex);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    while (i < MOST_MEMORIES && driver.memories[i].address)
        i++;
    if (i == MOST_MEMORIES)
        abort();
    driver.memories[i] = make_memory(bytes, entered());
    *memory = (CUdeviceptr)(uintptr_t)driver.memories[i].address;
    open_memory(driver.working > 0);
    pthread_mutex_unlock(&driver.mutex);
    return CUDA_SUCCESS;
}

// Whether copies from or to it are not done yet; what kernels need is not known.
static bool is_copied(const struct memory *memory)
{
    const uintptr_t begin = (uintptr_t)memory->address, end = begin + memory->bytes;
    for (int i = 0; i < MOST_STREAMS; i++) {
        const struct stream *stream = driver.streams[i];
        for (unsigned k = stream ? stream->done : 0; stream && k != stream->given; k++) {
            const struct work *work = &stream->work[k % MOST_WORK];
            const uintptr_t to = (uintptr_t)work->to, from = (uintptr_t)work->from;
            if ((work->kind == COPY || work->kind == SET) &&
                ((to >= begin && to < end) || (from >= begin && from < end)))
                return true;
        }
    }
    return false;
}

// With everything else waiting, too.
static void wait_for_streams(void)
{
    driver.jammed = true;
    driver.jammer = pthread_self();
    for (int i = 0; i < MOST_STREAMS; i++)
        while (driver.streams[i] && !is_idle(driver.streams[i]))
            wait_for_change();
    driver.jammed = false;
    pthread_cond_broadcast(&driver.changed);
}

EXPORTED CUresult cuMemFree(CUdeviceptr address)
{
    void *memory = (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver.mutex);
    count_wait("cuMemFree");
    if (driver.jams)
        wait_for_streams();
    for (int i = 0; i < MOST_MEMORIES; i++)
        if (driver.memories[i].address == memory) {
            if (is_copied(&driver.memories[i]))
                complain("memory is freed that is still needed");
            void *pages;
            const size_t bytes = pages_of(&driver.memories[i], &pages);
            munmap(pages, bytes + PAGE);
            driver.memories[i] = (struct memory){.address = NULL};
            status = CUDA_SUCCESS;
        }
    if (status != CUDA_SUCCESS)
        complain("something is freed that is no memory of a GPU");
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

// The memory that is pinned at this address, or has a page of this one; NULL: none is.
static struct memory *find_pinned(const void *address, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)address / PAGE,
                    end = up_to((uintptr_t)address + bytes, PAGE) / PAGE;
    for (int i = 0; i < MOST_PINNED; i++) {
        struct memory *pinned = &driver.pinned[i];
        const uintptr_t first = (uintptr_t)pinned->address;
        if (pinned->address && first / PAGE < end &&
            up_to(first + pinned->bytes, PAGE) / PAGE > begin)
            return pinned;
    }
    return NULL;
}

EXPORTED CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    CUresult status =
        memory && bytes > 0 ? driver_in_context("cuMemHostRegister") : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&driver.mutex);
    if (find_pinned(memory, bytes))
        status = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    int i = 0;
    while (i < MOST_PINNED && driver.pinned[i].address)
        i++;
    if (i == MOST_PINNED)
        abort();
    if (status == CUDA_SUCCESS)
        driver.pinned[i] = (struct memory){memory, bytes, -1};
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

EXPORTED CUresult cuMemHostUnregister(void *memory)
{
    CUresult status = memory ? driver_in_context("cuMemHostUnregister") : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&driver.mutex);
    struct memory *pinned = find_pinned(memory, 1);
    if (!pinned || pinned->address != memory) {
        complain("memory is unpinned that is not pinned");
        status = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    } else {
        if (is_copied(pinned))
            complain("memory is unpinned that is still needed");
        *pinned = (struct memory){.address = NULL};
    }
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

// Whether all these bytes are in one of some memories.
static bool is_in(const struct memory *memories, int count, CUdeviceptr address, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        const CUdeviceptr first = (uintptr_t)memories[i].address;
        if (first && address >= first && address + bytes <= first + memories[i].bytes)
            return true;
    }
    return false;
}

static bool is_of_a_gpu(CUdeviceptr address)
{
    return is_in(driver.memories, MOST_MEMORIES, address, 1);
}

// Whether a GPU reaches it by itself: it is its own, or pinned.
static bool can_reach(CUdeviceptr address, size_t bytes)
{
    return is_in(driver.memories, MOST_MEMORIES, address, bytes) ||
           is_in(driver.pinned, MOST_PINNED, address, bytes);
}

// Bytes of a copy between a GPU and the host.
static void count_copied(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const bool there = is_of_a_gpu(to), comes = is_of_a_gpu(from);
    driver.up += there && !comes ? bytes : 0;
    driver.down += comes && !there ? bytes : 0;
}

// Whether it is pinned in part, as NVIDIA's driver has no copy.
static bool is_torn(CUdeviceptr address, size_t bytes)
{
    for (int i = 0; i < MOST_PINNED; i++) {
        const CUdeviceptr first = (uintptr_t)driver.pinned[i].address;
        const CUdeviceptr end = first + driver.pinned[i].bytes;
        if (address < end && address + bytes > first && (address < first || address + bytes > end))
            return true;
    }
    return false;
}

EXPORTED CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    pthread_mutex_lock(&driver.mutex);
    if (is_torn(to, bytes) || is_torn(from, bytes))
        complain("a copy goes beyond memory that is pinned");
    if (!can_reach(to, bytes) || !can_reach(from, bytes))
        count_wait("cuMemcpyAsync of memory that is not pinned");
    count_copied(to, from, bytes);
    pthread_mutex_unlock(&driver.mutex);
    const struct work copy = {
        .kind = COPY,
        .to = (void *)(uintptr_t)to,     // NOLINT(performance-no-int-to-ptr)
        .from = (void *)(uintptr_t)from, // NOLINT(performance-no-int-to-ptr)
        .bytes = bytes,
    };
    return driver_give("cuMemcpyAsync", stream, &copy);
}

EXPORTED CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes,
                                  CUstream stream)
{
    const struct work set = {
        .kind = SET,
        .to = (void *)(uintptr_t)memory, // NOLINT(performance-no-int-to-ptr)
        .value = value,
        .bytes = bytes,
    };
    return driver_give("cuMemsetD8Async", stream, &set);
}

/* ------------------------------------------------------------------ streams */

EXPORTED CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority)
{
    *handle = NULL;
    if (flags != CU_STREAM_NON_BLOCKING ||
        (priority != LEAST_PRIORITY && priority != GREATEST_PRIORITY))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult status = driver_in_context("cuStreamCreateWithPriority");
    if (status != CUDA_SUCCESS)
        return status;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream || pthread_cond_init(&stream->more, NULL) != 0)
        abort();
    pthread_mutex_lock(&driver.mutex);
    int i = 0;
    while (i < MOST_STREAMS && driver.streams[i])
        i++;
    if (i == MOST_STREAMS)
        abort();
    stream->gpu = entered();
    driver.streams[i] = stream;
    pthread_mutex_unlock(&driver.mutex);
    if (pthread_create(&stream->thread, NULL, serve, stream) != 0)
        abort();
    *handle = (CUstream)(void *)stream;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamSynchronize(CUstream handle)
{
    const struct stream *stream = (struct stream *)(void *)handle;
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult status = driver_in_context("cuStreamSynchronize");
    pthread_mutex_lock(&driver.mutex);
    count_wait("cuStreamSynchronize");
    const unsigned given = stream->given;
    while (status == CUDA_SUCCESS && (int)(given - stream->done) > 0)
        wait_for_change();
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

EXPORTED CUresult cuStreamDestroy(CUstream handle)
{
    struct stream *stream = (struct stream *)(void *)handle;
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver.mutex);
    if (!is_idle(stream))
        complain("a stream is destroyed that has something to do");
    stream->ends = true;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&driver.mutex);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&driver.mutex);
    for (int i = 0; i < MOST_STREAMS; i++)
        if (driver.streams[i] == stream)
            driver.streams[i] = NULL;
    pthread_mutex_unlock(&driver.mutex);
    pthread_cond_destroy(&stream->more);
    free(stream);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user)
{
    const struct work call = {.kind = CALL, .call = function, .user = user};
    return function ? driver_give("cuLaunchHostFunc", stream, &call) : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------ events */

EXPORTED CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    *event = NULL;
    if (flags != CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult status = driver_in_context("cuEventCreate");
    if (status != CUDA_SUCCESS)
        return status;
    *event = (CUevent)calloc(1, sizeof(struct event));
    pthread_mutex_lock(&driver.mutex);
    driver.events++;
    pthread_mutex_unlock(&driver.mutex);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    struct event *event = (struct event *)(void *)handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver.mutex);
    const uint64_t count = ++event->recorded;
    pthread_mutex_unlock(&driver.mutex);
    const struct work record = {.kind = RECORD, .event = event, .count = count};
    const CUresult status = driver_give("cuEventRecord", stream, &record);
    pthread_mutex_lock(&driver.mutex);
    if (status != CUDA_SUCCESS)
        event->recorded--;
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

EXPORTED CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags)
{
    struct event *event = (struct event *)(void *)handle;
    if (!event || flags != CU_EVENT_WAIT_DEFAULT)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver.mutex);
    const struct work wait = {.kind = WAIT, .event = event, .count = event->recorded};
    pthread_mutex_unlock(&driver.mutex);
    return driver_give("cuStreamWaitEvent", stream, &wait);
}

EXPORTED CUresult cuEventQuery(CUevent handle)
{
    const struct event *event = (struct event *)(void *)handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult status = driver_in_context("cuEventQuery");
    pthread_mutex_lock(&driver.mutex);
    const bool reached = is_reached(event, event->recorded);
    pthread_mutex_unlock(&driver.mutex);
    return status != CUDA_SUCCESS || reached ? status : CUDA_ERROR_NOT_READY;
}

EXPORTED CUresult cuEventSynchronize(CUevent handle)
{
    const struct event *event = (struct event *)(void *)handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult status = driver_in_context("cuEventSynchronize");
    pthread_mutex_lock(&driver.mutex);
    count_wait("cuEventSynchronize");
    const uint64_t recorded = event->recorded;
    while (status == CUDA_SUCCESS && !is_reached(event, recorded))
        wait_for_change();
    pthread_mutex_unlock(&driver.mutex);
    return status;
}

EXPORTED CUresult cuEventDestroy(CUevent handle)
{
    struct event *event = (struct event *)(void *)handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver.mutex);
    for (int i = 0; i < MOST_STREAMS; i++) {
        const struct stream *stream = driver.streams[i];
        for (unsigned k = stream ? stream->done : 0; stream && k != stream->given; k++)
            if (stream->work[k % MOST_WORK].event == event)
                complain("an event is destroyed that is still needed");
    }
    driver.events--;
    pthread_mutex_unlock(&driver.mutex);
    free(event);
    return CUDA_SUCCESS;
}
