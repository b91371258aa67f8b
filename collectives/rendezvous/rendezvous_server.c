// Rank 0: listens until every rank of the job has come. Whoever else calls is refused and logged,
// and costs the job nothing but a line; a rank of the job that can never fit ends the meeting.

#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/rendezvous_link.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// How long a caller may take to introduce itself.
static const uint64_t hello_ns = UINT64_C(2000000000);

// Connected, but not yet introduced.
struct caller {
    int fd;
    pid_t pid;
    uint64_t deadline_ns;
};

struct server {
    struct boot_link *link;
    int listener;
    struct caller callers[BOOT_CALLERS_MAX];
    int caller_count;
    int missing;
    struct boot_wait wait;
};

// Who listens on our name: the one thing to know about whoever came first.
static pid_t listener_pid(const struct sockaddr_un *address, socklen_t length)
{
    struct ucred peer = {.pid = 0};
    socklen_t size = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (connect(fd, (const struct sockaddr *)address, length) ||
                    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)))
        peer.pid = 0;
    boot_fd_close(&fd);
    return peer.pid;
}

static zero_result open_listener(struct server *server, struct base_error *error)
{
    const struct boot_link *link = server->link;
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, link);
    server->listener =
        boot_fd_guard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (server->listener < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: a socket for the rendezvous");
    if (bind(server->listener, (struct sockaddr *)&address, length)) {
        if (errno != EADDRINUSE)
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: naming the rendezvous socket");
        return zero_fail(error, ZERO_E_INVALID,
                         "rank 0: process %d listens already as rank 0 of job %s, \"%s\": give "
                         "every job a ZERO_JOB of its own, every context a name",
                         (int)listener_pid(&address, length), link->job, link->name);
    }
    if (listen(server->listener, link->world + BOOT_CALLERS_MAX))
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: listening for the other ranks");
    return ZERO_OK;
}

static void refuse(struct server *server, struct caller *caller, zero_result result,
                   const char *why)
{
    base_logf(server->link->log, ZERO_LOG_WARN, "coll",
              "refused process %d at the rendezvous of job %s, \"%s\": %s", (int)caller->pid,
              server->link->job, server->link->name, why);
    char bytes[BOOT_TEXT_BYTES] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    base_text_add(&text, "refused by rank 0 (process %d): %s", (int)getpid(), why);
    boot_send_failure(caller->fd, result, bytes);
    boot_fd_close(&caller->fd);
}

static zero_result accept_caller(struct server *server, struct base_error *error)
{
    struct caller caller = {.deadline_ns = base_clock_ns() + hello_ns};
    caller.fd = boot_fd_guard(accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
            return ZERO_OK;
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: accepting a rank");
    }
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(caller.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
        boot_fd_close(&caller.fd);
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: looking who calls");
    }
    caller.pid = peer.pid;
    if (peer.uid != geteuid())
        refuse(server, &caller, ZERO_E_INVALID, "it belongs to another user");
    else
        server->callers[server->caller_count++] = caller;
    return ZERO_OK;
}

static zero_result introduce(struct server *server, struct caller *caller,
                             const struct boot_hello *hello, struct base_error *error)
{
    struct boot_link *link = server->link;
    char bytes[BOOT_TEXT_BYTES] = "";
    struct base_text why = {bytes, sizeof bytes, 0};
    if (strncmp(hello->job, link->job, sizeof hello->job) ||
        strncmp(hello->name, link->name, sizeof hello->name)) {
        refuse(server, caller, ZERO_E_INVALID, "it is of another job");
        return ZERO_OK;
    }
    if (hello->world != link->world) {
        base_text_add(&why, "rank %d (process %d) says there are %d ranks, rank 0 says %d",
                      hello->rank, (int)caller->pid, hello->world, link->world);
        refuse(server, caller, ZERO_E_INVALID, bytes);
        return zero_fail(error, ZERO_E_INVALID, "%s", bytes); // waiting would be in vain
    }
    if (hello->rank < 1 || hello->rank >= link->world) {
        base_text_add(&why, "there is no rank %d of %d to wait for", hello->rank, link->world);
        refuse(server, caller, ZERO_E_INVALID, bytes);
        return ZERO_OK;
    }
    if (link->sockets[hello->rank] >= 0) {
        base_text_add(&why, "rank %d is there already: process %d", hello->rank,
                      (int)link->pids[hello->rank]);
        refuse(server, caller, ZERO_E_INVALID, bytes);
        return ZERO_OK;
    }
    link->sockets[hello->rank] = caller->fd;
    link->pids[hello->rank] = caller->pid;
    caller->fd = -1;
    server->missing--;
    base_logf(link->log, ZERO_LOG_DEBUG, "coll", "rank %d (process %d) has come, %d missing",
              hello->rank, (int)caller->pid, server->missing);
    return ZERO_OK;
}

// Hears what a caller says, if it has said something or has been silent for too long.
static zero_result hear(struct server *server, struct caller *caller, bool ready,
                        struct base_error *error)
{
    struct base_error heard = {.result = ZERO_OK};
    struct boot_message *message = server->link->message;
    bool arrived = false;
    zero_result result = ZERO_OK;
    // What came while this process had no processor is no silence.
    const bool late = base_clock_ns() >= caller->deadline_ns;
    if (ready || late)
        result = boot_receive(caller->fd, message, NULL, 0, &arrived, &heard);
    if (result) {
        refuse(server, caller, result, heard.message);
        return ZERO_OK;
    }
    if (arrived && message->header.fds > 0) {
        refuse(server, caller, ZERO_E_INVALID, "it sends descriptors that nobody asked for");
    } else if (arrived) {
        struct boot_hello hello;
        if (message->header.type == BOOT_HELLO && message->header.length == sizeof hello) {
            memcpy(&hello, message->payload, sizeof hello);
            return introduce(server, caller, &hello, error);
        }
        refuse(server, caller, ZERO_E_INVALID, "its first message does not introduce it");
    } else if (late) {
        refuse(server, caller, ZERO_E_TIMEOUT, "it said nothing for 2 s");
    }
    return ZERO_OK;
}

static zero_result hear_all(struct server *server, struct base_error *error)
{
    zero_result result = ZERO_OK;
    int kept = 0;
    for (int i = 0; i < server->caller_count; i++) {
        if (!result)
            result =
                hear(server, &server->callers[i], server->link->polls[1 + i].revents != 0, error);
        if (server->callers[i].fd >= 0)
            server->callers[kept++] = server->callers[i];
    }
    server->caller_count = kept;
    return result;
}

// A rank that has come says nothing, unless it has been asked to stop.
static zero_result hear_rank(const struct boot_link *link, int rank, struct base_error *error)
{
    bool arrived = false;
    const zero_result result =
        boot_receive(link->sockets[rank], link->message, NULL, 0, &arrived, NULL);
    if (!result && arrived && link->message->header.type == BOOT_FAIL)
        return boot_peer_failure(link->message, error);
    return zero_fail(error, ZERO_E_PEER, "rank %d (process %d) went away before all ranks had met",
                     rank, (int)link->pids[rank]);
}

static zero_result check_ranks(const struct server *server, const struct pollfd *polls,
                               struct base_error *error)
{
    const struct boot_link *link = server->link;
    for (int rank = 1; rank < link->world; rank++)
        if (link->sockets[rank] >= 0 && polls[rank].revents)
            return hear_rank(link, rank, error);
    return ZERO_OK;
}

static zero_result fail_missing(struct server *server, struct base_error *error)
{
    const struct boot_link *link = server->link;
    struct base_numbers missing;
    char place[BOOT_TEXT_BYTES];
    if (boot_wait_stops(&server->wait))
        return boot_fail_stopped(0, boot_missing_text(&missing, link->sockets, 1, link->world),
                                 link->world, error);
    boot_place_text(link, place);
    return zero_fail(error, ZERO_E_TIMEOUT, "%s of %d did not come to the rendezvous in time (%s)",
                     boot_missing_text(&missing, link->sockets, 1, link->world), link->world,
                     place);
}

// Says, when it is time to, which ranks are missing: to the log, and to the ranks that have come.
static void remind(struct server *server)
{
    const struct boot_link *link = server->link;
    struct base_numbers missing;
    double seconds;
    const bool says = boot_wait_says(&server->wait, &seconds);
    if (!boot_wait_tells(&server->wait) && !says)
        return;
    const char *ranks = boot_missing_text(&missing, link->sockets, 1, link->world);
    for (int rank = 1; rank < link->world; rank++) {
        struct boot_header header = {.type = BOOT_MISSING, .length = (uint32_t)strlen(ranks)};
        if (link->sockets[rank] >= 0)
            boot_send(link->sockets[rank], &header, ranks, NULL, 0, 0, NULL);
    }
    if (says)
        boot_say_waiting(link, seconds, ranks, "");
}

// Waits for whatever comes next and deals with it.
static zero_result server_turn(struct server *server, uint64_t deadline_ns,
                               struct base_error *error)
{
    struct boot_link *link = server->link;
    const int callers = server->caller_count;
    // As long as the waiting room is full, newcomers wait outside.
    const bool room = callers < BOOT_CALLERS_MAX;
    link->polls[0] = (struct pollfd){.fd = room ? server->listener : -1, .events = POLLIN};
    for (int i = 0; i < callers; i++)
        link->polls[1 + i] = (struct pollfd){.fd = server->callers[i].fd, .events = POLLIN};
    struct pollfd *ranks = link->polls + 1 + callers;
    for (int rank = 0; rank < link->world; rank++)
        ranks[rank] = (struct pollfd){.fd = link->sockets[rank], .events = POLLIN};

    remind(server);
    const int left = boot_wait_left(&server->wait, deadline_ns, callers ? 100 : 1000);
    if (left == 0)
        return fail_missing(server, error);
    if (poll(link->polls, (nfds_t)(1 + callers + link->world), left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");

    const bool called = link->polls[0].revents != 0;
    zero_result result = check_ranks(server, ranks, error);
    if (!result)
        result = hear_all(server, error);
    if (!result && called)
        result = accept_caller(server, error);
    return result;
}

static zero_result welcome(struct server *server, uint64_t deadline_ns, struct base_error *error)
{
    for (int rank = 1; rank < server->link->world; rank++) {
        struct boot_header header = {.type = BOOT_WELCOME};
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result =
            boot_send(server->link->sockets[rank], &header, NULL, NULL, 0, deadline_ns, &sent);
        if (result)
            return zero_fail(error, result, "rank %d, as all ranks had met: %s", rank,
                             sent.message);
    }
    return ZERO_OK;
}

zero_result boot_server(struct boot_link *link, uint64_t deadline_ns, struct base_error *error)
{
    struct server server = {.link = link,
                            .listener = -1,
                            .missing = link->world - 1,
                            .wait = boot_wait_begin(link->remind_ns, deadline_ns)};
    struct base_error failure = {.result = ZERO_OK};
    server.wait.asked = link->asked;
    zero_result result = open_listener(&server, &failure);
    while (!result && server.missing)
        result = server_turn(&server, deadline_ns, &failure);
    // Closed first: a rank that has been welcomed may call again for its next communicator.
    boot_fd_close(&server.listener);
    if (!result)
        result = welcome(&server, deadline_ns, &failure);
    if (result)
        boot_tell_ranks(link, result, failure.message);
    for (int i = 0; i < server.caller_count; i++) {
        if (result)
            boot_send_failure(server.callers[i].fd, result, failure.message);
        boot_fd_close(&server.callers[i].fd);
    }
    return result ? zero_fail(error, result, "%s", failure.message) : ZERO_OK;
}
