#include "tests/cuda/device_ranks.h"

#include "tests/cuda/leftovers.h"
#include "tests/cuda/nccl_double.h"
#include "tests/cuda/one_gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// What has to come at all comes in so many milliseconds in which this process runs.
enum { PATIENCE_MS = 15000 };

// Ranks that share GPUs, where there are fewer of these.
enum { SHARING = 3 };

struct run {
    const struct device_ranks *ranks;
    bool (*body)(struct device_rank *);
    _Atomic int *met;
};

/* ------------------------------------------------------------------ the double */

// NULL: this is NCCL.
static void *double_function(const char *name)
{
    void *library = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

void device_ranks_inject(const char *settings)
{
    void *const there = double_function(NCCL_DOUBLE_INJECT);
    nccl_double_inject_fn function;
    memcpy(&function, &there, sizeof function);
    if (function)
        function(settings ? settings : "");
}

static bool left_nothing(const struct device_ranks *ranks)
{
    const bool complains = (ranks->fails || ranks->complains) && !ranks->blameless;
    void *const live_there = double_function(NCCL_DOUBLE_LIVE);
    void *const complaint_there = double_function(NCCL_DOUBLE_COMPLAINT);
    nccl_double_live_fn live;
    nccl_double_complaint_fn complaint;
    memcpy(&live, &live_there, sizeof live);
    memcpy(&complaint, &complaint_there, sizeof complaint);
    if (!live || !complaint)
        return cuda_left_nothing();
    const char *said = complaint();
    if (live() > 0 || (said && !complains))
        fprintf(stderr, "NCCL's double: %u left; %s\n", live(), said ? said : "no complaint");
    return live() == 0 && (!said || complains) && cuda_left_nothing();
}

/* ------------------------------------------------------------------ what bodies call */

void device_rank_say(const struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    if (coll_state(rank->host, &error) != ZERO_OK)
        fprintf(stderr, "rank %d: %d: %s\n", rank->rank, error.result, error.message);
}

void *device_rank_memory(struct device_rank *rank, size_t bytes)
{
    int i = 0;
    while (i < DEVICE_RANKS_MEMORIES && rank->memories[i])
        i++;
    if (i == DEVICE_RANKS_MEMORIES || rank->gpu->alloc(&rank->memories[i], bytes, NULL) != ZERO_OK)
        abort();
    return rank->memories[i];
}

bool device_rank_put(struct device_rank *rank, void *memory, const void *bytes, size_t size)
{
    return rank->gpu->copy(memory, bytes, size, rank->stream, NULL) == ZERO_OK;
}

bool device_rank_get(struct device_rank *rank, void *bytes, const void *memory, size_t size)
{
    return rank->gpu->copy(bytes, memory, size, rank->stream, NULL) == ZERO_OK;
}

bool device_rank_sync(struct device_rank *rank)
{
    return rank->gpu->stream_sync(rank->stream, NULL) == ZERO_OK;
}

bool device_rank_meet(struct device_rank *rank)
{
    const int all = ++rank->meetings * rank->world;
    ++*rank->met;
    for (int i = 0; i < PATIENCE_MS && *rank->met < all; i++)
        usleep(1000);
    NEED(*rank->met >= all);
    return true;
}

bool device_rank_learns(struct device_rank *rank, zero_result result, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    for (int i = 0; i < PATIENCE_MS && coll_state(rank->host, NULL) == ZERO_OK; i++)
        usleep(1000);
    NEED(coll_state(rank->host, &error) == result);
    if (strstr(error.message, words))
        return true;
    fprintf(stderr, "rank %d: '%s' is not in '%s'\n", rank->rank, words, error.message);
    return false;
}

/* ------------------------------------------------------------------ GPUs */

static int count_ranks(void)
{
    struct base_error error = {.result = ZERO_OK};
    int count;
    if (base_device_find("cuda")->count(&count, &error) != ZERO_OK) {
        printf("skipped: %s\n", error.message);
        return 0;
    }
    if (count < SHARING)
        count = SHARING;
    return double_function(NCCL_DOUBLE_LIVE) || count > DEVICE_RANKS_MOST ? DEVICE_RANKS_MOST
                                                                          : count;
}

static int is_doubled(void)
{
    return double_function(NCCL_DOUBLE_LIVE) != NULL;
}

// What this process does not load, others forked from it don't find loaded.
static int ask_child(int (*question)(void))
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const int answer = question();
        fflush(NULL);
        _exit(answer);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 0;
}

int device_ranks_possible(void)
{
    return ask_child(count_ranks);
}

bool device_ranks_doubled(void)
{
    return ask_child(is_doubled) != 0;
}

// Ranks that share a GPU are on different hosts, as far as NCCL knows.
static void share_gpu(const struct device_rank *rank)
{
    char host[16];
    snprintf(host, sizeof host, "host-%d", rank->rank);
    setenv("NCCL_HOSTID", host, 1);
    one_gpu_for_all();
}

/* ------------------------------------------------------------------ a rank */

static bool begin(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    rank->config = (struct gcomm_config){
        .transport = rank->of->transport ? rank->of->transport : "nccl",
        .host = rank->host,
        .device = rank->gpu,
        .number = rank->number,
        .timeout_ns = rank->of->timeout_ns,
    };
    NEED(rank->gpu->enter(rank->number, NULL) == ZERO_OK);
    NEED(rank->gpu->stream_create(&rank->stream, false, NULL) == ZERO_OK);
    if (rank->of->bare || gcomm_open(&rank->device, &rank->config, &error) == ZERO_OK)
        return true;
    fprintf(stderr, "rank %d: gcomm_open: %d: %s\n", rank->rank, error.result, error.message);
    return false;
}

static bool end(struct device_rank *rank)
{
    NEED(device_rank_sync(rank));
    gcomm_close(rank->device);
    // Memory is looked at by all ranks of a process until they are through.
    if (!rank->of->fails)
        NEED(coll_barrier(rank->host) == ZERO_OK);
    NEED(rank->of->fails == (coll_state(rank->host, NULL) != ZERO_OK));
    for (int i = 0; i < DEVICE_RANKS_MEMORIES; i++)
        rank->gpu->free(rank->memories[i]);
    rank->gpu->stream_destroy(rank->stream);
    rank->gpu->leave();
    return true;
}

static bool are_threads(const struct device_ranks *ranks)
{
    return ranks->host && strcmp(ranks->host, "threads") == 0;
}

static bool be(struct coll_comm *comm, void *user)
{
    const struct run *run = user;
    struct device_rank self = {.of = run->ranks,
                               .host = comm,
                               .gpu = base_device_find("cuda"),
                               .rank = coll_rank(comm),
                               .world = coll_world(comm),
                               .met = run->met};
    const struct device_rank *rank = &self;
    const bool threads = are_threads(run->ranks);
    int count;
    if (!threads)
        device_ranks_inject(run->ranks->inject);
    NEED(self.gpu->count(&count, NULL) == ZERO_OK);
    self.number = run->ranks->transport ? 0 : self.rank % count; // what NCCL does not do
    if (!threads && self.world > count)
        share_gpu(&self);
    NEED(begin(&self));
    NEED(run->body(&self));
    NEED(end(&self));
    if (threads)
        return true;
    const bool good = run->ranks->leaves || left_nothing(run->ranks);
    cuda_end(); // a process that is forked does not exit()
    return good;
}

static bool run_all(struct run *run)
{
    const struct device_ranks *ranks = run->ranks;
    fflush(NULL);
    if (ranks->killed)
        return run_ranks_killed(ranks->world, ranks->killed - 1, be, run);
    if (!are_threads(ranks))
        return run_ranks(ranks->host ? ranks->host : "shm", ranks->world, ranks->host_ns, be, run);
    device_ranks_inject(ranks->inject);
    return run_ranks(ranks->host, ranks->world, ranks->host_ns, be, run) && left_nothing(ranks);
}

bool device_ranks_run(const struct device_ranks *ranks, bool (*body)(struct device_rank *))
{
    void *const shared =
        mmap(NULL, sizeof(_Atomic int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return false;
    const bool good = run_all(&(struct run){ranks, body, shared});
    munmap(shared, sizeof(_Atomic int));
    return good;
}
