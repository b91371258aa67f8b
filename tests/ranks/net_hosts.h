/**
 * tests/ranks/net_hosts.h: hosts that are network namespaces of this machine, each with an
 * interface eth0 and abstract sockets of its own. Host 0 is hosta, 10.31.0.1, and so on. They are
 * on a bridge, or on a relay that makes the way between them long, narrow, and bad (net_relay.h).
 */
#ifndef TESTS_RANKS_NET_HOSTS_H
#define TESTS_RANKS_NET_HOSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { NET_HOSTS_MOST = 8 };

struct net_link;

/** Makes `count` hosts on a bridge. NULL, or what this machine lacks. */
const char *net_hosts_make(int count);

/** Makes `count` hosts on a relay, and sets *link to what the test may change at any time. NULL, or
 * what this machine lacks. */
const char *net_hosts_make_linked(int count, struct net_link **link);

/** This process, which has one thread, is on that host from now on. */
bool net_hosts_enter(int host);

/** And is again where it was when it made the hosts. */
bool net_hosts_leave(void);

/** A process that is on a host as long as there is one. */
pid_t net_hosts_holder(int host);

/** Pulls the cable of a host on a bridge, or puts it in again. */
bool net_hosts_plug(int host, bool in);

/** Calls `visit` for each process on a host but the one that holds it. Returns how many. */
int net_hosts_visit(int host, void (*visit)(pid_t pid, void *argument), void *argument);

/** Sends a signal to all of these, until no new one comes up. Returns how many there were. */
int net_hosts_signal(int host, int number);

/** Bytes that a host has sent through its interface so far, with all headers. */
uint64_t net_hosts_sent(int host);

/** The hosts are gone when no process is in them any more. */
void net_hosts_end(void);

#endif
