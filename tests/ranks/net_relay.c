#include "tests/ranks/net_relay.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/ranks/net_hosts.h"

// A host's queue holds what a link of 1 Gbit/s sends in 50 ms; more is lost, as at a real switch.
enum { FRAME_BYTES = 1600, QUEUE_FRAMES = 4096, BURST = 64, HEADER_BYTES = 14, ADDRESS_BYTES = 6 };

struct frame {
    uint64_t due_ns;
    size_t count;
    uint8_t bytes[FRAME_BYTES];
};

/** What a host has sent and no other one has got yet. */
struct queue {
    struct frame *frames; /**< of QUEUE_FRAMES, a ring */
    unsigned first, count;
    uint64_t free_ns; /**< when all of it has been sent */
};

struct relay {
    const int *interfaces;
    int count;
    struct net_link *link;
    struct queue queues[NET_HOSTS_MOST];
    unsigned seed;
};

void net_relay_address(int host, uint8_t address[6])
{
    memcpy(address, (const uint8_t[6]){0x02, 0, 0, 0, 0, (uint8_t)(host + 1)}, ADDRESS_BYTES);
}

int net_relay_open(int host)
{
    struct ifreq request = {.ifr_name = "eth0"};
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0) {
        request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
        net_relay_address(host, (uint8_t *)request.ifr_hwaddr.sa_data);
        if (ioctl(fd, SIOCSIFHWADDR, &request) == 0)
            return fd;
    }
    const int reason = errno;
    if (fd >= 0)
        close(fd);
    errno = reason;
    return -1;
}

/* ------------------------------------------------------------------ frames in */

static bool is_lost(struct relay *relay, const struct queue *queue)
{
    return queue->count == QUEUE_FRAMES ||
           (int)((unsigned)rand_r(&relay->seed) % 1000) < atomic_load(&relay->link->lost_permille);
}

// One frame of a host, if there is one.
static bool take(struct relay *relay, int host)
{
    struct queue *queue = &relay->queues[host];
    uint8_t bytes[FRAME_BYTES];
    const ssize_t count = read(relay->interfaces[host], bytes, sizeof bytes);
    if (count < 0)
        return false;
    if (count < HEADER_BYTES)
        return true;
    atomic_fetch_add(&relay->link->frames, 1);
    if (is_lost(relay, queue)) {
        atomic_fetch_add(&relay->link->lost, 1);
        return true;
    }
    const uint64_t now = base_clock_ns(), megabits = (uint64_t)atomic_load(&relay->link->megabits);
    const uint64_t begin = queue->free_ns > now ? queue->free_ns : now;
    queue->free_ns = begin + (megabits ? (uint64_t)count * 8000 / megabits : 0);
    struct frame *frame = &queue->frames[(queue->first + queue->count++) % QUEUE_FRAMES];
    frame->due_ns = queue->free_ns + (uint64_t)atomic_load(&relay->link->delay_us) * 1000;
    frame->count = (size_t)count;
    memcpy(frame->bytes, bytes, frame->count);
    return true;
}

/* ------------------------------------------------------------------ frames out */

// To the host that has the address, or to all but the sender.
static void pass_on(const struct relay *relay, int from, const struct frame *frame)
{
    uint8_t address[ADDRESS_BYTES];
    for (int host = 0; host < relay->count; host++) {
        net_relay_address(host, address);
        const bool meant = (frame->bytes[0] & 1) || !memcmp(frame->bytes, address, sizeof address);
        if (host != from && meant && write(relay->interfaces[host], frame->bytes, frame->count) < 0)
            atomic_fetch_add(&relay->link->lost, 1); // that host has no room for it, or is down
    }
}

/** Passes on what is due. When the next frame is; UINT64_MAX: there is none. */
static uint64_t give(struct relay *relay)
{
    uint64_t next = UINT64_MAX;
    for (int host = 0; host < relay->count; host++) {
        struct queue *queue = &relay->queues[host];
        const struct frame *frame = &queue->frames[queue->first];
        while (queue->count > 0 && frame->due_ns <= base_clock_ns()) {
            pass_on(relay, host, frame);
            queue->first = (queue->first + 1) % QUEUE_FRAMES;
            queue->count--;
            frame = &queue->frames[queue->first];
        }
        if (queue->count > 0 && frame->due_ns < next)
            next = frame->due_ns;
    }
    return next;
}

void net_relay(const int *interfaces, int count, struct net_link *link)
{
    struct relay relay = {.interfaces = interfaces, .count = count, .link = link, .seed = 1};
    struct pollfd polls[NET_HOSTS_MOST];
    for (int host = 0; host < count; host++) {
        relay.queues[host].frames = calloc(QUEUE_FRAMES, sizeof *relay.queues[host].frames);
        polls[host] = (struct pollfd){.fd = interfaces[host], .events = POLLIN};
        if (!relay.queues[host].frames)
            _exit(1);
    }
    for (;;) {
        const uint64_t next = give(&relay), now = base_clock_ns();
        const uint64_t wait = next > now ? next - now : 0;
        const struct timespec time = {.tv_sec = (time_t)(wait / UINT64_C(1000000000)),
                                      .tv_nsec = (long)(wait % UINT64_C(1000000000))};
        ppoll(polls, (nfds_t)count, next == UINT64_MAX ? NULL : &time, NULL);
        for (int host = 0; host < count; host++)
            for (int i = 0; i < BURST && take(&relay, host); i++)
                ;
    }
}
