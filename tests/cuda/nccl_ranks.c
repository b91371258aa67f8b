#include "tests/cuda/nccl_ranks.h"

#include "tests/cuda/leftovers.h"
#include "tests/cuda/nccl_double.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct nccl_shared *shared;

void *nccl_double_function(const char *name)
{
    void *library = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;
    if (!function)
        abort();
    return function;
}

static void inject(const char *settings)
{
    void *const there = nccl_double_function(NCCL_DOUBLE_INJECT);
    nccl_double_inject_fn function;
    memcpy(&function, &there, sizeof function);
    function(settings ? settings : "");
}

static void ask_complaint(char *text, size_t bytes)
{
    void *const there = nccl_double_function(NCCL_DOUBLE_COMPLAINT);
    nccl_double_complaint_fn function;
    memcpy(&function, &there, sizeof function);
    const char *complaint = function();
    snprintf(text, bytes, "%s", complaint ? complaint : "");
}

static unsigned live(void)
{
    void *const there = nccl_double_function(NCCL_DOUBLE_LIVE);
    nccl_double_live_fn function;
    memcpy(&function, &there, sizeof function);
    return function();
}

static void sleep_briefly(void)
{
    nanosleep(&(struct timespec){0, 200000}, NULL);
}

/* ------------------------------------------------------------------ what bodies call */

void nccl_ranks_meet(struct nccl_rank *rank, int number)
{
    atomic_fetch_add(&rank->shared->said, 1);
    while (atomic_load(&rank->shared->said) < number * rank->ranks)
        sleep_briefly();
}

ncclResult_t nccl_ranks_settled(ncclComm_t comm, ncclResult_t result)
{
    while (result == ncclInProgress) {
        sleep_briefly();
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
            return ncclInternalError;
    }
    return result;
}

bool nccl_ranks_done(struct nccl_rank *rank, ncclResult_t result)
{
    return nccl_ranks_settled(rank->comm, result) == ncclSuccess &&
           cuStreamSynchronize(rank->stream) == CUDA_SUCCESS;
}

bool nccl_ranks_under_way(struct nccl_rank *rank, CUevent event)
{
    NEED(cuEventRecord(event, rank->stream) == CUDA_SUCCESS);
    for (int i = 0; i < 20; i++) {
        NEED(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        usleep(500);
    }
    return true;
}

static void *abort_it(void *comm)
{
    return ncclCommAbort(comm) == ncclSuccess ? comm : NULL;
}

bool nccl_ranks_abort(struct nccl_rank *rank)
{
    pthread_t thread;
    void *aborted = NULL;
    if (pthread_create(&thread, NULL, abort_it, rank->comm) != 0)
        return false;
    const bool done = cuStreamSynchronize(rank->stream) == CUDA_SUCCESS;
    pthread_join(thread, &aborted);
    rank->comm = NULL;
    return done && aborted;
}

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static void copy(struct nccl_rank *rank, const void *to, const void *from, size_t size)
{
    if (cuMemcpyAsync(address(to), address(from), size, rank->stream) != CUDA_SUCCESS ||
        cuStreamSynchronize(rank->stream) != CUDA_SUCCESS)
        abort();
}

void *nccl_ranks_memory(struct nccl_rank *rank, size_t size)
{
    CUdeviceptr memory;
    int i = 0;
    while (i < NCCL_RANKS_MEMORIES && rank->memories[i])
        i++;
    if (i == NCCL_RANKS_MEMORIES || cuMemAlloc(&memory, size) != CUDA_SUCCESS)
        abort();
    rank->memories[i] = (void *)(uintptr_t)memory; // NOLINT(performance-no-int-to-ptr)
    return rank->memories[i];
}

void nccl_ranks_put(struct nccl_rank *rank, void *memory, const void *bytes, size_t size)
{
    copy(rank, memory, bytes, size);
}

void nccl_ranks_get(struct nccl_rank *rank, void *bytes, const void *memory, size_t size)
{
    copy(rank, bytes, memory, size);
}

/* ------------------------------------------------------------------ a rank */

static bool begin_comm(struct nccl_rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = rank->of->blocks;
    if (rank->rank == 0) {
        NEED(ncclGetUniqueId(&shared->id) == ncclSuccess);
        atomic_store(&shared->has_id, 1);
    }
    while (!atomic_load(&shared->has_id))
        sleep_briefly();
    if (rank->of->bare)
        return true;
    const ncclResult_t result =
        ncclCommInitRankConfig(&rank->comm, rank->ranks, shared->id, rank->rank, &config);
    NEED(nccl_ranks_settled(rank->comm, result) == ncclSuccess);
    return true;
}

static bool end_comm(struct nccl_rank *rank)
{
    if (!rank->comm)
        return true;
    if (!rank->of->blocks)
        NEED(nccl_ranks_settled(rank->comm, ncclCommFinalize(rank->comm)) == ncclSuccess);
    NEED(ncclCommDestroy(rank->comm) == ncclSuccess);
    return true;
}

// The driver's rule: nothing is under way in this process then.
static void free_memories(struct nccl_rank *rank)
{
    atomic_fetch_add(&rank->shared->ended, 1);
    while (rank->of->threads && atomic_load(&rank->shared->ended) < rank->ranks)
        sleep_briefly();
    for (int i = 0; i < NCCL_RANKS_MEMORIES && rank->memories[i]; i++)
        cuMemFree(address(rank->memories[i]));
}

static bool be(struct nccl_rank *rank, bool (*body)(struct nccl_rank *))
{
    CUcontext context;
    NEED(cuDevicePrimaryCtxRetain(&context, rank->rank % NCCL_RANKS_GPUS) == CUDA_SUCCESS);
    NEED(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    NEED(cuStreamCreateWithPriority(&rank->stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    NEED(begin_comm(rank));
    NEED(body(rank));
    NEED(end_comm(rank));
    free_memories(rank);
    NEED(cuStreamDestroy(rank->stream) == CUDA_SUCCESS);
    NEED(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    return true;
}

// Of this process: nothing is left of the double, nor of the driver.
static bool left_nothing(void)
{
    char line[512];
    bool mapped = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        mapped = mapped || strstr(line, "nccl-double (deleted)");
    if (maps)
        fclose(maps);
    if (live() > 0 || mapped)
        fprintf(stderr, "NCCL's double: %u left, memory is %smapped\n", live(), mapped ? "" : "un");
    return live() == 0 && !mapped && cuda_left_nothing();
}

static unsigned files(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* ------------------------------------------------------------------ processes */

static void be_process(const struct nccl_ranks *ranks, int rank, bool (*body)(struct nccl_rank *))
{
    struct nccl_rank self = {.of = ranks, .shared = shared, .rank = rank, .ranks = ranks->ranks};
    inject(ranks->inject);
    const unsigned before = files();
    bool good = be(&self, body) && left_nothing();
    if (good && files() != before) {
        fprintf(stderr, "rank %d: %u files, %u before\n", rank, files(), before);
        good = false;
    }
    ask_complaint(shared->complaints[rank], sizeof shared->complaints[rank]);
    if (!good)
        atomic_store(&shared->failed, 1);
    fflush(NULL);
    _exit(good ? 0 : 1);
}

static void run_processes(const struct nccl_ranks *ranks, bool (*body)(struct nccl_rank *))
{
    pid_t children[NCCL_RANKS_MOST];
    for (int r = 0; r < ranks->ranks; r++)
        if ((children[r] = fork()) == 0)
            be_process(ranks, r, body);
    for (int r = 0; r < ranks->ranks; r++) {
        int status;
        const pid_t ended = wait(&status);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (killed)
            atomic_fetch_add(&shared->killed, 1);
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            atomic_store(&shared->failed, 1);
        for (int k = 0; k < ranks->ranks; k++) {
            if (children[k] == ended)
                children[k] = 0;
            if (atomic_load(&shared->failed) && children[k] > 0)
                kill(children[k], SIGKILL);
        }
    }
}

/* ------------------------------------------------------------------ threads */

struct thread {
    struct nccl_rank rank;
    bool (*body)(struct nccl_rank *);
    pthread_t thread;
};

static void *be_thread(void *argument)
{
    struct thread *self = argument;
    if (!be(&self->rank, self->body)) {
        fflush(NULL);
        _exit(1); // the others would wait for ever
    }
    return NULL;
}

static void run_threads(const struct nccl_ranks *ranks, bool (*body)(struct nccl_rank *))
{
    struct thread threads[NCCL_RANKS_MOST];
    inject(ranks->inject);
    const unsigned before = files();
    for (int r = 0; r < ranks->ranks; r++) {
        threads[r] = (struct thread){
            .rank = {.of = ranks, .shared = shared, .rank = r, .ranks = ranks->ranks},
            .body = body,
        };
        if (pthread_create(&threads[r].thread, NULL, be_thread, &threads[r]) != 0)
            abort();
    }
    for (int r = 0; r < ranks->ranks; r++)
        pthread_join(threads[r].thread, NULL);
    ask_complaint(shared->complaints[0], sizeof shared->complaints[0]);
    if (!left_nothing() || files() != before)
        atomic_store(&shared->failed, 1);
}

/* ------------------------------------------------------------------ runs */

bool nccl_ranks_run(const struct nccl_ranks *ranks, bool (*body)(struct nccl_rank *))
{
    if (!shared)
        shared =
            mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    memset(shared, 0, sizeof *shared);
    fflush(NULL);
    if (ranks->threads)
        run_threads(ranks, body);
    else
        run_processes(ranks, body);
    bool good = !atomic_load(&shared->failed);
    for (int r = 0; r < ranks->ranks && !ranks->fails; r++)
        good = good && !shared->complaints[r][0];
    return good;
}

bool nccl_ranks_complained(const char *words)
{
    bool some = false, all = true;
    for (int r = 0; r < NCCL_RANKS_MOST; r++) {
        const char *complaint = shared->complaints[r];
        some = some || complaint[0];
        if (complaint[0] && !strstr(complaint, words)) {
            fprintf(stderr, "'%s' is not in '%s'\n", words, complaint);
            all = false;
        }
    }
    return some && all;
}
