#include "collectives/rendezvous/mesh_stream.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(sizeof(struct mesh_header) == 24, "the header has no padding");
_Static_assert(sizeof(struct mesh_entry) == 104, "an entry has no padding");

// How long a host may take to answer a call; one that is switched off never does.
static const uint64_t answer_ns = UINT64_C(5000000000);

/* ------------------------------------------------------------------ addresses */

static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool is_v4(const unsigned char address[MESH_ADDRESS_BYTES])
{
    return memcmp(address, mapped, sizeof mapped) == 0;
}

bool mesh_is_loopback(const unsigned char address[MESH_ADDRESS_BYTES])
{
    static const unsigned char v6[MESH_ADDRESS_BYTES] = {[MESH_ADDRESS_BYTES - 1] = 1};
    return is_v4(address) ? address[sizeof mapped] == 127 : memcmp(address, v6, sizeof v6) == 0;
}

bool mesh_is_any(const unsigned char address[MESH_ADDRESS_BYTES])
{
    static const unsigned char none[MESH_ADDRESS_BYTES];
    const size_t before = is_v4(address) ? sizeof mapped : 0;
    return memcmp(address + before, none, sizeof none - before) == 0;
}

static socklen_t to_socket(struct sockaddr_storage *socket,
                           const unsigned char address[MESH_ADDRESS_BYTES], int port)
{
    memset(socket, 0, sizeof *socket);
    if (is_v4(address)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)socket;
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        memcpy(&v4->sin_addr, address + sizeof mapped, sizeof v4->sin_addr);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)socket;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    memcpy(&v6->sin6_addr, address, sizeof v6->sin6_addr);
    return sizeof *v6;
}

static bool from_socket(const struct sockaddr *socket, unsigned char address[MESH_ADDRESS_BYTES],
                        int *port)
{
    if (socket->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)socket;
        memcpy(address, mapped, sizeof mapped);
        memcpy(address + sizeof mapped, &v4->sin_addr, sizeof v4->sin_addr);
        *port = ntohs(v4->sin_port);
        return true;
    }
    if (socket->sa_family != AF_INET6)
        return false;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)socket;
    memcpy(address, &v6->sin6_addr, sizeof v6->sin6_addr);
    *port = ntohs(v6->sin6_port);
    return true;
}

bool mesh_address(int fd, bool other, unsigned char address[MESH_ADDRESS_BYTES], int *port)
{
    struct sockaddr_storage socket = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof socket;
    return (other ? getpeername : getsockname)(fd, (struct sockaddr *)&socket, &length) == 0 &&
           from_socket((struct sockaddr *)&socket, address, port);
}

static int resolve(const char *name, int flags, struct addrinfo **list)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    *list = NULL;
    return getaddrinfo(name, NULL, &hints, list);
}

// A socket may be bound where no route leads, in a network whose loopback was never up; and with a
// route elsewhere one without that address may call it.
bool boot_has_loopback(int family)
{
    const unsigned char v4[MESH_ADDRESS_BYTES] = {[10] = 0xff, 0xff, 127, 0, 0, 1};
    const unsigned char v6[MESH_ADDRESS_BYTES] = {[MESH_ADDRESS_BYTES - 1] = 1};
    struct sockaddr_storage name;
    const socklen_t length = to_socket(&name, family == AF_INET6 ? v6 : v4, 0);
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool there = fd >= 0 && bind(fd, (struct sockaddr *)&name, length) == 0;
    to_socket(&name, family == AF_INET6 ? v6 : v4, 9); // discard; nothing is sent
    there = there && connect(fd, (struct sockaddr *)&name, length) == 0;
    boot_fd_close(&fd);
    return there;
}

// What "localhost" is here: IPv4's loopback, or IPv6's where the host does not have that.
static const char *loopback_of_host(void)
{
    return boot_has_loopback(AF_INET) || !boot_has_loopback(AF_INET6) ? "127.0.0.1" : "::1";
}

bool mesh_names_loopback(const struct boot_master *master,
                         unsigned char address[MESH_ADDRESS_BYTES])
{
    const bool local = strcmp(master->address, "localhost") == 0;
    struct addrinfo *list;
    int port;
    const bool found =
        resolve(local ? loopback_of_host() : master->address, AI_NUMERICHOST, &list) == 0 &&
        from_socket(list->ai_addr, address, &port) && mesh_is_loopback(address);
    if (list)
        freeaddrinfo(list);
    return found;
}

// Whether an interface of this host has the address.
static bool is_of_this_host(const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage name;
    memcpy(&name, address, length);
    if (name.ss_family == AF_INET)
        ((struct sockaddr_in *)&name)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&name)->sin6_port = 0;
    int fd = socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&name, length) == 0;
    const bool known = bound || errno != EADDRNOTAVAIL;
    boot_fd_close(&fd);
    return known;
}

const char *mesh_doubt(const struct boot_master *master)
{
    unsigned char address[MESH_ADDRESS_BYTES];
    struct addrinfo *list;
    if (mesh_names_loopback(master, address))
        return "is reached by ranks of this host only";
    if (resolve(master->address, 0, &list))
        return "does not resolve on this host";
    bool own = false;
    for (const struct addrinfo *one = list; one && !own; one = one->ai_next)
        own = is_of_this_host(one->ai_addr, one->ai_addrlen);
    freeaddrinfo(list);
    return own ? NULL : "is no address of this host";
}

/* ------------------------------------------------------------------ connections */

static bool set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

static int stream_socket(int family)
{
    errno = base_fault("boot.socket");
    return errno ? -1
                 : boot_fd_guard(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// One that takes calls over both IPv4 and IPv6 if the address is any, where the kernel has both.
static int listening_socket(const unsigned char address[MESH_ADDRESS_BYTES],
                            struct sockaddr_storage *name, socklen_t *length, int port)
{
    *length = to_socket(name, address, port);
    const int fd = stream_socket(name->ss_family);
    if (fd >= 0 && name->ss_family == AF_INET6)
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (fd >= 0 || errno != EAFNOSUPPORT || name->ss_family == AF_INET)
        return fd;
    unsigned char any[MESH_ADDRESS_BYTES] = {0};
    memcpy(any, mapped, sizeof mapped);
    *length = to_socket(name, any, port);
    return stream_socket(AF_INET);
}

zero_result mesh_listen(int *fd, const unsigned char address[MESH_ADDRESS_BYTES], int port,
                        int backlog, struct base_error *error)
{
    struct sockaddr_storage name;
    socklen_t length;
    *fd = -1;
    if (mesh_is_loopback(address) && !boot_has_loopback(is_v4(address) ? AF_INET : AF_INET6))
        return zero_fail(error, ZERO_E_IO,
                         "listening at port %d of the loopback, whose %s address this host does "
                         "not have: give it one (\"ip link set lo up\"), or take transport=shm",
                         port, is_v4(address) ? "IPv4" : "IPv6");
    *fd = listening_socket(address, &name, &length, port);
    if (*fd < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "a socket to meet the other ranks");
    // Connections of the job before that are not quite over don't matter.
    if (set_option(*fd, SOL_SOCKET, SO_REUSEADDR, 1) &&
        bind(*fd, (struct sockaddr *)&name, length) == 0 && listen(*fd, backlog) == 0)
        return ZERO_OK;
    const int errnum = errno;
    boot_fd_close(fd);
    if (errnum == EADDRINUSE)
        return ZERO_AGAIN;
    return zero_fail_errno(error, ZERO_E_IO, errnum, "listening at port %d for other ranks", port);
}

// A call to a port of this host that nobody listens at can get the same port for its own end, and
// be connected to itself.
static bool is_own(int fd)
{
    unsigned char own[MESH_ADDRESS_BYTES], other[MESH_ADDRESS_BYTES];
    int own_port, other_port;
    return mesh_address(fd, false, own, &own_port) && mesh_address(fd, true, other, &other_port) &&
           own_port == other_port && memcmp(own, other, sizeof own) == 0;
}

// Waits for the answer to a call that is under way; 0, or why there is none.
static int await_answer(int fd, uint64_t deadline_ns)
{
    const uint64_t limit = base_clock_ns() + answer_ns;
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        const int left = boot_time_left(limit < deadline_ns ? limit : deadline_ns, 1000);
        if (left == 0)
            return ETIMEDOUT;
        const int ready = poll(&poll_fd, 1, left);
        if (ready < 0 && errno != EINTR)
            return errno;
        if (ready <= 0)
            continue;
        int errnum = 0;
        socklen_t size = sizeof errnum;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &size))
            return errno;
        return errnum;
    }
}

zero_result mesh_connect(int *fd, const unsigned char address[MESH_ADDRESS_BYTES], int port,
                         uint64_t deadline_ns, struct base_error *error)
{
    struct sockaddr_storage name;
    const socklen_t length = to_socket(&name, address, port);
    *fd = stream_socket(name.ss_family);
    int errnum = *fd < 0 ? errno : 0;
    if (*fd >= 0 && connect(*fd, (struct sockaddr *)&name, length))
        errnum = errno == EINPROGRESS || errno == EINTR ? await_answer(*fd, deadline_ns) : errno;
    if (!errnum && is_own(*fd))
        errnum = ECONNREFUSED;
    if (!errnum && !set_option(*fd, IPPROTO_TCP, TCP_NODELAY, 1))
        errnum = errno;
    if (!errnum)
        return ZERO_OK;
    boot_fd_close(fd);
    return zero_fail_errno(error, ZERO_E_IO, errnum, "calling");
}

zero_result mesh_call(int *fd, const struct boot_master *master, uint64_t deadline_ns,
                      struct base_error *error)
{
    *fd = -1;
    struct addrinfo *list;
    const bool local = strcmp(master->address, "localhost") == 0;
    const int missing = resolve(local ? loopback_of_host() : master->address, 0, &list);
    if (missing)
        return zero_fail(error, ZERO_E_IO, "its address: %s",
                         missing == EAI_SYSTEM ? strerror(errno) : gai_strerror(missing));
    struct base_error last = {.result = ZERO_OK};
    for (const struct addrinfo *one = list; one && *fd < 0; one = one->ai_next) {
        unsigned char address[MESH_ADDRESS_BYTES];
        int port;
        base_error_clear(&last);
        if (from_socket(one->ai_addr, address, &port))
            mesh_connect(fd, address, master->port, deadline_ns, &last);
    }
    freeaddrinfo(list);
    return *fd < 0 ? zero_fail(error, ZERO_E_IO, "%s", last.message) : ZERO_OK;
}

zero_result mesh_accept(int *fd, int listener, struct base_error *error)
{
    errno = base_fault("boot.accept");
    *fd = errno ? -1 : boot_fd_guard(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (*fd >= 0) {
        set_option(*fd, IPPROTO_TCP, TCP_NODELAY, 1);
        return ZERO_OK;
    }
    // What is wrong with a connection that has not been accepted yet is reported here as well.
    if (errno == EMFILE || errno == ENFILE)
        return zero_fail_errno(error, ZERO_E_LIMIT, errno, "accepting a rank");
    if (errno != ENOMEM && errno != ENOBUFS)
        return ZERO_OK;
    return zero_fail_errno(error, ZERO_E_IO, errno, "accepting a rank");
}

/* ------------------------------------------------------------------ messages */

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
    return zero_fail_errno(error, ZERO_E_IO, errno, "%s",
                           events == POLLIN ? "receiving" : "sending");
}

static zero_result send_bytes(int fd, const void *bytes, size_t length, uint64_t deadline_ns,
                              struct base_error *error)
{
    for (size_t done = 0; done < length;) {
        errno = base_fault("boot.send");
        const ssize_t moved = errno ? -1
                                    : send(fd, (const char *)bytes + done, length - done,
                                           MSG_NOSIGNAL | MSG_DONTWAIT);
        const zero_result result = judge(fd, moved, &done, POLLOUT, deadline_ns, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

zero_result mesh_receive_bytes(int fd, void *bytes, size_t length, uint64_t deadline_ns,
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

bool mesh_receive_some(int fd, void *bytes, size_t size, size_t *used, bool *gone)
{
    errno = base_fault("boot.receive");
    const ssize_t moved = errno ? -1 : recv(fd, (char *)bytes + *used, size - *used, MSG_DONTWAIT);
    *gone = moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR);
    *used += moved > 0 ? (size_t)moved : 0;
    return *used == size;
}

static struct mesh_header header_of(enum mesh_type type, zero_result result, size_t length)
{
    return (struct mesh_header){.magic = MESH_MAGIC,
                                .protocol = MESH_PROTOCOL,
                                .type = type,
                                .result = result,
                                .length = (uint32_t)length};
}

zero_result mesh_send(int fd, enum mesh_type type, const void *payload, size_t length,
                      uint64_t deadline_ns, struct base_error *error)
{
    const struct mesh_header header = header_of(type, ZERO_OK, length);
    const zero_result result = send_bytes(fd, &header, sizeof header, deadline_ns, error);
    return result ? result : send_bytes(fd, payload, length, deadline_ns, error);
}

void mesh_send_failure(int fd, zero_result result, const char *text)
{
    const size_t length = strlen(text) < BOOT_TEXT_BYTES ? strlen(text) : BOOT_TEXT_BYTES;
    const struct mesh_header header = header_of(MESH_FAIL, result, length);
    unsigned char bytes[sizeof header + BOOT_TEXT_BYTES];
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, text, length);
    // Whoever doesn't read must not hold up the one that gives up.
    send_bytes(fd, bytes, sizeof header + length, 0, NULL);
}

zero_result mesh_check(const struct mesh_header *header, size_t most, struct base_error *error)
{
    if (header->magic != MESH_MAGIC)
        return zero_fail(error, ZERO_E_INVALID, "it is no rank of zero");
    if (header->protocol != MESH_PROTOCOL)
        return zero_fail(error, ZERO_E_VERSION,
                         "it speaks version %u of the protocol, this one version %u: link all "
                         "ranks with the same library",
                         header->protocol, MESH_PROTOCOL);
    if (header->type == MESH_FAIL ? header->length > BOOT_TEXT_BYTES : header->length > most)
        return zero_fail(error, ZERO_E_INVALID, "it announces %u bytes, where there can be %zu",
                         header->length, most);
    return ZERO_OK;
}

zero_result mesh_receive(int fd, struct mesh_header *header, size_t most, uint64_t deadline_ns,
                         struct base_error *error)
{
    zero_result result = mesh_receive_bytes(fd, header, sizeof *header, deadline_ns, error);
    if (!result)
        result = mesh_check(header, most, error);
    if (result || header->type != MESH_FAIL)
        return result;
    char text[BOOT_TEXT_BYTES + 1] = "";
    mesh_receive_bytes(fd, text, header->length, deadline_ns, NULL);
    mesh_clean(text, sizeof text); // it goes to logs, and there to terminals
    return zero_fail(error, base_failure_of(header->result, ZERO_E_PEER), "%s", text);
}

void mesh_place_text(const struct boot_master *master, char text[BOOT_TEXT_BYTES])
{
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0}, "port %d of %s (%s)", master->port,
                  master->address, master->source);
}

void mesh_clean(char *text, size_t size)
{
    size_t at = 0;
    text[size - 1] = '\0';
    for (; text[at]; at++)
        if (text[at] < ' ' || text[at] > '~')
            text[at] = '?';
    memset(text + at, 0, size - at);
}
