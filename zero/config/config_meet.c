// Where ranks meet, and which of them are on this host, where the launcher does not say: they meet
// first, and tell each other.

#include "zero/config/config.h"

#include "base/clock.h"
#include "zero/config/config_key.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void eng_config_ask_launcher(struct eng_config *config)
{
    struct boot_place place;
    if (boot_discover(&place, environ, NULL) != ZERO_OK || place.world < config->world)
        return;
    // Another order of ranks changes nothing about the processes, whose numbers on a host differ.
    config->local_rank = place.local_rank;
    if (place.rank == config->rank && place.world == config->world)
        config->local_world = place.local_world;
    else if (place.local_world == place.world)
        config->local_world = config->world;
}

// Where rank 0 is: what the variables say, or whether a process manager can be asked.
static zero_result read_master(struct eng_config *config, char *const *environment,
                               struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    zero_result result = boot_find_any_master(&config->meeting, environment, &why);
    if (!result && !*config->meeting.address)
        result =
            boot_manager_look(&config->asks_manager, config->rank, config->world, environ, &why);
    if (!result && config->by_network && !config->asks_manager)
        result = boot_find_master(&config->meeting, environment, &why);
    return result ? zero_fail(error, result, "%s%s", why.message,
                              config->local_world > 0
                                  ? ""
                                  : "; if all ranks are on this host, transport=shm needs neither")
                  : ZERO_OK;
}

zero_result eng_config_find_master(struct eng_config *config, struct base_error *error)
{
    const bool known = config->local_world > 0;
    config->unplaced = false;
    if (config->world == 1 || config->plan || config->team)
        return ZERO_OK;
    if (!config->by_network && (known || eng_config_given(config, "transport")))
        return ZERO_OK;
    if (config->asks_manager && *config->meeting.address) // it has answered
        return ZERO_OK;
    struct eng_place_variables variables;
    char *const *own = eng_config_place_variables(config, &variables);
    const zero_result result = read_master(config, *config->own_address ? own : environ, error);
    if (result)
        return result;
    config->unplaced = !known && (config->asks_manager || *config->meeting.address);
    if (config->unplaced && config->world > BOOT_MESH_MAX)
        return zero_fail(
            error, ZERO_E_INVALID,
            "the launcher (%s) does not say how many of %d ranks are on this host, and "
            "%d at most can meet to find out: if all are, take transport=shm",
            config->launcher, config->world, BOOT_MESH_MAX);
    if (*config->meeting.address)
        boot_job_at(config->job, &config->meeting, own);
    if (*config->own_address && !getenv("ZERO_MASTER_ADDR"))
        snprintf(config->meeting.source, sizeof config->meeting.source, "zero_config.master_addr");
    return ZERO_OK;
}

static void tell(const struct eng_config *config)
{
    base_logf(
        &config->log, ZERO_LOG_INFO, "core",
        "the launcher (%s) does not say how many ranks are on a host: they have met at port %d "
        "of %s, and %d of %d are here",
        config->launcher, config->meeting.port, config->meeting.address, config->local_world,
        config->world);
}

// Asks it where rank 0 is, if no variable says so, and leaves it, whatever it was asked.
static zero_result ask_manager(struct eng_config *config, const struct boot_meeting *meeting,
                               struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    if (config->asks_manager)
        result = boot_manager_master(&config->meeting, meeting, environ, &why);
    boot_manager_leave();
    if (result == ZERO_E_UNSUPPORTED && config->unplaced && !getenv("ZERO_PMI")) {
        // All ranks may be here, which was so far all that is known: they meet as ranks of one
        // host.
        base_logf(&config->log, ZERO_LOG_WARN, "core", "%s; only ranks of this host can meet",
                  why.message);
        config->asks_manager = config->unplaced = false;
        return ZERO_OK;
    }
    if (result)
        return zero_fail(error, result, "%s", why.message);
    if (!config->asks_manager)
        return ZERO_OK;
    struct eng_place_variables variables;
    boot_job_at(config->job, &config->meeting, eng_config_place_variables(config, &variables));
    base_logf(&config->log, ZERO_LOG_INFO, "core", "rank 0 is at port %d of %s, %s says",
              config->meeting.port, config->meeting.address, config->meeting.source);
    return ZERO_OK;
}

zero_result eng_config_meet(struct eng_config *config, bool (*asked)(void), struct boot_mesh *mesh,
                            struct base_error *error)
{
    *mesh = (struct boot_mesh){.world = 0};
    const struct boot_meeting meeting = {
        .rank = config->rank,
        .world = config->world,
        .job = config->job,
        .name = config->name,
        .deadline_ns = base_clock_ns() + (uint64_t)config->timeout_s * UINT64_C(1000000000),
        .log = &config->log,
        .asked = asked,
        .each_rank = true,
    };
    zero_result result = ask_manager(config, &meeting, error);
    if (result || !config->unplaced)
        return result;
    assert(config->world > 1 && config->world <= BOOT_MESH_MAX);
    result = boot_mesh_open(mesh, &meeting, &config->meeting, error);
    if (result)
        return result;
    const int local_rank = config->local_rank < 0 ? mesh->local_rank : config->local_rank;
    eng_config_place(config, local_rank, mesh->local_world);
    tell(config);
    result = eng_config_decide(config, error);
    if (result || !config->by_network)
        boot_mesh_close(mesh);
    return result;
}
