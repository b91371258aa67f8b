#include "zero/engine.h"

#include "base/clock.h"

zero_result eng_publish_start(zero_ctx *z, size_t section)
{
    // Stage 0 updates everything everywhere; what is sharded stays with its owner until gathered.
    if (z->config.stage == 0 || eng_section_sharded(&z->layout.sections[section], z->config.stage))
        return ZERO_OK;
    z->io[section].publish_pending = true;
    return eng_section_gather(z, section, eng_home(z, section, 0));
}

zero_result eng_publish_wait(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_section; s < u->first_section + u->section_count; s++) {
        if (!z->io[s].publish_pending)
            continue;
        const zero_result r = eng_section_gather_wait(z, s);
        if (r)
            return r;
        z->io[s].publish_pending = false;
    }
    return ZERO_OK;
}

zero_result eng_publish_finish(zero_ctx *z, bool everything)
{
    if (!everything && z->config.stage != 3)
        return ZERO_OK;
    const double begin = base_clock_s();
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const zero_result r = eng_publish_wait(z, (zero_unit)u);
        if (r)
            return r;
    }
    z->stats.gather_wait_s += base_clock_s() - begin;
    return ZERO_OK;
}

void eng_publish_version(zero_ctx *z)
{
    z->version++;
}
