// What follows from the values of the configuration: what fits together, and what is decided by it.

#include "zero/config/config.h"

#include "base/cpu.h"
#include "collectives/gpu/gcomm.h"
#include "zero/config/config_key.h"
#include "zero/model/placement.h"
#include "zero/model/registry.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static zero_result check_transport(struct eng_config *config, struct base_error *error)
{
    const bool threads = !strcmp(config->transport, "threads");
    const bool provided = !strcmp(config->transport, "ucx");
    config->by_network = provided || !strcmp(config->transport, "tcp");
    config->any_provider = config->by_network && !eng_config_given(config, "transport");
    if (!strcmp(config->transport, "self") && config->world > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "transport=self is for one rank, and there are %d: take shm, tcp or "
                         "threads",
                         config->world);
    if (threads && !config->team)
        return zero_fail(error, ZERO_E_INVALID,
                         "transport=threads needs zero_config.team: ranks that are processes take "
                         "shm, or tcp");
    if (!threads && config->team)
        return zero_fail(error, ZERO_E_INVALID,
                         "transport=%s, but zero_config.team is for transport=threads",
                         config->transport);
    if (!config->by_network && eng_config_on_several_hosts(config))
        return zero_fail(error, ZERO_E_INVALID,
                         "transport=%s, but %d of %d ranks are on this host (%s says): take tcp, "
                         "or none",
                         config->transport, config->local_world, config->world, config->launcher);
    return eng_config_find_master(config, error);
}

const char *eng_config_bound_updater(const struct eng_config *config, const struct eng_model *model)
{
    for (size_t g = 0; model && g < model->group_count; g++)
        if (model->groups[g].choice.own)
            return "an optimizer of the program's own";
    if (config->nvme)
        return "state is in files";
    if (config->local && config->world > 1)
        return "reduction=local, whose bits depend on it";
    if (strcmp(config->gather, "shared") == 0)
        return "gather=shared";
    if (strcmp(config->gather, "slots") == 0)
        return "gather=slots";
    if ((config->world > 1 || config->over_nccl) && !gcomm_has(config->device_transport))
        return "this build has no NCCL";
    return NULL;
}

// Whether the device updates what is offloaded from it, or may yet.
static bool may_stream(const struct eng_config *config)
{
    return config->streamed || (config->undecided && !eng_config_bound_updater(config, NULL));
}

void eng_config_decide_update(struct eng_config *config, bool device)
{
    config->undecided = false;
    config->streamed = config->resident = device;
    eng_config_decide_sharing(config);
}

int64_t eng_config_updater(const struct eng_config *config)
{
    if (config->undecided)
        return ENG_UPDATER_AUTO;
    return config->streamed ? ENG_UPDATER_DEVICE : ENG_UPDATER_HOST;
}

int64_t eng_config_offload(const struct eng_config *config)
{
    if (config->nvme)
        return ENG_OFFLOAD_NVME;
    const bool on_host = !config->resident || config->streamed;
    return config->on_device && on_host ? ENG_OFFLOAD_HOST : ENG_OFFLOAD_NONE;
}

const char *eng_config_updates_by(const struct eng_config *config)
{
    if (!config->on_device || strcmp(config->offload_optimizer, "none") == 0)
        return NULL;
    return config->streamed ? "device" : "host";
}

bool eng_config_shards_params(const struct eng_config *config)
{
    return config->stage == 3;
}

bool eng_config_opens_units(const struct eng_config *config)
{
    return eng_config_shards_params(config) || config->paranoid;
}

bool eng_config_gathers_wait(const struct eng_config *config)
{
    return config->stage > 0 || config->paranoid;
}

bool eng_config_updates_early(const struct eng_config *config)
{
    // What every rank updates by itself from all ranks' sums, what has its sums in a file, and what
    // passes from a file through a device waits for zero_step().
    return (config->stage > 0 || config->world == 1) && !config->grads_nvme &&
           !(config->nvme && config->resident);
}

size_t eng_config_hash_words(const struct eng_config *config)
{
    return config->resident ? 2 : 1; // a device's hash is a sum modulo 2^128
}

size_t eng_config_samples(const struct eng_config *config)
{
    return config->paranoid ? SIZE_MAX : ENG_SAMPLES;
}

/** Tiles of a group, and their bytes, at most. */
enum { GROUP_TILES = 12, GROUP_BYTES = 12 << 20 };

size_t eng_config_tiles_in_group(const struct eng_config *config)
{
    const size_t fit = GROUP_BYTES / (size_t)config->tile_bytes;
    // Where nothing is cut into strips each tile is a group.
    if (fit == 0 || (!config->params_nvme && !config->grads_nvme))
        return 1;
    return fit < GROUP_TILES ? fit : GROUP_TILES;
}

zero_result eng_config_check_reduction(const struct eng_config *config, struct base_error *error)
{
    if (config->sum_group & (config->sum_group - 1))
        return zero_fail(error, ZERO_E_INVALID, "sum_group=%d: it must be a power of two",
                         config->sum_group);
    if (!config->local)
        return ZERO_OK;
    if (config->stage > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "reduction=local at stage %d: gradients are sharded there, so nothing "
                         "can be added up before it travels; take stage 0 or 1",
                         config->stage);
    if (config->micro_batches % config->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "reduction=local with %d micro-batches on %d ranks: it needs the same "
                         "number on every rank",
                         config->micro_batches, config->world);
    if (config->sum_group > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "sum_group=%d with reduction=local: it is for the canonical order",
                         config->sum_group);
    return ZERO_OK;
}

static void decide_precision(struct eng_config *config)
{
    config->no_masters = !strcmp(config->master, "none");
    config->moment_dtype = !strcmp(config->moments, "bf16") ? ZERO_BF16 : ZERO_F32;
}

// Parameters and sums go where the state already is.
static zero_result check_other_tiers(const struct eng_config *config, struct base_error *error)
{
    if (config->params_nvme && !config->nvme)
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_params=nvme needs offload_optimizer=nvme: working copies are "
                         "made from the weights that are in tiles there");
    if (config->grads_nvme && !config->nvme)
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_grads=nvme needs offload_optimizer=nvme: sums come back tile by "
                         "tile, as the state does that they update");
    return ZERO_OK;
}

// What state on a device rules out, so far.
static zero_result check_resident(struct eng_config *config, struct base_error *error)
{
    config->resident = strcmp(config->offload_optimizer, "none") == 0 || config->streamed;
    if (!config->resident)
        return ZERO_OK;
    if (config->params_nvme || config->grads_nvme)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s=nvme with offload_update=device, where they are on the device: take "
                         "offload_update=host",
                         config->params_nvme ? "offload_params" : "offload_grads");
    return ZERO_OK;
}

// "cpu", "cuda", or "cuda:2".
static zero_result decide_device(struct eng_config *config, struct base_error *error)
{
    static const char cuda[] = "cuda:";
    const char *name = config->device, *number = name + sizeof cuda - 1;
    if (!*name)
        snprintf(config->device, sizeof config->device, "cpu");
    config->device_number = -1;
    if (strcmp(name, "cpu") == 0)
        return ZERO_OK;
    const size_t digits = strncmp(name, cuda, sizeof cuda - 1) ? 0 : strspn(number, "0123456789");
    const bool numbered = digits > 0 && digits < 5 && number[digits] == '\0';
    config->on_device = true;
    config->device_number = config->local_rank >= 0 ? config->local_rank : config->rank;
    if (numbered)
        config->device_number = (int)strtol(number, NULL, 10);
    if (!numbered && strcmp(name, "cuda") != 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "device=%s: it is cpu, cuda (the GPU with this rank's number on its "
                         "host), or cuda:N",
                         name);
    if (config->paranoid)
        return zero_fail(error, ZERO_E_INVALID,
                         "paranoid=1 with device=%s: its windows are memory of the host", name);
    return check_resident(config, error);
}

// What is offloaded passes through a GPU if there is both.
static zero_result decide_updates(struct eng_config *config, struct base_error *error)
{
    const bool offloads = config->on_device && strcmp(config->offload_optimizer, "none") != 0;
    const bool automatic = strcmp(config->offload_update, "auto") == 0;
    config->undecided = offloads && automatic;
    if (!offloads &&
        (config->streamed || (automatic && eng_config_given(config, "offload_update"))))
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_update=%s, but no state is offloaded from a GPU: it is for "
                         "device=cuda with offload_optimizer=host or nvme",
                         config->offload_update);
    return ZERO_OK;
}

// What says where and how is for state that is in files.
static zero_result check_tier(const struct eng_config *config, struct base_error *error)
{
    static const char *const keys[] = {"nvme_dir", "io", "host_bytes", "recovery"};
    const bool tiles = config->nvme || may_stream(config);
    if (!tiles && eng_config_given(config, "tile_bytes"))
        return zero_fail(error, ZERO_E_INVALID,
                         "tile_bytes is set, but nothing is moved in tiles: it is for "
                         "offload_optimizer=nvme, and for offload_update=device or auto");
    for (size_t i = 0; !config->nvme && i < sizeof keys / sizeof *keys; i++)
        if (eng_config_given(config, keys[i]))
            return zero_fail(error, ZERO_E_INVALID,
                             "%s is set, but nothing is on NVMe: it is for offload_optimizer=nvme",
                             keys[i]);
    if (!config->nvme && strcmp(config->compress, "on") == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "compress=on, but nothing is on NVMe: it is for offload_optimizer=nvme");
    if (config->nvme && !*config->nvme_dir)
        return zero_fail(error, ZERO_E_INVALID,
                         "offload_optimizer=nvme needs nvme_dir, the directory of its files");
    return ZERO_OK;
}

static zero_result check_device_transport(const struct eng_config *config, struct base_error *error)
{
    const char *key = eng_config_given(config, "device_transport")  ? "device_transport"
                      : eng_config_given(config, "device_register") ? "device_register"
                      : config->nccl_comm                           ? "zero_config.nccl_comm"
                                                                    : NULL;
    const char *bound = config->undecided ? eng_config_bound_updater(config, NULL) : NULL;
    if (key && !config->resident && !may_stream(config))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s is set, but no state is on a GPU%s%s: it is for device=cuda with "
                         "offload_optimizer=none, or with offload_update=device or auto",
                         key, bound ? ", and the host updates it: " : "", bound ? bound : "");
    if (config->nccl_comm && strcmp(config->device_transport, "nccl") != 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_config.nccl_comm is set, but device_transport=%s: it is for nccl",
                         config->device_transport);
    if (strcmp(config->device_register, "on") == 0 && strcmp(config->device_transport, "nccl") != 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "device_register=on, but device_transport=%s: it is for nccl",
                         config->device_transport);
    return ZERO_OK;
}

zero_result eng_config_decide(struct eng_config *config, struct base_error *error)
{
    config->local = !strcmp(config->reduction, "local");
    config->nvme = !strcmp(config->offload_optimizer, "nvme");
    if (config->nvme) { // for the number of threads that compress tiles
        config->allowed_cpus = base_cpu_allowed();
        config->online_cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    }
    config->streamed = !strcmp(config->offload_update, "device");
    config->over_nccl = eng_config_given(config, "device_transport") &&
                        strcmp(config->device_transport, "nccl") == 0;
    config->params_nvme = !strcmp(config->offload_params, "nvme");
    config->grads_nvme = !strcmp(config->offload_grads, "nvme");
    decide_precision(config);
    zero_result result = check_transport(config, error);
    if (!result)
        result = check_other_tiers(config, error);
    if (!result)
        result = decide_device(config, error);
    if (!result)
        result = decide_updates(config, error);
    if (!result)
        result = check_tier(config, error);
    if (!result)
        result = check_device_transport(config, error);
    if (!result)
        result = eng_config_decide_gather(config, error);
    if (!result)
        result = eng_config_check_reduction(config, error);
    assert(result || !config->streamed || config->resident);
    assert(result || !config->host_slots || !config->shared);
    return result;
}

bool eng_config_whole_sums(const struct eng_config *config, int stage)
{
    return stage == 0 && (eng_config_moves(config) || (config->world > 1 && config->by_network));
}

bool eng_config_shares_sums(const struct eng_config *config, int stage)
{
    return eng_config_whole_sums(config, stage) && !config->resident && !config->grads_nvme;
}

bool eng_config_moves(const struct eng_config *config)
{
    return config->resident && (config->world > 1 || config->over_nccl);
}

bool eng_config_registers(const struct eng_config *config)
{
    const bool wanted = config->by_network ? strcmp(config->device_register, "off") != 0
                                           : strcmp(config->device_register, "on") == 0;
    return wanted && eng_config_moves(config) && strcmp(config->device_transport, "nccl") == 0;
}

int eng_config_posted(const struct eng_config *config, int units)
{
    if (config->world == 1 || config->stage == 0)
        return 0;
    assert(units > 0);
    return units / 2 + 1 < units ? units / 2 + 1 : units - 1;
}

int eng_config_rounds(const struct eng_config *config)
{
    return (config->micro_batches + config->world - 1) / config->world;
}

bool eng_config_leaves_blocks(const struct eng_config *config)
{
    return config->micro_batches > config->world && config->world % config->sum_group != 0;
}

bool eng_config_may_leave_blocks(const struct eng_config *config)
{
    struct eng_config most = *config;
    if (!eng_config_given(config, "micro_batches"))
        most.micro_batches = ENG_MAX_MICRO_BATCHES;
    return eng_config_leaves_blocks(&most);
}

struct eng_limits eng_config_limits(const struct eng_config *config, bool apart, bool blocks)
{
    // One gradient more than are open comes from a device.
    const bool waits = config->on_device && !config->resident;
    const int waiting = waits && (apart || config->stage >= 2) ? 1 : 0;
    return (struct eng_limits){
        .stage = config->stage,
        .alone = config->resident && !eng_config_moves(config),
        .sums_whole = eng_config_whole_sums(config, config->stage),
        .sums_shared = eng_config_shares_sums(config, config->stage),
        .shared = config->shared,
        .slots_shared = config->host_slots,
        .shared_by = config->local_world,
        .blocks = blocks,
        .paranoid = config->paranoid,
        .open_units = config->open_units,
        .prefetch_units = config->prefetch_units,
        .grad_units = config->grad_units,
        .grad_spare = (apart ? config->grad_units : 0) + waiting,
        .live_bytes = config->live_bytes,
        .narrow_moments = config->moment_dtype != ZERO_F32,
        .comm_dtype = config->comm_dtype,
        .no_masters = config->no_masters,
        .state_in_file = config->nvme,
        .params_in_file = config->params_nvme,
        .sums_in_file = config->grads_nvme,
    };
}

uint64_t eng_skip_limit(const struct eng_config *config)
{
    if (config->nonfinite == ZERO_NONFINITE_ERROR)
        return 0;
    return config->skip_limit > 0 ? (uint64_t)config->skip_limit : UINT64_MAX;
}

enum { MOST_HELPERS = 4 };

unsigned eng_config_codec_threads(const struct eng_config *config)
{
    const int here = config->local_world ? config->local_world : config->world;
    assert(here > 0);
    const int share = config->online_cpus / here;
    const int processors = share < config->allowed_cpus ? share : config->allowed_cpus;
    if (processors < 1)
        return 1;
    return processors < MOST_HELPERS ? (unsigned)processors : MOST_HELPERS;
}

unsigned eng_config_tile_threads(const struct eng_config *config)
{
    return strcmp(config->compress, "off") == 0 ? 1 : eng_config_codec_threads(config);
}
