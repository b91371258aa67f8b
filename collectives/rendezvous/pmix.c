// PMIx, which Open MPI 5, Slurm (--mpi=pmix), PALS and jsrun speak. Its library is loaded when it
// is asked, for most jobs need none; the few things of its interface that are used are declared
// here, as its standard has them from version 2 on.

#include "collectives/rendezvous/process_manager.h"

#include "base/arena.h"
#include "base/library.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libpmix.so.2"

/* ------------------------------------------------------------------ its interface */

enum {
    PMIX_NAME_BYTES = 256,
    PMIX_KEY_BYTES = 512,
    PMIX_GLOBAL = 3,  // a scope: for all processes of the job
    PMIX_DONE = -157, // PMIX_OPERATION_SUCCEEDED: at once, and no call-back comes
    PMIX_TIMEOUT = -24,
    PMIX_UNSUPPORTED = -47, // PMIX_ERR_NOT_SUPPORTED, by all servers of the job alike
};

/** Types of a value. */
enum { PMIX_BOOL = 1, PMIX_STRING = 3, PMIX_INT = 6, PMIX_UINT16 = 13, PMIX_UINT32 = 14 };

/** The rank that stands for all of a job. */
static const uint32_t all_ranks = UINT32_MAX - 1;

struct pmix_process {
    char name[PMIX_NAME_BYTES];
    uint32_t rank;
};

struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        int integer;
        uint16_t uint16;
        uint32_t uint32;
        struct {
            void *pointers[2];
            char byte;
        } largest;
    };
};

struct pmix_info {
    char key[PMIX_KEY_BYTES];
    uint32_t flags;
    struct pmix_value value;
};

_Static_assert(sizeof(struct pmix_process) == 260, "as in PMIx's standard");
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(struct pmix_value) == 32 && sizeof(struct pmix_info) == 552,
               "as in PMIx's standard");
#endif

typedef void (*pmix_done_fn)(int status, void *user);

static struct pmix_library {
    int (*init)(struct pmix_process *self, const struct pmix_info *infos, size_t count);
    int (*initialized)(void);
    int (*get)(const struct pmix_process *of, const char *key, const struct pmix_info *infos,
               size_t count, struct pmix_value **value);
    int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
    int (*commit)(void);
    int (*fence)(const struct pmix_process *who, size_t count, const struct pmix_info *infos,
                 size_t info_count, pmix_done_fn done, void *user);
    int (*finalize)(const struct pmix_info *infos, size_t count);
    const char *(*text)(int status);
} pmix;

static zero_result load(struct base_error *error)
{
    struct pmix_library library;
    const struct base_symbol functions[] = {
        {"PMIx_Init", &library.init},         {"PMIx_Initialized", &library.initialized},
        {"PMIx_Get", &library.get},           {"PMIx_Put", &library.put},
        {"PMIx_Commit", &library.commit},     {"PMIx_Fence_nb", &library.fence},
        {"PMIx_Finalize", &library.finalize}, {"PMIx_Error_string", &library.text},
    };
    void *file = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!file) // its message has the library's name
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s (Debian: libpmix2)", dlerror());
    const char *missing = base_library_find(file, functions, sizeof functions / sizeof *functions);
    if (missing) {
        dlclose(file);
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s has no %s", LIBRARY, missing);
    }
    pmix = library;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ joining and leaving */

/** This process as PMIx knows it, while it has not been left. */
static struct {
    bool joined;
    struct pmix_process self;
} session;

static zero_result fail(zero_result result, const char *call, int status, struct base_error *error)
{
    return zero_fail(error, result, "%s: %s (%d)", call, pmix.text(status), status);
}

// What fails once this process has joined is no sign that there is no PMIx: other ranks may have
// heard what this one has not.
static zero_result fail_exchange(const char *call, int status, struct base_error *error)
{
    return fail(status == PMIX_UNSUPPORTED ? ZERO_E_UNSUPPORTED
                : status == PMIX_TIMEOUT   ? ZERO_E_TIMEOUT
                                           : ZERO_E_IO,
                call, status, error);
}

// All ranks come to a fence, and one that has ended does not.
static zero_result fail_fence(int status, struct base_error *error)
{
    return status == PMIX_UNSUPPORTED || status == PMIX_TIMEOUT
               ? fail_exchange("PMIx_Fence", status, error)
               : fail(ZERO_E_PEER, "PMIx_Fence", status, error);
}

// PMIx has a thread of its own, which is not to be interrupted by what is meant for the program.
static int call_init(struct pmix_process *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int status = pmix.init(self, NULL, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

// Whether PMIx counts the process that the variables are about.
static zero_result check_self(char *const *environment, struct base_error *error)
{
    const char *name = boot_variable(environment, "PMIX_NAMESPACE");
    const char *rank = boot_variable(environment, "PMIX_RANK");
    int number = -1;
    const zero_result result = boot_number(&number, "PMIX_RANK", rank, 0, BOOT_NUMBER_MAX, error);
    if (result)
        return result;
    if (strncmp(session.self.name, name, sizeof session.self.name) == 0 &&
        session.self.rank == (uint32_t)number)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID, "it knows this process as rank %u of another job",
                     session.self.rank);
}

static void leave(void)
{
    if (session.joined)
        pmix.finalize(NULL, 0);
    session.joined = false;
}

static zero_result join(char *const *environment, struct base_error *error)
{
    static struct base_load once = BASE_LOAD_ONCE;
    if (session.joined)
        return ZERO_OK;
    zero_result result = boot_manager_check_program(error);
    if (!result)
        result = base_load_once(&once, load, error);
    if (result)
        return result;
    if (pmix.initialized())
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "another part of the program has initialised it already");
    session.self = (struct pmix_process){.rank = 0};
    const int status = call_init(&session.self);
    if (status)
        return fail(ZERO_E_UNSUPPORTED, "PMIx_Init", status, error);
    session.joined = true;
    result = check_self(environment, error);
    if (result)
        leave();
    return result;
}

/* ------------------------------------------------------------------ numbers */

static void free_value(struct pmix_value *value)
{
    if (value->type == PMIX_STRING)
        free(value->string);
    free(value);
}

// A number that PMIx knows of the job, or of this rank; false: it does not, or it is out of range.
static bool find_number(int *number, const char *key, uint32_t rank, int min, int max)
{
    struct pmix_process of = session.self;
    struct pmix_value *value = NULL;
    assert(session.joined && min <= max);
    of.rank = rank;
    if (pmix.get(&of, key, NULL, 0, &value) || !value)
        return false;
    const uint32_t found = value->type == PMIX_UINT16   ? value->uint16
                           : value->type == PMIX_UINT32 ? value->uint32
                                                        : UINT32_MAX;
    free_value(value);
    if (found > (uint32_t)max || found < (uint32_t)min)
        return false;
    *number = (int)found;
    return true;
}

static zero_result find_place(struct boot_manager_place *place, char *const *environment,
                              struct base_error *error)
{
    const zero_result result = join(environment, error);
    if (result)
        return result;
    const uint32_t rank = session.self.rank;
    *place = (struct boot_manager_place){.rank = (int)rank, .local_rank = -1};
    if (!find_number(&place->world, "pmix.job.size", all_ranks, (int)rank + 1, BOOT_NUMBER_MAX)) {
        leave();
        return zero_fail(error, ZERO_E_INVALID, "it does not say how many ranks there are");
    }
    find_number(&place->local_world, "pmix.local.size", all_ranks, 1, place->world);
    find_number(&place->local_rank, "pmix.lrank", rank, 0, place->world - 1);
    find_number(&place->hosts, "pmix.num.nodes", all_ranks, 1, place->world);
    if (place->local_world && place->local_rank >= place->local_world)
        place->local_rank = -1;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ the place of rank 0 */

static zero_result put_value(char *text, struct base_error *error)
{
    struct pmix_value value = {.type = PMIX_STRING};
    assert(session.joined && session.self.rank == 0);
    value.string = text;
    int status = pmix.put(PMIX_GLOBAL, BOOT_BOARD_KEY, &value);
    if (status)
        return fail_exchange("PMIx_Put", status, error);
    status = pmix.commit();
    return status ? fail_exchange("PMIx_Commit", status, error) : ZERO_OK;
}

/** What the call-back of a fence writes, which may come when no call waits for it any more. */
struct fence {
    _Atomic bool done;
    int status;
};

static void fence_done(int status, void *user)
{
    struct fence *fence = user;
    fence->status = status;
    atomic_store_explicit(&fence->done, true, memory_order_release);
}

// Waits until all ranks have come, and has what rank 0 has put. Where it fails, `fence` is lost.
static zero_result await_all(struct boot_board *board, struct fence *fence,
                             struct base_error *error)
{
    const struct pmix_info collect = {.key = "pmix.collect",
                                      .value = {.type = PMIX_BOOL, .flag = true}};
    assert(session.joined && fence && !fence->done);
    const int status = pmix.fence(NULL, 0, &collect, 1, fence_done, fence);
    if (status == PMIX_DONE)
        return ZERO_OK;
    if (status)
        return fail_fence(status, error);
    for (int pause_ms = 1; !atomic_load_explicit(&fence->done, memory_order_acquire);
         pause_ms = pause_ms < 16 ? 2 * pause_ms : 20) {
        int left;
        const zero_result result = boot_board_left(board, "PMIx", pause_ms, &left, error);
        if (result)
            return result;
        poll(NULL, 0, left);
    }
    return fence->status ? fail_fence(fence->status, error) : ZERO_OK;
}

static zero_result get_value(const struct boot_board *board, char text[BOOT_BOARD_BYTES],
                             struct base_error *error)
{
    struct pmix_process rank_0 = session.self;
    struct pmix_value *value = NULL;
    const int left_ms = boot_time_left(board->deadline_ns, 60000);
    const struct pmix_info limit = {.key = "pmix.timeout",
                                    .value = {.type = PMIX_INT, .integer = 1 + left_ms / 1000}};
    rank_0.rank = 0;
    const int status = pmix.get(&rank_0, BOOT_BOARD_KEY, &limit, 1, &value);
    if (status || !value)
        return fail_exchange("PMIx_Get", status, error);
    const bool good =
        value->type == PMIX_STRING && value->string && strlen(value->string) < BOOT_BOARD_BYTES;
    if (good)
        strcpy(text, value->string);
    free_value(value);
    return good ? ZERO_OK
                : zero_fail(error, ZERO_E_INVALID, "what rank 0 has put is no text of its length");
}

static zero_result exchange_values(struct boot_board *board, char text[BOOT_BOARD_BYTES],
                                   struct base_error *error)
{
    struct boot_manager_place place;
    zero_result result = find_place(&place, board->environment, error);
    if (!result && (place.world != board->world || place.rank != board->rank))
        result = zero_fail(error, ZERO_E_INVALID, "it counts other ranks: this one is %d of %d",
                           place.rank, place.world);
    struct fence *fence = result ? NULL : base_calloc(1, sizeof *fence);
    if (!result && !fence)
        result = zero_fail(error, ZERO_E_NOMEM, "no memory to wait for all ranks");
    if (!result && board->rank == 0)
        result = put_value(text, error);
    if (!result)
        result = await_all(board, fence, error);
    if (result) // the call-back may be yet to come
        return result;
    base_free(fence);
    return get_value(board, text, error);
}

static zero_result publish_by_library(struct boot_board *board, char text[BOOT_BOARD_BYTES],
                                      struct base_error *error)
{
    const zero_result result = exchange_values(board, text, error);
    leave();
    return result;
}

static bool is_there(char *const *environment)
{
    return boot_variable(environment, "PMIX_NAMESPACE") && boot_variable(environment, "PMIX_RANK");
}

// How many ranks there are it alone knows.
static bool is_counting(char *const *environment, int rank, int world)
{
    (void)world;
    int number = 0;
    return is_there(environment) &&
           !boot_number(&number, "", boot_variable(environment, "PMIX_RANK"), 0, BOOT_NUMBER_MAX,
                        NULL) &&
           number == rank;
}

const struct boot_manager boot_pmix = {
    .size = sizeof(struct boot_manager),
    .name = "PMIx",
    .names = {"PMIX_RANK", "PMIX_JOB_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE", "PMIX_NUM_NODES"},
    .is_there = is_there,
    .is_placing = is_there,
    .is_counting = is_counting,
    .find_place = find_place,
    .publish = publish_by_library,
    .leave = leave};
