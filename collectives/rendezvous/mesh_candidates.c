// Where other hosts may find this one: which of its addresses they reach is not known here, so rank
// 0 publishes them all, and they are tried in turn.

#include "collectives/rendezvous/mesh_internal.h"
#include "collectives/rendezvous/process_manager.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

// How likely it is that another host reaches an address: the interface of the default route, then
// others, then those of bridges for containers, which many hosts have with the same address.
enum { BY_ROUTE, BY_OTHERS, BY_BRIDGES, RANKS_OF_ADDRESSES };

// The interface of the default route of IPv4; "": there is none.
static void default_interface(char name[IF_NAMESIZE])
{
    char line[256], found[IF_NAMESIZE];
    unsigned long destination;
    FILE *file = fopen("/proc/self/net/route", "re");
    name[0] = '\0';
    while (file && !*name && fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %lx", found, &destination) == 2 && destination == 0)
            memcpy(name, found, sizeof found);
    if (file)
        fclose(file);
}

static int likelihood(const char *name, const char *by_default)
{
    static const char *const bridges[] = {"docker", "br-", "virbr", "lxc", "cni", "podman", "veth"};
    for (size_t i = 0; i < sizeof bridges / sizeof *bridges; i++)
        if (strncmp(name, bridges[i], strlen(bridges[i])) == 0)
            return BY_BRIDGES;
    return strcmp(name, by_default) == 0 ? BY_ROUTE : BY_OTHERS;
}

// Whether other hosts could call it; an address of one link (fe80::) says nothing without the link.
static bool is_candidate(const struct ifaddrs *one)
{
    const struct sockaddr *address = one->ifa_addr;
    if (!address || !(one->ifa_flags & IFF_UP) || one->ifa_flags & IFF_LOOPBACK)
        return false;
    return address->sa_family == AF_INET ||
           (address->sa_family == AF_INET6 &&
            !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr));
}

// Adds an address, if it fits as a whole.
static void add_address(struct base_text *text, const struct sockaddr *address)
{
    char bytes[INET6_ADDRSTRLEN];
    const void *of = address->sa_family == AF_INET
                         ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                         : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
    if (inet_ntop(address->sa_family, of, bytes, sizeof bytes) &&
        text->used + strlen(bytes) + 2 <= text->size)
        base_text_add(text, "%s%s", text->used ? "," : "", bytes);
}

void mesh_own_addresses(char addresses[BOOT_ADDRESS_BYTES])
{
    struct base_text text = {addresses, BOOT_ADDRESS_BYTES, 0};
    struct ifaddrs *list = NULL;
    char by_default[IF_NAMESIZE];
    static const int families[] = {AF_INET, AF_INET6};
    addresses[0] = '\0';
    default_interface(by_default);
    if (getifaddrs(&list))
        list = NULL;
    for (int rank = 0; rank < RANKS_OF_ADDRESSES; rank++)
        for (int i = 0; i < 2; i++)
            for (const struct ifaddrs *one = list; one; one = one->ifa_next)
                if (is_candidate(one) && one->ifa_addr->sa_family == families[i] &&
                    likelihood(one->ifa_name, by_default) == rank)
                    add_address(&text, one->ifa_addr);
    if (list)
        freeifaddrs(list);
    if (!text.used)
        base_text_add(&text, boot_has_loopback(AF_INET) ? "127.0.0.1" : "::1");
}

zero_result mesh_reserve(int *fd, int *port, struct base_error *error)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    struct sockaddr_in any_v4 = {.sin_family = AF_INET};
    const int on = 1, off = 0;
    unsigned char address[MESH_ADDRESS_BYTES];
    *fd = boot_socket(AF_INET6);
    const bool v6 = *fd >= 0;
    if (!v6)
        *fd = boot_socket(AF_INET);
    if (*fd < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "a socket to meet the other ranks");
    if (v6)
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    // Two sockets may have one port so, if no more than one of them listens.
    if (!setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
        !bind(*fd, v6 ? (struct sockaddr *)&any : (struct sockaddr *)&any_v4,
              v6 ? sizeof any : sizeof any_v4) &&
        mesh_address(*fd, false, address, port))
        return ZERO_OK;
    const int errnum = errno;
    boot_fd_close(fd);
    return zero_fail_errno(error, ZERO_E_IO, errnum, "a port to meet the other ranks at");
}
