/**
 * What each launcher's variables say, one family at a time, without judging between them.
 */
#ifndef COLLECTIVES_RENDEZVOUS_LAUNCHER_FAMILY_H
#define COLLECTIVES_RENDEZVOUS_LAUNCHER_FAMILY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct base_text;

/** The families that number processes, innermost first. */
enum boot_family_index {
    BOOT_ZERO,
    BOOT_TORCHRUN,
    BOOT_OPEN_MPI,
    BOOT_MVAPICH,
    BOOT_PMI,
    BOOT_PALS,
    BOOT_FLUX,
    BOOT_HOROVOD,
    BOOT_JSM,
    BOOT_SLURM,
    BOOT_TENSORFLOW,
    BOOT_KUBEFLOW,
    BOOT_PMIX,
    BOOT_FAMILIES,
};

/** What one family says. */
struct boot_reading {
    bool present;
    int rank, world;     /**< -1 and 0: it doesn't say, which only a half does */
    int local_rank;      /**< -1: it doesn't say */
    int local_world;     /**< 0: it doesn't say */
    int hosts;           /**< 0: it doesn't say */
    char source[160];    /**< "RANK=1, WORLD_SIZE=4" */
    const char *missing; /**< the variable whose partner is set; NULL: no half. A half is not
                              `present` */
};

enum { BOOT_FAMILY_NEEDS = 2, BOOT_FAMILY_NAMES = 3 };

/** One launcher's variables. A list of names ends with NULL or at its end; the first of them that
 * is set counts. */
struct boot_family {
    const char *launcher;
    const char *rank[BOOT_FAMILY_NAMES];        /**< with `world` the pair; none: `read` finds */
    const char *world;                          /**< them elsewhere */
    const char *local_rank[BOOT_FAMILY_NAMES];  /**< may be empty */
    const char *local_world[BOOT_FAMILY_NAMES]; /**< may be empty */
    const char *hosts[BOOT_FAMILY_NAMES];       /**< how many hosts there are; may be empty */
    const char *needs[BOOT_FAMILY_NEEDS];       /**< without one of these the family isn't there */
    /** Reads what plain variables don't tell; may be NULL. */
    zero_result (*read)(struct boot_reading *reading, char *const *environment,
                        struct base_error *error);
    /** Writes the launcher's own id of the job; false, and nothing written: it has none. */
    bool (*job)(struct base_text *text, char *const *environment); /**< may be NULL */
    /** Families that may stand around this one with another answer, as bits; if `around_if` is
     * not NULL, only while that variable is set, and around more than one rank. */
    unsigned around;
    const char *around_if;
    /** Launchers whose ranks get this family's variables too, as bits: one that says the same has
     * started the rank. */
    unsigned spoken_by;
    /** It numbers hosts with one process each, so any other family may number more inside. */
    bool counts_hosts;
};

extern const struct boot_family boot_families[BOOT_FAMILIES];

/** Reads one family. reading->present is false if it isn't there, or only half of it is.
 * ZERO_E_INVALID: malformed. */
zero_result boot_family_read(struct boot_reading *reading, const struct boot_family *family,
                             char *const *environment, struct base_error *error);

/** Reads a rank and a world that stand in two variables; changes nothing if both are missing. If
 * one is, the reading is a half. ZERO_E_INVALID: malformed. */
zero_result boot_pair_read(struct boot_reading *reading, const char *rank_name,
                           const char *world_name, char *const *environment,
                           struct base_error *error);

/** Says what a half lacks. Always ZERO_E_INVALID. */
zero_result boot_half_fail(const struct boot_reading *half, struct base_error *error);

/** TF_CONFIG's boot_family.read and boot_family.job. */
zero_result boot_tensorflow_read(struct boot_reading *reading, char *const *environment,
                                 struct base_error *error);
bool boot_tensorflow_address(struct base_text *text, char *const *environment);

/** Kubeflow's boot_family.read: PET_* of a job with one process a pod. */
zero_result boot_kubeflow_read(struct boot_reading *reading, char *const *environment,
                               struct base_error *error);

/**
 * Checks that no variable of any launcher says that this process is one of many. `place` is what a
 * family says of it, NULL if none does: then a number that only ranks of a job have is enough.
 * ZERO_E_INVALID, naming the variable and saying what to set; or it is malformed. *Local.*
 */
zero_result boot_signs_check(const struct boot_reading *place, char *const *environment,
                             struct base_error *error);

/** boot_signs_check() without what numbers hosts: whether some launcher has started ranks. *Local.*
 */
zero_result boot_signs_of_ranks(char *const *environment, struct base_error *error);

#endif
