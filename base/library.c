#include "base/library.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

const char *base_library_find(void *library, const struct base_symbol *symbols, size_t count)
{
    assert(symbols || count == 0);
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return symbols[i].name;
        memcpy(symbols[i].place, &found, sizeof found);
    }
    return NULL;
}

zero_result base_load_once(struct base_load *once, zero_result (*load)(struct base_error *error),
                           struct base_error *error)
{
    assert(once && load);
    zero_result result = ZERO_OK;
    if (atomic_load_explicit(&once->is_loaded, memory_order_acquire))
        return ZERO_OK;
    pthread_mutex_lock(&once->mutex);
    if (!atomic_load(&once->is_loaded))
        result = load(error);
    if (!result)
        atomic_store_explicit(&once->is_loaded, true, memory_order_release);
    pthread_mutex_unlock(&once->mutex);
    return result;
}
