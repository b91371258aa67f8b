#include "collectives/rendezvous/rendezvous_link.h"

#include "base/arena.h"
#include "base/hash.h"
#include "base/text.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <unistd.h>

socklen_t boot_address(struct sockaddr_un *address, const struct boot_link *link)
{
    char key[BOOT_JOB_BYTES + BOOT_NAME_BYTES + 1];
    const int length = snprintf(key, sizeof key, "%s\n%s", link->job, link->name);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    // A name that starts with a zero byte is abstract: no file, gone with its socket.
    const int used =
        snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "zero-%u-%016llx",
                 (unsigned)geteuid(), (unsigned long long)base_hash64(key, (size_t)length, 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

void boot_place_text(const struct boot_link *link, char text[BOOT_TEXT_BYTES])
{
    static const char elsewhere[] = ": for ranks elsewhere set MASTER_ADDR, MASTER_PORT and "
                                    "ZERO_TRANSPORT=tcp on all ranks";
    struct sockaddr_un address;
    boot_address(&address, link);
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0},
                  "\"%s\", at the socket @%s, where only ranks of one host, user and network "
                  "namespace meet%s; job %s, to be the same on all (ZERO_JOB)",
                  link->name, address.sun_path + 1, link->all_here ? "" : elsewhere, link->job);
}

static zero_result check_meeting(const struct boot_meeting *meeting, struct base_error *error)
{
    if (meeting->world < 1 || meeting->world > BOOT_WORLD_MAX || meeting->rank < 0 ||
        meeting->rank >= meeting->world)
        return zero_fail(error, ZERO_E_INVALID, "rank %d of %d: there can be 1 to %d ranks",
                         meeting->rank, meeting->world, BOOT_WORLD_MAX);
    if (strlen(meeting->job) >= BOOT_JOB_BYTES || strlen(meeting->name) >= BOOT_NAME_BYTES)
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d: the job's id or the name \"%.100s\" is too long (%d and %d "
                         "bytes fit)",
                         meeting->rank, meeting->name, BOOT_JOB_BYTES - 1, BOOT_NAME_BYTES - 1);
    return ZERO_OK;
}

static struct boot_link *create_link(const struct boot_meeting *meeting)
{
    struct boot_link *link = base_calloc(1, sizeof *link);
    if (!link)
        return NULL;
    const size_t world = (size_t)meeting->world;
    link->rank = meeting->rank;
    link->world = meeting->world;
    link->log = meeting->log;
    link->all_here = meeting->all_here;
    link->remind_ns = meeting->remind_ns;
    link->asked = meeting->asked;
    link->watch = -1;
    snprintf(link->job, sizeof link->job, "%s", meeting->job);
    snprintf(link->name, sizeof link->name, "%s", meeting->name);
    link->sockets = base_calloc(world, sizeof *link->sockets);
    link->watched = base_calloc(world, sizeof *link->watched);
    link->pids = base_calloc(world, sizeof *link->pids);
    link->message = base_calloc(1, sizeof *link->message);
    link->polls = base_calloc(1 + BOOT_CALLERS_MAX + world, sizeof *link->polls);
    link->socket_count = link->sockets ? (meeting->rank == 0 ? meeting->world : 1) : 0;
    for (int i = 0; i < link->socket_count; i++)
        link->sockets[i] = -1;
    for (size_t i = 0; link->watched && i < world; i++)
        link->watched[i] = -1;
    if (link->sockets && link->watched && link->pids && link->message && link->polls)
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
    const pid_t pid = getpid();
    int mine = pidfd_open(pid, 0);
    if (mine < 0)
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errno,
                               "rank %d: pidfd_open (Linux 5.3 or newer has it)", link->rank);
    zero_result result = boot_exchange_fds(link, &mine, 1, link->watched, deadline_ns, error);
    boot_fd_close(&mine);
    if (!result)
        result = boot_exchange_bytes(link, &pid, sizeof pid, link->pids, deadline_ns, error);
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

zero_result boot_meet(struct boot_link **link, const struct boot_meeting *meeting,
                      struct base_error *error)
{
    *link = NULL;
    zero_result result = check_meeting(meeting, error);
    if (result)
        return result;
    struct boot_link *made = create_link(meeting);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "rank %d: no memory to meet %d ranks", meeting->rank,
                         meeting->world);
    if (made->world > 1)
        result = made->rank == 0 ? boot_server(made, meeting->deadline_ns, error)
                                 : boot_client(made, meeting->deadline_ns, error);
    if (!result)
        result = watch_peers(made, meeting->deadline_ns, error);
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
    base_free(link->message);
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
