// What memory a rank takes to compute on a device, by a plan: there, and of the host's.

#include "zero/exec/device_tiles.h"

static void keep_larger(struct gcomm_load *most, const struct gcomm_load *load)
{
    most->buckets = load->buckets > most->buckets ? load->buckets : most->buckets;
    if (load->sent + load->received > most->sent + most->received)
        *most = (struct gcomm_load){most->buckets, load->sent, load->received};
}

/** What a rank sends and receives of a unit's gradients, and of its parameters. */
static void count_unit(const zero_ctx *z, const struct eng_placement *placement, size_t unit,
                       struct gcomm_load *most)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t peers = (size_t)z->config.world - 1;
    struct gcomm_load gradients = {.buckets = u->bucket_count}, parameters = gradients;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket *bucket = &z->layout.buckets[s];
        const struct eng_bucket_place *place = &placement->buckets[s];
        const size_t own = place->own_granules * BASE_GRANULE;
        const size_t others = bucket->granules * BASE_GRANULE - own;
        gradients.sent += others * eng_dtype_size(place->comm_dtype);
        gradients.received +=
            (z->config.local ? 1 : peers) * own * eng_dtype_size(place->comm_dtype);
        parameters.sent += peers * own * eng_dtype_size(bucket->dtype);
        parameters.received += others * eng_dtype_size(bucket->dtype);
    }
    keep_larger(most, &gradients);
    keep_larger(most, &parameters);
}

/** By which the devices of several ranks meet and move bytes. */
static size_t transport_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    const size_t peers = (size_t)z->config.world - 1, own = placement->own_sums_bytes;
    struct gcomm_load most = {
        .buckets = 1,
        .sent = peers * sizeof(struct base_device_ballot),
        .received = peers * sizeof(struct base_device_ballot),
    };
    if (!eng_config_moves(&z->config))
        return 0;
    if (z->config.stage == 0)
        keep_larger(&most, &(struct gcomm_load){1, peers * own, placement->sums_bytes - own});
    for (size_t u = 0; u < z->layout.unit_count; u++)
        count_unit(z, placement, u, &most);
    return gcomm_memory(z->config.device_transport, z->config.world, &most);
}

/** Rows of the host that are on a GPU where state is there. */
static const struct {
    enum eng_purpose host;
    enum eng_gpu_purpose gpu;
} on_gpu[] = {
    {ENG_FOR_PARAMS, ENG_GPU_PARAMS},       {ENG_FOR_GATHERED, ENG_GPU_GATHERED},
    {ENG_FOR_GRADIENTS, ENG_GPU_GRADIENTS}, {ENG_FOR_SUMS, ENG_GPU_SUMS},
    {ENG_FOR_BLOCKS, ENG_GPU_BLOCKS},       {ENG_FOR_MOMENTS, ENG_GPU_MOMENTS},
    {ENG_FOR_MASTERS, ENG_GPU_MASTERS},
};

static void move_rows(const zero_ctx *z, struct eng_need *need)
{
    for (size_t i = 0; i < sizeof on_gpu / sizeof *on_gpu; i++) {
        const enum eng_purpose host = on_gpu[i].host;
        // These only pass through a GPU that updates them.
        if (z->config.streamed && (host == ENG_FOR_MOMENTS || host == ENG_FOR_MASTERS))
            continue;
        need->gpu[on_gpu[i].gpu] = need->rows[host];
        need->rows[host] = 0;
    }
}

zero_result eng_exec_needs(const zero_ctx *z, const struct eng_placement *placement,
                           struct eng_need *need, struct base_error *error)
{
    if (!z->config.on_device)
        return ZERO_OK;
    need->rows[ENG_FOR_TABLES] += device_tables_bytes(z, placement);
    need->rows[ENG_FOR_TRANSPORT] += transport_bytes(z, placement);
    if (!z->config.resident) {
        for (size_t s = 0; s < z->layout.bucket_count; s++)
            need->gpu[ENG_GPU_PARAMS] += device_bucket_bytes(&z->layout.buckets[s]);
        need->gpu[ENG_GPU_GRADIENTS] = placement->grads.bytes;
        return ZERO_OK;
    }
    move_rows(z, need);
    device_state_need(z, placement, need);
    return device_tiles_need(z, placement, need, error);
}
