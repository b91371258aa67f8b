// Why a rank that has met the others does not join them, told over the mesh's sockets, which no
// thread reads yet.

#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct refusal {
    struct net_header header;
    struct net_poison poison;
};

static void send_all(const struct boot_mesh *mesh, const struct net_poison *poison)
{
    const struct net_header header = {sizeof *poison, NET_POISON, 0};
    unsigned char bytes[sizeof header + sizeof *poison];
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, poison, sizeof *poison);
    for (int peer = 0; peer < mesh->world; peer++)
        if (mesh->sockets[peer] >= 0)
            send(mesh->sockets[peer], bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void coll_net_refuse(const struct boot_mesh *mesh, int rank, zero_result result,
                     const char *message)
{
    struct net_poison poison = {.result = result};
    snprintf(poison.message, sizeof poison.message, "rank %d on %s: %s", rank, mesh->hosts[rank],
             message);
    send_all(mesh, &poison);
}

void coll_net_pass_on(const struct boot_mesh *mesh, const struct base_error *refusal)
{
    struct net_poison poison = {.result = refusal->result};
    snprintf(poison.message, sizeof poison.message, "%.*s", COLL_MESSAGE_BYTES - 1,
             refusal->message);
    send_all(mesh, &poison);
}

zero_result coll_net_refusal(const struct boot_mesh *mesh, int rank, struct base_error *error)
{
    unsigned char bytes[sizeof(struct net_header) + sizeof(struct net_poison)];
    struct net_header header;
    struct net_poison poison;
    assert(mesh->sockets[rank] >= 0);
    const ssize_t got = recv(mesh->sockets[rank], bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        return zero_fail(error, ZERO_E_PEER, "rank %d died on %s while the ranks of a host met",
                         rank, mesh->hosts[rank]);
    if (got < (ssize_t)sizeof bytes)
        return ZERO_OK;
    memcpy(&header, bytes, sizeof header);
    memcpy(&poison, bytes + sizeof header, sizeof poison);
    if (header.type != NET_POISON)
        return ZERO_OK;
    poison.message[sizeof poison.message - 1] = '\0';
    const zero_result result = base_failure_of(poison.result, ZERO_E_IO);
    return zero_fail(error, result, "%s", poison.message);
}
