#include "collectives/rendezvous/hosts_of_job.h"

#include "collectives/rendezvous/launcher_survey.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** What is known while the variables are put together, and from whom. */
struct search {
    struct boot_hosts *hosts;
    const struct boot_hosts_given *given;
    char *const *environment;
    struct base_error *error;
    struct boot_survey survey;
    struct boot_nodes count, place; /**< who says how many hosts there are, and which this is */
    struct boot_nodes first; /**< the strongest platform that is there, with the address and the id
                                of the job from the first that has one */
};

/* ------------------------------------------------------------------ platforms */

static zero_result disagree(struct search *search, const struct boot_nodes *a,
                            const struct boot_nodes *b)
{
    return zero_fail(search->error, ZERO_E_INVALID,
                     "%s (%s) and %s (%s) disagree about the hosts of the job: unset the ones that "
                     "don't hold",
                     a->source, a->platform, b->source, b->platform);
}

// WORLD_SIZE counts hosts, or, as Kubeflow has it beside PET_NPROC_PER_NODE, their ranks.
static bool counts_agree(const struct boot_nodes *a, const struct boot_nodes *b)
{
    return !a->nodes || !b->nodes || a->nodes == b->nodes ||
           (b->flags & BOOT_NODES_BARE && a->processes && b->nodes % a->processes == 0 &&
            b->nodes / a->processes == a->nodes);
}

// A number that counts within a part of the job need not be that of the host.
static bool places_agree(const struct boot_nodes *a, const struct boot_nodes *b)
{
    return a->node < 0 || b->node < 0 || a->node == b->node ||
           (b->flags & BOOT_NODES_PART && !(a->flags & BOOT_NODES_INDEXED));
}

// Whether WORLD_SIZE counts hosts: with several processes a pod, and no number of pods or a range,
// it may be either.
static bool may_count(const struct search *search, const struct boot_nodes *nodes)
{
    return !(nodes->flags & BOOT_NODES_BARE) || !(search->first.flags & BOOT_NODES_INDEXED) ||
           search->first.nodes;
}

// Whether --nodes is outside of a platform's range.
static bool is_out_of_range(const struct search *search, const struct boot_nodes *nodes)
{
    const int given = search->given->hosts;
    return given && nodes->most && (given < nodes->least || given > nodes->most);
}

static zero_result disagree_with_given(const struct search *search, const struct boot_nodes *nodes)
{
    return zero_fail(search->error, ZERO_E_INVALID,
                     "--nodes %d and %s disagree about the hosts of the job", search->given->hosts,
                     nodes->source);
}

static zero_result take_platform(struct search *search, struct boot_nodes *nodes)
{
    assert(nodes->present && nodes->platform && *nodes->source);
    if (is_out_of_range(search, nodes))
        return disagree_with_given(search, nodes);
    if (!may_count(search, nodes))
        nodes->nodes = 0;
    if (search->count.present && !counts_agree(&search->count, nodes))
        return disagree(search, &search->count, nodes);
    if (search->place.present && !places_agree(&search->place, nodes))
        return disagree(search, &search->place, nodes);
    if (!search->first.present)
        search->first = *nodes;
    if (!*search->first.address && *nodes->address) {
        memcpy(search->first.address, nodes->address, sizeof nodes->address);
        search->first.address_from = nodes->address_from;
        search->first.port = search->first.port ? search->first.port : nodes->port;
    }
    if (!search->first.job && nodes->job) {
        search->first.job = nodes->job;
        search->first.platform = nodes->platform;
    }
    if (nodes->nodes && !search->count.present)
        search->count = *nodes;
    if (nodes->node >= 0 && !search->place.present)
        search->place = *nodes;
    if (!search->hosts->ranks)
        search->hosts->ranks = nodes->processes;
    return ZERO_OK;
}

// RANK and WORLD_SIZE are a rank's own if how many ranks are here stands beside them.
static zero_result check_bare(const struct search *search, const struct boot_nodes *nodes)
{
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"};
    const char *name;
    const char *here = boot_first_variable(&name, names, 2, search->environment);
    return nodes->present && nodes->flags & BOOT_NODES_BARE && here
               ? zero_fail(search->error, ZERO_E_INVALID,
                           "%s and %s=%s are set, but LOCAL_RANK is not: set it for a rank, or "
                           "unset %s for a host",
                           nodes->source, name, here, name)
               : ZERO_OK;
}

static zero_result look_at_platforms(struct search *search)
{
    const bool counted = search->given->hosts > 0;
    for (size_t i = 0; i < boot_platforms; i++) {
        struct boot_nodes nodes;
        zero_result result =
            boot_platform_read(&nodes, i, counted, search->environment, search->error);
        if (!result)
            result = check_bare(search, &nodes);
        if (!result && nodes.present && !(nodes.flags & BOOT_NODES_STARTED))
            result = take_platform(search, &nodes);
        if (result)
            return result;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ ranks that are hosts */

// A launcher of ranks that has started one on each host: its numbers are those of hosts. torchrun
// is none: it listens itself at the port that it tells.
static bool is_one_a_host(const struct search *search, const struct boot_reading *rank)
{
    const struct boot_nodes *nodes = &search->survey.nodes;
    if (search->survey.winner == BOOT_ZERO ||
        (search->survey.winner == BOOT_TORCHRUN &&
         boot_variable(search->environment, "TORCHELASTIC_RUN_ID")))
        return false;
    if (rank->local_rank > 0 || rank->local_world > 1)
        return false;
    return rank->hosts == rank->world || (rank->local_world == 1 && nodes->nodes == rank->world) ||
           (search->survey.winner == BOOT_TENSORFLOW && rank->local_world == 1);
}

static zero_result take_rank(struct search *search)
{
    assert(search->survey.winner >= 0);
    const struct boot_reading *rank = &search->survey.families[search->survey.winner];
    assert(rank->world > 1 && rank->rank < rank->world);
    const char *launcher = boot_families[search->survey.winner].launcher;
    if (!is_one_a_host(search, rank))
        return zero_fail(search->error, ZERO_E_UNSUPPORTED,
                         "%s: %s has started several processes already, and each would start ranks "
                         "of its own",
                         rank->source, launcher);
    struct boot_nodes nodes = {
        .present = true, .nodes = rank->world, .node = rank->rank, .platform = launcher};
    memcpy(nodes.source, rank->source, sizeof nodes.source);
    search->count = search->place = nodes;
    // Platforms around it may know where host 0 is; they count the same hosts, or others.
    if (search->survey.winner == BOOT_KUBEFLOW || search->survey.nodes.nodes == rank->world) {
        search->first = search->survey.nodes;
        search->hosts->ranks = search->first.processes;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ how many, and which */

static zero_result leave_open(struct search *search, const char *what, const char *advice)
{
    char bytes[320] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    const struct boot_nodes *known[] = {&search->count, &search->first, &search->place};
    for (size_t i = 0; i < 3; i++)
        if (known[i]->present && !strstr(bytes, known[i]->source))
            base_text_add(&text, "%s%s", text.used ? ", " : "", known[i]->source);
    return zero_fail(search->error, ZERO_E_UNSUPPORTED, "%s: no variable says %s: %s",
                     text.used ? bytes : "--nodes", what, advice);
}

static zero_result check_given(struct search *search)
{
    const int given = search->given->hosts, said = search->count.nodes;
    if (given && said && given != said)
        return disagree_with_given(search, &search->count);
    search->hosts->hosts = given ? given : said;
    if (!search->hosts->hosts)
        return leave_open(search, "how many hosts the job has", "give --nodes N on each of them");
    return ZERO_OK;
}

static zero_result check_place(struct search *search)
{
    struct boot_hosts *hosts = search->hosts;
    if (!search->place.present && hosts->hosts > 1)
        return leave_open(search, "which host of the job this is",
                          "set NODE_RANK, 0 on the first host");
    if (hosts->hosts == 1 && search->given->hosts == 1)
        return ZERO_OK;
    if (search->place.present && search->place.node >= hosts->hosts)
        return zero_fail(search->error, ZERO_E_INVALID,
                         "%s, but the job has %d host%s (%s), with numbers from 0",
                         search->place.source, hosts->hosts, hosts->hosts == 1 ? "" : "s",
                         search->count.present ? search->count.source : "--nodes");
    hosts->host = search->place.present ? search->place.node : 0;
    assert(hosts->host >= 0 && hosts->host < hosts->hosts);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ where host 0 is */

static bool is_address(const char *value, size_t length)
{
    bool good = length > 0 && length < BOOT_ADDRESS_BYTES;
    for (size_t i = 0; i < length && good; i++)
        good = value[i] > ' ' && value[i] <= '~';
    return good;
}

static zero_result keep_address(struct search *search, const char *name, const char *value,
                                size_t length)
{
    struct boot_master *master = &search->hosts->master;
    if (length > 2 && value[0] == '[' && value[length - 1] == ']') { // as in a URL
        value++;
        length -= 2;
    }
    if (!is_address(value, length)) {
        char shown[128];
        struct base_text text = {shown, sizeof shown, 0};
        boot_text_add_variable(&text, name, value);
        return zero_fail(search->error, ZERO_E_INVALID, "%s has no name or address of a host",
                         shown);
    }
    memcpy(master->address, value, length);
    master->address[length] = '\0';
    struct base_text source = {master->source, sizeof master->source, strlen(master->source)};
    base_text_add(&source, "%s%s", source.used ? ", " : "", name);
    return ZERO_OK;
}

static zero_result keep_port(struct search *search, const char *name, const char *value)
{
    struct boot_master *master = &search->hosts->master;
    const zero_result result =
        boot_number(&master->port, name, value, 1, BOOT_PORT_MAX, search->error);
    struct base_text source = {master->source, sizeof master->source, strlen(master->source)};
    base_text_add(&source, "%s%s", source.used ? ", " : "", name);
    return result;
}

static zero_result take_given_master(struct search *search)
{
    const char *master = search->given->master;
    if (!master)
        return ZERO_OK;
    const char *colon = strrchr(master, ':');
    if (colon && (*master == '[' ? colon[-1] != ']' : strchr(master, ':') != colon))
        colon = NULL; // of an IPv6 address
    const size_t length = colon ? (size_t)(colon - master) : strlen(master);
    const zero_result result = keep_address(search, "--master", master, length);
    return result || !colon ? result : keep_port(search, "the port of --master", colon + 1);
}

// The port is the one that is said: no agent of torchrun listens there.
static zero_result take_variables(struct search *search)
{
    static const char *const addresses[] = {"ZERO_MASTER_ADDR", "MASTER_ADDR", "PET_MASTER_ADDR"};
    static const char *const ports[] = {"ZERO_MASTER_PORT", "MASTER_PORT", "PET_MASTER_PORT"};
    const char *name;
    const char *address = boot_first_variable(&name, addresses, 3, search->environment);
    zero_result result = ZERO_OK;
    if (address && !*search->hosts->master.address)
        result = keep_address(search, name, address, strlen(address));
    const char *port = boot_first_variable(&name, ports, 3, search->environment);
    if (port && !search->hosts->master.port && !result)
        result = keep_port(search, name, port);
    return result;
}

// A step of Slurm and TF_CONFIG have both address and port, found where ranks find rank 0.
static void take_launcher(struct search *search)
{
    struct boot_master *master = &search->hosts->master, found;
    if (search->survey.winner < 0 || (*master->address && master->port) ||
        boot_find_any_master(&found, search->environment, NULL) || !*found.address)
        return;
    struct base_text source = {master->source, sizeof master->source, strlen(master->source)};
    base_text_add(&source, "%s%s", source.used ? ", " : "", found.source);
    if (!*master->address)
        strcpy(master->address, found.address);
    if (!master->port)
        master->port = found.port;
}

static zero_result find_host_0(struct search *search)
{
    struct boot_master *master = &search->hosts->master;
    const struct boot_nodes *first = &search->first;
    assert(search->hosts->hosts > 1 && !*master->address && !master->port);
    zero_result result = take_given_master(search);
    if (!result)
        result = take_variables(search);
    if (result)
        return result;
    if (first->present && *first->address && !*master->address)
        result = keep_address(search, first->address_from, first->address, strlen(first->address));
    if (!result && !master->port)
        master->port = first->port;
    if (!result)
        take_launcher(search);
    if (!master->port)
        master->port = BOOT_HOSTS_PORT;
    const bool told = first->flags & BOOT_NODES_OTHERS && search->hosts->host == 0;
    if (!result && !*master->address && !told)
        result =
            leave_open(search, "where host 0 is",
                       "set MASTER_ADDR to its name or address on all hosts, or give --master");
    return result ? result : boot_master_secret(master, search->environment, search->error);
}

/* ------------------------------------------------------------------ all of it */

static void tell_platform(struct search *search)
{
    struct boot_hosts *hosts = search->hosts;
    const struct boot_nodes *said = search->count.present   ? &search->count
                                    : search->place.present ? &search->place
                                                            : &search->first;
    snprintf(hosts->platform, sizeof hosts->platform, "%s",
             said->present ? said->platform : "none");
    struct base_text source = {hosts->source, sizeof hosts->source, 0};
    if (said->present)
        base_text_add(&source, "%s", said->source);
    if (search->place.present && strcmp(search->place.source, said->source) != 0)
        base_text_add(&source, ", %s", search->place.source);
    if (search->given->hosts && !search->count.present)
        base_text_add(&source, "%s--nodes", source.used ? ", " : "");
    boot_job_of_platform(hosts->job, &search->survey, &search->first, search->environment);
}

// Whether some launcher has started ranks, without saying enough of them. A process that is alone
// by
// --nodes may have a number among others.
static zero_result check_signs(struct search *search)
{
    struct base_error sign = {.result = ZERO_OK};
    const bool alone = search->hosts->hosts == 1 && search->given->hosts != 1;
    const zero_result found = alone ? boot_signs_check(NULL, search->environment, &sign)
                                    : boot_signs_of_ranks(search->environment, &sign);
    return found ? zero_fail(search->error, ZERO_E_UNSUPPORTED, "%s", sign.message) : ZERO_OK;
}

// No launcher has started ranks, or none says enough.
static zero_result find_by_platforms(struct search *search)
{
    zero_result result = look_at_platforms(search);
    if (!result && (search->first.present || search->given->hosts))
        result = check_given(search);
    else if (!result)
        search->hosts->hosts = 1;
    if (!result)
        result = check_place(search);
    if (!result)
        result = check_signs(search);
    if (!result && search->hosts->hosts > 1)
        result = find_host_0(search);
    return result;
}

static zero_result find_by_launcher(struct search *search)
{
    zero_result result = take_rank(search);
    if (!result)
        result = check_given(search);
    if (!result)
        result = check_place(search);
    return result ? result : find_host_0(search);
}

// A launcher says that this process is all of its job, which the command line may contradict.
static zero_result find_alone(const struct search *search)
{
    const struct boot_reading *said = &search->survey.families[search->survey.winner];
    search->hosts->hosts = 1;
    if (search->given->hosts > 1)
        return zero_fail(search->error, ZERO_E_INVALID,
                         "--nodes %d and %s disagree: unset the one that does not hold",
                         search->given->hosts, said->source);
    return ZERO_OK;
}

// Where another host is, there is one.
static zero_result check_master(const struct search *search)
{
    if (!search->given->master || search->given->hosts == 1 || search->hosts->hosts > 1)
        return ZERO_OK;
    return zero_fail(search->error, ZERO_E_UNSUPPORTED,
                     "--master says that there are other hosts, and nothing says how many: give "
                     "--nodes");
}

zero_result boot_find_hosts(struct boot_hosts *hosts, const struct boot_hosts_given *given,
                            char *const *environment, struct base_error *error)
{
    static const struct boot_hosts_given nothing = {.hosts = 0};
    *hosts = (struct boot_hosts){.hosts = 0};
    struct search search = {.hosts = hosts,
                            .given = given ? given : &nothing,
                            .environment = environment,
                            .error = error,
                            .count = {.node = -1},
                            .place = {.node = -1},
                            .first = {.node = -1}};
    zero_result result = boot_survey_read(&search.survey, environment, error);
    if (!result)
        result = boot_survey_judge(&search.survey, environment, error);
    if (!result)
        result = boot_restarts(&hosts->restarts, environment, error);
    if (result)
        return result;
    const int winner = search.survey.winner;
    if (winner >= 0 && search.survey.families[winner].world > 1)
        result = find_by_launcher(&search);
    else if (winner >= 0)
        result = find_alone(&search);
    else
        result = find_by_platforms(&search);
    if (!result)
        result = check_master(&search);
    if (result)
        return result;
    assert(hosts->hosts == 1 || hosts->master.port);
    tell_platform(&search);
    return ZERO_OK;
}

zero_result boot_check_alone(char *const *environment, struct base_error *error)
{
    struct boot_hosts hosts;
    const zero_result result = boot_find_hosts(&hosts, NULL, environment, error);
    if (result || hosts.hosts == 1)
        return result;
    return zero_fail(error, ZERO_E_UNSUPPORTED,
                     "%s: a platform has started one process on each of %d hosts, and each would "
                     "do this (unset it if this process is to do it alone)",
                     hosts.source, hosts.hosts);
}
