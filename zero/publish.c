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

/** Waits for a section's new values if they are on their way. */
static zero_result wait_section(zero_ctx *z, size_t section)
{
    if (!z->io[section].publish_pending)
        return ZERO_OK;
    const zero_result r = eng_section_gather_wait(z, section);
    if (!r)
        z->io[section].publish_pending = false;
    return r;
}

zero_result eng_publish_wait(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = ZERO_OK;
    for (size_t s = u->first_section; !r && s < u->first_section + u->section_count; s++)
        r = wait_section(z, s);
    return r;
}

zero_result eng_publish_finish(zero_ctx *z, bool everything)
{
    const double begin = base_clock_s();
    zero_result r = ZERO_OK;
    for (size_t s = 0; !r && s < z->layout.section_count; s++)
        if (everything || z->layout.sections[s].persistent)
            r = wait_section(z, s);
    z->stats.gather_wait_s += base_clock_s() - begin;
    return r;
}
