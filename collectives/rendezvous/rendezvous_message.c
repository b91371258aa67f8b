#include "collectives/rendezvous/rendezvous_link.h"

#include "base/clock.h"
#include "base/forked.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(sizeof(struct boot_header) == 56, "the header has no padding");
_Static_assert(sizeof(struct boot_hello) <= BOOT_PART_BYTES, "a hello is one message");

// Room for the ancillary data of one message.
union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(BOOT_FDS_MAX * sizeof(int))];
};

void boot_fd_close(int *fd)
{
    base_forked_release(*fd);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int boot_fd_guard(int fd)
{
    const int errnum = fd < 0 ? errno : base_forked_guard(fd);
    if (fd < 0 || !errnum)
        return fd;
    close(fd);
    errno = errnum;
    return -1;
}

int boot_time_left(uint64_t deadline_ns, int most)
{
    const uint64_t now = base_clock_ns();
    if (now >= deadline_ns)
        return 0;
    const uint64_t ms = (deadline_ns - now + 999999) / 1000000;
    return ms < (uint64_t)most ? (int)ms : most;
}

static zero_result wait_writable(int fd, uint64_t deadline_ns, struct base_error *error)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    const int left = boot_time_left(deadline_ns, 1000);
    if (left == 0)
        return zero_fail(error, ZERO_E_TIMEOUT, "a rank does not read its rendezvous socket");
    if (poll(&poll_fd, 1, left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "poll of a rendezvous socket");
    return ZERO_OK;
}

// A user's descriptors under way are limited: those that receive them have to take some first,
// and nothing tells when they have.
static zero_result wait_for_takers(uint64_t deadline_ns, struct base_error *error)
{
    const int left = boot_time_left(deadline_ns, 1);
    if (left == 0)
        return zero_fail_errno(error, ZERO_E_TIMEOUT, ETOOMANYREFS,
                               "this user's processes don't take the descriptors sent to them");
    poll(NULL, 0, left);
    return ZERO_OK;
}

static void attach_fds(struct msghdr *out, union control *control, const int *fds, int count)
{
    if (count == 0)
        return;
    const size_t bytes = (size_t)count * sizeof *fds;
    memset(control, 0, sizeof *control);
    out->msg_control = control->bytes;
    out->msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *rights = CMSG_FIRSTHDR(out);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(rights), fds, bytes);
}

zero_result boot_send(int fd, struct boot_header *header, const void *payload, const int *fds,
                      int count, uint64_t deadline_ns, struct base_error *error)
{
    header->magic = BOOT_MAGIC;
    header->protocol = BOOT_PROTOCOL;
    header->fds = (uint32_t)count;
    struct iovec parts[2] = {{header, sizeof *header}, {(void *)payload, header->length}};
    struct msghdr out = {.msg_iov = parts, .msg_iovlen = header->length ? 2 : 1};
    union control control;
    attach_fds(&out, &control, fds, count);

    for (;;) {
        if (sendmsg(fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return ZERO_OK;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return zero_fail(error, ZERO_E_PEER, "a rank has closed its rendezvous socket");
        if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS)
            return zero_fail_errno(error, ZERO_E_IO, errno,
                                   "sending %u bytes and %d descriptors to a rank", header->length,
                                   count);
        const zero_result result = errno == ETOOMANYREFS ? wait_for_takers(deadline_ns, error)
                                                         : wait_writable(fd, deadline_ns, error);
        if (result)
            return result;
    }
}

// Takes over the descriptors that came with a message, and closes those beyond `room`. Returns how
// many came.
static int detach_fds(struct msghdr *in, int *fds, int room)
{
    int came = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(in); part; part = CMSG_NXTHDR(in, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, came++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (came < room)
                fds[came] = fd;
            else
                close(fd);
        }
    }
    return came;
}

/** Whether the payload of a whole message is what its header says. */
static bool is_valid(const struct boot_message *message, size_t bytes)
{
    const struct boot_header *header = &message->header;
    return bytes >= sizeof *header && header->length == bytes - sizeof *header;
}

static zero_result check(const struct boot_message *message, size_t bytes, const struct msghdr *in,
                         int came, struct base_error *error)
{
    const struct boot_header *header = &message->header;
    if (bytes < sizeof header->magic + 2 * sizeof header->protocol || header->magic != BOOT_MAGIC)
        return zero_fail(error, ZERO_E_INVALID, "%zu bytes that are no message of a rank", bytes);
    if (header->protocol != BOOT_PROTOCOL)
        return zero_fail(error, ZERO_E_VERSION,
                         "a rank speaks version %u of the rendezvous, this one version %u: link "
                         "all ranks with the same library",
                         header->protocol, BOOT_PROTOCOL);
    if (in->msg_flags & MSG_TRUNC || !is_valid(message, bytes))
        return zero_fail(error, ZERO_E_INVALID, "a message whose length is not what it says");
    if (in->msg_flags & MSG_CTRUNC || (uint32_t)came != header->fds) {
        char limit[BASE_LIMIT_TEXT];
        base_limit_text(EMFILE, limit);
        return zero_fail(error, ZERO_E_IO, "%d of %u descriptors arrived%s", came, header->fds,
                         limit);
    }
    return ZERO_OK;
}

zero_result boot_receive(int fd, struct boot_message *message, int *fds, int room, bool *arrived,
                         struct base_error *error)
{
    struct iovec part = {message, sizeof *message};
    union control control;
    struct msghdr in = {.msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes};
    *arrived = false;
    const ssize_t bytes = recvmsg(fd, &in, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A reset is reported once, and before what the other end has sent: the next call has that.
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET))
        return ZERO_OK;
    if (bytes < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "receiving from a rank");
    if (bytes <= 0)
        return zero_fail(error, ZERO_E_PEER, "a rank has closed its rendezvous socket");

    const int came = detach_fds(&in, fds, room);
    const zero_result result = check(message, (size_t)bytes, &in, came, error);
    if (result) {
        for (int i = 0; i < came && i < room; i++)
            boot_fd_close(&fds[i]);
        return result;
    }
    *arrived = true;
    return ZERO_OK;
}

void boot_send_failure(int fd, zero_result result, const char *text)
{
    struct boot_failure failure = {.result = result};
    snprintf(failure.text, sizeof failure.text, "%s", text);
    struct boot_header header = {.type = BOOT_FAIL, .length = sizeof failure};
    // Whoever doesn't read must not hold up the one that gives up.
    boot_send(fd, &header, &failure, NULL, 0, 0, NULL);
}

void boot_tell_ranks(struct boot_link *link, zero_result result, const char *text)
{
    for (int rank = 1; rank < link->socket_count; rank++)
        if (link->sockets[rank] >= 0)
            boot_send_failure(link->sockets[rank], result, text);
}

zero_result boot_peer_failure(const struct boot_message *message, struct base_error *error)
{
    struct boot_failure failure;
    if (message->header.length != sizeof failure)
        return zero_fail(error, ZERO_E_PEER, "rank 0 gave up");
    memcpy(&failure, message->payload, sizeof failure);
    failure.text[sizeof failure.text - 1] = '\0';
    return zero_fail(error, base_failure_of(failure.result, ZERO_E_PEER), "%s", failure.text);
}
