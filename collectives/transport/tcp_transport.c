// Ranks of several hosts. Those of one host share memory (near.h). The folder tcp/
// keeps copies of the blocks of far ranks, and brings what this rank reads of them. What far ranks
// read of this one is freed when none of them needs it any more: leaving waits for that.

#include "base/arena.h"
#include "base/clock.h"
#include "collectives/rendezvous/mesh.h"
#include "collectives/tcp/tcp.h"
#include "collectives/transport/far_memory.h"
#include "collectives/transport/near.h"
#include "collectives/transport/retained_memory.h"
#include "collectives/transport/shared_memory.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

struct tcp {
    struct host_comm host; /**< first: host/ sees a struct host_comm */
    struct coll_near near;
    struct coll_net *net;
    unsigned char **bounces;        /**< of every near rank: what comes from ranks that it can't
                                         address */
    pid_t process;                  /**< that has opened it */
    bool started;                   /**< its thread is there */
    struct coll_retained *retained; /**< memory until the root is closed */
};

static struct tcp *of(const struct coll_comm *comm)
{
    return comm->comm_world->root->link;
}

/** A child made by fork() that closes has no thread, may find the network locked for ever, and its
 * parent doesn't leave. */
static bool is_ours(const struct coll_comm *comm)
{
    return of(comm)->process == getpid();
}

/* ------------------------------------------------------------------ arenas */

/** Zeroed and touched; NULL for 0 bytes and after an error. */
static zero_result keep_memory(const struct coll_comm *comm, size_t bytes, void **memory,
                               struct base_error *error)
{
    *memory = NULL;
    struct coll_retained *retained;
    const zero_result result = coll_retained_create(&retained, comm->name, bytes, error);
    if (result != ZERO_OK)
        return result;
    *memory = retained->memory;
    retained->next = of(comm)->retained;
    of(comm)->retained = retained;
    return ZERO_OK;
}

static zero_result tcp_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    return coll_near_arena_alloc(&of(comm)->near, arena, error);
}

/** Makes copies of the far ranks' small arenas. *small: some rank's is so small. */
static zero_result copy_small(const struct coll_comm *comm, const struct coll_arena *arena,
                              bool *small, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < comm->world && result == ZERO_OK; rank++) {
        void *copy = NULL;
        if (arena->peer_bytes[rank] > COLL_SHOWN_BYTES || arena->peer_bytes[rank] == 0)
            continue;
        *small = true;
        if (!coll_host_of(comm)->far[rank])
            continue;
        result = keep_memory(comm, arena->peer_bytes[rank], &copy, error);
        arena->peers[rank] = copy;
    }
    return result;
}

/** Lets a provider read the arena, whose pages are all there. The others wait for this rank's part
 * in it, come what may: `result`. */
static zero_result publish(struct coll_comm *comm, const struct coll_arena *arena,
                           zero_result result, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    const zero_result published = coll_far_publish(comm, arena, &why);
    return result != ZERO_OK || published == ZERO_OK
               ? result
               : zero_fail(error, published, "%s", why.message);
}

static zero_result tcp_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                   struct base_error *error)
{
    bool small = false;
    zero_result result = coll_near_arena_share(&of(comm)->near, arena, error);
    if (arena->shared)
        return result;
    if (result == ZERO_OK && coll_host_of(comm)->far_count > 0)
        result = copy_small(comm, arena, &small, error);
    if (result == ZERO_OK && small)
        result = coll_net_show_prepare(of(comm)->net, arena, error);
    return publish(comm, arena, result, error);
}

static zero_result tcp_arena_fill(struct coll_comm *comm, struct coll_arena *arena,
                                  struct base_error *error)
{
    return coll_near_arena_fill(&of(comm)->near, arena, error);
}

static zero_result tcp_arena_populate(struct coll_comm *comm, struct coll_arena *arena,
                                      struct base_error *error)
{
    return publish(comm, arena, coll_near_arena_populate(&of(comm)->near, arena, error), error);
}

static void tcp_arena_show(struct coll_comm *comm, struct coll_arena *arena)
{
    coll_net_show(of(comm)->net, arena);
}

static void tcp_arena_free(struct coll_comm *comm, struct coll_arena *arena)
{
    if (is_ours(comm)) {
        coll_net_show_forget(of(comm)->net, arena);
        coll_far_withdraw(comm, arena);
    }
    coll_near_arena_free(&of(comm)->near, arena);
}

/* ------------------------------------------------------------------ life */

static void send_changes(const struct coll_comm *comm)
{
    if (of(comm)->net)
        coll_net_send_changes(of(comm)->net);
}

static size_t tcp_memory(int world)
{
    return coll_host_memory(world, true) + coll_host_bounce_bytes(world) + coll_net_bytes(world);
}

/** Goes to work with the blocks that there are. The failure is this rank's copy of it: a near rank
 * may not have yet what far ones did before. */
static void join(struct coll_comm *comm)
{
    struct coll_comm_world *comm_world = comm->comm_world;
    coll_host_join(comm);
    comm_world->poison = &coll_host_own(comm)->poison;
    comm_world->yields = 4; // the network's thread may need the processor
}

/** Memory for what this rank can't address: of far ranks, and of near ones that the kernel does not
 * let it read. */
static zero_result join_reads(struct coll_comm *comm, bool allowed, struct base_error *error)
{
    struct tcp *tcp = comm->link;
    const zero_result result = coll_near_room_allocate(&tcp->near, error);
    for (int i = 0; i < tcp->near.count && result == ZERO_OK; i++)
        tcp->bounces[tcp->near.ranks[i]] = coll_near_room(&tcp->near, tcp->near.ranks[i]);
    return result == ZERO_OK ? coll_host_remote_read_join(comm, allowed, tcp->bounces, error)
                             : result;
}

/** Ranks of one host that are about to meet there. */
struct gathering {
    const struct boot_mesh *mesh;
    const struct coll_near *near;
};

/** Whether a near rank has said that it can't go on, or has ended: ZERO_OK if none has. */
static zero_result find_refusal(const struct boot_mesh *mesh, const struct coll_near *near,
                                struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int i = 0; i < near->count && result == ZERO_OK; i++)
        if (i != near->self)
            result = coll_net_refusal(mesh, near->ranks[i], error);
    return result;
}

static bool in_vain(void *user)
{
    const struct gathering *gathering = user;
    return find_refusal(gathering->mesh, gathering->near, NULL) != ZERO_OK;
}

/** The ranks of this host meet, by themselves: all ranks of the job have. */
static zero_result meet_near(struct coll_comm *comm, const struct coll_config *config,
                             const struct boot_mesh *mesh, struct base_error *error)
{
    struct coll_near *near = &of(comm)->near;
    struct gathering gathering = {mesh, near};
    struct base_error failure = {.result = ZERO_OK};
    char job[64];
    if (near->count == 1)
        return coll_near_meet(near, NULL, error);
    snprintf(job, sizeof job, "%016llx, host of rank %d", (unsigned long long)mesh->token,
             near->ranks[0]);
    const struct boot_meeting meeting = {
        .rank = near->self,
        .world = near->count,
        .job = job,
        .name = config->name,
        .deadline_ns = base_clock_ns() + config->timeout_ns,
        .log = config->log,
        .remind_ns = config->remind_ns,
        .all_here = true,
        .in_vain = in_vain,
        .user = &gathering,
    };
    const zero_result result = coll_near_meet(near, &meeting, &failure);
    return result == ZERO_OK ? ZERO_OK
                             : zero_fail(error, result, "meeting the %d ranks of its host: %s",
                                         near->count, failure.message);
}

/** The lowest rank of a rank's host. */
static int leader_of(const struct boot_mesh *mesh, int rank)
{
    return mesh->leaders ? mesh->leaders[rank] : rank;
}

/** How many ranks hosts have, and whether all have as many, one after another. ZERO_E_NOMEM. */
static zero_result count_hosts(struct coll_comm *comm, const struct boot_mesh *mesh,
                               struct base_error *error)
{
    struct coll_comm_world *comm_world = comm->comm_world;
    int *counts = base_calloc((size_t)comm->world, sizeof *counts);
    if (!counts)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    for (int rank = 0; rank < comm->world; rank++)
        counts[leader_of(mesh, rank)]++;
    int least = comm->world, most = 0;
    for (int rank = 0; rank < comm->world; rank++) {
        least = counts[rank] > 0 && counts[rank] < least ? counts[rank] : least;
        most = counts[rank] > most ? counts[rank] : most;
    }
    base_free(counts);
    assert(least >= 1 && least <= most);
    int each = least == most ? most : 0;
    for (int rank = 0; rank < comm->world && each > 0; rank++)
        each = leader_of(mesh, rank) == rank / each * each ? each : 0;
    comm_world->least_near = least;
    comm_world->most_near = most;
    comm_world->ranks_a_host = each;
    return ZERO_OK;
}

/** Which ranks are far: those of other hosts. */
static void find_far(struct coll_comm *comm, const struct boot_mesh *mesh)
{
    struct host_comm *host = coll_host_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        host->far[rank] = leader_of(mesh, rank) != leader_of(mesh, comm->rank);
        host->far_count += host->far[rank];
    }
}

static zero_result connect_in_steps(struct coll_comm *comm, const struct coll_config *config,
                                    struct boot_mesh *mesh, struct base_error *error)
{
    struct tcp *tcp = comm->link;
    assert(!tcp->started && !tcp->net);
    find_far(comm, mesh);
    zero_result result = count_hosts(comm, mesh, error);
    if (result == ZERO_OK)
        result = coll_near_init(&tcp->near, comm, coll_host_bounce_bytes(comm->world), error);
    if (result == ZERO_OK)
        result = meet_near(comm, config, mesh, error);
    if (result == ZERO_OK)
        result = coll_net_create(&tcp->net, comm, mesh, config->stall_ns, error);
    bool allowed = false;
    if (result == ZERO_OK) {
        join(comm);
        result = coll_near_begin_watch(&tcp->near, 0, error);
    }
    if (result == ZERO_OK)
        result = coll_near_probe(&tcp->near, base_clock_ns() + config->timeout_ns, &allowed, error);
    if (result == ZERO_OK)
        result = join_reads(comm, allowed, error);
    if (result == ZERO_OK)
        result = coll_net_start(tcp->net, mesh, error);
    tcp->started = result == ZERO_OK;
    return result;
}

/** Connects this rank with the others by a mesh, whose sockets it takes. They have met, and hear
 * why if it cannot. */
static zero_result connect_ranks(struct coll_comm *comm, const struct coll_config *config,
                                 struct boot_mesh *mesh, struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK}, refusal = {.result = ZERO_OK};
    const zero_result result = connect_in_steps(comm, config, mesh, &failure);
    if (result == ZERO_OK)
        return coll_far_open(comm, config, error);
    if (find_refusal(mesh, &of(comm)->near, &refusal) != ZERO_OK) {
        coll_net_pass_on(mesh, &refusal);
        return zero_fail(error, refusal.result, "%s", refusal.message);
    }
    coll_net_refuse(mesh, comm->rank, result, failure.message);
    return zero_fail(error, result, "%s", failure.message);
}

/** Starts with ranks that are yet to be met. */
static zero_result meet_ranks(struct coll_comm *comm, const struct coll_config *config,
                              struct base_error *error)
{
    const struct boot_meeting meeting = {
        .rank = config->rank,
        .world = config->world,
        .job = config->job,
        .name = config->name,
        .deadline_ns = base_clock_ns() + config->timeout_ns,
        .log = config->log,
        .remind_ns = config->remind_ns,
        .asked = config->asked,
        .each_rank = true,
    };
    struct boot_mesh mesh;
    zero_result result = boot_mesh_open(&mesh, &meeting, config->master, error);
    if (result == ZERO_OK)
        result = connect_ranks(comm, config, &mesh, error);
    boot_mesh_close(&mesh);
    return result;
}

static zero_result tcp_open(struct coll_comm *comm, const struct coll_config *config,
                            struct base_error *error)
{
    struct tcp *tcp = base_calloc(1, sizeof *tcp);
    if (!tcp)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    comm->link = tcp;
    tcp->process = getpid();
    tcp->host.send_changes = send_changes;
    zero_result result = coll_host_init(&tcp->host, comm, true, error);
    tcp->bounces = base_calloc((size_t)comm->world, sizeof *tcp->bounces);
    if (result == ZERO_OK && !tcp->bounces)
        result = zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", comm->name);
    if (result != ZERO_OK)
        return result;
    if (!config->mesh && config->master)
        return meet_ranks(comm, config, error);
    if (!config->mesh || config->mesh->world != config->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator %s: %d ranks by tcp need connections to all of them",
                         comm->name, config->world);
    return connect_ranks(comm, config, config->mesh, error);
}

void coll_stay_away(const struct boot_mesh *mesh, int rank, const struct base_error *why)
{
    if (mesh->world > 0)
        coll_net_refuse(mesh, rank, why->result, why->message);
}

static void tcp_leave(struct coll_comm *root)
{
    struct tcp *tcp = root->link;
    if (!tcp || !tcp->started || !is_ours(root))
        return;
    coll_net_drain(tcp->net, root->comm_world->timeout_ns);
    coll_host_leave(root);
    coll_net_stop(tcp->net);
    coll_far_halt(root);
}

static void tcp_close(struct coll_comm *root)
{
    struct tcp *tcp = root->link;
    if (!tcp)
        return;
    coll_far_close(root); // before the memory that it has registered
    coll_near_close(&tcp->near);
    coll_net_free(tcp->net);
    coll_host_free(&tcp->host, root);
    coll_retained_free(&tcp->retained);
    base_free(tcp->bounces);
    base_free(tcp);
}

static void tcp_revoke(struct coll_comm *root)
{
    if (of(root)->net && is_ours(root)) {
        coll_net_revoke(of(root)->net);
        coll_far_halt(root);
    }
}

static const char *tcp_host(const struct coll_comm *root, int rank)
{
    return coll_net_host(of(root)->net, rank);
}

/** The kernel marks the dead of this host before their connections end: all are told of them. */
static int tcp_dead_in_sight(const struct coll_comm *root)
{
    const int dead = coll_near_dead_in_sight(&of(root)->near);
    if (dead >= 0)
        coll_net_died(of(root)->net, dead);
    return -1; // what all come to is the failure, not what this rank sees
}

static void tcp_poll(struct coll_comm *comm)
{
    coll_net_poll(of(comm)->net);
}

static void tcp_poll_end(struct coll_comm *comm)
{
    coll_net_poll_end(of(comm)->net);
}

static void tcp_sleep_begin(struct coll_comm *comm)
{
    // What this rank has called last, a receive perhaps, is told while it waits.
    coll_host_sleep_begin(comm);
    coll_net_send_changes(of(comm)->net);
}

/* ------------------------------------------------------------------ groups */

static zero_result add_group_slot(struct coll_comm *root, size_t index, size_t bytes,
                                  struct host_block **block, struct base_error *error)
{
    return coll_near_add_group_slot(&of(root)->near, index, bytes, block, error);
}

static zero_result tcp_group_prepare(struct coll_comm *comm, size_t *part, struct base_error *error)
{
    const zero_result result = coll_host_group_prepare(comm, add_group_slot, part, error);
    return result == ZERO_OK ? coll_net_group_prepare(of(comm)->net, comm, *part, error) : result;
}

static void tcp_group_meet(struct coll_comm *comm, int rank, size_t part)
{
    if (coll_host_of(comm)->far[rank]) {
        coll_net_group_meet(of(comm)->net, comm, rank, part);
        return;
    }
    struct host_block *block =
        coll_near_group_slot(&of(comm)->near, coll_root_rank(comm, rank), part);
    coll_host_group_meet(comm, rank, block);
    // The pages are there. If this fails an access fills in the page table.
    coll_memory_populate(comm->name, block, coll_host_block_bytes(comm->world), true, NULL);
}

static void close_link(struct coll_comm *comm)
{
    coll_host_group_close(comm, is_ours(comm));
}

static void tcp_group_close(struct coll_comm *comm)
{
    if (is_ours(comm))
        coll_net_group_close(of(comm)->net, comm, close_link);
    else
        close_link(comm);
}

const struct coll_transport coll_transport_tcp = {
    .size = sizeof(struct coll_transport),
    .memory = tcp_memory,
    .open = tcp_open,
    .leave = tcp_leave,
    .close = tcp_close,
    .revoke = tcp_revoke,
    .host = tcp_host,
    .group_prepare = tcp_group_prepare,
    .group_parts = COLL_GROUPS_MAX,
    .group_meet = tcp_group_meet,
    .group_close = tcp_group_close,
    .arena_alloc = tcp_arena_alloc,
    .arena_share = tcp_arena_share,
    .arena_fill = tcp_arena_fill,
    .arena_populate = tcp_arena_populate,
    .arena_free = tcp_arena_free,
    .arena_show = tcp_arena_show,
    .start = coll_host_start,
    .progress = coll_host_progress,
    .drained = coll_host_drained,
    .presence = coll_host_presence,
    .last_call = coll_host_last_call,
    .dead_in_sight = tcp_dead_in_sight,
    .poll = tcp_poll,
    .poll_end = tcp_poll_end,
    .wake = coll_host_wake,
    .sleep_begin = tcp_sleep_begin,
    .sleep = coll_host_sleep,
    .sleep_end = coll_host_sleep_end,
};
