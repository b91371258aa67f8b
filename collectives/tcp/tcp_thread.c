// The thread: it moves what is to be moved, until this rank has left.

#include "collectives/tcp/tcp.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/forked.h"
#include "base/futex.h"
#include "base/thread.h"
#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024, EVENTS = 64 };

/** What the thread is woken for. Sockets are numbered by their peers. */
enum { DOORBELL, ANY_SOCKET };

static const uint64_t longest_tick_ns = UINT64_C(1000000000);
static const uint64_t shortest_tick_ns = UINT64_C(1000000);

/** How long a rank that leaves waits for the others to have heard it, when their systems have all
 * that it said. */
static const uint64_t farewell_ns = UINT64_C(1000000000);

/** How long for those, where silence is no matter. */
static const uint64_t longest_farewell_ns = UINT64_C(30000000000);

/** The less of two times as epoll_wait() takes it: in milliseconds, -1 for none. */
static int wait_ms(uint64_t a, uint64_t b)
{
    const uint64_t least = a < b ? a : b;
    return least == UINT64_MAX ? -1 : (int)((least + 999999) / 1000000);
}

/* ------------------------------------------------------------------ moving */

/** Has the thread told when there is room again, or not any more. */
static void poll_for_room(const struct coll_net *net, struct net_peer *peer, bool wanted)
{
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0U),
                                .data.u32 = (uint32_t)peer->rank};
    if (peer->polled == wanted)
        return;
    epoll_ctl(net->sockets, EPOLL_CTL_MOD, peer->socket, &event);
    peer->polled = wanted;
}

/** Sends what there is to send to a peer, and shows it the end when that was all. */
static void serve(struct coll_net *net, struct net_peer *peer)
{
    int failed;
    if (peer->socket < 0 || peer->ended || peer->shut)
        return;
    if (!peer->left && !coll_net_send(net, peer, &failed)) {
        // What it has sent before it ended is still to be heard: that ends it.
        if (failed != EPIPE && failed != ECONNRESET)
            coll_net_end(net, peer, failed);
        peer->shut = true;
        return;
    }
    const bool sent = peer->out.begin == peer->out.end && peer->out.tail_bytes == 0;
    poll_for_room(net, peer, !sent && !peer->left);
    if (peer->left || (peer->done && sent)) {
        shutdown(peer->socket, SHUT_WR);
        peer->shut = true;
    }
}

static void serve_all(struct coll_net *net)
{
    for (int rank = 0; rank < net->root->world; rank++)
        serve(net, &net->peers[rank]);
}

/** Receives from every peer that has sent something. */
static void rx_sockets(struct coll_net *net, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        int failed;
        assert(events[i].data.u32 < (uint32_t)net->root->world);
        struct net_peer *peer = &net->peers[events[i].data.u32];
        if (!peer->ended && !coll_net_receive(net, peer, &failed))
            coll_net_end(net, peer, failed);
    }
}

/** How long to wait for the next tick; ticks if it is time to. */
static uint64_t until_tick(struct coll_net *net)
{
    struct epoll_event ready[EVENTS];
    if (net->stall_ns == 0)
        return UINT64_MAX;
    const uint64_t now = base_clock_ns();
    if (now >= net->next_tick_ns) {
        // The rank may have left the connections unread while it computes.
        rx_sockets(net, ready, epoll_wait(net->sockets, ready, EVENTS, 0));
        coll_net_tick(net);
        net->next_tick_ns = now + net->tick_ns;
    }
    return net->next_tick_ns - now;
}

/** Sees to what the thread was woken for. */
static void rx_events(struct coll_net *net, const struct epoll_event *events, int count)
{
    struct epoll_event ready[EVENTS];
    uint64_t rung;
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == ANY_SOCKET)
            rx_sockets(net, ready, epoll_wait(net->sockets, ready, EVENTS, 0));
        else if (eventfd_read(net->doorbell, &rung) == 0)
            atomic_exchange(&net->kicked, 0); // sees what the last teller has stored before
    }
}

/** Wakes the rank's thread as coll_host_wake() of another rank would. */
static void wake(const struct coll_net *net)
{
    struct host_block *own = net->group_slots[0].block;
    atomic_store(&own->doorbell, 1);
    if (atomic_load(&own->asleep) != 0 && atomic_exchange(&own->asleep, 0) != 0)
        base_futex_wake(&own->asleep, INT_MAX, true);
}

/** Whether every peer knows that this rank leaves, or will never. */
static bool has_left(const struct coll_net *net)
{
    for (int rank = 0; rank < net->root->world; rank++)
        if (net->peers[rank].socket >= 0 && !net->peers[rank].ended)
            return false;
    return true;
}

/** Whether something that was said is not yet where a peer is. Its connection closed, what it says
 * itself before it has heard that would have its system throw the rest away. */
static bool is_unheard(const struct coll_net *net)
{
    for (int rank = 0; rank < net->root->world; rank++) {
        const struct net_peer *peer = &net->peers[rank];
        int under_way = 0;
        if (peer->socket < 0 || peer->ended || peer->left)
            continue;
        if (!peer->shut || (ioctl(peer->socket, SIOCOUTQ, &under_way) == 0 && under_way > 0))
            return true;
    }
    return false;
}

/** Whether a rank that has been leaving for so long waits for no other rank any more. Who hears
 * nothing for so long that it counts as a failure, or as long as any wait may be, will not; after a
 * failure who is too late to have a word in which it is. */
static bool gives_up(const struct coll_net *net, uint64_t waited_ns)
{
    uint64_t most_ns = net->stall_ns > 0 ? net->stall_ns : longest_farewell_ns;
    if (coll_failed(net->root) != ZERO_OK)
        most_ns = net_patience_ns + farewell_ns;
    most_ns = most_ns < net->timeout_ns ? most_ns : net->timeout_ns;
    return waited_ns >= farewell_ns && (waited_ns >= most_ns || !is_unheard(net));
}

static void *run(void *argument)
{
    struct coll_net *net = argument;
    struct epoll_event events[EVENTS];
    struct coll_clock farewell = {0};
    int count = 0;
    prctl(PR_SET_NAME, "zero-net");
    for (;;) {
        pthread_mutex_lock(&net->lock);
        rx_events(net, events, count);
        const uint64_t tick_ns = until_tick(net);
        serve_all(net);
        int timeout_ms = wait_ms(tick_ns, coll_net_settle(net));
        const bool leaving = atomic_load(&net->phase) == NET_LEAVING;
        const bool over = leaving && (has_left(net) || gives_up(net, coll_waited(&farewell)));
        pthread_mutex_unlock(&net->lock);
        wake(net);
        if (over)
            return NULL;
        if (leaving)
            timeout_ms = 10;
        count = epoll_wait(net->epoll, events, EVENTS, timeout_ms);
    }
}

void coll_net_send_changes(struct coll_net *net)
{
    // Who has something to tell does so by itself, unless another thread is at it: that may have
    // passed what has changed, and is to begin anew.
    if (pthread_mutex_trylock(&net->lock) == 0) {
        serve_all(net);
        pthread_mutex_unlock(&net->lock);
    } else if (atomic_exchange(&net->kicked, 1) == 0) {
        eventfd_write(net->doorbell, 1);
    }
}

void coll_net_died(struct coll_net *net, int rank)
{
    struct net_peer *peer = &net->peers[rank];
    pthread_mutex_lock(&net->lock);
    if (net_listens(peer)) {
        coll_net_lose(net, peer, 0);
        serve_all(net);
    }
    pthread_mutex_unlock(&net->lock);
}

/** Whether the thread sees to the connections: its rank may do so instead. */
static void watch_sockets(const struct coll_net *net, bool watched)
{
    struct epoll_event event = {.events = watched ? EPOLLIN : 0U, .data.u32 = ANY_SOCKET};
    epoll_ctl(net->epoll, EPOLL_CTL_MOD, net->sockets, &event);
}

void coll_net_poll(struct coll_net *net)
{
    struct epoll_event events[EVENTS];
    if (!net->polls)
        watch_sockets(net, false);
    net->polls = true;
    if (pthread_mutex_trylock(&net->lock) != 0)
        return; // the thread is at it
    const int count = epoll_wait(net->sockets, events, EVENTS, 0);
    rx_sockets(net, events, count);
    if (count > 0)
        serve_all(net);
    if (count > 0 && coll_net_failure(net))
        eventfd_write(net->doorbell, 1); // the thread sees to what comes of it
    pthread_mutex_unlock(&net->lock);
}

void coll_net_poll_end(struct coll_net *net)
{
    if (net->polls)
        watch_sockets(net, true);
    net->polls = false;
}

void coll_net_revoke(struct coll_net *net)
{
    // The thread reads the sources of ranks that have not failed, and with the lock.
    pthread_mutex_lock(&net->lock);
    pthread_mutex_unlock(&net->lock);
}

/* ------------------------------------------------------------------ life */

static uint64_t tick_of(uint64_t stall_ns)
{
    const uint64_t tick_ns = stall_ns / 8;
    if (tick_ns < shortest_tick_ns)
        return shortest_tick_ns;
    return tick_ns < longest_tick_ns ? tick_ns : longest_tick_ns;
}

static size_t slice_of(int world)
{
    assert(world >= 1);
    return coll_host_remote_read_bytes(world) / (size_t)world;
}

size_t coll_net_bytes(int world)
{
    return sizeof(struct coll_net) + (size_t)world * (sizeof(struct net_peer) + BOOT_HOST_BYTES +
                                                      slice_of(world) + coll_net_copy_bytes());
}

/** What belongs to a rank, but for the socket; of a far one that is a copy of its block. */
static void init_peer(struct coll_net *net, const struct boot_mesh *mesh, unsigned char *copies,
                      int rank)
{
    assert(rank >= 0 && rank < net->root->world);
    struct coll_comm *root = net->root;
    struct net_peer *peer = &net->peers[rank];
    peer->rank = rank;
    peer->socket = -1;
    memcpy(net->hosts[rank], mesh->hosts[rank], BOOT_HOST_BYTES);
    peer->bytes = net->pieces + (size_t)rank * net->slice;
    for (int group_slot = 1; group_slot < NET_GROUP_SLOTS; group_slot++)
        peer->blocks[group_slot].group_slot = -1;
    peer->far = coll_host_of(root)->far[rank];
    if (!peer->far)
        return;
    struct host_block *copy =
        (struct host_block *)(void *)(copies + (size_t)rank * coll_net_copy_bytes());
    coll_host_of(root)->blocks[rank] = copy;
    peer->blocks[0] = (struct net_peer_block){.copy = copy};
    peer->group_slots = 1;
    peer->sent[0] = (struct net_sent){.expected = true, .meets = true, .index = rank, .copy = copy};
}

/** Watches a descriptor by one of net's two epolls. */
static zero_result watch(const struct coll_net *net, int epoll, int descriptor, uint32_t number,
                         struct base_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno,
                               "communicator %s: watching the connections", net->root->name);
    return ZERO_OK;
}

static zero_result init(struct coll_net *net, const struct boot_mesh *mesh,
                        struct base_error *error)
{
    const size_t world = (size_t)net->root->world;
    const size_t copies = world * coll_net_copy_bytes();
    net->slice = slice_of(net->root->world);
    net->peers = base_aligned_alloc(alignof(max_align_t), world * sizeof *net->peers);
    net->hosts = base_calloc(world, sizeof *net->hosts);
    net->pieces = base_aligned_alloc(alignof(max_align_t), world * net->slice);
    unsigned char *memory = base_aligned_alloc(alignof(struct host_block), copies);
    net->group_slots[0] = (struct net_group_slot){coll_host_own(net->root), net->root->world,
                                                  net->root->rank, memory};
    if (!net->peers || !net->hosts || !net->pieces || !memory)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for %zu bytes",
                         net->root->name, coll_net_bytes(net->root->world));
    memset(memory, 0, copies);
    memset(net->peers, 0, world * sizeof *net->peers); // touched here, and in no collective
    memset(net->pieces, 0, world * net->slice);
    net->epoll = epoll_create1(EPOLL_CLOEXEC);
    net->sockets = epoll_create1(EPOLL_CLOEXEC);
    net->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->epoll < 0 || net->sockets < 0 || net->doorbell < 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno, "communicator %s: a descriptor",
                               net->root->name);
    for (int rank = 0; rank < net->root->world; rank++)
        init_peer(net, mesh, memory, rank);
    const zero_result result = watch(net, net->epoll, net->doorbell, DOORBELL, error);
    return result ? result : watch(net, net->epoll, net->sockets, ANY_SOCKET, error);
}

zero_result coll_net_create(struct coll_net **net, struct coll_comm *root,
                            const struct boot_mesh *mesh, uint64_t stall_ns,
                            struct base_error *error)
{
    assert(root == root->comm_world->root);
    struct coll_net *made = base_calloc(1, sizeof *made);
    *net = NULL;
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", root->name);
    *made = (struct coll_net){.root = root,
                              .timeout_ns = root->comm_world->timeout_ns,
                              .stall_ns = stall_ns,
                              .tick_ns = tick_of(stall_ns),
                              .epoll = -1,
                              .sockets = -1,
                              .doorbell = -1};
    pthread_mutex_init(&made->lock, NULL);
    const zero_result result = init(made, mesh, error);
    if (result != ZERO_OK) {
        for (int rank = 0; rank < root->world && made->peers; rank++)
            made->peers[rank].socket = -1;
        coll_net_free(made);
        return result;
    }
    root->comm_world->counters.memory_bytes += coll_net_bytes(root->world);
    *net = made;
    return ZERO_OK;
}

/** The mesh's sockets become the peers'. Those taken before an error are the caller's to forget. */
static zero_result take_sockets(struct coll_net *net, const struct boot_mesh *mesh,
                                struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < net->root->world && result == ZERO_OK; rank++) {
        if (rank == net->root->rank)
            continue;
        assert(mesh->sockets[rank] >= 0);
        const int socket = net->peers[rank].socket = mesh->sockets[rank];
        // Where silence is no matter this is what shows that a host has vanished. A system answers
        // for its processes, also for those that are suspended; it has no time-out of its own
        // (TCP_USER_TIMEOUT), in which their time would count.
        setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
        const int errnum = base_forked_guard(socket); // so that its end is this process's
        result = errnum
                     ? zero_fail_errno(error, ZERO_E_NOMEM, errnum,
                                       "rank %d: its connection to rank %d", net->root->rank, rank)
                     : watch(net, net->sockets, socket, (uint32_t)rank, error);
    }
    return result;
}

zero_result coll_net_start(struct coll_net *net, struct boot_mesh *mesh, struct base_error *error)
{
    net->next_tick_ns = base_clock_ns() + net->tick_ns;
    zero_result result = take_sockets(net, mesh, error);
    const int failed =
        result ? 0 : base_thread_start(&net->thread, "net.thread", STACK_BYTES, run, net);
    if (failed)
        result = zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                 "rank %d: a thread for its connections", net->root->rank);
    for (int rank = 0; rank < net->root->world; rank++)
        if (result == ZERO_OK)
            mesh->sockets[rank] = -1;
        else
            net->peers[rank].socket = -1;
    return result;
}

void coll_net_stop(struct coll_net *net)
{
    atomic_store(&net->phase, NET_LEAVING);
    eventfd_write(net->doorbell, 1);
    pthread_join(net->thread, NULL);
}

void coll_net_free(struct coll_net *net)
{
    if (!net)
        return;
    for (int rank = 0; rank < net->root->world && net->peers; rank++)
        if (net->peers[rank].socket >= 0) {
            base_forked_release(net->peers[rank].socket);
            close(net->peers[rank].socket);
        }
    if (net->epoll >= 0)
        close(net->epoll);
    if (net->sockets >= 0)
        close(net->sockets);
    if (net->doorbell >= 0)
        close(net->doorbell);
    for (size_t group_slot = 0; group_slot < NET_GROUP_SLOTS; group_slot++)
        base_free(net->group_slots[group_slot].copies);
    coll_net_free_shows(net);
    base_free(net->peers);
    base_free(net->hosts);
    base_free(net->pieces);
    pthread_mutex_destroy(&net->lock);
    base_free(net);
}

const char *coll_net_host(const struct coll_net *net, int rank)
{
    return net->hosts[rank];
}
