#include "base/library.h"

#include "base/arena.h"

#include <assert.h>
#include <dlfcn.h>
#include <link.h>
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

/** The names of the libraries of this process, one behind the other, each with its zero. */
struct names {
    char *bytes;
    size_t used, room;
};

static int add_name(struct dl_phdr_info *library, size_t size, void *user)
{
    struct names *names = user;
    const size_t length = strlen(library->dlpi_name) + 1;
    (void)size;
    if (length > 1 && names->used + length <= names->room)
        memcpy(names->bytes + names->used, library->dlpi_name, length);
    names->used += length > 1 ? length : 0;
    return 0;
}

// The loader's lock is held while it tells the names, so they are looked into afterwards.
static char *list_names(size_t *used)
{
    struct names names = {.room = 1 << 14};
    for (;;) {
        names.bytes = base_calloc(1, names.room);
        names.used = 0;
        if (names.bytes)
            dl_iterate_phdr(add_name, &names);
        if (names.used <= names.room)
            break;
        base_free(names.bytes);
        names.room = 2 * names.used;
    }
    *used = names.bytes ? names.used : 0;
    return names.bytes;
}

bool base_library_is_there(const char *function)
{
    size_t used;
    if (dlsym(RTLD_DEFAULT, function))
        return true;
    char *names = list_names(&used);
    bool found = false;
    for (size_t at = 0; at < used && !found; at += strlen(names + at) + 1) {
        void *library = dlopen(names + at, RTLD_NOW | RTLD_NOLOAD);
        found = library && dlsym(library, function);
        if (library)
            dlclose(library);
    }
    base_free(names);
    return found;
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
