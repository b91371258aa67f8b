/**
 * collectives/rendezvous/mesh.h: how ranks of several hosts meet, and how their hosts get a
 * connection to each other.
 *
 * With boot_meeting.each_rank, which both callers of today set, every rank calls rank 0, and each
 * gets a connection to every other: at most BOOT_MESH_MAX ranks.
 *
 * Without it they meet in two levels. The ranks of one host, but for rank 0, gather at an abstract
 * unix socket, whose name is made of the job and the host. The first one that is there is their
 * speaker; no rank needs to know how many there are. Rank 0 listens at an address that every rank
 * finds in its launcher's environment. A speaker calls it until it answers, tells it of each rank
 * of its host that comes, and passes on what it says. When all have come rank 0 gives each speaker
 * the addresses of all speakers, and each calls those of lower numbers. Then it hands its
 * connections over to its host's leader, the lowest rank there. Hosts connect by TCP, over IPv4 or
 * IPv6.
 *
 * If the job has a secret, both sides of each of these calls prove that they know it (base/hmac.h),
 * before either believes the other; the secret itself is never sent. It protects the meeting from
 * processes that can call a rank, or listen in place of one. It does not protect what is sent from
 * being read, nor from a machine between two ranks that changes it: no byte is encrypted. Without a
 * secret, a process that can reach rank 0's port before all ranks have come can take a rank's
 * place.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MESH_H
#define COLLECTIVES_RENDEZVOUS_MESH_H

#include "collectives/rendezvous/rendezvous.h"

enum {
    BOOT_HOST_BYTES = 64,     /**< a host's name with its final zero; longer ones are cut */
    BOOT_ADDRESS_BYTES = 256, /**< rank 0's host as a launcher gives it, with its final zero */
    BOOT_SECRET_BYTES = 128,  /**< a job's secret with its final zero */
    BOOT_PORT_MAX = 65535,
    BOOT_MESH_MAX = 512,     /**< the most hosts that meet so: each has a socket to every other;
                                  with boot_meeting.each_rank the most ranks */
    BOOT_HOST_ID_BYTES = 16, /**< what tells hosts apart */
};

/** Where rank 0 listens. */
struct boot_master {
    char address[BOOT_ADDRESS_BYTES]; /**< a name, or an address of IPv4 or IPv6 without brackets,
                                           none that holds on one link only; or several, with commas
                                           between them, that are tried in turn */
    int port;
    char source[128];               /**< the variables it came from, for people */
    char secret[BOOT_SECRET_BYTES]; /**< that all ranks prove to know; "": none */
};

/**
 * Finds in `environment` where rank 0 is: ZERO_MASTER_ADDR and ZERO_MASTER_PORT; MASTER_ADDR, and
 * the port after MASTER_PORT, which torchrun itself listens at; PET_MASTER_ADDR and PET_MASTER_PORT
 * in the same way; a Slurm step: the first host of its list, and a port made of the numbers of job
 * and step; TF_CONFIG: the address of task 0; Azure's batch service (port 6105; 54965 on one host);
 * SageMaker: the first of SM_HOSTS, port 7777; jsrun: the second line of LSB_DJOB_RANKFILE, port
 * 10000 + LSB_JOBID % 1000. Address and port are each of the
 * first source that has one. ZERO_SECRET is the job's secret.
 * ZERO_E_INVALID, naming what is malformed or missing. *Local.*
 */
zero_result boot_find_master(struct boot_master *master, char *const *environment,
                             struct base_error *error);

/** boot_find_master() where ranks may do without: ZERO_OK with address "" if no variable says where
 * rank 0 is. ZERO_E_INVALID: one does, but it is malformed, or there is no port. *Local.* */
zero_result boot_find_any_master(struct boot_master *master, char *const *environment,
                                 struct base_error *error);

/** Whether a process manager can be asked where rank 0 is, by boot_manager_master(): PMIx, or with
 * ZERO_PMI=1 PMI-1 (PMI_FD, PMI_PORT), which counts this rank as the same. ZERO_E_INVALID: ZERO_PMI
 * is neither 0 nor 1. *Local.* */
zero_result boot_manager_look(bool *offered, int rank, int world, char *const *environment,
                              struct base_error *error);

/**
 * Where rank 0 is if no variable says so: it keeps a port, and publishes that and its addresses,
 * and all ranks hear of it from their process manager. `meeting`: rank, world, deadline_ns, log,
 * remind_ns, asked. The secret is that of boot_find_master(). A process asks once: what it has
 * heard holds for its later communicators. *Collective.*
 *
 * ZERO_E_UNSUPPORTED: the manager, or its library, is not there, or the program uses it by itself.
 * ZERO_E_INVALID: it answers what it can't. ZERO_E_TIMEOUT: ranks are missing, or it does not
 * answer. ZERO_E_ABORTED: this rank is asked to stop. ZERO_E_PEER, ZERO_E_IO: it has gone.
 */
zero_result boot_manager_master(struct boot_master *master, const struct boot_meeting *meeting,
                                char *const *environment, struct base_error *error);
/** Reads master->secret from ZERO_SECRET. ZERO_E_INVALID: it is empty or does not fit. *Local.* */
zero_result boot_master_secret(struct boot_master *master, char *const *environment,
                               struct base_error *error);

/** The id of a job whose ranks meet there: as boot_job(), but without the user id, which may differ
 * between hosts. Ranks of several hosts have no parent process in common: where the launcher has no
 * id, it is made of the address and the port, and for MPICH's and jsrun's ranks of the batch job's
 * number, too. With the user id at a loopback address then. *Local.* */
void boot_job_at(char job[BOOT_JOB_BYTES], const struct boot_master *master,
                 char *const *environment);

/**
 * Finds out what tells the host of this process from others: equal for two processes if they can
 * meet as ranks of one host, by boot_meet(). That takes one kernel since it has started, one
 * network namespace, where abstract sockets are, one user namespace and one user. Where one of them
 * can't be found out it is random: no other process is on the same host then. *Local.*
 */
void boot_host_id(unsigned char host_id[BOOT_HOST_ID_BYTES]);

/** What boot_mesh_open() has made; owned by the caller, who closes the sockets he keeps open. */
struct boot_mesh {
    int world;
    int *sockets;                   /**< by rank: connected, not blocking, close-on-exec, of TCP
                                         without delay (TCP_NODELAY). A leader has one to the leader
                                         of each other host. Within a host the speaker has one to
                                         each other rank, so that what all pass on reaches all; with
                                         boot_meeting.each_rank each rank has one to each other
                                         rank; else -1 */
    char (*hosts)[BOOT_HOST_BYTES]; /**< of every rank: the name of its host, printable */
    pid_t *pids;                    /**< of every rank, as it numbers itself there */
    int local_rank, local_world;    /**< this rank among those of its host, and how many these are:
                                         ranks whose boot_host_id() is equal */
    int *leaders;                   /**< of every rank: the lowest rank of its host. NULL, of a mesh
                                         that was not opened but made: each has a host of its own */
    int host_count;                 /**< hosts that these are */
    uint64_t token;                 /**< a random number, the same on all ranks of a meeting */
};

/**
 * Meets the other ranks, on whatever hosts: `meeting` as for boot_meet(), but for up to
 * BOOT_WORLD_MAX ranks of BOOT_MESH_MAX hosts, each with at most BOOT_HOST_RANKS_MAX. Returns when
 * all leaders have all their connections; a rank that cannot be told so then fails alone, and to
 * the others its connections end. Messages are bounded and checked; a caller that isn't a missing
 * rank of this job, or does not know its secret, is refused and logged. Ranks of a host are also
 * known by their user. A caller has 2 s to introduce itself, and 2 s to answer when it is asked for
 * a proof. Then it is refused, too. Where descriptors are used up, the caller that has been silent
 * longest has 0.5 s. Rank 0 is called until the deadline, also where its name does not resolve, for
 * which there is no limit but the resolver's own; another rank three times. A port that is in use
 * is waited for by rank 0 for up to 30 s. A rank that waits says so at growing intervals, as a
 * warning: where, and for which ranks. *Collective.*
 *
 * Points of base/fault.h: boot.socket, boot.accept, boot.send, boot.receive (each call).
 *
 * On failure *mesh has no open socket and all ranks that could be told give one reason.
 * ZERO_E_TIMEOUT: ranks are missing (rank 0's message names them); rank 0, or another rank, does
 * not answer. ZERO_E_INVALID: ranks disagree about the world, a rank is there twice, what listens
 * is no rank 0 of this job, or says of the ranks what can't be, one side has a secret that the
 * other does not know, an argument is out of range. ZERO_E_VERSION: rank 0 runs another version of
 * the library. ZERO_E_PEER: a rank went away meanwhile. ZERO_E_IO: among others, descriptors are
 * used up by ranks; the message has the limit. ZERO_E_UNSUPPORTED: there is a secret, but no
 * library that proves it. ZERO_E_NOMEM.
 */
zero_result boot_mesh_open(struct boot_mesh *mesh, const struct boot_meeting *meeting,
                           const struct boot_master *master, struct base_error *error);

/** Closes what sockets are left and frees the tables. *Local.* Accepts an all-zero mesh. */
void boot_mesh_close(struct boot_mesh *mesh);

#endif
