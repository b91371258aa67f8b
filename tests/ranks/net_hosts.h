/**
 * tests/ranks/net_hosts.h: hosts that are network namespaces of this machine, each with an
 * interface eth0 and abstract sockets of its own, on one bridge. Host 0 is hosta, 10.31.0.1, and so
 * on.
 */
#ifndef TESTS_RANKS_NET_HOSTS_H
#define TESTS_RANKS_NET_HOSTS_H

#include <stdbool.h>
#include <stdint.h>

/** Makes `count` hosts, 8 at most. NULL, or what this machine lacks. */
const char *net_hosts_make(int count);

/** This process, which has one thread, is on that host from now on. */
bool net_hosts_enter(int host);

/** Bytes that a host has sent through its interface so far, with all headers. */
uint64_t net_hosts_sent(int host);

/** The hosts are gone when no process is in them any more. */
void net_hosts_end(void);

#endif
