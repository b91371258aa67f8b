#include "collectives/rendezvous/meeting.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/forked.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct boot_header) == 32, "the header has no padding");

// Room for the descriptors of one message.
union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(BOOT_FDS_MAX * sizeof(int))];
};

/* ------------------------------------------------------------------ descriptors */

void boot_fd_close(int *fd)
{
    base_forked_release(*fd);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int boot_time_left(uint64_t deadline_ns, int most)
{
    const uint64_t now = base_clock_ns();
    if (now >= deadline_ns)
        return 0;
    const uint64_t ms = (deadline_ns - now + 999999) / 1000000;
    return ms < (uint64_t)most ? (int)ms : most;
}

// No child gets this new descriptor (base/forked.h). Returns fd, or -1 with errno if it is -1
// already, or cannot be guarded, and then is closed.
static int guard(int fd)
{
    const int errnum = fd < 0 ? errno : base_forked_guard(fd);
    if (fd < 0 || !errnum)
        return fd;
    close(fd);
    errno = errnum;
    return -1;
}

int boot_socket(int family)
{
    errno = base_fault("boot.socket");
    return errno ? -1 : guard(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

zero_result boot_accept(int *fd, int listener, struct base_error *error)
{
    const int on = 1;
    errno = base_fault("boot.accept");
    *fd = errno ? -1 : guard(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (*fd >= 0) {
        setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on,
                   sizeof on); // a unix socket has no such delay
        return ZERO_OK;
    }
    // What is wrong with a connection that has not been accepted yet is reported here as well.
    if (errno == EMFILE || errno == ENFILE)
        return zero_fail_errno(error, ZERO_E_LIMIT, errno, "accepting a rank");
    if (errno != ENOMEM && errno != ENOBUFS)
        return ZERO_OK;
    return zero_fail_errno(error, ZERO_E_IO, errno, "accepting a rank");
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

/* ------------------------------------------------------------------ bytes */

static zero_result wait_until(int fd, short events, uint64_t deadline_ns, struct base_error *error)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    const int left = boot_time_left(deadline_ns, 1000);
    if (left == 0)
        return zero_fail(error, ZERO_E_TIMEOUT, "it does not %s in time",
                         events == POLLIN ? "answer" : "read");
    if (poll(&poll_fd, 1, left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "poll of a connection");
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

// Counts what a transfer moved, or says what it means that it moved nothing: ZERO_OK, try again.
static zero_result judge(int fd, ssize_t moved, size_t *done, short events, uint64_t deadline_ns,
                         struct base_error *error)
{
    if (moved > 0) {
        *done += (size_t)moved;
        return ZERO_OK;
    }
    if (moved == 0 || errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return zero_fail(error, ZERO_E_PEER, "it has closed its connection");
    if (errno == EINTR)
        return ZERO_OK;
    if (errno == EAGAIN)
        return wait_until(fd, events, deadline_ns, error);
    if (errno == ETOOMANYREFS)
        return wait_for_takers(deadline_ns, error);
    return zero_fail_errno(error, ZERO_E_IO, errno, "%s",
                           events == POLLIN ? "receiving" : "sending");
}

// Points *out at what remains of `parts` after `done` bytes.
static void skip_sent(struct msghdr *out, struct iovec left[3], const struct iovec parts[3],
                      size_t done)
{
    out->msg_iov = left;
    out->msg_iovlen = 0;
    for (int i = 0; i < 3; i++) {
        const size_t gone = done < parts[i].iov_len ? done : parts[i].iov_len;
        done -= gone;
        if (gone < parts[i].iov_len)
            left[out->msg_iovlen++] =
                (struct iovec){(char *)parts[i].iov_base + gone, parts[i].iov_len - gone};
    }
}

static struct boot_header header_of(enum boot_message_type type, zero_result result, size_t length,
                                    int fds)
{
    return (struct boot_header){.magic = BOOT_MAGIC,
                                .protocol = BOOT_PROTOCOL,
                                .type = type,
                                .result = result,
                                .length = (uint32_t)length,
                                .fds = (uint32_t)fds};
}

static zero_result send_message(int fd, const struct boot_header *header,
                                const struct iovec payload[2], const int *fds, uint64_t deadline_ns,
                                struct base_error *error)
{
    const struct iovec parts[3] = {{(void *)header, sizeof *header}, payload[0], payload[1]};
    const size_t length = sizeof *header + header->length;
    assert(header->fds <= BOOT_FDS_MAX && (fds || header->fds == 0));
    struct iovec left[3];
    struct msghdr out = {.msg_iovlen = 0};
    union control control;
    attach_fds(&out, &control, fds, (int)header->fds);
    for (size_t done = 0; done < length;) {
        if (done > 0) // the descriptors go with the first byte
            out = (struct msghdr){.msg_iovlen = 0};
        skip_sent(&out, left, parts, done);
        errno = base_fault("boot.send");
        const ssize_t moved = errno ? -1 : sendmsg(fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
        const zero_result result = judge(fd, moved, &done, POLLOUT, deadline_ns, error);
        if (result && done > 0) // the receiver is not to take what comes next for the rest of this
            shutdown(fd, SHUT_WR);
        if (result)
            return result;
    }
    return ZERO_OK;
}

zero_result boot_receive_bytes(int fd, void *bytes, size_t length, uint64_t deadline_ns,
                               struct base_error *error)
{
    for (size_t done = 0; done < length;) {
        errno = base_fault("boot.receive");
        const ssize_t moved =
            errno ? -1 : recv(fd, (char *)bytes + done, length - done, MSG_DONTWAIT);
        const zero_result result = judge(fd, moved, &done, POLLIN, deadline_ns, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

bool boot_receive_some(int fd, void *bytes, size_t size, size_t *used, bool *gone)
{
    errno = base_fault("boot.receive");
    const ssize_t moved = errno ? -1 : recv(fd, (char *)bytes + *used, size - *used, MSG_DONTWAIT);
    *gone = moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR);
    *used += moved > 0 ? (size_t)moved : 0;
    return *used == size;
}

// Receives a header and the descriptors that come with it; *came: how many, those closed included
// for which there was no room.
static zero_result receive_header(int fd, struct boot_header *header, int *fds, int room, int *came,
                                  uint64_t deadline_ns, struct base_error *error)
{
    union control control;
    assert(room >= 0 && room <= BOOT_FDS_MAX);
    *came = 0;
    for (size_t done = 0; done < sizeof *header;) {
        struct iovec part = {(char *)header + done, sizeof *header - done};
        struct msghdr in = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
        errno = base_fault("boot.receive");
        const ssize_t moved = errno ? -1 : recvmsg(fd, &in, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        const int kept = *came < room ? *came : room;
        if (moved > 0)
            *came += detach_fds(&in, room > 0 ? fds + kept : NULL, room - kept);
        const zero_result result = judge(fd, moved, &done, POLLIN, deadline_ns, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ messages */

zero_result boot_send_with(int fd, enum boot_message_type type, const struct iovec payload[2],
                           const int *fds, int count, uint64_t deadline_ns,
                           struct base_error *error)
{
    const struct boot_header header =
        header_of(type, ZERO_OK, payload[0].iov_len + payload[1].iov_len, count);
    return send_message(fd, &header, payload, fds, deadline_ns, error);
}

zero_result boot_send(int fd, enum boot_message_type type, const void *payload, size_t length,
                      uint64_t deadline_ns, struct base_error *error)
{
    const struct iovec parts[2] = {{(void *)payload, length}};
    return boot_send_with(fd, type, parts, NULL, 0, deadline_ns, error);
}

void boot_send_failure(int fd, zero_result result, const char *text)
{
    const size_t length = strlen(text) < BOOT_TEXT_BYTES ? strlen(text) : BOOT_TEXT_BYTES;
    const struct boot_header header = header_of(BOOT_FAIL, result, length, 0);
    const struct iovec parts[2] = {{(void *)text, length}};
    // A peer that does not read must not hold up the rank that gives up.
    send_message(fd, &header, parts, NULL, 0, NULL);
}

zero_result boot_check(const struct boot_header *header, size_t most, struct base_error *error)
{
    if (header->magic != BOOT_MAGIC)
        return zero_fail(error, ZERO_E_INVALID, "it is no rank of zero");
    if (header->protocol != BOOT_PROTOCOL)
        return zero_fail(error, ZERO_E_VERSION,
                         "it speaks version %u of the rendezvous, this one version %u: link all "
                         "ranks with the same library",
                         header->protocol, BOOT_PROTOCOL);
    if (header->zero != 0)
        return zero_fail(error, ZERO_E_INVALID, "the header of its message is damaged");
    if (header->type == BOOT_FAIL ? header->length > BOOT_TEXT_BYTES : header->length > most)
        return zero_fail(error, ZERO_E_INVALID, "it announces %u bytes, where there can be %zu",
                         header->length, most);
    return ZERO_OK;
}

static zero_result check_fds(const struct boot_header *header, int came, struct base_error *error)
{
    char limit[BASE_LIMIT_TEXT];
    if (header->fds == (uint32_t)came)
        return ZERO_OK;
    base_limit_text(EMFILE, limit);
    return zero_fail(error, ZERO_E_IO, "%d of %u descriptors arrived%s", came, header->fds, limit);
}

// What a peer says that gives up, as a failure of this rank.
static zero_result receive_failure(int fd, const struct boot_header *header, uint64_t deadline_ns,
                                   struct base_error *error)
{
    char text[BOOT_TEXT_BYTES + 1] = "";
    boot_receive_bytes(fd, text, header->length, deadline_ns, NULL);
    boot_clean(text, sizeof text); // it goes to logs, and there to terminals
    return zero_fail(error, base_failure_of(header->result, ZERO_E_PEER), "%s", text);
}

zero_result boot_receive_with(int fd, struct boot_header *header, size_t most, int *fds, int room,
                              uint64_t deadline_ns, struct base_error *error)
{
    int came;
    header->type = 0;
    zero_result result = receive_header(fd, header, fds, room, &came, deadline_ns, error);
    if (!result)
        result = boot_check(header, most, error);
    if (!result && header->type == BOOT_FAIL)
        result = receive_failure(fd, header, deadline_ns, error);
    if (!result)
        result = check_fds(header, came, error);
    for (int i = 0; result && i < came && i < room; i++)
        boot_fd_close(&fds[i]);
    return result;
}

zero_result boot_receive(int fd, struct boot_header *header, size_t most, uint64_t deadline_ns,
                         struct base_error *error)
{
    return boot_receive_with(fd, header, most, NULL, 0, deadline_ns, error);
}

void boot_clean(char *text, size_t size)
{
    size_t at = 0;
    assert(size > 0);
    text[size - 1] = '\0';
    for (; text[at]; at++)
        if (text[at] < ' ' || text[at] > '~')
            text[at] = '?';
    memset(text + at, 0, size - at);
}
