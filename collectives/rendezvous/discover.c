// A process's place in its job.

#include "collectives/rendezvous/launcher_survey.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <string.h>

// One process, unless something is set that only parts of a job would have.
static zero_result place_alone(struct boot_place *place, const struct boot_nodes *nodes,
                               char *const *environment, struct base_error *error)
{
    if (nodes->present && !nodes->alone)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: this numbers hosts, or leaves open how many ranks each has: start "
                         "it by zero-run on each host, or by torchrun, or set LOCAL_RANK too, or "
                         "ZERO_RANK and ZERO_WORLD_SIZE (0 and 1 for one that trains alone)",
                         nodes->source);
    const zero_result result = boot_signs_check(NULL, environment, error);
    if (result)
        return result;
    place->rank = 0;
    place->world = 1;
    place->local_rank = 0;
    place->local_world = 1;
    place->hosts = 1;
    struct base_text launcher = {place->launcher, sizeof place->launcher, 0};
    base_text_add(&launcher, "none");
    struct base_text source = {place->source, sizeof place->source, 0};
    base_text_add(&source, "%s", nodes->source);
    return ZERO_OK;
}

static void place_in_family(struct boot_place *place, const struct boot_reading *reading,
                            const struct boot_family *family)
{
    place->rank = reading->rank;
    place->world = reading->world;
    place->local_rank = reading->local_rank;
    place->local_world = reading->local_world;
    place->hosts = reading->hosts;
    struct base_text launcher = {place->launcher, sizeof place->launcher, 0};
    base_text_add(&launcher, "%s", family->launcher);
    struct base_text source = {place->source, sizeof place->source, 0};
    base_text_add(&source, "%s", reading->source);
}

// What the innermost launcher leaves out an outer one may say, if it counts the same processes.
static void fill_in(struct boot_place *place, const struct boot_survey *survey)
{
    for (int i = 0; i < BOOT_FAMILIES; i++) {
        const struct boot_reading *outer = &survey->families[i];
        if (i == survey->winner || !outer->present ||
            !boot_readings_agree(&survey->families[survey->winner], outer))
            continue;
        place->local_world = place->local_world ? place->local_world : outer->local_world;
        place->hosts = place->hosts ? place->hosts : outer->hosts;
        if (place->local_rank < 0 &&
            (place->local_world == 0 || outer->local_rank < place->local_world))
            place->local_rank = outer->local_rank;
    }
}

zero_result boot_discover(struct boot_place *place, char *const *environment,
                          struct base_error *error)
{
    struct boot_survey survey;
    *place = (struct boot_place){.local_rank = -1};
    zero_result result = boot_survey_read(&survey, environment, error);
    if (!result)
        result = boot_survey_judge(&survey, environment, error);
    if (!result && survey.winner < 0)
        result = place_alone(place, &survey.nodes, environment, error);
    if (result)
        return result;
    if (survey.winner >= 0) {
        place_in_family(place, &survey.families[survey.winner], &boot_families[survey.winner]);
        fill_in(place, &survey);
    }
    if (place->local_world == place->world)
        place->hosts = 1;
    boot_job_of_survey(place->job, &survey, environment);
    return ZERO_OK;
}

bool boot_place_is_apart(const struct boot_place *place)
{
    return place->hosts > 1 || (place->local_world && place->local_world != place->world);
}
