#include "collectives/rendezvous/mesh_internal.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

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

int mesh_count_names(const struct boot_master *master)
{
    int count = 1;
    for (const char *at = master->address; *at; at++)
        count += *at == ',';
    return count;
}

// One of rank 0's names. "localhost" is an address.
static void copy_name(char name[BOOT_ADDRESS_BYTES], const struct boot_master *master, int index)
{
    const char *at = master->address;
    for (; index > 0; index--)
        at = strchr(at, ',') + 1;
    const size_t length = strcspn(at, ",");
    assert(length < BOOT_ADDRESS_BYTES);
    memcpy(name, at, length);
    name[length] = '\0';
    if (strcmp(name, "localhost") == 0)
        strcpy(name, loopback_of_host());
}

const char *mesh_doubt(const struct boot_master *master)
{
    unsigned char address[MESH_ADDRESS_BYTES];
    bool own = false, resolved = false;
    if (mesh_names_loopback(master, address))
        return "is reached by ranks of this host only";
    for (int i = 0; i < mesh_count_names(master) && !own; i++) {
        char name[BOOT_ADDRESS_BYTES];
        struct addrinfo *list;
        copy_name(name, master, i);
        if (resolve(name, 0, &list))
            continue;
        resolved = true;
        for (const struct addrinfo *one = list; one && !own; one = one->ai_next)
            own = is_of_this_host(one->ai_addr, one->ai_addrlen);
        freeaddrinfo(list);
    }
    if (!resolved)
        return "does not resolve on this host";
    return own ? NULL : "is no address of this host";
}

/* ------------------------------------------------------------------ connections */

static bool set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

// One that takes calls over both IPv4 and IPv6 if the address is any, where the kernel has both.
static int listening_socket(const unsigned char address[MESH_ADDRESS_BYTES],
                            struct sockaddr_storage *name, socklen_t *length, int port)
{
    *length = to_socket(name, address, port);
    const int fd = boot_socket(name->ss_family);
    if (fd >= 0 && name->ss_family == AF_INET6)
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (fd >= 0 || errno != EAFNOSUPPORT || name->ss_family == AF_INET)
        return fd;
    unsigned char any[MESH_ADDRESS_BYTES] = {0};
    memcpy(any, mapped, sizeof mapped);
    *length = to_socket(name, any, port);
    return boot_socket(AF_INET);
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

// A call to a port of this host that no process listens at can get the same port for its own end,
// and be connected to itself.
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
    *fd = boot_socket(name.ss_family);
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

// Connects to any address that a name stands for.
static zero_result call_name(int *fd, const char *name, int port, uint64_t deadline_ns,
                             struct base_error *error)
{
    struct addrinfo *list;
    const int missing = resolve(name, 0, &list);
    if (missing)
        return zero_fail(error, ZERO_E_IO, "its address: %s",
                         missing == EAI_SYSTEM ? strerror(errno) : gai_strerror(missing));
    struct base_error last = {.result = ZERO_OK};
    for (const struct addrinfo *one = list; one && *fd < 0; one = one->ai_next) {
        unsigned char address[MESH_ADDRESS_BYTES];
        int unused;
        base_error_clear(&last);
        if (from_socket(one->ai_addr, address, &unused))
            mesh_connect(fd, address, port, deadline_ns, &last);
    }
    freeaddrinfo(list);
    return *fd < 0 ? zero_fail(error, ZERO_E_IO, "%s", last.message) : ZERO_OK;
}

zero_result mesh_call(int *fd, const struct boot_master *master, int first, uint64_t deadline_ns,
                      struct base_error *error)
{
    const int count = mesh_count_names(master);
    struct base_error last = {.result = ZERO_OK};
    *fd = -1;
    for (int i = 0; i < count && *fd < 0; i++) {
        char name[BOOT_ADDRESS_BYTES];
        copy_name(name, master, (first + i) % count);
        base_error_clear(&last);
        call_name(fd, name, master->port, deadline_ns, &last);
    }
    return *fd < 0 ? zero_fail(error, ZERO_E_IO, "%s", last.message) : ZERO_OK;
}
