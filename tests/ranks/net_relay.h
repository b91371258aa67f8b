/**
 * tests/ranks/net_relay.h: a switch in user space between hosts, which delays, paces and loses the
 * frames that it passes on. It does what `tc netem` does, on kernels that lack that, too.
 */
#ifndef TESTS_RANKS_NET_RELAY_H
#define TESTS_RANKS_NET_RELAY_H

#include <stdatomic.h>
#include <stdint.h>

/** The way between any two hosts, in memory shared with the relay. */
struct net_link {
    _Atomic int delay_us;      /**< of a frame; a round trip takes twice as long */
    _Atomic int megabits;      /**< a second and host; 0: as fast as it can */
    _Atomic int lost_permille; /**< of frames */
    _Atomic uint64_t frames, lost;
};

/** Sets the bytes of a host's hardware address, by which the relay knows it. */
void net_relay_address(int host, uint8_t address[6]);

/** Makes an interface eth0 in the network namespace of this process; -1: errno says why. */
int net_relay_open(int host);

/** Passes frames between these interfaces for ever. */
_Noreturn void net_relay(const int *interfaces, int count, struct net_link *link);

#endif
