// What all launchers' variables say together, and which of them holds for this process.

#include "collectives/rendezvous/launcher_survey.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>

bool boot_readings_agree(const struct boot_reading *a, const struct boot_reading *b)
{
    return a->rank == b->rank && a->world == b->world;
}

// The innermost family; or if that is a protocol, the launcher that speaks it.
static void choose_winner(struct boot_survey *survey)
{
    survey->winner = -1;
    for (int i = 0; i < BOOT_FAMILIES && survey->winner < 0; i++)
        survey->winner = survey->families[i].present ? i : -1;
    if (survey->winner < 0)
        return;
    const struct boot_reading *inner = &survey->families[survey->winner];
    const unsigned spoken_by = boot_families[survey->winner].spoken_by;
    for (int i = 0; i < BOOT_FAMILIES; i++)
        if ((spoken_by & (1U << i)) && survey->families[i].present &&
            boot_readings_agree(inner, &survey->families[i]))
            survey->winner = i;
}

// A half is no place. Beside a whole one it may say what that says; and what is set by hand,
// because a launcher says too little, holds.
static zero_result check_half(const struct boot_survey *survey, const struct boot_reading *half,
                              struct base_error *error)
{
    if (!half->missing || survey->winner == BOOT_ZERO)
        return ZERO_OK;
    if (survey->winner < 0 || half == &survey->families[BOOT_ZERO])
        return boot_half_fail(half, error);
    const struct boot_reading *whole = &survey->families[survey->winner];
    if (half->rank >= 0 ? half->rank == whole->rank : half->world == whole->world)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "%s (%s) and %s disagree: unset the ones that don't hold", whole->source,
                     boot_families[survey->winner].launcher, half->source);
}

zero_result boot_survey_read(struct boot_survey *survey, char *const *environment,
                             struct base_error *error)
{
    *survey = (struct boot_survey){.winner = -1};
    zero_result result = ZERO_OK;
    for (int i = 0; i < BOOT_FAMILIES && !result; i++)
        result = boot_family_read(&survey->families[i], &boot_families[i], environment, error);
    if (!result && !boot_variable(environment, "LOCAL_RANK"))
        result = boot_pair_read(&survey->bare, "RANK", "WORLD_SIZE", environment, error);
    choose_winner(survey);
    for (int i = 0; i < BOOT_FAMILIES && !result; i++)
        result = check_half(survey, &survey->families[i], error);
    if (!result)
        result = check_half(survey, &survey->bare, error);
    return result ? result : boot_nodes_read(&survey->nodes, environment, error);
}

// A launcher of one process may have any other inside it; of several only those known to. Each of
// their agents starts ranks of one job, which are then more than one; the first may start one
// alone.
bool boot_may_stand_around(const struct boot_survey *survey, int outer, char *const *environment)
{
    assert(survey->winner >= 0 && outer != survey->winner);
    const struct boot_reading *rank = &survey->families[survey->winner];
    const struct boot_family *inner = &boot_families[survey->winner];
    if (survey->families[outer].world == 1)
        return true;
    // On several hosts zero-run has looked at all variables before it started its ranks.
    if (survey->winner == BOOT_ZERO && boot_variable(environment, "ZERO_HOST"))
        return true;
    if (boot_families[outer].counts_hosts)
        return rank->world > 1 || survey->winner == BOOT_ZERO;
    if (!(inner->around & (1U << outer)) || (rank->world == 1 && survey->families[outer].rank > 0))
        return false;
    return !inner->around_if || (boot_variable(environment, inner->around_if) && rank->world > 1);
}

// A launcher that has started all its ranks on this host, which a platform counts as one of
// several: each host has a job of its own then, which takes itself for the whole one.
static zero_result check_all_here(const struct boot_survey *survey, char *const *environment,
                                  struct base_error *error)
{
    const struct boot_reading *rank = &survey->families[survey->winner];
    const struct boot_nodes *nodes = &survey->nodes;
    if (rank->local_world != rank->world || nodes->nodes <= 1 ||
        nodes->flags & (BOOT_NODES_BARE | BOOT_NODES_STARTED))
        return ZERO_OK;
    char bytes[64] = "";
    const char *name;
    const char *here = boot_first_variable(&name, boot_families[survey->winner].local_world,
                                           BOOT_FAMILY_NAMES, environment);
    boot_text_list_variable(&(struct base_text){bytes, sizeof bytes, 0}, name, here);
    return zero_fail(error, ZERO_E_INVALID,
                     "%s%s%s: all ranks are on this host, but %s says that there are %d hosts, and "
                     "each would train without the others: start one job on all of them, or unset "
                     "what does not hold",
                     rank->source, *bytes ? ", " : "", bytes, nodes->source, nodes->nodes);
}

// Whether a launcher says that it is one of many, beside one that says that it is all.
static zero_result check_only_rank(const struct boot_survey *survey, char *const *environment,
                                   struct base_error *error)
{
    const struct boot_reading *rank = &survey->families[survey->winner];
    if (survey->winner == BOOT_ZERO)
        return ZERO_OK;
    if (rank->world > 1)
        return check_all_here(survey, environment, error);
    if (survey->nodes.nodes > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: one rank, but %s says that there are several hosts, and each would "
                         "train alone: start one job on all of them, or set ZERO_RANK=0 and "
                         "ZERO_WORLD_SIZE=1 for one that does",
                         rank->source, survey->nodes.source);
    return boot_signs_check(rank, environment, error);
}

zero_result boot_survey_judge(const struct boot_survey *survey, char *const *environment,
                              struct base_error *error)
{
    if (survey->winner < 0)
        return ZERO_OK;
    const struct boot_reading *inner = &survey->families[survey->winner];
    const struct boot_family *family = &boot_families[survey->winner];
    for (int i = 0; i < BOOT_FAMILIES; i++) {
        const struct boot_reading *outer = &survey->families[i];
        if (outer->present && !boot_readings_agree(inner, outer) &&
            !boot_may_stand_around(survey, i, environment))
            return zero_fail(error, ZERO_E_INVALID,
                             "%s (%s) and %s (%s) disagree: unset the ones that don't hold",
                             inner->source, family->launcher, outer->source,
                             boot_families[i].launcher);
    }
    // They may count hosts, which what is set by hand need not agree with.
    if (survey->bare.present && survey->bare.world > 1 && survey->winner != BOOT_ZERO &&
        !boot_readings_agree(inner, &survey->bare))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s (%s) and %s (without LOCAL_RANK) disagree: unset the ones that don't "
                         "hold",
                         inner->source, family->launcher, survey->bare.source);
    return check_only_rank(survey, environment, error);
}
