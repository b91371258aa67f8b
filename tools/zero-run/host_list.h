/**
 * tools/zero-run/host_list.h: the hosts of a job, as --hosts or a file says them.
 *
 *     --hosts node1:4,root@node2:4,10.0.0.3,[fd00::4]:2
 *
 * A host is a name, an IPv4 address, or an IPv6 address in brackets. A user's name and '@' may
 * stand before it, and ':' and a number of ranks behind it. A line of a file has one host, and
 * perhaps settings, as DeepSpeed and Open MPI write them; what follows a '#' is a comment:
 *
 *     node1 slots=4
 *     fd00::4 slots=2 max_slots=4
 *
 * A name ends up on the command line of a remote shell. So it has letters, digits, '.', '_' and '-'
 * only, and begins with a letter, a digit or '_'.
 */
#ifndef TOOLS_ZERO_RUN_HOST_LIST_H
#define TOOLS_ZERO_RUN_HOST_LIST_H

#include "base/error.h"

enum {
    RUN_HOST_BYTES = 256, /**< of a host with its user, and a final zero */
    RUN_HOSTS_MAX = 512,  /**< the most hosts of a job */
};

struct run_host {
    char name[RUN_HOST_BYTES]; /**< as a remote shell takes it: "node1", "root@node2", "fd00::4" */
    int slots;                 /**< ranks; 0: not said */
    int most;                  /**< max_slots; 0: not said */
    int line;                  /**< of the file, from 1; 0: from --hosts */
};

/** All zero: none. */
struct run_hosts {
    struct run_host *list; /**< of `count`, in the order in which they were given */
    int count;
};

/** Reads the value of --hosts. ZERO_E_INVALID (what is wrong, with the host), ZERO_E_NOMEM; no host
 * is there then. *Local.* */
zero_result run_hosts_parse(struct run_hosts *hosts, const char *list, struct base_error *error);

/** Reads a file, which may be a pipe. ZERO_E_INVALID (what is wrong, with file and line),
 * ZERO_NOT_FOUND, ZERO_E_IO, ZERO_E_NOMEM; no host is there then. *Local.* */
zero_result run_hosts_read(struct run_hosts *hosts, const char *path, struct base_error *error);

/** Reads what a file has: `bytes` of `text`. `path` stands in messages. Errors as of
 * run_hosts_read(). *Local.* */
zero_result run_hosts_parse_file(struct run_hosts *hosts, const char *text, size_t bytes,
                                 const char *path, struct base_error *error);

/** A host's name or address, without the user before it. *Local.* */
const char *run_host_address(const struct run_host *host);

/** Frees the list. *Local.* Accepts an all-zero one. */
void run_hosts_free(struct run_hosts *hosts);

#endif
