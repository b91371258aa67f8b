#include "collectives/rendezvous/launcher_family.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "collectives/rendezvous/rendezvous.h"

#include "base/hash.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

// Everything the environment says, before any of it is believed.
struct survey {
    struct boot_reading families[BOOT_FAMILIES];
    struct boot_reading bare; // RANK and WORLD_SIZE without LOCAL_RANK: of processes or of hosts
    struct boot_nodes nodes;
    int winner; // the innermost family, -1: none
};

static bool agree(const struct boot_reading *a, const struct boot_reading *b)
{
    return a->rank == b->rank && a->world == b->world;
}

// The innermost family; or if that is a protocol, the launcher that speaks it.
static void choose_winner(struct survey *survey)
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
            agree(inner, &survey->families[i]))
            survey->winner = i;
}

// A half is no place. Beside a whole one it may say what that says; and what is set by hand,
// because a launcher says too little, holds.
static zero_result check_half(const struct survey *survey, const struct boot_reading *half,
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

static zero_result survey_read(struct survey *survey, char *const *environment,
                               struct base_error *error)
{
    *survey = (struct survey){.winner = -1};
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
static bool may_stand_around(const struct survey *survey, int outer, char *const *environment)
{
    const struct boot_reading *rank = &survey->families[survey->winner];
    const struct boot_family *inner = &boot_families[survey->winner];
    if (survey->families[outer].world == 1)
        return true;
    if (boot_families[outer].counts_hosts)
        return rank->world > 1 || survey->winner == BOOT_ZERO;
    if (!(inner->around & (1U << outer)) || (rank->world == 1 && survey->families[outer].rank > 0))
        return false;
    return !inner->around_if || (boot_variable(environment, inner->around_if) && rank->world > 1);
}

// Whether a launcher says that it is one of many, beside one that says that it is all.
static zero_result check_only_rank(const struct survey *survey, char *const *environment,
                                   struct base_error *error)
{
    const struct boot_reading *rank = &survey->families[survey->winner];
    if (rank->world > 1 || survey->winner == BOOT_ZERO)
        return ZERO_OK;
    if (survey->nodes.nodes > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: one rank, but %s says that there are several hosts, and each would "
                         "train alone: start one job on all of them, or set ZERO_RANK=0 and "
                         "ZERO_WORLD_SIZE=1 for one that does",
                         rank->source, survey->nodes.source);
    return boot_signs_check(rank, environment, error);
}

static zero_result survey_judge(const struct survey *survey, char *const *environment,
                                struct base_error *error)
{
    if (survey->winner < 0)
        return ZERO_OK;
    const struct boot_reading *inner = &survey->families[survey->winner];
    const struct boot_family *family = &boot_families[survey->winner];
    for (int i = 0; i < BOOT_FAMILIES; i++) {
        const struct boot_reading *outer = &survey->families[i];
        if (outer->present && !agree(inner, outer) && !may_stand_around(survey, i, environment))
            return zero_fail(error, ZERO_E_INVALID,
                             "%s (%s) and %s (%s) disagree: unset the ones that don't hold",
                             inner->source, family->launcher, outer->source,
                             boot_families[i].launcher);
    }
    // They may count hosts, which what is set by hand need not agree with.
    if (survey->bare.present && survey->bare.world > 1 && survey->winner != BOOT_ZERO &&
        !agree(inner, &survey->bare))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s (%s) and %s (without LOCAL_RANK) disagree: unset the ones that don't "
                         "hold",
                         inner->source, family->launcher, survey->bare.source);
    return check_only_rank(survey, environment, error);
}

// Ids may hold anything, of any length; what doesn't fit or isn't printable is hashed. The user
// tells apart what meets on one host; ranks on several hosts may have different numbers there.
static void job_finish(char job[BOOT_JOB_BYTES], const char *kind, const char *id, bool of_user)
{
    struct base_text text = {job, BOOT_JOB_BYTES, 0};
    if (of_user)
        base_text_add(&text, "%ju.", (uintmax_t)getuid());
    base_text_add(&text, "%s.", kind);
    bool plain = strlen(id) < text.size - text.used;
    for (const char *byte = id; *byte; byte++)
        plain = plain && *byte > ' ' && *byte <= '~';
    if (plain)
        base_text_add(&text, "%s", id);
    else
        base_text_add(&text, "%016" PRIx64, base_hash64(id, strlen(id), 0));
}

static bool job_of_family(char job[BOOT_JOB_BYTES], int family, char *const *environment,
                          bool of_user)
{
    char id[4096] = "";
    struct base_text text = {id, sizeof id, 0};
    if (!boot_families[family].job || !boot_families[family].job(&text, environment))
        return false;
    job_finish(job, boot_families[family].launcher, id, of_user);
    for (char *byte = job; *byte; byte++)
        if (*byte == ' ')
            *byte = '-';
    return true;
}

// Ranks that a user started by hand have the process in common that started them.
static void job_of_parent(char job[BOOT_JOB_BYTES])
{
    char id[32];
    struct base_text text = {id, sizeof id, 0};
    const pid_t parent = getppid();
    base_text_add(&text, "%jd", (intmax_t)(parent > 1 ? parent : getsid(0)));
    job_finish(job, parent > 1 ? "parent" : "session", id, true);
}

// ZERO_JOB first, then the winner's own id, then that of an outer launcher with the same answer:
// srun has one where PMI has none.
static bool job_of_launchers(char job[BOOT_JOB_BYTES], const struct survey *survey,
                             char *const *environment, bool of_user)
{
    if (job_of_family(job, BOOT_ZERO, environment, of_user))
        return true;
    for (int i = survey->winner; i >= 0 && i < BOOT_FAMILIES; i++)
        if (survey->families[i].present &&
            agree(&survey->families[i], &survey->families[survey->winner]) &&
            job_of_family(job, i, environment, of_user))
            return true;
    return false;
}

static void job_of_survey(char job[BOOT_JOB_BYTES], const struct survey *survey,
                          char *const *environment)
{
    if (!job_of_launchers(job, survey, environment, true))
        job_of_parent(job);
}

void boot_job(char job[BOOT_JOB_BYTES], char *const *environment)
{
    struct survey survey;
    survey_read(&survey, environment, NULL);
    job_of_survey(job, &survey, environment);
}

void boot_job_at(char job[BOOT_JOB_BYTES], const struct boot_master *master,
                 char *const *environment)
{
    struct survey survey;
    char id[BOOT_ADDRESS_BYTES + 16] = "";
    struct base_text text = {id, sizeof id, 0};
    survey_read(&survey, environment, NULL);
    if (job_of_launchers(job, &survey, environment, false))
        return;
    base_text_add(&text, "%s:%d", master->address, master->port);
    // Two users of one host may have taken the same port, as an example has it.
    unsigned char address[MESH_ADDRESS_BYTES];
    job_finish(job, "at", id, mesh_names_loopback(master, address));
}

// One process, unless something is set that only parts of a job would have.
static zero_result place_alone(struct boot_place *place, const struct boot_nodes *nodes,
                               char *const *environment, struct base_error *error)
{
    if (nodes->present && !nodes->alone)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: this numbers hosts, or leaves open how many ranks each has: start "
                         "the ranks of each host by torchrun (of a single host by zero-run), or "
                         "set LOCAL_RANK too, or ZERO_RANK and ZERO_WORLD_SIZE (0 and 1 for one "
                         "that trains alone)",
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
static void fill_in(struct boot_place *place, const struct survey *survey)
{
    for (int i = 0; i < BOOT_FAMILIES; i++) {
        const struct boot_reading *outer = &survey->families[i];
        if (i == survey->winner || !outer->present ||
            !agree(&survey->families[survey->winner], outer))
            continue;
        place->local_world = place->local_world ? place->local_world : outer->local_world;
        place->hosts = place->hosts ? place->hosts : outer->hosts;
        if (place->local_rank < 0 &&
            (place->local_world == 0 || outer->local_rank < place->local_world))
            place->local_rank = outer->local_rank;
    }
}

static zero_result discover(struct boot_place *place, struct survey *survey,
                            char *const *environment, struct base_error *error)
{
    *place = (struct boot_place){.local_rank = -1};
    zero_result result = survey_read(survey, environment, error);
    if (!result)
        result = survey_judge(survey, environment, error);
    if (!result && survey->winner < 0)
        result = place_alone(place, &survey->nodes, environment, error);
    if (result)
        return result;
    if (survey->winner >= 0) {
        place_in_family(place, &survey->families[survey->winner], &boot_families[survey->winner]);
        fill_in(place, survey);
    }
    if (place->local_world == place->world)
        place->hosts = 1;
    return ZERO_OK;
}

zero_result boot_discover(struct boot_place *place, char *const *environment,
                          struct base_error *error)
{
    struct survey survey;
    const zero_result result = discover(place, &survey, environment, error);
    if (!result)
        job_of_survey(place->job, &survey, environment);
    return result;
}

bool boot_place_is_apart(const struct boot_place *place)
{
    return place->hosts > 1 || (place->local_world && place->local_world != place->world);
}

zero_result boot_check_alone(char *const *environment, struct base_error *error)
{
    struct survey survey;
    zero_result result = survey_read(&survey, environment, error);
    if (!result)
        result = survey_judge(&survey, environment, error);
    if (result)
        return result;
    if (survey.winner >= 0 && survey.families[survey.winner].world > 1)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s: %s has started several processes already, and each would start ranks "
                         "of its own",
                         survey.families[survey.winner].source,
                         boot_families[survey.winner].launcher);
    if (survey.nodes.present && survey.nodes.nodes != 1)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s: the job is on several hosts, or that is left open; ranks are started "
                         "on one host only (unset it to do so)",
                         survey.nodes.source);
    struct base_error sign = {.result = ZERO_OK};
    if (survey.winner < 0 && boot_signs_check(NULL, environment, &sign))
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s", sign.message);
    return ZERO_OK;
}

static void add_number(struct base_text *text, int number, int least)
{
    if (number < least)
        base_text_add(text, "unknown");
    else
        base_text_add(text, "%d", number);
}

static void explain_place(struct base_text *text, const struct boot_place *place)
{
    base_text_add(text, "rank         %d of %d\n", place->rank, place->world);
    base_text_add(text, "on this host ");
    add_number(text, place->local_rank, 0);
    base_text_add(text, " of ");
    add_number(text, place->local_world, 1);
    base_text_add(text, "\nhosts        ");
    add_number(text, place->hosts, 1);
    base_text_add(text, "\nlauncher     %s\n", place->launcher);
    base_text_add(text, "from         %s\n", *place->source ? place->source : "no variable");
    base_text_add(text, "job          %s\n", place->job);
}

static void explain_address(struct base_text *text, char *const *environment)
{
    struct boot_master master;
    struct base_error error = {.result = ZERO_OK};
    if (boot_find_master(&master, environment, &error))
        base_text_add(text, "rank 0 is at unknown: %s\n", error.message);
    else
        base_text_add(text, "rank 0 is at port %d of %s, from %s\n", master.port, master.address,
                      master.source);
}

// Ranks that are known to be on one host need no address.
static void explain_master(struct base_text *text, const struct boot_place *place,
                           char *const *environment)
{
    struct boot_master master;
    if (place->local_world == place->world)
        return;
    if (place->local_world || boot_place_is_apart(place) ||
        !boot_find_master(&master, environment, NULL) || *master.address)
        explain_address(text, environment);
    else
        base_text_add(text,
                      "rank 0 is at unknown: only ranks of this host can meet; set MASTER_ADDR "
                      "and MASTER_PORT if there are others\n");
}

// What a launcher of this host's ranks can know of it.
static void explain_host(struct base_text *text, const struct boot_nodes *nodes,
                         char *const *environment)
{
    if (!nodes->present || nodes->alone)
        return;
    base_text_add(text, "host         ");
    add_number(text, nodes->node, 0);
    base_text_add(text, " of ");
    add_number(text, nodes->nodes, 1);
    base_text_add(text, ", ranks of each ");
    add_number(text, nodes->processes, 1);
    base_text_add(text, ", from %s\n", nodes->source);
    explain_address(text, environment);
}

static void explain_unused(struct base_text *text, const struct survey *survey,
                           char *const *environment)
{
    // Without a winner the one that is present is malformed, and the error tells.
    for (int i = 0; survey->winner >= 0 && i < BOOT_FAMILIES; i++) {
        const struct boot_reading *reading = &survey->families[i];
        if (!reading->present || i == survey->winner)
            continue;
        const char *why = agree(reading, &survey->families[survey->winner]) ? "agrees"
                          : may_stand_around(survey, i, environment)        ? "stands around it"
                                                                            : "disagrees";
        base_text_add(text, "not used     %s (%s): %s\n", reading->source,
                      boot_families[i].launcher, why);
    }
    if (survey->winner >= 0 && survey->nodes.present && !survey->families[survey->winner].hosts)
        base_text_add(text, "not used     %s: counts hosts\n", survey->nodes.source);
    const char *batch = boot_variable(environment, "SLURM_PROCID");
    if (batch && !survey->families[BOOT_SLURM].present) {
        base_text_add(text, "not used     ");
        boot_text_add_variable(text, "SLURM_PROCID", batch);
        base_text_add(text, ": a batch script, no step of srun\n");
    }
}

void boot_explain(char *const *environment, char *text, size_t size)
{
    if (size == 0)
        return;
    text[0] = '\0';
    struct base_text out = {text, size, 0};
    struct boot_place place;
    struct survey survey;
    struct base_error error = {.result = ZERO_OK};
    if (discover(&place, &survey, environment, &error)) {
        base_text_add(&out, "error        %s\n", error.message);
        if (survey.winner < 0)
            explain_host(&out, &survey.nodes, environment);
    } else {
        job_of_survey(place.job, &survey, environment);
        explain_place(&out, &place);
        explain_master(&out, &place, environment);
    }
    explain_unused(&out, &survey, environment);
}
