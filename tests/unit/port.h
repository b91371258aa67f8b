/**
 * tests/unit/port.h: a port for the ranks of a test.
 */
#ifndef TESTS_UNIT_PORT_H
#define TESTS_UNIT_PORT_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/** Binds a socket that does not listen, at every address: others get another port, and who sets
 * SO_REUSEADDR can listen at this one. The caller closes it; -1: there is none. */
static inline int port_reserve(int *port)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t length = sizeof any;
    const int on = 1;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        any.sin6_family = AF_INET;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
                    bind(fd, (struct sockaddr *)&any, length) ||
                    getsockname(fd, (struct sockaddr *)&any, &length))) {
        close(fd);
        fd = -1;
    }
    *port = ntohs(any.sin6_port); // where IPv4's is
    return fd;
}

#endif
