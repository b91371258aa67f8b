/**
 * What all launchers' variables say together, and which of them holds.
 */
#ifndef COLLECTIVES_RENDEZVOUS_LAUNCHER_SURVEY_H
#define COLLECTIVES_RENDEZVOUS_LAUNCHER_SURVEY_H

#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_platforms.h"
#include "collectives/rendezvous/rendezvous.h"

/** Everything the environment says. */
struct boot_survey {
    struct boot_reading families[BOOT_FAMILIES];
    struct boot_reading
        bare; /**< RANK and WORLD_SIZE without LOCAL_RANK: of processes or of hosts */
    struct boot_nodes nodes;
    int winner; /**< the innermost family, -1: none */
};

/** Reads it. ZERO_E_INVALID: malformed, or a half of a family that no whole one agrees with; the
 * winner is there all the same. */
zero_result boot_survey_read(struct boot_survey *survey, char *const *environment,
                             struct base_error *error);

/** Checks that all of it can be true at once. ZERO_E_INVALID: two families disagree, or one says
 * that this process is alone where another says that it is one of many. */
zero_result boot_survey_judge(const struct boot_survey *survey, char *const *environment,
                              struct base_error *error);

/** Whether two families say the same. */
bool boot_readings_agree(const struct boot_reading *a, const struct boot_reading *b);

/** Whether a family may say something else than the winner: it counts what starts ranks. */
bool boot_may_stand_around(const struct boot_survey *survey, int outer, char *const *environment);

/** The id of the job, as boot_job() has it. */
void boot_job_of_survey(char job[BOOT_JOB_BYTES], const struct boot_survey *survey,
                        char *const *environment);

/** The id that a platform, or the launcher whose ranks are hosts, has for the job: the same on all
 * hosts. False, and "": it has none. */
bool boot_job_of_platform(char job[BOOT_JOB_BYTES], const struct boot_survey *survey,
                          const struct boot_nodes *nodes, char *const *environment);

#endif
