// A connection: bytes in and out. Frames are heard as soon as they are whole; a tail goes where it
// belongs without a detour.

#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/** What a call is to move: a test may want less, or none. */
static size_t allowed(const char *point, size_t bytes)
{
    assert(bytes > 0);
    errno = base_fault(point);
    if (errno != 0)
        return 0;
    return base_fault("net.short") != 0 ? 1 : bytes;
}

/* ------------------------------------------------------------------ in */

/** Buffers of frames that are read of a peer in one turn: who never stops talking must not keep the
 * thread from all others, and the rank from its lock. What this rank has asked for does not count:
 * there is an end to it. */
enum { MOST_BUFFERS = 16 };

/** Reads once: 0 at the end, -1 and errno. */
static ssize_t receive(const struct net_peer *peer, unsigned char *to, size_t bytes)
{
    ssize_t got;
    do {
        const size_t most = allowed("net.receive", bytes);
        got = most > 0 ? recv(peer->socket, to, most, MSG_DONTWAIT) : -1;
    } while (got < 0 && errno == EINTR);
    return got;
}

/** Takes what there is of a tail from the buffer. */
static void take_tail(struct coll_net *net, struct net_peer *peer)
{
    assert(peer->in.tail_at <= peer->in.tail && peer->in.begin <= peer->in.end);
    const size_t here = peer->in.end - peer->in.begin, left = peer->in.tail - peer->in.tail_at;
    const size_t bytes = here < left ? here : left;
    unsigned char *to = coll_net_tail(net, peer);
    if (to)
        memcpy(to + peer->in.tail_at, peer->in.bytes + peer->in.begin, bytes);
    peer->in.begin += bytes;
    peer->in.tail_at += bytes;
}

/** Hears what is whole in the buffer. */
static bool rx_buffer(struct coll_net *net, struct net_peer *peer)
{
    for (;;) {
        if (peer->in.tail > 0) {
            take_tail(net, peer);
            if (peer->in.tail_at < peer->in.tail)
                return true;
            coll_net_rx_tail(net, peer);
            peer->in.tail = 0;
        }
        struct net_header header;
        union net_fixed fixed;
        const size_t here = peer->in.end - peer->in.begin;
        if (here < sizeof header)
            return true;
        memcpy(&header, peer->in.bytes + peer->in.begin, sizeof header);
        const size_t bytes = coll_net_fixed_bytes(header.type);
        if (bytes > header.bytes)
            return false;
        if (here < sizeof header + bytes)
            return true;
        memcpy(&fixed, peer->in.bytes + peer->in.begin + sizeof header, bytes);
        peer->in.begin += sizeof header + bytes;
        if (!coll_net_rx(net, peer, &header, &fixed))
            return false;
    }
}

/** Reads into the buffer. */
static ssize_t receive_buffer(struct net_peer *peer)
{
    memmove(peer->in.bytes, peer->in.bytes + peer->in.begin, peer->in.end - peer->in.begin);
    peer->in.end -= peer->in.begin;
    peer->in.begin = 0;
    assert(peer->in.end < sizeof peer->in.bytes);
    const ssize_t got =
        receive(peer, peer->in.bytes + peer->in.end, sizeof peer->in.bytes - peer->in.end);
    peer->in.end += got > 0 ? (size_t)got : 0;
    return got;
}

/** Reads a tail straight to where it belongs, and anything else, or what belongs nowhere, into the
 * buffer, which is counted. */
static ssize_t receive_some(struct coll_net *net, struct net_peer *peer, int *buffers)
{
    unsigned char *tail = peer->in.tail > 0 ? coll_net_tail(net, peer) : NULL;
    if (!tail) {
        ++*buffers;
        return receive_buffer(peer);
    }
    const ssize_t got = receive(peer, tail + peer->in.tail_at, peer->in.tail - peer->in.tail_at);
    peer->in.tail_at += got > 0 ? (size_t)got : 0;
    return got;
}

bool coll_net_receive(struct coll_net *net, struct net_peer *peer, int *failed)
{
    assert(!peer->ended);
    // What has left is heard to its end, so that it sees the end too.
    for (int buffers = 0; buffers < MOST_BUFFERS;) {
        const ssize_t got = receive_some(net, peer, &buffers);
        *failed = got < 0 ? errno : 0;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (got <= 0)
            return false;
        peer->heard = true;
        if (!rx_buffer(net, peer)) {
            *failed = EPROTO;
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ out */

/** Sends once, `most` bytes at most of buffer and tail. */
static ssize_t send_most(const struct net_peer *peer, size_t most)
{
    struct iovec parts[2] = {
        {(void *)(uintptr_t)(peer->out.bytes + peer->out.begin), peer->out.end - peer->out.begin},
        {(void *)(uintptr_t)peer->out.tail, peer->out.tail_bytes},
    };
    if (parts[0].iov_len > most)
        parts[0].iov_len = most;
    if (parts[1].iov_len > most - parts[0].iov_len)
        parts[1].iov_len = most - parts[0].iov_len;
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(peer->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/** Sends until it is not interrupted: -1 and errno. */
static ssize_t send_some(const struct net_peer *peer)
{
    const size_t all = peer->out.end - peer->out.begin + peer->out.tail_bytes;
    ssize_t sent;
    do {
        const size_t most = allowed("net.send", all);
        sent = most > 0 ? send_most(peer, most) : -1;
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/** Counts what was sent. */
static void advance(struct net_peer *peer, size_t sent)
{
    const size_t buffered = peer->out.end - peer->out.begin;
    assert(sent <= buffered + peer->out.tail_bytes);
    const size_t first = sent < buffered ? sent : buffered;
    peer->out.begin += first;
    if (peer->out.tail_bytes == 0)
        return;
    peer->out.tail += sent - first;
    peer->out.tail_bytes -= sent - first;
    if (peer->out.tail_bytes == 0 && peer->piece > 0 && peer->out.tail == peer->bytes + peer->piece)
        peer->piece = 0;
}

bool coll_net_send(struct coll_net *net, struct net_peer *peer, int *failed)
{
    for (;;) {
        if (peer->out.begin == peer->out.end && peer->out.tail_bytes == 0) {
            peer->out.begin = peer->out.end = 0;
            coll_net_tx_fill(net, peer);
            if (peer->out.end == 0)
                return true;
        }
        const ssize_t sent = send_some(peer);
        *failed = sent < 0 ? errno : 0;
        if (sent < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        advance(peer, (size_t)sent);
    }
}
