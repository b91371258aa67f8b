#include "tests/cuda/nccl_double.h"

#include "tests/cuda/driver.h"
#include "tests/cuda/nccl_inner.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))
#define TEXT(name) #name
#define NAME(name) TEXT(name) // of what <cuda.h> makes of it

static const struct nccl_faults no_faults = {
    .polls = 2, .status = ncclRemoteError, .rank = -1, .version = NCCL_VERSION_CODE};

static struct {
    pthread_mutex_t mutex;
    pthread_once_t once;
    struct ncclComm *comms;
    struct nccl_faults faults;
    char complaint[NCCL_COMPLAINT_BYTES], last[NCCL_COMPLAINT_BYTES];
    struct nccl_driver driver;
    bool has_driver;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static _Thread_local char asked[2][NCCL_COMPLAINT_BYTES];
static _Thread_local char this_thread;

/* ------------------------------------------------------------------ what tests say and ask */

EXPORTED void nccl_double_inject(const char *settings);
EXPORTED const char *nccl_double_complaint(void);
EXPORTED unsigned nccl_double_live(void);

static bool set(struct nccl_faults *faults, const char *setting, size_t bytes)
{
    char name[16];
    int value, used = 0;
    if (sscanf(setting, "%15[a-z]=%d%n", name, &value, &used) != 2 || (size_t)used != bytes)
        return false;
    const struct {
        const char *name;
        unsigned *to;
    } numbers[] = {
        {"polls", &faults->polls},  {"delay", &faults->delay_us}, {"error", &faults->error},
        {"never", &faults->never},  {"status", &faults->status},  {"register", &faults->registers},
        {"ends", &faults->ends_ms}, {"ending", &faults->ending},
    };
    if (strcmp(name, "rank") == 0 || strcmp(name, "version") == 0) {
        *(name[0] == 'r' ? &faults->rank : &faults->version) = value;
        return true;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].to = (unsigned)value;
            return true;
        }
    return false;
}

static void inject(const char *settings)
{
    struct nccl_faults faults = no_faults;
    for (const char *at = settings; *at;) {
        const size_t bytes = strcspn(at, ",");
        if (!set(&faults, at, bytes))
            nccl_refuse(NULL, ncclInvalidArgument, "no such setting: %s", at);
        at += bytes + (at[bytes] == ',');
    }
    pthread_mutex_lock(&process.mutex);
    process.faults = faults;
    pthread_mutex_unlock(&process.mutex);
}

static void *driver_function(void *library, const char *name)
{
    void *function = dlsym(library, name);
    process.has_driver = process.has_driver && function;
    return function;
}

static void find_driver(void)
{
    void *library = dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return;
    process.has_driver = true;
    void *const found[] = {
        driver_function(library, NAME(cuCtxPushCurrent)),
        driver_function(library, NAME(cuCtxPopCurrent)),
        driver_function(library, NAME(cuDevicePrimaryCtxRetain)),
        driver_function(library, NAME(cuLaunchHostFunc)),
        driver_function(library, NAME(cuMemAlloc)),
        driver_function(library, NAME(cuMemFree)),
        driver_function(library, NAME(cuGetErrorString)),
    };
    _Static_assert(sizeof found == sizeof process.driver, "one for each");
    memcpy(&process.driver, found, sizeof found);
}

static void begin(void)
{
    const char *settings = getenv(NCCL_DOUBLE_VARIABLE);
    inject(settings ? settings : "");
}

static struct nccl_faults faults_of(int rank)
{
    pthread_once(&process.once, begin);
    pthread_mutex_lock(&process.mutex);
    struct nccl_faults faults = process.faults;
    pthread_mutex_unlock(&process.mutex);
    if (faults.rank >= 0 && faults.rank != rank) {
        const int version = faults.version;
        faults = no_faults;
        faults.version = version;
    }
    return faults;
}

void nccl_double_inject(const char *settings)
{
    pthread_once(&process.once, begin);
    inject(settings);
}

const char *nccl_double_complaint(void)
{
    pthread_mutex_lock(&process.mutex);
    memcpy(asked[0], process.complaint, sizeof asked[0]);
    process.complaint[0] = 0;
    pthread_mutex_unlock(&process.mutex);
    return asked[0][0] ? asked[0] : NULL;
}

unsigned nccl_double_live(void)
{
    unsigned live = nccl_memories();
    pthread_mutex_lock(&process.mutex);
    for (const struct ncclComm *comm = process.comms; comm; comm = comm->next)
        live += !atomic_load(&comm->gone);
    pthread_mutex_unlock(&process.mutex);
    return live;
}

const struct nccl_driver *nccl_driver(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (!process.has_driver) // it may be loaded by now
        find_driver();
    const bool found = process.has_driver;
    pthread_mutex_unlock(&mutex);
    return found ? &process.driver : NULL;
}

/* ------------------------------------------------------------------ failures */

void nccl_fail(struct ncclComm *comm, ncclResult_t result)
{
    int none = ncclSuccess;
    atomic_compare_exchange_strong(&comm->failure, &none, result);
    nccl_region_ring(comm->region);
}

void nccl_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&process.mutex);
    vsnprintf(process.last, sizeof process.last, format, arguments);
    pthread_mutex_unlock(&process.mutex);
    va_end(arguments);
}

ncclResult_t nccl_refuse(struct ncclComm *comm, ncclResult_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&process.mutex);
    vsnprintf(process.last, sizeof process.last, format, arguments);
    if (!process.complaint[0])
        memcpy(process.complaint, process.last, sizeof process.last);
    fprintf(stderr, "NCCL's double: %s\n", process.last);
    pthread_mutex_unlock(&process.mutex);
    va_end(arguments);
    if (comm)
        nccl_fail(comm, result);
    return result;
}

EXPORTED const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    pthread_mutex_lock(&process.mutex);
    memcpy(asked[1], process.last, sizeof asked[1]);
    pthread_mutex_unlock(&process.mutex);
    return asked[1];
}

EXPORTED const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return result >= ncclSuccess && result < ncclNumResults ? texts[result] : "unknown result code";
}

EXPORTED ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return ncclInvalidArgument;
    *version = faults_of(-1).version;
    return ncclSuccess;
}

/* ------------------------------------------------------------------ who uses a communicator */

static bool is_known(const struct ncclComm *wanted)
{
    pthread_mutex_lock(&process.mutex);
    const struct ncclComm *comm = process.comms;
    while (comm && comm != wanted)
        comm = comm->next;
    pthread_mutex_unlock(&process.mutex);
    return comm != NULL;
}

static ncclResult_t find(const struct ncclComm *comm)
{
    if (!is_known(comm))
        return nccl_refuse(NULL, ncclInvalidArgument, "no communicator: %p", (const void *)comm);
    if (atomic_load(&comm->gone))
        return nccl_refuse(NULL, ncclInvalidArgument, "a communicator is used after its end");
    return ncclSuccess;
}

ncclResult_t nccl_enter(struct ncclComm *comm)
{
    const ncclResult_t result = find(comm);
    const void *inside = NULL;
    if (result == ncclSuccess &&
        !atomic_compare_exchange_strong(&comm->inside, &inside, &this_thread) &&
        inside != &this_thread)
        return nccl_refuse(comm, ncclInvalidUsage, "two threads use a communicator at once");
    return result;
}

void nccl_leave(struct ncclComm *comm)
{
    bool has_any;
    nccl_in_group(comm, &has_any);
    if (!has_any)
        atomic_store(&comm->inside, NULL);
}

ncclResult_t nccl_enter_ready(struct ncclComm *comm)
{
    ncclResult_t result = nccl_enter(comm);
    if (result != ncclSuccess)
        return result;
    result = (ncclResult_t)atomic_load(&comm->failure);
    if (result == ncclSuccess && comm->waits != NOTHING)
        result = nccl_refuse(comm, ncclInvalidArgument, "a communicator is used in progress");
    if (result == ncclSuccess && comm->finalized)
        result = nccl_refuse(comm, ncclInvalidArgument, "a communicator is used when finalized");
    if (result != ncclSuccess)
        nccl_leave(comm);
    return result;
}

ncclResult_t nccl_enter_managing(struct ncclComm *comm)
{
    bool has_any;
    if (nccl_in_group(comm, &has_any))
        return nccl_refuse(NULL, ncclInvalidUsage, "a management call in a group");
    return nccl_enter_ready(comm);
}

void nccl_drop(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->users, 1) == 1)
        nccl_region_leave(comm->region);
}

// The end of it as far as its user is concerned.
static void retire(struct ncclComm *comm)
{
    free(comm->launch);
    free(comm->window);
    nccl_forget_registrations(comm);
    nccl_region_let_go(&comm->id);
    if (comm->waits == A_MEETING && comm->said.meeting == SPLIT)
        nccl_region_let_go(&comm->said.id);
    atomic_store(&comm->gone, true);
    nccl_drop(comm);
}

/* ------------------------------------------------------------------ progress */

ncclResult_t nccl_give(struct ncclComm *comm)
{
    struct nccl_launch *launch = comm->launch;
    const struct nccl_driver *driver = nccl_driver();
    comm->launch = NULL;
    comm->waits = NOTHING;
    atomic_fetch_add(&comm->users, 1);
    CUresult status = driver->push(comm->context);
    if (status == CUDA_SUCCESS) {
        CUcontext context;
        status = driver->call(launch->stream, nccl_perform, launch);
        driver->pop(&context);
    }
    if (status == CUDA_SUCCESS)
        return ncclSuccess;
    free(launch);
    nccl_drop(comm);
    if (status == CUDA_ERROR_INVALID_HANDLE)
        return nccl_refuse(comm, ncclInvalidUsage, "a stream of another GPU");
    nccl_fail(comm, ncclUnhandledCudaError);
    return ncclUnhandledCudaError;
}

static const struct nccl_words *words_of(const struct ncclComm *comm, int rank)
{
    const struct nccl_seat *seats = comm->region->seats;
    const uint32_t number = atomic_load(&seats[comm->rank].meetings) - 1;
    return &seats[rank].words[number % 2];
}

static bool all_have_said(const struct ncclComm *comm)
{
    const struct nccl_seat *seats = comm->region->seats;
    const uint32_t number = atomic_load(&seats[comm->rank].meetings);
    for (int r = 0; r < comm->ranks; r++)
        if ((int32_t)(atomic_load(&seats[r].meetings) - number) < 0)
            return false;
    return true;
}

static ncclResult_t compare(struct ncclComm *comm)
{
    static const size_t same[] = {[INIT] = 2, [SPLIT] = 0, [FINALIZE] = 0, [WINDOW] = 3};
    for (int r = 0; r < comm->ranks; r++) {
        const struct nccl_words *theirs = words_of(comm, r);
        const uint32_t meeting = comm->said.meeting;
        if (theirs->meeting != meeting)
            return nccl_refuse(comm, ncclInvalidUsage, "rank %d's call is no. %u, rank %d's no. %u",
                               comm->rank, meeting, r, theirs->meeting);
        for (size_t i = 0; i < same[meeting]; i++)
            if (theirs->word[i] != comm->said.word[i])
                return nccl_refuse(
                    comm, ncclInvalidUsage, "call no. %u: rank %d says %lld, rank %d %lld", meeting,
                    comm->rank, (long long)comm->said.word[i], r, (long long)theirs->word[i]);
    }
    return ncclSuccess;
}

static ncclResult_t conclude_init(struct ncclComm *comm)
{
    const char *many = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    nccl_region_let_go(&comm->id);
    for (int r = 0; r < comm->ranks && !(many && strcmp(many, "1") == 0); r++)
        if (r != comm->rank && words_of(comm, r)->word[2] == comm->said.word[2] &&
            words_of(comm, r)->word[3] == comm->said.word[3])
            return nccl_refuse(
                comm, ncclInvalidUsage,
                "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", comm->rank,
                r, comm->device);
    return ncclSuccess;
}

static ncclResult_t conclude_split(struct ncclComm *parent);

static ncclResult_t conclude(struct ncclComm *comm)
{
    const ncclResult_t result = compare(comm);
    comm->waits = NOTHING;
    if (result != ncclSuccess && comm->said.meeting == SPLIT)
        nccl_region_let_go(&comm->said.id);
    if (result != ncclSuccess)
        return result;
    switch ((enum nccl_meeting)comm->said.meeting) {
    case INIT:
        return conclude_init(comm);
    case SPLIT:
        return conclude_split(comm);
    case FINALIZE:
        comm->finalized = true;
        break;
    case WINDOW:
        nccl_register(comm, comm->window);
        *comm->window_out = (ncclWindow_t)(void *)comm->window;
        comm->window = NULL;
        break;
    }
    return ncclSuccess;
}

static ncclResult_t progress(struct ncclComm *comm)
{
    const ncclResult_t failure = (ncclResult_t)atomic_load(&comm->failure);
    if (failure != ncclSuccess || comm->waits == NOTHING)
        return failure;
    if (comm->waits == A_MEETING &&
        (!all_have_said(comm) ||
         (comm->said.meeting == FINALIZE && atomic_load(&comm->over) != comm->launches)))
        return ncclInProgress;
    if (comm->polls > 0) {
        comm->polls--;
        return ncclInProgress;
    }
    const ncclResult_t result = comm->waits == A_LAUNCH ? nccl_give(comm) : conclude(comm);
    if (result != ncclSuccess)
        nccl_fail(comm, result);
    return result;
}

static ncclResult_t settle(struct ncclComm *comm)
{
    comm->polls = 0;
    for (;;) {
        const uint32_t bell = atomic_load(&comm->region->bell);
        const ncclResult_t result = progress(comm);
        if (result != ncclInProgress)
            return result;
        nccl_region_sleep(comm->region, bell);
    }
}

ncclResult_t nccl_meet(struct ncclComm *comm, const struct nccl_words *said)
{
    struct nccl_seat *seat = &comm->region->seats[comm->rank];
    const uint32_t number = atomic_load(&seat->meetings);
    comm->said = *said;
    comm->waits = A_MEETING;
    comm->polls = comm->faults.polls;
    seat->words[number % 2] = *said;
    atomic_store(&seat->meetings, number + 1);
    nccl_region_ring(comm->region);
    return comm->blocks ? settle(comm) : ncclInProgress;
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    const ncclResult_t result = nccl_enter(comm);
    if (result != ncclSuccess)
        return result;
    *error = progress(comm);
    nccl_leave(comm);
    return ncclSuccess;
}

/* ------------------------------------------------------------------ beginnings */

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return id ? nccl_region_make(id) : ncclInvalidArgument;
}

static int64_t host_number(void)
{
    const char *host = getenv("NCCL_HOSTID");
    int64_t number = 0;
    for (; host && *host; host++)
        number = number * 31 % INT32_MAX + *host;
    return number;
}

// What the new one has of `model`: its GPU, and whether it blocks.
static ncclResult_t make(struct ncclComm **made, const struct ncclComm *model, int ranks, int rank,
                         const ncclUniqueId *id)
{
    *made = NULL;
    struct nccl_region *region = nccl_region_join(id);
    struct ncclComm *comm = region ? calloc(1, sizeof *comm) : NULL;
    if (!comm)
        return ncclSystemError;
    *comm = (struct ncclComm){
        .region = region,
        .context = model->context,
        .device = model->device,
        .blocks = model->blocks,
        .rank = rank,
        .ranks = ranks,
        .faults = faults_of(rank),
        .id = *id,
        .users = 1,
        .chance = (uint32_t)rank + 1,
    };
    pthread_mutex_lock(&process.mutex);
    comm->next = process.comms;
    process.comms = comm;
    pthread_mutex_unlock(&process.mutex);
    const struct nccl_words said = {
        .meeting = INIT, .word = {ranks, comm->faults.version, comm->device, host_number()}};
    ncclResult_t result = ncclSuccess;
    if (atomic_exchange(&region->seats[rank].taken, 1) != 0)
        result = nccl_refuse(comm, ncclInvalidUsage, "rank %d is there already", rank);
    if (result == ncclSuccess)
        result = nccl_meet(comm, &said);
    if (result == ncclSuccess || result == ncclInProgress)
        *made = comm;
    else
        retire(comm);
    return result;
}

static ncclResult_t conclude_split(struct ncclComm *parent)
{
    const int64_t color = parent->said.word[0], key = parent->said.word[1];
    int ranks = 0, rank = 0, first = -1;
    for (int r = 0; r < parent->ranks; r++) {
        const int64_t *theirs = words_of(parent, r)->word;
        if (theirs[0] != color)
            continue;
        ranks++;
        rank += theirs[1] < key || (theirs[1] == key && r < parent->rank);
        if (first < 0 || theirs[1] < words_of(parent, first)->word[1])
            first = r;
    }
    if (color == NCCL_SPLIT_NOCOLOR || first != parent->rank)
        nccl_region_let_go(&parent->said.id);
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    struct ncclComm model = {.context = parent->context, .device = parent->device};
    model.blocks = parent->split_blocks;
    const ncclUniqueId id = words_of(parent, first)->id;
    const ncclResult_t result = make(parent->split, &model, ranks, rank, &id);
    return result == ncclInProgress ? ncclSuccess : result;
}

static ncclResult_t check_config(const ncclConfig_t *config, bool *blocks)
{
    static const ncclConfig_t usual = NCCL_CONFIG_INITIALIZER;
    if (!config)
        return ncclSuccess;
    if (config->size != usual.size || config->magic != usual.magic ||
        (config->blocking != 0 && config->blocking != 1 && config->blocking != usual.blocking))
        return nccl_refuse(NULL, ncclInvalidArgument, "no configuration, or blocking is %d",
                           config->blocking);
    if (config->blocking != usual.blocking)
        *blocks = config->blocking;
    return ncclSuccess;
}

// The GPU that this thread has entered.
static ncclResult_t find_gpu(struct ncclComm *model)
{
    const struct nccl_driver *driver = nccl_driver();
    if (!driver)
        return ncclUnhandledCudaError;
    if (driver->pop(&model->context) != CUDA_SUCCESS)
        return nccl_refuse(NULL, ncclInvalidUsage,
                           "a communicator is made where no GPU is entered");
    CUresult status = driver->push(model->context);
    CUcontext context = NULL;
    for (int i = 0; status == CUDA_SUCCESS && context != model->context; i++) {
        status = driver->primary(&context, i);
        model->device = i;
    }
    return status == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                             ncclConfig_t *config)
{
    struct ncclComm model = {.blocks = true};
    bool has_any;
    if (!comm || ranks < 1 || ranks > NCCL_MOST_RANKS || rank < 0 || rank >= ranks)
        return nccl_refuse(NULL, ncclInvalidArgument, "rank %d of %d", rank, ranks);
    *comm = NULL;
    if (nccl_in_group(NULL, &has_any))
        return nccl_refuse(NULL, ncclInvalidUsage, "a communicator is made in a group");
    ncclResult_t result = check_config(config, &model.blocks);
    if (result == ncclSuccess)
        result = find_gpu(&model);
    return result == ncclSuccess ? make(comm, &model, ranks, rank, &id) : result;
}

EXPORTED ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

EXPORTED ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                                    ncclConfig_t *config)
{
    struct nccl_words said = {.meeting = SPLIT, .word = {color, key}};
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    *made = NULL;
    comm->split = made;
    comm->split_blocks = comm->blocks;
    result = color >= 0 || color == NCCL_SPLIT_NOCOLOR
                 ? check_config(config, &comm->split_blocks)
                 : nccl_refuse(comm, ncclInvalidArgument, "color %d", color);
    if (result == ncclSuccess)
        result = nccl_region_make(&said.id);
    if (result == ncclSuccess)
        result = nccl_meet(comm, &said);
    nccl_leave(comm);
    return result;
}

/* ------------------------------------------------------------------ what it is */

static ncclResult_t tell(struct ncclComm *comm, int *to, const int *value)
{
    const ncclResult_t result = nccl_enter_ready(comm);
    if (result != ncclSuccess)
        return result;
    *to = *value;
    nccl_leave(comm);
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return tell(comm, count, &comm->ranks);
}

EXPORTED ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return tell(comm, rank, &comm->rank);
}

EXPORTED ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    return tell(comm, device, &comm->device);
}

/* ------------------------------------------------------------------ ends */

static bool is_at_work(const struct ncclComm *comm)
{
    return atomic_load(&comm->users) > 1 && !atomic_load(&comm->gone) &&
           !atomic_load(&comm->aborted);
}

// Its GPU comes to rest, whatever else is under way there: memory is freed.
static void await_rest(const struct ncclComm *comm)
{
    pthread_mutex_lock(&process.mutex);
    const struct ncclComm *other = process.comms;
    pthread_mutex_unlock(&process.mutex);
    for (; other; other = other->next) {
        if (other->device != comm->device || memcmp(&other->id, &comm->id, sizeof comm->id) == 0 ||
            !is_at_work(other))
            continue;
        while (is_at_work(other))
            nanosleep(&(struct timespec){0, 100000}, NULL);
        if (atomic_load(&other->aborted) && other->over != other->launches)
            nccl_refuse(NULL, ncclInvalidUsage,
                        "the end of a communicator waits for another one of its GPU, which is "
                        "aborted later, and not with it");
    }
}

ncclResult_t nccl_end(struct ncclComm *first)
{
    const unsigned ms = first ? first->faults.ends_ms : 0;
    const ncclResult_t result = first ? (ncclResult_t)first->faults.ending : ncclSuccess;
    struct ncclComm *next;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    for (const struct ncclComm *comm = first; comm; comm = comm->ends)
        await_rest(comm);
    for (; first; first = next) {
        next = first->ends;
        retire(first);
    }
    return result;
}

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const struct nccl_words said = {.meeting = FINALIZE};
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    result = nccl_meet(comm, &said);
    nccl_leave(comm);
    return result;
}

EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const struct nccl_words said = {.meeting = FINALIZE};
    bool has_any;
    if (!comm)
        return ncclSuccess;
    if (nccl_in_group(comm, &has_any))
        return nccl_refuse(NULL, ncclInvalidUsage, "a communicator is destroyed in a group");
    ncclResult_t result = nccl_enter(comm);
    if (result != ncclSuccess)
        return result;
    if (comm->waits != NOTHING)
        result = nccl_refuse(comm, ncclInvalidUsage, "a communicator is destroyed in progress");
    else if (atomic_load(&comm->failure) != ncclSuccess)
        result = nccl_refuse(comm, ncclInvalidUsage, "a failed communicator is destroyed");
    else if (comm->registrations)
        result = nccl_refuse(comm, ncclInvalidUsage, "a communicator still has registrations");
    else if (!comm->finalized)
        result = nccl_meet(comm, &said);
    if (result == ncclInProgress)
        result = settle(comm);
    nccl_leave(comm);
    if (result == ncclSuccess)
        retire(comm);
    return result;
}

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    bool has_any;
    if (!comm)
        return ncclSuccess;
    const bool in_group = nccl_in_group(comm, &has_any);
    ncclResult_t result = nccl_enter(comm);
    if (result != ncclSuccess)
        return result;
    if (has_any) {
        result = nccl_refuse(comm, ncclInvalidUsage, "a communicator is aborted with a group open");
        nccl_leave(comm);
        return result;
    }
    atomic_store(&comm->aborted, true);
    nccl_region_ring(comm->region);
    nccl_leave(comm);
    comm->ends = NULL;
    if (in_group)
        nccl_end_with_group(comm);
    return in_group ? ncclSuccess : nccl_end(comm);
}
