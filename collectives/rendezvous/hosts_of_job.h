/**
 * collectives/rendezvous/hosts_of_job.h: is a process that may start ranks alone, one of several
 * hosts, or a rank already?
 *
 * Platforms such as Kubeflow, SageMaker and AWS Batch start one process on each host of a job.
 * Their variables number hosts. A process that starts the ranks of its host, as zero-run does,
 * finds here which host it is, and where the one of host 0 listens. Nothing but the environment is
 * read.
 */
#ifndef COLLECTIVES_RENDEZVOUS_HOSTS_OF_JOB_H
#define COLLECTIVES_RENDEZVOUS_HOSTS_OF_JOB_H

#include "collectives/rendezvous/mesh.h"

enum { BOOT_HOSTS_PORT = 29500 }; /**< where host 0 listens if nothing says: torchrun's, too */

/** What a command line says. */
struct boot_hosts_given {
    int hosts; /**< how many there are; 0: it doesn't say. It has to agree with the variables */
    const char *master; /**< host 0 as "HOST" or "HOST:PORT", an IPv6 address with a port in
                           brackets; NULL: it doesn't say. It holds before any variable */
};

/** The hosts of a job, as one of them sees them. */
struct boot_hosts {
    int hosts;                 /**< of the job; 1: this process is alone, and has no master */
    int host;                  /**< this one's number, 0 .. hosts - 1 */
    int ranks;                 /**< of each host; 0: left open */
    int restarts;              /**< how often the platform has started the job again */
    struct boot_master master; /**< where host 0 listens. Address "": at any of its own, of which
                                  the platform tells the others only */
    char job[BOOT_JOB_BYTES]; /**< the platform's own id of the job, the same on all hosts; "": none
                               */
    char platform[32];        /**< "Kubeflow", "SageMaker", "Slurm", ...; "none" */
    char source[256];         /**< the variables */
};

/**
 * Finds them in `environment`. `given` may be NULL. *Local.*
 *
 * ZERO_E_UNSUPPORTED: a launcher has started ranks already, of which this process is one; or the
 * variables leave open how many hosts there are, which this is, or where host 0 is.
 * ZERO_E_INVALID: they are malformed, or incomplete, or two of them disagree. The message names
 * them. *hosts is undefined then.
 */
zero_result boot_find_hosts(struct boot_hosts *hosts, const struct boot_hosts_given *given,
                            char *const *environment, struct base_error *error);

#endif
