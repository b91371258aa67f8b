// Observers of a context: each function asks all that were added.

#include "zero/core/observers.h"

#include <assert.h>

void eng_observer_add(zero_ctx *z, const struct eng_observer *observer)
{
    assert(z->debug.observer_count < ENG_MAX_OBSERVERS);
    assert(!z->units); // the observers' tables come with the others
    z->debug.observers[z->debug.observer_count++] = observer;
    z->micro.again += observer->again;
}

size_t eng_observers_tables(const zero_ctx *z)
{
    size_t bytes = 0;
    for (int i = 0; i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->tables)
            bytes += z->debug.observers[i]->tables(z);
    return bytes;
}

size_t eng_observers_addresses(const zero_ctx *z)
{
    size_t bytes = 0;
    for (int i = 0; i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->addresses)
            bytes += z->debug.observers[i]->addresses(z);
    return bytes;
}

zero_result eng_observers_make(zero_ctx *z, struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->make)
            r = z->debug.observers[i]->make(z, error);
    return r;
}

void eng_observers_free(zero_ctx *z)
{
    for (int i = 0; i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->free)
            z->debug.observers[i]->free(z);
    z->debug.observer_count = 0;
    z->micro.again = 0;
}

zero_result eng_observe_unit(zero_ctx *z, enum eng_unit_event event, zero_unit unit)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->unit[event])
            r = z->debug.observers[i]->unit[event](z, unit);
    return r;
}

zero_result eng_observe_step(zero_ctx *z, enum eng_step_event event)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->step[event])
            r = z->debug.observers[i]->step[event](z);
    return r;
}

zero_result eng_observe_grad_opened(zero_ctx *z, zero_unit unit, bool raw)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->grad_opened)
            r = z->debug.observers[i]->grad_opened(z, unit, raw);
    return r;
}

const void *eng_observed_param(const zero_ctx *z, const struct eng_slice *slice)
{
    const void *address = NULL;
    for (int i = 0; !address && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->param)
            address = z->debug.observers[i]->param(z, slice);
    return address;
}

void *eng_observed_grad(const zero_ctx *z, const struct eng_slice *slice)
{
    void *address = NULL;
    for (int i = 0; !address && i < z->debug.observer_count; i++)
        if (z->debug.observers[i]->grad)
            address = z->debug.observers[i]->grad(z, slice);
    return address;
}
