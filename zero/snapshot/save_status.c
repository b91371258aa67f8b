// What is told of a save while it goes on: written in public calls, read by zero_save_poll() in any
// thread.

#include "zero/model/versioned.h"
#include "zero/snapshot/save_parts.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

void eng_save_enter(zero_ctx *z, enum eng_save_phase phase)
{
    assert((phase == SAVE_WRITING) != eng_save_under_way(z));
    assert(phase != SAVE_COMPLETE || eng_save_phase(z) == SAVE_COMMITTING);
    if (phase == SAVE_COMPLETE || phase == SAVE_FAILED)
        atomic_store_explicit(&z->saving.status.ended_ns, base_clock_ns(), memory_order_relaxed);
    atomic_store_explicit(&z->saving.status.phase, phase, memory_order_release);
}

/** From now on zero_save_poll() tells of this save. Who reads a new value reads that there was a
 * change, too. */
void eng_save_tell_begun(zero_ctx *z, uint64_t began_ns)
{
    struct eng_save_status *status = &z->saving.status;
    const uint64_t blocked_ns = base_clock_ns() - began_ns;
    atomic_fetch_add_explicit(&status->changes, 1, memory_order_relaxed);
    atomic_store_explicit(&status->step, z->step, memory_order_release);
    atomic_store_explicit(&status->began_ns, began_ns, memory_order_release);
    atomic_store_explicit(&status->blocked_ns, blocked_ns, memory_order_release);
    eng_save_enter(z, SAVE_WRITING);
    atomic_fetch_add_explicit(&status->changes, 1, memory_order_release);
}

uint64_t eng_save_count_blocked(zero_ctx *z, uint64_t began_ns)
{
    const uint64_t ns = base_clock_ns() - began_ns;
    atomic_fetch_add_explicit(&z->saving.status.blocked_ns, ns, memory_order_relaxed);
    return ns;
}

static int32_t public_phase(enum eng_save_phase phase)
{
    switch (phase) {
    case SAVE_NONE:
        return ZERO_SAVE_NONE;
    case SAVE_COMPLETE:
        return ZERO_SAVE_COMPLETE;
    case SAVE_FAILED:
        return ZERO_SAVE_FAILED;
    default:
        return ZERO_SAVE_WRITING;
    }
}

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_acquire);
}

static void fill_info(const struct eng_save_status *status, enum eng_save_phase phase,
                      zero_save_info *info)
{
    const bool ended = phase == SAVE_COMPLETE || phase == SAVE_FAILED;
    const uint64_t end = ended ? load(&status->ended_ns) : base_clock_ns();
    info->step = load(&status->step);
    info->state_bytes = load(&status->state_bytes);
    info->done_bytes = phase == SAVE_COMPLETE ? info->state_bytes : load(&status->done_bytes);
    info->seconds = (double)(end - load(&status->began_ns)) * 1e-9;
    info->blocked_s = (double)load(&status->blocked_ns) * 1e-9;
    if (phase != SAVE_COMPLETE)
        return;
    info->file_bytes = load(&status->file_bytes);
    for (int i = 0; i < 2; i++) {
        const uint64_t half = load(&status->fingerprint[i]);
        memcpy(info->fingerprint + i * 8, &half, sizeof half);
    }
}

zero_result zero_save_poll(const zero_ctx *z, zero_save_info *info)
{
    if (!z || !info || info->struct_size < sizeof info->struct_size)
        return ZERO_E_INVALID;
    const struct eng_save_status *status = &z->saving.status;
    zero_save_info full;
    uint64_t changes;
    do {
        changes = load(&status->changes);
        const enum eng_save_phase phase = eng_save_phase(z);
        full = (zero_save_info){.struct_size = info->struct_size, .phase = public_phase(phase)};
        if (phase != SAVE_NONE)
            fill_info(status, phase, &full);
    } while (changes % 2 != 0 || changes != load(&status->changes));
    eng_struct_give(info, &full, sizeof full);
    return ZERO_OK;
}
