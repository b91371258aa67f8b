#include "collectives/gpu/nccl_library.h"

#include "base/library.h"

#include <assert.h>
#include <dlfcn.h>

#define LIBRARY "libnccl.so.2"

enum { OLDEST = 22800 };

static struct nccl_library loaded;

const struct nccl_library *nccl_loaded(void)
{
    assert(loaded.version); // nccl_library() was called
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
    const struct base_symbol functions[] = {
#define FUNCTION(field, function) {SYMBOL(function), &library->field},
        NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    const char *missing = base_library_find(file, functions, sizeof functions / sizeof *functions);
    if (missing)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s has no %s: it is not NCCL 2.28 or newer",
                         LIBRARY, missing);
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
    static struct base_load once = BASE_LOAD_ONCE;
    const zero_result result = base_load_once(&once, load, error);
    *library = result ? NULL : &loaded;
    return result;
}
