// What memory the devices of several ranks take to meet and to move bytes.

#include "zero/exec/device_parts.h"

size_t device_most_sections(const zero_ctx *z)
{
    size_t most = 0;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        most = z->layout.units[u].section_count > most ? z->layout.units[u].section_count : most;
    return most;
}

size_t device_peers_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    const struct device_state *state = NULL;
    const size_t world = (size_t)z->config.world, most = device_most_sections(z);
    if (!eng_config_moves(&z->config))
        return 0;
    return z->layout.section_count * sizeof *state->published +
           (size_t)placement->gather.slot_count * sizeof *state->gathered +
           most * (sizeof *state->scattered + world * sizeof *state->spans +
                   sizeof *state->reduced + sizeof *state->parts);
}

static void keep_larger(struct gcomm_load *most, const struct gcomm_load *load)
{
    most->sections = load->sections > most->sections ? load->sections : most->sections;
    if (load->sent + load->received > most->sent + most->received)
        *most = (struct gcomm_load){most->sections, load->sent, load->received};
}

/** What a rank sends and receives of a unit's gradients, and of its parameters. */
static void count_unit(const zero_ctx *z, const struct eng_placement *placement, size_t unit,
                       struct gcomm_load *most)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t peers = (size_t)z->config.world - 1;
    struct gcomm_load gradients = {.sections = u->section_count}, parameters = gradients;
    for (size_t s = u->first_section; s < u->first_section + u->section_count; s++) {
        const struct eng_section *section = &z->layout.sections[s];
        const struct eng_section_place *place = &placement->sections[s];
        const size_t own = place->own_granules * ENG_GRANULE;
        const size_t others = section->granules * ENG_GRANULE - own;
        gradients.sent += others * eng_dtype_size(place->comm_dtype);
        gradients.received +=
            (z->config.local ? 1 : peers) * own * eng_dtype_size(place->comm_dtype);
        parameters.sent += peers * own * eng_dtype_size(section->dtype);
        parameters.received += others * eng_dtype_size(section->dtype);
    }
    keep_larger(most, &gradients);
    keep_larger(most, &parameters);
}

size_t eng_device_transport(const zero_ctx *z, const struct eng_placement *placement)
{
    const size_t peers = (size_t)z->config.world - 1, own = placement->own_sums_bytes;
    struct gcomm_load most = {
        .sections = 1,
        .sent = peers * sizeof(struct eng_device_ballot),
        .received = peers * sizeof(struct eng_device_ballot),
    };
    if (!eng_config_moves(&z->config))
        return 0;
    if (z->config.stage == 0)
        keep_larger(&most, &(struct gcomm_load){1, peers * own, placement->sums_bytes - own});
    for (size_t u = 0; u < z->layout.unit_count; u++)
        count_unit(z, placement, u, &most);
    return gcomm_memory(z->config.device_transport, z->config.world, &most);
}
