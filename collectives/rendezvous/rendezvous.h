/**
 * collectives/rendezvous/rendezvous.h: which rank am I, of how many, and where are the others?
 *
 * Discovery reads the launcher's environment and touches nothing else; where that leaves something
 * open, a process manager may be asked (process_manager.h). Rendezvous brings the ranks
 * of one host together over an abstract unix socket and lets them pass bytes and descriptors to
 * each other; after that they talk through shared memory, and the link only says who has died.
 */
#ifndef COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H
#define COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H

#include "base/error.h"
#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    BOOT_JOB_BYTES = 192,       /**< a job id with its final zero */
    BOOT_NAME_BYTES = 96,       /**< a communicator's name with its final zero */
    BOOT_WORLD_MAX = 16384,     /**< the most ranks that a plan is made for */
    BOOT_HOST_RANKS_MAX = 4096, /**< the most ranks of a job on one host */
    BOOT_FDS_MAX = 64,          /**< the most descriptors a rank passes in one exchange */
    BOOT_BYTES_MAX = 1 << 20,   /**< the most bytes a rank passes in one exchange */
};

/* ------------------------------------------------------------------ discovery */

/** A process's place in its job, and who said so. */
struct boot_place {
    int rank;
    int world;
    int local_rank;           /**< among the ranks of its host; -1: the launcher doesn't say */
    int local_world;          /**< ranks of its host; 0: the launcher doesn't say */
    int hosts;                /**< of the job; 0: the launcher doesn't say */
    char launcher[32];        /**< "zero-run", "torchrun", "Open MPI", ...; "none": one process */
    char source[96];          /**< the variables that rank and world came from, "" if none */
    char job[BOOT_JOB_BYTES]; /**< the same on all ranks of the job, another one for every other
                                   job of this host; starts with the user id */
};

/**
 * Finds the place in `environment` ("NAME=value" strings, a NULL at the end: environ), innermost
 * launcher first: ZERO_RANK with ZERO_WORLD_SIZE; RANK, WORLD_SIZE and LOCAL_RANK (torchrun,
 * DeepSpeed, Azure ML); OMPI_COMM_WORLD_*; MV2_COMM_WORLD_*; PMI_*; PALS_RANKID with PMI_*;
 * FLUX_*; HOROVOD_*; JSM_*; a Slurm step; TF_CONFIG; PET_* of one process a pod; none: rank 0 of 1.
 *
 * ZERO_E_INVALID, naming the variables and their values: a number is malformed or out of range, a
 * family is incomplete, two families disagree without one being known to run inside the other,
 * there are only variables that count nodes instead of processes, or a variable of some launcher
 * says that this process is one of many, and none which. *place is undefined then. *Local.*
 */
zero_result boot_discover(struct boot_place *place, char *const *environment,
                          struct base_error *error);

/**
 * Finds the place as boot_discover() does. Where the variables leave it open and PMIx has started
 * the process (PMIX_NAMESPACE, PMIX_RANK), asks PMIx how many ranks there are, and how many on this
 * host: its answers count as variables of that name, PMIX_JOB_SIZE and the like, and nothing that
 * the variables contradict is believed. ZERO_PMI=0 forbids it. A process asks once, and has to call
 * boot_manager_leave() then. Errors: those of boot_discover(), and why PMIx can't be asked.
 * *Local.*
 */
zero_result boot_manager_discover(struct boot_place *place, char *const *environment,
                                  struct base_error *error);

/** Leaves PMIx, if a rank has asked it and not left; a process that ends before has failed in its
 * eyes. *Local.* */
void boot_manager_leave(void);

/** Whether the launcher says that some ranks are on other hosts; if it is not known where they are,
 * false. *Local.* */
bool boot_place_is_apart(const struct boot_place *place);

/**
 * The id of the job for a process whose rank and world were given by its program instead of the
 * environment: ZERO_JOB, else that of whatever launcher there is, else one made of the parent
 * process. Never fails. *Local.*
 */
void boot_job(char job[BOOT_JOB_BYTES], char *const *environment);

/**
 * How often torchrun, Slurm, JobSet and AWS Batch have started the job again, added up. An outer
 * one's next start begins the inner one's count again, so it may have been more often. What
 * zero-run counts (ZERO_RESTARTS) is not in it. ZERO_E_INVALID: one of them is malformed. *Local.*
 */
zero_result boot_restarts(int *restarts, char *const *environment, struct base_error *error);

struct boot_hosts_given;

/**
 * Writes for people, at most `size` bytes with the final zero, what boot_discover() finds and why:
 * rank, world, job, where rank 0 is if ranks are on several hosts, the variables used, those seen
 * and not used, or the error; and what boot_find_hosts() finds if this is one of several hosts.
 * `given` is that function's, and may be NULL. *Local.*
 */
void boot_explain(const struct boot_hosts_given *given, char *const *environment, char *text,
                  size_t size);

/**
 * Whether this process may start the ranks of a job by itself: boot_find_hosts() says that it is
 * alone. ZERO_E_UNSUPPORTED if it does not; ZERO_E_INVALID: malformed variables. The message names
 * them. *Local.*
 */
zero_result boot_check_alone(char *const *environment, struct base_error *error);

/** Whether processes of this host can call each other at the loopback's address, that of IPv4 or of
 * IPv6: AF_INET, AF_INET6. *Local.* */
bool boot_has_loopback(int family);

/* ------------------------------------------------------------------ rendezvous */

/** The meeting of one communicator: sockets through rank 0, and a watch on every peer. */
struct boot_link;

/** What boot_meet() needs; strings are copied. */
struct boot_meeting {
    int rank;
    int world;                  /**< 1 .. BOOT_HOST_RANKS_MAX, all on this host */
    const char *job;            /**< boot_place.job */
    const char *name;           /**< tells communicators of one job apart */
    uint64_t deadline_ns;       /**< of base_clock_ns() */
    const struct base_log *log; /**< borrowed until boot_close(); NULL: silent */
    uint64_t remind_ns;         /**< of waiting, before a rank says so for the first time (then
                                     after 3, 6, 12 ... times that); 0: 10 s. Never after more than
                                     half of the time there is */
    bool (*asked)(void);        /**< whether this rank is asked to stop: then it waits 2 s more for
                                     missing ranks at most; NULL: it never is */
    const char *host_id;        /**< boot_mesh_open(): stands for this host, as boot_host_id() would
                                  find it out; NULL: it does */
    bool each_rank;             /**< boot_mesh_open(): every rank gets a connection to each other
                                     one, those of its host included */
    bool all_here;              /**< boot_meet(): all ranks are known to be on this host, so that no
                                     message speaks of others */
    bool (*in_vain)(void *user); /**< boot_meet(): whether a rank will not come, as this one knows
                                      from elsewhere: then it waits no longer; NULL: it does not */
    void *user;                  /**< of in_vain */
};

/**
 * Meets the other ranks: rank 0 listens, the others call until it answers. Messages are bounded
 * and checked, and so is the user id on both sides; a caller that isn't a missing rank of this job
 * is refused and logged. A rank that waits says so at growing intervals, as a warning: where, and
 * for which ranks. On success every rank knows every other one's process. *Collective.*
 *
 * On failure *link is NULL. ZERO_E_TIMEOUT: ranks are missing (rank 0's message, which the others
 * get too, names them). ZERO_E_ABORTED: a rank was asked to stop while ranks were missing.
 * ZERO_E_UNSUPPORTED: the kernel has no pidfds. ZERO_E_INVALID: ranks disagree about the world, a
 * rank or a listener of this name is there twice, an argument is out of range. ZERO_E_VERSION: rank
 * 0 runs another version of the library. ZERO_E_PEER: a rank went away meanwhile. ZERO_E_NOMEM,
 * ZERO_E_IO.
 */
zero_result boot_meet(struct boot_link **link, const struct boot_meeting *meeting,
                      struct base_error *error);

/** Closes everything. *Local.* Accepts NULL. */
void boot_close(struct boot_link *link);

/**
 * Every rank gives `count` descriptors and gets those of all: all[r * count + i] is a descriptor of
 * this process for rank r's mine[i], its own included (a duplicate), close-on-exec, owned by the
 * caller. mine stays the caller's. *Collective, ordered*; count (0 .. BOOT_FDS_MAX) is the same on
 * every rank. After an error `all` has no open descriptor (every entry is -1) and the link is good
 * for boot_close() only. ZERO_E_TIMEOUT, ZERO_E_PEER, ZERO_E_DIVERGED (another operation, count or
 * size there), ZERO_E_IO (descriptors used up: the message says so).
 */
zero_result boot_exchange_fds(struct boot_link *link, const int *mine, int count, int *all,
                              uint64_t deadline_ns, struct base_error *error);

/** boot_exchange_fds() of `bytes` bytes (0 .. BOOT_BYTES_MAX) instead of descriptors: all has world
 * * bytes, in rank order. */
zero_result boot_exchange_bytes(struct boot_link *link, const void *mine, size_t bytes, void *all,
                                uint64_t deadline_ns, struct base_error *error);

/**
 * A rank that is not there any more, or -1: one system call, without waiting. Its process has
 * ended, or, seen by rank 0 of the others and by them of rank 0, it has closed its link, which
 * boot_close() and exec() do: only the caller knows which of them have left in peace. If there are
 * several, each call names the next one, in turn; within 2 * world calls each at least once.
 * *Local*, any thread.
 */
int boot_peer_gone(const struct boot_link *link);

/** The process of a rank, as it numbers itself. *Local.* */
pid_t boot_peer_pid(const struct boot_link *link, int rank);

#endif
