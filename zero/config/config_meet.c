// Which ranks are on this host, where the launcher does not say: they meet first, and tell each
// other.

#include "zero/config/config.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

void eng_config_ask_launcher(struct eng_config *config)
{
    struct boot_place place;
    if (boot_discover(&place, environ, NULL) != ZERO_OK || place.world < config->world)
        return;
    if (place.rank == config->rank && place.world == config->world) {
        config->local_world = place.local_world;
        config->local_rank = place.local_rank;
    } else if (place.local_world == place.world) {
        config->local_world = config->world;
    }
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
