/**
 * What each launcher's variables say, one family at a time, without judging between them.
 */
#ifndef COLLECTIVES_BOOT_FAMILY_H
#define COLLECTIVES_BOOT_FAMILY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct base_text;

/** The families that number processes, innermost first. */
enum boot_family_index {
    BOOT_ZERO,
    BOOT_TORCHRUN,
    BOOT_OPEN_MPI,
    BOOT_PMI,
    BOOT_HOROVOD,
    BOOT_JSM,
    BOOT_SLURM,
    BOOT_TENSORFLOW,
    BOOT_FAMILIES,
};

/** What one family says. */
struct boot_reading {
    bool present;
    int rank, world;
    int local_rank;   /**< -1: it doesn't say */
    int local_world;  /**< 0: it doesn't say */
    char source[160]; /**< "RANK=1, WORLD_SIZE=4" */
};

enum { BOOT_FAMILY_NEEDS = 2 };

/** One launcher's variables. */
struct boot_family {
    const char *launcher;
    const char *rank, *world;             /**< the pair; NULL: `read` finds them elsewhere */
    const char *local_rank, *local_world; /**< may be NULL */
    const char *needs[BOOT_FAMILY_NEEDS]; /**< without one of these the family isn't there */
    /** Reads what plain variables don't tell; may be NULL. */
    zero_result (*read)(struct boot_reading *reading, char *const *environment,
                        struct base_error *error);
    /** Writes the launcher's own id of the job; false, and nothing written: it has none. */
    bool (*job)(struct base_text *text, char *const *environment); /**< may be NULL */
    /** Families that may stand around this one with another answer, as bits; if `around_if` is
     * not NULL, only while that variable is set. */
    unsigned around;
    const char *around_if;
};

extern const struct boot_family boot_families[BOOT_FAMILIES];

/** Reads one family. reading->present is false if it isn't there. ZERO_E_INVALID: malformed or
 * incomplete. */
zero_result boot_family_read(struct boot_reading *reading, const struct boot_family *family,
                             char *const *environment, struct base_error *error);

/** Reads a rank and a world that stand in two variables; changes nothing if both are missing.
 * ZERO_E_INVALID: one is missing or malformed. */
zero_result boot_pair_read(struct boot_reading *reading, const char *rank_name,
                           const char *world_name, char *const *environment,
                           struct base_error *error);

/** TF_CONFIG's boot_family.read and boot_family.job. */
zero_result boot_tensorflow_read(struct boot_reading *reading, char *const *environment,
                                 struct base_error *error);
bool boot_tensorflow_address(struct base_text *text, char *const *environment);

/** Variables that number hosts (pods, nodes), not processes. */
struct boot_nodes {
    bool present;
    int nodes;     /**< 0: they don't say */
    int processes; /**< a host, 1 unless they say otherwise; 0: left open */
    char source[160];
};

/** Reads the strongest family that numbers hosts: PET_*, SM_HOSTS, RANK and WORLD_SIZE without
 * LOCAL_RANK, JAX_*, JOB_COMPLETION_INDEX. ZERO_E_INVALID: malformed or incomplete. */
zero_result boot_nodes_read(struct boot_nodes *nodes, char *const *environment,
                            struct base_error *error);

#endif
