// Ranks that are threads of one process meet at a team. What peers may read (blocks, arenas) is
// the meeting's, so that it lives until the last rank has left.

#include "base/arena.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/reminder.h"
#include "base/thread.h"
#include "collectives/host/host.h"
#include "collectives/transport/retained_memory.h"
#include "collectives/transport/shared_arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** One communicator's ranks; in the team's list from the first one's coming to the last one's
 * leaving. Guarded by the team's mutex. */
struct meeting {
    char name[COLL_NAME_BYTES];
    int present;                /**< ranks that have come and not left */
    bool complete;              /**< all have come */
    struct host_block **blocks; /**< of every rank that has come */
    struct coll_retained *retained;
    struct meeting *next;
};

struct coll_team {
    int world;
    pthread_mutex_t mutex;
    pthread_cond_t complete; /**< some meeting is */
    struct meeting *meetings;
};

struct threads {
    struct host_comm host; /**< first: direct.c sees a struct host_comm */
    struct coll_team *team;
    bool team_owned;
    struct meeting *meeting;
    struct host_block *block; /**< this rank's */
};

/* ------------------------------------------------------------------ teams */

zero_result coll_team_create(struct coll_team **team, int world, struct base_error *error)
{
    *team = NULL;
    if (world < 1)
        return zero_fail(error, ZERO_E_INVALID, "a team of %d ranks", world);
    struct coll_team *created = base_calloc(1, sizeof *created);
    if (!created)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a team");
    created->world = world;
    pthread_mutex_init(&created->mutex, NULL);
    base_cond_init(&created->complete);
    *team = created;
    return ZERO_OK;
}

void coll_team_free(struct coll_team *team)
{
    if (!team)
        return;
    pthread_cond_destroy(&team->complete);
    pthread_mutex_destroy(&team->mutex);
    base_free(team);
}

/* ------------------------------------------------------------------ meetings */

/** The meeting of this name that is still to be completed, made if there is none; NULL without
 * memory. */
static struct meeting *find_meeting(struct coll_team *team, const char *name)
{
    for (struct meeting *meeting = team->meetings; meeting; meeting = meeting->next)
        if (!meeting->complete && strcmp(meeting->name, name) == 0)
            return meeting;
    struct meeting *created = base_calloc(1, sizeof *created);
    struct host_block **blocks = base_calloc((size_t)team->world, sizeof(struct host_block *));
    if (!created || !blocks) {
        base_free(created);
        base_free(blocks);
        return NULL;
    }
    snprintf(created->name, sizeof created->name, "%s", name);
    created->blocks = blocks;
    created->next = team->meetings;
    team->meetings = created;
    return created;
}

static void remove_meeting(struct coll_team *team, struct meeting *gone)
{
    assert(gone->present == 0);
    struct meeting **link = &team->meetings;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
    coll_retained_free(&gone->retained);
    base_free(gone->blocks);
    base_free(gone);
}

static void leave_meeting(struct coll_comm *comm)
{
    struct threads *threads = comm->link;
    struct coll_team *team = threads->team;
    pthread_mutex_lock(&team->mutex);
    struct meeting *meeting = threads->meeting;
    assert(meeting->present > 0);
    if (!meeting->complete && meeting->blocks[comm->rank] == threads->block)
        meeting->blocks[comm->rank] = NULL;
    if (--meeting->present == 0)
        remove_meeting(team, meeting);
    pthread_mutex_unlock(&team->mutex);
}

/** Memory that lives as long as the meeting; NULL for 0 bytes and after an error. */
static zero_result keep_memory(struct coll_comm *comm, size_t bytes, void **memory,
                               struct base_error *error)
{
    struct threads *threads = comm->link;
    assert(threads->meeting);
    *memory = NULL;
    struct coll_retained *retained;
    const zero_result result = coll_retained_create(&retained, comm->name, bytes, error);
    if (result != ZERO_OK)
        return result;
    *memory = retained->memory;
    pthread_mutex_lock(&threads->team->mutex);
    retained->next = threads->meeting->retained;
    threads->meeting->retained = retained;
    pthread_mutex_unlock(&threads->team->mutex);
    return ZERO_OK;
}

/** Takes this rank's place in the meeting of the communicator's name. */
static zero_result come(struct coll_comm *comm, struct base_error *error)
{
    struct threads *threads = comm->link;
    assert(!threads->meeting);
    struct coll_team *team = threads->team;
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&team->mutex);
    struct meeting *meeting = find_meeting(team, comm->name);
    if (!meeting) {
        result = zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    } else {
        meeting->present++;
        threads->meeting = meeting;
    }
    pthread_mutex_unlock(&team->mutex);
    return result;
}

static const char *missing_text(const struct coll_comm *comm, const struct meeting *meeting,
                                struct base_numbers *missing)
{
    *missing = (struct base_numbers){.count = 0};
    for (int rank = 0; rank < comm->world; rank++)
        if (!meeting->blocks[rank])
            base_numbers_add(missing, rank);
    return base_numbers_text(missing, "rank");
}

static zero_result fail_incomplete(const struct coll_comm *comm, const struct meeting *meeting,
                                   struct base_error *error)
{
    struct base_numbers missing;
    return zero_fail(error, ZERO_E_TIMEOUT, "communicator %s: rank %d waited %.1f s for %s of %d",
                     comm->name, comm->rank, (double)comm->comm_world->timeout_ns * 1e-9,
                     missing_text(comm, meeting, &missing), comm->world);
}

/** Waits until all ranks are there, or the time is over, and says meanwhile which are not. The
 * team's mutex is this thread's, except while it waits and says so. */
static void await_all(struct coll_comm *comm, struct meeting *meeting)
{
    struct coll_team *team = ((struct threads *)comm->link)->team;
    struct base_reminder said = {.first_ns = comm->comm_world->remind_ns};
    const uint64_t begun = base_clock_ns(), timeout_ns = comm->comm_world->timeout_ns;
    for (uint64_t waited = 0; !meeting->complete && waited < timeout_ns;
         waited = base_clock_ns() - begun) {
        const uint64_t next = base_reminder_next(&said);
        struct base_numbers missing;
        if (base_reminder_due(&said, waited)) {
            missing_text(comm, meeting, &missing);
            pthread_mutex_unlock(&team->mutex);
            base_logf(comm->comm_world->log, ZERO_LOG_WARN, "coll",
                      "the ranks that open \"%s\" have waited %.0f s for %s of %d", comm->name,
                      (double)waited * 1e-9, missing.text, comm->world);
            pthread_mutex_lock(&team->mutex);
        } else {
            base_cond_wait_until(&team->complete, &team->mutex,
                                 begun + (next < timeout_ns ? next : timeout_ns));
        }
    }
}

/** Shows the others this rank's block and waits for theirs. */
static zero_result meet_ranks(struct coll_comm *comm, struct base_error *error)
{
    struct threads *threads = comm->link;
    struct coll_team *team = threads->team;
    struct meeting *meeting = threads->meeting;
    assert(meeting && threads->block);
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&team->mutex);
    if (meeting->blocks[comm->rank]) {
        result = zero_fail(error, ZERO_E_INVALID, "communicator %s: rank %d is there twice",
                           comm->name, comm->rank);
        goto out;
    }
    meeting->blocks[comm->rank] = threads->block;
    meeting->complete = true;
    for (int rank = 0; rank < comm->world; rank++)
        meeting->complete &= meeting->blocks[rank] != NULL;
    if (meeting->complete)
        pthread_cond_broadcast(&team->complete);
    await_all(comm, meeting);
    if (!meeting->complete) {
        result = fail_incomplete(comm, meeting, error);
        goto out;
    }
    memcpy(threads->host.blocks, meeting->blocks, (size_t)comm->world * sizeof *meeting->blocks);
out:
    pthread_mutex_unlock(&team->mutex);
    return result;
}

/* ------------------------------------------------------------------ the transport */

static zero_result team_open(struct coll_comm *comm, struct coll_team *team, bool owned,
                             struct base_error *error)
{
    struct threads *threads = base_calloc(1, sizeof *threads);
    if (!threads) {
        if (owned)
            coll_team_free(team);
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    }
    comm->link = threads;
    threads->team = team;
    threads->team_owned = owned;
    zero_result result = coll_host_init(&threads->host, comm, false, error);
    if (result == ZERO_OK)
        result = come(comm, error);
    void *block = NULL;
    if (result == ZERO_OK)
        result = keep_memory(comm, coll_host_block_bytes(comm->world), &block, error);
    if (result != ZERO_OK)
        return result;
    threads->block = block;
    coll_host_prepare(block);
    result = meet_ranks(comm, error);
    if (result == ZERO_OK)
        coll_host_join(comm);
    return result;
}

static void team_close(struct coll_comm *comm)
{
    struct threads *threads = comm->link;
    if (!threads)
        return;
    if (comm->comm_world->poison)
        coll_host_leave(comm);
    if (threads->meeting)
        leave_meeting(comm);
    if (threads->team_owned)
        coll_team_free(threads->team);
    coll_host_free(&threads->host, comm);
    base_free(threads);
}

static zero_result team_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                    struct base_error *error)
{
    return arena->shared ? coll_shared_create(comm, arena, comm->rank == 0, error)
                         : keep_memory(comm, arena->bytes, &arena->base, error);
}

/** Every rank maps rank 0's memory for itself, so that the last one to leave frees it. */
static zero_result share_one(struct coll_comm *comm, struct coll_arena *arena,
                             struct base_error *error)
{
    int memory = arena->memory;
    zero_result result = coll_broadcast(comm, &memory, sizeof memory, 0);
    if (result != ZERO_OK)
        return coll_state(comm, error);
    if (comm->rank > 0) {
        close(arena->memory);
        arena->memory = fcntl(memory, F_DUPFD_CLOEXEC, 0);
        if (arena->memory < 0)
            return zero_fail_errno(error, ZERO_E_NOMEM, errno,
                                   "communicator %s: a descriptor for shared memory", comm->name);
    }
    return coll_shared_allocate(comm, arena, error);
}

static zero_result team_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                    struct base_error *error)
{
    if (arena->shared)
        return share_one(comm, arena, error);
    const zero_result result = coll_exchange(comm, &arena->base, sizeof arena->base, arena->peers);
    return result == ZERO_OK ? ZERO_OK : coll_state(comm, error);
}

static zero_result team_arena_populate(struct coll_comm *comm, struct coll_arena *arena,
                                       struct base_error *error)
{
    const zero_result result = coll_shared_check(arena, error);
    return result == ZERO_OK ? coll_shared_map(comm, arena, error) : result;
}

static void team_arena_free(struct coll_comm *comm, struct coll_arena *arena)
{
    // The memory of an arena that is not shared is the meeting's: peers may still read it.
    (void)comm;
    if (arena->shared)
        coll_shared_free(arena);
}

static zero_result add_group_slot(struct coll_comm *root, size_t index, size_t bytes,
                                  struct host_block **block, struct base_error *error)
{
    (void)index;
    void *memory = NULL;
    const zero_result result = keep_memory(root, bytes, &memory, error);
    *block = memory;
    return result;
}

static zero_result team_group_prepare(struct coll_comm *comm, size_t *part,
                                      struct base_error *error)
{
    size_t group_slot;
    const zero_result result = coll_host_group_prepare(comm, add_group_slot, &group_slot, error);
    if (result == ZERO_OK)
        *part = (size_t)(uintptr_t)coll_host_own(comm);
    return result;
}

static void team_group_meet(struct coll_comm *comm, int rank, size_t part)
{
    coll_host_group_meet(comm, rank, (struct host_block *)(uintptr_t)part);
}

static void team_group_close(struct coll_comm *comm)
{
    coll_host_group_close(comm, true);
}

static size_t team_memory(int world)
{
    return coll_host_memory(world, false);
}

/** The rank of `self` is a team of one, which its communicator owns. */
static zero_result threads_open(struct coll_comm *comm, const struct coll_config *config,
                                struct base_error *error)
{
    const bool self = strcmp(config->transport, "self") == 0;
    struct coll_team *team = config->team;
    if (self && config->world != 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator %s: transport self has one rank, not %d", comm->name,
                         config->world);
    if (!self && (!team || team->world != config->world))
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator %s: %d ranks as threads need a team of that size",
                         comm->name, config->world);
    const zero_result result = self ? coll_team_create(&team, 1, error) : ZERO_OK;
    return result == ZERO_OK ? team_open(comm, team, self, error) : result;
}

const struct coll_transport coll_transport_threads = {
    .size = sizeof(struct coll_transport),
    .memory = team_memory,
    .open = threads_open,
    .close = team_close,
    .group_prepare = team_group_prepare,
    .group_meet = team_group_meet,
    .group_close = team_group_close,
    .arena_alloc = team_arena_alloc,
    .arena_share = team_arena_share,
    .arena_populate = team_arena_populate,
    .arena_free = team_arena_free,
    .start = coll_host_start,
    .progress = coll_host_progress,
    .drained = coll_host_drained,
    .presence = coll_host_presence,
    .last_call = coll_host_last_call,
    .wake = coll_host_wake,
    .sleep_begin = coll_host_sleep_begin,
    .sleep = coll_host_sleep,
    .sleep_end = coll_host_sleep_end,
};
