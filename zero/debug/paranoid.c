// paranoid=1: the program sees parameters and gradients through windows that are open only while it
// may touch them, at every stage. A window is a range of addresses that has memory while it is open
// and that faults otherwise; what is gathered is copied into it, and a gradient out of it.
//
// Each slice has a window of its own. It ends with a page, and around it lie as many closed
// addresses as its whole tensor would take: a program that adds `slice * size` to a slice's
// pointer, or forgets it where the pointer is a base, faults instead of reading another tensor.
//
// The windows of a slice take turns, so that an address kept from one gather to the next is caught
// too. What persists is readable at any time: one window each, always open, whose copy is renewed
// when values have changed.
//
// Source: the memcheck backends of libCEED, which hand out copies and spoil them afterwards.

#include "zero/debug/paranoid.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/exec/caller_memory.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/** Windows of a slice. Not a number of times that a program gathers a unit in a micro-batch: what
 * is kept shall not be right by chance whenever the same place of the program comes again. */
#define TURNS 5

/** What a raw gradient that is not written is, and what lies beside a slice's weights in their
 * pages: a NaN in every type. Beside a gradient lie zeros: what is added to a NaN leaves it as it
 * is. */
#define UNWRITTEN 0xff

/** More than a process can have: sums of addresses stay below. */
#define MOST_ADDRESSES (SIZE_MAX / 4)

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static size_t element_size(const zero_ctx *z, const struct eng_slice *slice, bool gradient)
{
    const struct eng_bucket *bucket = &z->layout.buckets[slice->bucket];
    return eng_dtype_size(gradient ? bucket->grad_dtype : bucket->dtype);
}

/** What a slice needs of a window: nothing for the gradient of a frozen tensor. */
static size_t slice_bytes(const zero_ctx *z, const struct eng_slice *slice, bool gradient)
{
    if (gradient && z->layout.buckets[slice->bucket].frozen)
        return 0;
    return slice->numel * element_size(z, slice, gradient);
}

/** From a window to the slice's next one: a page between them is in neither. */
static size_t turn_bytes(size_t bytes)
{
    return eng_window_bytes(bytes) + page_bytes();
}

/** The other slices of the tensor, behind this one if the pointer is taken for a whole array, */
static size_t reach_behind(const zero_ctx *z, const struct eng_slice *slice, size_t bytes)
{
    return bytes * (size_t)(z->model.params[slice->param].slice_count - 1);
}

/** and before it if a base is taken for the slice. */
static size_t reach_before(const struct eng_slice *slice, size_t bytes)
{
    return bytes * (size_t)slice->index;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/** Lays the windows of all slices one behind the other; returns how many addresses that takes.
 * offsets: of each slice's first window, or NULL. */
static size_t lay_windows(const zero_ctx *z, bool gradients, size_t *offsets)
{
    size_t at = 0, behind = 0;
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t bytes = slice_bytes(z, slice, gradients);
        at += whole_pages(larger(behind, reach_before(slice, bytes)));
        if (offsets)
            offsets[i] = at;
        at += TURNS * turn_bytes(bytes);
        behind = reach_behind(z, slice, bytes);
        if (at > MOST_ADDRESSES)
            return MOST_ADDRESSES;
    }
    at += whole_pages(behind);
    assert(at % page_bytes() == 0);
    return at < MOST_ADDRESSES ? at : MOST_ADDRESSES;
}

static zero_result make(zero_ctx *z, struct eng_windows *windows, bool gradients,
                        struct base_error *error)
{
    windows->offsets = base_calloc(z->layout.slice_count, sizeof *windows->offsets);
    windows->turns = base_calloc(z->layout.unit_count, sizeof *windows->turns);
    if (!windows->offsets || !windows->turns)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the windows of %zu units",
                         z->layout.unit_count);
    windows->gradients = gradients;
    windows->bytes = lay_windows(z, gradients, windows->offsets);
    assert(!windows->base);
    void *base =
        mmap(NULL, windows->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return zero_fail(error, ZERO_E_NOMEM,
                         "paranoid=1: no %zu bytes of addresses for windows: around each slice is "
                         "room for its tensor; fewer layers show the same mistakes",
                         windows->bytes);
    windows->base = base;
    return ZERO_OK;
}

static zero_result make_both(zero_ctx *z, struct base_error *error)
{
    zero_result r = make(z, &z->debug.param_windows, false, error);
    if (!r)
        r = make(z, &z->debug.grad_windows, true, error);
    return r ? r : eng_paranoid_watch(z, error);
}

static void free_both(zero_ctx *z)
{
    struct eng_windows *const both[] = {&z->debug.param_windows, &z->debug.grad_windows};
    eng_paranoid_unwatch(z);
    for (int i = 0; i < 2; i++) {
        if (both[i]->base)
            munmap(both[i]->base, both[i]->bytes);
        base_free(both[i]->offsets);
        base_free(both[i]->turns);
    }
}

static size_t tables(const zero_ctx *z)
{
    const size_t each =
        z->layout.slice_count * sizeof(size_t) + z->layout.unit_count * sizeof(uint8_t);
    return 2 * each;
}

static size_t addresses(const zero_ctx *z)
{
    return lay_windows(z, false, NULL) + lay_windows(z, true, NULL);
}

static bool persists(const zero_ctx *z, const struct eng_slice *slice)
{
    return z->layout.buckets[slice->bucket].persistent;
}

/** A slice's window that is open, or was last: its pages. */
static unsigned char *pages_of(const zero_ctx *z, const struct eng_windows *windows,
                               const struct eng_slice *slice)
{
    const zero_unit unit = z->layout.buckets[slice->bucket].unit;
    const size_t bytes = slice_bytes(z, slice, windows->gradients);
    const size_t turn =
        !windows->gradients && persists(z, slice) ? 0 : (size_t)windows->turns[unit];
    assert(turn < TURNS);
    return windows->base + windows->offsets[slice - z->layout.slices] + turn * turn_bytes(bytes);
}

/** What of its pages lies before the slice, so that it ends where they end. */
static size_t head_bytes(size_t bytes)
{
    return eng_window_bytes(bytes) - eng_window_kept(bytes);
}

static unsigned char *start_of(const zero_ctx *z, const struct eng_windows *windows,
                               const struct eng_slice *slice)
{
    return pages_of(z, windows, slice) + head_bytes(slice_bytes(z, slice, windows->gradients));
}

static zero_result protect(zero_ctx *z, const struct eng_windows *windows,
                           const struct eng_slice *slice, int how)
{
    const size_t bytes = slice_bytes(z, slice, windows->gradients);
    if (bytes == 0 || mprotect(pages_of(z, windows, slice), eng_window_bytes(bytes), how) == 0)
        return ZERO_OK;
    return eng_fail(z, ZERO_E_NOMEM, "paranoid: no memory for a window of tensor %s",
                    z->model.params[slice->param].name);
}

/** Spoils what lies beside a slice's weights in their pages. */
static void spoil(const zero_ctx *z, const struct eng_windows *windows,
                  const struct eng_slice *slice)
{
    const size_t bytes = slice_bytes(z, slice, false);
    unsigned char *start = start_of(z, windows, slice);
    memset(start - head_bytes(bytes), UNWRITTEN, head_bytes(bytes));
    memset(start + bytes, UNWRITTEN, eng_window_kept(bytes) - bytes);
}

/** Whether a slice has a window that opens and closes with its unit. */
static bool opens(const zero_ctx *z, const struct eng_windows *windows,
                  const struct eng_slice *slice)
{
    if (windows->gradients)
        return !z->layout.buckets[slice->bucket].frozen && !eng_own_gradient(z, slice);
    return z->placement.buckets[slice->bucket].windowed && !eng_borrowed(z, slice);
}

/** Calls `act` for each slice of a unit that has such a window. */
static zero_result each_slice(zero_ctx *z, const struct eng_windows *windows, zero_unit unit,
                              zero_result (*act)(zero_ctx *z, const struct eng_windows *windows,
                                                 const struct eng_slice *slice))
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        if (!opens(z, windows, &z->layout.slices[i]))
            continue;
        const zero_result r = act(z, windows, &z->layout.slices[i]);
        if (r)
            return r;
    }
    return ZERO_OK;
}

/** Closes a slice's window and gives its memory back. */
static zero_result close_slice(zero_ctx *z, const struct eng_windows *windows,
                               const struct eng_slice *slice)
{
    const zero_result r = protect(z, windows, slice, PROT_NONE);
    if (!r)
        madvise(pages_of(z, windows, slice),
                eng_window_bytes(slice_bytes(z, slice, windows->gradients)), MADV_DONTNEED);
    return r;
}

static void take_turn(struct eng_windows *windows, zero_unit unit)
{
    windows->turns[unit] = (uint8_t)((windows->turns[unit] + 1) % TURNS);
}

/** Opens a window with the slice's values, to be read only. */
static zero_result show(zero_ctx *z, const struct eng_windows *windows,
                        const struct eng_slice *slice)
{
    assert(eng_gathered(z, slice));
    const zero_result r = protect(z, windows, slice, PROT_READ | PROT_WRITE);
    if (r)
        return r;
    spoil(z, windows, slice);
    memcpy(start_of(z, windows, slice), eng_gathered(z, slice), slice_bytes(z, slice, false));
    return protect(z, windows, slice, PROT_READ);
}

static zero_result open_param(zero_ctx *z, zero_unit unit)
{
    take_turn(&z->debug.param_windows, unit);
    return each_slice(z, &z->debug.param_windows, unit, show);
}

static zero_result close_param(zero_ctx *z, zero_unit unit)
{
    return each_slice(z, &z->debug.param_windows, unit, close_slice);
}

static zero_result renew(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_bucket_io *io = &z->io[slice->bucket];
        if (persists(z, slice) && io->shown != io->version && !eng_borrowed(z, slice))
            r = show(z, &z->debug.param_windows, slice);
    }
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++)
        z->io[s].shown = z->io[s].version;
    return r;
}

static const void *param_address(const zero_ctx *z, const struct eng_slice *slice)
{
    return start_of(z, &z->debug.param_windows, slice);
}

/** Where a slice's gradient is in its slot. */
static unsigned char *in_slot(const zero_ctx *z, const struct eng_slice *slice)
{
    const zero_unit unit = z->layout.buckets[slice->bucket].unit;
    assert(z->gradients.slots[z->units[unit].grad_slot].open);
    return z->memory.grads + z->gradients.slots[z->units[unit].grad_slot].offset +
           z->placement.buckets[slice->bucket].grad_offset +
           slice->granule * BASE_GRANULE * element_size(z, slice, true);
}

/** Opens a window that is all zero. */
static zero_result open_slice(zero_ctx *z, const struct eng_windows *windows,
                              const struct eng_slice *slice)
{
    return protect(z, windows, slice, PROT_READ | PROT_WRITE);
}

static zero_result fill_raw(zero_ctx *z, const struct eng_windows *windows,
                            const struct eng_slice *slice)
{
    const zero_result r = open_slice(z, windows, slice);
    if (!r)
        memset(start_of(z, windows, slice), UNWRITTEN, slice_bytes(z, slice, true));
    return r;
}

static zero_result fill_from_slot(zero_ctx *z, const struct eng_windows *windows,
                                  const struct eng_slice *slice)
{
    const zero_result r = open_slice(z, windows, slice);
    if (!r)
        memcpy(start_of(z, windows, slice), in_slot(z, slice), slice_bytes(z, slice, true));
    return r;
}

static zero_result open_grad(zero_ctx *z, zero_unit unit, bool raw)
{
    take_turn(&z->debug.grad_windows, unit);
    return each_slice(z, &z->debug.grad_windows, unit, raw ? fill_raw : fill_from_slot);
}

static bool all_zero(const unsigned char *bytes, size_t count)
{
    size_t i = 0;
    while (i < count && bytes[i] == 0)
        i++;
    return i == count;
}

/** What lies beside the slice in its pages does not fault. */
static zero_result check_beside(zero_ctx *z, const struct eng_windows *windows,
                                const struct eng_slice *slice)
{
    const size_t bytes = slice_bytes(z, slice, true), head = head_bytes(bytes);
    const unsigned char *start = start_of(z, windows, slice);
    const bool before = all_zero(start - head, head);
    if (before && all_zero(start + bytes, eng_window_kept(bytes) - bytes))
        return ZERO_OK;
    const struct eng_param *param = &z->model.params[slice->param];
    return eng_fail(z, ZERO_E_CORRUPT,
                    "paranoid: the program has written %s the gradient of tensor %s, slice %d, "
                    "which has %zu elements%s",
                    before ? "behind" : "before", param->name, slice->index, slice->numel,
                    param->slice_count == 1 ? ""
                    : before                ? ": its pointer takes no + slice * size"
                                            : ": a base takes + slice * size");
}

static zero_result take_gradient(zero_ctx *z, const struct eng_windows *windows,
                                 const struct eng_slice *slice)
{
    const zero_result r = check_beside(z, windows, slice);
    if (r)
        return r;
    memcpy(in_slot(z, slice), start_of(z, windows, slice), slice_bytes(z, slice, true));
    return close_slice(z, windows, slice);
}

static zero_result close_grad(zero_ctx *z, zero_unit unit)
{
    return each_slice(z, &z->debug.grad_windows, unit, take_gradient);
}

static void *grad_address(const zero_ctx *z, const struct eng_slice *slice)
{
    return start_of(z, &z->debug.grad_windows, slice);
}

/* ------------------------------------------------------------------ what was touched */

/** The slice to which an address among the windows belongs: in its windows, or in reach of them. */
static const struct eng_slice *slice_at(const zero_ctx *z, const struct eng_windows *windows,
                                        size_t offset)
{
    size_t i = 0, end = z->layout.slice_count;
    while (end - i > 1) {
        const size_t middle = i + (end - i) / 2;
        if (windows->offsets[middle] <= offset)
            i = middle;
        else
            end = middle;
    }
    const struct eng_slice *slice = &z->layout.slices[i];
    const size_t bytes = slice_bytes(z, slice, windows->gradients);
    const size_t last = windows->offsets[i] + TURNS * turn_bytes(bytes);
    if (offset >= last && offset - last >= reach_behind(z, slice, bytes) &&
        i + 1 < z->layout.slice_count)
        slice++;
    return slice;
}

static bool is_open(const zero_ctx *z, const struct eng_windows *windows,
                    const struct eng_slice *slice)
{
    const struct eng_unit *unit = &z->units[z->layout.buckets[slice->bucket].unit];
    return windows->gradients ? unit->grad_open : persists(z, slice) || unit->holds > 0;
}

/** What was wrong with touching `address`, which is near the slice's window. */
static void describe(const zero_ctx *z, const struct eng_windows *windows,
                     const struct eng_slice *slice, const unsigned char *address,
                     struct base_text *text)
{
    const bool stacked = z->model.params[slice->param].slice_count > 1;
    const size_t size = element_size(z, slice, windows->gradients);
    const unsigned char *start = start_of(z, windows, slice);
    const unsigned char *end = start + slice->numel * size;
    if (!is_open(z, windows, slice))
        base_text_add(text, "it was touched while %s, or by an address of an earlier time",
                      windows->gradients ? "its gradient is not open" : "its unit is not gathered");
    else if (address >= end)
        base_text_add(text, "element %zu was touched, and it has %zu%s",
                      (size_t)(address - start) / size, slice->numel,
                      stacked
                          ? ": the next slice lies elsewhere, so the pointer of a slice takes no "
                            "+ slice * size (that of zero_unit_ptrs() does)"
                          : "");
    else if (address >= start)
        base_text_add(text, "it was written, and weights are read-only");
    else
        base_text_add(text,
                      "what lies %zu elements before it was touched: by an address of an "
                      "earlier time%s",
                      (size_t)(start - address + (ptrdiff_t)size - 1) / size,
                      stacked ? ", or by a base (zero_unit_ptrs()) without + slice * size" : "");
}

bool eng_paranoid_describe(const zero_ctx *z, const void *address, char *message, size_t bytes)
{
    const struct eng_windows *const both[] = {&z->debug.param_windows, &z->debug.grad_windows};
    const unsigned char *at = address;
    for (int i = 0; i < 2; i++) {
        const struct eng_windows *windows = both[i];
        if (!windows->base || at < windows->base || at >= windows->base + windows->bytes)
            continue;
        const struct eng_slice *slice = slice_at(z, windows, (size_t)(at - windows->base));
        const zero_unit unit = z->layout.buckets[slice->bucket].unit;
        struct base_text text = {message, bytes, 0};
        base_text_add(&text, "paranoid: rank %d: %s tensor %s, slice %d of %d, unit %d (%s): ",
                      z->config.rank, windows->gradients ? "the gradient of" : "weights of",
                      z->model.params[slice->param].name, slice->index,
                      z->model.params[slice->param].slice_count, unit, z->units[unit].name);
        describe(z, windows, slice, at, &text);
        return true;
    }
    return false;
}

const struct eng_observer eng_paranoid_observer = {
    .key = "paranoid",
    .tables = tables,
    .addresses = addresses,
    .make = make_both,
    .free = free_both,
    .unit[ENG_UNIT_GATHERED] = open_param,
    .unit[ENG_UNIT_RELEASED] = close_param,
    .step[ENG_STEP_PUBLISHED] = renew,
    .grad_opened = open_grad,
    .unit[ENG_UNIT_GRAD_DONE] = close_grad,
    .param = param_address,
    .grad = grad_address,
};
