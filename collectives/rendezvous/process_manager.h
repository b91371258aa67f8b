/**
 * Process managers: what starts the ranks of a job, and can be asked what no variable says, how
 * many ranks there are (PMIx), and where rank 0 is (PMIx, PMI-1). A rank asks at most once, and
 * leaves at once: a process that has begun and ends without having left is a failure to its
 * manager.
 *
 *   process_manager.c   which one is asked, and what it has answered, once a process.
 *   pmix.c              PMIx, by its library, loaded when it is asked.
 *   pmi1.c              PMI-1, a protocol of lines.
 *   mesh_candidates.c   the addresses at which other hosts may find rank 0.
 */
#ifndef COLLECTIVES_RENDEZVOUS_PROCESS_MANAGER_H
#define COLLECTIVES_RENDEZVOUS_PROCESS_MANAGER_H

#include "collectives/rendezvous/meeting.h"

enum { BOOT_BOARD_BYTES = 320 }; /**< of what rank 0 publishes, with its final zero */

/** The name under which rank 0 publishes where it is. */
#define BOOT_BOARD_KEY "zero-rank-0"

/** What a rank has in hand while it asks. */
struct boot_board {
    int rank, world;
    char *const *environment;
    uint64_t deadline_ns;
    const struct base_log *log;
    struct boot_wait wait;
};

/** What a manager knows of this process. */
struct boot_manager_place {
    int rank, world;
    int local_rank;  /**< -1: it does not say */
    int local_world; /**< 0: it does not say */
    int hosts;       /**< 0: it does not say */
};

enum { BOOT_MANAGER_NAMES = 5 };

/** One kind of process manager. Its calls are one at a time. */
struct boot_manager {
    size_t size;
    const char *name;
    /** As which variables the numbers of a place count, in their order; NULL: the last one is
     * before this. */
    const char *names[BOOT_MANAGER_NAMES];
    /** Whether the variables show one. *Local.* */
    bool (*is_there)(char *const *environment);
    /** Whether it may say more of this process than they do. *Local.* */
    bool (*is_placing)(char *const *environment);
    /** Whether it counts this rank as the same. *Local.* */
    bool (*is_counting)(char *const *environment, int rank, int world);
    /** Asks it for this process's place, and does not leave it. ZERO_E_UNSUPPORTED: it is not
     * there, or the program uses it by itself. ZERO_E_INVALID: it says what can't be.
     * ZERO_E_TIMEOUT: it says nothing. ZERO_E_PEER, ZERO_E_IO: it has gone. *Local.* */
    zero_result (*find_place)(struct boot_manager_place *place, char *const *environment,
                              struct base_error *error);
    /** Rank 0 publishes `text`, of any length that fits; when all ranks have come every rank has it
     * in `text`. Leaves the manager. Errors of find_place, and ZERO_E_TIMEOUT, ZERO_E_ABORTED:
     * ranks are missing. *Collective.* */
    zero_result (*publish)(struct boot_board *board, char text[BOOT_BOARD_BYTES],
                           struct base_error *error);
    /** Leaves it, if it was asked and not left. *Local.* */
    void (*leave)(void);
};

extern const struct boot_manager boot_pmix, boot_pmi1;

/** The manager that ranks with these variables ask where rank 0 is, if one counts them; NULL: none.
 * *Local.* */
const char *boot_manager_name(char *const *environment);

/** The manager that a process with these variables asks for its place, if they leave that open;
 * NULL: none. *Local.* */
const char *boot_manager_placing(char *const *environment);

/** Fails if the program is one of MPI, initialised or not, however it was loaded: that talks to the
 * manager by itself, and some can't if another part of the process has. ZERO_E_UNSUPPORTED.
 * *Local.* */
zero_result boot_manager_check_program(struct base_error *error);

/** Says, when it is time to, that this rank waits for the others. *left: milliseconds for poll(2).
 * ZERO_E_TIMEOUT, ZERO_E_ABORTED: the wait is over. *Local.* */
zero_result boot_board_left(struct boot_board *board, const char *manager, int most, int *left,
                            struct base_error *error);

/** Writes the addresses of this host at which others may reach it, the likeliest first, with commas
 * between them; loopback's if there is no other. *Local.* */
void mesh_own_addresses(char addresses[BOOT_ADDRESS_BYTES]);

/** Keeps a port of this host from other processes: *fd is bound to it and listens never, so that
 * this process may. ZERO_E_IO. *Local.* */
zero_result mesh_reserve(int *fd, int *port, struct base_error *error);

#endif
