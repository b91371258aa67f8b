// What the environment says of a process, for people.

#include "collectives/rendezvous/hosts_of_job.h"
#include "collectives/rendezvous/launcher_survey.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/process_manager.h"

#include <assert.h>

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

// What variables say of the host where they leave open how many there are, or which it is.
static void explain_nodes(struct base_text *text, const struct boot_nodes *nodes)
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
}

// What a launcher of this host's ranks goes by.
static void explain_hosts(struct base_text *text, const struct boot_hosts *hosts)
{
    assert(hosts->hosts > 1 && hosts->host < hosts->hosts);
    base_text_add(text, "host         %d of %d, ranks of each ", hosts->host, hosts->hosts);
    if (hosts->ranks)
        base_text_add(text, "%d", hosts->ranks);
    else
        base_text_add(text, "left open");
    base_text_add(text, ", from %s (%s)\n", hosts->source, hosts->platform);
    base_text_add(text, "host 0 is at port %d of ", hosts->master.port);
    if (*hosts->master.address)
        base_text_add(text, "%s, from %s\n", hosts->master.address, hosts->master.source);
    else
        base_text_add(text, "an address that %s tells the other hosts\n", hosts->platform);
    if (*hosts->job)
        base_text_add(text, "job of hosts %s\n", hosts->job);
    if (hosts->restarts)
        base_text_add(text, "restarts     %d so far\n", hosts->restarts);
}

static void explain_unused(struct base_text *text, const struct boot_survey *survey,
                           char *const *environment)
{
    // Without a winner the one that is present is malformed, and the error tells.
    for (int i = 0; survey->winner >= 0 && i < BOOT_FAMILIES; i++) {
        const struct boot_reading *reading = &survey->families[i];
        if (!reading->present || i == survey->winner)
            continue;
        const char *why = boot_readings_agree(reading, &survey->families[survey->winner]) ? "agrees"
                          : boot_may_stand_around(survey, i, environment) ? "stands around it"
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

static bool is_host(struct boot_hosts *hosts, const struct boot_hosts_given *given,
                    char *const *environment)
{
    return boot_find_hosts(hosts, given, environment, NULL) == ZERO_OK && hosts->hosts > 1;
}

// What the variables leave open, a program may ask for when it opens a context. It is not asked
// here: a process that has asked has to say so when it leaves.
static void explain_unplaced(struct base_text *text, bool host, const char *why,
                             char *const *environment)
{
    const char *manager = host ? NULL : boot_manager_placing(environment);
    if (manager)
        base_text_add(
            text,
            "rank         asked of %s when a program opens a context; the variables alone "
            "say: %s\n",
            manager, why);
    else
        base_text_add(text, "%s%s\n", host ? "no rank      " : "error        ", why);
}

void boot_explain(const struct boot_hosts_given *given, char *const *environment, char *text,
                  size_t size)
{
    if (size == 0)
        return;
    text[0] = '\0';
    struct base_text out = {text, size, 0};
    struct boot_place place;
    struct boot_hosts hosts;
    struct boot_survey survey;
    struct base_error error = {.result = ZERO_OK};
    const bool host = is_host(&hosts, given, environment);
    boot_survey_read(&survey, environment, NULL);
    if (boot_discover(&place, environment, &error)) {
        explain_unplaced(&out, host, error.message, environment);
        if (survey.winner < 0 && !host)
            explain_nodes(&out, &survey.nodes);
    } else {
        explain_place(&out, &place);
        explain_master(&out, &place, environment);
    }
    if (host)
        explain_hosts(&out, &hosts);
    explain_unused(&out, &survey, environment);
}
