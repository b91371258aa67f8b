#include "collectives/provider/ucx_library.h"

#include "base/fault.h"
#include "base/library.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>

#define LIBRARY "libucp.so.0"

/** The release whose header this is built with at the earliest: 1.13. */
enum { OLDEST_MAJOR = 1, OLDEST_MINOR = 13 };

static struct ucx_library loaded;

#define SYMBOL(function) #function

static zero_result check_version(const struct ucx_library *library, struct base_error *error)
{
    unsigned major, minor, release;
    library->version(&major, &minor, &release);
    // Functions and structs stay as they are as long as the first number does.
    if (major != OLDEST_MAJOR || minor < OLDEST_MINOR)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s is UCX %u.%u.%u, and %d.%d or a newer %d is needed", LIBRARY, major,
                         minor, release, OLDEST_MAJOR, OLDEST_MINOR, OLDEST_MAJOR);
    return ZERO_OK;
}

static zero_result find_ucx(void *file, struct ucx_library *library, struct base_error *error)
{
    const struct base_symbol functions[] = {
#define FUNCTION(field, function) {SYMBOL(function), &library->field},
        UCX_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    const char *missing = base_library_find(file, functions, sizeof functions / sizeof *functions);
    if (missing)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "%s has no %s: it is not UCX %d.%d or newer",
                         LIBRARY, missing, OLDEST_MAJOR, OLDEST_MINOR);
    return check_version(library, error);
}

/** dlopen(), but signals do what they did before: UCX takes those of crashes, and SIGHUP, for
 * itself as it is loaded. */
static void *open_library(void)
{
    struct sigaction before[NSIG], now;
    bool known[NSIG];
    for (int signal = 1; signal < NSIG; signal++)
        known[signal] = sigaction(signal, NULL, &before[signal]) == 0;
    void *file = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    for (int signal = 1; signal < NSIG; signal++)
        if (known[signal] && sigaction(signal, NULL, &now) == 0 &&
            now.sa_sigaction != before[signal].sa_sigaction)
            sigaction(signal, &before[signal], NULL);
    return file;
}

static zero_result load_ucx(struct base_error *error)
{
    const int fault = base_fault("ucx.library");
    if (fault)
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, fault, "no UCX here: %s", LIBRARY);
    void *file = open_library();
    if (!file) // its message has the library's name
        return zero_fail(error, ZERO_E_UNSUPPORTED, "no UCX here: %s", dlerror());
    struct ucx_library library;
    const zero_result result = find_ucx(file, &library, error);
    if (result)
        dlclose(file);
    else
        loaded = library;
    return result;
}

zero_result ucx_library(const struct ucx_library **library, struct base_error *error)
{
    static struct base_load once = BASE_LOAD_ONCE;
    const zero_result result = base_load_once(&once, load_ucx, error);
    *library = result ? NULL : &loaded;
    return result;
}
