// Every rank but 0: calls until rank 0 answers, says who it is, and waits to hear that all are
// there.

#include "collectives/rendezvous/rendezvous_link.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static zero_result call(struct boot_link *link, bool *answered, struct base_error *error)
{
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, link);
    int fd = boot_fd_guard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: a socket for the rendezvous",
                               link->rank);
    *answered = connect(fd, (struct sockaddr *)&address, length) == 0;
    if (*answered) {
        link->sockets[0] = fd;
        return ZERO_OK;
    }
    const int errnum = errno;
    boot_fd_close(&fd);
    if (errnum == ECONNREFUSED || errnum == EAGAIN || errnum == EINTR)
        return ZERO_OK;
    return zero_fail_errno(error, ZERO_E_IO, errnum, "rank %d: calling rank 0", link->rank);
}

static zero_result call_until_answered(struct boot_link *link, struct boot_wait *wait,
                                       uint64_t deadline_ns, struct base_error *error)
{
    bool answered = false;
    char place[BOOT_TEXT_BYTES];
    for (int pause_ms = 1;; pause_ms = pause_ms < 32 ? 2 * pause_ms : 50) {
        const zero_result result = call(link, &answered, error);
        if (result || answered)
            return result;
        double seconds;
        if (boot_wait_says(wait, &seconds))
            boot_say_waiting(link, seconds, "rank 0", ", which does not listen");
        const int left = boot_wait_left(wait, deadline_ns, pause_ms);
        if (left == 0 && boot_wait_stops(wait))
            return boot_fail_stopped(link->rank, "rank 0", link->world, error);
        if (left == 0) {
            boot_place_text(link, place);
            return zero_fail(error, ZERO_E_TIMEOUT,
                             "rank %d: rank 0 of %d did not come to the rendezvous in time (%s)",
                             link->rank, link->world, place);
        }
        poll(NULL, 0, left);
    }
}

static zero_result check_listener(const struct boot_link *link, struct base_error *error)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(link->sockets[0], SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: looking who listens", link->rank);
    if (peer.uid != geteuid())
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d: process %d of user %u listens in place of rank 0 of job %s",
                         link->rank, (int)peer.pid, (unsigned)peer.uid, link->job);
    link->pids[0] = peer.pid;
    return ZERO_OK;
}

static zero_result introduce(struct boot_link *link, uint64_t deadline_ns, struct base_error *error)
{
    struct boot_hello hello = {.rank = link->rank, .world = link->world};
    memcpy(hello.job, link->job, sizeof hello.job);
    memcpy(hello.name, link->name, sizeof hello.name);
    struct boot_header header = {.type = BOOT_HELLO, .length = sizeof hello};
    return boot_send(link->sockets[0], &header, &hello, NULL, 0, deadline_ns, error);
}

// Keeps the ranks that rank 0 says are missing.
static void keep_missing(struct boot_link *link)
{
    const struct boot_message *message = link->message;
    const size_t length = message->header.length < sizeof link->missing ? message->header.length
                                                                        : sizeof link->missing - 1;
    memcpy(link->missing, message->payload, length);
    link->missing[length] = '\0';
}

static zero_result wait_for_welcome(struct boot_link *link, struct boot_wait *wait,
                                    uint64_t deadline_ns, struct base_error *error)
{
    wait->verdict_ns = BOOT_VERDICT_NS;
    for (;;) {
        bool arrived = false;
        const zero_result result =
            boot_receive(link->sockets[0], link->message, NULL, 0, &arrived, error);
        if (result)
            return result;
        if (arrived && link->message->header.type == BOOT_WELCOME)
            return ZERO_OK;
        if (arrived && link->message->header.type == BOOT_FAIL)
            return boot_peer_failure(link->message, error);
        if (arrived && link->message->header.type != BOOT_MISSING)
            return zero_fail(error, ZERO_E_INVALID, "rank 0 sent a message of type %u",
                             link->message->header.type);
        if (arrived)
            keep_missing(link);
        double seconds;
        if (boot_wait_says(wait, &seconds))
            boot_say_waiting(link, seconds, *link->missing ? link->missing : "others", "");
        const int left = boot_wait_left(wait, deadline_ns + BOOT_VERDICT_NS, 1000);
        if (left == 0 && boot_wait_stops(wait))
            return boot_fail_stopped(link->rank, *link->missing ? link->missing : "others",
                                     link->world, error);
        if (left == 0)
            return zero_fail(error, ZERO_E_TIMEOUT,
                             "rank %d: rank 0 (process %d) does not answer; it waited for %s",
                             link->rank, (int)link->pids[0],
                             *link->missing ? link->missing : "other ranks");
        struct pollfd poll_fd = {.fd = link->sockets[0], .events = POLLIN};
        if (poll(&poll_fd, 1, left) < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for rank 0");
    }
}

zero_result boot_client(struct boot_link *link, uint64_t deadline_ns, struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK};
    struct boot_wait wait = boot_wait_begin(link->remind_ns, deadline_ns);
    wait.asked = link->asked;
    zero_result result = call_until_answered(link, &wait, deadline_ns, error);
    if (!result)
        result = check_listener(link, error);
    if (result)
        return result;
    result = introduce(link, deadline_ns, &failure);
    if (!result)
        result = wait_for_welcome(link, &wait, deadline_ns, &failure);
    if (result == ZERO_E_ABORTED) // rank 0 is not to take it for a death
        boot_send_failure(link->sockets[0], result, failure.message);
    if (result == ZERO_E_PEER)
        return zero_fail(error, result,
                         "rank %d: rank 0 (process %d) went away before all ranks "
                         "had met: %s",
                         link->rank, (int)link->pids[0], failure.message);
    return result ? zero_fail(error, result, "%s", failure.message) : ZERO_OK;
}
