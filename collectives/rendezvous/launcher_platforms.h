/**
 * Variables of platforms that start one process a host: they number hosts (pods, nodes), not
 * processes.
 */
#ifndef COLLECTIVES_RENDEZVOUS_LAUNCHER_PLATFORMS_H
#define COLLECTIVES_RENDEZVOUS_LAUNCHER_PLATFORMS_H

#include "collectives/rendezvous/mesh.h"

/** What one platform says. */
struct boot_nodes {
    bool present;
    bool alone;      /**< one host, and this process is all of it */
    int nodes;       /**< 0: it doesn't say */
    int least, most; /**< then: a range that the number is in; 0, 0: it has none */
    int node;        /**< this one's number; -1: it doesn't say */
    int processes;   /**< of each host; 0: left open */
    unsigned flags;  /**< of the platform */
    const char *platform;
    const char
        *job; /**< the platform's id of the job, NULL: none. Lives as long as the environment */
    int port; /**< at which host 0 listens where no variable says; 0: the platform has none */
    char address[BOOT_ADDRESS_BYTES]; /**< of host 0; "": it doesn't say */
    const char *address_from;         /**< the variable that it came from */
    char source[160];
};

enum {
    BOOT_NODES_WEAK = 1,     /**< people use the names as well: what is malformed says nothing */
    BOOT_NODES_LIST = 2,     /**< the count is a list of hosts, the first of them host 0 */
    BOOT_NODES_BARE = 4,     /**< it may count ranks instead */
    BOOT_NODES_PART = 8,     /**< this host's number may be one in a part of the job */
    BOOT_NODES_INDEXED = 16, /**< it has this host's number from JOB_COMPLETION_INDEX */
    BOOT_NODES_OTHERS = 32,  /**< it tells all hosts but host 0 where host 0 is */
    BOOT_NODES_STARTED = 64, /**< a launcher has started ranks, of which more is not known */
};

/** How many platforms there are, the strongest first. */
extern const size_t boot_platforms;

/**
 * Reads a platform, 0 .. boot_platforms - 1. Without a number of hosts it is there only if
 * `counted` says that this number comes from elsewhere. ZERO_E_INVALID: malformed, or two of its
 * variables disagree; it is present then. *Local.*
 */
zero_result boot_platform_read(struct boot_nodes *nodes, size_t platform, bool counted,
                               char *const *environment, struct base_error *error);

/** Reads the strongest platform that is there: PET_*, SM_HOSTS, and so on. ZERO_E_INVALID: PET_* or
 * SM_HOSTS is malformed or incomplete. */
zero_result boot_nodes_read(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error);

/* ---- launcher_nodes.c: what one platform alone does */

zero_result boot_pet_read(struct boot_nodes *nodes, char *const *environment,
                          struct base_error *error);
zero_result boot_sagemaker_read(struct boot_nodes *nodes, char *const *environment,
                                struct base_error *error);
zero_result boot_volcano_read(struct boot_nodes *nodes, char *const *environment,
                              struct base_error *error);
zero_result boot_aws_read(struct boot_nodes *nodes, char *const *environment,
                          struct base_error *error);
zero_result boot_bare_read(struct boot_nodes *nodes, char *const *environment,
                           struct base_error *error);
zero_result boot_indexed_read(struct boot_nodes *nodes, char *const *environment,
                              struct base_error *error);

#endif
