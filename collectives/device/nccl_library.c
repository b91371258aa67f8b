#include "collectives/device/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

enum { OLDEST = 22800 };

static struct nccl_library loaded;
static _Atomic bool is_ready;

const struct nccl_library *nccl_loaded(void)
{
    return &loaded;
}

#define SYMBOL(function) #function

static zero_result check_version(const struct nccl_library *library, struct base_error *error)
{
    int version = 0;
    if (library->version(&version) != ncclSuccess)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s does not say its version", LIBRARY);
    if (version < OLDEST)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s is NCCL %d.%d.%d, and 2.28 is the oldest that will do", LIBRARY,
                         version / 10000, version / 100 % 100, version % 100);
    return ZERO_OK;
}

static zero_result find_functions(void *file, struct nccl_library *library,
                                  struct base_error *error)
{
    struct {
        const char *name;
        void *place;
    } functions[] = {
#define FUNCTION(field, function) {SYMBOL(function), &library->field},
        NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(file, functions[i].name);
        if (!found)
            return zero_fail(error, ZERO_E_UNSUPPORTED,
                             "%s has no %s: it is not NCCL 2.28 or newer", LIBRARY,
                             functions[i].name);
        memcpy(functions[i].place, &found, sizeof found);
    }
    return check_version(library, error);
}

static zero_result load(struct base_error *error)
{
    void *file = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!file) // its message has the library's name
        return zero_fail(error, ZERO_E_UNSUPPORTED, "no NCCL here: %s", dlerror());
    struct nccl_library library;
    const zero_result result = find_functions(file, &library, error);
    if (result)
        dlclose(file);
    else
        loaded = library;
    return result;
}

zero_result nccl_library(const struct nccl_library **library, struct base_error *error)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    zero_result result = ZERO_OK;
    if (!atomic_load_explicit(&is_ready, memory_order_acquire)) {
        pthread_mutex_lock(&mutex);
        if (!atomic_load(&is_ready))
            result = load(error);
        if (!result)
            atomic_store_explicit(&is_ready, true, memory_order_release);
        pthread_mutex_unlock(&mutex);
    }
    *library = result ? NULL : &loaded;
    return result;
}
