// paranoid=1: the program sees parameters and gradients through windows that are open only while it
// may touch them, at every stage. A window is a range of addresses that has memory while it is open
// and that nobody can touch otherwise; what is gathered is copied into it, and a gradient out of
// it.
//
// A unit's windows take turns, so that an address kept from one gather to the next is caught too.
// Source: the memcheck backends of libCEED, which hand out copies and spoil them afterwards.

#include "zero/engine.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/** Windows of a unit. Not a number of times that a program gathers a unit in a micro-batch: what is
 * kept shall not be right by chance whenever the same place of the program comes again. */
#define TURNS 5

/** What a raw gradient that is not written is: a NaN in every type. */
#define UNWRITTEN 0xff

/** Addresses of a window of `bytes`, with a page behind it that is in none. */
static size_t window_addresses(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page + page;
}

/** Those of a unit's window of parameters, or of its gradient. */
static size_t unit_addresses(const struct eng_unit_place *unit, bool gradient)
{
    return window_addresses(gradient ? unit->grad_window_bytes : unit->window_bytes);
}

static zero_result make(struct eng_windows *windows, const struct eng_placement *placement,
                        size_t unit_count, bool gradients, struct base_error *error)
{
    windows->offsets = base_calloc(unit_count + 1, sizeof *windows->offsets);
    windows->turns = base_calloc(unit_count, sizeof *windows->turns);
    if (!windows->offsets || !windows->turns)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the windows of %zu units", unit_count);
    for (size_t u = 0; u < unit_count; u++)
        windows->offsets[u + 1] =
            windows->offsets[u] + unit_addresses(&placement->units[u], gradients);
    windows->bytes = windows->offsets[unit_count];
    void *base = mmap(NULL, TURNS * windows->bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return zero_fail(error, ZERO_E_NOMEM, "no %zu bytes of addresses for windows (paranoid)",
                         TURNS * windows->bytes);
    windows->base = base;
    return ZERO_OK;
}

zero_result eng_paranoid_make(zero_ctx *z, struct base_error *error)
{
    if (!z->config.paranoid)
        return ZERO_OK;
    const size_t units = z->layout.unit_count;
    const zero_result r = make(&z->param_windows, &z->placement, units, false, error);
    return r ? r : make(&z->grad_windows, &z->placement, units, true, error);
}

void eng_paranoid_free(zero_ctx *z)
{
    struct eng_windows *const both[] = {&z->param_windows, &z->grad_windows};
    for (int i = 0; i < 2; i++) {
        if (both[i]->base)
            munmap(both[i]->base, TURNS * both[i]->bytes);
        base_free(both[i]->offsets);
        base_free(both[i]->turns);
    }
}

size_t eng_paranoid_tables(const zero_ctx *z)
{
    const size_t units = z->layout.unit_count;
    return z->config.paranoid ? 2 * ((units + 1) * sizeof(size_t) + units * sizeof(uint8_t)) : 0;
}

size_t eng_paranoid_addresses(const zero_ctx *z)
{
    size_t bytes = 0;
    for (size_t u = 0; z->config.paranoid && u < z->layout.unit_count; u++)
        bytes += unit_addresses(&z->placement.units[u], false) +
                 unit_addresses(&z->placement.units[u], true);
    return TURNS * bytes;
}

/** The unit's window that is open, or was last. */
static unsigned char *window_of(const struct eng_windows *windows, zero_unit unit)
{
    return windows->base + windows->turns[unit] * windows->bytes + windows->offsets[unit];
}

/** What of its addresses is opened: not the page behind it. */
static size_t opened_bytes(const struct eng_windows *windows, zero_unit unit)
{
    return windows->offsets[unit + 1] - windows->offsets[unit] - window_addresses(0);
}

static zero_result protect(zero_ctx *z, const struct eng_windows *windows, zero_unit unit, int how)
{
    if (mprotect(window_of(windows, unit), opened_bytes(windows, unit), how) == 0)
        return ZERO_OK;
    return eng_fail(z, ZERO_E_NOMEM, "paranoid: no memory for a window of unit %d", unit);
}

/** Opens the unit's next window, all zero. */
static zero_result open_window(zero_ctx *z, struct eng_windows *windows, zero_unit unit)
{
    windows->turns[unit] = (uint8_t)((windows->turns[unit] + 1) % TURNS);
    return protect(z, windows, unit, PROT_READ | PROT_WRITE);
}

/** Closes it and gives its memory back. */
static zero_result close_window(zero_ctx *z, const struct eng_windows *windows, zero_unit unit)
{
    const zero_result r = protect(z, windows, unit, PROT_NONE);
    if (!r)
        madvise(window_of(windows, unit), opened_bytes(windows, unit), MADV_DONTNEED);
    return r;
}

/** Where a slice begins in the unit's window of parameters, or of gradients. */
static size_t slice_offset(const zero_ctx *z, const struct eng_slice *slice, bool gradient)
{
    const struct eng_section_place *place = &z->placement.sections[slice->section];
    const struct eng_section *section = &z->layout.sections[slice->section];
    const size_t size = eng_dtype_size(gradient ? section->grad_dtype : section->dtype);
    return (gradient ? place->grad_window_offset : place->window_offset) +
           slice->granule * ENG_GRANULE * size;
}

static size_t slice_bytes(const zero_ctx *z, const struct eng_slice *slice, bool gradient)
{
    const struct eng_section *section = &z->layout.sections[slice->section];
    return slice->numel * eng_dtype_size(gradient ? section->grad_dtype : section->dtype);
}

zero_result eng_paranoid_gathered(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const zero_result r = open_window(z, &z->param_windows, unit);
    if (r)
        return r;
    unsigned char *window = window_of(&z->param_windows, unit);
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (z->placement.sections[slice->section].windowed && !eng_borrowed(z, slice))
            memcpy(window + slice_offset(z, slice, false), eng_gathered(z, slice),
                   slice_bytes(z, slice, false));
    }
    return protect(z, &z->param_windows, unit, PROT_READ);
}

zero_result eng_paranoid_released(zero_ctx *z, zero_unit unit)
{
    return close_window(z, &z->param_windows, unit);
}

const void *eng_paranoid_param(const zero_ctx *z, const struct eng_slice *slice)
{
    const zero_unit unit = z->layout.sections[slice->section].unit;
    return window_of(&z->param_windows, unit) + slice_offset(z, slice, false);
}

/** Copies the unit's gradient from its slot to its window, or the other way. */
static void copy_gradient(zero_ctx *z, zero_unit unit, bool to_window)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    unsigned char *window = window_of(&z->grad_windows, unit);
    unsigned char *buffer = z->grads + z->grad_slots[z->units[unit].grad_slot].offset;
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (z->layout.sections[slice->section].frozen || eng_own_gradient(z, slice))
            continue;
        const struct eng_section_place *place = &z->placement.sections[slice->section];
        const size_t offset = slice_offset(z, slice, true);
        unsigned char *in_window = window + offset;
        unsigned char *in_buffer = buffer + place->grad_offset + offset - place->grad_window_offset;
        memcpy(to_window ? in_window : in_buffer, to_window ? in_buffer : in_window,
               slice_bytes(z, slice, true));
    }
}

zero_result eng_paranoid_grad_opened(zero_ctx *z, zero_unit unit, bool raw)
{
    const zero_result r = open_window(z, &z->grad_windows, unit);
    if (r)
        return r;
    if (raw)
        memset(window_of(&z->grad_windows, unit), UNWRITTEN,
               z->placement.units[unit].grad_window_bytes);
    else
        copy_gradient(z, unit, true);
    return ZERO_OK;
}

zero_result eng_paranoid_grad_done(zero_ctx *z, zero_unit unit)
{
    copy_gradient(z, unit, false);
    return close_window(z, &z->grad_windows, unit);
}

void *eng_paranoid_grad(const zero_ctx *z, const struct eng_slice *slice)
{
    const zero_unit unit = z->layout.sections[slice->section].unit;
    return window_of(&z->grad_windows, unit) + slice_offset(z, slice, true);
}
