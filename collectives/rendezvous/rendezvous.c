#include "collectives/rendezvous/meeting.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <unistd.h>

/* ------------------------------------------------------------------ where ranks meet */

bool boot_find_peer(int fd, struct ucred *peer)
{
    socklen_t size = sizeof *peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &size) == 0;
}

// The process that listens at this address already; 0: it has ended since.
static pid_t listener_pid(const struct sockaddr_un *address, socklen_t length)
{
    struct ucred peer = {.pid = 0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 &&
        (connect(fd, (const struct sockaddr *)address, length) || !boot_find_peer(fd, &peer)))
        peer.pid = 0;
    boot_fd_close(&fd);
    return peer.pid;
}

static zero_result listen_here(struct meeting *meeting, struct base_error *error)
{
    const struct boot_meeting *place = meeting->place;
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, place->job, place->name);
    meeting->listener = boot_socket(AF_UNIX);
    if (meeting->listener < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: a socket for the rendezvous");
    if (bind(meeting->listener, (struct sockaddr *)&address, length)) {
        if (errno != EADDRINUSE)
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: naming the rendezvous socket");
        return zero_fail(error, ZERO_E_INVALID,
                         "rank 0: process %d listens already as rank 0 of job %s, \"%s\": give "
                         "every job a ZERO_JOB of its own, every context a name",
                         (int)listener_pid(&address, length), place->job, place->name);
    }
    if (listen(meeting->listener, place->world + BOOT_CALLERS_MAX))
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: listening for the other ranks");
    return ZERO_OK;
}

static zero_result call_here(struct meeting *meeting, struct base_error *error)
{
    struct sockaddr_un address;
    struct ucred peer;
    const socklen_t length = boot_address(&address, meeting->place->job, meeting->place->name);
    int *fd = &meeting->sockets[0];
    *fd = boot_socket(AF_UNIX);
    if (*fd < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "a socket for the rendezvous");
    if (connect(*fd, (struct sockaddr *)&address, length)) {
        const int errnum = errno;
        boot_fd_close(fd);
        zero_fail_errno(error, ZERO_E_IO, errnum, "calling rank 0");
        return errnum == ECONNREFUSED || errnum == EAGAIN || errnum == EINTR ? ZERO_AGAIN
                                                                             : ZERO_E_IO;
    }
    if (!boot_find_peer(*fd, &peer))
        return zero_fail_errno(error, ZERO_E_IO, errno, "finding the process that listens");
    if (peer.uid != geteuid())
        return zero_fail(error, ZERO_E_INVALID,
                         "process %d of user %u listens in place of rank 0 of job %s",
                         (int)peer.pid, (unsigned)peer.uid, meeting->place->job);
    meeting->pids[0] = peer.pid;
    return ZERO_OK;
}

const char *boot_admit_user(void *user, struct boot_caller *caller)
{
    (void)user;
    struct ucred peer;
    if (!boot_find_peer(caller->fd, &peer))
        return "the system does not say who it is";
    caller->pid = peer.pid;
    return peer.uid == geteuid() ? NULL : "it belongs to another user";
}

static zero_result enter(struct meeting *meeting, const struct boot_caller *caller,
                         struct base_error *error)
{
    (void)meeting;
    (void)caller;
    (void)error;
    return ZERO_OK;
}

static void process_text(const struct boot_caller *caller, char text[BOOT_TEXT_BYTES])
{
    snprintf(text, BOOT_TEXT_BYTES, "process %d", (int)caller->pid);
}

// The socket as ss(8) shows it, job and name, and who can come there.
static void place_text(const struct meeting *meeting, char text[BOOT_TEXT_BYTES])
{
    static const char elsewhere[] = ": for ranks elsewhere set MASTER_ADDR, MASTER_PORT and "
                                    "ZERO_TRANSPORT=tcp on all ranks";
    const struct boot_meeting *place = meeting->place;
    struct sockaddr_un address;
    boot_address(&address, place->job, place->name);
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0},
                  "\"%s\", at the socket @%s, where only ranks of one host, user and network "
                  "namespace meet%s; job %s, to be the same on all (ZERO_JOB)",
                  place->name, address.sun_path + 1, place->all_here ? "" : elsewhere, place->job);
}

static void unreached_text(const struct meeting *meeting, zero_result result, const char *why,
                           struct base_text *text)
{
    char place[BOOT_TEXT_BYTES];
    place_text(meeting, place);
    if (result == ZERO_AGAIN)
        base_text_add(text, "rank 0 of %d did not come to the rendezvous in time (%s): %s",
                      meeting->place->world, place, why);
    else
        base_text_add(text, "%s", why);
}

// In words that are the same on every rank that waits: zero-run shows equal lines once.
static void say_waiting(struct meeting *meeting, double seconds, const char *ranks, const char *why)
{
    char place[BOOT_TEXT_BYTES];
    place_text(meeting, place);
    base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
              "the ranks at the rendezvous have waited %.0f s for %s of %d%s (%s)", seconds, ranks,
              meeting->place->world,
              !why                       ? ""
              : meeting->sockets[0] >= 0 ? ", which has not answered"
                                         : ", which does not listen",
              place);
}

static zero_result tell_pids(struct meeting *meeting, struct base_error *error)
{
    return boot_send_all(meeting, BOOT_GO, meeting->pids,
                         (size_t)meeting->place->world * sizeof *meeting->pids, error);
}

static zero_result hear_pids(struct meeting *meeting, struct base_error *error)
{
    return boot_hear(meeting, BOOT_GO, meeting->pids,
                     (size_t)meeting->place->world * sizeof *meeting->pids, error);
}

static const struct boot_way one_host = {
    .size = sizeof(struct boot_way),
    .name = "one host",
    .listen = listen_here,
    .call = call_here,
    .admit = boot_admit_user,
    .enter = enter,
    .caller_text = process_text,
    .place_text = place_text,
    .unreached_text = unreached_text,
    .say_waiting = say_waiting,
    .finish_server = tell_pids,
    .finish_client = hear_pids,
};

/* ------------------------------------------------------------------ the link */

static struct boot_link *create_link(const struct boot_meeting *meeting)
{
    struct boot_link *link = base_calloc(1, sizeof *link);
    if (!link)
        return NULL;
    const size_t world = (size_t)meeting->world;
    link->rank = meeting->rank;
    link->world = meeting->world;
    link->log = meeting->log;
    link->remind_ns = meeting->remind_ns;
    link->watch = -1;
    snprintf(link->job, sizeof link->job, "%s", meeting->job);
    snprintf(link->name, sizeof link->name, "%s", meeting->name);
    link->sockets = base_calloc(world, sizeof *link->sockets);
    link->watched = base_calloc(world, sizeof *link->watched);
    link->pids = base_calloc(world, sizeof *link->pids);
    link->polls = base_calloc(world + 1, sizeof *link->polls);
    link->socket_count = link->sockets ? (meeting->rank == 0 ? meeting->world : 1) : 0;
    for (size_t i = 0; link->sockets && i < world; i++)
        link->sockets[i] = -1;
    for (size_t i = 0; link->watched && i < world; i++)
        link->watched[i] = -1;
    if (link->sockets && link->watched && link->pids && link->polls)
        return link;
    boot_close(link);
    return NULL;
}

// Watches for the end of a rank's process, and of its socket if there is one: a process that runs
// another program closes that and lives on.
static bool watch(const struct boot_link *link, int rank)
{
    struct epoll_event ends = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    struct epoll_event closes = {.events = EPOLLRDHUP, .data.u32 = (uint32_t)rank};
    return epoll_ctl(link->watch, EPOLL_CTL_ADD, link->watched[rank], &ends) == 0 &&
           (rank >= link->socket_count ||
            epoll_ctl(link->watch, EPOLL_CTL_ADD, link->sockets[rank], &closes) == 0);
}

// Every rank gives a descriptor of its own process, so each can watch every other one.
static zero_result watch_peers(struct boot_link *link, uint64_t deadline_ns,
                               struct base_error *error)
{
    int mine = pidfd_open(getpid(), 0);
    if (mine < 0)
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errno,
                               "rank %d: pidfd_open (Linux 5.3 or newer has it)", link->rank);
    const zero_result result = boot_exchange_fds(link, &mine, 1, link->watched, deadline_ns, error);
    boot_fd_close(&mine);
    if (result)
        return result;

    link->watch = epoll_create1(EPOLL_CLOEXEC);
    if (link->watch < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: epoll_create1", link->rank);
    for (int rank = 0; rank < link->world; rank++)
        if (rank != link->rank && !watch(link, rank))
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: watching rank %d", link->rank,
                                   rank);
    return ZERO_OK;
}

zero_result boot_meet(struct boot_link **link, const struct boot_meeting *place,
                      struct base_error *error)
{
    *link = NULL;
    zero_result result = boot_meeting_check(place, BOOT_HOST_RANKS_MAX, error);
    if (result)
        return result;
    struct boot_link *made = create_link(place);
    if (!made)
        return boot_fail_memory(place, error);
    struct meeting meeting = {.way = &one_host,
                              .place = place,
                              .secret = "", // the kernel says whose process a caller is
                              .sockets = made->sockets,
                              .pids = made->pids};
    result = boot_meeting_run(&meeting, error);
    if (!result)
        result = watch_peers(made, place->deadline_ns, error);
    if (result)
        boot_close(made);
    else
        *link = made;
    return result;
}

void boot_close(struct boot_link *link)
{
    if (!link)
        return;
    for (int i = 0; i < link->socket_count; i++)
        boot_fd_close(&link->sockets[i]);
    for (int i = 0; link->watched && i < link->world; i++)
        boot_fd_close(&link->watched[i]);
    boot_fd_close(&link->watch);
    base_free(link->sockets);
    base_free(link->watched);
    base_free(link->pids);
    base_free(link->polls);
    base_free(link);
}

int boot_peer_gone(const struct boot_link *link)
{
    struct epoll_event event;
    return epoll_wait(link->watch, &event, 1, 0) == 1 ? (int)event.data.u32 : -1;
}

pid_t boot_peer_pid(const struct boot_link *link, int rank)
{
    return link->pids[rank];
}
